/*
 * What responses look like in Anthropic's Messages API: a message whose content
 * is a row of blocks, text, thinking and tool_use.
 *
 * A stream is events: message_start, then for each block content_block_start,
 * content_block_delta and content_block_stop, then message_delta with the
 * reason and the usage, and message_stop.  A block begins with the first text
 * of its kind, a call with its ITEM.  A whole message is rendered from the same
 * records, in the same order (ctx->ordered), so that both say the same.
 *
 * There is one choice.  In a resumable stream, of several events of one record
 * the last has its number as id.
 */

#include "ngx_http_tokenring_endpoint.h"
#include "ngx_http_tokenring_render.h"


/* a thinking block has one; nobody checks it when it comes back */
#define NGX_HTTP_TOKENRING_SIGNATURE  "dG9rZW5yaW5n"


static ngx_int_t ngx_http_tokenring_message(ngx_http_tokenring_ctx_t *ctx);
static ngx_int_t ngx_http_tokenring_message_start(
    ngx_http_tokenring_ctx_t *ctx, ngx_http_tokenring_choice_t *choice);
static ngx_int_t ngx_http_tokenring_message_usage(
    ngx_http_tokenring_ctx_t *ctx);
static ngx_int_t ngx_http_tokenring_message_reason(
    ngx_http_tokenring_ctx_t *ctx, ngx_http_tokenring_choice_t *choice);
static ngx_int_t ngx_http_tokenring_block_head(ngx_http_tokenring_ctx_t *ctx,
    uint32_t index);
static ngx_int_t ngx_http_tokenring_block_open(ngx_http_tokenring_ctx_t *ctx,
    ngx_http_tokenring_choice_t *choice, tr_wire_bytes_t *id,
    tr_wire_bytes_t *name);
static ngx_int_t ngx_http_tokenring_block_close(
    ngx_http_tokenring_ctx_t *ctx, ngx_http_tokenring_choice_t *choice);
static ngx_int_t ngx_http_tokenring_block_input(
    ngx_http_tokenring_ctx_t *ctx, ngx_http_tokenring_items_t *items);
static const char *ngx_http_tokenring_message_error_type(ngx_uint_t status);


/* text of the newest item */

ngx_int_t
ngx_http_tokenring_messages_delta(ngx_http_tokenring_ctx_t *ctx,
    ngx_uint_t index, uint64_t number)
{
    ngx_int_t                     rc;
    const char                   *delta;
    ngx_http_tokenring_text_t    *out, *text;
    ngx_http_tokenring_items_t   *items;
    ngx_http_tokenring_choice_t  *choice;

    out = &ctx->out;
    choice = &ctx->choices[index];
    items = choice->items;
    text = &choice->text;

    if (ngx_http_tokenring_message_start(ctx, choice) != NGX_OK
        || (items->open == 0
            && ngx_http_tokenring_block_open(ctx, choice, NULL, NULL)
               != NGX_OK))
    {
        return NGX_ERROR;
    }

    if (!ctx->stream) {
        rc = (items->open == TR_ITEM_TOOL_CALL)
             ? ngx_http_tokenring_append(&items->calls, text->pos,
                                         ngx_http_tokenring_text_len(text))
             : ngx_http_tokenring_json(out, text->pos,
                                       ngx_http_tokenring_text_len(text));
        goto done;
    }

    delta = (items->open == TR_ITEM_TOOL_CALL)
            ? "{\"type\":\"input_json_delta\",\"partial_json\":\""
            : (items->open == TR_ITEM_REASONING)
            ? "{\"type\":\"thinking_delta\",\"thinking\":\""
            : "{\"type\":\"text_delta\",\"text\":\"";

    if (ngx_http_tokenring_id(ctx, number) != NGX_OK
        || ngx_http_tokenring_printf(out, 192,
               "event: content_block_delta\n"
               "data: {\"type\":\"content_block_delta\",\"index\":%uD,"
               "\"delta\":%s", items->blocks - 1, delta)
           != NGX_OK
        || ngx_http_tokenring_json(out, text->pos,
                                   ngx_http_tokenring_text_len(text))
           != NGX_OK)
    {
        return NGX_ERROR;
    }

    rc = ngx_http_tokenring_put(out, "\"}}\n\n");

done:

    ctx->pending -= ngx_http_tokenring_text_len(text);
    ngx_http_tokenring_text_reset(text);

    return rc;
}


