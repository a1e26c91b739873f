/* The product of a panel of codes in AVX-512 with VNNI. */
#include "kernels/cpu/vec_avx512.h"

#define V_CODES_ROWS 3u
#define V_CODES_VECS 4u
#define TR_NAME(name) name##_vnni

#define vi_dot(sum, w, q) _mm512_dpbusd_epi32(sum, w, q)

#include "codes_ops_avx512.h"
#include "codes_tile.h"
