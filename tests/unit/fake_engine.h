/*
 * An engine of one thread, for the tests of the ring client: it accepts one
 * connection, answers the handshake in the manner it was told, and then runs a
 * function of the test that reads and writes its rings.
 */
#ifndef FAKE_ENGINE_H
#define FAKE_ENGINE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <dirent.h>
#include <poll.h>
#include <pthread.h>
#include <sys/un.h>

#include "ring_client.h"

#define PATIENCE_MS 30000
#define GENERATION 0xabcdefull

/* How the engine answers the handshake. */
enum {
    WELCOME,
    REFUSE_VERSION,
    REFUSE_BUSY,
    SILENT,
    HANG_UP,
    TOO_FEW_FDS,
    OTHER_GENERATION,
    GARBAGE
};

typedef struct fake fake_t;
struct fake {
    char path[64];
    int manner;
    uint32_t ring; /* bytes, 0: as the client wants */
    /* what to do with the channel, in the engine's thread */
    void (*serve)(fake_t *f);

    int listener, sock;
    int fds[TR_CHANNEL_FDS];
    tr_channel_map_t map;
    tr_status_page_t *status;
    tr_ring_producer_t out, answers;
    tr_ring_consumer_t in;
    uint8_t *buf;
    uint32_t max;
    pthread_t thread;

    /* what it saw */
    uint32_t slots_wanted;
    uint64_t n_parts, body_hash, body_len;
    char request_id[TR_REQUEST_ID_MAX + 1];
    uint64_t id;
    uint32_t wishes;
    const char *failed;
};

static inline int
count_fds(void)
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

/* FNV-1a, over a body in any parts. */
static inline uint64_t
hash(uint64_t h, const void *data, size_t len)
{
    const uint8_t *at = data;
    size_t i;

    for (i = 0; i < len; i++) {
        h = (h ^ at[i]) * 1099511628211ull;
    }
    return h;
}

/* ---- the engine --------------------------------------------------------- */

static inline void
fake_put(fake_t *f, uint16_t type, uint64_t id, const void *head, size_t n,
         const void *tail, size_t m)
{
    tr_ring_producer_t *out = type == TR_RECORD_ACCEPTED ? &f->answers
                                                         : &f->out;
    tr_ring_piece_t pieces[2] = { { head, n }, { tail, m } };

    while (tr_ring_put(out, type, 0, id, pieces, 2) == TR_AGAIN) {
        if (tr_ring_publish(out)) {
            tr_doorbell_ring(f->fds[TR_FD_TO_PEER]);
        }
        if (tr_ring_wait_space(out, (uint32_t) (n + m)) == TR_AGAIN) {
            struct pollfd p[2] = { { f->fds[TR_FD_TO_ENGINE], POLLIN, 0 },
                                   { f->sock, POLLIN, 0 } };

            poll(p, 2, PATIENCE_MS);
            if (p[1].revents != 0) {
                return; /* the client has gone */
            }
            tr_doorbell_drain(f->fds[TR_FD_TO_ENGINE]);
        }
    }
    if (tr_ring_publish(out)) {
        tr_doorbell_ring(f->fds[TR_FD_TO_PEER]);
    }
}

static inline void
fake_accepted(fake_t *f, uint64_t id)
{
    tr_wire_accepted_t head = { .endpoint = TR_ENDPOINT_CHAT,
                                .choices = 1,
                                .model_len = 4 };

    fake_put(f, TR_RECORD_ACCEPTED, id, &head, sizeof(head), "fake", 4);
}

static inline void
fake_delta(fake_t *f, uint64_t id, const char *text)
{
    tr_wire_delta_t head = { .tokens = 1 };

    head.text_len = (uint32_t) strlen(text);
    fake_put(f, TR_RECORD_DELTA, id, &head, sizeof(head), text, head.text_len);
}

