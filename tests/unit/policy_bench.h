/*
 * What the tests of the loop with real policies stand on: the model pocket, a
 * crowd of requests in a cache that is too small for them, with pauses and
 * aborts, at once and late (late_executor.h), and what each request gives alone.
 */
#ifndef TR_TEST_POLICY_BENCH_H
#define TR_TEST_POLICY_BENCH_H

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

#define REQUESTS 40 /* at most */
#define CHOICES 3
#define TEXT 4096

static tr_tokenizer_t *tokenizer;
static uint64_t seed;

typedef struct {
    uint32_t len, tokens;
    uint64_t logprobs; /* a hash of their bytes */
    uint16_t reason;
    char text[TEXT];
} answer_t;

/* What is asked, and what came back; n of these are one test. */
typedef struct {
    uint32_t prompt_len, n;
    bool echo;
    tr_sampling_params_t params;
    bool aborted; /* in the crowd */
    answer_t alone[CHOICES], crowd[CHOICES];
    tr_wire_finish_t last;
} ask_t;

typedef struct {
    tr_config_t config;
    tr_executor_t *executor;
    bool late;
    late_executor_t later;
    tr_status_counters_t counters;
    tr_loop_t *loop;
    tr_outlet_t outlet;
    tr_ring_consumer_t peer;
    int fd;
    tr_request_t *request[REQUESTS];
    uint32_t open;
} rig_loop_t;

typedef struct {
    uint32_t preemptions, swaps, recomputed;
} made_way_t;

static tr_config_t
settings(const char *spec, uint64_t memory, uint64_t swap)
{
    tr_config_t c;

    tr_config_defaults(&c);
    strcpy(c.model, "models/pocket");
    snprintf(c.kv_policy, sizeof(c.kv_policy), "%s", spec);
    c.kv_memory = memory;
    c.swap_memory = swap;
    c.max_model_len = 600;
    c.max_num_seqs = 16;
    c.max_batch_tokens = 96;
    c.threads = 2;
    return c;
}

static void
start_with(rig_loop_t *l, const tr_config_t *config, bool late)
{
    tr_error_t err;

    memset(l, 0, sizeof(*l));
    l->config = *config;
    l->fd = eventfd(0, EFD_CLOEXEC);
    if (tr_executor_model_open(&l->config, &l->executor, &err) != TR_OK) {
        fail_msg("%s", err.text);
    }
    l->late = late;
    if (late) {
        late_open(&l->later, l->executor);
        l->later.stalls = 5;
        l->later.delay_us = 200;
    }
    outlet_make(&l->outlet, &l->peer, 1 << 20, l->fd, l->fd);
    assert_int_equal(tr_loop_start(&l->config,
                                   late ? &l->later.base : l->executor,
                                   tokenizer, &l->counters, l->fd, &l->loop,
                                   &err),
                     TR_OK);
}

static void
start(rig_loop_t *l, const char *spec, uint64_t memory, uint64_t swap,
      bool late)
{
    tr_config_t c = settings(spec, memory, swap);

    start_with(l, &c, late);
}

