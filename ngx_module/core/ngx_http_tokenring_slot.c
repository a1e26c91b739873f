/*
 * Slots: the places of requests at an engine.
 *
 * A request owns a slot from its first record until the engine's last record
 * about it (FINISH with LAST, or ERROR).  A request that ends earlier abandons
 * its slot: the engine is told to abort, and its remaining records are dropped.
 *
 * A connection's free slots are a list.  What its requests are estimated to
 * cost is summed as slots come and go: guessed until the engine has counted the
 * request itself, known from then on.
 */

#include "ngx_http_tokenring_alone.h"
#include "ngx_http_tokenring_channel.h"
#include "ngx_http_tokenring_request.h"
#include "ngx_http_tokenring_slot.h"


/* tokens of an answer, until the engine has counted the request itself */
#define NGX_HTTP_TOKENRING_ANSWER   128

#define NGX_HTTP_TOKENRING_NO_SLOT  0xffffffff


ngx_int_t
ngx_http_tokenring_slots_create(ngx_http_tokenring_conn_t *conn)
{
    uint32_t  i;

    conn->slots = ngx_calloc(sizeof(ngx_http_tokenring_slot_t)
                             * conn->map.slots, ngx_cycle->log);
    if (conn->slots == NULL) {
        return NGX_ERROR;
    }

    conn->free = NGX_HTTP_TOKENRING_NO_SLOT;

    for (i = conn->map.slots; i > 0; i--) {
        conn->slots[i - 1].generation = 0;
        conn->slots[i - 1].next = conn->free;
        conn->free = i - 1;
    }

    conn->outstanding = 0;
    conn->coming = 0;
    conn->guessed = 0;
    conn->known = 0;

    return NGX_OK;
}


void
ngx_http_tokenring_slots_free(ngx_http_tokenring_conn_t *conn)
{
    uint32_t  i;

    if (conn->slots) {

        /* what they had is not known any more */

        for (i = 0; i < conn->map.slots; i++) {
            if (conn->slots[i].alone) {
                ngx_http_tokenring_alone_end(conn->slots[i].alone,
                                             UINT64_MAX);
            }
        }

        ngx_free(conn->slots);
        conn->slots = NULL;
    }

    conn->outstanding = 0;
    conn->coming = 0;
    conn->guessed = 0;
    conn->known = 0;
}


/*
 * Tokens of a request until the engine has counted: four bytes each.  Of one
 * that moves they are known, and those that move with it look here next.
 */

static uint64_t
ngx_http_tokenring_slot_guess(ngx_http_tokenring_ctx_t *ctx)
{
    off_t  len;

    if (ctx->moving) {
        return ctx->prompt_tokens + ctx->completion_tokens
               + NGX_HTTP_TOKENRING_ANSWER;
    }

    len = ngx_max(ctx->request->headers_in.content_length_n, 0);

    return (uint64_t) len / 4 + NGX_HTTP_TOKENRING_ANSWER;
}


ngx_int_t
ngx_http_tokenring_slot_take(ngx_http_tokenring_conn_t *conn,
    ngx_http_tokenring_ctx_t *ctx)
{
    uint32_t                    n;
    ngx_http_tokenring_slot_t  *slot;

    n = conn->free;

    if (n == NGX_HTTP_TOKENRING_NO_SLOT) {
        return NGX_DECLINED;
    }

    slot = &conn->slots[n];

    conn->free = slot->next;
    conn->outstanding++;

    slot->ctx = ctx;
    slot->used = 1;
    slot->generation++;

    if (slot->generation == 0) {
        slot->generation = 1;
    }

    slot->tokens = ngx_http_tokenring_slot_guess(ctx);
    slot->known = 0;
    conn->guessed += slot->tokens;

    slot->coming = ctx->request->reading_body;
    conn->coming += slot->coming;

    ctx->tried |= ngx_http_tokenring_conn_bit(conn);
    ctx->conn = conn;
    ctx->id = TR_ID(n, slot->generation);

    if (!ctx->moving) {
        ctx->number = 0;
    }

    ctx->body_sent = NGX_HTTP_TOKENRING_NOTHING;

    ngx_log_debug5(NGX_LOG_DEBUG_HTTP, ctx->request->connection->log, 0,
                   "tokenring slot: take %uD, generation:%uD tokens:%uL "
                   "engine:%V/%ui", n, slot->generation, slot->tokens,
                   &conn->engine->name, conn->replica);

    return NGX_OK;
}


/* as if it had not been taken: nothing of the request was sent */

void
ngx_http_tokenring_slot_return(ngx_http_tokenring_ctx_t *ctx)
{
    ngx_http_tokenring_slot_free(ctx->conn, TR_ID_SLOT(ctx->id));

    /* give the turn back, or one of two engines would get all requests */
    ctx->group->turn--;

    ctx->conn = NULL;
    ctx->tried = 0;
}


/* the last part of the body was sent */

