/*
 * tokenring chat: a conversation, turn by turn.  On a terminal it prompts; fed
 * from a pipe every line is one turn and only answers are printed.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "answer.h"
#include "cli.h"
#include "client.h"
#include "sampling_options.h"
#include "terminal.h"

static struct {
    tr_target_t target;
    tr_sampling_options_t sampling;
    const char *system;
    bool quiet, terminal;
    tr_client_t *client;
    json_t *messages;
} g;

static tr_option_t options[] = {
    TR_TARGET_OPTIONS(g.target),
    { "The conversation", 0, TR_OPTION_GROUP, NULL, NULL, NULL, 0, 0, NULL,
      false },
    { "system", 0, TR_OPTION_TEXT, &g.system, "TEXT",
      "a system message at the beginning", 0, 0, NULL, false },
    { "quiet", 'q', TR_OPTION_FLAG, &g.quiet, NULL,
      "do not print figures after an answer", 0, 0, NULL, false },
    TR_SAMPLING_OPTIONS(g.sampling),
    TR_LENGTH_OPTIONS(g.sampling),
    { NULL, 0, TR_OPTION_GROUP, NULL, NULL, NULL, 0, 0, NULL, false }
};

static const tr_command_t command = {
    "tokenring chat [options] -m DIR | --engine SOCKET | --url URL",
    "Talks to a model.  Every line is one turn; a line that ends in \\ goes\n"
    "on in the next one.  /reset starts over, /quit (or Ctrl-D) ends, Ctrl-C\n"
    "stops an answer.",
    "  tokenring chat -m models/pocket\n"
    "  tokenring chat --url http://127.0.0.1:8080 --system 'Be brief.'",
    options
};

/* Appends a message; -1 when the text is not UTF-8. */
static int
say(const char *role, const char *text, size_t len)
{
    json_t *content = json_stringn(text, len);

    if (content == NULL) {
        return -1;
    }
    return json_array_append_new(g.messages,
                                 json_pack("{s:s, s:o}", "role", role,
                                           "content", content));
}

static int
reset(void)
{
    json_array_clear(g.messages);
    return g.system != NULL ? say("system", g.system, strlen(g.system)) : 0;
}

/* One line without its newline, joined with the next while it ends in a
 * backslash.  NULL at the end of input. */
static char *
read_turn(void)
{
    char *line = NULL, *turn = NULL;
    size_t cap = 0, len = 0;
    ssize_t n;

    if (g.terminal) {
        fprintf(stderr, "> ");
    }
    while ((n = getline(&line, &cap, stdin)) != -1) {
        bool more;
        char *grown;

        if (n > 0 && line[n - 1] == '\n') {
            line[--n] = '\0';
        }
        more = n > 0 && line[n - 1] == '\\';
        grown = realloc(turn, len + (size_t) n + 2);
        if (grown == NULL) {
            break;
        }
        turn = grown;
        memcpy(turn + len, line, (size_t) n + 1);
        len += (size_t) n;
        if (!more) {
            break;
        }
        turn[len - 1] = '\n';
        if (g.terminal) {
            fprintf(stderr, "| ");
        }
    }
    free(line);
    return turn;
}

/* One turn: 0, 1 the engine has gone. */
static int
turn(const char *text)
{
    json_t *body;
    tr_answer_t answer;
    tr_error_t err = { 0 };
    tr_status_t rc;
    size_t before = json_array_size(g.messages);

    if (say("user", text, strlen(text)) != 0) {
        fprintf(stderr, "tokenring chat: that line is not valid UTF-8\n");
        return g.terminal ? 0 : 1;
    }
    body = json_pack("{s:O}", "messages", g.messages);
    tr_options_to_json(options, body);
    rc = tr_answer_get(g.client, TR_ENDPOINT_CHAT, body, &answer, &err);
    json_decref(body);
    if (answer.len != 0 && answer.text[answer.len - 1] != '\n') {
        printf("\n");
    }
    fflush(stdout);
    if (rc == TR_OK) {
        /* what was said stays said, also when it was cut short */
        say("assistant", answer.len != 0 ? answer.text : "", answer.len);
        if (!g.quiet && g.terminal) {
            tr_answer_summary(&answer);
        }
    } else {
        fprintf(stderr, "tokenring chat: %s\n", err.text);
        while (json_array_size(g.messages) > before) {
            json_array_remove(g.messages, json_array_size(g.messages) - 1);
        }
    }
    tr_answer_free(&answer);
    return rc != TR_OK && (!g.terminal || rc == TR_ERR_CLOSED);
}

static int
converse(void)
{
    int rc = reset();

    if (rc != 0) {
        fprintf(stderr, "tokenring chat: --system is not valid UTF-8\n");
        return 1;
    }
    if (g.terminal) {
        fprintf(stderr, "%s (%s).  /reset starts over, /quit ends.\n",
                g.client->model, g.client->where);
    }
    while (rc == 0) {
        char *text;

        tr_interrupt_reset();
        text = read_turn();
        if (text == NULL || strcmp(text, "/quit") == 0) {
            free(text);
            break;
        }
        if (strcmp(text, "/reset") == 0) {
            reset();
        } else if (text[0] == '/' && g.terminal) {
            fprintf(stderr, "/reset starts over, /quit ends\n");
        } else if (text[0] != '\0') {
            rc = turn(text);
        }
        free(text);
    }
    if (g.terminal) {
        fprintf(stderr, "\n");
    }
    return rc;
}

int
tr_cmd_chat(int argc, char **argv)
{
    tr_error_t err = { 0 };
    int rc;

    if (tr_options_only(&command, argc, argv, &rc) != 0
        || (rc = tr_target_check(&g.target, &command)) != 0) {
        return rc;
    }
    g.terminal = isatty(STDIN_FILENO) && isatty(STDOUT_FILENO);
    tr_interrupt_catch();
    if (tr_client_open(&g.target, &tr_answer_events, &g.client, &err)
        != TR_OK) {
        fprintf(stderr, "tokenring chat: %s\n", err.text);
        return 1;
    }
    g.messages = json_array();
    rc = converse();
    json_decref(g.messages);
    tr_client_close(g.client);
    return rc;
}
