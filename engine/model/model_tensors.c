/*
 * Names and shapes of a model's tensors (model_tensors.h).
 */
#include "model_tensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/hash.h"
#include "engine/config/log.h"

#include "model_families.h"
#include "model_stacked.h"
#include "weights/packed.h"

/* ---- the list ----------------------------------------------------------- */

/* Which of the part's rows a tensor is. */
static void
place(const tr_recipe_t *r, tr_tensor_rows_t rows, uint32_t all,
      uint32_t expert, tr_model_tensor_t *t)
{
    uint32_t one, q = r->query_heads * r->head_dim,
                  kv = r->kv_heads * r->head_dim;

    switch (rows) {
    case TR_ROWS_ALL:
        t->row = 0;
        t->rows = all;
        break;
    case TR_ROWS_FIRST_HALF:
    case TR_ROWS_SECOND_HALF:
        t->row = rows == TR_ROWS_FIRST_HALF ? 0 : all / 2;
        t->rows = all / 2;
        break;
    case TR_ROWS_QUERIES:
        t->row = 0;
        t->rows = q;
        break;
    case TR_ROWS_KEYS:
    case TR_ROWS_VALUES:
        t->row = rows == TR_ROWS_KEYS ? q : q + kv;
        t->rows = kv;
        break;
    case TR_ROWS_EXPERT:
    case TR_ROWS_EXPERT_FIRST_HALF:
    case TR_ROWS_EXPERT_SECOND_HALF:
        one = all / r->moe.route.experts;
        t->rows = rows == TR_ROWS_EXPERT ? one : one / 2;
        t->row = expert * one
                 + (rows == TR_ROWS_EXPERT_SECOND_HALF ? one / 2 : 0);
        break;
    case TR_ROWS_STACKED:
    case TR_ROWS_STACKED_PAIRS:
    case TR_ROWS_STACKED_TRANSPOSED:
    case TR_ROWS_STACKED_TRANSPOSED_PAIRS:
        t->row = 0;
        t->rows = all;
        t->experts = r->moe.route.experts;
        t->pairs = rows == TR_ROWS_STACKED_PAIRS
                   || rows == TR_ROWS_STACKED_TRANSPOSED_PAIRS;
        t->transposed = rows == TR_ROWS_STACKED_TRANSPOSED
                        || rows == TR_ROWS_STACKED_TRANSPOSED_PAIRS;
        break;
    }
}

static bool
by_expert(tr_tensor_rows_t rows)
{
    return rows >= TR_ROWS_EXPERT && rows <= TR_ROWS_EXPERT_SECOND_HALF;
}

/* "model.layers.L." and the family's name, the expert's number in place of the
 * star. */
static void
name_layered(const char *name, uint32_t layer, uint32_t expert,
             char text[TR_TENSOR_NAME])
{
    const char *star = strchr(name, '*');

    if (star == NULL) {
        snprintf(text, TR_TENSOR_NAME, "model.layers.%u.%s", layer, name);
    } else {
        snprintf(text, TR_TENSOR_NAME, "model.layers.%u.%.*s%u%s", layer,
                 (int) (star - name), name, expert, star + 1);
    }
}

/* A tensor by its name in the family's list; false: the recipe has no such part. */
static bool
describe(const tr_recipe_t *r, const tr_tensor_name_t *name, uint32_t layer,
         uint32_t expert, tr_model_tensor_t *t)
{
    tr_part_shape_t shape = tr_part_shape(r, name->part, layer);

    *t = (tr_model_tensor_t){ 0 };
    if (shape.rows == 0) {
        return false;
    }
    t->part = name->part;
    t->layer = layer;
    t->columns = shape.columns;
    place(r, name->rows, shape.rows, expert, t);
    if (tr_part_layered(name->part)) {
        name_layered(name->name, layer, expert, t->name);
    } else {
        snprintf(t->name, sizeof(t->name), "%s", name->name);
    }
    return true;
}

