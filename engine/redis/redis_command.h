/*
 * Commands for Redis and its error replies: what needs no connection.
 */
#ifndef TR_REDIS_COMMAND_H
#define TR_REDIS_COMMAND_H

#include <hiredis/hiredis.h>
#include <stdbool.h>
#include <stddef.h>

#define TR_REDIS_ARGS 96

/* A command being put together.  Arguments are borrowed, but for those that are
 * made of numbers or pieces, which stand in `text`. */
typedef struct {
    int n;
    const char *argv[TR_REDIS_ARGS];
    size_t len[TR_REDIS_ARGS];
    char text[8192];
    size_t used;
} tr_redis_command_t;

void tr_redis_begin(tr_redis_command_t *c, const char *name);
void tr_redis_bytes(tr_redis_command_t *c, const void *bytes, size_t len);
void tr_redis_text(tr_redis_command_t *c, const char *text);
void tr_redis_format(tr_redis_command_t *c, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* The first word of an error reply: WRONGPASS, OOM, .. */
void tr_redis_error_word(const redisReply *reply, char *out, size_t size);

#endif
