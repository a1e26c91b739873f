/*
 * Log lines: one event each, `key=value`, with the request id where there is
 * one.  Never a prompt or an output at the default level.
 *
 *   2026-11-21T08:00:00.123Z notice engine ready model=pocket start_ms=312
 */
#ifndef TR_LOG_H
#define TR_LOG_H

#include <tokenring/error.h>

void tr_log_open(const char *path, int level); /* NULL or "stderr": stderr */
void tr_log_reopen(void);                      /* SIGUSR1 */
int tr_log_enabled(int level);

/* level: enum tr_log_level.  Thread-safe, one write(2) a line. */
void tr_log(int level, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Fills an error: status, param ("" if none) and text. Returns status. */
tr_status_t tr_error_set(tr_error_t *err, tr_status_t status, const char *param,
                         const char *format, ...)
    __attribute__((format(printf, 4, 5)));

#endif
