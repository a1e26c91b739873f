/*
 * The OpenAI request (openai.h): what is asked (messages or prompts), as token
 * ids, and how long it may get.  Parameters are in openai_params.c, the JSON
 * underneath in openai_json.c.
 *
 * The order is: everything that is cheap to check first, then the text.  A text
 * that cannot fit the context however it is tokenised is refused by its length
 * in bytes; a client cannot buy seconds of tokeniser time with one request.
 */
#include "openai.h"

#include <stdlib.h>
#include <string.h>

#include "engine/config/log.h"
#include "openai_json.h"
#include "openai_params.h"

#define COMPLETION_TOKENS_DEFAULT 16
/* How much shorter normalisation (NFC) can make a text. */
#define NORMALISATION_FACTOR 4

/* One parse: what it needs, and what is freed at its end. */
typedef struct {
    const tr_openai_t *api;
    tr_tokenizer_scratch_t *scratch;
    tr_request_t *r;
    tr_error_t *err;
    json_t *root;
    int64_t max_tokens; /* asked for, -1: open */
    const int32_t *eos;
    uint32_t n_eos;
    tr_ids_t *prompts; /* [r->n_prompts] */
} call_t;

static tr_status_t
out_of_memory(call_t *c)
{
    return tr_error_set(c->err, TR_ERR_NOMEM, "", "out of memory");
}

/* ---- length ------------------------------------------------------------- */

static const char *
source_field(const call_t *c)
{
    return c->r->endpoint == TR_ENDPOINT_CHAT ? "messages" : "prompt";
}

static tr_status_t
too_long(call_t *c, const char *at_least, uint64_t tokens)
{
    const char *field = source_field(c);

    return tr_error_set(c->err, TR_ERR_CONTEXT_LENGTH, field,
                        "This model's "
                        "maximum context length is %u tokens. However, your "
                        "%s resulted in %s%llu tokens. Please reduce the "
                        "length of the %s.",
                        c->r->max_len, field, at_least,
                        (unsigned long long) tokens, field);
}

/* Text that is too long in whatever tokens. */
static tr_status_t
check_bytes(call_t *c, uint64_t bytes)
{
    uint64_t longest = tr_tokenizer_max_token_bytes(c->api->tokenizer);
    uint64_t least = bytes / ((longest ? longest : 1) * NORMALISATION_FACTOR);

    return least > c->r->max_len ? too_long(c, "at least ", least) : TR_OK;
}

/* A tokenizer may know tokens that the model has no embedding for. */
static tr_status_t
check_vocabulary(call_t *c)
{
    uint32_t i, k;

    if (tr_tokenizer_vocab_size(c->api->tokenizer) <= c->api->vocab) {
        return TR_OK;
    }
    for (i = 0; i < c->r->n_prompts; i++) {
        for (k = 0; k < c->prompts[i].len; k++) {
            if ((uint32_t) c->prompts[i].data[k] >= c->api->vocab) {
                return tr_error_set(c->err, TR_ERR_INVALID, source_field(c),
                                    "Your %s holds the token %d, which this "
                                    "model (%u tokens) does not know.",
                                    source_field(c), c->prompts[i].data[k],
                                    c->api->vocab);
            }
        }
    }
    return TR_OK;
}

/* Settles max_tokens for prompts of known lengths. */
static tr_status_t
check_lengths(call_t *c)
{
    uint32_t longest = 0, i, room;
    bool chat = c->r->endpoint == TR_ENDPOINT_CHAT;

    for (i = 0; i < c->r->n_prompts; i++) {
        if (c->prompts[i].len > longest) {
            longest = c->prompts[i].len;
        }
    }
    if (longest > c->r->max_len
        || (longest == c->r->max_len && c->max_tokens != 0)) {
        return too_long(c, "", longest);
    }
    room = c->r->max_len - longest;
    if (c->max_tokens > room) {
        return tr_error_set(c->err, TR_ERR_CONTEXT_LENGTH, source_field(c),
                            "This model's maximum context length is %u tokens. "
                            "However, you requested %llu tokens (%u in the %s, "
                            "%lld in the completion). Please reduce the length "
                            "of the %s or completion.",
                            c->r->max_len,
                            (unsigned long long) longest
                                + (unsigned long long) c->max_tokens,
                            longest, source_field(c), (long long) c->max_tokens,
                            source_field(c));
    }
    if (c->max_tokens < 0) {
        c->max_tokens = chat || room < COMPLETION_TOKENS_DEFAULT
                            ? room
                            : COMPLETION_TOKENS_DEFAULT;
    }
    c->r->params.max_tokens = (uint32_t) c->max_tokens;
    if (c->r->params.min_tokens > c->r->params.max_tokens) {
        return tr_error_set(c->err, TR_ERR_INVALID, "min_tokens",
                            "'min_tokens' (%u) is above the tokens that can "
                            "be generated (%u).",
                            c->r->params.min_tokens, c->r->params.max_tokens);
    }
    return TR_OK;
}

