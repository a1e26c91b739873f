/*
 * The ring of free pages and the owner map (kv_pages.h).
 */
#include "kv_pages.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "engine/config/log.h"

/* A page with two owners means that one sequence reads another's text: there
 * is no state to go on with. */
static void __attribute__((noreturn, cold))
tr_kv_pages_fault(const char *what, int64_t page, uint32_t owner, uint32_t have)
{
    tr_log(TR_LEVEL_ERROR,
           "kv pages corrupt what=\"%s\" page=%lld owner=%u"
           " expected=%u",
           what, (long long) page, have, owner);
    abort();
}

tr_status_t
tr_kv_pages_init(tr_kv_pages_t *p, uint32_t n, uint64_t bytes, tr_error_t *err)
{
    void *memory;
    uint32_t i;

    memset(p, 0, sizeof(*p));
    memory = mmap(NULL, n * bytes, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
        return tr_error_set(err, TR_ERR_NOMEM, "kv_memory",
                            "cannot map %llu bytes for %u KV pages",
                            (unsigned long long) (n * bytes), n);
    }
    p->memory = memory;
    p->n = n;
    p->bytes = bytes;
    p->ring = malloc(n * sizeof(*p->ring));
    p->owner = malloc(n * sizeof(*p->owner));
    if (p->ring == NULL || p->owner == NULL) {
        tr_kv_pages_free(p);
        return tr_error_set(err, TR_ERR_NOMEM, "kv_memory",
                            "no memory for the list of %u KV pages", n);
    }
    for (i = 0; i < n; i++) {
        p->ring[i] = (int32_t) i;
        p->owner[i] = TR_KV_NOBODY;
    }
    p->end = n;
    return TR_OK;
}

void
tr_kv_pages_free(tr_kv_pages_t *p)
{
    if (p->memory != NULL) {
        munmap(p->memory, p->n * p->bytes);
    }
    free(p->ring);
    free(p->owner);
    memset(p, 0, sizeof(*p));
}

uint64_t
tr_kv_pages_claim(tr_kv_pages_t *p, uint64_t n)
{
    uint64_t first = p->start;

    if (n > p->end - p->start) {
        tr_kv_pages_fault("more taken than are free", -1, 0, TR_KV_NOBODY);
    }
    p->start += n;
    return first;
}

void
tr_kv_pages_fetch(tr_kv_pages_t *p, uint64_t first, uint32_t n, uint32_t owner,
                  int32_t *out, int32_t step)
{
    uint32_t i, at = n == 0 ? 0 : (uint32_t) (first % p->n);

    for (i = 0; i < n; i++, out += step) {
        int32_t page = p->ring[at];

        at = at + 1 == p->n ? 0 : at + 1;
        if (p->owner[page] != TR_KV_NOBODY) {
            tr_kv_pages_fault("free page has an owner", page, TR_KV_NOBODY,
                              p->owner[page]);
        }
        p->owner[page] = owner;
        *out = page;
#ifdef TR_KV_POISON
        memset(tr_kv_page(p, page), TR_KV_POISON, p->bytes);
#endif
    }
}

uint64_t
tr_kv_pages_clear(tr_kv_pages_t *p, uint64_t n)
{
    uint64_t first = p->end;

    if (n > p->n - (p->end - p->start)) {
        tr_kv_pages_fault("more free pages than pages", -1, 0, TR_KV_NOBODY);
    }
    if (p->recent) {
        p->start -= n;
        return p->start;
    }
    p->end += n;
    return first;
}

void
tr_kv_pages_store(tr_kv_pages_t *p, uint64_t first, uint32_t n, uint32_t owner,
                  int32_t *pages, int32_t step)
{
    uint32_t i, at = n == 0 ? 0 : (uint32_t) (first % p->n);

    for (i = 0; i < n; i++, pages += step) {
        int32_t page = *pages;

        if (page < 0 || (uint32_t) page >= p->n) {
            tr_kv_pages_fault("no such page", page, owner, TR_KV_NOBODY);
        }
        if (p->owner[page] != owner) {
            tr_kv_pages_fault("given back by another than its owner", page,
                              owner, p->owner[page]);
        }
        p->owner[page] = TR_KV_NOBODY;
        p->ring[at] = page;
        at = at + 1 == p->n ? 0 : at + 1;
        *pages = -1;
#ifdef TR_KV_POISON
        memset(tr_kv_page(p, page), TR_KV_POISON, p->bytes);
#endif
    }
}

int32_t
tr_kv_pages_take(tr_kv_pages_t *p, uint32_t owner)
{
    int32_t page = -1;

    tr_kv_pages_fetch(p, tr_kv_pages_claim(p, 1), 1, owner, &page, 1);
    return page;
}

void
tr_kv_pages_give(tr_kv_pages_t *p, int32_t page, uint32_t owner)
{
    tr_kv_pages_store(p, tr_kv_pages_clear(p, 1), 1, owner, &page, 1);
}

bool
tr_kv_pages_sound(const tr_kv_pages_t *p)
{
    uint64_t i;
    uint32_t unowned = 0;
    bool sound = true;
    uint8_t *seen = calloc(p->n, 1);

    if (seen == NULL || p->end - p->start > p->n) {
        free(seen);
        return false;
    }
    for (i = p->start; i != p->end && sound; i++) {
        int32_t page = p->ring[i % p->n];

        sound = page >= 0 && (uint32_t) page < p->n && !seen[page]
                && p->owner[page] == TR_KV_NOBODY;
        if (sound) {
            seen[page] = 1;
        }
    }
    for (i = 0; i < p->n; i++) {
        unowned += p->owner[i] == TR_KV_NOBODY;
    }
    free(seen);
    return sound && unowned == tr_kv_pages_left(p);
}
