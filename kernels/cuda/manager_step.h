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
 * The same decisions in the same order as engine/kv_step.c, which says why.
 */
#ifndef TR_CUDA_MANAGER_STEP_H
#define TR_CUDA_MANAGER_STEP_H

#include "manager_core.h"

/* ---- what a request wants ----------------------------------------------- */

TR_HD void
manager_wish_dense(const tr_cuda_manager_t *m, tr_cuda_wish_t *w)
{
    const tr_cuda_slot_t *s = &m->slot[w->slot];
    uint32_t want = manager_ceil(w->len - m->seq[w->slot].base,
                                 m->place[0].tokens);
    uint64_t pages;

    w->kind = WISH_DENSE;
    w->dense_pages = s->dense_pages;
    w->more = want > s->dense_pages ? want - s->dense_pages : 0;
    pages = (uint64_t) w->more * m->heads;
    /* no pool has as many as do not fit the table */
    w->pages = want > m->view.at_window || pages >= MANAGER_NEVER
                   ? MANAGER_NEVER
                   : (uint32_t) pages;
}

/* Who leaves, and where its score is. */
TR_HD void
manager_wish_step(const tr_cuda_manager_t *m, tr_cuda_wish_t *w)
{
    const tr_kv_seq_t *q = &m->seq[w->slot];
    const tr_cuda_place_t *place = &m->place[q->window_layout];
    uint32_t n = q->base, at;

    w->kind = WISH_STEP;
    w->n = n;
    if (q->window == 0) { /* the new token itself, which has no score yet */
        w->leaves = 1;
        w->leave_pos = n;
        return;
    }
    if (n - q->window_from == q->window) {
        w->leaves = m->slot[w->slot].rule.leaves == TR_KV_CHANNEL_TOKENS
                        ? TR_KV_CHANNEL_TOKENS
                        : 1;
        w->leave_pos = q->window_from;
        at = q->window_from % q->window;
        w->scored = place->score != 0;
        w->entry = m->view.at_window + at / place->tokens;
        w->offset = place->score + at % place->tokens * 4;
    }
    w->window_page = n < q->window && n % place->tokens == 0;
}

/* pages: not yet those of a step's heads. */
TR_HD void
manager_wish(const tr_cuda_manager_t *m, const tr_cuda_ask_t *ask,
             tr_cuda_wish_t *w)
{
    const tr_cuda_slot_t *s;

    memset(w, 0, sizeof(*w));
    w->slot = ask->slot;
    w->kind = WISH_IDLE;
    if (ask->slot < 0) {
        return;
    }
    w->kind = WISH_REFUSED;
    if ((uint32_t) ask->slot >= m->size.slots || !m->slot[ask->slot].open) {
        return;
    }
    s = &m->slot[ask->slot];
    w->kind = WISH_NOTHING;
    w->len = ask->len == TR_CUDA_NEXT ? s->tokens + 1 : ask->len;
    w->n = s->tokens;
    if (w->len <= s->tokens) {
        return;
    }
    if (w->len > m->size.max_len
        || (ask->from != TR_CUDA_ANY && ask->from != s->tokens)
        || (!s->dense && w->len != s->tokens + 1)) {
        w->pages = MANAGER_NEVER;
    } else if (s->dense) {
        manager_wish_dense(m, w);
    } else {
        manager_wish_step(m, w);
    }
}

/* ---- one head's plan ---------------------------------------------------- */

/* What one head has found out. */
typedef struct {
    tr_kv_mark_t mark; /* of the least significant token of list `to` */
    int to;            /* where the leaving token goes */
    bool look;         /* that token is the list's victim, not the leaving one */
    uint32_t index;    /* then its place in the list */
} manager_half_t;

TR_HD float
manager_float(const tr_cuda_manager_t *m, int32_t page, uint32_t offset)
{
    return *(const float *) (const void *) (tr_kv_page_at(&m->view, page)
                                            + offset);
}

