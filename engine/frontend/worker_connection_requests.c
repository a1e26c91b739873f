/*
 * The way in: commands and SUBMIT parts of one worker (worker_connection.h).
 *
 * Bodies are gathered in memory that grows with what really came, never with
 * what was announced, and all bodies of a worker together are bounded; those
 * that are whole, which the parser will soon have read, may take as much again,
 * so that whoever stops in the middle shuts nobody out.  Where one does not fit,
 * the slowest one that is still coming ends for it (upload.h).  A request that
 * is refused in the middle of its body keeps its slot until its ERROR is sent;
 * its remaining parts are read and dropped.
 *
 * A small body can ask for much (n choices, each with room for its prompt and
 * all its tokens), so what the parser has laid out is bounded over all
 * connections.
 */
#include "worker_connection.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "engine/api/endpoint.h"
#include "engine/config/log.h"

#define BODIES_MIN ((size_t) 64 << 20)
#define BODY_FIRST 4096u
#define LAID_OUT_MAX ((size_t) 1 << 30)
/* Bytes a second below which a body may end for another one. */
#define BODY_SLOW 4096u

/* Bytes that the bodies of one worker may hold together when s, of which a part
 * comes, is given more. */
static size_t
bodies_max(const tr_connection_t *c, const tr_request_slot_t *s)
{
    size_t n = 4 * (size_t) c->env->config->max_body;

    n = n < BODIES_MIN ? BODIES_MIN : n;
    return s->gathered ? 2 * n : n;
}

static void
uncharge(tr_connection_t *c, tr_request_slot_t *s)
{
    c->body_bytes -= s->charged;
    s->charged = 0;
}

void
tr_connection_end(tr_connection_t *c, tr_request_slot_t *s)
{
    /* a request ends once, and was counted when its first part was read */
    assert(s->request != NULL && c->n_requests != 0 && c->env->inside != 0);
    tr_events_end(s->request, c->env->now_us);
    uncharge(c, s);
    c->env->laid_out -= s->laid_out;
    s->laid_out = 0;
    tr_connection_uncharge_tokens(c, s);
    tr_suspects_parsed(c->env, s->request);
    tr_suspects_end(c->env, s->request);
    tr_request_free(s->request);
    s->request = NULL;
    s->state = TR_SLOT_FREE;
    c->n_requests--;
    c->env->inside--;
}

void
tr_connection_reap(tr_request_t *over)
{
    tr_request_t *next;

    for (; over != NULL; over = next) {
        tr_connection_t *c = over->owner;
        tr_request_slot_t *s = &c->slots[TR_ID_SLOT(over->id)];

        next = over->next;
        /* its slot was kept for it, even on a connection that has closed */
        assert(s->request == over && s->state == TR_SLOT_RUNNING);
        tr_connection_end(c, s);
    }
}

/* Answers instead of running; the body is not needed any more. */
static void
stop_gathering(tr_connection_t *c, tr_request_slot_t *s)
{
    free(s->request->body);
    free(s->request->ahead);
    s->request->body = s->request->ahead = NULL;
    s->request->body_len = s->request->body_cap = 0;
    uncharge(c, s);
    tr_connection_reply(c, s->request);
}

/* ---- commands ----------------------------------------------------------- */

void
tr_connection_detach(tr_connection_t *c, tr_request_slot_t *s)
{
    tr_request_t *r = s->request;
    uint32_t old = atomic_load(&r->control);

    if ((old & TR_CONTROL_DETACH) == 0) {
        atomic_store(&r->control,
                     (old | TR_CONTROL_DETACH) & ~TR_CONTROL_PAUSE);
        tr_events_detached(r);
    }
    if (s->state == TR_SLOT_RUNNING) {
        c->env->wake_loop = true;
    } else if (s->state == TR_SLOT_REPLY) {
        tr_connection_unqueue(c, r);
        tr_connection_reply(c, r);
    }
}

/* What the worker wants of r, as far as it may.  To detach what was not
 * submitted for it is to abort. */
static uint32_t
read_commands(tr_connection_t *c, const tr_request_t *r, uint32_t old)
{
    uint32_t want = tr_control_get(&c->map, r->id)
                    | (old
                       & (TR_CONTROL_ABORT | TR_CONTROL_CANCEL
                          | TR_CONTROL_DETACH | TR_CONTROL_END));

    if ((want & TR_CONTROL_DETACH) && !(r->submit_flags & TR_SUBMIT_DETACH)) {
        want = (want & ~TR_CONTROL_DETACH) | TR_CONTROL_ABORT;
    }
    return want & TR_CONTROL_DETACH ? want & ~TR_CONTROL_PAUSE : want;
}

