/*
 * A model on a GPU: its weights, the buffers of a step, and the launches that
 * take a batch from tokens to sampled tokens.
 *
 * Everything here is asynchronous and runs in one stream, in order, but for
 * what of a step may as well run beside it, in another that leaves it and comes
 * back. Nothing is allocated after open.  Launches depend on pointers and
 * counts alone, so that a step of a given size can be captured into a graph and
 * be replayed with other contents (executor_cuda.c).
 *
 * The residual stream is FP32, everything between products is of the weights'
 * 16-bit type T, sums are FP32.  Keys enter the cache before RoPE.
 */
#ifndef TR_MODEL_CUDA_H
#define TR_MODEL_CUDA_H

#include "kernels/cuda/device.h"
#include <tokenring/error.h>

#include "engine/kv/kv_guard.h"
#include "engine/kv/kv_inputs.h"
#include "engine/kv/policy/kv_policy.h"
#include "engine/model/centre.h"
#include "engine/model/equalise.h"
#include "engine/model/model_config.h"
#include "engine/model/model_tensors.h"
#include "engine/model/rotate.h"

/* Rows of logits that exist at once. */
#define TR_CUDA_LOGIT_ROWS 256u

/* Device memory by part; NULL where the model has none.  Matrices
 * [rows][columns] of T, or packed; vectors FP32. */
typedef struct {
    void *part[TR_PARTS];
    tr_weight_form_t form[TR_PART_MATRICES];
} tr_cuda_parts_t;

/* Which attention a sequence of a step goes to. */
typedef enum {
    TR_ATTENTION_DECODE,  /* one row */
    TR_ATTENTION_PROMPT,  /* more rows over a cache that is all uncompressed */
    TR_ATTENTION_BEHIND,  /* more rows behind tokens that are compressed */
    TR_ATTENTION_GENERIC, /* everything else */
    TR_ATTENTION_PATHS
} tr_attention_path_t;

/* A table of rotary frequencies, and a step's angles by it; the last is that of
 * TR_ROPE_NONE. */
#define TR_CUDA_ANGLES_NONE TR_ROPE_TABLES
typedef struct {
    bool used;             /* by a layer */
    float *inv_freq, *amp; /* [head_dim / 2] */
    float *inv_freq_long;  /* of long sequences (tr_recipe_long_from) */
    float *of_rows;        /* [max_rows][2][head_dim / 2] */
    float *of_queries;     /* the same unless queries have a temperature */
} tr_cuda_table_t;

/* Workspace of layers with experts; a place is a row of one choice, in the order
 * of experts. */
typedef struct {
    size_t ld_logits, ld_gate_up, ld_mlp;
    float *logits;                /* [rows] of the router */
    uint32_t *expert, *place;     /* [rows][top_k] */
    float *weight;                /* the same */
    uint32_t *first;              /* [experts + 1] */
    uint32_t *row;                /* [places] */
    uint32_t *meet;               /* of tr_cuda_choose */
    void *gate_up, *mlp, *output; /* [places] of T */
    void *shared;                 /* [rows] of T */
} tr_cuda_experts_work_t;

/* What of a step runs beside its stream: from tokens to the first product, and
 * the last layer's scores. */
typedef struct {
    tr_cuda_stream_t stream;
    void *begun, *ended; /* events */
    bool open;           /* the step's stream has not waited for it yet */
} tr_cuda_side_t;

