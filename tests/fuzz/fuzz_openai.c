/*
 * Fuzzes the parser of request bodies.  The first byte of an input chooses the
 * endpoint, the rest is the body.  Whatever it says, the request is laid out,
 * answered or refused in words, and what was laid out stays in its bounds.
 *
 * Run from the repository's root: it uses the shipped model's tokenizer.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/api/endpoint.h"
#include "engine/api/openai.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerInitialize(int *argc, char ***argv);

#define MODEL "models/pocket"

static tr_tokenizer_t *tokenizer;
static tr_tokenizer_scratch_t *scratch;
static tr_chat_template_t chat;
static tr_openai_t api;
static const int32_t eos[] = { 0 };
static tr_executor_policy_t policies[] = { { .given = "full" },
                                           { .given = "diffkv" } };

int
LLVMFuzzerInitialize(int *argc, char ***argv)
{
    tr_error_t err;

    (void) argc;
    (void) argv;
    if (tr_tokenizer_load(MODEL, &tokenizer, &err) != TR_OK
        || tr_chat_template_load(MODEL, "auto", tokenizer, &chat, &err)
               != TR_OK) {
        fprintf(stderr, "%s\n", err.text);
        exit(1);
    }
    scratch = tr_tokenizer_scratch_new(tokenizer);
    for (int i = 0; i < 2; i++) {
        if (tr_kv_policy_create(policies[i].given, 8, 2, 64,
                                &policies[i].policy, &err)
            != TR_OK) {
            fprintf(stderr, "%s\n", err.text);
            exit(1);
        }
    }
    api = (tr_openai_t){ .model = "pocket",
                         .tokenizer = tokenizer,
                         .chat_template = &chat,
                         .max_model_len = 512,
                         .vocab = tr_tokenizer_vocab_size(tokenizer),
                         .eos = eos,
                         .n_eos = 1,
                         .max_choices = 16,
                         .policies = policies,
                         .n_policies = 2,
                         .request_alpha = true };
    return 0;
}

static void
check(const tr_request_t *r, tr_status_t rc)
{
    uint32_t i, k;

    if (rc != TR_OK) {
        if (rc != r->error.status || r->error.text[0] == '\0'
            || tr_status_info(rc).http >= 500) {
            abort(); /* not the client's fault, or not said why */
        }
        return;
    }
    if (tr_endpoint(r->endpoint)->result != NULL) {
        return; /* nothing is generated */
    }
    if (r->kv_policy == NULL || !(r->kv_policy->alpha_low <= TR_KV_ALPHA_MAX)
        || !(r->kv_policy->alpha_high <= TR_KV_ALPHA_MAX)) {
        abort();
    }
    if (r->n_sequences == 0 || r->n_sequences > api.max_choices) {
        abort();
    }
    for (i = 0; i < r->n_sequences; i++) {
        const tr_sequence_t *s = &r->sequences[i];

        if (s->prompt_len == 0 || s->len != s->prompt_len || s->cap < s->len
            || s->cap > api.max_model_len) {
            abort();
        }
        for (k = 0; k < s->len; k++) {
            if (s->tokens[k] < 0 || (uint32_t) s->tokens[k] >= api.vocab) {
                abort();
            }
        }
    }
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    tr_request_t *r;

    if (size < 1) {
        return 0;
    }
    r = calloc(1, sizeof(*r));
    r->endpoint = 1 + (data[0] + 1) % (TR_ENDPOINTS - 1); /* "1": a chat */
    r->body_len = r->body_cap = size - 1;
    r->body = malloc(size);
    memcpy(r->body, data + 1, size - 1);
    check(r, tr_openai_parse(&api, scratch, r));
    tr_request_free(r);
    return 0;
}
