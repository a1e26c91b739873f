/*
 * The frontend thread at its work: bodies of every size, commands that overtake
 * them, limits, refusals, the status page.  test_frontend_drain.c has how an
 * engine starts and ends.
 */
#include "tests/unit/fixtures/frontend_fixture.h"

#include <pthread.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>

/* ---- requests ----------------------------------------------------------- */

static void
test_accepted(void **state)
{
    tr_ring_client_t *c;
    tr_ring_event_t e;
    fixture_t fixture;

    (void) state;
    fixture_start(&fixture, "served_model_name", "org/pocket", NULL);
    c = fixture_client(&fixture, 0);
    fixture_submit(
        c,
        "{\"prompt\":[5,6],\"n\":2,\"stream\":true,\"logprobs\":0,"
        "\"stream_options\":{\"include_usage\":true},\"max_tokens\":2}",
        strlen("{\"prompt\":[5,6],\"n\":2,\"stream\":true,\"logprobs\""
               ":0,\"stream_options\":{\"include_usage\":true},"
               "\"max_tokens\":2}"));
    e = fixture_event(c);
    assert_int_equal(e.type, TR_RECORD_ACCEPTED);
    assert_int_equal(e.head.accepted.endpoint, TR_ENDPOINT_COMPLETIONS);
    assert_int_equal(e.head.accepted.flags, TR_ACCEPTED_STREAM
                                                | TR_ACCEPTED_INCLUDE_USAGE
                                                | TR_ACCEPTED_LOGPROBS);
    assert_int_equal(e.head.accepted.choices, 2);
    assert_int_equal(e.head.accepted.prompt_tokens, 2);
    assert_int_equal(e.text.len, strlen("org/pocket"));
    assert_memory_equal(e.text.data, "org/pocket", e.text.len);
    assert_int_equal(fixture_event(c).type, TR_RECORD_STARTED);
    do {
        e = fixture_event(c);
    } while (!e.last);
    assert_int_equal(e.type, TR_RECORD_FINISH);
    assert_int_equal(e.head.finish.completion_tokens, 4);
    tr_ring_client_close(c);
    fixture_stop(&fixture);
}

static void
test_refused(void **state)
{
    tr_ring_client_t *c;
    tr_ring_event_t e;
    fixture_t fixture;

    (void) state;
    fixture_start(&fixture, NULL);
    c = fixture_client(&fixture, 0);
    e = fixture_run(c, "{\"prompt\":[5],\"temperature\":9}");
    assert_int_equal(e.type, TR_RECORD_ERROR);
    assert_int_equal(e.head.error.status, TR_ERR_INVALID);
    assert_int_equal(e.param.len, strlen("temperature"));
    assert_memory_equal(e.param.data, "temperature", e.param.len);
    assert_int_equal(e.head.error.retry_after_s, 0);
    e = fixture_run(c, "");
    assert_int_equal(e.head.error.status, TR_ERR_INVALID);
    e = fixture_run(c, HELLO_BODY);
    assert_int_equal(e.type, TR_RECORD_FINISH);
    tr_ring_client_close(c);
    fixture_stop(&fixture);
}

#define DIFFERENT \
    "The gateway and the engine read different models in this body."

/* A gateway may be newer than the engine: the request is refused, in the middle
 * of its body, and its channel goes on. */
static void
test_unknown_endpoint(void **state)
{
    static const uint16_t unknown[] = { 0, TR_ENDPOINTS, UINT16_MAX };
    tr_wire_submit_t head = { .body_len = TR_BODY_UNKNOWN };
    tr_wire_bytes_t param, message;
    tr_wire_error_t error;
    tr_record_t rec;
    fixture_t fixture;
    uint32_t i;
    raw_t r;

    (void) state;
    fixture_start(&fixture, NULL);
    raw_open(&r, &fixture, 0);
    for (i = 0; i < 3; i++) {
        head.endpoint = unknown[i];
        raw_put(&r, TR_RECORD_SUBMIT, TR_FLAG_MORE, TR_ID(i, 1), &head,
                sizeof(head));
        rec = raw_next(&r);
        assert_true(rec.id == TR_ID(i, 1));
        assert_int_equal(rec.type, TR_RECORD_ERROR);
        assert_int_equal(tr_wire_error_parse(r.buf, rec.length, &error, &param,
                                             &message),
                         TR_OK);
        assert_int_equal(error.status, TR_ERR_NOT_FOUND);
        raw_part(&r, TR_ID(i, 1), "the rest", false);
    }
    raw_submit(&r, TR_ID(0, 2), HELLO_BODY, TR_BODY_UNKNOWN, false);
    assert_int_equal(raw_end(&r, TR_ID(0, 2)), TR_FINISH_LENGTH);
    raw_close(&r);
    fixture_stop(&fixture);
}