typedef struct {
    const tr_device_t *cuda;        /* borrowed */
    const tr_cuda_stream_t *stream; /* borrowed, as is its device */
    tr_cuda_side_t side;
    tr_model_config_t config;
    tr_dtype_t type; /* T */

    tr_cuda_parts_t root, *layers; /* parts of the model, and of each layer */
    tr_cuda_table_t rope[TR_ROPE_TABLES + 1];
    uint32_t *reach;         /* [layers]; NULL: every layer sees all */
    const float **sinks;     /* [layers]; NULL: none has any */
    tr_equalise_t *equalise; /* host: what the weights have taken, or
                                    * NULL */
    tr_centre_t *centre;     /* host: what keys lose, or NULL */
    float *key_shift;        /* its table, [layers][kv_heads][head_dim]; NULL:
                              * they lose nothing */
    uint32_t rotate;         /* bits (rotate.h) */
    size_t largest_packed;   /* bytes of the largest packed matrix in 16 bits;
                              * 0: none is packed */
    bool fp8; /* many rows that FP8 weights multiply are rounded to FP8 */
    uint32_t
        fp8_columns;  /* the most that such a product has; 0: there is none */
    uint8_t *weights; /* the memory behind weights and
                                    * frequencies */
    size_t weights_size;
    tr_weights_cost_t cost;

    uint32_t max_rows, max_seqs, max_len, slots, logit_rows;
    uint8_t *work; /* the memory behind what follows */
    size_t work_size;
    size_t ld_hidden, ld_qkv, ld_attn, ld_gate_up, ld_mlp, ld_logits;
    float *hidden, *logits;
    float *squares; /* [TR_CUDA_SMALL_GEMM_ROWS][TR_CUDA_SMALL_GEMM_PARTS] */
    uint32_t *meet; /* of chains of products */
    void *scratch;  /* a packed matrix in 16 bits, or rows in 8, for the product
                     * behind it */
    void *normed, *qkv, *attn, *delta, *gate_up, *mlp; /* of T */
    tr_cuda_experts_work_t experts;
    tr_cuda_history_t history;             /* [slots][max_len] */
    int32_t *seq_slot[TR_ATTENTION_PATHS]; /* [max_seqs], where they differ */
    tr_cuda_matmul_t *products, *head_products;
    /* Borrowed, set between open and prepare: where rows are kept, NULL: none
     * are; its row_bytes are those of ld_hidden.  Two buffers through which they
     * come back: normed and delta. */
    const tr_kv_inputs_t *inputs;
    void *came[2], *used[2]; /* events of these */
    void *decode_work, *prompt_work, *generic_work, *sample_work;
    bool fast; /* attention has fast kernels (tr_model_cuda_fast) */
    tr_cuda_decode_size_t decode_size;
    tr_cuda_prompt_size_t prompt_size;
    tr_cuda_generic_size_t generic_size; /* max_seqs: of one launch */

    uint32_t small_gemm_classes; /* bits: steps of such rows have small-batch
                                  * products */
    bool small_gemm;             /* this step has */
    bool alone; /* products of a row in 16 bits are those, one by one */
    uint32_t packed_classes; /* bits: products of such rows read packed
                                  * weights; others read them in 16 bits */
    uint32_t parts;          /* of squares, of the last product */

    const char *failed; /* the launch that failed first, NULL: none */
    int failed_code;
} tr_model_cuda_t;

/* Which rows FP8 weights multiply in FP8. */
typedef enum {
    TR_FP8_DECLARED, /* of checkpoints that were made for it */
    TR_FP8_NEVER,
    TR_FP8_ALWAYS
} tr_fp8_wish_t;

typedef struct {
    const char *dir;           /* borrowed during open */
    const char *ignore_config; /* tr_model_config_load; likewise */
    const char *load_format;   /* "auto" or "dummy" */
    const char *dtype;         /* "auto", "bf16" or "f16" */
    bool packed; /* weights_format auto: what is quantised in the files stays
                  * so, where there are kernels */
    uint64_t dummy_seed;
    tr_fp8_wish_t fp8; /* cuda_activations */
    bool equalise;     /* kv_equalise; weights of files alone */
    bool centre;       /* kv_centre; biases of files alone */
    uint32_t rotate;   /* kv_rotate: bits (rotate.h) */
    const tr_device_t *cuda;
    const tr_cuda_stream_t *stream;
} tr_model_cuda_options_t;

