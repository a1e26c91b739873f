/*
 * Does everything in the KV cache agree?  (tr_kv_sound)
 */
#include <stdlib.h>

#include "kv_internal.h"

/* The pages of one head: how many, by layout; false when one is not the
 * slot's.  Each is marked in `seen`, so that it is met once. */
static bool
row_sound(const tr_kv_cache_t *kv, int32_t slot, uint32_t head, uint8_t *seen,
          uint64_t *pages)
{
    const tr_kv_manager_t *m = &kv->m;
    const tr_kv_slot_t *s = &m->slot[slot];
    const uint32_t *owner = s->out ? kv->swap.owner : m->owner;
    uint32_t pool = s->out ? kv->swap.n : m->size.pages, n, i, j;
    manager_run_t run[MANAGER_RUNS];

    n = manager_runs(m, &m->seq[slot], head, manager_counts(m, slot, head),
                     manager_borrowed(m, &m->seq[slot], slot, head),
                     manager_dense(s), run);
    for (i = 0; i < n; i++) {
        const int32_t *entry = manager_row(m, slot, head) + run[i].entry;

        for (j = 0; j < run[i].n; j++, entry += run[i].step) {
            int32_t page = *entry;

            if (page < 0 || ((page & TR_KV_HOST) != 0) != s->out) {
                return false;
            }
            page &= ~TR_KV_HOST;
            if ((uint32_t) page >= pool || seen[page]
                || owner[page] != (uint32_t) slot) {
                return false;
            }
            seen[page] = 1;
        }
        pages[run[i].layout] += run[i].n;
    }
    return true;
}

/* Frozen tokens of a head fill pages, of which those that it borrows come first: they
 * are pages of slots that are kept.  *pages: how many; *all: of frozen ones, also
 * its own. */
static bool
borrowed_sound(const tr_kv_cache_t *kv, int32_t slot, uint32_t head,
               uint64_t *pages, uint64_t *all)
{
    const tr_kv_manager_t *m = &kv->m;
    const tr_kv_seq_t *q = &m->seq[slot];
    const uint32_t *frozen = manager_frozen(m, q, slot, head);
    const uint32_t *borrowed = manager_borrowed(m, q, slot, head);
    const uint32_t *count = manager_counts(m, slot, head);
    const int32_t *row = manager_row(m, slot, head);

    for (uint32_t l = 0; l < q->n_tiers && q->frozen; l++) {
        uint32_t tokens = m->place[q->tier_layout[l]].tokens;

        if (frozen[l] % tokens != 0 || borrowed[l] % tokens != 0
            || borrowed[l] > frozen[l] || frozen[l] > count[l]) {
            return false;
        }
        for (uint32_t i = 0; i < borrowed[l] / tokens; i++) {
            int32_t page = row[tr_kv_tier_entry(&m->view, l, i)];

            if (page < 0 || (uint32_t) page >= m->size.pages
                || m->owner[page] >= m->size.slots
                || m->owner[page] == (uint32_t) slot
                || !kv->reuse->kept[m->owner[page]].kept) {
                return false;
            }
        }
        *pages += borrowed[l] / tokens;
        *all += frozen[l] / tokens;
    }
    return true;
}

/* What the slot shares is what is kept, in its first entries; and nothing else
 * is. */
static bool
shared_sound(const tr_kv_cache_t *kv, int32_t slot)
{
    const tr_kv_manager_t *m = &kv->m;
    uint32_t shared = m->seq[slot].shared, i, h;
    uint32_t node = kv->reuse != NULL && kv->reuse->slot[slot].on
                        ? kv->reuse->slot[slot].node
                        : TR_PREFIX_NONE;

    if (shared > m->slot[slot].uncompressed_pages) {
        return false;
    }
    for (i = shared; i != 0; i--) {
        const int32_t *pages = m->kept + (size_t) node * m->heads;

        if (node == TR_PREFIX_NONE) {
            return false;
        }
        for (h = 0; h < m->heads; h++) {
            if (manager_row(m, slot, h)[i - 1] != pages[h]) {
                return false;
            }
        }
        node = tr_prefix_parent(kv->reuse->tree, node);
    }
    return node == TR_PREFIX_NONE;
}

/* Pages of the prefixes, each met once. */
typedef struct {
    const tr_kv_cache_t *kv;
    uint8_t *seen;
    uint64_t pages;
    bool sound;
} kept_t;

static void
kept_block(void *arg, uint32_t node)
{
    kept_t *k = arg;
    const int32_t *pages = k->kv->m.kept + (size_t) node * k->kv->heads;

    for (uint32_t h = 0; h < k->kv->heads && k->sound; h++) {
        int32_t page = pages[h];

        k->sound = page >= 0 && (uint32_t) page < k->kv->m.size.pages
                   && !k->seen[page] && k->kv->m.owner[page] == MANAGER_SHARED;
        if (k->sound) {
            k->seen[page] = 1;
            k->pages++;
        }
    }
}

/* Returns the pages of all prefixes, UINT64_MAX: something is wrong. */
static uint64_t
kept_sound(const tr_kv_cache_t *kv, uint8_t *seen)
{
    kept_t k = { kv, seen, 0, true };
    tr_prefix_stats_t s;

    if (kv->reuse == NULL) {
        return 0;
    }
    tr_prefix_each(kv->reuse->tree, kept_block, &k);
    tr_prefix_stats(kv->reuse->tree, &s);
    return k.sound && tr_prefix_sound(kv->reuse->tree)
                   && k.pages == (uint64_t) s.nodes * kv->heads
               ? k.pages
               : UINT64_MAX;
}

