/*
 * Fills a model's weights, from safetensors or, for `load_format dummy`, from
 * a seed.
 *
 * All weights live in one arena, FP32, in the backend's layout.  Query, key and
 * value rows form one matrix, gate and up rows another, so that a step has four
 * products a layer.  Tensors are expanded in blocks of rows by all threads, and
 * a file's pages are given back as soon as they were read, so that no more than
 * the arena stays resident.
 */
#include "model.h"

#include <math.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cpu/team.h>

#include "log.h"
#include "safetensors.h"

#define NAME_LEN 128
#define BLOCK_ROWS 64u

typedef struct {
    tr_model_t *m;
    tr_safetensors_t *st; /* NULL: dummy */
    uint64_t seed;
    size_t at;            /* next free byte of the arena, or the count */
    uint64_t done;        /* bytes expanded, for the log */
    struct timespec said; /* when progress was last logged */
    tr_error_t *err;
} loader_t;

static float *
take(loader_t *l, size_t floats)
{
    float *p = l->m->weights ? (float *) (l->m->weights + l->at) : NULL;

    l->at += tr_pad(floats * sizeof(float), 64);
    return p;
}

static void
take_matrix(loader_t *l, tr_matrix_t *w, size_t n, size_t k)
{
    w->n = (uint32_t) n;
    w->k = (uint32_t) k;
    w->data = take(l, l->m->kernels->matrix_floats(w->n, w->k));
}

/* Gives every weight its place in the arena; without one, only counts. */
static size_t
layout(loader_t *l)
{
    tr_model_t *m = l->m;
    const tr_model_config_t *c = &m->config;
    size_t q = (size_t) c->query_heads * c->head_dim;
    size_t kv = (size_t) c->kv_heads * c->head_dim;

    l->at = 0;
    take_matrix(l, &m->embed, c->vocab, c->hidden);
    m->head = m->embed;
    if (!c->tied) {
        take_matrix(l, &m->head, c->vocab, c->hidden);
    }
    m->final_norm = take(l, c->hidden);
    m->inv_freq = take(l, c->head_dim / 2);
    for (uint32_t i = 0; i < c->layers; i++) {
        tr_layer_t *w = &m->layers[i];

        w->input_norm = take(l, c->hidden);
        w->post_norm = take(l, c->hidden);
        w->q_norm = c->qk_norm ? take(l, c->head_dim) : NULL;
        w->k_norm = c->qk_norm ? take(l, c->head_dim) : NULL;
        w->qkv_bias = c->qkv_bias ? take(l, q + 2 * kv) : NULL;
        w->o_bias = c->o_bias ? take(l, c->hidden) : NULL;
        take_matrix(l, &w->qkv, q + 2 * kv, c->hidden);
        take_matrix(l, &w->o, c->hidden, q);
        take_matrix(l, &w->gate_up, 2 * (size_t) c->intermediate, c->hidden);
        take_matrix(l, &w->down, c->hidden, c->intermediate);
    }
    return l->at;
}

static void
say_progress(loader_t *l, uint64_t bytes)
{
    struct timespec now;

    l->done += bytes;
    clock_gettime(CLOCK_MONOTONIC, &now);
    if (now.tv_sec - l->said.tv_sec >= 2) {
        l->said = now;
        tr_log(TR_LEVEL_NOTICE, "loading weights percent=%.0f",
               100.0 * (double) l->done
                   / (4.0
                      * (double) tr_model_config_parameters(&l->m->config)));
    }
}

/* Finds a tensor of the shape [rows][columns], or [rows] with columns 0. */
static tr_status_t
find(loader_t *l, const char *name, uint64_t rows, uint64_t columns,
     const tr_tensor_t **out)
{
    const tr_tensor_t *t = tr_safetensors_find(l->st, name);
    char shape[128] = "";
    size_t at = 0;

    if (t == NULL) {
        return tr_error_set(l->err, TR_ERR_FORMAT, name,
                            "tensor \"%s\" is missing, config.json asks for it",
                            name);
    }
    if (t->n_dims == (columns ? 2u : 1u) && t->dims[0] == rows
        && (columns == 0 || t->dims[1] == columns)) {
        *out = t;
        return TR_OK;
    }
    for (uint32_t i = 0; i < t->n_dims && at < sizeof(shape); i++) {
        at += (size_t) snprintf(shape + at, sizeof(shape) - at, "%s%llu",
                                i ? ", " : "", (unsigned long long) t->dims[i]);
    }
    if (columns) {
        return tr_error_set(l->err, TR_ERR_FORMAT, name,
                            "%s: tensor \"%s\" has shape [%s], config.json "
                            "says [%llu, %llu]",
                            t->file, name, shape, (unsigned long long) rows,
                            (unsigned long long) columns);
    }
    return tr_error_set(l->err, TR_ERR_FORMAT, name,
                        "%s: tensor \"%s\" has shape [%s], config.json says "
                        "[%llu]",
                        t->file, name, shape, (unsigned long long) rows);
}

