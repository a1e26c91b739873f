/* The product of a panel (matmul.c) in AVX-512. */
#include "kernels/cpu/vec_avx512.h"

/* A tile has all columns of the panel: 24 sums, 4 vectors of weights. */
#define V_VECS 4u
#define V_ONCE_ROWS ROWS
/* The compiler would read it again for each row. */
#define V_KEEP(v) __asm__("" : "+v"(v))
#define TR_NAME(name) name##_avx512

#include "matmul_tile.h"