/* How many tensors of that name a layer may have. */
static uint32_t
repeats(const tr_recipe_t *r, const tr_tensor_name_t *name)
{
    return by_expert(name->rows) ? r->moe.route.experts : 1;
}

bool
tr_model_tensor_next(const tr_model_config_t *c, uint32_t *at,
                     tr_model_tensor_t *out)
{
    const tr_tensor_name_t *names = c->family->tensors, *layered = names;
    const tr_recipe_t *r = &c->recipe;
    uint32_t of_model, of_layer = 0;

    while (!tr_part_layered(layered->part)) {
        layered++;
    }
    of_model = (uint32_t) (layered - names);
    for (const tr_tensor_name_t *n = layered; n->name != NULL; n++) {
        of_layer += repeats(r, n);
    }
    while (*at < of_model + r->layers * of_layer) {
        uint32_t k = (*at)++, layer = 0, expert = 0;
        const tr_tensor_name_t *name = names + k;

        if (k >= of_model) {
            layer = (k - of_model) / of_layer;
            expert = (k - of_model) % of_layer;
            for (name = layered; expert >= repeats(r, name); name++) {
                expert -= repeats(r, name);
            }
        }
        if (describe(r, name, layer, expert, out)) {
            return true;
        }
    }
    return false;
}

/* ---- files -------------------------------------------------------------- */

/* As it is in the file; returns how many. */
static uint32_t
expected_shape(const tr_model_tensor_t *t, uint32_t dims[3])
{
    bool matrix = t->part < TR_PART_MATRICES;
    uint32_t n = 0, rows = t->experts ? t->rows / t->experts : t->rows;

    if (t->experts != 0) {
        dims[n++] = t->experts;
    }
    if (matrix && t->transposed) {
        dims[n++] = t->columns;
    }
    dims[n++] = rows;
    if (matrix && !t->transposed) {
        dims[n++] = t->columns;
    }
    return n;
}

/* Models for text and more put a word before the names of their text model, in
 * front ("language_model.model.norm.weight") or behind the first
 * ("model.language_model.norm.weight"). */
const tr_tensor_t *
tr_model_tensor_named(const tr_safetensors_t *st, const char *name)
{
    const tr_tensor_t *t = tr_safetensors_find(st, name);
    char other[TR_TENSOR_NAME + 32];

    if (t == NULL) {
        snprintf(other, sizeof(other), "language_model.%s", name);
        t = tr_safetensors_find(st, other);
    }
    if (t == NULL && strncmp(name, "model.", 6) == 0) {
        snprintf(other, sizeof(other), "model.language_model.%s", name + 6);
        t = tr_safetensors_find(st, other);
    }
    return t;
}

tr_status_t
tr_model_tensor_find(const tr_safetensors_t *st,
                     const tr_model_tensor_t *tensor, const tr_tensor_t **out,
                     tr_error_t *err)
{
    const tr_tensor_t *t = tr_model_tensor_named(st, tensor->name);
    char shape[128] = "", want[128] = "";
    uint32_t dims[3], n = expected_shape(tensor, dims);

    if (t == NULL) {
        return tr_error_set(err, TR_ERR_FORMAT, tensor->name,
                            "tensor \"%s\" is missing, config.json asks for it",
                            tensor->name);
    }
    *out = t;
    if (t->packed != NULL) {
        return TR_OK; /* checked when it was made */
    }
    if (t->stored != TR_STORED_FLOAT) {
        return tr_error_set(err, TR_ERR_UNSUPPORTED, tensor->name,
                            "%s: tensor \"%s\" has dtype \"%s\", expected F32, "
                            "F16 or BF16",
                            t->file, tensor->name, t->other);
    }
    if (t->n_dims == n && t->dims[0] == dims[0]
        && (n < 2 || t->dims[1] == dims[1])
        && (n < 3 || t->dims[2] == dims[2])) {
        return TR_OK;
    }
    for (uint32_t i = 0, at = 0; i < t->n_dims && at < sizeof(shape); i++) {
        at += (uint32_t) snprintf(shape + at, sizeof(shape) - at, "%s%llu",
                                  i ? ", " : "",
                                  (unsigned long long) t->dims[i]);
    }
    for (uint32_t i = 0, at = 0; i < n; i++) {
        at += (uint32_t) snprintf(want + at, sizeof(want) - at, "%s%u",
                                  i ? ", " : "", dims[i]);
    }
    return tr_error_set(err, TR_ERR_FORMAT, tensor->name,
                        "%s: tensor \"%s\" has shape [%s], config.json says "
                        "[%s]",
                        t->file, tensor->name, shape, want);
}

