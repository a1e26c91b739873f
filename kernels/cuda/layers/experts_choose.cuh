/*
 * experts_choose.cuh: with few rows, all that stands between what is in front of a
 * layer's experts and their first product, as one kernel (device_experts.h): the
 * norm, the router's product, who goes to whom, and the order of experts.
 *
 * Every block normalises all rows, for itself, and makes the logits of a few
 * experts, a warp each.  The block that is last writes what the others have only
 * read, chooses, and orders.
 */
#ifndef TR_CUDA_EXPERTS_CHOOSE_CUH
#define TR_CUDA_EXPERTS_CHOOSE_CUH

#include "experts.cuh"
#include "model.cuh"

#define CHOOSE_WARPS 4u
#define CHOOSE_THREADS (CHOOSE_WARPS * 32)
#define CHOOSE_ROUTERS 3u /* warps that choose, a row each */

/* Of the last block, where rows were. */
typedef struct {
    route_smem_t route[CHOOSE_ROUTERS];
    uint32_t expert[TR_CUDA_CHOOSE_ROWS * TR_TOP_K_MAX];
} choose_smem_t;

/* Row r of the norm into rows[r], of T. */
TR_DEVICE void
choose_norm(const tr_cuda_norm_t *a, tr_dtype_t type, block_t b, uint64_t *meet,
            uint32_t r, uint16_t *rows)
{
    float sum = 0, scale;

    for (uint32_t i = b.lane * 8; i < a->n; i += b.lanes * 8) {
        eight_t h = norm_load(a, type, true, r, i, 8);

        for (uint32_t j = 0; j < 8; j++) {
            sum += h.x[j] * h.x[j];
        }
    }
    sum = block_sum(b, sum, meet);
    scale = 1.0f / sqrtf(sum / (float) a->n + a->eps);
    for (uint32_t i = b.lane * 8; i < a->n; i += b.lanes * 8) {
        eight_t h = norm_load(a, type, true, r, i, 8);
        eight_t w = eight_load(a->weight, i, 8, TR_F32, true);

        for (uint32_t j = 0; j < 8; j++) {
            h.x[j] = h.x[j] * scale * w.x[j];
        }
        eight_store(rows, (size_t) r * a->n + i, 8, type, true, &h);
    }
}

/* The logits of an expert, by a warp. */
TR_DEVICE void
choose_logits(const tr_cuda_choose_t *a, tr_dtype_t type, const uint16_t *rows,
              uint32_t expert, uint32_t lane)
{
    float sum[TR_CUDA_CHOOSE_ROWS] = {};
    uint32_t n = a->norm.n;

#pragma unroll 4
    for (uint32_t i = lane * 8; i < n; i += 256) {
        eight_t w = eight_load(a->w, (size_t) expert * n + i, 8, type, true);

#pragma unroll
        for (uint32_t r = 0; r < TR_CUDA_CHOOSE_ROWS; r++) {
            if (r < a->norm.rows) {
                eight_t x = eight_load(rows, (size_t) r * n + i, 8, type, true);

                for (uint32_t j = 0; j < 8; j++) {
                    sum[r] += w.x[j] * x.x[j];
                }
            }
        }
    }
#pragma unroll
    for (uint32_t r = 0; r < TR_CUDA_CHOOSE_ROWS; r++) {
        float logit = warp_sum(sum[r]);

        if (lane == 0 && r < a->norm.rows) {
            a->logits[r * a->route.ld + expert] = logit;
        }
    }
}

/* Is this block the last that comes?  What all have written before, it sees. */
TR_DEVICE bool
choose_last(uint32_t *meet, uint32_t *flag)
{
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        *flag = atomicAdd(meet, 1u) == gridDim.x - 1;
        if (*flag != 0) {
            *meet = 0;
        }
        __threadfence();
    }
    __syncthreads();
    return *flag != 0;
}

/* hidden += delta, and the normalised rows, which the experts read. */
TR_DEVICE void
choose_write(const tr_cuda_norm_t *a, tr_dtype_t type, block_t b,
             const uint16_t *rows)
{
    for (uint32_t i = b.lane * 8; i < a->rows * a->n; i += b.lanes * 8) {
        uint32_t r = i / a->n, at = i % a->n;
        eight_t h = norm_load(a, type, true, r, at, 8);

        if (a->delta != NULL) {
            eight_store(a->hidden, r * a->ldh + at, 8, TR_F32, true, &h);
        }
        h = eight_load(rows, i, 8, type, true);
        eight_store(a->out, r * a->ldo + at, 8, type, true, &h);
    }
}

/* order_expert of all experts, by a block: a lane has some. */
TR_DEVICE void
choose_order(const tr_cuda_order_t *a, block_t b, uint64_t *meet,
             const uint32_t *expert)
{
    uint32_t n = a->rows * a->top_k;
    uint64_t at = 0, here;

    for (uint32_t from = 0; from < a->experts; from += b.lanes) {
        uint32_t e = from + b.lane, mine = 0, first;

        for (uint32_t i = 0; i < n; i++) {
            mine += expert[i] == e;
        }
        first = (uint32_t) (at + block_scan(b, mine, meet, &here));
        at += here;
        if (e < a->experts) {
            a->first[e] = first;
        }
        if (e == a->experts - 1) {
            a->first[e + 1] = n;
        }
        for (uint32_t i = 0; i < n && mine != 0; i++) {
            if (expert[i] == e) {
                a->place[i] = first;
                a->row[first++] = i / a->top_k;
            }
        }
    }
}

/* By the last block: s stands where rows were. */
TR_DEVICE void
choose_rest(const tr_cuda_choose_t *a, block_t b, uint64_t *meet,
            choose_smem_t *s)
{
    uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    uint32_t top_k = a->route.route.top_k;
    tr_cuda_route_t route = a->route;

    route.logits = a->logits;
    for (uint32_t r = warp; warp < CHOOSE_ROUTERS && r < a->norm.rows;
         r += CHOOSE_ROUTERS) {
        route_row(&route, r, lane, &s->route[warp]);
        if (lane < top_k) {
            s->expert[r * top_k + lane] =
                route.expert[(size_t) r * top_k + lane];
        }
    }
    __syncthreads();
    choose_order(&a->order, b, meet, s->expert);
}

#endif
