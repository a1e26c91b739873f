/*
 * Bodies of channel.h, which includes this.
 */
#ifndef TOKENRING_CHANNEL_INLINE_H
#define TOKENRING_CHANNEL_INLINE_H

#include <errno.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <tokenring/channel.h>

#define TR_TMPFS_MAGIC 0x01021994 /* where memfds of ordinary pages live */

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

/* 1 if fd is a memfd of ordinary pages with (at least) these seals and exactly
 * this size, or any size when size is 0. */
static inline int
tr_memfd_verify(int fd, int seals, uint64_t size)
{
    struct statfs fs;
    struct stat st;
    int have = fcntl(fd, F_GET_SEALS);

    if (have == -1 || (have & seals) != seals || fstat(fd, &st) != 0) {
        return 0;
    }
    /* huge pages may be missing when they are touched, which is a SIGBUS */
    if (fstatfs(fd, &fs) != 0 || fs.f_type != TR_TMPFS_MAGIC) {
        return 0;
    }
    return st.st_size > 0 && (size == 0 || (uint64_t) st.st_size == size);
}

/* A sealed, mapped, zeroed memfd.  Its memory is taken now: running out later
 * would be a SIGBUS in whoever touches the page first. */
static inline tr_status_t
tr_memfd_create(const char *name, uint64_t size, int seals, void **base,
                int *fd)
{
    tr_status_t rc = TR_ERR_IO;

    *base = NULL;
    *fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (*fd == -1) {
        return TR_ERR_IO;
    }
    if (ftruncate(*fd, (off_t) size) != 0
        || fallocate(*fd, 0, 0, (off_t) size) != 0) {
        rc = TR_ERR_NOMEM;
        goto failed;
    }
    *base = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, *fd, 0);
    if (*base == MAP_FAILED) {
        rc = TR_ERR_NOMEM;
        goto failed;
    }
    if (fcntl(*fd, F_ADD_SEALS, seals) == 0) {
        return TR_OK;
    }
    munmap(*base, size);

failed:

    close(*fd);
    *fd = -1;
    return rc;
}

/* Fills the private view from checked numbers. */
static inline void
tr_channel_view(tr_channel_map_t *out, void *base, const tr_channel_header_t *h)
{
    uint8_t *at = (uint8_t *) base;

    out->map = (tr_channel_header_t *) base;
    out->pulse = (tr_channel_pulse_t *) (void *) (at + TR_CHANNEL_PULSE);
    out->size = h->size;
    out->slots = h->slots;
    out->generation = h->generation;
    out->control = (_Atomic uint64_t *) (void *) (at + h->control_offset);
    out->allow = (_Atomic uint64_t *) (void *) (at + h->allow_offset);
    out->dirty = (_Atomic uint64_t *) (void *) (at + h->dirty_offset);
    out->request = (tr_ring_shared_t *) (void *) (at + h->request_offset);
    out->request_data = at + h->request_offset + sizeof(tr_ring_shared_t);
    out->request_capacity = h->request_capacity;
    out->answer = (tr_ring_shared_t *) (void *) (at + h->answer_offset);
    out->answer_data = at + h->answer_offset + sizeof(tr_ring_shared_t);
    out->answer_capacity = h->answer_capacity;
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
    h->allow_offset = h->control_offset + 8ull * slots;
    h->dirty_offset = h->allow_offset + 8ull * slots;
    h->request_offset = (h->dirty_offset + slots / 8 + 63) & ~63ull;
    h->request_capacity = request;
    h->answer_offset = h->request_offset + sizeof(tr_ring_shared_t) + request;
    h->answer_capacity = TR_CHANNEL_ANSWERS;
    h->response_offset = h->answer_offset + sizeof(tr_ring_shared_t)
                         + TR_CHANNEL_ANSWERS;
    h->response_capacity = response;
    h->size = h->response_offset + sizeof(tr_ring_shared_t) + response;
    h->size = (h->size + 4095) & ~4095ull;
}

static inline tr_status_t
tr_channel_create(uint32_t slots, uint32_t request_capacity,
                  uint32_t response_capacity, uint64_t generation,
                  tr_channel_map_t *out, int *fd)
{
    tr_channel_header_t h;
    tr_status_t rc;
    void *base;

    memset(out, 0, sizeof(*out));
    tr_channel_layout(&h, tr_channel_round_slots(slots),
                      tr_channel_round_ring(request_capacity),
                      tr_channel_round_ring(response_capacity), generation);
    rc = tr_memfd_create("tokenring-channel", h.size, TR_CHANNEL_SEALS, &base,
                         fd);
    if (rc != TR_OK) {
        return rc;
    }
    memcpy(base, &h, sizeof(h));
    tr_channel_view(out, base, &h);
    return TR_OK;
}

