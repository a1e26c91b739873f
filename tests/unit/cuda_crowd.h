/*
 * What test_cuda_requests.c stands on: random requests for models/pocket, an
 * engine loop on `backend cuda` that runs them, and what each of them got: the
 * tokens with their logprobs as the executor gave them, and what went to the
 * peer.
 *
 * The executor's collect is watched for results and for rows that found no
 * page; everything else is the engine's own.
 */
#ifndef TR_TEST_CUDA_CROWD_H
#define TR_TEST_CUDA_CROWD_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <jansson.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "device_library.h"
#include "executor_cuda.h"
#include "log.h"
#include "loop.h"
#include "model_rig.h"
#include "outlet_rig.h"

#define POCKET "models/pocket"
#define LONGEST 448u /* max_model_len */
#define LEAST_OUT 12u
#define MOST_OUT 48u
#define LONG_OUT 140u
#define CHOICES 3u
#define POLICIES 6u
#define GOLDENS 16u

typedef struct {
    tr_sampled_t *step; /* [n] as the executor gave them */
    int32_t *token;     /* [n_token] as the loop kept them */
    float *wire;        /* [n_wire] logprobs that the peer saw */
    char *text;         /* [len] that it saw */
    uint32_t n, n_token, n_wire, len, text_cap;
    uint16_t reason;
} answer_t;

/* What is asked, and what came back. */
typedef struct {
    int32_t prompt[LONGEST];
    uint32_t prompt_len, n, policy;
    bool echo;
    tr_sampling_params_t params;
    bool too_long; /* to be refused */
    bool aborted;  /* in the crowd */
    answer_t alone[CHOICES], crowd[CHOICES];
} ask_t;

typedef struct {
    uint32_t steps, swaps, stalls, full, refused, limit, aborted;
} made_way_t;

typedef struct {
    ask_t *asks;
    uint32_t n;
    bool crowd;
    tr_config_t config;
    tr_executor_t *executor;
    tr_status_counters_t counters;
    tr_loop_t *loop;
    tr_outlet_t outlet;
    tr_ring_consumer_t peer;
    int fd;
    tr_request_t **request; /* [n] inside */
    uint32_t open;
    made_way_t done;
} crowd_t;

static tr_tokenizer_t *tokenizer;
static uint64_t seed;
static bool exact; /* a result does not depend on its batch */

/* ---- requests ----------------------------------------------------------- */

static struct {
    int32_t ids[256];
    uint32_t n;
} golden[GOLDENS];
static uint32_t n_goldens;

/* Prompts that the model knows how to go on with. */
static void
read_goldens(void)
{
    json_t *root = json_load_file(POCKET "/golden.json", 0, NULL);
    json_t *prompts = json_object_get(root, "prompts"), *p, *id;
    size_t i, k;

    assert_non_null(root);
    json_array_foreach (prompts, i, p) {
        json_t *ids = json_object_get(p, "ids");

        assert_true(i < GOLDENS && json_array_size(ids) <= 256);
        json_array_foreach (ids, k, id) {
            golden[i].ids[k] = (int32_t) json_integer_value(id);
        }
        golden[i].n = (uint32_t) k;
        n_goldens++;
    }
    json_decref(root);
    assert_in_range(n_goldens, 2, GOLDENS);
}

/* Goldens one after the other, with a foreign word here and there; or words
 * alone; now and then the beginning of an earlier one. */
static void
make_prompt(ask_t *asks, uint32_t i, uint64_t *rng)
{
    ask_t *ask = &asks[i];
    bool words = rig_below(rng, 8) == 0;
    uint32_t at = 0;

    while (at < ask->prompt_len) {
        uint32_t g = rig_below(rng, n_goldens);

        for (uint32_t k = 0; k < golden[g].n && at < ask->prompt_len; k++) {
            ask->prompt[at++] = words || rig_below(rng, 24) == 0
                                    ? (int32_t) (300 + rig_below(rng, 3000))
                                    : golden[g].ids[k];
        }
    }
    if (i > 0 && rig_below(rng, 4) == 0) {
        const ask_t *other = &asks[rig_below(rng, i)];
        uint32_t len = other->prompt_len < ask->prompt_len ? other->prompt_len
                                                           : ask->prompt_len;

        memcpy(ask->prompt, other->prompt,
               rig_below(rng, len + 1) * sizeof(*ask->prompt));
    }
}

