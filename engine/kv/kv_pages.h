/*
 * The free pages: a ring of page ids with a start and an end.
 *
 *        start               end = start + free
 *          v                  v
 *   ... used | id id id id id | used ...        (indices modulo n)
 *
 * Pages are taken at the start and come back at the end, so that many takers
 * (or a GPU's prefix sum) get disjoint ranges by adding.  Both indices count
 * pages since the beginning of time and are reduced on use only: full (end -
 * start = n) and empty (end = start) are different numbers.
 *
 * A ring goes round all of its pages, however few are in use.  Where untouched
 * memory is to stay so (swap), `recent` has them come back at the start, before
 * it: then only as many were ever touched as were in use at once.
 *
 * Each page knows its owner.  To give back a page that its giver does not own,
 * or more pages than there are, ends the process: it is memory corruption
 * already.  Builds with TR_DEBUG or a sanitizer also poison pages.
 */
#ifndef TR_KV_PAGES_H
#define TR_KV_PAGES_H

#include <stdbool.h>
#include <stdint.h>

#include <tokenring/error.h>

#if defined(TR_DEBUG) || defined(__SANITIZE_ADDRESS__) \
    || defined(__SANITIZE_THREAD__)
#define TR_KV_POISON 0xff /* as FP16: NaN, a softmax cannot miss it */
#endif

#define TR_KV_NOBODY UINT32_MAX

typedef struct {
    bool recent;     /* pages come back at the start; set before any is taken */
    uint32_t n;      /* pages */
    uint64_t bytes;  /* of one page */
    uint64_t start;  /* next to take; end - start pages are free */
    uint64_t end;    /* where the next one comes back */
    int32_t *ring;   /* [n] page ids */
    uint32_t *owner; /* [n] by page id, TR_KV_NOBODY when free */
    uint8_t *memory; /* [n * bytes], touched when first used */
} tr_kv_pages_t;

/* n pages of `bytes` (a multiple of 64) each. */
tr_status_t tr_kv_pages_init(tr_kv_pages_t *p, uint32_t n, uint64_t bytes,
                             tr_error_t *err);
void tr_kv_pages_free(tr_kv_pages_t *p);

static inline uint32_t
tr_kv_pages_left(const tr_kv_pages_t *p)
{
    return (uint32_t) (p->end - p->start);
}

/* Takes the next page for `owner`; the caller knows that one is left. */
int32_t tr_kv_pages_take(tr_kv_pages_t *p, uint32_t owner);
/* Gives back a page that `owner` took. */
void tr_kv_pages_give(tr_kv_pages_t *p, int32_t page, uint32_t owner);

/*
 * The same in two halves, for many takers at once: one thread moves the index
 * by the sum of what they want, then each fetches its own part of the range,
 * in parallel; out[0], out[step], .. out[(n - 1) * step].  A range that was
 * claimed must be fetched wholly before the next call of another kind.
 */
uint64_t tr_kv_pages_claim(tr_kv_pages_t *p, uint64_t n);
void tr_kv_pages_fetch(tr_kv_pages_t *p, uint64_t first, uint32_t n,
                       uint32_t owner, int32_t *out, int32_t step);
/* Back again; the entries become -1. */
uint64_t tr_kv_pages_clear(tr_kv_pages_t *p, uint64_t n);
void tr_kv_pages_store(tr_kv_pages_t *p, uint64_t first, uint32_t n,
                       uint32_t owner, int32_t *pages, int32_t step);

/* Looks at everything: each page is free exactly once or owned exactly once.
 * Linear; for tests and for the end of a run. */
bool tr_kv_pages_sound(const tr_kv_pages_t *p);

static inline uint8_t *
tr_kv_page(const tr_kv_pages_t *p, int32_t page)
{
    return p->memory + (uint64_t) page * p->bytes;
}

#endif
