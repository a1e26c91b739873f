/*
 * Redis, as the parts of the module use it.
 *
 * A "redis" is what one tokenring_redis names: a server, a user, a database, a
 * prefix.  Every worker keeps one connection to it for commands, and, while
 * somebody listens, one for subscriptions, however many listen.  Nothing here
 * blocks: a command is given with a handler, which is called once, later, from
 * the event loop, with the reply or without one.
 *
 *     static void
 *     got(void *data, redisReply *reply)
 *     {
 *         if (reply == NULL) ...       Redis went away, or took too long
 *     }
 *
 *     call = ngx_http_tokenring_redis_command(redis, got, r, 2, argv);
 *
 *     if (call == NULL) ...            Redis is not there
 *
 * A reply is hiredis's and gone when the handler returns.  What it holds was
 * written by others: types, numbers and lengths are to be checked.
 *
 * The connections themselves are in ngx_http_tokenring_redis_conn.h.  A redis
 * lives in the cycle's pool, one for all locations that name the same.
 *
 *     _redis.c            connections: made, greeted, lost, made again
 *     _redis_events.c     hiredis on NGINX's event loop
 *     _redis_tls.c        TLS
 *     _redis_commands.c   commands and their replies
 *     _redis_channels.c   subscriptions
 *     _redis_conf.c       the directive
 *     _redis_values.c     keys, and what stands in replies
 */

#ifndef _NGX_HTTP_TOKENRING_REDIS_H_INCLUDED_
#define _NGX_HTTP_TOKENRING_REDIS_H_INCLUDED_


#include "ngx_http_tokenring.h"

#include <ngx_event.h>

#include <hiredis/hiredis.h>
#include <hiredis/async.h>

#include <tokenring/wire.h>


/* words of one command */
#define NGX_HTTP_TOKENRING_REDIS_ARGS     32

/* completions are named by 32 hex digits, owners by 40 */
#define NGX_HTTP_TOKENRING_ID_LEN         TR_COMPLETION_LEN


typedef struct ngx_http_tokenring_call_s          ngx_http_tokenring_call_t;
typedef struct ngx_http_tokenring_subscription_s
    ngx_http_tokenring_subscription_t;


/* reply: NULL without one; an error of Redis is a reply */

typedef void (*ngx_http_tokenring_reply_pt)(void *data, redisReply *reply);


typedef enum {
    NGX_HTTP_TOKENRING_REDIS_IDLE = 0,
    NGX_HTTP_TOKENRING_REDIS_CONNECTING,   /* and greeting */
    NGX_HTTP_TOKENRING_REDIS_READY
} ngx_http_tokenring_redis_state_e;


/* how to speak TLS, as configured; made for all workers by the master */

typedef struct {
    ngx_str_t                         ca;         /* files */
    ngx_str_t                         cert;
    ngx_str_t                         key;
    ngx_str_t                         name;       /* the certificate's */
    void                             *ctx;        /* SSL_CTX */
    unsigned                          on:1;
    unsigned                          insecure:1; /* nothing is verified */
} ngx_http_tokenring_redis_tls_t;


/* a connection as one worker has it */

typedef struct {
    ngx_http_tokenring_redis_t       *redis;
    ngx_http_tokenring_redis_state_e  state;
    redisAsyncContext                *ac;
    ngx_connection_t                 *c;
    void                             *ssl;        /* SSL, of ac */
    ngx_event_t                       timer;      /* of the oldest call */
    ngx_event_t                       reconnect;
    ngx_msec_t                        deadline;   /* of the greeting */
    ngx_msec_t                        attempted;
    ngx_uint_t                        failures;   /* in a row */
    ngx_uint_t                        step;       /* of the greeting */
    ngx_queue_t                       calls;      /* as they were sent */
    ngx_uint_t                        pending;
    uint32_t                          complaints[4]; /* hashed, since then */
    ngx_uint_t                        ncomplaints;
    unsigned                          tried:1;
    unsigned                          works:1;
    unsigned                          writing:1;
    unsigned                          subscriber:1;
} ngx_http_tokenring_redis_conn_t;


struct ngx_http_tokenring_redis_s {
    ngx_str_t                         name;       /* as in the configuration */
    ngx_addr_t                       *addrs;
    ngx_uint_t                        naddrs;     /* 0: a Unix socket */
    u_char                           *path;       /* of it */
    ngx_str_t                         user;
    ngx_str_t                         password;
    ngx_str_t                         password_file;
    ngx_int_t                         db;
    ngx_str_t                         prefix;
    ngx_msec_t                        timeout;
    ngx_http_tokenring_redis_tls_t    tls;

    /* below: of one worker, none of it survives a reload */

