/*
 * prompt.cu: launchers of prompt attention, and what runs before its passes.
 *
 *   plan     one block: which sequences, and their tiles of rows
 *   images   queries to FP16, each head's row scaled by a power of two so that
 *            its largest is between 1024 and 2048, in the order of prompt.cuh
 *   unpack   prompt_context.cu, of rows behind what was compressed
 *   attend   prompt_attend.cu
 *   score    prompt_score.cu, when pages carry scores
 *
 * Behind compressed tokens these are launched for as many sequences at a time as
 * the scratch holds, and where it does not hold one, for some of its KV heads.
 */
#include "prompt.cuh"
#include "kernels/cuda/tensor.cuh"

#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <math.h>

#define PLANNERS 1024
#define IMAGE_THREADS 256

/* ---- plan --------------------------------------------------------------- */

/* Tiles of sequence s; 0 for one that is left out. */
static __device__ uint32_t
plan_tiles(const prompt_args_t &a, uint32_t s)
{
    uint32_t rows = a.rows.seq_row[s + 1] - a.rows.seq_row[s], base;
    int32_t slot = a.rows.seq_slot[s];

    if (slot < 0 || rows < 2) {
        return 0;
    }
    base = tr_kv_seq_of(&a.kv, slot, a.layer)->base;
    if (a.context == NULL
            ? base != 0
            : base == 0 || a.rows.row_pos[a.rows.seq_row[s]] < base) {
        return 0;
    }
    return (rows + ROWS - 1) / ROWS;
}

/* What all threads up to this one have; `sum`: of all. */
static __device__ uint32_t
plan_scan(uint32_t mine, uint32_t *sum)
{
    __shared__ uint32_t scan[PLANNERS];
    uint32_t me = threadIdx.x;

    __syncthreads();
    scan[me] = mine;
    __syncthreads();
    for (uint32_t d = 1; d < PLANNERS; d *= 2) {
        uint32_t add = me >= d ? scan[me - d] : 0;

        __syncthreads();
        scan[me] += add;
        __syncthreads();
    }
    *sum = scan[PLANNERS - 1];
    return scan[me];
}

/* Scratch for what is compressed of sequence s, behind `before` rows; all
 * threads.  False: there is none. */
static __device__ bool
plan_context(const prompt_args_t &a, uint32_t s, bool wanted, uint32_t *before)
{
    uint32_t rows = 0, at, sum;

    if (wanted) {
        rows = tr_cuda_context_rows(a.kv.seq[a.rows.seq_slot[s]].base)
               * a.n_heads;
    }
    at = *before + plan_scan(rows, &sum) - rows;
    *before += sum;
    wanted = wanted && at + rows <= a.context_rows;
    if (s < a.rows.n_seqs) {
        a.context_at[s] = wanted ? at : CONTEXT_NONE;
    }
    return wanted;
}

static __global__ void __launch_bounds__(PLANNERS)
    plan_kernel(const __grid_constant__ prompt_args_t a)
{
    uint32_t before = 0, context = 0, me = threadIdx.x;

    for (uint32_t from = 0; from < a.rows.n_seqs; from += PLANNERS) {
        uint32_t s = from + me, at, sum;
        uint32_t tiles = s < a.rows.n_seqs ? plan_tiles(a, s) : 0;

        if (a.context != NULL && !plan_context(a, s, tiles > 0, &context)) {
            tiles = 0;
        }
        at = before + plan_scan(tiles, &sum) - tiles;
        before += sum;
        if (s < a.rows.n_seqs) {
            uint32_t row = a.rows.seq_row[s], end = a.rows.seq_row[s + 1];

            a.seq_tile[s] = tiles > 0 ? at : ~0u;
            for (uint32_t i = 0; i < tiles; i++) {
                uint32_t first = row + i * ROWS, left = end - first;

                a.tile[at + i] = { s, first, left < ROWS ? left : ROWS,
                                   a.rows.row_pos[row] + i * ROWS };
            }
        }
    }
    if (me == 0) {
        *a.n_tiles = before;
    }
}

/* ---- images ------------------------------------------------------------- */

