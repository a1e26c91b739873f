/*
 * How long the launchers take that write the KV cache: a step's tokens, a
 * prompt's rows, the compression of prompts, a swap.  Llama-3-8B's cache: 32
 * layers, 8 KV heads of 128; levels 8/4 and 4/2, a window of 64 tokens at 8/4.
 *
 *   bench_store [steps [BATCH]]
 *
 * "steps" leaves the rest out; the largest are those of Qwen2.5-32B, 64 layers;
 * with BATCH only these.
 * Medians of 20 runs.  A step is one CUDA graph: a launch a layer, with the
 * moves of each layer in it, or of all layers in one launch before; every head
 * does the most that a step can ask: the candidate of the upper tier is
 * downgraded, a token leaves the window for its place, the new one enters.
 * "bytes" are those of the numbers that go in and of the codes that come out.
 */
#include "kernels/cuda/device.h"

#include <cuda_runtime_api.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/gpu/fixtures/cache.h"

#define LAYERS 32u
#define KV_HEADS 8u
#define DIM 128u
#define HEADS (LAYERS * KV_HEADS)
#define WINDOW 64u
#define RUNS 20
#define PROMPT 8192u

static const tr_kv_level_t levels[] = { { 8, 4, 1, 1, 0, 1, 0, 0 },
                                        { 4, 2, 1, 1, 0, 1, 0, 0 } };

typedef struct {
    tr_page_plan_t plan;
    tr_kv_view_t view;
    void *arrays[32];
    uint32_t n_arrays;
    uint32_t layers;
    cudaStream_t stream;
    tr_device_props_t device;
    tr_cuda_stream_t launch;
} bench_t;

static int
by_value(const void *a, const void *b)
{
    float x = *(const float *) a, y = *(const float *) b;

    return x < y ? -1 : x > y;
}

static void *
array(bench_t *b, const void *src, size_t bytes)
{
    void *p = NULL;

    cuda_ok(cudaMalloc(&p, bytes), "cudaMalloc");
    if (src != NULL) {
        cuda_ok(cudaMemcpy(p, src, bytes, cudaMemcpyHostToDevice), "copy");
    }
    b->arrays[b->n_arrays++] = p;
    return p;
}

static void
release(bench_t *b)
{
    while (b->n_arrays > 0) {
        cuda_ok(cudaFree(b->arrays[--b->n_arrays]), "free");
    }
}

/* Median time of what f puts on the stream, as a graph, in microseconds. */
static double
measure(bench_t *b, void (*f)(bench_t *b, void *arg), void *arg)
{
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaEvent_t from, to;
    float ms[RUNS];

    cuda_ok(cudaStreamBeginCapture(b->stream, cudaStreamCaptureModeThreadLocal),
            "capture");
    f(b, arg);
    cuda_ok(cudaStreamEndCapture(b->stream, &graph), "capture");
    cuda_ok(cudaGraphInstantiate(&exec, graph, 0), "graph");
    cudaEventCreate(&from);
    cudaEventCreate(&to);
    for (int i = -3; i < RUNS; i++) {
        cudaEventRecord(from, b->stream);
        cuda_ok(cudaGraphLaunch(exec, b->stream), "graph launch");
        cudaEventRecord(to, b->stream);
        cuda_ok(cudaEventSynchronize(to), "graph run");
        cudaEventElapsedTime(&ms[i < 0 ? 0 : i], from, to);
    }
    qsort(ms, RUNS, sizeof(ms[0]), by_value);
    cudaEventDestroy(from);
    cudaEventDestroy(to);
    cudaGraphExecDestroy(exec);
    cudaGraphDestroy(graph);
    return 1000.0 * (double) ms[RUNS / 2];
}

static void
must(int rc, const char *what)
{
    if (rc != 0) {
        fprintf(stderr, "%s: %d %s\n", what, rc, tr_cuda_reason());
        exit(1);
    }
}

static void
no_refusal(const uint32_t *refused, const char *what)
{
    uint32_t n;

    cuda_ok(cudaMemcpy(&n, refused, 4, cudaMemcpyDeviceToHost), what);
    if (n != 0) {
        fprintf(stderr, "%s: %u heads refused\n", what, n);
        exit(1);
    }
}

/* A view whose every head has `uncompressed` + 1 + `per_tier` * 2 pages of its
 * own. */
