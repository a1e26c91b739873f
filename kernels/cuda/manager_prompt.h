/*
 * manager_prompt.h: the end of prompts, for all layers of several requests at
 * once (manager.h, plan_prompts and install_prompts).
 *
 *   classify block (request, head): what each token becomes (dest), tokens and
 *            victims by list, pages before and after
 *   total    one block a request, the last of its classify: pages of all heads,
 *            and of the heads before each
 *   admit    one block, the last of total: which requests get their pages
 *   fill     block (request, some heads, a warp each): new pages into to_tables
 *   install  the same: old pages come back, the new table takes their place
 *   settle   one block, the last of install: the ring's end
 *
 * The same decisions in the same order as engine/kv_compress.c.
 */
#ifndef TR_CUDA_MANAGER_PROMPT_H
#define TR_CUDA_MANAGER_PROMPT_H

#include "manager_core.h"
#include "manager_slot.h"

/* ---- the slot when it is done ------------------------------------------- */

/* Does any level that tokens go to have scores? */
TR_HD bool
manager_keeps_scores(const tr_cuda_manager_t *m, const tr_kv_seq_t *q)
{
    for (uint32_t l = 0; l < q->n_lists; l++) {
        if (m->place[q->list_layout[l]].score != 0) {
            return true;
        }
    }
    return q->window != 0 && m->place[q->window_layout].score != 0;
}

/* Where tokens leave the window in groups, what is outside of it is whole
 * groups. */
TR_HD void
manager_target(const tr_cuda_manager_t *m, tr_cuda_job_t *j)
{
    const tr_kv_rule_t *r = &j->rule;
    uint32_t from;

    j->to = j->from;
    j->to.window = r->window;
    from = j->len > r->window ? j->len - r->window : 0;
    if (r->leaves == TR_KV_CHANNEL_TOKENS) {
        from = manager_ceil(from, TR_KV_CHANNEL_TOKENS) * TR_KV_CHANNEL_TOKENS;
    }
    if (from < j->to.window_from) { /* nobody comes back into the window */
        from = j->to.window_from;
    }
    j->to.scored = r->scored && manager_keeps_scores(m, &j->to);
    j->to.base = j->len;
    j->to.window_from = from;
    j->to.read_pages = 0;
}

/* The window's part of a row was made for the policies at create. */
TR_HD bool
manager_window_fits(const tr_cuda_manager_t *m, const tr_cuda_job_t *j)
{
    return j->rule.window == 0
           || manager_window_pages(m, &j->to, m->size.max_len)
                  <= m->view.at_pair[0] - m->view.at_window;
}

/* The job of a request; granted: it is one that can be, move: there is
 * something to move. */
TR_HD void
manager_job(const tr_cuda_manager_t *m, const tr_cuda_complete_t *c,
            tr_cuda_job_t *j)
{
    const tr_cuda_slot_t *s;
    uint32_t recent;

    memset(j, 0, sizeof(*j));
    j->slot = j->owner = -1;
    j->len = c->len;
    if (c->slot < 0 || (uint32_t) c->slot >= m->size.slots
        || !m->slot[c->slot].open) {
        return;
    }
    s = &m->slot[c->slot];
    j->from = m->seq[c->slot];
    if (c->len < j->from.base || c->len > s->tokens
        || c->rule.n_levels != j->from.n_lists
        || c->rule.kind == TR_KV_RULE_OWN) {
        return;
    }
    j->owner = c->slot;
    j->rule = c->rule;
    j->granted = true;
    if (c->rule.n_levels == 0 || s->dense_pages == 0) {
        return;
    }
    recent = j->from.recent_from;
    j->n_dense = c->len - j->from.base;
    j->observe = c->rule.observe != 0 && recent < c->len ? c->len - recent : 0;
    j->dense_pages = s->dense_pages;
    j->move = true;
    manager_target(m, j);
    if (!manager_window_fits(m, j)) {
        j->granted = j->move = false;
        j->owner = -1;
    }
}

/* ---- the tokens of a head ----------------------------------------------- */

