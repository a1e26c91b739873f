/*
 * model_cuda.h: the launches of a step.  Attention is model_cuda_attention.c,
 * what comes behind the last layer model_cuda_logits.c.
 *
 *   embed: token (or what history has) -> hidden       angles of all rows
 *          norm of the first layer, beside the manager's step; product qkv,
 *          beside the plan of attention and the cache's moves
 *   layer: norm (adds what the layer before gave), product qkv, bias, norms and
 *          rotation of heads with their append to the cache, attention, product
 *          o; norm (adds o), product gate_up, activation, product down.  What is
 *          added may be normalised and scaled first, as the recipe says; in
 *          place of the last three there may be experts (model_cuda_experts.c)
 *          With few rows these are one kernel beside append and attention
 *          (model_cuda_small_gemm.c).
 *   wanted rows, TR_CUDA_LOGIT_ROWS at a time: norm, product with the head,
 *          scale and cap, sampling, beside the scores of the last layer
 */
#include "model_cuda_step.h"

/* ---- launches ----------------------------------------------------------- */

bool
tr_model_cuda_launched(tr_model_cuda_t *m, int rc, const char *what)
{
    if (rc != 0 && m->failed == NULL) {
        m->failed = what;
        m->failed_code = rc;
    }
    return m->failed == NULL;
}

static bool
launched(tr_model_cuda_t *m, int rc, const char *what)
{
    return tr_model_cuda_launched(m, rc, what);
}

/* So many rows are two products of few; more read what unpack makes. */
#define PACKED_ROWS (2 * TR_CUDA_SMALL_GEMM_ROWS)

/* Rows [first, first + rows), that read packed weights. */
static bool
multiply_few(tr_model_cuda_t *m, const tr_cuda_stream_t *stream,
             tr_weight_form_t form, const tr_cuda_product_t *p, uint32_t first,
             uint32_t rows)
{
    const tr_cuda_small_gemm_t few = {
        .mode = TR_CUDA_SMALL_GEMM_PLAIN,
        .rows = rows,
        .n = p->n,
        .k = p->k,
        .x = (const uint8_t *) p->x + 2 * first * p->ldx,
        .w = p->w,
        .form = form,
        .y = (uint8_t *) p->y + 2 * first * p->ldy,
        .ldx = p->ldx,
        .ldy = p->ldy
    };

    return launched(m, m->cuda->small_gemm(stream, &few, 1, m->meet),
                    "small_gemm");
}

/* Do all rows of a product read packed weights? */
static bool
reads_packed(const tr_model_cuda_t *m, uint32_t rows)
{
    uint32_t most = TR_CUDA_SMALL_GEMM_ROWS;
    uint32_t rest = rows <= most ? rows : rows - most;

    return rows <= PACKED_ROWS
           && (m->packed_classes >> tr_model_cuda_class(rest) & 1) != 0
           && (rows <= most
               || (m->packed_classes >> tr_model_cuda_class(most) & 1) != 0);
}

/* By FP8, of rows in FP8; gated: of gate and up. */
static bool
multiply_fp8(tr_model_cuda_t *m, const tr_cuda_stream_t *stream,
             tr_weight_form_t form, const tr_cuda_product_t *p, bool gated)
{
    const tr_cuda_fp8_round_t rows = { .rows = p->rows,
                                       .k = p->k,
                                       .blocks = form.group != 0,
                                       .x = p->x,
                                       .ldx = p->ldx,
                                       .to = tr_model_cuda_fp8_rows(m, p->k) };
    const tr_cuda_fp8_gemm_t gemm = { .rows = p->rows,
                                      .n = p->n,
                                      .k = p->k,
                                      .gated = gated,
                                      .act = TR_ACT_SILU,
                                      .x = rows.to,
                                      .w = p->w,
                                      .form = form,
                                      .y = p->y,
                                      .ldy = p->ldy };

    return launched(m, m->cuda->fp8_round(stream, &rows), "fp8_round")
           && launched(m, m->cuda->fp8_gemm(stream, &gemm), "fp8_gemm");
}

