/*
 * The dashboard cache: what Redis holds of the fleet, for all SSE clients of
 * one worker.
 *
 * A cache belongs to a location and lives in the cycle's pool; what it holds of
 * Redis is allocated while somebody looks.  An SSE client lives in its
 * request's pool and is linked into the cache.
 */

#ifndef _NGX_HTTP_TOKENRING_DASHBOARD_CACHE_H_INCLUDED_
#define _NGX_HTTP_TOKENRING_DASHBOARD_CACHE_H_INCLUDED_


#include "ngx_http_tokenring_conf.h"
#include "ngx_http_tokenring_redis.h"
#include "ngx_http_tokenring_text.h"


#define NGX_HTTP_TOKENRING_CACHE_TICK      1000

/* limits of the page; longer names are left out, longer values cut */
#define NGX_HTTP_TOKENRING_CACHE_ENGINES   64
#define NGX_HTTP_TOKENRING_CACHE_REQUESTS  40
#define NGX_HTTP_TOKENRING_CACHE_NAME      128
#define NGX_HTTP_TOKENRING_CACHE_VALUE     1024

/* the history of one engine for a new client, in samples; it is read in slices,
 * so that it does not hold up the worker.  Of an hour, samples that are older
 * than HISTORY are sent every SPARSE seconds. */
#define NGX_HTTP_TOKENRING_CACHE_HISTORY   660
#define NGX_HTTP_TOKENRING_CACHE_HOUR      3660
#define NGX_HTTP_TOKENRING_CACHE_SPARSE    10
#define NGX_HTTP_TOKENRING_CACHE_SLICE     60

/* the id of an entry of a stream: two 64-bit numbers */
#define NGX_HTTP_TOKENRING_CACHE_ID        41


#define ngx_http_tokenring_nelts(a)  (sizeof(a) / sizeof(a[0]))


typedef struct {
    ngx_http_tokenring_cache_t  *cache;
    ngx_str_t                    name;
    u_char                       name_buf[NGX_HTTP_TOKENRING_CACHE_NAME];
    ngx_str_t                    last;    /* sample that was told */
    u_char                       last_buf[NGX_HTTP_TOKENRING_CACHE_ID];
    uint64_t                     seen;    /* last heartbeat, Unix ms */
    ngx_http_tokenring_text_t    heart;   /* JSON */
    ngx_http_tokenring_text_t    card;    /* JSON, where there is no heart */
    ngx_http_tokenring_text_t    samples; /* JSON, of this round */
    unsigned                     listed:1;
} ngx_http_tokenring_cache_engine_t;


typedef struct {
    ngx_http_tokenring_cache_t  *cache;
    u_char                       id[NGX_HTTP_TOKENRING_ID_LEN];
    uint64_t                     created;
    ngx_http_tokenring_text_t    json;
    uint32_t                     crc;
    unsigned                     final:1;
    unsigned                     changed:1;
} ngx_http_tokenring_cache_request_t;


typedef struct {
    u_char                          id[NGX_HTTP_TOKENRING_ID_LEN];
    uint64_t                        created;
} ngx_http_tokenring_cache_latest_t;


struct ngx_http_tokenring_cache_s {
    ngx_http_tokenring_redis_t     *redis;   /* NULL: there is none */
    ngx_str_t                       location;
    ngx_str_t                       path;    /* of the page's files */
    ngx_http_tokenring_main_conf_t *main;

    /* below: of one worker */

    ngx_queue_t                     clients;
    ngx_event_t                     timer;
    ngx_uint_t                      pending; /* replies of this round */
    ngx_http_tokenring_text_t       tick;
    ngx_http_tokenring_text_t       reason;  /* why it failed, JSON */

    ngx_uint_t                      nengines;
    ngx_http_tokenring_cache_engine_t
                              engines[NGX_HTTP_TOKENRING_CACHE_ENGINES];

    ngx_uint_t                      nrequests;
    ngx_http_tokenring_cache_request_t
                              *requests[NGX_HTTP_TOKENRING_CACHE_REQUESTS];

    /* the latest of all engines, being gathered */
    ngx_uint_t                      nlatest;
    ngx_http_tokenring_cache_latest_t
                              latest[NGX_HTTP_TOKENRING_CACHE_REQUESTS];

    unsigned                        ready:1;
    unsigned                        failed:1;
    unsigned                        gathering:1;
};


