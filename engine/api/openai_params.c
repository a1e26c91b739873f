/*
 * Common parameters (openai_params.h).  Ranges and defaults are OpenAI's;
 * top_k, min_p, repetition_penalty, min_tokens, ignore_eos, stop_token_ids and
 * include_stop_str_in_output are vLLM's.  Defaults are those that
 * generation_config.json gives (the setting generation_config), else OpenAI's:
 * `do_sample: false` there changes nothing, as in vLLM.  A top_p of 0 leaves the
 * best token alone.
 */
#include "openai_internal.h"
#include "openai_params.h"

#include <math.h>
#include <string.h>

#include "engine/config/log.h"

/* Below this a draw is the maximum anyway, and logits divided by it may
 * overflow. */
#define TEMPERATURE_GREEDY 1e-4f

#define SALT_MAX 128u /* bytes of cache_salt */

/* ---- numbers ------------------------------------------------------------ */

/* Logits are divided by it: below this they may overflow. */
#define REPETITION_PENALTY_MIN 1e-6

typedef struct {
    const char *name;
    size_t offset;
    double min, max;
} number_t;

#define AT(field) offsetof(tr_sampling_params_t, field)

static const number_t numbers[] = {
    { "temperature", AT(temperature), 0, 2 },
    { "top_p", AT(top_p), 0, 1 },
    { "min_p", AT(min_p), 0, 1 },
    { "presence_penalty", AT(presence_penalty), -2, 2 },
    { "frequency_penalty", AT(frequency_penalty), -2, 2 },
    { "repetition_penalty", AT(repetition_penalty), REPETITION_PENALTY_MIN,
      10 },
};

static float
otherwise(double wanted, float value)
{
    return isnan(wanted) ? value : (float) wanted;
}

/* What a request gets that says nothing. */
static void
read_defaults(const tr_generation_t *g, tr_sampling_params_t *p, int64_t *top_k)
{
    p->temperature = p->top_p = p->repetition_penalty = 1;
    *top_k = 0;
    if (g != NULL) {
        p->temperature = otherwise(g->temperature, 1);
        p->top_p = otherwise(g->top_p, 1);
        p->min_p = otherwise(g->min_p, 0);
        p->repetition_penalty = otherwise(g->repetition_penalty, 1);
        *top_k = isnan(g->top_k) ? 0 : (int64_t) g->top_k;
    }
}

static tr_status_t
read_numbers(const tr_openai_t *api, const json_t *root,
             tr_sampling_params_t *p, tr_error_t *err)
{
    int64_t top_k, seed = 0;
    tr_status_t rc = TR_OK;
    size_t i;

    read_defaults(api->generation, p, &top_k);
    for (i = 0; rc == TR_OK && i < sizeof(numbers) / sizeof(numbers[0]); i++) {
        const number_t *n = &numbers[i];

        rc = tr_json_number(root, n->name, n->min, n->max,
                            (float *) (void *) ((char *) p + n->offset), err);
    }
    if (rc == TR_OK) {
        /* 0 and -1 are both in use for "off" */
        rc = tr_json_integer(root, "top_k", -1, INT32_MAX, &top_k, err);
    }
    if (rc == TR_OK) {
        rc = tr_json_integer(root, "seed", INT64_MIN, INT64_MAX, &seed, err);
    }
    if (p->top_p == 0) {
        p->top_p = 1;
        p->temperature = 0;
    }
    if (p->temperature < TEMPERATURE_GREEDY) {
        p->temperature = 0;
    }
    p->top_k = top_k < 0 ? 0 : (int32_t) top_k;
    p->has_seed = tr_json_field(root, "seed") != NULL;
    p->seed = (uint64_t) seed;
    return rc;
}