/* A gateway of the release before this one: no tools, no reasoning told apart,
 * and no other endpoints. */
static void
test_older_gateway(void **state)
{
    static const char *const bodies[] = {
        "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],"
        "\"max_tokens\":2}",
        "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],"
        "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]}",
        "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],"
        "\"thinking_token_budget\":5}",
        "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],"
        "\"include_reasoning\":false}"
    };
    static const char *const params[] = { NULL, "tools",
                                          "thinking_token_budget",
                                          "include_reasoning" };
    tr_wire_submit_t head = { .endpoint = TR_ENDPOINT_CHAT,
                              .body_len = TR_BODY_UNKNOWN };
    tr_wire_bytes_t param, message, model, policy;
    tr_wire_accepted_t accepted;
    tr_wire_error_t error;
    uint8_t payload[1024];
    fixture_t fixture;
    tr_record_t rec;
    uint32_t i;
    raw_t r;

    (void) state;
    fixture_start(&fixture, NULL);
    raw_open_with(&r, &fixture, 0, TR_FEATURES & ~TR_FEATURE_ITEMS);
    for (i = 0; i < 4; i++) {
        memcpy(payload, &head, sizeof(head));
        memcpy(payload + sizeof(head), bodies[i], strlen(bodies[i]));
        raw_put(&r, TR_RECORD_SUBMIT, 0, TR_ID(i, 1), payload,
                sizeof(head) + strlen(bodies[i]));
        rec = raw_next(&r);
        assert_true(rec.id == TR_ID(i, 1));
        if (params[i] == NULL) {
            assert_int_equal(rec.type, TR_RECORD_ACCEPTED);
            assert_int_equal(tr_wire_accepted_parse(r.buf, rec.length,
                                                    &accepted, &model, &policy),
                             TR_OK);
            assert_false(accepted.flags & TR_ACCEPTED_ITEMS);
            assert_int_equal(raw_end(&r, TR_ID(i, 1)), TR_FINISH_LENGTH);
            continue;
        }
        assert_int_equal(rec.type, TR_RECORD_ERROR);
        assert_int_equal(tr_wire_error_parse(r.buf, rec.length, &error, &param,
                                             &message),
                         TR_OK);
        assert_int_equal(error.status, TR_ERR_UNSUPPORTED);
        assert_int_equal(param.len, strlen(params[i]));
        assert_memory_equal(param.data, params[i], param.len);
    }
    head.endpoint = TR_ENDPOINT_MESSAGES;
    raw_put(&r, TR_RECORD_SUBMIT, TR_FLAG_MORE, TR_ID(0, 2), &head,
            sizeof(head));
    raw_expect_hangup(r.sock);
    raw_close(&r);
    fixture_check_alive(&fixture);
    fixture_stop(&fixture);
}

/* The model that the gateway read comes ahead of the body, in any pieces, and
 * must be the one that the engine reads there, if it reads one. */