static void
view_make(bench_t *b, uint32_t slots, uint32_t uncompressed, uint32_t per_tier)
{
    tr_page_spec_t spec = { DIM, levels, 2, true, false, true };
    tr_kv_view_t *v = &b->view;
    size_t rows = (size_t) slots * b->layers * KV_HEADS, pages, done;
    int32_t *tables;
    uint16_t *image;

    if (tr_page_plan(&spec, &b->plan) != 0) {
        exit(1);
    }
    memset(v, 0, sizeof(*v));
    v->page_bytes = b->plan.page_bytes;
    v->layers = b->layers;
    v->kv_heads = KV_HEADS;
    v->head_dim = DIM;
    v->n_layouts = b->plan.n;
    v->layout = b->plan.layout;
    v->at_window = uncompressed;
    v->at_pair[0] = uncompressed + 1;
    v->pair_len[0] = 2 * per_tier;
    v->at_pair[1] = v->table_len = uncompressed + 1 + 2 * per_tier;
    pages = rows * v->table_len;
    tables = malloc(pages * 4);
    for (size_t i = 0; i < pages; i++) {
        size_t j = random_below((uint32_t) i + 1);

        tables[i] = tables[j];
        tables[j] = (int32_t) i;
    }
    v->tables = array(b, tables, pages * 4);
    free(tables);
    v->pool = array(b, NULL, pages * v->page_bytes);
    image = malloc(v->page_bytes);
    for (uint32_t i = 0; i < v->page_bytes / 2; i++) {
        image[i] = half_from(random_normal());
    }
    cuda_ok(cudaMemcpy(v->pool, image, v->page_bytes, cudaMemcpyHostToDevice),
            "image");
    free(image);
    for (done = 1; done < pages; done *= 2) {
        size_t n = pages - done < done ? pages - done : done;

        cuda_ok(cudaMemcpy(v->pool + done * v->page_bytes, v->pool,
                           n * v->page_bytes, cudaMemcpyDeviceToDevice),
                "image");
    }
}

static tr_cuda_keys_t
keys_make(bench_t *b, uint32_t rows)
{
    size_t n = (size_t) rows * KV_HEADS * DIM;
    float *x = malloc(n * 4);
    uint16_t *h = malloc(n * 2);
    tr_cuda_keys_t in = {
        NULL, NULL, KV_HEADS * DIM, TR_BF16, NULL, false, NULL
    };

    for (size_t i = 0; i < n; i++) {
        x[i] = (float) (random_unit() * 2 - 1);
        h[i] = tr_bf16_from_float(x[i]);
    }
    in.k = array(b, h, n * 2);
    in.v = array(b, h, n * 2);
    in.angles = array(b, x, (size_t) rows * DIM * 4);
    free(x);
    free(h);
    return in;
}

/* ---- a step, or a prompt's rows ----------------------------------------- */

typedef struct {
    tr_rows_t rows;
    tr_cuda_keys_t in;
    uint32_t layers, *refused;
} append_t;

static void
append_run(bench_t *b, void *arg)
{
    append_t *a = arg;

    if (a->in.moved) {
        must(tr_cuda_kv_moves(&b->launch, &b->view, &a->rows, false,
                              a->refused),
             "moves");
    }
    for (uint32_t layer = 0; layer < a->layers; layer++) {
        must(tr_cuda_kv_append(&b->launch, &b->view, layer, &a->rows, &a->in,
                               a->refused),
             "append");
    }
}

static void
moves_make(bench_t *b, uint32_t batch)
{
    size_t heads = (size_t) batch * b->layers * KV_HEADS;
    tr_kv_move_t *m = calloc(heads, sizeof(*m));
    tr_kv_seq_t *seq = calloc(batch, sizeof(*seq));
    uint32_t *count = calloc(heads * TR_KV_TIERS_MAX, 4);

    for (uint32_t s = 0; s < batch; s++) {
        seq[s] = (tr_kv_seq_t){ .base = 1000,
                                .window_from = 1000 - WINDOW,
                                .window = WINDOW,
                                .n_tiers = 2,
                                .window_layout = 1,
                                .tier_layout = { 1, 2 },
                                .scored = true };
    }
    for (size_t h = 0; h < heads; h++) {
        count[h * TR_KV_TIERS_MAX] = b->plan.layout[1].tokens;
        count[h * TR_KV_TIERS_MAX + 1] = b->plan.layout[2].tokens;
        m[h].candidate_index = random_below(b->plan.layout[1].tokens);
        m[h].candidate_to = 1;
        m[h].candidate_target = random_below(b->plan.layout[2].tokens);
        m[h].leaves = 1;
        m[h].leave_pos = 999 - WINDOW;
        m[h].index = m[h].candidate_index;
    }
    b->view.move = array(b, m, heads * sizeof(*m));
    b->view.seq = array(b, seq, batch * sizeof(*seq));
    b->view.count = array(b, count, heads * TR_KV_TIERS_MAX * 4);
    free(m);
    free(seq);
    free(count);
}

