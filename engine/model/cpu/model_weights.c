/*
 * Fills a model's weights, from safetensors or, for `load_format dummy`, from
 * a seed.
 *
 * A matrix of 16 bits whose rows stand in the file as a product reads them stays
 * there, mapped: it is there as soon as the file is in the page cache, and takes no
 * memory of its own.  All other
 * weights live in one arena, in the backend's layout.  Query, key and value
 * rows form one matrix, gate and up rows another, so that a step has four
 * products a layer.  Integers of a file stay so, or numbers become such
 * (model_codes.c).  Else a matrix has the 16-bit type of its tensors, where all
 * have the same and nothing that is done to them needs more; else FP32.  Which
 * of these it is does not change a bit of the results.  Tensors are expanded in
 * blocks of rows by all threads, and a file's pages are given back as soon as
 * they were read, so that no more than the arena stays resident.  Equalisation
 * (equalise.h) and rotation (rotate.h) change what passes.
 */
#include "model.h"

#include <math.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/thread_pool.h"

#include "engine/config/log.h"
#include "engine/model/load_progress.h"
#include "engine/model/model_tensors.h"
#include "engine/model/weights/packed.h"

#define BLOCK_ROWS 64u
#define LOGIT_ROWS 96u /* of a step that has fewer rows, at most (model.c) */

/* What a matrix is kept as. */
typedef struct {
    tr_dtype_t dtype;
    tr_cpu_codes_t codes;
    bool mapped;
} type_t;

typedef struct {
    tr_model_t *m;
    const tr_model_options_t *options;
    tr_safetensors_t *st; /* NULL: dummy */
    uint64_t seed;
    type_t (*types)[TR_PART_MATRICES]; /* of the model, then of each layer */
    void *codes_work;                  /* products of codes share it */
    uint32_t codes_columns;            /* the widest of them has so many */
    uint32_t expanded;                 /* quantised tensors that are not kept */
    size_t at; /* next free byte of the arena, or the count */
    tr_load_progress_t progress;
    tr_error_t *err;
} loader_t;

static void *
take_bytes(loader_t *l, size_t bytes)
{
    void *p = l->m->weights ? l->m->weights + l->at : NULL;

    l->at += tr_pad(bytes, 64);
    return p;
}

static void *
take(loader_t *l, size_t floats)
{
    return take_bytes(l, floats * sizeof(float));
}

/* Of the part, as types has it. */
static type_t *
type_of(loader_t *l, tr_part_t part, uint32_t layer)
{
    return &l->types[tr_part_layered(part) ? 1 + layer : 0][part];
}

/* The parts of the model, or of a layer. */
static void
take_parts(loader_t *l, tr_weights_t *w, bool layered, uint32_t layer)
{
    for (tr_part_t part = 0; part < TR_PARTS; part++) {
        tr_part_shape_t s = tr_part_shape(&l->m->config.recipe, part, layer);

        if (tr_part_layered(part) != layered || s.rows == 0) {
            continue;
        }
        if (part < TR_PART_MATRICES) {
            uint32_t n = tr_part_experts(&l->m->config.recipe, part);
            const type_t *type = type_of(l, part, layer);
            tr_cpu_matrix_t m = { .n = s.rows / n,
                                  .k = s.columns,
                                  .dtype = type->dtype,
                                  .codes = type->codes };

            m.codes.work = l->codes_work;
            if (type->mapped && l->m->kernels->matrix_maps(m.n, m.k, m.dtype)) {
                m.mapped = take_bytes(l, (size_t) n * (m.n / TR_COL_PAD)
                                             * sizeof(m.mapped[0]));
            } else {
                m.data = take_bytes(
                    l, n * tr_model_matrix_bytes(l->m->kernels, &m));
            }
            w->matrix[part] = m;
        } else {
            w->vector[part] = take(l, s.rows);
        }
    }
}

static void
take_ropes(loader_t *l)
{
    uint32_t half = l->m->config.recipe.head_dim / 2;

    for (uint32_t i = 0; i <= TR_ANGLES_NONE; i++) {
        l->m->rope[i].inv_freq = take(l, half);
        l->m->rope[i].inv_freq_long = take(l, half);
        l->m->rope[i].amp = take(l, half);
    }
    l->m->reach = take(l, l->m->config.recipe.layers);
}

