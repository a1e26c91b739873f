/*
 * tokenring chat: a conversation, turn by turn.  On a terminal it prompts; fed
 * from a pipe every line is one turn and only answers are printed.
 */
#include <errno.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "answer.h"
#include "chat.h"
#include "cli.h"
#include "client.h"
#include "line.h"
#include "sampling_options.h"
#include "terminal.h"
#include "wrap.h"

static struct {
    tr_target_t target;
    tr_sampling_options_t sampling;
    const char *system;
    char *own_system; /* set by /system */
    char policy[256]; /* set by /policy; "": the engine's */
    bool quiet, json, terminal, over;
    const tr_option_t *given; /* options that go into requests */
    tr_client_t *client;
    tr_line_t *line;
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
    { "json", 0, TR_OPTION_FLAG, &g.json, NULL,
      "print each answer as a JSON object in a line", 0, 0, NULL, false },
    TR_SAMPLING_OPTIONS(g.sampling),
    TR_LENGTH_OPTIONS(g.sampling),
    { NULL, 0, TR_OPTION_GROUP, NULL, NULL, NULL, 0, 0, NULL, false }
};

const tr_command_t tr_chat_command = {
    "tokenring chat [options] [-m DIR | --engine SOCKET | --url URL]",
    "Talks to a model.  Every line is one turn; a line that ends in \\ goes\n"
    "on in the next one.  On a terminal, lines are edited, and the arrows "
    "find\n"
    "earlier ones.  /help lists commands, Ctrl-C stops an answer, Ctrl-D ends.",
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

/* One line, joined with the next while it ends in a backslash. */
static tr_line_result_t
read_turn(char **out)
{
    static const char *const prompts[] = { "> ", "| " };
    static const char *const coloured[] = { "\1\033[1m\1>\1\033[0m\1 ",
                                            "\1\033[1m\1|\1\033[0m\1 " };
    const char *const *show = tr_terminal_colour(stdout) ? coloured : prompts;
    char *turn = NULL, *line;
    size_t len = 0;
    tr_line_result_t rc;
    bool more = true;

    for (int i = 0; more; i = 1) {
        size_t n;
        char *grown;

        rc = tr_line_read(g.line, show[i], &line);
        if (rc != TR_LINE_TEXT) {
            /* what an unfinished last line said is said */
            *out = rc == TR_LINE_END && i == 1 ? turn : NULL;
            if (*out == NULL) {
                free(turn);
                return rc;
            }
            return TR_LINE_TEXT;
        }
        n = strlen(line);
        more = n > 0 && line[n - 1] == '\\';
        grown = realloc(turn, len + n + 2);
        if (grown == NULL) {
            free(line);
            break;
        }
        turn = grown;
        memcpy(turn + len, line, n + 1);
        len += n;
        if (more) {
            turn[len - 1] = '\n';
        }
        free(line);
    }
    *out = turn;
    return turn != NULL ? TR_LINE_TEXT : TR_LINE_END;
}

static void
show_figures(const tr_answer_t *answer)
{
    json_t *root;

    if (g.json) {
        root = tr_answer_json(answer);
        json_dumpf(root, stdout, JSON_COMPACT | JSON_REAL_PRECISION(7));
        putchar('\n');
        fflush(stdout);
        json_decref(root);
    } else if (!g.quiet && g.terminal) {
        tr_answer_summary(answer);
    }
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
    tr_options_to_json(g.given, body);
    if (g.policy[0] != '\0') {
        json_object_set_new(body, "kv_policy", json_string(g.policy));
    }
    rc = tr_answer_get(g.client, TR_ENDPOINT_CHAT, body, !g.json, &answer,
                       &err);
    json_decref(body);
    if (!g.json && answer.len != 0 && answer.text[answer.len - 1] != '\n') {
        printf("\n");
    }
    fflush(stdout);
    if (rc == TR_OK) {
        /* what was said stays said, also when it was cut short */
        say("assistant", answer.len != 0 ? answer.text : "", answer.len);
        show_figures(&answer);
    } else {
        tr_wrap_print(stderr, "tokenring chat: %s\n", err.text);
        while (json_array_size(g.messages) > before) {
            json_array_remove(g.messages, json_array_size(g.messages) - 1);
        }
    }
    tr_answer_free(&answer);
    return rc != TR_OK && (!g.terminal || rc == TR_ERR_CLOSED);
}

/* ---- commands ----------------------------------------------------------- */

static void say_help(const char *rest);

static void
start_over(const char *rest)
{
    (void) rest;
    reset();
    fprintf(stderr, "A new conversation.\n");
}

static void
set_system(const char *rest)
{
    json_t *text = json_string(rest);

    if (text == NULL) {
        fprintf(stderr, "/system: the text is not valid UTF-8\n");
        return;
    }
    json_decref(text);
    free(g.own_system);
    g.own_system = rest[0] != '\0' ? strdup(rest) : NULL;
    g.system = g.own_system;
    start_over(rest);
}

static void
set_policy(const char *rest)
{
    if (strlen(rest) >= sizeof(g.policy)) {
        fprintf(stderr, "/policy: expected up to %zu bytes\n",
                sizeof(g.policy) - 1);
        return;
    }
    memcpy(g.policy, rest, strlen(rest) + 1);
    fprintf(stderr, "KV policy of the next answers: %s\n",
            rest[0] != '\0' ? rest : "the engine's own");
}

static void
leave(const char *rest)
{
    (void) rest;
    g.over = true;
}

static const struct {
    const char *name, *argument, *help;
    void (*run)(const char *rest);
} commands[] = {
    { "/help", "", "this list", say_help },
    { "/reset", "", "start over", start_over },
    { "/system", " [TEXT]", "another system message, or none; starts over",
      set_system },
    { "/policy", " [NAME]", "another KV policy, as far as the engine allows",
      set_policy },
    { "/quit", "", "end, as Ctrl-D does", leave },
};

#define N_COMMANDS (sizeof(commands) / sizeof(commands[0]))

static void
say_help(const char *rest)
{
    (void) rest;
    for (size_t i = 0; i < N_COMMANDS; i++) {
        fprintf(stderr, "  %s%-*s %s\n", commands[i].name,
                (int) (16 - strlen(commands[i].name)), commands[i].argument,
                commands[i].help);
    }
    fprintf(stderr, "  //...            send a line that begins with one /\n");
}

/* A line that begins with a slash, behind blanks or not; it never goes to the
 * model. */
static void
run_command(const char *text)
{
    size_t n = strcspn(text, " \t\n");
    const char *rest = text + n + strspn(text + n, " \t");

    for (size_t i = 0; i < N_COMMANDS; i++) {
        if (strlen(commands[i].name) == n
            && memcmp(commands[i].name, text, n) == 0) {
            commands[i].run(rest);
            return;
        }
    }
    tr_wrap_print(stderr,
                  "unknown command %.*s: /help lists them, // begins a line "
                  "that is sent\n",
                  n > 32 ? 32 : (int) n, text);
}

/* ---- the conversation --------------------------------------------------- */

static int
converse(void)
{
    int rc = reset();

    if (rc != 0) {
        fprintf(stderr, "tokenring chat: --system is not valid UTF-8\n");
        return 1;
    }
    if (g.terminal) {
        tr_wrap_print(stderr, "%s (%s).  /help lists commands, /quit ends.\n",
                      g.client->model, g.client->where);
    }
    while (rc == 0 && !g.over) {
        char *text;
        const char *line;
        tr_line_result_t got;

        tr_interrupt_reset();
        got = read_turn(&text);
        if (got == TR_LINE_END) {
            break;
        }
        if (got == TR_LINE_CANCELLED || text[0] == '\0') {
            free(text);
            continue;
        }
        tr_line_remember(g.line, text);
        line = text + strspn(text, " \t");
        if (line[0] == '/' && line[1] != '/') {
            run_command(line);
        } else {
            rc = turn(line[0] == '/' ? line + 1 : text);
        }
        free(text);
    }
    if (g.terminal && !g.over) {
        fprintf(stderr, "\n");
    }
    return rc;
}

static int
chat(void)
{
    tr_error_t err = { 0 };
    int rc;

    g.terminal = isatty(STDIN_FILENO) && isatty(STDOUT_FILENO);
    setlocale(LC_CTYPE, "C.UTF-8"); /* how wide a character is */
    tr_interrupt_catch();
    if (tr_client_open(&g.target, &tr_answer_events, &g.client, &err)
        != TR_OK) {
        fprintf(stderr, "tokenring chat: %s\n", err.text);
        return 1;
    }
    g.messages = json_array();
    g.line = tr_line_open("tokenring", g.terminal);
    if (g.messages == NULL || g.line == NULL) {
        fprintf(stderr, "tokenring chat: out of memory\n");
        rc = 1;
    } else {
        rc = converse();
    }
    tr_line_close(g.line);
    json_decref(g.messages);
    tr_client_close(g.client);
    free(g.own_system);
    return rc;
}

int
tr_chat_with(const tr_target_t *target, const tr_sampling_options_t *sampling,
             const char *system, const tr_option_t *given)
{
    g.target = *target;
    g.sampling = *sampling;
    g.system = system;
    g.given = given;
    return chat();
}

int
tr_cmd_chat(int argc, char **argv)
{
    int rc;

    if (tr_options_only(&tr_chat_command, argc, argv, &rc) != 0
        || (rc = tr_target_check(&g.target, &tr_chat_command)) != 0) {
        return rc;
    }
    g.given = options;
    return chat();
}
