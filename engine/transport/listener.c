/*
 * The listening socket (listener.h).
 */
#include "listener.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "engine/config/log.h"

#define BACKLOG 128
#define GIVEN_FD 3 /* sd_listen_fds(3) */

static void
lock_path(const tr_listener_t *l, char *out, size_t size)
{
    snprintf(out, size, "%s.lock", l->path);
}

/* The holder's process id, 0 if the file does not tell. */
static long
read_pid(int fd)
{
    char text[32];
    ssize_t n = pread(fd, text, sizeof(text) - 1, 0);

    text[n > 0 ? n : 0] = '\0';
    return strtol(text, NULL, 10);
}

/* In the second line, after the process id. */
static uint64_t
read_left(int fd)
{
    char text[64], *line;
    ssize_t n = pread(fd, text, sizeof(text) - 1, 0);

    text[n > 0 ? n : 0] = '\0';
    line = strchr(text, '\n');
    return line != NULL ? strtoull(line + 1, NULL, 10) : 0;
}

static void
write_lock(const tr_listener_t *l, int fd, uint64_t device_memory)
{
    char text[64];
    int n = device_memory != 0
                ? snprintf(text, sizeof(text), "%ld\n%llu\n", (long) getpid(),
                           (unsigned long long) device_memory)
                : snprintf(text, sizeof(text), "%ld\n", (long) getpid());

    if (ftruncate(fd, 0) != 0 || pwrite(fd, text, (size_t) n, 0) != n) {
        tr_log(TR_LEVEL_WARN,
               "cannot write the process id path=%s.lock error=\"%s\"", l->path,
               strerror(errno));
    }
}

/* 1 when path still names the file that fd is. */
static int
same_file(int fd, const char *path)
{
    struct stat a, b;

    return fstat(fd, &a) == 0 && lstat(path, &b) == 0 && a.st_dev == b.st_dev
           && a.st_ino == b.st_ino;
}

static tr_status_t
lock_failed(int fd, const char *socket_path, const char *path, tr_error_t *err)
{
    int e = errno;
    tr_status_t rc;

    if (e == EWOULDBLOCK) {
        rc = tr_error_set(err, TR_ERR_IO, "socket",
                          "socket %s is in use by "
                          "another engine (pid %ld)",
                          socket_path, read_pid(fd));
    } else {
        rc = tr_error_set(err, TR_ERR_IO, "socket", "cannot lock %s: %s", path,
                          strerror(e));
    }
    close(fd);
    return rc;
}

/* ---- a socket that was given -------------------------------------------- */

static bool
is_listening(int fd)
{
    int domain = 0, type = 0, listens = 0;
    socklen_t len = sizeof(int);

    return getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &len) == 0
           && getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &len) == 0
           && getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &len) == 0
           && domain == AF_UNIX && type == SOCK_STREAM && listens != 0;
}

/* Takes it, if there is one: those of LISTEN_FDS are for the process of
 * LISTEN_PID alone. */
static tr_status_t
take_given(tr_listener_t *l, tr_error_t *err)
{
    const char *pid = getenv("LISTEN_PID"), *fds = getenv("LISTEN_FDS");
    long n;

    if (pid == NULL || fds == NULL
        || strtol(pid, NULL, 10) != (long) getpid()) {
        return TR_OK;
    }
    n = strtol(fds, NULL, 10);
    if (n != 1 || !is_listening(GIVEN_FD)) {
        return tr_error_set(err, TR_ERR_IO, "socket",
                            "LISTEN_FDS is %ld, or not a Unix socket that "
                            "listens; expected one such socket",
                            n);
    }
    fcntl(GIVEN_FD, F_SETFD, FD_CLOEXEC);
    fcntl(GIVEN_FD, F_SETFL, fcntl(GIVEN_FD, F_GETFL) | O_NONBLOCK);
    unsetenv("LISTEN_PID");
    unsetenv("LISTEN_FDS");
    unsetenv("LISTEN_FDNAMES");
    l->fd = GIVEN_FD;
    l->given = true;
    return TR_OK;
}

/* ---- one of our own ----------------------------------------------------- */

void
tr_listener_init(tr_listener_t *l)
{
    memset(l, 0, sizeof(*l));
    l->fd = l->lock_fd = -1;
}

