/*
 * prompt_attend.cu: pass 1 of prompt attention, softmax(q K) V.
 *
 * A block has a tile of 128 rows of one query head.  Four warps fetch the tiles
 * of N keys and values that these rows see, in ascending order; two groups of
 * four warps have 64 rows each and keep the running maximum and sum of a row
 * (FlashAttention).  While the weights of one tile are multiplied with its
 * values, the logits of the next one are computed (FlashAttention 3).
 *
 * Key tiles begin at multiples of N from position 0 and every row goes through
 * them in the same order, so a row's bits do not depend on its chunk.
 *
 * What is compressed comes first, unpacked (prompt_context.cuh), in tiles of its
 * own: the tokens of the prompt's pages stand behind it, as if positions began
 * there.
 */
#include "prompt_fetch.cuh"

#include <cuda_bf16.h>
#include <math.h>
#include <type_traits>

#define TURN 4 /* named barriers TURN, TURN + 1: a group may multiply */

/* What may be in front of a query's own tokens: PLAIN: uncompressed tokens, all
 * of which it sees; SLIDES: the last of them, and sinks; BEHIND: compressed
 * ones, and sinks. */
typedef enum { PLAIN, SLIDES, BEHIND } kind_t;

/* ---- computing ---------------------------------------------------------- */

/* What a lane keeps of its rows g and g + 8. */
typedef struct {
    float max[2]; /* of products */
    float sum[2]; /* of weights, the lane's columns */
    float factor[2];
    uint32_t last[2]; /* position of the last key seen */
} attend_rows_t;

/* Below any product: a row may see nothing of its first tiles, and then what is
 * masked is less than its maximum. */
#define NOTHING_SEEN (-0x1p40f)

/* Keys that a row does not see are masked.  SLIDES: it sees `reach` of them;
 * BEHIND: there are none between the context and what follows it. */
template <int N, kind_t KIND>
static __device__ __forceinline__ void
attend_mask(float (&s)[N / 2], const attend_rows_t &rows, uint32_t first,
            uint32_t reach, const prompt_context_t &c)
{
    first += threadIdx.x % 4 * 2;
#pragma unroll
    for (int i = 0; i < N / 2; i++) {
        uint32_t key = first + i / 4 * 8 + i % 2;
        uint32_t last = rows.last[i / 2 % 2];

        s[i] = key > last || (KIND == SLIDES && key + reach <= last)
                       || (KIND == BEHIND && key >= c.tokens && key < c.padded)
                   ? -INFINITY
                   : s[i];
    }
}

/* Products become weights relative to a reference. */
template <int N>
static __device__ __forceinline__ void
attend_exponents(float (&s)[N / 2], const attend_rows_t &rows,
                 const float (&reference)[2], bool far)
{
    if (__any_sync(TR_ALL_LANES, far)) {
        /* the reference's own rounding could make a weight overflow */
#pragma unroll
        for (int i = 0; i < N / 2; i++) {
            int r = i / 2 % 2;
            float x = __fmaf_rn(s[i], rows.factor[r], -reference[r]);
            float most = fabsf(reference[r]) > 0x1p20f ? 0 : INFINITY;

            s[i] = exp2_fast(fminf(x, most));
        }
    } else {
#pragma unroll
        for (int i = 0; i < N / 2; i++) {
            int r = i / 2 % 2;

            s[i] = exp2_fast(__fmaf_rn(s[i], rows.factor[r], -reference[r]));
        }
    }
}

/* Products become weights relative to the rows' maxima; `fall` is what these
 * went down to relative to the new ones. */
