/*
 * Queues and batches (scheduler.h).  Batches in flight are in
 * scheduler_in_flight.c, who may start in scheduler_admission.c, the pages of who
 * runs in scheduler_pages.c.
 */
#include "scheduler_internal.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

tr_status_t
tr_scheduler_init(tr_scheduler_t *s, tr_kv_cache_t *kv, uint32_t max_num_seqs,
                  uint32_t max_batch_tokens, double prefill_kv_fraction)
{
    tr_kv_view_t view;
    uint32_t f;

    memset(s, 0, sizeof(*s));
    tr_kv_view(kv, &view);
    s->kv = kv;
    s->heads = view.layers * view.kv_heads;
    s->page_tokens = view.layout[0].tokens;
    s->prompt_pages_max = (uint64_t) (prefill_kv_fraction
                                      * (double) tr_kv_pages(kv));
    s->max_num_seqs = max_num_seqs;
    s->max_batch_tokens = max_batch_tokens;
    s->next_order = 1;
    s->fair = true;
    for (f = 0; f < TR_BATCHES_IN_FLIGHT; f++) {
        s->in_flight[f].chunks = calloc(max_num_seqs, sizeof(*s->chunks));
    }
    s->chunks = s->in_flight[0].chunks;
    s->scratch = calloc(max_num_seqs, sizeof(*s->scratch));
    s->slots = calloc(max_num_seqs, sizeof(*s->slots));
    s->lens = calloc(max_num_seqs, sizeof(*s->lens));
    s->granted = calloc(max_num_seqs, sizeof(*s->granted));
    if (s->in_flight[0].chunks == NULL || s->in_flight[1].chunks == NULL
        || s->scratch == NULL || s->slots == NULL || s->lens == NULL
        || s->granted == NULL || tr_fair_init(&s->clients) != TR_OK) {
        tr_scheduler_free(s);
        return TR_ERR_NOMEM;
    }
    return TR_OK;
}

void
tr_scheduler_free(tr_scheduler_t *s)
{
    uint32_t f;

    for (f = 0; f < TR_BATCHES_IN_FLIGHT; f++) {
        free(s->in_flight[f].chunks);
    }
    tr_fair_free(&s->clients);
    free(s->scratch);
    free(s->slots);
    free(s->lens);
    free(s->granted);
    memset(s, 0, sizeof(*s));
}

/* ---- lists -------------------------------------------------------------- */

/* Behind `before`, NULL: in front of all. */
static void
tr_list_link(tr_sequence_list_t *l, tr_sequence_t *before, tr_sequence_t *q)
{
    q->prev = before;
    q->next = before != NULL ? before->next : l->first;
    if (q->next != NULL) {
        q->next->prev = q;
    } else {
        l->last = q;
    }
    if (before != NULL) {
        before->next = q;
    } else {
        l->first = q;
    }
}

void
tr_scheduler_insert(tr_sequence_list_t *l, tr_sequence_t *q)
{
    tr_sequence_t *before = l->last;

    while (before != NULL && before->order > q->order) {
        before = before->prev;
    }
    tr_list_link(l, before, q);
}

void
tr_scheduler_insert_old(tr_sequence_list_t *l, tr_sequence_t *q)
{
    tr_sequence_t *after = l->first;

    while (after != NULL && after->order < q->order) {
        after = after->next;
    }
    tr_list_link(l, after != NULL ? after->prev : l->last, q);
}

void
tr_scheduler_unlink(tr_sequence_list_t *l, tr_sequence_t *q)
{
    if (q->prev != NULL) {
        q->prev->next = q->next;
    } else {
        l->first = q->next;
    }
    if (q->next != NULL) {
        q->next->prev = q->prev;
    } else {
        l->last = q->prev;
    }
    q->prev = q->next = NULL;
}

bool
tr_scheduler_fits(const tr_kv_cache_t *kv, const tr_request_t *r)
{
    uint32_t max_len = tr_kv_max_len(kv, r->kv_policy), i;

    for (i = 0; i < r->n_sequences; i++) {
        if (r->sequences[i].cap > max_len) {
            return false;
        }
    }
    return true;
}

/* Are the tokens that another engine sampled computed one by one?  Else they
 * are a part of the prompt, which several choices then could not share. */