/* By packed weights. */
static bool
multiply_packed(tr_model_cuda_t *m, const tr_cuda_stream_t *stream,
                tr_weight_form_t form, const tr_cuda_product_t *p)
{
    uint32_t most = TR_CUDA_SMALL_GEMM_ROWS;
    uint32_t first = p->rows <= most ? p->rows : most;
    const tr_cuda_unpack_t unpack = {
        .n = p->n, .k = p->k, .form = form, .w = p->w, .out = m->scratch
    };
    tr_cuda_product_t many = *p;

    if (reads_packed(m, p->rows)) {
        return multiply_few(m, stream, form, p, 0, first)
               && (first == p->rows
                   || multiply_few(m, stream, form, p, first, p->rows - first));
    }
    many.w = m->scratch;
    return launched(m, m->cuda->unpack(stream, &unpack), "unpack")
           && launched(m, m->cuda->matmul(stream, m->products, &many),
                       "matmul");
}

/* A row by 16 bits, where layers have no chains: a kernel that lets others begin, and
 * begins, early. */
static bool
is_alone(const tr_model_cuda_t *m, const tr_cuda_product_t *p)
{
    return m->alone && p->rows == 1 && p->out == TR_BF16
           && m->cuda->small_gemm_fits(m->stream->device, p->n, p->k);
}

bool
tr_model_cuda_multiply(tr_model_cuda_t *m, const tr_cuda_stream_t *stream,
                       tr_part_t part, uint32_t layer, const void *x,
                       size_t ldx, uint32_t rows, void *y, size_t ldy)
{
    const tr_cuda_parts_t *of = &m->layers[layer];
    const void *w = part == TR_PART_EMBED ? tr_model_cuda_head(m)
                                          : of->part[part];
    tr_cuda_product_t p = tr_model_cuda_product(m, part, w, x, ldx, rows, y,
                                                ldy);

    if (part != TR_PART_EMBED && rows > PACKED_ROWS
        && tr_model_cuda_in_fp8(m, part, layer)) {
        return multiply_fp8(m, stream, of->form[part], &p, false);
    }
    if (part != TR_PART_EMBED && of->form[part].format != TR_WEIGHT_16) {
        return multiply_packed(m, stream, of->form[part], &p);
    }
    if (part != TR_PART_EMBED && is_alone(m, &p)) {
        return multiply_few(m, stream, of->form[part], &p, 0, rows);
    }
    return launched(m,
                    m->cuda->matmul(stream,
                                    part == TR_PART_EMBED ? m->head_products
                                                          : m->products,
                                    &p),
                    "matmul");
}

tr_cuda_norm_t
tr_model_cuda_norm(tr_model_cuda_t *m, uint32_t rows, const void *delta,
                   const void *weight)
{
    return (tr_cuda_norm_t){ .rows = rows,
                             .n = m->config.recipe.hidden,
                             .hidden = m->hidden,
                             .ldh = m->ld_hidden,
                             .delta = delta,
                             .ldd = m->ld_hidden,
                             .scale = m->config.recipe.residual_scale,
                             .weight = weight,
                             .eps = m->config.recipe.norm_eps,
                             .out = m->normed,
                             .ldo = m->ld_hidden,
                             .type = m->type };
}

/* Before a layer's attention: hidden += what the layer before gave, if there is
 * one. */
static bool
norm_attention(tr_model_cuda_t *m, const tr_cuda_stream_t *stream,
               uint32_t layer, uint32_t rows, bool adds)
{
    tr_cuda_norm_t a = tr_model_cuda_norm(
        m, rows, adds ? m->delta : NULL,
        m->layers[layer].part[TR_PART_ATTN_NORM]);

    if (adds) {
        a.post_weight = m->layers[layer - 1].part[TR_PART_POST_MLP_NORM];
    }
    return launched(m, m->cuda->norm(stream, &a), "norm");
}

tr_cuda_norm_t
tr_model_cuda_norm_mlp(tr_model_cuda_t *m, uint32_t layer, uint32_t rows)
{
    void *const *w = m->layers[layer].part;
    tr_cuda_norm_t a = tr_model_cuda_norm(m, rows, m->delta,
                                          w[TR_PART_MLP_NORM]);

    a.bias = w[TR_PART_O_BIAS];
    a.post_weight = w[TR_PART_POST_ATTN_NORM];
    return a;
}

