/* The attention tile (attention_tile.h) in AVX-512. */
#include "vec_avx512.h"

/* Rows and vectors of the micro-kernel: as many as registers hold. */
#define V_ROWS 6u
#define V_VECS 4u

#include "attention_tile.h"

void
tr_attention_tile_avx512(const tr_attention_tile_t *t, float *scratch)
{
    attention_tile(t, scratch);
}
