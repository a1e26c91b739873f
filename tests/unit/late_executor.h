/*
 * An executor that answers late, over one that computes in submit: two batches
 * are under way at a time, as on a GPU (executor.h, ahead = 1).
 *
 * submit copies all that it is given and spoils the places of the tokens, so
 * that whoever reads there too early, or keeps what should be gone, is found
 * out.  It computes at once, because the cache underneath does what it is asked
 * at once, too: what is asked after submit k takes effect after batch k.  What
 * it gave is told by collect.  A token that the loop does not know is the one
 * that the slot's row in the batch before sampled.
 *
 * With `stalls`, one row in so many finds no page: of a single token behind the
 * prompt, in slots that stay at 16 bits; those that are compressed ask the cache
 * (late_cache.h).  The row of that slot in the next batch fails with it.
 */
#ifndef TR_TEST_LATE_EXECUTOR_H
#define TR_TEST_LATE_EXECUTOR_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "executor.h"
#include "late_cache.h"

#define LATE_ITEMS 4096

typedef struct {
    const tr_batch_t *given;
    tr_batch_item_t *items; /* [n] as they were, with our own places */
    tr_sampling_params_t *params;
    tr_sampler_t *sampler;
    tr_sampled_t *out;
    uint32_t n;
    tr_status_t rc;
} late_flight_t;

typedef struct {
    tr_executor_t base;
    tr_executor_t *inner; /* borrowed */
    late_flight_t flight[2];
    uint32_t first, n_flying;
    uint32_t stalls, delay_us; /* 0: none */
    uint64_t random;
    uint64_t n_unknown, n_stalled; /* rows of each kind, so far */
} late_executor_t;

static inline uint32_t
late_below(late_executor_t *l, uint32_t n)
{
    l->random = l->random * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t) ((l->random >> 33) % n);
}

static inline void
late_must(bool ok, const char *what)
{
    if (!ok) {
        fprintf(stderr, "late executor: %s\n", what);
        abort(); /* this is not the test's thread */
    }
}

static inline void *
late_copy(const void *from, size_t size)
{
    void *to = malloc(size + 1);

    late_must(to != NULL, "no memory");
    memcpy(to, from, size);
    return to;
}

static inline void
late_clear(late_flight_t *f)
{
    for (uint32_t i = 0; i < f->n; i++) {
        free((void *) f->items[i].tokens);
        free(f->items[i].scores);
        free(f->sampler[i].counts);
    }
    free(f->items);
    free(f->params);
    free(f->sampler);
    free(f->out);
    memset(f, 0, sizeof(*f));
}

/* The slot's row in the batch before: what it sampled is the next token. */
static inline const tr_batch_item_t *
late_before(const late_executor_t *l, int32_t slot)
{
    const late_flight_t *f = &l->flight[l->first];

    late_must(l->n_flying == 1, "an unknown token, and no batch before");
    for (uint32_t i = 0; i < f->n; i++) {
        if (f->items[i].kv_slot == slot) {
            late_must(f->items[i].sample, "an unknown token that none sampled");
            return &f->items[i];
        }
    }
    late_must(false, "an unknown token of a slot that was not there");
    return NULL;
}

static inline bool
late_may_stall(const late_executor_t *l, const tr_batch_item_t *item)
{
    return item->n == 1 && item->sample && item->number != 0
           && tr_kv_slot_policy(l->base.kv, item->kv_slot)->n_levels == 0;
}

/* Copies item i, with a token of its own where the loop has none. */
static inline void
late_take(late_executor_t *l, late_flight_t *f, uint32_t i,
          const tr_batch_item_t *given)
{
    const tr_batch_item_t *before = NULL;
    tr_batch_item_t *item = &f->items[i];
    int32_t token = 0;

    *item = *given;
    item->status = TR_OK;
    late_must(given->n != 0 && given->kv_slot >= 0, "an empty row");
    if (given->tokens == NULL) {
        late_must(given->n == 1, "several tokens, none of them known");
        before = late_before(l, given->kv_slot);
        token = before->out->token;
        late_must(before->pos + before->n == given->pos, "a gap");
        l->n_unknown++;
        if (before->status != TR_OK || l->flight[l->first].rc != TR_OK) {
            item->status = TR_AGAIN;
        }
    }
    item->tokens = late_copy(before != NULL ? &token : given->tokens,
                             (given->n + (given->scores != NULL)) * 4);
    if (given->scores != NULL) {
        item->scores = calloc(given->n, sizeof(*item->scores));
    }
    if (!given->sample) {
        return;
    }
    f->params[i] = *given->sampler->params;
    f->sampler[i] = *given->sampler;
    f->sampler[i].params = &f->params[i];
    if (given->sampler->counts != NULL) {
        f->sampler[i].counts = late_copy(given->sampler->counts,
                                         given->sampler->vocab * 4ul);
    }
    if (before != NULL && item->status == TR_OK) {
        tr_sampler_accept(&f->sampler[i], token);
    }
    late_must(item->status != TR_OK || f->sampler[i].n_output == given->number,
              "the number of a token");
    item->sampler = &f->sampler[i];
    item->out = &f->out[i];
    memset(given->out, 0xa5, sizeof(*given->out));
    if (item->status == TR_OK && l->stalls != 0 && late_may_stall(l, item)
        && late_below(l, l->stalls) == 0) {
        item->status = TR_AGAIN;
        l->n_stalled++;
    }
    if (item->status == TR_OK
        && !late_cache_grants(l->base.kv, item->kv_slot, item->pos + item->n)) {
        item->status = TR_AGAIN;
        l->n_stalled++;
    }
}

