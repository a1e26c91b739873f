/*
 * manager_slot.h: slots of the page manager come and go.
 *
 *   open    block (request): counts, candidates, sequence
 *   begin   one thread a request: a prompt is now computed
 *   release block (request): where each head's pages come to, and the slot is
 *           closed
 *   ends    one block, the last of release: where each request's come to
 *   recycle block (request, some heads, a warp each): the pages come back, but
 *           for those in front that are kept for others
 *   give, take  one block: the pages of a slot that goes out, in pieces, or comes
 *           in
 */
#ifndef TR_KV_MANAGER_SLOT_H
#define TR_KV_MANAGER_SLOT_H

#include "manager_core.h"

/* ---- open, begin -------------------------------------------------------- */

TR_HD float
manager_infinity(void)
{
    return tr_float_from_bits(0x7f800000);
}

TR_HD void
manager_open_slot(const tr_kv_manager_t *m, const tr_kv_open_t *open)
{
    tr_kv_slot_t *s = &m->slot[open->slot];

    memset(s, 0, sizeof(*s));
    s->open = s->uncompressed = true;
    s->rule = open->rule;
    m->seq[open->slot] = open->seq;
}

TR_HD void
manager_open(const tr_kv_manager_t *m, const tr_kv_open_t *open)
{
    int32_t slot = open->slot;
    bool good = slot >= 0 && (uint32_t) slot < m->size.slots
                && !m->slot[slot].open && open->seq.n_tiers <= TR_KV_TIERS_MAX
                && open->rule.n_levels == open->seq.n_tiers;

    EACH (i, good ? m->heads * TR_KV_TIERS_MAX : 0) {
        tr_kv_candidate_t *v = m->candidate
                               + manager_head(m, slot, 0) * TR_KV_TIERS_MAX + i;

        manager_counts(m, slot, 0)[i] = 0;
        v->significance = manager_infinity();
        v->index = 0;
    }
    EACH_FEW (j, 1) {
        if (good) {
            manager_open_slot(m, open);
        } else {
            MANAGER_ADD_ALL(&m->report->n_refused, 1);
        }
    }
}

TR_HD void
manager_begin(const tr_kv_manager_t *m, const tr_kv_begin_t *begin)
{
    int32_t slot = begin->slot;
    tr_kv_slot_t *s = &m->slot[slot];
    tr_kv_seq_t *q = &m->seq[slot];
    uint32_t last;

    if (slot < 0 || (uint32_t) slot >= m->size.slots || !s->open || s->out
        || begin->len < s->tokens) {
        MANAGER_ADD_ALL(&m->report->n_refused, 1);
        return;
    }
    last = s->rule.observe != 0 ? s->rule.observe : TR_KV_OBSERVATION_WINDOW;
    s->uncompressed = true;
    s->prompt = begin->len;
    q->scored = s->rule.scored;
    q->read_pages = 0;
    q->recent_from = begin->len > last ? begin->len - last : 0;
    if (q->recent_from < q->base) { /* what came before was not counted */
        q->recent_from = q->base;
    }
}

/* ---- close -------------------------------------------------------------- */

typedef struct {
    manager_sum_t sum;
    manager_need_t need;
    uint32_t pages[TR_KV_LAYOUTS_MAX];
} manager_release_t;

/* As the slot had them before. */
TR_HD manager_dense_t
manager_needed(const manager_need_t *w)
{
    manager_dense_t d = { w->uncompressed_pages, w->near_pages, w->near_from };

    return d;
}

/* The pages that a head has, which are counted by layout. */
TR_HD uint32_t
manager_held(const tr_kv_manager_t *m, int32_t slot, uint32_t h,
             manager_release_t *s)
{
    manager_run_t run[MANAGER_RUNS];
    const manager_dense_t dense = manager_needed(&s->need);
    const tr_kv_seq_t *q = &m->seq[slot];
    uint32_t n = manager_runs(m, q, h, manager_counts(m, slot, h),
                              manager_borrowed(m, q, slot, h), dense, run);
    uint32_t sum = 0;

    for (uint32_t r = 0; r < n; r++) {
        sum += run[r].n;
        MANAGER_ADD(&s->pages[run[r].layout], run[r].n);
    }
    return sum;
}

