/*
 * manager_step.h: a step of the page manager, in three programs.
 *
 *   plan    block (request, chunk of heads): who leaves the window and where
 *           to, who is downgraded for it, whether that takes a page.  Writes
 *           moves and wants; counts and tables stay.
 *   sum     one block: pages by request; those that fit get their range of the
 *           ring in the order of the requests, and their sequence goes on.
 *   grant   block (request, chunk of heads): pages into the tables, counts.
 *
 * A move is only looked at when its request was granted the step; that of a
 * stalled one is planned again.
 */
#ifndef TR_KV_MANAGER_STEP_H
#define TR_KV_MANAGER_STEP_H

#include "manager_head.h"

/* ---- plan --------------------------------------------------------------- */

typedef struct {
    uint32_t wants[MANAGER_CHUNK / 32]; /* bit by head */
} manager_plan_t;

/* A head wants a page. */
TR_HD void
manager_want(const tr_kv_manager_t *m, uint32_t i, uint32_t head, int8_t want,
             manager_plan_t *s)
{
    m->want[(size_t) i * m->heads + head] = want;
    if (want != TR_KV_NOWHERE) {
        MANAGER_OR(&s->wants[head % MANAGER_CHUNK / 32], 1u << head % 32);
    }
}

/* The heads [first, first + n), at most MANAGER_AHEAD, of request i.  From
 * their windows tokens leave, or none while those fill, and none from heads that
 * slide. */
TR_HD void
manager_plan_some(const tr_kv_manager_t *m, const manager_need_t *w, uint32_t i,
                  uint32_t first, uint32_t n, manager_plan_t *s)
{
    const tr_kv_seq_t *q = &m->seq[w->slot];
    uint32_t leaving = w->leaves != 0 ? n : 0;
    MANAGER_OWN(manager_half_t, half);

    EACH_AHEAD (k, leaving) {
        MANAGER_PREFETCH(manager_row(m, w->slot, first + k) + w->entry);
        MANAGER_PREFETCH(manager_counts(m, w->slot, first + k));
    }
    EACH_AHEAD (k, w->scored ? leaving : 0) {
        if (!manager_slides(m, q, first + k)) {
            MANAGER_PREFETCH(
                tr_kv_page_at(&m->view,
                              manager_row(m, w->slot, first + k)[w->entry])
                + w->offset);
        }
    }
    EACH_AHEAD (k, leaving) {
        if (!manager_slides(m, q, first + k)) {
            manager_leave(m, w, first + k, &MINE(half, k));
        }
    }
    EACH_AHEAD (k, leaving) {
        if (!manager_slides(m, q, first + k)) {
            manager_look_ahead(m, w, first + k, &MINE(half, k));
        }
    }
    EACH_AHEAD (k, n) {
        tr_kv_move_t move = manager_no_move();
        int8_t want = w->window_page ? TR_KV_WINDOW : TR_KV_NOWHERE;

        if (manager_slides(m, q, first + k)) {
            want = w->near_more != 0 ? TR_KV_UNCOMPRESSED : TR_KV_NOWHERE;
        } else if (w->leaves != 0) {
            manager_look(m, w, first + k, &MINE(half, k));
            want = manager_move(m, w, &MINE(half, k), &move);
        }
        m->move[manager_head(m, w->slot, first + k)] = move;
        manager_want(m, i, first + k, want, s);
    }
}

/* Block (request i, chunk of heads) of a step. */
TR_HD void
manager_plan_heads(const tr_kv_manager_t *m, const manager_need_t *w,
                   uint32_t i, uint32_t chunk, manager_plan_t *s)
{
    uint32_t first = chunk * MANAGER_CHUNK, n = m->heads - first, k;

    n = n < MANAGER_CHUNK ? n : MANAGER_CHUNK;
    EACH_FEW (j, MANAGER_CHUNK / 32) {
        s->wants[j] = 0;
    }
    for (k = 0; k < MANAGER_CHUNK && k < n; k += MANAGER_AHEAD) {
        uint32_t some = n - k;

        manager_plan_some(m, w, i, first + k,
                          some < MANAGER_AHEAD ? some : MANAGER_AHEAD, s);
    }
    MANAGER_WAIT();
    EACH_AHEAD (j, 1) {
        uint32_t pages = 0;

        for (uint32_t b = 0; b < MANAGER_CHUNK / 32; b++) {
            pages += MANAGER_POPC(s->wants[b]);
        }
        m->part[(size_t) i * m->chunks + chunk] = pages;
    }
}

