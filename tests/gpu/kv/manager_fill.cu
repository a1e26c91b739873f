/*
 * Scores and positions as attention leaves them, for bench_manager: most tokens
 * get little, a few much.
 */
#include "kernels/kv_manager/manager_core.h"
#include <cuda_runtime.h>

#include "manager_fill.h"

static __device__ float
random_score(uint32_t a, uint32_t b)
{
    uint32_t x = a * 2654435769u ^ b * 2246822519u;

    x ^= x >> 15;
    x *= 2246822519u;
    x ^= x >> 13;
    return powf((float) (x >> 8) / 16777216.0f, 8.0f) * 4;
}

/* Pages of a run: scores of n tokens. */
static __device__ void
fill_run(const tr_kv_manager_t &m, const int32_t *row, uint32_t layout,
         uint32_t entry, int32_t step, uint32_t n, uint32_t salt)
{
    const tr_kv_segments_t *place = &m.place[layout];

    for (uint32_t i = threadIdx.x; i < n && place->score != 0;
         i += blockDim.x) {
        int32_t page =
            row[(int32_t) entry + (int32_t) (i / place->tokens) * step];
        uint8_t *at = tr_kv_page_at(&m.view, page);
        uint32_t token = i % place->tokens;

        ((float *) (at + place->score))[token] = random_score(salt, i);
        if (layout == 0) {
            ((float *) (at + place->recent))[token] = random_score(salt, i) / 8;
        } else if (place->position_bytes == 2) {
            ((uint16_t *) (at + place->position))[token] = (uint16_t) i;
        } else {
            ((uint32_t *) (at + place->position))[token] = i;
        }
    }
}

static __global__ void
fill_kernel(const __grid_constant__ tr_kv_manager_t m)
{
    int32_t slot = (int32_t) blockIdx.y;
    uint32_t head = blockIdx.x, salt = blockIdx.y * gridDim.x + head;
    const tr_kv_seq_t *q = &m.seq[slot];
    const int32_t *row = manager_row(&m, slot, head);

    if (!m.slot[slot].open) {
        return;
    }
    fill_run(m, row, 0, 0, 1, m.slot[slot].tokens - q->base, salt);
    if (q->window != 0) {
        fill_run(m, row, q->window_layout, m.view.at_window, 1,
                 min(q->base, q->sinks + q->window), salt + 1);
    }
    for (uint32_t l = 0; l < q->n_tiers; l++) {
        fill_run(m, row, q->tier_layout[l], tr_kv_tier_entry(&m.view, l, 0),
                 l % 2 == 0 ? 1 : -1, manager_counts(&m, slot, head)[l],
                 salt + 2 + l);
    }
}

extern "C" int
manager_fill(const tr_kv_manager_t *m, void *stream)
{
    dim3 grid(m->heads, m->size.slots);

    fill_kernel<<<grid, 128, 0, (cudaStream_t) stream>>>(*m);
    return (int) cudaGetLastError();
}
