/*
 * The outbox of the publisher (redis_outbox.h).
 */
#include "redis_outbox_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/hash.h"
#include "engine/config/log.h"

static const char LEFT_MESSAGE[] = "The request ended before its output did";

void
tr_outbox_init(tr_outbox_t *l, size_t limit)
{
    memset(l, 0, sizeof(*l));
    tr_usage_init(&l->usage);
    l->limit = limit;
}

/* ---- lists -------------------------------------------------------------- */

/* A peer could choose its digits: all of them count. */
static uint32_t
completion_bucket(const char *completion)
{
    return tr_fnv1a_32(TR_FNV1A_32, completion, TR_COMPLETION_LEN)
           % TR_OUTBOX_BUCKETS;
}

tr_outbox_request_t *
tr_outbox_find(tr_outbox_t *l, uint64_t id)
{
    tr_outbox_request_t *q = l->by_id[id % TR_OUTBOX_BUCKETS];

    while (q != NULL && q->id != id) {
        q = q->chain;
    }
    return q;
}

tr_outbox_request_t *
tr_outbox_find_completion(tr_outbox_t *l,
                          const char completion[TR_COMPLETION_LEN])
{
    tr_outbox_request_t *q = l->by_completion[completion_bucket(completion)];

    while (q != NULL
           && (q->ended
               || memcmp(q->completion, completion, TR_COMPLETION_LEN) != 0)) {
        q = q->chain_completion;
    }
    return q;
}

bool
tr_outbox_holds(tr_outbox_t *l, const char completion[TR_COMPLETION_LEN])
{
    tr_outbox_request_t *q = l->by_completion[completion_bucket(completion)];

    while (q != NULL
           && memcmp(q->completion, completion, TR_COMPLETION_LEN) != 0) {
        q = q->chain_completion;
    }
    return q != NULL;
}

static void
link_request(tr_outbox_t *l, tr_outbox_request_t *q)
{
    tr_outbox_request_t **at = &l->by_id[q->id % TR_OUTBOX_BUCKETS];

    q->chain = *at;
    *at = q;
    at = &l->by_completion[completion_bucket(q->completion)];
    q->chain_completion = *at;
    *at = q;
    q->prev = l->last;
    if (l->last != NULL) {
        l->last->next = q;
    } else {
        l->first = q;
    }
    l->last = q;
    l->n++;
    l->live++;
    l->bytes += sizeof(*q);
}

static void
unlink_due(tr_outbox_t *l, tr_outbox_request_t *q)
{
    if (!q->due) {
        return;
    }
    *(q->due_prev != NULL ? &q->due_prev->due_next
                          : &l->due_first) = q->due_next;
    *(q->due_next != NULL ? &q->due_next->due_prev
                          : &l->due_last) = q->due_prev;
    q->due_prev = q->due_next = NULL;
    q->due = false;
}

void
tr_outbox_due(tr_outbox_t *l, tr_outbox_request_t *q)
{
    if (q->due || q->muted || q->fenced) {
        return;
    }
    q->due = true;
    q->due_next = NULL;
    q->due_prev = l->due_last;
    *(l->due_last != NULL ? &l->due_last->due_next : &l->due_first) = q;
    l->due_last = q;
}

tr_outbox_request_t *
tr_outbox_next(tr_outbox_t *l)
{
    tr_outbox_request_t *q = l->due_first;

    if (q != NULL) {
        unlink_due(l, q);
    }
    return q;
}

static void
unlink_request(tr_outbox_t *l, tr_outbox_request_t *q)
{
    tr_outbox_request_t **at = &l->by_id[q->id % TR_OUTBOX_BUCKETS];

    while (*at != q) {
        at = &(*at)->chain;
    }
    *at = q->chain;
    at = &l->by_completion[completion_bucket(q->completion)];
    while (*at != q) {
        at = &(*at)->chain_completion;
    }
    *at = q->chain_completion;
    *(q->prev != NULL ? &q->prev->next : &l->first) = q->next;
    *(q->next != NULL ? &q->next->prev : &l->last) = q->prev;
    unlink_due(l, q);
    l->n--;
    l->live -= !q->ended;
    l->bytes -= sizeof(*q);
}

static size_t
kept_size(const tr_event_kept_t *kept)
{
    return kept->text == NULL ? 0 : kept->input_len + kept->ancestors_len;
}

static void
free_request(tr_outbox_t *l, tr_outbox_request_t *q)
{
    tr_outbox_drop_spares(l, q);
    tr_outbox_drop_unacked(l, q, NULL);
    unlink_request(l, q);
    l->bytes -= kept_size(&q->answered);
    free(q->answered.text);
    free(q);
}

