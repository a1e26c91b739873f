/*
 * What a device's KV cache holds (kv_cache.h): by the last report, or, where a
 * tool must know exactly, by what is fetched from the device.
 */
#include <string.h>

#include "kv_device_internal.h"

void
tr_kv_gpu_usage(const tr_kv_cache_t *kv, int32_t slot, tr_kv_usage_t *out)
{
    const tr_kv_slot_t *s = tr_kv_slot(kv, slot);
    const tr_kv_policy_t *p = &kv->policy[slot].begun;
    const tr_kv_mirror_t *x = &tr_kv_gpu(kv)->mirror[slot];
    const tr_kv_tally_t *t = &x->last;
    uint32_t near = manager_near(&kv->m, &kv->m.seq[slot]);
    uint32_t rest = kv->heads - near;
    tr_kv_standing_t at = { 0 };
    uint32_t l;

    /* uncompressed pages are exact here; so is a slot that no report knows,
     * nearly */
    if ((s->uncompressed && kv->m.seq[slot].base == 0
         && x->trial == TR_KV_NO_TRIAL)
        || !x->counted) {
        /* what it shares it would hold alone */
        uint64_t shared = (uint64_t) kv->m.seq[slot].shared * kv->heads;

        at.uncompressed = (uint64_t) s->tokens * kv->heads;
        tr_kv_usage_fill(kv, p, s->tokens,
                         (s->pages + shared) * kv->plan.page_bytes, &at, out);
        return;
    }
    at.uncompressed = (uint64_t) (t->tokens - t->base) * rest
                      + (uint64_t) t->tokens * near;
    at.window = (uint64_t) (t->sinks + t->base - t->window_from) * rest;
    for (l = 0; l < TR_KV_TIERS_MAX; l++) {
        at.tiered[l] = t->tiered[l];
    }
    tr_kv_usage_fill(kv, p, t->tokens,
                     ((uint64_t) t->pages + t->borrowed) * kv->plan.page_bytes,
                     &at, out);
}

/* All slots' counts as they are behind what was launched; between two batches
 * they are fetched once. */
static bool
fetch_counts(tr_kv_gpu_t *g)
{
    const tr_device_t *cuda = g->device.cuda;
    size_t bytes = (size_t) g->kv.config.slots * g->kv.heads * TR_KV_TIERS_MAX
                   * sizeof(uint32_t);

    if (g->counts != NULL && g->counts_of == g->list.number) {
        return true;
    }
    if (g->counts == NULL) {
        g->counts = cuda->pin(bytes);
    }
    g->counts_of = g->list.number;
    return g->counts != NULL
           && cuda->copy(g->device.stream, g->counts, g->m.count, bytes) == 0
           && cuda->stream_wait(g->device.stream) == 0;
}

void
tr_kv_gpu_usage_in(const tr_kv_cache_t *kv, int32_t slot,
                   const tr_page_plan_t *plan, tr_kv_usage_t *out)
{
    tr_kv_gpu_t *g = tr_kv_gpu(kv);
    bool asked = g->list.n_groups != 0
                 && g->mirror[slot].list == g->list.number;

    if (kv->m.seq[slot].n_tiers == 0) { /* nothing is counted */
        tr_kv_usage_of(kv, slot, NULL, plan, out);
        return;
    }
    /* what was asked of the slot takes effect first */
    if (g->failed || (asked && !tr_kv_flush(g)) || !fetch_counts(g)) {
        g->failed = true;
        memset(out, 0, sizeof(*out));
        return;
    }
    tr_kv_usage_of(kv, slot,
                   g->counts + (size_t) slot * kv->heads * TR_KV_TIERS_MAX,
                   plan, out);
}

