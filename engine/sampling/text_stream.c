/*
 * The text of one sequence, with stop strings (text_stream.h).
 */
#include "text_stream.h"

#include <string.h>

static uint32_t
longest_stop(const tr_sampling_params_t *params)
{
    uint32_t longest = 0;

    for (uint32_t i = 0; i < params->n_stop; i++) {
        if (params->stop[i].len > longest) {
            longest = params->stop[i].len;
        }
    }
    return longest;
}

/* What the detokeniser may write for one token (tokenizer.h). */
static uint32_t
token_room(const tr_tokenizer_t *t)
{
    return tr_tokenizer_max_token_bytes(t) * 3 + 16;
}

static size_t
fail_bytes(const tr_sampling_params_t *params)
{
    size_t n = 0;

    for (uint32_t i = 0; i < params->n_stop; i++) {
        n += params->stop[i].len;
    }
    return (n * sizeof(uint16_t) + 7) & ~(size_t) 7;
}

static uint32_t
push_room(const tr_tokenizer_t *t, uint32_t room)
{
    return room > token_room(t) ? room : token_room(t);
}

size_t
tr_text_stream_size(const tr_tokenizer_t *t, const tr_sampling_params_t *params,
                    uint32_t room)
{
    return fail_bytes(params) + longest_stop(params) + push_room(t, room);
}

/* fail[k]: length of the longest proper prefix of text that is a suffix of
 * its first k + 1 bytes. */
static void
build_failure_table(uint16_t *fail, const char *text, uint32_t len)
{
    uint16_t k = 0;

    fail[0] = 0;
    for (uint32_t i = 1; i < len; i++) {
        while (k > 0 && text[k] != text[i]) {
            k = fail[k - 1];
        }
        if (text[k] == text[i]) {
            k++;
        }
        fail[i] = k;
    }
}

void
tr_text_stream_init(tr_text_stream_t *s, const tr_tokenizer_t *t,
                    const tr_sampling_params_t *params, uint32_t room,
                    void *memory)
{
    uint16_t *fail = memory;

    memset(s, 0, sizeof(*s));
    tr_detok_init(&s->detok, true);
    tr_detok_continue(&s->detok);
    s->tokenizer = t;
    s->params = params;
    s->fail = fail;
    for (uint32_t i = 0; i < params->n_stop; i++) {
        build_failure_table(fail, params->stop[i].text, params->stop[i].len);
        fail += params->stop[i].len;
    }
    s->buf = (char *) memory + fail_bytes(params);
    s->cap = longest_stop(params) + push_room(t, room);
}

uint32_t
tr_text_stream_max_out(const tr_text_stream_t *s)
{
    return s->cap;
}

/* Drops what went out with the last call. */
static void
discard_given(tr_text_stream_t *s)
{
    s->len -= s->given;
    memmove(s->buf, s->buf + s->given, s->len);
    s->given = 0;
}

/* Advances every automaton by one byte.  Returns the stop string that is now
 * complete (the longest of them), else -1. */
static int32_t
match_byte(tr_text_stream_t *s, char c)
{
    const tr_stop_string_t *stop = s->params->stop;
    const uint16_t *fail = s->fail;
    int32_t found = -1;

    for (uint32_t i = 0; i < s->params->n_stop; i++) {
        uint16_t k = s->state[i];

        while (k > 0 && stop[i].text[k] != c) {
            k = fail[k - 1];
        }
        if (stop[i].text[k] == c) {
            k++;
        }
        if (k == stop[i].len) {
            if (found < 0 || stop[i].len > stop[found].len) {
                found = (int32_t) i;
            }
            k = fail[k - 1];
        }
        s->state[i] = k;
        fail += stop[i].len;
    }
    return found;
}

static uint32_t
held_bytes(const tr_text_stream_t *s)
{
    uint32_t held = 0;

    for (uint32_t i = 0; i < s->params->n_stop; i++) {
        if (s->state[i] > held) {
            held = s->state[i];
        }
    }
    return held;
}

/* Looks for stop strings in buf[from..len) and decides what goes out. */
static void
give(tr_text_stream_t *s, uint32_t from, bool last, tr_text_out_t *out)
{
    for (uint32_t i = from; i < s->len; i++) {
        int32_t found = match_byte(s, s->buf[i]);

        if (found >= 0) {
            s->stopped = true;
            s->stop = found;
            s->len = i + 1;
            if (!s->params->include_stop) {
                s->len -= s->params->stop[found].len;
            }
            out->stop = found;
            break;
        }
    }
    s->given = s->len;
    if (!s->stopped && !last) {
        s->given -= held_bytes(s);
    }
    out->text = s->buf;
    out->len = s->given;
}

void
tr_text_stream_push(tr_text_stream_t *s, int32_t token, tr_text_out_t *out)
{
    uint32_t from;

    *out = (tr_text_out_t){ .text = s->buf, .stop = -1 };
    if (s->stopped) {
        return;
    }
    discard_given(s);
    from = s->len;
    s->pushed++;
    s->len += tr_detok_push(&s->detok, s->tokenizer, token, s->buf + from,
                            s->cap - from);
    if (s->pushed < s->params->min_tokens) {
        from = s->len;
    }
    give(s, from, false, out);
}

uint32_t
tr_text_stream_detok(tr_text_stream_t *s, int32_t token, char *text,
                     uint32_t cap)
{
    s->pushed++;
    return tr_detok_push(&s->detok, s->tokenizer, token, text, cap);
}

void
tr_text_stream_feed(tr_text_stream_t *s, const char *text, uint32_t len,
                    tr_text_out_t *out)
{
    uint32_t from;

    *out = (tr_text_out_t){ .text = s->buf, .stop = -1 };
    if (s->stopped) {
        return;
    }
    discard_given(s);
    from = s->len;
    memcpy(s->buf + from, text, len);
    s->len += len;
    give(s, s->pushed < s->params->min_tokens ? s->len : from, false, out);
}

void
tr_text_stream_break(tr_text_stream_t *s, tr_text_out_t *out)
{
    *out = (tr_text_out_t){ .text = s->buf, .stop = -1 };
    if (s->stopped) {
        return;
    }
    discard_given(s);
    give(s, s->len, true, out);
    memset(s->state, 0, sizeof(s->state));
}

void
tr_text_stream_finish(tr_text_stream_t *s, tr_text_out_t *out)
{
    uint32_t from;

    *out = (tr_text_out_t){ .text = s->buf, .stop = -1 };
    if (s->stopped) {
        return;
    }
    discard_given(s);
    from = s->len;
    s->len += tr_detok_finish(&s->detok, s->buf + from, s->cap - from);
    give(s, from, true, out);
}
