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

/* What each client has in the cache, in tokens. */
static void
tr_scheduler_held(tr_scheduler_t *s)
{
    const tr_sequence_t *q;
    tr_client_t *k;

    for (k = s->clients.inside; k != NULL; k = k->next) {
        k->held = 0;
    }
    for (q = s->running.first; q != NULL; q = q->next) {
        q->request->client->held += q->computed;
    }
}

/* The one that was served most of those that will still have no less than q's
 * client when q has come instead. */
static const tr_client_t *
tr_scheduler_richest(const tr_scheduler_t *s, const tr_sequence_t *q)
{
    const tr_client_t *poor = q->request->client, *best = NULL, *k;
    bool places = s->n_running >= s->max_num_seqs;

    for (k = s->clients.inside; k != NULL; k = k->next) {
        bool rich = places ? (uint64_t) (k->running - (k->running != 0))
                                     * poor->share
                                 >= (uint64_t) (poor->running + 1) * k->share
                           : k->held * poor->share
                                 >= (poor->held + q->len) * k->share;

        if (k != poor && rich && k->running > 1 && k->served >= poor->served
            && (best == NULL || k->served > best->served)) {
            best = k;
        }
    }
    return best;
}

void
tr_scheduler_make_way(tr_scheduler_t *s)
{
    const tr_sequence_t *q = s->lacking;
    const tr_client_t *rich;
    tr_sequence_t *victim;

    s->lacking = NULL;
    if (!s->fair || q == NULL || q->state != TR_SEQ_WAITING
        || s->now - q->lacking_since_us < TR_SCHEDULER_PATIENCE_US) {
        return;
    }
    tr_scheduler_held(s);
    rich = tr_scheduler_richest(s, q);
    for (victim = s->running.last; rich != NULL && victim != NULL;
         victim = victim->prev) {
        if (victim->request->client == rich && !tr_scheduler_ending(victim)) {
            tr_scheduler_preempt(s, victim);
            return;
        }
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
    uint32_t turns = (r->running_sequences + most - 1) / most;

    return turns > 1 && (q->choice + s->turn) % turns != 0
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
