/*
 * manager_share.h: blocks of uncompressed pages that are kept for others: the
 * same entry of every head's row.
 *
 *   share    block (record): pages from here to there, and the slot's counts
 *   copy     block (record, head): what is in the page
 *   shared   one block, the last of share: where the ring ends now
 *
 * A kept block has a number, by which m->kept has its pages; owner[page] is then
 * MANAGER_SHARED.  Who keeps it (engine/kv/kv_prefix.c) gives the numbers, counts
 * references, and says when nobody needs it any more.  Slots that share it have
 * its pages in the first entries of their rows, seq.shared of each, in front of
 * those that are their own; they neither write into them nor give them back, and
 * they are not among their pages.
 *
 * Records of a launch have all one kind (tr_kv_share_kind_t), and no two of them
 * the same entry of a slot.  A launch that keeps a block comes before one that
 * lends, merges or copies it, and behind one that reclaimed its number.
 */
#ifndef TR_KV_MANAGER_SHARE_H
#define TR_KV_MANAGER_SHARE_H

#include "manager_core.h"

TR_HD bool
manager_can_share(const tr_kv_manager_t *m, tr_kv_share_kind_t kind,
                  const tr_kv_share_t *x)
{
    if (x->block >= m->size.blocks) {
        return false;
    }
    return kind == TR_KV_RECLAIM
           || (x->slot >= 0 && (uint32_t) x->slot < m->size.slots
               && m->slot[x->slot].open && !m->slot[x->slot].out
               && m->seq[x->slot].base == 0 && x->entry < m->view.at_window
               && (kind == TR_KV_LEND
                   || x->entry < m->slot[x->slot].uncompressed_pages));
}

/* The slot's next block is no longer, or was never, its own; also of a mirror
 * that has slots and sequences alone. */
TR_HD void
manager_count_shared(const tr_kv_manager_t *m, tr_kv_share_kind_t kind,
                     int32_t slot)
{
    tr_kv_slot_t *s = &m->slot[slot];

    if (kind == TR_KV_LEND) {
        MANAGER_ADD_ALL(&s->uncompressed_pages, 1);
        MANAGER_ADD_ALL(&s->tokens, m->place[0].tokens);
    } else {
        MANAGER_ADD_ALL(&s->pages, 0u - m->heads);
        MANAGER_ADD_ALL(&m->report->pages[0], 0u - m->heads);
    }
    MANAGER_ADD_ALL(&m->seq[slot].shared, 1);
}

/* The page of head h.  at: where in the ring the block's pages come to. */
TR_HD void
manager_share_page(const tr_kv_manager_t *m, tr_kv_share_kind_t kind,
                   const tr_kv_share_t *x, uint32_t h, uint64_t at)
{
    int32_t *kept = &m->kept[(size_t) x->block * m->heads + h];
    int32_t *entry, page;

    if (kind == TR_KV_RECLAIM) {
        manager_store(m, at + h, (int32_t) MANAGER_SHARED, kept);
        return;
    }
    entry = manager_row(m, x->slot, h) + x->entry;
    if (kind == TR_KV_CEDE) {
        page = *entry;
        if (page < 0 || m->owner[page] != (uint32_t) x->slot) {
            MANAGER_ADD_ALL(&m->report->faults, 1);
        } else {
            m->owner[page] = MANAGER_SHARED;
        }
        *kept = page;
        return;
    }
    if (kind == TR_KV_MERGE) {
        manager_store(m, at + h, x->slot, entry);
    }
    page = *kept;
    if (page < 0 || m->owner[page] != MANAGER_SHARED) {
        MANAGER_ADD_ALL(&m->report->faults, 1);
    }
    *entry = page;
}

/* Tokens of the block: from the slot's history, or into it. */
TR_HD void
manager_share_tokens(const tr_kv_manager_t *m, int32_t *history,
                     uint32_t history_len, bool keep, const tr_kv_share_t *x)
{
    uint32_t n = m->place[0].tokens, first = x->entry * n;
    int32_t *kept = m->kept_token + (size_t) x->block * n;
    int32_t *known = history + (size_t) x->slot * history_len + first;

    EACH (i, n) {
        if (first + i < history_len && keep) {
            kept[i] = known[i];
        } else if (first + i < history_len) {
            known[i] = kept[i];
        }
    }
}

/* Record i of any kind but TR_KV_COPY.  history: [slots][history_len] tokens, or
 * NULL. */
TR_HD void
manager_share(const tr_kv_manager_t *m, int32_t *history, uint32_t history_len,
              tr_kv_share_kind_t kind, const tr_kv_share_t *share, uint32_t i)
{
    const tr_kv_share_t *x = &share[i];
    uint64_t at = m->report->end + (uint64_t) i * m->heads;
    bool good = manager_can_share(m, kind, x);

    EACH (h, good ? m->heads : 0) {
        manager_share_page(m, kind, x, h, at);
    }
    if (good && history != NULL && (kind == TR_KV_LEND || kind == TR_KV_CEDE)) {
        manager_share_tokens(m, history, history_len, kind == TR_KV_CEDE, x);
    }
    EACH_FEW (j, 1) {
        if (!good) {
            MANAGER_ADD_ALL(&m->report->n_refused, 1);
        } else if (kind != TR_KV_RECLAIM) {
            manager_count_shared(m, kind, x->slot);
        }
    }
}

/* The last block of n records: pages have come back. */
TR_HD void
manager_shared(const tr_kv_manager_t *m, tr_kv_share_kind_t kind, uint32_t n)
{
    EACH_FEW (j, 1) {
        if (kind == TR_KV_MERGE || kind == TR_KV_RECLAIM) {
            m->report->end += (uint64_t) n * m->heads;
        }
        if (m->report->end - m->report->start > m->size.pages) {
            m->report->faults++;
        }
    }
}

/* A record of kind TR_KV_COPY: what is in the page of a head; the first head's
 * block also does what is there once. */
TR_HD void
manager_copy_kept(const tr_kv_manager_t *m, int32_t *history,
                  uint32_t history_len, const tr_kv_share_t *x, uint32_t head)
{
    bool good = manager_can_share(m, TR_KV_COPY, x);

    EACH_THREAD (tid) {
        int32_t page = good ? m->kept[(size_t) x->block * m->heads + head] : -1;

        if (good && (page < 0 || m->owner[page] != MANAGER_SHARED)) {
            MANAGER_ADD_ALL(&m->report->faults, tid == 0);
        } else if (good) {
            manager_copy_page(m, page, manager_row(m, x->slot, head)[x->entry],
                              tid);
        }
    }
    if (good && head == 0 && history != NULL) {
        manager_share_tokens(m, history, history_len, false, x);
    }
    EACH_FEW (j, 1) {
        if (!good && head == 0) {
            MANAGER_ADD_ALL(&m->report->n_refused, 1);
        }
    }
}

#endif