    ngx_http_tokenring_redis_conn_t   commands;
    ngx_http_tokenring_redis_conn_t   channels;
    ngx_uint_t                        turn;       /* among addrs */
    ngx_queue_t                       lost;       /* calls without reply */
    ngx_event_t                       losing;
    ngx_rbtree_t                      subscriptions;
    ngx_rbtree_node_t                 sentinel;
    ngx_uint_t                        nsubscriptions;
    ngx_rbtree_t                      stream_subs; /* of _stream_sub.c */
    ngx_rbtree_node_t                 stream_subs_sentinel;
    unsigned                          ready:1;    /* for use */
};


struct ngx_http_tokenring_call_s {
    ngx_queue_t                       queue;
    ngx_http_tokenring_redis_conn_t  *conn;
    ngx_http_tokenring_reply_pt       handler;    /* NULL: forgotten */
    void                             *data;
    ngx_msec_t                        deadline;
};


/* _redis_conf.c */

/* the directive tokenring_redis */
char *ngx_http_tokenring_set_redis(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);


/* _redis.c */

/* ahead of the first use; to be called again does no harm */
void ngx_http_tokenring_redis_start(ngx_http_tokenring_redis_t *redis);

/* the same, and connects for commands, so that the first need not wait */
void ngx_http_tokenring_redis_open(ngx_http_tokenring_redis_t *redis);

/* the process ends: nobody is called any more */
void ngx_http_tokenring_redis_exit(ngx_http_tokenring_redis_t *redis);


/* _redis_commands.c */

/*
 * Sends a command.  NULL: Redis is away (an attempt to reach it may be on its
 * way), or too much is waiting: the handler is not called.
 */
ngx_http_tokenring_call_t *ngx_http_tokenring_redis_command(
    ngx_http_tokenring_redis_t *redis, ngx_http_tokenring_reply_pt handler,
    void *data, ngx_uint_t argc, ngx_str_t *argv);

/* the handler of this call must not be called any more; NULL is fine */
void ngx_http_tokenring_redis_forget(ngx_http_tokenring_call_t *call);

/* an error as reply: a line in the log, once as long as it stays the same */
void ngx_http_tokenring_redis_complain(ngx_http_tokenring_redis_t *redis,
    redisReply *reply);


/* _redis_channels.c */

/*
 * What happens on a channel.  UP: from now on every message comes here, so that
 * this is the time to read what was before; also again after an outage.
 * DOWN: messages may be lost from now until the next UP.
 */

typedef enum {
    NGX_HTTP_TOKENRING_CHANNEL_UP = 0,
    NGX_HTTP_TOKENRING_CHANNEL_DOWN,
    NGX_HTTP_TOKENRING_CHANNEL_MESSAGE
} ngx_http_tokenring_channel_e;

typedef void (*ngx_http_tokenring_channel_pt)(void *data,
    ngx_http_tokenring_channel_e what, ngx_str_t *message);


struct ngx_http_tokenring_subscription_s {
    ngx_str_node_t                    sn;         /* its name */
    ngx_http_tokenring_redis_t       *redis;
    ngx_http_tokenring_channel_pt     handler;    /* NULL: nobody */
    void                             *data;
    unsigned                          sent:1;     /* and not answered yet */
    unsigned                          up:1;
    unsigned                          leaving:1;  /* UNSUBSCRIBE is sent */
};

/*
 * One listener a channel and worker: NULL when it has one (or no memory).  It
 * stays until unsubscribe, through every outage; UP comes later, from the event
 * loop.  The handler may unsubscribe.
 */
ngx_http_tokenring_subscription_t *ngx_http_tokenring_subscribe(
    ngx_http_tokenring_redis_t *redis, ngx_str_t *channel,
    ngx_http_tokenring_channel_pt handler, void *data);
void ngx_http_tokenring_unsubscribe(ngx_http_tokenring_subscription_t *s);

/* messages were lost: all subscriptions go down and, on a new connection, up */
void ngx_http_tokenring_channels_reset(ngx_http_tokenring_redis_t *redis);


/* _redis_values.c */

/* "PREFIXkind:{name}", of pool; data is NULL without memory */
ngx_str_t ngx_http_tokenring_redis_key(ngx_http_tokenring_redis_t *redis,
    ngx_pool_t *pool, const char *kind, ngx_str_t *name);

/* what stands in a reply, checked: NGX_OK, or NGX_DECLINED */
ngx_int_t ngx_http_tokenring_redis_string(redisReply *reply, ngx_str_t *out);
ngx_int_t ngx_http_tokenring_redis_number(redisReply *reply, uint64_t *out);
ngx_int_t ngx_http_tokenring_redis_share(redisReply *reply, double *out);


#endif /* _NGX_HTTP_TOKENRING_REDIS_H_INCLUDED_ */
