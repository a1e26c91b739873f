/*
 * What responses look like: the chunks of a stream and whole responses, for
 * chat and for completions, as in OpenAI's API.  Where the two differ, their
 * rows in the table of endpoints (_endpoint.c) say how.
 *
 * The chunks of a stream differ in an index and a text: what precedes and
 * follows these is rendered once, when the request is accepted.  In a resumable
 * stream every record is an event of its own, with the record's number as its
 * id (_resumable.c); other streams have no ids, and merge texts that wait.
 */

#include "ngx_http_tokenring_endpoint.h"
#include "ngx_http_tokenring_error.h"
#include "ngx_http_tokenring_render.h"


/* text in one streamed event, bytes */
#define NGX_HTTP_TOKENRING_EVENT  4096


static ngx_int_t ngx_http_tokenring_chunk_open(ngx_http_tokenring_ctx_t *ctx,
    ngx_uint_t index, uint64_t number);
static ngx_int_t ngx_http_tokenring_chunk_close(
    ngx_http_tokenring_ctx_t *ctx, ngx_uint_t index, uint64_t tokens);
static ngx_int_t ngx_http_tokenring_chunk_usage(
    ngx_http_tokenring_ctx_t *ctx, ngx_uint_t index, uint64_t tokens);
static ngx_int_t ngx_http_tokenring_role_chunk(ngx_http_tokenring_ctx_t *ctx,
    ngx_uint_t index);
static ngx_int_t ngx_http_tokenring_text_chunk(ngx_http_tokenring_ctx_t *ctx,
    ngx_uint_t index, uint64_t number);
static ngx_int_t ngx_http_tokenring_finish_chunk(
    ngx_http_tokenring_ctx_t *ctx, ngx_uint_t index, uint64_t number);
static ngx_int_t ngx_http_tokenring_usage_kv(ngx_http_tokenring_text_t *t,
    ngx_str_t *policy, tr_wire_usage_t *kv);
static ngx_int_t ngx_http_tokenring_usage_counts(ngx_http_tokenring_text_t *t,
    uint64_t prompt_tokens, uint64_t completion_tokens);
static ngx_int_t ngx_http_tokenring_logprobs(ngx_http_tokenring_ctx_t *ctx,
    ngx_http_tokenring_choice_t *choice);
static ngx_int_t ngx_http_tokenring_content(ngx_http_tokenring_ctx_t *ctx,
    ngx_http_tokenring_choice_t *choice);


const char *
ngx_http_tokenring_reason(ngx_uint_t reason)
{
    switch (reason) {

    case TR_FINISH_STOP:
        return "stop";

    case TR_FINISH_LENGTH:
        return "length";

    case TR_FINISH_ABORTED:
        return "aborted";

    case TR_FINISH_TOOL_CALLS:
        return "tool_calls";

    default:
        return "";
    }
}


/* "id" to "model", which every response object has */

static ngx_int_t
ngx_http_tokenring_object(ngx_http_tokenring_ctx_t *ctx,
    ngx_http_tokenring_text_t *t)
{
    const ngx_http_tokenring_endpoint_t  *endpoint;

    static const char  *tiers[] = { "", "flex", "default", "priority" };

    endpoint = ngx_http_tokenring_endpoint(ctx->endpoint);

    if (ngx_http_tokenring_printf(t, 256,
                                  "{\"id\":\"%s%V\",\"object\":\"%s\","
                                  "\"created\":%L,\"model\":\"",
                                  endpoint->id_prefix, &ctx->completion,
                                  ctx->stream ? endpoint->chunk_object
                                              : endpoint->object,
                                  ctx->created)
        != NGX_OK
        || ngx_http_tokenring_json(t, ctx->model.data, ctx->model.len)
           != NGX_OK
        || ngx_http_tokenring_put(t, "\",") != NGX_OK)
    {
        return NGX_ERROR;
    }

    if (ctx->tier
        && ngx_http_tokenring_printf(t, 64, "\"service_tier\":\"%s\",",
                                     tiers[ctx->tier])
           != NGX_OK)
    {
        return NGX_ERROR;
    }

    return ngx_http_tokenring_put(t, "\"choices\":[");
}


