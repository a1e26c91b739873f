/*
 * prompt_fetch.cuh: what four warps of a block of pass 1 do: they bring the
 * queries, then tile by tile of N tokens the keys and values that the block's
 * rows see, into rings of shared memory.
 *
 * A tile may begin in front of what a layer that slides keeps: there are zeros,
 * whose weight is 0.
 *
 * On Hopper the copy engine does it, some groups of eight tokens a request (a
 * request costs the same however small it is: with eight tokens each, they took
 * longer than the products).  Elsewhere each thread copies 16 bytes at a time.
 */
#ifndef TR_CUDA_PROMPT_FETCH_CUH
#define TR_CUDA_PROMPT_FETCH_CUH

#include "prompt.cuh"
#include "prompt_gemm.cuh"

template <int D, int N, int STAGES> struct attend_smem_t {
    uint32_t q, key, value; /* addresses */
    uint32_t q_full, key_full, value_full, key_empty,
        value_empty; /* barriers */

    static const uint32_t TILE = N * D * 2, IMAGE = HALF * D * 2;
    static const uint32_t BYTES = 2 * IMAGE + 2 * STAGES * TILE + 128 + 1024;

    __device__ __forceinline__ explicit attend_smem_t(const uint8_t *shared)
    {
        q = (smem_address(shared) + 1023) / 1024 * 1024;
        key = q + 2 * IMAGE;
        value = key + STAGES * TILE;
        q_full = value + STAGES * TILE;
        key_full = q_full + 8;
        value_full = key_full + 8 * STAGES;
        key_empty = value_full + 8 * STAGES;
        value_empty = key_empty + 8 * STAGES;
    }
};

/* The tiles that were unpacked, which stand as shared memory has them; one lane.
 * Then `stage` and `phase` are those of the tile that follows. */
template <int D, int N, int S>
static __device__ __forceinline__ void
fetch_context(const uint8_t *src, uint32_t padded, uint32_t at, uint32_t full,
              uint32_t empty, uint32_t &stage, uint32_t &phase)
{
    for (uint32_t first = 0; first < padded; first += N) {
        bar_wait(empty + 8 * stage, phase);
        if (threadIdx.x % 32 == 0) {
            bar_expect(full + 8 * stage, N * D * 2);
            copy_bulk(at + stage * (N * D * 2), src + (size_t) first * D * 2,
                      N * D * 2, full + 8 * stage);
        }
        if (++stage == S) {
            stage = 0;
            phase ^= 1;
        }
    }
}

/* All tiles of keys, or of values, by the copy engine; one warp, a box a lane.
 * Pages are looked up one tile ahead. */
template <int D, int N, int S>
static __device__ __forceinline__ void
fetch_boxes(const prompt_args_t &a, const CUtensorMap *map,
            const int32_t *pages, uint32_t from, uint32_t keys, uint32_t at,
            uint32_t full, uint32_t empty, uint32_t stage, uint32_t phase)
{
    uint32_t lane = threadIdx.x % 32, token = from + lane * a.box, page;
    bool mine = lane * a.box < N;
    int32_t id = 0;

    page = token / a.page_tokens;
    if (mine && token < keys) {
        id = __ldg(pages + page);
    }
    for (uint32_t first = from; first < keys; first += N) {
        uint32_t left = keys - first < N ? keys - first : N;
        uint32_t boxes = (left + a.box - 1) / a.box;
        uint32_t group = (token - page * a.page_tokens) / 8;
        int32_t now = id;

        token += N;
        page = token / a.page_tokens;
        if (mine && token < keys) {
            id = __ldg(pages + page);
        }
        bar_wait(empty + 8 * stage, phase);
        if (lane == 0) {
            bar_expect(full + 8 * stage, boxes * a.box * (2 * D));
        }
        __syncwarp();
        if (lane < boxes) {
            copy_box(at + stage * (N * D * 2) + lane * a.box * (2 * D), map,
                     group, now, full + 8 * stage);
        }
        if (++stage == S) {
            stage = 0;
            phase ^= 1;
        }
    }
}

/* Asynchronous copies of 16 bytes; all FEED threads. */
template <int D, int N>
static __device__ __forceinline__ void
fetch_rows(const prompt_args_t &a, uint32_t part, const int32_t *pages,
           uint32_t at, uint32_t bar, uint32_t first, uint32_t keys)
{
    const uint32_t CHUNKS = D / 8;
    uint32_t c = threadIdx.x % CHUNKS;

    for (uint32_t r = threadIdx.x / CHUNKS; r < N; r += FEED / CHUNKS) {
        uint32_t token = first + r < keys ? first + r : keys - 1;
        uint32_t page = token / a.page_tokens;
        int id = __ldg(pages + page); /* none: zeros, as boxes outside are */

        copy16(tile_at<D>(at, r, c),
               tr_kv_page_at(&a.kv, max(id, 0)) + part
                   + (token - page * a.page_tokens) * (2 * D) + c * 16,
               first + r < keys && id >= 0 ? 16 : 0);
    }
    copy_arrive(bar);
}

