/*
 * Codes of a byte: FP8 (E4M3) or 8-bit integers.
 *
 * Codes stand where the weight would, [rows][columns]; a scale serves all of them,
 * a row, a number of columns of a row, or a block.  Scales are multiplied, also
 * those that are called weight_scale_inv.
 *
 * E4M3: a sign, 4 bits of exponent with bias 7, 3 of mantissa; no infinities, all
 * ones are NaN.  0x38 is 1, 0x7e is 448, 0x01 is 2^-9.
 */
#include "packed.h"

#include <math.h>

/* Are the scales of that shape?  One scale may have any number of dims of 1, and
 * one a row may leave the second out. */
static bool
fits(const tr_packed_t *p, const tr_quant_scheme_t *s)
{
    const tr_tensor_t *t = p->part[TR_PACKED_SCALES];
    uint64_t rows = s->rows ? (p->rows - 1) / s->rows + 1 : 1;
    uint64_t columns = s->columns ? (p->columns - 1) / s->columns + 1 : 1;
    uint64_t first = t->n_dims > 0 ? t->dims[0] : 1;
    uint64_t second = t->n_dims > 1 ? t->dims[1] : 1;

    return t->n_dims <= 2 && first == rows && second == columns;
}

tr_status_t
tr_bytes_check(tr_packed_t *p, const tr_quantization_t *q, tr_error_t *err)
{
    bool is_float = p->part[TR_PACKED_CODES]->stored == TR_STORED_F8_E4M3;
    const tr_quant_scheme_t *last = NULL;
    tr_status_t rc = tr_packed_expect(p, TR_PACKED_CODES, 2,
                                      (uint64_t[]){ p->rows, p->columns }, err);

    for (uint32_t i = 0; rc == TR_OK && i < q->n_schemes; i++) {
        const tr_quant_scheme_t *s = &q->scheme[i];

        if (s->is_float != is_float || s->bits != 8) {
            continue;
        }
        last = s;
        if (fits(p, s)) {
            tr_packed_set_scheme(p, s);
            return tr_packed_check_zeros(p, s->symmetric, err);
        }
    }
    if (rc != TR_OK || last == NULL) {
        return rc != TR_OK ? rc : tr_packed_scheme(p, q, is_float, 8, err);
    }
    tr_packed_set_scheme(p, last);
    return tr_packed_expect(p, TR_PACKED_SCALES, 2,
                            (uint64_t[]){ (p->rows - 1) / p->block_rows + 1,
                                          p->blocks },
                            err);
}

static float
from_e4m3(uint8_t code)
{
    float x = tr_float_from_bits((uint32_t) (code & 0x7f) << 20) * 0x1p120f;

    if ((code & 0x7f) == 0x7f) {
        return NAN;
    }
    return code & 0x80 ? -x : x;
}

void
tr_bytes_read(const tr_packed_t *p, uint32_t row, uint32_t from, uint32_t n,
              float *out)
{
    const tr_tensor_t *t = p->part[TR_PACKED_CODES];
    const uint8_t *code = (const uint8_t *) t->data + (size_t) row * p->columns
                          + from;
    size_t scales = (size_t) (row / p->block_rows) * p->blocks;
    uint32_t end = from + n;

    while (from < end) {
        uint32_t left = p->block_columns - from % p->block_columns;
        float scale = tr_packed_scale(p, scales + from / p->block_columns);

        for (left = left < end - from ? left : end - from; left > 0; left--) {
            *out++ = scale
                     * (t->stored == TR_STORED_I8 ? (float) (int8_t) *code
                                                  : from_e4m3(*code));
            code++;
            from++;
        }
    }
}

void
tr_bytes_codes(const tr_packed_t *p, uint32_t row, uint32_t from, uint32_t n,
               uint8_t *out)
{
    const tr_tensor_t *t = p->part[TR_PACKED_CODES];
    uint8_t sign = t->stored == TR_STORED_I8 ? 0x80 : 0;

    memcpy(out, (const uint8_t *) t->data + (size_t) row * p->columns + from,
           n);
    for (uint32_t i = 0; sign != 0 && i < n; i++) {
        out[i] ^= sign; /* 128 more */
    }
}

float
tr_bytes_scale(const tr_packed_t *p, uint32_t row, uint32_t group,
               uint32_t *zero)
{
    *zero = p->part[TR_PACKED_CODES]->stored == TR_STORED_I8 ? 128 : 0;
    return tr_packed_scale(p,
                           (size_t) (row / p->block_rows) * p->blocks + group);
}