static void
fill_ropes(tr_model_t *m)
{
    const tr_recipe_t *r = &m->config.recipe;

    for (uint32_t i = 0; i < r->layers; i++) {
        m->reach[i] = r->layer[i].reach;
        m->sinks[i] = m->layers[i].vector[TR_PART_SINKS];
    }
    for (uint32_t i = 0; i < r->layers; i++) {
        tr_angles_t *t = &m->rope[tr_model_table(&r->layer[i])];

        if (!t->used) {
            tr_recipe_rope(r, r->layer[i].rope, true, t->inv_freq_long, t->amp);
            tr_recipe_rope(r, r->layer[i].rope, false, t->inv_freq, t->amp);
            t->used = true;
        }
    }
}

/* Gives every weight its place in the arena; without one, only counts. */
static size_t
layout(loader_t *l)
{
    tr_model_t *m = l->m;

    l->at = 0;
    l->codes_work = take_bytes(l,
                               m->kernels->codes_work(m->max_rows > LOGIT_ROWS
                                                          ? m->max_rows
                                                          : LOGIT_ROWS,
                                                      l->codes_columns));
    take_parts(l, &m->root, false, 0);
    take_ropes(l);
    for (uint32_t i = 0; i < m->config.recipe.layers; i++) {
        take_parts(l, &m->layers[i], true, i);
    }
    m->sinks = take(l,
                    m->config.recipe.layers * sizeof(float *) / sizeof(float));
    return l->at;
}

/* Whether the model has a tensor's values as they are, or with another exponent. */
static bool
keeps_values(const tr_model_t *m, const tr_model_tensor_t *t, tr_dtype_t type)
{
    if (tr_rotate_rows(&m->config.recipe, m->rotate, t) != 0) {
        return false;
    }
    /* small numbers of F16 have not all bits left to be scaled down */
    return type == TR_BF16 || !tr_equalise_has(m->equalise, t);
}

static bool
same_codes(const tr_cpu_codes_t *a, const tr_cpu_codes_t *b)
{
    return a->codes == b->codes && a->group == b->group
           && a->scales == b->scales && a->zeros == b->zeros;
}

/* May a tensor's rows stay in the file? */
static bool
keeps_place(const loader_t *l, const tr_model_tensor_t *t,
            const tr_tensor_t *tensor)
{
    const tr_model_t *m = l->m;

    return l->options->mapped && tensor != NULL && tensor->packed == NULL
           && (uintptr_t) tensor->data % 2 == 0 && t->row % TR_COL_PAD == 0
           && m->kernels->matrix_maps(t->rows, t->columns, tensor->dtype)
           && tr_rotate_rows(&m->config.recipe, m->rotate, t) == 0
           && !tr_equalise_has(m->equalise, t)
           && !tr_model_tensor_reordered(&m->config.recipe, t, tensor);
}

/* A tensor more of a part, which is kept as all of them can be. */
static void
join_type(const loader_t *l, const tr_model_tensor_t *t,
          const tr_tensor_t *tensor, type_t *to)
{
    static const tr_cpu_codes_t none = { .codes = TR_CODES_NONE };
    tr_dtype_t dtype = tensor ? tensor->dtype : l->options->dummy_dtype;
    tr_cpu_codes_t codes = tr_model_codes(l->m, l->options, t, tensor);

    if (t->row == 0) { /* the part's first */
        *to = (type_t){ dtype, codes, true };
    }
    if (!keeps_values(l->m, t, dtype) || to->dtype != dtype) {
        to->dtype = TR_F32;
    }
    if (!same_codes(&to->codes, &codes)) {
        to->codes = none;
    }
    to->mapped = to->mapped && to->dtype == dtype
                 && codes.codes == TR_CODES_NONE && keeps_place(l, t, tensor);
}

