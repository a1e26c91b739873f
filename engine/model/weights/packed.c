/*
 * The formats of quantised weights (packed.h), and what all of them share: finding
 * the parts of a weight, checking them, reading and rounding.
 */
#include "packed.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "engine/config/log.h"

#define STORED(type) (1u << TR_STORED_##type)
#define BY(method) (1u << TR_QUANT_##method)
#define SCALE_TYPES (STORED(FLOAT) | STORED(F8_E8M0))

const tr_packed_format_t tr_packed_formats[] = {
    { .name = "FP8",
      .methods = BY(FP8),
      .kept = TR_PACKED_ON_CUDA,
      .stem = ".weight",
      .part = { [TR_PACKED_CODES] = { ".weight", STORED(F8_E4M3), false },
                [TR_PACKED_SCALES] = { ".weight_scale_inv", SCALE_TYPES,
                                       false } },
      .check = tr_bytes_check,
      .read = tr_bytes_read,
      .codes = tr_bytes_codes,
      .scale = tr_bytes_scale },
    { .name = "FP8",
      .methods = BY(FP8) | BY(MODELOPT) | BY(COMPRESSED),
      .kept = TR_PACKED_ON_CUDA,
      .stem = ".weight",
      .part = { [TR_PACKED_CODES] = { ".weight", STORED(F8_E4M3), false },
                [TR_PACKED_SCALES] = { ".weight_scale", SCALE_TYPES, false } },
      .check = tr_bytes_check,
      .read = tr_bytes_read,
      .codes = tr_bytes_codes,
      .scale = tr_bytes_scale },
    { .name = "INT8",
      .methods = BY(COMPRESSED),
      .kept = TR_PACKED_ON_CPU,
      .stem = ".weight",
      .part = { [TR_PACKED_CODES] = { ".weight", STORED(I8), false },
                [TR_PACKED_SCALES] = { ".weight_scale", STORED(FLOAT),
                                       false } },
      .check = tr_bytes_check,
      .read = tr_bytes_read,
      .codes = tr_bytes_codes,
      .scale = tr_bytes_scale },
    { .name = "packed integers",
      .methods = BY(COMPRESSED),
      .kept = TR_PACKED_ON_CPU | TR_PACKED_ON_CUDA,
      .stem = ".weight",
      .part = { [TR_PACKED_CODES] = { ".weight_packed", STORED(I32), false },
                [TR_PACKED_SCALES] = { ".weight_scale", STORED(FLOAT), false },
                [TR_PACKED_ZEROS] = { ".weight_zero_point", STORED(I32), true },
                [TR_PACKED_GROUPS] = { ".weight_g_idx", STORED(I32), true },
                [TR_PACKED_SHAPE] = { ".weight_shape", STORED(I64), true } },
      .check = tr_words_check,
      .read = tr_words_read,
      .codes = tr_words_codes,
      .scale = tr_words_scale },
    { .name = "AWQ",
      .methods = BY(AWQ),
      .kept = TR_PACKED_ON_CPU | TR_PACKED_ON_CUDA,
      .stem = ".weight",
      .part = { [TR_PACKED_CODES] = { ".qweight", STORED(I32), false },
                [TR_PACKED_SCALES] = { ".scales", STORED(FLOAT), false },
                [TR_PACKED_ZEROS] = { ".qzeros", STORED(I32), false } },
      .check = tr_awq_check,
      .read = tr_awq_read,
      .codes = tr_awq_codes,
      .scale = tr_awq_scale },
    { .name = "GPTQ",
      .methods = BY(GPTQ),
      .kept = TR_PACKED_ON_CPU | TR_PACKED_ON_CUDA,
      .stem = ".weight",
      .part = { [TR_PACKED_CODES] = { ".qweight", STORED(I32), false },
                [TR_PACKED_SCALES] = { ".scales", STORED(FLOAT), false },
                [TR_PACKED_ZEROS] = { ".qzeros", STORED(I32), false },
                [TR_PACKED_GROUPS] = { ".g_idx", STORED(I32), true } },
      .check = tr_gptq_check,
      .read = tr_gptq_read,
      .codes = tr_gptq_codes,
      .scale = tr_gptq_scale },
    { .name = "MXFP4",
      .methods = BY(MXFP4),
      .kept = TR_PACKED_ON_CPU | TR_PACKED_ON_CUDA,
      .stem = "",
      .part = { [TR_PACKED_CODES] = { "_blocks", STORED(U8), false },
                [TR_PACKED_SCALES] = { "_scales", STORED(U8), false } },
      .check = tr_mxfp4_check,
      .read = tr_mxfp4_read,
      .codes = tr_mxfp4_codes,
      .scale = tr_mxfp4_scale },
    { .name = NULL }
};

