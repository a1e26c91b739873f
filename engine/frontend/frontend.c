/*
 * The frontend thread (frontend.h): the event loop, the status page and the
 * end. What one worker connection does is in worker_connection.c.
 */
#include "frontend.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <time.h>

#include "engine/base/clock.h"
#include "engine/base/crash.h"
#include "engine/config/log.h"
#include "worker_connection.h"

#define CONNECTIONS_MAX 512
#define EVENTS_A_TURN 64
#define ACCEPT_A_TURN 16
#define ACCEPT_PAUSE_US 1000000u /* when descriptors have run out */
#define PUBLISH_LEAST_US 2000u   /* between two publications */
#define PUBLISH_MOST_US 100000u  /* while requests are running */
#define FLUSH_US 500000u         /* for the last answers, at the end */
#define HELD_US 50000u           /* between two looks at who is held */

enum { RUN, DRAIN, HURRY };

struct tr_front {
    tr_frontend_env_t env;
    tr_listener_t *listener;
    tr_source_t on_listener, on_wake;
    pthread_t thread;
    int wake_fd;
    _Atomic int wanted; /* RUN, DRAIN, HURRY */
    _Atomic uint64_t drain_us;

    tr_connection_t *connections;
    uint32_t n_connections, next_number;
    uint64_t accept_again_us; /* 0: accepting */
    uint64_t idle_since_us;   /* without connections */
    bool unwanted;            /* for too long: it leaves */

    uint64_t published_us;
    uint64_t running_since_us; /* 0: nothing runs */
    bool busy;                 /* publish while nothing happens */
    bool stale;                /* something did, too soon after the last time */
    uint64_t drain_deadline_us;
};

/* ---- the status page ---------------------------------------------------- */

static void
publish(tr_frontend_t *f)
{
    tr_frontend_env_t *env = &f->env;
    tr_status_admission_t a;

    memset(&a, 0, sizeof(a));
    if (env->loop != NULL) {
        tr_loop_snapshot(env->loop, &a);
    }
    a.state = env->draining || env->refusing ? TR_ENGINE_DRAINING
                                             : TR_ENGINE_READY;
    if (a.state == TR_ENGINE_DRAINING) {
        a.queue_free = 0;
    }
    a.inside = env->inside;
    env->kv_tokens = a.kv_tokens;
    a.outstanding_tokens = tr_connection_outstanding(env);
    env->drain_changed = false;
    /* the first step after idling ends later than the last one of before: a
     * reader must not take the time in between for a stall */
    if (a.running == 0) {
        f->running_since_us = 0;
    } else if (f->running_since_us == 0) {
        f->running_since_us = env->now_us;
    }
    if (a.last_step_us < f->running_since_us) {
        a.last_step_us = f->running_since_us;
    }
    tr_status_publish(env->status, &a);
    f->published_us = env->now_us;
    f->stale = false;
    /* what was just handed to the loop is in no snapshot of it yet, and of
     * pages that came back a GPU tells a step later */
    f->busy = a.running != 0 || a.waiting != 0 || env->inside != 0
              || (env->loop != NULL
                  && (tr_loop_outstanding(env->loop) != 0
                      || a.kv_free_pages < env->status->card.kv_pages));
}

static void
publish_when_due(tr_frontend_t *f)
{
    bool busy = f->busy || f->env.inside != 0
                || (f->env.loop != NULL
                    && tr_loop_outstanding(f->env.loop) != 0);

    if (f->env.drain_changed
        || (busy && f->env.now_us - f->published_us >= PUBLISH_LEAST_US)) {
        publish(f);
    } else if (busy) {
        f->busy = f->stale = true;
    }
}

/* ---- events ------------------------------------------------------------- */

static void
watch_listener(tr_frontend_t *f, bool on)
{
    struct epoll_event ev = { .events = on ? EPOLLIN : 0,
                              .data.ptr = &f->on_listener };

    epoll_ctl(f->env.epoll, EPOLL_CTL_MOD, f->listener->fd, &ev);
    f->accept_again_us = on ? 0 : f->env.now_us + ACCEPT_PAUSE_US;
}

/* Room for one more connection, at the cost of the one that has taken longest
 * for its handshake: nobody may keep others out by saying nothing. */
