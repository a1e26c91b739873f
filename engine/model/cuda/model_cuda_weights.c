/*
 * Fills a model's weights on a device, from safetensors or, for `load_format
 * dummy`, from a seed (model_cuda.h).
 *
 * All weights live in one block of device memory.  A tensor goes there in
 * pieces: mapped file -> pinned staging, by a few threads, -> device.  There
 * are two staging buffers, so that the disk is read while the piece before is
 * on its way; where types differ, a piece is converted on the device.  What
 * equalisation (equalise.h) and rotation (rotate.h) change, and what is quantised
 * in the files (weights/packed.h), is expanded to FP32 while it is staged, unless
 * it is kept packed (model_cuda_packed.c).
 */
#include "model_cuda.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/thread_pool.h"

#include "engine/config/log.h"
#include "engine/model/load_progress.h"

#define STAGE_BYTES (32u << 20)
#define COPY_GRAIN (1u << 20)
#define COPY_THREADS 4

typedef struct {
    tr_model_cuda_t *m;
    tr_safetensors_t *st; /* NULL: dummy */
    uint64_t seed;
    tr_thread_pool_t *thread_pool;
    uint8_t *staging[2]; /* pinned */
    uint8_t *bounce[2];  /* device: pieces of another type */
    void *passed[2];     /* events: what was staged is on the device */
    bool used[2];
    uint32_t turn;
    tr_load_progress_t progress;
    tr_error_t *err;
} loader_t;

/* ---- memory ------------------------------------------------------------- */

static size_t
part_bytes(const tr_recipe_t *r, const tr_cuda_parts_t *parts, tr_part_t part,
           uint32_t layer)
{
    tr_part_shape_t s = tr_part_shape(r, part, layer);

    return part < TR_PART_MATRICES
               ? tr_weight_bytes(parts->form[part], s.rows, s.columns)
               : (size_t) s.rows * s.columns * 4;
}

static void
take(uint8_t *base, size_t *at, size_t bytes, void **out)
{
    *out = base != NULL && bytes != 0 ? base + *at : NULL;
    *at += tr_pad(bytes, 256);
}

/* The parts of the model, or of a layer. */
static void
take_parts(const tr_recipe_t *r, uint8_t *base, size_t *at,
           tr_cuda_parts_t *parts, bool layered, uint32_t layer)
{
    for (tr_part_t part = 0; part < TR_PARTS; part++) {
        if (tr_part_layered(part) == layered) {
            take(base, at, part_bytes(r, parts, part, layer),
                 &parts->part[part]);
        }
    }
}

static bool
has_sinks(const tr_recipe_t *r)
{
    bool any = false;

    for (uint32_t l = 0; l < r->layers; l++) {
        any = any || r->layer[l].sinks;
    }
    return any;
}

/* Gives every part its place; without a base only counts. */
static size_t
layout(tr_model_cuda_t *m, uint8_t *base)
{
    const tr_recipe_t *r = &m->config.recipe;
    size_t at = 0;

    take_parts(r, base, &at, &m->root, false, 0);
    for (uint32_t i = 0; i <= TR_CUDA_ANGLES_NONE; i++) {
        tr_cuda_table_t *t = &m->rope[i];
        size_t half = t->used ? r->head_dim / 2 * sizeof(float) : 0;

        take(base, &at, half, (void **) &t->inv_freq);
        take(base, &at, half, (void **) &t->inv_freq_long);
        take(base, &at, half, (void **) &t->amp);
    }
    for (uint32_t l = 0; l < r->layers; l++) {
        take_parts(r, base, &at, &m->layers[l], true, l);
    }
    if (tr_recipe_reach(r) != 0) {
        take(base, &at, r->layers * sizeof(*m->reach), (void **) &m->reach);
    }
    if (has_sinks(r)) {
        take(base, &at, r->layers * sizeof(*m->sinks), (void **) &m->sinks);
    }
    if (m->centre != NULL && m->centre->layers != 0) {
        take(base, &at,
             (size_t) r->layers * r->kv_heads * r->head_dim * sizeof(float),
             (void **) &m->key_shift);
    }
    return at;
}

static tr_status_t
failed(loader_t *l)
{
    return tr_error_set(l->err, TR_ERR_INTERNAL, "device",
                        "backend cuda: loading weights failed: %s",
                        l->m->cuda->reason());
}

/* ---- staging ------------------------------------------------------------ */

typedef struct {
    uint8_t *to;
    const uint8_t *from;
} copy_t;

