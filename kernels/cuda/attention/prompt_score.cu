/*
 * prompt_score.cu: pass 2 of prompt attention, the sums of kernels.h.
 *
 * The columns of softmax(q K) need the rows' sums first, which pass 1 left in
 * `minus`.  A block keeps its keys in registers, as the A operand, and streams
 * the images of all later queries through shared memory: S^T = K q^T.  The
 * largest weight of a query group is the exponential of the largest exponent,
 * so one exponential serves all heads.
 *
 * Lane t of four has 16 consecutive queries of an image's 64 (prompt.cuh).  The
 * sum of a key goes from lane 0 to 3, query by query, so it is the same however
 * the prompt was cut.  It begins with what the page holds.
 *
 * Behind compressed tokens a block's keys may be some that were unpacked
 * (prompt_context.cuh); their sums are in the pages that they were unpacked from.
 * All of the prompt's queries come later than these.
 *
 * Each group of four warps has HALVES times 64 keys; while the logits of one
 * half are worked on, those of the next are multiplied.
 */
#include "prompt.cuh"
#include "prompt_gemm.cuh"

#include <math.h>

#define STAGES 5

template <int D> struct score_smem_t {
    uint32_t image, info, full, empty;

    static const uint32_t IMAGE = HALF * D * 2, INFO = HALF * 8;
    static const uint32_t BYTES = STAGES * (IMAGE + INFO + 16) + 1024;

    __device__ __forceinline__ explicit score_smem_t(const uint8_t *shared)
    {
        image = (smem_address(shared) + 1023) / 1024 * 1024;
        info = image + STAGES * IMAGE;
        full = info + STAGES * INFO;
        empty = full + STAGES * 8;
    }
};

/* What a block does. */
typedef struct {
    uint32_t kv_head, first, keys; /* keys: all of the sequence */
    uint32_t pos, rows;            /* of the step's rows of the sequence */
    uint32_t half, halves;         /* images from the first that matters to the
                                 * one behind the last */
    uint32_t tile;                 /* first of the sequence */
    uint32_t recent_from;
    const int32_t *pages;
    prompt_context_t context; /* BEHIND: in front of all keys of pages; `first`,
                               * `keys`, `pos` count it, too */
    const tr_kv_seq_t *seq;   /* the same, and so is count */
    const uint32_t *count;
    const uint32_t *frozen; /* NULL: none */
} score_job_t;

template <bool ENGINE>
static __device__ __forceinline__ void
fetch_run(uint32_t at, const void *from, uint32_t bytes, uint32_t bar)
{
    const uint8_t *src = (const uint8_t *) from;

    if (ENGINE) {
        copy_bulk(at, src, bytes, bar);
        return;
    }
    for (uint32_t i = threadIdx.x * 16; i < bytes; i += FEED * 16) {
        copy16(at + i, src + i, 16);
    }
}

template <int D, bool ENGINE>
static __device__ __forceinline__ void
score_fetch(const prompt_args_t &a, const score_smem_t<D> &s,
            const score_job_t &job)
{
    typedef score_smem_t<D> smem;
    uint32_t i = 0;

    for (uint32_t half = job.half; half < job.halves; half++) {
        for (uint32_t h = 0; h < a.group; h++, i++) {
            uint32_t n = ring_stage<STAGES>(i), bar = s.full + 8 * n;
            uint32_t head = job.kv_head * a.group + h;
            uint32_t image = 2 * job.tile + half;

            bar_wait(s.empty + 8 * n, ring_phase<STAGES>(i) ^ 1);
            if (ENGINE) {
                bar_expect(bar, smem::IMAGE + smem::INFO);
            }
            fetch_run<ENGINE>(s.image + n * smem::IMAGE,
                              image_at(a, image, head), smem::IMAGE, bar);
            fetch_run<ENGINE>(s.info + n * smem::INFO,
                              image_info(a, image, head), smem::INFO, bar);
            if (!ENGINE) {
                copy_arrive(bar);
            }
        }
    }
}

/* ---- computing ---------------------------------------------------------- */

