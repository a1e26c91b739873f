/*
 * The guard: what it measures of keys alone and of values alone is what the
 * attention kernel gives before and after a compression; one head that is broken
 * is found, one that gives nothing is no error; chunks of a prompt make no
 * difference; which prompts are watched, which of them are compared, and when
 * the log hears of it.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/config/log.h"
#include "engine/kv/kv_cache.h"
#include "kernels/kernels.h"

#define LAYERS 2u
#define KV_HEADS 2u
#define GROUP 3u
#define HEADS (KV_HEADS * GROUP)
#define DIM 64u
#define LEN 300u
#define ROW ((HEADS + 2 * KV_HEADS) * DIM)
#define SCALE 0.125f

/* A cache with one policy, guarded, and what a prompt's rows are. */
typedef struct {
    const tr_kernels_t *k;
    tr_stream_t stream;
    tr_kv_policy_t *policy;
    tr_kv_guard_t *guard;
    tr_kv_cache_t *kv;
    float *rows; /* [LAYERS][LEN][ROW]: queries, keys, values */
    void *work;
} guard_fixture_t;

static float
noise(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (float) (*state >> 40) / (float) (1u << 24) * 2 - 1;
}

static void
open(guard_fixture_t *b, const char *spec, uint32_t every)
{
    const tr_kv_policy_t *policies[1];
    tr_kv_config_t config = { .layers = LAYERS,
                              .kv_heads = KV_HEADS,
                              .head_dim = DIM,
                              .slots = 4,
                              .max_len = 1024,
                              .memory = 64u << 20,
                              .policies = policies,
                              .n_policies = 1 };
    tr_kv_guard_config_t guard = { .every = every,
                                   .layers = LAYERS,
                                   .heads = HEADS,
                                   .kv_heads = KV_HEADS,
                                   .head_dim = DIM,
                                   .scale = SCALE,
                                   .work = TR_KV_GUARD_WORK };
    uint64_t seed = 7;
    tr_error_t err;

    memset(b, 0, sizeof(*b));
    b->k = config.kernels = guard.kernels = tr_kernels_cpu(NULL);
    b->stream.threads = 2;
    b->stream.thread_pool = tr_thread_pool_new(2);
    config.stream = guard.stream = b->stream;
    assert_int_equal(tr_kv_policy_create(spec, LAYERS, KV_HEADS, DIM,
                                         &b->policy, &err),
                     TR_OK);
    policies[0] = b->policy;
    assert_int_equal(tr_kv_guard_create(&guard, &b->guard, &err), TR_OK);
    config.guard = b->guard;
    assert_int_equal(tr_kv_cache_create(&config, &b->kv, &err), TR_OK);
    b->rows = calloc((size_t) LAYERS * LEN * ROW, sizeof(float));
    for (size_t i = 0; i < (size_t) LAYERS * LEN * ROW; i++) {
        b->rows[i] = noise(&seed);
    }
    b->work = aligned_alloc(64, tr_pad(b->k->attention_work(&b->stream, LEN, 4,
                                                            1024, HEADS,
                                                            KV_HEADS, DIM),
                                       64));
}

static void
close_fixture(guard_fixture_t *b)
{
    tr_kv_cache_free(b->kv);
    tr_kv_guard_free(b->guard);
    tr_kv_policy_free(b->policy);
    tr_thread_pool_free(b->stream.thread_pool);
    free(b->rows);
    free(b->work);
}

/* Computes positions [from, to) of the slot's prompt, and what the last of them
 * attends to: out, [LAYERS][HEADS * DIM]. */