/* Four elements from `i` on, a multiple of 4. */
static __device__ __forceinline__ float4
load_queries(const tr_cuda_queries_t &q, size_t i)
{
    if (q.q_type == TR_F32) {
        return *(const float4 *) ((const float *) q.q + i);
    }
    uint2 u = *(const uint2 *) ((const uint16_t *) q.q + i);
    float2 x, y;

    if (q.q_type == TR_F16) {
        x = half2_floats(u.x);
        y = half2_floats(u.y);
    } else {
        x = make_float2(__uint_as_float(u.x << 16),
                        __uint_as_float(u.x & 0xffff0000u));
        y = make_float2(__uint_as_float(u.y << 16),
                        __uint_as_float(u.y & 0xffff0000u));
    }
    return make_float4(x.x, x.y, y.x, y.y);
}

/* The exponent that takes `most` to [1024, 2048). */
static __device__ __forceinline__ int
image_exponent(float most)
{
    int e = 0;

    if (most > 0 && most < INFINITY) {
        frexpf(most, &e);
        e = 11 - e;
    }
    return e < -120 ? -120 : e > 120 ? 120 : e;
}

/* One image: a block; up to a warp a row, of which a lane has four elements, or
 * four and the four 128 further on. */
template <int D>
static __global__ void __launch_bounds__(IMAGE_THREADS)
    image_kernel(const __grid_constant__ prompt_args_t a)
{
    constexpr uint32_t LANES = D / 4 < 32 ? D / 4 : 32, FOURS = D / 4 / LANES;
    constexpr uint32_t STEP = IMAGE_THREADS / LANES;
    uint32_t head = blockIdx.x, half = blockIdx.y;
    uint32_t lane = threadIdx.x % LANES;

    if (half >= 2 * *a.n_tiles) {
        return;
    }
    prompt_tile_t t = a.tile[half / 2];
    uint8_t *image = (uint8_t *) image_at(a, half, head);
    prompt_row_t *info = image_info(a, half, head);

    float4 x[HALF / STEP][FOURS];

#pragma unroll
    for (uint32_t i = 0; i < HALF / STEP; i++) {
        uint32_t row = half % 2 * HALF
                       + image_query(threadIdx.x / LANES + i * STEP);

#pragma unroll
        for (uint32_t j = 0; j < FOURS; j++) {
            x[i][j] = make_float4(0, 0, 0, 0);
            if (row < t.rows) {
                x[i][j] = load_queries(a.queries,
                                       (size_t) (t.row + row) * a.queries.ldq
                                           + head * D + j * 128 + lane * 4);
            }
        }
    }
#pragma unroll
    for (uint32_t i = 0; i < HALF / STEP; i++) {
        uint32_t place = threadIdx.x / LANES + i * STEP;
        uint32_t row = half % 2 * HALF + image_query(place);
        float most = 0, up;
        int e;

#pragma unroll
        for (uint32_t j = 0; j < FOURS; j++) {
            most = fmaxf(most,
                         fmaxf(fmaxf(fabsf(x[i][j].x), fabsf(x[i][j].y)),
                               fmaxf(fabsf(x[i][j].z), fabsf(x[i][j].w))));
        }
        for (uint32_t d = 1; d < LANES; d *= 2) {
            most = fmaxf(most, __shfl_xor_sync(TR_ALL_LANES, most, d));
        }
        e = image_exponent(most);
        up = ldexpf(1, e);
#pragma unroll
        for (uint32_t j = 0; j < FOURS; j++) {
            const float4 y = x[i][j];

            *(uint2 *) (image + atom_place(D / 64, place, j * 16 + lane / 2)
                        + lane % 2
                              * 8) = make_uint2(half2_bits(y.x * up, y.y * up),
                                                half2_bits(y.z * up, y.w * up));
        }
        if (lane == 0) {
            info[place].factor = row < t.rows ? a.queries.scale * 1.44269504f
                                                    * ldexpf(1, -e)
                                              : 0;
            info[place].minus = -INFINITY; /* pass 1 writes those there */
        }
    }
}

/* ---- workspace ---------------------------------------------------------- */

static size_t
take(size_t *at, size_t bytes)
{
    size_t here = *at;

    *at = tr_pad(here + bytes, 256);
    return here;
}