void
ngx_http_tokenring_slot_whole(ngx_http_tokenring_ctx_t *ctx)
{
    ngx_http_tokenring_slot_t  *slot;

    slot = &ctx->conn->slots[TR_ID_SLOT(ctx->id)];

    ctx->conn->coming -= slot->coming;
    slot->coming = 0;

    ngx_http_tokenring_probe(ctx->conn);
}


/* from now on the status page counts it; the prompt's length is known */

void
ngx_http_tokenring_slot_known(ngx_http_tokenring_conn_t *conn, uint32_t n,
    u_char *payload, size_t len)
{
    tr_wire_bytes_t             model, policy;
    tr_wire_accepted_t          head;
    ngx_http_tokenring_slot_t  *slot;

    slot = &conn->slots[n];

    if (slot->known
        || tr_wire_accepted_parse(payload, len, &head, &model, &policy)
           != TR_OK)
    {
        return;
    }

    conn->guessed -= slot->tokens;

    slot->tokens = head.prompt_tokens;
    slot->known = 1;

    conn->known += slot->tokens;

    if (slot->alone) {
        ngx_http_tokenring_alone_accepted(slot->alone, &head);
    }
}


void
ngx_http_tokenring_slot_free(ngx_http_tokenring_conn_t *conn, uint32_t n)
{
    ngx_http_tokenring_slot_t  *slot;

    slot = &conn->slots[n];

    ngx_log_debug4(NGX_LOG_DEBUG_HTTP,
                   slot->ctx ? slot->ctx->request->connection->log
                             : ngx_cycle->log, 0,
                   "tokenring slot: free %uD, generation:%uD engine:%V/%ui",
                   n, slot->generation, &conn->engine->name, conn->replica);

    if (slot->known) {
        conn->known -= slot->tokens;

    } else {
        conn->guessed -= slot->tokens;
    }

    conn->coming -= slot->coming;

    slot->ctx = NULL;
    slot->used = 0;
    slot->coming = 0;
    slot->next = conn->free;

    conn->free = n;
    conn->outstanding--;
}


/* the request needs nothing more from the engine */

void
ngx_http_tokenring_slot_abandon(ngx_http_tokenring_ctx_t *ctx)
{
    uint32_t                    n;
    ngx_uint_t                  whole;
    ngx_http_tokenring_conn_t  *conn;

    conn = ctx->conn;

    if (conn == NULL) {
        return;
    }

    n = TR_ID_SLOT(ctx->id);

    ngx_log_debug2(NGX_LOG_DEBUG_HTTP, ctx->request->connection->log, 0,
                   "tokenring slot: abandon %uD, body sent:%ud", n,
                   (u_int) ctx->body_sent);

    if (ctx->body_sent) {
        whole = (ctx->body_sent == NGX_HTTP_TOKENRING_WHOLE);

        if (ctx->detach && ctx->gone && whole) {
            ngx_http_tokenring_control(ctx, TR_CONTROL_DETACH);
            conn->slots[n].alone = ngx_http_tokenring_alone(ctx);

        } else {
            ngx_http_tokenring_control(ctx, TR_CONTROL_ABORT);
        }

        conn->slots[n].ctx = NULL;

        /* nothing more comes of its body */
        conn->coming -= conn->slots[n].coming;
        conn->slots[n].coming = 0;

    } else {
        ngx_http_tokenring_slot_free(conn, n);
    }

    ctx->conn = NULL;
}


/* replaces what the engine was told: ABORT, PAUSE, DETACH or nothing; END,
 * where a budget is empty, stays in force, and so does STAY */

void
ngx_http_tokenring_control(ngx_http_tokenring_ctx_t *ctx, uint32_t bits)
{
    ngx_http_tokenring_conn_t  *conn;

    conn = ctx->conn;

    if (ctx->cut) {
        bits |= TR_CONTROL_END;
    }

    if (ctx->stays) {
        bits |= TR_CONTROL_STAY;
    }

    ngx_log_debug5(NGX_LOG_DEBUG_HTTP, ctx->request->connection->log, 0,
                   "tokenring request: tell the engine%s%s%s%s%s",
                   (bits & TR_CONTROL_ABORT) ? " abort" : "",
                   (bits & TR_CONTROL_PAUSE) ? " pause" : "",
                   (bits & TR_CONTROL_DETACH) ? " detach" : "",
                   (bits & TR_CONTROL_END) ? " end" : "",
                   bits ? "" : " to go on");

    if (conn && tr_control_set(&conn->map, ctx->id, bits)) {
        ngx_http_tokenring_ring(conn);
    }
}


void
ngx_http_tokenring_allow(ngx_http_tokenring_ctx_t *ctx)
{
    ngx_http_tokenring_conn_t  *conn;

    conn = ctx->conn;

    ngx_log_debug1(NGX_LOG_DEBUG_HTTP, ctx->request->connection->log, 0,
                   "tokenring request: allow tokens:%uL", ctx->use->taken);

    if (conn && tr_allow_set(&conn->map, ctx->id, (uint32_t) ctx->use->taken)) {
        ngx_http_tokenring_ring(conn);
    }
}
