/* The rows of act_mul.c in AVX2 with FMA and F16C. */
#include "kernels/cpu/vec_avx2.h"

#define TR_NAME(name) name##_avx2

#include "act_mul_vec.h"
