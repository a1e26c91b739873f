/*
 * Attention of compressed sequences: one row over tiers of several levels and
 * the window, against double precision over the dequantised values; scores and
 * candidates likewise.  Every level, head sizes 64 to 256, query groups 1 to
 * 32, 1 to 32,768 tokens, heads of very different lengths, scales from 1e-6 to
 * 1e4, each instruction set; whatever holds no token is NaN.  And bit for bit:
 * the same alone, in a batch, and with any number of threads.
 */
#include "tests/unit/fixtures/attention_fixture.h"
#include "kernels/kernels.h"

static uint64_t rng;

static const char *const isas[] = { "c", "avx2", "avx512" };
#define N_ISAS 3

static const tr_kv_level_t diffkv[] = { { 8, 4, 1, 1, 0, 1, 0, 0 },
                                        { 4, 2, 1, 1, 0, 1, 0, 0 } };
static const tr_kv_level_t three[] = { { 16, 16, 1, 1, 0, 1, 0, 0 },
                                       { 8, 4, 1, 1, 0, 1, 0, 0 },
                                       { 4, 2, 1, 1, 0, 1, 0, 0 } };
static const tr_kv_level_t odd[] = { { 4, 8, 1, 1, 0, 1, 0, 0 },
                                     { 2, 2, 1, 1, 0, 0, 0, 0 },
                                     { 8, 8, 2, 2, 0, 1, 0, 0 },
                                     { 2, 4, 4, 1, 0, 1, 0, 0 } };
static const tr_kv_level_t kivi[] = { { 16, 16, 1, 1, 0, 0, 0, 0 },
                                      { 2, 2, 1, 2, 1, 0, 0, 0 } };
static const tr_kv_level_t grouped[] = { { 8, 4, 2, 2, 0, 1, 0, 0 },
                                         { 4, 2, 4, 2, 0, 1, 0, 0 } };
static const tr_kv_level_t half[] = { { 16, 4, 1, 1, 0, 1, 0, 0 },
                                      { 8, 16, 1, 1, 0, 1, 0, 0 } };
/* The pairs of bits that are in none of the above. */
static const tr_kv_level_t others[] = { { 16, 8, 1, 1, 0, 1, 0, 0 },
                                        { 16, 2, 1, 1, 0, 1, 0, 0 },
                                        { 8, 2, 1, 1, 0, 1, 0, 0 },
                                        { 4, 4, 1, 1, 0, 1, 0, 0 } };
static const tr_kv_level_t reversed[] = { { 4, 16, 1, 1, 0, 1, 0, 0 },
                                          { 2, 16, 1, 1, 0, 1, 0, 0 },
                                          { 2, 8, 1, 1, 0, 1, 0, 0 } };

typedef struct {
    const tr_kv_level_t *levels;
    uint32_t n;
} levels_t;

static const levels_t level_sets[] = {
    { diffkv, 2 }, { three, 3 },   { odd, 4 },    { kivi, 2 },
    { half, 2 },   { grouped, 2 }, { others, 4 }, { reversed, 3 },
};
#define N_SETS (sizeof(level_sets) / sizeof(level_sets[0]))

/* Slot i: a window, and tiers of very different lengths. */
static void
fill_slot(kv_fixture_t *b, int32_t slot, uint32_t n_levels, uint32_t len)
{
    tr_kv_seq_t *s = &b->seq[slot];
    uint32_t window = slot == 3 ? 0 : 1 + rng_below(&rng, 100);
    uint32_t from = len > window ? len - window : 0, sinks = 0;

    if (window > 0 && rng_below(&rng, 2)) {
        sinks = 1 + rng_below(&rng, 40);
        from = from < sinks ? sinks < len ? sinks : len : from;
        sinks = sinks < from ? sinks : from;
    }
    /* a ring that is not full, now and then */
    if (window > 40 && slot == 1) {
        from += rng_below(&rng, (len - from) / 2 + 1);
    }
    *s = (tr_kv_seq_t){ .base = b->first + len,
                        .window_from = b->first + from,
                        .window = window,
                        .sinks = sinks,
                        .n_tiers = (uint8_t) n_levels,
                        .window_layout = 1,
                        .scored = true,
                        .by_sum = slot == 2 };
    for (uint32_t l = 0; l < n_levels; l++) {
        s->tier_layout[l] = (uint8_t) (l + 1);
    }
    for (uint32_t kv_head = 0; kv_head < b->kv.kv_heads; kv_head++) {
        size_t head = tr_kv_head(&b->kv, slot, FIXTURE_LAYER, kv_head);
        uint32_t left = from - sinks;

        for (uint32_t l = 0; l < n_levels; l++) {
            uint32_t n = rng_below(&rng, left + 1);

            n = rng_below(&rng, 4) == 0 ? rng_below(&rng, n / 8 + 1) : n;
            if (window == 0 && l == 0 && n == 0) {
                n = 1; /* the row's own token, say */
            }
            b->count[head * TR_KV_TIERS_MAX + l] = n;
            left -= n;
        }
        fixture_fill_head(b, slot, kv_head, window == 0 ? len : from, len);
    }
    fixture_freeze(b, slot);
}

