/*
 * The publisher as a Redis sees it: what stands there of a request, detached
 * requests, cancelling.  A Redis in trouble is test_redis_publisher_trouble.c.
 */
#include "tests/unit/fixtures/redis_publisher_fixture.h"

/* ---- what stands there -------------------------------------------------- */

/* All records of tr:out, in the order in which they were sent. */
typedef struct {
    uint32_t n;
    uint16_t types[8192];
    size_t text; /* bytes */
    int status;  /* of an ERROR */
} output_t;

static void
read_output(publisher_fixture_t *b, const char *key, output_t *out)
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
    publisher_fixture_t b;
    raw_t r;

    (void) state;
    publisher_start(&b, "name", "one", "redis_prefix", "x.", NULL);
    fake_wait(&b.redis, 0, "HSET", "x.engine:{one}", "state", "ready");
    raw_open(&r, &b.fixture, 65536);
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
    fixture_stop(&b.fixture);
    fake_wait(&b.redis, 0, "DEL", "x.engine:{one}", NULL, NULL);
    fake_stop(&b.redis);
}

/* Waits for an HSET of KEY_A that says how far it is; its index and number. */
static unsigned
wait_progress(publisher_fixture_t *b, unsigned from, unsigned long *tokens)
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
    publisher_fixture_t b;
    raw_t r;

    (void) state;
    publisher_start(&b, "null_rate", "30", NULL);
    raw_open(&r, &b.fixture, 65536);
    fake_wait(&b.redis, 0, "HSET", "tr:engine:{main}", "state", "ready");
    submit(&r, TR_ID(0, 1), ID_A, 0, SLOW_BODY, false);
    at = wait_progress(&b, 0, &first);
    assert_in_range(first, 2, 299);
    pthread_mutex_lock(&b.redis.lock);
    cmd = &b.redis.log[at];
    assert_null(fake_field(cmd, "model")); /* no more than that */
    assert_string_equal(fake_field(cmd, "owner"), OWNER);
    /* with the prompt, without the last one */
    assert_in_range(strtoul(fake_field(cmd, "kv_tokens_full"), NULL, 10), first,
                    first + 20);
    assert_string_equal(fake_field(cmd, "share_high"), "1.000000");
    pthread_mutex_unlock(&b.redis.lock);

    atomic_store(&b.redis.forgetful, true);
    at = wait_progress(&b, at + 1, &second);
    assert_in_range(second, first + 1, 299);
    at = fake_wait(&b.redis, at + 1, "HSET", KEY_A, "request_id", "raw");
    pthread_mutex_lock(&b.redis.lock);
    cmd = &b.redis.log[at];
    assert_string_equal(fake_field(cmd, "endpoint"), "completions");
    assert_string_equal(fake_field(cmd, "choices"), "1");
    assert_string_equal(fake_field(cmd, "kv_policy"), "full");
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
    publisher_stop(&b);
}

/* Without an id nothing is told, without RESUMABLE no output. */
static void
test_what_is_not_told(void **state)
{
    publisher_fixture_t b;
    raw_t r;

    (void) state;
    publisher_start(&b, NULL);
    raw_open(&r, &b.fixture, 65536);
    raw_submit(&r, TR_ID(0, 1), SHORT_BODY, TR_BODY_UNKNOWN, false);
    raw_end(&r, TR_ID(0, 1));
    submit(&r, TR_ID(1, 1), ID_A, 0, SHORT_BODY, false);
    raw_end(&r, TR_ID(1, 1));
    wait_state(&b, 0, "done");
    assert_int_equal(fake_count(&b.redis, "XADD", OUT_A), 0);
    assert_int_equal(fake_count(&b.redis, "ZADD", "tr:requests:{main}"), 1);
    raw_close(&r);
    publisher_stop(&b);
}

/* A vector is no output that could be kept, and nothing waits for it but its
 * client: of an endpoint without text neither is promised. */