/* A number from (seed, tensor, element), the same on every machine. */
static inline uint64_t
mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static uint64_t
tensor_seed(uint64_t seed, const char *name)
{
    for (const char *p = name; *p; p++) {
        seed = mix(seed ^ (unsigned char) *p);
    }
    return seed;
}

/* Uniform with standard deviation `sd`. */
static void
fill_random(float *x, size_t n, uint64_t seed, size_t first, float sd)
{
    for (size_t i = 0; i < n; i++) {
        float u = (float) (mix(seed + first + i) >> 40) * 0x1p-24f;

        x[i] = (2 * u - 1) * sd * 1.7320508f;
    }
}

/* A matrix that is being filled, block by block, by the team. */
typedef struct {
    const tr_kernels_t *kernels;
    const tr_matrix_t *w;
    uint32_t row; /* of the matrix, where the tensor begins */
    const tr_tensor_t *tensor;
    uint64_t seed; /* dummy */
    float sd;
    atomic_int failed;
} fill_t;

static void
dummy_rows(void *arg, uint32_t first, uint32_t end, uint32_t worker)
{
    fill_t *a = arg;
    size_t k = a->w->k;
    float *block = malloc(BLOCK_ROWS * k * sizeof(float));

    (void) worker;
    if (block == NULL) {
        atomic_store(&a->failed, 1);
        return;
    }
    for (uint32_t r = first; r < end; r += BLOCK_ROWS) {
        uint32_t n = end - r < BLOCK_ROWS ? end - r : BLOCK_ROWS;

        fill_random(block, n * k, a->seed, r * k, a->sd);
        a->kernels->matrix_pack(a->w, a->row + r, n, block, TR_F32);
    }
    free(block);
}

static void
tensor_rows(void *arg, uint32_t first, uint32_t end, uint32_t worker)
{
    fill_t *a = arg;
    const tr_tensor_t *t = a->tensor;
    size_t bytes = (size_t) a->w->k * (t->dtype == TR_F32 ? 4 : 2);

    (void) worker;
    a->kernels->matrix_pack(a->w, a->row + first, end - first,
                            (const uint8_t *) t->data + first * bytes,
                            t->dtype);
}

static tr_status_t
dummy_matrix(loader_t *l, const tr_matrix_t *w, uint32_t row, uint32_t rows,
             const char *name)
{
    fill_t a = { .kernels = l->m->kernels,
                 .w = w,
                 .row = row,
                 .seed = tensor_seed(l->seed, name),
                 .sd = l->m->config.init_range };

    tr_team_run(l->m->stream.team, l->m->stream.threads, rows, BLOCK_ROWS,
                dummy_rows, &a);
    return a.failed ? tr_error_set(l->err, TR_ERR_NOMEM, "", "out of memory")
                    : TR_OK;
}

/* Fills rows [row, row + rows) of a matrix from the tensor `name`. */
static tr_status_t
load_matrix(loader_t *l, const tr_matrix_t *w, uint32_t row, uint32_t rows,
            const char *name)
{
    fill_t a = { .kernels = l->m->kernels, .w = w, .row = row };
    const tr_tensor_t *t;
    tr_status_t rc;

    say_progress(l, (uint64_t) rows * w->k * sizeof(float));
    if (l->st == NULL) {
        return dummy_matrix(l, w, row, rows, name);
    }
    rc = find(l, name, rows, w->k, &t);
    if (rc != TR_OK) {
        return rc;
    }
    a.tensor = t;
    tr_team_run(l->m->stream.team, l->m->stream.threads, rows, BLOCK_ROWS,
                tensor_rows, &a);
    tr_safetensors_release(t);
    return TR_OK;
}

/* Fills n floats from the tensor `name`: a norm (dummy: ones) or a bias. */
static tr_status_t
load_vector(loader_t *l, float *x, uint32_t n, const char *name, bool norm)
{
    const tr_tensor_t *t;
    tr_status_t rc;

    if (l->st == NULL) {
        fill_random(x, n, tensor_seed(l->seed, name), 0,
                    norm ? 0 : l->m->config.init_range);
        for (uint32_t i = 0; norm && i < n; i++) {
            x[i] = 1;
        }
        return TR_OK;
    }
    rc = find(l, name, n, 0, &t);
    if (rc != TR_OK) {
        return rc;
    }
    tr_tensor_expand(t, x);
    tr_safetensors_release(t);
    return TR_OK;
}

