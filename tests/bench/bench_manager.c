/*
 * bench_manager: what it costs to manage the pages of a differentiated cache.
 *
 *   bench_manager [--threads N] [--rounds N] [--json FILE]
 *
 * The shape of DiffKV's figure 13: latency of memory management for a prompt
 * step (1,024 tokens a sequence: uncompressed pages, then the plan, pages of
 * the tiers, recycling) and for a generation step, over batches of 1 to 128,
 * for the heads of Llama-3-8B (32 layers, 8 KV heads), without copying tokens,
 * and with a policy that reads no page.  Medians of rounds.
 *
 * Then what a head's plan costs in a decode step of diffkv, with scores in the
 * pages, for the heads of models/pocket and of Llama-3-8B.
 */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/kv/kv_cache.h"
#include "engine/kv/kv_internal.h"
#include "kernels/thread_pool.h"
#include "bench.h"

#define LAYERS 32u
#define KV_HEADS 8u
#define BATCH_MAX 128u
#define PROMPT 1024u
#define STEPS 32u
#define ROUNDS_MAX 101

static void
expect(bool ok, const char *what)
{
    if (!ok) {
        fprintf(stderr, "bench_manager: %s\n", what);
        exit(1);
    }
}

/* ---- pages alone -------------------------------------------------------- */

typedef struct {
    int threads, rounds;
    const char *json;
    tr_stream_t stream;
} options_t;

static tr_kv_cache_t *
make_cache(const options_t *o, uint32_t layers, uint32_t kv_heads,
           uint32_t head_dim, uint32_t slots, uint64_t memory,
           const tr_kv_policy_t *policy)
{
    const tr_kv_policy_t *const policies[] = { policy };
    tr_kv_config_t c = { .layers = layers,
                         .kv_heads = kv_heads,
                         .head_dim = head_dim,
                         .slots = slots,
                         .max_len = 4096,
                         .memory = memory,
                         .policies = policies,
                         .n_policies = 1,
                         .stream = o->stream };
    tr_kv_cache_t *kv;
    tr_error_t err;

    if (tr_kv_cache_create(&c, &kv, &err) != TR_OK) {
        expect(false, err.text);
    }
    return kv;
}

typedef struct {
    double prompt, step; /* seconds */
} cost_t;

/* One round of n sequences; the median of its steps. */
static cost_t
round_of(tr_kv_cache_t *kv, uint32_t n)
{
    static tr_status_t rc[BATCH_MAX];
    int32_t slots[BATCH_MAX];
    uint32_t lens[BATCH_MAX];
    double step[STEPS];
    cost_t c;

    c.prompt = now();
    for (uint32_t i = 0; i < n; i++) {
        slots[i] = tr_kv_open(kv, NULL);
        lens[i] = PROMPT;
    }
    tr_kv_reserve_batch(kv, slots, lens, n, rc);
    for (uint32_t i = 0; i < n; i++) {
        expect(rc[i] == TR_OK && tr_kv_compress(kv, slots[i], PROMPT) == TR_OK,
               "the pool is too small");
    }
    c.prompt = now() - c.prompt;
    for (uint32_t s = 0; s < STEPS; s++) {
        step[s] = now();
        for (uint32_t i = 0; i < n; i++) {
            lens[i]++;
        }
        tr_kv_reserve_batch(kv, slots, lens, n, rc);
        step[s] = now() - step[s];
    }
    c.step = median(step, STEPS);
    for (uint32_t i = 0; i < n; i++) {
        tr_kv_close(kv, slots[i]);
    }
    return c;
}

static void
by_batch(const options_t *o, json_t *result)
{
    tr_kv_policy_t *policy;
    tr_kv_cache_t *kv;
    tr_error_t err;

    expect(tr_kv_policy_create("uniform:levels=8/4,window=64", LAYERS, KV_HEADS,
                               128, &policy, &err)
               == TR_OK,
           "policy");
    /* virtual: without tokens nobody touches a page */
    kv = make_cache(o, LAYERS, KV_HEADS, 128, BATCH_MAX, 40ull << 30, policy);
    printf("memory management, %u layers x %u KV heads, %d threads, medians of"
           " %d rounds, microseconds\n"
           "  batch  prompt step (%u tokens)  generation step\n",
           LAYERS, KV_HEADS, o->threads, o->rounds, PROMPT);
    for (uint32_t n = 1; n <= BATCH_MAX; n *= 2) {
        double x[2][ROUNDS_MAX];

        for (int r = -1; r < o->rounds; r++) { /* the first one warms up */
            cost_t c = round_of(kv, n);

            if (r >= 0) {
                x[0][r] = c.prompt;
                x[1][r] = c.step;
            }
        }
        for (int i = 0; i < 2; i++) {
            x[i][0] = median(x[i], (size_t) o->rounds) * 1e6;
        }
        printf("  %5u %24.0f %16.1f\n", n, x[0][0], x[1][0]);
        fflush(stdout);
        json_array_append_new(result, json_pack("{s:i,s:f,s:f}", "batch",
                                                (int) n, "prompt_us", x[0][0],
                                                "step_us", x[1][0]));
    }
    tr_kv_cache_free(kv);
    tr_kv_policy_free(policy);
}

