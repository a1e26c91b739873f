/*
 * Preemption (kv_cache.h, tr_kv_swap_out): pages go to a pool of host memory
 * and come back, byte by byte; tables keep their shape, with TR_KV_HOST in the
 * entries of a slot that is out.  Recomputing a compressed sequence would not
 * give the same levels.
 */
#include <string.h>

#include "kernels/thread_pool.h"

#include "kv_internal.h"

/* Heads copied by one thread at a time: some pages each. */
#define TR_KV_SWAP_GRAIN 4u

typedef struct {
    tr_kv_cache_t *kv;
    int32_t slot;
    tr_kv_pages_t *from, *to;
    uint64_t given, taken; /* where the slot's pages begin in the rings */
    int32_t mark;
} tr_kv_swap_job_t;

/* One page to the other pool, the slot's at-th; returns its id there. */
static int32_t
tr_kv_swap_page(const tr_kv_swap_job_t *job, int32_t page, uint64_t at)
{
    uint32_t owner = (uint32_t) job->slot;
    int32_t target = -1;

    tr_kv_pages_fetch(job->to, job->taken + at, 1, owner, &target, 1);
    memcpy(tr_kv_page(job->to, target), tr_kv_page(job->from, page),
           job->from->bytes);
    tr_kv_pages_store(job->from, job->given + at, 1, owner, &page, 1);
    return target;
}

/* Heads [first, end); kv->head says how many pages come before each. */
static void
tr_kv_swap_heads(void *arg, uint32_t first, uint32_t end, uint32_t worker)
{
    const tr_kv_swap_job_t *job = arg;
    tr_kv_cache_t *kv = job->kv;
    uint32_t head, i, j, n;

    (void) worker;
    for (head = first; head < end; head++) {
        uint64_t at = kv->head[head].pages;
        tr_kv_run_t run[TR_KV_RUNS];

        n = tr_kv_runs(kv, &kv->seq[job->slot],
                       tr_kv_counts(kv, job->slot, head),
                       kv->slot[job->slot].dense_pages, run);
        for (i = 0; i < n; i++) {
            int32_t *entry = tr_kv_row(kv, job->slot, head) + run[i].entry;

            for (j = 0; j < run[i].n; j++, entry += run[i].step) {
                *entry = tr_kv_swap_page(job, *entry & ~TR_KV_HOST, at++)
                         | job->mark;
            }
        }
    }
}

/* Pages before each head, in kv->head, and by layout in the totals. */
static void
tr_kv_swap_sum(tr_kv_cache_t *kv, int32_t slot, bool out)
{
    uint32_t head, i, n, before = 0;

    for (head = 0; head < kv->heads; head++) {
        tr_kv_run_t run[TR_KV_RUNS];

        kv->head[head].pages = before;
        n = tr_kv_runs(kv, &kv->seq[slot], tr_kv_counts(kv, slot, head),
                       kv->slot[slot].dense_pages, run);
        for (i = 0; i < n; i++) {
            before += run[i].n;
            kv->totals.pages[run[i].layout] += out ? -(uint64_t) run[i].n
                                                   : run[i].n;
        }
    }
    assert(before == kv->slot[slot].pages);
}

/* Moves all pages of a slot, in the order of heads and runs. */
static tr_status_t
tr_kv_swap(tr_kv_cache_t *kv, int32_t slot, bool out)
{
    tr_kv_slot_t *s = tr_kv_slot(kv, slot);
    const tr_stream_t *t = &kv->config.stream;
    tr_kv_swap_job_t job = { .kv = kv,
                             .slot = slot,
                             .from = out ? &kv->pages : &kv->swap,
                             .to = out ? &kv->swap : &kv->pages,
                             .mark = out ? TR_KV_HOST : 0 };

    assert(s->out != out);
    if (s->pages > tr_kv_pages_left(job.to)) {
        return TR_AGAIN;
    }
    tr_kv_swap_sum(kv, slot, out);
    job.taken = tr_kv_pages_claim(job.to, s->pages);
    job.given = tr_kv_pages_clear(job.from, s->pages);
    tr_thread_pool_run(t->thread_pool, t->threads, kv->heads, TR_KV_SWAP_GRAIN,
                       tr_kv_swap_heads, &job);
    kv->totals.swapped_pages += out ? s->pages : -s->pages;
    s->out = out;
    return TR_OK;
}

tr_status_t
tr_kv_host_swap_out(tr_kv_cache_t *kv, int32_t slot)
{
    return tr_kv_swap(kv, slot, true);
}

tr_status_t
tr_kv_host_swap_in(tr_kv_cache_t *kv, int32_t slot)
{
    return tr_kv_swap(kv, slot, false);
}
