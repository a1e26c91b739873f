/*
 * Endpoints that compute and do not generate: /v1/tokenize, /v1/detokenize,
 * /v1/chat/completions/render and /v1/messages/count_tokens.  Their result is
 * made here, on a parser's thread, and the frontend thread sends it
 * (tr_result_t).
 */
#include "openai_internal.h"

#include <stdlib.h>
#include <string.h>

/* Bytes of a result, ids counting four: the worker gathers it whole. */
#define RESULT_BYTES (8u << 20)

static tr_status_t
check_size(tr_openai_call_t *c, uint64_t bytes)
{
    return bytes <= RESULT_BYTES
               ? TR_OK
               : tr_error_set(c->err, TR_ERR_INVALID, "",
                              "The result would have %llu bytes, expected at "
                              "most %u.",
                              (unsigned long long) bytes, RESULT_BYTES);
}

static tr_status_t
keep_ids(tr_openai_call_t *c, tr_result_t *result)
{
    const tr_ids_t *prompt = &c->prompts[0];
    tr_status_t rc = check_size(c,
                                result->text_len
                                    + (uint64_t) prompt->len * sizeof(int32_t));
    int32_t *ids;

    if (rc != TR_OK) {
        return rc;
    }
    ids = tr_arena_alloc(&c->r->arena, (size_t) prompt->len * sizeof(*ids));
    if (ids == NULL) {
        return tr_openai_no_memory(c);
    }
    if (prompt->len != 0) {
        memcpy(ids, prompt->data, (size_t) prompt->len * sizeof(*ids));
    }
    result->ids = ids;
    result->n_ids = prompt->len;
    c->r->prompt_tokens = prompt->len;
    return TR_OK;
}

static tr_result_t *
new_result(tr_openai_call_t *c)
{
    tr_result_t *result = tr_arena_alloc(&c->r->arena, sizeof(*result));

    if (result == NULL) {
        tr_openai_no_memory(c);
        return NULL;
    }
    /* a chat's wishes for its answer mean nothing here */
    c->r->stream = c->r->include_usage = false;
    c->r->usage_stats = c->r->include_kv = false;
    c->r->params.logprobs = -1;
    c->r->dialect = NULL;
    result->context = c->api->max_model_len;
    c->r->result = result;
    return result;
}

/* A prompt's, or a chat's. */
tr_status_t
tr_openai_read_tokenize(tr_openai_call_t *c)
{
    bool strings = false;
    tr_status_t rc = tr_json_bool(c->root, "return_token_strs", &strings,
                                  c->err);

    if (rc == TR_OK && strings) {
        rc = tr_error_set(c->err, TR_ERR_INVALID, "return_token_strs",
                          "'return_token_strs': tokens are returned as ids "
                          "only.");
    }
    if (rc != TR_OK) {
        return rc;
    }
    if (tr_json_field(c->root, "messages") != NULL) {
        return tr_openai_read_chat(c);
    }
    if (!json_is_string(tr_json_field(c->root, "prompt"))) {
        return tr_json_wrong_type(c->err, "prompt",
                                  "a string, or 'messages' instead",
                                  tr_json_field(c->root, "prompt"));
    }
    return tr_openai_read_completions(c);
}

tr_status_t
tr_openai_tokenize(tr_openai_call_t *c)
{
    tr_result_t *result = new_result(c);

    return result != NULL ? keep_ids(c, result) : TR_ERR_NOMEM;
}

/* How many tokens the prompt of a chat has: ACCEPTED tells it. */
tr_status_t
tr_openai_count(tr_openai_call_t *c)
{
    if (new_result(c) == NULL) {
        return TR_ERR_NOMEM;
    }
    c->r->prompt_tokens = c->prompts[0].len;
    return TR_OK;
}

/* The prompt of a chat, as text and as ids. */
tr_status_t
tr_openai_render(tr_openai_call_t *c)
{
    tr_result_t *result = new_result(c);
    char *text;

    if (result == NULL) {
        return TR_ERR_NOMEM;
    }
    text = tr_arena_alloc(&c->r->arena, c->text_len + 1);
    if (text == NULL) {
        return tr_openai_no_memory(c);
    }
    memcpy(text, c->text, c->text_len);
    result->text = text;
    result->text_len = c->text_len;
    return keep_ids(c, result);
}

/* ---- ids to text -------------------------------------------------------- */

static tr_status_t
wrong_id(tr_openai_call_t *c, const json_t *value, size_t i)
{
    char param[48];

    snprintf(param, sizeof(param), "tokens[%zu]", i);
    if (!json_is_integer(value)) {
        return tr_json_not_integer(c->err, param, value);
    }
    return tr_error_set(c->err, TR_ERR_INVALID, param,
                        "Invalid '%s': %lld is not a token id of this model "
                        "(0 to %u).",
                        param, (long long) json_integer_value(value),
                        tr_tokenizer_vocab_size(c->api->tokenizer) - 1);
}

tr_status_t
tr_openai_read_detokenize(tr_openai_call_t *c)
{
    const json_t *tokens = tr_json_field(c->root, "tokens"), *one;
    const tr_tokenizer_t *t = c->api->tokenizer;
    size_t i;

    if (!json_is_array(tokens)) {
        return tr_json_wrong_type(c->err, "tokens", "an array of token ids",
                                  tokens);
    }
    json_array_foreach ((json_t *) tokens, i, one) {
        if (!json_is_integer(one) || json_integer_value(one) < 0
            || json_integer_value(one)
                   >= (json_int_t) tr_tokenizer_vocab_size(t)) {
            return wrong_id(c, one, i);
        }
    }
    return TR_OK;
}

tr_status_t
tr_openai_detokenize(tr_openai_call_t *c)
{
    const json_t *tokens = tr_json_field(c->root, "tokens");
    const tr_tokenizer_t *t = c->api->tokenizer;
    size_t n = json_array_size(tokens), i, cap = 16;
    tr_result_t *result = new_result(c);
    tr_detok_t detok;
    uint32_t len = 0, bytes;
    char *text;

    for (i = 0; i < n; i++) {
        int32_t id = (int32_t) json_integer_value(json_array_get(tokens, i));

        tr_tokenizer_token_bytes(t, id, &bytes);
        cap += (size_t) bytes * 3 + 16;
    }
    text = result != NULL && cap < UINT32_MAX
               ? tr_arena_alloc(&c->r->arena, cap)
               : NULL;
    if (text == NULL) {
        return tr_openai_no_memory(c);
    }
    tr_detok_init(&detok, false);
    for (i = 0; i < n; i++) {
        int32_t id = (int32_t) json_integer_value(json_array_get(tokens, i));

        len += tr_detok_push(&detok, t, id, text + len, (uint32_t) cap - len);
    }
    len += tr_detok_finish(&detok, text + len, (uint32_t) cap - len);
    result->text = text;
    result->text_len = len;
    return check_size(c, len);
}