static void
test_routed_model(void **state)
{
    static const char model[] = "alias";
    static const char *const bodies[] = {
        "{\"prompt\":\"x\",\"max_tokens\":2,\"model\":\"alias\"}",
        "{\"prompt\":\"x\",\"max_tokens\":2,\"mod\\u0065l\":\"alia\\u0073\"}",
        "{\"prompt\":\"x\",\"max_tokens\":2}",
        "{\"prompt\":\"x\",\"max_tokens\":2,\"model\":\"alias2\"}",
        "{\"prompt\":\"x\",\"max_tokens\":2,\"model\":7}"
    };
    tr_wire_bytes_t param, message;
    tr_wire_error_t error;
    uint8_t payload[1024];
    fixture_t fixture;
    uint32_t i, cut;
    raw_t r;

    (void) state;
    fixture_start(&fixture, NULL);
    raw_open(&r, &fixture, 0);
    for (i = 0; i < 5; i++) {
        for (cut = 0; cut <= sizeof(model); cut++) {
            uint64_t id = TR_ID(i, cut + 1);
            size_t len = strlen(bodies[i]), at = sizeof(model) - 1;
            tr_wire_submit_t head = { .endpoint = TR_ENDPOINT_COMPLETIONS,
                                      .body_len = len,
                                      .model_len = sizeof(model) - 1 };

            memcpy(payload, &head, sizeof(head));
            memcpy(payload + sizeof(head), model, at);
            memcpy(payload + sizeof(head) + at, bodies[i], len);
            raw_put(&r, TR_RECORD_SUBMIT, TR_FLAG_MORE, id, payload,
                    sizeof(head) + cut);
            raw_put(&r, TR_RECORD_SUBMIT, 0, id, payload + sizeof(head) + cut,
                    at + len - cut);
            if (i < 3) {
                assert_int_equal(raw_end(&r, id), TR_FINISH_LENGTH);
                continue;
            }
            assert_int_equal(raw_next(&r).type, TR_RECORD_ERROR);
            assert_int_equal(tr_wire_error_parse(r.buf,
                                                 sizeof(error) + 5
                                                     + strlen(DIFFERENT),
                                                 &error, &param, &message),
                             TR_OK);
            assert_int_equal(error.status, TR_ERR_INVALID);
            assert_memory_equal(param.data, "model", 5);
            assert_memory_equal(message.data, DIFFERENT, message.len);
        }
    }
    raw_close(&r);
    fixture_stop(&fixture);
}

/* A block that is none, or of another model, is refused and its channel goes
 * on; the block may come in any pieces. */
static void
test_replay_is_checked(void **state)
{
    static const char body[] = "{\"prompt\":\"x\",\"max_tokens\":2}";
    tr_wire_replay_t block = { .choices = 1, .prompt_tokens = 1, .epoch = 1 };
    tr_wire_replay_choice_t choice = { .tokens = 0 };
    tr_wire_bytes_t param, message;
    tr_wire_error_t error;
    uint8_t payload[1024];
    fixture_t fixture;
    uint32_t i;
    raw_t r;

    (void) state;
    fixture_start(&fixture, NULL);
    raw_open(&r, &fixture, 0);
    for (i = 0; i < 4; i++) {
        uint64_t id = TR_ID(i, 1);
        size_t ahead = sizeof(block) + sizeof(choice), at = sizeof(block) / 2;
        tr_wire_submit_t head = { .endpoint = TR_ENDPOINT_COMPLETIONS,
                                  .body_len = sizeof(body) - 1,
                                  .replay_len = (uint32_t) ahead };
        tr_record_t rec;

        block.epoch = i != 0;
        block.tail_len = i == 1;
        choice.tokens = i == 2 ? 1u << 21 : 0;
        block.model_id[0] = i == 3;
        memcpy(payload, &head, sizeof(head));
        memcpy(payload + sizeof(head), &block, sizeof(block));
        memcpy(payload + sizeof(head) + sizeof(block), &choice, sizeof(choice));
        memcpy(payload + sizeof(head) + ahead, body, sizeof(body) - 1);
        raw_put(&r, TR_RECORD_SUBMIT, TR_FLAG_MORE, id, payload,
                sizeof(head) + at);
        raw_put(&r, TR_RECORD_SUBMIT, 0, id, payload + sizeof(head) + at,
                ahead + sizeof(body) - 1 - at);
        rec = raw_next(&r);
        assert_int_equal(rec.type, TR_RECORD_ERROR);
        assert_int_equal(tr_wire_error_parse(r.buf, rec.length, &error, &param,
                                             &message),
                         TR_OK);
        assert_int_equal(error.status, TR_ERR_REPLAY);
    }
    raw_submit(&r, TR_ID(0, 2), HELLO_BODY, TR_BODY_UNKNOWN, false);
    assert_int_equal(raw_end(&r, TR_ID(0, 2)), TR_FINISH_LENGTH);
    raw_close(&r);
    fixture_stop(&fixture);
}

