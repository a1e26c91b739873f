/*
 * Worker connections: connecting, turns, closing (worker_connection.h).
 *
 * The doorbell that a worker rings is watched edge-triggered and never read:
 * its open file description is shared, so the worker could empty it or make it
 * blocking between our poll and our read.
 */
#include "worker_connection.h"

#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#include "engine/config/log.h"

#define HELLO_TIMEOUT_US 5000000u

static int
watch(tr_frontend_env_t *env, int fd, uint32_t events, tr_source_t *on)
{
    struct epoll_event ev = { .events = events, .data.ptr = on };

    return epoll_ctl(env->epoll, EPOLL_CTL_ADD, fd, &ev);
}

static void
close_fd(tr_connection_t *c, int *fd)
{
    if (*fd != -1) {
        /* closing is not enough: the worker holds the same description */
        epoll_ctl(c->env->epoll, EPOLL_CTL_DEL, *fd, NULL);
        close(*fd);
        *fd = -1;
    }
}

static const char *
role_name(uint32_t role)
{
    return role == TR_ROLE_WORKER ? "worker"
           : role == TR_ROLE_CLI  ? "cli"
                                  : "unknown";
}

static bool
uid_allowed(const tr_config_t *config, uid_t uid)
{
    uint32_t i;

    for (i = 0; i < config->n_allow_uids; i++) {
        if (config->allow_uids[i] == uid) {
            return true;
        }
    }
    return config->n_allow_uids == 0;
}

tr_status_t
tr_connection_violation(tr_connection_t *c, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    vsnprintf(c->reason, sizeof(c->reason), format, args);
    va_end(args);
    return TR_ERR_PROTOCOL;
}

void
tr_connection_sealed(tr_connection_t *c)
{
    if (c->channel_fd != -1) {
        close(c->channel_fd);
        c->channel_fd = -1;
    }
}

/* ---- connecting --------------------------------------------------------- */

tr_connection_t *
tr_connection_new(tr_frontend_env_t *env, int sock, const tr_credentials_t *who,
                  uint32_t number)
{
    tr_connection_t *c;
    tr_welcome_t no;
    char why[TR_WELCOME_MESSAGE];

    if (!uid_allowed(env->config, who->uid)) {
        snprintf(why, sizeof(why), "user %u is not in allow_uids", who->uid);
        tr_log(TR_LEVEL_WARN, "connection refused pid=%ld uid=%u reason=\"%s\"",
               (long) who->pid, who->uid, why);
        tr_welcome_refuse(&no, why);
        tr_fds_send(sock, &no, sizeof(no), NULL, 0);
        close(sock);
        return NULL;
    }
    c = calloc(1, sizeof(*c));
    if (c == NULL) {
        close(sock);
        return NULL;
    }
    c->env = env;
    c->state = TR_CONNECTION_HELLO;
    c->number = number;
    c->who = *who;
    c->connected_us = env->now_us;
    c->sock = sock;
    c->channel_fd = c->bell_in = c->bell_out = -1;
    c->on_sock = (tr_source_t){ TR_SOURCE_SOCKET, c };
    c->on_bell = (tr_source_t){ TR_SOURCE_BELL, c };
    if (watch(env, sock, EPOLLIN | EPOLLRDHUP, &c->on_sock) != 0) {
        tr_log(TR_LEVEL_ERROR, "cannot watch a connection error=\"%s\"",
               strerror(errno));
        close(sock);
        free(c);
        return NULL;
    }
    return c;
}

/* Ring sizes: what the worker asks for, within what the configuration allows.
 * The ring of responses is all there is between the step loop and the worker:
 * it is large by default, and holds at least the largest record of the loop. */
static uint32_t
ring_size(const tr_config_t *config, uint32_t wanted, uint32_t otherwise,
          uint32_t least)
{
    uint32_t n = wanted == 0 ? otherwise : wanted;

    if (n > config->channel_ring) {
        n = config->channel_ring;
    }
    return n < least ? least : n;
}