/* Block (request i, chunk). */
TR_HD void
manager_plan(const tr_kv_manager_t *m, const tr_kv_page_request_t *ask,
             uint32_t i, uint32_t chunk, manager_plan_t *s)
{
    manager_need_t w;

    manager_need(m, &ask[i], &w);
    EACH_AHEAD (j, chunk == 0) {
        m->need[i] = w;
    }
    if (w.kind == NEED_STEP) {
        manager_plan_heads(m, &w, i, chunk, s);
    }
}

/* ---- sum ---------------------------------------------------------------- */

typedef struct {
    uint32_t pages[TR_KV_SLOTS_MAX];
    bool granted[TR_KV_SLOTS_MAX];
    uint32_t stalled[TR_KV_SLOTS_MAX / 32];
    uint32_t n_stalled, n_refused;
    manager_sum_t sum;
} manager_grants_t;

/* Partial sums as manager_group makes them, none above `most`. */
TR_HD void
manager_group_upto(manager_sum_t *s, uint32_t group, uint32_t most)
{
    uint64_t sum = 0;

    for (uint32_t i = 0; i < MANAGER_GROUP; i++) {
        sum += s->part[group * MANAGER_GROUP + i];
    }
    s->group[group] = sum < most ? (uint32_t) sum : most;
}

/* Are these pages of all requests at most so many? */
TR_HD bool
manager_fits(const manager_sum_t *s, uint32_t left)
{
    uint64_t sum = 0;

    for (uint32_t i = 0; i < MANAGER_GROUPS; i++) {
        sum += s->group[i];
    }
    return sum <= left;
}

/* One after the other: who does not fit is passed over. */
TR_HD void
manager_sum_short(const tr_kv_manager_t *m, uint32_t n, uint32_t left,
                  manager_grants_t *s)
{
    uint32_t taken = 0;

    for (uint32_t i = 0; i < n; i++) {
        s->granted[i] = s->pages[i] <= left - taken;
        if (s->granted[i]) {
            m->need[i].first = m->report->start + taken;
            taken += s->pages[i];
        }
    }
    s->sum.group[0] = taken;
}

/* The next token of a compressed slot is there. */
TR_HD void
manager_next(const tr_kv_manager_t *m, const manager_need_t *w)
{
    tr_kv_seq_t *q = &m->seq[w->slot];

    m->slot[w->slot].tokens = w->len;
    m->slot[w->slot].near_pages += w->near_turns + w->near_more;
    m->slot[w->slot].near_from += w->near_turns;
    q->base = w->n + 1;
    q->window_from += w->leaves; /* without a window the new token */
}

/* How much of its uncompressed pages a step of this slot reads. */
TR_HD void
manager_read(const tr_kv_manager_t *m, int32_t slot)
{
    const tr_kv_slot_t *s = &m->slot[slot];
    tr_kv_seq_t *q = &m->seq[slot];
    uint32_t tokens = m->place[0].tokens;

    q->read_pages = s->tokens > s->prompt
                        ? tr_kv_rule_read(&s->rule,
                                          manager_ceil(s->tokens - q->base,
                                                       tokens),
                                          tokens)
                        : 0;
}

