/*
 * A strict incremental parser of server-sent events (the event stream format
 * of the HTML standard): bytes in, in any pieces; one call per event out.
 *
 * Lines end in LF, CRLF or CR; fields data, event, id and retry are known,
 * others are ignored as the standard says; comments are counted.  An event is
 * handed out at its empty line; data lines are joined with LF.  What the
 * standard would silently drop is visible here: an event that the stream ends
 * in, and bytes over the limit, are errors.
 */
#ifndef TR_SSE_H
#define TR_SSE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <tokenring/error.h>

#define TR_SSE_EVENT_MAX (4u << 20) /* bytes of one event's data, or a line */

/* data: NUL-terminated besides its length, valid during the call; event: ""
 * when the field was absent. */
typedef void (*tr_sse_event_pt)(void *user, const char *data, size_t len,
                                const char *event);

typedef struct {
    tr_sse_event_pt on_event;
    void *user;
    char *line, *data; /* growing buffers */
    size_t n_line, cap_line, n_data, cap_data;
    char event[64];
    bool has_data, after_cr, started;
    uint64_t events, comments;
    tr_status_t failed;
} tr_sse_t;

void tr_sse_init(tr_sse_t *s, tr_sse_event_pt on_event, void *user);
void tr_sse_free(tr_sse_t *s);

/* TR_OK, TR_ERR_TOO_LARGE or TR_ERR_NOMEM; a failed parser stays failed. */
tr_status_t tr_sse_push(tr_sse_t *s, const char *bytes, size_t n);

/* The stream ended: TR_OK only between events (TR_ERR_FORMAT otherwise). */
tr_status_t tr_sse_finish(tr_sse_t *s);

#endif
