/*
 * Log probabilities, in the two forms of OpenAI's API.
 *
 * They arrive as wire entries (wire.h) that were checked on arrival, so the
 * loops here trust their lengths.  A token may be a part of a character: its
 * text then contains U+FFFD, its bytes are exact.
 */

#include "ngx_http_tokenring_render.h"


#define NGX_HTTP_TOKENRING_MIN_LOGPROB  -9999.0


static ngx_int_t ngx_http_tokenring_logprob(ngx_http_tokenring_text_t *out,
    float value);
static ngx_int_t ngx_http_tokenring_token(ngx_http_tokenring_text_t *out,
    tr_wire_bytes_t *bytes, float logprob);


ngx_int_t
ngx_http_tokenring_logprobs_check(tr_wire_bytes_t *logprobs)
{
    ngx_uint_t         i;
    tr_status_t        rc;
    tr_wire_top_t      top;
    tr_wire_bytes_t    left, bytes;
    tr_wire_logprob_t  head;

    left = *logprobs;

    for ( ;; ) {
        rc = tr_wire_logprob_next(&left, &head, &bytes);

        if (rc == TR_AGAIN) {
            return NGX_OK;
        }

        if (rc != TR_OK) {
            return NGX_ERROR;
        }

        for (i = 0; i < head.top; i++) {
            if (tr_wire_top_next(&left, &top, &bytes) != TR_OK) {
                return NGX_ERROR;
            }
        }
    }
}


/* NaN means that there is none; JSON has no infinity */

static ngx_int_t
ngx_http_tokenring_logprob(ngx_http_tokenring_text_t *out, float value)
{
    char    text[64];
    size_t  n;

    if (value != value) {
        return ngx_http_tokenring_put(out, "null");
    }

    if (value < NGX_HTTP_TOKENRING_MIN_LOGPROB) {
        value = NGX_HTTP_TOKENRING_MIN_LOGPROB;
    }

    if (value > 0) {
        value = 0;
    }

    /* nine digits reproduce a float exactly */
    n = snprintf(text, sizeof(text), "%.9g", (double) value);

    return ngx_http_tokenring_append(out, text, n);
}


/* {"token":...,"logprob":...,"bytes":[...] without the closing brace */

static ngx_int_t
ngx_http_tokenring_token(ngx_http_tokenring_text_t *out,
    tr_wire_bytes_t *bytes, float logprob)
{
    uint32_t  i;

    if (ngx_http_tokenring_put(out, "{\"token\":\"") != NGX_OK
        || ngx_http_tokenring_json(out, (u_char *) bytes->data, bytes->len)
           != NGX_OK
        || ngx_http_tokenring_put(out, "\",\"logprob\":") != NGX_OK
        || ngx_http_tokenring_logprob(out, logprob) != NGX_OK
        || ngx_http_tokenring_put(out, ",\"bytes\":[") != NGX_OK
        || ngx_http_tokenring_reserve(out, (size_t) bytes->len * 4 + 1)
           != NGX_OK)
    {
        return NGX_ERROR;
    }

    for (i = 0; i < bytes->len; i++) {
        out->last = ngx_sprintf(out->last, i ? ",%ud" : "%ud",
                                (u_int) (u_char) bytes->data[i]);
    }

    *out->last++ = ']';

    return NGX_OK;
}


/* {"content":[{token,logprob,bytes,top_logprobs:[...]}, ...],"refusal":null} */

