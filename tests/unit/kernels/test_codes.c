/*
 * Products with weights that stay integers (kernels/cpu/gemm/codes.h), on fresh
 * random data: the plain C kernel against loops that know nothing of its layout,
 * every instruction set against plain C, bit by bit; the promise that a row's bits
 * depend on nothing but the row; and packing.
 */
#include "tests/unit/fixtures/kernels_fixture.h"

#include "kernels/cpu/gemm/codes.h"

static const tr_products_t all_products[] = {
    { tr_panel_avx2, tr_codes_panel_avx2, tr_codes_row_avx2 },
    { tr_panel_avx512, tr_codes_panel_avx512, tr_codes_row_avx512 },
    { tr_panel_avx512, tr_codes_panel_vnni, tr_codes_row_vnni },
};
static const char *const names[] = { "avx2", "avx512", "vnni" };
static const tr_products_t plain = { tr_panel_blas, tr_codes_panel_c,
                                     tr_codes_row_c };

static bool
has(uint32_t i)
{
    return i == 0   ? tr_kernels_cpu("avx2") != NULL
           : i == 1 ? tr_kernels_cpu("avx512") != NULL
                    : tr_kernels_cpu("avx512") != NULL
                          && __builtin_cpu_supports("avx512vnni");
}

/* A random matrix: what it was made of, and the same packed. */
typedef struct {
    tr_cpu_matrix_t m;
    uint8_t *code;    /* [n][k] */
    float *scale, *w; /* [n][groups]; [n][k], in numbers */
    uint32_t *zero;   /* [n][groups] */
} matrix_t;

static uint32_t
groups_of(const tr_cpu_matrix_t *m)
{
    return m->k / m->codes.group;
}

static float
weight_of(const matrix_t *x, uint32_t row, uint32_t column)
{
    static const float e2m1[16] = { 0, 1,  2,  3,  4,  6,  8,  12,
                                    0, -1, -2, -3, -4, -6, -8, -12 };
    const tr_cpu_codes_t *c = &x->m.codes;
    size_t at = (size_t) row * groups_of(&x->m) + column / c->group;
    uint8_t code = x->code[(size_t) row * x->m.k + column];

    if (c->codes == TR_CODES_MXFP4) {
        return e2m1[code] * x->scale[at];
    }
    return (float) (code - (int) x->zero[at]) * x->scale[at];
}

static matrix_t
matrix_random(tr_cpu_codes_t codes, uint32_t n, uint32_t k, void *work)
{
    const tr_kernels_t *c = tr_kernels_cpu("c");
    matrix_t x = { .m = { .n = n, .k = k, .codes = codes } };
    uint32_t groups = k / codes.group,
             top = codes.codes == TR_CODES_INT8 ? 256 : 16;
    size_t bytes = c->codes_bytes(n, k, &codes);

    assert_true(bytes > 0 && bytes % 64 == 0);
    x.m.codes.work = work;
    x.m.data = floats(bytes / 4);
    memset(x.m.data, 0xff, bytes); /* nothing counts on what was there */
    x.code = malloc((size_t) n * k);
    x.scale = floats((size_t) n * groups);
    x.zero = malloc((size_t) n * groups * sizeof(uint32_t));
    x.w = floats((size_t) n * k);
    for (size_t i = 0; i < (size_t) n * k; i++) {
        x.code[i] = (uint8_t) rng_below(&rng, top);
    }
    for (size_t i = 0; i < (size_t) n * groups; i++) {
        float kept;

        tr_float_store(&kept, 0, codes.scales, rng_normal(&rng) * 0.01f);
        x.scale[i] = tr_float_load(&kept, 0, codes.scales);
        x.zero[i] = codes.zeros ? rng_below(&rng, top + 1) : top / 2;
    }
    for (uint32_t r = 0; r < n; r++) {
        assert_int_equal(c->codes_pack(&x.m, r, x.code + (size_t) r * k,
                                       x.scale + (size_t) r * groups,
                                       codes.zeros
                                           ? x.zero + (size_t) r * groups
                                           : NULL),
                         0);
        for (uint32_t i = 0; i < k; i++) {
            x.w[(size_t) r * k + i] = weight_of(&x, r, i);
        }
    }
    return x;
}

