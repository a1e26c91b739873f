/*
 * The ring client against an engine that is one thread of this test: it
 * accepts, answers the handshake as told, and serves records as told.
 */
#include "tests/unit/fixtures/fake_engine.h"

/* ---- connecting --------------------------------------------------------- */

static void
test_connect_shows_the_engine(void **state)
{
    tr_ring_client_options_t options = { 100, 8192, 16384 };
    tr_status_admission_t in, out;
    int before = count_fds();
    tr_ring_client_t *c;
    tr_status_card_t card;
    tr_error_t err;
    fake_t f;

    (void) state;
    fake_start(&f, WELCOME, NULL, 0);
    assert_int_equal(tr_ring_client_connect(f.path, &options, PATIENCE_MS, &c,
                                            &err),
                     TR_OK);
    assert_int_equal(tr_ring_client_slots(c), 128);
    assert_int_equal(tr_ring_client_in_flight(c), 0);
    assert_int_equal(tr_ring_client_generation(c), GENERATION);
    tr_status_card_copy(tr_ring_client_status(c), &card);
    assert_string_equal(card.model, "fake");
    memset(&in, 0, sizeof(in));
    in.running = 3;
    tr_status_publish(f.status, &in);
    tr_ring_client_admission(c, &out);
    assert_int_equal(out.running, 3);
    /* the engine dies while it writes: the last copy stays */
    in.running = 4;
    atomic_fetch_add(&f.status->sequence, 1);
    tr_ring_client_admission(c, &out);
    assert_int_equal(out.running, 3);
    tr_ring_client_close(c);
    fake_stop(&f);
    assert_int_equal(count_fds(), before);
}

static void
expect_refusal(int manner, int timeout_ms, tr_status_t want, const char *text)
{
    int before = count_fds();
    tr_ring_client_t *c;
    tr_error_t err;
    fake_t f;

    fake_start(&f, manner, NULL, 0);
    assert_int_equal(tr_ring_client_connect(f.path, NULL, timeout_ms, &c, &err),
                     want);
    assert_null(c);
    assert_int_equal(err.status, want);
    if (strstr(err.text, text) == NULL || strstr(err.text, f.path) == NULL) {
        if (manner != OTHER_GENERATION) {
            fail_msg("\"%s\" has no \"%s\"", err.text, text);
        }
    }
    fake_stop(&f);
    assert_int_equal(count_fds(), before);
}

static void
test_refusals_have_a_reason(void **state)
{
    (void) state;
    expect_refusal(REFUSE_VERSION, PATIENCE_MS, TR_ERR_VERSION,
                   "versions 1 to 1, this engine 7 to 8");
    expect_refusal(REFUSE_BUSY, PATIENCE_MS, TR_ERR_CLOSED,
                   "too many channels: 64 of 64");
    expect_refusal(SILENT, 20, TR_ERR_TIMEOUT, "did not answer");
    expect_refusal(HANG_UP, PATIENCE_MS, TR_ERR_CLOSED, "hung up");
    expect_refusal(TOO_FEW_FDS, PATIENCE_MS, TR_ERR_PROTOCOL,
                   "sent 0 descriptors, expected 4");
    expect_refusal(OTHER_GENERATION, PATIENCE_MS, TR_ERR_PROTOCOL,
                   "generations differ");
    expect_refusal(GARBAGE, PATIENCE_MS, TR_ERR_PROTOCOL, "makes no sense");
}

static void
test_nobody_there(void **state)
{
    int before = count_fds();
    tr_ring_client_t *c;
    char path[200];
    tr_error_t err;

    (void) state;
    assert_int_equal(tr_ring_client_connect("/tmp/no/such.sock", NULL, 100, &c,
                                            &err),
                     TR_ERR_NO_ENGINE);
    assert_non_null(strstr(err.text, "/tmp/no/such.sock"));
    assert_int_equal(tr_ring_client_connect("", NULL, 100, &c, &err),
                     TR_ERR_INVALID);
    memset(path, 'a', sizeof(path));
    path[sizeof(path) - 1] = '\0';
    assert_int_equal(tr_ring_client_connect(path, NULL, 100, &c, &err),
                     TR_ERR_INVALID);
    assert_non_null(strstr(err.text, "199 bytes"));
    assert_int_equal(count_fds(), before);
    tr_ring_client_close(NULL);
}

