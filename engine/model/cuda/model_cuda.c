/*
 * model_cuda.h: opening a model, the buffers of a step, and the choice of its
 * products' algorithms.
 */
#include "model_cuda.h"

#include <stdlib.h>
#include <string.h>

#include "engine/config/log.h"

/* The generic kernel's workspace is for so many sequences that it stays below
 * this, at least for one. */
#define GENERIC_BYTES (128u << 20)
#define GENERIC_SEQS 64u
/* What is compressed is unpacked for later turns as far as this holds it, of so
 * many of the longest sequences; of one's KV head at least all. */
#define CONTEXT_BYTES (512u << 20)
#define CONTEXT_SEQS 4u
/* Whose weights products are timed with: together more than a cache holds. */
#define TIMED_LAYERS 16u

/* ---- buffers ------------------------------------------------------------ */

static size_t
room(size_t *at, size_t bytes)
{
    size_t here = *at;

    *at += tr_pad(bytes, 256);
    return here;
}

static size_t
generic_bytes(const tr_model_cuda_t *m, uint32_t seqs)
{
    tr_cuda_generic_size_t size = m->generic_size;

    size.max_seqs = seqs;
    return m->cuda->attention_work(&size);
}

/* Rows of scratch for what is compressed. */
static uint32_t
context_rows(const tr_model_cuda_t *m, const tr_model_cuda_limits_t *limits)
{
    const tr_recipe_t *c = &m->config.recipe;
    uint32_t seqs = limits->max_seqs < CONTEXT_SEQS ? limits->max_seqs
                                                    : CONTEXT_SEQS;
    uint64_t head = tr_cuda_context_rows(limits->max_len);
    uint64_t all = head * c->kv_heads * seqs;
    uint64_t fit = CONTEXT_BYTES / (4 * c->head_dim);

    if (!limits->compresses || !m->fast) {
        return 0;
    }
    fit = fit < head ? head : fit;
    return (uint32_t) (fit < all ? fit : all);
}

/* Sizes of the attention's workspaces, in counting order. */
static void
size_attention(tr_model_cuda_t *m, const tr_model_cuda_limits_t *limits)
{
    const tr_recipe_t *c = &m->config.recipe;
    uint64_t tokens = (uint64_t) limits->max_seqs * limits->max_len;
    uint32_t seqs = limits->max_seqs < GENERIC_SEQS ? limits->max_seqs
                                                    : GENERIC_SEQS;

    if (limits->max_tokens != 0 && limits->max_tokens < tokens) {
        tokens = limits->max_tokens;
    }
    m->decode_size = (tr_cuda_decode_size_t){ .layers = c->layers,
                                              .kv_heads = c->kv_heads,
                                              .head_dim = c->head_dim,
                                              .max_seqs = limits->max_seqs,
                                              .heads = c->query_heads,
                                              .max_tokens = tokens,
                                              .page_tokens = 8 };
    m->prompt_size = (tr_cuda_prompt_size_t){ .kv_heads = c->kv_heads,
                                              .head_dim = c->head_dim,
                                              .heads = c->query_heads,
                                              .max_rows = limits->max_rows,
                                              .max_seqs = limits->max_seqs,
                                              .max_len = limits->max_len,
                                              .path = TR_PROMPT_BEST,
                                              .context = context_rows(m,
                                                                      limits) };
    m->generic_size = (tr_cuda_generic_size_t){ .kv_heads = c->kv_heads,
                                                .head_dim = c->head_dim,
                                                .heads = c->query_heads,
                                                .max_rows = limits->max_rows,
                                                .max_len = limits->max_len };
    while (seqs > 1 && generic_bytes(m, seqs) > GENERIC_BYTES) {
        seqs /= 2;
    }
    m->generic_size.max_seqs = seqs;
}

/* Of a dense MLP, or of the expert that all rows go to. */
static uint32_t
widest_mlp(const tr_recipe_t *r)
{
    return r->intermediate > r->moe.shared ? r->intermediate : r->moe.shared;
}

/* Rows in 8 bits: codes and, behind them, scales of blocks. */
static size_t
fp8_bytes(const tr_model_cuda_t *m)
{
    size_t blocks = m->fp8_columns / TR_FP8_BLOCK;

    return tr_pad((size_t) m->max_rows * m->fp8_columns, 256)
           + blocks * tr_pad(m->max_rows, TR_FP8_PAD) * sizeof(float);
}

