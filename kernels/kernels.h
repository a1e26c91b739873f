/*
 * kernels.h: the one interface to what computes.
 *
 * This folder knows nobody: it takes pointers, shapes and tables.  cpu/ holds
 * the C implementations, cuda/ (later) the same behind a C ABI.  A backend is
 * one tr_kernels_t, a table of launchers.  A launcher takes the stream it runs
 * on, checks its arguments, returns 0 or TR_KERNEL_*, and never allocates:
 * what it needs beyond its operands is a workspace given by the caller, sized
 * by the backend itself.
 *
 * Shapes are [rows][columns], row-major; ld* are distances between rows, in
 * elements.  "rows" are the tokens of one step: prefill chunks and decode
 * tokens of many sequences, one after the other.
 *
 * The promise that every backend makes: the bits of a row's result depend on
 * that row's operands and on the cache of its sequence, not on the number of
 * rows, on its place among them, on threads, or on where a prompt was cut.
 */
#ifndef TR_KERNELS_H
#define TR_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "act.h"
#include "kv_layout.h"

#define TR_KERNEL_OK 0
#define TR_KERNEL_BADARG (-1) /* a shape that the contract excludes */

/* Row buffers given to matmul have room for rows rounded up to a multiple of
 * TR_ROW_PAD, and the rows in that padding may be read and overwritten; their
 * contents have no influence.  ldy is a multiple of TR_COL_PAD, and columns
 * from n up to that multiple are overwritten too. */
#define TR_ROW_PAD 24u
#define TR_COL_PAD 64u
#define TR_GATED_ROWS 48u

TR_HD size_t
tr_pad(size_t n, size_t to)
{
    return (n + to - 1) / to * to;
}

#define TR_HEAD_DIM_MAX 256u
#define TR_GROUP_MAX 32u /* query heads on one KV head */

typedef enum { TR_F32, TR_F16, TR_BF16 } tr_dtype_t;

TR_HD float
tr_float_from_bits(uint32_t u)
{
    float f;

    memcpy(&f, &u, 4);
    return f;
}

/* Exact, subnormals and NaN included. */
TR_HD float
tr_float_from_half(uint16_t h)
{
    uint32_t sign = (uint32_t) (h & 0x8000) << 16;
    uint32_t magnitude = (uint32_t) (h & 0x7fff) << 13;
    float f;

    if (magnitude >= 0x0f800000) { /* infinity, NaN */
        return tr_float_from_bits(sign | magnitude | 0x7f800000);
    }
    /* the exponent is rebased by 112 in the float domain */
    f = tr_float_from_bits(magnitude) * 0x1p112f;
    return sign ? -f : f;
}

/* Element i of src, which need not be aligned. */
TR_HD float
tr_float_load(const void *src, size_t i, tr_dtype_t dtype)
{
    uint32_t u;
    uint16_t h;

    if (dtype == TR_F32) {
        memcpy(&u, (const uint8_t *) src + 4 * i, 4);
        return tr_float_from_bits(u);
    }
    memcpy(&h, (const uint8_t *) src + 2 * i, 2);
    return dtype == TR_BF16 ? tr_float_from_bits((uint32_t) h << 16)
                            : tr_float_from_half(h);
}

TR_HD uint32_t
tr_float_bits(float f)
{
    uint32_t u;

    memcpy(&u, &f, 4);
    return u;
}

/* To nearest even; what is too large becomes infinity.  A NaN keeps its sign
 * alone. */
TR_HD uint16_t
tr_half_from_float(float f)
{
    uint32_t u = tr_float_bits(f), sign = u >> 16 & 0x8000, x = u & 0x7fffffff;

    if (x > 0x7f800000) {
        return (uint16_t) (sign | 0x7e00);
    }
    if (x >= 0x477ff000) { /* from 65520 on */
        return (uint16_t) (sign | 0x7c00);
    }
    if (x < 0x38800000) { /* subnormal: the sum's last bit is worth 2^-24 */
        x = tr_float_bits(tr_float_from_bits(x) + 0.5f) - 0x3f000000;
        return (uint16_t) (sign | x);
    }
    x += 0xc8000fff + (x >> 13 & 1); /* the exponent is rebased by 112 */
    return (uint16_t) (sign | x >> 13);
}

