/*
 * Who may start: waiting sequences get a slot and pages, those that were swapped
 * out come back (scheduler.h).
 *
 * A sequence is charged for all that its prompt takes until it is compressed, less
 * what it shares with others, so that whoever was admitted can end: what is promised
 * is not given to the next one (tr_scheduler_affords).  Behind a compressed prefix
 * that is what it computes at 16 bits and compresses, and of the prefix the pages
 * that it has copies of; those that it borrows stay as they are.  Should it absorb
 * their lender they become its own, and are not charged for then.  Whose turn it
 * is, fair.h says (tr_scheduler_admit).
 */
#include "scheduler_internal.h"

#include "engine/kv/kv_store.h"

/* Its prompt is still computed as one: neither compressed nor recomputed with
 * what was said since. */
static bool
tr_sequence_fresh(const tr_sequence_t *q)
{
    return q->uncompressed_len == 0 || q->uncompressed_len == q->prompt_len;
}

/* A running choice of the same prompt that q can copy now or later, the one
 * that has computed most. */
static tr_sequence_t *
tr_scheduler_sibling(const tr_sequence_t *q)
{
    tr_request_t *r = q->request;
    tr_sequence_t *best = NULL;
    uint32_t first = q->choice / r->n * r->n, i;

    if (r->running_sequences == 0 || q->prompt_len == 1 || q->staged) {
        return NULL;
    }
    for (i = first; i < first + r->n; i++) {
        tr_sequence_t *other = &r->sequences[i];

        if (other->state != TR_SEQ_RUNNING || other->is_long != q->is_long
            || (other->exact
                && (other->computed >= q->prompt_len || !tr_sequence_fresh(q)
                    || !tr_sequence_fresh(other)))) {
            continue;
        }
        if (best == NULL || other->computed > best->computed) {
            best = other;
        }
    }
    return best;
}

bool
tr_sequence_shares(const tr_sequence_t *q)
{
    const tr_request_t *r = q->request;
    uint32_t first, i;

    if (!q->exact || q->staged || q->offered != 0
        || q->computed >= q->prompt_len || q->prompt_len == 1 || r->n == 1
        || !tr_sequence_fresh(q)) {
        return false;
    }
    first = q->choice / r->n * r->n;
    for (i = first; i < first + r->n; i++) {
        const tr_sequence_t *other = &r->sequences[i];

        if (other->state == TR_SEQ_WAITING && other->kv_slot < 0
            && tr_sequence_fresh(other)) {
            return true;
        }
    }
    return false;
}

/* A slot; those that are swapped out have some, too, and a blocked one of them
 * loses it where there is no other, or where nothing runs the youngest. */
static int32_t
tr_scheduler_open(tr_scheduler_t *s, const tr_sequence_t *q)
{
    int32_t slot = tr_kv_open(s->kv, q->request->kv_policy);
    tr_sequence_t *other = s->swapped.last;

    if (slot < 0 && tr_kv_store_yield(s->kv)) { /* that one comes from a file */
        slot = tr_kv_open(s->kv, q->request->kv_policy);
    }
    if (slot >= 0) {
        return slot;
    }
    while (other != NULL && !tr_scheduler_blocked(s, other)) {
        other = other->prev;
    }
    if (other == NULL && s->n_running == 0) {
        other = s->swapped.last;
    }
    if (other == NULL) {
        return -1;
    }
    tr_scheduler_unlink(&s->swapped, other);
    tr_fair_unwait(other);
    tr_scheduler_forget(s, other);
    tr_scheduler_lose(s, other);
    tr_scheduler_insert_old(&s->waiting, other);
    tr_fair_wait(other);
    return tr_kv_open(s->kv, q->request->kv_policy);
}

/* q, out of the list that it waited in. */
static void
tr_scheduler_run(tr_scheduler_t *s, tr_sequence_t *q)
{
    tr_fair_unwait(q);
    tr_scheduler_insert(&s->running, q);
    q->state = TR_SEQ_RUNNING;
    q->lacking_since_us = 0;
    tr_fair_run(q);
    s->n_running++;
    if (q->request->running_sequences++ == 0) {
        s->n_running_requests++;
    }
}

/* What is computed of q as one prompt, also by a policy (Quest) that reads in part
 * behind it: all that is known, or what is in front of what comes one by one. */
