/*
 * Compressed prefixes on a device (kv_kept.c, kv_lend.c,
 * kernels/kv_manager/manager_cut.h): what copies take at most, the command, and the
 * mirror of the slot that they go to.  How many pages are shared is the device's to
 * know: what the mirror says of them is the most that there can be.
 *
 * A copy is commanded only where the bound has room for all that it can take, so
 * that the device never refuses it; how much it took is known with the report
 * behind it.  Nobody waits: it is done in the stream, behind the batches under way,
 * which may still write into the slot that is copied, and before what reads the
 * copy or takes over the old slot's pages.
 */
#include <string.h>

#include "kv_device_internal.h"

uint32_t
tr_kv_gpu_held(const tr_kv_cache_t *kv, int32_t slot,
               uint32_t pages[TR_KV_LAYOUTS_MAX])
{
    const tr_kv_mirror_t *x = &tr_kv_gpu(kv)->mirror[slot];
    const tr_kv_tally_t *t = &x->last;
    tr_kv_seq_t q = kv->m.seq[slot];

    memset(pages, 0, TR_KV_LAYOUTS_MAX * sizeof(*pages));
    if (x->counted && t->open && t->base != 0) {
        q.sinks = t->sinks;
        if (q.window != 0) {
            pages[q.window_layout] += kv->heads
                                      * manager_window_pages(&kv->m, &q,
                                                             t->base);
        }
        for (uint32_t l = 0; l < q.n_tiers; l++) {
            pages[q.tier_layout[l]] += t->tier_pages[l];
        }
    }
    return (uint32_t) x->low;
}

uint64_t
tr_kv_gpu_copy_pages(const tr_kv_cache_t *kv, int32_t from, uint32_t c)
{
    const tr_kv_slot_t *s = &kv->m.slot[from];
    uint64_t have = (uint64_t) s->pages + s->borrowed, most;
    tr_kv_seq_t to;

    manager_cut_seq(&kv->m.seq[from], c, &to);
    most = tr_kv_worst_copy_of(tr_kv_gpu(kv), &to);
    return most < have ? most : have; /* no head has more than before */
}

bool
tr_kv_gpu_told(const tr_kv_cache_t *kv, int32_t slot)
{
    return tr_kv_gpu(kv)->mirror[slot].counted;
}

/* Pages that it takes from the ring, at most. */
static uint64_t
own_pages(const tr_kv_gpu_t *g, const tr_kv_cut_t *cut)
{
    uint64_t most = tr_kv_lend_own(&g->kv, cut), few;
    tr_kv_seq_t to;

    manager_cut_seq(&g->kv.m.seq[cut->from], cut->len, &to);
    if (cut->by == TR_KV_CUT_SHARES && to.n_tiers == 1) { /* in order */
        few = tr_kv_least_copy_of(g, &to) + g->kv.heads;
        return tr_kv_less(most, few);
    }
    return most;
}

/* The slot `to` has the first tokens of `from`, on `most` pages of its own, or
 * fewer. */
static void
become_copy(tr_kv_gpu_t *g, const tr_kv_cut_t *cut, uint64_t most)
{
    int32_t from = cut->from, to = cut->to;
    uint32_t c = cut->len;
    tr_kv_job_t job = { .slot = to,
                        .source = from,
                        .len = c,
                        .pages = (uint32_t) most,
                        .rule = g->kv.m.slot[to].rule };
    tr_kv_mirror_t *x = &g->mirror[to];

    if (cut->by != TR_KV_CUT_COPIES) {
        job.borrowed = (uint32_t) tr_kv_gpu_copy_pages(&g->kv, from, c);
    }
    manager_cut_seq(&g->kv.m.seq[from], c, &job.to);
    job.to.frozen = job.borrowed != 0;
    manager_become(&g->kv.m, &job);
    g->kv.totals.tokens += c;
    x->told = c;
    x->touched = g->next;
    x->low = tr_kv_least_copy_of(g, &job.to);
    x->steps = TR_KV_EDGES; /* counts are not known */
}

tr_status_t
tr_kv_gpu_copy(tr_kv_cache_t *kv, int32_t from, int32_t to, uint32_t c,
               bool evict)
{
    tr_kv_gpu_t *g = tr_kv_gpu(kv);
    tr_kv_cut_t cut = tr_kv_lend_cut(kv, from, to, c);
    uint64_t most = own_pages(g, &cut);
    tr_kv_command_t *command;

    assert(kv->m.slot[to].tokens == 0 && kv->m.slot[to].pages == 0);
    assert(c <= kv->m.seq[from].base && !kv->m.slot[from].out);
    tr_kv_finish_move(g, from, false);
    tr_kv_await(g, most);
    if (tr_kv_batch(g, g->next)->n_cuts == kv->config.slots
        || (evict ? !tr_kv_reuse_room(kv, to, most)
                  : tr_kv_bound(g) < (int64_t) most)) {
        return TR_AGAIN;
    }
    cut = tr_kv_lend_cut(kv, from, to, c); /* who lends may be absorbed */
    most = own_pages(g, &cut);
    if (tr_kv_bound(g) < (int64_t) most) {
        return TR_AGAIN;
    }
    command = tr_kv_command(g, TR_KV_DO_CUT, to, from);
    command->cut.cut = cut;
    command->cut.tokens = kv->m.slot[from].tokens;
    tr_kv_batch(g, g->next)->claimed += most;
    tr_kv_batch(g, g->next)->n_cuts++;
    become_copy(g, &cut, most);
    tr_kv_lend(kv, &cut);
    return TR_OK;
}

