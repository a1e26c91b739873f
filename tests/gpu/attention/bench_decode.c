/*
 * How fast decode attention is, beside how fast this GPU copies memory.
 *
 *   bench_decode [-b] [-f TEXT] [-o FILE]
 *
 *   -b   only the shapes that have targets, not the sweep
 *   -f   only cases whose name, as in "llama-8b K4V2 1x131072", contains TEXT
 *   -o   also as JSON, for tests/gpu/bench/plot_decode.py
 *
 * A case is a number of sequences of equal length, stored in one way, in 32
 * layers of pages in random order, so that nothing is in the L2 cache.  A pass
 * is all layers and what they leave to the end, in a graph, as the engine has
 * it.  The time is that of a pass divided by the layers, median of 5.  "bytes"
 * are those of the tokens' codes and metadata, and of scores and positions (a
 * token's score is read and written, its position read); "share" is bytes /
 * time over the speed of a large copy, bytes read plus bytes written, of the
 * same run.  All of it: outputs, scores and candidates.  Then launches by
 * themselves: "decode": the first layer, which has no other layer's scores to
 * raise; "attend": without the reduction kernel, either; "last": scores and
 * candidates of the last layer; "plan": that of a step.
 */
#include "tests/gpu/fixtures/cache.h"

#include <cuda_runtime_api.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LAYERS 32u
#define IMAGES 8u
#define PASSES 6 /* the first one warms up */

/* 0.2 s: copies are 10% slower while the driver, it seems, wipes what a process
 * before has left. */
#define COPIES 200

typedef struct {
    const char *name;
    uint32_t seqs, len, heads, kv_heads, head_dim;
    uint32_t n_levels; /* 0: uncompressed */
    tr_kv_level_t level[2];
    double share[2];   /* of the tokens, by level */
    double must, goal; /* us; 0: none */
    uint32_t skew;     /* lengths differ by this factor */
} case_t;

static int
by_value(const void *a, const void *b)
{
    float x = *(const float *) a, y = *(const float *) b;

    return x < y ? -1 : x > y;
}

static double copy_speed; /* GB/s */

static void
measure_copy(cudaStream_t stream)
{
    size_t bytes = (size_t) 2 << 30;
    cudaEvent_t from, to;
    float ms[COPIES];
    void *a, *b;

    cuda_ok(cudaMalloc(&a, bytes), "copy");
    cuda_ok(cudaMalloc(&b, bytes), "copy");
    cudaMemset(a, 1, bytes);
    cudaEventCreate(&from);
    cudaEventCreate(&to);
    for (int i = 0; i < COPIES; i++) {
        cudaEventRecord(from, stream);
        cudaMemcpyAsync(b, a, bytes, cudaMemcpyDeviceToDevice, stream);
        cudaEventRecord(to, stream);
        cuda_ok(cudaEventSynchronize(to), "copy");
        cudaEventElapsedTime(&ms[i], from, to);
    }
    qsort(ms, COPIES, sizeof(ms[0]), by_value);
    copy_speed = 2.0 * (double) bytes / ms[COPIES / 2] / 1e6;
    cudaFree(a);
    cudaFree(b);
}

/* Memory of the device for all cases.  When one has given back its pool, what
 * runs in the next 50 ms is slower, as if the driver wiped it: 161 us instead
 * of 152. */
static struct {
    uint8_t *at;
    size_t bytes, taken;
} arena;

static void
open_arena(void)
{
    size_t all;

    cuda_ok(cudaMemGetInfo(&arena.bytes, &all), "memory");
    arena.bytes -= arena.bytes / 16;
    cuda_ok(cudaMalloc((void **) &arena.at, arena.bytes), "cudaMalloc");
}

static void *
device_array(const void *src, size_t exact)
{
    void *p = arena.at + arena.taken;
    size_t bytes = (exact + 255) / 256 * 256;

    if (bytes > arena.bytes - arena.taken) {
        printf("no room for %zu bytes: %zu of %zu are taken\n", bytes,
               arena.taken, arena.bytes);
        exit(1);
    }
    arena.taken += bytes;
    if (src != NULL) {
        cuda_ok(cudaMemcpy(p, src, exact, cudaMemcpyHostToDevice), "copy");
    }
    return p;
}

