/*
 * manager_cut.h: the first tokens of a compressed slot, each at the level that
 * it has, into a slot just opened (engine/kv/kv_kept.c); and pages for tokens
 * that come from elsewhere, of which only the counts are known.
 *
 *   cut      block (request, head): which tokens stand in front of the cut, and
 *            how many pages they take
 *   restore  the same, by counts that are given
 *            both: total, admit and fill as at the end of a prompt
 *            (manager_prompt.h); then kv_compress moves what was cut, and
 *            install puts the pages into the slot's table
 *   rescore  block (request, head), behind install: scores as if there had been
 *            no query behind the cut, and the slot's history
 *   absorb   block (record, head): pages that are lent become their borrower's
 *   absorbed one block, the last of absorb: the lender is closed
 *
 * The slot that is cut stays as it is.  Pages whose tokens all stand in front of the
 * cut it may lend (tr_kv_by_t): the new slot has them in front of each tier, in
 * order, and frozen; what is on other pages is gathered behind them.
 *
 * A slot's borrowed pages are those of its lender, and in front of these those that
 * the lender has borrowed itself.  So when it absorbs its lender, what it borrows is
 * still in front.
 *
 * Scores are what the queries up to c are
 * taken to have given: s (c - 1 - t) / (b - 1 - t) of a token at t, when b were
 * cached, so that its significance stays the same.
 */
#ifndef TR_KV_MANAGER_CUT_H
#define TR_KV_MANAGER_CUT_H

#include "manager_prompt.h"

/* ---- what a slot becomes ------------------------------------------------ */

/* Of the first `len` tokens of one that is as `from`. */
TR_HD void
manager_cut_seq(const tr_kv_seq_t *from, uint32_t len, tr_kv_seq_t *to)
{
    *to = *from;
    to->base = len;
    to->window_from = to->window_from < len ? to->window_from : len;
    to->recent_from = UINT32_MAX;
    to->read_pages = 0;
}

/* A job that puts tokens into a slot that has none; false: it has. */
TR_HD bool
manager_empty_job(const tr_kv_manager_t *m, int32_t slot, uint32_t len,
                  tr_kv_job_t *j)
{
    const tr_kv_slot_t *s;

    memset(j, 0, sizeof(*j));
    j->slot = j->source = -1;
    if (slot < 0 || (uint32_t) slot >= m->size.slots || len == 0
        || len > m->size.max_len) {
        return false;
    }
    s = &m->slot[slot];
    if (!s->open || s->out || s->tokens != 0 || s->pages != 0
        || s->uncompressed_pages != 0 || m->seq[slot].n_tiers == 0
        || m->near != 0) {
        return false;
    }
    j->from = m->seq[slot];
    j->rule = s->rule;
    j->len = len;
    return true;
}

/* Both slots have the same levels, in the same window. */
TR_HD bool
manager_same_shape(const tr_kv_seq_t *a, const tr_kv_seq_t *b)
{
    bool same = a->n_tiers == b->n_tiers && a->window == b->window
                && a->window_layout == b->window_layout;

    for (uint32_t l = 0; l < TR_KV_TIERS_MAX; l++) {
        same = same
               && (l >= a->n_tiers || a->tier_layout[l] == b->tier_layout[l]);
    }
    return same;
}

TR_HD void
manager_cut_job(const tr_kv_manager_t *m, const tr_kv_cut_t *c, tr_kv_job_t *j)
{
    const tr_kv_seq_t *q;

    if (!manager_empty_job(m, c->to, c->len, j) || c->from < 0
        || (uint32_t) c->from >= m->size.slots || c->from == c->to) {
        return;
    }
    q = &m->seq[c->from];
    if (!m->slot[c->from].open || m->slot[c->from].out || q->base < c->len
        || q->sinks > c->len || !manager_same_shape(q, &j->from)) {
        return;
    }
    manager_cut_seq(q, c->len, &j->to);
    j->slot = c->to;
    j->source = c->from;
    j->by = c->by;
    j->granted = j->move = true;
}