/* 64 keys: rows g and g + 8 of a lane's warp. */
template <int D> struct score_keys_t {
    uint32_t a[D / 16][4];
    float most[32]; /* exponents, largest of the heads so far */
    float score[2], recent[2];
    uint32_t key[2];
};

/* Where a page has what belongs to a key. */
static __device__ __forceinline__ uint8_t *
key_page(const prompt_args_t &a, const score_job_t &job, uint32_t key,
         uint32_t *place)
{
    uint32_t page = key / a.page_tokens;

    *place = key - page * a.page_tokens;
    return tr_kv_page_at(&a.kv, __ldg(job.pages + page));
}

/* The run that an unpacked token is in: which of them it has, what a page holds,
 * and where that has scores, 0: nowhere, or nobody reads them.  Frozen tokens of a
 * tier are a run of their own. */
typedef struct {
    uint32_t first, end, tokens, score;
    bool window;
    uint32_t tier;
} score_run_t;

static __device__ __forceinline__ score_run_t
score_run(const prompt_args_t &a, const score_job_t &job, uint32_t token)
{
    const tr_kv_seq_t *q = job.seq;
    uint32_t layout = q->window_layout;
    score_run_t r = { 0, job.context.tokens, 0, 0, true, 0 };

    for (uint32_t l = 0, end = 0; l < q->n_tiers && r.window; l++) {
        end += job.count[l];
        if (token < end) {
            layout = q->tier_layout[l];
            r.window = false;
            r.tier = l;
            r.end = end;
        } else {
            r.first = end;
        }
    }
    r.tokens = a.layout_tokens[layout];
    r.score = !r.window && r.tier + q->settled >= q->n_tiers
                  ? 0
                  : a.layout_score[layout];
    if (!r.window && job.frozen != NULL
        && token - r.first < job.frozen[r.tier]) {
        r.end = r.first + job.frozen[r.tier];
        r.score = 0;
    }
    return r;
}

/* The score of an unpacked token; NULL: it has none. */
static __device__ __forceinline__ float *
context_score(const prompt_args_t &a, const score_job_t &job, uint32_t token)
{
    score_run_t r = score_run(a, job, token);
    uint32_t at = token - r.first, page;

    if (r.score == 0) {
        return NULL;
    }
    if (r.window) {
        at = tr_kv_window_entry(job.seq, tr_kv_windowed_position(job.seq, at));
    }
    page = at / r.tokens;
    page = r.window ? a.kv.at_window + page
                    : tr_kv_tier_entry(&a.kv, r.tier, page);
    return (float *) (tr_kv_page_at(&a.kv, __ldg(job.pages + page)) + r.score)
           + at % r.tokens;
}

/* Is any of n tokens from `first` on scored? */
static __device__ __forceinline__ bool
context_scored(const prompt_args_t &a, const score_job_t &job, uint32_t first,
               uint32_t n)
{
    uint32_t end = min(first + n, job.context.tokens);

    while (first < end) {
        score_run_t r = score_run(a, job, first);

        if (r.score != 0) {
            return true;
        }
        first = r.end;
    }
    return false;
}

/* A key that has sums: where they are, and its 16 bits, 16-byte chunk c of which
 * is at step * (c / 8) + (c ^ turn) % 8 * 16. */
typedef struct {
    float *score, *recent; /* NULL: none */
    const uint8_t *row;    /* NULL: nothing to do */
    uint32_t step, turn;
} score_place_t;

template <int D, bool BEHIND>
static __device__ __forceinline__ score_place_t
score_place(const prompt_args_t &a, const score_job_t &job, uint32_t key)
{
    score_place_t p = { NULL, NULL, NULL, 128, 0 };
    uint32_t place, padded = BEHIND ? job.context.padded : 0;
    uint8_t *page;

    if (BEHIND && key < job.context.tokens) {
        p.score = context_score(a, job, key);
        p.row = p.score == NULL
                    ? NULL
                    : job.context.key + key / 8 * (16 * D) + key % 8 * 128;
        p.step = 1024;
        p.turn = key % 8;
        return p;
    }
    if (key >= job.keys || key < padded || a.score == 0) {
        return p;
    }
    page = key_page(a, job, key - padded, &place);
    p.score = (float *) (page + a.score) + place;
    p.recent = a.recent ? (float *) (page + a.recent) + place : NULL;
    p.row = page + place * (2 * D);
    return p;
}