/* Makes what an open connection needs. */
static tr_status_t
make_channel(tr_connection_t *c)
{
    const tr_config_t *config = c->env->config;
    tr_status_t rc;

    rc = tr_channel_create(c->hello.slots,
                           ring_size(config, c->hello.request_ring,
                                     TR_CHANNEL_RING_DEFAULT, TR_RING_MIN),
                           ring_size(config, c->hello.response_ring,
                                     config->channel_ring,
                                     TR_RESPONSE_WRITER_MIN),
                           c->env->status->generation, &c->map, &c->channel_fd);
    if (rc != TR_OK) {
        return rc;
    }
    c->n_slots = c->map.slots;
    c->features = tr_features(c->hello.features);
    c->slots = calloc(c->n_slots, sizeof(*c->slots));
    c->bell_in = tr_doorbell_create();
    c->bell_out = tr_doorbell_create();
    if (c->slots == NULL || c->bell_in == -1 || c->bell_out == -1
        || tr_response_writer_init(&c->writer, c->map.response,
                                   c->map.response_data,
                                   c->map.response_capacity, c->bell_out,
                                   c->env->wake_fd)
               != TR_OK) {
        return TR_ERR_NOMEM;
    }
    c->writer.channel = &c->map;
    tr_ring_consumer_init(&c->requests, c->map.request, c->map.request_data,
                          c->map.request_capacity);
    tr_ring_producer_init(&c->answers, c->map.answer, c->map.answer_data,
                          c->map.answer_capacity);
    return TR_OK;
}

static void
open_channel(tr_connection_t *c, tr_welcome_t *welcome)
{
    tr_status_t rc = make_channel(c);
    int fds[TR_CHANNEL_FDS];
    int sent;

    fds[TR_FD_CHANNEL] = c->channel_fd;
    fds[TR_FD_TO_ENGINE] = c->bell_in;
    fds[TR_FD_TO_PEER] = c->bell_out;
    fds[TR_FD_STATUS] = c->env->status_fd;
    if (rc == TR_OK
        && watch(c->env, c->bell_in, EPOLLIN | EPOLLET, &c->on_bell) != 0) {
        rc = TR_ERR_IO;
    }
    if (rc != TR_OK) {
        tr_welcome_refuse(welcome, "the engine is out of memory or file "
                                   "descriptors");
    }
    sent = tr_fds_send(c->sock, welcome, sizeof(*welcome), fds,
                       rc == TR_OK ? TR_CHANNEL_FDS : 0);
    if (rc != TR_OK) {
        tr_connection_close(c, TR_LEVEL_ERROR,
                            "no memory or descriptors for a "
                            "channel");
        return;
    }
    if (sent != 0) {
        tr_connection_close(c, TR_LEVEL_INFO, "hung up before the welcome");
        return;
    }
    c->state = TR_CONNECTION_OPEN;
    c->in_ready = true; /* look once, then sleep */
    atomic_fetch_add(&c->env->status->counters.channels_opened, 1);
    tr_log(TR_LEVEL_INFO,
           "channel opened channel=%u role=%s pid=%ld uid=%u "
           "slots=%u request_ring=%u response_ring=%u",
           c->number, role_name(c->hello.role), (long) c->who.pid, c->who.uid,
           c->map.slots, c->map.request_capacity, c->map.response_capacity);
}

/* The hello may come in pieces; whatever follows it is a violation. */
static void
read_hello(tr_connection_t *c)
{
    uint8_t *at = (uint8_t *) &c->hello;
    tr_welcome_t welcome;
    ssize_t n;

    n = recv(c->sock, at + c->hello_len, sizeof(c->hello) - c->hello_len,
             MSG_DONTWAIT);
    if (n == -1 && (errno == EAGAIN || errno == EINTR)) {
        return;
    }
    if (n <= 0) {
        tr_connection_close(c, TR_LEVEL_INFO, "hung up before the hello");
        return;
    }
    c->hello_len += (size_t) n;
    if (c->hello_len < sizeof(c->hello)) {
        return;
    }
    if (tr_hello_answer(&c->hello, c->env->status->generation, &welcome)
            == TR_OK
        && tr_connection_drain_request(c, &welcome) == TR_OK) {
        open_channel(c, &welcome);
        return;
    }
    tr_fds_send(c->sock, &welcome, sizeof(welcome), NULL, 0);
    tr_connection_close(c, TR_LEVEL_WARN, welcome.message);
}

