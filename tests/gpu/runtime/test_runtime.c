/*
 * The library that the engine loads (kernels/cuda/device.h), through its table:
 * order of streams, events, graphs, errors, and matrix products against sums in
 * double precision.
 *
 *   test_runtime [LIBRARY [ROUNDS [calm]]]     calm: provoke no errors
 *
 * Without arguments: libtokenring_soft.so beside the program, which holds the
 * software device and this program to each other where there is no GPU. Reports
 * in TAP; the last line sums up.
 */
#include "kernels/cuda/device.h"

#include <dlfcn.h>
#include <libgen.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static const tr_device_t *cuda;
static tr_device_props_t device;
static tr_cuda_stream_t stream;
static char library[PATH_MAX];
static uint64_t seed;
static unsigned rounds = 12, products;

static uint32_t
below(uint32_t n)
{
    uint64_t z = seed += 0x9e3779b97f4a7c15u;

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (uint32_t) ((z ^ (z >> 31)) >> 32) % n;
}

/* false: says where. */
#define HOLDS(condition)                                                 \
    do {                                                                 \
        if (!(condition)) {                                              \
            printf("# %s:%d: %s (%s)\n", __FILE__, __LINE__, #condition, \
                   cuda != NULL ? cuda->reason() : "");                  \
            return false;                                                \
        }                                                                \
    } while (0)

static bool
load(void)
{
    const tr_device_t *(*table)(void);
    char self[PATH_MAX] = "";
    void *lib;

    if (library[0] == '\0') {
        HOLDS(readlink("/proc/self/exe", self, sizeof(self) - 1) > 0);
        snprintf(library, sizeof(library), "%.4000s/libtokenring_soft.so",
                 dirname(self));
    }
    lib = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    if (lib == NULL) {
        printf("# %s\n", dlerror());
        return false;
    }
    *(void **) &table = dlsym(lib, TR_DEVICE_SYMBOL);
    HOLDS(table != NULL);
    cuda = table();
    HOLDS(cuda->version == TR_DEVICE_VERSION && cuda->size == sizeof(*cuda));
    HOLDS(cuda->open(0, &device) == 0);
    HOLDS(cuda->stream_open(&device, &stream) == 0);
    return true;
}

static bool
says(void)
{
    tr_cuda_device_info_t info;

    HOLDS(cuda->device_info(0, &info) == 0);
    printf("# %s, compute capability %u.%u, %.1f of %.1f GB free, driver %u, "
           "runtime %u\n",
           info.name, info.major, info.minor, (double) info.free_memory * 1e-9,
           (double) info.memory * 1e-9, info.driver, info.runtime);
    HOLDS(info.memory > 0 && info.free_memory <= info.memory);
    HOLDS(cuda->device_info(99, &info) == TR_CUDA_FAILED);
    HOLDS(strstr(cuda->reason(), "no GPU 99") != NULL);
    HOLDS(cuda->device_info(-1, &info) == TR_CUDA_FAILED);
    return true;
}

/* ---- streams, events, graphs -------------------------------------------- */

#define STEPS 300

static bool
runs_in_order(void)
{
    uint8_t *p = cuda->alloc(64), *out = cuda->pin(64 * STEPS);

    HOLDS(p != NULL && out != NULL && (uintptr_t) p % 256 == 0);
    for (int i = 0; i < STEPS; i++) {
        HOLDS(cuda->fill(&stream, p, i & 0xff, 64) == 0);
        HOLDS(cuda->copy(&stream, out + 64 * i, p, 64) == 0);
    }
    HOLDS(cuda->stream_wait(&stream) == 0);
    for (int i = 0; i < 64 * STEPS; i++) {
        HOLDS(out[i] == (i / 64 & 0xff));
    }
    cuda->release(p);
    cuda->unpin(out);
    return true;
}

