/*
 * What the module knows of each endpoint that takes a prompt: the module's
 * half of <tokenring/endpoint.h>.
 *
 * A new endpoint is a row of the table in _endpoint.c, and the functions that
 * write its responses.  Those of OpenAI's chat and completions are in
 * _openai.c; they are shared, and differ in the literals of the row.
 */

#ifndef _NGX_HTTP_TOKENRING_ENDPOINT_H_INCLUDED_
#define _NGX_HTTP_TOKENRING_ENDPOINT_H_INCLUDED_


#include "ngx_http_tokenring_request.h"


typedef ngx_int_t (*ngx_http_tokenring_render_pt)(
    ngx_http_tokenring_ctx_t *ctx);
typedef ngx_int_t (*ngx_http_tokenring_render_record_pt)(
    ngx_http_tokenring_ctx_t *ctx, ngx_uint_t index, uint64_t number);


typedef ngx_int_t (*ngx_http_tokenring_render_item_pt)(
    ngx_http_tokenring_ctx_t *ctx, ngx_uint_t index, uint64_t number,
    tr_wire_bytes_t *id, tr_wire_bytes_t *name);


typedef ngx_int_t (*ngx_http_tokenring_render_error_pt)(
    ngx_http_tokenring_text_t *t, ngx_uint_t status, ngx_str_t *param,
    ngx_str_t *message, ngx_str_t *request_id);


typedef struct {
    const char                           *id_prefix;  /* "chatcmpl-" */

    /* as ngx_http_tokenring_render.h describes them */
    ngx_http_tokenring_render_pt          heads;   /* NULL: there are none */
    ngx_http_tokenring_render_record_pt   delta;
    ngx_http_tokenring_render_record_pt   finish;
    ngx_http_tokenring_render_pt          whole;
    ngx_http_tokenring_render_item_pt     item;    /* NULL: text alone */

    /* of a stream: text that is not kept as records (NULL: all is); what
     * follows all text, or says ctx->error (NULL: there are no streams); what
     * is sent while there is nothing else */
    ngx_http_tokenring_render_pt          choices;
    ngx_http_tokenring_render_pt          end;
    ngx_str_t                             keep_alive;

    /* records are kept in their order for a whole response, too, and it is
     * rendered of them by delta, finish and item */
    unsigned                              ordered:1;

    /* what an error looks like; NULL: as OpenAI's */
    ngx_http_tokenring_render_error_pt    error;

    /* for _openai.c: "object" of a response and of a stream's chunk */
    const char                           *object;
    const char                           *chunk_object;

    /* a choice in a chunk: the first one (none if empty), text, the end */
    ngx_str_t                             role;
    ngx_str_t                             text;
    ngx_str_t                             text_end;
    const char                           *last;

    /* a choice in a whole response: round its text, and its end */
    const char                           *message;
    const char                           *message_end;
    const char                           *message_close;

    ngx_int_t                           (*logprobs)(
                                        ngx_http_tokenring_text_t *out,
                                        ngx_http_tokenring_choice_t *choice);
} ngx_http_tokenring_endpoint_t;


/* the row of an enum tr_endpoint; NULL: there is none */
const ngx_http_tokenring_endpoint_t *ngx_http_tokenring_endpoint(
    ngx_uint_t endpoint);


#endif /* _NGX_HTTP_TOKENRING_ENDPOINT_H_INCLUDED_ */
