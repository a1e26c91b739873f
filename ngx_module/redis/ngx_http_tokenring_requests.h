/*
 * A request as Redis has it: tr:req:{ID} of docs/redis.md, read and checked.
 *
 *     _state.c       reading it, and whether its engine lives; as JSON
 *     _find.c        looking one up for a client, who may be early
 *     _requests.c    GET and DELETE of /v1/requests/ID
 *     _follow.c      GET of /v1/requests/ID/stream
 *     _stream_sub.c  what those who follow the same request share
 */

#ifndef _NGX_HTTP_TOKENRING_REQUESTS_H_INCLUDED_
#define _NGX_HTTP_TOKENRING_REQUESTS_H_INCLUDED_


#include "ngx_http_tokenring_redis.h"


typedef struct ngx_http_tokenring_stream_sub_s  ngx_http_tokenring_stream_sub_t;


/* texts are copies, of the pool that was given; a number that is not there, or
 * is none, is 0 */

typedef struct {
    ngx_str_t                     state;
    ngx_str_t                     engine;
    ngx_str_t                     run;
    ngx_str_t                     model;
    ngx_str_t                     request_id;
    ngx_str_t                     owner;
    ngx_str_t                     finish_reason;
    ngx_str_t                     error;
    tr_status_t                   error_status;
    ngx_uint_t                    endpoint;      /* TR_ENDPOINT_* */
    uint64_t                      wire;
    uint64_t                      created;       /* Unix ms */
    uint64_t                      started;
    uint64_t                      first_token;
    uint64_t                      finished;
    uint64_t                      choices;
    uint64_t                      prompt_tokens;
    uint64_t                      completion_tokens;
    tr_wire_finish_t              totals;
    unsigned                      final:1;       /* done, failed, cancelled */
    unsigned                      lost:1;        /* its engine is gone */
    unsigned                      resumable:1;
    unsigned                      detach:1;
    unsigned                      stream:1;
    unsigned                      gap:1;
} ngx_http_tokenring_record_t;


/* _state.c */

/* "chatcmpl-ID", "cmpl-ID" or "ID" to ID: NGX_OK, or NGX_DECLINED */
ngx_int_t ngx_http_tokenring_request_id(ngx_str_t *name, ngx_str_t *id);

/* the question; NULL as ngx_http_tokenring_redis_command gives it */
ngx_http_tokenring_call_t *ngx_http_tokenring_record_ask(
    ngx_http_tokenring_redis_t *redis, ngx_pool_t *pool, ngx_str_t *id,
    ngx_http_tokenring_reply_pt handler, void *data);

/* the answer: NGX_OK, NGX_DECLINED: there is no such request (or it makes no
 * sense), NGX_ERROR: Redis is away or refuses, or no memory */
ngx_int_t ngx_http_tokenring_record_take(ngx_http_tokenring_redis_t *redis,
    ngx_pool_t *pool, redisReply *reply, ngx_http_tokenring_record_t *rec);

/* the same about the engine: NGX_OK: that run lives, NGX_DECLINED: it does
 * not, NGX_ERROR: nobody knows */
ngx_http_tokenring_call_t *ngx_http_tokenring_heartbeat_ask(
    ngx_http_tokenring_redis_t *redis, ngx_pool_t *pool,
    ngx_http_tokenring_record_t *rec, ngx_http_tokenring_reply_pt handler,
    void *data);
ngx_int_t ngx_http_tokenring_heartbeat_take(ngx_http_tokenring_redis_t *redis,
    redisReply *reply, ngx_http_tokenring_record_t *rec);

/* may r know of it?  An answer of NGX_DECLINED must look as if it were not. */
ngx_int_t ngx_http_tokenring_record_allowed(ngx_http_request_t *r,
    ngx_str_t *id, ngx_http_tokenring_record_t *rec);

ngx_int_t ngx_http_tokenring_record_json(ngx_http_tokenring_text_t *t,
    ngx_str_t *id, ngx_http_tokenring_record_t *rec, ngx_uint_t cancelling);

/* the two answers of one wording each */
ngx_int_t ngx_http_tokenring_send_unknown(ngx_http_request_t *r);
ngx_int_t ngx_http_tokenring_send_away(ngx_http_request_t *r);


/* _find.c */

/* rc: NGX_OK: it is find->rec, and r may know of it, NGX_DECLINED: to r there
 * is no such request, NGX_ERROR: nobody knows; r may end */

typedef void (*ngx_http_tokenring_found_pt)(void *data, ngx_int_t rc);

/* zeroed; the first five fields are the caller's */

typedef struct {
    ngx_http_request_t           *request;
    ngx_http_tokenring_redis_t   *redis;
    ngx_str_t                     id;
    ngx_http_tokenring_found_pt   handler;
    void                         *data;
    ngx_http_tokenring_record_t   rec;
    ngx_http_tokenring_call_t    *call;
    ngx_event_t                   timer;
    unsigned                      again:1;       /* it is the second look */
} ngx_http_tokenring_find_t;

/* NGX_OK: handler is called once, later, unless _end comes first; NGX_ERROR:
 * Redis is away */
ngx_int_t ngx_http_tokenring_find(ngx_http_tokenring_find_t *find);
void ngx_http_tokenring_find_end(ngx_http_tokenring_find_t *find);


/* _follow.c: called by its stream subscription; f's request may end */

struct ngx_http_tokenring_follow_s {
    ngx_http_tokenring_ctx_t     *ctx;
    ngx_http_tokenring_redis_t   *redis;
    ngx_queue_t                   queue;         /* in sub->followers */
    ngx_http_tokenring_stream_sub_t *sub;        /* NULL: not yet */
    ngx_http_tokenring_find_t     find;          /* the record */
    ngx_http_tokenring_call_t    *reading;       /* a page of output */
    ngx_str_t                     output;        /* its key */
    ngx_uint_t                    epoch;         /* when it was asked for */
    unsigned                      allowed:1;
    unsigned                      more:1;        /* there is more to read */
    unsigned                      fresh:1;       /* came while we read */
    unsigned                      caught:1;      /* up: messages go on */
};

/* records FIRST to LAST, as written by the engine */
void ngx_http_tokenring_follow_records(ngx_http_tokenring_follow_t *f,
    uint64_t first, uint64_t last, ngx_str_t *records);

/* read again, from where we are */
void ngx_http_tokenring_follow_read(ngx_http_tokenring_follow_t *f);

/* there will be nothing more, and that is an error */
void ngx_http_tokenring_follow_fail(ngx_http_tokenring_follow_t *f,
    tr_status_t status, const char *message);


/* _stream_sub.c */

/* NGX_OK: f is one of those who follow its request */
ngx_int_t ngx_http_tokenring_stream_sub_join(ngx_http_tokenring_follow_t *f);
void ngx_http_tokenring_stream_sub_leave(ngx_http_tokenring_follow_t *f);

/* 0: no messages come now; else a number that changes when some were lost */
ngx_uint_t ngx_http_tokenring_stream_sub_epoch(ngx_http_tokenring_follow_t *f);


#endif /* _NGX_HTTP_TOKENRING_REQUESTS_H_INCLUDED_ */
