/*
 * Hostile peers: whatever one of them writes to its socket, its rings or its
 * control words, it loses its own connection at most, the others go on, and
 * nothing of it stays behind.
 */
#include "tests/unit/fixtures/frontend_fixture.h"

#include <malloc.h>

static fixture_t fixture;
static int base_fds;

static int
setup(void **state)
{
    (void) state;
    fixture_start(&fixture, "max_body", "100k", "channel_stall_timeout",
                  "300ms", NULL);
    base_fds = count_fds();
    fixture_check_alive(&fixture);
    return 0;
}

static int
teardown(void **state)
{
    (void) state;
    fixture_stop(&fixture);
    return 0;
}

/* The engine has closed its side of everything that is gone by now.  Its three
 * descriptors of a connection go at its next turn. */
static void
check_nothing_left(void)
{
    int i;

    for (i = 0; i < PATIENCE_MS && count_fds() != base_fds; i++) {
        usleep(1000);
    }
    assert_int_equal(count_fds(), base_fds);
    fixture_check_alive(&fixture);
}

/* ---- the handshake ------------------------------------------------------ */

static void
refused_hello(const tr_hello_t *hello, const char *why)
{
    int sock = raw_connect(fixture.config.socket), fds[TR_CHANNEL_FDS];
    tr_welcome_t welcome;
    unsigned got;

    assert_int_equal(tr_fds_send(sock, hello, sizeof(*hello), NULL, 0), 0);
    assert_true(raw_welcome(sock, &welcome, fds, &got));
    assert_int_equal(got, 0);
    assert_int_equal(welcome.refused, 1);
    if (strstr(welcome.message, why) == NULL) {
        fail_msg("refused with \"%s\", expected \"%s\"", welcome.message, why);
    }
    raw_expect_hangup(sock);
    close(sock);
}