/* ---- a decode step of diffkv -------------------------------------------- */

/* Scores as after a step: most tokens get little, a few much. */
static void
fill_scores(tr_kv_cache_t *kv, int32_t slot, uint32_t len)
{
    const tr_kv_layout_t *uncompressed = &tr_kv_plan(kv)->layout[0];
    uint32_t seed = 1;

    for (uint32_t head = 0; head < kv->heads; head++) {
        const int32_t *row = manager_row(&kv->m, slot, head);

        for (uint32_t i = 0; i < len; i++) {
            uint8_t *page = tr_kv_page_at(&kv->view,
                                          row[i / uncompressed->tokens]);
            float score;

            seed = seed * 1664525u + 1013904223u;
            score = powf((float) (seed >> 8) / 0x1p24f, 8) * 4;
            memcpy(page + uncompressed->score + i % uncompressed->tokens * 4,
                   &score, 4);
        }
    }
}

/* Nanoseconds that planning and granting one decode step costs a head. */
static double
step_of_diffkv(const options_t *o, uint32_t layers, uint32_t kv_heads,
               uint32_t head_dim, uint32_t n)
{
    tr_kv_policy_t *policy;
    tr_kv_cache_t *kv;
    tr_error_t err;
    int32_t slots[BATCH_MAX];
    uint32_t lens[BATCH_MAX];
    tr_status_t rc[BATCH_MAX];
    double step[STEPS * 8], t;

    if (tr_kv_policy_create("diffkv:alpha_high=1,alpha_low=0.02", layers,
                            kv_heads, head_dim, &policy, &err)
        != TR_OK) {
        expect(false, err.text);
    }
    kv = make_cache(o, layers, kv_heads, head_dim, n, 8ull << 30, policy);
    for (uint32_t i = 0; i < n; i++) {
        slots[i] = tr_kv_open(kv, NULL);
        tr_kv_prompt(kv, slots[i], PROMPT);
        expect(tr_kv_reserve(kv, slots[i], PROMPT) == TR_OK, "no pages");
        fill_scores(kv, slots[i], PROMPT);
        expect(tr_kv_compress(kv, slots[i], PROMPT) == TR_OK, "no pages");
        lens[i] = PROMPT;
    }
    for (uint32_t s = 0; s < STEPS * 8; s++) {
        for (uint32_t i = 0; i < n; i++) {
            lens[i]++;
        }
        t = now();
        tr_kv_reserve_batch(kv, slots, lens, n, rc);
        step[s] = now() - t;
        expect(rc[n - 1] == TR_OK, "no pages");
    }
    tr_kv_cache_free(kv);
    tr_kv_policy_free(policy);
    return median(step, STEPS * 8) / (n * layers * kv_heads) * 1e9;
}

static options_t
parse(int argc, char **argv)
{
    options_t o = { 0, 9, NULL, { 0, NULL } };
    const bench_option_t options[] = {
        { "--threads", NULL, &o.threads, 0, INT_MAX },
        { "--rounds", NULL, &o.rounds, 1, ROUNDS_MAX },
        { "--json", &o.json, NULL, 0, 0 },
    };

    bench_options(argc, argv, options, sizeof(options) / sizeof(options[0]));
    o.threads = o.threads ? o.threads : tr_thread_pool_cores();
    o.stream = (tr_stream_t){ o.threads, tr_thread_pool_new(o.threads) };
    return o;
}

int
main(int argc, char **argv)
{
    options_t o = parse(argc, argv);
    json_t *rows = json_array();
    double pocket, llama, batch;

    by_batch(&o, rows);
    pocket = step_of_diffkv(&o, 8, 2, 64, 1);
    llama = step_of_diffkv(&o, LAYERS, KV_HEADS, 128, 1);
    batch = step_of_diffkv(&o, LAYERS, KV_HEADS, 128, 8);
    printf("\na decode step of diffkv, nanoseconds a head: %.0f (16 heads),"
           " %.0f (256), %.0f (8 x 256)\n",
           pocket, llama, batch);
    if (o.json != NULL) {
        json_t *all = json_pack("{s:i,s:i,s:o,s:{s:f,s:f,s:f}}", "threads",
                                o.threads, "rounds", o.rounds, "manager", rows,
                                "diffkv_step_ns_a_head", "heads_16", pocket,
                                "heads_256", llama, "heads_2048", batch);

        expect(json_dump_file(all, o.json, JSON_INDENT(2)) == 0,
               "cannot write the figures");
        rows = all;
    }
    json_decref(rows);
    tr_thread_pool_free(o.stream.thread_pool);
    return 0;
}
