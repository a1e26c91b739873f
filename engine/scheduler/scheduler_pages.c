/*
 * The pages of sequences that run: compression, preemption, and how they leave
 * (scheduler.h); scheduler_admission.c gives them the first.
 *
 *                 start        stage.. compress
 *   waiting ---------------> uncompressed ---------> compressed
 *      ^  ^                    |               |    |  ^
 *      |  +--- pages lost -----+               |    |  | swap in
 *      +------ no room in the swap memory -----+    v  |
 *                                                 swapped
 *
 * Policies that keep everything at 16 bits stay uncompressed.  Swapped
 * sequences wait in a queue of their own and keep their slots.
 */
#include "scheduler_internal.h"

/* ---- leaving ------------------------------------------------------------ */

void
tr_scheduler_discharge(tr_scheduler_t *s, tr_sequence_t *q)
{
    s->prompt_pages -= q->charge;
    s->promised -= q->copy;
    q->charge = q->copy = q->lent = 0;
}

static void
tr_scheduler_stop(tr_scheduler_t *s, tr_sequence_t *q)
{
    tr_scheduler_unlink(&s->running, q);
    tr_scheduler_discharge(s, q);
    s->n_running--;
    tr_fair_stop(q);
    if (--q->request->running_sequences == 0) {
        s->n_running_requests--;
    }
}

void
tr_scheduler_leave(tr_scheduler_t *s, tr_sequence_t *q)
{
    tr_scheduler_stop(s, q);
    tr_scheduler_lose(s, q);
}

bool
tr_scheduler_complete(const tr_scheduler_t *s, const tr_sequence_t *q)
{
    return q->uncompressed_len != 0 && q->computed >= q->uncompressed_len
           && tr_kv_uncompressed(s->kv, q->kv_slot);
}

/* Computing its tokens as one prompt would not give the same cache again: it is
 * compressed, or has answered what its policy (Quest) reads in part only. */
static bool
tr_scheduler_unique(const tr_scheduler_t *s, const tr_sequence_t *q)
{
    return q->exact && q->computed >= q->prompt_len
           && q->computed >= q->uncompressed_len
           && !tr_kv_uncompressed(s->kv, q->kv_slot);
}

/* ---- preemption --------------------------------------------------------- */

void
tr_scheduler_forget(tr_scheduler_t *s, tr_sequence_t *q)
{
    uint32_t n = tr_sequence_steps(q) ? q->len - 1 : q->computed;

    q->step_to = 0;
    q->uncompressed_len = q->uncompressed_len != 0 ? n : 0;
    s->recomputations++;
}

void
tr_scheduler_preempt(tr_scheduler_t *s, tr_sequence_t *q)
{
    bool unique = tr_scheduler_unique(s, q);

    if (unique && tr_kv_swap_out(s->kv, q->kv_slot) == TR_OK) {
        tr_scheduler_stop(s, q);
        s->swaps++;
    } else {
        if (unique) {
            tr_scheduler_forget(s, q);
        }
        s->swaps += q->inputs_from < q->inputs_to; /* its rows are there */
        tr_scheduler_leave(s, q);
    }
    q->state = TR_SEQ_WAITING;
    /* mostly older than all that wait */
    tr_scheduler_insert_old(tr_scheduler_line(s, q), q);
    tr_fair_wait(q);
    q->request->preemptions++;
    s->preemptions++;
    s->changes++;
}

bool
tr_scheduler_outgrown(const tr_scheduler_t *s, const tr_sequence_t *q)
{
    return s->long_from != 0 && !q->is_long && q->computed != 0
           && tr_sequence_goal(q) > s->long_from;
}

/* What is cached of a sequence that grows beyond long_from is of no use: each
 * key is rotated as in a short one.  It waits again and is computed once more, as
 * after a preemption, with the frequencies of long ones. */