static void
matrix_free(matrix_t *x)
{
    free(x->m.data);
    free(x->code);
    free(x->scale);
    free(x->zero);
    free(x->w);
}

/* A form that exists, of some kind. */
static tr_cpu_codes_t
random_codes(uint32_t *k)
{
    static const uint32_t groups[] = { 32, 64, 96, 128 };
    tr_cpu_codes_t c = { .codes = 1 + rng_below(&rng, TR_CODES - 1),
                         .group = groups[rng_below(&rng, 4)],
                         .scales = rng_below(&rng, TR_DTYPES) };

    *k = c.group * (1 + rng_below(&rng, 6));
    c.group = rng_below(&rng, 4) == 0 ? *k : c.group;
    c.zeros = c.codes != TR_CODES_MXFP4 && rng_below(&rng, 2);
    return c;
}

/* What plain C gives is what integers of x and w give, and near the product of
 * numbers. */
static void
check_value(const matrix_t *m, const float *x, size_t ldx, uint32_t rows,
            const float *base, const float *y, size_t ldy)
{
    uint32_t k = m->m.k, groups = k / TR_CODES_COLUMNS;
    int8_t *code = malloc(k);
    tr_codes_group_t *group = malloc(groups * sizeof(*group));

    for (uint32_t r = 0; r < rows; r += 1 + rows / 5) {
        tr_codes_row_c(x + r * ldx, k, code, group);
        for (uint32_t j = 0; j < m->m.n; j++) {
            const float *w = m->w + (size_t) j * k;
            double sum = base ? base[r * ldy + j] : 0, exact = sum;
            double size = fabs(sum), step = 0;

            for (uint32_t i = 0; i < k; i++) {
                double scale = group[i / TR_CODES_COLUMNS].scale;

                sum += code[i] * scale * w[i];
                exact += (double) x[r * ldx + i] * w[i];
                size += fabs(code[i] * scale * w[i]);
                step += scale * fabs(w[i]);
            }
            close_to(y[r * ldy + j], sum, size, 2e-6,
                     "n=%u k=%u row %u column %u", m->m.n, k, r, j);
            /* an element is at most half a step away */
            close_to(y[r * ldy + j], exact, 0.5001 * step + 2e-6 * size, 1.0,
                     "n=%u k=%u row %u column %u, in numbers", m->m.n, k, r, j);
        }
    }
    free(code);
    free(group);
}

static void
products_shape(tr_cpu_codes_t codes, uint32_t n, uint32_t k, uint32_t rows)
{
    tr_stream_t s = { 1 + (int) rng_below(&rng, 3), fixture_thread_pool() };
    size_t ldx = k + rng_below(&rng, 5), ldy = tr_pad(n, TR_COL_PAD) + 64;
    int add = (int) rng_below(&rng, 2);
    void *work = floats(tr_cpu_codes_work(rows, k) / 4);
    matrix_t m = matrix_random(codes, n, k, work);
    float *x = randoms(rows * ldx, 1), *base = randoms(rows * ldy + 16, 1);
    float *want = floats(rows * ldy + 16), *got = floats(rows * ldy + 16);
    size_t bytes = (rows * ldy + 16) * sizeof(float);

    memcpy(want, base, bytes);
    assert_int_equal(tr_cpu_matmul(&s, &m.m, x, ldx, rows, want, ldy, add,
                                   &plain),
                     0);
    check_value(&m, x, ldx, rows, add ? base : NULL, want, ldy);
    for (uint32_t i = 0; i < 3; i++) {
        if (!has(i)) {
            continue;
        }
        memcpy(got, base, bytes);
        assert_int_equal(tr_cpu_matmul(&s, &m.m, x, ldx, rows, got, ldy, add,
                                       &all_products[i]),
                         0);
        if (memcmp(got, want, bytes)) { /* nothing else was written, either */
            fail_msg("%s: other bits than plain C: codes %d group %u scales %s "
                     "zeros %d, n=%u k=%u rows=%u add=%d",
                     names[i], codes.codes, codes.group,
                     tr_dtype_name(codes.scales), codes.zeros, n, k, rows, add);
        }
    }
    free(x);
    free(base);
    free(want);
    free(got);
    free(work);
    matrix_free(&m);
}

