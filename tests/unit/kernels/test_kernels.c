/*
 * Every kernel of the CPU backend against plain loops in double precision, with
 * each instruction set, on fresh random data of odd sizes; and the promise that
 * a row's bits depend on nothing but the row.
 *
 * Errors are relative to the sum of the magnitudes that a result is made of,
 * and are compared so that NaN fails.
 */
#include "tests/unit/fixtures/model_fixture.h"

#include <math.h>

#include "kernels/cpu/cpu.h"
#include "kernels/hadamard.h"
#include "kernels/kernels.h"

static uint64_t rng;

static const char *const isas[] = { "c", "avx2", "avx512" };
#define N_ISAS 3

static float *
floats(size_t n)
{
    float *x = aligned_alloc(64, tr_pad(n * sizeof(float) + 64, 64));

    assert_non_null(x);
    return x;
}

static void
fill(float *x, size_t n, float scale)
{
    for (size_t i = 0; i < n; i++) {
        x[i] = rng_normal(&rng) * scale;
    }
}

static float *
randoms(size_t n, float scale)
{
    float *x = floats(n);

    fill(x, n, scale);
    return x;
}

#define close_to(got, want, magnitude, tolerance, ...)                       \
    do {                                                                     \
        if (!(fabs((double) (got) - (want)) <= (tolerance) * (magnitude))) { \
            print_message(__VA_ARGS__);                                      \
            fail_msg(": %.9g, expected %.9g within %.2g of %.9g",            \
                     (double) (got), (double) (want), (double) (tolerance),  \
                     (double) (magnitude));                                  \
        }                                                                    \
    } while (0)

/* ---- matrix products ---- */

static tr_cpu_matrix_t
packed(const tr_kernels_t *k, const float *w, uint32_t n, uint32_t kk)
{
    tr_cpu_matrix_t m = { n, kk, floats(k->matrix_bytes(n, kk, TR_F32) / 4),
                          TR_F32 };
    uint32_t cut = n / 3;

    /* in two pieces, as fused matrices are */
    assert_int_equal(k->matrix_pack(&m, 0, cut, w, TR_F32), 0);
    assert_int_equal(k->matrix_pack(&m, cut, n - cut, w + (size_t) cut * kk,
                                    TR_F32),
                     0);
    return m;
}

static void
matmul_shape(const tr_kernels_t *k, uint32_t n, uint32_t kk, uint32_t rows,
             float scale)
{
    tr_stream_t s = { 2, fixture_thread_pool() };
    size_t ldx = kk + 3, ldy = tr_pad(n, TR_COL_PAD), cap = tr_pad(rows, 24);
    float *w = randoms((size_t) n * kk, scale), *x = randoms(cap * ldx, 1);
    float *y = floats(cap * ldy), *base = randoms(cap * ldy, scale);
    tr_cpu_matrix_t m = packed(k, w, n, kk);

    for (int add = 0; add < 2; add++) {
        memset(y, 0xff, cap * ldy * sizeof(float));
        if (add) {
            memcpy(y, base, cap * ldy * sizeof(float));
        }
        assert_int_equal(k->matmul(&s, &m, x, ldx, rows, y, ldy, add), 0);
        for (uint32_t r = 0; r < rows; r += 1 + rows / 7) {
            for (uint32_t j = 0; j < n; j++) {
                double sum = add ? base[r * ldy + j] : 0, size = fabs(sum);

                for (uint32_t i = 0; i < kk; i++) {
                    double p = (double) x[r * ldx + i] * w[(size_t) j * kk + i];

                    sum += p;
                    size += fabs(p);
                }
                close_to(y[r * ldy + j], sum, size, 2e-6,
                         "%s: matmul n=%u k=%u row %u column %u", k->name, n,
                         kk, r, j);
            }
        }
    }
    free(w);
    free(x);
    free(y);
    free(base);
    free(m.data);
}

static void
test_matmul(void **state)
{
    static const uint32_t shapes[][3] = { { 1, 1, 1 },      { 64, 256, 1 },
                                          { 640, 384, 17 }, { 384, 1024, 3 },
                                          { 65, 257, 49 },  { 353, 1000, 5 },
                                          { 63, 513, 100 }, { 4096, 384, 2 },
                                          { 2, 4096, 97 } };
    static const float scales[] = { 1e-6f, 1, 1e4f };
    uint32_t quantum, rows_max;

    (void) state;
    for (int i = 0; i < N_ISAS; i++) {
        const tr_kernels_t *k = tr_kernels_cpu(isas[i]);

        for (size_t j = 0; k && j < sizeof(shapes) / sizeof(shapes[0]); j++) {
            matmul_shape(k, shapes[j][0], shapes[j][1], shapes[j][2],
                         scales[j % 3]);
        }
    }
    tr_panel_blas_scheme(&quantum, &rows_max);
    print_message("OpenBLAS is called with multiples of %u rows, at most %u\n",
                  quantum, rows_max);
    assert_int_equal(rows_max % quantum, 0);
}