const char *
tr_quant_method_name(tr_quant_method_t method)
{
    static const char *const names[TR_QUANT_METHODS] = {
        [TR_QUANT_NONE] = "none",
        [TR_QUANT_FP8] = "fp8",
        [TR_QUANT_MODELOPT] = "modelopt",
        [TR_QUANT_AWQ] = "awq",
        [TR_QUANT_GPTQ] = "gptq",
        [TR_QUANT_MXFP4] = "mxfp4",
        [TR_QUANT_COMPRESSED] = "compressed-tensors",
    };

    return names[method];
}

/* ---- errors --------------------------------------------------------------- */

static void
show_shape(uint32_t n, const uint64_t *dims, char text[128])
{
    size_t at = 0;

    text[0] = '\0';
    for (uint32_t i = 0; i < n && at < 100; i++) {
        at += (size_t) snprintf(text + at, 128 - at, "%s%llu", i ? ", " : "",
                                (unsigned long long) dims[i]);
    }
}

tr_status_t
tr_packed_expect(const tr_packed_t *p, tr_packed_part_t part, uint32_t n,
                 const uint64_t *dims, tr_error_t *err)
{
    const tr_tensor_t *t = p->part[part];
    char shape[128], want[128];

    if (t->n_dims == n && memcmp(t->dims, dims, n * sizeof(dims[0])) == 0) {
        return TR_OK;
    }
    show_shape(t->n_dims, t->dims, shape);
    show_shape(n, dims, want);
    return tr_error_set(err, TR_ERR_FORMAT, t->name,
                        "%s: tensor \"%s\" has shape [%s], expected [%s] for "
                        "%u x %u weights in %s",
                        t->file, t->name, shape, want, p->rows, p->columns,
                        p->format->name);
}

/* ---- schemes -------------------------------------------------------------- */

void
tr_packed_set_scheme(tr_packed_t *p, const tr_quant_scheme_t *s)
{
    p->bits = s->bits;
    p->block_rows = s->rows ? s->rows : p->rows;
    p->block_columns = s->columns ? s->columns : p->columns;
    p->blocks = (p->columns - 1) / p->block_columns + 1;
    p->reordered = s->reordered;
}

tr_status_t
tr_packed_scheme(tr_packed_t *p, const tr_quantization_t *q, bool is_float,
                 uint32_t bits, tr_error_t *err)
{
    const tr_tensor_t *t = p->part[TR_PACKED_CODES];

    for (uint32_t i = 0; i < q->n_schemes; i++) {
        if (q->scheme[i].is_float == is_float && q->scheme[i].bits == bits) {
            tr_packed_set_scheme(p, &q->scheme[i]);
            return TR_OK;
        }
    }
    return tr_error_set(err, TR_ERR_UNSUPPORTED, t->name,
                        "%s: tensor \"%s\" holds %u-bit %s, which "
                        "quantization_config does not mention",
                        t->file, t->name, bits,
                        is_float ? "floats" : "integers");
}

tr_status_t
tr_packed_check_zeros(const tr_packed_t *p, bool symmetric, tr_error_t *err)
{
    if (symmetric || p->part[TR_PACKED_ZEROS] != NULL) {
        return TR_OK;
    }
    return tr_error_set(err, TR_ERR_FORMAT, p->name,
                        "tensor \"%s\" has no zero points, but "
                        "quantization_config says symmetric false",
                        p->name);
}

tr_status_t
tr_packed_check_groups(const tr_packed_t *p, tr_error_t *err)
{
    const tr_tensor_t *t = p->part[TR_PACKED_GROUPS];
    tr_status_t rc;

    if (t == NULL && p->reordered && p->blocks > 1) {
        return tr_error_set(err, TR_ERR_FORMAT, p->name,
                            "tensor \"%s\" has no %s, but quantization_config "
                            "says that its columns are reordered",
                            p->name, p->format->part[TR_PACKED_GROUPS].name);
    }
    if (t == NULL) {
        return TR_OK;
    }
    rc = tr_packed_expect(p, TR_PACKED_GROUPS, 1, (uint64_t[]){ p->columns },
                          err);
    for (uint32_t k = 0; rc == TR_OK && k < p->columns; k++) {
        if (tr_packed_word(t, k) >= p->blocks) {
            rc = tr_error_set(err, TR_ERR_FORMAT, t->name,
                              "%s: tensor \"%s\" puts column %u into group %d, "
                              "expected 0 to %u",
                              t->file, t->name, k,
                              (int32_t) tr_packed_word(t, k), p->blocks - 1);
        }
    }
    return rc;
}

