/*
 * bench_weights: what a step takes by what weights are kept in, on the CPU.
 *
 *   bench_weights [--model DIR] [--threads N] [--rounds N] [--json FILE]
 *
 * DIR needs a config.json alone: weights are random (tests/bench/shapes/
 * qwen2.5-0.5b by default).  Where it has a model.safetensors, they are those, and
 * may stay mapped.  All forms are loaded at once and computed in turn, so
 * that a noisy machine is noisy for all; medians, and their ratio to 16 bits.
 *
 *   decode   a step of 1, 4 and 16 sequences, in tokens/s, logits included
 *   prompt   a prompt of 512 tokens
 *   memory   private bytes of the model: weights and workspace
 *   load     ms, once
 */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/kv/kv_cache.h"
#include "engine/config/log.h"
#include "engine/model/cpu/model.h"
#include "kernels/kernels.h"
#include "kernels/thread_pool.h"
#include "bench.h"

#define ROUNDS_MAX 101
#define PROMPT 512u
#define SEQS 16u
#define CONTEXT 32u /* of decoding sequences */

static const struct {
    const char *name;
    tr_codes_t codes;
    bool mapped;
} forms[] = { { "16 bits", TR_CODES_NONE, false },
              { "mapped", TR_CODES_NONE, true },
              { "int8", TR_CODES_INT8, false },
              { "int4", TR_CODES_INT4, false } };
#define FORMS (sizeof(forms) / sizeof(forms[0]))

static const struct {
    const char *name;
    uint32_t seqs, rows; /* of each */
} works[] = {
    { "decode_1", 1, 1 },
    { "decode_4", 4, 1 },
    { "decode_16", SEQS, 1 },
    { "prompt_512", 1, PROMPT },
};
#define WORKS (sizeof(works) / sizeof(works[0]))

typedef struct {
    tr_model_t *model;
    tr_kv_cache_t *kv;
    tr_kv_policy_t *policy;
    int32_t slot[SEQS];
    double load; /* seconds */
} subject_t;

typedef struct {
    const char *model, *json;
    int threads, rounds;
} options_t;

/* Keeps a step's rows; sequence s is at `from`. */
static void
step(subject_t *x, uint32_t seqs, uint32_t from, uint32_t n)
{
    static uint32_t pos[PROMPT], seq_row[SEQS + 1], last[SEQS];
    static int32_t tokens[PROMPT];
    tr_rows_t rows = { seqs * n, seqs, pos, x->slot, seq_row };
    tr_kv_view_t view;

    for (uint32_t s = 0; s < seqs; s++) {
        must(tr_kv_reserve(x->kv, x->slot[s], from + n), NULL, "kv");
        for (uint32_t i = 0; i < n; i++) {
            pos[s * n + i] = from + i;
            tokens[s * n + i] = (int32_t) ((s + from + i) * 7919 % 1000);
        }
        seq_row[s] = s * n;
        last[s] = s * n + n - 1;
    }
    seq_row[seqs] = seqs * n;
    tr_kv_view(x->kv, &view);
    must(tr_model_forward(x->model, &view, &rows, tokens), NULL, "step");
    must(tr_model_logits(x->model, last, seqs), NULL, "logits");
}

static void
subject_open(subject_t *x, const options_t *options, bool files,
             tr_codes_t codes, bool mapped)
{
    double t = now();
    tr_model_options_t o = { .dir = options->model,
                             .load_format = files ? "auto" : "dummy",
                             .mapped = mapped,
                             .dummy_dtype = TR_BF16,
                             .packed = true,
                             .quantise = codes,
                             .kernels = tr_kernels_cpu(NULL),
                             .threads = options->threads,
                             .max_rows = PROMPT,
                             .max_seqs = SEQS };
    tr_kv_config_t kv = {
        .slots = SEQS,
        .max_len = PROMPT,
        .memory = 512u << 20,
        .policies = (const tr_kv_policy_t *const *) &x->policy,
        .n_policies = 1
    };
    tr_error_t err;

    must(tr_model_open(&o, &x->model, &err), &err, options->model);
    x->load = now() - t;
    kv.layers = x->model->config.recipe.layers;
    kv.kv_heads = x->model->config.recipe.kv_heads;
    kv.head_dim = x->model->config.recipe.head_dim;
    kv.kernels = o.kernels;
    kv.stream = x->model->stream;
    must(tr_kv_policy_create("full", kv.layers, kv.kv_heads, kv.head_dim,
                             &x->policy, &err),
         &err, "kv");
    must(tr_kv_cache_create(&kv, &x->kv, &err), &err, "kv");
    for (uint32_t s = 0; s < SEQS; s++) {
        x->slot[s] = tr_kv_open(x->kv, NULL);
    }
}

