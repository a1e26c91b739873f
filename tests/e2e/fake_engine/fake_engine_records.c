/*
 * What the scripted engine reads in a body and what it writes into the rings:
 * right records and broken ones.
 */
#include "fake_engine.h"

#include <fcntl.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- what the body asks for --------------------------------------------- */

const char *
fake_body_value(const fake_request_t *r, const char *key)
{
    char quoted[64];
    const char *at;

    snprintf(quoted, sizeof(quoted), "\"%s\"", key);
    at = strstr(r->body, quoted);
    if (at == NULL) {
        return NULL;
    }
    at += strlen(quoted);
    while (*at == ' ' || *at == ':') {
        at++;
    }
    return at;
}

uint32_t
fake_body_number(const fake_request_t *r, const char *key, uint32_t otherwise)
{
    const char *at = fake_body_value(r, key);

    return at ? (uint32_t) strtoul(at, NULL, 10) : otherwise;
}

bool
fake_body_true(const fake_request_t *r, const char *key)
{
    const char *at = fake_body_value(r, key);

    return at && strncmp(at, "true", 4) == 0;
}

bool
fake_body_is(const fake_request_t *r, const char *behaviour)
{
    const char *at = fake_body_value(r, "fake");
    size_t n = strlen(behaviour);

    return at && *at == '"' && strncmp(at + 1, behaviour, n) == 0
           && at[n + 1] == '"';
}

/* ---- records ------------------------------------------------------------ */

static bool
put(fake_channel_t *c, uint16_t type, uint64_t id, const void *a, size_t a_len,
    const void *b, size_t b_len, const void *d, size_t d_len)
{
    tr_ring_piece_t pieces[3] = { { a, a_len }, { b, b_len }, { d, d_len } };

    return tr_ring_put(type == TR_RECORD_ACCEPTED ? &c->answers : &c->responses,
                       type, 0, id, pieces, 3)
           == TR_OK;
}

bool
fake_put_accepted(fake_channel_t *c, fake_request_t *r)
{
    static const char model[] = "fake \"model\"", policy[] = "fake\"policy";
    tr_wire_accepted_t head;

    memset(&head, 0, sizeof(head));
    head.endpoint = r->endpoint;
    head.flags =
        (uint16_t) ((fake_body_true(r, "stream") ? TR_ACCEPTED_STREAM : 0)
                    | (fake_body_true(r, "include_usage")
                           ? TR_ACCEPTED_INCLUDE_USAGE
                           : 0)
                    | (fake_body_true(r, "logprobs") ? TR_ACCEPTED_LOGPROBS : 0)
                    | (fake_body_true(r, "continuous_usage_stats")
                           ? TR_ACCEPTED_USAGE_STATS
                           : 0)
                    | (fake_body_true(r, "include_kv") ? TR_ACCEPTED_KV : 0)
                    | (fake_body_is(r, "items") || fake_body_is(r, "arguments")
                               || fake_body_is(r, "hostile_item_kind")
                           ? TR_ACCEPTED_ITEMS
                           : 0));
    head.choices = fake_body_number(r, "choices", 1);
    head.prompt_tokens = 7;
    head.model_len = sizeof(model) - 1;
    head.created = 1700000000;
    head.policy_len = sizeof(policy) - 1;
    memset(head.model_id, FAKE_MODEL_ID, sizeof(head.model_id));
    return put(c, TR_RECORD_ACCEPTED, r->id, &head, sizeof(head), model,
               sizeof(model) - 1, policy, sizeof(policy) - 1);
}

/* One token's entry with two alternatives; the second is no UTF-8. */
static size_t
logprob_entry(uint8_t *out, const char *text, size_t len, float logprob)
{
    tr_wire_logprob_t head = { 5, logprob, (uint16_t) len, 2, 0 };
    tr_wire_top_t top = { 5, logprob, (uint16_t) len, 0 };
    uint8_t *at = out;

    memcpy(at, &head, sizeof(head));
    at += sizeof(head);
    memcpy(at, text, len);
    at += len;
    memcpy(at, &top, sizeof(top));
    at += sizeof(top);
    memcpy(at, text, len);
    at += len;
    top.bytes_len = 2;
    top.logprob = -INFINITY;
    memcpy(at, &top, sizeof(top));
    at += sizeof(top);
    memcpy(at, "\xe2\x82", 2);
    return (size_t) (at + 2 - out);
}

