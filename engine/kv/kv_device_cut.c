/*
 * Compressed prefixes on a device (kv_kept.c, kernels/kv_manager/manager_cut.h):
 * what copies take at most, the command, and the mirror of the slot that they go
 * to.
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
    uint64_t have = kv->m.slot[from].pages, most;
    tr_kv_seq_t to;

    manager_cut_seq(&kv->m.seq[from], c, &to);
    most = tr_kv_worst_copy_of(tr_kv_gpu(kv), &to);
    return most < have ? most : have; /* no head has more than before */
}

/* The slot `to` has the first c tokens of `from`, on `most` pages or fewer. */
static void
become_copy(tr_kv_gpu_t *g, int32_t from, int32_t to, uint32_t c, uint64_t most)
{
    tr_kv_job_t job = { .slot = to,
                        .len = c,
                        .pages = (uint32_t) most,
                        .rule = g->kv.m.slot[to].rule };
    tr_kv_mirror_t *x = &g->mirror[to];

    manager_cut_seq(&g->kv.m.seq[from], c, &job.to);
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
    uint64_t most = tr_kv_gpu_copy_pages(kv, from, c);
    tr_kv_command_t *command;

    assert(kv->m.slot[to].tokens == 0 && kv->m.slot[to].pages == 0);
    assert(c <= kv->m.seq[from].base && !kv->m.slot[from].out);
    if (tr_kv_batch(g, g->next)->n_cuts == kv->config.slots
        || (evict ? !tr_kv_reuse_room(kv, to, most)
                  : tr_kv_bound(g) < (int64_t) most)) {
        return TR_AGAIN;
    }
    command = tr_kv_command(g, TR_KV_DO_CUT, to, from);
    command->cut.cut = (tr_kv_cut_t){ from, to, c };
    command->cut.tokens = kv->m.slot[from].tokens;
    tr_kv_batch(g, g->next)->claimed += most;
    tr_kv_batch(g, g->next)->n_cuts++;
    become_copy(g, from, to, c, most);
    return TR_OK;
}
