/*
 * The wire records: each parsed whole, cut at every byte, and with every length
 * field set to every bad value.  Payloads lie in buffers of exactly their size,
 * so that AddressSanitizer sees one byte too far; and what a parser returns
 * must lie inside the payload.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <tokenring/wire.h>

#define MAX 4096

/* One kind of record behind one signature: parses and checks that the results
 * lie inside the payload. */
typedef tr_status_t (*parse_t)(const uint8_t *payload, size_t len);

static void
inside(tr_wire_bytes_t b, const uint8_t *payload, size_t len)
{
    const uint8_t *at = (const uint8_t *) b.data;

    assert_true(at >= payload && at <= payload + len);
    assert_true(b.len <= (size_t) (payload + len - at));
}

static tr_status_t
parse_submit(const uint8_t *payload, size_t len)
{
    tr_wire_submit_t head;
    tr_wire_bytes_t body;
    tr_status_t rc = tr_wire_submit_parse(payload, len, &head, &body);

    if (rc == TR_OK) {
        inside(body, payload, len);
        assert_true(head.request_id_len <= TR_REQUEST_ID_MAX);
        assert_true(body.len <= head.body_len + head.replay_len + head.model_len
                    || head.body_len == TR_BODY_UNKNOWN);
    }
    return rc;
}

static tr_status_t
parse_replay(const uint8_t *payload, size_t len)
{
    tr_wire_replay_choice_t choice = { 0 };
    tr_wire_replay_t head;
    tr_wire_bytes_t rest = { 0 }, ids = { 0 };
    tr_status_t rc = tr_wire_replay_parse(payload, len, &head, &rest);

    for (uint32_t i = 0; rc == TR_OK && i < head.choices; i++) {
        assert_int_equal(tr_wire_replay_next(&rest, &choice, &ids), TR_OK);
        inside(ids, payload, len);
        assert_int_equal(ids.len, choice.reason != 0 ? 0 : 4 * choice.tokens);
    }
    if (rc == TR_OK) {
        assert_int_equal(rest.len, head.tail_len);
    }
    return rc;
}

static tr_status_t
parse_accepted(const uint8_t *payload, size_t len)
{
    tr_wire_accepted_t head;
    tr_wire_bytes_t model, policy;
    tr_status_t rc = tr_wire_accepted_parse(payload, len, &head, &model,
                                            &policy);

    if (rc == TR_OK) {
        inside(model, payload, len);
        inside(policy, payload, len);
    }
    return rc;
}

/* As the module walks them; at most as many entries as there are bytes. */
static tr_status_t
walk_logprobs(tr_wire_bytes_t left, const uint8_t *payload, size_t len)
{
    for (;;) {
        tr_wire_logprob_t head;
        tr_wire_bytes_t bytes;
        tr_status_t rc = tr_wire_logprob_next(&left, &head, &bytes);
        unsigned i;

        if (rc != TR_OK) {
            return rc == TR_AGAIN ? TR_OK : rc;
        }
        inside(bytes, payload, len);
        inside(left, payload, len);
        for (i = 0; i < head.top; i++) {
            tr_wire_top_t top;

            rc = tr_wire_top_next(&left, &top, &bytes);
            if (rc != TR_OK) {
                return rc;
            }
            inside(bytes, payload, len);
            inside(left, payload, len);
        }
    }
}

static tr_status_t
parse_delta(const uint8_t *payload, size_t len)
{
    tr_wire_delta_t head;
    tr_wire_bytes_t text, logprobs, ids;
    tr_status_t rc = tr_wire_delta_parse(payload, len, &head, &text, &logprobs,
                                         &ids);

    if (rc != TR_OK) {
        return rc;
    }
    inside(ids, payload, len);
    assert_true(ids.len == 0 || ids.len == 4 * (uint64_t) head.tokens);
    inside(text, payload, len);
    inside(logprobs, payload, len);
    return walk_logprobs(logprobs, payload, len);
}

