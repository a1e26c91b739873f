/*
 * The reporter as a Redis sees it: a whole engine with backend null, a raw peer
 * that submits resumable and detached requests, and a fake Redis that writes
 * down what comes.
 */
#include "front_rig.h"

#include <signal.h>
#include <time.h>

#include "fake_redis.h"
#include "redis_resolve.h"
#include "report.h"
#include "request.h"

#define ID_A "000102030405060708090a0b0c0d0e0f"
#define ID_B "f0e0d0c0b0a090807060504030201000"
#define OWNER "da39a3ee5e6b4b0d3255bfef95601890afd80709"
#define SHORT_BODY "{\"prompt\":[5,6,7],\"max_tokens\":5,\"stream\":true}"
#define SLOW_BODY "{\"prompt\":[5,6,7],\"max_tokens\":300,\"stream\":true}"
#define ENDLESS_BODY "{\"prompt\":[5],\"max_tokens\":30000,\"stream\":true}"

typedef struct {
    rig_t rig;
    fake_redis_t redis;
    char address[128];
} bench_t;

/* Further settings as pairs, ended by NULL. */
#define bench_start(b, ...)                                                \
    do {                                                                   \
        fake_start(&(b)->redis);                                           \
        snprintf((b)->address, sizeof((b)->address), "unix:%s",            \
                 (b)->redis.path);                                         \
        rig_start(&(b)->rig, "redis", (b)->address, "redis_flush", "20ms", \
                  "redis_timeout", "10s", __VA_ARGS__);                    \
    } while (0)

static void
bench_stop(bench_t *b)
{
    rig_stop(&b->rig);
    fake_stop(&b->redis);
}

static void
submit(raw_t *r, uint64_t id, const char *completion, uint16_t flags,
       const char *body, bool more)
{
    uint8_t payload[1024];
    tr_wire_submit_t head = { .endpoint = TR_ENDPOINT_COMPLETIONS,
                              .flags = flags,
                              .request_id_len = 3,
                              .body_len = TR_BODY_UNKNOWN,
                              .request_id = "raw" };

    memcpy(head.completion, completion, TR_COMPLETION_LEN);
    memcpy(head.owner, OWNER, TR_OWNER_LEN);
    memcpy(payload, &head, sizeof(head));
    memcpy(payload + sizeof(head), body, strlen(body));
    raw_put(r, TR_RECORD_SUBMIT, more ? TR_FLAG_MORE : 0, id, payload,
            sizeof(head) + strlen(body));
}

#define KEY_A "tr:req:{" ID_A "}"
#define OUT_A "tr:out:{" ID_A "}"

static unsigned
wait_state(bench_t *b, unsigned from, const char *state)
{
    return fake_wait(&b->redis, from, "HSET", KEY_A, "state", state);
}

/* The next record is ERROR; its status. */
static int
next_error(raw_t *r)
{
    tr_wire_error_t head = { 0 };
    tr_wire_bytes_t param, message;
    tr_record_t rec = raw_next(r);

    assert_int_equal(rec.type, TR_RECORD_ERROR);
    assert_int_equal(tr_wire_error_parse(r->buf, rec.length, &head, &param,
                                         &message),
                     TR_OK);
    return head.status;
}

/* ---- what stands there -------------------------------------------------- */

/* All records of tr:out, in the order in which they were sent. */
typedef struct {
    uint32_t n;
    uint16_t types[8192];
    size_t text; /* bytes */
    int status;  /* of an ERROR */
} output_t;

static void
read_output(bench_t *b, const char *key, output_t *out)
{
    unsigned i;

    memset(out, 0, sizeof(*out));
    pthread_mutex_lock(&b->redis.lock);
    for (i = 0; i < b->redis.n; i++) {
        const fake_command_t *cmd = &b->redis.log[i];
        const char *bytes;
        uint32_t len, first = out->n;
        size_t at = 0, end;

        if (!fake_is(cmd, "XADD") || strcmp(cmd->argv[1], key) != 0) {
            continue;
        }
        /* NOMKSTREAM in all but the first */
        assert_int_equal(cmd->argc, first == 0 ? 5 : 6);
        assert_string_equal(cmd->argv[cmd->argc - 2], "r");
        bytes = cmd->argv[cmd->argc - 1];
        end = cmd->len[cmd->argc - 1];
        while (at < end) {
            memcpy(&len, bytes + at, 4);
            memcpy(&out->types[out->n], bytes + at + 4, 2);
            if (out->types[out->n] == TR_RECORD_DELTA) {
                tr_wire_delta_t delta;

                memcpy(&delta, bytes + at + 8, sizeof(delta));
                out->text += delta.text_len;
            } else if (out->types[out->n] == TR_RECORD_ERROR) {
                memcpy(&out->status, bytes + at + 8, 4);
            }
            out->n++;
            at += 8 + len;
        }
        assert_int_equal(at, end);
        assert_int_equal(strtoul(cmd->argv[cmd->argc - 3], NULL, 10), out->n);
    }
    pthread_mutex_unlock(&b->redis.lock);
}

