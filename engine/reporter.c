/*
 * The reporter's thread (reporter.h).
 */
#include "reporter.h"

#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <tokenring/channel.h>

#include "log.h"
#include "report_ledger.h"
#include "report_writer.h"

#define BEAT_US 1000000u
#define BEAT_TTL_US 5000000u
#define ENGINES_MS 86400000 /* a name that was silent for so long goes */
#define STOP_US 1000000u
/* What may be under way: the rest of what is due waits for answers. */
#define UNDER_WAY_MOST 8192u
#define BACKLOG_MOST (1u << 20)

/* What a command was. */
enum {
    TAG_BEAT,
    TAG_FIELDS, /* id: the request */
    TAG_ENTRY,  /* the same; number: its last record */
    TAG_ASK,    /* the same */
    TAG_MINOR   /* nobody waits for it */
};

struct tr_reporter {
    const tr_config_t *config;
    tr_status_page_t *status;
    tr_report_t report;
    tr_ledger_t ledger;
    tr_report_writer_t writer;
    tr_redis_link_t data, control;
    tr_redis_command_t command; /* the one being put together */
    pthread_t thread;
    int wake_fd;
    _Atomic int stop;
    uint8_t *buf; /* one record */
    size_t buf_size;
    char *scratch; /* a PUBLISH */
    size_t scratch_size;

    uint64_t now_us;
    uint64_t flushed_us, beat_us; /* last time */
    bool open;                    /* Redis takes what is written */
    bool hurry;                   /* more to write than one flush took */
    bool latest;                  /* requests joined the latest ones */
    uint64_t outage_us;           /* 0, or since when it does not */
    uint64_t lost_before;
    bool deaf; /* the control channel could not be heard, which was logged */
};

static uint64_t
clock_us(clockid_t id)
{
    struct timespec ts;

    clock_gettime(id, &ts);
    return (uint64_t) ts.tv_sec * 1000000u + (uint64_t) ts.tv_nsec / 1000u;
}

static int64_t
unix_ms(void)
{
    return (int64_t) (clock_us(CLOCK_REALTIME) / 1000);
}

static void
tell_time(tr_reporter_t *r)
{
    r->now_us = clock_us(CLOCK_MONOTONIC);
    r->ledger.realtime_us = (int64_t) clock_us(CLOCK_REALTIME)
                            - (int64_t) r->now_us;
}

/* ---- outages ------------------------------------------------------------ */

static uint64_t
lost(const tr_reporter_t *r)
{
    return r->ledger.lost
           + atomic_load_explicit(
               (_Atomic uint64_t *) (uintptr_t) &r->report.lost,
               memory_order_relaxed);
}

static void
count(tr_reporter_t *r)
{
    tr_status_counters_t *c = &r->status->counters;

    atomic_store_explicit(&c->redis_up, r->open, memory_order_relaxed);
    atomic_store_explicit(&c->redis_lost, lost(r), memory_order_relaxed);
    atomic_store_explicit(&c->redis_held_bytes, r->ledger.bytes,
                          memory_order_relaxed);
}

static void
outage_begins(tr_reporter_t *r, const char *reason)
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
    count(r);
}

static void
outage_ends(tr_reporter_t *r)
{
    if (r->outage_us != 0) {
        tr_log(TR_LEVEL_NOTICE,
               "redis back redis=%s away_ms=%" PRIu64 " lost_requests=%" PRIu64
               " waiting_requests=%u",
               r->config->redis, (r->now_us - r->outage_us) / 1000,
               lost(r) - r->lost_before, r->ledger.n);
        r->outage_us = 0;
    } else {
        tr_log(TR_LEVEL_INFO, "redis connected redis=%s", r->config->redis);
    }
    r->open = true;
    r->beat_us = 0; /* all of a beat, at once */
    count(r);
}

/* ---- what was told ------------------------------------------------------ */

/* One round (report.h tells why in this order). */
static void
take_round(tr_reporter_t *r)
{
    tr_report_t *t = &r->report;
    tr_record_t rec;

    (void) tr_ring_look(&t->from_loop);
    while (tr_ring_get(&t->from_front, &rec, r->buf, r->buf_size) == TR_OK) {
        tr_ledger_take(&r->ledger, &rec, r->buf);
    }
    while (tr_ring_next(&t->from_loop, &rec, r->buf, r->buf_size) == TR_OK) {
        tr_ledger_take(&r->ledger, &rec, r->buf);
    }
    (void) tr_ring_release(&t->from_front);
    (void) tr_ring_release(&t->from_loop);
    tr_ledger_apply_ends(&r->ledger);
}

