/*
 * MXFP4, as gpt-oss has the weights of its experts.
 *
 *     *_blocks  U8 [experts][rows][columns / 32][16]   two codes a byte, the lower
 *                                                      half first
 *     *_scales  U8 [experts][rows][columns / 32]       2^(scale - 127)
 *
 * Rows are outputs, although the 16-bit weights of this family stand transposed.
 * A code (E2M1) is a sign and one of 0, 0.5, 1, 1.5, 2, 3, 4, 6.
 */
#include "packed.h"

#include "engine/config/log.h"

#define BLOCK 32u

tr_status_t
tr_mxfp4_check(tr_packed_t *p, const tr_quantization_t *q, tr_error_t *err)
{
    uint64_t one = p->experts ? p->rows / p->experts : p->rows;
    uint64_t shape[4] = { p->experts, one, p->columns / BLOCK, BLOCK / 2 };
    uint32_t skip = p->experts ? 0 : 1; /* without experts no first dim */
    tr_status_t rc = tr_packed_scheme(p, q, true, 4, err);

    if (rc == TR_OK && p->columns % BLOCK != 0) {
        return tr_error_set(err, TR_ERR_UNSUPPORTED, p->name,
                            "tensor \"%s\" has %u inputs, expected a multiple "
                            "of %u in MXFP4",
                            p->name, p->columns, BLOCK);
    }
    if (rc == TR_OK) {
        rc = tr_packed_expect(p, TR_PACKED_CODES, 4 - skip, shape + skip, err);
    }
    return rc == TR_OK ? tr_packed_expect(p, TR_PACKED_SCALES, 3 - skip,
                                          shape + skip, err)
                       : rc;
}

void
tr_mxfp4_read(const tr_packed_t *p, uint32_t row, uint32_t from, uint32_t n,
              float *out)
{
    static const float value[16] = { 0,     0.5f,  1,  1.5f,  2,  3,  4,  6,
                                     -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6 };
    const uint8_t *codes = p->part[TR_PACKED_CODES]->data;
    size_t at = (size_t) row * p->columns + from;

    for (uint32_t i = 0; i < n; i++, at++) {
        *out++ = value[codes[at / 2] >> at % 2 * 4 & 15]
                 * tr_packed_scale(p, at / BLOCK);
    }
}

void
tr_mxfp4_codes(const tr_packed_t *p, uint32_t row, uint32_t from, uint32_t n,
               uint8_t *out)
{
    const uint8_t *codes = p->part[TR_PACKED_CODES]->data;
    size_t at = (size_t) row * p->columns + from;

    for (uint32_t i = 0; i < n; i++, at++) {
        *out++ = codes[at / 2] >> at % 2 * 4 & 15;
    }
}

float
tr_mxfp4_scale(const tr_packed_t *p, uint32_t row, uint32_t group,
               uint32_t *zero)
{
    *zero = 0;
    return tr_packed_scale(p, (size_t) row * (p->columns / BLOCK) + group);
}