/* ---- what nobody asked for ---------------------------------------------- */

static int
by_address(const void *a, const void *b)
{
    uintptr_t x = (uintptr_t) * (const tr_tensor_t *const *) a;
    uintptr_t y = (uintptr_t) * (const tr_tensor_t *const *) b;

    return x < y ? -1 : x > y;
}

/* The N of "..layers.N..", -1: it is in no layer. */
static long
layer_of(const char *name)
{
    const char *p = strstr(name, "layers.");
    char *end;
    long n = p ? strtol(p + 7, &end, 10) : -1;

    return p && end != p + 7 && *end == '.' ? n : -1;
}

static bool
ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), m = strlen(end);

    return n >= m && strcmp(text + n - m, end) == 0;
}

/* A bias of zeros, as GPTQ writes one for every product. */
static bool
adds_nothing(const tr_tensor_t *t)
{
    if (t->stored != TR_STORED_FLOAT || !ends_with(t->name, ".bias")) {
        return false;
    }
    for (size_t i = 0; i < t->size / tr_dtype_size(t->dtype); i++) {
        if (tr_float_load(t->data, i, t->dtype) != 0) {
            return false;
        }
    }
    return true;
}

/* May it stay unread?  Parts of the model that are not run here, tables that we
 * compute, and dtypes that no weights have, as masks and positions have. */
static bool
may_stay(const tr_model_config_t *c, const tr_tensor_t *t)
{
    static const char *const words[] = { "vision", "visual",
                                         "audio",  "multi_modal_projector",
                                         "mtp.",   "inv_freq" };
    static const char *const other[] = { "BOOL", "I16", "U16",
                                         "I64",  "U64", "C64" };
    /* of activations, which are not quantised here, and of caches of others */
    static const char *const quantised[] = {
        ".input_scale", ".output_scale",     ".k_scale",
        ".v_scale",     ".input_zero_point", ".input_global_scale"
    };
    bool head = strstr(t->name, "lm_head.weight") != NULL;

    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        if (strstr(t->name, words[i]) != NULL) {
            return true;
        }
    }
    for (size_t i = 0; i < sizeof(other) / sizeof(other[0]); i++) {
        if (strcmp(t->other, other[i]) == 0) {
            return true;
        }
    }
    for (size_t i = 0; i < sizeof(quantised) / sizeof(quantised[0]); i++) {
        if (c->quantization.method != TR_QUANT_NONE
            && ends_with(t->name, quantised[i])) {
            return true;
        }
    }
    return (head && c->recipe.tied) || adds_nothing(t)
           || layer_of(t->name) >= (long) c->recipe.layers;
}

/* The files' tensors behind one that was asked for, at most TR_PACKED_PARTS, but
 * for `last`; returns how many. */
static uint32_t
list_read(const tr_tensor_t *t, const tr_tensor_t *last, const tr_tensor_t **to)
{
    uint32_t n = 0;

    if (t != NULL && t->whole != NULL) {
        t = t->whole != last ? t->whole : NULL; /* its parts come in a row */
    }
    if (t != NULL && t->packed == NULL) {
        to[n++] = t;
    }
    for (uint32_t i = 0; t != NULL && t->packed != NULL && i < TR_PACKED_PARTS;
         i++) {
        if (t->packed->part[i] != NULL) {
            to[n++] = t->packed->part[i];
        }
    }
    return n;
}