/* ---- chat --------------------------------------------------------------- */

static tr_status_t
message_role(call_t *c, json_t *message, size_t i, tr_chat_message_t *out)
{
    static const char *const roles[] = { "system",    "developer", "user",
                                         "assistant", "tool",      "function" };
    json_t *role = json_object_get(message, "role");
    char param[64];
    size_t k;

    snprintf(param, sizeof(param), "messages[%zu].role", i);
    if (!json_is_string(role)) {
        return tr_json_wrong_type(c->err, param, "a string", role);
    }
    for (k = 0; k < sizeof(roles) / sizeof(roles[0]); k++) {
        if (strcmp(json_string_value(role), roles[k]) == 0) {
            /* templates know one name for who sets the rules */
            out->role = k == 1 ? "system" : roles[k];
            out->role_len = (uint32_t) strlen(out->role);
            return TR_OK;
        }
    }
    return tr_error_set(c->err, TR_ERR_INVALID, param,
                        "Invalid value: "
                        "'%.64s'. Supported values are: 'system', "
                        "'developer', 'user', 'assistant', 'tool' and "
                        "'function'.",
                        json_string_value(role));
}

/* Text of part k; other kinds of parts are refused. */
static tr_status_t
content_part(call_t *c, json_t *part, size_t i, size_t k, json_t **text)
{
    char param[96];
    json_t *type;

    snprintf(param, sizeof(param), "messages[%zu].content[%zu]", i, k);
    if (!json_is_object(part)) {
        return tr_json_wrong_type(c->err, param, "an object", part);
    }
    type = json_object_get(part, "type");
    snprintf(param, sizeof(param), "messages[%zu].content[%zu].type", i, k);
    if (!json_is_string(type)) {
        return tr_json_wrong_type(c->err, param, "a string", type);
    }
    if (strcmp(json_string_value(type), "text") != 0) {
        return tr_error_set(c->err, TR_ERR_INVALID, param,
                            "Content parts of "
                            "type '%.64s' are not supported; this model reads "
                            "'text' only.",
                            json_string_value(type));
    }
    *text = json_object_get(part, "text");
    snprintf(param, sizeof(param), "messages[%zu].content[%zu].text", i, k);
    if (!json_is_string(*text)) {
        return tr_json_wrong_type(c->err, param, "a string", *text);
    }
    return TR_OK;
}

/* Parts are joined by line feeds, as vLLM does it. */
static tr_status_t
content_parts(call_t *c, json_t *parts, size_t i, tr_arena_t *arena,
              tr_chat_message_t *out)
{
    size_t k, total = 0;
    json_t *part, *text = NULL;
    tr_status_t rc;
    char *at;

    if (json_array_size(parts) == 0) {
        char param[64];

        snprintf(param, sizeof(param), "messages[%zu].content", i);
        return tr_error_set(c->err, TR_ERR_INVALID, param,
                            "Invalid '%s': "
                            "empty array. Expected at least one part.",
                            param);
    }
    json_array_foreach (parts, k, part) {
        rc = content_part(c, part, i, k, &text);
        if (rc != TR_OK) {
            return rc;
        }
        total += json_string_length(text) + 1;
    }
    at = tr_arena_alloc(arena, total);
    if (at == NULL) {
        return out_of_memory(c);
    }
    out->content = at;
    out->content_len = total - 1;
    json_array_foreach (parts, k, part) {
        text = json_object_get(part, "text");
        memcpy(at, json_string_value(text), json_string_length(text));
        at += json_string_length(text);
        *at++ = '\n';
    }
    return TR_OK;
}

