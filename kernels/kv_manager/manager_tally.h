/*
 * manager_tally.h: what the page manager does beside steps and prompts.
 *
 *   fork    block (request, head, share): uncompressed pages and the history
 *           of one slot into another
 *   tally   block (slot): what it holds, for the host
 */
#ifndef TR_KV_MANAGER_TALLY_H
#define TR_KV_MANAGER_TALLY_H

#include "manager_core.h"

/* ---- fork --------------------------------------------------------------- */

/* A slot that was computed up to len, at 16 bits, and one with room for it. */
TR_HD bool
manager_can_fork(const tr_kv_manager_t *m, const tr_kv_fork_t *f)
{
    uint32_t pages = manager_ceil(f->len, m->place[0].tokens);

    if (f->from < 0 || (uint32_t) f->from >= m->size.slots || f->to < 0
        || (uint32_t) f->to >= m->size.slots || f->from == f->to) {
        return false;
    }
    return m->slot[f->from].open && m->slot[f->to].open && !m->slot[f->from].out
           && !m->slot[f->to].out && m->seq[f->from].base == 0
           && m->seq[f->to].base == 0 && m->slot[f->from].tokens >= f->len
           && m->slot[f->to].tokens >= f->len
           && m->slot[f->from].uncompressed_pages >= pages
           && m->slot[f->to].uncompressed_pages >= pages;
}

/* history: [slots][history_len] tokens, or NULL.  Share `block` of `blocks` of
 * a head's pages; the first head's first block also does what is there once. */
TR_HD void
manager_fork(const tr_kv_manager_t *m, int32_t *history, uint32_t history_len,
             const tr_kv_fork_t *f, uint32_t head, uint32_t block,
             uint32_t blocks)
{
    uint32_t pages = manager_ceil(f->len, m->place[0].tokens);
    bool good = manager_can_fork(m, f), once = head == 0 && block == 0;
    /* those that `to` shares are the same pages */
    uint32_t shared = good ? m->seq[f->to].shared : pages;

    EACH_THREAD (tid) {
        for (uint32_t p = shared + block; p < pages; p += blocks) {
            manager_copy_page(m, manager_row(m, f->from, head)[p],
                              manager_row(m, f->to, head)[p], tid);
        }
        for (uint32_t i = tid; i < f->len && good && once && history != NULL;
             i += MANAGER_THREADS) {
            history[(size_t) f->to * history_len + i] =
                history[(size_t) f->from * history_len + i];
        }
        if (tid == 0 && once && good) {
            m->seq[f->to].recent_from = m->seq[f->from].recent_from;
        }
        if (tid == 0 && once && !good) {
            MANAGER_ADD_ALL(&m->report->n_refused, 1);
        }
    }
}

/* ---- tally -------------------------------------------------------------- */

typedef struct {
    uint32_t tiered[TR_KV_TIERS_MAX], pages[TR_KV_TIERS_MAX];
    uint32_t edge[TR_KV_EDGES];
} manager_tally_t;

/* One head's share of the sums.  A tier grows by at most what leaves the window
 * in a step, so that it is known which ones come to the end of a page. */
TR_HD void
manager_tally_head(const tr_kv_manager_t *m, int32_t slot, uint32_t head,
                   manager_tally_t *sum)
{
    const tr_kv_seq_t *q = &m->seq[slot];
    const uint32_t *count = manager_counts(m, slot, head);
    const uint32_t *borrowed = manager_borrowed(m, q, slot, head);
    uint32_t grows = m->slot[slot].rule.leaves, room = UINT32_MAX;

    if (manager_slides(m, q, head)) {
        return; /* they take no page for a tier */
    }
    for (uint32_t l = 0; l < q->n_tiers; l++) {
        uint32_t tokens = m->place[q->tier_layout[l]].tokens;
        uint32_t left = (tokens - count[l] % tokens) % tokens;

        sum->tiered[l] += count[l];
        sum->pages[l] += manager_ceil(count[l], tokens)
                         - (borrowed != NULL ? borrowed[l] / tokens : 0);
        room = left < room ? left : room;
    }
    for (uint32_t i = 0; i < TR_KV_EDGES; i++) {
        sum->edge[i] += room / (grows > 1 ? grows : 1) <= i;
    }
}

TR_HD void
manager_tally(const tr_kv_manager_t *m, int32_t slot, manager_tally_t *s)
{
    const tr_kv_slot_t *t = &m->slot[slot];
    const tr_kv_seq_t *q = &m->seq[slot];

    EACH_FEW (l, TR_KV_TIERS_MAX) {
        s->tiered[l] = s->pages[l] = 0;
        if (l < TR_KV_EDGES) {
            s->edge[l] = 0;
        }
    }
    EACH_THREAD (tid) {
        manager_tally_t sum;

        memset(&sum, 0, sizeof(sum));
        for (uint32_t h = tid; h < m->heads && t->open; h += MANAGER_THREADS) {
            manager_tally_head(m, slot, h, &sum);
        }
        for (uint32_t i = 0; i < TR_KV_EDGES; i++) {
            if (sum.edge[i] != 0) {
                MANAGER_ADD(&s->edge[i], sum.edge[i]);
            }
        }
        for (uint32_t l = 0; l < TR_KV_TIERS_MAX; l++) {
            if (sum.tiered[l] != 0) {
                MANAGER_ADD(&s->tiered[l], sum.tiered[l]);
                MANAGER_ADD(&s->pages[l], sum.pages[l]);
            }
        }
    }
    EACH_FEW (j, 1) {
        tr_kv_tally_t *out = &m->tally[slot];

        out->open = t->open;
        out->uncompressed = t->uncompressed;
        out->out = t->out;
        out->tokens = t->tokens;
        out->uncompressed_pages = t->uncompressed_pages;
        out->near_pages = t->near_pages;
        out->near_from = t->near_from;
        out->pages = t->pages;
        out->frozen_pages = t->frozen_pages;
        out->borrowed = t->borrowed;
        out->base = t->open ? q->base : 0;
        out->window_from = t->open ? q->window_from : 0;
        out->sinks = t->open ? q->sinks : 0;
        for (uint32_t l = 0; l < TR_KV_TIERS_MAX; l++) {
            out->tiered[l] = s->tiered[l];
            out->tier_pages[l] = s->pages[l];
        }
        for (uint32_t i = 0; i < TR_KV_EDGES; i++) {
            out->edge[i] = s->edge[i];
        }
    }
}

#endif