/* ---- requests ----------------------------------------------------------- */

static void
serve_one(fake_t *f)
{
    tr_wire_error_t error = { .status = TR_ERR_INVALID,
                              .param_len = 4,
                              .message_len = 3 };

    if (fake_request(f)) {
        fake_accepted(f, f->id);
        fake_delta(f, f->id, f->request_id);
        fake_delta(f, f->id ^ 1, "not yours: another slot");
        fake_delta(f, f->id + (1ull << 32), "not yours: another generation");
        fake_delta(f, f->id, " upon");
        fake_finish(f, f->id, TR_FINISH_STOP);
        fake_delta(f, f->id, "too late");
    }
    if (fake_request(f)) {
        fake_put(f, TR_RECORD_ERROR, f->id, &error, sizeof(error), "seedbad",
                 7);
    }
}

static tr_ring_client_t *
connected(fake_t *f, const tr_ring_client_options_t *options)
{
    tr_ring_client_t *c;
    tr_error_t err;

    if (tr_ring_client_connect(f->path, options, PATIENCE_MS, &c, &err)
        != TR_OK) {
        fail_msg("%s", err.text);
    }
    return c;
}

static void
expect_event(tr_ring_client_t *c, tr_ring_event_t *event, uint64_t id,
             uint16_t type)
{
    tr_error_t err;

    if (tr_ring_client_poll(c, PATIENCE_MS, event, &err) != TR_OK) {
        fail_msg("no event of type %u: %s", type, err.text);
    }
    assert_int_equal(event->type, type);
    assert_true(event->id == id);
}

static void
test_a_request_and_its_events(void **state)
{
    tr_ring_event_t event;
    tr_ring_client_t *c;
    uint64_t id, second;
    tr_error_t err;
    fake_t f;

    (void) state;
    fake_start(&f, WELCOME, serve_one, 0);
    c = connected(&f, NULL);
    assert_int_equal(tr_ring_client_submit(c, TR_ENDPOINT_CHAT, "req-1", "{}",
                                           2, PATIENCE_MS, &id, &err),
                     TR_OK);
    assert_int_equal(TR_ID_GENERATION(id), 1);
    assert_int_equal(tr_ring_client_in_flight(c), 1);
    expect_event(c, &event, id, TR_RECORD_ACCEPTED);
    assert_int_equal(event.text.len, 4);
    assert_memory_equal(event.text.data, "fake", 4);
    expect_event(c, &event, id, TR_RECORD_DELTA);
    assert_int_equal(event.text.len, 5);
    assert_memory_equal(event.text.data, "req-1", 5);
    expect_event(c, &event, id, TR_RECORD_DELTA);
    assert_memory_equal(event.text.data, " upon", 5);
    assert_false(event.last);
    expect_event(c, &event, id, TR_RECORD_FINISH);
    assert_true(event.last);
    assert_int_equal(event.head.finish.reason, TR_FINISH_STOP);
    assert_int_equal(tr_ring_client_in_flight(c), 0);

    /* the same slot, the next generation */
    assert_int_equal(tr_ring_client_submit(c, TR_ENDPOINT_COMPLETIONS, NULL, "",
                                           0, PATIENCE_MS, &second, &err),
                     TR_OK);
    assert_true(second == id + (1ull << 32));
    expect_event(c, &event, second, TR_RECORD_ERROR);
    assert_true(event.last);
    assert_int_equal(event.head.error.status, TR_ERR_INVALID);
    assert_memory_equal(event.param.data, "seed", 4);
    assert_memory_equal(event.text.data, "bad", 3);

    /* the engine has ended: told once everything was delivered */
    assert_int_equal(tr_ring_client_poll(c, 0, &event, &err), TR_AGAIN);
    shutdown(f.sock, SHUT_RDWR);
    assert_int_equal(tr_ring_client_poll(c, PATIENCE_MS, &event, &err),
                     TR_ERR_CLOSED);
    assert_non_null(strstr(err.text, "closed"));
    tr_ring_client_close(c);
    fake_stop(&f);
}