/* ---- beside the stream --------------------------------------------------- */

bool
tr_model_cuda_side_begin(tr_model_cuda_t *m)
{
    tr_cuda_side_t *s = &m->side;
    bool good = launched(m, m->cuda->event_record(m->stream, s->begun), "event")
                && launched(m, m->cuda->event_follow(&s->stream, s->begun),
                            "event");

    s->open = s->open || good;
    return good;
}

/* The step's stream waits for it: whatever has failed, nothing later may run
 * beside it. */
static void
side_end(tr_model_cuda_t *m)
{
    tr_cuda_side_t *s = &m->side;
    int rc;

    if (s->open) {
        rc = m->cuda->event_record(&s->stream, s->ended);
        rc = rc != 0 ? rc : m->cuda->event_follow(m->stream, s->ended);
        launched(m, rc, "event");
    }
    s->open = false;
}

/* ---- products of a layer, and what stands between them ------------------ */

static bool
multiply_qkv(tr_model_cuda_t *m, const tr_cuda_stream_t *stream, uint32_t layer,
             uint32_t n)
{
    return tr_model_cuda_multiply(m, stream, TR_PART_QKV, layer, m->normed,
                                  m->ld_hidden, n, m->qkv, m->ld_qkv);
}

/* Of all layers but the first (tr_model_cuda_begin, prepare). */
static bool
before_attention(tr_model_cuda_t *m, uint32_t layer, uint32_t n)
{
    return m->small_gemm /* the chain before has made q, k and v */
           || (norm_attention(m, m->stream, layer, n, true)
               && multiply_qkv(m, m->stream, layer, n));
}

/* act(gate) * up of normed, into mlp. */
static bool
gate(tr_model_cuda_t *m, uint32_t layer, uint32_t n)
{
    const tr_recipe_t *r = &m->config.recipe;
    tr_act_t act = (tr_act_t) r->layer[layer].act;

    if (n > PACKED_ROWS && tr_cuda_has_act(TR_CUDA_FP8_ACTS, act)
        && tr_model_cuda_in_fp8(m, TR_PART_GATE_UP, layer)) {
        tr_cuda_product_t p = tr_model_cuda_product(
            m, TR_PART_GATE_UP, m->layers[layer].part[TR_PART_GATE_UP],
            m->normed, m->ld_hidden, n, m->mlp, m->ld_mlp);

        return multiply_fp8(m, m->stream,
                            m->layers[layer].form[TR_PART_GATE_UP], &p, true);
    }
    return tr_model_cuda_multiply(m, m->stream, TR_PART_GATE_UP, layer,
                                  m->normed, m->ld_hidden, n, m->gate_up,
                                  m->ld_gate_up)
           && launched(m,
                       m->cuda->act_mul(m->stream, act, m->gate_up,
                                        m->ld_gate_up, n, r->intermediate,
                                        m->type, m->mlp, m->ld_mlp),
                       "act_mul");
}

static bool
dense_mlp(tr_model_cuda_t *m, uint32_t layer, uint32_t n)
{
    tr_cuda_norm_t norm = tr_model_cuda_norm_mlp(m, layer, n);

    return launched(m, m->cuda->norm(m->stream, &norm), "norm")
           && gate(m, layer, n)
           && tr_model_cuda_multiply(m, m->stream, TR_PART_DOWN, layer, m->mlp,
                                     m->ld_mlp, n, m->delta, m->ld_hidden);
}

static bool
after_attention(tr_model_cuda_t *m, uint32_t layer, uint32_t n)
{
    if (m->small_gemm) {
        return tr_model_cuda_small_gemm_rest(m, layer, n);
    }
    return tr_model_cuda_multiply(m, m->stream, TR_PART_O, layer, m->attn,
                                  m->ld_attn, n, m->delta, m->ld_hidden)
           && (m->config.recipe.layer[layer].experts
                   ? tr_model_cuda_experts(m, layer, n)
                   : dense_mlp(m, layer, n));
}

