/*
 * What the benchmarks in C share: a clock, a median, an error that ends the
 * program with its name.
 */
#ifndef TR_BENCH_H
#define TR_BENCH_H

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <tokenring/error.h>

/* Seconds of the monotonic clock. */
static inline double
now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double) t.tv_sec + (double) t.tv_nsec * 1e-9;
}

static inline int
by_value(const void *a, const void *b)
{
    double x = *(const double *) a, y = *(const double *) b;

    return x < y ? -1 : x > y;
}

/* Of n values, which are sorted by it. */
static inline double
median(double *x, size_t n)
{
    qsort(x, n, sizeof(*x), by_value);
    return n % 2 ? x[n / 2] : (x[n / 2 - 1] + x[n / 2]) / 2;
}

/* err may be NULL. */
static inline void
must(tr_status_t rc, const tr_error_t *err, const char *what)
{
    if (rc != TR_OK) {
        fprintf(stderr, "%s: %s: %s\n", program_invocation_short_name, what,
                err ? err->text : tr_status_info(rc).name);
        exit(1);
    }
}

#endif
