/*
 * The ring client: handshake, slots, parts, and one place that waits.
 *
 * A slot is FREE, LIVE (its owner waits for events) or ABANDONED (its body
 * could not be sent in time: the engine was told to abort it, and whatever it
 * still says is dropped until the slot comes back).  Only the record that ends
 * a request frees its slot, under the next generation.
 *
 * Sleeping.  Both doorbell meanings (records have come, space is free) share
 * one eventfd.  It is drained before the flag goes up, never after; a submit
 * that drained it rings it again at its end, so that a caller who waits on
 * tr_ring_client_fd misses nothing.
 */
#include "ring_client.h"

#include <poll.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/un.h>
#include <time.h>

#include "engine/config/log.h"

enum { SLOT_FREE, SLOT_LIVE, SLOT_ABANDONED };

typedef struct {
    uint32_t generation; /* of the request in it, or of the next one */
    uint32_t commands;   /* TR_CONTROL_* */
    uint8_t state;
} client_slot_t;

struct tr_ring_client {
    int sock;        /* stays open: its hang-up is the engine's end */
    int bell_engine; /* we ring */
    int bell_peer;   /* we listen */
    int epoll;       /* sock and bell_peer, for the caller's event loop */
    bool hung_up;
    bool drained; /* a submit took bell_peer's count */
    tr_channel_map_t map;
    const tr_status_page_t *status;
    tr_status_admission_t admission;
    tr_ring_producer_t requests;
    tr_inbox_t inbox;
    uint8_t *buf; /* one payload */
    uint32_t buf_size;
    client_slot_t *slots;
    uint32_t *free_slots; /* stack */
    uint32_t n_free, n_live;
};

/* CLOCK_MONOTONIC in microseconds. */
static uint64_t
client_now_us(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t) ts.tv_sec * 1000000 + (uint64_t) ts.tv_nsec / 1000;
}

static uint64_t
client_deadline(int timeout_ms)
{
    return timeout_ms < 0 ? UINT64_MAX
                          : client_now_us() + (uint64_t) timeout_ms * 1000;
}

/* What is left until the deadline, in poll's terms: rounded up, so that a
 * wait never ends early and spins. */
static int
client_left_ms(uint64_t deadline)
{
    uint64_t now, left;

    if (deadline == UINT64_MAX) {
        return -1;
    }
    now = client_now_us();
    if (now >= deadline) {
        return 0;
    }
    left = (deadline - now + 999) / 1000;
    return left > INT32_MAX ? INT32_MAX : (int) left;
}

/* ---- connecting --------------------------------------------------------- */

static tr_status_t
client_dial(const char *path, uint64_t deadline, int *sock, tr_error_t *err)
{
    struct sockaddr_un addr = { .sun_family = AF_UNIX };
    size_t len = strlen(path);
    int e;

    if (len == 0 || len >= sizeof(addr.sun_path)) {
        return tr_error_set(err, TR_ERR_INVALID, "",
                            "socket path \"%s\" has %zu bytes, 1 to %zu "
                            "are possible",
                            path, len, sizeof(addr.sun_path) - 1);
    }
    memcpy(addr.sun_path, path, len + 1);
    *sock = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (*sock == -1) {
        return tr_error_set(err, TR_ERR_IO, "", "socket() failed: %s",
                            strerror(errno));
    }
    for (;;) {
        if (connect(*sock, (struct sockaddr *) &addr, sizeof(addr)) == 0) {
            return TR_OK;
        }
        e = errno;
        /* EAGAIN: the engine's backlog is full; Unix sockets offer nothing to
         * poll for here */
        if ((e != EAGAIN && e != EINTR) || client_left_ms(deadline) == 0) {
            break;
        }
        poll(NULL, 0, 1);
    }
    close(*sock);
    *sock = -1;
    if (e == EAGAIN || e == EINTR) {
        return tr_error_set(err, TR_ERR_TIMEOUT, "",
                            "the engine at %s does not accept connections",
                            path);
    }
    return tr_error_set(err,
                        e == ENOENT || e == ECONNREFUSED ? TR_ERR_NO_ENGINE
                                                         : TR_ERR_IO,
                        "", "no engine answers at %s: %s", path, strerror(e));
}