static inline void
fake_finish(fake_t *f, uint64_t id, uint16_t reason)
{
    tr_wire_finish_t head = { .reason = reason, .flags = TR_FINISH_LAST };

    fake_put(f, TR_RECORD_FINISH, id, &head, sizeof(head), NULL, 0);
}

/* Waits for the next record; 0 when the client has gone. */
static inline int
fake_get(fake_t *f, tr_record_t *rec)
{
    for (;;) {
        tr_status_t rc = tr_ring_get(&f->in, rec, f->buf, f->max);
        struct pollfd p[2] = { { f->fds[TR_FD_TO_ENGINE], POLLIN, 0 },
                               { f->sock, POLLIN, 0 } };

        if (tr_ring_release(&f->in)) {
            tr_doorbell_ring(f->fds[TR_FD_TO_PEER]);
        }
        if (rc == TR_OK) {
            return 1;
        }
        rc = tr_channel_sleep(&f->map, &f->in);
        if (rc == TR_ERR_PROTOCOL) {
            f->failed = "the client broke the protocol";
            return 0;
        }
        if (rc == TR_OK && tr_ring_sleep(&f->in) != TR_AGAIN) {
            continue; /* a record */
        }
        if (rc == TR_AGAIN || tr_control_take(&f->map, 0) == 0) {
            if (poll(p, 2, PATIENCE_MS) <= 0) {
                f->failed = "the engine was never rung";
                return 0;
            }
            tr_doorbell_drain(f->fds[TR_FD_TO_ENGINE]);
            if (p[0].revents == 0) {
                return 0;
            }
        }
    }
}

/* One whole request; its body is hashed. */
static inline int
fake_request(fake_t *f)
{
    tr_wire_submit_t head;
    tr_wire_bytes_t body;
    tr_record_t rec;

    if (!fake_get(f, &rec)) {
        return 0;
    }
    if (rec.type != TR_RECORD_SUBMIT
        || tr_wire_submit_parse(f->buf, rec.length, &head, &body) != TR_OK) {
        f->failed = "bad SUBMIT";
        return 0;
    }
    memcpy(f->request_id, head.request_id, head.request_id_len);
    f->request_id[head.request_id_len] = '\0';
    f->id = rec.id;
    f->n_parts = 1;
    f->body_len = body.len;
    f->body_hash = hash(0, body.data, body.len);
    while (rec.flags & TR_FLAG_MORE) {
        if (!fake_get(f, &rec)) {
            return 0;
        }
        if (rec.id != f->id) {
            f->failed = "part of another request";
            return 0;
        }
        f->n_parts++;
        f->body_len += rec.length;
        f->body_hash = hash(f->body_hash, f->buf, rec.length);
    }
    if (f->body_len != head.body_len) {
        f->failed = "body_len is wrong";
    }
    return 1;
}

static inline void
fake_open(fake_t *f, const tr_hello_t *hello, tr_welcome_t *welcome)
{
    uint64_t generation = GENERATION + (f->manner == OTHER_GENERATION);

    f->slots_wanted = hello->slots;
    tr_channel_create(hello->slots, f->ring ? f->ring : hello->request_ring,
                      f->ring ? f->ring : hello->response_ring, generation,
                      &f->map, &f->fds[TR_FD_CHANNEL]);
    tr_status_create(GENERATION, &f->status, &f->fds[TR_FD_STATUS]);
    memcpy(f->status->card.model, "fake", 5);
    f->fds[TR_FD_TO_ENGINE] = tr_doorbell_create();
    f->fds[TR_FD_TO_PEER] = tr_doorbell_create();
    tr_ring_producer_init(&f->out, f->map.response, f->map.response_data,
                          f->map.response_capacity);
    tr_ring_producer_init(&f->answers, f->map.answer, f->map.answer_data,
                          f->map.answer_capacity);
    tr_ring_consumer_init(&f->in, f->map.request, f->map.request_data,
                          f->map.request_capacity);
    f->max = tr_ring_max_payload(f->map.request_capacity);
    f->buf = malloc(f->max);
    tr_fds_send(f->sock, welcome, sizeof(*welcome), f->fds,
                f->manner == TOO_FEW_FDS ? 0 : TR_CHANNEL_FDS);
}

