/*
 * An engine that does what a test asks: correct, slow, dead or hostile.
 *
 *     fake_engine SOCKET [--refuse | --mute | --full | --draining | --stalled]
 *
 * It speaks the channel (include/tokenring) and computes nothing.  What happens
 * to a request is in its body, which is searched, not parsed:
 *
 *     {"fake": "BEHAVIOUR", "count": N, "ms": N, "choices": N, "stream": true,
 *      "include_usage": true, "logprobs": true}
 *
 *     tokens       count tokens "t0 t1 ...", one every ms (0: at once)
 *     deaf         the same, but a pause is not heard
 *     length       one token: how many bytes the body had, and their sum
 *     never        nothing, but an abort is answered
 *     silent       nothing at all
 *     die          count tokens, then the process ends
 *     error        ERROR with status -count, before anything else
 *     late_error   count tokens, then ERROR
 *     abort        count tokens, then FINISH(aborted) that nobody asked for
 *     escapes      one token with everything that JSON must escape
 *     items        reasoning, text, and count calls
 *     hostile_X    ACCEPTED, one token, then what X in hostile() says;
 *                  hostile_flood also ends the process, 20 s later at most
 *
 * On the command line: --refuse answers every HELLO with another version,
 * --mute never answers, the others show that state on the status page.
 * One thread, no allocation after a channel is made; it ends on SIGTERM.
 */
#include <tokenring/channel.h>
#include <tokenring/wire.h>

#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/un.h>
#include <time.h>

#define CHANNELS 16
#define SLOTS 4096
#define BODY_KEPT 512
#define RING_PAYLOAD_MAX (TR_RING_MAX / 4)

typedef struct {
    uint64_t id; /* 0: free */
    bool complete;
    bool accepted;
    bool ended;
    uint16_t endpoint;
    uint32_t sent;
    uint64_t next_us;
    uint64_t body_len;
    uint64_t body_sum;
    uint32_t kept;
    char body[BODY_KEPT + 1];
} fake_request_t;

typedef struct {
    int sock; /* -1: free */
    bool open;
    bool wrecked; /* its rings and its doorbell must stay as they are */
    bool trap;    /* but for an index, when a body waits for space */
    tr_channel_map_t map;
    tr_ring_consumer_t requests;
    tr_ring_producer_t answers;
    tr_ring_producer_t responses;
    int to_engine;
    int to_peer;
    fake_request_t *slot;
} fake_channel_t;

static fake_channel_t channels[CHANNELS];
static tr_status_page_t *page;
static int status_fd;
static uint8_t *scratch;
static bool refuse, mute;
static volatile sig_atomic_t stopping;

static void
on_signal(int signo)
{
    (void) signo;
    stopping = 1;
}

static uint64_t
now_us(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t) ts.tv_sec * 1000000 + (uint64_t) ts.tv_nsec / 1000;
}

static void
die(const char *what)
{
    fprintf(stderr, "fake_engine: %s: %s\n", what, strerror(errno));
    exit(1);
}

/* ---- what the body asks for --------------------------------------------- */

static const char *
body_value(const fake_request_t *r, const char *key)
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

static uint32_t
body_number(const fake_request_t *r, const char *key, uint32_t otherwise)
{
    const char *at = body_value(r, key);

    return at ? (uint32_t) strtoul(at, NULL, 10) : otherwise;
}

static bool
body_true(const fake_request_t *r, const char *key)
{
    const char *at = body_value(r, key);

    return at && strncmp(at, "true", 4) == 0;
}