template <int N, kind_t KIND>
static __device__ __forceinline__ void
attend_weigh(float (&s)[N / 2], attend_rows_t &rows, float (&fall)[2],
             bool masked, uint32_t first, uint32_t reach,
             const prompt_context_t &c)
{
    float reference[2];
    bool far = false;

    if (masked) {
        attend_mask<N, KIND>(s, rows, first, reach, c);
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float m = rows.max[r];

#pragma unroll
        for (int j = 0; j < N / 8; j++) {
            m = fmaxf(m, fmaxf(s[4 * j + 2 * r], s[4 * j + 2 * r + 1]));
        }
        m = fmaxf(m, __shfl_xor_sync(TR_ALL_LANES, m, 1));
        m = fmaxf(m, __shfl_xor_sync(TR_ALL_LANES, m, 2));
        /* rounded alike each time: when the maximum stays, fall is 1 */
        reference[r] = __fmul_rn(m, rows.factor[r]);
        fall[r] = exp2_fast(__fmul_rn(rows.max[r], rows.factor[r])
                            - reference[r]);
        rows.max[r] = m;
        rows.sum[r] *= fall[r];
        far |= fabsf(reference[r]) > 0x1p20f;
    }
    attend_exponents<N>(s, rows, reference, far);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float sum = 0, other = 0;

#pragma unroll
        for (int j = 0; j < N / 8; j++) {
            sum += s[4 * j + 2 * r];
            other += s[4 * j + 2 * r + 1];
        }
        rows.sum[r] += sum + other;
    }
}

/* Weights as the A operand of products with values. */
template <int N>
static __device__ __forceinline__ void
attend_pack(uint32_t (&p)[N / 16][4], const float (&s)[N / 2])
{
#pragma unroll
    for (int k = 0; k < N / 16; k++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            p[k][i] = half2_bits(s[8 * k + 2 * i], s[8 * k + 2 * i + 1]);
        }
    }
}

/* Values behind the last key are not anyone's, and may be NaN: the copy engine
 * brings them, or leaves what was there before. */
template <int D, int N>
static __device__ __forceinline__ void
attend_clear(uint32_t at, uint32_t rows)
{
    uint32_t chunks = (N - rows) * (D / 8);

    for (uint32_t i = threadIdx.x - FEED; i < chunks; i += 2 * GROUP) {
        zero16(tile_at<D>(at, rows + i / (D / 8), i % (D / 8)));
    }
    fence_async();
    bar_named(3, 2 * GROUP);
}

template <int D, typename T>
static __device__ __forceinline__ void
store_two(void *out, size_t at, float x, float y)
{
    T *to = (T *) out + at;

    if (sizeof(T) == 4) {
        *(float2 *) to = make_float2(x, y);
    } else if (std::is_same<T, __half>::value) {
        *(uint32_t *) to = half2_bits(x, y);
    } else {
        __nv_bfloat162 b = __floats2bfloat162_rn(x, y);

        *(uint32_t *) to = *(uint32_t *) &b;
    }
}

/* What a query head's sink adds to the sum of a row's weights. */
static __device__ __forceinline__ float
attend_sink(const prompt_args_t &a, uint32_t head, const attend_rows_t &rows,
            int r)
{
    const float *sinks = a.kv.sinks == NULL ? NULL : a.kv.sinks[a.layer];

    return sinks == NULL ? 0
                         : exp2_fast(sinks[head] * 1.44269504f
                                     - rows.max[r] * rows.factor[r]);
}

template <int D, kind_t KIND>
static __device__ __forceinline__ void
attend_store(const prompt_args_t &a, const prompt_tile_t &t, uint32_t half,
             uint32_t head, const float (&o)[D / 2], const attend_rows_t &rows)
{
    uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    uint32_t group = threadIdx.x / GROUP - 1;

#pragma unroll
    for (int r = 0; r < 2; r++) {
        uint32_t place = 16 * warp + 8 * r + lane / 4;
        uint32_t row = group * HALF + image_query(place);
        float sum = rows.sum[r], part;
        size_t at;

        sum += __shfl_xor_sync(TR_ALL_LANES, sum, 1);
        sum += __shfl_xor_sync(TR_ALL_LANES, sum, 2);
        if (KIND != PLAIN) {
            sum += attend_sink(a, head, rows, r);
        }
        if (row >= t.rows) {
            continue;
        }
        if (lane % 4 == 0) {
            image_info(a, half + group, head)[place].minus = -(
                rows.max[r] * rows.factor[r] + log2f(sum));
        }
        part = 1.0f / sum;
        at = (size_t) (t.row + row) * a.queries.ldo + head * D + lane % 4 * 2;
#pragma unroll
        for (int j = 0; j < D / 8; j++) {
            float x = o[4 * j + 2 * r] * part, y = o[4 * j + 2 * r + 1] * part;

            if (a.queries.out_type == TR_F32) {
                store_two<D, float>(a.queries.out, at + 8 * j, x, y);
            } else if (a.queries.out_type == TR_F16) {
                store_two<D, __half>(a.queries.out, at + 8 * j, x, y);
            } else {
                store_two<D, __nv_bfloat16>(a.queries.out, at + 8 * j, x, y);
            }
        }
    }
}