static void
test_what_is_not_sent(void **state)
{
    char long_id[TR_REQUEST_ID_MAX + 2];
    tr_ring_client_t *c;
    tr_error_t err;
    uint64_t id;
    fake_t f;

    (void) state;
    fake_start(&f, WELCOME, NULL, 0);
    c = connected(&f, NULL);
    memset(long_id, 'a', sizeof(long_id));
    long_id[sizeof(long_id) - 1] = '\0';
    assert_int_equal(tr_ring_client_submit(c, 99, NULL, "", 0, 0, &id, &err),
                     TR_ERR_INVALID);
    assert_int_equal(tr_ring_client_submit(c, TR_ENDPOINT_CHAT, long_id, "", 0,
                                           0, &id, &err),
                     TR_ERR_INVALID);
    assert_non_null(strstr(err.text, "65 bytes"));
    assert_int_equal(tr_ring_client_submit(c, TR_ENDPOINT_CHAT, "a b", "", 0, 0,
                                           &id, &err),
                     TR_ERR_INVALID);
    assert_non_null(strstr(err.text, "0x20 at 1"));
    assert_int_equal(tr_ring_client_in_flight(c), 0);
    tr_ring_client_close(c);
    fake_stop(&f);
}

static void
serve_large(fake_t *f)
{
    if (fake_request(f)) {
        fake_finish(f, f->id, TR_FINISH_LENGTH);
    }
}

/* 8 MiB through 64 KiB; then through the smallest ring, of odd length. */
static void
test_large_bodies(void **state)
{
    static const struct {
        uint32_t ring;
        size_t len;
    } rows[] = { { 65536, 8u << 20 }, { TR_RING_MIN, 100003 } };
    tr_ring_event_t event;
    tr_ring_client_t *c;
    tr_error_t err;
    uint8_t *body;
    size_t i, row;
    uint64_t id;
    fake_t f;

    (void) state;
    for (row = 0; row < 2; row++) {
        size_t len = rows[row].len;
        uint32_t max = tr_ring_max_payload(rows[row].ring);

        body = malloc(len);
        for (i = 0; i < len; i++) {
            body[i] = (uint8_t) (i * 2654435761u >> 24);
        }
        fake_start(&f, WELCOME, serve_large, rows[row].ring);
        c = connected(&f, NULL);
        assert_int_equal(tr_ring_client_submit(c, TR_ENDPOINT_CHAT, NULL, body,
                                               len, PATIENCE_MS, &id, &err),
                         TR_OK);
        expect_event(c, &event, id, TR_RECORD_FINISH);
        tr_ring_client_close(c);
        fake_stop(&f);
        assert_int_equal(f.body_len, len);
        assert_true(f.body_hash == hash(0, body, len));
        assert_int_equal(f.n_parts, (len + 88 + max - 1) / max);
        free(body);
    }
}

/* The engine takes the first part and then nothing; it is told to abort, and
 * what it says about the lost request reaches nobody. */
static void
serve_stalled(fake_t *f)
{
    struct pollfd p = { .fd = f->fds[TR_FD_TO_ENGINE], .events = POLLIN };
    tr_record_t rec;

    if (!fake_get(f, &rec)) {
        return;
    }
    f->id = rec.id;
    tr_ring_sleep(&f->in);
    while ((tr_control_get(&f->map, f->id) & TR_CONTROL_ABORT) == 0) {
        tr_doorbell_drain(p.fd);
        if (tr_channel_sleep(&f->map, &f->in) == TR_AGAIN
            && poll(&p, 1, PATIENCE_MS) <= 0) {
            f->failed = "no abort";
            return;
        }
    }
    fake_delta(f, f->id, "for nobody");
    fake_finish(f, f->id, TR_FINISH_ABORTED);
    while (fake_get(f, &rec) && rec.id == f->id) {
    }
    fake_finish(f, rec.id, TR_FINISH_STOP);
}

