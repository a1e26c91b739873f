/*
 * Where Redis is: the value of the setting `redis`.
 */
#ifndef TR_REDIS_ADDRESS_H
#define TR_REDIS_ADDRESS_H

#include <stdbool.h>

/* Parsed from "unix:PATH", "HOST", "HOST:PORT" or "[V6]:PORT". */
typedef struct {
    char host[256]; /* or the path of a socket */
    int port;       /* 0: a Unix socket */
} tr_redis_address_t;

/* False when text is none of these. */
bool tr_redis_parse_address(const char *text, tr_redis_address_t *out);

#endif
