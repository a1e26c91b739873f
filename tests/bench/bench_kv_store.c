/*
 * bench_kv_store: what it costs to write tokens into pages, without a model.
 *
 *   bench_kv_store [--threads N] [--rounds N] [--isa NAME]
 *
 * For each shape, medians of rounds that take turns:
 *
 *   append    kv_append of one token to uncompressed pages, ns a head
 *   move      kv_append of one token to a full window: its oldest token goes to
 *             the first tier in place of a token that goes to the second, ns a
 *             head
 *   prompt    kv_append of a prompt of 3,000 tokens in chunks of 512, us for
 *             all heads
 *   compress  kv_compress of that prompt: a window, and half of the other
 *             tokens in each tier, us for all heads
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/thread_pool.h"
#include "kernels/kernels.h"
#include "bench.h"

#define ROUNDS_MAX 101
#define PROMPT 3000u
#define CHUNK 512u
#define WINDOW 64u
#define TIERED 512u /* tokens of each tier while steps are measured */
#define STEPS 200u

typedef struct {
    const char *name;
    uint32_t layers, kv_heads, dim;
    tr_kv_level_t window, tier[2];
} shape_t;

static const shape_t shapes[] = {
    { "8 x 2 heads of 64, 8/4 and 4/2",
      8,
      2,
      64,
      { 8, 4, 1, 1, 0, 1, 0, 0 },
      { { 8, 4, 1, 1, 0, 1, 0, 0 }, { 4, 2, 1, 1, 0, 1, 0, 0 } } },
    { "8 x 2 heads of 64, 16-bit window",
      8,
      2,
      64,
      { 16, 16, 1, 1, 0, 1, 0, 0 },
      { { 8, 4, 1, 1, 0, 1, 0, 0 }, { 4, 2, 1, 1, 0, 1, 0, 0 } } },
    { "8 x 2 heads of 128, 8/4 and 4/2",
      8,
      2,
      128,
      { 8, 4, 1, 1, 0, 1, 0, 0 },
      { { 8, 4, 1, 1, 0, 1, 0, 0 }, { 4, 2, 1, 1, 0, 1, 0, 0 } } },
};
#define N_SHAPES (sizeof(shapes) / sizeof(shapes[0]))

/* Slot 0 is uncompressed, slot 1 has tiers and a window. */
typedef struct {
    const shape_t *shape;
    const tr_kernels_t *kernels;
    tr_stream_t stream;
    tr_page_plan_t plan;
    tr_kv_view_t kv;
    tr_kv_seq_t seq[2];
    int32_t *tables; /* of both slots, then a row a head to compress to */
    uint32_t *count;
    tr_kv_move_t *move;
    int8_t *dest;
    float *k, *v, *angles;
    void *work;
} fixture_t;

static void *
some(size_t n)
{
    void *p = aligned_alloc(64, (n + 63) / 64 * 64);

    if (p == NULL) {
        fprintf(stderr, "bench_kv_store: no memory for %zu bytes\n", n);
        exit(1);
    }
    memset(p, 0, n);
    return p;
}

static void
expect(int rc, const char *what)
{
    if (rc != TR_KERNEL_OK) {
        fprintf(stderr, "bench_kv_store: %s was refused\n", what);
        exit(1);
    }
}

static void
fixture_tables(fixture_t *b)
{
    tr_kv_view_t *v = &b->kv;
    uint32_t heads = v->layers * v->kv_heads, least = b->plan.layout[0].tokens;
    size_t entries;

    v->at_window = PROMPT / least + 1;
    v->at_pair[0] = v->at_window + WINDOW / 8;
    v->pair_len[0] = PROMPT / 16;
    v->table_len = v->at_pair[1] = v->at_pair[0] + v->pair_len[0];
    entries = 3ul * heads * v->table_len;
    b->tables = some(entries * sizeof(int32_t));
    v->tables = b->tables;
    for (size_t i = 0; i < entries; i++) { /* far more than are touched */
        b->tables[i] = (int32_t) i;
    }
    v->pool = aligned_alloc(64, entries * v->page_bytes);
    if (v->pool == NULL) {
        fprintf(stderr, "bench_kv_store: no memory for the pool\n");
        exit(1);
    }
}

