/*
 * /v1/embeddings: prompts as a completion's, whose answer is a vector and no
 * text.  Each is a sequence of the scheduler's that ends with its prompt
 * (tr_pool_t of request.h).
 */
#include "openai_internal.h"

#include <string.h>

/* A wider vector has no room in a channel's ring. */
#define WIDTH_MAX 8192u

static tr_status_t
check_fields(tr_openai_call_t *c)
{
    const tr_field_t *rows;
    size_t n;

    rows = tr_embeddings_fields(&n);
    return tr_fields_check(rows, n, c->root, TR_FIELD_EMBEDDINGS, "", c->err);
}

static tr_status_t
read_format(tr_openai_call_t *c, tr_pool_t *pool)
{
    const json_t *format = tr_json_field(c->root, "encoding_format");
    int64_t dimensions = pool->width;
    tr_status_t rc = tr_json_integer(c->root, "dimensions", 1, pool->width,
                                     &dimensions, c->err);
    const char *text = json_string_value(format);

    pool->dimensions = (uint32_t) dimensions;
    if (rc != TR_OK || format == NULL) {
        return rc;
    }
    if (text == NULL) {
        return tr_json_wrong_type(c->err, "encoding_format", "a string",
                                  format);
    }
    pool->base64 = strcmp(text, "base64") == 0;
    return pool->base64 || strcmp(text, "float") == 0
               ? TR_OK
               : tr_error_set(c->err, TR_ERR_INVALID, "encoding_format",
                              "Invalid value: '%.64s'. Supported values are: "
                              "'float' and 'base64'.",
                              text);
}

tr_status_t
tr_openai_read_embeddings(tr_openai_call_t *c)
{
    const tr_openai_t *api = c->api;
    tr_request_t *r = c->r;
    tr_pool_t *pool = &r->pool;
    tr_status_t rc;

    if (api->embedding.pooling == TR_POOLING_NONE || api->width == 0) {
        return tr_error_set(c->err, TR_ERR_UNSUPPORTED, "model",
                            api->width == 0
                                ? "This engine's backend makes no embeddings."
                                : "This model makes no embeddings: it has no "
                                  "1_Pooling/config.json, and "
                                  "'embedding_pooling' is not set.");
    }
    if (api->width > WIDTH_MAX) {
        return tr_error_set(c->err, TR_ERR_UNSUPPORTED, "model",
                            "Vectors of this model have %u numbers; this "
                            "server gives at most %u.",
                            api->width, WIDTH_MAX);
    }
    pool->width = api->width;
    pool->mean = api->embedding.pooling == TR_POOLING_MEAN;
    pool->normalise = api->embedding.normalise;
    rc = check_fields(c);
    if (rc == TR_OK) {
        rc = read_format(c, pool);
    }
    if (rc != TR_OK) {
        return rc;
    }
    if (api->n_policies != 0) { /* nothing of it is kept */
        r->kv_policy = api->policies[0].policy;
        r->max_len = api->policies[0].max_len;
    }
    r->params.top_p = r->params.repetition_penalty = 1;
    c->max_tokens = 1; /* which is never computed */
    return tr_openai_read_prompts(c, tr_json_field(c->root, "input"));
}
