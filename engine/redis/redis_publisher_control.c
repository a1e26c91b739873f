/*
 * The control channel: what others want of the engine, through Redis
 * (redis_publisher_internal.h).
 */
#include "redis_publisher_internal.h"

#include <string.h>

#include "engine/config/log.h"

static void
on_control_up(void *ctx)
{
    tr_redis_publisher_t *r = ctx;

    tr_redis_begin(&r->command, "SUBSCRIBE");
    tr_redis_schema_key(&r->schema, &r->command, "ctl", r->config->name);
    tr_redis_link_send(&r->control, NULL, &r->command, r->now_us);
}

/* Redis being away is said once, by the other connection. */
static void
on_control_down(void *ctx, const char *reason)
{
    tr_redis_publisher_t *r = ctx;

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
on_message(tr_redis_publisher_t *r, const char *text, size_t len)
{
    tr_outbox_request_t *q;

    if (len != 7 + TR_COMPLETION_LEN || memcmp(text, "cancel ", 7) != 0
        || !is_completion(text + 7)) {
        tr_log(TR_LEVEL_INFO, "redis control message dropped bytes=%zu", len);
        return;
    }
    tr_redis_publisher_take(r); /* it may have arrived just now */
    q = tr_outbox_find_completion(&r->outbox, text + 7);
    if (q == NULL) {
        tr_log(TR_LEVEL_INFO, "cancel of an unknown request");
        return;
    }
    if (q->cancelling) {
        return; /* once is enough */
    }
    tr_log(TR_LEVEL_INFO, "request cancelled id=%s", q->request_id);
    q->cancelling = tr_events_cancel(&r->events, q->id);
    if (!q->cancelling) {
        tr_log(TR_LEVEL_WARN, "too many requests are being cancelled id=%s",
               q->request_id);
    }
}

static void
on_control(void *ctx, const tr_redis_tag_t *tag, const redisReply *reply)
{
    tr_redis_publisher_t *r = ctx;
    char word[32];

    (void) tag;
    if (reply->type == REDIS_REPLY_ERROR) {
        tr_redis_error_word(reply, word, sizeof(word));
        tr_redis_link_fail(&r->control, "refused with %s", word);
        r->control.backoff_us =
            TR_REDIS_PUBLISHER_REFUSED_US; /* it is not for want of a Redis */
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

const tr_redis_events_t tr_redis_publisher_control_events = {
    NULL, on_control_up, on_control_down, on_control
};
