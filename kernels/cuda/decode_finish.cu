/*
 * The end of decode attention: what is only known when all parts of a head are.
 *
 * A list of jobs, made by the plan, is worked off by blocks of this kernel:
 *
 *   join    the outputs of a head's parts, for some of its query heads
 *   score   raises the scores of up to JOB_TILES tiles of a segment by the
 *           largest probability of the group, and finds the least significant
 *           token of them; the last job of a list chooses among the jobs' finds
 *
 * The kernel starts while the attend kernel still runs, where the device can do
 * that: scores and positions, which that one leaves alone, are asked for before
 * it waits.
 */
#include "decode.cuh"
#include "ptx.cuh"

#include <cuda_runtime.h>

#define THREADS 256u
#define JOB_WARPS (THREADS / 32)
#define ITEMS (JOB_TILES * 8 / THREADS) /* pairs of tokens that a thread has */

/* What a job needs to know of its head. */
typedef struct {
    decode_head_t h;
    decode_job_t job;
    float max[GROUP], inverse[GROUP]; /* of the head: 1 / sum */
    decode_victim_t least[JOB_WARPS];
    uint32_t last_one;
    float out[JOB_WARPS][128];
} shared_t;

static __device__ __forceinline__ bool
worse(const decode_victim_t &a, const decode_victim_t &b)
{
    return a.significance < b.significance
           || (a.significance == b.significance && a.position < b.position);
}

static __device__ __forceinline__ decode_victim_t
no_victim(void)
{
    decode_victim_t v = { __int_as_float(0x7f800000), 0xffffffffu, 0, 0 };

    return v;
}

static __device__ __forceinline__ decode_victim_t
least_of_warp(decode_victim_t v)
{
#pragma unroll
    for (int d = 16; d > 0; d /= 2) {
        decode_victim_t o;

        o.significance = __shfl_xor_sync(TR_ALL_LANES, v.significance, d);
        o.position = __shfl_xor_sync(TR_ALL_LANES, v.position, d);
        o.index = __shfl_xor_sync(TR_ALL_LANES, v.index, d);
        o.pad = 0;
        v = worse(o, v) ? o : v;
    }
    return v;
}

/* {max, sum} of all parts of query head k; one warp, all lanes have it. */
static __device__ __forceinline__ float2
join_sums(const decode_args_t &a, uint2 span, uint32_t head, uint32_t k)
{
    float m = -1e30f, sum = 0;

    for (uint32_t b = span.x + threadIdx.x % 32; b <= span.y; b += 32) {
        float2 x = a.work.part_sum[(size_t) (b + head) * GROUP + k];
        float most = fmaxf(m, x.x);

        sum = sum * exp2_fast(m - most) + x.y * exp2_fast(x.x - most);
        m = most;
    }
#pragma unroll
    for (int d = 16; d > 0; d /= 2) {
        float m1 = __shfl_xor_sync(TR_ALL_LANES, m, d);
        float s1 = __shfl_xor_sync(TR_ALL_LANES, sum, d);
        float most = fmaxf(m, m1);

        sum = sum * exp2_fast(m - most) + s1 * exp2_fast(m1 - most);
        m = most;
    }
    return make_float2(m, sum);
}

/* ---- join --------------------------------------------------------------- */

static __device__ __forceinline__ void
store_out(const decode_args_t &a, size_t at, float x)
{
    if (a.out_type == TR_F32) {
        ((float *) a.out)[at] = x;
    } else if (a.out_type == TR_F16) {
        ((__half *) a.out)[at] = __float2half_rn(x);
    } else {
        uint32_t u = __float_as_uint(x);

        u += 0x7fff + (u >> 16 & 1); /* to nearest even */
        ((uint16_t *) a.out)[at] = (uint16_t) (u >> 16);
    }
}

/* Query heads [tile, tile + first) of the job: some warps each, which take the
 * parts in turn. */
