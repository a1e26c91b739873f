/*
 * model.h: the workspace and the forward pass.
 *
 * One layer, with x the residual stream:
 *
 *     qkv = norm(x) Wqkv^T (+ bias) (+ norm of each q and k head)
 *     cache <- rope(k), v;  a = attention(rope(q), cache)
 *     x += a Wo^T
 *     x += (silu(g) * u) Wdown^T   with [g | u] = norm(x) Wgate_up^T
 */
#include "model.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "kernels/thread_pool.h"

#include "engine/config/log.h"

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
    const tr_model_config_t *c = &m->config;
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
        rc = tr_model_weights_load(m, options, err);
    }
    if (rc != TR_OK) {
        tr_model_free(m);
        return rc;
    }
    m->max_len = tr_model_config_len(&m->config, options->max_len,
                                     options->kv_memory);
    m->logit_rows = LOGITS_BYTES / sizeof(float) / m->config.vocab;
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
    free(m->layers);
    free(m);
}

/* The attention half of layer l; errors are summed up by the caller. */
static int
attention_half(tr_model_t *m, const tr_kv_view_t *kv, uint32_t l,
               const tr_rows_t *rows)
{
    const tr_model_config_t *c = &m->config;
    const tr_kernels_t *k = m->kernels;
    const tr_stream_t *s = &m->stream;
    const tr_layer_t *w = &m->layers[l];
    size_t dim = c->head_dim, q = c->query_heads * dim;
    uint32_t n = rows->n_rows;
    float *keys = m->qkv + q, *values = keys + c->kv_heads * dim;
    int rc = 0;

    rc |= k->rmsnorm(s, m->hidden, m->ld_hidden, n, 1, c->hidden, w->input_norm,
                     c->norm_eps, m->normed, m->ld_hidden);
    rc |= k->matmul(s, &w->qkv, m->normed, m->ld_hidden, n, m->qkv, m->ld_qkv,
                    0);
    if (w->qkv_bias != NULL) {
        rc |= k->add_bias(s, m->qkv, m->ld_qkv, n, w->qkv_bias, w->qkv.n);
    }
    if (w->q_norm != NULL) {
        rc |= k->rmsnorm(s, m->qkv, m->ld_qkv, n, c->query_heads, c->head_dim,
                         w->q_norm, c->norm_eps, m->qkv, m->ld_qkv);
        rc |= k->rmsnorm(s, keys, m->ld_qkv, n, c->kv_heads, c->head_dim,
                         w->k_norm, c->norm_eps, keys, m->ld_qkv);
    }
    rc |= k->kv_append(s, kv, l, rows, keys, values, m->ld_qkv, m->angles);
    rc |= k->rope(s, m->qkv, m->ld_qkv, n, c->query_heads, c->head_dim,
                  m->angles);
    rc |= k->attention(s, kv, l, rows, m->qkv, m->ld_qkv, c->query_heads,
                       1.0f / sqrtf((float) dim), m->attn, m->ld_attn,
                       m->attention_work);
    rc |= k->matmul(s, &w->o, m->attn, m->ld_attn, n, m->hidden, m->ld_hidden,
                    1);
    if (w->o_bias != NULL) {
        rc |= k->add_bias(s, m->hidden, m->ld_hidden, n, w->o_bias, c->hidden);
    }
    return rc;
}

static int
mlp_half(tr_model_t *m, uint32_t l, uint32_t n)
{
    const tr_model_config_t *c = &m->config;
    const tr_kernels_t *k = m->kernels;
    const tr_stream_t *s = &m->stream;
    const tr_layer_t *w = &m->layers[l];
    int rc = 0;

    rc |= k->rmsnorm(s, m->hidden, m->ld_hidden, n, 1, c->hidden, w->post_norm,
                     c->norm_eps, m->normed, m->ld_hidden);
    if (n <= TR_GATED_ROWS && c->intermediate % TR_COL_PAD == 0) {
        rc |= k->gated(s, &w->gate_up, m->normed, m->ld_hidden, n, m->mlp,
                       m->ld_mlp);
    } else {
        rc |= k->matmul(s, &w->gate_up, m->normed, m->ld_hidden, n, m->gate_up,
                        m->ld_gate_up, 0);
        rc |= k->silu_mul(s, m->gate_up, m->ld_gate_up, n, c->intermediate,
                          m->mlp, m->ld_mlp);
    }
    rc |= k->matmul(s, &w->down, m->mlp, m->ld_mlp, n, m->hidden, m->ld_hidden,
                    1);
    return rc;
}

tr_status_t
tr_model_forward(tr_model_t *m, const tr_kv_view_t *kv, const tr_rows_t *rows,
                 const int32_t *tokens)
{
    const tr_kernels_t *k = m->kernels;
    const tr_stream_t *s = &m->stream;
    uint32_t n = rows->n_rows;
    int rc = 0;

    if (n > m->max_rows || rows->n_seqs > m->max_seqs) {
        return TR_ERR_INTERNAL;
    }
    rc |= k->embedding(s, &m->embed, tokens, n, m->hidden, m->ld_hidden);
    rc |= k->rope_angles(s, rows->row_pos, n, m->inv_freq,
                         m->config.head_dim / 2, m->angles);
    for (uint32_t l = 0; l < m->config.layers && rc == 0; l++) {
        rc |= attention_half(m, kv, l, rows);
        rc |= mlp_half(m, l, n);
    }
    return rc == 0 ? TR_OK : TR_ERR_INTERNAL;
}

tr_status_t
tr_model_logits(tr_model_t *m, const uint32_t *rows, uint32_t n)
{
    const tr_kernels_t *k = m->kernels;
    const tr_stream_t *s = &m->stream;
    int rc = 0;

    if (n > m->logit_rows) {
        return TR_ERR_INTERNAL;
    }
    /* the rows side by side in `normed`, which the layers no longer need */
    for (uint32_t i = 0; i < n; i++) {
        rc |= k->rmsnorm(s, m->hidden + rows[i] * m->ld_hidden, m->ld_hidden, 1,
                         1, m->config.hidden, m->final_norm, m->config.norm_eps,
                         m->normed + i * m->ld_hidden, m->ld_hidden);
    }
    rc |= k->matmul(s, &m->head, m->normed, m->ld_hidden, n, m->logits,
                    m->ld_logits, 0);
    return rc == 0 ? TR_OK : TR_ERR_INTERNAL;
}
