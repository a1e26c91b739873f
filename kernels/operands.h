/*
 * operands.h: what launchers take and return: the rows of a step, matrices, how
 * buffers are padded, the limits of a model's shape.  Both backends use it.
 *
 * Shapes are [rows][columns], row-major; ld* are distances between rows, in
 * elements.  "rows" are the tokens of one step: prefill chunks and decode
 * tokens of many sequences, one after the other.
 */
#ifndef TR_OPERANDS_H
#define TR_OPERANDS_H

#include "dtype.h"

#define TR_KERNEL_OK 0
#define TR_KERNEL_BADARG (-1) /* a shape that the contract excludes */

#define TR_HEAD_DIM_MAX 256u
#define TR_GROUP_MAX 32u /* query heads on one KV head */

/* Row buffers given to matmul have room for rows rounded up to a multiple of
 * TR_ROW_PAD, and the rows in that padding may be read and overwritten; their
 * contents have no influence.  ldy is a multiple of TR_COL_PAD, and columns
 * from n up to that multiple are overwritten too. */
#define TR_ROW_PAD 24u
#define TR_COL_PAD 64u
#define TR_GATED_ROWS 48u

TR_HD size_t
tr_pad(size_t n, size_t to)
{
    return (n + to - 1) / to * to;
}

/* The rows of one step, in flat arrays.  Sequence s has the rows
 * [seq_row[s], seq_row[s + 1]), at consecutive positions; rows before the first
 * and behind the last one's belong to others. */
typedef struct {
    uint32_t n_rows, n_seqs;
    const uint32_t *row_pos; /* [n_rows] position of the row's token */
    const int32_t *seq_slot; /* [n_seqs] slot in the KV cache */
    const uint32_t *seq_row; /* [n_seqs + 1] */
} tr_rows_t;

#endif