static void
stop(rig_loop_t *l)
{
    tr_kv_cache_t *kv = l->executor->kv;

    assert_null(tr_loop_stop(l->loop));
    if (l->late) {
        late_close(&l->later);
    }
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
    r->echo = ask->echo;
    r->params = ask->params;
    assert_int_equal(tr_request_layout(r, &prompt, 1, l->executor->vocab,
                                       l->executor->eos, l->executor->n_eos,
                                       tokenizer),
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
    tr_wire_finish_t f = { 0 };
    tr_wire_bytes_t text = { 0 }, logprobs = { 0 };
    answer_t *a;
    uint32_t i;

    if (rec->type == TR_RECORD_DELTA) {
        assert_int_equal(tr_wire_delta_parse(payload, rec->length, &head, &text,
                                             &logprobs),
                         TR_OK);
        a = crowd ? &ask->crowd[head.choice] : &ask->alone[head.choice];
        assert_true(a->len + text.len <= TEXT);
        memcpy(a->text + a->len, text.data, text.len);
        a->len += text.len;
        a->tokens += head.tokens;
        for (i = 0; i < logprobs.len; i++) {
            a->logprobs = (a->logprobs ^ ((const uint8_t *) logprobs.data)[i])
                          * 1099511628211ull;
        }
    } else if (rec->type != TR_RECORD_STARTED) {
        assert_int_equal(rec->type, TR_RECORD_FINISH);
        assert_int_equal(tr_wire_finish_parse(payload, rec->length, &f), TR_OK);
        a = crowd ? &ask->crowd[f.choice] : &ask->alone[f.choice];
        a->reason = f.reason;
        ask->last = f;
        if (f.flags & TR_FINISH_LAST) {
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
disturb(rig_loop_t *l, ask_t *asks, uint32_t n, uint64_t *state)
{
    uint32_t i = rig_below(state, n);
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
run_alone(const char *spec, ask_t *asks, uint32_t n)
{
    rig_loop_t l;

    start(&l, spec, 64 << 20, 0, false);
    for (uint32_t i = 0; i < n; i++) {
        submit(&l, &asks[i], i);
        while (l.open != 0) {
            turn(&l, asks, false);
        }
        assert_true(asks[i].last.kv_full_bytes > 0);
    }
    assert_int_equal(atomic_load(&l.counters.preemptions), 0);
    stop(&l);
}

/* Returns who made way. */
static made_way_t
run_crowd(const char *spec, ask_t *asks, uint32_t n, uint64_t memory,
          uint64_t swap, bool late)
{
    uint64_t state = seed + 1;
    made_way_t done;
    uint64_t tokens = 0;
    uint32_t turns = 0;
    rig_loop_t l;

    start(&l, spec, memory, swap, late);
    for (uint32_t i = 0; i < n; i++) {
        asks[i].aborted = false;
        memset(asks[i].crowd, 0, sizeof(asks[i].crowd));
        submit(&l, &asks[i], i);
    }
    while (l.open != 0) {
        if (!turn(&l, asks, true) || ++turns % 50 == 0 || turns >= 400) {
            resume(&l);
        } else {
            disturb(&l, asks, n, &state);
        }
    }
    done.preemptions = atomic_load(&l.counters.preemptions);
    done.swaps = atomic_load(&l.counters.kv_swaps);
    done.recomputed = atomic_load(&l.counters.kv_recomputations);
    print_message("%s%s: preemptions %u, swaps %u, recomputed %u\n", spec,
                  late ? ", late" : "", done.preemptions, done.swaps,
                  done.recomputed);
    if (late) {
        print_message("rows without a page %u, trials %u, waits %u\n",
                      (uint32_t) l.later.n_stalled, late_cache.n_trials,
                      late_cache.n_unsure);
    }
    /* what was sampled for nobody is not counted */
    for (uint32_t i = 0; i < n; i++) {
        tokens += asks[i].last.completion_tokens;
    }
    assert_int_equal(atomic_load(&l.counters.generation_tokens), tokens);
    assert_true(!late || l.later.n_unknown > 100);
    stop(&l);
    return done;
}

static void
compare(const char *spec, const ask_t *asks, uint32_t n)
{
    uint32_t i, k;

    for (i = 0; i < n; i++) {
        for (k = 0; k < asks[i].n; k++) {
            const answer_t *want = &asks[i].alone[k], *got = &asks[i].crowd[k];

            if ((!asks[i].aborted
                 && (got->len != want->len
                     || got->tokens > asks[i].params.max_tokens
                     || got->reason != want->reason
                     || got->logprobs != want->logprobs))
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

static tr_sampling_params_t
plain(uint32_t i, uint32_t max_tokens)
{
    return (tr_sampling_params_t){ .temperature = 1,
                                   .top_p = 1,
                                   .repetition_penalty = 1,
                                   .has_seed = true,
                                   .seed = i,
                                   .max_tokens = max_tokens,
                                   .ignore_eos = true,
                                   .logprobs = -1 };
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

#endif
