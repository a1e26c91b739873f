/*
 * Text of --help, in lines of at most 79 columns.
 */
#ifndef TR_HELP_TEXT_H
#define TR_HELP_TEXT_H

#include <stdio.h>

/* Prints text from where the line stands, at `indent`, and begins further lines
 * there, too.  Breaks at blanks; a longer word has a line of its own. */
void tr_help_text(FILE *f, int indent, const char *text);

#endif