/* Blocks that are announced count as bodies do, before a byte of them is there:
 * eight of the largest fill what one worker may hold, the others are refused. */
static void
test_replay_is_counted(void **state)
{
    tr_wire_submit_t head = { .endpoint = TR_ENDPOINT_COMPLETIONS,
                              .body_len = 20,
                              .replay_len = TR_REPLAY_MAX };
    tr_wire_bytes_t param, message;
    tr_wire_error_t error;
    fixture_t fixture;
    tr_record_t rec;
    raw_t r;

    (void) state;
    fixture_start(&fixture, NULL);
    raw_open(&r, &fixture, 0);
    for (uint32_t i = 0; i < 12; i++) {
        raw_put(&r, TR_RECORD_SUBMIT, TR_FLAG_MORE, TR_ID(i, 1), &head,
                sizeof(head));
    }
    for (uint32_t i = 8; i < 12; i++) {
        rec = raw_next(&r);
        assert_int_equal(rec.type, TR_RECORD_ERROR);
        assert_int_equal(rec.id, TR_ID(i, 1));
        assert_int_equal(tr_wire_error_parse(r.buf, rec.length, &error, &param,
                                             &message),
                         TR_OK);
        assert_int_equal(error.status, TR_ERR_QUEUE_FULL);
    }
    raw_close(&r);
    fixture_check_alive(&fixture);
    fixture_stop(&fixture);
}

/* A body far larger than the ring, and one that is interleaved with it. */
static void
test_large_bodies(void **state)
{
    const char *tail = "\",\"prompt\":[5,6,7],\"max_tokens\":3}";
    const char *head = "{\"unknown\":\"";
    size_t fill = 8u << 20, len = strlen(head) + fill + strlen(tail);
    char *body = malloc(len);
    tr_ring_client_t *c;
    tr_ring_event_t e;
    fixture_t fixture;
    raw_t r;

    (void) state;
    assert_non_null(body);
    memcpy(body, head, strlen(head));
    memset(body + strlen(head), 'x', fill);
    memcpy(body + strlen(head) + fill, tail, strlen(tail));
    fixture_start(&fixture, NULL);
    c = fixture_client(&fixture, 65536);
    fixture_submit(c, body, len);
    do {
        e = fixture_event(c);
    } while (!e.last);
    assert_int_equal(e.type, TR_RECORD_FINISH);
    assert_int_equal(e.head.finish.completion_tokens, 3);
    tr_ring_client_close(c);
    free(body);

    raw_open(&r, &fixture, 65536);
    raw_submit(&r, TR_ID(0, 1), "{\"prompt\":[1,", TR_BODY_UNKNOWN, true);
    raw_submit(&r, TR_ID(1, 1), "{\"prompt\":[2", 29, true);
    raw_part(&r, TR_ID(0, 1), "2,3,4],", true);
    raw_part(&r, TR_ID(1, 1), "],\"max_tokens\":2", true);
    raw_part(&r, TR_ID(0, 1), "\"max_tokens\":1}", false);
    assert_int_equal(raw_end(&r, TR_ID(0, 1)), TR_FINISH_LENGTH);
    raw_part(&r, TR_ID(1, 1), "", true);
    raw_part(&r, TR_ID(1, 1), "}", false);
    raw_next(&r); /* ACCEPTED */
    assert_int_equal(raw_end(&r, TR_ID(1, 1)), TR_FINISH_LENGTH);
    raw_close(&r);
    fixture_stop(&fixture);
}

/* ---- commands ----------------------------------------------------------- */

/* The next record is the end of `id`, which was aborted. */
static void
expect_aborted(raw_t *r, uint64_t id)
{
    tr_wire_finish_t head = { 0 };
    tr_record_t rec = raw_next(r);

    assert_true(rec.id == id);
    assert_int_equal(rec.type, TR_RECORD_FINISH);
    assert_int_equal(tr_wire_finish_parse(r->buf, rec.length, &head, NULL),
                     TR_OK);
    assert_int_equal(head.reason, TR_FINISH_ABORTED);
    assert_int_equal(head.flags, TR_FINISH_LAST);
}

