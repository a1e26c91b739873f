/*
 * decode_attend.cuh: attention of a warp over one unit that has arrived.
 *
 * Softmax is in log2 units.  A warp raises its maximum only when a logit
 * exceeds it by 8, so weights, kept as 2^7 times the exponential, stay below
 * 2^15; FP16 holds 11 bits of them down to 2^-21 of the largest.  The scales
 * of values go into the weights, times a power of two that keeps them below
 * 1.
 */
#ifndef TR_CUDA_DECODE_ATTEND_CUH
#define TR_CUDA_DECODE_ATTEND_CUH

#include "decode_tile.cuh"

#define RAISED 7.0f /* weights are 2^7 * exp2(logit - max) */
#define SLACK 15.0f /* and at most 2^15 */

/* Outputs that a warp of Q quads has: of two quads each. */
static __host__ __device__ constexpr int
pairs_of(int quads)
{
    return (quads + 1) / 2;
}

/* A warp's softmax and output.  zero: of each of Z groups of dimensions. */
template <int D, int Q, int Z> struct state_t {
    float max[Q]; /* of head t, less RAISED */
    float sum[Q], zero[Q][Z];
    float shrink; /* values are multiplied by this power of two */
    float per[2]; /* 1 / what o's rows g, g + 8 are counted in */
    float o[pairs_of(Q)][D / 16][4];
    uint32_t trace; /* of the layer: the next one */
};

template <int D, int Q, int Z>
static __device__ __forceinline__ void
state_init(state_t<D, Q, Z> &s)
{
#pragma unroll
    for (int q = 0; q < Q; q++) {
        s.max[q] = -1e30f;
        s.sum[q] = 0;
#pragma unroll
        for (int z = 0; z < Z; z++) {
            s.zero[q][z] = 0;
        }
    }
    s.shrink = 0x1p40f;
    s.per[0] = s.per[1] = 1;
#pragma unroll
    for (int i = 0; i < pairs_of(Q) * (D / 16); i++) {
        float(&o)[4] = s.o[i / (D / 16)][i % (D / 16)];

        o[0] = o[1] = o[2] = o[3] = 0;
    }
}

/* Is there code for scores? (decode_has) */
static __host__ __device__ constexpr bool
has_scores(int dim, int quads)
{
    return dim <= 128 && quads <= 2;
}

/* Of a power of two. */
static __device__ __forceinline__ float
inverse(float x)
{
    return __uint_as_float(0x7f000000u - __float_as_uint(x));
}

/* Over the eight lanes of a head. */
static __device__ __forceinline__ float
column_max(float x)
{
    x = fmaxf(x, __shfl_xor_sync(TR_ALL_LANES, x, 4));
    x = fmaxf(x, __shfl_xor_sync(TR_ALL_LANES, x, 8));
    return fmaxf(x, __shfl_xor_sync(TR_ALL_LANES, x, 16));
}

static __device__ __forceinline__ float
column_sum(float x)
{
    x += __shfl_xor_sync(TR_ALL_LANES, x, 4);
    x += __shfl_xor_sync(TR_ALL_LANES, x, 8);
    return x + __shfl_xor_sync(TR_ALL_LANES, x, 16);
}

/* Rows g of o times a of their column's quad, rows g + 8 times b. */
template <int D, int Q, int Z>
static __device__ __forceinline__ void
multiply(state_t<D, Q, Z> &s, const float (&a)[Q], const float (&b)[Q])
{
#pragma unroll
    for (int i = 0; i < pairs_of(Q) * (D / 16); i++) {
        const int q = i / (D / 16) * 2;
        float(&o)[4] = s.o[q / 2][i % (D / 16)];

        o[0] *= a[q];
        o[2] *= b[q];
        if (q + 1 < Q) {
            o[1] *= a[(q + 1) % Q];
            o[3] *= b[(q + 1) % Q];
        }
    }
}