/* Seconds of a step: rows are computed over again. */
static double
measure(subject_t *x, uint32_t work)
{
    uint32_t n = works[work].rows, from = n == 1 ? CONTEXT : 0;
    uint32_t steps = n == 1 ? 3 : 1;
    double t = now();

    for (uint32_t i = 0; i < steps; i++) {
        step(x, works[work].seqs, from, n);
    }
    return (now() - t) / steps;
}

static options_t
parse(int argc, char **argv)
{
    options_t o = { "tests/bench/shapes/qwen2.5-0.5b", NULL,
                    tr_thread_pool_cores(), 7 };
    const bench_option_t options[] = {
        { "--model", &o.model, NULL, 0, 0 },
        { "--threads", NULL, &o.threads, 1, INT_MAX },
        { "--rounds", NULL, &o.rounds, 1, ROUNDS_MAX },
        { "--json", &o.json, NULL, 0, 0 },
    };

    bench_options(argc, argv, options, sizeof(options) / sizeof(options[0]));
    return o;
}

int
main(int argc, char **argv)
{
    static double t[FORMS][WORKS][ROUNDS_MAX];
    static subject_t x[FORMS];
    options_t o = parse(argc, argv);
    json_t *out = json_object();
    char path[1024];
    bool files;

    snprintf(path, sizeof(path), "%s/model.safetensors", o.model);
    files = access(path, R_OK) == 0;
    tr_log_open(NULL, TR_LEVEL_ERROR);
    for (uint32_t f = 0; f < FORMS; f++) {
        subject_open(&x[f], &o, files, forms[f].codes, forms[f].mapped);
        for (uint32_t s = 0; s < SEQS; s++) { /* what decoding looks back on */
            subject_t one = x[f];

            one.slot[0] = x[f].slot[s];
            step(&one, 1, 0, CONTEXT);
        }
        measure(&x[f], WORKS - 1);
    }
    for (int r = 0; r < o.rounds; r++) {
        for (uint32_t w = 0; w < WORKS; w++) {
            for (uint32_t f = 0; f < FORMS; f++) {
                t[f][w][r] = measure(&x[f], w);
            }
        }
    }
    printf("%s, %s, %d threads, medians of %d rounds: tokens/s, and over 16 "
           "bits\n\n| weights | MiB | load ms |",
           o.model, tr_kernels_cpu(NULL)->name, o.threads, o.rounds);
    for (uint32_t w = 0; w < WORKS; w++) {
        printf(" %s |", works[w].name);
    }
    printf("\n|---|---|---|---|---|---|---|\n");
    for (uint32_t f = 0; f < FORMS; f++) {
        size_t bytes = x[f].model->weights_size + x[f].model->work_size;
        json_t *row = json_object();

        json_object_set_new(row, "bytes", json_integer((json_int_t) bytes));
        json_object_set_new(row, "load_ms", json_real(1e3 * x[f].load));
        printf("| %s | %zu | %.0f |", forms[f].name, bytes >> 20,
               1e3 * x[f].load);
        for (uint32_t w = 0; w < WORKS; w++) {
            double s = median(t[f][w], o.rounds), base = s;
            double rows = works[w].seqs * works[w].rows;

            if (f > 0) { /* sorted by then */
                base = median(t[0][w], o.rounds);
            }
            json_object_set_new(row, works[w].name, json_real(rows / s));
            printf(" %.1f (%.2f) |", rows / s, base / s);
        }
        printf("\n");
        json_object_set_new(out, forms[f].name, row);
    }
    if (o.json != NULL && json_dump_file(out, o.json, JSON_INDENT(1)) != 0) {
        fprintf(stderr, "%s: cannot be written\n", o.json);
        return 1;
    }
    json_decref(out);
    for (uint32_t f = 0; f < FORMS; f++) {
        tr_kv_cache_free(x[f].kv);
        tr_kv_policy_free(x[f].policy);
        tr_model_free(x[f].model);
    }
    return 0;
}