static void
test_abort(void **state)
{
    fixture_t fixture;
    raw_t r;

    (void) state;
    fixture_start(&fixture, "null_rate", "1", NULL);
    raw_open(&r, &fixture, 65536);

    /* the command is there before the body */
    raw_command(&r, TR_ID(0, 1), TR_CONTROL_ABORT);
    raw_submit(&r, TR_ID(0, 1), LONG_BODY, TR_BODY_UNKNOWN, false);
    expect_aborted(&r, TR_ID(0, 1));

    /* in the middle of the body, whose rest still comes */
    raw_submit(&r, TR_ID(0, 2), "{\"prompt\":", 100, true);
    raw_command(&r, TR_ID(0, 2), TR_CONTROL_ABORT);
    expect_aborted(&r, TR_ID(0, 2));
    raw_part(&r, TR_ID(0, 2), "\"rest", true);
    raw_part(&r, TR_ID(0, 2), "\"", false);

    /* while it runs: one token a second, so it is not over by itself */
    raw_submit(&r, TR_ID(0, 3), LONG_BODY, TR_BODY_UNKNOWN, false);
    assert_int_equal(raw_next(&r).type, TR_RECORD_ACCEPTED);
    raw_command(&r, TR_ID(0, 3), TR_CONTROL_PAUSE);
    raw_command(&r, TR_ID(0, 3), 0);
    raw_command(&r, TR_ID(0, 3), TR_CONTROL_ABORT);
    assert_int_equal(raw_end(&r, TR_ID(0, 3)), TR_FINISH_ABORTED);

    /* an old command does not touch the next request in the slot */
    raw_submit(&r, TR_ID(0, 4), "{\"prompt\":[5],\"max_tokens\":1}",
               TR_BODY_UNKNOWN, false);
    raw_next(&r);
    assert_int_equal(raw_end(&r, TR_ID(0, 4)), TR_FINISH_LENGTH);
    raw_close(&r);
    fixture_stop(&fixture);
}

/* ---- limits ------------------------------------------------------------- */

static void
test_queue_full(void **state)
{
    tr_wire_error_t head;
    tr_wire_bytes_t param, message;
    tr_record_t rec;
    uint32_t slot, accepted = 0, refused = 0;
    fixture_t fixture;
    raw_t r;

    (void) state;
    fixture_start(&fixture, "null_rate", "1", "max_num_seqs", "1", "max_queue",
                  "2", NULL);
    raw_open(&r, &fixture, 65536);
    for (slot = 0; slot < 20; slot++) {
        raw_submit(&r, TR_ID(slot, 1), LONG_BODY, TR_BODY_UNKNOWN, false);
    }
    while (accepted + refused < 20) {
        rec = raw_next(&r);
        if (rec.type == TR_RECORD_ACCEPTED) {
            accepted++;
        } else if (rec.type == TR_RECORD_ERROR) {
            assert_int_equal(tr_wire_error_parse(r.buf, rec.length, &head,
                                                 &param, &message),
                             TR_OK);
            assert_int_equal(head.status, TR_ERR_QUEUE_FULL);
            assert_int_equal(head.retry_after_s, 1);
            refused++;
        }
    }
    /* one runs, two wait; what the loop took in between may vary by one */
    assert_true(accepted >= 2 && accepted <= 4);
    raw_close(&r);
    fixture_stop(&fixture);
}

/* Of 100 requests of 64 bytes that ask for 16 MiB each, as many are let in as
 * a GiB holds; all of it comes back when their peer goes. */