static void
test_a_body_that_is_not_taken(void **state)
{
    tr_ring_client_options_t options = { 64, 4096, 4096 };
    uint8_t body[20000];
    tr_ring_event_t event;
    tr_ring_client_t *c;
    uint64_t lost, id;
    tr_error_t err;
    fake_t f;

    (void) state;
    memset(body, ' ', sizeof(body));
    fake_start(&f, WELCOME, serve_stalled, 0);
    c = connected(&f, &options);
    assert_int_equal(tr_ring_client_submit(c, TR_ENDPOINT_CHAT, NULL, body,
                                           sizeof(body), 50, &lost, &err),
                     TR_ERR_TIMEOUT);
    assert_int_equal(tr_ring_client_in_flight(c), 0);
    assert_int_equal(tr_ring_client_submit(c, TR_ENDPOINT_CHAT, NULL, "{}", 2,
                                           PATIENCE_MS, &id, &err),
                     TR_OK);
    assert_int_not_equal(TR_ID_SLOT(id), TR_ID_SLOT(lost));
    expect_event(c, &event, id, TR_RECORD_FINISH);
    tr_ring_client_close(c);
    fake_stop(&f);
}

/* ---- commands, many requests, waiting ----------------------------------- */

static void
serve_commands(fake_t *f)
{
    static const uint32_t steps[] = { TR_CONTROL_PAUSE, 0,
                                      TR_CONTROL_ABORT | TR_CONTROL_PAUSE };
    struct pollfd p = { .fd = f->fds[TR_FD_TO_ENGINE], .events = POLLIN };
    unsigned i;

    if (!fake_request(f)) {
        return;
    }
    fake_accepted(f, f->id);
    for (i = 0; i < 3; i++) {
        for (;;) {
            tr_control_take(&f->map, 0);
            if (tr_control_get(&f->map, f->id) == steps[i]) {
                break;
            }
            tr_doorbell_drain(p.fd);
            if (tr_channel_sleep(&f->map, &f->in) == TR_AGAIN
                && poll(&p, 1, PATIENCE_MS) <= 0) {
                f->failed = "a command did not come";
                return;
            }
        }
        fake_delta(f, f->id, i == 0 ? "paused" : i == 1 ? "resumed" : "end");
    }
    fake_finish(f, f->id, TR_FINISH_ABORTED);
}

static void
test_commands(void **state)
{
    tr_ring_event_t event;
    tr_ring_client_t *c;
    tr_error_t err;
    uint64_t id;
    fake_t f;

    (void) state;
    fake_start(&f, WELCOME, serve_commands, 0);
    c = connected(&f, NULL);
    assert_int_equal(tr_ring_client_submit(c, TR_ENDPOINT_CHAT, NULL, "{}", 2,
                                           PATIENCE_MS, &id, &err),
                     TR_OK);
    expect_event(c, &event, id, TR_RECORD_ACCEPTED);
    tr_ring_client_pause(c, id);
    expect_event(c, &event, id, TR_RECORD_DELTA);
    tr_ring_client_resume(c, id);
    expect_event(c, &event, id, TR_RECORD_DELTA);
    tr_ring_client_abort(c, id);
    tr_ring_client_pause(c, id); /* does not take the abort back */
    expect_event(c, &event, id, TR_RECORD_DELTA);
    expect_event(c, &event, id, TR_RECORD_FINISH);
    assert_int_equal(event.head.finish.reason, TR_FINISH_ABORTED);
    tr_ring_client_abort(c, id); /* dead: ignored */
    tr_ring_client_abort(c, UINT64_MAX);
    tr_ring_client_close(c);
    fake_stop(&f);
}

/* Answers all 64 at once, last first. */
static void
serve_full(fake_t *f)
{
    uint64_t ids[64];
    int i;

    for (i = 0; i < 64; i++) {
        if (!fake_request(f)) {
            return;
        }
        ids[i] = f->id;
    }
    for (i = 63; i >= 0; i--) {
        fake_delta(f, ids[i], "x");
        fake_finish(f, ids[i], TR_FINISH_STOP);
    }
}

