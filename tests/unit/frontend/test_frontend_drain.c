/*
 * How an engine's frontend starts and ends: sockets and starts that cannot be,
 * a kill, draining, and what `tokenring drain` asks for.
 */
#include "tests/unit/fixtures/frontend_fixture.h"

#include <pthread.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>

/* ---- start and end ------------------------------------------------------ */

static void
expect_start_error(fixture_t *fixture, const char *message)
{
    tr_engine_t *other;
    tr_error_t err;

    assert_true(tr_engine_start(&fixture->config, &other, &err) != TR_OK);
    if (strstr(err.text, message) == NULL) {
        fail_msg("got \"%s\", expected \"%s\"", err.text, message);
    }
}

static void
test_socket_path(void **state)
{
    struct stat st;
    char text[64];
    fixture_t fixture;
    FILE *f;
    int sock;

    (void) state;
    fixture_start(&fixture, "socket_mode", "0620", NULL);
    assert_int_equal(lstat(fixture.config.socket, &st), 0);
    assert_true(S_ISSOCK(st.st_mode));
    assert_int_equal(st.st_mode & 07777, 0620);
    snprintf(text, sizeof(text), "another engine (pid %ld)", (long) getpid());
    expect_start_error(&fixture, text);
    fixture_check_alive(&fixture); /* it has lost nothing by that */
    fixture_stop(&fixture);

    /* a dead engine's socket is replaced */
    sock = socket(AF_UNIX, SOCK_STREAM, 0);
    {
        struct sockaddr_un addr = raw_address(fixture.config.socket);

        assert_int_equal(bind(sock, (struct sockaddr *) &addr, sizeof(addr)),
                         0);
    }
    close(sock);
    {
        tr_error_t err; /* fixture_start would take another path */

        assert_int_equal(tr_engine_start(&fixture.config, &fixture.engine,
                                         &err),
                         TR_OK);
    }
    fixture_check_alive(&fixture);

    /* a socket that is not ours any more is left alone */
    assert_int_equal(unlink(fixture.config.socket), 0);
    f = fopen(fixture.config.socket, "w");
    assert_non_null(f);
    fclose(f);
    tr_engine_stop(fixture.engine);
    assert_int_equal(access(fixture.config.socket, F_OK), 0);
    expect_start_error(&fixture, "exists and is not a socket");
    assert_int_equal(unlink(fixture.config.socket), 0);

    snprintf(fixture.config.socket, sizeof(fixture.config.socket),
             "/nonexistent/dir/e.sock");
    expect_start_error(&fixture,
                       "cannot write a file in /nonexistent/dir: No such "
                       "file or directory");
}

static void
test_bad_starts(void **state)
{
    fixture_t fixture;
    char path[TR_CONFIG_PATH];

    (void) state;
    fixture_start(&fixture, NULL);
    fixture_stop(&fixture);
    memcpy(path, fixture.config.model, sizeof(path));
    snprintf(fixture.config.model, sizeof(fixture.config.model),
             "/nonexistent");
    expect_start_error(&fixture, "/nonexistent");
    memcpy(fixture.config.model, path, sizeof(path));
    snprintf(fixture.config.chat_template, sizeof(fixture.config.chat_template),
             "chatml");
    expect_start_error(&fixture, "<|im_start|>");
    assert_int_equal(access(fixture.config.socket, F_OK), -1);
}

/* An engine that is killed leaves a lock file and a socket, and the next one
 * starts all the same. */
