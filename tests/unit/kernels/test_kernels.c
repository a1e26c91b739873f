/*
 * Kernels of the CPU backend that work on rows, against plain loops in double
 * precision, with each instruction set, on fresh random data of odd sizes; and
 * the promise that a row's bits depend on nothing but the row.  Matrix products
 * have test_matmul.c.
 */
#include "tests/unit/fixtures/kernels_fixture.h"

#include "kernels/hadamard.h"

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
        cmocka_unit_test(test_rmsnorm),  cmocka_unit_test(test_rmsnorm_bits),
        cmocka_unit_test(test_act_mul),  cmocka_unit_test(test_gated),
        cmocka_unit_test(test_scales),   cmocka_unit_test(test_experts),
        cmocka_unit_test(test_rope),     cmocka_unit_test(test_hadamard),
        cmocka_unit_test(test_add_bias),
    };

    rng = rng_seed();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