template <kind_t KIND>
static __device__ __forceinline__ attend_rows_t
attend_rows(const prompt_args_t &a, const prompt_tile_t &t, uint32_t half,
            uint32_t head)
{
    uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    uint32_t group = threadIdx.x / GROUP - 1;
    attend_rows_t rows;

#pragma unroll
    for (int r = 0; r < 2; r++) {
        uint32_t place = 16 * warp + 8 * r + lane / 4;
        uint32_t row = group * HALF + image_query(place);

        rows.max[r] = KIND == SLIDES ? NOTHING_SEEN : -INFINITY;
        rows.sum[r] = 0;
        rows.factor[r] = image_info(a, half + group, head)[place].factor;
        rows.last[r] = t.pos + (row < t.rows ? row : t.rows - 1);
    }
    return rows;
}

/* One group's turn to multiply: the other one computes exponentials then. */
template <bool ALTERNATE>
static __device__ __forceinline__ void
turn_wait(uint32_t group)
{
    if (ALTERNATE) {
        bar_named(TURN + group, 2 * GROUP);
    }
}

template <bool ALTERNATE>
static __device__ __forceinline__ void
turn_pass(uint32_t group)
{
    if (ALTERNATE) {
        bar_named_arrive(TURN + (group ^ 1), 2 * GROUP);
    }
}

/* Do rows from `lowest` on see a part only of the N keys from `first` on? */
template <int N, kind_t KIND>
static __device__ __forceinline__ bool
attend_masked(uint32_t first, uint32_t lowest, uint32_t reach,
              const prompt_context_t &c)
{
    return first + N - 1 > lowest
           || (KIND == SLIDES && first + reach < lowest + HALF)
           || (KIND == BEHIND && first < c.padded && first + N > c.tokens);
}

/* Products are begun; what they are in must not be read before they end. */
template <int D, int N, class E>
static __device__ __forceinline__ void
attend_logits(float (&s)[N / 2], uint32_t q, uint32_t keys)
{
    E::begin();
    E::template logits<D, N>(s, q, keys);
    E::end();
}

template <int D, int N, class E>
static __device__ __forceinline__ void
attend_values(float (&o)[D / 2], const uint32_t (&p)[N / 16][4],
              uint32_t values)
{
    E::begin();
    E::template values<D, N>(o, p, values);
    E::end();
}

/* What was added relative to lower maxima. */
template <int D>
static __device__ __forceinline__ void
attend_fall(float (&o)[D / 2], const float (&fall)[2])
{
#pragma unroll
    for (int j = 0; j < D / 2; j++) {
        o[j] *= fall[j / 2 % 2];
    }
}

/* The product with the values of the last tile.  exist: how many of its keys,
 * where anything may stand behind them; 0: all, or zeros do. */
template <int D, int N, int STAGES, class E>
static __device__ __forceinline__ void
attend_last(const attend_smem_t<D, N, STAGES> &smem, uint32_t last,
            uint32_t exist, float (&o)[D / 2], const uint32_t (&p)[N / 16][4])
{
    uint32_t n = ring_stage<STAGES>(last);
    uint32_t value = smem.value + n * attend_smem_t<D, N, STAGES>::TILE;

    bar_wait(smem.value_full + 8 * n, ring_phase<STAGES>(last));
    if (exist != 0) {
        attend_clear<D, N>(value, exist);
    }
    attend_values<D, N, E>(o, p, value);
    E::template wait<0>();
    wgmma_touch(o);
}

