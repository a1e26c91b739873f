/*
 * Answers behind a cached prefix (eval_run.h).  A branch answers twice.  What it
 * answers first stays in the cache as the engine keeps it: compressed, with
 * levels that its own questions decided.  Then it asks again, takes over as much
 * as it finds, computes the rest on top of that, and this answer counts.
 *
 *   shared      another question about the same document, then its own
 *   regenerate  its own question, then the same with the first half of the
 *               answer, so that the cut is inside the answer
 *
 * Each branch has a key of its own, so what it finds does not depend on others,
 * and nothing stays behind when it has begun for the second time.
 */
#include "eval_internal.h"

#include <stdlib.h>
#include <string.h>

#include "engine/config/log.h"

/* A document that is shorter than that is not one. */
#define SHARED_MIN 32u

/* Is there room for an answer to any turn behind so many tokens? */
static bool
fits(const driver_t *d, const prefix_t *t, uint32_t len)
{
    for (uint32_t i = 0; i < t->task->n_turns; i++) {
        if (len + t->limit[i] > d->e->x->max_model_len) {
            return false;
        }
    }
    return true;
}

static uint32_t
common(const tr_ids_t *a, const tr_ids_t *b)
{
    uint32_t most = a->len < b->len ? a->len : b->len, n = 0;

    while (n < most && a->data[n] == b->data[n]) {
        n++;
    }
    return n;
}

tr_status_t
tr_reuse_choose(driver_t *d, prefix_t *t)
{
    uint32_t best = SHARED_MIN - 1;
    tr_status_t rc = TR_OK;

    for (int i = 0; i < 2 && rc == TR_OK; i++) {
        const tr_eval_case_t *c = t->task->neighbour[i];
        tr_ids_t ids = { 0 };

        if (c == NULL || d->run->reuse != TR_EVAL_SHARED) {
            continue;
        }
        rc = tr_eval_encode_turn(d, c, c->n_turns - 1, &ids);
        if (rc == TR_OK && common(&ids, &t->ids) > best
            && fits(d, t, ids.len)) {
            tr_ids_t other = t->other;

            best = common(&ids, &t->ids);
            t->other = ids;
            ids = other;
        }
        free(ids.data);
    }
    return rc;
}

static void
key_of(const branch_t *f, tr_prefix_key_t *key)
{
    uint32_t whose[2] = { f->prefix->task->first_job + f->turn, f->policy };

    memset(key, 0, sizeof(*key));
    key->len = sizeof(whose);
    memcpy(key->bytes, whose, sizeof(whose));
}

/* The slot, just opened, begins with what is found of tokens[0, n). */
static tr_status_t
begin_with(driver_t *d, branch_t *f, const int32_t *tokens, uint32_t n)
{
    const tr_kv_policy_t *policy = d->e->policy[f->policy];
    tr_prefix_key_t key;
    tr_kv_found_t found;
    tr_status_t rc;

    key_of(f, &key);
    tr_kv_time(d->kv, ++d->clock);
    tr_kv_find(d->kv, policy, &key, tokens, n, &found);
    f->len = f->reused = found.tokens;
    rc = tr_kv_adopt(d->kv, f->slot, &key, &found);
    tr_kv_expire(d->kv, d->clock + 1);
    return rc == TR_OK ? rc
                       : tr_error_set(d->err, rc, "kv_memory",
                                      "%.200s: no room for a copy of %u cached "
                                      "tokens: give more with --kv-memory",
                                      d->e->label[f->policy], f->reused);
}

tr_status_t
tr_branch_compute(driver_t *d, branch_t *f, const int32_t *tokens, uint32_t n)
{
    f->next.len = n - f->len;
    f->next.data = malloc(f->next.len * sizeof(*tokens));
    f->next_at = 0;
    if (f->next.data == NULL) {
        return tr_error_set(d->err, TR_ERR_NOMEM, "", "out of memory");
    }
    memcpy(f->next.data, tokens + f->len, f->next.len * sizeof(*tokens));
    f->prompt = n;
    f->state = BRANCH_PROMPT;
    tr_kv_prompt(d->kv, f->slot, n);
    return TR_OK;
}

tr_status_t
tr_reuse_begin(driver_t *d, branch_t *f)
{
    const tr_ids_t *other = &f->prefix->other;
    tr_status_t rc;

    if (d->run->reuse == TR_EVAL_SHARED && other->len == 0) {
        return TR_OK; /* nothing to share: it is answered as any other */
    }
    f->leaves = true;
    rc = begin_with(d, f, f->prefix->ids.data, 0);
    if (rc == TR_OK && d->run->reuse == TR_EVAL_SHARED) {
        rc = tr_branch_compute(d, f, other->data, other->len);
    }
    return rc;
}

/* All n tokens of the prompt (behind one another's, as many of the answer as are
 * cached) stay; the slot is closed. */
static tr_status_t
leave(driver_t *d, branch_t *f, const tr_ids_t *prompt, uint32_t n)
{
    int32_t *all = malloc((n + f->n_out) * sizeof(*all));

    if (all == NULL) {
        return tr_error_set(d->err, TR_ERR_NOMEM, "", "out of memory");
    }
    memcpy(all, prompt->data, n * sizeof(*all));
    memcpy(all + n, f->out, f->n_out * sizeof(*all));
    tr_kv_keep(d->kv, f->slot, all, f->len, true);
    tr_kv_close(d->kv, f->slot);
    f->slot = NO_SLOT;
    free(all);
    return TR_OK;
}

/* The question, and for an answer that goes on its first `begun` tokens. */
static tr_status_t
ask(driver_t *d, branch_t *f, uint32_t begun)
{
    const prefix_t *t = f->prefix;
    uint32_t n = t->len[f->turn];
    int32_t *tokens = malloc((n + begun) * sizeof(*tokens));
    tr_status_t rc;

    if (tokens == NULL) {
        return tr_error_set(d->err, TR_ERR_NOMEM, "", "out of memory");
    }
    memcpy(tokens, t->ids.data, n * sizeof(*tokens));
    memcpy(tokens + n, f->out, begun * sizeof(*tokens));
    rc = begin_with(d, f, tokens, n + begun - 1);
    if (rc == TR_OK) {
        free(f->next.data);
        rc = tr_branch_compute(d, f, tokens, n + begun);
    }
    free(tokens);
    return rc;
}

tr_status_t
tr_reuse_again(driver_t *d, branch_t *f)
{
    prefix_t *t = f->prefix;
    bool shared = d->run->reuse == TR_EVAL_SHARED;
    uint32_t begun = shared ? 0 : f->n_out / 2;
    tr_status_t rc;

    f->leaves = false;
    rc = leave(d, f, shared ? &t->other : &t->ids,
               shared ? t->other.len : t->len[f->turn]);
    if (rc != TR_OK) {
        return rc;
    }
    f->slot = tr_kv_open(d->kv, d->e->policy[f->policy]);
    if (f->slot < 0) {
        return tr_error_set(d->err, TR_ERR_INTERNAL, "",
                            "no slot for an answer that is asked again");
    }
    rc = tr_branch_start(d, f, f->turn, t->limit[f->turn]);
    f->n_out = begun;
    return rc == TR_OK ? ask(d, f, begun) : rc;
}
