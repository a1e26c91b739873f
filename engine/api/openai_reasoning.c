/*
 * What a request says of reasoning: whether it is sent, and how much of it there
 * shall be, as far as the chat template can be told: the variable
 * reasoning_effort, or else enable_thinking for "none", or else a budget
 * (reasoning_effort_budgets); and after how many tokens it is closed.
 */
#include "engine/config/config.h"
#include "openai_internal.h"

#include <stdlib.h>
#include <string.h>

static tr_status_t
set_variable(tr_openai_call_t *c, const char *name, json_t *value)
{
    static const char kwargs[] = "chat_template_kwargs";
    json_t *object = tr_json_field(c->root, kwargs);

    if (object == NULL) {
        object = json_object();
        json_object_set_new(c->root, kwargs, object);
    }
    if (json_object_get(object, name) != NULL) {
        json_decref(value);
        return tr_error_set(c->err, TR_ERR_INVALID, "reasoning_effort",
                            "'reasoning_effort' and '%s.%s' cannot both be "
                            "given.",
                            kwargs, name);
    }
    return json_object_set_new(object, name, value) == 0
               ? TR_OK
               : tr_openai_no_memory(c);
}

/* A tokenizer may know tokens that the model has no row for: nothing can make it
 * say them. */
static tr_status_t
check_known(tr_openai_call_t *c, const tr_ids_t *ids, const char *end,
            const char *param)
{
    for (uint32_t i = 0; i < ids->len; i++) {
        if ((uint32_t) ids->data[i] >= c->api->vocab) {
            return tr_error_set(c->err, TR_ERR_INVALID, param,
                                "'%s' is not supported by this model: its "
                                "reasoning ends with %s, whose token id %d "
                                "is outside its vocabulary (%u tokens).",
                                param, end, ids->data[i], c->api->vocab);
        }
    }
    return TR_OK;
}

/* The ids that close reasoning, for a budget of tokens. */
static tr_status_t
set_budget(tr_openai_call_t *c, int64_t budget, const char *param)
{
    const char *end = tr_dialect_thought_end(c->api->dialect);
    tr_ids_t ids = { 0 };
    int32_t *kept = NULL;
    uint8_t *tags;
    size_t n;
    tr_status_t rc;

    if (end == NULL) {
        return TR_OK; /* it does not reason */
    }
    if (c->r->plain) {
        return tr_openai_needs_items(c, param);
    }
    n = strlen(end);
    tags = malloc(n);
    if (tags == NULL) {
        return tr_openai_no_memory(c);
    }
    memset(tags, TR_TEXT_TRUSTED, n);
    rc = tr_tokenizer_encode_tagged(c->api->tokenizer, c->scratch, end, tags, n,
                                    &ids, c->err);
    free(tags);
    if (rc == TR_OK) {
        rc = check_known(c, &ids, end, param);
    }
    if (rc == TR_OK) {
        kept = tr_arena_alloc(&c->r->arena, (ids.len + 1) * sizeof(*kept));
    }
    if (kept != NULL && ids.len > 0) {
        memcpy(kept, ids.data, ids.len * sizeof(*kept));
        c->r->thought_end = kept;
        c->r->n_thought_end = ids.len;
        c->r->thought_budget = (uint32_t) budget;
    }
    free(ids.data);
    return rc == TR_OK && kept == NULL ? tr_openai_no_memory(c) : rc;
}

int64_t
tr_openai_effort_budget(const tr_openai_t *api, const char *effort)
{
    return tr_dialect_thought_end(api->dialect) == NULL
               ? -1
               : tr_config_effort_budget(api->effort_budgets, effort);
}

/* Reasoning is asked for, unless the client says itself whether it wants it. */
static tr_status_t
set_effort_budget(tr_openai_call_t *c, int64_t budget)
{
    const json_t *kwargs = tr_json_field(c->root, "chat_template_kwargs");

    if (c->r->thought_end != NULL) {
        return tr_error_set(c->err, TR_ERR_INVALID, "reasoning_effort",
                            "'reasoning_effort' is a budget of %lld tokens "
                            "here: it and 'thinking_token_budget' cannot both "
                            "be given.",
                            (long long) budget);
    }
    if (c->api->chat_template->reads_thinking
        && json_object_get(kwargs, "enable_thinking") == NULL) {
        tr_status_t rc = set_variable(c, "enable_thinking", json_true());

        if (rc != TR_OK) {
            return rc;
        }
    }
    return set_budget(c, budget, "reasoning_effort");
}

static tr_status_t
read_effort(tr_openai_call_t *c)
{
    static const char *const efforts[] = { "none", "minimal", "low", "medium",
                                           "high", "xhigh",   "max" };
    const tr_chat_template_t *t = c->api->chat_template;
    const json_t *effort = tr_json_field(c->root, "reasoning_effort");
    const json_t *kwargs = tr_json_field(c->root, "chat_template_kwargs");
    const char *text = json_string_value(effort);
    bool known = false;
    int64_t budget;

    if (effort == NULL) {
        return TR_OK;
    }
    if (text == NULL) {
        return tr_json_wrong_type(c->err, "reasoning_effort", "a string",
                                  effort);
    }
    if (kwargs != NULL && !json_is_object(kwargs)) {
        return tr_json_wrong_type(c->err, "chat_template_kwargs", "an object",
                                  kwargs);
    }
    for (size_t i = 0; i < sizeof(efforts) / sizeof(efforts[0]); i++) {
        known |= strcmp(text, efforts[i]) == 0;
    }
    if (!known) {
        return tr_error_set(c->err, TR_ERR_INVALID, "reasoning_effort",
                            "Invalid value: '%.64s'. Supported values are: "
                            "'none', 'minimal', 'low', 'medium', 'high', "
                            "'xhigh' and 'max'.",
                            text);
    }
    if (t->reads_effort) {
        return set_variable(c, "reasoning_effort", json_string(text));
    }
    if (strcmp(text, "none") == 0 && t->reads_thinking) {
        return set_variable(c, "enable_thinking", json_false());
    }
    if (strcmp(text, "none") == 0 && !tr_dialect_reasons(c->api->dialect)) {
        return TR_OK; /* it does not reason anyway */
    }
    budget = tr_openai_effort_budget(c->api, text);
    return budget >= 0
               ? set_effort_budget(c, budget)
               : tr_error_set(c->err, TR_ERR_INVALID, "reasoning_effort",
                              "'reasoning_effort': '%s' is not available for "
                              "this model: its chat template does not use it.",
                              text);
}

static tr_status_t
read_budget(tr_openai_call_t *c)
{
    static const char field[] = "thinking_token_budget";
    int64_t budget = -1;
    tr_status_t rc = tr_json_integer(c->root, field, 0, UINT32_MAX, &budget,
                                     c->err);

    return rc == TR_OK && budget >= 0 ? set_budget(c, budget, field) : rc;
}

tr_status_t
tr_openai_read_reasoning(tr_openai_call_t *c)
{
    bool include = true;
    tr_status_t rc = tr_json_bool(c->root, "include_reasoning", &include,
                                  c->err);

    c->r->hide_reasoning = !include;
    if (rc == TR_OK && !include && c->r->plain
        && tr_dialect_reasons(c->api->dialect)) {
        rc = tr_openai_needs_items(c, "include_reasoning");
    }
    if (rc == TR_OK) {
        rc = read_budget(c);
    }
    return rc == TR_OK ? read_effort(c) : rc;
}
