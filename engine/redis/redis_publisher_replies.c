/*
 * Redis's replies to the publisher, and what follows from them
 * (redis_publisher_internal.h).
 */
#include "redis_publisher_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
on_entry(tr_redis_publisher_t *r, tr_outbox_request_t *q,
         const redisReply *reply, bool refused)
{
    const tr_outbox_entry_t *e = q->unacked;

    if (e != NULL && e->next != NULL && e->next->next != NULL) {
        r->hurry = true; /* there is more than what gathers anyway */
    }
    if (reply->type == REDIS_REPLY_NIL) {
        /* the stream has gone: evicted, or deleted */
        q->sending = false;
        tr_outbox_found(&r->outbox, q, 0);
    } else if (reply->type != REDIS_REPLY_ERROR
               || strstr(reply->str, "equal or smaller") != NULL) {
        tr_outbox_entry_done(&r->outbox, q, true);
    } else if (refused) {
        tr_outbox_entry_done(&r->outbox, q, false);
    } else {
        tr_outbox_give_up_output(&r->outbox, q);
    }
}

static void
on_request_reply(tr_redis_publisher_t *r, const tr_redis_tag_t *tag,
                 const redisReply *reply, bool refused)
{
    tr_outbox_request_t *q = tr_outbox_find(&r->outbox, tag->id);
    bool error = reply->type == REDIS_REPLY_ERROR;

    if (q == NULL) {
        return;
    }
    if (reply->type == REDIS_REPLY_STATUS
        && strcmp(reply->str, "FENCED") == 0) {
        tr_outbox_fenced(&r->outbox, q);
    } else if (tag->kind == TR_TAG_CLAIM) {
        /* without it, those that had it before can still write */
        q->claimed = !error;
    } else if (tag->kind == TR_TAG_ENTRY) {
        on_entry(r, q, reply, refused);
    } else if (tag->kind == TR_TAG_FIELDS) {
        if (error && !refused) {
            tr_outbox_give_up_fields(&r->outbox, q);
        } else {
            /* HSET says how many fields are new: all of them in a new hash */
            if (reply->type == REDIS_REPLY_INTEGER
                && reply->integer == (long long) tag->number
                && !(q->writing & TR_OUTBOX_IDENTITY)) {
                tr_outbox_fields_gone(q);
            }
            tr_outbox_fields_done(&r->outbox, q, !error);
        }
    } else if (!error) {
        tr_outbox_found(&r->outbox, q, last_number(reply));
    } else if (refused) {
        q->asking = false;
        tr_outbox_due(&r->outbox, q);
    } else {
        tr_outbox_give_up_output(&r->outbox, q);
    }
}

/* Three numbers of HMGET, of which one that is not there is 0. */
static bool
read_used(const redisReply *reply, uint64_t had[3])
{
    const redisReply *e;
    size_t i;

    if (reply->type != REDIS_REPLY_ARRAY || reply->elements != 3) {
        return false;
    }
    for (i = 0; i < 3; i++) {
        e = reply->element[i];
        if (e->type != REDIS_REPLY_STRING && e->type != REDIS_REPLY_NIL) {
            return false;
        }
        had[i] = e->type == REDIS_REPLY_NIL ? 0 : strtoull(e->str, NULL, 10);
    }
    return true;
}

static void
on_usage(tr_redis_publisher_t *r, const tr_redis_tag_t *tag,
         const redisReply *reply)
{
    uint32_t at = (uint32_t) tag->id;
    uint64_t had[3];

    if (tag->kind == TR_TAG_USED && read_used(reply, had)) {
        tr_usage_found(&r->outbox.usage, at, tag->number, had);
    } else {
        tr_usage_written(&r->outbox.usage, at, tag->number,
                         tag->kind == TR_TAG_USAGE
                             && reply->type != REDIS_REPLY_ERROR);
    }
}

/* Where it may not do this, it may still do the rest. */
static bool
is_minor(uint16_t kind)
{
    return kind == TR_TAG_MINOR || kind == TR_TAG_TURN || kind == TR_TAG_USAGE
           || kind == TR_TAG_USED;
}

static void
on_reply(void *ctx, const tr_redis_tag_t *tag, const redisReply *reply)
{
    tr_redis_publisher_t *r = ctx;
    char word[32], reason[64];
    bool refused = false;

    if (reply->type == REDIS_REPLY_ERROR) {
        tr_redis_error_word(reply, word, sizeof(word));
        refused = refuses_all(word)
                  && !(is_minor(tag->kind) && strcmp(word, "NOPERM") == 0);
        atomic_fetch_add_explicit(&r->status->counters.redis_refusals, 1,
                                  memory_order_relaxed);
        if (refused || tag->kind == TR_TAG_BEAT) {
            snprintf(reason, sizeof(reason), "refused with %s", word);
            tr_redis_publisher_outage_begins(r, reason);
        }
        if (strcmp(word, "READONLY") == 0) { /* the name may lead elsewhere */
            tr_redis_link_fail(&r->data, "refused with READONLY");
            r->data.backoff_us = TR_REDIS_PUBLISHER_REFUSED_US;
        }
    } else if (tag->kind == TR_TAG_BEAT && !r->open) {
        tr_redis_publisher_outage_ends(r);
    }
    if (tag->kind == TR_TAG_FIELDS || tag->kind == TR_TAG_ENTRY
        || tag->kind == TR_TAG_ASK || tag->kind == TR_TAG_CLAIM) {
        on_request_reply(r, tag, reply, refused);
    } else if (tag->kind == TR_TAG_TURN) {
        tr_redis_publisher_found(r, tag, reply);
    } else if (tag->kind == TR_TAG_USAGE || tag->kind == TR_TAG_USED) {
        on_usage(r, tag, reply);
    }
}

static void
on_up(void *ctx)
{
    tr_redis_publisher_beat(ctx); /* its answer opens */
}

static void
on_down(void *ctx, const char *reason)
{
    tr_redis_publisher_t *r = ctx;

    tr_redis_publisher_outage_begins(r, reason);
    tr_outbox_reset(&r->outbox);
    tr_redis_publisher_look_up_lost(r);
}

const tr_redis_events_t tr_redis_publisher_data_events = { NULL, on_up, on_down,
                                                           on_reply };