static bool
body_fake(const fake_request_t *r, const char *behaviour)
{
    const char *at = body_value(r, "fake");
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

static bool
put_accepted(fake_channel_t *c, fake_request_t *r)
{
    static const char model[] = "fake \"model\"", policy[] = "fake\"policy";
    tr_wire_accepted_t head;

    memset(&head, 0, sizeof(head));
    head.endpoint = r->endpoint;
    head.flags = (uint16_t) ((body_true(r, "stream") ? TR_ACCEPTED_STREAM : 0)
                             | (body_true(r, "include_usage")
                                    ? TR_ACCEPTED_INCLUDE_USAGE
                                    : 0)
                             | (body_true(r, "logprobs") ? TR_ACCEPTED_LOGPROBS
                                                         : 0)
                             | (body_true(r, "continuous_usage_stats")
                                    ? TR_ACCEPTED_USAGE_STATS
                                    : 0)
                             | (body_true(r, "include_kv") ? TR_ACCEPTED_KV : 0)
                             | (body_fake(r, "items")
                                        || body_fake(r, "hostile_item_kind")
                                    ? TR_ACCEPTED_ITEMS
                                    : 0));
    head.choices = body_number(r, "choices", 1);
    head.prompt_tokens = 7;
    head.model_len = sizeof(model) - 1;
    head.created = 1700000000;
    head.policy_len = sizeof(policy) - 1;
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

static bool
put_text(fake_channel_t *c, fake_request_t *r, uint32_t choice,
         const char *text, size_t len)
{
    tr_wire_delta_t head = { .choice = choice,
                             .tokens = 1,
                             .text_len = (uint32_t) len };
    uint8_t logprobs[2048];

    if (body_true(r, "logprobs")) {
        head.logprobs_len = (uint32_t) logprob_entry(logprobs, text, len,
                                                     r->sent == 0 ? NAN
                                                                  : -0.25f);
    }
    return put(c, TR_RECORD_DELTA, r->id, &head, sizeof(head), text, len,
               logprobs, head.logprobs_len);
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

/* One choice that thinks, speaks and calls. */
static void
put_items(fake_channel_t *c, fake_request_t *r, uint32_t choice)
{
    static const char *const arguments[] = { "{\"q\": \"", "\\\"\xc3\xa9\\n",
                                             "\xf0\x9f\x98\x80\"}" };
    uint32_t n = body_number(r, "count", 1), i;

    put_item(c, r, choice, TR_ITEM_REASONING, 0);
    put_text(c, r, choice, "hm \"\xc3\xa9\"\n", 8);
    put_text(c, r, choice, "yes", 3);
    put_item(c, r, choice, TR_ITEM_TEXT, 0);
    put_text(c, r, choice, "so: ", 4);
    r->sent += 3;
    for (i = 0; i < n; i++) {
        put_item(c, r, choice, TR_ITEM_TOOL_CALL, i);
        for (size_t k = 0; k < 3; k++) {
            put_text(c, r, choice, arguments[k], strlen(arguments[k]));
            r->sent++;
        }
    }
}

/* What r holds of the KV cache, which grows. */
static bool
put_kv(fake_channel_t *c, fake_request_t *r, uint32_t choice)
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

static bool
put_finish(fake_channel_t *c, fake_request_t *r, uint32_t choice,
           uint16_t reason, bool last)
{
    tr_wire_finish_t f;

    memset(&f, 0, sizeof(f));
    f.choice = choice;
    f.reason = reason;
    f.flags = last ? TR_FINISH_LAST : 0;
    f.prompt_tokens = 7;
    f.completion_tokens = r->sent;
    f.choice_tokens = r->sent / body_number(r, "choices", 1);
    f.cached_tokens = 3;
    f.reasoning_tokens = reason == TR_FINISH_TOOL_CALLS ? 2 : 0;
    f.kv.bytes = 250;
    f.kv.full_bytes = 1000;
    return put(c, TR_RECORD_FINISH, r->id, &f, sizeof(f), NULL, 0, NULL, 0);
}

static bool
put_error(fake_channel_t *c, fake_request_t *r, tr_status_t status)
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
    uint64_t end = now_us() + 20000000, at;

    /* they begin at a multiple of their size, in a ring that is empty */
    put_text(c, r, 0, "12345678", c->responses.tail & 8);
    tr_ring_publish(&c->responses);
    tr_doorbell_ring(c->to_peer);
    while (atomic_load(&ring->head) != c->responses.tail && now_us() < end) {
    }
    for (at = 0; at < c->map.response_capacity; at += sizeof(nobodys)) {
        memcpy(c->map.response_data + at, &nobodys, sizeof(nobodys));
    }
    atomic_store(&ring->tail, c->responses.tail + at);
    close(c->sock);
    while (!stopping && now_us() < end) {
        atomic_store(&ring->tail, atomic_load(&ring->head) + at);
    }
    exit(0);
}

/* What no engine may send.  Each must cost us the channel, and nothing more. */
static void
hostile(fake_channel_t *c, fake_request_t *r, const char *how)
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
    } else if (strcmp(how, "twice") == 0) {
        put_accepted(c, r);
    } else if (strcmp(how, "reason") == 0) {
        f.reason = 99;
        put(c, TR_RECORD_FINISH, r->id, &f, sizeof(f), NULL, 0, NULL, 0);
    } else if (strcmp(how, "again") == 0) {
        put_finish(c, r, 0, TR_FINISH_STOP, false);
        put_finish(c, r, 0, TR_FINISH_STOP, true);
    } else if (strcmp(how, "last") == 0) {
        put_finish(c, r, 0, TR_FINISH_STOP, true); /* with choices > 1 */
    } else if (strcmp(how, "abort") == 0) { /* an abort is always the last */
        put_finish(c, r, 0, TR_FINISH_ABORTED, false);
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
            die("doorbell");
        }
        atomic_store(&c->map.request->consumer_asleep, 1);
        put_text(c, r, 0, "!", 1); /* says that it is done */
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
        put_finish(c, r, 0, TR_FINISH_STOP, true);
    }
    r->ended = true;
}