ngx_int_t
ngx_http_tokenring_logprobs_chat(ngx_http_tokenring_text_t *out,
    ngx_http_tokenring_choice_t *choice)
{
    ngx_uint_t         i, n;
    tr_wire_top_t      top;
    tr_wire_bytes_t    left, bytes;
    tr_wire_logprob_t  head;

    left.data = (char *) choice->logprobs.pos;
    left.len = (uint32_t) ngx_http_tokenring_text_len(&choice->logprobs);

    if (ngx_http_tokenring_put(out, "{\"content\":[") != NGX_OK) {
        return NGX_ERROR;
    }

    for (n = 0;
         tr_wire_logprob_next(&left, &head, &bytes) == TR_OK;
         n++)
    {
        if ((n && ngx_http_tokenring_put(out, ",") != NGX_OK)
            || ngx_http_tokenring_token(out, &bytes, head.logprob) != NGX_OK
            || ngx_http_tokenring_put(out, ",\"top_logprobs\":[") != NGX_OK)
        {
            return NGX_ERROR;
        }

        for (i = 0; i < head.top; i++) {
            if (tr_wire_top_next(&left, &top, &bytes) != TR_OK
                || (i && ngx_http_tokenring_put(out, ",") != NGX_OK)
                || ngx_http_tokenring_token(out, &bytes, top.logprob) != NGX_OK
                || ngx_http_tokenring_put(out, "}") != NGX_OK)
            {
                return NGX_ERROR;
            }
        }

        if (ngx_http_tokenring_put(out, "]}") != NGX_OK) {
            return NGX_ERROR;
        }
    }

    return ngx_http_tokenring_put(out, "],\"refusal\":null}");
}


typedef enum {
    NGX_HTTP_TOKENRING_TOKENS = 0,
    NGX_HTTP_TOKENRING_TOKEN_LOGPROBS,
    NGX_HTTP_TOKENRING_TOP_LOGPROBS,
    NGX_HTTP_TOKENRING_OFFSETS
} ngx_http_tokenring_column_e;


/* "token":logprob */

static ngx_int_t
ngx_http_tokenring_top_member(ngx_http_tokenring_text_t *out,
    tr_wire_bytes_t *bytes, float logprob)
{
    if (ngx_http_tokenring_put(out, "\"") != NGX_OK
        || ngx_http_tokenring_json(out, (u_char *) bytes->data, bytes->len)
           != NGX_OK
        || ngx_http_tokenring_put(out, "\":") != NGX_OK)
    {
        return NGX_ERROR;
    }

    return ngx_http_tokenring_logprob(out, logprob);
}


/* {token: logprob, ...} for one token, which is always among them; null for
 * the first of a prompt */

static ngx_int_t
ngx_http_tokenring_top_object(ngx_http_tokenring_text_t *out,
    tr_wire_bytes_t *left, tr_wire_logprob_t *head, tr_wire_bytes_t *token)
{
    ngx_uint_t        i, seen;
    tr_wire_top_t     top;
    tr_wire_bytes_t   bytes;

    if (head->logprob != head->logprob && head->top == 0) {
        return ngx_http_tokenring_put(out, "null");
    }

    if (ngx_http_tokenring_put(out, "{") != NGX_OK) {
        return NGX_ERROR;
    }

    seen = 0;

    for (i = 0; i < head->top; i++) {
        if (tr_wire_top_next(left, &top, &bytes) != TR_OK
            || (i && ngx_http_tokenring_put(out, ",") != NGX_OK)
            || ngx_http_tokenring_top_member(out, &bytes, top.logprob)
               != NGX_OK)
        {
            return NGX_ERROR;
        }

        seen |= (top.token == head->token);
    }

    if (!seen
        && ((i && ngx_http_tokenring_put(out, ",") != NGX_OK)
            || ngx_http_tokenring_top_member(out, token, head->logprob)
               != NGX_OK))
    {
        return NGX_ERROR;
    }

    return ngx_http_tokenring_put(out, "}");
}


static ngx_int_t
ngx_http_tokenring_string(ngx_http_tokenring_text_t *out,
    tr_wire_bytes_t *bytes)
{
    if (ngx_http_tokenring_put(out, "\"") != NGX_OK
        || ngx_http_tokenring_json(out, (u_char *) bytes->data, bytes->len)
           != NGX_OK)
    {
        return NGX_ERROR;
    }

    return ngx_http_tokenring_put(out, "\"");
}