/* Random page images, one of which every page of a layout becomes. */
static void
page_image(const tr_kv_layout_t *l, uint8_t *page, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        page[i] = (uint8_t) random_below(256);
    }
    for (uint32_t t = 0; t < l->tokens; t++) {
        uint32_t bits[2] = { l->level.key_bits, l->level.value_bits };
        uint32_t at[2] = { 0, 0 };

        if (bits[0] == 16) {
            for (uint32_t d = 0; d < 2 * l->head_dim; d++) {
                uint16_t h = half_from(random_normal());

                memcpy(page + (t * 2 * l->head_dim + d) * 2, &h, 2);
            }
        } else {
            at[0] = tr_kv_key_meta(l, t, 0);
            at[1] = tr_kv_value_meta(l, t, 0);
        }
        for (int i = 0; i < 2 * l->level.key_groups && bits[0] != 16; i++) {
            double scale = 4 * (0.5 + random_unit()) / (1 << bits[i % 2]);
            uint16_t m[2] = { half_from(scale),
                              half_from(-scale * (1 << bits[i % 2]) / 2) };

            memcpy(page + at[i % 2] + i / 2 * 4, m, 4);
        }
        if (l->score != 0) {
            float score = (float) random_unit();

            memcpy(page + l->score + t * 4, &score, 4);
        }
        if (l->position != 0) {
            tr_kv_position_put(l, page, t, t);
        }
    }
}

typedef struct {
    tr_page_plan_t plan;
    tr_kv_view_t view;
    tr_rows_t rows;
    uint64_t max_tokens;
    double bytes; /* that a launch must move */
} setup_t;

static uint32_t
length_of(const case_t *x, uint32_t s)
{
    if (x->skew <= 1) {
        return x->len;
    }
    return x->len / x->skew
           + (uint32_t) ((uint64_t) (x->len - x->len / x->skew)
                         * (s * 7 % x->seqs) / (x->seqs > 1 ? x->seqs - 1 : 1));
}

/* A random order of 0 .. n - 1. */
static int32_t *
shuffled(size_t n)
{
    int32_t *order = malloc((n + 1) * sizeof(*order));

    for (size_t i = 0; i < n; i++) {
        uint32_t j = random_below((uint32_t) i + 1);

        order[i] = order[j];
        order[j] = (int32_t) i;
    }
    return order;
}

/* The pool: pages of a layout are neighbours, each one of a few images. */
static uint8_t *
fill_pool(const setup_t *s, const size_t *pages)
{
    size_t page = s->view.page_bytes, all = 0, at = 0;
    uint8_t *image = malloc(IMAGES * page), *pool;

    for (uint32_t k = 0; k < s->plan.n; k++) {
        all += pages[k] + IMAGES;
    }
    pool = device_array(NULL, all * page);
    for (uint32_t k = 0; k < s->plan.n; k++) {
        uint8_t *to = pool + at * page;

        for (uint32_t i = 0; i < IMAGES; i++) {
            page_image(&s->plan.layout[k], image + i * page, page);
        }
        cuda_ok(cudaMemcpy(to, image, IMAGES * page, cudaMemcpyHostToDevice),
                "images");
        for (size_t n = IMAGES; n < pages[k]; n *= 2) {
            size_t more = pages[k] - n < n ? pages[k] - n : n;

            cuda_ok(cudaMemcpy(to + n * page, to, more * page,
                               cudaMemcpyDeviceToDevice),
                    "pages");
        }
        at += pages[k];
    }
    free(image);
    return pool;
}

/* What fill_tables lays out on the host, before the device gets it. */
typedef struct {
    uint32_t *count; /* tokens of each head and level */
    uint8_t *layout; /* of each entry's page, and 1; 0: no page */
    size_t pages[TR_KV_LAYOUTS_MAX]; /* of each layout */
} filled_t;

/* Where uncompressed pages, and those of levels, are in a head's table. */
static void
lay_entries(setup_t *s, const case_t *x)
{
    tr_kv_view_t *v = &s->view;
    uint32_t longest = 0;

    v->at_window = (x->len + s->plan.layout[0].tokens)
                   / s->plan.layout[0].tokens;
    v->at_window = x->n_levels == 0 ? v->at_window : 0;
    v->at_pair[0] = v->at_window;
    for (uint32_t l = 1; l < s->plan.n; l++) {
        longest += x->len / s->plan.layout[l].tokens + 2;
    }
    v->pair_len[0] = longest;
    v->at_pair[1] = v->at_pair[0] + longest;
    v->table_len = v->at_pair[1];
}

