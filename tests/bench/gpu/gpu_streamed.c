/*
 * Layers that stream (gpu_streamed.h).
 *
 * A buffer is a layer of a view: pages of one sequence stand together, those of
 * the same tokens side by side, so that what is behind the front is one copy.
 * Host memory has as many layers as there is room for, each with random rows of X
 * and the pages that the model's weights make of them.
 */
#include "gpu_streamed.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/dtype.h"

#define PIECE_ROWS 4096u
#define HOST_BYTES (12ull << 30)
#define ROUNDS 3

static void
must(const streamed_t *s, int rc, const char *what)
{
    if (rc != 0) {
        fixture_die(what, s->cuda->reason());
    }
}

static void *
taken(const streamed_t *s, void *p, const char *what)
{
    if (p == NULL) {
        fixture_die(what, s->cuda->reason());
    }
    return p;
}

static const tr_recipe_t *
recipe(const streamed_t *s)
{
    return &s->m->config.recipe;
}

/* ---- arrays --------------------------------------------------------------- */

static void
upload(const streamed_t *s, void *to, const void *from, size_t bytes)
{
    void *staging = taken(s, s->cuda->pin(bytes), "pin");

    memcpy(staging, from, bytes);
    must(s, s->cuda->copy(s->m->stream, to, staging, bytes), "copy");
    must(s, s->cuda->stream_wait(s->m->stream), "copy");
    s->cuda->unpin(staging);
}

static void *
uploaded(const streamed_t *s, const void *from, size_t bytes)
{
    void *to = taken(s, s->cuda->alloc(bytes), "memory");

    upload(s, to, from, bytes);
    return to;
}

static void *
cleared(const streamed_t *s, size_t bytes)
{
    void *p = calloc(1, bytes), *to;

    if (p == NULL) {
        fixture_die("open", "out of memory");
    }
    to = uploaded(s, p, bytes);
    free(p);
    return to;
}

static void
open_tables(streamed_t *s)
{
    tr_kv_view_t *v = &s->view;
    size_t n = (size_t) s->seqs * STREAMED_BUFFERS * s->heads;
    int32_t *table = calloc(n * v->table_len, sizeof(*table));

    for (size_t i = 0; i < n && table != NULL; i++) {
        size_t seq = i / s->heads / STREAMED_BUFFERS;
        size_t buffer = i / s->heads % STREAMED_BUFFERS, head = i % s->heads;

        for (uint32_t p = 0; p < s->head_pages; p++) {
            table[i * v->table_len + p] = (int32_t) (((buffer * s->seqs + seq)
                                                          * s->head_pages
                                                      + p)
                                                         * s->heads
                                                     + head);
        }
    }
    if (table == NULL) {
        fixture_die("open", "out of memory");
    }
    v->tables = uploaded(s, table, n * v->table_len * sizeof(*table));
    free(table);
    v->seq = cleared(s, s->seqs * sizeof(*v->seq));
    v->sliding = cleared(s, sizeof(*v->sliding));
    v->count = cleared(s, n * TR_KV_TIERS_MAX * sizeof(*v->count));
    v->candidate = cleared(s, n * TR_KV_TIERS_MAX * sizeof(*v->candidate));
    v->move = cleared(s, n * sizeof(*v->move));
}

static void
open_view(streamed_t *s)
{
    const tr_page_plan_t *plan = tr_kv_plan(s->b->e->kv);
    tr_kv_view_t *v = &s->view;

    s->layout = plan->layout[0];
    s->page = plan->page_bytes;
    s->heads = recipe(s)->kv_heads;
    if (plan->n != 1 || s->layout.score != 0) {
        fixture_die("--policy", "expected full");
    }
    s->head_pages = s->tokens / s->layout.tokens + 1;
    s->seq_bytes = (size_t) s->head_pages * s->heads * s->page;
    s->layer_bytes = s->seqs * s->seq_bytes;
    *v = (tr_kv_view_t){ .page_bytes = s->page,
                         .layers = STREAMED_BUFFERS,
                         .kv_heads = s->heads,
                         .head_dim = recipe(s)->head_dim,
                         .n_layouts = 1,
                         .layout = &s->layout,
                         .table_len = s->head_pages,
                         .at_window = s->head_pages,
                         .at_pair = { s->head_pages, s->head_pages } };
    v->pool = taken(s, s->cuda->alloc(STREAMED_BUFFERS * s->layer_bytes),
                    "buffers");
    open_tables(s);
}