TR_HD uint16_t
tr_bf16_from_float(float f)
{
    uint32_t u = tr_float_bits(f);

    if ((u & 0x7fffffff) > 0x7f800000) {
        return (uint16_t) ((u >> 16 & 0x8000) | 0x7fc0);
    }
    return (uint16_t) ((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

/* Element i of dst, aligned to its own size. */
TR_HD void
tr_float_store(void *dst, size_t i, tr_dtype_t dtype, float f)
{
    if (dtype == TR_F32) {
        ((float *) dst)[i] = f;
    } else {
        ((uint16_t *) dst)[i] = dtype == TR_BF16 ? tr_bf16_from_float(f)
                                                 : tr_half_from_float(f);
    }
}

/*
 * The KV cache as kernels see it.  All arrays are borrowed from engine/kv_cache
 * and, with a GPU, live on the device; only `victim` and the pages' contents
 * are written by kernels.  A "head" is a (slot, layer, list), lists = KV heads.
 *
 * A cached token of a head is in one of three places:
 *
 *   dense   16-bit pages in order: position p is token p - base.  Here prompts
 *           stand while they are computed; `full` never leaves it.
 *   window  a ring of the most recent tokens: position p is token p % window.
 *   lists   up to TR_KV_LISTS_MAX lists, one for each level of the policy, best
 *           level first; tokens in no order, [0, count) without gaps.  Their
 *           positions and scores are in the page.
 *
 * A head's row of the table has the dense pages from entry 0, those of the
 * window from at_window, then two bidirectional parts: lists 0 and 1 grow from
 * the ends of the first towards each other, lists 2 and 3 in the second (DiffKV
 * section 5.2).
 *
 * Scores: every scored token has an FP32 sum.  A query at position n adds, to
 * each token before it that its head caches, the largest softmax probability
 * that a query head of the group gives it; the token's own query adds nothing.
 * In dense pages `recent` is the same sum over the queries from recent_from on.
 * Sums are formed query by query in ascending order, so that chunks do not
 * matter.
 */
#define TR_KV_LISTS_MAX 4u

#define TR_KV_NOWHERE (-1) /* in place of a list: the token is forgotten */
#define TR_KV_STAYS (-2)   /* nobody is moved */
#define TR_KV_WINDOW (-3)  /* the window */

typedef struct {
    uint32_t base;         /* positions from here on are dense */
    uint32_t window_from;  /* positions [window_from, base) are in the window */
    uint32_t window;       /* ring slots; 0: none, new tokens go to a list */
    uint8_t n_lists;       /* 0: all is dense */
    uint8_t window_layout; /* index of a layout */
    uint8_t list_layout[TR_KV_LISTS_MAX];
    bool scored; /* attention updates scores */
    bool by_sum; /* the victim is the token of least score, else the
                            * one of least score / (n - position) */
    uint32_t recent_from;
    /* Quest: a decode step reads, in layers >= read_layer, only the read_pages
     * dense pages whose digest promises most, the last one always among them;
     * 0: all */
    uint32_t read_layer, read_pages;
} tr_kv_seq_t;

/* What kv_append does to one head when the token at position base - 1 comes,
 * decided before the step.  In this order: the victim goes from its list to
 * another (or nowhere), `leaves` tokens from position leave_pos on go from the
 * window to list `to` (or nowhere) at [index, index + leaves), the new token
 * is stored in the window.  Without a window the new token itself is the one
 * that leaves.  index may be the place that the victim left. */
typedef struct {
    int8_t to;          /* list, TR_KV_NOWHERE, TR_KV_STAYS: nobody leaves */
    int8_t victim_from; /* list, TR_KV_STAYS: nobody */
    int8_t victim_to;   /* list, TR_KV_NOWHERE */
    uint8_t leaves;     /* 1, or TR_KV_CHANNEL_TOKENS to a list by channel,
                         * whose index is then a multiple of it */
    uint32_t leave_pos;
    uint32_t index;
    uint32_t victim_index;  /* in victim_from */
    uint32_t victim_target; /* in victim_to */
} tr_kv_move_t;

/* The least significant token of a list, as of the last query. */
typedef struct {
    float significance; /* see by_sum; +infinity when the list is empty */
    uint32_t index;     /* of equals, the one of lowest position */
} tr_kv_victim_t;

typedef struct {
    uint8_t *pool; /* [pages][page_bytes], 64-byte aligned */
    uint64_t page_bytes;
    uint32_t layers, lists, head_dim;
    uint32_t n_layouts;
    const tr_kv_layout_t *layout; /* [n_layouts], layout[0] is dense */
    const int32_t *tables;        /* [slots][layers][lists][table_len] */
    uint32_t table_len, at_window;
    uint32_t at_pair[2], pair_len[2];
    const tr_kv_seq_t *seq;   /* [slots] */
    const uint32_t *count;    /* [slots][layers][lists][TR_KV_LISTS_MAX], of a
                               * step: as they are after its moves */
    const tr_kv_move_t *move; /* [slots][layers][lists] */
    tr_kv_victim_t *victim;   /* [slots][layers][lists][TR_KV_LISTS_MAX] */
} tr_kv_view_t;

TR_HD size_t
tr_kv_head(const tr_kv_view_t *v, int32_t slot, uint32_t layer, uint32_t list)
{
    return ((size_t) slot * v->layers + layer) * v->lists + list;
}

TR_HD const int32_t *
tr_kv_table(const tr_kv_view_t *v, int32_t slot, uint32_t layer, uint32_t list)
{
    return v->tables + tr_kv_head(v, slot, layer, list) * v->table_len;
}

/* Entry of a head's row that holds page i of list l. */
TR_HD uint32_t
tr_kv_list_entry(const tr_kv_view_t *v, uint32_t l, uint32_t i)
{
    uint32_t at = v->at_pair[l / 2];

    return l % 2 == 0 ? at + i : at + v->pair_len[l / 2] - 1 - i;
}

TR_HD uint8_t *
tr_kv_page_at(const tr_kv_view_t *v, int32_t page)
{
    return v->pool + (uint64_t) page * v->page_bytes;
}

/* A new home for everything that a slot caches, as its policy decided when a
 * prompt was complete.  Sources in this order, for each head: lists 0, 1, ..
 * in order, the window in order of position, dense pages in order; dest has one
 * byte for each.  Tokens that go to a list take its places in that order;
 * those that go to the window take position % to->window. */
typedef struct {
    int32_t slot;
    uint32_t n_dense;         /* dense tokens, from position base on */
    const tr_kv_seq_t *to;    /* the slot afterwards, n_dense then 0 */
    const int32_t *to_tables; /* [layers][lists][table_len] pages to fill;
                               * none of them is a source */
    const int8_t *dest;       /* [layers][lists][dest_len]: list, NOWHERE or
                               * WINDOW */
    size_t dest_len;
    uint32_t observe; /* w > 0: a dense token's score becomes recent *
                       * (later queries) / min(w, later queries), w being the
                       * number of queries from recent_from on */
} tr_kv_compress_t;

/* A dense token's score after tr_kv_compress_t.observe = w queries, `later`
 * queries having come after it. */
TR_HD float
tr_kv_observed(float recent, uint32_t later, uint32_t w)
{
    return later == 0
               ? 0
               : recent * (float) later / (float) (w < later ? w : later);
}

/* The rows of one step, in flat arrays.  Sequence s has the rows
 * [seq_row[s], seq_row[s + 1]), at consecutive positions; rows before the first
 * and behind the last one's belong to others. */
typedef struct {
    uint32_t n_rows, n_seqs;
    const uint32_t *row_pos; /* [n_rows] position of the row's token */
    const int32_t *seq_slot; /* [n_seqs] slot in the KV cache */
    const uint32_t *seq_row; /* [n_seqs + 1] */
} tr_rows_t;

/* A weight matrix [n][k] (outputs, inputs), FP32, in the backend's layout. */
typedef struct {
    uint32_t n, k;
    float *data; /* matrix_floats(n, k) floats, 64-byte aligned */
} tr_matrix_t;

/* Where launchers run: a thread pool (thread_pool.h), borrowed, and how many of
 * its threads to use; without a pool everything runs in the caller. */
struct tr_thread_pool;
typedef struct {
    int threads;
    struct tr_thread_pool *thread_pool;
} tr_stream_t;

typedef struct tr_kernels tr_kernels_t;

struct tr_kernels {
    const char *name; /* "cpu-avx512" */

    /* Room for a matrix, in floats. */
    size_t (*matrix_floats)(uint32_t n, uint32_t k);

    /* Stores rows [row, row + rows) of m from src, [rows][m->k] of `dtype`
     * (no alignment needed).  A matrix is complete when all rows were stored.
     * Calls for different rows may run in parallel. */
    int (*matrix_pack)(const tr_matrix_t *m, uint32_t row, uint32_t rows,
                       const void *src, tr_dtype_t dtype);

    /* y[rows][n] = x[rows][k] * m^T, plus what y held when `add`. */
    int (*matmul)(const tr_stream_t *s, const tr_matrix_t *m, const float *x,
                  size_t ldx, uint32_t rows, float *y, size_t ldy, int add);

    /* y[r] = row ids[r] of m: the token embedding. */
    int (*embedding)(const tr_stream_t *s, const tr_matrix_t *m,
                     const int32_t *ids, uint32_t rows, float *y, size_t ldy);

    /* x[r][i] += bias[i], i < n. */
    int (*add_bias)(const tr_stream_t *s, float *x, size_t ldx, uint32_t rows,
                    const float *bias, uint32_t n);

    /* y = x / sqrt(mean(x^2) + eps) * weight for each of `heads` groups of n
     * columns of every row, heads = 1 for a hidden state.  x may be y. */
    int (*rmsnorm)(const tr_stream_t *s, const float *x, size_t ldx,
                   uint32_t rows, uint32_t heads, uint32_t n,
                   const float *weight, float eps, float *y, size_t ldy);

    /* angles[r][0][i] = cos, angles[r][1][i] = sin of row_pos[r] *
     * inv_freq[i], i < half. */
    int (*rope_angles)(const tr_stream_t *s, const uint32_t *row_pos,
                       uint32_t rows, const float *inv_freq, uint32_t half,
                       float *angles);

    /* Rotates each head's pairs (i, i + head_dim / 2), in place. */
    int (*rope)(const tr_stream_t *s, float *x, size_t ldx, uint32_t rows,
                uint32_t heads, uint32_t head_dim, const float *angles);

    /* Bits 1 << tr_act_t: what act_mul and gated know. */
    uint32_t acts;

    /* out[r][i] = act(x[r][i]) * x[r][n + i], i < n. */
    int (*act_mul)(const tr_stream_t *s, tr_act_t act, const float *x,
                   size_t ldx, uint32_t rows, uint32_t n, float *out,
                   size_t ldo);

    /* matmul by m, then act_mul of what came, n = m->n / 2: the same bits, but
     * what is between them stays in the core that made it.  For few rows: at
     * most TR_GATED_ROWS; n: a multiple of TR_COL_PAD. */
    int (*gated)(const tr_stream_t *s, tr_act_t act, const tr_matrix_t *m,
                 const float *x, size_t ldx, uint32_t rows, float *out,
                 size_t ldo);

    /* Stores the step's keys (before RoPE) and values, [rows][lists *
     * head_dim] each, for which pages are reserved.  A row at position p:
     * p >= base: dense, FP16 rounded to nearest even, finite values saturated
     * to +-65504, scores zeroed, digest updated.
     * p < base (then p = base - 1, the only row of its sequence): the head's
     * move is done, then the token enters the window, or its list.
     *
     * Quantisation of a group: zero = FP16(min), scale = FP16((max - min) /
     * (2^bits - 1)), at least the smallest FP16 when max > min; code =
     * clamp(round((x - zero) / scale)) by round to nearest even in FP32, 0 when
     * scale is 0.  Narrow 2-bit groups give up their ends for finer steps in
     * between: scale = FP16((max - min) / 5), zero = FP16(min + (max - min) / 5)
     * (four steps of one standard deviation, near the least squared error for
     * normal data; spread from end to end they are 1.6 wide).  A token that goes from fewer bits to the same number keeps
     * its codes and metadata; downgrading is integer: 8 to 4 bits (q + 8) / 17,
     * scale * 17; 4 to 2 bits (q + 2) / 5, scale * 5, or narrow, the scale *
     * 3 first, zero + scale, and min(3, (max(q, 2) - 2) / 3); 8 to 2 by way of
     * 4; from
     * 16 bits, or to another grouping, from the stored values.  Score and
     * position go along (a source without scores has score 0, position 0).
     * Metadata is finite whatever comes: infinities count as +-65504, a NaN has
     * code 0, the group's smallest value; zero is never -0.
     *
     * Who writes the only token of a page of a list or window clears the page's
     * metadata and scores: given out, a page is full of what it held before.
     *
     * TR_KERNEL_BADARG, and nothing is written: a place outside its part of the
     * table, or without page; a target beyond `count`; layout 0 for a list or
     * the window; a victim or the window by channel; bits that go up. */
    int (*kv_append)(const tr_stream_t *s, const tr_kv_view_t *kv,
                     uint32_t layer, const tr_rows_t *rows, const float *k,
                     const float *v, size_t ld, const float *angles);

    /* Moves all that a slot caches, all layers; see tr_kv_compress_t.  Only
     * reads the old pages.  Refuses as kv_append does; also a listed token for
     * the window, a window that does not take exactly its positions, and a
     * number of tokens for a list by channel that is no multiple of
     * TR_KV_CHANNEL_TOKENS.  work: kv_compress_work() bytes. */
    int (*kv_compress)(const tr_stream_t *s, const tr_kv_view_t *kv,
                       const tr_kv_compress_t *c, void *work);
    size_t (*kv_compress_work)(const tr_stream_t *s, uint32_t head_dim);

    /* out[r][h] = softmax(scale * q[r][h] . K) V over what list h / (heads /
     * lists) caches of the row's sequence: all its lists, its window, and dense
     * positions [base, row_pos[r]]; q and out: [rows][heads * head_dim], q
     * rotated.  Adds to scores, and sets the victims of heads with lists when
     * the sequence has one row.  Bytes of the cache that hold no such token
     * are never used, whatever they hold.  head_dim: a multiple of 16 up to
     * TR_HEAD_DIM_MAX; heads / lists up to TR_GROUP_MAX.
     * work: attention_work() bytes, 64-byte aligned. */
    int (*attention)(const tr_stream_t *s, const tr_kv_view_t *kv,
                     uint32_t layer, const tr_rows_t *rows, const float *q,
                     size_t ldq, uint32_t heads, float scale, float *out,
                     size_t ldo, void *work);
    /* max_len: tokens of one sequence */
    size_t (*attention_work)(const tr_stream_t *s, uint32_t max_rows,
                             uint32_t max_seqs, uint32_t max_len,
                             uint32_t heads, uint32_t lists, uint32_t head_dim);
};

/*
 * The CPU backend.  isa: NULL for the best that this processor has, or "c",
 * "avx2", "avx512"; NULL is returned for one that it has not.  The first call
 * that returns "c" probes OpenBLAS (cpu/matmul_blas.c) and keeps it to one
 * thread a call, since we spread matrices over threads ourselves.
 */
const tr_kernels_t *tr_kernels_cpu(const char *isa);

#endif