static void
test_vectors_are_not_kept(void **state)
{
    fake_command_t *cmd;
    unsigned at;
    publisher_fixture_t b;
    raw_t r;

    (void) state;
    publisher_start(&b, NULL);
    raw_open(&r, &b.fixture, 65536);
    submit_to(&r, TR_ENDPOINT_EMBEDDINGS, TR_ID(0, 1), ID_A,
              TR_SUBMIT_RESUMABLE | TR_SUBMIT_DETACH, "{\"input\":[5]}", false);
    assert_int_equal(next_error(&r), TR_ERR_UNSUPPORTED); /* of backend null */
    wait_state(&b, 0, "failed");
    at = fake_wait(&b.redis, 0, "HSET", KEY_A, "owner", OWNER);
    pthread_mutex_lock(&b.redis.lock);
    cmd = &b.redis.log[at];
    assert_string_equal(fake_field(cmd, "endpoint"), "embeddings");
    assert_null(fake_field(cmd, "resumable"));
    assert_null(fake_field(cmd, "detach"));
    pthread_mutex_unlock(&b.redis.lock);
    assert_int_equal(fake_count(&b.redis, "XADD", OUT_A), 0);

    /* its client leaves when only half of it is here: that is its end */
    submit_to(&r, TR_ENDPOINT_EMBEDDINGS, TR_ID(1, 1), ID_B, TR_SUBMIT_DETACH,
              "{\"input\":", true);
    fake_wait(&b.redis, 0, "HSET", "tr:req:{" ID_B "}", "state", "queued");
    raw_command(&r, TR_ID(1, 1), TR_CONTROL_DETACH);
    assert_int_equal(raw_end(&r, TR_ID(1, 1)), TR_FINISH_ABORTED);
    raw_close(&r);
    publisher_stop(&b);
}

static void
test_a_refused_request(void **state)
{
    output_t out;
    unsigned at;
    publisher_fixture_t b;
    raw_t r;

    (void) state;
    publisher_start(&b, NULL);
    raw_open(&r, &b.fixture, 65536);
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
    publisher_stop(&b);
}

/* Many streams, few pipelines: all that a flush has to say comes at once. */
static void
test_batches(void **state)
{
    unsigned i, commands, batches;
    char completion[TR_COMPLETION_LEN + 1];
    publisher_fixture_t b;
    raw_t r;

    (void) state;
    publisher_start(&b, "null_rate", "500", NULL);
    raw_open(&r, &b.fixture, 1 << 20);
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
    publisher_stop(&b);
}

/* ---- detached ----------------------------------------------------------- */

#define DETACHABLE (TR_SUBMIT_RESUMABLE | TR_SUBMIT_DETACH)
static void
expect_output(publisher_fixture_t *b, uint32_t tokens)
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
    publisher_fixture_t b;
    raw_t r;

    (void) state;
    publisher_start(&b, "null_rate", "60", NULL);
    raw_open(&r, &b.fixture, 65536);
    submit(&r, TR_ID(0, 1), ID_A, DETACHABLE, SLOW_BODY, false);
    while (raw_next(&r).type != TR_RECORD_DELTA) {
    }
    raw_command(&r, TR_ID(0, 1), TR_CONTROL_PAUSE);
    raw_command(&r, TR_ID(0, 1), TR_CONTROL_PAUSE | TR_CONTROL_DETACH);
    do {
        rec = raw_next(&r);
        deltas += rec.type == TR_RECORD_DELTA;
    } while (rec.type == TR_RECORD_DELTA);
    assert_int_equal(rec.type, TR_RECORD_FINISH);
    assert_in_range(deltas, 0, 250);
    wait_state(&b, 0, "detached");
    expect_output(&b, 300);
    raw_close(&r);
    publisher_stop(&b);
}

