/*
 * The executor over the shipped model: a batch of prompts, decode tokens and
 * scored rows gives what one sequence alone gives; what breaks the contract is
 * refused; bounds on the length come from the model.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/executor/executor.h"
#include "engine/config/log.h"
#include "kernels/kv_manager/manager.h"
#include "engine/model/cpu/model.h"
#include "kernels/kernels.h"

#define POCKET "models/pocket"

/* The first golden prompt and its continuation (models/pocket/golden.json). */
static const int32_t prompt[] = { 0,  2, 3213, 3,    872, 3013,
                                  11, 4, 2,    3217, 3,   872 };
#define N_PROMPT 12u
#define FIRST 3013

static tr_config_t
settings(void)
{
    tr_config_t c;

    tr_config_defaults(&c);
    snprintf(c.model, sizeof(c.model), "%s", POCKET);
    c.threads = 2;
    c.kv_memory = 32u << 20;
    c.swap_memory = 32u << 20;
    c.max_num_seqs = 8;
    c.max_batch_tokens = 64;
    c.max_model_len = 256;
    return c;
}

static tr_executor_t *
open_executor(void)
{
    tr_config_t c = settings();
    tr_executor_t *e;
    tr_error_t err;

    tr_log_open("stderr", TR_LEVEL_ERROR);
    if (tr_executor_model_open(&c, &e, &err) != TR_OK) {
        fail_msg("open: %s", err.text);
    }
    return e;
}

static tr_sampling_params_t
greedy(void)
{
    return (tr_sampling_params_t){
        .top_p = 1, .repetition_penalty = 1, .max_tokens = 100, .logprobs = 2
    };
}

static void
test_card(void **state)
{
    tr_executor_t *e = open_executor();

    (void) state;
    assert_string_equal(e->backend, "cpu");
    assert_true(e->vocab == 4096 && e->max_model_len == 256 && e->layers == 8);
    assert_true(e->kv_heads == 2 && e->query_heads == 6 && e->head_dim == 64);
    assert_int_equal(e->parameters, 14162304);
    assert_true(e->n_eos == 2 && e->eos[0] == 4 && e->eos[1] == 1);
    e->free(e);
}

/* As many sequences as can be configured, twice as many with those that are
 * swapped out: as many slots as the page manager has. */
static void
test_most_sequences(void **state)
{
    tr_config_t c = settings();
    tr_executor_t *e;
    tr_error_t err;

    (void) state;
    tr_log_open("stderr", TR_LEVEL_ERROR);
    c.max_num_seqs = c.max_batch_tokens = TR_KV_SLOTS_MAX;
    snprintf(c.kv_policy, sizeof(c.kv_policy),
             "diffkv:alpha_high=1,alpha_low=0.02");
    if (tr_executor_model_open(&c, &e, &err) != TR_OK) {
        fail_msg("open: %s", err.text);
    }
    e->free(e);
}