/* Scores grew by best[i], but for frozen ones. */
static void
check_scores(const kv_fixture_t *b, int32_t slot, uint32_t kv_head,
             const fixture_token_t *t, uint32_t n, const double *best,
             double error, const char *what)
{
    for (uint32_t i = 0; i < n; i++) {
        bool nobodys = fixture_is_frozen(b, slot, kv_head, &t[i])
                       || t[i].position == b->seq[slot].base - 1;
        double add = nobodys ? 0 : best[i];
        float before, after;

        if (t[i].l->score == 0) {
            continue;
        }
        before = fixture_score(b->before, &t[i]);
        after = fixture_score(b->kv.pool, &t[i]);
        if (!(fabs(after - (before + add))
              <= 2 * error * add + 1e-7 * (before + 1))) {
            fail_msg("%s: score of position %u is %.9g, expected %.9g", what,
                     t[i].position, after, before + add);
        }
    }
}

static void
check_slot(const kv_fixture_t *b, int32_t slot, const float *q,
           const float *out, const char *name)
{
    uint32_t dim = b->kv.head_dim;
    fixture_token_t *t = fixture_alloc((size_t) (b->max_len + 1) * sizeof(*t));
    double *best = fixture_alloc((size_t) (b->max_len + 1) * sizeof(*best));

    for (uint32_t kv_head = 0; kv_head < b->kv.kv_heads; kv_head++) {
        uint32_t n = fixture_tokens(b, slot, kv_head, 0, t);
        double error = 0;
        char what[64];

        snprintf(what, sizeof(what), "%s, slot %d, KV head %u", name, slot,
                 kv_head);
        memset(best, 0, n * sizeof(*best));
        for (uint32_t h = kv_head * b->group; h < (kv_head + 1) * b->group;
             h++) {
            error = fmax(error,
                         fixture_check_head(b, t, n, q + (size_t) h * dim,
                                            out + (size_t) h * dim, best,
                                            what));
        }
        check_scores(b, slot, kv_head, t, n, best, error, what);
        fixture_check_candidates(b, slot, kv_head, b->seq[slot].base - 1, t, n,
                                 what);
    }
    free(t);
    free(best);
}

static void
one_fixture(const tr_kernels_t *k, const fixture_spec_t *w)
{
    kv_fixture_t b;
    size_t width = (size_t) w->kv_heads * w->group * w->dim, candidates;
    fixture_part_t part[FIXTURE_SLOTS];
    float *q, *out, *again;
    uint8_t *after;
    tr_kv_candidate_t *candidate;

    kv_fixture_open(&b, w, &rng);
    /* as high as positions of two bytes go, or higher */
    if (rng_below(&rng, 2)) {
        b.first = TR_KV_SHORT - w->max_len
                  + (b.plan.layout[1].position_bytes == 2 ? 0 : 1000);
    }
    for (int32_t i = 0; i < FIXTURE_SLOTS; i++) {
        uint32_t len = i == 0 ? w->max_len : 1 + rng_below(&rng, w->max_len);

        fill_slot(&b, i, w->n_levels, len);
        part[i] = (fixture_part_t){ i, b.first + len - 1, 1 };
    }
    memcpy(b.before, b.kv.pool, b.pool_bytes);
    q = fixture_queries(&b, FIXTURE_SLOTS);
    out = fixture_alloc(FIXTURE_SLOTS * width * sizeof(float));
    again = fixture_alloc(FIXTURE_SLOTS * width * sizeof(float));
    after = fixture_alloc(b.pool_bytes);
    candidates = (size_t) FIXTURE_SLOTS * FIXTURE_LAYERS * w->kv_heads
                 * TR_KV_TIERS_MAX;
    candidate = fixture_alloc(candidates * sizeof(*candidate));
    fixture_run(&b, k, 3, part, FIXTURE_SLOTS, q, out);
    for (int32_t i = 0; i < FIXTURE_SLOTS; i++) {
        check_slot(&b, i, q + i * width, out + i * width, k->name);
    }
    memcpy(after, b.kv.pool, b.pool_bytes);
    memcpy(candidate, b.candidate, candidates * sizeof(*candidate));
    /* one by one, alone or with more threads than heads */
    for (int threads = 1; threads <= 3; threads += 2) {
        memcpy(b.kv.pool, b.before, b.pool_bytes);
        for (int32_t i = FIXTURE_SLOTS - 1; i >= 0; i--) {
            fixture_run(&b, k, threads, part + i, 1, q + i * width,
                        again + i * width);
        }
        assert_memory_equal(out, again, FIXTURE_SLOTS * width * sizeof(float));
        assert_memory_equal(after, b.kv.pool, b.pool_bytes);
        assert_memory_equal(candidate, b.candidate,
                            candidates * sizeof(*candidate));
    }
    free(q);
    free(out);
    free(again);
    free(after);
    free(candidate);
    kv_fixture_close(&b);
}