/* More of them are allowed: the loop looks at all of its requests. */
static void
take_allowance(tr_connection_t *c, const tr_request_slot_t *s)
{
    tr_request_t *r = s->request;
    uint32_t allowed;

    if ((r->submit_flags & TR_SUBMIT_METERED) == 0) {
        return;
    }
    allowed = tr_allow_get(&c->map, r->id);
    if (allowed > atomic_load_explicit(&r->allowed, memory_order_relaxed)) {
        atomic_store_explicit(&r->allowed, allowed, memory_order_relaxed);
        c->env->wake_loop |= s->state == TR_SLOT_RUNNING;
    }
}

static void
take_command(tr_connection_t *c, uint32_t slot)
{
    tr_request_slot_t *s = &c->slots[slot];
    uint32_t want, old;

    if (s->request == NULL) {
        return; /* it may be ahead of its SUBMIT: read again there */
    }
    old = atomic_load(&s->request->control);
    want = read_commands(c, s->request, old);
    take_allowance(c, s); /* it was there before what is wanted */
    if (want == old) {
        return;
    }
    atomic_store(&s->request->control,
                 want & (old | ~(uint32_t) TR_CONTROL_DETACH));
    if (want & ~old & TR_CONTROL_DETACH) {
        tr_connection_detach(c, s);
    }
    if (s->state == TR_SLOT_RUNNING) {
        c->env->wake_loop = true;
    } else if (s->state == TR_SLOT_GATHERING && (want & TR_CONTROL_ABORT)) {
        stop_gathering(c, s);
    }
}

tr_status_t
tr_connection_take_commands(tr_connection_t *c)
{
    uint32_t w;

    for (w = 0; w < c->n_slots / 64; w++) {
        uint64_t bits = tr_control_take(&c->map, w);

        while (bits != 0) {
            take_command(c, w * 64 + (uint32_t) __builtin_ctzll(bits));
            bits &= bits - 1;
        }
    }
    return TR_OK;
}

bool
tr_connection_cancel(tr_connection_t *c, uint64_t event_id)
{
    tr_request_slot_t *s = c->slots, *end = c->slots + c->n_slots;

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
        c->env->wake_loop = true;
    } else if (s->state == TR_SLOT_GATHERING) {
        stop_gathering(c, s);
    }
    return true;
}

/* ---- bodies ------------------------------------------------------------- */

/* Is there more of this one's body to come? */
static bool
coming(const tr_request_slot_t *s)
{
    return s->request != NULL && s->state == TR_SLOT_GATHERING && !s->gathered;
}

/* Ends the body that comes the slowest, so that s, which is given more, has
 * room; false: none may end.  Two walks over this worker's slots. */
static bool
end_slowest(tr_connection_t *c, const tr_request_slot_t *s)
{
    tr_request_slot_t *at, *end = c->slots + c->n_slots, *slowest = NULL;
    tr_shed_t shed;

    tr_shed_start(&shed, bodies_max(c, s), s->request->tenant,
                  c->env->now_us / 1000);
    for (at = c->slots; at != end; at++) {
        if (coming(at)) {
            tr_shed_count(&shed, at->request->tenant, at->charged);
        }
    }
    for (at = c->slots; at != end; at++) {
        if (at != s && coming(at)
            && tr_shed_worse(&shed, &at->pace, at->request->tenant, at->charged,
                             BODY_SLOW)) {
            slowest = at;
        }
    }
    if (slowest == NULL) {
        return false;
    }
    tr_error_set(&slowest->request->error, TR_ERR_QUEUE_FULL, "",
                 "Too many large requests are being read at the moment, and "
                 "this one came the slowest; try again later");
    stop_gathering(c, slowest);
    return true;
}

/* The request holds so many bytes from now on, or must be refused (r->error is
 * set). */
static tr_status_t
charge(tr_connection_t *c, tr_request_slot_t *s, size_t hold)
{
    size_t max = bodies_max(c, s);
    unsigned ended = 0;

    while (c->body_bytes - s->charged + hold > max) {
        if (hold > max || ended++ == TR_SHED_MOST || !end_slowest(c, s)) {
            return tr_error_set(&s->request->error, TR_ERR_QUEUE_FULL, "",
                                "Too many large requests are being read at the "
                                "moment; try again later");
        }
    }
    c->body_bytes += hold - s->charged;
    s->charged = hold;
    return TR_OK;
}