/* Those outside the new window: the first `n` of the head's order. */
typedef struct {
    tr_cuda_job_t job;
    uint32_t count[TR_KV_LISTS_MAX]; /* listed now */
    uint32_t listed;
    uint32_t windowed; /* leave the window */
    uint32_t dense;
    uint32_t n;
    /* of the choice */
    uint64_t cut[TR_KV_LISTS_MAX];
    uint32_t rank[TR_KV_LISTS_MAX], ranks, digit, more;
    uint32_t digits[256];
    /* of the lists: by thread, by group of threads, of the block */
    uint32_t tokens[TR_KV_LISTS_MAX][MANAGER_THREADS];
    float least[TR_KV_LISTS_MAX][MANAGER_THREADS];
    uint32_t least_at[TR_KV_LISTS_MAX][MANAGER_THREADS];
    uint32_t least_position[TR_KV_LISTS_MAX][MANAGER_THREADS];
    uint32_t index[TR_KV_LISTS_MAX];
} manager_prompt_t;

TR_HD uint32_t
manager_word(const tr_cuda_manager_t *m, int32_t page, uint32_t offset)
{
    return *(const uint32_t *) (const void *) (tr_kv_page_at(&m->view, page)
                                               + offset);
}

TR_HD float
manager_real(const tr_cuda_manager_t *m, int32_t page, uint32_t offset)
{
    return tr_float_from_bits(manager_word(m, page, offset));
}

/* Token i of list l. */
TR_HD void
manager_mark_listed(const tr_cuda_manager_t *m, const manager_prompt_t *s,
                    const int32_t *row, uint32_t l, uint32_t i,
                    tr_kv_mark_t *mark)
{
    const tr_cuda_place_t *place = &m->place[s->job.from.list_layout[l]];
    uint32_t at = i % place->tokens * 4;
    int32_t page = row[tr_kv_list_entry(&m->view, l, i / place->tokens)];

    if (place->score == 0) { /* in order from the first one on */
        mark->position = i;
        mark->score = 0;
        return;
    }
    mark->position = manager_word(m, page, place->position + at);
    mark->score = manager_real(m, page, place->score + at);
}

TR_HD void
manager_mark_dense(const tr_cuda_manager_t *m, const manager_prompt_t *s,
                   const int32_t *row, uint32_t i, tr_kv_mark_t *mark)
{
    const tr_cuda_place_t *place = &m->place[0];
    const tr_cuda_job_t *j = &s->job;
    bool scored = place->score != 0 && j->from.scored;
    uint32_t at = i % place->tokens * 4;
    float recent;

    mark->position = j->from.base + i;
    mark->score = 0;
    if (j->observe != 0) {
        recent = scored ? manager_real(m, row[i / place->tokens],
                                       place->recent + at)
                        : 0;
        mark->score = tr_kv_observed(recent, j->len - 1 - mark->position,
                                     j->observe);
    } else if (scored) {
        mark->score = manager_real(m, row[i / place->tokens],
                                   place->score + at);
    }
}

/* Token i of the head; returns the list that holds it, or TR_KV_NOWHERE. */
TR_HD int
manager_mark(const tr_cuda_manager_t *m, const manager_prompt_t *s,
             uint32_t head, uint32_t i, tr_kv_mark_t *mark)
{
    const tr_cuda_job_t *j = &s->job;
    const int32_t *row = manager_row(m, j->owner, head);

    mark->layer = head / m->view.lists;
    mark->list = head % m->view.lists;
    mark->length = j->len;
    if (i < s->listed) {
        uint32_t l = 0;

        while (i >= s->count[l]) {
            i -= s->count[l++];
        }
        manager_mark_listed(m, s, row, l, i, mark);
        return (int) l;
    }
    i -= s->listed;
    if (i < s->windowed) {
        const tr_cuda_place_t *place = &m->place[j->from.window_layout];
        uint32_t at = (j->from.window_from + i) % j->from.window;

        mark->position = j->from.window_from + i;
        mark->score = place->score == 0
                          ? 0
                          : manager_real(m,
                                         row[m->view.at_window
                                             + at / place->tokens],
                                         place->score + at % place->tokens * 4);
        return TR_KV_NOWHERE;
    }
    manager_mark_dense(m, s, row, i - s->windowed, mark);
    return TR_KV_NOWHERE;
}

/* ---- ranks -------------------------------------------------------------- */

/* cut[l]: the smallest key among the rank[l] best (tr_kv_rank_cut), by radix
 * selection from the highest digit down. */