ngx_int_t
ngx_http_tokenring_messages_item(ngx_http_tokenring_ctx_t *ctx,
    ngx_uint_t index, uint64_t number, tr_wire_bytes_t *id,
    tr_wire_bytes_t *name)
{
    ngx_http_tokenring_choice_t  *choice;

    choice = &ctx->choices[index];

    if (choice->items->kind != TR_ITEM_TOOL_CALL) {
        return ngx_http_tokenring_block_close(ctx, choice);
    }

    choice->items->called = 1;

    if (ngx_http_tokenring_message_start(ctx, choice) != NGX_OK
        || ngx_http_tokenring_block_close(ctx, choice) != NGX_OK
        || (ctx->stream && ngx_http_tokenring_id(ctx, number) != NGX_OK))
    {
        return NGX_ERROR;
    }

    return ngx_http_tokenring_block_open(ctx, choice, id, name);
}


ngx_int_t
ngx_http_tokenring_messages_finish(ngx_http_tokenring_ctx_t *ctx,
    ngx_uint_t index, uint64_t number)
{
    ngx_http_tokenring_choice_t  *choice;

    choice = &ctx->choices[index];

    if (ngx_http_tokenring_message_start(ctx, choice) != NGX_OK
        || ngx_http_tokenring_block_close(ctx, choice) != NGX_OK)
    {
        return NGX_ERROR;
    }

    choice->ended = 1;

    if (!ctx->stream) {
        return NGX_OK;
    }

    if (ngx_http_tokenring_id(ctx, number) != NGX_OK
        || ngx_http_tokenring_put(&ctx->out, "event: message_delta\n"
                          "data: {\"type\":\"message_delta\",\"delta\":{")
           != NGX_OK
        || ngx_http_tokenring_message_reason(ctx, choice) != NGX_OK
        || ngx_http_tokenring_put(&ctx->out, "},") != NGX_OK
        || ngx_http_tokenring_message_usage(ctx) != NGX_OK)
    {
        return NGX_ERROR;
    }

    return ngx_http_tokenring_put(&ctx->out, "}\n\n");
}


ngx_int_t
ngx_http_tokenring_messages_whole(ngx_http_tokenring_ctx_t *ctx)
{
    ngx_http_tokenring_text_t    *out;
    ngx_http_tokenring_choice_t  *choice;

    out = &ctx->out;
    choice = &ctx->choices[0];

    if (ngx_http_tokenring_message(ctx) != NGX_OK
        || ngx_http_tokenring_render_records(ctx) != NGX_OK
        || ngx_http_tokenring_put(out, "],") != NGX_OK
        || ngx_http_tokenring_message_reason(ctx, choice) != NGX_OK
        || ngx_http_tokenring_put(out, ",") != NGX_OK
        || ngx_http_tokenring_message_usage(ctx) != NGX_OK)
    {
        return NGX_ERROR;
    }

    ngx_http_tokenring_choices_free(ctx);

    return ngx_http_tokenring_put(out, "}");
}


/* {"input_tokens": 12} */

ngx_int_t
ngx_http_tokenring_count_whole(ngx_http_tokenring_ctx_t *ctx)
{
    return ngx_http_tokenring_printf(&ctx->out, 64, "{\"input_tokens\":%uL}",
                                     ctx->prompt_tokens);
}


/* a message up to its blocks */