TR_HD void
manager_restore_job(const tr_kv_manager_t *m, const tr_kv_restore_t *r,
                    tr_kv_job_t *j)
{
    if (!manager_empty_job(m, r->slot, r->len, j) || r->window_from > r->len
        || r->sinks > r->window_from) {
        return;
    }
    j->to = j->from;
    j->to.base = r->len;
    j->to.window_from = r->window_from;
    j->to.sinks = r->sinks;
    j->to.recent_from = UINT32_MAX;
    if (manager_window_pages(m, &j->to, r->len)
        > m->view.at_pair[0] - m->view.at_window) {
        return;
    }
    j->slot = r->slot;
    j->granted = j->move = true;
}

/* ---- plans -------------------------------------------------------------- */

typedef struct {
    tr_kv_job_t job;
    uint32_t count[TR_KV_TIERS_MAX]; /* tokens that are gathered, */
    uint32_t pages[TR_KV_TIERS_MAX]; /* behind these, which are borrowed */
    manager_sum_t sum;
} manager_cut_t;

/* Thread 0: the head's plan. */
TR_HD void
manager_plan_counts(const tr_kv_manager_t *m, uint32_t i, uint32_t head,
                    const manager_cut_t *s)
{
    tr_kv_head_plan_t *h = &m->head[(size_t) i * m->heads + head];
    uint32_t *stay = manager_stay(m, i, head), n;
    const tr_kv_seq_t *q = &s->job.to;
    manager_run_t run[MANAGER_RUNS];

    manager_plan_none(h); /* candidates are known when the prompt that follows
                           * is complete */
    for (uint32_t l = 0; l < TR_KV_TIERS_MAX; l++) {
        stay[l] = l < q->n_tiers
                      ? s->pages[l] * m->place[q->tier_layout[l]].tokens
                      : 0;
        h->count[l] = stay[l] + s->count[l];
        h->borrowed += s->pages[l];
    }
    n = manager_runs(m, q, head, h->count, stay, manager_none(), run);
    for (uint32_t r = 0; r < n; r++) {
        h->pages += run[r].n;
    }
}

/* Position of token i of tier l of a head's row. */
TR_HD uint32_t
manager_tiered_position(const tr_kv_manager_t *m, const tr_kv_seq_t *q,
                        const int32_t *row, uint32_t l, uint32_t i)
{
    const tr_kv_segments_t *place = &m->place[q->tier_layout[l]];

    return place->position == 0 /* in order */
               ? q->sinks + i
               : manager_position(
                   m, place,
                   row[tr_kv_tier_entry(&m->view, l, i / place->tokens)],
                   i % place->tokens);
}

/* The pages of a tier of the head that is cut. */
typedef struct {
    uint32_t l, tokens, have; /* tokens of a page, and of the tier */
    uint32_t lent;            /* the first so many pages may be */
    const int32_t *row;
    int8_t *dest; /* of its tokens */
} manager_cut_tier_t;

TR_HD manager_cut_tier_t
manager_cut_tier(const tr_kv_manager_t *m, const tr_kv_job_t *j, uint32_t head,
                 uint32_t l, int8_t *dest)
{
    const tr_kv_seq_t *q = &m->seq[j->source];
    const uint32_t *borrowed = manager_borrowed(m, q, j->source, head);
    manager_cut_tier_t t;

    t.l = l;
    t.tokens = m->place[q->tier_layout[l]].tokens;
    t.have = manager_counts(m, j->source, head)[l];
    t.lent = j->by == TR_KV_CUT_SHARES ? t.have / t.tokens
             : j->by == TR_KV_CUT_BORROWS && borrowed != NULL
                 ? borrowed[l] / t.tokens
                 : 0;
    t.row = manager_row(m, j->source, head);
    t.dest = dest;
    return t;
}

