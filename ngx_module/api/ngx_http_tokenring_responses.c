/*
 * What responses look like in OpenAI's Responses API: an object whose output is
 * a row of items, messages, reasoning and function calls.
 *
 * A stream is events that are numbered: created and in_progress, then for each
 * item output_item.added, its text in deltas and once more as a whole, and
 * output_item.done, then completed, incomplete or failed with the whole object.
 * So the output is kept as JSON until the end.  A response that is not streamed
 * is made of the same records, in the same order (ctx->ordered).
 *
 * There is one choice.  In a resumable stream, of several events of one record
 * the last has its number as id.
 */

#include "ngx_http_tokenring_endpoint.h"
#include "ngx_http_tokenring_render.h"


/* what a correct engine never exceeds */
#define NGX_HTTP_TOKENRING_OUTPUT_MAX  (64 * 1024 * 1024)


typedef enum {
    NGX_HTTP_TOKENRING_IN_PROGRESS = 0,
    NGX_HTTP_TOKENRING_COMPLETED,
    NGX_HTTP_TOKENRING_INCOMPLETE,
    NGX_HTTP_TOKENRING_FAILED
} ngx_http_tokenring_response_e;


static ngx_int_t ngx_http_tokenring_response_start(
    ngx_http_tokenring_ctx_t *ctx, ngx_http_tokenring_choice_t *choice);
static ngx_int_t ngx_http_tokenring_response_event(
    ngx_http_tokenring_ctx_t *ctx, uint64_t number, const char *type);
static ngx_int_t ngx_http_tokenring_response(ngx_http_tokenring_ctx_t *ctx,
    ngx_http_tokenring_response_e status);
static ngx_int_t ngx_http_tokenring_response_error(
    ngx_http_tokenring_ctx_t *ctx);
static ngx_int_t ngx_http_tokenring_response_usage(
    ngx_http_tokenring_ctx_t *ctx);
static ngx_http_tokenring_response_e ngx_http_tokenring_response_status(
    ngx_http_tokenring_choice_t *choice);
static ngx_int_t ngx_http_tokenring_item_open(ngx_http_tokenring_ctx_t *ctx,
    ngx_http_tokenring_items_t *items, uint64_t number);
static ngx_int_t ngx_http_tokenring_item_close(ngx_http_tokenring_ctx_t *ctx,
    ngx_http_tokenring_items_t *items, ngx_http_tokenring_response_e status);
static ngx_int_t ngx_http_tokenring_item_said(ngx_http_tokenring_ctx_t *ctx,
    ngx_http_tokenring_items_t *items);
static ngx_int_t ngx_http_tokenring_item_place(ngx_http_tokenring_ctx_t *ctx,
    ngx_http_tokenring_items_t *items);
static ngx_int_t ngx_http_tokenring_item_part(ngx_http_tokenring_text_t *t,
    ngx_http_tokenring_items_t *items, ngx_uint_t whole);
static ngx_int_t ngx_http_tokenring_item_object(
    ngx_http_tokenring_ctx_t *ctx, ngx_http_tokenring_text_t *t,
    ngx_http_tokenring_items_t *items, ngx_http_tokenring_response_e status,
    ngx_uint_t whole);


static const char  *ngx_http_tokenring_statuses[] = {
    "in_progress",
    "completed",
    "incomplete",
    "failed"
};


static const char *
ngx_http_tokenring_item_prefix(ngx_http_tokenring_items_t *items)
{
    return (items->open == TR_ITEM_TOOL_CALL) ? "fc_"
           : (items->open == TR_ITEM_REASONING) ? "rs_" : "msg_";
}


/* text of the newest item */

