/*
 * The KV cache under random operations, against a record that knows nothing of
 * pages (kv_record.h).  Every head decides for itself; steps run through a
 * small imitation of the kernels (kv_fixture.h) that finds tokens by the tables
 * alone.
 *
 *   TR_KV_OPS=N   operations of the long test (default 2,000,000, some 10 s)
 *   TR_KV_SEED=N  the seed that a failure printed
 */
#include "tests/unit/fixtures/kv/kv_record.h"

#include <time.h>

#include "kernels/thread_pool.h"

/* Of the long test; where pages are poisoned each one takes longer. */
#ifdef TR_KV_POISON
#define OPERATIONS 40000u
#else
#define OPERATIONS 2000000u
#endif

/* ---- operations --------------------------------------------------------- */

static void
do_open(world_t *w, sequence_t *q)
{
    tr_kv_usage_t u;

    q->policy = fixture_policy_list[random_below(FIXTURE_POLICIES)];
    q->uncompressed = true;
    q->out = q->pending = false;
    q->len = q->base = q->window_from = q->sinks = 0;
    q->window = 0;
    q->goal = 1 + random_below(random_below(4) == 0 ? 300 : 60);
    for (uint32_t i = 0; i < w->n_kv; i++) {
        q->slot = tr_kv_open(w->kv[i], q->policy);
        REQUIRE(q->slot >= 0);
        tr_kv_prompt(w->kv[i], q->slot, q->goal);
        tr_kv_usage(w->kv[i], q->slot, &u);
        REQUIRE(u.bytes == 0 && u.tokens == 0);
    }
}

static void
do_close(world_t *w, sequence_t *q)
{
    for (uint32_t i = 0; i < w->n_kv; i++) {
        tr_kv_close(w->kv[i], q->slot);
    }
    q->slot = -1;
}

/* Asks for `count` sequences at once, in this order; both ways. */
static void
reserve(world_t *w, sequence_t **q, const uint32_t *lens, uint32_t count,
        tr_status_t *rc)
{
    int32_t slots[64];
    tr_status_t batch[64];
    bool any = false;

    REQUIRE(count <= 64);
    remember(w);
    for (uint32_t i = 0; i < count; i++) {
        slots[i] = q[i]->slot;
        rc[i] = tr_kv_reserve(w->kv[0], slots[i], lens[i]);
        any = any || rc[i] == TR_OK;
    }
    if (w->n_kv == 2) {
        tr_kv_reserve_batch(w->kv[1], slots, lens, count, batch);
        REQUIRE(memcmp(batch, rc, count * sizeof(*rc)) == 0);
        require_twins(w);
    } else if (!any) {
        require_unchanged(w);
    }
    w->again += !any;
}

/* One more chunk of the prompt, or its end. */
static void
do_prompt(world_t *w, sequence_t *q)
{
    uint32_t left = q->goal - q->len, len, from = q->len;
    tr_status_t rc = TR_OK, other;

    if (left != 0) {
        len = q->len + 1 + random_below(left);
        reserve(w, &q, &len, 1, &rc);
        if (rc == TR_OK) {
            q->len = len;
            store_uncompressed(w, q, from);
        } else if (random_below(3) == 0) {
            do_close(w, q);
        }
        return;
    }
    if (q->policy->n_levels == 0) { /* `full` decodes where it is */
        q->goal = q->len + 1 < LEN_MAX ? q->len + 1 : q->len;
        if (q->goal == q->len || random_below(40) == 0) {
            do_close(w, q);
        }
        return;
    }
    remember(w);
    for (uint32_t i = 0; i < w->n_kv; i++) {
        other = tr_kv_compress(w->kv[i], q->slot, q->len);
        REQUIRE(i == 0 || other == rc);
        rc = other;
    }
    if (rc == TR_AGAIN) {
        require_unchanged(w);
        if (random_below(3) == 0) {
            do_close(w, q);
        }
        return;
    }
    REQUIRE(rc == TR_OK);
    record_compress(w, q);
    verify_compressed(w, q);
}

/* A later turn of the conversation. */
static void
do_turn(world_t *w, sequence_t *q)
{
    q->goal = q->len + 1 + random_below(50);
    q->goal = q->goal < LEN_MAX ? q->goal : LEN_MAX;
    q->uncompressed = true;
    for (uint32_t i = 0; i < w->n_kv; i++) {
        tr_kv_prompt(w->kv[i], q->slot, q->goal);
    }
}

static bool
steps(const sequence_t *q)
{
    return q->slot >= 0 && !q->uncompressed && !q->out && q->len < LEN_MAX;
}