/* Places of the workspace's parts; returns its bytes. */
static size_t
lay_out(const tr_cuda_prompt_size_t *size, uint8_t *work, prompt_args_t *a)
{
    size_t tiles = size->max_rows / ROWS + size->max_seqs, at = 0;
    size_t images = 2 * tiles * size->heads, seqs = size->max_seqs;

    a->n_tiles = (uint32_t *) (work + take(&at, 4));
    a->seq_tile = (uint32_t *) (work + take(&at, 4 * seqs));
    a->tile = (prompt_tile_t *) (work + take(&at, tiles * sizeof(*a->tile)));
    a->info = (prompt_row_t *) (work
                                + take(&at, images * HALF * sizeof(*a->info)));
    a->image = work + take(&at, images * HALF * 2 * size->head_dim);
    a->context_rows = size->context;
    a->context_at = (uint32_t *) (work + take(&at, 4 * seqs));
    a->context = work + take(&at, (size_t) size->context * 4 * size->head_dim);
    return at;
}

extern "C" size_t
tr_cuda_prompt_work(const tr_cuda_prompt_size_t *size)
{
    prompt_args_t a;

    return lay_out(size, NULL, &a);
}

/* ---- launchers ---------------------------------------------------------- */

static bool
aligned(const void *p, size_t to)
{
    return (uintptr_t) p % to == 0;
}

/* Heads of 256 dimensions need Hopper's products, and registers and shared memory
 * that scores and what was compressed have no room in. */
static bool
prompt_has(const tr_cuda_stream_t *s, const tr_kv_view_t *kv, uint32_t group)
{
    bool plain = kv->n_layouts == 1 && kv->layout->score == 0;

    return kv->head_dim == 256
               ? plain && group <= 8 && s->device->code / 10 == 9
               : (kv->head_dim == 64 || kv->head_dim == 128)
                     && group <= (plain ? 16u : 8u);
}

static bool
prompt_allowed(const tr_cuda_stream_t *s, const tr_kv_view_t *kv,
               uint32_t layer, const tr_rows_t *rows,
               const tr_cuda_queries_t *q, const tr_cuda_prompt_size_t *size,
               const void *work)
{
    const tr_kv_layout_t *uncompressed = kv->layout;
    uint32_t group = kv->kv_heads ? q->heads / kv->kv_heads : 0;

    return layer < kv->layers && group >= 1 && group * kv->kv_heads == q->heads
           && prompt_has(s, kv, group) && uncompressed->level.key_bits == 16
           && uncompressed->level.value_bits == 16
           && uncompressed->head_dim == kv->head_dim && uncompressed->tokens > 0
           && uncompressed->tokens % 8 == 0 && uncompressed->value % 16 == 0
           && kv->page_bytes % 16 == 0 && aligned(kv->pool, 16)
           && size->kv_heads == kv->kv_heads && size->head_dim == kv->head_dim
           && size->heads == q->heads && rows->n_rows <= size->max_rows
           && rows->n_seqs <= size->max_seqs && size->max_len > 0
           && size->path < TR_PROMPT_PATHS && q->ldq % 4 == 0 && q->ldo % 2 == 0
           && q->ldq >= (size_t) q->heads * kv->head_dim
           && q->ldo >= (size_t) q->heads * kv->head_dim && aligned(q->q, 16)
           && aligned(q->out, 8) && q->scale > 0 && q->scale < INFINITY
           && work != NULL && aligned(work, 256);
}

/* Pages as the copy engine sees them: [page][8 tokens][64 dimensions][token]
 * [dimension], a box being some groups of 8 tokens.  How many pages there are
 * is not said here. */
static bool
map_pages(tensor_encode_t encode, CUtensorMap *map, const tr_kv_view_t *kv,
          uint32_t part, uint32_t box_tokens)
{
    uint32_t row = 2 * kv->head_dim, columns = kv->head_dim / 64;
    cuuint64_t dims[5] = { 64, 8, columns, kv->layout->tokens / 8, 1u << 30 };
    cuuint64_t strides[4] = { row, 128, 8 * row, kv->page_bytes };
    cuuint32_t box[5] = { 64, 8, columns, box_tokens / 8, 1 };
    cuuint32_t step[5] = { 1, 1, 1, 1, 1 };

    return encode(map, CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 5, kv->pool + part,
                  dims, strides, box, step, CU_TENSOR_MAP_INTERLEAVE_NONE,
                  CU_TENSOR_MAP_SWIZZLE_128B,
                  CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE)
           == CUDA_SUCCESS;
}

static bool
map_all(prompt_maps_t *maps, const tr_kv_view_t *kv, uint32_t box)
{
    tensor_encode_t encode = tensor_encode();

    return encode != NULL && map_pages(encode, &maps->key, kv, 0, box)
           && map_pages(encode, &maps->value, kv, kv->layout->value, box);
}