TR_HD void
manager_cut(const tr_cuda_manager_t *m, uint32_t head, uint32_t l,
            manager_prompt_t *s)
{
    EACH_THREAD (tid, MANAGER_THREADS) {
        if (tid == 0) {
            s->cut[l] = s->rank[l] == 0 ? UINT64_MAX : 0;
            s->more = s->rank[l];
        }
    }
    if (s->rank[l] == 0 || s->rank[l] >= s->n) {
        return;
    }
    for (int shift = 56; shift >= 0; shift -= 8) {
        EACH_THREAD (tid, MANAGER_THREADS) {
            s->digits[tid] = 0;
        }
        EACH_THREAD (tid, MANAGER_THREADS) {
            for (uint32_t i = tid; i < s->n; i += MANAGER_THREADS) {
                tr_kv_mark_t mark;
                uint64_t key;

                manager_mark(m, s, head, i, &mark);
                key = tr_kv_rank_key(tr_kv_rule_rank_value(&s->job.rule, &mark),
                                     mark.position);
                /* two shifts, since one by 64 is undefined */
                if (((key ^ s->cut[l]) >> shift) >> 8 == 0) {
                    MANAGER_ADD(&s->digits[key >> shift & 255], 1);
                }
            }
        }
        EACH_THREAD (tid, MANAGER_THREADS) {
            if (tid == 0) {
                uint32_t digit = 255;

                while (s->digits[digit] < s->more) {
                    s->more -= s->digits[digit--];
                }
                s->cut[l] |= (uint64_t) digit << shift;
            }
        }
    }
}

/* ---- classify ----------------------------------------------------------- */

TR_HD void
manager_prompt_head(const tr_cuda_manager_t *m, uint32_t head,
                    manager_prompt_t *s)
{
    const tr_cuda_job_t *j = &s->job;
    uint32_t window = j->to.window_from, base = j->from.base;
    uint32_t end = window < base ? window : base;

    s->listed = 0;
    for (uint32_t l = 0; l < TR_KV_LISTS_MAX; l++) {
        s->count[l] = l < j->from.n_lists
                          ? manager_counts(m, j->owner, head)[l]
                          : 0;
        s->listed += s->count[l];
    }
    s->windowed = end > j->from.window_from ? end - j->from.window_from : 0;
    s->dense = window > base ? window - base : 0;
    s->n = s->listed + s->windowed + s->dense;
    s->ranks = s->n == 0 ? 0 : tr_kv_rule_ranks(&j->rule, j->len, s->rank);
}

/* Is a less significant than b?  Of equals the lowest position, then the first
 * in order. */
TR_HD bool
manager_less(const manager_prompt_t *s, uint32_t l, uint32_t a, uint32_t b)
{
    if (s->least[l][a] != s->least[l][b]) {
        return s->least[l][a] < s->least[l][b];
    }
    if (s->least_position[l][a] != s->least_position[l][b]) {
        return s->least_position[l][a] < s->least_position[l][b];
    }
    return s->least_at[l][a] < s->least_at[l][b];
}

/* Thread b's tokens of list l join those of a. */
TR_HD void
manager_merge(manager_prompt_t *s, uint32_t l, uint32_t a, uint32_t b)
{
    s->tokens[l][a] += s->tokens[l][b];
    if (manager_less(s, l, b, a)) {
        s->least[l][a] = s->least[l][b];
        s->least_position[l][a] = s->least_position[l][b];
        s->least_at[l][a] = s->least_at[l][b];
    }
}

