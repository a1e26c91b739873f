/*
 * Redis, as the rest of the module uses it.
 *
 * A redis (ngx_http_tokenring_redis_t) is what one tokenring_redis names: a
 * server, a user, a database, a prefix.  Every worker keeps one connection to
 * it for commands and, while somebody listens, one for subscriptions, however
 * many listen.  Nothing here blocks: a command is sent with a handler, which is
 * called once, later, from the event loop, with the reply or without one.
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
 * A reply belongs to hiredis and is freed when the handler returns.  What it
 * holds was written by others: its types, numbers and lengths must be checked.
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
 *     _redis_values.c     keys, and values in replies
 */

#ifndef _NGX_HTTP_TOKENRING_REDIS_H_INCLUDED_
#define _NGX_HTTP_TOKENRING_REDIS_H_INCLUDED_


#include "ngx_http_tokenring.h"

#include <ngx_event.h>

#include <hiredis/hiredis.h>
#include <hiredis/async.h>

#include <tokenring/wire.h>


/* words of one command */
#define NGX_HTTP_TOKENRING_REDIS_ARGS     56

/* completions are named by 32 hex digits, owners by 40 */
#define NGX_HTTP_TOKENRING_ID_LEN         TR_COMPLETION_LEN


typedef struct ngx_http_tokenring_call_s          ngx_http_tokenring_call_t;
typedef struct ngx_http_tokenring_subscription_s
    ngx_http_tokenring_subscription_t;


/* reply is NULL if none came; an error from Redis is a reply */

typedef void (*ngx_http_tokenring_reply_pt)(void *data, redisReply *reply);


typedef enum {
    NGX_HTTP_TOKENRING_REDIS_IDLE = 0,
    NGX_HTTP_TOKENRING_REDIS_CONNECTING,   /* and greeting */
    NGX_HTTP_TOKENRING_REDIS_READY
} ngx_http_tokenring_redis_state_e;


/* TLS as configured; made by the master, for all workers */

typedef struct {
    ngx_str_t                         ca;         /* files */
    ngx_str_t                         cert;
    ngx_str_t                         key;
    ngx_str_t                         name;       /* the certificate's */
    void                             *ctx;        /* SSL_CTX */
    unsigned                          on:1;
    unsigned                          insecure:1; /* no verification */
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

/* before the first use; may be called again */
void ngx_http_tokenring_redis_start(ngx_http_tokenring_redis_t *redis);

/* the same, and connects for commands, so that the first need not wait */
void ngx_http_tokenring_redis_open(ngx_http_tokenring_redis_t *redis);

/* the process ends: nobody is called any more */
void ngx_http_tokenring_redis_exit(ngx_http_tokenring_redis_t *redis);


/* _redis_commands.c */

/*
 * Sends a command; argv is copied.  NULL: Redis cannot be reached (a new
 * attempt may have begun), or too many commands are pending: the handler is not
 * called.
 */
ngx_http_tokenring_call_t *ngx_http_tokenring_redis_command(
    ngx_http_tokenring_redis_t *redis, ngx_http_tokenring_reply_pt handler,
    void *data, ngx_uint_t argc, ngx_str_t *argv);

/* the handler of this call is not called any more; call may be NULL */
void ngx_http_tokenring_redis_forget(ngx_http_tokenring_call_t *call);

/* logs a reply that is an error, once as long as it stays the same */
void ngx_http_tokenring_redis_complain(ngx_http_tokenring_redis_t *redis,
    redisReply *reply);


/* _redis_channels.c */

/*
 * What happens on a channel.  UP: from now on every message is delivered, so
 * now is the time to read what came before; again after each outage.  DOWN:
 * messages may be lost from now until the next UP.
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
 * One listener per channel and worker; NULL if there is one, or without memory.
 * It stays until unsubscribe, through every outage; UP comes later, from the
 * event loop.  The handler may unsubscribe.
 */
ngx_http_tokenring_subscription_t *ngx_http_tokenring_subscribe(
    ngx_http_tokenring_redis_t *redis, ngx_str_t *channel,
    ngx_http_tokenring_channel_pt handler, void *data);
void ngx_http_tokenring_unsubscribe(ngx_http_tokenring_subscription_t *s);

/* messages were lost: connect again; all subscriptions go DOWN, then UP */
void ngx_http_tokenring_channels_reset(ngx_http_tokenring_redis_t *redis);


/* _redis_values.c */

/* "PREFIXkind:{name}", allocated from pool; data is NULL without memory */
ngx_str_t ngx_http_tokenring_redis_key(ngx_http_tokenring_redis_t *redis,
    ngx_pool_t *pool, const char *kind, ngx_str_t *name);

/* the same at p, which has room for it */
ngx_str_t ngx_http_tokenring_redis_key_at(ngx_http_tokenring_redis_t *redis,
    u_char *p, const char *kind, ngx_str_t *name);

/* the value of a reply, checked, borrowed from it: NGX_OK, or NGX_DECLINED */
ngx_int_t ngx_http_tokenring_redis_string(redisReply *reply, ngx_str_t *out);
ngx_int_t ngx_http_tokenring_redis_number(redisReply *reply, uint64_t *out);
ngx_int_t ngx_http_tokenring_redis_share(redisReply *reply, double *out);


#endif /* _NGX_HTTP_TOKENRING_REDIS_H_INCLUDED_ */
