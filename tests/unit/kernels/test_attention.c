/*
 * kv_append and attention on paged memory, against loops in double precision:
 * query groups 1 to 32, head sizes 64, 96, 128, 256, odd page sizes, scales
 * from 1e-6 to 1e4, with each instruction set.  All memory that no token was
 * stored in is NaN.  And bit for bit: a row's result is the same alone, in a
 * chunk, in a batch, and with any number of threads.
 */
#include "tests/unit/fixtures/model_fixture.h"
#include "kernels/kernels.h"

#include <math.h>

static uint64_t rng;

static const char *const isas[] = { "c", "avx2", "avx512" };
#define N_ISAS 3
#define SLOTS 5
#define LAYERS 2
#define LEN_MAX 210u

typedef struct {
    tr_kv_view_t kv;
    tr_kv_layout_t layout;
    tr_kv_seq_t seq[SLOTS];
    uint32_t group, heads, len[SLOTS];
    int32_t *tables;
    float *k[SLOTS], *v[SLOTS]; /* [len][kv_heads * dim], keys before RoPE */
    float *q[SLOTS];            /* [len][heads * dim] */
    float *inv_freq;
} kv_fixture_t;

static float *
floats(size_t n)
{
    float *x = aligned_alloc(64, tr_pad(n * sizeof(float), 64));

    assert_non_null(x);
    return x;
}

static float *
randoms(size_t n, float scale)
{
    float *x = floats(n);

    for (size_t i = 0; i < n; i++) {
        x[i] = rng_normal(&rng) * scale;
    }
    return x;
}

/* Uncompressed pages without scores. */
static tr_kv_layout_t
uncompressed_layout(uint32_t dim, uint32_t tokens)
{
    return (tr_kv_layout_t){ .level = { 16, 16, 1, 1, 0, 0 },
                             .head_dim = dim,
                             .tokens = tokens,
                             .tile = 32 * dim,
                             .value = tokens * dim * 2 };
}

/* A pool of NaN whose pages are dealt to the tables in random order. */
static void
fixture_pool(kv_fixture_t *b)
{
    tr_kv_view_t *v = &b->kv;
    uint32_t rows = SLOTS * LAYERS * v->kv_heads, pages, *order;

    b->layout = uncompressed_layout(v->head_dim, 8 * (1 + rng_below(&rng, 9)));
    v->n_layouts = 1;
    v->layout = &b->layout;
    v->seq = b->seq;
    v->page_bytes = tr_pad(4ull * b->layout.tokens * v->head_dim, 128);
    v->table_len = (LEN_MAX + b->layout.tokens - 1) / b->layout.tokens;
    v->at_window = v->table_len;
    pages = rows * v->table_len;
    v->pool = aligned_alloc(64, pages * v->page_bytes);
    order = malloc(pages * sizeof(*order));
    b->tables = malloc(pages * sizeof(int32_t));
    assert_true(v->pool && order && b->tables);
    memset(v->pool, 0xff, pages * v->page_bytes);
    for (uint32_t i = 0; i < pages; i++) {
        order[i] = i;
    }
    for (uint32_t i = pages - 1; i > 0; i--) {
        uint32_t j = rng_below(&rng, i + 1), t = order[i];

        order[i] = order[j];
        order[j] = t;
    }
    for (uint32_t i = 0; i < pages; i++) {
        uint32_t slot = i / (LAYERS * v->kv_heads * v->table_len);

        /* only as many as the tokens need; the rest must not be looked at */
        b->tables[i] = i % v->table_len * b->layout.tokens < b->len[slot]
                           ? (int32_t) order[i]
                           : -1;
    }
    v->tables = b->tables;
    free(order);
}

