/*
 * decode_tile.cuh: one warp, one tile of 16 tokens, all query heads of a list.
 *
 *   logits   S[token, head] = K q^T      A = key codes,   B = queries
 *   output   O^T[dim, head] += V^T P^T   A = value codes, B = weights
 *
 * Codes become FP16 by placing them under the exponent of a power of two
 * (kv_layout.h puts them where a mask and a shift suffice), so they carry an
 * offset.  That of keys goes into where the sum begins, that of values is taken
 * off by a row of products with code 0 (`none`).  Codes are never scaled: the
 * scale and zero of a token are applied to its logits and its weights.
 *
 * A tile's codes come straight into the registers of the lanes that multiply
 * them, 16 bytes a load.  Lane 4g + t: see mma() and kv_layout.h.
 */
#ifndef TR_CUDA_DECODE_TILE_CUH
#define TR_CUDA_DECODE_TILE_CUH

#include "decode.cuh"
#include "ptx.cuh"

/* FP16 with the lowest bit of a code at bit 0, 2, 4, 6, 8: 1024 + code, ... */
#define AT0 0x64006400u
#define AT2 0x5c005c00u
#define AT4 0x54005400u
#define AT6 0x4c004c00u
#define AT8 0x44004400u

/* Where key sums begin: minus the sum of (offset * query) for 8, 4, 2 bits. */
enum { OFF8, OFF4, OFF2, OFFS };

