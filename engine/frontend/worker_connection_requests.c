/*
 * The way in: wishes and SUBMIT parts of one peer (peer.h).
 *
 * Bodies are gathered in memory that grows with what really came, never with
 * what was announced, and all bodies of a peer together are bounded; those that
 * are whole, which the parser will soon have read, may take as much again, so
 * that whoever stops in the middle shuts nobody out.  A request that is refused
 * in the middle of its body keeps its slot until its ERROR is sent; its
 * remaining parts are read and dropped.
 *
 * A small body can ask for much (n choices, each with room for its prompt and
 * all its tokens), so what the parser has laid out is bounded over all peers.
 */
#include "peer.h"

#include <stdlib.h>
#include <string.h>

#include "engine/api/endpoint.h"
#include "engine/config/log.h"

#define BODIES_MIN ((size_t) 64 << 20)
#define BODY_FIRST 4096u
#define LAID_OUT_MAX ((size_t) 1 << 30)

/* Bytes that the bodies of one peer may hold together when s, of which a part
 * comes, is given more. */
static size_t
bodies_max(const tr_peer_t *p, const tr_peer_slot_t *s)
{
    size_t n = 4 * (size_t) p->env->config->max_body;

    n = n < BODIES_MIN ? BODIES_MIN : n;
    return s->gathered ? 2 * n : n;
}

static void
uncharge(tr_peer_t *p, tr_peer_slot_t *s)
{
    p->body_bytes -= s->charged;
    s->charged = 0;
}

void
tr_peer_end(tr_peer_t *p, tr_peer_slot_t *s)
{
    tr_events_end(s->request, p->env->now_us);
    uncharge(p, s);
    p->env->laid_out -= s->laid_out;
    s->laid_out = 0;
    tr_peer_uncharge_tokens(p, s);
    tr_request_free(s->request);
    s->request = NULL;
    s->state = TR_SLOT_FREE;
    p->n_requests--;
    p->env->inside--;
}

void
tr_peer_reap(tr_request_t *over)
{
    tr_request_t *next;

    for (; over != NULL; over = next) {
        tr_peer_t *p = over->owner;

        next = over->next;
        tr_peer_end(p, &p->slots[TR_ID_SLOT(over->id)]);
    }
}

/* Answers instead of running; the body is not needed any more. */
static void
stop_gathering(tr_peer_t *p, tr_peer_slot_t *s)
{
    free(s->request->body);
    s->request->body = NULL;
    s->request->body_len = s->request->body_cap = 0;
    uncharge(p, s);
    tr_peer_reply(p, s->request);
}

/* ---- wishes ------------------------------------------------------------- */

void
tr_peer_detach(tr_peer_t *p, tr_peer_slot_t *s)
{
    tr_request_t *r = s->request;
    uint32_t old = atomic_load(&r->control);

    if ((old & TR_CONTROL_DETACH) == 0) {
        atomic_store(&r->control,
                     (old | TR_CONTROL_DETACH) & ~TR_CONTROL_PAUSE);
        tr_events_detached(r);
    }
    if (s->state == TR_SLOT_RUNNING) {
        p->env->wake_loop = true;
    } else if (s->state == TR_SLOT_REPLY) {
        tr_peer_unqueue(p, r);
        tr_peer_reply(p, r);
    }
}

/* What the peer wants of r, as far as it may.  To detach what was not submitted
 * for it is to abort. */
static uint32_t
read_wishes(tr_peer_t *p, const tr_request_t *r, uint32_t old)
{
    uint32_t want = tr_control_get(&p->map, r->id)
                    | (old
                       & (TR_CONTROL_ABORT | TR_CONTROL_CANCEL
                          | TR_CONTROL_DETACH));

    if ((want & TR_CONTROL_DETACH) && !(r->submit_flags & TR_SUBMIT_DETACH)) {
        want = (want & ~TR_CONTROL_DETACH) | TR_CONTROL_ABORT;
    }
    return want & TR_CONTROL_DETACH ? want & ~TR_CONTROL_PAUSE : want;
}

