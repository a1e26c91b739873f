/*
 * One way to ask for completions, three ways to get there:
 *
 *   -m DIR           a whole engine inside this process, on a private socket;
 *                    with one of the following it is not loaded
 *   --engine SOCKET  a running engine, through a ring, as an NGINX worker does
 *   --url URL        HTTP: anything that speaks the OpenAI API
 *
 * A client runs any number of calls in one thread.  tr_client_run waits for
 * news and calls back: text as it comes, then done exactly once, also for calls
 * that were aborted or lost.  All answers stream.
 */
#ifndef TR_CLIENT_H
#define TR_CLIENT_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include <tokenring/error.h>
#include <tokenring/status.h>
#include <tokenring/wire.h>

#include "options.h"

/* Where to; filled by the options below. */
typedef struct {
    const char *dir, *engine, *url;
    const char *model; /* --url: the model to ask for; NULL: the first listed */
    tr_option_list_t set;     /* engine settings KEY=VALUE, with dir */
    tr_option_list_t headers; /* HTTP headers, with url */
    bool verbose;             /* dir: the engine's log lines */
} tr_target_t;

#define TR_TARGET_OPTIONS(t)                                                    \
    { "Where the model is (one of the first three; default: the engine main)",  \
      0,                                                                        \
      TR_OPTION_GROUP,                                                          \
      NULL,                                                                     \
      NULL,                                                                     \
      NULL,                                                                     \
      0,                                                                        \
      0,                                                                        \
      NULL,                                                                     \
      false },                                                                  \
        { "model",                                                              \
          'm',                                                                  \
          TR_OPTION_TEXT,                                                       \
          &(t).dir,                                                             \
          "DIR",                                                                \
          "Hugging Face directory, run here unless --engine or --url",          \
          0,                                                                    \
          0,                                                                    \
          NULL,                                                                 \
          false },                                                              \
        { "engine",    'e',      TR_OPTION_TEXT,                                \
          &(t).engine, "SOCKET", "a running engine: its socket, or its name",   \
          0,           0,        NULL,                                          \
          false },                                                              \
        { "url",                                                                \
          'u',                                                                  \
          TR_OPTION_TEXT,                                                       \
          &(t).url,                                                             \
          "URL",                                                                \
          "an OpenAI-compatible API, like http://127.0.0.1:8080",               \
          0,                                                                    \
          0,                                                                    \
          NULL,                                                                 \
          false },                                                              \
        { "model-name",                                                         \
          0,                                                                    \
          TR_OPTION_TEXT,                                                       \
          &(t).model,                                                           \
          "NAME",                                                               \
          "--url: the model to request (default: the first one listed)",        \
          0,                                                                    \
          0,                                                                    \
          NULL,                                                                 \
          false },                                                              \
        { "header",                                                             \
          0,                                                                    \
          TR_OPTION_LIST,                                                       \
          &(t).headers,                                                         \
          "LINE",                                                               \
          "--url: HTTP header to send, may be repeated",                        \
          0,                                                                    \
          0,                                                                    \
          NULL,                                                                 \
          false },                                                              \
        { "set",    0,           TR_OPTION_LIST,                                \
          &(t).set, "KEY=VALUE", "--model: an engine setting, may be repeated", \
          0,        0,           NULL,                                          \
          false },                                                              \
    {                                                                           \
        "verbose", 'v', TR_OPTION_FLAG, &(t).verbose, NULL,                     \
            "--model: show the engine's log", 0, 0, NULL, false                 \
    }

/* The socket that --engine means: a path as it is, NAME as
 * /run/tokenring/NAME.sock.  NULL: TOKENRING_ENGINE of the environment, or else
 * "main".  room: for a path that has to be made; NULL: it is too long. */
#define TR_SOCKET_BYTES 108
const char *tr_engine_socket(const char *given, char room[TR_SOCKET_BYTES]);

