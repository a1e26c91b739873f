/*
 * Responses of endpoints that generate nothing: what the engine computed, with
 * the names that vLLM gives it.
 */

#include "ngx_http_tokenring_render.h"


static ngx_int_t ngx_http_tokenring_ids(ngx_http_tokenring_ctx_t *ctx);
static ngx_int_t ngx_http_tokenring_prompt(ngx_http_tokenring_ctx_t *ctx);


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
