/*
 * A model on the CPU: its weights, and the forward pass of one step, which
 * follows the recipe (model_recipe.h).
 *
 * The step's rows are prefill chunks and decode tokens of many sequences side
 * by side.  forward() leaves every row's last hidden state in the workspace;
 * logits() turns chosen rows of it into logits, since only few rows need them.
 * One step at a time: the workspace belongs to the model.  Nothing is allocated
 * after open.
 */
#ifndef TR_MODEL_H
#define TR_MODEL_H

#include "kernels/kernels.h"
#include <tokenring/error.h>

#include "engine/kv/kv_guard.h"
#include "engine/kv/kv_inputs.h"
#include "engine/model/centre.h"
#include "engine/model/equalise.h"
#include "engine/model/model_config.h"
#include "engine/model/rotate.h"

/* Weights by part, of those that the recipe has: matrices, as integers or in 16
 * bits where the file's values fit, and vectors in FP32.
 * A part of experts has the matrix of the first (tr_model_expert). */
typedef struct {
    tr_cpu_matrix_t matrix[TR_PART_MATRICES];
    float *vector[TR_PARTS];
} tr_weights_t;

/* A table of frequencies; the last is that of TR_ROPE_NONE. */
#define TR_ANGLES_NONE TR_ROPE_TABLES
typedef struct {
    bool used;             /* by a layer */
    float *inv_freq, *amp; /* [head_dim / 2] */
    float *inv_freq_long;  /* of long sequences (tr_recipe_long_from) */
    float *of_rows;        /* of a step: [rows][2][head_dim / 2] */
    float *of_queries;     /* the same unless queries have a temperature */
} tr_angles_t;

/* Workspace of layers with experts. */
typedef struct {
    size_t ld_scores;
    float *scores; /* [rows][experts] */
    /* [rows][top_k]: who was chosen, its weight, and where that row stands in
     * the order of experts */
    uint32_t *chosen, *place;
    float *weight;
    uint32_t *first;       /* [experts + 1], of each one's rows in that order */
    float *input, *output; /* [rows * top_k][hidden], in that order */
} tr_experts_work_t;

typedef struct tr_model {
    tr_model_config_t config;
    const tr_kernels_t *kernels; /* borrowed */
    tr_stream_t stream;
    tr_weights_t root, *layers; /* of the model, and of each layer */
    tr_angles_t rope[TR_ROPE_TABLES + 1];
    uint32_t *reach;         /* [layers] */
    const float **sinks;     /* [layers], NULL where there are none */
    tr_equalise_t *equalise; /* what the weights have taken, or NULL */
    tr_centre_t *centre;     /* what keys lose, or NULL */
    uint32_t rotate;         /* bits (rotate.h) */
    uint8_t *weights;        /* the arena behind weights and frequencies */
    size_t weights_size;
    tr_safetensors_t *files; /* that matrices are mapped from, or NULL */
    uint64_t mapped;         /* bytes of them */
    tr_weights_cost_t cost;

    /* Borrowed, NULL or [max_seqs]: which of the next forward's sequences have
     * the rotary frequencies of long ones (tr_recipe_long_from). */
    const bool *seq_long;
    /* Borrowed, NULL or who keeps some queries of the next forwards. */
    tr_kv_guard_t *guard;
    /* Borrowed, NULL or where rows are kept (kv_inputs.h); [max_seqs], set for
     * each forward: the chunks of a sequence's rows, NULL: they are not. */
    const tr_kv_inputs_t *inputs;
    const uint32_t *const *seq_inputs;

    uint32_t max_rows, max_seqs, max_len, logit_rows;
    uint8_t *work; /* the arena behind what follows */
    size_t work_size;
    size_t ld_hidden, ld_qkv, ld_attn, ld_mlp, ld_gate_up;
    float *hidden, *normed, *qkv, *attn, *gate_up, *mlp, *delta, *query_temp,
        *logits;
    size_t ld_logits;
    void *attention_work;
    tr_experts_work_t experts;
} tr_model_t;

typedef struct {
    const char *dir;           /* borrowed during open */
    const char *ignore_config; /* tr_model_config_load; likewise */
    const char *load_format;   /* "auto" or "dummy" */
    uint64_t dummy_seed;
    tr_dtype_t dummy_dtype; /* random weights are rounded to it */
    bool
        packed; /* weights_format auto: what is integers in the files stays so */
    tr_codes_t
        quantise;    /* cpu_weights: what the other matrices become, or NONE */
    bool mapped;     /* matrices of 16 bits may stay in the files */
    bool equalise;   /* kv_equalise; weights of files alone */
    bool centre;     /* kv_centre; biases of files alone */
    uint32_t rotate; /* kv_rotate: bits (rotate.h) */
    const tr_kernels_t *kernels; /* outlives the model */
    int threads;
    uint32_t max_rows, max_seqs; /* of a step */
    uint32_t max_len; /* tokens of one sequence; 0: all that the model takes */
    uint64_t kv_memory; /* bounds it, too (tr_recipe_len) */
} tr_model_options_t;