void
tr_outbox_free(tr_outbox_t *l)
{
    while (l->first != NULL) {
        free_request(l, l->first);
    }
}

void
tr_outbox_count_lost(tr_outbox_t *l, tr_outbox_request_t *q)
{
    l->lost += !q->counted;
    q->counted = true;
    q->dirty |= TR_OUTBOX_STATE;
    tr_outbox_due(l, q);
}

/* ---- what is told ------------------------------------------------------- */

static int64_t
unix_ms(const tr_outbox_t *l, uint64_t us)
{
    return us == 0 ? 0 : ((int64_t) us + l->realtime_us) / 1000;
}

/* Room for one more request: the oldest that ended makes way. */
static bool
room_for_request(tr_outbox_t *l)
{
    tr_outbox_request_t *q = l->first, *next;

    for (; !tr_outbox_has_room(l, sizeof(*q)) && q != NULL; q = next) {
        next = q->next;
        if (q->ended && !q->sending && q->writing == 0) {
            l->lost += !q->counted;
            free_request(l, q);
        }
    }
    return tr_outbox_has_room(l, sizeof(*q));
}

static void
take_arrived(tr_outbox_t *l, uint64_t id, const uint8_t *payload)
{
    tr_event_arrived_t note;
    tr_outbox_request_t *q;

    memcpy(&note, payload, sizeof(note));
    if (tr_outbox_find_completion(l, note.completion) != NULL) {
        l->lost++; /* a worker that gives an id twice must not mix them up */
        return;
    }
    q = room_for_request(l) ? calloc(1, sizeof(*q)) : NULL;
    if (q == NULL) {
        l->lost++;
        return;
    }
    q->id = id;
    memcpy(q->completion, note.completion, TR_COMPLETION_LEN);
    memcpy(q->owner, note.owner, TR_OWNER_LEN);
    memcpy(q->request_id, note.request_id, TR_REQUEST_ID_MAX);
    q->endpoint = note.endpoint;
    q->flags = note.flags;
    q->tenant = note.tenant;
    q->created_ms = unix_ms(l, note.arrival_us);
    q->output = (note.flags & TR_SUBMIT_RESUMABLE) != 0;
    q->inherited = UINT32_MAX;
    q->muted = note.moved != 0;
    q->migrate_s = note.migrate_s;
    q->dirty = TR_OUTBOX_IDENTITY | TR_OUTBOX_STATE;
    link_request(l, q);
    tr_outbox_due(l, q);
}

static void
take_accepted(tr_outbox_t *l, tr_outbox_request_t *q, const uint8_t *payload,
              size_t len)
{
    tr_wire_accepted_t head;
    tr_wire_bytes_t model, policy;

    if (tr_wire_accepted_parse(payload, len, &head, &model, &policy) == TR_OK) {
        snprintf(q->policy, sizeof(q->policy), "%.*s", (int) policy.len,
                 policy.data);
        q->stream = (head.flags & TR_ACCEPTED_STREAM) != 0;
        q->end.choices = head.choices;
        q->end.prompt_tokens = head.prompt_tokens;
        q->dirty |= TR_OUTBOX_ACCEPTED;
        tr_outbox_due(l, q);
    }
}

/* Its text is ours, whatever becomes of it. */
static void
take_kept(tr_outbox_t *l, tr_outbox_request_t *q, const uint8_t *payload)
{
    tr_event_kept_t note;

    memcpy(&note, payload, sizeof(note));
    if (q == NULL || q->ended || q->answered.text != NULL) {
        free(note.text);
        return;
    }
    if (!tr_outbox_has_room(l, kept_size(&note))) {
        free(note.text);
        tr_outbox_count_lost(l, q);
        return;
    }
    q->answered = note;
    l->bytes += kept_size(&note);
    q->output = true;
    q->dirty |= TR_OUTBOX_KEPT;
    tr_outbox_due(l, q);
}

/* It goes on here, and those that had it are refused from now on. */
static void
take_moved(tr_outbox_t *l, tr_outbox_request_t *q, const uint8_t *payload)
{
    tr_event_moved_t note;

    memcpy(&note, payload, sizeof(note));
    if (q != NULL && !q->ended && q->muted) {
        q->muted = false;
        q->epoch = note.epoch;
        if (q->output) {
            tr_outbox_go_on(l, q, note.told, note.told_len,
                            (uint32_t) note.number);
        }
        tr_outbox_due(l, q);
    }
    free(note.told);
}

