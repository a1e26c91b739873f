/*
 * What the model tests share: a model with a KV cache, steps written as lists
 * of (sequence, tokens), and random numbers from a printed seed.
 */
#ifndef TR_MODEL_RIG_H
#define TR_MODEL_RIG_H

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kv_cache.h"
#include "model.h"
#include <cpu/team.h>

typedef struct {
    tr_model_t *model;
    tr_kv_policy_t *policy;
    tr_kv_cache_t *kv;
} rig_t;

typedef struct {
    int32_t slot;
    uint32_t pos, n;
    const int32_t *tokens;
} rig_item_t;

static inline uint64_t
rig_next(uint64_t *state)
{
    uint64_t x = (*state += 0x9e3779b97f4a7c15u);

    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static inline uint32_t
rig_below(uint64_t *state, uint32_t n)
{
    return (uint32_t) (rig_next(state) % n);
}

/* About normal, standard deviation 1. */
static inline float
rig_normal(uint64_t *state)
{
    float sum = 0;

    for (int i = 0; i < 12; i++) {
        sum += (float) (rig_next(state) >> 40) * 0x1p-24f;
    }
    return sum - 6;
}

/* TR_TEST_SEED repeats a run; else a fresh seed, printed. */
static inline uint64_t
rig_seed(void)
{
    const char *given = getenv("TR_TEST_SEED");
    uint64_t seed;
    FILE *f = given ? NULL : fopen("/dev/urandom", "r");

    if (given != NULL) {
        seed = strtoull(given, NULL, 0);
    } else {
        assert_non_null(f);
        assert_int_equal(fread(&seed, sizeof(seed), 1, f), 1);
        fclose(f);
    }
    print_message("TR_TEST_SEED=0x%llx\n", (unsigned long long) seed);
    return seed;
}

/* Threads for kernels that are called without a model. */
static inline tr_team_t *
rig_team(void)
{
    static tr_team_t *team;

    if (team == NULL) {
        team = tr_team_new(3);
        assert_non_null(team);
    }
    return team;
}

static inline void
rig_open(rig_t *rig, const char *dir, const char *load_format, const char *isa,
         int threads, uint32_t max_len)
{
    tr_error_t err;
    tr_model_options_t options = {
        .dir = dir,
        .load_format = load_format,
        .dummy_seed = 7,
        .kernels = tr_kernels_cpu(isa),
        .threads = threads,
        .max_rows = 512,
        .max_seqs = 64,
    };
    tr_kv_config_t kv;

    assert_non_null(options.kernels);
    if (tr_model_open(&options, &rig->model, &err) != TR_OK) {
        fail_msg("open: %s", err.text);
    }
    kv = (tr_kv_config_t){
        .layers = rig->model->config.layers,
        .lists = rig->model->config.kv_heads,
        .head_dim = rig->model->config.head_dim,
        .policies = (const tr_kv_policy_t *const *) &rig->policy,
        .n_policies = 1,
        .kernels = options.kernels,
        .stream = rig->model->stream,
        .slots = 64,
        .max_len = max_len,
        .memory = 64u << 20,
    };
    if (tr_kv_policy_create("full", kv.layers, kv.lists, kv.head_dim,
                            &rig->policy, &err)
        != TR_OK) {
        fail_msg("policy: %s", err.text);
    }
    if (tr_kv_cache_create(&kv, &rig->kv, &err) != TR_OK) {
        fail_msg("kv: %s", err.text);
    }
}

static inline void
rig_close(rig_t *rig)
{
    tr_kv_cache_free(rig->kv);
    tr_kv_policy_free(rig->policy);
    tr_model_free(rig->model);
}

/* Runs one step; logits: for the last row of each item, [n][vocab]. */
static inline void
rig_step(rig_t *rig, const rig_item_t *items, uint32_t n, float *logits)
{
    static uint32_t row_pos[512], seq_row[65], last[64];
    static int32_t slot[64], tokens[512];
    tr_rows_t rows = { 0, n, row_pos, slot, seq_row };
    uint32_t vocab = rig->model->config.vocab;
    tr_kv_view_t view;

    for (uint32_t i = 0; i < n; i++) {
        assert_int_equal(tr_kv_reserve(rig->kv, items[i].slot,
                                       items[i].pos + items[i].n),
                         TR_OK);
        slot[i] = items[i].slot;
        seq_row[i] = rows.n_rows;
        for (uint32_t j = 0; j < items[i].n; j++) {
            row_pos[rows.n_rows] = items[i].pos + j;
            tokens[rows.n_rows++] = items[i].tokens[j];
        }
        last[i] = rows.n_rows - 1;
    }
    seq_row[n] = rows.n_rows;
    tr_kv_view(rig->kv, &view);
    assert_int_equal(tr_model_forward(rig->model, &view, &rows, tokens), TR_OK);
    for (uint32_t i = 0; i < n; i += rig->model->logit_rows) {
        uint32_t m = n - i < rig->model->logit_rows ? n - i
                                                    : rig->model->logit_rows;

        assert_int_equal(tr_model_logits(rig->model, last + i, m), TR_OK);
        for (uint32_t j = 0; j < m; j++) {
            memcpy(logits + (size_t) (i + j) * vocab,
                   rig->model->logits + j * rig->model->ld_logits,
                   vocab * sizeof(float));
        }
    }
}

static inline int32_t
rig_argmax(const float *x, uint32_t n)
{
    uint32_t best = 0;

    for (uint32_t i = 1; i < n; i++) {
        best = x[i] > x[best] ? i : best;
    }
    return (int32_t) best;
}

#endif