template <int D, int N, int STAGES, class E, bool BOXES, bool ALTERNATE,
          kind_t KIND>
static __device__ __forceinline__ void
attend_compute(const prompt_args_t &a, const attend_smem_t<D, N, STAGES> &smem,
               const prompt_tile_t &t, const prompt_context_t &c, uint32_t half,
               uint32_t head)
{
    const uint32_t TILE = attend_smem_t<D, N, STAGES>::TILE;
    const uint32_t reach = KIND == SLIDES ? prompt_reach(a) : 0;
    const uint32_t from = KIND == SLIDES ? prompt_from<N>(t, reach) : 0;
    uint32_t group = threadIdx.x / GROUP - 1, keys = t.pos + t.rows;
    uint32_t tiles = (keys - from + N - 1) / N, lowest = t.pos + group * HALF;
    uint32_t q = smem.q + group * attend_smem_t<D, N, STAGES>::IMAGE;
    attend_rows_t rows = attend_rows<KIND>(a, t, half, head);
    float o[D / 2], s[N / 2], fall[2];
    uint32_t p[N / 16][4];

#pragma unroll
    for (int j = 0; j < D / 2; j++) {
        o[j] = 0;
    }
    if (BOXES) {
        bar_wait(smem.q_full, 0);
    }
    bar_wait(smem.key_full, 0);
    attend_logits<D, N, E>(s, q, smem.key);
    if (ALTERNATE && group == 1) {
        turn_pass<true>(1);
    }
    E::template wait<0>();
    wgmma_touch(s);
    ring_release(smem.key_empty);
    attend_weigh<N, KIND>(s, rows, fall,
                          attend_masked<N, KIND>(from, lowest, reach, c), from,
                          reach, c);
    attend_pack<N>(p, s);
    for (uint32_t i = 1; i < tiles; i++) {
        uint32_t v = ring_stage<STAGES>(i - 1), n = ring_stage<STAGES>(i);

        bar_wait(smem.key_full + 8 * n, ring_phase<STAGES>(i));
        turn_wait<ALTERNATE>(group);
        attend_logits<D, N, E>(s, q, smem.key + n * TILE);
        bar_wait(smem.value_full + 8 * v, ring_phase<STAGES>(i - 1));
        attend_values<D, N, E>(o, p, smem.value + v * TILE);
        if (group == 0 || i + 1 < tiles) {
            turn_pass<ALTERNATE>(group);
        }
        E::template wait<1>();
        wgmma_touch(s);
        ring_release(smem.key_empty + 8 * n);
        attend_weigh<N, KIND>(s, rows, fall,
                              attend_masked<N, KIND>(from + i * N, lowest,
                                                     reach, c),
                              from + i * N, reach, c);
        E::template wait<0>();
        wgmma_touch(o);
        ring_release(smem.value_empty + 8 * v);
        attend_pack<N>(p, s);
        attend_fall<D>(o, fall);
    }
    attend_last<D, N, STAGES, E>(smem, tiles - 1, BOXES ? keys % N : 0, o, p);
    attend_store<D, KIND>(a, t, half, head, o, rows);
}

template <int D, int N, int STAGES, class E, bool BOXES, bool ALTERNATE,
          kind_t KIND>