/* ---- requests ----------------------------------------------------------- */

static void
request_free(fake_request_t *r)
{
    memset(r, 0, sizeof(*r));
}

static void
take_submit(fake_channel_t *c, const tr_record_t *rec)
{
    fake_request_t *r = &c->slot[TR_ID_SLOT(rec->id) % SLOTS];
    const uint8_t *at = scratch;
    size_t len = rec->length;
    tr_wire_submit_t head;
    tr_wire_bytes_t body;
    size_t i;

    if (r->id != rec->id) {
        if (tr_wire_submit_parse(scratch, len, &head, &body) != TR_OK) {
            fprintf(stderr, "fake_engine: a malformed SUBMIT\n");
            exit(1);
        }
        request_free(r);
        r->id = rec->id;
        r->endpoint = head.endpoint;
        at = (const uint8_t *) body.data;
        len = body.len;
    }
    for (i = 0; i < len; i++) {
        r->body_sum += at[i];
        if (r->kept < BODY_KEPT) {
            r->body[r->kept++] = (char) at[i];
        }
    }
    r->body_len += len;
    r->complete = (rec->flags & TR_FLAG_MORE) == 0;
}

static void
finish_all(fake_channel_t *c, fake_request_t *r, uint16_t reason)
{
    uint32_t i, n = body_number(r, "choices", 1);

    for (i = 0; i < n; i++) {
        put_finish(c, r, i, reason, i + 1 == n);
    }
    request_free(r);
}

