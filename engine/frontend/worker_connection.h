/*
 * A worker connection: one worker (or command line) as the frontend thread sees
 * it.
 *
 *   HELLO    connected, has not said what it speaks; short timeout
 *   OPEN     has its channel; requests come, records go
 *   CLOSING  gone or thrown out: its requests are being ended by who owns them
 *            now; the memory that it shares stays until the step loop, which
 *            writes there, has given back the last of them
 *
 * Everything here belongs to the frontend thread.  What a worker writes is
 * hostile: memory, numbers and time spent for it are bounded, and a violated
 * check closes this connection and no other.
 *
 * A request is in its slot from the first SUBMIT part that is read to the
 * record that ends it: gathered here, parsed by the request parser, waiting to
 * be answered, then run by the step loop, which sends its output itself
 * (response_writer.h).  worker_connection_requests.c is the way in,
 * worker_connection_replies.c answers; fleet.c is `tokenring drain`, suspects.c
 * lets requests join alone.
 */
#ifndef TR_WORKER_CONNECTION_H
#define TR_WORKER_CONNECTION_H

#include <tokenring/bell.h>
#include <tokenring/channel.h>
#include <tokenring/status.h>
#include <tokenring/upload.h>

#include "engine/config/config.h"
#include "engine/api/request_parser.h"
#include "engine/transport/listener.h"
#include "engine/scheduler/loop.h"
#include "engine/transport/response_writer.h"
#include "engine/scheduler/request.h"

/* One turn of a connection moves at most so many bytes each way. */
#define TR_CONNECTION_TURN_BYTES (64u << 10)

enum tr_connection_state {
    TR_CONNECTION_HELLO,
    TR_CONNECTION_OPEN,
    TR_CONNECTION_CLOSING
};

enum tr_slot_state {
    TR_SLOT_FREE,
    TR_SLOT_GATHERING, /* parts are coming */
    TR_SLOT_PARSING,   /* the request parser's */
    TR_SLOT_REPLY,     /* in the list of answers */
    TR_SLOT_RUNNING    /* the step loop's */
};

typedef struct {
    tr_request_t *request; /* NULL when free */
    size_t charged;        /* bytes of its body, counted in body_bytes */
    size_t laid_out;       /* bytes of its arena, counted in the env's */
    uint64_t tokens;       /* what it will hold, counted in the env's */
    uint64_t declared;     /* body_len of its SUBMIT */
    tr_pace_t pace;        /* of its parts */
    uint32_t ahead_left;   /* bytes that are to come ahead of the body */
    uint32_t generation;   /* last one seen */
    uint8_t state;
    bool gathered; /* the last part of this generation was seen */
} tr_request_slot_t;

/* What all connections share. */
typedef struct {
    const tr_config_t *config;
    tr_request_parser_t *parser;
    tr_loop_t *loop; /* NULL once it was stopped */
    tr_status_page_t *status;
    tr_request_events_t *events; /* NULL: nothing is published */
    int status_fd;
    int wake_fd; /* ours: who has news for the frontend thread rings it */
    int epoll;
    tr_bell_t bell;
    uint8_t *buf; /* one payload of the largest request ring */
    size_t buf_size;
    uint64_t now_us;
    size_t laid_out;      /* bytes of arenas, of all requests past the parser */
    uint64_t outstanding; /* tokens (tr_status_admission_t) */
    uint64_t kv_tokens;   /* as last published */
    uint64_t answer_tokens;    /* of a choice, average of late, times 16 */
    uint32_t inside;           /* requests of all connections, in any state */
    const tr_request_t *alone; /* who joins alone (suspects.c); NULL: nobody */
    uint32_t suspects;         /* held, at least */
    bool held;                 /* somebody may be */
    bool draining;             /* the process ends */
    bool refusing;             /* `tokenring drain`: nothing new, no hurry */
    bool leaving;              /* refusing, and then the process ends */
    bool drain_changed;        /* one of these changed: to be published */
    bool wake_loop; /* commands changed or space came free in this turn */
} tr_frontend_env_t;

typedef struct tr_connection tr_connection_t;

enum tr_source_kind {
    TR_SOURCE_LISTENER,
    TR_SOURCE_WAKE,
    TR_SOURCE_SOCKET,
    TR_SOURCE_BELL
};

/* What epoll hands back. */
typedef struct {
    enum tr_source_kind kind;
    tr_connection_t *connection;
} tr_source_t;

struct tr_connection {
    tr_frontend_env_t *env;
    tr_connection_t *next;
    enum tr_connection_state state;
    uint32_t number; /* in logs */
    tr_credentials_t who;
    uint64_t connected_us;

    int sock;
    int channel_fd; /* until the worker has sealed it, then -1 */
    int bell_in;    /* the worker rings */
    int bell_out;   /* we ring */
    tr_source_t on_sock, on_bell;
    tr_hello_t hello;
    size_t hello_len;

    tr_channel_map_t map;
    tr_ring_consumer_t requests;
    tr_ring_producer_t answers;
    tr_response_writer_t writer; /* the ring of responses: the step loop's */
    tr_request_slot_t *slots;    /* [map.slots] */
    uint32_t n_slots;
    uint32_t features;   /* TR_FEATURE_*: that both sides have */
    uint32_t n_requests; /* slots not free */
    size_t body_bytes;   /* held by bodies of its requests */
    tr_request_t *replies, *replies_tail;

