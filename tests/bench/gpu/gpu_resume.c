/*
 * bench_gpu resume and offload (gpu_fixture.h): what layers that stream from host
 * memory take (gpu_streamed.h), by how much of them comes as X.
 *
 * Times stand beside those of a plan: bytes at the link's speed, of the same run
 * without X, and computing, of the same run without copies.  Where layers overlap
 * the longer of both; layer by layer what the first piece, or all, of X takes on
 * top.
 */
#include "gpu_streamed.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PARTS 8u
#define ERROR_MOST 0.02 /* products of other numbers of rows, at 16 bits */
#define COMPRESSED 0.25 /* pages of diffkv over those of 16 bits */

static streamed_t streamed;

static const char *const orders[STREAMED_ORDERS] = { "layers", "chunks",
                                                     "x_first" };

static void
must(int rc, const char *what)
{
    if (rc != 0) {
        fixture_die(what, streamed.cuda->reason());
    }
}

/* ---- a decode step's work with a layer ------------------------------------- */

static struct {
    tr_cuda_decode_size_t size;
    void *work;
    uint32_t *row_pos, *seq_row;
    float *angles;
    tr_cuda_stream_t back; /* what is new goes to host memory */
    void *made;
    uint8_t *kept; /* pinned */
} step;

static tr_rows_t
step_rows(const streamed_t *s)
{
    return (tr_rows_t){ .n_rows = s->seqs,
                        .n_seqs = s->seqs,
                        .row_pos = step.row_pos,
                        .seq_slot = s->slot,
                        .seq_row = step.seq_row };
}

static void *
numbers(const streamed_t *s, uint32_t first, uint32_t each, uint32_t n)
{
    uint32_t *from = s->cuda->pin(4ull * n), *to = s->cuda->alloc(4ull * n);

    if (from == NULL || to == NULL) {
        fixture_die("offload", s->cuda->reason());
    }
    for (uint32_t i = 0; i < n; i++) {
        from[i] = first + i * each;
    }
    must(s->cuda->copy(s->m->stream, to, from, 4ull * n), "copy");
    must(s->cuda->stream_wait(s->m->stream), "copy");
    s->cuda->unpin(from);
    return to;
}

static void
step_open(const streamed_t *s)
{
    const tr_recipe_t *r = &s->m->config.recipe;
    tr_cuda_angles_t a = { .rows = s->seqs, .half = r->head_dim / 2 };

    step.size = (tr_cuda_decode_size_t){ .layers = STREAMED_BUFFERS,
                                         .kv_heads = r->kv_heads,
                                         .head_dim = r->head_dim,
                                         .max_seqs = s->seqs,
                                         .heads = r->query_heads,
                                         .max_tokens = (uint64_t) s->seqs
                                                       * (s->tokens + 1),
                                         .page_tokens = s->layout.tokens };
    step.work = s->cuda->alloc(
        s->cuda->decode_work(s->m->stream->device, &step.size));
    step.row_pos = numbers(s, s->tokens, 0, s->seqs);
    step.seq_row = numbers(s, 0, 1, s->seqs + 1);
    step.angles = s->cuda->alloc(4ull * s->seqs * r->head_dim);
    step.kept = s->cuda->pin(2 * s->seqs * (s->m->ld_qkv + s->m->ld_hidden));
    must(s->cuda->stream_open(s->m->stream->device, &step.back), "stream");
    must(s->cuda->event_open(&step.made), "event");
    if (step.work == NULL || step.angles == NULL || step.kept == NULL) {
        fixture_die("offload", s->cuda->reason());
    }
    a.row_pos = step.row_pos;
    a.inv_freq = tr_model_cuda_table(s->m, 0)->inv_freq;
    a.amp = tr_model_cuda_table(s->m, 0)->amp;
    a.angles = step.angles;
    must(s->cuda->rope_angles(s->m->stream, &a), "rope_angles");
    must(s->cuda->stream_wait(s->m->stream), "angles");
}