static bool
tr_scheduler_steps(const tr_scheduler_t *s, const tr_request_t *r)
{
    return r->migrations != 0 && (s->replay_decode || r->n > 1)
           && tr_kv_exact(s->kv, r->kv_policy);
}

void
tr_scheduler_add(tr_scheduler_t *s, tr_request_t *r)
{
    bool steps = tr_scheduler_steps(s, r);
    uint32_t n = 0, i;

    for (i = 0; i < r->n_sequences; i++) {
        n += r->sequences[i].state != TR_SEQ_DONE; /* at another engine */
    }
    if (n == 0) {
        return;
    }
    r->client = tr_fair_join(&s->clients, s->fair ? r->tenant : 0, r->share,
                             s->fair ? r->tier : 0, n);
    for (i = 0; i < r->n_sequences; i++) {
        r->sequences[i].order = s->next_order++;
        r->sequences[i].exact = tr_kv_exact(s->kv, r->kv_policy);
        r->sequences[i].step_to = steps ? r->sequences[i].len - 1 : 0;
        if (r->sequences[i].state != TR_SEQ_DONE) {
            tr_scheduler_insert(&s->waiting, &r->sequences[i]);
            tr_fair_wait(&r->sequences[i]);
        }
    }
}

void
tr_scheduler_remove(tr_scheduler_t *s, tr_sequence_t *q)
{
    tr_scheduler_disown(s, q);
    if (s->lacking == q) {
        s->lacking = NULL;
    }
    if (q->state == TR_SEQ_RUNNING) {
        tr_scheduler_leave(s, q);
    } else if (q->state == TR_SEQ_WAITING) {
        tr_scheduler_unlink(tr_scheduler_line(s, q), q);
        tr_fair_unwait(q);
        if (q->kv_slot >= 0) { /* swapped out */
            tr_kv_close(s->kv, q->kv_slot);
            q->kv_slot = -1;
        }
    }
    tr_scheduler_drop_inputs(s, q);
    if (q->state != TR_SEQ_DONE) {
        tr_fair_leave(&s->clients, q->request->client, s->now);
    }
    q->state = TR_SEQ_DONE;
}

/* ---- what a sequence can do now ----------------------------------------- */

/* Tokens that are to be computed before something else must happen.  While a
 * prompt is echoed its last position waits: it gives the first output token.
 * With max_tokens 0 it is never computed, the others only for their scores.
 * The last token of all is never computed either; nor the newest one of a request
 * that may have no more. */
uint32_t
tr_sequence_goal(const tr_sequence_t *q)
{
    bool samples = q->request->params.max_tokens != 0;
    uint32_t goal;

    if (tr_sequence_echoes(q)) {
        goal = samples || q->prompt_scores != NULL ? q->prompt_len - 1 : 0;
    } else {
        goal = samples ? tr_sequence_known(q) : 0;
        if (goal == q->cap) {
            goal--;
        }
    }
    if (q->computed < q->uncompressed_len && goal > q->uncompressed_len) {
        goal = q->uncompressed_len; /* then it is compressed */
    }
    if (goal > q->prompt_len && q->computed < q->step_to) {
        goal = q->computed < q->prompt_len ? q->prompt_len : q->computed + 1;
    }
    if (goal >= q->prompt_len && tr_sequence_shares(q)) {
        goal = q->prompt_len - 1;
    }
    if (goal == tr_sequence_known(q) && tr_request_allowance(q->request) == 0) {
        goal--; /* the worker has not allowed the token that it would give */
    }
    return goal;
}

bool
tr_sequence_decodes(const tr_sequence_t *q)
{
    return q->computed + 1 == tr_sequence_known(q)
           && tr_sequence_goal(q) == tr_sequence_known(q);
}

static bool
tr_sequence_prefills(const tr_sequence_t *q)
{
    return q->computed < tr_sequence_goal(q) && !tr_sequence_steps(q)
           && q->computed + 1 != tr_sequence_known(q) && !tr_sequence_paused(q);
}

/* Room in o for n, `logprobs` of them with logprobs, the last of them q?  Asked
 * once a step: who was refused asks for no less the next time (and who has
 * logprobs for more), and each question to a full ring is memory that the worker
 * has to fetch again.  refused: o->full or o->spent. */