static void
kv_fixture_open(kv_fixture_t *b, uint32_t kv_heads, uint32_t group,
                uint32_t dim, float scale)
{
    *b = (kv_fixture_t){ .group = group, .heads = kv_heads * group };
    b->kv = (tr_kv_view_t){ .layers = LAYERS,
                            .kv_heads = kv_heads,
                            .head_dim = dim };
    for (uint32_t i = 0; i < SLOTS; i++) {
        b->len[i] = i == 0 ? LEN_MAX : 1 + rng_below(&rng, LEN_MAX);
        b->k[i] = randoms(b->len[i] * kv_heads * dim, scale);
        b->v[i] = randoms(b->len[i] * kv_heads * dim, scale);
        /* logits of a few units, whatever the scale */
        b->q[i] = randoms(b->len[i] * b->heads * dim, 1.5f / scale);
    }
    b->inv_freq = floats(dim / 2);
    for (uint32_t i = 0; i < dim / 2; i++) {
        b->inv_freq[i] = powf(10000, -2.0f * (float) i / (float) dim);
    }
    fixture_pool(b);
}

static void
kv_fixture_close(kv_fixture_t *b)
{
    for (uint32_t i = 0; i < SLOTS; i++) {
        free(b->k[i]);
        free(b->v[i]);
        free(b->q[i]);
    }
    free(b->inv_freq);
    free(b->kv.pool);
    free(b->tables);
}

/* One call for the given parts of sequences; out: [sum of n][heads * dim]. */
typedef struct {
    uint32_t slot, pos, n;
} part_t;

static void
run(kv_fixture_t *b, const tr_kernels_t *k, int threads, const part_t *parts,
    uint32_t n_parts, bool append, float *out)
{
    static uint32_t pos[SLOTS * LEN_MAX], seq_row[SLOTS + 1];
    static int32_t slot[SLOTS];
    size_t dim = b->kv.head_dim, kv_ld = b->kv.kv_heads * dim;
    size_t q_ld = b->heads * dim;
    tr_stream_t s = { threads, fixture_thread_pool() };
    tr_rows_t rows = { 0, n_parts, pos, slot, seq_row };
    float *kk, *vv, *qq, *angles;
    size_t bytes = k->attention_work(&s, SLOTS * LEN_MAX, SLOTS, LEN_MAX,
                                     b->heads, b->kv.kv_heads, (uint32_t) dim);
    void *work = aligned_alloc(64, tr_pad(bytes, 64));

    for (uint32_t i = 0; i < n_parts; i++) {
        seq_row[i] = rows.n_rows;
        slot[i] = (int32_t) parts[i].slot;
        for (uint32_t j = 0; j < parts[i].n; j++) {
            pos[rows.n_rows++] = parts[i].pos + j;
        }
    }
    seq_row[n_parts] = rows.n_rows;
    kk = floats(rows.n_rows * kv_ld);
    vv = floats(rows.n_rows * kv_ld);
    qq = floats(rows.n_rows * q_ld);
    angles = floats(rows.n_rows * dim);
    for (uint32_t i = 0; i < n_parts; i++) {
        const part_t *p = &parts[i];

        memcpy(kk + seq_row[i] * kv_ld, b->k[p->slot] + p->pos * kv_ld,
               p->n * kv_ld * sizeof(float));
        memcpy(vv + seq_row[i] * kv_ld, b->v[p->slot] + p->pos * kv_ld,
               p->n * kv_ld * sizeof(float));
        memcpy(qq + seq_row[i] * q_ld, b->q[p->slot] + p->pos * q_ld,
               p->n * q_ld * sizeof(float));
    }
    k->rope_angles(&s, pos, rows.n_rows, b->inv_freq, NULL, NULL,
                   (uint32_t) dim / 2, angles);
    if (append) {
        assert_int_equal(k->kv_append(&s, &b->kv, 1, &rows, kk, vv, kv_ld,
                                      angles),
                         0);
    }
    memset(work, 0xff, bytes);
    assert_int_equal(k->attention(&s, &b->kv, 1, &rows, qq, q_ld, b->heads,
                                  1.0f / sqrtf((float) dim), out, q_ld, work),
                     0);
    free(kk);
    free(vv);
    free(qq);
    free(angles);
    free(work);
}

