/*
 * One answer, streamed to standard output (answer.h).
 */
#include "answer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/config/log.h"

#include "terminal.h"

static void
on_text(void *user, const char *text, size_t len, uint32_t tokens)
{
    tr_answer_t *a = user;

    a->last_us = tr_now_us();
    if (a->first_us == 0) {
        a->first_us = a->last_us;
    }
    a->tokens += tokens;
    if (len == 0) {
        return;
    }
    tr_terminal_text(stdout, text, len);
    if (a->len + len + 1 > a->cap) {
        size_t cap = (a->len + len + 1) * 2;
        char *grown = realloc(a->text, cap);

        if (grown == NULL) {
            return; /* shown, but not kept */
        }
        a->text = grown;
        a->cap = cap;
    }
    memcpy(a->text + a->len, text, len);
    a->len += len;
    a->text[a->len] = '\0';
}

static void
on_done(void *user, const tr_call_result_t *result)
{
    tr_answer_t *a = user;

    a->result = *result;
    a->over = true;
}

const tr_call_events_t tr_answer_events = { on_text, on_done };

tr_status_t
tr_answer_get(tr_client_t *c, uint16_t endpoint, json_t *body, tr_answer_t *a,
              tr_error_t *err)
{
    tr_call_t *call;
    bool aborted = false;
    tr_status_t rc;

    memset(a, 0, sizeof(*a));
    a->begin_us = tr_now_us();
    rc = tr_client_submit(c, endpoint, body, a, &call, err);
    while (rc == TR_OK && !a->over) {
        rc = tr_client_run(c, 100, err);
        if (rc == TR_OK && !a->over && tr_interrupted() && !aborted) {
            aborted = true;
            tr_client_abort(c, call);
        }
    }
    if (rc == TR_OK && !a->result.ok && !aborted) {
        return tr_error_set(err, TR_ERR_INTERNAL, "", "%s: %s", a->result.kind,
                            a->result.message);
    }
    return rc;
}

void
tr_answer_free(tr_answer_t *a)
{
    free(a->text);
    a->text = NULL;
}

void
tr_answer_summary(const tr_answer_t *a)
{
    uint32_t tokens = a->result.has_usage ? a->result.completion_tokens
                                          : a->tokens;
    uint64_t decode = a->last_us - a->first_us;

    fprintf(stderr, "[");
    if (a->result.has_usage) {
        fprintf(stderr, "%u prompt + ", a->result.prompt_tokens);
    }
    fprintf(stderr, "%u tokens", tokens);
    if (a->first_us != 0) {
        fprintf(stderr, ", first after %.0f ms",
                (double) (a->first_us - a->begin_us) / 1e3);
    }
    if (tokens > 1 && decode > 0) {
        fprintf(stderr, ", %.1f tokens/s",
                (double) (tokens - 1) / ((double) decode / 1e6));
    }
    fprintf(stderr, ", %s]\n",
            a->result.finish[0] ? a->result.finish : a->result.kind);
}