static void
step_close(const streamed_t *s)
{
    must(s->cuda->stream_wait(&step.back), "close");
    s->cuda->stream_close(&step.back);
    s->cuda->event_close(step.made);
    s->cuda->release(step.work);
    s->cuda->release(step.row_pos);
    s->cuda->release(step.seq_row);
    s->cuda->release(step.angles);
    s->cuda->unpin(step.kept);
}

/* The first product; the others come behind each layer's attention. */
static void
step_begin(streamed_t *s)
{
    tr_model_cuda_t *m = s->m;

    m->failed = NULL;
    m->small_gemm = tr_model_cuda_is_small(m, s->seqs);
    if (!tr_model_cuda_multiply(m, m->stream, TR_PART_QKV, 0, m->normed,
                                m->ld_hidden, s->seqs, m->qkv, m->ld_qkv)) {
        fixture_die(m->failed, s->cuda->reason());
    }
}

static void
append_new(streamed_t *s, uint32_t layer, uint32_t buffer)
{
    tr_model_cuda_t *m = s->m;
    const tr_recipe_t *r = &m->config.recipe;
    size_t q = (size_t) r->query_heads * r->head_dim;
    size_t kv = (size_t) r->kv_heads * r->head_dim;
    void *const *w = m->layers[layer].part;
    tr_rows_t rows = step_rows(s);
    tr_cuda_qkv_t heads = { .rows = s->seqs,
                            .heads = r->query_heads,
                            .kv_heads = r->kv_heads,
                            .head_dim = r->head_dim,
                            .qkv = m->qkv,
                            .ld = m->ld_qkv,
                            .type = m->type,
                            .bias = w[TR_PART_QKV_BIAS],
                            .q_norm = w[TR_PART_Q_NORM],
                            .k_norm = w[TR_PART_K_NORM],
                            .eps = r->norm_eps,
                            .angles = step.angles };
    tr_cuda_keys_t keys = { .k = (uint8_t *) m->qkv + 2 * q,
                            .v = (uint8_t *) m->qkv + 2 * (q + kv),
                            .ld = m->ld_qkv,
                            .type = m->type,
                            .angles = step.angles,
                            .moved = true,
                            .heads = &heads };

    must(s->cuda->kv_append(m->stream, &s->view, buffer, &rows, &keys, NULL),
         "kv_append");
}

/* New rows of keys, values and X, to host memory beside the rest. */
static void
keep_new(streamed_t *s)
{
    size_t qkv = 2 * s->seqs * s->m->ld_qkv;

    must(s->cuda->event_record(s->m->stream, step.made), "event");
    must(s->cuda->event_follow(&step.back, step.made), "event");
    must(s->cuda->copy(&step.back, step.kept, s->m->qkv, qkv), "copy");
    must(s->cuda->copy(&step.back, step.kept + qkv, s->m->normed,
                       2 * s->seqs * s->m->ld_hidden),
         "copy");
}

static void
step_layer(streamed_t *s, uint32_t layer, uint32_t buffer)
{
    tr_model_cuda_t *m = s->m;
    tr_cuda_queries_t q = tr_model_cuda_queries(m);
    tr_rows_t rows = step_rows(s);

    append_new(s, layer, buffer);
    keep_new(s);
    if (layer % STREAMED_BUFFERS == 0) {
        must(s->cuda->decode_plan(m->stream, &s->view, &rows, &step.size,
                                  step.work),
             "decode_plan");
    }
    must(s->cuda->decode(m->stream, &s->view, buffer, &rows, &q, &step.size,
                         step.work),
         "decode");
    if (!tr_model_cuda_products(m, layer, s->seqs, 0)) {
        fixture_die(m->failed, s->cuda->reason());
    }
}

/* ---- what is measured ------------------------------------------------------- */

