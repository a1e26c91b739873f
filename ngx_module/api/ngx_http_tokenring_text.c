/*
 * Growing buffers, and text as JSON.
 *
 * A stream may be open for hours: its buffers come from ngx_alloc(), grow to
 * the size of the largest event and are reused for the next one, so that
 * r->pool does not grow with the length of the answer.
 */

#include "ngx_http_tokenring_text.h"


static void ngx_http_tokenring_text_cleanup(void *data);


#define NGX_HTTP_TOKENRING_TEXT_KEEP  32768

/* of a number that certainly fits in 64 bits */
#define NGX_HTTP_TOKENRING_DIGITS     18


/* how a byte below 0x80 is escaped: 0 not, 1 as \u00XX, else \ and this */

static const u_char  ngx_http_tokenring_escape[128] = {
    1, 1, 1, 1, 1, 1, 1, 1, 'b', 't', 'n', 1, 'f', 'r', 1, 1,
    1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
    [0x22] = '"', [0x5c] = '\\', [0x7f] = 1
};


ngx_int_t
ngx_http_tokenring_reserve(ngx_http_tokenring_text_t *t, size_t n)
{
    size_t   len, off, size;
    u_char  *p;

    if ((size_t) (t->end - t->last) >= n) {
        return NGX_OK;
    }

    off = t->pos - t->start;
    size = t->end - t->start;

    if (off > size / 2 && size - ngx_http_tokenring_text_len(t) >= n) {

        /* a slow client's text is never empty: reuse the consumed part */

        len = ngx_http_tokenring_text_len(t);

        ngx_memmove(t->start, t->pos, len);

        t->pos = t->start;
        t->last = t->start + len;

        return NGX_OK;
    }

    len = t->last - t->start;

    if (size < 128) {
        size = 128;
    }

    if (n > NGX_MAX_SIZE_T_VALUE / 4) {
        return NGX_ERROR;
    }

    while (size - len < n) {
        size *= 2;
    }

    p = ngx_alloc(size, ngx_cycle->log);
    if (p == NULL) {
        return NGX_ERROR;
    }

    if (t->start) {
        ngx_memcpy(p, t->start, len);
        ngx_free(t->start);
    }

    t->start = p;
    t->pos = p + off;
    t->last = p + len;
    t->end = p + size;

    return NGX_OK;
}


ngx_int_t
ngx_http_tokenring_append(ngx_http_tokenring_text_t *t, const void *data,
    size_t len)
{
    if (len == 0) {
        return NGX_OK;
    }

    if (ngx_http_tokenring_reserve(t, len) != NGX_OK) {
        return NGX_ERROR;
    }

    t->last = ngx_cpymem(t->last, data, len);

    return NGX_OK;
}


ngx_int_t
ngx_http_tokenring_printf(ngx_http_tokenring_text_t *t, size_t max,
    const char *fmt, ...)
{
    va_list  args;

    if (ngx_http_tokenring_reserve(t, max) != NGX_OK) {
        return NGX_ERROR;
    }

    va_start(args, fmt);
    t->last = ngx_vslprintf(t->last, t->last + max, fmt, args);
    va_end(args);

    return NGX_OK;
}


/* the length of the character at p, 0 if it is invalid (RFC 3629, strictly) */

static size_t
ngx_http_tokenring_character(const u_char *p, const u_char *last)
{
    size_t  i, n;
    u_char  c, low, high;

    c = *p;
    low = 0x80;
    high = 0xbf;

    if (c < 0x80) {
        return 1;
    }

    if (c >= 0xc2 && c <= 0xdf) {
        n = 2;

    } else if (c >= 0xe0 && c <= 0xef) {
        n = 3;

        if (c == 0xe0) {
            low = 0xa0;

        } else if (c == 0xed) {
            high = 0x9f;
        }

    } else if (c >= 0xf0 && c <= 0xf4) {
        n = 4;

        if (c == 0xf0) {
            low = 0x90;

        } else if (c == 0xf4) {
            high = 0x8f;
        }

    } else {
        return 0;
    }

    if ((size_t) (last - p) < n || p[1] < low || p[1] > high) {
        return 0;
    }

    for (i = 2; i < n; i++) {
        if (p[i] < 0x80 || p[i] > 0xbf) {
            return 0;
        }
    }

    return n;
}


/* the character at *p, or U+FFFD for a byte that is none, to d; moves *p */

static u_char *
ngx_http_tokenring_copy_character(u_char *d, const u_char **p,
    const u_char *last)
{
    size_t         n;
    const u_char  *from;

    from = *p;
    n = ngx_http_tokenring_character(from, last);

    if (n == 0) {
        *p += 1;
        return ngx_cpymem(d, "\xef\xbf\xbd", 3);
    }

    *p += n;

    return ngx_cpymem(d, from, n);
}


/* appends a text as it is; invalid UTF-8 becomes U+FFFD */