static void
take_told(tr_reporter_t *r)
{
    take_round(r);
    if (r->ledger.ended_before != NULL) {
        take_round(r);
    }
}

/* ---- writing ------------------------------------------------------------ */

static void
send_command(tr_reporter_t *r, uint16_t kind, const tr_ledger_request_t *q)
{
    tr_redis_tag_t tag = { .kind = kind };

    if (q != NULL) {
        tag.id = q->id;
        tag.number = q->unacked != NULL ? q->unacked->last : 0;
    }
    tr_redis_link_send(&r->data, &tag, &r->command, r->now_us);
}

static void
send_expire(tr_reporter_t *r, const char *kind, const char *name,
            uint64_t ttl_us)
{
    tr_report_expire(&r->writer, &r->command, kind, name, ttl_us);
    send_command(r, TAG_MINOR, NULL);
}

static bool
fits_scratch(tr_reporter_t *r, size_t need)
{
    char *grown;

    if (need > r->scratch_size) {
        grown = realloc(r->scratch, need);
        if (grown == NULL) {
            return false;
        }
        r->scratch = grown;
        r->scratch_size = need;
    }
    return true;
}

static void
write_entry(tr_reporter_t *r, tr_ledger_request_t *q)
{
    int64_t now_ms = (int64_t) (r->now_us / 1000);
    int64_t ttl_ms = (int64_t) (r->config->redis_output_ttl_us / 1000);

    tr_report_entry(&r->writer, &r->command, q);
    send_command(r, TAG_ENTRY, q);
    q->sending = q->began = q->unacked->sent = true;
    if (q->output_expires_ms == 0 || (q->closed && q->unacked == q->tail)
        || now_ms - q->output_expires_ms > ttl_ms / 4) {
        q->output_expires_ms = now_ms;
        send_expire(r, "out", q->completion, r->config->redis_output_ttl_us);
    }
    if (fits_scratch(r, q->unacked->len + 32)) {
        tr_report_live(&r->writer, &r->command, q, r->scratch);
        send_command(r, TAG_MINOR, NULL);
    }
}

static void
write_fields(tr_reporter_t *r, tr_ledger_request_t *q)
{
    q->writing = q->dirty;
    q->dirty = 0;
    q->expires_ms = (int64_t) (r->now_us / 1000);
    tr_report_fields(&r->writer, &r->command, q, q->writing);
    send_command(r, TAG_FIELDS, q);
    send_expire(r, "req", q->completion, r->config->redis_request_ttl_us);
    if (q->writing & TR_LEDGER_IDENTITY) {
        tr_report_latest(&r->writer, &r->command, q);
        send_command(r, TAG_MINOR, NULL);
        r->latest = true;
    }
}

static void
ask_output(tr_reporter_t *r, tr_ledger_request_t *q)
{
    tr_redis_begin(&r->command, "XREVRANGE");
    tr_report_key(&r->writer, &r->command, "out", q->completion);
    tr_redis_text(&r->command, "+");
    tr_redis_text(&r->command, "-");
    tr_redis_text(&r->command, "COUNT");
    tr_redis_text(&r->command, "1");
    send_command(r, TAG_ASK, q);
    q->asking = true;
}

static void
write_request(tr_reporter_t *r, tr_ledger_request_t *q)
{
    if (q->unsure) {
        if (!q->asking) {
            ask_output(r, q);
        }
    } else if (q->unacked != NULL && !q->sending) {
        write_entry(r, q);
    }
    /* whoever reads the final state may count on all of the output */
    if (q->dirty != 0 && q->writing == 0
        && !(q->ended
             && (q->unsure
                 || (q->unacked != NULL && q->unacked->next != NULL)))) {
        write_fields(r, q);
    }
}