/* One of the three was given, or there is an engine where one is looked for by
 * default, which t->engine then names?  0, or the usage error's exit status.  -m
 * beside another one is allowed and unused: the model runs elsewhere already. */
int tr_target_check(tr_target_t *t, const tr_command_t *command);

/* How a call ended. */
typedef struct {
    bool ok;         /* every part of a good stream was there */
    char finish[24]; /* finish_reason: "stop", "length"; "aborted" */
    bool has_usage;
    uint32_t prompt_tokens, completion_tokens;
    bool has_times;     /* the engine's own, where the transport has them */
    uint64_t decode_us; /* first token to last */
    bool has_kv;
    uint64_t kv_bytes, kv_full_bytes; /* at the end; the same at 16 bits */
    char kind[32];     /* when not ok: "connect", "http_429", "stream", ... */
    char message[512]; /* when not ok: in words */
} tr_call_result_t;

typedef struct tr_call tr_call_t;
typedef struct tr_client tr_client_t;

typedef struct {
    /* New text of choice 0 (whole UTF-8 characters), of one kind (enum
     * tr_item_kind); tokens: how many it stands for, as far as the transport
     * tells. */
    void (*text)(void *user, unsigned kind, const char *text, size_t len,
                 uint32_t tokens);
    /* The last call; the tr_call_t is gone afterwards. */
    void (*done)(void *user, const tr_call_result_t *result);
} tr_call_events_t;

/* What a transport implements. */
typedef struct {
    tr_status_t (*submit)(tr_client_t *c, tr_call_t *call, uint16_t endpoint,
                          const char *body, size_t len, tr_error_t *err);
    tr_status_t (*run)(tr_client_t *c, int timeout_ms, tr_error_t *err);
    void (*abort)(tr_client_t *c, tr_call_t *call);
    void (*close)(tr_client_t *c);
} tr_client_ops_t;

struct tr_client {
    const tr_client_ops_t *ops;
    char model[TR_NAME_MAX];
    char where[600];        /* for messages: "engine /run/x.sock" */
    uint32_t max_model_len; /* 0: unknown */
    uint32_t in_flight;
    const tr_call_events_t *events;
};

struct tr_call {
    void *user;
    uint64_t id;   /* ring */
    unsigned kind; /* ring: of the newest item of choice 0 */
    void *http;    /* HTTP: private */
    tr_call_result_t result;
};

/* events: borrowed for the client's life. */
tr_status_t tr_client_open(const tr_target_t *target,
                           const tr_call_events_t *events, tr_client_t **out,
                           tr_error_t *err);
void tr_client_close(tr_client_t *c);

/* Sends one request.  body: borrowed; "model", "stream" and what the transport
 * needs are added to it.  *call (may be NULL) serves to abort.  TR_AGAIN: as
 * many calls are in flight as the transport can carry.  Do not call it from a
 * callback. */
tr_status_t tr_client_submit(tr_client_t *c, uint16_t endpoint, json_t *body,
                             void *user, tr_call_t **call, tr_error_t *err);

/* Waits up to timeout_ms (-1: for ever) for news, and delivers them.  Not
 * TR_OK: the client is of no further use, every call has ended. */
tr_status_t tr_client_run(tr_client_t *c, int timeout_ms, tr_error_t *err);

/* The call will end soon, or has at once, with finish "aborted".  Not from a
 * callback. */
void tr_client_abort(tr_client_t *c, tr_call_t *call);

/* For transports: the call's end.  Frees it. */
void tr_client_done(tr_client_t *c, tr_call_t *call);
void tr_call_fail(tr_call_t *call, const char *kind, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* The transports. */
tr_status_t tr_client_open_ring(const char *path, tr_client_t **out,
                                tr_error_t *err);
tr_status_t tr_client_open_http(const tr_target_t *target, tr_client_t **out,
                                tr_error_t *err);
tr_status_t tr_client_open_local(const tr_target_t *target, tr_client_t **out,
                                 tr_error_t *err);

#endif
