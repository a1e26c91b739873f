/*
 * What test_loop.c stands on: a step loop with its real thread, a scripted
 * executor, and this thread as the front.
 *
 * The executor is a model in small: it stores each token in the KV pages that
 * it is given, and its next token is a hash of all tokens that it finds there
 * (and of the sampler's seed).  A wrong page, a lost position or a bad copy
 * changes the text.  `alone` computes what a request must give whatever else
 * is going on.
 *
 * With `late` set, all of this goes through an executor that answers a batch
 * later (late_executor.h).
 */
#ifndef TR_TEST_LOOP_BENCH_H
#define TR_TEST_LOOP_BENCH_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "late_executor.h"
#include "log.h"
#include "loop.h"
#include "outlet_rig.h"

#define EOS 4
#define LETTER_A 69            /* ids of models/pocket: 'a' to 'z' follow */
#define HEAD_DIM 48            /* 32 tokens a page of 6,144 bytes */
#define POISON (LETTER_A + 25) /* a prompt that ends in z fails */
#define OUTLETS 3
#define TEXT 4096

static tr_tokenizer_t *tokenizer;
static uint64_t random_state;
static bool late;

static uint32_t
random_below(uint32_t n)
{
    random_state = random_state * 6364136223846793005ull
                   + 1442695040888963407ull;
    return (uint32_t) ((random_state >> 33) % n);
}

/* ---- the executor ------------------------------------------------------- */

static uint64_t
hash(uint64_t h, int32_t token)
{
    return (h ^ (uint64_t) (uint32_t) token) * 1099511628211ull;
}

static int32_t
next_token(uint64_t h, uint64_t seed, bool may_end)
{
    h = (h ^ seed) * 0x9e3779b97f4a7c15ull;
    h ^= h >> 29;
    if (may_end && h % 60 == 0) {
        return EOS;
    }
    return LETTER_A + (int32_t) ((h >> 8) % 4);
}

static bool
may_end(const tr_sampling_params_t *p, uint32_t n_output)
{
    return n_output >= p->min_tokens && !p->ignore_eos;
}

typedef struct {
    tr_executor_t base;
    _Atomic uint32_t gated; /* steps wait until they are allowed */
    _Atomic uint32_t allowed;
    _Atomic uint32_t waits;  /* a step stands at the gate */
    _Atomic uint32_t broken; /* steps fail as a whole */
} fake_t;

static int32_t *
cached(const tr_kv_view_t *v, int32_t slot, uint32_t pos)
{
    uint32_t tokens = v->layout[0].tokens;

    return (int32_t *) (void *) tr_kv_page_at(v, tr_kv_table(v, slot, 0,
                                                             0)[pos / tokens])
           + pos % tokens;
}

static void
fake_item(fake_t *f, const tr_kv_view_t *v, tr_batch_item_t *item)
{
    uint64_t h = 0;
    uint32_t i, k;

    (void) f;
    item->status = TR_OK;
    for (i = 0; i < item->n; i++) {
        *cached(v, item->kv_slot, item->pos + i) = item->tokens[i];
    }
    for (i = 0; item->scores != NULL && i < item->n; i++) {
        item->scores[i].token = item->tokens[i + 1];
        item->scores[i].logprob = -(float) (item->pos + i + 1);
        item->scores[i].n_top = 0;
    }
    if (!item->sample) {
        return;
    }
    if (item->sampler->n_output == 0 && item->tokens[item->n - 1] == POISON) {
        item->status = TR_ERR_INTERNAL;
        return;
    }
    for (i = 0; i < item->pos + item->n; i++) {
        h = hash(h, *cached(v, item->kv_slot, i));
    }
    item->out->token = next_token(h, item->sampler->seed,
                                  may_end(item->sampler->params,
                                          item->sampler->n_output));
    item->out->logprob = -(float) (item->pos + item->n);
    item->out->n_top = 0;
    for (k = 0; (int32_t) k < item->sampler->params->logprobs; k++) {
        item->out->top[item->out->n_top++] = (tr_top_t){ LETTER_A + (int32_t) k,
                                                         -(float) k };
    }
}