template <int D>
static __device__ __forceinline__ void
join(const decode_args_t &a, shared_t *sh)
{
    constexpr int N = D / 32; /* elements of a lane */
    const decode_job_t &job = sh->job;
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const uint32_t ways = JOB_WARPS / job.first, k = job.tile + warp / ways;
    const uint2 span = a.work.span[job.head];

    if (warp < ways * job.first) {
        float2 total = join_sums(a, span, job.head, k);
        float x[N] = {};

#pragma unroll 8
        for (uint32_t b = span.x + warp % ways; b <= span.y; b += ways) {
            size_t place = (size_t) b + job.head;
            float by = exp2_fast(a.work.part_sum[place * GROUP + k].x
                                 - total.x);
            const float *from = a.work.part_out + (place * a.group + k) * D
                                + lane * N;

            if (D == 128) {
                float4 y = *(const float4 *) from;

                x[0] += y.x * by;
                x[1] += y.y * by;
                x[N - 2] += y.z * by;
                x[N - 1] += y.w * by;
            } else {
                float2 y = *(const float2 *) from;

                x[0] += y.x * by;
                x[1] += y.y * by;
            }
        }
#pragma unroll
        for (int i = 0; i < N; i++) {
            sh->out[warp][lane * N + i] = x[i] / total.y;
        }
    }
    __syncthreads();
    uint32_t list = sh->h.head % a.kv.lists;

    for (uint32_t e = threadIdx.x; e < job.first * D; e += THREADS) {
        uint32_t q = e / D, d = e % D;
        float y = 0;

        for (uint32_t w = 0; w < ways; w++) {
            y += sh->out[q * ways + w][d];
        }
        store_out(a,
                  (size_t) sh->h.row * a.ldo
                      + (size_t) (list * a.group + job.tile + q) * D + d,
                  y);
    }
    /* lists that no job scores */
    uint32_t l = threadIdx.x;

    if (job.tile == 0 && l < sh->h.n_lists && (sh->h.flags & HEAD_SCORED)
        && (sh->h.tokens[l] == 0 || !a.layouts.of[sh->h.layout[l]].scored)) {
        tr_kv_victim_t *to = a.kv.victim
                             + (size_t) sh->h.head * TR_KV_LISTS_MAX + l;

        to->significance = __int_as_float(0x7f800000);
        to->index = 0;
    }
}

/* ---- score -------------------------------------------------------------- */

/* Two tokens, g and g + 8 of a tile (a dense tile has no second one). */
typedef struct {
    float *score;
    uint32_t index; /* of the first, in the segment */
    uint32_t exist; /* bits 0, 1 */
    uint32_t position[2];
    float old[2];
} pair_t;

static __device__ __forceinline__ void
ask(const decode_args_t &a, const shared_t *sh, uint32_t i, pair_t *x)
{
    const decode_head_t &h = sh->h;
    const uint32_t segment = sh->job.segment, g = i % 8;
    const decode_layout_t &l = a.layouts.of[h.layout[segment]];
    uint32_t tile = sh->job.tile + i / 8, page = tile / l.tiles;
    uint32_t token = tile * l.tile + g, tokens = h.tokens[segment];
    int id;

    x->exist = (token < tokens ? 1 : 0)
               | (l.tile == 16 && token + 8 < tokens ? 2 : 0);
    if (x->exist == 0) {
        return;
    }
    id = __ldg(a.kv.tables + (size_t) h.head * a.kv.table_len
               + decode_entry(a.kv, segment, page));
    uint8_t *at = a.kv.pool + (uint64_t) max(id, 0) * a.kv.page_bytes
                  + ((tile - page * l.tiles) * l.tile + g) * 4;

    x->index = token;
    x->score = (float *) (at + l.score);
#pragma unroll
    for (uint32_t r = 0; r < 2; r++) {
        if (segment == SEG_WINDOW) {
            x->position[r] = decode_window_position(h.base, h.window,
                                                    token + 8 * r);
            if (x->position[r] < h.window_from) {
                x->exist &= ~(1u << r);
            }
        } else if (segment == SEG_DENSE) {
            x->position[r] = h.base + token + 8 * r;
        } else if (x->exist >> r & 1) {
            x->position[r] = __ldg((const uint32_t *) (at + l.position)
                                   + 8 * r);
        }
        if (x->exist >> r & 1) {
            x->old[r] = x->score[8 * r];
        }
    }
}

