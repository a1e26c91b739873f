/*
 * Peers: connecting, turns, closing (peer.h).
 *
 * The doorbell that a peer rings is watched edge-triggered and never read: its
 * open file description is shared, so the peer could empty it or make it
 * blocking between our poll and our read.
 */
#include "peer.h"

#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#include "engine/config/log.h"

#define HELLO_TIMEOUT_US 5000000u

static int
watch(tr_peer_env_t *env, int fd, uint32_t events, tr_source_t *on)
{
    struct epoll_event ev = { .events = events, .data.ptr = on };

    return epoll_ctl(env->epoll, EPOLL_CTL_ADD, fd, &ev);
}

static void
close_fd(tr_peer_t *p, int *fd)
{
    if (*fd != -1) {
        /* closing is not enough: the peer holds the same description */
        epoll_ctl(p->env->epoll, EPOLL_CTL_DEL, *fd, NULL);
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
tr_peer_violation(tr_peer_t *p, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    vsnprintf(p->reason, sizeof(p->reason), format, args);
    va_end(args);
    return TR_ERR_PROTOCOL;
}

/* ---- connecting --------------------------------------------------------- */

tr_peer_t *
tr_peer_new(tr_peer_env_t *env, int sock, const tr_peer_credentials_t *who,
            uint32_t number)
{
    tr_peer_t *p;
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
    p = calloc(1, sizeof(*p));
    if (p == NULL) {
        close(sock);
        return NULL;
    }
    p->env = env;
    p->state = TR_PEER_HELLO;
    p->number = number;
    p->who = *who;
    p->connected_us = env->now_us;
    p->sock = sock;
    p->bell_in = p->bell_out = -1;
    p->on_sock = (tr_source_t){ TR_SOURCE_SOCKET, p };
    p->on_bell = (tr_source_t){ TR_SOURCE_BELL, p };
    if (watch(env, sock, EPOLLIN | EPOLLRDHUP, &p->on_sock) != 0) {
        tr_log(TR_LEVEL_ERROR, "cannot watch a connection error=\"%s\"",
               strerror(errno));
        close(sock);
        free(p);
        return NULL;
    }
    return p;
}

/* Ring sizes: what the peer wishes within what the configuration allows.  The
 * ring of responses is all there is between the step loop and the peer: it is
 * large by default, and holds at least the largest record of the loop. */
static uint32_t
ring_size(const tr_config_t *config, uint32_t wish, uint32_t otherwise,
          uint32_t least)
{
    uint32_t n = wish == 0 ? otherwise : wish;

    if (n > config->channel_ring) {
        n = config->channel_ring;
    }
    return n < least ? least : n;
}

/* Makes what an open peer needs; *channel_fd is the caller's to close. */
static tr_status_t
make_channel(tr_peer_t *p, int *channel_fd)
{
    const tr_config_t *config = p->env->config;
    tr_status_t rc;

    rc = tr_channel_create(p->hello.slots,
                           ring_size(config, p->hello.request_ring,
                                     TR_CHANNEL_RING_DEFAULT, TR_RING_MIN),
                           ring_size(config, p->hello.response_ring,
                                     config->channel_ring,
                                     TR_RESPONSE_WRITER_MIN),
                           p->env->status->generation, &p->map, channel_fd);
    if (rc != TR_OK) {
        return rc;
    }
    p->n_slots = p->map.slots;
    p->slots = calloc(p->n_slots, sizeof(*p->slots));
    p->bell_in = tr_doorbell_create();
    p->bell_out = tr_doorbell_create();
    if (p->slots == NULL || p->bell_in == -1 || p->bell_out == -1
        || tr_response_writer_init(&p->writer, p->map.response,
                                   p->map.response_data,
                                   p->map.response_capacity, p->bell_out,
                                   p->env->wake_fd)
               != TR_OK) {
        return TR_ERR_NOMEM;
    }
    tr_ring_consumer_init(&p->requests, p->map.request, p->map.request_data,
                          p->map.request_capacity);
    tr_ring_producer_init(&p->answers, p->map.answer, p->map.answer_data,
                          p->map.answer_capacity);
    return TR_OK;
}

static void
open_channel(tr_peer_t *p, tr_welcome_t *welcome)
{
    int fds[TR_CHANNEL_FDS] = { -1, -1, -1, -1 };
    tr_status_t rc = make_channel(p, &fds[TR_FD_CHANNEL]);
    int sent;

    fds[TR_FD_TO_ENGINE] = p->bell_in;
    fds[TR_FD_TO_PEER] = p->bell_out;
    fds[TR_FD_STATUS] = p->env->status_fd;
    if (rc == TR_OK
        && watch(p->env, p->bell_in, EPOLLIN | EPOLLET, &p->on_bell) != 0) {
        rc = TR_ERR_IO;
    }
    if (rc != TR_OK) {
        tr_welcome_refuse(welcome, "the engine is out of memory or file "
                                   "descriptors");
    }
    sent = tr_fds_send(p->sock, welcome, sizeof(*welcome), fds,
                       rc == TR_OK ? TR_CHANNEL_FDS : 0);
    if (fds[TR_FD_CHANNEL] != -1) {
        close(fds[TR_FD_CHANNEL]);
    }
    if (rc != TR_OK) {
        tr_peer_close(p, TR_LEVEL_ERROR,
                      "no memory or descriptors for a "
                      "channel");
        return;
    }
    if (sent != 0) {
        tr_peer_close(p, TR_LEVEL_INFO, "hung up before the welcome");
        return;
    }
    p->state = TR_PEER_OPEN;
    p->in_ready = true; /* look once, then sleep */
    atomic_fetch_add(&p->env->status->counters.channels_opened, 1);
    tr_log(TR_LEVEL_INFO,
           "channel opened channel=%u peer=%s pid=%ld uid=%u "
           "slots=%u request_ring=%u response_ring=%u",
           p->number, role_name(p->hello.role), (long) p->who.pid, p->who.uid,
           p->map.slots, p->map.request_capacity, p->map.response_capacity);
}

/* The hello may come in pieces; whatever follows it is a violation. */
static void
read_hello(tr_peer_t *p)
{
    uint8_t *at = (uint8_t *) &p->hello;
    tr_welcome_t welcome;
    ssize_t n;

    n = recv(p->sock, at + p->hello_len, sizeof(p->hello) - p->hello_len,
             MSG_DONTWAIT);
    if (n == -1 && (errno == EAGAIN || errno == EINTR)) {
        return;
    }
    if (n <= 0) {
        tr_peer_close(p, TR_LEVEL_INFO, "hung up before the hello");
        return;
    }
    p->hello_len += (size_t) n;
    if (p->hello_len < sizeof(p->hello)) {
        return;
    }
    if (tr_hello_answer(&p->hello, p->env->status->generation, &welcome)
            == TR_OK
        && tr_peer_wish(p, &welcome) == TR_OK) {
        open_channel(p, &welcome);
        return;
    }
    tr_fds_send(p->sock, &welcome, sizeof(welcome), NULL, 0);
    tr_peer_close(p, TR_LEVEL_WARN, welcome.message);
}

void
tr_peer_on_socket(tr_peer_t *p)
{
    char byte;
    ssize_t n;

    if (p->state == TR_PEER_HELLO) {
        read_hello(p);
        return;
    }
    if (p->state != TR_PEER_OPEN) {
        return;
    }
    n = recv(p->sock, &byte, 1, MSG_DONTWAIT);
    if (n == -1 && (errno == EAGAIN || errno == EINTR)) {
        return;
    }
    if (n > 0) {
        atomic_fetch_add(&p->env->status->counters.channel_errors, 1);
        tr_peer_close(p, TR_LEVEL_WARN, "data on the socket after the hello");
    } else {
        tr_peer_close(p, TR_LEVEL_INFO, "peer hung up");
    }
}

/* ---- turns -------------------------------------------------------------- */

/* One doorbell says all: records, wishes, room in a ring. */
void
tr_peer_on_bell(tr_peer_t *p)
{
    if (p->state == TR_PEER_OPEN) {
        p->in_ready = true;
        p->blocked = false;
        if (atomic_exchange(&p->writer.waits, 0) != 0) {
            p->env->wake_loop = true;
        }
    }
}

/* What the step loop has to say about the ring of responses. */
static tr_status_t
look_at_writer(tr_peer_t *p)
{
    uint64_t head;

    switch (atomic_load(&p->writer.broken)) {
    case TR_RESPONSE_WRITER_SOUND:
        break;
    case TR_RESPONSE_WRITER_BAD_BELL:
        return tr_peer_violation(p, "its doorbell does not take a ring");
    default:
        return tr_peer_violation(p, "impossible index in its ring of "
                                    "responses");
    }
    head = atomic_load(&p->map.response->head);
    if (p->full_since_us != 0 && head != p->full_head) {
        p->full_since_us = 0;
    }
    if (p->full_since_us == 0 && atomic_load(&p->writer.waits) != 0
        && head != atomic_load(&p->map.response->tail)) {
        p->full_since_us = p->env->now_us;
        p->full_head = head;
    }
    return TR_OK;
}

/* True when the peer must be closed, and p->reason says why. */
static bool
ring_peer(tr_peer_t *p, tr_status_t rc)
{
    if (tr_ring_publish(&p->answers)) {
        p->ring = true;
    }
    if (p->ring) {
        p->ring = false;
        if (!tr_bell_ring(&p->env->bell, p->bell_out) && rc == TR_OK) {
            rc = tr_peer_violation(p, "its doorbell does not take a ring");
        }
    }
    return rc != TR_OK;
}

bool
tr_peer_turn(tr_peer_t *p)
{
    tr_status_t rc;

    if (p->state != TR_PEER_OPEN) {
        return false;
    }
    rc = look_at_writer(p);
    if (rc == TR_OK && p->in_ready) {
        rc = tr_peer_take_wishes(p);
        if (rc == TR_OK) {
            rc = tr_peer_take_requests(p);
        }
    }
    if (rc == TR_OK && !p->blocked && p->replies != NULL) {
        rc = tr_peer_send(p);
    }
    if (ring_peer(p, rc)) {
        atomic_fetch_add(&p->env->status->counters.channel_errors, 1);
        tr_peer_close(p, TR_LEVEL_WARN,
                      p->reason[0] ? p->reason
                                   : "impossible ring index or "
                                     "record");
        return false;
    }
    return p->in_ready || (!p->blocked && p->replies != NULL);
}

uint64_t
tr_peer_deadline(const tr_peer_t *p)
{
    uint64_t since;

    if (p->state == TR_PEER_HELLO) {
        return p->connected_us + HELLO_TIMEOUT_US;
    }
    if (p->state != TR_PEER_OPEN) {
        return UINT64_MAX;
    }
    since = p->blocked ? p->blocked_since_us : 0;
    if (p->full_since_us != 0 && (since == 0 || p->full_since_us < since)) {
        since = p->full_since_us;
    }
    return since != 0 ? since + p->env->config->channel_stall_timeout_us
                      : UINT64_MAX;
}

void
tr_peer_on_deadline(tr_peer_t *p)
{
    if (p->state == TR_PEER_OPEN) {
        (void) look_at_writer(p); /* it may have taken something just now */
        if (p->env->now_us < tr_peer_deadline(p)) {
            return;
        }
    }
    tr_peer_close(p, TR_LEVEL_WARN,
                  p->state == TR_PEER_HELLO ? "no hello in time"
                                            : "takes no output");
}

/* ---- closing ------------------------------------------------------------ */

/* Who was submitted to go on without its channel, goes on. */
static void
abort_requests(tr_peer_t *p)
{
    uint32_t i;

    p->replies = p->replies_tail = NULL; /* each is in its slot, too */
    for (i = 0; i < p->n_slots && p->n_requests != 0; i++) {
        tr_peer_slot_t *s = &p->slots[i];

        if (s->request == NULL) {
            continue;
        }
        if ((s->request->submit_flags & TR_SUBMIT_DETACH)
            && s->state != TR_SLOT_GATHERING) {
            tr_peer_detach(p, s);
            continue;
        }
        atomic_fetch_or(&s->request->control, TR_CONTROL_ABORT);
        if (s->state == TR_SLOT_GATHERING || s->state == TR_SLOT_REPLY) {
            atomic_fetch_add(&p->env->status->counters.requests_aborted, 1);
            tr_peer_end(p, s);
        } else if (s->state == TR_SLOT_RUNNING) {
            p->env->wake_loop = true;
        }
    }
}

void
tr_peer_close(tr_peer_t *p, int level, const char *why)
{
    if (p->state == TR_PEER_CLOSING) {
        return;
    }
    tr_log(level,
           "channel closed channel=%u peer=%s pid=%ld uid=%u "
           "requests=%u reason=\"%s\"",
           p->number, role_name(p->hello.role), (long) p->who.pid, p->who.uid,
           p->n_requests, why);
    if (p->state == TR_PEER_OPEN) {
        atomic_fetch_add(&p->env->status->counters.channels_closed, 1);
    }
    p->state = TR_PEER_CLOSING;
    close_fd(p, &p->sock);
    close_fd(p, &p->bell_in);
    tr_response_writer_close(&p->writer);
    abort_requests(p);
}

void
tr_peer_free(tr_peer_t *p)
{
    uint32_t i;

    tr_response_writer_free(&p->writer); /* the step loop is out */
    close_fd(p, &p->sock);
    close_fd(p, &p->bell_in);
    close_fd(p, &p->bell_out);
    tr_channel_unmap(&p->map);
    for (i = 0; i < p->n_slots && p->n_requests != 0; i++) {
        /* the parser frees its own when it stops */
        if (p->slots[i].request != NULL
            && p->slots[i].state != TR_SLOT_PARSING) {
            tr_peer_end(p, &p->slots[i]);
        }
    }
    free(p->slots);
    free(p);
}