/* A field of the workspace, whose next free byte is at *at. */
#define TAKE(field, bytes)                               \
    do {                                                 \
        size_t here = room(at, bytes);                   \
        m->field = base ? (void *) (base + here) : NULL; \
    } while (0)

/* Of a step, activations of all rows: [rows][ld_...], rows as padded. */
static void
layout_rows(tr_model_cuda_t *m, uint8_t *base, size_t *at)
{
    const tr_recipe_t *c = &m->config.recipe;
    size_t rows = tr_cuda_matmul_rows(m->max_rows);
    size_t q = (size_t) c->query_heads * c->head_dim;

    m->ld_hidden = tr_pad(c->hidden, 8);
    m->ld_qkv = tr_pad(tr_part_shape(c, TR_PART_QKV, 0).rows, 8);
    m->ld_attn = tr_pad(q, 8);
    m->ld_gate_up = tr_pad(2 * (size_t) widest_mlp(c), 8);
    m->ld_mlp = tr_pad(widest_mlp(c), 8);
    TAKE(hidden, rows * m->ld_hidden * 4);
    for (uint32_t i = 0; i <= TR_CUDA_ANGLES_NONE; i++) {
        if (m->rope[i].used) {
            TAKE(rope[i].of_rows, rows * c->head_dim * 4);
            m->rope[i].of_queries = m->rope[i].of_rows;
        }
        if (m->rope[i].used && c->query_temp.beta != 0) {
            TAKE(rope[i].of_queries, rows * c->head_dim * 4);
        }
    }
    TAKE(normed, rows * m->ld_hidden * 2);
    TAKE(qkv, rows * m->ld_qkv * 2);
    TAKE(attn, rows * m->ld_attn * 2);
    TAKE(meet, sizeof(uint32_t));
    TAKE(scratch,
         m->largest_packed > fp8_bytes(m) ? m->largest_packed : fp8_bytes(m));
    TAKE(squares,
         TR_CUDA_SMALL_GEMM_ROWS * TR_CUDA_SMALL_GEMM_PARTS * sizeof(float));
    TAKE(delta, rows * m->ld_hidden * 2);
    TAKE(gate_up, rows * m->ld_gate_up * 2);
    TAKE(mlp, rows * m->ld_mlp * 2);
}

static void
layout_experts(tr_model_cuda_t *m, uint8_t *base, size_t *at)
{
    const tr_moe_t *c = &m->config.recipe.moe;
    size_t rows = tr_cuda_matmul_rows(m->max_rows);
    size_t places = (size_t) m->max_rows * c->route.top_k;

    m->experts.ld_logits = tr_pad(c->route.experts, 8);
    m->experts.ld_gate_up = tr_pad(2 * (size_t) c->width, 8);
    m->experts.ld_mlp = tr_pad(c->width, 8);
    TAKE(experts.logits, rows * m->experts.ld_logits * 4);
    TAKE(experts.expert, places * 4);
    TAKE(experts.place, places * 4);
    TAKE(experts.weight, places * 4);
    TAKE(experts.first, (c->route.experts + (size_t) 1) * 4);
    TAKE(experts.row, places * 4);
    TAKE(experts.meet, sizeof(uint32_t));
    TAKE(experts.gate_up, places * m->experts.ld_gate_up * 2);
    TAKE(experts.mlp, places * m->experts.ld_mlp * 2);
    TAKE(experts.output, places * m->ld_hidden * 2);
    TAKE(experts.shared, rows * m->ld_hidden * 2);
}

static void
layout_logits(tr_model_cuda_t *m, uint8_t *base, size_t *at)
{
    m->ld_logits = tr_pad(m->config.recipe.vocab, 8);
    TAKE(logits, tr_model_cuda_logits(m) * 4);
    TAKE(history.token, (size_t) m->slots * m->max_len * sizeof(int32_t));
    m->history.len = m->max_len;
    for (int path = 0; path < TR_ATTENTION_PATHS; path++) {
        TAKE(seq_slot[path], m->max_seqs * sizeof(int32_t));
    }
}

/* What kernels work in. */
static void
layout_kernels(tr_model_cuda_t *m, uint8_t *base, size_t *at)
{
    TAKE(decode_work,
         m->fast ? m->cuda->decode_work(m->stream->device, &m->decode_size)
                 : 0);
    TAKE(prompt_work, m->fast ? m->cuda->prompt_work(&m->prompt_size) : 0);
    TAKE(generic_work, m->cuda->attention_work(&m->generic_size));
    TAKE(sample_work, m->cuda->sample_work(m->stream->device, m->logit_rows,
                                           m->config.recipe.vocab));
}