static uint32_t
tr_scheduler_prompt(const tr_sequence_t *q)
{
    return q->uncompressed_len != 0 ? q->uncompressed_len
           : q->step_to != 0        ? q->prompt_len
                                    : q->len;
}

/* How far q, of which `shared` tokens are there, gets pages at its start. */
static uint32_t
tr_scheduler_first_end(const tr_scheduler_t *s, const tr_sequence_t *q,
                       uint32_t shared)
{
    return q->staged ? tr_scheduler_stage_end(s, q, shared)
                     : tr_scheduler_prompt(q);
}

/* Gives q a slot with pages for its prompt (and for all it has said, where
 * nothing is compressed), the prompt copied from a sibling if there is one, else
 * what was found of it.  There are pages enough. */
static tr_status_t
tr_scheduler_start(tr_scheduler_t *s, tr_sequence_t *q,
                   const tr_sequence_t *sibling, tr_kv_found_t *found)
{
    int32_t slot = tr_scheduler_open(s, q);
    uint32_t shared = sibling != NULL ? q->prompt_len - 1 : 0;
    const tr_kv_policy_t *policy;
    tr_status_t rc = TR_OK;
    tr_prefix_key_t key;
    bool later;

    if (slot < 0) {
        return TR_AGAIN;
    }
    policy = tr_kv_slot_policy(s->kv, slot);
    if (policy->n_levels != 0 && q->uncompressed_len == 0) {
        q->uncompressed_len = tr_sequence_first_len(q);
    }
    later = policy->n_levels != 0 && shared == 0;
    if (!later) {
        tr_kv_prompt(s->kv, slot, tr_scheduler_prompt(q));
    }
    if (shared != 0) {
        rc = tr_kv_fork(s->kv, sibling->kv_slot, slot, shared);
    } else if (tr_scheduler_reuses(s, q)) {
        tr_scheduler_count_found(s, q, found);
        shared = found->tokens;
        key = tr_scheduler_key(s, q);
        rc = tr_kv_adopt(s->kv, slot, &key, found);
    }
    if (rc == TR_OK && later) { /* behind what it adopted */
        tr_kv_prompt(s->kv, slot, q->uncompressed_len);
    }
    if (rc == TR_OK) {
        rc = tr_kv_reserve(s->kv, slot, tr_scheduler_first_end(s, q, shared));
    }
    if (rc != TR_OK) {
        tr_kv_close(s->kv, slot);
        return rc;
    }
    tr_scheduler_unlink(&s->waiting, q);
    q->kv_slot = slot;
    q->computed = shared;
    if (q->staged) {
        tr_scheduler_recharge(s, q);
    }
    tr_scheduler_run(s, q);
    if (!q->expected && q->request->migrations == 0 && q->prompt_len > shared) {
        tr_fair_expect(q, q->prompt_len - shared);
    }
    q->expected = true;
    return TR_OK;
}

/* Pages at 16 bits. */
static uint64_t
tr_scheduler_uncompressed(const tr_scheduler_t *s, uint32_t n)
{
    return (uint64_t) s->heads * ((n + s->page_tokens - 1) / s->page_tokens);
}

/* Why there is no room for `pages`, of which `prompt` are for a prompt. */
static void
tr_scheduler_note_lack(tr_scheduler_t *s, uint64_t pages, uint64_t prompt,
                       bool prompts)
{
    uint64_t over;

    if (!prompts) {
        over = s->prompt_pages + prompt - s->prompt_pages_max;
        s->lack = TR_LACK_PROMPTS;
        s->lack_pages = over < s->prompt_pages ? over : s->prompt_pages;
    } else if (s->n_running >= s->max_num_seqs) {
        s->lack = TR_LACK_PLACE;
        s->lack_pages = 0;
    } else {
        s->lack = TR_LACK_PAGES;
        s->lack_pages = pages - tr_kv_free_pages(s->kv);
    }
}

/* Are there a slot and `need` pages, of which `prompt` for a prompt that will
 * be compressed?  Blocked sequences make way; what those that run were
 * promised, and `keep` for their next tokens, is not touched. */
