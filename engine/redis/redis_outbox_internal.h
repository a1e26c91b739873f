/*
 * What the two files of the outbox share: redis_outbox.c knows requests,
 * redis_outbox_output.c their output.
 */
#ifndef TR_REDIS_OUTBOX_INTERNAL_H
#define TR_REDIS_OUTBOX_INTERNAL_H

#include "redis_outbox.h"

/* Something of q is lost: counted once. */
void tr_outbox_count_lost(tr_outbox_t *l, tr_outbox_request_t *q);
/* An answer came: more is due, or q is done with. */
void tr_outbox_settled(tr_outbox_t *l, tr_outbox_request_t *q);

/* Makes room for n bytes by giving up what is kept for comfort only. */
bool tr_outbox_has_room(tr_outbox_t *l, size_t n);
/* The last entry, if records can still join it. */
tr_outbox_entry_t *tr_outbox_open(const tr_outbox_request_t *q);
/* Appends one record; false: no memory. */
bool tr_outbox_append(tr_outbox_t *l, tr_outbox_request_t *q, uint16_t type,
                      const tr_ring_piece_t *pieces, unsigned n);
/* Starts with what another engine had told of q up to record `number`; the
 * bytes are borrowed. */
void tr_outbox_go_on(tr_outbox_t *l, tr_outbox_request_t *q,
                     const uint8_t *told, size_t len, uint32_t number);
/* Forgets q's output, which is not lost but elsewhere. */
void tr_outbox_drop_output(tr_outbox_t *l, tr_outbox_request_t *q);
/* The last record of q's output: says why there is no more. */
void tr_outbox_append_error(tr_outbox_t *l, tr_outbox_request_t *q,
                            tr_status_t status, const char *message);
/* Something of q's output is missing from here on. */
void tr_outbox_lose(tr_outbox_t *l, tr_outbox_request_t *q);
/* Frees what is acknowledged. */
void tr_outbox_drop_spares(tr_outbox_t *l, tr_outbox_request_t *q);
/* Frees what Redis has not acknowledged, from `after` on (NULL: all). */
void tr_outbox_drop_unacked(tr_outbox_t *l, tr_outbox_request_t *q,
                            tr_outbox_entry_t *after);

#endif
