/*
 * Engines, and a worker's connections to them.
 *
 * An engine is what tokenring_engine names: one or more sockets that serve the
 * same.  Every worker has one connection to each socket, an engine connection:
 *
 *     IDLE --connect()--> CONNECTING --HELLO--> HANDSHAKING --WELCOME--> READY
 *      ^                      |                      |                     |
 *      +----- timer ----------+------ error, end, or no answer in time ----+
 *
 * With WELCOME comes the channel (ngx_http_tokenring_channel.h), which only a
 * connection that is READY has.  Both structures live in the cycle's pool; the
 * connection owns its socket, its doorbells and the mapped memory.
 *
 *     _engine_conf.c  the directive tokenring_engine
 *     _conn.c         a connection, from connect() to its loss
 *     _pulse.c        whether the engine lives, and takes requests
 *     _choose.c       which engine gets a request
 */

#ifndef _NGX_HTTP_TOKENRING_ENGINE_H_INCLUDED_
#define _NGX_HTTP_TOKENRING_ENGINE_H_INCLUDED_


#include "ngx_http_tokenring.h"

#include <ngx_event.h>

#include <tokenring/channel.h>
#include <tokenring/error.h>
#include <tokenring/ring.h>
#include <tokenring/status.h>


/* no more than one attempt to connect in this time, ms; Redis's, too */
#define NGX_HTTP_TOKENRING_RETRY        100

/* the longest time from connect() to WELCOME, ms */
#define NGX_HTTP_TOKENRING_HANDSHAKE    2000


typedef enum {
    NGX_HTTP_TOKENRING_IDLE = 0,
    NGX_HTTP_TOKENRING_CONNECTING,
    NGX_HTTP_TOKENRING_HANDSHAKING,
    NGX_HTTP_TOKENRING_READY
} ngx_http_tokenring_conn_state_e;


struct ngx_http_tokenring_conn_s {
    ngx_http_tokenring_engine_t    *engine;
    ngx_addr_t                      addr;
    ngx_uint_t                      number;      /* among all connections */
    ngx_uint_t                      replica;     /* within the engine */
    ngx_uint_t                      weight;
    uint32_t                        nslots;      /* wanted, 0: default */
    uint32_t                        ring;        /* wanted, 0: default */

    /* an engine that is started by who connects: nobody does but for a
     * request, and only while there are any */
    ngx_uint_t                      ondemand;
    ngx_msec_t                      start_timeout; /* instead of HANDSHAKE */
    ngx_msec_t                      idle;        /* until it is left */

    /* below: of one worker, none of it survives a reload */

    ngx_http_tokenring_conn_state_e state;
    ngx_connection_t               *sock;
    ngx_connection_t               *doorbell;
    int                             to_engine;
    ngx_event_t                     reconnect;   /* READY, on demand: when it
                                                  * may be left */
    ngx_msec_t                      attempted;
    uint32_t                        features;    /* TR_FEATURE_*, of both */
    ngx_event_t                     probe;       /* while requests are there */
    ngx_msec_t                      asked;       /* the last ping */
    ngx_msec_t                      pinged;      /* the first one that the
                                                  * step loop has not
                                                  * answered, or the last */
    ngx_msec_t                      heard;       /* the last record, or news */
    ngx_uint_t                      missed;      /* probes without a pong */

    tr_channel_map_t                map;
    tr_ring_producer_t              requests;
    tr_inbox_t                      inbox;
    const tr_status_page_t         *page;
    tr_status_card_t                card;        /* our copy, which stays when
                                                    the engine is lost */
    tr_status_admission_t           admission;   /* last good copy */

    ngx_http_tokenring_slot_t      *slots;
    uint32_t                        free;
    ngx_uint_t                      outstanding;
    ngx_uint_t                      coming;      /* of these, see choose() */
    uint64_t                        guessed;     /* tokens, see load() */
    uint64_t                        known;

    ngx_queue_t                     dirty;       /* something to send */
    ngx_queue_t                     starving;    /* waits for ring space */

