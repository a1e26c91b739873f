/*
 * model.h: the workspace, and the forward pass, layer by layer as the recipe
 * says (model_recipe.h).
 */
#include "model.h"

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
    madvise(p, size, MADV_HUGEPAGE); /* a wish */
    return p;
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
    m->ld_gate_up = tr_pad(2 * (size_t) c->intermediate, TR_COL_PAD);
    m->ld_mlp = tr_pad(c->intermediate, TR_COL_PAD);
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
    TAKE(angles, rows * c->head_dim * sizeof(float));
    TAKE(logits, logit_rows * m->ld_logits * sizeof(float));
    TAKE(attention_work,
         m->kernels->attention_work(&m->stream, m->max_rows, m->max_seqs,
                                    m->max_len, c->query_heads, c->kv_heads,
                                    c->head_dim));
#undef TAKE
    return at;
}

tr_status_t
tr_model_check(const tr_recipe_t *r, tr_error_t *err)
{
    const tr_recipe_support_t support = {
        .name = "cpu",
        .norms = TR_NORM_PRE_ATTN | TR_NORM_PRE_MLP,
        .biases = TR_BIAS_QKV | TR_BIAS_O,
        .qk_norms = 1u << TR_QK_NORM_NONE | 1u << TR_QK_NORM_HEAD,
        .acts = tr_kernels_cpu(NULL)->acts,
    };

    return tr_recipe_check(r, &support, err);
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
    rc = tr_model_config_load(options->dir, &m->config, err);
    if (rc == TR_OK) {
        rc = tr_model_check(&m->config.recipe, err);
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

/* x -> normed */
static int
norm(const step_t *t, const float *weight)
{
    tr_model_t *m = t->m;

    return m->kernels->rmsnorm(&m->stream, m->hidden, m->ld_hidden, t->n, 1,
                               t->recipe->hidden, weight, t->recipe->norm_eps,
                               m->normed, m->ld_hidden);
}

static int
norm_heads(const step_t *t, float *x, uint32_t heads, const float *weight)
{
    tr_model_t *m = t->m;

    return m->kernels->rmsnorm(&m->stream, x, m->ld_qkv, t->n, heads,
                               t->recipe->head_dim, weight, t->recipe->norm_eps,
                               x, m->ld_qkv);
}

static int
attention_half(const step_t *t, const tr_kv_view_t *kv, const tr_rows_t *rows)
{
    tr_model_t *m = t->m;
    const tr_recipe_t *c = t->recipe;
    const tr_kernels_t *k = m->kernels;
    const tr_stream_t *s = &m->stream;
    const tr_matrix_t *qkv = &t->w->matrix[TR_PART_QKV];
    float *const *v = t->w->vector;
    float *keys = m->qkv + (size_t) c->query_heads * c->head_dim;
    float *values = keys + (size_t) c->kv_heads * c->head_dim;
    int rc = norm(t, v[TR_PART_ATTN_NORM]);

    rc |= k->matmul(s, qkv, m->normed, m->ld_hidden, t->n, m->qkv, m->ld_qkv,
                    0);
    if (t->layer->biases & TR_BIAS_QKV) {
        rc |= k->add_bias(s, m->qkv, m->ld_qkv, t->n, v[TR_PART_QKV_BIAS],
                          qkv->n);
    }
    if (t->layer->qk_norm == TR_QK_NORM_HEAD) {
        rc |= norm_heads(t, m->qkv, c->query_heads, v[TR_PART_Q_NORM]);
        rc |= norm_heads(t, keys, c->kv_heads, v[TR_PART_K_NORM]);
    }
    rc |= k->kv_append(s, kv, t->l, rows, keys, values, m->ld_qkv, m->angles);
    rc |= k->rope(s, m->qkv, m->ld_qkv, t->n, c->query_heads, c->head_dim,
                  m->angles);
    rc |= k->attention(s, kv, t->l, rows, m->qkv, m->ld_qkv, c->query_heads,
                       c->attn_scale, m->attn, m->ld_attn, m->attention_work);
    rc |= k->matmul(s, &t->w->matrix[TR_PART_O], m->attn, m->ld_attn, t->n,
                    m->hidden, m->ld_hidden, 1);
    if (t->layer->biases & TR_BIAS_O) {
        rc |= k->add_bias(s, m->hidden, m->ld_hidden, t->n, v[TR_PART_O_BIAS],
                          c->hidden);
    }
    return rc;
}

static int
mlp_half(const step_t *t)
{
    tr_model_t *m = t->m;
    const tr_kernels_t *k = m->kernels;
    const tr_stream_t *s = &m->stream;
    const tr_matrix_t *gate_up = &t->w->matrix[TR_PART_GATE_UP];
    uint32_t n = t->n, width = t->recipe->intermediate;
    int rc = norm(t, t->w->vector[TR_PART_MLP_NORM]);

    if (n <= TR_GATED_ROWS && width % TR_COL_PAD == 0) {
        rc |= k->gated(s, t->layer->act, gate_up, m->normed, m->ld_hidden, n,
                       m->mlp, m->ld_mlp);
    } else {
        rc |= k->matmul(s, gate_up, m->normed, m->ld_hidden, n, m->gate_up,
                        m->ld_gate_up, 0);
        rc |= k->act_mul(s, t->layer->act, m->gate_up, m->ld_gate_up, n, width,
                         m->mlp, m->ld_mlp);
    }
    rc |= k->matmul(s, &t->w->matrix[TR_PART_DOWN], m->mlp, m->ld_mlp, n,
                    m->hidden, m->ld_hidden, 1);
    return rc;
}

tr_status_t
tr_model_forward(tr_model_t *m, const tr_kv_view_t *kv, const tr_rows_t *rows,
                 const int32_t *tokens)
{
    const tr_recipe_t *c = &m->config.recipe;
    const tr_kernels_t *k = m->kernels;
    const tr_stream_t *s = &m->stream;
    uint32_t n = rows->n_rows;
    int rc = 0;

    if (n > m->max_rows || rows->n_seqs > m->max_seqs) {
        return TR_ERR_INTERNAL;
    }
    rc |= k->embedding(s, &m->root.matrix[TR_PART_EMBED], tokens, n, m->hidden,
                       m->ld_hidden);
    rc |= k->rope_angles(s, rows->row_pos, n, m->inv_freq, c->head_dim / 2,
                         m->angles);
    for (uint32_t l = 0; l < c->layers && rc == 0; l++) {
        step_t t = { m, c, &c->layer[l], &m->layers[l], l, n };

        rc |= attention_half(&t, kv, rows);
        rc |= mlp_half(&t);
    }
    return rc == 0 ? TR_OK : TR_ERR_INTERNAL;
}

tr_status_t
tr_model_logits(tr_model_t *m, const uint32_t *rows, uint32_t n)
{
    const tr_recipe_t *c = &m->config.recipe;
    const tr_kernels_t *k = m->kernels;
    const tr_stream_t *s = &m->stream;
    int rc = 0;

    if (n > m->logit_rows) {
        return TR_ERR_INTERNAL;
    }
    /* the rows side by side in `normed`, which the layers no longer need */
    for (uint32_t i = 0; i < n; i++) {
        rc |= k->rmsnorm(s, m->hidden + rows[i] * m->ld_hidden, m->ld_hidden, 1,
                         1, c->hidden, m->root.vector[TR_PART_FINAL_NORM],
                         c->norm_eps, m->normed + i * m->ld_hidden,
                         m->ld_hidden);
    }
    rc |= k->matmul(s, &m->root.matrix[c->tied ? TR_PART_EMBED : TR_PART_HEAD],
                    m->normed, m->ld_hidden, n, m->logits, m->ld_logits, 0);
    return rc == 0 ? TR_OK : TR_ERR_INTERNAL;
}
