/*
 * What the terminal needs: Ctrl-C as an orderly end, and model output that
 * cannot send it commands.
 */
#ifndef TR_TERMINAL_H
#define TR_TERMINAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* How often SIGINT or SIGTERM came since the last reset.  The third one ends
 * the process at once. */
void tr_interrupt_catch(void);
int tr_interrupted(void);
void tr_interrupt_reset(void);

/* Writes text; to a terminal, control characters other than newline and tab
 * become U+FFFD.  tr_terminal_text flushes. */
void tr_terminal_write(FILE *f, const char *text, size_t len);
void tr_terminal_text(FILE *f, const char *text, size_t len);

/* Its columns, and at least 20; 0: it is no terminal, or does not say. */
unsigned tr_terminal_width(FILE *f);

/* May it be coloured?  A terminal, TERM is not dumb, and NO_COLOR not set. */
bool tr_terminal_colour(FILE *f);
/* Escape sequences, or "" where f may not be coloured. */
typedef enum { TR_STYLE_PLAIN, TR_STYLE_BOLD, TR_STYLE_DIM } tr_style_t;
const char *tr_terminal_style(FILE *f, tr_style_t style);

/* Reads a whole file ("-": standard input) of at most max bytes; given to the
 * caller, NUL-terminated.  NULL with the reason in why. */
char *tr_read_file(const char *path, size_t max, size_t *len, char *why,
                   size_t why_size);

#endif
