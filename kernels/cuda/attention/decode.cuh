/*
 * decode.cuh: what the kernels of decode attention share.
 *
 *   plan    (decode_plan.cu, once a step) describes the heads of all layers and
 *           cuts each layer's work into ranges of equal bytes.  A later kernel
 *           may read the plan while the one before it still runs
 *   attend  (decode.cu, once a layer) a warp computes a range; none waits for
 *           another.  Warps that are done raise scores of the layer before
 *   reduce  (decode_reduce.cu, right behind) makes outputs of the warps' parts,
 *           and finds eviction candidates of the layer two before
 *   score   (decode_score.cu, once a step) scores of the last layer, candidates
 *           of the last two
 *
 * A head is one KV head of one sequence in one layer, with the query heads of
 * its group.  Sequences that take no part in the step have no heads, or a
 * warp would have to step over them one by one.  A head's cached tokens form
 * six segments: tiers 0 to 3, the window, the uncompressed pages.  A
 * segment's tokens come in tiles, 16 tokens of a level or 8 of an
 * uncompressed page.  Tiles are numbered through the segments of a head and
 * the heads of a layer.  A range is a run of a layer's tiles; its ends may
 * fall inside a head.  Of each head that it touches, a range has a part.  The
 * part of range b and head h has place b + h in the workspace: walking
 * through the layer, every step enters either a new range or a new head, so
 * places are distinct, and the parts of a head are neighbours.
 *
 * So that scores can be raised later, each tile leaves a trace: its weights
 * as FP16, and the maximum that they relate to, for each query head of the
 * group.  A trace has 8 tokens, so a tile of 16 leaves two; a segment begins
 * at an even trace.  The reduction kernel gives the sum of each query head,
 * which turns weights into probabilities.  A layer's scores can therefore
 * only be raised after its reduction.  Warps of the next layer do it as they
 * finish, at different times, which hides most of the cost.
 *
 * By then a layer's pages have passed through the L2 cache.  Asked to keep
 * all traces (evict_last) it keeps none, since those of two layers do not
 * fit; asked for as many as fit beside the parts (L2_KEEPS), it saves writing
 * these to memory and reading them back.
 */
#ifndef TR_CUDA_DECODE_CUH
#define TR_CUDA_DECODE_CUH

#include <stddef.h>

#include "kernels/cuda/device.h"

#define SEGMENTS 6u
#define SEG_WINDOW 4u
#define SEG_UNCOMPRESSED 5u
#define GROUP 16u       /* query heads of a KV head, at most */
#define SCORED_GROUP 8u /* .. of one whose tokens have scores */
#define QUAD 4u       /* query heads that a lane of attention can have one of */
#define ROW_TILES 16u /* whose scores one warp raises at a time */
#define INDEX_ROWS 32u /* of a layer, from one whose job is known to the next */
#define PILES 11u      /* of rows, which blocks share */
#define CLAIM_WORDS 32u /* from the counter of one to that of the next */

/* Layouts as the device wants them. */
typedef struct {
    uint32_t tokens;  /* of a page */
    uint32_t tiles;   /* of a page */
    uint32_t inverse; /* 2^32 / tiles, rounded up; 0: one tile */
    uint32_t cost;    /* of a tile: that of 64 bytes is 1 */
    uint32_t bytes;   /* of a tile; uncompressed: of its keys */
    uint32_t value;   /* uncompressed: where values begin */
    uint32_t score, position, recent;
    uint8_t key_bits, value_bits, scored, tile; /* tile: tokens of one */
    uint8_t groups; /* pairs of {scale, zero} of a key, and of a value */
} decode_layout_t;

typedef struct {
    decode_layout_t of[TR_KV_LAYOUTS_MAX];
    bool grouped; /* some have two pairs or four */
} decode_layouts_t;

#define HEAD_SCORED 1u
#define HEAD_BY_SUM 2u
#define HEAD_RECENT 4u /* uncompressed tokens' `recent` grows, too */
#define HEAD_HOLES 8u  /* places of the window's ring are of tokens that left */
#define HEAD_FROZEN 16u /* some tokens of tiers have no scores */

/* One head of a step; 16 words. */
typedef struct {
    uint32_t head; /* tr_kv_head: row of tables, counts and candidates */
    uint32_t row;  /* of q and out */
    uint32_t n;    /* position of the query */
    /* in a layer with a reach (all is uncompressed then) in place of the last
     * two: uncompressed pages that are passed over, and how many tokens of what
     * is left the query does not see */
    uint32_t base, window, window_from;
    uint32_t tokens[SEGMENTS];
    uint8_t layout[SEGMENTS];
    uint8_t flags, n_tiers;
    uint32_t tiles;
    uint32_t traces_before; /* in the layer */
} decode_head_t;

static_assert(sizeof(decode_head_t) == 64, "16 words");

