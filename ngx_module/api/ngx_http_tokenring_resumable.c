/*
 * Streams that a client can resume, and other responses whose records are
 * rendered one by one, since they tell of tool calls or reasoning, or consist
 * of blocks (_messages.c).
 *
 * The engine numbers the records of a request (docs/redis.md), and so does the
 * worker, by counting.  In a resumable stream each record is rendered by
 * itself, in order of arrival, and its number becomes the SSE id of its event:
 * a text is never merged with another or split, whether it waits for a slow
 * client or is read from Redis later.  So what follows the event with id N has
 * the same bytes whoever renders it: events without an id (the role of a
 * choice, usage, the end marker) belong to the one that follows.
 *
 * Until it is rendered, a record waits in ctx->queue.  What the client already
 * has (up to ctx->after) is rendered as well, and dropped: choices and offsets
 * depend on it.
 */

#include "ngx_http_tokenring_conf.h"
#include "ngx_http_tokenring_render.h"
#include "ngx_http_tokenring_resumable.h"

#include <ngx_sha1.h>


typedef enum {
    NGX_HTTP_TOKENRING_QUEUED_DELTA = 0,
    NGX_HTTP_TOKENRING_QUEUED_ITEM,
    NGX_HTTP_TOKENRING_QUEUED_KV,
    NGX_HTTP_TOKENRING_QUEUED_FINISH
} ngx_http_tokenring_queued_e;


/* what is to be rendered of a record, followed by its text (that of a KV is a
 * tr_wire_usage_t, that of an ITEM the name) and logprobs (of an ITEM the id);
 * tokens: of a DELTA more, of a FINISH in all; item: of an ITEM its kind, and
 * tokens the call's index */

typedef struct {
    uint64_t    number;
    uint32_t    kind;
    uint32_t    index;
    uint32_t    tokens;
    uint32_t    text_len;
    uint32_t    logprobs_len;
    uint32_t    item;
} ngx_http_tokenring_queued_t;


static ngx_int_t ngx_http_tokenring_queue_push(ngx_http_tokenring_ctx_t *ctx,
    ngx_http_tokenring_queued_t *head, const void *text, const void *logprobs);
static ngx_int_t ngx_http_tokenring_render_record(
    ngx_http_tokenring_ctx_t *ctx);
static ngx_int_t ngx_http_tokenring_render_queued(
    ngx_http_tokenring_ctx_t *ctx, ngx_http_tokenring_queued_t *head,
    u_char *p);


/* the value of a header of the request, or NULL */

ngx_str_t *
ngx_http_tokenring_header_in(ngx_http_request_t *r, const char *name)
{
    size_t            len;
    ngx_uint_t        i;
    ngx_list_part_t  *part;
    ngx_table_elt_t  *h;

    len = ngx_strlen(name);

    part = &r->headers_in.headers.part;
    h = part->elts;

    for (i = 0; /* void */ ; i++) {

        if (i >= part->nelts) {
            if (part->next == NULL) {
                return NULL;
            }

            part = part->next;
            h = part->elts;
            i = 0;
        }

        if (h[i].hash != 0 && h[i].key.len == len
            && ngx_strncasecmp(h[i].key.data, (u_char *) name, len) == 0)
        {
            return &h[i].value;
        }
    }
}


/* options of the location and the client; *why: what is wrong with them */

tr_status_t
ngx_http_tokenring_resumable_init(ngx_http_tokenring_ctx_t *ctx,
    const char **why)
{
    ngx_str_t           *value;
    ngx_http_request_t  *r;

    r = ctx->request;

    ctx->resumable = ctx->conf->resumable ? 1 : 0;

    if (ctx->conf->key) {
        if (ngx_http_complex_value(r, ctx->conf->key, &ctx->key) != NGX_OK) {
            *why = "The owner of this request could not be determined";
            return TR_ERR_INTERNAL;
        }
    }

    value = ngx_http_tokenring_header_in(r, "X-Tokenring-Detach");

    if (value == NULL || (value->len == 1 && value->data[0] == '0')) {
        return TR_OK;
    }

    if (value->len != 1 || value->data[0] != '1') {
        *why = "X-Tokenring-Detach must be 0 or 1";
        return TR_ERR_INVALID;
    }

    if (!ctx->resumable) {
        *why = "X-Tokenring-Detach cannot be used here: output is not stored "
               "(tokenring_resumable is off)";
        return TR_ERR_INVALID;
    }

    ctx->detach = 1;

    return TR_OK;
}


