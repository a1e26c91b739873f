/*
 * The channel: its memory and seals, descriptors over a socket, commands, and
 * the handshake with peers of other versions.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <pthread.h>
#include <sys/resource.h>

#include <tokenring/channel.h>
#include <tokenring/wire.h>

#include "tests/unit/fixtures/count_fds.h"

/* ---- memory ------------------------------------------------------------- */

static void
test_sizes_are_rounded_and_bounded(void **state)
{
    static const struct {
        uint32_t slots, ring, slots_made, ring_made;
    } rows[] = {
        { 0, 0, TR_CHANNEL_SLOTS_DEFAULT, TR_CHANNEL_RING_DEFAULT },
        { 1, 1, 64, TR_RING_MIN },
        { 64, 4096, 64, 4096 },
        { 65, 4097, 128, 8192 },
        { 4096, 65536, 4096, 65536 },
        { TR_CHANNEL_SLOTS_MAX, 100000, TR_CHANNEL_SLOTS_MAX, 131072 },
        { UINT32_MAX, UINT32_MAX, TR_CHANNEL_SLOTS_MAX, TR_RING_MAX },
    };
    size_t i;

    (void) state;
    for (i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        assert_int_equal(tr_channel_round_slots(rows[i].slots),
                         rows[i].slots_made);
        assert_int_equal(tr_channel_round_ring(rows[i].ring),
                         rows[i].ring_made);
    }
}

static void
test_both_sides_see_the_same(void **state)
{
    tr_ring_piece_t piece = { "hello", 5 };
    tr_channel_map_t engine, peer;
    tr_ring_producer_t p;
    tr_ring_consumer_t c;
    char buf[1008];
    tr_record_t rec;
    int fd;

    (void) state;
    assert_int_equal(tr_channel_create(100, 4096, 8192, 77, &engine, &fd),
                     TR_OK);
    assert_int_equal(tr_channel_attach(fd, &peer), TR_OK);
    assert_ptr_not_equal(engine.map, peer.map);
    assert_int_equal(peer.slots, 128);
    assert_int_equal(peer.generation, 77);
    assert_int_equal(peer.request_capacity, 4096);
    assert_int_equal(peer.response_capacity, 8192);
    assert_int_equal((uintptr_t) peer.request % TR_CACHE_LINE, 0);
    assert_int_equal((uintptr_t) peer.response % TR_CACHE_LINE, 0);

    tr_ring_producer_init(&p, peer.request, peer.request_data,
                          peer.request_capacity);
    tr_ring_consumer_init(&c, engine.request, engine.request_data,
                          engine.request_capacity);
    assert_int_equal(tr_ring_put(&p, 1, 0, 9, &piece, 1), TR_OK);
    tr_ring_publish(&p);
    assert_int_equal(tr_ring_get(&c, &rec, buf, sizeof(buf)), TR_OK);
    assert_memory_equal(buf, "hello", 5);

    tr_ring_producer_init(&p, engine.response, engine.response_data,
                          engine.response_capacity);
    tr_ring_consumer_init(&c, peer.response, peer.response_data,
                          peer.response_capacity);
    assert_int_equal(tr_ring_put(&p, 2, 0, 9, &piece, 1), TR_OK);
    tr_ring_publish(&p);
    assert_int_equal(tr_ring_get(&c, &rec, buf, sizeof(buf)), TR_OK);
    assert_int_equal(rec.type, 2);
    tr_channel_unmap(&peer);
    tr_channel_unmap(&engine);
    assert_null(engine.map);
    tr_channel_unmap(&engine);
    close(fd);
}

/* The two rings, the words and the header do not overlap: fill each with its
 * own byte and look at all of them. */