/* One thread's tokens: their dest, and its own sums. */
TR_HD void
manager_classify_some(const tr_cuda_manager_t *m, uint32_t head, int8_t *dest,
                      uint32_t tid, manager_prompt_t *s)
{
    const tr_cuda_job_t *j = &s->job;
    float t[TR_KV_LISTS_MAX];
    uint32_t end = s->n + j->len - j->to.window_from;

    for (uint32_t l = 0; l < TR_KV_LISTS_MAX; l++) {
        s->tokens[l][tid] = 0;
        s->least[l][tid] = manager_infinity();
        s->least_position[l][tid] = UINT32_MAX;
        s->least_at[l][tid] = 0;
    }
    for (uint32_t i = tid; i < s->n; i += MANAGER_THREADS) {
        tr_kv_mark_t mark;
        int from = manager_mark(m, s, head, i, &mark), to;
        float own;

        if (j->rule.kind == TR_KV_RULE_THRESHOLD
            && (i == tid || j->rule.base_position)) {
            tr_kv_thresholds(&j->rule, mark.layer, mark.list, mark.position,
                             mark.length, t);
        }
        to = tr_kv_rule_place(&j->rule, &mark, from, t, s->cut);
        dest[i] = (int8_t) to;
        if (to < 0) {
            continue;
        }
        s->tokens[to][tid]++;
        own = j->to.by_sum
                  ? mark.score
                  : tr_kv_significance(mark.score, mark.position, j->len);
        if (own < s->least[to][tid]
            || (own == s->least[to][tid]
                && mark.position < s->least_position[to][tid]
                && own < manager_infinity())) {
            s->least[to][tid] = own;
            s->least_position[to][tid] = mark.position;
            s->least_at[to][tid] = i;
        }
    }
    for (uint32_t i = s->n + tid; i < end; i += MANAGER_THREADS) {
        dest[i] = TR_KV_WINDOW;
    }
}

/* Thread 0: the head's plan. */
TR_HD void
manager_plan_lists(const tr_cuda_manager_t *m, uint32_t head,
                   const manager_prompt_t *s, tr_cuda_head_plan_t *h)
{
    const tr_cuda_job_t *j = &s->job;
    manager_run_t run[MANAGER_RUNS];
    uint32_t n, l;

    memset(h, 0, sizeof(*h));
    for (l = 0; l < TR_KV_LISTS_MAX; l++) {
        h->victim[l].significance = manager_infinity();
        if (l >= j->to.n_lists) {
            continue;
        }
        h->count[l] = s->tokens[l][0];
        if (j->to.scored && m->place[j->to.list_layout[l]].score != 0) {
            h->victim[l].significance = s->least[l][0];
            h->victim[l].index = s->index[l];
        }
    }
    n = manager_runs(m, &j->to, h->count, 0, run);
    for (uint32_t r = 0; r < n; r++) {
        h->pages += run[r].n;
    }
    n = manager_runs(m, &j->from, manager_counts(m, j->owner, head),
                     j->dense_pages, run);
    for (uint32_t r = 0; r < n; r++) {
        h->old_pages += run[r].n;
    }
}

/* Block (request i, head). */
TR_HD void
manager_classify(const tr_cuda_manager_t *m, const tr_cuda_complete_t *c,
                 uint32_t i, uint32_t head, manager_prompt_t *s)
{
    int8_t *dest = m->dest + ((size_t) i * m->heads + head) * m->dest_len;

    EACH_THREAD (tid, MANAGER_THREADS) {
        if (tid == 0) {
            manager_job(m, &c[i], &s->job);
            if (s->job.move) {
                manager_prompt_head(m, head, s);
            }
            if (head == 0) {
                m->job[i] = s->job;
            }
        }
    }
    if (!s->job.move) {
        return;
    }
    for (uint32_t l = 0; l < s->ranks; l++) {
        manager_cut(m, head, l, s);
    }
    EACH_THREAD (tid, MANAGER_THREADS) {
        manager_classify_some(m, head, dest, tid, s);
    }
    EACH_THREAD (tid, MANAGER_THREADS) {
        uint32_t l = tid / MANAGER_GROUPS, group = tid % MANAGER_GROUPS;

        for (uint32_t k = 1; k < MANAGER_GROUP && l < TR_KV_LISTS_MAX; k++) {
            manager_merge(s, l, group * MANAGER_GROUP,
                          group * MANAGER_GROUP + k);
        }
    }
    EACH_THREAD (tid, MANAGER_THREADS) {
        if (tid < TR_KV_LISTS_MAX) {
            for (uint32_t k = 1; k < MANAGER_GROUPS; k++) {
                manager_merge(s, tid, 0, k * MANAGER_GROUP);
            }
            s->index[tid] = 0;
        }
    }
    EACH_THREAD (tid, MANAGER_THREADS) { /* the victims' places */
        for (uint32_t k = tid; k < s->n && s->job.to.scored;
             k += MANAGER_THREADS) {
            if (dest[k] >= 0 && k < s->least_at[dest[k]][0]) {
                MANAGER_ADD(&s->index[dest[k]], 1);
            }
        }
    }
    EACH_THREAD (tid, MANAGER_THREADS) {
        if (tid == 0) {
            manager_plan_lists(m, head, s,
                               &m->head[(size_t) i * m->heads + head]);
        }
    }
}

