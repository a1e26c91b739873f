/*
 * Signals, terminal output, small files (terminal.h).
 */
#include "terminal.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

static volatile sig_atomic_t interrupts;

static void
on_signal(int number)
{
    if (++interrupts >= 3) {
        _exit(128 + number);
    }
}

void
tr_interrupt_catch(void)
{
    struct sigaction sa = { .sa_handler = on_signal };

    /* no SA_RESTART: a read of the terminal ends too */
    sigaction(SIGINT, &sa, NULL);
    sigaction(SIGTERM, &sa, NULL);
}

int
tr_interrupted(void)
{
    return interrupts;
}

void
tr_interrupt_reset(void)
{
    interrupts = 0;
}

void
tr_terminal_text(FILE *f, const char *text, size_t len)
{
    tr_terminal_write(f, text, len);
    fflush(f);
}

unsigned
tr_terminal_width(FILE *f)
{
    struct winsize size;

    if (!isatty(fileno(f)) || ioctl(fileno(f), TIOCGWINSZ, &size) != 0
        || size.ws_col == 0) {
        return 0;
    }
    return size.ws_col < 20 ? 20 : size.ws_col;
}

bool
tr_terminal_colour(FILE *f)
{
    const char *no = getenv("NO_COLOR"), *term = getenv("TERM");

    return isatty(fileno(f)) && (no == NULL || no[0] == '\0') && term != NULL
           && strcmp(term, "dumb") != 0;
}

const char *
tr_terminal_style(FILE *f, tr_style_t style)
{
    static const char *const sequences[] = { "\033[0m", "\033[1m", "\033[2m" };

    return tr_terminal_colour(f) ? sequences[style] : "";
}

void
tr_terminal_write(FILE *f, const char *text, size_t len)
{
    size_t i, start = 0;

    if (isatty(fileno(f))) {
        for (i = 0; i < len; i++) {
            unsigned char c = (unsigned char) text[i];

            /* C0 and DEL; C1 controls are c2 80 .. c2 9f in UTF-8 */
            if ((c < 0x20 && c != '\n' && c != '\t') || c == 0x7f) {
                fwrite(text + start, 1, i - start, f);
                fputs("\xef\xbf\xbd", f);
                start = i + 1;
            } else if (c == 0xc2 && i + 1 < len
                       && (unsigned char) text[i + 1] < 0xa0) {
                fwrite(text + start, 1, i - start, f);
                fputs("\xef\xbf\xbd", f);
                start = i + 2;
                i++;
            }
        }
    }
    fwrite(text + start, 1, len - start, f);
}

char *
tr_read_file(const char *path, size_t max, size_t *len, char *why,
             size_t why_size)
{
    FILE *f = strcmp(path, "-") == 0 ? stdin : fopen(path, "re");
    char *text = NULL, *grown;
    size_t cap = 4096, n = 0, k = 1;

    if (f == NULL) {
        snprintf(why, why_size, "cannot open %s: %s", path, strerror(errno));
        return NULL;
    }
    why[0] = '\0';
    while (k != 0 && why[0] == '\0') {
        grown = realloc(text, cap + 1);
        if (grown == NULL) {
            snprintf(why, why_size, "%s: out of memory", path);
            break;
        }
        text = grown;
        k = fread(text + n, 1, cap - n, f);
        n += k;
        cap = n == cap ? cap * 2 : cap;
        if (n > max) {
            snprintf(why, why_size, "%s has more than %zu bytes", path, max);
        }
    }
    if (why[0] == '\0' && ferror(f)) {
        snprintf(why, why_size, "cannot read %s: %s", path, strerror(errno));
    }
    if (f != stdin) {
        fclose(f);
    }
    if (why[0] != '\0') {
        free(text);
        return NULL;
    }
    text[n] = '\0';
    *len = n;
    return text;
}