/* Scores of a whole prompt, its continuation, and both in one mixed batch. */
static void
test_step(void **state)
{
    tr_executor_t *e = open_executor();
    tr_sampling_params_t params = greedy();
    tr_sampler_t sampler;
    tr_sampled_t alone[N_PROMPT], mixed[N_PROMPT], out[3];
    tr_batch_item_t items[3];
    tr_batch_t batch = { items, 1, N_PROMPT };
    int32_t slot[3];

    (void) state;
    tr_sampler_init(&sampler, &params, 1, e->vocab, NULL, NULL, 0, prompt,
                    N_PROMPT);
    for (int i = 0; i < 3; i++) {
        slot[i] = tr_kv_open(e->kv, NULL);
        assert_int_equal(tr_kv_reserve(e->kv, slot[i], N_PROMPT + 1), TR_OK);
    }
    memset(alone, 0xff, sizeof(alone));
    items[0] = (tr_batch_item_t){ .kv_slot = slot[0],
                                  .n = N_PROMPT,
                                  .tokens = prompt,
                                  .sample = true,
                                  .sampler = &sampler,
                                  .out = &out[0],
                                  .scores = alone,
                                  .top = 2 };
    assert_int_equal(tr_executor_run(e, &batch), TR_OK);
    assert_int_equal(items[0].status, TR_OK);
    assert_int_equal(out[0].token, FIRST);
    for (uint32_t i = 0; i + 1 < N_PROMPT; i++) {
        assert_int_equal(alone[i].token, prompt[i + 1]);
        assert_true(alone[i].logprob <= 0 && alone[i].n_top == 2);
    }
    /* sequence 0 decodes while 1 is prefilled in part and 2 whole, scored */
    items[0] = (tr_batch_item_t){ .kv_slot = slot[0],
                                  .pos = N_PROMPT,
                                  .n = 1,
                                  .tokens = &out[0].token,
                                  .sample = true,
                                  .sampler = &sampler,
                                  .out = &out[1] };
    items[1] = (tr_batch_item_t){ .kv_slot = slot[1],
                                  .n = 5,
                                  .tokens = prompt };
    items[2] = (tr_batch_item_t){ .kv_slot = slot[2],
                                  .n = N_PROMPT - 1,
                                  .tokens = prompt,
                                  .scores = mixed,
                                  .top = 2 };
    batch = (tr_batch_t){ items, 3, N_PROMPT + 5 };
    assert_int_equal(tr_executor_run(e, &batch), TR_OK);
    for (uint32_t i = 0; i + 1 < N_PROMPT; i++) {
        assert_int_equal(mixed[i].token, alone[i].token);
        assert_true(mixed[i].logprob == alone[i].logprob);
    }
    /* 1 and 2 catch up, and give the token that 0 gave */
    items[0] = (tr_batch_item_t){ .kv_slot = slot[1],
                                  .pos = 5,
                                  .n = N_PROMPT - 5,
                                  .tokens = prompt + 5,
                                  .sample = true,
                                  .sampler = &sampler,
                                  .out = &out[1] };
    items[1] = (tr_batch_item_t){ .kv_slot = slot[2],
                                  .pos = N_PROMPT - 1,
                                  .n = 1,
                                  .tokens = prompt + N_PROMPT - 1,
                                  .sample = true,
                                  .sampler = &sampler,
                                  .out = &out[2] };
    batch = (tr_batch_t){ items, 2, N_PROMPT - 4 };
    assert_int_equal(tr_executor_run(e, &batch), TR_OK);
    for (int i = 1; i < 3; i++) {
        assert_int_equal(out[i].token, FIRST);
        assert_true(out[i].logprob == out[0].logprob);
    }
    e->free(e);
}

/* A token outside the vocabulary fails its item and no other. */
static void
test_bad_token(void **state)
{
    tr_executor_t *e = open_executor();
    tr_sampling_params_t params = greedy();
    tr_sampler_t sampler;
    tr_sampled_t out[2];
    int32_t bad[] = { 0, 4096, -1 };
    tr_batch_item_t items[2];
    tr_batch_t batch = { items, 2, N_PROMPT + 3 };

    (void) state;
    tr_sampler_init(&sampler, &params, 1, e->vocab, NULL, NULL, 0, NULL, 0);
    items[0] = (tr_batch_item_t){ .kv_slot = tr_kv_open(e->kv, NULL),
                                  .n = 3,
                                  .tokens = bad,
                                  .sample = true,
                                  .sampler = &sampler,
                                  .out = &out[0] };
    items[1] = (tr_batch_item_t){ .kv_slot = tr_kv_open(e->kv, NULL),
                                  .n = N_PROMPT,
                                  .tokens = prompt,
                                  .sample = true,
                                  .sampler = &sampler,
                                  .out = &out[1] };
    tr_kv_reserve(e->kv, items[0].kv_slot, 3);
    tr_kv_reserve(e->kv, items[1].kv_slot, N_PROMPT);
    assert_int_equal(tr_executor_run(e, &batch), TR_OK);
    assert_int_equal(items[0].status, TR_ERR_INVALID);
    assert_int_equal(items[1].status, TR_OK);
    assert_int_equal(out[1].token, FIRST);
    e->free(e);
}