static bool
tr_scheduler_ask(const tr_scheduler_t *s, const tr_sequence_t *q,
                 uint64_t refused[2], uint32_t n, uint32_t logprobs)
{
    uint64_t *last = &refused[q->request->params.logprobs >= 0];

    if (refused[0] == s->turn || *last == s->turn) {
        return false;
    }
    if (tr_response_writer_has_room(q->request->writer, n, logprobs)) {
        return true;
    }
    *last = s->turn;
    return false;
}

bool
tr_scheduler_full(tr_scheduler_t *s, tr_sequence_t *q)
{
    tr_response_writer_t *o = q->request->writer;

    if (tr_request_detached(q->request)) {
        return false;
    }
    /* what is kept for batches under way is not the worker's fault */
    if (o->owed != 0
        || tr_scheduler_ask(s, q, o->full, tr_sequence_rows(q),
                            q->request->params.logprobs >= 0)) {
        o->full_since_us = 0;
        return false;
    }
    if (o->full_since_us == 0) {
        o->full_since_us = s->now;
    }
    return true;
}

/* Room in the response writer for q as one more of this batch? */
static bool
tr_scheduler_room(tr_scheduler_t *s, tr_sequence_t *q)
{
    tr_response_writer_t *o = q->request->writer;
    uint32_t logprobs = q->request->params.logprobs >= 0;

    if (tr_request_detached(q->request)) {
        return true;
    }
    if (o->turn != s->turn) {
        o->turn = s->turn;
        o->batch = o->batch_logprobs = 0;
    }
    return tr_scheduler_ask(s, q, o->spent, o->batch + tr_sequence_rows(q),
                            o->batch_logprobs + logprobs);
}

/* May q's request have one token more than this batch gives it? */
static bool
tr_scheduler_allowed(const tr_scheduler_t *s, const tr_sequence_t *q)
{
    const tr_request_t *r = q->request;

    return tr_request_allowance(r)
           > (r->sample_turn == s->turn ? r->samples : 0);
}

static void
tr_scheduler_count_sample(const tr_scheduler_t *s, tr_request_t *r)
{
    if (r->sample_turn != s->turn) {
        r->sample_turn = s->turn;
        r->samples = 0;
    }
    r->samples++;
}

/* The caller has asked for room. */
static void
tr_scheduler_add_chunk(tr_scheduler_t *s, tr_sequence_t *q, uint32_t n)
{
    tr_chunk_t *chunk = &s->chunks[s->n_chunks++];

    chunk->sequence = q;
    chunk->pos = q->computed;
    chunk->n = n;
    chunk->sample = q->computed + n == tr_sequence_known(q);
    chunk->score = q->prompt_scores != NULL && tr_sequence_echoes(q);
    chunk->keeps = chunk->returns = false;
    if (chunk->sample) {
        tr_scheduler_count_sample(s, q->request);
    }
    s->n_tokens += n;
    if (!tr_request_detached(q->request)) {
        q->request->writer->batch += tr_sequence_rows(q);
        q->request->writer->batch_logprobs += q->request->params.logprobs >= 0;
    }
}

bool
tr_scheduler_step(tr_scheduler_t *s, tr_sequence_t *q, uint32_t limit)
{
    if (s->n_tokens >= limit || !tr_scheduler_room(s, q)
        || (!tr_sequence_steps(q) && !tr_scheduler_allowed(s, q))) {
        return false;
    }
    tr_scheduler_add_chunk(s, q, 1);
    tr_scheduler_take_inputs(s, &s->chunks[s->n_chunks - 1]);
    return true;
}

/* ---- rows --------------------------------------------------------------- */

/* A batch of those that come back by their rows, if there are any: they made way,
 * and wait for nothing else. */
static bool
tr_scheduler_return_rows(tr_scheduler_t *s)
{
    tr_sequence_t *q;

    for (q = s->running.first; q != NULL && s->n_tokens < s->max_batch_tokens;
         q = q->next) {
        uint32_t n = tr_scheduler_returning(s, q);
        uint32_t left = s->max_batch_tokens - s->n_tokens;

        if (n != 0 && !tr_scheduler_full(s, q) && tr_scheduler_room(s, q)) {
            tr_scheduler_add_chunk(s, q, n < left ? n : left);
            s->chunks[s->n_chunks - 1].returns = true;
        }
    }
    return s->n_chunks != 0;
}

/* ---- decode ------------------------------------------------------------- */

/* May q decode now, if there is room in the cache?  Else *prompts counts it
 * when it has prompt tokens to compute. */