static void
test_products(void **state)
{
    (void) state;
    for (uint32_t i = 0; i < 120; i++) {
        uint32_t k;
        tr_cpu_codes_t c = random_codes(&k);

        products_shape(c, 1 + rng_below(&rng, 200), k, 1 + rng_below(&rng, 20));
    }
    for (tr_codes_t codes = TR_CODES_INT8; codes < TR_CODES; codes++) {
        tr_cpu_codes_t c = { .codes = codes, .group = 32, .scales = TR_BF16 };

        products_shape(c, 130, 1024, 129);
        products_shape(c, 64, 4096, 1);
        products_shape(c, 65, 288, 7);
    }
}

/* Of a row among others, alone, gated, and in parts of a prompt. */
static void
test_rows_alone(void **state)
{
    (void) state;
    for (int i = 0; i < N_ISAS; i++) {
        const tr_kernels_t *kernels = tr_kernels_cpu(isas[i]);

        for (uint32_t round = 0; kernels && round < 6; round++) {
            uint32_t k, n = 128 * (1 + round % 2), rows = 48;
            tr_cpu_codes_t c = random_codes(&k);
            void *work = floats(tr_cpu_codes_work(rows, k) / 4);
            matrix_t m = matrix_random(c, n, k, work);
            tr_stream_t s = { 2, fixture_thread_pool() };
            float *x = randoms(rows * k, 1), *y = floats(rows * n);
            float *gated = floats(rows * n), *alone = floats(n + k);
            float *both = floats(n);

            assert_int_equal(kernels->matmul(&s, &m.m, x, k, rows, y, n, 0), 0);
            assert_int_equal(kernels->gated(&s, TR_ACT_SILU, &m.m, x, k, rows,
                                            gated, n),
                             0);
            for (uint32_t r = 0; r < rows; r++) {
                assert_int_equal(kernels->matmul(&s, &m.m, x + r * k, k, 1,
                                                 alone, n, 0),
                                 0);
                assert_memory_equal(alone, y + r * n, n * sizeof(float));
                assert_int_equal(kernels->act_mul(&s, TR_ACT_SILU, alone, n, 1,
                                                  n / 2, both, n),
                                 0);
                assert_memory_equal(both, gated + r * n, n / 2 * sizeof(float));
            }
            for (int32_t id = 0; id < (int32_t) n; id += 37) {
                assert_int_equal(kernels->embedding(&s, &m.m, &id, 1, alone, k),
                                 0);
                assert_memory_equal(alone, m.w + (size_t) id * k,
                                    k * sizeof(float));
            }
            free(x);
            free(y);
            free(gated);
            free(alone);
            free(both);
            free(work);
            matrix_free(&m);
        }
    }
}

/* Numbers become codes: within half a step of each group's scale. */
static void
test_quantise(void **state)
{
    const tr_kernels_t *c = tr_kernels_cpu("c");
    tr_stream_t s = { 1, fixture_thread_pool() };
    uint32_t n = 70, k = 96;
    float *w = randoms((size_t) n * k, 0.02f), *row = floats(k);

    (void) state;
    for (uint32_t i = 0; i < 32; i++) {
        w[i] = 0;                   /* a group of nothing */
        w[k + i] = i == 3 ? -1 : 0; /* and of one weight */
    }
    for (tr_codes_t codes = TR_CODES_INT8; codes <= TR_CODES_INT4; codes++) {
        tr_cpu_matrix_t m = {
            .n = n,
            .k = k,
            .codes = { .codes = codes, .group = 32, .scales = TR_BF16 }
        };
        size_t bytes = c->codes_bytes(n, k, &m.codes);

        m.data = floats(bytes / 4);
        memset(m.data, 0xff, bytes);
        assert_int_equal(c->matrix_pack(&m, 0, 33, w, TR_F32), 0);
        assert_int_equal(c->matrix_pack(&m, 33, n - 33, w + 33 * k, TR_F32), 0);
        for (int32_t id = 0; id < (int32_t) n; id++) {
            assert_int_equal(c->embedding(&s, &m, &id, 1, row, k), 0);
            for (uint32_t i = 0; i < k; i++) {
                const float *group = w + (size_t) id * k + i / 32 * 32;
                float most = 0, step;

                for (uint32_t j = 0; j < 32; j++) {
                    most = fmaxf(most, fabsf(group[j]));
                }
                step = codes == TR_CODES_INT8 ? most / 127 : most / 8;
                /* the other end of INT4 is a step short */
                close_to(row[i], w[(size_t) id * k + i], 1,
                         (codes == TR_CODES_INT8 ? 0.51 : 1.04) * step
                             + 0.004 * most,
                         "codes %d row %d column %u", codes, id, i);
            }
        }
        free(m.data);
    }
    free(w);
    free(row);
}