static inline void *
fake_run(void *arg)
{
    struct pollfd p = { .events = POLLIN };
    tr_welcome_t welcome;
    fake_t *f = arg;
    tr_hello_t hello;
    unsigned got;
    char byte;

    f->sock = accept4(f->listener, NULL, NULL, SOCK_CLOEXEC);
    if (f->sock == -1) {
        return NULL;
    }
    if (tr_fds_receive(f->sock, &hello, sizeof(hello), NULL, 0, &got)
        != sizeof(hello)) {
        f->failed = "no hello";
        return NULL;
    }
    if (f->manner == HANG_UP) {
        shutdown(f->sock, SHUT_RDWR);
        return NULL;
    }
    if (f->manner == SILENT) {
        p.fd = f->sock;
        poll(&p, 1, PATIENCE_MS); /* until the client gives up */
        return NULL;
    }
    if (f->manner == GARBAGE) {
        memset(&welcome, 'x', sizeof(welcome));
        tr_fds_send(f->sock, &welcome, sizeof(welcome), NULL, 0);
    } else if (f->manner == REFUSE_BUSY) {
        tr_welcome_refuse(&welcome, "too many channels: 64 of 64");
        tr_fds_send(f->sock, &welcome, sizeof(welcome), NULL, 0);
    } else if (f->manner == REFUSE_VERSION) {
        tr_welcome_refuse(&welcome, "the peer speaks ring versions 1 to 1, "
                                    "this engine 7 to 8");
        welcome.version_min = 7;
        welcome.version_max = 8;
        tr_fds_send(f->sock, &welcome, sizeof(welcome), NULL, 0);
    } else if (tr_hello_answer(&hello, GENERATION, &welcome) != TR_OK) {
        tr_fds_send(f->sock, &welcome, sizeof(welcome), NULL, 0);
    } else {
        fake_open(f, &hello, &welcome);
        if (f->serve != NULL && f->manner == WELCOME) {
            f->serve(f);
        }
    }
    if (f->manner != WELCOME) { /* the client hangs up; we wait for that */
        recv(f->sock, &byte, 1, 0);
    }
    return NULL;
}

static inline void
fake_start(fake_t *f, int manner, void (*serve)(fake_t *f), uint32_t ring)
{
    struct sockaddr_un addr = { .sun_family = AF_UNIX };
    int i;

    memset(f, 0, sizeof(*f));
    f->manner = manner;
    f->serve = serve;
    f->ring = ring;
    f->sock = -1;
    for (i = 0; i < TR_CHANNEL_FDS; i++) {
        f->fds[i] = -1;
    }
    snprintf(f->path, sizeof(f->path), "/tmp/tr-ring-client-%d.sock",
             (int) getpid());
    unlink(f->path);
    snprintf(addr.sun_path, sizeof(addr.sun_path), "%s", f->path);
    f->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(f->listener, (struct sockaddr *) &addr, sizeof(addr)),
                     0);
    assert_int_equal(listen(f->listener, 4), 0);
    assert_int_equal(pthread_create(&f->thread, NULL, fake_run, f), 0);
}

static inline void
fake_close(int *fd)
{
    if (*fd != -1) {
        close(*fd);
        *fd = -1;
    }
}

static inline void
fake_stop(fake_t *f)
{
    int i;

    pthread_join(f->thread, NULL);
    fake_close(&f->listener);
    fake_close(&f->sock);
    for (i = 0; i < TR_CHANNEL_FDS; i++) {
        fake_close(&f->fds[i]);
    }
    tr_channel_unmap(&f->map);
    tr_status_unmap(f->status);
    free(f->buf);
    unlink(f->path);
    if (f->failed != NULL) {
        fail_msg("engine: %s", f->failed);
    }
}

#endif
