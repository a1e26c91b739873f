/*
 * The table of endpoints (ngx_http_tokenring_endpoint.h), and the functions of
 * ngx_http_tokenring_render.h that look into it.
 */

#include "ngx_http_tokenring_endpoint.h"
#include "ngx_http_tokenring_render.h"


/* an SSE comment: clients pass over it */
#define NGX_HTTP_TOKENRING_COMMENT  ": keep-alive\n\n"


static const ngx_http_tokenring_endpoint_t  ngx_http_tokenring_endpoints[] = {

    [TR_ENDPOINT_CHAT] =
    { "chatcmpl-",
      ngx_http_tokenring_openai_heads,
      ngx_http_tokenring_openai_delta,
      ngx_http_tokenring_openai_finish,
      ngx_http_tokenring_openai_whole,
      ngx_http_tokenring_openai_item,
      ngx_http_tokenring_openai_choices,
      ngx_http_tokenring_openai_end,
      ngx_string(NGX_HTTP_TOKENRING_COMMENT),
      0,
      NULL,
      "chat.completion",
      "chat.completion.chunk",
      ngx_string(",\"delta\":{\"role\":\"assistant\",\"content\":\"\"},"
                 "\"logprobs\":null"),
      ngx_string(",\"delta\":{\"content\":\""),
      ngx_string("\"},\"logprobs\":"),
      ",\"delta\":{},",
      "\"message\":{\"role\":\"assistant\",\"content\":",
      ",\"refusal\":null",
      "}",
      ngx_http_tokenring_logprobs_chat },

    [TR_ENDPOINT_COMPLETIONS] =
    { "cmpl-",
      ngx_http_tokenring_openai_heads,
      ngx_http_tokenring_openai_delta,
      ngx_http_tokenring_openai_finish,
      ngx_http_tokenring_openai_whole,
      NULL,
      ngx_http_tokenring_openai_choices,
      ngx_http_tokenring_openai_end,
      ngx_string(NGX_HTTP_TOKENRING_COMMENT),
      0,
      NULL,
      "text_completion",
      "text_completion",
      ngx_null_string,
      ngx_string(",\"text\":\""),
      ngx_string("\",\"logprobs\":"),
      ",\"text\":\"\",",
      "\"text\":",
      "",
      "",
      ngx_http_tokenring_logprobs_completion },

    /* these generate nothing: an answer comes whole */

    [TR_ENDPOINT_TOKENIZE] =
    { .id_prefix = "tok-",
      .whole = ngx_http_tokenring_tokenize_whole },

    [TR_ENDPOINT_DETOKENIZE] =
    { .id_prefix = "detok-",
      .whole = ngx_http_tokenring_detokenize_whole },

    [TR_ENDPOINT_RENDER] =
    { .id_prefix = "render-",
      .whole = ngx_http_tokenring_render_prompt_whole },

    [TR_ENDPOINT_EMBEDDINGS] =
    { .id_prefix = "embd-",
      .whole = ngx_http_tokenring_embeddings_whole },

    [TR_ENDPOINT_COUNT_TOKENS] =
    { .id_prefix = "count_",
      .whole = ngx_http_tokenring_count_whole,
      .error = ngx_http_tokenring_messages_error },

    [TR_ENDPOINT_MESSAGES] =
    { .id_prefix = "msg_",
      .delta = ngx_http_tokenring_messages_delta,
      .finish = ngx_http_tokenring_messages_finish,
      .whole = ngx_http_tokenring_messages_whole,
      .item = ngx_http_tokenring_messages_item,
      .end = ngx_http_tokenring_messages_end,
      .keep_alive = ngx_string("event: ping\ndata: {\"type\":\"ping\"}\n\n"),
      .ordered = 1,
      .error = ngx_http_tokenring_messages_error },

    [TR_ENDPOINT_RESPONSES] =
    { .id_prefix = "resp_",
      .delta = ngx_http_tokenring_responses_delta,
      .finish = ngx_http_tokenring_responses_finish,
      .whole = ngx_http_tokenring_responses_whole,
      .item = ngx_http_tokenring_responses_item,
      .end = ngx_http_tokenring_responses_end,
      .keep_alive = ngx_string(NGX_HTTP_TOKENRING_COMMENT),
      .ordered = 1 }
};


