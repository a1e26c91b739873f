/*
 * Log lines (log.h).  A line is assembled on the stack and written with one
 * write(2), so that lines of several threads never mix and nothing is lost in a
 * buffer when the process is killed.  Control characters are shown as '?', so
 * that text from outside cannot forge a second line.
 */
#include "log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define LINE_MAX_BYTES 2048

static _Atomic int log_fd = STDERR_FILENO;
static _Atomic int log_level = TR_LEVEL_NOTICE;
static char log_path[512]; /* "" for stderr; written before threads start */

static int
open_path(void)
{
    return open(log_path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0640);
}

void
tr_log_open(const char *path, int level)
{
    int fd;

    atomic_store(&log_level, level);
    if (path == NULL || path[0] == '\0' || strcmp(path, "stderr") == 0) {
        log_path[0] = '\0';
        atomic_store(&log_fd, STDERR_FILENO);
        return;
    }
    snprintf(log_path, sizeof(log_path), "%s", path);
    fd = open_path();
    if (fd == -1) {
        int e = errno;

        log_path[0] = '\0';
        tr_log(TR_LEVEL_ERROR,
               "cannot open log, using stderr path=%s "
               "error=\"%s\"",
               path, strerror(e));
        return;
    }
    atomic_store(&log_fd, fd);
}

void
tr_log_reopen(void)
{
    int fd;

    if (log_path[0] == '\0') {
        return;
    }
    fd = open_path();
    if (fd == -1) {
        tr_log(TR_LEVEL_ERROR,
               "cannot reopen log, keeping the old file "
               "path=%s error=\"%s\"",
               log_path, strerror(errno));
        return;
    }
    /* dup3 swaps the file under the number that other threads may be writing
     * to at this moment: none of them can meet a closed descriptor */
    if (dup3(fd, atomic_load(&log_fd), O_CLOEXEC) == -1) {
        tr_log(TR_LEVEL_ERROR, "cannot reopen log path=%s error=\"%s\"",
               log_path, strerror(errno));
    }
    close(fd);
}

int
tr_log_enabled(int level)
{
    return level <= atomic_load_explicit(&log_level, memory_order_relaxed);
}

/* "2026-11-21T08:00:00.123Z notice " */
static size_t
line_head(char *line, size_t size, int level)
{
    static const char *const names[] = { "error", "warn", "notice", "info",
                                         "debug" };
    struct timespec now;
    struct tm tm;
    size_t n;

    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &tm);
    n = strftime(line, size, "%Y-%m-%dT%H:%M:%S", &tm);
    n += (size_t) snprintf(line + n, size - n, ".%03ldZ %s ",
                           now.tv_nsec / 1000000,
                           level >= TR_LEVEL_ERROR && level <= TR_LEVEL_DEBUG
                               ? names[level]
                               : "unknown");
    return n;
}

void
tr_log(int level, const char *format, ...)
{
    char line[LINE_MAX_BYTES];
    size_t n, i, head;
    va_list args;
    int len, saved = errno;

    if (!tr_log_enabled(level)) {
        return;
    }
    head = line_head(line, sizeof(line), level);
    va_start(args, format);
    len = vsnprintf(line + head, sizeof(line) - head, format, args);
    va_end(args);
    n = head + (len > 0 ? (size_t) len : 0);
    if (n > sizeof(line) - 1) {
        n = sizeof(line) - 1;
    }
    for (i = head; i < n; i++) {
        if ((unsigned char) line[i] < 0x20 || line[i] == 0x7f) {
            line[i] = '?';
        }
    }
    line[n++] = '\n';
    while (write(atomic_load(&log_fd), line, n) == -1 && errno == EINTR) {
        continue;
    }
    errno = saved;
}

/* A text that was cut must not end inside a UTF-8 character: it goes to clients
 * as JSON. */
static void
cut_at_character(char *text, size_t size)
{
    size_t n = strlen(text), back = 0;

    if (n + 1 < size) {
        return;
    }
    while (back < 3 && back < n
           && ((unsigned char) text[n - 1 - back] & 0xc0) == 0x80) {
        back++;
    }
    if (back < n && (unsigned char) text[n - 1 - back] >= 0xc0) {
        unsigned char lead = (unsigned char) text[n - 1 - back];
        size_t want = lead >= 0xf0 ? 3 : lead >= 0xe0 ? 2 : 1;

        if (back < want) {
            text[n - 1 - back] = '\0';
        }
    }
}

tr_status_t
tr_error_set(tr_error_t *err, tr_status_t status, const char *param,
             const char *format, ...)
{
    tr_error_t made; /* the arguments may be the old param and text of *err */
    va_list args;

    if (err == NULL) {
        return status;
    }
    memset(&made, 0, sizeof(made));
    made.status = status;
    snprintf(made.param, sizeof(made.param), "%s", param ? param : "");
    cut_at_character(made.param, sizeof(made.param));
    va_start(args, format);
    vsnprintf(made.text, sizeof(made.text), format, args);
    va_end(args);
    cut_at_character(made.text, sizeof(made.text));
    *err = made;
    return status;
}