/* The list's victim in place of the leaving token's mark. */
TR_HD void
manager_look(const tr_cuda_manager_t *m, const tr_kv_seq_t *q,
             const int32_t *row, manager_half_t *h)
{
    const tr_cuda_place_t *place = &m->place[q->list_layout[h->to]];
    int32_t page = row[tr_kv_list_entry(&m->view, (uint32_t) h->to,
                                        h->index / place->tokens)];
    uint32_t at = h->index % place->tokens * 4;

    h->mark.score = manager_float(m, page, place->score + at);
    h->mark.position = *(const uint32_t *) (const void *) (tr_kv_page_at(
                                                               &m->view, page)
                                                           + place->position
                                                           + at);
}

/* Where the leaving token goes, and who is the least significant of that list:
 * it, or one that is already there. */
TR_HD void
manager_leave(const tr_cuda_manager_t *m, const tr_cuda_wish_t *w,
              uint32_t head, const uint32_t *count, manager_half_t *h)
{
    const tr_kv_seq_t *q = &m->seq[w->slot];
    const int32_t *row = manager_row(m, w->slot, head);
    const tr_kv_victim_t *victim = m->victim
                                   + manager_head(m, w->slot, head)
                                         * TR_KV_LISTS_MAX;
    float own;

    h->mark.layer = head / m->view.lists;
    h->mark.list = head % m->view.lists;
    h->mark.position = w->leave_pos;
    h->mark.length = w->n;
    h->mark.score = w->scored ? manager_float(m, row[w->entry], w->offset) : 0;
    h->to = tr_kv_rule_leave(&m->slot[w->slot].rule, &h->mark, count);
    h->look = false;
    h->index = 0;
    if (h->to < 0 || m->place[q->list_layout[h->to]].score == 0) {
        return;
    }
    victim += h->to;
    own = q->by_sum ? h->mark.score
                    : tr_kv_significance(h->mark.score, w->leave_pos, w->n);
    /* of equals the lowest position: those in the list came before */
    if (!(own < victim->significance) && count[h->to] != 0) {
        h->look = true;
        h->index = victim->index;
        manager_look(m, q, row, h);
    }
}

/* Counts as they are after a move. */
TR_HD void
manager_apply(const tr_kv_move_t *move, uint32_t *count)
{
    if (move->to >= 0) {
        count[move->to] += move->leaves;
    }
    if (move->victim_from >= 0) {
        count[move->victim_from]--;
        if (move->victim_to >= 0) {
            count[move->victim_to]++;
        }
    }
}

/* The head's move; returns the list that needs a page, or TR_KV_NOWHERE. */
TR_HD int8_t
manager_move(const tr_cuda_manager_t *m, const tr_cuda_wish_t *w,
             const uint32_t *count, const manager_half_t *h,
             tr_kv_move_t *move)
{
    const tr_kv_seq_t *q = &m->seq[w->slot];
    int grows = h->to, down = TR_KV_STAYS;

    move->to = (int8_t) h->to;
    move->leaves = (uint8_t) w->leaves;
    move->leave_pos = w->leave_pos;
    if (h->to < 0) {
        return TR_KV_NOWHERE;
    }
    move->index = count[h->to];
    if (w->leaves == 1 && m->place[q->list_layout[h->to]].score != 0) {
        uint32_t after[TR_KV_LISTS_MAX];

        for (uint32_t l = 0; l < TR_KV_LISTS_MAX; l++) {
            after[l] = count[l] + (l == (uint32_t) h->to);
        }
        down = tr_kv_rule_downgrade(&m->slot[w->slot].rule, (uint32_t) h->to,
                                    &h->mark, after);
    }
    if (down != TR_KV_STAYS) {
        grows = down;
        if (h->look) { /* it makes room for the one that comes */
            move->victim_from = (int8_t) h->to;
            move->victim_to = (int8_t) down;
            move->victim_index = h->index;
            move->victim_target = down >= 0 ? count[down] : 0;
            move->index = h->index;
        } else { /* it is the one that comes */
            move->to = (int8_t) down;
            move->index = down >= 0 ? count[down] : 0;
        }
    }
    return grows >= 0 && count[grows] % m->place[q->list_layout[grows]].tokens
                             == 0
               ? (int8_t) grows
               : TR_KV_NOWHERE;
}