static append_t
rows_make(bench_t *b, uint32_t seqs, uint32_t each, uint32_t first)
{
    uint32_t n = seqs * each, zero = 0, *pos = malloc(n * 4ul);
    uint32_t *row = malloc((seqs + 1) * 4ul);
    int32_t *slot = malloc(seqs * 4ul);
    append_t a = { .layers = b->layers };

    for (uint32_t i = 0; i < n; i++) {
        pos[i] = first + i % each;
    }
    for (uint32_t s = 0; s <= seqs; s++) {
        row[s] = s * each;
        if (s < seqs) {
            slot[s] = (int32_t) s;
        }
    }
    a.rows = (tr_rows_t){ n, seqs, array(b, pos, n * 4ul),
                          array(b, slot, seqs * 4ul),
                          array(b, row, (seqs + 1) * 4ul) };
    a.in = keys_make(b, n);
    a.refused = array(b, &zero, 4);
    free(pos);
    free(row);
    free(slot);
    return a;
}

static void
bench_step(bench_t *b, uint32_t batch, uint32_t layers)
{
    append_t a;
    double us, moves;

    b->layers = layers;
    view_make(b, batch, 0, 1);
    moves_make(b, batch);
    a = rows_make(b, batch, 1, 999);
    us = measure(b, append_run, &a);
    no_refusal(a.refused, "step");
    printf("| step, batch %u, %u layers, moves with them | %.0f us | %.1f us a "
           "layer |\n",
           batch, layers, us, us / layers);
    a.in.moved = true;
    us = measure(b, append_run, &a);
    no_refusal(a.refused, "step");
    a.layers = 0;
    moves = measure(b, append_run, &a);
    printf("| step, batch %u, %u layers | %.0f us | all moves %.1f us, then "
           "%.2f us a layer |\n",
           batch, layers, us, moves, (us - moves) / layers);
    release(b);
}

static void
bench_prompt(bench_t *b)
{
    tr_kv_seq_t seq = { 0 };
    double us, bytes = (double) PROMPT * KV_HEADS * DIM * 2 * (2 + 2);
    append_t a;
    uint32_t per;

    view_make(b, 1, 1, 1);
    per = b->plan.layout[0].tokens;
    release(b);
    view_make(b, 1, PROMPT / per + 1, 1);
    b->view.seq = array(b, &seq, sizeof(seq));
    a = rows_make(b, 1, PROMPT, 0);
    a.layers = 1;
    us = measure(b, append_run, &a);
    no_refusal(a.refused, "prompt");
    printf("| rows of a prompt of %u, one layer | %.0f us | %.0f GB/s |\n",
           PROMPT, us, bytes / us / 1e3);
    release(b);
}

/* ---- compression -------------------------------------------------------- */

typedef struct {
    tr_kv_compress_t *jobs;
    uint32_t n, *refused;
    void *work;
} compress_run_t;

static void
compress_run(bench_t *b, void *arg)
{
    compress_run_t *c = arg;

    must(tr_cuda_kv_compress(&b->launch, &b->view, c->jobs, c->n,
                             b->view.layers, PROMPT, c->refused, c->work),
         "compress");
}

/* 30% of the tokens to 8/4, 50% to 4/2, as they come. */
static void
bench_compress(bench_t *b, uint32_t slots)
{
    tr_kv_seq_t from = { 0 };
    tr_kv_seq_t to = { .base = PROMPT,
                       .window_from = PROMPT - WINDOW,
                       .window = WINDOW,
                       .n_tiers = 2,
                       .window_layout = 1,
                       .tier_layout = { 1, 2 },
                       .scored = true };
    tr_kv_seq_t *seqs = calloc(slots, sizeof(*seqs));
    int8_t *dest = malloc((size_t) HEADS * PROMPT);
    tr_kv_compress_t *jobs = calloc(slots, sizeof(*jobs));
    compress_run_t c = { .n = slots };
    uint64_t kept[3] = { 0 };
    double us, read, written;
    uint32_t per;

    view_make(b, 1, 1, 1);
    per = b->plan.layout[0].tokens;
    release(b);
    view_make(b, slots, PROMPT / per + 1,
              PROMPT / b->plan.layout[1].tokens + 1);
    for (size_t i = 0; i < (size_t) HEADS * PROMPT; i++) {
        uint32_t x = random_below(10), tier = x < 3 ? 0 : x < 8 ? 1 : 2;

        dest[i] = tier == 2 ? TR_KV_NOWHERE : (int8_t) tier;
        if (i % PROMPT >= PROMPT - WINDOW) {
            dest[i] = TR_KV_WINDOW;
            tier = 0;
        }
        kept[tier]++;
    }
    for (uint32_t s = 0; s < slots; s++) {
        seqs[s] = from;
        jobs[s] = (tr_kv_compress_t){
            .slot = (int32_t) s,
            .n_uncompressed = PROMPT,
            .dest_len = PROMPT,
            /* its own row's other parts take what comes */
            .to_tables = b->view.tables + (size_t) s * HEADS * b->view.table_len
        };
    }
    b->view.seq = array(b, seqs, slots * sizeof(*seqs));
    b->view.count = array(b, NULL, (size_t) slots * HEADS * 16);
    jobs[0].to = array(b, &to, sizeof(to));
    jobs[0].dest = array(b, dest, (size_t) HEADS * PROMPT);
    for (uint32_t s = 1; s < slots; s++) {
        jobs[s].to = jobs[0].to;
        jobs[s].dest = jobs[0].dest;
    }
    c.jobs = array(b, jobs, slots * sizeof(*jobs));
    c.refused = array(b, NULL, slots * 4ul);
    c.work = array(b, NULL, tr_cuda_kv_compress_work(&b->view, slots, PROMPT));
    us = measure(b, compress_run, &c);
    no_refusal(c.refused, "compress");
    read = (double) (kept[0] + kept[1]) * DIM * 4 * slots;
    written = ((double) kept[0] * tr_kv_layout_token_bytes(&b->plan, 1)
               + (double) kept[1] * tr_kv_layout_token_bytes(&b->plan, 2))
              * slots;
    printf("| compression of %u prompts of %u | %.0f us | %.0f us each, "
           "%.0f GB/s |\n",
           slots, PROMPT, us, us / slots, (read + written) / us / 1e3);
    free(seqs);
    free(dest);
    free(jobs);
    release(b);
}

