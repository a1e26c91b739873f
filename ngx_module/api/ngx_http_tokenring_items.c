/*
 * Tool calls and reasoning in a response.
 *
 * An ITEM record says what the text that follows it in its choice is.  In a
 * stream, records are rendered one by one in order of arrival, as those of a
 * resumable stream are (ctx->queue).  For a whole response the text of each
 * kind is gathered: content in the choice, reasoning and calls here, the calls
 * as the JSON that they become.
 */

#include "ngx_http_tokenring_endpoint.h"
#include "ngx_http_tokenring_render.h"


/* between the id and the name of a call */
#define NGX_HTTP_TOKENRING_FUNCTION                                           \
    "\",\"type\":\"function\",\"function\":{\"name\":\""


/* for each choice, once it was accepted */

ngx_int_t
ngx_http_tokenring_items_create(ngx_http_tokenring_ctx_t *ctx)
{
    ngx_uint_t                   i;
    ngx_http_tokenring_items_t  *items;

    items = ngx_pcalloc(ctx->request->pool,
                        ctx->nchoices * sizeof(ngx_http_tokenring_items_t));
    if (items == NULL) {
        return NGX_ERROR;
    }

    for (i = 0; i < ctx->nchoices; i++) {
        items[i].kind = TR_ITEM_TEXT;
        ctx->choices[i].items = &items[i];
    }

    ctx->items = 1;

    return NGX_OK;
}


void
ngx_http_tokenring_choices_free(ngx_http_tokenring_ctx_t *ctx)
{
    ngx_uint_t                    i;
    ngx_http_tokenring_choice_t  *choice;

    if (ctx->result) {
        ngx_http_tokenring_text_free(&ctx->result->ids);
        ngx_http_tokenring_text_free(&ctx->result->text);
    }

    for (i = 0; i < ctx->nchoices; i++) {
        choice = &ctx->choices[i];

        ngx_http_tokenring_text_free(&choice->text);
        ngx_http_tokenring_text_free(&choice->logprobs);

        if (choice->items) {
            ngx_http_tokenring_text_free(&choice->items->reasoning);
            ngx_http_tokenring_text_free(&choice->items->calls);
            ngx_http_tokenring_text_free(&choice->items->said);
            ngx_http_tokenring_text_free(&choice->items->call);
            ngx_http_tokenring_text_free(&choice->items->output);
        }
    }
}


/* what follows in a choice; a call's id and name become JSON.  NGX_DECLINED:
 * out of order */

ngx_int_t
ngx_http_tokenring_item_begin(ngx_http_tokenring_ctx_t *ctx,
    ngx_uint_t index, tr_wire_item_t *head, tr_wire_bytes_t *id,
    tr_wire_bytes_t *name)
{
    size_t                       before;
    ngx_http_tokenring_items_t  *items;

    items = ctx->choices[index].items;

    items->kind = head->kind;

    if (head->kind != TR_ITEM_TOOL_CALL) {
        return NGX_OK;
    }

    items->index = head->index;

    if (ctx->stream) {
        return NGX_OK;
    }

    before = ngx_http_tokenring_text_len(&items->calls);

    if (ngx_http_tokenring_append(&items->calls,
                                  before ? "\"}},{\"id\":\"" : "{\"id\":\"",
                                  before ? 11 : 7)
        != NGX_OK
        || ngx_http_tokenring_items_names(&items->calls, id,
                                          NGX_HTTP_TOKENRING_FUNCTION, name)
           != NGX_OK
        || ngx_http_tokenring_put(&items->calls, "\",\"arguments\":\"")
           != NGX_OK)
    {
        return NGX_ERROR;
    }

    ctx->pending += ngx_http_tokenring_text_len(&items->calls) - before;

    return NGX_OK;
}


/* text of a response that is not streamed, to where its kind is gathered */