static size_t
kv_columns(const streamed_t *s)
{
    return (size_t) s->heads * recipe(s)->head_dim;
}

static size_t
query_columns(const streamed_t *s)
{
    return (size_t) recipe(s)->query_heads * recipe(s)->head_dim;
}

/* Rows of a product are rounded up. */
static size_t
row_room(const streamed_t *s)
{
    return (size_t) s->seqs * s->tokens + tr_cuda_matmul_rows(PIECE_ROWS);
}

static void
open_rows(streamed_t *s)
{
    tr_cuda_parts_t *of = s->m->layers;
    size_t rows = row_room(s),
           n = s->seqs > STREAMED_PIECES ? s->seqs : STREAMED_PIECES;
    int32_t *slot = calloc(s->seqs, sizeof(*slot));

    if (of->form[TR_PART_QKV].format != TR_WEIGHT_16 || slot == NULL) {
        fixture_die("--model", "expected weights of 16 bits");
    }
    s->wide = of->part[TR_PART_QKV_BIAS] != NULL
              || of->part[TR_PART_Q_NORM] != NULL;
    s->ld = 2 * kv_columns(s) + (s->wide ? query_columns(s) : 0);
    for (uint32_t i = 0; i < STREAMED_BUFFERS; i++) {
        s->came_x[i] = taken(s, s->cuda->alloc(rows * s->x_row), "X");
    }
    s->made = cleared(s, tr_cuda_matmul_rows(PIECE_ROWS) * s->ld * 2);
    s->angles = taken(s, s->cuda->alloc(rows * recipe(s)->head_dim * 4),
                      "angles");
    s->row_pos = taken(s, s->cuda->alloc(rows * 4), "rows");
    s->seq_row = taken(s, s->cuda->alloc(4 * n * 2), "rows");
    for (uint32_t i = 0; i < s->seqs; i++) {
        slot[i] = (int32_t) i;
    }
    s->slot = uploaded(s, slot, s->seqs * sizeof(*slot));
    free(slot);
}

/* ---- a product ------------------------------------------------------------ */

static tr_cuda_product_t
product_of(const streamed_t *s, uint32_t layer, const uint8_t *x, uint32_t rows)
{
    size_t q = query_columns(s), kv = kv_columns(s);
    const uint8_t *w = s->m->layers[layer].part[TR_PART_QKV];

    return (tr_cuda_product_t){ .rows = rows,
                                .n = (uint32_t) (2 * kv),
                                .k = recipe(s)->hidden,
                                .type = s->m->type,
                                .out = s->m->type,
                                .x = x,
                                .w = w + q * s->x_row,
                                .y = s->made + (s->wide ? 2 * q : 0),
                                .ldx = recipe(s)->hidden,
                                .ldy = s->ld };
}

static void
open_products(streamed_t *s)
{
    const void *weights[16];
    uint32_t n = s->layers < 16 ? s->layers : 16;
    tr_cuda_product_t p = product_of(s, 0, s->came_x[0], PIECE_ROWS);

    for (uint32_t l = 0; l < n; l++) {
        weights[l] = product_of(s, l, s->came_x[0], 1).w;
    }
    must(s,
         s->cuda->fill_random(s->m->stream, s->came_x[0],
                              (size_t) PIECE_ROWS * recipe(s)->hidden,
                              s->m->type, 1, 0, 1),
         "fill_random");
    must(s,
         s->cuda->matmul_open(s->m->stream->device, PIECE_ROWS, &s->products),
         "matmul_open");
    must(s, s->cuda->matmul_choose(s->products, s->m->stream, &p, weights, n),
         "matmul_choose");
}

