# Tokenring: build, test, run.  `make help` lists what there is.
#
# Everything built lands in build/ (B=DIR for another place; the sanitizer
# targets use their own).  Compiling never needs the network; `make deps`
# installs what is missing.

B        ?= build
CC       ?= gcc
CFLAGS   ?= -O2 -g
PREFIX   ?= /usr/local
PORT     ?= 8080

TR_CFLAGS := -std=gnu11 -D_GNU_SOURCE -Wall -Wextra -Werror -Wshadow \
             -Wmissing-prototypes -Wno-unused-function -fno-math-errno \
             -fopenmp -pthread -Iinclude -Iengine -Ikernels -Icli -MMD -MP
LIBS      = -lopenblas -lpcre2-8 -lutf8proc -ljansson -lm

ENGINE_SRC := $(filter-out engine/main.c,$(wildcard engine/*.c))
KERNEL_SRC := $(wildcard kernels/*.c kernels/cpu/*.c)
CLI_SRC    := $(wildcard cli/*.c)
UNIT_SRC   := $(wildcard tests/unit/test_*.c)

ENGINE_OBJ := $(ENGINE_SRC:%.c=$B/obj/%.o) $(KERNEL_SRC:%.c=$B/obj/%.o)
CLI_OBJ    := $(filter-out $B/obj/cli/main.o,$(CLI_SRC:%.c=$B/obj/%.o))
UNIT_BIN   := $(UNIT_SRC:tests/unit/%.c=$B/tests/%)

Q := $(if $(V),,@)

.PHONY: all engine cli module unit clean help
all: engine cli module

engine: $B/bin/tokenring-engine
cli: $B/bin/tokenring

# Only the kernels written for an instruction set are compiled for it; which one
# runs is chosen at run time.
%_avx2.o: ISA = -mavx2 -mfma -mf16c
%_avx512.o: ISA = -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx2 -mfma -mf16c
$B/obj/kernels/%.o: CFLAGS += -O3

$B/obj/%.o: %.c
	@mkdir -p $(@D)
	@echo "  CC    $<"
	$Q$(CC) $(TR_CFLAGS) $(CFLAGS) $(ISA) -c $< -o $@

$B/libtokenring.a: $(ENGINE_OBJ)
	@echo "  AR    $@"
	$Qrm -f $@ && ar rcs $@ $^

$B/libcli.a: $(CLI_OBJ)
	@echo "  AR    $@"
	$Qrm -f $@ && ar rcs $@ $^

$B/bin/tokenring-engine: $B/obj/engine/main.o $B/libtokenring.a
	@mkdir -p $(@D)
	@echo "  LD    $@"
	$Q$(CC) $(CFLAGS) -fopenmp -pthread -o $@ $^ $(LIBS) $(LDFLAGS)

$B/bin/tokenring: $B/obj/cli/main.o $B/libcli.a $B/libtokenring.a
	@mkdir -p $(@D)
	@echo "  LD    $@"
	$Q$(CC) $(CFLAGS) -fopenmp -pthread -o $@ $^ $(LIBS) -lcurl $(LDFLAGS)

# A unit test is one file, linked with what it needs of the libraries.
$B/tests/%: $B/obj/tests/unit/%.o $B/libcli.a $B/libtokenring.a
	@mkdir -p $(@D)
	@echo "  LD    $@"
	$Q$(CC) $(CFLAGS) -fopenmp -pthread -o $@ $^ -lcmocka $(LIBS) -lcurl $(LDFLAGS)

unit: $(UNIT_BIN)

clean:
	rm -rf build

# Further rules, by part: the module, sanitizers, benchmarks, tests.
include $(wildcard mk/*.mk)

-include $(shell find $B/obj -name '*.d' 2>/dev/null)
