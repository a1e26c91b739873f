/*
 * The subcommands of `tokenring`, one a file.  Each takes its own argv (argv[0]
 * is the subcommand's name) and returns the exit status: 0 done, 1 it failed,
 * 2 wrong usage.
 */
#ifndef TR_CLI_H
#define TR_CLI_H

int tr_cmd_generate(int argc, char **argv);
int tr_cmd_chat(int argc, char **argv);
int tr_cmd_tokenize(int argc, char **argv);
int tr_cmd_stats(int argc, char **argv);
int tr_cmd_drain(int argc, char **argv);
int tr_cmd_bench(int argc, char **argv);
int tr_cmd_eval(int argc, char **argv);
int tr_cmd_calibrate(int argc, char **argv);

#endif