static ngx_int_t
ngx_http_tokenring_skip_tops(tr_wire_bytes_t *left, ngx_uint_t n)
{
    tr_wire_top_t    top;
    tr_wire_bytes_t  bytes;

    while (n--) {
        if (tr_wire_top_next(left, &top, &bytes) != TR_OK) {
            return NGX_ERROR;
        }
    }

    return NGX_OK;
}


/* one of the four arrays; each is one pass over the entries */

static ngx_int_t
ngx_http_tokenring_column(ngx_http_tokenring_text_t *out,
    ngx_http_tokenring_choice_t *choice, ngx_http_tokenring_column_e column)
{
    uint64_t           offset;
    ngx_int_t          rc;
    ngx_uint_t         n;
    tr_wire_bytes_t    left, bytes;
    tr_wire_logprob_t  head;

    left.data = (char *) choice->logprobs.pos;
    left.len = (uint32_t) ngx_http_tokenring_text_len(&choice->logprobs);

    offset = choice->offset;

    if (ngx_http_tokenring_put(out, "[") != NGX_OK) {
        return NGX_ERROR;
    }

    for (n = 0; tr_wire_logprob_next(&left, &head, &bytes) == TR_OK; n++) {

        if (n && ngx_http_tokenring_put(out, ",") != NGX_OK) {
            return NGX_ERROR;
        }

        switch (column) {

        case NGX_HTTP_TOKENRING_TOKENS:
            rc = ngx_http_tokenring_string(out, &bytes);
            break;

        case NGX_HTTP_TOKENRING_TOKEN_LOGPROBS:
            rc = ngx_http_tokenring_logprob(out, head.logprob);
            break;

        case NGX_HTTP_TOKENRING_TOP_LOGPROBS:
            rc = ngx_http_tokenring_top_object(out, &left, &head, &bytes);
            head.top = 0;
            break;

        default: /* NGX_HTTP_TOKENRING_OFFSETS */
            rc = ngx_http_tokenring_printf(out, NGX_INT64_LEN, "%uL", offset);
            break;
        }

        if (rc != NGX_OK
            || ngx_http_tokenring_skip_tops(&left, head.top) != NGX_OK)
        {
            return NGX_ERROR;
        }

        if (!(head.flags & TR_LOGPROB_HIDDEN)) {
            offset += ngx_http_tokenring_characters((u_char *) bytes.data,
                                                    bytes.len);
        }
    }

    if (column == NGX_HTTP_TOKENRING_OFFSETS) {
        choice->offset = offset;
    }

    return ngx_http_tokenring_put(out, "]");
}


ngx_int_t
ngx_http_tokenring_logprobs_completion(ngx_http_tokenring_text_t *out,
    ngx_http_tokenring_choice_t *choice)
{
    if (ngx_http_tokenring_put(out, "{\"tokens\":") != NGX_OK
        || ngx_http_tokenring_column(out, choice, NGX_HTTP_TOKENRING_TOKENS)
           != NGX_OK
        || ngx_http_tokenring_put(out, ",\"token_logprobs\":") != NGX_OK
        || ngx_http_tokenring_column(out, choice,
                                     NGX_HTTP_TOKENRING_TOKEN_LOGPROBS)
           != NGX_OK
        || ngx_http_tokenring_put(out, ",\"top_logprobs\":") != NGX_OK
        || ngx_http_tokenring_column(out, choice,
                                     NGX_HTTP_TOKENRING_TOP_LOGPROBS)
           != NGX_OK
        || ngx_http_tokenring_put(out, ",\"text_offset\":") != NGX_OK
        || ngx_http_tokenring_column(out, choice, NGX_HTTP_TOKENRING_OFFSETS)
           != NGX_OK)
    {
        return NGX_ERROR;
    }

    return ngx_http_tokenring_put(out, "}");
}