ngx_int_t
ngx_http_tokenring_responses_delta(ngx_http_tokenring_ctx_t *ctx,
    ngx_uint_t index, uint64_t number)
{
    size_t                        len, before;
    ngx_http_tokenring_text_t    *out, *text;
    ngx_http_tokenring_items_t   *items;
    ngx_http_tokenring_choice_t  *choice;

    out = &ctx->out;
    choice = &ctx->choices[index];
    items = choice->items;
    text = &choice->text;

    if (ngx_http_tokenring_response_start(ctx, choice) != NGX_OK
        || (items->open == 0
            && ngx_http_tokenring_item_open(ctx, items, 0) != NGX_OK))
    {
        return NGX_ERROR;
    }

    before = ngx_http_tokenring_text_len(&items->said);
    len = ngx_http_tokenring_text_len(text);

    if (before + ngx_http_tokenring_text_len(&items->output) + len
        > NGX_HTTP_TOKENRING_OUTPUT_MAX
        || ngx_http_tokenring_json(&items->said, text->pos, len) != NGX_OK)
    {
        return NGX_ERROR;
    }

    ctx->pending -= len;
    ngx_http_tokenring_text_reset(text);

    if (!ctx->stream) {
        return NGX_OK;
    }

    if (ngx_http_tokenring_response_event(ctx, number,
            (items->open == TR_ITEM_TOOL_CALL)
            ? "response.function_call_arguments.delta"
            : (items->open == TR_ITEM_REASONING)
            ? "response.reasoning_text.delta" : "response.output_text.delta")
        != NGX_OK
        || ngx_http_tokenring_item_place(ctx, items) != NGX_OK
        || ngx_http_tokenring_put(out, ",\"delta\":\"") != NGX_OK
        || ngx_http_tokenring_append(out, items->said.pos + before,
                           ngx_http_tokenring_text_len(&items->said) - before)
           != NGX_OK)
    {
        return NGX_ERROR;
    }

    return (items->open == TR_ITEM_TEXT)
           ? ngx_http_tokenring_put(out, "\",\"logprobs\":[]}\n\n")
           : ngx_http_tokenring_put(out, "\"}\n\n");
}


ngx_int_t
ngx_http_tokenring_responses_item(ngx_http_tokenring_ctx_t *ctx,
    ngx_uint_t index, uint64_t number, tr_wire_bytes_t *id,
    tr_wire_bytes_t *name)
{
    ngx_http_tokenring_text_t    *call;
    ngx_http_tokenring_items_t   *items;
    ngx_http_tokenring_choice_t  *choice;

    choice = &ctx->choices[index];
    items = choice->items;
    call = &items->call;

    if (ngx_http_tokenring_item_close(ctx, items,
                                      NGX_HTTP_TOKENRING_COMPLETED)
        != NGX_OK)
    {
        return NGX_ERROR;
    }

    if (items->kind != TR_ITEM_TOOL_CALL) {
        return NGX_OK;
    }

    ngx_http_tokenring_text_reset(call);

    if (ngx_http_tokenring_response_start(ctx, choice) != NGX_OK
        || ngx_http_tokenring_put(call, "\"call_id\":\"") != NGX_OK
        || ngx_http_tokenring_items_names(call, id, "\",\"name\":\"", name)
           != NGX_OK
        || ngx_http_tokenring_put(call, "\"") != NGX_OK)
    {
        return NGX_ERROR;
    }

    return ngx_http_tokenring_item_open(ctx, items, number);
}


ngx_int_t
ngx_http_tokenring_responses_finish(ngx_http_tokenring_ctx_t *ctx,
    ngx_uint_t index, uint64_t number)
{
    ngx_http_tokenring_choice_t    *choice;
    ngx_http_tokenring_response_e   status;

    choice = &ctx->choices[index];
    status = ngx_http_tokenring_response_status(choice);

    if (ngx_http_tokenring_response_start(ctx, choice) != NGX_OK
        || ngx_http_tokenring_item_close(ctx, choice->items, status)
           != NGX_OK)
    {
        return NGX_ERROR;
    }

    choice->ended = 1;

    if (!ctx->stream) {
        return NGX_OK;
    }

    if (ngx_http_tokenring_response_event(ctx, number,
            (choice->reason == TR_FINISH_LENGTH) ? "response.incomplete"
                                                 : "response.completed")
        != NGX_OK
        || ngx_http_tokenring_put(&ctx->out, ",\"response\":") != NGX_OK
        || ngx_http_tokenring_response(ctx, status) != NGX_OK)
    {
        return NGX_ERROR;
    }

    return ngx_http_tokenring_put(&ctx->out, "}\n\n");
}


ngx_int_t
ngx_http_tokenring_responses_whole(ngx_http_tokenring_ctx_t *ctx)
{
    if (ngx_http_tokenring_render_records(ctx) != NGX_OK
        || ngx_http_tokenring_response(ctx,
               ctx->error ? NGX_HTTP_TOKENRING_FAILED
               : ngx_http_tokenring_response_status(&ctx->choices[0]))
           != NGX_OK)
    {
        return NGX_ERROR;
    }

    ngx_http_tokenring_choices_free(ctx);

    return NGX_OK;
}


