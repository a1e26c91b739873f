/*
 * The channel: slots, doorbells, and the way of records to their requests.
 *
 * A request owns a slot from its first record until the engine has said its
 * last word about it (FINISH with LAST, or ERROR).  A request that ends earlier
 * abandons its slot: the engine is told to abort, what it still says is
 * dropped.
 *
 * Draining takes at most a budget of records a turn and only notes what they
 * mean; then every request that has something to tell is flushed, once.  So a
 * request costs one write() however many records came for it.  The sleep flag
 * is set last: while the worker writes, the engine need not ring.
 */

#include "ngx_http_tokenring.h"


extern ngx_module_t  ngx_http_write_filter_module;


static void ngx_http_tokenring_bell_open(void);
static ngx_int_t ngx_http_tokenring_doorbell_add(
    ngx_http_tokenring_peer_t *peer, int fd);
static void ngx_http_tokenring_doorbell(ngx_event_t *ev);
static void ngx_http_tokenring_slot_known(ngx_http_tokenring_peer_t *peer,
    uint32_t n, tr_record_t *rec);
static void ngx_http_tokenring_slot_free(ngx_http_tokenring_peer_t *peer,
    uint32_t n);


#define NGX_HTTP_TOKENRING_NO_SLOT  0xffffffff
#define NGX_HTTP_TOKENRING_LINE     64

/* no write that need not wait sees it, however busy the machine is */
#define NGX_HTTP_TOKENRING_BELL_NS  10000000


/*
 * Every line that n bytes from p on have a part in.  It looks empty to the
 * compiler, which drops functions that do nothing but prefetch.
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


/* what is taken out of a ring, one record at a time, for all channels */

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


/* once a process, whose only thread it is that rings */

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
                      "tokenring: no timer to guard doorbells");
    }
}


void
ngx_http_tokenring_ring(ngx_http_tokenring_peer_t *peer)
{
    if (peer->broken) {
        return;
    }

    if (!tr_bell_ring(&ngx_http_tokenring_bell, peer->to_engine)) {
        ngx_http_tokenring_break(peer, "its doorbell keeps who rings");
    }

    /* no other call of the worker may be interrupted */
    tr_bell_rest(&ngx_http_tokenring_bell);
}


/* takes the descriptors, also when it fails */

ngx_int_t
ngx_http_tokenring_channel_open(ngx_http_tokenring_peer_t *peer,
    int fds[TR_CHANNEL_FDS])
{
    size_t    size;
    u_char   *p;
    uint32_t  i;

    ngx_http_tokenring_bell_open();

    peer->to_engine = fds[TR_FD_TO_ENGINE];
    peer->slots = NULL;
    peer->page = NULL;

    if (tr_channel_attach(fds[TR_FD_CHANNEL], &peer->map) != TR_OK
        || tr_status_attach(fds[TR_FD_STATUS], &peer->page) != TR_OK)
    {
        goto failed;
    }

    size = tr_inbox_max_payload(&peer->map);

    if (size > ngx_http_tokenring_scratch_size) {
        p = ngx_alloc(size, ngx_cycle->log);
        if (p == NULL) {
            goto failed;
        }

        if (ngx_http_tokenring_scratch) {
            ngx_free(ngx_http_tokenring_scratch);
        }

        ngx_http_tokenring_scratch = p;
        ngx_http_tokenring_scratch_size = size;
    }

    peer->slots = ngx_calloc(sizeof(ngx_http_tokenring_slot_t)
                             * peer->map.slots, ngx_cycle->log);
    if (peer->slots == NULL) {
        goto failed;
    }

    peer->free = NGX_HTTP_TOKENRING_NO_SLOT;

    for (i = peer->map.slots; i > 0; i--) {
        peer->slots[i - 1].generation = 0;
        peer->slots[i - 1].next = peer->free;
        peer->free = i - 1;
    }

    peer->outstanding = 0;
    peer->coming = 0;
    peer->guessed = 0;
    peer->known = 0;
    peer->again = 0;

    tr_ring_producer_init(&peer->requests, peer->map.request,
                          peer->map.request_data, peer->map.request_capacity);
    tr_inbox_init(&peer->inbox, &peer->map);

    ngx_memcpy(&peer->card, &peer->page->card, sizeof(tr_status_card_t));
    peer->card.model[TR_NAME_MAX - 1] = '\0';
    peer->card.engine[TR_NAME_MAX - 1] = '\0';
    peer->card.backend[sizeof(peer->card.backend) - 1] = '\0';
    peer->card.kv_policy[sizeof(peer->card.kv_policy) - 1] = '\0';

    for (i = 0; i < TR_STATUS_LEVELS; i++) {
        peer->card.level_name[i][sizeof(peer->card.level_name[i]) - 1] = '\0';
    }

    peer->card.kv_levels = ngx_min(peer->card.kv_levels, TR_STATUS_LEVELS);

    ngx_memzero(&peer->admission, sizeof(tr_status_admission_t));

    if (ngx_http_tokenring_doorbell_add(peer, fds[TR_FD_TO_PEER]) != NGX_OK) {
        goto failed;
    }

    close(fds[TR_FD_CHANNEL]);
    close(fds[TR_FD_STATUS]);

    return NGX_OK;

failed:

    ngx_http_tokenring_channel_close(peer);

    close(fds[TR_FD_CHANNEL]);
    close(fds[TR_FD_STATUS]);
    close(fds[TR_FD_TO_PEER]);

    return NGX_ERROR;
}