/* A step of several sequences. */
static void
do_step(world_t *w, sequence_t *first)
{
    sequence_t *q[64];
    uint32_t lens[64] = { 0 }, n = 0;
    tr_status_t rc[64];

    if (first->pending) {
        run_step(w, first);
        return;
    }
    for (uint32_t i = 0; i < w->n && n < 64; i++) {
        if (steps(&w->seq[i]) && !w->seq[i].pending
            && (&w->seq[i] == first || random_below(3) == 0)) {
            q[n] = &w->seq[i];
            lens[n++] = w->seq[i].len + 1;
        }
    }
    reserve(w, q, lens, n, rc);
    for (uint32_t i = 0; i < n; i++) {
        if (rc[i] == TR_OK) {
            record_step(w, q[i]);
            if (random_below(8) != 0) {
                run_step(w, q[i]);
            }
        } else {
            REQUIRE(rc[i] == TR_AGAIN);
            if (random_below(6) == 0) {
                do_close(w, q[i]);
            }
        }
    }
    w->ops += n - 1;
}

/* To ask again for what was granted changes nothing. */
static void
do_ask_again(world_t *w, sequence_t *q)
{
    remember(w);
    for (uint32_t i = 0; i < w->n_kv; i++) {
        REQUIRE(tr_kv_reserve(w->kv[i], q->slot, q->len) == TR_OK);
    }
    require_unchanged(w);
    w->again--;
}

static void
do_swap(world_t *w, sequence_t *q)
{
    uint64_t out = tr_kv_swapped_pages(w->kv[0], q->slot);
    tr_status_t rc = TR_OK, other;

    REQUIRE(q->out || out == 0);
    remember(w);
    for (uint32_t i = 0; i < w->n_kv; i++) {
        other = q->out ? tr_kv_swap_in(w->kv[i], q->slot)
                       : tr_kv_swap_out(w->kv[i], q->slot);
        REQUIRE(i == 0 || other == rc);
        rc = other;
    }
    if (rc == TR_AGAIN) {
        require_unchanged(w);
        return;
    }
    REQUIRE(rc == TR_OK);
    q->out = !q->out;
    require_twins(w);
}

static void
do_fork(world_t *w, sequence_t *from, sequence_t *to)
{
    uint32_t len = 1 + random_below(from->len);
    tr_status_t rc = TR_OK, other;

    do_open(w, to);
    remember(w);
    for (uint32_t i = 0; i < w->n_kv; i++) {
        other = tr_kv_fork(w->kv[i], from->slot, to->slot, len);
        REQUIRE(i == 0 || other == rc);
        rc = other;
    }
    if (rc == TR_AGAIN) {
        require_unchanged(w);
        do_close(w, to);
        return;
    }
    to->len = len;
    to->goal = len + random_below(30);
    for (uint32_t i = 0; i < w->n_kv; i++) {
        tr_kv_prompt(w->kv[i], to->slot, to->goal);
    }
    memcpy(to->head, from->head, w->heads * sizeof(*to->head));
}

static void
operate(world_t *w)
{
    sequence_t *q = &w->seq[random_below(w->n)];
    sequence_t *other = &w->seq[random_below(w->n)];
    uint32_t dice = random_below(100);

    w->ops++;
    if (q->slot < 0) {
        do_open(w, q);
    } else if (q->out) {
        dice < 90 ? do_swap(w, q) : do_close(w, q);
    } else if (dice < 2) {
        do_close(w, q);
    } else if (dice < 5 || (dice < 30 && q->pending)) {
        do_swap(w, q);
    } else if (q->uncompressed && q->base == 0 && q->len != 0 && other->slot < 0
               && dice < 20) {
        do_fork(w, q, other);
    } else if (q->len != 0 && dice < 35) {
        do_ask_again(w, q);
    } else if (q->uncompressed) {
        do_prompt(w, q);
    } else if (!q->pending && dice < 38 && q->len < LEN_MAX) {
        do_turn(w, q);
    } else if (steps(q) || q->pending) {
        do_step(w, q);
    } else {
        do_close(w, q);
    }
}

/* ---- worlds ------------------------------------------------------------- */

