/* The attention tile (attention_tile.h) in AVX2 with FMA and F16C. */
#include "vec_avx2.h"

/* Rows and vectors of the micro-kernel: as many as registers hold. */
#define V_ROWS 6u
#define V_VECS 2u

#include "attention_tile.h"

void
tr_attention_tile_avx2(const tr_attention_tile_t *t, float *scratch)
{
    attention_tile(t, scratch);
}
