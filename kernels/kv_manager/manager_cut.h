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
 *
 * The slot that is cut stays as it is.  Scores are what the queries up to c are
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
    uint32_t count[TR_KV_TIERS_MAX];
} manager_cut_t;

/* Thread 0: the head's plan. */
TR_HD void
manager_plan_counts(const tr_kv_manager_t *m, uint32_t head,
                    const manager_cut_t *s, tr_kv_head_plan_t *h)
{
    manager_run_t run[MANAGER_RUNS];
    uint32_t n;

    manager_plan_none(h); /* candidates are known when the prompt that follows
                           * is complete */
    for (uint32_t l = 0; l < TR_KV_TIERS_MAX; l++) {
        h->count[l] = s->count[l];
    }
    n = manager_runs(m, &s->job.to, head, h->count, manager_none(), run);
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

/* One thread's share of a head's tokens. */
TR_HD void
manager_cut_some(const tr_kv_manager_t *m, uint32_t head, int8_t *dest,
                 uint32_t tid, manager_cut_t *s)
{
    const tr_kv_job_t *j = &s->job;
    const tr_kv_seq_t *q = &m->seq[j->source];
    const uint32_t *have = manager_counts(m, j->source, head);
    const int32_t *row = manager_row(m, j->source, head);
    uint32_t windowed = tr_kv_windowed(q);

    for (uint32_t l = 0; l < q->n_tiers; dest += have[l++]) {
        uint32_t stay = 0;

        for (uint32_t i = tid; i < have[l]; i += MANAGER_THREADS) {
            bool stays = manager_tiered_position(m, q, row, l, i) < j->len;

            dest[i] = stays ? (int8_t) l : TR_KV_NOWHERE;
            stay += stays;
        }
        if (stay != 0) {
            MANAGER_ADD(&s->count[l], stay);
        }
    }
    for (uint32_t i = tid; i < windowed; i += MANAGER_THREADS) {
        dest[i] = tr_kv_windowed_position(q, i) < j->len ? TR_KV_WINDOW
                                                         : TR_KV_NOWHERE;
    }
}

/* Block (request i, head). */
TR_HD void
manager_cut_head(const tr_kv_manager_t *m, const tr_kv_cut_t *cut, uint32_t i,
                 uint32_t head, manager_cut_t *s)
{
    int8_t *dest = m->dest + ((size_t) i * m->heads + head) * m->dest_len;

    EACH_FEW (k, 1) {
        manager_cut_job(m, &cut[i], &s->job);
        memset(s->count, 0, sizeof(s->count));
        if (head == 0) {
            m->job[i] = s->job;
        }
    }
    if (!s->job.move) {
        return;
    }
    EACH_THREAD (tid) {
        manager_cut_some(m, head, dest, tid, s);
    }
    EACH_FEW (k, 1) {
        manager_plan_counts(m, head, s, &m->head[(size_t) i * m->heads + head]);
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
            manager_plan_counts(m, head, s,
                                &m->head[(size_t) i * m->heads + head]);
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
    const tr_kv_segments_t *place;

    for (uint32_t l = 0; l < q->n_tiers; l++) {
        place = &m->place[q->tier_layout[l]];
        for (uint32_t i = tid; i < have[l] && place->score != 0;
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

#endif