/* A piece of a tensor as it becomes in the model, in units of elements that
 * belong together. */
typedef struct {
    const tr_model_cuda_t *m;
    const tr_model_tensor_t *t;
    const tr_tensor_t *tensor; /* NULL: dummy */
    uint64_t seed;             /* dummy */
    size_t at; /* element of the tensor, where the piece begins */
    size_t unit;
    bool rows; /* a unit is whole rows, whose order may be another */
    float *to;
} change_t;

static void
change(void *arg, uint32_t first, uint32_t end, uint32_t worker)
{
    const change_t *a = arg;
    const tr_recipe_t *r = &a->m->config.recipe;
    size_t at = a->at + first * a->unit, n = (end - first) * a->unit;
    float *x = a->to + first * a->unit;

    (void) worker;
    if (a->tensor == NULL) {
        tr_model_fill_random(x, n, a->seed, at, a->m->config.init_range);
    } else if (a->rows) {
        for (size_t i = 0; i < n; i += a->t->columns) {
            tr_model_row_load(r, a->t, a->tensor,
                              (uint32_t) ((at + i) / a->t->columns), x + i);
        }
    } else {
        tr_tensor_read(a->tensor, at, n, x);
    }
    if (tr_equalise_has(a->m->equalise, a->t)) {
        tr_equalise_scale(a->m->equalise, a->t, at, n, x);
    }
    if (tr_rotate_rows(r, a->m->rotate, a->t) != 0) {
        tr_rotate_weights(r, a->t, (uint32_t) (at / a->t->columns),
                          (uint32_t) (n / a->t->columns), x);
    }
}

static void
copy_bytes(void *arg, uint32_t first, uint32_t end, uint32_t worker)
{
    const copy_t *a = arg;

    (void) worker;
    memcpy(a->to + first, a->from + first, end - first);
}

/* A staging buffer that the device has read. */
static uint8_t *
next_stage(loader_t *l)
{
    uint32_t i = l->turn ^= 1;

    if (l->used[i] && l->m->cuda->event_wait(l->passed[i]) != 0) {
        return NULL;
    }
    return l->staging[i];
}

/* What the current staging buffer holds goes on its way, n elements. */
static tr_status_t
send(loader_t *l, void *to, tr_dtype_t to_type, tr_dtype_t type, size_t n)
{
    const tr_device_t *cuda = l->m->cuda;
    const tr_cuda_stream_t *s = l->m->stream;
    uint32_t i = l->turn;
    size_t bytes = n * tr_dtype_size(type);
    int rc;

    if (type == to_type) {
        rc = cuda->copy(s, to, l->staging[i], bytes);
    } else {
        rc = cuda->copy(s, l->bounce[i], l->staging[i], bytes);
        rc = rc != 0 ? rc
                     : cuda->convert(s, l->bounce[i], type, to, to_type, n);
    }
    rc = rc != 0 ? rc : cuda->event_record(s, l->passed[i]);
    l->used[i] = true;
    return rc == 0 ? TR_OK : failed(l);
}

/* ---- tensors ------------------------------------------------------------ */

static uint8_t *
place_of(loader_t *l, const tr_model_tensor_t *t)
{
    tr_cuda_parts_t *of = tr_part_layered(t->part) ? &l->m->layers[t->layer]
                                                   : &l->m->root;

    return (uint8_t *) of->part[t->part]
           + (size_t) t->row * t->columns
                 * (t->part < TR_PART_MATRICES ? 2 : 4);
}