/* With AVX2 and AVX-512 an element is one chain of fused multiply-adds; what
 * lies behind the last row is neither read nor written. */
static void
matmul_chain(const tr_kernels_t *k, uint32_t n, uint32_t kk, uint32_t rows)
{
    tr_stream_t s = { 1 + (int) rng_below(&rng, 3), fixture_thread_pool() };
    size_t ldx = kk + rng_below(&rng, 5), ldy = tr_pad(n, TR_COL_PAD) + 64;
    int add = (int) rng_below(&rng, 2);
    float *w = randoms((size_t) n * kk, 1), *x = randoms(rows * ldx, 1);
    float *base = randoms(rows * ldy + 16, 1), *y = floats(rows * ldy + 16);
    tr_cpu_matrix_t m = packed(k, w, n, kk);

    memcpy(y, base, (rows * ldy + 16) * sizeof(float));
    assert_int_equal(k->matmul(&s, &m, x, ldx, rows, y, ldy, add), 0);
    for (uint32_t r = 0; r < rows; r++) {
        for (uint32_t j = 0; j < n; j++) {
            float sum = add ? base[r * ldy + j] : 0;

            for (uint32_t i = 0; i < kk; i++) {
                sum = fmaf(x[r * ldx + i], w[(size_t) j * kk + i], sum);
            }
            if (memcmp(&sum, &y[r * ldy + j], sizeof(sum))) {
                fail_msg("%s: n=%u k=%u rows=%u add=%d: row %u column %u is "
                         "%.9g, the chain gives %.9g",
                         k->name, n, kk, rows, add, r, j,
                         (double) y[r * ldy + j], (double) sum);
            }
        }
        assert_memory_equal(y + r * ldy + tr_pad(n, TR_COL_PAD),
                            base + r * ldy + tr_pad(n, TR_COL_PAD),
                            64 * sizeof(float));
    }
    assert_memory_equal(y + rows * ldy, base + rows * ldy, 16 * sizeof(float));
    free(w);
    free(x);
    free(y);
    free(base);
    free(m.data);
}

static void
test_matmul_chain(void **state)
{
    (void) state;
    for (int i = 1; i < N_ISAS; i++) {
        const tr_kernels_t *k = tr_kernels_cpu(isas[i]);

        if (k == NULL) {
            print_message("%s: not on this processor\n", isas[i]);
            continue;
        }
        for (uint32_t rows = 1; rows <= 40; rows++) {
            matmul_chain(k, 1 + rng_below(&rng, 200), 1 + rng_below(&rng, 600),
                         rows);
        }
        matmul_chain(k, 130, 192, 129); /* more tiles than ask for weights */
        matmul_chain(k, 64, 384, 6);
        matmul_chain(k, 192, 193, 7);
    }
}

