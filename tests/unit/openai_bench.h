/*
 * What the tests of clients' bodies stand on: models/pocket with a context of 64
 * tokens, and a request made of a body as the engine makes it.
 */
#ifndef TR_TEST_OPENAI_BENCH_H
#define TR_TEST_OPENAI_BENCH_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "log.h"
#include "openai.h"
#include "openai_json.h"

#define MODEL "models/pocket"
#define CONTEXT 64
#define SHORTER 40 /* of the last policy */
#define VOCAB 4096

static tr_tokenizer_t *tokenizer;
static tr_tokenizer_scratch_t *scratch;
static tr_chat_template_t chat_template, no_template;
static const int32_t eos[] = { 4, 1 };
static tr_openai_t api;
static tr_executor_policy_t policies[] = { { .given = "full" },
                                           { .given = "diffkv:alpha_low=0.5" },
                                           { .given = "diffkv:alpha_low=0."
                                                      "25" } };

static int
setup(void **state)
{
    tr_error_t err;

    (void) state;
    tr_json_init();
    assert_int_equal(tr_tokenizer_load(MODEL, &tokenizer, &err), TR_OK);
    assert_int_equal(tr_chat_template_load(MODEL, "auto", tokenizer,
                                           &chat_template, &err),
                     TR_OK);
    assert_int_equal(tr_chat_template_load(MODEL, "none", tokenizer,
                                           &no_template, &err),
                     TR_OK);
    scratch = tr_tokenizer_scratch_new(tokenizer);
    assert_non_null(scratch);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(tr_kv_policy_create(policies[i].given, 8, 2, 64,
                                             &policies[i].policy, &err),
                         TR_OK);
        policies[i].max_len = i < 2 ? CONTEXT : SHORTER;
    }
    api = (tr_openai_t){
        .model = "pocket",
        .tokenizer = tokenizer,
        .chat_template = &chat_template,
        .max_model_len = CONTEXT,
        .vocab = VOCAB,
        .eos = eos,
        .n_eos = 2,
        .max_choices = 8,
        .policies = policies,
        .n_policies = 3,
        .request_alpha = true,
    };
    return 0;
}

static int
teardown(void **state)
{
    (void) state;
    for (int i = 0; i < 3; i++) {
        tr_kv_policy_free(policies[i].policy);
    }
    tr_tokenizer_scratch_free(scratch);
    tr_tokenizer_free(tokenizer);
    return 0;
}

/* Parses a body of len bytes; the request is the caller's. */
static tr_request_t *
parse_bytes(const tr_openai_t *a, uint16_t endpoint, const char *body,
            size_t len)
{
    tr_request_t *r = calloc(1, sizeof(*r));
    tr_status_t rc;

    assert_non_null(r);
    r->endpoint = endpoint;
    r->body = malloc(len ? len : 1); /* exactly: sanitizers see more */
    assert_non_null(r->body);
    memcpy(r->body, body, len);
    r->body_len = r->body_cap = len;
    rc = tr_openai_parse(a, scratch, r);
    assert_int_equal(rc, r->error.status);
    assert_null(r->body);
    return r;
}

static tr_request_t *
parse(uint16_t endpoint, const char *body)
{
    return parse_bytes(&api, endpoint, body, strlen(body));
}

static tr_request_t *
good(uint16_t endpoint, const char *body)
{
    tr_request_t *r = parse(endpoint, body);

    if (r->error.status != TR_OK) {
        fail_msg("%s\n  refused: %s (%s)", body, r->error.text, r->error.param);
    }
    return r;
}

#define CHAT TR_ENDPOINT_CHAT
#define TEXT TR_ENDPOINT_COMPLETIONS
#define HI "\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}]"
#define P "\"prompt\":\"Hi\""

#endif
