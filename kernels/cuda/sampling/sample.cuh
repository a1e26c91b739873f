/*
 * sample.cuh: what the two kernels of sampling share.
 *
 *   scan    (rows x pieces of the vocabulary) finds the best token of a piece;
 *           that is all a greedy row needs of the logits, read once
 *   choose  (a block a row) reduces the pieces' best, and for rows that ask for
 *           more reads the row again: two times for most draws
 *
 * The total order of tokens, larger logit first, then lower id, is one number
 * of 64 bits: a key that sorts like the logit, then the id's complement.  What
 * top-k, top-p and min-p leave is all from some number on, so nothing is
 * sorted: sample_select.cuh finds that number by histograms.
 *
 * A token's share is exp((logit - max) / temperature) as a whole number of
 * 2^-44.  Sums of shares are exact, in whatever order they are formed; so
 * atomic additions do not make results differ.
 */
#ifndef TR_CUDA_SAMPLE_CUH
#define TR_CUDA_SAMPLE_CUH

#include "kernels/cuda/block.cuh"
#include "kernels/cuda/device.h"

#define PIECE 4096u   /* tokens that a block of scan takes */
#define SCRATCH 64u   /* rows that are shaped at a time */
#define BINS 2048u    /* of a histogram, and one for the rest */
#define LIST 1024u    /* tokens that are looked at one by one */
#define FEW 512u      /* in a bin that needs no further histogram */
#define SEGMENT 8192u /* tokens whose shares are summed for a draw */
#define ONE 0x1p44f   /* the best token's share */

/* Orders of minus and plus infinity, and from where on there is only NaN. */
#define ORDER_NONE 0x007fffffull << 32
#define ORDER_BAD 0xff800000ull << 32

typedef struct {
    tr_cuda_sample_t a;
    uint32_t pieces;  /* of a row */
    bool wide;        /* rows of logits are multiples of 16 bytes */
    uint64_t *best;   /* [rows][pieces] */
    float *shaped;    /* [SCRATCH][vocab padded] logits with penalties */
    uint32_t *counts; /* the same: occurrences; top bit: in the prompt */
} sample_args_t;

/* Shared memory of a block of choose. */
typedef struct {
    uint64_t meet[MEET];
    uint64_t share[BINS + 1]; /* of a bin, or segment */
    uint32_t count[BINS + 1];
    uint64_t order[LIST]; /* the list */
    uint64_t weight[LIST];
    uint32_t listed; /* how many */
    uint32_t bin;    /* what was found */
    uint64_t count_before, share_before;
    int32_t answer;
} sample_smem_t;

/* ---- arguments ---------------------------------------------------------- */

/* Rows that can be shaped at a time. */
TR_HD uint32_t
sample_places(uint32_t rows)
{
    return rows < SCRATCH ? rows : SCRATCH;
}

/* Lays the workspace out; its end. */
TR_HD size_t
sample_divide(sample_args_t *a, uint32_t rows, uint32_t vocab, uint8_t *work)
{
    size_t scratch = tr_pad(sample_places(rows) * tr_pad(vocab, 4) * 4, 256);
    size_t end;

    a->pieces = vocab / PIECE + (vocab % PIECE != 0);
    a->best = (uint64_t *) work;
    end = tr_pad((size_t) rows * a->pieces * sizeof(*a->best), 256);
    a->shaped = (float *) (work + end);
    end += scratch;
    a->counts = (uint32_t *) (work + end);
    return end + scratch;
}

TR_HD void
sample_args(sample_args_t *a, const tr_cuda_sample_t *in)
{
    a->a = *in;
    a->wide = is_wide(in->logits) && is_wide(in->ld, 4);
    sample_divide(a, in->rows, in->vocab, (uint8_t *) in->work);
}

/* ---- order -------------------------------------------------------------- */

TR_DEVICE uint64_t
order_of(float logit, uint32_t id)
{
    uint32_t u = tr_float_bits(logit);

    u = u == 0x80000000u ? 0 : u; /* zeros are equal */
    u = u & 0x80000000u ? ~u : u | 0x80000000u;
    u = logit != logit ? 0xffffffffu : u;
    return (uint64_t) u << 32 | (uint32_t) ~id;
}

TR_DEVICE float
order_logit(uint64_t order)
{
    uint32_t u = (uint32_t) (order >> 32);

    return tr_float_from_bits(u & 0x80000000u ? u & 0x7fffffffu : ~u);
}

