/*
 * Matrix products of the models that the engine serves, through the library's
 * table: microseconds, bytes of weights and operations a second, for the
 * library's first suggestion and for the algorithm that was fastest.
 *
 *   bench_matmul LIBRARY [packed|each [trial]]
 *
 * packed: packed weights alone, beside BF16: the products of a layer that follow
 * attention, of few rows as a chain and of many one by one, each form in turn.
 * each: the same products, of few rows, each in a chain of its own.
 * trial: by kernels that `cuda_trial` turns on.
 *
 * Weights are used in turn out of several copies, more than a cache holds, as
 * the layers of a model are.
 */
#include "kernels/cuda/device.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

/* ---- packed weights ------------------------------------------------------ */

#define PACKED_LAYERS 8u /* whose weights are used in turn */
#define PACKED_ROUNDS 7u /* of all forms in turn; medians are shown */
#define PACKED_PRODUCTS 4u
#define PROMPT_ROWS 2048u

typedef struct {
    const char *name;
    tr_weight_form_t form;
} form_t;

static const form_t forms[] = {
    { "BF16", { TR_WEIGHT_16, TR_WEIGHT_PLAIN, 0 } },
    { "FP8, row", { TR_WEIGHT_FP8, TR_WEIGHT_PLAIN, 0 } },
    { "FP8, 128", { TR_WEIGHT_FP8, TR_WEIGHT_PLAIN, 128 } },
    { "INT4, 128", { TR_WEIGHT_INT4, TR_WEIGHT_PLAIN, 128 } },
    { "INT4, 64", { TR_WEIGHT_INT4, TR_WEIGHT_PLAIN, 64 } },
    { "INT4, 32", { TR_WEIGHT_INT4, TR_WEIGHT_PLAIN, 32 } },
};
#define FORMS (sizeof(forms) / sizeof(forms[0]))

/* Of Llama-3-8B, in the order of a chain. */
static const struct {
    uint32_t n, k;
    tr_cuda_small_gemm_mode_t mode;
} chain[PACKED_PRODUCTS] = {
    { 4096, 4096, TR_CUDA_SMALL_GEMM_RESIDUAL },
    { 28672, 4096, TR_CUDA_SMALL_GEMM_GATED },
    { 4096, 14336, TR_CUDA_SMALL_GEMM_RESIDUAL },
    { 6144, 4096, TR_CUDA_SMALL_GEMM_PLAIN },
};

typedef struct {
    uint8_t *w[FORMS][PACKED_LAYERS][PACKED_PRODUCTS];
    void *x, *y[2], *scratch; /* [rows][..] BF16; 16 bits of a matrix */
    float *hidden, *weight, *squares;
    uint32_t *meet;
    tr_cuda_matmul_t *products;
    void *from, *to;
} packed_t;

static tr_weight_form_t
form_of(uint32_t f, uint32_t product)
{
    tr_weight_form_t form = forms[f].form;

    if (form.format != TR_WEIGHT_16
        && chain[product].mode == TR_CUDA_SMALL_GEMM_GATED) {
        form.order = TR_WEIGHT_PAIRS;
    }
    return form;
}

static void *
take(size_t bytes)
{
    void *p = cuda->alloc(bytes);

    must(p != NULL, "memory");
    must(cuda->fill(&stream, p, 0, bytes) == 0, "fill");
    return p;
}

/* Any codes take as long as others; NaN and scales of nothing are avoided. */
static void
packed_fill(uint8_t *w, uint32_t f, uint32_t i)
{
    tr_weight_form_t form = form_of(f, i);
    size_t codes = form.format == TR_WEIGHT_16
                       ? (size_t) chain[i].n * chain[i].k * 2
                       : tr_weight_code_bytes(form, chain[i].n, chain[i].k);

    must(cuda->fill_random(&stream, w, codes / 2, TR_BF16, i, 0, 0.02f) == 0,
         "codes");
}