static tr_status_t
fake_submit(tr_executor_t *e, const tr_batch_t *batch)
{
    fake_t *f = (fake_t *) e;
    tr_kv_view_t v;
    uint32_t i;

    while (atomic_load(&f->gated) != 0) {
        if (atomic_load(&f->allowed) != 0) {
            atomic_fetch_sub(&f->allowed, 1);
            break;
        }
        atomic_store(&f->waits, 1);
        usleep(50);
    }
    if (atomic_load(&f->broken) != 0) {
        return TR_ERR_INTERNAL;
    }
    tr_kv_view(e->kv, &v);
    for (i = 0; i < batch->n_items; i++) {
        fake_item(f, &v, &batch->items[i]);
    }
    return TR_OK;
}

/* ---- the front ---------------------------------------------------------- */

typedef struct {
    uint32_t len, tokens, logprobs, finished;
    uint16_t reason;
    char text[TEXT];
} choice_t;

typedef struct {
    tr_request_t *r; /* NULL: its last record was read */
    uint32_t outlet;
    bool aborted, paused, ended;
    bool back;        /* the loop gave it back */
    uint32_t started; /* STARTED records */
    tr_error_t error;
    tr_wire_finish_t last;
    uint32_t n;
    choice_t choice[4], want[4];
} client_t;

typedef struct {
    tr_config_t config;
    fake_t fake;
    late_executor_t later;
    uint32_t stalls; /* late_executor.h */
    tr_status_counters_t counters;
    tr_loop_t *loop;
    int fd;
    tr_outlet_t outlet[OUTLETS];
    tr_ring_consumer_t peer[OUTLETS];
    bool deaf[OUTLETS]; /* nobody reads it */
    client_t *client;
    uint32_t n_clients, cap_clients;
    uint32_t open;
} bench_t;

static void
bench_start(bench_t *b, uint32_t pages, uint32_t cap_clients)
{
    tr_kv_config_t kv = { .layers = 1,
                          .lists = 1,
                          .head_dim = HEAD_DIM,
                          .max_len = 2000,
                          .memory = pages * 6144ull,
                          .policies = b->fake.base.kv_policies,
                          .n_policies = 1 };
    tr_error_t err;
    uint32_t i;

    if (b->config.max_num_seqs == 0) {
        b->config.max_num_seqs = 16;
    }
    if (b->config.max_batch_tokens == 0) {
        b->config.max_batch_tokens = 48;
    }
    if (b->config.max_queue == 0) {
        b->config.max_queue = 100000;
    }
    if (b->config.channel_stall_timeout_us == 0) {
        b->config.channel_stall_timeout_us = 3600 * 1000000ull;
    }
    if (b->config.paused_timeout_us == 0) {
        b->config.paused_timeout_us = 3600 * 1000000ull;
    }
    kv.slots = b->config.max_num_seqs;
    b->config.prefill_kv_fraction = 0.5;
    snprintf(b->config.kv_policy, sizeof(b->config.kv_policy), "full");
    b->fake.base.layers = b->fake.base.kv_heads = 1;
    b->fake.base.head_dim = HEAD_DIM;
    assert_int_equal(tr_executor_open_policies(&b->fake.base, &b->config, &err),
                     TR_OK);
    assert_int_equal(tr_kv_cache_create(&kv, &b->fake.base.kv, &err), TR_OK);
    b->fake.base.backend = "fake";
    b->fake.base.vocab = 4096;
    b->fake.base.max_model_len = 2000;
    b->fake.base.submit = fake_submit;
    b->fake.base.collect = tr_executor_collect_computed;
    b->fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    for (i = 0; i < OUTLETS; i++) {
        outlet_make(&b->outlet[i], &b->peer[i], i == 2 ? 1 << 16 : 1 << 20,
                    b->fd, b->fd);
    }
    b->client = calloc(cap_clients, sizeof(*b->client));
    b->cap_clients = cap_clients;
    if (late) {
        late_open(&b->later, &b->fake.base);
        b->later.stalls = b->stalls;
    }
    assert_int_equal(tr_loop_start(&b->config,
                                   late ? &b->later.base : &b->fake.base,
                                   tokenizer, &b->counters, b->fd, &b->loop,
                                   &err),
                     TR_OK);
}

