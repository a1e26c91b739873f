/*
 * What the three transports have in common (client.h).
 */
#include "client.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/config/log.h"

#define SOCKET_DIR "/run/tokenring"

const char *
tr_engine_socket(const char *given, char room[TR_SOCKET_BYTES])
{
    const char *name = given != NULL ? given : getenv("TOKENRING_ENGINE");

    name = name != NULL && name[0] != '\0' ? name : "main";
    if (strchr(name, '/') != NULL) {
        return name;
    }
    return snprintf(room, TR_SOCKET_BYTES, SOCKET_DIR "/%s.sock", name)
                   < TR_SOCKET_BYTES
               ? room
               : NULL;
}

int
tr_target_check(tr_target_t *t, const tr_command_t *command)
{
    static char room[TR_SOCKET_BYTES];
    bool runs_elsewhere = t->engine != NULL || t->url != NULL;
    const char *socket;

    if (!runs_elsewhere && t->dir == NULL) {
        socket = tr_engine_socket(NULL, room);
        if (socket == NULL || access(socket, F_OK) != 0) {
            return tr_usage_error(command,
                                  "where is the model? give -m DIR, --engine "
                                  "SOCKET or --url URL (there is no engine at "
                                  "%s)",
                                  socket != NULL ? socket : "its name");
        }
        t->engine = socket;
        runs_elsewhere = true;
    } else if (t->engine != NULL) {
        t->engine = tr_engine_socket(t->engine, room);
        if (t->engine == NULL) {
            return tr_usage_error(command, "--engine: the name is longer than "
                                           "a socket's path can be");
        }
    }
    if (t->engine != NULL && t->url != NULL) {
        return tr_usage_error(command, "give --engine SOCKET or --url URL, not "
                                       "both");
    }
    if (runs_elsewhere && t->set.n != 0) {
        return tr_usage_error(command, "--set changes an engine that runs in "
                                       "this process: it needs -m DIR");
    }
    if (t->url == NULL && (t->headers.n != 0 || t->model != NULL)) {
        return tr_usage_error(command, "--header and --model-name belong to "
                                       "--url");
    }
    return 0;
}

tr_status_t
tr_client_open(const tr_target_t *target, const tr_call_events_t *events,
               tr_client_t **out, tr_error_t *err)
{
    tr_status_t rc;

    if (target->url != NULL) {
        rc = tr_client_open_http(target, out, err);
    } else if (target->engine != NULL) {
        rc = tr_client_open_ring(target->engine, out, err);
    } else {
        rc = tr_client_open_local(target, out, err);
    }
    if (rc == TR_OK) {
        (*out)->events = events;
    }
    return rc;
}

void
tr_client_close(tr_client_t *c)
{
    if (c != NULL) {
        c->ops->close(c);
    }
}

tr_status_t
tr_client_submit(tr_client_t *c, uint16_t endpoint, json_t *body, void *user,
                 tr_call_t **out, tr_error_t *err)
{
    tr_call_t *call = calloc(1, sizeof(*call));
    char *text = NULL;
    tr_status_t rc;

    json_object_set_new(body, "model", json_string(c->model));
    json_object_set_new(body, "stream", json_true());
    json_object_set_new(body, "stream_options",
                        json_pack("{s:b}", "include_usage", 1));
    text = json_dumps(body, JSON_COMPACT);
    if (call == NULL || text == NULL) {
        rc = tr_error_set(err, TR_ERR_NOMEM, "", "out of memory");
    } else {
        call->user = user;
        rc = c->ops->submit(c, call, endpoint, text, strlen(text), err);
    }
    free(text);
    if (rc != TR_OK) {
        free(call);
        return rc;
    }
    c->in_flight++;
    if (out != NULL) {
        *out = call;
    }
    return TR_OK;
}

tr_status_t
tr_client_run(tr_client_t *c, int timeout_ms, tr_error_t *err)
{
    return c->ops->run(c, timeout_ms, err);
}

void
tr_client_abort(tr_client_t *c, tr_call_t *call)
{
    c->ops->abort(c, call);
}

void
tr_client_done(tr_client_t *c, tr_call_t *call)
{
    c->in_flight--;
    c->events->done(call->user, &call->result);
    free(call);
}

void
tr_call_fail(tr_call_t *call, const char *kind, const char *format, ...)
{
    va_list args;

    if (call->result.kind[0] != '\0') {
        return; /* the first cause is the one to tell */
    }
    call->result.ok = false;
    snprintf(call->result.kind, sizeof(call->result.kind), "%s", kind);
    va_start(args, format);
    vsnprintf(call->result.message, sizeof(call->result.message), format, args);
    va_end(args);
}