/* Reads config.json and loads the weights, with progress in the log.  Errors
 * say how much memory was needed and how much there is. */
tr_status_t tr_model_cuda_open(const tr_model_cuda_options_t *options,
                               tr_model_cuda_t **out, tr_error_t *err);
void tr_model_cuda_free(tr_model_cuda_t *m);

typedef struct {
    uint32_t max_rows, max_seqs; /* of a step */
    uint32_t max_len;            /* of one sequence */
    uint32_t slots;              /* sequences that the cache holds */
    uint64_t max_tokens;         /* that all of a step cache in one layer and
                                  * list; 0: max_seqs * max_len */
    bool compresses;             /* what is cached may be compressed */
    bool timed;                  /* measure which algorithms are best */
    bool fused;                  /* small_gemm may be taken */
} tr_model_cuda_limits_t;

/* Refuses by name what this backend cannot run of a recipe and a rotation. */
tr_status_t tr_model_cuda_check(const tr_recipe_t *r, uint32_t rotate,
                                tr_error_t *err);

/* The buffers, and the algorithms of the products. */
tr_status_t tr_model_cuda_prepare(tr_model_cuda_t *m,
                                  const tr_model_cuda_limits_t *limits,
                                  tr_error_t *err);

/* A step's arrays, device memory unless said otherwise. */
typedef struct {
    uint32_t n_rows, n_seqs;
    const int32_t *token;    /* [n_rows]; -1: known to the history alone */
    const int32_t *row_slot; /* [n_rows]; -1: padding */
    const uint32_t *row_pos; /* [n_rows] */
    const uint32_t
        *row_chunk;          /* [n_rows] where its rows are kept, and 1; 0: they
                                * are not (tr_cuda_keep_rows) */
    const uint8_t *row_long; /* [n_rows] 1: of a long sequence
                               * (tr_recipe_long_from); NULL: none is */
    const uint32_t *seq_row; /* [n_seqs + 1] */
    const uint8_t *path;     /* [n_seqs] tr_attention_path_t */
    uint32_t paths;          /* bits: which paths occur */
    const uint8_t *host_path; /* host: the same as path; NULL: any may be any */
    /* host: [n_seqs] tokens in front of the uncompressed ones, of sequences of
     * path BEHIND; 0 of others.  NULL: there are none */
    const uint32_t *host_base;

    uint32_t n_samples;
    const uint32_t *gather; /* [n_samples] rows whose logits are wanted */
    const tr_cuda_sampling_t *sampling; /* [n_samples] */
    const tr_cuda_bias_t *bias;
    const int32_t *bar;
    /* of tr_model_cuda_sample_late: [n_samples] and rows (tr_cuda_sample_t) */
    const int32_t *mask_at;
    const uint32_t *mask;
    tr_cuda_sampled_t *sampled; /* [n_samples] */
    tr_cuda_top_t *top;         /* [n_samples][TR_CUDA_TOP_MAX] */
    /* vectors: sums of what the final norm gives for these rows; not of a step
     * that is captured */
    uint32_t n_pool_rows, n_pools;
    const uint32_t *pool; /* [n_pool_rows] rows, those of a vector together */
    const uint32_t *pool_first; /* [n_pools + 1] where they begin in pool */
    float *pooled;              /* [n_pools][hidden] */
    tr_kv_guard_keep_t keep;    /* queries for the guard, n = 0: none; not of a
                                 * step that is captured */
} tr_cuda_step_t;

/* Launches what of a step comes before its first product: the manager's step,
 * which is launched next, runs beside it.  What fails is told by
 * tr_model_cuda_step, which must follow in any case. */
void tr_model_cuda_begin(tr_model_cuda_t *m, const tr_cuda_step_t *step);

/* Launches all layers and the sampling of the step that tr_model_cuda_begin was
 * told of, after the manager's step.  kv: the manager's view; seq_slot: as the
 * manager left it.  0, or not: m->failed and m->failed_code say which launch
 * failed and how. */
