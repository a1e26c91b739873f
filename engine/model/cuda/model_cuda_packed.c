/*
 * model_cuda.h: weights that stay quantised on the device.
 *
 * A part (query, key and value rows, say) is packed when all of its tensors are
 * in the files as codes of one kind that kernels have (kernels/weight_form.h),
 * columns are in the order of their groups, and nothing changes single weights at
 * load: rotation, or equalisation of columns (that of rows goes into scales).
 * Everything else is kept in 16 bits: embedding, head, router and experts, codes
 * of 8 bits that are integers, MXFP4, columns in an order of their own (act
 * order), groups that are no multiple of 32.
 *
 * Codes are as in the files; where a scale is for more than 128 columns it is
 * repeated.
 */
#include "model_cuda.h"

#include <stdlib.h>
#include <string.h>

#include "engine/config/log.h"

#include "engine/model/weights/packed.h"

#define ROWS_MAX (1u << 18) /* 64 columns of them fit a staging buffer */

/* ---- which parts --------------------------------------------------------- */

/* The form that a quantised tensor's codes have, for a part of some shape. */
static tr_weight_form_t
form_of(const tr_packed_t *p, tr_part_shape_t shape)
{
    static const tr_weight_form_t none = { TR_WEIGHT_16, false, 0 };
    tr_weight_form_t f = none;
    uint32_t columns = p->block_columns;

    if (!(p->format->kept & TR_PACKED_ON_CUDA) || !tr_packed_in_order(p)) {
        return none;
    }
    f.format = p->bits == 4 ? TR_WEIGHT_INT4
               : p->part[TR_PACKED_CODES]->stored == TR_STORED_F8_E4M3
                   ? TR_WEIGHT_FP8
                   : TR_WEIGHT_16;
    f.group = f.format == TR_WEIGHT_FP8 && columns >= p->columns ? 0
              : columns % 128 == 0                               ? 128
                                                                 : columns;
    return f.format != TR_WEIGHT_16
                   && tr_weight_valid(f, shape.rows, shape.columns)
               ? f
               : none;
}

/* The form of a part, as far as one of its tensors says. */
static tr_weight_form_t
form_of_tensor(const tr_model_cuda_t *m, const tr_model_tensor_t *t,
               const tr_tensor_t *tensor)
{
    const tr_recipe_t *r = &m->config.recipe;
    tr_part_shape_t shape = tr_part_shape(r, t->part, t->layer);
    tr_weight_form_t f = { TR_WEIGHT_16, false, 0 };

    if (tensor->packed == NULL || t->experts != 0 || t->part == TR_PART_ROUTER
        || t->part == TR_PART_EXPERT_GATE_UP || t->part == TR_PART_EXPERT_DOWN
        || shape.rows > ROWS_MAX || tr_rotate_rows(r, m->rotate, t) != 0
        || (t->part == TR_PART_O && tr_equalise_has(m->equalise, t))
        || !m->cuda->small_gemm_fits(m->stream->device, shape.rows,
                                     shape.columns)) {
        return f;
    }
    f = form_of(tensor->packed, shape);
    f.pairs = f.format != TR_WEIGHT_16 && t->part == TR_PART_GATE_UP;
    return f;
}

static bool
same_form(tr_weight_form_t a, tr_weight_form_t b)
{
    return a.format == b.format && a.group == b.group && a.pairs == b.pairs;
}

/* Sums up what is kept how; type becomes what packed weights are multiplied as. */
static void
sum_up(tr_model_cuda_t *m, uint32_t expanded)
{
    const tr_recipe_t *r = &m->config.recipe;
    const double mib = 1 << 20;
    uint64_t bytes = 0, in_16_bits = 0;
    uint32_t parts[TR_WEIGHT_FORMATS] = { 0 };

    for (uint32_t l = 0; l < r->layers; l++) {
        for (tr_part_t part = 0; part < TR_PART_MATRICES; part++) {
            tr_weight_form_t f = m->layers[l].form[part];
            tr_part_shape_t s = tr_part_shape(r, part, l);
            size_t size = (size_t) s.rows * s.columns * 2;

            if (f.format == TR_WEIGHT_16) {
                continue;
            }
            parts[f.format]++;
            bytes += tr_weight_bytes(f, s.rows, s.columns);
            in_16_bits += size;
            m->largest_packed = size > m->largest_packed ? size
                                                         : m->largest_packed;
        }
    }
    if (m->largest_packed != 0) {
        m->type = TR_BF16;
    }
    if (m->largest_packed != 0 || expanded != 0) {
        tr_log(TR_LEVEL_NOTICE,
               "weights kept fp8_parts=%u int4_parts=%u packed_mib=%.1f "
               "in_16_bits_mib=%.1f expanded_tensors=%u",
               parts[TR_WEIGHT_FP8], parts[TR_WEIGHT_INT4],
               (double) bytes / mib, (double) in_16_bits / mib, expanded);
    }
}

/* Quantised tensors of parts that are kept in 16 bits. */
static uint32_t
count_expanded(const tr_model_cuda_t *m, const tr_safetensors_t *st)
{
    uint32_t at = 0, n = 0;
    tr_model_tensor_t t;

    while (tr_model_tensor_next(&m->config, &at, &t)) {
        const tr_tensor_t *tensor = tr_model_tensor_named(st, t.name);
        bool packed = t.part < TR_PART_MATRICES && tr_part_layered(t.part)
                      && m->layers[t.layer].form[t.part].format != TR_WEIGHT_16;

        n += tensor != NULL && tensor->packed != NULL && !packed;
    }
    return n;
}