/* Gathers the welcome, whose descriptors come with its first byte. */
static tr_status_t
client_welcome(int sock, const char *path, uint64_t deadline,
               tr_welcome_t *welcome, int fds[TR_CHANNEL_FDS], unsigned *got,
               tr_error_t *err)
{
    uint8_t *at = (uint8_t *) welcome;
    size_t have = 0;

    *got = 0;
    while (have < sizeof(*welcome)) {
        struct pollfd p = { .fd = sock, .events = POLLIN };
        unsigned n = 0;
        ssize_t r;

        r = tr_fds_receive(sock, at + have, sizeof(*welcome) - have, fds,
                           have == 0 ? TR_CHANNEL_FDS : 0, &n);
        if (r > 0) {
            have += (size_t) r;
            *got += n;
            continue;
        }
        if (r == 0 || errno == ECONNRESET) {
            return tr_error_set(err, TR_ERR_CLOSED, "",
                                "the engine at %s hung up during the "
                                "handshake",
                                path);
        }
        if (errno != EAGAIN) {
            return tr_error_set(err,
                                errno == EPROTO ? TR_ERR_PROTOCOL : TR_ERR_IO,
                                "", "bad welcome from the engine at %s: %s",
                                path, strerror(errno));
        }
        r = poll(&p, 1, client_left_ms(deadline));
        if (r == 0 || (r < 0 && client_left_ms(deadline) == 0)) {
            return tr_error_set(err, TR_ERR_TIMEOUT, "",
                                "the engine at %s did not answer the "
                                "handshake in time",
                                path);
        }
    }
    return TR_OK;
}

/* Takes the four descriptors into the client (given, whatever happens). */
static tr_status_t
client_attach(tr_ring_client_t *c, const tr_welcome_t *welcome,
              const int fds[TR_CHANNEL_FDS], tr_error_t *err)
{
    tr_status_t rc;

    c->bell_engine = fds[TR_FD_TO_ENGINE];
    c->bell_peer = fds[TR_FD_TO_PEER];
    rc = tr_channel_attach(fds[TR_FD_CHANNEL], &c->map);
    if (rc == TR_OK) {
        rc = tr_status_attach(fds[TR_FD_STATUS], &c->status);
    }
    close(fds[TR_FD_CHANNEL]);
    close(fds[TR_FD_STATUS]);
    if (rc != TR_OK) {
        return tr_error_set(err, rc, "",
                            "the engine's shared memory was "
                            "refused (%s)",
                            tr_status_info(rc).name);
    }
    if (c->map.generation != welcome->generation
        || c->status->generation != welcome->generation) {
        return tr_error_set(err, TR_ERR_PROTOCOL, "",
                            "generations differ: welcome %llx, channel %llx, "
                            "status page %llx",
                            (unsigned long long) welcome->generation,
                            (unsigned long long) c->map.generation,
                            (unsigned long long) c->status->generation);
    }
    return TR_OK;
}

static tr_status_t
client_handshake(tr_ring_client_t *c, const char *path,
                 const tr_ring_client_options_t *options, uint32_t drain,
                 uint64_t deadline, tr_error_t *err)
{
    char why[TR_WELCOME_MESSAGE];
    int fds[TR_CHANNEL_FDS];
    unsigned i, got = 0;
    tr_welcome_t welcome;
    tr_hello_t hello;
    tr_status_t rc;

    tr_hello_init(&hello, TR_ROLE_CLI);
    if (options != NULL) {
        hello.slots = options->slots;
        hello.request_ring = options->request_ring;
        hello.response_ring = options->response_ring;
    }
    hello.drain = drain;
    if (tr_fds_send(c->sock, &hello, sizeof(hello), NULL, 0) != 0) {
        return tr_error_set(err, TR_ERR_CLOSED, "",
                            "cannot greet the engine at %s: %s", path,
                            strerror(errno));
    }
    rc = client_welcome(c->sock, path, deadline, &welcome, fds, &got, err);
    if (rc == TR_OK) {
        rc = tr_welcome_check(&welcome, why);
        if (rc != TR_OK) {
            tr_error_set(err, rc, "", "the engine at %s refused: %s", path,
                         why[0] != '\0' ? why : "its welcome makes no sense");
        } else if (got != TR_CHANNEL_FDS) {
            rc = tr_error_set(err, TR_ERR_PROTOCOL, "",
                              "the engine at %s sent %u descriptors, "
                              "expected %d",
                              path, got, TR_CHANNEL_FDS);
        }
    }
    if (rc != TR_OK) {
        for (i = 0; i < got; i++) {
            close(fds[i]);
        }
        return rc;
    }
    return client_attach(c, &welcome, fds, err);
}