/* The type of each matrix. */
static tr_status_t
choose_types(loader_t *l)
{
    const tr_model_t *m = l->m;
    tr_model_tensor_t t;
    tr_status_t rc = TR_OK;
    uint32_t at = 0;

    while (rc == TR_OK && tr_model_tensor_next(&m->config, &at, &t)) {
        const tr_tensor_t *tensor = NULL;

        if (t.part >= TR_PART_MATRICES) {
            continue;
        }
        if (l->st != NULL) {
            rc = tr_model_tensor_find(l->st, &t, &tensor, l->err);
        }
        if (rc == TR_OK) {
            join_type(l, &t, tensor, type_of(l, t.part, t.layer));
        }
    }
    return rc;
}

/* Counts what the types mean for memory. */
static void
count_codes(loader_t *l)
{
    tr_model_tensor_t t;
    uint32_t at = 0;

    while (tr_model_tensor_next(&l->m->config, &at, &t)) {
        const tr_tensor_t *tensor;
        bool codes;

        if (t.part >= TR_PART_MATRICES) {
            continue;
        }
        codes = type_of(l, t.part, t.layer)->codes.codes != TR_CODES_NONE;
        if (codes && t.columns > l->codes_columns) {
            l->codes_columns = t.columns;
        }
        tensor = l->st ? tr_model_tensor_named(l->st, t.name) : NULL;
        if (tensor != NULL && tensor->packed != NULL
            && !(codes && tr_model_keeps_codes(l->m, l->options, &t, tensor))) {
            tr_packed_say_expanded(tensor->packed);
            l->expanded++;
        }
    }
}

/* A matrix that is being filled, block by block, by the pool. */
typedef struct {
    loader_t *l;
    const tr_kernels_t *kernels;
    const tr_cpu_matrix_t *w;
    const tr_model_tensor_t *t;
    const tr_tensor_t *tensor; /* NULL: dummy */
    uint32_t grain;            /* rows of a block */
    uint64_t seed;             /* dummy */
    atomic_int failed;
} fill_t;

/* Elements that were read or made up become those of the model. */
static void
change(loader_t *l, const tr_model_tensor_t *t, uint32_t row, uint32_t rows,
       float *x)
{
    const tr_recipe_t *c = &l->m->config.recipe;

    if (tr_equalise_has(l->m->equalise, t)) {
        tr_equalise_scale(l->m->equalise, t, (size_t) row * t->columns,
                          (size_t) rows * t->columns, x);
    }
    if (tr_rotate_rows(c, l->m->rotate, t) != 0) {
        tr_rotate_weights(c, t, row, rows, x);
    }
}

/* Stores rows [row, row + n) of a tensor, of which an expert's matrix begins at
 * every w->n-th of the part. */
static void
pack_rows(const fill_t *a, uint32_t row, uint32_t n, const void *src,
          tr_dtype_t dtype)
{
    size_t step = (size_t) a->w->k * tr_dtype_size(dtype);
    const uint8_t *from = src;

    row += a->t->row;
    while (n > 0) {
        uint32_t expert = row / a->w->n, at = row % a->w->n;
        uint32_t take = n < a->w->n - at ? n : a->w->n - at;
        tr_cpu_matrix_t w = tr_model_expert(a->kernels, a->w, expert);

        a->kernels->matrix_pack(&w, at, take, from, dtype);
        from += take * step;
        row += take;
        n -= take;
    }
}

static void
round_all(float *x, size_t n, tr_dtype_t type)
{
    float rounded;

    for (size_t i = 0; type != TR_F32 && i < n; i++) {
        tr_float_store(&rounded, 0, type, x[i]);
        x[i] = tr_float_load(&rounded, 0, type);
    }
}

/* By way of a block in FP32. */
static void
block_rows(void *arg, uint32_t first, uint32_t end, uint32_t worker)
{
    fill_t *a = arg;
    size_t k = a->w->k;
    float *block = malloc(a->grain * k * sizeof(float));

    (void) worker;
    if (block == NULL) {
        atomic_store(&a->failed, 1);
        return;
    }
    for (uint32_t r = first; r < end; r += a->grain) {
        uint32_t n = end - r < a->grain ? end - r : a->grain;

        if (a->tensor == NULL) {
            tr_model_fill_random(block, n * k, a->seed, r * k,
                                 a->l->m->config.init_range);
            round_all(block, n * k, a->l->options->dummy_dtype);
        }
        for (uint32_t i = 0; a->tensor != NULL && i < n; i++) {
            tr_model_row_load(&a->l->m->config.recipe, a->t, a->tensor, r + i,
                              block + i * k);
        }
        change(a->l, a->t, r, n, block);
        pack_rows(a, r, n, block, TR_F32);
    }
    free(block);
}