    uint64_t                        now;         /* of this drain, us */
    const char                     *broken;      /* why to close, if so */
    uint32_t                        complaint;   /* the last one, hashed */
    unsigned                        again:1;     /* more is known to come */
};


/* where a request may go: to the sockets of an engine, or of several engines
 * (_models.h) */

struct ngx_http_tokenring_group_s {
    ngx_str_t                       name;
    ngx_array_t                     conns;   /* ngx_http_tokenring_conn_t * */
    ngx_queue_t                     waiting; /* requests, for a handshake */
    ngx_uint_t                      turn;
};


struct ngx_http_tokenring_engine_s {
    ngx_str_t                       name;
    ngx_array_t                     conns;   /* ngx_http_tokenring_conn_t */
    ngx_http_tokenring_group_t      group;   /* of these alone */
    ngx_array_t                     groups;  /* all that have them: pointers */
    u_char                         *file;    /* where it was first named */
    ngx_uint_t                      line;
};


/* once a process, before anything else happens to the connection */
void ngx_http_tokenring_conn_init(ngx_http_tokenring_conn_t *conn);

/* from IDLE; what goes wrong is logged, and tried again by a timer */
void ngx_http_tokenring_connect(ngx_http_tokenring_conn_t *conn);

/*
 * From any state to IDLE.  Requests in flight get TR_ERR_CLOSED and are
 * flushed: any of them may have ended, or be elsewhere, when this returns.
 */
void ngx_http_tokenring_close(ngx_http_tokenring_conn_t *conn);

/* closes soon, from the event loop: for callers that still use the channel;
 * why is a literal, for the log */
void ngx_http_tokenring_break(ngx_http_tokenring_conn_t *conn,
    const char *why);

/* takes what it has said until now; any request may have ended */
void ngx_http_tokenring_hear(ngx_http_tokenring_conn_t *conn);

/* the process ends: nobody is told, nothing is tried again */
void ngx_http_tokenring_exit(ngx_http_tokenring_conn_t *conn);

/* asks for a sign of life, unless one is outstanding; probe: asks again and
 * again while requests are with the engine and nothing is heard */
void ngx_http_tokenring_ping(ngx_http_tokenring_conn_t *conn);
void ngx_http_tokenring_probe(ngx_http_tokenring_conn_t *conn);
void ngx_http_tokenring_probe_event(ngx_event_t *ev);

/* does it take requests?  *why is a literal; also refreshes conn->admission */
ngx_uint_t ngx_http_tokenring_healthy(ngx_http_tokenring_conn_t *conn,
    ngx_msec_t stall, const char **why);

/*
 * Where a request should go: *out is borrowed.  TR_AGAIN: nowhere yet, but a
 * handshake is under way; TR_ERR_NO_ENGINE, TR_ERR_DRAINING,
 * TR_ERR_QUEUE_FULL: nowhere.
 */
tr_status_t ngx_http_tokenring_choose(ngx_http_tokenring_ctx_t *ctx,
    ngx_http_tokenring_conn_t **out);

/* the longest time from connect() to WELCOME of any of them, ms */
ngx_msec_t ngx_http_tokenring_group_handshake(
    ngx_http_tokenring_group_t *group);

/* do the engines of the group serve several models, as far as is known? */
ngx_uint_t ngx_http_tokenring_group_mixed(ngx_http_tokenring_group_t *group);

/* the name of the first model that is known, in its engine's card; empty: none
 * is */
void ngx_http_tokenring_group_model(ngx_http_tokenring_group_t *group,
    ngx_str_t *model);

/* is it one that serves this model?  Of one that was never connected nobody
 * knows: 1, too */
ngx_uint_t ngx_http_tokenring_conn_may_serve(ngx_http_tokenring_conn_t *conn,
    ngx_str_t *model);

/* this connection in ctx->tried */
/* what it has to do, in tokens */
uint64_t ngx_http_tokenring_conn_load(ngx_http_tokenring_conn_t *conn);

uint64_t ngx_http_tokenring_conn_bit(ngx_http_tokenring_conn_t *conn);


#endif /* _NGX_HTTP_TOKENRING_ENGINE_H_INCLUDED_ */
