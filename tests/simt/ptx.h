/*
 * ptx.h: the instructions of kernels/cuda/ptx.cuh, wgmma.cuh and
 * small_gemm_ptx.cuh for the device in software; what they do is said there.
 */
#ifndef TR_TESTS_SIMT_PTX_H
#define TR_TESTS_SIMT_PTX_H

/* In their place. */
#define TR_CUDA_PTX_CUH
#define TR_CUDA_WGMMA_CUH
#define TR_CUDA_SMALL_GEMM_PTX_CUH

#define TR_ALL_LANES 0xffffffffu
#define TR_WGMMA (SIMT_CODE == 90)

static inline uint32_t
smem_address(const void *p)
{
    return simt_address(p);
}

/* ---- products of a warp -------------------------------------------------- */

static inline void
simt_floats(float *to, uint32_t halves)
{
    to[0] = simt_half((uint16_t) halves);
    to[1] = simt_half((uint16_t) (halves >> 16));
}

/* What lane 4g + t tells: A's elements of row g, then of row g + 8, B's of
 * column g; of each 2t, 2t + 1 and, K being 16, 8 further on. */
typedef struct {
    float a[2][4], b[4];
} simt_halves_t;

template <int K>
static inline void
simt_mma(float (&c)[4], const simt_halves_t &mine)
{
    const simt_post_t *post = simt_meet(&mine, sizeof(mine));
    const unsigned lane = simt_lane(), g = lane / 4, t = lane % 4;

    for (int r = 0; r < 2; r++) {
        for (unsigned n = 0; n < 2; n++) {
            float sum = 0;

            for (unsigned j = 0; j < 4; j++) {
                const simt_halves_t *a = (const simt_halves_t *)
                    post[4 * g + j];
                const simt_halves_t *b = (const simt_halves_t *)
                    post[4 * (2 * t + n) + j];

                for (int i = 0; i < K / 4; i++) {
                    sum += a->a[r][i] * b->b[i];
                }
            }
            c[2 * r + (int) n] += sum;
        }
    }
}

static inline void
mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    simt_halves_t h;

    simt_floats(h.a[0], a[0]);
    simt_floats(h.a[1], a[1]);
    simt_floats(h.a[0] + 2, a[2]);
    simt_floats(h.a[1] + 2, a[3]);
    simt_floats(h.b, b0);
    simt_floats(h.b + 2, b1);
    simt_mma<16>(c, h);
}

static inline void
simt_bf16_floats(float *to, uint32_t pair)
{
    const uint32_t bits[2] = { pair << 16, pair & 0xffff0000u };

    memcpy(to, bits, sizeof(bits));
}

static inline void
mma_bf16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    simt_halves_t h;

    simt_bf16_floats(h.a[0], a[0]);
    simt_bf16_floats(h.a[1], a[1]);
    simt_bf16_floats(h.a[0] + 2, a[2]);
    simt_bf16_floats(h.a[1] + 2, a[3]);
    simt_bf16_floats(h.b, b0);
    simt_bf16_floats(h.b + 2, b1);
    simt_mma<16>(c, h);
}

static inline void
mma_short(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t b)
{
    simt_halves_t h;

    simt_floats(h.a[0], a0);
    simt_floats(h.a[1], a1);
    simt_floats(h.b, b);
    simt_mma<8>(c, h);
}

/* Words of four bytes: of A rows g and g + 8, of B column g. */
typedef struct {
    uint8_t a[2][8];
    int8_t b[8];
} simt_bytes_t;

template <int K>
static inline void
simt_mma_bytes(int (&c)[4], const simt_bytes_t &mine)
{
    const simt_post_t *post = simt_meet(&mine, sizeof(mine));
    const unsigned lane = simt_lane(), g = lane / 4, t = lane % 4;

    for (int r = 0; r < 2; r++) {
        for (unsigned n = 0; n < 2; n++) {
            int sum = 0;

            for (unsigned j = 0; j < 4; j++) {
                const simt_bytes_t *a = (const simt_bytes_t *) post[4 * g + j];
                const simt_bytes_t *b = (const simt_bytes_t *)
                    post[4 * (2 * t + n) + j];

                for (int i = 0; i < K / 4; i++) {
                    sum += a->a[r][i] * b->b[i];
                }
            }
            c[2 * r + (int) n] += sum;
        }
    }
}

