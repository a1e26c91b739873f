/*
 * backend null: tokens at a set rate, to measure everything but the model.
 *
 * A prompt takes no time and its first token comes at once.  After that all
 * streams get their tokens together at the ticks of one clock, null_rate a
 * second; with null_stagger each stream has its own phase, so that emissions
 * are spread evenly over the interval however many streams there are.  A tick
 * that was missed is skipped, not made up for.
 *
 * The token at position p depends on p alone, is one printable ASCII character
 * in every vocabulary that we know (byte-level ones begin with '!' or a few
 * marks, SentencePiece has its bytes there), and never ends a sequence.
 * null_script.h gives sequences other answers.
 *
 * Where an answer is constrained, the next token that its mask allows comes in
 * place of one that it does not.
 *
 * Pages are granted as for `full`, but nothing is stored in them and nothing is
 * compressed: kv_policy has no effect.
 */
#include "executor.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/config/log.h"
#include "null_script.h"
#include "null_trace.h"

#define TR_NULL_FIRST_TOKEN 69u
#define TR_NULL_TOKENS 21u
#define TR_NULL_MODEL_LEN 32768u
#define TR_NULL_HEAD_DIM 16u
#define TR_NULL_INTERVAL_MAX UINT64_C(1000000000000000) /* ns */

typedef struct {
    tr_executor_t base;
    uint64_t interval_ns;
    uint64_t origin_ns; /* of the ticks */
    bool stagger;
    tr_trace_t *trace;        /* NULL: none wanted */
    tr_null_script_t *script; /* NULL: none */
} tr_executor_null_t;

/* The token, or the next one that the item's mask allows. */
static int32_t
tr_null_allowed(const tr_executor_t *e, const tr_batch_item_t *item,
                int32_t token)
{
    uint32_t id = (uint32_t) token, i;

    for (i = 0; item->mask != NULL && i < e->vocab; i++) {
        if (item->mask[id / 32] >> (id % 32) & 1) {
            break;
        }
        id = (id + 1) % e->vocab;
    }
    return (int32_t) id;
}

static int32_t
tr_null_token(const tr_executor_t *e, const tr_batch_item_t *item)
{
    tr_null_script_t *script = ((const tr_executor_null_t *) e)->script;
    uint32_t position = item->pos + item->n;

    if (script != NULL) {
        int32_t token = tr_null_script_token(script, (uint32_t) item->kv_slot,
                                             item->sampler->n_output);

        if (token >= 0) {
            return tr_null_allowed(e, item, token);
        }
    }
    if (e->vocab < TR_NULL_FIRST_TOKEN + TR_NULL_TOKENS) {
        return tr_null_allowed(e, item, (int32_t) (position % e->vocab));
    }
    return tr_null_allowed(e, item,
                           (int32_t) (TR_NULL_FIRST_TOKEN
                                      + position % TR_NULL_TOKENS));
}

/* A made-up distribution: `token`, then its neighbours. */
static void
tr_null_fill(const tr_executor_t *e, int32_t token, int32_t top,
             tr_sampled_t *out)
{
    int32_t i;

    out->token = token;
    out->logprob = -0.5f;
    out->n_top = 0;
    for (i = 0; i < top && (uint32_t) i < e->vocab; i++) {
        out->top[i].token = (int32_t) ((uint32_t) (token + i) % e->vocab);
        out->top[i].logprob = -0.5f - (float) i;
        out->n_top++;
    }
}

static tr_status_t
tr_null_submit(tr_executor_t *e, const tr_batch_t *batch)
{
    tr_executor_null_t *n = (tr_executor_null_t *) e;
    uint64_t tokens = 0;
    uint32_t i, k;

    for (i = 0; i < batch->n_items; i++) {
        tr_batch_item_t *item = &batch->items[i];

        for (k = 0; item->scores != NULL && k < item->n; k++) {
            tr_null_fill(e, item->tokens[k + 1], item->top, &item->scores[k]);
        }
        if (item->sample) {
            tr_null_fill(e, tr_null_token(e, item),
                         item->sampler->params->logprobs, item->out);
            tokens++;
        }
        item->status = TR_OK;
    }
    if (n->trace != NULL && tokens != 0) {
        tr_trace_add(n->trace, tr_trace_now(), tokens);
    }
    return TR_OK;
}