/* Batches larger than the workspaces are refused before anything is written. */
static void
test_contract(void **state)
{
    tr_executor_t *e = open_executor();
    static int32_t tokens[65];
    tr_batch_item_t items[9];
    tr_batch_t batch = { items, 1, 65 };

    (void) state;
    tr_log_open("/dev/null", TR_LEVEL_ERROR);
    items[0] = (tr_batch_item_t){ .n = 65, .tokens = tokens };
    assert_int_equal(tr_executor_run(e, &batch), TR_ERR_INTERNAL);
    items[0] = (tr_batch_item_t){ .pos = 256, .n = 1, .tokens = tokens };
    assert_int_equal(tr_executor_run(e, &batch), TR_ERR_INTERNAL);
    items[0] = (tr_batch_item_t){ .pos = UINT32_MAX, .n = 1, .tokens = tokens };
    assert_int_equal(tr_executor_run(e, &batch), TR_ERR_INTERNAL);
    items[0] = (tr_batch_item_t){ .n = 0, .tokens = tokens };
    assert_int_equal(tr_executor_run(e, &batch), TR_ERR_INTERNAL);
    for (int i = 0; i < 9; i++) {
        items[i] = (tr_batch_item_t){ .n = 1, .tokens = tokens };
    }
    batch = (tr_batch_t){ items, 9, 9 };
    assert_int_equal(tr_executor_run(e, &batch), TR_ERR_INTERNAL);
    e->free(e);
}

static void
test_refused(void **state)
{
    tr_config_t c = settings();
    tr_executor_t *e = NULL;
    tr_error_t err;

    (void) state;
    c.max_model_len = 4097;
    assert_int_equal(tr_executor_model_open(&c, &e, &err), TR_ERR_INVALID);
    assert_string_equal(err.param, "max_model_len");
    assert_non_null(strstr(err.text, "is 4097, expected at most the model's "
                                     "4096"));
    c.max_model_len = 0;
    snprintf(c.model, sizeof(c.model), "/nonexistent");
    assert_int_equal(tr_executor_model_open(&c, &e, &err), TR_ERR_NOT_FOUND);
    assert_non_null(strstr(err.text, "/nonexistent/config.json"));
    assert_null(e);
}

/* A model that promises more positions than kv_memory will ever hold: the
 * workspaces are made for what it holds. */
static void
test_promises(void **state)
{
    static const char config[] =
        "{\"model_type\":\"llama\",\"vocab_size\":256,\"hidden_size\":64,"
        "\"intermediate_size\":64,\"num_hidden_layers\":2,"
        "\"num_attention_heads\":4,\"num_key_value_heads\":1,"
        "\"max_position_embeddings\":16777216}";
    char dir[] = "/tmp/tr-promises-XXXXXX", path[64];
    tr_config_t c = settings();
    tr_model_options_t o = { .dir = dir,
                             .load_format = "dummy",
                             .kernels = tr_kernels_cpu(NULL),
                             .threads = 1,
                             .max_rows = 64,
                             .max_seqs = 8,
                             .kv_memory = 1u << 20 };
    tr_executor_t *e;
    tr_model_t *m;
    tr_error_t err;
    FILE *f;

    (void) state;
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof(path), "%s/config.json", dir);
    f = fopen(path, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(config, 1, strlen(config), f), strlen(config));
    fclose(f);
    assert_int_equal(tr_model_open(&o, &m, &err), TR_OK);
    /* 2 layers, a head of 16: 128 bytes a token */
    assert_int_equal(m->max_len, 8193);
    assert_true(m->work_size < 16u << 20);
    tr_model_free(m);
    snprintf(c.model, sizeof(c.model), "%s", dir);
    snprintf(c.load_format, sizeof(c.load_format), "dummy");
    c.kv_memory = 1u << 20;
    c.max_model_len = 0;
    assert_int_equal(tr_executor_model_open(&c, &e, &err), TR_OK);
    assert_int_equal(e->max_model_len, tr_kv_max_len(e->kv, NULL));
    assert_in_range(e->max_model_len, 4096, 8192);
    e->free(e);
    unlink(path);
    rmdir(dir);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_card),     cmocka_unit_test(test_most_sequences),
        cmocka_unit_test(test_step),     cmocka_unit_test(test_bad_token),
        cmocka_unit_test(test_contract), cmocka_unit_test(test_refused),
        cmocka_unit_test(test_promises),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
