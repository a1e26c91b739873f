/*
 * Fuzzes chat templates.  Up to the first NUL an input is a template, behind it
 * stands what a client writes.  Whatever they are, a prompt is made or refused in
 * words, within the limits; and the client makes no special token: a template
 * without '<' and without a backslash cannot write one itself.
 *
 * Run from the repository's root: it uses the shipped model's tokenizer.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/template/chat_template.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerInitialize(int *argc, char ***argv);

#define MODEL "models/pocket"
#define MARK "<|eot_id|>"

static tr_tokenizer_t *tokenizer;
static tr_tokenizer_scratch_t *scratch;

int
LLVMFuzzerInitialize(int *argc, char ***argv)
{
    tr_error_t err;

    (void) argc;
    (void) argv;
    if (tr_tokenizer_load(MODEL, &tokenizer, &err) != TR_OK) {
        fprintf(stderr, "%s\n", err.text);
        exit(1);
    }
    scratch = tr_tokenizer_scratch_new(tokenizer);
    return 0;
}

/* A conversation in which the client has a say everywhere. */
static json_t *
conversation(const char *text, size_t len)
{
    json_t *said = json_stringn(text, len), *all;

    if (said == NULL) {
        return NULL; /* not UTF-8: JSON would not have let it pass */
    }
    all = json_pack("[{s:s, s:O}, {s:s, s:s, s:O},"
                    " {s:s, s:s, s:[{s:s, s:{s:s, s:{s:O, s:[i, f, b, n]}}}]}]",
                    "role", "user", "content", said, "role", "assistant",
                    "content", MARK, "reasoning_content", said, "role",
                    "assistant", "content", "", "tool_calls", "id", "c1",
                    "function", "name", MARK, "arguments", MARK, said, "list",
                    1, 2.5, 1);
    json_decref(said);
    return all;
}

static bool
writes_marks(const char *source, size_t len)
{
    return memchr(source, '<', len) != NULL || memchr(source, '\\', len) != NULL
           || memmem(source, len, "space", 5) != NULL; /* repr of a namespace */
}

static void
check(const tr_chat_template_t *c, const json_t *messages, bool may)
{
    tr_chat_input_t in = {
        .messages = messages, .tools = messages, .now = 1, .max_bytes = 1 << 20
    };
    tr_ids_t ids = { 0 };
    tr_error_t err = { 0 };
    tr_status_t rc = tr_chat_template_encode(c, tokenizer, scratch, &in, &ids,
                                             &err);

    if (rc != TR_OK && tr_status_info(rc).http >= 500) {
        abort();
    }
    for (uint32_t i = 0; rc == TR_OK && !may && i < ids.len; i++) {
        if (tr_tokenizer_is_special(tokenizer, ids.data[i])) {
            abort();
        }
    }
    free(ids.data);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *source = (const char *) data;
    size_t len = strnlen(source, size);
    tr_chat_template_t c = { .end_of_turn = -1 };
    tr_error_t err;
    json_t *messages;

    if (tr_jinja_parse(source, len, "fuzz", &c.chat, &err) != TR_OK) {
        if (err.text[0] == '\0') {
            abort();
        }
        return 0;
    }
    messages = len < size ? conversation(source + len + 1, size - len - 1)
                          : conversation(MARK, strlen(MARK));
    for (int form = 0; messages != NULL && form < 4; form++) {
        c.string_arguments = form & 1;
        c.null_content = c.list_content = form & 2;
        check(&c, messages, writes_marks(source, len));
    }
    json_decref(messages);
    tr_chat_template_free(&c);
    return 0;
}