/* the head of SUBMIT; a retry has changed the completion's id */

void
ngx_http_tokenring_resumable_submit(ngx_http_tokenring_ctx_t *ctx,
    tr_wire_submit_t *head)
{
    if (ctx->resumable) {
        head->flags |= TR_SUBMIT_RESUMABLE;
    }

    if (ctx->detach) {
        head->flags |= TR_SUBMIT_DETACH;
    }

    if (ctx->conf->key) {
        ngx_http_tokenring_owner(&ctx->completion, &ctx->key,
                                 (u_char *) head->owner);
    }
}


/* SHA-1 of "ID:KEY" in hex: equal keys do not look alike */

void
ngx_http_tokenring_owner(ngx_str_t *id, ngx_str_t *key, u_char *owner)
{
    u_char      digest[20];
    ngx_sha1_t  sha1;

    ngx_sha1_init(&sha1);
    ngx_sha1_update(&sha1, id->data, id->len);
    ngx_sha1_update(&sha1, ":", 1);

    if (key->len) {
        ngx_sha1_update(&sha1, key->data, key->len);
    }

    ngx_sha1_final(digest, &sha1);

    ngx_hex_dump(owner, digest, sizeof(digest));
}


/* new text (and logprobs) of a choice; if empty, it makes no event */

ngx_int_t
ngx_http_tokenring_queue_delta(ngx_http_tokenring_ctx_t *ctx,
    tr_wire_delta_t *delta, tr_wire_bytes_t *text, tr_wire_bytes_t *logprobs)
{
    ngx_http_tokenring_queued_t  head;

    ngx_memzero(&head, sizeof(ngx_http_tokenring_queued_t));

    head.kind = NGX_HTTP_TOKENRING_QUEUED_DELTA;
    head.index = delta->choice;
    head.tokens = delta->tokens;
    head.text_len = text->len;
    head.logprobs_len = logprobs->len;

    if (text->len || logprobs->len) {
        ctx->spoken = ctx->stream;
    }

    return ngx_http_tokenring_queue_push(ctx, &head, text->data,
                                         logprobs->data);
}


ngx_int_t
ngx_http_tokenring_queue_item(ngx_http_tokenring_ctx_t *ctx,
    tr_wire_item_t *item, tr_wire_bytes_t *id, tr_wire_bytes_t *name)
{
    ngx_http_tokenring_queued_t  head;

    ngx_memzero(&head, sizeof(ngx_http_tokenring_queued_t));

    head.kind = NGX_HTTP_TOKENRING_QUEUED_ITEM;
    head.index = item->choice;
    head.item = item->kind;
    head.tokens = item->index;
    head.text_len = name->len;
    head.logprobs_len = id->len;

    if (item->kind == TR_ITEM_TOOL_CALL) {
        ctx->spoken = ctx->stream;
    }

    return ngx_http_tokenring_queue_push(ctx, &head, name->data, id->data);
}


/* makes no event */

ngx_int_t
ngx_http_tokenring_queue_kv(ngx_http_tokenring_ctx_t *ctx, tr_wire_kv_t *kv)
{
    ngx_http_tokenring_queued_t  head;

    ngx_memzero(&head, sizeof(ngx_http_tokenring_queued_t));

    head.kind = NGX_HTTP_TOKENRING_QUEUED_KV;
    head.index = kv->choice;
    head.text_len = sizeof(tr_wire_usage_t);

    return ngx_http_tokenring_queue_push(ctx, &head, &kv->usage, "");
}


ngx_int_t
ngx_http_tokenring_queue_finish(ngx_http_tokenring_ctx_t *ctx,
    tr_wire_finish_t *finish)
{
    ngx_http_tokenring_queued_t  head;

    ngx_memzero(&head, sizeof(ngx_http_tokenring_queued_t));

    head.kind = NGX_HTTP_TOKENRING_QUEUED_FINISH;
    head.index = finish->choice;
    head.tokens = finish->choice_tokens;

    ctx->spoken = ctx->stream;

    return ngx_http_tokenring_queue_push(ctx, &head, "", "");
}


