/*
 * AWQ, version gemm: 4-bit integers in words along the outputs.
 *
 *     qweight  I32 [columns][rows / 8]
 *     qzeros   I32 [groups][rows / 8]
 *     scales       [groups][rows]
 *
 * The eight codes of a word are those of rows 0, 2, 4, 6, 1, 3, 5, 7, the lowest
 * bits first.
 */
#include "packed.h"

#include "engine/config/log.h"

/* Which nibble of its word a row has. */
static const uint8_t nibble[8] = { 0, 4, 1, 5, 2, 6, 3, 7 };

tr_status_t
tr_awq_check(tr_packed_t *p, const tr_quantization_t *q, tr_error_t *err)
{
    uint64_t words = p->rows / 8;
    tr_status_t rc = tr_packed_scheme(p, q, false, 4, err);

    if (rc == TR_OK && p->rows % 8 != 0) {
        return tr_error_set(err, TR_ERR_UNSUPPORTED, p->name,
                            "tensor \"%s\" has %u outputs, expected a multiple "
                            "of 8 in AWQ",
                            p->name, p->rows);
    }
    if (rc == TR_OK) {
        rc = tr_packed_expect(p, TR_PACKED_CODES, 2,
                              (uint64_t[]){ p->columns, words }, err);
    }
    if (rc == TR_OK) {
        rc = tr_packed_expect(p, TR_PACKED_ZEROS, 2,
                              (uint64_t[]){ p->blocks, words }, err);
    }
    return rc != TR_OK
               ? rc
               : tr_packed_expect(p, TR_PACKED_SCALES, 2,
                                  (uint64_t[]){ p->blocks, p->rows }, err);
}

void
tr_awq_read(const tr_packed_t *p, uint32_t row, uint32_t from, uint32_t n,
            float *out)
{
    const tr_tensor_t *codes = p->part[TR_PACKED_CODES];
    const tr_tensor_t *zeros = p->part[TR_PACKED_ZEROS];
    uint32_t shift = 4u * nibble[row % 8], group = UINT32_MAX;
    size_t words = p->rows / 8, word = row / 8;
    int32_t zero = 0;
    float scale = 0;

    for (uint32_t k = from; k < from + n; k++) {
        uint32_t w = tr_packed_word(codes, k * words + word);

        if (k / p->block_columns != group) {
            group = k / p->block_columns;
            scale = tr_packed_scale(p, (size_t) group * p->rows + row);
            zero = (int32_t) (tr_packed_word(zeros, group * words + word)
                                  >> shift
                              & 15);
        }
        *out++ = (float) ((int32_t) (w >> shift & 15) - zero) * scale;
    }
}

void
tr_awq_codes(const tr_packed_t *p, uint32_t row, uint32_t from, uint32_t n,
             uint8_t *out)
{
    uint32_t shift = 4u * nibble[row % 8];
    size_t words = p->rows / 8, word = row / 8;

    for (uint32_t k = from; k < from + n; k++) {
        *out++ = (uint8_t) (tr_packed_word(p->part[TR_PACKED_CODES],
                                           k * words + word)
                                >> shift
                            & 15);
    }
}

float
tr_awq_scale(const tr_packed_t *p, uint32_t row, uint32_t group, uint32_t *zero)
{
    *zero = tr_packed_word(p->part[TR_PACKED_ZEROS],
                           (size_t) group * (p->rows / 8) + row / 8)
                >> 4u * nibble[row % 8]
            & 15;
    return tr_packed_scale(p, (size_t) group * p->rows + row);
}
