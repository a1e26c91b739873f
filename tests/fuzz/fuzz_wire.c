/*
 * Fuzzes the parsers of the wire records.  The first byte of an input chooses
 * the record, the rest is its payload, in a buffer of exactly its size.
 */
#include <assert.h>
#include <stdlib.h>

#include <tokenring/wire.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static unsigned sum; /* keeps the reads below from being optimised away */

static void
touch(tr_wire_bytes_t b)
{
    uint32_t i;

    for (i = 0; i < b.len; i++) {
        sum += (unsigned char) b.data[i];
    }
}

static void
walk_logprobs(tr_wire_bytes_t left)
{
    tr_wire_logprob_t head;
    tr_wire_bytes_t bytes;
    tr_wire_top_t top;
    unsigned i;

    while (tr_wire_logprob_next(&left, &head, &bytes) == TR_OK) {
        touch(bytes);
        for (i = 0; i < head.top; i++) {
            if (tr_wire_top_next(&left, &top, &bytes) != TR_OK) {
                return;
            }
            touch(bytes);
        }
    }
}

static void
walk_replay(uint32_t choices, tr_wire_bytes_t rest)
{
    tr_wire_replay_choice_t choice;
    tr_wire_bytes_t ids = { NULL, 0 };

    while (choices-- != 0) {
        assert(tr_wire_replay_next(&rest, &choice, &ids) == TR_OK);
        touch(ids);
    }
}

static void
parse(unsigned which, const uint8_t *payload, size_t size)
{
    union {
        tr_wire_submit_t submit;
        tr_wire_accepted_t accepted;
        tr_wire_replay_t replay;
        tr_wire_started_t started;
        tr_wire_delta_t delta;
        tr_wire_finish_t finish;
        tr_wire_kv_t kv;
        tr_wire_item_t item;
        tr_wire_result_t result;
        tr_wire_error_t error;
    } head;
    tr_wire_bytes_t a = { NULL, 0 }, b = { NULL, 0 }, d = { NULL, 0 };
    tr_status_t rc;

    switch (which) {
    case 0:
        rc = tr_wire_submit_parse(payload, size, &head.submit, &a);
        break;
    case 1:
        rc = tr_wire_accepted_parse(payload, size, &head.accepted, &a, &b);
        break;
    case 2:
        rc = tr_wire_delta_parse(payload, size, &head.delta, &a, &b, &d);
        if (rc == TR_OK) {
            walk_logprobs(b);
        }
        break;
    case 3:
        rc = tr_wire_finish_parse(payload, size, &head.finish, &d);
        break;
    case 5:
        rc = tr_wire_kv_parse(payload, size, &head.kv);
        break;
    case 6:
        rc = tr_wire_item_parse(payload, size, &head.item, &a, &b);
        break;
    case 7:
        rc = tr_wire_started_parse(payload, size, &head.started);
        break;
    case 8:
        rc = tr_wire_result_parse(payload, size, &head.result, &a);
        break;
    case 9:
        rc = tr_wire_replay_parse(payload, size, &head.replay, &a);
        walk_replay(rc == TR_OK ? head.replay.choices : 0, a);
        break;
    default:
        rc = tr_wire_error_parse(payload, size, &head.error, &a, &b);
        break;
    }
    assert(rc == TR_OK || rc == TR_ERR_PROTOCOL);
    if (rc == TR_OK) {
        touch(a);
        touch(b);
        touch(d);
    }
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t *copy;

    if (size == 0) {
        return 0;
    }
    copy = malloc(size); /* one byte more than the payload, behind its start */
    memcpy(copy + 1, data + 1, size - 1);
    parse(data[0] % 11, copy + 1, size - 1);
    free(copy);
    return 0;
}
