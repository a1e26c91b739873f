/*
 * What `tokenring bench` says at the end (bench.h).
 */
#include "bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name;
    double p;
} points[] = {
    { "p50", 0.5 }, { "p90", 0.9 }, { "p95", 0.95 }, { "p99", 0.99 }
};

#define N_POINTS (sizeof(points) / sizeof(points[0]))

void
tr_times_add(tr_times_t *t, uint64_t us)
{
    if (t->n == t->cap) {
        size_t cap = t->cap != 0 ? t->cap * 2 : 1024;
        uint64_t *grown = realloc(t->data, cap * sizeof(*grown));

        if (grown == NULL) {
            fprintf(stderr, "tokenring bench: out of memory\n");
            exit(1);
        }
        t->data = grown;
        t->cap = cap;
    }
    t->data[t->n++] = us;
}

static int
compare(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *) a, y = *(const uint64_t *) b;

    return x < y ? -1 : x > y;
}

uint64_t
tr_times_percentile(tr_times_t *t, double p)
{
    size_t rank;

    if (t->n == 0) {
        return 0;
    }
    qsort(t->data, t->n, sizeof(*t->data), compare);
    rank = (size_t) (p * (double) t->n);
    if ((double) rank < p * (double) t->n) {
        rank++;
    }
    return t->data[rank > 0 ? rank - 1 : 0];
}

static double
mean_ms(const tr_times_t *t)
{
    double sum = 0;
    size_t i;

    for (i = 0; i < t->n; i++) {
        sum += (double) t->data[i];
    }
    return t->n != 0 ? sum / (double) t->n / 1e3 : 0;
}

void
tr_bench_error(tr_bench_result_t *r, const char *kind, const char *message)
{
    unsigned i;

    r->bad++;
    for (i = 0; i < r->n_errors; i++) {
        if (strcmp(r->errors[i].kind, kind) == 0) {
            r->errors[i].n++;
            return;
        }
    }
    if (r->n_errors == TR_BENCH_KINDS) {
        r->errors[TR_BENCH_KINDS - 1].n++; /* the last kind takes the rest */
        return;
    }
    snprintf(r->errors[i].kind, sizeof(r->errors[i].kind), "%s",
             r->n_errors == TR_BENCH_KINDS - 1 ? "others" : kind);
    snprintf(r->errors[i].example, sizeof(r->errors[i].example), "%s", message);
    r->errors[i].n = 1;
    r->n_errors++;
}

static double
kv_ratio(const tr_bench_result_t *r)
{
    return r->kv_full_bytes != 0
               ? (double) r->kv_bytes / (double) r->kv_full_bytes
               : 0;
}

static void
print_times(const char *name, tr_times_t *t)
{
    size_t i;

    printf("%-22s %10.2f", name, mean_ms(t));
    for (i = 0; i < N_POINTS; i++) {
        printf(" %10.2f", (double) tr_times_percentile(t, points[i].p) / 1e3);
    }
    printf("\n");
}

/* Tokens a second, 0: it was not reached. */
static double
steady_rate(const tr_steady_t *s)
{
    return s->end_us > s->begin_us
               ? (double) (s->end_tokens - s->begin_tokens) * 1e6
                     / (double) (s->end_us - s->begin_us)
               : 0;
}

static void
print_steady(const tr_bench_result_t *r)
{
    const tr_steady_t *s = &r->steady;

    if (s->end_us == 0) {
        printf("steady                 not reached\n");
        return;
    }
    printf("steady                 %.1f output tokens/s, %u streams, over "
           "%.1f s, after %.1f s\n",
           steady_rate(s), s->streams, (double) (s->end_us - s->begin_us) / 1e6,
           (double) (s->begin_us - r->begin_us) / 1e6);
}

