/*
 * Text that streams to a terminal without breaking words at its edge.
 *
 * Words are held back until they are complete, which is when the next blank
 * comes: with most tokenizers one token later.  A word that would pass the edge
 * begins a new line, in place of the blank before it; one that is longer than a
 * line is left to the terminal.  Widths are those of the characters (two
 * columns for most of CJK).
 *
 * Width 0 wraps nothing: for pipes and files.  Control characters of the text
 * never reach a terminal (terminal.h).
 */
#ifndef TR_WRAP_H
#define TR_WRAP_H

#include <stddef.h>
#include <stdio.h>

#define TR_WRAP_WORD 1024u

typedef struct {
    FILE *f;
    unsigned width;  /* columns; 0: as it comes */
    unsigned column; /* of what was written */
    char word[TR_WRAP_WORD];
    size_t len;     /* bytes of the word that is held back */
    unsigned blank; /* blanks before it, not yet written */
} tr_wrap_t;

void tr_wrap_init(tr_wrap_t *w, FILE *f, unsigned width);
/* Whole UTF-8 characters.  Flushes. */
void tr_wrap_text(tr_wrap_t *w, const char *text, size_t len);
/* Writes what is held back. */
void tr_wrap_end(tr_wrap_t *w);

/* What the program itself says, at the width of f; up to 2,047 bytes. */
void tr_wrap_print(FILE *f, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

#endif