/* What the sampler does with logits. */
static void
make_params(ask_t *ask, uint64_t *rng)
{
    static const tr_stop_string_t stops[] = { { "e", 1 },
                                              { "th", 2 },
                                              { " a", 2 } };
    static const int32_t stop_tokens[] = { 2815, 18, 277 };
    static const tr_logit_bias_t bias[] = { { 2815, -8 }, { 900, 3 } };
    tr_sampling_params_t *p = &ask->params;

    *p = (tr_sampling_params_t){ .top_p = 1,
                                 .repetition_penalty = 1,
                                 .has_seed = true,
                                 .seed = rig_next(rng),
                                 .logprobs = -1 };
    p->max_tokens = LEAST_OUT + rig_below(rng, MOST_OUT - LEAST_OUT + 1);
    p->ignore_eos = rig_below(rng, 3) != 0;
    if (rig_below(rng, 6) == 0) {
        p->temperature = 0.9f;
        p->top_k = rig_below(rng, 2) == 0 ? 20 : 0;
        p->top_p = rig_below(rng, 2) == 0 ? 0.9f : 1;
    }
    if (rig_below(rng, 8) == 0) {
        p->presence_penalty = 0.7f;
        p->frequency_penalty = 0.4f;
        p->repetition_penalty = 1.3f;
    }
    if (rig_below(rng, 8) == 0) {
        p->bias = bias;
        p->n_bias = 2;
    }
    if (rig_below(rng, 4) == 0) {
        p->stop = stops;
        p->n_stop = 1 + rig_below(rng, 3);
    }
    if (rig_below(rng, 4) == 0) {
        p->stop_tokens = stop_tokens;
        p->n_stop_tokens = 1 + rig_below(rng, 3);
    }
    p->min_tokens = rig_below(rng, 3) == 0 ? p->max_tokens / 2 : 0;
    if (rig_below(rng, 4) != 0) {
        p->logprobs = (int32_t) rig_below(rng, 6);
    }
}

static void
make_answer(answer_t *a, const ask_t *ask)
{
    uint32_t n = ask->params.max_tokens + 1;

    a->step = calloc(n, sizeof(*a->step));
    a->token = calloc(n, sizeof(*a->token));
    a->wire = calloc(n + LONGEST, sizeof(*a->wire));
}

/* The slow policies, whose kernels are simple, come less often. */
static ask_t *
make_asks(uint32_t n, uint64_t rng)
{
    static const uint32_t policy[] = { 0, 0, 0, 1, 1, 2, 2, 3, 3, 3, 4, 5 };
    ask_t *asks = calloc(n, sizeof(*asks));

    assert_non_null(asks);
    for (uint32_t i = 0; i < n; i++) {
        ask_t *ask = &asks[i];
        uint32_t most; /* that fits */

        make_params(ask, &rng);
        most = LONGEST - ask->params.max_tokens;
        ask->policy = policy[rig_below(&rng, sizeof(policy) / 4)];
        ask->n = rig_below(&rng, 5) == 0 ? 1 + rig_below(&rng, CHOICES) : 1;
        ask->echo = rig_below(&rng, 8) == 0;
        ask->prompt_len = 1 + rig_below(&rng, i % 5 != 0 ? 90 : most);
        if (i % 4 == 0) { /* the cache grows with what they say */
            ask->policy = 1 + rig_below(&rng, 3);
            ask->n = CHOICES;
            ask->prompt_len = 1 + rig_below(&rng, 60);
            ask->params.max_tokens = LONG_OUT;
            ask->params.ignore_eos = true;
            ask->params.n_stop = ask->params.n_stop_tokens = 0;
        }
        if (i % 9 == 5) { /* all that the context holds, or one more */
            ask->too_long = i % 18 == 5;
            ask->prompt_len = LONGEST - ask->params.max_tokens + ask->too_long;
            ask->params.ignore_eos = true;
            ask->params.n_stop = ask->params.n_stop_tokens = 0;
        }
        make_prompt(asks, i, &rng);
        for (uint32_t k = 0; k < ask->n; k++) {
            make_answer(&ask->alone[k], ask);
            make_answer(&ask->crowd[k], ask);
        }
    }
    return asks;
}

static void
free_asks(ask_t *asks, uint32_t n)
{
    for (uint32_t i = 0; i < 2 * CHOICES * n; i++) {
        ask_t *ask = &asks[i / (2 * CHOICES)];
        answer_t *a = i % 2 ? &ask->alone[i / 2 % CHOICES]
                            : &ask->crowd[i / 2 % CHOICES];

        free(a->step);
        free(a->token);
        free(a->wire);
        free(a->text);
    }
    free(asks);
}

