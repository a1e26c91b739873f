# The CUDA backend.  Included by the Makefile.
#
#   make cuda        kernels, their tests and benchmarks, into build/cuda
#                    (NVCC=, CUDA_ARCH="90a 80 89"; with "89+" the driver
#                    translates for later GPUs), and what the engine loads,
#                    build/lib/libtokenring_cuda.so
#   make test-gpu    tests and benchmarks, on a machine with a GPU
#
# Needs nvcc 12.4 or newer; nothing else in this tree needs CUDA.  `make test`
# compiles it where nvcc is found, in a folder of its own (CUDA_DIR) and for one
# architecture, that with most code; that the others compile, `make cuda` shows.
# The C files go through nvcc too: it alone knows where its headers are (a link or
# a wrapper may stand in the PATH).

ifeq ($(origin NVCC),undefined)
NVCC      := $(firstword $(shell command -v nvcc 2>/dev/null) \
                         $(wildcard /usr/local/cuda/bin/nvcc))
NVCC      := $(if $(NVCC),$(strip $(CCACHE) $(NVCC)))
endif
NVCC_NEW  := $(if $(NVCC),$(shell $(NVCC) --version \
    | sed -n 's/.*release \([0-9]*\)\.\([0-9]*\).*/\1 \2/p' \
    | { read -r a b; [ $$((a * 100 + b)) -ge 1204 ] && echo yes; }))
CUDA_ARCH ?= 90a 80 89
CUDA_DIR  ?= $B/cuda
CUDA_LIB  ?= $B/lib/libtokenring_cuda.so
CUDA_SRC  := $(wildcard kernels/cuda/*.cu kernels/cuda/*/*.cu)
CUDA_OBJ  := $(CUDA_SRC:%.cu=$(CUDA_DIR)/%.o)
CUDA_TEST := $(CUDA_DIR)/test_decode $(CUDA_DIR)/bench_decode
CUDA_GPU  := $(CUDA_DIR)/obj/cache.o $(CUDA_DIR)/obj/cache_reference.o \
             $(CUDA_DIR)/obj/kv_layout.o

# What is compared with the CPU backend: its cache and attention, without the
# matrices, which would need OpenBLAS where the tests run.
CUDA_BOTH := $(CUDA_DIR)/test_store $(CUDA_DIR)/test_generic \
             $(CUDA_DIR)/test_behind $(CUDA_DIR)/bench_store