/* Two numbers of a key, and two 8 further on. */
static __device__ __forceinline__ uint32_t
score_pair(const score_place_t &p, uint32_t chunk, uint32_t lane)
{
    uint32_t at = chunk / 8 * p.step + ((chunk ^ p.turn) & 7) * 16;

    return p.row == NULL ? 0 : ((const uint32_t *) (p.row + at))[lane];
}

template <int D, bool BEHIND>
static __device__ __forceinline__ void
score_load(const prompt_args_t &a, const score_job_t &job, uint32_t first,
           score_keys_t<D> &k)
{
    uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;

#pragma unroll
    for (int r = 0; r < 2; r++) {
        uint32_t key = first + 16 * warp + 8 * r + lane / 4;
        score_place_t p = score_place<D, BEHIND>(a, job, key);

        k.key[r] = key;
        k.score[r] = p.score == NULL ? 0 : *p.score;
        k.recent[r] = p.recent == NULL ? 0 : *p.recent;
#pragma unroll
        for (int i = 0; i < D / 16; i++) {
            k.a[i][r] = score_pair(p, 2 * i, lane % 4);
            k.a[i][2 + r] = score_pair(p, 2 * i + 1, lane % 4);
        }
    }
}

/* One head's products raise the exponents. */
template <int D>
static __device__ __forceinline__ void
score_raise(score_keys_t<D> &k, const float (&c)[32], uint32_t info, bool begin)
{
    if (begin) {
#pragma unroll
        for (int i = 0; i < 32; i++) {
            k.most[i] = -INFINITY;
        }
    }
#pragma unroll
    for (int j = 0; j < 8; j++) {
        /* factor, minus of columns 8j + 2t and the next */
        float4 f = load_float4(info + j * 64 + threadIdx.x % 4 * 16);

#pragma unroll
        for (int r = 0; r < 2; r++) {
            int i = 4 * j + 2 * r;

            k.most[i] = fmaxf(k.most[i], __fmaf_rn(c[i], f.x, f.y));
            k.most[i + 1] = fmaxf(k.most[i + 1], __fmaf_rn(c[i + 1], f.z, f.w));
        }
    }
}

/* Adds the weights of 64 queries to the sums of both rows, in order, those from
 * position `from` on; pos: of the lane's first, its 16 are consecutive. */
template <int D>
static __device__ __forceinline__ void
score_chain(const score_keys_t<D> &k, float (&sum)[2], uint32_t pos,
            uint32_t from)
{
    uint32_t lane = threadIdx.x % 32;
    float a = sum[0], b = sum[1];

#pragma unroll
    for (uint32_t t = 0; t < 4; t++) {
#pragma unroll
        for (uint32_t i = 0; i < 16; i++) {
            bool counts = pos + i >= from;

            a += counts ? k.most[i / 2 * 4 + i % 2] : 0;
            b += counts ? k.most[i / 2 * 4 + 2 + i % 2] : 0;
        }
        a = __shfl_sync(TR_ALL_LANES, a, (lane & ~3u) + t);
        b = __shfl_sync(TR_ALL_LANES, b, (lane & ~3u) + t);
    }
    sum[0] = a;
    sum[1] = b;
}

/* The exponents of 64 queries, from position `pos` on, enter the sums. */
template <int D>
static __device__ __forceinline__ void
score_add(score_keys_t<D> &k, uint32_t pos, uint32_t recent_from,
          uint32_t first, bool has_recent)
{
    uint32_t mine = pos + threadIdx.x % 4 * 16;

#pragma unroll
    for (int i = 0; i < 32; i++) {
        k.most[i] = exp2_fast(fminf(k.most[i], 0));
    }
    if (pos <= first + HALF - 1) { /* only queries behind the key count */
#pragma unroll
        for (int i = 0; i < 32; i++) {
            uint32_t query = mine + i / 4 * 2 + i % 2;

            k.most[i] = query > k.key[i / 2 % 2] ? k.most[i] : 0;
        }
    }
    score_chain(k, k.score, mine, 0);
    if (has_recent && pos + HALF > recent_from) {
        score_chain(k, k.recent, mine, recent_from);
    }
}

