/*
 * Preemption (kv_cache.h, tr_kv_swap_out): pages go to a pool of host memory
 * and come back, byte by byte; tables keep their shape, with TR_KV_HOST in the
 * entries of a slot that is out.  Recomputing a compressed sequence would not
 * give the same levels.
 */
#include <string.h>

#include "kv_internal.h"

/* One page from a pool to the other; returns its id there. */
static int32_t
tr_kv_swap_page(tr_kv_pages_t *from, tr_kv_pages_t *to, int32_t page,
                uint32_t owner)
{
    int32_t target = tr_kv_pages_take(to, owner);

    memcpy(tr_kv_page(to, target), tr_kv_page(from, page), from->bytes);
    tr_kv_pages_give(from, page, owner);
    return target;
}

/* Moves all pages of a slot, in the order of heads and runs. */
static tr_status_t
tr_kv_swap(tr_kv_cache_t *kv, int32_t slot, bool out)
{
    tr_kv_slot_t *s = tr_kv_slot(kv, slot);
    tr_kv_pages_t *from = out ? &kv->pages : &kv->swap;
    tr_kv_pages_t *to = out ? &kv->swap : &kv->pages;
    int32_t mark = out ? TR_KV_HOST : 0;
    uint32_t head, i, j, n;

    assert(s->out != out);
    if (s->pages > tr_kv_pages_left(to)) {
        return TR_AGAIN;
    }
    for (head = 0; head < kv->heads; head++) {
        tr_kv_run_t run[TR_KV_RUNS];

        n = tr_kv_runs(kv, &kv->seq[slot], tr_kv_counts(kv, slot, head),
                       s->dense_pages, run);
        for (i = 0; i < n; i++) {
            int32_t *entry = tr_kv_row(kv, slot, head) + run[i].entry;

            for (j = 0; j < run[i].n; j++, entry += run[i].step) {
                *entry = tr_kv_swap_page(from, to, *entry & ~TR_KV_HOST,
                                         (uint32_t) slot)
                         | mark;
            }
            kv->totals.pages[run[i].layout] += out ? -(uint64_t) run[i].n
                                                   : run[i].n;
        }
    }
    kv->totals.swapped_pages += out ? s->pages : -s->pages;
    s->out = out;
    return TR_OK;
}

tr_status_t
tr_kv_swap_out(tr_kv_cache_t *kv, int32_t slot)
{
    return tr_kv_swap(kv, slot, true);
}

tr_status_t
tr_kv_swap_in(tr_kv_cache_t *kv, int32_t slot)
{
    return tr_kv_swap(kv, slot, false);
}

uint64_t
tr_kv_swapped_pages(const tr_kv_cache_t *kv, int32_t slot)
{
    const tr_kv_slot_t *s = tr_kv_slot(kv, slot);

    return s->out ? s->pages : 0;
}
