/*
 * The ring client against an engine that is one thread of this test: it
 * accepts, answers the handshake as told, and serves records as told.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <dirent.h>
#include <poll.h>
#include <pthread.h>
#include <sys/un.h>

#include "ring_client.h"

#define PATIENCE_MS 30000
#define GENERATION 0xabcdefull

/* How the engine answers the handshake. */
enum {
    WELCOME,
    REFUSE_VERSION,
    REFUSE_BUSY,
    SILENT,
    HANG_UP,
    TOO_FEW_FDS,
    OTHER_GENERATION,
    GARBAGE
};

typedef struct fake fake_t;
struct fake {
    char path[64];
    int manner;
    uint32_t ring; /* bytes, 0: as the client wants */
    /* what to do with the channel, in the engine's thread */
    void (*serve)(fake_t *f);

    int listener, sock;
    int fds[TR_CHANNEL_FDS];
    tr_channel_map_t map;
    tr_status_page_t *status;
    tr_ring_producer_t out;
    tr_ring_consumer_t in;
    uint8_t *buf;
    uint32_t max;
    pthread_t thread;

    /* what it saw */
    uint32_t slots_wanted;
    uint64_t n_parts, body_hash, body_len;
    char request_id[TR_REQUEST_ID_MAX + 1];
    uint64_t id;
    uint32_t wishes;
    const char *failed;
};

static int
count_fds(void)
{
    DIR *dir = opendir("/proc/self/fd");
    int n = 0;

    assert_non_null(dir);
    while (readdir(dir) != NULL) {
        n++;
    }
    closedir(dir);
    return n;
}

/* FNV-1a, over a body in any parts. */
static uint64_t
hash(uint64_t h, const void *data, size_t len)
{
    const uint8_t *at = data;
    size_t i;

    for (i = 0; i < len; i++) {
        h = (h ^ at[i]) * 1099511628211ull;
    }
    return h;
}

/* ---- the engine --------------------------------------------------------- */

static void
fake_put(fake_t *f, uint16_t type, uint64_t id, const void *head, size_t n,
         const void *tail, size_t m)
{
    tr_ring_piece_t pieces[2] = { { head, n }, { tail, m } };

    while (tr_ring_put(&f->out, type, 0, id, pieces, 2) == TR_AGAIN) {
        if (tr_ring_publish(&f->out)) {
            tr_doorbell_ring(f->fds[TR_FD_TO_PEER]);
        }
        if (tr_ring_wait_space(&f->out, (uint32_t) (n + m)) == TR_AGAIN) {
            struct pollfd p[2] = { { f->fds[TR_FD_TO_ENGINE], POLLIN, 0 },
                                   { f->sock, POLLIN, 0 } };

            poll(p, 2, PATIENCE_MS);
            if (p[1].revents != 0) {
                return; /* the client has gone */
            }
            tr_doorbell_drain(f->fds[TR_FD_TO_ENGINE]);
        }
    }
    if (tr_ring_publish(&f->out)) {
        tr_doorbell_ring(f->fds[TR_FD_TO_PEER]);
    }
}

static void
fake_accepted(fake_t *f, uint64_t id)
{
    tr_wire_accepted_t head = { .endpoint = TR_ENDPOINT_CHAT,
                                .choices = 1,
                                .model_len = 4 };

    fake_put(f, TR_RECORD_ACCEPTED, id, &head, sizeof(head), "fake", 4);
}

static void
fake_delta(fake_t *f, uint64_t id, const char *text)
{
    tr_wire_delta_t head = { .tokens = 1 };

    head.text_len = (uint32_t) strlen(text);
    fake_put(f, TR_RECORD_DELTA, id, &head, sizeof(head), text, head.text_len);
}

static void
fake_finish(fake_t *f, uint64_t id, uint16_t reason)
{
    tr_wire_finish_t head = { .reason = reason, .flags = TR_FINISH_LAST };

    fake_put(f, TR_RECORD_FINISH, id, &head, sizeof(head), NULL, 0);
}