/* Bytes of so many tokens of a layout that attention reads. */
static double
bytes_of(const case_t *x, const tr_kv_layout_t *at, bool level, uint32_t tokens)
{
    uint32_t bytes = (at->level.key_bits + at->level.value_bits) * x->head_dim
                     / 8;

    if (level) {
        bytes += 8u * at->level.key_groups
                 + (at->level.scored ? 8 + at->position_bytes : 0);
    }
    return (double) tokens * bytes;
}

/* Tokens of sequence i and their pages, in all of its heads. */
static void
lay_heads(setup_t *s, const case_t *x, uint32_t i, filled_t *f)
{
    const tr_kv_view_t *v = &s->view;

    for (uint32_t h = 0; h < LAYERS * x->kv_heads; h++) {
        size_t head = (size_t) i * LAYERS * x->kv_heads + h;
        uint32_t left = length_of(x, i), k = x->n_levels == 0 ? 0 : 1;
        uint32_t len = left;

        for (; k < s->plan.n; k++) {
            uint32_t l = k - 1, per = s->plan.layout[k].tokens;
            uint32_t tokens = k + 1 == s->plan.n
                                  ? left
                                  : (uint32_t) (len * x->share[l] + 0.5);

            left -= tokens;
            if (k > 0) {
                f->count[head * TR_KV_TIERS_MAX + l] = tokens;
            }
            for (uint32_t p = 0; p * per < tokens; p++) {
                uint32_t e = k == 0 ? p : tr_kv_tier_entry(v, l, p);

                f->layout[head * v->table_len + e] = (uint8_t) (k + 1);
                f->pages[k]++;
            }
            if (h < x->kv_heads) {
                s->bytes += bytes_of(x, &s->plan.layout[k], k > 0, tokens);
            }
        }
    }
}

/* The table of all heads: a layout's pages in a random order. */
static int32_t *
draw_table(const setup_t *s, const filled_t *f, size_t entries)
{
    int32_t *table = calloc(entries, sizeof(*table));
    size_t first = 0;

    for (uint32_t k = 0; k < s->plan.n; k++) {
        int32_t *order = shuffled(f->pages[k]);
        size_t n = 0;

        for (size_t i = 0; i < entries; i++) {
            if (f->layout[i] == k + 1) {
                table[i] = (int32_t) first + order[n++];
            }
        }
        first += f->pages[k];
        free(order);
    }
    return table;
}

/* Sequences, counts and tables. */
static void
fill_tables(setup_t *s, const case_t *x)
{
    tr_kv_view_t *v = &s->view;
    size_t heads = (size_t) x->seqs * LAYERS * x->kv_heads, entries;
    tr_kv_seq_t *seq = calloc(x->seqs, sizeof(*seq));
    uint32_t *pos = calloc(x->seqs + 1, 4), *row = calloc(x->seqs + 1, 4);
    int32_t *slot = calloc(x->seqs, 4), *table;
    filled_t f = { 0 };

    lay_entries(s, x);
    entries = heads * v->table_len;
    f.count = calloc(heads * TR_KV_TIERS_MAX, 4);
    f.layout = calloc(entries, 1);
    for (uint32_t i = 0; i < x->seqs; i++) {
        uint32_t len = length_of(x, i);

        slot[i] = (int32_t) i;
        row[i + 1] = i + 1;
        pos[i] = len - 1;
        seq[i].scored = x->n_levels > 0;
        seq[i].n_tiers = (uint8_t) x->n_levels;
        seq[i].base = x->n_levels > 0 ? len : 0;
        seq[i].window_from = seq[i].base;
        seq[i].recent_from = UINT32_MAX;
        for (uint32_t l = 0; l < x->n_levels; l++) {
            seq[i].tier_layout[l] = (uint8_t) (l + 1);
        }
        lay_heads(s, x, i, &f);
        s->max_tokens += len;
    }
    table = draw_table(s, &f, entries);
    v->pool = fill_pool(s, f.pages);
    v->tables = device_array(table, entries * 4);
    v->seq = device_array(seq, x->seqs * sizeof(*seq));
    v->count = device_array(f.count, heads * TR_KV_TIERS_MAX * 4);
    v->candidate = device_array(NULL, heads * TR_KV_TIERS_MAX
                                          * sizeof(tr_kv_candidate_t));
    s->rows.n_rows = s->rows.n_seqs = x->seqs;
    s->rows.row_pos = device_array(pos, x->seqs * 4);
    s->rows.seq_slot = device_array(slot, x->seqs * 4);
    s->rows.seq_row = device_array(row, (x->seqs + 1) * 4);
    free(seq);
    free(f.count);
    free(pos);
    free(row);
    free(slot);
    free(table);
    free(f.layout);
}