/* What the copy engine does: keys by one warp, values by another. */
template <int D, int N, int S, bool CONTEXT>
static __device__ __forceinline__ void
attend_fetch_boxes(const prompt_args_t &a, const prompt_maps_t &maps,
                   const attend_smem_t<D, N, S> &s, const prompt_context_t &c,
                   const int32_t *pages, uint32_t from, uint32_t keys)
{
    uint32_t warp = threadIdx.x / 32, stage = 0, phase = 1;

    if (warp > 1) {
        return;
    }
    if (CONTEXT) {
        fetch_context<D, N, S>(warp == 0 ? c.key : c.value, c.padded,
                               warp == 0 ? s.key : s.value,
                               warp == 0 ? s.key_full : s.value_full,
                               warp == 0 ? s.key_empty : s.value_empty, stage,
                               phase);
    }
    if (warp == 0) {
        fetch_boxes<D, N, S>(a, &maps.key, pages, from, keys, s.key, s.key_full,
                             s.key_empty, stage, phase);
    } else {
        fetch_boxes<D, N, S>(a, &maps.value, pages, from, keys, s.value,
                             s.value_full, s.value_empty, stage, phase);
    }
}

/* A tile that was unpacked; all FEED threads. */
template <int D, int N>
static __device__ __forceinline__ void
fetch_unpacked(const uint8_t *src, uint32_t at, uint32_t bar)
{
    for (uint32_t j = threadIdx.x * 16; j < N * D * 2; j += FEED * 16) {
        copy16(at + j, src + j, 16);
    }
    copy_arrive(bar);
}

/* `from`, `keys`: of what pages hold. */
template <int D, int N, int S, bool CONTEXT>
static __device__ __forceinline__ void
attend_fetch_rows(const prompt_args_t &a, const attend_smem_t<D, N, S> &s,
                  const prompt_context_t &c, const int32_t *pages,
                  uint32_t from, uint32_t keys)
{
    const uint32_t TILE = attend_smem_t<D, N, S>::TILE;
    uint32_t i = 0;

    for (uint32_t first = 0; CONTEXT && first < c.padded; first += N, i++) {
        uint32_t n = ring_stage<S>(i), free = ring_phase<S>(i) ^ 1;

        bar_wait(s.key_empty + 8 * n, free);
        fetch_unpacked<D, N>(c.key + (size_t) first * D * 2, s.key + n * TILE,
                             s.key_full + 8 * n);
        bar_wait(s.value_empty + 8 * n, free);
        fetch_unpacked<D, N>(c.value + (size_t) first * D * 2,
                             s.value + n * TILE, s.value_full + 8 * n);
    }
    for (uint32_t first = from; first < keys; first += N, i++) {
        uint32_t n = ring_stage<S>(i), free = ring_phase<S>(i) ^ 1;

        bar_wait(s.key_empty + 8 * n, free);
        fetch_rows<D, N>(a, 0, pages, s.key + n * TILE, s.key_full + 8 * n,
                         first, keys);
        bar_wait(s.value_empty + 8 * n, free);
        fetch_rows<D, N>(a, a.value, pages, s.value + n * TILE,
                         s.value_full + 8 * n, first, keys);
    }
}

template <int D, int N, int S, bool BOXES, bool CONTEXT>
static __device__ __forceinline__ void
attend_fetch(const prompt_args_t &a, const prompt_maps_t &maps,
             const attend_smem_t<D, N, S> &s, const prompt_tile_t &t,
             const prompt_context_t &c, const int32_t *pages, uint32_t from,
             uint32_t half, uint32_t head)
{
    typedef attend_smem_t<D, N, S> smem;
    uint32_t keys = t.pos + t.rows - (CONTEXT ? c.padded : 0);

    /* two images of a head are not neighbours */
    if (BOXES) {
        if (threadIdx.x == 0) {
            bar_expect(s.q_full, 2 * smem::IMAGE);
            copy_bulk(s.q, image_at(a, half, head), smem::IMAGE, s.q_full);
            copy_bulk(s.q + smem::IMAGE, image_at(a, half + 1, head),
                      smem::IMAGE, s.q_full);
        }
        __syncwarp();
        attend_fetch_boxes<D, N, S, CONTEXT>(a, maps, s, c, pages, from, keys);
        return;
    }
    for (uint32_t j = threadIdx.x * 16; j < smem::IMAGE; j += FEED * 16) {
        copy16(s.q + j, image_at(a, half, head) + j, 16);
        copy16(s.q + smem::IMAGE + j, image_at(a, half + 1, head) + j, 16);
    }
    /* the first keys' barrier waits for these copies, too */
    attend_fetch_rows<D, N, S, CONTEXT>(a, s, c, pages, from, keys);
}

#endif