/* of the events from offset before on, the first of which is number first, a
 * client that reads a response again has some */

void
ngx_http_tokenring_responses_skip(ngx_http_tokenring_ctx_t *ctx, size_t before,
    uint64_t first)
{
    u_char  *p, *begin, *last;

    if (ctx->out.pos == NULL) {
        return;                     /* nothing was rendered yet */
    }

    begin = ctx->out.pos + before;
    last = ctx->out.last;

    for (p = begin; first < ctx->skip && p < last; first++) {
        p = ngx_strlchr(p, last, LF);

        while (p && p + 1 < last && p[1] != LF) {
            p = ngx_strlchr(p + 1, last, LF);
        }

        p = (p && p + 2 <= last) ? p + 2 : last;
    }

    ngx_memmove(begin, p, last - p);
    ctx->out.last = begin + (last - p);
}


/* the first events of a stream, unless they were sent */

static ngx_int_t
ngx_http_tokenring_response_start(ngx_http_tokenring_ctx_t *ctx,
    ngx_http_tokenring_choice_t *choice)
{
    ngx_uint_t  i;

    static const char  *types[] = { "response.created",
                                    "response.in_progress" };

    if (!ctx->stream || choice->begun) {
        return NGX_OK;
    }

    choice->begun = 1;

    for (i = 0; i < 2; i++) {
        if (ngx_http_tokenring_response_event(ctx, 0, types[i]) != NGX_OK
            || ngx_http_tokenring_put(&ctx->out, ",\"response\":") != NGX_OK
            || ngx_http_tokenring_response(ctx,
                                           NGX_HTTP_TOKENRING_IN_PROGRESS)
               != NGX_OK
            || ngx_http_tokenring_put(&ctx->out, "}\n\n") != NGX_OK)
        {
            return NGX_ERROR;
        }
    }

    return NGX_OK;
}


/* the last event of a stream that failed; of another it is its FINISH's */

ngx_int_t
ngx_http_tokenring_responses_end(ngx_http_tokenring_ctx_t *ctx)
{
    size_t                      before;
    uint64_t                    first;
    ngx_http_tokenring_text_t  *out;

    out = &ctx->out;
    before = ngx_http_tokenring_text_len(out);

    if (ctx->error == TR_OK) {
        return NGX_OK;
    }

    if (ctx->choices == NULL) {

        /* an engine took it over, and failed before it said anything */

        if (ngx_http_tokenring_put(out, "event: error\ndata: "
                                   "{\"type\":\"error\",\"sequence_number\":0,"
                                   "\"code\":\"server_error\",\"param\":null,"
                                   "\"message\":\"")
            != NGX_OK
            || ngx_http_tokenring_json(out, ctx->message.data,
                                       ctx->message.len)
               != NGX_OK)
        {
            return NGX_ERROR;
        }

        return ngx_http_tokenring_put(out, "\"}\n\n");
    }

    first = ctx->choices[0].items->sequence;

    if (ngx_http_tokenring_response_start(ctx, &ctx->choices[0]) != NGX_OK
        || ngx_http_tokenring_response_event(ctx,
               ctx->resumable ? ctx->error_number : 0, "response.failed")
           != NGX_OK
        || ngx_http_tokenring_put(out, ",\"response\":") != NGX_OK
        || ngx_http_tokenring_response(ctx, NGX_HTTP_TOKENRING_FAILED)
           != NGX_OK
        || ngx_http_tokenring_put(out, "}\n\n") != NGX_OK)
    {
        return NGX_ERROR;
    }

    if (ctx->skip) {
        ngx_http_tokenring_responses_skip(ctx, before, first);
    }

    return NGX_OK;
}


/* an event up to its number */

static ngx_int_t
ngx_http_tokenring_response_event(ngx_http_tokenring_ctx_t *ctx,
    uint64_t number, const char *type)
{
    if (ngx_http_tokenring_id(ctx, number) != NGX_OK) {
        return NGX_ERROR;
    }

    return ngx_http_tokenring_printf(&ctx->out, 192,
               "event: %s\ndata: {\"type\":\"%s\",\"sequence_number\":%uL",
               type, type, ctx->choices[0].items->sequence++);
}