void
tr_connection_on_socket(tr_connection_t *c)
{
    char byte;
    ssize_t n;

    if (c->state == TR_CONNECTION_HELLO) {
        read_hello(c);
        return;
    }
    if (c->state != TR_CONNECTION_OPEN) {
        return;
    }
    n = recv(c->sock, &byte, 1, MSG_DONTWAIT);
    if (n == -1 && (errno == EAGAIN || errno == EINTR)) {
        return;
    }
    if (n > 0) {
        atomic_fetch_add(&c->env->status->counters.channel_errors, 1);
        tr_connection_close(c, TR_LEVEL_WARN,
                            "data on the socket after the hello");
    } else {
        tr_connection_close(c, TR_LEVEL_INFO, "hung up");
    }
}

/* ---- turns -------------------------------------------------------------- */

/* One doorbell says all: records, commands, room in a ring. */
void
tr_connection_on_bell(tr_connection_t *c)
{
    if (c->state == TR_CONNECTION_OPEN) {
        c->in_ready = true;
        c->blocked = false;
        if (atomic_exchange(&c->writer.waits, 0) != 0) {
            c->env->wake_loop = true;
        }
    }
}

/* What the step loop has to say about the ring of responses. */
static tr_status_t
look_at_writer(tr_connection_t *c)
{
    uint64_t head;

    switch (atomic_load(&c->writer.broken)) {
    case TR_RESPONSE_WRITER_SOUND:
        break;
    case TR_RESPONSE_WRITER_BAD_BELL:
        return tr_connection_violation(c, "its doorbell cannot be rung");
    default:
        return tr_connection_violation(c, "impossible index in its ring of "
                                          "responses");
    }
    head = atomic_load(&c->map.response->head);
    if (c->full_since_us != 0 && head != c->full_head) {
        c->full_since_us = 0;
    }
    if (c->full_since_us == 0 && atomic_load(&c->writer.waits) != 0
        && head != atomic_load(&c->map.response->tail)) {
        c->full_since_us = c->env->now_us;
        c->full_head = head;
    }
    return TR_OK;
}

/* Answers a ping: for this thread at once, for the loop when it has come round
 * to its next turn; pings that come meanwhile get that answer, too. */
static void
answer_ping(tr_connection_t *c)
{
    tr_loop_t *loop = c->env->loop;

    if (loop == NULL) {
        return;
    }
    if (tr_channel_pinged(&c->map) && c->beat == 0) {
        c->beat = tr_loop_ask(loop);
    }
    if (c->beat != 0 && tr_loop_beat(loop) >= c->beat) {
        tr_channel_pong(&c->map);
        c->beat = 0;
    }
}

/* True when the connection must be closed, and c->reason says why. */
static bool
ring_worker(tr_connection_t *c, tr_status_t rc)
{
    if (tr_ring_publish(&c->answers)) {
        c->ring = true;
    }
    if (c->ring) {
        c->ring = false;
        if (!tr_bell_ring(&c->env->bell, c->bell_out) && rc == TR_OK) {
            rc = tr_connection_violation(c, "its doorbell cannot be rung");
        }
    }
    return rc != TR_OK;
}

bool
tr_connection_turn(tr_connection_t *c)
{
    tr_status_t rc;

    if (c->state != TR_CONNECTION_OPEN) {
        return false;
    }
    rc = look_at_writer(c);
    answer_ping(c);
    if (rc == TR_OK && c->in_ready) {
        rc = tr_connection_take_commands(c);
        if (rc == TR_OK) {
            rc = tr_connection_take_requests(c);
        }
    }
    if (rc == TR_OK && !c->blocked && c->replies != NULL) {
        rc = tr_connection_send(c);
    }
    if (ring_worker(c, rc)) {
        atomic_fetch_add(&c->env->status->counters.channel_errors, 1);
        tr_connection_close(c, TR_LEVEL_WARN,
                            c->reason[0] ? c->reason
                                         : "impossible ring index or "
                                           "record");
        return false;
    }
    return c->in_ready || (!c->blocked && c->replies != NULL);
}

