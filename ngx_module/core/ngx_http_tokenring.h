/*
 * The Tokenring module: LLM requests from an NGINX location to an engine.
 *
 * Three objects carry everything.  An engine connection (conn) is one engine
 * socket as this worker sees it: the socket, the channel in shared memory, the
 * slots of the requests in flight.  An engine is what the configuration names:
 * one or more connections.  A ctx is one API request on its way; it lives in
 * r->pool, while its slot lives in the connection, since the engine may speak
 * of a request for longer than the client stays.
 *
 *     _module.c     directives, configuration, life of the process
 *     _engine.c     connecting, handshake, loss, reconnecting, choosing one
 *     _channel.c    slots, doorbells, draining what the engine says
 *     _handler.c    the content handler: routes, admission, waiting
 *     _body.c       the request body, from the client into the request ring
 *     _record.c     what the engine's records do to a request
 *     _request.c    what else ends it: hang-ups, timers
 *     _retry.c      another engine for a request that lost its own
 *     _send.c       from pending text to the client, never more than it takes
 *     _socket.c     small events into a socket, in one piece
 *     _openai.c     what responses look like; _logprobs.c a part of it
 *     _text.c       growing buffers, JSON strings
 *     _error.c      error bodies; tokenring_error
 *     _status.c     /v1/models and /health, from the status page
 *     _metrics.c    /metrics, and the gateway's own counters
 *     _variables.c  $tokenring_*
 *
 * What outlives a connection stands in Redis (docs/redis.md):
 *
 *     _redis.c      connections to it, on NGINX's event loop; redis.h tells how
 *     _resumable.c  events that carry numbers; requests that go on alone
 *     _requests.c   /v1/requests/ID: state, and the wish to cancel
 *     _follow.c     /v1/requests/ID/stream: an answer again, and as it goes on
 *     _dashboard.c  the fleet's page; dashboard.h tells of its parts
 */

#ifndef _NGX_HTTP_TOKENRING_H_INCLUDED_
#define _NGX_HTTP_TOKENRING_H_INCLUDED_


#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_event.h>
#include <ngx_http.h>

#include <tokenring/bell.h>
#include <tokenring/channel.h>
#include <tokenring/error.h>
#include <tokenring/ring.h>
#include <tokenring/status.h>
#include <tokenring/wire.h>


/* time limits of the worker itself, ms */
#define NGX_HTTP_TOKENRING_HANDSHAKE    2000
#define NGX_HTTP_TOKENRING_RECONNECT    1000
#define NGX_HTTP_TOKENRING_RETRY        100
#define NGX_HTTP_TOKENRING_HOLD         1000

/* records taken in one turn of the event loop */
#define NGX_HTTP_TOKENRING_BUDGET       256

/* what a correct engine never exceeds */
#define NGX_HTTP_TOKENRING_CHOICES_MAX  4096
#define NGX_HTTP_TOKENRING_RESPONSE_MAX (64 * 1024 * 1024)
#define NGX_HTTP_TOKENRING_MESSAGE_MAX  4096

/* text in one streamed event; events rendered before they are sent */
#define NGX_HTTP_TOKENRING_EVENT        4096
#define NGX_HTTP_TOKENRING_OUTPUT       16384

#define NGX_HTTP_TOKENRING_RETRY_AFTER  1

/* tokens of an answer, until the engine has counted the request itself */
#define NGX_HTTP_TOKENRING_ANSWER       128

/* what clients are told when an engine dies */
#define NGX_HTTP_TOKENRING_LOST                                               \
    "The engine went away while it worked on this request"


typedef struct ngx_http_tokenring_conn_s    ngx_http_tokenring_conn_t;
typedef struct ngx_http_tokenring_engine_s  ngx_http_tokenring_engine_t;
typedef struct ngx_http_tokenring_ctx_s     ngx_http_tokenring_ctx_t;
typedef struct ngx_http_tokenring_redis_s   ngx_http_tokenring_redis_t;
typedef struct ngx_http_tokenring_cache_s   ngx_http_tokenring_cache_t;
typedef struct ngx_http_tokenring_follow_s  ngx_http_tokenring_follow_t;


/* a buffer that grows; consumed from pos, written at last */

typedef struct {
    u_char                         *start;
    u_char                         *pos;
    u_char                         *last;
    u_char                         *end;
} ngx_http_tokenring_text_t;