typedef struct {
    streamed_way_t way;
    double speed;   /* bytes a ms, of pages alone */
    double compute; /* ms, of this front, without copies */
    double whole;   /* ms of pages alone, layers overlapping */
    double best;
    uint32_t front;
    streamed_order_t order;
} measured_t;

/* By the plan, ms. */
static double
planned(const streamed_t *s, const measured_t *r)
{
    double x = streamed_x_bytes(s) * s->layers / r->speed;
    double pages = streamed_page_bytes(s) * s->layers / r->speed;
    double first = s->n_pieces == 0 ? 0 : x / s->n_pieces;

    switch (r->way.order) {
    case STREAMED_LAYERS:
        return fmax(x + pages, r->compute);
    case STREAMED_CHUNKS:
        return fmax(x + pages, first + r->compute);
    default:
        return x + fmax(pages, r->compute);
    }
}

static double
measure(const measured_t *r, streamed_order_t order, bool copy, double share)
{
    streamed_way_t way = r->way;

    way.order = order;
    way.copy = copy;
    way.compute = true;
    way.share = share;
    return streamed_ms(&streamed, &way);
}

static void
say(const char *mode, measured_t *r, double ms, double error)
{
    const streamed_t *s = &streamed;

    printf("%s order=%s front=%u of=%u x_mib=%.1f page_mib=%.1f ms=%.3f"
           " compute_ms=%.3f plan_ms=%.3f over_pages=%.3f error=%.5f\n",
           mode, orders[r->way.order], s->front, s->tokens,
           streamed_x_bytes(s) * s->layers / 1048576,
           streamed_page_bytes(s) * s->layers / 1048576, ms, r->compute,
           planned(s, r), ms / r->whole, error);
    if (ms < r->best) {
        r->best = ms;
        r->front = s->front;
        r->order = r->way.order;
    }
}

static void
measure_front(const char *mode, measured_t *r, uint32_t front)
{
    streamed_t *s = &streamed;

    streamed_set_front(s, front);
    r->compute = measure(r, STREAMED_LAYERS, false, 1);
    for (int order = 0; order < STREAMED_ORDERS; order++) {
        double ms = measure(r, order, true, 1), error = streamed_error(s);

        if (front == 0 && order == STREAMED_LAYERS) {
            r->whole = r->best = ms;
            r->speed = streamed_page_bytes(s) * s->layers / ms;
        }
        r->way.order = order;
        say(mode, r, ms, error);
        if (error > ERROR_MOST) {
            fixture_die(mode, "keys and values are not those that they were");
        }
    }
}

/* Fronts in eighths; then pages alone, of fewer bytes. */
static measured_t
measure_all(const char *mode, const streamed_way_t *way)
{
    measured_t r = { .way = *way };
    uint32_t last = UINT32_MAX;

    for (uint32_t i = 0; i <= PARTS; i++) {
        uint32_t front = streamed_front(&streamed, i, PARTS);

        if (front != last) {
            measure_front(mode, &r, front);
        }
        last = front;
    }
    streamed_set_front(&streamed, 0);
    printf("%s_best order=%s front=%u of=%u ms=%.3f pages_ms=%.3f"
           " over_pages=%.3f link_gb_s=%.1f compressed_ms=%.3f",
           mode, orders[r.order], r.front, streamed.tokens, r.best, r.whole,
           r.best / r.whole, r.speed / 1e6,
           measure(&r, STREAMED_LAYERS, true, COMPRESSED));
    return r;
}

/* Milliseconds to compute a prompt of so many tokens. */
static double
compute_again(fixture_t *b, uint32_t tokens)
{
    double best = 0;

    for (int i = 0; i < 4; i++) { /* the first is a warm-up */
        int32_t slot = tr_kv_open(b->e->kv, NULL);
        double begun = fixture_now_ms(), ms;
        tr_sampled_t out;

        tr_kv_prompt(b->e->kv, slot, tokens);
        if (!fixture_compute(b, slot, 0, tokens, &out)) {
            fixture_die("resume", "the pool does not hold the sequence");
        }
        fixture_settle(b);
        ms = fixture_now_ms() - begun;
        best = i == 1 || (i > 1 && ms < best) ? ms : best;
        tr_kv_close(b->e->kv, slot);
        fixture_settle(b);
    }
    return best;
}