static tr_status_t
read_message(call_t *c, json_t *message, size_t i, tr_arena_t *arena,
             tr_chat_message_t *out)
{
    json_t *content, *calls;
    char param[64];
    tr_status_t rc;

    snprintf(param, sizeof(param), "messages[%zu]", i);
    if (!json_is_object(message)) {
        return tr_json_wrong_type(c->err, param, "an object", message);
    }
    rc = message_role(c, message, i, out);
    if (rc != TR_OK) {
        return rc;
    }
    calls = tr_json_field(message, "tool_calls");
    if (json_array_size(calls) != 0) {
        snprintf(param, sizeof(param), "messages[%zu].tool_calls", i);
        return tr_error_set(c->err, TR_ERR_INVALID, param,
                            "'%s': tool calls "
                            "are not supported.",
                            param);
    }
    content = json_object_get(message, "content");
    if (json_is_array(content)) {
        return content_parts(c, content, i, arena, out);
    }
    if (!json_is_string(content)) {
        snprintf(param, sizeof(param), "messages[%zu].content", i);
        return tr_json_wrong_type(c->err, param,
                                  "a string or an array of "
                                  "text parts",
                                  content);
    }
    out->content = json_string_value(content);
    out->content_len = json_string_length(content);
    return TR_OK;
}

/* The template as chat_template_kwargs wants it.  enable_thinking is what clients
 * of vLLM send; other names stand for nothing in the templates that we know, and
 * are let pass like a variable that a template does not use. */
static tr_status_t
choose_template(call_t *c, tr_chat_template_t *own,
                const tr_chat_template_t **out)
{
    static const char kwargs[] = "chat_template_kwargs";
    static const char name[] = "chat_template_kwargs.enable_thinking";
    const json_t *object = tr_json_field(c->root, kwargs), *value;

    *out = c->api->chat_template;
    if (object != NULL && !json_is_object(object)) {
        return tr_json_wrong_type(c->err, kwargs, "an object", object);
    }
    value = tr_json_field(object, "enable_thinking");
    if (value == NULL) {
        return TR_OK;
    }
    if (!json_is_boolean(value)) {
        return tr_json_wrong_type(c->err, name, "a boolean", value);
    }
    *out = tr_chat_template_thinking(*out, json_is_true(value), own);
    return *out != NULL
               ? TR_OK
               : tr_error_set(c->err, TR_ERR_INVALID, name,
                              "'%s' is %s, and this server does not know what "
                              "the model's chat template does with it; leave "
                              "it out.",
                              name, json_is_true(value) ? "true" : "false");
}

static tr_status_t
read_messages(call_t *c, json_t *array, tr_arena_t *arena)
{
    const tr_chat_template_t *template;
    tr_chat_template_t own;
    size_t n = json_array_size(array), i;
    tr_chat_message_t *messages;
    uint64_t bytes = 0;
    json_t *message;
    tr_status_t rc;

    messages = tr_arena_alloc(arena, n * sizeof(*messages));
    if (messages == NULL) {
        return out_of_memory(c);
    }
    json_array_foreach (array, i, message) {
        rc = read_message(c, message, i, arena, &messages[i]);
        if (rc != TR_OK) {
            return rc;
        }
        bytes += messages[i].content_len;
    }
    rc = check_bytes(c, bytes);
    if (rc != TR_OK) {
        return rc;
    }
    rc = choose_template(c, &own, &template);
    return rc != TR_OK
               ? rc
               : tr_chat_template_encode(template, c->api->tokenizer,
                                         c->scratch, messages, (uint32_t) n,
                                         &c->prompts[0], c->err);
}