static void
test_killed(void **state)
{
    int ready[2], status;
    pid_t pid;
    char byte;
    fixture_t fixture;

    (void) state;
    assert_int_equal(pipe(ready), 0);
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        fixture.config.socket[0] = '\0';
        fixture_start(&fixture, NULL);
        /* the child's own path: made of its process id */
        if (write(ready[1], fixture.config.socket,
                  sizeof(fixture.config.socket))
            < 0) {
            _exit(1);
        }
        pause();
        _exit(0);
    }
    close(ready[1]);
    fixture_start(&fixture, NULL);
    fixture_stop(&fixture);
    assert_int_equal(read(ready[0], fixture.config.socket,
                          sizeof(fixture.config.socket)),
                     sizeof(fixture.config.socket));
    kill(pid, SIGKILL);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(read(ready[0], &byte, 1), 0);
    close(ready[0]);
    assert_int_equal(access(fixture.config.socket, F_OK), 0);
    {
        tr_error_t err;

        assert_int_equal(tr_engine_start(&fixture.config, &fixture.engine,
                                         &err),
                         TR_OK);
    }
    fixture_check_alive(&fixture);
    fixture_stop(&fixture);
}

static void *
drain_run(void *arg)
{
    tr_engine_drain(arg);
    return NULL;
}

static void
wait_draining(tr_ring_client_t *c)
{
    tr_status_admission_t a;

    do {
        usleep(1000);
        tr_ring_client_admission(c, &a);
    } while (a.state != TR_ENGINE_DRAINING);
    assert_int_equal(a.queue_free, 0);
}

/* What runs may finish; what is new is refused. */
static void
test_drain(void **state)
{
    const char *body = "{\"prompt\":[5],\"max_tokens\":60}";
    uint32_t tokens = 0;
    bool finished = false;
    tr_ring_client_t *c;
    pthread_t thread;
    uint64_t id, late;
    tr_error_t err;
    fixture_t fixture;

    (void) state;
    fixture_start(&fixture, "null_rate", "20", NULL);
    c = fixture_client(&fixture, 0);
    id = fixture_submit(c, body, strlen(body));
    assert_int_equal(fixture_event(c).type, TR_RECORD_ACCEPTED);
    assert_int_equal(fixture_event(c).type, TR_RECORD_STARTED);
    assert_int_equal(pthread_create(&thread, NULL, drain_run, fixture.engine),
                     0);
    wait_draining(c);
    late = fixture_submit(c, HELLO_BODY, strlen(HELLO_BODY));
    while (tr_ring_client_in_flight(c) != 0) {
        tr_ring_event_t e = fixture_event(c);

        if (e.id == late) {
            assert_int_equal(e.type, TR_RECORD_ERROR);
            assert_int_equal(e.head.error.status, TR_ERR_DRAINING);
        } else if (e.type == TR_RECORD_DELTA) {
            assert_true(e.id == id);
            tokens += e.head.delta.tokens;
        } else {
            assert_int_equal(e.type, TR_RECORD_FINISH);
            finished = true;
        }
    }
    assert_true(finished);
    assert_int_equal(tokens, 60);
    pthread_join(thread, NULL);
    {
        tr_ring_event_t e;

        assert_int_equal(tr_ring_client_poll(c, PATIENCE_MS, &e, &err),
                         TR_ERR_CLOSED);
    }
    tr_ring_client_close(c);
    fixture_stop(&fixture);
}

/* ---- `tokenring drain` -------------------------------------------------- */

static tr_ring_client_t *
drain(const fixture_t *fixture, uint32_t what)
{
    tr_ring_client_t *c;
    tr_error_t err;

    if (tr_ring_client_drain(fixture->config.socket, what, PATIENCE_MS, &c,
                             &err)
        != TR_OK) {
        fail_msg("%s", err.text);
    }
    return c;
}

/* What is inside, run, queued or half sent, goes on to its end; what is new is
 * refused, until the request is taken back. */