/* Private memory and the descriptor that a caller may wait on. */
static tr_status_t
client_prepare(tr_ring_client_t *c, tr_error_t *err)
{
    struct epoll_event ev = { .events = EPOLLIN | EPOLLRDHUP };
    uint32_t i, n = c->map.slots;

    tr_ring_producer_init(&c->requests, c->map.request, c->map.request_data,
                          c->map.request_capacity);
    tr_inbox_init(&c->inbox, &c->map);
    c->buf_size = tr_inbox_max_payload(&c->map);
    c->buf = malloc(c->buf_size);
    c->slots = calloc(n, sizeof(*c->slots));
    c->free_slots = malloc(n * sizeof(*c->free_slots));
    if (c->buf == NULL || c->slots == NULL || c->free_slots == NULL) {
        return tr_error_set(err, TR_ERR_NOMEM, "",
                            "no memory for a ring client of %u slots", n);
    }
    for (i = 0; i < n; i++) {
        c->slots[i].generation = 1;
        c->free_slots[i] = n - 1 - i;
    }
    c->n_free = n;
    c->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (c->epoll == -1 || epoll_ctl(c->epoll, EPOLL_CTL_ADD, c->sock, &ev) != 0
        || epoll_ctl(c->epoll, EPOLL_CTL_ADD, c->bell_peer, &ev) != 0) {
        return tr_error_set(err, TR_ERR_IO, "", "epoll: %s", strerror(errno));
    }
    return TR_OK;
}

static tr_status_t
client_connect(const char *path, const tr_ring_client_options_t *options,
               uint32_t drain, int timeout_ms, tr_ring_client_t **out,
               tr_error_t *err)
{
    uint64_t deadline = client_deadline(timeout_ms);
    tr_ring_client_t *c = calloc(1, sizeof(*c));
    tr_status_t rc;

    *out = NULL;
    if (c == NULL) {
        return tr_error_set(err, TR_ERR_NOMEM, "",
                            "no memory for a ring client");
    }
    c->sock = c->bell_engine = c->bell_peer = c->epoll = -1;
    rc = client_dial(path, deadline, &c->sock, err);
    if (rc == TR_OK) {
        rc = client_handshake(c, path, options, drain, deadline, err);
    }
    if (rc == TR_OK) {
        rc = client_prepare(c, err);
    }
    if (rc != TR_OK) {
        tr_ring_client_close(c);
        return rc;
    }
    *out = c;
    return TR_OK;
}

tr_status_t
tr_ring_client_connect(const char *path,
                       const tr_ring_client_options_t *options, int timeout_ms,
                       tr_ring_client_t **out, tr_error_t *err)
{
    return client_connect(path, options, TR_DRAIN_NONE, timeout_ms, out, err);
}

tr_status_t
tr_ring_client_drain(const char *path, uint32_t drain, int timeout_ms,
                     tr_ring_client_t **out, tr_error_t *err)
{
    tr_ring_client_options_t small = { 64, 4096, 4096 };

    return client_connect(path, &small, drain, timeout_ms, out, err);
}

static void
client_close_fd(int fd)
{
    if (fd != -1) {
        close(fd);
    }
}

void
tr_ring_client_close(tr_ring_client_t *c)
{
    if (c == NULL) {
        return;
    }
    client_close_fd(c->epoll);
    client_close_fd(c->sock);
    client_close_fd(c->bell_engine);
    client_close_fd(c->bell_peer);
    tr_channel_unmap(&c->map);
    tr_status_unmap(c->status);
    free(c->buf);
    free(c->slots);
    free(c->free_slots);
    free(c);
}

/* ---- waiting ------------------------------------------------------------ */

static tr_status_t
client_closed(tr_error_t *err)
{
    return tr_error_set(err, TR_ERR_CLOSED, "",
                        "the engine closed the connection");
}

static tr_status_t
client_violated(tr_error_t *err, const char *what)
{
    return tr_error_set(err, TR_ERR_PROTOCOL, "",
                        "the engine broke the ring protocol: %s", what);
}