/* Block (request i). */
TR_HD void
manager_release(const tr_kv_manager_t *m, const int32_t *slots, uint32_t i,
                manager_release_t *s)
{
    uint32_t each = manager_ceil(m->heads, MANAGER_THREADS);
    uint32_t *before = m->before + (size_t) i * m->heads;
    int32_t slot = slots[i];
    bool good = slot >= 0 && (uint32_t) slot < m->size.slots
                && m->slot[slot].open;
    bool out = good && m->slot[slot].out;

    EACH_AHEAD (l, TR_KV_LAYOUTS_MAX) {
        s->pages[l] = 0;
    }
    EACH_FEW (j, 1) {
        memset(&s->need, 0, sizeof(s->need));
        s->need.slot = slot;
        s->need.kind = out ? NEED_NOTHING : good ? NEED_CLOSE : NEED_REFUSED;
        if (good) {
            m->closed[i] = m->seq[slot];
            s->need.uncompressed_pages = m->slot[slot].uncompressed_pages;
            s->need.near_pages = m->slot[slot].near_pages;
            s->need.near_from = m->slot[slot].near_from;
        }
    }
    EACH_THREAD (tid) {
        uint32_t h = tid * each,
                 end = h + each < m->heads ? h + each : m->heads;
        uint32_t sum = 0;

        for (; h < end && good && !out; h++) {
            before[h] = sum; /* of this thread's heads */
            sum += manager_held(m, slot, h, s);
        }
        s->sum.part[tid] = sum;
    }
    EACH_FEW (group, MANAGER_GROUPS) {
        manager_group(&s->sum, group);
    }
    EACH_THREAD (tid) {
        uint32_t h = tid * each,
                 end = h + each < m->heads ? h + each : m->heads;
        uint32_t below = manager_below(&s->sum, tid);

        for (; h < end && good && !out; h++) {
            before[h] += below;
        }
    }
    EACH_AHEAD (l, TR_KV_LAYOUTS_MAX) {
        if (s->pages[l] != 0) {
            MANAGER_ADD_ALL(&m->report->pages[l], 0u - s->pages[l]);
        }
    }
    EACH_AHEAD (j, 1) {
        s->need.pages = manager_total(&s->sum);
        m->need[i] = s->need;
        if (good) {
            memset(&m->slot[slot], 0, sizeof(m->slot[slot]));
        }
    }
}

/* The last block of release. */
TR_HD void
manager_ends(const tr_kv_manager_t *m, uint32_t n)
{
    EACH_FEW (j, 1) {
        for (uint32_t i = 0; i < n; i++) {
            m->need[i].first = m->report->end;
            m->report->end += m->need[i].pages;
            m->report->n_refused += m->need[i].kind == NEED_REFUSED;
        }
        if (m->report->end - m->report->start > m->size.pages) {
            m->report->faults++; /* more free pages than pages */
        }
    }
}

/* Gives back the pages of a head's runs, lane by lane. */
TR_HD void
manager_give_back(const tr_kv_manager_t *m, int32_t slot, uint32_t head,
                  const manager_run_t *run, uint32_t n, uint64_t at,
                  uint32_t lane)
{
    for (uint32_t r = 0; r < n; r++) {
        int32_t *entry = manager_row(m, slot, head) + run[r].entry;

        for (uint32_t j = lane; j < run[r].n; j += MANAGER_WARP) {
            manager_store(m, at + j, slot, entry + (int32_t) j * run[r].step);
        }
        at += run[r].n;
    }
}

/* Clears the entries of a head's runs, likewise. */
TR_HD void
manager_forget(const tr_kv_manager_t *m, int32_t slot, uint32_t head,
               const manager_run_t *run, uint32_t n, uint32_t lane)
{
    for (uint32_t r = 0; r < n; r++) {
        int32_t *entry = manager_row(m, slot, head) + run[r].entry;

        for (uint32_t j = lane; j < run[r].n; j += MANAGER_WARP) {
            entry[(int32_t) j * run[r].step] = -1;
        }
    }
}

/* Clears the entries of a head that are others', likewise. */
TR_HD void
manager_forget_borrowed(const tr_kv_manager_t *m, const tr_kv_seq_t *q,
                        int32_t slot, uint32_t head, uint32_t lane)
{
    const uint32_t *borrowed = manager_borrowed(m, q, slot, head);
    int32_t *row = manager_row(m, slot, head);

    for (uint32_t l = 0; l < q->n_tiers && borrowed != NULL; l++) {
        uint32_t n = borrowed[l] / m->place[q->tier_layout[l]].tokens;

        for (uint32_t j = lane; j < n; j += MANAGER_WARP) {
            row[tr_kv_tier_entry(&m->view, l, j)] = -1;
        }
    }
}

/* Block (request i, heads from warps * block on). */
TR_HD void
manager_recycle(const tr_kv_manager_t *m, uint32_t i, uint32_t block)
{
    const manager_need_t *w = &m->need[i];

    EACH_THREAD (tid) {
        uint32_t head = block * MANAGER_WARPS + tid / MANAGER_WARP;

        if (head < m->heads && w->kind != NEED_REFUSED) {
            int32_t *row = manager_row(m, w->slot, head);
            const tr_kv_seq_t *q = &m->closed[i];
            manager_run_t run[MANAGER_RUNS];
            uint32_t n = manager_runs(m, q, head,
                                      manager_counts(m, w->slot, head),
                                      manager_borrowed(m, q, w->slot, head),
                                      manager_needed(w), run);

            manager_forget_borrowed(m, q, w->slot, head, tid % MANAGER_WARP);
            for (uint32_t j = tid % MANAGER_WARP; j < m->closed[i].shared;
                 j += MANAGER_WARP) {
                row[j] = -1;
            }
            if (w->kind == NEED_CLOSE) {
                manager_give_back(m, w->slot, head, run, n,
                                  w->first
                                      + m->before[(size_t) i * m->heads + head],
                                  tid % MANAGER_WARP);
            } else { /* out: its pages are not ours, its entries go */
                manager_forget(m, w->slot, head, run, n, tid % MANAGER_WARP);
            }
        }
    }
}