/* ---- absorbing ---------------------------------------------------------- */

bool
tr_kv_gpu_can_absorb(const tr_kv_cache_t *kv, int32_t to)
{
    tr_kv_trial_t trial = tr_kv_gpu(kv)->mirror[to].trial;

    return trial != TR_KV_TRIED && trial != TR_KV_DONE;
}

void
tr_kv_gpu_absorb(tr_kv_cache_t *kv, const tr_kv_absorb_t *absorb)
{
    tr_kv_gpu_t *g = tr_kv_gpu(kv);
    tr_kv_slot_t *from = &kv->m.slot[absorb->from];
    tr_kv_slot_t *to = &kv->m.slot[absorb->to];
    uint64_t low = g->mirror[absorb->from].low;
    bool all = kv->reuse->kept[absorb->to].lender == 0; /* none is left */

    tr_kv_finish_move(g, absorb->to, false);
    tr_kv_command(g, TR_KV_DO_ABSORB, absorb->to, absorb->from)
        ->absorb = *absorb;
    tr_kv_batch(g, g->next)->returned += low - tr_kv_less(low, to->borrowed);
    g->returns++;
    kv->totals.tokens -= from->tokens;
    to->pages += (uint32_t) tr_kv_less(to->borrowed, from->pages);
    to->borrowed = all ? 0
                       : (uint32_t) tr_kv_less(to->borrowed, from->borrowed);
    g->mirror[absorb->to].touched = g->next;
    memset(from, 0, sizeof(*from));
    tr_kv_drop_slot(kv, absorb->from);
}

/* ---- from elsewhere ----------------------------------------------------- */

/* Pages of a slot that is as q, with these counts by head. */
static uint64_t
pages_of(const tr_kv_cache_t *kv, const tr_kv_seq_t *q, const uint32_t *counts)
{
    uint64_t pages = 0;

    for (uint32_t h = 0; h < kv->heads; h++) {
        manager_run_t run[MANAGER_RUNS];
        uint32_t n = manager_runs(&kv->m, q, h, counts + h * TR_KV_TIERS_MAX,
                                  NULL, manager_none(), run);

        for (uint32_t i = 0; i < n; i++) {
            pages += run[i].n;
        }
    }
    return pages;
}

/* How much it takes is known here, so that it is refused here or not at all. */
tr_status_t
tr_kv_gpu_restore(tr_kv_cache_t *kv, const tr_kv_restore_t *restore)
{
    tr_kv_gpu_t *g = tr_kv_gpu(kv);
    int32_t slot = restore->slot;
    tr_kv_mirror_t *x = &g->mirror[slot];
    tr_kv_job_t job = { .slot = slot,
                        .source = -1,
                        .len = restore->len,
                        .rule = kv->m.slot[slot].rule,
                        .to = kv->m.seq[slot] };
    tr_kv_command_t *command;
    uint64_t pages;

    assert(kv->m.slot[slot].tokens == 0 && kv->m.slot[slot].pages == 0);
    job.to.base = restore->len;
    job.to.window_from = restore->window_from;
    job.to.sinks = restore->sinks;
    job.to.recent_from = UINT32_MAX;
    pages = pages_of(kv, &job.to, restore->count);
    tr_kv_await(g, pages);
    if (g->list.restores || !tr_kv_reuse_room(kv, slot, pages)) {
        return TR_AGAIN;
    }
    command = tr_kv_command(g, TR_KV_DO_RESTORE, slot, -1);
    command->restore = *restore;
    command->restore.count = g->counts_in;
    memcpy(g->list.counts, restore->count,
           (size_t) kv->heads * TR_KV_TIERS_MAX * sizeof(*restore->count));
    g->list.restores = true;
    tr_kv_batch(g, g->next)->claimed += pages;
    job.pages = (uint32_t) pages;
    manager_become(&kv->m, &job);
    kv->totals.tokens += restore->len;
    x->told = restore->len;
    x->touched = g->next;
    x->low = pages;
    x->steps = TR_KV_EDGES; /* counts are not known */
    return TR_OK;
}
