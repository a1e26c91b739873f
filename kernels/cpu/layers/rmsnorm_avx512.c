/* One row of rmsnorm (rmsnorm.c) in AVX-512. */
#include "kernels/cpu/vec_avx512.h"

#define TR_NAME(name) name##_avx512

#include "rmsnorm_vec.h"
