/*
 * Responses that are asked for by parser threads (kept.h), read from Redis on
 * the connection that writes: so what was written before is there.
 *
 * Of each turn, first who may see it, its input and its ancestors (tr:req),
 * then its records in pages (tr:out): one command at a time, for all turns at
 * once.  What this engine has not written yet is waited for, and so is what
 * another one writes: a client may go on the moment that it has its answer.
 * After TR_LOOKUP_US a lookup ends, whatever Redis does.
 */
#include "redis_publisher_internal.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "engine/config/log.h"
#include "engine/scheduler/kept.h"

#define PAGE 64u          /* entries of tr:out */
#define AGAIN_US 250000u  /* until one that is not there is looked for again */
#define RUNNING_US 50000u /* until one that goes on is */
#define TRIES 2u

/* ---- the end of a lookup ------------------------------------------------ */

static void
keep_longer(tr_redis_publisher_t *r, const tr_turn_t *turn)
{
    static const char *const kinds[] = { "req", "out" };
    unsigned i;

    for (i = 0; !turn->missing && i < 2; i++) {
        tr_redis_schema_expire(&r->schema, &r->command, kinds[i], turn->id,
                               r->config->redis_response_ttl_us);
        tr_redis_publisher_send(r, TR_TAG_MINOR, NULL);
    }
}

static void
finish(tr_redis_publisher_t *r, tr_lookup_t *l)
{
    tr_lookup_t **at = &r->lookups;
    uint32_t i;

    while (*at != l) {
        at = &(*at)->next;
    }
    *at = l->next;
    if (l->error.status == TR_OK) {
        for (i = 0; i < l->n_turns; i++) {
            keep_longer(r, &l->turns[i]);
        }
    }
    l->done(l);
}

/* No other error of it counts any more; it ends in this turn of the thread. */
static void
fail(tr_lookup_t *l, tr_status_t status, const char *param, const char *text)
{
    if (l->error.status == TR_OK) {
        tr_error_set(&l->error, status, param, "%s", text);
    }
}

static void
fail_away(tr_lookup_t *l)
{
    fail(l, TR_ERR_NO_REDIS, "",
         "Responses that are kept cannot be read at the moment");
}

/* What the body goes on from must be there, all of it. */
static void
fail_turn(tr_lookup_t *l, const tr_turn_t *turn, const char *why)
{
    char text[160];

    snprintf(text, sizeof(text), "Previous response with id 'resp_%s' %s",
             turn->id, why);
    fail(l,
         strcmp(why, "not found.") == 0 ? TR_ERR_NO_RESPONSE : TR_ERR_INVALID,
         "previous_response_id", text);
}

static void
miss(tr_lookup_t *l, tr_turn_t *turn)
{
    turn->missing = turn->complete = true;
    if (turn->conversation) {
        fail_turn(l, turn, "not found.");
    }
}

/* ---- questions ---------------------------------------------------------- */

static void
send_turn(tr_redis_publisher_t *r, tr_lookup_t *l, tr_turn_t *turn)
{
    tr_redis_tag_t tag = { .id = l->number,
                           .number = (uint32_t) (turn - l->turns),
                           .kind = TR_TAG_TURN };

    if (!turn->known) {
        tr_redis_begin(&r->command, "HMGET");
        tr_redis_schema_key(&r->schema, &r->command, "req", turn->id);
        tr_redis_text(&r->command, "holder");
        tr_redis_text(&r->command, turn->conversation ? "input" : "holder");
        tr_redis_text(&r->command, "ancestors");
    } else {
        tr_redis_begin(&r->command, "XRANGE");
        tr_redis_schema_key(&r->schema, &r->command, "out", turn->id);
        tr_redis_format(&r->command, "%u-1", turn->last);
        tr_redis_text(&r->command, "+");
        tr_redis_text(&r->command, "COUNT");
        tr_redis_format(&r->command, "%u", PAGE);
    }
    tr_redis_link_send(&r->data, &tag, &r->command, r->now_us);
    turn->asked = true;
}

static void
advance(tr_redis_publisher_t *r, tr_lookup_t *l)
{
    bool complete = true;
    tr_turn_t *turn;
    uint32_t i;

    if (!r->open) {
        fail_away(l);
    }
    for (i = 0; i < l->n_turns && l->error.status == TR_OK; i++) {
        turn = &l->turns[i];
        if (turn->complete || turn->asked || r->now_us < turn->again_us) {
            continue;
        }
        if (r->now_us < l->deadline_us && turn->known
            && tr_outbox_holds(&r->outbox, turn->id)) {
            turn->running = true;
            turn->again_us = r->now_us + r->config->redis_flush_us;
        } else if (r->now_us < l->deadline_us) {
            send_turn(r, l, turn);
        } else if (!turn->known) {
            miss(l, turn);
        } else if (turn->running && turn->conversation) {
            fail_turn(l, turn, "is still being generated.");
        }
    }
    for (i = 0; i < l->n_turns; i++) {
        complete &= l->turns[i].complete;
    }
    if (r->now_us >= l->deadline_us && !complete) {
        fail_away(l);
    }
    if (complete || l->error.status != TR_OK) {
        finish(r, l);
    }
}

