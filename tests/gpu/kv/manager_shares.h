/*
 * manager_shares.h: random operations by which slots of manager_fixture.h share
 * pages: prefixes that are kept and taken over, lenders that are absorbed.
 */
#ifndef TR_TESTS_GPU_MANAGER_SHARES_H
#define TR_TESTS_GPU_MANAGER_SHARES_H

#include "manager_operations.h"

/* ---- share -------------------------------------------------------------- */

static void
fixture_share(fixture_t *w, tr_kv_share_kind_t kind, tr_kv_share_t *share,
              uint32_t n)
{
    w->device->pool(w->device->arg);
    FIXTURE_SAME(w, FIXTURE_CALL(w, FIXTURE_SHARE + kind, share, n), " ");
    tr_kv_host_share(&w->kv->m, NULL, 0, kind, share, n);
    w->shares += n;
    fixture_compare(w);
}

/* Is there such a block, and how many slots have it? */
static bool
fixture_kept(const fixture_t *w, uint32_t block, uint32_t *readers)
{
    const tr_kv_manager_t *m = &w->kv->m;
    int32_t page = m->kept[(size_t) block * m->heads];

    *readers = 0;
    for (uint32_t i = 0; i < w->slots && page >= 0; i++) {
        for (uint32_t k = 0; k < m->seq[i].shared && m->slot[i].open; k++) {
            *readers += manager_row(m, (int32_t) i, 0)[k] == page;
        }
    }
    return page >= 0;
}

/* Up to `most` blocks, all different, that are kept or are not; unread: and that
 * nobody reads. */
static uint32_t
fixture_blocks(const fixture_t *w, bool kept, bool unread, uint32_t *block,
               uint32_t most)
{
    uint32_t blocks = w->kv->m.size.blocks, first = fixture_random(blocks);
    uint32_t n = 0, readers;

    for (uint32_t i = 0; i < blocks && n < most; i++) {
        uint32_t b = (first + i) % blocks;

        if (fixture_kept(w, b, &readers) == kept && (!unread || readers == 0)) {
            block[n++] = b;
        }
    }
    return n;
}

/* A slot that leaves all at 16 bits, looked for from a random one on; -1: there is
 * none. */
static int32_t
fixture_sharer(const fixture_t *w)
{
    uint32_t first = fixture_random(w->slots);

    for (uint32_t k = 0; k < w->slots; k++) {
        uint32_t i = (first + k) % w->slots;

        if (w->slot[i].open && !w->slot[i].out
            && w->kv->m.slot[i].rule.n_levels == 0) {
            return (int32_t) i;
        }
    }
    return -1;
}

/* Blocks of a slot that leaves all at 16 bits are kept, lent, merged, copied; and
 * come back. */
static void
fixture_blocks_move(fixture_t *w)
{
    const tr_kv_manager_t *m = &w->kv->m;
    tr_kv_share_kind_t kind = (tr_kv_share_kind_t) fixture_random(5);
    int32_t slot = fixture_sharer(w);
    uint32_t i = slot < 0 ? 0 : (uint32_t) slot, most = 1 + fixture_random(4);
    const tr_kv_slot_t *s = &m->slot[i];
    uint32_t tokens = m->place[0].tokens, at = m->seq[i].shared, block[4], n;
    tr_kv_share_t share[4];

    if (kind != TR_KV_RECLAIM && slot < 0) {
        return;
    }
    if (kind == TR_KV_LEND) {
        uint32_t room = w->kv->config.max_len / tokens;

        most = s->uncompressed_pages != at ? 0
               : most < room - at          ? most
                                           : room - at;
    } else if (kind == TR_KV_COPY) {
        most = s->uncompressed_pages - at < most ? s->uncompressed_pages - at
                                                 : most;
    } else if (kind != TR_KV_RECLAIM) {
        most = s->tokens / tokens - at < most ? s->tokens / tokens - at : most;
    }
    n = fixture_blocks(w, kind != TR_KV_CEDE, kind == TR_KV_RECLAIM, block,
                       most);
    for (uint32_t k = 0; k < n; k++) {
        share[k] = (tr_kv_share_t){ slot, at + k, block[k] };
    }
    if (n != 0) {
        fixture_share(w, kind, share, n);
    }
    w->kv->totals.tokens += kind == TR_KV_LEND ? n * tokens : 0;
    if (slot >= 0 && w->slot[i].goal < s->tokens) {
        w->slot[i].goal = s->tokens;
    }
}

