/*
 * Lookups of responses that are kept (kept.h).
 */
#include "kept.h"

#include <stdlib.h>
#include <string.h>

#include <tokenring/channel.h>

bool
tr_lookup_add(tr_lookup_t *l, const char id[TR_COMPLETION_LEN],
              bool conversation)
{
    tr_turn_t *turns;

    if (l->n_turns == TR_TURNS_MAX) {
        return false;
    }
    turns = realloc(l->turns, (l->n_turns + 1) * sizeof(*turns));
    if (turns == NULL) {
        return false;
    }
    l->turns = turns;
    turns += l->n_turns++;
    memset(turns, 0, sizeof(*turns));
    memcpy(turns->id, id, TR_COMPLETION_LEN);
    turns->conversation = conversation;
    return true;
}

void
tr_lookup_free(tr_lookup_t *l)
{
    uint32_t i;

    if (l == NULL) {
        return;
    }
    for (i = 0; i < l->n_turns; i++) {
        free(l->turns[i].input);
        free(l->turns[i].output);
    }
    if (l->events != NULL) {
        atomic_fetch_sub(&l->events->n_lookups, 1);
    }
    free(l->turns);
    free(l);
}

bool
tr_lookup_ask(tr_request_events_t *t, tr_lookup_t *l)
{
    if (atomic_fetch_add(&t->n_lookups, 1) >= TR_LOOKUPS_MAX) {
        atomic_fetch_sub(&t->n_lookups, 1);
        return false;
    }
    l->events = t;
    pthread_mutex_lock(&t->asking);
    l->next = t->asked;
    t->asked = l;
    pthread_mutex_unlock(&t->asking);
    tr_doorbell_ring(t->publisher_fd);
    return true;
}

tr_lookup_t *
tr_lookup_take(tr_request_events_t *t)
{
    tr_lookup_t *l, *next, *first = NULL;

    pthread_mutex_lock(&t->asking);
    l = t->asked;
    t->asked = NULL;
    pthread_mutex_unlock(&t->asking);
    for (; l != NULL; l = next) {
        next = l->next;
        l->next = first;
        first = l;
    }
    return first;
}

typedef struct {
    uint32_t length;
    uint16_t type, zero;
} head_t;

tr_status_t
tr_kept_record(const uint8_t *bytes, size_t len, size_t *at, tr_record_t *rec,
               const uint8_t **payload)
{
    head_t head;

    if (*at == len) {
        return TR_AGAIN;
    }
    if (len - *at < sizeof(head)) {
        return TR_ERR_PROTOCOL;
    }
    memcpy(&head, bytes + *at, sizeof(head));
    if (head.zero != 0 || head.length > len - *at - sizeof(head)) {
        return TR_ERR_PROTOCOL;
    }
    memset(rec, 0, sizeof(*rec));
    rec->type = head.type;
    rec->length = head.length;
    *payload = bytes + *at + sizeof(head);
    *at += sizeof(head) + head.length;
    return TR_OK;
}
