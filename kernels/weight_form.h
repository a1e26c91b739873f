/*
 * weight_form.h: how a weight matrix w[n][k] lies in memory, for host and device
 * code: 16 bits an element, or packed, as quantised checkpoints are kept on a
 * GPU (FP8, INT4, MXFP4).  The engine packs a matrix once, when it is loaded;
 * kernels (small_gemm, unpack, experts in kernels/cuda/device.h) read this layout
 * and no other.
 *
 *     w[row][column] = (code - zero) * scale
 *
 * 16 bits: rows of k elements.  Packed, in this order:
 *
 *   codes   [k / 64][n / 16] blocks of 16 rows x 64 columns, 1024 bytes of FP8
 *           (E4M3), 512 of INT4 (0 .. 15) and of MXFP4 (E2M1).  Within a block
 *           each of a warp's 32 lanes has what it multiplies, in the tensor core's
 *           order: lane 4 g + t has rows g and g + 8, and of each 16 columns (a
 *           step, 0 .. 3) columns 2 t, 2 t + 1, 2 t + 8 and 2 t + 9.  With
 *           i = (row is g + 8) + 2 * (column is 2 t + 8 or later) and
 *           j = the column is odd:
 *             FP8    [step / 2][lane][step % 2][i / 2] words of 4 bytes, in them
 *                    byte i % 2 + 2 j
 *             4 bits [lane][step] words of 4 bytes, in them the four bits from
 *                    4 i + 16 j on
 *   scales  [groups][n] words, a group being `group` columns of a row, or all of
 *           them: of FP8 the scale in FP32, of INT4 its upper 24 bits (which any
 *           scale in 16 bits fits) and the zero point in the lowest 8.  Of MXFP4
 *           a byte is a scale, 2^(byte - 127), for 32 columns, and the four of a
 *           block's rows g and g + 8 are a word: [k / 64][n / 16][g] words, in
 *           them byte (columns 32 to 63) + 2 * (row is g + 8)
 *
 * Blocks of all rows for some columns are contiguous, so a tile of rows is, too:
 * it is copied in pieces of several KB.  `order` says what stands otherwise:
 *
 *   PAIRS   the first and the second half of the rows (gate and up) alternate by
 *           eights, so that a thread has both of a column; tr_weight_place says
 *           where a row stands
 *   EIGHTS  of experts, which are rows behind rows: lane 4 g + t has eight columns
 *           that are neighbours, 8 t + 32 (step / 2) and on, four of them in the
 *           even step and four in the odd, so that the other operand is read 16
 *           bytes at a time
 */
#ifndef TR_WEIGHT_FORM_H
#define TR_WEIGHT_FORM_H

#include "kernels/dtype.h"

typedef enum {
    TR_WEIGHT_16, /* not packed */
    TR_WEIGHT_FP8,
    TR_WEIGHT_INT4,
    TR_WEIGHT_MXFP4,
    TR_WEIGHT_FORMATS
} tr_weight_format_t;

typedef enum {
    TR_WEIGHT_PLAIN,
    TR_WEIGHT_PAIRS, /* not of 16 bits, nor the next */
    TR_WEIGHT_EIGHTS
} tr_weight_order_t;

typedef struct {
    tr_weight_format_t format;
    tr_weight_order_t order;
    uint32_t group; /* columns that share a scale; 0: all of a row */
} tr_weight_form_t;

#define TR_WEIGHT_ROWS 16u        /* of a block */
#define TR_WEIGHT_COLUMNS 64u     /* likewise */
#define TR_WEIGHT_SIDE (1u << 22) /* n and k, at most */

/* "FP8", for people. */
static inline const char *
tr_weight_format_name(tr_weight_format_t format)
{
    return format == TR_WEIGHT_FP8     ? "FP8"
           : format == TR_WEIGHT_INT4  ? "INT4"
           : format == TR_WEIGHT_MXFP4 ? "MXFP4"
                                       : "16 bits";
}

/* Is it a group that a format has? */
TR_HD bool
tr_weight_group_valid(tr_weight_form_t f)
{
    return f.format == TR_WEIGHT_FP8 ? f.group == 0 || f.group == 128
           : f.format == TR_WEIGHT_INT4
               ? f.group == 32 || f.group == 64 || f.group == 128
               : f.format == TR_WEIGHT_MXFP4 && f.group == 32;
}