TR_DEVICE uint32_t
order_id(uint64_t order)
{
    return ~(uint32_t) order;
}

/* Is the best token one that can be taken?  Not with NaN, which is the best
 * where there is one, +inf, or nothing but -inf. */
TR_DEVICE bool
order_valid(uint64_t best)
{
    return best >> 32 > ORDER_NONE >> 32 && best < (ORDER_BAD);
}

/* ---- rows of logits ----------------------------------------------------- */

/* f(logit, id) for all tokens in [from, end), by a block; from is a multiple of
 * 4.  Loads are asked for in fours of four. */
template <typename F>
TR_DEVICE void
each_logit(block_t b, const float *x, uint32_t from, uint32_t end, bool wide,
           F f)
{
    uint32_t step = b.lanes * 4;

    for (uint32_t at = from + b.lane * 4; at < end; at += 4 * step) {
        float4 v[4];

        for (uint32_t k = 0; k < 4; k++) {
            uint32_t i = at + k * step;

            if (wide && end >= 4 && i <= end - 4) {
                v[k] = *(const float4 *) (x + i);
            } else {
                v[k].x = i < end ? x[i] : 0;
                v[k].y = i + 1 < end ? x[i + 1] : 0;
                v[k].z = i + 2 < end ? x[i + 2] : 0;
                v[k].w = i + 3 < end ? x[i + 3] : 0;
            }
        }
        for (uint32_t k = 0; k < 4; k++) {
            uint32_t i = at + k * step;
            float e[4] = { v[k].x, v[k].y, v[k].z, v[k].w };

            for (uint32_t j = 0; j < 4; j++) {
                if (i + j < end) {
                    f(e[j], i + j);
                }
            }
        }
    }
}

/* The best token of [from, end), told to all lanes. */
TR_DEVICE uint64_t
best_of(block_t b, uint64_t *meet, const float *x, uint32_t from, uint32_t end,
        bool wide)
{
    uint64_t best = 0;

    each_logit(b, x, from, end, wide, [&](float logit, uint32_t id) {
        uint64_t order = order_of(logit, id);

        best = order > best ? order : best;
    });
    return block_max(b, best, meet);
}

/* ---- parameters --------------------------------------------------------- */

/* Is the row this launch's? */
TR_DEVICE bool
is_taken(const sample_args_t *a, const tr_cuda_sampling_t *w)
{
    return (w->late != 0) == a->a.late;
}

/* Is a token wanted of the row, and now? */
TR_DEVICE bool
is_wanted(const sample_args_t *a, const tr_cuda_sampling_t *w)
{
    return is_taken(a, w) && w->slot >= 0 && a->a.seq_slot[w->sequence] >= 0;
}

/* What may come; NULL: anything. */
TR_DEVICE const uint32_t *
row_mask(const sample_args_t *a, uint32_t row)
{
    int32_t at = a->a.mask_at != NULL ? a->a.mask_at[row] : -1;

    return at < 0 ? NULL : a->a.mask + (size_t) at * ((a->a.vocab + 31) / 32);
}

TR_DEVICE bool
has_penalties(const tr_cuda_sampling_t *w)
{
    return w->repetition != 1 || w->presence != 0 || w->frequency != 0;
}

/* Must its logits be changed first? */
TR_DEVICE bool
is_shaped(const sample_args_t *a, uint32_t row)
{
    const tr_cuda_sampling_t *w = &a->a.sampling[row];

    return w->target < 0
           && (w->n_bias > 0 || w->n_bar > 0 || has_penalties(w)
               || row_mask(a, row) != NULL);
}

/* ---- scan --------------------------------------------------------------- */

TR_DEVICE void
scan_piece(const sample_args_t *a, block_t b, uint64_t *meet, uint32_t row,
           uint32_t piece)
{
    uint32_t from = piece * PIECE, end = a->a.vocab;
    uint64_t best;

    if (!is_wanted(a, &a->a.sampling[row])) {
        return;
    }
    end = end - from < PIECE ? end : from + PIECE;
    best = best_of(b, meet, a->a.logits + row * a->a.ld, from, end, a->wide);
    if (b.lane == 0) {
        a->best[(size_t) row * a->pieces + piece] = best;
    }
}

#endif
