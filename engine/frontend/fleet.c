/*
 * The engine in a fleet: `tokenring drain`, and the load that the status page
 * shows, in tokens.
 *
 * A drained engine refuses new requests with TR_ERR_DRAINING and says so on its
 * status page, so that workers choose other engines.  Requests inside, queued
 * or partly read, finish without a time limit.  SIGTERM is harsher: it refuses
 * queued requests and ends the others after drain_timeout.
 *
 * The load is the number of tokens that all requests inside will have in the
 * cache when they end.  The length of an answer is not known beforehand; the
 * moving average of recent answers is the estimate, also for an answer that has
 * gone on for a while (lengths vary so widely that an answer's past says little
 * about its rest).  Computed tokens are not subtracted: they stay in the cache,
 * and every step reads them, until the request is over.
 */
#include "worker_connection.h"

#include <unistd.h>

#include "engine/config/log.h"

/* before the first answer has ended */
#define ANSWER_TOKENS 128u

static uint64_t
answer_tokens(const tr_frontend_env_t *env)
{
    return env->answer_tokens != 0 ? env->answer_tokens / 16 : ANSWER_TOKENS;
}

void
tr_connection_charge_tokens(tr_connection_t *c, tr_request_slot_t *s)
{
    const tr_request_t *r = s->request;
    uint64_t expected = answer_tokens(c->env), most;
    uint32_t i;

    s->tokens = 0;
    for (i = 0; i < r->n_sequences; i++) {
        most = r->sequences[i].cap - r->sequences[i].prompt_len;
        s->tokens += r->sequences[i].prompt_len
                     + (most < expected ? most : expected);
    }
    c->env->outstanding += s->tokens;
    tr_status_outstanding(c->env->status, tr_connection_outstanding(c->env));
}

void
tr_connection_uncharge_tokens(tr_connection_t *c, tr_request_slot_t *s)
{
    const tr_request_t *r = s->request;
    tr_frontend_env_t *env = c->env;

    env->outstanding -= s->tokens;
    if (s->tokens == 0 || r->completion_tokens == 0
        || (atomic_load(&r->control)
            & (TR_CONTROL_ABORT | TR_CONTROL_CANCEL))) {
        s->tokens = 0;
        return; /* an answer that was cut short says nothing */
    }
    s->tokens = 0;
    if (env->answer_tokens == 0) {
        env->answer_tokens = 16 * ANSWER_TOKENS;
    }
    env->answer_tokens += (r->completion_tokens + r->n_sequences - 1)
                          / r->n_sequences;
    env->answer_tokens -= env->answer_tokens / 16;
}

static bool
may_drain(const tr_connection_t *c)
{
    return c->who.uid == 0 || c->who.uid == geteuid();
}

tr_status_t
tr_connection_drain_request(tr_connection_t *c, tr_welcome_t *welcome)
{
    static const char *const names[] = { "none", "drain", "drain and exit",
                                         "undo", "move",  "move and exit" };
    tr_frontend_env_t *env = c->env;
    char why[TR_WELCOME_MESSAGE];

    if (c->hello.drain == TR_DRAIN_NONE) {
        return TR_OK;
    }
    if (!may_drain(c)) {
        snprintf(why, sizeof(why),
                 "user %u may not drain this engine, only user %u (its own) "
                 "and root may",
                 (unsigned) c->who.uid, (unsigned) geteuid());
        tr_welcome_refuse(welcome, why);
        return TR_ERR_CLOSED;
    }
    env->refusing = c->hello.drain != TR_DRAIN_UNDO;
    env->leaving = c->hello.drain == TR_DRAIN_LEAVE
                   || c->hello.drain == TR_DRAIN_MOVE_LEAVE;
    env->drain_changed = true;
    if (env->loop != NULL) {
        tr_loop_move(env->loop, c->hello.drain == TR_DRAIN_MOVE
                                    || c->hello.drain == TR_DRAIN_MOVE_LEAVE);
    }
    tr_log(TR_LEVEL_NOTICE, "drain request=\"%s\" pid=%ld uid=%u requests=%u",
           names[c->hello.drain], (long) c->who.pid, c->who.uid, env->inside);
    return TR_OK;
}