/* Is it a form that kernels have, for such a matrix? */
TR_HD bool
tr_weight_valid(tr_weight_form_t f, uint32_t n, uint32_t k)
{
    if (n == 0 || k == 0 || n > TR_WEIGHT_SIDE || k > TR_WEIGHT_SIDE) {
        return false;
    }
    if (f.format == TR_WEIGHT_16) {
        return f.order == TR_WEIGHT_PLAIN && f.group == 0;
    }
    return f.format != TR_WEIGHT_MXFP4 && tr_weight_group_valid(f)
           && f.order <= TR_WEIGHT_PAIRS && n % 64 == 0
           && k % TR_WEIGHT_COLUMNS == 0 && (f.group == 0 || k % f.group == 0);
}

/* The same of experts with n rows each. */
TR_HD bool
tr_weight_valid_experts(tr_weight_form_t f, uint32_t experts, uint32_t n,
                        uint32_t k)
{
    return f.order == TR_WEIGHT_EIGHTS && tr_weight_group_valid(f) && n != 0
           && k != 0 && k <= TR_WEIGHT_SIDE && experts != 0
           && n <= TR_WEIGHT_SIDE / experts && n % TR_WEIGHT_ROWS == 0
           && k % TR_WEIGHT_COLUMNS == 0 && (f.group == 0 || k % f.group == 0);
}

/* Bytes of a block of codes. */
TR_HD uint32_t
tr_weight_block(tr_weight_format_t format)
{
    return format == TR_WEIGHT_FP8 ? 1024 : 512;
}

TR_HD uint32_t
tr_weight_groups(tr_weight_form_t f, uint32_t k)
{
    return f.group == 0 ? 1 : k / f.group;
}

/* Bytes in front of the scales. */
TR_HD size_t
tr_weight_code_bytes(tr_weight_form_t f, uint32_t n, uint32_t k)
{
    return (size_t) n / TR_WEIGHT_ROWS * (k / TR_WEIGHT_COLUMNS)
           * tr_weight_block(f.format);
}

/* Bytes of a scale. */
TR_HD uint32_t
tr_weight_scale_bytes(tr_weight_format_t format)
{
    return format == TR_WEIGHT_MXFP4 ? 1 : 4;
}

/* Bytes of a matrix. */
TR_HD size_t
tr_weight_bytes(tr_weight_form_t f, uint32_t n, uint32_t k)
{
    return f.format == TR_WEIGHT_16
               ? (size_t) n * k * 2
               : tr_weight_code_bytes(f, n, k)
                     + (size_t) tr_weight_groups(f, k) * n
                           * tr_weight_scale_bytes(f.format);
}

/* Where a row stands; which row stands there. */
TR_HD uint32_t
tr_weight_place(tr_weight_form_t f, uint32_t n, uint32_t row)
{
    uint32_t half = n / 2, i = row < half ? row : row - half;

    return f.order != TR_WEIGHT_PAIRS
               ? row
               : i / 8 * 16 + i % 8 + (row < half ? 0 : 8);
}

TR_HD uint32_t
tr_weight_row(tr_weight_form_t f, uint32_t n, uint32_t place)
{
    return f.order != TR_WEIGHT_PAIRS
               ? place
               : place / 16 * 8 + place % 8 + (place % 16 < 8 ? 0 : n / 2);
}

/* ---- codes --------------------------------------------------------------- */

/* Where a code of a block is: its byte of FP8, its four bits of others. */
TR_HD uint32_t
tr_weight_code_at(tr_weight_form_t f, uint32_t row, uint32_t column)
{
    bool eights = f.order == TR_WEIGHT_EIGHTS;
    uint32_t t = eights ? column % 32 / 8 : column % 8 / 2;
    uint32_t step = eights ? column / 32 * 2 + column % 8 / 4 : column / 16;
    uint32_t later = eights ? column % 4 / 2 : column % 16 / 8;
    uint32_t lane = row % 8 * 4 + t, i = row / 8 + later * 2, j = column % 2;

    return f.format == TR_WEIGHT_FP8 ? step / 2 * 512 + lane * 16 + step % 2 * 8
                                           + i / 2 * 4 + i % 2 + 2 * j
                                     : lane * 32 + step * 8 + i + 4 * j;
}

/* Blocks of 16 rows: codes [16][ld] become blocks of `columns` columns, the next
 * one `stride` bytes behind. */