static void
forget_crowd(ask_t *asks, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        asks[i].aborted = false;
        for (uint32_t k = 0; k < asks[i].n; k++) {
            answer_t *a = &asks[i].crowd[k];

            a->n = a->n_token = a->n_wire = a->len = 0;
            a->reason = 0;
        }
    }
}

/* ---- what the executor says --------------------------------------------- */

static crowd_t *watched;
static tr_status_t (*collect)(tr_executor_t *e, const tr_batch_t *batch);

static answer_t *
answer_of(crowd_t *c, uint64_t id, uint32_t choice)
{
    ask_t *ask = &c->asks[id];

    if (id >= c->n || choice >= ask->n) { /* also the loop's thread calls */
        fprintf(stderr, "request %u, choice %u\n", (unsigned) id, choice);
        abort();
    }
    return c->crowd ? &ask->crowd[choice] : &ask->alone[choice];
}

/* The loop's thread. */
static tr_status_t
watch(tr_executor_t *e, const tr_batch_t *batch)
{
    tr_status_t rc = collect(e, batch);

    for (uint32_t i = 0; i < batch->n_items && rc == TR_OK; i++) {
        const tr_batch_item_t *item = &batch->items[i];
        const tr_sequence_t *q;
        answer_t *a;

        watched->done.stalls += item->status == TR_AGAIN;
        if (item->status == TR_OK && item->sample && item->out != NULL) {
            q = (const tr_sequence_t *) ((const char *) item->sampler
                                         - offsetof(tr_sequence_t, sampler));
            a = answer_of(watched, q->request->id, q->choice);
            a->step[item->number] = *item->out;
            a->n = item->number + 1;
        }
    }
    watched->done.steps++;
    return rc;
}

/* ---- the engine --------------------------------------------------------- */

static void
crowd_start(crowd_t *c, ask_t *asks, uint32_t n, bool crowd, uint64_t memory)
{
    tr_error_t err;

    *c = (crowd_t){ .asks = asks, .n = n, .crowd = crowd };
    tr_config_defaults(&c->config);
    strcpy(c->config.model, POCKET);
    strcpy(c->config.backend, "cuda");
    strcpy(c->config.dtype, "f16");
    strcpy(c->config.kv_policy, "full");
    strcpy(c->config.kv_policies, "uniform static diffkv kivi quest:budget=48");
    snprintf(c->config.cuda_library, sizeof(c->config.cuda_library), "%s",
             device_library());
    c->config.threads = 1;
    c->config.max_model_len = LONGEST;
    c->config.max_num_seqs = 32;
    c->config.max_batch_tokens = 192;
    c->config.max_queue = 12;
    c->config.kv_memory = memory;
    c->config.swap_memory = 128 << 20;
    assert_int_equal(tr_config_finish(&c->config, &err), TR_OK);
    if (tr_executor_cuda_open(&c->config, &c->executor, &err) != TR_OK) {
        fail_msg("%s", err.text);
    }
    assert_int_equal(c->executor->max_model_len, LONGEST);
    assert_int_equal(c->executor->n_policies, POLICIES);
    collect = c->executor->collect;
    c->executor->collect = watch;
    watched = c;
    c->request = calloc(n, sizeof(*c->request));
    c->fd = eventfd(0, EFD_CLOEXEC);
    outlet_make(&c->outlet, &c->peer, 1 << 20, c->fd, c->fd);
    assert_int_equal(tr_loop_start(&c->config, c->executor, tokenizer,
                                   &c->counters, c->fd, &c->loop, &err),
                     TR_OK);
}

/* Every page has come back. */
static void
crowd_stop(crowd_t *c)
{
    const tr_batch_t none = { NULL, 0, 0 };
    tr_kv_cache_t *kv = c->executor->kv;

    assert_null(tr_loop_stop(c->loop));
    while (!tr_kv_settled(kv)) {
        assert_int_equal(tr_executor_run(c->executor, &none), TR_OK);
    }
    assert_true(tr_kv_sound(kv));
    assert_int_equal(tr_kv_free_pages(kv), tr_kv_pages(kv));
    c->executor->free(c->executor);
    outlet_unmake(&c->outlet, &c->peer);
    close(c->fd);
    free(c->request);
}