static void
take_wish(tr_peer_t *p, uint32_t slot)
{
    tr_peer_slot_t *s = &p->slots[slot];
    uint32_t want, old;

    if (s->request == NULL) {
        return; /* it may be ahead of its SUBMIT: read again there */
    }
    old = atomic_load(&s->request->control);
    want = read_wishes(p, s->request, old);
    if (want == old) {
        return;
    }
    atomic_store(&s->request->control,
                 want & (old | ~(uint32_t) TR_CONTROL_DETACH));
    if (want & ~old & TR_CONTROL_DETACH) {
        tr_peer_detach(p, s);
    }
    if (s->state == TR_SLOT_RUNNING) {
        p->env->wake_loop = true;
    } else if (s->state == TR_SLOT_GATHERING && (want & TR_CONTROL_ABORT)) {
        stop_gathering(p, s);
    }
}

tr_status_t
tr_peer_take_wishes(tr_peer_t *p)
{
    uint32_t w;

    for (w = 0; w < p->n_slots / 64; w++) {
        uint64_t bits = tr_control_take(&p->map, w);

        while (bits != 0) {
            take_wish(p, w * 64 + (uint32_t) __builtin_ctzll(bits));
            bits &= bits - 1;
        }
    }
    return TR_OK;
}

bool
tr_peer_cancel(tr_peer_t *p, uint64_t event_id)
{
    tr_peer_slot_t *s = p->slots, *end = p->slots + p->n_slots;

    while (s != end
           && (s->request == NULL || s->request->events == NULL
               || s->request->event_id != event_id)) {
        s++;
    }
    if (s == end) {
        return false;
    }
    atomic_fetch_or(&s->request->control, TR_CONTROL_CANCEL);
    if (s->state == TR_SLOT_RUNNING) {
        p->env->wake_loop = true;
    } else if (s->state == TR_SLOT_GATHERING) {
        stop_gathering(p, s);
    }
    return true;
}

/* ---- bodies ------------------------------------------------------------- */

/* TR_OK, or why the request must be refused (r->error is set). */
static tr_status_t
make_room(tr_peer_t *p, tr_peer_slot_t *s, size_t need)
{
    tr_request_t *r = s->request;
    uint64_t max_body = p->env->config->max_body;
    size_t cap = r->body_cap ? r->body_cap : BODY_FIRST;
    char *grown;

    if (need > max_body
        || (s->declared != TR_BODY_UNKNOWN && s->declared > max_body)) {
        return tr_error_set(&r->error, TR_ERR_TOO_LARGE, "",
                            "The body of your "
                            "request is larger than %llu bytes, the most that "
                            "this server reads",
                            (unsigned long long) max_body);
    }
    if (need <= r->body_cap) {
        return TR_OK;
    }
    while (cap < need) {
        cap *= 2;
    }
    if (cap > s->declared && s->declared >= need) {
        cap = (size_t) s->declared; /* exactly, when it is known */
    }
    if (p->body_bytes - s->charged + cap > bodies_max(p, s)) {
        return tr_error_set(&r->error, TR_ERR_QUEUE_FULL, "",
                            "Too many large "
                            "requests are being read at the moment; try again "
                            "later");
    }
    grown = realloc(r->body, cap);
    if (grown == NULL) {
        return tr_error_set(&r->error, TR_ERR_NOMEM, "", "out of memory");
    }
    r->body = grown;
    r->body_cap = cap;
    p->body_bytes += cap - s->charged;
    s->charged = cap;
    return TR_OK;
}

/* All parts are here: on to the request parser. */
static void
submit(tr_peer_t *p, tr_peer_slot_t *s)
{
    tr_request_t *r = s->request;

    /* a wish may have overtaken the body, before there was a request */
    take_wish(p, TR_ID_SLOT(r->id));
    if (s->state != TR_SLOT_GATHERING) {
        return; /* it was aborted */
    }
    s->state = TR_SLOT_PARSING;
    if (tr_request_parser_submit(p->env->parser, r) != TR_OK) {
        s->state = TR_SLOT_GATHERING;
        tr_error_set(&r->error, TR_ERR_QUEUE_FULL, "",
                     "Too many requests are "
                     "waiting (%u); try again later",
                     p->env->config->max_queue);
        stop_gathering(p, s);
    }
}

