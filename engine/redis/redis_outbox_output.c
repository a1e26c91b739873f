/*
 * The outbox's output: records, entries, and the memory they take
 * (redis_outbox.h).
 */
#include "redis_outbox_internal.h"

#include <stdlib.h>
#include <string.h>

#include "engine/scheduler/kept.h"

typedef struct {
    uint32_t length;
    uint16_t type, zero;
} piece_head_t;

_Static_assert(sizeof(piece_head_t) == 8, "as docs/redis.md has it");

static const char GAP_MESSAGE[] = "The rest of this request's output was lost "
                                  "on its way to Redis";

/* ---- entries ------------------------------------------------------------ */

static size_t
entry_size(const tr_outbox_entry_t *e)
{
    return sizeof(*e) + e->cap;
}

/* Frees the first entry that is kept, which is acknowledged. */
static void
drop_spare(tr_outbox_t *l, tr_outbox_request_t *q)
{
    tr_outbox_entry_t *e = q->kept;

    q->kept = e->next;
    if (q->kept == NULL) {
        q->tail = NULL;
    }
    l->bytes -= entry_size(e);
    l->spare -= entry_size(e);
    free(e->bytes);
    free(e);
}

void
tr_outbox_drop_spares(tr_outbox_t *l, tr_outbox_request_t *q)
{
    while (q->kept != q->unacked) {
        drop_spare(l, q);
    }
}

/* Frees what Redis has not acknowledged, from `after` on (NULL: all). */
void
tr_outbox_drop_unacked(tr_outbox_t *l, tr_outbox_request_t *q,
                       tr_outbox_entry_t *after)
{
    tr_outbox_entry_t *e = after != NULL ? after->next : q->unacked, *next;
    tr_outbox_entry_t *before = after;

    if (e == NULL) {
        return;
    }
    if (before == NULL) { /* the last acknowledged one, if it is kept */
        for (before = q->kept != e ? q->kept : NULL;
             before != NULL && before->next != e; before = before->next) {
        }
    }
    q->last = e->first - 1;
    q->tail = before;
    *(before != NULL ? &before->next : &q->kept) = NULL;
    if (q->unacked == e) {
        q->unacked = NULL;
    }
    for (; e != NULL; e = next) {
        next = e->next;
        l->bytes -= entry_size(e);
        free(e->bytes);
        free(e);
    }
}

/* Makes room for n bytes by giving up what is kept for comfort only. */
bool
tr_outbox_has_room(tr_outbox_t *l, size_t n)
{
    tr_outbox_request_t *q;

    if (l->bytes + n > l->limit && l->spare != 0) {
        for (q = l->first; q != NULL; q = q->next) {
            tr_outbox_drop_spares(l, q);
        }
    }
    return l->bytes + n <= l->limit;
}

/* The last entry, if records can still join it. */
tr_outbox_entry_t *
tr_outbox_open(const tr_outbox_request_t *q)
{
    tr_outbox_entry_t *e = q->unacked != NULL ? q->tail : NULL;

    return e != NULL && !e->sent && e->len < TR_OUTBOX_ENTRY ? e : NULL;
}

static tr_outbox_entry_t *
new_entry(tr_outbox_t *l, tr_outbox_request_t *q)
{
    tr_outbox_entry_t *e = calloc(1, sizeof(*e));

    if (e == NULL) {
        return NULL;
    }
    e->first = q->last + 1;
    e->last = q->last;
    *(q->tail != NULL ? &q->tail->next : &q->kept) = e;
    q->tail = e;
    if (q->unacked == NULL) {
        q->unacked = e;
    }
    l->bytes += entry_size(e);
    return e;
}

static bool
grow_entry(tr_outbox_t *l, tr_outbox_entry_t *e, size_t need)
{
    size_t cap = e->cap != 0 ? e->cap : 256;
    uint8_t *grown;

    if (need <= e->cap) {
        return true;
    }
    while (cap < need) {
        cap *= 2;
    }
    grown = realloc(e->bytes, cap);
    if (grown == NULL) {
        return false;
    }
    l->bytes += cap - e->cap;
    e->bytes = grown;
    e->cap = cap;
    return true;
}

/* Appends one record; false: no memory. */
bool
tr_outbox_append(tr_outbox_t *l, tr_outbox_request_t *q, uint16_t type,
                 const tr_ring_piece_t *pieces, unsigned n)
{
    tr_outbox_entry_t *e = tr_outbox_open(q);
    piece_head_t head = { 0, type, 0 };
    unsigned i;

    for (i = 0; i < n; i++) {
        head.length += (uint32_t) pieces[i].len;
    }
    if (e == NULL) {
        e = new_entry(l, q);
    }
    if (e == NULL || !grow_entry(l, e, e->len + sizeof(head) + head.length)) {
        return false;
    }
    memcpy(e->bytes + e->len, &head, sizeof(head));
    e->len += sizeof(head);
    for (i = 0; i < n; i++) {
        if (pieces[i].len != 0) {
            memcpy(e->bytes + e->len, pieces[i].base, pieces[i].len);
            e->len += pieces[i].len;
        }
    }
    e->last = ++q->last;
    tr_outbox_due(l, q);
    return true;
}