/* As they are in the file. */
static void
tensor_rows(void *arg, uint32_t first, uint32_t end, uint32_t worker)
{
    fill_t *a = arg;
    const tr_tensor_t *t = a->tensor;
    size_t bytes = (size_t) a->w->k * tr_dtype_size(t->dtype);

    (void) worker;
    pack_rows(a, first, end - first, (const uint8_t *) t->data + first * bytes,
              t->dtype);
}

/* Codes as they are in the file. */
static void
code_rows(void *arg, uint32_t first, uint32_t end, uint32_t worker)
{
    fill_t *a = arg;
    void *room = malloc(tr_model_codes_room(a->w));

    (void) worker;
    if (room == NULL) {
        atomic_store(&a->failed, 1);
        return;
    }
    for (uint32_t r = first; r < end; r++) {
        tr_model_codes_row(a->l->m, a->w, a->t, a->tensor, r, room);
    }
    free(room);
}

/* Where the rows of each panel are. */
static tr_status_t
map_rows(loader_t *l, const tr_cpu_matrix_t *w, const tr_model_tensor_t *t,
         const tr_tensor_t *tensor)
{
    const void **panel = (const void **) w->mapped + t->row / TR_COL_PAD;
    size_t bytes = (size_t) TR_COL_PAD * w->k * tr_dtype_size(w->dtype);

    for (uint32_t i = 0; i < t->rows / TR_COL_PAD; i++) {
        panel[i] = (const uint8_t *) tensor->data + i * bytes;
    }
    l->m->mapped += tensor->size;
    return tr_safetensors_keep(tensor, l->err);
}

static tr_status_t
load_matrix(loader_t *l, const tr_cpu_matrix_t *w, const tr_model_tensor_t *t)
{
    tr_model_t *m = l->m;
    uint32_t together = tr_rotate_rows(&m->config.recipe, m->rotate, t);
    fill_t a = { .l = l,
                 .kernels = m->kernels,
                 .w = w,
                 .t = t,
                 .grain = together < BLOCK_ROWS ? BLOCK_ROWS : together,
                 .seed = tr_model_tensor_seed(l->seed, t->name) };
    bool as_is = false, codes = false;
    tr_status_t rc;

    tr_load_progress_more(&l->progress, (uint64_t) t->rows * w->k);
    if (l->st != NULL) {
        rc = tr_model_tensor_find(l->st, t, &a.tensor, l->err);
        if (rc == TR_OK) {
            rc = tr_tensor_check(a.tensor, l->err);
        }
        if (rc != TR_OK || w->mapped != NULL) {
            return rc == TR_OK ? map_rows(l, w, t, a.tensor) : rc;
        }
        codes = w->codes.codes != TR_CODES_NONE
                && tr_model_keeps_codes(m, l->options, t, a.tensor);
        as_is = together == 0 && !tr_equalise_has(m->equalise, t)
                && !tr_model_tensor_reordered(&m->config.recipe, t, a.tensor);
    }
    tr_thread_pool_run(m->stream.thread_pool, m->stream.threads, t->rows,
                       a.grain,
                       codes   ? code_rows
                       : as_is ? tensor_rows
                               : block_rows,
                       &a);
    if (a.tensor != NULL) {
        tr_safetensors_release(a.tensor);
    }
    return a.failed ? tr_error_set(l->err, TR_ERR_NOMEM, "", "out of memory")
                    : TR_OK;
}