/* One part's bytes.  TR_ERR_PROTOCOL only for what a correct peer never
 * sends. */
static tr_status_t
gather(tr_peer_t *p, tr_peer_slot_t *s, const void *bytes, size_t n, bool more)
{
    tr_request_t *r = s->request;

    if (s->declared != TR_BODY_UNKNOWN
        && (r->body_len + n > s->declared
            || (!more && r->body_len + n != s->declared))) {
        return tr_peer_violation(p,
                                 "body of %zu bytes where %llu were "
                                 "announced",
                                 r->body_len + n,
                                 (unsigned long long) s->declared);
    }
    if (make_room(p, s, r->body_len + n) != TR_OK) {
        stop_gathering(p, s);
        return TR_OK;
    }
    if (n != 0) {
        memcpy(r->body + r->body_len, bytes, n);
        r->body_len += n;
    }
    if (!more) {
        submit(p, s);
    }
    return TR_OK;
}

/* ---- SUBMIT ------------------------------------------------------------- */

static tr_status_t
first_part(tr_peer_t *p, const tr_record_t *rec, const uint8_t *payload)
{
    tr_peer_slot_t *s = &p->slots[TR_ID_SLOT(rec->id)];
    tr_wire_submit_t head = { .endpoint = TR_ENDPOINT_CHAT };
    tr_wire_bytes_t body;
    tr_request_t *r;

    if (tr_wire_submit_parse(payload, rec->length, &head, &body) != TR_OK) {
        if (tr_endpoint(head.endpoint) == NULL) {
            return tr_peer_violation(p,
                                     "SUBMIT to endpoint %u, which this engine "
                                     "does not serve",
                                     head.endpoint);
        }
        return tr_peer_violation(p, "bad SUBMIT of %u bytes", rec->length);
    }
    r = calloc(1, sizeof(*r));
    if (r == NULL) {
        return tr_peer_violation(p, "no memory for a request");
    }
    r->id = rec->id;
    memcpy(r->request_id, head.request_id, head.request_id_len);
    r->endpoint = head.endpoint;
    r->submit_flags = head.flags;
    r->writer = &p->writer;
    r->owner = p;
    r->arrival_us = p->env->now_us;
    tr_events_arrived(p->env->events, r, &head);
    s->request = r;
    s->generation = TR_ID_GENERATION(rec->id);
    s->declared = head.body_len;
    s->state = TR_SLOT_GATHERING;
    s->gathered = !(rec->flags & TR_FLAG_MORE);
    p->n_requests++;
    p->env->inside++;
    if (p->env->draining || p->env->refusing) {
        tr_error_set(&r->error, TR_ERR_DRAINING, "",
                     "The engine is shutting "
                     "down");
        stop_gathering(p, s);
        return TR_OK;
    }
    take_wish(p, TR_ID_SLOT(rec->id));
    if (s->state != TR_SLOT_GATHERING) {
        return TR_OK;
    }
    return gather(p, s, body.data, body.len, !s->gathered);
}

static tr_status_t
later_part(tr_peer_t *p, const tr_record_t *rec, const uint8_t *payload)
{
    tr_peer_slot_t *s = &p->slots[TR_ID_SLOT(rec->id)];
    bool more = (rec->flags & TR_FLAG_MORE) != 0;

    if (s->gathered) {
        return tr_peer_violation(p, "a part after the last one, slot %u",
                                 TR_ID_SLOT(rec->id));
    }
    s->gathered = !more;
    if (s->state != TR_SLOT_GATHERING) {
        return TR_OK; /* refused or aborted meanwhile */
    }
    return gather(p, s, payload, rec->length, more);
}

