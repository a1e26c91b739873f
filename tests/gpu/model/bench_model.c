/*
 * How long a layer's small kernels and sampling take, with the shapes of
 * Llama-3-8B: hidden 4096, 32 query heads on 8 KV heads of 128, 14336 in the
 * MLP, a vocabulary of 128256.
 *
 *   bench_model
 *
 * Medians of 20 runs of a CUDA graph of 16 launches, per launch.  Bytes are
 * those that must be read and written once; of few rows they are in the L2
 * cache.  Sampling is launched once a graph, every row alike.
 */
#include "kernels/cuda/device.h"

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/gpu/fixtures/cache.h"

#define HIDDEN 4096u
#define HEADS 32u
#define KV_HEADS 8u
#define DIM 128u
#define WIDE 14336u
#define VOCAB 128256u
#define QKV ((HEADS + 2 * KV_HEADS) * DIM)
#define RUNS 20
#define CHAIN 16u
#define ROWS_MAX 8192u
#define SAMPLED_MAX 256u
#define LEN 8192u

typedef struct {
    tr_device_props_t device;
    tr_cuda_stream_t s;
    cudaStream_t stream;
    uint32_t rows;
    float *hidden, *weight, *angles, *inv, *logits;
    void *table, *a, *b; /* a, b: [ROWS_MAX][2 * WIDE] of 16 bits */
    int32_t *token, *slot, *history;
    uint32_t *pos;
    tr_cuda_sample_t sample;
} bench_t;

static void
must(int rc, const char *what)
{
    if (rc != 0) {
        fprintf(stderr, "%s: %d %s\n", what, rc, tr_cuda_reason());
        exit(1);
    }
}

static void *
device_memory(size_t bytes)
{
    void *p = NULL;

    cuda_ok(cudaMalloc(&p, bytes), "cudaMalloc");
    cuda_ok(cudaMemset(p, 0, bytes), "cudaMemset");
    return p;
}

/* ---- what is measured --------------------------------------------------- */

static void
embed(bench_t *b)
{
    tr_cuda_embed_t a = { .rows = b->rows,
                          .vocab = VOCAB,
                          .hidden = HIDDEN,
                          .token = b->token,
                          .row_slot = b->slot,
                          .row_pos = b->pos,
                          .history = { b->history, LEN },
                          .table = b->table,
                          .type = TR_BF16,
                          .scale = 1,
                          .out = b->hidden,
                          .ldo = HIDDEN };

    must(tr_cuda_embed(&b->s, &a), "embed");
}

static void
angles(bench_t *b)
{
    const tr_cuda_angles_t a = { .rows = b->rows,
                                 .half = DIM / 2,
                                 .row_pos = b->pos,
                                 .inv_freq = b->inv,
                                 .angles = b->angles };

    must(tr_cuda_rope_angles(&b->s, &a), "rope_angles");
}

static void
norm(bench_t *b)
{
    tr_cuda_norm_t a = { .rows = b->rows,
                         .n = HIDDEN,
                         .hidden = b->hidden,
                         .ldh = HIDDEN,
                         .delta = b->a,
                         .ldd = HIDDEN,
                         .scale = 1,
                         .weight = b->weight,
                         .eps = 1e-5f,
                         .out = b->b,
                         .ldo = HIDDEN,
                         .type = TR_BF16 };

    must(tr_cuda_norm(&b->s, &a), "norm");
}

static tr_cuda_qkv_t
qkv_args(const bench_t *b)
{
    return (tr_cuda_qkv_t){ .rows = b->rows,
                            .heads = HEADS,
                            .kv_heads = KV_HEADS,
                            .head_dim = DIM,
                            .qkv = b->a,
                            .ld = QKV,
                            .type = TR_BF16,
                            .eps = 1e-6f,
                            .angles = b->angles };
}

static void
rotate(bench_t *b)
{
    tr_cuda_qkv_t a = qkv_args(b);

    must(tr_cuda_qkv(&b->s, &a), "qkv");
}

static void
bias_norm_rotate(bench_t *b)
{
    tr_cuda_qkv_t a = qkv_args(b);

    a.bias = a.q_norm = a.k_norm = b->weight;
    must(tr_cuda_qkv(&b->s, &a), "qkv");
}

static void
hadamard(bench_t *b)
{
    tr_cuda_qkv_t a = qkv_args(b);

    a.hadamard = true;
    a.key_angles = b->angles;
    must(tr_cuda_qkv(&b->s, &a), "qkv");
}