static inline void
tr_weight_pack(tr_weight_form_t f, const uint8_t *codes, size_t ld,
               uint32_t columns, uint8_t *to, size_t stride)
{
    for (uint32_t c = 0; c < columns; c += TR_WEIGHT_COLUMNS, to += stride) {
        memset(to, 0, tr_weight_block(f.format));
        for (uint32_t row = 0; row < TR_WEIGHT_ROWS; row++) {
            const uint8_t *from = codes + row * ld + c;

            for (uint32_t i = 0; i < TR_WEIGHT_COLUMNS; i++) {
                uint32_t at = tr_weight_code_at(f, row, i);

                if (f.format == TR_WEIGHT_FP8) {
                    to[at] = from[i];
                } else {
                    to[at / 2] |= (uint8_t) (from[i] << at % 2 * 4);
                }
            }
        }
    }
}

/* ---- scales -------------------------------------------------------------- */

/* Scales come in lines that are contiguous, each of so many groups. */
TR_HD uint32_t
tr_weight_line_groups(tr_weight_format_t format)
{
    return format == TR_WEIGHT_MXFP4 ? 2 : 1;
}

/* Where a line has the scale of the row at a place, in scales. */
TR_HD uint32_t
tr_weight_scale_at(tr_weight_format_t format, uint32_t place, uint32_t group)
{
    return format == TR_WEIGHT_MXFP4 ? place / 16 * 32 + place % 8 * 4
                                           + place % 16 / 8 * 2 + group % 2
                                     : place;
}

/* The scale and zero point of a row into the line of its group. */
static inline void
tr_weight_scale_put(tr_weight_form_t f, uint8_t *line, uint32_t place,
                    uint32_t group, float scale, uint32_t zero)
{
    uint32_t at = tr_weight_scale_at(f.format, place, group), bits;

    memcpy(&bits, &scale, 4);
    if (f.format == TR_WEIGHT_MXFP4) {
        line[at] = (uint8_t) (bits >> 23);
        return;
    }
    bits = f.format == TR_WEIGHT_FP8 ? bits
                                     : ((bits + 0x80) & ~0xffu) | (zero & 0xff);
    memcpy(line + 4 * (size_t) at, &bits, 4);
}

/* ---- for tests and the software device ----------------------------------- */

TR_HD float
tr_weight_from_e4m3(uint32_t code)
{
    float x = tr_float_from_bits((code & 0x7f) << 20) * 0x1p120f;

    return (code & 0x80) != 0 ? -x : x;
}

TR_HD float
tr_weight_from_e2m1(uint32_t code)
{
    float x = tr_float_from_bits((code & 7) << 22) * 0x1p126f;

    return (code & 8) != 0 ? -x : x;
}

/* 2^(byte - 127), of 255 NaN. */
TR_HD float
tr_weight_from_e8m0(uint32_t byte)
{
    return tr_float_from_bits(byte == 0     ? 0x00400000
                              : byte == 255 ? 0x7fc00000
                                            : byte << 23);
}

/* A weight of a packed matrix. */
static inline float
tr_weight_load(tr_weight_form_t f, const void *w, uint32_t n, uint32_t k,
               uint32_t row, uint32_t column)
{
    uint32_t place = tr_weight_place(f, n, row), word;
    size_t block = (size_t) (column / TR_WEIGHT_COLUMNS) * (n / TR_WEIGHT_ROWS)
                   + place / TR_WEIGHT_ROWS;
    const uint8_t *codes = (const uint8_t *) w
                           + block * tr_weight_block(f.format);
    uint32_t at = tr_weight_code_at(f, place % TR_WEIGHT_ROWS,
                                    column % TR_WEIGHT_COLUMNS);
    uint32_t group = f.group == 0 ? 0 : column / f.group;
    uint32_t of = tr_weight_line_groups(f.format);
    const uint8_t *scale = (const uint8_t *) w + tr_weight_code_bytes(f, n, k)
                           + ((size_t) (group / of) * of * n
                              + tr_weight_scale_at(f.format, place, group))
                                 * tr_weight_scale_bytes(f.format);

    if (f.format == TR_WEIGHT_MXFP4) {
        return tr_weight_from_e2m1(codes[at / 2] >> at % 2 * 4 & 15)
               * tr_weight_from_e8m0(*scale);
    }
    memcpy(&word, scale, 4);
    if (f.format == TR_WEIGHT_FP8) {
        return tr_weight_from_e4m3(codes[at]) * tr_float_from_bits(word);
    }
    return (float) ((int) (codes[at / 2] >> at % 2 * 4 & 15)
                    - (int) (word & 0xff))
           * tr_float_from_bits(word & ~0xffu);
}

#endif