static double
half_of(float x)
{
    _Float16 h;

    x = x > 65504 ? 65504 : x < -65504 ? -65504 : x;
    h = (_Float16) x;
    return (double) (float) h;
}

static double
stored(kv_fixture_t *b, uint32_t slot, uint32_t kv_head, uint32_t p, uint32_t d,
       bool value)
{
    const int32_t *table = tr_kv_table(&b->kv, (int32_t) slot, 1, kv_head);
    uint32_t dim = b->kv.head_dim, tokens = b->layout.tokens;
    const uint8_t *at = tr_kv_page_at(&b->kv, table[p / tokens])
                        + (value ? b->layout.value : 0)
                        + (p % tokens * dim + d) * 2;
    _Float16 h;

    memcpy(&h, at, 2);
    return (double) (float) h;
}

/* What append stored: rotated keys and values, to one unit in the last place
 * of FP16 (rotation is FP32 here and may round the other way). */
static void
check_stored(kv_fixture_t *b, const char *name)
{
    uint32_t dim = b->kv.head_dim, half = dim / 2;

    for (uint32_t n = 0; n < 300; n++) {
        uint32_t slot = rng_below(&rng, SLOTS);
        uint32_t p = rng_below(&rng, b->len[slot]);
        uint32_t l = rng_below(&rng, b->kv.kv_heads), d = rng_below(&rng, half);
        const float *k = b->k[slot] + (p * b->kv.kv_heads + l) * dim;
        const float *v = b->v[slot] + (p * b->kv.kv_heads + l) * dim;
        double a = (double) ((float) p * b->inv_freq[d]);
        double lo = k[d] * cos(a) - k[half + d] * sin(a);
        double hi = k[half + d] * cos(a) + k[d] * sin(a);
        double size = fabs(k[d]) + fabs(k[half + d]);

        if (!(fabs(stored(b, slot, l, p, d, false) - half_of((float) lo))
              <= 1e-3 * size + 6e-8)
            || !(fabs(stored(b, slot, l, p, half + d, false)
                      - half_of((float) hi))
                 <= 1e-3 * size + 6e-8)) {
            fail_msg("%s: key of position %u, dim %u", name, p, d);
        }
        assert_true(stored(b, slot, l, p, d, true) == half_of(v[d]));
    }
}

/* One head of one position, from what is stored. */
static void
check_row(kv_fixture_t *b, uint32_t slot, uint32_t p, uint32_t h,
          const float *out, const char *name)
{
    uint32_t dim = b->kv.head_dim, kv_head = h / b->group;
    const float *q = b->q[slot] + (p * b->heads + h) * dim;
    double score[LEN_MAX], max = -INFINITY, sum = 0;

    for (uint32_t i = 0; i <= p; i++) {
        score[i] = 0;
        for (uint32_t d = 0; d < dim; d++) {
            score[i] += q[d] * stored(b, slot, kv_head, i, d, false)
                        / sqrt((double) dim);
        }
        max = fmax(max, score[i]);
    }
    for (uint32_t i = 0; i <= p; i++) {
        score[i] = exp(score[i] - max);
        sum += score[i];
    }
    for (uint32_t d = 0; d < dim; d++) {
        double want = 0, size = 0;

        for (uint32_t i = 0; i <= p; i++) {
            double v = score[i] / sum * stored(b, slot, kv_head, i, d, true);

            want += v;
            size += fabs(v);
        }
        if (!(fabs(out[d] - want) <= 3e-5 * size)) {
            fail_msg("%s: slot %u position %u head %u dim %u: %.9g, expected "
                     "%.9g (page of %u tokens, group %u, head size %u)",
                     name, slot, p, h, d, out[d], want, b->layout.tokens,
                     b->group, dim);
        }
    }
}

