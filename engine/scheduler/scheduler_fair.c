/*
 * Fairness among clients, where it is more than an order (scheduler.h): places
 * that are kept for those below their share, who makes way for one that waits,
 * and how much of a batch a client gets while several are around.
 */
#include "scheduler_internal.h"

bool
tr_scheduler_holds_back(const tr_scheduler_t *s, const tr_sequence_t *q)
{
    const tr_client_t *k = q->request->client;
    uint32_t most = s->max_num_seqs;

    return s->several && most >= 8 && s->n_running + most / 8 >= most
           && k->running >= tr_fair_part(&s->clients, k, most, s->now);
}

/* ---- who is there ------------------------------------------------------- */

/* Nothing keeps q from going on but want of room. */
static bool
tr_scheduler_able(tr_scheduler_t *s, tr_sequence_t *q)
{
    return !tr_scheduler_blocked(s, q)
           || (!tr_sequence_paused(q) && !tr_scheduler_full(s, q));
}

void
tr_scheduler_look(tr_scheduler_t *s)
{
    uint32_t left = s->clients.n_inside;
    tr_sequence_t *q;
    tr_client_t *k;

    if (!s->fair) {
        return;
    }
    for (q = s->running.first; q != NULL && left != 0; q = q->next) {
        k = q->request->client;
        if (k->seen != s->turn && tr_scheduler_able(s, q)) {
            k->seen = s->turn;
            left--;
        }
    }
    for (k = s->clients.inside; k != NULL && left != 0; k = k->next) {
        for (q = k->first; q != NULL && k->seen != s->turn; q = q->line_next) {
            if (tr_scheduler_able(s, q)) {
                k->seen = s->turn;
                left--;
            }
        }
    }
    tr_fair_turn(&s->clients, s->turn);
}

/* ---- who makes way ------------------------------------------------------ */

/* Will k still have no less than q's client, by their shares, when q has come
 * instead of one of k with so many tokens? */
static bool
tr_scheduler_keeps_more(const tr_scheduler_t *s, const tr_client_t *k,
                        uint32_t tokens, const tr_sequence_t *q)
{
    const tr_client_t *poor = q->request->client;

    if (s->lack == TR_LACK_PLACE) {
        return (uint64_t) (k->running - 1) * poor->share
               >= (uint64_t) (poor->running + 1) * k->share;
    }
    return (k->held - tokens) * poor->share >= (poor->held + q->len) * k->share;
}

/* What v gives of what is lacking, in pages: what it holds, and its room for a
 * copy that was promised. */
static uint64_t
tr_scheduler_gives(const tr_scheduler_t *s, const tr_sequence_t *v)
{
    tr_kv_usage_t u;

    if (s->lack != TR_LACK_PAGES) {
        return v->charge;
    }
    tr_kv_usage(s->kv, v->kv_slot, &u);
    return u.bytes / tr_kv_page_bytes(s->kv) + v->copy;
}

/* What each client could give q: from its youngest sequence on, as long as it
 * keeps more.  It had to be served as much, and something of it goes on. */
static void
tr_scheduler_count_spare(tr_scheduler_t *s, const tr_sequence_t *q)
{
    const tr_client_t *poor = q->request->client;
    tr_sequence_t *v;
    tr_client_t *k;

    for (k = s->clients.inside; k != NULL; k = k->next) {
        k->held = k->spare = 0;
        k->youngest = NULL;
    }
    for (v = s->running.first; v != NULL; v = v->next) {
        v->request->client->held += v->computed;
    }
    for (v = s->running.last; v != NULL; v = v->prev) {
        k = v->request->client;
        if (k == poor || k->running < 2 || k->served < poor->served
            || tr_scheduler_ending(v)
            || (s->lack == TR_LACK_PROMPTS && v->charge == 0)
            || !tr_scheduler_keeps_more(s, k, v->computed, q)) {
            continue;
        }
        if (k->youngest == NULL) {
            k->youngest = v;
        }
        k->held -= v->computed;
        k->spare += tr_scheduler_gives(s, v);
    }
}

void
tr_scheduler_make_way(tr_scheduler_t *s)
{
    const tr_client_t *rich = NULL, *k;
    tr_sequence_t *q = s->lacking;
    uint64_t spare = 0;

    s->lacking = NULL;
    if (!s->fair || q == NULL || q->state != TR_SEQ_WAITING
        || s->lack == TR_LACK_OTHER
        || s->now - q->lacking_since_us < TR_SCHEDULER_PATIENCE_US) {
        return;
    }
    q->lacking_since_us = s->now; /* it waits for what this brings */
    tr_scheduler_count_spare(s, q);
    for (k = s->clients.inside; k != NULL; k = k->next) {
        spare += k->spare;
        if (k->youngest != NULL && (rich == NULL || k->served > rich->served)) {
            rich = k;
        }
    }
    if (rich != NULL && spare >= s->lack_pages) {
        tr_scheduler_preempt(s, rich->youngest);
    }
}

/* ---- parts of a batch --------------------------------------------------- */

/* q's client, whose figures are of this turn. */
static tr_client_t *
tr_scheduler_client(const tr_scheduler_t *s, const tr_sequence_t *q)
{
    tr_client_t *k = q->request->client;

    if (k->turn != s->turn) {
        k->turn = s->turn;
        k->rows = 0;
        k->left_out = 0;
    }
    return k;
}

/* A crowd of choices takes turns while a prompt of somebody else is computed or
 * waits. */
static bool
tr_scheduler_rests(const tr_scheduler_t *s, const tr_sequence_t *q,
                   uint32_t most)
{
    const tr_request_t *r = q->request;
    uint32_t turns;

    if (r->running_sequences <= most) {
        return false; /* nearly always, and without a division */
    }
    turns = (r->running_sequences + most - 1) / most;
    return (q->choice + s->turn) % turns != 0
           && (s->prompts != 0
               || (s->waiting.first != NULL
                   && (s->waiting.first->request != r
                       || s->waiting.last->request != r)));
}

bool
tr_scheduler_rows_left(const tr_scheduler_t *s, const tr_sequence_t *q)
{
    uint32_t most = (s->max_batch_tokens + 7) / 8;

    return !s->fair
           || ((!s->several || tr_scheduler_client(s, q)->rows < most)
               && !tr_scheduler_rests(s, q, most));
}

void
tr_scheduler_took_row(tr_scheduler_t *s, const tr_sequence_t *q, bool took)
{
    tr_client_t *k = tr_scheduler_client(s, q);

    if (took) {
        k->rows++;
    } else if (k->left_out == 0) {
        k->left_out = q->order;
    }
}
