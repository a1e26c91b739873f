/*
 * model_cuda.h: weights that stay quantised on the device.
 *
 * A part (query, key and value rows, say) is packed when all of its tensors are
 * in the files as codes of one kind that kernels have (kernels/weight_form.h),
 * columns are in the order of their groups, and nothing changes single weights at
 * load: rotation, or equalisation of columns (that of rows goes into scales).
 * Everything else is kept in 16 bits: embedding, head, router, codes of 8 bits
 * that are integers, MXFP4 but of experts, columns in an order of their own (act
 * order), groups that are no multiple of 32.
 *
 * Codes are as in the files; where a scale is for more than 128 columns it is
 * repeated.
 */
#include "model_cuda.h"

#include <stdlib.h>
#include <string.h>

#include "engine/base/hash.h"
#include "engine/config/log.h"

#include "engine/model/weights/packed.h"

#define ROWS_MAX (1u << 19) /* 64 columns of them fit a staging buffer */

/* ---- which parts --------------------------------------------------------- */

static const tr_weight_form_t none = { TR_WEIGHT_16, TR_WEIGHT_PLAIN, 0 };

static bool
of_experts(tr_part_t part)
{
    return part == TR_PART_EXPERT_GATE_UP || part == TR_PART_EXPERT_DOWN;
}

/* The form of codes with a scale for so many columns of all. */
static tr_weight_form_t
form_with(tr_weight_format_t format, uint32_t group, uint32_t columns)
{
    tr_weight_form_t f = { format, TR_WEIGHT_PLAIN, group };

    if (format == TR_WEIGHT_FP8 && (group == 0 || group >= columns)) {
        f.group = 0;
    } else if (group != 0 && group % 128 == 0) {
        f.group = 128;
    }
    return format != TR_WEIGHT_16 ? f : none;
}

/* The form that a quantised tensor's codes have. */
static tr_weight_form_t
form_of(const tr_packed_t *p)
{
    tr_stored_t stored = p->part[TR_PACKED_CODES]->stored;

    if (!(p->format->kept & TR_PACKED_ON_CUDA) || !tr_packed_in_order(p)) {
        return none;
    }
    return form_with(p->bits == 4 ? stored == TR_STORED_U8 ? TR_WEIGHT_MXFP4
                                                           : TR_WEIGHT_INT4
                     : stored == TR_STORED_F8_E4M3 ? TR_WEIGHT_FP8
                                                   : TR_WEIGHT_16,
                     p->block_columns, p->columns);
}

/* What it would be by config.json alone, of files that there are not. */
static tr_weight_form_t
form_of_dummy(const tr_quantization_t *q, uint32_t columns)
{
    const tr_quant_scheme_t *s = &q->scheme[0];
    tr_weight_format_t format = q->method == TR_QUANT_MXFP4    ? TR_WEIGHT_MXFP4
                                : s->is_float && s->bits == 8  ? TR_WEIGHT_FP8
                                : !s->is_float && s->bits == 4 ? TR_WEIGHT_INT4
                                                               : TR_WEIGHT_16;

    return q->method == TR_QUANT_NONE || q->n_schemes == 0 || s->reordered
               ? none
               : form_with(format, s->columns, columns);
}

/* Are there kernels for it, as a part of some shape? */
static bool
has_kernels(const tr_model_cuda_t *m, tr_part_t part, tr_weight_form_t f,
            tr_part_shape_t shape)
{
    uint32_t experts = m->config.recipe.moe.route.experts;

    if (of_experts(part)) {
        return m->stream->device->code == 90
               && tr_weight_valid_experts(f, experts, shape.rows / experts,
                                          shape.columns);
    }
    return tr_weight_valid(f, shape.rows, shape.columns)
           && m->cuda->small_gemm_fits(m->stream->device, shape.rows,
                                       shape.columns);
}

/* The form of a part, as far as one of its tensors says; NULL: a dummy's. */
static tr_weight_form_t
form_of_tensor(const tr_model_cuda_t *m, const tr_model_tensor_t *t,
               const tr_tensor_t *tensor)
{
    const tr_recipe_t *r = &m->config.recipe;
    tr_part_shape_t shape = tr_part_shape(r, t->part, t->layer);
    tr_weight_form_t f;

    if ((tensor != NULL && tensor->packed == NULL) || t->part == TR_PART_ROUTER
        || shape.rows > ROWS_MAX || tr_rotate_rows(r, m->rotate, t) != 0
        || (t->part == TR_PART_O && tr_equalise_has(m->equalise, t))) {
        return none;
    }
    f = tensor != NULL ? form_of(tensor->packed)
                       : form_of_dummy(&m->config.quantization, shape.columns);
    if (f.format == TR_WEIGHT_16) {
        return none;
    }
    f.order = of_experts(t->part)          ? TR_WEIGHT_EIGHTS
              : t->part == TR_PART_GATE_UP ? TR_WEIGHT_PAIRS
                                           : TR_WEIGHT_PLAIN;
    return has_kernels(m, t->part, f, shape) ? f : none;
}

