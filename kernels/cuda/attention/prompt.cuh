/*
 * prompt.cuh: what the kernels of prompt attention share.
 *
 * A step's rows are cut into tiles of ROWS rows of one sequence, each tile into
 * two images of HALF rows.  An image holds one query head's FP16 queries as the
 * tensor cores want them in shared memory (wgmma.cuh), so that both passes
 * fetch it as one run of bytes.  Row r of an image is query image_query(r): in
 * the second pass, where queries are the columns of products, lane t of four
 * then has 16 consecutive ones, as sums in ascending order need.
 *
 * Beside an image are, for each row, `factor` (logit of a product, in powers of
 * two) and `minus` (minus the logarithm of the sum of all weights, which the
 * first pass writes).  An absent row has 0 and minus infinity: weight 0.
 */
#ifndef TR_CUDA_PROMPT_CUH
#define TR_CUDA_PROMPT_CUH

#include "prompt_context.cuh"
#include "kernels/cuda/wgmma.cuh"

#define HALF 64u
#define ROWS 128u

/* Threads of a block: four warps that fetch, and two groups that compute */
#define FEED 128
#define GROUP 128
#define THREADS (FEED + 2 * GROUP)

typedef struct {
    uint32_t seq;
    uint32_t row;  /* of the step */
    uint32_t rows; /* 1 .. ROWS */
    uint32_t pos;  /* of the first */
} prompt_tile_t;

typedef struct {
    float factor, minus;
} prompt_row_t;

typedef struct {
    tr_kv_view_t kv; /* layouts: not on the device */
    tr_rows_t rows;
    tr_cuda_queries_t queries;
    uint32_t layer, group, dim;
    uint32_t page_tokens, value, score, recent; /* of an uncompressed page */
    uint32_t box;                               /* tokens that a copy brings */
    uint32_t first_head, n_heads;               /* KV heads of the launch */
    /* of rows behind what was compressed; NULL: of others */
    uint8_t *context;
    uint32_t context_rows; /* that there is room for */
    uint32_t *context_at;  /* [n_seqs] rows in front, or CONTEXT_NONE */
    uint16_t layout_tokens[TR_KV_LAYOUTS_MAX], layout_score[TR_KV_LAYOUTS_MAX];
    uint32_t *n_tiles;   /* [1] */
    uint32_t *seq_tile;  /* [n_seqs] its first, or ~0: left out */
    prompt_tile_t *tile; /* [tiles] */
    prompt_row_t *info;  /* [2 tiles][heads][HALF] */
    uint8_t *image;      /* [2 tiles][heads][HALF * dim * 2] */
} prompt_args_t;

typedef struct {
    CUtensorMap key, value;
} prompt_maps_t;

/* As far back as any prompt goes. */
#define REACH_ALL (1u << 30)

/* How many positions a query of the layer sees, its own included. */
static __device__ __forceinline__ uint32_t
prompt_reach(const prompt_args_t &a)
{
    uint32_t reach = tr_kv_reach(&a.kv, a.layer);

    return reach == 0 || reach > REACH_ALL ? REACH_ALL : reach;
}

/* The first key tile of N tokens that a tile of rows sees something of, in
 * tokens. */
template <int N>
static __device__ __forceinline__ uint32_t
prompt_from(const prompt_tile_t &t, uint32_t reach)
{
    return t.pos < reach ? 0 : (t.pos - reach + 1) / N * N;
}

static __host__ __device__ __forceinline__ uint32_t
image_query(uint32_t r)
{
    return r % 8 / 2 * 16 + r / 8 * 2 + r % 2;
}

static __device__ __forceinline__ size_t
image_index(const prompt_args_t &a, uint32_t half, uint32_t head)
{
    return (size_t) half * a.queries.heads + head;
}

static __device__ __forceinline__ const uint8_t *
image_at(const prompt_args_t &a, uint32_t half, uint32_t head)
{
    return a.image + image_index(a, half, head) * (HALF * 2 * a.dim);
}

static __device__ __forceinline__ prompt_row_t *
image_info(const prompt_args_t &a, uint32_t half, uint32_t head)
{
    return a.info + image_index(a, half, head) * HALF;
}

/* What was compressed of a KV head of sequence s. */
static __device__ __forceinline__ prompt_context_t
prompt_context(const prompt_args_t &a, uint32_t s, uint32_t kv_head)
{
    return context_of(&a.kv, a.rows.seq_slot[s], a.layer, kv_head, a.context,
                      a.context_at[s], kv_head - a.first_head);
}

/* A position of sequence s, counted as if what is unpacked of the KV head stood
 * in front of its uncompressed tokens. */
static __device__ __forceinline__ uint32_t
prompt_behind(const prompt_args_t &a, const prompt_context_t &c, uint32_t s,
              uint32_t pos)
{
    return c.padded + pos - a.kv.seq[a.rows.seq_slot[s]].base;
}

/* A ring of shared memory that some threads fill and others empty; stage and
 * phase of item n of S. */
template <int S>
static __device__ __forceinline__ uint32_t
ring_stage(uint32_t n)
{
    return n % S;
}

template <int S>
static __device__ __forceinline__ uint32_t
ring_phase(uint32_t n)
{
    return n / S & 1;
}

/* A lane is done with a stage; its barrier expects RELEASES.  One lane for its
 * warp, behind a __syncwarp, would do and be 1% faster, but compute-sanitizer's
 * racecheck does not follow that and reports a race. */
#define RELEASES (2 * GROUP)

static __device__ __forceinline__ void
ring_release(uint32_t bar)
{
    bar_arrive(bar);
}

typedef int (*prompt_launch_t)(cudaStream_t stream, const prompt_args_t *a,
                               const prompt_maps_t *maps, dim3 grid);

/* Pass 1: grid of (heads, tiles). */
int prompt_attend(cudaStream_t stream, const prompt_args_t *a,
                  const prompt_maps_t *maps, tr_prompt_path_t path,
                  uint32_t tiles);

/* Pass 2, spread over so many multiprocessors. */
int prompt_score(cudaStream_t stream, const prompt_args_t *a,
                 tr_prompt_path_t path, uint32_t max_len, uint32_t processors);

#endif