static tr_status_t
parse_item(const uint8_t *payload, size_t len)
{
    tr_wire_item_t head;
    tr_wire_bytes_t id, name;
    tr_status_t rc = tr_wire_item_parse(payload, len, &head, &id, &name);

    if (rc == TR_OK) {
        inside(id, payload, len);
        inside(name, payload, len);
    }
    return rc;
}

static tr_status_t
parse_started(const uint8_t *payload, size_t len)
{
    tr_wire_started_t head;

    return tr_wire_started_parse(payload, len, &head);
}

static tr_status_t
parse_result(const uint8_t *payload, size_t len)
{
    tr_wire_result_t head;
    tr_wire_bytes_t bytes;
    tr_status_t rc = tr_wire_result_parse(payload, len, &head, &bytes);

    if (rc == TR_OK) {
        inside(bytes, payload, len);
    }
    return rc;
}

static tr_status_t
parse_kv(const uint8_t *payload, size_t len)
{
    tr_wire_kv_t head;

    return tr_wire_kv_parse(payload, len, &head);
}

static tr_status_t
parse_finish(const uint8_t *payload, size_t len)
{
    tr_wire_finish_t head;
    tr_wire_bytes_t tail;
    tr_status_t rc = tr_wire_finish_parse(payload, len, &head, &tail);

    if (rc == TR_OK) {
        inside(tail, payload, len);
    }
    return rc;
}

static tr_status_t
parse_error(const uint8_t *payload, size_t len)
{
    tr_wire_error_t head;
    tr_wire_bytes_t param, message;
    tr_status_t rc = tr_wire_error_parse(payload, len, &head, &param, &message);

    if (rc == TR_OK) {
        inside(param, payload, len);
        inside(message, payload, len);
    }
    return rc;
}

/* ---- samples ------------------------------------------------------------ */

typedef struct {
    uint8_t bytes[MAX];
    size_t len;
} sample_t;

static void
add(sample_t *s, const void *bytes, size_t n)
{
    assert_true(s->len + n <= MAX);
    memcpy(s->bytes + s->len, bytes, n);
    s->len += n;
}

static void
sample_submit(sample_t *s)
{
    tr_wire_submit_t head = { .endpoint = TR_ENDPOINT_CHAT,
                              .request_id_len = 5,
                              .body_len = 12,
                              .received_us = 99,
                              .request_id = "req~!",
                              .trace = "00-ab-cd-01" };

    s->len = 0;
    add(s, &head, sizeof(head));
    add(s, "{\"model\":1", 10);
}

/* Three choices, two of which have ended, and a tail. */
static void
sample_replay(sample_t *s)
{
    tr_wire_replay_t head = {
        .seed = 5, .choices = 3, .prompt_tokens = 3, .epoch = 1, .tail_len = 3
    };
    tr_wire_replay_choice_t open = { .tokens = 3, .echoed = 3 };
    tr_wire_replay_choice_t ended = { .tokens = 9, .reason = TR_FINISH_STOP };
    const int32_t ids[3] = { 7, 8, 9 };

    s->len = 0;
    add(s, &head, sizeof(head));
    add(s, &open, sizeof(open));
    add(s, ids, sizeof(ids));
    add(s, &ended, sizeof(ended));
    add(s, &ended, sizeof(ended));
    add(s, "new", 3);
}

static void
sample_accepted(sample_t *s)
{
    tr_wire_accepted_t head = { .endpoint = TR_ENDPOINT_CHAT,
                                .flags = TR_ACCEPTED_STREAM,
                                .choices = 2,
                                .prompt_tokens = 17,
                                .model_len = 6,
                                .created = 1700000000,
                                .policy_len = 4 };

    s->len = 0;
    add(s, &head, sizeof(head));
    add(s, "pocketfull", 10);
}