static bool
is_last(uint16_t type, const uint8_t *payload, size_t len)
{
    tr_wire_finish_t finish;

    return type == TR_RECORD_ERROR
           || (type == TR_RECORD_FINISH
               && tr_wire_finish_parse(payload, len, &finish, NULL) == TR_OK
               && (finish.flags & TR_FINISH_LAST) != 0);
}

static void
take_record(tr_outbox_t *l, tr_outbox_request_t *q, uint16_t type,
            const uint8_t *payload, size_t len)
{
    tr_ring_piece_t piece = { payload, len };

    if (type == TR_RECORD_ACCEPTED) {
        take_accepted(l, q, payload, len);
    }
    /* of an ACCEPTED, the engine before has told */
    if (!q->output || q->closed || q->muted || q->fenced
        || (q->epoch != 0 && type == TR_RECORD_ACCEPTED)) {
        return;
    }
    /* an entry at most doubles */
    if (!tr_outbox_has_room(l, sizeof(tr_outbox_entry_t) + 2 * (len + 256)
                                   + (tr_outbox_open(q) != NULL ? q->tail->cap
                                                                : 0))
        || !tr_outbox_append(l, q, type, &piece, 1)) {
        tr_outbox_lose(l, q);
        return;
    }
    q->closed = is_last(type, payload, len);
}

static void
take_state(tr_outbox_t *l, tr_outbox_request_t *q, uint8_t state,
           int64_t *at_ms, const uint8_t *payload)
{
    uint64_t us;

    memcpy(&us, payload, sizeof(us));
    *at_ms = unix_ms(l, us);
    if (q->state < state) {
        q->state = state;
        q->dirty |= TR_OUTBOX_STATE;
        tr_outbox_due(l, q);
    }
}

/* What it used, unless another engine goes on with it and counts all of it. */
static void
count_usage(tr_outbox_t *l, const tr_outbox_request_t *q)
{
    const tr_event_end_t *end = &q->end;

    if (!end->moves
        && !tr_usage_add(&l->usage, q->tenant,
                         (uint32_t) (q->finished_ms / 86400000),
                         end->prompt_tokens, end->completion_tokens)) {
        l->lost++;
    }
}

static void
apply_end(tr_outbox_t *l, tr_outbox_request_t *q)
{
    const tr_event_end_t *end = &q->end;

    q->ended = true;
    l->live--;
    if (q->muted || q->fenced) {
        q->dirty = 0;
        tr_outbox_settle(l, q);
        return;
    }
    if (end->elsewhere) {
        q->left = true;
        q->dirty |= TR_OUTBOX_STATE;
        tr_outbox_drop_output(l, q);
        tr_outbox_due(l, q);
        return;
    }
    q->state = end->state;
    q->dirty |= TR_OUTBOX_STATE | TR_OUTBOX_ACCEPTED | TR_OUTBOX_FINAL;
    if (end->scheduled_us != 0) {
        q->started_ms = unix_ms(l, end->scheduled_us);
    }
    if (end->first_token_us != 0) {
        q->first_token_ms = unix_ms(l, end->first_token_us);
    }
    q->finished_ms = unix_ms(l, end->ended_us);
    count_usage(l, q);
    if (q->output && !q->closed) {
        if (end->lost) {
            tr_outbox_lose(l, q);
        } else {
            tr_outbox_append_error(
                l, q, end->status != TR_OK ? end->status : TR_ERR_CANCELLED,
                end->message[0] != '\0' ? end->message : LEFT_MESSAGE);
        }
    }
    tr_outbox_due(l, q);
}

/* Its records may still be in the other ring: applied in the next round. */
static void
take_end(tr_outbox_t *l, tr_outbox_request_t *q, const uint8_t *payload)
{
    memcpy(&q->end, payload, sizeof(q->end));
    q->end.message[sizeof(q->end.message) - 1] = '\0';
    q->chain_ending = l->ending;
    l->ending = q;
}