/* Where the tokens of page p go; true: it is lent. */
TR_HD bool
manager_cut_page(const tr_kv_manager_t *m, const manager_cut_tier_t *t,
                 uint32_t p, manager_cut_t *s)
{
    const tr_kv_seq_t *q = &m->seq[s->job.source];
    uint32_t first = p * t->tokens, end = first + t->tokens, stay = 0;

    end = end < t->have ? end : t->have;
    for (uint32_t i = first; i < end; i++) {
        bool stays = manager_tiered_position(m, q, t->row, t->l, i)
                     < s->job.len;

        t->dest[i] = stays ? (int8_t) t->l : TR_KV_NOWHERE;
        stay += stays;
    }
    if (p < t->lent && stay == t->tokens) {
        for (uint32_t i = first; i < end; i++) {
            t->dest[i] = TR_KV_NOWHERE;
        }
        return true;
    }
    if (stay != 0) {
        MANAGER_ADD(&s->count[t->l], stay);
    }
    return false;
}

/* Page p was found to be lent: nothing of it moves, though it is in front. */
TR_HD bool
manager_cut_lends(const tr_kv_manager_t *m, const manager_cut_tier_t *t,
                  uint32_t p, const manager_cut_t *s)
{
    uint32_t i = p * t->tokens;

    return p < t->lent && t->dest[i] == TR_KV_NOWHERE
           && manager_tiered_position(m, &m->seq[s->job.source], t->row, t->l,
                                      i)
                  < s->job.len;
}

/* A tier's tokens, and those of its pages that are lent into the new row. */
TR_HD void
manager_cut_pages(const tr_kv_manager_t *m, const manager_cut_tier_t *t,
                  int32_t *to_row, manager_cut_t *s)
{
    uint32_t pages = manager_ceil(t->have, t->tokens);
    uint32_t each = manager_ceil(pages, MANAGER_THREADS);

    EACH_THREAD (tid) {
        uint32_t p = tid * each, end = p + each < pages ? p + each : pages;

        for (s->sum.part[tid] = 0; p < end; p++) {
            s->sum.part[tid] += manager_cut_page(m, t, p, s);
        }
    }
    EACH_FEW (group, MANAGER_GROUPS) {
        manager_group(&s->sum, group);
    }
    EACH_THREAD (tid) {
        uint32_t p = tid * each, end = p + each < pages ? p + each : pages;
        uint32_t at = manager_below(&s->sum, tid);

        for (; p < end; p++) {
            if (manager_cut_lends(m, t, p, s)) {
                to_row[tr_kv_tier_entry(&m->view, t->l, at++)] =
                    t->row[tr_kv_tier_entry(&m->view, t->l, p)];
            }
        }
        if (tid == 0) {
            s->pages[t->l] = manager_total(&s->sum);
        }
    }
}

/* Block (request i, head). */
TR_HD void
manager_cut_head(const tr_kv_manager_t *m, const tr_kv_cut_t *cut, uint32_t i,
                 uint32_t head, manager_cut_t *s)
{
    int8_t *dest = m->dest + ((size_t) i * m->heads + head) * m->dest_len;
    int32_t *to_row = m->to_tables
                      + ((size_t) i * m->heads + head) * m->view.table_len;
    const tr_kv_seq_t *q;

    EACH_FEW (k, 1) {
        manager_cut_job(m, &cut[i], &s->job);
        memset(s->count, 0, sizeof(s->count));
        memset(s->pages, 0, sizeof(s->pages));
        if (head == 0) {
            m->job[i] = s->job;
        }
    }
    if (!s->job.move) {
        return;
    }
    q = &m->seq[s->job.source];
    for (uint32_t l = 0; l < q->n_tiers; l++) {
        manager_cut_tier_t t = manager_cut_tier(m, &s->job, head, l, dest);

        manager_cut_pages(m, &t, to_row, s);
        dest += t.have;
    }
    EACH (k, tr_kv_windowed(q)) {
        dest[k] = tr_kv_windowed_position(q, k) < s->job.len ? TR_KV_WINDOW
                                                             : TR_KV_NOWHERE;
    }
    EACH_FEW (k, 1) {
        manager_plan_counts(m, i, head, s);
    }
}

