/*
 * What the publisher writes, and when (redis_publisher_internal.h): requests as
 * they become due, the engine once a second.
 */
#include "redis_publisher_internal.h"

#include <inttypes.h>
#include <stdlib.h>
#include <time.h>

#define BEAT_TTL_US 5000000u
#define ENGINES_MS 86400000 /* a name that was silent for so long goes */
/* What may be under way: the rest of what is due waits for answers. */
#define UNDER_WAY_MOST 8192u
#define BACKLOG_MOST (1u << 20)

/* ---- writing ------------------------------------------------------------ */

/* Of the command that is about to be sent. */
static uint32_t
n_fields(const tr_redis_publisher_t *r, const tr_outbox_request_t *q)
{
    return (uint32_t) (r->command.n - (tr_outbox_moves(q) ? 5 : 2)) / 2;
}

void
tr_redis_publisher_send(tr_redis_publisher_t *r, uint16_t kind,
                        const tr_outbox_request_t *q)
{
    tr_redis_tag_t tag = { .kind = kind };

    if (q != NULL) {
        tag.id = q->id;
        tag.number = kind == TR_TAG_FIELDS ? n_fields(r, q)
                     : q->unacked != NULL  ? q->unacked->last
                                           : 0;
    }
    tr_redis_link_send(&r->data, &tag, &r->command, r->now_us);
}

static void
send_expire(tr_redis_publisher_t *r, const char *kind, const char *name,
            uint64_t ttl_us)
{
    tr_redis_schema_expire(&r->schema, &r->command, kind, name, ttl_us);
    tr_redis_publisher_send(r, TR_TAG_MINOR, NULL);
}

static bool
fits_scratch(tr_redis_publisher_t *r, size_t need)
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

/* How long the state of q is kept, or its output. */
static uint64_t
request_ttl(const tr_redis_publisher_t *r, const tr_outbox_request_t *q)
{
    return q->answered.text != NULL ? r->config->redis_response_ttl_us
                                    : r->config->redis_request_ttl_us;
}

static uint64_t
output_ttl(const tr_redis_publisher_t *r, const tr_outbox_request_t *q)
{
    return q->answered.text != NULL ? r->config->redis_response_ttl_us
                                    : r->config->redis_output_ttl_us;
}

static void
write_entry(tr_redis_publisher_t *r, tr_outbox_request_t *q)
{
    int64_t now_ms = (int64_t) (r->now_us / 1000);
    int64_t ttl_ms = (int64_t) (output_ttl(r, q) / 1000);

    tr_redis_schema_entry(&r->schema, &r->command, q);
    tr_redis_publisher_send(r, TR_TAG_ENTRY, q);
    q->sending = q->began = q->unacked->sent = true;
    if (q->output_expires_ms == 0 || (q->closed && q->unacked == q->tail)
        || now_ms - q->output_expires_ms > ttl_ms / 4) {
        q->output_expires_ms = now_ms;
        send_expire(r, "out", q->completion, output_ttl(r, q));
    }
    if (!tr_outbox_moves(q) && fits_scratch(r, q->unacked->len + 32)) {
        tr_redis_schema_live(&r->schema, &r->command, q, r->scratch);
        tr_redis_publisher_send(r, TR_TAG_MINOR, NULL);
    }
}

static void
write_fields(tr_redis_publisher_t *r, tr_outbox_request_t *q)
{
    q->writing = q->dirty;
    q->dirty = 0;
    q->expires_ms = (int64_t) (r->now_us / 1000);
    tr_redis_schema_fields(&r->schema, &r->command, q, q->writing);
    tr_redis_publisher_send(r, TR_TAG_FIELDS, q);
    send_expire(r, "req", q->completion, request_ttl(r, q));
    if (q->writing & TR_OUTBOX_IDENTITY) {
        tr_redis_schema_latest(&r->schema, &r->command, q);
        tr_redis_publisher_send(r, TR_TAG_MINOR, NULL);
        r->latest = true;
    }
}

static void
ask_output(tr_redis_publisher_t *r, tr_outbox_request_t *q)
{
    tr_redis_begin(&r->command, "XREVRANGE");
    tr_redis_schema_key(&r->schema, &r->command, "out", q->completion);
    tr_redis_text(&r->command, "+");
    tr_redis_text(&r->command, "-");
    tr_redis_text(&r->command, "COUNT");
    tr_redis_text(&r->command, "1");
    tr_redis_publisher_send(r, TR_TAG_ASK, q);
    q->asking = true;
    /* the one that followed the last entry may not have arrived */
    send_expire(r, "out", q->completion, output_ttl(r, q));
}

