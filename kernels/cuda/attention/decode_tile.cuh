/*
 * decode_tile.cuh: one warp, one tile, all query heads of a KV head.
 *
 *   logits   S[token, head] = K q^T         A = keys,   B = queries
 *   output   O^T[dim, head] += V^T w^T      A = values, B = weights
 *
 * Logits of levels are exact products of bytes.  Codes go in as they are (4
 * and 2 bits: masked in place, where they count 16 or 64 times as much).  A
 * query is an integer of 15 bits, 128 hi + lo, with its bytes in columns 2h
 * and 2h + 1.  So lane 4g + t ends up with head t's logits of tokens g and g
 * + 8, and four heads (a quad) fill the eight columns.  Uncompressed keys do
 * the same with FP16.
 *
 * Values become FP16 by masking, too: the bits of a code land in the mantissa
 * of a number without exponent, a subnormal, which tensor cores multiply
 * exactly and at full speed.  What a code counts then depends on its place in
 * the word; that factor is taken off at the end.  In O^T, column 2h has head
 * h of the first quad, column 2h + 1 head h of the second; two further quads
 * have an O^T of their own.
 *
 * The scale and zero of a token are applied to its logits and its weights.
 */
#ifndef TR_CUDA_DECODE_TILE_CUH
#define TR_CUDA_DECODE_TILE_CUH

#include "decode_iterator.cuh"

#define QUERY_MOST 16256.0f /* 127 * 128 */

