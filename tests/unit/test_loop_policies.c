/*
 * The step loop with a real model and KV policies: a crowd of requests in a
 * cache that is too small for them, with pauses and aborts, gets byte for byte
 * what each gets alone in a large one.  Nothing is computed again on the way:
 * who makes way comes back from the swap memory.  The same with an executor that
 * answers a batch later.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "late_executor.h"
#include "log.h"
#include "loop.h"
#include "model_rig.h"
#include "outlet_rig.h"

#define REQUESTS 20
#define CHOICES 3
#define TEXT 2048

static tr_tokenizer_t *tokenizer;
static uint64_t seed;

typedef struct {
    uint32_t len;
    char text[TEXT];
} answer_t;

/* What is asked, and what came back. */
typedef struct {
    uint32_t prompt_len, max_tokens, n;
    bool aborted; /* in the crowd */
    answer_t alone[CHOICES], crowd[CHOICES];
    tr_wire_finish_t last;
} ask_t;

typedef struct {
    tr_config_t config;
    tr_executor_t *executor;
    late_executor_t later;
    tr_status_counters_t counters;
    tr_loop_t *loop;
    tr_outlet_t outlet;
    tr_ring_consumer_t peer;
    int fd;
    tr_request_t *request[REQUESTS];
    uint32_t open;
} rig_loop_t;

static void
start(rig_loop_t *l, const char *spec, uint64_t memory, uint64_t swap,
      bool late)
{
    tr_error_t err;

    memset(l, 0, sizeof(*l));
    tr_config_defaults(&l->config);
    strcpy(l->config.model, "models/pocket");
    snprintf(l->config.kv_policy, sizeof(l->config.kv_policy), "%s", spec);
    l->config.kv_memory = memory;
    l->config.swap_memory = swap;
    l->config.max_model_len = 600;
    l->config.max_num_seqs = 16;
    l->config.max_batch_tokens = 96;
    l->config.threads = 2;
    l->fd = eventfd(0, EFD_CLOEXEC);
    if (tr_executor_model_open(&l->config, &l->executor, &err) != TR_OK) {
        fail_msg("%s", err.text);
    }
    late_open(&l->later, l->executor);
    l->later.stalls = 5;
    l->later.delay_us = 200;
    outlet_make(&l->outlet, &l->peer, 1 << 20, l->fd, l->fd);
    assert_int_equal(tr_loop_start(&l->config,
                                   late ? &l->later.base : l->executor,
                                   tokenizer, &l->counters, l->fd, &l->loop,
                                   &err),
                     TR_OK);
}

static void
stop(rig_loop_t *l)
{
    tr_kv_cache_t *kv = l->executor->kv;

    assert_null(tr_loop_stop(l->loop));
    late_close(&l->later);
    assert_true(tr_kv_sound(kv));
    assert_int_equal(tr_kv_free_pages(kv), tr_kv_pages(kv));
    l->executor->free(l->executor);
    outlet_unmake(&l->outlet, &l->peer);
    close(l->fd);
}

/* Request i, the same in every run. */
static void
submit(rig_loop_t *l, const ask_t *ask, uint32_t i)
{
    uint64_t state = seed ^ (i * 0x9e3779b97f4a7c15u);
    tr_request_t *r = calloc(1, sizeof(*r));
    int32_t ids[600];
    tr_ids_t prompt = { ids, ask->prompt_len, 600 };
    uint32_t k;

    for (k = 0; k < ask->prompt_len; k++) {
        ids[k] = (int32_t) (300 + rig_below(&state, 3000));
    }
    r->id = i;
    r->n = ask->n;
    r->outlet = &l->outlet;
    r->kv_policy = l->executor->policies[0].policy;
    r->params = (tr_sampling_params_t){ .temperature = 1,
                                        .top_p = 1,
                                        .repetition_penalty = 1,
                                        .has_seed = true,
                                        .seed = i,
                                        .max_tokens = ask->max_tokens,
                                        .ignore_eos = true,
                                        .logprobs = -1 };
    assert_int_equal(tr_request_layout(r, &prompt, 1, l->executor->vocab, NULL,
                                       0, tokenizer),
                     TR_OK);
    l->request[i] = r;
    l->open++;
    assert_int_equal(tr_loop_reserve(l->loop, r), TR_OK);
    tr_loop_submit(l->loop, r);
}