static bool
tr_scheduler_wants(tr_scheduler_t *s, tr_sequence_t *q, uint32_t *prompts)
{
    if (tr_sequence_paused(q) || tr_scheduler_complete(s, q)
        || tr_scheduler_held_up(s, q) || tr_kv_coming(s->kv, q->kv_slot)) {
        return false;
    }
    if (q->computed + 1 == q->prompt_len && tr_sequence_shares(q)) {
        q->offered = s->turn; /* its siblings are admitted in this turn */
        s->offers++;
        return false;
    }
    if (!tr_sequence_decodes(q) && !tr_sequence_steps(q)) {
        *prompts += tr_sequence_prefills(q);
        return false;
    }
    if (tr_scheduler_outgrown(s, q)) { /* its last token is under way */
        return false;
    }
    if (q->due_us > s->now) {
        if (s->next_due_us == 0 || q->due_us < s->next_due_us) {
            s->next_due_us = q->due_us;
        }
        return false;
    }
    return !tr_scheduler_full(s, q);
}

/* The sequences that can decode now, with room for their newest token: into
 * scratch, oldest first.  Who finds none takes it from younger ones, which then
 * fall out.  Returns how many; *prompts: how many others have prompt tokens to
 * compute. */
static uint32_t
tr_scheduler_decodable(tr_scheduler_t *s, uint32_t *prompts)
{
    tr_sequence_t *q;
    uint32_t n = 0, kept = 0, i;

    *prompts = 0;
    for (q = s->running.first; q != NULL; q = q->next) {
        if (tr_scheduler_wants(s, q, prompts)) {
            s->slots[n] = q->kv_slot;
            s->lens[n] = q->computed + 1;
            s->scratch[n++] = q;
        }
    }
    tr_kv_reserve_batch(s->kv, s->slots, s->lens, n, s->granted);
    for (i = 0; i < n && !s->unsure; i++) {
        q = s->scratch[i];
        if (q->state == TR_SEQ_RUNNING
            && (s->granted[i] == TR_OK || tr_scheduler_reserve(s, q))) {
            s->scratch[kept++] = q;
        }
    }
    return kept;
}

/* Chunks of one token each, up to `limit`.  Whoever is left out for want of
 * room in the batch or in a response writer is first in the next step; of a
 * client that had more rows than it may, the first of these. */
static void
tr_scheduler_decode(tr_scheduler_t *s, uint32_t n, uint32_t limit)
{
    uint64_t resume = 0;
    uint32_t first = 0, at, rounds = n, i;

    while (first < n && s->scratch[first]->order < s->resume_order) {
        first++;
    }
    at = first;
    for (i = 0; i < rounds; i++) {
        tr_sequence_t *q;

        at = at < n ? at : 0;
        q = s->scratch[at++];
        if ((q->order < q->request->client->resume) != (i >= n)) {
            rounds = 2 * n; /* in the other round */
            continue;
        }
        if (!tr_scheduler_rows_left(s, q)) {
            tr_scheduler_took_row(s, q, false);
        } else if (tr_scheduler_step(s, q, limit)) {
            tr_scheduler_took_row(s, q, true);
        } else if (resume == 0) {
            resume = q->order;
        }
    }
    for (i = 0; i < n; i++) {
        tr_client_t *k = s->scratch[i]->request->client;

        k->resume = k->turn == s->turn ? k->left_out : 0;
    }
    s->resume_order = resume;
}

/* ---- prompts ------------------------------------------------------------ */

static uint32_t
tr_scheduler_prompts(tr_scheduler_t *s)
{
    tr_sequence_t *q;
    uint32_t n = 0;

    for (q = s->running.first; q != NULL; q = q->next) {
        if (tr_sequence_prefills(q) && !tr_scheduler_held_up(s, q)
            && tr_scheduler_returning(s, q) == 0) {
            s->scratch[n++] = q;
        }
    }
    return n;
}

/* It goes on from another engine: what it computes is no work for a client, who
 * waits for its next token. */
static bool
tr_sequence_moved(const tr_sequence_t *q)
{
    return q->request->migrations != 0;
}

/* Is it q's turn before that of the other, which is older?  Of those that moved,
 * the one that is ready first: so most of them wait least. */
