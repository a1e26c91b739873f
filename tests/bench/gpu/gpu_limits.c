/*
 * What the device can by itself (gpu_fixture.h), timed by its events, the best
 * of a few rounds; by this a step is judged.
 */
#include "gpu_fixture.h"

#include <math.h>

#define COPY_BYTES ((size_t) 1 << 30)
#define ROUNDS 5

/* Microseconds. */
static double
timed(fixture_t *b, int (*work)(fixture_t *, void *), void *arg)
{
    const tr_device_t *cuda = b->x->cuda;
    tr_cuda_slot_t *t = &b->x->slots[0];
    double us = 0, best = 0;

    for (int i = 0; i < ROUNDS; i++) {
        if (cuda->event_record(&b->x->stream, t->begun) != 0
            || work(b, arg) != 0
            || cuda->event_record(&b->x->stream, t->done) != 0
            || cuda->event_wait(t->done) != 0
            || cuda->event_time(t->begun, t->done, &us) != 0) {
            fixture_die("device", cuda->reason());
        }
        best = i == 0 || us < best ? us : best;
    }
    return best;
}

/* ---- copies ------------------------------------------------------------- */

typedef struct {
    uint8_t *memory;
    size_t bytes;
} copying_t;

static int
copy_once(fixture_t *b, void *arg)
{
    const copying_t *c = arg;

    return b->x->cuda->copy(&b->x->stream, c->memory, c->memory + c->bytes,
                            c->bytes);
}

double
fixture_copy_speed(fixture_t *b)
{
    copying_t c = { NULL, COPY_BYTES };
    double speed;

    while ((c.memory = b->x->cuda->alloc(2 * c.bytes)) == NULL) {
        c.bytes /= 2;
        if (c.bytes == 0) {
            fixture_die("copy", b->x->cuda->reason());
        }
    }
    speed = 2.0 * (double) c.bytes / timed(b, copy_once, &c) * 1e6;
    b->x->cuda->release(c.memory);
    b->copy_speed = speed > b->copy_speed ? speed : b->copy_speed;
    return b->copy_speed;
}

/* ---- products ----------------------------------------------------------- */

typedef struct {
    const tr_cuda_matmul_t *of;
    tr_cuda_product_t product;
} multiplying_t;

static int
multiply_once(fixture_t *b, void *arg)
{
    const multiplying_t *m = arg;

    return b->x->cuda->matmul(&b->x->stream, m->of, &m->product);
}

static double
work_of(const tr_cuda_product_t *p)
{
    return 2.0 * p->rows * p->n * p->k;
}

/* A square product of random numbers; 0: there is no memory for it. */
static double
square_speed(fixture_t *b, uint32_t side)
{
    const tr_device_t *cuda = b->x->cuda;
    const tr_cuda_stream_t *s = &b->x->stream;
    size_t each = (size_t) side * side;
    uint16_t *memory = cuda->alloc(3 * each * sizeof(*memory));
    tr_cuda_matmul_t *products = NULL;
    multiplying_t m = { NULL,
                        { .rows = side,
                          .n = side,
                          .k = side,
                          .type = b->x->model->type,
                          .out = b->x->model->type,
                          .x = memory,
                          .w = memory + each,
                          .y = memory + 2 * each,
                          .ldx = side,
                          .ldy = side } };
    double us;

    if (memory == NULL) {
        return 0;
    }
    if (cuda->fill_random(s, memory, 2 * each, m.product.type, 1, 0, 1) != 0
        || cuda->matmul_open(s->device, side, &products) != 0
        || cuda->matmul_choose(products, s, &m.product, &m.product.w, 1) != 0) {
        fixture_die("a square product", cuda->reason());
    }
    m.of = products;
    us = timed(b, multiply_once, &m);
    cuda->matmul_close(products);
    cuda->release(memory);
    return work_of(&m.product) / us * 1e6;
}

/* Has it the four products of a layer, in 16 bits? */
static bool
is_plain(const tr_model_cuda_t *m)
{
    return m->largest_packed == 0 && m->config.recipe.moe.route.experts == 0;
}

