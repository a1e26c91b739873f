# Tokenring: build, test, run.
#
#: make demo        set up, build, start, and show an answer streaming
#: make up          start the engine and NGINX on 127.0.0.1:8080 (PORT=);
#:                  logs and state are in build/run (PREFIX=); a Redis of
#:                  its own (REDIS=HOST:PORT for another, none); the KV
#:                  cache is compressed (POLICY=diffkv; full does not);
#:                  ENGINES=2: several, which the page can stop
#: make down        stop them
#: make             build engine, command line and module into build/ (B=)
#: make engine      one part: engine, cli, module, unit (the unit tests)
#: make cuda        the library of backend cuda, tests, benchmarks; mk/cuda.mk
#: make deps        install missing dependencies (Debian packages, npm for tests)
#: make deb         Debian packages into build/deb
#: make install     into DESTDIR= PREFIX= (default /usr/local)
#: make uninstall   remove that, unless NGINX uses it
#: make clean       remove what was built
#:
#: make test        set up, build, and run every test that needs no GPU
#: make test-unit   unit tests only (T=ring for one of them)
#: make test-e2e    end-to-end tests only (E2E=pattern for some of the files)
#: make test-docs   the documentation: what it shows, and every command
#: make test-templates
#:                  chat templates against Python's jinja2
#: make test-schemas
#:                  JSON schemas against JSON-Schema-Test-Suite (SUITE=DIR)
#:                  and validators of others
#: make test-strict 10,000 answers of models/pocket under strict schemas
#: make test-whole  2,000 random requests to each endpoint: streamed as whole
#: make test-gpu    kernels on a GPU
#: make test-simt   kernels for GPUs on a device in software (needs nvcc)
#: make test-asan   unit and end-to-end tests with ASan and UBSan; one half
#:                  with test-asan-unit, test-asan-e2e
#: make test-tsan   rings and threads with TSan
#: make test-prefix a million random operations on cached prefixes, and 200
#:                  kills of an engine that writes them to files
#: make test-histories
#:                  ten minutes of kills, stops and drains under clients whose
#:                  logs are checked (HISTORY_SECONDS, HISTORY_SEED)
#: make test-nginx  the module in an nginx source tree (NGINX_SRC=DIR)
#: make test-images the images of docker/, built and run in Debian roots
#: make test-deb    install, upgrade and purge the packages in a clean Debian
#: make test-tokenizer-reference
#:                  tokenizer and chat templates against the reference
#: make fuzz        fuzz what reads hostile bytes (FUZZ_SECONDS=10, FUZZ=name)
#: make bench       measure; bench-NAME for one, listed in mk/bench.mk
#: make eval-formats
#:                  right answers of models/pocket in every format of weights
#: make stress      models with outliers in keys and values, in build/stress
#:                  (trains what models/stress lacks: a GPU, PyTorch)
#:
#: make lint        style and static analysis (make format repairs style)
#: make hooks       have git check what is staged before each commit
#: make compile_commands.json
#:                  for clangd and other tools that need the compiler's flags
#
# Everything built lands in build/ (B=DIR for another place; the sanitizer
# targets use their own).  Compiling never needs the network; `make deps`
# installs what is missing.

# By one name, whoever gives it: what a file was made of (*.d) is known by name.
B        ?= build
override B := $(patsubst $(CURDIR)/%,%,$(B))
# Through ccache where there is one (CCACHE= for none), unless CC was given.
ifeq ($(origin CCACHE),undefined)
CCACHE   := $(if $(shell command -v ccache 2>/dev/null),ccache)
endif
ifeq ($(origin CC),default)
CC       := $(strip $(CCACHE) gcc)
endif
CFLAGS   ?= -O2 -g1
# Kernels are unrolled, and without the compiler's account of where each variable
# is at each instruction, which takes longer than the rest.  CFLAGS for a debugger
# or a sanitizer (-O0, -Og, -O1) are those of the kernels, too.
KERNEL_CFLAGS ?= $(if $(filter -O0 -Og -O1,$(CFLAGS)),,-O3 -g0)
# A PREFIX that was given is also where up and down keep their state.
RUN_DIR  := $(if $(filter undefined default,$(origin PREFIX)),,$(abspath $(PREFIX)))
PREFIX   ?= /usr/local
PORT     ?= 8080
DESTDIR  ?=

TR_CFLAGS := -std=gnu11 -D_GNU_SOURCE -Wall -Wextra -Werror -Wshadow \
             -Wmissing-prototypes -Wno-unused-function -fno-math-errno \
             -pthread -Iinclude -iquote. -MMD -MP