/* Of the paths, heads of 256 dimensions have the last two alone. */
static tr_prompt_path_t
prompt_path(const tr_cuda_stream_t *s, const tr_kv_view_t *kv,
            tr_prompt_path_t path)
{
    if (kv->head_dim == 256) {
        return path == TR_PROMPT_BEST || path == TR_PROMPT_ALTERNATING
                   ? path
                   : TR_PROMPT_GROUPS;
    }
    return s->device->code / 10 != 9 ? TR_PROMPT_WARPS : path;
}

/* What both kinds of rows have in common; false: refused. */
static bool
prompt_args(const tr_cuda_stream_t *s, const tr_kv_view_t *kv, uint32_t layer,
            const tr_rows_t *rows, const tr_cuda_queries_t *queries,
            const tr_cuda_prompt_size_t *size, void *work, prompt_args_t *a,
            prompt_maps_t *maps)
{
    memset(maps, 0, sizeof(*maps));
    lay_out(size, (uint8_t *) work, a);
    a->kv = *kv;
    a->rows = *rows;
    a->queries = *queries;
    a->layer = layer;
    a->group = queries->heads / kv->kv_heads;
    a->dim = kv->head_dim;
    a->first_head = 0;
    a->n_heads = kv->kv_heads;
    a->page_tokens = kv->layout->tokens;
    a->value = kv->layout->value;
    a->box = 8; /* boxes are powers of two, and of one page */
    while (a->box < 64 && a->page_tokens % (2 * a->box) == 0) {
        a->box *= 2;
    }
    a->score = kv->layout->score;
    a->recent = kv->layout->recent;
    return prompt_path(s, kv, size->path) == TR_PROMPT_WARPS
           || map_all(maps, kv, a->box);
}

/* Plan and images: of all heads. */
static void
prompt_begin(cudaStream_t stream, const prompt_args_t *a, uint32_t tiles)
{
    plan_kernel<<<1, PLANNERS, 0, stream>>>(*a);
    if (a->dim == 256) {
        image_kernel<256>
            <<<dim3(a->queries.heads, 2 * tiles), IMAGE_THREADS, 0, stream>>>(
                *a);
    } else if (a->dim == 128) {
        image_kernel<128>
            <<<dim3(a->queries.heads, 2 * tiles), IMAGE_THREADS, 0, stream>>>(
                *a);
    } else {
        image_kernel<64>
            <<<dim3(a->queries.heads, 2 * tiles), IMAGE_THREADS, 0, stream>>>(
                *a);
    }
}

/* Both passes. */
static int
prompt_passes(const tr_cuda_stream_t *s, const prompt_args_t *a,
              const prompt_maps_t *maps, const tr_cuda_prompt_size_t *size,
              uint32_t tiles, bool scored)
{
    cudaStream_t stream = (cudaStream_t) s->stream;
    tr_prompt_path_t path = prompt_path(s, &a->kv, size->path);
    uint32_t most = size->max_len
                    + (a->context == NULL ? 0 : TR_CUDA_CONTEXT_TILE);
    /* taking turns costs more than it gives where products are short */
    int rc = prompt_attend(stream, a, maps,
                           path != TR_PROMPT_BEST ? path
                           : a->dim >= 128        ? TR_PROMPT_ALTERNATING
                                                  : TR_PROMPT_GROUPS,
                           tiles);

    if (rc == TR_KERNEL_OK && scored) {
        rc = prompt_score(stream, a,
                          path != TR_PROMPT_BEST ? path : TR_PROMPT_ALTERNATING,
                          most, s->device->blocks);
    }
    return rc;
}

extern "C" int
tr_cuda_prompt(const tr_cuda_stream_t *s, const tr_kv_view_t *kv,
               uint32_t layer, const tr_rows_t *rows,
               const tr_cuda_queries_t *queries,
               const tr_cuda_prompt_size_t *size, void *work)
{
    prompt_maps_t maps;
    prompt_args_t a;
    uint32_t tiles;

    if (!prompt_allowed(s, kv, layer, rows, queries, size, work)) {
        return TR_KERNEL_BADARG;
    }
    if (rows->n_rows == 0 || rows->n_seqs == 0) {
        return TR_KERNEL_OK;
    }
    if (!prompt_args(s, kv, layer, rows, queries, size, work, &a, &maps)) {
        return TR_KERNEL_BADARG;
    }
    a.context = NULL;
    tiles = rows->n_rows / ROWS + rows->n_seqs;
    prompt_begin((cudaStream_t) s->stream, &a, tiles);
    return prompt_passes(s, &a, &maps, size, tiles, a.score != 0);
}

