/*
 * Layout and bodies of handshake.h, which includes this.
 */
#ifndef TOKENRING_HANDSHAKE_INLINE_H
#define TOKENRING_HANDSHAKE_INLINE_H

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <tokenring/handshake.h>

_Static_assert(sizeof(tr_hello_t) == 56, "HELLO is fixed for all versions");
_Static_assert(sizeof(tr_welcome_t) == 192, "WELCOME is fixed");

static inline uint32_t
tr_features(const uint32_t theirs[2])
{
    return theirs[0] & TR_FEATURES;
}

static inline void
tr_hello_init(tr_hello_t *hello, uint32_t role)
{
    memset(hello, 0, sizeof(*hello));
    hello->magic = TR_CHANNEL_MAGIC;
    hello->version_min = TR_ABI_VERSION_MIN;
    hello->version_max = TR_ABI_VERSION;
    hello->role = role;
    hello->features[0] = TR_FEATURES;
}

static inline void
tr_welcome_refuse(tr_welcome_t *out, const char *why)
{
    size_t len = strlen(why);

    memset(out, 0, sizeof(*out));
    out->magic = TR_CHANNEL_MAGIC;
    out->refused = 1;
    out->version_min = TR_ABI_VERSION_MIN;
    out->version_max = TR_ABI_VERSION;
    memcpy(out->message, why,
           len < sizeof(out->message) ? len : sizeof(out->message) - 1);
}

static inline tr_status_t
tr_hello_answer(const tr_hello_t *hello, uint64_t generation, tr_welcome_t *out)
{
    char why[TR_WELCOME_MESSAGE];

    if (hello->magic != TR_CHANNEL_MAGIC) {
        tr_welcome_refuse(out, "this is a tokenring engine socket, and the "
                               "peer did not say hello");
        return TR_ERR_PROTOCOL;
    }
    if (hello->version_min > hello->version_max
        || hello->version_max < TR_ABI_VERSION_MIN
        || hello->version_min > TR_ABI_VERSION) {
        snprintf(why, sizeof(why),
                 "the peer speaks ring versions %u to %u, "
                 "this engine %u to %u",
                 hello->version_min, hello->version_max, TR_ABI_VERSION_MIN,
                 TR_ABI_VERSION);
        tr_welcome_refuse(out, why);
        return TR_ERR_VERSION;
    }
    if (hello->role != TR_ROLE_WORKER && hello->role != TR_ROLE_CLI) {
        snprintf(why, sizeof(why),
                 "unknown role %u, known are %u (worker) "
                 "and %u (command line)",
                 hello->role, TR_ROLE_WORKER, TR_ROLE_CLI);
        tr_welcome_refuse(out, why);
        return TR_ERR_PROTOCOL;
    }
    if (hello->drain > TR_DRAIN_MOVE_LEAVE
        || (hello->drain != TR_DRAIN_NONE && hello->role != TR_ROLE_CLI)) {
        snprintf(why, sizeof(why), "unknown drain request %u of role %u",
                 hello->drain, hello->role);
        tr_welcome_refuse(out, why);
        return TR_ERR_PROTOCOL;
    }
    memset(out, 0, sizeof(*out));
    out->magic = TR_CHANNEL_MAGIC;
    out->version = hello->version_max < TR_ABI_VERSION ? hello->version_max
                                                       : TR_ABI_VERSION;
    out->version_min = TR_ABI_VERSION_MIN;
    out->version_max = TR_ABI_VERSION;
    out->generation = generation;
    out->features[0] = TR_FEATURES;
    return TR_OK;
}

static inline tr_status_t
tr_welcome_check(const tr_welcome_t *welcome, char why[TR_WELCOME_MESSAGE])
{
    why[0] = '\0';
    if (welcome->magic != TR_CHANNEL_MAGIC) {
        return TR_ERR_PROTOCOL;
    }
    if (welcome->refused != 0) {
        memcpy(why, welcome->message, TR_WELCOME_MESSAGE);
        why[TR_WELCOME_MESSAGE - 1] = '\0';
        return welcome->version_max < TR_ABI_VERSION_MIN
                       || welcome->version_min > TR_ABI_VERSION
                   ? TR_ERR_VERSION
                   : TR_ERR_CLOSED;
    }
    return welcome->version >= TR_ABI_VERSION_MIN
                   && welcome->version <= TR_ABI_VERSION
               ? TR_OK
               : TR_ERR_PROTOCOL;
}

static inline int
tr_fds_send(int sock, const void *data, size_t len, const int *fds, unsigned n)
{
    union {
        struct cmsghdr align;
        char buf[CMSG_SPACE(sizeof(int) * TR_CHANNEL_FDS)];
    } control;
    struct iovec iov = { (void *) (uintptr_t) data, len };
    struct msghdr msg;
    ssize_t sent;

    if (n > TR_CHANNEL_FDS) {
        errno = EINVAL;
        return -1;
    }
    memset(&msg, 0, sizeof(msg));
    memset(&control, 0, sizeof(control));
    msg.msg_iov = &iov;
    msg.msg_iovlen = 1;
    if (n != 0) {
        struct cmsghdr *c;

        msg.msg_control = control.buf;
        msg.msg_controllen = CMSG_SPACE(sizeof(int) * n);
        c = CMSG_FIRSTHDR(&msg);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int) * n);
        memcpy(CMSG_DATA(c), fds, sizeof(int) * n);
    }
    do {
        sent = sendmsg(sock, &msg, MSG_NOSIGNAL);
    } while (sent == -1 && errno == EINTR);
    if (sent != (ssize_t) len) {
        if (sent >= 0) {
            errno = EMSGSIZE;
        }
        return -1;
    }
    return 0;
}

static inline ssize_t
tr_fds_receive(int sock, void *data, size_t len, int *fds, unsigned n,
               unsigned *got)
{
    union {
        struct cmsghdr align;
        char buf[CMSG_SPACE(sizeof(int) * 16)];
    } control;
    struct iovec iov = { data, len };
    struct msghdr msg;
    struct cmsghdr *c;
    ssize_t received;
    int bad = 0;

    memset(&msg, 0, sizeof(msg));
    msg.msg_iov = &iov;
    msg.msg_iovlen = 1;
    msg.msg_control = control.buf;
    msg.msg_controllen = sizeof(control.buf);
    *got = 0;
    do {
        received = recvmsg(sock, &msg, MSG_CMSG_CLOEXEC);
    } while (received == -1 && errno == EINTR);
    if (received < 0) {
        return received;
    }
    for (c = CMSG_FIRSTHDR(&msg); c != NULL; c = CMSG_NXTHDR(&msg, c)) {
        size_t i, count;

        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) {
            continue;
        }
        count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (i = 0; i < count; i++) {
            int fd;

            memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
            if (*got < n) {
                fds[(*got)++] = fd;
            } else {
                close(fd);
                bad = 1;
            }
        }
    }
    if (bad || (msg.msg_flags & MSG_CTRUNC) || (*got != 0 && *got != n)) {
        unsigned i;

        for (i = 0; i < *got; i++) {
            close(fds[i]);
        }
        *got = 0;
        errno = EPROTO;
        return -1;
    }
    return received;
}

#endif
