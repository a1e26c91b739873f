/*
 * decode_feed.cuh: what brings the workers their pages and queries.
 */
#ifndef TR_CUDA_DECODE_FEED_CUH
#define TR_CUDA_DECODE_FEED_CUH

#include "decode_block.cuh"

static __device__ __forceinline__ uint32_t
of_lane(uint32_t x, uint32_t lane)
{
    return __shfl_sync(TR_ALL_LANES, x, lane);
}

/* ---- units -------------------------------------------------------------- */

/* Where a worker is in the block's range: at the item of which it gets the next
 * unit.  One lane has one. */
struct walker_t {
    uint32_t head, end;         /* heads of the block's range */
    uint32_t item, items;       /* of the part */
    uint32_t first, first_tile; /* of the part, in the head */
    uint32_t segment, layout;
    uint32_t segment_end;           /* in items of the head */
    uint32_t page, page_tile, left; /* left: tiles of the item */
    int32_t page_id;
};

/* The part that this block has of w.head. */
static __device__ __forceinline__ void
walk_part(const decode_args_t &a, walker_t &w)
{
    const decode_cut_t *cut = a.work.cut + blockIdx.x;
    bool here = w.head == cut[0].head;

    w.first = here ? cut[0].item : 0;
    w.first_tile = here ? cut[0].tile : 0;
    w.items = (w.head == cut[1].head ? cut[1].item : a.work.head[w.head].items)
              - w.first;
    w.segment_end = 0;
}

/* Finds the page of item w.item, going on to later heads where it is behind the
 * part. */
static __device__ __forceinline__ void
locate(const decode_args_t &a, walker_t &w)
{
    while (w.head < w.end && w.item >= w.items) {
        w.item -= w.items;
        w.head++;
        if (w.head < w.end) {
            walk_part(a, w);
        }
    }
    if (w.head >= w.end) {
        return;
    }
    const decode_head_t &h = a.work.head[w.head];
    uint32_t k = w.first + w.item, at, rest;

    if (k >= w.segment_end) {
        w.segment = 0;
        while (w.segment + 1 < SEGMENTS && h.items_before[w.segment + 1] <= k) {
            w.segment++;
        }
        w.segment_end = w.segment + 1 < SEGMENTS ? h.items_before[w.segment + 1]
                                                 : h.items;
        w.layout = h.layout[w.segment];
    }
    const decode_layout_t &l = a.layouts.of[w.layout];

    k -= h.items_before[w.segment];
    w.page = k / l.items;
    w.page_tile = (k - w.page * l.items) * l.batch;
    rest = h.tokens[w.segment] - w.page * l.tokens - w.page_tile * TILE;
    w.left = min(min(l.batch, l.tiles - w.page_tile), (rest + TILE - 1) / TILE);
    if (w.segment == SEG_DENSE) {
        at = w.page;
    } else if (w.segment == SEG_WINDOW) {
        at = a.kv.at_window + w.page;
    } else if (w.segment % 2 == 0) {
        at = a.kv.at_pair[w.segment / 2] + w.page;
    } else {
        at = a.kv.at_pair[w.segment / 2] + a.kv.pair_len[w.segment / 2] - 1
             - w.page;
    }
    w.page_id = __ldg(a.kv.tables + (size_t) h.head * a.kv.table_len + at);
}

/* The next unit; asks for its scores, which are wanted when the head is
 * complete. */
