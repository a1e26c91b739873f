/*
 * The prompts of a completion, or of embeddings: one or several, as text or as
 * token ids.
 */
#include "openai_internal.h"

#include <stdlib.h>
#include <string.h>

/* prompt, or prompt[i] when i >= 0, by the endpoint's name */
static void
prompt_param(const tr_openai_call_t *c, char *buf, size_t size, int64_t i)
{
    const char *name = c->endpoint->prompt_field;

    if (i < 0) {
        snprintf(buf, size, "%s", name);
    } else {
        snprintf(buf, size, "%s[%lld]", name, (long long) i);
    }
}

static tr_status_t
read_ids(tr_openai_call_t *c, json_t *array, int64_t at, tr_ids_t *out)
{
    size_t n = json_array_size(array), i;
    char param[48], item[80];
    json_t *value;

    prompt_param(c, param, sizeof(param), at);
    if (n > c->r->max_len) {
        return tr_openai_too_long(c, "", n);
    }
    out->data = malloc((n ? n : 1) * sizeof(*out->data));
    if (out->data == NULL) {
        return tr_openai_no_memory(c);
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

/* A text that begins with the BOS token, written out, does not get another. */
static void
drop_double(const tr_openai_call_t *c, tr_ids_t *ids)
{
    if (ids->len > 1 && ids->data[0] == ids->data[1]
        && tr_tokenizer_is_special(c->api->tokenizer, ids->data[0])) {
        ids->len--;
        memmove(ids->data, ids->data + 1, ids->len * sizeof(*ids->data));
    }
}

/* One prompt: a string or an array of token ids. */
static tr_status_t
read_prompt(tr_openai_call_t *c, json_t *value, int64_t at, tr_ids_t *out)
{
    bool special = true;
    char param[48];
    tr_status_t rc = tr_json_bool(c->root, "add_special_tokens", &special,
                                  c->err);

    if (rc != TR_OK) {
        return rc;
    }
    prompt_param(c, param, sizeof(param), at);
    if (json_is_array(value)) {
        rc = read_ids(c, value, at, out);
    } else if (json_is_string(value)) {
        rc = tr_openai_check_bytes(c, json_string_length(value));
        if (rc == TR_OK) {
            rc = tr_tokenizer_encode(c->api->tokenizer, c->scratch,
                                     json_string_value(value),
                                     json_string_length(value),
                                     (special ? TR_ENCODE_SPECIAL : 0)
                                         | TR_ENCODE_PARSE_SPECIAL,
                                     out, c->err);
        }
        if (rc == TR_OK && special) {
            drop_double(c, out);
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

tr_status_t
tr_openai_read_completions(tr_openai_call_t *c)
{
    return tr_openai_read_prompts(c, tr_json_field(c->root, "prompt"));
}

tr_status_t
tr_openai_read_prompts(tr_openai_call_t *c, json_t *prompt)
{
    const char *field = c->endpoint->prompt_field;
    size_t n = 1, i;
    bool many;

    if (!json_is_string(prompt) && !json_is_array(prompt)) {
        return tr_json_wrong_type(c->err, field,
                                  "a string, an array of "
                                  "strings, or token ids",
                                  prompt);
    }
    many = json_is_array(prompt) && !json_is_number(json_array_get(prompt, 0));
    if (many) {
        n = json_array_size(prompt);
    }
    if (n == 0) {
        return tr_error_set(c->err, TR_ERR_INVALID, field,
                            "Invalid "
                            "'%s': empty array. Expected at least one "
                            "prompt.",
                            field);
    }
    if (n * c->r->n > tr_openai_choices(c->api, c->r)) {
        return tr_error_set(c->err, TR_ERR_INVALID, field,
                            "%zu prompts with 'n' = %u make %zu choices; "
                            "this server allows at most %u per request.",
                            n, c->r->n, n * c->r->n,
                            tr_openai_choices(c->api, c->r));
    }
    c->prompts = calloc(n, sizeof(*c->prompts));
    if (c->prompts == NULL) {
        return tr_openai_no_memory(c);
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