static void
make_world(world_t *w, uint32_t n_kv, uint32_t layers, uint32_t kv_heads,
           uint32_t n, uint64_t pages, const tr_stream_t *stream)
{
    tr_kv_config_t c = { .layers = layers,
                         .kv_heads = kv_heads,
                         .head_dim = 32,
                         .slots = n,
                         .max_len = LEN_MAX,
                         .memory = 1u << 30,
                         .policies = fixture_policy_list,
                         .n_policies = FIXTURE_POLICIES,
                         .kernels = &fixture_kernels };
    tr_error_t err;

    memset(w, 0, sizeof(*w));
    c.reach = w->reach;
    /* at times some layers slide, or all */
    for (uint32_t l = 0, dice = random_below(3); l < layers; l++) {
        w->reach[l] = random_below(3) < dice ? 1 + random_below(90) : 0;
    }
    /* At times with positions of four bytes, in worlds of few heads: of many,
     * the tables of such lengths take minutes to compare. */
    if (layers * kv_heads < 16 && random_below(3) == 0) {
        c.max_len += TR_KV_SHORT;
    }
    for (uint32_t i = 0; i < FIXTURE_POLICIES; i++) {
        fixture_policy_list[i] = &fixture_policies[i];
    }
    assert_int_equal(tr_kv_cache_create(&c, &w->kv[0], &err), TR_OK);
    c.memory = pages * tr_kv_page_bytes(w->kv[0]);
    c.swap_memory = c.memory / 4;
    tr_kv_cache_free(w->kv[0]);
    w->n_kv = n_kv;
    w->heads = layers * kv_heads;
    w->kv_heads = kv_heads;
    w->n = n;
    for (uint32_t i = 0; i < n_kv; i++) {
        if (i == 1 && stream != NULL) {
            c.stream = *stream;
        }
        assert_int_equal(tr_kv_cache_create(&c, &w->kv[i], &err), TR_OK);
    }
    w->before = calloc(3, snapshot(w->kv[0], NULL));
    w->seq = calloc(n, sizeof(*w->seq));
    assert_true(w->before != NULL && w->seq != NULL);
    for (uint32_t i = 0; i < n; i++) {
        w->seq[i].slot = -1;
        w->seq[i].head = calloc(w->heads, sizeof(record_t));
        assert_non_null(w->seq[i].head);
    }
}

/* Everything is closed: as it was in the beginning. */
static void
end_world(world_t *w)
{
    static const tr_kv_totals_t nothing;

    for (uint32_t i = 0; i < w->n; i++) {
        if (w->seq[i].slot >= 0) {
            do_close(w, &w->seq[i]);
        }
        free(w->seq[i].head);
    }
    for (uint32_t i = 0; i < w->n_kv; i++) {
        tr_kv_cache_t *kv = w->kv[i];

        REQUIRE(tr_kv_sound(kv));
        REQUIRE(tr_kv_free_pages(kv) == tr_kv_pages(kv));
        REQUIRE(tr_kv_pages_left(&kv->swap) == kv->swap.n);
        REQUIRE(memcmp(&kv->totals, &nothing, sizeof(nothing)) == 0);
        REQUIRE(kv->n_free_slots == w->n);
        /* the ring went round */
        REQUIRE(kv->m.report->start > 2ull * kv->m.size.pages);
        tr_kv_cache_free(kv);
    }
    free(w->before);
    free(w->seq);
}

static void
run_ops(world_t *w, uint64_t ops, uint32_t check_every)
{
    uint64_t next = 0;

    while (w->ops < ops) {
        operate(w);
        if (w->ops >= next) {
            next = w->ops + check_every;
            REQUIRE(tr_kv_sound(w->kv[0]));
            REQUIRE(w->n_kv == 1 || tr_kv_sound(w->kv[1]));
        }
    }
    printf("    %llu operations, %llu refused for want of pages\n",
           (unsigned long long) w->ops, (unsigned long long) w->again);
    REQUIRE(w->again > ops / 1000);
}

static void
random_operations(void **state)
{
    const char *ops = getenv("TR_KV_OPS");
    world_t w;

    (void) state;
    make_world(&w, 1, 2, 2, 9, 90, NULL);
    run_ops(&w, ops != NULL ? strtoull(ops, NULL, 0) : OPERATIONS, 100);
    end_world(&w);
}

/* One manager asked sequence by sequence, one in batches. */
static void
batches_equal_single_calls(void **state)
{
    world_t w;

    (void) state;
    make_world(&w, 2, 1, 3, 12, 80, NULL);
    run_ops(&w, 40000, 100);
    end_world(&w);
}

/* So many heads that the pool plans and grants them. */
static void
batches_on_a_thread_pool(void **state)
{
    tr_stream_t stream = { 3, tr_thread_pool_new(3) };
    world_t w;

    (void) state;
    assert_non_null(stream.thread_pool);
    make_world(&w, 2, 16, 12, 40, 5000, &stream);
    run_ops(&w, 6000, 500);
    end_world(&w);
    tr_thread_pool_free(stream.thread_pool);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_operations),
        cmocka_unit_test(batches_equal_single_calls),
        cmocka_unit_test(batches_on_a_thread_pool),
    };
    const char *seed = getenv("TR_KV_SEED");
    struct timespec t;

    clock_gettime(CLOCK_REALTIME, &t);
    random_state = seed != NULL
                       ? strtoull(seed, NULL, 0)
                       : ((uint64_t) t.tv_sec << 20 ^ (uint64_t) t.tv_nsec) | 1;
    printf("TR_KV_SEED=%llu\n", (unsigned long long) random_state);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