static void
test_regions_do_not_overlap(void **state)
{
    tr_channel_map_t m;
    size_t i;
    int fd;

    (void) state;
    assert_int_equal(tr_channel_create(64, 4096, 4096, 1, &m, &fd), TR_OK);
    memset(m.control, 1, 8 * m.slots);
    memset(m.dirty, 2, m.slots / 8);
    memset(m.request, 3, sizeof(*m.request));
    memset(m.request_data, 4, m.request_capacity);
    memset(m.response, 5, sizeof(*m.response));
    memset(m.response_data, 6, m.response_capacity);
    assert_true((uint8_t *) m.control >= (uint8_t *) m.map + 4096);
    assert_true(m.response_data + m.response_capacity
                <= (uint8_t *) m.map + m.size);
    for (i = 0; i < 8 * m.slots; i++) {
        assert_int_equal(((uint8_t *) m.control)[i], 1);
    }
    for (i = 0; i < m.slots / 8; i++) {
        assert_int_equal(((uint8_t *) m.dirty)[i], 2);
    }
    for (i = 0; i < m.request_capacity; i++) {
        assert_int_equal(m.request_data[i], 4);
        assert_int_equal(m.response_data[i], 6);
    }
    for (i = 0; i < sizeof(*m.request); i++) {
        assert_int_equal(((uint8_t *) m.request)[i], 3);
        assert_int_equal(((uint8_t *) m.response)[i], 5);
    }
    tr_channel_unmap(&m);
    close(fd);
}

/* ---- what a peer refuses ------------------------------------------------ */

/* A channel that is right but for `spoil` and the seals. */
static tr_status_t
attach_forged(int seals, uint64_t extra, void (*spoil)(tr_channel_header_t *h))
{
    tr_channel_map_t seen;
    tr_channel_header_t h;
    tr_status_t rc;
    void *base;
    int fd;

    memset(&seen, 0, sizeof(seen));
    tr_channel_layout(&h, 64, 4096, 8192, 5);
    assert_int_equal(tr_memfd_create("forged", h.size + extra, seals, &base,
                                     &fd),
                     TR_OK);
    munmap(base, h.size + extra);
    if (spoil != NULL) {
        spoil(&h);
    }
    assert_int_equal(pwrite(fd, &h, sizeof(h), 0), sizeof(h));
    rc = tr_channel_attach(fd, &seen);
    assert_int_equal(seen.map != NULL, rc == TR_OK);
    tr_channel_unmap(&seen);
    close(fd);
    return rc;
}

#define SPOILER(name, statement)                     \
    static void spoil_##name(tr_channel_header_t *h) \
    {                                                \
        statement;                                   \
    }
SPOILER(magic, h->magic ^= 1)
SPOILER(version_low, h->version = TR_ABI_VERSION_MIN - 1)
SPOILER(version_high, h->version = TR_ABI_VERSION + 1)
SPOILER(size, h->size += 4096)
SPOILER(slots, h->slots = 128)
SPOILER(slots_none, h->slots = 0)
SPOILER(slots_odd, h->slots = 65)
SPOILER(slots_many, h->slots = 0x10000040)
SPOILER(control, h->control_offset += 8)
SPOILER(control_wild, h->control_offset = UINT64_MAX - 7)
SPOILER(allow, h->allow_offset += 8)
SPOILER(dirty, h->dirty_offset = h->size)
SPOILER(request, h->request_offset += 64)
SPOILER(response, h->response_offset = h->request_offset)
SPOILER(request_capacity, h->request_capacity = 8192)
SPOILER(capacity_none, h->request_capacity = 0)
SPOILER(capacity_odd, h->request_capacity = 4097)
SPOILER(capacity_small, h->response_capacity = 2048)
SPOILER(capacity_huge, h->response_capacity = 0x80000000u)
#undef SPOILER

