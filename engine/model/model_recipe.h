/*
 * What a model computes: the recipe that both backends follow.
 *
 * A recipe is sizes and choices, layer by layer.  It knows neither JSON nor the
 * name of a family: model_config.c makes it from config.json by the family's row
 * in model_families.c, model/cpu and model/cuda interpret it.  One layer, x
 * being the residual stream:
 *
 *     n = norm(x)                          TR_NORM_PRE_ATTN
 *     q, k, v = n Wqkv^T (+ bias)          TR_BIAS_QKV
 *     q, k = norm of each head             qk_norm
 *     cache <- rope(k), v
 *     a = attention(rope(q))               rope: a table, reach: how far back
 *     a = a Wo^T (+ bias)                  TR_BIAS_O
 *     x += norm(a)                         TR_NORM_POST_ATTN, else x += a
 *     n = norm(x)                          TR_NORM_PRE_MLP
 *     m = (act(n Wgate^T) * n Wup^T) Wdown^T
 *     x += norm(m)                         TR_NORM_POST_MLP, else x += m
 *
 * and in the end logits = norm(x) Whead^T.  A recipe can say more than a backend
 * can run: each backend checks it when a model is opened (tr_recipe_check), and
 * refuses by name what it has not.
 */
#ifndef TR_MODEL_RECIPE_H
#define TR_MODEL_RECIPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/act.h"
#include <tokenring/error.h>

#define TR_LAYERS_MAX 1024u
#define TR_POSITIONS_MAX (1u << 24) /* as many as max_model_len may say */
#define TR_ROPE_TABLES 3u
#define TR_ROPE_NONE 0xffu /* in place of a table: the layer rotates nothing */

/* Bits: where a layer normalises. */
#define TR_NORM_PRE_ATTN 1u
#define TR_NORM_POST_ATTN 2u
#define TR_NORM_PRE_MLP 4u
#define TR_NORM_POST_MLP 8u

/* Bits: which products have a bias. */
#define TR_BIAS_QKV 1u
#define TR_BIAS_O 2u
#define TR_BIAS_MLP 4u

/* Queries and keys, between product and rotation: each head by itself, weight
 * [head_dim], or all heads of a row at once, weight [heads * head_dim]. */
typedef enum { TR_QK_NORM_NONE, TR_QK_NORM_HEAD, TR_QK_NORM_ROW } tr_qk_norm_t;

typedef struct {
    uint8_t norms, biases; /* bits */
    uint8_t qk_norm;       /* tr_qk_norm_t */
    uint8_t act;           /* tr_act_t, of the MLP's gate */
    uint8_t rope;          /* index of a table, or TR_ROPE_NONE */
    uint32_t reach;        /* positions that a query sees, its own included;
                            * 0: all */
} tr_layer_recipe_t;

typedef enum { TR_ROPE_DEFAULT, TR_ROPE_LINEAR, TR_ROPE_LLAMA3 } tr_rope_type_t;

/* A table of rotary frequencies. */
typedef struct {
    tr_rope_type_t type;
    double theta, factor;
    double low, high;  /* llama3: frequency factors */
    uint32_t original; /* llama3: positions of the first training */
} tr_rope_t;

typedef struct {
    uint32_t vocab, hidden, intermediate, layers;
    uint32_t query_heads, kv_heads, head_dim;
    uint32_t max_positions; /* of a sequence */
    float norm_eps;
    float attn_scale; /* queries by keys are multiplied with it */
    bool tied;        /* the embedding is the output matrix */
    uint32_t n_ropes;
    tr_rope_t rope[TR_ROPE_TABLES];
    tr_layer_recipe_t layer[TR_LAYERS_MAX]; /* [layers] */
} tr_recipe_t;

/* ---- what a backend keeps ------------------------------------------------ */

/* Matrices [outputs][inputs], then vectors.  Query, key and value rows form one
 * matrix, gate and up rows another. */
typedef enum {
    TR_PART_EMBED, /* the head, too, when they are tied */
    TR_PART_HEAD,
    TR_PART_QKV,
    TR_PART_O,
    TR_PART_GATE_UP,
    TR_PART_DOWN,
    TR_PART_FINAL_NORM,
    TR_PART_ATTN_NORM, /* TR_NORM_PRE_ATTN */
    TR_PART_MLP_NORM,  /* TR_NORM_PRE_MLP */
    TR_PART_Q_NORM,
    TR_PART_K_NORM,
    TR_PART_QKV_BIAS,
    TR_PART_O_BIAS,
    TR_PARTS
} tr_part_t;

#define TR_PART_MATRICES TR_PART_FINAL_NORM

/* Is it a part of layers? */
static inline bool
tr_part_layered(tr_part_t part)
{
    return part != TR_PART_EMBED && part != TR_PART_HEAD
           && part != TR_PART_FINAL_NORM;
}

/* Rows and columns (1 of a vector); {0, 0}: there is no such part. */
typedef struct {
    uint32_t rows, columns;
} tr_part_shape_t;

/* layer: 0 for parts of the model. */
tr_part_shape_t tr_part_shape(const tr_recipe_t *r, tr_part_t part,
                              uint32_t layer);

/* ---- what follows from it ------------------------------------------------ */

/* Weights, embeddings counted once when tied. */
uint64_t tr_recipe_parameters(const tr_recipe_t *r);

/* The shortest reach of a layer; 0: every layer sees everything. */
uint32_t tr_recipe_reach(const tr_recipe_t *r);

/* Tokens of the longest sequence that is to be provided for: `asked`, or with 0
 * all positions; where keys and values have `kv_memory` bytes (0: nobody knows),
 * one more than can be there at 16 bits, as every prompt is at first, so that the
 * KV cache has the last word. */
uint32_t tr_recipe_len(const tr_recipe_t *r, uint32_t asked,
                       uint64_t kv_memory);

/* inv_freq[head_dim / 2] of a table, with its scaling applied. */
void tr_recipe_rope(const tr_recipe_t *r, uint32_t table, float *inv_freq);

const char *tr_act_name(tr_act_t act); /* as config.json calls it */

/* In a few lines, for people; layers that are alike share one.  Each line ends
 * with a newline. */
#define TR_RECIPE_TEXT 4096
void tr_recipe_describe(const tr_recipe_t *r, char text[TR_RECIPE_TEXT]);

/* ---- what a backend can run ---------------------------------------------- */

/* All backends so far: one table of frequencies, layers that rotate, and no
 * sequence longer than a layer's reach. */
typedef struct {
    const char *name;  /* "cpu": of the backend */
    uint32_t norms;    /* bits, exactly these */
    uint32_t biases;   /* bits, some of these */
    uint32_t qk_norms; /* bits 1 << tr_qk_norm_t */
    uint32_t acts;     /* bits 1 << tr_act_t */
} tr_recipe_support_t;

/* TR_ERR_UNSUPPORTED: the error names the layer, what it has, and what would be
 * right. */
tr_status_t tr_recipe_check(const tr_recipe_t *r,
                            const tr_recipe_support_t *can, tr_error_t *err);

#endif
