/*
 * Names of keys, and values in Redis's replies.
 *
 * Replies were written by others: what is not a string, a number or a share is
 * declined, and the caller does without.
 */

#include "ngx_http_tokenring_redis.h"
#include "ngx_http_tokenring_text.h"


/* "tr:" "req" ":{" ID "}" */

ngx_str_t
ngx_http_tokenring_redis_key(ngx_http_tokenring_redis_t *redis,
    ngx_pool_t *pool, const char *kind, ngx_str_t *name)
{
    size_t      len;
    u_char     *p;
    ngx_str_t   key;

    len = redis->prefix.len + ngx_strlen(kind) + name->len + sizeof(":{}") - 1;

    p = ngx_pnalloc(pool, len);

    if (p == NULL) {
        ngx_str_null(&key);
        return key;
    }

    return ngx_http_tokenring_redis_key_at(redis, p, kind, name);
}


ngx_str_t
ngx_http_tokenring_redis_key_at(ngx_http_tokenring_redis_t *redis, u_char *p,
    const char *kind, ngx_str_t *name)
{
    ngx_str_t  key;

    key.data = p;
    key.len = ngx_sprintf(p, "%V%s:{%V}", &redis->prefix, kind, name) - p;

    return key;
}


ngx_int_t
ngx_http_tokenring_redis_string(redisReply *reply, ngx_str_t *out)
{
    if (reply == NULL
        || (reply->type != REDIS_REPLY_STRING
            && reply->type != REDIS_REPLY_STATUS))
    {
        return NGX_DECLINED;
    }

    out->data = (u_char *) reply->str;
    out->len = (size_t) reply->len;

    return NGX_OK;
}


/* at most 18 digits, or an integer reply */

ngx_int_t
ngx_http_tokenring_redis_number(redisReply *reply, uint64_t *out)
{
    ngx_str_t  s;

    if (reply && reply->type == REDIS_REPLY_INTEGER && reply->integer >= 0) {
        *out = (uint64_t) reply->integer;
        return NGX_OK;
    }

    if (ngx_http_tokenring_redis_string(reply, &s) != NGX_OK) {
        return NGX_DECLINED;
    }

    return ngx_http_tokenring_decimal(&s, out);
}


/* a share, 0 to 1, as "0", "1", "0.123" or with an exponent */

ngx_int_t
ngx_http_tokenring_redis_share(redisReply *reply, double *out)
{
    char       text[32], *end;
    double     value;
    ngx_str_t  s;

    if (ngx_http_tokenring_redis_string(reply, &s) != NGX_OK
        || s.len == 0 || s.len >= sizeof(text)
        || s.data[0] < '0' || s.data[0] > '9')
    {
        return NGX_DECLINED;
    }

    ngx_memcpy(text, s.data, s.len);
    text[s.len] = '\0';

    value = strtod(text, &end);

    if (end != text + s.len || !(value >= 0 && value <= 1)) {
        return NGX_DECLINED;
    }

    *out = value;

    return NGX_OK;
}
