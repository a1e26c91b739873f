/*
 * A line from the user: edited and with a history on a terminal (libedit), as
 * it comes from a pipe.
 *
 * The history is kept in $XDG_STATE_HOME/tokenring/history (by default below
 * ~/.local/state), 1,000 lines, readable by the user alone; TOKENRING_HISTORY
 * names another file, and with it empty nothing is kept.
 */
#ifndef TR_LINE_H
#define TR_LINE_H

#include <stdbool.h>

typedef struct tr_line tr_line_t;

typedef enum {
    TR_LINE_TEXT,
    TR_LINE_CANCELLED, /* Ctrl-C: what was typed is void */
    TR_LINE_END
} tr_line_result_t;

/* program: of the editor's settings in ~/.editrc.  NULL: no memory. */
tr_line_t *tr_line_open(const char *program, bool terminal);
/* *out: the line without its newline, given to the caller.  prompt: shown on a
 * terminal; escape sequences in it stand between \1s. */
tr_line_result_t tr_line_read(tr_line_t *l, const char *prompt, char **out);
/* Puts a line into the history, for this session and later ones. */
void tr_line_remember(tr_line_t *l, const char *text);
void tr_line_close(tr_line_t *l);

#endif