static void
one_fixture(const tr_kernels_t *k, uint32_t kv_heads, uint32_t group,
            uint32_t dim, float scale)
{
    kv_fixture_t b;
    part_t parts[SLOTS], some[SLOTS];
    uint32_t width = kv_heads * group * dim, row = 0;
    float *whole, *out;

    kv_fixture_open(&b, kv_heads, group, dim, scale);
    whole = floats((size_t) SLOTS * LEN_MAX * width);
    out = floats((size_t) SLOTS * LEN_MAX * width);
    for (uint32_t i = 0; i < SLOTS; i++) {
        parts[i] = (part_t){ i, 0, b.len[i] };
    }
    run(&b, k, 2, parts, SLOTS, true, whole);
    check_stored(&b, k->name);
    for (uint32_t i = 0; i < SLOTS; row += b.len[i++]) {
        uint32_t p = rng_below(&rng, b.len[i]);

        for (uint32_t h = 0; h < b.heads; h++) {
            check_row(&b, i, p, h, whole + (size_t) (row + p) * width + h * dim,
                      k->name);
            check_row(&b, i, b.len[i] - 1, h,
                      whole + (size_t) (row + b.len[i] - 1) * width + h * dim,
                      k->name);
        }
    }
    /* random pieces, in another order, have the same bits */
    for (uint32_t round = 0; round < 6; round++) {
        uint32_t n = 1 + rng_below(&rng, SLOTS), at = 0;

        for (uint32_t i = 0; i < n; i++) {
            uint32_t slot = SLOTS - 1 - i, pos = rng_below(&rng, b.len[slot]);

            some[i] = (part_t){ slot, pos,
                                round % 2
                                    ? 1
                                    : 1 + rng_below(&rng, b.len[slot] - pos) };
        }
        run(&b, k, 1 + (int) round % 3, some, n, round < 3, out);
        for (uint32_t i = 0; i < n; at += some[i++].n) {
            uint32_t first = 0;

            for (uint32_t j = 0; j < some[i].slot; j++) {
                first += b.len[j];
            }
            if (memcmp(out + (size_t) at * width,
                       whole + (size_t) (first + some[i].pos) * width,
                       (size_t) some[i].n * width * sizeof(float))) {
                fail_msg("%s: slot %u, positions %u + %u: other bits than in "
                         "one chunk",
                         k->name, some[i].slot, some[i].pos, some[i].n);
            }
        }
    }
    free(whole);
    free(out);
    kv_fixture_close(&b);
}

static void
test_groups(void **state)
{
    static const float scales[] = { 1, 1e-3f, 1e2f };
    static const uint32_t wide[] = { 12, 16, 31, TR_GROUP_MAX };

    (void) state;
    for (uint32_t j = 0; j < 12; j++) {
        uint32_t group = j < 8 ? j + 1 : wide[j - 8];

        for (int i = 0; i < N_ISAS; i++) {
            const tr_kernels_t *k = tr_kernels_cpu(isas[i]);

            if (k != NULL && (i > 0 || group % 3 == 1)) {
                one_fixture(k, 1 + group % 2, group, 64, scales[group % 3]);
            }
        }
    }
}

static void
test_head_sizes(void **state)
{
    static const uint32_t dims[] = { 16, 64, 80, 96, 128, 256 };

    (void) state;
    for (size_t d = 0; d < sizeof(dims) / sizeof(dims[0]); d++) {
        for (int i = 1; i < N_ISAS; i++) {
            const tr_kernels_t *k = tr_kernels_cpu(isas[i]);

            if (k != NULL) {
                one_fixture(k, 2, 1 + rng_below(&rng, 3), dims[d], 1);
            }
        }
    }
}

/* The ends of what FP16 holds: 1e-6 is subnormal, 1e4 saturates now and
 * then. */
static void
test_scales(void **state)
{
    static const float scales[] = { 1e-6f, 1e-4f, 1e4f };

    (void) state;
    for (size_t s = 0; s < 3; s++) {
        for (int i = 0; i < N_ISAS; i++) {
            const tr_kernels_t *k = tr_kernels_cpu(isas[i]);

            if (k != NULL) {
                one_fixture(k, 1, 2, 64, scales[s]);
            }
        }
    }
}