/* A row with a NaN or an infinity gives NaN, and no other row does. */
static void
test_no_number(void **state)
{
    static const float bad[] = { NAN, INFINITY, -INFINITY };
    tr_cpu_codes_t c = { .codes = TR_CODES_INT8,
                         .group = 32,
                         .scales = TR_F32 };
    uint32_t n = 64, k = 64;
    void *work = floats(tr_cpu_codes_work(3, k) / 4);
    matrix_t m = matrix_random(c, n, k, work);
    float *x = randoms(3 * k, 1), *y = floats(3 * n);
    tr_stream_t s = { 1, fixture_thread_pool() };

    (void) state;
    for (int i = 0; i < N_ISAS; i++) {
        const tr_kernels_t *kernels = tr_kernels_cpu(isas[i]);

        for (uint32_t j = 0; kernels && j < 3; j++) {
            x[k + 40] = bad[j];
            assert_int_equal(kernels->matmul(&s, &m.m, x, k, 3, y, n, 0), 0);
            for (uint32_t column = 0; column < n; column++) {
                assert_true(isfinite(y[column]) && isfinite(y[2 * n + column]));
                assert_true(isnan(y[n + column]));
            }
        }
    }
    free(x);
    free(y);
    free(work);
    matrix_free(&m);
}

static void
test_refused(void **state)
{
    const tr_kernels_t *c = tr_kernels_cpu("c");
    const tr_cpu_codes_t bad[] = {
        { .codes = TR_CODES_NONE, .group = 32 },
        { .codes = TR_CODES, .group = 32 },
        { .codes = TR_CODES_INT4, .group = 0 },
        { .codes = TR_CODES_INT4, .group = 48 },
        { .codes = TR_CODES_INT8, .group = 256 }, /* longer than a row */
        { .codes = TR_CODES_MXFP4, .group = 32, .zeros = true },
    };
    tr_cpu_codes_t good = { .codes = TR_CODES_INT8, .group = 32 };
    matrix_t m = matrix_random(good, 64, 128, NULL);
    tr_stream_t s = { 1, fixture_thread_pool() };
    float x[128] = { 0 }, y[64], scale[4] = { 0 };
    uint8_t code[128] = { 0 };

    (void) state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        assert_int_equal(c->codes_bytes(64, 128, &bad[i]), 0);
    }
    assert_int_equal(c->codes_bytes(0, 128, &good), 0);
    assert_true(c->codes_bytes(1, 128, &good) > 0);
    /* without workspace; a row that is none; zeros that are missing */
    assert_int_equal(c->matmul(&s, &m.m, x, 128, 1, y, 64, 0),
                     TR_KERNEL_BADARG);
    assert_int_equal(c->codes_pack(&m.m, 64, code, scale, NULL),
                     TR_KERNEL_BADARG);
    m.m.codes.zeros = true;
    assert_int_equal(c->codes_pack(&m.m, 0, code, scale, NULL),
                     TR_KERNEL_BADARG);
    m.m.codes.codes = TR_CODES_MXFP4;
    assert_int_equal(c->matrix_pack(&m.m, 0, 1, x, TR_F32), TR_KERNEL_BADARG);
    matrix_free(&m);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_products), cmocka_unit_test(test_rows_alone),
        cmocka_unit_test(test_quantise), cmocka_unit_test(test_no_number),
        cmocka_unit_test(test_refused),
    };

    rng = rng_seed();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