ngx_int_t
ngx_http_tokenring_utf8(ngx_http_tokenring_text_t *t, const u_char *data,
    size_t len)
{
    const u_char  *p, *last;

    if (ngx_http_tokenring_reserve(t, len * 3) != NGX_OK) {
        return NGX_ERROR;
    }

    p = data;
    last = data + len;

    while (p < last) {
        t->last = ngx_http_tokenring_copy_character(t->last, &p, last);
    }

    return NGX_OK;
}


/* appends the inside of a JSON string; invalid UTF-8 becomes U+FFFD */

ngx_int_t
ngx_http_tokenring_json(ngx_http_tokenring_text_t *t, const u_char *data,
    size_t len)
{
    u_char         c, e, *d;
    const u_char  *p, *last;
    static u_char  hex[] = "0123456789abcdef";

    if (ngx_http_tokenring_reserve(t, len * 6) != NGX_OK) {
        return NGX_ERROR;
    }

    d = t->last;
    p = data;
    last = data + len;

    while (p < last) {
        c = *p;

        if (c < 0x80) {
            e = ngx_http_tokenring_escape[c];

            if (e == 0) {
                *d++ = c;

            } else if (e == 1) {
                d = ngx_cpymem(d, "\\u00", 4);
                *d++ = hex[c >> 4];
                *d++ = hex[c & 0xf];

            } else {
                *d++ = '\\';
                *d++ = e;
            }

            p++;
            continue;
        }

        d = ngx_http_tokenring_copy_character(d, &p, last);
    }

    t->last = d;

    return NGX_OK;
}


/* the value of a Prometheus label, where only three characters are escaped */

ngx_int_t
ngx_http_tokenring_label(ngx_http_tokenring_text_t *t, const char *value)
{
    u_char        *d;
    const u_char  *p, *last;

    p = (const u_char *) value;
    last = p + ngx_strlen(value);

    if (ngx_http_tokenring_reserve(t, (last - p) * 3) != NGX_OK) {
        return NGX_ERROR;
    }

    d = t->last;

    while (p < last) {

        if (*p == '"' || *p == '\\' || *p == '\n') {
            *d++ = '\\';
            *d++ = (*p == '\n') ? 'n' : *p;
            p++;
            continue;
        }

        d = ngx_http_tokenring_copy_character(d, &p, last);
    }

    t->last = d;

    return NGX_OK;
}


/* the largest part of data, at most max bytes, that ends with a character */

size_t
ngx_http_tokenring_cut(const u_char *data, size_t len, size_t max)
{
    size_t  n;

    if (len <= max) {
        return len;
    }

    for (n = max; n > max - 4; n--) {
        if ((data[n] & 0xc0) != 0x80) {
            return n;
        }
    }

    return max;
}


size_t
ngx_http_tokenring_characters(const u_char *data, size_t len)
{
    size_t  i, n;

    n = 0;

    for (i = 0; i < len; i++) {
        n += (data[i] & 0xc0) != 0x80;
    }

    return n;
}


/* empties the buffer; a large one, which is rare, is freed */

void
ngx_http_tokenring_text_reset(ngx_http_tokenring_text_t *t)
{
    if (t->end - t->start > NGX_HTTP_TOKENRING_TEXT_KEEP) {
        ngx_http_tokenring_text_free(t);
        return;
    }

    t->pos = t->start;
    t->last = t->start;
}


void
ngx_http_tokenring_text_free(ngx_http_tokenring_text_t *t)
{
    if (t->start) {
        ngx_free(t->start);
    }

    ngx_memzero(t, sizeof(ngx_http_tokenring_text_t));
}


/* a buffer that lives as long as the pool */

ngx_http_tokenring_text_t *
ngx_http_tokenring_text_create(ngx_pool_t *pool)
{
    ngx_pool_cleanup_t  *cln;

    cln = ngx_pool_cleanup_add(pool, sizeof(ngx_http_tokenring_text_t));
    if (cln == NULL) {
        return NULL;
    }

    ngx_memzero(cln->data, sizeof(ngx_http_tokenring_text_t));
    cln->handler = ngx_http_tokenring_text_cleanup;

    return cln->data;
}


static void
ngx_http_tokenring_text_cleanup(void *data)
{
    ngx_http_tokenring_text_free(data);
}


ngx_int_t
ngx_http_tokenring_decimal(ngx_str_t *s, uint64_t *out)
{
    size_t    i;
    uint64_t  n;

    if (s->len == 0 || s->len > NGX_HTTP_TOKENRING_DIGITS) {
        return NGX_DECLINED;
    }

    n = 0;

    for (i = 0; i < s->len; i++) {
        if (s->data[i] < '0' || s->data[i] > '9') {
            return NGX_DECLINED;
        }

        n = n * 10 + (s->data[i] - '0');
    }

    *out = n;

    return NGX_OK;
}