/* The last record of q's output: says why there is no more. */
void
tr_outbox_append_error(tr_outbox_t *l, tr_outbox_request_t *q,
                       tr_status_t status, const char *message)
{
    tr_wire_error_t head = { .status = status,
                             .message_len = (uint32_t) strlen(message),
                             .prompt_tokens = q->end.prompt_tokens,
                             .completion_tokens = q->end.completion_tokens };
    tr_ring_piece_t pieces[] = { { &head, sizeof(head) },
                                 { message, head.message_len } };

    q->closed = true;
    if (!tr_outbox_append(l, q, TR_RECORD_ERROR, pieces, 2)) {
        q->output = false; /* not even that: what is there stays open */
        tr_outbox_drop_unacked(l, q, NULL);
    }
}

/* Something of q's output is missing from here on. */
void
tr_outbox_lose(tr_outbox_t *l, tr_outbox_request_t *q)
{
    tr_outbox_entry_t *sent = q->unacked;

    if (!q->output) {
        return;
    }
    q->gap = true;
    tr_outbox_count_lost(l, q);
    /* what may stand in Redis by now must not be followed by a hole */
    tr_outbox_drop_unacked(l, q, sent != NULL && sent->sent ? sent : NULL);
    tr_outbox_append_error(l, q, TR_ERR_INTERNAL, GAP_MESSAGE);
}

/* ---- answers of Redis --------------------------------------------------- */

void
tr_outbox_entry_done(tr_outbox_t *l, tr_outbox_request_t *q, bool ok)
{
    q->sending = false;
    if (ok && q->unacked != NULL) {
        l->spare += entry_size(q->unacked);
        q->unacked = q->unacked->next;
    }
    tr_outbox_settled(l, q);
}

/* Everything that is kept counts as unacknowledged again. */
static void
rewind_output(tr_outbox_t *l, tr_outbox_request_t *q)
{
    tr_outbox_entry_t *e;

    for (e = q->kept; e != q->unacked; e = e->next) {
        l->spare -= entry_size(e);
    }
    q->unacked = q->kept;
}

void
tr_outbox_found(tr_outbox_t *l, tr_outbox_request_t *q, uint32_t last)
{
    bool beyond = last > q->inherited;
    tr_outbox_entry_t *e;

    q->unsure = q->asking = false;
    q->inherited = UINT32_MAX;
    if (!q->output) {
        tr_outbox_settled(l, q);
        return;
    }
    rewind_output(l, q);
    while ((e = q->unacked) != NULL && e->last <= last) {
        l->spare += entry_size(e);
        q->unacked = e->next;
    }
    if (beyond || (e != NULL ? e->first : q->last + 1) != last + 1) {
        /* Redis lost what is not kept here any more, or has what no client was
         * told */
        rewind_output(l, q);
        tr_outbox_drop_unacked(l, q, NULL);
        q->last = last;
        q->gap = true;
        tr_outbox_count_lost(l, q);
        tr_outbox_append_error(l, q, TR_ERR_INTERNAL, GAP_MESSAGE);
    }
    tr_outbox_settled(l, q);
}

void
tr_outbox_go_on(tr_outbox_t *l, tr_outbox_request_t *q, const uint8_t *told,
                size_t len, uint32_t number)
{
    const uint8_t *payload;
    tr_ring_piece_t piece;
    tr_record_t rec;
    uint32_t n = 0;
    size_t at = 0;

    while (tr_kept_record(told, len, &at, &rec, &payload) == TR_OK) {
        n++;
    }
    q->last = number - n;
    q->inherited = number;
    q->began = q->unsure = true;
    for (at = 0; tr_kept_record(told, len, &at, &rec, &payload) == TR_OK;) {
        piece = (tr_ring_piece_t){ payload, rec.length };
        if (!tr_outbox_has_room(l, sizeof(tr_outbox_entry_t)
                                       + 2 * (rec.length + 256))
            || !tr_outbox_append(l, q, rec.type, &piece, 1)) {
            tr_outbox_lose(l, q);
            return;
        }
        q->tail->sent = true; /* by the engine before: as it is */
    }
}

void
tr_outbox_drop_output(tr_outbox_t *l, tr_outbox_request_t *q)
{
    rewind_output(l, q);
    tr_outbox_drop_unacked(l, q, NULL);
    q->output = q->sending = q->unsure = q->asking = false;
}

void
tr_outbox_give_up_output(tr_outbox_t *l, tr_outbox_request_t *q)
{
    tr_outbox_drop_output(l, q);
    q->gap = true;
    tr_outbox_count_lost(l, q);
    tr_outbox_settled(l, q);
}