/* n, and best_of, which may only repeat it. */
static tr_status_t
read_n(const tr_openai_t *api, const json_t *root, tr_request_t *r,
       tr_error_t *err)
{
    int64_t n = 1, best_of;
    tr_status_t rc;

    rc = tr_json_integer(root, "n", 1, tr_openai_choices(api, r), &n, err);
    r->n = (uint32_t) n;
    best_of = n;
    if (rc == TR_OK) {
        rc = tr_json_integer(root, "best_of", 1, INT32_MAX, &best_of, err);
    }
    if (rc == TR_OK && best_of != n) {
        rc = tr_error_set(err, TR_ERR_INVALID, "best_of",
                          "'best_of' (%lld) "
                          "other than 'n' (%lld) is not supported.",
                          (long long) best_of, (long long) n);
    }
    return rc;
}

static tr_status_t
read_max_tokens(const tr_endpoint_t *endpoint, const json_t *root,
                const tr_request_t *r, int64_t *out, tr_error_t *err)
{
    tr_status_t rc;

    *out = -1;
    /* nothing to generate makes sense only for the logprobs of the prompt */
    rc = tr_json_integer(root, "max_tokens", r->echo ? 0 : 1, UINT32_MAX, out,
                         err);
    if (rc != TR_OK || !endpoint->max_completion_tokens
        || tr_json_field(root, "max_completion_tokens") == NULL) {
        return rc;
    }
    if (*out >= 0) {
        return tr_error_set(err, TR_ERR_INVALID, "max_tokens",
                            "Setting "
                            "'max_tokens' and 'max_completion_tokens' at the "
                            "same time is not supported.");
    }
    return tr_json_integer(root, "max_completion_tokens", 1, UINT32_MAX, out,
                           err);
}

/* ---- logprobs ----------------------------------------------------------- */

tr_status_t
tr_openai_logprobs_completions(const json_t *root, tr_request_t *r,
                               tr_error_t *err)
{
    int64_t top = -1;
    tr_status_t rc = tr_json_integer(root, "logprobs", 0, TR_TOP_LOGPROBS_MAX,
                                     &top, err);

    r->params.logprobs = (int32_t) top;
    return rc;
}

tr_status_t
tr_openai_logprobs_chat(const json_t *root, tr_request_t *r, tr_error_t *err)
{
    int64_t top = -1;
    bool wanted = false;
    tr_status_t rc = tr_json_bool(root, "logprobs", &wanted, err);

    if (rc == TR_OK) {
        rc = tr_json_integer(root, "top_logprobs", 0, TR_TOP_LOGPROBS_MAX, &top,
                             err);
    }
    if (rc == TR_OK && top > 0 && !wanted) {
        rc = tr_error_set(err, TR_ERR_INVALID, "top_logprobs",
                          "'top_logprobs' needs 'logprobs' set to true.");
    }
    r->params.logprobs = !wanted ? -1 : top < 0 ? 0 : (int32_t) top;
    return rc;
}

/* ---- logit_bias, stop --------------------------------------------------- */

/* "1234" to a token of the vocabulary; -1 when it is none.  There is one key for
 * each: "05" beside "5" would be the same token twice. */
static int64_t
token_of_key(const char *key, uint32_t vocab)
{
    int64_t v = 0;
    size_t i;

    if (key[0] == '0' && key[1] != '\0') {
        return -1;
    }
    for (i = 0; key[i] >= '0' && key[i] <= '9' && i < 10; i++) {
        v = v * 10 + (key[i] - '0');
    }
    return i == 0 || key[i] != '\0' || v >= (int64_t) vocab ? -1 : v;
}