void
tr_bench_print(tr_bench_result_t *r)
{
    double s = r->seconds > 0 ? r->seconds : 1;
    unsigned i;

    printf("requests               %llu good, %llu bad, in %.2f s\n",
           (unsigned long long) r->good, (unsigned long long) r->bad,
           r->seconds);
    printf("throughput             %.2f requests/s, %.1f output tokens/s, "
           "%.1f prompt tokens/s\n",
           (double) r->good / s, (double) r->output_tokens / s,
           (double) r->prompt_tokens / s);
    if (r->steady.seconds > 0) {
        print_steady(r);
    }
    printf("%-22s %10s %10s %10s %10s %10s\n", "milliseconds", "mean", "p50",
           "p90", "p95", "p99");
    print_times("time to first token", &r->ttft);
    print_times("time per output token", &r->tpot);
    print_times("inter-token latency", &r->inter_token);
    print_times("end to end", &r->e2e);
    if (r->kv_known != 0) {
        printf("KV cache of an answer  %.2f MiB at its end, %.3f of 16 bits\n",
               (double) r->kv_bytes / (double) r->kv_known / 1048576,
               kv_ratio(r));
    }
    for (i = 0; i < r->n_errors; i++) {
        printf("error %-16s %llu, as: %s\n", r->errors[i].kind,
               (unsigned long long) r->errors[i].n, r->errors[i].example);
    }
}

static json_t *
times_json(tr_times_t *t)
{
    json_t *o = json_object();
    size_t i;

    json_object_set_new(o, "n", json_integer((json_int_t) t->n));
    json_object_set_new(o, "mean", json_real(mean_ms(t)));
    for (i = 0; i < N_POINTS; i++) {
        json_object_set_new(
            o, points[i].name,
            json_real((double) tr_times_percentile(t, points[i].p) / 1e3));
    }
    json_object_set_new(o, "max",
                        json_real((double) tr_times_percentile(t, 1) / 1e3));
    return o;
}

static json_t *
steady_json(const tr_bench_result_t *r)
{
    const tr_steady_t *s = &r->steady;
    bool reached = s->end_us != 0;

    return json_pack("{s:b, s:f, s:I, s:f, s:f}", "reached", reached,
                     "output_tokens_per_s", steady_rate(s), "streams",
                     (json_int_t) s->streams, "seconds",
                     reached ? (double) (s->end_us - s->begin_us) / 1e6 : 0,
                     "after_s",
                     reached ? (double) (s->begin_us - r->begin_us) / 1e6 : 0);
}

void
tr_bench_json(tr_bench_result_t *r, json_t *root)
{
    json_t *errors = json_object();
    double s = r->seconds > 0 ? r->seconds : 1;
    unsigned i;

    for (i = 0; i < r->n_errors; i++) {
        json_object_set_new(errors, r->errors[i].kind,
                            json_pack("{s:I, s:s}", "n",
                                      (json_int_t) r->errors[i].n, "example",
                                      r->errors[i].example));
    }
    json_object_update_new(
        root,
        json_pack("{s:I, s:I, s:f, s:I, s:I, s:f, s:f, s:f}", "good",
                  (json_int_t) r->good, "bad", (json_int_t) r->bad, "seconds",
                  r->seconds, "prompt_tokens", (json_int_t) r->prompt_tokens,
                  "output_tokens", (json_int_t) r->output_tokens,
                  "requests_per_s", (double) r->good / s, "output_tokens_per_s",
                  (double) r->output_tokens / s, "prompt_tokens_per_s",
                  (double) r->prompt_tokens / s));
    json_object_set_new(root, "ttft_ms", times_json(&r->ttft));
    json_object_set_new(root, "tpot_ms", times_json(&r->tpot));
    json_object_set_new(root, "inter_token_ms", times_json(&r->inter_token));
    json_object_set_new(root, "e2e_ms", times_json(&r->e2e));
    json_object_set_new(root, "kv_cache",
                        r->kv_known == 0
                            ? json_null()
                            : json_pack("{s:I, s:I, s:I, s:f}", "requests",
                                        (json_int_t) r->kv_known, "bytes",
                                        (json_int_t) r->kv_bytes, "fp16_bytes",
                                        (json_int_t) r->kv_full_bytes, "ratio",
                                        kv_ratio(r)));
    json_object_set_new(root, "errors", errors);
    if (r->steady.seconds > 0) {
        json_object_set_new(root, "steady", steady_json(r));
    }
}

void
tr_bench_free(tr_bench_result_t *r)
{
    free(r->ttft.data);
    free(r->tpot.data);
    free(r->inter_token.data);
    free(r->e2e.data);
}