static tr_status_t
take_record(tr_peer_t *p, const tr_record_t *rec, const uint8_t *payload)
{
    uint32_t slot = TR_ID_SLOT(rec->id);
    uint32_t generation = TR_ID_GENERATION(rec->id);
    tr_peer_slot_t *s;

    if (rec->type != TR_RECORD_SUBMIT) {
        return tr_peer_violation(p, "record of type %u, expected SUBMIT",
                                 rec->type);
    }
    if (slot >= p->n_slots || generation == 0) {
        return tr_peer_violation(p,
                                 "request id of slot %u, generation %u; "
                                 "the channel has %u slots",
                                 slot, generation, p->n_slots);
    }
    s = &p->slots[slot];
    if (generation == s->generation) {
        return later_part(p, rec, payload);
    }
    if ((int32_t) (generation - s->generation) < 0) {
        return TR_OK; /* of a request that ended long ago */
    }
    if (s->request != NULL && p->env->loop != NULL) {
        /* the peer may have seen its end before we were told */
        tr_peer_reap(tr_loop_over(p->env->loop));
    }
    if (s->request != NULL) {
        return tr_peer_violation(p,
                                 "slot %u is in use by generation %u, not "
                                 "free for %u",
                                 slot, s->generation, generation);
    }
    return first_part(p, rec, payload);
}

tr_status_t
tr_peer_take_requests(tr_peer_t *p)
{
    size_t bytes = 0;
    tr_status_t rc = TR_OK;
    tr_record_t rec;

    while (bytes < TR_PEER_TURN_BYTES) {
        rc = tr_ring_get(&p->requests, &rec, p->env->buf, p->env->buf_size);
        if (rc != TR_OK) {
            break;
        }
        bytes += sizeof(rec) + rec.length;
        rc = take_record(p, &rec, p->env->buf);
        if (rc != TR_OK) {
            break;
        }
    }
    if (tr_ring_release(&p->requests)) {
        p->ring = true;
    }
    if (rc == TR_AGAIN) {
        rc = tr_channel_sleep(&p->map, &p->requests);
        p->in_ready = rc != TR_AGAIN;
        rc = rc == TR_AGAIN ? TR_OK : rc;
    }
    return rc;
}

/* Counts what r holds for its run; refuses it when all requests together would
 * hold too much.  One alone is always let in. */
static void
charge_layout(tr_peer_t *p, tr_peer_slot_t *s)
{
    tr_request_t *r = s->request;
    size_t all = p->env->laid_out;

    if (r->error.status == TR_OK && all != 0
        && all + r->arena.total > LAID_OUT_MAX) {
        tr_error_set(&r->error, TR_ERR_QUEUE_FULL, "",
                     "The requests that are inside take too much memory (this "
                     "one would take %zu KiB); try again later",
                     r->arena.total >> 10);
    }
    if (r->error.status != TR_OK) {
        tr_arena_free(&r->arena); /* it will not run */
    }
    s->laid_out = r->arena.total;
    p->env->laid_out += s->laid_out;
}

void
tr_peer_parsed(tr_peer_t *p, tr_request_t *r)
{
    tr_peer_slot_t *s = &p->slots[TR_ID_SLOT(r->id)];

    uncharge(p, s);
    charge_layout(p, s);
    if (p->state == TR_PEER_OPEN
        || (atomic_load(&r->control) & TR_CONTROL_DETACH)) {
        tr_peer_reply(p, r);
    } else {
        atomic_fetch_add(&p->env->status->counters.requests_aborted, 1);
        tr_peer_end(p, s);
    }
}

void
tr_peer_drain(tr_peer_t *p)
{
    uint32_t i;

    for (i = 0; i < p->n_slots && p->n_requests != 0; i++) {
        tr_peer_slot_t *s = &p->slots[i];

        if (s->request != NULL && s->state == TR_SLOT_GATHERING) {
            tr_error_set(&s->request->error, TR_ERR_DRAINING, "",
                         "The engine "
                         "is shutting down");
            stop_gathering(p, s);
        }
    }
}
