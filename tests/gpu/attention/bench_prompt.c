/*
 * bench_prompt.c: prompt attention in operations a second.
 *
 *   bench_prompt [REPEATS]
 *
 * Counts the operations of one causal pass, 4 * head size for each query head
 * and pair of a query and a key that it sees, with and without scores.  The
 * peak is that of products from shared memory alone on random FP16 data,
 * measured in the same run.  Medians; Markdown rows.
 */
#include "kernels/cuda/device.h"

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>

#include "prompt_peak.h"

#define NOISE (4u << 20)

typedef struct {
    uint32_t seqs, rows, cached, heads, kv_heads, dim;
} shape_t;

static const shape_t shapes[] = {
    { 1, 8192, 0, 32, 8, 128 },  { 1, 2048, 0, 32, 8, 128 },
    { 1, 32768, 0, 32, 8, 128 }, { 1, 2048, 30720, 32, 8, 128 },
    { 16, 512, 0, 32, 8, 128 },  { 1, 8192, 0, 28, 4, 128 },
    { 1, 8192, 0, 40, 8, 128 },  { 1, 8192, 0, 32, 8, 64 },
    { 1, 8192, 0, 32, 2, 128 },  { 1, 8192, 0, 16, 8, 256 },
};

static const char *const path_name[] = { "best", "warps", "boxes", "groups",
                                         "alternating" };

static tr_device_props_t device;
static uint16_t *noise;

static void
cuda_ok(int error, const char *what)
{
    if (error != cudaSuccess) {
        fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
        exit(1);
    }
}

static uint16_t
half_from(double x)
{
    _Float16 h = (_Float16) x;
    uint16_t u;

    memcpy(&u, &h, 2);
    return u;
}

/* FP16 numbers from -2 to 2, no run of them twice at the same place. */
static void *
random_halves(size_t bytes)
{
    uint8_t *d;

    cuda_ok(cudaMalloc((void **) &d, bytes), "cudaMalloc");
    for (size_t at = 0; at < bytes;) {
        size_t from = (size_t) rand() % (NOISE / 2) / 8 * 8;
        size_t n = NOISE - 2 * from < bytes - at ? NOISE - 2 * from
                                                 : bytes - at;

        cuda_ok(cudaMemcpy(d + at, noise + from, n, cudaMemcpyHostToDevice),
                "cudaMemcpy");
        at += n;
    }
    return d;
}

static void *
to_device(const void *p, size_t n)
{
    void *d;

    cuda_ok(cudaMalloc(&d, n), "cudaMalloc");
    cuda_ok(cudaMemcpy(d, p, n, cudaMemcpyHostToDevice), "cudaMemcpy");
    return d;
}

static int
ascending(const void *a, const void *b)
{
    float x = *(const float *) a, y = *(const float *) b;

    return x < y ? -1 : x > y;
}

typedef struct {
    tr_page_plan_t plan;
    tr_kv_view_t kv;
    tr_rows_t rows;
    tr_cuda_queries_t queries;
    tr_cuda_prompt_size_t size;
    void *work, *mem[8];
} bench_t;

static void
bench_open(bench_t *b, const shape_t *s, bool scored)
{
    tr_page_spec_t spec = { .head_dim = s->dim, .uncompressed_scored = scored };
    uint32_t len = s->cached + s->rows, n = s->seqs * s->rows, pages, table;
    uint32_t *pos = malloc(n * 4), *seq_row = malloc((s->seqs + 1) * 4);
    tr_kv_seq_t *seq = calloc(s->seqs, sizeof(*seq));
    int32_t *slot = malloc(s->seqs * 4), *tables;

    memset(b, 0, sizeof(*b));
    if (tr_page_plan(&spec, &b->plan)) {
        exit(1);
    }
    table = (len + b->plan.layout->tokens - 1) / b->plan.layout->tokens;
    pages = table * s->seqs * s->kv_heads;
    tables = malloc(pages * 4);
    for (uint32_t i = 0; i < pages; i++) { /* in no order */
        uint32_t j = (uint32_t) rand() % (i + 1);

        tables[i] = tables[j];
        tables[j] = (int32_t) i;
    }
    for (uint32_t i = 0; i < s->seqs; i++) {
        slot[i] = (int32_t) i;
        seq_row[i] = i * s->rows;
        seq[i].scored = scored;
        seq[i].recent_from = UINT32_MAX;
        for (uint32_t j = 0; j < s->rows; j++) {
            pos[i * s->rows + j] = s->cached + j;
        }
    }
    seq_row[s->seqs] = n;
    b->mem[0] = random_halves((size_t) pages * b->plan.page_bytes);
    b->mem[1] = to_device(tables, pages * 4);
    b->mem[2] = to_device(seq, s->seqs * sizeof(*seq));
    b->mem[3] = to_device(pos, n * 4);
    b->mem[4] = to_device(slot, s->seqs * 4);
    b->mem[5] = to_device(seq_row, (s->seqs + 1) * 4);
    b->mem[6] = random_halves((size_t) n * s->heads * s->dim * 2);
    b->mem[7] = random_halves((size_t) n * s->heads * s->dim * 2);
    b->kv = (tr_kv_view_t){ .pool = b->mem[0],
                            .page_bytes = b->plan.page_bytes,
                            .layers = 1,
                            .kv_heads = s->kv_heads,
                            .head_dim = s->dim,
                            .n_layouts = b->plan.n,
                            .layout = b->plan.layout,
                            .tables = b->mem[1],
                            .table_len = table,
                            .seq = b->mem[2] };
    b->rows = (tr_rows_t){ n, s->seqs, b->mem[3], b->mem[4], b->mem[5] };
    b->queries = (tr_cuda_queries_t){ b->mem[6],
                                      b->mem[7],
                                      (size_t) s->heads * s->dim,
                                      (size_t) s->heads * s->dim,
                                      TR_F16,
                                      TR_F16,
                                      s->heads,
                                      0.0884f };
    b->size = (tr_cuda_prompt_size_t){ s->kv_heads, s->dim, s->heads,       n,
                                       s->seqs,     len,    TR_PROMPT_BEST, 0 };
    cuda_ok(cudaMalloc(&b->work, tr_cuda_prompt_work(&b->size)), "workspace");
    free(pos);
    free(seq_row);
    free(seq);
    free(slot);
    free(tables);
}

