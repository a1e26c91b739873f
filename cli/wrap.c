/*
 * Wrapping words as they stream (wrap.h).
 */
#include "wrap.h"

#include <stdarg.h>
#include <stdint.h>
#include <string.h>
#include <wchar.h>

#include "terminal.h"

void
tr_wrap_init(tr_wrap_t *w, FILE *f, unsigned width)
{
    *w = (tr_wrap_t){ .f = f, .width = width };
}

/* The character at text[0..len); its bytes in *n. */
static uint32_t
character(const char *text, size_t len, size_t *n)
{
    const unsigned char *p = (const unsigned char *) text;
    size_t more = p[0] >= 0xf0 ? 3 : p[0] >= 0xe0 ? 2 : p[0] >= 0xc0 ? 1 : 0;
    uint32_t c = more == 0 ? p[0] : p[0] & (0x3fu >> more);

    if (more + 1 > len) {
        *n = len;
        return 0xfffd;
    }
    for (size_t i = 1; i <= more; i++) {
        c = c << 6 | (p[i] & 0x3fu);
    }
    *n = more + 1;
    return c;
}

static unsigned
columns(const char *text, size_t len)
{
    unsigned sum = 0;

    for (size_t at = 0, n; at < len; at += n) {
        int width = wcwidth((wchar_t) character(text + at, len - at, &n));

        sum += width < 0 ? 1 : (unsigned) width;
    }
    return sum;
}

static void
write_word(tr_wrap_t *w)
{
    unsigned width = columns(w->word, w->len);

    if (w->blank != 0 && w->column + w->blank + width > w->width
        && w->column != 0) {
        fputc('\n', w->f);
        w->column = 0;
    } else {
        for (unsigned i = 0; i < w->blank; i++) {
            fputc(' ', w->f);
        }
        w->column += w->blank;
    }
    tr_terminal_write(w->f, w->word, w->len);
    w->column += width;
    if (w->column > w->width) { /* the terminal went on by itself */
        w->column = (w->column - 1) % w->width + 1;
    }
    w->blank = 0;
    w->len = 0;
}

void
tr_wrap_text(tr_wrap_t *w, const char *text, size_t len)
{
    if (w->width == 0) {
        tr_terminal_text(w->f, text, len);
        return;
    }
    for (size_t i = 0; i < len; i++) {
        char c = text[i];

        if (c != ' ' && c != '\n') {
            if (w->len == sizeof(w->word)) {
                write_word(w);
            }
            w->word[w->len++] = c;
            continue;
        }
        if (w->len != 0) {
            write_word(w);
        }
        if (c == ' ') {
            w->blank++;
        } else {
            fputc('\n', w->f); /* blanks at the end of a line are dropped */
            w->column = w->blank = 0;
        }
    }
    fflush(w->f);
}

void
tr_wrap_end(tr_wrap_t *w)
{
    if (w->len != 0) {
        write_word(w);
    }
    fflush(w->f);
}

void
tr_wrap_print(FILE *f, const char *format, ...)
{
    char text[2048];
    tr_wrap_t w;
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    tr_wrap_init(&w, f, tr_terminal_width(f));
    tr_wrap_text(&w, text, strlen(text));
    tr_wrap_end(&w);
}