/* Plans a head of a step: its move, and for what it wants a page. */
TR_HD int8_t
manager_plan_head(const tr_cuda_manager_t *m, const tr_cuda_wish_t *w,
                  uint32_t head)
{
    const uint32_t *in = manager_counts(m, w->slot, head);
    tr_kv_move_t move;
    manager_half_t half;
    int8_t want = TR_KV_NOWHERE;

    memset(&move, 0, sizeof(move));
    move.to = TR_KV_STAYS;
    move.victim_from = TR_KV_STAYS;
    move.victim_to = TR_KV_NOWHERE;
    if (w->leaves != 0) {
        uint32_t count[TR_KV_LISTS_MAX];

        for (uint32_t l = 0; l < TR_KV_LISTS_MAX; l++) {
            count[l] = in[l];
        }
        manager_leave(m, w, head, count, &half);
        want = manager_move(m, w, count, &half, &move);
    } else if (w->window_page) { /* the window fills */
        want = TR_KV_WINDOW;
    }
    m->move[manager_head(m, w->slot, head)] = move;
    return want;
}

/* ---- plan --------------------------------------------------------------- */

typedef struct {
    uint32_t wants[MANAGER_THREADS / 32]; /* bit by thread */
} manager_plan_t;

/* Block (request i, chunk). */
TR_HD void
manager_plan(const tr_cuda_manager_t *m, const tr_cuda_ask_t *ask, uint32_t i,
             uint32_t chunk, manager_plan_t *s)
{
    EACH_THREAD (tid, MANAGER_THREADS) {
        if (tid < MANAGER_THREADS / 32) {
            s->wants[tid] = 0;
        }
    }
    EACH_THREAD (tid, MANAGER_THREADS) {
        uint32_t head = chunk * MANAGER_THREADS + tid;
        tr_cuda_wish_t w;

        manager_wish(m, &ask[i], &w);
        if (w.kind == WISH_STEP && head < m->heads) {
            int8_t want = manager_plan_head(m, &w, head);

            m->want[(size_t) i * m->heads + head] = want;
            if (want != TR_KV_NOWHERE) {
                MANAGER_OR(&s->wants[tid / 32], 1u << tid % 32);
            }
        }
        if (tid == 0 && chunk == 0) {
            m->wish[i] = w;
        }
    }
    EACH_THREAD (tid, MANAGER_THREADS) {
        if (tid == 0) {
            uint32_t n = 0;

            for (uint32_t j = 0; j < MANAGER_THREADS / 32; j++) {
                n += MANAGER_POPC(s->wants[j]);
            }
            m->part[(size_t) i * m->chunks + chunk] = n;
        }
    }
}

/* ---- sum ---------------------------------------------------------------- */

typedef struct {
    uint32_t pages[TR_CUDA_SLOTS_MAX];
    bool granted[TR_CUDA_SLOTS_MAX];
    uint32_t stalled[TR_CUDA_SLOTS_MAX / 32];
    uint32_t n_stalled, n_refused, fits;
    manager_sum_t sum;
} manager_grants_t;

/* One after the other: who does not fit is passed over. */
TR_HD void
manager_sum_short(const tr_cuda_manager_t *m, uint32_t n, uint32_t left,
                  manager_grants_t *s)
{
    uint32_t taken = 0;

    for (uint32_t i = 0; i < n; i++) {
        s->granted[i] = s->pages[i] <= left - taken;
        if (s->granted[i]) {
            m->wish[i].first = m->report->start + taken;
            taken += s->pages[i];
        }
    }
    s->sum.group[0] = taken;
}

TR_HD void
manager_advance(const tr_cuda_manager_t *m, const tr_cuda_wish_t *w)
{
    tr_cuda_slot_t *s = &m->slot[w->slot];
    tr_kv_seq_t *q = &m->seq[w->slot];

    s->tokens = w->len;
    s->pages += w->pages;
    if (w->kind == WISH_STEP) {
        q->base = w->n + 1;
        q->window_from += w->leaves; /* without a window the new token */
        if (w->window_page) {
            MANAGER_ADD(&m->report->pages[q->window_layout], w->pages);
        }
        return;
    }
    s->dense_pages += w->more;
    MANAGER_ADD(&m->report->pages[0], w->pages);
    q->read_pages = s->tokens > s->prompt
                        ? tr_kv_rule_read(&s->rule,
                                          manager_ceil(s->tokens - q->base,
                                                       m->place[0].tokens),
                                          m->place[0].tokens)
                        : 0;
}