/* The next token, or what follows the last one.  False: not now. */
static bool
step(fake_channel_t *c, fake_request_t *r)
{
    uint32_t i, n = body_number(r, "choices", 1);
    char text[128];
    int len;

    if (tr_ring_space(&c->answers) < 256) {
        return false;
    }
    if (tr_ring_space(&c->responses) < 65536 / 4 / 2
        && tr_ring_space(&c->responses) < c->map.response_capacity / 8) {
        return false;
    }
    if (!r->accepted) {
        if (body_fake(r, "error")) {
            put_error(c, r, -(int) body_number(r, "count", 2));
            request_free(r);
            return true;
        }
        r->accepted = true;
        put_accepted(c, r);
        return true;
    }
    if (body_fake(r, "escapes")) {
        static const char all[] = "\"\\/\b\f\n\r\t\x01\x1f\x7f <>&"
                                  "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80"
                                  "\xff\xc0\x80\xed\xa0\x80\xe2\x82";
        put_text(c, r, 0, all, sizeof(all) - 1);
        r->sent = 1;
        finish_all(c, r, TR_FINISH_STOP);
        return true;
    }
    if (body_fake(r, "items")) {
        for (i = 0; i < n; i++) {
            put_items(c, r, i);
        }
        finish_all(c, r, TR_FINISH_TOOL_CALLS);
        return true;
    }
    if (body_fake(r, "length")) {
        len = snprintf(text, sizeof(text), "%llu %llu",
                       (unsigned long long) r->body_len,
                       (unsigned long long) r->body_sum);
        put_text(c, r, 0, text, (size_t) len);
        r->sent = 1;
        finish_all(c, r, TR_FINISH_STOP);
        return true;
    }
    if (r->sent < body_number(r, "count", 1) * n) {
        for (i = 0; i < n; i++) {
            len = snprintf(text, sizeof(text), "t%u ", r->sent / n);
            if (body_true(r, "include_kv")) {
                put_kv(c, r, i);
            }
            put_text(c, r, i, text, (size_t) len);
        }
        r->sent += n;
        return true;
    }
    if (body_fake(r, "die")) {
        tr_ring_publish(&c->answers);
        tr_ring_publish(&c->responses);
        _exit(9);
    }
    if (body_fake(r, "late_error")) {
        put_error(c, r, TR_ERR_INTERNAL);
        request_free(r);
    } else if (body_fake(r, "abort")) {
        finish_all(c, r, TR_FINISH_ABORTED);
    } else {
        const char *how = body_value(r, "fake");

        if (how && strncmp(how, "\"hostile_", 9) == 0) {
            snprintf(text, sizeof(text), "%.*s", (int) strcspn(how + 9, "\""),
                     how + 9);
            hostile(c, r, text);
        } else {
            finish_all(c, r, TR_FINISH_STOP);
        }
    }
    return true;
}

/* Advances a request as far as time and space let it; true: wants more. */
static bool
advance(fake_channel_t *c, fake_request_t *r, uint64_t now)
{
    uint32_t command, budget = 256, ms;

    if (r->id == 0 || !r->complete || r->ended || body_fake(r, "silent")) {
        return false;
    }
    command = tr_control_get(&c->map, r->id);
    if (command & TR_CONTROL_ABORT) {
        put_finish(c, r, 0, TR_FINISH_ABORTED, true);
        request_free(r);
        return false;
    }
    if (body_fake(r, "never")
        || ((command & TR_CONTROL_PAUSE) && !body_fake(r, "deaf"))) {
        return false;
    }
    ms = body_number(r, "ms", 0);
    while (r->id != 0 && !r->ended && budget-- > 0) {
        if (r->next_us > now) {
            return true;
        }
        if (!step(c, r)) {
            return true;
        }
        if (r->accepted && ms != 0 && r->sent > 0) {
            r->next_us = now + 1000ull * ms;
        }
    }
    return r->id != 0 && !r->ended;
}

/* ---- channels ----------------------------------------------------------- */

static void
channel_close(fake_channel_t *c)
{
    close(c->sock);
    c->sock = -1;
    if (c->open) {
        close(c->to_engine);
        close(c->to_peer);
        tr_channel_unmap(&c->map);
        free(c->slot);
        c->open = false;
    }
}

static void
channel_accept(int listener)
{
    int i, sock = accept4(listener, NULL, NULL, SOCK_CLOEXEC);

    for (i = 0; i < CHANNELS; i++) {
        if (channels[i].sock == -1) {
            channels[i].sock = sock;
            return;
        }
    }
    close(sock);
}