static void
test_a_request(void **state)
{
    tr_record_t rec;
    unsigned at, records = 0;
    fake_command_t *cmd;
    output_t out;
    bench_t b;
    raw_t r;

    (void) state;
    bench_start(&b, "name", "one", "redis_prefix", "x.", NULL);
    fake_wait(&b.redis, 0, "HSET", "x.engine:{one}", "state", "ready");
    raw_open(&r, &b.rig, 65536);
    submit(&r, TR_ID(0, 1), ID_A, TR_SUBMIT_RESUMABLE, SHORT_BODY, false);
    do {
        rec = raw_next(&r);
        records += rec.type != TR_RECORD_STARTED;
    } while (rec.type != TR_RECORD_FINISH);
    at = fake_wait(&b.redis, 0, "HSET", "x.req:{" ID_A "}", "state", "done");
    pthread_mutex_lock(&b.redis.lock);
    cmd = &b.redis.log[at];
    assert_string_equal(fake_field(cmd, "finish_reason"), "length");
    assert_string_equal(fake_field(cmd, "completion_tokens"), "5");
    assert_string_equal(fake_field(cmd, "engine"), "one");
    assert_int_equal(strlen(fake_field(cmd, "run")), 16);
    assert_null(fake_field(cmd, "error"));
    pthread_mutex_unlock(&b.redis.lock);
    at = fake_wait(&b.redis, 0, "HSET", "x.req:{" ID_A "}", "owner", OWNER);
    pthread_mutex_lock(&b.redis.lock);
    cmd = &b.redis.log[at];
    assert_string_equal(fake_field(cmd, "endpoint"), "completions");
    assert_string_equal(fake_field(cmd, "request_id"), "raw");
    assert_string_equal(fake_field(cmd, "resumable"), "1");
    assert_null(fake_field(cmd, "detach"));
    pthread_mutex_unlock(&b.redis.lock);

    read_output(&b, "x.out:{" ID_A "}", &out);
    assert_int_equal(out.n, records);
    assert_int_equal(out.types[0], TR_RECORD_ACCEPTED);
    assert_int_equal(out.types[out.n - 1], TR_RECORD_FINISH);
    assert_int_equal(fake_count(&b.redis, "PUBLISH", "x.live:{" ID_A "}"),
                     fake_count(&b.redis, "XADD", "x.out:{" ID_A "}"));
    fake_wait(&b.redis, 0, "PEXPIRE", "x.out:{" ID_A "}", NULL, NULL);
    fake_wait(&b.redis, 0, "PEXPIRE", "x.req:{" ID_A "}", NULL, NULL);
    fake_wait(&b.redis, 0, "ZADD", "x.requests:{one}", NULL, NULL);
    fake_wait(&b.redis, 0, "ZADD", "x.engines", NULL, NULL);
    fake_wait(&b.redis, 0, "XADD", "x.metrics:{one}", NULL, NULL);
    raw_close(&r);
    rig_stop(&b.rig);
    fake_wait(&b.redis, 0, "DEL", "x.engine:{one}", NULL, NULL);
    fake_stop(&b.redis);
}

/* Waits for an HSET of KEY_A that says how far it is; its index and number. */
static unsigned
wait_progress(bench_t *b, unsigned from, unsigned long *tokens)
{
    unsigned i, at = from;

    for (i = 0; i < 100; i++) {
        const char *text;

        at = fake_wait(&b->redis, at, "HSET", KEY_A, "state", "decode");
        pthread_mutex_lock(&b->redis.lock);
        text = fake_field(&b->redis.log[at], "completion_tokens");
        *tokens = text != NULL ? strtoul(text, NULL, 10) : 0;
        pthread_mutex_unlock(&b->redis.lock);
        if (text != NULL) {
            return at;
        }
        at++;
    }
    fail_msg("no progress came");
    return 0;
}

/* How far it is, once a second, of a request whose output nobody keeps; and a
 * hash that was lost on the way comes back whole. */