uint64_t
tr_connection_deadline(const tr_connection_t *c)
{
    uint64_t since;

    if (c->state == TR_CONNECTION_HELLO) {
        return c->connected_us + HELLO_TIMEOUT_US;
    }
    if (c->state != TR_CONNECTION_OPEN) {
        return UINT64_MAX;
    }
    since = c->blocked ? c->blocked_since_us : 0;
    if (c->full_since_us != 0 && (since == 0 || c->full_since_us < since)) {
        since = c->full_since_us;
    }
    return since != 0 ? since + c->env->config->channel_stall_timeout_us
                      : UINT64_MAX;
}

void
tr_connection_on_deadline(tr_connection_t *c)
{
    if (c->state == TR_CONNECTION_OPEN) {
        (void) look_at_writer(c); /* it may have taken something just now */
        if (c->env->now_us < tr_connection_deadline(c)) {
            return;
        }
    }
    tr_connection_close(c, TR_LEVEL_WARN,
                        c->state == TR_CONNECTION_HELLO ? "no hello in time"
                                                        : "reads no output");
}

/* ---- closing ------------------------------------------------------------ */

/* Who was submitted to go on without its channel, goes on, unless it goes on at
 * another engine.  What the worker said last, which requests stay here, counts:
 * it may have said it while this engine stood still. */
static void
abort_requests(tr_connection_t *c)
{
    bool fenced = tr_channel_fenced(&c->map);
    uint32_t i;

    if (c->n_requests != 0) {
        (void) tr_connection_take_commands(c);
    }
    c->replies = c->replies_tail = NULL; /* each is in its slot, too */
    for (i = 0; i < c->n_slots && c->n_requests != 0; i++) {
        tr_request_slot_t *s = &c->slots[i];

        if (s->request == NULL) {
            continue;
        }
        if (fenced && (s->request->submit_flags & TR_SUBMIT_IDS) != 0
            && !tr_request_stays(s->request)) {
            atomic_store(&s->request->gone, 1);
        } else if ((s->request->submit_flags & TR_SUBMIT_DETACH)
                   && (s->state != TR_SLOT_GATHERING
                       || s->request->held_us != 0)) {
            /* nobody allows it more */
            atomic_fetch_or(&s->request->control, TR_CONTROL_END);
            tr_connection_detach(c, s);
            continue;
        }
        atomic_fetch_or(&s->request->control, TR_CONTROL_ABORT);
        if (s->state == TR_SLOT_GATHERING || s->state == TR_SLOT_REPLY) {
            atomic_fetch_add(&c->env->status->counters.requests_aborted, 1);
            tr_connection_end(c, s);
        } else if (s->state == TR_SLOT_RUNNING) {
            c->env->wake_loop = true;
        }
    }
}

void
tr_connection_close(tr_connection_t *c, int level, const char *why)
{
    if (c->state == TR_CONNECTION_CLOSING) {
        return;
    }
    tr_log(level,
           "channel closed channel=%u role=%s pid=%ld uid=%u "
           "requests=%u reason=\"%s\"",
           c->number, role_name(c->hello.role), (long) c->who.pid, c->who.uid,
           c->n_requests, why);
    if (c->state == TR_CONNECTION_OPEN) {
        atomic_fetch_add(&c->env->status->counters.channels_closed, 1);
    }
    c->state = TR_CONNECTION_CLOSING;
    close_fd(c, &c->sock);
    close_fd(c, &c->bell_in);
    tr_connection_sealed(c);
    tr_response_writer_close(&c->writer);
    abort_requests(c);
}

void
tr_connection_free(tr_connection_t *c)
{
    uint32_t i;

    tr_response_writer_free(&c->writer); /* the step loop is out */
    close_fd(c, &c->sock);
    close_fd(c, &c->bell_in);
    close_fd(c, &c->bell_out);
    tr_connection_sealed(c);
    tr_channel_unmap(&c->map);
    for (i = 0; i < c->n_slots && c->n_requests != 0; i++) {
        /* the parser frees its own when it stops */
        if (c->slots[i].request != NULL
            && c->slots[i].state != TR_SLOT_PARSING) {
            tr_connection_end(c, &c->slots[i]);
        }
    }
    free(c->slots);
    free(c);
}
