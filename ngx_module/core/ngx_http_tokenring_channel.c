/*
 * The channel: doorbells, and the dispatch of records to requests.
 *
 * Draining takes at most a budget of records in one turn of the event loop and
 * only notes what they mean; then every request with something to send is
 * flushed once.  So a request costs one write(), however many records came for
 * it.  The sleep flag is set last: while the worker writes, the engine need not
 * ring.
 */

#include "ngx_http_tokenring_body.h"
#include "ngx_http_tokenring_alone.h"
#include "ngx_http_tokenring_channel.h"
#include "ngx_http_tokenring_request.h"
#include "ngx_http_tokenring_send.h"
#include "ngx_http_tokenring_slot.h"

#include <tokenring/bell.h>


extern ngx_module_t  ngx_http_write_filter_module;


static void ngx_http_tokenring_alone_over(ngx_http_tokenring_slot_t *slot,
    tr_record_t *rec);
static void ngx_http_tokenring_bell_open(void);
static ngx_int_t ngx_http_tokenring_doorbell_add(
    ngx_http_tokenring_conn_t *conn, int fd);
static void ngx_http_tokenring_doorbell(ngx_event_t *ev);
static ngx_int_t ngx_http_tokenring_drain_record(
    ngx_http_tokenring_conn_t *conn, tr_record_t *rec);


/* records taken in one turn of the event loop */
#define NGX_HTTP_TOKENRING_BUDGET   256

#define NGX_HTTP_TOKENRING_LINE     64

/* longer than any write that does not block, however busy the machine is */
#define NGX_HTTP_TOKENRING_BELL_NS  10000000


/*
 * Prefetches every cache line of n bytes at p.  The empty asm keeps the
 * compiler from dropping a function that does nothing but prefetch.
 */

#define ngx_http_tokenring_fetch(p, n)                                        \
    do {                                                                      \
        const u_char  *line, *end;                                            \
                                                                              \
        end = (const u_char *) (p) + (n);                                     \
        line = (const u_char *) ((uintptr_t) (p)                              \
                                 & ~(uintptr_t)                               \
                                     (NGX_HTTP_TOKENRING_LINE - 1));          \
                                                                              \
        for ( /* void */ ; line < end; line += NGX_HTTP_TOKENRING_LINE) {     \
            __builtin_prefetch(line, 1);                                      \
        }                                                                     \
                                                                              \
        __asm__ volatile ("");                                                \
    } while (0)


/* the current record of any channel, copied out of its ring */

static u_char  *ngx_http_tokenring_scratch;
static size_t   ngx_http_tokenring_scratch_size;

static tr_bell_t  ngx_http_tokenring_bell;


uint64_t
ngx_http_tokenring_clock(void)
{
    struct timespec  ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);

    return (uint64_t) ts.tv_sec * 1000000 + ts.tv_nsec / 1000;
}


/* once per process: it has one thread that rings */

static void
ngx_http_tokenring_bell_open(void)
{
    int  err;

    static ngx_uint_t  opened;

    if (opened) {
        return;
    }

    opened = 1;

    err = tr_bell_open(&ngx_http_tokenring_bell, NGX_HTTP_TOKENRING_BELL_NS);

    if (err) {
        ngx_log_error(NGX_LOG_WARN, ngx_cycle->log, err,
                      "tokenring: no timer to guard writes to doorbells");
    }
}


void
ngx_http_tokenring_ring(ngx_http_tokenring_conn_t *conn)
{
    if (conn->broken) {
        return;
    }

    ngx_log_debug2(NGX_LOG_DEBUG_HTTP, ngx_cycle->log, 0,
                   "tokenring channel: ring, engine:%V/%ui",
                   &conn->engine->name, conn->replica);

    if (!tr_bell_ring(&ngx_http_tokenring_bell, conn->to_engine)) {
        ngx_http_tokenring_break(conn, "its doorbell blocks the writer");
    }

    /* the timer must not interrupt any other system call of the worker */
    tr_bell_rest(&ngx_http_tokenring_bell);
}


/* the buffer that records of all connections are copied to */

static ngx_int_t
ngx_http_tokenring_scratch_grow(size_t size)
{
    u_char  *p;

    if (size <= ngx_http_tokenring_scratch_size) {
        return NGX_OK;
    }

    p = ngx_alloc(size, ngx_cycle->log);
    if (p == NULL) {
        return NGX_ERROR;
    }

    if (ngx_http_tokenring_scratch) {
        ngx_free(ngx_http_tokenring_scratch);
    }

    ngx_http_tokenring_scratch = p;
    ngx_http_tokenring_scratch_size = size;

    return NGX_OK;
}