static ngx_int_t
ngx_http_tokenring_message(ngx_http_tokenring_ctx_t *ctx)
{
    if (ngx_http_tokenring_printf(&ctx->out, 128,
               "{\"id\":\"msg_%V\",\"type\":\"message\","
               "\"role\":\"assistant\",\"model\":\"", &ctx->completion)
        != NGX_OK
        || ngx_http_tokenring_json(&ctx->out, ctx->model.data, ctx->model.len)
           != NGX_OK)
    {
        return NGX_ERROR;
    }

    return ngx_http_tokenring_put(&ctx->out, "\",\"content\":[");
}


/* the first event of a stream, unless it was sent */

static ngx_int_t
ngx_http_tokenring_message_start(ngx_http_tokenring_ctx_t *ctx,
    ngx_http_tokenring_choice_t *choice)
{
    if (!ctx->stream || choice->begun) {
        return NGX_OK;
    }

    choice->begun = 1;

    if (ngx_http_tokenring_put(&ctx->out, "event: message_start\n"
                          "data: {\"type\":\"message_start\",\"message\":")
        != NGX_OK
        || ngx_http_tokenring_message(ctx) != NGX_OK)
    {
        return NGX_ERROR;
    }

    return ngx_http_tokenring_printf(&ctx->out, 256,
               "],\"stop_reason\":null,\"stop_sequence\":null,\"usage\":{"
               "\"input_tokens\":%uL,\"cache_creation_input_tokens\":0,"
               "\"cache_read_input_tokens\":0,\"output_tokens\":0}}}\n\n",
               ctx->prompt_tokens);
}


/* tokens that were taken from a cache are not among the input's */

static ngx_int_t
ngx_http_tokenring_message_usage(ngx_http_tokenring_ctx_t *ctx)
{
    tr_wire_finish_t           *totals;
    ngx_http_tokenring_text_t  *out;

    out = &ctx->out;
    totals = &ctx->totals;

    if (ngx_http_tokenring_printf(out, 256,
               "\"usage\":{\"input_tokens\":%uL,"
               "\"cache_creation_input_tokens\":0,"
               "\"cache_read_input_tokens\":%uD,\"output_tokens\":%uL",
               ctx->prompt_tokens - ngx_min(totals->cached_tokens,
                                            ctx->prompt_tokens),
               totals->cached_tokens, ctx->completion_tokens)
        != NGX_OK
        || (totals->reasoning_tokens
            && ngx_http_tokenring_printf(out, 96,
                   ",\"output_tokens_details\":{\"thinking_tokens\":%uD}",
                   totals->reasoning_tokens)
               != NGX_OK))
    {
        return NGX_ERROR;
    }

    return ngx_http_tokenring_usage_end(out, &ctx->policy, totals);
}


static ngx_int_t
ngx_http_tokenring_message_reason(ngx_http_tokenring_ctx_t *ctx,
    ngx_http_tokenring_choice_t *choice)
{
    const char                 *reason;
    ngx_http_tokenring_text_t  *out;

    out = &ctx->out;

    if (ctx->stop.len) {

        if (ngx_http_tokenring_put(out, "\"stop_reason\":\"stop_sequence\","
                                   "\"stop_sequence\":\"")
            != NGX_OK
            || ngx_http_tokenring_json(out, ctx->stop.data, ctx->stop.len)
               != NGX_OK)
        {
            return NGX_ERROR;
        }

        return ngx_http_tokenring_put(out, "\"");
    }

    reason = (choice->reason == TR_FINISH_LENGTH) ? "max_tokens"
             : choice->items->called ? "tool_use" : "end_turn";

    return ngx_http_tokenring_printf(out, 96,
               "\"stop_reason\":\"%s\",\"stop_sequence\":null", reason);
}


/* the last event of a stream */

ngx_int_t
ngx_http_tokenring_messages_end(ngx_http_tokenring_ctx_t *ctx)
{
    tr_status_info_t  info;

    if (ctx->error == TR_OK) {
        return ngx_http_tokenring_put(&ctx->out, "event: message_stop\n"
                                  "data: {\"type\":\"message_stop\"}\n\n");
    }

    info = tr_status_info(ctx->error);

    if (ngx_http_tokenring_id(ctx, ctx->error_number) != NGX_OK
        || ngx_http_tokenring_put(&ctx->out, "event: error\ndata: ") != NGX_OK
        || ngx_http_tokenring_messages_error(&ctx->out, info.http,
                                             &ctx->param, &ctx->message,
                                             &ctx->request_id)
           != NGX_OK)
    {
        return NGX_ERROR;
    }

    return ngx_http_tokenring_put(&ctx->out, "\n\n");
}


