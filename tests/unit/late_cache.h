/*
 * A KV cache that is as slow to answer as one on a device (kv_device.h), over
 * the host's: what is refused while a batch is under way may be granted later,
 * a compression may be tried with a batch before its answer is known, and the
 * next token of a compressed slot gets its pages, or none, when its row is
 * submitted.  For late_executor.h, one at a time.
 */
#ifndef TR_TEST_LATE_CACHE_H
#define TR_TEST_LATE_CACHE_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kv_internal.h"

#define LATE_SLOTS 4096

static struct {
    tr_kv_cache_t *kv;
    tr_kv_ops_t ops;
    uint32_t n_flying; /* the executor tells */
    enum { LATE_NOT, LATE_TRIED, LATE_ANSWERED } trial[LATE_SLOTS];
    uint32_t n_tried;
    /* and nothing came back since; by mistake: until what is under way has
     * arrived */
    enum { LATE_RUNS, LATE_STALLED, LATE_MISTAKEN } stalled[LATE_SLOTS];
    uint64_t random;
    uint32_t n_unsure, n_trials, n_stalled; /* so far */
} late_cache;

static inline uint32_t
late_cache_below(uint32_t n)
{
    late_cache.random = late_cache.random * 6364136223846793005ull
                        + 1442695040888963407ull;
    return (uint32_t) ((late_cache.random >> 33) % n);
}

static inline bool
late_cache_settled(const tr_kv_cache_t *kv)
{
    (void) kv;
    return late_cache.n_flying == 0 && late_cache.n_tried == 0;
}

static inline bool
late_cache_refuses(void)
{
    if (late_cache.n_flying == 0 || late_cache_below(12) != 0) {
        return false;
    }
    late_cache.n_unsure++;
    return true;
}

static inline uint64_t
late_cache_free_pages(const tr_kv_cache_t *kv)
{
    uint64_t n = tr_kv_host_free_pages(kv);

    return late_cache_settled(kv) ? n : n - n / (2 + late_cache_below(10));
}

static inline bool
late_cache_waits(const tr_kv_cache_t *kv, int32_t slot)
{
    return kv->slot[slot].policy.n_levels != 0 && !kv->slot[slot].dense;
}

static inline bool
late_cache_stalled(int32_t slot)
{
    return late_cache.stalled[slot] == LATE_STALLED
           || (late_cache.stalled[slot] == LATE_MISTAKEN
               && late_cache.n_flying != 0);
}

static inline void
late_cache_reserve_batch(tr_kv_cache_t *kv, const int32_t *slots,
                         const uint32_t *lens, uint32_t n, tr_status_t *result)
{
    for (uint32_t i = 0; i < n; i++) {
        if (late_cache_refuses()) {
            result[i] = TR_AGAIN;
        } else if (late_cache_waits(kv, slots[i])) {
            result[i] = late_cache_stalled(slots[i]) ? TR_AGAIN : TR_OK;
        } else {
            tr_kv_host_reserve_batch(kv, &slots[i], &lens[i], 1, &result[i]);
        }
    }
}

static inline void
late_cache_came_back(void)
{
    memset(late_cache.stalled, 0, sizeof(late_cache.stalled));
}

static inline void
late_cache_close(tr_kv_cache_t *kv, int32_t slot)
{
    late_cache.n_tried -= late_cache.trial[slot] == LATE_TRIED;
    late_cache.trial[slot] = LATE_NOT;
    late_cache_came_back();
    tr_kv_host_close(kv, slot);
}

static inline tr_status_t
late_cache_compress(tr_kv_cache_t *kv, int32_t slot, uint32_t len)
{
    tr_status_t rc;

    if (late_cache.trial[slot] == LATE_TRIED) {
        return TR_AGAIN;
    }
    if (late_cache.trial[slot] == LATE_NOT && late_cache_below(3) != 0) {
        if (late_cache.n_flying == 0 || late_cache_below(2) == 0) {
            late_cache.trial[slot] = LATE_TRIED;
            late_cache.n_tried++;
            late_cache.n_trials++;
        }
        return TR_AGAIN;
    }
    late_cache.trial[slot] = LATE_NOT;
    rc = tr_kv_host_compress(kv, slot, len);
    if (rc == TR_OK) {
        late_cache_came_back();
    }
    return rc;
}

static inline bool
late_cache_compressing(const tr_kv_cache_t *kv, int32_t slot)
{
    (void) kv;
    return late_cache.trial[slot] != LATE_NOT;
}

static inline tr_status_t
late_cache_fork(tr_kv_cache_t *kv, int32_t from, int32_t to, uint32_t len)
{
    return late_cache_refuses() ? TR_AGAIN : tr_kv_host_fork(kv, from, to, len);
}

static inline tr_status_t
late_cache_swap_out(tr_kv_cache_t *kv, int32_t slot)
{
    tr_status_t rc = tr_kv_host_swap_out(kv, slot);

    if (rc == TR_OK) {
        late_cache_came_back();
    }
    return rc;
}

static inline tr_status_t
late_cache_swap_in(tr_kv_cache_t *kv, int32_t slot)
{
    return late_cache_refuses() ? TR_AGAIN : tr_kv_host_swap_in(kv, slot);
}

/* A row is submitted: are there pages for it?  Now and then there are none. */
static inline bool
late_cache_grants(const tr_kv_cache_t *kv, int32_t slot, uint32_t len)
{
    tr_status_t rc = TR_AGAIN;

    if (kv != late_cache.kv || !late_cache_waits(kv, slot)) {
        return true;
    }
    late_cache.stalled[slot] = LATE_MISTAKEN;
    if (late_cache_below(40) != 0) {
        tr_kv_host_reserve_batch(late_cache.kv, &slot, &len, 1, &rc);
        late_cache.stalled[slot] = rc == TR_OK ? LATE_RUNS : LATE_STALLED;
    }
    late_cache.n_stalled += rc != TR_OK;
    return rc == TR_OK;
}

static inline void
late_cache_flying(uint32_t n, bool collected)
{
    late_cache.n_flying = n;
    for (uint32_t i = 0; i < LATE_SLOTS && collected; i++) {
        if (late_cache.trial[i] == LATE_TRIED) {
            late_cache.trial[i] = LATE_ANSWERED;
            late_cache.n_tried--;
        }
    }
}

static inline void
late_cache_open(tr_kv_cache_t *kv)
{
    memset(&late_cache, 0, sizeof(late_cache));
    late_cache.kv = kv;
    late_cache.ops = *kv->ops;
    late_cache.ops.settled = late_cache_settled;
    late_cache.ops.free_pages = late_cache_free_pages;
    late_cache.ops.reserve_batch = late_cache_reserve_batch;
    late_cache.ops.close = late_cache_close;
    late_cache.ops.compress = late_cache_compress;
    late_cache.ops.compressing = late_cache_compressing;
    late_cache.ops.fork = late_cache_fork;
    late_cache.ops.swap_out = late_cache_swap_out;
    late_cache.ops.swap_in = late_cache_swap_in;
    late_cache.random = 1181783497276652981ull;
    kv->ops = &late_cache.ops;
}

static inline void
late_cache_shut(void)
{
    late_cache.kv->ops = &tr_kv_host_ops;
    late_cache.kv = NULL;
}

#endif
