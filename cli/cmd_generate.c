/*
 * tokenring generate: one prompt, one answer, streamed to standard output, with
 * a closing line of figures on standard error.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "answer.h"
#include "cli.h"
#include "client.h"
#include "sampling_options.h"
#include "terminal.h"

#define PROMPT_MAX (64u << 20)

static struct {
    tr_target_t target;
    tr_sampling_options_t sampling;
    const char *prompt, *file, *system;
    bool raw, chat, quiet;
} g;

static tr_option_t options[] = {
    TR_TARGET_OPTIONS(g.target),
    { "The prompt", 0, TR_OPTION_GROUP, NULL, NULL, NULL, 0, 0, NULL, false },
    { "prompt", 'p', TR_OPTION_TEXT, &g.prompt, "TEXT", "the prompt", 0, 0,
      NULL, false },
    { "file", 'f', TR_OPTION_TEXT, &g.file, "FILE",
      "read the prompt from a file, - for standard input", 0, 0, NULL, false },
    { "system", 0, TR_OPTION_TEXT, &g.system, "TEXT",
      "a system message before it", 0, 0, NULL, false },
    { "chat", 0, TR_OPTION_FLAG, &g.chat, NULL,
      "send it as a user message, in the chat template (default)", 0, 0, NULL,
      false },
    { "raw", 0, TR_OPTION_FLAG, &g.raw, NULL,
      "send it as it is: the model continues the text", 0, 0, NULL, false },
    { "quiet", 'q', TR_OPTION_FLAG, &g.quiet, NULL,
      "do not print the closing line", 0, 0, NULL, false },
    TR_SAMPLING_OPTIONS(g.sampling),
    TR_LENGTH_OPTIONS(g.sampling),
    { NULL, 0, TR_OPTION_GROUP, NULL, NULL, NULL, 0, 0, NULL, false }
};

static const tr_command_t command = {
    "tokenring generate [options] -m DIR -p TEXT",
    "Answers one prompt.  The answer streams to standard output; a line with\n"
    "token counts, time to first token and speed goes to standard error.",
    "  tokenring generate -m models/pocket -p 'Tell me a story about a fox.'\n"
    "  tokenring generate --engine build/run/engine.sock -p Hello -t 0\n"
    "  tokenring generate --url http://127.0.0.1:8080 -f prompt.txt -n 200",
    options
};

/* The request body, or NULL when the text is not UTF-8. */
static json_t *
request_body(const char *prompt, size_t len)
{
    json_t *body = json_object(), *text = json_stringn(prompt, len), *messages;

    if (text == NULL) {
        json_decref(body);
        return NULL;
    }
    tr_options_to_json(options, body);
    if (g.raw) {
        json_object_set_new(body, "prompt", text);
        return body;
    }
    messages = json_array();
    if (g.system != NULL
        && json_array_append_new(messages,
                                 json_pack("{s:s, s:s}", "role", "system",
                                           "content", g.system))
               != 0) {
        json_decref(messages);
        json_decref(text);
        json_decref(body);
        return NULL;
    }
    json_array_append_new(messages, json_pack("{s:s, s:o}", "role", "user",
                                              "content", text));
    json_object_set_new(body, "messages", messages);
    return body;
}

static int
generate(const char *prompt, size_t len)
{
    json_t *body = request_body(prompt, len);
    tr_client_t *client = NULL;
    tr_answer_t answer = { 0 };
    tr_error_t err = { 0 };
    tr_status_t rc;

    if (body == NULL) {
        fprintf(stderr, "tokenring generate: the prompt is not valid UTF-8\n");
        return 1;
    }
    tr_interrupt_catch();
    rc = tr_client_open(&g.target, &tr_answer_events, &client, &err);
    if (rc == TR_OK) {
        rc = tr_answer_get(client,
                           g.raw ? TR_ENDPOINT_COMPLETIONS : TR_ENDPOINT_CHAT,
                           body, true, &answer, &err);
        if (answer.len != 0 && answer.text[answer.len - 1] != '\n') {
            printf("\n");
        }
        fflush(stdout);
        if (rc == TR_OK && !g.quiet) {
            tr_answer_summary(&answer);
        }
    }
    if (rc != TR_OK) {
        fprintf(stderr, "tokenring generate: %s\n", err.text);
    }
    tr_answer_free(&answer);
    json_decref(body);
    tr_client_close(client);
    if (rc == TR_OK && ferror(stdout)) {
        fprintf(stderr, "tokenring generate: cannot write the answer\n");
        return 1;
    }
    return rc != TR_OK ? 1 : answer.result.ok ? 0 : 130;
}

int
tr_cmd_generate(int argc, char **argv)
{
    char why[300], *text = NULL;
    size_t len = 0;
    int rc;

    if (tr_options_only(&command, argc, argv, &rc) != 0
        || (rc = tr_target_check(&g.target, &command)) != 0) {
        return rc;
    }
    if ((g.prompt != NULL) == (g.file != NULL)) {
        return tr_usage_error(&command, "give one of -p TEXT and -f FILE");
    }
    if (g.raw && (g.chat || g.system != NULL)) {
        return tr_usage_error(&command, "--raw does not go with %s",
                              g.chat ? "--chat" : "--system");
    }
    if (g.prompt != NULL) {
        return generate(g.prompt, strlen(g.prompt));
    }
    text = tr_read_file(g.file, PROMPT_MAX, &len, why, sizeof(why));
    if (text == NULL) {
        fprintf(stderr, "tokenring generate: %s\n", why);
        return 1;
    }
    rc = generate(text, len);
    free(text);
    return rc;
}
