/*
 * bench_engine: how fast the engine computes on the CPU, without transport.
 *
 *   bench_engine [--model DIR] [--threads N] [--rounds N] [--json FILE]
 *
 * Prints a table and, with --json, writes the figures.  Machines are noisy, so
 * everything is measured in rounds that take turns, and medians are reported:
 *
 *   prefill   a step of 512 prompt tokens; share of the matrix products, taken
 *             by a clock around every matmul of the kernel table
 *   decode    tokens/s of 1 to 32 streams through the executor, sampling
 *             included
 *   pages     what the KV page pool costs beside a decode step of 16 streams,
 *             with 10,000 pages of which most are in use
 *   memory    resident bytes beyond the weights and the resident pool
 */
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "engine/config/config.h"
#include "engine/executor/executor.h"
#include "engine/kv/kv_cache.h"
#include "engine/config/log.h"
#include "engine/model/cpu/model.h"
#include "kernels/thread_pool.h"
#include "kernels/kernels.h"
#include "bench.h"

#define ROUNDS_MAX 101
#define STREAMS_MAX 32
#define PROMPT 64u
#define STEPS 48u
#define PAGES 10000u

static const uint32_t stream_counts[] = { 1, 2, 4, 8, 16, 32 };
#define N_COUNTS (sizeof(stream_counts) / sizeof(stream_counts[0]))

/* ---- prefill: the kernel table with a clock around matmul ---- */

static const tr_kernels_t *real_kernels;
static double matmul_seconds;

static int
timed_matmul(const tr_stream_t *s, const tr_cpu_matrix_t *m, const float *x,
             size_t ldx, uint32_t rows, float *y, size_t ldy, int add)
{
    double t = now();
    int rc = real_kernels->matmul(s, m, x, ldx, rows, y, ldy, add);

    matmul_seconds += now() - t;
    return rc;
}

typedef struct {
    uint32_t rows;
    double step_ms, tokens_s, share;
} prefill_t;

static prefill_t
bench_prefill(const char *dir, int threads, uint32_t n, int rounds)
{
    static tr_kernels_t timed;
    static uint32_t pos[512], seq_row[2] = { 0, 0 };
    static int32_t tokens[512], slot[1];
    double step[ROUNDS_MAX], share[ROUNDS_MAX];
    tr_model_options_t o = { .dir = dir,
                             .load_format = "auto",
                             .kernels = &timed,
                             .threads = threads,
                             .max_rows = n,
                             .max_seqs = 1 };
    tr_rows_t rows = { n, 1, pos, slot, seq_row };
    tr_kv_policy_t *full;
    tr_kv_config_t kc = { .slots = 1,
                          .max_len = n,
                          .memory = 64u << 20,
                          .policies = (const tr_kv_policy_t *const *) &full,
                          .n_policies = 1 };
    tr_kv_cache_t *kv;
    tr_kv_view_t view;
    tr_model_t *m;
    tr_error_t err;

    real_kernels = tr_kernels_cpu(NULL);
    timed = *real_kernels;
    timed.matmul = timed_matmul;
    must(tr_model_open(&o, &m, &err), &err, dir);
    kc.layers = m->config.recipe.layers;
    kc.kv_heads = m->config.recipe.kv_heads;
    kc.head_dim = m->config.recipe.head_dim;
    must(tr_kv_policy_create("full", kc.layers, kc.kv_heads, kc.head_dim, &full,
                             &err),
         &err, "kv");
    must(tr_kv_cache_create(&kc, &kv, &err), &err, "kv");
    slot[0] = tr_kv_open(kv, NULL);
    seq_row[1] = n;
    for (uint32_t i = 0; i < n; i++) {
        pos[i] = i;
        tokens[i] = (int32_t) (i * 7919 % m->config.recipe.vocab);
    }
    must(tr_kv_reserve(kv, slot[0], n), NULL, "kv");
    tr_kv_view(kv, &view);
    for (int r = -1; r < rounds; r++) { /* the first one warms up */
        double t = now();

        matmul_seconds = 0;
        must(tr_model_forward(m, &view, &rows, tokens), NULL, "step");
        must(tr_model_logits(m, &(uint32_t){ n - 1 }, 1), NULL, "logits");
        t = now() - t;
        if (r >= 0) {
            step[r] = t;
            share[r] = matmul_seconds / t;
        }
    }
    tr_kv_cache_free(kv);
    tr_kv_policy_free(full);
    tr_model_free(m);
    step[0] = median(step, rounds);
    return (prefill_t){ n, step[0] * 1e3, n / step[0], median(share, rounds) };
}

