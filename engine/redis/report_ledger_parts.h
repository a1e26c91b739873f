/*
 * What the two files of the ledger share: report_ledger.c knows requests,
 * report_output.c their output.
 */
#ifndef TR_REPORT_LEDGER_PARTS_H
#define TR_REPORT_LEDGER_PARTS_H

#include "report_ledger.h"

/* Something of q is lost: counted once. */
void tr_ledger_count_lost(tr_ledger_t *l, tr_ledger_request_t *q);
/* An answer came: more is due, or q is done with. */
void tr_ledger_settled(tr_ledger_t *l, tr_ledger_request_t *q);

/* Makes room for n bytes by giving up what is kept for comfort only. */
bool tr_output_has_room(tr_ledger_t *l, size_t n);
/* The last entry, if records can still join it. */
tr_ledger_entry_t *tr_output_open(const tr_ledger_request_t *q);
/* Appends one record; false: no memory. */
bool tr_output_append(tr_ledger_t *l, tr_ledger_request_t *q, uint16_t type,
                      const tr_ring_piece_t *pieces, unsigned n);
/* The last record of q's output: says why there is no more. */
void tr_output_append_error(tr_ledger_t *l, tr_ledger_request_t *q,
                            tr_status_t status, const char *message);
/* Something of q's output is missing from here on. */
void tr_output_lose(tr_ledger_t *l, tr_ledger_request_t *q);
/* Frees what is acknowledged. */
void tr_output_drop_spares(tr_ledger_t *l, tr_ledger_request_t *q);
/* Frees what Redis has not acknowledged, from `after` on (NULL: all). */
void tr_output_drop_unacked(tr_ledger_t *l, tr_ledger_request_t *q,
                            tr_ledger_entry_t *after);

#endif