static tr_status_t
read_logit_bias(const tr_openai_t *api, const json_t *root, tr_request_t *r,
                tr_error_t *err)
{
    json_t *object = tr_json_field(root, "logit_bias"), *value;
    tr_logit_bias_t *bias;
    const char *key;

    if (object != NULL && !json_is_object(object)) {
        return tr_json_wrong_type(err, "logit_bias", "an object", object);
    }
    if (object == NULL || json_object_size(object) == 0) {
        return TR_OK;
    }
    if (json_object_size(object) > TR_LOGIT_BIAS_MAX) {
        return tr_error_set(err, TR_ERR_INVALID, "logit_bias",
                            "Invalid "
                            "'logit_bias': %zu entries. Expected at most %d.",
                            json_object_size(object), TR_LOGIT_BIAS_MAX);
    }
    bias = tr_arena_alloc(&r->arena, json_object_size(object) * sizeof(*bias));
    if (bias == NULL) {
        return tr_error_set(err, TR_ERR_NOMEM, "", "out of memory");
    }
    json_object_foreach (object, key, value) {
        int64_t token = token_of_key(key, api->vocab);
        double v;

        if (token < 0) {
            return tr_error_set(err, TR_ERR_INVALID, "logit_bias",
                                "Invalid "
                                "key in 'logit_bias': \"%.32s\". Expected a "
                                "token id from 0 to %u, in plain decimal.",
                                key, api->vocab - 1);
        }
        if (!json_is_number(value)) {
            return tr_json_wrong_type(err, "logit_bias", "numbers as values",
                                      value);
        }
        v = json_number_value(value);
        if (!(v >= -100 && v <= 100)) {
            return tr_error_set(err, TR_ERR_INVALID, "logit_bias",
                                "Invalid "
                                "'logit_bias': %g for token %lld. Expected a "
                                "value from -100 to 100.",
                                v, (long long) token);
        }
        bias[r->params.n_bias].token = (int32_t) token;
        bias[r->params.n_bias].bias = (float) v;
        r->params.n_bias++;
    }
    r->params.bias = bias;
    return TR_OK;
}

static tr_status_t
copy_stop(tr_request_t *r, tr_stop_string_t *out, const json_t *value,
          const char *param, tr_error_t *err)
{
    size_t len = json_string_length(value);
    char *text;

    if (!json_is_string(value)) {
        return tr_json_wrong_type(err, param, "a string", value);
    }
    if (len == 0 || len > TR_STOP_STRING_BYTES) {
        return tr_error_set(err, TR_ERR_INVALID, param,
                            "Invalid '%s': a stop "
                            "string of %zu bytes. Expected 1 to %d bytes.",
                            param, len, TR_STOP_STRING_BYTES);
    }
    text = tr_arena_alloc(&r->arena, len);
    if (text == NULL) {
        return tr_error_set(err, TR_ERR_NOMEM, "", "out of memory");
    }
    memcpy(text, json_string_value(value), len);
    out->text = text;
    out->len = (uint32_t) len;
    r->params.n_stop++;
    return TR_OK;
}

static tr_status_t
read_stop(const json_t *root, tr_request_t *r, tr_error_t *err)
{
    json_t *stop = tr_json_field(root, "stop");
    tr_stop_string_t *list;
    size_t n, i;

    if (stop == NULL) {
        return TR_OK;
    }
    if (!json_is_string(stop) && !json_is_array(stop)) {
        return tr_json_wrong_type(err, "stop",
                                  "a string or an array of "
                                  "strings",
                                  stop);
    }
    n = json_is_string(stop) ? 1 : json_array_size(stop);
    if (n > TR_STOP_STRINGS_MAX) {
        return tr_error_set(err, TR_ERR_INVALID, "stop",
                            "Invalid 'stop': "
                            "array too long. Expected an array with maximum "
                            "length %d, but got an array with length %zu "
                            "instead.",
                            TR_STOP_STRINGS_MAX, n);
    }
    if (n == 0) {
        return TR_OK;
    }
    list = tr_arena_alloc(&r->arena, n * sizeof(*list));
    if (list == NULL) {
        return tr_error_set(err, TR_ERR_NOMEM, "", "out of memory");
    }
    r->params.stop = list;
    if (json_is_string(stop)) {
        return copy_stop(r, list, stop, "stop", err);
    }
    for (i = 0; i < n; i++) {
        char param[32];
        tr_status_t rc;

        snprintf(param, sizeof(param), "stop[%zu]", i);
        rc = copy_stop(r, &list[i], json_array_get(stop, i), param, err);
        if (rc != TR_OK) {
            return rc;
        }
    }
    return TR_OK;
}