/* ---- out and in --------------------------------------------------------- */

typedef struct {
    uint32_t pages[TR_KV_LAYOUTS_MAX];
    manager_sum_t sum;
} manager_swap_t;

/* The slot's pages, by layout, are no longer in use, or are again. */
TR_HD void
manager_swap_pages(const tr_kv_manager_t *m, int32_t slot, bool in,
                   manager_swap_t *s)
{
    EACH_FEW (l, TR_KV_LAYOUTS_MAX) {
        s->pages[l] = 0;
    }
    EACH (h, m->heads) {
        const tr_kv_seq_t *q = &m->seq[slot];
        manager_run_t run[MANAGER_RUNS];
        uint32_t n = manager_runs(m, q, h, manager_counts(m, slot, h),
                                  manager_borrowed(m, q, slot, h),
                                  manager_dense(&m->slot[slot]), run);

        for (uint32_t r = 0; r < n; r++) {
            MANAGER_ADD(&s->pages[run[r].layout], run[r].n);
        }
    }
    EACH_FEW (l, TR_KV_LAYOUTS_MAX) {
        if (s->pages[l] != 0) {
            MANAGER_ADD_ALL(&m->report->pages[l],
                            in ? s->pages[l] : 0u - s->pages[l]);
        }
    }
}

/* Is it the slot's own? */
TR_HD bool
manager_owns(const tr_kv_manager_t *m, int32_t slot, int32_t page)
{
    return page >= 0 && (uint32_t) page < m->size.pages
           && m->owner[page] == (uint32_t) slot;
}

/* Those of n pages that are the slot's own come back, in order. */
TR_HD void
manager_give_own(const tr_kv_manager_t *m, int32_t slot, const int32_t *pages,
                 uint32_t n, manager_sum_t *sum)
{
    uint32_t each = manager_ceil(n, MANAGER_THREADS);

    EACH_THREAD (tid) {
        uint32_t i = tid * each, end = i + each < n ? i + each : n;

        for (sum->part[tid] = 0; i < end; i++) {
            sum->part[tid] += manager_owns(m, slot, pages[i]);
        }
    }
    EACH_FEW (group, MANAGER_GROUPS) {
        manager_group(sum, group);
    }
    EACH_THREAD (tid) {
        uint32_t i = tid * each, end = i + each < n ? i + each : n;
        uint64_t at = m->report->end + manager_below(sum, tid);

        for (; i < end; i++) {
            int32_t page = pages[i];

            if (manager_owns(m, slot, page)) {
                manager_store(m, at++, slot, &page);
            }
        }
    }
}

/* Of all n that are in its rows, those of others among them, [first, last) have
 * gone, which are in pages: its own come back.  It has all of them where it goes,
 * and then borrows none: until the last have gone, those that have count as
 * borrowed.  last TR_KV_ALL_PAGES: all that are left, and the slot is out. */
TR_HD void
manager_give(const tr_kv_manager_t *m, int32_t slot, const int32_t *pages,
             uint32_t n, uint32_t first, uint32_t last, manager_swap_t *s)
{
    uint32_t end = last < n ? last : n, some = end > first ? end - first : 0;
    tr_kv_slot_t *t = &m->slot[slot];
    bool ends = last == TR_KV_ALL_PAGES;

    if (!t->open || t->out || n != t->pages + t->borrowed) {
        EACH_FEW (j, 1) {
            MANAGER_ADD_ALL(&m->report->n_refused, 1);
        }
        return;
    }
    if (ends) {
        manager_swap_pages(m, slot, false, s);
    }
    manager_give_own(m, slot, pages, some, &s->sum);
    EACH (i, ends && m->seq[slot].frozen ? m->heads * TR_KV_TIERS_MAX : 0) {
        m->borrowed[manager_head(m, slot, 0) * TR_KV_TIERS_MAX + i] = 0;
    }
    EACH_FEW (j, 1) {
        uint32_t own = (uint32_t) manager_total(&s->sum);

        if (own > t->pages || (ends && own != t->pages)) {
            m->report->faults++;
        }
        m->report->end += own;
        t->pages = ends ? n : t->pages - own;
        t->borrowed = ends ? 0 : t->borrowed + own;
        t->out = ends;
    }
}

TR_HD void
manager_take(const tr_kv_manager_t *m, int32_t slot, int32_t *pages,
             uint32_t *got, uint32_t max, manager_swap_t *s)
{
    uint32_t n = m->slot[slot].pages;

    if (!m->slot[slot].open || !m->slot[slot].out || n > max
        || n > m->report->end - m->report->start) {
        EACH_FEW (j, 1) {
            *got = 0;
        }
        return;
    }
    manager_swap_pages(m, slot, true, s);
    EACH (i, n) {
        manager_fetch(m, m->report->start + i, slot, &pages[i]);
    }
    EACH_FEW (j, 1) {
        *got = n;
        m->report->start += n;
        m->slot[slot].out = false;
    }
}

#endif
