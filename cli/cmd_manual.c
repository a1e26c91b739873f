/*
 * tokenring man and tokenring completion: what `make install` puts in place.
 */
#include <stdio.h>

#include "cli.h"
#include "manual.h"

#define ROW(name, help) { #name, help, &tr_##name##_command },

static tr_option_t none[] = { { NULL, 0, TR_OPTION_GROUP, NULL, NULL, NULL, 0,
                                0, NULL, false } };

const tr_command_t tr_man_command = { "tokenring man [COMMAND]",
                                      "Prints a manual page, of tokenring or "
                                      "of one of its commands.",
                                      "  tokenring man chat | man -l -", none };

const tr_command_t tr_completion_command = {
    "tokenring completion bash|zsh|fish",
    "Prints a script that has a shell complete commands and options.",
    "  source <(tokenring completion bash)", none
};

static const tr_manual_row_t rows[] = { TR_COMMANDS(ROW) };

#define N_ROWS (sizeof(rows) / sizeof(rows[0]))

/* The operand, NULL for none; false: *status is the exit status. */
static bool
operand(const tr_command_t *c, int argc, char **argv, const char **out,
        int *status)
{
    int at = tr_options_parse(c, argc, argv);

    *out = at >= 0 && at < argc ? argv[at] : NULL;
    *status = at == TR_OPTIONS_HELP ? 0 : 2;
    if (at >= 0 && at + 1 < argc) {
        tr_usage_error(c, "unexpected argument \"%s\"", argv[at + 1]);
        return false;
    }
    return at >= 0;
}

int
tr_cmd_man(int argc, char **argv)
{
    const char *name;
    int status;

    if (!operand(&tr_man_command, argc, argv, &name, &status)) {
        return status;
    }
    return tr_manual_print(rows, N_ROWS, name) == 0
               ? 0
               : tr_usage_error(&tr_man_command, "unknown command \"%s\"",
                                name);
}

int
tr_cmd_completion(int argc, char **argv)
{
    const char *shell;
    int status;

    if (!operand(&tr_completion_command, argc, argv, &shell, &status)) {
        return status;
    }
    if (shell == NULL || tr_completion_print(rows, N_ROWS, shell) != 0) {
        return tr_usage_error(&tr_completion_command,
                              "which shell? bash, zsh or fish");
    }
    return 0;
}