tr_status_t
tr_listener_lock(tr_listener_t *l, const char *path, bool given,
                 tr_error_t *err)
{
    char name[TR_CONFIG_PATH + 8];
    int fd;

    tr_listener_init(l);
    snprintf(l->path, sizeof(l->path), "%s", path);
    if (given) {
        tr_status_t rc = take_given(l, err);

        if (rc != TR_OK || l->given) {
            return rc;
        }
    }
    lock_path(l, name, sizeof(name));
    for (;;) {
        fd = open(name, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (fd == -1) {
            return tr_error_set(err, TR_ERR_IO, "socket", "cannot open %s: %s",
                                name, strerror(errno));
        }
        if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
            return lock_failed(fd, path, name, err);
        }
        /* the one who held it before may have removed the file meanwhile: a
         * lock on a nameless file keeps nobody out */
        if (same_file(fd, name)) {
            break;
        }
        close(fd);
    }
    l->left = read_left(fd);
    write_lock(l, fd, l->left);
    l->lock_fd = fd;
    return TR_OK;
}

void
tr_listener_note(const tr_listener_t *l, uint64_t device_memory)
{
    if (l->lock_fd != -1) {
        write_lock(l, l->lock_fd, device_memory);
    }
}

/* Removes a dead engine's socket; anything else in the way is an error. */
static tr_status_t
clear_path(const char *path, tr_error_t *err)
{
    struct stat st;

    if (lstat(path, &st) != 0) {
        return TR_OK; /* bind says what else is wrong */
    }
    if (!S_ISSOCK(st.st_mode)) {
        return tr_error_set(err, TR_ERR_IO, "socket",
                            "%s exists and is not a "
                            "socket; remove it or choose another path",
                            path);
    }
    if (unlink(path) != 0) {
        return tr_error_set(err, TR_ERR_IO, "socket",
                            "cannot remove the old "
                            "socket %s: %s",
                            path, strerror(errno));
    }
    return TR_OK;
}

tr_status_t
tr_listener_open(tr_listener_t *l, uint32_t mode, tr_error_t *err)
{
    struct sockaddr_un addr = { .sun_family = AF_UNIX };
    size_t len = strlen(l->path);
    struct stat st;
    tr_status_t rc;

    if (l->given) {
        return TR_OK;
    }
    rc = clear_path(l->path, err);
    if (rc != TR_OK) {
        return rc;
    }
    if (len >= sizeof(addr.sun_path)) {
        return tr_error_set(err, TR_ERR_INVALID, "socket",
                            "socket path %s is "
                            "longer than %zu bytes",
                            l->path, sizeof(addr.sun_path) - 1);
    }
    memcpy(addr.sun_path, l->path, len + 1);
    l->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    /* fchmod first: the file is never, not for a moment, open to more */
    if (l->fd == -1 || fchmod(l->fd, (mode_t) mode) != 0
        || bind(l->fd, (struct sockaddr *) &addr, sizeof(addr)) != 0) {
        return tr_error_set(err, TR_ERR_IO, "socket", "cannot bind %s: %s",
                            l->path, strerror(errno));
    }
    if (lstat(l->path, &st) == 0) {
        l->dev = st.st_dev;
        l->ino = st.st_ino;
    }
    if (chmod(l->path, (mode_t) mode) != 0 || listen(l->fd, BACKLOG) != 0) {
        return tr_error_set(err, TR_ERR_IO, "socket",
                            "cannot listen on %s: "
                            "%s",
                            l->path, strerror(errno));
    }
    return TR_OK;
}

void
tr_listener_close(tr_listener_t *l)
{
    char name[TR_CONFIG_PATH + 8];
    struct stat st;

    if (l->fd != -1) {
        close(l->fd);
        l->fd = -1;
        if (l->ino != 0 && lstat(l->path, &st) == 0 && st.st_dev == l->dev
            && st.st_ino == l->ino) {
            unlink(l->path);
        }
    }
    if (l->lock_fd != -1) {
        lock_path(l, name, sizeof(name));
        if (same_file(l->lock_fd, name)) {
            unlink(name);
        }
        close(l->lock_fd);
        l->lock_fd = -1;
    }
}

int
tr_listener_accept(tr_listener_t *l, tr_credentials_t *who)
{
    struct ucred cred;
    socklen_t len = sizeof(cred);
    int fd;

    do {
        fd = accept4(l->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    } while (fd == -1 && (errno == EINTR || errno == ECONNABORTED));
    if (fd == -1) {
        return -1;
    }
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &len) != 0) {
        close(fd);
        errno = ECONNABORTED;
        return -1;
    }
    who->pid = cred.pid;
    who->uid = cred.uid;
    who->gid = cred.gid;
    return fd;
}
