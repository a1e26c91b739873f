/*
 * Weights that stay integers (tr_cpu_codes_t of kernels.h), and rows of x made
 * integers for them.
 *
 *     w = (code - zero) * scale            a scale for `group` columns of an output
 *     x = code * scale                     signed, for TR_CODES_COLUMNS columns
 *
 * A product's sums over TR_CODES_COLUMNS columns are exact in 32 bits; in FP32,
 * in ascending order of columns, y = fma(sum * scale of x, scale of w, y).  So a
 * row's bits are its own, and the same on every instruction set.
 *
 * Layout.  As in matmul.c w is cut into panels of PANEL outputs.  A panel is made
 * of blocks, one for each group of columns:
 *
 *     codes    bytes: [group / 4][PANEL][4]; halves of bytes: [group / 8][PANEL][4],
 *              in the lower half of a byte column 8 j + b, in the upper one
 *              8 j + 4 + b
 *     scales   [PANEL] of their type
 *     zeros    [PANEL] of 16 bits, where each group has one of its own
 */
#ifndef TR_CPU_CODES_H
#define TR_CPU_CODES_H

#include "kernels/cpu/cpu.h"

#define CODES_QUAD 4u /* columns that are multiplied at once */

/* Bytes of what a block begins with: the codes of n columns. */
static inline size_t
codes_bytes(tr_codes_t codes, uint32_t n)
{
    return (size_t) n * TR_COL_PAD / (codes == TR_CODES_INT8 ? 1 : 2);
}

static inline size_t
codes_block(const tr_cpu_codes_t *c)
{
    return codes_bytes(c->codes, c->group)
           + TR_COL_PAD * (tr_dtype_size(c->scales) + (c->zeros ? 2u : 0));
}

/* The zero point of all groups, where they have none of their own. */
static inline int32_t
codes_zero(tr_codes_t codes)
{
    return codes == TR_CODES_INT8 ? 128 : codes == TR_CODES_INT4 ? 8 : 12;
}

/* What a code of MXFP4 stands for, twice, above its zero point. */
#define CODES_MXFP4 12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0

/* Of a row of x: a group's scale, and the sum of its codes. */
struct tr_codes_group {
    float scale;
    int32_t sum;
};

/* Rows of x in the workspace: codes [rows][k], then groups [rows][k / 32]. */
typedef struct {
    int8_t *code;
    tr_codes_group_t *group;
} codes_rows_t;

static inline codes_rows_t
codes_rows(void *work, uint32_t rows, uint32_t k)
{
    size_t bytes = tr_pad((size_t) rows * k, 64);

    return (codes_rows_t){ work,
                           (tr_codes_group_t *) ((uint8_t *) work + bytes) };
}

#endif
