/*
 * What prompts add to scores, and Quest's partial reading.  A prompt's scores
 * (and those of its last queries) against double precision, over uncompressed
 * pages and over tiers and a window of earlier turns; bit for bit the same
 * however the prompt is cut into chunks, whatever stands beside it, with any
 * number of threads; each instruction set.
 */
#include "tests/unit/fixtures/attention_fixture.h"
#include "kernels/kernels.h"

static uint64_t rng;

static const char *const isas[] = { "c", "avx2", "avx512" };
#define N_ISAS 3

static const tr_kv_level_t levels[] = { { 16, 16, 1, 1, 0, 1, 0, 0 },
                                        { 8, 4, 1, 1, 0, 1, 0, 0 },
                                        { 4, 2, 1, 1, 0, 0, 0, 0 },
                                        { 4, 8, 2, 1, 0, 1, 0, 0 } };

/* `n` uncompressed tokens after `base` positions in tiers and window. */
static void
fill_slot(kv_fixture_t *b, int32_t slot, uint32_t base, uint32_t n)
{
    tr_kv_seq_t *s = &b->seq[slot];
    uint32_t window = base > 0 ? 1 + rng_below(&rng, base) : 0;

    *s = (tr_kv_seq_t){ .base = base,
                        .window_from = base - window,
                        .window = window,
                        .n_tiers = base > 0 ? 4 : 0,
                        .window_layout = 2,
                        .tier_layout = { 1, 2, 3, 4 },
                        .scored = true,
                        .by_sum = rng_below(&rng, 2) == 1,
                        .recent_from = base + rng_below(&rng, n) };
    for (uint32_t kv_head = 0; kv_head < b->kv.kv_heads; kv_head++) {
        size_t head = tr_kv_head(&b->kv, slot, FIXTURE_LAYER, kv_head);
        uint32_t left = base - window;

        for (uint32_t l = 0; l < s->n_tiers; l++) {
            uint32_t some = rng_below(&rng, left + 1);

            b->count[head * TR_KV_TIERS_MAX + l] = some;
            left -= some;
        }
        fixture_fill_head(b, slot, kv_head, base - window, base + n);
    }
    fixture_freeze(b, slot);
}

static float
recent_of(const kv_fixture_t *b, const fixture_token_t *t)
{
    float x;

    memcpy(&x, b->kv.pool + t->page + t->l->recent + t->token * 4, 4);
    return x;
}

static void
check_sum(double got, double want, double add, double error, const char *what,
          uint32_t position)
{
    if (!(fabs(got - want) <= 2 * error * add + 1e-6 * (fabs(want) + 1))) {
        fail_msg("%s: position %u has %.9g, expected %.9g", what, position, got,
                 want);
    }
}

/* A head of a slot whose queries [base, base + n) have all passed. */
static void
check_head(const kv_fixture_t *b, int32_t slot, uint32_t kv_head, uint32_t n,
           const float *q, const float *out, const char *name)
{
    const tr_kv_seq_t *s = &b->seq[slot];
    uint32_t dim = b->kv.head_dim, len = s->base + n, all;
    size_t ld = (size_t) b->heads * dim;
    fixture_token_t *t = fixture_alloc((size_t) (b->max_len + n) * sizeof(*t));
    double *sum = fixture_alloc((size_t) (b->max_len + n) * 2 * sizeof(double));
    double *best = fixture_alloc((size_t) (b->max_len + n) * sizeof(double));
    double *recent = sum + b->max_len + n, error = 0;
    char what[64];

    snprintf(what, sizeof(what), "%s, slot %d, KV head %u", name, slot,
             kv_head);
    all = fixture_tokens(b, slot, kv_head, len, t);
    memset(sum, 0, (size_t) (b->max_len + n) * 2 * sizeof(double));
    for (uint32_t i = 0; i < n; i++) {
        uint32_t seen = all - n + i + 1; /* uncompressed tokens come last */

        memset(best, 0, all * sizeof(double));
        for (uint32_t h = kv_head * b->group; h < (kv_head + 1) * b->group;
             h++) {
            error = fmax(error,
                         fixture_check_head(b, t, seen, q + i * ld + h * dim,
                                            out + i * ld + h * dim, best,
                                            what));
        }
        for (uint32_t j = 0; j + 1 < seen; j++) {
            sum[j] += best[j];
            recent[j] += s->base + i >= s->recent_from ? best[j] : 0;
        }
    }
    for (uint32_t j = 0; j < all; j++) {
        if (fixture_is_frozen(b, slot, kv_head, &t[j])) {
            sum[j] = 0;
        }
        if (t[j].l->score != 0) {
            check_sum(fixture_score(b->kv.pool, &t[j]),
                      fixture_score(b->before, &t[j]) + sum[j], sum[j], error,
                      what, t[j].position);
        }
        if (t[j].run == FIXTURE_UNCOMPRESSED) {
            check_sum(recent_of(b, &t[j]), recent[j], recent[j], error, what,
                      t[j].position);
        }
    }
    free(t);
    free(sum);
    free(best);
}