/* Lays out the workspace; with base NULL only counts. */
static size_t
layout(tr_model_cuda_t *m, uint8_t *base)
{
    size_t at = 0;

    layout_rows(m, base, &at);
    if (m->config.recipe.moe.route.experts != 0) {
        layout_experts(m, base, &at);
    }
    layout_logits(m, base, &at);
    layout_kernels(m, base, &at);
    return at;
}

tr_status_t
tr_model_cuda_no_memory(const tr_model_cuda_t *m, const char *what,
                        size_t bytes, tr_error_t *err)
{
    tr_cuda_device_info_t info = { .name = "" };

    m->cuda->device_info(m->stream->device->ordinal, &info);
    return tr_error_set(err, TR_ERR_NOMEM, "device",
                        "backend cuda: out of memory: %s need %.2f GiB, device "
                        "%d has %.2f GiB free of %.2f GiB",
                        what, (double) bytes * 0x1p-30,
                        m->stream->device->ordinal,
                        (double) info.free_memory * 0x1p-30,
                        (double) info.memory * 0x1p-30);
}

/* ---- products ----------------------------------------------------------- */

/* Chooses algorithms of a part's products: y = x w^T, w that of any layer; of one
 * that no layer has there are none. */
static int
choose_part(tr_model_cuda_t *m, tr_part_t part, const void *x, size_t ldx,
            void *y, size_t ldy, bool timed)
{
    const void *w[TIMED_LAYERS];
    uint32_t n = 0;
    tr_cuda_product_t p;

    for (uint32_t l = 0; l < m->config.recipe.layers && n < TIMED_LAYERS; l++) {
        if (m->layers[l].part[part] != NULL
            && m->layers[l].form[part].format == TR_WEIGHT_16) {
            w[n++] = m->layers[l].part[part];
        }
    }
    if (n == 0
        && tr_part_shape(&m->config.recipe, part,
                         tr_model_cuda_with(&m->config.recipe, part))
                   .rows
               != 0) {
        w[n++] = m->scratch; /* all are packed */
    }
    if (n == 0) {
        return 0;
    }
    p = tr_model_cuda_product(m, part, w[0], x, ldx, m->max_rows, y, ldy);
    return m->cuda->matmul_choose(m->products, m->stream, &p, w, timed ? n : 0);
}

/* Of keys and values alone, where rows come back. */
static int
choose_keys(tr_model_cuda_t *m, bool timed)
{
    const void *w[TIMED_LAYERS];
    uint32_t n = m->config.recipe.layers;
    tr_cuda_product_t p;

    n = n < TIMED_LAYERS ? n : TIMED_LAYERS;
    for (uint32_t l = 0; l < n && m->inputs != NULL; l++) {
        if (m->layers[l].form[TR_PART_QKV].format != TR_WEIGHT_16) {
            return 0; /* all products are of queries, too */
        }
        w[l] = tr_model_cuda_keys(m, l, m->normed, m->max_rows).w;
    }
    if (m->inputs == NULL) {
        return 0;
    }
    p = tr_model_cuda_keys(m, 0, m->normed, m->max_rows);
    return m->cuda->matmul_choose(m->products, m->stream, &p, w, timed ? n : 0);
}

static int
choose_head(tr_model_cuda_t *m, bool timed)
{
    tr_cuda_product_t p = tr_model_cuda_product(m, TR_PART_EMBED,
                                                tr_model_cuda_head(m),
                                                m->normed, m->ld_hidden,
                                                m->logit_rows, m->logits,
                                                m->ld_logits);

    return m->cuda->matmul_choose(m->head_products, m->stream, &p, &p.w,
                                  timed ? 1 : 0);
}