/* What became of request i. */
TR_HD void
manager_settle(const tr_cuda_manager_t *m, uint32_t i, manager_grants_t *s)
{
    tr_cuda_wish_t *w = &m->wish[i];
    uint8_t result = TR_CUDA_GRANTED;

    w->granted = s->granted[i]
                 && (w->kind == WISH_DENSE || w->kind == WISH_STEP);
    if (w->kind == WISH_IDLE || w->kind == WISH_REFUSED) {
        result = TR_CUDA_REFUSED;
    } else if (!s->granted[i]) {
        result = TR_CUDA_STALLED;
        MANAGER_OR(&s->stalled[w->slot / 32], 1u << w->slot % 32);
        MANAGER_ADD(&s->n_stalled, 1);
    }
    if (w->kind == WISH_REFUSED) {
        MANAGER_ADD(&s->n_refused, 1);
    }
    m->result[i] = result;
    m->seq_slot[i] = result == TR_CUDA_GRANTED ? w->slot : -1;
    m->position[i] = w->n;
    if (w->granted) {
        w->pages = s->pages[i];
        manager_advance(m, w);
    }
}

/* The last block of plan. */
TR_HD void
manager_sum(const tr_cuda_manager_t *m, uint32_t n, manager_grants_t *s)
{
    uint32_t each = manager_ceil(n, MANAGER_THREADS);
    uint32_t left = (uint32_t) (m->report->end - m->report->start);

    EACH_THREAD (tid, MANAGER_THREADS) {
        uint32_t i = tid * each, end = i + each < n ? i + each : n;
        uint64_t sum = 0;

        for (uint32_t j = tid; j < TR_CUDA_SLOTS_MAX / 32;
             j += MANAGER_THREADS) {
            s->stalled[j] = 0;
        }
        for (; i < end; i++) {
            uint32_t pages = m->wish[i].pages;

            if (m->wish[i].kind == WISH_STEP) {
                for (uint32_t c = 0; c < m->chunks; c++) {
                    pages += m->part[(size_t) i * m->chunks + c];
                }
            }
            s->pages[i] = pages;
            s->granted[i] = true;
            sum += pages;
        }
        /* too much alone is too much together, without running over */
        s->sum.part[tid] = sum > left ? left + 1 : (uint32_t) sum;
        if (tid == 0) {
            s->n_stalled = s->n_refused = 0;
        }
    }
    EACH_THREAD (tid, MANAGER_THREADS) {
        if (tid == 0) {
            uint64_t sum = 0;

            for (uint32_t i = 0; i < MANAGER_THREADS; i++) {
                sum += s->sum.part[i];
            }
            s->fits = sum <= left;
        }
    }
    if (s->fits) {
        EACH_THREAD (tid, MANAGER_THREADS) {
            manager_groups(&s->sum, tid);
        }
        EACH_THREAD (tid, MANAGER_THREADS) {
            uint32_t i = tid * each, end = i + each < n ? i + each : n;
            uint64_t at = m->report->start + manager_below(&s->sum, tid);

            for (; i < end; i++) {
                m->wish[i].first = at;
                at += s->pages[i];
            }
        }
    } else {
        EACH_THREAD (tid, MANAGER_THREADS) {
            if (tid < MANAGER_GROUPS) {
                s->sum.group[tid] = 0;
            }
        }
        EACH_THREAD (tid, MANAGER_THREADS) {
            if (tid == 0) {
                manager_sum_short(m, n, left, s);
            }
        }
    }
    EACH_THREAD (tid, MANAGER_THREADS) {
        for (uint32_t i = tid; i < n; i += MANAGER_THREADS) {
            manager_settle(m, i, s);
        }
    }
    EACH_THREAD (tid, MANAGER_THREADS) {
        for (uint32_t j = tid; j < TR_CUDA_SLOTS_MAX / 32;
             j += MANAGER_THREADS) {
            m->report->stalled[j] = s->stalled[j];
        }
        if (tid == 0) {
            m->report->start += manager_total(&s->sum);
            m->report->steps++;
            m->report->n_stalled = s->n_stalled;
            m->report->n_refused += s->n_refused;
        }
    }
}

/* ---- grant -------------------------------------------------------------- */

