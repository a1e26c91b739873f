/*
 * Server-sent events, line by line (see sse.h).
 */
#include "sse.h"

#include <stdlib.h>
#include <string.h>

void
tr_sse_init(tr_sse_t *s, tr_sse_event_pt on_event, void *user)
{
    memset(s, 0, sizeof(*s));
    s->on_event = on_event;
    s->user = user;
}

void
tr_sse_free(tr_sse_t *s)
{
    free(s->line);
    free(s->data);
    s->line = s->data = NULL;
    s->n_line = s->cap_line = s->n_data = s->cap_data = 0;
}

/* Appends and keeps a NUL behind. */
static tr_status_t
append(char **buf, size_t *len, size_t *cap, const char *bytes, size_t n)
{
    if (n > TR_SSE_EVENT_MAX || *len + n > TR_SSE_EVENT_MAX) {
        return TR_ERR_TOO_LARGE;
    }
    if (*len + n + 1 > *cap) {
        size_t want = (*len + n + 1) * 2;
        char *grown;

        want = want < 256 ? 256 : want;
        grown = realloc(*buf, want);
        if (grown == NULL) {
            return TR_ERR_NOMEM;
        }
        *buf = grown;
        *cap = want;
    }
    if (n != 0) {
        memcpy(*buf + *len, bytes, n);
    }
    *len += n;
    (*buf)[*len] = '\0';
    return TR_OK;
}

static void
dispatch(tr_sse_t *s)
{
    if (s->has_data) {
        s->events++;
        s->on_event(s->user, s->data, s->n_data, s->event);
    }
    s->has_data = false;
    s->n_data = 0;
    s->event[0] = '\0';
}

static tr_status_t
field(tr_sse_t *s)
{
    const char *line = s->n_line != 0 ? s->line : "", *value;
    size_t n = s->n_line, name;
    tr_status_t rc = TR_OK;

    if (n == 0) {
        dispatch(s);
        return TR_OK;
    }
    if (line[0] == ':') {
        s->comments++;
        return TR_OK;
    }
    value = memchr(line, ':', n);
    name = value != NULL ? (size_t) (value - line) : n;
    value = line + name + (value != NULL);
    n -= (size_t) (value - line);
    if (n != 0 && value[0] == ' ') {
        value++;
        n--;
    }
    if (name == 4 && memcmp(line, "data", 4) == 0) {
        if (s->has_data) {
            rc = append(&s->data, &s->n_data, &s->cap_data, "\n", 1);
        }
        if (rc == TR_OK) {
            rc = append(&s->data, &s->n_data, &s->cap_data, value, n);
        }
        s->has_data = true;
    } else if (name == 5 && memcmp(line, "event", 5) == 0) {
        n = n < sizeof(s->event) - 1 ? n : sizeof(s->event) - 1;
        memcpy(s->event, value, n);
        s->event[n] = '\0';
    }
    return rc;
}

tr_status_t
tr_sse_push(tr_sse_t *s, const char *bytes, size_t n)
{
    size_t i, start = 0;

    for (i = 0; i < n && s->failed == TR_OK; i++) {
        if (s->after_cr && bytes[i] == '\n') {
            s->after_cr = false;
            start = i + 1;
            continue;
        }
        s->after_cr = false;
        if (bytes[i] != '\n' && bytes[i] != '\r') {
            continue;
        }
        s->failed = append(&s->line, &s->n_line, &s->cap_line, bytes + start,
                           i - start);
        if (s->failed == TR_OK) {
            /* a byte order mark may open the stream */
            if (!s->started && s->n_line >= 3
                && memcmp(s->line, "\xef\xbb\xbf", 3) == 0) {
                memmove(s->line, s->line + 3, s->n_line - 2);
                s->n_line -= 3;
            }
            s->started = true;
            s->failed = field(s);
        }
        s->n_line = 0;
        s->after_cr = bytes[i] == '\r';
        start = i + 1;
    }
    if (s->failed == TR_OK && start < n) {
        s->failed = append(&s->line, &s->n_line, &s->cap_line, bytes + start,
                           n - start);
    }
    return s->failed;
}

tr_status_t
tr_sse_finish(tr_sse_t *s)
{
    if (s->failed == TR_OK
        && (s->n_line != 0 || s->has_data || s->event[0] != '\0')) {
        s->failed = TR_ERR_FORMAT;
    }
    return s->failed;
}