static void
chunk(guard_fixture_t *b, int32_t slot, uint32_t from, uint32_t to, float *out)
{
    uint32_t pos[LEN], seq_row[2] = { 0, to - from };
    tr_rows_t rows = { to - from, 1, pos, &slot, seq_row };
    float *attn = calloc((size_t) LEN * HEADS * DIM, sizeof(float));
    tr_kv_view_t view;

    for (uint32_t i = 0; i < to - from; i++) {
        pos[i] = from + i;
    }
    assert_int_equal(tr_kv_reserve(b->kv, slot, to), TR_OK);
    tr_kv_view(b->kv, &view);
    for (uint32_t l = 0; l < LAYERS; l++) {
        const float *x = b->rows + ((size_t) l * LEN + from) * ROW;

        assert_int_equal(b->k->kv_append(&b->stream, &view, l, &rows,
                                         x + HEADS * DIM,
                                         x + (HEADS + KV_HEADS) * DIM, ROW,
                                         NULL),
                         TR_KERNEL_OK);
        tr_kv_guard_take(b->guard, l, &rows, x, ROW);
        assert_int_equal(b->k->attention(&b->stream, &view, l, &rows, x, ROW,
                                         HEADS, SCALE, attn, HEADS * DIM,
                                         b->work),
                         TR_KERNEL_OK);
        memcpy(out + (size_t) l * HEADS * DIM,
               attn + (size_t) (to - from - 1) * HEADS * DIM,
               HEADS * DIM * sizeof(float));
    }
    free(attn);
}

/* The last query once more, over what is compressed. */
static void
again(guard_fixture_t *b, int32_t slot, float *out)
{
    uint32_t pos = LEN - 1, seq_row[2] = { 0, 1 };
    tr_rows_t rows = { 1, 1, &pos, &slot, seq_row };
    tr_kv_view_t view;

    tr_kv_view(b->kv, &view);
    for (uint32_t l = 0; l < LAYERS; l++) {
        assert_int_equal(b->k->attention(&b->stream, &view, l, &rows,
                                         b->rows
                                             + ((size_t) l * LEN + pos) * ROW,
                                         ROW, HEADS, SCALE,
                                         out + (size_t) l * HEADS * DIM,
                                         HEADS * DIM, b->work),
                         TR_KERNEL_OK);
    }
}

static int
by_size(const void *a, const void *b)
{
    double x = *(const double *) a, y = *(const double *) b;

    return (x > y) - (x < y);
}

/* What kv_guard.h says, of one query. */
static double
reference(const float *old, const float *new)
{
    double most = 0;

    for (uint32_t h = 0; h < LAYERS * KV_HEADS; h++) {
        double share[DIM];

        for (uint32_t i = 0; i < DIM; i++) {
            double off = 0, whole = 0;

            for (uint32_t g = 0; g < GROUP; g++) {
                size_t at = ((size_t) h * GROUP + g) * DIM + i;

                off += pow((double) new[at] - (double) old[at], 2);
                whole += pow((double) old[at], 2);
            }
            share[i] = sqrt(off / whole);
        }
        qsort(share, DIM, sizeof(share[0]), by_size);
        most = fmax(most, share[DIM / 2 - 1]);
    }
    return most;
}

/* The prompt in chunks, the last of them its last token alone. */
static tr_kv_guard_error_t
measured(const char *spec, double *kernel)
{
    float *old = calloc(LAYERS * HEADS * DIM, sizeof(float));
    float *new = calloc(LAYERS * HEADS * DIM, sizeof(float));
    tr_kv_guard_state_t s;
    int32_t slot;
    guard_fixture_t b;

    open(&b, spec, 1);
    slot = tr_kv_open(b.kv, NULL);
    tr_kv_prompt(b.kv, slot, LEN);
    chunk(&b, slot, 0, LEN - 1, old);
    tr_kv_guard_watch(b.guard, slot, LEN); /* forgets what it has */
    chunk(&b, slot, LEN - 1, LEN, old);
    assert_int_equal(tr_kv_compress(b.kv, slot, LEN), TR_OK);
    again(&b, slot, new);
    *kernel = reference(old, new);
    tr_kv_guard_state(b.guard, &s);
    assert_int_equal(s.prompts, 1);
    assert_true(tr_kv_sound(b.kv));
    tr_kv_close(b.kv, slot);
    close_fixture(&b);
    free(old);
    free(new);
    return s.error;
}