void
ngx_http_tokenring_channel_close(ngx_http_tokenring_peer_t *peer)
{
    if (peer->doorbell) {

        /*
         * The engine holds the same eventfd open: closing ours would not take
         * it out of epoll.
         */

        if (ngx_del_conn) {
            (void) ngx_del_conn(peer->doorbell, 0);

        } else {
            (void) ngx_del_event(peer->doorbell->read, NGX_READ_EVENT, 0);
        }

        ngx_close_connection(peer->doorbell);
        peer->doorbell = NULL;
    }

    if (peer->to_engine != -1) {
        close(peer->to_engine);
        peer->to_engine = -1;
    }

    if (peer->slots) {
        ngx_free(peer->slots);
        peer->slots = NULL;
    }

    tr_status_unmap(peer->page);
    peer->page = NULL;

    tr_channel_unmap(&peer->map);

    peer->outstanding = 0;
    peer->coming = 0;
    peer->guessed = 0;
    peer->known = 0;
}


/*
 * As ngx_add_channel_event() does it, which keeps the connection to itself:
 * marked as a channel, the descriptor is not reported as a socket left open at
 * exit.  Where an event method reports edges, every ring is one, and the
 * eventfd need never be read: that is a system call for every batch.
 */

static ngx_int_t
ngx_http_tokenring_doorbell_add(ngx_http_tokenring_peer_t *peer, int fd)
{
    ngx_connection_t  *c;

    if (ngx_nonblocking(fd) == -1 || ngx_nonblocking(peer->to_engine) == -1) {
        return NGX_ERROR;
    }

    c = ngx_get_connection(fd, ngx_cycle->log);
    if (c == NULL) {
        return NGX_ERROR;
    }

    c->data = peer;
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

    peer->doorbell = c;

    /* both sides start awake: look once */
    ngx_post_event(c->read, &ngx_posted_events);

    return NGX_OK;
}


static void
ngx_http_tokenring_doorbell(ngx_event_t *ev)
{
    ngx_int_t                   rc;
    ngx_connection_t           *c;
    ngx_http_tokenring_peer_t  *peer;

    c = ev->data;
    peer = c->data;

    if (peer->again) {
        /* posted by ourselves: nobody rang, or epoll will say so */
        peer->again = 0;

    } else if (!(ngx_event_flags & NGX_USE_CLEAR_EVENT)) {
        tr_doorbell_drain(c->fd);
    }

    if (peer->state != NGX_HTTP_TOKENRING_READY || peer->broken) {
        return;
    }

    tr_inbox_awake(&peer->inbox);

    rc = ngx_http_tokenring_drain(peer, NGX_HTTP_TOKENRING_BUDGET);

    ngx_http_tokenring_body_feed(peer);

    ngx_http_tokenring_flush_dirty(peer);

    if (rc == NGX_ERROR) {
        return;
    }

    if (rc == NGX_OK) {
        switch (tr_inbox_sleep(&peer->inbox)) {

        case TR_AGAIN:
            return;

        case TR_OK:
            break;

        default:
            ngx_http_tokenring_break(peer, "the index of a ring of its is "
                                     "impossible");
            return;
        }
    }

    peer->again = 1;
    ngx_post_event(ev, &ngx_posted_next_events);
}


/*
 * NGX_OK: empty; NGX_AGAIN: the budget is spent; NGX_ERROR: broken.  It is once
 * round the rings at most, whatever the budget.
 */