bool
fake_put_text(fake_channel_t *c, fake_request_t *r, uint32_t choice,
              const char *text, size_t len)
{
    tr_wire_delta_t head = { .choice = choice,
                             .tokens = 1,
                             .text_len = (uint32_t) len };
    uint8_t rest[2048]; /* logprobs, ids */
    int32_t id = (int32_t) r->sent;

    if (fake_body_true(r, "logprobs")) {
        head.logprobs_len = (uint32_t) logprob_entry(rest, text, len,
                                                     r->sent == 0 ? NAN
                                                                  : -0.25f);
    }
    if (r->with_ids) {
        head.ids_len = sizeof(id);
        memcpy(rest + head.logprobs_len, &id, sizeof(id));
    }
    return put(c, TR_RECORD_DELTA, r->id, &head, sizeof(head), text, len, rest,
               head.logprobs_len + head.ids_len);
}

static bool
put_item(fake_channel_t *c, fake_request_t *r, uint32_t choice, uint16_t kind,
         uint32_t index)
{
    tr_wire_item_t head = { .choice = choice, .kind = kind, .index = index };
    char id[32], name[32];

    if (kind == TR_ITEM_TOOL_CALL) {
        head.id_len = (uint32_t) snprintf(id, sizeof(id), "call_%u_%u", choice,
                                          index);
        head.name_len = (uint32_t) snprintf(name, sizeof(name), "find_%u",
                                            index);
    }
    return put(c, TR_RECORD_ITEM, r->id, &head, sizeof(head), id, head.id_len,
               name, head.name_len);
}

void
fake_put_items(fake_channel_t *c, fake_request_t *r, uint32_t choice)
{
    static const char *const arguments[] = { "{\"q\": \"", "\\\"\xc3\xa9\\n",
                                             "\xf0\x9f\x98\x80\"}" };
    uint32_t n = fake_body_number(r, "count", 1), i;

    put_item(c, r, choice, TR_ITEM_REASONING, 0);
    fake_put_text(c, r, choice, "hm \"\xc3\xa9\"\n", 8);
    fake_put_text(c, r, choice, "yes", 3);
    put_item(c, r, choice, TR_ITEM_TEXT, 0);
    fake_put_text(c, r, choice, "so: ", 4);
    r->sent += 3;
    for (i = 0; i < n; i++) {
        put_item(c, r, choice, TR_ITEM_TOOL_CALL, i);
        for (size_t k = 0; k < 3; k++) {
            fake_put_text(c, r, choice, arguments[k], strlen(arguments[k]));
            r->sent++;
        }
    }
}

void
fake_put_arguments(fake_channel_t *c, fake_request_t *r)
{
    put_item(c, r, 0, TR_ITEM_TOOL_CALL, 0);
    fake_put_text(c, r, 0, "{\"q\": \"\\\0\"}", 11);
    put_item(c, r, 0, TR_ITEM_TOOL_CALL, 1);
    fake_put_text(c, r, 0, "{\"q\": \"\xff\"}", 10);
    r->sent += 2;
}

bool
fake_put_kv(fake_channel_t *c, fake_request_t *r, uint32_t choice)
{
    tr_wire_kv_t kv;

    memset(&kv, 0, sizeof(kv));
    kv.choice = choice;
    kv.usage.bytes = 300 + r->sent;
    kv.usage.full_bytes = 1000;
    kv.usage.tokens_full = 1;
    kv.usage.tokens_high = 2;
    kv.usage.tokens_low = 3;
    kv.usage.tokens_pruned = 4 + r->sent;
    return put(c, TR_RECORD_KV, r->id, &kv, sizeof(kv), NULL, 0, NULL, 0);
}

