/*
 * The subcommands of `tokenring`, one a file.  Each takes its own argv (argv[0]
 * is the subcommand's name) and returns the exit status: 0 done, 1 it failed,
 * 2 wrong usage.
 *
 * TR_COMMANDS is the one table of them: main.c finds a command in it, and the
 * manual and shell completion are written from it (manual.c).  X(name, what it
 * does, in a few words); its options are tr_NAME_command.
 */
#ifndef TR_CLI_H
#define TR_CLI_H

#include "options.h"

#define TR_COMMANDS(X)                                                 \
    X(run, "run a model here: prompt in, answer out")                  \
    X(serve, "serve a model: an engine and an NGINX, one command")     \
    X(supervise, "start engines when they are needed")                 \
    X(generate, "answer one prompt, streaming")                        \
    X(chat, "talk to a model, turn by turn")                           \
    X(stats, "watch a running engine")                                 \
    X(drain, "take an engine out of service without losing a request") \
    X(bench, "measure latency and throughput")                         \
    X(eval, "compare KV policies on cases with answers")               \
    X(calibrate, "find settings for a KV policy")                      \
    X(tokenize, "text to token ids, and back")                         \
    X(man, "print a manual page")                                      \
    X(completion, "print completion for a shell")

#define TR_COMMAND_DECLARE(name, help)        \
    int tr_cmd_##name(int argc, char **argv); \
    extern const tr_command_t tr_##name##_command;

TR_COMMANDS(TR_COMMAND_DECLARE)

#endif