/* ---- swap --------------------------------------------------------------- */

typedef struct {
    tr_cuda_swap_t swap;
    uint32_t *pages;
    void *work;
} swap_run_t;

static void
swap_run(bench_t *b, void *arg)
{
    swap_run_t *s = arg;

    must(tr_cuda_kv_swap(&b->launch, &b->view, (int32_t *) b->view.tables,
                         &s->swap, s->pages, s->work),
         "swap");
}

static void
bench_swap(bench_t *b)
{
    uint32_t uncompressed = 32, n = uncompressed * HEADS;
    tr_kv_seq_t seq = { 0 };
    swap_run_t s = { .swap = { .slot = 0,
                               .uncompressed_pages = uncompressed,
                               .max_pages = n,
                               .last = n } };
    int32_t *taken = malloc(n * 4ul);
    uint8_t *host;
    double us;

    view_make(b, 1, uncompressed, 1);
    for (uint32_t i = 0; i < n; i++) {
        taken[i] = (int32_t) i;
    }
    cuda_ok(cudaHostAlloc((void **) &host, n * b->view.page_bytes, 0),
            "host memory");
    b->view.seq = array(b, &seq, sizeof(seq));
    b->view.count = array(b, NULL, HEADS * 16);
    s.swap.taken = array(b, taken, n * 4ul);
    s.swap.given = array(b, NULL, n * 4ul);
    s.swap.from = b->view.pool;
    s.swap.to = host;
    s.pages = array(b, NULL, 4);
    s.work = array(b, NULL, tr_cuda_kv_swap_work(&b->view));
    us = measure(b, swap_run, &s);
    printf("| swap out, %.0f MB | %.0f us | %.1f GB/s |\n",
           (double) n * (double) b->view.page_bytes / 1e6, us,
           (double) n * (double) b->view.page_bytes / us / 1e3);
    s.swap.from = host;
    s.swap.to = b->view.pool;
    us = measure(b, swap_run, &s);
    printf("| swap in | %.0f us | %.1f GB/s |\n", us,
           (double) n * (double) b->view.page_bytes / us / 1e3);
    cuda_ok(cudaFreeHost(host), "host memory");
    free(taken);
    release(b);
}

int
main(int argc, char **argv)
{
    static const uint32_t step[][2] = { { 1, LAYERS },  { 8, LAYERS },
                                        { 64, LAYERS }, { 256, LAYERS },
                                        { 64, 64 },     { 288, 64 } };
    bench_t b = { .layers = LAYERS };

    if (tr_cuda_open(0, &b.device) != 0) {
        printf("no device: %s\n", tr_cuda_reason());
        return 77;
    }
    random_seed(1);
    cuda_ok(cudaStreamCreate(&b.stream), "stream");
    b.launch = (tr_cuda_stream_t){ b.stream, &b.device };
    printf("| what | time | |\n|---|---|---|\n");
    if (argc > 2) {
        bench_step(&b, (uint32_t) strtoul(argv[2], NULL, 10), 64);
    }
    for (uint32_t i = 0; argc < 3 && i < sizeof(step) / sizeof(step[0]); i++) {
        bench_step(&b, step[i][0], step[i][1]);
    }
    b.layers = LAYERS;
    if (argc < 2) {
        bench_prompt(&b);
        bench_compress(&b, 1);
        bench_compress(&b, 4);
        bench_swap(&b);
    }
    cudaStreamDestroy(b.stream);
    return 0;
}