static void
sample_delta(sample_t *s)
{
    tr_wire_logprob_t entry = {
        .token = 7, .logprob = -0.5f, .bytes_len = 3, .top = 2
    };
    tr_wire_top_t top = { .token = 8, .logprob = -1.0f, .bytes_len = 2 };
    tr_wire_delta_t head = {
        .choice = 1, .tokens = 2, .text_len = 5, .ids_len = 8, .echoed = 3
    };
    const int32_t ids[2] = { 7, 8 };

    head.logprobs_len = 2 * (12 + 3 + 2 * (12 + 2));
    s->len = 0;
    add(s, &head, sizeof(head));
    add(s, "hello", 5);
    for (int i = 0; i < 2; i++) {
        add(s, &entry, sizeof(entry));
        add(s, "hel", 3);
        add(s, &top, sizeof(top));
        add(s, "he", 2);
        add(s, &top, sizeof(top));
        add(s, "ho", 2);
    }
    add(s, ids, sizeof(ids));
}

static void
sample_started(sample_t *s)
{
    tr_wire_started_t head = { .cached_tokens = 5 };

    s->len = 0;
    add(s, &head, sizeof(head));
}

static void
sample_item(sample_t *s)
{
    tr_wire_item_t head = { .choice = 1,
                            .kind = TR_ITEM_TOOL_CALL,
                            .index = 3,
                            .id_len = 6,
                            .name_len = 4 };

    s->len = 0;
    add(s, &head, sizeof(head));
    add(s, "call_7", 6);
    add(s, "find", 4);
}

static void
sample_result(sample_t *s)
{
    tr_wire_result_t head = { .kind = TR_RESULT_TEXT, .len = 5 };

    s->len = 0;
    add(s, &head, sizeof(head));
    add(s, "hello", 5);
}

static void
sample_kv(sample_t *s)
{
    tr_wire_kv_t head = { .choice = 1,
                          .usage = { .bytes = 5, .full_bytes = 9 } };

    s->len = 0;
    add(s, &head, sizeof(head));
}

static void
sample_finish(sample_t *s)
{
    tr_wire_finish_t head = { .choice = 1,
                              .reason = TR_FINISH_STOP,
                              .flags = TR_FINISH_LAST,
                              .completion_tokens = 12,
                              .tail_len = 5 };

    s->len = 0;
    add(s, &head, sizeof(head));
    add(s, "newer", 5);
}

static void
sample_error(sample_t *s)
{
    tr_wire_error_t head = { .status = TR_ERR_INVALID,
                             .param_len = 4,
                             .message_len = 9 };

    s->len = 0;
    add(s, &head, sizeof(head));
    add(s, "seed", 4);
    add(s, "too large", 9);
}

static const struct kind {
    const char *name;
    parse_t parse;
    void (*sample)(sample_t *s);
    size_t head;       /* bytes */
    int open_end;      /* what follows the head may have any length */
    size_t lengths[3]; /* offsets of 32-bit length fields, 0: none */
} kinds[] = {
    { "SUBMIT",
      parse_submit,
      sample_submit,
      sizeof(tr_wire_submit_t),
      1,
      { offsetof(tr_wire_submit_t, request_id_len), 0 } },
    { "replay block",
      parse_replay,
      sample_replay,
      sizeof(tr_wire_replay_t),
      0,
      { offsetof(tr_wire_replay_t, choices),
        offsetof(tr_wire_replay_t, tail_len),
        sizeof(tr_wire_replay_t) } }, /* tokens of the first choice */
    { "ACCEPTED",
      parse_accepted,
      sample_accepted,
      sizeof(tr_wire_accepted_t),
      0,
      { offsetof(tr_wire_accepted_t, model_len),
        offsetof(tr_wire_accepted_t, policy_len) } },
    { "DELTA",
      parse_delta,
      sample_delta,
      sizeof(tr_wire_delta_t),
      0,
      { offsetof(tr_wire_delta_t, text_len),
        offsetof(tr_wire_delta_t, logprobs_len),
        offsetof(tr_wire_delta_t, ids_len) } },
    { "STARTED",
      parse_started,
      sample_started,
      sizeof(tr_wire_started_t),
      0,
      { 0, 0 } },
    { "ITEM",
      parse_item,
      sample_item,
      sizeof(tr_wire_item_t),
      0,
      { offsetof(tr_wire_item_t, id_len),
        offsetof(tr_wire_item_t, name_len) } },
    { "RESULT",
      parse_result,
      sample_result,
      sizeof(tr_wire_result_t),
      0,
      { offsetof(tr_wire_result_t, len), 0 } },
    { "KV", parse_kv, sample_kv, sizeof(tr_wire_kv_t), 0, { 0, 0 } },
    { "FINISH",
      parse_finish,
      sample_finish,
      sizeof(tr_wire_finish_t),
      0,
      { offsetof(tr_wire_finish_t, tail_len), 0 } },
    { "ERROR",
      parse_error,
      sample_error,
      sizeof(tr_wire_error_t),
      0,
      { offsetof(tr_wire_error_t, param_len),
        offsetof(tr_wire_error_t, message_len) } },
};