static bool
tr_scheduler_before(const tr_sequence_t *q, const tr_sequence_t *other)
{
    const tr_client_t *k = q->request->client, *l = other->request->client;

    if (tr_sequence_moved(q) && tr_sequence_moved(other)) {
        return tr_sequence_goal(q) - q->computed
               < tr_sequence_goal(other) - other->computed;
    }
    if (k->served != l->served) {
        return k->served < l->served;
    }
    if (k != l) { /* one has just come */
        return k->coming < l->coming;
    }
    return q->request->prefill_turn < other->request->prefill_turn;
}

/* The next prompt of the n in scratch, which are sorted by age.  They become one
 * less. */
static tr_sequence_t *
tr_scheduler_take_prompt(tr_scheduler_t *s, uint32_t *n)
{
    uint32_t best = 0, i;
    tr_sequence_t *q;

    for (i = 1; i < *n; i++) {
        if (tr_scheduler_before(s->scratch[i], s->scratch[best])) {
            best = i;
        }
    }
    q = s->scratch[best];
    memmove(&s->scratch[best], &s->scratch[best + 1],
            (--*n - best) * sizeof(*s->scratch));
    return q;
}

/* Are the n prompts in scratch of several clients? */
static bool
tr_scheduler_mixed(const tr_scheduler_t *s, uint32_t n)
{
    uint32_t i;

    for (i = 1; i < n; i++) {
        if (s->scratch[i]->request->client != s->scratch[0]->request->client) {
            return true;
        }
    }
    return false;
}

/* Of a batch, what those that moved get: after the loss of an engine there may
 * be many, and half of it is for others, where there are such. */
static uint32_t
tr_scheduler_moved_part(const tr_scheduler_t *s, uint32_t n)
{
    uint32_t i;

    for (i = 0; i < n; i++) {
        if (!tr_sequence_moved(s->scratch[i])) {
            return (s->max_batch_tokens + 1) / 2;
        }
    }
    return s->max_batch_tokens;
}

/* Chunks of prompts, in turns between clients and their requests. */
static void
tr_scheduler_prefill(tr_scheduler_t *s)
{
    uint32_t n = tr_scheduler_prompts(s), all = s->max_batch_tokens, most = all;
    uint32_t moved = tr_scheduler_moved_part(s, n);
    const tr_client_t *least = NULL;
    bool mixed = tr_scheduler_mixed(s, n);

    if (s->several && s->n_tokens + (all + 3) / 4 < all) {
        most = s->n_tokens + (all + 3) / 4;
    }
    while (n != 0 && s->n_tokens < all) {
        tr_sequence_t *q = tr_scheduler_take_prompt(s, &n);
        uint32_t end = tr_scheduler_stage_end(s, q, q->computed), left;
        uint32_t want = tr_sequence_goal(q);

        if (q->computed < q->inputs_from) { /* what follows has its rows */
            end = end < q->inputs_from ? end : q->inputs_from;
        }
        want = (want < end ? want : end) - q->computed;

        if (mixed && least == NULL) {
            least = q->request->client;
        }
        left = q->request->client == least ? all : most;
        left = left > s->n_tokens ? left - s->n_tokens : 0;
        if (tr_sequence_moved(q) && left > moved) {
            left = moved;
        }
        if (q->computed + want == tr_sequence_known(q)
            && !tr_scheduler_allowed(s, q)) {
            want--; /* its last position gives a token */
        }
        if (want != 0 && left != 0 && !tr_scheduler_full(s, q)
            && tr_scheduler_room(s, q)) {
            want = want < left ? want : left;
            tr_scheduler_add_chunk(s, q, want);
            tr_scheduler_take_inputs(s, &s->chunks[s->n_chunks - 1]);
            q->request->prefill_turn = ++s->prompt_chunks;
            moved -= tr_sequence_moved(q) ? want : 0;
        }
    }
}

/* Those that waited for their siblings go on, whether these came or not. */
static void
tr_scheduler_offered(tr_scheduler_t *s)
{
    tr_sequence_t *q;

    for (q = s->running.first; q != NULL && s->offers != 0; q = q->next) {
        if (q->offered == s->turn) {
            s->offers--;
            if (tr_sequence_decodes(q) && !tr_scheduler_full(s, q)) {
                tr_scheduler_step(s, q, s->max_batch_tokens);
            }
        }
    }
}