/* takes the descriptors, also when it fails */

ngx_int_t
ngx_http_tokenring_channel_open(ngx_http_tokenring_conn_t *conn,
    int fds[TR_CHANNEL_FDS])
{
    ngx_http_tokenring_bell_open();

    conn->to_engine = fds[TR_FD_TO_ENGINE];
    conn->slots = NULL;
    conn->page = NULL;

    if (tr_channel_attach(fds[TR_FD_CHANNEL], &conn->map) != TR_OK
        || tr_status_attach(fds[TR_FD_STATUS], &conn->page) != TR_OK
        || ngx_http_tokenring_scratch_grow(tr_inbox_max_payload(&conn->map))
           != NGX_OK
        || ngx_http_tokenring_slots_create(conn) != NGX_OK)
    {
        goto failed;
    }

    conn->again = 0;

    tr_ring_producer_init(&conn->requests, conn->map.request,
                          conn->map.request_data, conn->map.request_capacity);
    tr_inbox_init(&conn->inbox, &conn->map);

    tr_status_card_copy(conn->page, &conn->card);
    ngx_memzero(&conn->admission, sizeof(tr_status_admission_t));

    if (ngx_http_tokenring_doorbell_add(conn, fds[TR_FD_TO_PEER]) != NGX_OK) {
        goto failed;
    }

    close(fds[TR_FD_CHANNEL]);
    close(fds[TR_FD_STATUS]);

    ngx_log_debug5(NGX_LOG_DEBUG_HTTP, ngx_cycle->log, 0,
                   "tokenring channel: open, slots:%uD requests:%uD "
                   "responses:%uD engine:%V/%ui", conn->map.slots,
                   conn->map.request_capacity, conn->map.response_capacity,
                   &conn->engine->name, conn->replica);

    return NGX_OK;

failed:

    ngx_http_tokenring_channel_close(conn);

    close(fds[TR_FD_CHANNEL]);
    close(fds[TR_FD_STATUS]);
    close(fds[TR_FD_TO_PEER]);

    return NGX_ERROR;
}


void
ngx_http_tokenring_channel_close(ngx_http_tokenring_conn_t *conn)
{
    ngx_log_debug2(NGX_LOG_DEBUG_HTTP, ngx_cycle->log, 0,
                   "tokenring channel: close, engine:%V/%ui",
                   &conn->engine->name, conn->replica);

    if (conn->doorbell) {

        /*
         * The engine holds the same eventfd open, so closing ours would not
         * remove it from epoll.
         */

        if (ngx_del_conn) {
            (void) ngx_del_conn(conn->doorbell, 0);

        } else {
            (void) ngx_del_event(conn->doorbell->read, NGX_READ_EVENT, 0);
        }

        ngx_close_connection(conn->doorbell);
        conn->doorbell = NULL;
    }

    if (conn->to_engine != -1) {
        close(conn->to_engine);
        conn->to_engine = -1;
    }

    ngx_http_tokenring_slots_free(conn);

    tr_status_unmap(conn->page);
    conn->page = NULL;

    tr_channel_unmap(&conn->map);
}


/*
 * As ngx_add_channel_event(), which does not return the connection.  Marked as
 * a channel, the descriptor is not reported as an open socket at exit.  With
 * an edge-triggered event method every ring is an event, and the eventfd need
 * never be read, which saves a system call per batch.
 */

static ngx_int_t
ngx_http_tokenring_doorbell_add(ngx_http_tokenring_conn_t *conn, int fd)
{
    ngx_connection_t  *c;

    if (ngx_nonblocking(fd) == -1 || ngx_nonblocking(conn->to_engine) == -1) {
        return NGX_ERROR;
    }

    c = ngx_get_connection(fd, ngx_cycle->log);
    if (c == NULL) {
        return NGX_ERROR;
    }

    c->data = conn;
    c->log = ngx_cycle->log;
    c->read->log = ngx_cycle->log;
    c->write->log = ngx_cycle->log;
    c->read->channel = 1;
    c->write->channel = 1;
    c->read->handler = ngx_http_tokenring_doorbell;

    if (ngx_add_event(c->read, NGX_READ_EVENT,
                      (ngx_event_flags & NGX_USE_CLEAR_EVENT) ? NGX_CLEAR_EVENT
                                                              : 0)
        != NGX_OK)
    {
        ngx_free_connection(c);
        c->fd = (ngx_socket_t) -1;
        return NGX_ERROR;
    }

    conn->doorbell = c;

    /* both sides start awake: check once */
    ngx_post_event(c->read, &ngx_posted_events);

    return NGX_OK;
}


