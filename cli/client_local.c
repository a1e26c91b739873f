/*
 * A whole engine inside this process (client.h, -m DIR): it listens on a socket
 * in a private directory (mode 0700), and we attach as any other ring client.
 * The directory goes away at the end, also on SIGINT and SIGTERM, because the
 * commands turn those into an orderly end (terminal.h).
 */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/config/config.h"
#include "engine/engine.h"
#include "engine/config/log.h"

#include "client.h"

typedef struct {
    tr_client_t base;
    tr_client_t *ring; /* does the work */
    tr_engine_t *engine;
    tr_config_t config;
    char dir[64];
} local_t;

static void
remove_dir(const char *dir)
{
    struct dirent *d;
    DIR *open = opendir(dir);

    if (open == NULL) {
        return;
    }
    while ((d = readdir(open)) != NULL) {
        if (strcmp(d->d_name, ".") != 0 && strcmp(d->d_name, "..") != 0) {
            unlinkat(dirfd(open), d->d_name, 0);
        }
    }
    closedir(open);
    rmdir(dir);
}

static tr_status_t
configure(local_t *c, const tr_target_t *target, tr_error_t *err)
{
    tr_status_t rc;
    unsigned i;

    tr_config_defaults(&c->config);
    rc = tr_config_set(&c->config, "-m", "model", target->dir, err);
    if (rc == TR_OK) {
        rc = tr_config_set(&c->config, "log_level", "log_level",
                           target->verbose ? "info" : "warn", err);
    }
    for (i = 0; i < target->set.n && rc == TR_OK; i++) {
        const char *item = target->set.item[i];
        const char *equals = strchr(item, '=');
        char key[64];

        if (equals == NULL || (size_t) (equals - item) >= sizeof(key)) {
            return tr_error_set(err, TR_ERR_INVALID, "",
                                "--set %s: expected "
                                "KEY=VALUE, as in --set kv_memory=1g",
                                item);
        }
        snprintf(key, sizeof(key), "%.*s", (int) (equals - item), item);
        rc = tr_config_set(&c->config, "--set", key, equals + 1, err);
    }
    snprintf(c->config.socket, sizeof(c->config.socket), "%s/engine.sock",
             c->dir);
    c->config.socket_mode = 0600;
    if (rc == TR_OK) {
        rc = tr_config_finish(&c->config, err);
    }
    return rc;
}

static tr_status_t
local_submit(tr_client_t *base, tr_call_t *call, uint16_t endpoint,
             const char *body, size_t len, tr_error_t *err)
{
    tr_client_t *ring = ((local_t *) base)->ring;
    tr_status_t rc = ring->ops->submit(ring, call, endpoint, body, len, err);

    ring->in_flight += rc == TR_OK;
    return rc;
}

static tr_status_t
local_run(tr_client_t *base, int timeout_ms, tr_error_t *err)
{
    tr_client_t *ring = ((local_t *) base)->ring;
    tr_status_t rc;

    ring->events = base->events;
    rc = ring->ops->run(ring, timeout_ms, err);
    base->in_flight = ring->in_flight;
    return rc;
}

static void
local_abort(tr_client_t *base, tr_call_t *call)
{
    tr_client_abort(((local_t *) base)->ring, call);
}

static void
local_close(tr_client_t *base)
{
    local_t *c = (local_t *) base;

    tr_client_close(c->ring);
    if (c->engine != NULL) {
        tr_engine_stop(c->engine);
    }
    if (c->dir[0] != '\0') {
        remove_dir(c->dir);
    }
    free(c);
}

static const tr_client_ops_t local_ops = { local_submit, local_run, local_abort,
                                           local_close };

tr_status_t
tr_client_open_local(const tr_target_t *target, tr_client_t **out,
                     tr_error_t *err)
{
    local_t *c = calloc(1, sizeof(*c));
    const char *tmp = getenv("TMPDIR");
    tr_status_t rc;

    if (c == NULL) {
        return tr_error_set(err, TR_ERR_NOMEM, "", "out of memory");
    }
    c->base.ops = &local_ops;
    /* a Unix socket path is short, so a long TMPDIR is no place for one */
    snprintf(c->dir, sizeof(c->dir), "%s/tokenring.XXXXXX",
             tmp != NULL && strlen(tmp) < 40 ? tmp : "/tmp");
    if (mkdtemp(c->dir) == NULL) {
        rc = tr_error_set(err, TR_ERR_IO, "",
                          "cannot make a directory like "
                          "%s: %s",
                          c->dir, strerror(errno));
        c->dir[0] = '\0';
        local_close(&c->base);
        return rc;
    }
    rc = configure(c, target, err);
    if (rc == TR_OK) {
        tr_log_open(c->config.log, c->config.log_level);
        rc = tr_engine_start(&c->config, &c->engine, err);
    }
    if (rc == TR_OK) {
        rc = tr_client_open_ring(c->config.socket, &c->ring, err);
    }
    if (rc != TR_OK) {
        local_close(&c->base);
        return rc;
    }
    memcpy(c->base.model, c->ring->model, sizeof(c->base.model));
    snprintf(c->base.where, sizeof(c->base.where), "%.500s, in this process",
             target->dir);
    c->base.max_model_len = c->ring->max_model_len;
    *out = &c->base;
    return TR_OK;
}