/* TR_OK, or why the request must be refused (r->error is set). */
static tr_status_t
make_room(tr_connection_t *c, tr_request_slot_t *s, size_t need)
{
    tr_request_t *r = s->request;
    uint64_t max_body = c->env->config->max_body;
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
    if (charge(c, s, cap + r->replay_len + r->routed_len) != TR_OK) {
        return r->error.status;
    }
    grown = realloc(r->body, cap);
    if (grown == NULL) {
        return tr_error_set(&r->error, TR_ERR_NOMEM, "", "out of memory");
    }
    r->body = grown;
    r->body_cap = cap;
    return TR_OK;
}

void
tr_connection_submit(tr_connection_t *c, tr_request_slot_t *s)
{
    tr_request_t *r = s->request;

    /* a command may have overtaken the body, before there was a request */
    take_command(c, TR_ID_SLOT(r->id));
    if (s->state != TR_SLOT_GATHERING) {
        return; /* it was aborted */
    }
    if (tr_suspects_hold(c->env, r)) {
        return;
    }
    s->state = TR_SLOT_PARSING;
    r->fresh = tr_status_fresh_set(&c->env->status->counters, r->name);
    if (tr_request_parser_submit(c->env->parser, r) != TR_OK) {
        tr_suspects_parsed(c->env, r);
        s->state = TR_SLOT_GATHERING;
        tr_error_set(&r->error, TR_ERR_QUEUE_FULL, "",
                     "Too many requests are "
                     "waiting (%u); try again later",
                     c->env->config->max_queue);
        stop_gathering(c, s);
    }
}

/* A replay block and the model's name come ahead of the body: takes what is here
 * of them. */
static void
gather_ahead(tr_request_slot_t *s, const char **bytes, size_t *n)
{
    tr_request_t *r = s->request;
    size_t take = *n < s->ahead_left ? *n : s->ahead_left;

    if (take != 0) {
        memcpy(r->ahead + r->replay_len + r->routed_len - s->ahead_left, *bytes,
               take);
        s->ahead_left -= (uint32_t) take;
        *bytes += take;
        *n -= take;
    }
}

/* One part's bytes.  TR_ERR_PROTOCOL only for what a correct worker never
 * sends. */
static tr_status_t
gather(tr_connection_t *c, tr_request_slot_t *s, const char *bytes, size_t n,
       bool more)
{
    tr_request_t *r = s->request;

    tr_pace_add(&s->pace, c->env->now_us / 1000, n);
    gather_ahead(s, &bytes, &n);
    if (s->ahead_left != 0 && !more) {
        return tr_connection_violation(c, "what comes ahead of a body is cut "
                                          "off");
    }
    if (s->declared != TR_BODY_UNKNOWN
        && (r->body_len + n > s->declared
            || (!more && r->body_len + n != s->declared))) {
        return tr_connection_violation(c,
                                       "body of %zu bytes where %llu were "
                                       "announced",
                                       r->body_len + n,
                                       (unsigned long long) s->declared);
    }
    if (make_room(c, s, r->body_len + n) != TR_OK) {
        stop_gathering(c, s);
        return TR_OK;
    }
    if (n != 0) {
        memcpy(r->body + r->body_len, bytes, n);
        r->body_len += n;
    }
    if (!more) {
        tr_connection_submit(c, s);
    }
    return TR_OK;
}

/* ---- SUBMIT ------------------------------------------------------------- */

/* Room for what comes ahead of the body, counted with it. */
static tr_status_t
expect_ahead(tr_request_t *r, const tr_wire_submit_t *head)
{
    size_t n = (size_t) head->replay_len + head->model_len;

    r->replay_len = head->replay_len;
    r->routed_len = head->model_len;
    if (n != 0) {
        r->ahead = malloc(n);
    }
    return n == 0 || r->ahead != NULL ? TR_OK : TR_ERR_NOMEM;
}

/* Where no text comes, nothing is kept and nothing goes on without its client,
 * whatever the worker asks for. */
static uint16_t
kept_flags(const tr_wire_submit_t *head)
{
    const tr_endpoint_t *endpoint = tr_endpoint(head->endpoint);

    return endpoint != NULL && endpoint->text
               ? head->flags
               : head->flags
                     & (uint16_t) ~(TR_SUBMIT_RESUMABLE | TR_SUBMIT_DETACH);
}