static void
test_progress(void **state)
{
    unsigned long first, second;
    fake_command_t *cmd;
    unsigned at;
    bench_t b;
    raw_t r;

    (void) state;
    bench_start(&b, "null_rate", "30", NULL);
    raw_open(&r, &b.rig, 65536);
    fake_wait(&b.redis, 0, "HSET", "tr:engine:{main}", "state", "ready");
    submit(&r, TR_ID(0, 1), ID_A, 0, SLOW_BODY, false);
    at = wait_progress(&b, 0, &first);
    assert_in_range(first, 2, 299);
    pthread_mutex_lock(&b.redis.lock);
    cmd = &b.redis.log[at];
    assert_null(fake_field(cmd, "model")); /* no more than that */
    assert_string_equal(fake_field(cmd, "owner"), OWNER);
    pthread_mutex_unlock(&b.redis.lock);

    atomic_store(&b.redis.forgetful, true);
    at = wait_progress(&b, at + 1, &second);
    assert_in_range(second, first + 1, 299);
    at = fake_wait(&b.redis, at + 1, "HSET", KEY_A, "request_id", "raw");
    pthread_mutex_lock(&b.redis.lock);
    cmd = &b.redis.log[at];
    assert_string_equal(fake_field(cmd, "endpoint"), "completions");
    assert_string_equal(fake_field(cmd, "choices"), "1");
    assert_non_null(fake_field(cmd, "created"));
    assert_non_null(fake_field(cmd, "first_token"));
    pthread_mutex_unlock(&b.redis.lock);
    atomic_store(&b.redis.forgetful, false);

    raw_end(&r, TR_ID(0, 1));
    at = wait_state(&b, at, "done");
    pthread_mutex_lock(&b.redis.lock);
    assert_string_equal(fake_field(&b.redis.log[at], "completion_tokens"),
                        "300");
    pthread_mutex_unlock(&b.redis.lock);
    /* not one for each token, by far */
    assert_true(fake_count(&b.redis, "HSET", KEY_A) < 100);
    raw_close(&r);
    bench_stop(&b);
}

/* Without an id nothing is told, without RESUMABLE no output. */
static void
test_what_is_not_told(void **state)
{
    bench_t b;
    raw_t r;

    (void) state;
    bench_start(&b, NULL);
    raw_open(&r, &b.rig, 65536);
    raw_submit(&r, TR_ID(0, 1), SHORT_BODY, TR_BODY_UNKNOWN, false);
    raw_end(&r, TR_ID(0, 1));
    submit(&r, TR_ID(1, 1), ID_A, 0, SHORT_BODY, false);
    raw_end(&r, TR_ID(1, 1));
    wait_state(&b, 0, "done");
    assert_int_equal(fake_count(&b.redis, "XADD", OUT_A), 0);
    assert_int_equal(fake_count(&b.redis, "ZADD", "tr:requests:{main}"), 1);
    raw_close(&r);
    bench_stop(&b);
}

static void
test_a_refused_request(void **state)
{
    output_t out;
    unsigned at;
    bench_t b;
    raw_t r;

    (void) state;
    bench_start(&b, NULL);
    raw_open(&r, &b.rig, 65536);
    submit(&r, TR_ID(0, 1), ID_A, TR_SUBMIT_RESUMABLE,
           "{\"prompt\":[5],\"temperature\":9}", false);
    assert_int_equal(next_error(&r), TR_ERR_INVALID);
    at = wait_state(&b, 0, "failed");
    pthread_mutex_lock(&b.redis.lock);
    assert_string_equal(fake_field(&b.redis.log[at], "error_status"),
                        "TR_ERR_INVALID");
    pthread_mutex_unlock(&b.redis.lock);
    read_output(&b, OUT_A, &out);
    assert_int_equal(out.n, 1);
    assert_int_equal(out.status, TR_ERR_INVALID);
    raw_close(&r);
    bench_stop(&b);
}

/* Many streams, few pipelines: all that a flush has to say comes at once. */
static void
test_batches(void **state)
{
    unsigned i, commands, batches;
    char completion[TR_COMPLETION_LEN + 1];
    bench_t b;
    raw_t r;

    (void) state;
    bench_start(&b, "null_rate", "500", NULL);
    raw_open(&r, &b.rig, 1 << 20);
    fake_wait(&b.redis, 0, "ZADD", "tr:engines", NULL, NULL);
    commands = fake_now(&b.redis);
    batches = fake_batches(&b.redis);
    for (i = 0; i < 40; i++) {
        snprintf(completion, sizeof(completion), "%032x", i);
        submit(&r, TR_ID(i, 1), completion, TR_SUBMIT_RESUMABLE,
               "{\"prompt\":[5],\"max_tokens\":200,\"stream\":true}", false);
    }
    for (i = 0; i < 40; i++) {
        while (raw_next(&r).type != TR_RECORD_FINISH) {
        }
    }
    for (i = 0; i < 40; i++) {
        char key[64];

        snprintf(key, sizeof(key), "tr:req:{%032x}", i);
        fake_wait(&b.redis, 0, "HSET", key, "state", "done");
    }
    commands = fake_now(&b.redis) - commands;
    batches = fake_batches(&b.redis) - batches;
    /* 40 * 200 records */
    assert_in_range(commands, 40 * 6, 40 * 200);
    assert_true(commands > 8 * batches);
    raw_close(&r);
    bench_stop(&b);
}