static void
packed_open(packed_t *b)
{
    size_t widest = (size_t) 28672 * 4096;

    for (uint32_t f = 0; f < FORMS; f++) {
        for (uint32_t l = 0; l < PACKED_LAYERS; l++) {
            for (uint32_t i = 0; i < PACKED_PRODUCTS; i++) {
                b->w[f][l][i] = take(
                    tr_weight_bytes(form_of(f, i), chain[i].n, chain[i].k));
                packed_fill(b->w[f][l][i], f, i);
            }
        }
    }
    b->x = take((size_t) PROMPT_ROWS * 14336 * 2);
    b->y[0] = take((size_t) PROMPT_ROWS * 28672 * 2);
    b->y[1] = take((size_t) PROMPT_ROWS * 28672 * 2);
    b->scratch = take(widest * 2);
    b->hidden = take(PROMPT_ROWS * 4096 * 4);
    b->weight = take(28672 * 4);
    b->squares = take(TR_CUDA_SMALL_GEMM_ROWS * TR_CUDA_SMALL_GEMM_PARTS * 4);
    b->meet = take(256);
    must(cuda->fill_random(&stream, b->x, (size_t) PROMPT_ROWS * 14336, TR_BF16,
                           2, 0, 1)
             == 0,
         "rows");
    must(cuda->matmul_open(&device, PROMPT_ROWS, &b->products) == 0,
         "cuBLASLt");
    must(cuda->event_open(&b->from) == 0 && cuda->event_open(&b->to) == 0,
         "event");
    for (uint32_t i = 0; i < PACKED_PRODUCTS; i++) {
        const void *w[PACKED_LAYERS];
        tr_cuda_product_t p = { .rows = PROMPT_ROWS,
                                .n = chain[i].n,
                                .k = chain[i].k,
                                .type = TR_BF16,
                                .out = TR_BF16,
                                .x = b->x,
                                .y = b->y[0],
                                .ldx = chain[i].k,
                                .ldy = chain[i].n };

        for (uint32_t l = 0; l < PACKED_LAYERS; l++) {
            w[l] = b->w[0][l][i];
        }
        p.w = w[0];
        must(cuda->matmul_choose(b->products, &stream, &p, w, PACKED_LAYERS)
                 == 0,
             "choice");
    }
}

/* A layer's products of few rows, as one chain. */
static void
packed_chain(const packed_t *b, uint32_t f, uint32_t l, uint32_t rows)
{
    tr_cuda_small_gemm_t a[PACKED_PRODUCTS];

    for (uint32_t i = 0; i < PACKED_PRODUCTS; i++) {
        a[i] = (tr_cuda_small_gemm_t){ .mode = chain[i].mode,
                                       .rows = rows,
                                       .n = chain[i].n,
                                       .k = chain[i].k,
                                       .x = i == 0 ? b->x : b->y[(i + 1) % 2],
                                       .w = b->w[f][l][i],
                                       .form = form_of(f, i),
                                       .y = b->y[i % 2],
                                       .ldx = chain[i].k,
                                       .ldy = i == 1 ? 14336 : chain[i].n,
                                       .squares = b->squares,
                                       .norm_n = 4096,
                                       .eps = 1e-5f,
                                       .hidden = b->hidden,
                                       .ldh = 4096,
                                       .weight = b->weight,
                                       .squares_out = b->squares };
        if (chain[i].mode != TR_CUDA_SMALL_GEMM_RESIDUAL) {
            a[i].parts = cuda->small_gemm_parts(&device, rows, 4096,
                                                a[i - 1].k);
        }
    }
    must(cuda->small_gemm(&stream, a, PACKED_PRODUCTS, b->meet) == 0,
         "small_gemm");
}

/* The same products of many rows, without what is between them. */
static void
packed_prompt(const packed_t *b, uint32_t f, uint32_t l, uint32_t rows)
{
    for (uint32_t i = 0; i < PACKED_PRODUCTS; i++) {
        bool packed = forms[f].form.format != TR_WEIGHT_16;
        tr_cuda_unpack_t u = { .n = chain[i].n,
                               .k = chain[i].k,
                               .form = form_of(f, i),
                               .w = b->w[f][l][i],
                               .out = b->scratch };
        tr_cuda_product_t p = { .rows = rows,
                                .n = chain[i].n,
                                .k = chain[i].k,
                                .type = TR_BF16,
                                .out = TR_BF16,
                                .x = b->x,
                                .w = packed ? b->scratch : b->w[f][l][i],
                                .y = b->y[0],
                                .ldx = chain[i].k,
                                .ldy = chain[i].n };

        must(!packed || cuda->unpack(&stream, &u) == 0, "unpack");
        must(cuda->matmul(&stream, b->products, &p) == 0, "product");
    }
}

/* Microseconds of a layer. */
static double
packed_measure(const packed_t *b, uint32_t f, uint32_t rows)
{
    bool few = rows <= TR_CUDA_SMALL_GEMM_ROWS;
    void *graph;
    double us = 0;

    must(cuda->graph_begin(&stream) == 0, "graph");
    for (uint32_t l = 0; l < PACKED_LAYERS; l++) {
        (few ? packed_chain : packed_prompt)(b, f, l, rows);
    }
    must(cuda->graph_end(&stream, &graph) == 0, "graph");
    for (int run = 0; run < 2; run++) {
        must(cuda->event_record(&stream, b->from) == 0
                 && cuda->graph_launch(&stream, graph) == 0
                 && cuda->event_record(&stream, b->to) == 0
                 && cuda->event_wait(b->to) == 0
                 && cuda->event_time(b->from, b->to, &us) == 0,
             "graph");
    }
    cuda->graph_close(graph);
    return us / PACKED_LAYERS;
}

static int
by_size(const void *a, const void *b)
{
    double x = *(const double *) a, y = *(const double *) b;

    return (x > y) - (x < y);
}

