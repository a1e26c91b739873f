/*
 * A channel: what one NGINX worker (or one command line) shares with an engine.
 *
 * The engine makes a memfd, seals it (GROW, SHRINK, SEAL), and passes it over
 * the Unix socket with SCM_RIGHTS, together with two eventfds (one doorbell
 * each way) and the status page.  The receiver verifies seals and size before
 * it maps.  The socket stays open: its hang-up is the liveness signal.
 *
 * Handshake: the peer sends tr_hello_t; the engine answers tr_welcome_t with
 * four descriptors (channel memfd, eventfd to the engine, eventfd to the peer,
 * status memfd, in this order), or with refused != 0, both version ranges named
 * in `message`, and no descriptors.
 *
 * Memory: one header page, then the control words with their dirty bitmap, then
 * the request ring (peer -> engine) and the response ring (engine -> peer).
 *
 * Control words.  Each request owns slot TR_ID_SLOT(id).  The peer writes the
 * wanted state (generation << 32 | ABORT | PAUSE) with one store, sets the
 * slot's dirty bit, and rings if the engine sleeps: no space is needed, and
 * repeated wishes collapse.  The engine takes the dirty bits with an exchange
 * and reads the words; it also reads the word when a SUBMIT is complete, since
 * a wish can overtake the body in the ring.  A slot is used again, with the next
 * generation, only after the engine's FINISH(LAST) or ERROR for it.
 *
 * Needs _GNU_SOURCE (memfd_create, seals) before the first system header.
 */
#ifndef TOKENRING_CHANNEL_H
#define TOKENRING_CHANNEL_H

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <tokenring/error.h>
#include <tokenring/ring.h>

#define TR_CHANNEL_MAGIC 0x4c454e4e41484354ull /* "TCHANNEL" */
#define TR_ABI_VERSION 1u     /* what this header describes */
#define TR_ABI_VERSION_MIN 1u /* oldest still spoken */

#define TR_CHANNEL_SLOTS_MAX 65536u
#define TR_CHANNEL_RING_DEFAULT (1u << 20)
#define TR_CHANNEL_SLOTS_DEFAULT 4096u

enum tr_peer_role { TR_ROLE_WORKER = 1, TR_ROLE_CLI = 2 };

/* peer -> engine, first bytes on the socket */
typedef struct {
    uint64_t magic; /* TR_CHANNEL_MAGIC */
    uint32_t version_min, version_max;
    uint32_t role;          /* enum tr_peer_role */
    uint32_t slots;         /* wanted, 0: default; engine rounds and bounds */
    uint32_t request_ring;  /* wanted capacity in bytes, 0: default */
    uint32_t response_ring;
    uint32_t reserved[6];
} tr_hello_t;

_Static_assert(sizeof(tr_hello_t) == 56, "HELLO is fixed for all versions");

/* engine -> peer */
typedef struct {
    uint64_t magic;
    uint32_t refused; /* 0: welcome, descriptors attached */
    uint32_t version; /* chosen; when refused: 0 */
    uint32_t version_min, version_max; /* what the engine speaks */
    uint64_t generation; /* of the engine run, same as on the status page */
    char message[160];   /* why refused, NUL-terminated */
} tr_welcome_t;

_Static_assert(sizeof(tr_welcome_t) == 192, "WELCOME is fixed");

#define TR_CHANNEL_FDS 4
enum {
    TR_FD_CHANNEL = 0,
    TR_FD_TO_ENGINE = 1,
    TR_FD_TO_PEER = 2,
    TR_FD_STATUS = 3
};

#define TR_CONTROL_ABORT 0x1u
#define TR_CONTROL_PAUSE 0x2u

/* First page of the memfd.  Written by the engine before it is shared. */
typedef struct {
    uint64_t magic;
    uint32_t version;
    uint32_t slots;            /* multiple of 64 */
    uint64_t size;             /* of the whole memfd */
    uint64_t generation;
    uint64_t control_offset;   /* _Atomic uint64_t[slots] */
    uint64_t dirty_offset;     /* _Atomic uint64_t[slots / 64] */
    uint64_t request_offset;   /* tr_ring_shared_t, then data */
    uint64_t response_offset;
    uint32_t request_capacity;
    uint32_t response_capacity;
} tr_channel_header_t;

/* Private view of one side; `size` bytes are mapped at header. */
typedef struct {
    tr_channel_header_t *map; /* shared: not read again after attach */
    size_t size;
    uint32_t slots;
    uint64_t generation;
    _Atomic uint64_t *control;
    _Atomic uint64_t *dirty;
    tr_ring_shared_t *request;
    uint8_t *request_data;
    uint32_t request_capacity;
    tr_ring_shared_t *response;
    uint8_t *response_data;
    uint32_t response_capacity;
} tr_channel_map_t;