/* Makes room for larger logits y, in units of to_logit, or scales; rare. */
template <int D, int Q, int Z>
static __device__ __forceinline__ void
rescale(state_t<D, Q, Z> &s, const float (&y)[Q], const float (&to_logit)[Q],
        float scale)
{
    float by[Q], shrink = s.shrink;

    scale = column_max(scale);
    if (scale * shrink > 1) { /* to [1/2, 1) */
        shrink = __uint_as_float((253 - (__float_as_uint(scale) >> 23)) << 23);
    }
#pragma unroll
    for (int q = 0; q < Q; q++) {
        float max = fmaxf(s.max[q], column_max(y[q]) * to_logit[q] - RAISED);
        float c = exp2_fast(s.max[q] - max);

        s.max[q] = max;
        s.sum[q] *= c;
#pragma unroll
        for (int z = 0; z < Z; z++) {
            s.zero[q][z] *= c;
        }
        by[q] = c * shrink * inverse(s.shrink);
    }
    s.shrink = shrink;
    multiply(s, by, by);
}

/* Counts o in the units of a level's values. */
template <int VALUE, int D, int Q, int Z>
static __device__ __forceinline__ void
change_units(state_t<D, Q, Z> &s)
{
    float a[Q], b[Q];

    if (s.per[0] == 1 / value_unit(VALUE, 0)
        && s.per[1] == 1 / value_unit(VALUE, 1)) {
        return;
    }
#pragma unroll
    for (int q = 0; q < Q; q++) {
        a[q] = value_unit(VALUE, 0) * s.per[0];
        b[q] = value_unit(VALUE, 1) * s.per[1];
    }
    s.per[0] = 1 / value_unit(VALUE, 0);
    s.per[1] = 1 / value_unit(VALUE, 1);
    multiply(s, a, b);
}

/* What a warp attends at once. */
struct unit_t {
    uint32_t head, token, exist; /* tokens: the first, and how many */
    uint32_t tiles;
    bool holes;      /* of a window: some are not seen */
    uint32_t unseen; /* of a layer with a reach: tokens below are not seen */
};

/* Which of the tokens of tile i of a unit exist. */
static __device__ __forceinline__ uint32_t
existing(const decode_args_t &a, uint32_t head, bool holes, uint32_t token,
         uint32_t exist, uint32_t unseen)
{
    uint32_t lane = threadIdx.x % 32;
    bool here = lane < exist && token + lane >= unseen;

    if (holes && here) {
        const decode_head_t *h = a.work.head + head;

        here = token + lane < decode_sinks(a.kv, h)
               || decode_window_position(h->base, h->window, token + lane)
                      >= h->window_from;
    }
    return __ballot_sync(TR_ALL_LANES, here);
}

/* Logits of a tile: products, with the scales and zeros of its keys. */
template <int D, int Q, int KEY, int M>
static __device__ __forceinline__ void
logits(const query_t<D, Q, KEY, M> &query, uint32_t keys,
       const uint32_t (&meta)[2][M], float (&y)[Q][2])
{
    float x[M][Q][2];

    if constexpr (M == 1) {
        products(query, keys, x[0]);
    } else {
        group_products(query, keys, x);
    }
#pragma unroll
    for (int q = 0; q < Q; q++) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            y[q][r] = x[0][q][r];
#pragma unroll
            for (int j = 0; j < M && KEY != 16; j++) {
                float2 k = half2_floats(meta[r][j]);
                float zero = k.y * query.sum[q][j];

                y[q][r] = fmaf(x[j][q][r], k.x, j == 0 ? zero : y[q][r] + zero);
            }
        }
    }
}

/* Adds values of a tile, weighted, of group J and those behind it. */
template <int J, int VALUE, int D, int Q, int M, int Z>
static __device__ __forceinline__ void
add_group(uint32_t at, const uint4 (&values)[value_words(D, VALUE)],
          uint32_t keep, const float (&y)[Q][2], const float (&scale)[2][M],
          const float (&zero)[2][M], state_t<D, Q, Z> &s)
{
    constexpr int ROWS = VALUE == 16 ? 1 : 2;
    uint32_t w[pairs_of(Q)][2];

#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        float v = scale[r][J] * s.shrink * (VALUE == 2 && r ? 0.0625f : 1);

#pragma unroll
        for (int q = 0; q < Q; q++) {
#pragma unroll
            for (int z = J * Z / M; z < (J + 1) * Z / M; z++) {
                s.zero[q][z] += y[q][r] * zero[r][J];
            }
        }
#pragma unroll
        for (int q = 0; q < Q; q += 2) {
            w[q / 2][r] = transpose(
                half2_bits(y[q][r] * v, q + 1 < Q ? y[(q + 1) % Q][r] * v : 0));
        }
    }
    if constexpr (VALUE == 16) {
        add_values16<D, pairs_of(Q)>(s.o, at, keep, w);
    } else {
        add_values<D, VALUE, J *(D / 16) / M, (J + 1) * (D / 16) / M>(s.o[0],
                                                                      values,
                                                                      w[0][0],
                                                                      w[0][1]);
    }
    if constexpr (J + 1 < M) {
        add_group<J + 1, VALUE>(at, values, keep, y, scale, zero, s);
    }
}