static void
test_every_slot_in_flight(void **state)
{
    tr_ring_client_options_t options = { 64, 4096, 4096 };
    uint64_t ids[64], extra;
    struct pollfd p = { .events = POLLIN };
    tr_ring_event_t event;
    int i, ended = 0;
    tr_ring_client_t *c;
    tr_status_t rc;
    tr_error_t err;
    fake_t f;

    (void) state;
    fake_start(&f, WELCOME, serve_full, 0);
    c = connected(&f, &options);
    for (i = 0; i < 64; i++) {
        assert_int_equal(tr_ring_client_submit(c, TR_ENDPOINT_CHAT, NULL, "{}",
                                               2, PATIENCE_MS, &ids[i], &err),
                         TR_OK);
        if (i == 62) {
            assert_int_equal(tr_ring_client_poll(c, 0, &event, &err), TR_AGAIN);
        }
    }
    assert_int_equal(tr_ring_client_in_flight(c), 64);
    assert_int_equal(tr_ring_client_submit(c, TR_ENDPOINT_CHAT, NULL, "{}", 2,
                                           0, &extra, &err),
                     TR_AGAIN);
    assert_non_null(strstr(err.text, "64 slots"));
    /* as an event loop would: poll until TR_AGAIN, then wait on the fd */
    p.fd = tr_ring_client_fd(c);
    while (ended < 64) {
        rc = tr_ring_client_poll(c, 0, &event, &err);
        if (rc == TR_OK) {
            assert_true(event.id == ids[63 - ended]);
            ended += event.last;
        } else {
            assert_int_equal(rc, TR_AGAIN);
            assert_int_equal(poll(&p, 1, PATIENCE_MS), 1);
        }
    }
    assert_int_equal(tr_ring_client_in_flight(c), 0);
    tr_ring_client_close(c);
    fake_stop(&f);
}

/* ---- an engine that breaks the rules ------------------------------------ */

static void
serve_unknown_type(fake_t *f)
{
    fake_put(f, 99, TR_ID(0, 1), "abc", 3, NULL, 0);
}

static void
serve_short_record(fake_t *f)
{
    fake_put(f, TR_RECORD_FINISH, TR_ID(0, 1), "abc", 3, NULL, 0);
}

static void
serve_bad_index(fake_t *f)
{
    atomic_store(&f->map.response->tail, 12345678);
    tr_doorbell_ring(f->fds[TR_FD_TO_PEER]);
}

static void
serve_bytes_on_the_socket(fake_t *f)
{
    send(f->sock, "hello?", 6, MSG_NOSIGNAL);
}

static void
test_violations_are_named(void **state)
{
    static const struct {
        void (*serve)(fake_t *f);
        const char *text;
    } rows[] = {
        { serve_unknown_type, "bad record of type 99, 3 bytes" },
        { serve_short_record, "bad record of type 18, 3 bytes" },
        { serve_bad_index, "impossible index" },
        { serve_bytes_on_the_socket, "data on the socket" },
    };
    tr_ring_event_t event;
    tr_ring_client_t *c;
    tr_error_t err;
    size_t i;
    fake_t f;

    (void) state;
    for (i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        fake_start(&f, WELCOME, rows[i].serve, 0);
        c = connected(&f, NULL);
        assert_int_equal(tr_ring_client_poll(c, PATIENCE_MS, &event, &err),
                         TR_ERR_PROTOCOL);
        if (strstr(err.text, rows[i].text) == NULL) {
            fail_msg("\"%s\" has no \"%s\"", err.text, rows[i].text);
        }
        tr_ring_client_close(c);
        fake_stop(&f);
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_connect_shows_the_engine),
        cmocka_unit_test(test_refusals_have_a_reason),
        cmocka_unit_test(test_nobody_there),
        cmocka_unit_test(test_a_request_and_its_events),
        cmocka_unit_test(test_what_is_not_sent),
        cmocka_unit_test(test_large_bodies),
        cmocka_unit_test(test_a_body_that_is_not_taken),
        cmocka_unit_test(test_commands),
        cmocka_unit_test(test_every_slot_in_flight),
        cmocka_unit_test(test_violations_are_named),
    };

    return cmocka_run_group_tests_name("ring_client", tests, NULL, NULL);
}