ngx_int_t
ngx_http_tokenring_drain(ngx_http_tokenring_peer_t *peer, ngx_uint_t budget)
{
    uint32_t                    n;
    ngx_int_t                   rc;
    ngx_uint_t                  i;
    tr_record_t                 rec;
    tr_status_t                 got;
    ngx_http_tokenring_ctx_t   *ctx;
    ngx_http_tokenring_slot_t  *slot;

    if (peer->broken) {
        return NGX_ERROR;
    }

    peer->now = ngx_http_tokenring_clock();
    rc = NGX_AGAIN;

    for (i = 0; i < budget; i++) {

        got = tr_inbox_get(&peer->inbox, &rec, ngx_http_tokenring_scratch,
                           ngx_http_tokenring_scratch_size);

        if (got == TR_AGAIN) {
            rc = NGX_OK;
            break;
        }

        if (got != TR_OK) {
            ngx_http_tokenring_break(peer, "a ring of its is malformed");
            return NGX_ERROR;
        }

        n = TR_ID_SLOT(rec.id);

        if (n >= peer->map.slots || !peer->slots[n].used
            || peer->slots[n].generation != TR_ID_GENERATION(rec.id))
        {
            continue;
        }

        slot = &peer->slots[n];
        ctx = slot->ctx;

        if (ctx && ngx_http_tokenring_record(ctx, &rec,
                                             ngx_http_tokenring_scratch)
                   != NGX_OK)
        {
            return NGX_ERROR;
        }

        if (rec.type == TR_RECORD_ACCEPTED) {
            ngx_http_tokenring_slot_known(peer, n, &rec);
        }

        /* an abandoned request still ends once, which frees its slot */

        if (rec.type == TR_RECORD_ERROR
            || (rec.type == TR_RECORD_FINISH
                && rec.length == sizeof(tr_wire_finish_t)
                && ((tr_wire_finish_t *) ngx_http_tokenring_scratch)->flags
                   & TR_FINISH_LAST))
        {
            if (slot->ctx) {
                slot->ctx->peer = NULL;
            }

            ngx_http_tokenring_slot_free(peer, n);
        }
    }

    if (tr_inbox_release(&peer->inbox)) {
        ngx_http_tokenring_ring(peer);
    }

    return rc;
}


void
ngx_http_tokenring_dirty(ngx_http_tokenring_peer_t *peer,
    ngx_http_tokenring_ctx_t *ctx)
{
    if (!ctx->is_dirty && peer) {
        ctx->is_dirty = 1;
        ngx_queue_insert_tail(&peer->dirty, &ctx->dirty);
    }
}


/*
 * What flushing a request touches is in no cache when a hundred streams take
 * turns, and one thing leads to the next.  While a request is written, those
 * behind it come nearer by a step each.  What is fetched of NGINX's own is
 * what its output filters look at.
 */