void
tr_scheduler_stretch(tr_scheduler_t *s)
{
    tr_sequence_t *q, *next;

    for (q = s->running.first; q != NULL && s->long_from != 0; q = next) {
        next = q->next;
        if (!tr_scheduler_outgrown(s, q) || q->under_way != 0) {
            continue;
        }
        if (tr_scheduler_unique(s, q)) {
            tr_scheduler_forget(s, q);
        }
        tr_scheduler_leave(s, q);
        q->state = TR_SEQ_WAITING;
        tr_scheduler_insert_old(&s->waiting, q);
        tr_fair_wait(q);
        s->stretches++;
        s->changes++;
    }
}

bool
tr_scheduler_blocked(const tr_scheduler_t *s, const tr_sequence_t *q)
{
    uint64_t full = q->request->writer->full_since_us;

    return tr_sequence_paused(q)
           || (full != 0 && s->now - full >= TR_SCHEDULER_FULL_US
               && !tr_request_detached(q->request));
}

tr_sequence_t *
tr_scheduler_idler(const tr_scheduler_t *s, bool prompt)
{
    tr_sequence_t *q = s->running.last;

    while (q != NULL
           && (!tr_scheduler_blocked(s, q) || (prompt && q->charge == 0))) {
        q = q->prev;
    }
    return q;
}

bool
tr_scheduler_unsure(tr_scheduler_t *s)
{
    s->unsure |= s->n_in_flight != 0 && !tr_kv_settled(s->kv);
    return s->unsure;
}

bool
tr_scheduler_ending(const tr_sequence_t *q)
{
    return q->ahead != 0 && tr_sequence_known(q) == q->cap;
}

/* The youngest choice of the request that runs most, where that is more than an
 * eighth of all that may run; NULL otherwise.  It is no older than `from`: those
 * before it may have joined the batch already. */
static tr_sequence_t *
tr_scheduler_largest(const tr_scheduler_t *s, const tr_sequence_t *from)
{
    tr_sequence_t *q, *largest = NULL;
    uint32_t most = s->max_num_seqs / 8;

    most = most != 0 ? most : 1;
    for (q = s->running.last; q != NULL; q = q->prev) {
        if (q->request->running_sequences > most) {
            most = q->request->running_sequences;
            largest = q;
        }
        if (q == from) {
            break;
        }
    }
    return largest;
}

/* Who makes way for q: q itself when it is the youngest.  NULL when that one
 * ends anyhow, or q is alone: then there never will be room, unless what is
 * under way ends it, or the cache has an answer to give. */
static tr_sequence_t *
tr_scheduler_victim(tr_scheduler_t *s, tr_sequence_t *q)
{
    tr_sequence_t *victim = tr_scheduler_idler(s, false);

    if (victim == NULL) {
        victim = tr_scheduler_largest(s, q);
    }
    if (victim == NULL) {
        victim = s->running.last;
    }
    if (victim == q && s->running.first == s->running.last) {
        if (s->n_in_flight != 0 || !tr_kv_settled(s->kv)) {
            s->unsure = true;
        } else {
            s->hopeless = q;
            s->why = TR_ERR_CONTEXT_LENGTH;
        }
        return NULL;
    }
    if (tr_scheduler_ending(victim)) {
        s->unsure = true;
        return NULL;
    }
    return victim;
}

bool
tr_scheduler_reserve(tr_scheduler_t *s, tr_sequence_t *q)
{
    while (tr_kv_reserve(s->kv, q->kv_slot, q->computed + 1) != TR_OK) {
        tr_sequence_t *victim;

        if (tr_scheduler_unsure(s)) {
            return false;
        }
        victim = tr_scheduler_victim(s, q);
        if (victim != NULL) {
            tr_scheduler_preempt(s, victim);
        }
        if (victim == q || victim == NULL) {
            return false;
        }
    }
    return true;
}

/* ---- compression -------------------------------------------------------- */

typedef tr_status_t (*tr_scheduler_f)(tr_scheduler_t *s, tr_sequence_t *q);