static void
flush(tr_reporter_t *r)
{
    tr_ledger_request_t *q;

    r->flushed_us = r->now_us;
    r->hurry = false;
    if (!r->open) {
        return;
    }
    while (r->data.n_pending < UNDER_WAY_MOST
           && tr_redis_link_backlog(&r->data) < BACKLOG_MOST) {
        q = tr_ledger_next(&r->ledger);
        if (q == NULL) {
            return;
        }
        write_request(r, q);
    }
    r->hurry = true;
}

/* ---- once a second ------------------------------------------------------ */

static void
beat_engines(tr_reporter_t *r, int64_t now_ms)
{
    tr_redis_begin(&r->command, "ZADD");
    tr_redis_format(&r->command, "%sengines", r->config->redis_prefix);
    tr_redis_format(&r->command, "%" PRId64, now_ms);
    tr_redis_text(&r->command, r->config->name);
    send_command(r, TAG_MINOR, NULL);
    tr_redis_begin(&r->command, "ZREMRANGEBYSCORE");
    tr_redis_format(&r->command, "%sengines", r->config->redis_prefix);
    tr_redis_text(&r->command, "-inf");
    tr_redis_format(&r->command, "%" PRId64, now_ms - ENGINES_MS);
    send_command(r, TAG_MINOR, NULL);
}

static void
trim_latest(tr_reporter_t *r)
{
    tr_redis_begin(&r->command, "ZREMRANGEBYRANK");
    tr_report_key(&r->writer, &r->command, "requests", r->config->name);
    tr_redis_text(&r->command, "0");
    tr_redis_format(&r->command, "%lld",
                    -(long long) r->config->redis_recent - 1);
    send_command(r, TAG_MINOR, NULL);
    send_expire(r, "requests", r->config->name,
                r->config->redis_request_ttl_us);
}

/* Keys of requests that go on for long live as long as these. */
static void
keep_alive(tr_reporter_t *r)
{
    int64_t now_ms = (int64_t) (r->now_us / 1000);
    int64_t ttl_ms = (int64_t) (r->config->redis_request_ttl_us / 1000);
    tr_ledger_request_t *q;

    for (q = r->ledger.first; q != NULL; q = q->next) {
        if (!q->ended && q->expires_ms != 0
            && now_ms - q->expires_ms > ttl_ms / 4) {
            q->dirty |= TR_LEDGER_STATE;
            tr_ledger_due(&r->ledger, q);
        }
    }
}

static void
beat(tr_reporter_t *r)
{
    int64_t now_ms = unix_ms();

    r->beat_us = r->now_us;
    count(r);
    if (r->data.state != TR_LINK_UP) {
        return;
    }
    tr_report_heartbeat(&r->writer, &r->command, now_ms);
    send_command(r, TAG_BEAT, NULL);
    send_expire(r, "engine", r->config->name, BEAT_TTL_US);
    if (!r->open) {
        return; /* first see whether it takes that */
    }
    beat_engines(r, now_ms);
    tr_report_sample(&r->writer, &r->command, now_ms);
    send_command(r, TAG_MINOR, NULL);
    send_expire(r, "metrics", r->config->name, r->config->redis_request_ttl_us);
    if (r->latest) {
        trim_latest(r);
        r->latest = false;
    }
    keep_alive(r);
}

/* ---- answers ------------------------------------------------------------ */

/* Redis takes nothing from us at the moment, whatever it is. */
static bool
refuses_all(const char *word)
{
    static const char *const words[] = {
        "OOM",    "MISCONF", "READONLY",   "LOADING",    "NOAUTH",
        "NOPERM", "BUSY",    "MASTERDOWN", "NOREPLICAS", "CLUSTERDOWN",
        "MOVED",  "ASK",     "TRYAGAIN"
    };
    size_t i;

    for (i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        if (strcmp(word, words[i]) == 0) {
            return true;
        }
    }
    return false;
}

/* The number in the first entry's id, 0: there is none. */
static uint32_t
last_number(const redisReply *reply)
{
    const redisReply *entry;

    if (reply->type != REDIS_REPLY_ARRAY || reply->elements == 0) {
        return 0;
    }
    entry = reply->element[0];
    if (entry->type != REDIS_REPLY_ARRAY || entry->elements == 0
        || entry->element[0]->type != REDIS_REPLY_STRING) {
        return 0;
    }
    return (uint32_t) strtoul(entry->element[0]->str, NULL, 10);
}