static fixture_t
fixture_open(const shape_t *shape, const tr_kernels_t *kernels,
             tr_stream_t stream)
{
    fixture_t b = { .shape = shape, .kernels = kernels, .stream = stream };
    bool own = !tr_kv_level_equal(&shape->window, &shape->tier[0]);
    tr_kv_level_t levels[3] = { shape->tier[0], shape->tier[1], shape->window };
    tr_page_spec_t spec = { shape->dim, levels, 2 + own, true, false, true };
    uint32_t heads = shape->layers * shape->kv_heads;
    size_t row = (size_t) shape->kv_heads * shape->dim;

    if (tr_page_plan(&spec, &b.plan) != 0) {
        fprintf(stderr, "bench_kv_store: no page for %s\n", shape->name);
        exit(1);
    }
    b.kv = (tr_kv_view_t){ .page_bytes = b.plan.page_bytes,
                           .layers = shape->layers,
                           .kv_heads = shape->kv_heads,
                           .head_dim = shape->dim,
                           .n_layouts = b.plan.n };
    fixture_tables(&b);
    b.count = some(2ul * heads * TR_KV_TIERS_MAX * sizeof(uint32_t));
    b.move = some(2ul * heads * sizeof(tr_kv_move_t));
    b.dest = some((size_t) heads * PROMPT);
    b.k = some(CHUNK * row * sizeof(float));
    b.v = some(CHUNK * row * sizeof(float));
    b.angles = some((size_t) CHUNK * shape->dim * sizeof(float));
    b.work = some(kernels->kv_compress_work(&stream, shape->dim));
    srand(1);
    for (size_t i = 0; i < CHUNK * row; i++) {
        b.k[i] = (float) rand() / (float) RAND_MAX - 0.5f;
        b.v[i] = (float) rand() / (float) RAND_MAX - 0.5f;
    }
    for (size_t i = 0; i < (size_t) CHUNK * shape->dim; i++) {
        b.angles[i] = i % shape->dim < shape->dim / 2 ? 0.6f : 0.8f;
    }
    b.seq[1] = (tr_kv_seq_t){ .base = WINDOW,
                              .window = WINDOW,
                              .n_tiers = 2,
                              .window_layout = own ? 3 : 1,
                              .tier_layout = { 1, 2 },
                              .scored = true };
    return b;
}

static void
fixture_close(fixture_t *b)
{
    free(b->kv.pool);
    free(b->tables);
    free(b->count);
    free(b->move);
    free(b->dest);
    free(b->k);
    free(b->v);
    free(b->angles);
    free(b->work);
}

/* Rows [pos, pos + n) of one slot in all layers. */
static void
append(fixture_t *b, int32_t slot, uint32_t pos, uint32_t n)
{
    uint32_t row_pos[CHUNK], seq_row[2] = { 0, n };
    tr_rows_t rows = { n, 1, row_pos, &slot, seq_row };
    size_t ld = (size_t) b->shape->kv_heads * b->shape->dim;

    for (uint32_t i = 0; i < n; i++) {
        row_pos[i] = pos + i;
    }
    for (uint32_t layer = 0; layer < b->kv.layers; layer++) {
        expect(b->kernels->kv_append(&b->stream, &b->kv, layer, &rows, b->k,
                                     b->v, ld, b->angles),
               "kv_append");
    }
}

static double
bench_uncompressed(fixture_t *b)
{
    double start = now();

    for (uint32_t i = 0; i < STEPS; i++) {
        append(b, 0, i, 1);
    }
    return (now() - start) * 1e9 / STEPS / (b->kv.layers * b->kv.kv_heads);
}

/* Steps that each move two tokens of every head. */
static double
bench_move(fixture_t *b)
{
    uint32_t heads = b->kv.layers * b->kv.kv_heads;
    tr_kv_seq_t *q = &b->seq[1];
    double seconds = 0;

    for (uint32_t i = 0; i < STEPS; i++) {
        double start;

        for (uint32_t h = heads; h < 2 * heads; h++) {
            uint32_t at = (uint32_t) rand() % TIERED;

            b->count[h * TR_KV_TIERS_MAX] = TIERED;
            b->count[h * TR_KV_TIERS_MAX + 1] = TIERED;
            b->move[h] = (tr_kv_move_t){ .to = 0,
                                         .candidate_to = 1,
                                         .leaves = 1,
                                         .leave_pos = q->window_from,
                                         .index = at,
                                         .candidate_index = at,
                                         .candidate_target = (uint32_t) rand()
                                                             % TIERED };
        }
        q->base++;
        q->window_from++;
        start = now();
        append(b, 1, q->base - 1, 1);
        seconds += now() - start;
    }
    return seconds * 1e9 / STEPS / heads;
}