tr_status_t
tr_model_cuda_choose_forms(tr_model_cuda_t *m, const tr_safetensors_t *st,
                           tr_error_t *err)
{
    tr_model_tensor_t t;
    uint32_t at = 0;
    tr_status_t rc = TR_OK;

    while (rc == TR_OK && tr_model_tensor_next(&m->config, &at, &t)) {
        const tr_tensor_t *tensor;
        tr_weight_form_t f, *of = &m->layers[t.layer].form[t.part];

        if (t.part >= TR_PART_MATRICES || !tr_part_layered(t.part)) {
            continue;
        }
        rc = tr_model_tensor_find(st, &t, &tensor, err);
        if (rc != TR_OK) {
            break;
        }
        f = form_of_tensor(m, &t, tensor);
        if (t.row == 0) {
            *of = f;
        } else if (!same_form(*of, f)) {
            *of = (tr_weight_form_t){ TR_WEIGHT_16, false, 0 };
        }
    }
    if (rc == TR_OK) {
        sum_up(m, count_expanded(m, st));
    }
    return rc;
}

/* ---- packing --------------------------------------------------------------- */

tr_status_t
tr_model_cuda_packing_open(tr_cuda_packing_t *p, const tr_model_cuda_t *m,
                           const tr_safetensors_t *st,
                           const tr_model_tensor_t *first, uint32_t at,
                           tr_error_t *err)
{
    tr_part_shape_t shape = tr_part_shape(&m->config.recipe, first->part,
                                          first->layer);
    tr_model_tensor_t t = *first;
    uint32_t rows = 0;
    tr_status_t rc = TR_OK;

    *p = (tr_cuda_packing_t){ .m = m,
                              .form = m->layers[first->layer].form[first->part],
                              .n = shape.rows,
                              .k = shape.columns };
    do {
        if (t.part != first->part || t.layer != first->layer) {
            continue;
        }
        p->of[p->tensors] = t;
        rc = tr_model_tensor_find(st, &t, &p->tensor[p->tensors++], err);
        rc = rc == TR_OK ? tr_tensor_check(p->tensor[p->tensors - 1], err) : rc;
        rows += t.rows;
    } while (rc == TR_OK && rows < p->n && p->tensors < TR_CUDA_PACKING_TENSORS
             && tr_model_tensor_next(&m->config, &at, &t));
    if (rc == TR_OK && rows != p->n) {
        rc = tr_error_set(err, TR_ERR_INTERNAL, first->name,
                          "tensor \"%s\" and those of its part have %u rows, "
                          "expected %u",
                          first->name, rows, p->n);
    }
    return rc;
}

/* Which tensor has a row of the part, and as which of its rows in the file. */
static uint32_t
find_row(const tr_cuda_packing_t *p, uint32_t row, uint32_t *source)
{
    uint32_t i = 0;

    while (row < p->of[i].row || row - p->of[i].row >= p->of[i].rows) {
        i++;
    }
    *source = tr_model_tensor_source(&p->m->config.recipe, &p->of[i],
                                     row - p->of[i].row);
    return i;
}

void
tr_model_cuda_pack_codes(void *packing, uint32_t first, uint32_t end,
                         uint32_t worker)
{
    const tr_cuda_packing_t *p = packing;
    uint32_t block = tr_weight_block(p->form.format);
    size_t stride = (size_t) p->n / TR_WEIGHT_ROWS * block;
    uint8_t codes[TR_WEIGHT_ROWS][TR_WEIGHT_COLUMNS];

    (void) worker;
    for (uint32_t strip = first; strip < end; strip++) {
        for (uint32_t c = 0; c < p->chunks; c++) {
            for (uint32_t i = 0; i < TR_WEIGHT_ROWS; i++) {
                uint32_t row = tr_weight_row(p->form, p->n,
                                             strip * TR_WEIGHT_ROWS + i);
                uint32_t source, at = find_row(p, row, &source);
                const tr_packed_t *q = p->tensor[at]->packed;

                q->format->codes(q, source, (p->chunk + c) * TR_WEIGHT_COLUMNS,
                                 TR_WEIGHT_COLUMNS, codes[i]);
            }
            tr_weight_pack(p->form.format, codes[0], TR_WEIGHT_COLUMNS,
                           TR_WEIGHT_COLUMNS,
                           p->to + c * stride + (size_t) strip * block, block);
        }
    }
}

void
tr_model_cuda_pack_scales(const tr_cuda_packing_t *p, uint32_t group,
                          uint32_t *to)
{
    for (uint32_t place = 0; place < p->n; place++) {
        uint32_t row = tr_weight_row(p->form, p->n, place), source, zero;
        uint32_t at = find_row(p, row, &source);
        const tr_packed_t *q = p->tensor[at]->packed;
        float factor = 1,
              scale = q->format->scale(q, source,
                                       group * p->form.group / q->block_columns,
                                       &zero);

        if (p->of[at].part == TR_PART_QKV && p->m->equalise != NULL) {
            tr_equalise_scale(p->m->equalise, &p->of[at],
                              (size_t) (row - p->of[at].row) * p->k, 1,
                              &factor);
        }
        to[place] = tr_weight_scale_word(p->form.format, scale * factor, zero);
    }
}
