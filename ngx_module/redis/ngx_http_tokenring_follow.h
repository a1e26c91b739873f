/*
 * Clients that follow the stream of a request (_follow.c), and what all clients
 * of one request share (_stream_sub.c).
 *
 * A follow lives in r->pool, beside the ctx that it fills.  A stream
 * subscription is allocated for its first follower and freed with the last.
 */

#ifndef _NGX_HTTP_TOKENRING_FOLLOW_H_INCLUDED_
#define _NGX_HTTP_TOKENRING_FOLLOW_H_INCLUDED_


#include "ngx_http_tokenring_find.h"


typedef struct ngx_http_tokenring_stream_sub_s
    ngx_http_tokenring_stream_sub_t;


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

/* handler of GET /v1/requests/ID/stream; id is borrowed from r */
ngx_int_t ngx_http_tokenring_follow(ngx_http_request_t *r, ngx_str_t *id);

/* the same of GET /v1/responses/ID, of a response that is kept */
ngx_int_t ngx_http_tokenring_follow_response(ngx_http_request_t *r,
    ngx_str_t *id);

/* the client has taken what there was: the next page, if there is one */
void ngx_http_tokenring_follow_more(ngx_http_tokenring_ctx_t *ctx);

/* nothing was heard for too long; may end the request */
void ngx_http_tokenring_follow_expired(ngx_http_tokenring_ctx_t *ctx);

/* the request ends */
void ngx_http_tokenring_follow_end(ngx_http_tokenring_ctx_t *ctx);


/* called by the stream subscription; f's request may have ended afterwards */

/* a message with the records first to last, as the engine wrote them */
void ngx_http_tokenring_follow_records(ngx_http_tokenring_follow_t *f,
    uint64_t first, uint64_t last, ngx_str_t *records);

/* read again, from the last record that f has */
void ngx_http_tokenring_follow_read(ngx_http_tokenring_follow_t *f);

/* there will be nothing more: end with this error */
void ngx_http_tokenring_follow_fail(ngx_http_tokenring_follow_t *f,
    tr_status_t status, const char *message);


/* _stream_sub.c */

/* NGX_OK: f is one of the followers of its request; NGX_ERROR: no memory */
ngx_int_t ngx_http_tokenring_stream_sub_join(ngx_http_tokenring_follow_t *f);
void ngx_http_tokenring_stream_sub_leave(ngx_http_tokenring_follow_t *f);

/* 0: no messages come now; else a number that changes when some were lost */
ngx_uint_t ngx_http_tokenring_stream_sub_epoch(ngx_http_tokenring_follow_t *f);


#endif /* _NGX_HTTP_TOKENRING_FOLLOW_H_INCLUDED_ */