void
tr_kv_gpu_totals(const tr_kv_cache_t *kv, tr_kv_totals_t *out)
{
    const tr_kv_gpu_t *g = tr_kv_gpu(kv);
    const tr_kv_reuse_t *r = kv->reuse;
    uint64_t ceded = 0, serial;
    uint32_t i;

    *out = kv->totals;
    for (i = 0; i < TR_KV_LAYOUTS_MAX; i++) {
        out->pages[i] = g->report.pages[i] - (r != NULL ? r->kept_pages[i] : 0);
    }
    /* the report has them still as some slot's */
    for (serial = g->reported + 1; serial <= g->next; serial++) {
        ceded += g->batch[serial % TR_KV_BATCHES].ceded;
    }
    out->pages[0] -= ceded < out->pages[0] ? ceded : out->pages[0];
    tr_kv_reuse_totals(kv, out);
    out->full_bytes = out->tokens * tr_kv_token_bytes(kv);
}

/* ---- does it agree? ----------------------------------------------------- */

/* Chains of pages in host memory: each once. */
static bool
ids_sound(const tr_kv_gpu_t *g)
{
    uint64_t sum = g->n_free_ids;
    uint32_t i, n = 0;
    int32_t at;

    for (at = g->id_free; at >= 0 && n <= g->kv.swap.n; at = g->id_next[at]) {
        n++;
    }
    if (n != g->n_free_ids) {
        return false;
    }
    for (i = 0; i < g->kv.config.slots; i++) {
        const tr_kv_mirror_t *x = &g->mirror[i];

        if (!g->kv.m.slot[i].open) {
            continue;
        }
        for (at = x->ids, n = 0; at >= 0 && n <= x->n_ids; n++) {
            at = g->id_next[at];
        }
        if (n != x->n_ids
            || (n != 0 && !g->kv.m.slot[i].out
                && !tr_kv_is_moving(g, (int32_t) i))) {
            return false;
        }
        sum += n;
    }
    return sum == g->kv.swap.n
           && g->kv.swap.n - g->n_free_ids == g->kv.totals.swapped_pages;
}

/* The tree, and that slots have as many blocks of it as they say; *pages: of all
 * that it keeps. */
static bool
blocks_sound(const tr_kv_cache_t *kv, uint64_t *pages)
{
    const tr_kv_reuse_t *r = kv->reuse;
    tr_prefix_stats_t s;

    *pages = 0;
    if (r == NULL) {
        return true;
    }
    tr_prefix_stats(r->tree, &s);
    *pages = (uint64_t) s.nodes * kv->heads;
    for (uint32_t i = 0; i < kv->config.slots; i++) {
        uint32_t n = 0, node = r->slot[i].on ? r->slot[i].node : TR_PREFIX_NONE;

        for (; node != TR_PREFIX_NONE; n++) {
            node = tr_prefix_parent(r->tree, node);
        }
        if (kv->m.slot[i].open && n != kv->m.seq[i].shared) {
            return false;
        }
    }
    return tr_prefix_sound(r->tree);
}

bool
tr_kv_gpu_sound(const tr_kv_cache_t *kv)
{
    const tr_kv_gpu_t *g = tr_kv_gpu(kv);
    uint64_t tokens = 0, low = 0, used = 0, kept;
    uint32_t i;

    for (i = 0; i < kv->config.slots; i++) {
        const tr_kv_slot_t *s = &kv->m.slot[i];

        if (!s->open) {
            continue;
        }
        tokens += s->tokens;
        low += s->out ? 0 : g->mirror[i].low;
        if (g->mirror[i].trial != TR_KV_DONE && g->mirror[i].low > s->pages) {
            return false;
        }
    }
    for (i = 0; i < TR_KV_LAYOUTS_MAX; i++) {
        used += g->report.pages[i];
    }
    if (tokens != kv->totals.tokens || low > kv->m.size.pages || !ids_sound(g)
        || !blocks_sound(kv, &kept) || !tr_kv_kept_sound(kv) || g->failed) {
        return false;
    }
    if (g->reported == 0 || !tr_kv_settled(kv)) {
        return true;
    }
    return used + kept + g->free == kv->m.size.pages && low == used;
}
