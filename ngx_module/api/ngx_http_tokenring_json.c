/*
 * Whether a text is JSON.
 *
 * The arguments of a tool call are what a model wrote, and may have been cut.
 * Where an API wants them as an object and not as a string, they must be one,
 * or the whole response would be no JSON.
 */

#include "ngx_http_tokenring_text.h"


#define NGX_HTTP_TOKENRING_JSON_LEVELS  64


static u_char *ngx_http_tokenring_json_value(u_char *p, u_char *last,
    ngx_uint_t level);


static u_char *
ngx_http_tokenring_json_space(u_char *p, u_char *last)
{
    while (p < last && (*p == ' ' || *p == '\t' || *p == '\r' || *p == '\n')) {
        p++;
    }

    return p;
}


/* each returns where its value ends, or NULL: it is none */

static u_char *
ngx_http_tokenring_json_string(u_char *p, u_char *last)
{
    ngx_uint_t  i;

    for (p++; p < last && *p != '"'; p++) {

        if (*p < 0x20) {
            return NULL;
        }

        if (*p != '\\') {
            continue;
        }

        /* strchr() finds a NUL, too: where its string ends */

        if (++p == last || *p == '\0'
            || ngx_strchr("\"\\/bfnrtu", *p) == NULL)
        {
            return NULL;
        }

        if (*p != 'u') {
            continue;
        }

        if (last - p < 5) {
            return NULL;
        }

        for (i = 0; i < 4; i++) {
            p++;

            if ((*p < '0' || *p > '9') && ((*p | 0x20) < 'a'
                                           || (*p | 0x20) > 'f'))
            {
                return NULL;
            }
        }
    }

    return (p < last) ? p + 1 : NULL;
}


static u_char *
ngx_http_tokenring_json_digits(u_char *p, u_char *last)
{
    u_char  *first;

    for (first = p; p < last && *p >= '0' && *p <= '9'; p++) { /* void */ }

    return (p > first) ? p : NULL;
}


static u_char *
ngx_http_tokenring_json_number(u_char *p, u_char *last)
{
    if (p < last && *p == '-') {
        p++;
    }

    p = (p < last && *p == '0') ? p + 1
                                : ngx_http_tokenring_json_digits(p, last);

    if (p && p < last && *p == '.') {
        p = ngx_http_tokenring_json_digits(p + 1, last);
    }

    if (p && p < last && (*p | 0x20) == 'e') {
        p++;

        if (p < last && (*p == '+' || *p == '-')) {
            p++;
        }

        p = ngx_http_tokenring_json_digits(p, last);
    }

    return p;
}


static u_char *
ngx_http_tokenring_json_word(u_char *p, u_char *last, const char *word)
{
    size_t  len;

    len = ngx_strlen(word);

    return ((size_t) (last - p) >= len && ngx_strncmp(p, word, len) == 0)
           ? p + len : NULL;
}


/* an object or an array */

static u_char *
ngx_http_tokenring_json_list(u_char *p, u_char *last, ngx_uint_t level)
{
    u_char  close, object;

    object = (*p == '{');
    close = object ? '}' : ']';

    p = ngx_http_tokenring_json_space(p + 1, last);

    if (p < last && *p == close) {
        return p + 1;
    }

    for ( ;; ) {

        if (object) {
            if (p == last || *p != '"') {
                return NULL;
            }

            p = ngx_http_tokenring_json_string(p, last);
            if (p == NULL) {
                return NULL;
            }

            p = ngx_http_tokenring_json_space(p, last);

            if (p == last || *p++ != ':') {
                return NULL;
            }
        }

        p = ngx_http_tokenring_json_value(p, last, level);

        if (p == NULL || p == last) {
            return NULL;
        }

        if (*p == close) {
            return p + 1;
        }

        if (*p != ',') {
            return NULL;
        }

        p = ngx_http_tokenring_json_space(p + 1, last);
    }
}


/* with the space round it */

static u_char *
ngx_http_tokenring_json_value(u_char *p, u_char *last, ngx_uint_t level)
{
    p = ngx_http_tokenring_json_space(p, last);

    if (p == last || level == NGX_HTTP_TOKENRING_JSON_LEVELS) {
        return NULL;
    }

    switch (*p) {

    case '{':
    case '[':
        p = ngx_http_tokenring_json_list(p, last, level + 1);
        break;

    case '"':
        p = ngx_http_tokenring_json_string(p, last);
        break;

    case 't':
        p = ngx_http_tokenring_json_word(p, last, "true");
        break;

    case 'f':
        p = ngx_http_tokenring_json_word(p, last, "false");
        break;

    case 'n':
        p = ngx_http_tokenring_json_word(p, last, "null");
        break;

    default:
        p = ngx_http_tokenring_json_number(p, last);
        break;
    }

    return p ? ngx_http_tokenring_json_space(p, last) : NULL;
}


ngx_uint_t
ngx_http_tokenring_json_object(u_char *p, size_t len)
{
    u_char  *last;

    last = p + len;
    p = ngx_http_tokenring_json_space(p, last);

    return p < last && *p == '{'
           && ngx_http_tokenring_json_value(p, last, 0) == last;
}