static void
write_request(tr_redis_publisher_t *r, tr_outbox_request_t *q)
{
    if (q->epoch != 0 && !q->claimed) {
        q->claimed = true;
        tr_redis_schema_claim(&r->schema, &r->command, q);
        tr_redis_publisher_send(r, TR_TAG_CLAIM, q);
    }
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

void
tr_redis_publisher_flush(tr_redis_publisher_t *r)
{
    tr_outbox_request_t *q;

    r->flushed_us = r->now_us;
    r->hurry = false;
    if (!r->open) {
        return;
    }
    while (r->data.n_pending < UNDER_WAY_MOST
           && tr_redis_link_backlog(&r->data) < BACKLOG_MOST) {
        q = tr_outbox_next(&r->outbox);
        if (q == NULL) {
            return;
        }
        write_request(r, q);
    }
    r->hurry = true;
}

/* ---- once a second ------------------------------------------------------ */

static void
beat_engines(tr_redis_publisher_t *r, int64_t now_ms)
{
    tr_redis_begin(&r->command, "ZADD");
    tr_redis_format(&r->command, "%sengines", r->config->redis_prefix);
    tr_redis_format(&r->command, "%" PRId64, now_ms);
    tr_redis_text(&r->command, r->config->name);
    tr_redis_publisher_send(r, TR_TAG_MINOR, NULL);
    tr_redis_begin(&r->command, "ZREMRANGEBYSCORE");
    tr_redis_format(&r->command, "%sengines", r->config->redis_prefix);
    tr_redis_text(&r->command, "-inf");
    tr_redis_format(&r->command, "%" PRId64, now_ms - ENGINES_MS);
    tr_redis_publisher_send(r, TR_TAG_MINOR, NULL);
    tr_redis_begin(&r->command, "PEXPIRE"); /* nobody is left to remove it */
    tr_redis_format(&r->command, "%sengines", r->config->redis_prefix);
    tr_redis_format(&r->command, "%d", ENGINES_MS);
    tr_redis_publisher_send(r, TR_TAG_MINOR, NULL);
}

static void
trim_latest(tr_redis_publisher_t *r)
{
    tr_redis_begin(&r->command, "ZREMRANGEBYRANK");
    tr_redis_schema_key(&r->schema, &r->command, "requests", r->config->name);
    tr_redis_text(&r->command, "0");
    tr_redis_format(&r->command, "%lld",
                    -(long long) r->config->redis_recent - 1);
    tr_redis_publisher_send(r, TR_TAG_MINOR, NULL);
    send_expire(r, "requests", r->config->name,
                r->config->redis_request_ttl_us);
}

/* Keys of requests that go on for long, or say nothing for long, live as long
 * as these.  Looked at once a second, from a quarter of their time on: the
 * least time that can be set (10 s) leaves room for an outage of some
 * seconds. */
static void
keep_alive(tr_redis_publisher_t *r)
{
    int64_t now_ms = (int64_t) (r->now_us / 1000);
    tr_outbox_request_t *q;

    for (q = r->outbox.first; q != NULL; q = q->next) {
        if (q->ended || q->muted || q->fenced) {
            continue;
        }
        if (q->expires_ms != 0
            && now_ms - q->expires_ms > (int64_t) (request_ttl(r, q) / 4000)) {
            q->dirty |= TR_OUTBOX_STATE;
            tr_outbox_due(&r->outbox, q);
        }
        if (q->output && q->began
            && now_ms - q->output_expires_ms
                   > (int64_t) (output_ttl(r, q) / 4000)) {
            q->output_expires_ms = now_ms;
            send_expire(r, "out", q->completion, output_ttl(r, q));
        }
    }
}

/* Each row has one command under way, so all of them fit. */
void
tr_redis_publisher_usage(tr_redis_publisher_t *r)
{
    tr_usage_t *u = &r->outbox.usage;
    const tr_usage_row_t *row;
    tr_redis_tag_t tag;

    while ((row = tr_usage_next(u)) != NULL) {
        tag = (tr_redis_tag_t){ .id = tr_usage_at(u, row),
                                .number = row->turn,
                                .kind = TR_TAG_USED };
        if (!row->known) {
            tr_redis_schema_used(&r->schema, &r->command, row);
            tr_redis_link_send(&r->data, &tag, &r->command, r->now_us);
            continue;
        }
        tag.kind = TR_TAG_USAGE;
        tr_redis_schema_usage(&r->schema, &r->command, row);
        tr_redis_link_send(&r->data, &tag, &r->command, r->now_us);
        tr_redis_schema_usage_expire(&r->schema, &r->command, row);
        tr_redis_publisher_send(r, TR_TAG_MINOR, NULL);
    }
}

void
tr_redis_publisher_beat(tr_redis_publisher_t *r)
{
    int64_t now_ms = ((int64_t) r->now_us + r->outbox.realtime_us) / 1000;

    r->beat_us = r->now_us;
    tr_redis_publisher_count(r);
    if (r->data.state != TR_LINK_UP) {
        return;
    }
    tr_redis_schema_heartbeat(&r->schema, &r->command, now_ms);
    tr_redis_publisher_send(r, TR_TAG_BEAT, NULL);
    send_expire(r, "engine", r->config->name, BEAT_TTL_US);
    if (!r->open) {
        return; /* first see whether it takes that */
    }
    beat_engines(r, now_ms);
    tr_redis_schema_sample(&r->schema, &r->command, now_ms);
    tr_redis_publisher_send(r, TR_TAG_MINOR, NULL);
    send_expire(r, "metrics", r->config->name, r->config->redis_request_ttl_us);
    tr_redis_schema_card(&r->schema, &r->command);
    tr_redis_publisher_send(r, TR_TAG_MINOR, NULL);
    send_expire(r, "card", r->config->name, r->config->redis_request_ttl_us);
    if (r->latest) {
        trim_latest(r);
        r->latest = false;
    }
    tr_redis_publisher_usage(r);
    keep_alive(r);
}