/* Nobody has a block any more. */
static void
fixture_reclaim(fixture_t *w)
{
    tr_kv_share_t share = { 0 };

    for (uint32_t i = 0; i < w->slots; i++) {
        int32_t slot = (int32_t) i;

        if (w->slot[i].open && w->kv->m.seq[i].shared != 0) {
            w->slot[i].open = false;
            tr_kv_close(w->kv, slot);
            FIXTURE_SAME(w, FIXTURE_CALL(w, FIXTURE_CLOSE, &slot, 1), " ");
        }
    }
    while (fixture_blocks(w, true, true, &share.block, 1) != 0 && !w->failed) {
        fixture_share(w, TR_KV_RECLAIM, &share, 1);
    }
}

/* ---- absorb -------------------------------------------------------------- */

static int
fixture_by_page(const void *a, const void *b)
{
    int32_t x = *(const int32_t *) a, y = *(const int32_t *) b;

    return (x > y) - (x < y);
}

/* Pages that came back from entry `from` of the ring on, in order. */
static void
fixture_back(const tr_kv_manager_t *m, uint64_t from, int32_t *out)
{
    for (uint64_t i = from; i < m->report->end; i++) {
        out[i - from] = m->ring[i % m->size.pages];
    }
    qsort(out, m->report->end - from, sizeof(*out), fixture_by_page);
}

/* The same pages have come back, in any order; the CPU's has them as the device
 * from now on. */
static void
fixture_same_back(fixture_t *w, uint64_t from)
{
    tr_kv_manager_t *m = &w->kv->m;
    int32_t *mine = malloc(2ul * m->size.pages * sizeof(*mine));
    int32_t *theirs = mine + m->size.pages;

    FIXTURE_SAME(w, m->report->end == w->mirror.report->end,
                 "%llu, device %llu", (unsigned long long) m->report->end,
                 (unsigned long long) w->mirror.report->end);
    if (!w->failed) {
        fixture_back(m, from, mine);
        fixture_back(&w->mirror, from, theirs);
        FIXTURE_SAME(w,
                     memcmp(mine, theirs,
                            (m->report->end - from) * sizeof(*mine))
                         == 0,
                     "other pages came back");
        memcpy(m->ring, w->mirror.ring, m->size.pages * sizeof(*m->ring));
    }
    free(mine);
}

/* Who alone borrows of a slot; -1: nobody, or several. */
static int32_t
fixture_borrower(const fixture_t *w, uint32_t i)
{
    int32_t who = -1;

    for (uint32_t j = 0; j < w->slots; j++) {
        if (w->slot[j].open && w->slot[j].lender == i + 1) {
            if (who >= 0) {
                return -1;
            }
            who = (int32_t) j;
        }
    }
    return who;
}

/* Some lenders become part of who borrows of them: no slot is in two records. */
static void
fixture_absorb(fixture_t *w)
{
    tr_kv_absorb_t absorb[FIXTURE_SLOTS];
    bool used[FIXTURE_SLOTS] = { false };
    uint32_t n = 0, most = 1 + fixture_random(3),
             first = fixture_random(w->slots);
    uint64_t end = w->kv->m.report->end;

    for (uint32_t k = 0; k < w->slots && n < most; k++) {
        uint32_t i = (first + k) % w->slots;
        int32_t to = fixture_borrower(w, i);

        if (to >= 0 && !used[i] && !used[to]) {
            used[i] = used[to] = true;
            absorb[n++] = (tr_kv_absorb_t){ (int32_t) i, to };
        }
    }
    if (n == 0) {
        return;
    }
    FIXTURE_SAME(w, FIXTURE_CALL(w, FIXTURE_ABSORB, absorb, n), " ");
    w->device->fetch(w->device->arg);
    for (uint32_t k = 0; k < n; k++) {
        w->kv->totals.tokens -= w->kv->m.slot[absorb[k].from].tokens;
        w->slot[absorb[k].to].lender = w->slot[absorb[k].from].lender;
        w->slot[absorb[k].from].open = false;
    }
    tr_kv_host_absorb(&w->kv->m, absorb, n);
    for (uint32_t k = 0; k < n; k++) {
        tr_kv_drop_slot(w->kv, absorb[k].from);
    }
    fixture_same_back(w, end);
    w->absorbed += n;
    fixture_compare(w);
}

/* Nobody borrows any more: those at the ends of chains go first. */
static void
fixture_repay(fixture_t *w)
{
    for (uint32_t i = 0; i < w->slots; i++) {
        int32_t slot = (int32_t) i;

        if (w->slot[i].open && w->slot[i].lender != 0 && !fixture_lends(w, i)) {
            w->slot[i].open = false;
            tr_kv_close(w->kv, slot);
            FIXTURE_SAME(w, FIXTURE_CALL(w, FIXTURE_CLOSE, &slot, 1), " ");
            i = UINT32_MAX; /* from the first on: its lender may be next */
        }
    }
    fixture_compare(w);
}

#endif