static void
channel_hello(fake_channel_t *c)
{
    int fds[TR_CHANNEL_FDS], memfd;
    tr_welcome_t welcome;
    tr_hello_t hello;
    ssize_t n = recv(c->sock, &hello, sizeof(hello), 0);

    if (n != (ssize_t) sizeof(hello) || c->open) {
        channel_close(c);
        return;
    }
    if (mute) {
        return;
    }
    if (refuse) {
        hello.version_min = hello.version_max = TR_ABI_VERSION + 7;
    }
    if (tr_hello_answer(&hello, page->generation, &welcome) != TR_OK) {
        if (refuse) {
            welcome.version_min = welcome.version_max = TR_ABI_VERSION + 7;
        }
        tr_fds_send(c->sock, &welcome, sizeof(welcome), NULL, 0);
        channel_close(c);
        return;
    }
    if (tr_channel_create(SLOTS, hello.request_ring, hello.response_ring,
                          page->generation, &c->map, &memfd)
        != TR_OK) {
        die("channel");
    }
    c->slot = calloc(SLOTS, sizeof(fake_request_t));
    c->to_engine = tr_doorbell_create();
    c->to_peer = tr_doorbell_create();
    c->open = true;
    c->wrecked = c->trap = false;
    tr_ring_consumer_init(&c->requests, c->map.request, c->map.request_data,
                          c->map.request_capacity);
    tr_ring_producer_init(&c->answers, c->map.answer, c->map.answer_data,
                          c->map.answer_capacity);
    tr_ring_producer_init(&c->responses, c->map.response, c->map.response_data,
                          c->map.response_capacity);
    fds[TR_FD_CHANNEL] = memfd;
    fds[TR_FD_TO_ENGINE] = c->to_engine;
    fds[TR_FD_TO_PEER] = c->to_peer;
    fds[TR_FD_STATUS] = status_fd;
    if (tr_fds_send(c->sock, &welcome, sizeof(welcome), fds, TR_CHANNEL_FDS)
        != 0) {
        channel_close(c);
    }
    close(memfd);
}

/* Somebody waits for space: there comes more than there can be. */
static void
spring(fake_channel_t *c)
{
    if (atomic_load(&c->map.request->producer_waiting) != 0) {
        c->trap = false;
        atomic_store(&c->map.request->head, UINT64_MAX - 7);
        tr_doorbell_ring(c->to_peer);
    }
}

/* Drains the requests and advances all; true: do not sleep long. */
static bool
channel_run(fake_channel_t *c, uint32_t *running)
{
    uint64_t now = now_us();
    tr_record_t rec;
    bool busy = false;
    uint32_t w, i;
    int rung;

    if (c->trap) {
        spring(c);
    }
    if (c->wrecked) {
        return false;
    }
    tr_doorbell_drain(c->to_engine);
    while (tr_ring_get(&c->requests, &rec, scratch, RING_PAYLOAD_MAX)
           == TR_OK) {
        if (rec.type == TR_RECORD_SUBMIT) {
            take_submit(c, &rec);
        }
    }
    for (w = 0; w < c->map.slots / 64; w++) {
        tr_control_take(&c->map, w);
    }
    if (tr_ring_release(&c->requests)) {
        tr_doorbell_ring(c->to_peer);
    }
    for (i = 0; i < SLOTS; i++) {
        if (c->slot[i].id != 0) {
            (*running)++;
            busy |= advance(c, &c->slot[i], now);
        }
    }
    if (c->wrecked) {
        return false;
    }
    rung = tr_ring_publish(&c->answers); /* ahead of their output */
    if (tr_ring_publish(&c->responses) || rung) {
        tr_doorbell_ring(c->to_peer);
    }
    return busy || tr_channel_sleep(&c->map, &c->requests) != TR_AGAIN;
}