/* The engine's own: a prompt whose rows are kept, or that comes back by them. */
static double
by_rows(fixture_t *b, const uint32_t *chunks, uint32_t tokens, bool returns)
{
    int32_t slot = tr_kv_open(b->e->kv, NULL);
    double begun = fixture_now_ms(), ms;

    tr_kv_prompt(b->e->kv, slot, tokens);
    fixture_must(tr_kv_reserve(b->e->kv, slot, tokens), "room");
    for (uint32_t from = 0, n; from < tokens; from += n) {
        tr_batch_item_t item = { .kv_slot = slot,
                                 .pos = from,
                                 .tokens = b->prompt + from,
                                 .inputs = chunks,
                                 .returns = returns };
        tr_batch_t batch = { &item, 1, 0 };

        n = tokens - from < b->config.max_batch_tokens
                ? tokens - from
                : b->config.max_batch_tokens;
        item.n = batch.n_tokens = n;
        fixture_must(tr_executor_run(b->e, &batch), "a batch");
        fixture_must(item.status, "rows");
    }
    ms = fixture_now_ms() - begun;
    tr_kv_close(b->e->kv, slot);
    fixture_settle(b);
    return ms;
}

static void
say_rows(fixture_t *b, uint32_t tokens)
{
    uint32_t n = (tokens + TR_KV_INPUTS_TOKENS - 1) / TR_KV_INPUTS_TOKENS;
    uint32_t *chunks = calloc(n, sizeof(*chunks));
    double best[2] = { 0, 0 };

    for (uint32_t i = 0; i < n && chunks != NULL; i++) {
        chunks[i] = tr_kv_inputs_take(b->e->inputs);
    }
    if (chunks == NULL || chunks[n - 1] == 0) {
        fixture_die("swap_memory", "less than the rows of the sequence");
    }
    for (int i = 0; i < 8; i++) { /* the first two are warm-ups */
        double ms = by_rows(b, chunks, tokens, i % 2 == 1);

        best[i % 2] = i < 4 || ms < best[i % 2] ? ms : best[i % 2];
    }
    printf("resume_rows keep_ms=%.3f return_ms=%.3f x_mib=%.1f\n", best[0],
           best[1],
           (double) tokens * b->e->layers * b->e->inputs->row_bytes / 1048576);
    free(chunks);
}

void
fixture_resume(fixture_t *b, uint32_t tokens)
{
    const streamed_way_t way = { .work = NULL };
    double again = compute_again(b, tokens);

    if (b->e->inputs != NULL) {
        say_rows(b, tokens);
    }

    streamed_open(&streamed, b, 1, tokens);
    (void) measure_all("resume", &way);
    printf(" tokens_again_ms=%.3f host_layers=%u\n", again, streamed.hosts);
    streamed_close(&streamed);
}

void
fixture_offload(fixture_t *b, uint32_t seqs, uint32_t tokens)
{
    const streamed_way_t way = { .begin = step_begin, .work = step_layer };
    measured_t r;

    if (seqs > b->x->model->max_rows) {
        fixture_die("--batch", "more than max_batch_tokens");
    }
    streamed_open(&streamed, b, seqs, tokens);
    step_open(&streamed);
    r = measure_all("offload", &way);
    printf(" batch=%u tokens_s=%.1f pages_tokens_s=%.1f host_layers=%u\n", seqs,
           seqs / r.best * 1e3, seqs / r.whole * 1e3, streamed.hosts);
    step_close(&streamed);
    streamed_close(&streamed);
}