/* M words from shared memory, at a multiple of as many. */
template <int M>
static __device__ __forceinline__ void
load_meta(uint32_t at, uint32_t (&x)[M])
{
    if constexpr (M == 1) {
        x[0] = shared_load4(at);
    } else if constexpr (M == 2) {
        uint2 y = shared_load8(at);

        x[0] = y.x;
        x[1] = y.y;
    } else {
        uint4 y = shared_load16(at);

        x[0] = y.x;
        x[1] = y.y;
        x[2] = y.z;
        x[3] = y.w;
    }
}

/* The unit in a slot.  y: logits in units of to_logit, then weights without the
 * value's scale. */
template <int D, int Q, int KEY, int VALUE, int M, int Z, bool REACH>
static __device__ __forceinline__ void
attend_unit(const decode_args_t &a, const query_t<D, Q, KEY, M> &query,
            const unit_t &u, uint32_t slot, bool traced, uint64_t stay,
            state_t<D, Q, Z> &s)
{
    constexpr int U = unit_tiles(KEY, VALUE), ROWS = KEY == 16 ? 1 : 2;
    constexpr uint32_t TILE = unit_step(D, KEY, VALUE, M);
    constexpr uint32_t TO_VALUE = tile_bytes(D, KEY);
    constexpr uint32_t TO_META = TO_VALUE + tile_bytes(D, VALUE);
    const uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    float y[U][Q][2], vs[U][2][M], vz[U][2][M], most[Q], scale = 0;
    uint4 values[U][value_words(D, VALUE)];
    uint32_t km[U][2][M], vm[U][2][M];
    uint32_t keep = ~0u;
    bool over;

    /* what is read from shared memory is asked for early */
#pragma unroll
    for (int n = 0; n < U && KEY != 16; n++) {
        uint32_t at = slot + n * TILE + TO_META + g * M * 4;

        load_meta(at, km[n][0]);
        load_meta(at + M * 32, km[n][1]);
        load_meta(at + M * META, vm[n][0]);
        load_meta(at + M * META + M * 32, vm[n][1]);
    }
#pragma unroll
    for (int n = 0; n < U; n++) {
        logits(query, slot + n * TILE, km[n], y[n]);
    }
#pragma unroll
    for (int n = 0; n < U; n++) {
        load_values<D, VALUE>(values[n], slot + n * TILE + TO_VALUE);
    }
#pragma unroll
    for (int n = 0; n < U; n++) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
#pragma unroll
            for (int j = 0; j < M; j++) {
                float2 v = make_float2(1, 0);

                if (KEY != 16) {
                    v = half2_floats(vm[n][r][j]);
                }
                vs[n][r][j] = v.x;
                vz[n][r][j] = v.y;
            }
        }
    }
    if (u.exist < U * tile_tokens(KEY) || u.holes
        || (REACH && u.token < u.unseen)) {
#pragma unroll
        for (int n = 0; n < U; n++) {
            uint32_t before = n * tile_tokens(KEY);
            uint32_t mask = existing(a, u.head, u.holes, u.token + before,
                                     u.exist > before ? min(u.exist - before,
                                                            tile_tokens(KEY))
                                                      : 0,
                                     REACH ? u.unseen : 0);

#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                if (!(mask >> (g + 8 * r) & 1)) {
#pragma unroll
                    for (int j = 0; j < M; j++) {
                        vs[n][r][j] = vz[n][r][j] = 0;
                    }
#pragma unroll
                    for (int q = 0; q < Q; q++) {
                        y[n][q][r] = -INFINITY;
                    }
                }
            }
            keep = (mask >> 2 * t & 1 ? 0xffffu : 0)
                   | (mask >> 2 * t & 2 ? 0xffff0000u : 0);
        }
    }