static bool
make_room(tr_frontend_t *f)
{
    tr_connection_t *c, *oldest = NULL;

    if (f->n_connections < CONNECTIONS_MAX) {
        return true;
    }
    for (c = f->connections; c != NULL; c = c->next) {
        if (c->state == TR_CONNECTION_HELLO) {
            oldest = c; /* new ones are put in front */
        }
    }
    if (oldest == NULL) {
        return false;
    }
    tr_connection_close(oldest, TR_LEVEL_WARN,
                        "no hello yet, and its place is needed");
    return true; /* it is freed in this turn */
}

static void
accept_connections(tr_frontend_t *f)
{
    tr_credentials_t who;
    tr_welcome_t no;
    tr_connection_t *c;
    int fd, i;

    for (i = 0; i < ACCEPT_A_TURN; i++) {
        fd = tr_listener_accept(f->listener, &who);
        if (fd == -1) {
            if (errno != EAGAIN && errno != ECONNABORTED) {
                /* EMFILE and the like: the connection stays in the backlog and
                 * would wake us for ever */
                tr_log(TR_LEVEL_ERROR,
                       "cannot accept connections for a "
                       "second error=\"%s\"",
                       strerror(errno));
                watch_listener(f, false);
            }
            return;
        }
        if (!make_room(f)) {
            tr_log(TR_LEVEL_WARN,
                   "connection refused pid=%ld uid=%u "
                   "reason=\"%u channels are open\"",
                   (long) who.pid, who.uid, f->n_connections);
            tr_welcome_refuse(&no, "too many channels are open");
            tr_fds_send(fd, &no, sizeof(no), NULL, 0);
            close(fd);
            continue;
        }
        c = tr_connection_new(&f->env, fd, &who, ++f->next_number);
        if (c != NULL) {
            c->next = f->connections;
            f->connections = c;
            f->n_connections++;
        }
    }
}

/* Somebody rang: requests were parsed, are over, or are to be cancelled. */
static void
on_wake(tr_frontend_t *f)
{
    tr_request_t *r;
    tr_connection_t *c;
    uint64_t id;

    while ((r = tr_request_parser_take(f->env.parser)) != NULL) {
        tr_connection_parsed(r->owner, r);
    }
    if (f->env.loop != NULL) {
        tr_connection_reap(tr_loop_over(f->env.loop));
    }
    while ((id = tr_events_cancelled(f->env.events)) != 0) {
        for (c = f->connections; c != NULL && !tr_connection_cancel(c, id);
             c = c->next) {
        }
    }
}

static void
on_event(tr_frontend_t *f, const struct epoll_event *ev)
{
    tr_source_t *on = ev->data.ptr;

    switch (on->kind) {
    case TR_SOURCE_LISTENER:
        accept_connections(f);
        break;
    case TR_SOURCE_WAKE:
        on_wake(f);
        break;
    case TR_SOURCE_SOCKET:
        tr_connection_on_socket(on->connection);
        break;
    case TR_SOURCE_BELL:
        tr_connection_on_bell(on->connection);
        break;
    }
}

/* A turn for everybody; true when somebody has more. */
static bool
turn(tr_frontend_t *f)
{
    tr_connection_t **at = &f->connections, *c;
    bool more = false;

    if (f->env.held) {
        tr_suspects_release(&f->env, f->connections);
    }
    while ((c = *at) != NULL) {
        more |= tr_connection_turn(c);
        if (c->state == TR_CONNECTION_CLOSING && c->n_requests == 0) {
            *at = c->next;
            f->n_connections--;
            tr_connection_free(c);
            continue;
        }
        at = &c->next;
    }
    tr_events_show(f->env.events);
    if (f->env.wake_loop) {
        f->env.wake_loop = false;
        if (f->env.loop != NULL) {
            tr_loop_wake(f->env.loop);
        }
    }
    return more;
}

/* ---- time --------------------------------------------------------------- */

/* When the process ends for want of anybody. */
static uint64_t
idle_deadline(const tr_frontend_t *f)
{
    return f->env.config->exit_idle_us == 0 || f->n_connections != 0
                   || f->env.draining || f->unwanted
               ? UINT64_MAX
               : f->idle_since_us + f->env.config->exit_idle_us;
}

