/*
 * Commands for Redis (redis_command.h).
 */
#include "redis_command.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void
tr_redis_begin(tr_redis_command_t *c, const char *name)
{
    c->n = 0;
    c->used = 0;
    tr_redis_text(c, name);
}

void
tr_redis_bytes(tr_redis_command_t *c, const void *bytes, size_t len)
{
    if (c->n < TR_REDIS_ARGS) {
        c->argv[c->n] = bytes;
        c->len[c->n++] = len;
    }
}

void
tr_redis_text(tr_redis_command_t *c, const char *text)
{
    tr_redis_bytes(c, text, strlen(text));
}

void
tr_redis_format(tr_redis_command_t *c, const char *format, ...)
{
    char *at = c->text + c->used;
    size_t room = sizeof(c->text) - c->used;
    va_list args;
    int n;

    va_start(args, format);
    n = vsnprintf(at, room, format, args);
    va_end(args);
    n = n < 0 ? 0 : (size_t) n >= room ? (int) room - 1 : n;
    tr_redis_bytes(c, at, (size_t) n);
    c->used += (size_t) n + (room > (size_t) n + 1 ? 1 : 0);
}

void
tr_redis_error_word(const redisReply *reply, char *out, size_t size)
{
    size_t n = 0;

    while (n + 1 < size && n < reply->len && reply->str[n] >= 'A'
           && reply->str[n] <= 'Z') {
        out[n] = reply->str[n];
        n++;
    }
    out[n] = '\0';
    if (n == 0) {
        snprintf(out, size, "ERR");
    }
}