static ngx_http_tokenring_response_e
ngx_http_tokenring_response_status(ngx_http_tokenring_choice_t *choice)
{
    return (choice->reason == TR_FINISH_LENGTH) ? NGX_HTTP_TOKENRING_INCOMPLETE
                                                : NGX_HTTP_TOKENRING_COMPLETED;
}


static ngx_int_t
ngx_http_tokenring_response_error(ngx_http_tokenring_ctx_t *ctx)
{
    tr_status_info_t            info;
    ngx_http_tokenring_text_t  *out;

    out = &ctx->out;
    info = tr_status_info(ctx->error);

    if (ngx_http_tokenring_printf(out, 64,
               "{\"code\":\"%s\",\"message\":\"",
               (info.http == 429) ? "rate_limit_exceeded" : "server_error")
        != NGX_OK
        || ngx_http_tokenring_json(out, ctx->message.data, ctx->message.len)
           != NGX_OK)
    {
        return NGX_ERROR;
    }

    return ngx_http_tokenring_put(out, "\"}");
}


/* the object; its output are the items that are complete */

static ngx_int_t
ngx_http_tokenring_response(ngx_http_tokenring_ctx_t *ctx,
    ngx_http_tokenring_response_e status)
{
    ngx_http_tokenring_text_t   *out;
    ngx_http_tokenring_items_t  *items;

    out = &ctx->out;
    items = ctx->choices[0].items;

    if (ngx_http_tokenring_printf(out, 192,
               "{\"id\":\"resp_%V\",\"object\":\"response\","
               "\"created_at\":%L,\"status\":\"%s\",\"error\":",
               &ctx->completion, ctx->created,
               ngx_http_tokenring_statuses[status])
        != NGX_OK
        || ((status == NGX_HTTP_TOKENRING_FAILED)
            ? ngx_http_tokenring_response_error(ctx)
            : ngx_http_tokenring_put(out, "null"))
           != NGX_OK)
    {
        return NGX_ERROR;
    }

    if (ngx_http_tokenring_printf(out, 96,
               ",\"incomplete_details\":%s,\"model\":\"",
               (status == NGX_HTTP_TOKENRING_INCOMPLETE)
               ? "{\"reason\":\"max_output_tokens\"}" : "null")
        != NGX_OK
        || ngx_http_tokenring_json(out, ctx->model.data, ctx->model.len)
           != NGX_OK
        || ngx_http_tokenring_put(out, "\",") != NGX_OK)
    {
        return NGX_ERROR;
    }

    if (ngx_http_tokenring_text_len(&ctx->repeated)
        && (ngx_http_tokenring_append(out, ctx->repeated.pos,
                                 ngx_http_tokenring_text_len(&ctx->repeated))
            != NGX_OK
            || ngx_http_tokenring_put(out, ",") != NGX_OK))
    {
        return NGX_ERROR;
    }

    if (ngx_http_tokenring_put(out, "\"output\":[") != NGX_OK
        || ngx_http_tokenring_append(out, items->output.pos,
                                 ngx_http_tokenring_text_len(&items->output))
           != NGX_OK
        || ngx_http_tokenring_put(out, "],\"usage\":") != NGX_OK
        || ((status == NGX_HTTP_TOKENRING_IN_PROGRESS)
            ? ngx_http_tokenring_put(out, "null")
            : ngx_http_tokenring_response_usage(ctx))
           != NGX_OK)
    {
        return NGX_ERROR;
    }

    return ngx_http_tokenring_put(out, "}");
}


static ngx_int_t
ngx_http_tokenring_response_usage(ngx_http_tokenring_ctx_t *ctx)
{
    tr_wire_finish_t  *totals;

    totals = &ctx->totals;

    if (ngx_http_tokenring_printf(&ctx->out, 320,
               "{\"input_tokens\":%uL,"
               "\"input_tokens_details\":{\"cached_tokens\":%uD},"
               "\"output_tokens\":%uL,"
               "\"output_tokens_details\":{\"reasoning_tokens\":%uD},"
               "\"total_tokens\":%uL",
               ctx->prompt_tokens, totals->cached_tokens,
               ctx->completion_tokens, totals->reasoning_tokens,
               ctx->prompt_tokens + ctx->completion_tokens)
        != NGX_OK)
    {
        return NGX_ERROR;
    }

    return ngx_http_tokenring_usage_end(&ctx->out, &ctx->policy, totals);
}