double
fixture_peak(fixture_t *b, uint32_t side)
{
    const tr_model_cuda_t *m = b->x->model;
    multiplying_t largest = {
        m->products, tr_model_cuda_product(m, TR_PART_GATE_UP,
                                           m->layers[0].part[TR_PART_GATE_UP],
                                           m->normed, m->ld_hidden, m->max_rows,
                                           m->gate_up, m->ld_gate_up)
    };

    return is_plain(m) ? fmax(square_speed(b, side),
                              work_of(&largest.product)
                                  / timed(b, multiply_once, &largest) * 1e6)
                       : square_speed(b, side);
}

/* With norms and activations between, as weights that are packed, and experts,
 * are multiplied by steps alone. */
static int
multiply_as_steps(tr_model_cuda_t *m, uint32_t n)
{
    bool ok = tr_model_cuda_multiply(m, m->stream, TR_PART_QKV, 0, m->normed,
                                     m->ld_hidden, n, m->qkv, m->ld_qkv);

    for (uint32_t l = 0; l < m->config.recipe.layers && ok; l++) {
        ok = tr_model_cuda_products(m, l, n, 0);
    }
    return ok ? 0 : m->failed_code;
}

static int
multiply_layers(fixture_t *b, uint32_t n)
{
    tr_model_cuda_t *m = b->x->model;
    const tr_cuda_stream_t *s = &b->x->stream;
    int rc = 0;

    m->small_gemm = tr_model_cuda_is_small(m, n);
    m->failed = NULL;
    if (!is_plain(m)) {
        return multiply_as_steps(m, n);
    }
    for (uint32_t l = 0; l < m->config.recipe.layers && rc == 0; l++) {
        void *const *w = m->layers[l].part;
        const tr_cuda_product_t of_layer[] = {
            tr_model_cuda_product(m, TR_PART_QKV, w[TR_PART_QKV], m->normed,
                                  m->ld_hidden, n, m->qkv, m->ld_qkv),
            tr_model_cuda_product(m, TR_PART_O, w[TR_PART_O], m->attn,
                                  m->ld_attn, n, m->delta, m->ld_hidden),
            tr_model_cuda_product(m, TR_PART_GATE_UP, w[TR_PART_GATE_UP],
                                  m->normed, m->ld_hidden, n, m->gate_up,
                                  m->ld_gate_up),
            tr_model_cuda_product(m, TR_PART_DOWN, w[TR_PART_DOWN], m->mlp,
                                  m->ld_mlp, n, m->delta, m->ld_hidden),
        };

        if (m->small_gemm && l == 0) {
            rc = m->cuda->matmul(s, m->products, &of_layer[0]);
        }
        if (m->small_gemm && rc == 0) {
            rc = tr_model_cuda_products(m, l, n, 0) ? 0 : m->failed_code;
            continue;
        }
        for (size_t i = 0; i < sizeof(of_layer) / sizeof(*of_layer); i++) {
            rc = rc != 0 ? rc : m->cuda->matmul(s, m->products, &of_layer[i]);
        }
    }
    return rc;
}

/* The products of all layers, and of the head in as many parts as a step's. */
static int
multiply_all(fixture_t *b, void *arg)
{
    const tr_model_cuda_t *m = b->x->model;
    const tr_cuda_stream_t *s = &b->x->stream;
    uint32_t n = *(const uint32_t *) arg;
    int rc = multiply_layers(b, n);

    for (uint32_t at = 0; at < n && rc == 0; at += m->logit_rows) {
        uint32_t rows = n - at < m->logit_rows ? n - at : m->logit_rows;
        const tr_cuda_product_t head = tr_model_cuda_product(
            m, TR_PART_EMBED, tr_model_cuda_head(m), m->normed, m->ld_hidden,
            rows, m->logits, m->ld_logits);

        rc = m->cuda->matmul(s, m->head_products, &head);
    }
    return rc;
}

