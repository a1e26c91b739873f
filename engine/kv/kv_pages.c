/*
 * The stack of swap pages and the owner map (kv_pages.h).
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

void *
tr_kv_map(size_t bytes)
{
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    return at == MAP_FAILED ? NULL : at;
}

tr_status_t
tr_kv_pages_init(tr_kv_pages_t *p, uint32_t n, uint64_t bytes, tr_error_t *err)
{
    void *memory;
    uint32_t i;

    memset(p, 0, sizeof(*p));
    memory = tr_kv_map(n * bytes);
    if (memory == NULL) {
        return tr_error_set(err, TR_ERR_NOMEM, "swap_memory",
                            "cannot map %llu bytes for %u KV pages",
                            (unsigned long long) (n * bytes), n);
    }
    p->memory = memory;
    p->n = n;
    p->bytes = bytes;
    p->id = malloc(n * sizeof(*p->id));
    p->owner = malloc(n * sizeof(*p->owner));
    if (p->id == NULL || p->owner == NULL) {
        tr_kv_pages_free(p);
        return tr_error_set(err, TR_ERR_NOMEM, "swap_memory",
                            "no memory for the list of %u KV pages", n);
    }
    for (i = 0; i < n; i++) {
        p->id[i] = (int32_t) i;
        p->owner[i] = TR_KV_NOBODY;
    }
    return TR_OK;
}

void
tr_kv_pages_free(tr_kv_pages_t *p)
{
    if (p->memory != NULL) {
        munmap(p->memory, p->n * p->bytes);
    }
    free(p->id);
    free(p->owner);
    memset(p, 0, sizeof(*p));
}

int32_t
tr_kv_pages_take(tr_kv_pages_t *p, uint32_t at, uint32_t owner)
{
    int32_t page = p->id[at];

    if (p->owner[page] != TR_KV_NOBODY) {
        tr_kv_pages_fault("free page has an owner", page, TR_KV_NOBODY,
                          p->owner[page]);
    }
    p->owner[page] = owner;
    return page;
}

void
tr_kv_pages_give(tr_kv_pages_t *p, uint32_t at, int32_t page, uint32_t owner)
{
    if (page < 0 || (uint32_t) page >= p->n) {
        tr_kv_pages_fault("no such page", page, owner, TR_KV_NOBODY);
    }
    if (p->owner[page] != owner) {
        tr_kv_pages_fault("given back by another than its owner", page, owner,
                          p->owner[page]);
    }
    p->owner[page] = TR_KV_NOBODY;
    p->id[at] = page;
}

bool
tr_kv_pages_sound(const tr_kv_pages_t *p)
{
    uint32_t i, unowned = 0;
    bool sound = p->used <= p->n;
    uint8_t *seen = calloc(p->n, 1);

    if (seen == NULL) {
        return false;
    }
    for (i = p->used; i < p->n && sound; i++) {
        int32_t page = p->id[i];

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
    return sound && unowned == p->n - p->used;
}