/* Waits for the doorbell or the socket.  TR_OK: look again; TR_AGAIN: time is
 * up or a signal came; TR_ERR_PROTOCOL. */
static tr_status_t
client_wait(tr_ring_client_t *c, uint64_t deadline, tr_error_t *err)
{
    struct pollfd p[2] = { { .fd = c->bell_peer, .events = POLLIN },
                           { .fd = c->sock, .events = POLLIN } };
    char byte;
    ssize_t n;

    if (poll(p, 2, client_left_ms(deadline)) <= 0) {
        return TR_AGAIN;
    }
    if (p[1].revents != 0) {
        n = recv(c->sock, &byte, 1, MSG_DONTWAIT);
        if (n > 0) {
            return client_violated(err, "data on the socket");
        }
        if (n == 0 || (errno != EAGAIN && errno != EINTR)) {
            c->hung_up = true;
        }
    }
    return TR_OK;
}

/* ---- requests ----------------------------------------------------------- */

static client_slot_t *
client_slot(tr_ring_client_t *c, uint64_t id)
{
    client_slot_t *s;

    if (TR_ID_SLOT(id) >= c->map.slots) {
        return NULL;
    }
    s = &c->slots[TR_ID_SLOT(id)];
    return s->state != SLOT_FREE && s->generation == TR_ID_GENERATION(id)
               ? s
               : NULL;
}

static void
client_slot_free(tr_ring_client_t *c, uint32_t slot)
{
    client_slot_t *s = &c->slots[slot];

    s->generation = s->generation == UINT32_MAX ? 1 : s->generation + 1;
    s->commands = 0;
    s->state = SLOT_FREE;
    c->free_slots[c->n_free++] = slot;
}

static void
client_command(tr_ring_client_t *c, uint64_t id, uint32_t set, uint32_t clear)
{
    client_slot_t *s = client_slot(c, id);

    if (s == NULL) {
        return;
    }
    s->commands = (s->commands | set) & ~clear;
    if (tr_control_set(&c->map, id, s->commands)) {
        tr_doorbell_ring(c->bell_engine);
    }
}

void
tr_ring_client_abort(tr_ring_client_t *c, uint64_t id)
{
    client_command(c, id, TR_CONTROL_ABORT, 0);
}

void
tr_ring_client_pause(tr_ring_client_t *c, uint64_t id)
{
    client_command(c, id, TR_CONTROL_PAUSE, 0);
}

void
tr_ring_client_resume(tr_ring_client_t *c, uint64_t id)
{
    client_command(c, id, 0, TR_CONTROL_PAUSE);
}

static void
client_publish(tr_ring_client_t *c)
{
    if (tr_ring_publish(&c->requests)) {
        tr_doorbell_ring(c->bell_engine);
    }
}

/* Stages one SUBMIT part, waiting for its space. */
static tr_status_t
client_put(tr_ring_client_t *c, uint16_t flags, uint64_t id,
           const tr_ring_piece_t *pieces, unsigned n, uint64_t deadline,
           tr_error_t *err)
{
    tr_status_t rc;

    for (;;) {
        rc = tr_ring_put(&c->requests, TR_RECORD_SUBMIT, flags, id, pieces, n);
        if (rc == TR_OK) {
            return TR_OK;
        }
        if (rc == TR_AGAIN) {
            rc = tr_ring_wait_space(&c->requests,
                                    (uint32_t) (pieces[0].len
                                                + (n > 1 ? pieces[1].len : 0)));
        }
        if (rc == TR_OK) {
            continue;
        }
        if (rc != TR_AGAIN) {
            return client_violated(err, "impossible index in the request "
                                        "ring");
        }
        rc = client_wait(c, deadline, err);
        if (rc == TR_ERR_PROTOCOL) {
            return rc;
        }
        if (c->hung_up) {
            return client_closed(err);
        }
        if (rc == TR_AGAIN && client_left_ms(deadline) == 0) {
            return tr_error_set(err, TR_ERR_TIMEOUT, "",
                                "the engine took no more of the request's "
                                "body in time");
        }
        tr_doorbell_drain(c->bell_peer);
        c->drained = true;
    }
}