static void
test_drain_request(void **state)
{
    const char *sixty = "{\"prompt\":[5],\"max_tokens\":60}";
    tr_ring_client_t *c, *admin, *undo;
    tr_status_admission_t a;
    tr_ring_event_t end;
    uint64_t ids[2];
    unsigned left = 2;
    fixture_t fixture;
    raw_t raw;

    (void) state;
    fixture_start(&fixture, "null_rate", "20", "max_num_seqs", "1", NULL);
    c = fixture_client(&fixture, 0);
    ids[0] = fixture_submit(c, sixty, strlen(sixty));
    while (fixture_event(c).type != TR_RECORD_STARTED) {
    }
    ids[1] = fixture_submit(c, HELLO_BODY, strlen(HELLO_BODY));
    while (fixture_event(c).id != ids[1]) {
    }
    raw_open(&raw, &fixture, 0);
    raw_submit(&raw, TR_ID(0, 1), "{\"prompt\":[5],", TR_BODY_UNKNOWN, true);
    do {
        tr_ring_client_admission(c, &a);
    } while (a.inside != 3);

    admin = drain(&fixture, TR_DRAIN_START);
    wait_draining(admin);
    end = fixture_run(admin, HELLO_BODY);
    assert_int_equal(end.type, TR_RECORD_ERROR);
    assert_int_equal(end.head.error.status, TR_ERR_DRAINING);

    while (left != 0) {
        end = fixture_event(c);
        if (end.last && (end.id == ids[0] || end.id == ids[1])) {
            assert_int_equal(end.type, TR_RECORD_FINISH);
            assert_int_equal(end.head.finish.reason, TR_FINISH_LENGTH);
            left--;
        }
    }
    raw_part(&raw, TR_ID(0, 1), "\"max_tokens\":3}", false);
    assert_int_equal(raw_end(&raw, TR_ID(0, 1)), TR_FINISH_LENGTH);
    do {
        tr_ring_client_admission(admin, &a);
    } while (a.inside != 0);
    assert_int_equal(a.state, TR_ENGINE_DRAINING);

    undo = drain(&fixture, TR_DRAIN_UNDO);
    do {
        tr_ring_client_admission(undo, &a);
    } while (a.state != TR_ENGINE_READY);
    fixture_check_alive(&fixture);
    tr_ring_client_close(undo);
    tr_ring_client_close(admin);
    tr_ring_client_close(c);
    raw_close(&raw);
    fixture_stop(&fixture);
}

/* Prompts and answers of all choices; an answer is as long as the last ones
 * were, at most as long as it may be.  Nobody gets a second token here: a cache
 * that holds more than was expected counts as what it holds. */
static void
test_outstanding_tokens(void **state)
{
    const char *two = "{\"prompt\":[5,6,7],\"n\":2,\"max_tokens\":3000}";
    const char *one = "{\"prompt\":[5,6,7],\"max_tokens\":1}";
    tr_status_admission_t a;
    tr_ring_client_t *c;
    uint64_t id;
    fixture_t fixture;
    int i;

    (void) state;
    fixture_start(&fixture, "null_rate", "0.01", NULL);
    c = fixture_client(&fixture, 0);
    id = fixture_submit(c, two, strlen(two));
    wait_running(c, 1);
    tr_ring_client_admission(c, &a);
    assert_int_equal(a.inside, 1);
    assert_int_equal(a.outstanding_tokens, 2 * (3 + 128));
    tr_ring_client_abort(c, id);
    wait_running(c, 0);
    do {
        tr_ring_client_admission(c, &a);
    } while (a.inside != 0);
    assert_int_equal(a.outstanding_tokens, 0);

    /* an abort has taught nothing, a hundred answers of one token have */
    for (i = 0; i < 100; i++) {
        while (!fixture_event(c).last) {
        }
        id = fixture_submit(c, one, strlen(one));
    }
    while (!fixture_event(c).last) {
    }
    do {
        tr_ring_client_admission(c, &a);
    } while (a.inside != 0);
    id = fixture_submit(c, two, strlen(two));
    wait_running(c, 1);
    tr_ring_client_admission(c, &a);
    assert_in_range(a.outstanding_tokens, 2 * (3 + 1), 2 * (3 + 3));
    tr_ring_client_close(c);
    fixture_stop(&fixture);
}