/* Weights of 16 bits give the bits that the same numbers give in FP32. */
static void
short_shape(const tr_kernels_t *k, tr_dtype_t type, uint32_t n, uint32_t kk,
            uint32_t rows)
{
    tr_stream_t s = { 1 + (int) rng_below(&rng, 3), fixture_thread_pool() };
    size_t ldx = kk + rng_below(&rng, 5), ldy = tr_pad(n, TR_COL_PAD);
    size_t cap = tr_pad(rows, TR_ROW_PAD), words = (size_t) n * kk;
    int add = (int) rng_below(&rng, 2);
    float *w = randoms(words, 1), *x = randoms(cap * ldx, 1);
    float *wide = randoms(cap * ldy, 1), *narrow = floats(cap * ldy);
    uint16_t *h = malloc(2 * words);
    tr_cpu_matrix_t m = { n, kk, floats(k->matrix_bytes(n, kk, type) / 4),
                          type };
    tr_cpu_matrix_t full;

    for (size_t i = 0; i < words; i++) {
        tr_float_store(h, i, type, w[i]);
        w[i] = tr_float_load(h, i, type);
    }
    full = packed(k, w, n, kk);
    assert_int_equal(2 * k->matrix_bytes(n, kk, type),
                     k->matrix_bytes(n, kk, TR_F32));
    /* from its own type, and from FP32 */
    assert_int_equal(k->matrix_pack(&m, 0, n / 2, h, type), 0);
    assert_int_equal(k->matrix_pack(&m, n / 2, n - n / 2,
                                    w + (size_t) (n / 2) * kk, TR_F32),
                     0);
    memcpy(narrow, wide, cap * ldy * sizeof(float));
    assert_int_equal(k->matmul(&s, &full, x, ldx, rows, wide, ldy, add), 0);
    assert_int_equal(k->matmul(&s, &m, x, ldx, rows, narrow, ldy, add), 0);
    for (uint32_t r = 0; r < rows; r++) {
        if (memcmp(wide + r * ldy, narrow + r * ldy, n * sizeof(float))) {
            fail_msg("%s, %s: n=%u k=%u rows=%u add=%d: row %u has other bits "
                     "than in FP32",
                     k->name, tr_dtype_name(type), n, kk, rows, add, r);
        }
    }
    if (n % (2 * TR_COL_PAD) == 0 && rows <= TR_GATED_ROWS) {
        k->gated(&s, TR_ACT_SILU, &full, x, ldx, rows, wide, ldy);
        assert_int_equal(k->gated(&s, TR_ACT_SILU, &m, x, ldx, rows, narrow,
                                  ldy),
                         0);
        for (uint32_t r = 0; r < rows; r++) {
            assert_memory_equal(wide + r * ldy, narrow + r * ldy,
                                n / 2 * sizeof(float));
        }
    }
    for (int32_t id = 0; id < (int32_t) n; id += 1 + (int32_t) n / 3) {
        assert_int_equal(k->embedding(&s, &m, &id, 1, narrow, kk), 0);
        assert_memory_equal(narrow, w + (size_t) id * kk, kk * sizeof(float));
    }
    free(w);
    free(x);
    free(h);
    free(wide);
    free(narrow);
    free(m.data);
    free(full.data);
}

static void
test_matmul_short(void **state)
{
    (void) state;
    for (int i = 0; i < N_ISAS; i++) {
        const tr_kernels_t *k = tr_kernels_cpu(isas[i]);

        for (tr_dtype_t type = TR_F16; k && type <= TR_BF16; type++) {
            for (uint32_t rows = 1; rows <= 20; rows++) {
                short_shape(k, type, 1 + rng_below(&rng, 200),
                            64 + rng_below(&rng, 600), rows);
            }
            short_shape(k, type, 128, 384, 1);
            short_shape(k, type, 256, 96, 48);
            short_shape(k, type, 130, 193, 129);
        }
    }
}

/* Rows [at, at + rows) alone must have the bits they have among 512. */
static void
invariant_shape(const tr_kernels_t *k, uint32_t n, uint32_t kk)
{
    const uint32_t all = 512;
    size_t ldy = tr_pad(n, TR_COL_PAD), cap = all + TR_ROW_PAD;
    float *w = randoms((size_t) n * kk, 1), *x = randoms(cap * kk, 1);
    float *whole = floats(cap * ldy), *part = floats(cap * ldy);
    tr_cpu_matrix_t m = packed(k, w, n, kk);

    assert_int_equal(k->matmul(&(tr_stream_t){ 1, fixture_thread_pool() }, &m,
                               x, kk, all, whole, ldy, 0),
                     0);
    for (uint32_t rows = 1; rows <= all; rows += rows < 52 ? 1 : 23) {
        uint32_t at = rng_below(&rng, all - rows + 1);
        tr_stream_t s = { 1 + (int) rng_below(&rng, 3), fixture_thread_pool() };

        assert_int_equal(k->matmul(&s, &m, x + (size_t) at * kk, kk, rows, part,
                                   ldy, 0),
                         0);
        for (uint32_t r = 0; r < rows; r++) {
            if (memcmp(part + r * ldy, whole + (at + r) * ldy,
                       n * sizeof(float))) {
                fail_msg("%s: matmul n=%u k=%u: row %u has other bits among %u "
                         "rows from %u with %d threads",
                         k->name, n, kk, at + r, rows, at, s.threads);
            }
        }
    }
    free(w);
    free(x);
    free(whole);
    free(part);
    free(m.data);
}

static void
test_matmul_invariance(void **state)
{
    static const uint32_t shapes[][2] = { { 640, 384 },  { 384, 384 },
                                          { 2048, 384 }, { 384, 1024 },
                                          { 100, 64 },   { 64, 4096 },
                                          { 353, 999 },  { 33, 7 } };

    (void) state;
    for (int i = 0; i < N_ISAS; i++) {
        const tr_kernels_t *k = tr_kernels_cpu(isas[i]);

        for (size_t j = 0; k && j < sizeof(shapes) / sizeof(shapes[0]); j++) {
            invariant_shape(k, shapes[j][0], shapes[j][1]);
        }
    }
}