static void
publish(uint32_t state, uint32_t running, bool full, bool stalled)
{
    tr_status_admission_t a;

    memset(&a, 0, sizeof(a));
    a.state = state;
    a.running = stalled ? 1 : running;
    a.queue_free = full ? 0 : 1000;
    a.last_step_us = stalled ? 1 : now_us();
    a.kv_free_pages = 75;
    a.kv_used_pages[0] = 25;
    tr_status_publish(page, &a);
}

static int
listen_at(const char *path)
{
    struct sockaddr_un addr;
    int s = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    memset(&addr, 0, sizeof(addr));
    addr.sun_family = AF_UNIX;
    snprintf(addr.sun_path, sizeof(addr.sun_path), "%s", path);
    unlink(path);
    if (s == -1 || bind(s, (struct sockaddr *) &addr, sizeof(addr)) != 0
        || chmod(path, 0666) != 0 || listen(s, 64) != 0) {
        die(path);
    }
    return s;
}

static void
serve(int listener, uint32_t state, bool full, bool stalled)
{
    bool busy = false;

    while (!stopping) {
        struct pollfd p[1 + 2 * CHANNELS];
        uint32_t running = 0;
        int i;

        p[0] = (struct pollfd){ listener, POLLIN, 0 };
        for (i = 0; i < CHANNELS; i++) {
            fake_channel_t *c = &channels[i];

            p[1 + 2 * i] = (struct pollfd){ c->sock, POLLIN, 0 };
            p[2 + 2 * i] = (struct pollfd){
                c->open && !c->wrecked ? c->to_engine : -1, POLLIN, 0
            };
        }
        if (poll(p, 1 + 2 * CHANNELS, busy ? 1 : 50) == -1 && errno != EINTR) {
            die("poll");
        }
        busy = false;
        for (i = 0; i < CHANNELS; i++) {
            if (channels[i].sock != -1 && p[1 + 2 * i].revents != 0) {
                channel_hello(&channels[i]);
            }
            if (channels[i].open) {
                busy |= channel_run(&channels[i], &running);
            }
        }
        if (p[0].revents != 0) {
            channel_accept(listener);
        }
        publish(state, running, full, stalled);
    }
}

int
main(int argc, char **argv)
{
    const char *mode = argc > 2 ? argv[2] : "";
    uint32_t state = TR_ENGINE_READY;
    int i, listener;

    if (argc < 2) {
        fprintf(stderr, "usage: fake_engine SOCKET [--refuse | --mute | "
                        "--full | --draining | --stalled]\n");
        return 2;
    }
    signal(SIGTERM, on_signal);
    signal(SIGINT, on_signal);
    refuse = strcmp(mode, "--refuse") == 0;
    mute = strcmp(mode, "--mute") == 0;
    if (strcmp(mode, "--draining") == 0) {
        state = TR_ENGINE_DRAINING;
    }
    scratch = malloc(RING_PAYLOAD_MAX);
    if (scratch == NULL
        || tr_status_create((uint64_t) getpid() + 1, &page, &status_fd)
               != TR_OK) {
        die("status page");
    }
    snprintf(page->card.model, sizeof(page->card.model),
             "fake/\"model\"\t\\\n\x7f\xff");
    snprintf(page->card.engine, sizeof(page->card.engine), "fake");
    snprintf(page->card.kv_policies, sizeof(page->card.kv_policies),
             "a\"b\\ \xff");
    snprintf(page->card.level_name[0], sizeof(page->card.level_name[0]),
             "16/16");
    page->card.created = 1700000000;
    page->card.max_model_len = 4096;
    page->card.kv_pages = 100;
    page->card.kv_levels = 1;
    for (i = 0; i < CHANNELS; i++) {
        channels[i].sock = -1;
    }
    listener = listen_at(argv[1]);
    publish(state, 0, strcmp(mode, "--full") == 0,
            strcmp(mode, "--stalled") == 0);
    serve(listener, state, strcmp(mode, "--full") == 0,
          strcmp(mode, "--stalled") == 0);
    unlink(argv[1]);
    return 0;
}
