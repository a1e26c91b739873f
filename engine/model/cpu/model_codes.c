/*
 * model.h: weights that are integers in memory (tr_cpu_codes_t of
 * kernels/kernels.h).
 *
 * A part (query, key and value rows, say) keeps the codes of its files when all of
 * its tensors have them in one form: integers of 4 or 8 bits or MXFP4, columns in
 * the order of their groups, a group a multiple of TR_CODES_COLUMNS columns, and
 * nothing changes single weights at load: rotation, or equalisation of columns
 * (that of rows goes into scales).  With cpu_weights int8 or int4 all other
 * matrices become such, but for routers, whose choice is worth more than their
 * bytes; embedding and head get 8 bits.
 *
 * Codes, scales and zero points are as in the files.
 */
#include "model.h"

#include <stdlib.h>

#include "engine/config/log.h"

#include "engine/model/weights/packed.h"

#define QUANTISED_GROUP 32u

/* ---- which parts ----------------------------------------------------------- */

static tr_codes_t
codes_of(const tr_packed_t *p)
{
    switch (p->part[TR_PACKED_CODES]->stored) {
    case TR_STORED_I8:
        return TR_CODES_INT8;
    case TR_STORED_I32:
        return p->bits == 4   ? TR_CODES_INT4
               : p->bits == 8 ? TR_CODES_INT8
                              : TR_CODES_NONE;
    case TR_STORED_U8:
        return TR_CODES_MXFP4;
    default:
        return TR_CODES_NONE;
    }
}

/* The form that a quantised tensor has in the files. */
static tr_cpu_codes_t
form_of(const tr_model_t *m, const tr_model_tensor_t *t, const tr_packed_t *p)
{
    const tr_tensor_t *scales = p->part[TR_PACKED_SCALES];
    bool whole = p->block_columns >= p->columns;
    tr_cpu_codes_t c = { .codes = codes_of(p),
                         .group = whole ? p->columns : p->block_columns,
                         .scales = scales->stored == TR_STORED_FLOAT
                                       ? scales->dtype
                                       : TR_BF16,
                         .zeros = p->part[TR_PACKED_ZEROS] != NULL };

    if (tr_equalise_has(m->equalise, t)) {
        c.scales = TR_F32;
    }
    if (c.codes == TR_CODES_MXFP4) { /* as no number of E8M0, halved, is lost */
        c.scales = TR_BF16;
    }
    return c;
}

bool
tr_model_keeps_codes(const tr_model_t *m, const tr_model_options_t *options,
                     const tr_model_tensor_t *t, const tr_tensor_t *tensor)
{
    const tr_packed_t *p = tensor->packed;
    tr_cpu_codes_t c;

    if (!options->packed || p == NULL || !(p->format->kept & TR_PACKED_ON_CPU)
        || !tr_packed_in_order(p)
        || tr_rotate_rows(&m->config.recipe, m->rotate, t) != 0
        || (t->part != TR_PART_QKV && tr_equalise_has(m->equalise, t))) {
        return false;
    }
    c = form_of(m, t, p);
    return m->kernels->codes_bytes(t->rows, t->columns, &c) != 0;
}

tr_cpu_codes_t
tr_model_codes(const tr_model_t *m, const tr_model_options_t *options,
               const tr_model_tensor_t *t, const tr_tensor_t *tensor)
{
    bool either = t->part == TR_PART_EMBED || t->part == TR_PART_HEAD;
    tr_cpu_codes_t c = { .codes = either ? TR_CODES_INT8 : options->quantise,
                         .group = QUANTISED_GROUP,
                         .scales = TR_BF16 };

    if (tensor != NULL && tr_model_keeps_codes(m, options, t, tensor)) {
        return form_of(m, t, tensor->packed);
    }
    if (options->quantise == TR_CODES_NONE || t->part == TR_PART_ROUTER
        || m->kernels->codes_bytes(t->rows, t->columns, &c) == 0) {
        c.codes = TR_CODES_NONE;
    }
    return c;
}

/* ---- rows ------------------------------------------------------------------ */

size_t
tr_model_codes_room(const tr_cpu_matrix_t *w)
{
    uint32_t groups = w->k / w->codes.group;

    return groups * (sizeof(float) + sizeof(uint32_t)) + w->k;
}

void
tr_model_codes_row(const tr_model_t *m, const tr_cpu_matrix_t *w,
                   const tr_model_tensor_t *t, const tr_tensor_t *tensor,
                   uint32_t row, void *room)
{
    const tr_packed_t *p = tensor->packed;
    uint32_t groups = w->k / w->codes.group, at = t->row + row;
    uint32_t source = tr_model_tensor_source(&m->config.recipe, t, row);
    float *scales = room, factor = 1;
    uint32_t *zeros = (uint32_t *) (scales + groups);
    uint8_t *codes = (uint8_t *) (zeros + groups);
    tr_cpu_matrix_t one = tr_model_expert(m->kernels, w, at / w->n);

    if (tr_equalise_has(m->equalise, t)) {
        tr_equalise_scale(m->equalise, t, (size_t) row * w->k, 1, &factor);
    }
    if (w->codes.codes == TR_CODES_MXFP4) {
        factor = 0.5f; /* codes stand for twice what they say */
    }
    p->format->codes(p, source, 0, w->k, codes);
    for (uint32_t g = 0; g < groups; g++) {
        scales[g] = factor * p->format->scale(p, source, g, &zeros[g]);
    }
    m->kernels->codes_pack(&one, at % w->n, codes, scales, zeros);
}

/* ---- the log --------------------------------------------------------------- */

static void
count(const tr_model_t *m, const tr_weights_t *w, bool layered, uint32_t layer,
      uint32_t parts[TR_CODES], uint64_t *bytes, uint64_t *in_16_bits)
{
    const tr_recipe_t *r = &m->config.recipe;

    for (tr_part_t part = 0; part < TR_PART_MATRICES; part++) {
        const tr_cpu_matrix_t *x = &w->matrix[part];
        tr_part_shape_t s = tr_part_shape(r, part, layer);

        if (tr_part_layered(part) == layered && s.rows != 0
            && x->codes.codes != TR_CODES_NONE) {
            parts[x->codes.codes]++;
            *bytes += tr_part_experts(r, part)
                      * tr_model_matrix_bytes(m->kernels, x);
            *in_16_bits += (uint64_t) s.rows * s.columns * 2;
        }
    }
}

void
tr_model_codes_say(const tr_model_t *m, uint32_t expanded)
{
    const double mib = 1 << 20;
    uint32_t parts[TR_CODES] = { 0 };
    uint64_t bytes = 0, in_16_bits = 0;

    count(m, &m->root, false, 0, parts, &bytes, &in_16_bits);
    for (uint32_t l = 0; l < m->config.recipe.layers; l++) {
        count(m, &m->layers[l], true, l, parts, &bytes, &in_16_bits);
    }
    if (bytes != 0 || expanded != 0) {
        tr_log(TR_LEVEL_NOTICE,
               "weights kept int8_parts=%u int4_parts=%u mxfp4_parts=%u "
               "packed_mib=%.1f in_16_bits_mib=%.1f expanded_tensors=%u",
               parts[TR_CODES_INT8], parts[TR_CODES_INT4],
               parts[TR_CODES_MXFP4], (double) bytes / mib,
               (double) in_16_bits / mib, expanded);
    }
}