static tr_status_t
load_attention(loader_t *l, tr_layer_t *w, uint32_t layer)
{
    static const char *const parts[] = { "q", "k", "v" };
    const tr_model_config_t *c = &l->m->config;
    uint32_t q = c->query_heads * c->head_dim, kv = c->kv_heads * c->head_dim;
    const uint32_t rows[] = { q, kv, kv };
    char name[NAME_LEN];
    tr_status_t rc = TR_OK;

#define NAME(...) (snprintf(name, sizeof(name), __VA_ARGS__), name)
    for (uint32_t i = 0, row = 0; i < 3 && rc == TR_OK; row += rows[i++]) {
        rc = load_matrix(l, &w->qkv, row, rows[i],
                         NAME("model.layers.%u.self_attn.%s_proj.weight", layer,
                              parts[i]));
        if (rc == TR_OK && w->qkv_bias != NULL) {
            rc = load_vector(l, w->qkv_bias + row, rows[i],
                             NAME("model.layers.%u.self_attn.%s_proj.bias",
                                  layer, parts[i]),
                             false);
        }
    }
    if (rc == TR_OK) {
        rc = load_matrix(l, &w->o, 0, c->hidden,
                         NAME("model.layers.%u.self_attn.o_proj.weight",
                              layer));
    }
    if (rc == TR_OK && w->o_bias != NULL) {
        rc = load_vector(l, w->o_bias, c->hidden,
                         NAME("model.layers.%u.self_attn.o_proj.bias", layer),
                         false);
    }
    if (rc == TR_OK && w->q_norm != NULL) {
        rc = load_vector(l, w->q_norm, c->head_dim,
                         NAME("model.layers.%u.self_attn.q_norm.weight", layer),
                         true);
    }
    if (rc == TR_OK && w->k_norm != NULL) {
        rc = load_vector(l, w->k_norm, c->head_dim,
                         NAME("model.layers.%u.self_attn.k_norm.weight", layer),
                         true);
    }
    return rc;
}

static tr_status_t
load_layer(loader_t *l, uint32_t layer)
{
    const tr_model_config_t *c = &l->m->config;
    tr_layer_t *w = &l->m->layers[layer];
    char name[NAME_LEN];
    tr_status_t rc = load_attention(l, w, layer);

    if (rc == TR_OK) {
        rc = load_matrix(l, &w->gate_up, 0, c->intermediate,
                         NAME("model.layers.%u.mlp.gate_proj.weight", layer));
    }
    if (rc == TR_OK) {
        rc = load_matrix(l, &w->gate_up, c->intermediate, c->intermediate,
                         NAME("model.layers.%u.mlp.up_proj.weight", layer));
    }
    if (rc == TR_OK) {
        rc = load_matrix(l, &w->down, 0, c->hidden,
                         NAME("model.layers.%u.mlp.down_proj.weight", layer));
    }
    if (rc == TR_OK) {
        rc = load_vector(l, w->input_norm, c->hidden,
                         NAME("model.layers.%u.input_layernorm.weight", layer),
                         true);
    }
    if (rc == TR_OK) {
        rc = load_vector(l, w->post_norm, c->hidden,
                         NAME("model.layers.%u.post_attention_layernorm.weight",
                              layer),
                         true);
    }
    return rc;
#undef NAME
}

static tr_status_t
load_all(loader_t *l)
{
    tr_model_t *m = l->m;
    const tr_model_config_t *c = &m->config;
    tr_status_t rc;

    rc = load_matrix(l, &m->embed, 0, c->vocab, "model.embed_tokens.weight");
    if (rc == TR_OK && !c->tied) {
        rc = load_matrix(l, &m->head, 0, c->vocab, "lm_head.weight");
    }
    if (rc == TR_OK) {
        rc = load_vector(l, m->final_norm, c->hidden, "model.norm.weight",
                         true);
    }
    for (uint32_t i = 0; i < c->layers && rc == TR_OK; i++) {
        rc = load_layer(l, i);
    }
    return rc;
}

tr_status_t
tr_model_weights_load(tr_model_t *m, const tr_model_options_t *options,
                      tr_error_t *err)
{
    loader_t l = { .m = m, .seed = options->dummy_seed, .err = err };
    tr_status_t rc;

    clock_gettime(CLOCK_MONOTONIC, &l.said);
    m->layers = calloc(m->config.layers, sizeof(m->layers[0]));
    if (m->layers != NULL) {
        m->weights_size = layout(&l);
        m->weights = tr_arena_map(m->weights_size);
    }
    if (m->layers == NULL || m->weights == NULL) {
        return tr_error_set(err, TR_ERR_NOMEM, "model",
                            "out of memory: the weights need %zu bytes in FP32",
                            m->weights_size);
    }
    layout(&l);
    tr_model_config_rope(&m->config, m->inv_freq);
    if (strcmp(options->load_format, "dummy") != 0) {
        rc = tr_safetensors_open(options->dir, &l.st, err);
        if (rc != TR_OK) {
            return rc;
        }
    }
    rc = load_all(&l);
    tr_safetensors_close(l.st);
    return rc;
}
