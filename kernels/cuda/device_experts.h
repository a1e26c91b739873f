/*
 * device_experts.h: layers with experts, as part of the device's interface
 * (device.h).  An MLP of experts, of a step's rows (kernels/route.h):
 *
 *   choose       with few rows, all up to the first product; else a norm, a
 *                product, and
 *   route        chooses top_k experts a row, from the router's logits
 *   order        every (row, choice) gets a place in the order of experts
 *   experts      x w^T, w that of a place's expert: gate and up of the rows,
 *   act_mul      which with few rows is done with them
 *   experts      then down, in that order
 *   sum_experts  a row's results, by their weights, in the order of its choice
 *
 * Nothing is read by the host, so all of it can be captured.  A row's bits do
 * not depend on other rows, but for how many there are (tr_cuda_experts_few).
 */
#ifndef TR_CUDA_DEVICE_EXPERTS_H
#define TR_CUDA_DEVICE_EXPERTS_H

#include "kernels/cuda/device_layers.h"
#include "kernels/cuda/launch_types.h"
#include "kernels/dtype.h"
#include "kernels/operands.h"
#include "kernels/route.h"
#include "kernels/weight_form.h"

#ifdef __cplusplus
extern "C" {
#endif

static inline bool
tr_cuda_route_allowed(const tr_route_t *r)
{
    return r->experts > 0 && r->experts <= TR_EXPERTS_MAX && r->top_k > 0
           && r->top_k <= TR_TOP_K_MAX && r->groups > 0
           && r->experts % r->groups == 0 && r->top_groups > 0
           && r->top_groups <= r->groups
           && r->top_k <= r->experts / r->groups * r->top_groups;
}

typedef struct {
    tr_route_t route;
    uint32_t rows;
    const float *logits; /* [rows][ld] */
    size_t ld;
    const float *logit_bias;  /* [experts], added to logits; NULL: none */
    const float *choice_bias; /* [experts], counts in the choice alone; NULL:
                               * none */
    uint32_t *expert;         /* [rows][top_k], best first */
    float *weight;            /* the same */
} tr_cuda_route_t;

/* tr_kernels_t.route; the sum of scores has another order. */
int tr_cuda_route(const tr_cuda_stream_t *s, const tr_cuda_route_t *a);

typedef struct {
    uint32_t rows, top_k, experts;
    const uint32_t *expert; /* [rows][top_k] */
    uint32_t *first;        /* [experts + 1] places of each: [e], [e + 1) */
    uint32_t *place;        /* [rows][top_k] */
    uint32_t *row;          /* [rows * top_k] whose place it is */
} tr_cuda_order_t;

/* Rows of an expert stay in their order. */
int tr_cuda_order(const tr_cuda_stream_t *s, const tr_cuda_order_t *a);

#define TR_CUDA_CHOOSE_ROWS 8u           /* at most */
#define TR_CUDA_CHOOSE_BYTES (46u << 10) /* of them in T */

/* With few rows: norm, the router's product, route and order as one launch.  rows
 * and experts are the same in all. */
typedef struct {
    tr_cuda_norm_t norm;   /* weight, and no gather, post_weight, scale, FP32;
                            * all at multiples of 16 bytes */
    const void *w;         /* [experts][n] of T: the router's */
    float *logits;         /* [rows][route.ld]: what it gives */
    tr_cuda_route_t route; /* logits are not looked at */
    tr_cuda_order_t order;
    uint32_t *meet; /* a word of the device's memory, 0 before its first use */
} tr_cuda_choose_t;

/* Are there so few rows, of a width that is a multiple of 8? */
static inline bool
tr_cuda_choose_fits(uint32_t rows, uint32_t n)
{
    return rows <= TR_CUDA_CHOOSE_ROWS && n % 8 == 0
           && rows * n <= TR_CUDA_CHOOSE_BYTES / 2;
}

int tr_cuda_choose(const tr_cuda_stream_t *s, const tr_cuda_choose_t *a);

typedef struct {
    uint32_t places, experts, n, k;
    const uint32_t *first; /* [experts + 1] */
    const uint32_t *row;   /* [places] row of x; NULL: the place */
    const void *x;         /* [..][ldx] of T */
    size_t ldx;            /* elements; a multiple of 8 */
    const void *w;     /* [experts][n][k] of T, k a multiple of 8; or packed,
                            * [experts * n][k], T being BF16 */
    const float *bias; /* [experts][n]; NULL: none */
    void *y;           /* [places][ldy] of T */
    size_t ldy;
    bool
        gated; /* of few: w = [gate; up] of n / 2 rows each, y = act(gate) * up,
                   * n / 2 wide; packed: n a multiple of 32 */
    tr_act_t act; /* gated: one of TR_CUDA_ACTS */
    const void
        *ahead; /* gated: w of the product behind this one, ahead_n rows of
                        * n / 2 columns each expert, in the same form, which is
                        * called into the L2 cache; NULL: it is not */
    uint32_t ahead_n;
    tr_dtype_t type;       /* T */
    tr_weight_form_t form; /* of w: 16 bits, or one that tr_weight_valid_experts
                            * accepts */
} tr_cuda_experts_t;

#define TR_CUDA_EXPERTS_FEW 8u /* blocks a multiprocessor */

/* Are there so few places and outputs that all tiles are under way at once?  Then a
 * tile is a block's, whose warps have some of the inputs each: sums have another
 * order. */
static inline bool
tr_cuda_experts_few(const tr_device_props_t *d, uint32_t places,
                    uint32_t experts, uint32_t outputs)
{
    uint64_t tiles = places / 8 + (places < experts ? places : experts);

    return places / experts < 16
           && (outputs + 15) / 16 * tiles < TR_CUDA_EXPERTS_FEW * d->blocks;
}

#define TR_CUDA_EXPERTS_AHEAD (64u << 20) /* bytes of an expert, less than */

/* Can the product behind it be called for? */
static inline bool
tr_cuda_experts_ahead(tr_weight_form_t form, uint32_t experts, uint32_t n,
                      uint32_t k)
{
    return n != 0 && k != 0 && k % 8 == 0
           && (uint64_t) n * k * 2 < TR_CUDA_EXPERTS_AHEAD
           && (form.format == TR_WEIGHT_16
               || tr_weight_valid_experts(form, experts, n, k));
}

/* Can there be such a product, but for what w is? */
static inline bool
tr_cuda_experts_shape(const tr_cuda_experts_t *a)
{
    return a->experts != 0 && a->experts <= TR_EXPERTS_MAX && a->k != 0
           && a->k % 8 == 0 && a->n != 0 && a->ldx >= a->k && a->ldx % 8 == 0
           && a->ldy >= (a->gated ? a->n / 2 : a->n)
           && tr_dtype_is_short(a->type)
           && (!a->gated
               || (a->n % (a->form.format == TR_WEIGHT_16 ? 2 : 32) == 0
                   && tr_cuda_has_act(TR_CUDA_ACTS, a->act)))
           && (a->form.format == TR_WEIGHT_16
               || (tr_weight_valid_experts(a->form, a->experts, a->n, a->k)
                   && a->type == TR_BF16));
}

/* y[p] = x w^T + bias, FP32 sums.  x and w at multiples of 16 bytes.  Packed
 * weights give the bits of the same in 16 bits, rounded from code and scale; they
 * need a device of 9.0.
 * Bytes moved: weights of experts that have rows, once for 8 rows of theirs, or
 * for 64 where an expert has 16 on the average. */
int tr_cuda_experts(const tr_cuda_stream_t *s, const tr_cuda_experts_t *a);

typedef struct {
    uint32_t rows, top_k, n;
    const void *x; /* [rows * top_k][ldx] of T */
    size_t ldx;
    const uint32_t *place; /* [rows][top_k] row of x */
    const float *weight;   /* the same */
    const void *shared;    /* [rows][lds] of T, added; NULL: none */
    size_t lds;
    void *out; /* [rows][ldo] of T */
    size_t ldo;
    tr_dtype_t type;
} tr_cuda_sum_experts_t;

int tr_cuda_sum_experts(const tr_cuda_stream_t *s,
                        const tr_cuda_sum_experts_t *a);

#ifdef __cplusplus
}
#endif

#endif