/* Keys and values of a piece, from X into the buffer's pages. */
static void
make(streamed_t *s, uint32_t layer, uint32_t buffer, const streamed_piece_t *c)
{
    const tr_recipe_t *r = recipe(s);
    void *const *w = s->m->layers[layer].part;
    tr_cuda_product_t p = product_of(s, layer,
                                     s->came_x[buffer] + c->row * s->x_row,
                                     c->rows);
    const float *angles = s->angles + (size_t) c->row * r->head_dim;
    tr_cuda_qkv_t heads = { .rows = c->rows,
                            .heads = r->query_heads,
                            .kv_heads = r->kv_heads,
                            .head_dim = r->head_dim,
                            .qkv = s->made,
                            .ld = s->ld,
                            .type = s->m->type,
                            .bias = w[TR_PART_QKV_BIAS],
                            .q_norm = w[TR_PART_Q_NORM],
                            .k_norm = w[TR_PART_K_NORM],
                            .eps = r->norm_eps,
                            .angles = angles };
    tr_cuda_keys_t keys = { .k = p.y,
                            .v = (uint8_t *) p.y + 2 * kv_columns(s),
                            .ld = s->ld,
                            .type = s->m->type,
                            .angles = angles,
                            .moved = true,
                            .heads = s->wide ? &heads : NULL };
    tr_rows_t rows = { .n_rows = c->rows,
                       .n_seqs = c->seqs,
                       .row_pos = s->row_pos + c->row,
                       .seq_slot = s->slot + c->first,
                       .seq_row = s->seq_row + c->at };

    must(s, s->cuda->matmul(s->m->stream, s->products, &p), "matmul");
    must(s,
         s->cuda->kv_append(s->m->stream, &s->view, buffer, &rows, &keys, NULL),
         "kv_append");
}

/* ---- pieces --------------------------------------------------------------- */

static void
add_piece(streamed_t *s, uint32_t first, uint32_t seqs, uint32_t from,
          uint32_t tokens)
{
    const streamed_piece_t *last = &s->piece[s->n_pieces - 1];
    streamed_piece_t *c = &s->piece[s->n_pieces];
    bool any = s->n_pieces != 0;

    if (s->n_pieces == STREAMED_PIECES) {
        fixture_die("--batch", "too many pieces");
    }
    *c = (streamed_piece_t){ .first = first,
                             .seqs = seqs,
                             .from = from,
                             .tokens = tokens,
                             .row = any ? last->row + last->rows : 0,
                             .rows = seqs * tokens,
                             .at = any ? last->at + last->seqs + 1 : 0 };
    s->n_pieces++;
}

/* Whole sequences where some are short, or parts of a long one: about as many rows
 * each, and so many pieces that a product hides behind the next one's copy. */
static void
cut_pieces(streamed_t *s, uint32_t front)
{
    uint32_t most = PIECE_ROWS, eighth = s->seqs * front / 8;

    most = eighth < most ? eighth : most;
    most = most < 512 ? 512 : most;
    s->n_pieces = 0;
    for (uint32_t i = 0; front != 0 && i < s->seqs;) {
        uint32_t n = most / front, left = s->seqs - i;

        n = n == 0 ? 1 : n < left ? n : left;
        for (uint32_t at = 0; at < front; at += most) {
            add_piece(s, i, n, at, front - at < most ? front - at : most);
        }
        i += n;
    }
}

void
streamed_set_front(streamed_t *s, uint32_t front)
{
    size_t rows = (size_t) s->seqs * front;
    uint32_t *pos = malloc((rows + 1) * sizeof(*pos)), n = 0;
    uint32_t *row = malloc(2ull * sizeof(*row) * (s->seqs + STREAMED_PIECES));
    tr_cuda_angles_t a = { .rows = (uint32_t) rows,
                           .half = recipe(s)->head_dim / 2,
                           .row_pos = s->row_pos,
                           .inv_freq = tr_model_cuda_table(s->m, 0)->inv_freq,
                           .amp = tr_model_cuda_table(s->m, 0)->amp,
                           .angles = s->angles };

    if (pos == NULL || row == NULL) {
        fixture_die("front", "out of memory");
    }
    s->front = front;
    cut_pieces(s, front);
    for (uint32_t i = 0; i < s->n_pieces; i++) {
        const streamed_piece_t *c = &s->piece[i];

        for (uint32_t q = 0; q <= c->seqs; q++) {
            row[c->at + q] = q * c->tokens;
        }
        for (uint32_t k = 0; k < c->rows; k++) {
            pos[n++] = c->from + k % c->tokens;
        }
    }
    if (n != 0) {
        const streamed_piece_t *last = &s->piece[s->n_pieces - 1];

        upload(s, s->row_pos, pos, rows * sizeof(*pos));
        upload(s, s->seq_row, row, (last->at + last->seqs + 1) * sizeof(*row));
        must(s, s->cuda->rope_angles(s->m->stream, &a), "rope_angles");
    }
    must(s, s->cuda->stream_wait(s->m->stream), "angles");
    free(pos);
    free(row);
}