static __device__ __forceinline__ uint32_t
word(const uint4 &v, int i)
{
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

/* Loads of a tile's codes, 16 bytes a lane (8 when a lane has no more). */
static __host__ __device__ constexpr int
tile_loads(int dim, int bits)
{
    return 2 * dim * bits < 512 ? 1 : 2 * dim * bits / 512;
}

/* Codes of a tile that begins at `at`; place: the lane's in it. */
template <int D, int BITS>
static __device__ __forceinline__ void
load_codes(uint4 *r, const uint8_t *at, int place)
{
    if (2 * D * BITS < 512) {
        uint2 h = load_stream8(at + place * 8);

        r[0] = make_uint4(h.x, h.y, 0, 0);
        return;
    }
#pragma unroll
    for (int i = 0; i < tile_loads(D, BITS); i++) {
        r[i] = load_stream(at + i * 512 + place * 16);
    }
}

/* Rows of FP16 keys; up: rows from g to the second one, 8, or 0 when the page
 * ends before.  Lane t takes dimensions 32j + 8t .. + 7 of every 32. */
template <int D>
static __device__ __forceinline__ void
load_rows(uint4 *r, const uint8_t *at, int lane, uint32_t up)
{
    const uint8_t *row = at + lane / 4 * (2 * D) + lane % 4 * 16;

#pragma unroll
    for (int j = 0; j < D / 32; j++) {
        r[2 * j] = load_stream(row + j * 64);
        r[2 * j + 1] = load_stream(row + up * (2 * D) + j * 64);
    }
}

/* Rows of FP16 values: tokens 2t, 2t + 1, 2t + up, 2t + up + 1; dimensions
 * 64c + 8g .. + 7. */
template <int D>
static __device__ __forceinline__ void
load_columns(uint4 (&r)[4], const uint8_t *at, int lane, uint32_t up, int c)
{
    const uint8_t *row = at + lane % 4 * (4 * D) + lane / 4 * 16 + c * 128;

#pragma unroll
    for (int k = 0; k < 4; k++) {
        r[k] = load_stream(row + (k % 2 + k / 2 * up) * (2 * D));
    }
}

/* b: the queries' operand in shared memory, [D / 16][32] pairs; step k =
 * dimensions 4k .. 4k + 3 of the lane's quarter (dense keys: load_rows). */
template <int D>
static __device__ __forceinline__ void
logits8(float (&s)[2][4], const uint4 *r, int lane, const uint2 *b)
{
    constexpr int C = D / 64; /* loads of a row */

#pragma unroll
    for (int k = 0; k < D / 16; k++) {
        uint32_t x = word(r[k / 4], k % 4), y = word(r[C + k / 4], k % 4);
        uint32_t a[4] = { __byte_perm(x, AT0, 0x5150),
                          __byte_perm(y, AT0, 0x5150),
                          __byte_perm(x, AT0, 0x5352),
                          __byte_perm(y, AT0, 0x5352) };

        uint2 q = b[k * 32 + lane];

        mma(s[k % 2], a, q.x, q.y);
    }
}

template <int D>
static __device__ __forceinline__ void
logits4(float (&s)[2][4], const uint4 *r, int lane, const uint2 *b)
{
#pragma unroll
    for (int k = 0; k < D / 16; k++) {
        uint32_t x = word(r[0], k / 2);
        uint32_t y = D == 128 ? word(r[D / 128], k / 2) : word(r[0], 2 + k / 2);

        x = k % 2 == 0 ? x << 2 : x >> 6;
        y = k % 2 == 0 ? y << 2 : y >> 6;
        uint32_t a[4] = { pick<0x003c003c, AT2>(x), pick<0x003c003c, AT2>(y),
                          pick<0x03c003c0, AT6>(x), pick<0x03c003c0, AT6>(y) };

        uint2 q = b[k * 32 + lane];

        mma(s[k % 2], a, q.x, q.y);
    }
}

template <int D>
static __device__ __forceinline__ void
logits2(float (&s)[2][4], const uint4 *r, int lane, const uint2 *b)
{
#pragma unroll
    for (int k = 0; k < D / 16; k++) {
        uint32_t x = word(r[0], k / 4);
        uint32_t y = word(r[0], D / 64 + k / 4);

        x = k % 4 < 2 ? x << 2 : x >> 6;
        y = k % 4 < 2 ? y << 2 : y >> 6;
        uint32_t a[4];
        if (k % 2 == 0) {
            a[0] = pick<0x000c000c, AT2>(x);
            a[1] = pick<0x000c000c, AT2>(y);
            a[2] = pick<0x00300030, AT4>(x);
            a[3] = pick<0x00300030, AT4>(y);
        } else {
            a[0] = pick<0x00c000c0, AT6>(x);
            a[1] = pick<0x00c000c0, AT6>(y);
            a[2] = pick<0x03000300, AT8>(x);
            a[3] = pick<0x03000300, AT8>(y);
        }
        uint2 q = b[k * 32 + lane];

        mma(s[k % 2], a, q.x, q.y);
    }
}

/* Rows of FP16; the operand `b` in shared memory, [D / 16][32] pairs, is in the
 * order of load_rows. */
template <int D>
static __device__ __forceinline__ void
logits_dense(float (&s)[2][4], const uint4 *r, int lane, const uint2 *b)
{
#pragma unroll
    for (int j = 0; j < D / 32; j++) {
        uint4 x = r[2 * j], y = r[2 * j + 1];
        uint2 b0 = b[2 * j * 32 + lane], b1 = b[(2 * j + 1) * 32 + lane];
        uint32_t a0[4] = { x.x, y.x, x.y, y.y }, a1[4] = { x.z, y.z, x.w, y.w };

        mma(s[0], a0, b0.x, b0.y);
        mma(s[1], a1, b1.x, b1.y);
    }
}

/* O^T of a warp: o[i] holds dimensions 16i + g and 16i + 8 + g of columns 2t,
 * 2t + 1; of a head that is dense only, 64 (i / 4) + 8g + i % 4 * 2 and the
 * next (decode_dim). */
template <int D> struct output_t {
    float o[D / 16][4];
    float none[4];
};

template <int D>
static __device__ __forceinline__ void
values8(output_t<D> &out, const uint4 *r, uint32_t p0, uint32_t p1)
{
    constexpr int C = D / 64;
    const uint32_t none[4] = { AT0, AT0, AT0, AT0 };

#pragma unroll
    for (int i = 0; i < D / 16; i++) {
        uint32_t x = word(r[i / 4], i % 4), y = word(r[C + i / 4], i % 4);
        uint32_t a[4] = { __byte_perm(x, AT0, 0x5250),
                          __byte_perm(x, AT0, 0x5351),
                          __byte_perm(y, AT0, 0x5250),
                          __byte_perm(y, AT0, 0x5351) };

        mma(out.o[i], a, p0, p1);
    }
    mma(out.none, none, p0, p1);
}

template <int D>
static __device__ __forceinline__ void
values4(output_t<D> &out, const uint4 *r, uint32_t p0, uint32_t p1)
{
    const uint32_t none[4] = { AT2, AT6, AT2, AT6 };

#pragma unroll
    for (int i = 0; i < D / 16; i++) {
        uint32_t x = word(r[0], i / 2);
        uint32_t y = D == 128 ? word(r[D / 128], i / 2) : word(r[0], 2 + i / 2);

        x = i % 2 == 0 ? x << 2 : x >> 6;
        y = i % 2 == 0 ? y << 2 : y >> 6;
        uint32_t a[4] = { pick<0x003c003c, AT2>(x), pick<0x03c003c0, AT6>(x),
                          pick<0x003c003c, AT2>(y), pick<0x03c003c0, AT6>(y) };

        mma(out.o[i], a, p0, p1);
    }
    mma(out.none, none, p0, p1);
}

template <int D>
static __device__ __forceinline__ void
values2(output_t<D> &out, const uint4 *r, uint32_t p0, uint32_t p1)
{
    const uint32_t none[4] = { AT6, AT8, AT6, AT8 };

#pragma unroll
    for (int i = 0; i < D / 16; i++) {
        uint32_t w = word(r[0], i / 2);
        uint32_t x = i % 2 == 0 ? w << 6 : w >> 2;
        uint32_t y = i % 2 == 0 ? w << 2 : w >> 6;
        uint32_t a[4] = { pick<0x00c000c0, AT6>(x), pick<0x03000300, AT8>(x),
                          pick<0x00c000c0, AT6>(y), pick<0x03000300, AT8>(y) };

        mma(out.o[i], a, p0, p1);
    }
    mma(out.none, none, p0, p1);
}

/* Rows of FP16 as load_columns has them; keep: bits of the tokens 2t, 2t + 1
 * (and + 8) that exist, since a weight of 0 does not make a NaN vanish. */
template <int D>
static __device__ __forceinline__ void
values_dense(output_t<D> &out, const uint4 (&r)[4], int c,
             const uint32_t (&keep)[2], uint32_t p0, uint32_t p1)
{
#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint32_t x = word(r[0], i), y = word(r[1], i);
        uint32_t z = word(r[2], i), u = word(r[3], i);
        uint32_t a[4] = { __byte_perm(x, y, 0x5410) & keep[0],
                          __byte_perm(x, y, 0x7632) & keep[0],
                          __byte_perm(z, u, 0x5410) & keep[1],
                          __byte_perm(z, u, 0x7632) & keep[1] };

        mma(out.o[4 * c + i], a, p0, p1);
    }
}

/* The same for heads that have other tokens, too: dimensions as there, element
 * by element; slow and rare. */
template <int D>
static __device__ __forceinline__ void
values_mixed(output_t<D> &out, const uint8_t *tile, int lane, uint32_t up,
             const uint32_t (&keep)[2], uint32_t p0, uint32_t p1)
{
    const uint16_t *row = (const uint16_t *) tile + lane % 4 * 2 * D + lane / 4;

#pragma unroll
    for (int i = 0; i < D / 16; i++) {
        uint32_t a[4];

#pragma unroll
        for (int k = 0; k < 4; k++) {
            const uint16_t *x = row + k / 2 * up * D + i * 16 + k % 2 * 8;

            a[k] = (__ldg(x) | (uint32_t) __ldg(x + D) << 16) & keep[k / 2];
        }
        mma(out.o[i], a, p0, p1);
    }
}

/* Dimension of o[i][2 * half] in lane group g. */
static __device__ __forceinline__ int
decode_dim(bool dense, int i, int half, int g)
{
    return dense ? i / 4 * 64 + 8 * g + i % 4 * 2 + half
                 : i * 16 + half * 8 + g;
}

#endif
