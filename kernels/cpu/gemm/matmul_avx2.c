/* The product of a panel (matmul.c) in AVX2 with FMA. */
#include "kernels/cpu/vec_avx2.h"

/* 12 sums and 2 vectors of weights; one row alone takes all columns. */
#define V_VECS 2u
#define V_ONCE_ROWS 1u
/* The compiler would read it again for each row. */
#define V_KEEP(v) __asm__("" : "+x"(v))
#define TR_NAME(name) name##_avx2

#include "matmul_tile.h"