CUDA_CPU  := $(patsubst %.c,$B/obj/%.o,\
    $(wildcard kernels/cpu/kv/*.c kernels/cpu/attention/*.c) \
    kernels/thread_pool.c)
CUDA_STORE := $(patsubst %,$(CUDA_DIR)/obj/%.o,store_fixture store_append \
    store_compress store_compare store_swap store_pages store_heads \
    generic_fixture)

# For the tests' library and for the one that the engine loads.
NVFLAGS = -O3 -std=c++17 -I. -diag-suppress 128 \
          -Xcompiler=-fPIC,-fvisibility=hidden \
          $(foreach a,$(CUDA_ARCH),-gencode arch=compute_$(a:+=),code=$(if \
              $(filter %+,$a),compute,sm)_$(a:+=))

NVCC_CFLAGS = $(addprefix -Xcompiler=,$(filter-out -MMD -MP,$(TR_CFLAGS)))

.PHONY: cuda cuda-found test-gpu
cuda: cuda-found $(CUDA_DIR)/libtokenring_cuda.a $(CUDA_LIB) \
      $(CUDA_TEST) $(CUDA_BOTH)

cuda-found:
	@[ -n "$(NVCC)" ] || { echo "make cuda: nvcc was not found" \
	    "(NVCC=PATH; CUDA 12.4 or newer)" >&2; exit 1; }
	@[ "$(NVCC_NEW)" = yes ] || { echo "make cuda: $(NVCC) is older" \
	    "than CUDA 12.4" >&2; exit 1; }

# With dependency files: only what includes a changed header is built again.
NVDEP = -MMD -MP -MF $(@:.o=.d) -MT $@

# Objects of other architectures are built again.
.PHONY: cuda-arch
$(CUDA_DIR)/arch: cuda-arch
	@mkdir -p $(@D)
	@echo "$(CUDA_ARCH)" | cmp -s - $@ || echo "$(CUDA_ARCH)" >$@

$(CUDA_DIR)/%.o: %.cu $(CUDA_DIR)/arch
	@mkdir -p $(@D)
	@echo "  NVCC  $<"
	$Q$(NVCC) $(NVFLAGS) $(NVDEP) -c $< -o $@

# Says what it was compiled for.
$(CUDA_DIR)/kernels/cuda/runtime/runtime.o: NVFLAGS += -DTR_CUDA_ARCHS='"$(CUDA_ARCH)"'

$(CUDA_DIR)/libtokenring_cuda.a: $(CUDA_OBJ)
	@echo "  AR    $@"
	$Qrm -f $@ && ar rcs $@ $^

# All that it needs is the driver, which is looked for when it is asked for, and
# cuBLASLt, likewise.
$(CUDA_LIB): $(CUDA_OBJ) $B/obj/kernels/kv_layout.o
	@mkdir -p $(@D)
	@echo "  LD    $@"
	$Q$(NVCC) -shared -cudart static -o $@ $^ \
	    -Xcompiler=-static-libstdc++,-static-libgcc \
	    -Xlinker=--no-undefined,--exclude-libs,ALL,--as-needed

# Objects and programs lie in one folder, wherever their source is in tests/gpu.
define cuda_test_room
$(CUDA_DIR)/obj/%.o: tests/gpu/$(1)/%.c
	@mkdir -p $$(@D)
	@echo "  CC    $$<"
	$Q$(NVCC) -O2 -g $(NVCC_CFLAGS) $$(NVDEP) -c $$< -o $$@

$(CUDA_DIR)/obj/%.o: tests/gpu/$(1)/%.cu $(CUDA_DIR)/arch
	@mkdir -p $$(@D)
	@echo "  NVCC  $$<"
	$Q$(NVCC) $$(NVFLAGS) $$(NVDEP) -c $$< -o $$@
endef
$(foreach r,fixtures attention gemm kv model runtime,\
    $(eval $(call cuda_test_room,$(r))))

$(CUDA_DIR)/obj/kv_layout.o: kernels/kv_layout.c
	@mkdir -p $(@D)
	@echo "  CC    $<"
	$Q$(CC) $(TR_CFLAGS) -O2 -g -c $< -o $@

$(CUDA_TEST): $(CUDA_DIR)/%: $(CUDA_DIR)/obj/%.o $(CUDA_GPU) $(CUDA_DIR)/libtokenring_cuda.a
	@echo "  LD    $@"
	$Q$(NVCC) -o $@ $^ -lm

$(CUDA_BOTH): $(CUDA_DIR)/%: $(CUDA_DIR)/obj/%.o $(CUDA_STORE) $(CUDA_GPU) $(CUDA_CPU) \
    $(CUDA_DIR)/libtokenring_cuda.a
	@echo "  LD    $@"
	$Q$(NVCC) -o $@ $^ -Xcompiler=-pthread -lm

# The page manager beside the CPU's, which is the engine's: of the library only
# what that needs is linked, nothing that is not there where the tests run.
CUDA_MANAGER := $(CUDA_DIR)/test_manager $(CUDA_DIR)/bench_manager
cuda: $(CUDA_MANAGER)

# Decisions are those of the CPU, bit by bit.
$(CUDA_DIR)/kernels/cuda/kv/manager.o: NVFLAGS += -fmad=false

$(CUDA_MANAGER): $(CUDA_DIR)/%: $(CUDA_DIR)/obj/%.o $(CUDA_DIR)/obj/manager_fill.o \
    $(CUDA_GPU) $(CUDA_DIR)/libtokenring_cuda.a $B/libtokenring.a
	@echo "  LD    $@"
	$Q$(NVCC) -o $@ $^ -Xcompiler=-pthread -lm

# Attention of prompts.
CUDA_PROMPT := $(CUDA_DIR)/test_prompt $(CUDA_DIR)/bench_prompt
cuda: $(CUDA_PROMPT)

$(CUDA_PROMPT): $(CUDA_DIR)/%: $(CUDA_DIR)/obj/%.o $(CUDA_DIR)/obj/prompt_fixture.o \
    $(CUDA_DIR)/obj/prompt_peak.o $(CUDA_GPU) $(CUDA_DIR)/libtokenring_cuda.a
	@echo "  LD    $@"
	$Q$(NVCC) -o $@ $^ -lm

# The rest of the model, and sampling.  Experts are chosen as the CPU chooses them.
CUDA_MODEL := $(CUDA_DIR)/test_model $(CUDA_DIR)/test_sample $(CUDA_DIR)/test_small_gemm \
              $(CUDA_DIR)/test_experts $(CUDA_DIR)/test_fp8_gemm \
              $(CUDA_DIR)/bench_model
CUDA_ARRAYS := $(patsubst %,$(CUDA_DIR)/obj/%.o,arrays model_reference \
    sample_reference experts_reference) \
    $B/obj/kernels/cpu/layers/experts.o $B/obj/kernels/thread_pool.o
cuda: $(CUDA_MODEL)

$(CUDA_MODEL): $(CUDA_DIR)/%: $(CUDA_DIR)/obj/%.o $(CUDA_ARRAYS) $(CUDA_GPU) \
    $(CUDA_DIR)/libtokenring_cuda.a
	@echo "  LD    $@"
	$Q$(NVCC) -o $@ $^ -Xcompiler=-pthread -lm

# What these kernels are compared with is plain C, and has a unit test of its own.
MODEL_REF := model_reference sample_reference
$B/tests/test_model_reference: $(MODEL_REF:%=$B/obj/tests/gpu/model/%.o)

# Through the library's table: nothing is linked.
CUDA_TABLE := $(CUDA_DIR)/test_runtime $(CUDA_DIR)/bench_matmul
cuda: $(CUDA_TABLE)

$(CUDA_TABLE): $(CUDA_DIR)/%: $(CUDA_DIR)/obj/%.o
	@echo "  LD    $@"
	$Q$(NVCC) -o $@ $^ -lm

-include $(shell find $(CUDA_DIR) -name '*.d' 2>/dev/null)

test-gpu: cuda
	@B="$B" tests/gpu/run.sh

ifeq ($(NVCC_NEW),yes)
TEST_CUDA = CUDA_DIR=$B/cuda-test CUDA_LIB=$B/cuda-test/libtokenring_cuda.so \
    CUDA_ARCH="$(if $(filter file,$(origin CUDA_ARCH)),90a,$(CUDA_ARCH))" cuda
endif
