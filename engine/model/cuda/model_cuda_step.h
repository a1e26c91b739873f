/*
 * model_cuda_step.h: what the files of a step's launches share
 * (model_cuda_step.c, model_cuda_attention.c, model_cuda_logits.c).
 *
 * A function that returns false has kept what failed in m->failed; nothing more
 * of the step is launched then.
 */
#ifndef TR_MODEL_CUDA_STEP_H
#define TR_MODEL_CUDA_STEP_H

#include "model_cuda.h"

/* What the launches of a step share. */
typedef struct {
    tr_kv_view_t kv;
    tr_kv_view_t fast; /* with the layouts that the fast kernels know */
    tr_kv_layout_t layout[TR_KV_LAYOUTS_MAX];
    tr_rows_t rows; /* all sequences, for the cache */
    const int32_t *slots[TR_ATTENTION_PATHS];
    const tr_cuda_step_t *step;
} tr_model_cuda_run_t;

/* ---- model_cuda_step.c ---- */

/* What is launched in m->side.stream from now on waits for what the step's
 * stream has up to here, and for nothing later. */
bool tr_model_cuda_side_begin(tr_model_cuda_t *m);

/* hidden += delta, as residuals are scaled; normed = norm(hidden). */
tr_cuda_norm_t tr_model_cuda_norm(tr_model_cuda_t *m, uint32_t rows,
                                  const void *delta, const void *weight);

/* ---- model_cuda_attention.c ---- */

/* Sets fast and slots of r, whose kv and step are set. */
bool tr_model_cuda_choose_paths(tr_model_cuda_t *m, const int32_t *seq_slot,
                                tr_model_cuda_run_t *r);

/* A layer's attention: from m->qkv, rotated and appended, to m->attn. */
bool tr_model_cuda_attend(tr_model_cuda_t *m, const tr_model_cuda_run_t *r,
                          uint32_t layer);

/* Scores of the last layers, which no later layer computes on its way. */
void tr_model_cuda_score(tr_model_cuda_t *m, const tr_model_cuda_run_t *r);

/* ---- model_cuda_logits.c ---- */

/* Vectors; logits of the rows that are sampled, and their tokens. */
bool tr_model_cuda_finish(tr_model_cuda_t *m, const int32_t *seq_slot,
                          const tr_model_cuda_run_t *r);

#endif
