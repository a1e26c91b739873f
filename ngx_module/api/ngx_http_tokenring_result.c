/*
 * Responses of endpoints that generate nothing: what the engine computed, with
 * the names that vLLM gives it; embeddings as OpenAI's API gives them.
 */

#include "ngx_http_tokenring_number.h"
#include "ngx_http_tokenring_render.h"


static ngx_int_t ngx_http_tokenring_ids(ngx_http_tokenring_ctx_t *ctx);
static ngx_int_t ngx_http_tokenring_prompt(ngx_http_tokenring_ctx_t *ctx);
static ngx_int_t ngx_http_tokenring_vector(ngx_http_tokenring_ctx_t *ctx,
    ngx_http_tokenring_text_t *numbers);


/* ids as JSON */

static ngx_int_t
ngx_http_tokenring_ids(ngx_http_tokenring_ctx_t *ctx)
{
    int32_t                     id;
    u_char                     *p;
    ngx_http_tokenring_text_t  *out, *ids;

    out = &ctx->out;
    ids = &ctx->result->ids;

    if (ngx_http_tokenring_put(out, "[") != NGX_OK) {
        return NGX_ERROR;
    }

    for (p = ids->pos; p < ids->last; p += sizeof(int32_t)) {
        ngx_memcpy(&id, p, sizeof(int32_t));

        if (ngx_http_tokenring_printf(out, NGX_INT32_LEN + 2,
                                      (p == ids->pos) ? "%D" : ",%D", id)
            != NGX_OK)
        {
            return NGX_ERROR;
        }
    }

    return ngx_http_tokenring_put(out, "]");
}


static ngx_int_t
ngx_http_tokenring_prompt(ngx_http_tokenring_ctx_t *ctx)
{
    ngx_http_tokenring_text_t  *text;

    text = &ctx->result->text;

    if (ngx_http_tokenring_put(&ctx->out, "\"prompt\":\"") != NGX_OK
        || ngx_http_tokenring_json(&ctx->out, text->pos,
                                   ngx_http_tokenring_text_len(text))
           != NGX_OK)
    {
        return NGX_ERROR;
    }

    return ngx_http_tokenring_put(&ctx->out, "\"");
}


ngx_int_t
ngx_http_tokenring_tokenize_whole(ngx_http_tokenring_ctx_t *ctx)
{
    if (ngx_http_tokenring_printf(&ctx->out, 128,
               "{\"count\":%uz,\"max_model_len\":%uD,\"tokens\":",
               ngx_http_tokenring_text_len(&ctx->result->ids)
               / sizeof(int32_t), ctx->result->context)
        != NGX_OK
        || ngx_http_tokenring_ids(ctx) != NGX_OK)
    {
        return NGX_ERROR;
    }

    return ngx_http_tokenring_put(&ctx->out, ",\"token_strs\":null}");
}


ngx_int_t
ngx_http_tokenring_detokenize_whole(ngx_http_tokenring_ctx_t *ctx)
{
    if (ngx_http_tokenring_put(&ctx->out, "{") != NGX_OK
        || ngx_http_tokenring_prompt(ctx) != NGX_OK)
    {
        return NGX_ERROR;
    }

    return ngx_http_tokenring_put(&ctx->out, "}");
}


ngx_int_t
ngx_http_tokenring_render_prompt_whole(ngx_http_tokenring_ctx_t *ctx)
{
    if (ngx_http_tokenring_printf(&ctx->out, 96,
               "{\"request_id\":\"render-%V\",\"token_ids\":",
               &ctx->completion)
        != NGX_OK
        || ngx_http_tokenring_ids(ctx) != NGX_OK
        || ngx_http_tokenring_put(&ctx->out, ",") != NGX_OK
        || ngx_http_tokenring_prompt(ctx) != NGX_OK)
    {
        return NGX_ERROR;
    }

    return ngx_http_tokenring_put(&ctx->out, "}");
}


/* {"object": "list", "data": [{"embedding": ...}], "model", "usage"} */

ngx_int_t
ngx_http_tokenring_embeddings_whole(ngx_http_tokenring_ctx_t *ctx)
{
    ngx_uint_t                  i;
    ngx_http_tokenring_text_t  *out;

    out = &ctx->out;

    if (ngx_http_tokenring_put(out, "{\"object\":\"list\",\"data\":[")
        != NGX_OK)
    {
        return NGX_ERROR;
    }

    for (i = 0; i < ctx->nchoices; i++) {

        if (ngx_http_tokenring_printf(out, 96,
                   "%s{\"object\":\"embedding\",\"index\":%ui,"
                   "\"embedding\":", i ? "," : "", i)
            != NGX_OK
            || ngx_http_tokenring_vector(ctx, &ctx->choices[i].text) != NGX_OK
            || ngx_http_tokenring_put(out, "}") != NGX_OK)
        {
            return NGX_ERROR;
        }
    }

    if (ngx_http_tokenring_put(out, "],\"model\":\"") != NGX_OK
        || ngx_http_tokenring_json(out, ctx->model.data, ctx->model.len)
           != NGX_OK)
    {
        return NGX_ERROR;
    }

    ngx_http_tokenring_choices_free(ctx);

    return ngx_http_tokenring_printf(out, 128,
               "\",\"usage\":{\"prompt_tokens\":%uL,\"total_tokens\":%uL}}",
               ctx->prompt_tokens, ctx->prompt_tokens);
}


/* float32 as JSON, with as many digits as tell them apart, or in base64 */

static ngx_int_t
ngx_http_tokenring_vector(ngx_http_tokenring_ctx_t *ctx,
    ngx_http_tokenring_text_t *numbers)
{
    float                       number;
    size_t                      n;
    u_char                     *p;
    ngx_str_t                   from, to;
    ngx_http_tokenring_text_t  *out;

    out = &ctx->out;

    if (ctx->result->base64) {
        from.data = numbers->pos;
        from.len = ngx_http_tokenring_text_len(numbers);

        if (ngx_http_tokenring_reserve(out, ngx_base64_encoded_length(from.len)
                                            + 2)
            != NGX_OK)
        {
            return NGX_ERROR;
        }

        *out->last++ = '"';
        to.data = out->last;
        ngx_encode_base64(&to, &from);
        out->last += to.len;
        *out->last++ = '"';

        return NGX_OK;
    }

    n = ngx_http_tokenring_text_len(numbers) / sizeof(float);

    if (ngx_http_tokenring_reserve(out,
                                   n * (NGX_HTTP_TOKENRING_NUMBER_LEN + 1) + 2)
        != NGX_OK)
    {
        return NGX_ERROR;
    }

    *out->last++ = '[';

    for (p = numbers->pos; p < numbers->last; p += sizeof(float)) {
        ngx_memcpy(&number, p, sizeof(float));

        if (p > numbers->pos) {
            *out->last++ = ',';
        }

        out->last = ngx_http_tokenring_number(out->last, number);
    }

    *out->last++ = ']';

    return NGX_OK;
}
