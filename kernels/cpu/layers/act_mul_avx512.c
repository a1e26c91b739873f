/* The rows of act_mul.c in AVX-512. */
#include "kernels/cpu/vec_avx512.h"

#define TR_NAME(name) name##_avx512

#include "act_mul_vec.h"