float
tr_packed_scale(const tr_packed_t *p, size_t i)
{
    const tr_tensor_t *t = p->part[TR_PACKED_SCALES];
    uint8_t e;

    if (t->stored == TR_STORED_FLOAT) {
        return tr_float_load(t->data, i, t->dtype);
    }
    e = ((const uint8_t *) t->data)[i]; /* 2^(e - 127) */
    return e == 255 ? NAN
           : e == 0 ? 0x1p-127f
                    : tr_float_from_bits((uint32_t) e << 23);
}

static float
round_to(tr_dtype_t dtype, float x)
{
    return dtype == TR_BF16
               ? tr_float_from_bits((uint32_t) tr_bf16_from_float(x) << 16)
               : tr_float_from_half(tr_half_from_float(x));
}

/* What the largest code, above its zero point, stands for. */
static float
largest_code(const tr_packed_t *p)
{
    switch (p->part[TR_PACKED_CODES]->stored) {
    case TR_STORED_F8_E4M3:
        return 448;
    case TR_STORED_U8:
        return 6; /* E2M1 */
    default:
        return (float) (p->part[TR_PACKED_ZEROS] != NULL ? (1u << p->bits) - 1
                                                         : 1u << (p->bits - 1));
    }
}

/* Scales are numbers, and so are weights. */
static tr_status_t
check_scales(const tr_packed_t *p, tr_error_t *err)
{
    const tr_tensor_t *t = p->part[TR_PACKED_SCALES];
    size_t n = t->stored == TR_STORED_FLOAT ? t->size / tr_dtype_size(t->dtype)
                                            : t->size;
    float most = largest_code(p);

    for (size_t i = 0; i < n; i++) {
        float x = tr_packed_scale(p, i);

        if (!isfinite(x)) {
            return tr_error_set(err, TR_ERR_FORMAT, t->name,
                                "%s: tensor \"%s\" holds %g at %zu, expected "
                                "finite scales",
                                t->file, t->name, (double) x, i);
        }
        if (!isfinite(round_to(p->dtype, x * most))) {
            return tr_error_set(err, TR_ERR_FORMAT, t->name,
                                "%s: tensor \"%s\" holds %g at %zu, and %s "
                                "cannot represent a weight of %g times that",
                                t->file, t->name, (double) x, i,
                                tr_dtype_stored_name(p->dtype), (double) most);
        }
    }
    return TR_OK;
}

tr_status_t
tr_packed_check_codes(const tr_packed_t *p, tr_error_t *err)
{
    static const uint64_t low = 0x7f7f7f7f7f7f7f7f;
    const tr_tensor_t *t = p->part[TR_PACKED_CODES];
    const uint8_t *code = t->data;
    size_t i = 0;

    if (t->stored != TR_STORED_F8_E4M3) {
        return TR_OK;
    }
    for (; t->size - i >= sizeof(uint64_t); i += sizeof(uint64_t)) {
        uint64_t eight;

        /* a byte that is 0 of these is a NaN, and stays below 0x80 */
        memcpy(&eight, code + i, sizeof(eight));
        if (((((eight & low) ^ low) + low) & ~low) != ~low) {
            break;
        }
    }
    while (i < t->size && (code[i] & 0x7f) != 0x7f) {
        i++;
    }
    return i == t->size ? TR_OK
                        : tr_error_set(err, TR_ERR_FORMAT, t->name,
                                       "%s: tensor \"%s\" holds nan (0x%02x) "
                                       "at %zu, expected finite weights",
                                       t->file, t->name, code[i], i);
}

/* ---- a weight's parts ------------------------------------------------------ */

static const tr_tensor_t *
find_part(const tr_packed_format_t *f, const tr_safetensors_t *st,
          const tr_model_tensor_t *t, tr_packed_part_t part,
          char name[TR_TENSOR_NAME + 32])
{
    size_t n = strlen(t->name), stem = strlen(f->stem);

    if (f->part[part].name == NULL || n < stem
        || strcmp(t->name + n - stem, f->stem) != 0) {
        return NULL;
    }
    snprintf(name, TR_TENSOR_NAME + 32, "%.*s%s", (int) (n - stem), t->name,
             f->part[part].name);
    return tr_model_tensor_named(st, name);
}

/* The row whose codes the files have; among several, one whose scales they have,
 * too. */
static const tr_packed_format_t *
find_format(const tr_quantization_t *q, const tr_safetensors_t *st,
            const tr_model_tensor_t *t)
{
    const tr_packed_format_t *found = NULL;
    char name[TR_TENSOR_NAME + 32];

    for (const tr_packed_format_t *f = tr_packed_formats; f->name != NULL;
         f++) {
        const tr_tensor_t *codes = NULL;

        if (f->methods & 1u << q->method) {
            codes = find_part(f, st, t, TR_PACKED_CODES, name);
        }
        if (codes == NULL
            || !(f->part[TR_PACKED_CODES].stored & 1u << codes->stored)) {
            continue;
        }
        found = f;
        if (find_part(f, st, t, TR_PACKED_SCALES, name) != NULL) {
            break;
        }
    }
    return found;
}