static uint64_t
next_deadline(const tr_frontend_t *f)
{
    uint64_t next = UINT64_MAX, at;
    const tr_connection_t *c;

    if (f->busy) {
        next = f->published_us
               + (f->stale ? PUBLISH_LEAST_US : PUBLISH_MOST_US);
    }
    if (f->accept_again_us != 0 && f->accept_again_us < next) {
        next = f->accept_again_us;
    }
    if (f->env.held && f->env.now_us + HELD_US < next) {
        next = f->env.now_us + HELD_US;
    }
    if (f->env.draining && f->drain_deadline_us < next) {
        next = f->drain_deadline_us;
    }
    at = idle_deadline(f);
    if (at < next) {
        next = at;
    }
    for (c = f->connections; c != NULL; c = c->next) {
        at = tr_connection_deadline(c);
        if (at < next) {
            next = at;
        }
    }
    return next;
}

static void
on_time(tr_frontend_t *f)
{
    tr_connection_t *c;

    if (f->accept_again_us != 0 && f->env.now_us >= f->accept_again_us) {
        watch_listener(f, true);
    }
    for (c = f->connections; c != NULL; c = c->next) {
        if (f->env.now_us >= tr_connection_deadline(c)) {
            tr_connection_on_deadline(c);
        }
    }
}

/* Sleeps until an event or the deadline, and handles what came. */
static void
wait_events(tr_frontend_t *f, uint64_t deadline)
{
    struct epoll_event events[EVENTS_A_TURN];
    uint64_t now = tr_now_us(), left;
    int timeout = -1, n, i;

    if (deadline != UINT64_MAX) {
        left = deadline > now ? (deadline - now + 999) / 1000 : 0;
        timeout = left > 60000 ? 60000 : (int) left;
    }
    n = epoll_wait(f->env.epoll, events, EVENTS_A_TURN, timeout);
    if (n == -1) {
        tr_bell_interrupted(&f->env.bell);
    }
    f->env.now_us = tr_now_us();
    for (i = 0; i < n; i++) {
        on_event(f, &events[i]);
    }
    on_time(f);
}

/* ---- the end ------------------------------------------------------------ */

static void
begin_drain(tr_frontend_t *f)
{
    tr_connection_t *c;

    f->env.draining = true;
    f->drain_deadline_us = f->env.now_us + atomic_load(&f->drain_us);
    for (c = f->connections; c != NULL; c = c->next) {
        tr_connection_drain(c);
    }
    tr_loop_drain(f->env.loop);
    publish(f);
}

/* Nothing of any request is left anywhere. */
static bool
drained(const tr_frontend_t *f)
{
    const tr_connection_t *c;

    for (c = f->connections; c != NULL; c = c->next) {
        if (c->n_requests != 0) {
            return false;
        }
    }
    return true;
}

/* `tokenring drain --exit`: like anybody else's SIGTERM, once. */
static void
leave_when_empty(tr_frontend_t *f)
{
    if (f->env.leaving && f->env.inside == 0) {
        f->env.leaving = false;
        tr_log(TR_LEVEL_NOTICE, "drained, exiting");
        kill(getpid(), SIGTERM);
    }
}

/* Nobody has been there for exit_idle.  Who connects from now on is left to the
 * next process that has this socket. */
static void
leave_when_idle(tr_frontend_t *f)
{
    if (f->n_connections != 0) {
        f->idle_since_us = f->env.now_us;
    }
    if (f->env.now_us >= idle_deadline(f)) {
        f->unwanted = true;
        epoll_ctl(f->env.epoll, EPOLL_CTL_DEL, f->listener->fd, NULL);
        tr_log(TR_LEVEL_NOTICE, "idle, exiting exit_idle_ms=%llu",
               (unsigned long long) (f->env.config->exit_idle_us / 1000));
        kill(getpid(), SIGTERM);
    }
}

/* The loop ends what it still has; answers are sent if their connections take
 * them. */
static void
end_all(tr_frontend_t *f)
{
    uint64_t deadline;
    tr_connection_t *c;

    tr_connection_reap(tr_loop_stop(f->env.loop));
    f->env.loop = NULL;
    publish(f);
    f->env.now_us = tr_now_us();
    deadline = f->env.now_us + FLUSH_US;
    while (!drained(f) && f->env.now_us < deadline) {
        on_wake(f);
        if (!turn(f)) {
            wait_events(f, f->env.now_us + 1000);
        } else {
            f->env.now_us = tr_now_us();
        }
    }
    tr_request_parser_stop(f->env.parser);
    while ((c = f->connections) != NULL) {
        f->connections = c->next;
        tr_connection_free(c);
    }
    tr_events_show(f->env.events);
}

