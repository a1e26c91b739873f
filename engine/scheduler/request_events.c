/*
 * Telling the publisher (request_events.h): the rings and who writes what.
 */
#include "request_events.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <tokenring/channel.h>

#include "engine/config/log.h"
#include "request.h"

/* Bytes that an END takes in a ring, and a DETACHED with it. */
#define END_BYTES \
    (2 * sizeof(tr_record_t) + ((sizeof(tr_event_end_t) + 7) & ~(size_t) 7))

static tr_status_t
make_ring(uint32_t capacity, tr_ring_producer_t *p, tr_ring_consumer_t *c,
          void **memory)
{
    uint8_t *at;

    *memory = aligned_alloc(TR_CACHE_LINE, sizeof(tr_ring_shared_t) + capacity);
    if (*memory == NULL) {
        return TR_ERR_NOMEM;
    }
    memset(*memory, 0, sizeof(tr_ring_shared_t)); /* the rest when it is used */
    at = *memory;
    at += sizeof(tr_ring_shared_t);
    tr_ring_producer_init(p, *memory, at, capacity);
    tr_ring_consumer_init(c, *memory, at, capacity);
    return TR_OK;
}

tr_status_t
tr_events_init(tr_request_events_t *t, int publisher_fd, int frontend_fd)
{
    memset(t, 0, sizeof(*t));
    t->publisher_fd = publisher_fd;
    t->frontend_fd = frontend_fd;
    pthread_mutex_init(&t->asking, NULL);
    if (make_ring(TR_EVENTS_FRONTEND_RING, &t->frontend, &t->from_frontend,
                  &t->frontend_memory)
            != TR_OK
        || make_ring(TR_EVENTS_LOOP_RING, &t->loop, &t->from_loop,
                     &t->loop_memory)
               != TR_OK) {
        tr_events_free(t);
        return TR_ERR_NOMEM;
    }
    return TR_OK;
}

void
tr_events_free(tr_request_events_t *t)
{
    free(t->frontend_memory);
    free(t->loop_memory);
    t->frontend_memory = t->loop_memory = NULL;
}

/* ---- frontend thread
 * ------------------------------------------------------- */

/* Room for n bytes of payload beside the ends that must still be told.  One
 * record may be pushed to the start of the ring by a PAD of its size. */
static bool
frontend_has_room(tr_request_events_t *t, size_t n)
{
    uint64_t need = 2 * (sizeof(tr_record_t) + n + 8)
                    + (uint64_t) (t->inside + 2) * END_BYTES;

    if (need <= t->frontend.capacity - (t->frontend.tail - t->frontend.head)) {
        return true;
    }
    return tr_ring_refresh_head(&t->frontend, memory_order_acquire) == TR_OK
           && need <= t->frontend.capacity
                          - (t->frontend.tail - t->frontend.head);
}

void
tr_events_arrived(tr_request_events_t *t, tr_request_t *r,
                  const tr_wire_submit_t *head)
{
    tr_event_arrived_t note = { .endpoint = head->endpoint,
                                .flags = head->flags,
                                .moved = head->replay_len != 0,
                                .migrate_s = head->migrate_s,
                                .tenant = head->tenant,
                                .arrival_us = r->arrival_us };
    tr_ring_piece_t piece = { &note, sizeof(note) };

    if (t == NULL || head->completion[0] == '\0') {
        return;
    }
    memcpy(note.completion, head->completion, sizeof(note.completion));
    memcpy(note.owner, head->owner, sizeof(note.owner));
    memcpy(note.request_id, head->request_id, head->request_id_len);
    if (!frontend_has_room(t, sizeof(note))
        || tr_ring_put(&t->frontend, TR_EVENT_ARRIVED, 0, t->next_id + 1,
                       &piece, 1)
               != TR_OK) {
        atomic_fetch_add_explicit(&t->lost, 1, memory_order_relaxed);
        return;
    }
    t->inside++;
    r->events = t;
    r->event_id = ++t->next_id;
}

void
tr_events_answer(tr_request_t *r, uint16_t type, const tr_ring_piece_t *pieces,
                 unsigned n)
{
    size_t len = 0;
    unsigned i;

    if (r->events == NULL
        || (type != TR_RECORD_ACCEPTED && !tr_request_output_kept(r))) {
        return;
    }
    for (i = 0; i < n; i++) {
        len += pieces[i].len;
    }
    if (r->events_lost || !frontend_has_room(r->events, len)
        || tr_ring_put(&r->events->frontend, type, 0, r->event_id, pieces, n)
               != TR_OK) {
        r->events_lost = true;
    }
}