static float
median(float *ms, int n)
{
    qsort(ms, (size_t) n, sizeof(*ms), by_value);
    return ms[n / 2];
}

static FILE *json;

typedef struct {
    void *q, *out;
    uint32_t heads, head_dim, kv_heads;
    tr_cuda_decode_size_t size;
} operands_t;

/* Medians of the passes, in us. */
typedef struct {
    float layer; /* its share of a pass */
    float first, last, plan;
} times_t;

static float
elapsed(cudaEvent_t from, cudaEvent_t to)
{
    float ms;

    cuda_ok(cudaEventElapsedTime(&ms, from, to), "events");
    return ms * 1e3f;
}

static void
launched(int error)
{
    if (error != 0) {
        printf("launch: %s\n", tr_cuda_reason());
        exit(1);
    }
}

static void
decode(const tr_cuda_stream_t *stream, const setup_t *s, const operands_t *o,
       uint32_t from, uint32_t to, void *work)
{
    uint32_t n = o->heads * o->head_dim;
    tr_cuda_queries_t queries = { o->q,   o->out, n,        n,
                                  TR_F32, TR_F32, o->heads, 0 };

    queries.scale = (float) (1 / sqrt(o->head_dim));
    for (uint32_t layer = from; layer < to; layer++) {
        launched(tr_cuda_decode(stream, &s->view, layer, &s->rows, &queries,
                                &o->size, work));
    }
}

static void
plan(const tr_cuda_stream_t *stream, const setup_t *s, const operands_t *o,
     void *work)
{
    launched(tr_cuda_decode_plan(stream, &s->view, &s->rows, &o->size, work));
}

static void
score(const tr_cuda_stream_t *stream, const setup_t *s, const operands_t *o,
      void *work)
{
    launched(tr_cuda_decode_score(stream, &s->view, &s->rows, &o->size, work));
}

/* Launches by themselves; e: before and behind each. */
static void
pieces(const tr_cuda_stream_t *stream, const setup_t *s, const operands_t *o,
       void *work, cudaEvent_t *e)
{
    cudaEventRecord(e[0], stream->stream);
    plan(stream, s, o, work);
    cudaEventRecord(e[1], stream->stream);
    decode(stream, s, o, 0, 1, work);
    cudaEventRecord(e[2], stream->stream);
    decode(stream, s, o, 1, LAYERS, work);
    cudaEventRecord(e[3], stream->stream);
    score(stream, s, o, work);
    cudaEventRecord(e[4], stream->stream);
}

static cudaGraphExec_t
whole_pass(const tr_cuda_stream_t *stream, const setup_t *s,
           const operands_t *o, void *work)
{
    cudaGraphExec_t pass;
    cudaGraph_t graph;

    cuda_ok(cudaStreamBeginCapture(stream->stream,
                                   cudaStreamCaptureModeThreadLocal),
            "capture");
    decode(stream, s, o, 0, LAYERS, work);
    score(stream, s, o, work);
    cuda_ok(cudaStreamEndCapture(stream->stream, &graph), "capture");
    cuda_ok(cudaGraphInstantiate(&pass, graph, 0), "graph");
    cudaGraphDestroy(graph);
    return pass;
}

