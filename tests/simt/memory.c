/*
 * Shared memory of the device in software (simt.h): barriers in it, and copies
 * to it, which arrive at random.
 */
#include <string.h>

#include "mp.h"

/* What is asked for at a launch, by the names it has in kernels/cuda. */
_Thread_local _Alignas(1024) uint8_t shared[SIMT_SHARED];
_Thread_local _Alignas(1024) uint32_t shared_before[SIMT_SHARED / 4];

typedef enum { COPY16, ARRIVE, BULK, BOX } copy_kind_t;

struct copy {
    copy_kind_t kind;
    uint8_t *dst;
    const uint8_t *src; /* BOX: the map */
    uint32_t bytes, thread;
    uint64_t *bar;
    uint32_t at[5]; /* BOX */
};

/* ---- barriers in shared memory ------------------------------------------- */

/* A barrier's 8 bytes: the parity of its phase (1 bit), arrivals of a phase
 * (15), those that are missing (16), bytes that are (32, signed). */
typedef struct {
    uint32_t parity, count, missing;
    int32_t bytes;
} bar_t;

static bar_t
bar_unpack(uint64_t x)
{
    return (bar_t){ x & 1, x >> 1 & 0x7fff, x >> 16 & 0xffff,
                    (int32_t) (x >> 32) };
}

static uint64_t
bar_pack(bar_t b)
{
    return b.parity | (uint64_t) b.count << 1 | (uint64_t) b.missing << 16
           | (uint64_t) (uint32_t) b.bytes << 32;
}

uint32_t
simt_address(const void *p)
{
    return (uint32_t) ((uintptr_t) p - (uintptr_t) shared);
}

uint8_t *
simt_pointer(uint32_t at)
{
    return shared + (int32_t) at;
}

static uint64_t *
bar_at(uint32_t bar)
{
    if (bar % 8 != 0) {
        simt_die("a barrier at %u", bar);
    }
    return (uint64_t *) (void *) simt_pointer(bar);
}

uint32_t
simt_bar_parity(uint32_t bar)
{
    return __atomic_load_n(bar_at(bar), __ATOMIC_ACQUIRE) & 1;
}

void
simt_bar_init(uint32_t bar, uint32_t count)
{
    if (count == 0 || count > 0x7fff) {
        simt_die("a barrier of %u", count);
    }
    __atomic_store_n(bar_at(bar), bar_pack((bar_t){ 0, count, count, 0 }),
                     __ATOMIC_RELEASE);
}

/* Arrivals, bytes that are expected, bytes that came. */
static void
bar_change(uint64_t *at, uint32_t arrive, uint32_t expect, uint32_t came)
{
    uint64_t old = __atomic_load_n(at, __ATOMIC_ACQUIRE), next;

    do {
        bar_t b = bar_unpack(old);

        if (old == UINT64_MAX) {
            simt_die("a barrier that nobody has initialised");
        }
        if (arrive > b.missing) {
            simt_die("%u arrivals at a barrier that misses %u of %u", arrive,
                     b.missing, b.count);
        }
        b.bytes += (int32_t) expect - (int32_t) came;
        b.missing -= arrive;
        if (b.missing == 0 && b.bytes == 0) {
            b.parity ^= 1;
            b.missing = b.count;
        }
        next = bar_pack(b);
    } while (!__atomic_compare_exchange_n(at, &old, next, false,
                                          __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE));
    if (simt_mp != NULL) {
        simt_mp->done_something = true;
    }
}

void
simt_bar_arrive(uint32_t bar, uint32_t count, uint32_t expect)
{
    bar_change(bar_at(bar), count, expect, 0);
}

void
simt_bar_wait(uint32_t bar, uint32_t parity)
{
    fiber_t *f = &simt_mp->fiber[simt_mp->now];

    f->at_bar = bar;
    f->parity = parity & 1;
    if (simt_bar_parity(bar) == f->parity) {
        simt_leave(WAITS);
    }
}

/* ---- copies to shared memory --------------------------------------------- */

static void
inside(uint32_t at, uint32_t bytes)
{
    if (at % 16 != 0 || at > SIMT_SHARED || bytes > SIMT_SHARED - at) {
        simt_die("a copy of %u bytes to shared memory at %u", bytes, at);
    }
}

static copy_t *
copy_new(copy_kind_t kind, uint32_t dst, const void *src, uint32_t bytes)
{
    mp_t *m = simt_mp;
    copy_t *c = &m->copy[m->copies];

    if (m->copies == COPIES_MAX) {
        simt_die("more than %u copies on their way", COPIES_MAX);
    }
    m->copies++;
    c->kind = kind;
    c->dst = simt_pointer(dst);
    c->src = src;
    c->bytes = bytes;
    c->thread = m->now;
    c->bar = NULL;
    return c;
}