static tr_status_t
check_unread(const tr_model_config_t *c, const tr_safetensors_t *st,
             tr_error_t *err)
{
    uint32_t n = tr_safetensors_count(st), found = 0, at = 0;
    const tr_tensor_t **read = calloc(n + TR_PACKED_PARTS, sizeof(*read));
    tr_model_tensor_t wanted;
    tr_status_t rc = TR_OK;

    if (read == NULL) {
        return tr_error_set(err, TR_ERR_NOMEM, "model",
                            "out of memory: a list of %u tensors", n);
    }
    while (found < n && tr_model_tensor_next(c, &at, &wanted)) {
        found += list_read(tr_model_tensor_named(st, wanted.name),
                           found > 0 ? read[found - 1] : NULL, read + found);
    }
    qsort(read, found, sizeof(*read), by_address);
    for (uint32_t i = 0; i < n && rc == TR_OK; i++) {
        const tr_tensor_t *t = tr_safetensors_at(st, i);

        if (bsearch(&t, read, found, sizeof(*read), by_address) == NULL
            && !may_stay(c, t)) {
            rc = tr_error_set(err, TR_ERR_UNSUPPORTED, t->name,
                              "%s: tensor \"%.200s\" is not used: %s has no "
                              "such part",
                              t->file, t->name, c->model_type);
        }
    }
    free(read);
    return rc;
}

/* ---- weights that are no tensor of a file ---------------------------------- */

/* Quantised ones, and parts of others. */
typedef struct {
    tr_tensor_t *tensors;
    uint32_t n, capacity;
    const char *format;      /* of those that are quantised; NULL: none are */
    uint32_t packed;         /* .. how many */
    uint64_t weights, bytes; /* .. of them, in the files */
} added_t;

static void
free_added(added_t *l)
{
    for (uint32_t i = 0; i < l->n; i++) {
        free((char *) l->tensors[i].name);
        free((void *) l->tensors[i].packed);
    }
    free(l->tensors);
}

static bool
make_room(added_t *l)
{
    uint32_t capacity = l->capacity ? 2 * l->capacity : 64;
    tr_tensor_t *grown;

    if (l->n < l->capacity) {
        return true;
    }
    grown = realloc(l->tensors, capacity * sizeof(*grown));
    if (grown == NULL) {
        return false;
    }
    l->tensors = grown;
    l->capacity = capacity;
    return true;
}

/* Takes p. */
static tr_status_t
add_packed(added_t *l, tr_packed_t *p, tr_error_t *err)
{
    char *name = strdup(p->name);

    if (name == NULL || !make_room(l)) {
        free(name);
        free(p);
        return tr_error_set(err, TR_ERR_NOMEM, "model", "out of memory");
    }
    p->name = name;
    l->tensors[l->n++] = (tr_tensor_t){ .name = name,
                                        .dtype = p->dtype,
                                        .n_dims = 2,
                                        .dims = { p->rows, p->columns },
                                        .size = (uint64_t) p->rows * p->columns
                                                * tr_dtype_size(p->dtype),
                                        .file = p->part[TR_PACKED_CODES]->file,
                                        .packed = p };
    l->format = p->format->name;
    l->packed++;
    l->weights += (uint64_t) p->rows * p->columns;
    l->bytes += tr_packed_bytes(p);
    return TR_OK;
}

/* A part of a tensor, if that is how the file has it. */
static tr_status_t
add_part(added_t *l, const tr_model_config_t *c, const tr_safetensors_t *st,
         const tr_model_tensor_t *wanted, tr_error_t *err)
{
    char *name;
    tr_tensor_t part;
    tr_status_t rc = tr_model_stacked_part(c, st, wanted, &part, err);

    if (rc != TR_OK || part.whole == NULL) {
        return rc;
    }
    name = strdup(wanted->name);
    if (name == NULL || !make_room(l)) {
        free(name);
        return tr_error_set(err, TR_ERR_NOMEM, "model", "out of memory");
    }
    part.name = name;
    l->tensors[l->n++] = part;
    return TR_OK;
}