/* The largest probability of both tokens of pair g of a tile of the layer. */
template <int Q>
static __device__ __forceinline__ float2
gain(const decode_args_t &a, const shared_t *sh, size_t tile, uint32_t g)
{
    float2 most = make_float2(0, 0);

#pragma unroll
    for (int q = 0; q < Q; q++) {
        uint4 w = *(const uint4 *) (a.work.weights + (tile * Q + q) * 32
                                    + g * 4);
        float4 m = *(const float4 *) (a.work.maxima + (tile * Q + q) * QUAD);

#pragma unroll
        for (uint32_t t = 0; t < QUAD; t++) {
            uint32_t k = q * QUAD + t;
            float2 p = half2_floats(t == 0 ? w.x : t == 1 ? w.y : t == 2 ? w.z
                                                                         : w.w);
            float max = t == 0 ? m.x : t == 1 ? m.y : t == 2 ? m.z : m.w;

            if (k < a.group) {
                float by = exp2_fast(max - sh->max[k]) * sh->inverse[k];

                most.x = fmaxf(most.x, p.x * by);
                most.y = fmaxf(most.y, p.y * by);
            }
        }
    }
    return most;
}

/* Raises one token's score. */
static __device__ __forceinline__ void
pay(const decode_args_t &a, const shared_t *sh, const pair_t &x, uint32_t r,
    float p, decode_victim_t &least)
{
    const decode_head_t &h = sh->h;
    const uint32_t segment = sh->job.segment;
    bool later = x.position[r] < h.n;
    float score = x.old[r] + (later ? p : 0);
    decode_victim_t v = { score, x.position[r], x.index + 8 * r, 0 };

    x.score[8 * r] = score;
    if (segment == SEG_DENSE && (h.flags & HEAD_RECENT) && later) {
        const decode_layout_t &l = a.layouts.of[h.layout[SEG_DENSE]];

        x.score[8 * r + (l.recent - l.score) / 4] += p;
    }
    if (segment < SEG_WINDOW) {
        if (!(h.flags & HEAD_BY_SUM)) {
            v.significance = later ? __fdiv_rn(score,
                                               (float) (h.n - x.position[r]))
                                   : 0;
        }
        least = worse(v, least) ? v : least;
    }
}

/* The job's find; the last job of the list chooses among all. */
static __device__ __forceinline__ void
report(const decode_args_t &a, shared_t *sh, decode_victim_t least)
{
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const decode_job_t &job = sh->job;
    uint32_t tiles, jobs, before = 0;

    least = least_of_warp(least);
    if (lane == 0) {
        sh->least[warp] = least;
    }
    __syncthreads();
    if (warp > 0) {
        return;
    }
    least = least_of_warp(lane < JOB_WARPS ? sh->least[lane] : no_victim());
    tiles = decode_tiles(&a.layouts.of[sh->h.layout[job.segment]],
                         sh->h.tokens[job.segment]);
    jobs = (tiles + JOB_TILES - 1) / JOB_TILES;
    if (jobs > 1) {
        uint32_t *arrived = a.work.arrived + job.head * TR_KV_LISTS_MAX
                            + job.segment;

        if (lane == 0) {
            __stcg((uint4 *) a.work.victim + job.first + job.tile / JOB_TILES,
                   make_uint4(__float_as_uint(least.significance),
                              least.position, least.index, 0));
            __threadfence();
            before = atomicAdd(arrived, 1u);
            __threadfence();
        }
        if (__shfl_sync(TR_ALL_LANES, before, 0) + 1 != jobs) {
            return;
        }
        least = no_victim();
        for (uint32_t i = lane; i < jobs; i += 32) {
            uint4 u = __ldcg((const uint4 *) a.work.victim + job.first + i);
            decode_victim_t o = { __uint_as_float(u.x), u.y, u.z, 0 };

            least = worse(o, least) ? o : least;
        }
        least = least_of_warp(least);
        if (lane == 0) { /* for the next launch with this plan */
            *arrived = 0;
        }
    }
    if (lane == 0) {
        tr_kv_victim_t *to = a.kv.victim
                             + (size_t) sh->h.head * TR_KV_LISTS_MAX
                             + job.segment;

        to->significance = least.significance;
        to->index = least.index;
    }
}