static void
on_entry(tr_reporter_t *r, tr_ledger_request_t *q, const redisReply *reply,
         bool refused)
{
    const tr_ledger_entry_t *e = q->unacked;

    if (e != NULL && e->next != NULL && e->next->next != NULL) {
        r->hurry = true; /* there is more than what gathers anyway */
    }
    if (reply->type == REDIS_REPLY_NIL) {
        /* the stream has gone: evicted, or deleted */
        q->sending = false;
        tr_ledger_found(&r->ledger, q, 0);
    } else if (reply->type != REDIS_REPLY_ERROR
               || strstr(reply->str, "equal or smaller") != NULL) {
        tr_ledger_entry_done(&r->ledger, q, true);
    } else if (refused) {
        tr_ledger_entry_done(&r->ledger, q, false);
    } else {
        tr_ledger_give_up_output(&r->ledger, q);
    }
}

static void
on_request_reply(tr_reporter_t *r, const tr_redis_tag_t *tag,
                 const redisReply *reply, bool refused)
{
    tr_ledger_request_t *q = tr_ledger_find(&r->ledger, tag->id);
    bool error = reply->type == REDIS_REPLY_ERROR;

    if (q == NULL) {
        return;
    }
    if (tag->kind == TAG_ENTRY) {
        on_entry(r, q, reply, refused);
    } else if (tag->kind == TAG_FIELDS) {
        if (error && !refused) {
            tr_ledger_give_up_fields(&r->ledger, q);
        } else {
            tr_ledger_fields_done(&r->ledger, q, !error);
        }
    } else if (!error) {
        tr_ledger_found(&r->ledger, q, last_number(reply));
    } else if (refused) {
        q->asking = false;
        tr_ledger_due(&r->ledger, q);
    } else {
        tr_ledger_give_up_output(&r->ledger, q);
    }
}

static void
on_reply(void *ctx, const tr_redis_tag_t *tag, const redisReply *reply)
{
    tr_reporter_t *r = ctx;
    char word[32], reason[64];
    bool refused = false;

    if (reply->type == REDIS_REPLY_ERROR) {
        tr_redis_error_word(reply, word, sizeof(word));
        refused = refuses_all(word);
        atomic_fetch_add_explicit(&r->status->counters.redis_refusals, 1,
                                  memory_order_relaxed);
        if (refused || tag->kind == TAG_BEAT) {
            snprintf(reason, sizeof(reason), "refused with %s", word);
            outage_begins(r, reason);
        }
    } else if (tag->kind == TAG_BEAT && !r->open) {
        outage_ends(r);
    }
    if (tag->kind == TAG_FIELDS || tag->kind == TAG_ENTRY
        || tag->kind == TAG_ASK) {
        on_request_reply(r, tag, reply, refused);
    }
}

static void
on_up(void *ctx)
{
    beat(ctx); /* its answer opens */
}

static void
on_down(void *ctx, const char *reason)
{
    tr_reporter_t *r = ctx;

    outage_begins(r, reason);
    tr_ledger_reset(&r->ledger);
}

/* ---- the control channel ------------------------------------------------ */

static void
on_control_up(void *ctx)
{
    tr_reporter_t *r = ctx;

    tr_redis_begin(&r->command, "SUBSCRIBE");
    tr_report_key(&r->writer, &r->command, "ctl", r->config->name);
    tr_redis_link_send(&r->control, NULL, &r->command, r->now_us);
}

/* Redis being away is said once, by the other connection. */
static void
on_control_down(void *ctx, const char *reason)
{
    tr_reporter_t *r = ctx;

    if (r->open && r->control.backoff_us > 400000 && !r->deaf) {
        r->deaf = true;
        tr_log(TR_LEVEL_WARN,
               "redis control channel lost, requests cannot be cancelled "
               "through it redis=%s reason=\"%s\"",
               r->config->redis, reason);
    }
}

static bool
is_completion(const char *text)
{
    return strspn(text, "0123456789abcdef") == TR_COMPLETION_LEN
           && text[TR_COMPLETION_LEN] == '\0';
}

/* Anybody who can publish there may say anything: what is not understood is
 * dropped. */