/* ---- behind compressed tokens -------------------------------------------- */

/* Layouts, which the kernels know by number; is any scored? */
static bool
behind_layouts(const tr_kv_view_t *kv, prompt_args_t *a)
{
    bool scored = false;

    for (uint32_t i = 0; i < TR_KV_LAYOUTS_MAX; i++) {
        const tr_kv_layout_t *l = &kv->layout[i < kv->n_layouts ? i : 0];

        a->layout_tokens[i] = (uint16_t) l->tokens;
        a->layout_score[i] = (uint16_t) l->score;
        scored = scored || l->score != 0;
    }
    return scored;
}

/* How many sequences from the first on the scratch holds whole, those in between
 * that are left out among them; 0: not even the first. */
static uint32_t
behind_fit(const uint32_t *base, uint32_t n, uint32_t kv_heads, uint32_t room,
           uint32_t *most)
{
    uint32_t at = 0, fit = 0;

    *most = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint64_t rows = (uint64_t) tr_cuda_context_rows(base[i]) * kv_heads;

        if (base[i] == 0) {
            continue;
        }
        if (at + rows > room) {
            break;
        }
        at += (uint32_t) rows;
        fit = i + 1;
        *most = base[i] > *most ? base[i] : *most;
    }
    return fit;
}

/* The sequences of a->rows, for n KV heads at a time. */
static int
behind_heads(const tr_cuda_stream_t *s, prompt_args_t *a,
             const prompt_maps_t *maps, const tr_kv_view_t *kv,
             const tr_cuda_prompt_size_t *size, uint32_t n, uint32_t most)
{
    uint32_t tiles = a->rows.n_rows / ROWS + a->rows.n_seqs;
    bool scored = behind_layouts(kv, a);
    int rc = TR_KERNEL_OK;

    a->n_heads = n;
    prompt_begin((cudaStream_t) s->stream, a, tiles);
    for (uint32_t h = 0; h < kv->kv_heads && rc == TR_KERNEL_OK; h += n) {
        context_job_t job = { .kv = kv,
                              .rows = &a->rows,
                              .layer = a->layer,
                              .first_head = h,
                              .n_heads = kv->kv_heads - h < n ? kv->kv_heads - h
                                                              : n,
                              .most = most,
                              .at = a->context_at,
                              .memory = a->context };

        a->first_head = h;
        a->n_heads = job.n_heads;
        rc = prompt_unpack((cudaStream_t) s->stream, &job);
        if (rc == TR_KERNEL_OK) {
            rc = prompt_passes(s, a, maps, size, tiles, scored);
        }
    }
    return rc;
}

extern "C" int
tr_cuda_prompt_behind(const tr_cuda_stream_t *s, const tr_kv_view_t *kv,
                      uint32_t layer, const tr_rows_t *rows,
                      const uint32_t *base, const tr_cuda_queries_t *queries,
                      const tr_cuda_prompt_size_t *size, void *work)
{
    uint32_t room = size->context, i = 0;
    int rc = TR_KERNEL_OK;
    prompt_maps_t maps;
    prompt_args_t a;

    if (!prompt_allowed(s, kv, layer, rows, queries, size, work)
        || kv->head_dim == 256 || kv->n_layouts > TR_KV_LAYOUTS_MAX
        || kv->reach != NULL) {
        return TR_KERNEL_BADARG;
    }
    if (!prompt_args(s, kv, layer, rows, queries, size, work, &a, &maps)) {
        return TR_KERNEL_BADARG;
    }
    while (i < rows->n_seqs && rc == TR_KERNEL_OK) {
        uint32_t heads = kv->kv_heads, most, n;

        if (base[i] == 0) {
            i++;
            continue;
        }
        n = behind_fit(base + i, rows->n_seqs - i, heads, room, &most);
        if (n == 0) { /* alone, and in parts */
            n = 1;
            most = base[i];
            heads = room / tr_cuda_context_rows(most);
        }
        if (heads == 0) {
            return TR_KERNEL_BADARG;
        }
        a.rows.n_seqs = n;
        a.rows.seq_slot = rows->seq_slot + i;
        a.rows.seq_row = rows->seq_row + i;
        rc = behind_heads(s, &a, &maps, kv, size, heads, most);
        i += n;
    }
    return rc;
}