static tr_status_t
load_changed(loader_t *l, const tr_model_tensor_t *t, const tr_tensor_t *tensor)
{
    const tr_recipe_t *r = &l->m->config.recipe;
    uint32_t rows = tr_rotate_rows(r, l->m->rotate, t);
    size_t unit = (size_t) (rows == 0 ? 1 : rows) * t->columns;
    size_t most = STAGE_BYTES / 4 / unit * unit;
    size_t n = (size_t) t->rows * t->columns, piece;
    uint8_t *to = place_of(l, t);
    change_t a = { .m = l->m,
                   .t = t,
                   .tensor = tensor,
                   .seed = tr_model_tensor_seed(l->seed, t->name),
                   .unit = unit,
                   .rows = tensor != NULL
                           && tr_model_tensor_reordered(r, t, tensor) };
    tr_status_t rc = TR_OK;

    if (most == 0) {
        return tr_error_set(l->err, TR_ERR_UNSUPPORTED, "model",
                            "backend cuda: %u rows of %s have %zu weights, "
                            "expected at most %u where they change at load",
                            rows == 0 ? 1 : rows, t->name, unit,
                            STAGE_BYTES / 4);
    }
    for (; rc == TR_OK && a.at < n; a.at += piece) {
        piece = n - a.at < most ? n - a.at : most;
        a.to = (float *) next_stage(l);
        if (a.to == NULL) {
            return failed(l);
        }
        tr_thread_pool_run(l->thread_pool, COPY_THREADS,
                           (uint32_t) (piece / unit),
                           (uint32_t) (1 + COPY_GRAIN / 4 / unit), change, &a);
        rc = send(l, to + 2 * a.at, l->m->type, TR_F32, piece);
        tr_load_progress_more(&l->progress, piece);
    }
    if (tensor != NULL) {
        tr_safetensors_release(tensor);
    }
    return rc;
}

static tr_status_t
load_matrix(loader_t *l, const tr_model_tensor_t *t)
{
    size_t n = (size_t) t->rows * t->columns, at, piece;
    uint8_t *to = place_of(l, t);
    const tr_tensor_t *tensor = NULL;
    size_t size;
    tr_status_t rc = TR_OK;

    if (l->st != NULL) {
        rc = tr_model_tensor_find(l->st, t, &tensor, l->err);
    }
    if (rc == TR_OK && tensor != NULL) {
        rc = tr_tensor_check(tensor, l->err);
    }
    if (rc != TR_OK) {
        return rc;
    }
    if (tr_equalise_has(l->m->equalise, t)
        || tr_rotate_rows(&l->m->config.recipe, l->m->rotate, t) != 0
        || (tensor != NULL
            && tr_model_tensor_reordered(&l->m->config.recipe, t, tensor))) {
        return load_changed(l, t, tensor);
    }
    if (tensor == NULL) {
        return l->m->cuda->fill_random(l->m->stream, to, n, l->m->type,
                                       tr_model_tensor_seed(l->seed, t->name),
                                       0, l->m->config.init_range)
                       == 0
                   ? TR_OK
                   : failed(l);
    }
    size = tr_dtype_size(tensor->dtype);
    for (at = 0; rc == TR_OK && at < n; at += piece) {
        copy_t a = { next_stage(l),
                     (const uint8_t *) tensor->data + at * size };

        piece = n - at < STAGE_BYTES / size ? n - at : STAGE_BYTES / size;
        if (a.to == NULL) {
            return failed(l);
        }
        tr_thread_pool_run(l->thread_pool, COPY_THREADS,
                           (uint32_t) (piece * size), COPY_GRAIN, copy_bytes,
                           &a);
        rc = send(l, to + 2 * at, l->m->type, tensor->dtype, piece);
        tr_load_progress_more(&l->progress, piece);
    }
    tr_safetensors_release(tensor);
    return rc;
}

static bool
is_packed(const loader_t *l, const tr_model_tensor_t *t)
{
    return tr_part_layered(t->part) && t->part < TR_PART_MATRICES
           && l->m->layers[t->layer].form[t->part].format != TR_WEIGHT_16;
}

/* The scales of a packed part, to where its codes end. */
static tr_status_t
load_scales(loader_t *l, const tr_cuda_packing_t *p, uint8_t *to)
{
    uint32_t of = tr_weight_line_groups(p->form.format);
    size_t line = (size_t) p->n * of * tr_weight_scale_bytes(p->form.format);
    tr_status_t rc = TR_OK;

    for (uint32_t g = 0; rc == TR_OK && g < tr_weight_groups(p->form, p->k);
         g += of, to += line) {
        uint8_t *stage = next_stage(l);

        if (stage == NULL) {
            return failed(l);
        }
        for (uint32_t i = 0; i < of; i++) {
            (l->st != NULL ? tr_model_cuda_pack_scales
                           : tr_model_cuda_dummy_scales)(p, g + i, stage);
        }
        rc = send(l, to, TR_F32, TR_F32, line / 4);
    }
    return rc;
}