static void
ngx_http_tokenring_doorbell(ngx_event_t *ev)
{
    ngx_int_t                   rc;
    ngx_connection_t           *c;
    ngx_http_tokenring_conn_t  *conn;

    c = ev->data;
    conn = c->data;

    if (conn->again) {
        /* posted by ourselves: if somebody rang, epoll will say so */
        conn->again = 0;

    } else if (!(ngx_event_flags & NGX_USE_CLEAR_EVENT)) {
        tr_doorbell_drain(c->fd);
    }

    if (conn->state != NGX_HTTP_TOKENRING_READY || conn->broken) {
        return;
    }

    tr_inbox_awake(&conn->inbox);

    rc = ngx_http_tokenring_drain(conn, NGX_HTTP_TOKENRING_BUDGET);

    ngx_http_tokenring_body_feed(conn);

    ngx_http_tokenring_flush_dirty(conn);

    if (rc == NGX_ERROR) {
        return;
    }

    if (rc == NGX_OK) {
        switch (tr_inbox_sleep(&conn->inbox)) {

        case TR_AGAIN:
            return;

        case TR_OK:
            break;

        default:
            ngx_http_tokenring_break(conn, "the index of one of its rings "
                                     "is out of range");
            return;
        }
    }

    conn->again = 1;
    ngx_post_event(ev, &ngx_posted_next_events);
}


/*
 * NGX_OK: empty; NGX_AGAIN: the budget is spent; NGX_ERROR: broken.  At most
 * one pass over the rings, whatever the budget.
 */

ngx_int_t
ngx_http_tokenring_drain(ngx_http_tokenring_conn_t *conn, ngx_uint_t budget)
{
    ngx_int_t    rc;
    ngx_uint_t   i;
    tr_record_t  rec;
    tr_status_t  got;

    if (conn->broken) {
        return NGX_ERROR;
    }

    conn->now = ngx_http_tokenring_clock();
    conn->heard = ngx_current_msec;
    rc = NGX_AGAIN;

    for (i = 0; i < budget; i++) {

        got = tr_inbox_get(&conn->inbox, &rec, ngx_http_tokenring_scratch,
                           ngx_http_tokenring_scratch_size);

        if (got == TR_AGAIN) {
            rc = NGX_OK;
            break;
        }

        if (got != TR_OK) {
            ngx_http_tokenring_break(conn, "one of its rings is malformed");
            return NGX_ERROR;
        }

        if (ngx_http_tokenring_drain_record(conn, &rec) != NGX_OK) {
            return NGX_ERROR;
        }
    }

    ngx_log_debug4(NGX_LOG_DEBUG_HTTP, ngx_cycle->log, 0,
                   "tokenring channel: records:%ui more:%d engine:%V/%ui", i,
                   rc == NGX_AGAIN, &conn->engine->name, conn->replica);

    if (tr_inbox_release(&conn->inbox)) {
        ngx_http_tokenring_ring(conn);
    }

    return rc;
}


/* to the request whose slot it names */

static ngx_int_t
ngx_http_tokenring_drain_record(ngx_http_tokenring_conn_t *conn,
    tr_record_t *rec)
{
    uint32_t                    n;
    ngx_http_tokenring_ctx_t   *ctx;
    ngx_http_tokenring_slot_t  *slot;

    n = TR_ID_SLOT(rec->id);

    if (n >= conn->map.slots || !conn->slots[n].used
        || conn->slots[n].generation != TR_ID_GENERATION(rec->id))
    {
        ngx_log_debug2(NGX_LOG_DEBUG_HTTP, ngx_cycle->log, 0,
                       "tokenring channel: record of nobody, type:%ud "
                       "slot:%uD", (u_int) rec->type, n);
        return NGX_OK;
    }

    slot = &conn->slots[n];
    ctx = slot->ctx;

    if (ctx && ngx_http_tokenring_record(ctx, rec, ngx_http_tokenring_scratch)
               != NGX_OK)
    {
        return NGX_ERROR;
    }

    if (rec->type == TR_RECORD_ACCEPTED) {
        ngx_http_tokenring_slot_known(conn, n, ngx_http_tokenring_scratch,
                                      rec->length);
    }

    /* the end of an abandoned request frees its slot, too */

    if (rec->type == TR_RECORD_ERROR
        || (rec->type == TR_RECORD_FINISH
            && rec->length >= sizeof(tr_wire_finish_t)
            && ((tr_wire_finish_t *) ngx_http_tokenring_scratch)->flags
               & TR_FINISH_LAST))
    {
        if (slot->ctx) {
            slot->ctx->conn = NULL;
        }

        if (slot->alone) {
            ngx_http_tokenring_alone_over(slot, rec);
        }

        ngx_http_tokenring_slot_free(conn, n);
    }

    return NGX_OK;
}