ngx_int_t
ngx_http_tokenring_openai_heads(ngx_http_tokenring_ctx_t *ctx)
{
    if (ctx->usage_stats) {
        ngx_str_set(&ctx->tail, ",\"finish_reason\":null}]");

    } else if (ctx->include_usage) {
        ngx_str_set(&ctx->tail,
                    ",\"finish_reason\":null}],\"usage\":null}\n\n");

    } else {
        ngx_str_set(&ctx->tail, ",\"finish_reason\":null}]}\n\n");
    }

    if (ngx_http_tokenring_put(&ctx->head, "data: ") != NGX_OK) {
        return NGX_ERROR;
    }

    return ngx_http_tokenring_object(ctx, &ctx->head);
}


/* NGX_OK: everything; NGX_AGAIN: enough for one write */

ngx_int_t
ngx_http_tokenring_openai_choices(ngx_http_tokenring_ctx_t *ctx)
{
    ngx_int_t                     rc;
    ngx_uint_t                    i;
    ngx_http_tokenring_choice_t  *choice;

    for (i = 0; i < ctx->nchoices; i++) {
        choice = &ctx->choices[i];

        for ( ;; ) {

            if (ngx_http_tokenring_text_len(&ctx->out)
                >= NGX_HTTP_TOKENRING_OUTPUT)
            {
                return NGX_AGAIN;
            }

            if (ngx_http_tokenring_text_len(&choice->text)
                || ngx_http_tokenring_text_len(&choice->logprobs))
            {
                rc = choice->begun
                     ? ngx_http_tokenring_text_chunk(ctx, i, 0)
                     : ngx_http_tokenring_role_chunk(ctx, i);

            } else if (choice->reason && !choice->ended
                       && choice->reason != TR_FINISH_ABORTED)
            {
                rc = choice->begun
                     ? ngx_http_tokenring_finish_chunk(ctx, i, 0)
                     : ngx_http_tokenring_role_chunk(ctx, i);

            } else {
                break;
            }

            if (rc != NGX_OK) {
                return NGX_ERROR;
            }
        }
    }

    return NGX_OK;
}


/* the events of one record of text, whose text and logprobs are in the choice,
 * which had none before */

ngx_int_t
ngx_http_tokenring_openai_delta(ngx_http_tokenring_ctx_t *ctx,
    ngx_uint_t index, uint64_t number)
{
    ngx_http_tokenring_choice_t  *choice;

    choice = &ctx->choices[index];

    if (!choice->begun
        && ngx_http_tokenring_role_chunk(ctx, index) != NGX_OK)
    {
        return NGX_ERROR;
    }

    do {
        if (ngx_http_tokenring_text_chunk(ctx, index, number) != NGX_OK) {
            return NGX_ERROR;
        }
    } while (ngx_http_tokenring_text_len(&choice->text));

    return NGX_OK;
}


/* a call begins; other items show in the text that follows */

ngx_int_t
ngx_http_tokenring_openai_item(ngx_http_tokenring_ctx_t *ctx,
    ngx_uint_t index, uint64_t number, tr_wire_bytes_t *id,
    tr_wire_bytes_t *name)
{
    ngx_http_tokenring_choice_t  *choice;

    choice = &ctx->choices[index];

    if (choice->items->kind != TR_ITEM_TOOL_CALL) {
        return NGX_OK;
    }

    if ((!choice->begun
         && ngx_http_tokenring_role_chunk(ctx, index) != NGX_OK)
        || ngx_http_tokenring_chunk_open(ctx, index, number) != NGX_OK
        || ngx_http_tokenring_items_call(ctx, choice->items, id, name)
           != NGX_OK)
    {
        return NGX_ERROR;
    }

    return ngx_http_tokenring_chunk_close(ctx, index, choice->tokens);
}


