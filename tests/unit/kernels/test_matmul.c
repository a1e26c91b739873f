/*
 * Matrix products of the CPU backend against plain loops in double precision,
 * with each instruction set, on fresh random data of odd sizes; and the promise
 * that a row's bits depend on nothing but the row.
 */
#include "tests/unit/fixtures/kernels_fixture.h"

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
    tr_cpu_matrix_t m = { n,    kk,    floats(k->matrix_bytes(n, kk, type) / 4),
                          type, { 0 }, NULL };
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

/* Rows that stay where they are, panels in any order and at odd places, give the
 * bits of those that were packed. */
static void
mapped_shape(const tr_kernels_t *k, tr_dtype_t type, uint32_t panels,
             uint32_t kk, uint32_t rows)
{
    tr_stream_t s = { 1 + (int) rng_below(&rng, 3), fixture_thread_pool() };
    uint32_t n = panels * TR_COL_PAD;
    size_t ldx = kk + rng_below(&rng, 5), ldy = n + 64;
    size_t cap = tr_pad(rows, TR_ROW_PAD), bytes = TR_COL_PAD * 2ul * kk;
    int add = (int) rng_below(&rng, 2);
    float *x = randoms(cap * ldx, 1), *was = randoms(cap * ldy, 1);
    float *got = floats(cap * ldy), *w = randoms((size_t) n * kk, 1);
    const void **panel = malloc(panels * sizeof(*panel));
    uint8_t *file = malloc(panels * (bytes + 2));
    tr_cpu_matrix_t m = { n,    kk,    floats(k->matrix_bytes(n, kk, type) / 4),
                          type, { 0 }, NULL };
    tr_cpu_matrix_t mapped = { n, kk, NULL, type, { 0 }, panel };

    assert_true(k->matrix_maps(n, kk, type));
    for (uint32_t p = 0; p < panels; p++) {
        uint8_t *at = file + (panels - 1 - p) * (bytes + 2);

        panel[p] = at;
        for (size_t i = 0; i < (size_t) TR_COL_PAD * kk; i++) {
            tr_float_store(at, i, type, w[(size_t) p * TR_COL_PAD * kk + i]);
        }
        k->matrix_pack(&m, p * TR_COL_PAD, TR_COL_PAD, at, type);
    }
    memcpy(got, was, cap * ldy * sizeof(float));
    assert_int_equal(k->matmul(&s, &m, x, ldx, rows, was, ldy, add), 0);
    assert_int_equal(k->matmul(&s, &mapped, x, ldx, rows, got, ldy, add), 0);
    for (uint32_t r = 0; r < rows; r++) {
        if (memcmp(was + r * ldy, got + r * ldy, ldy * sizeof(float))) {
            fail_msg("%s, %s: n=%u k=%u rows=%u add=%d: row %u has other bits "
                     "where it is mapped",
                     k->name, tr_dtype_name(type), n, kk, rows, add, r);
        }
    }
    if (panels % 2 == 0 && rows <= TR_GATED_ROWS
        && k->gated(&s, TR_ACT_SILU, &m, x, ldx, rows, was, ldy) == 0) {
        assert_int_equal(k->gated(&s, TR_ACT_SILU, &mapped, x, ldx, rows, got,
                                  ldy),
                         0);
        for (uint32_t r = 0; r < rows; r++) {
            assert_memory_equal(was + r * ldy, got + r * ldy,
                                n / 2 * sizeof(float));
        }
    }
    for (int32_t id = 0; id < (int32_t) n; id += 1 + (int32_t) n / 3) {
        k->embedding(&s, &m, &id, 1, was, ldy);
        assert_int_equal(k->embedding(&s, &mapped, &id, 1, got, ldy), 0);
        assert_memory_equal(was, got, kk * sizeof(float));
    }
    assert_int_equal(k->matrix_pack(&mapped, 0, 1, file, type),
                     TR_KERNEL_BADARG);
    free(x);
    free(was);
    free(got);
    free(w);
    free(panel);
    free(file);
    free(m.data);
}

static void
test_matmul_mapped(void **state)
{
    (void) state;
    for (int i = 0; i < N_ISAS; i++) {
        const tr_kernels_t *k = tr_kernels_cpu(isas[i]);

        for (tr_dtype_t type = TR_F16; k && type <= TR_BF16; type++) {
            for (uint32_t rows = 1; rows <= 20; rows++) {
                mapped_shape(k, type, 1 + rng_below(&rng, 4),
                             32 + 32 * rng_below(&rng, 20), rows);
            }
            mapped_shape(k, type, 4, 384, 49);
            mapped_shape(k, type, 1, 224, 129);
        }
        if (k != NULL) {
            assert_false(k->matrix_maps(63, 64, TR_BF16));
            assert_false(k->matrix_maps(64, 48, TR_BF16));
            assert_false(k->matrix_maps(64, 64, TR_F32));
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
    tr_cpu_matrix_t m = {
        1, 10, floats(k->matrix_bytes(1, 10, TR_F32) / 4), TR_F32, { 0 }, NULL
    };
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

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_matmul),
        cmocka_unit_test(test_matmul_chain),
        cmocka_unit_test(test_matmul_short),
        cmocka_unit_test(test_matmul_mapped),
        cmocka_unit_test(test_matmul_invariance),
        cmocka_unit_test(test_pack),
    };

    rng = rng_seed();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