void
tr_events_detached(tr_request_t *r)
{
    if (r->events != NULL) {
        /* its room was kept with that of the end */
        (void) tr_ring_put(&r->events->frontend, TR_EVENT_DETACHED, 0,
                           r->event_id, NULL, 0);
    }
}

void
tr_events_keep(tr_request_t *r)
{
    tr_event_kept_t note = { .text = r->kept,
                             .input_len = r->kept_input_len,
                             .ancestors_len = r->kept_ancestors_len };
    tr_ring_piece_t piece = { &note, sizeof(note) };

    if (r->events == NULL || r->kept == NULL) {
        return;
    }
    memcpy(note.holder, r->holder, sizeof(note.holder));
    if (r->events_lost || !frontend_has_room(r->events, sizeof(note))
        || tr_ring_put(&r->events->frontend, TR_EVENT_KEPT, 0, r->event_id,
                       &piece, 1)
               != TR_OK) {
        r->events_lost = true;
        return;
    }
    r->kept = NULL;
    r->output_kept = true;
}

void
tr_events_moved(tr_request_t *r)
{
    tr_event_moved_t note = { .told = r->told,
                              .told_len = r->told_len,
                              .number = r->told_number,
                              .epoch = r->migrations };
    tr_ring_piece_t piece = { &note, sizeof(note) };

    if (r->events == NULL || r->migrations == 0) {
        return;
    }
    if (r->events_lost || !frontend_has_room(r->events, sizeof(note))
        || tr_ring_put(&r->events->frontend, TR_EVENT_MOVED, 0, r->event_id,
                       &piece, 1)
               != TR_OK) {
        r->events_lost = true;
        return;
    }
    r->told = NULL;
}

/* As much of text as fits, in whole characters. */
static void
copy_message(char *out, size_t size, const char *text)
{
    size_t n = strnlen(text, size);

    if (n == size) {
        for (n = size - 1; n != 0 && ((uint8_t) text[n] & 0xc0) == 0x80; n--) {
        }
    }
    memcpy(out, text, n);
    out[n] = '\0';
}

static void
describe_end(const tr_request_t *r, uint64_t now_us, tr_event_end_t *end)
{
    *end = (tr_event_end_t){
        .lost = r->events_lost,
        .status = r->error.status,
        .elsewhere = tr_request_goes_elsewhere(r),
        .moves = tr_request_moves(r),
        .finish_reason = (uint8_t) r->finish_reason,
        .prompt_tokens = r->prompt_tokens,
        .completion_tokens = r->completion_tokens,
        .cached_tokens = r->cached_tokens,
        .preemptions = r->preemptions,
        .choices = r->n_sequences,
        .scheduled_us = r->scheduled_us,
        .first_token_us = r->first_token_us,
        .ended_us = now_us,
    };
    tr_request_kv_wire(&r->kv, &end->kv);
    if (r->error.status != TR_OK) {
        end->state = r->error.status == TR_ERR_CANCELLED ? TR_REQUEST_CANCELLED
                                                         : TR_REQUEST_FAILED;
        copy_message(end->message, sizeof(end->message), r->error.text);
    } else if (r->n_sequences != 0 && r->open_sequences == 0) {
        end->state = TR_REQUEST_DONE;
    } else {
        end->state = TR_REQUEST_CANCELLED;
        copy_message(end->message, sizeof(end->message), "The client has left");
    }
}

void
tr_events_end(tr_request_t *r, uint64_t now_us)
{
    tr_event_end_t end;
    tr_ring_piece_t piece = { &end, sizeof(end) };
    tr_request_events_t *t = r->events;

    if (t == NULL) {
        return;
    }
    r->elsewhere |= r->open_sequences != 0 && atomic_load(&r->gone) != 0;
    describe_end(r, now_us, &end);
    (void) tr_ring_put(&t->frontend, TR_EVENT_END, 0, r->event_id, &piece, 1);
    t->inside--;
    r->events = NULL;
}

