/*
 * One status type for the whole product.
 *
 * 0 is success, every failure is negative, TR_AGAIN is back-pressure ("not now,
 * nothing happened").  The table below is the only place where a status is
 * mapped to what the outside sees: the HTTP status, the OpenAI error type and
 * code, and the level it is logged at.  The engine puts these into ERROR
 * records; the module uses the same table for the errors that it decides
 * itself (no engine, queue full, timeouts).
 */
#ifndef TOKENRING_ERROR_H
#define TOKENRING_ERROR_H

#include <stddef.h>

typedef int tr_status_t;

/* name, value, HTTP status, OpenAI type, OpenAI code (NULL: null), log level */
#define TR_STATUS_TABLE(X)                                                     \
    X(TR_OK, 0, 200, "", NULL, TR_LEVEL_INFO)                                  \
    X(TR_AGAIN, -1, 429, "rate_limit_error", "try_again", TR_LEVEL_INFO)       \
    X(TR_ERR_INVALID, -2, 400, "invalid_request_error", NULL, TR_LEVEL_INFO)   \
    X(TR_ERR_CONTEXT_LENGTH, -3, 400, "invalid_request_error",                 \
      "context_length_exceeded", TR_LEVEL_INFO)                                \
    X(TR_ERR_MODEL_NOT_FOUND, -4, 404, "invalid_request_error",                \
      "model_not_found", TR_LEVEL_INFO)                                        \
    X(TR_ERR_METHOD, -5, 405, "invalid_request_error", "method_not_allowed",   \
      TR_LEVEL_INFO)                                                           \
    X(TR_ERR_TOO_LARGE, -6, 413, "invalid_request_error", "request_too_large", \
      TR_LEVEL_INFO)                                                           \
    X(TR_ERR_QUEUE_FULL, -7, 429, "rate_limit_error", "queue_full",            \
      TR_LEVEL_WARN)                                                           \
    X(TR_ERR_INTERNAL, -8, 500, "server_error", "internal_error",              \
      TR_LEVEL_ERROR)                                                          \
    X(TR_ERR_NO_ENGINE, -9, 503, "server_error", "engine_unavailable",         \
      TR_LEVEL_ERROR)                                                          \
    X(TR_ERR_DRAINING, -10, 503, "server_error", "engine_draining",            \
      TR_LEVEL_INFO)                                                           \
    X(TR_ERR_TIMEOUT, -11, 504, "server_error", "timeout", TR_LEVEL_WARN)      \
    X(TR_ERR_NOT_FOUND, -12, 404, "invalid_request_error", "not_found",        \
      TR_LEVEL_INFO)                                                           \
    X(TR_ERR_CANCELLED, -13, 499, "invalid_request_error",                     \
      "request_cancelled", TR_LEVEL_INFO)                                      \
    X(TR_ERR_NO_REDIS, -14, 503, "server_error", "redis_unavailable",          \
      TR_LEVEL_WARN)                                                           \
    /* never sent to a client: what files, memory and peers do to us */        \
    X(TR_ERR_IO, -20, 500, "server_error", "internal_error", TR_LEVEL_ERROR)   \
    X(TR_ERR_NOMEM, -21, 500, "server_error", "internal_error",                \
      TR_LEVEL_ERROR)                                                          \
    X(TR_ERR_FORMAT, -22, 500, "server_error", "internal_error",               \
      TR_LEVEL_ERROR)                                                          \
    X(TR_ERR_PROTOCOL, -23, 500, "server_error", "internal_error",             \
      TR_LEVEL_ERROR)                                                          \
    X(TR_ERR_VERSION, -24, 503, "server_error", "engine_unavailable",          \
      TR_LEVEL_ERROR)                                                          \
    X(TR_ERR_CLOSED, -25, 503, "server_error", "engine_unavailable",           \
      TR_LEVEL_WARN)                                                           \
    X(TR_ERR_UNSUPPORTED, -26, 400, "invalid_request_error", "unsupported",    \
      TR_LEVEL_INFO)

enum tr_log_level {
    TR_LEVEL_ERROR,
    TR_LEVEL_WARN,
    TR_LEVEL_NOTICE,
    TR_LEVEL_INFO,
    TR_LEVEL_DEBUG
};

#define TR_STATUS_ENUM(name, value, http, type, code, level) name = (value),
enum { TR_STATUS_TABLE(TR_STATUS_ENUM) };
#undef TR_STATUS_ENUM

typedef struct {
    int http;         /* HTTP status */
    const char *type; /* OpenAI error.type */
    const char *code; /* OpenAI error.code, NULL for null */
    int level;        /* enum tr_log_level */
    const char *name; /* "TR_ERR_INVALID", for logs */
} tr_status_info_t;

/* The row of `status`; an unknown one reads as TR_ERR_INTERNAL. */
static inline tr_status_info_t
tr_status_info(tr_status_t status)
{
    switch (status) {
#define TR_STATUS_CASE(name, value, http, type, code, level) \
    case value:                                              \
        return (tr_status_info_t){ http, type, code, level, #name };
        TR_STATUS_TABLE(TR_STATUS_CASE)
#undef TR_STATUS_CASE
    default:
        return (tr_status_info_t){ 500, "server_error", "internal_error",
                                   TR_LEVEL_ERROR, "TR_ERR_INTERNAL" };
    }
}

/* An error with its story: what was wrong, with the value, and what would be
 * right; `param` names the request field or configuration key at fault. */
#define TR_ERROR_TEXT 512
#define TR_ERROR_PARAM 96

typedef struct {
    tr_status_t status;
    char param[TR_ERROR_PARAM]; /* "" when no field is at fault */
    char text[TR_ERROR_TEXT];
} tr_error_t;

#endif