/* Words of it. */
#define WORD_HEAD 0
#define WORD_ROW 1
#define WORD_SKIPPED 4
#define WORD_TOKENS 6
#define WORD_LAYOUT 12
#define WORD_FLAGS 13 /* from bit 16 on */
#define WORD_TILES 14
#define WORD_BEFORE 15

static_assert(offsetof(decode_head_t, row) == 4 * WORD_ROW
                  && offsetof(decode_head_t, window) == 4 * WORD_SKIPPED
                  && offsetof(decode_head_t, tokens) == 4 * WORD_TOKENS
                  && offsetof(decode_head_t, layout) == 4 * WORD_LAYOUT
                  && offsetof(decode_head_t, flags) == 4 * WORD_FLAGS + 2
                  && offsetof(decode_head_t, tiles) == 4 * WORD_TILES
                  && offsetof(decode_head_t, traces_before) == 4 * WORD_BEFORE,
              "words are where they are looked for");

/* Where a range begins; it ends where the next one begins. */
typedef struct {
    uint32_t head, tile; /* tile of the head */
} decode_cut_t;

typedef struct {
    uint32_t ranges, jobs, rows;
    float stay; /* share of the traces that the L2 cache is to keep for a
                 * layer */
} decode_layer_t;

/* A segment whose scores are to be raised, in rows of ROW_TILES tiles. */
typedef struct {
    uint32_t head;   /* tr_kv_head */
    uint32_t index;  /* of the head in the layer */
    uint32_t tokens; /* of the segment */
    uint32_t n;      /* position of the query */
    uint32_t trace;  /* the segment's first, of the layer */
    uint32_t before; /* rows of all jobs before it */
    uint32_t what;   /* segment | layout << 8 | flags << 16 */
    uint32_t rows;
} decode_job_t;

static_assert(sizeof(decode_job_t) == 32, "8 words");

/* The least significant token of a row. */
typedef struct {
    float significance;
    uint32_t position, index, pad;
} decode_candidate_t;

/* The parts of a head, which ranges first .. last leave; of one that has none,
 * last + 1 is first. */
typedef struct {
    uint32_t first, last;
    uint32_t row, kv_head; /* of the output */
} __align__(16) decode_span_t;

static_assert(sizeof(decode_span_t) == 16 && alignof(decode_span_t) == 16,
              "read at once");

/* What a layer leaves for its scores. */
typedef struct {
    decode_layer_t *layer;
    decode_head_t *head;
    decode_job_t *job;
    uint32_t *index;   /* job of each row that INDEX_ROWS divides */
    uint32_t *claimed; /* [PILES][CLAIM_WORDS] rows; 0 when no kernel raises
                        * scores */
    float *total;      /* [max_heads][GROUP] logarithms of all parts' sums */
    uint32_t *weights; /* [traces]: of a tile of 16 [group][8], of which word g
                        * has tokens g, g + 8; of 8 [group][4], by two */
    float *maxima;     /* [group] each: see decode_maximum */
    decode_candidate_t *find; /* [rows] by whoever raises its scores */
} decode_left_t;

/* The workspace. */
typedef struct {
    decode_layer_t *layer; /* [layers] */
    decode_head_t *head;   /* [layers][max_heads]; those with tiles, in front */
    uint32_t *before;    /* [layers][max_heads + 1] cost of the heads before */
    decode_cut_t *cut;   /* [layers][max_ranges + 1] */
    decode_job_t *job;   /* [layers][max_jobs] */
    uint32_t *index;     /* [layers][max_index] */
    uint32_t *claimed;   /* [layers][PILES][CLAIM_WORDS] */
    decode_span_t *span; /* [layers][max_heads] */
    float2 *part_sum;    /* [places][GROUP] max, sum */
    float *part_out;     /* [places][group][head_dim] */
    uint32_t *ended; /* [layers] blocks of attention that left all their parts;
                      * 0 when no kernel attends */
    decode_left_t left[2]; /* of layers with an even number, and an odd one */
    uint32_t max_heads, max_ranges, max_jobs, max_index, max_traces;
    size_t bytes;
} decode_work_t;

/* Is there code for heads of so many dimensions, in groups of so many?  plain:
 * for uncompressed tokens without scores alone. */
static inline bool
decode_has(uint32_t head_dim, uint32_t group, bool plain)
{
    return plain ? (head_dim == 64 || head_dim == 128 || head_dim == 256)
                       && group * head_dim <= 2048 && group <= GROUP
                 : (head_dim == 64 || head_dim == 128) && group <= SCORED_GROUP;
}

/* Warps of the attend kernel: as many ranges there are at most.  grouped:
 * where some layout is, whose tiles are larger. */
uint32_t decode_warps(const tr_device_props_t *d, uint32_t head_dim,
                      uint32_t group, bool grouped);