static void
bias_rotate(bench_t *b)
{
    tr_cuda_qkv_t a = qkv_args(b);

    a.bias = b->weight;
    must(tr_cuda_qkv(&b->s, &a), "qkv");
}

static void
act_mul(bench_t *b)
{
    must(tr_cuda_act_mul(&b->s, TR_ACT_SILU, b->a, 2 * WIDE, b->rows, WIDE,
                         TR_BF16, b->b, WIDE),
         "act_mul");
}

static void
sample(bench_t *b)
{
    b->sample.rows = b->rows;
    must(tr_cuda_sample(&b->s, &b->sample), "sample");
}

/* ---- measuring ---------------------------------------------------------- */

static int
by_value(const void *a, const void *b)
{
    float x = *(const float *) a, y = *(const float *) b;

    return x < y ? -1 : x > y;
}

/* Median of a launch, in microseconds, of `chain` in a graph. */
static double
measure(bench_t *b, void (*f)(bench_t *b), uint32_t chain)
{
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaEvent_t from, to;
    float ms[RUNS];

    cuda_ok(cudaStreamBeginCapture(b->stream, cudaStreamCaptureModeThreadLocal),
            "capture");
    for (uint32_t i = 0; i < chain; i++) {
        f(b);
    }
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
    return 1000.0 * (double) ms[RUNS / 2] / chain;
}

static void
show(bench_t *b, const char *name, void (*f)(bench_t *b), double bytes_a_row)
{
    static const uint32_t rows[] = { 1, 64, 256, 2048, 8192 };

    for (uint32_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        double us;

        b->rows = rows[i];
        us = measure(b, f, CHAIN);
        printf("%-20s %5u rows  %8.1f us  %7.0f GB/s\n", name, rows[i], us,
               bytes_a_row * rows[i] / us / 1000);
    }
}

static void
show_sample(bench_t *b, const char *name, tr_cuda_sampling_t sampling)
{
    static const uint32_t rows[] = { 1, 16, 64, 256 };
    tr_cuda_sampling_t *w = malloc(SAMPLED_MAX * sizeof(*w));

    for (uint32_t r = 0; r < SAMPLED_MAX; r++) {
        w[r] = sampling;
        w[r].slot = (int32_t) r;
        w[r].pos = LEN / 2;
        w[r].prompt_len = LEN / 4;
        w[r].seed = 1 + r;
        w[r].target = -1;
        w[r].repetition = sampling.repetition != 0 ? sampling.repetition : 1;
    }
    cuda_ok(cudaMemcpy((void *) b->sample.sampling, w, SAMPLED_MAX * sizeof(*w),
                       cudaMemcpyHostToDevice),
            "sampling");
    for (uint32_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        double us;

        b->rows = rows[i];
        us = measure(b, sample, 1);
        printf("sample, %-22s %5u rows  %8.1f us  %7.0f GB/s of logits\n", name,
               rows[i], us, 4.0 * VOCAB * rows[i] / us / 1000);
    }
    free(w);
}

/* ---- arrays ------------------------------------------------------------- */

static void
open_arrays(bench_t *b)
{
    uint32_t *pos = malloc(ROWS_MAX * 4);
    int32_t *token = malloc(ROWS_MAX * 4);
    size_t table = (size_t) VOCAB * HIDDEN;

    b->hidden = device_memory((size_t) ROWS_MAX * HIDDEN * 4);
    b->weight = device_memory((size_t) WIDE * 4);
    b->angles = device_memory((size_t) ROWS_MAX * DIM * 4);
    b->inv = device_memory(DIM * 4);
    b->table = device_memory(table * 2);
    b->a = device_memory((size_t) ROWS_MAX * 2 * WIDE * 2);
    b->b = device_memory((size_t) ROWS_MAX * WIDE * 2);
    b->token = device_memory(ROWS_MAX * 4);
    b->slot = device_memory(ROWS_MAX * 4);
    b->pos = device_memory(ROWS_MAX * 4);
    b->history = device_memory((size_t) SAMPLED_MAX * LEN * 4);
    for (uint32_t r = 0; r < ROWS_MAX; r++) {
        pos[r] = r % LEN;
        token[r] = (int32_t) random_below(VOCAB);
    }
    cuda_ok(cudaMemcpy(b->pos, pos, ROWS_MAX * 4, cudaMemcpyHostToDevice),
            "positions");
    cuda_ok(cudaMemcpy(b->token, token, ROWS_MAX * 4, cudaMemcpyHostToDevice),
            "tokens");
    must(tr_cuda_fill_random(&b->s, b->inv, DIM, TR_F32, 1, 0, 0.5f), "fill");
    must(tr_cuda_fill_random(&b->s, b->weight, WIDE, TR_F32, 2, 0, 1), "fill");
    must(tr_cuda_fill_random(&b->s, b->table, table, TR_BF16, 3, 0, 1), "fill");
    must(tr_cuda_fill_random(&b->s, b->a, (size_t) ROWS_MAX * 2 * WIDE, TR_BF16,
                             4, 0, 1e-2f),
         "fill");
    cuda_ok(cudaDeviceSynchronize(), "fill");
    free(pos);
    free(token);
}