#define ngx_http_tokenring_text_len(t)   ((size_t) ((t)->last - (t)->pos))

/* a share that an engine told: 0 for what is none, NaN too */
#define ngx_http_tokenring_share(f)                                           \
    ((f) >= 0 && (f) <= 1 ? (double) (f) : 0.0)


/* free: ctx is NULL, used is 0; abandoned by its request: used, ctx is NULL */

typedef struct {
    ngx_http_tokenring_ctx_t       *ctx;
    uint64_t                        tokens;      /* counted in conn's */
    uint32_t                        generation;
    uint32_t                        next;
    unsigned                        used:1;
    unsigned                        known:1;     /* the engine counts it */
    unsigned                        coming:1;    /* its body is not whole */
} ngx_http_tokenring_slot_t;


typedef enum {
    NGX_HTTP_TOKENRING_IDLE = 0,
    NGX_HTTP_TOKENRING_CONNECTING,
    NGX_HTTP_TOKENRING_HANDSHAKING,
    NGX_HTTP_TOKENRING_READY
} ngx_http_tokenring_state_e;


struct ngx_http_tokenring_conn_s {
    ngx_http_tokenring_engine_t    *engine;
    ngx_addr_t                      addr;
    ngx_uint_t                      number;      /* among all connections */
    ngx_uint_t                      replica;     /* within the engine */
    ngx_uint_t                      weight;
    uint32_t                        nslots;      /* wanted, 0: default */
    uint32_t                        ring;        /* wanted, 0: default */

    /* below: of one worker, none of it survives a reload */

    ngx_http_tokenring_state_e      state;
    ngx_connection_t               *sock;
    ngx_connection_t               *doorbell;
    int                             to_engine;
    ngx_event_t                     reconnect;
    ngx_msec_t                      attempted;

    tr_channel_map_t                map;
    tr_ring_producer_t              requests;
    tr_inbox_t                      inbox;
    const tr_status_page_t         *page;
    tr_status_card_t                card;        /* our copy */
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


struct ngx_http_tokenring_engine_s {
    ngx_str_t                       name;
    ngx_array_t                     conns;   /* ngx_http_tokenring_conn_t */
    ngx_queue_t                     waiting; /* for a handshake to end */
    ngx_uint_t                      turn;
    u_char                         *file;    /* where it was first named */
    ngx_uint_t                      line;
};


/* the gateway's counters, in shared memory, kept over reloads */

typedef struct {
    ngx_atomic_t                    pid;
    ngx_atomic_t                    active;
    ngx_atomic_t                    connected;   /* bit: conn->number */
} ngx_http_tokenring_process_t;

#define NGX_HTTP_TOKENRING_STATUSES  16

typedef struct {
    ngx_atomic_t                    requests[NGX_HTTP_TOKENRING_STATUSES];
    ngx_atomic_t                    engine_losses;
    ngx_atomic_t                    protocol_errors;
    ngx_atomic_t                    pauses;
    ngx_http_tokenring_process_t    processes[NGX_MAX_PROCESSES];
    ngx_atomic_t                    retries;
} ngx_http_tokenring_shared_t;


typedef struct {
    ngx_array_t                     engines; /* ngx_http_tokenring_engine_t * */
    ngx_uint_t                      nconns;
    ngx_array_t                     redises; /* ngx_http_tokenring_redis_t * */
    ngx_shm_zone_t                 *zone;
} ngx_http_tokenring_main_conf_t;


typedef struct {
    ngx_http_tokenring_engine_t    *engine;
    size_t                          buffer_size;
    size_t                          retry_buffer;
    ngx_msec_t                      queue_timeout;
    ngx_msec_t                      first_token_timeout;
    ngx_msec_t                      idle_timeout;
    ngx_msec_t                      stall_timeout;
    ngx_msec_t                      keepalive_comment;
    ngx_array_t                    *shown;   /* of metrics and health */
    ngx_flag_t                      errors;
    ngx_http_tokenring_redis_t     *redis;   /* NULL: none */
    ngx_flag_t                      resumable;
    ngx_http_complex_value_t       *key;     /* whose a request is */
    ngx_http_tokenring_cache_t     *dashboard; /* NULL: none */
} ngx_http_tokenring_loc_conf_t;


typedef struct {
    ngx_http_tokenring_text_t       text;
    ngx_http_tokenring_text_t       logprobs;
    uint64_t                        offset;  /* characters shown so far */
    unsigned                        reason:8;
    unsigned                        begun:1;
    unsigned                        ended:1;
} ngx_http_tokenring_choice_t;


typedef enum {
    NGX_HTTP_TOKENRING_WAIT = 0,  /* for an engine's handshake */
    NGX_HTTP_TOKENRING_BODY,      /* the client sends, we or the ring take */
    NGX_HTTP_TOKENRING_QUEUE,     /* all sent, not scheduled yet */
    NGX_HTTP_TOKENRING_PREFILL,   /* scheduled, no token yet */
    NGX_HTTP_TOKENRING_DECODE,
    NGX_HTTP_TOKENRING_GONE,      /* client left: until the last counts */
    NGX_HTTP_TOKENRING_DONE       /* finalized, or about to be */
} ngx_http_tokenring_phase_e;


/* what every token touches comes first, in few cache lines */

struct ngx_http_tokenring_ctx_s {
    ngx_http_request_t             *request;
    ngx_http_tokenring_loc_conf_t  *conf;
    ngx_http_tokenring_conn_t      *conn;    /* NULL without a slot */
    uint64_t                        id;

