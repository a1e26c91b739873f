/*
 * One answer, streamed to standard output (answer.h).
 */
#include "answer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/config/log.h"

#include "terminal.h"

static void
keep(char **to, size_t *have, size_t *cap, const char *text, size_t len)
{
    if (*have + len + 1 > *cap) {
        size_t more = (*have + len + 1) * 2;
        char *grown = realloc(*to, more);

        if (grown == NULL) {
            return; /* shown, but not kept */
        }
        *to = grown;
        *cap = more;
    }
    memcpy(*to + *have, text, len);
    *have += len;
    (*to)[*have] = '\0';
}

/* Reasoning is dim, and an empty line is between it and the answer. */
static void
show(tr_answer_t *a, bool thinking, const char *text, size_t len)
{
    if (thinking != a->thinking) {
        tr_wrap_end(&a->wrap);
        if (!thinking) {
            tr_wrap_text(&a->wrap, "\n\n", 2);
        }
        fputs(tr_terminal_style(stdout,
                                thinking ? TR_STYLE_DIM : TR_STYLE_PLAIN),
              stdout);
        a->thinking = thinking;
    }
    tr_wrap_text(&a->wrap, text, len);
}

static void
on_text(void *user, unsigned kind, const char *text, size_t len,
        uint32_t tokens)
{
    tr_answer_t *a = user;
    bool thinking = kind == TR_ITEM_REASONING;

    a->last_us = tr_now_us();
    if (a->first_us == 0) {
        a->first_us = a->last_us;
    }
    a->tokens += tokens;
    if (len == 0) {
        return;
    }
    if (!a->silent && (!thinking || tr_terminal_width(stdout) != 0)) {
        show(a, thinking, text, len);
    }
    if (thinking) {
        keep(&a->reasoning, &a->reasoning_len, &a->reasoning_cap, text, len);
    } else {
        keep(&a->text, &a->len, &a->cap, text, len);
    }
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
tr_answer_get(tr_client_t *c, uint16_t endpoint, json_t *body, bool show,
              tr_answer_t *a, tr_error_t *err)
{
    tr_call_t *call;
    bool aborted = false;
    tr_status_t rc;

    memset(a, 0, sizeof(*a));
    a->silent = !show;
    tr_wrap_init(&a->wrap, stdout, tr_terminal_width(stdout));
    a->begin_us = tr_now_us();
    rc = tr_client_submit(c, endpoint, body, a, &call, err);
    while (rc == TR_OK && !a->over) {
        rc = tr_client_run(c, 100, err);
        if (rc == TR_OK && !a->over && tr_interrupted() && !aborted) {
            aborted = true;
            tr_client_abort(c, call);
        }
    }
    tr_wrap_end(&a->wrap);
    if (a->thinking) {
        fputs(tr_terminal_style(stdout, TR_STYLE_PLAIN), stdout);
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
    free(a->reasoning);
    a->text = a->reasoning = NULL;
}

static uint32_t
tokens_of(const tr_answer_t *a)
{
    return a->result.has_usage ? a->result.completion_tokens : a->tokens;
}

/* Tokens a second behind the first, 0: not known.  Chunks that come together
 * say nothing of the time between them. */
#define LEAST_US 20000u

static double
rate_of(const tr_answer_t *a)
{
    uint64_t us = a->result.has_times ? a->result.decode_us
                                      : a->last_us - a->first_us;
    uint32_t tokens = tokens_of(a);

    if (tokens < 2 || us == 0 || (!a->result.has_times && us < LEAST_US)) {
        return 0;
    }
    return (double) (tokens - 1) * 1e6 / (double) us;
}

json_t *
tr_answer_json(const tr_answer_t *a)
{
    const tr_call_result_t *r = &a->result;
    json_t *root = json_pack("{s:s%, s:s}", "text",
                             a->text != NULL ? a->text : "", a->len,
                             "finish_reason",
                             r->finish[0] != '\0' ? r->finish : r->kind);

    if (root == NULL) { /* not UTF-8 */
        root = json_pack("{s:n, s:s}", "text", "finish_reason", r->finish);
    }
    if (a->reasoning != NULL) {
        json_object_set_new(root, "reasoning",
                            json_stringn(a->reasoning, a->reasoning_len));
    }
    if (r->has_usage) {
        json_object_set_new(root, "prompt_tokens",
                            json_integer(r->prompt_tokens));
    }
    json_object_set_new(root, "completion_tokens", json_integer(tokens_of(a)));
    if (a->first_us != 0) {
        json_object_set_new(root, "first_token_ms",
                            json_real((double) (a->first_us - a->begin_us)
                                      / 1e3));
    }
    if (rate_of(a) > 0) {
        json_object_set_new(root, "tokens_per_s", json_real(rate_of(a)));
    }
    if (r->has_kv) {
        json_object_set_new(root, "kv_cache",
                            json_pack("{s:I, s:I}", "bytes",
                                      (json_int_t) r->kv_bytes, "fp16_bytes",
                                      (json_int_t) r->kv_full_bytes));
    }
    return root;
}

void
tr_answer_summary(const tr_answer_t *a)
{
    const tr_call_result_t *r = &a->result;
    char prompt[32] = "", first[48] = "", rate[48] = "", kv[80] = "";

    if (r->has_usage) {
        snprintf(prompt, sizeof(prompt), "%u prompt + ", r->prompt_tokens);
    }
    if (a->first_us != 0) {
        snprintf(first, sizeof(first), ", first after %.0f ms",
                 (double) (a->first_us - a->begin_us) / 1e3);
    }
    if (rate_of(a) > 0) {
        snprintf(rate, sizeof(rate), ", %.1f tokens/s", rate_of(a));
    }
    if (r->has_kv && r->kv_full_bytes != 0) {
        snprintf(kv, sizeof(kv), ", KV cache %.1f MiB (%.2f of 16 bits)",
                 (double) r->kv_bytes / 1048576,
                 (double) r->kv_bytes / (double) r->kv_full_bytes);
    }
    fputs(tr_terminal_style(stderr, TR_STYLE_DIM), stderr);
    tr_wrap_print(stderr, "[%s%u tokens%s%s%s, %s]", prompt, tokens_of(a),
                  first, rate, kv, r->finish[0] ? r->finish : r->kind);
    fprintf(stderr, "%s\n", tr_terminal_style(stderr, TR_STYLE_PLAIN));
}
