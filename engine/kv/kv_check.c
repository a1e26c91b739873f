/*
 * Does everything in the KV cache agree?  (tr_kv_sound)
 */
#include <stdlib.h>

#include "kv_internal.h"

/* The pages of one head: how many, by layout; false when one is not the
 * slot's.  Each is marked in `seen`, so that it is met once. */
static bool
tr_kv_row_sound(const tr_kv_cache_t *kv, int32_t slot, uint32_t head,
                uint8_t *seen, uint64_t *pages)
{
    const tr_kv_slot_t *s = &kv->slot[slot];
    const tr_kv_pages_t *pool = s->out ? &kv->swap : &kv->pages;
    tr_kv_run_t run[TR_KV_RUNS];
    uint32_t n, i, j;

    n = tr_kv_runs(kv, &kv->seq[slot], tr_kv_counts(kv, slot, head),
                   s->dense_pages, run);
    for (i = 0; i < n; i++) {
        const int32_t *entry = tr_kv_row(kv, slot, head) + run[i].entry;

        for (j = 0; j < run[i].n; j++, entry += run[i].step) {
            int32_t page = *entry;

            if (page < 0 || ((page & TR_KV_HOST) != 0) != s->out) {
                return false;
            }
            page &= ~TR_KV_HOST;
            if ((uint32_t) page >= pool->n || seen[page]
                || pool->owner[page] != (uint32_t) slot) {
                return false;
            }
            seen[page] = 1;
        }
        pages[run[i].layout] += run[i].n;
    }
    return true;
}

/* No head has more tokens than the sequence, and they are where they can be. */
static bool
tr_kv_counts_sound(const tr_kv_cache_t *kv, int32_t slot)
{
    const tr_kv_slot_t *s = &kv->slot[slot];
    const tr_kv_seq_t *q = &kv->seq[slot];
    uint32_t head, l;

    if (q->base > s->tokens || q->window_from > q->base
        || q->base - q->window_from > q->window
        || (q->n_lists == 0 && q->base != 0)
        || tr_kv_ceil(s->tokens - q->base, kv->plan.layout[0].tokens)
               > s->dense_pages) {
        return false;
    }
    for (head = 0; head < kv->heads; head++) {
        const uint32_t *count = tr_kv_counts(kv, slot, head);
        uint64_t sum = 0;

        for (l = 0; l < TR_KV_LISTS_MAX; l++) {
            sum += count[l];
        }
        if (sum > q->window_from) {
            return false;
        }
    }
    return true;
}

static bool
tr_kv_slot_sound(const tr_kv_cache_t *kv, int32_t slot, uint8_t *seen,
                 uint8_t *seen_out, tr_kv_totals_t *sum)
{
    const tr_kv_slot_t *s = &kv->slot[slot];
    uint64_t pages[TR_KV_LAYOUTS_MAX] = { 0 }, all = 0;
    uint32_t head, i;

    if (!s->open) {
        return s->pages == 0 && s->tokens == 0;
    }
    if (!tr_kv_counts_sound(kv, slot)) {
        return false;
    }
    for (head = 0; head < kv->heads; head++) {
        if (!tr_kv_row_sound(kv, slot, head, s->out ? seen_out : seen, pages)) {
            return false;
        }
    }
    for (i = 0; i < TR_KV_LAYOUTS_MAX; i++) {
        all += pages[i];
        sum->pages[i] += s->out ? 0 : pages[i];
        sum->swapped_pages += s->out ? pages[i] : 0;
    }
    sum->tokens += s->tokens;
    return all == s->pages;
}

bool
tr_kv_host_sound(const tr_kv_cache_t *kv)
{
    tr_kv_totals_t sum = { 0 };
    uint8_t *seen = calloc(kv->pages.n, 1);
    uint8_t *seen_out = calloc(kv->swap.n + 1, 1);
    bool sound = seen != NULL && seen_out != NULL;
    uint64_t pages = 0;
    uint32_t i;

    for (i = 0; i < kv->config.slots && sound; i++) {
        sound = tr_kv_slot_sound(kv, (int32_t) i, seen, seen_out, &sum);
    }
    free(seen);
    free(seen_out);
    for (i = 0; i < TR_KV_LAYOUTS_MAX && sound; i++) {
        pages += sum.pages[i];
        sound = sum.pages[i] == kv->totals.pages[i];
    }
    /* as many pages in tables as have an owner */
    return sound && sum.tokens == kv->totals.tokens
           && sum.swapped_pages == kv->totals.swapped_pages
           && pages + tr_kv_pages_left(&kv->pages) == kv->pages.n
           && sum.swapped_pages + tr_kv_pages_left(&kv->swap) == kv->swap.n
           && tr_kv_pages_sound(&kv->pages)
           && (kv->swap.n == 0 || tr_kv_pages_sound(&kv->swap));
}
