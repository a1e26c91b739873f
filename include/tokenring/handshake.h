/*
 * handshake.h: how a peer of an engine gets its channel (channel.h).
 *
 * The peer sends tr_hello_t over the engine's Unix socket; the engine answers
 * tr_welcome_t with four descriptors (channel memfd, eventfd to the engine,
 * eventfd to the peer, status memfd, in this order), or with refused != 0, both
 * version ranges named in `message`, and no descriptors.  Both messages keep
 * their size in all versions.
 */
#ifndef TOKENRING_HANDSHAKE_H
#define TOKENRING_HANDSHAKE_H

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <tokenring/error.h>

#define TR_CHANNEL_MAGIC 0x4c454e4e41484354ull /* "TCHANNEL" */
#define TR_ABI_VERSION 3u     /* of channels, rings, records and status page */
#define TR_ABI_VERSION_MIN 3u /* oldest still spoken; none was released yet */

enum tr_peer_role { TR_ROLE_WORKER = 1, TR_ROLE_CLI = 2 };

/* What a command line wants of the engine itself.  Only the engine's own user
 * and root may wish (SO_PEERCRED); others are refused. */
enum tr_hello_wish {
    TR_WISH_NONE = 0,
    TR_WISH_DRAIN = 1,  /* nothing new; what is inside goes on to its end */
    TR_WISH_LEAVE = 2,  /* the same, then the process ends */
    TR_WISH_UNDRAIN = 3 /* takes new requests again */
};

/* peer -> engine, first bytes on the socket */
typedef struct {
    uint64_t magic; /* TR_CHANNEL_MAGIC */
    uint32_t version_min, version_max;
    uint32_t role;         /* enum tr_peer_role */
    uint32_t slots;        /* wanted, 0: default; engine rounds and bounds */
    uint32_t request_ring; /* wanted capacity in bytes, 0: default */
    uint32_t response_ring;
    uint32_t wish; /* enum tr_hello_wish, of TR_ROLE_CLI */
    uint32_t reserved[5];
} tr_hello_t;

_Static_assert(sizeof(tr_hello_t) == 56, "HELLO is fixed for all versions");

#define TR_WELCOME_MESSAGE 160

/* engine -> peer */
typedef struct {
    uint64_t magic;
    uint32_t refused;                  /* 0: welcome, descriptors attached */
    uint32_t version;                  /* chosen; when refused: 0 */
    uint32_t version_min, version_max; /* what the engine speaks */
    uint64_t generation; /* of the engine run, same as on the status page */
    char message[TR_WELCOME_MESSAGE]; /* why refused, NUL-terminated */
} tr_welcome_t;

_Static_assert(sizeof(tr_welcome_t) == 192, "WELCOME is fixed");

#define TR_CHANNEL_FDS 4
enum {
    TR_FD_CHANNEL = 0,
    TR_FD_TO_ENGINE = 1,
    TR_FD_TO_PEER = 2,
    TR_FD_STATUS = 3
};

/* The handshake's messages.  A hello asks for default sizes until the caller
 * says otherwise.  tr_hello_answer fills a welcome (TR_OK) or a refusal that
 * names both version ranges (TR_ERR_VERSION, TR_ERR_PROTOCOL); send it either
 * way.  tr_welcome_check copies the refusal's message, ended, to why. */
static inline void tr_hello_init(tr_hello_t *hello, uint32_t role);
static inline tr_status_t tr_hello_answer(const tr_hello_t *hello,
                                          uint64_t generation,
                                          tr_welcome_t *out);
static inline void tr_welcome_refuse(tr_welcome_t *out, const char *why);
static inline tr_status_t tr_welcome_check(const tr_welcome_t *welcome,
                                           char why[TR_WELCOME_MESSAGE]);

/* Sends len bytes with n descriptors; 0, or -1 with errno. */
static inline int tr_fds_send(int sock, const void *data, size_t len,
                              const int *fds, unsigned n);

/* Receives into data (up to len) and fds (exactly n expected, CLOEXEC set).
 * Bytes read, 0 at the end, -1 with errno (EPROTO: descriptors of the wrong
 * number; all received ones were closed).  *got: descriptors received. */
static inline ssize_t tr_fds_receive(int sock, void *data, size_t len, int *fds,
                                     unsigned n, unsigned *got);

/* ---- implementation ---------------------------------------------------- */

static inline void
tr_hello_init(tr_hello_t *hello, uint32_t role)
{
    memset(hello, 0, sizeof(*hello));
    hello->magic = TR_CHANNEL_MAGIC;
    hello->version_min = TR_ABI_VERSION_MIN;
    hello->version_max = TR_ABI_VERSION;
    hello->role = role;
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
    if (hello->wish > TR_WISH_UNDRAIN
        || (hello->wish != TR_WISH_NONE && hello->role != TR_ROLE_CLI)) {
        snprintf(why, sizeof(why), "unknown wish %u of role %u", hello->wish,
                 hello->role);
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