static times_t
measure(const tr_cuda_stream_t *stream, const setup_t *s, const operands_t *o)
{
    size_t bytes = tr_cuda_decode_work(stream->device, &o->size);
    float all[PASSES], first[PASSES], last[PASSES], plans[PASSES];
    cudaEvent_t e[5];
    size_t taken = arena.taken;
    void *work = device_array(NULL, bytes);
    cudaGraphExec_t pass = whole_pass(stream, s, o, work);
    times_t t;

    for (uint32_t i = 0; i < 5; i++) {
        cudaEventCreate(&e[i]);
    }
    for (int i = 0; i < PASSES; i++) {
        pieces(stream, s, o, work, e);
        cuda_ok(cudaStreamSynchronize(stream->stream), "decode");
        plans[i] = elapsed(e[0], e[1]);
        first[i] = elapsed(e[1], e[2]);
        last[i] = elapsed(e[3], e[4]);
        plan(stream, s, o, work);
        cudaEventRecord(e[0], stream->stream);
        cuda_ok(cudaGraphLaunch(pass, stream->stream), "pass");
        cudaEventRecord(e[1], stream->stream);
        cuda_ok(cudaStreamSynchronize(stream->stream), "pass");
        all[i] = elapsed(e[0], e[1]) / LAYERS;
    }
    for (uint32_t i = 0; i < 5; i++) {
        cudaEventDestroy(e[i]);
    }
    cudaGraphExecDestroy(pass);
    arena.taken = taken;
    t.layer = median(all + 1, PASSES - 1);
    t.first = median(first + 1, PASSES - 1);
    t.last = median(last + 1, PASSES - 1);
    t.plan = median(plans + 1, PASSES - 1);
    return t;
}

static void
report(const case_t *x, const setup_t *s, const times_t *t, float attend_us)
{
    float us = t->layer;

    printf("%-30s %4u x %6u  %7.1f us  %8.1f MB  %5.1f%% of copy  floor %6.1f "
           "us  decode %5.1f  attend %5.1f  last %5.1f  plan %4.1f us",
           x->name, x->seqs, x->len, (double) us, s->bytes / 1e6,
           100 * s->bytes / (double) us / 1e3 / copy_speed,
           s->bytes / copy_speed / 1e3, (double) t->first, (double) attend_us,
           (double) t->last, (double) t->plan);
    if (x->must > 0) {
        printf("  must %3.0f: %s, goal %3.0f: %s", x->must,
               (double) us <= x->must ? "held" : "MISSED", x->goal,
               (double) us <= x->goal ? "held" : "missed");
    }
    if (json != NULL) {
        fprintf(json,
                "%s\n  {\"name\": \"%s\", \"seqs\": %u, \"tokens\": %u, "
                "\"us\": %.2f, \"bytes\": %.0f, \"share\": %.4f, "
                "\"decode_us\": %.2f, \"attend_us\": %.2f, \"last_us\": %.2f, "
                "\"plan_us\": %.2f}",
                ftell(json) > 2 ? "," : "", x->name, x->seqs, x->len,
                (double) us, s->bytes,
                s->bytes / (double) us / 1e3 / copy_speed, (double) t->first,
                (double) attend_us, (double) t->last, (double) t->plan);
    }
}

static void
run_case(const tr_cuda_stream_t *stream, const case_t *x)
{
    tr_page_spec_t spec = { x->head_dim, x->level, x->n_levels,
                            false,       false,    x->len <= TR_KV_SHORT };
    uint32_t n = x->heads * x->head_dim;
    float *q = malloc((size_t) x->seqs * n * 4);
    operands_t o = { NULL, NULL, x->heads, x->head_dim, x->kv_heads, { 0 } };
    setup_t s;

    memset(&s, 0, sizeof(s));
    cuda_ok(tr_page_plan(&spec, &s.plan), "page plan");
    s.view.page_bytes = s.plan.page_bytes;
    s.view.layers = LAYERS;
    s.view.kv_heads = x->kv_heads;
    s.view.head_dim = x->head_dim;
    s.view.n_layouts = s.plan.n;
    s.view.layout = s.plan.layout;
    fill_tables(&s, x);
    o.size.layers = LAYERS;
    o.size.kv_heads = x->kv_heads;
    o.size.head_dim = x->head_dim;
    o.size.max_seqs = x->seqs;
    o.size.heads = x->heads;
    o.size.max_tokens = s.max_tokens;
    o.size.page_tokens = 8;
    for (size_t i = 0; i < (size_t) x->seqs * n; i++) {
        q[i] = (float) random_normal();
    }
    o.q = device_array(q, (size_t) x->seqs * n * 4);
    o.out = device_array(NULL, (size_t) x->seqs * n * 4);
    tr_device_props_t device = *stream->device;
    tr_cuda_stream_t part = { stream->stream, &device };
    times_t t = measure(stream, &s, &o);

    device.unfinished = true;
    report(x, &s, &t, measure(&part, &s, &o).first);
    printf("\n");
    fflush(stdout);
    arena.taken = 0;
    free(q);
}