static void
reap(bench_t *b, tr_request_t *r)
{
    for (; r != NULL; r = r->next) {
        assert_true(r->id < b->n_clients);
        assert_ptr_equal(b->client[r->id].r, r);
        assert_false(b->client[r->id].back);
        b->client[r->id].back = true;
    }
}

static void
bench_halt(bench_t *b)
{
    reap(b, tr_loop_stop(b->loop));
    b->loop = NULL;
}

/* The loop is to be stopped already.  Nothing may be left. */
static void
bench_stop(bench_t *b)
{
    uint32_t i;

    assert_int_equal(b->open, 0);
    if (late) {
        late_close(&b->later);
        assert_true(b->later.n_unknown != 0);
    }
    assert_true(tr_kv_sound(b->fake.base.kv));
    assert_int_equal(tr_kv_free_pages(b->fake.base.kv),
                     tr_kv_pages(b->fake.base.kv));
    tr_executor_close_cache(&b->fake.base);
    for (i = 0; i < OUTLETS; i++) {
        outlet_unmake(&b->outlet[i], &b->peer[i]);
    }
    close(b->fd);
    free(b->client);
}

static void
loop_is_empty(bench_t *b)
{
    tr_status_admission_t a;

    uint32_t tries = 0;

    assert_int_equal(tr_loop_outstanding(b->loop), 0);
    do { /* the snapshot is written at the end of a turn, after the records */
        usleep(tries == 0 ? 0 : 1000);
        tr_loop_snapshot(b->loop, &a);
    } while ((a.running != 0 || a.waiting != 0 || a.kv_tokens != 0
              || a.queue_free != b->config.max_queue)
             && tries++ < 10000);
    assert_int_equal(a.running, 0);
    assert_int_equal(a.waiting, 0);
    assert_int_equal(a.queue_free, b->config.max_queue);
    assert_int_equal(a.kv_tokens, 0);
}

static void
on_delta(client_t *c, const uint8_t *payload, uint32_t len)
{
    tr_wire_delta_t head = { 0 };
    tr_wire_bytes_t text = { 0 }, lp = { 0 }, bytes = { 0 };
    tr_wire_logprob_t entry = { 0 };
    tr_wire_top_t top;
    choice_t *ch;
    uint32_t i;

    assert_int_equal(tr_wire_delta_parse(payload, len, &head, &text, &lp),
                     TR_OK);
    assert_true(head.choice < c->n);
    ch = &c->choice[head.choice];
    assert_false(ch->finished);
    assert_true(ch->len + text.len < TEXT);
    memcpy(ch->text + ch->len, text.data, text.len);
    ch->len += text.len;
    ch->tokens += head.tokens;
    assert_true(c->r->params.logprobs >= 0 || lp.len == 0);
    while (tr_wire_logprob_next(&lp, &entry, &bytes) == TR_OK) {
        bool echoed = c->r->echo
                      && ch->logprobs < c->r->sequences[0].prompt_len;

        assert_int_equal(bytes.len, 1);
        if (c->r->echo && ch->logprobs == 0) {
            assert_true(isnan(entry.logprob));
        } else if (c->r->echo) {
            assert_true(entry.logprob == -(float) ch->logprobs);
        }
        assert_int_equal(entry.top, echoed ? 0 : c->r->params.logprobs);
        for (i = 0; i < entry.top; i++) {
            assert_int_equal(tr_wire_top_next(&lp, &top, &bytes), TR_OK);
        }
        ch->logprobs++;
    }
}