/* Request i.  Alone it also tells what else might have come. */
static tr_status_t
crowd_submit(crowd_t *c, uint32_t i)
{
    const ask_t *ask = &c->asks[i];
    tr_request_t *r = calloc(1, sizeof(*r));
    tr_ids_t prompt = { (int32_t *) ask->prompt, ask->prompt_len, LONGEST };
    tr_status_t rc;

    r->id = i;
    r->n = ask->n;
    r->outlet = &c->outlet;
    r->kv_policy = c->executor->policies[ask->policy].policy;
    r->echo = ask->echo;
    r->params = ask->params;
    if (!c->crowd && !exact) {
        r->params.logprobs = TR_TOP_LOGPROBS_MAX;
    }
    assert_int_equal(tr_request_layout(r, &prompt, 1, c->executor->vocab,
                                       c->executor->eos, c->executor->n_eos,
                                       tokenizer),
                     TR_OK);
    rc = tr_loop_reserve(c->loop, r);
    if (rc != TR_OK) {
        tr_request_free(r);
        return rc;
    }
    c->request[i] = r;
    c->open++;
    tr_loop_submit(c->loop, r);
    return TR_OK;
}

/* ---- what the peer sees ------------------------------------------------- */

static void
keep_delta(crowd_t *c, uint64_t id, const uint8_t *payload, uint32_t length)
{
    tr_wire_delta_t head = { 0 };
    tr_wire_bytes_t text = { 0 }, logprobs = { 0 }, bytes = { 0 };
    tr_wire_logprob_t entry = { 0 };
    tr_wire_top_t top;
    answer_t *a;

    assert_int_equal(tr_wire_delta_parse(payload, length, &head, &text,
                                         &logprobs),
                     TR_OK);
    a = answer_of(c, id, head.choice);
    if (a->len + text.len > a->text_cap) {
        a->text_cap = 2 * (a->len + text.len);
        a->text = realloc(a->text, a->text_cap);
        assert_non_null(a->text);
    }
    if (text.len != 0) {
        memcpy(a->text + a->len, text.data, text.len);
        a->len += text.len;
    }
    while (tr_wire_logprob_next(&logprobs, &entry, &bytes) == TR_OK) {
        assert_true(a->n_wire < LONGEST);
        a->wire[a->n_wire++] = entry.logprob;
        for (uint32_t i = 0; i < entry.top; i++) {
            assert_int_equal(tr_wire_top_next(&logprobs, &top, &bytes), TR_OK);
        }
    }
}

static void
keep_record(crowd_t *c, const tr_record_t *rec, const uint8_t *payload)
{
    tr_wire_finish_t f = { 0 };

    if (rec->type == TR_RECORD_DELTA) {
        keep_delta(c, rec->id, payload, rec->length);
    } else if (rec->type == TR_RECORD_ERROR) {
        fail_msg("request %u failed", (uint32_t) rec->id);
    } else if (rec->type != TR_RECORD_STARTED) {
        assert_int_equal(rec->type, TR_RECORD_FINISH);
        assert_int_equal(tr_wire_finish_parse(payload, rec->length, &f), TR_OK);
        answer_of(c, rec->id, f.choice)->reason = f.reason;
        if (f.flags & TR_FINISH_LAST) {
            c->open--;
        }
    }
}

/* Takes what the loop is done with. */
static void
reap(crowd_t *c)
{
    tr_request_t *r = tr_loop_over(c->loop), *next;

    for (; r != NULL; r = next) {
        next = r->next;
        for (uint32_t k = 0; k < r->n_sequences; k++) {
            const tr_sequence_t *q = &r->sequences[k];
            answer_t *a = answer_of(c, r->id, k);

            a->n_token = q->len - q->prompt_len;
            memcpy(a->token, q->tokens + q->prompt_len,
                   a->n_token * sizeof(*a->token));
            c->done.limit += q->len == LONGEST;
        }
        c->request[r->id] = NULL;
        tr_request_free(r);
    }
}

/* Reads what is there; when there is nothing, waits first.  False: there was
 * nothing for a while. */
static bool
turn(crowd_t *c)
{
    static uint8_t buf[1 << 18];
    struct pollfd pfd = { c->fd, POLLIN, 0 };
    tr_record_t rec;
    uint64_t ignored;
    bool some = false;

    if (tr_ring_sleep(&c->peer) == TR_OK) {
        some = true;
    } else if (poll(&pfd, 1, 20) == 1) {
        assert_int_equal(read(c->fd, &ignored, 8), 8);
        some = true;
    }
    while (tr_ring_get(&c->peer, &rec, buf, sizeof(buf)) == TR_OK) {
        keep_record(c, &rec, buf);
    }
    reap(c);
    if (tr_ring_release(&c->peer) == 1) {
        tr_loop_wake(c->loop);
    }
    return some;
}

#endif
