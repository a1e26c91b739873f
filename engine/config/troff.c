/*
 * Writing man(7) (troff.h).
 */
#include "troff.h"

#include <ctype.h>
#include <string.h>

#include <tokenring/version.h>

/* Characters that troff would take for its own: a backslash, a hyphen that is a
 * minus, and a full stop or an apostrophe at the beginning of a line. */
static void
escape(FILE *f, const char *text, size_t n, int line_start)
{
    for (size_t i = 0; i < n; i++) {
        if (line_start && (text[i] == '.' || text[i] == '\'')) {
            fputs("\\&", f);
        }
        line_start = text[i] == '\n';
        if (text[i] == '\\') {
            fputs("\\e", f);
        } else if (text[i] == '-') {
            fputs("\\-", f);
        } else {
            fputc(text[i], f);
        }
    }
}

void
tr_troff_begin(FILE *f, const char *name, int section, const char *what)
{
    fputs(".TH \"", f);
    for (const char *p = name; *p != '\0'; p++) {
        fputc(toupper((unsigned char) *p), f);
    }
    fprintf(f, "\" %d \"\" \"Tokenring %s\" \"Tokenring\"\n", section,
            TR_VERSION);
    fputs(".SH NAME\n", f);
    escape(f, name, strlen(name), 1);
    fputs(" \\- ", f);
    escape(f, what, strlen(what), 0);
    fputc('\n', f);
}

void
tr_troff_section(FILE *f, const char *title)
{
    fputs(".SH \"", f);
    for (const char *p = title; *p != '\0'; p++) {
        fputc(toupper((unsigned char) *p), f);
    }
    fputs("\"\n", f);
}

void
tr_troff_text(FILE *f, const char *text)
{
    while (*text != '\0') {
        size_t n = strcspn(text, "\n");

        if (n == 0) {
            fputs(".PP", f);
        }
        escape(f, text, n, 1);
        fputc('\n', f);
        text += n + (text[n] == '\n');
    }
}

void
tr_troff_entry(FILE *f, const char *term, const char *takes, const char *text)
{
    fputs(".TP\n\\fB", f);
    escape(f, term, strlen(term), 0);
    fputs("\\fR", f);
    if (takes != NULL) {
        fputs(" \\fI", f);
        escape(f, takes, strlen(takes), 0);
        fputs("\\fR", f);
    }
    fputc('\n', f);
    tr_troff_text(f, text);
}

void
tr_troff_lines(FILE *f, const char *text)
{
    fputs(".nf\n", f);
    escape(f, text, strlen(text), 1);
    fputs("\n.fi\n", f);
}