bool
fake_put_finish(fake_channel_t *c, fake_request_t *r, uint32_t choice,
                uint16_t reason, bool last)
{
    tr_wire_finish_t f;

    memset(&f, 0, sizeof(f));
    f.choice = choice;
    f.reason = reason;
    f.flags = last ? TR_FINISH_LAST : 0;
    f.prompt_tokens = 7;
    f.completion_tokens = r->sent;
    f.choice_tokens = r->sent / fake_body_number(r, "choices", 1);
    f.cached_tokens = 3;
    f.reasoning_tokens = reason == TR_FINISH_TOOL_CALLS ? 2 : 0;
    f.kv.bytes = 250;
    f.kv.full_bytes = 1000;
    return put(c, TR_RECORD_FINISH, r->id, &f, sizeof(f), NULL, 0, NULL, 0);
}

bool
fake_put_error(fake_channel_t *c, fake_request_t *r, tr_status_t status)
{
    static const char param[] = "messages[0]";
    static const char message[] = "the fake engine says \"no\"";
    tr_wire_error_t head;

    memset(&head, 0, sizeof(head));
    head.status = status;
    head.param_len = sizeof(param) - 1;
    head.message_len = sizeof(message) - 1;
    head.retry_after_s = status == TR_ERR_QUEUE_FULL ? 3 : 0;
    return put(c, TR_RECORD_ERROR, r->id, &head, sizeof(head), param,
               sizeof(param) - 1, message, sizeof(message) - 1);
}

/* Hangs up and goes on: its ring, full of the smallest records (of a request
 * that nobody knows), is full again at no cost as soon as some of them were
 * taken. */
static void
flood(fake_channel_t *c, fake_request_t *r)
{
    const tr_record_t nobodys = { 0, TR_RECORD_STARTED, 0,
                                  r->id + (1ull << 32) };
    tr_ring_shared_t *ring = c->map.response;
    uint64_t end = fake_now_us() + 20000000, at;

    /* they begin at a multiple of their size, in a ring that is empty */
    fake_put_text(c, r, 0, "12345678", c->responses.tail & 8);
    tr_ring_publish(&c->responses);
    tr_doorbell_ring(c->to_peer);
    while (atomic_load(&ring->head) != c->responses.tail
           && fake_now_us() < end) {
    }
    for (at = 0; at < c->map.response_capacity; at += sizeof(nobodys)) {
        memcpy(c->map.response_data + at, &nobodys, sizeof(nobodys));
    }
    atomic_store(&ring->tail, c->responses.tail + at);
    close(c->sock);
    while (!fake_stopping && fake_now_us() < end) {
        atomic_store(&ring->tail, atomic_load(&ring->head) + at);
    }
    exit(0);
}