static void
test_pack(void **state)
{
    const tr_kernels_t *k = tr_kernels_cpu("c");
    static const uint16_t halves[] = { 0x0000, 0x8000, 0x0001, 0x83ff, 0x0400,
                                       0x3c00, 0xc000, 0x7bff, 0xfc00, 0x7e00 };
    static const float values[] = { 0, -0.0f, 0x1p-24f, -0x3ffp-24f, 0x1p-14f,
                                    1, -2,    65504,    -INFINITY,   NAN };
    uint8_t bytes[21];
    tr_cpu_matrix_t m = { 1, 10, floats(k->matrix_bytes(1, 10, TR_F32) / 4),
                          TR_F32 };
    int32_t id = 0;
    float y[10];

    (void) state;
    for (size_t i = 0; i < 10; i++) {
        _Float16 h;

        memcpy(&h, &halves[i], 2);
        assert_memory_equal(&(float){ (float) h }, &values[i],
                            isnan(values[i]) ? 0 : sizeof(float));
    }
    memcpy(bytes + 1, halves, 20); /* unaligned, as in a file */
    assert_int_equal(k->matrix_pack(&m, 0, 1, bytes + 1, TR_F16), 0);
    k->embedding(&(tr_stream_t){ 1, fixture_thread_pool() }, &m, &id, 1, y, 10);
    assert_memory_equal(y, values, 9 * sizeof(float));
    assert_true(isnan(y[9]));
    for (size_t i = 0; i < 10; i++) {
        uint32_t u;

        memcpy(&u, &values[i], 4);
        bytes[2 * i] = (uint8_t) (u >> 16);
        bytes[2 * i + 1] = (uint8_t) (u >> 24);
    }
    assert_int_equal(k->matrix_pack(&m, 0, 1, bytes, TR_BF16), 0);
    k->embedding(&(tr_stream_t){ 1, fixture_thread_pool() }, &m, &id, 1, y, 10);
    assert_true(y[5] == 1 && y[6] == -2 && signbit(y[1]) && isnan(y[9]));
    assert_int_equal(k->matrix_pack(&m, 1, 1, bytes, TR_BF16),
                     TR_KERNEL_BADARG);
    id = 1;
    assert_int_equal(k->embedding(&(tr_stream_t){ 1, fixture_thread_pool() },
                                  &m, &id, 1, y, 10),
                     TR_KERNEL_BADARG);
    id = -1;
    assert_int_equal(k->embedding(&(tr_stream_t){ 1, fixture_thread_pool() },
                                  &m, &id, 1, y, 10),
                     TR_KERNEL_BADARG);
    free(m.data);
}

/* ---- rows ---- */

static void
rmsnorm_rows(const tr_kernels_t *k)
{
    static const uint32_t sizes[][2] = {
        { 1, 384 }, { 1, 1 }, { 3, 96 }, { 2, 128 }, { 1, 1027 }
    };

    for (size_t i = 0; i < 5; i++) {
        uint32_t heads = sizes[i][0], n = sizes[i][1], rows = 41;
        size_t ld = (size_t) heads * n + 5;
        float *x = randoms(rows * ld, powf(10, (float) i - 2));
        float *w = randoms(n, 1), *y = floats(rows * ld);

        assert_int_equal(k->rmsnorm(&(tr_stream_t){ 2, fixture_thread_pool() },
                                    x, ld, rows, heads, n, w, 1e-5f, y, ld),
                         0);
        for (uint32_t r = 0; r < rows * heads; r++) {
            const float *in = x + r / heads * ld + r % heads * n;
            const float *out = y + r / heads * ld + r % heads * n;
            double sum = 0;

            for (uint32_t j = 0; j < n; j++) {
                sum += (double) in[j] * in[j];
            }
            for (uint32_t j = 0; j < n; j++) {
                double want = in[j] / sqrt(sum / n + 1e-5) * w[j];

                close_to(out[j], want, fabs(want), 1e-5, "%s: rmsnorm %u",
                         k->name, n);
            }
        }
        free(x);
        free(w);
        free(y);
    }
}

static void
test_rmsnorm(void **state)
{
    (void) state;
    for (int i = 0; i < N_ISAS; i++) {
        if (tr_kernels_cpu(isas[i]) != NULL) {
            rmsnorm_rows(tr_kernels_cpu(isas[i]));
        }
    }
}

