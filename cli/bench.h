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

/* The steady state of a closed loop begins when the number of streams that have
 * had their first token has not grown for a while. */
typedef struct {
    double seconds; /* to measure for, 0: not at all */
    uint32_t streams;
    uint64_t grown_us;               /* when their number grew last */
    uint64_t begin_us, begin_tokens; /* of the measurement, 0: not yet */
    uint64_t end_us, end_tokens;     /* 0: not yet */
} tr_steady_t;

/* Tells it how many streams there are, and tokens since the run began.  True:
 * it was measured for long enough. */
bool tr_steady_tell(tr_steady_t *s, uint64_t now_us, uint32_t streams,
                    uint64_t tokens);

/* How much of its answer the i-th of a full engine's requests has: 0 to 1, evenly
 * spread, in no order. */
double tr_stagger(uint64_t i);

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
    uint64_t kv_known; /* of them, those whose KV cache is known */
    uint64_t kv_bytes, kv_full_bytes; /* at their ends; at 16 bits */
    double seconds;                   /* first request sent to last one ended */
    uint64_t begin_us;                /* the first of these */
    tr_steady_t steady;
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