static __device__ __forceinline__ uint32_t
word(const uint4 &v, int i)
{
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

/* ---- queries ------------------------------------------------------------ */

/* B operands of Q quads for keys of KEY bits in M groups, and what makes a logit
 * of products: logit = (product * scale + zero * sum) * to_logit, of head t;
 * of groups the sum of each's. */
template <int D, int Q, int KEY, int M> struct query_t {
    uint32_t b[Q][KEY == 16 ? D / 8 : D / 16];
    float to_logit[Q], sum[Q][M];
};

/* So that no logit, of a query of zeros, is -infinity times 0. */
static __device__ __forceinline__ float
not_zero(float to_logit)
{
    return fmaxf(to_logit, 0x1p-120f);
}

/* N times P pairs of elements, `stride` elements apart. */
template <int N, int P>
static __device__ __forceinline__ void
load_pairs(const void *p, size_t at, uint32_t stride, uint32_t type,
           float2 (&x)[N][P])
{
    if (type == TR_F32) {
#pragma unroll
        for (int i = 0; i < N; i++) {
            const float *from = (const float *) p + at + i * stride;

            if (P == 2) {
                float4 y = __ldg((const float4 *) from);

                x[i][0] = make_float2(y.x, y.y);
                x[i][P - 1] = make_float2(y.z, y.w);
            } else {
                x[i][0] = __ldg((const float2 *) from);
            }
        }
        return;
    }
    uint32_t h[N][P];

#pragma unroll
    for (int i = 0; i < N; i++) {
        const uint16_t *from = (const uint16_t *) p + at + i * stride;

        if (P == 2) {
            uint2 y = __ldg((const uint2 *) from);

            h[i][0] = y.x;
            h[i][P - 1] = y.y;
        } else {
            h[i][0] = __ldg((const uint32_t *) from);
        }
    }
#pragma unroll
    for (int i = 0; i < N * P; i++) {
        uint32_t y = h[i / P][i % P];

        x[i / P][i % P] = type == TR_BF16
                              ? make_float2(__uint_as_float(y << 16),
                                            __uint_as_float(y & 0xffff0000u))
                              : half2_floats(y);
    }
}

static __device__ __forceinline__ float
largest(const float2 &x)
{
    return fmaxf(fabsf(x.x), fabsf(x.y));
}

/* The byte of column g of a query of up to QUERY_MOST; adds to sum. */
static __device__ __forceinline__ uint32_t
query_byte(float x, bool low, int &sum)
{
    int i = __float2int_rn(x), hi = (i + 64) >> 7;

    sum += i;
    return (uint32_t) (low ? i - 128 * hi : hi) & 255;
}

/* Of a run's head g / 2 of quad q: where its queries begin; heads that the
 * group does not have are the last one's twins. */
static __device__ __forceinline__ size_t
query_at(const decode_args_t &a, const run_t &run, int q, uint32_t dim)
{
    uint32_t head = min(q * QUAD + threadIdx.x % 32 / 8, a.group - 1);

    return (size_t) run.row * a.ldq
           + (size_t) (run.kv_head * a.group + head) * dim;
}

/* Queries as bytes, before their dimensions are arranged for a level's keys.
 * Lane 4g + t: column g, dimensions [t D/4, (t + 1) D/4); most, sum: of head t,
 * whose logits are products of bytes times most; sum: of each of Z groups. */
template <int D, int Q, int Z> struct bytes_t {
    uint32_t w[Q][D / 16];
    float most[Q];
    int sum[Q][Z];
};

template <int D, int Q, int Z>
static __device__ __forceinline__ void
load_bytes(const decode_args_t &a, const run_t &run, bytes_t<D, Q, Z> &out)
{
    const uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    constexpr int N = D / 16; /* words of four dimensions */

#pragma unroll
    for (int q = 0; q < Q; q++) {
        float2 x[N][2];
        float most = 0, by;
        int sums[Z] = {};

        load_pairs(a.q, query_at(a, run, q, D) + t * (D / 4), 4, a.q_type, x);
#pragma unroll
        for (int j = 0; j < N; j++) {
            most = fmaxf(most, fmaxf(largest(x[j][0]), largest(x[j][1])));
        }
        most = fmaxf(most, __shfl_xor_sync(TR_ALL_LANES, most, 1));
        most = fmaxf(most, __shfl_xor_sync(TR_ALL_LANES, most, 2));
        by = most > 1e-30f ? QUERY_MOST / most : 0;
#pragma unroll
        for (int j = 0; j < N; j++) {
            int &sum = sums[j * Z / N];

            out.w[q][j] = query_byte(x[j][0].x * by, g & 1, sum)
                          | query_byte(x[j][0].y * by, g & 1, sum) << 8
                          | query_byte(x[j][1].x * by, g & 1, sum) << 16
                          | query_byte(x[j][1].y * by, g & 1, sum) << 24;
        }
        out.most[q] = __shfl_sync(TR_ALL_LANES, most, 8 * t) * a.scale
                      / QUERY_MOST;
#pragma unroll
        for (int z = 0; z < Z; z++) {
            int sum = sums[z];

            sum += __shfl_xor_sync(TR_ALL_LANES, sum, 1);
            sum += __shfl_xor_sync(TR_ALL_LANES, sum, 2);
            out.sum[q][z] = __shfl_sync(TR_ALL_LANES, sum, 8 * t);
        }
    }
}

/* In the order in which masks bring dimensions. */
template <int D, int Q, int KEY, int M, int Z>
static __device__ __forceinline__ void
arrange(const bytes_t<D, Q, Z> &from, query_t<D, Q, KEY, M> &out)
{
    constexpr int N = D / 16;
    constexpr float UNIT = KEY == 8 ? 1 : KEY == 4 ? 16 : 64;

#pragma unroll
    for (int q = 0; q < Q; q++) {
#pragma unroll
        for (int j = 0; j < M; j++) {
            int sum = 0;

#pragma unroll
            for (int z = j * Z / M; z < (j + 1) * Z / M; z++) {
                sum += from.sum[q][z];
            }
            out.sum[q][j] = (float) sum * UNIT;
        }
        out.to_logit[q] = not_zero(from.most[q] * (1 / UNIT));
#pragma unroll
        for (int j = 0; j < N; j++) {
            const uint32_t *w = from.w[q];

            if (KEY == 8) {
                out.b[q][j] = w[j];
            } else if (KEY == 4) { /* low halves, then high ones */
                out.b[q][j % 2 * (N / 2) + j / 2] = __byte_perm(
                    w[j / 2 * 2], w[j / 2 * 2 + 1], j % 2 ? 0x7362 : 0x5140);
            } else { /* the four masks */
                int first = j / 4 * 4 + j % 4 / 2;

                out.b[q][j % 4 * (N / 4) + j / 4] = __byte_perm(w[first],
                                                                w[first + 2],
                                                                j % 2 ? 0x7362
                                                                      : 0x5140);
            }
        }
    }
}

/* For uncompressed keys: column g has the upper half of head g / 2, or what it
 * leaves, of dimensions 8j + 2t, 8j + 2t + 1. */
template <int D, int Q>
static __device__ __forceinline__ void
load_uncompressed(const decode_args_t &a, const run_t &run,
                  query_t<D, Q, 16, 1> &out)
{
    const uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;

#pragma unroll
    for (int q = 0; q < Q; q++) {
        float2 x[D / 8][1];
        float most = 0;

        load_pairs(a.q, query_at(a, run, q, D) + 2 * t, 8, a.q_type, x);
#pragma unroll
        for (int j = 0; j < D / 8; j++) {
            most = fmaxf(most, largest(x[j][0]));
        }
        most = fmaxf(most, __shfl_xor_sync(TR_ALL_LANES, most, 1));
        most = fmaxf(most, __shfl_xor_sync(TR_ALL_LANES, most, 2));

        float by = most > 1e-30f ? 1 / most : 0;
#pragma unroll
        for (int j = 0; j < D / 8; j++) {
            float x0 = x[j][0].x * by, x1 = x[j][0].y * by;
            uint32_t hi = half2_bits(x0, x1);
            float2 got = half2_floats(hi);

            out.b[q][j] = g & 1 ? half2_bits(x0 - got.x, x1 - got.y) : hi;
        }
        out.to_logit[q] = not_zero(__shfl_sync(TR_ALL_LANES, most, 8 * t)
                                   * a.scale);
        out.sum[q][0] = 0;
    }
}

/* ---- logits ------------------------------------------------------------- */

/* x[q][r]: head t of quad q, tokens g and g + 8, in units of to_logit.  keys:
 * the tile in shared memory. */
template <int D, int Q>
static __device__ __forceinline__ void
products(const query_t<D, Q, 8, 1> &query, uint32_t keys, float (&x)[Q][2])
{
    constexpr int C = D / 64; /* chunks of a row */
    int c[Q][4] = {};
    uint4 r[2 * C];

#pragma unroll
    for (int i = 0; i < 2 * C; i++) {
        r[i] = shared_load16(keys + i * 512 + threadIdx.x % 32 * 16);
    }
#pragma unroll
    for (int s = 0; s < D / 32; s++) {
#pragma unroll
        for (int q = 0; q < Q; q++) {
            mma_bytes(c[q], word(r[s / 2], s % 2 * 2),
                      word(r[C + s / 2], s % 2 * 2),
                      word(r[s / 2], s % 2 * 2 + 1),
                      word(r[C + s / 2], s % 2 * 2 + 1), query.b[q][2 * s],
                      query.b[q][2 * s + 1]);
        }
    }
#pragma unroll
    for (int q = 0; q < Q; q++) {
        x[q][0] = (float) (c[q][0] * 128 + c[q][1]);
        x[q][1] = (float) (c[q][2] * 128 + c[q][3]);
    }
}

template <int D, int Q>
static __device__ __forceinline__ void
products(const query_t<D, Q, 4, 1> &query, uint32_t keys, float (&x)[Q][2])
{
    constexpr int N = D / 32; /* words of a row */
    const uint32_t LOW = 0x0f0f0f0fu, HIGH = 0xf0f0f0f0u;
    int c[Q][4] = {}, d[Q][4] = {};
    uint32_t w[2][N];

#pragma unroll
    for (int i = 0; i < D / 64; i++) {
        uint4 r = shared_load16(keys + i * 512 + threadIdx.x % 32 * 16);

#pragma unroll
        for (int k = 0; k < 4; k++) {
            w[(4 * i + k) / N][(4 * i + k) % N] = word(r, k);
        }
    }
#pragma unroll
    for (int s = 0; s < N / 2; s++) {
        uint32_t a0 = w[0][2 * s], a1 = w[1][2 * s];
        uint32_t a2 = w[0][2 * s + 1], a3 = w[1][2 * s + 1];

#pragma unroll
        for (int q = 0; q < Q; q++) {
            mma_bytes(c[q], a0 & LOW, a1 & LOW, a2 & LOW, a3 & LOW,
                      query.b[q][2 * s], query.b[q][2 * s + 1]);
            mma_bytes(d[q], a0 & HIGH, a1 & HIGH, a2 & HIGH, a3 & HIGH,
                      query.b[q][N + 2 * s], query.b[q][N + 2 * s + 1]);
        }
    }
#pragma unroll
    for (int q = 0; q < Q; q++) { /* of low halves, 16 times as much */
#pragma unroll
        for (int r = 0; r < 2; r++) {
            int hi = c[q][2 * r] * 16 + d[q][2 * r];
            int lo = c[q][2 * r + 1] * 16 + d[q][2 * r + 1];

            x[q][r] = (float) (hi * 128 + lo);
        }
    }
}

template <int D, int Q>
static __device__ __forceinline__ void
products(const query_t<D, Q, 2, 1> &query, uint32_t keys, float (&x)[Q][2])
{
    constexpr int N = D / 64; /* words of a row */
    uint32_t w[2][N], lane = threadIdx.x % 32;
    int sum[Q][4] = {};

    if (D == 128) {
        uint4 r = shared_load16(keys + lane * 16);

#pragma unroll
        for (int k = 0; k < 4; k++) {
            w[k / N % 2][k % N] = word(r, k);
        }
    } else {
        uint2 r = shared_load8(keys + lane * 8);

        w[0][0] = r.x;
        w[1][0] = r.y;
    }
#pragma unroll
    for (int m = 0; m < 4; m++) {
        const uint32_t mask = 0x03030303u << 2 * m;

#pragma unroll
        for (int q = 0; q < Q; q++) {
            int c[4] = {};

#pragma unroll
            for (int j = 0; j < N; j++) {
                mma_bytes_short(c, w[0][j] & mask, w[1][j] & mask,
                                query.b[q][m * N + j]);
            }
#pragma unroll
            for (int i = 0; i < 4; i++) {
                sum[q][i] += c[i] * (64 >> 2 * m);
            }
        }
    }
#pragma unroll
    for (int q = 0; q < Q; q++) {
        x[q][0] = (float) (sum[q][0] * 128 + sum[q][1]);
        x[q][1] = (float) (sum[q][2] * 128 + sum[q][3]);
    }
}

/* Eight tokens: x[q][1] is not a logit. */
template <int D, int Q>
static __device__ __forceinline__ void
products(const query_t<D, Q, 16, 1> &query, uint32_t keys, float (&x)[Q][2])
{
    const uint32_t lane = threadIdx.x % 32;
    float c[Q][4] = {};

#pragma unroll
    for (int s = 0; s < D / 32; s++) {
        uint32_t r[4];

        load_matrices<false>(r,
                             keys + row_chunk<D>(lane % 8, 4 * s + lane / 8));
#pragma unroll
        for (int q = 0; q < Q; q++) {
#pragma unroll
            for (int k = 0; k < 4; k++) {
                mma_short(c[q], r[k], 0, query.b[q][4 * s + k]);
            }
        }
    }
#pragma unroll
    for (int q = 0; q < Q; q++) {
        x[q][0] = c[q][0] + c[q][1];
        x[q][1] = 0;
    }
}

/* Of groups: words of a lane that are of the same one are neighbours; a word of
 * two is masked. */

/* Keys of 8 bits in M groups: x[j] is what group j has of x. */
template <int D, int Q, int M>
static __device__ __forceinline__ void
group_products(const query_t<D, Q, 8, M> &query, uint32_t keys,
               float (&x)[M][Q][2])
{
    constexpr int C = D / 64, N = D / 16 / M; /* chunks of a row, words */
    uint4 r[2 * C];

#pragma unroll
    for (int i = 0; i < 2 * C; i++) {
        r[i] = shared_load16(keys + i * 512 + threadIdx.x % 32 * 16);
    }
#pragma unroll
    for (int j = 0; j < M; j++) {
#pragma unroll
        for (int q = 0; q < Q; q++) {
            int c[4] = {};

#pragma unroll
            for (int k = j * N; k + 1 < (j + 1) * N; k += 2) {
                mma_bytes(c, word(r[k / 4], k % 4), word(r[C + k / 4], k % 4),
                          word(r[(k + 1) / 4], (k + 1) % 4),
                          word(r[C + (k + 1) / 4], (k + 1) % 4), query.b[q][k],
                          query.b[q][k + 1]);
            }
            if constexpr (N == 1) {
                mma_bytes_short(c, word(r[j / 4], j % 4),
                                word(r[C + j / 4], j % 4), query.b[q][j]);
            }
            x[j][q][0] = (float) (c[0] * 128 + c[1]);
            x[j][q][1] = (float) (c[2] * 128 + c[3]);
        }
    }
}

/* Of 4 bits, low halves beside high ones. */
template <int D, int Q, int M>
static __device__ __forceinline__ void
group_products(const query_t<D, Q, 4, M> &query, uint32_t keys,
               float (&x)[M][Q][2])
{
    constexpr int N = D / 32;                /* words of a row */
    constexpr int SHARE = M > N ? M / N : 1; /* groups that share a word */
    uint32_t w[2][N];

#pragma unroll
    for (int i = 0; i < D / 64; i++) {
        uint4 r = shared_load16(keys + i * 512 + threadIdx.x % 32 * 16);

#pragma unroll
        for (int k = 0; k < 4; k++) {
            w[(4 * i + k) / N][(4 * i + k) % N] = word(r, k);
        }
    }
#pragma unroll
    for (int j = 0; j < M; j++) {
        const uint32_t mask = SHARE == 1  ? 0x0f0f0f0fu
                              : j % SHARE ? 0x0f000f00u
                                          : 0x000f000fu;

#pragma unroll
        for (int q = 0; q < Q; q++) {
            int c[4] = {};

#pragma unroll
            for (int k = j * N / M; k < ((j + 1) * N + M - 1) / M; k++) {
                mma_bytes(c, w[0][k] & mask, w[1][k] & mask,
                          w[0][k] >> 4 & mask, w[1][k] >> 4 & mask,
                          query.b[q][k], query.b[q][N + k]);
            }
            x[j][q][0] = (float) ((c[0] * 128 + c[1]) * 16);
            x[j][q][1] = (float) ((c[2] * 128 + c[3]) * 16);
        }
    }
}

/* ---- values ------------------------------------------------------------- */

/* What a code of 1 of row g, g + 8 is worth in o; V2: weights of tokens g + 8
 * must be 16 times smaller. */
static __host__ __device__ constexpr float
value_unit(int bits, int row)
{
    return bits == 16              ? 1
           : bits == 8 || row == 0 ? 0x1p-24f
           : bits == 4             ? 0x1p-20f
                                   : 0x1p-22f;
}

/* A lane's codes of a tile, 16 bytes each. */
static __host__ __device__ constexpr int
value_words(int dim, int bits)
{
    return bits == 16 ? 1 : dim * bits < 256 ? 1 : dim * bits / 256;
}

template <int D, int VALUE>
static __device__ __forceinline__ void
load_values(uint4 (&r)[value_words(D, VALUE)], uint32_t values)
{
    const uint32_t lane = threadIdx.x % 32;

    if (VALUE == 16) {
        return; /* see add_values16 */
    }
    if (D * VALUE < 256) {
        uint2 x = shared_load8(values + (lane % 4 * 8 + lane / 4) * 8);

        r[0] = make_uint4(x.x, x.y, 0, 0);
        return;
    }
#pragma unroll
    for (int i = 0; i < value_words(D, VALUE); i++) {
        r[i] = shared_load16(values + (lane % 4 * 8 + lane / 4) * 16 + i * 512);
    }
}

/* o[i]: dimensions 16i + g (0, 1) and 16i + 8 + g (2, 3) of columns 2t, 2t + 1;
 * i from FROM to TO.
 * p: weights of tokens 2t, 2t + 1 of column g, and 8 further on. */
template <int D, int FROM, int TO>
static __device__ __forceinline__ void
add_values8(float (&o)[D / 16][4], const uint4 (&r)[D / 32], uint32_t p0,
            uint32_t p1)
{
    const uint32_t MASK = 0x00ff00ffu;
    constexpr int C = D / 64;

#pragma unroll
    for (int i = FROM; i < TO; i++) {
        uint32_t u = word(r[i / 4], i % 4), v = word(r[C + i / 4], i % 4);
        uint32_t a[4] = { u & MASK, __byte_perm(u, 0, 0x4341), v & MASK,
                          __byte_perm(v, 0, 0x4341) };

        mma(o[i], a, p0, p1);
    }
}

template <int D, int FROM, int TO>
static __device__ __forceinline__ void
add_values4(float (&o)[D / 16][4], const uint4 (&r)[D / 64], uint32_t p0,
            uint32_t p1)
{
    const uint32_t LOW = 0x000f000fu, HIGH = 0x00f000f0u;
    constexpr int N = D / 32; /* words of a row of tokens */

#pragma unroll
    for (int i = FROM; i < TO; i++) {
        uint32_t u = word(r[i / 2 / 4], i / 2 % 4) >> i % 2 * 8;
        uint32_t v = word(r[(N + i / 2) / 4], (N + i / 2) % 4) >> i % 2 * 8;
        uint32_t a[4] = { u & LOW, u & HIGH, v & LOW, v & HIGH };

        mma(o[i], a, p0, p1);
    }
}

template <int D, int FROM, int TO>
static __device__ __forceinline__ void
add_values2(float (&o)[D / 16][4], const uint4 (&r)[1], uint32_t p0,
            uint32_t p1)
{
#pragma unroll
    for (int i = FROM; i < TO; i++) {
        uint32_t u = word(r[0], i / 2) >> i % 2 * 8;
        uint32_t a[4] = { u & 0x00030003u, u & 0x000c000cu, u & 0x00300030u,
                          u & 0x00c000c0u };

        mma(o[i], a, p0, p1);
    }
}

/* Any of them. */
template <int D, int VALUE, int FROM, int TO>
static __device__ __forceinline__ void
add_values(float (&o)[D / 16][4], const uint4 (&r)[value_words(D, VALUE)],
           uint32_t p0, uint32_t p1)
{
    if constexpr (VALUE == 8) {
        add_values8<D, FROM, TO>(o, r, p0, p1);
    } else if constexpr (VALUE == 4) {
        add_values4<D, FROM, TO>(o, r, p0, p1);
    } else if constexpr (VALUE == 2) {
        add_values2<D, FROM, TO>(o, r, p0, p1);
    }
}

/* Eight tokens, two quads a product; keep: bits of tokens 2t, 2t + 1 that exist,
 * since a weight of 0 does not make a NaN vanish. */
template <int D, int P>
static __device__ __forceinline__ void
add_values16(float (&o)[P][D / 16][4], uint32_t values, uint32_t keep,
             const uint32_t (&w)[P][2])
{
    const uint32_t lane = threadIdx.x % 32;

#pragma unroll
    for (int s = 0; s < D / 32; s++) {
        uint32_t r[4];

        load_matrices<true>(r,
                            values + row_chunk<D>(lane % 8, 4 * s + lane / 8));
#pragma unroll
        for (int p = 0; p < P; p++) {
            mma_short(o[p][2 * s], r[0] & keep, r[1] & keep, w[p][0]);
            mma_short(o[p][2 * s + 1], r[2] & keep, r[3] & keep, w[p][0]);
        }
    }
}

#endif