TR_HD void
manager_advance(const tr_kv_manager_t *m, const manager_need_t *w)
{
    tr_kv_slot_t *s = &m->slot[w->slot];

    s->pages += w->pages;
    if (w->kind == NEED_STEP) {
        const tr_kv_seq_t *q = &m->seq[w->slot];
        uint32_t near = w->near_more * manager_near(m, q);

        manager_next(m, w);
        if (w->window_page) {
            MANAGER_ADD_ALL(&m->report->pages[q->window_layout],
                            w->pages - near);
        }
        if (near != 0) {
            MANAGER_ADD_ALL(&m->report->pages[0], near);
        }
        return;
    }
    s->tokens = w->len;
    s->uncompressed_pages += w->more;
    s->near_pages += w->near_more;
    MANAGER_ADD_ALL(&m->report->pages[0], w->pages);
    manager_read(m, w->slot);
}

/* What became of request i. */
TR_HD void
manager_settle(const tr_kv_manager_t *m, uint32_t i, manager_grants_t *s)
{
    manager_need_t *w = &m->need[i];
    uint8_t result = TR_KV_GRANTED;

    w->granted = s->granted[i]
                 && (w->kind == NEED_UNCOMPRESSED || w->kind == NEED_STEP);
    if (w->kind == NEED_IDLE || w->kind == NEED_REFUSED) {
        result = TR_KV_REFUSED;
    } else if (!s->granted[i]) {
        result = TR_KV_STALLED;
        MANAGER_OR(&s->stalled[w->slot / 32], 1u << w->slot % 32);
        MANAGER_ADD(&s->n_stalled, 1);
    }
    if (w->kind == NEED_REFUSED) {
        MANAGER_ADD(&s->n_refused, 1);
    }
    m->result[i] = result;
    m->seq_slot[i] = result == TR_KV_GRANTED ? w->slot : -1;
    m->position[i] = w->n;
    if (w->granted) {
        w->pages = s->pages[i];
        manager_advance(m, w);
    }
}

/* The pages that request i wants, which are granted until there are too few. */
TR_HD uint32_t
manager_wanted(const tr_kv_manager_t *m, uint32_t i, manager_grants_t *s)
{
    uint32_t pages = m->need[i].pages;

    if (m->need[i].kind == NEED_STEP) {
        for (uint32_t c = 0; c < m->chunks; c++) {
            pages += m->part[(size_t) i * m->chunks + c];
        }
    }
    s->pages[i] = pages;
    s->granted[i] = true;
    return pages;
}

/* The last block of plan. */
TR_HD void
manager_sum(const tr_kv_manager_t *m, uint32_t n, manager_grants_t *s)
{
    uint32_t each = manager_ceil(n, MANAGER_THREADS);
    uint32_t left = (uint32_t) (m->report->end - m->report->start);
    uint32_t words = manager_ceil(m->size.slots, 32);

    EACH_AHEAD (j, words) {
        s->stalled[j] = 0;
    }
    EACH_THREAD (tid) {
        uint32_t i = tid * each, end = i + each < n ? i + each : n;
        uint64_t sum = 0;

        for (; i < end; i++) {
            sum += manager_wanted(m, i, s);
        }
        /* too much alone is too much together, without running over */
        s->sum.part[tid] = sum > left ? left + 1 : (uint32_t) sum;
        if (tid == 0) {
            s->n_stalled = s->n_refused = 0;
        }
    }
    EACH_FEW (group, MANAGER_GROUPS) {
        manager_group_upto(&s->sum, group, left + 1);
    }
    if (manager_fits(&s->sum, left)) {
        EACH_THREAD (tid) {
            uint32_t i = tid * each, end = i + each < n ? i + each : n;
            uint64_t at = m->report->start + manager_below(&s->sum, tid);

            for (; i < end; i++) {
                m->need[i].first = at;
                at += s->pages[i];
            }
        }
    } else {
        MANAGER_WAIT(); /* all have seen the sums */
        EACH_FEW (group, MANAGER_GROUPS) {
            s->sum.group[group] = 0;
        }
        EACH_FEW (j, 1) {
            manager_sum_short(m, n, left, s);
        }
    }
    EACH (i, n) {
        manager_settle(m, i, s);
    }
    EACH_AHEAD (j, words) {
        m->report->stalled[j] = s->stalled[j];
    }
    EACH_AHEAD (j, 1) {
        m->report->start += manager_total(&s->sum);
        m->report->steps++;
        m->report->n_stalled = s->n_stalled;
        m->report->n_refused += s->n_refused;
    }
}