static void
on_message(tr_reporter_t *r, const char *text, size_t len)
{
    tr_ledger_request_t *q;

    if (len != 7 + TR_COMPLETION_LEN || memcmp(text, "cancel ", 7) != 0
        || !is_completion(text + 7)) {
        tr_log(TR_LEVEL_INFO, "redis control message dropped bytes=%zu", len);
        return;
    }
    take_told(r); /* it may have arrived just now */
    q = tr_ledger_find_completion(&r->ledger, text + 7);
    if (q == NULL) {
        tr_log(TR_LEVEL_INFO, "cancel of an unknown request");
        return;
    }
    tr_log(TR_LEVEL_INFO, "request cancelled id=%s", q->request_id);
    if (!tr_report_cancel(&r->report, q->id)) {
        tr_log(TR_LEVEL_WARN, "too many requests are being cancelled id=%s",
               q->request_id);
    }
}

static void
on_control(void *ctx, const tr_redis_tag_t *tag, const redisReply *reply)
{
    tr_reporter_t *r = ctx;
    char word[32];

    (void) tag;
    if (reply->type == REDIS_REPLY_ERROR) {
        tr_redis_error_word(reply, word, sizeof(word));
        tr_redis_link_fail(&r->control, "refused with %s", word);
        return;
    }
    if (reply->type != REDIS_REPLY_ARRAY || reply->elements != 3
        || reply->element[0]->type != REDIS_REPLY_STRING) {
        return;
    }
    if (strcmp(reply->element[0]->str, "subscribe") == 0) {
        if (r->deaf) {
            r->deaf = false;
            tr_log(TR_LEVEL_NOTICE, "redis control channel back redis=%s",
                   r->config->redis);
        }
    } else if (strcmp(reply->element[0]->str, "message") == 0
               && reply->element[2]->type == REDIS_REPLY_STRING) {
        on_message(r, reply->element[2]->str, reply->element[2]->len);
    }
}

/* ---- the thread --------------------------------------------------------- */

static bool
busy(const tr_reporter_t *r)
{
    return r->ledger.live != 0 || r->ledger.ended_before != NULL
           || (r->open && r->ledger.due_first != NULL);
}