static bool
events_tell_when(void)
{
    uint32_t *p = cuda->alloc(4), *out = cuda->pin(4 * STEPS);
    void *event, *first;
    double us = -1;

    HOLDS(p != NULL && out != NULL);
    HOLDS(cuda->event_open(&event) == 0 && cuda->event_open(&first) == 0);
    HOLDS(cuda->event_passed(event) == 1); /* never recorded */
    HOLDS(cuda->event_record(&stream, first) == 0);
    for (uint32_t i = 0; i < STEPS; i++) {
        out[i] = ~0u;
        HOLDS(cuda->fill(&stream, p, (int) (i % 251), 4) == 0);
        HOLDS(cuda->copy(&stream, out + i, p, 4) == 0);
        HOLDS(cuda->event_record(&stream, event) == 0);
        HOLDS(cuda->event_passed(event) >= 0);
        HOLDS(cuda->event_wait(event) == 0);
        HOLDS(cuda->event_passed(event) == 1);
        HOLDS(out[i] == i % 251 * 0x01010101u);
    }
    HOLDS(cuda->event_time(first, event, &us) == 0 && us > 0);
    cuda->event_close(event);
    cuda->event_close(first);
    cuda->release(p);
    cuda->unpin(out);
    return true;
}

static bool
streams_follow(void)
{
    uint8_t *p = cuda->alloc(1), *out = cuda->pin(STEPS);
    tr_cuda_stream_t other;
    void *there, *back;

    HOLDS(cuda->stream_open(&device, &other) == 0);
    HOLDS(cuda->event_open(&there) == 0 && cuda->event_open(&back) == 0);
    for (int i = 0; i < STEPS; i++) {
        HOLDS(cuda->fill(&stream, p, i & 0xff, 1) == 0);
        HOLDS(cuda->event_record(&stream, there) == 0);
        HOLDS(cuda->event_follow(&other, there) == 0);
        HOLDS(cuda->copy(&other, out + i, p, 1) == 0);
        HOLDS(cuda->event_record(&other, back) == 0);
        HOLDS(cuda->event_follow(&stream, back) == 0);
    }
    HOLDS(cuda->stream_wait(&other) == 0 && cuda->stream_wait(&stream) == 0);
    for (int i = 0; i < STEPS; i++) {
        HOLDS(out[i] == (i & 0xff));
    }
    cuda->event_close(there);
    cuda->event_close(back);
    cuda->stream_close(&other);
    cuda->release(p);
    cuda->unpin(out);
    return true;
}

#define COPIED 70000u /* bytes: several blocks' */

/* Small copies by a kernel, both ways, of any number of words; what is beside
 * stays. */
static bool
small_copies(void)
{
    uint8_t *p = cuda->alloc(COPIED), *in = cuda->pin(COPIED);
    uint8_t *out = cuda->pin(COPIED);

    HOLDS(p != NULL && in != NULL && out != NULL);
    HOLDS(cuda->fetch(&stream, p, in, 6) == TR_KERNEL_BADARG);
    HOLDS(cuda->fetch(&stream, p + 4, in, 8) == TR_KERNEL_BADARG);
    HOLDS(cuda->send(&stream, out, p + 8, 8) == TR_KERNEL_BADARG);
    HOLDS(cuda->send(&stream, out + 4, p, 8) == TR_KERNEL_BADARG);
    HOLDS(cuda->fetch(&stream, p, in, 0) == 0);
    for (uint32_t i = 0; i < STEPS / 3; i++) {
        uint32_t n = (uint32_t) rand() % (COPIED / 4) * 4;

        n = i % 3 == 0 ? n % 64 : n;
        for (uint32_t k = 0; k < COPIED; k++) {
            in[k] = (uint8_t) rand();
        }
        memset(out, 0x5a, COPIED);
        HOLDS(cuda->fill(&stream, p, 0xa5, COPIED) == 0);
        HOLDS(cuda->fetch(&stream, p, in, n) == 0);
        HOLDS(cuda->send(&stream, out, p, COPIED - 32) == 0);
        HOLDS(cuda->stream_wait(&stream) == 0);
        for (uint32_t k = 0; k < COPIED; k++) {
            HOLDS(out[k]
                  == (k < n && k < COPIED - 32 ? in[k]
                      : k < COPIED - 32        ? 0xa5
                                               : 0x5a));
        }
    }
    cuda->release(p);
    cuda->unpin(in);
    cuda->unpin(out);
    return true;
}

