/*
 * The engine's Unix socket: locked, bound, guarded, and gone at exit.
 *
 * PATH.lock is held by flock for the life of the engine, so that two engines
 * never fight for one path, and a socket left by a killed one can be replaced
 * without a guess.  At exit only our own inodes are removed.  So the file is still
 * there after a kill; it says how much GPU memory the engine had.
 *
 * Or the socket was passed to this process, bound and listening, by a supervisor
 * that starts engines on demand (LISTEN_FDS of systemd, `tokenring supervise`).
 * Then the supervisor owns it: nothing is locked, and nothing is removed.
 */
#ifndef TR_LISTENER_H
#define TR_LISTENER_H

#include <sys/types.h>

#include "engine/config/config.h"

typedef struct {
    int fd;      /* listening socket, -1 before tr_listener_open */
    int lock_fd; /* -1 when not locked */
    bool given;  /* not ours, see above */
    char path[TR_CONFIG_PATH];
    dev_t dev; /* of the socket file that we made */
    ino_t ino;
    uint64_t left; /* bytes of a GPU that a killed engine had; 0: not known */
} tr_listener_t;

/* Who is at the other end of a connection. */
typedef struct {
    pid_t pid;
    uid_t uid;
    gid_t gid;
} tr_credentials_t;

/* A listener that is not open, for close. */
void tr_listener_init(tr_listener_t *l);
/* Takes the lock, before anything long: a second engine fails at once.  given:
 * or what this process was given instead, if it was. */
tr_status_t tr_listener_lock(tr_listener_t *l, const char *path, bool given,
                             tr_error_t *err);
/* For the next one's `left`, should this process be killed. */
void tr_listener_note(const tr_listener_t *l, uint64_t device_memory);
/* Binds with this file mode and listens, unless it was given. */
tr_status_t tr_listener_open(tr_listener_t *l, uint32_t mode, tr_error_t *err);
/* Removes what is ours; safe after any failure. */
void tr_listener_close(tr_listener_t *l);

/* Next connection (non-blocking, close-on-exec) and its owner; -1 with errno
 * EAGAIN when there is none. */
int tr_listener_accept(tr_listener_t *l, tr_credentials_t *who);

#endif