/* FP16 rounding is the same with and without F16C, ties and ends included. */
static void
test_half(void **state)
{
    static const float x[16] = { 0,         -0.0f,    1,          65504,
                                 65520,     1e30f,    -1e30f,     INFINITY,
                                 -INFINITY, NAN,      2049,       2051,
                                 0x1p-24f,  0x1p-25f, 0x1.8p-24f, 0x1.004p0f };

    (void) state;
    for (int i = 0; i < N_ISAS; i++) {
        const tr_kernels_t *k = tr_kernels_cpu(isas[i]);
        uint16_t page[16 * 2];
        int32_t table = 0, slot = 0;
        uint32_t pos = 0, seq_row[2] = { 0, 1 };
        float zero[16] = { 0 }, angles[16] = { 1, 1, 1, 1, 1, 1, 1, 1 };
        tr_rows_t rows = { 1, 1, &pos, &slot, seq_row };
        tr_kv_layout_t layout = uncompressed_layout(16, 1);
        tr_kv_seq_t seq = { 0 };
        tr_kv_view_t v = { .pool = (uint8_t *) page,
                           .page_bytes = sizeof(page),
                           .layers = 1,
                           .kv_heads = 1,
                           .head_dim = 16,
                           .n_layouts = 1,
                           .layout = &layout,
                           .tables = &table,
                           .table_len = 1,
                           .at_window = 1,
                           .seq = &seq };
        static const uint16_t want[16] = { 0,      0x8000, 0x3c00, 0x7bff,
                                           0x7bff, 0x7bff, 0xfbff, 0x7bff,
                                           0xfbff, 0x7e00, 0x6800, 0x6802,
                                           1,      0,      2,      0x3c01 };

        if (k == NULL) {
            continue;
        }
        assert_int_equal(k->kv_append(&(tr_stream_t){ 1,
                                                      fixture_thread_pool() },
                                      &v, 0, &rows, zero, x, 16, angles),
                         0);
        for (int j = 0; j < 16; j++) {
            if (page[16 + j] != want[j] && !(j == 9 && page[25] > 0x7c00)) {
                fail_msg("%s: %g is stored as 0x%04x, expected 0x%04x", k->name,
                         x[j], page[16 + j], want[j]);
            }
        }
    }
}

static void
test_bad_shapes(void **state)
{
    const tr_kernels_t *k = tr_kernels_cpu(NULL);
    tr_stream_t s = { 1, fixture_thread_pool() };
    uint32_t pos = 0, seq_row[2] = { 0, 1 };
    int32_t slot = 0, table = 0;
    tr_rows_t rows = { 1, 1, &pos, &slot, seq_row };
    tr_kv_layout_t layout = uncompressed_layout(64, 16);
    tr_kv_seq_t seq = { 0 };
    tr_kv_view_t v = { .layers = 1,
                       .kv_heads = 2,
                       .head_dim = 64,
                       .n_layouts = 1,
                       .layout = &layout,
                       .tables = &table,
                       .table_len = 1,
                       .at_window = 1,
                       .seq = &seq };

    (void) state;
    /* three query heads on two KV heads; a layer too many; an odd head size */
    assert_int_equal(k->attention(&s, &v, 0, &rows, NULL, 999, 3, 1, NULL, 999,
                                  NULL),
                     TR_KERNEL_BADARG);
    assert_int_equal(k->attention(&s, &v, 1, &rows, NULL, 999, 2, 1, NULL, 999,
                                  NULL),
                     TR_KERNEL_BADARG);
    v.head_dim = 72;
    assert_int_equal(k->attention(&s, &v, 0, &rows, NULL, 999, 2, 1, NULL, 999,
                                  NULL),
                     TR_KERNEL_BADARG);
    assert_int_equal(k->kv_append(&s, &v, 0, &rows, NULL, NULL, 999, NULL),
                     TR_KERNEL_BADARG);
    assert_null(tr_kernels_cpu("sse9"));
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_groups),     cmocka_unit_test(test_head_sizes),
        cmocka_unit_test(test_scales),     cmocka_unit_test(test_half),
        cmocka_unit_test(test_bad_shapes),
    };

    rng = rng_seed();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
