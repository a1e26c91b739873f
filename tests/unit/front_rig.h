/*
 * What the front thread's tests share: a whole engine with backend null on a
 * socket of its own, and a raw peer that can do everything a correct one would
 * not.  Waiting ends by itself only after PATIENCE_MS, when something is wrong.
 */
#ifndef FRONT_RIG_H
#define FRONT_RIG_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <dirent.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <tokenring/channel.h>
#include <tokenring/wire.h>

#include "config.h"
#include "engine.h"
#include "log.h"
#include "ring_client.h"

#define PATIENCE_MS 30000
#define HELLO_BODY "{\"prompt\":[5,6,7],\"max_tokens\":3}"
#define LONG_BODY "{\"prompt\":[5,6,7],\"max_tokens\":4000}"

typedef struct {
    tr_config_t config;
    tr_engine_t *engine;
} rig_t;

static inline int
rig_fds(void)
{
    DIR *dir = opendir("/proc/self/fd");
    int n = 0;

    assert_non_null(dir);
    while (readdir(dir) != NULL) {
        n++;
    }
    closedir(dir);
    return n;
}

/* Settings come as pairs, ended by NULL. */
static inline void
rig_config(rig_t *rig, va_list settings)
{
    static unsigned number; /* a failed test leaves its engine behind */
    const char *key, *value;
    char path[64];
    tr_error_t err;

    tr_log_open("stderr", TR_LEVEL_ERROR);
    tr_config_defaults(&rig->config);
    snprintf(path, sizeof(path), "/tmp/tr_front_%ld_%u.sock", (long) getpid(),
             number++);
    tr_config_set(&rig->config, "rig", "socket", path, &err);
    tr_config_set(&rig->config, "rig", "model", "models/pocket", &err);
    tr_config_set(&rig->config, "rig", "backend", "null", &err);
    tr_config_set(&rig->config, "rig", "null_rate", "1000", &err);
    tr_config_set(&rig->config, "rig", "kv_memory", "16m", &err);
    while ((key = va_arg(settings, const char *)) != NULL) {
        value = va_arg(settings, const char *);
        if (tr_config_set(&rig->config, "rig", key, value, &err) != TR_OK) {
            fail_msg("%s", err.text);
        }
    }
    if (tr_config_finish(&rig->config, &err) != TR_OK) {
        fail_msg("%s", err.text);
    }
}

static inline void
rig_start(rig_t *rig, ...)
{
    va_list settings;
    tr_error_t err;

    va_start(settings, rig);
    rig_config(rig, settings);
    va_end(settings);
    if (tr_engine_start(&rig->config, &rig->engine, &err) != TR_OK) {
        fail_msg("%s", err.text);
    }
}

static inline void
rig_stop(rig_t *rig)
{
    tr_engine_stop(rig->engine);
    rig->engine = NULL;
    assert_int_equal(access(rig->config.socket, F_OK), -1);
}

/* ---- a well-behaved client ---------------------------------------------- */

static inline tr_ring_client_t *
rig_client(const rig_t *rig, uint32_t ring)
{
    tr_ring_client_options_t options = { 64, ring, ring };
    tr_ring_client_t *c;
    tr_error_t err;

    if (tr_ring_client_connect(rig->config.socket, &options, PATIENCE_MS, &c,
                               &err)
        != TR_OK) {
        fail_msg("%s", err.text);
    }
    return c;
}

static inline uint64_t
rig_submit(tr_ring_client_t *c, const void *body, size_t len)
{
    tr_error_t err;
    uint64_t id;

    if (tr_ring_client_submit(c, TR_ENDPOINT_COMPLETIONS, "test", body, len,
                              PATIENCE_MS, &id, &err)
        != TR_OK) {
        fail_msg("%s", err.text);
    }
    return id;
}