/* Waits for the next record; 0 when the client has gone. */
static int
fake_get(fake_t *f, tr_record_t *rec)
{
    for (;;) {
        tr_status_t rc = tr_ring_get(&f->in, rec, f->buf, f->max);
        struct pollfd p[2] = { { f->fds[TR_FD_TO_ENGINE], POLLIN, 0 },
                               { f->sock, POLLIN, 0 } };

        if (tr_ring_release(&f->in)) {
            tr_doorbell_ring(f->fds[TR_FD_TO_PEER]);
        }
        if (rc == TR_OK) {
            return 1;
        }
        rc = tr_channel_sleep(&f->map, &f->in);
        if (rc == TR_ERR_PROTOCOL) {
            f->failed = "the client broke the protocol";
            return 0;
        }
        if (rc == TR_OK && tr_ring_sleep(&f->in) != TR_AGAIN) {
            continue; /* a record */
        }
        if (rc == TR_AGAIN || tr_control_take(&f->map, 0) == 0) {
            if (poll(p, 2, PATIENCE_MS) <= 0) {
                f->failed = "the engine was never rung";
                return 0;
            }
            tr_doorbell_drain(f->fds[TR_FD_TO_ENGINE]);
            if (p[0].revents == 0) {
                return 0;
            }
        }
    }
}

/* One whole request; its body is hashed. */
static int
fake_request(fake_t *f)
{
    tr_wire_submit_t head;
    tr_wire_bytes_t body;
    tr_record_t rec;

    if (!fake_get(f, &rec)) {
        return 0;
    }
    if (rec.type != TR_RECORD_SUBMIT
        || tr_wire_submit_parse(f->buf, rec.length, &head, &body) != TR_OK) {
        f->failed = "bad SUBMIT";
        return 0;
    }
    memcpy(f->request_id, head.request_id, head.request_id_len);
    f->request_id[head.request_id_len] = '\0';
    f->id = rec.id;
    f->n_parts = 1;
    f->body_len = body.len;
    f->body_hash = hash(0, body.data, body.len);
    while (rec.flags & TR_FLAG_MORE) {
        if (!fake_get(f, &rec)) {
            return 0;
        }
        if (rec.id != f->id) {
            f->failed = "part of another request";
            return 0;
        }
        f->n_parts++;
        f->body_len += rec.length;
        f->body_hash = hash(f->body_hash, f->buf, rec.length);
    }
    if (f->body_len != head.body_len) {
        f->failed = "body_len is wrong";
    }
    return 1;
}

static void
fake_open(fake_t *f, const tr_hello_t *hello, tr_welcome_t *welcome)
{
    uint64_t generation = GENERATION + (f->manner == OTHER_GENERATION);

    f->slots_wanted = hello->slots;
    tr_channel_create(hello->slots, f->ring ? f->ring : hello->request_ring,
                      f->ring ? f->ring : hello->response_ring, generation,
                      &f->map, &f->fds[TR_FD_CHANNEL]);
    tr_status_create(GENERATION, &f->status, &f->fds[TR_FD_STATUS]);
    memcpy(f->status->card.model, "fake", 5);
    f->fds[TR_FD_TO_ENGINE] = tr_doorbell_create();
    f->fds[TR_FD_TO_PEER] = tr_doorbell_create();
    tr_ring_producer_init(&f->out, f->map.response, f->map.response_data,
                          f->map.response_capacity);
    tr_ring_consumer_init(&f->in, f->map.request, f->map.request_data,
                          f->map.request_capacity);
    f->max = tr_ring_max_payload(f->map.request_capacity);
    f->buf = malloc(f->max);
    tr_fds_send(f->sock, welcome, sizeof(*welcome), f->fds,
                f->manner == TOO_FEW_FDS ? 0 : TR_CHANNEL_FDS);
}