/* Normal logits, standard deviation 3, the best near 14. */
static void
open_sample(bench_t *b)
{
    size_t n = (size_t) SAMPLED_MAX * VOCAB;
    float *x = malloc(n * 4);
    int32_t slot = 0;

    for (size_t i = 0; i < n; i++) {
        x[i] = (float) (random_normal() * 3);
    }
    b->logits = device_memory(n * 4);
    cuda_ok(cudaMemcpy(b->logits, x, n * 4, cudaMemcpyHostToDevice), "logits");
    free(x);
    b->sample = (tr_cuda_sample_t){
        .vocab = VOCAB,
        .logits = b->logits,
        .ld = VOCAB,
        .sampling = device_memory(SAMPLED_MAX * sizeof(tr_cuda_sampling_t)),
        .seq_slot = device_memory(4),
        .bias = device_memory(sizeof(tr_cuda_bias_t)),
        .bar = device_memory(4),
        .history = { b->history, LEN },
        .out = device_memory(SAMPLED_MAX * sizeof(tr_cuda_sampled_t)),
        .top = device_memory((size_t) SAMPLED_MAX * TR_CUDA_TOP_MAX
                             * sizeof(tr_cuda_top_t)),
        .work = device_memory(
            tr_cuda_sample_work(&b->device, SAMPLED_MAX, VOCAB))
    };
    cuda_ok(cudaMemcpy((void *) b->sample.seq_slot, &slot, 4,
                       cudaMemcpyHostToDevice),
            "slots");
}

/* One for all rows: a quarter of the vocabulary. */
static void
open_mask(bench_t *b)
{
    size_t bytes = (VOCAB + 31) / 32 * 4;
    void *mask = device_memory(bytes);

    cuda_ok(cudaMemset(mask, 0x11, bytes), "mask");
    b->sample.mask = mask;
    b->sample.mask_at = device_memory(SAMPLED_MAX * 4);
}

int
main(void)
{
    bench_t b;

    memset(&b, 0, sizeof(b));
    random_seed(1);
    must(tr_cuda_open(0, &b.device), "no device");
    cuda_ok(cudaStreamCreate(&b.stream), "stream");
    b.s = (tr_cuda_stream_t){ b.stream, &b.device };
    open_arrays(&b);
    open_sample(&b);
    show(&b, "embed", embed, HIDDEN * 6.0);
    show(&b, "rope_angles", angles, DIM * 4.0);
    show(&b, "norm", norm, HIDDEN * 12.0);
    show(&b, "qkv, rotated", rotate, HEADS * DIM * 4.0 + DIM * 4.0);
    show(&b, "qkv, Hadamard", hadamard, QKV * 4.0 + DIM * 4.0);
    show(&b, "qkv, bias", bias_rotate, QKV * 4.0 + DIM * 4.0);
    show(&b, "qkv, bias and norms", bias_norm_rotate, QKV * 4.0 + DIM * 4.0);
    show(&b, "act_mul", act_mul, WIDE * 6.0);
    tr_cuda_sampling_t plain = { .top_p = 1, .logprobs = -1 }, w = plain;

    show_sample(&b, "greedy", w);
    w.temperature = 1;
    show_sample(&b, "temperature 1", w);
    w.top_p = 0.95f;
    show_sample(&b, "top-p 0.95", w);
    w.top_k = 50;
    show_sample(&b, "top-k 50, top-p 0.95", w);
    w = plain;
    w.logprobs = 5;
    show_sample(&b, "greedy, 5 logprobs", w);
    w = plain;
    w.repetition = 1.1f;
    show_sample(&b, "greedy, penalties", w);
    open_mask(&b);
    show_sample(&b, "greedy, masks", plain);
    w = plain;
    w.temperature = 1;
    show_sample(&b, "temperature 1, masks", w);
    return 0;
}