static void *
frontend_run(void *arg)
{
    tr_frontend_t *f = arg;
    bool more;

    pthread_setname_np(pthread_self(), "tr-frontend");
    tr_crash_stack();
    tr_response_writer_open_bell(&f->env.bell);
    for (;;) {
        more = turn(f);
        publish_when_due(f);
        leave_when_empty(f);
        leave_when_idle(f);
        if (atomic_load(&f->wanted) != RUN && !f->env.draining) {
            begin_drain(f);
            continue;
        }
        if (f->env.draining
            && (drained(f) || f->env.now_us >= f->drain_deadline_us
                || atomic_load(&f->wanted) == HURRY)) {
            break;
        }
        wait_events(f, more ? 0 : next_deadline(f));
    }
    end_all(f);
    tr_bell_close(&f->env.bell);
    return NULL;
}

/* ---- start and stop ----------------------------------------------------- */

void
tr_frontend_free(tr_frontend_t *f)
{
    if (f->env.epoll != -1) {
        close(f->env.epoll);
    }
    free(f->env.buf);
    free(f);
}

static tr_status_t
prepare(tr_frontend_t *f, tr_error_t *err)
{
    struct epoll_event listener = { .events = EPOLLIN,
                                    .data.ptr = &f->on_listener };
    struct epoll_event wake = { .events = EPOLLIN | EPOLLET,
                                .data.ptr = &f->on_wake };

    f->env.buf_size = tr_ring_max_payload(f->env.config->channel_ring);
    f->env.buf = malloc(f->env.buf_size);
    if (f->env.buf == NULL) {
        return tr_error_set(err, TR_ERR_NOMEM, "",
                            "no memory for the frontend "
                            "thread");
    }
    f->on_listener.kind = TR_SOURCE_LISTENER;
    f->on_wake.kind = TR_SOURCE_WAKE;
    f->env.epoll = epoll_create1(EPOLL_CLOEXEC);
    if (f->env.epoll == -1
        || epoll_ctl(f->env.epoll, EPOLL_CTL_ADD, f->listener->fd, &listener)
        || epoll_ctl(f->env.epoll, EPOLL_CTL_ADD, f->wake_fd, &wake)) {
        return tr_error_set(err, TR_ERR_IO, "", "epoll: %s", strerror(errno));
    }
    return TR_OK;
}

tr_status_t
tr_frontend_start(const tr_frontend_options_t *options, tr_frontend_t **out,
                  tr_error_t *err)
{
    tr_frontend_t *f = calloc(1, sizeof(*f));
    tr_status_t rc;
    int e;

    *out = NULL;
    if (f == NULL) {
        return tr_error_set(err, TR_ERR_NOMEM, "",
                            "no memory for the frontend "
                            "thread");
    }
    f->env.config = options->config;
    f->env.parser = options->parser;
    f->env.loop = options->loop;
    f->env.status = options->status;
    f->env.events = options->events;
    f->env.status_fd = options->status_fd;
    f->env.wake_fd = options->wake_fd;
    f->env.epoll = -1;
    f->env.now_us = tr_now_us();
    f->idle_since_us = f->env.now_us;
    f->listener = options->listener;
    f->wake_fd = options->wake_fd;
    rc = prepare(f, err);
    if (rc == TR_OK) {
        publish(f);
        e = pthread_create(&f->thread, NULL, frontend_run, f);
        if (e != 0) {
            rc = tr_error_set(err, TR_ERR_IO, "",
                              "cannot start the frontend "
                              "thread: %s",
                              strerror(e));
        }
    }
    if (rc != TR_OK) {
        tr_frontend_free(f);
        return rc;
    }
    *out = f;
    return TR_OK;
}

void
tr_frontend_end(tr_frontend_t *f, uint64_t drain_us)
{
    int expected = RUN;

    atomic_store(&f->drain_us, drain_us);
    atomic_compare_exchange_strong(&f->wanted, &expected, DRAIN);
    tr_doorbell_ring(f->wake_fd);
    pthread_join(f->thread, NULL);
}

void
tr_frontend_hurry(tr_frontend_t *f)
{
    atomic_store(&f->wanted, HURRY);
    tr_doorbell_ring(f->wake_fd);
}