static __global__ void __launch_bounds__(THREADS, 1)
    attend_kernel(const __grid_constant__ prompt_args_t a,
                  const __grid_constant__ prompt_maps_t maps)
{
    extern __shared__ __align__(1024) uint8_t shared[];
    attend_smem_t<D, N, STAGES> smem(shared);
    uint32_t head = a.first_head * a.group + blockIdx.x;
    uint32_t tiles = *a.n_tiles, i;
    prompt_context_t c = {};

    if (blockIdx.y >= tiles || (E::GROUPS && !TR_WGMMA)) {
        return;
    }
    i = tiles - 1 - blockIdx.y; /* the longest first */
    prompt_tile_t t = a.tile[i];
    const int32_t *pages = tr_kv_table(&a.kv, a.rows.seq_slot[t.seq], a.layer,
                                       head / a.group);

    if (KIND == BEHIND) {
        c = prompt_context(a, t.seq, head / a.group);
        t.pos = prompt_behind(a, c, t.seq, t.pos);
    }
    if (threadIdx.x == 0) {
        bar_init(smem.q_full, 1);
        for (int n = 0; n < STAGES; n++) {
            bar_init(smem.key_full + 8 * n, BOXES ? 1 : FEED);
            bar_init(smem.value_full + 8 * n, BOXES ? 1 : FEED);
            bar_init(smem.key_empty + 8 * n, RELEASES);
            bar_init(smem.value_empty + 8 * n, RELEASES);
        }
        fence_init();
    }
    __syncthreads();
    if (threadIdx.x < FEED) {
        registers_less<40>();
        attend_fetch<D, N, STAGES, BOXES, KIND == BEHIND>(
            a, maps, smem, t, c, pages,
            KIND == SLIDES ? prompt_from<N>(t, prompt_reach(a)) : 0, 2 * i,
            head);
    } else {
        registers_more<232>();
        attend_compute<D, N, STAGES, E, BOXES, ALTERNATE, KIND>(a, smem, t, c,
                                                                2 * i, head);
    }
}

/* ---- launcher ----------------------------------------------------------- */

template <int D, int N, int STAGES, class E, bool BOXES, bool ALTERNATE>
static int
launch(cudaStream_t stream, const prompt_args_t *a, const prompt_maps_t *maps,
       uint32_t tiles)
{
    constexpr kind_t COMPRESSED = D == 256 ? SLIDES
                                           : BEHIND; /* there are none */
    auto kernel =
        a->context != NULL
            ? attend_kernel<D, N, STAGES, E, BOXES, ALTERNATE, COMPRESSED>
        : a->kv.reach == NULL && a->kv.sinks == NULL
            ? attend_kernel<D, N, STAGES, E, BOXES, ALTERNATE, PLAIN>
            : attend_kernel<D, N, STAGES, E, BOXES, ALTERNATE, SLIDES>;
    uint32_t bytes = attend_smem_t<D, N, STAGES>::BYTES;

    cudaFuncSetAttribute((const void *) kernel,
                         cudaFuncAttributeMaxDynamicSharedMemorySize,
                         (int) bytes);
    kernel<<<dim3(a->n_heads * a->group, tiles), THREADS, bytes, stream>>>(
        *a, *maps);
    return tr_cuda_check();
}

template <int D>
static int
choose(cudaStream_t stream, const prompt_args_t *a, const prompt_maps_t *maps,
       tr_prompt_path_t path, uint32_t tiles)
{
    switch (path) {
    case TR_PROMPT_BOXES:
        return launch<D, 64, 2, warps_t, true, false>(stream, a, maps, tiles);
    case TR_PROMPT_GROUPS:
        return launch<D, 128, 3, groups_t, true, false>(stream, a, maps, tiles);
    case TR_PROMPT_ALTERNATING:
        return launch<D, 128, 3, groups_t, true, true>(stream, a, maps, tiles);
    default:
        return launch<D, 64, 2, warps_t, false, false>(stream, a, maps, tiles);
    }
}

/* Outputs of 256 dimensions leave registers for 64 keys at a time, and tiles leave
 * room for two of each kind. */
static int
choose_wide(cudaStream_t stream, const prompt_args_t *a,
            const prompt_maps_t *maps, tr_prompt_path_t path, uint32_t tiles)
{
    return path == TR_PROMPT_ALTERNATING
               ? launch<256, 64, 2, groups_t, true, true>(stream, a, maps,
                                                          tiles)
               : launch<256, 64, 2, groups_t, true, false>(stream, a, maps,
                                                           tiles);
}

int
prompt_attend(cudaStream_t stream, const prompt_args_t *a,
              const prompt_maps_t *maps, tr_prompt_path_t path, uint32_t tiles)
{
    return a->dim == 256   ? choose_wide(stream, a, maps, path, tiles)
           : a->dim == 128 ? choose<128>(stream, a, maps, path, tiles)
                           : choose<64>(stream, a, maps, path, tiles);
}
