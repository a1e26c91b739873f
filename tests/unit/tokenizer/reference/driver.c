/*
 * Encodes and decodes for compare.mjs.  One JSON object a line on standard
 * input, one answer a line on standard output, the same order:
 *
 *   {"text": T, "special": B, "parse": B}  ->  {"ids": [...]}
 *   {"ids": [...], "skip": B}              ->  {"text": T}
 *   {"messages": [{"role": R, "content": C}, ...], ...}
 *                                          ->  {"ids": [...], "text": T}
 *   {"directory": D}                       ->  {}: the chat template from here on
 *
 * or {"error": TEXT}.  What else stands beside messages: tools, documents, and
 * add_generation_prompt as in a request, enable_thinking and reasoning_effort as
 * variables.  Decoding goes token by token through the streaming
 * detokeniser, since there is no other.
 */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/template/chat_template.h"
#include "engine/tokenizer/tokenizer.h"

typedef struct {
    tr_tokenizer_t *tokenizer;
    tr_tokenizer_scratch_t *scratch;
    tr_chat_template_t chat;
} driver_t;

static json_t *
answer_error(const tr_error_t *err)
{
    return json_pack("{s:s, s:s}", "error", err->text, "param", err->param);
}

static json_t *
answer_ids(tr_ids_t *ids)
{
    json_t *list = json_array();

    for (uint32_t i = 0; i < ids->len; i++) {
        json_array_append_new(list, json_integer(ids->data[i]));
    }
    return json_pack("{s:o}", "ids", list);
}

static json_t *
encode(driver_t *d, const json_t *q)
{
    const json_t *text = json_object_get(q, "text");
    unsigned flags = 0;
    tr_ids_t ids = { 0 };
    tr_error_t err;
    json_t *out;

    if (json_is_true(json_object_get(q, "special"))) {
        flags |= TR_ENCODE_SPECIAL;
    }
    if (json_is_true(json_object_get(q, "parse"))) {
        flags |= TR_ENCODE_PARSE_SPECIAL;
    }
    if (tr_tokenizer_encode(d->tokenizer, d->scratch, json_string_value(text),
                            json_string_length(text), flags, &ids, &err)
        == TR_OK) {
        out = answer_ids(&ids);
    } else {
        out = answer_error(&err);
    }
    free(ids.data);
    return out;
}

static json_t *
decode(driver_t *d, const json_t *q)
{
    const json_t *ids = json_object_get(q, "ids");
    size_t cap = (tr_tokenizer_max_token_bytes(d->tokenizer) * 3 + 16)
                 * (json_array_size(ids) + 1);
    char *text = malloc(cap);
    size_t n = 0;
    tr_detok_t detok;
    json_t *out;

    tr_detok_init(&detok, json_is_true(json_object_get(q, "skip")));
    for (size_t i = 0; i < json_array_size(ids); i++) {
        int32_t id = (int32_t) json_integer_value(json_array_get(ids, i));

        n += tr_detok_push(&detok, d->tokenizer, id, text + n,
                           (uint32_t) (cap - n));
    }
    n += tr_detok_finish(&detok, text + n, (uint32_t) (cap - n));
    out = json_pack("{s:o}", "text", json_stringn(text, n));
    free(text);
    return out;
}

/* The variables of a question's conversation. */
static json_t *
variables_of(const json_t *q)
{
    static const char *const names[] = { "enable_thinking",
                                         "reasoning_effort" };
    json_t *out = json_object();

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        json_object_set(out, names[i], json_object_get(q, names[i]));
    }
    return out;
}

static json_t *
encode_chat(driver_t *d, const json_t *q)
{
    json_t *variables = variables_of(q), *out;
    tr_chat_input_t in = {
        .messages = json_object_get(q, "messages"),
        .tools = json_object_get(q, "tools"),
        .documents = json_object_get(q, "documents"),
        .variables = variables,
        .no_generation_prompt = json_is_false(
            json_object_get(q, "add_generation_prompt")),
    };
    tr_jinja_render_t *render = NULL;
    tr_jinja_text_t text;
    tr_ids_t ids = { 0 };
    tr_error_t err;

    if (tr_chat_template_render(&d->chat, &in, &render, &text, &err) == TR_OK
        && tr_tokenizer_encode_tagged(d->tokenizer, d->scratch, text.text,
                                      text.tags, text.len, &ids, &err)
               == TR_OK) {
        out = answer_ids(&ids);
        json_object_set_new(out, "text", json_stringn(text.text, text.len));
    } else {
        out = answer_error(&err);
    }
    tr_jinja_render_free(render);
    json_decref(variables);
    free(ids.data);
    return out;
}

static json_t *
change_template(driver_t *d, const char *directory)
{
    tr_error_t err;

    tr_chat_template_free(&d->chat);
    return tr_chat_template_load(directory, "auto", d->tokenizer, &d->chat,
                                 &err)
                   == TR_OK
               ? json_object()
               : answer_error(&err);
}

static void
answer(driver_t *d, const char *line, size_t len)
{
    json_error_t problem;
    json_t *q = json_loadb(line, len, JSON_ALLOW_NUL, &problem);
    json_t *out;

    if (q == NULL) {
        fprintf(stderr, "tokenize_driver: %s\n", problem.text);
        exit(2);
    }
    if (json_object_get(q, "directory") != NULL) {
        out = change_template(d, json_string_value(
                                     json_object_get(q, "directory")));
    } else if (json_object_get(q, "messages") != NULL) {
        out = encode_chat(d, q);
    } else if (json_object_get(q, "ids") != NULL) {
        out = decode(d, q);
    } else {
        out = encode(d, q);
    }
    json_dumpf(out, stdout, JSON_COMPACT);
    putchar('\n');
    json_decref(out);
    json_decref(q);
}

int
main(int argc, char **argv)
{
    driver_t d = { 0 };
    tr_error_t err;
    char *line = NULL;
    size_t cap = 0;
    ssize_t n;

    if (argc < 2 || argc > 3) {
        fprintf(stderr, "usage: tokenize_driver MODEL_DIRECTORY [TEMPLATE]\n");
        return 2;
    }
    if (tr_tokenizer_load(argv[1], &d.tokenizer, &err) != TR_OK
        || (argc > 2
            && tr_chat_template_load(argv[1], argv[2], d.tokenizer, &d.chat,
                                     &err)
                   != TR_OK)) {
        fprintf(stderr, "tokenize_driver: %s\n", err.text);
        return 1;
    }
    d.scratch = tr_tokenizer_scratch_new(d.tokenizer);
    while ((n = getline(&line, &cap, stdin)) > 0) {
        answer(&d, line, (size_t) n);
    }
    free(line);
    tr_chat_template_free(&d.chat);
    tr_tokenizer_scratch_free(d.scratch);
    tr_tokenizer_free(d.tokenizer);
    return 0;
}