void
tr_events_show(tr_request_events_t *t)
{
    if (t != NULL && tr_ring_publish(&t->frontend)) {
        tr_doorbell_ring(t->publisher_fd);
    }
}

uint64_t
tr_events_cancelled(tr_request_events_t *t)
{
    uint32_t head;
    uint64_t id;

    if (t == NULL) {
        return 0;
    }
    head = atomic_load_explicit(&t->cancels_head, memory_order_relaxed);
    if (head == atomic_load_explicit(&t->cancels_tail, memory_order_acquire)) {
        return 0;
    }
    id = t->cancels[head % TR_EVENTS_CANCELS];
    atomic_store_explicit(&t->cancels_head, head + 1, memory_order_release);
    return id;
}

bool
tr_events_cancel(tr_request_events_t *t, uint64_t id)
{
    uint32_t tail = atomic_load_explicit(&t->cancels_tail,
                                         memory_order_relaxed);

    if (tail - atomic_load_explicit(&t->cancels_head, memory_order_acquire)
        == TR_EVENTS_CANCELS) {
        return false;
    }
    t->cancels[tail % TR_EVENTS_CANCELS] = id;
    atomic_store_explicit(&t->cancels_tail, tail + 1, memory_order_release);
    tr_doorbell_ring(t->frontend_fd);
    return true;
}

/* ---- step loop ---------------------------------------------------------- */

static void
put_time(tr_request_t *r, uint16_t type, uint64_t now_us)
{
    tr_ring_piece_t piece = { &now_us, sizeof(now_us) };

    if (r->events != NULL) {
        /* when it is lost, the end says it, too */
        (void) tr_ring_put(&r->events->loop, type, 0, r->event_id, &piece, 1);
    }
}

void
tr_events_started(tr_request_t *r, uint64_t now_us)
{
    put_time(r, TR_EVENT_STARTED, now_us);
}

void
tr_events_first_token(tr_request_t *r, uint64_t now_us)
{
    put_time(r, TR_EVENT_FIRST, now_us);
    r->progress_event_us = now_us;
}

bool
tr_events_progress_due(const tr_request_t *r, uint64_t now_us)
{
    return r->events != NULL
           && now_us - r->progress_event_us >= TR_EVENT_PROGRESS_US;
}

bool
tr_events_progress(tr_request_t *r, const tr_wire_usage_t *kv, uint64_t now_us)
{
    tr_event_progress_t note = { .tokens = r->completion_tokens, .kv = *kv };
    tr_ring_piece_t piece = { &note, sizeof(note) };

    r->progress_event_us = now_us;
    return tr_ring_put(&r->events->loop, TR_EVENT_PROGRESS, 0, r->event_id,
                       &piece, 1)
           == TR_OK;
}

void
tr_events_record(tr_request_t *r, uint16_t type, const tr_ring_piece_t *pieces,
                 unsigned n)
{
    tr_request_events_t *t = r->events;

    if (t == NULL || !tr_request_output_kept(r)) {
        return;
    }
    if (!r->events_lost
        && tr_ring_put(&t->loop, type, 0, r->event_id, pieces, n) == TR_OK) {
        return;
    }
    r->events_lost = true;
    if (!r->events_lost_told
        && tr_ring_put(&t->loop, TR_EVENT_LOST, 0, r->event_id, NULL, 0)
               == TR_OK) {
        r->events_lost_told = true;
    }
}

void
tr_events_unsay(const tr_request_t *r)
{
    tr_ring_producer_t *p = &r->events->loop;
    uint64_t at = p->published, id;
    uint8_t *record;
    uint16_t type;

    while ((record = tr_ring_staged(p, &at)) != NULL) {
        memcpy(&id, record + offsetof(tr_record_t, id), sizeof(id));
        memcpy(&type, record + offsetof(tr_record_t, type), sizeof(type));
        if (id == r->event_id && type >= TR_EVENT_RECORDS) {
            id = 0; /* nobody's */
            memcpy(record + offsetof(tr_record_t, id), &id, sizeof(id));
        }
    }
}

void
tr_events_publish(tr_request_events_t *t)
{
    /* the publisher looks by itself while requests are inside: nobody is
     * rung */
    (void) tr_ring_publish(&t->loop);
}

/* ---- publisher ----------------------------------------------------------- */

void
tr_events_look(tr_request_events_t *t)
{
    (void) tr_ring_look(&t->from_loop);
}
