/*
 * What a template does, found out by trying (chat_template.h): conversations
 * with words that occur nowhere else are rendered, and the words looked for.
 */
#include "chat_template.h"

#include <stdlib.h>
#include <string.h>

#include "engine/config/log.h"

#define QUESTION "Qprobequestion"
#define ANSWER "Zprobeanswer"
#define THOUGHT "Wprobethought"

typedef struct {
    tr_jinja_render_t *r;
    tr_jinja_text_t text;
} probe_t;

static json_t *
message(const char *role, const char *content)
{
    return json_pack("{s:s, s:s}", "role", role, "content", content);
}

/* Renders messages (taken) and tools (taken, or NULL); false when the template
 * refuses.  To be freed with tr_jinja_render_free. */
static bool
render(const tr_chat_template_t *c, json_t *messages, json_t *tools,
       bool generation, probe_t *p)
{
    tr_chat_input_t in = { .messages = messages,
                           .tools = tools,
                           .no_generation_prompt = !generation,
                           .now = 1 };
    tr_error_t err;
    bool ok = tr_chat_template_render(c, &in, &p->r, &p->text, &err) == TR_OK;

    /* the text is the render's own, but strings of the JSON are not: nobody
     * looks at values any more */
    json_decref(messages);
    json_decref(tools);
    return ok;
}

static bool
has(const probe_t *p, const char *what)
{
    return memmem(p->text.text, p->text.len, what, strlen(what)) != NULL;
}

/* Does a rendering of messages hold one text and not another (NULL: none)? */
static bool
shows(const tr_chat_template_t *c, json_t *messages, json_t *tools,
      const char *what, const char *but)
{
    probe_t p = { 0 };
    bool ok = render(c, messages, tools, true, &p) && has(&p, what)
              && (but == NULL || !has(&p, but));

    tr_jinja_render_free(p.r);
    return ok;
}

static json_t *
tools(void)
{
    return json_pack("[{s:s, s:{s:s, s:s, s:{s:s, s:{s:{s:s, s:s}}, s:[s]}}}]",
                     "type", "function", "function", "name", "probe_tool",
                     "description", "A tool.", "parameters", "type", "object",
                     "properties", "probe_key", "type", "string", "description",
                     "A key.", "required", "probe_key");
}

/* A question, a call and its result.  content: of the message that calls, NULL:
 * null. */
static json_t *
call(const char *content)
{
    json_t *calls = json_pack("[{s:s, s:s, s:{s:s, s:{s:s}}}]", "id",
                              "callprobe", "type", "function", "function",
                              "name", "probe_tool", "arguments", "probe_key",
                              ANSWER);
    json_t *assistant = json_pack("{s:s, s:s?, s:o}", "role", "assistant",
                                  "content", content, "tool_calls", calls);
    json_t *result = json_pack("{s:s, s:s, s:s, s:s}", "role", "tool",
                               "tool_call_id", "callprobe", "name",
                               "probe_tool", "content", "{\"found\": 1}");

    return json_pack("[o, o, o]", message("user", QUESTION), assistant, result);
}

/* ---- what is looked for ------------------------------------------------- */

/* A call's arguments, as an object or as text: the form that the template
 * writes as JSON, once. */
static void
probe_arguments(tr_chat_template_t *c)
{
    tr_chat_template_t trial = *c;
    bool object, text;

    trial.string_arguments = false;
    object = shows(&trial, call(""), tools(), ANSWER, "{'probe_key'");
    trial.string_arguments = true;
    text = shows(&trial, call(""), tools(), ANSWER, "\\\"probe_key\\\"");
    c->string_arguments = text && !object;
}

static void
probe_null(tr_chat_template_t *c)
{
    tr_chat_template_t trial = *c;
    json_t *nothing = call(NULL);

    trial.null_content = true;
    c->null_content = shows(&trial, nothing, tools(), ANSWER, "None");
}

static void
probe_parts(tr_chat_template_t *c)
{
    tr_chat_template_t trial = *c;
    json_t *parts = json_pack("[{s:s, s:s}, {s:s, s:s}]", "type", "text",
                              "text", QUESTION, "type", "text", "text", ANSWER);
    json_t *messages = json_pack("[{s:s, s:o}]", "role", "user", "content",
                                 parts);
    json_t *again = json_deep_copy(messages);
    bool question, answer;

    trial.list_content = true;
    question = shows(&trial, messages, NULL, QUESTION, "'text'");
    answer = shows(&trial, again, NULL, ANSWER, "\"text\"");
    c->list_content = question && answer;
}