    uint64_t beat;             /* of the loop, for a pong of its; 0: none */
    bool in_ready;             /* there may be records or commands */
    bool blocked;              /* its ring of answers is full */
    bool ring;                 /* it must be rung */
    uint64_t blocked_since_us; /* 0: not; no answer was taken since */
    uint64_t full_since_us;    /* 0, or: the step loop wants room in the ring
                                * of responses, and nothing was taken since */
    uint64_t full_head;        /* what it had taken then */
    char reason[192];          /* why the last check failed */
};

/* ---- worker_connection.c
 * ------------------------------------------------------------- */

/* Takes a connection; NULL (and the connection closed) when it is refused. */
tr_connection_t *tr_connection_new(tr_frontend_env_t *env, int sock,
                                   const tr_credentials_t *who,
                                   uint32_t number);

/* The socket has news: the hello, or the end. */
void tr_connection_on_socket(tr_connection_t *c);
/* The worker rang. */
void tr_connection_on_bell(tr_connection_t *c);

/* Does what can be done now, within one turn's bytes; true when there is more
 * to do at once. */
bool tr_connection_turn(tr_connection_t *c);

/* When something must be decided about this connection though nothing happens;
 * UINT64_MAX: never. */
uint64_t tr_connection_deadline(const tr_connection_t *c);
void tr_connection_on_deadline(tr_connection_t *c);

/* Ends the connection and asks for the end of its requests. */
void tr_connection_close(tr_connection_t *c, int level, const char *why);
/* Frees a CLOSING connection without requests, or any when nothing else
 * runs. */
void tr_connection_free(tr_connection_t *c);

/* The channel's descriptor is not needed any more. */
void tr_connection_sealed(tr_connection_t *c);

/* Notes why and returns TR_ERR_PROTOCOL. */
tr_status_t tr_connection_violation(tr_connection_t *c, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* ---- worker_connection_requests.c
 * ---------------------------------------------------- */

tr_status_t tr_connection_take_commands(tr_connection_t *c);
tr_status_t tr_connection_take_requests(tr_connection_t *c);
/* The request parser is done with r. */
void tr_connection_parsed(tr_connection_t *c, tr_request_t *r);
/* Refuses what is still being gathered. */
void tr_connection_drain(tr_connection_t *c);
/* Requests that the step loop gave back, of any connection; linked by next. */
void tr_connection_reap(tr_request_t *over);
/* The request of this slot is over. */
void tr_connection_end(tr_connection_t *c, tr_request_slot_t *s);
/* The client of this slot's request, which goes on without, has left. */
void tr_connection_detach(tr_connection_t *c, tr_request_slot_t *s);
/* All of it is here: on to the request parser, or held (suspects.c). */
void tr_connection_submit(tr_connection_t *c, tr_request_slot_t *s);
/* Cancels the request with this event_id; false: it is not of this
 * connection. */
bool tr_connection_cancel(tr_connection_t *c, uint64_t event_id);

/* ---- fleet.c -------------------------------------------------------- */

/* The drain request of its hello, if any; TR_ERR_CLOSED: it may not, and
 * welcome says so. */
tr_status_t tr_connection_drain_request(tr_connection_t *c,
                                        tr_welcome_t *welcome);
/* Counts what r, which the step loop takes, will hold at its end. */
void tr_connection_charge_tokens(tr_connection_t *c, tr_request_slot_t *s);
/* r is over. */
void tr_connection_uncharge_tokens(tr_connection_t *c, tr_request_slot_t *s);
/* What the page says: answers may be longer than expected, but it is never less
 * than what is cached. */
static inline uint64_t
tr_connection_outstanding(const tr_frontend_env_t *env)
{
    return env->outstanding > env->kv_tokens ? env->outstanding
                                             : env->kv_tokens;
}

/* ---- suspects.c --------------------------------------------------------- */

/* Must r wait, since others may be why an engine ends, or it may be?  Else it
 * starts now. */
bool tr_suspects_hold(tr_frontend_env_t *env, tr_request_t *r);
/* Those that are held and may start now, of all connections. */
void tr_suspects_release(tr_frontend_env_t *env, tr_connection_t *connections);
/* The loop has a place for r, or r is over: it is named no longer. */
void tr_suspects_parsed(tr_frontend_env_t *env, tr_request_t *r);
/* r is over. */
void tr_suspects_end(tr_frontend_env_t *env, const tr_request_t *r);

/* ---- worker_connection_replies.c
 * ----------------------------------------------------- */

/* Queues r for its answer: ERROR if r->error says so, FINISH if it was
 * aborted, else ACCEPTED and on to the step loop.  A detached one waits for
 * nothing: it is on its way to the loop, or over, when this returns, unless its
 * worker is still to hear an ERROR. */
void tr_connection_reply(tr_connection_t *c, tr_request_t *r);
/* Takes r out of the answers that wait. */
void tr_connection_unqueue(tr_connection_t *c, tr_request_t *r);
/* Answers, as far as they fit. */
tr_status_t tr_connection_send(tr_connection_t *c);

#endif