static void
test_forged_headers_are_refused(void **state)
{
    static void (*const spoilers[])(tr_channel_header_t *) = {
        spoil_magic,         spoil_version_low,  spoil_version_high,
        spoil_size,          spoil_slots,        spoil_slots_none,
        spoil_slots_odd,     spoil_slots_many,   spoil_control,
        spoil_control_wild,  spoil_allow,        spoil_dirty,
        spoil_request,       spoil_response,     spoil_request_capacity,
        spoil_capacity_none, spoil_capacity_odd, spoil_capacity_small,
        spoil_capacity_huge,
    };
    size_t i;

    (void) state;
    assert_int_equal(attach_forged(TR_CHANNEL_SEALS, 0, NULL), TR_OK);
    for (i = 0; i < sizeof(spoilers) / sizeof(spoilers[0]); i++) {
        if (attach_forged(TR_CHANNEL_SEALS, 0, spoilers[i])
            != TR_ERR_PROTOCOL) {
            fail_msg("spoiler %zu was not noticed", i);
        }
    }
}

static void
test_wrong_seals_and_sizes_are_refused(void **state)
{
    tr_channel_map_t seen;
    void *base;
    int fd;

    (void) state;
    assert_int_equal(attach_forged(F_SEAL_SEAL, 0, NULL), TR_ERR_PROTOCOL);
    assert_int_equal(attach_forged(TR_CHANNEL_SEALS & ~F_SEAL_SHRINK, 0, NULL),
                     TR_ERR_PROTOCOL);
    assert_int_equal(attach_forged(TR_CHANNEL_SEALS & ~F_SEAL_GROW, 0, NULL),
                     TR_ERR_PROTOCOL);
    /* nor one that cannot be sealed further */
    assert_int_equal(attach_forged(TR_CHANNEL_SEALS | F_SEAL_SEAL, 0, NULL),
                     TR_ERR_PROTOCOL);
    assert_int_equal(attach_forged(TR_CHANNEL_SEALS, 4096, NULL),
                     TR_ERR_PROTOCOL);
    /* smaller than a header page */
    assert_int_equal(tr_memfd_create("tiny", 64, TR_CHANNEL_SEALS, &base, &fd),
                     TR_OK);
    munmap(base, 64);
    assert_int_equal(tr_channel_attach(fd, &seen), TR_ERR_PROTOCOL);
    close(fd);
    /* not a memfd at all */
    fd = open("/dev/zero", O_RDWR | O_CLOEXEC);
    assert_int_equal(tr_channel_attach(fd, &seen), TR_ERR_PROTOCOL);
    close(fd);
    assert_int_equal(tr_channel_attach(-1, &seen), TR_ERR_PROTOCOL);
}

/* Once it is mapped on both sides, neither can take pages away. */
static void
test_a_channel_has_no_holes(void **state)
{
    tr_channel_map_t ours, theirs;
    int fd;

    (void) state;
    assert_int_equal(tr_channel_create(0, 0, 0, 1, &ours, &fd), TR_OK);
    assert_int_equal(tr_channel_sealed(fd), 0);
    assert_int_equal(tr_channel_attach(fd, &theirs), TR_OK);
    assert_int_equal(tr_channel_sealed(fd), 1);
    assert_int_equal(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                               0, (off_t) ours.size),
                     -1);
    assert_int_equal(errno, EPERM);
    assert_int_equal(madvise(theirs.map, ours.size, MADV_REMOVE), -1);
    assert_true(mmap(NULL, ours.size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)
                == MAP_FAILED);
    /* both still write */
    atomic_store(&theirs.pulse->ping, 7);
    assert_int_equal(atomic_load(&ours.pulse->ping), 7);
    tr_channel_unmap(&theirs);
    tr_channel_unmap(&ours);
    close(fd);
}