/* ---- grant -------------------------------------------------------------- */

typedef struct {
    uint32_t wants[MANAGER_CHUNK / 32]; /* bit by head */
    uint32_t pages[TR_KV_TIERS_MAX];    /* taken, by tier */
    uint32_t before;                    /* wants of the chunks before */
} manager_grant_t;

/* Pages of a request taken side by side by one thread, so that what it reads
 * for each comes from memory together. */
#define MANAGER_TOGETHER 4u

/* The page at index i of the ring, unless `end` pages are fewer. */
TR_HD int32_t
manager_ring_page(const tr_kv_manager_t *m, uint32_t first, uint32_t i,
                  uint32_t end)
{
    uint32_t at = first + i; /* both below pages, which are below 2^30 */

    return i < end ? m->ring[at < m->size.pages ? at : at - m->size.pages] : -1;
}

/* Uncompressed pages of some heads, a run of each, in order. */
typedef struct {
    const uint32_t *head; /* [heads] */
    uint32_t heads, more, entry;
    uint64_t first; /* in the ring */
} manager_more_t;

/* They are shared out over `blocks` blocks: consecutive ones each, so that two
 * blocks of a host seldom write to one line of a table. */
TR_HD void
manager_grant_more(const tr_kv_manager_t *m, const manager_need_t *w,
                   const manager_more_t *x, uint32_t block, uint32_t blocks)
{
    uint32_t n = x->heads * x->more, each = manager_ceil(n, blocks);
    uint32_t begin = block * each < n ? block * each : n;
    uint32_t end = n - begin < each ? n : begin + each;
    uint32_t first = (uint32_t) (x->first % m->size.pages);
    /* from one of a thread's pages to its next */
    uint32_t heads = MANAGER_THREADS / x->more;
    uint32_t entries = MANAGER_THREADS % x->more;

    EACH_THREAD (tid) {
        uint32_t i = begin + tid, head = i / x->more, entry = i % x->more;

        while (i < end) {
            int32_t page[MANAGER_TOGETHER];
            bool good[MANAGER_TOGETHER];
            uint32_t k;

            for (k = 0; k < MANAGER_TOGETHER; k++) {
                page[k] = manager_ring_page(m, first, i + k * MANAGER_THREADS,
                                            end);
            }
            for (k = 0; k < MANAGER_TOGETHER; k++) {
                good[k] = page[k] >= 0 && m->owner[page[k]] == MANAGER_NOBODY;
            }
            for (k = 0; k < MANAGER_TOGETHER && i < end; k++) {
                if (good[k]) {
                    m->owner[page[k]] = (uint32_t) w->slot;
                    MANAGER_POISON(m, page[k]);
                } else {
                    MANAGER_ADD_ALL(&m->report->faults, 1);
                }
                manager_row(m, w->slot,
                            x->head[head])[x->entry + entry] = page[k];
                i += MANAGER_THREADS;
                head += heads;
                entry += entries;
                if (entry >= x->more) {
                    entry -= x->more;
                    head++;
                }
            }
        }
    }
}

/* Of all heads: behind the others' come those of heads that slide. */
TR_HD void
manager_grant_uncompressed(const tr_kv_manager_t *m, const manager_need_t *w,
                           uint32_t block, uint32_t blocks)
{
    uint32_t near = manager_near(m, &m->seq[w->slot]), rest = m->heads - near;
    const manager_more_t all = { m->order, rest, w->more, w->uncompressed_pages,
                                 w->first };
    const manager_more_t last = { m->order + rest, near, w->near_more,
                                  w->near_pages,
                                  w->first + (uint64_t) rest * w->more };

    if (all.more != 0 && all.heads != 0) {
        manager_grant_more(m, w, &all, block, blocks);
    }
    if (last.more != 0) {
        manager_grant_more(m, w, &last, block, blocks);
    }
}