/* what stands in front of a block's object */

static ngx_int_t
ngx_http_tokenring_block_head(ngx_http_tokenring_ctx_t *ctx, uint32_t index)
{
    if (ctx->stream) {
        return ngx_http_tokenring_printf(&ctx->out, 128,
                   "event: content_block_start\n"
                   "data: {\"type\":\"content_block_start\",\"index\":%uD,"
                   "\"content_block\":", index);
    }

    return index ? ngx_http_tokenring_put(&ctx->out, ",") : NGX_OK;
}


/* id and name: of a call, which is a block from its beginning on */

static ngx_int_t
ngx_http_tokenring_block_open(ngx_http_tokenring_ctx_t *ctx,
    ngx_http_tokenring_choice_t *choice, tr_wire_bytes_t *id,
    tr_wire_bytes_t *name)
{
    ngx_http_tokenring_text_t   *out;
    ngx_http_tokenring_items_t  *items;

    out = &ctx->out;
    items = choice->items;

    /* text behind a call that was closed cannot be, but the engine says it */
    items->open = (id == NULL && items->kind == TR_ITEM_TOOL_CALL)
                  ? TR_ITEM_TEXT : items->kind;
    items->blocks++;

    if (ngx_http_tokenring_block_head(ctx, items->blocks - 1) != NGX_OK) {
        return NGX_ERROR;
    }

    switch (items->open) {

    case TR_ITEM_TOOL_CALL:
        ngx_http_tokenring_text_reset(&items->calls);

        if (ngx_http_tokenring_put(out, "{\"type\":\"tool_use\",\"id\":\"")
            != NGX_OK
            || ngx_http_tokenring_items_names(out, id, "\",\"name\":\"", name)
               != NGX_OK
            || ngx_http_tokenring_put(out, "\",\"caller\":{\"type\":\"direct\"}"
                                      ",\"input\":") != NGX_OK)
        {
            return NGX_ERROR;
        }

        return ctx->stream ? ngx_http_tokenring_put(out, "{}}}\n\n") : NGX_OK;

    case TR_ITEM_REASONING:
        if (ngx_http_tokenring_put(out,
                                   "{\"type\":\"thinking\",\"thinking\":\"")
            != NGX_OK)
        {
            return NGX_ERROR;
        }

        return ctx->stream ? ngx_http_tokenring_put(out,
                                             "\",\"signature\":\"\"}}\n\n")
                           : NGX_OK;

    default: /* TR_ITEM_TEXT */
        if (ngx_http_tokenring_put(out, "{\"type\":\"text\",\"text\":\"")
            != NGX_OK)
        {
            return NGX_ERROR;
        }

        return ctx->stream ? ngx_http_tokenring_put(out, "\"}}\n\n") : NGX_OK;
    }
}


/* the block that is open, if one is */