    ngx_queue_t                     dirty;   /* in conn->dirty */

    unsigned                        endpoint:8;
    unsigned                        foreign_body:1;  /* read before us */
    unsigned                        gathering:1;     /* no engine has it yet */
    unsigned                        lost_body:1;     /* not to be sent again */
    unsigned                        retried:1;       /* its engine died */
    unsigned                        begun:1;         /* its body is read */
    unsigned                        submitted:1;     /* a part is out */
    unsigned                        complete:1;      /* and so is the last */
    unsigned                        resumable:1;
    unsigned                        detach:1;        /* may go on alone */
    unsigned                        owned:1;         /* key is valid */
    unsigned                        spoken:1;        /* an event is due */
    unsigned                        accepted:1;
    unsigned                        stream:1;
    unsigned                        include_usage:1;
    unsigned                        with_logprobs:1;
    unsigned                        over:1;          /* LAST or ERROR came */
    unsigned                        totalled:1;      /* totals are final */
    unsigned                        paused:1;
    unsigned                        blocked:1;       /* client is slow */
    unsigned                        ended:1;         /* all rendered */
    unsigned                        gone:1;
    unsigned                        is_dirty:1;
    unsigned                        is_waiting:1;
    unsigned                        comment:1;      /* one is due */
    unsigned                        counted:1;

    ngx_http_tokenring_phase_e      phase;

    /* an error to tell, once what came before it is told */
    tr_status_t                     error;

    ngx_uint_t                      nchoices;
    ngx_http_tokenring_choice_t    *choices;

    /* text and logprobs not rendered yet, bytes */
    size_t                          pending;

    /* resumable streams: numbers of records, and those not rendered yet */
    uint64_t                        number;  /* of the last that came */
    uint64_t                        after;   /* the client has those to this */
    ngx_http_tokenring_follow_t    *follow;  /* it is read from Redis */

    ngx_msec_t                      deadline;
    ngx_msec_t                      sent;    /* last output, for comments */
    uint64_t                        first_us;
    uint64_t                        last_us;
    uint64_t                        completion_tokens;

    ngx_http_tokenring_text_t       head;    /* of every chunk */
    ngx_str_t                       tail;    /* of a chunk with text only */
    ngx_http_tokenring_text_t       out;     /* unless it is spare, _send.c */
    ngx_chain_t                     link;
    ngx_buf_t                       buf;

    /* what the output filters keep for this stream, to be fetched ahead */
    u_char                         *kept_by_filters;
    size_t                          kept_by_filters_size;

    ngx_queue_t                     wait;    /* in starving or waiting */
    ngx_event_t                     timer;

    ngx_str_t                       request_id;
    ngx_str_t                       completion;  /* 32 hex digits */
    ngx_chain_t                    *body;
    ngx_chain_t                   **last_body;
    ngx_buf_t                      *piece;   /* of a body in a file */
    ngx_chain_t                    *kept;    /* the whole body, to send again */
    ngx_chain_t                   **last_kept;
    size_t                          kept_size;
    uint64_t                        tried;   /* bit: replica of the engine */
    ngx_http_tokenring_shared_t    *shared;

    /* from ACCEPTED */
    ngx_str_t                       model;
    int64_t                         created;
    ngx_uint_t                      left;    /* choices not finished */

