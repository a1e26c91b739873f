/*
 * The publisher's thread (redis_publisher.h).
 */
#include "redis_publisher_internal.h"

#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <tokenring/channel.h>

#include "engine/base/clock.h"
#include "engine/base/crash.h"
#include "engine/config/log.h"

#define STOP_US 1000000u

static uint64_t
unix_us(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_REALTIME, &ts);
    return (uint64_t) ts.tv_sec * 1000000u + (uint64_t) ts.tv_nsec / 1000u;
}

static int64_t
unix_ms(void)
{
    return (int64_t) (unix_us() / 1000);
}

static void
put_time(tr_redis_publisher_t *r)
{
    r->now_us = tr_now_us();
    r->outbox.realtime_us = (int64_t) unix_us() - (int64_t) r->now_us;
}

/* ---- outages ------------------------------------------------------------ */

static uint64_t
lost(const tr_redis_publisher_t *r)
{
    return r->outbox.lost
           + atomic_load_explicit(
               (_Atomic uint64_t *) (uintptr_t) &r->events.lost,
               memory_order_relaxed);
}

void
tr_redis_publisher_count(tr_redis_publisher_t *r)
{
    tr_status_counters_t *c = &r->status->counters;

    atomic_store_explicit(&c->redis_up, r->open, memory_order_relaxed);
    atomic_store_explicit(&c->redis_lost, lost(r), memory_order_relaxed);
    atomic_store_explicit(&c->redis_held_bytes, r->outbox.bytes,
                          memory_order_relaxed);
}

void
tr_redis_publisher_outage_begins(tr_redis_publisher_t *r, const char *reason)
{
    r->open = false;
    if (r->outage_us == 0) {
        r->outage_us = r->now_us;
        r->lost_before = lost(r);
        atomic_fetch_add_explicit(&r->status->counters.redis_outages, 1,
                                  memory_order_relaxed);
        tr_log(TR_LEVEL_WARN, "redis lost redis=%s reason=\"%s\"",
               r->config->redis, reason);
    }
    tr_redis_publisher_count(r);
}

void
tr_redis_publisher_outage_ends(tr_redis_publisher_t *r)
{
    if (r->outage_us != 0) {
        tr_log(TR_LEVEL_NOTICE,
               "redis back redis=%s away_ms=%" PRIu64 " lost_requests=%" PRIu64
               " waiting_requests=%u",
               r->config->redis, (r->now_us - r->outage_us) / 1000,
               lost(r) - r->lost_before, r->outbox.n);
        r->outage_us = 0;
    } else {
        tr_log(TR_LEVEL_INFO, "redis connected redis=%s", r->config->redis);
    }
    r->open = true;
    r->beat_us = 0; /* all of a beat, at once */
    tr_usage_again(&r->outbox.usage);
    tr_redis_publisher_count(r);
}

/* ---- what was told ------------------------------------------------------ */

/* One round (request_events.h tells why in this order). */
static void
take_round(tr_redis_publisher_t *r)
{
    tr_request_events_t *t = &r->events;
    tr_record_t rec;

    tr_events_look(t);
    while (tr_ring_get(&t->from_frontend, &rec, r->buf, r->buf_size) == TR_OK) {
        tr_outbox_take(&r->outbox, &rec, r->buf);
    }
    while (tr_ring_next(&t->from_loop, &rec, r->buf, r->buf_size) == TR_OK) {
        tr_outbox_take(&r->outbox, &rec, r->buf);
    }
    (void) tr_ring_release(&t->from_frontend);
    (void) tr_ring_release(&t->from_loop);
    tr_outbox_apply_ends(&r->outbox);
}

void
tr_redis_publisher_take(tr_redis_publisher_t *r)
{
    take_round(r);
    if (r->outbox.ended_before != NULL) {
        take_round(r);
    }
}

/* ---- the thread --------------------------------------------------------- */

static bool
busy(const tr_redis_publisher_t *r)
{
    return r->outbox.live != 0 || r->outbox.ended_before != NULL
           || (r->open && r->outbox.due_first != NULL);
}