/* A norm (dummy: ones) or a bias. */
static tr_status_t
load_vector(loader_t *l, float *x, const tr_model_tensor_t *t)
{
    bool norm = t->part < TR_PART_QKV_BIAS;
    const tr_tensor_t *tensor;
    tr_status_t rc;

    x += t->row;
    if (l->st == NULL) {
        tr_model_fill_random(x, t->rows, tr_model_tensor_seed(l->seed, t->name),
                             0, l->m->config.init_range);
        for (uint32_t i = 0; norm && i < t->rows; i++) {
            x[i] = 1;
        }
        change(l, t, 0, t->rows, x);
        return TR_OK;
    }
    rc = tr_model_tensor_find(l->st, t, &tensor, l->err);
    if (rc != TR_OK) {
        return rc;
    }
    tr_model_vector_expand(&l->m->config.recipe, t, tensor, x);
    change(l, t, 0, t->rows, x);
    tr_safetensors_release(tensor);
    return TR_OK;
}

static tr_status_t
load_all(loader_t *l)
{
    tr_model_t *m = l->m;
    tr_model_tensor_t t;
    tr_status_t rc = TR_OK;
    uint32_t at = 0;

    while (rc == TR_OK && tr_model_tensor_next(&m->config, &at, &t)) {
        tr_weights_t *w = tr_part_layered(t.part) ? &m->layers[t.layer]
                                                  : &m->root;

        rc = t.part < TR_PART_MATRICES ? load_matrix(l, &w->matrix[t.part], &t)
                                       : load_vector(l, w->vector[t.part], &t);
    }
    return rc;
}

/* What comes before the arena: the files, what is done to their weights, and the
 * types of the matrices. */
static tr_status_t
prepare(loader_t *l, const tr_model_options_t *options)
{
    tr_model_t *m = l->m;
    tr_status_t rc = TR_OK;

    m->layers = calloc(m->config.recipe.layers, sizeof(m->layers[0]));
    l->types = calloc(1 + m->config.recipe.layers, sizeof(l->types[0]));
    if (m->layers == NULL || l->types == NULL) {
        return tr_error_set(l->err, TR_ERR_NOMEM, "model", "out of memory");
    }
    if (strcmp(options->load_format, "dummy") != 0) {
        rc = tr_model_tensors_open(&m->config, options->dir, &l->st, l->err);
    }
    if (rc == TR_OK && l->st != NULL) {
        tr_model_tensors_cost(&m->config, l->st, &m->cost);
    }
    if (rc == TR_OK && l->st != NULL && options->equalise) {
        rc = tr_equalise_choose(&m->config, l->st, m->stream, options->centre,
                                &m->equalise, l->err);
    }
    if (rc == TR_OK && l->st != NULL && options->centre) {
        rc = tr_centre_choose(&m->config, l->st, m->equalise, &m->centre,
                              l->err);
    }
    rc = rc == TR_OK ? choose_types(l) : rc;
    if (rc == TR_OK) {
        count_codes(l);
    }
    return rc;
}

static tr_status_t
make_arena(loader_t *l)
{
    tr_model_t *m = l->m;

    m->weights_size = layout(l);
    m->weights = tr_arena_map(m->weights_size);
    if (m->weights == NULL) {
        return tr_error_set(l->err, TR_ERR_NOMEM, "model",
                            "out of memory: the weights need %zu bytes",
                            m->weights_size);
    }
    layout(l);
    fill_ropes(m);
    return TR_OK;
}

tr_status_t
tr_model_weights_load(tr_model_t *m, const tr_model_options_t *options,
                      tr_error_t *err)
{
    loader_t l = {
        .m = m, .options = options, .seed = options->dummy_seed, .err = err
    };
    tr_status_t rc;

    l.progress = tr_load_progress(tr_recipe_parameters(&m->config.recipe));
    rc = prepare(&l, options);
    if (rc == TR_OK) {
        rc = make_arena(&l);
    }
    if (rc == TR_OK) {
        tr_model_codes_say(m, l.expanded);
        rc = load_all(&l);
    }
    m->cost.bytes = m->weights_size + m->mapped;
    if (m->mapped != 0) {
        m->files = l.st;
    } else {
        tr_safetensors_close(l.st);
    }
    free(l.types);
    return rc;
}
