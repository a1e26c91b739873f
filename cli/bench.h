/*
 * Parts of `tokenring bench`: what is asked when (plan), and what came of it
 * (report).  cmd_bench.c drives them.
 */
#ifndef TR_BENCH_H
#define TR_BENCH_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- plan: bench_plan.c ------------------------------------------------- */

/* splitmix64: the same seed gives the same run. */
typedef struct {
    uint64_t state;
} tr_rng_t;

uint64_t tr_rng_next(tr_rng_t *r);
double tr_rng_uniform(tr_rng_t *r);     /* (0, 1] */
double tr_rng_normal(tr_rng_t *r);      /* mean 0, deviation 1 */
double tr_rng_exponential(tr_rng_t *r); /* mean 1 */

/* A length in tokens: "128", "64:256" (uniform, both ends included),
 * "normal:256:64" (mean and deviation, never below 1). */
typedef struct {
    enum { TR_LENGTH_FIXED, TR_LENGTH_UNIFORM, TR_LENGTH_NORMAL } kind;
    double a, b;
} tr_length_t;

/* false: not a length. */
bool tr_length_parse(const char *text, tr_length_t *out);
uint32_t tr_length_draw(const tr_length_t *l, tr_rng_t *r);

/* ---- report: bench_report.c --------------------------------------------- */

/* Growing list of microseconds. */
typedef struct {
    uint64_t *data;
    size_t n, cap;
} tr_times_t;

void tr_times_add(tr_times_t *t, uint64_t us);
/* Nearest rank, p in [0, 1]; sorts. 0 when empty. */
uint64_t tr_times_percentile(tr_times_t *t, double p);

#define TR_BENCH_KINDS 16

typedef struct {
    uint64_t good, bad;
    uint64_t prompt_tokens, output_tokens; /* of good requests */
    double seconds; /* first request sent to last one ended */
    tr_times_t ttft, tpot, inter_token, e2e;
    struct {
        char kind[32];
        char example[200]; /* first message of this kind */
        uint64_t n;
    } errors[TR_BENCH_KINDS];
    unsigned n_errors;
} tr_bench_result_t;

void tr_bench_error(tr_bench_result_t *r, const char *kind,
                    const char *message);
void tr_bench_print(tr_bench_result_t *r);
/* Adds results to root. */
void tr_bench_json(tr_bench_result_t *r, json_t *root);
void tr_bench_free(tr_bench_result_t *r);

#endif