/* Two sequences, again from the start, in random chunks side by side; the last
 * row of each comes alone. */
static void
run_chunks(kv_fixture_t *b, const tr_kernels_t *k, const uint32_t *n,
           float *const *q, float *const *out)
{
    uint32_t done[2] = { 0, 0 };
    size_t ld = (size_t) b->heads * b->kv.head_dim;
    float *qq = fixture_alloc((n[0] + n[1]) * ld * sizeof(float));
    float *oo = fixture_alloc((n[0] + n[1]) * ld * sizeof(float));

    memcpy(b->kv.pool, b->before, b->pool_bytes);
    while (done[0] < n[0] || done[1] < n[1]) {
        fixture_part_t part[2];
        uint32_t parts = 0, row = 0;

        for (int32_t i = 1; i >= 0; i--) {
            uint32_t left = n[i] - done[i], some;

            if (left == 0) {
                continue;
            }
            some = left == 1 ? 1 : 1 + rng_below(&rng, left - 1);
            part[parts++] = (fixture_part_t){ i, b->seq[i].base + done[i],
                                              some };
            memcpy(qq + row * ld, q[i] + done[i] * ld,
                   some * ld * sizeof(float));
            row += some;
        }
        fixture_run(b, k, 1 + (int) rng_below(&rng, 3), part, parts, qq, oo);
        for (uint32_t i = 0, at = 0; i < parts; at += part[i++].n) {
            memcpy(out[part[i].slot] + done[part[i].slot] * ld, oo + at * ld,
                   part[i].n * ld * sizeof(float));
            done[part[i].slot] += part[i].n;
        }
    }
    free(qq);
    free(oo);
}

/* Prompts of up to `len` tokens, one of them after up to `before`. */
static void
one_fixture(const tr_kernels_t *k, uint32_t kv_heads, uint32_t group,
            uint32_t dim, uint32_t before, uint32_t len, float scale)
{
    fixture_spec_t w = { dim, kv_heads,     group, levels,
                         4,   len + before, len,   scale };
    uint32_t n[2] = { len, 1 + rng_below(&rng, len) };
    size_t ld = (size_t) kv_heads * group * dim;
    float *q[2], *out[2], *again[2];
    fixture_token_t *t;
    uint8_t *after;
    kv_fixture_t b;

    kv_fixture_open(&b, &w, &rng);
    fill_slot(&b, 0, 0, n[0]);
    fill_slot(&b, 1, before / 2 + 1 + rng_below(&rng, before / 2), n[1]);
    memcpy(b.before, b.kv.pool, b.pool_bytes);
    for (int32_t i = 0; i < 2; i++) {
        fixture_part_t part = { i, b.seq[i].base, n[i] };

        q[i] = fixture_queries(&b, n[i]);
        out[i] = fixture_alloc(n[i] * ld * sizeof(float));
        again[i] = fixture_alloc(n[i] * ld * sizeof(float));
        fixture_run(&b, k, 2, &part, 1, q[i], out[i]);
        for (uint32_t kv_head = 0; kv_head < kv_heads; kv_head++) {
            check_head(&b, i, kv_head, n[i], q[i], out[i], k->name);
        }
    }
    after = fixture_alloc(b.pool_bytes);
    memcpy(after, b.kv.pool, b.pool_bytes);
    for (int round = 0; round < 3; round++) {
        run_chunks(&b, k, n, q, again);
        assert_memory_equal(after, b.kv.pool, b.pool_bytes);
        for (int32_t i = 0; i < 2; i++) {
            assert_memory_equal(out[i], again[i], n[i] * ld * sizeof(float));
        }
    }
    t = fixture_alloc((b.max_len + len) * sizeof(*t));
    for (uint32_t kv_head = 0; kv_head < kv_heads; kv_head++) {
        uint32_t all = fixture_tokens(&b, 1, kv_head, b.seq[1].base, t);

        fixture_check_candidates(&b, 1, kv_head, b.seq[1].base + n[1] - 1, t,
                                 all, k->name);
    }
    free(t);
    free(after);
    for (int32_t i = 0; i < 2; i++) {
        free(q[i]);
        free(out[i]);
        free(again[i]);
    }
    kv_fixture_close(&b);
}

