/*
 * manager_share.h: uncompressed pages that several slots read, of whole blocks: the
 * same entry of every head's row.
 *
 * Such pages belong to a keeper outside (engine/kv/kv_prefix.c), who counts
 * references and says when one is nobody's any more; owner[page] is then
 * MANAGER_SHARED.  A slot has them in the first entries of its rows, seq.shared
 * of each, in front of those that are its own; it neither writes into them nor
 * gives them back, and they are not among its pages.
 *
 *   lend     a kept block becomes the next of a slot that has no own pages yet
 *   cede     the slot's next own block is kept from now on
 *   merge    the same, but an equal block is kept already: that takes its place,
 *            and the slot's own pages come back
 *   reclaim  a block that nobody reads comes back
 *
 * One thread of the host each.  `pages` is [heads], in the order of heads.
 */
#ifndef TR_KV_MANAGER_SHARE_H
#define TR_KV_MANAGER_SHARE_H

#include "manager_core.h"

static inline void
manager_lend(const tr_kv_manager_t *m, int32_t slot, uint32_t block,
             const int32_t *pages)
{
    for (uint32_t h = 0; h < m->heads; h++) {
        if (m->owner[pages[h]] != MANAGER_SHARED) {
            m->report->faults++;
        }
        manager_row(m, slot, h)[block] = pages[h];
    }
}

/* The slot's first `blocks` are lent now. */
static inline void
manager_lent(const tr_kv_manager_t *m, int32_t slot, uint32_t blocks)
{
    tr_kv_slot_t *s = &m->slot[slot];

    if (!s->open || s->out || !s->uncompressed || s->uncompressed_pages != 0
        || blocks > m->view.at_window) {
        m->report->n_refused++;
        return;
    }
    m->seq[slot].shared = s->uncompressed_pages = blocks;
    s->tokens = blocks * m->place[0].tokens;
}

/* The slot's next own block is no longer its own. */
static inline void
manager_part_with(const tr_kv_manager_t *m, int32_t slot)
{
    m->seq[slot].shared++;
    m->slot[slot].pages -= m->heads;
    m->report->pages[0] -= m->heads;
}

static inline void
manager_cede(const tr_kv_manager_t *m, int32_t slot)
{
    uint32_t block = m->seq[slot].shared;

    for (uint32_t h = 0; h < m->heads; h++) {
        int32_t page = manager_row(m, slot, h)[block];

        if (page < 0 || m->owner[page] != (uint32_t) slot) {
            m->report->faults++;
        } else {
            m->owner[page] = MANAGER_SHARED;
        }
    }
    manager_part_with(m, slot);
}

static inline void
manager_merge_block(const tr_kv_manager_t *m, int32_t slot,
                    const int32_t *pages)
{
    uint32_t block = m->seq[slot].shared;

    for (uint32_t h = 0; h < m->heads; h++) {
        manager_store(m, m->report->end + h, slot,
                      &manager_row(m, slot, h)[block]);
    }
    m->report->end += m->heads;
    manager_lend(m, slot, block, pages);
    manager_part_with(m, slot);
}

static inline void
manager_reclaim(const tr_kv_manager_t *m, const int32_t *pages, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        int32_t page = pages[i];

        manager_store(m, m->report->end + i, (int32_t) MANAGER_SHARED, &page);
    }
    m->report->end += n;
    if (m->report->end - m->report->start > m->size.pages) {
        m->report->faults++;
    }
}

/* The slot is closed next: its entries say nothing any more. */
static inline void
manager_leave_shared(const tr_kv_manager_t *m, int32_t slot)
{
    for (uint32_t h = 0; h < m->heads; h++) {
        for (uint32_t i = 0; i < m->seq[slot].shared; i++) {
            manager_row(m, slot, h)[i] = -1;
        }
    }
}

#endif