/* ---- total, admit ------------------------------------------------------- */

typedef struct {
    manager_sum_t fresh, old;
} manager_total_t;

/* Block (request i). */
TR_HD void
manager_total_job(const tr_cuda_manager_t *m, uint32_t i, manager_total_t *s)
{
    tr_cuda_head_plan_t *head = m->head + (size_t) i * m->heads;
    uint32_t each = manager_ceil(m->heads, MANAGER_THREADS);

    if (!m->job[i].move) {
        return;
    }
    EACH_THREAD (tid, MANAGER_THREADS) {
        uint32_t h = tid * each, end = h + each < m->heads ? h + each
                                                           : m->heads;
        uint32_t fresh = 0, old = 0;

        for (; h < end; h++) {
            head[h].before = fresh;
            head[h].old_before = old;
            fresh += head[h].pages;
            old += head[h].old_pages;
        }
        s->fresh.part[tid] = fresh;
        s->old.part[tid] = old;
    }
    EACH_THREAD (tid, MANAGER_THREADS) {
        manager_groups(&s->fresh, tid);
        manager_groups(&s->old, tid);
    }
    EACH_THREAD (tid, MANAGER_THREADS) {
        uint32_t h = tid * each, end = h + each < m->heads ? h + each
                                                           : m->heads;
        uint32_t fresh = manager_below(&s->fresh, tid);
        uint32_t old = manager_below(&s->old, tid);

        for (; h < end; h++) {
            head[h].before += fresh;
            head[h].old_before += old;
        }
        if (tid == 0) {
            m->job[i].pages = manager_total(&s->fresh);
            m->job[i].old_pages = manager_total(&s->old);
        }
    }
}

/* One after the other. */
TR_HD void
manager_admit(const tr_cuda_manager_t *m, uint32_t n)
{
    EACH_THREAD (tid, MANAGER_THREADS) {
        uint64_t start = m->report->start;
        uint32_t left = (uint32_t) (m->report->end - start), given = 0;

        for (uint32_t i = 0; i < n && tid == 0; i++) {
            tr_cuda_job_t *j = &m->job[i];

            m->result[i] = j->granted ? TR_CUDA_GRANTED : TR_CUDA_REFUSED;
            m->report->n_refused += !j->granted;
            if (!j->move) {
                continue;
            }
            if (j->pages > left) {
                m->result[i] = TR_CUDA_STALLED;
                j->granted = j->move = false;
                j->owner = -1;
                continue;
            }
            j->slot = j->owner;
            j->first = start;
            start += j->pages;
            left -= j->pages;
            j->given = given;
            given += j->old_pages;
        }
        if (tid == 0) {
            m->report->start = start;
        }
    }
}

/* ---- fill, install ------------------------------------------------------ */

/* Block (request i, heads from warps * block on). */
TR_HD void
manager_fill(const tr_cuda_manager_t *m, uint32_t i, uint32_t block)
{
    const tr_cuda_job_t *j = &m->job[i];

    EACH_THREAD (tid, MANAGER_THREADS) {
        uint32_t head = block * MANAGER_WARPS + tid / MANAGER_WARP;

        if (head < m->heads && j->move) {
            const tr_cuda_head_plan_t *h = m->head + (size_t) i * m->heads
                                           + head;
            int32_t *row = m->to_tables
                           + ((size_t) i * m->heads + head)
                                 * m->view.table_len;
            manager_run_t run[MANAGER_RUNS];
            uint32_t n = manager_runs(m, &j->to, h->count, 0, run);
            uint64_t at = j->first + h->before;

            for (uint32_t r = 0; r < n; at += run[r++].n) {
                for (uint32_t k = tid % MANAGER_WARP; k < run[r].n;
                     k += MANAGER_WARP) {
                    manager_fetch(m, at + k, j->owner,
                                  row + run[r].entry
                                      + (int32_t) k * run[r].step);
                }
            }
        }
    }
}

typedef struct {
    uint32_t pages[TR_KV_LAYOUTS_MAX]; /* more in use */
} manager_install_t;