/* Sends head and body.  *parts: how many the engine may have seen. */
static tr_status_t
client_send(tr_ring_client_t *c, uint64_t id, const tr_wire_submit_t *head,
            const uint8_t *body, size_t left, uint64_t deadline,
            unsigned *parts, tr_error_t *err)
{
    uint32_t max = tr_ring_max_payload(c->requests.capacity);
    tr_status_t rc;

    *parts = 0;
    do {
        size_t room = *parts == 0 ? max - sizeof(*head) : max;
        size_t n = left < room ? left : room;
        tr_ring_piece_t pieces[2] = { { head, sizeof(*head) }, { body, n } };
        unsigned skip = *parts == 0 ? 0 : 1;

        rc = client_put(c, n < left ? TR_FLAG_MORE : 0, id, pieces + skip,
                        2 - skip, deadline, err);
        if (rc != TR_OK) {
            return rc;
        }
        client_publish(c); /* the engine drains while we fill */
        (*parts)++;
        if (n != 0) {
            body += n;
            left -= n;
        }
    } while (left != 0);
    return TR_OK;
}

static tr_status_t
client_head(tr_wire_submit_t *head, uint16_t endpoint, const char *request_id,
            size_t body_len, tr_error_t *err)
{
    size_t i, n = request_id != NULL ? strlen(request_id) : 0;

    if (tr_endpoint_info(endpoint) == NULL) {
        return tr_error_set(err, TR_ERR_INVALID, "", "unknown endpoint %u",
                            endpoint);
    }
    if (n > TR_REQUEST_ID_MAX) {
        return tr_error_set(err, TR_ERR_INVALID, "request_id",
                            "request id has %zu bytes, at most %d are allowed",
                            n, TR_REQUEST_ID_MAX);
    }
    for (i = 0; i < n; i++) {
        if (request_id[i] < 0x21 || request_id[i] > 0x7e) {
            return tr_error_set(err, TR_ERR_INVALID, "request_id",
                                "request id has byte 0x%02x at %zu, only "
                                "printable ASCII is allowed",
                                (unsigned char) request_id[i], i);
        }
    }
    memset(head, 0, sizeof(*head));
    head->endpoint = endpoint;
    head->request_id_len = (uint32_t) n;
    head->body_len = body_len;
    head->received_us = client_now_us();
    if (n != 0) {
        memcpy(head->request_id, request_id, n);
    }
    return TR_OK;
}

tr_status_t
tr_ring_client_submit(tr_ring_client_t *c, uint16_t endpoint,
                      const char *request_id, const void *body, size_t body_len,
                      int timeout_ms, uint64_t *id, tr_error_t *err)
{
    tr_wire_submit_t head;
    client_slot_t *s;
    unsigned parts;
    tr_status_t rc;
    uint32_t slot;

    rc = client_head(&head, endpoint, request_id, body_len, err);
    if (rc != TR_OK) {
        return rc;
    }
    if (c->n_free == 0) {
        return tr_error_set(err, TR_AGAIN, "",
                            "all %u slots of the channel are in flight",
                            c->map.slots);
    }
    slot = c->free_slots[--c->n_free];
    s = &c->slots[slot];
    s->state = SLOT_LIVE;
    c->n_live++;
    *id = TR_ID(slot, s->generation);
    rc = client_send(c, *id, &head, body, body_len, client_deadline(timeout_ms),
                     &parts, err);
    if (rc != TR_OK) {
        c->n_live--;
        if (parts == 0) {
            client_slot_free(c, slot);
        } else {
            tr_ring_client_abort(c, *id);
            s->state = SLOT_ABANDONED;
        }
    }
    if (c->drained) {
        c->drained = false;
        tr_doorbell_ring(c->bell_peer);
    }
    return rc;
}

/* ---- events ------------------------------------------------------------- */

