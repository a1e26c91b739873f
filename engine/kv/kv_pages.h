/*
 * Pages of host memory for sequences that are swapped out: a stack of page ids,
 * so that only as many are ever touched as were in use at once.  (The pages of
 * the cache itself are the manager's: kernels/kv_manager.)
 *
 *   id [0, used)   was taken; page i of a slot that goes out is id[used + i]
 *   id [used, n)   free; who comes in gives back to id[used - pages + i]
 *
 * Each page knows its owner.  To give back a page that its giver does not own,
 * or to take one that has an owner, ends the process: it is memory corruption
 * already.
 */
#ifndef TR_KV_PAGES_H
#define TR_KV_PAGES_H

#include <stdbool.h>
#include <stdint.h>

#include <tokenring/error.h>

#define TR_KV_NOBODY UINT32_MAX

typedef struct {
    uint32_t n, used;
    uint64_t bytes;  /* of one page */
    int32_t *id;     /* [n] */
    uint32_t *owner; /* [n] by page, TR_KV_NOBODY when free */
    uint8_t *memory; /* [n * bytes], touched when first used */
} tr_kv_pages_t;

/* n pages of `bytes` (a multiple of 64) each. */
tr_status_t tr_kv_pages_init(tr_kv_pages_t *p, uint32_t n, uint64_t bytes,
                             tr_error_t *err);
void tr_kv_pages_free(tr_kv_pages_t *p);

static inline uint32_t
tr_kv_pages_left(const tr_kv_pages_t *p)
{
    return p->n - p->used;
}

/* The page at this place of the stack goes to `owner`, or comes back there.
 * Different places may be used in parallel; `used` is the caller's to move. */
int32_t tr_kv_pages_take(tr_kv_pages_t *p, uint32_t at, uint32_t owner);
void tr_kv_pages_give(tr_kv_pages_t *p, uint32_t at, int32_t page,
                      uint32_t owner);

/* Zeroed memory that is there as soon as it is touched; munmap gives it back.
 * NULL: there is no room in the address space. */
void *tr_kv_map(size_t bytes);

/* Looks at everything: each page is free exactly once or owned exactly once.
 * Linear; for tests and for the end of a run. */
bool tr_kv_pages_sound(const tr_kv_pages_t *p);

static inline uint8_t *
tr_kv_page(const tr_kv_pages_t *p, int32_t page)
{
    return p->memory + (uint64_t) page * p->bytes;
}

#endif