static void
on_record(bench_t *b, const tr_record_t *rec, const uint8_t *payload)
{
    client_t *c = &b->client[rec->id];
    tr_wire_finish_t finish = { 0 };
    tr_wire_error_t error = { 0 };
    tr_wire_bytes_t param, text;
    bool last = true;

    assert_true(rec->id < b->n_clients);
    assert_non_null(c->r);
    if (rec->type == TR_RECORD_STARTED) {
        assert_int_equal(tr_wire_started_parse(rec->length), TR_OK);
        assert_int_equal(c->started++, 0);
        assert_int_equal(c->choice[0].len, 0);
        return;
    }
    if (rec->type == TR_RECORD_DELTA) {
        on_delta(c, payload, rec->length);
        return;
    }
    if (rec->type == TR_RECORD_FINISH) {
        assert_int_equal(tr_wire_finish_parse(payload, rec->length, &finish),
                         TR_OK);
        assert_true(finish.choice < c->n);
        assert_int_equal(c->choice[finish.choice].finished++, 0);
        c->choice[finish.choice].reason = finish.reason;
        c->last = finish;
        last = (finish.flags & TR_FINISH_LAST) != 0;
    } else {
        assert_int_equal(rec->type, TR_RECORD_ERROR);
        assert_int_equal(tr_wire_error_parse(payload, rec->length, &error,
                                             &param, &text),
                         TR_OK);
        c->error.status = error.status;
    }
    if (last) {
        if (b->loop != NULL) {
            reap(b, tr_loop_over(b->loop));
        }
        assert_true(c->back); /* before this record could be seen */
        tr_request_free(c->r);
        c->r = NULL;
        c->ended = true;
        b->open--;
    }
}

/* Reads the rings; sleeps until the loop rings if there is nothing. */
static void
front_turn(bench_t *b, bool wait)
{
    static uint8_t buf[1 << 18];
    struct pollfd pfd = { b->fd, POLLIN, 0 };
    tr_record_t rec;
    uint64_t ignored;
    uint32_t i;
    bool any = false, room = false;

    for (i = 0; i < OUTLETS; i++) {
        tr_ring_consumer_t *consumer = &b->peer[i];

        if (b->deaf[i]) {
            continue;
        }
        while (tr_ring_get(consumer, &rec, buf, sizeof(buf)) == TR_OK) {
            any = true;
            on_record(b, &rec, buf);
        }
        room |= tr_ring_release(consumer) == 1;
    }
    if (room && b->loop != NULL) {
        tr_loop_wake(b->loop);
    }
    for (i = 0; i < OUTLETS && !any && wait; i++) {
        any = !b->deaf[i] && tr_ring_sleep(&b->peer[i]) == TR_OK;
    }
    if (!any && wait) {
        assert_int_equal(poll(&pfd, 1, 20000), 1);
        assert_int_equal(read(b->fd, &ignored, sizeof(ignored)),
                         sizeof(ignored));
    }
}

static void
front_until_ended(bench_t *b, const client_t *c)
{
    while (!c->ended) {
        front_turn(b, true);
    }
}

static void
control(bench_t *b, client_t *c, uint32_t bits)
{
    if (c->r != NULL) {
        atomic_store(&c->r->control, bits);
        tr_loop_wake(b->loop);
    }
}

/* ---- what a request gives alone ----------------------------------------- */

static char
letter(int32_t token)
{
    return (char) ('a' + token - LETTER_A);
}