/* AVX2 and AVX-512 give the same bits. */
static void
test_rmsnorm_bits(void **state)
{
    const tr_kernels_t *k[] = { tr_kernels_cpu("avx2"),
                                tr_kernels_cpu("avx512") };

    (void) state;
    for (int i = 0; k[0] && k[1] && i < 50; i++) {
        uint32_t n = 1 + rng_below(&rng, 600);
        float *x = randoms(n, 1), *w = randoms(n, 1), *y[2];

        for (int j = 0; j < 2; j++) {
            y[j] = floats(n);
            assert_int_equal(
                k[j]->rmsnorm(&(tr_stream_t){ 1, fixture_thread_pool() }, x, n,
                              1, 1, n, w, 1e-5f, y[j], n),
                0);
        }
        assert_memory_equal(y[0], y[1], n * sizeof(float));
        free(x);
        free(w);
        free(y[0]);
        free(y[1]);
    }
}

static void
test_act_mul(void **state)
{
    (void) state;
    for (int i = 0; i < N_ISAS; i++) {
        const tr_kernels_t *k = tr_kernels_cpu(isas[i]);
        uint32_t n = 1021, rows = 23;
        float *x = randoms((size_t) rows * 2 * n, 30), *y = floats(rows * n);

        if (k != NULL) {
            x[0] = -1000; /* e^1000 overflows: silu is -0 */
            x[1] = 1000;
            x[2] = 0;
            x[3] = NAN;
            assert_int_equal(k->act_mul(&(tr_stream_t){ 2,
                                                        fixture_thread_pool() },
                                        TR_ACT_SILU, x, 2 * n, rows, n, y, n),
                             0);
            assert_true(isnan(y[3]));
            for (uint32_t r = 0; r < rows; r++) {
                for (uint32_t j = r ? 0 : 4; j < n; j++) {
                    double g = x[r * 2 * n + j], u = x[r * 2 * n + n + j];
                    double want = g / (1 + exp(-g)) * u;

                    close_to(y[r * n + j], want, fabs(want) + 1e-20, 2e-6,
                             "%s: silu of %g", k->name, g);
                }
            }
            close_to(y[0], 0, 1, 1e-30, "%s: silu of -1000", k->name);
            close_to(y[1], 1000.0 * x[n + 1], fabs(1000.0 * x[n + 1]), 2e-6,
                     "%s: silu of 1000", k->name);
            assert_true(y[2] == 0);
            /* what it does not list, it refuses */
            assert_int_equal(k->acts, (1u << TR_ACTS) - 1);
            assert_int_equal(k->act_mul(&(tr_stream_t){ 2,
                                                        fixture_thread_pool() },
                                        TR_ACTS, x, 2 * n, rows, n, y, n),
                             TR_KERNEL_BADARG);
            x[0] = -1000;
            assert_int_equal(
                k->act_mul(&(tr_stream_t){ 2, fixture_thread_pool() },
                           TR_ACT_GELU_TANH, x, 2 * n, rows, n, y, n),
                0);
            close_to(y[0], 0, 1, 1e-30, "%s: gelu of -1000", k->name);
            for (uint32_t r = 1; r < rows; r++) { /* gelu */
                for (uint32_t j = 0; j < n; j++) {
                    double g = x[r * 2 * n + j], u = x[r * 2 * n + n + j];
                    double t = sqrt(2 / M_PI) * (g + 0.044715 * g * g * g);
                    double want = g / 2 * (1 + tanh(t)) * u;

                    close_to(y[r * n + j], want, fabs(g * u) + 1e-20, 2e-6,
                             "%s: gelu of %g", k->name, g);
                }
            }
        }
        free(x);
        free(y);
    }
}