int tr_model_cuda_step(tr_model_cuda_t *m, const tr_kv_view_t *kv,
                       const int32_t *seq_slot, const tr_cuda_step_t *step);

/* n rows of a step, from `row` on, that are kept side by side: those of the first
 * layer, in pinned host memory. */
typedef struct {
    uint32_t row, n;
    const uint8_t *from;
} tr_cuda_return_t;

/* In place of tr_model_cuda_step: the keys and values of all rows are made of what
 * is kept of them, and enter the cache; nothing else is computed. */
int tr_model_cuda_return(tr_model_cuda_t *m, const tr_kv_view_t *kv,
                         const int32_t *seq_slot, const tr_cuda_step_t *step,
                         const tr_cuda_return_t *piece, uint32_t n);

/* Behind tr_model_cuda_step, or the graph of one, and in front of the next: samples
 * the rows whose sampling is `late`, which that step passed over. */
int tr_model_cuda_sample_late(tr_model_cuda_t *m, const int32_t *seq_slot,
                              const tr_cuda_step_t *step);

/* Which path a sequence with this policy goes: its rows in the step, and where
 * its uncompressed positions begin. */
tr_attention_path_t tr_model_cuda_path(const tr_model_cuda_t *m,
                                       const tr_kv_policy_t *policy,
                                       uint32_t base, uint32_t n_rows);

/* Do the fast kernels of attention have its head size and groups?  plain: for
 * uncompressed tokens without scores alone; hopper: compute capability 9. */
static inline bool
tr_model_cuda_fast(const tr_recipe_t *c, bool plain, bool hopper)
{
    uint32_t group = c->query_heads / c->kv_heads;

    return c->head_dim == 256 ? plain && hopper && group <= 8
                              : (c->head_dim == 64 || c->head_dim == 128)
                                    && group <= (plain ? 16u : 8u);
}

/* The first layer that has a part; 0 of the model's. */
static inline uint32_t
tr_model_cuda_with(const tr_recipe_t *r, tr_part_t part)
{
    uint32_t l = 0;

    while (tr_part_layered(part) && l + 1 < r->layers
           && tr_part_shape(r, part, l).rows == 0) {
        l++;
    }
    return l;
}

/* y = x * w^T, w of a part's shape (in any layer that has it); that of the
 * embedding is that of the head, whose results are FP32, as the router's are. */
static inline tr_cuda_product_t
tr_model_cuda_product(const tr_model_cuda_t *m, tr_part_t part, const void *w,
                      const void *x, size_t ldx, uint32_t rows, void *y,
                      size_t ldy)
{
    const tr_recipe_t *r = &m->config.recipe;
    tr_part_shape_t shape = tr_part_shape(r, part, tr_model_cuda_with(r, part));
    bool wide = part == TR_PART_EMBED || part == TR_PART_ROUTER;

    return (tr_cuda_product_t){ .rows = rows,
                                .n = shape.rows,
                                .k = shape.columns,
                                .type = m->type,
                                .out = wide ? TR_F32 : m->type,
                                .x = x,
                                .w = w,
                                .y = y,
                                .ldx = ldx,
                                .ldy = ldy };
}

/* The rows of the QKV product that are of keys and values, 16 bits: their product,
 * to where the whole one leaves them. */
static inline tr_cuda_product_t
tr_model_cuda_keys(const tr_model_cuda_t *m, uint32_t layer, const void *x,
                   uint32_t rows)
{
    const tr_recipe_t *r = &m->config.recipe;
    size_t q = (size_t) r->query_heads * r->head_dim;
    tr_cuda_product_t p = tr_model_cuda_product(
        m, TR_PART_QKV, m->layers[layer].part[TR_PART_QKV], x, m->ld_hidden,
        rows, m->qkv, m->ld_qkv);

    p.n -= (uint32_t) q;
    p.w = (const uint8_t *) p.w + 2 * q * p.k;
    p.y = (uint8_t *) p.y + 2 * q;
    return p;
}