tr_status_t tr_model_open(const tr_model_options_t *options, tr_model_t **out,
                          tr_error_t *err);
void tr_model_free(tr_model_t *m);

/* Runs the rows through all layers; their keys and values enter the cache,
 * where room is reserved.  tokens: [n_rows], below the vocabulary. */
tr_status_t tr_model_forward(tr_model_t *m, const tr_kv_view_t *kv,
                             const tr_rows_t *rows, const int32_t *tokens);

/* The keys and values of such rows enter the cache, made of what m->inputs has of
 * them in every layer; the rest of the model is left out. */
tr_status_t tr_model_return(tr_model_t *m, const tr_kv_view_t *kv,
                            const tr_rows_t *rows);

/* A guard of this model's attention (kv_guard.h), for one prompt in `every`.
 * It is the caller's, to be freed before the model; m->guard is not set. */
tr_status_t tr_model_guard(const tr_model_t *m, uint32_t every,
                           tr_kv_guard_t **out, tr_error_t *err);

/* What the final norm makes of n rows (at most m->max_rows) of the last forward:
 * into m->normed, [n] rows m->ld_hidden apart, which the next call overwrites.
 * `rows` are row indices. */
tr_status_t tr_model_final(tr_model_t *m, const uint32_t *rows, uint32_t n);

/* Logits of n rows (at most m->logit_rows) of the last forward, into
 * m->logits, [n] rows m->ld_logits apart.  `rows` are row indices. */
tr_status_t tr_model_logits(tr_model_t *m, const uint32_t *rows, uint32_t n);

/* Which of m->rope a layer uses. */
static inline uint32_t
tr_model_table(const tr_layer_recipe_t *l)
{
    return l->rope == TR_ROPE_NONE ? TR_ANGLES_NONE : l->rope;
}

static inline size_t
tr_model_matrix_bytes(const tr_kernels_t *k, const tr_cpu_matrix_t *w)
{
    return w->codes.codes != TR_CODES_NONE
               ? k->codes_bytes(w->n, w->k, &w->codes)
               : k->matrix_bytes(w->n, w->k, w->dtype);
}

/* Matrix of an expert, w being that of the first. */
static inline tr_cpu_matrix_t
tr_model_expert(const tr_kernels_t *k, const tr_cpu_matrix_t *w,
                uint32_t expert)
{
    tr_cpu_matrix_t m = *w;

    if (w->mapped != NULL) {
        m.mapped += (size_t) expert * (w->n / TR_COL_PAD);
    } else {
        m.data = (uint8_t *) w->data + expert * tr_model_matrix_bytes(k, w);
    }
    return m;
}

/* model_experts.c: what a layer's experts make of its input x, [n][hidden],
 * weighted and summed up, into y, which is not x. */
int tr_model_experts(tr_model_t *m, const tr_layer_recipe_t *layer,
                     const tr_weights_t *w, const float *x, uint32_t n,
                     float *y);

/* Refuses by name what this backend cannot run of a recipe and a rotation. */
tr_status_t tr_model_check(const tr_recipe_t *r, uint32_t rotate,
                           tr_error_t *err);

/* model_weights.c: sizes and fills the weights arena. */
tr_status_t tr_model_weights_load(tr_model_t *m,
                                  const tr_model_options_t *options,
                                  tr_error_t *err);

/* model_codes.c: which integers a tensor's part becomes, as far as this tensor
 * says; NULL: of load_format dummy. */
tr_cpu_codes_t tr_model_codes(const tr_model_t *m,
                              const tr_model_options_t *options,
                              const tr_model_tensor_t *t,
                              const tr_tensor_t *tensor);
/* Are the tensor's codes those of the part? */
bool tr_model_keeps_codes(const tr_model_t *m,
                          const tr_model_options_t *options,
                          const tr_model_tensor_t *t,
                          const tr_tensor_t *tensor);
/* Stores row `row` of such a tensor.  room: what tr_model_codes_room says of a
 * matrix. */
size_t tr_model_codes_room(const tr_cpu_matrix_t *w);
void tr_model_codes_row(const tr_model_t *m, const tr_cpu_matrix_t *w,
                        const tr_model_tensor_t *t, const tr_tensor_t *tensor,
                        uint32_t row, void *room);
/* Says what is kept how; expanded: quantised tensors that are not. */
void tr_model_codes_say(const tr_model_t *m, uint32_t expanded);

/* Anonymous memory, zeroed, 64-byte aligned, in large pages where possible. */
void *tr_arena_map(size_t size);

#endif