static void
test_keys_and_values(void **state)
{
    tr_kv_guard_error_t e;
    double kernel;

    (void) state;
    e = measured("uniform:levels=4/16", &kernel);
    assert_true(e.values == 0 && e.keys > 0.001);
    assert_true(fabs(e.keys - kernel) < 1e-3 * kernel);
    e = measured("uniform:levels=16/4", &kernel);
    assert_true(e.keys == 0 && e.values > 0.001);
    assert_true(fabs(e.values - kernel) < 1e-3 * kernel);
    e = measured("uniform:levels=16/2,groups=2", &kernel);
    assert_true(fabs(e.values - kernel) < 1e-3 * kernel);
}

/* A tier, a second one and a window, of which some is dropped. */
static void
test_dropped(void **state)
{
    tr_kv_guard_error_t e;
    double kernel;

    (void) state;
    e = measured("diffkv:levels=16/16,window=16,alpha_low=1.6", &kernel);
    assert_true(kernel > 0.01);
    assert_true(fabs(e.keys - kernel) < 1e-3 * kernel);
    assert_true(fabs(e.values - kernel) < 1e-3 * kernel);
    e = measured("diffkv:levels=16/8+16/2,window=16,window_level=16/16,"
                 "alpha_high=1,alpha_low=0",
                 &kernel);
    assert_true(e.keys == 0);
    assert_true(fabs(e.values - kernel) < 1e-3 * kernel);
}

/* Multiplies channel `channel` of every token's key, or value, in a head. */
static void
scale(guard_fixture_t *b, uint32_t layer, uint32_t head, bool keys,
      uint32_t channel, float by)
{
    size_t at = (size_t) layer * LEN * ROW
                + (HEADS + head + (keys ? 0 : KV_HEADS)) * DIM + channel;

    for (uint32_t t = 0; t < LEN; t++) {
        b->rows[at + (size_t) t * ROW] *= by;
    }
}

/* All 32 queries, whatever the chunks, of rows that `change` may change. */
static tr_kv_guard_error_t
chunked(uint32_t size, void (*change)(guard_fixture_t *b))
{
    float *out = calloc(LAYERS * HEADS * DIM, sizeof(float));
    tr_kv_guard_error_t e;
    int32_t slot;
    guard_fixture_t b;

    open(&b, "uniform:levels=4/2", 1);
    if (change != NULL) {
        change(&b);
    }
    slot = tr_kv_open(b.kv, NULL);
    tr_kv_prompt(b.kv, slot, LEN);
    for (uint32_t at = 0; at < LEN; at += size) {
        chunk(&b, slot, at, at + size < LEN ? at + size : LEN, out);
    }
    assert_int_equal(tr_kv_compress(b.kv, slot, LEN), TR_OK);
    assert_true(tr_kv_guard_last(b.guard, &e));
    close_fixture(&b);
    free(out);
    return e;
}

static void
test_chunks(void **state)
{
    tr_kv_guard_error_t whole = chunked(LEN, NULL), small = chunked(7, NULL);

    (void) state;
    assert_true(whole.keys > 0 && whole.keys == small.keys);
    assert_true(whole.values > 0 && whole.values == small.values);
}

/* A key channel of one head, a value channel of another. */
static void
break_heads(guard_fixture_t *b)
{
    scale(b, 1, 0, true, 5, 40);
    scale(b, 0, 1, false, 9, 40);
}

/* A head is named, whose neighbour in the layer is well. */
static void
test_one_head(void **state)
{
    tr_kv_guard_error_t well = chunked(LEN, NULL);
    tr_kv_guard_error_t bad = chunked(LEN, break_heads);

    (void) state;
    assert_true(bad.keys > 3 * well.keys);
    assert_true(bad.values > 3 * well.values);
    assert_int_equal(bad.keys_at.layer, 1);
    assert_int_equal(bad.keys_at.head, 0);
    assert_int_equal(bad.values_at.layer, 0);
    assert_int_equal(bad.values_at.head, 1);
}

/* A head whose values are all 0 gives nothing. */
static void
empty_head(guard_fixture_t *b)
{
    for (uint32_t d = 0; d < DIM; d++) {
        scale(b, 1, 1, false, d, 0);
    }
}