/* the end of a request whose client has left: how many tokens it had */

static void
ngx_http_tokenring_alone_over(ngx_http_tokenring_slot_t *slot,
    tr_record_t *rec)
{
    uint64_t           tokens;
    tr_wire_bytes_t    ignored;
    tr_wire_error_t    error;
    tr_wire_finish_t   finish;

    tokens = UINT64_MAX;

    if (rec->type == TR_RECORD_FINISH) {

        if (tr_wire_finish_parse(ngx_http_tokenring_scratch, rec->length,
                                 &finish, NULL)
            == TR_OK)
        {
            tokens = finish.completion_tokens;
        }

    } else if (tr_wire_error_parse(ngx_http_tokenring_scratch, rec->length,
                                   &error, &ignored, &ignored)
               == TR_OK)
    {
        tokens = error.completion_tokens;
    }

    ngx_http_tokenring_alone_end(slot->alone, tokens);
    slot->alone = NULL;
}


void
ngx_http_tokenring_dirty(ngx_http_tokenring_conn_t *conn,
    ngx_http_tokenring_ctx_t *ctx)
{
    if (!ctx->is_dirty && conn) {
        ctx->is_dirty = 1;
        ngx_queue_insert_tail(&conn->dirty, &ctx->dirty);
    }
}


/*
 * What flushing a request touches is in no CPU cache when a hundred streams
 * take turns, and one pointer leads to the next.  So while a request is
 * written, the four behind it are prefetched, each one step further.  What is
 * fetched of NGINX's structures is what its output filters read.
 */

static void
ngx_http_tokenring_approach(ngx_http_tokenring_conn_t *conn, ngx_queue_t *q)
{
    ngx_uint_t                 first, step;
    ngx_connection_t          *c;
    ngx_http_request_t        *r;
    ngx_http_tokenring_ctx_t  *ctx;

    /* no filter has a smaller index */
    first = ngx_http_write_filter_module.ctx_index;

    for (step = 1; step <= 4; step++) {

        q = ngx_queue_next(q);

        if (q == ngx_queue_sentinel(&conn->dirty)) {
            return;
        }

        ctx = ngx_queue_data(q, ngx_http_tokenring_ctx_t, dirty);
        r = ctx->request;

        switch (step) {

        case 1:
            c = r->connection;
            ngx_http_tokenring_fetch(c->write, sizeof(ngx_event_t));
            /* and the data of the log, which is allocated next to it */
            ngx_http_tokenring_fetch(c->log, 3 * NGX_HTTP_TOKENRING_LINE);
            break;

        case 2:
            ngx_http_tokenring_fetch(r->connection, sizeof(ngx_connection_t));
            ngx_http_tokenring_fetch(r->ctx + first,
                                     (ngx_http_max_module - first)
                                     * sizeof(void *));
            ngx_http_tokenring_fetch(r->pool, sizeof(ngx_pool_t));
            ngx_http_tokenring_fetch(ctx->kept_by_filters,
                                     ctx->kept_by_filters_size);
            break;

        case 3:
            ngx_http_tokenring_fetch(r, 2 * NGX_HTTP_TOKENRING_LINE);
            ngx_http_tokenring_fetch(&r->out,
                                     (u_char *) &r->state
                                     - (u_char *) &r->out);
            ngx_http_tokenring_fetch(ctx->choices,
                                     sizeof(ngx_http_tokenring_choice_t));
            ngx_http_tokenring_fetch(ctx->head.start,
                                     ngx_min((size_t) (ctx->head.last
                                                       - ctx->head.start),
                                             4 * NGX_HTTP_TOKENRING_LINE));
            break;

        default:
            ngx_http_tokenring_fetch(ctx,
                                     offsetof(ngx_http_tokenring_ctx_t, wait));
            break;
        }
    }
}


/* flushing one request may end others, which leave the queue themselves */

void
ngx_http_tokenring_flush_dirty(ngx_http_tokenring_conn_t *conn)
{
    ngx_queue_t               *q;
    ngx_connection_t          *c;
    ngx_http_tokenring_ctx_t  *ctx;

    while (!ngx_queue_empty(&conn->dirty)) {

        q = ngx_queue_head(&conn->dirty);
        ngx_http_tokenring_approach(conn, q);
        ngx_queue_remove(q);

        ctx = ngx_queue_data(q, ngx_http_tokenring_ctx_t, dirty);
        ctx->is_dirty = 0;

        c = ctx->request->connection;

        ngx_http_set_log_request(c->log, ctx->request);

        ngx_http_tokenring_flush(ctx);

        ngx_http_run_posted_requests(c);
    }
}