template <int D, bool BEHIND>
static __device__ __forceinline__ void
score_store(const prompt_args_t &a, const score_job_t &job,
            const score_keys_t<D> &k)
{
    if (threadIdx.x % 4 != 0) {
        return;
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        score_place_t p = score_place<D, BEHIND>(a, job, k.key[r]);

        if (p.score != NULL) {
            *p.score = k.score[r];
        }
        if (p.recent != NULL) {
            *p.recent = k.recent[r];
        }
    }
}

template <int D, class E, int HALVES, bool BEHIND>
static __device__ __forceinline__ void
score_compute(const prompt_args_t &a, const score_smem_t<D> &s,
              const score_job_t &job)
{
    typedef score_smem_t<D> smem;
    uint32_t group = threadIdx.x / GROUP - 1;
    uint32_t first = job.first + group * (HALVES * HALF);
    uint32_t n_images = (job.halves - job.half) * a.group;
    uint32_t head = 0, pos = job.pos + job.half * HALF;
    score_keys_t<D> k[HALVES];
    float c[HALVES][32];

#pragma unroll
    for (int x = 0; x < HALVES; x++) {
        score_load<D, BEHIND>(a, job, first + x * HALF, k[x]);
    }
    for (uint32_t i = 0; i < n_images; i++) {
        uint32_t n = ring_stage<STAGES>(i), info = s.info + n * smem::INFO;
        bool last = head + 1 == a.group;

        bar_wait(s.full + 8 * n, ring_phase<STAGES>(i));
        E::begin();
#pragma unroll
        for (int x = 0; x < HALVES; x++) {
            E::template columns<D>(c[x], k[x].a, s.image + n * smem::IMAGE);
            E::end();
        }
#pragma unroll
        for (int x = 0; x < HALVES; x++) {
            if (x + 1 < HALVES) {
                E::template wait<1>();
            } else {
                E::template wait<0>();
            }
            wgmma_touch(c[x]);
            score_raise(k[x], c[x], info, head == 0);
            if (last) {
                score_add(k[x], pos, job.recent_from, first + x * HALF,
                          a.recent != 0);
            }
        }
        ring_release(s.empty + 8 * n);
        head = last ? 0 : head + 1;
        pos += last ? HALF : 0;
    }
#pragma unroll
    for (int x = 0; x < HALVES; x++) {
        score_store<D, BEHIND>(a, job, k[x]);
    }
}

/* What is in front of the pages' keys; false: the block's have no sums. */
static __device__ __forceinline__ bool
score_behind(const prompt_args_t &a, uint32_t seq, uint32_t keys,
             score_job_t &job)
{
    int32_t slot = a.rows.seq_slot[seq];
    uint32_t from;
    size_t head;

    job.context = prompt_context(a, seq, job.kv_head);
    job.seq = a.kv.seq + slot;
    head = tr_kv_head(&a.kv, slot, a.layer, job.kv_head);
    job.count = a.kv.count + head * TR_KV_TIERS_MAX;
    job.frozen = tr_kv_frozen(&a.kv, job.seq, head);
    from = job.recent_from - min(job.recent_from, job.seq->base);
    job.recent_from = from > UINT32_MAX - job.context.padded
                          ? UINT32_MAX
                          : from + job.context.padded;
    job.pos = prompt_behind(a, job.context, seq, job.pos);
    return (job.first + keys > job.context.padded && a.score != 0)
           || context_scored(a, job, job.first, keys);
}