bool
tr_model_cuda_products(tr_model_cuda_t *m, uint32_t layer, uint32_t rows,
                       uint32_t norms)
{
    bool ok = true;

    for (uint32_t i = 0; i < norms && ok; i++) {
        ok = norm_attention(m, m->stream, layer, rows, false);
    }
    return ok && after_attention(m, layer, rows)
           && (layer + 1 == m->config.recipe.layers
               || before_attention(m, layer + 1, rows));
}

/* ---- launches of a step -------------------------------------------------- */

/* Bias, norms and rotation of heads, and their append. */
static bool
append(tr_model_cuda_t *m, const tr_model_cuda_run_t *r, uint32_t l)
{
    const tr_recipe_t *c = &m->config.recipe;
    const tr_cuda_table_t *angles = tr_model_cuda_table(m, l);
    void *const *w = m->layers[l].part;
    uint32_t n = r->step->n_rows;
    size_t q = (size_t) c->query_heads * c->head_dim;
    size_t kv = (size_t) c->kv_heads * c->head_dim;
    bool hadamard = (m->rotate & TR_ROTATE_KEYS) != 0;
    const float *shift = tr_centre_shift(m->centre, l) != NULL
                             ? m->key_shift + l * kv
                             : NULL;
    bool keys_too = hadamard || shift != NULL; /* turned as queries are */
    bool by_row = c->layer[l].qk_norm == TR_QK_NORM_ROW;
    tr_cuda_qkv_t heads = { .rows = n,
                            .heads = c->query_heads,
                            .kv_heads = c->kv_heads,
                            .head_dim = c->head_dim,
                            .qkv = m->qkv,
                            .ld = m->ld_qkv,
                            .type = m->type,
                            .bias = w[TR_PART_QKV_BIAS],
                            .q_norm = w[TR_PART_Q_NORM],
                            .k_norm = w[TR_PART_K_NORM],
                            .eps = c->norm_eps,
                            .angles = angles->of_queries,
                            .key_angles = keys_too ? angles->of_rows : NULL,
                            .key_shift = shift,
                            .hadamard = hadamard,
                            .early = (m->small_gemm || (m->alone && n == 1))
                                     && l > 0 && !by_row };
    tr_cuda_keys_t keys = { .k = (uint8_t *) m->qkv + 2 * q,
                            .v = (uint8_t *) m->qkv + 2 * (q + kv),
                            .ld = m->ld_qkv,
                            .type = m->type,
                            .angles = keys_too ? NULL : angles->of_rows,
                            .moved = true,
                            .heads = &heads };

    if (by_row
        && launched(m, m->cuda->row_norm(m->stream, &heads), "row_norm")) {
        heads.bias = heads.q_norm = heads.k_norm = NULL;
    }
    return m->failed == NULL
           && launched(m,
                       m->cuda->kv_append(m->stream, &r->kv, l, &r->rows, &keys,
                                          NULL),
                       "kv_append");
}

/* The queries that the guard wants, turned, to where it has them. */
static bool
keep_queries(tr_model_cuda_t *m, const tr_model_cuda_run_t *r, uint32_t l)
{
    const tr_kv_guard_keep_t *k = &r->step->keep;
    size_t row = m->ld_qkv * sizeof(uint16_t);

    for (uint32_t i = 0; k->n != 0 && i < k->n_layers; i++) {
        if (k->layer[i] == l
            && !launched(m,
                         m->cuda->copy(m->stream, k->to + i * k->layer_bytes,
                                       (uint8_t *) m->qkv + k->row * row,
                                       k->n * row),
                         "copy")) {
            return false;
        }
    }
    return true;
}

/* More rows go to host memory beside append and attention. */
#define ROWS_AT_ONCE 64u