/* Where rows of so many columns are in 8 bits. */
static inline tr_cuda_fp8_t
tr_model_cuda_fp8_rows(const tr_model_cuda_t *m, uint32_t columns)
{
    size_t codes = tr_pad((size_t) m->max_rows * columns, 256);

    return (
        tr_cuda_fp8_t){ .codes = m->scratch,
                        .scales = (float *) ((uint8_t *) m->scratch + codes),
                        .ld = tr_pad(m->max_rows, TR_FP8_PAD) };
}

static inline const tr_cuda_table_t *
tr_model_cuda_table(const tr_model_cuda_t *m, uint32_t layer)
{
    uint8_t table = m->config.recipe.layer[layer].rope;

    return &m->rope[table == TR_ROPE_NONE ? TR_CUDA_ANGLES_NONE : table];
}

/* How many numbers the memory of logits has: at least a row of hidden, too. */
static inline size_t
tr_model_cuda_logits(const tr_model_cuda_t *m)
{
    size_t n = tr_cuda_matmul_rows(m->logit_rows) * m->ld_logits;

    return n > m->ld_hidden ? n : m->ld_hidden;
}

/* What attention of every layer reads and writes. */
static inline tr_cuda_queries_t
tr_model_cuda_queries(const tr_model_cuda_t *m)
{
    return (tr_cuda_queries_t){ .q = m->qkv,
                                .out = m->attn,
                                .ldq = m->ld_qkv,
                                .ldo = m->ld_attn,
                                .q_type = m->type,
                                .out_type = m->type,
                                .heads = m->config.recipe.query_heads,
                                .scale = m->config.recipe.attn_scale };
}

static inline const void *
tr_model_cuda_head(const tr_model_cuda_t *m)
{
    return m->root.part[m->config.recipe.tied ? TR_PART_EMBED : TR_PART_HEAD];
}

/* ---- model_cuda_small_gemm.c: small-batch products ---- */

#define TR_CUDA_SMALL_GEMM_CLASSES 4u /* up to 8, 16, 32, 64 rows */

/* What is between a layer's attention and the next.  False: a launch has failed
 * (m->failed). */
bool tr_model_cuda_small_gemm_rest(tr_model_cuda_t *m, uint32_t layer,
                                   uint32_t rows);

static inline uint32_t
tr_model_cuda_class(uint32_t rows)
{
    return rows <= 8 ? 0 : rows <= 16 ? 1 : rows <= 32 ? 2 : 3;
}

/* Does a step of so many rows have them? */
static inline bool
tr_model_cuda_is_small(const tr_model_cuda_t *m, uint32_t rows)
{
    return rows <= TR_CUDA_SMALL_GEMM_ROWS
           && (m->small_gemm_classes >> tr_model_cuda_class(rows) & 1) != 0;
}

/* Sets small_gemm_classes; timed: where they are faster than cuBLASLt's with a
 * norm and an activation between, else wherever they can be done; the results
 * must agree.  False: no memory (cuda->reason). */
bool tr_model_cuda_choose_small_gemm(tr_model_cuda_t *m, bool timed);

/* ---- model_cuda_step.c ---- */

/* Keeps what failed first; the rest of a step is not launched.  Between
 * tr_model_cuda_begin and tr_model_cuda_step also for what others launch. */
bool tr_model_cuda_launched(tr_model_cuda_t *m, int rc, const char *what);

/* What is between a layer's attention and the next, as m->small_gemm says; so
 * many norms stand for attention. */
bool tr_model_cuda_products(tr_model_cuda_t *m, uint32_t layer, uint32_t rows,
                            uint32_t norms);

/* A product by a layer's part, or by the head (TR_PART_EMBED), launched in a
 * stream. */