/* The first tick of this stream after `now`. */
static uint64_t
tr_null_due(tr_executor_t *e, int32_t kv_slot, uint64_t now)
{
    const tr_executor_null_t *n = (const tr_executor_null_t *) e;
    uint64_t phase = 0, since;

    if (n->stagger) {
        /* multiples of the golden ratio: even however many there are */
        uint64_t share = (uint32_t) kv_slot * 2654435769u; /* of 2^32 */

        phase = share * (n->interval_ns >> 32)
                + (share * (n->interval_ns & UINT32_MAX) >> 32);
    }
    since = now * 1000 - n->origin_ns + n->interval_ns - phase;
    since = (since / n->interval_ns) * n->interval_ns;
    /* rounded up, so that this tick is over when it is asked for the next */
    return (n->origin_ns + phase + since + 999) / 1000;
}

static void
tr_null_free(tr_executor_t *e)
{
    tr_executor_null_t *n = (tr_executor_null_t *) e;

    tr_trace_close(n->trace);
    tr_null_script_free(n->script);
    tr_executor_close_cache(e);
    free(n);
}

/* What it says, and what it writes of it. */
static tr_status_t
open_files(tr_executor_null_t *n, const tr_config_t *config, uint32_t vocab,
           tr_error_t *err)
{
    tr_status_t rc = TR_OK;

    if (config->null_script[0] != '\0') {
        rc = tr_null_script_open(config->null_script, vocab,
                                 2 * config->max_num_seqs, &n->script, err);
    }
    if (rc == TR_OK && config->null_trace[0] != '\0') {
        n->trace = tr_trace_open(config->null_trace, 1);
        if (n->trace == NULL) {
            rc = tr_error_set(err, TR_ERR_IO, "null_trace",
                              "cannot write null_trace %s: %s",
                              config->null_trace, strerror(errno));
        }
    }
    return rc;
}

tr_status_t
tr_executor_null_open(const tr_config_t *config, uint32_t vocab,
                      tr_executor_t **out, tr_error_t *err)
{
    tr_stream_t none = { 1, NULL };
    tr_config_t plain = *config;
    uint32_t len = config->max_model_len != 0 ? config->max_model_len
                                              : TR_NULL_MODEL_LEN;
    tr_executor_null_t *n;
    tr_executor_t *e;
    tr_status_t rc;

    *out = NULL;
    if (vocab == 0 || !(config->null_rate > 0.0) || config->null_rate > 1e6) {
        return tr_error_set(err, TR_ERR_INVALID, "null_rate",
                            "null_rate %g with a vocabulary of %u: more than 0"
                            " and at most 1000000 tokens a second are needed",
                            config->null_rate, vocab);
    }
    if (config->swap_recompute) {
        return tr_error_set(err, TR_ERR_UNSUPPORTED, "swap_recompute",
                            "swap_recompute with backend null, which computes"
                            " nothing");
    }
    n = calloc(1, sizeof(*n));
    if (n == NULL) {
        return tr_error_set(err, TR_ERR_NOMEM, "", "no memory");
    }
    e = &n->base;
    e->layers = e->kv_heads = e->query_heads = 1;
    e->head_dim = TR_NULL_HEAD_DIM;
    snprintf(plain.kv_policy, sizeof(plain.kv_policy), "full");
    plain.kv_policies[0] = '\0';
    plain.swap_memory = 0;
    rc = tr_executor_open_cache(e, &plain, len, NULL, none, err);
    if (rc != TR_OK) {
        tr_null_free(e);
        return rc;
    }
    e->backend = "null";
    e->vocab = vocab;
    e->max_model_len = len;
    tr_executor_fit_cache(e);
    e->submit = tr_null_submit;
    e->complete = tr_executor_complete_computed;
    e->due = tr_null_due;
    e->free = tr_null_free;
    /* slower than a token in eleven days is as good as never */
    n->interval_ns = config->null_rate < 1e-6
                         ? TR_NULL_INTERVAL_MAX
                         : (uint64_t) (1e9 / config->null_rate);
    n->origin_ns = tr_trace_now() / 1000 * 1000;
    n->stagger = config->null_stagger;
    rc = open_files(n, config, vocab, err);
    if (rc != TR_OK) {
        tr_null_free(e);
        return rc;
    }
    *out = e;
    return TR_OK;
}
