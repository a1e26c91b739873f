/*
 * The publisher when Redis refuses, is silent, cuts connections or has a name
 * that does not resolve; and when the rings between step loop and publisher are
 * full.
 */
#include "tests/unit/fixtures/redis_publisher_fixture.h"

/* ---- a Redis in trouble ------------------------------------------------- */

static uint64_t
counter(publisher_fixture_t *b, size_t offset)
{
    const tr_status_page_t *page;
    uint64_t value;
    raw_t r;

    raw_open(&r, &b->fixture, 65536);
    assert_int_equal(tr_status_attach(r.fds[TR_FD_STATUS], &page), TR_OK);
    memcpy(&value, (const uint8_t *) &page->counters + offset, sizeof(value));
    tr_status_unmap(page);
    raw_close(&r);
    return value;
}

#define COUNTER(b, name) counter(b, offsetof(tr_status_counters_t, name))

static void
wait_up(publisher_fixture_t *b, uint64_t up)
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
    publisher_fixture_t b;
    raw_t r;

    (void) state;
    publisher_start(&b, NULL);
    wait_up(&b, 1);
    atomic_store(&b.redis.refusal,
                 "-OOM command not allowed when used memory > 'maxmemory'."
                 "\r\n");
    raw_open(&r, &b.fixture, 65536);
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
    publisher_stop(&b);
}

static void
test_wrong_password(void **state)
{
    publisher_fixture_t b;
    int fds[2];
    char log[8192];
    unsigned i;
    ssize_t n;

    (void) state;
    assert_int_equal(pipe(fds), 0);
    publisher_start(&b, "redis_user", "me", "redis_password", "sesame", NULL);
    fake_wait(&b.redis, 0, "AUTH", "me", NULL, NULL);
    wait_up(&b, 1);
    fixture_stop(&b.fixture);

    /* an answer that repeats the password does not get it into the log */
    atomic_store(&b.redis.no_auth,
                 "-ERR unknown command `AUTH`, with args beginning with: "
                 "`me`, `sesame`, \r\n");
    snprintf(log, sizeof(log), "/proc/self/fd/%d", fds[1]);
    fixture_start(&b.fixture, "redis", b.address, "redis_user", "me",
                  "redis_password", "sesame", NULL);
    tr_log_open(log, TR_LEVEL_DEBUG);
    for (i = 0; i < 3000 && COUNTER(&b, redis_outages) == 0; i++) {
        usleep(10000);
    }
    usleep(500000); /* and a second one, of which nothing is said */
    fixture_check_alive(&b.fixture);
    assert_int_equal(COUNTER(&b, redis_up), 0);
    assert_int_equal(COUNTER(&b, redis_outages), 1);
    tr_log_open("stderr", TR_LEVEL_ERROR);
    fixture_stop(&b.fixture);
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
    publisher_fixture_t b;

    (void) state;
    publisher_start(&b, "redis_timeout", "500ms", NULL);
    wait_up(&b, 1);
    before = fake_connections(&b.redis);
    atomic_store(&b.redis.deaf, true);
    fixture_check_alive(&b.fixture);
    wait_up(&b, 0);
    while (fake_connections(&b.redis) < before + 3) {
        usleep(10000);
    }
    clock_gettime(CLOCK_MONOTONIC, &begun);
    publisher_stop(&b);
    clock_gettime(CLOCK_MONOTONIC, &ended);
    assert_true(ended.tv_sec - begun.tv_sec < 30);
}

/* A connection that is cut again and again while a request runs: what was
 * written is asked for, and nothing is lost. */
