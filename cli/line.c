/*
 * Lines by libedit, or by getline (line.h).
 *
 * Ctrl-C is a key here, not a signal: libedit would begin its read anew and
 * keep what was typed.  While an answer streams it is a signal again, since
 * libedit sets the terminal back after each line.
 */
#include "line.h"

#include <errno.h>
#include <histedit.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "terminal.h"

#define HISTORY_LINES 1000
#define PATH_BYTES 512

struct tr_line {
    EditLine *el; /* NULL: a pipe */
    History *history;
    const char *prompt;
    bool cancelled;
    char file[PATH_BYTES]; /* "": the history is not kept */
};

/* ---- the history's file ------------------------------------------------- */

/* Makes the directories of a path that are not there. */
static void
make_parents(char *path)
{
    for (char *at = strchr(path + 1, '/'); at != NULL;
         at = strchr(at + 1, '/')) {
        *at = '\0';
        mkdir(path, 0700);
        *at = '/';
    }
}

static void
find_file(tr_line_t *l)
{
    const char *own = getenv("TOKENRING_HISTORY");
    const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    int n = 0;

    if (own != NULL) {
        n = snprintf(l->file, sizeof(l->file), "%s", own);
    } else if (state != NULL && state[0] == '/') {
        n = snprintf(l->file, sizeof(l->file), "%s/tokenring/history", state);
    } else if (home != NULL && home[0] == '/') {
        n = snprintf(l->file, sizeof(l->file),
                     "%s/.local/state/tokenring/history", home);
    }
    if (n >= (int) sizeof(l->file)) {
        l->file[0] = '\0';
    }
}

/* ---- open and close ----------------------------------------------------- */

static tr_line_t *
of(EditLine *el)
{
    void *l = NULL;

    el_get(el, EL_CLIENTDATA, &l);
    return l;
}

static char *
prompt_of(EditLine *el)
{
    return (char *) (uintptr_t) of(el)->prompt;
}

static unsigned char
on_cancel(EditLine *el, int key)
{
    (void) key;
    of(el)->cancelled = true;
    return CC_NEWLINE;
}

static bool
open_editor(tr_line_t *l, const char *program)
{
    HistEvent event;

    l->el = el_init(program, stdin, stdout, stderr);
    l->history = history_init();
    if (l->el == NULL || l->history == NULL) {
        return false;
    }
    history(l->history, &event, H_SETSIZE, HISTORY_LINES);
    history(l->history, &event, H_SETUNIQUE, 1);
    el_set(l->el, EL_CLIENTDATA, l);
    el_set(l->el, EL_PROMPT_ESC, prompt_of, '\1');
    el_set(l->el, EL_EDITOR, "emacs");
    el_set(l->el, EL_HIST, history, l->history);
    el_set(l->el, EL_SETTY, "-d", "-isig", NULL);
    /* el_set copies both names, and nobody frees them. */
    el_wset(l->el, EL_ADDFN, L"tokenring-cancel", L"forget this line",
            on_cancel);
    el_set(l->el, EL_BIND, "^C", "tokenring-cancel", NULL);
    el_set(l->el, EL_BIND, "^R", "em-inc-search-prev", NULL);
    el_source(l->el, NULL);
    find_file(l);
    if (l->file[0] != '\0') {
        history(l->history, &event, H_LOAD, l->file);
    }
    return true;
}

tr_line_t *
tr_line_open(const char *program, bool terminal)
{
    tr_line_t *l = calloc(1, sizeof(*l));

    if (l != NULL && terminal && !open_editor(l, program)) {
        tr_line_close(l);
        return NULL;
    }
    return l;
}

void
tr_line_close(tr_line_t *l)
{
    if (l == NULL) {
        return;
    }
    if (l->el != NULL) {
        el_end(l->el);
    }
    if (l->history != NULL) {
        history_end(l->history);
    }
    free(l);
}

/* ---- lines -------------------------------------------------------------- */

static tr_line_result_t
finish(char *line, size_t n, char **out)
{
    while (n > 0 && (line[n - 1] == '\n' || line[n - 1] == '\r')) {
        line[--n] = '\0';
    }
    *out = line;
    return TR_LINE_TEXT;
}

tr_line_result_t
tr_line_read(tr_line_t *l, const char *prompt, char **out)
{
    char *line = NULL;
    size_t cap = 0;
    ssize_t n;
    int count = 0;

    *out = NULL;
    if (l->el == NULL) {
        n = getline(&line, &cap, stdin);
        if (n < 0) {
            free(line);
            return TR_LINE_END;
        }
        return finish(line, (size_t) n, out);
    }
    l->prompt = prompt;
    l->cancelled = false;
    line = (char *) (uintptr_t) el_gets(l->el, &count);
    if (l->cancelled) {
        fputc('\n', stdout);
        return TR_LINE_CANCELLED;
    }
    if (line == NULL || count <= 0) {
        return TR_LINE_END;
    }
    line = strndup(line, (size_t) count);
    return line != NULL ? finish(line, strlen(line), out) : TR_LINE_END;
}

void
tr_line_remember(tr_line_t *l, const char *text)
{
    HistEvent event;
    mode_t mask;

    if (l->el == NULL || text[0] == '\0') {
        return;
    }
    history(l->history, &event, H_ENTER, text);
    if (l->file[0] != '\0') {
        mask = umask(0077);
        make_parents(l->file);
        history(l->history, &event, H_SAVE, l->file);
        umask(mask);
    }
}
