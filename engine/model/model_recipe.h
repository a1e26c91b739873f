/*
 * What a model computes: the recipe that both backends follow.
 *
 * A recipe is sizes and choices, layer by layer.  It knows neither JSON nor the
 * name of a family: model_config.c makes it from config.json by the family's row
 * in model_families.c, model/cpu and model/cuda interpret it.  One layer, x
 * being the residual stream:
 *
 *     n = norm(x)                          TR_NORM_PRE_ATTN, else n = x
 *     q, k, v = n Wqkv^T (+ bias)          TR_BIAS_QKV
 *     q, k = norm                          qk_norm: by head or row
 *     cache <- rope(k), v
 *     a = attention(rope(q))               rope: a table, reach: how far back
 *     a = a Wo^T (+ bias)                  TR_BIAS_O
 *     x += scale norm(a)                   TR_NORM_POST_ATTN, else x += scale a
 *     n = norm(x)                          TR_NORM_PRE_MLP, else n = x
 *     m = (act(n Wgate^T) * n Wup^T) Wdown^T
 *     x += scale norm(m)                   TR_NORM_POST_MLP, else x += scale m
 *
 * and in the end logits = norm(x) Whead^T, scaled and capped.  A recipe can say
 * more than a backend can run: each backend checks it when a model is opened
 * (tr_recipe_check), and refuses by name what it has not.
 */
#ifndef TR_MODEL_RECIPE_H
#define TR_MODEL_RECIPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/act.h"
#include "kernels/operands.h"
#include "kernels/route.h"
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
    bool experts;          /* the MLP is a choice of experts (tr_moe_t) */
    bool sinks;            /* softmax has a sink a query head */
    uint32_t reach;        /* positions that a query sees, its own included;
                            * 0: all */
} tr_layer_recipe_t;

typedef enum {
    TR_ROPE_DEFAULT,
    TR_ROPE_LINEAR,
    TR_ROPE_LLAMA3,
    TR_ROPE_YARN,    /* arXiv 2309.00071, as transformers computes it */
    TR_ROPE_LONGROPE /* arXiv 2402.13753, likewise: a table for sequences of up
                      * to `original` tokens, another for longer ones */
} tr_rope_type_t;

/* A table of rotary frequencies. */
typedef struct {
    tr_rope_type_t type;
    double theta, factor;
    double low, high;  /* llama3: frequency factors */
    uint32_t original; /* all but linear: positions of the first training */
    double beta_fast, beta_slow; /* yarn: rotations within `original` */
    bool truncate; /* yarn: the dims between which it blends are whole */
    double amp;    /* cosines and sines are multiplied with it */
    /* longrope: by which a pair's frequency is divided, in short sequences and
     * in long ones */
    float stretch[2][TR_HEAD_DIM_MAX / 2];
} tr_rope_t;

/* Queries are multiplied with 1 + beta ln(1 + floor(position / original)), from
 * Llama 4; beta 0: they are not. */
typedef struct {
    float beta;
    uint32_t original;
} tr_query_temp_t;

/* The MLPs of a layer with experts; `act` is the layer's. */
typedef struct {
    tr_route_t route;
    uint32_t width;  /* of an expert */
    uint32_t shared; /* of one that every row goes to; 0: there is none */
    bool router_bias, choice_bias, biases; /* of the router's logits; of the
                                            * choice alone; of experts */
} tr_moe_t;

