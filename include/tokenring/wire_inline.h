/*
 * Layout and bodies of wire.h, which includes this.
 */
#ifndef TOKENRING_WIRE_INLINE_H
#define TOKENRING_WIRE_INLINE_H

#include <string.h>

#include <tokenring/wire.h>

_Static_assert(sizeof(tr_wire_submit_t) == 264, "SUBMIT head");
_Static_assert(sizeof(tr_wire_replay_t) == 64, "head of a replay block");
_Static_assert(sizeof(tr_wire_replay_choice_t) == 16, "choice of a block");
_Static_assert(sizeof(tr_wire_accepted_t) == 72, "ACCEPTED head");
_Static_assert(sizeof(tr_wire_started_t) == 8, "STARTED is 8 bytes");
_Static_assert(sizeof(tr_wire_delta_t) == 24, "DELTA head");
_Static_assert(sizeof(tr_wire_item_t) == 24, "ITEM head");
_Static_assert(sizeof(tr_wire_result_t) == 16, "RESULT head");
_Static_assert(sizeof(tr_wire_logprob_t) == 12, "logprob head");
_Static_assert(sizeof(tr_wire_top_t) == 12, "top head");
_Static_assert(sizeof(tr_wire_usage_t) == 48, "usage of the KV cache");
_Static_assert(sizeof(tr_wire_kv_t) == 56, "KV is 56 bytes");
_Static_assert(sizeof(tr_wire_finish_t) == 112, "FINISH head");
_Static_assert(sizeof(tr_wire_error_t) == 24, "ERROR head");

static inline tr_status_t
tr_wire_take(const uint8_t **at, size_t *left, void *out, size_t n)
{
    if (n > *left) {
        return TR_ERR_PROTOCOL;
    }
    memcpy(out, *at, n);
    *at += n;
    *left -= n;
    return TR_OK;
}

static inline tr_status_t
tr_wire_take_bytes(const uint8_t **at, size_t *left, uint32_t n,
                   tr_wire_bytes_t *out)
{
    if (n > *left) {
        return TR_ERR_PROTOCOL;
    }
    out->data = (const char *) *at;
    out->len = n;
    *at += n;
    *left -= n;
    return TR_OK;
}

/* A record that is a head and nothing else. */
static inline tr_status_t
tr_wire_whole(const void *in, size_t len, void *head, size_t size)
{
    if (len != size) {
        return TR_ERR_PROTOCOL;
    }
    memcpy(head, in, size);
    return TR_OK;
}

/* An entry of a list: a head, and as many bytes as len, in the head, says. */
static inline tr_status_t
tr_wire_entry(tr_wire_bytes_t *left, void *head, size_t size,
              const uint16_t *len, tr_wire_bytes_t *bytes)
{
    const uint8_t *at = (const uint8_t *) left->data;
    size_t n = left->len;

    if (tr_wire_take(&at, &n, head, size) != TR_OK
        || tr_wire_take_bytes(&at, &n, *len, bytes) != TR_OK) {
        return TR_ERR_PROTOCOL;
    }
    left->data = (const char *) at;
    left->len = (uint32_t) n;
    return TR_OK;
}

/* n lower-case hex digits, or n NULs. */
static inline int
tr_wire_is_hex(const char *at, size_t n)
{
    size_t i, digits = 0, nuls = 0;

    for (i = 0; i < n; i++) {
        digits += (at[i] >= '0' && at[i] <= '9')
                  || (at[i] >= 'a' && at[i] <= 'f');
        nuls += at[i] == '\0';
    }
    return digits == n || nuls == n;
}

/* Printable ASCII without blanks. */
static inline int
tr_wire_is_word(const char *at, size_t n)
{
    size_t i;

    for (i = 0; i < n; i++) {
        if (at[i] < 0x21 || at[i] > 0x7e) {
            return 0;
        }
    }
    return 1;
}

/* Are the head's lengths possible, with n bytes behind it in the first part? */
static inline int
tr_wire_submit_fits(const tr_wire_submit_t *head, size_t n)
{
    uint64_t before = (uint64_t) head->replay_len + head->model_len;

    return head->replay_len <= TR_REPLAY_MAX
           && head->model_len <= TR_SUBMIT_MODEL_MAX && n <= UINT32_MAX
           && (head->body_len == TR_BODY_UNKNOWN || n <= before
               || n - before <= head->body_len);
}

