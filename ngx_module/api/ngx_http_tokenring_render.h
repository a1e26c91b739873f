/*
 * What responses look like: by endpoint (_endpoint.c), in OpenAI's format
 * (_openai.c), log probabilities in them (_logprobs.c), and events that carry
 * numbers (_resumable.c).
 *
 * All that render write to ctx->out, or to the text that they are given, and
 * return NGX_ERROR without memory.
 */

#ifndef _NGX_HTTP_TOKENRING_RENDER_H_INCLUDED_
#define _NGX_HTTP_TOKENRING_RENDER_H_INCLUDED_


#include "ngx_http_tokenring_request.h"


/* events rendered before they are sent, bytes */
#define NGX_HTTP_TOKENRING_OUTPUT       16384

/* a share that an engine told: 0 for what is none, NaN too */
#define ngx_http_tokenring_share(f)                                           \
    ((f) >= 0 && (f) <= 1 ? (double) (f) : 0.0)


/* what all chunks of a stream begin and end with, once it was accepted */
ngx_int_t ngx_http_tokenring_render_heads(ngx_http_tokenring_ctx_t *ctx);

/* as much of a stream as should be sent in one go: its bytes, or 0; NGX_DONE:
 * that was the end */
ngx_int_t ngx_http_tokenring_render_chunks(ngx_http_tokenring_ctx_t *ctx);

/* a response that is not streamed */
ngx_int_t ngx_http_tokenring_render_whole(ngx_http_tokenring_ctx_t *ctx);

/* finish_reason: a literal, "" for none */
const char *ngx_http_tokenring_reason(ngx_uint_t reason);

/* what a usage object ends with: ,"cut":"token_budget" where we ended the
 * answer, ,"kv_cache":{...} where something is known of it, } */
ngx_int_t ngx_http_tokenring_usage_end(ngx_http_tokenring_text_t *t,
    ngx_str_t *policy, tr_wire_finish_t *totals);

/* the line of an SSE id, none for 0 */
ngx_int_t ngx_http_tokenring_id(ngx_http_tokenring_ctx_t *ctx,
    uint64_t number);

/* "usage":{...} of a request, with the name of its KV policy */
ngx_int_t ngx_http_tokenring_render_usage(ngx_http_tokenring_text_t *t,
    uint64_t prompt_tokens, uint64_t completion_tokens, ngx_str_t *policy,
    tr_wire_finish_t *totals);

/* the events of one record of a resumable stream; number: its SSE id */
ngx_int_t ngx_http_tokenring_render_delta(ngx_http_tokenring_ctx_t *ctx,
    ngx_uint_t index, uint64_t number);
ngx_int_t ngx_http_tokenring_render_finish(ngx_http_tokenring_ctx_t *ctx,
    ngx_uint_t index, uint64_t number);


/* the event of an ITEM record, if it is one that a client sees */
ngx_int_t ngx_http_tokenring_render_item(ngx_http_tokenring_ctx_t *ctx,
    ngx_uint_t index, uint64_t number, tr_wire_bytes_t *id,
    tr_wire_bytes_t *name);


/* _result.c: responses of endpoints that generate nothing, with vLLM's names */
ngx_int_t ngx_http_tokenring_tokenize_whole(ngx_http_tokenring_ctx_t *ctx);
ngx_int_t ngx_http_tokenring_detokenize_whole(ngx_http_tokenring_ctx_t *ctx);
ngx_int_t ngx_http_tokenring_render_prompt_whole(
    ngx_http_tokenring_ctx_t *ctx);
ngx_int_t ngx_http_tokenring_embeddings_whole(ngx_http_tokenring_ctx_t *ctx);


/* _messages.c: as Anthropic's API gives them */
ngx_int_t ngx_http_tokenring_messages_delta(ngx_http_tokenring_ctx_t *ctx,
    ngx_uint_t index, uint64_t number);
ngx_int_t ngx_http_tokenring_messages_finish(ngx_http_tokenring_ctx_t *ctx,
    ngx_uint_t index, uint64_t number);
ngx_int_t ngx_http_tokenring_messages_item(ngx_http_tokenring_ctx_t *ctx,
    ngx_uint_t index, uint64_t number, tr_wire_bytes_t *id,
    tr_wire_bytes_t *name);
ngx_int_t ngx_http_tokenring_messages_whole(ngx_http_tokenring_ctx_t *ctx);
ngx_int_t ngx_http_tokenring_messages_end(ngx_http_tokenring_ctx_t *ctx);
ngx_int_t ngx_http_tokenring_messages_error(ngx_http_tokenring_text_t *t,
    ngx_uint_t status, ngx_str_t *param, ngx_str_t *message,
    ngx_str_t *request_id);
ngx_int_t ngx_http_tokenring_count_whole(ngx_http_tokenring_ctx_t *ctx);


/* _responses.c: as OpenAI's Responses API gives them */
ngx_int_t ngx_http_tokenring_responses_delta(ngx_http_tokenring_ctx_t *ctx,
    ngx_uint_t index, uint64_t number);
ngx_int_t ngx_http_tokenring_responses_finish(ngx_http_tokenring_ctx_t *ctx,
    ngx_uint_t index, uint64_t number);