/* an item begins; number: of the record, where no other event follows */

static ngx_int_t
ngx_http_tokenring_item_open(ngx_http_tokenring_ctx_t *ctx,
    ngx_http_tokenring_items_t *items, uint64_t number)
{
    ngx_http_tokenring_text_t  *out;

    out = &ctx->out;

    items->open = items->kind;
    items->blocks++;

    ngx_http_tokenring_text_reset(&items->said);

    if (!ctx->stream) {
        return NGX_OK;
    }

    if (ngx_http_tokenring_response_event(ctx, number,
                                          "response.output_item.added")
        != NGX_OK
        || ngx_http_tokenring_printf(out, 64,
                   ",\"output_index\":%uD,\"item\":", items->blocks - 1)
           != NGX_OK
        || ngx_http_tokenring_item_object(ctx, out, items,
                                          NGX_HTTP_TOKENRING_IN_PROGRESS, 0)
           != NGX_OK
        || ngx_http_tokenring_put(out, "}\n\n") != NGX_OK)
    {
        return NGX_ERROR;
    }

    if (items->open == TR_ITEM_TOOL_CALL) {
        return NGX_OK;
    }

    if (ngx_http_tokenring_response_event(ctx, 0,
                                          "response.content_part.added")
        != NGX_OK
        || ngx_http_tokenring_item_place(ctx, items) != NGX_OK
        || ngx_http_tokenring_put(out, ",\"part\":") != NGX_OK
        || ngx_http_tokenring_item_part(out, items, 0) != NGX_OK)
    {
        return NGX_ERROR;
    }

    return ngx_http_tokenring_put(out, "}\n\n");
}


/* the item that is open, if one is, with all that it said */

static ngx_int_t
ngx_http_tokenring_item_close(ngx_http_tokenring_ctx_t *ctx,
    ngx_http_tokenring_items_t *items, ngx_http_tokenring_response_e status)
{
    size_t                      before;
    ngx_http_tokenring_text_t  *out, *output;

    out = &ctx->out;
    output = &items->output;

    if (items->open == 0) {
        return NGX_OK;
    }

    if (ngx_http_tokenring_text_len(output)
        && ngx_http_tokenring_put(output, ",") != NGX_OK)
    {
        return NGX_ERROR;
    }

    before = ngx_http_tokenring_text_len(output);

    if (ngx_http_tokenring_item_object(ctx, output, items, status, 1)
        != NGX_OK)
    {
        return NGX_ERROR;
    }

    if (ctx->stream
        && (ngx_http_tokenring_item_said(ctx, items) != NGX_OK
            || ngx_http_tokenring_response_event(ctx, 0,
                                                "response.output_item.done")
               != NGX_OK
            || ngx_http_tokenring_printf(out, 64,
                       ",\"output_index\":%uD,\"item\":", items->blocks - 1)
               != NGX_OK
            || ngx_http_tokenring_append(out, output->pos + before,
                             ngx_http_tokenring_text_len(output) - before)
               != NGX_OK
            || ngx_http_tokenring_put(out, "}\n\n") != NGX_OK))
    {
        return NGX_ERROR;
    }

    items->open = 0;
    ngx_http_tokenring_text_reset(&items->said);

    return NGX_OK;
}


/* all of its text once more, and its part */

static ngx_int_t
ngx_http_tokenring_item_said(ngx_http_tokenring_ctx_t *ctx,
    ngx_http_tokenring_items_t *items)
{
    ngx_uint_t                  call;
    ngx_http_tokenring_text_t  *out;

    out = &ctx->out;
    call = (items->open == TR_ITEM_TOOL_CALL);

    if (ngx_http_tokenring_response_event(ctx, 0,
            call ? "response.function_call_arguments.done"
            : (items->open == TR_ITEM_REASONING)
            ? "response.reasoning_text.done" : "response.output_text.done")
        != NGX_OK
        || ngx_http_tokenring_item_place(ctx, items) != NGX_OK
        || (call && (ngx_http_tokenring_put(out, ",") != NGX_OK
                     || ngx_http_tokenring_append(out, items->call.pos,
                                    ngx_http_tokenring_text_len(&items->call))
                        != NGX_OK))
        || ngx_http_tokenring_printf(out, 32, ",\"%s\":\"",
                                     call ? "arguments" : "text")
           != NGX_OK
        || ngx_http_tokenring_append(out, items->said.pos,
                                   ngx_http_tokenring_text_len(&items->said))
           != NGX_OK
        || ngx_http_tokenring_printf(out, 32, "\"%s}\n\n",
                         (items->open == TR_ITEM_TEXT) ? ",\"logprobs\":[]"
                                                       : "")
           != NGX_OK)
    {
        return NGX_ERROR;
    }

    if (call) {
        return NGX_OK;
    }

    if (ngx_http_tokenring_response_event(ctx, 0,
                                          "response.content_part.done")
        != NGX_OK
        || ngx_http_tokenring_item_place(ctx, items) != NGX_OK
        || ngx_http_tokenring_put(out, ",\"part\":") != NGX_OK
        || ngx_http_tokenring_item_part(out, items, 1) != NGX_OK)
    {
        return NGX_ERROR;
    }

    return ngx_http_tokenring_put(out, "}\n\n");
}


