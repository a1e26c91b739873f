/*
 * Manual pages: the few man(7) requests that ours need, and text that stays
 * text within them.
 */
#ifndef TR_TROFF_H
#define TR_TROFF_H

#include <stddef.h>
#include <stdio.h>

/* .TH and NAME: "tokenring-run", 1, "what it does". */
void tr_troff_begin(FILE *f, const char *name, int section, const char *what);
void tr_troff_section(FILE *f, const char *title);
/* Text with newlines where they come; an empty line begins a paragraph. */
void tr_troff_text(FILE *f, const char *text);
/* One entry of a list: its term in bold, what it takes in italics (NULL:
 * nothing), and a text. */
void tr_troff_entry(FILE *f, const char *term, const char *takes,
                    const char *text);
/* Lines as they are. */
void tr_troff_lines(FILE *f, const char *text);

#endif
