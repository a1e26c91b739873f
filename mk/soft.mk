# The software device (tests/soft): the table of kernels/cuda/device.h, played by
# the CPU, so that the engine's CUDA backend is tested where there is no GPU.
# Included by the Makefile.

SOFT_LIB := $B/tests/libtokenring_soft.so
SOFT_SRC := $(filter-out tests/soft/test_%,$(wildcard tests/soft/*.c)) \
            $(wildcard tests/gpu/model/*_reference.c)
SOFT_TEST := $B/tests/test_soft
SOFT_OBJ := $(SOFT_SRC:%.c=$B/obj/%.o)
# The backend is in the engine, too, from the same objects.
SOFT_CPU := $(patsubst %.c,$B/obj/%.o,$(KERNEL_SRC))

$(SOFT_OBJ) $(SOFT_CPU): PIC = -fPIC -fvisibility=hidden

UNIT_MORE := $(SOFT_TEST) $B/tests/test_runtime
unit: $(SOFT_LIB) $(SOFT_TEST) $B/tests/test_runtime

$(SOFT_LIB): $(SOFT_OBJ) $(SOFT_CPU)
	@mkdir -p $(@D)
	@echo "  LD    $@"
	$Q$(CC) $(CFLAGS) -shared -pthread -o $@ $^ -Wl,--no-undefined \
	    -lopenblas -lm $(LDFLAGS)

$(SOFT_TEST): $B/tests/%: $B/obj/tests/soft/%.o $B/libtokenring.a | $(SOFT_LIB)
	@mkdir -p $(@D)
	@echo "  LD    $@"
	$Q$(CC) $(CFLAGS) -pthread -o $@ $^ -lcmocka $(LIBS) $(LDFLAGS)

# The GPU's test of the table, on the software device.
$B/tests/test_runtime: $B/obj/tests/gpu/runtime/test_runtime.o | $(SOFT_LIB)
	@mkdir -p $(@D)
	@echo "  LD    $@"
	$Q$(CC) $(CFLAGS) -pthread -o $@ $< -lm $(LDFLAGS)

# Unit tests that load it; not linked, but of the same sources.
$(patsubst %.c,$B/tests/%,$(notdir $(wildcard tests/unit/*/test_*cuda*.c \
    tests/unit/kv/test_kv_device*.c))): | $(SOFT_LIB)
