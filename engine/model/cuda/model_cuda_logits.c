/*
 * model_cuda_step.h: what a step gives: the rows behind the last layer become
 * vectors, or logits and tokens, TR_CUDA_LOGIT_ROWS at a time.
 */
#include "model_cuda_step.h"

/* Of n rows that are listed.  The last layer's part of the residual is added on
 * the way. */
static tr_cuda_norm_t
final_norm(tr_model_cuda_t *m, const uint32_t *gather, uint32_t n)
{
    tr_cuda_norm_t last = tr_model_cuda_norm(m, n,
                                             m->small_gemm ? NULL : m->delta,
                                             m->root.part[TR_PART_FINAL_NORM]);

    last.gather = gather;
    if (!m->small_gemm) {
        last.post_weight = m->layers[m->config.recipe.layers - 1]
                               .part[TR_PART_POST_MLP_NORM];
    }
    return last;
}

/* Vectors of the step.  The rows pass, in FP32 and as many at a time as fit,
 * through the memory of logits, of which there are none yet. */
static bool
pool(tr_model_cuda_t *m, const tr_cuda_step_t *s)
{
    uint32_t width = m->config.recipe.hidden, fit, n;
    tr_cuda_pool_t a = { .items = s->n_pools,
                         .n = width,
                         .x = m->logits,
                         .ldx = m->ld_hidden,
                         .first = s->pool_first,
                         .out = s->pooled,
                         .ldo = width };

    fit = (uint32_t) (tr_model_cuda_logits(m) / m->ld_hidden);
    for (; a.at < s->n_pool_rows && m->failed == NULL; a.at += n) {
        tr_cuda_norm_t last;

        n = s->n_pool_rows - a.at < fit ? s->n_pool_rows - a.at : fit;
        a.rows = n;
        last = final_norm(m, s->pool + a.at, n);
        last.out = m->logits;
        last.full = true;
        if (tr_model_cuda_launched(m, m->cuda->norm(m->stream, &last),
                                   "norm")) {
            tr_model_cuda_launched(m, m->cuda->pool(m->stream, &a), "pool");
        }
    }
    return m->failed == NULL;
}

/* Logits of n rows, which step->gather lists from `at` on. */
static bool
make_logits(tr_model_cuda_t *m, const tr_cuda_step_t *s, uint32_t at,
            uint32_t n)
{
    const tr_recipe_t *c = &m->config.recipe;
    tr_cuda_norm_t last = final_norm(m, s->gather + at, n);

    return tr_model_cuda_launched(m, m->cuda->norm(m->stream, &last), "norm")
           && tr_model_cuda_multiply(m, m->stream, TR_PART_EMBED, 0, m->normed,
                                     m->ld_hidden, n, m->logits, m->ld_logits)
           && ((c->logit_scale == 1 && c->final_softcap == 0)
               || tr_model_cuda_launched(
                   m,
                   m->cuda->scale_cap(m->stream, m->logits, m->ld_logits, n,
                                      c->vocab, c->logit_scale,
                                      c->final_softcap),
                   "scale_cap"));
}

/* How many rows from `at` on have their logits at once. */
static uint32_t
piece_of(const tr_model_cuda_t *m, const tr_cuda_step_t *s, uint32_t at)
{
    uint32_t left = s->n_samples - at;

    return left < m->logit_rows ? left : m->logit_rows;
}

/* Tokens of n rows from `at` on, whose logits are there. */
static bool
sample(tr_model_cuda_t *m, const int32_t *seq_slot, const tr_cuda_step_t *s,
       uint32_t at, uint32_t n, bool late)
{
    tr_cuda_sample_t a = { .rows = n,
                           .vocab = m->config.recipe.vocab,
                           .logits = m->logits,
                           .ld = m->ld_logits,
                           .sampling = s->sampling + at,
                           .seq_slot = seq_slot,
                           .bias = s->bias,
                           .bar = s->bar,
                           .mask_at = late ? s->mask_at + at : NULL,
                           .mask = late ? s->mask : NULL,
                           .late = late,
                           .history = m->history,
                           .out = s->sampled + at,
                           .top = s->top + (size_t) at * TR_CUDA_TOP_MAX,
                           .work = m->sample_work };

    return tr_model_cuda_launched(m, m->cuda->sample(m->stream, &a), "sample");
}

bool
tr_model_cuda_finish(tr_model_cuda_t *m, const int32_t *seq_slot,
                     const tr_model_cuda_run_t *r)
{
    const tr_cuda_step_t *s = r->step;
    bool scored = (s->paths & 1u << TR_ATTENTION_DECODE) == 0;

    pool(m, s);
    for (uint32_t at = 0; at < s->n_samples && m->failed == NULL;
         at += m->logit_rows) {
        uint32_t n = piece_of(m, s, at);

        if (make_logits(m, s, at, n)) {
            if (!scored) {
                tr_model_cuda_score(m, r);
                scored = true;
            }
            sample(m, seq_slot, s, at, n, false);
        }
    }
    if (!scored && m->failed == NULL) {
        tr_model_cuda_score(m, r);
    }
    return m->failed == NULL;
}

/* With more rows than have logits at once, those of the late ones are made once
 * more: what they come from is as it was. */
int
tr_model_cuda_sample_late(tr_model_cuda_t *m, const int32_t *seq_slot,
                          const tr_cuda_step_t *s)
{
    bool gone = s->n_samples > m->logit_rows;

    m->failed = NULL;
    m->small_gemm = tr_model_cuda_is_small(m, s->n_rows);
    for (uint32_t at = 0; at < s->n_samples && m->failed == NULL;
         at += m->logit_rows) {
        uint32_t n = piece_of(m, s, at);

        if (!gone || make_logits(m, s, at, n)) {
            sample(m, seq_slot, s, at, n, true);
        }
    }
    return m->failed == NULL ? 0 : m->failed_code;
}