/* What the head says of a request; NULL without memory. */
static tr_request_t *
make_request(tr_connection_t *c, uint64_t id, const tr_wire_submit_t *head)
{
    tr_request_t *r = calloc(1, sizeof(*r));

    if (r == NULL || expect_ahead(r, head) != TR_OK) {
        tr_request_free(r);
        return NULL;
    }
    r->id = id;
    memcpy(r->request_id, head->request_id, head->request_id_len);
    r->endpoint = head->endpoint;
    r->submit_flags = head->flags;
    r->plain = !(c->features & TR_FEATURE_ITEMS);
    r->tenant = head->tenant;
    r->share = head->share < TR_SUBMIT_SHARE_MAX ? head->share
                                                 : TR_SUBMIT_SHARE_MAX;
    r->most_choices = head->choices;
    r->plan_tier = head->tier;
    r->tier = head->tier;
    r->name = tr_completion_name(head->completion);
    r->charges = head->charges;
    memcpy(r->kv_key.bytes, head->cache_key, sizeof(head->cache_key));
    r->kv_key.len = sizeof(head->cache_key);
    memcpy(r->holder, head->holder, sizeof(head->holder));
    r->writer = &c->writer;
    r->owner = c;
    r->arrival_us = c->env->now_us;
    return r;
}

static tr_status_t
first_part(tr_connection_t *c, const tr_record_t *rec, const uint8_t *payload)
{
    tr_request_slot_t *s = &c->slots[TR_ID_SLOT(rec->id)];
    tr_wire_submit_t head = { .endpoint = TR_ENDPOINT_CHAT };
    tr_wire_bytes_t body;
    tr_request_t *r;

    if (tr_wire_submit_parse(payload, rec->length, &head, &body) != TR_OK) {
        return tr_connection_violation(c, "bad SUBMIT of %u bytes",
                                       rec->length);
    }
    if (head.replay_len != 0 && !(c->features & TR_FEATURE_REPLAY)) {
        return tr_connection_violation(c, "a replay block, which its hello did "
                                          "not speak of");
    }
    if (head.endpoint > TR_ENDPOINT_COMPLETIONS
        && !(c->features & TR_FEATURE_ITEMS)) {
        return tr_connection_violation(c,
                                       "endpoint %u, which its hello did "
                                       "not speak of",
                                       head.endpoint);
    }
    head.flags = kept_flags(&head);
    r = make_request(c, rec->id, &head);
    if (r == NULL) {
        return tr_connection_violation(c, "no memory for a request");
    }
    if (tr_endpoint(r->endpoint) != NULL
        && tr_endpoint(r->endpoint)->result == NULL) {
        tr_events_arrived(c->env->events, r, &head);
    }
    s->request = r;
    s->generation = TR_ID_GENERATION(rec->id);
    s->declared = head.body_len;
    s->ahead_left = head.replay_len + head.model_len;
    s->state = TR_SLOT_GATHERING;
    s->gathered = !(rec->flags & TR_FLAG_MORE);
    tr_pace_start(&s->pace, c->env->now_us / 1000);
    c->n_requests++;
    c->env->inside++;
    if (tr_endpoint(r->endpoint) == NULL) { /* of a newer gateway */
        tr_error_set(&r->error, TR_ERR_NOT_FOUND, "",
                     "This engine does not serve this endpoint (number %u)",
                     (unsigned) r->endpoint);
        stop_gathering(c, s);
        return TR_OK;
    }
    if (c->env->draining || c->env->refusing) {
        tr_error_set(&r->error, TR_ERR_DRAINING, "",
                     "The engine is shutting "
                     "down");
        stop_gathering(c, s);
        return TR_OK;
    }
    take_command(c, TR_ID_SLOT(rec->id));
    if (s->state != TR_SLOT_GATHERING) {
        return TR_OK;
    }
    if (s->ahead_left != 0 && charge(c, s, s->ahead_left) != TR_OK) {
        stop_gathering(c, s);
        return TR_OK;
    }
    return gather(c, s, body.data, body.len, !s->gathered);
}

static tr_status_t
later_part(tr_connection_t *c, const tr_record_t *rec, const uint8_t *payload)
{
    tr_request_slot_t *s = &c->slots[TR_ID_SLOT(rec->id)];
    bool more = (rec->flags & TR_FLAG_MORE) != 0;

    if (s->gathered) {
        return tr_connection_violation(c, "a part after the last one, slot %u",
                                       TR_ID_SLOT(rec->id));
    }
    s->gathered = !more;
    if (s->state != TR_SLOT_GATHERING) {
        return TR_OK; /* refused or aborted meanwhile */
    }
    return gather(c, s, (const char *) payload, rec->length, more);
}