static void
test_prompts(void **state)
{
    static const uint32_t dims[] = { 64, 96, 128, 256 };
    static const float scales[] = { 1, 1e-4f, 1e3f };
    static const uint32_t wide[] = { 12, 16, 31, TR_GROUP_MAX };

    (void) state;
    for (uint32_t j = 0; j < 12; j++) {
        uint32_t group = j < 8 ? j + 1 : wide[j - 8];

        for (int i = 0; i < N_ISAS; i++) {
            const tr_kernels_t *k = tr_kernels_cpu(isas[i]);

            if (k != NULL && (i > 0 || group % 4 == 1)) {
                one_fixture(k, 1 + group % 2, group, dims[group % 4], 200,
                            60 + rng_below(&rng, 50), scales[group % 3]);
            }
        }
    }
    for (int i = 0; i < N_ISAS; i++) {
        const tr_kernels_t *k = tr_kernels_cpu(isas[i]);

        if (k != NULL) {
            one_fixture(k, 2, 1, 64, 200, 200 + rng_below(&rng, 100), 1);
            one_fixture(k, 1, 2, 64, 200, 1 + rng_below(&rng, 3), 1);
        }
    }
}

/* After so many tokens a tile has fewer rows: what it keeps has bounds. */
static void
test_long(void **state)
{
    (void) state;
    for (int i = 1; i < N_ISAS; i++) { /* vectors; C keeps nothing */
        const tr_kernels_t *k = tr_kernels_cpu(isas[i]);

        if (k != NULL) {
            one_fixture(k, 1, 3, 64, 14000, 60 + rng_below(&rng, 50), 1);
        }
    }
}

/* ---- Quest ---- */

/* Page min/max as they are defined; the promise of each page for one head. */
static void
make_minmax(kv_fixture_t *b, uint32_t kv_head, uint32_t len, const float *q,
            double *promise)
{
    const tr_kv_layout_t *l = &b->kv.layout[0];
    const int32_t *table = tr_kv_table(&b->kv, 0, FIXTURE_LAYER, kv_head);

    for (uint32_t p = 0; p < fixture_pages(len, l); p++) {
        uint8_t *page = tr_kv_page_at(&b->kv, table[p]);
        uint32_t used = len - p * l->tokens;

        used = used < l->tokens ? used : l->tokens;
        promise[p] = -INFINITY;
        for (uint32_t h = 0; h < b->group; h++) {
            double sum = 0;

            for (uint32_t d = 0; d < l->head_dim; d++) {
                double lo = INFINITY, hi = -INFINITY;
                float x = q[(kv_head * b->group + h) * l->head_dim + d];

                for (uint32_t i = 0; i < used; i++) {
                    double key = fixture_half(page + (i * l->head_dim + d) * 2);

                    lo = fmin(lo, key);
                    hi = fmax(hi, key);
                }
                fixture_put_half(page + l->minmax + d * 2, (float) lo);
                fixture_put_half(page + l->minmax + (l->head_dim + d) * 2,
                                 (float) hi);
                sum += fmax(x * lo, x * hi);
            }
            promise[p] = fmax(promise[p], sum);
        }
    }
}