/* The same bits as a product and act_mul, whatever rows and threads. */
static void
gated_shape(const tr_kernels_t *k, uint32_t n, uint32_t kk)
{
    const uint32_t all = TR_GATED_ROWS;
    size_t ldy = 2 * (size_t) n, cap = all + TR_ROW_PAD;
    float *w = randoms(ldy * kk, 1), *x = randoms(cap * kk, 1);
    float *y = floats(cap * ldy), *want = floats(cap * n);
    float *got = floats(cap * n);
    tr_cpu_matrix_t m = packed(k, w, 2 * n, kk);
    tr_stream_t s = { 1, fixture_thread_pool() };

    assert_int_equal(k->matmul(&s, &m, x, kk, all, y, ldy, 0), 0);
    assert_int_equal(k->act_mul(&s, TR_ACT_SILU, y, ldy, all, n, want, n), 0);
    for (uint32_t rows = 1; rows <= all; rows++) {
        uint32_t at = rng_below(&rng, all - rows + 1);

        s.threads = 1 + (int) rng_below(&rng, 3);
        memset(got, 0xff, cap * n * sizeof(float));
        assert_int_equal(k->gated(&s, TR_ACT_SILU, &m, x + (size_t) at * kk, kk,
                                  rows, got, n),
                         0);
        if (memcmp(got, want + (size_t) at * n, rows * n * sizeof(float))) {
            fail_msg("%s: gated n=%u k=%u: other bits in %u rows from %u with "
                     "%d threads",
                     k->name, n, kk, rows, at, s.threads);
        }
    }
    assert_int_equal(k->gated(&s, TR_ACT_SILU, &m, x, kk, all + 1, got, n),
                     TR_KERNEL_BADARG);
    assert_int_equal(k->gated(&s, TR_ACT_SILU, &m, x, kk - 1, 1, got, n),
                     TR_KERNEL_BADARG);
    assert_int_equal(k->gated(&s, TR_ACT_SILU, &m, x, kk, 1, got, n - 1),
                     TR_KERNEL_BADARG);
    assert_int_equal(k->gated(&s, TR_ACTS, &m, x, kk, 1, got, n),
                     TR_KERNEL_BADARG);
    m.n -= TR_COL_PAD; /* halves that do not end with a panel */
    assert_int_equal(k->gated(&s, TR_ACT_SILU, &m, x, kk, 1, got, n),
                     TR_KERNEL_BADARG);
    free(w);
    free(x);
    free(y);
    free(want);
    free(got);
    free(m.data);
}

static void
test_gated(void **state)
{
    (void) state;
    for (int i = 0; i < N_ISAS; i++) {
        const tr_kernels_t *k = tr_kernels_cpu(isas[i]);

        if (k != NULL) {
            gated_shape(k, 1024, 384);
            gated_shape(k, 64, 257);
            gated_shape(k, 192, 7);
        }
    }
}

/* The choice among experts, by the definition: sort, then take. */
static uint32_t
route_best(const double *x, uint32_t n, const bool *taken)
{
    uint32_t best = n;

    for (uint32_t i = 0; i < n; i++) {
        if (!taken[i] && (best == n || x[i] > x[best])) {
            best = i;
        }
    }
    return best;
}

static void
check_route(const tr_route_t *t, const float *logits, const float *bias,
            const uint32_t *expert, const float *weight)
{
    uint32_t size = t->experts / t->groups;
    double score[64], choice[64], group[64], sum = 0, total = 0;
    bool taken[64] = { false }, kept[64] = { false };

    for (uint32_t e = 0; e < t->experts; e++) {
        sum += exp(logits[e]);
    }
    for (uint32_t e = 0; e < t->experts; e++) {
        score[e] = t->score == TR_ROUTE_SIGMOID ? 1 / (1 + exp(-logits[e]))
                                                : exp(logits[e]) / sum;
        choice[e] = score[e] + (bias ? bias[e] : 0);
    }
    for (uint32_t g = 0; g < t->groups; g++) {
        bool seen[64] = { false };
        uint32_t first = route_best(choice + g * size, size, seen);

        seen[first] = true;
        group[g] =
            choice[g * size + first]
            + choice[g * size + route_best(choice + g * size, size, seen)];
    }
    for (uint32_t i = 0; i < t->top_groups; i++) {
        kept[route_best(group, t->groups, kept)] = true;
    }
    for (uint32_t e = 0; e < t->experts; e++) {
        taken[e] = !kept[e / size];
    }
    for (uint32_t k = 0; k < t->top_k; k++) {
        uint32_t e = route_best(choice, t->experts, taken);

        assert_int_equal(expert[k], e);
        taken[e] = true;
        total += score[e];
    }
    for (uint32_t k = 0; k < t->top_k; k++) {
        bool divides = t->renorm || t->score == TR_ROUTE_TOP_SOFTMAX;
        double want = score[expert[k]] / (divides ? total : 1) * t->scale;

        close_to(weight[k], want, want, 2e-6, "weight of an expert");
    }
}