/* ---- detached ----------------------------------------------------------- */

#define DETACHABLE (TR_SUBMIT_RESUMABLE | TR_SUBMIT_DETACH)
static void
expect_output(bench_t *b, uint32_t tokens)
{
    output_t out;

    wait_state(b, 0, "done");
    read_output(b, OUT_A, &out);
    assert_int_equal(out.types[out.n - 1], TR_RECORD_FINISH);
    assert_in_range(out.n, 3, tokens + 2);
    assert_true(out.text > tokens / 2);
}

/* The client leaves; the worker stays, and hears of the end only. */
static void
test_detached(void **state)
{
    unsigned deltas = 0;
    tr_record_t rec;
    bench_t b;
    raw_t r;

    (void) state;
    bench_start(&b, "null_rate", "60", NULL);
    raw_open(&r, &b.rig, 65536);
    submit(&r, TR_ID(0, 1), ID_A, DETACHABLE, SLOW_BODY, false);
    while (raw_next(&r).type != TR_RECORD_DELTA) {
    }
    raw_wish(&r, TR_ID(0, 1), TR_CONTROL_PAUSE);
    raw_wish(&r, TR_ID(0, 1), TR_CONTROL_PAUSE | TR_CONTROL_DETACH);
    do {
        rec = raw_next(&r);
        deltas += rec.type == TR_RECORD_DELTA;
    } while (rec.type == TR_RECORD_DELTA);
    assert_int_equal(rec.type, TR_RECORD_FINISH);
    assert_in_range(deltas, 0, 250);
    wait_state(&b, 0, "detached");
    expect_output(&b, 300);
    raw_close(&r);
    bench_stop(&b);
}

/* The same without TR_SUBMIT_DETACH: the wish is an abort. */
static void
test_detach_must_be_allowed(void **state)
{
    bench_t b;
    raw_t r;

    (void) state;
    bench_start(&b, NULL);
    raw_open(&r, &b.rig, 65536);
    submit(&r, TR_ID(0, 1), ID_A, TR_SUBMIT_RESUMABLE, LONG_BODY, false);
    assert_int_equal(raw_next(&r).type, TR_RECORD_ACCEPTED);
    raw_wish(&r, TR_ID(0, 1), TR_CONTROL_DETACH);
    assert_int_equal(raw_end(&r, TR_ID(0, 1)), TR_FINISH_ABORTED);
    wait_state(&b, 0, "cancelled");
    raw_close(&r);
    bench_stop(&b);
}

/* The channel goes in every stage of a request. */
static void
test_detached_by_a_lost_channel(void **state)
{
    output_t out;
    bench_t b;
    raw_t r;

    (void) state;
    bench_start(&b, "max_num_seqs", "1", "null_rate", "100", NULL);

    /* one runs, one waits behind it, one is only half here */
    raw_open(&r, &b.rig, 65536);
    submit(&r, TR_ID(0, 1), ID_B, DETACHABLE, SLOW_BODY, false);
    submit(&r, TR_ID(1, 1), ID_A, DETACHABLE, SLOW_BODY, false);
    submit(&r, TR_ID(2, 1), "00000000000000000000000000000002", DETACHABLE,
           "{\"prompt\":", true);
    assert_int_equal(raw_next(&r).type, TR_RECORD_ACCEPTED);
    fake_wait(&b.redis, 0, "HSET", "tr:req:{00000000000000000000000000000002}",
              "state", "queued");
    raw_close(&r);
    wait_state(&b, 0, "detached");
    expect_output(&b, 300);
    read_output(&b, "tr:out:{" ID_B "}", &out);
    assert_int_equal(out.types[out.n - 1], TR_RECORD_FINISH);
    fake_wait(&b.redis, 0, "HSET", "tr:req:{00000000000000000000000000000002}",
              "state", "cancelled");

    /* one whose channel goes as soon as it is known */
    raw_open(&r, &b.rig, 65536);
    submit(&r, TR_ID(0, 1), "00000000000000000000000000000003", DETACHABLE,
           SLOW_BODY, false);
    fake_wait(&b.redis, 0, "HSET", "tr:req:{00000000000000000000000000000003}",
              "owner", OWNER);
    raw_close(&r);
    fake_wait(&b.redis, 0, "HSET", "tr:req:{00000000000000000000000000000003}",
              "state", "done");
    rig_check_alive(&b.rig);
    bench_stop(&b);
}