static void
on_record(rig_loop_t *l, ask_t *asks, bool crowd, const tr_record_t *rec,
          const uint8_t *payload)
{
    ask_t *ask = &asks[rec->id];
    tr_wire_delta_t head = { 0 };
    tr_wire_bytes_t text = { 0 }, logprobs;

    if (rec->type == TR_RECORD_DELTA) {
        answer_t *a;

        assert_int_equal(tr_wire_delta_parse(payload, rec->length, &head, &text,
                                             &logprobs),
                         TR_OK);
        a = crowd ? &ask->crowd[head.choice] : &ask->alone[head.choice];
        assert_true(a->len + text.len <= TEXT);
        memcpy(a->text + a->len, text.data, text.len);
        a->len += text.len;
    } else if (rec->type != TR_RECORD_STARTED) {
        assert_int_equal(rec->type, TR_RECORD_FINISH);
        assert_int_equal(tr_wire_finish_parse(payload, rec->length, &ask->last),
                         TR_OK);
        if (ask->last.flags & TR_FINISH_LAST) {
            l->open--; /* and came back before this could be seen */
        }
    }
}

/* Frees the requests that the loop is done with. */
static void
reap(rig_loop_t *l)
{
    tr_request_t *r = tr_loop_over(l->loop), *next;

    for (; r != NULL; r = next) {
        next = r->next;
        l->request[r->id] = NULL;
        tr_request_free(r);
    }
}

/* Reads what is there; when there is nothing, waits first.  False: there was
 * nothing for a while. */
static bool
turn(rig_loop_t *l, ask_t *asks, bool crowd)
{
    static uint8_t buf[1 << 18];
    struct pollfd pfd = { l->fd, POLLIN, 0 };
    tr_record_t rec;
    uint64_t ignored;
    bool some = false;

    if (tr_ring_sleep(&l->peer) == TR_OK) {
        some = true;
    } else if (poll(&pfd, 1, 20) == 1) {
        assert_int_equal(read(l->fd, &ignored, 8), 8);
        some = true;
    }
    while (tr_ring_get(&l->peer, &rec, buf, sizeof(buf)) == TR_OK) {
        on_record(l, asks, crowd, &rec, buf);
    }
    reap(l);
    if (tr_ring_release(&l->peer) == 1) {
        tr_loop_wake(l->loop);
    }
    return some;
}

/* Somebody hangs up, somebody is slow. */
static void
disturb(rig_loop_t *l, ask_t *asks, uint64_t *state)
{
    uint32_t i = rig_below(state, REQUESTS);
    tr_request_t *r = l->request[i];

    if (r == NULL || rig_below(state, 4) != 0) {
        return;
    }
    if (rig_below(state, 8) == 0) {
        asks[i].aborted = true;
        atomic_store(&r->control, TR_CONTROL_ABORT);
    } else if (!asks[i].aborted) {
        atomic_fetch_xor(&r->control, TR_CONTROL_PAUSE);
    }
    tr_loop_wake(l->loop);
}

static void
resume(rig_loop_t *l)
{
    for (uint32_t i = 0; i < REQUESTS; i++) {
        if (l->request[i] != NULL) {
            atomic_fetch_and(&l->request[i]->control,
                             ~(uint32_t) TR_CONTROL_PAUSE);
        }
    }
    tr_loop_wake(l->loop);
}

static void
run_alone(const char *spec, ask_t *asks)
{
    rig_loop_t l;

    start(&l, spec, 64 << 20, 0, false);
    for (uint32_t i = 0; i < REQUESTS; i++) {
        submit(&l, &asks[i], i);
        while (l.open != 0) {
            turn(&l, asks, false);
        }
        assert_true(asks[i].last.kv_full_bytes > 0);
    }
    assert_int_equal(atomic_load(&l.counters.preemptions), 0);
    stop(&l);
}

