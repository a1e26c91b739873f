/*
 * The OpenAI request (openai.h): the order in which it is read, and how long it
 * may get.  openai_internal.h says what stands in which file.
 *
 * The order is: everything that is cheap to check first, then the text.  A text
 * that cannot fit the context however it is tokenised is refused by its length
 * in bytes; a client cannot buy seconds of tokeniser time with one request.
 */
#include "engine/scheduler/replay.h"
#include "openai_internal.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "openai_params.h"

/* How much shorter normalisation (NFC) can make a text. */
#define NORMALISATION_FACTOR 4

tr_status_t
tr_openai_no_memory(tr_openai_call_t *c)
{
    return tr_error_set(c->err, TR_ERR_NOMEM, "", "out of memory");
}

/* ---- length ------------------------------------------------------------- */

tr_status_t
tr_openai_too_long(tr_openai_call_t *c, const char *at_least, uint64_t tokens)
{
    const char *field = c->endpoint->prompt_field;

    return tr_error_set(c->err, TR_ERR_CONTEXT_LENGTH, field,
                        "This model's "
                        "maximum context length is %u tokens. However, your "
                        "%s resulted in %s%llu tokens. Please reduce the "
                        "length of the %s.",
                        c->r->max_len, field, at_least,
                        (unsigned long long) tokens, field);
}

/* Bytes that a token may stand for. */
static uint64_t
token_bytes(const tr_openai_call_t *c)
{
    uint64_t longest = tr_tokenizer_max_token_bytes(c->api->tokenizer);

    return (longest ? longest : 1) * NORMALISATION_FACTOR;
}

uint64_t
tr_openai_max_bytes(const tr_openai_call_t *c)
{
    return ((uint64_t) c->r->max_len + 1) * token_bytes(c);
}

tr_status_t
tr_openai_check_bytes(tr_openai_call_t *c, uint64_t bytes)
{
    uint64_t least = bytes / token_bytes(c);

    return least > c->r->max_len ? tr_openai_too_long(c, "at least ", least)
                                 : TR_OK;
}

tr_status_t
tr_openai_needs_items(tr_openai_call_t *c, const char *param)
{
    return tr_error_set(c->err, TR_ERR_UNSUPPORTED, param,
                        "'%s' needs a gateway that is as new as this engine; "
                        "the one that sent this request is older.",
                        param);
}

/* A tokenizer may know tokens that the model has no embedding for. */
static tr_status_t
check_vocabulary(tr_openai_call_t *c)
{
    uint32_t i, k;

    if (tr_tokenizer_vocab_size(c->api->tokenizer) <= c->api->vocab) {
        return TR_OK;
    }
    for (i = 0; i < c->r->n_prompts; i++) {
        for (k = 0; k < c->prompts[i].len; k++) {
            if ((uint32_t) c->prompts[i].data[k] >= c->api->vocab) {
                return tr_error_set(c->err, TR_ERR_INVALID,
                                    c->endpoint->prompt_field,
                                    "Your %s contains the token %d, which "
                                    "this model (%u tokens) does not know.",
                                    c->endpoint->prompt_field,
                                    c->prompts[i].data[k], c->api->vocab);
            }
        }
    }
    return TR_OK;
}

/* Settles max_tokens for prompts of known lengths: each choice ends where the
 * context does, the latest (tr_request_layout). */