static void
test_pulse(void **state)
{
    tr_channel_map_t ours, theirs;
    tr_ring_consumer_t requests;
    int fd;

    (void) state;
    assert_int_equal(tr_channel_create(0, 0, 0, 1, &ours, &fd), TR_OK);
    assert_int_equal(tr_channel_attach(fd, &theirs), TR_OK);
    tr_ring_consumer_init(&requests, ours.request, ours.request_data,
                          ours.request_capacity);
    assert_true(tr_channel_front_answers(&theirs));
    assert_false(tr_channel_pinged(&ours));
    /* whoever sleeps is rung, once */
    assert_int_equal(tr_channel_sleep(&ours, &requests), TR_AGAIN);
    assert_int_equal(tr_channel_ping(&theirs), 1);
    assert_int_equal(tr_channel_ping(&theirs), 0);
    assert_false(tr_channel_front_answers(&theirs));
    /* and does not go to sleep over an unanswered one */
    assert_int_equal(tr_channel_sleep(&ours, &requests), TR_OK);
    assert_true(tr_channel_pinged(&ours));
    assert_false(tr_channel_pinged(&ours));
    assert_true(tr_channel_front_answers(&theirs));
    assert_false(tr_channel_loop_answers(&theirs));
    tr_channel_pong(&ours);
    assert_true(tr_channel_loop_answers(&theirs));
    assert_int_equal(tr_channel_sleep(&ours, &requests), TR_AGAIN);
    tr_channel_unmap(&theirs);
    tr_channel_unmap(&ours);
    close(fd);
}

/* A peer cannot pull the memory away. */
static void
test_a_channel_keeps_its_size(void **state)
{
    tr_channel_map_t m;
    int fd;

    (void) state;
    assert_int_equal(tr_channel_create(0, 0, 0, 1, &m, &fd), TR_OK);
    assert_int_equal(fcntl(fd, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
    assert_int_equal(ftruncate(fd, 0), -1);
    assert_int_equal(ftruncate(fd, (off_t) m.size * 2), -1);
    assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE), -1);
    assert_int_equal(tr_memfd_verify(fd, TR_CHANNEL_SEALS, m.size), 1);
    assert_int_equal(tr_memfd_verify(fd, TR_CHANNEL_SEALS, m.size + 1), 0);
    tr_channel_unmap(&m);
    close(fd);
}

/* ---- descriptors -------------------------------------------------------- */