static tr_status_t
read_stop_tokens(const tr_openai_t *api, const json_t *root, tr_request_t *r,
                 tr_error_t *err)
{
    json_t *array = tr_json_field(root, "stop_token_ids"), *value;
    int32_t *ids;
    size_t n, i;

    if (array == NULL) {
        return TR_OK;
    }
    if (!json_is_array(array)) {
        return tr_json_wrong_type(err, "stop_token_ids",
                                  "an array of "
                                  "integers",
                                  array);
    }
    n = json_array_size(array);
    if (n > TR_STOP_TOKENS_MAX) {
        return tr_error_set(err, TR_ERR_INVALID, "stop_token_ids",
                            "Invalid "
                            "'stop_token_ids': %zu entries. Expected at most "
                            "%d.",
                            n, TR_STOP_TOKENS_MAX);
    }
    if (n == 0) {
        return TR_OK;
    }
    ids = tr_arena_alloc(&r->arena, n * sizeof(*ids));
    if (ids == NULL) {
        return tr_error_set(err, TR_ERR_NOMEM, "", "out of memory");
    }
    json_array_foreach (array, i, value) {
        char param[48];

        snprintf(param, sizeof(param), "stop_token_ids[%zu]", i);
        if (!json_is_integer(value)) {
            return tr_json_not_integer(err, param, value);
        }
        if (json_integer_value(value) < 0
            || json_integer_value(value) >= (int64_t) api->vocab) {
            return tr_error_set(err, TR_ERR_INVALID, param,
                                "Invalid '%s': "
                                "token id %lld is out of the vocabulary (0 to "
                                "%u).",
                                param, (long long) json_integer_value(value),
                                api->vocab - 1);
        }
        ids[i] = (int32_t) json_integer_value(value);
    }
    r->params.stop_tokens = ids;
    r->params.n_stop_tokens = (uint32_t) n;
    return TR_OK;
}

/* ---- KV cache ----------------------------------------------------------- */

/* By its name, or as the configuration or the log write it. */
static tr_status_t
read_policy(const tr_openai_t *api, const json_t *root, tr_request_t *r,
            tr_error_t *err)
{
    json_t *value = tr_json_field(root, "kv_policy");
    char allowed[TR_ERROR_TEXT / 2];
    size_t used = 0;
    uint32_t i;

    r->max_len = api->max_model_len;
    if (api->n_policies != 0) {
        r->kv_policy = api->policies[0].policy;
        r->kv_reuse = api->policies[0].reuses;
        r->max_len = api->policies[0].max_len;
    }
    if (value == NULL) {
        return TR_OK;
    }
    if (!json_is_string(value)) {
        return tr_json_wrong_type(err, "kv_policy", "a string", value);
    }
    allowed[0] = '\0';
    for (i = 0; i < api->n_policies; i++) {
        const tr_executor_policy_t *p = &api->policies[i];
        const char *text = json_string_value(value);

        if (strcmp(text, p->policy->name) == 0 || strcmp(text, p->given) == 0
            || strcmp(text, p->policy->spec) == 0) {
            r->kv_policy = p->policy;
            r->kv_reuse = p->reuses;
            r->max_len = p->max_len;
            return TR_OK;
        }
        if (used < sizeof(allowed)) {
            used += (size_t) snprintf(allowed + used, sizeof(allowed) - used,
                                      "%s\"%s\"", i == 0 ? "" : ", ",
                                      tr_executor_policy_name(p));
        }
    }
    return tr_error_set(err, TR_ERR_INVALID, "kv_policy",
                        "Invalid 'kv_policy': \"%.64s\". This server allows: "
                        "%s.",
                        json_string_value(value), allowed);
}

