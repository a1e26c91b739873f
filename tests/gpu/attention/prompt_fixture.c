/*
 * What prompt attention is tested with; see prompt_fixture.h.
 */
#include "prompt_fixture.h"

#include <cuda_runtime_api.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/gpu/fixtures/cache.h"

static void *
room(size_t n)
{
    void *p = malloc(n + 64);

    if (p == NULL) {
        abort();
    }
    return p;
}

static uint16_t
bf16_from(float x)
{
    uint32_t u;

    memcpy(&u, &x, 4);
    return (uint16_t) ((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

static void *
to_device(const void *p, size_t n)
{
    void *d;

    cuda_ok(cudaMalloc(&d, n + 1024), "cudaMalloc");
    if (p != NULL) {
        cuda_ok(cudaMemcpy(d, p, n, cudaMemcpyHostToDevice), "cudaMemcpy");
    } else {
        cuda_ok(cudaMemset(d, 0xff, n), "cudaMemset");
    }
    return d;
}

bool
case_attends(const case_t *c, uint32_t s)
{
    return c->slot[s] >= 0 && c->seq_row[s + 1] - c->seq_row[s] >= 2
           && c->seq[c->slot[s]].base == 0;
}

uint32_t
case_length(const case_t *c, uint32_t s)
{
    return c->pos[c->seq_row[s]] + c->seq_row[s + 1] - c->seq_row[s];
}

static void
make_plan(case_t *c, bool wide)
{
    static const tr_kv_level_t levels[3] = {
        { .key_bits = 8,
          .value_bits = 8,
          .key_groups = 1,
          .value_groups = 1,
          .scored = 1 },
        { .key_bits = 4,
          .value_bits = 2,
          .key_groups = 1,
          .value_groups = 1,
          .scored = 1 },
        { .key_bits = 16,
          .value_bits = 16,
          .key_groups = 1,
          .value_groups = 1,
          .scored = 1 },
    };
    tr_page_spec_t spec = { 0 };

    c->dim = random_below(2) ? 128 : 64;
    c->group = 1 + random_below(8);
    spec.levels = levels;
    spec.n_levels = random_below(4);
    spec.uncompressed_scored = random_below(4) != 0;
    if (random_below(3) == 0) { /* what only these have */
        spec.n_levels = 0;
        spec.uncompressed_scored = false;
        c->dim = wide && random_below(2) ? 256 : c->dim;
        c->group = 1 + random_below(c->dim == 256 ? 8 : 16);
    }
    spec.head_dim = c->dim;
    spec.uncompressed_minmax = random_below(4) == 0;
    if (tr_page_plan(&spec, &c->plan)) {
        printf("no plan\n");
        exit(1);
    }
}

/* Sequences, their rows and pages. */
static void
make_rows(case_t *c)
{
    uint32_t seqs = 1 + random_below(1 + random_below(SEQS_MAX)),
             table = LEN_MAX / 8 + 2;
    uint32_t layers = 1 + random_below(2), n = 0, next = 0;
    int32_t *free_page;
    size_t heads;

    c->kv_heads = 1 + random_below(2);
    c->layer = random_below(layers);
    c->reach = random_below(3) ? 0
                               : 1 + random_below(random_below(2) ? 40 : 400);
    c->slot = room(seqs * 4);
    c->seq_row = room((seqs + 1) * 4);
    c->pos = room(SEQS_MAX * LEN_MAX * 4);
    c->seq = room((seqs + 1) * sizeof(*c->seq));
    memset(c->seq, 0xee, (seqs + 1) * sizeof(*c->seq));
    heads = (size_t) (seqs + 1) * layers * c->kv_heads;
    c->tables = room(heads * table * 4);
    memset(c->tables, 0x7f, heads * table * 4);
    c->pages = (uint32_t) (seqs * c->kv_heads * table);
    free_page = room(c->pages * 4);
    for (uint32_t i = 0; i < c->pages; i++) {
        uint32_t j = random_below(i + 1);

        free_page[i] = free_page[j];
        free_page[j] = (int32_t) i;
    }
    for (uint32_t s = 0; s < seqs; s++) {
        uint32_t rows = random_below(5) == 0 ? 1 + random_below(3)
                                             : 1 + random_below(LEN_MAX / 2);
        uint32_t first = random_below(3) == 0 ? 0
                                              : random_below(LEN_MAX - rows);
        uint32_t len = first + rows;
        tr_kv_seq_t *q;

        c->slot[s] = random_below(12) == 0 ? -1 : (int32_t) (seqs - s);
        c->seq_row[s] = n;
        for (uint32_t i = 0; i < rows; i++) {
            c->pos[n++] = first + i;
        }
        q = &c->seq[seqs - s];
        memset(q, 0, sizeof(*q));
        q->scored = c->reach == 0 && random_below(5) != 0;
        q->base = random_below(10) == 0 ? first / 2 : 0;
        q->recent_from = random_below(3) == 0   ? 0
                         : random_below(2) == 0 ? random_below(len)
                                                : UINT32_MAX;
        for (uint32_t l = 0; l < c->kv_heads; l++) {
            int32_t *t = c->tables
                         + (((size_t) (seqs - s) * layers + c->layer)
                                * c->kv_heads
                            + l)
                               * table;

            for (uint32_t i = 0; i * c->plan.layout->tokens < len; i++) {
                t[i] = free_page[next++];
            }
        }
    }
    c->seq_row[seqs] = n;
    free(free_page);
    c->rows = (tr_rows_t){ n, seqs, c->pos, c->slot, c->seq_row };
    c->host = (tr_kv_view_t){ .page_bytes = c->plan.page_bytes,
                              .layers = layers,
                              .kv_heads = c->kv_heads,
                              .head_dim = c->dim,
                              .n_layouts = c->plan.n,
                              .layout = c->plan.layout,
                              .tables = c->tables,
                              .table_len = table,
                              .seq = c->seq };
}

uint8_t *
case_token(const case_t *c, uint8_t *pool, uint32_t s, uint32_t kv_head,
           uint32_t k, uint32_t *place)
{
    const int32_t *t = tr_kv_table(&c->host, c->slot[s], c->layer, kv_head);
    uint32_t tokens = c->plan.layout->tokens;

    *place = k % tokens;
    return pool + (size_t) t[k / tokens] * c->plan.page_bytes;
}

/* Keys, values and scores of the tokens that there are. */
static void
make_pages(case_t *c, double key, double value)
{
    const tr_kv_layout_t *l = c->plan.layout;
    size_t bytes = (size_t) c->pages * c->plan.page_bytes;

    c->pool = room(bytes);
    c->before = room(bytes);
    memset(c->pool, 0xff, bytes);
    for (uint32_t s = 0; s < c->rows.n_seqs; s++) {
        for (uint32_t i = 0;
             c->slot[s] >= 0 && i < c->kv_heads * case_length(c, s); i++) {
            uint32_t place;
            uint8_t *page = case_token(c, c->pool, s, i % c->kv_heads,
                                       i / c->kv_heads, &place);

            for (uint32_t d = 0; d < c->dim; d++) {
                uint16_t k = half_from(random_normal() * key);
                uint16_t v = half_from(random_normal() * value);

                memcpy(page + (place * c->dim + d) * 2, &k, 2);
                memcpy(page + l->value + (place * c->dim + d) * 2, &v, 2);
            }
            for (uint32_t j = 0; j < 2 && l->score; j++) {
                float f = (float) random_unit();

                memcpy(page + (j ? l->recent : l->score) + place * 4, &f, 4);
            }
        }
    }
    memcpy(c->before, c->pool, bytes);
}

static void
make_queries(case_t *c, double size, double scale)
{
    uint32_t heads = c->kv_heads * c->group;
    size_t ldq = heads * c->dim + random_below(3) * 8;
    size_t ldo = heads * c->dim + random_below(3) * 8, n = c->rows.n_rows * ldq;
    tr_dtype_t type = (tr_dtype_t) random_below(3);

    c->q = room(n * sizeof(*c->q));
    c->typed = room(n * 4);
    memset(c->typed, 0xff, n * 4);
    for (uint32_t r = 0; r < c->rows.n_rows; r++) {
        for (uint32_t i = 0; i < heads * c->dim; i++) {
            size_t at = r * ldq + i;
            /* eight bits are in all types; no digit is far below others */
            double x = (1 + random_below(128) / 128.0)
                       * (random_below(2) ? 1 : -1) * (1 + random_below(2))
                       * exp2(floor(log2(size)));

            c->q[at] = x;
            if (type == TR_F32) {
                ((float *) c->typed)[at] = (float) x;
            } else {
                ((uint16_t *) c->typed)[at] = type == TR_F16
                                                  ? half_from(x)
                                                  : bf16_from((float) x);
                c->q[at] = tr_float_load(c->typed, at, type);
            }
        }
    }
    c->queries = (tr_cuda_queries_t){ .ldq = ldq,
                                      .ldo = ldo,
                                      .q_type = type,
                                      .out_type = (tr_dtype_t) random_below(3),
                                      .heads = heads,
                                      .scale = (float) scale };
    c->out_bytes = c->rows.n_rows * ldo * tr_dtype_size(c->queries.out_type);
    c->out = room(c->out_bytes);
}

/* What the layer sees, and its sinks; of other layers nothing is known. */
static void
make_slide(case_t *c)
{
    uint32_t layers = c->host.layers, reach[2] = { ~0u, ~0u };
    uint32_t heads = c->queries.heads;
    void *sinks[2] = { NULL, NULL }, **d = c->device_mem;

    d[10] = d[11] = d[12] = NULL;
    if (c->reach != 0) {
        reach[c->layer] = c->reach;
        d[10] = to_device(reach, layers * 4);
        c->device.reach = d[10];
    }
    if (random_below(3) == 0) {
        c->sinks = room(heads * 4);
        for (uint32_t h = 0; h < heads; h++) {
            c->sinks[h] = (float) (random_normal() * 3);
        }
        d[11] = to_device(c->sinks, heads * 4);
        sinks[c->layer] = d[11];
        d[12] = to_device(sinks, layers * sizeof(*sinks));
        c->device.sinks = d[12];
    }
}

static void
make_device(case_t *c)
{
    void **d = c->device_mem;
    uint32_t seqs = c->rows.n_seqs;
    size_t heads = (size_t) (seqs + 1) * c->host.layers * c->kv_heads;

    d[0] = to_device(c->pool, (size_t) c->pages * c->plan.page_bytes);
    d[1] = to_device(c->tables, heads * c->host.table_len * 4);
    d[2] = to_device(c->seq, (seqs + 1) * sizeof(*c->seq));
    d[3] = to_device(c->pos, c->rows.n_rows * 4);
    d[4] = to_device(c->slot, seqs * 4);
    d[5] = to_device(c->seq_row, (seqs + 1) * 4);
    d[6] = to_device(c->typed, c->rows.n_rows * c->queries.ldq
                                   * tr_dtype_size(c->queries.q_type));
    d[7] = to_device(NULL, c->out_bytes);
    c->size = (tr_cuda_prompt_size_t){ c->kv_heads,
                                       c->dim,
                                       c->queries.heads,
                                       c->rows.n_rows + random_below(300),
                                       seqs + random_below(3),
                                       LEN_MAX + random_below(300),
                                       TR_PROMPT_BEST,
                                       0 };
    d[8] = to_device(NULL, tr_cuda_prompt_work(&c->size));
    d[9] = to_device(NULL, 8);
    c->device = c->host;
    c->device.pool = d[0];
    c->device.tables = d[1];
    c->device.seq = d[2];
    make_slide(c);
    c->device_rows = (tr_rows_t){ c->rows.n_rows, seqs, d[3], d[4], d[5] };
    c->queries.q = d[6];
    c->queries.out = d[7];
}

/* ---- what it must be ---------------------------------------------------- */

static void
want_open(const case_t *c, uint32_t s, uint32_t kv_head, want_t *w)
{
    uint32_t keys = case_length(c, s), rows = c->seq_row[s + 1] - c->seq_row[s];
    uint32_t place;

    w->key = room(keys * c->dim * 8);
    w->value = room(keys * c->dim * 8);
    w->p = room(c->group * keys * 8);
    w->out = room((size_t) rows * c->group * c->dim * 8);
    w->norm = room(rows * c->group * 8);
    w->slack = room(rows * 8);
    w->add[0] = calloc(keys, 8);
    w->add[1] = calloc(keys, 8);
    w->widest = 0;
    for (uint32_t k = 0; k < keys; k++) {
        const uint8_t *page = case_token(c, c->before, s, kv_head, k, &place);

        for (uint32_t d = 0; d < c->dim; d++) {
            w->key[k * c->dim + d] = tr_float_load(page, place * c->dim + d,
                                                   TR_F16);
            w->value[k * c->dim + d] = tr_float_load(
                page + c->plan.layout->value, place * c->dim + d, TR_F16);
        }
    }
}

static void
want_close(want_t *w)
{
    free(w->key);
    free(w->value);
    free(w->p);
    free(w->out);
    free(w->norm);
    free(w->slack);
    free(w->add[0]);
    free(w->add[1]);
}

/* One row of one head: weights, output. */
static void
want_head(const case_t *c, want_t *w, uint32_t head, const double *q,
          uint32_t keys, double *p, double *out, double *norm, double *span)
{
    uint32_t from = c->reach != 0 && keys > c->reach ? keys - c->reach : 0;
    double most = c->sinks == NULL ? -INFINITY : c->sinks[head], sum = 0;

    memset(p, 0, from * 8);
    for (uint32_t k = from; k < keys; k++) {
        double x = 0, y = 0;

        for (uint32_t d = 0; d < c->dim; d++) {
            double z = q[d] * w->key[k * c->dim + d];

            x += z;
            y += fabs(z);
        }
        p[k] = x * c->queries.scale;
        most = fmax(most, p[k]);
        *span = fmax(*span, y * c->queries.scale);
    }
    sum = c->sinks == NULL ? 0 : exp(c->sinks[head] - most);
    for (uint32_t k = from; k < keys; k++) {
        sum += p[k] = exp(p[k] - most);
    }
    memset(out, 0, c->dim * 8);
    *norm = 0;
    for (uint32_t k = from; k < keys; k++) {
        double around = 0;

        p[k] /= sum;
        for (uint32_t d = 0; d < c->dim; d++) {
            double x = p[k] * w->value[k * c->dim + d];

            out[d] += x;
            around += fabs(x);
        }
        *norm += around;
    }
    *norm /= sqrt(c->dim);
}

static void
want_tier(const case_t *c, uint32_t s, uint32_t kv_head, want_t *w)
{
    uint32_t first = c->seq_row[s], rows = c->seq_row[s + 1] - first;

    want_open(c, s, kv_head, w);
    for (uint32_t i = 0; i < rows && case_attends(c, s); i++) {
        uint32_t pos = c->pos[first + i], keys = pos + 1;
        bool recent = pos >= c->seq[c->slot[s]].recent_from;
        double span = 0;

        for (uint32_t h = 0; h < c->group; h++) {
            size_t at = (size_t) i * c->group + h;

            want_head(c, w, kv_head * c->group + h,
                      c->q + (first + i) * c->queries.ldq
                          + (kv_head * c->group + h) * c->dim,
                      keys, w->p + h * keys, w->out + at * c->dim, w->norm + at,
                      &span);
        }
        /* FP16 weights, FP32 logits, the type of the output */
        w->slack[i] = 6e-4 + 4e-6 * span
                      + (c->queries.out_type == TR_BF16 ? 4e-3 : 0);
        w->widest = fmax(w->widest, span);
        for (uint32_t k = 0; k + 1 < keys; k++) {
            double most = 0;

            for (uint32_t h = 0; h < c->group; h++) {
                most = fmax(most, w->p[h * keys + k]);
            }
            w->add[0][k] += most;
            w->add[1][k] += recent ? most : 0;
        }
    }
}

void
case_open(case_t *c, bool wide)
{
    static const double sizes[] = { 1e-6, 1e-3, 1, 1, 1, 30, 1e4 };
    double key = sizes[random_below(7)], query = sizes[random_below(7)];
    double value = sizes[random_below(7)];
    /* logits that matter: sharp, flat, and in between */
    double spread = random_below(4) == 0 ? 30 : 0.1 + 4 * random_unit();

    memset(c, 0, sizeof(*c));
    make_plan(c, wide);
    make_rows(c);
    make_pages(c, key, value);
    make_queries(c, query, spread / (sqrt(c->dim) * key * 2 * query));
    make_device(c);
    c->want = calloc(c->rows.n_seqs * c->kv_heads, sizeof(*c->want));
    for (uint32_t i = 0; i < c->rows.n_seqs * c->kv_heads; i++) {
        if (c->slot[i / c->kv_heads] >= 0) {
            want_tier(c, i / c->kv_heads, i % c->kv_heads, &c->want[i]);
        }
    }
}

void
case_close(case_t *c)
{
    for (uint32_t i = 0; i < 13; i++) {
        cudaFree(c->device_mem[i]);
    }
    for (uint32_t i = 0; i < c->rows.n_seqs * c->kv_heads; i++) {
        want_close(&c->want[i]);
    }
    free(c->want);
    free(c->sinks);
    free(c->pos);
    free(c->seq_row);
    free(c->slot);
    free(c->tables);
    free(c->seq);
    free(c->pool);
    free(c->before);
    free(c->q);
    free(c->typed);
    free(c->out);
}