static void
test_descriptors_travel(void **state)
{
    int pair[2], fds[4], sent[4], before = count_fds();
    char data[8] = "";
    unsigned got, i;

    (void) state;
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    for (i = 0; i < 4; i++) {
        sent[i] = tr_doorbell_create();
    }
    assert_int_equal(tr_fds_send(pair[0], "welcome", 8, sent, 4), 0);
    assert_int_equal(tr_fds_receive(pair[1], data, 8, fds, 4, &got), 8);
    assert_string_equal(data, "welcome");
    assert_int_equal(got, 4);
    /* the same eventfds, in the same order */
    for (i = 0; i < 4; i++) {
        uint64_t count = i + 1;

        assert_int_equal(fcntl(fds[i], F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
        assert_int_equal(write(sent[i], &count, 8), 8);
        assert_int_equal(read(fds[i], &count, 8), 8);
        assert_int_equal(count, i + 1);
        close(fds[i]);
        close(sent[i]);
    }
    /* bytes without descriptors are fine too: a refusal */
    assert_int_equal(tr_fds_send(pair[0], "refused", 8, NULL, 0), 0);
    assert_int_equal(tr_fds_receive(pair[1], data, 8, fds, 4, &got), 8);
    assert_int_equal(got, 0);
    close(pair[0]);
    assert_int_equal(tr_fds_receive(pair[1], data, 8, fds, 4, &got), 0);
    close(pair[1]);
    assert_int_equal(count_fds(), before);
}

/* Sends n descriptors in one message, without tr_fds_send's limit. */
static void
send_many(int sock, unsigned n)
{
    union {
        struct cmsghdr align;
        char buf[CMSG_SPACE(sizeof(int) * 64)];
    } control;
    struct iovec iov = { (void *) "x", 1 };
    struct msghdr msg = { .msg_iov = &iov,
                          .msg_iovlen = 1,
                          .msg_control = control.buf,
                          .msg_controllen = CMSG_SPACE(sizeof(int) * n) };
    struct cmsghdr *c;
    int fds[64];
    unsigned i;

    memset(&control, 0, sizeof(control));
    c = CMSG_FIRSTHDR(&msg);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof(int) * n);
    for (i = 0; i < n; i++) {
        fds[i] = sock;
    }
    memcpy(CMSG_DATA(c), fds, sizeof(int) * n);
    assert_int_equal(sendmsg(sock, &msg, 0), 1);
}

/* Fewer, more, many more than can be received: all closed again. */
static void
test_wrong_numbers_are_closed(void **state)
{
    static const unsigned numbers[] = { 1, 3, 5, 16, 17, 40 };
    unsigned got, i, want;
    int pair[2], fds[4], before;
    char byte;

    (void) state;
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    before = count_fds();
    for (i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
        for (want = 0; want <= 4; want += 4) {
            send_many(pair[0], numbers[i]);
            errno = 0;
            assert_int_equal(tr_fds_receive(pair[1], &byte, 1,
                                            want ? fds : NULL, want, &got),
                             -1);
            assert_int_equal(errno, EPROTO);
            assert_int_equal(got, 0);
            assert_int_equal(count_fds(), before);
        }
    }
    send_many(pair[0], 4);
    assert_int_equal(tr_fds_receive(pair[1], &byte, 1, fds, 4, &got), 1);
    assert_int_equal(got, 4);
    assert_int_equal(count_fds(), before + 4);
    for (i = 0; i < 4; i++) {
        close(fds[i]);
    }
    assert_int_equal(tr_fds_send(pair[0], "x", 1, fds, 5), -1);
    assert_int_equal(errno, EINVAL);
    close(pair[0]);
    close(pair[1]);
}

/* This process has no descriptor left: the kernel drops them, and a welcome
 * must not look like a refusal. */
static void
test_no_room_for_descriptors(void **state)
{
    struct rlimit old, none = { 0, 0 };
    int pair[2], fds[4];
    unsigned got;
    ssize_t n;
    char byte;

    (void) state;
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    send_many(pair[0], 4);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
    none.rlim_max = old.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    errno = 0;
    n = tr_fds_receive(pair[1], &byte, 1, fds, 4, &got);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &old), 0);
    assert_int_equal(n, -1);
    assert_int_equal(errno, EPROTO);
    assert_int_equal(got, 0);
    close(pair[0]);
    close(pair[1]);
}

static void
test_send_to_a_closed_peer(void **state)
{
    int pair[2];

    (void) state;
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    close(pair[1]);
    /* and no SIGPIPE */
    assert_int_equal(tr_fds_send(pair[0], "x", 1, NULL, 0), -1);
    assert_int_equal(errno, EPIPE);
    close(pair[0]);
}

/* ---- commands ----------------------------------------------------------- */

static void
test_commands_collapse(void **state)
{
    uint64_t id = TR_ID(70, 3);
    tr_channel_map_t m;
    int fd;

    (void) state;
    assert_int_equal(tr_channel_create(128, 4096, 4096, 1, &m, &fd), TR_OK);
    assert_int_equal(tr_control_get(&m, id), 0);
    assert_int_equal(tr_control_take(&m, 1), 0);
    assert_int_equal(tr_control_set(&m, id, TR_CONTROL_PAUSE), 0);
    assert_int_equal(tr_control_set(&m, id, 0), 0);
    assert_int_equal(tr_control_set(&m, id,
                                    TR_CONTROL_PAUSE | TR_CONTROL_ABORT),
                     0);
    assert_int_equal(tr_control_take(&m, 0), 0);
    assert_int_equal(tr_control_take(&m, 1), 1ull << (70 - 64));
    assert_int_equal(tr_control_take(&m, 1), 0);
    assert_int_equal(tr_control_get(&m, id),
                     TR_CONTROL_PAUSE | TR_CONTROL_ABORT);
    tr_channel_unmap(&m);
    close(fd);
}

/* A command is for one generation of its slot, and comes before its body
 * too. */
