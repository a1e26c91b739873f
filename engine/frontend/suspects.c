/*
 * Requests that may be why engines end: who joins alone.
 *
 * A request that was being started when an engine crashed comes with a charge
 * (SUBMIT, `charges`).  It joins while nobody else starts, and nobody else
 * starts until it has settled: it has sampled a few tokens, or is over.  So a
 * second crash names its cause on the status page, and the gateway does not send
 * that request a third time.
 *
 * What waits is whole, and keeps its slot as if its body were still coming.  It
 * waits in bounds: an engine where others take long to start, or where a suspect
 * does, is as it would be without this file.
 */
#include "worker_connection.h"

/* a suspect waits so long to be alone, others for a suspect */
#define SUSPECT_US 15000000u
#define OTHERS_US 5000000u

/* Or will, once the loop finds a place for it. */
static bool
somebody_starts(const tr_frontend_env_t *env)
{
    uint64_t names[TR_STATUS_FRESH];

    /* in this order: the loop names who it takes out of its queue */
    return (env->loop != NULL && tr_loop_queued(env->loop) != 0)
           || tr_status_fresh(&env->status->counters, names) != 0;
}

static bool
somebody_is_alone(tr_frontend_env_t *env)
{
    if (env->alone != NULL && atomic_load(&env->alone->settled) != 0) {
        env->alone = NULL;
    }
    return env->alone != NULL;
}

bool
tr_suspects_hold(tr_frontend_env_t *env, tr_request_t *r)
{
    uint64_t waited = r->held_us != 0 ? env->now_us - r->held_us : 0;
    bool alone = somebody_is_alone(env), hold;

    if (r->charges == 0) {
        hold = (alone || env->suspects != 0) && waited < OTHERS_US;
    } else {
        hold = alone || somebody_starts(env);
        if (!hold) {
            env->alone = r;
        }
        hold = hold && waited < SUSPECT_US;
    }
    if (hold && r->held_us == 0) {
        r->held_us = env->now_us;
        env->held = true;
        env->suspects += r->charges != 0;
    }
    return hold;
}

void
tr_suspects_parsed(tr_frontend_env_t *env, tr_request_t *r)
{
    tr_status_fresh_clear(&env->status->counters, r->fresh);
    r->fresh = 0;
}

void
tr_suspects_end(tr_frontend_env_t *env, const tr_request_t *r)
{
    if (env->alone == r) {
        env->alone = NULL;
    }
}

/* Starts who is held and may; the number of those with charges that are held
 * still, of the others. */
static void
release(tr_connection_t *c, bool suspects, uint32_t held[2])
{
    uint32_t i;

    for (i = 0; i < c->n_slots && c->n_requests != 0; i++) {
        tr_request_slot_t *s = &c->slots[i];
        tr_request_t *r = s->request;

        if (r == NULL || s->state != TR_SLOT_GATHERING || r->held_us == 0
            || (r->charges != 0) != suspects) {
            continue;
        }
        tr_connection_submit(c, s);
        held[suspects] += s->state == TR_SLOT_GATHERING && s->request == r;
    }
}

void
tr_suspects_release(tr_frontend_env_t *env, tr_connection_t *connections)
{
    uint32_t held[2] = { 0, 0 };
    tr_connection_t *c;

    /* those with charges first, one of whom may be alone by then */
    for (c = connections; c != NULL; c = c->next) {
        release(c, true, held);
    }
    env->suspects = held[1];
    for (c = connections; c != NULL; c = c->next) {
        release(c, false, held);
    }
    env->held = held[0] + held[1] != 0;
}