static tr_status_t
load_codes(loader_t *l, tr_cuda_packing_t *p, uint8_t *to)
{
    size_t chunk = (size_t) p->n / TR_WEIGHT_ROWS
                   * tr_weight_block(p->form.format);
    uint32_t all = p->k / TR_WEIGHT_COLUMNS;
    uint32_t most = (uint32_t) (STAGE_BYTES / chunk);
    tr_status_t rc = TR_OK;

    for (p->chunk = 0; rc == TR_OK && p->chunk < all; p->chunk += p->chunks) {
        p->chunks = all - p->chunk < most ? all - p->chunk : most;
        p->to = next_stage(l);
        if (p->to == NULL) {
            return failed(l);
        }
        tr_thread_pool_run(l->thread_pool, COPY_THREADS, p->n / TR_WEIGHT_ROWS,
                           1, tr_model_cuda_pack_codes, p);
        rc = send(l, to + p->chunk * chunk, TR_F32, TR_F32,
                  p->chunks * chunk / 4);
        tr_load_progress_more(&l->progress,
                              (uint64_t) p->n * p->chunks * TR_WEIGHT_COLUMNS);
    }
    return rc;
}

/* The same of a dummy. */
static tr_status_t
load_dummy_codes(loader_t *l, tr_cuda_packing_t *p, uint8_t *to)
{
    size_t all = tr_weight_code_bytes(p->form, p->n, p->k), at, piece;
    tr_status_t rc = TR_OK;

    for (at = 0; rc == TR_OK && at < all; at += piece) {
        piece = all - at < STAGE_BYTES ? all - at : STAGE_BYTES;
        p->word = at / 8;
        p->to = next_stage(l);
        if (p->to == NULL) {
            return failed(l);
        }
        tr_thread_pool_run(l->thread_pool, COPY_THREADS, (uint32_t) (piece / 8),
                           COPY_GRAIN / 8, tr_model_cuda_dummy_codes, p);
        rc = send(l, to + at, TR_F32, TR_F32, piece / 4);
    }
    return rc;
}

/* A packed part, with its first tensor. */
static tr_status_t
load_packed(loader_t *l, const tr_model_tensor_t *t, uint32_t at)
{
    uint8_t *to = l->m->layers[t->layer].part[t->part];
    tr_cuda_packing_t p;
    tr_status_t rc;

    if (t->row != 0) {
        return TR_OK; /* it came with the first */
    }
    rc = tr_model_cuda_packing_open(&p, l->m, l->st, t, at, l->err);
    p.seed = tr_model_tensor_seed(l->seed, t->name);
    if (rc == TR_OK) {
        rc = l->st != NULL ? load_codes(l, &p, to)
                           : load_dummy_codes(l, &p, to);
    }
    rc = rc == TR_OK
             ? load_scales(l, &p, to + tr_weight_code_bytes(p.form, p.n, p.k))
             : rc;
    tr_model_cuda_packing_close(&p);
    return rc;
}

/* Vectors are FP32 on the device. */
static tr_status_t
load_vector(loader_t *l, const tr_model_tensor_t *t)
{
    bool norm = t->part < TR_PART_QKV_BIAS;
    const tr_tensor_t *tensor = NULL;
    tr_status_t rc = TR_OK;
    float *x;

    if (l->st != NULL) {
        rc = tr_model_tensor_find(l->st, t, &tensor, l->err);
    }
    if (rc != TR_OK) {
        return rc;
    }
    x = (float *) next_stage(l);
    if (x == NULL) {
        return failed(l);
    }
    if (tensor != NULL) {
        tr_model_vector_expand(&l->m->config.recipe, t, tensor, x);
        tr_safetensors_release(tensor);
    } else {
        tr_model_fill_random(x, t->rows, tr_model_tensor_seed(l->seed, t->name),
                             0, l->m->config.init_range);
        for (uint32_t i = 0; norm && i < t->rows; i++) {
            x[i] = 1;
        }
    }
    if (tr_equalise_has(l->m->equalise, t)) {
        tr_equalise_scale(l->m->equalise, t, 0, t->rows, x);
    }
    if (tr_rotate_rows(&l->m->config.recipe, l->m->rotate, t) != 0) {
        tr_rotate_weights(&l->m->config.recipe, t, 0, t->rows, x);
    }
    tr_load_progress_more(&l->progress, t->rows);
    return send(l, place_of(l, t), TR_F32, TR_F32, t->rows);
}