static void
each_isa(fixture_spec_t w)
{
    for (int i = 0; i < N_ISAS; i++) {
        const tr_kernels_t *k = tr_kernels_cpu(isas[i]);

        if (k != NULL) {
            one_fixture(k, &w);
        }
    }
}

static void
test_levels(void **state)
{
    static const uint32_t dims[] = { 64, 96, 128, 256 };

    (void) state;
    for (size_t d = 0; d < 4; d++) {
        for (size_t s = 0; s < N_SETS; s++) {
            uint32_t dim = dims[d];

            each_isa((fixture_spec_t){ dim, 1 + rng_below(&rng, 2),
                                       1 + rng_below(&rng, 4),
                                       level_sets[s].levels, level_sets[s].n,
                                       100 + rng_below(&rng, 500), 8, 1 });
        }
    }
}

static void
test_groups(void **state)
{
    static const uint32_t wide[] = { 12, 16, 31, TR_GROUP_MAX };

    (void) state;
    for (uint32_t group = 1; group <= 8; group++) {
        each_isa((fixture_spec_t){ 64, 1, group, three, 3, 300, 8, 1 });
        each_isa((fixture_spec_t){ 128, 1, group, diffkv, 2, 300, 8, 1 });
    }
    for (size_t i = 0; i < 4; i++) {
        each_isa((fixture_spec_t){ i % 2 ? 64 : 96, 1 + i % 2, wide[i], three,
                                   3, 100, 8, 1 });
    }
}

static void
test_scales(void **state)
{
    static const float scales[] = { 1e-6f, 1e-4f, 1e-2f, 1e2f, 1e4f };

    (void) state;
    for (size_t i = 0; i < 5; i++) {
        each_isa((fixture_spec_t){ 64, 1, 2, three, 3, 200, 8, scales[i] });
    }
}

static void
test_lengths(void **state)
{
    static const uint32_t lengths[] = { 1, 2, 15, 16, 17, 64, 1500, 5000 };

    (void) state;
    for (size_t i = 0; i < 8; i++) {
        each_isa((fixture_spec_t){ 64, 2, 3, diffkv, 2, lengths[i], 8, 1 });
    }
    for (int i = 1; i < N_ISAS; i++) {
        const tr_kernels_t *k = tr_kernels_cpu(isas[i]);
        fixture_spec_t w = { 64, 1, 2, diffkv, 2, 32768, 8, 1 };

        if (k != NULL) {
            one_fixture(k, &w);
        }
    }
}

/* Equal significance, from scores that no query changes (all heads look the
 * other way): the candidate is the token of lowest position. */
static void
test_ties(void **state)
{
    (void) state;
    for (int i = 0; i < N_ISAS; i++) {
        const tr_kernels_t *k = tr_kernels_cpu(isas[i]);
        fixture_spec_t w = { 64, 1, 1, diffkv, 2, 300, 8, 1 };
        fixture_part_t part = { 0, 299, 1 };
        fixture_token_t t[300];
        uint32_t n, least = UINT32_MAX, index = 0;
        float *q, out[64], score = 1e9f;
        kv_fixture_t b;

        if (k == NULL) {
            continue;
        }
        kv_fixture_open(&b, &w, &rng);
        fill_slot(&b, 0, 2, 300);
        b.count[tr_kv_head(&b.kv, 0, FIXTURE_LAYER, 0) * TR_KV_TIERS_MAX] = 150;
        b.count[tr_kv_head(&b.kv, 0, FIXTURE_LAYER, 0) * TR_KV_TIERS_MAX + 1] =
            0;
        b.seq[0].by_sum = true;
        b.seq[0].frozen = false;
        fixture_fill_head(&b, 0, 0, b.seq[0].window_from, 300);
        n = fixture_tokens(&b, 0, 0, 0, t);
        for (uint32_t j = 0; j < n && t[j].run == 0; j++) {
            /* 1e9 + p is 1e9 again */
            memcpy(b.kv.pool + t[j].page + t[j].l->score + t[j].token * 4,
                   &score, 4);
            if (t[j].position < least) {
                least = t[j].position;
                index = t[j].index;
            }
        }
        q = fixture_queries(&b, 1);
        fixture_run(&b, k, 2, &part, 1, q, out);
        n = (uint32_t) tr_kv_head(&b.kv, 0, FIXTURE_LAYER, 0) * TR_KV_TIERS_MAX;
        assert_true(b.candidate[n].significance == 1e9f);
        assert_int_equal(b.candidate[n].index, index);
        assert_true(b.candidate[n + 1].significance == INFINITY);
        free(q);
        kv_fixture_close(&b);
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_levels), cmocka_unit_test(test_groups),
        cmocka_unit_test(test_scales), cmocka_unit_test(test_lengths),
        cmocka_unit_test(test_ties),
    };

    fixture_keep_memory();
    rng = rng_seed();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
