/*
 * decode.cuh: what the plan of a decode step and the attention kernel share.
 *
 * A head is one KV head of one sequence in one layer, with the query heads of
 * its group.  Its cached tokens are six segments: lists 0 to 3, the window, the
 * dense pages.  A page is cut into items, which a warp attends one after the
 * other, and an item into tiles of 16 tokens.  So a head is a row of items, and
 * a layer a row of heads.  The plan cuts that long row into one range of equal
 * bytes for each block (multiprocessor), wherever the cut falls.  A head inside
 * one range is finished by its block; of a head that is cut, each block has a
 * part.
 */
#ifndef TR_CUDA_DECODE_CUH
#define TR_CUDA_DECODE_CUH

#include "cuda.h"

#define TILE 16u
#define SEGMENTS 6u
#define SEG_WINDOW 4u
#define SEG_DENSE 5u
#define GROUP 8u /* query heads of a list, at most: columns of an mma */

/* Layouts as the device wants them. */
typedef struct {
    uint32_t tokens; /* of a page */
    uint32_t tiles;  /* of a page */
    uint32_t items;  /* of a page */
    uint32_t batch;  /* tiles of an item; the page's last may have fewer */
    uint32_t unit;   /* tiles that are attended at once */
    uint32_t cost;   /* of an item: bytes / 16 */
    uint32_t key_meta, value, value_meta, score, position, recent;
    uint8_t key_bits, value_bits, scored, pad;
} decode_layout_t;

typedef struct {
    decode_layout_t of[TR_KV_LAYOUTS_MAX];
} decode_layouts_t;

#define HEAD_SCORED 1u
#define HEAD_BY_SUM 2u
#define HEAD_RECENT 4u /* dense tokens' `recent` grows, too */
#define HEAD_MIXED 8u  /* dense and other tokens */
#define HEAD_DENSE 16u /* dense tokens only */

/* One head of a step.  32 words: a warp loads it with one word a lane. */
typedef struct {
    uint32_t head; /* tr_kv_head: row of tables, counts and victims */
    uint32_t row;  /* of q and out */
    uint32_t n;    /* position of the query */
    uint32_t window_from, window, base;
    uint32_t tokens[SEGMENTS];
    uint32_t items_before[SEGMENTS]; /* the segment */
    uint32_t items;                  /* 0: nothing to do */
    uint32_t tiles_before[SEGMENTS];
    uint32_t tiles;
    uint8_t layout[SEGMENTS];
    uint8_t flags, n_lists;
    uint16_t first, parts; /* blocks [first, first + parts) have a part */
    uint32_t pad[3];
} decode_head_t;

static_assert(sizeof(decode_head_t) == 128, "one word a lane");

/* Where a block's range begins; it ends where the next one begins. */
typedef struct {
    uint32_t head, item;
    uint32_t tile; /* of the head; the item's first */
    uint32_t pad;
    uint64_t tile_of_layer; /* its place in `spill` */
} decode_cut_t;

/* The workspace.  A block has at most two parts of cut heads: one that began in
 * an earlier block (slot 0), one that goes on in a later one (slot 1). */
typedef struct {
    decode_head_t *head; /* [layers][max_seqs * lists] */
    uint64_t *before;    /* [layers][max_seqs * lists + 1] cost of the heads
                           * before; tiles in the upper array */
    uint64_t *tiles_before;
    decode_cut_t *cut;  /* [layers][blocks + 1] */
    uint32_t *arrived;  /* [layers][max_seqs * lists][2] parts that are summed,
                           * that are scored */
    float2 *part_sum;   /* [blocks][2][GROUP] max, sum */
    float *part_out;    /* [blocks][2][GROUP][head_dim] */
    uint4 *part_victim; /* [blocks][2][LISTS_MAX] significance, position,
                           * index */
    uint8_t *spill;     /* weights of tiles that shared memory cannot hold */
    uint64_t spill_tiles;
    size_t bytes;
} decode_work_t;

/* Bytes that a tile leaves behind for the score update: see decode.cu. */
static __host__ __device__ __forceinline__ uint32_t
decode_trace_bytes(uint32_t group)
{
    uint32_t pairs = (group + 1) / 2;

    return 16 + (pairs + 1) / 2 * 16 + pairs * 64;
}

/* Tiles of a unit: two, so that work on the one hides the latencies of the
 * other, where registers for their codes allow it. */
static __host__ __device__ constexpr int
decode_unit(int key_bits, int value_bits)
{
    return key_bits + value_bits <= 8 ? 2 : 1;
}

decode_work_t decode_work(const tr_cuda_device_t *d,
                          const tr_cuda_decode_size_t *size, void *at);
int decode_layouts(const tr_kv_view_t *kv, decode_layouts_t *out);
int tr_cuda_check(void);

#endif