/* The type of the weights: as set, or as in the files. */
static tr_status_t
choose_type(loader_t *l, const char *wanted)
{
    tr_model_tensor_t first;
    uint32_t at = 0;
    const tr_tensor_t *tensor;
    tr_status_t rc;

    l->m->type = strcmp(wanted, tr_dtype_name(TR_F16)) == 0 ? TR_F16 : TR_BF16;
    if (strcmp(wanted, "auto") != 0 || l->st == NULL) {
        return TR_OK;
    }
    tr_model_tensor_next(&l->m->config, &at, &first);
    rc = tr_model_tensor_find(l->st, &first, &tensor, l->err);
    if (rc == TR_OK && tensor->dtype != TR_BF16) {
        l->m->type = TR_F16;
    }
    return rc;
}

/* x, [half] numbers at the front of the current staging buffer. */
static tr_status_t
load_half(loader_t *l, float *to, const float *x)
{
    uint32_t half = l->m->config.recipe.head_dim / 2;
    float *stage = (float *) next_stage(l);

    if (stage == NULL) {
        return failed(l);
    }
    memcpy(stage, x, half * sizeof(float));
    return send(l, to, TR_F32, TR_F32, half);
}

static tr_status_t
load_table(loader_t *l, uint32_t i)
{
    float inv_freq[TR_HEAD_DIM_MAX / 2], amp[TR_HEAD_DIM_MAX / 2];
    const tr_recipe_t *c = &l->m->config.recipe;
    uint32_t table = i == TR_CUDA_ANGLES_NONE ? TR_ROPE_NONE : i;
    tr_cuda_table_t *t = &l->m->rope[i];
    tr_status_t rc;

    tr_recipe_rope(c, table, true, inv_freq, amp);
    rc = load_half(l, t->inv_freq_long, inv_freq);
    tr_recipe_rope(c, table, false, inv_freq, amp);
    rc = rc == TR_OK ? load_half(l, t->inv_freq, inv_freq) : rc;
    return rc == TR_OK ? load_half(l, t->amp, amp) : rc;
}

/* What of each layer attention is told. */
static tr_status_t
load_layers(loader_t *l)
{
    const tr_recipe_t *r = &l->m->config.recipe;
    uint32_t *reach = l->m->reach != NULL ? (uint32_t *) next_stage(l) : NULL;
    const float **sinks;
    tr_status_t rc = TR_OK;

    for (uint32_t i = 0; i < r->layers && reach != NULL; i++) {
        reach[i] = r->layer[i].reach;
    }
    if (l->m->reach != NULL) {
        rc = reach == NULL ? failed(l)
                           : send(l, l->m->reach, TR_F32, TR_F32, r->layers);
    }
    if (rc != TR_OK || l->m->sinks == NULL) {
        return rc;
    }
    sinks = (const float **) next_stage(l);
    if (sinks == NULL) {
        return failed(l);
    }
    for (uint32_t i = 0; i < r->layers; i++) {
        sinks[i] = l->m->layers[i].part[TR_PART_SINKS];
    }
    return send(l, l->m->sinks, TR_F32, TR_F32,
                r->layers * sizeof(*sinks) / sizeof(float));
}

/* What keys lose, layer by layer. */
static tr_status_t
load_shift(loader_t *l)
{
    const tr_recipe_t *r = &l->m->config.recipe;
    size_t n = (size_t) r->kv_heads * r->head_dim;
    tr_status_t rc = TR_OK;

    for (uint32_t i = 0; rc == TR_OK && i < r->layers; i++) {
        const float *shift = tr_centre_shift(l->m->centre, i);
        float *stage = shift != NULL ? (float *) next_stage(l) : NULL;

        if (shift != NULL && stage == NULL) {
            return failed(l);
        }
        if (shift != NULL) {
            memcpy(stage, shift, n * sizeof(float));
            rc = send(l, l->m->key_shift + i * n, TR_F32, TR_F32, n);
        }
    }
    return rc;
}

static tr_status_t
load_all(loader_t *l)
{
    tr_model_tensor_t t;
    tr_status_t rc = TR_OK;
    uint32_t at = 0;

    for (uint32_t i = 0; i <= TR_CUDA_ANGLES_NONE && rc == TR_OK; i++) {
        rc = l->m->rope[i].used ? load_table(l, i) : rc;
    }
    rc = rc == TR_OK ? load_layers(l) : rc;
    rc = rc == TR_OK ? load_shift(l) : rc;
    while (rc == TR_OK && tr_model_tensor_next(&l->m->config, &at, &t)) {
        rc = is_packed(l, &t)            ? load_packed(l, &t, at)
             : t.part < TR_PART_MATRICES ? load_matrix(l, &t)
                                         : load_vector(l, &t);
    }
    if (rc == TR_OK && l->m->cuda->stream_wait(l->m->stream) != 0) {
        rc = failed(l);
    }
    return rc;
}