ngx_int_t
ngx_http_tokenring_openai_finish(ngx_http_tokenring_ctx_t *ctx,
    ngx_uint_t index, uint64_t number)
{
    if (!ctx->choices[index].begun
        && ngx_http_tokenring_role_chunk(ctx, index) != NGX_OK)
    {
        return NGX_ERROR;
    }

    return ngx_http_tokenring_finish_chunk(ctx, index, number);
}


ngx_int_t
ngx_http_tokenring_id(ngx_http_tokenring_ctx_t *ctx, uint64_t number)
{
    if (number == 0) {
        return NGX_OK;
    }

    return ngx_http_tokenring_printf(&ctx->out, NGX_INT64_LEN + 8,
                                     "id: %uL\n", number);
}


static ngx_int_t
ngx_http_tokenring_chunk_open(ngx_http_tokenring_ctx_t *ctx, ngx_uint_t index,
    uint64_t number)
{
    ngx_http_tokenring_text_t  *out, *head;

    out = &ctx->out;
    head = &ctx->head;

    if (ngx_http_tokenring_id(ctx, number) != NGX_OK
        || ngx_http_tokenring_reserve(out, ngx_http_tokenring_text_len(head)
                                           + 64)
           != NGX_OK)
    {
        return NGX_ERROR;
    }

    out->last = ngx_cpymem(out->last, head->pos,
                           ngx_http_tokenring_text_len(head));
    out->last = ngx_cpymem(out->last, "{\"index\":",
                           sizeof("{\"index\":") - 1);

    if (index < 10) {
        *out->last++ = (u_char) ('0' + index);

    } else {
        out->last = ngx_sprintf(out->last, "%ui", index);
    }

    return NGX_OK;
}


/* the end of a chunk whose choice goes on, with the usage of that choice */

static ngx_int_t
ngx_http_tokenring_chunk_close(ngx_http_tokenring_ctx_t *ctx,
    ngx_uint_t index, uint64_t tokens)
{
    if (ngx_http_tokenring_append(&ctx->out, ctx->tail.data, ctx->tail.len)
        != NGX_OK)
    {
        return NGX_ERROR;
    }

    return ctx->usage_stats ? ngx_http_tokenring_chunk_usage(ctx, index, tokens)
                            : NGX_OK;
}


/* "usage" of a chunk: its choice's, which has so many tokens */

static ngx_int_t
ngx_http_tokenring_chunk_usage(ngx_http_tokenring_ctx_t *ctx,
    ngx_uint_t index, uint64_t tokens)
{
    tr_wire_usage_t            *kv;
    ngx_http_tokenring_text_t  *out;

    out = &ctx->out;
    kv = ctx->choices[index].kv;

    if (ngx_http_tokenring_put(out, ",") != NGX_OK
        || ngx_http_tokenring_usage_counts(out, ctx->prompt_tokens, tokens)
           != NGX_OK
        || (kv && ngx_http_tokenring_usage_kv(out, &ctx->policy, kv)
                  != NGX_OK))
    {
        return NGX_ERROR;
    }

    return ngx_http_tokenring_put(out, "}}\n\n");
}


/* the first chunk of a choice, where the endpoint has one */

static ngx_int_t
ngx_http_tokenring_role_chunk(ngx_http_tokenring_ctx_t *ctx, ngx_uint_t index)
{
    ngx_http_tokenring_text_t            *out;
    const ngx_http_tokenring_endpoint_t  *endpoint;

    out = &ctx->out;
    endpoint = ngx_http_tokenring_endpoint(ctx->endpoint);

    ctx->choices[index].begun = 1;

    if (endpoint->role.len == 0) {
        return NGX_OK;
    }

    if (ngx_http_tokenring_chunk_open(ctx, index, 0) != NGX_OK
        || ngx_http_tokenring_append(out, endpoint->role.data,
                                     endpoint->role.len)
           != NGX_OK)
    {
        return NGX_ERROR;
    }

    return ngx_http_tokenring_chunk_close(ctx, index, 0);
}