static uint64_t
earliest(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static uint64_t
next_deadline(const tr_reporter_t *r, bool idle)
{
    uint64_t at = r->beat_us + BEAT_US;

    at = earliest(at, tr_redis_link_deadline(&r->data));
    at = earliest(at, tr_redis_link_deadline(&r->control));
    if (!idle) {
        at = earliest(at, r->flushed_us + r->config->redis_flush_us);
    }
    return at;
}

/* Waits until something happens, or until the deadline. */
static void
wait_events(tr_reporter_t *r, uint64_t deadline)
{
    struct pollfd fds[3] = { { .fd = r->wake_fd, .events = POLLIN } };
    uint64_t now = clock_us(CLOCK_MONOTONIC);
    struct timespec ts;

    fds[1].fd = tr_redis_link_fd(&r->data, &fds[1].events);
    fds[2].fd = tr_redis_link_fd(&r->control, &fds[2].events);
    deadline = deadline > now ? deadline - now : 0;
    ts.tv_sec = (time_t) (deadline / 1000000);
    ts.tv_nsec = (long) (deadline % 1000000) * 1000;
    if (ppoll(fds, 3, &ts, NULL) < 0) {
        fds[0].revents = fds[1].revents = fds[2].revents = 0;
    }
    tr_ring_awake(&r->report.from_front);
    tell_time(r);
    if (fds[0].revents != 0) {
        tr_doorbell_drain(r->wake_fd);
    }
    tr_redis_link_run(&r->data, fds[1].revents, r->now_us);
    tr_redis_link_run(&r->control, fds[2].revents, r->now_us);
}

static void
turn(tr_reporter_t *r)
{
    uint64_t flush_at = r->flushed_us + r->config->redis_flush_us;
    bool due = r->now_us >= flush_at;

    if (due) {
        take_told(r);
    }
    if (due || r->hurry) {
        flush(r);
    }
    if (r->now_us >= r->beat_us + BEAT_US) {
        beat(r);
    }
    tr_redis_link_run(&r->data, 0, r->now_us);
    tr_redis_link_run(&r->control, 0, r->now_us);
}

/* The last words, as far as Redis takes them. */
static void
say_goodbye(tr_reporter_t *r)
{
    uint64_t until = r->now_us + STOP_US;

    take_told(r);
    tr_ledger_end_all(&r->ledger);
    while (r->open && r->ledger.n != 0 && r->now_us < until) {
        flush(r);
        tr_redis_link_run(&r->data, 0, r->now_us);
        wait_events(r, r->now_us + 10000);
    }
    if (r->open) {
        tr_redis_begin(&r->command, "DEL");
        tr_report_key(&r->writer, &r->command, "engine", r->config->name);
        send_command(r, TAG_MINOR, NULL);
    }
    while (r->open && r->data.n_pending != 0 && r->now_us < until) {
        tr_redis_link_run(&r->data, 0, r->now_us);
        wait_events(r, r->now_us + 10000);
    }
    if (r->ledger.n != 0) {
        tr_log(TR_LEVEL_WARN,
               "redis was not told of the last requests redis=%s requests=%u",
               r->config->redis, r->ledger.n);
    }
}

static void *
reporter_run(void *arg)
{
    tr_reporter_t *r = arg;

    pthread_setname_np(pthread_self(), "tr-reporter");
    tell_time(r);
    while (atomic_load(&r->stop) == 0) {
        /* who is idle is woken by the next arrival; else a flush is due */
        bool idle = !busy(r)
                    && tr_ring_sleep(&r->report.from_front) == TR_AGAIN;

        wait_events(r, next_deadline(r, idle));
        turn(r);
    }
    say_goodbye(r);
    return NULL;
}

/* ---- start and stop ----------------------------------------------------- */

tr_report_t *
tr_reporter_report(tr_reporter_t *r)
{
    return &r->report;
}

static void
reporter_free(tr_reporter_t *r)
{
    tr_redis_link_free(&r->data);
    tr_redis_link_free(&r->control);
    tr_ledger_free(&r->ledger);
    tr_report_free(&r->report);
    if (r->wake_fd != -1) {
        close(r->wake_fd);
    }
    free(r->buf);
    free(r->scratch);
    free(r);
}

static tr_status_t
prepare(tr_reporter_t *r, int front_fd, tr_error_t *err)
{
    tr_redis_events_t data = { r, on_up, on_down, on_reply };
    tr_redis_events_t control = { r, on_control_up, on_control_down,
                                  on_control };
    tr_status_t rc;

    r->buf_size = tr_ring_max_payload(TR_REPORT_LOOP_RING);
    r->buf = malloc(r->buf_size);
    r->wake_fd = tr_doorbell_create();
    if (r->buf == NULL || r->wake_fd == -1
        || tr_report_init(&r->report, r->wake_fd, front_fd) != TR_OK) {
        return tr_error_set(err, TR_ERR_NOMEM, "redis",
                            "no memory or descriptors for the reporter");
    }
    tr_ledger_init(&r->ledger, r->config->redis_buffer);
    tr_report_writer_init(&r->writer, r->config, r->status, unix_ms());
    rc = tr_redis_link_init(&r->data, r->config, false, &data, err);
    if (rc == TR_OK) {
        rc = tr_redis_link_init(&r->control, r->config, true, &control, err);
    }
    return rc;
}

tr_status_t
tr_reporter_start(const tr_config_t *config, tr_status_page_t *status,
                  int front_fd, tr_reporter_t **out, tr_error_t *err)
{
    tr_reporter_t *r = calloc(1, sizeof(*r));
    tr_status_t rc;
    int e;

    *out = NULL;
    if (r == NULL) {
        return tr_error_set(err, TR_ERR_NOMEM, "redis",
                            "no memory for the reporter");
    }
    r->config = config;
    r->status = status;
    r->wake_fd = -1;
    rc = prepare(r, front_fd, err);
    if (rc == TR_OK) {
        e = pthread_create(&r->thread, NULL, reporter_run, r);
        if (e != 0) {
            rc = tr_error_set(err, TR_ERR_IO, "redis",
                              "cannot start the reporter: %s", strerror(e));
        }
    }
    if (rc != TR_OK) {
        reporter_free(r);
        return rc;
    }
    *out = r;
    return TR_OK;
}

void
tr_reporter_stop(tr_reporter_t *r)
{
    atomic_store(&r->stop, 1);
    tr_doorbell_ring(r->wake_fd);
    pthread_join(r->thread, NULL);
    reporter_free(r);
}