#define KINDS (sizeof(kinds) / sizeof(kinds[0]))

/* Parses a copy in a buffer of exactly `len` bytes. */
static tr_status_t
parse_exact(parse_t parse, const uint8_t *bytes, size_t len)
{
    uint8_t *copy = malloc(len != 0 ? len : 1);
    tr_status_t rc;

    assert_non_null(copy);
    memcpy(copy, bytes, len);
    rc = parse(copy, len);
    free(copy);
    return rc;
}

/* ---- tests -------------------------------------------------------------- */

static void
test_every_truncation(void **state)
{
    sample_t s;
    size_t k, n;

    (void) state;
    for (k = 0; k < KINDS; k++) {
        kinds[k].sample(&s);
        assert_int_equal(parse_exact(kinds[k].parse, s.bytes, s.len), TR_OK);
        for (n = 0; n < s.len; n++) {
            tr_status_t want = kinds[k].open_end && n >= kinds[k].head
                                   ? TR_OK
                                   : TR_ERR_PROTOCOL;

            if (parse_exact(kinds[k].parse, s.bytes, n) != want) {
                fail_msg("%s cut to %zu bytes", kinds[k].name, n);
            }
        }
        s.bytes[s.len] = 0;
        assert_int_equal(parse_exact(kinds[k].parse, s.bytes, s.len + 1),
                         kinds[k].open_end ? TR_OK : TR_ERR_PROTOCOL);
    }
}

static void
test_every_wild_length(void **state)
{
    static const uint32_t wild[] = { 0,          1,          2,
                                     15,         64,         65,
                                     0x7fffffff, 0x80000000, 0xfffffff0,
                                     0xfffffffe, 0xffffffff };
    sample_t s;
    size_t k, f, w;

    (void) state;
    for (k = 0; k < KINDS; k++) {
        for (f = 0; f < 3 && kinds[k].lengths[f] != 0; f++) {
            for (w = 0; w < sizeof(wild) / sizeof(wild[0]); w++) {
                tr_status_t rc, want = TR_ERR_PROTOCOL;

                kinds[k].sample(&s);
                memcpy(s.bytes + kinds[k].lengths[f], &wild[w], 4);
                rc = parse_exact(kinds[k].parse, s.bytes, s.len);
                if (kinds[k].parse == parse_submit && wild[w] <= 2) {
                    want = TR_OK; /* a shorter request id */
                }
                if (rc != want) {
                    fail_msg("%s with a length of %u at %zu: %d", kinds[k].name,
                             wild[w], kinds[k].lengths[f], rc);
                }
            }
        }
    }
}

/* Two lengths that are right only in 32 bits. */
static void
test_lengths_whose_sum_wraps(void **state)
{
    uint32_t a = 0xffffffff, b = 4 + 9 + 1; /* a + b is what follows */
    sample_t s;

    (void) state;
    sample_error(&s);
    memcpy(s.bytes + offsetof(tr_wire_error_t, param_len), &a, 4);
    memcpy(s.bytes + offsetof(tr_wire_error_t, message_len), &b, 4);
    assert_int_equal(parse_exact(parse_error, s.bytes, s.len), TR_ERR_PROTOCOL);
}

