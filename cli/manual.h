/*
 * The manual pages and the shell completion of `tokenring`, written from the
 * tables that the commands are parsed by, so that they cannot say anything
 * else.
 */
#ifndef TR_MANUAL_H
#define TR_MANUAL_H

#include <stddef.h>

#include "options.h"

typedef struct {
    const char *name, *help;
    const tr_command_t *command;
} tr_manual_row_t;

/* tokenring(1), or tokenring-NAME(1); false: no such command. */
int tr_manual_print(const tr_manual_row_t *rows, size_t n, const char *name);

/* For "bash", "zsh" or "fish"; 0, or no such shell. */
int tr_completion_print(const tr_manual_row_t *rows, size_t n,
                        const char *shell);

#endif