static tr_status_t
parse_chat(call_t *c)
{
    json_t *messages = tr_json_field(c->root, "messages");
    tr_arena_t arena;
    tr_status_t rc;

    if (c->api->chat_template->kind == TR_TEMPLATE_NONE) {
        return tr_error_set(c->err, TR_ERR_INVALID, "messages",
                            "This model "
                            "has no chat template; use /v1/completions.");
    }
    if (!json_is_array(messages)) {
        return tr_json_wrong_type(c->err, "messages", "an array of objects",
                                  messages);
    }
    if (json_array_size(messages) == 0) {
        return tr_error_set(c->err, TR_ERR_INVALID, "messages",
                            "Invalid "
                            "'messages': empty array. Expected an array with "
                            "minimum length 1, but got an empty array "
                            "instead.");
    }
    c->prompts = calloc(1, sizeof(*c->prompts));
    if (c->prompts == NULL) {
        return out_of_memory(c);
    }
    c->r->n_prompts = 1;
    memset(&arena, 0, sizeof(arena));
    rc = read_messages(c, messages, &arena);
    tr_arena_free(&arena);
    return rc;
}

/* ---- completions -------------------------------------------------------- */

/* prompt, or prompt[i] when i >= 0 */
static const char *
prompt_param(char *buf, size_t size, int64_t i)
{
    snprintf(buf, size, i < 0 ? "prompt" : "prompt[%lld]", (long long) i);
    return buf;
}

static tr_status_t
read_ids(call_t *c, json_t *array, int64_t at, tr_ids_t *out)
{
    size_t n = json_array_size(array), i;
    char param[48], item[80];
    json_t *value;

    prompt_param(param, sizeof(param), at);
    if (n > c->r->max_len) {
        return too_long(c, "", n);
    }
    out->data = malloc((n ? n : 1) * sizeof(*out->data));
    if (out->data == NULL) {
        return out_of_memory(c);
    }
    out->cap = (uint32_t) n;
    json_array_foreach (array, i, value) {
        int64_t id = json_integer_value(value);

        snprintf(item, sizeof(item), "%s[%zu]", param, i);
        if (!json_is_integer(value)) {
            return tr_json_not_integer(c->err, item, value);
        }
        if (id < 0 || id >= (int64_t) c->api->vocab) {
            return tr_error_set(c->err, TR_ERR_INVALID, item,
                                "Invalid '%s': "
                                "token id %lld is out of the vocabulary (0 to "
                                "%u).",
                                item, (long long) id, c->api->vocab - 1);
        }
        out->data[out->len++] = (int32_t) id;
    }
    return TR_OK;
}

/* One prompt: a string or an array of token ids. */
static tr_status_t
read_prompt(call_t *c, json_t *value, int64_t at, tr_ids_t *out)
{
    char param[48];
    tr_status_t rc;

    prompt_param(param, sizeof(param), at);
    if (json_is_array(value)) {
        rc = read_ids(c, value, at, out);
    } else if (json_is_string(value)) {
        rc = check_bytes(c, json_string_length(value));
        if (rc == TR_OK) {
            rc = tr_tokenizer_encode(c->api->tokenizer, c->scratch,
                                     json_string_value(value),
                                     json_string_length(value),
                                     TR_ENCODE_SPECIAL
                                         | TR_ENCODE_PARSE_SPECIAL,
                                     out, c->err);
        }
    } else {
        return tr_json_wrong_type(c->err, param,
                                  "a string or an array of "
                                  "token ids",
                                  value);
    }
    if (rc == TR_OK && out->len == 0) {
        rc = tr_error_set(c->err, TR_ERR_INVALID, param,
                          "Invalid '%s': it is "
                          "empty. Expected at least one token.",
                          param);
    }
    return rc;
}

static tr_status_t
parse_completion(call_t *c)
{
    json_t *prompt = tr_json_field(c->root, "prompt");
    size_t n = 1, i;
    bool many;

    if (!json_is_string(prompt) && !json_is_array(prompt)) {
        return tr_json_wrong_type(c->err, "prompt",
                                  "a string, an array of "
                                  "strings, or token ids",
                                  prompt);
    }
    many = json_is_array(prompt) && !json_is_number(json_array_get(prompt, 0));
    if (many) {
        n = json_array_size(prompt);
    }
    if (n == 0) {
        return tr_error_set(c->err, TR_ERR_INVALID, "prompt",
                            "Invalid "
                            "'prompt': empty array. Expected at least one "
                            "prompt.");
    }
    if (n * c->r->n > c->api->max_choices) {
        return tr_error_set(c->err, TR_ERR_INVALID, "prompt",
                            "%zu prompts "
                            "with 'n' = %u make %zu choices; this server gives "
                            "at most %u a request.",
                            n, c->r->n, n * c->r->n, c->api->max_choices);
    }
    c->prompts = calloc(n, sizeof(*c->prompts));
    if (c->prompts == NULL) {
        return out_of_memory(c);
    }
    c->r->n_prompts = (uint32_t) n;
    if (!many) {
        return read_prompt(c, prompt, -1, &c->prompts[0]);
    }
    for (i = 0; i < n; i++) {
        tr_status_t rc = read_prompt(c, json_array_get(prompt, i), (int64_t) i,
                                     &c->prompts[i]);

        if (rc != TR_OK) {
            return rc;
        }
    }
    return TR_OK;
}