/* where an event belongs */

static ngx_int_t
ngx_http_tokenring_item_place(ngx_http_tokenring_ctx_t *ctx,
    ngx_http_tokenring_items_t *items)
{
    return ngx_http_tokenring_printf(&ctx->out, 160,
               ",\"item_id\":\"%s%V_%uD\",\"output_index\":%uD%s",
               ngx_http_tokenring_item_prefix(items), &ctx->completion,
               items->blocks - 1, items->blocks - 1,
               (items->open == TR_ITEM_TOOL_CALL) ? ""
                                                  : ",\"content_index\":0");
}


/* the content of a message or of reasoning; whole: with its text */

static ngx_int_t
ngx_http_tokenring_item_part(ngx_http_tokenring_text_t *t,
    ngx_http_tokenring_items_t *items, ngx_uint_t whole)
{
    ngx_uint_t  text;

    text = (items->open != TR_ITEM_REASONING);

    if (ngx_http_tokenring_printf(t, 64, "{\"type\":\"%s\",\"text\":\"",
                                  text ? "output_text" : "reasoning_text")
        != NGX_OK
        || (whole
            && ngx_http_tokenring_append(t, items->said.pos,
                                   ngx_http_tokenring_text_len(&items->said))
               != NGX_OK))
    {
        return NGX_ERROR;
    }

    return text ? ngx_http_tokenring_put(t,
                              "\",\"annotations\":[],\"logprobs\":[]}")
                : ngx_http_tokenring_put(t, "\"}");
}


static ngx_int_t
ngx_http_tokenring_item_object(ngx_http_tokenring_ctx_t *ctx,
    ngx_http_tokenring_text_t *t, ngx_http_tokenring_items_t *items,
    ngx_http_tokenring_response_e status, ngx_uint_t whole)
{
    if (ngx_http_tokenring_printf(t, 128, "{\"id\":\"%s%V_%uD\",\"type\":",
                                  ngx_http_tokenring_item_prefix(items),
                                  &ctx->completion, items->blocks - 1)
        != NGX_OK)
    {
        return NGX_ERROR;
    }

    if (items->open == TR_ITEM_TOOL_CALL) {

        if (ngx_http_tokenring_printf(t, 64,
                   "\"function_call\",\"status\":\"%s\",",
                   ngx_http_tokenring_statuses[status])
            != NGX_OK
            || ngx_http_tokenring_append(t, items->call.pos,
                                    ngx_http_tokenring_text_len(&items->call))
               != NGX_OK
            || ngx_http_tokenring_put(t, ",\"arguments\":\"") != NGX_OK
            || (whole
                && ngx_http_tokenring_append(t, items->said.pos,
                                   ngx_http_tokenring_text_len(&items->said))
                   != NGX_OK))
        {
            return NGX_ERROR;
        }

        return ngx_http_tokenring_put(t, "\"}");
    }

    if (ngx_http_tokenring_printf(t, 128,
               (items->open == TR_ITEM_REASONING)
               ? "\"reasoning\",\"status\":\"%s\",\"summary\":[],"
                 "\"encrypted_content\":null,\"content\":["
               : "\"message\",\"status\":\"%s\",\"role\":\"assistant\","
                 "\"content\":[",
               ngx_http_tokenring_statuses[status])
        != NGX_OK
        || (whole && ngx_http_tokenring_item_part(t, items, 1) != NGX_OK))
    {
        return NGX_ERROR;
    }

    return ngx_http_tokenring_put(t, "]}");
}