double
fixture_products_ms(fixture_t *b, uint32_t rows)
{
    return timed(b, multiply_all, &rows) / 1e3;
}

static bool
of_experts(int part)
{
    return part == TR_PART_EXPERT_GATE_UP || part == TR_PART_EXPERT_DOWN;
}

double
fixture_products_work(const fixture_t *b, uint32_t rows)
{
    const tr_recipe_t *c = &b->x->model->config.recipe;
    tr_part_shape_t head = tr_part_shape(c, TR_PART_EMBED, 0);
    double parameters = 0;

    for (uint32_t l = 0; l < c->layers; l++) {
        for (int part = TR_PART_QKV; part < (int) TR_PART_MATRICES; part++) {
            tr_part_shape_t s = tr_part_shape(c, (tr_part_t) part, l);
            double all = (double) s.rows * s.columns;

            parameters += of_experts(part) && s.rows != 0
                              ? all * c->moe.route.top_k / c->moe.route.experts
                              : all;
        }
    }
    return 2.0 * rows * (parameters + (double) head.rows * head.columns);
}

double
fixture_weight_bytes(const fixture_t *b, uint32_t rows)
{
    const tr_model_cuda_t *m = b->x->model;
    const tr_recipe_t *c = &m->config.recipe;
    tr_part_shape_t s = tr_part_shape(c, TR_PART_EMBED, 0);
    double all = (double) m->weights_size
                 - (c->tied ? 0 : 2.0 * s.rows * s.columns);
    double chosen = (double) c->moe.route.top_k / c->moe.route.experts;

    for (uint32_t l = 0; l < c->layers; l++) {
        for (int part = 0; part < (int) TR_PART_MATRICES; part++) {
            s = tr_part_shape(c, (tr_part_t) part, l);
            if (of_experts(part) && s.rows != 0) { /* those of nobody */
                all -= (double) tr_weight_bytes(m->layers[l].form[part], s.rows,
                                                s.columns)
                       * pow(1 - chosen, rows);
            }
        }
    }
    return all;
}

/* ---- attention ---------------------------------------------------------- */

/* As model_cuda_step.c launches it, on what the last step has left. */
static int
attend_all(fixture_t *b, void *arg)
{
    const tr_executor_cuda_t *x = b->x;
    tr_model_cuda_t *m = x->model;
    const tr_kv_manager_t *manager = tr_kv_device_manager(x->base.kv);
    uint32_t n = *(const uint32_t *) arg;
    tr_cuda_upload_t l;
    tr_cuda_arrays_t a;
    tr_cuda_queries_t q = tr_model_cuda_queries(m);
    tr_rows_t rows;
    int rc;

    tr_cuda_lay_upload(n, n, n, 0, &l);
    a = tr_cuda_arrays(x->upload, &l);
    rows = (tr_rows_t){ .n_rows = n,
                        .n_seqs = n,
                        .row_pos = a.row_pos,
                        .seq_slot = manager->seq_slot,
                        .seq_row = a.seq_row };
    rc = m->cuda->decode_plan(m->stream, &manager->view, &rows, &m->decode_size,
                              m->decode_work);
    for (uint32_t layer = 0; layer < m->config.recipe.layers && rc == 0;
         layer++) {
        rc = m->cuda->decode(m->stream, &manager->view, layer, &rows, &q,
                             &m->decode_size, m->decode_work);
    }
    return rc != 0 ? rc
                   : m->cuda->decode_score(m->stream, &manager->view, &rows,
                                           &m->decode_size, m->decode_work);
}

double
fixture_attention_ms(fixture_t *b, uint32_t n)
{
    uint32_t bucket = 0;

    if (b->x->decode_paths != 1u << TR_ATTENTION_DECODE) {
        return 0;
    }
    while (bucket < b->x->n_buckets && b->x->bucket[bucket] < n) {
        bucket++;
    }
    if (bucket == b->x->n_buckets) {
        fixture_die("attention", "no step has so many sequences");
    }
    return timed(b, attend_all, &b->x->bucket[bucket]) / 1e3;
}