static ngx_int_t
ngx_http_tokenring_block_close(ngx_http_tokenring_ctx_t *ctx,
    ngx_http_tokenring_choice_t *choice)
{
    ngx_uint_t                   kind;
    ngx_http_tokenring_text_t   *out;
    ngx_http_tokenring_items_t  *items;

    out = &ctx->out;
    items = choice->items;

    kind = items->open;
    items->open = 0;

    if (kind == 0) {
        return NGX_OK;
    }

    if (!ctx->stream) {

        switch (kind) {

        case TR_ITEM_TOOL_CALL:
            return ngx_http_tokenring_block_input(ctx, items);

        case TR_ITEM_REASONING:
            return ngx_http_tokenring_put(out, "\",\"signature\":\""
                                       NGX_HTTP_TOKENRING_SIGNATURE "\"}");

        default:
            return ngx_http_tokenring_put(out, "\"}");
        }
    }

    if (kind == TR_ITEM_REASONING
        && ngx_http_tokenring_printf(out, 192,
               "event: content_block_delta\n"
               "data: {\"type\":\"content_block_delta\",\"index\":%uD,"
               "\"delta\":{\"type\":\"signature_delta\",\"signature\":\""
               NGX_HTTP_TOKENRING_SIGNATURE "\"}}\n\n", items->blocks - 1)
           != NGX_OK)
    {
        return NGX_ERROR;
    }

    return ngx_http_tokenring_printf(out, 128,
               "event: content_block_stop\n"
               "data: {\"type\":\"content_block_stop\",\"index\":%uD}\n\n",
               items->blocks - 1);
}


/*
 * The arguments of a whole call.  Where they are no JSON object, as those that
 * max_tokens cut, they stand in one as a string, under the name that
 * Anthropic's documentation gives it.
 */

static ngx_int_t
ngx_http_tokenring_block_input(ngx_http_tokenring_ctx_t *ctx,
    ngx_http_tokenring_items_t *items)
{
    size_t                      len;
    ngx_http_tokenring_text_t  *out;

    out = &ctx->out;
    len = ngx_http_tokenring_text_len(&items->calls);

    if (ngx_http_tokenring_json_object(items->calls.pos, len)) {

        if (ngx_http_tokenring_utf8(out, items->calls.pos, len) != NGX_OK) {
            return NGX_ERROR;
        }

        return ngx_http_tokenring_put(out, "}");
    }

    if (ngx_http_tokenring_put(out, "{\"INVALID_JSON\":\"") != NGX_OK
        || ngx_http_tokenring_json(out, items->calls.pos, len) != NGX_OK)
    {
        return NGX_ERROR;
    }

    return ngx_http_tokenring_put(out, "\"}}");
}


ngx_int_t
ngx_http_tokenring_messages_error(ngx_http_tokenring_text_t *t,
    ngx_uint_t status, ngx_str_t *param, ngx_str_t *message,
    ngx_str_t *request_id)
{
    ngx_uint_t  thread;

    /* clients that keep a thread where they can go on without it, if told so */

    thread = (param && param->len == 6
              && ngx_strncmp(param->data, "thread", 6) == 0);

    if (ngx_http_tokenring_printf(t, 128,
               "{\"type\":\"error\",\"error\":{\"type\":\"%s\","
               "\"message\":\"",
               ngx_http_tokenring_message_error_type(status))
        != NGX_OK
        || ngx_http_tokenring_json(t, message->data, message->len) != NGX_OK
        || ngx_http_tokenring_put(t, "\"") != NGX_OK
        || (thread
            && ngx_http_tokenring_put(t, ",\"details\":{\"error_code\":"
                                      "\"thread_unsupported_request\","
                                      "\"unsupported\":[\"thread\"]}")
               != NGX_OK)
        || ngx_http_tokenring_put(t, "}") != NGX_OK)
    {
        return NGX_ERROR;
    }

    if (request_id
        && (ngx_http_tokenring_put(t, ",\"request_id\":\"") != NGX_OK
            || ngx_http_tokenring_json(t, request_id->data, request_id->len)
               != NGX_OK
            || ngx_http_tokenring_put(t, "\"") != NGX_OK))
    {
        return NGX_ERROR;
    }

    return ngx_http_tokenring_put(t, "}");
}


static const char *
ngx_http_tokenring_message_error_type(ngx_uint_t status)
{
    switch (status) {

    case 401:
        return "authentication_error";

    case 403:
        return "permission_error";

    case 404:
        return "not_found_error";

    case 413:
        return "request_too_large";

    case 429:
        return "rate_limit_error";

    case 503:
        return "overloaded_error";

    case 504:
        return "timeout_error";

    default:
        return (status < 500) ? "invalid_request_error" : "api_error";
    }
}