static void
probe_reasoning(tr_chat_template_t *c)
{
    static const tr_chat_reasoning_t fields[] = { TR_REASONING_CONTENT,
                                                  TR_REASONING_THINKING,
                                                  TR_REASONING_PLAIN };

    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
        tr_chat_template_t trial = *c;
        json_t *plain = json_pack("[o, o]", message("user", QUESTION),
                                  message("assistant", ANSWER));
        json_t *calls = call("");

        trial.reasoning = fields[i];
        /* any of the names becomes the field that is tried */
        json_object_set_new(json_array_get(plain, 1), "reasoning",
                            json_string(THOUGHT));
        json_object_set_new(json_array_get(calls, 1), "reasoning",
                            json_string(THOUGHT));
        if (shows(&trial, plain, NULL, THOUGHT, NULL)) {
            json_decref(calls);
        } else if (!shows(&trial, calls, tools(), THOUGHT, NULL)) {
            continue;
        }
        c->reasoning = fields[i];
        return;
    }
}

/* The first special token behind an answer ends a turn. */
static tr_status_t
probe_end(tr_chat_template_t *c, const tr_tokenizer_t *t, tr_error_t *err)
{
    tr_tokenizer_scratch_t *s = tr_tokenizer_scratch_new(t);
    json_t *messages = json_pack("[o, o]", message("user", QUESTION),
                                 message("assistant", ANSWER));
    tr_ids_t ids = { 0 };
    probe_t p = { 0 };
    tr_status_t rc = s ? TR_OK : TR_ERR_NOMEM;

    if (render(c, messages, NULL, false, &p) && rc == TR_OK) {
        const char *at = memmem(p.text.text, p.text.len, ANSWER,
                                strlen(ANSWER));
        size_t from = at ? (size_t) (at - p.text.text) + strlen(ANSWER)
                         : p.text.len;

        rc = tr_tokenizer_encode_tagged(t, s, p.text.text + from,
                                        p.text.tags + from, p.text.len - from,
                                        &ids, err);
    }
    for (uint32_t i = 0; rc == TR_OK && i < ids.len && c->end_of_turn < 0;
         i++) {
        if (tr_tokenizer_is_special(t, ids.data[i])) {
            c->end_of_turn = ids.data[i];
        }
    }
    free(ids.data);
    tr_jinja_render_free(p.r);
    tr_tokenizer_scratch_free(s);
    return rc == TR_ERR_NOMEM
               ? tr_error_set(err, rc, "chat_template", "out of memory")
               : rc;
}

static bool
reads(const tr_chat_template_t *c, const char *name)
{
    return tr_jinja_reads(c->chat, name)
           || (c->tool_use != NULL && tr_jinja_reads(c->tool_use, name));
}

tr_status_t
tr_chat_template_probe(tr_chat_template_t *c, const tr_tokenizer_t *t,
                       tr_error_t *err)
{
    static const char *const fields[] = { [TR_REASONING_NONE] = "none",
                                          [TR_REASONING_CONTENT] = "reasoning_"
                                                                   "content",
                                          [TR_REASONING_THINKING] = "thinking",
                                          [TR_REASONING_PLAIN] = "reasoning" };
    tr_status_t rc;

    c->reads_tools = reads(c, "tools") || c->tool_use != NULL;
    c->reads_documents = reads(c, "documents");
    c->reads_thinking = reads(c, "enable_thinking");
    c->reads_effort = reads(c, "reasoning_effort");
    c->knows_developer = tr_jinja_has_literal(c->chat, "developer");
    probe_parts(c);
    probe_arguments(c);
    probe_null(c);
    probe_reasoning(c);
    rc = t != NULL ? probe_end(c, t, err) : TR_OK;
    if (rc == TR_OK) {
        tr_log(TR_LEVEL_INFO,
               "chat template arguments=%s null_content=%s parts=%s "
               "reasoning=%s tools=%s enable_thinking=%s reasoning_effort=%s "
               "end_of_turn=%d",
               c->string_arguments ? "string" : "object",
               c->null_content ? "yes" : "no",
               c->list_content ? "list" : "text", fields[c->reasoning],
               c->reads_tools ? "yes" : "no", c->reads_thinking ? "yes" : "no",
               c->reads_effort ? "yes" : "no", c->end_of_turn);
    }
    return rc;
}