ngx_int_t
ngx_http_tokenring_item_text(ngx_http_tokenring_ctx_t *ctx, ngx_uint_t index,
    tr_wire_bytes_t *text)
{
    ngx_http_tokenring_choice_t  *choice;

    choice = &ctx->choices[index];

    if (choice->items == NULL || choice->items->kind == TR_ITEM_TEXT) {
        return ngx_http_tokenring_append(&choice->text, text->data, text->len);
    }

    if (choice->items->kind == TR_ITEM_REASONING) {
        return ngx_http_tokenring_append(&choice->items->reasoning,
                                         text->data, text->len);
    }

    return ngx_http_tokenring_json(&choice->items->calls,
                                   (u_char *) text->data, text->len);
}


/* "reasoning_content" and "tool_calls" of a whole message */

ngx_int_t
ngx_http_tokenring_items_whole(ngx_http_tokenring_ctx_t *ctx,
    ngx_http_tokenring_items_t *items)
{
    ngx_http_tokenring_text_t  *out;

    out = &ctx->out;

    if (ngx_http_tokenring_text_len(&items->reasoning)
        && (ngx_http_tokenring_put(out, ",\"reasoning_content\":\"") != NGX_OK
            || ngx_http_tokenring_json(out, items->reasoning.pos,
                              ngx_http_tokenring_text_len(&items->reasoning))
               != NGX_OK
            || ngx_http_tokenring_put(out, "\"") != NGX_OK))
    {
        return NGX_ERROR;
    }

    if (ngx_http_tokenring_text_len(&items->calls)
        && (ngx_http_tokenring_put(out, ",\"tool_calls\":[") != NGX_OK
            || ngx_http_tokenring_append(out, items->calls.pos,
                                  ngx_http_tokenring_text_len(&items->calls))
               != NGX_OK
            || ngx_http_tokenring_put(out, "\"}}]") != NGX_OK))
    {
        return NGX_ERROR;
    }

    return NGX_OK;
}


/* the delta of a chunk up to its text, and behind it */

ngx_int_t
ngx_http_tokenring_items_open(ngx_http_tokenring_ctx_t *ctx,
    ngx_http_tokenring_items_t *items)
{
    if (items->kind == TR_ITEM_REASONING) {
        return ngx_http_tokenring_put(&ctx->out,
                                      ",\"delta\":{\"reasoning_content\":\"");
    }

    return ngx_http_tokenring_printf(&ctx->out, 96,
               ",\"delta\":{\"tool_calls\":[{\"index\":%uD,"
               "\"function\":{\"arguments\":\"", items->index);
}


ngx_int_t
ngx_http_tokenring_items_close(ngx_http_tokenring_ctx_t *ctx,
    ngx_http_tokenring_items_t *items)
{
    if (items->kind == TR_ITEM_REASONING) {
        return ngx_http_tokenring_put(&ctx->out, "\"},\"logprobs\":");
    }

    return ngx_http_tokenring_put(&ctx->out, "\"}}]},\"logprobs\":");
}


/* the delta of the chunk that begins a call */

ngx_int_t
ngx_http_tokenring_items_call(ngx_http_tokenring_ctx_t *ctx,
    ngx_http_tokenring_items_t *items, tr_wire_bytes_t *id,
    tr_wire_bytes_t *name)
{
    ngx_http_tokenring_text_t  *out;

    out = &ctx->out;

    if (ngx_http_tokenring_printf(out, 96,
               ",\"delta\":{\"tool_calls\":[{\"index\":%uD,\"id\":\"",
               items->index)
        != NGX_OK
        || ngx_http_tokenring_items_names(out, id,
                                          NGX_HTTP_TOKENRING_FUNCTION, name)
           != NGX_OK)
    {
        return NGX_ERROR;
    }

    return ngx_http_tokenring_put(out,
                          "\",\"arguments\":\"\"}}]},\"logprobs\":null");
}


ngx_int_t
ngx_http_tokenring_items_names(ngx_http_tokenring_text_t *t,
    tr_wire_bytes_t *id, const char *middle, tr_wire_bytes_t *name)
{
    if (ngx_http_tokenring_json(t, (u_char *) id->data, id->len) != NGX_OK
        || ngx_http_tokenring_append(t, middle, ngx_strlen(middle)) != NGX_OK)
    {
        return NGX_ERROR;
    }

    return ngx_http_tokenring_json(t, (u_char *) name->data, name->len);
}
