/*
 * Device memory and pinned memory: a mapping each, which ends (but for the
 * rounding to 256 bytes) where a page begins that nobody may touch.
 * While no launch runs, the device's memory may not be touched at all.
 */
#include "device.h"

#include <stdlib.h>
#include <sys/mman.h>

#define PAGE 4096u
#define ALIGN 256u

typedef struct block {
    struct block *next;
    uint8_t *p, *map;
    size_t bytes, mapped; /* as asked for; with the page behind */
    bool pinned;
} block_t;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static block_t *blocks;
static size_t used; /* of the device's memory */
static bool open;   /* the device's memory may be touched: something runs */

size_t
soft_memory_used(void)
{
    size_t n;

    pthread_mutex_lock(&lock);
    n = used;
    pthread_mutex_unlock(&lock);
    return n;
}

bool
soft_known(const void *p, size_t bytes)
{
    const uint8_t *at = p;
    bool known = false;

    pthread_mutex_lock(&lock);
    for (const block_t *b = blocks; b != NULL && !known; b = b->next) {
        known = at >= b->p && bytes <= b->bytes
                && (size_t) (at - b->p) <= b->bytes - bytes;
    }
    pthread_mutex_unlock(&lock);
    return known;
}

/* With the lock. */
static void
block_protect(const block_t *b, bool yes)
{
    if (!b->pinned
        && mprotect(b->map, b->mapped - PAGE,
                    yes ? PROT_READ | PROT_WRITE : PROT_NONE)
               != 0) {
        abort();
    }
}

void
soft_memory_open(bool yes)
{
    pthread_mutex_lock(&lock);
    for (const block_t *b = open == yes ? NULL : blocks; b; b = b->next) {
        block_protect(b, yes);
    }
    open = yes;
    pthread_mutex_unlock(&lock);
}

static block_t *
map(size_t bytes)
{
    size_t room = tr_pad(tr_pad(bytes, ALIGN), PAGE), all = room + PAGE;
    block_t *b = calloc(1, sizeof(*b));

    if (b == NULL) {
        return NULL;
    }
    b->map = mmap(NULL, all, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (b->map == MAP_FAILED || mprotect(b->map + room, PAGE, PROT_NONE) != 0) {
        free(b);
        return NULL;
    }
    memset(b->map, 0xff, room);
    b->p = b->map + room - tr_pad(bytes, ALIGN);
    b->bytes = bytes;
    b->mapped = all;
    return b;
}

/* Memory that counts as the device's, or is pinned. */
static void *
take(size_t bytes, bool pinned)
{
    size_t size = soft_memory_size();
    block_t *b;

    if (soft_check() != TR_KERNEL_OK) {
        return NULL;
    }
    if (soft_capturing()) {
        soft_failed("memory was asked for while a graph is captured");
        return NULL;
    }
    if (bytes == 0 || soft_fails(pinned ? SOFT_PIN : SOFT_ALLOC)
        || (!pinned && (bytes > size || soft_memory_taken() > size - bytes))
        || (b = map(bytes)) == NULL) {
        soft_failed("out of memory: %zu bytes", bytes);
        return NULL;
    }
    b->pinned = pinned;
    pthread_mutex_lock(&lock);
    b->next = blocks;
    blocks = b;
    used += pinned ? 0 : bytes;
    block_protect(b, open);
    pthread_mutex_unlock(&lock);
    return b->p;
}

/* As on a device, what is under way may still use it: it is waited for. */
static void
give(void *p, bool pinned)
{
    block_t **at = &blocks, *b;

    if (p == NULL) {
        return;
    }
    soft_drain();
    pthread_mutex_lock(&lock);
    while (*at != NULL && ((*at)->p != p || (*at)->pinned != pinned)) {
        at = &(*at)->next;
    }
    b = *at;
    if (b == NULL) {
        abort(); /* not what was given, or given back before */
    }
    *at = b->next;
    used -= pinned ? 0 : b->bytes;
    pthread_mutex_unlock(&lock);
    soft_written(b->p, b->bytes);
    munmap(b->map, b->mapped);
    free(b);
}

void *
tr_cuda_alloc(size_t bytes)
{
    return take(bytes, false);
}

void
tr_cuda_release(void *p)
{
    give(p, false);
}

void *
tr_cuda_pin(size_t bytes)
{
    return take(bytes, true);
}

void
tr_cuda_unpin(void *p)
{
    give(p, true);
}

/* ---- copies ------------------------------------------------------------- */

typedef struct {
    uint8_t *to;
    const uint8_t *from;
    size_t bytes;
    int byte;
} copy_t;

static void
copy(void *args)
{
    const copy_t *a = args;

    memcpy(a->to, a->from, a->bytes);
    soft_written(a->to, a->bytes);
}

static void
fill(void *args)
{
    const copy_t *a = args;

    memset(a->to, a->byte, a->bytes);
    soft_written(a->to, a->bytes);
}

int
tr_cuda_copy(const tr_cuda_stream_t *s, void *to, const void *from,
             size_t bytes)
{
    copy_t a = { .to = to, .from = from, .bytes = bytes };

    if (bytes == 0) {
        return TR_KERNEL_OK;
    }
    if (!soft_known(to, bytes) || !soft_known(from, bytes)) {
        return soft_failed("copy %s memory that is neither the device's nor "
                           "pinned, or beyond its end",
                           soft_known(to, bytes) ? "from" : "to");
    }
    if (a.to < a.from + bytes && a.from < a.to + bytes) {
        return soft_failed("copy onto itself");
    }
    return soft_launch(s, "copy", copy, &a, sizeof(a));
}

/* A kernel: aligned, and of words. */
static int
small_copy(const tr_cuda_stream_t *s, void *to, const void *from, size_t bytes)
{
    return bytes % 4 != 0 || (uintptr_t) to % 16 != 0
                   || (uintptr_t) from % 16 != 0
               ? TR_KERNEL_BADARG
               : tr_cuda_copy(s, to, from, bytes);
}

int
tr_cuda_fetch(const tr_cuda_stream_t *s, void *to, const void *from,
              size_t bytes)
{
    return small_copy(s, to, from, bytes);
}

int
tr_cuda_send(const tr_cuda_stream_t *s, void *to, const void *from,
             size_t bytes)
{
    return small_copy(s, to, from, bytes);
}

int
tr_cuda_fill(const tr_cuda_stream_t *s, void *to, int byte, size_t bytes)
{
    copy_t a = { .to = to, .byte = byte, .bytes = bytes };

    if (bytes == 0) {
        return TR_KERNEL_OK;
    }
    if (!soft_known(to, bytes)) {
        return soft_failed("fill memory that is not the device's");
    }
    return soft_launch(s, "fill", fill, &a, sizeof(a));
}