/* ---- decode, through the executor as the step loop does it ---- */

typedef struct {
    tr_executor_t *e;
    tr_sampling_params_t params;
    tr_sampler_t sampler;
    int32_t slot[STREAMS_MAX], token[STREAMS_MAX];
    tr_sampled_t out[STREAMS_MAX];
    uint32_t at[STREAMS_MAX];
    double kv_seconds; /* spent in the KV cache */
} streams_t;

static void
open_stream(streams_t *s, uint32_t i)
{
    static int32_t prompt[PROMPT];
    tr_batch_item_t item = { 0 };
    tr_batch_t batch = { &item, 1, PROMPT };

    for (uint32_t j = 0; j < PROMPT; j++) {
        prompt[j] = (int32_t) ((j * 131 + i * 17) % s->e->vocab);
    }
    s->slot[i] = tr_kv_open(s->e->kv, NULL);
    must(tr_kv_reserve(s->e->kv, s->slot[i], PROMPT), NULL, "kv");
    item = (tr_batch_item_t){ .kv_slot = s->slot[i],
                              .n = PROMPT,
                              .tokens = prompt,
                              .sample = true,
                              .sampler = &s->sampler,
                              .out = &s->out[i] };
    must(tr_executor_run(s->e, &batch), NULL, "prefill");
    s->at[i] = PROMPT;
}

/* Seconds of `steps` decode steps of n streams. */
static double
decode(streams_t *s, uint32_t n, uint32_t steps)
{
    static tr_batch_item_t items[STREAMS_MAX];
    tr_batch_t batch = { items, n, n };
    double start, t;

    for (uint32_t i = 0; i < n; i++) {
        open_stream(s, i);
    }
    start = now();
    for (uint32_t j = 0; j < steps; j++) {
        t = now();
        for (uint32_t i = 0; i < n; i++) {
            must(tr_kv_reserve(s->e->kv, s->slot[i], s->at[i] + 1), NULL, "kv");
        }
        s->kv_seconds += now() - t;
        for (uint32_t i = 0; i < n; i++) {
            s->token[i] = s->out[i].token;
            items[i] = (tr_batch_item_t){ .kv_slot = s->slot[i],
                                          .pos = s->at[i]++,
                                          .n = 1,
                                          .tokens = &s->token[i],
                                          .sample = true,
                                          .sampler = &s->sampler,
                                          .out = &s->out[i] };
        }
        must(tr_executor_run(s->e, &batch), NULL, "decode");
    }
    t = now() - start;
    for (uint32_t i = 0; i < n; i++) {
        tr_kv_close(s->e->kv, s->slot[i]);
    }
    return t;
}

static void
open_executor(streams_t *s, tr_config_t *c)
{
    tr_error_t err;

    must(tr_executor_model_open(c, &s->e, &err), &err, c->model);
    s->params = (tr_sampling_params_t){
        .top_p = 1, .repetition_penalty = 1, .max_tokens = 4096, .logprobs = -1
    };
    tr_sampler_init(&s->sampler, &s->params, 1, s->e->vocab, NULL, NULL, 0,
                    NULL, 0);
}

/* ---- memory ---- */

