/*
 * `tokenring`: the command line.  This file only finds the subcommand.
 */
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include <tokenring/version.h>

#include "cli.h"

#define ROW(name, help) { #name, tr_cmd_##name, help },

static const struct {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *help;
} commands[] = { TR_COMMANDS(ROW) };

#define N_COMMANDS (sizeof(commands) / sizeof(commands[0]))

static void
help(FILE *f)
{
    size_t i;

    fprintf(f, "Usage: tokenring COMMAND [options]\n\n"
               "LLM serving inside NGINX: the command line.\n\nCommands:\n");
    for (i = 0; i < N_COMMANDS; i++) {
        fprintf(f, "  %-10s %s\n", commands[i].name, commands[i].help);
    }
    fprintf(f, "\n`tokenring COMMAND --help` lists the options.  The engine is "
               "tokenring-engine.\n");
}

int
main(int argc, char **argv)
{
    size_t i;

    signal(SIGPIPE, SIG_IGN);
    if (argc < 2) {
        help(stderr);
        return 2;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0
        || strcmp(argv[1], "help") == 0) {
        help(stdout);
        return 0;
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("tokenring %s\n", TR_VERSION);
        return 0;
    }
    for (i = 0; i < N_COMMANDS; i++) {
        if (strcmp(argv[1], commands[i].name) == 0) {
            return commands[i].run(argc - 1, argv + 1);
        }
    }
    fprintf(stderr, "tokenring: unknown command \"%s\"\n\n", argv[1]);
    help(stderr);
    return 2;
}