/* A stream that leaves a graph's and comes back: each sees what was before, and
 * the one that waits what the other did. */
static bool
graphs_branch(void)
{
    uint8_t *p = cuda->alloc(32), *out = cuda->pin(4), *in = cuda->pin(4);
    tr_cuda_stream_t other;
    void *event, *graph;

    HOLDS(p != NULL && out != NULL && in != NULL
          && cuda->event_open(&event) == 0
          && cuda->stream_open(&device, &other) == 0);
    HOLDS(cuda->graph_begin(&stream) == 0);
    HOLDS(cuda->fill(&stream, p, 7, 4) == 0);
    HOLDS(cuda->event_record(&stream, event) == 0);
    HOLDS(cuda->event_follow(&other, event) == 0);
    HOLDS(cuda->fill(&stream, p + 1, 8, 1) == 0);
    /* kernels that may begin early, behind the leave and the return */
    HOLDS(cuda->fetch(&other, p + 16, in, 4) == 0);
    HOLDS(cuda->copy(&other, p + 2, p, 1) == 0);
    HOLDS(cuda->fetch(&other, p + 16, in, 4) == 0);
    HOLDS(cuda->event_record(&other, event) == 0);
    HOLDS(cuda->event_follow(&stream, event) == 0);
    HOLDS(cuda->send(&stream, out, p + 16, 4) == 0);
    HOLDS(cuda->copy(&stream, p + 3, p + 2, 1) == 0);
    HOLDS(cuda->graph_end(&stream, &graph) == 0);
    for (int i = 0; i < STEPS; i++) {
        memset(in, i & 0xff, 4);
        HOLDS(cuda->fill(&stream, p, 0, 32) == 0);
        HOLDS(cuda->graph_launch(&stream, graph) == 0);
        HOLDS(cuda->stream_wait(&stream) == 0);
        HOLDS(memcmp(out, in, 4) == 0);
        HOLDS(cuda->copy(&stream, out, p, 4) == 0);
        HOLDS(cuda->stream_wait(&stream) == 0);
        HOLDS(memcmp(out, "\7\10\7\7", 4) == 0);
    }
    cuda->graph_close(graph);
    cuda->event_close(event);
    cuda->stream_close(&other);
    cuda->release(p);
    cuda->unpin(in);
    cuda->unpin(out);
    return true;
}

/* What a graph reads when it runs is what is there then. */
static bool
graphs_repeat(void)
{
    uint8_t *p = cuda->alloc(6), *out = cuda->pin(3), *in = cuda->pin(1);
    void *graph;

    *in = 0;
    HOLDS(cuda->fill(&stream, p, 7, 3) == 0);
    HOLDS(cuda->stream_wait(&stream) == 0);
    HOLDS(cuda->graph_begin(&stream) == 0);
    HOLDS(cuda->copy(&stream, p + 3, p, 3) == 0);
    HOLDS(cuda->copy(&stream, p + 1, p + 3, 2) == 0);
    HOLDS(cuda->copy(&stream, p, in, 1) == 0);
    HOLDS(cuda->graph_end(&stream, &graph) == 0);
    HOLDS(cuda->copy(&stream, out, p, 3) == 0);
    HOLDS(cuda->stream_wait(&stream) == 0);
    HOLDS(memcmp(out, "\7\7\7", 3) == 0); /* capturing ran nothing */
    for (uint8_t i = 1; i <= 3; i++) {
        *in = i;
        HOLDS(cuda->graph_launch(&stream, graph) == 0);
        HOLDS(cuda->stream_wait(&stream) == 0);
    }
    HOLDS(cuda->copy(&stream, out, p, 3) == 0);
    HOLDS(cuda->stream_wait(&stream) == 0);
    HOLDS(memcmp(out, "\3\2\1", 3) == 0);
    cuda->graph_close(graph);
    cuda->release(p);
    cuda->unpin(out);
    cuda->unpin(in);
    return true;
}

