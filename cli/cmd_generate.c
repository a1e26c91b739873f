/*
 * tokenring generate: one prompt, one answer, streamed to standard output, with
 * a closing line of figures on standard error.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "answer.h"
#include "chat.h"
#include "cli.h"
#include "client.h"
#include "sampling_options.h"
#include "terminal.h"
#include "wrap.h"

#define PROMPT_MAX (64u << 20)

static struct {
    tr_target_t target;
    tr_sampling_options_t sampling;
    const char *name; /* of the command, in messages */
    const char *prompt, *file, *system;
    bool raw, chat, quiet, json;
} g;

#define PROMPT_OPTIONS                                                          \
    { "The prompt", 0, TR_OPTION_GROUP, NULL, NULL, NULL, 0, 0, NULL, false },  \
        { "prompt",  'p',    TR_OPTION_TEXT,                                    \
          &g.prompt, "TEXT", "the prompt, instead of arguments",                \
          0,         0,      NULL,                                              \
          false },                                                              \
        { "file",  'f',    TR_OPTION_TEXT,                                      \
          &g.file, "FILE", "read the prompt from a file, - for standard input", \
          0,       0,      NULL,                                                \
          false },                                                              \
        { "system",  0,      TR_OPTION_TEXT,                                    \
          &g.system, "TEXT", "a system message before it",                      \
          0,         0,      NULL,                                              \
          false },                                                              \
        { "chat",                                                               \
          0,                                                                    \
          TR_OPTION_FLAG,                                                       \
          &g.chat,                                                              \
          NULL,                                                                 \
          "send it as a user message, in the chat template (default)",          \
          0,                                                                    \
          0,                                                                    \
          NULL,                                                                 \
          false },                                                              \
        { "raw",  0,    TR_OPTION_FLAG,                                         \
          &g.raw, NULL, "send it as it is: the model continues the text",       \
          0,      0,    NULL,                                                   \
          false },                                                              \
        { "quiet",  'q',  TR_OPTION_FLAG,                                       \
          &g.quiet, NULL, "do not print the line of figures at the end",        \
          0,        0,    NULL,                                                 \
          false },                                                              \
        { "json",  0,    TR_OPTION_FLAG,                                        \
          &g.json, NULL, "print the answer and its figures as a JSON object",   \
          0,       0,    NULL,                                                  \
          false },                                                              \
        TR_SAMPLING_OPTIONS(g.sampling), TR_LENGTH_OPTIONS(g.sampling),         \
    {                                                                           \
        NULL, 0, TR_OPTION_GROUP, NULL, NULL, NULL, 0, 0, NULL, false           \
    }

static tr_option_t options[] = { TR_TARGET_OPTIONS(g.target), PROMPT_OPTIONS };

static tr_option_t run_options[] = {
    { "set", 0, TR_OPTION_LIST, &g.target.set, "KEY=VALUE",
      "an engine setting, may be repeated", 0, 0, NULL, false },
    { "verbose", 'v', TR_OPTION_FLAG, &g.target.verbose, NULL,
      "show the engine's log", 0, 0, NULL, false },
    PROMPT_OPTIONS
};

const tr_command_t tr_generate_command = {
    "tokenring generate [options] [PROMPT]",
    "Answers one prompt: the arguments, or standard input.  The answer "
    "streams\n"
    "to standard output; a line with token counts, time to first token and\n"
    "speed goes to standard error.",
    "  tokenring generate -m models/pocket 'Tell me a story about a fox.'\n"
    "  tokenring generate --engine build/run/engine.sock -t 0 Hello\n"
    "  tokenring generate --url http://127.0.0.1:8080 -n 200 < prompt.txt",
    options
};

