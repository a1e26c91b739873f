/*
 * reporter_bench.h: a whole engine with backend null, a raw peer that submits
 * resumable and detached requests, and a fake Redis that writes down what comes.
 */
#ifndef REPORTER_BENCH_H
#define REPORTER_BENCH_H

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

#endif