static bool
tr_scheduler_affords(tr_scheduler_t *s, uint64_t need, uint64_t keep,
                     uint64_t prompt)
{
    for (;;) {
        bool prompts = prompt == 0 || s->prompt_pages == 0
                       || s->prompt_pages + prompt <= s->prompt_pages_max;
        uint64_t pages = need + s->promised + (s->n_running == 0 ? 0 : keep);
        tr_sequence_t *idler;

        if (prompts && s->n_running < s->max_num_seqs
            && pages <= tr_kv_free_pages(s->kv)) {
            s->lack = TR_LACK_OTHER; /* should it not run all the same */
            return true;
        }
        idler = tr_scheduler_idler(s, !prompts);
        if (idler == NULL) {
            tr_scheduler_note_lack(s, pages, prompt, prompts);
            return false;
        }
        tr_scheduler_preempt(s, idler);
    }
}

/* The pages that q takes at its start, less those that it shares, with those
 * that its compressed copy is expected to take later.  A prompt in stages is
 * charged for what it takes at a time beside what it borrows. */
static bool
tr_scheduler_affords_start(tr_scheduler_t *s, tr_sequence_t *q, uint64_t shared,
                           const tr_kv_found_t *found)
{
    uint32_t n = q->uncompressed_len != 0 ? q->uncompressed_len
                                          : tr_sequence_first_len(q);
    uint64_t uncompressed = tr_scheduler_uncompressed(s, n);
    uint64_t all = tr_kv_pages_for(s->kv, q->request->kv_policy, n);
    uint64_t copy = all > uncompressed ? all - uncompressed : 0, charge = all;

    if (q->staged) {
        charge = copy = tr_kv_pages_behind(s->kv, q->request->kv_policy, n,
                                           found);
    }
    if (copy == 0) { /* stays at 16 bits */
        return tr_scheduler_affords(s,
                                    tr_scheduler_uncompressed(s, q->len)
                                        - shared,
                                    tr_kv_pages(s->kv) / 100, 0);
    }
    charge -= found->kept != 0 && !q->staged ? shared : 0;
    if (!tr_scheduler_affords(s, charge, tr_kv_pages(s->kv) / 100, charge)) {
        return false;
    }
    q->charge = charge;
    q->copy = copy;
    q->lent = q->staged && charge < all ? found->lent : 0;
    return true;
}

/* q, which was swapped out, comes back.  False: it finds no room. */
static bool
tr_scheduler_return(tr_scheduler_t *s, tr_sequence_t *q)
{
    uint64_t keep = tr_kv_pages(s->kv) / 100;

    /* or it would be swapped out at once again */
    keep = keep > 2ull * s->heads ? keep : 2ull * s->heads;
    if (!tr_scheduler_affords(s, tr_kv_swapped_pages(s->kv, q->kv_slot), keep,
                              0)
        || tr_kv_swap_in(s->kv, q->kv_slot) != TR_OK) {
        return false;
    }
    tr_scheduler_unlink(&s->swapped, q);
    tr_scheduler_run(s, q);
    s->changes++;
    if (s->n_tokens < s->max_batch_tokens && tr_sequence_decodes(q)
        && !tr_kv_coming(s->kv, q->kv_slot)
        && tr_kv_reserve(s->kv, q->kv_slot, tr_sequence_known(q)) == TR_OK) {
        tr_scheduler_step(s, q, s->max_batch_tokens);
    }
    return true;
}

/* q's request runs already, and one more of it would shut others out. */
static bool
tr_scheduler_shuts_out(const tr_scheduler_t *s, const tr_sequence_t *q)
{
    uint32_t runs = q->request->running_sequences, most = s->max_num_seqs;

    if (runs == 0) {
        return false;
    }
    if (most >= 8 && s->n_running + most / 8 >= most) {
        return true;
    }
    /* mostly the sequences of a request wait side by side */
    return runs >= (most + 1) / 2
           && s->waiting.first->request != s->waiting.last->request;
}

/* The pages that q need not be given: those of its sibling, or of what it
 * found. */
static uint64_t
tr_scheduler_shared(const tr_scheduler_t *s, const tr_sequence_t *q,
                    const tr_sequence_t *sibling, const tr_kv_found_t *found)
{
    return sibling != NULL && q->prompt_len > 1
               ? tr_kv_fork_shares(s->kv, sibling->kv_slot, q->prompt_len - 1)
               : found->pages;
}