static uint64_t
resident_bytes(void)
{
    char line[256];
    uint64_t kib = 0;
    FILE *f = fopen("/proc/self/status", "r");

    while (f != NULL && fgets(line, sizeof(line), f) != NULL) {
        if (sscanf(line, "VmRSS: %" SCNu64, &kib) == 1) {
            break;
        }
    }
    if (f != NULL) {
        fclose(f);
    }
    return kib << 10;
}

static uint64_t
resident_pool(const tr_kv_cache_t *kv)
{
    size_t page = (size_t) sysconf(_SC_PAGESIZE), n;
    tr_kv_view_t view;
    unsigned char *in;
    uint64_t bytes = 0;

    tr_kv_view(kv, &view);
    n = (tr_kv_pages(kv) * view.page_bytes + page - 1) / page;
    in = malloc(n);
    if (in != NULL && mincore(view.pool, n * page, in) == 0) {
        for (size_t i = 0; i < n; i++) {
            bytes += in[i] & 1 ? page : 0;
        }
    }
    free(in);
    return bytes;
}

/* ---- the KV pages ---- */

/* Seconds a decode step of 16 streams spends in the KV cache, relative to the
 * step, with 10,000 pages, all but those of the streams given to others. */
static double
bench_pages(tr_config_t *c, int rounds, double *kv_us)
{
    static streams_t s;
    double share[ROUNDS_MAX], us[ROUNDS_MAX], t;
    uint64_t spare;
    uint32_t len;
    int32_t slot;

    open_executor(&s, c);
    c->kv_memory = PAGES * tr_kv_page_bytes(s.e->kv);
    s.e->free(s.e);
    open_executor(&s, c);
    spare = 2 * 16 * tr_kv_pages_for(s.e->kv, NULL, PROMPT + STEPS);
    len = s.e->max_model_len;
    while (len > 0) {
        if (tr_kv_free_pages(s.e->kv)
                < spare + tr_kv_pages_for(s.e->kv, NULL, len)
            || (slot = tr_kv_open(s.e->kv, NULL)) < 0) {
            len /= 2;
            continue;
        }
        must(tr_kv_reserve(s.e->kv, slot, len), NULL, "kv");
    }
    for (int r = -1; r < rounds; r++) {
        s.kv_seconds = 0;
        t = decode(&s, 16, STEPS);
        if (r >= 0) {
            share[r] = s.kv_seconds / t;
            us[r] = s.kv_seconds / STEPS * 1e6;
        }
    }
    s.e->free(s.e);
    *kv_us = median(us, rounds);
    return median(share, rounds);
}

/* ---- all of it ---- */

typedef struct {
    const char *model, *json;
    int threads, rounds;
} options_t;

static options_t
parse(int argc, char **argv)
{
    options_t o = { "models/pocket", NULL, 0, 9 };
    const bench_option_t options[] = {
        { "--model", &o.model, NULL, 0, 0 },
        { "--threads", NULL, &o.threads, 0, INT_MAX },
        { "--rounds", NULL, &o.rounds, 1, ROUNDS_MAX },
        { "--json", &o.json, NULL, 0, 0 },
    };

    bench_options(argc, argv, options, sizeof(options) / sizeof(options[0]));
    o.threads = o.threads ? o.threads : tr_thread_pool_cores();
    return o;
}