static ngx_int_t
ngx_http_tokenring_text_chunk(ngx_http_tokenring_ctx_t *ctx, ngx_uint_t index,
    uint64_t number)
{
    size_t                                len, before;
    ngx_uint_t                            item;
    ngx_http_tokenring_text_t            *out;
    ngx_http_tokenring_choice_t          *choice;
    const ngx_http_tokenring_endpoint_t  *endpoint;

    out = &ctx->out;
    choice = &ctx->choices[index];
    endpoint = ngx_http_tokenring_endpoint(ctx->endpoint);

    len = ngx_http_tokenring_text_len(&choice->text);
    before = len + ngx_http_tokenring_text_len(&choice->logprobs);

    /* logprobs belong to the whole text, an id to the whole record */

    if (number == 0 && ngx_http_tokenring_text_len(&choice->logprobs) == 0) {
        len = ngx_http_tokenring_cut(choice->text.pos, len,
                                     NGX_HTTP_TOKENRING_EVENT);
    }

    item = (choice->items && choice->items->kind != TR_ITEM_TEXT);

    if (ngx_http_tokenring_chunk_open(ctx, index, number) != NGX_OK
        || (item ? ngx_http_tokenring_items_open(ctx, choice->items)
                 : ngx_http_tokenring_append(out, endpoint->text.data,
                                             endpoint->text.len))
           != NGX_OK
        || ngx_http_tokenring_json(out, choice->text.pos, len) != NGX_OK
        || (item ? ngx_http_tokenring_items_close(ctx, choice->items)
                 : ngx_http_tokenring_append(out, endpoint->text_end.data,
                                             endpoint->text_end.len))
           != NGX_OK
        || ngx_http_tokenring_logprobs(ctx, choice) != NGX_OK)
    {
        return NGX_ERROR;
    }

    choice->text.pos += len;

    if (ngx_http_tokenring_text_len(&choice->text) == 0) {
        ngx_http_tokenring_text_reset(&choice->text);
    }

    ngx_http_tokenring_text_reset(&choice->logprobs);

    ctx->pending -= before - ngx_http_tokenring_text_len(&choice->text);

    return ngx_http_tokenring_chunk_close(ctx, index, choice->tokens);
}


static ngx_int_t
ngx_http_tokenring_finish_chunk(ngx_http_tokenring_ctx_t *ctx,
    ngx_uint_t index, uint64_t number)
{
    ngx_http_tokenring_choice_t  *choice;

    choice = &ctx->choices[index];
    choice->ended = 1;

    if (ngx_http_tokenring_chunk_open(ctx, index, number) != NGX_OK) {
        return NGX_ERROR;
    }

    if (ngx_http_tokenring_printf(&ctx->out, 128,
               "%s\"logprobs\":null,\"finish_reason\":\"%s\"}]%s",
               ngx_http_tokenring_endpoint(ctx->endpoint)->last,
               ngx_http_tokenring_reason(choice->reason),
               ctx->usage_stats ? ""
               : ctx->include_usage ? ",\"usage\":null}\n\n" : "}\n\n")
        != NGX_OK)
    {
        return NGX_ERROR;
    }

    return ctx->usage_stats
           ? ngx_http_tokenring_chunk_usage(ctx, index, choice->tokens)
           : NGX_OK;
}


/* an error event, or usage (if requested) and the end marker */