static uint64_t
earliest(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static uint64_t
next_deadline(const tr_redis_publisher_t *r, bool idle)
{
    uint64_t at = r->beat_us + TR_REDIS_PUBLISHER_BEAT_US;

    at = earliest(at, tr_redis_link_deadline(&r->data));
    at = earliest(at, tr_redis_link_deadline(&r->control));
    at = earliest(at, tr_redis_publisher_look_up_at(r));
    if (!idle) {
        at = earliest(at, r->flushed_us + r->config->redis_flush_us);
    }
    return at;
}

/* Waits until something happens, or until the deadline. */
static void
wait_events(tr_redis_publisher_t *r, uint64_t deadline)
{
    struct pollfd fds[3] = { { .fd = r->wake_fd, .events = POLLIN } };
    uint64_t now = tr_now_us();
    struct timespec ts;

    fds[1].fd = tr_redis_link_fd(&r->data, &fds[1].events);
    fds[2].fd = tr_redis_link_fd(&r->control, &fds[2].events);
    deadline = deadline > now ? deadline - now : 0;
    ts.tv_sec = (time_t) (deadline / 1000000);
    ts.tv_nsec = (long) (deadline % 1000000) * 1000;
    if (ppoll(fds, 3, &ts, NULL) < 0) {
        fds[0].revents = fds[1].revents = fds[2].revents = 0;
    }
    tr_ring_awake(&r->events.from_frontend);
    put_time(r);
    if (fds[0].revents != 0) {
        tr_doorbell_drain(r->wake_fd);
    }
    tr_redis_link_run(&r->data, fds[1].revents, r->now_us);
    tr_redis_link_run(&r->control, fds[2].revents, r->now_us);
}

static void
turn(tr_redis_publisher_t *r)
{
    uint64_t flush_at = r->flushed_us + r->config->redis_flush_us;
    bool due = r->now_us >= flush_at;

    if (due) {
        tr_redis_publisher_take(r);
    }
    tr_redis_publisher_look_up(r);
    if (due || r->hurry) {
        tr_redis_publisher_flush(r);
    }
    if (due && r->open && tr_usage_presses(&r->outbox.usage)) {
        tr_redis_publisher_usage(r);
    }
    if (r->now_us >= r->beat_us + TR_REDIS_PUBLISHER_BEAT_US) {
        tr_redis_publisher_beat(r);
    }
    tr_redis_link_run(&r->data, 0, r->now_us);
    tr_redis_link_run(&r->control, 0, r->now_us);
}

/* All replies, as far as they come in time. */
static void
settle(tr_redis_publisher_t *r, uint64_t until)
{
    while (r->open && r->data.n_pending != 0 && r->now_us < until) {
        tr_redis_link_run(&r->data, 0, r->now_us);
        wait_events(r, r->now_us + 10000);
    }
}

/* The last words, as far as Redis takes them. */
static void
say_goodbye(tr_redis_publisher_t *r)
{
    uint64_t until = r->now_us + STOP_US;

    tr_redis_publisher_take(r);
    tr_outbox_end_all(&r->outbox);
    while (r->open && r->outbox.n != 0 && r->now_us < until) {
        tr_redis_publisher_flush(r);
        tr_redis_link_run(&r->data, 0, r->now_us);
        wait_events(r, r->now_us + 10000);
    }
    if (r->open) {
        tr_redis_publisher_usage(r);
        settle(r, until);
        tr_redis_publisher_usage(r); /* what came with that, or was asked for */
        tr_redis_begin(&r->command, "DEL");
        tr_redis_schema_key(&r->schema, &r->command, "engine", r->config->name);
        tr_redis_publisher_send(r, TR_TAG_MINOR, NULL);
        settle(r, until);
    }
    if (r->outbox.n != 0) {
        tr_log(TR_LEVEL_WARN,
               "redis was not told of the last requests redis=%s requests=%u",
               r->config->redis, r->outbox.n);
    }
}

static void *
publisher_run(void *arg)
{
    tr_redis_publisher_t *r = arg;

    pthread_setname_np(pthread_self(), "tr-publisher");
    tr_crash_stack();
    put_time(r);
    while (atomic_load(&r->stop) == 0) {
        /* who is idle is woken by the next arrival; else a flush is due */
        bool idle = !busy(r)
                    && tr_ring_sleep(&r->events.from_frontend) == TR_AGAIN;

        wait_events(r, next_deadline(r, idle));
        turn(r);
    }
    say_goodbye(r);
    return NULL;
}

/* ---- start and stop ----------------------------------------------------- */

tr_request_events_t *
tr_redis_publisher_events(tr_redis_publisher_t *r)
{
    return &r->events;
}

static void
publisher_free(tr_redis_publisher_t *r)
{
    tr_redis_link_free(&r->data);
    tr_redis_link_free(&r->control);
    tr_outbox_free(&r->outbox);
    tr_events_free(&r->events);
    if (r->wake_fd != -1) {
        close(r->wake_fd);
    }
    free(r->buf);
    free(r->scratch);
    free(r);
}

static tr_status_t
prepare(tr_redis_publisher_t *r, int frontend_fd, tr_error_t *err)
{
    tr_redis_events_t data = tr_redis_publisher_data_events;
    tr_redis_events_t control = tr_redis_publisher_control_events;
    tr_status_t rc;

    r->buf_size = tr_ring_max_payload(TR_EVENTS_LOOP_RING);
    r->buf = malloc(r->buf_size);
    r->wake_fd = tr_doorbell_create();
    if (r->buf == NULL || r->wake_fd == -1
        || tr_events_init(&r->events, r->wake_fd, frontend_fd) != TR_OK) {
        return tr_error_set(err, TR_ERR_NOMEM, "redis",
                            "no memory or descriptors for the publisher");
    }
    data.ctx = control.ctx = r;
    tr_outbox_init(&r->outbox, r->config->redis_buffer);
    tr_redis_schema_init(&r->schema, r->config, r->status, unix_ms());
    rc = tr_redis_link_init(&r->data, r->config, false, &data, err);
    if (rc == TR_OK) {
        rc = tr_redis_link_init(&r->control, r->config, true, &control, err);
    }
    return rc;
}

tr_status_t
tr_redis_publisher_start(const tr_config_t *config, tr_status_page_t *status,
                         int frontend_fd, tr_redis_publisher_t **out,
                         tr_error_t *err)
{
    tr_redis_publisher_t *r = calloc(1, sizeof(*r));
    tr_status_t rc;
    int e;

    *out = NULL;
    if (r == NULL) {
        return tr_error_set(err, TR_ERR_NOMEM, "redis",
                            "no memory for the publisher");
    }
    r->config = config;
    r->status = status;
    r->wake_fd = -1;
    rc = prepare(r, frontend_fd, err);
    if (rc == TR_OK) {
        e = pthread_create(&r->thread, NULL, publisher_run, r);
        if (e != 0) {
            rc = tr_error_set(err, TR_ERR_IO, "redis",
                              "cannot start the publisher: %s", strerror(e));
        }
    }
    if (rc != TR_OK) {
        publisher_free(r);
        return rc;
    }
    *out = r;
    return TR_OK;
}

void
tr_redis_publisher_stop(tr_redis_publisher_t *r)
{
    atomic_store(&r->stop, 1);
    tr_doorbell_ring(r->wake_fd);
    pthread_join(r->thread, NULL);
    publisher_free(r);
}