/* The layer's input, where it is kept. */
static bool
keep_rows(tr_model_cuda_t *m, const tr_model_cuda_run_t *r, uint32_t l)
{
    const tr_kv_inputs_t *in = m->inputs;
    tr_cuda_keep_rows_t a = { .rows = r->step->n_rows,
                              .n = m->config.recipe.hidden,
                              .x = m->normed,
                              .ldx = m->ld_hidden,
                              .row_chunk = r->step->row_chunk,
                              .row_pos = r->step->row_pos,
                              .layer = l,
                              .tokens = TR_KV_INPUTS_TOKENS };

    if (in == NULL) {
        return true;
    }
    a.layers = in->layers;
    a.row_bytes = in->row_bytes;
    a.memory = in->memory;
    if (a.rows <= ROWS_AT_ONCE) {
        return launched(m, m->cuda->keep_rows(m->stream, &a), "keep_rows");
    }
    return tr_model_cuda_side_begin(m)
           && launched(m, m->cuda->keep_rows(&m->side.stream, &a), "keep_rows");
}

static bool
layer(tr_model_cuda_t *m, const tr_model_cuda_run_t *r, uint32_t l)
{
    uint32_t n = r->step->n_rows;

    bool ok = (l == 0 || before_attention(m, l, n)) && keep_rows(m, r, l)
              && append(m, r, l) && keep_queries(m, r, l)
              && tr_model_cuda_attend(m, r, l);

    side_end(m);
    return ok && after_attention(m, l, n);
}

/* Of every table that a layer uses. */
static bool
make_angles(tr_model_cuda_t *m, const tr_cuda_step_t *step)
{
    const tr_recipe_t *c = &m->config.recipe;
    bool ok = true;

    for (uint32_t i = 0; i <= TR_CUDA_ANGLES_NONE && ok; i++) {
        const tr_cuda_table_t *t = &m->rope[i];
        tr_cuda_angles_t a = { .rows = step->n_rows,
                               .half = c->head_dim / 2,
                               .row_pos = step->row_pos,
                               .inv_freq = t->inv_freq,
                               .inv_freq_long = t->inv_freq_long,
                               .row_long = step->row_long,
                               .amp = t->amp,
                               .angles = t->of_rows };

        if (t->used) {
            ok = launched(m, m->cuda->rope_angles(&m->side.stream, &a),
                          "rope_angles");
        }
        if (t->used && ok && c->query_temp.beta != 0) {
            a.temp = c->query_temp.beta;
            a.temp_original = c->query_temp.original;
            a.angles = t->of_queries;
            ok = launched(m, m->cuda->rope_angles(&m->side.stream, &a),
                          "rope_angles");
        }
    }
    return ok;
}

void
tr_model_cuda_begin(tr_model_cuda_t *m, const tr_cuda_step_t *step)
{
    tr_cuda_embed_t embed = { .rows = step->n_rows,
                              .vocab = m->config.recipe.vocab,
                              .hidden = m->config.recipe.hidden,
                              .token = step->token,
                              .row_slot = step->row_slot,
                              .row_pos = step->row_pos,
                              .history = m->history,
                              .table = m->root.part[TR_PART_EMBED],
                              .type = m->type,
                              .scale = m->config.recipe.embed_scale,
                              .out = m->hidden,
                              .ldo = m->ld_hidden };

    m->failed = NULL;
    m->small_gemm = tr_model_cuda_is_small(m, step->n_rows);
    if (tr_model_cuda_side_begin(m)
        && launched(m, m->cuda->embed(&m->side.stream, &embed), "embed")
        && make_angles(m, step)) {
        norm_attention(m, &m->side.stream, 0, step->n_rows, false);
    }
}

/* The first product, and what attention needs beside it.  It comes behind the
 * manager's step: one streams weights, the other waits for its memory. */
static bool
prepare(tr_model_cuda_t *m, const tr_model_cuda_run_t *r)
{
    bool planned = (r->step->paths & 1u << TR_ATTENTION_DECODE) != 0;
    tr_rows_t rows = r->rows;

    rows.seq_slot = r->slots[TR_ATTENTION_DECODE];
    return tr_model_cuda_side_begin(m)
           && multiply_qkv(m, &m->side.stream, 0, rows.n_rows)
           && (!planned
               || launched(m,
                           m->cuda->decode_plan(m->stream, &r->fast, &rows,
                                                &m->decode_size,
                                                m->decode_work),
                           "decode_plan"))
           && launched(m,
                       m->cuda->kv_moves(m->stream, &r->kv, &r->rows, planned,
                                         NULL),
                       "kv_moves");
}