static void
bench_packed(void)
{
    static const uint32_t rows[] = { 1, 8, 16, 32, 64, 128, 256, 2048 };
    static packed_t b;
    double us[FORMS][PACKED_ROUNDS];

    packed_open(&b);
    printf("\n## Packed weights, the products of a layer of Llama-3-8B\n\n"
           "| weights | rows | us a layer | over BF16 |\n|---|---|---|---|\n");
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        for (uint32_t r = 0; r < PACKED_ROUNDS; r++) {
            for (uint32_t f = 0; f < FORMS; f++) {
                us[f][r] = packed_measure(&b, f, rows[i]);
            }
        }
        for (uint32_t f = 0; f < FORMS; f++) {
            qsort(us[f], PACKED_ROUNDS, sizeof(us[f][0]), by_size);
            printf("| %s | %u | %.1f | %.3f |\n", forms[f].name, rows[i],
                   us[f][PACKED_ROUNDS / 2],
                   us[f][PACKED_ROUNDS / 2] / us[0][PACKED_ROUNDS / 2]);
        }
        fflush(stdout);
    }
}

/* ---- each product -------------------------------------------------------- */

/* Microseconds of product i, that of all layers in chains of four. */
static double
each_measure(const packed_t *b, uint32_t f, uint32_t i, uint32_t rows)
{
    tr_cuda_small_gemm_t a[PACKED_PRODUCTS];
    void *graph;
    double us = 0;

    must(cuda->graph_begin(&stream) == 0, "graph");
    for (uint32_t l = 0; l < PACKED_LAYERS; l += PACKED_PRODUCTS) {
        for (uint32_t j = 0; j < PACKED_PRODUCTS; j++) {
            a[j] = (tr_cuda_small_gemm_t){ .mode = TR_CUDA_SMALL_GEMM_PLAIN,
                                           .rows = rows,
                                           .n = chain[i].n,
                                           .k = chain[i].k,
                                           .x = b->x,
                                           .w = b->w[f][l + j][i],
                                           .form = forms[f].form,
                                           .y = b->y[0],
                                           .ldx = chain[i].k,
                                           .ldy = chain[i].n };
        }
        must(cuda->small_gemm(&stream, a, PACKED_PRODUCTS, b->meet) == 0,
             "small_gemm");
    }
    must(cuda->graph_end(&stream, &graph) == 0, "graph");
    for (int run = 0; run < 2; run++) {
        must(cuda->event_record(&stream, b->from) == 0
                 && cuda->graph_launch(&stream, graph) == 0
                 && cuda->event_record(&stream, b->to) == 0
                 && cuda->event_wait(b->to) == 0
                 && cuda->event_time(b->from, b->to, &us) == 0,
             "graph");
    }
    cuda->graph_close(graph);
    return us / PACKED_LAYERS;
}

static void
bench_each(void)
{
    static const uint32_t rows[] = { 1, 8 };
    static packed_t b;
    double us[FORMS][PACKED_ROUNDS];

    packed_open(&b);
    printf("\n## Products of few rows\n\n"
           "| n x k | rows | weights | us | TB/s |\n|---|---|---|---|---|\n");
    for (uint32_t i = 0; i < PACKED_PRODUCTS; i++) {
        for (size_t j = 0; j < sizeof(rows) / sizeof(rows[0]); j++) {
            for (uint32_t r = 0; r < PACKED_ROUNDS; r++) {
                for (uint32_t f = 0; f < FORMS; f++) {
                    us[f][r] = each_measure(&b, f, i, rows[j]);
                }
            }
            for (uint32_t f = 0; f < FORMS; f++) {
                size_t bytes = tr_weight_bytes(forms[f].form, chain[i].n,
                                               chain[i].k);
                double median;

                qsort(us[f], PACKED_ROUNDS, sizeof(us[f][0]), by_size);
                median = us[f][PACKED_ROUNDS / 2];
                printf("| %u x %u | %u | %s | %.1f | %.2f |\n", chain[i].n,
                       chain[i].k, rows[j], forms[f].name, median,
                       (double) bytes / median * 1e-6);
            }
            fflush(stdout);
        }
    }
}

int
main(int argc, char **argv)
{
    bool packed = argc > 2 && strcmp(argv[2], "packed") == 0;
    bool each = argc > 2 && strcmp(argv[2], "each") == 0;
    bool trial = argc == 4 && strcmp(argv[3], "trial") == 0;

    if (argc < 2 || argc > 4 || (argc > 2 && !packed && !each)
        || (argc == 4 && !trial)) {
        fprintf(stderr, "usage: bench_matmul LIBRARY [packed|each [trial]]\n");
        return 2;
    }
    load(argv[1]);
    device.trial = trial;
    if (argc > 2) {
        (packed ? bench_packed : bench_each)();
        return 0;
    }
    printf("\n## Matrix products, BF16\n\n| model | product | n x k | rows | "
           "suggested us | fastest us | weights TB/s | TFLOP/s |\n"
           "|---|---|---|---|---|---|---|---|\n");
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        bench(&shapes[i]);
    }
    return 0;
}