static inline void
mma_bytes(int (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
          uint32_t b0, uint32_t b1)
{
    simt_bytes_t w;

    memcpy(w.a[0], &a0, 4);
    memcpy(w.a[1], &a1, 4);
    memcpy(w.a[0] + 4, &a2, 4);
    memcpy(w.a[1] + 4, &a3, 4);
    memcpy(w.b, &b0, 4);
    memcpy(w.b + 4, &b1, 4);
    simt_mma_bytes<32>(c, w);
}

static inline void
mma_bytes_short(int (&c)[4], uint32_t a0, uint32_t a1, uint32_t b)
{
    simt_bytes_t w;

    memcpy(w.a[0], &a0, 4);
    memcpy(w.a[1], &a1, 4);
    memcpy(w.b, &b, 4);
    simt_mma_bytes<16>(c, w);
}

static inline uint32_t
simt_two(uint16_t lo, uint16_t hi)
{
    return lo | (uint32_t) hi << 16;
}

static inline uint32_t
transpose(uint32_t x)
{
    const simt_post_t *post = simt_meet(&x, sizeof(x));
    const unsigned lane = simt_lane(), g = lane / 4, t = lane % 4;
    uint16_t two[2];

    for (unsigned i = 0; i < 2; i++) {
        memcpy(&two[i], post[4 * (2 * t + i) + g / 2] + g % 2 * 2, 2);
    }
    return simt_two(two[0], two[1]);
}

static inline void
simt_aligned(uint32_t at, uint32_t bytes)
{
    if (at % bytes != 0) {
        simt_die("%u bytes of shared memory at %u", bytes, at);
    }
}

template <bool TRANSPOSED>
static inline void
load_matrices(uint32_t (&r)[4], uint32_t at)
{
    const unsigned lane = simt_lane(), g = lane / 4, t = lane % 4;
    const simt_post_t *post;
    uint32_t row[32];

    simt_aligned(at, 16);
    post = simt_meet(&at, sizeof(at));
    for (unsigned i = 0; i < 32; i++) {
        memcpy(&row[i], post[i], 4);
    }
    for (unsigned m = 0; m < 4; m++) {
        const uint32_t *of = row + 8 * m;
        uint16_t two[2];

        for (unsigned i = 0; i < 2; i++) {
            memcpy(&two[i],
                   TRANSPOSED ? simt_pointer(of[2 * t + i]) + 2 * g
                              : simt_pointer(of[g]) + 4 * t + 2 * i,
                   2);
        }
        r[m] = simt_two(two[0], two[1]);
    }
}

/* ---- numbers ------------------------------------------------------------- */

static inline float
exp2_fast(float x)
{
    float y = exp2f(x);

    return y < 0x1p-126f ? 0 : y;
}

static inline float
reciprocal(float x)
{
    return 1 / x;
}

static inline uint32_t
half2_bits(float lo, float hi)
{
    __half2 h = __floats2half2_rn(lo, hi);
    uint32_t bits;

    memcpy(&bits, &h, 4);
    return bits;
}

static inline float2
half2_floats(uint32_t bits)
{
    return make_float2(simt_half((uint16_t) bits),
                       simt_half((uint16_t) (bits >> 16)));
}

/* ---- memory -------------------------------------------------------------- */

static inline void
prefetch_l2_bytes(const void *p, uint32_t bytes)
{
    if (((uintptr_t) p | bytes) % 16 != 0) {
        simt_die("a prefetch of %u bytes at %p", bytes, p);
    }
}

static inline void
prefetch_l2(const void *)
{
}

static inline uint64_t
l2_policy(void)
{
    return 0;
}

static inline uint64_t
l2_policy_stay(float share)
{
    if (!(share > 0 && share <= 1)) {
        simt_die("a share of %g", (double) share);
    }
    return 0;
}

static inline uint64_t
l2_policy_stay(void)
{
    return 0;
}

static inline void
store_hinted(void *p, uint32_t x, uint64_t)
{
    *(uint32_t *) p = x;
}

template <typename T>
static inline T
simt_shared_load(uint32_t at)
{
    T x;

    simt_aligned(at, sizeof(T));
    memcpy(&x, simt_pointer(at), sizeof(T));
    return x;
}

static inline uint4
load_once16(const void *p)
{
    return __ldg((const uint4 *) p);
}

static inline uint32_t
load_once4(const void *p)
{
    return __ldg((const uint32_t *) p);
}

static inline uint4
shared_load16(uint32_t at)
{
    return simt_shared_load<uint4>(at);
}

static inline uint2
shared_load8(uint32_t at)
{
    return simt_shared_load<uint2>(at);
}

static inline uint32_t
shared_load4(uint32_t at)
{
    return simt_shared_load<uint32_t>(at);
}

static inline float4
load_float4(uint32_t at)
{
    return simt_shared_load<float4>(at);
}

static inline void
shared_store8(uint32_t at, uint32_t x, uint32_t y)
{
    simt_aligned(at, 8);
    memcpy(simt_pointer(at), &x, 4);
    memcpy(simt_pointer(at) + 4, &y, 4);
}

static inline void
shared_store4(uint32_t at, float x)
{
    simt_aligned(at, 4);
    memcpy(simt_pointer(at), &x, 4);
}

static inline void
zero16(uint32_t at)
{
    simt_aligned(at, 16);
    memset(simt_pointer(at), 0, 16);
}

static inline uint32_t
load_acquire(const uint32_t *p)
{
    simt_yield(); /* who asks again and again must not be alone */
    return __atomic_load_n(p, __ATOMIC_ACQUIRE);
}

static inline void
add_release(uint32_t *p, uint32_t x)
{
    __atomic_fetch_add(p, x, __ATOMIC_RELEASE);
}

/* ---- copies -------------------------------------------------------------- */

static inline void
copy_async16(uint32_t dst, const uint8_t *src, uint64_t)
{
    simt_copy16(dst, src, 16);
}

static inline void
copy_arrive(uint32_t bar)
{
    simt_copy_arrive(bar);
}

static inline void
copy16(uint32_t dst, const void *src, uint32_t bytes)
{
    simt_copy16(dst, src, bytes);
}

static inline void
copy_engine(uint32_t dst, const uint8_t *src, uint32_t bytes, uint32_t bar,
            uint64_t)
{
    simt_copy_bulk(dst, src, bytes, bar);
}

static inline void
copy_bulk(uint32_t dst, const void *src, uint32_t bytes, uint32_t bar)
{
    simt_copy_bulk(dst, src, bytes, bar);
}

static inline void
copy_box(uint32_t dst, const CUtensorMap *map, uint32_t group, int32_t page,
         uint32_t bar)
{
    const uint32_t at[5] = { 0, 0, 0, group, (uint32_t) page };

    simt_copy_box(dst, map, at, bar);
}

static inline void
copy_weights(uint32_t dst, const CUtensorMap *map, uint32_t piece,
             uint32_t eight, uint32_t bar, uint64_t)
{
    const uint32_t at[5] = { 0, 0, 0, eight, piece };

    simt_copy_box(dst, map, at, bar);
}

static inline void
copy_rows(uint32_t dst, const CUtensorMap *map, uint32_t piece, uint32_t bar,
          uint64_t)
{
    const uint32_t at[3] = { 0, 0, piece };

    simt_copy_box(dst, map, at, bar);
}

static inline void
copy_tile(uint32_t dst, const CUtensorMap *map, uint32_t column, uint32_t row,
          uint32_t bar)
{
    const uint32_t at[2] = { column, row };

    simt_copy_box(dst, map, at, bar);
}

/* A lane's address, and its part of each matrix. */
typedef struct {
    uint32_t at, two[4];
} simt_turned_t;

static inline void
store_turned(uint32_t at, uint32_t a, uint32_t b, uint32_t c, uint32_t d)
{
    const simt_turned_t mine = { at, { a, b, c, d } };
    const simt_post_t *post = simt_meet(&mine, sizeof(mine));
    const unsigned lane = simt_lane(), column = lane % 8;

    for (unsigned row = 0; row < 8; row++) {
        const simt_turned_t *from = (const simt_turned_t *)
            post[row * 4 + column / 2];
        uint16_t x = (uint16_t) (from->two[lane / 8] >> column % 2 * 16);

        simt_aligned(at, 16);
        memcpy(simt_pointer(at) + 2 * row, &x, 2);
    }
}

static inline void
prefetch_map(const CUtensorMap *)
{
}

/* ---- barriers ------------------------------------------------------------ */

static inline void
bar_init(uint32_t bar, uint32_t count)
{
    simt_bar_init(bar, count);
}

static inline void
bar_arrive(uint32_t bar)
{
    simt_bar_arrive(bar, 1, 0);
}

static inline void
bar_wait(uint32_t bar, uint32_t parity)
{
    simt_bar_wait(bar, parity);
}

static inline void
bar_arrive_for(uint32_t bar, uint32_t count)
{
    simt_bar_arrive(bar, count, 0);
}

static inline void
bar_expect(uint32_t bar, uint32_t bytes)
{
    simt_bar_arrive(bar, 1, bytes);
}

static inline void
bar_named(int id, int threads)
{
    simt_named((uint32_t) id, (uint32_t) threads, true);
}

static inline void
bar_named_arrive(int id, int threads)
{
    simt_named((uint32_t) id, (uint32_t) threads, false);
}

static inline void
cluster_arrive(void)
{
    simt_cluster_arrive();
}

static inline void
cluster_wait(void)
{
    simt_cluster_wait();
}

template <int N>
static inline void
cluster_store(uint32_t at, const float (&v)[4], uint32_t bar, uint32_t rank)
{
    simt_cluster_store(at, v, N * 4, bar, rank);
}

/* The host's memory and its order of events are stricter than these ask for. */
static inline void
fence_init(void)
{
}
static inline void
fence_async(void)
{
}
static inline void
fence_async_global(void)
{
}
static inline void
launch_next(void)
{
}
static inline void
launch_wait(void)
{
}

/* ---- products of a warpgroup --------------------------------------------- */

template <int N>
static inline void
registers_more(void)
{
}
template <int N>
static inline void
registers_less(void)
{
}
static inline void
wgmma_begin(void)
{
}

static inline void
wgmma_end(void)
{
    simt_products_end();
}

template <int N>
static inline void
wgmma_wait(void)
{
    simt_products_wait(N);
    simt_meet(NULL, 0); /* a warp waits as one: one lane may speak for all */
}

template <int N>
static inline void
wgmma_touch(float (&)[N])
{
}

static inline uint64_t
wgmma_operand(uint32_t at, uint32_t atom, uint32_t column)
{
    return (uint64_t) ((at & 0x3ffff) >> 4) | (uint64_t) (column >> 4) << 16
           | (uint64_t) (atom >> 4) << 32 | (uint64_t) 1 << 62;
}

template <int N>
static inline void
wgmma_ss(float (&c)[N], uint64_t a, uint64_t b, int add)
{
    simt_product_t p = {};

    p.c = c;
    p.n = 2 * N;
    p.a = a;
    p.b = b;
    p.add = add != 0;
    simt_product(&p);
}

template <bool BF16>
static inline void
simt_rows(simt_product_t *p, const uint32_t (&a)[4])
{
    const unsigned lane = simt_lane(), g = lane / 4;
    const simt_post_t *post = simt_meet(a, sizeof(a));

    for (unsigned j = 0; j < 4; j++) {
        uint32_t w[4];

        memcpy(w, post[4 * g + j], sizeof(w));
        for (unsigned i = 0; i < 4; i++) {
            float *two = &p->rows[i % 2][i / 2 * 8 + 2 * j];

            if (BF16) {
                simt_bf16_floats(two, w[i]);
            } else {
                simt_floats(two, w[i]);
            }
        }
    }
}

template <int TRANSPOSED, int N>
static inline void
wgmma_rs(float (&c)[N], const uint32_t (&a)[4], uint64_t b, int add)
{
    simt_product_t p = {};

    simt_rows<false>(&p, a);
    p.c = c;
    p.n = 2 * N;
    p.b = b;
    p.add = add != 0;
    p.transposed = TRANSPOSED;
    p.from_regs = true;
    simt_product(&p);
}

static inline float
simt_e4m3(uint32_t code)
{
    const uint32_t bits = (code & 0x7f) << 20 | (code & 0x80) << 24;
    float x;

    memcpy(&x, &bits, 4);
    return (code & 0x7f) == 0x7f ? NAN : x * 0x1p120f;
}

static inline uint32_t
simt_to_e4m3(float x)
{
    float size = fabsf(x);
    uint32_t code = 0x7e;
    int e;

    if (isnan(x)) {
        return 0x7f;
    }
    if (size < 448) {
        frexpf(size, &e);
        e = size == 0 || e < -5 ? -5 : e;
        code = ((uint32_t) (e + 5) << 3)
               + (uint32_t) rintf(ldexpf(size, 4 - e));
    }
    return code | (signbit(x) ? 0x80u : 0);
}

static inline uint32_t
fp8_pair(float lo, float hi)
{
    return simt_to_e4m3(lo) | simt_to_e4m3(hi) << 8;
}

/* What lane 4g + t tells: columns 4t .. 4t + 3 of rows g and g + 8, and those 16
 * further on. */
static inline void
wgmma_fp8(float (&c)[64], const uint32_t (&a)[4], uint64_t b, int add)
{
    const unsigned lane = simt_lane(), g = lane / 4;
    const simt_post_t *post = simt_meet(a, sizeof(a));
    simt_product_t p = {};

    for (unsigned j = 0; j < 4; j++) {
        uint32_t w[4];

        memcpy(w, post[4 * g + j], sizeof(w));
        for (unsigned i = 0; i < 16; i++) {
            p.rows[i / 4 % 2][i / 8 * 16 + 4 * j + i % 4] = simt_e4m3(
                w[i / 4] >> i % 4 * 8 & 0xff);
        }
    }
    p.c = c;
    p.n = 128;
    p.b = b;
    p.add = add != 0;
    p.fp8 = p.from_regs = true;
    simt_product(&p);
}

/* kernels/cuda/gemm/small_gemm_ptx.cuh's, in BF16. */
template <int N>
static inline void
multiply(float (&c)[N], uint64_t a, uint64_t b)
{
    simt_product_t p = {};

    p.c = c;
    p.n = 2 * N;
    p.a = a;
    p.b = b;
    p.add = p.bf16 = true;
    simt_product(&p);
}

template <int N>
static inline void
multiply(float (&c)[N], const uint32_t (&a)[4], uint64_t b, int add)
{
    simt_product_t p = {};

    simt_rows<true>(&p, a);
    p.c = c;
    p.n = 2 * N;
    p.b = b;
    p.add = add != 0;
    p.bf16 = p.from_regs = true;
    simt_product(&p);
}

template <int N>
static inline void
wgmma_touch(uint32_t (&)[N][4])
{
}

/* ---- pairs of BF16 ------------------------------------------------------- */

static inline uint16_t
simt_bf16(float x)
{
    __nv_bfloat16 h = __float2bfloat16_rn(x);
    uint16_t u;

    memcpy(&u, &h, 2);
    return u;
}

static inline uint32_t
bf16_mul(uint32_t a, uint32_t b)
{
    float x[2], y[2];

    simt_bf16_floats(x, a);
    simt_bf16_floats(y, b);
    return simt_two(simt_bf16(x[0] * y[0]), simt_bf16(x[1] * y[1]));
}

static inline uint32_t
bf16_sub(uint32_t a, uint32_t b)
{
    float x[2], y[2];

    simt_bf16_floats(x, a);
    simt_bf16_floats(y, b);
    return simt_two(simt_bf16(x[0] - y[0]), simt_bf16(x[1] - y[1]));
}

#endif