/* The batch is given up: who was offered to its siblings still is. */
static void
tr_scheduler_withdraw(tr_scheduler_t *s)
{
    tr_sequence_t *q;

    for (q = s->running.first; q != NULL && s->offers != 0; q = q->next) {
        if (q->offered == s->turn) {
            s->offers--;
            q->offered = 0;
        }
    }
}

void
tr_scheduler_compose(tr_scheduler_t *s, uint64_t now)
{
    uint32_t n = 0, prompts = 0, limit = s->max_batch_tokens;
    uint64_t preemptions;

    assert(s->n_in_flight < TR_BATCHES_IN_FLIGHT);
    s->turn++;
    s->now = now;
    s->chunks = s->in_flight[tr_scheduler_next(s)].chunks;
    s->n_chunks = 0;
    s->n_tokens = 0;
    s->next_due_us = 0;
    s->offers = 0;
    s->hopeless = NULL;
    s->unsure = false;
    s->several = s->fair && tr_fair_several(&s->clients, now);
    tr_kv_time(s->kv, now);
    tr_scheduler_look(s);
    tr_scheduler_make_way(s);
    preemptions = s->preemptions;
    tr_scheduler_stretch(s);
    tr_scheduler_compress(s);
    if (s->hopeless == NULL && !s->unsure && tr_scheduler_return_rows(s)) {
        return;
    }
    if (s->hopeless == NULL && !s->unsure) {
        n = tr_scheduler_decodable(s, &prompts);
    }
    /* an end comes before any chunk of it */
    if (s->hopeless != NULL || s->unsure) {
        tr_scheduler_withdraw(s);
        return;
    }
    s->prompts = prompts;
    /* prompts get an eighth of the batch even where decoding could fill it */
    if (prompts != 0 && limit > 1) {
        limit -= (limit + 7) / 8;
    }
    tr_scheduler_decode(s, n, limit);
    if (s->preemptions == preemptions && !s->stalled) {
        prompts += tr_scheduler_admit(s);
    }
    tr_scheduler_offered(s);
    if (prompts != 0) {
        tr_scheduler_prefill(s);
    }
}

/* ---- checks ------------------------------------------------------------- */

static bool
tr_list_sound(const tr_scheduler_t *s, const tr_sequence_list_t *l,
              enum tr_sequence_state state, bool slot, uint32_t *n)
{
    const tr_sequence_t *q, *before = NULL;

    *n = 0;
    for (q = l->first; q != NULL; before = q, q = q->next) {
        if (q->state != state || q->prev != before
            || (before != NULL && before->order >= q->order)
            || (q->kv_slot >= 0) != slot || (!slot && q->computed != 0)
            || (slot && state == TR_SEQ_WAITING && q->computed == 0)
            || (state == TR_SEQ_WAITING && q->charge != 0)
            || !tr_scheduler_in_flight_sound(s, q)) {
            return false;
        }
        (*n)++;
    }
    return l->last == before;
}

bool
tr_scheduler_sound(const tr_scheduler_t *s)
{
    uint32_t waiting, swapped, running, requests = 0, i;
    uint64_t charge = 0, copy = 0, uncharged = 0;
    const tr_sequence_t *q;

    if (!tr_list_sound(s, &s->waiting, TR_SEQ_WAITING, false, &waiting)
        || !tr_list_sound(s, &s->swapped, TR_SEQ_WAITING, true, &swapped)
        || !tr_list_sound(s, &s->running, TR_SEQ_RUNNING, true, &running)
        || running != s->n_running || running > s->max_num_seqs
        || s->n_tokens > s->max_batch_tokens) {
        return false;
    }
    for (q = s->running.first; q != NULL; q = q->next) {
        const tr_request_t *r = q->request;
        uint32_t own = 0, first = 1;

        charge += q->charge;
        copy += q->copy;
        uncharged += q->uncharged;
        for (i = 0; i < r->n_sequences; i++) {
            own += r->sequences[i].state == TR_SEQ_RUNNING;
            first &= &r->sequences[i] >= q
                     || r->sequences[i].state != TR_SEQ_RUNNING;
        }
        if (own != r->running_sequences) {
            return false;
        }
        requests += first;
    }
    return requests == s->n_running_requests && charge == s->prompt_pages
           && copy == s->promised && tr_kv_sound(s->kv)
           && tr_fair_sound(&s->clients, waiting + swapped, running, uncharged);
}