#pragma unroll
    for (int q = 0; q < Q; q++) {
        most[q] = y[0][q][0];
#pragma unroll
        for (int n = 0; n < U; n++) {
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                most[q] = fmaxf(most[q], y[n][q][r]);
#pragma unroll
                for (int j = 0; j < M; j++) {
                    scale = fmaxf(scale, vs[n][r][j]);
                }
            }
        }
    }
    over = scale * s.shrink > 1;
#pragma unroll
    for (int q = 0; q < Q; q++) {
        over = over || fmaf(most[q], query.to_logit[q], -s.max[q]) > SLACK;
    }
    if (__any_sync(TR_ALL_LANES, over)) {
        rescale<D, Q>(s, most, query.to_logit, scale);
    }
#pragma unroll
    for (int n = 0; n < U; n++) {
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
#pragma unroll
            for (int q = 0; q < Q; q++) {
                y[n][q][r] = exp2_fast(
                    fmaf(y[n][q][r], query.to_logit[q], -s.max[q]));
                s.sum[q] += y[n][q][r];
            }
        }
        add_group<0, VALUE>(slot + n * TILE + TO_VALUE, values[n], keep, y[n],
                            vs[n], vz[n], s);
    }
    if (has_scores(D, Q) && traced) {
        const uint32_t tiles = u.tiles, group = a.group;
        uint32_t *weights = a.left.weights + (size_t) s.trace * group * 4;
        float *maxima = a.left.maxima
                        + (decode_maximum(a.work, s.trace) + g) * group + t;
#pragma unroll
        for (int q = 0; q < Q; q++) {
            const uint32_t k = q * QUAD + t;

            if (k >= group) {
                continue;
            }
            if (KEY == 16) {
                ((uint16_t *) weights)[k * 8 + g] = (uint16_t)
                    half2_bits(y[0][q][0], 0);
            }
#pragma unroll
            for (int n = 0; n < U && n < (int) tiles && KEY != 16; n++) {
                store_hinted(weights + (n * group + k) * 8 + g,
                             half2_bits(y[n][q][0], y[n][q][1]), stay);
            }
            if (g < tiles) {
                store_hinted(maxima + q * QUAD, __float_as_uint(s.max[q]),
                             stay);
            }
        }
        s.trace += tiles * ROWS;
    }
}

/* The part's sums to its place. */
template <int D, int Q, int Z>
static __device__ __forceinline__ void
store_part(const decode_args_t &a, uint32_t head, uint32_t range,
           state_t<D, Q, Z> &s)
{
    const uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const uint64_t policy = l2_policy_stay();
    size_t place = (size_t) range + head;
    float by0 = s.per[0] * inverse(s.shrink),
          by1 = s.per[1] * inverse(s.shrink);

#pragma unroll
    for (int q = 0; q < Q; q++) {
        uint32_t k = q * QUAD + t;
        float sum = column_sum(s.sum[q]), zero[Z];
        float *to = a.work.part_out + (place * a.group + k) * D + g;

#pragma unroll
        for (int z = 0; z < Z; z++) {
            zero[z] = column_sum(s.zero[q][z]);
        }
        if (k >= a.group) {
            continue;
        }
#pragma unroll
        for (int i = 0; i < D / 16; i++) {
            const float of = zero[i * Z / (D / 16)];
            const float(&o)[4] = s.o[q / 2][i];

            store_hinted(to + 16 * i, __float_as_uint(fmaf(o[q % 2], by0, of)),
                         policy);
            store_hinted(to + 16 * i + 8,
                         __float_as_uint(fmaf(o[2 + q % 2], by1, of)), policy);
        }
        if (g == 0) {
            a.work.part_sum[place * GROUP + k] = make_float2(s.max[q], sum);
        }
    }
}

#endif