/* A peer that takes nothing does not hold up what is detached. */
static void
test_detached_needs_no_room(void **state)
{
    unsigned i;
    bench_t b;
    raw_t r;

    (void) state;
    bench_start(&b, "null_rate", "20000", "channel_stall_timeout", "60s", NULL);
    raw_open(&r, &b.rig, 65536);
    /* fill the ring of responses with another request's output */
    submit(&r, TR_ID(0, 1), ID_B, 0,
           "{\"prompt\":[5],\"max_tokens\":30000,\"stream\":true}", false);
    submit(&r, TR_ID(1, 1), ID_A, DETACHABLE, SLOW_BODY, false);
    for (i = 0; i < 30000; i++) {
        if (atomic_load(&r.map.response->tail) > 50000) {
            break;
        }
        usleep(1000);
    }
    assert_true(i < 30000);
    raw_wish(&r, TR_ID(1, 1), TR_CONTROL_DETACH);
    /* its end waits for room in the ring; its output is complete before */
    for (i = 0; i < 3000; i++) {
        output_t out;

        read_output(&b, OUT_A, &out);
        if (out.n != 0 && out.types[out.n - 1] == TR_RECORD_FINISH) {
            break;
        }
        usleep(10000);
    }
    assert_true(i < 3000);
    raw_close(&r);
    wait_state(&b, 0, "done");
    rig_check_alive(&b.rig);
    bench_stop(&b);
}

/* ---- cancelling --------------------------------------------------------- */

static void
cancel(bench_t *b, const char *completion)
{
    char text[64];

    snprintf(text, sizeof(text), "cancel %s", completion);
    fake_publish(&b->redis, text, strlen(text));
}

static void
test_cancel(void **state)
{
    output_t out;
    unsigned at;
    bench_t b;
    raw_t r;

    (void) state;
    bench_start(&b, "max_num_seqs", "1", "null_rate", "20", NULL);
    raw_open(&r, &b.rig, 65536);
    fake_wait(&b.redis, 0, "SUBSCRIBE", "tr:ctl:{main}", NULL, NULL);

    /* in the middle of its body */
    submit(&r, TR_ID(0, 1), ID_A, 0, "{\"prompt\":", true);
    wait_state(&b, 0, "queued");
    cancel(&b, ID_A);
    assert_int_equal(next_error(&r), TR_ERR_CANCELLED);
    at = wait_state(&b, 0, "cancelled");

    /* while it decodes, and while it waits */
    submit(&r, TR_ID(1, 1), ID_B, TR_SUBMIT_RESUMABLE, LONG_BODY, false);
    while (raw_next(&r).type != TR_RECORD_DELTA) {
    }
    submit(&r, TR_ID(2, 1), ID_A, 0, LONG_BODY, false);
    wait_state(&b, at + 1, "queued");
    cancel(&b, ID_A);
    for (;;) {
        tr_record_t rec = raw_next(&r);

        if (rec.id == TR_ID(2, 1) && rec.type == TR_RECORD_ERROR) {
            break;
        }
    }
    cancel(&b, ID_B);
    assert_int_equal(raw_end(&r, TR_ID(1, 1)), TR_ERR_CANCELLED);
    at = fake_wait(&b.redis, 0, "HSET", "tr:req:{" ID_B "}", "state",
                   "cancelled");
    pthread_mutex_lock(&b.redis.lock);
    assert_string_equal(fake_field(&b.redis.log[at], "error_status"),
                        "TR_ERR_CANCELLED");
    pthread_mutex_unlock(&b.redis.lock);
    read_output(&b, "tr:out:{" ID_B "}", &out);
    assert_int_equal(out.types[out.n - 1], TR_RECORD_ERROR);
    assert_int_equal(out.status, TR_ERR_CANCELLED);

    /* after its client and its channel have gone */
    at = fake_now(&b.redis);
    submit(&r, TR_ID(3, 1), ID_A, DETACHABLE, LONG_BODY, false);
    wait_state(&b, at, "decode");
    raw_close(&r);
    wait_state(&b, at, "detached");
    cancel(&b, ID_A);
    wait_state(&b, at, "cancelled");
    rig_check_alive(&b.rig);
    bench_stop(&b);
}

