# Kernels on a machine without a GPU: kernels/cuda, compiled for a device in
# software (tests/simt/simt.h), and its tests as one unit test.  Included by the
# Makefile.
#
#   make test-simt   alone (ROUNDS=), models/pocket and the tiny models as a
#                    whole, by the engine's own code, against their
#                    goldens: ten minutes
#
# Needs nvcc for the headers of CUDA, and its host compiler.  Code of 9.0 with all
# kernels, and of 8.0 where that is other code.

SIMT_CODES   := 90 80
SIMT_KERNELS := $(filter-out gemm/matmul,$(patsubst kernels/cuda/%.cu,%,$(CUDA_SRC)))
SIMT_C       := run meet memory product matmul cudart
SIMT_FLAGS   := -x c++ -std=c++17 -O1 -g -Itests/simt -I. -Xcompiler=-fPIC

# A head has few parts on so small a device: that of 8.0 reads them in more rounds.
SIMT_FLAGS_80 := -DTR_SMALL_PARTS

# Sums are rounded as on the device, one by one; kernels have parameters whose
# alignment gcc notes.
SIMT_XFLAGS  := $(addprefix -Xcompiler=,-include,tests/simt/device.h \
    -ffp-contract=off \
    -fno-extern-tls-init -Wno-psabi)

SIMT_TESTS_90 := decode small_gemm fp8_gemm prompt store generic behind model \
                 experts sample manager
SIMT_TESTS_80 := decode prompt behind

# $(1): the code.  kernel<<<..>>>(..) is no C++.  What stands beside a .cu file is
# found from its copy, too.
define simt_code
.PRECIOUS: $B/simt/$(1)/%.cpp
$B/simt/$(1)/%.cpp: kernels/cuda/%.cu
	@mkdir -p $$(@D)
	$Qsed -z -E 's/([A-Za-z_][A-Za-z_0-9]*(<[^<>;(){}]*>)?)[[:space:]]*<<<([^;]*)>>>[[:space:]]*\(/simt_launched(\1, \3)(/g' \
	    $$< | sed '1i #line 1 "$$<"' > $$@

$B/simt/$(1)/%.o: $B/simt/$(1)/%.cpp
	@echo "  SIMT  $$*.cu ($(1))"
	$Q$(NVCC) $(SIMT_FLAGS) $(SIMT_FLAGS_$(1)) -DSIMT_CODE=$(1) \
	    -DTR_CUDA_ARCHS='"$(1)"' $(SIMT_XFLAGS) \
	    -Xcompiler=-iquote,kernels/cuda/$$(*D) $$(NVDEP) -c $$< -o $$@

$B/simt/$(1)/%.o: tests/simt/%.c
	@mkdir -p $$(@D)
	@echo "  CC    $$<"
	$Q$(NVCC) -O3 -g $(NVCC_CFLAGS) -Itests/simt -Xcompiler=-fPIC \
	    -DSIMT_CODE=$(1) $$(NVDEP) -c $$< -o $$@

$B/simt/$(1)/libsimt.a: $(SIMT_KERNELS:%=$B/simt/$(1)/%.o) \
    $(SIMT_C:%=$B/simt/$(1)/%.o)
	@echo "  AR    $$@"
	$Qrm -f $$@ && ar rcs $$@ $$^
endef
$(foreach c,$(SIMT_CODES),$(eval $(call simt_code,$(c))))

# What each test is linked with besides, as for a GPU.
SIMT_WITH_decode  := $(CUDA_GPU)
SIMT_WITH_small_gemm := $(CUDA_ARRAYS) $(CUDA_GPU)
SIMT_WITH_fp8_gemm := $(CUDA_ARRAYS) $(CUDA_GPU)
SIMT_WITH_model   := $(CUDA_ARRAYS) $(CUDA_GPU)
SIMT_WITH_experts := $(CUDA_ARRAYS) $(CUDA_GPU)
SIMT_WITH_sample  := $(CUDA_ARRAYS) $(CUDA_GPU)
SIMT_WITH_prompt  := $(CUDA_DIR)/obj/prompt_fixture.o $(CUDA_GPU)
SIMT_WITH_store   := $(CUDA_STORE) $(CUDA_GPU) $(CUDA_CPU)
SIMT_WITH_generic := $(CUDA_STORE) $(CUDA_GPU) $(CUDA_CPU)
SIMT_WITH_behind  := $(CUDA_STORE) $(CUDA_GPU) $(CUDA_CPU)
SIMT_WITH_manager := $B/simt/manager_fill.o $(CUDA_GPU) \
                     $B/libtokenring.a

$B/simt/manager_fill.o: tests/gpu/kv/manager_fill.cu
	@mkdir -p $(@D)
	@echo "  SIMT  $<"
	$Qsed -E 's/([a-z_]+)<<<(.*)>>>\(/simt_launched(\1, \2)(/' $< > $(@:.o=.cpp)
	$Q$(NVCC) $(SIMT_FLAGS) -DSIMT_CODE=90 $(SIMT_XFLAGS) \
	    -Xcompiler=-iquote,tests/gpu/kv $(NVDEP) -c $(@:.o=.cpp) -o $@

# What the engine loads.
SIMT_LIB := $B/tests/libtokenring_simt.so
$(SIMT_LIB): $(SIMT_KERNELS:%=$B/simt/90/%.o) $(SIMT_C:%=$B/simt/90/%.o) \
    $B/obj/kernels/kv_layout.o
	@mkdir -p $(@D)
	@echo "  LD    $@"
	$Q$(NVCC) -cudart none -shared -o $@ $^ -Xcompiler=-pthread \
	    -Xlinker=--no-undefined,-Bsymbolic -lm

define simt_test
$B/simt/$(1)/test_$(2): $(CUDA_DIR)/obj/test_$(2).o $(SIMT_WITH_$(2)) \
    $B/simt/$(1)/libsimt.a
	@echo "  LD    $$@"
	$Q$(NVCC) -cudart none -o $$@ $$^ -Xcompiler=-pthread -lm
endef
$(foreach c,$(SIMT_CODES),$(foreach t,$(SIMT_TESTS_$(c)),\
    $(eval $(call simt_test,$(c),$(t)))))

SIMT_TESTS := $(foreach c,$(SIMT_CODES),\
    $(SIMT_TESTS_$(c):%=$B/simt/$(c)/test_%))

$B/tests/test_cuda_simt: tests/simt/run.sh $(SIMT_TESTS)
	@mkdir -p $(@D)
	$Qcp $< $@

-include $(shell find $B/simt -name '*.d' 2>/dev/null)

.PHONY: test-simt
test-simt: $B/tests/test_cuda_simt $B/tests/test_model_cuda \
    $B/tests/test_model_cuda_goldens $(SIMT_LIB)
	@$<
	@TR_CUDA_LIBRARY=$(abspath $(SIMT_LIB)) $B/tests/test_model_cuda
	@TR_CUDA_LIBRARY=$(abspath $(SIMT_LIB)) $B/tests/test_model_cuda_goldens

ifeq ($(NVCC_NEW),yes)
TEST_CUDA += $B/tests/test_cuda_simt
endif