static void
ngx_http_tokenring_approach(ngx_http_tokenring_peer_t *peer, ngx_queue_t *q)
{
    ngx_uint_t                 first, step;
    ngx_connection_t          *c;
    ngx_http_request_t        *r;
    ngx_http_tokenring_ctx_t  *ctx;

    /* no filter comes before it */
    first = ngx_http_write_filter_module.ctx_index;

    for (step = 1; step <= 4; step++) {

        q = ngx_queue_next(q);

        if (q == ngx_queue_sentinel(&peer->dirty)) {
            return;
        }

        ctx = ngx_queue_data(q, ngx_http_tokenring_ctx_t, dirty);
        r = ctx->request;

        switch (step) {

        case 1:
            c = r->connection;
            ngx_http_tokenring_fetch(c->write, sizeof(ngx_event_t));
            /* and what it is allocated with, the data of the log */
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


/* flushing one request may end others, which leave the queue by themselves */

void
ngx_http_tokenring_flush_dirty(ngx_http_tokenring_peer_t *peer)
{
    ngx_queue_t               *q;
    ngx_connection_t          *c;
    ngx_http_tokenring_ctx_t  *ctx;

    while (!ngx_queue_empty(&peer->dirty)) {

        q = ngx_queue_head(&peer->dirty);
        ngx_http_tokenring_approach(peer, q);
        ngx_queue_remove(q);

        ctx = ngx_queue_data(q, ngx_http_tokenring_ctx_t, dirty);
        ctx->is_dirty = 0;

        c = ctx->request->connection;

        ngx_http_set_log_request(c->log, ctx->request);

        ngx_http_tokenring_flush(ctx);

        ngx_http_run_posted_requests(c);
    }
}


ngx_int_t
ngx_http_tokenring_slot_take(ngx_http_tokenring_peer_t *peer,
    ngx_http_tokenring_ctx_t *ctx)
{
    off_t                       len;
    uint32_t                    n;
    ngx_http_tokenring_slot_t  *slot;

    n = peer->free;

    if (n == NGX_HTTP_TOKENRING_NO_SLOT) {
        return NGX_DECLINED;
    }

    slot = &peer->slots[n];

    peer->free = slot->next;
    peer->outstanding++;

    slot->ctx = ctx;
    slot->used = 1;
    slot->generation++;

    if (slot->generation == 0) {
        slot->generation = 1;
    }

    /* until the engine has counted: four bytes a token */

    len = ngx_max(ctx->request->headers_in.content_length_n, 0);

    slot->tokens = (uint64_t) len / 4 + NGX_HTTP_TOKENRING_ANSWER;
    slot->known = 0;
    peer->guessed += slot->tokens;

    slot->coming = ctx->request->reading_body;
    peer->coming += slot->coming;

    ctx->tried |= ngx_http_tokenring_peer_bit(peer);
    ctx->peer = peer;
    ctx->id = TR_ID(n, slot->generation);
    ctx->number = 0;
    ctx->complete = 0;

    return NGX_OK;
}


/* as if it had not been taken: nothing of the request is out */

void
ngx_http_tokenring_slot_return(ngx_http_tokenring_ctx_t *ctx)
{
    ngx_http_tokenring_slot_free(ctx->peer, TR_ID_SLOT(ctx->id));

    /* whose turn it was it is, or of two engines one would get all */
    ctx->peer->engine->turn--;

    ctx->peer = NULL;
    ctx->tried = 0;
}


/* the last part of its body is out */

void
ngx_http_tokenring_slot_whole(ngx_http_tokenring_ctx_t *ctx)
{
    ngx_http_tokenring_slot_t  *slot;

    slot = &ctx->peer->slots[TR_ID_SLOT(ctx->id)];

    ctx->peer->coming -= slot->coming;
    slot->coming = 0;
}


/* from now on the status page has it, with its answer; the prompt is sure */

static void
ngx_http_tokenring_slot_known(ngx_http_tokenring_peer_t *peer, uint32_t n,
    tr_record_t *rec)
{
    tr_wire_bytes_t             model;
    tr_wire_accepted_t          head;
    ngx_http_tokenring_slot_t  *slot;

    slot = &peer->slots[n];

    if (slot->known
        || tr_wire_accepted_parse(ngx_http_tokenring_scratch, rec->length,
                                  &head, &model)
           != TR_OK)
    {
        return;
    }

    peer->guessed -= slot->tokens;

    slot->tokens = head.prompt_tokens;
    slot->known = 1;

    peer->known += slot->tokens;
}


static void
ngx_http_tokenring_slot_free(ngx_http_tokenring_peer_t *peer, uint32_t n)
{
    ngx_http_tokenring_slot_t  *slot;

    slot = &peer->slots[n];

    if (slot->known) {
        peer->known -= slot->tokens;

    } else {
        peer->guessed -= slot->tokens;
    }

    peer->coming -= slot->coming;

    slot->ctx = NULL;
    slot->used = 0;
    slot->coming = 0;
    slot->next = peer->free;

    peer->free = n;
    peer->outstanding--;
}


/* the request wants no more of the engine */

void
ngx_http_tokenring_slot_abandon(ngx_http_tokenring_ctx_t *ctx)
{
    uint32_t                    n;
    ngx_http_tokenring_peer_t  *peer;

    peer = ctx->peer;

    if (peer == NULL) {
        return;
    }

    n = TR_ID_SLOT(ctx->id);

    if (ctx->submitted) {
        ngx_http_tokenring_control(ctx, (ctx->detach && ctx->gone
                                         && ctx->complete)
                                        ? TR_CONTROL_DETACH
                                        : TR_CONTROL_ABORT);
        peer->slots[n].ctx = NULL;

    } else {
        ngx_http_tokenring_slot_free(peer, n);
    }

    ctx->peer = NULL;
}


/* the one wish that the request has now: ABORT, PAUSE, DETACH or none */

void
ngx_http_tokenring_control(ngx_http_tokenring_ctx_t *ctx, uint32_t bits)
{
    ngx_http_tokenring_peer_t  *peer;

    peer = ctx->peer;

    if (peer && tr_control_set(&peer->map, ctx->id, bits)) {
        ngx_http_tokenring_ring(peer);
    }
}