ngx_int_t ngx_http_tokenring_responses_item(ngx_http_tokenring_ctx_t *ctx,
    ngx_uint_t index, uint64_t number, tr_wire_bytes_t *id,
    tr_wire_bytes_t *name);
ngx_int_t ngx_http_tokenring_responses_whole(ngx_http_tokenring_ctx_t *ctx);
ngx_int_t ngx_http_tokenring_responses_end(ngx_http_tokenring_ctx_t *ctx);


/* _items.c: tool calls and reasoning */
ngx_int_t ngx_http_tokenring_items_create(ngx_http_tokenring_ctx_t *ctx);
void ngx_http_tokenring_choices_free(ngx_http_tokenring_ctx_t *ctx);
ngx_int_t ngx_http_tokenring_item_begin(ngx_http_tokenring_ctx_t *ctx,
    ngx_uint_t index, tr_wire_item_t *head, tr_wire_bytes_t *id,
    tr_wire_bytes_t *name);
ngx_int_t ngx_http_tokenring_item_text(ngx_http_tokenring_ctx_t *ctx,
    ngx_uint_t index, tr_wire_bytes_t *text);
ngx_int_t ngx_http_tokenring_items_whole(ngx_http_tokenring_ctx_t *ctx,
    ngx_http_tokenring_items_t *items);
ngx_int_t ngx_http_tokenring_items_open(ngx_http_tokenring_ctx_t *ctx,
    ngx_http_tokenring_items_t *items);
ngx_int_t ngx_http_tokenring_items_close(ngx_http_tokenring_ctx_t *ctx,
    ngx_http_tokenring_items_t *items);
ngx_int_t ngx_http_tokenring_items_call(ngx_http_tokenring_ctx_t *ctx,
    ngx_http_tokenring_items_t *items, tr_wire_bytes_t *id,
    tr_wire_bytes_t *name);

/* ID","name":"NAME of a call; middle: what an API has between the two */
ngx_int_t ngx_http_tokenring_items_names(ngx_http_tokenring_text_t *t,
    tr_wire_bytes_t *id, const char *middle, tr_wire_bytes_t *name);


/* the same for chat and completions, as OpenAI's API gives them */
ngx_int_t ngx_http_tokenring_openai_heads(ngx_http_tokenring_ctx_t *ctx);
ngx_int_t ngx_http_tokenring_openai_delta(ngx_http_tokenring_ctx_t *ctx,
    ngx_uint_t index, uint64_t number);
ngx_int_t ngx_http_tokenring_openai_finish(ngx_http_tokenring_ctx_t *ctx,
    ngx_uint_t index, uint64_t number);
ngx_int_t ngx_http_tokenring_openai_item(ngx_http_tokenring_ctx_t *ctx,
    ngx_uint_t index, uint64_t number, tr_wire_bytes_t *id,
    tr_wire_bytes_t *name);
ngx_int_t ngx_http_tokenring_openai_whole(ngx_http_tokenring_ctx_t *ctx);
ngx_int_t ngx_http_tokenring_openai_choices(ngx_http_tokenring_ctx_t *ctx);
ngx_int_t ngx_http_tokenring_openai_end(ngx_http_tokenring_ctx_t *ctx);


/* entries as the wire has them: NGX_ERROR if they are malformed */
ngx_int_t ngx_http_tokenring_logprobs_check(tr_wire_bytes_t *logprobs);
ngx_int_t ngx_http_tokenring_logprobs_chat(ngx_http_tokenring_text_t *out,
    ngx_http_tokenring_choice_t *choice);
ngx_int_t ngx_http_tokenring_logprobs_completion(
    ngx_http_tokenring_text_t *out, ngx_http_tokenring_choice_t *choice);


/* are the records rendered one by one, from ctx->queue? */
#define ngx_http_tokenring_queues(ctx)                                        \
    ((ctx)->ordered                                                           \
     || ((ctx)->stream && ((ctx)->resumable || (ctx)->items)))

/* drops events of a response that is read again and that the client has */
void ngx_http_tokenring_responses_skip(ngx_http_tokenring_ctx_t *ctx,
    size_t before, uint64_t first);

/* such a record, copied into ctx->queue */
ngx_int_t ngx_http_tokenring_queue_delta(ngx_http_tokenring_ctx_t *ctx,
    tr_wire_delta_t *delta, tr_wire_bytes_t *text, tr_wire_bytes_t *logprobs);
ngx_int_t ngx_http_tokenring_queue_item(ngx_http_tokenring_ctx_t *ctx,
    tr_wire_item_t *item, tr_wire_bytes_t *id, tr_wire_bytes_t *name);
ngx_int_t ngx_http_tokenring_queue_kv(ngx_http_tokenring_ctx_t *ctx,
    tr_wire_kv_t *kv);
ngx_int_t ngx_http_tokenring_queue_finish(ngx_http_tokenring_ctx_t *ctx,
    tr_wire_finish_t *finish);

/* the queue into ctx->out.  NGX_OK: all of it, NGX_AGAIN: enough for once */
ngx_int_t ngx_http_tokenring_render_records(ngx_http_tokenring_ctx_t *ctx);


#endif /* _NGX_HTTP_TOKENRING_RENDER_H_INCLUDED_ */