static tr_status_t
check_lengths(tr_openai_call_t *c)
{
    uint32_t longest = 0, shortest = UINT32_MAX, i, room;
    uint32_t most = c->endpoint->max_tokens;

    for (i = 0; i < c->r->n_prompts; i++) {
        uint32_t len = c->prompts[i].len;

        longest = len > longest ? len : longest;
        shortest = len < shortest ? len : shortest;
    }
    if (longest > c->r->max_len
        || (longest == c->r->max_len && c->max_tokens != 0)) {
        return tr_openai_too_long(c, "", longest);
    }
    room = c->r->max_len - shortest;
    if (c->max_tokens < 0) {
        c->max_tokens = most == 0 ? room : most;
    }
    if (c->max_tokens > room) {
        c->max_tokens = room; /* a ceiling, as clients mean it */
    }
    c->r->params.max_tokens = (uint32_t) c->max_tokens;
    if (c->r->params.min_tokens > c->r->params.max_tokens) {
        return tr_error_set(c->err, TR_ERR_INVALID, "min_tokens",
                            "'min_tokens' (%u) exceeds the number of tokens "
                            "that can be generated (%u).",
                            c->r->params.min_tokens, c->r->params.max_tokens);
    }
    return TR_OK;
}

tr_status_t
tr_openai_repeat(tr_openai_call_t *c, const char *members, size_t len)
{
    char *own = tr_arena_alloc(&c->r->arena, len);

    if (own == NULL || len > UINT32_MAX) {
        return tr_openai_no_memory(c);
    }
    memcpy(own, members, len);
    c->r->repeated = own;
    c->r->repeated_len = (uint32_t) len;
    return TR_OK;
}

/* ---- the whole ---------------------------------------------------------- */

/* The served name that is this one, NULL: none is. */
static const char *
find_name(const tr_openai_t *api, const char *name, size_t len)
{
    const char *one = api->names != NULL ? api->names : api->model;

    while (strlen(one) != len || memcmp(one, name, len) != 0) {
        one += strlen(one) + 1;
        if (api->names == NULL || *one == '\0') {
            return NULL;
        }
    }
    return one;
}

static tr_status_t
check_model(tr_openai_call_t *c)
{
    json_t *model = tr_json_field(c->root, "model");
    tr_request_t *r = c->r;

    if (r->routed_len != 0) {
        r->served_as = find_name(c->api, r->ahead + r->replay_len,
                                 r->routed_len);
        /* it chose this engine by what it read, or was told where the body says
         * nothing: whether that is a name of this engine's is its business, but
         * not what the body says */
        if (model != NULL
            && (!json_is_string(model)
                || json_string_length(model) != r->routed_len
                || memcmp(json_string_value(model), r->ahead + r->replay_len,
                          r->routed_len)
                       != 0)) {
            return tr_error_set(c->err, TR_ERR_INVALID, "model",
                                "The gateway and the engine read different "
                                "models in this body.");
        }
        return TR_OK;
    }
    if (model == NULL) {
        return TR_OK; /* there is only one */
    }
    if (!json_is_string(model)) {
        return tr_json_wrong_type(c->err, "model", "a string", model);
    }
    r->served_as = find_name(c->api, json_string_value(model),
                             json_string_length(model));
    if (r->served_as == NULL) {
        return tr_error_set(c->err, TR_ERR_MODEL_NOT_FOUND, "model",
                            "The "
                            "model `%.128s` does not exist; this engine "
                            "serves `%s`.",
                            json_string_value(model), c->api->model);
    }
    return TR_OK;
}

/* What ends a generation: the model's eos tokens, in a chat the end of the turn
 * too. */
static tr_status_t
settle_eos(tr_openai_call_t *c)
{
    int32_t turn = c->api->chat_template->end_of_turn, *eos;
    uint32_t i;

    c->eos = c->api->eos;
    c->n_eos = c->api->n_eos;
    if (!c->endpoint->ends_turn || turn < 0) {
        return TR_OK;
    }
    for (i = 0; i < c->n_eos; i++) {
        if (c->eos[i] == turn) {
            return TR_OK;
        }
    }
    eos = tr_arena_alloc(&c->r->arena, (c->n_eos + 1) * sizeof(*eos));
    if (eos == NULL) {
        return tr_openai_no_memory(c);
    }
    if (c->n_eos != 0) {
        memcpy(eos, c->eos, c->n_eos * sizeof(*eos));
    }
    eos[c->n_eos++] = turn;
    c->eos = eos;
    return TR_OK;
}

