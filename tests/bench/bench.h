/*
 * What the benchmarks in C share: a clock, a median, an error that ends the
 * program with its name.
 */
#ifndef TR_BENCH_H
#define TR_BENCH_H

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <tokenring/error.h>

/* A pair of the command line: text or number is where the value goes. */
typedef struct {
    const char *name; /* "--model" */
    const char **text;
    int *number; /* min or more, at most max */
    int min, max;
} bench_option_t;

/* Reads pairs to the end; ends the program where one is not among the n. */
static inline void
bench_options(int argc, char **argv, const bench_option_t *options, size_t n)
{
    int i;

    for (i = 1; i + 1 < argc; i += 2) {
        const bench_option_t *o = options;

        while (o < options + n && strcmp(argv[i], o->name) != 0) {
            o++;
        }
        if (o == options + n) {
            break;
        }
        if (o->text != NULL) {
            *o->text = argv[i + 1];
            continue;
        }
        *o->number = atoi(argv[i + 1]);
        if (*o->number < o->min || *o->number > o->max) {
            break;
        }
    }
    if (i == argc) {
        return;
    }
    fprintf(stderr, "usage: %s", program_invocation_short_name);
    for (const bench_option_t *o = options; o < options + n; o++) {
        if (o->text != NULL) {
            fprintf(stderr, " [%s ..]", o->name);
        } else if (o->max == INT_MAX) {
            fprintf(stderr, " [%s N]", o->name);
        } else {
            fprintf(stderr, " [%s %d..%d]", o->name, o->min, o->max);
        }
    }
    fprintf(stderr, "\n");
    exit(2);
}

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