/* Does this with q's pages; younger ones make way. */
static bool
tr_scheduler_insist(tr_scheduler_t *s, tr_sequence_t *q, tr_scheduler_f f)
{
    for (;;) {
        tr_status_t rc = f(s, q);
        tr_sequence_t *victim;

        if (rc == TR_OK) {
            s->changes++;
            return true;
        }
        if (rc != TR_AGAIN) {
            s->hopeless = q;
            s->why = rc;
            return false;
        }
        if (tr_kv_compressing(s->kv, q->kv_slot) || tr_scheduler_unsure(s)) {
            return false; /* the answer comes with a batch */
        }
        victim = tr_scheduler_victim(s, q);
        if (victim == NULL || victim == q) {
            return false; /* its prompt is worth more than the wait */
        }
        tr_scheduler_preempt(s, victim);
    }
}

static tr_status_t
tr_scheduler_end_prompt(tr_scheduler_t *s, tr_sequence_t *q)
{
    tr_status_t rc = tr_kv_compress(s->kv, q->kv_slot, q->computed);

    if (rc == TR_OK) {
        tr_scheduler_discharge(s, q);
        tr_scheduler_keep_compressed(s, q);
    }
    return rc;
}

uint32_t
tr_scheduler_stage_end(const tr_scheduler_t *s, const tr_sequence_t *q,
                       uint32_t from)
{
    uint32_t stage = tr_kv_stages(s->kv, q->request->kv_policy);

    if (!q->staged || from >= q->uncompressed_len) {
        return UINT32_MAX;
    }
    return q->uncompressed_len - from <= stage - from % stage
               ? q->uncompressed_len
               : from - from % stage + stage;
}

void
tr_scheduler_recharge(tr_scheduler_t *s, tr_sequence_t *q)
{
    uint64_t borrowed = tr_kv_borrowed_pages(s->kv, q->kv_slot);
    uint64_t held = tr_kv_held_pages(s->kv, q->kv_slot), copy;

    /* what it borrows no longer is among those that it holds */
    held += borrowed < q->lent ? borrowed : q->lent;
    copy = q->charge + q->lent > held ? q->charge + q->lent - held : 0;
    s->promised += copy - q->copy;
    q->copy = copy;
}

bool
tr_scheduler_held_up(const tr_scheduler_t *s, const tr_sequence_t *q)
{
    return q->staged && q->computed < q->uncompressed_len
           && (tr_kv_stage_due(s->kv, q->kv_slot, q->computed)
               || tr_kv_reserved(s->kv, q->kv_slot) <= q->computed);
}

/* What is computed is compressed, and the next part gets pages. */
static tr_status_t
tr_scheduler_next_stage(tr_scheduler_t *s, tr_sequence_t *q)
{
    tr_status_t rc = TR_OK;

    if (tr_kv_stage_due(s->kv, q->kv_slot, q->computed)) {
        rc = tr_kv_stage(s->kv, q->kv_slot, q->computed);
    }
    if (rc == TR_OK) {
        rc = tr_kv_reserve(s->kv, q->kv_slot,
                           tr_scheduler_stage_end(s, q, q->computed));
    }
    tr_scheduler_recharge(s, q);
    return rc;
}

void
tr_scheduler_compress(tr_scheduler_t *s)
{
    tr_sequence_t *q, *next;

    s->stalled = false;
    for (q = s->running.first; q != NULL && s->hopeless == NULL && !s->unsure;
         q = next) {
        tr_scheduler_f f = tr_scheduler_complete(s, q) ? tr_scheduler_end_prompt
                           : tr_scheduler_held_up(s, q)
                               ? tr_scheduler_next_stage
                               : NULL;

        /* one that is blocked makes way for those that wait instead */
        if (f != NULL && !tr_scheduler_insist(s, q, f)
            && !tr_scheduler_blocked(s, q)) {
            s->stalled = true;
        }
        next = q->next; /* those after it may have been victims */
    }
}