/* Block (request i, head). */
TR_HD void
manager_restore_head(const tr_kv_manager_t *m, const tr_kv_restore_t *restore,
                     uint32_t i, uint32_t head, manager_cut_t *s)
{
    EACH_FEW (k, 1) {
        manager_restore_job(m, &restore[i], &s->job);
        if (head == 0) {
            m->job[i] = s->job;
        }
        if (s->job.move) {
            memcpy(s->count, restore[i].count + head * TR_KV_TIERS_MAX,
                   sizeof(s->count));
            memset(s->pages, 0, sizeof(s->pages));
            manager_plan_counts(m, i, head, s);
        }
    }
}

/* ---- scores ------------------------------------------------------------- */

/* Of the token at `position`, where b tokens were. */
TR_HD void
manager_scale_score(const tr_kv_manager_t *m, const tr_kv_segments_t *place,
                    int32_t page, uint32_t at, uint32_t position, uint32_t c,
                    uint32_t b)
{
    float *score = (float *) (void *) (tr_kv_page_at(&m->view, page)
                                       + place->score + 4 * at);

    *score = position + 1 < c ? *score * (float) (c - 1 - position)
                                    / (float) (b - 1 - position)
                              : 0;
}

TR_HD void
manager_rescore_some(const tr_kv_manager_t *m, const tr_kv_job_t *j,
                     uint32_t head, uint32_t b, uint32_t tid)
{
    const tr_kv_seq_t *q = &j->to;
    const int32_t *row = manager_row(m, j->slot, head);
    const uint32_t *have = manager_counts(m, j->slot, head);
    const uint32_t *frozen = manager_frozen(m, q, j->slot, head);
    const tr_kv_segments_t *place;

    for (uint32_t l = 0; l < q->n_tiers; l++) {
        uint32_t from = frozen != NULL ? frozen[l] : 0;

        place = &m->place[q->tier_layout[l]];
        for (uint32_t i = from + tid; i < have[l] && place->score != 0;
             i += MANAGER_THREADS) {
            manager_scale_score(
                m, place, row[tr_kv_tier_entry(&m->view, l, i / place->tokens)],
                i % place->tokens, manager_tiered_position(m, q, row, l, i),
                j->len, b);
        }
    }
    place = &m->place[q->window_layout];
    for (uint32_t i = tid; i < tr_kv_windowed(q) && place->score != 0;
         i += MANAGER_THREADS) {
        uint32_t p = tr_kv_windowed_position(q, i);
        uint32_t at = tr_kv_window_entry(q, p);

        manager_scale_score(m, place,
                            row[m->view.at_window + at / place->tokens],
                            at % place->tokens, p, j->len, b);
    }
}

/* Block (request i, head).  history: [slots][history_len] tokens, or NULL. */
TR_HD void
manager_rescore(const tr_kv_manager_t *m, int32_t *history,
                uint32_t history_len, uint32_t i, uint32_t head)
{
    const tr_kv_job_t *j = &m->job[i];
    bool cut = j->move && j->source >= 0;
    uint32_t b = cut ? m->seq[j->source].base : 0;

    EACH_THREAD (tid) {
        if (cut && j->to.scored && j->len < b) {
            manager_rescore_some(m, j, head, b, tid);
        }
        for (uint32_t k = tid; k < j->len && cut && head == 0 && history != NULL
                               && k < history_len;
             k += MANAGER_THREADS) {
            history[(size_t) j->slot * history_len + k] =
                history[(size_t) j->source * history_len + k];
        }
    }
}

/* ---- absorbing ---------------------------------------------------------- */

typedef struct {
    uint32_t moved[TR_KV_TIERS_MAX];
    uint32_t back[TR_KV_LAYOUTS_MAX];
} manager_absorb_t;

TR_HD bool
manager_can_absorb(const tr_kv_manager_t *m, const tr_kv_absorb_t *x)
{
    if (x->from < 0 || (uint32_t) x->from >= m->size.slots || x->to < 0
        || (uint32_t) x->to >= m->size.slots || x->from == x->to) {
        return false;
    }
    return m->slot[x->from].open && m->slot[x->to].open && !m->slot[x->from].out
           && !m->slot[x->to].out && m->slot[x->from].uncompressed_pages == 0;
}

