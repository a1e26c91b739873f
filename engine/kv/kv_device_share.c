/*
 * Blocks that are kept for others, on a device (manager_share.h, kv_prefix.c).
 *
 * The host knows a block by its number alone; which pages it has is known there.
 * What becomes of blocks is commanded like all else: behind the batches under
 * way, which may still read them, and before what is granted their pages.
 */
#include "kv_device_internal.h"
#include "kernels/kv_manager/manager_share.h"

static tr_kv_batch_t *
coming(tr_kv_gpu_t *g)
{
    return tr_kv_batch(g, g->next);
}

void
tr_kv_gpu_share(tr_kv_cache_t *kv, tr_kv_share_kind_t kind,
                const tr_kv_share_t *what)
{
    tr_kv_gpu_t *g = tr_kv_gpu(kv);
    tr_kv_mirror_t *x = what->slot >= 0 ? &g->mirror[what->slot] : NULL;

    if (x != NULL) {
        tr_kv_finish_move(g, what->slot, false);
    }
    tr_kv_share_command(g, kind, what);
    if (kind == TR_KV_MERGE || kind == TR_KV_RECLAIM) {
        coming(g)->returned += kv->heads;
        g->returns++;
    }
    if (x == NULL) {
        return;
    }
    x->touched = g->next;
    if (kind == TR_KV_COPY) {
        return;
    }
    manager_count_shared(&kv->m, kind, what->slot);
    if (kind == TR_KV_LEND) {
        x->told = kv->m.slot[what->slot].tokens;
    } else {
        x->low -= kv->heads;
        coming(g)->ceded += kv->heads;
    }
}

/* ---- room --------------------------------------------------------------- */

int64_t
tr_kv_gpu_ring(const tr_kv_cache_t *kv)
{
    return tr_kv_bound(tr_kv_gpu(kv));
}

uint64_t
tr_kv_gpu_free_pages(const tr_kv_cache_t *kv)
{
    const tr_kv_gpu_t *g = tr_kv_gpu(kv);
    int64_t pages = tr_kv_bound(g) + (int64_t) g->leaving
                    + (int64_t) tr_kv_reuse_idle(kv) - (int64_t) g->needed;

    return pages > 0 ? (uint64_t) pages : 0;
}

void
tr_kv_make_room(tr_kv_gpu_t *g, int32_t slot, uint64_t pages)
{
    uint64_t idle = tr_kv_reuse_idle(&g->kv);
    int64_t all;

    tr_kv_await(g, pages);
    all = tr_kv_bound(g) + (int64_t) idle;
    if (idle != 0 && all > 0) {
        tr_kv_reuse_room(&g->kv, slot,
                         (uint64_t) all < pages ? (uint64_t) all : pages);
    }
}
