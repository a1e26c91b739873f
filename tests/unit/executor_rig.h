/*
 * What the tests of executors share: sequences that are generated through an
 * executor and its KV cache as the step loop would, in batches of random
 * composition, with as many batches under way as the executor allows.
 */
#ifndef TR_EXECUTOR_RIG_H
#define TR_EXECUTOR_RIG_H

#include "model_rig.h"

#include "executor.h"

#define GEN_PROMPT 256u
#define GEN_OUT 64u
#define GEN_MAX 32u
#define GEN_TOKENS 96u /* of a batch */
#define GEN_ROUNDS 20000

/* One sequence: what it asks for, and how far it is. */
typedef struct {
    int32_t prompt[GEN_PROMPT];
    uint32_t n_prompt, n_out;
    const tr_kv_policy_t *policy; /* NULL: the default */
    tr_sampling_params_t params;
    uint64_t seed;
    bool score; /* the prompt's tokens, too */

    tr_sampler_t sampler;
    uint32_t *counts;
    int32_t slot;
    uint32_t computed; /* with what is under way */
    uint32_t number;   /* tokens sampled, with what is under way */
    bool compressed, flying;
    int32_t out[GEN_OUT + 1];
    uint32_t n_known;
    tr_sampled_t result[2]; /* of two batches under way */
    tr_sampled_t scores[GEN_PROMPT], last;
    uint32_t stalls;
} gen_t;

typedef struct {
    tr_batch_item_t item[GEN_MAX];
    gen_t *who[GEN_MAX];
    tr_batch_t batch;
} gen_batch_t;

static inline tr_sampling_params_t
gen_greedy(void)
{
    return (tr_sampling_params_t){
        .top_p = 1, .repetition_penalty = 1, .max_tokens = 1000, .logprobs = -1
    };
}

static inline void
gen_open(tr_executor_t *e, gen_t *g)
{
    size_t bytes = tr_sampler_counts_size(&g->params, e->vocab);

    g->counts = bytes != 0 ? calloc(1, bytes) : NULL;
    tr_sampler_init(&g->sampler, &g->params, g->seed, e->vocab, g->counts,
                    e->eos, e->n_eos, g->prompt, g->n_prompt);
    g->slot = tr_kv_open(e->kv, g->policy);
    assert_true(g->slot >= 0);
    tr_kv_prompt(e->kv, g->slot, g->n_prompt);
    g->computed = g->number = g->n_known = g->stalls = 0;
    g->compressed = g->flying = false;
}

static inline void
gen_close(tr_executor_t *e, gen_t *g)
{
    tr_kv_close(e->kv, g->slot);
    free(g->counts);
}

/* Asks the cache for what the item needs; false: not now. */
static inline bool
gen_ready(tr_executor_t *e, gen_t *g, uint32_t n)
{
    if (g->computed >= g->n_prompt && !g->compressed
        && tr_kv_uncompressed(e->kv, g->slot)) {
        tr_status_t rc;

        if (g->flying) { /* its prompt is under way */
            return false;
        }
        rc = tr_kv_compress(e->kv, g->slot, g->n_prompt);
        assert_true(rc == TR_OK || (rc == TR_AGAIN && !tr_kv_settled(e->kv)));
        g->compressed = rc == TR_OK;
        if (rc != TR_OK) {
            return false;
        }
    }
    return tr_kv_reserve(e->kv, g->slot, g->computed + n) == TR_OK;
}

/* Adds g's next share to a batch, if it has one. */
static inline void
gen_add(tr_executor_t *e, gen_t *g, gen_batch_t *b, uint32_t chunk,
        uint32_t turn)
{
    bool prompt = g->computed < g->n_prompt;
    uint32_t left = g->n_prompt - g->computed, n = prompt ? chunk : 1;
    uint32_t room = GEN_TOKENS - b->batch.n_tokens;
    tr_batch_item_t *item = &b->item[b->batch.n_items];

    n = prompt && n > left ? left : n;
    n = n < room ? n : room;
    if (g->number == g->n_out || n == 0 || !gen_ready(e, g, n)) {
        return;
    }
    *item = (tr_batch_item_t){ .kv_slot = g->slot, .pos = g->computed, .n = n };
    item->tokens = prompt                    ? g->prompt + g->computed
                   : g->number == g->n_known ? &g->out[g->number - 1]
                                             : NULL;
    if (g->computed + n >= g->n_prompt) {
        item->sample = true;
        item->sampler = &g->sampler;
        item->number = g->number++;
        item->out = &g->result[turn];
    }
    if (prompt && g->score) {
        item->scores = g->scores + g->computed;
        item->top = 2;
    }
    g->computed += n;
    g->flying = true;
    b->who[b->batch.n_items++] = g;
    b->batch.n_tokens += n;
}

/* What came of a batch.  after: the one under way, NULL: none. */
static inline void
gen_apply(gen_batch_t *b, gen_batch_t *after)
{
    for (uint32_t i = 0; i < b->batch.n_items; i++) {
        tr_batch_item_t *item = &b->item[i];
        gen_t *g = b->who[i];

        g->flying = false;
        for (uint32_t k = 0; after != NULL && k < after->batch.n_items; k++) {
            g->flying |= after->who[k] == g;
        }
        if (item->status == TR_AGAIN) { /* and whatever came after it */
            g->computed = item->pos;
            g->number = item->number;
            g->n_known = g->number;
            g->stalls++;
            continue;
        }
        assert_int_equal(item->status, TR_OK);
        if (item->sample && item->number == g->n_known
            && item->pos + item->n <= g->computed) {
            g->last = *item->out;
            g->out[g->n_known++] = g->last.token;
            tr_sampler_accept(&g->sampler, g->last.token);
        }
    }
}

/* Generates all of them.  rng: NULL for everybody in every batch. */
static inline void
gen_run(tr_executor_t *e, gen_t *gens, uint32_t n, uint32_t chunk,
        uint64_t *rng)
{
    static gen_batch_t batches[2];
    gen_batch_t *before = NULL;
    uint32_t done, i, turn = 0, rounds = 0;

    for (i = 0; i < n; i++) {
        gen_open(e, &gens[i]);
    }
    do {
        gen_batch_t *b = &batches[turn];

        memset(&b->batch, 0, sizeof(b->batch));
        b->batch.items = b->item;
        for (i = 0; i < n; i++) {
            uint32_t most = rng != NULL ? 1 + rig_below(rng, chunk) : chunk;

            if (rng == NULL || rig_below(rng, 4) != 0) {
                gen_add(e, &gens[i], b, most, turn);
            }
        }
        assert_int_equal(e->submit(e, &b->batch), TR_OK);
        if (e->ahead == 0) {
            before = b;
        }
        if (before != NULL) {
            assert_int_equal(e->collect(e, &before->batch), TR_OK);
            gen_apply(before, e->ahead != 0 ? b : NULL);
        }
        before = e->ahead != 0 ? b : NULL;
        turn = (turn + 1) % 2;
        for (i = done = 0; i < n; i++) {
            done += gens[i].n_known == gens[i].n_out;
        }
        assert_true(++rounds < GEN_ROUNDS);
    } while (done < n);
    if (before != NULL) {
        assert_int_equal(e->collect(e, &before->batch), TR_OK);
    }
    for (i = 0; i < n; i++) {
        gen_close(e, &gens[i]);
    }
}

#endif