_Static_assert(sizeof(ngx_http_tokenring_endpoints)
               / sizeof(ngx_http_tokenring_endpoints[0]) == TR_ENDPOINTS,
               "each endpoint has its row");


const ngx_http_tokenring_endpoint_t *
ngx_http_tokenring_endpoint(ngx_uint_t endpoint)
{
    if (endpoint >= TR_ENDPOINTS
        || ngx_http_tokenring_endpoints[endpoint].id_prefix == NULL)
    {
        return NULL;
    }

    return &ngx_http_tokenring_endpoints[endpoint];
}


ngx_int_t
ngx_http_tokenring_render_heads(ngx_http_tokenring_ctx_t *ctx)
{
    const ngx_http_tokenring_endpoint_t  *endpoint;

    endpoint = ngx_http_tokenring_endpoint(ctx->endpoint);

    return endpoint->heads ? endpoint->heads(ctx) : NGX_OK;
}


/*
 * Fills ctx->out with as much as should be sent at once: the number of bytes,
 * 0 if there is nothing to send, NGX_DONE if that was the end of the stream.
 */

ngx_int_t
ngx_http_tokenring_render_chunks(ngx_http_tokenring_ctx_t *ctx)
{
    ngx_int_t                             rc;
    ngx_uint_t                            over, told;
    ngx_http_tokenring_text_t            *out;
    const ngx_http_tokenring_endpoint_t  *endpoint;

    out = &ctx->out;
    endpoint = ngx_http_tokenring_endpoint(ctx->endpoint);

    rc = (endpoint->choices == NULL || ngx_http_tokenring_queues(ctx))
         ? ngx_http_tokenring_render_records(ctx)
         : endpoint->choices(ctx);

    if (rc != NGX_OK) {
        return (rc == NGX_AGAIN) ? (ngx_int_t) ngx_http_tokenring_text_len(out)
                                 : NGX_ERROR;
    }

    over = (ctx->state == NGX_HTTP_TOKENRING_OVER);

    /* a client that resumed a stream may have had its error before */
    told = ctx->error && ctx->error_number && ctx->error_number <= ctx->after;

    if (over && !told && endpoint->end(ctx) != NGX_OK) {
        return NGX_ERROR;
    }

    if (ctx->comment) {
        ctx->comment = 0;

        if (ngx_http_tokenring_text_len(out) == 0
            && ngx_http_tokenring_append(out, endpoint->keep_alive.data,
                                         endpoint->keep_alive.len)
               != NGX_OK)
        {
            return NGX_ERROR;
        }
    }

    return over ? NGX_DONE : (ngx_int_t) ngx_http_tokenring_text_len(out);
}


ngx_int_t
ngx_http_tokenring_render_delta(ngx_http_tokenring_ctx_t *ctx,
    ngx_uint_t index, uint64_t number)
{
    return ngx_http_tokenring_endpoint(ctx->endpoint)->delta(ctx, index,
                                                             number);
}


ngx_int_t
ngx_http_tokenring_render_item(ngx_http_tokenring_ctx_t *ctx,
    ngx_uint_t index, uint64_t number, tr_wire_bytes_t *id,
    tr_wire_bytes_t *name)
{
    return ngx_http_tokenring_endpoint(ctx->endpoint)->item(ctx, index, number,
                                                            id, name);
}


ngx_int_t
ngx_http_tokenring_render_finish(ngx_http_tokenring_ctx_t *ctx,
    ngx_uint_t index, uint64_t number)
{
    return ngx_http_tokenring_endpoint(ctx->endpoint)->finish(ctx, index,
                                                              number);
}


ngx_int_t
ngx_http_tokenring_render_whole(ngx_http_tokenring_ctx_t *ctx)
{
    return ngx_http_tokenring_endpoint(ctx->endpoint)->whole(ctx);
}
