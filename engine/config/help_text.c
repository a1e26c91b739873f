/*
 * Text of --help, wrapped (help_text.h).
 */
#include "help_text.h"

#include <string.h>

#define COLUMNS 79

void
tr_help_text(FILE *f, int indent, const char *text)
{
    int column = indent;

    for (const char *word = text; *word != '\0';) {
        int n = (int) strcspn(word, " ");

        if (word != text && column + 1 + n > COLUMNS) {
            fprintf(f, "\n%*s", indent, "");
            column = indent;
        } else if (word != text) {
            fputc(' ', f);
            column++;
        }
        fprintf(f, "%.*s", n, word);
        column += n;
        word += n;
        word += *word == ' ';
    }
    fputc('\n', f);
}