/* The page that a head of a step wants. */
TR_HD void
manager_grant_page(const tr_kv_manager_t *m, const manager_need_t *w,
                   uint32_t head, int8_t want, const uint32_t *count,
                   uint64_t at)
{
    const tr_kv_seq_t *q = &m->seq[w->slot];
    uint32_t entry;

    if (want == TR_KV_UNCOMPRESSED) {
        entry = w->near_pages;
    } else if (want == TR_KV_WINDOW) {
        entry = m->view.at_window
                + tr_kv_window_entry(q, w->n)
                      / m->place[q->window_layout].tokens;
    } else {
        entry = tr_kv_tier_entry(&m->view, (uint32_t) want,
                                 (count[want] - 1)
                                     / m->place[q->tier_layout[want]].tokens);
    }
    manager_fetch(m, at, w->slot, manager_row(m, w->slot, head) + entry);
}

/* How many wants there are below head k of the chunk. */
TR_HD uint32_t
manager_rank(const manager_grant_t *s, uint32_t k)
{
    uint32_t n = s->before;

    for (uint32_t j = 0; j < k / 32; j++) {
        n += MANAGER_POPC(s->wants[j]);
    }
    return n + MANAGER_POPC(s->wants[k / 32] & ((1u << k % 32) - 1));
}

/* Block (request i, chunk) of `blocks` for each request: those beyond the
 * chunks are for uncompressed pages, of which a chunk of a prompt takes
 * many. */
TR_HD void
manager_grant(const tr_kv_manager_t *m, uint32_t i, uint32_t chunk,
              uint32_t blocks, manager_grant_t *s)
{
    const manager_need_t *w = &m->need[i];
    const int8_t *want = m->want + (size_t) i * m->heads;
    uint32_t first = chunk * MANAGER_CHUNK, n;

    if (!w->granted) {
        return;
    }
    if (w->kind == NEED_UNCOMPRESSED) {
        manager_grant_uncompressed(m, w, chunk, blocks);
        return;
    }
    if (chunk >= m->chunks) {
        return;
    }
    n = m->heads - first < MANAGER_CHUNK ? m->heads - first : MANAGER_CHUNK;
    EACH_AHEAD (j, MANAGER_CHUNK / 32) {
        s->wants[j] = 0;
    }
    EACH_AHEAD (l, TR_KV_TIERS_MAX) {
        s->pages[l] = 0;
    }
    EACH_FEW (j, 1) {
        s->before = 0;
        for (uint32_t c = 0; c < chunk; c++) {
            s->before += m->part[(size_t) i * m->chunks + c];
        }
    }
    EACH_FEW (k, n) {
        if (want[first + k] != TR_KV_NOWHERE) {
            MANAGER_OR(&s->wants[k / 32], 1u << k % 32);
            if (want[first + k] >= 0) {
                MANAGER_ADD(&s->pages[want[first + k]], 1);
            }
        }
    }
    EACH_AHEAD (k, n) {
        uint32_t *count = manager_counts(m, w->slot, first + k);

        if (w->leaves != 0) {
            manager_apply(&m->move[manager_head(m, w->slot, first + k)], count);
        }
        if (w->near_turns && manager_slides(m, &m->seq[w->slot], first + k)) {
            int32_t *row = manager_row(m, w->slot, first + k);

            row[w->near_pages] = row[w->near_from];
            row[w->near_from] = -1;
        }
        if (want[first + k] != TR_KV_NOWHERE) {
            manager_grant_page(m, w, first + k, want[first + k], count,
                               w->first + manager_rank(s, k));
        }
    }
    EACH_AHEAD (l, TR_KV_TIERS_MAX) {
        if (s->pages[l] != 0) {
            MANAGER_ADD_ALL(&m->report->pages[m->seq[w->slot].tier_layout[l]],
                            s->pages[l]);
        }
    }
}

#endif