/* False: nothing to do. */
template <bool BEHIND>
static __device__ __forceinline__ bool
score_job(const prompt_args_t &a, uint32_t keys, score_job_t &job)
{
    uint32_t block = blockIdx.x / a.n_heads; /* y ends at 65,535 */
    uint32_t seq = block % a.rows.n_seqs;
    const tr_kv_seq_t *state;
    uint32_t row;

    job.kv_head = a.first_head + blockIdx.x % a.n_heads;
    job.first = block / a.rows.n_seqs * keys;
    job.tile = a.seq_tile[seq];
    if (job.tile == ~0u) {
        return false;
    }
    state = tr_kv_seq_of(&a.kv, a.rows.seq_slot[seq], a.layer);
    row = a.rows.seq_row[seq];
    job.rows = a.rows.seq_row[seq + 1] - row;
    job.pos = a.rows.row_pos[row];
    job.recent_from = state->recent_from;
    job.pages = tr_kv_table(&a.kv, a.rows.seq_slot[seq], a.layer, job.kv_head);
    if (!state->scored || (BEHIND && !score_behind(a, seq, keys, job))) {
        return false;
    }
    job.keys = job.pos + job.rows;
    if (job.first + 1 >= job.keys) {
        return false;
    }
    job.half = job.first + 1 > job.pos ? (job.first + 1 - job.pos) / HALF : 0;
    job.halves = (job.rows + HALF - 1) / HALF;
    return true;
}

template <int D, class E, bool ENGINE, int HALVES, bool BEHIND>
static __global__ void __launch_bounds__(THREADS, 1)
    score_kernel(const __grid_constant__ prompt_args_t a)
{
    extern __shared__ __align__(1024) uint8_t shared[];
    score_smem_t<D> smem(shared);
    score_job_t job;

    if ((E::GROUPS && !TR_WGMMA)
        || !score_job<BEHIND>(a, 2 * HALVES * HALF, job)) {
        return;
    }
    if (threadIdx.x == 0) {
        for (int n = 0; n < STAGES; n++) {
            bar_init(smem.full + 8 * n, ENGINE ? 1 : FEED);
            bar_init(smem.empty + 8 * n, RELEASES);
        }
        fence_init();
    }
    __syncthreads();
    if (threadIdx.x < FEED) {
        registers_less<40>();
        if (!ENGINE || threadIdx.x == 0) {
            score_fetch<D, ENGINE>(a, smem, job);
        }
    } else {
        registers_more<232>();
        score_compute<D, E, HALVES, BEHIND>(a, smem, job);
    }
}

/* ---- launcher ----------------------------------------------------------- */

template <int D, class E, bool ENGINE, int HALVES>
static int
launch(cudaStream_t stream, const prompt_args_t *a, uint32_t max_len)
{
    auto kernel = a->context == NULL ? score_kernel<D, E, ENGINE, HALVES, false>
                                     : score_kernel<D, E, ENGINE, HALVES, true>;
    uint32_t keys = 2 * HALVES * HALF, bytes = score_smem_t<D>::BYTES;
    uint32_t blocks = (max_len + keys - 1) / keys * a->rows.n_seqs;

    cudaFuncSetAttribute((const void *) kernel,
                         cudaFuncAttributeMaxDynamicSharedMemorySize,
                         (int) bytes);
    kernel<<<a->n_heads * blocks, THREADS, bytes, stream>>>(*a);
    return tr_cuda_check();
}

template <int D>
static int
choose(cudaStream_t stream, const prompt_args_t *a, tr_prompt_path_t path,
       uint32_t max_len, uint32_t processors)
{
    /* fewer keys a block when there would not be work for all */
    uint32_t pairs = (max_len + 4 * HALF - 1) / (4 * HALF) * a->n_heads
                     * a->rows.n_seqs;

    if (path == TR_PROMPT_ALTERNATING && 2 * pairs < 3 * processors) {
        path = TR_PROMPT_GROUPS;
    }
    switch (path) {
    case TR_PROMPT_BOXES:
        return launch<D, warps_t, true, 1>(stream, a, max_len);
    case TR_PROMPT_GROUPS:
        return launch<D, groups_t, true, 1>(stream, a, max_len);
    case TR_PROMPT_ALTERNATING:
        return launch<D, groups_t, true, 2>(stream, a, max_len);
    default:
        return launch<D, warps_t, false, 1>(stream, a, max_len);
    }
}

int
prompt_score(cudaStream_t stream, const prompt_args_t *a, tr_prompt_path_t path,
             uint32_t max_len, uint32_t processors)
{
    return a->dim == 128 ? choose<128>(stream, a, path, max_len, processors)
                         : choose<64>(stream, a, path, max_len, processors);
}