static void *
fake_run(void *arg)
{
    struct pollfd p = { .events = POLLIN };
    tr_welcome_t welcome;
    fake_t *f = arg;
    tr_hello_t hello;
    unsigned got;
    char byte;

    f->sock = accept4(f->listener, NULL, NULL, SOCK_CLOEXEC);
    if (f->sock == -1) {
        return NULL;
    }
    if (tr_fds_receive(f->sock, &hello, sizeof(hello), NULL, 0, &got)
        != sizeof(hello)) {
        f->failed = "no hello";
        return NULL;
    }
    if (f->manner == HANG_UP) {
        shutdown(f->sock, SHUT_RDWR);
        return NULL;
    }
    if (f->manner == SILENT) {
        p.fd = f->sock;
        poll(&p, 1, PATIENCE_MS); /* until the client gives up */
        return NULL;
    }
    if (f->manner == GARBAGE) {
        memset(&welcome, 'x', sizeof(welcome));
        tr_fds_send(f->sock, &welcome, sizeof(welcome), NULL, 0);
    } else if (f->manner == REFUSE_BUSY) {
        tr_welcome_refuse(&welcome, "too many channels: 64 of 64");
        tr_fds_send(f->sock, &welcome, sizeof(welcome), NULL, 0);
    } else if (f->manner == REFUSE_VERSION) {
        tr_welcome_refuse(&welcome, "the peer speaks ring versions 1 to 1, "
                                    "this engine 7 to 8");
        welcome.version_min = 7;
        welcome.version_max = 8;
        tr_fds_send(f->sock, &welcome, sizeof(welcome), NULL, 0);
    } else if (tr_hello_answer(&hello, GENERATION, &welcome) != TR_OK) {
        tr_fds_send(f->sock, &welcome, sizeof(welcome), NULL, 0);
    } else {
        fake_open(f, &hello, &welcome);
        if (f->serve != NULL && f->manner == WELCOME) {
            f->serve(f);
        }
    }
    if (f->manner != WELCOME) { /* the client hangs up; we wait for that */
        recv(f->sock, &byte, 1, 0);
    }
    return NULL;
}

static void
fake_start(fake_t *f, int manner, void (*serve)(fake_t *f), uint32_t ring)
{
    struct sockaddr_un addr = { .sun_family = AF_UNIX };
    int i;

    memset(f, 0, sizeof(*f));
    f->manner = manner;
    f->serve = serve;
    f->ring = ring;
    f->sock = -1;
    for (i = 0; i < TR_CHANNEL_FDS; i++) {
        f->fds[i] = -1;
    }
    snprintf(f->path, sizeof(f->path), "/tmp/tr-ring-client-%d.sock",
             (int) getpid());
    unlink(f->path);
    snprintf(addr.sun_path, sizeof(addr.sun_path), "%s", f->path);
    f->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(f->listener, (struct sockaddr *) &addr, sizeof(addr)),
                     0);
    assert_int_equal(listen(f->listener, 4), 0);
    assert_int_equal(pthread_create(&f->thread, NULL, fake_run, f), 0);
}

static void
fake_close(int *fd)
{
    if (*fd != -1) {
        close(*fd);
        *fd = -1;
    }
}

static void
fake_stop(fake_t *f)
{
    int i;

    pthread_join(f->thread, NULL);
    fake_close(&f->listener);
    fake_close(&f->sock);
    for (i = 0; i < TR_CHANNEL_FDS; i++) {
        fake_close(&f->fds[i]);
    }
    tr_channel_unmap(&f->map);
    tr_status_unmap(f->status);
    free(f->buf);
    unlink(f->path);
    if (f->failed != NULL) {
        fail_msg("engine: %s", f->failed);
    }
}

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
    assert_int_equal(tr_ring_client_submit(c, 9, NULL, "", 0, 0, &id, &err),
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

/* ---- wishes, many requests, waiting ------------------------------------- */

static void
serve_wishes(fake_t *f)
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
                f->failed = "a wish did not come";
                return;
            }
        }
        fake_delta(f, f->id, i == 0 ? "paused" : i == 1 ? "resumed" : "end");
    }
    fake_finish(f, f->id, TR_FINISH_ABORTED);
}

static void
test_wishes(void **state)
{
    tr_ring_event_t event;
    tr_ring_client_t *c;
    tr_error_t err;
    uint64_t id;
    fake_t f;

    (void) state;
    fake_start(&f, WELCOME, serve_wishes, 0);
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
        cmocka_unit_test(test_wishes),
        cmocka_unit_test(test_every_slot_in_flight),
        cmocka_unit_test(test_violations_are_named),
    };

    return cmocka_run_group_tests_name("ring_client", tests, NULL, NULL);
}