decode_work_t decode_work(const tr_device_props_t *d,
                          const tr_cuda_decode_size_t *size, void *at);
int decode_layouts(const tr_kv_view_t *kv, decode_layouts_t *out);

typedef struct {
    tr_kv_view_t kv;
    decode_layouts_t layouts;
    decode_work_t work;   /* of the layer */
    decode_left_t left;   /* by it */
    decode_left_t before; /* by the one before, if there is one */
    decode_left_t raised; /* by the one before that, if there is one */
    uint32_t *ended; /* of the layer; NULL, where there is but one: who wants
                      * its parts waits until attention has ended */
    uint32_t *ended_old; /* of the layer before, to be 0 again */
    uint32_t blocks;     /* of attention */
    uint32_t slots;      /* of a warp's ring */
    uint32_t layer;
    bool scored;          /* some layout is */
    bool reaches;         /* DECODE_REACH */
    bool grouped;         /* DECODE_GROUPED */
    uint32_t jobs;        /* of a layer with scores, at most */
    bool few_jobs;        /* so that a block settles the candidate of each */
    bool short_positions; /* of 2 bytes, in all layouts */
    const void *q;
    void *out;
    size_t ldq, ldo;
    uint32_t q_type, out_type;
    uint32_t group;
    uint32_t group_inverse; /* 2^32 / group, rounded up; 0: one */
    float scale;            /* times log2(e) */
} decode_args_t;

/* Fills in what all launches of a layer share, not the queries; false: the
 * arguments are not allowed. */
bool decode_args(const tr_device_props_t *d, const tr_kv_view_t *kv,
                 uint32_t layer, const tr_rows_t *rows,
                 const tr_cuda_decode_size_t *size, void *work,
                 decode_args_t *out);
int decode_reduce(const tr_cuda_stream_t *s, const decode_args_t *a,
                  uint32_t n_seqs);
/* Blocks that settle a layer's candidates: one a head where there are few, else
 * of so many warps that have one each. */
uint32_t decode_candidate_blocks(const decode_args_t *a, uint32_t warps);

/* What is done of a layer: every segment; uncompressed pages without scores; of
 * these what a layer's reach lets a query see; every segment, where layouts have
 * groups, in code of its own, which has more registers to do with. */
typedef enum {
    DECODE_ALL,
    DECODE_UNCOMPRESSED,
    DECODE_REACH,
    DECODE_GROUPED
} decode_mode_t;

#define DECODE_MODES 4u

/* Are there layouts of groups in a mode? */
static __host__ __device__ constexpr bool
decode_grouped(decode_mode_t mode)
{
    return mode == DECODE_GROUPED;
}

/* Tiles of a segment. */
static __host__ __device__ __forceinline__ uint32_t
decode_tiles(const decode_layout_t *l, uint32_t tokens)
{
    return l->tile == 8 ? (tokens + 7) / 8 : (tokens + 15) / 16;
}

/* Traces of a segment's first tiles. */
static __host__ __device__ __forceinline__ uint32_t
decode_traces(const decode_layout_t *l, uint32_t tiles)
{
    return tiles * (l->tile / 8);
}

/* What the traces of a segment take. */
static __host__ __device__ __forceinline__ uint32_t
decode_even(uint32_t traces)
{
    return (traces + 1) / 2 * 2;
}

/* Where the maxima are of a tile whose first trace this is.  Those of tiles of
 * 16 are neighbours. */
static __host__ __device__ __forceinline__ size_t
decode_maximum(const decode_work_t &w, uint32_t trace)
{
    return trace / 2 + (size_t) (trace % 2) * (w.max_traces / 2);
}

/* Entry of a head's table that holds page i of a segment. */
static __device__ __forceinline__ uint32_t
decode_entry(const tr_kv_view_t &kv, uint32_t segment, uint32_t i)
{
    if (segment == SEG_UNCOMPRESSED) {
        return i;
    }
    if (segment == SEG_WINDOW) {
        return kv.at_window + i;
    }
    uint32_t at = segment < 2 ? kv.at_pair[0] : kv.at_pair[1];
    uint32_t len = segment < 2 ? kv.pair_len[0] : kv.pair_len[1];

    return segment % 2 == 0 ? at + i : at + len - 1 - i;
}

/* Sinks of a head's sequence: the entries in front of its ring. */
static __device__ __forceinline__ uint32_t
decode_sinks(const tr_kv_view_t &kv, const decode_head_t *h)
{
    return kv.seq[h->head / (kv.layers * kv.kv_heads)].sinks;
}

/* Position of the token at entry i of the ring: the last one below base that is
 * there.  As many sinks come off base as off i. */
static __device__ __forceinline__ uint32_t
decode_window_position(uint32_t base, uint32_t window, uint32_t i)
{
    return base - 1 - (base - 1 + window - i) % window;
}

#endif