typedef struct {
    ngx_queue_t                  queue;
    ngx_http_request_t          *request;
    ngx_http_tokenring_cache_t  *cache;
    ngx_http_tokenring_text_t    out;
    ngx_buf_t                    buf;
    ngx_chain_t                  link;

    /* reading what was before, engine after engine */
    ngx_http_tokenring_call_t      *call;
    ngx_uint_t                      engine;
    ngx_uint_t                      left;    /* of this engine */
    ngx_uint_t                      history; /* of each, in samples */
    ngx_str_t                       before;
    u_char                          before_buf[
                                        NGX_HTTP_TOKENRING_CACHE_ID + 1];

    unsigned                        greeted:1;
    unsigned                        blocked:1;
    unsigned                        catching_up:1;
} ngx_http_tokenring_sse_client_t;


/* _dashboard_cache.c */

void ngx_http_tokenring_cache_start(ngx_http_tokenring_cache_t *cache);

/* what it holds of Redis; no reply may be pending, or come any more */
void ngx_http_tokenring_cache_free(ngx_http_tokenring_cache_t *cache);

/* sends a command of a round; its handler must end with cache_next() */
void ngx_http_tokenring_cache_command(ngx_http_tokenring_cache_t *cache,
    ngx_http_tokenring_reply_pt handler, void *data, ngx_uint_t argc,
    ngx_str_t *argv);
void ngx_http_tokenring_cache_next(ngx_http_tokenring_cache_t *cache);

/* is it a reply of this type?  No reply, or an error, fails the round */
ngx_uint_t ngx_http_tokenring_cache_usable(ngx_http_tokenring_cache_t *cache,
    redisReply *reply, int type);

/* ,"name":"value" for each field that HMGET found; how many, or NGX_ERROR */
ngx_int_t ngx_http_tokenring_cache_fields(ngx_http_tokenring_text_t *t,
    ngx_str_t *names, ngx_uint_t n, redisReply *reply);

/* one engine; heart, card: an object, or empty */
ngx_int_t ngx_http_tokenring_cache_tell(ngx_http_tokenring_text_t *t,
    ngx_str_t *name, uint64_t seen, ngx_http_tokenring_text_t *heart,
    ngx_http_tokenring_text_t *card, ngx_http_tokenring_text_t *samples);

/* _dashboard_cache_engines.c */

void ngx_http_tokenring_cache_names(void *data, redisReply *reply);

/*
 * One entry of a stream of samples, with a comma before it if it is not the
 * first; NGX_DECLINED if it is none.
 */
ngx_int_t ngx_http_tokenring_cache_sample(ngx_http_tokenring_text_t *t,
    redisReply *entry, ngx_str_t *id);

/* _dashboard_cache_local.c */

/* the engines of this NGINX, as those of Redis are told */
ngx_int_t ngx_http_tokenring_cache_local(ngx_http_tokenring_cache_t *cache,
    ngx_http_tokenring_text_t *t, uint64_t now);

/* _dashboard_cache_requests.c */

void ngx_http_tokenring_cache_latest(void *data, redisReply *reply);
void ngx_http_tokenring_cache_gather(ngx_http_tokenring_cache_t *cache);
ngx_http_tokenring_call_t *ngx_http_tokenring_cache_fetch(
    ngx_http_tokenring_redis_t *redis, u_char *id,
    ngx_http_tokenring_reply_pt handler, void *data);

/* one request as JSON; NGX_DECLINED: it is not in Redis, or has expired */
ngx_int_t ngx_http_tokenring_cache_request(ngx_http_tokenring_text_t *t,
    u_char *id, redisReply *reply, ngx_uint_t *final);

/* a list of the requests: all, or those that changed in this round */
ngx_int_t ngx_http_tokenring_cache_requests(ngx_http_tokenring_cache_t *cache,
    ngx_http_tokenring_text_t *t, ngx_uint_t all);

/* _sse_client.c */

ngx_int_t ngx_http_tokenring_sse_client_open(ngx_http_request_t *r,
    ngx_http_tokenring_cache_t *cache);
void ngx_http_tokenring_sse_client_tick(ngx_http_tokenring_cache_t *cache);
void ngx_http_tokenring_sse_client_end(ngx_http_tokenring_cache_t *cache);


#endif /* _NGX_HTTP_TOKENRING_DASHBOARD_CACHE_H_INCLUDED_ */
