/*
 * manager_prompt.h: the end of prompts, for all layers of several requests at
 * once (manager.h, plan_prompts and install_prompts).
 *
 *   classify block (request, head): what each token becomes (dest), tokens and
 *            candidates by tier, pages before and after
 *   total    one block a request, the last of its classify: pages of all heads,
 *            and of the heads before each
 *   admit    one block, the last of total: which requests get their pages
 *   fill     block (request, some heads, a warp each): new pages into to_tables
 *   install  the same: old pages come back, the new table takes their place
 *   settle   one block, the last of install: the ring's end
 *
 * A request may take its layers some at a time (tr_kv_complete_t.layers): fill
 * and install are then of these, one after the other, and settle goes on to the
 * next of them.
 *
 * Tokens of a head stand in one order throughout: tiers, window, uncompressed.  Those
 * that stay in the window are the last of them, but for the sinks, which come
 * first behind the tiers; the others, which a rule decides about, are numbered
 * without these (manager_source).
 */
#ifndef TR_KV_MANAGER_PROMPT_H
#define TR_KV_MANAGER_PROMPT_H

#include "manager_statistics.h"
#include "manager_slot.h"

/* ---- classify ----------------------------------------------------------- */

TR_HD void
manager_prompt_head(const tr_kv_manager_t *m, uint32_t head,
                    manager_prompt_t *s)
{
    const tr_kv_job_t *j = &s->job;
    const uint32_t *frozen = manager_frozen(m, &j->from, j->slot, head);
    uint32_t window = j->to.window_from, base = j->from.base;
    uint32_t end = window < base ? window : base;

    s->tiered = 0;
    for (uint32_t l = 0; l < TR_KV_TIERS_MAX; l++) {
        bool there = l < j->from.n_tiers;

        s->frozen[l] = there && frozen != NULL ? frozen[l] : 0;
        s->count[l] = there ? manager_counts(m, j->slot, head)[l] - s->frozen[l]
                            : 0;
        s->tiered += s->count[l];
    }
    s->windowed = end > j->from.window_from ? end - j->from.window_from : 0;
    s->skipped = base == 0 ? j->to.sinks : 0;
    s->uncompressed = window > base ? window - base - s->skipped : 0;
    s->n = s->tiered + s->windowed + s->uncompressed;
    s->counting = 0;
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

/* Thread b's tokens of tier l join those of a. */
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
manager_classify_some(const tr_kv_manager_t *m, uint32_t head, int8_t *dest,
                      uint32_t tid, manager_prompt_t *s)
{
    const tr_kv_job_t *j = &s->job;
    float t[TR_KV_TIERS_MAX];
    uint32_t end = s->n + j->len - j->to.window_from;

    for (uint32_t l = 0; l < TR_KV_TIERS_MAX; l++) {
        s->tokens[l][tid] = 0;
        s->least[l][tid] = manager_infinity();
        s->least_position[l][tid] = UINT32_MAX;
        s->least_at[l][tid] = 0;
    }
    for (uint32_t i = tid; i < s->n; i += MANAGER_THREADS) {
        tr_kv_stats_t stats;
        int from = manager_stats(m, s, head, i, &stats), to;
        uint64_t key = 0;
        float own;

        if (j->rule.kind == TR_KV_RULE_THRESHOLD
            && (i == tid || j->rule.base_position)) {
            tr_kv_thresholds(&j->rule, stats.layer, stats.kv_head,
                             stats.position, stats.length, t);
        }
        if (s->ranks != 0) {
#ifdef MANAGER_KEEPS_KEYS
            key = s->key[i];
#else
            key = manager_key(m, s, head, i, &stats, from);
#endif
        }
        to = tr_kv_rule_place(&j->rule, &stats, from, t, key, s->cut);
        dest[manager_source(s, i)] = (int8_t) to;
        if (to < 0) {
            continue;
        }
        s->tokens[to][tid]++;
        own = j->to.by_sum
                  ? stats.score
                  : tr_kv_significance(stats.score, stats.position, j->len);
        if (own < s->least[to][tid]
            || (own == s->least[to][tid]
                && stats.position < s->least_position[to][tid]
                && own < manager_infinity())) {
            s->least[to][tid] = own;
            s->least_position[to][tid] = stats.position;
            s->least_at[to][tid] = i;
        }
    }
    for (uint32_t i = s->n + tid; i < end; i += MANAGER_THREADS) {
        dest[manager_source(s, i)] = TR_KV_WINDOW;
    }
    for (uint32_t i = tid; i < j->to.sinks; i += MANAGER_THREADS) {
        dest[s->tiered + i] = TR_KV_WINDOW;
    }
}

/* What a head gives back: all but what is frozen, or of one that slides what nobody
 * sees any more. */
TR_HD uint32_t
manager_old_runs(const tr_kv_manager_t *m, const tr_kv_job_t *j, uint32_t head,
                 manager_run_t run[MANAGER_RUNS])
{
    const manager_dense_t dense = { j->uncompressed_pages, j->near_to,
                                    j->near_from };

    return manager_runs(m, &j->from, head, manager_counts(m, j->slot, head),
                        manager_frozen(m, &j->from, j->slot, head), dense, run);
}

/* Of request i: the tokens in front of each tier that stay. */
TR_HD uint32_t *
manager_stay(const tr_kv_manager_t *m, uint32_t i, uint32_t head)
{
    return m->stay + ((size_t) i * m->heads + head) * TR_KV_TIERS_MAX;
}

TR_HD void
manager_plan_none(tr_kv_head_plan_t *h)
{
    memset(h, 0, sizeof(*h));
    for (uint32_t l = 0; l < TR_KV_TIERS_MAX; l++) {
        h->candidate[l].significance = manager_infinity();
    }
}

/* Thread 0: the head's plan. */
TR_HD void
manager_plan_tiers(const tr_kv_manager_t *m, uint32_t i, uint32_t head,
                   const manager_prompt_t *s)
{
    tr_kv_head_plan_t *h = &m->head[(size_t) i * m->heads + head];
    uint32_t *stay = manager_stay(m, i, head);
    const tr_kv_job_t *j = &s->job;
    manager_run_t run[MANAGER_RUNS];
    uint32_t n, l;

    manager_plan_none(h);
    for (l = 0; l < TR_KV_TIERS_MAX; l++) {
        stay[l] = s->frozen[l];
        if (l >= j->to.n_tiers) {
            continue;
        }
        h->count[l] = stay[l] + s->tokens[l][0];
        if (j->to.scored && m->place[j->to.tier_layout[l]].score != 0) {
            h->candidate[l].significance = s->least[l][0];
            h->candidate[l].index = stay[l] + s->index[l];
        }
    }
    n = manager_runs(m, &j->to, head, h->count, stay, manager_none(), run);
    for (uint32_t r = 0; r < n; r++) {
        h->pages += run[r].n;
    }
    n = manager_old_runs(m, j, head, run);
    for (uint32_t r = 0; r < n; r++) {
        h->old_pages += run[r].n;
    }
}

/* Block (request i, head). */
TR_HD void
manager_classify(const tr_kv_manager_t *m, const tr_kv_complete_t *c,
                 uint32_t i, uint32_t head, manager_prompt_t *s)
{
    int8_t *dest = m->dest + ((size_t) i * m->heads + head) * m->dest_len;

    EACH_FEW (j, 1) {
        manager_job(m, &c[i], &s->job);
        if (s->job.move) {
            manager_prompt_head(m, head, s);
        }
        if (head == 0) {
            m->job[i] = s->job;
        }
    }
    if (!s->job.move) {
        return;
    }
    if (manager_slides(m, &s->job.from, head)) {
        EACH_FEW (j, 1) {
            tr_kv_head_plan_t *h = m->head + (size_t) i * m->heads + head;

            manager_plan_none(h);
            h->old_pages = s->job.near_to - s->job.near_from;
            memset(manager_stay(m, i, head), 0,
                   TR_KV_TIERS_MAX * sizeof(*m->stay));
        }
        return;
    }
    if (s->job.rule.kind == TR_KV_RULE_RECENT) {
        manager_count_recent(m, head, s);
    }
    EACH_FEW (j, 1) {
        s->ranks = s->n == 0 ? 0
                             : tr_kv_rule_ranks(&s->job.rule, s->job.len, s->n,
                                                s->counting, s->rank);
    }
    if (s->ranks != 0) {
        manager_keys(m, head, s);
    }
    for (uint32_t l = 0; l < s->ranks; l++) {
        manager_cut(m, head, l, s);
    }
    EACH_THREAD (tid) {
        manager_classify_some(m, head, dest, tid, s);
    }
    EACH_FEW (j, TR_KV_TIERS_MAX * MANAGER_GROUPS) {
        uint32_t l = j / MANAGER_GROUPS, group = j % MANAGER_GROUPS;

        MANAGER_ROLLED
        for (uint32_t k = 1; k < MANAGER_GROUP; k++) {
            manager_merge(s, l, group * MANAGER_GROUP,
                          group * MANAGER_GROUP + k);
        }
    }
    EACH_FEW (l, TR_KV_TIERS_MAX) {
        MANAGER_ROLLED
        for (uint32_t k = 1; k < MANAGER_GROUPS; k++) {
            manager_merge(s, l, 0, k * MANAGER_GROUP);
        }
        s->index[l] = 0;
    }
    EACH (k, s->job.to.scored ? s->n : 0) { /* the candidates' places */
        int8_t to = dest[manager_source(s, k)];

        if (to >= 0 && s->least_at[to][0] > k) {
            MANAGER_ADD(&s->index[to], 1);
        }
    }
    EACH_FEW (j, 1) {
        manager_plan_tiers(m, i, head, s);
    }
}

/* ---- total, admit ------------------------------------------------------- */

typedef struct {
    manager_sum_t fresh, old;
    uint32_t borrowed;
} manager_total_t;

/* Layers by layers: pages taken when head h's have theirs, less what came back
 * of those before them. */
TR_HD uint32_t
manager_taken(const tr_kv_manager_t *m, const tr_kv_job_t *j,
              const tr_kv_head_plan_t *head, uint32_t h)
{
    uint32_t step = j->layers * m->view.kv_heads, first = h / step * step;
    uint32_t taken = head[h].before + head[h].pages;

    return taken > head[first].old_before ? taken - head[first].old_before : 0;
}

/* Behind the sums of a request: what the ring must have for it. */
TR_HD void
manager_peak(const tr_kv_manager_t *m, uint32_t i, manager_total_t *s)
{
    const tr_kv_head_plan_t *head = m->head + (size_t) i * m->heads;
    tr_kv_job_t *j = &m->job[i];

    EACH_THREAD (tid) {
        uint32_t most = 0;

        for (uint32_t h = tid; h < m->heads && j->layers != 0;
             h += MANAGER_THREADS) {
            uint32_t taken = manager_taken(m, j, head, h);

            most = taken > most ? taken : most;
        }
        s->fresh.part[tid] = most;
    }
    EACH_FEW (k, 1) {
        j->peak = j->layers == 0 ? j->pages : 0;
        for (uint32_t t = 0; t < MANAGER_THREADS; t++) {
            j->peak = s->fresh.part[t] > j->peak ? s->fresh.part[t] : j->peak;
        }
    }
}

/* Block (request i). */
TR_HD void
manager_total_job(const tr_kv_manager_t *m, uint32_t i, manager_total_t *s)
{
    tr_kv_head_plan_t *head = m->head + (size_t) i * m->heads;
    uint32_t each = manager_ceil(m->heads, MANAGER_THREADS);

    if (!m->job[i].move) {
        return;
    }
    EACH_FEW (k, 1) {
        s->borrowed = 0;
    }
    EACH_THREAD (tid) {
        uint32_t h = tid * each,
                 end = h + each < m->heads ? h + each : m->heads;
        uint32_t fresh = 0, old = 0, borrowed = 0;

        for (; h < end; h++) {
            head[h].before = fresh;
            head[h].old_before = old;
            fresh += head[h].pages;
            old += head[h].old_pages;
            borrowed += head[h].borrowed;
        }
        s->fresh.part[tid] = fresh;
        s->old.part[tid] = old;
        if (borrowed != 0) {
            MANAGER_ADD(&s->borrowed, borrowed);
        }
    }
    EACH_FEW (group, MANAGER_GROUPS) {
        manager_group(&s->fresh, group);
        manager_group(&s->old, group);
    }
    EACH_THREAD (tid) {
        uint32_t h = tid * each,
                 end = h + each < m->heads ? h + each : m->heads;
        uint32_t fresh = manager_below(&s->fresh, tid);
        uint32_t old = manager_below(&s->old, tid);

        for (; h < end; h++) {
            head[h].before += fresh;
            head[h].old_before += old;
        }
        if (tid == 0) {
            m->job[i].pages = manager_total(&s->fresh);
            m->job[i].old_pages = manager_total(&s->old);
            m->job[i].borrowed = s->borrowed;
            if (m->job[i].source != m->job[i].slot) {
                m->job[i].to.frozen = s->borrowed != 0;
            }
        }
    }
    manager_peak(m, i, s);
}

/* What the kernel that moves the tokens is told. */
TR_HD void
manager_compress(const tr_kv_manager_t *m, uint32_t i, tr_kv_compress_t *c)
{
    const tr_kv_job_t *j = &m->job[i];
    size_t head = (size_t) i * m->heads;

    c->slot = -1;
    c->n_uncompressed = j->n_uncompressed;
    c->to = &j->to;
    c->to_tables = m->to_tables + head * m->view.table_len;
    c->dest = m->dest + head * m->dest_len;
    c->dest_len = m->dest_len;
    c->stay = m->stay + head * TR_KV_TIERS_MAX;
    c->cut = j->source != j->slot;
    c->observe = j->observe;
    c->first_layer = 0;
    c->layers = j->layers;
}

/* One after the other. */
TR_HD void
manager_admit(const tr_kv_manager_t *m, uint32_t n)
{
    EACH_FEW (k, 1) {
        uint64_t start = m->report->start;
        uint32_t left = (uint32_t) (m->report->end - start), given = 0;

        for (uint32_t i = 0; i < n; i++) {
            tr_kv_job_t *j = &m->job[i];
            tr_kv_compress_t *c = &m->compress[i];

            manager_compress(m, i, c);
            m->result[i] = j->granted ? TR_KV_GRANTED : TR_KV_REFUSED;
            m->report->n_refused += !j->granted;
            if (!j->move) {
                continue;
            }
            if (j->peak > left) {
                m->result[i] = TR_KV_STALLED;
                j->granted = j->move = false;
                c->slot = j->slot = -1;
                continue;
            }
            c->slot = j->source;
            j->first = start;
            start += j->pages;
            left -= j->pages < left ? j->pages : left;
            j->given = given;
            given += j->old_pages;
        }
        m->report->start = start;
    }
}

/* ---- fill, install ------------------------------------------------------ */

/* Is a head of the layers that are taken now? */
TR_HD bool
manager_its_turn(const tr_kv_manager_t *m, const tr_kv_job_t *j, uint32_t head)
{
    uint32_t layer = head / m->view.kv_heads;

    return head < m->heads && j->move
           && (j->layers == 0
               || (layer >= j->at_layer && layer - j->at_layer < j->layers));
}

/* Block (request i, heads from warps * block on). */
TR_HD void
manager_fill(const tr_kv_manager_t *m, uint32_t i, uint32_t block)
{
    const tr_kv_job_t *j = &m->job[i];

    EACH_THREAD (tid) {
        uint32_t head = block * MANAGER_WARPS + tid / MANAGER_WARP;

        if (manager_its_turn(m, j, head)) {
            const tr_kv_head_plan_t *h = m->head + (size_t) i * m->heads + head;
            int32_t *row = m->to_tables
                           + ((size_t) i * m->heads + head) * m->view.table_len;
            manager_run_t run[MANAGER_RUNS];
            uint32_t n = manager_runs(m, &j->to, head, h->count,
                                      manager_stay(m, i, head), manager_none(),
                                      run);
            uint64_t at = j->first + h->before;

            for (uint32_t r = 0; r < n; at += run[r++].n) {
                for (uint32_t k = tid % MANAGER_WARP; k < run[r].n;
                     k += MANAGER_WARP) {
                    manager_fetch(m, at + k, j->slot,
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

/* A warp's head: what it borrows, which it gets with all that it has. */
TR_HD void
manager_install_borrowed(const tr_kv_manager_t *m, uint32_t i, uint32_t head,
                         uint32_t lane)
{
    const tr_kv_job_t *j = &m->job[i];
    const uint32_t *stay = manager_stay(m, i, head);
    const int32_t *source = m->to_tables
                            + ((size_t) i * m->heads + head)
                                  * m->view.table_len;
    int32_t *row = manager_row(m, j->slot, head);
    size_t at = manager_head(m, j->slot, head) * TR_KV_TIERS_MAX;

    for (uint32_t l = 0; l < j->to.n_tiers; l++) {
        uint32_t n = stay[l] / m->place[j->to.tier_layout[l]].tokens;

        for (uint32_t k = lane; k < n; k += MANAGER_WARP) {
            uint32_t entry = tr_kv_tier_entry(&m->view, l, k);

            row[entry] = source[entry];
        }
    }
    for (uint32_t l = lane; l < TR_KV_TIERS_MAX; l += MANAGER_WARP) {
        m->frozen[at + l] = m->borrowed[at + l] = stay[l];
    }
}

/* A warp's head: the new table in place of the old one. */
TR_HD void
manager_install_head(const tr_kv_manager_t *m, uint32_t i, uint32_t head,
                     uint32_t lane, manager_install_t *s)
{
    const tr_kv_job_t *j = &m->job[i];
    const tr_kv_head_plan_t *h = m->head + (size_t) i * m->heads + head;
    const int32_t *source = m->to_tables
                            + ((size_t) i * m->heads + head)
                                  * m->view.table_len;
    int32_t *row = manager_row(m, j->slot, head);
    manager_run_t run[MANAGER_RUNS];
    uint32_t n = manager_runs(m, &j->to, head, h->count,
                              manager_stay(m, i, head), manager_none(), run);

    if (j->to.frozen && j->source != j->slot) {
        manager_install_borrowed(m, i, head, lane);
    }
    for (uint32_t r = 0; r < n; r++) {
        for (uint32_t k = lane; k < run[r].n; k += MANAGER_WARP) {
            int32_t at = (int32_t) run[r].entry + (int32_t) k * run[r].step;

            row[at] = source[at];
        }
    }
    manager_count_runs(run, n, lane, true, s);
    for (uint32_t l = lane; l < TR_KV_TIERS_MAX; l += MANAGER_WARP) {
        manager_counts(m, j->slot, head)[l] = h->count[l];
        m->candidate[manager_head(m, j->slot, head) * TR_KV_TIERS_MAX + l] =
            h->candidate[l];
    }
}

/* Block (request i, heads from warps * block on). */
TR_HD void
manager_install(const tr_kv_manager_t *m, uint32_t i, uint32_t block,
                manager_install_t *s)
{
    const tr_kv_job_t *j = &m->job[i];

    EACH_FEW (l, TR_KV_LAYOUTS_MAX) {
        s->pages[l] = 0;
    }
    EACH_THREAD (tid) {
        uint32_t head = block * MANAGER_WARPS + tid / MANAGER_WARP;

        if (manager_its_turn(m, j, head)) {
            manager_run_t run[MANAGER_RUNS];
            uint32_t n = manager_old_runs(m, j, head, run);
            uint32_t before = m->head[(size_t) i * m->heads + head].old_before;

            manager_count_runs(run, n, tid % MANAGER_WARP, false, s);
            manager_give_back(m, j->slot, head, run, n,
                              m->report->end + j->given + before,
                              tid % MANAGER_WARP);
        }
    }
    EACH_THREAD (tid) {
        uint32_t head = block * MANAGER_WARPS + tid / MANAGER_WARP;

        if (manager_its_turn(m, j, head)) {
            manager_install_head(m, i, head, tid % MANAGER_WARP, s);
        }
    }
    EACH_FEW (l, TR_KV_LAYOUTS_MAX) {
        if (s->pages[l] != 0) {
            MANAGER_ADD_ALL(&m->report->pages[l], s->pages[l]);
        }
    }
}

/* The slot of a prompt that was compressed. */
TR_HD void
manager_become(const tr_kv_manager_t *m, const tr_kv_job_t *j)
{
    tr_kv_slot_t *s = &m->slot[j->slot];

    m->seq[j->slot] = j->to;
    s->rule = j->rule;
    s->tokens = j->len;
    s->near_from = j->near_to;
    if (j->source != j->slot) {
        s->frozen_pages = s->borrowed = j->borrowed;
    }
    s->pages = j->pages
               + manager_near(m, &j->to) * (s->near_pages - s->near_from)
               + s->frozen_pages - s->borrowed; /* its own that stayed */
    s->uncompressed_pages = 0;
    s->uncompressed = false;
}

/* A request goes on to its next layers; false: it has none, or takes all at
 * once.  It is then the only one of the launch. */
TR_HD bool
manager_goes_on(const tr_kv_manager_t *m, uint32_t n)
{
    const tr_kv_job_t *j = &m->job[0];
    bool on = n == 1 && j->move && j->layers != 0
              && j->layers < m->view.layers - j->at_layer;

    MANAGER_WAIT();
    EACH_FEW (k, on) {
        m->job[0].at_layer += j->layers;
        m->compress[0].first_layer = j->at_layer;
    }
    return on;
}

/* The last block of install. */
TR_HD void
manager_settle_prompts(const tr_kv_manager_t *m, uint32_t n)
{
    if (manager_goes_on(m, n)) {
        return;
    }
    EACH (i, n) {
        const tr_kv_job_t *j = &m->job[i];

        if (j->slot >= 0 && j->from.n_tiers != 0) {
            if (j->move) {
                manager_become(m, j);
            }
            m->slot[j->slot].uncompressed = false;
        }
    }
    EACH_FEW (k, 1) {
        uint64_t end = m->report->end;

        for (uint32_t i = 0; i < n; i++) {
            end += m->job[i].move ? m->job[i].old_pages : 0;
        }
        m->report->end = end;
        if (end - m->report->start > m->size.pages) {
            m->report->faults++; /* more free pages than pages */
        }
    }
}

#endif