void
fake_put_hostile(fake_channel_t *c, fake_request_t *r, const char *how)
{
    tr_wire_delta_t delta = { .tokens = 1, .text_len = 1 };
    tr_wire_finish_t f;

    memset(&f, 0, sizeof(f));
    if (strcmp(how, "type") == 0) {
        put(c, 77, r->id, "?", 1, NULL, 0, NULL, 0);
    } else if (strcmp(how, "short") == 0) {
        put(c, TR_RECORD_DELTA, r->id, &delta, 7, NULL, 0, NULL, 0);
    } else if (strcmp(how, "long") == 0) {
        put(c, TR_RECORD_DELTA, r->id, &delta, sizeof(delta), "abc", 3, NULL,
            0);
    } else if (strcmp(how, "length") == 0) {
        delta.text_len = 0xfffffff0;
        put(c, TR_RECORD_DELTA, r->id, &delta, sizeof(delta), "a", 1, NULL, 0);
    } else if (strcmp(how, "choice") == 0) {
        delta.choice = 1u << 31;
        put(c, TR_RECORD_DELTA, r->id, &delta, sizeof(delta), "a", 1, NULL, 0);
    } else if (strcmp(how, "logprobs") == 0) {
        delta.text_len = 0;
        delta.logprobs_len = 13;
        put(c, TR_RECORD_DELTA, r->id, &delta, sizeof(delta),
            "\0\0\0\0\0\0\0\0\377\377\377\377!", 13, NULL, 0);
    } else if (strcmp(how, "item") == 0) { /* ACCEPTED did not say so */
        put_item(c, r, 0, TR_ITEM_REASONING, 0);
    } else if (strcmp(how, "item_kind") == 0) {
        put_item(c, r, 0, 9, 0);
    } else if (strcmp(how, "echo") == 0) { /* behind ACCEPTED */
        put(c, TR_RECORD_ECHO, r->id, "\"a\":1", 5, NULL, 0, NULL, 0);
    } else if (strcmp(how, "vector") == 0) { /* for a chat */
        tr_wire_result_t vector = { .kind = TR_RESULT_EMBEDDING, .len = 4 };

        put(c, TR_RECORD_RESULT, r->id, &vector, sizeof(vector), "\0\0\0\0", 4,
            NULL, 0);
    } else if (strcmp(how, "twice") == 0) {
        fake_put_accepted(c, r);
    } else if (strcmp(how, "reason") == 0) {
        f.reason = 99;
        put(c, TR_RECORD_FINISH, r->id, &f, sizeof(f), NULL, 0, NULL, 0);
    } else if (strcmp(how, "again") == 0) {
        fake_put_finish(c, r, 0, TR_FINISH_STOP, false);
        fake_put_finish(c, r, 0, TR_FINISH_STOP, true);
    } else if (strcmp(how, "last") == 0) {
        fake_put_finish(c, r, 0, TR_FINISH_STOP, true); /* with choices > 1 */
    } else if (strcmp(how, "abort") == 0) { /* an abort is always the last */
        fake_put_finish(c, r, 0, TR_FINISH_ABORTED, false);
    } else if (strcmp(how, "error") == 0) {
        put(c, TR_RECORD_ERROR, r->id, "\0\0\0\0", 4, NULL, 0, NULL, 0);
    } else if (strcmp(how, "header") == 0) {
        uint64_t at = c->responses.tail & (c->responses.capacity - 1);

        put(c, TR_RECORD_DELTA, r->id, &delta, sizeof(delta), "a", 1, NULL, 0);
        memset(c->responses.data + at, 0xff, 4);
    } else if (strcmp(how, "tail") == 0) {
        tr_ring_publish(&c->answers);
        tr_ring_publish(&c->responses);
        atomic_store(&c->map.response->tail, UINT64_MAX - 6);
        tr_doorbell_ring(c->to_peer);
        c->wrecked = true;
    } else if (strcmp(how, "head") == 0) {
        atomic_store(&c->map.request->head, UINT64_MAX - 7);
        c->wrecked = true;
    } else if (strcmp(how, "trap") == 0) {
        c->wrecked = c->trap = true;
    } else if (strcmp(how, "bell") == 0) { /* whoever rings waits for ever */
        const uint64_t full = UINT64_MAX - 1;
        int flags = fcntl(c->to_engine, F_GETFL);

        tr_doorbell_drain(c->to_engine);
        if (fcntl(c->to_engine, F_SETFL, flags & ~O_NONBLOCK) != 0
            || write(c->to_engine, &full, sizeof(full)) != sizeof(full)) {
            fake_die("doorbell");
        }
        atomic_store(&c->map.request->consumer_asleep, 1);
        fake_put_text(c, r, 0, "!", 1); /* says that it is done */
        tr_ring_publish(&c->responses);
        tr_doorbell_ring(c->to_peer);
        c->wrecked = true;
    } else if (strcmp(how, "flood") == 0) {
        flood(c, r);
    } else if (strcmp(how, "dead") == 0) { /* harmless: nobody's ids */
        put(c, TR_RECORD_DELTA, TR_ID(4000, 9), &delta, sizeof(delta), "a", 1,
            NULL, 0);
        put(c, TR_RECORD_DELTA, UINT64_MAX, &delta, sizeof(delta), "a", 1, NULL,
            0);
        put(c, 78, r->id + (1ull << 32), "?", 1, NULL, 0, NULL, 0);
        fake_put_finish(c, r, 0, TR_FINISH_STOP, true);
    }
    r->ended = true;
}
