# make test-asan     unit and end-to-end tests with ASan, UBSan and leak
#                    checking; nginx is built from Debian's source for it
# make test-tsan     the rings, their client, the engine's threads round them,
#                    and its CUDA backend over the software device, with TSan
#
# Each has a build directory of its own.  test-asan needs the network once, for
# nginx's source package.

ASAN_FLAGS := -O1 -g -fno-omit-frame-pointer -fsanitize=address,undefined
# In the frames that detect_stack_use_after_return needs, GCC 12 misplaces what is
# to be aligned to 64 bytes, and AVX-512 code dies; kernels go without them.
build-asan/obj/kernels/%.o: TR_CFLAGS += --param asan-use-after-return=0
TSAN_FLAGS := -O1 -g -fno-omit-frame-pointer -fsanitize=thread
TSAN_TESTS := ring inbox status channel ring_client
TSAN_BIN   := $(TSAN_TESTS:%=build-tsan/test_%)
# These need the whole engine.  On the software device, whose stream is a thread,
# pinned memory that is read or written too early is a data race.
TSAN_ENGINE := $(patsubst %,build-tsan/tests/test_%,response_writer loop store \
    frontend frontend_drain frontend_hostile redis_publisher kv_device_cache \
    kv_device_prefix store_hostile kv_prefix executor_cuda)

.PHONY: test-asan test-asan-unit test-asan-e2e test-tsan

test-asan: test-asan-unit test-asan-e2e

test-asan-unit: $(STAMP)/sanitize
	@$(MAKE) -s --no-print-directory -j$(JOBS) B=build-asan \
	    CFLAGS="$(ASAN_FLAGS)" engine cli unit
	@CC="$(CC)" scripts/test-asan.sh unit

test-asan-e2e: $(STAMP)/sanitize $(NODE)
	@$(MAKE) -s --no-print-directory -j$(JOBS) B=build-asan \
	    CFLAGS="$(ASAN_FLAGS)" engine cli build-asan/tests/libtokenring_soft.so
	@CC="$(CC)" JOBS="$(JOBS)" E2E="$(E2E)" scripts/test-asan.sh e2e

$(foreach t,$(TSAN_TESTS),$(eval \
    build-tsan/test_$t: $(wildcard tests/unit/*/test_$t.c)))
$(TSAN_BIN): cli/ring_client.c engine/config/log.c cli/ring_client.h \
    $(wildcard tests/unit/fixtures/*.h include/tokenring/*.h)
	@mkdir -p $(@D)
	@echo "  CC    $@ (TSan)"
	$Q$(CC) $(filter-out -MMD -MP,$(TR_CFLAGS)) $(TSAN_FLAGS) \
	    -o $@ $(filter %.c,$^) -lcmocka

test-tsan: $(STAMP)/test $(TSAN_BIN)
	@$(MAKE) -s --no-print-directory -j$(JOBS) B=build-tsan \
	    CFLAGS="$(TSAN_FLAGS)" $(TSAN_ENGINE)
	@for t in $(TSAN_BIN) $(TSAN_ENGINE); do \
	    TSAN_OPTIONS=halt_on_error=1 timeout -k 5 600 $$t || exit 1; done