/* ---- open --------------------------------------------------------------- */

static tr_status_t
open_loader(loader_t *l)
{
    const tr_device_t *cuda = l->m->cuda;

    l->thread_pool = tr_thread_pool_new(COPY_THREADS);
    if (l->thread_pool == NULL) {
        return tr_error_set(l->err, TR_ERR_NOMEM, "threads",
                            "cannot start %d threads", COPY_THREADS);
    }
    for (int i = 0; i < 2; i++) {
        l->staging[i] = cuda->pin(STAGE_BYTES);
        l->bounce[i] = cuda->alloc(STAGE_BYTES);
        if (l->staging[i] == NULL || l->bounce[i] == NULL
            || cuda->event_open(&l->passed[i]) != 0) {
            return tr_model_cuda_no_memory(l->m, "buffers for loading weights",
                                           2 * (size_t) STAGE_BYTES, l->err);
        }
    }
    return TR_OK;
}

static void
close_loader(loader_t *l)
{
    const tr_device_t *cuda = l->m->cuda;

    cuda->stream_wait(l->m->stream); /* nothing is on its way any more */
    for (int i = 0; i < 2; i++) {
        if (l->passed[i] != NULL) {
            cuda->event_close(l->passed[i]);
        }
        if (l->bounce[i] != NULL) {
            cuda->release(l->bounce[i]);
        }
        if (l->staging[i] != NULL) {
            cuda->unpin(l->staging[i]);
        }
    }
    tr_thread_pool_free(l->thread_pool);
    tr_safetensors_close(l->st);
}

static tr_status_t
take_weights(tr_model_cuda_t *m, tr_error_t *err)
{
    for (uint32_t l = 0; l < m->config.recipe.layers; l++) {
        uint8_t table = m->config.recipe.layer[l].rope;

        m->rope[table == TR_ROPE_NONE ? TR_CUDA_ANGLES_NONE : table]
            .used = true;
    }
    m->cost.bytes = m->weights_size = layout(m, NULL);
    m->weights = m->cuda->alloc(m->weights_size);
    if (m->weights == NULL) {
        return tr_model_cuda_no_memory(m, "the weights", m->weights_size, err);
    }
    layout(m, m->weights);
    return TR_OK;
}

tr_status_t
tr_model_cuda_load(tr_model_cuda_t *m, const tr_model_cuda_options_t *options,
                   tr_error_t *err)
{
    loader_t l = { .m = m, .seed = options->dummy_seed, .err = err };
    tr_status_t rc = TR_OK;

    l.progress = tr_load_progress(tr_recipe_parameters(&m->config.recipe));
    if (strcmp(options->load_format, "dummy") != 0) {
        rc = tr_model_tensors_open(&m->config, options->dir, &l.st, err);
    }
    if (rc == TR_OK && l.st != NULL) {
        tr_model_tensors_cost(&m->config, l.st, &m->cost);
    }
    if (rc == TR_OK) {
        rc = choose_type(&l, options->dtype);
    }
    m->layers = calloc(m->config.recipe.layers, sizeof(m->layers[0]));
    if (rc == TR_OK && m->layers == NULL) {
        rc = tr_error_set(err, TR_ERR_NOMEM, "model", "out of memory");
    }
    if (rc == TR_OK) {
        rc = open_loader(&l);
    }
    if (rc == TR_OK && l.st != NULL && options->equalise) {
        rc = tr_equalise_choose(&m->config, l.st,
                                (tr_stream_t){ COPY_THREADS, l.thread_pool },
                                options->centre, &m->equalise, err);
    }
    if (rc == TR_OK && l.st != NULL && options->centre) {
        rc = tr_centre_choose(&m->config, l.st, m->equalise, &m->centre, err);
    }
    if (rc == TR_OK && options->packed
        && (m->type == TR_BF16 || strcmp(options->dtype, "auto") == 0)) {
        m->fp8 = options->fp8 == TR_FP8_ALWAYS
                 || (options->fp8 == TR_FP8_DECLARED
                     && m->config.quantization.fp8_activations);
        rc = tr_model_cuda_choose_forms(m, l.st, err);
    }
    if (rc == TR_OK) {
        rc = take_weights(m, err);
    }
    if (rc == TR_OK) {
        rc = load_all(&l);
    }
    close_loader(&l);
    return rc;
}