typedef struct {
    uint32_t vocab, hidden, intermediate, layers;
    uint32_t query_heads, kv_heads, head_dim;
    uint32_t max_positions; /* of a sequence */
    float norm_eps;
    float attn_scale;     /* queries by keys are multiplied with it */
    float embed_scale;    /* embeddings are multiplied with it */
    float residual_scale; /* what a layer adds to x */
    float logit_scale;    /* logits */
    float final_softcap;  /* then logits are cap tanh(logit / cap); 0: not */
    tr_query_temp_t query_temp;
    bool norm_plus_one;    /* files hold the norms' weights less 1 */
    bool tied;             /* the embedding is the output matrix */
    uint32_t rotary_dim;   /* of head_dim, the first: they rotate */
    bool rope_interleaved; /* files pair (2 i, 2 i + 1), else (i, i + rotary_dim
                            * / 2) */
    tr_moe_t moe;
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
    TR_PART_ROUTER,         /* [experts][hidden] */
    TR_PART_EXPERT_GATE_UP, /* experts one behind the other */
    TR_PART_EXPERT_DOWN,
    TR_PART_SHARED_GATE_UP,
    TR_PART_SHARED_DOWN,
    TR_PART_FINAL_NORM,
    TR_PART_ATTN_NORM,      /* TR_NORM_PRE_ATTN */
    TR_PART_POST_ATTN_NORM, /* TR_NORM_POST_ATTN */
    TR_PART_MLP_NORM,       /* TR_NORM_PRE_MLP */
    TR_PART_POST_MLP_NORM,  /* TR_NORM_POST_MLP */
    TR_PART_Q_NORM,
    TR_PART_K_NORM,
    TR_PART_QKV_BIAS,
    TR_PART_O_BIAS,
    TR_PART_SINKS,
    TR_PART_ROUTER_BIAS,
    TR_PART_CHOICE_BIAS,
    TR_PART_EXPERT_GATE_UP_BIAS,
    TR_PART_EXPERT_DOWN_BIAS,
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

/* Experts that a part holds, each a matrix or vector of its own; 1 of others. */
uint32_t tr_part_experts(const tr_recipe_t *r, tr_part_t part);

/* layer: 0 for parts of the model. */
tr_part_shape_t tr_part_shape(const tr_recipe_t *r, tr_part_t part,
                              uint32_t layer);

/* ---- what follows from it ------------------------------------------------ */

/* Weights, embeddings counted once when tied. */
uint64_t tr_recipe_parameters(const tr_recipe_t *r);

/* The shortest reach of a layer; 0: every layer sees everything. */
uint32_t tr_recipe_reach(const tr_recipe_t *r);

/* Of each layer; reach: [layers]. */
void tr_recipe_reaches(const tr_recipe_t *r, uint32_t *reach);

/* Tokens of the longest sequence that is to be provided for: `asked`, or with 0
 * all positions; where keys and values have `kv_memory` bytes (0: nobody knows),
 * one more than can be there at 16 bits, as every prompt is at first, so that the
 * KV cache has the last word. */
uint32_t tr_recipe_len(const tr_recipe_t *r, uint32_t asked,
                       uint64_t kv_memory);

/* A table, with its scaling applied: pair i of a position p turns by p *
 * inv_freq[i], cosine and sine are multiplied with amp[i]; [head_dim / 2] each.
 * A pair that does not rotate has 0 and 1; TR_ROPE_NONE: all of them.  `is_long`:
 * as in sequences of more than tr_recipe_long_from tokens. */
void tr_recipe_rope(const tr_recipe_t *r, uint32_t table, bool is_long,
                    float *inv_freq, float *amp);

/* Sequences of more tokens have other frequencies at every position, so one that
 * grows beyond must be computed anew; 0: all have the same. */
uint32_t tr_recipe_long_from(const tr_recipe_t *r);

/* Kernels rotate pairs (i, i + head_dim / 2).  Where a head's dim d stands in
 * the files; d itself when they have the same pairs and all rotate. */
uint32_t tr_recipe_rotary_source(const tr_recipe_t *r, uint32_t d);

const char *tr_act_name(tr_act_t act); /* as config.json calls it */

/* In a few lines, for people; layers that are alike share one.  Each line ends
 * with a newline. */
#define TR_RECIPE_TEXT 4096
void tr_recipe_describe(const tr_recipe_t *r, char text[TR_RECIPE_TEXT]);

/* ---- what a backend can run ---------------------------------------------- */

/* Bits: what not every backend has. */
#define TR_CAN_NORMS 1u    /* norms of any kind, else before both halves */
#define TR_CAN_ROPES 2u    /* several tables, layers without, amp, query_temp */
#define TR_CAN_REACH 8u    /* sequences longer than a layer's reach */
#define TR_CAN_EXPERTS 16u /* and sinks */
#define TR_CAN_SCALES 4u   /* of embeddings, residuals, logits; softcap */

typedef struct {
    const char *name;  /* "cpu": of the backend */
    uint32_t can;      /* bits */
    uint32_t biases;   /* bits, some of these */
    uint32_t qk_norms; /* bits 1 << tr_qk_norm_t */
    uint32_t acts;     /* bits 1 << tr_act_t */
} tr_recipe_support_t;

/* TR_ERR_UNSUPPORTED: the error names the layer, what it has, and what would be
 * right. */
tr_status_t tr_recipe_check(const tr_recipe_t *r,
                            const tr_recipe_support_t *can, tr_error_t *err);

#endif