static void
test_every_truncation_of_logprobs(void **state)
{
    tr_wire_delta_t head;
    size_t cut, whole = 0;
    sample_t s;

    (void) state;
    sample_delta(&s);
    memcpy(&head, s.bytes, sizeof(head));
    for (cut = 0; cut <= head.logprobs_len; cut++) {
        tr_wire_delta_t shorter = head;
        uint8_t copy[MAX];
        size_t len = sizeof(head) + head.text_len + cut;

        shorter.logprobs_len = (uint32_t) cut;
        shorter.ids_len = 0;
        memcpy(copy, s.bytes, len);
        memcpy(copy, &shorter, sizeof(shorter));
        whole += parse_exact(parse_delta, copy, len) == TR_OK;
    }
    assert_int_equal(whole, 3); /* none, one, both entries */
}

/* Only a tool call has an id and a name, and it has both. */
static void
test_items_have_what_their_kind_has(void **state)
{
    static const uint16_t wrong[] = { 0, TR_ITEM_TEXT, TR_ITEM_REASONING, 4,
                                      0xffff };
    tr_wire_item_t head = { .kind = TR_ITEM_TEXT };
    tr_wire_bytes_t id, name;
    sample_t s;

    (void) state;
    sample_item(&s);
    assert_int_equal(tr_wire_item_parse(s.bytes, s.len, &head, &id, &name),
                     TR_OK);
    assert_int_equal(head.choice, 1);
    assert_int_equal(head.index, 3);
    assert_memory_equal(id.data, "call_7", 6);
    assert_memory_equal(name.data, "find", 4);
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        memcpy(s.bytes + offsetof(tr_wire_item_t, kind), &wrong[i], 2);
        assert_int_equal(parse_exact(parse_item, s.bytes, s.len),
                         TR_ERR_PROTOCOL);
    }
    head = (tr_wire_item_t){ .kind = TR_ITEM_REASONING };
    assert_int_equal(parse_exact(parse_item, (uint8_t *) &head, sizeof(head)),
                     TR_OK);
    head.kind = TR_ITEM_TOOL_CALL;
    assert_int_equal(parse_exact(parse_item, (uint8_t *) &head, sizeof(head)),
                     TR_ERR_PROTOCOL);
}

static void
test_results_have_what_their_kind_has(void **state)
{
    tr_wire_result_t head = { .kind = TR_RESULT_CONTEXT, .count = 7 };
    sample_t s;

    (void) state;
    assert_int_equal(parse_exact(parse_result, (uint8_t *) &head, sizeof(head)),
                     TR_OK);
    for (uint16_t kind = 0; kind < 6; kind++) {
        sample_result(&s); /* five bytes: no ids, and no number has any */
        memcpy(s.bytes + offsetof(tr_wire_result_t, kind), &kind, 2);
        assert_int_equal(parse_exact(parse_result, s.bytes, s.len),
                         kind == TR_RESULT_TEXT ? TR_OK : TR_ERR_PROTOCOL);
    }
}