/* Engine: creates, sizes, maps, fills and seals a channel memfd.  Sizes are
 * rounded up to powers of two (rings) and multiples of 64 (slots) and bounded;
 * 0 means the default.  *fd is given to the caller (CLOEXEC). */
static inline tr_status_t tr_channel_create(uint32_t slots,
    uint32_t request_capacity, uint32_t response_capacity, uint64_t generation,
    tr_channel_map_t *out, int *fd);

/* Peer: checks seals, size and header of a received memfd, then maps it.  The
 * descriptor stays the caller's. */
static inline tr_status_t tr_channel_attach(int fd, tr_channel_map_t *out);

static inline void tr_channel_unmap(tr_channel_map_t *map);

/* Peer: wishes for a request.  Returns 1 when the engine must be rung. */
static inline int tr_control_set(tr_channel_map_t *map, uint64_t id,
    uint32_t bits);

/* Engine: the wish for `id`, 0 if its slot speaks of another generation. */
static inline uint32_t tr_control_get(tr_channel_map_t *map, uint64_t id);

/* Engine: takes one word of dirty bits; bit b of word w is slot 64 * w + b. */
static inline uint64_t tr_control_take(tr_channel_map_t *map, uint32_t word);

/* Sends len bytes with n descriptors; 0, or -1 with errno. */
static inline int tr_fds_send(int sock, const void *data, size_t len,
    const int *fds, unsigned n);

/* Receives into data (up to len) and fds (exactly n expected, CLOEXEC set).
 * Bytes read, 0 at the end, -1 with errno (EPROTO: descriptors of the wrong
 * number; all received ones were closed).  *got: descriptors received. */
static inline ssize_t tr_fds_receive(int sock, void *data, size_t len, int *fds,
    unsigned n, unsigned *got);

/* 1 if fd is a memfd with (at least) these seals and exactly this size, or any
 * size when size is 0. */
static inline int tr_memfd_verify(int fd, int seals, uint64_t size);

/* ---- implementation ---------------------------------------------------- */

static inline uint32_t
tr_channel_round_ring(uint32_t n)
{
    uint32_t p = TR_RING_MIN;

    if (n == 0) {
        return TR_CHANNEL_RING_DEFAULT;
    }
    while (p < n && p < TR_RING_MAX) {
        p <<= 1;
    }
    return p;
}

static inline uint32_t
tr_channel_round_slots(uint32_t n)
{
    if (n == 0) {
        return TR_CHANNEL_SLOTS_DEFAULT;
    }
    if (n > TR_CHANNEL_SLOTS_MAX) {
        n = TR_CHANNEL_SLOTS_MAX;
    }
    return (n + 63) & ~63u;
}

static inline int
tr_memfd_verify(int fd, int seals, uint64_t size)
{
    struct stat st;
    int have = fcntl(fd, F_GET_SEALS);

    if (have == -1 || (have & seals) != seals || fstat(fd, &st) != 0) {
        return 0;
    }
    return st.st_size > 0 && (size == 0 || (uint64_t) st.st_size == size);
}

/* Fills the private view from checked numbers. */
static inline void
tr_channel_view(tr_channel_map_t *out, void *base,
    const tr_channel_header_t *h)
{
    uint8_t *at = (uint8_t *) base;

    out->map = (tr_channel_header_t *) base;
    out->size = h->size;
    out->slots = h->slots;
    out->generation = h->generation;
    out->control = (_Atomic uint64_t *) (void *) (at + h->control_offset);
    out->dirty = (_Atomic uint64_t *) (void *) (at + h->dirty_offset);
    out->request = (tr_ring_shared_t *) (void *) (at + h->request_offset);
    out->request_data = at + h->request_offset + sizeof(tr_ring_shared_t);
    out->request_capacity = h->request_capacity;
    out->response = (tr_ring_shared_t *) (void *) (at + h->response_offset);
    out->response_data = at + h->response_offset + sizeof(tr_ring_shared_t);
    out->response_capacity = h->response_capacity;
}

/* The one layout: offsets follow from slots and capacities, nothing is free. */
static inline void
tr_channel_layout(tr_channel_header_t *h, uint32_t slots, uint32_t request,
    uint32_t response, uint64_t generation)
{
    memset(h, 0, sizeof(*h));
    h->magic = TR_CHANNEL_MAGIC;
    h->version = TR_ABI_VERSION;
    h->slots = slots;
    h->generation = generation;
    h->control_offset = 4096;
    h->dirty_offset = h->control_offset + 8ull * slots;
    h->request_offset = (h->dirty_offset + slots / 8 + 63) & ~63ull;
    h->request_capacity = request;
    h->response_offset = h->request_offset + sizeof(tr_ring_shared_t) + request;
    h->response_capacity = response;
    h->size = h->response_offset + sizeof(tr_ring_shared_t) + response;
    h->size = (h->size + 4095) & ~4095ull;
}