static inline uint64_t
tr_completion_name(const char id[TR_COMPLETION_LEN])
{
    uint64_t name = 0;
    unsigned i;

    for (i = 0; i < 16; i++) {
        char c = id[i];

        if (c >= '0' && c <= '9') {
            name = name << 4 | (uint64_t) (c - '0');
        } else if (c >= 'a' && c <= 'f') {
            name = name << 4 | (uint64_t) (c - 'a' + 10);
        } else {
            return 0;
        }
    }
    return name;
}

static inline tr_status_t
tr_wire_submit_parse(const void *in, size_t len, tr_wire_submit_t *head,
                     tr_wire_bytes_t *bytes)
{
    const uint8_t *at = (const uint8_t *) in;
    size_t trace;

    if (tr_wire_take(&at, &len, head, sizeof(*head)) != TR_OK
        || head->request_id_len > TR_REQUEST_ID_MAX
        || !tr_wire_submit_fits(head, len)
        || !tr_wire_is_hex(head->completion, TR_COMPLETION_LEN)
        || !tr_wire_is_hex(head->owner, TR_OWNER_LEN)) {
        return TR_ERR_PROTOCOL;
    }
    trace = strnlen(head->trace, TR_TRACE_MAX);
    if (!tr_wire_is_word(head->request_id, head->request_id_len)
        || !tr_wire_is_word(head->trace, trace)) {
        return TR_ERR_PROTOCOL;
    }
    return tr_wire_take_bytes(&at, &len, (uint32_t) len, bytes);
}

static inline tr_status_t
tr_wire_replay_next(tr_wire_bytes_t *rest, tr_wire_replay_choice_t *head,
                    tr_wire_bytes_t *ids)
{
    const uint8_t *at = (const uint8_t *) rest->data;
    size_t n = rest->len;

    if (tr_wire_take(&at, &n, head, sizeof(*head)) != TR_OK
        || head->tokens > TR_REPLAY_IDS || head->reason > TR_FINISH_TOOL_CALLS
        || head->reason == TR_FINISH_ABORTED
        || tr_wire_take_bytes(&at, &n,
                              head->reason != 0
                                  ? 0
                                  : head->tokens * (uint32_t) sizeof(int32_t),
                              ids)
               != TR_OK) {
        return TR_ERR_PROTOCOL;
    }
    rest->data = (const char *) at;
    rest->len = (uint32_t) n;
    return TR_OK;
}

static inline tr_status_t
tr_wire_replay_parse(const void *in, size_t len, tr_wire_replay_t *head,
                     tr_wire_bytes_t *rest)
{
    const uint8_t *at = (const uint8_t *) in;
    tr_wire_replay_choice_t choice;
    tr_wire_bytes_t left, ids;
    uint64_t total = 0;
    uint32_t i;

    if (len > TR_REPLAY_MAX
        || tr_wire_take(&at, &len, head, sizeof(*head)) != TR_OK
        || head->choices == 0
        || tr_wire_take_bytes(&at, &len, (uint32_t) len, rest) != TR_OK) {
        return TR_ERR_PROTOCOL;
    }
    left = *rest;
    for (i = 0; i < head->choices; i++) {
        if (tr_wire_replay_next(&left, &choice, &ids) != TR_OK) {
            return TR_ERR_PROTOCOL;
        }
        total += ids.len / sizeof(int32_t);
    }
    return total <= TR_REPLAY_IDS && left.len == head->tail_len
                   && head->tail_len <= TR_REPLAY_TAIL
               ? TR_OK
               : TR_ERR_PROTOCOL;
}

static inline tr_status_t
tr_wire_accepted_parse(const void *in, size_t len, tr_wire_accepted_t *head,
                       tr_wire_bytes_t *model, tr_wire_bytes_t *policy)
{
    const uint8_t *at = (const uint8_t *) in;

    if (tr_wire_take(&at, &len, head, sizeof(*head)) != TR_OK
        || head->choices == 0
        || tr_wire_take_bytes(&at, &len, head->model_len, model) != TR_OK
        || tr_wire_take_bytes(&at, &len, head->policy_len, policy) != TR_OK
        || len != 0) {
        return TR_ERR_PROTOCOL;
    }
    return TR_OK;
}

static inline tr_status_t
tr_wire_started_parse(const void *in, size_t len, tr_wire_started_t *head)
{
    return tr_wire_whole(in, len, head, sizeof(*head));
}