static tr_status_t
read_alpha(const tr_openai_t *api, const json_t *root, const char *name,
           double *out, tr_error_t *err)
{
    json_t *value = tr_json_field(root, name);

    *out = NAN;
    if (value == NULL) {
        return TR_OK;
    }
    if (!api->request_alpha) {
        return tr_error_set(err, TR_ERR_INVALID, name,
                            "'%s': this server does not let requests set "
                            "thresholds; leave it out.",
                            name);
    }
    if (!json_is_number(value)) {
        return tr_json_wrong_type(err, name, "a number", value);
    }
    *out = json_number_value(value);
    return TR_OK;
}

/* Whether prefixes are read and kept, and whose: cache_salt is added to the key
 * that came with the request. */
static tr_status_t
read_reuse(const json_t *root, tr_request_t *r, tr_error_t *err)
{
    json_t *salt = tr_json_field(root, "cache_salt");
    tr_prefix_key_t *key = &r->kv_key;
    bool can = r->kv_reuse, wanted = can;
    tr_status_t rc = tr_json_bool(root, "kv_reuse", &wanted, err);
    size_t len = 0;

    if (rc != TR_OK) {
        return rc;
    }
    if (wanted && !can) {
        return tr_error_set(err, TR_ERR_INVALID, "kv_reuse",
                            "Invalid 'kv_reuse': true, but this server does "
                            "not reuse prefixes under the KV policy of this "
                            "request; leave it out.");
    }
    if (salt != NULL && !json_is_string(salt)) {
        return tr_json_wrong_type(err, "cache_salt", "a string", salt);
    }
    if (salt != NULL) {
        len = json_string_length(salt);
    }
    if (len > SALT_MAX) {
        return tr_error_set(err, TR_ERR_INVALID, "cache_salt",
                            "Invalid 'cache_salt': %zu bytes, expected at most "
                            "%u.",
                            len, SALT_MAX);
    }
    r->kv_reuse = wanted;
    if (len != 0) {
        memcpy(key->bytes + key->len, json_string_value(salt), len);
        key->len += (uint32_t) len;
    }
    return TR_OK;
}

static tr_status_t
read_cache(const tr_openai_t *api, const json_t *root, tr_request_t *r,
           tr_error_t *err)
{
    double high = NAN, low = NAN;
    tr_kv_policy_t *own;
    tr_status_t rc;

    rc = read_policy(api, root, r, err);
    if (rc == TR_OK) {
        rc = read_reuse(root, r, err);
    }
    if (rc == TR_OK) {
        rc = read_alpha(api, root, "kv_alpha_high", &high, err);
    }
    if (rc == TR_OK) {
        rc = read_alpha(api, root, "kv_alpha_low", &low, err);
    }
    if (rc != TR_OK || (isnan(high) && isnan(low))) {
        return rc;
    }
    own = tr_arena_alloc(&r->arena, sizeof(*own));
    if (own == NULL) {
        return tr_error_set(err, TR_ERR_NOMEM, "", "out of memory");
    }
    *own = *r->kv_policy;
    r->kv_policy = own;
    return tr_kv_policy_override(own, high, low, err);
}

/* ---- streaming ---------------------------------------------------------- */

/* A boolean of stream_options. */
static tr_status_t
read_option(const json_t *options, const char *name, bool *out, tr_error_t *err)
{
    json_t *value = tr_json_field(options, name);
    char param[64];

    if (value != NULL && !json_is_boolean(value)) {
        snprintf(param, sizeof(param), "stream_options.%s", name);
        return tr_json_wrong_type(err, param, "a boolean", value);
    }
    *out = json_is_true(value);
    return TR_OK;
}

