/*
 * Integers in words along a row: pack-quantized of compressed-tensors.
 *
 *     weight_packed      I32 [rows][columns / f]   f = 32 / bits codes a word,
 *                                                  the lowest bits first
 *     weight_scale           [rows][groups]
 *     weight_zero_point  I32 [rows / f][groups]    packed along the rows; absent
 *                                                  when symmetric
 *     weight_g_idx       I32 [columns]             the group of a column, where
 *                                                  columns were reordered
 *     weight_shape       I64 [2]                   rows, columns
 *
 * All divisions round up.  Signed codes and zero points have 2^(bits - 1) added,
 * so that a symmetric code of 0 stands as 8 in 4 bits.
 */
#include "packed.h"

#include "engine/config/log.h"

static tr_status_t
check_shape(const tr_packed_t *p, tr_error_t *err)
{
    const tr_tensor_t *t = p->part[TR_PACKED_SHAPE];
    int64_t shape[2];
    tr_status_t rc;

    if (t == NULL) {
        return TR_OK;
    }
    rc = tr_packed_expect(p, TR_PACKED_SHAPE, 1, (uint64_t[]){ 2 }, err);
    if (rc != TR_OK) {
        return rc;
    }
    memcpy(shape, t->data, sizeof(shape));
    if (shape[0] != p->rows || shape[1] != p->columns) {
        return tr_error_set(err, TR_ERR_FORMAT, t->name,
                            "%s: tensor \"%s\" holds [%lld, %lld], config.json "
                            "says [%u, %u]",
                            t->file, t->name, (long long) shape[0],
                            (long long) shape[1], p->rows, p->columns);
    }
    return TR_OK;
}

/* How many bits a code has is what the width of the words says. */
static tr_status_t
find_scheme(tr_packed_t *p, const tr_quantization_t *q, bool *symmetric,
            tr_error_t *err)
{
    const tr_tensor_t *codes = p->part[TR_PACKED_CODES];
    const tr_tensor_t *scales = p->part[TR_PACKED_SCALES];
    const tr_quant_scheme_t *best = NULL;

    for (uint32_t i = 0; i < q->n_schemes; i++) {
        const tr_quant_scheme_t *s = &q->scheme[i];
        uint32_t per_word = 32 / s->bits;
        uint64_t groups = s->columns ? (p->columns - 1) / s->columns + 1 : 1;

        if (s->is_float || (s->bits != 4 && s->bits != 8)) {
            continue;
        }
        if (best == NULL
            || (codes->n_dims == 2
                && codes->dims[1] == (p->columns - 1) / per_word + 1
                && scales->n_dims == 2 && scales->dims[1] == groups)) {
            best = s;
        }
    }
    if (best == NULL) {
        return tr_packed_scheme(p, q, false, 4, err);
    }
    *symmetric = best->symmetric;
    tr_packed_set_scheme(p, best);
    return TR_OK;
}

tr_status_t
tr_words_check(tr_packed_t *p, const tr_quantization_t *q, tr_error_t *err)
{
    bool symmetric = true;
    uint64_t per_word;
    tr_status_t rc = find_scheme(p, q, &symmetric, err);

    if (rc != TR_OK) {
        return rc;
    }
    per_word = 32 / p->bits;
    rc = tr_packed_expect(p, TR_PACKED_CODES, 2,
                          (uint64_t[]){ p->rows,
                                        (p->columns - 1) / per_word + 1 },
                          err);
    if (rc == TR_OK) {
        rc = tr_packed_expect(p, TR_PACKED_SCALES, 2,
                              (uint64_t[]){ p->rows, p->blocks }, err);
    }
    if (rc == TR_OK) {
        rc = tr_packed_check_zeros(p, symmetric, err);
    }
    if (rc == TR_OK && p->part[TR_PACKED_ZEROS] != NULL) {
        rc = tr_packed_expect(p, TR_PACKED_ZEROS, 2,
                              (uint64_t[]){ (p->rows - 1) / per_word + 1,
                                            p->blocks },
                              err);
    }
    rc = rc == TR_OK ? tr_packed_check_groups(p, err) : rc;
    return rc == TR_OK ? check_shape(p, err) : rc;
}

void
tr_words_read(const tr_packed_t *p, uint32_t row, uint32_t from, uint32_t n,
              float *out)
{
    const tr_tensor_t *codes = p->part[TR_PACKED_CODES];
    const tr_tensor_t *zeros = p->part[TR_PACKED_ZEROS];
    uint32_t bits = p->bits, per_word = 32 / bits, mask = (1u << bits) - 1;
    size_t words = (size_t) row * ((p->columns - 1) / per_word + 1);
    size_t zero_row = (size_t) (row / per_word) * p->blocks;
    uint32_t zero_shift = row % per_word * bits, group = UINT32_MAX;
    int32_t zero = 1 << (bits - 1);
    float scale = 0;

    for (uint32_t k = from; k < from + n; k++) {
        uint32_t w = tr_packed_word(codes, words + k / per_word);
        uint32_t g = tr_packed_group(p, k);

        if (g != group) {
            group = g;
            scale = tr_packed_scale(p, (size_t) row * p->blocks + g);
            if (zeros != NULL) {
                zero = (int32_t) (tr_packed_word(zeros, zero_row + g)
                                      >> zero_shift
                                  & mask);
            }
        }
        *out++ = (float) ((int32_t) (w >> k % per_word * bits & mask) - zero)
                 * scale;
    }
}

void
tr_words_codes(const tr_packed_t *p, uint32_t row, uint32_t from, uint32_t n,
               uint8_t *out)
{
    uint32_t bits = p->bits, per_word = 32 / bits, mask = (1u << bits) - 1;
    size_t words = (size_t) row * ((p->columns - 1) / per_word + 1);

    for (uint32_t k = from; k < from + n; k++) {
        *out++ = (uint8_t) (tr_packed_word(p->part[TR_PACKED_CODES],
                                           words + k / per_word)
                                >> k % per_word * bits
                            & mask);
    }
}

float
tr_words_scale(const tr_packed_t *p, uint32_t row, uint32_t group,
               uint32_t *zero)
{
    const tr_tensor_t *zeros = p->part[TR_PACKED_ZEROS];
    uint32_t bits = p->bits, per_word = 32 / bits;

    *zero = zeros == NULL
                ? 1u << (bits - 1)
                : tr_packed_word(zeros,
                                 (size_t) (row / per_word) * p->blocks + group)
                          >> row % per_word * bits
                      & ((1u << bits) - 1);
    return tr_packed_scale(p, (size_t) row * p->blocks + group);
}