static bool
same_form(tr_weight_form_t a, tr_weight_form_t b)
{
    return a.format == b.format && a.group == b.group && a.order == b.order;
}

bool
tr_model_cuda_in_fp8(const tr_model_cuda_t *m, tr_part_t part, uint32_t layer)
{
    tr_part_shape_t s = tr_part_shape(&m->config.recipe, part, layer);

    return m->fp8 && !of_experts(part)
           && m->cuda->fp8_fits(m->stream->device, m->layers[layer].form[part],
                                s.rows, s.columns);
}

/* Sums up what is kept how; type becomes what packed weights are multiplied as. */
static void
sum_up(tr_model_cuda_t *m, uint32_t expanded)
{
    const tr_recipe_t *r = &m->config.recipe;
    const double mib = 1 << 20;
    uint64_t bytes = 0, in_16_bits = 0;
    uint32_t parts[TR_WEIGHT_FORMATS] = { 0 };
    bool any = false;

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
            any = true;
            if (!of_experts(part) && size > m->largest_packed) {
                m->largest_packed = size;
            }
            if (tr_model_cuda_in_fp8(m, part, l)
                && s.columns > m->fp8_columns) {
                m->fp8_columns = s.columns;
            }
        }
    }
    if (any) {
        m->type = TR_BF16;
    }
    if (any || expanded != 0) {
        tr_log(TR_LEVEL_NOTICE,
               "weights kept fp8_parts=%u int4_parts=%u mxfp4_parts=%u "
               "packed_mib=%.1f in_16_bits_mib=%.1f expanded_tensors=%u "
               "activation_bits=%u",
               parts[TR_WEIGHT_FP8], parts[TR_WEIGHT_INT4],
               parts[TR_WEIGHT_MXFP4], (double) bytes / mib,
               (double) in_16_bits / mib, expanded,
               m->fp8_columns != 0 ? 8 : 16);
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

        if (tensor != NULL && tensor->packed != NULL && !packed) {
            tr_packed_say_expanded(tensor->packed);
            n++;
        }
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
        const tr_tensor_t *tensor = NULL;
        tr_weight_form_t f, *of = &m->layers[t.layer].form[t.part];

        if (t.part >= TR_PART_MATRICES || !tr_part_layered(t.part)) {
            continue;
        }
        if (st != NULL) {
            rc = tr_model_tensor_find(st, &t, &tensor, err);
        }
        if (rc != TR_OK) {
            break;
        }
        f = form_of_tensor(m, &t, tensor);
        if (t.row == 0) {
            *of = f;
        } else if (!same_form(*of, f)) {
            *of = (tr_weight_form_t){ TR_WEIGHT_16, TR_WEIGHT_PLAIN, 0 };
        }
    }
    if (rc == TR_OK) {
        sum_up(m, st != NULL ? count_expanded(m, st) : 0);
    }
    return rc;
}

/* ---- packing --------------------------------------------------------------- */

/* Tensors of a part, one behind the other by their rows. */
static tr_status_t
take_tensor(tr_cuda_packing_t *p, const tr_model_tensor_t *t,
            const tr_safetensors_t *st, tr_error_t *err)
{
    const tr_tensor_t *tensor;
    tr_status_t rc = tr_model_tensor_find(st, t, &tensor, err);
    uint32_t most = p->capacity != 0 ? 2 * p->capacity : 4;

    rc = rc == TR_OK ? tr_tensor_check(tensor, err) : rc;
    if (rc == TR_OK && p->tensors == p->capacity) {
        tr_cuda_packed_tensor_t *grown = realloc(p->of, most * sizeof(*grown));

        if (grown == NULL) {
            return tr_error_set(err, TR_ERR_NOMEM, "model", "out of memory");
        }
        p->of = grown;
        p->capacity = most;
    }
    if (rc == TR_OK) {
        p->of[p->tensors++] = (tr_cuda_packed_tensor_t){ *t, tensor };
    }
    return rc;
}