static void
run_crowd(const char *spec, ask_t *asks, uint64_t memory, uint64_t swap,
          bool late)
{
    uint64_t state = seed + 1;
    uint32_t turns = 0;
    rig_loop_t l;

    start(&l, spec, memory, swap, late);
    for (uint32_t i = 0; i < REQUESTS; i++) {
        asks[i].aborted = false;
        memset(asks[i].crowd, 0, sizeof(asks[i].crowd));
        submit(&l, &asks[i], i);
    }
    while (l.open != 0) {
        if (!turn(&l, asks, true) || ++turns % 50 == 0 || turns >= 400) {
            resume(&l);
        } else {
            disturb(&l, asks, &state);
        }
    }
    print_message("%s%s: preemptions %llu, swaps %llu, recomputed %llu\n", spec,
                  late ? ", late" : "",
                  (unsigned long long) atomic_load(&l.counters.preemptions),
                  (unsigned long long) atomic_load(&l.counters.kv_swaps),
                  (unsigned long long) atomic_load(
                      &l.counters.kv_recomputations));
    assert_true(atomic_load(&l.counters.preemptions) > 0);
    assert_true(!late || l.later.n_unknown > 100);
    if (swap != 0) {
        assert_true(atomic_load(&l.counters.kv_swaps) > 0);
        assert_int_equal(atomic_load(&l.counters.kv_recomputations), 0);
    } else {
        assert_int_equal(atomic_load(&l.counters.kv_swaps), 0);
    }
    stop(&l);
}

static void
compare(const char *spec, const ask_t *asks)
{
    uint32_t i, k;

    for (i = 0; i < REQUESTS; i++) {
        for (k = 0; k < asks[i].n; k++) {
            const answer_t *want = &asks[i].alone[k], *got = &asks[i].crowd[k];

            if ((got->len != want->len && !asks[i].aborted)
                || got->len > want->len
                || memcmp(got->text, want->text, got->len) != 0) {
                fail_msg("%s, request %u of %u tokens, choice %u of %u:\n%.*s\n"
                         "alone:\n%.*s",
                         spec, i, asks[i].prompt_len, k, asks[i].n,
                         (int) got->len, got->text, (int) want->len,
                         want->text);
            }
        }
    }
}

static void
run_policy(const char *spec, uint64_t memory)
{
    ask_t *asks = calloc(REQUESTS, sizeof(*asks));
    uint64_t state = seed;

    for (uint32_t i = 0; i < REQUESTS; i++) {
        asks[i].prompt_len = 1 + rig_below(&state, i % 4 == 0 ? 450 : 120);
        asks[i].max_tokens = 40 + rig_below(&state, 60);
        asks[i].n = i % 5 == 0 ? 1 + rig_below(&state, CHOICES) : 1;
    }
    run_alone(spec, asks);
    run_crowd(spec, asks, memory, 64 << 20, false);
    compare(spec, asks);
    run_crowd(spec, asks, memory, 64 << 20, true);
    compare(spec, asks);
    free(asks);
}

static void
test_diffkv(void **state)
{
    (void) state;
    run_policy("diffkv", 5 << 20);
}

static void
test_uniform(void **state)
{
    (void) state;
    run_policy("uniform:levels=4/4", 4 << 20);
}

static void
test_quest(void **state)
{
    (void) state;
    run_policy("quest:budget=64", 5 << 20);
}

/* Without swap memory all come to their end, if not to the same. */
static void
test_without_swap(void **state)
{
    ask_t *asks = calloc(REQUESTS, sizeof(*asks));
    uint64_t random = seed;

    (void) state;
    for (uint32_t i = 0; i < REQUESTS; i++) {
        asks[i].prompt_len = 1 + rig_below(&random, 100);
        asks[i].max_tokens = 60 + rig_below(&random, 60);
        asks[i].n = 1;
    }
    run_crowd("diffkv", asks, 4 << 20, 0, false);
    run_crowd("diffkv", asks, 4 << 20, 0, true);
    free(asks);
}

static int
setup(void **state)
{
    tr_error_t err;

    (void) state;
    seed = rig_seed();
    tr_log_open(NULL, -1);
    return tr_tokenizer_load("models/pocket", &tokenizer, &err);
}

static int
teardown(void **state)
{
    (void) state;
    tr_tokenizer_free(tokenizer);
    return 0;
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_diffkv),
        cmocka_unit_test(test_uniform),
        cmocka_unit_test(test_quest),
        cmocka_unit_test(test_without_swap),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
