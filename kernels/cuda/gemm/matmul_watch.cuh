/*
 * matmul_watch.cuh: measures products, to choose among cuBLASLt's algorithms
 * (matmul.cu).
 *
 * A product measured alone says little.  In a step a small kernel runs between
 * two products, which one algorithm overlaps and another does not.  So products
 * are measured as a step runs them: in a graph, each behind a norm that writes
 * its input, with the weights of several layers in turn, which no cache holds.
 */
#ifndef TR_CUDA_MATMUL_WATCH_CUH
#define TR_CUDA_MATMUL_WATCH_CUH

#include "kernels/cuda/device.h"
#include "kernels/cuda/runtime/runtime.cuh"

#include <math.h>
#include <stdlib.h>

#define WATCH_CHAIN 4u   /* products of a graph */
#define WATCH_ROWS 64u   /* that the norm writes at most */
#define WATCH_RUNS 5     /* of those that are still in a race */
#define WATCH_WORSE 1.15 /* than the best at first sight: out of it */

typedef struct {
    void *from, *to; /* events */
    float *hidden;   /* [WATCH_ROWS][k]; its first row is the norm's weight */
    const void *const *weights; /* borrowed */
    uint32_t n, turn;           /* of weights; the next */
} stopwatch_t;

/* What writes x. */
static int
watch_before(const stopwatch_t *c, const tr_cuda_stream_t *s,
             const tr_cuda_product_t *p)
{
    tr_cuda_norm_t a = {};

    a.rows = p->rows < WATCH_ROWS ? p->rows : WATCH_ROWS;
    a.n = p->k;
    a.hidden = c->hidden;
    a.ldh = p->k;
    a.scale = 1;
    a.weight = c->hidden;
    a.eps = 1e-5f;
    a.out = (void *) p->x;
    a.ldo = p->ldx;
    a.type = p->type;
    return tr_cuda_norm(s, &a);
}

static const void *
watch_weights(stopwatch_t *c)
{
    return c->weights[c->turn++ % c->n];
}

static void
watch_close(stopwatch_t *c)
{
    tr_cuda_event_close(c->from);
    tr_cuda_event_close(c->to);
    tr_cuda_release(c->hidden);
}

/* x gets random numbers in so many rows: zeros are multiplied faster. */
static int
watch_open(stopwatch_t *c, const tr_cuda_stream_t *s,
           const tr_cuda_product_t *p, uint32_t rows)
{
    size_t hidden = (size_t) WATCH_ROWS * p->k;
    int rc = tr_cuda_event_open(&c->from);

    rc = rc == TR_KERNEL_OK ? tr_cuda_event_open(&c->to) : rc;
    if (rc == TR_KERNEL_OK) {
        c->hidden = (float *) tr_cuda_alloc(hidden * 4);
        rc = c->hidden != NULL ? TR_KERNEL_OK : TR_CUDA_FAILED;
    }
    rc = rc == TR_KERNEL_OK
             ? tr_cuda_fill_random(s, c->hidden, hidden, TR_F32, 1, 0, 1)
             : rc;
    return rc == TR_KERNEL_OK ? tr_cuda_fill_random(s, (void *) p->x,
                                                    (rows - 1) * p->ldx + p->k,
                                                    p->type, 2, 0, 1)
                              : rc;
}

/* Microseconds of a graph; infinite: it does not run. */
static double
watch_graph(const stopwatch_t *c, const tr_cuda_stream_t *s, void *graph)
{
    double us = 0;

    if (tr_cuda_event_record(s, c->from) != TR_KERNEL_OK
        || tr_cuda_graph_launch(s, graph) != TR_KERNEL_OK
        || tr_cuda_event_record(s, c->to) != TR_KERNEL_OK
        || tr_cuda_event_wait(c->to) != TR_KERNEL_OK
        || tr_cuda_event_time(c->from, c->to, &us) != TR_KERNEL_OK) {
        cudaGetLastError();
        return INFINITY;
    }
    return us;
}

static int
watch_compare(const void *a, const void *b)
{
    double x = *(const double *) a, y = *(const double *) b;

    return (x > y) - (x < y);
}

/* A candidate, and what it took.  The first of these is known before the
 * race. */
typedef struct {
    void *graph;
    double us[WATCH_RUNS];
    bool in;
} runner_t;

/* The runner with the least median of those that were not far behind at first.
 * They take turns, so that what else changes on the device in that time meets
 * all of them. */
static int
watch_race(const stopwatch_t *c, const tr_cuda_stream_t *s, runner_t *r, int n)
{
    const int middle = WATCH_RUNS / 2;
    double first = INFINITY;
    int best = 0;

    for (int i = 0; i < n; i++) {
        first = fmin(first, r[i].us[0]);
    }
    for (int i = 0; i < n; i++) {
        r[i].in = r[i].us[0] <= first * WATCH_WORSE;
    }
    for (int run = 0; run < WATCH_RUNS; run++) {
        for (int i = 0; i < n; i++) {
            r[i].us[run] = r[i].in ? watch_graph(c, s, r[i].graph) : INFINITY;
        }
    }
    for (int i = 0; i < n; i++) {
        qsort(r[i].us, WATCH_RUNS, sizeof(r[i].us[0]), watch_compare);
        best = r[i].us[middle] < r[best].us[middle] ? i : best;
    }
    return best;
}

#endif