static inline tr_status_t
tr_channel_create(uint32_t slots, uint32_t request_capacity,
    uint32_t response_capacity, uint64_t generation, tr_channel_map_t *out,
    int *fd)
{
    tr_channel_header_t h;
    void *base;

    tr_channel_layout(&h, tr_channel_round_slots(slots),
                      tr_channel_round_ring(request_capacity),
                      tr_channel_round_ring(response_capacity), generation);
    *fd = memfd_create("tokenring-channel", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (*fd == -1) {
        return TR_ERR_IO;
    }
    if (ftruncate(*fd, (off_t) h.size) != 0) {
        close(*fd);
        *fd = -1;
        return TR_ERR_NOMEM;
    }
    base = mmap(NULL, h.size, PROT_READ | PROT_WRITE, MAP_SHARED, *fd, 0);
    if (base == MAP_FAILED) {
        close(*fd);
        *fd = -1;
        return TR_ERR_NOMEM;
    }
    memcpy(base, &h, sizeof(h));
    if (fcntl(*fd, F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL)
        != 0) {
        munmap(base, h.size);
        close(*fd);
        *fd = -1;
        return TR_ERR_IO;
    }
    tr_channel_view(out, base, &h);
    return TR_OK;
}

static inline tr_status_t
tr_channel_attach(int fd, tr_channel_map_t *out)
{
    tr_channel_header_t h, want;
    struct stat st;
    void *base;

    if (!tr_memfd_verify(fd, F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL, 0)
        || fstat(fd, &st) != 0 || st.st_size < 4096) {
        return TR_ERR_PROTOCOL;
    }
    base = mmap(NULL, (size_t) st.st_size, PROT_READ | PROT_WRITE, MAP_SHARED,
                fd, 0);
    if (base == MAP_FAILED) {
        return TR_ERR_NOMEM;
    }
    memcpy(&h, base, sizeof(h));
    if (h.magic != TR_CHANNEL_MAGIC || h.version < TR_ABI_VERSION_MIN
        || h.version > TR_ABI_VERSION || h.slots == 0
        || h.slots != tr_channel_round_slots(h.slots)
        || h.request_capacity != tr_channel_round_ring(h.request_capacity)
        || h.response_capacity != tr_channel_round_ring(h.response_capacity)
        || h.request_capacity == 0 || h.response_capacity == 0) {
        munmap(base, (size_t) st.st_size);
        return TR_ERR_PROTOCOL;
    }
    tr_channel_layout(&want, h.slots, h.request_capacity, h.response_capacity,
                      h.generation);
    want.version = h.version;
    if (memcmp(&want, &h, sizeof(h)) != 0
        || want.size != (uint64_t) st.st_size) {
        munmap(base, (size_t) st.st_size);
        return TR_ERR_PROTOCOL;
    }
    tr_channel_view(out, base, &h);
    return TR_OK;
}

static inline void
tr_channel_unmap(tr_channel_map_t *map)
{
    if (map->map != NULL) {
        munmap(map->map, map->size);
        memset(map, 0, sizeof(*map));
    }
}

static inline int
tr_control_set(tr_channel_map_t *map, uint64_t id, uint32_t bits)
{
    uint32_t slot = (uint32_t) id;

    if (slot >= map->slots) {
        return 0;
    }
    atomic_store_explicit(&map->control[slot],
                          (id & 0xffffffff00000000ull) | bits,
                          memory_order_release);
    atomic_fetch_or_explicit(&map->dirty[slot / 64], 1ull << (slot % 64),
                             memory_order_seq_cst);
    if (atomic_load_explicit(&map->request->consumer_asleep,
                             memory_order_seq_cst) == 0) {
        return 0;
    }
    return atomic_exchange_explicit(&map->request->consumer_asleep, 0,
                                    memory_order_seq_cst) == 1;
}

static inline uint32_t
tr_control_get(tr_channel_map_t *map, uint64_t id)
{
    uint32_t slot = (uint32_t) id;
    uint64_t word;

    if (slot >= map->slots) {
        return 0;
    }
    word = atomic_load_explicit(&map->control[slot], memory_order_acquire);
    return (word >> 32) == (id >> 32) ? (uint32_t) word : 0;
}

static inline uint64_t
tr_control_take(tr_channel_map_t *map, uint32_t word)
{
    if (atomic_load_explicit(&map->dirty[word], memory_order_seq_cst) == 0) {
        return 0;
    }
    return atomic_exchange_explicit(&map->dirty[word], 0, memory_order_seq_cst);
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