/* ---- errors ------------------------------------------------------------- */

static bool
runs_out_of_memory(void)
{
    void *p = cuda->alloc((size_t) 1 << 50);

    HOLDS(p == NULL && strstr(cuda->reason(), "memory") != NULL);
    HOLDS(cuda->alive());
    p = cuda->alloc(1000);
    HOLDS(p != NULL && cuda->fill(&stream, p, 0, 1000) == 0);
    HOLDS(cuda->stream_wait(&stream) == 0); /* nothing is left of the error */
    cuda->release(p);
    return true;
}

/* In a process of its own: a kernel reads where there is nothing (the software
 * device is asked to fail).  Whoever waits hears of it, and so do all calls
 * after that. */
static bool
dies_of_a_fault(void)
{
    void *event, *to = cuda->alloc(4096);
    int rc;

    HOLDS(to != NULL && cuda->event_open(&event) == 0);
    rc = cuda->convert(&stream, (const void *) 0x1000, TR_F32, to, TR_BF16, 64);
    HOLDS(rc == 0);
    cuda->event_record(&stream, event);
    HOLDS(cuda->event_wait(event) == TR_CUDA_FAILED);
    HOLDS(strstr(cuda->reason(), "illegal memory access") != NULL);
    HOLDS(!cuda->alive());
    HOLDS(cuda->fill(&stream, to, 0, 1) == TR_CUDA_FAILED
          || cuda->stream_wait(&stream) == TR_CUDA_FAILED);
    HOLDS(cuda->alloc(1) == NULL);
    cuda->event_close(event);
    return true;
}