void
tr_redis_publisher_look_up(tr_redis_publisher_t *r)
{
    tr_lookup_t *l = tr_lookup_take(&r->events), *next, **at = &r->lookups;

    while (*at != NULL) {
        at = &(*at)->next;
    }
    *at = l;
    if (r->lookups == NULL) {
        return;
    }
    for (; l != NULL; l = l->next) {
        l->number = ++r->next_lookup;
        l->deadline_us = r->now_us + TR_LOOKUP_US;
    }
    tr_redis_publisher_take(r); /* what one refers to may have come just now */
    for (l = r->lookups; l != NULL; l = next) {
        next = l->next;
        advance(r, l);
    }
}

/* ---- answers ------------------------------------------------------------ */

static bool
text_of(const redisReply *reply, const char **text, size_t *len)
{
    if (reply->type != REDIS_REPLY_STRING) {
        return false;
    }
    *text = reply->str;
    *len = (size_t) reply->len;
    return true;
}

/* Neither time nor anything else tells how much of it is right. */
static bool
is_holder(const tr_lookup_t *l, const redisReply *reply)
{
    char own[2 * TR_HOLDER + 1];
    unsigned differ = 0, i;
    const char *text;
    size_t len;

    tr_redis_schema_holder(l->holder, own);
    if (!text_of(reply, &text, &len) || len != 2 * TR_HOLDER) {
        return false;
    }
    for (i = 0; i < 2 * TR_HOLDER; i++) {
        differ |= (unsigned) (own[i] ^ text[i]);
    }
    return differ == 0;
}

static bool
has_room(tr_lookup_t *l, size_t n)
{
    l->bytes += n;
    if (l->bytes > TR_TURNS_BYTES) {
        fail(l, TR_ERR_INVALID, "previous_response_id",
             "The conversation that 'previous_response_id' continues is "
             "larger than 8 MiB.");
        return false;
    }
    return true;
}

/* The conversation ahead of the previous response.  Moves l->turns. */
static void
take_ancestors(tr_lookup_t *l, const char *ids, size_t len)
{
    size_t i;

    if (len % TR_COMPLETION_LEN != 0) {
        fail_turn(l, &l->turns[0], "not found.");
        return;
    }
    for (i = 0; i < len; i += TR_COMPLETION_LEN) {
        if (!tr_wire_is_hex(ids + i, TR_COMPLETION_LEN)) {
            fail_turn(l, &l->turns[0], "not found.");
            return;
        }
        if (!tr_lookup_add(l, ids + i, true)) {
            fail(l, TR_ERR_INVALID, "previous_response_id",
                 "The conversation that 'previous_response_id' continues "
                 "has more than 256 responses.");
            return;
        }
    }
}

static void
take_fields(tr_redis_publisher_t *r, tr_lookup_t *l, uint32_t number,
            const redisReply *reply)
{
    tr_turn_t *turn = &l->turns[number];
    const char *text;
    size_t len;

    if (reply->type != REDIS_REPLY_ARRAY || reply->elements != 3
        || !is_holder(l, reply->element[0])
        || !text_of(reply->element[1], &text, &len)) {
        /* of another owner: looked for as often, so that time tells nothing;
         * or ours, and still to be written */
        if (!tr_outbox_holds(&r->outbox, turn->id) && ++turn->tries == TRIES) {
            miss(l, turn);
        }
        turn->again_us = r->now_us + AGAIN_US;
        return;
    }
    turn->known = true;
    turn->tries = 0;
    if (!turn->conversation || !has_room(l, len)) {
        return;
    }
    turn->input = malloc(len + 1);
    if (turn->input == NULL) {
        fail(l, TR_ERR_NOMEM, "", "out of memory");
        return;
    }
    memcpy(turn->input, text, len);
    turn->input_len = len;
    if (number == 0 && text_of(reply->element[2], &text, &len)) {
        take_ancestors(l, text, len);
    }
}

/* Records of an entry, or nothing if they are none; *end: FINISH or ERROR, if
 * one is the last of its request: one that was aborted has failed. */