TR_HD void
manager_count_runs(const manager_run_t *run, uint32_t n, uint32_t lane,
                   bool more, manager_install_t *s)
{
    for (uint32_t r = 0; r < n && lane == 0; r++) {
        MANAGER_ADD(&s->pages[run[r].layout], more ? run[r].n : 0u - run[r].n);
    }
}

/* A warp's head: the new table in place of the old one. */
TR_HD void
manager_install_head(const tr_cuda_manager_t *m, uint32_t i, uint32_t head,
                     uint32_t lane, manager_install_t *s)
{
    const tr_cuda_job_t *j = &m->job[i];
    const tr_cuda_head_plan_t *h = m->head + (size_t) i * m->heads + head;
    const int32_t *source = m->to_tables
                            + ((size_t) i * m->heads + head)
                                  * m->view.table_len;
    int32_t *row = manager_row(m, j->owner, head);
    manager_run_t run[MANAGER_RUNS];
    uint32_t n = manager_runs(m, &j->to, h->count, 0, run);

    for (uint32_t r = 0; r < n; r++) {
        for (uint32_t k = lane; k < run[r].n; k += MANAGER_WARP) {
            int32_t at = (int32_t) run[r].entry + (int32_t) k * run[r].step;

            row[at] = source[at];
        }
    }
    manager_count_runs(run, n, lane, true, s);
    if (lane < TR_KV_LISTS_MAX) {
        manager_counts(m, j->owner, head)[lane] = h->count[lane];
        m->victim[manager_head(m, j->owner, head) * TR_KV_LISTS_MAX + lane] =
            h->victim[lane];
    }
}

/* Block (request i, heads from warps * block on). */
TR_HD void
manager_install(const tr_cuda_manager_t *m, uint32_t i, uint32_t block,
                manager_install_t *s)
{
    const tr_cuda_job_t *j = &m->job[i];

    EACH_THREAD (tid, MANAGER_THREADS) {
        if (tid < TR_KV_LAYOUTS_MAX) {
            s->pages[tid] = 0;
        }
    }
    EACH_THREAD (tid, MANAGER_THREADS) {
        uint32_t head = block * MANAGER_WARPS + tid / MANAGER_WARP;

        if (head < m->heads && j->move) {
            manager_run_t run[MANAGER_RUNS];
            uint32_t n = manager_runs(m, &j->from,
                                      manager_counts(m, j->owner, head),
                                      j->dense_pages, run);
            uint32_t before = m->head[(size_t) i * m->heads + head].old_before;

            manager_count_runs(run, n, tid % MANAGER_WARP, false, s);
            manager_give_back(m, j->owner, head, run, n,
                              m->report->end + j->given + before,
                              tid % MANAGER_WARP);
        }
    }
    EACH_THREAD (tid, MANAGER_THREADS) {
        uint32_t head = block * MANAGER_WARPS + tid / MANAGER_WARP;

        if (head < m->heads && j->move) {
            manager_install_head(m, i, head, tid % MANAGER_WARP, s);
        }
    }
    EACH_THREAD (tid, MANAGER_THREADS) {
        if (tid < TR_KV_LAYOUTS_MAX && s->pages[tid] != 0) {
            MANAGER_ADD(&m->report->pages[tid], s->pages[tid]);
        }
    }
}

/* The last block of install. */
TR_HD void
manager_settle_prompts(const tr_cuda_manager_t *m, uint32_t n)
{
    EACH_THREAD (tid, MANAGER_THREADS) {
        for (uint32_t i = tid; i < n; i += MANAGER_THREADS) {
            const tr_cuda_job_t *j = &m->job[i];

            if (j->owner >= 0 && j->from.n_lists != 0) {
                tr_cuda_slot_t *slot = &m->slot[j->owner];

                slot->dense = false;
                if (j->move) {
                    m->seq[j->owner] = j->to;
                    slot->rule = j->rule;
                    slot->tokens = j->len;
                    slot->pages = j->pages;
                    slot->dense_pages = 0;
                }
            }
        }
    }
    EACH_THREAD (tid, MANAGER_THREADS) {
        uint64_t end = m->report->end;

        for (uint32_t i = 0; i < n && tid == 0; i++) {
            end += m->job[i].move ? m->job[i].old_pages : 0;
        }
        if (tid == 0) {
            m->report->end = end;
            if (end - m->report->start > m->size.pages) {
                m->report->faults++; /* more free pages than pages */
            }
        }
    }
}

#endif