/* What the checkpoint holds and what it costs. */
static void
say_packed(const tr_model_config_t *c, const added_t *l)
{
    const double mib = 1 << 20;

    if (l->packed == 0) {
        tr_log(TR_LEVEL_WARN,
               "weights method=%s tensors=0 why=\"quantization_config is set, "
               "but all weights are plain\"",
               tr_quant_method_name(c->quantization.method));
        return;
    }
    tr_log(TR_LEVEL_NOTICE,
           "weights method=%s format=\"%s\" tensors=%u bits_per_weight=%.2f "
           "in_files_mib=%.1f in_16_bits_mib=%.1f",
           tr_quant_method_name(c->quantization.method), l->format, l->packed,
           8 * (double) l->bytes / (double) l->weights, (double) l->bytes / mib,
           2 * (double) l->weights / mib);
}

static tr_status_t
find_added(const tr_model_config_t *c, tr_safetensors_t *st, tr_error_t *err)
{
    const bool quantised = c->quantization.method != TR_QUANT_NONE;
    added_t l = { 0 };
    tr_model_tensor_t wanted;
    tr_status_t rc = TR_OK;
    uint32_t at = 0;

    while (rc == TR_OK && tr_model_tensor_next(c, &at, &wanted)) {
        if (wanted.part >= TR_PART_MATRICES) {
            continue;
        }
        tr_packed_t *p = NULL;

        if (quantised) {
            rc = tr_packed_find(&c->quantization, st, &wanted, &p, err);
        }
        if (rc == TR_OK) {
            rc = p != NULL ? add_packed(&l, p, err)
                           : add_part(&l, c, st, &wanted, err);
        }
    }
    if (rc != TR_OK) {
        free_added(&l);
        return rc;
    }
    if (quantised) {
        say_packed(c, &l);
    }
    tr_safetensors_add(st, l.tensors, l.n);
    return TR_OK;
}

/* ---- open ----------------------------------------------------------------- */

tr_status_t
tr_model_tensors_open(const tr_model_config_t *c, const char *dir,
                      tr_safetensors_t **out, tr_error_t *err)
{
    const tr_tensor_t *found;
    tr_model_tensor_t wanted;
    uint32_t at = 0;
    tr_status_t rc = tr_safetensors_open(dir, out, err);

    if (rc != TR_OK) {
        return rc;
    }
    rc = find_added(c, *out, err);
    while (rc == TR_OK && tr_model_tensor_next(c, &at, &wanted)) {
        rc = tr_model_tensor_find(*out, &wanted, &found, err);
    }
    if (rc == TR_OK) {
        rc = check_unread(c, *out, err);
    }
    if (rc != TR_OK) {
        tr_safetensors_close(*out);
        *out = NULL;
    }
    return rc;
}

/* ---- what they cost ------------------------------------------------------ */

typedef struct {
    const char *name;
    bool packed;
    uint64_t weights, bytes;
} of_format_t;

#define FORMATS 8u /* those beyond count as the last */

static of_format_t *
find_format(of_format_t *list, const tr_tensor_t *t)
{
    const char *name = t->packed != NULL ? t->packed->format->name
                                         : tr_dtype_stored_name(t->dtype);
    uint32_t i = 0;

    while (i + 1 < FORMATS && list[i].name != NULL
           && strcmp(list[i].name, name) != 0) {
        i++;
    }
    list[i].name = name;
    list[i].packed = t->packed != NULL;
    return &list[i];
}