/* Whoever may publish there may say anything. */
static void
test_hostile_messages(void **state)
{
    static const char *const messages[] = {
        "",
        "cancel",
        "cancel ",
        "cancel *",
        "CANCEL " ID_A,
        "cancel " ID_A " ",
        "cancel " ID_A "0",
        "cancel  " ID_A,
        "cancel 000102030405060708090A0B0C0D0E0F",
        "cancel {" ID_A "}",
        "cancel\0" ID_A,
        "shutdown",
        "cancel %s%s%s%n%n%n%n%n%n%n%n%n%n%n%n%n",
        "cancel 00000000000000000000000000000000",
    };
    size_t len = 6u << 20;
    char *large = malloc(len);
    unsigned i, before;
    bench_t b;
    raw_t r;

    (void) state;
    assert_non_null(large);
    bench_start(&b, "null_rate", "50", NULL);
    raw_open(&r, &b.rig, 65536);
    fake_wait(&b.redis, 0, "SUBSCRIBE", "tr:ctl:{main}", NULL, NULL);
    submit(&r, TR_ID(0, 1), ID_A, 0, LONG_BODY, false);
    wait_state(&b, 0, "decode");
    for (i = 0; i < sizeof(messages) / sizeof(messages[0]); i++) {
        fake_publish(&b.redis, messages[i], strlen(messages[i]));
    }
    fake_publish(&b.redis, "cancel \0" ID_A, 8 + TR_COMPLETION_LEN);
    /* a message without end: the connection goes, and comes again */
    before = fake_now(&b.redis);
    memset(large, 'x', len);
    fake_publish(&b.redis, large, len);
    fake_wait(&b.redis, before, "SUBSCRIBE", "tr:ctl:{main}", NULL, NULL);
    assert_int_equal(raw_next(&r).type, TR_RECORD_ACCEPTED);
    cancel(&b, ID_A);
    assert_int_equal(raw_end(&r, TR_ID(0, 1)), TR_ERR_CANCELLED);
    raw_close(&r);
    free(large);
    bench_stop(&b);
}

/* ---- a Redis in trouble ------------------------------------------------- */

static uint64_t
counter(bench_t *b, size_t offset)
{
    const tr_status_page_t *page;
    uint64_t value;
    raw_t r;

    raw_open(&r, &b->rig, 65536);
    assert_int_equal(tr_status_attach(r.fds[TR_FD_STATUS], &page), TR_OK);
    memcpy(&value, (const uint8_t *) &page->counters + offset, sizeof(value));
    tr_status_unmap(page);
    raw_close(&r);
    return value;
}

#define COUNTER(b, name) counter(b, offsetof(tr_status_counters_t, name))

static void
wait_up(bench_t *b, uint64_t up)
{
    unsigned i;

    for (i = 0; i < 3000 && COUNTER(b, redis_up) != up; i++) {
        usleep(10000);
    }
    assert_int_equal(COUNTER(b, redis_up), up);
}

static void
test_refused_writes_wait(void **state)
{
    unsigned at;
    bench_t b;
    raw_t r;

    (void) state;
    bench_start(&b, NULL);
    wait_up(&b, 1);
    atomic_store(&b.redis.refusal,
                 "-OOM command not allowed when used memory > 'maxmemory'."
                 "\r\n");
    raw_open(&r, &b.rig, 65536);
    submit(&r, TR_ID(0, 1), ID_A, TR_SUBMIT_RESUMABLE, SHORT_BODY, false);
    assert_int_equal(raw_next(&r).type, TR_RECORD_ACCEPTED);
    assert_int_equal(raw_end(&r, TR_ID(0, 1)), TR_FINISH_LENGTH);
    wait_up(&b, 0);
    at = fake_now(&b.redis);
    atomic_store(&b.redis.refusal, NULL);
    wait_state(&b, at, "done");
    wait_up(&b, 1);
    fake_wait(&b.redis, at, "XADD", OUT_A, NULL, NULL);
    assert_true(COUNTER(&b, redis_refusals) > 0);
    assert_int_equal(COUNTER(&b, redis_outages), 1);
    assert_int_equal(COUNTER(&b, redis_lost), 0);
    raw_close(&r);
    bench_stop(&b);
}

static void
test_wrong_password(void **state)
{
    bench_t b;
    int fds[2];
    char log[8192];
    unsigned i;
    ssize_t n;

    (void) state;
    assert_int_equal(pipe(fds), 0);
    bench_start(&b, "redis_user", "me", "redis_password", "sesame", NULL);
    fake_wait(&b.redis, 0, "AUTH", "me", NULL, NULL);
    wait_up(&b, 1);
    rig_stop(&b.rig);

    /* an answer that repeats the password does not get it into the log */
    atomic_store(&b.redis.no_auth,
                 "-ERR unknown command `AUTH`, with args beginning with: "
                 "`me`, `sesame`, \r\n");
    snprintf(log, sizeof(log), "/proc/self/fd/%d", fds[1]);
    rig_start(&b.rig, "redis", b.address, "redis_user", "me", "redis_password",
              "sesame", NULL);
    tr_log_open(log, TR_LEVEL_DEBUG);
    for (i = 0; i < 3000 && COUNTER(&b, redis_outages) == 0; i++) {
        usleep(10000);
    }
    usleep(500000); /* and a second one, of which nothing is said */
    rig_check_alive(&b.rig);
    assert_int_equal(COUNTER(&b, redis_up), 0);
    assert_int_equal(COUNTER(&b, redis_outages), 1);
    tr_log_open("stderr", TR_LEVEL_ERROR);
    rig_stop(&b.rig);
    (void) !write(fds[1], "end", 3);
    n = read(fds[0], log, sizeof(log) - 1);
    assert_true(n >= 3);
    log[n] = '\0';
    assert_null(strstr(log, "sesame"));
    close(fds[0]);
    close(fds[1]);
    fake_stop(&b.redis);
}

