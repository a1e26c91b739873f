/*
 * GPTQ: integers in words along the inputs.
 *
 *     qweight  I32 [columns / f][rows]     f = 32 / bits, the lowest bits first
 *     qzeros   I32 [groups][rows / f]
 *     scales       [groups][rows]
 *     g_idx    I32 [columns]               the group of a column; often absent, or
 *                                          column / group_size
 *
 * Zero points stand less 1, but for checkpoint_format gptq_v2 (tr_quantization_t's
 * zero_less).  In `bits` bits: 15 for a zero point of 0.
 */
#include "packed.h"

#include "engine/config/log.h"

tr_status_t
tr_gptq_check(tr_packed_t *p, const tr_quantization_t *q, tr_error_t *err)
{
    uint32_t bits = q->n_schemes > 0 ? q->scheme[0].bits : 4;
    uint64_t per_word = 32 / bits;
    tr_status_t rc = tr_packed_scheme(p, q, false, bits, err);

    p->zero_less = q->zero_less;
    if (rc == TR_OK && p->columns % per_word != 0) {
        return tr_error_set(err, TR_ERR_UNSUPPORTED, p->name,
                            "tensor \"%s\" has %u inputs, expected a multiple "
                            "of %u in GPTQ",
                            p->name, p->columns, (uint32_t) per_word);
    }
    if (rc == TR_OK) {
        rc = tr_packed_expect(p, TR_PACKED_CODES, 2,
                              (uint64_t[]){ p->columns / per_word, p->rows },
                              err);
    }
    if (rc == TR_OK) {
        rc = tr_packed_expect(p, TR_PACKED_ZEROS, 2,
                              (uint64_t[]){ p->blocks,
                                            (p->rows - 1) / per_word + 1 },
                              err);
    }
    if (rc == TR_OK) {
        rc = tr_packed_expect(p, TR_PACKED_SCALES, 2,
                              (uint64_t[]){ p->blocks, p->rows }, err);
    }
    return rc == TR_OK ? tr_packed_check_groups(p, err) : rc;
}

void
tr_gptq_read(const tr_packed_t *p, uint32_t row, uint32_t from, uint32_t n,
             float *out)
{
    const tr_tensor_t *codes = p->part[TR_PACKED_CODES];
    const tr_tensor_t *zeros = p->part[TR_PACKED_ZEROS];
    uint32_t bits = p->bits, per_word = 32 / bits, mask = (1u << bits) - 1;
    uint32_t zero_shift = row % per_word * bits, group = UINT32_MAX;
    size_t zero_words = (p->rows - 1) / per_word + 1;
    int32_t zero = 0;
    float scale = 0;

    for (uint32_t k = from; k < from + n; k++) {
        uint32_t w = tr_packed_word(codes,
                                    (size_t) (k / per_word) * p->rows + row);
        uint32_t g = tr_packed_group(p, k);

        if (g != group) {
            group = g;
            scale = tr_packed_scale(p, (size_t) g * p->rows + row);
            zero = (int32_t) (((tr_packed_word(zeros,
                                               g * zero_words + row / per_word)
                                >> zero_shift)
                               + p->zero_less)
                              & mask);
        }
        *out++ = (float) ((int32_t) (w >> k % per_word * bits & mask) - zero)
                 * scale;
    }
}

void
tr_gptq_codes(const tr_packed_t *p, uint32_t row, uint32_t from, uint32_t n,
              uint8_t *out)
{
    uint32_t bits = p->bits, per_word = 32 / bits, mask = (1u << bits) - 1;

    for (uint32_t k = from; k < from + n; k++) {
        *out++ = (uint8_t) (tr_packed_word(p->part[TR_PACKED_CODES],
                                           (size_t) (k / per_word) * p->rows
                                               + row)
                                >> k % per_word * bits
                            & mask);
    }
}

float
tr_gptq_scale(const tr_packed_t *p, uint32_t row, uint32_t group,
              uint32_t *zero)
{
    uint32_t bits = p->bits, per_word = 32 / bits;
    size_t words = (p->rows - 1) / per_word + 1;

    *zero = ((tr_packed_word(p->part[TR_PACKED_ZEROS],
                             (size_t) group * words + row / per_word)
              >> row % per_word * bits)
             + p->zero_less)
            & ((1u << bits) - 1);
    return tr_packed_scale(p, (size_t) group * p->rows + row);
}