/* The front ends with a page, or with the sequence. */
static uint32_t
pages_of(const streamed_t *s, uint32_t tokens)
{
    return (tokens + s->layout.tokens - 1) / s->layout.tokens;
}

uint32_t
streamed_front(const streamed_t *s, uint32_t part, uint32_t parts)
{
    uint32_t chunk = pages_of(s, STREAMED_CHUNK) * s->layout.tokens;

    return part == parts ? s->tokens
                         : (uint32_t) ((uint64_t) s->tokens * part / parts)
                               / chunk * chunk;
}

double
streamed_x_bytes(const streamed_t *s)
{
    return (double) s->seqs * s->front * s->x_row;
}

double
streamed_page_bytes(const streamed_t *s)
{
    uint32_t behind = pages_of(s, s->tokens) - pages_of(s, s->front);

    return (double) s->seqs * behind * s->heads * s->page;
}

/* ---- host memory ---------------------------------------------------------- */

static uint8_t *
host_x(const streamed_t *s, uint32_t layer, uint32_t seq, uint32_t token)
{
    size_t at = ((size_t) (layer % s->hosts) * s->seqs + seq) * s->tokens
                + token;

    return s->x + at * s->x_row;
}

static uint8_t *
host_pages(const streamed_t *s, uint32_t layer, uint32_t seq)
{
    return s->pages + (layer % s->hosts) * s->layer_bytes + seq * s->seq_bytes;
}

static uint8_t *
device_pages(const streamed_t *s, uint32_t buffer, uint32_t seq)
{
    return s->view.pool + buffer * s->layer_bytes + seq * s->seq_bytes;
}

/* Random rows of X, and what the weights make of them. */
static void
fill_host(streamed_t *s, uint32_t layer)
{
    const tr_cuda_stream_t *stream = s->m->stream;
    size_t rows = (size_t) s->seqs * s->tokens;

    must(s,
         s->cuda->fill_random(stream, s->came_x[0], rows * recipe(s)->hidden,
                              s->m->type, layer + 7, 0, 1),
         "fill_random");
    for (uint32_t i = 0; i < s->n_pieces; i++) {
        const streamed_piece_t *c = &s->piece[i];

        make(s, layer, 0, c);
        for (uint32_t q = 0; q < c->seqs; q++) {
            must(s,
                 s->cuda->copy(stream, host_x(s, layer, c->first + q, c->from),
                               s->came_x[0]
                                   + (c->row + q * c->tokens) * s->x_row,
                               c->tokens * s->x_row),
                 "copy");
        }
    }
    must(s,
         s->cuda->copy(stream, host_pages(s, layer, 0), device_pages(s, 0, 0),
                       s->layer_bytes),
         "copy");
    must(s, s->cuda->stream_wait(stream), "X");
}

static void
open_host(streamed_t *s)
{
    size_t x = (size_t) s->seqs * s->tokens * s->x_row;
    uint64_t most = HOST_BYTES / (x + s->layer_bytes);

    s->hosts = most < s->layers ? (uint32_t) most : s->layers;
    s->hosts = s->hosts < STREAMED_BUFFERS ? STREAMED_BUFFERS : s->hosts;
    s->pages = taken(s, s->cuda->pin(s->hosts * s->layer_bytes), "pages");
    s->x = taken(s, s->cuda->pin(s->hosts * x), "X");
    s->check = taken(s, s->cuda->pin(s->seq_bytes), "pages");
    streamed_set_front(s, s->tokens);
    for (uint32_t l = 0; l < s->hosts; l++) {
        fill_host(s, l);
    }
}

static void
open_events(streamed_t *s)
{
    must(s, s->cuda->stream_open(s->m->stream->device, &s->copies), "stream");
    must(s, s->cuda->event_open(&s->begun), "event");
    must(s, s->cuda->event_open(&s->ended), "event");
    for (uint32_t i = 0; i < STREAMED_BUFFERS; i++) {
        must(s, s->cuda->event_open(&s->paged[i]), "event");
        must(s, s->cuda->event_open(&s->used[i]), "event");
        for (uint32_t k = 0; k < STREAMED_PIECES; k++) {
            must(s, s->cuda->event_open(&s->came[i][k]), "event");
        }
    }
}