static void
bench_decode(const tr_config_t *c, int rounds, json_t *result)
{
    static double rate[N_COUNTS][ROUNDS_MAX], ratio[N_COUNTS][ROUNDS_MAX];
    static streams_t s;
    tr_config_t config = *c;
    double load = now();
    uint64_t weights, rss, pool;
    json_t *list = json_array();

    open_executor(&s, &config);
    load = now() - load;
    weights = (uint64_t) s.e->parameters * sizeof(uint16_t); /* BF16 */
    for (int r = -1; r < rounds; r++) {
        for (size_t i = 0; i < N_COUNTS; i++) {
            uint32_t n = stream_counts[i];
            double t = n * STEPS / decode(&s, n, STEPS);

            if (r >= 0) {
                rate[i][r] = t;
                ratio[i][r] = t / rate[0][r];
            }
        }
    }
    printf("\ndecode, %u tokens after a prompt of %u\n"
           "  streams   tokens/s   against one\n",
           STEPS, PROMPT);
    for (size_t i = 0; i < N_COUNTS; i++) {
        double t = median(rate[i], rounds), q = median(ratio[i], rounds);

        printf("  %7u %10.0f %12.2f\n", stream_counts[i], t, q);
        json_array_append_new(list, json_pack("{s:i,s:f,s:f}", "streams",
                                              (int) stream_counts[i],
                                              "tokens_per_s", t, "ratio", q));
    }
    rss = resident_bytes();
    pool = resident_pool(s.e->kv);
    printf("\nload %.0f ms; resident %.1f MiB = weights %.1f + pages touched "
           "%.1f + %.1f\n",
           load * 1e3, (double) rss / 0x1p20, (double) weights / 0x1p20,
           (double) pool / 0x1p20, (double) (rss - weights - pool) / 0x1p20);
    json_object_set_new(result, "decode", list);
    json_object_set_new(result, "load_ms", json_real(load * 1e3));
    json_object_set_new(result, "memory_bytes",
                        json_pack("{s:I,s:I,s:I,s:I}", "resident",
                                  (json_int_t) rss, "weights",
                                  (json_int_t) weights, "pool_touched",
                                  (json_int_t) pool, "rest",
                                  (json_int_t) (rss - weights - pool)));
    s.e->free(s.e);
}

int
main(int argc, char **argv)
{
    static const uint32_t rows[] = { 64, 256, 512 };
    options_t o = parse(argc, argv);
    tr_config_t c = { .max_num_seqs = 256,
                      .max_batch_tokens = 512,
                      .kv_memory = 256u << 20,
                      .kv_policy = "full",
                      .load_format = "auto",
                      .backend = "cpu" };
    json_t *result = json_object(), *prefill = json_array();
    double share, kv_us;

    tr_log_open("stderr", TR_LEVEL_WARN);
    snprintf(c.model, sizeof(c.model), "%s", o.model);
    c.threads = (uint32_t) o.threads;
    json_object_set_new(result, "kernels",
                        json_string(tr_kernels_cpu(NULL)->name));
    json_object_set_new(result, "threads", json_integer(o.threads));
    json_object_set_new(result, "rounds", json_integer(o.rounds));
    printf("%s, %s, %d threads, medians of %d rounds\n", o.model,
           tr_kernels_cpu(NULL)->name, o.threads, o.rounds);
    bench_decode(&c, o.rounds, result);
    printf("\nprefill of one prompt\n"
           "  tokens   step ms   tokens/s   matrix products\n");
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        prefill_t p = bench_prefill(o.model, o.threads, rows[i], o.rounds);

        printf("  %6u %9.1f %10.0f %16.1f%%\n", p.rows, p.step_ms, p.tokens_s,
               100 * p.share);
        json_array_append_new(prefill,
                              json_pack("{s:i,s:f,s:f,s:f}", "tokens",
                                        (int) p.rows, "step_ms", p.step_ms,
                                        "tokens_per_s", p.tokens_s,
                                        "matmul_share", p.share));
    }
    share = bench_pages(&c, o.rounds, &kv_us);
    printf("\nKV pages: %u in the pool, %.2f us a step of 16 streams, %.3f%% "
           "of it\n",
           PAGES, kv_us, 100 * share);
    json_object_set_new(result, "prefill", prefill);
    json_object_set_new(result, "pages",
                        json_pack("{s:i,s:f,s:f}", "pages", (int) PAGES,
                                  "us_per_step", kv_us, "share", share));
    if (o.json != NULL && json_dump_file(result, o.json, JSON_INDENT(2)) != 0) {
        fprintf(stderr, "bench_engine: cannot write %s\n", o.json);
        return 1;
    }
    json_decref(result);
    return 0;
}