void
tr_outbox_take(tr_outbox_t *l, const tr_record_t *rec, const uint8_t *payload)
{
    tr_outbox_request_t *q;

    if (rec->type == TR_EVENT_ARRIVED) {
        take_arrived(l, rec->id, payload);
        return;
    }
    q = tr_outbox_find(l, rec->id);
    if (rec->type == TR_EVENT_KEPT) {
        take_kept(l, q, payload);
        return;
    }
    if (rec->type == TR_EVENT_MOVED) {
        take_moved(l, q, payload);
        return;
    }
    if (q == NULL || q->ended) {
        return; /* there was no memory for it */
    }
    switch (rec->type) {
    case TR_EVENT_STARTED:
        take_state(l, q, TR_REQUEST_PREFILL, &q->started_ms, payload);
        break;
    case TR_EVENT_FIRST:
        take_state(l, q, TR_REQUEST_DECODE, &q->first_token_ms, payload);
        break;
    case TR_EVENT_PROGRESS:
        memcpy(&q->progress, payload, sizeof(q->progress));
        q->dirty |= TR_OUTBOX_PROGRESS;
        tr_outbox_due(l, q);
        break;
    case TR_EVENT_DETACHED:
        q->detached = true;
        q->dirty |= TR_OUTBOX_STATE;
        tr_outbox_due(l, q);
        break;
    case TR_EVENT_LOST:
        if (!q->closed) {
            tr_outbox_lose(l, q);
        }
        break;
    case TR_EVENT_END:
        take_end(l, q, payload);
        break;
    default:
        take_record(l, q, rec->type, payload, rec->length);
    }
}

void
tr_outbox_apply_ends(tr_outbox_t *l)
{
    tr_outbox_request_t *q, *next;

    for (q = l->ended_before; q != NULL; q = next) {
        next = q->chain_ending;
        apply_end(l, q);
    }
    l->ended_before = l->ending;
    l->ending = NULL;
}

void
tr_outbox_end_all(tr_outbox_t *l)
{
    tr_outbox_request_t *q, *next;

    tr_outbox_apply_ends(l);
    tr_outbox_apply_ends(l);
    for (q = l->first; q != NULL; q = next) {
        next = q->next;
        if (!q->ended) {
            q->end.state = TR_REQUEST_FAILED;
            q->end.status = TR_ERR_DRAINING;
            q->end.moves = (q->flags & TR_SUBMIT_IDS) != 0 && !q->detached;
            snprintf(q->end.message, sizeof(q->end.message),
                     "The engine has stopped");
            apply_end(l, q);
        }
    }
}

/* ---- answers of Redis --------------------------------------------------- */

bool
tr_outbox_can_write(const tr_outbox_request_t *q)
{
    if (q->muted || q->fenced) {
        return false;
    }
    return (q->dirty != 0 && q->writing == 0)
           || (q->unacked != NULL && !q->sending) || (q->unsure && !q->asking);
}

void
tr_outbox_settled(tr_outbox_t *l, tr_outbox_request_t *q)
{
    if (tr_outbox_can_write(q)) {
        tr_outbox_due(l, q);
    } else {
        tr_outbox_settle(l, q);
    }
}

void
tr_outbox_settle(tr_outbox_t *l, tr_outbox_request_t *q)
{
    if (q->ended && q->dirty == 0 && q->writing == 0 && q->unacked == NULL
        && !q->sending && !q->unsure) {
        free_request(l, q);
    }
}

/* All that Redis should have of q. */
static uint8_t
all_fields(const tr_outbox_request_t *q)
{
    return TR_OUTBOX_IDENTITY | TR_OUTBOX_STATE | TR_OUTBOX_ACCEPTED
           | (q->answered.text != NULL ? TR_OUTBOX_KEPT : 0)
           | (q->ended && !q->left      ? TR_OUTBOX_FINAL
              : q->progress.tokens != 0 ? TR_OUTBOX_PROGRESS
                                        : 0);
}

void
tr_outbox_fields_gone(tr_outbox_request_t *q)
{
    q->dirty |= all_fields(q) & (uint8_t) ~q->writing;
}

void
tr_outbox_fields_done(tr_outbox_t *l, tr_outbox_request_t *q, bool ok)
{
    if (!ok) {
        q->dirty |= q->writing;
    }
    q->writing = 0;
    tr_outbox_settled(l, q);
}

void
tr_outbox_give_up_fields(tr_outbox_t *l, tr_outbox_request_t *q)
{
    q->writing = 0;
    tr_outbox_count_lost(l, q);
    q->dirty = 0;
    tr_outbox_settled(l, q);
}

void
tr_outbox_fenced(tr_outbox_t *l, tr_outbox_request_t *q)
{
    q->fenced = true;
    unlink_due(l, q);
    tr_outbox_drop_output(l, q);
    q->dirty = q->writing = 0;
    tr_outbox_settle(l, q);
}

void
tr_outbox_reset(tr_outbox_t *l)
{
    tr_outbox_request_t *q;

    for (q = l->first; q != NULL; q = q->next) {
        q->sending = q->asking = q->claimed = false;
        q->writing = 0;
        q->dirty = q->fenced ? 0 : all_fields(q);
        q->expires_ms = q->output_expires_ms = 0;
        q->unsure = q->output && q->began;
        tr_outbox_due(l, q);
    }
}