static double
bench_prompt(fixture_t *b)
{
    double start = now();

    for (uint32_t pos = 0; pos < PROMPT; pos += CHUNK) {
        append(b, 0, pos, PROMPT - pos < CHUNK ? PROMPT - pos : CHUNK);
    }
    return (now() - start) * 1e6;
}

static double
bench_compress(fixture_t *b)
{
    uint32_t heads = b->kv.layers * b->kv.kv_heads;
    tr_kv_seq_t to = b->seq[1];
    tr_kv_compress_t c = { .slot = 0,
                           .n_uncompressed = PROMPT,
                           .to = &to,
                           .to_tables = b->tables
                                        + 2ul * heads * b->kv.table_len,
                           .dest = b->dest,
                           .dest_len = PROMPT };
    double start;

    to.base = PROMPT;
    to.window_from = PROMPT - WINDOW;
    for (uint32_t i = 0; i < heads * PROMPT; i++) {
        b->dest[i] = i % PROMPT >= to.window_from ? TR_KV_WINDOW
                                                  : (int8_t) (rand() & 1);
    }
    start = now();
    expect(b->kernels->kv_compress(&b->stream, &b->kv, &c, b->work),
           "kv_compress");
    return (now() - start) * 1e6;
}

static void
bench_shape(const shape_t *shape, const tr_kernels_t *kernels,
            tr_stream_t stream, int rounds)
{
    static double (*const run[])(fixture_t *) = { bench_uncompressed,
                                                  bench_move, bench_prompt,
                                                  bench_compress };
    double seen[4][ROUNDS_MAX];
    fixture_t b = fixture_open(shape, kernels, stream);

    b.kv.layout = b.plan.layout;
    b.kv.seq = b.seq;
    b.kv.count = b.count;
    b.kv.move = b.move;
    for (int r = -1; r < rounds; r++) { /* the first warms up */
        for (int i = 0; i < 4; i++) {
            seen[i][r < 0 ? 0 : r] = run[i](&b);
        }
    }
    printf("  %-34s %8.0f %8.0f %10.0f %10.0f\n", shape->name,
           median(seen[0], rounds), median(seen[1], rounds),
           median(seen[2], rounds), median(seen[3], rounds));
    fixture_close(&b);
}

int
main(int argc, char **argv)
{
    int threads = 1, rounds = 15;
    const char *isa = NULL;
    const tr_kernels_t *kernels;
    tr_stream_t stream;

    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--threads") == 0) {
            threads = atoi(argv[i + 1]);
        } else if (strcmp(argv[i], "--rounds") == 0) {
            rounds = atoi(argv[i + 1]);
        } else if (strcmp(argv[i], "--isa") == 0) {
            isa = argv[i + 1];
        } else {
            threads = 0;
        }
    }
    kernels = tr_kernels_cpu(isa);
    if (threads < 1 || rounds < 1 || rounds > ROUNDS_MAX || kernels == NULL
        || argc % 2 == 0) {
        fprintf(stderr,
                "usage: bench_kv_store [--threads N] [--rounds 1..%d]"
                " [--isa c|avx2|avx512]\n",
                ROUNDS_MAX);
        return 2;
    }
    stream = (tr_stream_t){ threads, tr_thread_pool_new(threads) };
    printf("%s, %d threads, medians of %d rounds\n\n"
           "  %-34s %8s %8s %10s %10s\n  %-34s %8s %8s %10s %10s\n",
           kernels->name, threads, rounds, "", "append", "move", "prompt",
           "compress", "", "ns/head", "ns/head", "us", "us");
    for (size_t i = 0; i < N_SHAPES; i++) {
        bench_shape(&shapes[i], kernels, stream, rounds);
    }
    tr_thread_pool_free(stream.thread_pool);
    return 0;
}