static inline tr_ring_event_t
rig_event(tr_ring_client_t *c)
{
    tr_ring_event_t event;
    tr_error_t err;

    if (tr_ring_client_poll(c, PATIENCE_MS, &event, &err) != TR_OK) {
        fail_msg("no event: %s", err.text);
    }
    return event;
}

/* Runs one request to its end and returns its last event. */
static inline tr_ring_event_t
rig_run(tr_ring_client_t *c, const char *body)
{
    uint64_t id = rig_submit(c, body, strlen(body));
    tr_ring_event_t event;

    do {
        event = rig_event(c);
        assert_true(event.id == id);
    } while (!event.last);
    return event;
}

/* The engine still serves whoever behaves. */
static inline void
rig_check_alive(const rig_t *rig)
{
    tr_ring_client_t *c = rig_client(rig, 0);
    tr_ring_event_t end = rig_run(c, HELLO_BODY);

    assert_int_equal(end.type, TR_RECORD_FINISH);
    assert_int_equal(end.head.finish.completion_tokens, 3);
    tr_ring_client_close(c);
}

/* ---- a raw peer --------------------------------------------------------- */

typedef struct {
    int sock;
    int fds[TR_CHANNEL_FDS];
    tr_channel_map_t map;
    tr_ring_producer_t out;
    tr_inbox_t in;
    uint8_t *buf;
    size_t size;
} raw_t;

static inline struct sockaddr_un
raw_address(const char *path)
{
    struct sockaddr_un addr = { .sun_family = AF_UNIX };

    assert_true(strlen(path) < sizeof(addr.sun_path));
    memcpy(addr.sun_path, path, strlen(path) + 1);
    return addr;
}

static inline int
raw_connect(const char *path)
{
    struct sockaddr_un addr = raw_address(path);
    int sock = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    assert_true(sock >= 0);
    assert_int_equal(connect(sock, (struct sockaddr *) &addr, sizeof(addr)), 0);
    return sock;
}

/* Reads a welcome; false when the engine hung up instead. */
static inline bool
raw_welcome(int sock, tr_welcome_t *welcome, int *fds, unsigned *got)
{
    struct pollfd p = { .fd = sock, .events = POLLIN };
    ssize_t n;

    *got = 0;
    assert_int_equal(poll(&p, 1, PATIENCE_MS), 1);
    n = tr_fds_receive(sock, welcome, sizeof(*welcome), fds, TR_CHANNEL_FDS,
                       got);
    if (n <= 0) {
        return false;
    }
    assert_int_equal(n, sizeof(*welcome));
    return true;
}

static inline void
raw_expect_hangup(int sock)
{
    struct pollfd p = { .fd = sock, .events = POLLIN };
    char byte;
    ssize_t n;

    assert_int_equal(poll(&p, 1, PATIENCE_MS), 1);
    n = recv(sock, &byte, 1, 0);
    assert_true(n == 0 || (n == -1 && errno == ECONNRESET));
}

static inline void
raw_open(raw_t *r, const rig_t *rig, uint32_t ring)
{
    tr_welcome_t welcome;
    tr_hello_t hello;
    unsigned got;

    memset(r, 0, sizeof(*r));
    r->sock = raw_connect(rig->config.socket);
    tr_hello_init(&hello, TR_ROLE_WORKER);
    hello.slots = 64;
    hello.request_ring = hello.response_ring = ring;
    assert_int_equal(tr_fds_send(r->sock, &hello, sizeof(hello), NULL, 0), 0);
    assert_true(raw_welcome(r->sock, &welcome, r->fds, &got));
    assert_int_equal(welcome.refused, 0);
    assert_int_equal(got, TR_CHANNEL_FDS);
    assert_int_equal(tr_channel_attach(r->fds[TR_FD_CHANNEL], &r->map), TR_OK);
    tr_ring_producer_init(&r->out, r->map.request, r->map.request_data,
                          r->map.request_capacity);
    tr_inbox_init(&r->in, &r->map);
    r->size = tr_inbox_max_payload(&r->map);
    r->buf = malloc(r->size);
    assert_non_null(r->buf);
}