static void
test_commands_know_their_generation(void **state)
{
    tr_channel_map_t m;
    int fd;

    (void) state;
    assert_int_equal(tr_channel_create(64, 4096, 4096, 1, &m, &fd), TR_OK);
    tr_control_set(&m, TR_ID(5, 9), TR_CONTROL_ABORT);
    assert_int_equal(tr_control_get(&m, TR_ID(5, 8)), 0);
    assert_int_equal(tr_control_get(&m, TR_ID(5, 9)), TR_CONTROL_ABORT);
    assert_int_equal(tr_control_get(&m, TR_ID(5, 10)), 0);
    assert_int_equal(tr_control_get(&m, TR_ID(6, 9)), 0);
    /* outside of the channel: nothing is touched */
    assert_int_equal(tr_control_set(&m, TR_ID(64, 9), TR_CONTROL_ABORT), 0);
    assert_int_equal(tr_control_set(&m, TR_ID(UINT32_MAX, 9), 3), 0);
    assert_int_equal(tr_control_get(&m, TR_ID(64, 9)), 0);
    assert_int_equal(tr_control_get(&m, TR_ID(UINT32_MAX, 9)), 0);
    /* bits that nobody has defined do not get through */
    tr_control_set(&m, TR_ID(5, 11), 0xffffffff);
    assert_int_equal(tr_control_get(&m, TR_ID(5, 11)),
                     TR_CONTROL_ABORT | TR_CONTROL_PAUSE | TR_CONTROL_DETACH
                         | TR_CONTROL_STAY | TR_CONTROL_END);
    /* so is what its request may sample */
    tr_allow_set(&m, TR_ID(5, 11), 77);
    assert_int_equal(tr_allow_get(&m, TR_ID(5, 11)), 77);
    assert_int_equal(tr_allow_get(&m, TR_ID(5, 12)), 0);
    assert_int_equal(tr_allow_get(&m, TR_ID(6, 11)), 0);
    assert_int_equal(tr_allow_set(&m, TR_ID(64, 11), 1), 0);
    assert_int_equal(tr_allow_get(&m, TR_ID(64, 11)), 0);
    assert_int_equal(tr_control_take(&m, 0), 1ull << 5);
    tr_channel_unmap(&m);
    close(fd);
}

static void
test_a_command_wakes_the_engine(void **state)
{
    tr_channel_map_t m;
    tr_ring_consumer_t c;
    int fd;

    (void) state;
    assert_int_equal(tr_channel_create(128, 4096, 4096, 1, &m, &fd), TR_OK);
    tr_ring_consumer_init(&c, m.request, m.request_data, m.request_capacity);
    assert_int_equal(tr_channel_sleep(&m, &c), TR_AGAIN);
    assert_int_equal(tr_control_set(&m, TR_ID(100, 1), TR_CONTROL_PAUSE), 1);
    assert_int_equal(tr_control_set(&m, TR_ID(100, 1), 0), 0);
    /* set while the engine was awake: the sleep notices */
    assert_int_equal(tr_channel_sleep(&m, &c), TR_OK);
    assert_int_equal(atomic_load(&m.request->consumer_asleep), 0);
    assert_int_equal(tr_control_take(&m, 1), 1ull << 36);
    assert_int_equal(tr_channel_sleep(&m, &c), TR_AGAIN);
    /* an impossible index is refused there too */
    atomic_store(&m.request->tail, 3);
    assert_int_equal(tr_channel_sleep(&m, &c), TR_ERR_PROTOCOL);
    tr_channel_unmap(&m);
    close(fd);
}

/* Two threads: every last command arrives, with no ring lost. */
typedef struct {
    tr_channel_map_t map;
    int bell;
} commander_t;

#define COMMAND_ROUNDS 100000u

static void *
command(void *arg)
{
    commander_t *w = arg;
    uint32_t n;

    for (n = 1; n <= COMMAND_ROUNDS; n++) {
        if (tr_control_set(&w->map, TR_ID(n % 64, n),
                           n == COMMAND_ROUNDS ? TR_CONTROL_ABORT
                                               : TR_CONTROL_PAUSE)) {
            tr_doorbell_ring(w->bell);
        }
    }
    return NULL;
}