bool tr_model_cuda_multiply(tr_model_cuda_t *m, const tr_cuda_stream_t *stream,
                            tr_part_t part, uint32_t layer, const void *x,
                            size_t ldx, uint32_t rows, void *y, size_t ldy);

/* ---- model_cuda_packed.c: weights that stay quantised ---- */

/* Says of every part in which form it is kept (tr_cuda_parts_t.form), by its
 * tensors, or of a dummy (NULL) by config.json; type becomes BF16 where one is
 * packed. */
tr_status_t tr_model_cuda_choose_forms(tr_model_cuda_t *m,
                                       const tr_safetensors_t *st,
                                       tr_error_t *err);

/* Are many rows that a part multiplies rounded to FP8? */
bool tr_model_cuda_in_fp8(const tr_model_cuda_t *m, tr_part_t part,
                          uint32_t layer);

typedef struct {
    tr_model_tensor_t t;
    const tr_tensor_t *tensor; /* of the reader */
} tr_cuda_packed_tensor_t;

/* A packed part that is made on the host, piece by piece. */
typedef struct {
    const tr_model_cuda_t *m;
    tr_weight_form_t form;
    uint32_t n, k, tensors, capacity;
    tr_cuda_packed_tensor_t *of; /* [tensors], by their rows */
    uint32_t chunk, chunks;      /* of 64 columns, those that are made */
    uint64_t seed, word; /* of a dummy, which has no tensors: the word of
                                  * its codes where those that are made begin */
    uint8_t *to;
} tr_cuda_packing_t;

/* The part that a tensor begins, and the others of it, none of a dummy's (st is
 * NULL); *at: as tr_model_tensor_next left it.  TR_ERR_FORMAT: codes are no numbers.  Closed in
 * any case. */
tr_status_t tr_model_cuda_packing_open(tr_cuda_packing_t *p,
                                       const tr_model_cuda_t *m,
                                       const tr_safetensors_t *st,
                                       const tr_model_tensor_t *first,
                                       uint32_t at, tr_error_t *err);
/* The tensors will not be read again soon. */
void tr_model_cuda_packing_close(tr_cuda_packing_t *p);
/* Blocks of rows [first, end), in sixteens, of the chunks; for a thread pool. */
void tr_model_cuda_pack_codes(void *packing, uint32_t first, uint32_t end,
                              uint32_t worker);
/* The scales of a group into its line (tr_weight_scale_put). */
void tr_model_cuda_pack_scales(const tr_cuda_packing_t *p, uint32_t group,
                               uint8_t *line);
/* The same of a dummy: words [first, end) of codes behind `word`, which are all
 * numbers; scales with which weights have about the deviation that they should. */
void tr_model_cuda_dummy_codes(void *packing, uint32_t first, uint32_t end,
                               uint32_t worker);
void tr_model_cuda_dummy_scales(const tr_cuda_packing_t *p, uint32_t group,
                                uint8_t *line);

/* Before a layer's MLP: hidden += what attention gave, normed is made. */
tr_cuda_norm_t tr_model_cuda_norm_mlp(tr_model_cuda_t *m, uint32_t layer,
                                      uint32_t rows);

/* model_cuda_experts.c: that norm, and what a layer's experts make of normed, into
 * delta. */
bool tr_model_cuda_experts(tr_model_cuda_t *m, uint32_t layer, uint32_t rows);

/* model_cuda_weights.c: takes the memory of the weights and fills it. */
tr_status_t tr_model_cuda_load(tr_model_cuda_t *m,
                               const tr_model_cuda_options_t *options,
                               tr_error_t *err);

/* "12.3 GiB of memory are needed for WHAT, the GPU has 4.0 GiB free": err. */
tr_status_t tr_model_cuda_no_memory(const tr_model_cuda_t *m, const char *what,
                                    size_t bytes, tr_error_t *err);

#endif