static void
test_experts(void **state)
{
    const tr_kernels_t *k = tr_kernels_cpu(NULL);
    static const tr_route_t routes[] = {
        { 64, 8, 1, 1, TR_ROUTE_SOFTMAX, true, 1 },
        { 64, 8, 1, 1, TR_ROUTE_SOFTMAX, false, 1 },
        { 32, 4, 1, 1, TR_ROUTE_TOP_SOFTMAX, false, 1 },
        { 24, 6, 4, 2, TR_ROUTE_SIGMOID, true, 2.5f },
    };
    const uint32_t rows = 50, n = 200;
    float *logits = randoms(rows * 64, 3), *bias = randoms(64, 0.3f);
    uint32_t expert[50 * 8], place[50 * 8];
    float weight[50 * 8], *x = randoms(rows * 8 * n, 1), *y = floats(rows * n);
    tr_stream_t s = { 2, fixture_thread_pool() };

    (void) state;
    for (size_t i = 0; i < sizeof(routes) / sizeof(routes[0]); i++) {
        const tr_route_t *t = &routes[i];
        const float *with = t->score == TR_ROUTE_SIGMOID ? bias : NULL;

        assert_int_equal(k->route(&s, t, logits, 64, rows, with, expert,
                                  weight),
                         0);
        for (uint32_t r = 0; r < rows; r++) {
            check_route(t, logits + r * 64, with, expert + r * t->top_k,
                        weight + r * t->top_k);
        }
        for (uint32_t j = 0; j < rows * t->top_k; j++) {
            place[j] = rng_below(&rng, rows * 8);
        }
        assert_int_equal(k->sum_experts(&s, x, n, rows, t->top_k, n, place,
                                        weight, y, n),
                         0);
        for (uint32_t j = 0; j < rows * n; j++) {
            double want = 0, size = 0;

            for (uint32_t q = 0; q < t->top_k; q++) {
                uint32_t at = j / n * t->top_k + q;
                double part = (double) weight[at] * x[place[at] * n + j % n];

                want += part;
                size += fabs(part);
            }
            close_to(y[j], want, size + 1e-9, 1e-6, "sum of experts");
        }
    }
    for (uint32_t bad = 0; bad < 3; bad++) {
        tr_route_t t = routes[3];

        t.top_k = bad == 0 ? 13 : t.top_k; /* two groups have 12 */
        t.groups = bad == 1 ? 5 : t.groups;
        t.experts = bad == 2 ? TR_EXPERTS_MAX + 4 : t.experts;
        assert_int_equal(k->route(&s, &t, logits, 64, 1, NULL, expert, weight),
                         TR_KERNEL_BADARG);
    }
    free(logits);
    free(bias);
    free(x);
    free(y);
}

/* What some families scale, and caps of logits. */
static void
test_scales(void **state)
{
    const tr_kernels_t *k = tr_kernels_cpu(NULL);
    const uint32_t rows = 7, n = 700;
    float *x = randoms(rows * n, 3), *y = randoms(rows * n, 3);
    float *sum = floats(rows * n), *cap = floats(rows * n);
    tr_stream_t s = { 2, fixture_thread_pool() };

    (void) state;
    memcpy(sum, y, rows * n * sizeof(float));
    memcpy(cap, y, rows * n * sizeof(float));
    assert_int_equal(k->add_scaled(&s, x, n, rows, n, 0.22f, sum, n), 0);
    assert_int_equal(k->scale_cap(&s, cap, n, rows, n, 2.5f, 5), 0);
    for (uint32_t i = 0; i < rows * n; i++) {
        double want = y[i] + 0.22 * x[i];

        close_to(sum[i], want, fabs(y[i]) + fabs(x[i]), 1e-6, "add_scaled");
        close_to(cap[i], 5 * tanh(2.5 * y[i] / 5), 1, 2e-6, "scale_cap");
    }
    memcpy(cap, y, rows * n * sizeof(float));
    assert_int_equal(k->scale_cap(&s, cap, n, rows, n, 1, 0), 0);
    assert_memory_equal(cap, y, rows * n * sizeof(float));
    assert_int_equal(k->scale_cap(&s, cap, n, rows, n, 1, NAN),
                     TR_KERNEL_BADARG);
    assert_int_equal(k->add_scaled(&s, x, n, rows, n + 1, 1, sum, n + 1),
                     TR_KERNEL_BADARG);
    free(x);
    free(y);
    free(sum);
    free(cap);
}