    uint64_t                        error_number;
    ngx_http_tokenring_text_t       queue;
    ngx_str_t                       key;     /* whose it is */

    /* for the log */
    uint64_t                        start_us;
    uint64_t                        prompt_tokens;
    tr_wire_finish_t                totals;
    ngx_uint_t                      reason;

    /* of the error */
    ngx_uint_t                      retry_after;
    ngx_str_t                       param;
    ngx_str_t                       message;
};


/* _engine.c */

void ngx_http_tokenring_connect(ngx_http_tokenring_conn_t *conn);
void ngx_http_tokenring_close(ngx_http_tokenring_conn_t *conn);
void ngx_http_tokenring_break(ngx_http_tokenring_conn_t *conn,
    const char *why);
ngx_uint_t ngx_http_tokenring_healthy(ngx_http_tokenring_conn_t *conn,
    ngx_msec_t stall, const char **why);
tr_status_t ngx_http_tokenring_choose(ngx_http_tokenring_ctx_t *ctx,
    ngx_http_tokenring_conn_t **out);
uint64_t ngx_http_tokenring_conn_bit(ngx_http_tokenring_conn_t *conn);
void ngx_http_tokenring_exit(ngx_http_tokenring_conn_t *conn);
void ngx_http_tokenring_conn_init(ngx_http_tokenring_conn_t *conn);

/* _channel.c */

ngx_int_t ngx_http_tokenring_channel_open(ngx_http_tokenring_conn_t *conn,
    int fds[TR_CHANNEL_FDS]);
void ngx_http_tokenring_channel_close(ngx_http_tokenring_conn_t *conn);
ngx_int_t ngx_http_tokenring_slot_take(ngx_http_tokenring_conn_t *conn,
    ngx_http_tokenring_ctx_t *ctx);
void ngx_http_tokenring_slot_return(ngx_http_tokenring_ctx_t *ctx);
void ngx_http_tokenring_slot_whole(ngx_http_tokenring_ctx_t *ctx);
void ngx_http_tokenring_slot_abandon(ngx_http_tokenring_ctx_t *ctx);
void ngx_http_tokenring_control(ngx_http_tokenring_ctx_t *ctx, uint32_t bits);
ngx_int_t ngx_http_tokenring_drain(ngx_http_tokenring_conn_t *conn,
    ngx_uint_t budget);
void ngx_http_tokenring_flush_dirty(ngx_http_tokenring_conn_t *conn);
void ngx_http_tokenring_dirty(ngx_http_tokenring_conn_t *conn,
    ngx_http_tokenring_ctx_t *ctx);
void ngx_http_tokenring_ring(ngx_http_tokenring_conn_t *conn);
uint64_t ngx_http_tokenring_clock(void);

/* _handler.c */

ngx_int_t ngx_http_tokenring_handler(ngx_http_request_t *r);
ngx_http_tokenring_ctx_t *ngx_http_tokenring_create_ctx(ngx_http_request_t *r,
    ngx_uint_t endpoint);
ngx_int_t ngx_http_tokenring_admit(ngx_http_tokenring_ctx_t *ctx);
ngx_int_t ngx_http_tokenring_name_completion(ngx_http_tokenring_ctx_t *ctx,
    u_char *p);
void ngx_http_tokenring_wake(ngx_http_tokenring_engine_t *engine);
void ngx_http_tokenring_wait_end(ngx_http_tokenring_ctx_t *ctx);

/* _body.c */

ngx_int_t ngx_http_tokenring_body_read(ngx_http_tokenring_ctx_t *ctx);
size_t ngx_http_tokenring_body_held(ngx_http_tokenring_ctx_t *ctx);
void ngx_http_tokenring_body_again(ngx_http_tokenring_ctx_t *ctx);
void ngx_http_tokenring_body_send(ngx_http_tokenring_ctx_t *ctx);
void ngx_http_tokenring_body_feed(ngx_http_tokenring_conn_t *conn);

/* _record.c */

ngx_int_t ngx_http_tokenring_record(ngx_http_tokenring_ctx_t *ctx,
    tr_record_t *rec, u_char *payload);

/* _request.c */

void ngx_http_tokenring_fail(ngx_http_tokenring_ctx_t *ctx, tr_status_t error,
    const char *message);
void ngx_http_tokenring_watch(ngx_http_tokenring_ctx_t *ctx);
void ngx_http_tokenring_arm(ngx_http_tokenring_ctx_t *ctx);
void ngx_http_tokenring_timer(ngx_event_t *ev);
void ngx_http_tokenring_deadline(ngx_http_tokenring_ctx_t *ctx,
    ngx_http_tokenring_phase_e phase);
ngx_uint_t ngx_http_tokenring_client_left(ngx_http_request_t *r);
void ngx_http_tokenring_hang_up(ngx_http_tokenring_ctx_t *ctx);
void ngx_http_tokenring_cleanup(void *data);
void ngx_http_tokenring_pool_cleanup(void *data);

/* _retry.c */

ngx_int_t ngx_http_tokenring_keep(ngx_http_tokenring_ctx_t *ctx,
    ngx_chain_t *in);
void ngx_http_tokenring_forget(ngx_http_tokenring_ctx_t *ctx);
ngx_int_t ngx_http_tokenring_rewind(ngx_http_tokenring_ctx_t *ctx);
ngx_int_t ngx_http_tokenring_retry(ngx_http_tokenring_ctx_t *ctx);
void ngx_http_tokenring_resend(ngx_http_tokenring_ctx_t *ctx);

/* _send.c */

void ngx_http_tokenring_flush(ngx_http_tokenring_ctx_t *ctx);
void ngx_http_tokenring_write_handler(ngx_http_request_t *r);
void ngx_http_tokenring_finalize(ngx_http_tokenring_ctx_t *ctx, ngx_int_t rc);
ngx_int_t ngx_http_tokenring_add_header(ngx_http_request_t *r,
    const char *key, ngx_str_t *value);
ngx_int_t ngx_http_tokenring_add_ids(ngx_http_tokenring_ctx_t *ctx);
ngx_int_t ngx_http_tokenring_send_body(ngx_http_request_t *r,
    ngx_uint_t status, const char *type, ngx_http_tokenring_text_t *t);

/* _socket.c */

void ngx_http_tokenring_socket_take(ngx_connection_t *c);
void ngx_http_tokenring_socket_return(ngx_connection_t *c);

/* _openai.c: 1 byte or more rendered, or 0; NGX_ERROR: out of memory */

ngx_int_t ngx_http_tokenring_render_heads(ngx_http_tokenring_ctx_t *ctx);
ngx_int_t ngx_http_tokenring_render_chunks(ngx_http_tokenring_ctx_t *ctx);
ngx_int_t ngx_http_tokenring_render_whole(ngx_http_tokenring_ctx_t *ctx);
const char *ngx_http_tokenring_reason(ngx_uint_t reason);

ngx_int_t ngx_http_tokenring_render_delta(ngx_http_tokenring_ctx_t *ctx,
    ngx_uint_t index, uint64_t number);
ngx_int_t ngx_http_tokenring_render_finish(ngx_http_tokenring_ctx_t *ctx,
    ngx_uint_t index, uint64_t number);
ngx_int_t ngx_http_tokenring_render_usage(ngx_http_tokenring_text_t *t,
    uint64_t prompt_tokens, uint64_t completion_tokens,
    tr_wire_finish_t *totals);

/* _resumable.c */

tr_status_t ngx_http_tokenring_resumable_init(ngx_http_tokenring_ctx_t *ctx,
    const char **why);
void ngx_http_tokenring_resumable_submit(ngx_http_tokenring_ctx_t *ctx,
    tr_wire_submit_t *head);
void ngx_http_tokenring_owner(ngx_str_t *id, ngx_str_t *key, u_char *owner);
ngx_str_t *ngx_http_tokenring_header_in(ngx_http_request_t *r,
    const char *name);
ngx_int_t ngx_http_tokenring_queue_delta(ngx_http_tokenring_ctx_t *ctx,
    uint32_t index, tr_wire_bytes_t *text, tr_wire_bytes_t *logprobs);
ngx_int_t ngx_http_tokenring_queue_finish(ngx_http_tokenring_ctx_t *ctx,
    uint32_t index);
ngx_int_t ngx_http_tokenring_render_records(ngx_http_tokenring_ctx_t *ctx);

/* _logprobs.c */

ngx_int_t ngx_http_tokenring_logprobs_check(tr_wire_bytes_t *logprobs);
ngx_int_t ngx_http_tokenring_logprobs_chat(ngx_http_tokenring_text_t *out,
    ngx_http_tokenring_choice_t *choice);
ngx_int_t ngx_http_tokenring_logprobs_completion(
    ngx_http_tokenring_text_t *out, ngx_http_tokenring_choice_t *choice);

/* _text.c */

ngx_int_t ngx_http_tokenring_reserve(ngx_http_tokenring_text_t *t, size_t n);
ngx_int_t ngx_http_tokenring_append(ngx_http_tokenring_text_t *t,
    const void *data, size_t len);
ngx_int_t ngx_http_tokenring_printf(ngx_http_tokenring_text_t *t, size_t max,
    const char *fmt, ...);
ngx_int_t ngx_http_tokenring_json(ngx_http_tokenring_text_t *t,
    const u_char *data, size_t len);
ngx_int_t ngx_http_tokenring_label(ngx_http_tokenring_text_t *t,
    const char *value);
size_t ngx_http_tokenring_cut(const u_char *data, size_t len, size_t max);
size_t ngx_http_tokenring_characters(const u_char *data, size_t len);
void ngx_http_tokenring_text_reset(ngx_http_tokenring_text_t *t);
ngx_http_tokenring_text_t *ngx_http_tokenring_text_create(ngx_pool_t *pool);
void ngx_http_tokenring_text_free(ngx_http_tokenring_text_t *t);

/* _error.c */

ngx_int_t ngx_http_tokenring_render_error(ngx_http_tokenring_text_t *t,
    const char *type, const char *code, ngx_str_t *param, ngx_str_t *message);
ngx_int_t ngx_http_tokenring_render_error_field(ngx_http_tokenring_text_t *t,
    const char *type, const char *code, ngx_str_t *param, ngx_str_t *message);
ngx_int_t ngx_http_tokenring_send_error(ngx_http_request_t *r,
    tr_status_t status, const char *message);
ngx_int_t ngx_http_tokenring_send_failure(ngx_http_tokenring_ctx_t *ctx);
ngx_int_t ngx_http_tokenring_send_http_error(ngx_http_request_t *r,
    ngx_uint_t status);
ngx_int_t ngx_http_tokenring_error_handler(ngx_http_request_t *r);

/* _status.c */

ngx_int_t ngx_http_tokenring_models(ngx_http_request_t *r, ngx_str_t *id);
ngx_int_t ngx_http_tokenring_health_handler(ngx_http_request_t *r);

/* _metrics.c */

ngx_int_t ngx_http_tokenring_metrics_handler(ngx_http_request_t *r);
ngx_int_t ngx_http_tokenring_zone_init(ngx_shm_zone_t *zone, void *data);
ngx_int_t ngx_http_tokenring_log_handler(ngx_http_request_t *r);
ngx_int_t ngx_http_tokenring_gateway_metrics(ngx_http_tokenring_text_t *out);
ngx_uint_t ngx_http_tokenring_workers(ngx_http_tokenring_conn_t *conn);
void ngx_http_tokenring_process_reset(ngx_http_tokenring_shared_t *shared);
void ngx_http_tokenring_process_connected(ngx_http_tokenring_conn_t *conn,
    ngx_uint_t on);

/* _redis_conf.c */

char *ngx_http_tokenring_set_redis(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);

/* _requests.c */

ngx_int_t ngx_http_tokenring_request_state(ngx_http_request_t *r,
    ngx_str_t *id);
ngx_int_t ngx_http_tokenring_request_cancel(ngx_http_request_t *r,
    ngx_str_t *id);

/* _follow.c */

ngx_int_t ngx_http_tokenring_follow(ngx_http_request_t *r, ngx_str_t *id);
void ngx_http_tokenring_follow_more(ngx_http_tokenring_ctx_t *ctx);
void ngx_http_tokenring_follow_end(ngx_http_tokenring_ctx_t *ctx);
void ngx_http_tokenring_follow_expired(ngx_http_tokenring_ctx_t *ctx);

/* _dashboard.c */

ngx_int_t ngx_http_tokenring_dashboard_handler(ngx_http_request_t *r);
char *ngx_http_tokenring_set_dashboard(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);

/* _variables.c */

ngx_int_t ngx_http_tokenring_add_variables(ngx_conf_t *cf);


extern ngx_module_t  ngx_http_tokenring_module;

/* counters of the running configuration, NULL before init_process */
extern ngx_http_tokenring_shared_t  *ngx_http_tokenring_counters;


#endif /* _NGX_HTTP_TOKENRING_H_INCLUDED_ */