static tr_status_t
client_parse(tr_ring_client_t *c, const tr_record_t *rec,
             tr_ring_event_t *event)
{
    memset(event, 0, sizeof(*event));
    event->id = rec->id;
    event->type = rec->type;
    switch (rec->type) {
    case TR_RECORD_ACCEPTED:
        return tr_wire_accepted_parse(c->buf, rec->length,
                                      &event->head.accepted, &event->text,
                                      &event->param);
    case TR_RECORD_STARTED:
        return tr_wire_started_parse(c->buf, rec->length, &event->head.started);
    case TR_RECORD_DELTA:
        return tr_wire_delta_parse(c->buf, rec->length, &event->head.delta,
                                   &event->text, &event->logprobs, NULL);
    case TR_RECORD_ITEM:
        return tr_wire_item_parse(c->buf, rec->length, &event->head.item,
                                  &event->param, &event->text);
    case TR_RECORD_RESULT:
        return tr_wire_result_parse(c->buf, rec->length, &event->head.result,
                                    &event->text);
    case TR_RECORD_KV:
        return tr_wire_kv_parse(c->buf, rec->length, &event->head.kv);
    case TR_RECORD_FINISH:
        if (tr_wire_finish_parse(c->buf, rec->length, &event->head.finish, NULL)
            != TR_OK) {
            return TR_ERR_PROTOCOL;
        }
        event->last = (event->head.finish.flags & TR_FINISH_LAST) != 0;
        return TR_OK;
    case TR_RECORD_ERROR:
        event->last = true;
        return tr_wire_error_parse(c->buf, rec->length, &event->head.error,
                                   &event->param, &event->text);
    default:
        return TR_ERR_PROTOCOL;
    }
}

/* TR_OK: *event is the caller's; TR_AGAIN: the record was for a dead id. */
static tr_status_t
client_take(tr_ring_client_t *c, const tr_record_t *rec, tr_ring_event_t *event,
            tr_error_t *err)
{
    client_slot_t *s = client_slot(c, rec->id);
    bool live;

    if (client_parse(c, rec, event) != TR_OK) {
        return tr_error_set(err, TR_ERR_PROTOCOL, "",
                            "the engine broke the ring protocol: bad record "
                            "of type %u, %u bytes",
                            rec->type, rec->length);
    }
    if (s == NULL) {
        return TR_AGAIN;
    }
    live = s->state == SLOT_LIVE;
    if (event->last) {
        if (live) {
            c->n_live--;
        }
        client_slot_free(c, TR_ID_SLOT(rec->id));
    }
    return live ? TR_OK : TR_AGAIN;
}

tr_status_t
tr_ring_client_poll(tr_ring_client_t *c, int timeout_ms, tr_ring_event_t *event,
                    tr_error_t *err)
{
    uint64_t deadline = client_deadline(timeout_ms);
    bool waited = false;
    tr_record_t rec;
    tr_status_t rc;

    for (;;) {
        rc = tr_inbox_get(&c->inbox, &rec, c->buf, c->buf_size);
        if (rc == TR_OK) {
            /* the payload is copied: its space can go back at once */
            if (tr_inbox_release(&c->inbox)) {
                tr_doorbell_ring(c->bell_engine);
            }
            rc = client_take(c, &rec, event, err);
            if (rc == TR_AGAIN) {
                continue;
            }
            return rc;
        }
        if (rc == TR_AGAIN) {
            if (tr_inbox_release(&c->inbox)) { /* a PAD */
                tr_doorbell_ring(c->bell_engine);
            }
            tr_doorbell_drain(c->bell_peer);
            rc = tr_inbox_sleep(&c->inbox);
        }
        if (rc == TR_OK) {
            continue;
        }
        if (rc != TR_AGAIN) {
            return client_violated(err, "impossible index or record in a "
                                        "ring");
        }
        if (c->hung_up) {
            return client_closed(err);
        }
        if (waited && client_left_ms(deadline) == 0) {
            return TR_AGAIN;
        }
        rc = client_wait(c, deadline, err);
        if (rc != TR_OK) {
            return rc;
        }
        waited = true;
    }
}

/* ---- looking ------------------------------------------------------------ */

int
tr_ring_client_fd(const tr_ring_client_t *c)
{
    return c->epoll;
}

uint32_t
tr_ring_client_in_flight(const tr_ring_client_t *c)
{
    return c->n_live;
}

uint32_t
tr_ring_client_slots(const tr_ring_client_t *c)
{
    return c->map.slots;
}

uint64_t
tr_ring_client_generation(const tr_ring_client_t *c)
{
    return c->map.generation;
}

const tr_status_page_t *
tr_ring_client_status(const tr_ring_client_t *c)
{
    return c->status;
}

void
tr_ring_client_admission(tr_ring_client_t *c, tr_status_admission_t *out)
{
    tr_status_read(c->status, &c->admission);
    *out = c->admission;
}