ngx_int_t
ngx_http_tokenring_openai_end(ngx_http_tokenring_ctx_t *ctx)
{
    tr_status_info_t            info;
    ngx_http_tokenring_text_t  *out, *head;

    out = &ctx->out;
    head = &ctx->head;

    if (ctx->error) {
        info = tr_status_info(ctx->error);

        if (ngx_http_tokenring_id(ctx, ctx->error_number) != NGX_OK
            || ngx_http_tokenring_put(out, "data: ") != NGX_OK
            || ngx_http_tokenring_render_error(out, info.type, info.code,
                                               &ctx->param, &ctx->message)
               != NGX_OK)
        {
            return NGX_ERROR;
        }

        return ngx_http_tokenring_put(out, "\n\n");
    }

    if (ctx->include_usage) {
        if (ngx_http_tokenring_append(out, head->pos,
                                      ngx_http_tokenring_text_len(head))
            != NGX_OK
            || ngx_http_tokenring_put(out, "],") != NGX_OK
            || ngx_http_tokenring_render_usage(out, ctx->prompt_tokens,
                                               ctx->completion_tokens,
                                               &ctx->policy, &ctx->totals)
               != NGX_OK
            || ngx_http_tokenring_put(out, "}\n\n") != NGX_OK)
        {
            return NGX_ERROR;
        }
    }

    return ngx_http_tokenring_put(out, "data: [DONE]\n\n");
}


/* OpenAI's usage, and as an extension what the request used of the KV cache */

ngx_int_t
ngx_http_tokenring_render_usage(ngx_http_tokenring_text_t *t,
    uint64_t prompt_tokens, uint64_t completion_tokens, ngx_str_t *policy,
    tr_wire_finish_t *totals)
{
    if (ngx_http_tokenring_usage_counts(t, prompt_tokens, completion_tokens)
        != NGX_OK
        || ngx_http_tokenring_printf(t, 128,
               ",\"prompt_tokens_details\":{\"cached_tokens\":%uD}",
               totals->cached_tokens)
           != NGX_OK
        || (totals->reasoning_tokens
            && ngx_http_tokenring_printf(t, 96,
                   ",\"completion_tokens_details\":{\"reasoning_tokens\":"
                   "%uD}", totals->reasoning_tokens)
               != NGX_OK))
    {
        return NGX_ERROR;
    }

    return ngx_http_tokenring_usage_end(t, policy, totals);
}


static ngx_int_t
ngx_http_tokenring_usage_counts(ngx_http_tokenring_text_t *t,
    uint64_t prompt_tokens, uint64_t completion_tokens)
{
    return ngx_http_tokenring_printf(t, 192,
               "\"usage\":{\"prompt_tokens\":%uL,\"completion_tokens\":%uL,"
               "\"total_tokens\":%uL", prompt_tokens, completion_tokens,
               prompt_tokens + completion_tokens);
}


/* what each API's usage ends with: all that is ours */

ngx_int_t
ngx_http_tokenring_usage_end(ngx_http_tokenring_text_t *t, ngx_str_t *policy,
    tr_wire_finish_t *totals)
{
    if (((totals->flags & TR_FINISH_CUT)
         && ngx_http_tokenring_put(t, ",\"cut\":\"token_budget\"") != NGX_OK)
        || ngx_http_tokenring_usage_kv(t, policy, &totals->kv) != NGX_OK)
    {
        return NGX_ERROR;
    }

    return ngx_http_tokenring_put(t, "}");
}


/* ,"kv_cache":{...}, or nothing where nothing is known; no policy where it has
 * no name */

static ngx_int_t
ngx_http_tokenring_usage_kv(ngx_http_tokenring_text_t *t, ngx_str_t *policy,
    tr_wire_usage_t *kv)
{
    if (kv->full_bytes == 0) {
        return NGX_OK;
    }

    if (ngx_http_tokenring_put(t, ",\"kv_cache\":{") != NGX_OK
        || (policy->len
            && (ngx_http_tokenring_put(t, "\"policy\":\"") != NGX_OK
                || ngx_http_tokenring_json(t, policy->data, policy->len)
                   != NGX_OK
                || ngx_http_tokenring_put(t, "\",") != NGX_OK)))
    {
        return NGX_ERROR;
    }

    return ngx_http_tokenring_printf(t, 384,
               "\"bytes\":%uL,\"fp16_bytes\":%uL,\"ratio\":%.4f,"
               "\"share_high\":%.4f,\"share_low\":%.4f,"
               "\"share_pruned\":%.4f,\"tokens\":{\"full\":%uD,\"high\":%uD,"
               "\"low\":%uD,\"pruned\":%uD}}",
               kv->bytes, kv->full_bytes,
               (double) kv->bytes / (double) kv->full_bytes,
               ngx_http_tokenring_share(kv->share_high),
               ngx_http_tokenring_share(kv->share_low),
               ngx_http_tokenring_share(kv->share_pruned),
               kv->tokens_full, kv->tokens_high, kv->tokens_low,
               kv->tokens_pruned);
}