/* The same without TR_SUBMIT_DETACH: the command is an abort. */
static void
test_detach_must_be_allowed(void **state)
{
    publisher_fixture_t b;
    raw_t r;

    (void) state;
    publisher_start(&b, NULL);
    raw_open(&r, &b.fixture, 65536);
    submit(&r, TR_ID(0, 1), ID_A, TR_SUBMIT_RESUMABLE, LONG_BODY, false);
    assert_int_equal(raw_next(&r).type, TR_RECORD_ACCEPTED);
    raw_command(&r, TR_ID(0, 1), TR_CONTROL_DETACH);
    assert_int_equal(raw_end(&r, TR_ID(0, 1)), TR_FINISH_ABORTED);
    wait_state(&b, 0, "cancelled");
    raw_close(&r);
    publisher_stop(&b);
}

/* The channel goes in every stage of a request. */
static void
test_detached_by_a_lost_channel(void **state)
{
    output_t out;
    publisher_fixture_t b;
    raw_t r;

    (void) state;
    publisher_start(&b, "max_num_seqs", "1", "null_rate", "100", NULL);

    /* one runs, one waits behind it, one is only half here */
    raw_open(&r, &b.fixture, 65536);
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
    fake_wait(&b.redis, 0, "HSET", "tr:req:{" ID_B "}", "state", "done");
    read_output(&b, "tr:out:{" ID_B "}", &out);
    assert_int_equal(out.types[out.n - 1], TR_RECORD_FINISH);
    fake_wait(&b.redis, 0, "HSET", "tr:req:{00000000000000000000000000000002}",
              "state", "cancelled");

    /* one whose channel goes as soon as it is known */
    raw_open(&r, &b.fixture, 65536);
    submit(&r, TR_ID(0, 1), "00000000000000000000000000000003", DETACHABLE,
           SLOW_BODY, false);
    fake_wait(&b.redis, 0, "HSET", "tr:req:{00000000000000000000000000000003}",
              "owner", OWNER);
    raw_close(&r);
    fake_wait(&b.redis, 0, "HSET", "tr:req:{00000000000000000000000000000003}",
              "state", "done");
    fixture_check_alive(&b.fixture);
    publisher_stop(&b);
}

/* A peer that takes nothing does not hold up what is detached. */
static void
test_detached_needs_no_room(void **state)
{
    unsigned i;
    publisher_fixture_t b;
    raw_t r;

    (void) state;
    publisher_start(&b, "null_rate", "20000", "channel_stall_timeout", "60s",
                    NULL);
    raw_open(&r, &b.fixture, 65536);
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
    raw_command(&r, TR_ID(1, 1), TR_CONTROL_DETACH);
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
    fixture_check_alive(&b.fixture);
    publisher_stop(&b);
}

/* ---- cancelling --------------------------------------------------------- */

static void
cancel(publisher_fixture_t *b, const char *completion)
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
    publisher_fixture_t b;
    raw_t r;

    (void) state;
    publisher_start(&b, "max_num_seqs", "1", "null_rate", "20", NULL);
    raw_open(&r, &b.fixture, 65536);
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
    fixture_check_alive(&b.fixture);
    publisher_stop(&b);
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
    publisher_fixture_t b;
    raw_t r;

    (void) state;
    assert_non_null(large);
    publisher_start(&b, "null_rate", "50", NULL);
    raw_open(&r, &b.fixture, 65536);
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
    publisher_stop(&b);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_request),
        cmocka_unit_test(test_progress),
        cmocka_unit_test(test_what_is_not_told),
        cmocka_unit_test(test_vectors_are_not_kept),
        cmocka_unit_test(test_a_refused_request),
        cmocka_unit_test(test_batches),
        cmocka_unit_test(test_detached),
        cmocka_unit_test(test_detach_must_be_allowed),
        cmocka_unit_test(test_detached_by_a_lost_channel),
        cmocka_unit_test(test_detached_needs_no_room),
        cmocka_unit_test(test_cancel),
        cmocka_unit_test(test_hostile_messages),
    };

    signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