static __device__ __forceinline__ void
walk(const decode_args_t &a, walker_t &w, unit_t *to)
{
    unit_t u;

    memset(&u, 0, sizeof(u));
    u.page = a.kv.pool;
    u.head = NO_HEAD;
    if (w.head < w.end) {
        const decode_head_t &h = a.work.head[w.head];
        const decode_layout_t &l = a.layouts.of[w.layout];
        uint32_t tiles = min(l.unit, w.left);

        /* pages of a window that never had a token have no id */
        u.page += (uint64_t) max(w.page_id, 0) * a.kv.page_bytes;
        u.head = w.head;
        u.segment = (uint16_t) w.segment;
        u.layout = (uint16_t) w.layout;
        u.page_tile = w.page_tile;
        u.token = w.page * l.tokens + w.page_tile * TILE;
        u.tile = h.tiles_before[w.segment] - w.first_tile + w.page * l.tiles
                 + w.page_tile;
        u.room = (uint16_t) min(l.tokens - w.page_tile * TILE, tiles * TILE);
        u.exist = (uint16_t) min((uint32_t) u.room,
                                 h.tokens[w.segment] - u.token);
        if (l.scored) {
            prefetch(u.page + l.score + u.page_tile * (TILE * 4));
            if (l.position != 0) {
                prefetch(u.page + l.position + u.page_tile * (TILE * 4));
            }
        }
        w.page_tile += tiles;
        w.left -= tiles;
        if (w.left == 0) {
            w.item += WARPS;
            locate(a, w);
        }
    }
    *to = u;
}

template <int D>
static __device__ __forceinline__ void
feed_units(const decode_args_t &a, shared_t<D> *sh)
{
    const decode_cut_t *cut = a.work.cut + blockIdx.x;
    const uint32_t lane = threadIdx.x % 32;
    uint32_t slot = 0, phase = 1;
    bool more = lane < WARPS;
    walker_t w;

    memset(&w, 0, sizeof(w));
    if (more) {
        w.head = cut[0].head;
        w.end = cut[1].item > 0 ? cut[1].head + 1 : cut[1].head;
        w.item = lane;
        if (w.head < w.end) {
            walk_part(a, w);
        }
        locate(a, w);
    }
    while (__any_sync(TR_ALL_LANES, more)) {
        if (more && mbar_test(&sh->empty[lane][slot], phase)) {
            more = w.head < w.end;
            walk(a, w, &sh->unit[lane][slot]);
            mbar_arrive(&sh->full[lane][slot]);
            slot = (slot + 1) % QUEUE;
            phase ^= slot == 0;
        }
        __syncwarp();
    }
}

/* ---- queries ------------------------------------------------------------ */

static __device__ __forceinline__ float
element(const void *p, size_t i, uint32_t type)
{
    if (type == TR_F32) {
        return __ldg((const float *) p + i);
    }
    uint32_t bits = __ldg((const uint16_t *) p + i);

    return type == TR_BF16 ? __uint_as_float(bits << 16) : half2_floats(bits).x;
}

/* The operand of column g: dimensions d0(k) .. + 3 in step k.  Returns the sums
 * of the rounded queries, by their place in a word of eight. */
template <int D, bool DENSE>
static __device__ __forceinline__ float4
query_operand(const decode_args_t &a, size_t at, bool any, float by,
              uint2 (*to)[32])
{
    const uint32_t lane = threadIdx.x % 32, t = lane % 4;
    float4 sum = make_float4(0, 0, 0, 0);

#pragma unroll
    for (int k = 0; k < D / 16; k++) {
        uint32_t d = DENSE ? k / 2 * 32 + t * 8 + k % 2 * 4
                           : t * (D / 4) + 4 * k;
        float x[4];

#pragma unroll
        for (int i = 0; i < 4; i++) {
            x[i] = any ? element(a.q, at + d + i, a.q_type) * by : 0.0f;
        }
        uint2 b = make_uint2(half2_bits(x[0], x[1]), half2_bits(x[2], x[3]));
        float2 lo = half2_floats(b.x), hi = half2_floats(b.y);

        to[k][lane] = b;
        if (k % 2 == 0) {
            sum.x += lo.x + lo.y;
            sum.y += hi.x + hi.y;
        } else {
            sum.z += lo.x + lo.y;
            sum.w += hi.x + hi.y;
        }
    }
    return sum;
}