static tr_status_t
choose(tr_model_cuda_t *m, bool timed, tr_error_t *err)
{
    const tr_device_t *cuda = m->cuda;
    const struct {
        tr_part_t part;
        const void *x;
        size_t ldx;
        void *y;
        size_t ldy;
    } of_layers[] = {
        { TR_PART_QKV, m->normed, m->ld_hidden, m->qkv, m->ld_qkv },
        { TR_PART_O, m->attn, m->ld_attn, m->delta, m->ld_hidden },
        { TR_PART_GATE_UP, m->normed, m->ld_hidden, m->gate_up, m->ld_gate_up },
        { TR_PART_DOWN, m->mlp, m->ld_mlp, m->delta, m->ld_hidden },
        { TR_PART_ROUTER, m->normed, m->ld_hidden, m->experts.logits,
          m->experts.ld_logits },
        { TR_PART_SHARED_GATE_UP, m->normed, m->ld_hidden, m->gate_up,
          m->ld_gate_up },
        { TR_PART_SHARED_DOWN, m->mlp, m->ld_mlp, m->experts.shared,
          m->ld_hidden },
    };
    int rc = cuda->matmul_open(m->stream->device, m->max_rows, &m->products);

    for (size_t i = 0; rc == 0 && i < sizeof(of_layers) / sizeof(*of_layers);
         i++) {
        rc = choose_part(m, of_layers[i].part, of_layers[i].x, of_layers[i].ldx,
                         of_layers[i].y, of_layers[i].ldy, timed);
    }
    if (rc == 0) {
        rc = choose_keys(m, timed);
    }
    if (rc == 0) {
        rc = cuda->matmul_open(m->stream->device, m->logit_rows,
                               &m->head_products);
    }
    if (rc == 0) {
        rc = choose_head(m, timed);
    }
    return rc == 0 ? TR_OK
                   : tr_error_set(err, TR_ERR_INTERNAL, "model",
                                  "backend cuda: no matrix product of this "
                                  "model's shapes: %s",
                                  rc == TR_KERNEL_BADARG ? "not supported"
                                                         : cuda->reason());
}

static bool
open_side(tr_model_cuda_t *m)
{
    tr_cuda_side_t *s = &m->side;

    bool good = true;

    for (uint32_t i = 0; i < 2 && m->inputs != NULL; i++) {
        good = good && m->cuda->event_open(&m->came[i]) == 0
               && m->cuda->event_open(&m->used[i]) == 0;
    }
    return good && m->cuda->stream_open(m->stream->device, &s->stream) == 0
           && m->cuda->event_open(&s->begun) == 0
           && m->cuda->event_open(&s->ended) == 0;
}

static void
close_side(tr_model_cuda_t *m)
{
    for (uint32_t i = 0; i < 2; i++) {
        m->cuda->event_close(m->came[i]);
        m->cuda->event_close(m->used[i]);
    }
    m->cuda->event_close(m->side.begun);
    m->cuda->event_close(m->side.ended);
    m->cuda->stream_close(&m->side.stream);
}

/* Which kernels of attention there are; says so where they are slow. */
static void
choose_attention(tr_model_cuda_t *m, const tr_model_cuda_limits_t *limits)
{
    const tr_recipe_t *r = &m->config.recipe;
    const bool hopper = m->stream->device->code / 10 == 9;

    m->fast = tr_model_cuda_fast(r, !limits->compresses, hopper);
    if (!m->fast) {
        tr_log(TR_LEVEL_WARN,
               "attention of this model is slow on a GPU: the fast kernels "
               "have head sizes 64 and 128 and up to 8 query heads on a KV "
               "head; where no policy compresses, up to 16, and on compute "
               "capability 9.0 also head size 256 with up to 8 head_dim=%u "
               "group=%u compresses=%s",
               r->head_dim, r->query_heads / r->kv_heads,
               limits->compresses ? "yes" : "no");
    }
}

tr_status_t
tr_model_cuda_prepare(tr_model_cuda_t *m, const tr_model_cuda_limits_t *limits,
                      tr_error_t *err)
{
    tr_status_t status;

    choose_attention(m, limits);
    m->max_rows = limits->max_rows;
    m->max_seqs = limits->max_seqs;
    m->max_len = limits->max_len;
    m->slots = limits->slots;
    m->logit_rows = m->max_rows < TR_CUDA_LOGIT_ROWS ? m->max_rows
                                                     : TR_CUDA_LOGIT_ROWS;
    size_attention(m, limits);
    m->work_size = layout(m, NULL);
    m->work = m->cuda->alloc(m->work_size);
    if (m->work == NULL) {
        return tr_model_cuda_no_memory(m,
                                       "workspaces (max_batch_tokens, "
                                       "max_num_seqs * max_model_len)",
                                       m->work_size, err);
    }
    layout(m, m->work);
    /* padding rows are read before anything was written there */
    if (m->cuda->fill(m->stream, m->work, 0, m->work_size) != 0
        || !open_side(m)) {
        return tr_error_set(err, TR_ERR_INTERNAL, "device", "backend cuda: %s",
                            m->cuda->reason());
    }
    m->packed_classes = limits->fused ? ~0u : 0;
    status = choose(m, limits->timed, err);
    if (status == TR_OK && limits->fused
        && !tr_model_cuda_choose_small_gemm(m, limits->timed)) {
        status = tr_error_set(err, TR_ERR_INTERNAL, "device",
                              "backend cuda: %s", m->cuda->reason());
    }
    return status;
}