static ngx_int_t
ngx_http_tokenring_queue_push(ngx_http_tokenring_ctx_t *ctx,
    ngx_http_tokenring_queued_t *head, const void *text, const void *logprobs)
{
    size_t                      len;
    ngx_http_tokenring_text_t  *queue;

    queue = &ctx->queue;

    head->number = ctx->number;

    len = sizeof(ngx_http_tokenring_queued_t) + head->text_len
          + head->logprobs_len;

    if (ngx_http_tokenring_reserve(queue, len) != NGX_OK) {
        return NGX_ERROR;
    }

    queue->last = ngx_cpymem(queue->last, head,
                             sizeof(ngx_http_tokenring_queued_t));
    queue->last = ngx_cpymem(queue->last, text, head->text_len);
    queue->last = ngx_cpymem(queue->last, logprobs, head->logprobs_len);

    ctx->pending += len;

    return NGX_OK;
}


/* NGX_OK: the queue is empty; NGX_AGAIN: enough for one write */

ngx_int_t
ngx_http_tokenring_render_records(ngx_http_tokenring_ctx_t *ctx)
{
    while (ngx_http_tokenring_text_len(&ctx->queue)) {

        if (ctx->stream
            && ngx_http_tokenring_text_len(&ctx->out)
               >= NGX_HTTP_TOKENRING_OUTPUT)
        {
            return NGX_AGAIN;
        }

        if (ngx_http_tokenring_render_record(ctx) != NGX_OK) {
            return NGX_ERROR;
        }
    }

    ngx_http_tokenring_text_reset(&ctx->queue);

    return NGX_OK;
}


static ngx_int_t
ngx_http_tokenring_render_record(ngx_http_tokenring_ctx_t *ctx)
{
    size_t                        before;
    u_char                       *p;
    uint64_t                      first;
    ngx_int_t                     rc;
    ngx_http_tokenring_queued_t   head;

    ngx_memcpy(&head, ctx->queue.pos, sizeof(ngx_http_tokenring_queued_t));

    p = ctx->queue.pos + sizeof(ngx_http_tokenring_queued_t);

    ctx->queue.pos = p + head.text_len + head.logprobs_len;
    ctx->pending -= sizeof(ngx_http_tokenring_queued_t);

    before = ngx_http_tokenring_text_len(&ctx->out);
    first = ctx->skip ? ctx->choices[head.index].items->sequence : 0;

    rc = ngx_http_tokenring_render_queued(ctx, &head, p);

    if (head.number <= ctx->after) {
        /* the client has it */
        ctx->out.last = ctx->out.pos + before;

    } else if (ctx->skip) {
        ngx_http_tokenring_responses_skip(ctx, before, first);
    }

    return rc;
}


static ngx_int_t
ngx_http_tokenring_render_queued(ngx_http_tokenring_ctx_t *ctx,
    ngx_http_tokenring_queued_t *head, u_char *p)
{
    uint64_t                      number;
    tr_wire_bytes_t               id, name;
    ngx_http_tokenring_choice_t  *choice;

    choice = &ctx->choices[head->index];
    number = ctx->resumable ? head->number : 0;

    switch (head->kind) {

    case NGX_HTTP_TOKENRING_QUEUED_ITEM:
        name.data = (const char *) p;
        name.len = head->text_len;
        id.data = (const char *) p + head->text_len;
        id.len = head->logprobs_len;
        choice->items->kind = (uint16_t) head->item;
        choice->items->index = head->tokens;
        ctx->pending -= head->text_len + head->logprobs_len;
        return ngx_http_tokenring_render_item(ctx, head->index, number, &id,
                                              &name);

    case NGX_HTTP_TOKENRING_QUEUED_KV:
        ngx_memcpy(choice->kv, p, sizeof(tr_wire_usage_t));
        ctx->pending -= head->text_len;
        return NGX_OK;

    case NGX_HTTP_TOKENRING_QUEUED_FINISH:
        choice->tokens = head->tokens;
        return ngx_http_tokenring_render_finish(ctx, head->index, number);

    default: /* NGX_HTTP_TOKENRING_QUEUED_DELTA */
        break;
    }

    choice->tokens += head->tokens;

    if (head->text_len == 0 && head->logprobs_len == 0) {
        return NGX_OK;
    }

    if (ngx_http_tokenring_append(&choice->text, p, head->text_len) != NGX_OK
        || ngx_http_tokenring_append(&choice->logprobs, p + head->text_len,
                                     head->logprobs_len)
           != NGX_OK)
    {
        return NGX_ERROR;
    }

    return ngx_http_tokenring_render_delta(ctx, head->index, number);
}