void
streamed_open(streamed_t *s, fixture_t *b, uint32_t seqs, uint32_t tokens)
{
    memset(s, 0, sizeof(*s));
    s->b = b;
    s->m = b->x->model;
    s->cuda = b->x->cuda;
    s->seqs = seqs;
    s->tokens = tokens;
    s->layers = recipe(s)->layers;
    s->x_row = 2ull * recipe(s)->hidden;
    open_view(s);
    open_rows(s);
    open_products(s);
    open_events(s);
    open_host(s);
}

void
streamed_close(streamed_t *s)
{
    void *device[] = { s->view.pool,
                       (void *) s->view.tables,
                       (void *) s->view.seq,
                       (void *) s->view.sliding,
                       (void *) s->view.count,
                       s->view.candidate,
                       (void *) s->view.move,
                       s->came_x[0],
                       s->came_x[1],
                       s->made,
                       s->angles,
                       s->row_pos,
                       s->seq_row,
                       s->slot };

    must(s, s->cuda->stream_wait(s->m->stream), "close");
    must(s, s->cuda->stream_wait(&s->copies), "close");
    for (size_t i = 0; i < sizeof(device) / sizeof(*device); i++) {
        s->cuda->release(device[i]);
    }
    s->cuda->unpin(s->pages);
    s->cuda->unpin(s->x);
    s->cuda->unpin(s->check);
    s->cuda->matmul_close(s->products);
    for (uint32_t i = 0; i < STREAMED_BUFFERS; i++) {
        s->cuda->event_close(s->paged[i]);
        s->cuda->event_close(s->used[i]);
        for (uint32_t k = 0; k < STREAMED_PIECES; k++) {
            s->cuda->event_close(s->came[i][k]);
        }
    }
    s->cuda->event_close(s->begun);
    s->cuda->event_close(s->ended);
    s->cuda->stream_close(&s->copies);
}

/* ---- layers --------------------------------------------------------------- */

static void
copy_x(streamed_t *s, uint32_t layer, uint32_t buffer)
{
    for (uint32_t i = 0; i < s->n_pieces; i++) {
        const streamed_piece_t *c = &s->piece[i];

        for (uint32_t q = 0; q < c->seqs; q++) {
            must(s,
                 s->cuda->copy(&s->copies,
                               s->came_x[buffer]
                                   + (c->row + q * c->tokens) * s->x_row,
                               host_x(s, layer, c->first + q, c->from),
                               c->tokens * s->x_row),
                 "copy");
        }
        must(s, s->cuda->event_record(&s->copies, s->came[buffer][i]), "event");
    }
}

/* Those behind the front. */
static void
copy_pages(streamed_t *s, uint32_t layer, uint32_t buffer, double share)
{
    size_t skip = (size_t) pages_of(s, s->front) * s->heads * s->page;
    size_t bytes = (size_t) (streamed_page_bytes(s) / s->seqs * share);

    bytes = bytes / 256 * 256;
    for (uint32_t q = 0; q < s->seqs && bytes != 0; q++) {
        must(s,
             s->cuda->copy(&s->copies, device_pages(s, buffer, q) + skip,
                           host_pages(s, layer, q) + skip, bytes),
             "copy");
    }
    must(s, s->cuda->event_record(&s->copies, s->paged[buffer]), "event");
}