static inline void
raw_close(raw_t *r)
{
    unsigned i;

    close(r->sock);
    for (i = 0; i < TR_CHANNEL_FDS; i++) {
        close(r->fds[i]);
    }
    tr_channel_unmap(&r->map);
    free(r->buf);
}

static inline void
raw_ring(raw_t *r)
{
    tr_doorbell_ring(r->fds[TR_FD_TO_ENGINE]);
}

/* Puts one record and shows it, waiting for room. */
static inline void
raw_put(raw_t *r, uint16_t type, uint16_t flags, uint64_t id, const void *data,
        size_t len)
{
    tr_ring_piece_t piece = { data, len };
    tr_status_t rc;

    while ((rc = tr_ring_put(&r->out, type, flags, id, &piece, 1))
           == TR_AGAIN) {
        raw_ring(r);
        usleep(100);
    }
    assert_int_equal(rc, TR_OK);
    if (tr_ring_publish(&r->out)) {
        raw_ring(r);
    }
}

/* First part of a SUBMIT. */
static inline void
raw_submit(raw_t *r, uint64_t id, const char *body, uint64_t declared,
           bool more)
{
    uint8_t payload[1024];
    tr_wire_submit_t head = { .endpoint = TR_ENDPOINT_COMPLETIONS,
                              .request_id_len = 3,
                              .body_len = declared,
                              .request_id = "raw" };
    size_t len = strlen(body);

    assert_true(sizeof(head) + len <= sizeof(payload));
    memcpy(payload, &head, sizeof(head));
    memcpy(payload + sizeof(head), body, len);
    raw_put(r, TR_RECORD_SUBMIT, more ? TR_FLAG_MORE : 0, id, payload,
            sizeof(head) + len);
}

static inline void
raw_part(raw_t *r, uint64_t id, const char *body, bool more)
{
    raw_put(r, TR_RECORD_SUBMIT, more ? TR_FLAG_MORE : 0, id, body,
            strlen(body));
}

static inline void
raw_wish(raw_t *r, uint64_t id, uint32_t bits)
{
    if (tr_control_set(&r->map, id, bits)) {
        raw_ring(r);
    }
}

/* The next record; fails when none comes. */
static inline tr_record_t
raw_next(raw_t *r)
{
    struct pollfd p = { .fd = r->fds[TR_FD_TO_PEER], .events = POLLIN };
    tr_record_t rec;

    for (;;) {
        tr_status_t rc = tr_inbox_get(&r->in, &rec, r->buf, r->size);

        if (rc == TR_OK) {
            if (tr_inbox_release(&r->in)) {
                raw_ring(r);
            }
            return rec;
        }
        assert_int_equal(rc, TR_AGAIN);
        tr_doorbell_drain(p.fd);
        if (tr_inbox_sleep(&r->in) == TR_AGAIN) {
            assert_int_equal(poll(&p, 1, PATIENCE_MS), 1);
        }
    }
}

/* Skips to the record that ends `id`: ERROR gives its status, FINISH(LAST) its
 * reason. */
static inline int
raw_end(raw_t *r, uint64_t id)
{
    for (;;) {
        tr_record_t rec = raw_next(r);

        assert_true(rec.id == id);
        if (rec.type == TR_RECORD_ERROR) {
            tr_wire_error_t head = { 0 };
            tr_wire_bytes_t param, message;

            assert_int_equal(tr_wire_error_parse(r->buf, rec.length, &head,
                                                 &param, &message),
                             TR_OK);
            return head.status;
        }
        if (rec.type == TR_RECORD_FINISH) {
            tr_wire_finish_t head = { 0 };

            assert_int_equal(tr_wire_finish_parse(r->buf, rec.length, &head),
                             TR_OK);
            if (head.flags & TR_FINISH_LAST) {
                return head.reason;
            }
        }
    }
}

#endif
