/*
 * One status type for the whole product.
 *
 * 0 is success and failures are negative.  TR_AGAIN is back-pressure: nothing
 * happened, try later.  The table is the only place that maps a status to the
 * HTTP status, the OpenAI error and the log level.  The engine puts statuses
 * into ERROR records; the module has errors of its own (no engine, timeouts).
 */
#ifndef TOKENRING_ERROR_H
#define TOKENRING_ERROR_H

#include <stddef.h>

typedef int tr_status_t;

enum tr_log_level {
    TR_LEVEL_ERROR,
    TR_LEVEL_WARN,
    TR_LEVEL_NOTICE,
    TR_LEVEL_INFO,
    TR_LEVEL_DEBUG
};

/* name, value, HTTP status, OpenAI type and code (NULL: null), TR_LEVEL_* */
#define TR_STATUS_TABLE(X)                                                    \
    X(TR_OK, 0, 200, NONE, NULL, INFO)                                        \
    X(TR_AGAIN, -1, 429, RATE, "try_again", INFO)                             \
    X(TR_ERR_INVALID, -2, 400, BAD, NULL, INFO)                               \
    X(TR_ERR_CONTEXT_LENGTH, -3, 400, BAD, "context_length_exceeded", INFO)   \
    X(TR_ERR_MODEL_NOT_FOUND, -4, 404, BAD, "model_not_found", INFO)          \
    X(TR_ERR_METHOD, -5, 405, BAD, "method_not_allowed", INFO)                \
    X(TR_ERR_TOO_LARGE, -6, 413, BAD, "request_too_large", INFO)              \
    X(TR_ERR_QUEUE_FULL, -7, 429, RATE, "queue_full", WARN)                   \
    X(TR_ERR_INTERNAL, -8, 500, SERVER, "internal_error", ERROR)              \
    X(TR_ERR_NO_ENGINE, -9, 503, SERVER, "engine_unavailable", ERROR)         \
    X(TR_ERR_DRAINING, -10, 503, SERVER, "engine_draining", INFO)             \
    X(TR_ERR_TIMEOUT, -11, 504, SERVER, "timeout", WARN)                      \
    X(TR_ERR_NOT_FOUND, -12, 404, BAD, "not_found", INFO)                     \
    X(TR_ERR_CANCELLED, -13, 499, BAD, "request_cancelled", INFO)             \
    X(TR_ERR_NO_REDIS, -14, 503, SERVER, "redis_unavailable", WARN)           \
    X(TR_ERR_MEDIA_TYPE, -15, 415, BAD, "unsupported_media_type", INFO)       \
    X(TR_ERR_REFUSED, -16, 422, BAD, "request_refused", WARN)                 \
    X(TR_ERR_NO_RESPONSE, -17, 400, BAD, "previous_response_not_found", INFO) \
    /* never sent to a client: files, memory, the other process */            \
    X(TR_ERR_IO, -20, 500, SERVER, "internal_error", ERROR)                   \
    X(TR_ERR_NOMEM, -21, 500, SERVER, "internal_error", ERROR)                \
    X(TR_ERR_FORMAT, -22, 500, SERVER, "internal_error", ERROR)               \
    X(TR_ERR_PROTOCOL, -23, 500, SERVER, "internal_error", ERROR)             \
    X(TR_ERR_VERSION, -24, 503, SERVER, "engine_unavailable", ERROR)          \
    X(TR_ERR_CLOSED, -25, 503, SERVER, "engine_unavailable", WARN)            \
    X(TR_ERR_UNSUPPORTED, -26, 400, BAD, "unsupported", INFO)                 \
    X(TR_ERR_REPLAY, -27, 500, SERVER, "internal_error", ERROR)               \
    /* the engine's device is gone: to its requests, the engine is */         \
    X(TR_ERR_LOST, -28, 503, SERVER, "engine_unavailable", ERROR)             \
    /* the engine gives the request up: another one is to go on with it */    \
    X(TR_ERR_MOVED, -29, 503, SERVER, "engine_draining", INFO)

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
static inline tr_status_info_t tr_status_info(tr_status_t status);

#define TR_ERROR_TEXT 512
#define TR_ERROR_PARAM 96

/* An error to show: what was wrong, with the value, and what would be right. */
typedef struct {
    tr_status_t status;
    char param[TR_ERROR_PARAM]; /* request field or setting at fault, or "" */
    char text[TR_ERROR_TEXT];
} tr_error_t;

#include <tokenring/error_inline.h>

#endif