void
tr_model_tensors_cost(const tr_model_config_t *c, const tr_safetensors_t *st,
                      tr_weights_cost_t *out)
{
    of_format_t list[FORMATS] = { 0 }, *most = &list[0];
    tr_model_tensor_t wanted;
    uint32_t at = 0;

    memset(out, 0, sizeof(*out));
    while (tr_model_tensor_next(c, &at, &wanted)) {
        const tr_tensor_t *t = tr_model_tensor_named(st, wanted.name);
        of_format_t *f;

        if (t == NULL) {
            continue;
        }
        f = find_format(list, t);
        f->weights += (uint64_t) wanted.rows * wanted.columns;
        f->bytes += t->packed != NULL ? tr_packed_bytes(t->packed) : t->size;
    }
    for (uint32_t i = 0; i < FORMATS; i++) {
        out->file_bytes += list[i].bytes;
        most = list[i].weights > most->weights ? &list[i] : most;
    }
    if (most->packed) {
        snprintf(out->format, sizeof(out->format), "%s %.2f bits", most->name,
                 8 * (double) most->bytes / (double) most->weights);
    } else if (most->name != NULL) {
        snprintf(out->format, sizeof(out->format), "%s", most->name);
    }
}

/* ---- order of rows ------------------------------------------------------ */

/* Rows [0, n) of the part belong to heads that rotate. */
static uint32_t
rotating_rows(const tr_recipe_t *r, const tr_model_tensor_t *t)
{
    switch (t->part) {
    case TR_PART_QKV:
    case TR_PART_QKV_BIAS:
        return (r->query_heads + r->kv_heads) * r->head_dim;
    case TR_PART_Q_NORM:
    case TR_PART_K_NORM:
        return t->rows;
    default:
        return 0;
    }
}

bool
tr_model_tensor_reordered(const tr_recipe_t *r, const tr_model_tensor_t *t,
                          const tr_tensor_t *tensor)
{
    return t->experts != 0 || tensor->packed != NULL
           || ((r->rotary_dim != r->head_dim || r->rope_interleaved)
               && t->row < rotating_rows(r, t));
}

uint32_t
tr_model_tensor_source(const tr_recipe_t *r, const tr_model_tensor_t *t,
                       uint32_t row)
{
    uint32_t d = row % r->head_dim;

    if (t->pairs) {
        uint32_t one = t->rows / t->experts, i = row % one;

        return row - i + (i < one / 2 ? 2 * i : 2 * (i - one / 2) + 1);
    }
    /* a tensor begins where a head does */
    return t->row + row < rotating_rows(r, t)
               ? row - d + tr_recipe_rotary_source(r, d)
               : row;
}

void
tr_model_row_load(const tr_recipe_t *r, const tr_model_tensor_t *t,
                  const tr_tensor_t *tensor, uint32_t row, float *out)
{
    size_t from = tr_model_tensor_source(r, t, row), step = 1;

    if (tensor->packed != NULL) { /* never transposed */
        tr_tensor_read(tensor, from * t->columns, t->columns, out);
        return;
    }
    if (t->transposed) {
        uint32_t one = t->rows / t->experts;

        from = from / one * one * t->columns + from % one;
        step = one;
    } else {
        from *= t->columns;
    }
    for (uint32_t i = 0; i < t->columns; i++) {
        out[i] = tr_float_load(tensor->data, from + i * step, tensor->dtype);
    }
}

void
tr_model_vector_expand(const tr_recipe_t *r, const tr_model_tensor_t *t,
                       const tr_tensor_t *tensor, float *out)
{
    bool norm = t->part < TR_PART_QKV_BIAS;

    for (uint32_t i = 0; i < t->rows; i++) {
        out[i] = tr_float_load(tensor->data, tr_model_tensor_source(r, t, i),
                               tensor->dtype);
        out[i] += norm && r->norm_plus_one ? 1.0f : 0.0f;
    }
}

/* ---- random weights ----------------------------------------------------- */

static inline uint64_t
mix(uint64_t x)
{
    return tr_splitmix64(&x);
}

uint64_t
tr_model_tensor_seed(uint64_t seed, const char *name)
{
    for (const char *p = name; *p; p++) {
        seed = mix(seed ^ (unsigned char) *p);
    }
    return seed;
}

void
tr_model_fill_random(float *x, size_t n, uint64_t seed, uint64_t first,
                     float sd)
{
    for (size_t i = 0; i < n; i++) {
        float u = (float) (mix(seed + first + i) >> 40) * 0x1p-24f;

        x[i] = (2 * u - 1) * sd * 1.7320508f;
    }
}