static inline tr_status_t
tr_channel_attach(int fd, tr_channel_map_t *out)
{
    tr_channel_header_t h, want;
    struct stat st;
    void *base;

    memset(out, 0, sizeof(*out));
    if (!tr_memfd_verify(fd, TR_CHANNEL_SEALS, 0) || fstat(fd, &st) != 0
        || st.st_size < 4096) {
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
    if (memcmp(&want, &h, sizeof(h)) != 0 || want.size != (uint64_t) st.st_size
        || fcntl(fd, F_ADD_SEALS, TR_CHANNEL_SEALS_LAST) != 0) {
        munmap(base, (size_t) st.st_size);
        return TR_ERR_PROTOCOL;
    }
    tr_channel_view(out, base, &h);
    return TR_OK;
}

static inline int
tr_channel_sealed(int fd)
{
    return tr_memfd_verify(fd, TR_CHANNEL_SEALS | TR_CHANNEL_SEALS_LAST, 0);
}

static inline void
tr_channel_unmap(tr_channel_map_t *map)
{
    if (map->map != NULL) {
        munmap(map->map, map->size);
        memset(map, 0, sizeof(*map));
    }
}

static inline tr_status_t
tr_status_create(uint64_t generation, tr_status_page_t **out, int *fd)
{
    tr_status_page_t *page;
    tr_status_t rc;
    void *base;

    *out = NULL;
    rc = tr_memfd_create("tokenring-status", sizeof(*page), TR_STATUS_SEALS,
                         &base, fd);
    if (rc != TR_OK) {
        return rc;
    }
    page = (tr_status_page_t *) base;
    page->magic = TR_STATUS_MAGIC;
    page->version = TR_STATUS_VERSION;
    page->size = sizeof(*page);
    page->generation = generation;
    page->engine_pid = (uint32_t) getpid();
    *out = page;
    return TR_OK;
}

static inline tr_status_t
tr_status_attach(int fd, const tr_status_page_t **out)
{
    const tr_status_page_t *page;
    struct stat st;
    void *base;

    *out = NULL;
    if (!tr_memfd_verify(fd, TR_STATUS_SEALS, 0) || fstat(fd, &st) != 0
        || (uint64_t) st.st_size < sizeof(*page)) {
        return TR_ERR_PROTOCOL;
    }
    base = mmap(NULL, sizeof(*page), PROT_READ, MAP_SHARED, fd, 0);
    if (base == MAP_FAILED) {
        return TR_ERR_NOMEM;
    }
    page = (const tr_status_page_t *) base;
    if (page->magic != TR_STATUS_MAGIC || page->version != TR_STATUS_VERSION
        || page->size < sizeof(*page) || page->size != (uint64_t) st.st_size) {
        munmap(base, sizeof(*page));
        return TR_ERR_PROTOCOL;
    }
    *out = page;
    return TR_OK;
}

static inline void
tr_status_unmap(const tr_status_page_t *page)
{
    if (page != NULL) {
        munmap((void *) (uintptr_t) page, sizeof(*page));
    }
}

static inline int
tr_doorbell_create(void)
{
    return eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
}

static inline void
tr_doorbell_ring(int fd)
{
    uint64_t one = 1;
    ssize_t n;

    do {
        n = write(fd, &one, sizeof(one));
    } while (n == -1 && errno == EINTR);
}

static inline void
tr_doorbell_drain(int fd)
{
    uint64_t count;
    ssize_t n;

    do {
        n = read(fd, &count, sizeof(count));
    } while (n == -1 && errno == EINTR);
}

/* The engine's sleep flag is taken back: it must be rung. */
static inline int
tr_channel_wake(tr_channel_map_t *map)
{
    return atomic_load_explicit(&map->request->consumer_asleep,
                                memory_order_seq_cst)
               != 0
           && atomic_exchange_explicit(&map->request->consumer_asleep, 0,
                                       memory_order_seq_cst)
                  == 1;
}

static inline int
tr_channel_ping(tr_channel_map_t *map)
{
    atomic_fetch_add_explicit(&map->pulse->ping, 1, memory_order_seq_cst);
    return tr_channel_wake(map);
}

static inline int
tr_channel_front_answers(const tr_channel_map_t *map)
{
    return atomic_load_explicit(&map->pulse->pong_front, memory_order_acquire)
           == atomic_load_explicit(&map->pulse->ping, memory_order_relaxed);
}

static inline int
tr_channel_loop_answers(const tr_channel_map_t *map)
{
    return atomic_load_explicit(&map->pulse->pong_loop, memory_order_acquire)
           == atomic_load_explicit(&map->pulse->ping, memory_order_relaxed);
}

static inline void
tr_channel_fence(tr_channel_map_t *map)
{
    tr_ring_close(map->response);
    atomic_store_explicit(&map->pulse->fenced, 1, memory_order_seq_cst);
}

static inline int
tr_channel_fenced(const tr_channel_map_t *map)
{
    return map->pulse != NULL
           && atomic_load_explicit(&map->pulse->fenced, memory_order_seq_cst)
                  != 0;
}

static inline int
tr_channel_pinged(tr_channel_map_t *map)
{
    uint64_t ping = atomic_load_explicit(&map->pulse->ping,
                                         memory_order_seq_cst);

    if (ping == map->pinged) {
        return 0;
    }
    map->pinged = ping;
    atomic_store_explicit(&map->pulse->pong_front, ping, memory_order_release);
    return 1;
}

static inline void
tr_channel_pong(tr_channel_map_t *map)
{
    atomic_store_explicit(&map->pulse->pong_loop, map->pinged,
                          memory_order_release);
}

static inline tr_status_t
tr_channel_sleep(tr_channel_map_t *map, tr_ring_consumer_t *requests)
{
    tr_status_t rc = tr_ring_sleep(requests);
    uint32_t w;
    int seen;

    if (rc != TR_AGAIN) {
        return rc;
    }
    /* a ping or a control word set while the flag was still 0 did not ring */
    seen = atomic_load_explicit(&map->pulse->ping, memory_order_seq_cst)
           != map->pinged;
    for (w = 0; !seen && w < map->slots / 64; w++) {
        seen = atomic_load_explicit(&map->dirty[w], memory_order_seq_cst) != 0;
    }
    if (!seen) {
        return TR_AGAIN;
    }
    atomic_store_explicit(&map->request->consumer_asleep, 0,
                          memory_order_seq_cst);
    return TR_OK;
}

static inline void
tr_inbox_init(tr_inbox_t *in, const tr_channel_map_t *map)
{
    tr_ring_consumer_init(&in->answers, map->answer, map->answer_data,
                          map->answer_capacity);
    tr_ring_consumer_init(&in->responses, map->response, map->response_data,
                          map->response_capacity);
}

static inline uint32_t
tr_inbox_max_payload(const tr_channel_map_t *map)
{
    return tr_ring_max_payload(map->response_capacity > map->answer_capacity
                                   ? map->response_capacity
                                   : map->answer_capacity);
}

static inline tr_status_t
tr_inbox_get(tr_inbox_t *in, tr_record_t *rec, void *buf, size_t size)
{
    tr_status_t seen, rc;

    do {
        /* the order of these three is the promise above */
        seen = tr_ring_look(&in->responses);
        rc = tr_ring_get(&in->answers, rec, buf, size);
        if (rc != TR_AGAIN || seen != TR_OK) {
            return rc != TR_AGAIN ? rc : seen;
        }
        rc = tr_ring_next(&in->responses, rec, buf, size);
    } while (rc == TR_AGAIN); /* it was a PAD */
    return rc;
}

static inline int
tr_inbox_release(tr_inbox_t *in)
{
    int ring = tr_ring_release(&in->answers);

    return tr_ring_release(&in->responses) | ring;
}

static inline tr_status_t
tr_inbox_sleep(tr_inbox_t *in)
{
    tr_status_t rc = tr_ring_sleep(&in->answers);

    if (rc == TR_AGAIN) {
        rc = tr_ring_sleep(&in->responses);
    }
    if (rc != TR_AGAIN) {
        tr_inbox_awake(in);
    }
    return rc;
}

static inline void
tr_inbox_awake(tr_inbox_t *in)
{
    tr_ring_awake(&in->answers);
    tr_ring_awake(&in->responses);
}

/* A word of the request's slot, and its dirty bit. */
static inline int
tr_channel_tell(tr_channel_map_t *map, _Atomic uint64_t *words, uint64_t id,
                uint32_t value)
{
    uint32_t slot = (uint32_t) id;

    if (slot >= map->slots) {
        return 0;
    }
    atomic_store_explicit(&words[slot], (id & 0xffffffff00000000ull) | value,
                          memory_order_release);
    atomic_fetch_or_explicit(&map->dirty[slot / 64], 1ull << (slot % 64),
                             memory_order_seq_cst);
    return tr_channel_wake(map);
}

static inline int
tr_control_set(tr_channel_map_t *map, uint64_t id, uint32_t bits)
{
    return tr_channel_tell(map, map->control, id, bits);
}

static inline int
tr_allow_set(tr_channel_map_t *map, uint64_t id, uint32_t tokens)
{
    return tr_channel_tell(map, map->allow, id, tokens);
}

/* The low half of the request's word, 0 when it is of another generation. */
static inline uint32_t
tr_channel_told(const tr_channel_map_t *map, _Atomic uint64_t *words,
                uint64_t id)
{
    uint32_t slot = (uint32_t) id;
    uint64_t word;

    if (slot >= map->slots) {
        return 0;
    }
    word = atomic_load_explicit(&words[slot], memory_order_acquire);
    return (word >> 32) == (id >> 32) ? (uint32_t) word : 0;
}

static inline uint32_t
tr_allow_get(tr_channel_map_t *map, uint64_t id)
{
    return tr_channel_told(map, map->allow, id);
}

static inline uint32_t
tr_control_get(const tr_channel_map_t *map, uint64_t id)
{
    return tr_channel_told(map, map->control, id)
           & (TR_CONTROL_ABORT | TR_CONTROL_PAUSE | TR_CONTROL_DETACH
              | TR_CONTROL_STAY | TR_CONTROL_END);
}

static inline uint64_t
tr_control_take(tr_channel_map_t *map, uint32_t word)
{
    if (atomic_load_explicit(&map->dirty[word], memory_order_seq_cst) == 0) {
        return 0;
    }
    return atomic_exchange_explicit(&map->dirty[word], 0, memory_order_seq_cst);
}

#endif