typedef struct {
    uint32_t wants[MANAGER_THREADS / 32];
    uint32_t pages[TR_KV_LISTS_MAX]; /* taken, by list */
    uint32_t before;                 /* wants of the chunks before */
} manager_grant_t;

/* The pages of a chunk's heads, side by side. */
TR_HD void
manager_grant_dense(const tr_cuda_manager_t *m, const tr_cuda_wish_t *w,
                    uint32_t chunk)
{
    uint32_t head = chunk * MANAGER_THREADS;
    uint32_t heads = m->heads - head < MANAGER_THREADS ? m->heads - head
                                                       : MANAGER_THREADS;
    uint64_t first = w->first + (uint64_t) head * w->more;

    EACH_THREAD (tid, MANAGER_THREADS) {
        for (uint32_t i = tid; i < heads * w->more; i += MANAGER_THREADS) {
            manager_fetch(m, first + i, w->slot,
                          manager_row(m, w->slot, head + i / w->more)
                              + w->dense_pages + i % w->more);
        }
    }
}

/* The page that a head of a step wants. */
TR_HD void
manager_grant_page(const tr_cuda_manager_t *m, const tr_cuda_wish_t *w,
                   uint32_t head, int8_t want, const uint32_t *count,
                   uint64_t at)
{
    const tr_kv_seq_t *q = &m->seq[w->slot];
    uint32_t entry;

    if (want == TR_KV_WINDOW) {
        entry = m->view.at_window + w->n / m->place[q->window_layout].tokens;
    } else {
        entry = tr_kv_list_entry(&m->view, (uint32_t) want,
                                 (count[want] - 1)
                                     / m->place[q->list_layout[want]].tokens);
    }
    manager_fetch(m, at, w->slot, manager_row(m, w->slot, head) + entry);
}

/* How many wants there are below thread tid of the block. */
TR_HD uint32_t
manager_rank(const manager_grant_t *s, uint32_t tid)
{
    uint32_t n = s->before;

    for (uint32_t j = 0; j < tid / 32; j++) {
        n += MANAGER_POPC(s->wants[j]);
    }
    return n + MANAGER_POPC(s->wants[tid / 32] & ((1u << tid % 32) - 1));
}

/* Block (request i, chunk). */
TR_HD void
manager_grant(const tr_cuda_manager_t *m, uint32_t i, uint32_t chunk,
              manager_grant_t *s)
{
    const tr_cuda_wish_t *w = &m->wish[i];
    const int8_t *want = m->want + (size_t) i * m->heads;

    if (!w->granted) {
        return;
    }
    if (w->kind == WISH_DENSE) {
        if (w->more != 0) {
            manager_grant_dense(m, w, chunk);
        }
        return;
    }
    EACH_THREAD (tid, MANAGER_THREADS) {
        if (tid < MANAGER_THREADS / 32) {
            s->wants[tid] = 0;
        }
        if (tid < TR_KV_LISTS_MAX) {
            s->pages[tid] = 0;
        }
        if (tid == 0) {
            s->before = 0;
            for (uint32_t c = 0; c < chunk; c++) {
                s->before += m->part[(size_t) i * m->chunks + c];
            }
        }
    }
    EACH_THREAD (tid, MANAGER_THREADS) {
        uint32_t head = chunk * MANAGER_THREADS + tid;

        if (head < m->heads && want[head] != TR_KV_NOWHERE) {
            MANAGER_OR(&s->wants[tid / 32], 1u << tid % 32);
            if (want[head] >= 0) {
                MANAGER_ADD(&s->pages[want[head]], 1);
            }
        }
    }
    EACH_THREAD (tid, MANAGER_THREADS) {
        uint32_t head = chunk * MANAGER_THREADS + tid;

        if (head < m->heads) {
            uint32_t *count = manager_counts(m, w->slot, head);

            if (w->leaves != 0) {
                manager_apply(&m->move[manager_head(m, w->slot, head)], count);
            }
            if (want[head] != TR_KV_NOWHERE) {
                manager_grant_page(m, w, head, want[head], count,
                                   w->first + manager_rank(s, tid));
            }
        }
        if (tid < TR_KV_LISTS_MAX && s->pages[tid] != 0) {
            MANAGER_ADD(
                &m->report->pages[m->seq[w->slot].list_layout[tid]],
                s->pages[tid]);
        }
    }
}

#endif