const tr_command_t tr_run_command = {
    "tokenring run DIR [options] [PROMPT]",
    "Runs a model here, without a server: answers the prompt (arguments, or\n"
    "standard input), or chats when there is none on a terminal.",
    "  tokenring run models/pocket 'Tell me a story about a fox.'\n"
    "  tokenring run models/pocket --set kv_policy=diffkv < document.txt\n"
    "  tokenring run models/pocket",
    run_options
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
    tr_options_to_json(run_options, body);
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

/* What stands behind a streamed answer, or all of it as JSON. */
static void
show(const tr_client_t *client, const tr_answer_t *answer, tr_status_t rc)
{
    json_t *root;

    if (!g.json) {
        if (answer->len != 0 && answer->text[answer->len - 1] != '\n') {
            printf("\n");
        }
        fflush(stdout);
        if (rc == TR_OK && !g.quiet) {
            tr_answer_summary(answer);
        }
        return;
    }
    if (rc == TR_OK) {
        root = tr_answer_json(answer);
        json_object_set_new(root, "model", json_string(client->model));
        json_dumpf(root, stdout, JSON_COMPACT | JSON_REAL_PRECISION(7));
        putchar('\n');
        fflush(stdout);
        json_decref(root);
    }
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
        fprintf(stderr, "tokenring %s: the prompt is not valid UTF-8\n",
                g.name);
        return 1;
    }
    tr_interrupt_catch();
    rc = tr_client_open(&g.target, &tr_answer_events, &client, &err);
    if (rc == TR_OK) {
        rc = tr_answer_get(client,
                           g.raw ? TR_ENDPOINT_COMPLETIONS : TR_ENDPOINT_CHAT,
                           body, !g.json, &answer, &err);
        show(client, &answer, rc);
    }
    if (rc != TR_OK) {
        tr_wrap_print(stderr, "tokenring %s: %s\n", g.name, err.text);
    }
    tr_answer_free(&answer);
    json_decref(body);
    tr_client_close(client);
    if (rc == TR_OK && ferror(stdout)) {
        fprintf(stderr, "tokenring %s: cannot write the answer\n", g.name);
        return 1;
    }
    return rc != TR_OK ? 1 : answer.result.ok ? 0 : 130;
}

/* The prompt's text, given to the caller; NULL after saying why. */
static char *
find_prompt(const tr_command_t *c, char *words, size_t *len, int *status)
{
    char why[300], *text;
    int given = (g.prompt != NULL) + (g.file != NULL) + (words != NULL);

    *status = 2;
    if (given > 1) {
        tr_usage_error(c, "the prompt is given twice: once is enough");
        return NULL;
    }
    if (words != NULL || g.prompt != NULL) {
        text = strdup(words != NULL ? words : g.prompt);
        *len = text != NULL ? strlen(text) : 0;
        return text;
    }
    if (g.file == NULL && isatty(STDIN_FILENO)) {
        tr_usage_error(c, "what is the prompt? give it as an argument, with -f "
                          "FILE, or on standard input");
        return NULL;
    }
    text = tr_read_file(g.file != NULL ? g.file : "-", PROMPT_MAX, len, why,
                        sizeof(why));
    if (text == NULL) {
        fprintf(stderr, "tokenring %s: %s\n", g.name, why);
        *status = 1;
        return NULL;
    }
    if (g.file == NULL && *len != 0 && text[*len - 1] == '\n') {
        text[--*len] = '\0'; /* echo's, not the prompt's */
    }
    if (*len == 0) { /* what should have written it has failed, most likely */
        fprintf(stderr,
                "tokenring %s: the prompt is empty: there is nothing %s "
                "%s\n",
                g.name, g.file != NULL ? "in" : "on",
                g.file != NULL ? g.file : "standard input");
        free(text);
        *status = 1;
        return NULL;
    }
    return text;
}

static int
answer_prompt(const tr_command_t *c, char *words)
{
    size_t len = 0;
    char *text;
    int rc;

    if (g.raw && (g.chat || g.system != NULL)) {
        return tr_usage_error(c, "--raw does not go with %s",
                              g.chat ? "--chat" : "--system");
    }
    text = find_prompt(c, words, &len, &rc);
    if (text != NULL) {
        rc = generate(text, len);
    }
    free(text);
    return rc;
}

int
tr_cmd_generate(int argc, char **argv)
{
    char *words;
    int rc;

    if (tr_options_and_text(&tr_generate_command, argc, argv, &words, &rc)
        != 0) {
        return rc;
    }
    g.name = "generate";
    rc = tr_target_check(&g.target, &tr_generate_command);
    if (rc == 0) {
        rc = answer_prompt(&tr_generate_command, words);
    }
    free(words);
    return rc;
}

/* DIR comes first; what follows is as for generate, and without a prompt on a
 * terminal it is a chat. */
int
tr_cmd_run(int argc, char **argv)
{
    char *words;
    int rc;

    if (argc > 1 && argv[1][0] != '-') {
        g.target.dir = argv[1];
        argc--;
        argv++;
    }
    if (tr_options_and_text(&tr_run_command, argc, argv, &words, &rc) != 0) {
        return rc;
    }
    g.name = "run";
    if (g.target.dir == NULL) {
        rc = tr_usage_error(&tr_run_command, "which model? give its DIR first");
    } else if (words == NULL && g.prompt == NULL && g.file == NULL
               && isatty(STDIN_FILENO)) {
        rc = tr_chat_with(&g.target, &g.sampling, g.system, run_options);
    } else {
        rc = answer_prompt(&tr_run_command, words);
    }
    free(words);
    return rc;
}
