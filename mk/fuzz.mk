# make fuzz    fuzz every reader of hostile bytes for FUZZ_SECONDS (10) each,
#              from the seeds in tests/fuzz/corpus (FUZZ=NAME for one of them)
#
# Needs clang with libFuzzer (Debian: clang).  What a run finds beyond the seeds
# stays in build-fuzz/corpus, so that the next one goes on from there; an input
# that fails is kept in build-fuzz/NAME-crash-*.

FUZZ         ?=
FUZZ_SECONDS ?= 10
FUZZ_CC      ?= clang
FUZZ_ALL     := $(patsubst tests/fuzz/fuzz_%.c,%,$(wildcard tests/fuzz/fuzz_*.c))
FUZZ_RUN     := $(if $(FUZZ),$(FUZZ),$(FUZZ_ALL))
FUZZ_FLAGS   := -O1 -g -fno-omit-frame-pointer -fno-sanitize-recover=all
# Readers need no kernels, but for what says where a cache's bytes are.
FUZZ_SRC      = $(shell grep -L '"kernels/thread_pool.h"' $(ENGINE_SRC)) \
                kernels/kv_layout.c
FUZZ_CFLAGS   = $(filter-out -Werror,$(TR_CFLAGS)) $(FUZZ_FLAGS) \
                -Wno-unknown-pragmas

.PHONY: fuzz
fuzz: $(FUZZ_RUN:%=build-fuzz/fuzz_%)
	@for name in $(FUZZ_RUN); do \
	    mkdir -p build-fuzz/corpus/$$name; \
	    printf '%-12s ' "$$name"; \
	    if ! build-fuzz/fuzz_$$name -max_total_time=$(FUZZ_SECONDS) \
	        -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
	        -artifact_prefix=build-fuzz/$$name- build-fuzz/corpus/$$name \
	        tests/fuzz/corpus/$$name >build-fuzz/$$name.log 2>&1; then \
	        echo FAILED; tail -n 60 build-fuzz/$$name.log; exit 1; \
	    fi; \
	    sed -n 's/^stat::number_of_executed_units: */inputs /p' \
	        build-fuzz/$$name.log; \
	done

build-fuzz/fuzz_wire build-fuzz/fuzz_ring: build-fuzz/fuzz_%: \
    tests/fuzz/fuzz_%.c $(wildcard include/tokenring/*.h)
	@mkdir -p $(@D)
	@echo "  CC    $<"
	$Q$(FUZZ_CC) $(filter-out -MMD -MP,$(FUZZ_CFLAGS)) \
	    -fsanitize=fuzzer,address,undefined -o $@ $<

# A part of the module that needs no NGINX, and nothing of the engine.
build-fuzz/fuzz_scan: build-fuzz/obj/tests/fuzz/fuzz_scan.o \
    build-fuzz/obj/ngx_module/routing/ngx_http_tokenring_scan.o
	@echo "  LD    $@"
	$Q$(FUZZ_CC) $(FUZZ_FLAGS) -fsanitize=fuzzer,address,undefined -o $@ $^ \
	    -ljansson

build-fuzz/obj/%.o: %.c
	@mkdir -p $(@D)
	@echo "  CC    $< (fuzz)"
	$Q$(FUZZ_CC) $(FUZZ_CFLAGS) $(ISA) \
	    -fsanitize=fuzzer-no-link,address,undefined -c -o $@ $<

build-fuzz/libtokenring.a: $(FUZZ_SRC:%.c=build-fuzz/obj/%.o)
	$Qrm -f $@ && ar rcs $@ $^

build-fuzz/fuzz_%: build-fuzz/obj/tests/fuzz/fuzz_%.o build-fuzz/libtokenring.a
	@echo "  LD    $@"
	$Q$(FUZZ_CC) $(FUZZ_FLAGS) -fsanitize=fuzzer,address,undefined -pthread \
	    -o $@ $^ $(LIBS)

-include $(shell find build-fuzz/obj -name '*.d' 2>/dev/null)