/* Runs those that found pages. */
static inline tr_status_t
late_run(late_executor_t *l, late_flight_t *f)
{
    tr_batch_item_t *items = calloc(f->n + 1, sizeof(*items));
    tr_batch_t batch = { items, 0, 0 };
    tr_status_t rc = TR_OK;
    uint32_t i, k = 0;

    for (i = 0; i < f->n; i++) {
        if (f->items[i].status == TR_OK) {
            items[batch.n_items++] = f->items[i];
            batch.n_tokens += f->items[i].n;
        }
    }
    if (batch.n_items != 0) {
        rc = tr_executor_run(l->inner, &batch);
    }
    for (i = 0; i < f->n; i++) {
        if (f->items[i].status == TR_OK) {
            f->items[i].status = items[k++].status;
        }
    }
    free(items);
    return rc;
}

static inline tr_status_t
late_submit(tr_executor_t *e, const tr_batch_t *batch)
{
    late_executor_t *l = (late_executor_t *) e;
    late_flight_t *f = &l->flight[(l->first + l->n_flying) % 2];
    uint32_t n = batch->n_items, i;

    late_must(l->n_flying < 2, "too many batches under way");
    late_must(n <= LATE_ITEMS, "too many rows");
    f->given = batch;
    f->n = n;
    f->items = calloc(n + 1, sizeof(*f->items));
    f->params = calloc(n + 1, sizeof(*f->params));
    f->sampler = calloc(n + 1, sizeof(*f->sampler));
    f->out = calloc(n + 1, sizeof(*f->out));
    for (i = 0; i < n; i++) {
        late_take(l, f, i, &batch->items[i]);
    }
    f->rc = late_run(l, f);
    if (f->rc != TR_OK && late_below(l, 2) == 0) {
        tr_status_t rc = f->rc;

        late_clear(f); /* a launch that failed; else it is the batch */
        return rc;
    }
    late_cache_flying(++l->n_flying, false);
    return TR_OK;
}

static inline tr_status_t
late_collect(tr_executor_t *e, const tr_batch_t *batch)
{
    late_executor_t *l = (late_executor_t *) e;
    late_flight_t *f = &l->flight[l->first];
    tr_status_t rc = f->rc;
    uint32_t i;

    late_must(l->n_flying != 0, "nothing is under way");
    late_must(f->given == batch && f->n == batch->n_items, "another batch");
    if (l->delay_us != 0) {
        usleep(late_below(l, l->delay_us));
    }
    for (i = 0; i < f->n; i++) {
        const tr_batch_item_t *mine = &f->items[i];
        tr_batch_item_t *item = &batch->items[i];

        late_must(item->kv_slot == mine->kv_slot && item->pos == mine->pos
                      && item->n == mine->n,
                  "a row was changed under way");
        item->status = mine->status;
        if (mine->status == TR_OK && mine->sample && item->out != NULL) {
            *item->out = *mine->out;
        }
        if (mine->status == TR_OK && item->scores != NULL) {
            memcpy(item->scores, mine->scores, mine->n * sizeof(*mine->scores));
        }
    }
    late_clear(f);
    l->first = (l->first + 1) % 2;
    late_cache_flying(--l->n_flying, true);
    return rc;
}

/* The inner executor goes on to own cache and policies.  Until late_close. */
static inline void
late_open(late_executor_t *l, tr_executor_t *inner)
{
    late_must(inner->ahead == 0 && inner->due == NULL, "of no use here");
    memset(l, 0, sizeof(*l));
    l->base = *inner;
    l->base.ahead = 1;
    l->base.submit = late_submit;
    l->base.collect = late_collect;
    l->base.free = NULL;
    l->inner = inner;
    l->random = 88172645463325252ull;
    late_cache_open(inner->kv);
}

/* Nothing may be under way. */
static inline void
late_close(late_executor_t *l)
{
    late_must(l->n_flying == 0, "a batch was never collected");
    late_cache_shut();
}

#endif