static void
test_bad_hello(void **state)
{
    tr_hello_t hello;

    (void) state;
    memset(&hello, 0x41, sizeof(hello));
    refused_hello(&hello, "did not say hello");
    memcpy(&hello, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", 35);
    refused_hello(&hello, "did not say hello");
    tr_hello_init(&hello, TR_ROLE_WORKER);
    hello.version_min = 7;
    hello.version_max = 9;
    refused_hello(&hello, "the peer speaks ring versions 7 to 9, this engine "
                          "4 to 4");
    hello.version_min = hello.version_max = 0;
    refused_hello(&hello, "versions 0 to 0, this engine 4 to 4");
    hello.version_min = 3;
    hello.version_max = 2;
    refused_hello(&hello, "versions 3 to 2");
    tr_hello_init(&hello, 77);
    refused_hello(&hello, "unknown role 77");
    check_nothing_left();
}

/* Wild numbers of a hello are bounded, not refused. */
static void
test_huge_hello(void **state)
{
    int sock = raw_connect(fixture.config.socket), fds[TR_CHANNEL_FDS];
    tr_channel_map_t map;
    tr_welcome_t welcome;
    tr_hello_t hello;
    unsigned got, i;

    (void) state;
    tr_hello_init(&hello, TR_ROLE_WORKER);
    hello.slots = hello.request_ring = hello.response_ring = UINT32_MAX;
    hello.version_max = 1000; /* a newer peer that still speaks ours */
    assert_int_equal(tr_fds_send(sock, &hello, sizeof(hello), NULL, 0), 0);
    assert_true(raw_welcome(sock, &welcome, fds, &got));
    assert_int_equal(welcome.refused, 0);
    assert_int_equal(welcome.version, TR_ABI_VERSION);
    assert_int_equal(tr_channel_attach(fds[TR_FD_CHANNEL], &map), TR_OK);
    assert_int_equal(map.slots, TR_CHANNEL_SLOTS_MAX);
    assert_int_equal(map.request_capacity, fixture.config.channel_ring);
    assert_int_equal(map.response_capacity, fixture.config.channel_ring);
    tr_channel_unmap(&map);
    for (i = 0; i < got; i++) {
        close(fds[i]);
    }
    close(sock);
    check_nothing_left();
}

static void
test_hello_in_pieces(void **state)
{
    int sock = raw_connect(fixture.config.socket), fds[TR_CHANNEL_FDS];
    tr_welcome_t welcome;
    tr_hello_t hello;
    unsigned got, i;

    (void) state;
    tr_hello_init(&hello, TR_ROLE_WORKER);
    for (i = 0; i < sizeof(hello); i++) {
        assert_int_equal(send(sock, (char *) &hello + i, 1, 0), 1);
    }
    assert_true(raw_welcome(sock, &welcome, fds, &got));
    assert_int_equal(got, TR_CHANNEL_FDS);
    /* whatever comes after the hello is not for us */
    assert_int_equal(send(sock, "x", 1, 0), 1);
    raw_expect_hangup(sock);
    for (i = 0; i < got; i++) {
        close(fds[i]);
    }
    close(sock);
    check_nothing_left();
}

/* ---- records ------------------------------------------------------------ */

/* Each breaks one rule of the ring or of the wire. */
static void
write_raw(raw_t *r, const void *data, size_t len, uint64_t tail)
{
    memcpy(r->map.request_data, data, len);
    atomic_store(&r->map.request->tail, tail);
    raw_ring(r);
}

static void
break_type(raw_t *r)
{
    raw_put(r, 99, 0, TR_ID(0, 1), "x", 1);
}

static void
break_type_response(raw_t *r)
{
    raw_put(r, TR_RECORD_FINISH, 0, TR_ID(0, 1), "x", 1);
}

static void
break_tail_far(raw_t *r)
{
    write_raw(r, "", 0, (uint64_t) r->map.request_capacity + 8);
}

static void
break_tail_odd(raw_t *r)
{
    write_raw(r, "", 0, 13);
}

static void
break_tail_max(raw_t *r)
{
    write_raw(r, "", 0, UINT64_MAX & ~7ull);
}

static void
break_tail_back(raw_t *r)
{
    raw_submit(r, TR_ID(0, 1), LONG_BODY, TR_BODY_UNKNOWN, false);
    raw_next(r); /* ACCEPTED: the engine has read it */
    atomic_store(&r->map.request->tail, 0);
    raw_ring(r);
}

static void
break_length(raw_t *r)
{
    tr_record_t rec = { UINT32_MAX, TR_RECORD_SUBMIT, 0, TR_ID(0, 1) };

    write_raw(r, &rec, sizeof(rec), 32);
}

static void
break_pad(raw_t *r)
{
    tr_record_t rec = { 64, TR_RECORD_PAD, 0, 0 };

    write_raw(r, &rec, sizeof(rec), 64);
}

static void
break_head_index(raw_t *r)
{
    raw_submit(r, TR_ID(0, 1), LONG_BODY, TR_BODY_UNKNOWN, false);
    raw_next(r);
    atomic_store(&r->map.response->head, UINT64_MAX & ~7ull);
}

static void
break_answer_index(raw_t *r)
{
    atomic_store(&r->map.answer->head, UINT64_MAX & ~7ull);
    raw_submit(r, TR_ID(0, 1), "{", TR_BODY_UNKNOWN, false);
    raw_submit(r, TR_ID(1, 1), LONG_BODY, TR_BODY_UNKNOWN, false);
}

static void
break_slot(raw_t *r)
{
    raw_submit(r, TR_ID(64, 1), HELLO_BODY, TR_BODY_UNKNOWN, false);
}

static void
break_generation(raw_t *r)
{
    raw_submit(r, TR_ID(0, 0), HELLO_BODY, TR_BODY_UNKNOWN, false);
}

static void
break_short(raw_t *r)
{
    raw_put(r, TR_RECORD_SUBMIT, 0, TR_ID(0, 1), "short", 5);
}

static void
break_head(raw_t *r, size_t offset, const void *bytes, size_t n)
{
    tr_wire_submit_t head = { .endpoint = TR_ENDPOINT_CHAT,
                              .body_len = TR_BODY_UNKNOWN };

    memcpy((char *) &head + offset, bytes, n);
    raw_put(r, TR_RECORD_SUBMIT, 0, TR_ID(0, 1), &head, sizeof(head));
}

static void
break_id_length(raw_t *r)
{
    break_head(r, offsetof(tr_wire_submit_t, request_id_len),
               "\xff\xff\xff\xff", 4);
}

static void
break_id_text(raw_t *r)
{
    break_head(r, offsetof(tr_wire_submit_t, request_id_len), "\x03\0\0\0", 4);
}

static void
break_model_cut(raw_t *r)
{
    break_head(r, offsetof(tr_wire_submit_t, model_len), "\x03\0\0\0", 4);
}

static void
break_replay_cut(raw_t *r)
{
    break_head(r, offsetof(tr_wire_submit_t, replay_len), "\x03\0\0\0", 4);
}

static void
break_body_long(raw_t *r)
{
    raw_submit(r, TR_ID(0, 1), "12345", 4, false);
}

static void
break_body_long_later(raw_t *r)
{
    raw_submit(r, TR_ID(0, 1), "1234", 6, true);
    raw_part(r, TR_ID(0, 1), "5678", true);
}

static void
break_body_short(raw_t *r)
{
    raw_submit(r, TR_ID(0, 1), "1234", 6, false);
}

static void
break_extra_part(raw_t *r)
{
    raw_submit(r, TR_ID(0, 1), LONG_BODY, TR_BODY_UNKNOWN, false);
    raw_part(r, TR_ID(0, 1), "more", false);
}

static void
break_slot_in_use(raw_t *r)
{
    raw_submit(r, TR_ID(0, 1), LONG_BODY, TR_BODY_UNKNOWN, false);
    raw_submit(r, TR_ID(0, 2), LONG_BODY, TR_BODY_UNKNOWN, false);
}

static void
break_socket(raw_t *r)
{
    assert_int_equal(send(r->sock, "x", 1, 0), 1);
}

static void
test_broken_rules(void **state)
{
    static void (*const breaks[])(raw_t *) = {
        break_type,         break_type_response, break_tail_far,
        break_tail_odd,     break_tail_max,      break_tail_back,
        break_length,       break_pad,           break_model_cut,
        break_replay_cut,   break_head_index,    break_slot,
        break_generation,   break_short,         break_id_length,
        break_id_text,      break_body_long,     break_body_long_later,
        break_body_short,   break_extra_part,    break_slot_in_use,
        break_answer_index, break_socket
    };
    tr_ring_client_t *other = fixture_client(&fixture, 0);
    size_t i;

    (void) state;
    for (i = 0; i < sizeof(breaks) / sizeof(breaks[0]); i++) {
        tr_ring_event_t end;
        raw_t r;

        raw_open(&r, &fixture, 4096);
        breaks[i](&r);
        raw_expect_hangup(r.sock);
        raw_close(&r);
        end = fixture_run(other, HELLO_BODY);
        assert_int_equal(end.type, TR_RECORD_FINISH);
    }
    assert_int_equal(tr_ring_client_status(other)->counters.channel_errors,
                     sizeof(breaks) / sizeof(breaks[0]) + 1 /* in_pieces */);
    tr_ring_client_close(other);
    check_nothing_left();
}

/* A doorbell whose write waits: neither the frontend thread, which rings for
 * answers, nor the step loop, which rings for output, waits with it. */
static void
test_trapped_doorbell(void **state)
{
    tr_ring_client_t *other = fixture_client(&fixture, 0);
    uint64_t full = UINT64_MAX - 1;
    tr_ring_event_t end;
    raw_t r;
    int i;

    (void) state;
    for (i = 0; i < 2; i++) {
        raw_open(&r, &fixture, 0);
        assert_int_equal(fcntl(r.fds[TR_FD_TO_PEER], F_SETFL, 0), 0);
        assert_int_equal(write(r.fds[TR_FD_TO_PEER], &full, sizeof(full)),
                         sizeof(full));
        assert_int_equal(tr_ring_sleep(i == 0 ? &r.in.answers
                                              : &r.in.responses),
                         TR_AGAIN);
        raw_submit(&r, TR_ID(0, 1), HELLO_BODY, TR_BODY_UNKNOWN, false);
        end = fixture_run(other, HELLO_BODY);
        assert_int_equal(end.type, TR_RECORD_FINISH);
        raw_expect_hangup(r.sock);
        raw_close(&r);
    }
    tr_ring_client_close(other);
    check_nothing_left();
}

/* Records of dead generations are dropped, commands for nobody too. */
static void
test_dead_ids(void **state)
{
    raw_t r;
    uint32_t slot;

    (void) state;
    raw_open(&r, &fixture, 0);
    raw_submit(&r, TR_ID(3, 5), HELLO_BODY, TR_BODY_UNKNOWN, false);
    assert_int_equal(raw_end(&r, TR_ID(3, 5)), TR_FINISH_LENGTH);
    raw_submit(&r, TR_ID(3, 4), HELLO_BODY, TR_BODY_UNKNOWN, false);
    raw_command(&r, TR_ID(3, 4), TR_CONTROL_ABORT);
    for (slot = 0; slot < 64; slot++) {
        raw_command(&r, TR_ID(slot, 77), TR_CONTROL_ABORT | TR_CONTROL_PAUSE);
    }
    raw_submit(&r, TR_ID(3, 6), HELLO_BODY, TR_BODY_UNKNOWN, false);
    assert_int_equal(raw_end(&r, TR_ID(3, 6)), TR_FINISH_LENGTH);
    raw_close(&r);
    check_nothing_left();
}

/* ---- bodies ------------------------------------------------------------- */

static void
test_half_submits(void **state)
{
    int i;

    (void) state;
    for (i = 0; i < 20; i++) {
        raw_t r;
        uint32_t slot;

        raw_open(&r, &fixture, 0);
        for (slot = 0; slot < 64; slot++) {
            raw_submit(&r, TR_ID(slot, 1), "{\"prompt\":", 50000, true);
            raw_part(&r, TR_ID(slot, 1), "\"...", true);
        }
        raw_close(&r);
    }
    check_nothing_left();
}

/* Whoever leaves in the middle of bodies has aborted them. */
static void
test_half_submits_counted(void **state)
{
    tr_ring_client_t *other = fixture_client(&fixture, 0);
    const tr_status_page_t *page = tr_ring_client_status(other);
    uint64_t before = page->counters.requests_aborted;
    uint32_t slot;
    raw_t r;
    int i;

    (void) state;
    raw_open(&r, &fixture, 0);
    for (slot = 0; slot < 5; slot++) {
        raw_submit(&r, TR_ID(slot, 1), "{\"prompt\":", 50000, true);
    }
    while (atomic_load(&r.map.request->head)
           != atomic_load(&r.map.request->tail)) {
        usleep(100); /* until all are read */
    }
    raw_close(&r);
    for (i = 0;
         i < PATIENCE_MS && page->counters.requests_aborted != before + 5;
         i++) {
        usleep(1000);
    }
    assert_int_equal(page->counters.requests_aborted, before + 5);
    tr_ring_client_close(other);
    check_nothing_left();
}

/* Refused in the middle; what still comes of the body is dropped and the slot
 * is good for the next. */
static void
test_body_too_large(void **state)
{
    char piece[1001];
    raw_t r;
    int i;

    (void) state;
    memset(piece, 'x', 1000);
    piece[1000] = '\0';
    raw_open(&r, &fixture, 0);
    raw_submit(&r, TR_ID(0, 1), "{", 1 << 20, true); /* announced */
    assert_int_equal(raw_end(&r, TR_ID(0, 1)), TR_ERR_TOO_LARGE);
    raw_part(&r, TR_ID(0, 1), piece, true);
    raw_submit(&r, TR_ID(0, 2), "{", TR_BODY_UNKNOWN, true); /* found out */
    for (i = 0; i < 200; i++) {
        raw_part(&r, TR_ID(0, 2), piece, i < 199);
    }
    assert_int_equal(raw_end(&r, TR_ID(0, 2)), TR_ERR_TOO_LARGE);
    raw_submit(&r, TR_ID(0, 3), HELLO_BODY, TR_BODY_UNKNOWN, false);
    assert_int_equal(raw_end(&r, TR_ID(0, 3)), TR_FINISH_LENGTH);
    raw_close(&r);
    check_nothing_left();
}

/* ---- comings and goings ------------------------------------------------- */

static void
open_and_close(int i)
{
    tr_hello_t hello;
    raw_t r;
    int sock;

    switch (i % 4) {
    case 0: /* says nothing */
        close(raw_connect(fixture.config.socket));
        break;
    case 1: /* half a hello */
        sock = raw_connect(fixture.config.socket);
        tr_hello_init(&hello, TR_ROLE_WORKER);
        send(sock, &hello, 20, MSG_NOSIGNAL);
        close(sock);
        break;
    case 2: /* does not wait for the welcome */
        sock = raw_connect(fixture.config.socket);
        tr_hello_init(&hello, TR_ROLE_WORKER);
        hello.request_ring = hello.response_ring = 65536;
        send(sock, &hello, sizeof(hello), MSG_NOSIGNAL);
        close(sock);
        break;
    default: /* leaves with a request running */
        raw_open(&r, &fixture, 65536);
        raw_submit(&r, TR_ID(0, 1), LONG_BODY, TR_BODY_UNKNOWN, false);
        raw_close(&r);
        break;
    }
}

static void
test_many_come_and_go(void **state)
{
    size_t before, after;
    int i;

    (void) state;
    for (i = 0; i < 200; i++) { /* what is allocated once, is by now */
        open_and_close(i);
    }
    check_nothing_left();
    before = mallinfo2().uordblks;
    for (i = 0; i < 3000; i++) {
        open_and_close(i);
    }
    check_nothing_left();
    after = mallinfo2().uordblks;
    /* 3000 leaked peers would be megabytes */
    if (after > before + (64u << 10)) {
        fail_msg("%zu bytes in use before, %zu after", before, after);
    }
}

/* A peer that takes nothing fills its ring; it is thrown out, and the others
 * notice nothing. */
static void
test_stalled_peer(void **state)
{
    tr_ring_client_t *other = fixture_client(&fixture, 0);
    raw_t r;
    uint32_t slot;

    (void) state;
    raw_open(&r, &fixture, 65536);
    for (slot = 0; slot < 64; slot++) {
        raw_submit(&r, TR_ID(slot, 1), LONG_BODY, TR_BODY_UNKNOWN, false);
    }
    while (atomic_load(&r.map.response->producer_waiting) == 0) {
        tr_ring_event_t end = fixture_run(other, HELLO_BODY);

        assert_int_equal(end.head.finish.completion_tokens, 3);
    }
    /* rings without taking anything: no way to look busy */
    raw_ring(&r);
    raw_expect_hangup(r.sock);
    raw_close(&r);
    tr_ring_client_close(other);
    check_nothing_left();
}

/* The same with the ring of answers: refusals are short, and many. */
static void
test_peer_that_takes_no_answers(void **state)
{
    tr_ring_client_t *other = fixture_client(&fixture, 0);
    tr_ring_event_t end;
    raw_t r;
    uint32_t n;

    (void) state;
    raw_open(&r, &fixture, 65536);
    for (n = 1; atomic_load(&r.map.answer->producer_waiting) == 0; n++) {
        uint64_t tail = atomic_load(&r.map.answer->tail);

        raw_submit(&r, TR_ID(n % 64, n), "{", TR_BODY_UNKNOWN, false);
        while (atomic_load(&r.map.answer->tail) == tail
               && atomic_load(&r.map.answer->producer_waiting) == 0) {
            usleep(10);
        }
    }
    assert_true(n > 100);
    end = fixture_run(other, HELLO_BODY);
    assert_int_equal(end.head.finish.completion_tokens, 3);
    raw_expect_hangup(r.sock);
    raw_close(&r);
    tr_ring_client_close(other);
    check_nothing_left();
}

/* A slot may be used again as soon as its last record is seen, which is before
 * the frontend thread is woken for it. */
static void
test_slot_used_again_at_once(void **state)
{
    static const char body[] = "{\"prompt\":[5],\"max_tokens\":1}";
    uint32_t n;
    raw_t r;

    (void) state;
    raw_open(&r, &fixture, 0);
    for (n = 1; n <= 1000; n++) {
        raw_submit(&r, TR_ID(7, n), body, TR_BODY_UNKNOWN, false);
        assert_int_equal(raw_end(&r, TR_ID(7, n)), TR_FINISH_LENGTH);
    }
    raw_close(&r);
    check_nothing_left();
}

/* Peers that vanish while the step loop writes into their memory. */
static void
test_gone_in_the_middle_of_output(void **state)
{
    tr_ring_client_t *other = fixture_client(&fixture, 0);
    uint32_t slot;
    int i;

    (void) state;
    for (i = 0; i < 50; i++) {
        tr_ring_event_t end;
        raw_t r;

        raw_open(&r, &fixture, 65536);
        for (slot = 0; slot < 64; slot++) {
            raw_submit(&r, TR_ID(slot, 1), LONG_BODY, TR_BODY_UNKNOWN, false);
        }
        while (raw_next(&r).type != TR_RECORD_DELTA) {
        }
        usleep(100u * (unsigned) i); /* anywhere in a step */
        raw_close(&r);
        end = fixture_run(other, HELLO_BODY);
        assert_int_equal(end.head.finish.completion_tokens, 3);
    }
    tr_ring_client_close(other);
    check_nothing_left();
}

/* The handshake has a timeout of seconds. */
static void
test_silent_peer(void **state)
{
    int silent = raw_connect(fixture.config.socket);

    (void) state;
    raw_expect_hangup(silent);
    close(silent);
    check_nothing_left();
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bad_hello),
        cmocka_unit_test(test_huge_hello),
        cmocka_unit_test(test_hello_in_pieces),
        cmocka_unit_test(test_broken_rules),
        cmocka_unit_test(test_trapped_doorbell),
        cmocka_unit_test(test_dead_ids),
        cmocka_unit_test(test_half_submits),
        cmocka_unit_test(test_half_submits_counted),
        cmocka_unit_test(test_body_too_large),
        cmocka_unit_test(test_many_come_and_go),
        cmocka_unit_test(test_stalled_peer),
        cmocka_unit_test(test_peer_that_takes_no_answers),
        cmocka_unit_test(test_slot_used_again_at_once),
        cmocka_unit_test(test_gone_in_the_middle_of_output),
        cmocka_unit_test(test_silent_peer),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
