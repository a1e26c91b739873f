/*
 * Conversations to ids.  A template is written here as a sequence of special
 * tokens and plain text; plain text, whether the template's own or a
 * message's, is gathered until the next special token and then encoded in one
 * piece, because merges cross the border between the two ("[INST] " + content).
 * Special tokens are found by name, never in text, so that a message cannot
 * contain one.
 */
#include "chat_template.h"
#include "engine/tokenizer/tokenizer_internal.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct {
    const tr_tokenizer_t *t;
    tr_tokenizer_scratch_t *s;
    tr_ids_t *out;
    tr_error_t *err;
    tr_status_t status; /* the first failure; what follows does nothing */
    tr_bytes_t plain;
    bool begun; /* something stands before `plain` */
} render_t;

static void
fail_memory(render_t *r)
{
    r->status = tr_error_set(r->err, TR_ERR_NOMEM, "", "out of memory");
}

static void
put(render_t *r, const char *text, size_t len)
{
    if (r->status == TR_OK && !tr_bytes_append(&r->plain, text, len)) {
        fail_memory(r);
    }
}

static void
put_text(render_t *r, const char *text)
{
    put(r, text, strlen(text));
}

static void
flush(render_t *r)
{
    if (r->status == TR_OK && r->plain.len > 0) {
        r->status = tr_tokenizer_encode(r->t, r->s, r->plain.data, r->plain.len,
                                        r->begun ? TR_ENCODE_MIDDLE : 0, r->out,
                                        r->err);
        r->begun = true;
    }
    r->plain.len = 0;
}

/* A mark of the template: one token where the tokenizer has it as such, plain
 * text where not ("[INST]" of Llama 2). */
static void
put_mark(render_t *r, const char *mark)
{
    int32_t id = tr_tokenizer_find(r->t, mark);

    if (id < 0 || !(r->t->flags[id] & TR_TOKEN_ADDED)) {
        put_text(r, mark);
        return;
    }
    flush(r);
    if (r->status == TR_OK && !tr_ids_append(r->out, id)) {
        fail_memory(r);
    }
    r->begun = true;
}

