/*
 * Growing buffers, and text as JSON.
 *
 * A text owns its memory, which comes from ngx_alloc(): whoever declares one
 * gives it back with ngx_http_tokenring_text_free(), or has it made by
 * ngx_http_tokenring_text_create(), which leaves that to a pool.  All zeros is
 * an empty text.  What is appended is copied.
 *
 * Errors: NGX_OK, or NGX_ERROR without memory; the text is then as it was.
 */

#ifndef _NGX_HTTP_TOKENRING_TEXT_H_INCLUDED_
#define _NGX_HTTP_TOKENRING_TEXT_H_INCLUDED_


#include "ngx_http_tokenring.h"


/* consumed from pos, written at last */

typedef struct {
    u_char                         *start;
    u_char                         *pos;
    u_char                         *last;
    u_char                         *end;
} ngx_http_tokenring_text_t;


/* bytes written and not consumed yet */

#define ngx_http_tokenring_text_len(t)   ((size_t) ((t)->last - (t)->pos))

/* appends a string literal */

#define ngx_http_tokenring_put(t, s)                                          \
    ngx_http_tokenring_append(t, s, sizeof(s) - 1)


/* room for n bytes at t->last */
ngx_int_t ngx_http_tokenring_reserve(ngx_http_tokenring_text_t *t, size_t n);

ngx_int_t ngx_http_tokenring_append(ngx_http_tokenring_text_t *t,
    const void *data, size_t len);

/* as ngx_sprintf(); what does not fit in max bytes is cut off */
ngx_int_t ngx_http_tokenring_printf(ngx_http_tokenring_text_t *t, size_t max,
    const char *fmt, ...);

/* the inside of a JSON string; bytes that are not UTF-8 become U+FFFD */
ngx_int_t ngx_http_tokenring_utf8(ngx_http_tokenring_text_t *t,
    const u_char *data, size_t len);
ngx_int_t ngx_http_tokenring_json(ngx_http_tokenring_text_t *t,
    const u_char *data, size_t len);

/* the value of a Prometheus label, a string with '\0' */
ngx_int_t ngx_http_tokenring_label(ngx_http_tokenring_text_t *t,
    const char *value);

/* empties the text; its memory stays for the next use unless it is large */
void ngx_http_tokenring_text_reset(ngx_http_tokenring_text_t *t);

void ngx_http_tokenring_text_free(ngx_http_tokenring_text_t *t);

/* an empty text that is freed with the pool; NULL without memory */
ngx_http_tokenring_text_t *ngx_http_tokenring_text_create(ngx_pool_t *pool);


/* the longest part of data, at most max bytes, that ends with a character */
size_t ngx_http_tokenring_cut(const u_char *data, size_t len, size_t max);

/* characters in data, counted by their first bytes */
size_t ngx_http_tokenring_characters(const u_char *data, size_t len);

/* _json.c: is all of this one JSON object, of at most 64 levels? */
ngx_uint_t ngx_http_tokenring_json_object(u_char *p, size_t len);

/* 1 to 18 decimal digits and nothing else; NGX_DECLINED: *out is unchanged */
ngx_int_t ngx_http_tokenring_decimal(ngx_str_t *s, uint64_t *out);


#endif /* _NGX_HTTP_TOKENRING_TEXT_H_INCLUDED_ */