/* Tiles of the segments before. */
static __device__ __forceinline__ size_t
first_tile(const decode_args_t &a, const shared_t *sh)
{
    size_t n = sh->h.tiles_before + sh->job.tile;

    for (uint32_t s = 0; s < sh->job.segment; s++) {
        n += decode_tiles(&a.layouts.of[sh->h.layout[s]], sh->h.tokens[s]);
    }
    return n;
}

template <int Q>
static __device__ __forceinline__ void
score(const decode_args_t &a, shared_t *sh, bool &waited)
{
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    decode_victim_t least = no_victim();
    pair_t x[ITEMS];
    size_t tile = first_tile(a, sh);

#pragma unroll
    for (uint32_t i = 0; i < ITEMS; i++) {
        ask(a, sh, i * THREADS + threadIdx.x, &x[i]);
    }
    if (!waited) {
        launch_wait();
        waited = true;
    }
    for (uint32_t k = warp; k < a.group; k += JOB_WARPS) {
        float2 total = join_sums(a, a.work.span[sh->job.head], sh->job.head, k);

        if (lane == 0) {
            sh->max[k] = total.x;
            sh->inverse[k] = 1 / total.y;
        }
    }
    __syncthreads();
#pragma unroll
    for (uint32_t i = 0; i < ITEMS; i++) {
        uint32_t at = i * THREADS + threadIdx.x;

        if (x[i].exist != 0) {
            float2 p = gain<Q>(a, sh, tile + at / 8, at % 8);

            if (x[i].exist & 1) {
                pay(a, sh, x[i], 0, p.x, least);
            }
            if (x[i].exist & 2) {
                pay(a, sh, x[i], 1, p.y, least);
            }
        }
    }
    if (sh->job.segment < SEG_WINDOW) {
        report(a, sh, least);
    }
}

template <int D, int Q>
static __global__ void
__launch_bounds__(THREADS, 3)
    finish_kernel(const __grid_constant__ decode_args_t a)
{
    __shared__ shared_t sh;
    const uint32_t jobs = a.work.layer->jobs;
    bool waited = false;

    for (uint32_t j = blockIdx.x; j < jobs; j += gridDim.x) {
        __syncthreads();
        if (threadIdx.x == 0) {
            sh.job = a.work.job[j];
        }
        __syncthreads();
        if (threadIdx.x < sizeof(decode_head_t) / 4) {
            ((uint32_t *) &sh.h)[threadIdx.x]
                = ((const uint32_t *) (a.work.head
                                       + sh.job.head))[threadIdx.x];
        }
        __syncthreads();
        if (sh.job.segment == JOB_JOIN) {
            if (!waited) {
                launch_wait();
                waited = true;
            }
            join<D>(a, &sh);
        } else {
            score<Q>(a, &sh, waited);
        }
    }
    if (!waited) {
        launch_wait();
    }
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        a.work.layer->next = 0; /* for the next launch with this plan */
    }
}

/* ---- launcher ----------------------------------------------------------- */

int
decode_finish(const tr_cuda_stream_t *s, const decode_args_t *a,
              const tr_cuda_decode_size_t *size)
{
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute early = {};
    uint32_t most = s->device->blocks
                    * (4 + 2 * (s->device->tune >> 10 & 3));

    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    config.gridDim = dim3(a->work.max_jobs < most ? a->work.max_jobs : most);
    config.blockDim = dim3(THREADS);
    config.stream = (cudaStream_t) s->stream;
    config.attrs = &early;
    config.numAttrs = s->device->dependent && !(s->device->tune & 512) ? 1 : 0;
    if (size->head_dim == 128) {
        cudaLaunchKernelEx(&config,
                           a->group <= QUAD ? finish_kernel<128, 1>
                                            : finish_kernel<128, 2>,
                           *a);
    } else {
        cudaLaunchKernelEx(&config,
                           a->group <= QUAD ? finish_kernel<64, 1>
                                            : finish_kernel<64, 2>,
                           *a);
    }
    return tr_cuda_check();
}