static void
test_empty_head(void **state)
{
    tr_kv_guard_error_t well = chunked(LEN, NULL);
    tr_kv_guard_error_t e = chunked(LEN, empty_head);

    (void) state;
    assert_true(e.keys > 0 && e.keys <= well.keys);
    assert_true(e.values > 0 && e.values <= well.values);
}

/* One in `every`, the first of them; none that is short; none beside another
 * that is watched. */
static void
test_turns(void **state)
{
    float *out = calloc(LAYERS * HEADS * DIM, sizeof(float));
    tr_kv_guard_state_t s;
    guard_fixture_t b;

    (void) state;
    open(&b, "uniform:levels=8/8", 3);
    for (uint32_t i = 0; i < 8; i++) {
        uint32_t len = i == 0 ? TR_KV_GUARD_TOKENS - 1 : LEN;
        int32_t slot = tr_kv_open(b.kv, NULL);
        int32_t other = tr_kv_open(b.kv, NULL);

        tr_kv_prompt(b.kv, slot, len);
        tr_kv_prompt(b.kv, other, TR_KV_GUARD_TOKENS - 1);
        chunk(&b, slot, 0, len, out);
        assert_int_equal(tr_kv_compress(b.kv, slot, len), TR_OK);
        tr_kv_guard_state(b.guard, &s);
        assert_int_equal(s.prompts, i == 0 ? 0 : (i + 2) / 3);
        assert_int_equal(s.over, 0);
        tr_kv_close(b.kv, slot);
        tr_kv_close(b.kv, other);
    }
    close_fixture(&b);
    free(out);
}

/* A prompt that goes away is not missed by the next. */
static void
test_forgotten(void **state)
{
    float *out = calloc(LAYERS * HEADS * DIM, sizeof(float));
    tr_kv_guard_state_t s;
    int32_t slot;
    guard_fixture_t b;

    (void) state;
    open(&b, "uniform:levels=8/8", 1);
    slot = tr_kv_open(b.kv, NULL);
    tr_kv_prompt(b.kv, slot, LEN);
    chunk(&b, slot, 0, 100, out);
    tr_kv_close(b.kv, slot);
    slot = tr_kv_open(b.kv, NULL);
    tr_kv_prompt(b.kv, slot, LEN);
    chunk(&b, slot, 0, LEN, out);
    assert_int_equal(tr_kv_compress(b.kv, slot, LEN), TR_OK);
    tr_kv_guard_state(b.guard, &s);
    assert_int_equal(s.prompts, 1);
    close_fixture(&b);
    free(out);
}

/* A prompt of which others had the beginning: with few queries of its own it is
 * not compared, unless that is asked for, and the next one has its turn. */
static void
test_few_queries(void **state)
{
    static const struct {
        uint32_t queries, every;
        bool asked, compared;
    } prompts[] = {
        { 1, 64, false, false },
        { TR_KV_GUARD_QUERIES_MIN - 1, 64, false, false },
        { TR_KV_GUARD_QUERIES_MIN, 64, false, true },
        { 1, 64, true, true },
        { 1, 0, true, true },
    };
    float *out = calloc(LAYERS * HEADS * DIM, sizeof(float));

    (void) state;
    for (size_t i = 0; i < sizeof(prompts) / sizeof(prompts[0]); i++) {
        tr_kv_guard_error_t e;
        tr_kv_guard_state_t s;
        guard_fixture_t b;

        open(&b, "uniform:levels=8/8", prompts[i].every);
        /* the second has all queries, and no turn when the first had it */
        for (uint32_t turn = 0; turn < 2; turn++) {
            int32_t slot = tr_kv_open(b.kv, NULL);
            uint32_t own = turn == 0 ? prompts[i].queries : LEN;

            if (own < LEN) { /* before the prompt begins: nobody watches */
                chunk(&b, slot, 0, LEN - own, out);
            }
            tr_kv_prompt(b.kv, slot, LEN);
            if (turn == 0 && prompts[i].asked) {
                tr_kv_guard_watch(b.guard, slot, LEN);
            }
            chunk(&b, slot, LEN - own, LEN, out);
            assert_int_equal(tr_kv_compress(b.kv, slot, LEN), TR_OK);
            assert_int_equal(tr_kv_guard_last(b.guard, &e),
                             turn == 1 || prompts[i].compared);
            tr_kv_close(b.kv, slot);
        }
        tr_kv_guard_state(b.guard, &s);
        assert_int_equal(s.prompts, prompts[i].every != 0);
        close_fixture(&b);
    }
    free(out);
}