static bool
hears_of_faults(const char *self)
{
    pid_t pid = fork();
    int status = -1;

    if (pid == 0) {
        setenv("TOKENRING_SOFT_FAIL", "kernel:1", 1);
        execl("/proc/self/exe", self, library, "fault", (char *) NULL);
        _exit(127);
    }
    waitpid(pid, &status, 0);
    HOLDS(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    return true;
}

/* ---- products ----------------------------------------------------------- */

#define ROWS_MAX 1024u
#define N_MAX 1536u
#define K_MAX 1024u

typedef struct {
    tr_cuda_matmul_t *m;
    uint16_t *w, *x;    /* pinned */
    uint8_t *y, *again; /* pinned, whatever the type */
    void *device_w, *device_x, *device_y;
} fixture_t;

static size_t
y_bytes(const tr_cuda_product_t *p)
{
    return (size_t) p->rows * p->ldy * tr_dtype_size(p->out);
}

/* Runs the product, by the stream or by a graph, and fetches y. */
static bool
run_product(const fixture_t *b, const tr_cuda_product_t *p, bool graphed,
            uint8_t *y)
{
    void *graph = NULL;

    HOLDS(cuda->fill(&stream, p->y, 0xff, y_bytes(p)) == 0);
    HOLDS(cuda->stream_wait(&stream) == 0);
    if (graphed) {
        HOLDS(cuda->graph_begin(&stream) == 0);
        HOLDS(cuda->matmul(&stream, b->m, p) == 0);
        HOLDS(cuda->graph_end(&stream, &graph) == 0);
        HOLDS(cuda->graph_launch(&stream, graph) == 0);
    } else {
        HOLDS(cuda->matmul(&stream, b->m, p) == 0);
    }
    HOLDS(cuda->copy(&stream, y, p->y, y_bytes(p)) == 0);
    HOLDS(cuda->stream_wait(&stream) == 0);
    cuda->graph_close(graph);
    return true;
}

/* Element (r, c) against its sum; errors relative to the sum of products'
 * magnitudes, and to the result for what rounds it. */
static bool
near_sum(const fixture_t *b, const tr_cuda_product_t *p, uint32_t r, uint32_t c)
{
    double sum = 0, size = 0, got, err, most;

    for (uint32_t i = 0; i < p->k; i++) {
        double a = (double) tr_float_load(b->x, r * p->ldx + i, p->type);
        double w = (double) tr_float_load(b->w, (size_t) c * p->k + i, p->type);

        sum += a * w;
        size += fabs(a * w);
    }
    got = (double) tr_float_load(b->y, r * p->ldy + c, p->out);
    most = size * 0x1p-17
           + fabs(sum)
                 * (p->out == TR_F32    ? 0
                    : p->out == TR_BF16 ? 0x1p-8
                                        : 0x1p-10)
           + 1e-7;
    err = fabs(got - sum);
    if (!(err <= most)) {
        printf("# %u x %u x %u, row %u, column %u: %g, expected %g +- %g\n",
               p->rows, p->n, p->k, r, c, got, sum, most);
        return false;
    }
    return true;
}

/* Columns of y beyond n are not touched. */
static bool
margin_kept(const fixture_t *b, const tr_cuda_product_t *p)
{
    size_t width = tr_dtype_size(p->out);

    for (uint32_t r = 0; r < p->rows; r++) {
        for (size_t i = p->n * width; i < p->ldy * width; i++) {
            HOLDS(b->y[r * p->ldy * width + i] == 0xff);
        }
    }
    return true;
}

static void
numbers(uint16_t *out, size_t n, tr_dtype_t type)
{
    for (size_t i = 0; i < n; i++) {
        tr_float_store(out, i, type, ((float) below(4001) - 2000) * 0x1p-11f);
    }
}

/* Fresh operands; rows that only pad the class are NaN. */
static bool
operands(const fixture_t *b, const tr_cuda_product_t *p)
{
    uint32_t room = tr_cuda_matmul_rows(ROWS_MAX);

    memset(b->x, 0xff, room * p->ldx * 2);
    numbers(b->x, p->rows * p->ldx, p->type);
    numbers(b->w, (size_t) p->n * p->k, p->type);
    HOLDS(cuda->copy(&stream, b->device_x, b->x, room * p->ldx * 2) == 0);
    HOLDS(cuda->copy(&stream, b->device_w, b->w, (size_t) p->n * p->k * 2)
          == 0);
    HOLDS(cuda->stream_wait(&stream) == 0);
    return true;
}

static bool
product_holds(const fixture_t *b, const tr_cuda_product_t *p)
{
    HOLDS(operands(b, p));
    HOLDS(run_product(b, p, false, b->y));
    for (uint32_t i = 0; i < 4000; i++) {
        HOLDS(near_sum(b, p, below(p->rows), below(p->n)));
    }
    HOLDS(margin_kept(b, p));
    for (int i = 0; i < 3; i++) { /* the same bits, by a graph, too */
        HOLDS(run_product(b, p, i == 2, b->again));
        HOLDS(memcmp(b->y, b->again, y_bytes(p)) == 0);
    }
    products++;
    return true;
}

/* A shape, chosen with operands of the most rows, then some numbers of rows. */
static bool
shape_holds(const fixture_t *b)
{
    static const uint32_t counts[] = { 1, 8, 9, 16, 17, 64, 65, 512, 513 };
    tr_dtype_t type = below(2) ? TR_F16 : TR_BF16;
    tr_cuda_product_t p = { .rows = ROWS_MAX,
                            .n = 8 * (1 + below(N_MAX / 8)),
                            .k = 8 * (1 + below(K_MAX / 8)),
                            .type = type,
                            .out = below(2) ? TR_F32 : type,
                            .x = b->device_x,
                            .w = b->device_w,
                            .y = b->device_y };
    const void *weights[] = { p.w, p.w };

    p.ldx = p.k + 8 * below(3);
    p.ldy = p.n + 8 * below(3);
    HOLDS(cuda->matmul(&stream, b->m, &p) == TR_KERNEL_BADARG);
    HOLDS(operands(b, &p));
    HOLDS(cuda->matmul_choose(b->m, &stream, &p, weights, below(3)) == 0);
    for (int i = 0; i < 3; i++) {
        p.rows = below(3) ? counts[below(9)] : 1 + below(ROWS_MAX);
        HOLDS(product_holds(b, &p));
    }
    p.rows = ROWS_MAX + 1;
    HOLDS(cuda->matmul(&stream, b->m, &p) == TR_KERNEL_BADARG);
    p.rows = 1;
    p.x = (const uint8_t *) b->device_x + 2;
    HOLDS(cuda->matmul(&stream, b->m, &p) == TR_KERNEL_BADARG);
    return true;
}

static bool
products_hold(void)
{
    size_t rows = tr_cuda_matmul_rows(ROWS_MAX);
    size_t x = rows * (K_MAX + 16) * 2, w = (size_t) N_MAX * K_MAX * 2;
    size_t y = rows * (N_MAX + 16) * 4;
    fixture_t b = { .w = cuda->pin(w),
                    .x = cuda->pin(x),
                    .y = cuda->pin(y),
                    .again = cuda->pin(y),
                    .device_w = cuda->alloc(w),
                    .device_x = cuda->alloc(x),
                    .device_y = cuda->alloc(y) };

    HOLDS(b.w && b.x && b.y && b.again);
    HOLDS(b.device_w && b.device_x && b.device_y);
    HOLDS(cuda->matmul_open(&device, ROWS_MAX, &b.m) == 0);
    for (unsigned i = 0; i < rounds; i++) {
        HOLDS(shape_holds(&b));
    }
    cuda->matmul_close(b.m);
    cuda->unpin(b.w);
    cuda->unpin(b.x);
    cuda->unpin(b.y);
    cuda->unpin(b.again);
    cuda->release(b.device_w);
    cuda->release(b.device_x);
    cuda->release(b.device_y);
    return true;
}

/* ---- main --------------------------------------------------------------- */

int
main(int argc, char **argv)
{
    unsigned n = 0, failed = 0;

    seed = (uint64_t) time(NULL);
    snprintf(library, sizeof(library), "%s", argc > 1 ? argv[1] : "");
    if (argc > 2 && strcmp(argv[2], "fault") == 0) {
        return load() && dies_of_a_fault() ? 0 : 1;
    }
    rounds = argc > 2 ? (unsigned) atoi(argv[2]) : rounds;
    /* memcheck takes errors that are asked for as errors */
    bool calm = argc > 3 && strcmp(argv[3], "calm") == 0;

    printf("# seed %llu\n", (unsigned long long) seed);
    fflush(stdout);
    if (!load()) {
        return 1;
    }
#define TRY(test)                                                   \
    do {                                                            \
        bool held = test;                                           \
        printf("%s %u - %s\n", held ? "ok" : "not ok", ++n, #test); \
        fflush(stdout);                                             \
        failed += !held;                                            \
    } while (0)
    TRY(says());
    TRY(runs_in_order());
    TRY(events_tell_when());
    TRY(streams_follow());
    TRY(small_copies());
    TRY(graphs_repeat());
    TRY(graphs_branch());
    if (!calm) {
        TRY(runs_out_of_memory());
        TRY(hears_of_faults(argv[0]));
    }
    TRY(products_hold());
    printf("1..%u\n# %u of %u held, %u products\n", n, n - failed, n, products);
    return failed > 0;
}