static void
test_cut_connections(void **state)
{
    unsigned i, at, before;
    publisher_fixture_t b;
    raw_t r;

    (void) state;
    publisher_start(&b, "null_rate", "100", NULL);
    raw_open(&r, &b.fixture, 65536);
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
    raw_command(&r, TR_ID(0, 1), TR_CONTROL_ABORT);
    raw_end(&r, TR_ID(0, 1));
    wait_state(&b, 0, "cancelled");
    raw_close(&r);
    publisher_stop(&b);
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
    static uint8_t buf[TR_EVENTS_FRONTEND_RING / 4];
    tr_request_events_t t;
    tr_record_t rec;

    (void) state;
    memcpy(head.completion, ID_A, TR_COMPLETION_LEN);
    assert_int_equal(tr_events_init(&t, -1, -1), TR_OK);
    for (i = 0; i < 20000; i++) {
        tr_events_arrived(&t, &requests[i], &head);
        told += requests[i].events != NULL;
    }
    assert_in_range(told, 1000, 19999);
    assert_int_equal(atomic_load(&t.lost), 20000 - told);
    for (i = 0; i < 20000; i++) {
        tr_events_detached(&requests[i]);
        tr_events_end(&requests[i], 1);
        assert_null(requests[i].events);
    }
    (void) tr_ring_publish(&t.frontend);
    while (tr_ring_get(&t.from_frontend, &rec, buf, sizeof(buf)) == TR_OK) {
        arrived += rec.type == TR_EVENT_ARRIVED;
        ends += rec.type == TR_EVENT_END;
    }
    assert_int_equal(arrived, told);
    assert_int_equal(ends, told);
    tr_events_free(&t);
}

/* A full ring loses records; the request knows it, and says so as soon as there
 * is room. */
static void
test_a_full_ring(void **state)
{
    static uint8_t buf[TR_EVENTS_LOOP_RING / 4];
    tr_request_t r = { .submit_flags = TR_SUBMIT_RESUMABLE, .event_id = 1 };
    tr_ring_piece_t piece = { buf, 1000 };
    unsigned records = 0, lost = 0;
    tr_request_events_t t;
    tr_record_t rec;

    (void) state;
    assert_int_equal(tr_events_init(&t, -1, -1), TR_OK);
    r.events = &t;
    while (!r.events_lost) {
        tr_events_record(&r, TR_RECORD_DELTA, &piece, 1);
        records++;
    }
    assert_in_range(records, 1000, TR_EVENTS_LOOP_RING / 1000);
    tr_events_publish(&t);
    while (tr_ring_get(&t.from_loop, &rec, buf, sizeof(buf)) == TR_OK) {
        records -= rec.type == TR_RECORD_DELTA;
        lost += rec.type == TR_EVENT_LOST;
    }
    tr_ring_release(&t.from_loop);
    assert_int_equal(records, 1);
    tr_events_record(&r, TR_RECORD_DELTA, &piece, 1);
    tr_events_record(&r, TR_RECORD_DELTA, &piece, 1);
    tr_events_publish(&t);
    while (tr_ring_get(&t.from_loop, &rec, buf, sizeof(buf)) == TR_OK) {
        assert_int_equal(rec.type, TR_EVENT_LOST);
        lost++;
    }
    assert_int_equal(lost, 1);
    tr_events_free(&t);
}

static void
test_cancels_are_bounded(void **state)
{
    int fd = tr_doorbell_create();
    unsigned i;
    tr_request_events_t t;

    (void) state;
    assert_int_equal(tr_events_init(&t, -1, fd), TR_OK);
    assert_int_equal(tr_events_cancelled(&t), 0);
    assert_int_equal(tr_events_cancelled(NULL), 0);
    for (i = 1; i <= TR_EVENTS_CANCELS; i++) {
        assert_true(tr_events_cancel(&t, i));
    }
    assert_false(tr_events_cancel(&t, i));
    for (i = 1; i <= TR_EVENTS_CANCELS; i++) {
        assert_int_equal(tr_events_cancelled(&t), i);
    }
    assert_int_equal(tr_events_cancelled(&t), 0);
    tr_events_free(&t);
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
        cmocka_unit_test(test_refused_writes_wait),
        cmocka_unit_test(test_wrong_password),
        cmocka_unit_test(test_a_silent_redis),
        cmocka_unit_test(test_cut_connections),
    };

    signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