static void
one_layer(streamed_t *s, const streamed_way_t *way, uint32_t layer)
{
    uint32_t buffer = layer % STREAMED_BUFFERS;
    /* whose work is over before this layer's copies begin */
    uint32_t before = way->order == STREAMED_LAYERS
                          ? buffer
                          : (layer + STREAMED_BUFFERS - 1) % STREAMED_BUFFERS;
    /* whose X and pages host memory has */
    uint32_t whose = layer % s->hosts;

    if (way->copy) {
        must(s, s->cuda->event_follow(&s->copies, s->used[before]), "event");
        copy_x(s, layer, buffer);
        copy_pages(s, layer, buffer, way->share);
    }
    if (way->copy && way->order == STREAMED_X_FIRST && s->n_pieces != 0) {
        must(s,
             s->cuda->event_follow(s->m->stream,
                                   s->came[buffer][s->n_pieces - 1]),
             "event");
    }
    for (uint32_t i = 0; i < s->n_pieces && way->compute; i++) {
        if (way->copy) {
            must(s, s->cuda->event_follow(s->m->stream, s->came[buffer][i]),
                 "event");
        }
        make(s, whose, buffer, &s->piece[i]);
    }
    if (way->copy) {
        must(s, s->cuda->event_follow(s->m->stream, s->paged[buffer]), "event");
    }
    if (way->work != NULL) {
        way->work(s, layer, buffer);
    }
    must(s, s->cuda->event_record(s->m->stream, s->used[buffer]), "event");
}

double
streamed_ms(streamed_t *s, const streamed_way_t *way)
{
    double best = 0, us;

    /* NaN: what is not brought is seen */
    must(s,
         s->cuda->fill(s->m->stream, s->view.pool, 0xff,
                       way->copy ? STREAMED_BUFFERS * s->layer_bytes : 0),
         "fill");
    for (int i = 0; i <= ROUNDS; i++) { /* the first is a warm-up */
        must(s, s->cuda->event_record(s->m->stream, s->begun), "event");
        for (uint32_t k = 0; k < STREAMED_BUFFERS; k++) {
            must(s, s->cuda->event_record(s->m->stream, s->used[k]), "event");
        }
        if (way->begin != NULL) {
            way->begin(s);
        }
        for (uint32_t l = 0; l < s->layers; l++) {
            one_layer(s, way, l);
        }
        must(s, s->cuda->event_record(s->m->stream, s->ended), "event");
        must(s, s->cuda->event_wait(s->ended), "a round");
        must(s, s->cuda->event_time(s->begun, s->ended, &us), "event");
        best = i == 1 || (i > 1 && us < best) ? us : best;
    }
    return best / 1e3;
}

/* ---- is it right? --------------------------------------------------------- */

typedef struct {
    double off, most;
} error_t;

static void
compare(error_t *e, const uint16_t *is, const uint16_t *should, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        double a = tr_float_from_half(is[i]), b = tr_float_from_half(should[i]);

        if (!(fabs(a - b) <= 1e30)) {
            fixture_die("keys and values", "not a number");
        }
        e->off = fmax(e->off, fabs(a - b));
        e->most = fmax(e->most, fabs(b));
    }
}

static void
compare_page(const streamed_t *s, error_t *e, const uint8_t *is,
             const uint8_t *should, uint32_t first)
{
    uint32_t d = recipe(s)->head_dim, n = s->layout.tokens;

    n = s->tokens - first < n ? s->tokens - first : n;
    compare(e, (const uint16_t *) is, (const uint16_t *) should, n * d);
    compare(e, (const uint16_t *) (is + s->layout.value),
            (const uint16_t *) (should + s->layout.value), n * d);
}

/* Of the first and the last sequence, every third page. */
double
streamed_error(streamed_t *s)
{
    error_t e = { 0, 0 };

    for (uint32_t i = 0; i < 2 * STREAMED_BUFFERS; i++) {
        uint32_t buffer = i % STREAMED_BUFFERS;
        uint32_t seq = i < STREAMED_BUFFERS ? 0 : s->seqs - 1;
        uint32_t layer = (s->layers - 1) / STREAMED_BUFFERS * STREAMED_BUFFERS
                         + buffer;
        uint8_t *should;

        layer = layer < s->layers ? layer : layer - STREAMED_BUFFERS;
        should = host_pages(s, layer, seq);
        must(s,
             s->cuda->copy(s->m->stream, s->check, device_pages(s, buffer, seq),
                           s->seq_bytes),
             "copy");
        must(s, s->cuda->stream_wait(s->m->stream), "copy");
        for (uint32_t p = 0; p * s->layout.tokens < s->tokens; p += 3) {
            for (uint32_t h = 0; h < s->heads; h++) {
                size_t at = ((size_t) p * s->heads + h) * s->page;

                compare_page(s, &e, s->check + at, should + at,
                             p * s->layout.tokens);
            }
        }
    }
    return e.most > 0 ? e.off / e.most : 1;
}
