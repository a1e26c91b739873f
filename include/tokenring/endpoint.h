/*
 * The endpoints that take a prompt: what every side knows of them.
 *
 * An endpoint is one row in each of three tables, keyed by enum tr_endpoint:
 *
 *   endpoint_inline.h                             its path, its name
 *   engine/api/endpoint.c                         body to request (parse)
 *   ngx_module/api/ngx_http_tokenring_endpoint.c records to response (render)
 *
 * Numbers (wire.h) and names (docs/redis.md) never change; a number may be left
 * out.  What has no row is refused.  An endpoint that generates no text answers
 * with RESULT records: `result` in engine/api/endpoint.c, generates = 0 here.
 * Which fields a body may have: engine/api/openai_fields.h.
 */
#ifndef TOKENRING_ENDPOINT_H
#define TOKENRING_ENDPOINT_H

#include <stddef.h>

enum tr_endpoint {
    TR_ENDPOINT_CHAT = 1,
    TR_ENDPOINT_COMPLETIONS = 2,
    TR_ENDPOINT_TOKENIZE = 3,
    TR_ENDPOINT_DETOKENIZE = 4,
    TR_ENDPOINT_RENDER = 5,
    TR_ENDPOINT_MESSAGES = 6,
    TR_ENDPOINT_COUNT_TOKENS = 7,
    TR_ENDPOINT_RESPONSES = 8,
    TR_ENDPOINT_EMBEDDINGS = 9,
    TR_ENDPOINTS /* one more than the last */
};

typedef struct {
    const char *name; /* in Redis */
    const char *path; /* of its POST, behind /v1/ */
    int generates;    /* text; else it has a RESULT, and no output in Redis */
} tr_endpoint_info_t;

/* NULL: there is no such endpoint. */
static inline const tr_endpoint_info_t *tr_endpoint_info(unsigned endpoint);

/* The enum tr_endpoint of a name or of a path, 0: there is none. */
static inline unsigned tr_endpoint_by_name(const char *name, size_t len);
static inline unsigned tr_endpoint_by_path(const char *path, size_t len);

#include <tokenring/endpoint_inline.h>

#endif