/* The lender's pages that `to` has are its own. */
TR_HD void
manager_absorb_lent(const tr_kv_manager_t *m, const tr_kv_absorb_t *x,
                    uint32_t head, manager_absorb_t *s)
{
    const tr_kv_seq_t *q = &m->seq[x->to];
    uint32_t *borrowed = m->borrowed
                         + manager_head(m, x->to, head) * TR_KV_TIERS_MAX;
    const int32_t *row = manager_row(m, x->to, head);

    for (uint32_t l = 0; l < q->n_tiers && q->frozen; l++) {
        EACH (i, borrowed[l] / m->place[q->tier_layout[l]].tokens) {
            int32_t page = row[tr_kv_tier_entry(&m->view, l, i)];

            if (m->owner[page] == (uint32_t) x->from) {
                m->owner[page] = (uint32_t) x->to;
                MANAGER_ADD(&s->moved[l], 1);
            }
        }
    }
    EACH_FEW (l, q->frozen ? q->n_tiers : 0) {
        borrowed[l] -= s->moved[l] * m->place[q->tier_layout[l]].tokens;
    }
}

/* Its others come back, wherever in the ring there is room next. */
TR_HD void
manager_absorb_rest(const tr_kv_manager_t *m, const tr_kv_absorb_t *x,
                    uint32_t head, manager_absorb_t *s)
{
    const tr_kv_seq_t *q = &m->seq[x->from];
    manager_run_t run[MANAGER_RUNS];
    uint32_t n = manager_runs(m, q, head, manager_counts(m, x->from, head),
                              manager_borrowed(m, q, x->from, head),
                              manager_none(), run);

    for (uint32_t r = 0; r < n; r++) {
        int32_t *row = manager_row(m, x->from, head) + run[r].entry;

        EACH (i, run[r].n) {
            int32_t *entry = row + (int32_t) i * run[r].step;

            if (manager_owns(m, x->to, *entry)) {
                *entry = -1;
            } else {
                manager_store(m, MANAGER_NEXT(&m->report->end), x->from, entry);
                MANAGER_ADD(&s->back[run[r].layout], 1);
            }
        }
    }
    EACH_FEW (lane, MANAGER_WARP) {
        manager_forget_borrowed(m, q, x->from, head, lane);
    }
}

/* Block (record i, head). */
TR_HD void
manager_absorb(const tr_kv_manager_t *m, const tr_kv_absorb_t *absorb,
               uint32_t i, uint32_t head, manager_absorb_t *s)
{
    const tr_kv_absorb_t *x = &absorb[i];
    tr_kv_slot_t *to;

    if (!manager_can_absorb(m, x)) {
        return;
    }
    to = &m->slot[x->to];
    EACH_FEW (k, 1) {
        memset(s, 0, sizeof(*s));
    }
    manager_absorb_lent(m, x, head, s);
    manager_absorb_rest(m, x, head, s);
    EACH_FEW (k, 1) {
        uint32_t moved = 0;

        for (uint32_t l = 0; l < TR_KV_TIERS_MAX; l++) {
            moved += s->moved[l];
        }
        MANAGER_ADD_ALL(&to->pages, moved);
        MANAGER_ADD_ALL(&to->borrowed, 0u - moved);
        for (uint32_t l = 0; l < TR_KV_LAYOUTS_MAX; l++) {
            if (s->back[l] != 0) {
                MANAGER_ADD_ALL(&m->report->pages[l], 0u - s->back[l]);
            }
        }
    }
}

/* The last block of n records. */
TR_HD void
manager_absorbed(const tr_kv_manager_t *m, const tr_kv_absorb_t *absorb,
                 uint32_t n)
{
    EACH_FEW (k, 1) {
        for (uint32_t i = 0; i < n; i++) {
            const tr_kv_absorb_t *x = &absorb[i];

            if (!manager_can_absorb(m, x)) {
                m->report->n_refused++;
                continue;
            }
            memset(&m->slot[x->from], 0, sizeof(m->slot[x->from]));
        }
        if (m->report->end - m->report->start > m->size.pages) {
            m->report->faults++;
        }
    }
}

#endif