static void
test_commands_between_threads(void **state)
{
    const uint64_t last = TR_ID(COMMAND_ROUNDS % 64, COMMAND_ROUNDS);
    tr_ring_consumer_t c;
    pthread_t thread;
    commander_t w;
    int fd;

    (void) state;
    assert_int_equal(tr_channel_create(64, 4096, 4096, 1, &w.map, &fd), TR_OK);
    w.bell = eventfd(0, EFD_CLOEXEC); /* blocks: a lost ring hangs the test */
    tr_ring_consumer_init(&c, w.map.request, w.map.request_data,
                          w.map.request_capacity);
    assert_int_equal(pthread_create(&thread, NULL, command, &w), 0);
    for (;;) {
        uint64_t bits = tr_control_take(&w.map, 0);

        if ((bits >> (COMMAND_ROUNDS % 64)) & 1
            && tr_control_get(&w.map, last) == TR_CONTROL_ABORT) {
            break;
        }
        if (bits == 0 && tr_channel_sleep(&w.map, &c) == TR_AGAIN) {
            tr_doorbell_drain(w.bell);
        }
    }
    pthread_join(thread, NULL);
    close(w.bell);
    tr_channel_unmap(&w.map);
    close(fd);
}

/* ---- handshake ---------------------------------------------------------- */

static void
test_versions_meet(void **state)
{
    char why[TR_WELCOME_MESSAGE];
    tr_welcome_t welcome;
    tr_hello_t hello;

    (void) state;
    tr_hello_init(&hello, TR_ROLE_WORKER);
    assert_int_equal(tr_hello_answer(&hello, 42, &welcome), TR_OK);
    assert_int_equal(welcome.refused, 0);
    assert_int_equal(welcome.version, TR_ABI_VERSION);
    assert_int_equal(welcome.generation, 42);
    assert_int_equal(tr_welcome_check(&welcome, why), TR_OK);
    /* each side hears what the other can do, and uses what both can */
    assert_int_equal(tr_features(welcome.features), TR_FEATURES);
    assert_int_equal(tr_features(hello.features), TR_FEATURES);
    hello.features[0] = TR_FEATURE_IDS | 0x80000000u; /* and one to come */
    assert_int_equal(tr_features(hello.features), TR_FEATURE_IDS);
    /* a newer peer that still speaks ours */
    hello.version_max = TR_ABI_VERSION + 5;
    assert_int_equal(tr_hello_answer(&hello, 42, &welcome), TR_OK);
    assert_int_equal(welcome.version, TR_ABI_VERSION);
}

static void
test_versions_that_do_not_meet(void **state)
{
    static const uint32_t ranges[][2] = {
        { TR_ABI_VERSION + 1, TR_ABI_VERSION + 3 },
        { 0, TR_ABI_VERSION_MIN - 1 },
        { TR_ABI_VERSION + 1, TR_ABI_VERSION },
    };
    char why[TR_WELCOME_MESSAGE], theirs[64], ours[64];
    tr_welcome_t welcome;
    tr_hello_t hello;
    size_t i;

    (void) state;
    snprintf(ours, sizeof(ours), "this engine %u to %u", TR_ABI_VERSION_MIN,
             TR_ABI_VERSION);
    for (i = 0; i < 3; i++) {
        tr_hello_init(&hello, TR_ROLE_WORKER);
        hello.version_min = ranges[i][0];
        hello.version_max = ranges[i][1];
        assert_int_equal(tr_hello_answer(&hello, 42, &welcome), TR_ERR_VERSION);
        assert_int_equal(welcome.refused, 1);
        assert_int_equal(welcome.version, 0);
        snprintf(theirs, sizeof(theirs), "versions %u to %u", ranges[i][0],
                 ranges[i][1]);
        assert_int_not_equal(tr_welcome_check(&welcome, why), TR_OK);
        assert_non_null(strstr(why, theirs));
        assert_non_null(strstr(why, ours));
    }
    /* the peer's own view of an engine from the future */
    welcome.version_min = TR_ABI_VERSION + 1;
    welcome.version_max = TR_ABI_VERSION + 2;
    assert_int_equal(tr_welcome_check(&welcome, why), TR_ERR_VERSION);
}