/* White space in the sense of Python's str.strip. */
static bool
is_space(uint32_t c)
{
    return (c >= 9 && c <= 13) || (c >= 28 && c <= 32) || c == 0x85 || c == 0xa0
           || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028
           || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

/* Messages are checked only when they are encoded: here the text may be
 * anything, so a step is taken over valid characters alone. */
static void
trim(const char **text, size_t *len)
{
    while (*len > 0) {
        uint32_t n = tr_utf8_valid(*text, *len);

        if (n == 0 || !is_space(tr_utf8_next(*text, &n))) {
            break;
        }
        *text += n;
        *len -= n;
    }
    while (*len > 0) {
        size_t at = *len - 1;
        uint32_t n;

        while (at > 0 && *len - at < 4 && ((*text)[at] & 0xc0) == 0x80) {
            at--;
        }
        n = tr_utf8_valid(*text + at, *len - at);
        if (n != *len - at || !is_space(tr_utf8_next(*text + at, &n))) {
            break;
        }
        *len = at;
    }
}

static void
put_content(render_t *r, const tr_chat_message_t *m, bool trimmed)
{
    const char *text = m->content;
    size_t len = m->content_len;

    if (trimmed) {
        trim(&text, &len);
    }
    put(r, text, len);
}

static bool
has_role(const tr_chat_message_t *m, const char *role)
{
    return m->role_len == strlen(role)
           && memcmp(m->role, role, m->role_len) == 0;
}

static bool
is_system(const tr_chat_message_t *m)
{
    return has_role(m, "system") || has_role(m, "developer");
}

static const char *
role_name(const tr_chat_message_t *m)
{
    return is_system(m) ? "system" : has_role(m, "user") ? "user" : "assistant";
}

static tr_status_t
refuse(tr_error_t *err, uint32_t i, const char *field, const char *text)
{
    char param[TR_ERROR_PARAM];

    snprintf(param, sizeof(param), "messages[%u]%s", i, field);
    return tr_error_set(err, TR_ERR_INVALID, param, "%s", text);
}

static tr_status_t
check_roles(const tr_chat_message_t *m, uint32_t n, tr_error_t *err)
{
    if (n == 0) {
        return tr_error_set(err, TR_ERR_INVALID, "messages",
                            "messages is empty, expected at least one");
    }
    for (uint32_t i = 0; i < n; i++) {
        if (!is_system(&m[i]) && !has_role(&m[i], "user")
            && !has_role(&m[i], "assistant")) {
            char text[160];

            snprintf(text, sizeof(text),
                     "role \"%.*s\" is not supported by this model's chat "
                     "template, expected system, user or assistant",
                     m[i].role_len < 40 ? (int) m[i].role_len : 40, m[i].role);
            return refuse(err, i, ".role", text);
        }
    }
    return TR_OK;
}

/* Llama 2 and Mistral: after an optional system message, user and assistant
 * take turns, the user first. */
static tr_status_t
check_turns(const tr_chat_message_t *m, uint32_t n, bool takes_system,
            tr_error_t *err)
{
    uint32_t first = is_system(&m[0]) ? 1 : 0;

    if (first == 1 && !takes_system) {
        return refuse(err, 0, ".role",
                      "this model's chat template takes no system message");
    }
    if (n == first) {
        return tr_error_set(err, TR_ERR_INVALID, "messages",
                            "this model's chat template needs a user message "
                            "after the system message");
    }
    for (uint32_t i = first; i < n; i++) {
        bool user = (i - first) % 2 == 0;

        if (!has_role(&m[i], user ? "user" : "assistant")) {
            return refuse(err, i, ".role",
                          user
                              ? "expected role user here: this model's chat "
                                "template needs user and assistant to alternate"
                              : "expected role assistant here: this model's "
                                "chat template needs user and assistant to "
                                "alternate");
        }
    }
    return TR_OK;
}

static void
begin_header(render_t *r, const char *role)
{
    put_mark(r, "<|start_header_id|>");
    put_text(r, role);
    put_mark(r, "<|end_header_id|>");
    put_text(r, "\n\n");
}

static void
put_date(render_t *r, const tr_chat_template_t *c)
{
    time_t now = time(NULL);
    struct tm day;
    char text[32];

    if (c->date[0] != '\0') {
        put_text(r, c->date);
    } else if (localtime_r(&now, &day) != NULL
               && strftime(text, sizeof(text), "%d %b %Y", &day) > 0) {
        put_text(r, text);
    }
}

static void
render_llama3(render_t *r, const tr_chat_template_t *c,
              const tr_chat_message_t *m, uint32_t n)
{
    uint32_t i = 0;

    if (c->bos[0] != '\0') {
        put_mark(r, c->bos);
    }
    if (c->date_header) {
        begin_header(r, "system");
        put_text(r, "Cutting Knowledge Date: December 2023\nToday Date: ");
        put_date(r, c);
        put_text(r, "\n\n");
        if (is_system(&m[0])) {
            put_content(r, &m[i++], true);
        }
        put_mark(r, "<|eot_id|>");
    }
    for (; i < n; i++) {
        begin_header(r, role_name(&m[i]));
        put_content(r, &m[i], c->trim);
        put_mark(r, "<|eot_id|>");
    }
    begin_header(r, "assistant");
}

static void
begin_turn(render_t *r, const char *role)
{
    put_mark(r, "<|im_start|>");
    put_text(r, role);
    put_text(r, "\n");
}

static void
end_turn(render_t *r)
{
    put_mark(r, "<|im_end|>");
    put_text(r, "\n");
}

static const char *
find_last(const char *text, size_t len, const char *what)
{
    size_t n = strlen(what);
    const char *found = NULL, *p = text;

    while ((p = memmem(p, len - (size_t) (p - text), what, n)) != NULL) {
        found = p;
        p += n;
    }
    return found;
}

static void
strip_newlines(const char **text, size_t *len, bool right)
{
    while (*len > 0 && **text == '\n') {
        (*text)++;
        (*len)--;
    }
    while (right && *len > 0 && (*text)[*len - 1] == '\n') {
        (*len)--;
    }
}

static bool
starts_with(const tr_chat_message_t *m, const char *text)
{
    size_t n = strlen(text);

    return m->content_len >= n && memcmp(m->content, text, n) == 0;
}

static bool
ends_with(const tr_chat_message_t *m, const char *text)
{
    size_t n = strlen(text);

    return m->content_len >= n
           && memcmp(m->content + m->content_len - n, text, n) == 0;
}

/* The last user message that is a question and no tool's answer. */
static uint32_t
last_query(const tr_chat_message_t *m, uint32_t n)
{
    for (uint32_t i = n; i-- > 0;) {
        if (has_role(&m[i], "user")
            && !(starts_with(&m[i], "<tool_response>")
                 && ends_with(&m[i], "</tool_response>"))) {
            return i;
        }
    }
    return n - 1;
}

/* An assistant's message, which may hold its reasoning.  query: where the last
 * question stands. */
static void
put_answer(render_t *r, const tr_chat_template_t *c, const tr_chat_message_t *m,
           uint32_t i, uint32_t n, uint32_t query)
{
    static const char open[] = "<think>", close[] = "</think>";
    const char *text = m[i].content, *reasoning = "", *at;
    size_t len = m[i].content_len, reasoning_len = 0;
    bool keep = c->think == TR_THINK_KEEP
                || (c->think == TR_THINK_DROP_BUT_LAST && i == n - 1);

    at = keep ? NULL : memmem(text, len, close, sizeof(close) - 1);
    if (at != NULL) {
        const char *end = text + len, *inner;

        inner = find_last(text, (size_t) (at - text), open);
        reasoning = inner ? inner + sizeof(open) - 1 : text;
        reasoning_len = (size_t) (at - reasoning);
        strip_newlines(&reasoning, &reasoning_len, true);
        text = find_last(at, (size_t) (end - at), close) + sizeof(close) - 1;
        len = (size_t) (end - text);
    }
    if (at != NULL || (!keep && c->think != TR_THINK_DROP_BEFORE_QUERY)) {
        strip_newlines(&text, &len, false);
    }
    if (c->think == TR_THINK_DROP_BEFORE_QUERY && i > query
        && (i == n - 1 || reasoning_len > 0)) {
        strip_newlines(&text, &len, false);
        put_mark(r, open);
        put_text(r, "\n");
        put(r, reasoning, reasoning_len);
        put_text(r, "\n");
        put_mark(r, close);
        put_text(r, "\n\n");
    }
    put(r, text, len);
}

static void
render_chatml(render_t *r, const tr_chat_template_t *c,
              const tr_chat_message_t *m, uint32_t n)
{
    uint32_t query = last_query(m, n);

    if (c->bos[0] != '\0') {
        put_mark(r, c->bos);
    }
    if (c->default_system[0] != '\0' && !is_system(&m[0])) {
        begin_turn(r, "system");
        put_text(r, c->default_system);
        end_turn(r);
    }
    for (uint32_t i = 0; i < n; i++) {
        begin_turn(r, role_name(&m[i]));
        if (c->think != TR_THINK_KEEP && has_role(&m[i], "assistant")) {
            put_answer(r, c, m, i, n, query);
        } else {
            put_content(r, &m[i], c->trim);
        }
        end_turn(r);
    }
    begin_turn(r, "assistant");
    put_text(r, c->generation);
}

static void
render_llama2(render_t *r, const tr_chat_template_t *c,
              const tr_chat_message_t *m, uint32_t n)
{
    uint32_t first = is_system(&m[0]) ? 1 : 0;

    for (uint32_t i = first; i < n; i++) {
        tr_chat_message_t part = m[i];

        if (has_role(&m[i], "assistant")) {
            put_text(r, " ");
            put_content(r, &m[i], true);
            put_text(r, " ");
            put_mark(r, c->eos);
            continue;
        }
        put_mark(r, c->bos);
        put_mark(r, "[INST]");
        put_text(r, " ");
        if (i == 1 && first == 1) {
            put_text(r, "<<SYS>>\n");
            put(r, m[0].content, m[0].content_len);
            put_text(r, "\n<</SYS>>\n\n");
            /* the template trims the two together: the left side is the
             * mark's, and an empty question takes the mark's own line ends */
            trim(&part.content, &part.content_len);
            if (part.content_len == 0 && r->status == TR_OK) {
                r->plain.len -= 2;
            } else {
                part.content_len += (size_t) (part.content - m[i].content);
                part.content = m[i].content;
            }
            put(r, part.content, part.content_len);
        } else {
            put_content(r, &m[i], true);
        }
        put_text(r, " ");
        put_mark(r, "[/INST]");
    }
}

static void
render_mistral(render_t *r, const tr_chat_template_t *c,
               const tr_chat_message_t *m, uint32_t n)
{
    uint32_t first = is_system(&m[0]) ? 1 : 0;
    uint32_t place = c->system_place == TR_SYSTEM_FIRST_USER ? first : n - 1;

    put_mark(r, c->bos);
    for (uint32_t i = first; i < n; i++) {
        if (has_role(&m[i], "assistant")) {
            put_text(r, c->answer_before);
            put_content(r, &m[i], c->trim);
            put_mark(r, c->eos);
            put_text(r, c->answer_after);
            continue;
        }
        put_text(r, c->user_before);
        put_mark(r, "[INST]");
        put_text(r, c->user_after);
        if (first == 1 && i == place) {
            put(r, m[0].content, m[0].content_len);
            put_text(r, "\n\n");
        }
        put(r, m[i].content, m[i].content_len);
        put_text(r, c->user_last);
        put_mark(r, "[/INST]");
    }
}

const tr_chat_template_t *
tr_chat_template_thinking(const tr_chat_template_t *c, bool enabled,
                          tr_chat_template_t *own)
{
    _Static_assert(sizeof(c->generation) == sizeof(c->no_thinking), "a copy");

    if (c->thinking == TR_SWITCH_UNKNOWN) {
        return NULL;
    }
    if (enabled || c->thinking == TR_SWITCH_NONE) {
        return c;
    }
    *own = *c;
    memcpy(own->generation, c->no_thinking, sizeof(own->generation));
    return own;
}

tr_status_t
tr_chat_template_encode(const tr_chat_template_t *c, const tr_tokenizer_t *t,
                        tr_tokenizer_scratch_t *s,
                        const tr_chat_message_t *messages, uint32_t n,
                        tr_ids_t *out, tr_error_t *err)
{
    render_t r = { .t = t, .s = s, .out = out, .err = err };
    tr_status_t rc = check_roles(messages, n, err);

    if (rc == TR_OK && c->kind == TR_TEMPLATE_LLAMA2) {
        rc = check_turns(messages, n, true, err);
    } else if (rc == TR_OK && c->kind == TR_TEMPLATE_MISTRAL) {
        rc = check_turns(messages, n, c->system_place != TR_SYSTEM_REFUSED,
                         err);
    }
    if (rc != TR_OK) {
        return rc;
    }
    switch (c->kind) {
    case TR_TEMPLATE_LLAMA3:
        render_llama3(&r, c, messages, n);
        break;
    case TR_TEMPLATE_CHATML:
        render_chatml(&r, c, messages, n);
        break;
    case TR_TEMPLATE_LLAMA2:
        render_llama2(&r, c, messages, n);
        break;
    case TR_TEMPLATE_MISTRAL:
        render_mistral(&r, c, messages, n);
        break;
    default:
        return tr_error_set(err, TR_ERR_INVALID, "messages",
                            "this model has no chat template; use "
                            "/v1/completions");
    }
    flush(&r);
    free(r.plain.data);
    return r.status;
}