static inline tr_status_t
tr_wire_delta_parse(const void *in, size_t len, tr_wire_delta_t *head,
                    tr_wire_bytes_t *text, tr_wire_bytes_t *logprobs,
                    tr_wire_bytes_t *ids)
{
    const uint8_t *at = (const uint8_t *) in;
    tr_wire_bytes_t unwanted;

    if (tr_wire_take(&at, &len, head, sizeof(*head)) != TR_OK
        || (head->ids_len != 0
            && head->ids_len != sizeof(int32_t) * (uint64_t) head->tokens)
        || tr_wire_take_bytes(&at, &len, head->text_len, text) != TR_OK
        || tr_wire_take_bytes(&at, &len, head->logprobs_len, logprobs) != TR_OK
        || tr_wire_take_bytes(&at, &len, head->ids_len,
                              ids != NULL ? ids : &unwanted)
               != TR_OK
        || len != 0) {
        return TR_ERR_PROTOCOL;
    }
    return TR_OK;
}

static inline tr_status_t
tr_wire_item_parse(const void *in, size_t len, tr_wire_item_t *head,
                   tr_wire_bytes_t *id, tr_wire_bytes_t *name)
{
    const uint8_t *at = (const uint8_t *) in;

    if (tr_wire_take(&at, &len, head, sizeof(*head)) != TR_OK
        || head->kind < TR_ITEM_TEXT || head->kind > TR_ITEM_TOOL_CALL
        || head->id_len > TR_ITEM_ID_MAX || head->name_len > TR_ITEM_NAME_MAX
        || (head->kind == TR_ITEM_TOOL_CALL)
               != (head->id_len != 0 && head->name_len != 0)
        || tr_wire_take_bytes(&at, &len, head->id_len, id) != TR_OK
        || tr_wire_take_bytes(&at, &len, head->name_len, name) != TR_OK
        || len != 0) {
        return TR_ERR_PROTOCOL;
    }
    return TR_OK;
}

static inline tr_status_t
tr_wire_result_parse(const void *in, size_t len, tr_wire_result_t *head,
                     tr_wire_bytes_t *bytes)
{
    const uint8_t *at = (const uint8_t *) in;

    if (tr_wire_take(&at, &len, head, sizeof(*head)) != TR_OK
        || head->kind < TR_RESULT_TOKENS || head->kind > TR_RESULT_EMBEDDING
        || head->len > TR_RESULT_MAX
        || ((head->kind == TR_RESULT_TOKENS
             || head->kind == TR_RESULT_EMBEDDING)
            && head->len % 4 != 0)
        || (head->kind == TR_RESULT_CONTEXT && head->len != 0)
        || tr_wire_take_bytes(&at, &len, head->len, bytes) != TR_OK
        || len != 0) {
        return TR_ERR_PROTOCOL;
    }
    return TR_OK;
}

static inline tr_status_t
tr_wire_logprob_next(tr_wire_bytes_t *left, tr_wire_logprob_t *head,
                     tr_wire_bytes_t *bytes)
{
    if (left->len == 0) {
        return TR_AGAIN;
    }
    return tr_wire_entry(left, head, sizeof(*head), &head->bytes_len, bytes);
}

static inline tr_status_t
tr_wire_top_next(tr_wire_bytes_t *left, tr_wire_top_t *head,
                 tr_wire_bytes_t *bytes)
{
    return tr_wire_entry(left, head, sizeof(*head), &head->bytes_len, bytes);
}

static inline tr_status_t
tr_wire_kv_parse(const void *in, size_t len, tr_wire_kv_t *head)
{
    return tr_wire_whole(in, len, head, sizeof(*head));
}

static inline tr_status_t
tr_wire_finish_parse(const void *in, size_t len, tr_wire_finish_t *head,
                     tr_wire_bytes_t *tail)
{
    const uint8_t *at = (const uint8_t *) in;
    tr_wire_bytes_t unwanted;

    if (tr_wire_take(&at, &len, head, sizeof(*head)) != TR_OK
        || head->reason < TR_FINISH_STOP || head->reason > TR_FINISH_TOOL_CALLS
        || tr_wire_take_bytes(&at, &len, head->tail_len,
                              tail != NULL ? tail : &unwanted)
               != TR_OK
        || len != 0) {
        return TR_ERR_PROTOCOL;
    }
    return TR_OK;
}

static inline tr_status_t
tr_wire_error_parse(const void *in, size_t len, tr_wire_error_t *head,
                    tr_wire_bytes_t *param, tr_wire_bytes_t *message)
{
    const uint8_t *at = (const uint8_t *) in;

    if (tr_wire_take(&at, &len, head, sizeof(*head)) != TR_OK
        || head->status >= 0
        || tr_wire_take_bytes(&at, &len, head->param_len, param) != TR_OK
        || tr_wire_take_bytes(&at, &len, head->message_len, message) != TR_OK
        || len != 0) {
        return TR_ERR_PROTOCOL;
    }
    return TR_OK;
}

#endif