#define K8V8                   \
    {                          \
        8, 8, 1, 1, 0, 1, 0, 0 \
    }
#define K8V4                   \
    {                          \
        8, 4, 1, 1, 0, 1, 0, 0 \
    }
#define K4V2                   \
    {                          \
        4, 2, 1, 1, 0, 1, 0, 0 \
    }

/* The last level of a policy that forgets nothing: nobody reads its scores. */
#define K4V2_LAST              \
    {                          \
        4, 2, 1, 1, 0, 0, 0, 0 \
    }

/* .. with more than one {scale, zero} a key and a value. */
#define GROUPS(n)              \
    {                          \
        4, 2, n, n, 0, 0, 0, 0 \
    }

static const struct {
    const char *name;
    uint32_t n_levels;
    tr_kv_level_t level[2];
    double share[2];
    double must, goal;
} stores[] = {
    { "16-bit", 0, { K8V8 }, { 0 }, 280, 265 },
    { "K8V8", 1, { K8V8 }, { 1 }, 160, 150 },
    { "K8V4", 1, { K8V4 }, { 1 }, 122, 115 },
    { "K4V2", 1, { K4V2 }, { 1 }, 78, 68 },
    { "30% K8V4 70% K4V2", 2, { K8V4, K4V2 }, { 0.3, 0.7 }, 92, 84 },
    { "40% K8V4 60% K4V2", 2, { K8V4, K4V2 }, { 0.4, 0.6 }, 0, 0 },
    { "K4V2 last", 1, { K4V2_LAST }, { 1 }, 0, 0 },
    { "12% K8V4 88% K4V2 last", 2, { K8V4, K4V2_LAST }, { 0.12, 0.88 }, 0, 0 },
    { "K4V2 last, 2 groups", 1, { GROUPS(2) }, { 1 }, 0, 0 },
    { "K4V2 last, 4 groups", 1, { GROUPS(4) }, { 1 }, 0, 0 },
};
#define MIXED 6  /* from here on: what levels cost beside one alone */
#define STORES 5 /* that all shapes are run with */

static void
run_heads(const tr_cuda_stream_t *s, size_t store, const char *model,
          uint32_t seqs, uint32_t len, uint32_t heads, uint32_t kv_heads,
          uint32_t head_dim, uint32_t skew, const char *filter)
{
    char name[64], whole[96];
    case_t x = { name, seqs,      len,   heads, kv_heads, head_dim,
                 0,    { { 0 } }, { 0 }, 0,     0,        skew };

    snprintf(name, sizeof(name), "%s %s", model, stores[store].name);
    snprintf(whole, sizeof(whole), "%s %ux%u", name, seqs, len);
    if (strstr(whole, filter) == NULL) {
        return;
    }
    x.n_levels = stores[store].n_levels;
    memcpy(x.level, stores[store].level, sizeof(x.level));
    memcpy(x.share, stores[store].share, sizeof(x.share));
    if (seqs == 64 && len == 4096 && heads == 32 && skew == 1) {
        x.must = stores[store].must;
        x.goal = stores[store].goal;
    }
    run_case(s, &x);
}

static void
run_store(const tr_cuda_stream_t *s, size_t store, const char *model,
          uint32_t seqs, uint32_t len, uint32_t heads, uint32_t kv_heads,
          uint32_t skew, const char *filter)
{
    run_heads(s, store, model, seqs, len, heads, kv_heads, 128, skew, filter);
}

