/* One row of rmsnorm (rmsnorm.c) in AVX2 with FMA. */
#include "kernels/cpu/vec_avx2.h"

#define TR_NAME(name) name##_avx2

#include "rmsnorm_vec.h"