static ngx_int_t
ngx_http_tokenring_logprobs(ngx_http_tokenring_ctx_t *ctx,
    ngx_http_tokenring_choice_t *choice)
{
    if (ngx_http_tokenring_text_len(&choice->logprobs) == 0) {
        return ngx_http_tokenring_put(&ctx->out, "null");
    }

    return ngx_http_tokenring_endpoint(ctx->endpoint)->logprobs(&ctx->out,
                                                                choice);
}


/* what a choice says, as a string; null beside calls or reasoning alone */

static ngx_int_t
ngx_http_tokenring_content(ngx_http_tokenring_ctx_t *ctx,
    ngx_http_tokenring_choice_t *choice)
{
    size_t                       len;
    ngx_http_tokenring_text_t   *out;
    ngx_http_tokenring_items_t  *items;

    out = &ctx->out;
    items = choice->items;
    len = ngx_http_tokenring_text_len(&choice->text);

    if (len == 0 && items
        && (ngx_http_tokenring_text_len(&items->reasoning)
            || ngx_http_tokenring_text_len(&items->calls)))
    {
        return ngx_http_tokenring_put(out, "null");
    }

    if (ngx_http_tokenring_put(out, "\"") != NGX_OK
        || ngx_http_tokenring_json(out, choice->text.pos, len) != NGX_OK)
    {
        return NGX_ERROR;
    }

    return ngx_http_tokenring_put(out, "\"");
}


/* a response that is not streamed */

ngx_int_t
ngx_http_tokenring_openai_whole(ngx_http_tokenring_ctx_t *ctx)
{
    ngx_int_t                             rc;
    ngx_uint_t                            i;
    ngx_http_tokenring_text_t            *out;
    ngx_http_tokenring_choice_t          *choice;
    const ngx_http_tokenring_endpoint_t  *endpoint;

    out = &ctx->out;
    endpoint = ngx_http_tokenring_endpoint(ctx->endpoint);

    if (ngx_http_tokenring_object(ctx, out) != NGX_OK) {
        return NGX_ERROR;
    }

    for (i = 0; i < ctx->nchoices; i++) {
        choice = &ctx->choices[i];

        rc = ngx_http_tokenring_printf(out, 128, "%s{\"index\":%ui,%s",
                 i ? "," : "", i, endpoint->message);

        if (rc != NGX_OK
            || ngx_http_tokenring_content(ctx, choice) != NGX_OK
            || ngx_http_tokenring_printf(out, 32, "%s", endpoint->message_end)
               != NGX_OK
            || (choice->items
                && ngx_http_tokenring_items_whole(ctx, choice->items)
                   != NGX_OK)
            || ngx_http_tokenring_printf(out, 64, "%s,\"logprobs\":",
                                         endpoint->message_close)
               != NGX_OK
            || ngx_http_tokenring_logprobs(ctx, choice) != NGX_OK
            || ngx_http_tokenring_printf(out, 64,
                                   ",\"finish_reason\":\"%s\"}",
                                   ngx_http_tokenring_reason(choice->reason))
               != NGX_OK)
        {
            return NGX_ERROR;
        }

    }

    ngx_http_tokenring_choices_free(ctx);

    if (ngx_http_tokenring_put(out, "],") != NGX_OK
        || ngx_http_tokenring_render_usage(out, ctx->prompt_tokens,
                                           ctx->completion_tokens,
                                           &ctx->policy, &ctx->totals)
           != NGX_OK)
    {
        return NGX_ERROR;
    }

    return ngx_http_tokenring_put(out, "}");
}
