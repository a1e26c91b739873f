/*
 * Matrix products of the models that the engine serves, through the library's
 * table: microseconds, bytes of weights and operations a second, for the
 * library's first suggestion and for the algorithm that was fastest.
 *
 *   bench_matmul LIBRARY
 *
 * Weights are used in turn out of several copies, more than a cache holds, as
 * the layers of a model are.
 */
#include "kernels/cuda/device.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#define COPIES_BYTES ((size_t) 512 << 20) /* of weights, at least */
#define COPIES_MAX 16u                    /* that algorithms are timed with */
#define RUNS 20
#define ROWS_MAX 8192u

typedef struct {
    const char *model, *name;
    uint32_t n, k;
    tr_dtype_t out;
} shape_t;

static const shape_t shapes[] = {
    { "Llama-3-8B", "qkv", 6144, 4096, TR_BF16 },
    { "Llama-3-8B", "o", 4096, 4096, TR_BF16 },
    { "Llama-3-8B", "gate, up", 28672, 4096, TR_BF16 },
    { "Llama-3-8B", "down", 4096, 14336, TR_BF16 },
    { "Llama-3-8B", "head", 128256, 4096, TR_F32 },
    { "Qwen2.5-32B", "qkv", 7168, 5120, TR_BF16 },
    { "Qwen2.5-32B", "o", 5120, 5120, TR_BF16 },
    { "Qwen2.5-32B", "gate, up", 55296, 5120, TR_BF16 },
    { "Qwen2.5-32B", "down", 5120, 27648, TR_BF16 },
    { "Qwen2.5-32B", "head", 152064, 5120, TR_F32 },
};
static const uint32_t counts[] = { 1, 16, 64, 128, 256, 512, 2048, 8192 };

#define HEAD_ROWS 512u /* nobody wants more logits at once */

static const tr_device_t *cuda;
static tr_device_props_t device;
static tr_cuda_stream_t stream;

static void
must(bool held, const char *what)
{
    if (!held) {
        fprintf(stderr, "%s: %s\n", what, cuda->reason());
        exit(1);
    }
}

static void
load(const char *path)
{
    void *lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    const tr_device_t *(*table)(void) = NULL;

    if (lib != NULL) {
        *(void **) &table = dlsym(lib, TR_DEVICE_SYMBOL);
    }
    if (table == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        exit(1);
    }
    cuda = table();
    must(cuda->open(0, &device) == 0, "open");
    must(cuda->stream_open(&device, &stream) == 0, "stream");
}

typedef struct {
    const shape_t *shape;
    uint8_t *w;
    void *x, *y;
    size_t w_bytes;
    uint32_t copies;
} fixture_t;

static uint32_t
most_rows(const shape_t *s)
{
    return s->out == TR_F32 ? HEAD_ROWS : ROWS_MAX;
}

static void
fixture_open(fixture_t *b, const shape_t *s)
{
    size_t rows = most_rows(s);

    b->shape = s;
    b->w_bytes = (size_t) s->n * s->k * 2;
    b->copies = (uint32_t) (COPIES_BYTES / b->w_bytes) + 1;
    b->w = cuda->alloc(b->w_bytes * b->copies);
    b->x = cuda->alloc(rows * s->k * 2);
    b->y = cuda->alloc(rows * s->n * 4);
    must(b->w && b->x && b->y, "memory");
    must(cuda->fill_random(&stream, b->w, b->w_bytes * b->copies / 2, TR_BF16,
                           1, 0, 0.02f)
             == 0,
         "weights");
    must(cuda->fill_random(&stream, b->x, rows * s->k, TR_BF16, 2, 0, 1) == 0,
         "rows");
}

static void
fixture_close(fixture_t *b)
{
    cuda->release(b->w);
    cuda->release(b->x);
    cuda->release(b->y);
}

static tr_cuda_product_t
product_of(const fixture_t *b, uint32_t rows, uint32_t run)
{
    const shape_t *s = b->shape;

    return (tr_cuda_product_t){ .rows = rows,
                                .n = s->n,
                                .k = s->k,
                                .type = TR_BF16,
                                .out = s->out,
                                .x = b->x,
                                .w = b->w + run % b->copies * b->w_bytes,
                                .y = b->y,
                                .ldx = s->k,
                                .ldy = s->n };
}

/* Microseconds of a product. */
static double
measure(const fixture_t *b, const tr_cuda_matmul_t *m, uint32_t rows)
{
    void *from, *to;
    double us = 0;

    must(cuda->event_open(&from) == 0 && cuda->event_open(&to) == 0, "event");
    for (uint32_t i = 0; i < RUNS + 3; i++) {
        tr_cuda_product_t p = product_of(b, rows, i);

        if (i == 3) {
            must(cuda->event_record(&stream, from) == 0, "event");
        }
        must(cuda->matmul(&stream, m, &p) == 0, "product");
    }
    must(cuda->event_record(&stream, to) == 0, "event");
    must(cuda->event_wait(to) == 0, "product");
    must(cuda->event_time(from, to, &us) == 0, "time");
    cuda->event_close(from);
    cuda->event_close(to);
    return us / RUNS;
}

static tr_cuda_matmul_t *
choose(const fixture_t *b, bool timed)
{
    tr_cuda_product_t p = product_of(b, most_rows(b->shape), 0);
    uint32_t n = b->copies < COPIES_MAX ? b->copies : COPIES_MAX;
    const void *w[COPIES_MAX];
    tr_cuda_matmul_t *m;

    for (uint32_t i = 0; i < n; i++) {
        w[i] = b->w + i * b->w_bytes;
    }
    must(cuda->matmul_open(&device, p.rows, &m) == 0, "cuBLASLt");
    must(cuda->matmul_choose(m, &stream, &p, w, timed ? n : 0) == 0, "choice");
    return m;
}

static void
bench(const shape_t *s)
{
    tr_cuda_matmul_t *first, *fastest;
    fixture_t b;

    fixture_open(&b, s);
    first = choose(&b, false);
    fastest = choose(&b, true);
    for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
        uint32_t rows = counts[i];
        double flops = 2.0 * rows * s->n * s->k, us, suggested;

        if (rows > most_rows(s)) {
            break;
        }
        suggested = measure(&b, first, rows);
        us = measure(&b, fastest, rows);
        printf("| %s | %s | %u x %u | %u | %.1f | %.1f | %.2f | %.0f |\n",
               s->model, s->name, s->n, s->k, rows, suggested, us,
               (double) b.w_bytes / us * 1e-6, flops / us * 1e-6);
    }
    fflush(stdout);
    cuda->matmul_close(first);
    cuda->matmul_close(fastest);
    fixture_close(&b);
}

int
main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: bench_matmul LIBRARY\n");
        return 2;
    }
    load(argv[1]);
    printf("\n## Matrix products, BF16\n\n| model | product | n x k | rows | "
           "suggested us | fastest us | weights TB/s | TFLOP/s |\n"
           "|---|---|---|---|---|---|---|---|\n");
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        bench(&shapes[i]);
    }
    return 0;
}