/* No comparison is no error, whatever the last one gave. */
static void
test_last(void **state)
{
    float *out = calloc(LAYERS * HEADS * DIM, sizeof(float));
    tr_kv_guard_error_t e;
    int32_t slot, copy;
    guard_fixture_t b;

    (void) state;
    open(&b, "uniform:levels=4/2", 0);
    assert_false(tr_kv_guard_last(b.guard, &e));
    slot = tr_kv_open(b.kv, NULL);
    tr_kv_prompt(b.kv, slot, LEN);
    tr_kv_guard_watch(b.guard, slot, LEN);
    chunk(&b, slot, 0, LEN, out);
    for (uint32_t i = 0; i < 2; i++) {
        copy = tr_kv_open(b.kv, NULL);
        tr_kv_prompt(b.kv, copy, LEN);
        assert_int_equal(tr_kv_fork(b.kv, slot, copy, LEN), TR_OK);
        tr_kv_guard_follow(b.guard, copy);
        assert_false(tr_kv_guard_last(b.guard, &e));
        assert_int_equal(tr_kv_compress(b.kv, copy, LEN), TR_OK);
        assert_true(tr_kv_guard_last(b.guard, &e) && e.keys > 0);
        tr_kv_close(b.kv, copy);
    }
    tr_kv_guard_watch(b.guard, slot, LEN); /* no query of it is kept */
    assert_int_equal(tr_kv_compress(b.kv, slot, LEN), TR_OK);
    assert_false(tr_kv_guard_last(b.guard, &e));
    close_fixture(&b);
    free(out);
}

/* A policy is bad above a bound, and well again below 0.8 of both. */
static void
test_states(void **state)
{
    const tr_kv_guard_error_t bad = { .keys = 2 * TR_KV_GUARD_KEYS };
    const tr_kv_guard_error_t worse = { .values = 2 * TR_KV_GUARD_VALUES };
    const tr_kv_guard_error_t well = { .keys = 0.1 * TR_KV_GUARD_KEYS };
    tr_kv_guard_state_t s;
    uint32_t turns = 0;
    guard_fixture_t b;

    (void) state;
    open(&b, "uniform:levels=8/8", 1);
    tr_kv_guard_count(b.guard, b.policy, &bad);
    tr_kv_guard_state(b.guard, &s);
    assert_int_equal(s.over, 1);
    assert_true(s.error.keys == bad.keys);
    do {
        tr_kv_guard_count(b.guard, b.policy, &well);
        tr_kv_guard_state(b.guard, &s);
        assert_int_equal(s.over, s.error.keys > 0.8 * TR_KV_GUARD_KEYS);
    } while (s.over != 0 && ++turns < 20);
    assert_in_range(turns, 1, 10);
    for (turns = 0; s.over == 0 && turns < 20; turns++) {
        tr_kv_guard_count(b.guard, b.policy, &worse);
        tr_kv_guard_state(b.guard, &s);
    }
    assert_in_range(turns, 1, 10);
    close_fixture(&b);
    tr_kv_guard_state(NULL, &s);
    assert_int_equal(s.prompts, 0);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_keys_and_values),
        cmocka_unit_test(test_dropped),
        cmocka_unit_test(test_chunks),
        cmocka_unit_test(test_one_head),
        cmocka_unit_test(test_empty_head),
        cmocka_unit_test(test_turns),
        cmocka_unit_test(test_forgotten),
        cmocka_unit_test(test_few_queries),
        cmocka_unit_test(test_last),
        cmocka_unit_test(test_states),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