static tr_status_t
find_parts(tr_packed_t *p, const tr_safetensors_t *st,
           const tr_model_tensor_t *t, tr_error_t *err)
{
    const tr_packed_format_t *f = p->format;
    char name[TR_TENSOR_NAME + 32];

    for (tr_packed_part_t i = 0; i < TR_PACKED_PARTS; i++) {
        const tr_tensor_t *part = find_part(f, st, t, i, name);

        if (f->part[i].name == NULL || (part == NULL && f->part[i].optional)) {
            continue;
        }
        if (part == NULL) {
            return tr_error_set(err, TR_ERR_FORMAT, name,
                                "tensor \"%s\" is missing, %s weights need it",
                                name, f->name);
        }
        if (!(f->part[i].stored & 1u << part->stored)) {
            return tr_error_set(err, TR_ERR_UNSUPPORTED, name,
                                "%s: tensor \"%s\" has dtype %s, which %s "
                                "weights do not have there",
                                part->file, name,
                                part->other[0]
                                    ? part->other
                                    : tr_dtype_stored_name(part->dtype),
                                f->name);
        }
        p->part[i] = part;
    }
    return TR_OK;
}

tr_status_t
tr_packed_find(const tr_quantization_t *q, const tr_safetensors_t *st,
               const tr_model_tensor_t *t, tr_packed_t **out, tr_error_t *err)
{
    const tr_packed_format_t *f = find_format(q, st, t);
    const tr_tensor_t *scales;
    tr_packed_t *p;
    tr_status_t rc;

    *out = NULL;
    if (f == NULL) {
        return TR_OK;
    }
    p = calloc(1, sizeof(*p));
    if (p == NULL) {
        return tr_error_set(err, TR_ERR_NOMEM, "model", "out of memory");
    }
    p->format = f;
    p->name = t->name; /* until it is in the reader */
    p->rows = t->rows;
    p->columns = t->columns;
    p->experts = t->experts;
    rc = find_parts(p, st, t, err);
    rc = rc == TR_OK ? f->check(p, q, err) : rc;
    if (rc == TR_OK) {
        scales = p->part[TR_PACKED_SCALES];
        p->dtype = scales->stored == TR_STORED_FLOAT
                           && tr_dtype_is_short(scales->dtype)
                       ? scales->dtype
                       : TR_BF16;
        rc = check_scales(p, err);
    }
    if (rc != TR_OK) {
        free(p);
        return rc;
    }
    *out = p;
    return TR_OK;
}

bool
tr_packed_in_order(const tr_packed_t *p)
{
    const tr_tensor_t *groups = p->part[TR_PACKED_GROUPS];

    for (uint32_t k = 0; groups != NULL && k < p->columns; k++) {
        if (tr_packed_word(groups, k) != k / p->block_columns) {
            return false;
        }
    }
    return true;
}

/* ---- reading --------------------------------------------------------------- */

void
tr_packed_read(const tr_tensor_t *t, size_t first, size_t n, float *out)
{
    const tr_packed_t *p = t->packed;

    while (n > 0) {
        uint32_t row = (uint32_t) (first / p->columns);
        uint32_t from = (uint32_t) (first % p->columns);
        uint32_t left = p->columns - from,
                 take = left < n ? left : (uint32_t) n;

        p->format->read(p, row, from, take, out);
        for (uint32_t i = 0; i < take; i++) {
            out[i] = round_to(p->dtype, out[i]);
        }
        first += take;
        out += take;
        n -= take;
    }
}

void
tr_packed_release(const tr_packed_t *p)
{
    for (tr_packed_part_t i = 0; i < TR_PACKED_PARTS; i++) {
        if (p->part[i] != NULL) {
            tr_safetensors_release(p->part[i]);
        }
    }
}

uint64_t
tr_packed_bytes(const tr_packed_t *p)
{
    uint64_t bytes = 0;

    for (tr_packed_part_t i = 0; i < TR_PACKED_PARTS; i++) {
        bytes += p->part[i] != NULL ? p->part[i]->size : 0;
    }
    return bytes;
}

void
tr_packed_say_expanded(const tr_packed_t *p)
{
    tr_log(TR_LEVEL_INFO, "weights expanded tensor=\"%s\" format=\"%s\"",
           p->name, p->format->name);
}