static tr_status_t
read_stream(const json_t *root, tr_request_t *r, tr_error_t *err)
{
    json_t *options;
    tr_status_t rc = tr_json_bool(root, "stream", &r->stream, err);

    if (rc != TR_OK) {
        return rc;
    }
    options = tr_json_field(root, "stream_options");
    if (options == NULL) {
        return TR_OK;
    }
    if (!json_is_object(options)) {
        return tr_json_wrong_type(err, "stream_options", "an object", options);
    }
    if (!r->stream) {
        return tr_error_set(err, TR_ERR_INVALID, "stream_options",
                            "The "
                            "'stream_options' parameter is only allowed when "
                            "'stream' is enabled.");
    }
    rc = read_option(options, "include_usage", &r->include_usage, err);
    if (rc == TR_OK) {
        rc = read_option(options, "continuous_usage_stats", &r->usage_stats,
                         err);
    }
    if (rc == TR_OK) {
        rc = read_option(options, "include_kv", &r->include_kv, err);
    }
    if (rc == TR_OK && r->include_kv && !r->usage_stats) {
        rc = tr_error_set(err, TR_ERR_INVALID, "stream_options.include_kv",
                          "'stream_options.include_kv' needs "
                          "'continuous_usage_stats' set to true: the KV "
                          "cache's counts are part of each chunk's usage.");
    }
    return rc;
}

static tr_status_t
read_flags(const json_t *root, tr_request_t *r, tr_error_t *err)
{
    int64_t min_tokens = 0;
    tr_status_t rc;

    rc = tr_json_bool(root, "echo", &r->echo, err);
    if (rc == TR_OK) {
        rc = tr_json_bool(root, "ignore_eos", &r->params.ignore_eos, err);
    }
    if (rc == TR_OK) {
        rc = tr_json_bool(root, "include_stop_str_in_output",
                          &r->params.include_stop, err);
    }
    if (rc == TR_OK) {
        rc = tr_json_integer(root, "min_tokens", 0, UINT32_MAX, &min_tokens,
                             err);
    }
    r->params.min_tokens = (uint32_t) min_tokens;
    return rc;
}

tr_status_t
tr_openai_params(const tr_openai_t *api, const tr_endpoint_t *endpoint,
                 const json_t *root, tr_request_t *r, int64_t *max_tokens,
                 tr_error_t *err)
{
    tr_status_t rc;

    rc = tr_openai_check_fields(root, endpoint->fields, "", err);
    if (rc == TR_OK) {
        rc = read_stream(root, r, err);
    }
    if (rc == TR_OK) {
        rc = read_numbers(api, root, &r->params, err);
    }
    if (rc == TR_OK) {
        rc = read_n(api, root, r, err);
    }
    if (rc == TR_OK) {
        rc = tr_openai_read_tier(root, r, err);
    }
    if (rc == TR_OK) {
        rc = read_flags(root, r, err);
    }
    if (rc == TR_OK) {
        rc = tr_openai_read_grammar(api, root, r, err);
    }
    if (rc == TR_OK) {
        rc = read_max_tokens(endpoint, root, r, max_tokens, err);
    }
    if (rc == TR_OK) {
        rc = read_cache(api, root, r, err);
    }
    if (rc == TR_OK) {
        rc = endpoint->read_logprobs(root, r, err);
    }
    if (rc == TR_OK) {
        rc = read_logit_bias(api, root, r, err);
    }
    if (rc == TR_OK) {
        rc = read_stop(root, r, err);
    }
    if (rc == TR_OK) {
        rc = read_stop_tokens(api, root, r, err);
    }
    if (rc == TR_OK && *max_tokens >= 0 && r->params.min_tokens > *max_tokens) {
        rc = tr_error_set(err, TR_ERR_INVALID, "min_tokens",
                          "'min_tokens' (%u) exceeds the number of tokens "
                          "requested (%lld).",
                          r->params.min_tokens, (long long) *max_tokens);
    }
    return rc;
}
