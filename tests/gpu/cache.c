/*
 * A random KV cache, host and device; see cache.h.
 */
#include "cache.h"

#include <cuda_runtime_api.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static uint64_t state;

void
random_seed(uint64_t seed)
{
    state = seed * 0x9e3779b97f4a7c15u + 1;
}

static uint64_t
random_next(void)
{
    uint64_t z = state += 0x9e3779b97f4a7c15u;

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

uint32_t
random_below(uint32_t n)
{
    return (uint32_t) (random_next() >> 32) % n;
}

double
random_unit(void)
{
    return (double) (random_next() >> 11) * 0x1p-53;
}

double
random_normal(void)
{
    return sqrt(-2 * log(1 - random_unit())) * cos(6.283185307 * random_unit());
}

uint16_t
half_from(double x)
{
    _Float16 h = (_Float16) (x > 65504 ? 65504 : x < -65504 ? -65504 : x);
    uint16_t u;

    memcpy(&u, &h, 2);
    return u;
}

void
cuda_ok(int error, const char *what)
{
    if (error != cudaSuccess) {
        fprintf(stderr, "%s: %s\n", what,
                cudaGetErrorString((cudaError_t) error));
        exit(1);
    }
}

static void *
room(size_t n, size_t size)
{
    void *p = calloc(n ? n : 1, size);

    if (p == NULL) {
        fprintf(stderr, "out of memory\n");
        exit(1);
    }
    return p;
}

static void *
to_device(const void *src, size_t bytes)
{
    void *p = NULL;

    cuda_ok(cudaMalloc(&p, bytes ? bytes : 1), "cudaMalloc");
    cuda_ok(cudaMemcpy(p, src, bytes, cudaMemcpyHostToDevice), "copy");
    return p;
}

/* ---- pages -------------------------------------------------------------- */

/* How large this head's keys and values are, by layout. */
typedef struct {
    double key, value;
} magnitude_t;

static void
put_meta(uint8_t *page, uint32_t at, double magnitude, uint32_t bits)
{
    double scale = magnitude * (0.5 + random_unit()) / (1u << bits);
    uint16_t pair[2];

    pair[0] = half_from(scale);
    pair[1] = half_from(-scale * (1u << bits) * (0.3 + 0.4 * random_unit()));
    memcpy(page + at, pair, 4);
}

static void
put_token(const tr_kv_layout_t *l, uint8_t *page, uint32_t t, uint32_t position,
          magnitude_t m)
{
    uint32_t kb = l->level.key_bits, vb = l->level.value_bits;
    float score = (float) random_unit() * 4;

    for (uint32_t d = 0; d < l->head_dim; d++) {
        if (kb == 16) {
            uint16_t h[2] = { half_from(random_normal() * m.key),
                              half_from(random_normal() * m.value) };

            memcpy(page + tr_kv_key_row(l, t) + 2 * d, &h[0], 2);
            memcpy(page + tr_kv_value_row(l, t) + 2 * d, &h[1], 2);
        } else {
            tr_kv_code_set(page, tr_kv_key_code(l, t, d), kb,
                           random_below(1u << kb));
            tr_kv_code_set(page, tr_kv_value_code(l, t, d), vb,
                           random_below(1u << vb));
        }
    }
    if (kb != 16) {
        put_meta(page, tr_kv_key_meta(l, t, 0), m.key, kb);
        put_meta(page, tr_kv_value_meta(l, t, 0), m.value, vb);
    }
    if (l->level.scored) {
        memcpy(page + l->score + t * 4, &score, 4);
        if (l->position != 0) {
            tr_kv_position_put(l, page, t, position);
        }
        if (l->recent != 0) {
            score /= 2;
            memcpy(page + l->recent + t * 4, &score, 4);
        }
    }
}

/* ---- sequences ---------------------------------------------------------- */

typedef struct {
    cache_t *c;
    int32_t *free_page;
    uint64_t n_free;
    magnitude_t magnitude[TR_KV_LAYOUTS_MAX];
} build_t;

static uint8_t *
page_for(build_t *b, int32_t *entry)
{
    if (*entry < 0) {
        if (b->n_free == 0) {
            fprintf(stderr, "the pool is too small\n");
            exit(1);
        }
        *entry = b->free_page[--b->n_free];
    }
    return tr_kv_page_at(&b->c->host, *entry);
}

static void
build_list(build_t *b, int32_t *table, uint32_t l, uint32_t layout,
           const uint32_t *position, uint32_t n)
{
    const tr_kv_layout_t *at = &b->c->plan.layout[layout];

    for (uint32_t i = 0; i < n; i++) {
        uint32_t e = tr_kv_list_entry(&b->c->host, l, i / at->tokens);

        put_token(at, page_for(b, &table[e]), i % at->tokens, position[i],
                  b->magnitude[layout]);
    }
}

static uint32_t
gcd(uint32_t a, uint32_t b)
{
    return b == 0 ? a : gcd(b, a % b);
}

/* One head of a sequence: lists with tokens at random positions, the window,
 * dense pages up to n. */
static void
build_head(build_t *b, const tr_kv_seq_t *s, int32_t *table, uint32_t *count,
           uint32_t n, uint32_t first, uint32_t listed)
{
    cache_t *c = b->c;
    uint32_t stride = 1 + random_below(listed ? listed : 1), used = 0;
    uint32_t *position = room(c->shape.max_list + 1, 4);

    while (listed > 1 && gcd(stride, listed) != 1) {
        stride++;
    }
    for (uint32_t l = 0; l < s->n_lists; l++) {
        uint32_t most = c->shape.max_list, tokens = random_below(most + 1);
        bool own = s->window == 0 && l == 0 && n + 1 == s->base;

        tokens = random_below(4) == 0 ? random_below(20) : tokens;
        tokens = tokens > most ? most : tokens;
        for (uint32_t i = 0; i < tokens; i++) {
            position[i] = first
                          + (uint32_t) ((uint64_t) used++ * stride % listed);
        }
        if (own) { /* the query's token is in the list, somewhere */
            position[tokens] = n;
            tokens++;
            uint32_t i = random_below(tokens), x = position[i];
            position[i] = n;
            position[tokens - 1] = i == tokens - 1 ? n : x;
        }
        count[l] = tokens;
        build_list(b, table, l, s->list_layout[l], position, tokens);
    }
    for (uint32_t p = s->window_from; s->window && p < s->base; p++) {
        const tr_kv_layout_t *at = &c->plan.layout[s->window_layout];
        uint32_t i = p % s->window;

        put_token(at, page_for(b, &table[c->host.at_window + i / at->tokens]),
                  i % at->tokens, p, b->magnitude[s->window_layout]);
    }
    for (uint32_t p = s->base; p <= n; p++) {
        uint32_t i = p - s->base, per = c->plan.layout[0].tokens;

        put_token(&c->plan.layout[0], page_for(b, &table[i / per]), i % per, p,
                  b->magnitude[0]);
    }
    free(position);
}

/* Decides where a sequence's tokens are, positions from `first` on; returns its
 * query's position. */
static uint32_t
choose_sequence(const cache_t *c, tr_kv_seq_t *s, uint32_t first,
                uint32_t *listed)
{
    const cache_shape_t *w = &c->shape;
    uint32_t dense = 0, kind = w->n_levels == 0 ? 0 : random_below(4);

    memset(s, 0, sizeof(*s));
    *listed = 0;
    s->scored = kind == 0 ? w->dense_scored : w->level[0].scored;
    s->by_sum = random_below(2) == 0;
    if (kind == 0) { /* dense only */
        dense = 1 + random_below(w->max_dense);
    } else {
        *listed = w->n_levels * w->max_list + 1;
        s->n_lists = (uint8_t) w->n_levels;
        for (uint32_t l = 0; l < w->n_levels; l++) {
            s->list_layout[l] = (uint8_t) (l + 1);
        }
        s->base = first + *listed + 1;
        if (kind != 1 && w->max_window > 0) {
            s->window = 1 + random_below(w->max_window);
            s->window_layout = (uint8_t) (1 + random_below(w->n_levels));
            s->window_from = first + *listed;
            s->base = s->window_from + 1 + random_below(s->window);
        } else {
            s->window_from = s->base;
        }
        dense = kind == 3 ? 1 + random_below(w->max_dense) : 0;
    }
    uint32_t n = s->base + dense - 1;

    s->recent_from = random_below(2) ? n : n + 1;
    return n;
}

static void
choose_magnitudes(build_t *b)
{
    bool wild = b->c->shape.wild;

    for (uint32_t i = 0; i < TR_KV_LAYOUTS_MAX; i++) {
        b->magnitude[i].key = 2;
        b->magnitude[i].value = 1;
    }
    if (wild) {
        double key = pow(10, -6 + 10 * random_unit());

        for (uint32_t i = 0; i < TR_KV_LAYOUTS_MAX; i++) {
            b->magnitude[i].key = key * 100;
            b->magnitude[i].value = pow(10, -4 + 8 * random_unit());
        }
        /* FP16 values have no scale: they are as large as they are */
        b->magnitude[0].value = pow(10, 4 * random_unit());
    }
}

/* Queries whose logits are of order 3, whatever the keys are. */
static void
fill_queries(cache_t *c, uint32_t row, double key)
{
    uint32_t dim = c->shape.head_dim, n = c->shape.heads * dim;

    for (uint32_t i = 0; i < n; i++) {
        c->q[(size_t) row * n + i] = (float) (random_normal() * 4 / key
                                              / (0.4 + random_unit()));
    }
}

static void
build(build_t *b)
{
    cache_t *c = b->c;
    tr_kv_view_t *v = &c->host;
    uint32_t row = 0;

    for (uint32_t s = 0; s < c->shape.seqs; s++) {
        bool two = c->shape.seqs > 2 && random_below(8) == 0;
        tr_kv_seq_t *seq = (tr_kv_seq_t *) &v->seq[s];
        uint32_t most = c->shape.n_levels * c->shape.max_list
                        + c->shape.max_window + c->shape.max_dense + 2;
        uint32_t end = c->plan.layout[1].position_bytes == 2 ? TR_KV_SHORT
                                                             : 1u << 20;
        uint32_t first = random_below(2) ? end - most : 0, listed;
        uint32_t n = choose_sequence(c, seq, first, &listed);

        ((int32_t *) c->rows.seq_slot)[s] = c->shape.seqs > 2
                                                    && random_below(8) == 0
                                                ? -1
                                                : (int32_t) s;
        ((uint32_t *) c->rows.seq_row)[s] = row;
        choose_magnitudes(b);
        for (uint32_t h = 0; h < v->layers * v->lists; h++) {
            size_t head = (size_t) s * v->layers * v->lists + h;

            build_head(b, seq, (int32_t *) v->tables + head * v->table_len,
                       (uint32_t *) v->count + head * TR_KV_LISTS_MAX, n, first,
                       listed);
        }
        for (int i = 0; i < (two ? 2 : 1); i++) {
            ((uint32_t *) c->rows.row_pos)[row] = n;
            fill_queries(c, row, b->magnitude[0].key);
            row++;
        }
    }
    ((uint32_t *) c->rows.seq_row)[c->shape.seqs] = row;
    c->rows.n_rows = row;
    c->rows.n_seqs = c->shape.seqs;
}

/* ---- all of it ---------------------------------------------------------- */

static uint32_t
pages_of(uint32_t tokens, uint32_t per_page)
{
    return (tokens + per_page - 1) / per_page;
}

/* The table's shape, and pages for the worst case. */
static void
plan_table(cache_t *c)
{
    const cache_shape_t *w = &c->shape;
    tr_kv_view_t *v = &c->host;
    uint32_t fewest = c->plan.layout[0].tokens, most = 0;

    for (uint32_t i = 1; i < c->plan.n; i++) {
        fewest = c->plan.layout[i].tokens < fewest ? c->plan.layout[i].tokens
                                                   : fewest;
    }
    v->at_window = pages_of(w->max_dense + 1, c->plan.layout[0].tokens);
    v->at_pair[0] = v->at_window + pages_of(w->max_window + 1, fewest);
    for (uint32_t p = 0; p < 2; p++) {
        v->pair_len[p] = 2 * pages_of(w->max_list + 1, fewest) + 1;
        v->at_pair[1] = p == 0 ? v->at_pair[0] + v->pair_len[0] : v->at_pair[1];
    }
    v->table_len = v->at_pair[1] + v->pair_len[1];
    most = v->table_len * v->layers * v->lists * w->seqs;
    c->pages = most;
    c->max_tokens = (uint64_t) w->seqs
                    * (w->n_levels * (w->max_list + 1) + w->max_window
                       + w->max_dense);
}

static void
copy_to_device(cache_t *c)
{
    const tr_kv_view_t *v = &c->host;
    size_t heads = (size_t) c->shape.seqs * v->layers * v->lists;
    size_t q = (size_t) c->rows.n_rows * c->shape.heads * v->head_dim * 4;
    tr_kv_view_t *d = &c->device;
    tr_rows_t *r = &c->device_rows;

    *d = *v;
    d->pool = to_device(v->pool, c->pages * v->page_bytes);
    d->tables = to_device(v->tables, heads * v->table_len * 4);
    d->seq = to_device(v->seq, c->shape.seqs * sizeof(*v->seq));
    d->count = to_device(v->count, heads * TR_KV_LISTS_MAX * 4);
    d->victim = to_device(v->victim,
                          heads * TR_KV_LISTS_MAX * sizeof(*v->victim));
    *r = c->rows;
    r->row_pos = to_device(c->rows.row_pos, c->rows.n_rows * 4);
    r->seq_slot = to_device(c->rows.seq_slot, c->rows.n_seqs * 4);
    r->seq_row = to_device(c->rows.seq_row, (c->rows.n_seqs + 1) * 4);
    c->device_q = to_device(c->q, q);
    memset(c->out, 0xff, q * v->layers);
    c->device_out = to_device(c->out, q * v->layers);
}

void
cache_create(cache_t *c, const cache_shape_t *shape)
{
    tr_page_wish_t wish = { shape->head_dim, shape->level,
                            shape->n_levels, shape->dense_scored,
                            false,           random_below(2) == 0 };
    tr_kv_view_t *v = &c->host;
    build_t b = { c, NULL, 0, { { 0, 0 } } };
    size_t heads = (size_t) shape->seqs * shape->layers * shape->lists;
    size_t rows = (size_t) shape->seqs * 2;

    memset(c, 0, sizeof(*c));
    c->shape = *shape;
    if (tr_page_plan(&wish, &c->plan) != 0) {
        fprintf(stderr, "no page size for these levels\n");
        exit(1);
    }
    v->page_bytes = c->plan.page_bytes;
    v->layers = shape->layers;
    v->lists = shape->lists;
    v->head_dim = shape->head_dim;
    v->n_layouts = c->plan.n;
    v->layout = c->plan.layout;
    plan_table(c);
    v->pool = room(c->pages, v->page_bytes);
    memset(v->pool, 0xff, c->pages * v->page_bytes);
    v->tables = room(heads * v->table_len, 4);
    memset((void *) v->tables, 0xff, heads * v->table_len * 4);
    v->seq = room(shape->seqs, sizeof(tr_kv_seq_t));
    v->count = room(heads * TR_KV_LISTS_MAX, 4);
    v->victim = room(heads * TR_KV_LISTS_MAX, sizeof(tr_kv_victim_t));
    c->rows.row_pos = room(rows, 4);
    c->rows.seq_slot = room(shape->seqs, 4);
    c->rows.seq_row = room(shape->seqs + 1, 4);
    c->q = room(rows * shape->heads * shape->head_dim, 4);
    c->out = room(rows * shape->heads * shape->head_dim * shape->layers, 4);
    c->scale = (float) (1 / sqrt(shape->head_dim));
    b.free_page = room(c->pages, 4);
    b.n_free = c->pages;
    for (uint64_t i = 0; i < c->pages; i++) { /* a random order */
        uint32_t j = random_below((uint32_t) i + 1);

        b.free_page[i] = b.free_page[j];
        b.free_page[j] = (int32_t) i;
    }
    build(&b);
    free(b.free_page);
    copy_to_device(c);
}

void
cache_free(cache_t *c)
{
    void *host[] = { c->host.pool,
                     (void *) c->host.tables,
                     (void *) c->host.seq,
                     (void *) c->host.count,
                     c->host.victim,
                     (void *) c->rows.row_pos,
                     (void *) c->rows.seq_slot,
                     (void *) c->rows.seq_row,
                     c->q,
                     c->out };
    void *device[] = { c->device.pool,
                       (void *) c->device.tables,
                       (void *) c->device.seq,
                       (void *) c->device.count,
                       c->device.victim,
                       (void *) c->device_rows.row_pos,
                       (void *) c->device_rows.seq_slot,
                       (void *) c->device_rows.seq_row,
                       c->device_q,
                       c->device_out };

    for (size_t i = 0; i < sizeof(host) / sizeof(host[0]); i++) {
        free(host[i]);
        cuda_ok(cudaFree(device[i]), "cudaFree");
    }
}

tr_cuda_decode_size_t
cache_size(const cache_t *c)
{
    tr_cuda_decode_size_t size = { 0 };

    size.layers = c->shape.layers;
    size.lists = c->shape.lists;
    size.head_dim = c->shape.head_dim;
    size.max_seqs = c->shape.seqs;
    size.heads = c->shape.heads;
    size.max_tokens = c->max_tokens;
    size.page_tokens = c->plan.layout[0].tokens;
    for (uint32_t i = 1; i < c->plan.n; i++) {
        if (c->plan.layout[i].tokens < size.page_tokens) {
            size.page_tokens = c->plan.layout[i].tokens;
        }
    }
    return size;
}

bool
cache_attends(const cache_t *c, uint32_t s)
{
    return c->rows.seq_slot[s] >= 0
           && c->rows.seq_row[s + 1] - c->rows.seq_row[s] == 1;
}