void
simt_copy16(uint32_t dst, const void *src, uint32_t bytes)
{
    inside(dst, 16);
    if (bytes > 16 || (bytes > 0 && (uintptr_t) src % 16 != 0)) {
        simt_die("a copy of %u bytes from %p", bytes, src);
    }
    copy_new(COPY16, dst, src, bytes);
}

void
simt_copy_arrive(uint32_t bar)
{
    copy_new(ARRIVE, 0, NULL, 0)->bar = bar_at(bar);
}

void
simt_copy_bulk(uint32_t dst, const void *src, uint32_t bytes, uint32_t bar)
{
    inside(dst, bytes);
    if (bytes % 16 != 0 || (uintptr_t) src % 16 != 0) {
        simt_die("a bulk copy of %u bytes from %p", bytes, src);
    }
    copy_new(BULK, dst, src, bytes)->bar = bar_at(bar);
}

void
simt_copy_box(uint32_t dst, const void *map, const uint32_t *at, uint32_t bar)
{
    const simt_map_t *b = map;
    uint32_t bytes = b->element;
    copy_t *c;

    if (b->rank == 0) {
        simt_die("a map that was not made");
    }
    for (uint32_t i = 0; i < b->rank; i++) {
        bytes *= b->box[i];
    }
    inside(dst, bytes);
    if (b->swizzle && dst % 128 != 0) {
        simt_die("a box at %u", dst);
    }
    c = copy_new(BOX, dst, map, bytes);
    c->bar = bar_at(bar);
    memcpy(c->at, at, b->rank * sizeof(*at));
}

/* A box, in chunks of 16 bytes: outside of the tensor are zeros. */
static void
box_arrives(const copy_t *c)
{
    const simt_map_t *b = (const void *) c->src;
    uint32_t row = b->box[0] * b->element, base = simt_address(c->dst);

    for (uint32_t i = 0; i < c->bytes; i += 16) {
        uint32_t rest = i / row, at = base + i;
        uint64_t x = c->at[0] + i % row / b->element;
        const uint8_t *from = b->at + x * b->element;
        bool there = x < b->dims[0];

        for (uint32_t d = 1; d < b->rank; d++) {
            uint64_t y = (uint64_t) c->at[d] + rest % b->box[d];

            rest /= b->box[d];
            there = there && y < b->dims[d];
            from += y * b->strides[d - 1];
        }
        if (b->swizzle) {
            at ^= (at >> 7 & 7) << 4;
        }
        if (there) {
            memcpy(simt_pointer(at), from, 16);
        } else {
            memset(simt_pointer(at), 0, 16);
        }
    }
}

static void
copy_arrives(const copy_t *c)
{
    switch (c->kind) {
    case COPY16:
        memset(c->dst, 0, 16);
        memcpy(c->dst, c->src, c->bytes);
        return;
    case ARRIVE:
        bar_change(c->bar, 1, 0, 0);
        return;
    case BULK:
        memcpy(c->dst, c->src, c->bytes);
        break;
    case BOX:
        box_arrives(c);
        break;
    }
    bar_change(c->bar, 0, 0, c->bytes);
}

void
simt_copies_arrive(mp_t *m, bool all)
{
    static _Thread_local bool held[SIMT_THREADS_MAX];
    uint32_t left = 0;

    memset(held, 0, m->threads * sizeof(held[0]));
    for (uint32_t i = 0; i < m->copies; i++) {
        copy_t *c = &m->copy[i];
        bool own = c->kind == COPY16 || c->kind == ARRIVE;

        if ((!all && simt_random(m, 4) != 0) || (own && held[c->thread])) {
            held[c->thread] = held[c->thread] || own;
            m->copy[left++] = *c;
            continue;
        }
        copy_arrives(c);
        m->done_something = true;
    }
    m->copies = left;
}

void
simt_cluster_store(uint32_t at, const void *x, uint32_t bytes, uint32_t bar,
                   uint32_t rank)
{
    uint8_t *to = simt_shared_of(rank);

    memcpy(to + at, x, bytes);
    bar_change((uint64_t *) (void *) (to + bar), 0, 0, bytes);
}

void
simt_copies_open(mp_t *m)
{
    m->copy = simt_alloc(COPIES_MAX * sizeof(*m->copy));
}