static void
test_rope(void **state)
{
    const tr_kernels_t *k = tr_kernels_cpu(NULL);
    const uint32_t rows = 19, heads = 3, dim = 96, half = dim / 2;
    uint32_t pos[19];
    float inv[48], *angles = floats(rows * dim);
    float *x = randoms(rows * heads * dim, 1), *y = floats(rows * heads * dim);

    (void) state;
    for (uint32_t i = 0; i < half; i++) {
        inv[i] = powf(10000, -2.0f * (float) i / (float) dim);
    }
    for (uint32_t r = 0; r < rows; r++) {
        pos[r] = rng_below(&rng, 4096);
    }
    memcpy(y, x, rows * heads * dim * sizeof(float));
    assert_int_equal(k->rope_angles(&(tr_stream_t){ 2, fixture_thread_pool() },
                                    pos, rows, inv, NULL, NULL, half, angles),
                     0);
    assert_int_equal(k->rope(&(tr_stream_t){ 2, fixture_thread_pool() }, y,
                             heads * dim, rows, heads, dim, angles),
                     0);
    for (uint32_t i = 0; i < rows * heads; i++) {
        const float *in = x + i * dim, *out = y + i * dim;

        for (uint32_t j = 0; j < half; j++) {
            double a = (double) ((float) pos[i / heads] * inv[j]);
            double u = in[j], v = in[half + j];

            close_to(out[j], u * cos(a) - v * sin(a), fabs(u) + fabs(v), 1e-6,
                     "rope");
            close_to(out[half + j], v * cos(a) + u * sin(a), fabs(u) + fabs(v),
                     1e-6, "rope");
        }
    }
    free(angles);
    free(x);
    free(y);
}

/* Sylvester's matrix has the sign of the number of bits that i and j share. */
static void
test_hadamard(void **state)
{
    const tr_kernels_t *k = tr_kernels_cpu(NULL);
    const tr_stream_t s = { 2, fixture_thread_pool() };
    const uint32_t rows = 7, heads = 3;

    (void) state;
    for (uint32_t dim = 16; dim <= TR_HEAD_DIM_MAX; dim *= 2) {
        size_t ld = heads * dim + 5;
        float *x = randoms(rows * ld, 1), *y = floats(rows * ld);

        memcpy(y, x, rows * ld * sizeof(float));
        assert_int_equal(k->hadamard(&s, y, ld, rows, heads, dim), 0);
        for (uint32_t i = 0; i < rows * heads * dim; i++) {
            const float *in = x + i / (heads * dim) * ld
                              + i / dim % heads * dim;
            double want = 0, size = 0;

            for (uint32_t j = 0; j < dim; j++) {
                int odd = __builtin_popcount(i % dim & j) & 1;

                want += (odd ? -1 : 1) * tr_hadamard_sign(j) * in[j];
                size += fabs(in[j]);
            }
            close_to(y[in - x + i % dim], want / sqrt(dim), size, 1e-6,
                     "hadamard of %u", dim);
        }
        for (uint32_t r = 0; r < rows; r++) { /* the rest is not touched */
            assert_memory_equal(x + r * ld + ld - 5, y + r * ld + ld - 5, 20);
        }
        memcpy(y, x, dim * sizeof(float)); /* as it is done to weights */
        tr_hadamard(y, 1, dim);
        k->hadamard(&s, x, ld, 1, 1, dim);
        for (uint32_t i = 0; i < dim; i++) {
            close_to(y[i], x[i], 1, 1e-5, "one head of %u", dim);
        }
        free(x);
        free(y);
    }
    assert_int_equal(k->hadamard(&s, NULL, 96, 1, 1, 96), TR_KERNEL_BADARG);
}

static void
test_add_bias(void **state)
{
    const tr_kernels_t *k = tr_kernels_cpu(NULL);
    float *x = randoms(37 * 70, 1), *y = floats(37 * 70), *b = randoms(67, 1);

    (void) state;
    memcpy(y, x, 37 * 70 * sizeof(float));
    assert_int_equal(k->add_bias(&(tr_stream_t){ 2, fixture_thread_pool() }, y,
                                 70, 37, b, 67),
                     0);
    for (uint32_t i = 0; i < 37 * 70; i++) {
        assert_true(y[i] == (i % 70 < 67 ? x[i] + b[i % 70] : x[i]));
    }
    free(x);
    free(y);
    free(b);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_matmul),
        cmocka_unit_test(test_matmul_chain),
        cmocka_unit_test(test_matmul_short),
        cmocka_unit_test(test_matmul_invariance),
        cmocka_unit_test(test_pack),
        cmocka_unit_test(test_rmsnorm),
        cmocka_unit_test(test_rmsnorm_bits),
        cmocka_unit_test(test_act_mul),
        cmocka_unit_test(test_gated),
        cmocka_unit_test(test_scales),
        cmocka_unit_test(test_experts),
        cmocka_unit_test(test_rope),
        cmocka_unit_test(test_hadamard),
        cmocka_unit_test(test_add_bias),
    };

    rng = rng_seed();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