/* No answer: the connection is given up, the engine stops at once. */
static void
test_a_silent_redis(void **state)
{
    struct timespec begun, ended;
    unsigned before;
    bench_t b;

    (void) state;
    bench_start(&b, "redis_timeout", "500ms", NULL);
    wait_up(&b, 1);
    before = fake_connections(&b.redis);
    atomic_store(&b.redis.deaf, true);
    rig_check_alive(&b.rig);
    wait_up(&b, 0);
    while (fake_connections(&b.redis) < before + 3) {
        usleep(10000);
    }
    clock_gettime(CLOCK_MONOTONIC, &begun);
    bench_stop(&b);
    clock_gettime(CLOCK_MONOTONIC, &ended);
    assert_true(ended.tv_sec - begun.tv_sec < 30);
}

/* A connection that is cut again and again while a request runs: what was
 * written is asked for, and nothing is lost. */
static void
test_cut_connections(void **state)
{
    unsigned i, at, before;
    bench_t b;
    raw_t r;

    (void) state;
    bench_start(&b, "null_rate", "100", NULL);
    raw_open(&r, &b.rig, 65536);
    wait_up(&b, 1);
    submit(&r, TR_ID(0, 1), ID_A, TR_SUBMIT_RESUMABLE, ENDLESS_BODY, false);
    wait_state(&b, 0, "decode");
    for (i = 0; i < 5; i++) {
        before = fake_connections(&b.redis);
        atomic_store(&b.redis.cut, true);
        while (fake_connections(&b.redis) == before) {
            usleep(1000);
        }
        /* it has all up to the record 2 */
        atomic_store(&b.redis.stream, "*1\r\n*2\r\n$3\r\n2-0\r\n*0\r\n");
        at = fake_now(&b.redis);
        atomic_store(&b.redis.cut, false);
        fake_wait(&b.redis, at, "XREVRANGE", OUT_A, NULL, NULL);
        fake_wait(&b.redis, at, "HSET", KEY_A, "owner", OWNER);
    }
    raw_wish(&r, TR_ID(0, 1), TR_CONTROL_ABORT);
    raw_end(&r, TR_ID(0, 1));
    wait_state(&b, 0, "cancelled");
    raw_close(&r);
    bench_stop(&b);
}

static tr_status_t
resolve(const char *host, unsigned turn, char *out, const char **why)
{
    tr_redis_resolve_t *r = tr_redis_resolve_start(host);
    tr_status_t rc = TR_AGAIN;
    unsigned i;

    assert_non_null(r);
    for (i = 0; i < 3000 && rc == TR_AGAIN; i++) {
        rc = tr_redis_resolve_look(r, turn, out, why);
        usleep(10000);
    }
    tr_redis_resolve_free(r);
    return rc;
}

static void
test_names(void **state)
{
    char a[TR_REDIS_ADDRESS];
    struct timespec begun, ended;
    const char *why;
    unsigned i;

    (void) state;
#ifdef __SANITIZE_THREAD__
    skip(); /* glibc's own thread is not known to ThreadSanitizer */
#endif
    assert_int_equal(resolve("127.0.0.1", 5, a, &why), TR_OK);
    assert_string_equal(a, "127.0.0.1");
    assert_int_equal(resolve("::1", 0, a, &why), TR_OK);
    assert_string_equal(a, "::1");
    for (i = 0; i < 3; i++) { /* one of its addresses, each in its turn */
        assert_int_equal(resolve("localhost", i, a, &why), TR_OK);
        assert_true(strcmp(a, "127.0.0.1") == 0 || strcmp(a, "::1") == 0);
    }
    /* a search can be left at any moment */
    clock_gettime(CLOCK_MONOTONIC, &begun);
    for (i = 0; i < 20; i++) {
        tr_redis_resolve_free(tr_redis_resolve_start("nowhere.invalid"));
    }
    clock_gettime(CLOCK_MONOTONIC, &ended);
    assert_true(ended.tv_sec - begun.tv_sec < 30);
}

/* ---- the rings ---------------------------------------------------------- */

