/*
 * Masks of constrained sequences (loop_internal.h).
 *
 * A sequence's next mask is known as soon as its newest token is.  On the CPU
 * that is before the batch is submitted.  Where batches are submitted ahead
 * (executor.h), it is when the batch in front is complete, and the device computes
 * all but the sampling in the meantime: such rows are late.  The masks of a batch
 * are made by the compute threads, which have nothing else to do then.
 *
 * A mask that cannot be made (the grammar met a limit) fails its request alone, when the batch is
 * complete; its row runs without one.
 */
#include "loop_internal.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

bool
tr_loop_take_masks(tr_loop_t *l, uint32_t max_num_seqs)
{
    const tr_executor_t *x = l->executor;
    uint32_t i;

    if (x->vocabulary == NULL) {
        return true;
    }
    l->mask_words = tr_vocabulary_words(x->vocabulary);
    l->n_scratch = x->pool.threads > 1 ? (uint32_t) x->pool.threads : 1;
    l->masks = calloc((size_t) max_num_seqs * l->mask_words, sizeof(*l->masks));
    l->scratch = calloc(l->n_scratch, sizeof(*l->scratch));
    if (l->masks == NULL || l->scratch == NULL) {
        return false;
    }
    for (i = 0; i < l->n_scratch; i++) {
        l->scratch[i] = tr_grammar_scratch_new(x->vocabulary);
        if (l->scratch[i] == NULL) {
            return false;
        }
    }
    return true;
}

void
tr_loop_free_masks(tr_loop_t *l)
{
    uint32_t i;

    for (i = 0; l->scratch != NULL && i < l->n_scratch; i++) {
        tr_grammar_scratch_free(l->scratch[i]);
    }
    free(l->scratch);
    free(l->masks);
}

typedef struct {
    tr_loop_t *loop;
    tr_loop_batch_t *batch;
    const tr_chunk_t *chunks;
} tr_loop_masking_t;

static bool
tr_loop_masked(const tr_chunk_t *chunk)
{
    return chunk->sample && chunk->sequence != NULL
           && (chunk->sequence->matcher != NULL
               || tr_sequence_must_say(chunk->sequence) >= 0);
}

/* A token that is not known adds at most one to what is thought. */
bool
tr_loop_may_mask(const tr_chunk_t *chunk)
{
    const tr_sequence_t *q = chunk->sequence;
    const tr_request_t *r = q->request;

    return chunk->sample
           && (q->matcher != NULL
               || (r->thought_end != NULL && q->dialect != NULL
                   && (q->closing != 0
                       || q->thoughts + q->ahead >= r->thought_budget)));
}

/* How often a grammar leaves no choice says what jumping over such tokens would
 * bring. */
static void
tr_loop_count_mask(tr_loop_t *l, const uint32_t *mask)
{
    uint32_t i, n = 0;

    for (i = 0; i < l->mask_words && n < 2; i++) {
        n += (uint32_t) __builtin_popcount(mask[i]);
    }
    tr_loop_count(&l->counters->masks, 1);
    tr_loop_count(&l->counters->masks_single, n == 1);
}

static void
tr_loop_mask_rows(void *arg, uint32_t first, uint32_t end, uint32_t worker)
{
    const tr_loop_masking_t *a = arg;
    tr_loop_t *l = a->loop;
    uint32_t i;

    for (i = first; i < end; i++) {
        tr_sequence_t *q = a->chunks[i].sequence;
        uint32_t *mask = l->masks + (size_t) i * l->mask_words;

        if (!tr_loop_masked(&a->chunks[i])) {
            continue;
        }
        assert(l->executor->sample == NULL || a->batch->items[i].late);
        if (tr_sequence_must_say(q) >= 0) {
            uint32_t token = (uint32_t) tr_sequence_must_say(q);

            memset(mask, 0, l->mask_words * sizeof(*mask));
            mask[token / 32] = 1u << (token % 32);
            a->batch->items[i].mask = mask;
            continue;
        }
        a->batch->refused[i] = tr_matcher_mask(q->matcher, l->scratch[worker],
                                               q->sampler.eos, q->sampler.n_eos,
                                               mask);
        if (a->batch->refused[i] == TR_OK) {
            a->batch->items[i].mask = mask;
            tr_loop_count_mask(l, mask);
        }
    }
}

void
tr_loop_mask(tr_loop_t *l, tr_loop_batch_t *f, const tr_chunk_t *chunks)
{
    tr_loop_masking_t a = { l, f, chunks };
    const tr_stream_t *pool = &l->executor->pool;
    bool any = false;
    uint32_t i;

    for (i = 0; l->n_masked != 0 && i < f->batch.n_items; i++) {
        any = any || tr_loop_masked(&chunks[i]);
    }
    if (any) {
        tr_thread_pool_run(pool->thread_pool, pool->threads, f->batch.n_items,
                           1, tr_loop_mask_rows, &a);
    }
}

tr_status_t
tr_loop_follow(tr_loop_t *l, tr_sequence_t *q, int32_t token)
{
    uint32_t i;

    if (q->matcher == NULL) {
        return TR_OK;
    }
    for (i = 0; i < q->sampler.n_eos; i++) {
        if (q->sampler.eos[i] == token) {
            return TR_OK; /* the mask had it where the answer may end */
        }
    }
    return tr_matcher_token(q->matcher, l->scratch[0], token);
}