static int
by_row(const void *a, const void *b)
{
    uint32_t x = ((const tr_cuda_packed_tensor_t *) a)->t.row;
    uint32_t y = ((const tr_cuda_packed_tensor_t *) b)->t.row;

    return (x > y) - (x < y);
}

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
    if (st == NULL) {
        return TR_OK;
    }
    do {
        if (t.part == first->part && t.layer == first->layer) {
            rc = take_tensor(p, &t, st, err);
            rows += t.rows;
        }
    } while (rc == TR_OK && rows < p->n
             && tr_model_tensor_next(&m->config, &at, &t));
    if (rc == TR_OK && rows != p->n) {
        rc = tr_error_set(err, TR_ERR_INTERNAL, first->name,
                          "tensor \"%s\" and those of its part have %u rows, "
                          "expected %u",
                          first->name, rows, p->n);
    }
    if (rc == TR_OK) {
        qsort(p->of, p->tensors, sizeof(p->of[0]), by_row);
    }
    return rc;
}

void
tr_model_cuda_packing_close(tr_cuda_packing_t *p)
{
    for (uint32_t i = 0; i < p->tensors; i++) {
        tr_safetensors_release(p->of[i].tensor);
    }
    free(p->of);
}

/* Which tensor has a row of the part, and as which of its rows in the file. */
static const tr_cuda_packed_tensor_t *
find_row(const tr_cuda_packing_t *p, uint32_t row, uint32_t *source)
{
    uint32_t low = 0, high = p->tensors;

    while (high - low > 1) {
        uint32_t middle = (low + high) / 2;

        if (p->of[middle].t.row <= row) {
            low = middle;
        } else {
            high = middle;
        }
    }
    *source = tr_model_tensor_source(&p->m->config.recipe, &p->of[low].t,
                                     row - p->of[low].t.row);
    return &p->of[low];
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
                uint32_t source;
                const tr_packed_t *q = find_row(p, row, &source)
                                           ->tensor->packed;

                q->format->codes(q, source, (p->chunk + c) * TR_WEIGHT_COLUMNS,
                                 TR_WEIGHT_COLUMNS, codes[i]);
            }
            tr_weight_pack(p->form, codes[0], TR_WEIGHT_COLUMNS,
                           TR_WEIGHT_COLUMNS,
                           p->to + c * stride + (size_t) strip * block, block);
        }
    }
}

void
tr_model_cuda_pack_scales(const tr_cuda_packing_t *p, uint32_t group,
                          uint8_t *line)
{
    for (uint32_t place = 0; place < p->n; place++) {
        uint32_t row = tr_weight_row(p->form, p->n, place), source, zero;
        const tr_cuda_packed_tensor_t *of = find_row(p, row, &source);
        const tr_packed_t *q = of->tensor->packed;
        float factor = 1,
              scale = q->format->scale(q, source,
                                       group * p->form.group / q->block_columns,
                                       &zero);

        if (of->t.part == TR_PART_QKV && p->m->equalise != NULL) {
            tr_equalise_scale(p->m->equalise, &of->t,
                              (size_t) (row - of->t.row) * p->k, 1, &factor);
        }
        tr_weight_scale_put(p->form, line, place, group, scale * factor, zero);
    }
}

/* ---- dummies --------------------------------------------------------------- */

void
tr_model_cuda_dummy_codes(void *packing, uint32_t first, uint32_t end,
                          uint32_t worker)
{
    const tr_cuda_packing_t *p = packing;
    uint64_t all = p->form.format == TR_WEIGHT_FP8 ? 0xbfbfbfbfbfbfbfbfull
                                                   : ~0ull;

    (void) worker;
    for (uint32_t i = first; i < end; i++) {
        uint64_t state = p->seed + p->word + i;
        uint64_t word = tr_splitmix64(&state) & all;

        memcpy(p->to + 8 * (size_t) i, &word, 8);
    }
}

void
tr_model_cuda_dummy_scales(const tr_cuda_packing_t *p, uint32_t group,
                           uint8_t *line)
{
    float sd = p->m->config.init_range;
    float scale = p->form.format == TR_WEIGHT_FP8    ? sd
                  : p->form.format == TR_WEIGHT_INT4 ? sd / 4.6f
                                                     : 1;

    while (p->form.format == TR_WEIGHT_MXFP4 && scale > sd / 2.9f) {
        scale /= 2;
    }
    for (uint32_t place = 0; place < p->n; place++) {
        tr_weight_scale_put(p->form, line, place, group, scale, 8);
    }
}
