/*
 * decode_block.cuh: a block of the decode attention kernel from inside: its
 * roles and the shared memory through which they speak.
 *
 *   WARPS warps attend: each takes every WARPS-th item of the block's range,
 *     loading ahead, across heads, and has a softmax of its own; at the end of
 *     a head they join
 *   one warp finds the next units, a lane for each of these warps
 *   one warp prepares the next head's queries
 *
 * full/empty: each warp's queue of units; ready/free: the two heads in work.
 */
#ifndef TR_CUDA_DECODE_BLOCK_CUH
#define TR_CUDA_DECODE_BLOCK_CUH

#include "decode.cuh"
#include "decode_tile.cuh"
#include "ptx.cuh"

#define WARPS 10u
#define WORKERS (WARPS * 32)
#define BLOCK (WORKERS + 64)
#define QUEUE 4u /* units: in work, being loaded, and two more */

typedef struct {
    tr_kv_view_t kv;
    decode_layouts_t layouts;
    decode_work_t work; /* of the layer */
    const void *q;
    void *out;
    size_t ldq, ldo;
    uint32_t q_type, out_type;
    uint32_t group;
    float scale;                       /* times log2(e) */
    uint32_t merge, trace;             /* offsets in shared memory */
    uint32_t trace_tiles, trace_bytes; /* that fit there; of a tile */
} decode_args_t;

/* A unit: tiles of a page that a warp attends at once. */
typedef struct {
    const uint8_t *page;
    uint32_t head;  /* of the layer; NO_HEAD when there is no more */
    uint32_t token; /* of the segment; the first */
    uint32_t tile;  /* of the part; the first */
    uint32_t page_tile;
    uint16_t room, exist; /* tokens that the page has from here, that exist */
    uint16_t segment, layout;
} unit_t;

#define NO_HEAD 0xffffffffu

/* One head, or the part of it that falls to this block. */
typedef struct {
    decode_head_t h;
    uint32_t index; /* of the head in the layer */
    uint32_t items, tiles;
    uint32_t begins; /* here, not in an earlier block */
    uint32_t stop;   /* no head: the range is done */
    uint64_t spill;  /* first tile in decode_work_t.spill */
} part_t;

template <int D> struct head_t {
    part_t part;
    float to_logit[GROUP]; /* what products are worth, in log2 units */
    float sum[GROUP];      /* of the query */
    float begin[OFFS][GROUP];
    uint2 query[D / 16][32];
    uint2 query_dense[D / 16][32];
};

typedef struct {
    float significance;
    uint32_t position, index;
} victim_t;

template <int D> struct shared_t {
    uint64_t ready[2], free[2], full[WARPS][QUEUE], empty[WARPS][QUEUE];
    unit_t unit[WARPS][QUEUE];
    head_t<D> head[2];
    part_t waiting;                /* a part that began earlier, to be scored */
    float2 warp_sum[WARPS][GROUP]; /* max, sum */
    float2 total[GROUP];           /* max, sum of all parts */
    victim_t victim[TR_KV_LISTS_MAX][WARPS];
    uint32_t last_one;
};

/* The range of this block. */
static __device__ __forceinline__ void
range_of(const decode_args_t &a, decode_cut_t *from, decode_cut_t *to)
{
    *from = a.work.cut[blockIdx.x];
    *to = a.work.cut[blockIdx.x + 1];
}

/* Position of the token in ring slot i of the window: the last one below base
 * that is i modulo the ring. */
static __device__ __forceinline__ uint32_t
window_position(const decode_head_t &h, uint32_t i)
{
    return h.base - 1 - (h.base - 1 + h.window - i) % h.window;
}

#endif