static tr_status_t
take_record(tr_connection_t *c, const tr_record_t *rec, const uint8_t *payload)
{
    uint32_t slot = TR_ID_SLOT(rec->id);
    uint32_t generation = TR_ID_GENERATION(rec->id);
    tr_request_slot_t *s;

    if (rec->type != TR_RECORD_SUBMIT) {
        return tr_connection_violation(c, "record of type %u, expected SUBMIT",
                                       rec->type);
    }
    if (slot >= c->n_slots || generation == 0) {
        return tr_connection_violation(c,
                                       "request id of slot %u, generation %u; "
                                       "the channel has %u slots",
                                       slot, generation, c->n_slots);
    }
    if (c->channel_fd != -1 && !tr_channel_sealed(c->channel_fd)) {
        return tr_connection_violation(c, "its channel has no seals against "
                                          "holes");
    }
    tr_connection_sealed(c);
    s = &c->slots[slot];
    if (generation == s->generation) {
        return later_part(c, rec, payload);
    }
    if ((int32_t) (generation - s->generation) < 0) {
        return TR_OK; /* of a request that ended long ago */
    }
    if (s->request != NULL && c->env->loop != NULL) {
        /* the worker may have seen its end before we were told */
        tr_connection_reap(tr_loop_over_now(c->env->loop));
    }
    if (s->request != NULL) {
        return tr_connection_violation(c,
                                       "slot %u is in use by generation %u, "
                                       "not "
                                       "free for %u",
                                       slot, s->generation, generation);
    }
    return first_part(c, rec, payload);
}

tr_status_t
tr_connection_take_requests(tr_connection_t *c)
{
    size_t bytes = 0;
    tr_status_t rc = TR_OK;
    tr_record_t rec;

    while (bytes < TR_CONNECTION_TURN_BYTES) {
        rc = tr_ring_get(&c->requests, &rec, c->env->buf, c->env->buf_size);
        if (rc != TR_OK) {
            break;
        }
        bytes += sizeof(rec) + rec.length;
        rc = take_record(c, &rec, c->env->buf);
        if (rc != TR_OK) {
            break;
        }
    }
    if (tr_ring_release(&c->requests)) {
        c->ring = true;
    }
    if (rc == TR_AGAIN) {
        rc = tr_channel_sleep(&c->map, &c->requests);
        c->in_ready = rc != TR_AGAIN;
        rc = rc == TR_AGAIN ? TR_OK : rc;
    }
    return rc;
}

/* Counts what r holds for its run; refuses it when all requests together would
 * hold too much.  One alone is always let in. */
static void
charge_layout(tr_connection_t *c, tr_request_slot_t *s)
{
    tr_request_t *r = s->request;
    size_t all = c->env->laid_out;

    if (r->error.status == TR_OK && all != 0
        && all + r->arena.total > LAID_OUT_MAX) {
        tr_error_set(&r->error, TR_ERR_QUEUE_FULL, "",
                     "The engine's requests already take too much memory "
                     "(this one needs %zu KiB); try again later",
                     r->arena.total >> 10);
    }
    if (r->error.status != TR_OK) {
        tr_arena_free(&r->arena); /* it will not run */
    }
    s->laid_out = r->arena.total;
    c->env->laid_out += s->laid_out;
}

void
tr_connection_parsed(tr_connection_t *c, tr_request_t *r)
{
    tr_request_slot_t *s = &c->slots[TR_ID_SLOT(r->id)];

    assert(s->request == r && s->state == TR_SLOT_PARSING);
    uncharge(c, s);
    charge_layout(c, s);
    if (c->state == TR_CONNECTION_OPEN
        || (atomic_load(&r->control) & TR_CONTROL_DETACH)) {
        tr_connection_reply(c, r);
    } else {
        atomic_fetch_add(&c->env->status->counters.requests_aborted, 1);
        tr_connection_end(c, s);
    }
}

void
tr_connection_drain(tr_connection_t *c)
{
    uint32_t i;

    for (i = 0; i < c->n_slots && c->n_requests != 0; i++) {
        tr_request_slot_t *s = &c->slots[i];

        if (s->request != NULL && s->state == TR_SLOT_GATHERING) {
            tr_error_set(&s->request->error, TR_ERR_DRAINING, "",
                         "The engine "
                         "is shutting down");
            stop_gathering(c, s);
        }
    }
}