/* ---- the whole ---------------------------------------------------------- */

static tr_status_t
check_model(call_t *c)
{
    json_t *model = tr_json_field(c->root, "model");

    if (model == NULL) {
        return TR_OK; /* there is only one */
    }
    if (!json_is_string(model)) {
        return tr_json_wrong_type(c->err, "model", "a string", model);
    }
    if (strcmp(json_string_value(model), c->api->model) != 0) {
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
settle_eos(call_t *c)
{
    int32_t turn = c->api->chat_template->end_of_turn, *eos;
    uint32_t i;

    c->eos = c->api->eos;
    c->n_eos = c->api->n_eos;
    if (c->r->endpoint != TR_ENDPOINT_CHAT || turn < 0) {
        return TR_OK;
    }
    for (i = 0; i < c->n_eos; i++) {
        if (c->eos[i] == turn) {
            return TR_OK;
        }
    }
    eos = tr_arena_alloc(&c->r->arena, (c->n_eos + 1) * sizeof(*eos));
    if (eos == NULL) {
        return out_of_memory(c);
    }
    if (c->n_eos != 0) {
        memcpy(eos, c->eos, c->n_eos * sizeof(*eos));
    }
    eos[c->n_eos++] = turn;
    c->eos = eos;
    return TR_OK;
}

static tr_status_t
lay_out(call_t *c)
{
    tr_request_t *r = c->r;
    tr_status_t rc = check_lengths(c);

    if (rc == TR_OK) {
        rc = check_vocabulary(c);
    }
    if (rc == TR_OK) {
        rc = settle_eos(c);
    }
    if (rc == TR_OK) {
        rc = tr_request_layout(r, c->prompts, r->n_prompts, c->api->vocab,
                               c->eos, c->n_eos, c->api->tokenizer);
        if (rc != TR_OK) {
            return out_of_memory(c);
        }
    }
    return rc;
}

static tr_status_t
parse(call_t *c)
{
    tr_request_t *r = c->r;
    tr_status_t rc;

    rc = tr_json_parse(r->body, r->body_len, &c->root, c->err);
    free(r->body); /* the parsed values are copies */
    r->body = NULL;
    r->body_len = r->body_cap = 0;
    if (rc == TR_OK) {
        rc = check_model(c);
    }
    if (rc == TR_OK) {
        rc = tr_openai_params(c->api, c->root, r, &c->max_tokens, c->err);
    }
    if (rc == TR_OK) {
        rc = r->endpoint == TR_ENDPOINT_CHAT ? parse_chat(c)
                                             : parse_completion(c);
    }
    return rc == TR_OK ? lay_out(c) : rc;
}

tr_status_t
tr_openai_parse(const tr_openai_t *api, tr_tokenizer_scratch_t *s,
                tr_request_t *r)
{
    call_t c;
    tr_status_t rc;
    uint32_t i;

    memset(&c, 0, sizeof(c));
    c.api = api;
    c.scratch = s;
    c.r = r;
    c.err = &r->error;
    c.max_tokens = -1;
    memset(&r->error, 0, sizeof(r->error));
    r->params.logprobs = -1;
    rc = parse(&c);
    json_decref(c.root);
    if (c.prompts != NULL) {
        for (i = 0; i < r->n_prompts; i++) {
            free(c.prompts[i].data);
        }
        free(c.prompts);
    }
    r->error.status = rc;
    return rc;
}