static void
test_content_is_returned(void **state)
{
    tr_wire_bytes_t a = { 0 }, b = { 0 }, ids = { 0 };
    tr_wire_submit_t submit;
    tr_wire_accepted_t accepted;
    tr_wire_delta_t delta;
    tr_wire_kv_t kv;
    tr_wire_finish_t finish;
    tr_wire_error_t error;
    tr_wire_logprob_t entry = { 0 };
    tr_wire_top_t top = { 0 };
    int32_t told;
    sample_t s;

    (void) state;
    sample_submit(&s);
    assert_int_equal(tr_wire_submit_parse(s.bytes, s.len, &submit, &a), TR_OK);
    assert_int_equal(submit.endpoint, TR_ENDPOINT_CHAT);
    assert_int_equal(submit.received_us, 99);
    assert_memory_equal(submit.request_id, "req~!", 5);
    assert_int_equal(a.len, 10);
    assert_memory_equal(a.data, "{\"model\":1", 10);

    sample_accepted(&s);
    assert_int_equal(tr_wire_accepted_parse(s.bytes, s.len, &accepted, &a, &b),
                     TR_OK);
    assert_int_equal(accepted.choices, 2);
    assert_int_equal(a.len, 6);
    assert_memory_equal(a.data, "pocket", 6);
    assert_int_equal(b.len, 4);
    assert_memory_equal(b.data, "full", 4);

    sample_delta(&s);
    assert_int_equal(tr_wire_delta_parse(s.bytes, s.len, &delta, &a, &b, &ids),
                     TR_OK);
    assert_int_equal(delta.choice, 1);
    assert_int_equal(delta.echoed, 3);
    assert_int_equal(ids.len, 8);
    memcpy(&told, ids.data, sizeof(told));
    assert_int_equal(told, 7);
    assert_int_equal(a.len, 5);
    assert_memory_equal(a.data, "hello", 5);
    assert_int_equal(tr_wire_logprob_next(&b, &entry, &a), TR_OK);
    assert_int_equal(entry.token, 7);
    assert_memory_equal(a.data, "hel", 3);
    assert_int_equal(tr_wire_top_next(&b, &top, &a), TR_OK);
    assert_memory_equal(a.data, "he", 2);
    assert_int_equal(tr_wire_top_next(&b, &top, &a), TR_OK);
    assert_int_equal(top.token, 8);
    assert_memory_equal(a.data, "ho", 2);

    sample_kv(&s);
    assert_int_equal(tr_wire_kv_parse(s.bytes, s.len, &kv), TR_OK);
    assert_int_equal(kv.choice, 1);
    assert_int_equal(kv.usage.full_bytes, 9);

    sample_finish(&s);
    assert_int_equal(tr_wire_finish_parse(s.bytes, s.len, &finish, &a), TR_OK);
    assert_int_equal(finish.completion_tokens, 12);
    assert_int_equal(a.len, 5);
    assert_memory_equal(a.data, "newer", 5);

    sample_error(&s);
    assert_int_equal(tr_wire_error_parse(s.bytes, s.len, &error, &a, &b),
                     TR_OK);
    assert_int_equal(a.len, 4);
    assert_memory_equal(a.data, "seed", 4);
    assert_memory_equal(b.data, "too large", 9);
}

