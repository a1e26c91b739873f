/* The pieces of attention (attention.h) in AVX-512. */
#include "kernels/cpu/vec_avx512.h"

/* Rows and vectors of the micro-kernel, and query heads that share the
 * conversion of a code: as many as registers hold. */
#define V_ROWS 6u
#define V_VECS 4u
#define V_HEADS 4

#include "attention_tile.h"

#include "attention_score.h"

#include "attention_tier.h"

#include "attention_row.h"

const tr_attention_isa_t tr_attention_avx512 = {
    attention_tile, attention_score, attention_part, attention_row_score,
    attention_bound
};
