/*
 * What the tests of the scheduler stand on: it alone, with a KV cache of the
 * host; requests are made by hand and "run" by counting.
 */
#ifndef TR_TEST_SCHEDULER_BENCH_H
#define TR_TEST_SCHEDULER_BENCH_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "outlet_rig.h"
#include "scheduler.h"

#define HEAD_DIM 48 /* 192 bytes a token, 6,144 a page */

static uint64_t random_state;

static uint32_t
random_below(uint32_t n)
{
    random_state = random_state * 6364136223846793005ull
                   + 1442695040888963407ull;
    return (uint32_t) ((random_state >> 33) % n);
}

/* Policies that tests ask for; head size 64 where something is compressed. */
static const char *const specs[] = { "full", "uniform:levels=8/4",
                                     "diffkv:alpha_high=0,alpha_low=0",
                                     "quest:budget=64,from=0" };
enum { FULL, UNIFORM, DIFFKV, QUEST, N_POLICIES };

static tr_kv_policy_t *policies[N_POLICIES];

static const tr_kernels_t *kernels; /* NULL: those of the CPU */

/* One head.  full: 32 tokens a page, so that pages are easy to count. */
static tr_kv_cache_t *
make_kv(int policy, uint32_t pages, uint32_t swap_pages, uint32_t slots)
{
    tr_kv_config_t c = {
        .layers = 1,
        .lists = 1,
        .head_dim = policy == FULL ? HEAD_DIM : 64,
        .slots = policy == FULL ? slots : 2 * slots,
        .max_len = 100000,
        .policies = (const tr_kv_policy_t *const *) &policies[policy],
        .n_policies = 1,
        .kernels = kernels != NULL ? kernels : tr_kernels_cpu(NULL),
        .stream = { 1, NULL }
    };
    tr_page_plan_t plan;
    tr_kv_cache_t *kv;
    tr_error_t err;

    assert_int_equal(tr_kv_policy_plan(policies[policy], c.head_dim, c.max_len,
                                       &plan),
                     TR_OK);
    assert_true(policy != FULL || plan.layout[0].tokens == 32);
    c.memory = (uint64_t) pages * plan.page_bytes;
    c.swap_memory = (uint64_t) swap_pages * plan.page_bytes;
    assert_int_equal(tr_kv_cache_create(&c, &kv, &err), TR_OK);
    assert_int_equal(tr_kv_pages(kv), pages);
    return kv;
}

typedef struct {
    tr_kv_cache_t *kv;
    tr_scheduler_t s;
    tr_outlet_t outlet[2];
    tr_ring_consumer_t peer[2];
    uint64_t now;
} bench_t;

static void
bench_init_policy(bench_t *b, int policy, uint32_t pages, uint32_t swap_pages,
                  uint32_t seqs, uint32_t tokens)
{
    memset(b, 0, sizeof(*b));
    b->kv = make_kv(policy, pages, swap_pages, seqs);
    b->now = 1;
    assert_int_equal(tr_scheduler_init(&b->s, b->kv, seqs, tokens, 0.5), TR_OK);
    outlet_make(&b->outlet[0], &b->peer[0], 1 << 20, -1, -1);
    outlet_make(&b->outlet[1], &b->peer[1], 1 << 16, -1, -1);
}

static void
bench_init(bench_t *b, uint32_t pages, uint32_t seqs, uint32_t tokens)
{
    bench_init_policy(b, FULL, pages, 0, seqs, tokens);
}

static void
bench_free(bench_t *b)
{
    assert_null(b->s.running.first);
    assert_null(b->s.waiting.first);
    assert_null(b->s.swapped.first);
    assert_int_equal(tr_kv_free_pages(b->kv), tr_kv_pages(b->kv));
    assert_true(tr_scheduler_sound(&b->s));
    tr_scheduler_free(&b->s);
    tr_kv_cache_free(b->kv);
    outlet_unmake(&b->outlet[0], &b->peer[0]);
    outlet_unmake(&b->outlet[1], &b->peer[1]);
}

static tr_request_t *
make_request(bench_t *b, uint32_t prompt, uint32_t max_tokens, uint32_t n)
{
    tr_request_t *r = calloc(1, sizeof(*r));
    uint32_t i;

    r->outlet = &b->outlet[0];
    r->n = n;
    r->n_sequences = r->open_sequences = n;
    r->params.max_tokens = max_tokens;
    r->params.logprobs = -1;
    r->sequences = tr_arena_alloc(&r->arena, n * sizeof(tr_sequence_t));
    for (i = 0; i < n; i++) {
        tr_sequence_t *q = &r->sequences[i];

        q->request = r;
        q->choice = i;
        q->kv_slot = -1;
        q->prompt_len = q->len = prompt;
        q->cap = prompt + max_tokens;
    }
    return r;
}

static tr_request_t *
add(bench_t *b, uint32_t prompt, uint32_t max_tokens)
{
    tr_request_t *r = make_request(b, prompt, max_tokens, 1);

    tr_scheduler_add(&b->s, r);
    return r;
}

static void
compose(bench_t *b)
{
    tr_scheduler_compose(&b->s, b->now++);
    assert_true(tr_scheduler_sound(&b->s));
}

/* What the loop does when a batch arrives, without text.  wild: some end early,
 * and some rows find no page, where the cache does not mind. */
static void
land(bench_t *b, bool wild)
{
    tr_flight_t *flight = &b->s.flight[b->s.first];
    uint32_t i;

    for (i = 0; i < flight->n_rows; i++) {
        tr_row_t *row = &flight->rows[i];
        tr_sequence_t *q = row->sequence;
        bool stalls, ends;

        if (q == NULL) { /* it ended, or the row before was taken back */
            continue;
        }
        stalls = wild && row->pos >= q->prompt_len && q->dense_len == 0
                 && random_below(8) == 0;
        ends = wild && random_below(60) == 0;
        tr_scheduler_landed(&b->s, row, !stalls);
        assert_null(row->sequence);
        if (row->sample && !stalls && (++q->len == q->cap || ends)) {
            q->request->open_sequences--;
            tr_scheduler_remove(&b->s, q);
        }
    }
    tr_scheduler_arrived(&b->s);
}

/* The batch runs, and is waited for. */
static void
apply(bench_t *b)
{
    tr_scheduler_depart(&b->s);
    land(b, false);
}

static void
step(bench_t *b)
{
    compose(b);
    apply(b);
}

static void
drop(bench_t *b, tr_request_t *r)
{
    uint32_t i;

    for (i = 0; i < r->n_sequences; i++) {
        tr_scheduler_remove(&b->s, &r->sequences[i]);
    }
    tr_request_free(r);
}

static const tr_row_t *
row_of(const bench_t *b, const tr_request_t *r)
{
    uint32_t i;

    for (i = 0; i < b->s.n_rows; i++) {
        if (b->s.rows[i].sequence->request == r) {
            return &b->s.rows[i];
        }
    }
    return NULL;
}

static int
make_policies(void **state)
{
    tr_error_t err;
    int i;

    (void) state;
    for (i = 0; i < N_POLICIES; i++) {
        if (tr_kv_policy_create(specs[i], 1, 1, i == FULL ? HEAD_DIM : 64,
                                &policies[i], &err)
            != TR_OK) {
            print_error("%s\n", err.text);
            return -1;
        }
    }
    return 0;
}

static int
free_policies(void **state)
{
    int i;

    (void) state;
    for (i = 0; i < N_POLICIES; i++) {
        tr_kv_policy_free(policies[i]);
    }
    return 0;
}

#endif