static tr_status_t
lay_out(tr_openai_call_t *c)
{
    tr_request_t *r = c->r;
    tr_status_t rc = check_vocabulary(c);

    if (rc == TR_OK) {
        rc = settle_eos(c);
    }
    if (rc == TR_OK && r->constrained && c->n_eos == 0) {
        rc = tr_error_set(c->err, TR_ERR_INVALID, r->grammar_spec.param,
                          "'%s': this model has no end token (eos_token_id of "
                          "config.json), with which such an answer ends.",
                          r->grammar_spec.param);
    }
    if (rc == TR_OK) {
        rc = tr_request_layout(r, c->prompts, r->n_prompts, c->api->vocab,
                               c->eos, c->n_eos, c->api->tokenizer);
        if (rc != TR_OK) {
            return tr_openai_no_memory(c);
        }
    }
    return rc;
}

static tr_status_t
parse(tr_openai_call_t *c)
{
    tr_request_t *r = c->r;
    tr_status_t rc;

    rc = c->endpoint == NULL
             ? tr_error_set(c->err, TR_ERR_NOT_FOUND, "",
                            "This engine does not serve endpoint %u.",
                            r->endpoint)
             : tr_json_parse(r->body, r->body_len, &c->root, c->err);
    c->body_len = r->body_len;
    if (rc == TR_OK) {
        rc = check_model(c);
    }
    if (rc == TR_OK && c->endpoint->translate != NULL) {
        rc = c->endpoint->translate(c);
        c->translated = rc == TR_OK;
    }
    if (rc == TR_AGAIN) {
        return rc; /* it is read again */
    }
    free(r->body); /* the parsed values are copies */
    r->body = NULL;
    r->body_len = r->body_cap = 0;
    r->n = 1;
    r->tell_stop = rc == TR_OK && c->endpoint->tells_stop;
    r->max_len = c->api->max_model_len;
    if (rc == TR_OK && c->endpoint->fields != 0) {
        rc = tr_openai_params(c->api, c->endpoint, c->root, r, &c->max_tokens,
                              c->err);
    }
    if (rc == TR_OK) {
        rc = c->endpoint->read_prompts(c);
    }
    if (rc == TR_OK && c->endpoint->result == NULL) {
        rc = check_lengths(c);
    }
    if (rc == TR_OK && c->endpoint->fields == TR_FIELD_CHAT) {
        rc = tr_openai_hold(c); /* the largest work, for what else is right */
    }
    if (rc == TR_OK) {
        rc = c->endpoint->result != NULL ? c->endpoint->result(c) : lay_out(c);
    }
    return rc;
}

tr_status_t
tr_openai_parse(const tr_openai_t *api, tr_tokenizer_scratch_t *s,
                tr_request_t *r)
{
    tr_openai_call_t c;
    tr_status_t rc;
    uint32_t i;

    memset(&c, 0, sizeof(c));
    c.api = api;
    c.endpoint = tr_endpoint(r->endpoint);
    c.scratch = s;
    c.r = r;
    c.err = &r->error;
    c.max_tokens = -1;
    memset(&r->error, 0, sizeof(r->error));
    r->params.logprobs = -1;
    r->created = (int64_t) time(NULL);
    rc = tr_replay_begin(r, api->model_id);
    if (rc == TR_OK) {
        rc = parse(&c);
    }
    if (rc == TR_OK) {
        rc = tr_replay(r, api->tokenizer, api->vocab);
    }
    if (rc != TR_OK && c.translated) {
        tr_endpoint_name_fields(r->endpoint, &r->error);
    }
    json_decref(c.root);
    if (c.prompts != NULL) {
        for (i = 0; i < r->n_prompts; i++) {
            free(c.prompts[i].data);
        }
        free(c.prompts);
    }
    free(c.text);
    if (rc != TR_AGAIN) {
        free(r->ahead);
        r->ahead = NULL;
        tr_lookup_free(r->lookup);
        r->lookup = NULL;
    }
    r->error.status = rc;
    return rc;
}