static void
test_strangers_are_refused(void **state)
{
    char why[TR_WELCOME_MESSAGE];
    tr_welcome_t welcome;
    tr_hello_t hello;

    (void) state;
    memset(&hello, 0, sizeof(hello));
    memcpy(&hello, "GET / HTTP/1.1\r\n", 16);
    assert_int_equal(tr_hello_answer(&hello, 1, &welcome), TR_ERR_PROTOCOL);
    assert_int_equal(tr_welcome_check(&welcome, why), TR_ERR_CLOSED);
    assert_non_null(strstr(why, "did not say hello"));

    tr_hello_init(&hello, TR_ROLE_WORKER);
    hello.drain = TR_DRAIN_START; /* is for the command line */
    assert_int_equal(tr_hello_answer(&hello, 1, &welcome), TR_ERR_PROTOCOL);
    hello.role = TR_ROLE_CLI;
    assert_int_equal(tr_hello_answer(&hello, 1, &welcome), TR_OK);
    hello.drain = TR_DRAIN_MOVE_LEAVE + 1;
    assert_int_equal(tr_hello_answer(&hello, 1, &welcome), TR_ERR_PROTOCOL);

    tr_hello_init(&hello, 7);
    assert_int_equal(tr_hello_answer(&hello, 1, &welcome), TR_ERR_PROTOCOL);
    assert_int_equal(tr_welcome_check(&welcome, why), TR_ERR_CLOSED);
    assert_non_null(strstr(why, "unknown role 7"));

    /* answers that are none */
    memset(&welcome, 0, sizeof(welcome));
    assert_int_equal(tr_welcome_check(&welcome, why), TR_ERR_PROTOCOL);
    tr_hello_init(&hello, TR_ROLE_CLI);
    assert_int_equal(tr_hello_answer(&hello, 1, &welcome), TR_OK);
    welcome.version = TR_ABI_VERSION + 1;
    assert_int_equal(tr_welcome_check(&welcome, why), TR_ERR_PROTOCOL);
    /* a message without an end */
    tr_welcome_refuse(&welcome, "no");
    memset(welcome.message, 'x', sizeof(welcome.message));
    assert_int_equal(tr_welcome_check(&welcome, why), TR_ERR_CLOSED);
    assert_int_equal(strlen(why), TR_WELCOME_MESSAGE - 1);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sizes_are_rounded_and_bounded),
        cmocka_unit_test(test_both_sides_see_the_same),
        cmocka_unit_test(test_regions_do_not_overlap),
        cmocka_unit_test(test_forged_headers_are_refused),
        cmocka_unit_test(test_wrong_seals_and_sizes_are_refused),
        cmocka_unit_test(test_a_channel_keeps_its_size),
        cmocka_unit_test(test_a_channel_has_no_holes),
        cmocka_unit_test(test_pulse),
        cmocka_unit_test(test_descriptors_travel),
        cmocka_unit_test(test_wrong_numbers_are_closed),
        cmocka_unit_test(test_no_room_for_descriptors),
        cmocka_unit_test(test_send_to_a_closed_peer),
        cmocka_unit_test(test_commands_collapse),
        cmocka_unit_test(test_commands_know_their_generation),
        cmocka_unit_test(test_a_command_wakes_the_engine),
        cmocka_unit_test(test_commands_between_threads),
        cmocka_unit_test(test_versions_meet),
        cmocka_unit_test(test_versions_that_do_not_meet),
        cmocka_unit_test(test_strangers_are_refused),
    };

    return cmocka_run_group_tests_name("channel", tests, NULL, NULL);
}