static bool
check_records(const uint8_t *bytes, size_t len, uint16_t *end)
{
    const uint8_t *payload;
    tr_wire_finish_t finish;
    size_t at = 0;
    tr_record_t rec;
    tr_status_t rc;

    while ((rc = tr_kept_record(bytes, len, &at, &rec, &payload)) == TR_OK) {
        if (rec.type == TR_RECORD_ERROR
            || (rec.type == TR_RECORD_FINISH
                && tr_wire_finish_parse(payload, rec.length, &finish, NULL)
                       == TR_OK
                && (finish.flags & TR_FINISH_LAST) != 0)) {
            *end = rec.type == TR_RECORD_FINISH
                           && finish.reason == TR_FINISH_ABORTED
                       ? TR_RECORD_ERROR
                       : rec.type;
        }
    }
    return rc == TR_AGAIN;
}

/* {"LAST-0", {"r", records}} */
static bool
take_entry(tr_lookup_t *l, tr_turn_t *turn, const redisReply *entry,
           uint16_t *end)
{
    const redisReply *fields;
    const char *id, *bytes;
    uint8_t *grown;
    size_t len;

    if (entry->type != REDIS_REPLY_ARRAY || entry->elements != 2
        || !text_of(entry->element[0], &id, &len)) {
        return false;
    }
    turn->last = (uint32_t) strtoul(id, NULL, 10);
    fields = entry->element[1];
    if (fields->type != REDIS_REPLY_ARRAY || fields->elements != 2
        || !text_of(fields->element[1], &bytes, &len) || len == 0
        || !check_records((const uint8_t *) bytes, len, end)
        || !has_room(l, len)) {
        return false;
    }
    grown = realloc(turn->output, turn->output_len + len);
    if (grown == NULL) {
        return false;
    }
    memcpy(grown + turn->output_len, bytes, len);
    turn->output = grown;
    turn->output_len += len;
    return true;
}

static void
take_page(tr_redis_publisher_t *r, tr_lookup_t *l, tr_turn_t *turn,
          const redisReply *reply)
{
    uint16_t end = 0;
    size_t i;

    if (reply->type != REDIS_REPLY_ARRAY) {
        miss(l, turn);
        return;
    }
    for (i = 0; i < reply->elements; i++) {
        if (!take_entry(l, turn, reply->element[i], &end)) {
            miss(l, turn);
            return;
        }
    }
    if (end == TR_RECORD_FINISH) {
        turn->complete = true;
    } else if (end == TR_RECORD_ERROR && turn->conversation) {
        fail_turn(l, turn,
                  "has failed, or was cancelled: nothing can go on "
                  "from it.");
    } else if (end == TR_RECORD_ERROR) {
        turn->missing = turn->complete = true;
    } else if (turn->last == 0 && ++turn->tries == TRIES) {
        miss(l, turn); /* its output is gone, or never came */
    } else if (reply->elements < PAGE) {
        turn->running = true;
        turn->again_us = r->now_us + (turn->last == 0 ? AGAIN_US : RUNNING_US);
    }
}

void
tr_redis_publisher_found(tr_redis_publisher_t *r, const tr_redis_tag_t *tag,
                         const redisReply *reply)
{
    tr_lookup_t *l = r->lookups;
    tr_turn_t *turn;

    while (l != NULL && l->number != tag->id) {
        l = l->next;
    }
    if (l == NULL || l->error.status != TR_OK) {
        return;
    }
    turn = &l->turns[tag->number];
    turn->asked = false;
    if (reply->type == REDIS_REPLY_ERROR) {
        if (strncmp(reply->str, "WRONGTYPE", 9) == 0) {
            miss(l, turn);
        } else {
            fail_away(l);
        }
    } else if (!turn->known) {
        take_fields(r, l, tag->number, reply);
    } else {
        take_page(r, l, turn, reply);
    }
}

uint64_t
tr_redis_publisher_look_up_at(const tr_redis_publisher_t *r)
{
    const tr_lookup_t *l;
    uint64_t at = UINT64_MAX;
    uint32_t i;

    for (l = r->lookups; l != NULL; l = l->next) {
        at = l->deadline_us < at ? l->deadline_us : at;
        for (i = 0; i < l->n_turns; i++) {
            const tr_turn_t *turn = &l->turns[i];

            if (!turn->complete && !turn->asked && turn->again_us < at) {
                at = turn->again_us;
            }
        }
    }
    return at;
}

/* The connection is lost, and the answers with it. */
void
tr_redis_publisher_look_up_lost(tr_redis_publisher_t *r)
{
    tr_lookup_t *l;

    for (l = r->lookups; l != NULL; l = l->next) {
        fail_away(l);
    }
}