/* Heads and groups that only uncompressed tokens have. */
static void
run_wide(const tr_cuda_stream_t *s, uint32_t seqs, uint32_t len,
         const char *filter)
{
    run_heads(s, 0, "gemma-3-4b", seqs, len, 8, 4, 256, 1, filter);
    run_heads(s, 0, "gemma-3-12b", seqs, len, 16, 8, 256, 1, filter);
    run_heads(s, 0, "8 of 256", seqs, len, 32, 4, 256, 1, filter);
    run_heads(s, 0, "glm-4-9b", seqs, len, 32, 2, 128, 1, filter);
    run_heads(s, 0, "qwen3-235b", seqs, len, 64, 4, 128, 1, filter);
}

int
main(int argc, char **argv)
{
    static const uint32_t targets[][2] = {
        { 64, 4096 }, { 128, 4096 }, { 8, 32768 }, { 1, 131072 }
    };
    static const uint32_t sweep[][2] = {
        { 1, 512 },  { 1, 4096 },  { 1, 32768 }, { 2, 16384 },
        { 4, 8192 }, { 8, 4096 },  { 16, 1024 }, { 32, 2048 },
        { 64, 512 }, { 256, 512 }, { 256, 2048 }
    };
    const char *filter = "";
    bool brief = false;
    int option;
    struct cudaDeviceProp prop;
    tr_device_props_t device;
    cudaStream_t stream;

    while ((option = getopt(argc, argv, "bf:o:")) != -1) {
        switch (option) {
        case 'b':
            brief = true;
            break;
        case 'f':
            filter = optarg;
            break;
        case 'o':
            json = fopen(optarg, "w");
            break;
        default:
            return 2;
        }
    }
    if (tr_cuda_open(0, &device) != 0) {
        printf("no device: %s\n", tr_cuda_reason());
        return 77;
    }
    random_seed(4);
    cuda_ok(cudaStreamCreate(&stream), "stream");
    cudaGetDeviceProperties(&prop, 0);
    measure_copy(stream);
    open_arena();
    printf("%s, %u multiprocessors, copy %.0f GB/s (read + written)\n",
           prop.name, device.blocks, copy_speed);
    tr_cuda_stream_t s = { stream, &device };

    if (json != NULL) {
        fprintf(json, "[");
    }
    for (size_t i = 0; i < (brief ? 1 : 4); i++) {
        for (size_t k = 0; k < STORES; k++) {
            run_store(&s, k, "llama-8b", targets[i][0], targets[i][1], 32, 8, 1,
                      filter);
        }
    }
    for (size_t k = 1; k < STORES && !brief; k++) {
        run_store(&s, k, "skew 8, llama-8b", 64, 8192, 32, 8, 8, filter);
        run_store(&s, k, "skew 8, llama-8b", 256, 2048, 32, 8, 8, filter);
    }
    for (size_t i = 0; i < sizeof(sweep) / sizeof(sweep[0]) && !brief; i++) {
        run_store(&s, 0, "llama-8b", sweep[i][0], sweep[i][1], 32, 8, 1,
                  filter);
        run_store(&s, 2, "llama-8b", sweep[i][0], sweep[i][1], 32, 8, 1,
                  filter);
        run_store(&s, 4, "llama-8b", sweep[i][0], sweep[i][1], 32, 8, 1,
                  filter);
    }
    for (size_t k = 0; k < STORES && !brief; k++) {
        run_store(&s, k, "qwen2.5-7b", 64, 4096, 28, 4, 1, filter);
        run_store(&s, k, "qwen2.5-32b", 64, 4096, 40, 8, 1, filter);
    }
    for (size_t k = MIXED; k < sizeof(stores) / sizeof(stores[0]); k++) {
        run_store(&s, k, "llama-8b", 64, 4096, 32, 8, 1, filter);
        run_store(&s, k, "llama-8b", 240, 4096, 32, 8, 1, filter);
        run_store(&s, k, "llama-8b", 8, 32768, 32, 8, 1, filter);
    }
    run_wide(&s, 64, 4096, filter);
    run_wide(&s, 1, 32768, filter);
    /* a full batch of the engine's */
    run_store(&s, 5, "qwen2.5-32b", 288, 2458, 40, 8, 1, filter);
    if (json != NULL) {
        fprintf(json, "\n]\n");
        fclose(json);
    }
    return 0;
}