/* ---- open and free ------------------------------------------------------ */

/* What the kernels rely on. */
static tr_status_t
check_shape(const tr_recipe_t *c, tr_error_t *err)
{
    if (c->head_dim % 16 != 0 || c->head_dim > TR_HEAD_DIM_MAX
        || c->query_heads % c->kv_heads != 0
        || c->query_heads / c->kv_heads > TR_GROUP_MAX) {
        return tr_error_set(err, TR_ERR_UNSUPPORTED, "model",
                            "backend cuda: head size %u with %u query heads on "
                            "%u KV heads: expected a multiple of 16 up to %u, "
                            "and at most %u query heads on one",
                            c->head_dim, c->query_heads, c->kv_heads,
                            TR_HEAD_DIM_MAX, TR_GROUP_MAX);
    }
    if (c->hidden % 8 != 0 || c->intermediate % 8 != 0) {
        return tr_error_set(err, TR_ERR_UNSUPPORTED, "model",
                            "backend cuda: hidden_size %u, intermediate_size "
                            "%u: expected multiples of 8",
                            c->hidden, c->intermediate);
    }
    if (c->moe.width % 8 != 0 || c->moe.shared % 8 != 0) {
        return tr_error_set(err, TR_ERR_UNSUPPORTED, "model",
                            "backend cuda: experts of %u, a shared one of %u: "
                            "expected multiples of 8",
                            c->moe.width, c->moe.shared);
    }
    return TR_OK;
}

tr_status_t
tr_model_cuda_check(const tr_recipe_t *r, uint32_t rotate, tr_error_t *err)
{
    static const tr_recipe_support_t support = {
        .name = "cuda",
        .can = TR_CAN_NORMS | TR_CAN_ROPES | TR_CAN_SCALES | TR_CAN_REACH
               | TR_CAN_EXPERTS,
        .biases = TR_BIAS_QKV | TR_BIAS_O,
        .qk_norms = 1u << TR_QK_NORM_NONE | 1u << TR_QK_NORM_HEAD
                    | 1u << TR_QK_NORM_ROW,
        .acts = TR_CUDA_ACTS,
    };
    tr_status_t rc = tr_recipe_check(r, &support, err);

    if (rc == TR_OK) {
        rc = tr_rotate_check(r, rotate, err);
    }
    return rc == TR_OK ? check_shape(r, err) : rc;
}

tr_status_t
tr_model_cuda_open(const tr_model_cuda_options_t *options,
                   tr_model_cuda_t **out, tr_error_t *err)
{
    tr_model_cuda_t *m = calloc(1, sizeof(*m));
    tr_status_t rc;

    if (m == NULL) {
        return tr_error_set(err, TR_ERR_NOMEM, "", "out of memory");
    }
    m->cuda = options->cuda;
    m->stream = options->stream;
    rc = tr_model_config_load(options->dir, options->ignore_config, &m->config,
                              err);
    if (rc == TR_OK) {
        m->rotate = tr_rotate_resolve(&m->config, options->rotate,
                                      options->packed, false);
        rc = tr_model_cuda_check(&m->config.recipe, m->rotate, err);
    }
    if (rc == TR_OK) {
        rc = tr_model_cuda_load(m, options, err);
    }
    if (rc != TR_OK) {
        tr_model_cuda_free(m);
        return rc;
    }
    *out = m;
    return TR_OK;
}

void
tr_model_cuda_free(tr_model_cuda_t *m)
{
    if (m == NULL) {
        return;
    }
    close_side(m);
    if (m->products != NULL) {
        m->cuda->matmul_close(m->products);
    }
    if (m->head_products != NULL) {
        m->cuda->matmul_close(m->head_products);
    }
    if (m->work != NULL) {
        m->cuda->release(m->work);
    }
    if (m->weights != NULL) {
        m->cuda->release(m->weights);
    }
    tr_equalise_free(m->equalise);
    tr_centre_free(m->centre);
    free(m->layers);
    free(m);
}