/* Values, not lengths, that no honest peer sends. */
static void
test_senseless_values(void **state)
{
    tr_wire_submit_t submit;
    tr_wire_accepted_t accepted;
    tr_wire_finish_t finish;
    tr_wire_error_t error;
    sample_t s;

    (void) state;
#define SUBMIT_WITH(change, want)                                          \
    do {                                                                   \
        sample_submit(&s);                                                 \
        memcpy(&submit, s.bytes, sizeof(submit));                          \
        change;                                                            \
        memcpy(s.bytes, &submit, sizeof(submit));                          \
        assert_int_equal(parse_exact(parse_submit, s.bytes, s.len), want); \
    } while (0)
    SUBMIT_WITH(submit.endpoint = TR_ENDPOINTS, TR_OK); /* to be answered */
    SUBMIT_WITH(submit.body_len = 10, TR_OK);
    SUBMIT_WITH(submit.body_len = 9, TR_ERR_PROTOCOL);
    SUBMIT_WITH(submit.body_len = TR_BODY_UNKNOWN, TR_OK);
    SUBMIT_WITH(submit.request_id[4] = ' ', TR_ERR_PROTOCOL);
    SUBMIT_WITH(submit.request_id[4] = '\n', TR_ERR_PROTOCOL);
    SUBMIT_WITH(submit.request_id[4] = 0x7f, TR_ERR_PROTOCOL);
    SUBMIT_WITH(submit.request_id[4] = (char) 0xc3, TR_ERR_PROTOCOL);
    SUBMIT_WITH(submit.request_id[5] = '\n', TR_OK); /* not part of it */
    /* longer than its field, with nothing else wrong */
    SUBMIT_WITH((memset(submit.request_id, 'a', TR_REQUEST_ID_MAX),
                 submit.request_id_len = TR_REQUEST_ID_MAX),
                TR_OK);
    SUBMIT_WITH((memset(submit.request_id, 'a', TR_REQUEST_ID_MAX),
                 submit.request_id_len = TR_REQUEST_ID_MAX + 1),
                TR_ERR_PROTOCOL);
    SUBMIT_WITH(submit.trace[3] = ' ', TR_ERR_PROTOCOL);
    SUBMIT_WITH((memset(submit.trace, 'a', TR_TRACE_MAX)), TR_OK);
    /* what comes ahead of the body is no part of its length */
    SUBMIT_WITH((submit.model_len = 3, submit.body_len = 7), TR_OK);
    SUBMIT_WITH((submit.model_len = 3, submit.body_len = 6), TR_ERR_PROTOCOL);
    SUBMIT_WITH((submit.replay_len = 20, submit.body_len = 0), TR_OK);
    SUBMIT_WITH((submit.replay_len = 4, submit.model_len = 4,
                 submit.body_len = 2),
                TR_OK);
    SUBMIT_WITH(submit.replay_len = TR_REPLAY_MAX, TR_OK);
    SUBMIT_WITH(submit.replay_len = TR_REPLAY_MAX + 1, TR_ERR_PROTOCOL);
    SUBMIT_WITH(submit.replay_len = UINT32_MAX, TR_ERR_PROTOCOL);
    SUBMIT_WITH(submit.model_len = TR_SUBMIT_MODEL_MAX + 1, TR_ERR_PROTOCOL);
#undef SUBMIT_WITH

    sample_accepted(&s);
    memcpy(&accepted, s.bytes, sizeof(accepted));
    accepted.choices = 0;
    memcpy(s.bytes, &accepted, sizeof(accepted));
    assert_int_equal(parse_exact(parse_accepted, s.bytes, s.len),
                     TR_ERR_PROTOCOL);

    sample_finish(&s);
    memcpy(&finish, s.bytes, sizeof(finish));
    for (unsigned reason = 0; reason < 6; reason++) {
        finish.reason = (uint16_t) reason;
        memcpy(s.bytes, &finish, sizeof(finish));
        assert_int_equal(parse_exact(parse_finish, s.bytes, s.len),
                         reason >= 1 && reason <= 4 ? TR_OK : TR_ERR_PROTOCOL);
    }

    sample_error(&s);
    memcpy(&error, s.bytes, sizeof(error));
    error.status = TR_OK;
    memcpy(s.bytes, &error, sizeof(error));
    assert_int_equal(parse_exact(parse_error, s.bytes, s.len), TR_ERR_PROTOCOL);
}

/* Noise of every length into every parser. */
static void
test_noise_is_survived(void **state)
{
    uint64_t x = 88172645463325252ull;
    uint8_t bytes[256];
    size_t k, i;
    int round;

    (void) state;
    for (round = 0; round < 50000; round++) {
        for (i = 0; i < sizeof(bytes); i += 8) {
            x ^= x << 13, x ^= x >> 7, x ^= x << 17;
            uint64_t word = round % 2 ? x : x & 0x0000001f0000001full;

            memcpy(bytes + i, &word, 8);
        }
        for (k = 0; k < KINDS; k++) {
            tr_status_t rc = parse_exact(kinds[k].parse, bytes,
                                         (size_t) round % sizeof(bytes));

            assert_true(rc == TR_OK || rc == TR_ERR_PROTOCOL);
        }
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_truncation),
        cmocka_unit_test(test_every_wild_length),
        cmocka_unit_test(test_lengths_whose_sum_wraps),
        cmocka_unit_test(test_every_truncation_of_logprobs),
        cmocka_unit_test(test_items_have_what_their_kind_has),
        cmocka_unit_test(test_results_have_what_their_kind_has),
        cmocka_unit_test(test_content_is_returned),
        cmocka_unit_test(test_senseless_values),
        cmocka_unit_test(test_noise_is_survived),
    };

    return cmocka_run_group_tests_name("wire", tests, NULL, NULL);
}
