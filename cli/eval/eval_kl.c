/*
 * How far a policy's predictions are from the first policy's: the
 * Kullback-Leibler divergence, in nats, of the distributions of each token of a
 * text (eval_run.h).  It tells policies apart that answer all questions alike,
 * and no token that the text happens to have decides it.
 *
 * The first policy's logits stay with the window's prefix until its other
 * branches have ended: 4 bytes for each token of the vocabulary and of the window
 * behind its prompt.  A branch whose reference is not there yet waits.
 */
#include <stdlib.h>

#include "engine/config/log.h"

#include "eval_internal.h"
#include "eval_stats.h"

bool
tr_kl_first(const driver_t *d, const tr_eval_task_t *task, uint32_t policy)
{
    return d->run->kl && task->c == NULL && policy == 0;
}

bool
tr_kl_wanted(const driver_t *d, const tr_eval_task_t *task, uint32_t group)
{
    for (uint32_t p = 1; p < d->e->n_policies; p++) {
        if (d->e->running[p] && d->group[p] == group
            && !tr_eval_at(d->run->results, task->first_job, p)->done) {
            return true;
        }
    }
    return false;
}

tr_status_t
tr_kl_begin(driver_t *d, branch_t *f)
{
    prefix_t *t = f->prefix;
    size_t row = (size_t) d->e->x->vocab * sizeof(float);
    bool first = tr_kl_first(d, t->task, f->policy);

    for (uint32_t i = 0; i < TR_EVAL_PARTS; i++) {
        f->nll_by[i] = f->kl_by[i] = 0;
        f->n_by[i] = 0;
    }
    if (!d->run->kl || t->task->c != NULL) {
        return TR_OK;
    }
    if (first) {
        t->n_reference = 0;
        t->reference = malloc(row * t->limit[0]);
    } else if (f->logits == NULL) {
        f->logits = malloc(row);
    }
    return (first ? t->reference : f->logits) != NULL
               ? TR_OK
               : tr_error_set(d->err, TR_ERR_NOMEM, "",
                              "--kl: out of memory: the logits of a window "
                              "take %zu bytes; give a smaller --batch or "
                              "--window",
                              row * t->limit[0]);
}

bool
tr_kl_plan(const driver_t *d, const branch_t *f, tr_batch_item_t *item)
{
    const prefix_t *t = f->prefix;

    if (!d->run->kl) {
        return true;
    }
    if (tr_kl_first(d, t->task, f->policy)) {
        item->logits = t->reference + (size_t) f->n_out * d->e->x->vocab;
        return true;
    }
    item->logits = f->logits;
    return f->n_out < t->n_reference;
}

void
tr_kl_stepped(driver_t *d, branch_t *f)
{
    prefix_t *t = f->prefix;
    const tr_eval_job_t *job = &d->run->results->jobs[t->task->first_job];
    uint32_t part, vocab = d->e->x->vocab;

    if (!d->run->kl) {
        return;
    }
    part = tr_eval_part(job, job->from + f->n_out);
    f->n_by[part]++;
    f->nll_by[part] -= f->sampled.logprob;
    if (tr_kl_first(d, t->task, f->policy)) {
        t->n_reference++;
    } else {
        f->kl_by[part] += tr_kl_divergence(t->reference
                                               + (size_t) f->n_out * vocab,
                                           f->logits, vocab);
    }
}

void
tr_kl_record(const driver_t *d, const branch_t *f, tr_eval_record_t *r)
{
    for (uint32_t i = 0; i < TR_EVAL_PARTS && d->run->kl; i++) {
        /* a part without a token stands for none */
        r->nll_by[i] = f->n_by[i] != 0 ? f->nll_by[i] / f->n_by[i] : 0;
        r->kl_by[i] = f->n_by[i] != 0 ? f->kl_by[i] / f->n_by[i] : 0;
    }
}