/* Leaves the tokens of the pages that are to be read; spoils the others. */
static uint32_t
keep_chosen(kv_fixture_t *b, fixture_token_t *t, uint32_t n,
            const double *promise, uint32_t pages, uint32_t want)
{
    const tr_kv_layout_t *l = &b->kv.layout[0];
    uint32_t kept = 0;

    for (uint32_t i = 0; i < n; i++) {
        uint32_t page = t[i].index / l->tokens, better = 0;

        for (uint32_t p = 0; p + 1 < pages; p++) {
            better += promise[p] > promise[page]
                      || (promise[p] == promise[page] && p < page);
        }
        if (page == pages - 1 || better < want - 1) {
            t[kept++] = t[i];
        } else {
            memset(b->kv.pool + t[i].page, 0xff, l->minmax);
        }
    }
    return kept;
}

static void
one_quest(const tr_kernels_t *k, uint32_t group, uint32_t dim, uint32_t len,
          bool equal)
{
    fixture_spec_t w = { dim, 2, group, NULL, 0, len, len, 1 };
    fixture_part_t part = { 0, len - 1, 1 };
    size_t ld = 2ul * group * dim;
    fixture_token_t *t = fixture_alloc(len * sizeof(*t));
    uint32_t pages;
    double *promise;
    float *q, *out = fixture_alloc(ld * sizeof(float)), *all;
    kv_fixture_t b;

    kv_fixture_open(&b, &w, &rng);
    fill_slot(&b, 0, 0, len);
    memcpy(b.before, b.kv.pool, b.pool_bytes);
    q = fixture_queries(&b, 1);
    if (equal) {
        memset(q, 0, ld * sizeof(float));
    }
    pages = fixture_pages(len, &b.kv.layout[0]);
    promise = fixture_alloc(pages * sizeof(double));
    all = fixture_alloc(ld * sizeof(float));
    b.seq[0].scored = false;
    fixture_run(&b, k, 2, &part, 1, q, all);
    b.seq[0].read_layer = FIXTURE_LAYER + 1; /* not yet here */
    b.seq[0].read_pages = 1 + rng_below(&rng, pages);
    fixture_run(&b, k, 2, &part, 1, q, out);
    assert_memory_equal(all, out, ld * sizeof(float));
    b.seq[0].read_layer = FIXTURE_LAYER;
    for (uint32_t kv_head = 0; kv_head < 2; kv_head++) {
        make_minmax(&b, kv_head, len, q, promise);
    }
    for (uint32_t kv_head = 0; kv_head < 2; kv_head++) {
        uint32_t n = fixture_tokens(&b, 0, kv_head, len, t);

        make_minmax(&b, kv_head, len, q, promise);
        n = keep_chosen(&b, t, n, promise, pages, b.seq[0].read_pages);
        fixture_run(&b, k, 2, &part, 1, q, out);
        for (uint32_t h = kv_head * group; h < (kv_head + 1) * group; h++) {
            fixture_check_head(&b, t, n, q + h * dim, out + h * dim, NULL,
                               k->name);
        }
    }
    free(t);
    free(promise);
    free(q);
    free(out);
    free(all);
    kv_fixture_close(&b);
}

static void
test_quest(void **state)
{
    (void) state;
    for (int i = 0; i < N_ISAS; i++) {
        const tr_kernels_t *k = tr_kernels_cpu(isas[i]);

        for (uint32_t round = 0; round < 6 && k != NULL; round++) {
            one_quest(k, 1 + round % 3, round % 2 ? 64 : 128,
                      1 + rng_below(&rng, 900), round == 5);
        }
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_prompts),
        cmocka_unit_test(test_long),
        cmocka_unit_test(test_quest),
    };

    fixture_keep_memory();
    rng = rng_seed();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