static __device__ __forceinline__ float
quad_sum(float x)
{
    x += __shfl_xor_sync(TR_ALL_LANES, x, 1);
    return x + __shfl_xor_sync(TR_ALL_LANES, x, 2);
}

/* Queries of the part in `to`: normalised so that each head's largest element
 * is in [1, 2), since FP16 has little range. */
template <int D>
static __device__ __forceinline__ void
prepare(const decode_args_t &a, head_t<D> *to)
{
    const decode_head_t &h = to->part.h;
    const uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    uint32_t list = h.head % a.kv.lists;
    size_t at = (size_t) h.row * a.ldq + (size_t) (list * a.group + g) * D;
    bool any = g < a.group;
    float most = 0;

    if (any) {
#pragma unroll 8
        for (int i = 0; i < D / 4; i++) {
            most = fmaxf(most,
                         fabsf(element(a.q, at + t * (D / 4) + i, a.q_type)));
        }
    }
    most = fmaxf(most, __shfl_xor_sync(TR_ALL_LANES, most, 1));
    most = fmaxf(most, __shfl_xor_sync(TR_ALL_LANES, most, 2));

    /* a power of two: exact */
    uint32_t exponent = __float_as_uint(most) >> 23;

    exponent = exponent < 2 ? 127 : exponent > 252 ? 252 : exponent;
    float by = __uint_as_float((254 - exponent) << 23);
    float4 s = query_operand<D, false>(a, at, any, by, to->query);

    if (h.flags & (HEAD_DENSE | HEAD_MIXED)) {
        query_operand<D, true>(a, at, any, by, to->query_dense);
    }
    s.x = quad_sum(s.x);
    s.y = quad_sum(s.y);
    s.z = quad_sum(s.z);
    s.w = quad_sum(s.w);
    if (t == 0) {
        to->to_logit[g] = a.scale * __uint_as_float(exponent << 23);
        to->sum[g] = s.x + s.y + s.z + s.w;
        to->begin[OFF8][g] = -1024.0f * (s.x + s.y + s.z + s.w);
        to->begin[OFF4][g] = -256.0f * (s.x + s.z) - 16.0f * (s.y + s.w);
        to->begin[OFF2][g] = -256.0f * s.x - 64.0f * s.y - 16.0f * s.z
                             - 4.0f * s.w;
    }
}

template <int D>
static __device__ __forceinline__ void
feed_queries(const decode_args_t &a, shared_t<D> *sh)
{
    const uint32_t lane = threadIdx.x % 32;
    const decode_cut_t from = a.work.cut[blockIdx.x];
    const decode_cut_t to = a.work.cut[blockIdx.x + 1];
    uint32_t end = to.item > 0 ? to.head + 1 : to.head, parts = 0;
    uint64_t spill = from.tile_of_layer;

    for (uint32_t head = from.head; head <= end; head++) {
        bool stop = head == end, here = head == from.head;
        const decode_head_t *h = a.work.head + head;
        uint32_t words = stop ? 0 : __ldg((const uint32_t *) h + lane);
        uint32_t items = stop ? 0 : h->items, tiles = stop ? 0 : h->tiles;
        uint32_t b = parts % 2;
        part_t *part = &sh->head[b].part;

        items = head == to.head ? to.item : items;
        tiles = head == to.head ? to.tile : tiles;
        items -= here ? from.item : 0;
        tiles -= here ? from.tile : 0;
        if (!stop && items == 0) {
            continue;
        }
        mbar_wait(&sh->free[b], (parts / 2 & 1) ^ 1);
        ((uint32_t *) &part->h)[lane] = words;
        if (lane == 0) {
            part->index = head;
            part->items = items;
            part->tiles = tiles;
            part->begins = !here || from.item == 0;
            part->stop = stop;
            part->spill = spill;
        }
        __syncwarp();
        if (!stop) {
            prepare<D>(a, &sh->head[b]);
        }
        spill += tiles;
        __syncwarp();
        mbar_arrive(&sh->ready[b]);
        parts++;
    }
}

#endif
