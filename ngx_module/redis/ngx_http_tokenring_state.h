/*
 * The state of a request, as Redis has it: tr:req:{ID} of docs/redis.md, read
 * and checked (_state.c).
 */

#ifndef _NGX_HTTP_TOKENRING_STATE_H_INCLUDED_
#define _NGX_HTTP_TOKENRING_STATE_H_INCLUDED_


#include "ngx_http_tokenring_redis.h"
#include "ngx_http_tokenring_text.h"

#include <tokenring/error.h>


/* strings are copies in the pool that was given; a number that is missing or
 * malformed is 0 */

typedef struct {
    ngx_str_t                     state;
    ngx_str_t                     engine;
    ngx_str_t                     run;
    ngx_str_t                     model;
    ngx_str_t                     policy;        /* of the KV cache */
    ngx_str_t                     request_id;
    ngx_str_t                     owner;
    ngx_str_t                     holder;        /* of a kept response */
    ngx_str_t                     finish_reason;
    ngx_str_t                     error;
    tr_status_t                   error_status;
    ngx_uint_t                    endpoint;      /* TR_ENDPOINT_*, or 0: one
                                                    that we do not know */
    uint64_t                      wire;
    uint64_t                      created;       /* Unix ms */
    uint64_t                      started;
    uint64_t                      first_token;
    uint64_t                      finished;
    uint64_t                      choices;
    uint64_t                      prompt_tokens;
    uint64_t                      completion_tokens;
    uint64_t                      migrate;       /* s, without an engine */
    tr_wire_finish_t              totals;
    unsigned                      final:1;       /* done, failed, cancelled */
    unsigned                      lost:1;        /* its engine is gone */
    unsigned                      resumable:1;
    unsigned                      detach:1;
    unsigned                      stream:1;
    unsigned                      gap:1;
} ngx_http_tokenring_stored_t;


/* "ID", or "PREFIX-ID" with the prefix of an endpoint, to ID: NGX_OK, or
 * NGX_DECLINED */
ngx_int_t ngx_http_tokenring_request_id(ngx_str_t *name, ngx_str_t *id);

/* is it a state that we know?  *final: whether it is over, if NGX_OK */
ngx_int_t ngx_http_tokenring_state_known(ngx_str_t *state, ngx_uint_t *final);

/* asks for the request; NULL: as ngx_http_tokenring_redis_command() */
ngx_http_tokenring_call_t *ngx_http_tokenring_stored_ask(
    ngx_http_tokenring_redis_t *redis, ngx_pool_t *pool, ngx_str_t *id,
    ngx_http_tokenring_reply_pt handler, void *data);

/* reads the reply.  NGX_OK; NGX_DECLINED: there is no such request (or it is
 * malformed); NGX_ERROR: no reply, an error, or no memory */
ngx_int_t ngx_http_tokenring_stored_take(ngx_http_tokenring_redis_t *redis,
    ngx_pool_t *pool, redisReply *reply, ngx_http_tokenring_stored_t *rec);

/* the same for the heartbeat of its engine.  NGX_OK: that run is alive;
 * NGX_DECLINED: it is not; NGX_ERROR: unknown */
ngx_http_tokenring_call_t *ngx_http_tokenring_heartbeat_ask(
    ngx_http_tokenring_redis_t *redis, ngx_pool_t *pool,
    ngx_http_tokenring_stored_t *rec, ngx_http_tokenring_reply_pt handler,
    void *data);
ngx_int_t ngx_http_tokenring_heartbeat_take(ngx_http_tokenring_redis_t *redis,
    redisReply *reply, ngx_http_tokenring_stored_t *rec);

/* may r's client see it?  If NGX_DECLINED, answer as if it did not exist */
ngx_int_t ngx_http_tokenring_stored_allowed(ngx_http_request_t *r,
    ngx_str_t *id, ngx_http_tokenring_stored_t *rec);

/* the same for a response that is kept, by its holder */
ngx_int_t ngx_http_tokenring_stored_held(ngx_http_request_t *r,
    ngx_http_tokenring_stored_t *rec);

ngx_int_t ngx_http_tokenring_stored_json(ngx_http_tokenring_text_t *t,
    ngx_str_t *id, ngx_http_tokenring_stored_t *rec, ngx_uint_t cancelling);

/* "There is no request with this id", no response, and "cannot be read at the
 * moment" */
ngx_int_t ngx_http_tokenring_send_unknown(ngx_http_request_t *r);
ngx_int_t ngx_http_tokenring_send_no_response(ngx_http_request_t *r);
ngx_int_t ngx_http_tokenring_send_away(ngx_http_request_t *r);


#endif /* _NGX_HTTP_TOKENRING_STATE_H_INCLUDED_ */