/* Heads that slide have what the next query sees. */
static bool
near_sound(const tr_kv_manager_t *m, const tr_kv_slot_t *s,
           const tr_kv_seq_t *q)
{
    uint32_t tokens = m->place[0].tokens;

    if (manager_near(m, q) == 0) {
        return s->near_pages == 0 && s->near_from == 0;
    }
    return s->near_from <= s->near_pages
           && manager_ceil(s->tokens, tokens) <= s->near_pages
           && s->near_from <= manager_seen_from(m, s->tokens);
}

/* No head has more tokens than the sequence, and they are where they can be. */
static bool
counts_sound(const tr_kv_manager_t *m, int32_t slot)
{
    const tr_kv_slot_t *s = &m->slot[slot];
    const tr_kv_seq_t *q = &m->seq[slot];
    uint32_t head, l;

    if (q->base > s->tokens || q->window_from > q->base
        || q->base - q->window_from > q->window || q->sinks > q->window_from
        || (q->sinks != 0 && q->window == 0)
        || (q->n_tiers == 0 && q->base != 0)
        || manager_ceil(s->tokens - q->base, m->place[0].tokens)
               > s->uncompressed_pages
        || !near_sound(m, s, q)) {
        return false;
    }
    for (head = 0; head < m->heads; head++) {
        const uint32_t *count = manager_counts(m, slot, head);
        uint64_t sum = 0;

        for (l = 0; l < TR_KV_TIERS_MAX; l++) {
            sum += count[l];
        }
        if (sum > q->window_from - q->sinks) {
            return false;
        }
    }
    return true;
}

static bool
slot_sound(const tr_kv_cache_t *kv, int32_t slot, uint8_t *seen,
           uint8_t *seen_out, tr_kv_totals_t *sum)
{
    const tr_kv_slot_t *s = &kv->m.slot[slot];
    uint64_t pages[TR_KV_LAYOUTS_MAX] = { 0 }, all = 0, borrowed = 0,
             frozen = 0;
    uint32_t head, i;

    if (!s->open) {
        return s->pages == 0 && s->tokens == 0;
    }
    if (!counts_sound(&kv->m, slot) || !shared_sound(kv, slot)) {
        return false;
    }
    for (head = 0; head < kv->heads; head++) {
        if (!row_sound(kv, slot, head, s->out ? seen_out : seen, pages)
            || !borrowed_sound(kv, slot, head, &borrowed, &frozen)) {
            return false;
        }
    }
    if (borrowed != s->borrowed || frozen != s->frozen_pages) {
        return false;
    }
    for (i = 0; i < TR_KV_LAYOUTS_MAX; i++) {
        all += pages[i];
        sum->pages[i] += s->out ? 0 : pages[i];
        sum->swapped_pages += s->out ? pages[i] : 0;
    }
    sum->tokens += s->tokens;
    return all == s->pages;
}

/* Each page of the ring's free part is there once, and nobody's; all others
 * have an owner.  `seen` has those in tables. */
static bool
ring_sound(const tr_kv_manager_t *m, uint8_t *seen)
{
    uint64_t start = m->report->start, end = m->report->end, i;
    uint32_t unowned = 0;

    if (end - start > m->size.pages || m->report->faults != 0
        || m->report->n_refused != 0) {
        return false;
    }
    for (i = start; i != end; i++) {
        int32_t page = m->ring[i % m->size.pages];

        if (page < 0 || (uint32_t) page >= m->size.pages || seen[page]
            || m->owner[page] != MANAGER_NOBODY) {
            return false;
        }
        seen[page] = 1;
    }
    for (i = 0; i < m->size.pages; i++) {
        unowned += m->owner[i] == MANAGER_NOBODY;
    }
    return unowned == end - start;
}

bool
tr_kv_host_sound(const tr_kv_cache_t *kv)
{
    tr_kv_totals_t sum = { 0 };
    uint8_t *seen = calloc(kv->m.size.pages, 1);
    uint8_t *seen_out = calloc(kv->swap.n + 1, 1);
    bool sound = seen != NULL && seen_out != NULL;
    uint64_t pages = 0, kept = 0;
    uint32_t i;

    for (i = 0; i < kv->config.slots && sound; i++) {
        sound = slot_sound(kv, (int32_t) i, seen, seen_out, &sum);
    }
    kept = sound ? kept_sound(kv, seen) : 0;
    sound = sound && kept != UINT64_MAX && ring_sound(&kv->m, seen);
    free(seen);
    free(seen_out);
    for (i = 0; i < TR_KV_LAYOUTS_MAX && sound; i++) {
        pages += sum.pages[i];
        sound = sum.pages[i] == kv->m.report->pages[i];
    }
    /* as many pages in tables as have an owner */
    return sound && tr_kv_kept_sound(kv) && sum.tokens == kv->totals.tokens
           && sum.swapped_pages == kv->totals.swapped_pages
           && pages + kept + (kv->m.report->end - kv->m.report->start)
                  == kv->m.size.pages
           && sum.swapped_pages == kv->swap.used
           && (kv->swap.n == 0 || tr_kv_pages_sound(&kv->swap));
}