int
tr_model_cuda_step(tr_model_cuda_t *m, const tr_kv_view_t *kv,
                   const int32_t *seq_slot, const tr_cuda_step_t *step)
{
    tr_model_cuda_run_t r = { .kv = *kv,
                              .rows = { .n_rows = step->n_rows,
                                        .n_seqs = step->n_seqs,
                                        .row_pos = step->row_pos,
                                        .seq_slot = seq_slot,
                                        .seq_row = step->seq_row },
                              .step = step };

    r.kv.reach = m->reach;
    r.kv.sinks = m->sinks;
    if (m->failed == NULL && tr_model_cuda_choose_paths(m, seq_slot, &r)) {
        prepare(m, &r);
    }
    side_end(m);
    for (uint32_t l = 0; l < m->config.recipe.layers && m->failed == NULL;
         l++) {
        layer(m, &r, l);
    }
    if (m->failed == NULL) {
        tr_model_cuda_finish(m, seq_slot, &r);
    }
    side_end(m);
    return m->failed == NULL ? 0 : m->failed_code;
}

/* ---- rows that come back --------------------------------------------------- */

/* Those of a layer, beside the stream, into one of two buffers, when what was made
 * of the layer before last is there. */
static bool
fetch_rows(tr_model_cuda_t *m, uint32_t l, uint8_t *to,
           const tr_cuda_return_t *piece, uint32_t n)
{
    const tr_kv_inputs_t *in = m->inputs;
    size_t layer = TR_KV_INPUTS_TOKENS * in->row_bytes;
    bool ok = launched(m,
                       m->cuda->event_follow(&m->side.stream, m->used[l % 2]),
                       "event");

    for (uint32_t i = 0; i < n && ok; i++) {
        ok = launched(m,
                      m->cuda->copy(&m->side.stream,
                                    to + piece[i].row * in->row_bytes,
                                    piece[i].from + l * layer,
                                    piece[i].n * in->row_bytes),
                      "copy");
    }
    return ok
           && launched(m,
                       m->cuda->event_record(&m->side.stream, m->came[l % 2]),
                       "event")
           && launched(m, m->cuda->event_follow(m->stream, m->came[l % 2]),
                       "event");
}

static bool
make_keys(tr_model_cuda_t *m, uint32_t l, const void *x, uint32_t rows)
{
    tr_cuda_product_t p;

    if (m->layers[l].form[TR_PART_QKV].format != TR_WEIGHT_16) {
        return tr_model_cuda_multiply(m, m->stream, TR_PART_QKV, l, x,
                                      m->ld_hidden, rows, m->qkv, m->ld_qkv);
    }
    p = tr_model_cuda_keys(m, l, x, rows);
    return launched(m, m->cuda->matmul(m->stream, m->products, &p), "matmul");
}

int
tr_model_cuda_return(tr_model_cuda_t *m, const tr_kv_view_t *kv,
                     const int32_t *seq_slot, const tr_cuda_step_t *step,
                     const tr_cuda_return_t *piece, uint32_t n)
{
    tr_model_cuda_run_t r = { .kv = *kv,
                              .rows = { .n_rows = step->n_rows,
                                        .n_seqs = step->n_seqs,
                                        .row_pos = step->row_pos,
                                        .seq_slot = seq_slot,
                                        .seq_row = step->seq_row },
                              .step = step };
    uint8_t *const buffer[] = { m->normed, m->delta };

    r.kv.reach = m->reach;
    m->small_gemm = false;
    side_end(m); /* angles are there, and the first norm has been */
    for (uint32_t i = 0; i < 2; i++) {
        launched(m, m->cuda->event_record(m->stream, m->used[i]), "event");
    }
    for (uint32_t l = 0; l < m->config.recipe.layers && m->failed == NULL;
         l++) {
        if (fetch_rows(m, l, buffer[l % 2], piece, n)
            && make_keys(m, l, buffer[l % 2], step->n_rows)
            && append(m, &r, l)) {
            launched(m, m->cuda->event_record(m->stream, m->used[l % 2]),
                     "event");
        }
    }
    return m->failed == NULL ? 0 : m->failed_code;
}