static void
alone(client_t *c, uint32_t k)
{
    const tr_request_t *r = c->r;
    const tr_sequence_t *q = &r->sequences[k];
    choice_t *want = &c->want[k];
    uint64_t h = 0;
    uint32_t i, n, s, start = 0;

    want->reason = TR_FINISH_LENGTH;
    for (i = 0; i < q->prompt_len; i++) {
        h = hash(h, q->tokens[i]);
        if (r->echo) {
            want->text[want->len++] = letter(q->tokens[i]);
        }
    }
    /* stop strings begin where min_tokens is reached, a letter a token */
    start = want->len;
    start += r->params.min_tokens > 1 ? r->params.min_tokens - 1 : 0;
    for (n = 0; n < r->params.max_tokens; n++) {
        int32_t token = next_token(h, q->sampler.seed, may_end(&r->params, n));

        h = hash(h, token);
        want->tokens++;
        if (token == EOS) {
            want->reason = TR_FINISH_STOP;
            return;
        }
        want->text[want->len++] = letter(token);
        for (s = 0; s < r->params.n_stop; s++) {
            const tr_stop_string_t *stop = &r->params.stop[s];

            if (want->len >= start + stop->len
                && memcmp(want->text + want->len - stop->len, stop->text,
                          stop->len)
                       == 0) {
                want->reason = TR_FINISH_STOP;
                want->len -= r->params.include_stop ? 0 : stop->len;
                return;
            }
        }
    }
}

static void
check(const client_t *c)
{
    uint32_t k, tokens = 0;

    assert_true(c->ended);
    for (k = 0; k < c->n; k++) {
        const choice_t *got = &c->choice[k], *want = &c->want[k];

        assert_true(got->len <= want->len);
        assert_memory_equal(got->text, want->text, got->len);
        tokens += want->tokens;
        if (c->aborted || c->error.status != TR_OK) {
            continue;
        }
        assert_int_equal(got->len, want->len);
        assert_int_equal(got->finished, 1);
        assert_int_equal(got->reason, want->reason);
        assert_true(got->tokens <= want->tokens);
    }
    if (!c->aborted && c->error.status == TR_OK) {
        assert_int_equal(c->started, 1);
        assert_int_equal(c->last.completion_tokens, tokens);
        assert_int_equal(c->last.flags, TR_FINISH_LAST);
        assert_true(c->last.kv_bytes >= c->last.kv_full_bytes);
        assert_true(c->last.kv_full_bytes > 0);
        assert_true(c->last.share_high == 1.0f);
    }
}

/* ---- making requests ---------------------------------------------------- */

static tr_request_t *
request(uint32_t prompt_len, uint32_t max_tokens)
{
    tr_request_t *r = calloc(1, sizeof(*r));

    r->n = 1;
    r->params = (tr_sampling_params_t){ .temperature = 1.0f,
                                        .top_p = 1.0f,
                                        .repetition_penalty = 1.0f,
                                        .has_seed = true,
                                        .seed = random_state,
                                        .max_tokens = max_tokens,
                                        .ignore_eos = true,
                                        .logprobs = -1 };
    r->prompt_tokens = prompt_len; /* layout sets it again */
    return r;
}

static client_t *
submit(bench_t *b, tr_request_t *r, uint32_t outlet)
{
    static const int32_t eos = EOS;
    static int32_t ids[2000];
    client_t *c = &b->client[b->n_clients];
    tr_ids_t prompt = { ids, r->prompt_tokens, 2000 };
    uint32_t i;

    assert_true(b->n_clients < b->cap_clients);
    for (i = 0; i < prompt.len; i++) {
        ids[i] = LETTER_A + (int32_t) random_below(20);
    }
    if (r->error.param[0] == '!') { /* a mark of the test: fail this one */
        ids[prompt.len - 1] = POISON;
    }
    assert_int_equal(tr_request_layout(r, &prompt, 1, 4096, &eos, 1, tokenizer),
                     TR_OK);
    memset(c, 0, sizeof(*c));
    r->id = b->n_clients;
    r->outlet = &b->outlet[outlet];
    r->arrival_us = r->arrival_us != 0 ? r->arrival_us : 1;
    c->r = r;
    c->outlet = outlet;
    c->n = r->n;
    for (i = 0; i < r->n; i++) {
        alone(c, i);
    }
    b->n_clients++;
    b->open++;
    assert_int_equal(tr_loop_reserve(b->loop, r), TR_OK);
    tr_loop_submit(b->loop, r);
    return c;
}

#endif