LIBS      = -lopenblas -lpcre2-8 -lutf8proc -ljansson $(REDIS_LIBS) -lm

ENGINE_SRC := $(filter-out engine/main.c,$(wildcard engine/*.c engine/*/*.c \
                                             engine/*/*/*.c))
KERNEL_SRC := $(wildcard kernels/*.c kernels/kv_manager/*.c kernels/cpu/*.c \
                         kernels/cpu/*/*.c)
# What takes longest comes first, so that no core waits for it at the end.
KERNEL_SRC := $(filter %_avx512.c,$(KERNEL_SRC)) $(filter %_avx2.c,$(KERNEL_SRC)) \
              $(filter-out %_avx512.c %_avx2.c,$(KERNEL_SRC))
CLI_SRC    := $(wildcard cli/*.c cli/*/*.c)
UNIT_SRC   := $(wildcard tests/unit/*/test_*.c)

ENGINE_OBJ := $(KERNEL_SRC:%.c=$B/obj/%.o) $(ENGINE_SRC:%.c=$B/obj/%.o)
CLI_OBJ    := $(filter-out $B/obj/cli/main.o,$(CLI_SRC:%.c=$B/obj/%.o))
UNIT_BIN   := $(patsubst %.c,$B/tests/%,$(notdir $(UNIT_SRC)))

Q := $(if $(V),,@)

.PHONY: all engine cli module unit clean help deps deps-build demo up served down \
        test test-unit test-e2e test-docs install uninstall lint format hooks compile_commands.json
all: configured engine module cli

engine: $B/bin/tokenring-engine
cli: $B/bin/tokenring

# Only the kernels written for an instruction set are compiled for it; which one
# runs is chosen at run time.
%_avx2.o: ISA = -mavx2 -mfma -mf16c
%_avx512.o: ISA = -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx2 -mfma -mf16c
%_vnni.o: ISA = -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vnni -mavx2 \
                -mfma -mf16c
$B/obj/kernels/%.o: OPT = $(KERNEL_CFLAGS)

$B/obj/%.o: %.c
	@mkdir -p $(@D)
	@echo "  CC    $<"
	$Q$(CC) $(TR_CFLAGS) $(CFLAGS) $(OPT) $(ISA) $(PIC) -c $< -o $@

$B/libtokenring.a: $(ENGINE_OBJ)
	@echo "  AR    $@"
	$Qrm -f $@ && ar rcs $@ $^

$B/libcli.a: $(CLI_OBJ)
	@echo "  AR    $@"
	$Qrm -f $@ && ar rcs $@ $^

$B/bin/tokenring-engine: $B/obj/engine/main.o $B/libtokenring.a
	@mkdir -p $(@D)
	@echo "  LD    $@"
	$Q$(CC) $(CFLAGS) -pthread -o $@ $^ $(LIBS) $(LDFLAGS)

$B/bin/tokenring: $B/obj/cli/main.o $B/libcli.a $B/libtokenring.a
	@mkdir -p $(@D)
	@echo "  LD    $@"
	$Q$(CC) $(CFLAGS) -pthread -o $@ $^ $(LIBS) -lcurl -ledit $(LDFLAGS)

# A unit test is one file, linked with what it needs of the libraries; programs
# stand in one folder, whichever folder of tests/unit a test is in.
$(foreach t,$(UNIT_SRC),$(eval \
    $B/tests/$(basename $(notdir $t)): $B/obj/$(t:.c=.o)))
$(UNIT_BIN): $B/libcli.a $B/libtokenring.a
	@mkdir -p $(@D)
	@echo "  LD    $@"
	$Q$(CC) $(CFLAGS) -pthread -o $@ $(filter %.o,$^) $(filter %.a,$^) \
	    -lcmocka $(LIBS) -lcurl $(WRAP) $(LDFLAGS)

# Parts of the module that need no NGINX.
$B/tests/test_scan $B/tests/test_budget: $B/tests/test_%: \
    $B/obj/ngx_module/routing/ngx_http_tokenring_%.o
$B/tests/test_number: $B/obj/ngx_module/api/ngx_http_tokenring_number.o

# Counts what the scheduler asks of response writers.
$B/tests/test_scheduler: WRAP = -Wl,--wrap=tr_response_writer_has_room

unit: $(UNIT_BIN)

clean:
	@[ ! -d build/run ] || B=build scripts/down.sh >/dev/null
	rm -rf build build-*

# ---- set-up -----------------------------------------------------------------
# A stamp says that the packages were there, so that a second run is quiet and
# needs no network; it ages when the list does.

STAMP := build/deps
NODE  := tests/e2e/node_modules/.package-lock.json
JOBS  := $(shell nproc 2>/dev/null || echo 2)

$(STAMP)/%: scripts/deps.sh
	@scripts/deps.sh $*
	@mkdir -p $(@D) && touch $@

$(NODE): tests/e2e/package-lock.json tests/e2e/package.json | $(STAMP)/test
	@echo "  NPM   tests/e2e"
	@cd tests/e2e && npm ci --loglevel=error --no-progress >/dev/null \
	    && touch ../../$@

deps-build: $(STAMP)/build
	@:
deps: $(STAMP)/build $(STAMP)/test $(NODE)
	@:

# ---- run --------------------------------------------------------------------

RUN_ENV = B="$B" PORT="$(PORT)" TR_RUN="$(RUN_DIR)"

# What answers is built first; the command line follows, beside the demo's answers.
CLI_LATER = $(MAKE) -s --no-print-directory -j$(JOBS) cli >$B/cli.log 2>&1

demo: served
	@nice $(CLI_LATER) & cli=$$!; $(RUN_ENV) scripts/demo.sh; said=$$?; \
	    wait $$cli || { cat $B/cli.log >&2; exit 1; }; exit $$said

up: served
	@$(MAKE) -q --no-print-directory cli 2>/dev/null || echo "  CC    the command line"
	@$(CLI_LATER) || { cat $B/cli.log >&2; exit 1; }

served: deps-build
	@$(MAKE) -s --no-print-directory -j$(JOBS) configured engine module
	@$(RUN_ENV) scripts/up.sh

down:
	@$(RUN_ENV) scripts/down.sh

# ---- test -------------------------------------------------------------------

test: deps
	@$(MAKE) -s --no-print-directory -j$(JOBS) all unit $(TEST_CUDA)
	@B="$B" scripts/test.sh all

# T=NAME is tests/unit/*/test_NAME.c.
UNIT_NAMES = $(sort $(patsubst test_%,%,$(notdir $(UNIT_BIN) $(UNIT_MORE))))

test-unit: $(STAMP)/test
	@$(if $(filter $(UNIT_NAMES),$(T))$(if $(T),,all),,echo "there is no unit \
	    test \"$(T)\"; T= is one of:" >&2; echo $(UNIT_NAMES) | fmt >&2; exit 2)
	@$(MAKE) -s --no-print-directory -j$(JOBS) \
	    $(if $(T),$B/tests/test_$(T),unit)
	@B="$B" T="$(T)" scripts/test.sh unit

test-e2e: deps
	@$(MAKE) -s --no-print-directory -j$(JOBS) all $(SOFT_LIB)
	@B="$B" scripts/test.sh e2e

# Files of the end-to-end tests; make test has them, too.
test-docs: deps
	@$(MAKE) -s --no-print-directory -j$(JOBS) all
	@for files in docs cookbook sizing; do \
	    B="$B" E2E=$$files scripts/test.sh e2e || exit 1; done

# Style, static analysis, shell scripts, JavaScript syntax.
lint: $(STAMP)/lint
	@scripts/lint.sh

format: $(STAMP)/lint
	@scripts/lint.sh --fix

# git runs it in the tree that is committed from; a hook of somebody's own stays.
hooks: $(STAMP)/lint
	@scripts/pre-commit.sh --install

COMPILED := engine cli unit fake-engine fake-clock bench-tools bench-gpu fuzz
compile_commands.json: $(if $(wildcard $(NGINX_DEV)/conf_flags),$(MODULE_DIR)/Makefile)
	@CC="$(CC)" NGINX_DEV="$(NGINX_DEV)" B="$B" scripts/compile-commands.sh \
	    "$(MAKE)" $(COMPILED) $(if $(TEST_CUDA),cuda test-simt)

# ---- install ----------------------------------------------------------------

install: all
	@B="$B" DESTDIR="$(DESTDIR)" PREFIX="$(PREFIX)" scripts/install.sh

uninstall:
	@DESTDIR="$(DESTDIR)" PREFIX="$(PREFIX)" scripts/uninstall.sh

help:
	@sed -n '/^#:/s/^#: \{0,1\}//p' Makefile

# Further rules, by part: the module, sanitizers, benchmarks, tests.
include $(wildcard mk/*.mk)

-include $(shell find $B/obj -name '*.d' 2>/dev/null)