/* What runs goes on to its end, what waits for it is refused at once. */
static void
test_drain_queue(void **state)
{
    const char *body = "{\"prompt\":[5],\"max_tokens\":60}";
    bool running = true, waiting = true;
    tr_ring_client_t *c;
    pthread_t thread;
    uint64_t id, queued;
    fixture_t fixture;

    (void) state;
    fixture_start(&fixture, "null_rate", "20", "max_num_seqs", "1", NULL);
    c = fixture_client(&fixture, 0);
    id = fixture_submit(c, body, strlen(body));
    while (fixture_event(c).type != TR_RECORD_STARTED) {
    }
    queued = fixture_submit(c, body, strlen(body));
    while (fixture_event(c).id != queued) {
    }
    assert_int_equal(pthread_create(&thread, NULL, drain_run, fixture.engine),
                     0);
    while (running || waiting) {
        tr_ring_event_t e = fixture_event(c);

        if (e.id == queued) {
            assert_int_equal(e.type, TR_RECORD_ERROR);
            assert_int_equal(e.head.error.status, TR_ERR_DRAINING);
            assert_int_equal(e.head.error.retry_after_s, 1);
            assert_true(running);
            waiting = false;
        } else if (e.last) {
            assert_true(e.id == id);
            assert_int_equal(e.type, TR_RECORD_FINISH);
            assert_int_equal(e.head.finish.completion_tokens, 60);
            running = false;
        }
    }
    pthread_join(thread, NULL);
    tr_ring_client_close(c);
    fixture_stop(&fixture);
}

/* Time is up, or somebody is in a hurry: an error ends what still runs. */
static void
drain_short(const char *timeout, bool hurry)
{
    tr_ring_client_t *c;
    tr_ring_event_t e;
    pthread_t thread;
    fixture_t fixture;

    fixture_start(&fixture, "null_rate", "1", "drain_timeout", timeout, NULL);
    c = fixture_client(&fixture, 0);
    fixture_submit(c, LONG_BODY, strlen(LONG_BODY));
    assert_int_equal(fixture_event(c).type, TR_RECORD_ACCEPTED);
    assert_int_equal(fixture_event(c).type, TR_RECORD_STARTED);
    assert_int_equal(pthread_create(&thread, NULL, drain_run, fixture.engine),
                     0);
    if (hurry) {
        wait_draining(c);
        tr_engine_hurry(fixture.engine);
    }
    do {
        e = fixture_event(c);
    } while (!e.last);
    assert_int_equal(e.type, TR_RECORD_ERROR);
    assert_int_equal(e.head.error.status, TR_ERR_DRAINING);
    pthread_join(thread, NULL);
    tr_ring_client_close(c);
    fixture_stop(&fixture);
}

static void
test_drain_timeout(void **state)
{
    (void) state;
    drain_short("200ms", false);
    drain_short("1h", true);
}

/* Requests in every stage when the engine stops at once. */
static void
test_stop(void **state)
{
    int fds = count_fds();
    uint32_t slot;
    fixture_t fixture;
    raw_t r;

    (void) state;
    fixture_start(&fixture, "null_rate", "1", "max_num_seqs", "2", NULL);
    raw_open(&r, &fixture, 65536);
    for (slot = 0; slot < 64; slot++) {
        raw_submit(&r, TR_ID(slot, 1), LONG_BODY, TR_BODY_UNKNOWN,
                   slot % 3 == 0);
    }
    fixture_stop(&fixture);
    raw_expect_hangup(r.sock);
    raw_close(&r);
    assert_int_equal(count_fds(), fds);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_socket_path),
        cmocka_unit_test(test_bad_starts),
        cmocka_unit_test(test_killed),
        cmocka_unit_test(test_drain),
        cmocka_unit_test(test_drain_queue),
        cmocka_unit_test(test_drain_request),
        cmocka_unit_test(test_outstanding_tokens),
        cmocka_unit_test(test_drain_timeout),
        cmocka_unit_test(test_stop),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