static void
test_layout_bounded(void **state)
{
    const char *body = "{\"prompt\":[5],\"n\":128,\"max_tokens\":32000}";
    tr_ring_client_options_t options = { 128, 0, 0 };
    uint32_t round, i, accepted, refused;
    tr_ring_client_t *c;
    tr_error_t err;
    fixture_t fixture;
    int fds;

    (void) state;
    fixture_start(&fixture, "null_rate", "0.01", "max_num_seqs", "1", NULL);
    fds = count_fds();
    for (round = 0; round < 2; round++) {
        assert_int_equal(tr_ring_client_connect(fixture.config.socket, &options,
                                                PATIENCE_MS, &c, &err),
                         TR_OK);
        for (i = 0; i < 100; i++) {
            fixture_submit(c, body, strlen(body));
        }
        accepted = refused = 0;
        while (accepted + refused < 100) {
            tr_ring_event_t e = fixture_event(c);

            if (e.type == TR_RECORD_ERROR) {
                assert_int_equal(e.head.error.status, TR_ERR_QUEUE_FULL);
                refused++;
            }
            accepted += e.type == TR_RECORD_ACCEPTED;
        }
        assert_in_range(accepted, 60, 65);
        tr_ring_client_close(c);
        for (i = 0; i < PATIENCE_MS && count_fds() != fds; i++) {
            usleep(1000);
        }
        assert_int_equal(count_fds(), fds);
    }
    fixture_stop(&fixture);
}

static void
test_allow_uids(void **state)
{
    tr_welcome_t welcome;
    int sock, fds[TR_CHANNEL_FDS];
    char why[80], me[32];
    unsigned got;
    fixture_t fixture;

    (void) state;
    fixture_start(&fixture, "allow_uids", "4000000000", NULL);
    sock = raw_connect(fixture.config.socket);
    assert_true(raw_welcome(sock, &welcome, fds, &got));
    assert_int_equal(welcome.refused, 1);
    snprintf(why, sizeof(why), "user %u is not in allow_uids", getuid());
    assert_string_equal(welcome.message, why);
    raw_expect_hangup(sock);
    close(sock);
    fixture_stop(&fixture);

    snprintf(me, sizeof(me), "4000000000,%u", getuid());
    fixture_start(&fixture, "allow_uids", me, NULL);
    fixture_check_alive(&fixture);
    fixture_stop(&fixture);
}

/* ---- the status page ---------------------------------------------------- */

static void
test_status_page(void **state)
{
    tr_status_admission_t a, b;
    tr_status_card_t card;
    tr_ring_client_t *c;
    uint64_t id;
    fixture_t fixture;

    (void) state;
    fixture_start(&fixture, "null_rate", "200", NULL);
    c = fixture_client(&fixture, 0);
    tr_status_card_copy(tr_ring_client_status(c), &card);
    assert_string_equal(card.model, "pocket");
    assert_string_equal(card.backend, "null");
    assert_string_equal(card.level_name[0], "16/16");
    assert_int_equal(card.vocab_size, 4096);
    assert_true(card.kv_pages > 0);
    tr_ring_client_admission(c, &a);
    assert_int_equal(a.state, TR_ENGINE_READY);
    assert_int_equal(a.running, 0);
    assert_true(a.queue_free > 0);

    id = fixture_submit(c, LONG_BODY, strlen(LONG_BODY));
    wait_running(c, 1);
    tr_ring_client_admission(c, &a);
    assert_true(a.last_step_us > 0);
    do { /* the page moves while it runs, without our doing anything */
        usleep(1000);
        tr_ring_client_admission(c, &b);
    } while (b.step <= a.step || b.last_step_us <= a.last_step_us);
    tr_ring_client_abort(c, id);
    wait_running(c, 0);
    assert_int_equal(atomic_load(
                         &tr_ring_client_status(c)->counters.channels_opened),
                     1);
    tr_ring_client_close(c);
    fixture_stop(&fixture);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_accepted),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_unknown_endpoint),
        cmocka_unit_test(test_older_gateway),
        cmocka_unit_test(test_routed_model),
        cmocka_unit_test(test_replay_is_checked),
        cmocka_unit_test(test_replay_is_counted),
        cmocka_unit_test(test_large_bodies),
        cmocka_unit_test(test_abort),
        cmocka_unit_test(test_queue_full),
        cmocka_unit_test(test_layout_bounded),
        cmocka_unit_test(test_allow_uids),
        cmocka_unit_test(test_status_page),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