/* Every arrival that is told has room for its end, however full the rings. */
static void
test_ends_find_room(void **state)
{
    static tr_request_t requests[20000];
    tr_wire_submit_t head = { .endpoint = TR_ENDPOINT_CHAT };
    unsigned i, told = 0, ends = 0, arrived = 0;
    static uint8_t buf[TR_REPORT_FRONT_RING / 4];
    tr_report_t t;
    tr_record_t rec;

    (void) state;
    memcpy(head.completion, ID_A, TR_COMPLETION_LEN);
    assert_int_equal(tr_report_init(&t, -1, -1), TR_OK);
    for (i = 0; i < 20000; i++) {
        tr_report_arrived(&t, &requests[i], &head);
        told += requests[i].report != NULL;
    }
    assert_in_range(told, 1000, 19999);
    assert_int_equal(atomic_load(&t.lost), 20000 - told);
    for (i = 0; i < 20000; i++) {
        tr_report_detached(&requests[i]);
        tr_report_end(&requests[i], 1);
        assert_null(requests[i].report);
    }
    (void) tr_ring_publish(&t.front);
    while (tr_ring_get(&t.from_front, &rec, buf, sizeof(buf)) == TR_OK) {
        arrived += rec.type == TR_REPORT_ARRIVED;
        ends += rec.type == TR_REPORT_END;
    }
    assert_int_equal(arrived, told);
    assert_int_equal(ends, told);
    tr_report_free(&t);
}

/* A full ring loses records; the request knows it, and says so as soon as there
 * is room. */
static void
test_a_full_ring(void **state)
{
    static uint8_t buf[TR_REPORT_LOOP_RING / 4];
    tr_request_t r = { .submit_flags = TR_SUBMIT_RESUMABLE, .report_id = 1 };
    tr_ring_piece_t piece = { buf, 1000 };
    unsigned records = 0, lost = 0;
    tr_report_t t;
    tr_record_t rec;

    (void) state;
    assert_int_equal(tr_report_init(&t, -1, -1), TR_OK);
    r.report = &t;
    while (!r.report_lost) {
        tr_report_record(&r, TR_RECORD_DELTA, &piece, 1);
        records++;
    }
    assert_in_range(records, 1000, TR_REPORT_LOOP_RING / 1000);
    tr_report_publish(&t);
    while (tr_ring_get(&t.from_loop, &rec, buf, sizeof(buf)) == TR_OK) {
        records -= rec.type == TR_RECORD_DELTA;
        lost += rec.type == TR_REPORT_LOST;
    }
    tr_ring_release(&t.from_loop);
    assert_int_equal(records, 1);
    tr_report_record(&r, TR_RECORD_DELTA, &piece, 1);
    tr_report_record(&r, TR_RECORD_DELTA, &piece, 1);
    tr_report_publish(&t);
    while (tr_ring_get(&t.from_loop, &rec, buf, sizeof(buf)) == TR_OK) {
        assert_int_equal(rec.type, TR_REPORT_LOST);
        lost++;
    }
    assert_int_equal(lost, 1);
    tr_report_free(&t);
}

static void
test_cancels_are_bounded(void **state)
{
    int fd = tr_doorbell_create();
    unsigned i;
    tr_report_t t;

    (void) state;
    assert_int_equal(tr_report_init(&t, -1, fd), TR_OK);
    assert_int_equal(tr_report_cancelled(&t), 0);
    assert_int_equal(tr_report_cancelled(NULL), 0);
    for (i = 1; i <= TR_REPORT_CANCELS; i++) {
        assert_true(tr_report_cancel(&t, i));
    }
    assert_false(tr_report_cancel(&t, i));
    for (i = 1; i <= TR_REPORT_CANCELS; i++) {
        assert_int_equal(tr_report_cancelled(&t), i);
    }
    assert_int_equal(tr_report_cancelled(&t), 0);
    tr_report_free(&t);
    close(fd);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ends_find_room),
        cmocka_unit_test(test_a_full_ring),
        cmocka_unit_test(test_cancels_are_bounded),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_a_request),
        cmocka_unit_test(test_progress),
        cmocka_unit_test(test_what_is_not_told),
        cmocka_unit_test(test_a_refused_request),
        cmocka_unit_test(test_batches),
        cmocka_unit_test(test_detached),
        cmocka_unit_test(test_detach_must_be_allowed),
        cmocka_unit_test(test_detached_by_a_lost_channel),
        cmocka_unit_test(test_detached_needs_no_room),
        cmocka_unit_test(test_cancel),
        cmocka_unit_test(test_hostile_messages),
        cmocka_unit_test(test_refused_writes_wait),
        cmocka_unit_test(test_wrong_password),
        cmocka_unit_test(test_a_silent_redis),
        cmocka_unit_test(test_cut_connections),
    };

    signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