static void
bench_close(bench_t *b)
{
    for (int i = 0; i < 8; i++) {
        cudaFree(b->mem[i]);
    }
    cudaFree(b->work);
}

/* Median milliseconds; below 0: refused. */
static float
measure(bench_t *b, tr_prompt_path_t path, int repeats)
{
    tr_cuda_stream_t stream = { NULL, &device };
    float ms[64];
    cudaEvent_t from, to;

    cudaEventCreate(&from);
    cudaEventCreate(&to);
    b->size.path = path;
    for (int i = -2; i < repeats; i++) {
        cudaEventRecord(from, NULL);
        if (tr_cuda_prompt(&stream, &b->kv, 0, &b->rows, &b->queries, &b->size,
                           b->work)) {
            fprintf(stderr, "refused: %s\n", tr_cuda_reason());
            return -1;
        }
        cudaEventRecord(to, NULL);
        cuda_ok(cudaEventSynchronize(to), path_name[path]);
        if (i >= 0) {
            cudaEventElapsedTime(&ms[i], from, to);
        }
    }
    qsort(ms, (size_t) repeats, sizeof(*ms), ascending);
    cudaEventDestroy(from);
    cudaEventDestroy(to);
    return ms[repeats / 2];
}

int
main(int argc, char **argv)
{
    int repeats = argc > 1 ? atoi(argv[1]) : 11;
    double peak;

    repeats = repeats < 1 ? 1 : repeats > 64 ? 64 : repeats;
    cuda_ok(tr_cuda_open(0, &device) ? cudaErrorUnknown : cudaSuccess,
            "tr_cuda_open");
    noise = malloc(NOISE);
    for (uint32_t i = 0; i < NOISE / 2; i++) {
        noise[i] = half_from(4.0 * rand() / RAND_MAX - 2);
    }
    peak = prompt_peak(device.blocks);
    printf("products of FP16 from shared memory: %.0f TFLOP/s\n\n", peak);
    printf("| sequences | rows | cached | heads | size | path | scores | ms | "
           "TFLOP/s | of 800 | of peak "
           "|\n|---|---|---|---|---|---|---|---|---|---|---|\n");
    for (uint32_t i = 0; i < sizeof(shapes) / sizeof(*shapes); i++) {
        const shape_t *s = &shapes[i];
        double pairs = (double) s->seqs
                       * ((double) s->rows * s->cached
                          + 0.5 * s->rows * (s->rows + 1.0));
        double flop = 4.0 * s->dim * s->heads * pairs;

        /* there are no scores for large heads and groups */
        int both = s->dim <= 128 && s->heads / s->kv_heads <= 8 ? 2 : 1;

        for (int scored = 0; scored < both; scored++) {
            bench_t b;

            bench_open(&b, s, scored);
            for (int w = i == 0 ? TR_PROMPT_WARPS : TR_PROMPT_GROUPS;
                 w < TR_PROMPT_PATHS; w++) {
                float ms = measure(&b, (tr_prompt_path_t) w, repeats);
                double rate = flop / ms * 1e-9;

                printf("| %u | %u | %u | %u/%u | %u | %s | %s | %.3f | %.0f | "
                       "%.0f%% | %.0f%% |\n",
                       s->seqs, s->rows, s->cached, s->heads, s->kv_heads,
                       s->dim, path_name[w], scored ? "yes" : "no", ms, rate,
                       rate / 8, 100 * rate / peak);
                fflush(stdout);
            }
            bench_close(&b);
        }
    }
    free(noise);
    return 0;
}
