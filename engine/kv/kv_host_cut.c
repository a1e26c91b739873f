/*
 * Compressed prefixes in the cache that is here (kv_kept.c, kv_lend.c,
 * kernels/kv_manager/manager_cut.h): shared, copied and put into the new slot's
 * table before the call returns.
 */
#include "kernels/kernels.h"
#include "kv_internal.h"

uint32_t
tr_kv_host_held(const tr_kv_cache_t *kv, int32_t slot,
                uint32_t pages[TR_KV_LAYOUTS_MAX])
{
    const tr_kv_manager_t *m = &kv->m;

    memset(pages, 0, TR_KV_LAYOUTS_MAX * sizeof(*pages));
    for (uint32_t h = 0; h < kv->heads; h++) {
        manager_run_t run[MANAGER_RUNS];
        const tr_kv_seq_t *q = &m->seq[slot];
        uint32_t n = manager_runs(m, q, h, manager_counts(m, slot, h),
                                  manager_borrowed(m, q, slot, h),
                                  manager_none(), run);

        for (uint32_t i = 0; i < n; i++) {
            pages[run[i].layout] += run[i].n;
        }
    }
    return m->slot[slot].pages;
}

uint64_t
tr_kv_host_copy_pages(const tr_kv_cache_t *kv, int32_t from, uint32_t c)
{
    const tr_kv_manager_t *m = &kv->m;
    tr_kv_seq_t q = m->seq[from];
    uint64_t pages = 0;

    q.base = c;
    for (uint32_t h = 0; h < kv->heads; h++) {
        uint32_t count[TR_KV_TIERS_MAX], n;
        manager_run_t run[MANAGER_RUNS];

        for (uint32_t l = 0; l < TR_KV_TIERS_MAX; l++) {
            count[l] = manager_counts(m, from, h)[l];
            count[l] = count[l] < c ? count[l] : c;
        }
        n = manager_runs(m, &q, h, count, NULL, manager_none(), run);
        for (uint32_t i = 0; i < n; i++) {
            pages += run[i].n;
        }
    }
    return pages;
}

tr_status_t
tr_kv_host_copy(tr_kv_cache_t *kv, int32_t from, int32_t to, uint32_t c,
                bool evict)
{
    const tr_stream_t *s = &kv->config.stream;
    tr_kv_cut_t cut = tr_kv_lend_cut(kv, from, to, c);
    int bad;

    tr_kv_host_plan_cuts(s, &kv->m, &cut, 1);
    if (kv->m.result[0] == TR_KV_STALLED && evict
        && tr_kv_reuse_room(kv, to, kv->m.job[0].pages)) {
        cut = tr_kv_lend_cut(kv, from, to, c); /* who lends may be absorbed */
        tr_kv_host_plan_cuts(s, &kv->m, &cut, 1);
    }
    if (kv->m.result[0] != TR_KV_GRANTED) {
        assert(kv->m.result[0] == TR_KV_STALLED);
        return TR_AGAIN;
    }
    bad = kv->config.kernels->kv_compress(s, &kv->view, &kv->m.compress[0],
                                          kv->kernel_work);
    tr_kv_host_install_cuts(s, &kv->m, NULL, 0, 1);
    kv->totals.tokens += c;
    tr_kv_lend(kv, &cut);
    /* else the pages are there, and worthless */
    return bad == TR_KERNEL_OK ? TR_OK : TR_ERR_INTERNAL;
}

bool
tr_kv_host_can_absorb(const tr_kv_cache_t *kv, int32_t to)
{
    (void) kv;
    (void) to;
    return true;
}

void
tr_kv_host_absorb_slot(tr_kv_cache_t *kv, const tr_kv_absorb_t *absorb)
{
    kv->totals.tokens -= kv->m.slot[absorb->from].tokens;
    tr_kv_host_absorb(&kv->m, absorb, 1);
    tr_kv_drop_slot(kv, absorb->from);
}

tr_status_t
tr_kv_host_restore(tr_kv_cache_t *kv, const tr_kv_restore_t *restore)
{
    const tr_stream_t *s = &kv->config.stream;

    tr_kv_host_plan_restores(&kv->m, restore, 1);
    if (kv->m.result[0] == TR_KV_STALLED
        && tr_kv_reuse_room(kv, restore->slot, kv->m.job[0].pages)) {
        tr_kv_host_plan_restores(&kv->m, restore, 1);
    }
    if (kv->m.result[0] != TR_KV_GRANTED) {
        return TR_AGAIN;
    }
    tr_kv_host_install_cuts(s, &kv->m, NULL, 0, 1);
    kv->totals.tokens += restore->len;
    return TR_OK;
}
