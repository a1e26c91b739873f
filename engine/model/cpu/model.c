/*
 * model.h: the workspace, and the forward pass, layer by layer as the recipe
 * says (model_recipe.h).
 */
#include "model.h"

#include <math.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "kernels/thread_pool.h"

#include "engine/config/log.h"
#include "kernels/kernels.h"

/* Bytes of logits kept at once: with a vocabulary of 152k, 27 rows. */
#define LOGITS_BYTES (16u << 20)

void *
tr_arena_map(size_t size)
{
    void *p = mmap(NULL, size, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (p == MAP_FAILED) {
        return NULL;
    }
    madvise(p, size, MADV_HUGEPAGE); /* advice only */
    return p;
}

static uint32_t
widest_mlp(const tr_recipe_t *r)
{
    uint32_t n = r->intermediate;

    n = n > r->moe.width ? n : r->moe.width;
    return n > r->moe.shared ? n : r->moe.shared;
}

/* Lays out the workspace; with base NULL only counts. */
static size_t
layout(tr_model_t *m, uint8_t *base)
{
    const tr_recipe_t *c = &m->config.recipe;
    size_t rows = tr_pad(m->max_rows, TR_ROW_PAD) + TR_ROW_PAD;
    size_t logit_rows = tr_pad(m->logit_rows, TR_ROW_PAD) + TR_ROW_PAD;
    size_t q = (size_t) c->query_heads * c->head_dim;
    size_t kv = (size_t) c->kv_heads * c->head_dim, at = 0;

    m->ld_hidden = tr_pad(c->hidden, TR_COL_PAD);
    m->ld_qkv = tr_pad(q + 2 * kv, TR_COL_PAD);
    m->ld_attn = tr_pad(q, TR_COL_PAD);
    m->ld_gate_up = tr_pad(2 * (size_t) widest_mlp(c), TR_COL_PAD);
    m->ld_mlp = tr_pad(widest_mlp(c), TR_COL_PAD);
    m->ld_logits = tr_pad(c->vocab, TR_COL_PAD);
#define TAKE(field, bytes)                             \
    do {                                               \
        m->field = base ? (void *) (base + at) : NULL; \
        at += tr_pad(bytes, 64);                       \
    } while (0)
    TAKE(hidden, rows * m->ld_hidden * sizeof(float));
    TAKE(normed, rows * m->ld_hidden * sizeof(float));
    TAKE(qkv, rows * m->ld_qkv * sizeof(float));
    TAKE(attn, rows * m->ld_attn * sizeof(float));
    TAKE(gate_up, rows * m->ld_gate_up * sizeof(float));
    TAKE(mlp, rows * m->ld_mlp * sizeof(float));
    for (uint32_t i = 0; i <= TR_ANGLES_NONE; i++) {
        size_t angles = rows * c->head_dim * sizeof(float);

        if (m->rope[i].used) {
            TAKE(rope[i].of_rows, angles);
            m->rope[i].of_queries = m->rope[i].of_rows;
        }
        if (m->rope[i].used && c->query_temp.beta != 0) {
            TAKE(rope[i].of_queries, angles);
        }
    }
    TAKE(query_temp, rows * sizeof(float));
    if (c->moe.route.experts != 0) {
        size_t all = (size_t) m->max_rows * c->moe.route.top_k;
        size_t padded = tr_pad(all, TR_ROW_PAD) + TR_ROW_PAD;

        m->experts.ld_scores = tr_pad(c->moe.route.experts, TR_COL_PAD);
        TAKE(delta, rows * m->ld_hidden * sizeof(float));
        TAKE(experts.scores, rows * m->experts.ld_scores * sizeof(float));
        TAKE(experts.chosen, all * sizeof(uint32_t));
        TAKE(experts.place, all * sizeof(uint32_t));
        TAKE(experts.weight, all * sizeof(float));
        TAKE(experts.first, (c->moe.route.experts + 1) * sizeof(uint32_t));
        TAKE(experts.input, padded * m->ld_hidden * sizeof(float));
        TAKE(experts.output, padded * m->ld_hidden * sizeof(float));
    }
    TAKE(logits, logit_rows * m->ld_logits * sizeof(float));
    TAKE(attention_work,
         m->kernels->attention_work(&m->stream, m->max_rows, m->max_seqs,
                                    m->max_len, c->query_heads, c->kv_heads,
                                    c->head_dim));
#undef TAKE
    return at;
}

tr_status_t
tr_model_check(const tr_recipe_t *r, uint32_t rotate, tr_error_t *err)
{
    const tr_recipe_support_t support = {
        .name = "cpu",
        .can = TR_CAN_NORMS | TR_CAN_ROPES | TR_CAN_SCALES | TR_CAN_REACH
               | TR_CAN_EXPERTS,
        .biases = TR_BIAS_QKV | TR_BIAS_O,
        .qk_norms = 1u << TR_QK_NORM_NONE | 1u << TR_QK_NORM_HEAD
                    | 1u << TR_QK_NORM_ROW,
        .acts = tr_kernels_cpu(NULL)->acts,
    };
    tr_status_t rc = tr_recipe_check(r, &support, err);

    return rc == TR_OK ? tr_rotate_check(r, rotate, err) : rc;
}

tr_status_t
tr_model_open(const tr_model_options_t *options, tr_model_t **out,
              tr_error_t *err)
{
    tr_model_t *m = calloc(1, sizeof(*m));
    tr_status_t rc;

    if (m == NULL) {
        return tr_error_set(err, TR_ERR_NOMEM, "", "out of memory");
    }
    m->kernels = options->kernels;
    m->stream.threads = options->threads;
    m->stream.thread_pool = tr_thread_pool_new(options->threads);
    m->max_rows = options->max_rows;
    m->max_seqs = options->max_seqs;
    if (m->stream.thread_pool == NULL) {
        tr_model_free(m);
        return tr_error_set(err, TR_ERR_NOMEM, "threads",
                            "cannot start %d compute threads",
                            options->threads);
    }
    rc = tr_model_config_load(options->dir, options->ignore_config, &m->config,
                              err);
    if (rc == TR_OK) {
        m->rotate = tr_rotate_resolve(&m->config, options->rotate,
                                      options->packed,
                                      options->quantise != TR_CODES_NONE);
        rc = tr_model_check(&m->config.recipe, m->rotate, err);
    }
    if (rc == TR_OK) {
        rc = tr_model_weights_load(m, options, err);
    }
    if (rc != TR_OK) {
        tr_model_free(m);
        return rc;
    }
    m->max_len = tr_recipe_len(&m->config.recipe, options->max_len,
                               options->kv_memory);
    m->logit_rows = LOGITS_BYTES / sizeof(float) / m->config.recipe.vocab;
    m->logit_rows = m->logit_rows < 1 ? 1 : m->logit_rows;
    m->logit_rows = m->logit_rows < 96 ? m->logit_rows : 96;
    m->work_size = layout(m, NULL);
    m->work = tr_arena_map(m->work_size);
    if (m->work == NULL) {
        rc = tr_error_set(err, TR_ERR_NOMEM, "max_batch_tokens",
                          "out of memory: %zu bytes of workspace for %u rows",
                          m->work_size, m->max_rows);
        tr_model_free(m);
        return rc;
    }
    layout(m, m->work);
    *out = m;
    return TR_OK;
}

void
tr_model_free(tr_model_t *m)
{
    if (m == NULL) {
        return;
    }
    if (m->weights != NULL) {
        munmap(m->weights, m->weights_size);
    }
    if (m->work != NULL) {
        munmap(m->work, m->work_size);
    }
    tr_thread_pool_free(m->stream.thread_pool);
    tr_equalise_free(m->equalise);
    tr_centre_free(m->centre);
    tr_safetensors_close(m->files);
    free(m->layers);
    free(m);
}

/* What a launch of a layer needs to know; errors are summed up. */
typedef struct {
    tr_model_t *m;
    const tr_recipe_t *recipe;
    const tr_layer_recipe_t *layer;
    const tr_weights_t *w;
    uint32_t l, n; /* layer and rows */
} step_t;

/* normed = norm of x, or x itself when the layer has none there */
static const float *
norm(const step_t *t, const float *weight, int *rc)
{
    tr_model_t *m = t->m;

    if (weight == NULL) {
        return m->hidden;
    }
    *rc |= m->kernels->rmsnorm(&m->stream, m->hidden, m->ld_hidden, t->n, 1,
                               t->recipe->hidden, weight, t->recipe->norm_eps,
                               m->normed, m->ld_hidden);
    return m->normed;
}

static int
norm_heads(const step_t *t, float *x, uint32_t heads, const float *weight)
{
    tr_model_t *m = t->m;
    uint32_t n = t->recipe->head_dim;
    bool row = t->layer->qk_norm == TR_QK_NORM_ROW;

    return m->kernels->rmsnorm(&m->stream, x, m->ld_qkv, t->n, row ? 1 : heads,
                               row ? heads * n : n, weight, t->recipe->norm_eps,
                               x, m->ld_qkv);
}

/* x += scale * norm(y); weight NULL: y as it is. */
static int
add_output(const step_t *t, float *y, const float *weight)
{
    tr_model_t *m = t->m;
    const tr_recipe_t *c = t->recipe;
    int rc = 0;

    if (weight != NULL) {
        rc |= m->kernels->rmsnorm(&m->stream, y, m->ld_hidden, t->n, 1,
                                  c->hidden, weight, c->norm_eps, y,
                                  m->ld_hidden);
    }
    return rc
           | m->kernels->add_scaled(&m->stream, y, m->ld_hidden, t->n,
                                    c->hidden, c->residual_scale, m->hidden,
                                    m->ld_hidden);
}

/* x += scale * norm(input W^T + bias); weight and bias may be NULL.  What is
 * added goes through `normed`, which is free by then, unless it can be summed
 * up at once. */
static int
add_product(const step_t *t, tr_part_t part, const float *input, size_t ld,
            const float *bias, const float *weight)
{
    tr_model_t *m = t->m;
    const tr_kernels_t *k = m->kernels;
    bool direct = weight == NULL && t->recipe->residual_scale == 1;
    float *y = direct ? m->hidden : m->normed;
    int rc = k->matmul(&m->stream, &t->w->matrix[part], input, ld, t->n, y,
                       m->ld_hidden, direct);

    if (bias != NULL) {
        rc |= k->add_bias(&m->stream, y, m->ld_hidden, t->n, bias,
                          t->recipe->hidden);
    }
    return direct ? rc : rc | add_output(t, y, weight);
}

/* Rows of this layer's input go to where they are kept, or come from there. */
static void
move_inputs(const step_t *t, const tr_rows_t *rows, float *x, bool keep)
{
    tr_model_t *m = t->m;

    for (uint32_t q = 0; q < rows->n_seqs && m->inputs != NULL; q++) {
        const uint32_t *chunks = m->seq_inputs[q];

        for (uint32_t r = rows->seq_row[q];
             chunks != NULL && r < rows->seq_row[q + 1]; r++) {
            uint8_t *there = tr_kv_inputs_row(m->inputs, chunks,
                                              rows->row_pos[r], t->l);
            float *here = x + r * m->ld_hidden;

            memcpy(keep ? (void *) there : here, keep ? (void *) here : there,
                   m->inputs->row_bytes);
        }
    }
}

/* Keys go into the cache behind RoPE, centred (centre.h), and in the basis that
 * the engine keeps them in (rotate.h); queries are turned alike. */
static int
store(const step_t *t, const tr_kv_view_t *kv, const tr_rows_t *rows)
{
    tr_model_t *m = t->m;
    const tr_recipe_t *c = t->recipe;
    const tr_kernels_t *k = m->kernels;
    const tr_stream_t *s = &m->stream;
    const tr_angles_t *angles = &m->rope[tr_model_table(t->layer)];
    uint32_t dim = c->head_dim, heads = c->query_heads;
    float *keys = m->qkv + (size_t) heads * dim;
    const float *values = keys + (size_t) c->kv_heads * dim;
    const float *turn = angles->of_rows; /* by kv_append */
    const float *shift = tr_centre_shift(m->centre, t->l);
    int rc = k->rope(s, m->qkv, m->ld_qkv, t->n, heads, dim,
                     angles->of_queries);

    if (shift != NULL || (m->rotate & TR_ROTATE_KEYS)) {
        rc |= k->rope(s, keys, m->ld_qkv, t->n, c->kv_heads, dim, turn);
        turn = NULL;
    }
    if (shift != NULL) {
        rc |= k->add_bias(s, keys, m->ld_qkv, t->n, shift, c->kv_heads * dim);
    }
    if (m->rotate & TR_ROTATE_KEYS) {
        rc |= k->hadamard(s, m->qkv, m->ld_qkv, t->n, heads + c->kv_heads, dim);
    }
    return rc | k->kv_append(s, kv, t->l, rows, keys, values, m->ld_qkv, turn);
}

/* Queries of x, and its keys and values into the cache. */
static int
project(const step_t *t, const tr_kv_view_t *kv, const tr_rows_t *rows,
        const float *x)
{
    tr_model_t *m = t->m;
    const tr_recipe_t *c = t->recipe;
    const tr_kernels_t *k = m->kernels;
    const tr_stream_t *s = &m->stream;
    const tr_cpu_matrix_t *qkv = &t->w->matrix[TR_PART_QKV];
    float *const *v = t->w->vector;
    float *keys = m->qkv + (size_t) c->query_heads * c->head_dim;
    int rc = k->matmul(s, qkv, x, m->ld_hidden, t->n, m->qkv, m->ld_qkv, 0);

    if (t->layer->biases & TR_BIAS_QKV) {
        rc |= k->add_bias(s, m->qkv, m->ld_qkv, t->n, v[TR_PART_QKV_BIAS],
                          qkv->n);
    }
    if (t->layer->qk_norm != TR_QK_NORM_NONE) {
        rc |= norm_heads(t, m->qkv, c->query_heads, v[TR_PART_Q_NORM]);
        rc |= norm_heads(t, keys, c->kv_heads, v[TR_PART_K_NORM]);
    }
    return rc | store(t, kv, rows);
}

static int
attention_half(const step_t *t, const tr_kv_view_t *kv, const tr_rows_t *rows)
{
    tr_model_t *m = t->m;
    const tr_recipe_t *c = t->recipe;
    const tr_kernels_t *k = m->kernels;
    const tr_stream_t *s = &m->stream;
    float *const *v = t->w->vector;
    int rc = 0;
    const float *x = norm(t, v[TR_PART_ATTN_NORM], &rc);

    move_inputs(t, rows, (float *) (uintptr_t) x, true);
    rc |= project(t, kv, rows, x);
    if (m->guard != NULL) {
        tr_kv_guard_take(m->guard, t->l, rows, m->qkv, m->ld_qkv);
    }
    rc |= k->attention(s, kv, t->l, rows, m->qkv, m->ld_qkv, c->query_heads,
                       c->attn_scale, m->attn, m->ld_attn, m->attention_work);
    return rc
           | add_product(t, TR_PART_O, m->attn, m->ld_attn, v[TR_PART_O_BIAS],
                         v[TR_PART_POST_ATTN_NORM]);
}

static int
mlp_half(const step_t *t)
{
    tr_model_t *m = t->m;
    const tr_kernels_t *k = m->kernels;
    const tr_stream_t *s = &m->stream;
    const tr_cpu_matrix_t *gate_up = &t->w->matrix[TR_PART_GATE_UP];
    uint32_t n = t->n, width = t->recipe->intermediate;
    int rc = 0;
    const float *x = norm(t, t->w->vector[TR_PART_MLP_NORM], &rc);

    if (t->layer->experts) {
        rc |= tr_model_experts(m, t->layer, t->w, x, n, m->delta);
        return rc
               | add_output(t, m->delta, t->w->vector[TR_PART_POST_MLP_NORM]);
    }
    if (n <= TR_GATED_ROWS && width % TR_COL_PAD == 0) {
        rc |= k->gated(s, t->layer->act, gate_up, x, m->ld_hidden, n, m->mlp,
                       m->ld_mlp);
    } else {
        rc |= k->matmul(s, gate_up, x, m->ld_hidden, n, m->gate_up,
                        m->ld_gate_up, 0);
        rc |= k->act_mul(s, t->layer->act, m->gate_up, m->ld_gate_up, n, width,
                         m->mlp, m->ld_mlp);
    }
    return rc
           | add_product(t, TR_PART_DOWN, m->mlp, m->ld_mlp, NULL,
                         t->w->vector[TR_PART_POST_MLP_NORM]);
}

/* Of one table, for runs of sequences that are all long or all not. */
static int
turn_rows(tr_model_t *m, const tr_rows_t *rows, const tr_angles_t *t,
          const float *temp, float *out)
{
    uint32_t half = m->config.recipe.head_dim / 2, s = 0;
    int rc = 0;

    if (m->seq_long == NULL) {
        return m->kernels->rope_angles(&m->stream, rows->row_pos, rows->n_rows,
                                       t->inv_freq, t->amp, temp, half, out);
    }
    while (s < rows->n_seqs) {
        bool is_long = m->seq_long[s];
        uint32_t row = rows->seq_row[s];

        while (s < rows->n_seqs && m->seq_long[s] == is_long) {
            s++;
        }
        rc |= m->kernels->rope_angles(&m->stream, rows->row_pos + row,
                                      rows->seq_row[s] - row,
                                      is_long ? t->inv_freq_long : t->inv_freq,
                                      t->amp, temp ? temp + row : NULL, half,
                                      out + (size_t) row * 2 * half);
    }
    return rc;
}

/* Of every table that a layer uses. */
static int
make_angles(tr_model_t *m, const tr_rows_t *rows)
{
    const tr_recipe_t *c = &m->config.recipe;
    uint32_t n = rows->n_rows;
    bool temp = c->query_temp.beta != 0;
    int rc = 0;

    for (uint32_t r = 0; temp && r < n; r++) {
        uint32_t turns = rows->row_pos[r] / c->query_temp.original;

        m->query_temp[r] = 1 + c->query_temp.beta * logf(1 + (float) turns);
    }
    for (uint32_t i = 0; i <= TR_ANGLES_NONE; i++) {
        const tr_angles_t *t = &m->rope[i];

        if (t->used) {
            rc |= turn_rows(m, rows, t, NULL, t->of_rows);
        }
        if (t->used && temp) {
            rc |= turn_rows(m, rows, t, m->query_temp, t->of_queries);
        }
    }
    return rc;
}

tr_status_t
tr_model_forward(tr_model_t *m, const tr_kv_view_t *kv, const tr_rows_t *rows,
                 const int32_t *tokens)
{
    const tr_recipe_t *c = &m->config.recipe;
    const tr_kernels_t *k = m->kernels;
    const tr_stream_t *s = &m->stream;
    tr_kv_view_t view = *kv;
    uint32_t n = rows->n_rows;
    int rc = 0;

    view.reach = m->reach;
    view.sinks = m->sinks;
    if (n > m->max_rows || rows->n_seqs > m->max_seqs) {
        return TR_ERR_INTERNAL;
    }
    rc |= k->embedding(s, &m->root.matrix[TR_PART_EMBED], tokens, n, m->hidden,
                       m->ld_hidden);
    if (c->embed_scale != 1) {
        rc |= k->scale_cap(s, m->hidden, m->ld_hidden, n, c->hidden,
                           c->embed_scale, 0);
    }
    rc |= make_angles(m, rows);
    for (uint32_t l = 0; l < c->layers && rc == 0; l++) {
        step_t t = { m, c, &c->layer[l], &m->layers[l], l, n };

        rc |= attention_half(&t, &view, rows);
        rc |= mlp_half(&t);
    }
    return rc == 0 ? TR_OK : TR_ERR_INTERNAL;
}

tr_status_t
tr_model_return(tr_model_t *m, const tr_kv_view_t *kv, const tr_rows_t *rows)
{
    const tr_recipe_t *c = &m->config.recipe;
    uint32_t n = rows->n_rows;
    int rc;

    if (n > m->max_rows || rows->n_seqs > m->max_seqs) {
        return TR_ERR_INTERNAL;
    }
    rc = make_angles(m, rows);
    for (uint32_t l = 0; l < c->layers && rc == 0; l++) {
        step_t t = { m, c, &c->layer[l], &m->layers[l], l, n };

        move_inputs(&t, rows, m->normed, false);
        rc |= project(&t, kv, rows, m->normed);
    }
    return rc == 0 ? TR_OK : TR_ERR_INTERNAL;
}

tr_status_t
tr_model_guard(const tr_model_t *m, uint32_t every, tr_kv_guard_t **out,
               tr_error_t *err)
{
    const tr_recipe_t *r = &m->config.recipe;
    const tr_kv_guard_config_t config = { .every = every,
                                          .layers = r->layers,
                                          .heads = r->query_heads,
                                          .kv_heads = r->kv_heads,
                                          .head_dim = r->head_dim,
                                          .reach = m->reach,
                                          .scale = r->attn_scale,
                                          .sinks = m->sinks,
                                          .work = TR_KV_GUARD_WORK,
                                          .kernels = m->kernels,
                                          .stream = m->stream };

    return tr_kv_guard_create(&config, out, err);
}

/* Side by side in `normed`, which the layers no longer need. */
tr_status_t
tr_model_final(tr_model_t *m, const uint32_t *rows, uint32_t n)
{
    const tr_recipe_t *c = &m->config.recipe;
    const tr_kernels_t *k = m->kernels;
    int rc = 0;

    for (uint32_t i = 0; i < n; i++) {
        rc |= k->rmsnorm(&m->stream, m->hidden + rows[i] * m->ld_hidden,
                         m->ld_hidden, 1, 1, c->hidden,
                         m->root.vector[TR_PART_FINAL_NORM], c->norm_eps,
                         m->normed + i * m->ld_hidden, m->ld_hidden);
    }
    return rc == 0 ? TR_OK : TR_ERR_INTERNAL;
}

tr_status_t
tr_model_logits(tr_model_t *m, const uint32_t *rows, uint32_t n)
{
    const tr_recipe_t *c = &m->config.recipe;
    const tr_kernels_t *k = m->kernels;
    const tr_stream_t *s = &m->stream;
    int rc;

    if (n > m->logit_rows) {
        return TR_ERR_INTERNAL;
    }
    rc = tr_model_final(m, rows, n);
    rc |= k->matmul(s, &m->root.matrix[c->tied ? TR_PART_EMBED : TR_PART_HEAD],
                    m->normed, m->ld_hidden, n, m->logits, m->ld_logits, 0);
    if (c->logit_scale != 1 || c->final_softcap != 0) {
        rc |= k->scale_cap(s, m->logits, m->ld_logits, n, c->vocab,
                           c->logit_scale, c->final_softcap);
    }
    return rc == 0 ? TR_OK : TR_ERR_INTERNAL;
}