/* Admits q, of which found is pinned.  False: there is no room. */
static bool
tr_scheduler_admit_one(tr_scheduler_t *s, tr_sequence_t *q,
                       const tr_sequence_t *sibling, tr_kv_found_t *found)
{
    if (!tr_scheduler_affords_start(s, q,
                                    tr_scheduler_shared(s, q, sibling, found),
                                    found)) {
        return false;
    }
    s->prompt_pages += q->charge;
    s->promised += q->copy;
    if (tr_scheduler_start(s, q, sibling, found) != TR_OK) {
        tr_scheduler_discharge(s, q);
        return false;
    }
    return true;
}

enum tr_try {
    TR_TRY_RUNS,
    TR_TRY_LATER, /* what it shares is being computed, or loaded */
    TR_TRY_NO_ROOM
};

/* Is q's prompt longer than what a stage leaves at 16 bits? */
static bool
tr_scheduler_has_stages(const tr_scheduler_t *s, const tr_sequence_t *q)
{
    uint32_t stage = tr_kv_stages(s->kv, q->request->kv_policy);
    uint32_t n = q->uncompressed_len != 0 ? q->uncompressed_len
                                          : tr_sequence_first_len(q);

    return stage != 0 && n > stage;
}

/* Admits q, which waits and has no slot. */
static enum tr_try
tr_scheduler_try(tr_scheduler_t *s, tr_sequence_t *q, uint32_t offering)
{
    tr_sequence_t *sibling;
    tr_kv_found_t found;
    bool admitted;

    q->is_long = s->long_from != 0 && tr_sequence_known(q) > s->long_from;
    q->staged = tr_scheduler_has_stages(s, q);
    sibling = tr_scheduler_sibling(q);
    if (sibling != NULL && sibling->computed + 1 < q->prompt_len) {
        return TR_TRY_LATER; /* its prompt is being computed */
    }
    tr_scheduler_find(s, sibling == NULL ? q : NULL, &found);
    if (sibling == NULL && tr_scheduler_reads(s, q)
        && tr_scheduler_awaits(s, q, found.tokens, offering)) {
        tr_kv_drop_found(s->kv, &found);
        return TR_TRY_LATER; /* so is what it begins with */
    }
    if (sibling == NULL && tr_scheduler_looks(s, q, found.tokens)) {
        tr_kv_drop_found(s->kv, &found);
        return TR_TRY_LATER; /* a file may have more of it */
    }
    admitted = tr_scheduler_admit_one(s, q, sibling, &found);
    if (!admitted && (found.match.part_tokens != 0 || found.kept != 0)) {
        /* what it pins itself must not be what it lacks */
        tr_kv_drop_part(s->kv, &found);
        admitted = tr_scheduler_admit_one(s, q, sibling, &found);
    }
    tr_kv_drop_found(s->kv, &found);
    return admitted ? TR_TRY_RUNS : TR_TRY_NO_ROOM;
}

/* q found no room: who waits longest for it may take some (make_way). */
static void
tr_scheduler_lacks(tr_scheduler_t *s, tr_sequence_t *q)
{
    if (q->lacking_since_us == 0) {
        q->lacking_since_us = s->now;
    }
    s->lacking = q;
}

uint32_t
tr_scheduler_admit(tr_scheduler_t *s)
{
    uint32_t n = 0, offering = tr_scheduler_offering(s);
    tr_sequence_t *q;
    enum tr_try what;

    tr_fair_walk(&s->clients);
    while ((q = tr_fair_next(&s->clients)) != NULL) {
        bool swapped = q->kv_slot >= 0;

        if ((!swapped && q->ahead != 0) || tr_sequence_paused(q)
            || tr_scheduler_full(s, q)) {
            continue;
        }
        if (tr_scheduler_holds_back(s, q)) {
            tr_fair_skip(q->request->client);
            continue;
        }
        if (!swapped && tr_scheduler_shuts_out(s, q)) {
            continue;
        }
        if (swapped) {
            what = tr_scheduler_return(s, q) ? TR_TRY_RUNS : TR_TRY_NO_ROOM;
        } else {
            what = tr_scheduler_try(s, q, offering);
        }
        if (what == TR_TRY_NO_ROOM) {
            tr_scheduler_lacks(s, q);
            break; /* nobody overtakes it */
        }
        if (what == TR_TRY_LATER || swapped) {
            continue;
        }
        n++;
        if (offering < s->max_num_seqs && tr_scheduler_offers(s, q)) {
            s->scratch[offering++] = q;
        }
        if (tr_sequence_decodes(q)) {
            tr_scheduler_step(s, q, s->max_batch_tokens);
        }
    }
    return n;
}
