/*
 * manager_statistics.h: the end of a prompt as one block sees it, which has one
 * head: what the slot becomes, the head's tokens in the order of
 * tr_kv_compress_t with their scores, and the cut between the best and the
 * others.
 */
#ifndef TR_KV_MANAGER_STATISTICS_H
#define TR_KV_MANAGER_STATISTICS_H

#include "manager_core.h"

/* ---- the slot when it is done ------------------------------------------- */

/* Does any level that tokens go to have scores? */
TR_HD bool
manager_keeps_scores(const tr_kv_manager_t *m, const tr_kv_seq_t *q)
{
    for (uint32_t l = 0; l < q->n_tiers; l++) {
        if (m->place[q->tier_layout[l]].score != 0) {
            return true;
        }
    }
    return q->window != 0 && m->place[q->window_layout].score != 0;
}

/* Where tokens leave the window in groups, what is outside of it is whole
 * groups. */
TR_HD void
manager_target(const tr_kv_manager_t *m, tr_kv_job_t *j)
{
    const tr_kv_rule_t *r = &j->rule;
    uint32_t from;

    j->to = j->from;
    j->to.window = r->window;
    if (j->from.base == 0) {
        j->to.sinks = tr_kv_rule_sinks(r, j->len);
    }
    from = j->len > r->window ? j->len - r->window : 0;
    if (r->leaves == TR_KV_CHANNEL_TOKENS) {
        from = manager_ceil(from, TR_KV_CHANNEL_TOKENS) * TR_KV_CHANNEL_TOKENS;
    }
    if (from < j->to.window_from) { /* nobody comes back into the window */
        from = j->to.window_from;
    }
    from = from < j->to.sinks ? j->to.sinks : from;
    j->to.scored = r->scored && manager_keeps_scores(m, &j->to);
    j->to.base = j->len;
    j->to.window_from = from;
    j->to.read_pages = 0;
}

/* The window's part of a row was made for the policies at create. */
TR_HD bool
manager_window_fits(const tr_kv_manager_t *m, const tr_kv_job_t *j)
{
    return j->rule.window == 0
           || manager_window_pages(m, &j->to, m->size.max_len)
                  <= m->view.at_pair[0] - m->view.at_window;
}

/* The job of a request; granted: it is one that can be, move: there is
 * something to move. */
TR_HD void
manager_job(const tr_kv_manager_t *m, const tr_kv_complete_t *c, tr_kv_job_t *j)
{
    const tr_kv_slot_t *s;
    uint32_t recent;

    memset(j, 0, sizeof(*j));
    j->slot = j->source = -1;
    j->len = c->len;
    if (c->slot < 0 || (uint32_t) c->slot >= m->size.slots
        || !m->slot[c->slot].open || m->slot[c->slot].out) {
        return;
    }
    s = &m->slot[c->slot];
    j->from = m->seq[c->slot];
    if (c->len < j->from.base || c->len > s->tokens
        || c->rule.n_levels != j->from.n_tiers) {
        return;
    }
    j->slot = j->source = c->slot;
    j->rule = c->rule;
    j->layers = c->layers;
    j->granted = true;
    if (c->rule.n_levels == 0 || s->uncompressed_pages == 0) {
        return;
    }
    recent = j->from.recent_from;
    j->n_uncompressed = c->len - j->from.base;
    j->observe = c->rule.observe != 0 && recent < c->len ? c->len - recent : 0;
    j->uncompressed_pages = s->uncompressed_pages;
    j->near_from = s->near_from;
    j->near_to = j->near_from;
    if (manager_near(m, &j->from) != 0
        && manager_seen_from(m, c->len) > j->near_to) {
        j->near_to = manager_seen_from(m, c->len);
    }
    j->move = true;
    manager_target(m, j);
    if (!manager_window_fits(m, j)) {
        j->granted = j->move = false;
        j->slot = -1;
    }
}

/* ---- the tokens of a head ----------------------------------------------- */

/* Those outside the new window, and not frozen: the first `n` of the head's order,
 * but for the sinks, which stand behind the tiers there. */
typedef struct {
    tr_kv_job_t job;
    uint32_t frozen[TR_KV_TIERS_MAX]; /* no rule decides about these; */
    uint32_t count[TR_KV_TIERS_MAX];  /* the others that are tiered now */
    uint32_t tiered;
    uint32_t windowed; /* leave the window */
    uint32_t skipped;  /* uncompressed, which become sinks */
    uint32_t uncompressed;
    uint32_t n;
    uint32_t counting; /* tr_kv_recent_counts */
    /* of the choice */
    uint64_t cut[TR_KV_TIERS_MAX];
    uint32_t rank[TR_KV_TIERS_MAX], ranks, digit, more;
    uint32_t digits[256];
    /* of the tiers: by thread, by group of threads, of the block */
    uint32_t tokens[TR_KV_TIERS_MAX][MANAGER_THREADS];
    float least[TR_KV_TIERS_MAX][MANAGER_THREADS];
    uint32_t least_at[TR_KV_TIERS_MAX][MANAGER_THREADS];
    uint32_t least_position[TR_KV_TIERS_MAX][MANAGER_THREADS];
    uint32_t index[TR_KV_TIERS_MAX];
#ifdef MANAGER_KEEPS_KEYS
    /* the host's, of each token: */
    uint64_t *key; /* [max_len], when there are ranks */
    float *recent; /* [max_len] manager_recent, of TR_KV_RULE_RECENT */
#endif
} manager_prompt_t;

TR_HD uint32_t
manager_word(const tr_kv_manager_t *m, int32_t page, uint32_t offset)
{
    return *(const uint32_t *) (const void *) (tr_kv_page_at(&m->view, page)
                                               + offset);
}

TR_HD float
manager_real(const tr_kv_manager_t *m, int32_t page, uint32_t offset)
{
    return tr_float_from_bits(manager_word(m, page, offset));
}

/* Token i of tier l, of those that are not frozen. */
TR_HD void
manager_stats_tiered(const tr_kv_manager_t *m, const manager_prompt_t *s,
                     const int32_t *row, uint32_t l, uint32_t i,
                     tr_kv_stats_t *stats)
{
    const tr_kv_segments_t *place = &m->place[s->job.from.tier_layout[l]];
    uint32_t at = i % place->tokens; /* frozen ones fill pages */
    int32_t page;

    i += s->frozen[l];
    page = row[tr_kv_tier_entry(&m->view, l, i / place->tokens)];

    stats->position = place->position == 0 /* in order from the first one on */
                          ? s->job.from.sinks + i
                          : manager_position(m, place, page, at);
    stats->score = place->score == 0
                       ? 0
                       : manager_real(m, page, place->score + at * 4);
}

TR_HD void
manager_stats_uncompressed(const tr_kv_manager_t *m, const manager_prompt_t *s,
                           const int32_t *row, uint32_t i, tr_kv_stats_t *stats)
{
    const tr_kv_segments_t *place = &m->place[0];
    const tr_kv_job_t *j = &s->job;
    bool scored = place->score != 0 && j->from.scored;
    uint32_t at = i % place->tokens * 4;
    float recent;

    stats->position = j->from.base + i;
    stats->score = 0;
    if (j->observe != 0) {
        recent = scored ? manager_real(m, row[i / place->tokens],
                                       place->recent + at)
                        : 0;
        stats->score = tr_kv_observed(recent, j->len - 1 - stats->position,
                                      j->observe);
    } else if (scored) {
        stats->score = manager_real(m, row[i / place->tokens],
                                    place->score + at);
    }
}

/* Where tr_kv_compress_t has token i: sinks are the first behind the tiers. */
TR_HD uint32_t
manager_source(const manager_prompt_t *s, uint32_t i)
{
    return i < s->tiered ? i : i + s->job.to.sinks;
}

/* Token i of the head; returns the tier that holds it, or TR_KV_NOWHERE. */
TR_HD int
manager_stats(const tr_kv_manager_t *m, const manager_prompt_t *s,
              uint32_t head, uint32_t i, tr_kv_stats_t *stats)
{
    const tr_kv_job_t *j = &s->job;
    const int32_t *row = manager_row(m, j->slot, head);

    stats->layer = head / m->view.kv_heads;
    stats->kv_head = head % m->view.kv_heads;
    stats->length = j->len;
    if (i < s->tiered) {
        uint32_t l = 0;

        while (i >= s->count[l]) {
            i -= s->count[l++];
        }
        manager_stats_tiered(m, s, row, l, i, stats);
        return (int) l;
    }
    i -= s->tiered;
    if (i < s->windowed) {
        const tr_kv_segments_t *place = &m->place[j->from.window_layout];
        uint32_t at = tr_kv_window_entry(&j->from, j->from.window_from + i);

        stats->position = j->from.window_from + i;
        stats->score = place->score == 0
                           ? 0
                           : manager_real(
                               m, row[m->view.at_window + at / place->tokens],
                               place->score + at % place->tokens * 4);
        return TR_KV_NOWHERE;
    }
    manager_stats_uncompressed(m, s, row, s->skipped + i - s->windowed, stats);
    return TR_KV_NOWHERE;
}

/* What the last queries gave to token i; negative when nobody counted it. */
TR_HD float
manager_recent(const tr_kv_manager_t *m, const manager_prompt_t *s,
               uint32_t head, uint32_t i)
{
    const tr_kv_segments_t *place = &m->place[0];
    uint32_t before = s->tiered + s->windowed;

    if (i < before) {
        return -1;
    }
    if (place->score == 0 || !s->job.from.scored) {
        return 0;
    }
    i = s->skipped + i - before;
    return manager_real(m, manager_row(m, s->job.slot, head)[i / place->tokens],
                        place->recent + i % place->tokens * 4);
}

/* The same once all tokens were counted (manager_count_recent). */
TR_HD float
manager_recent_of(const tr_kv_manager_t *m, const manager_prompt_t *s,
                  uint32_t head, uint32_t i)
{
#ifdef MANAGER_KEEPS_KEYS
    (void) m;
    (void) head;
    return s->recent[i];
#else
    return manager_recent(m, s, head, i);
#endif
}

/* How many tokens somebody counted, each of which has up to `pool` neighbours
 * that look at it: the host reads it once. */
TR_HD void
manager_count_recent(const tr_kv_manager_t *m, uint32_t head,
                     manager_prompt_t *s)
{
    EACH (i, s->n) {
        float recent = manager_recent(m, s, head, i);

#ifdef MANAGER_KEEPS_KEYS
        s->recent[i] = recent;
#endif
        if (recent >= 0) {
            MANAGER_ADD(&s->counting, 1);
        }
    }
}

/* Token i's rank among those of its head. */
TR_HD uint64_t
manager_key(const tr_kv_manager_t *m, const manager_prompt_t *s, uint32_t head,
            uint32_t i, const tr_kv_stats_t *stats, int from)
{
    const tr_kv_rule_t *r = &s->job.rule;
    uint32_t reach = r->pool / 2, first = i > reach ? i - reach : 0;
    uint32_t last = s->n - i > reach ? i + reach : s->n - 1;
    float most = 0;

    if (r->kind != TR_KV_RULE_RECENT) {
        return tr_kv_rank_key(tr_kv_rule_rank_value(r, stats), stats->position);
    }
    if (!tr_kv_recent_counts(from, manager_recent_of(m, s, head, i))) {
        return tr_kv_rank_key(TR_KV_KEPT, stats->position);
    }
    /* those that count are uncompressed, in order of position */
    for (uint32_t j = first; j <= last; j++) {
        float recent = manager_recent_of(m, s, head, j);

        if (recent >= 0) {
            most = tr_kv_recent_pool(r, most, i, j, recent);
        }
    }
    return tr_kv_rank_key(most, stats->position);
}

/* ---- ranks -------------------------------------------------------------- */

/* The same for one whose statistics are not at hand.  A device forms it anew
 * whenever it is wanted; the host once (manager_keys). */
TR_HD uint64_t
manager_key_of(const tr_kv_manager_t *m, const manager_prompt_t *s,
               uint32_t head, uint32_t i)
{
#ifdef MANAGER_KEEPS_KEYS
    (void) m;
    (void) head;
    return s->key[i];
#else
    tr_kv_stats_t stats;
    int from = manager_stats(m, s, head, i, &stats);

    return manager_key(m, s, head, i, &stats, from);
#endif
}

/* The keys of all tokens, where they are kept. */
TR_HD void
manager_keys(const tr_kv_manager_t *m, uint32_t head, manager_prompt_t *s)
{
#ifdef MANAGER_KEEPS_KEYS
    EACH (i, s->n) {
        tr_kv_stats_t stats;
        int from = manager_stats(m, s, head, i, &stats);

        s->key[i] = manager_key(m, s, head, i, &stats, from);
    }
#else
    (void) m;
    (void) head;
    (void) s;
#endif
}

/* cut[l]: the smallest key among the rank[l] best, by radix
 * selection from the highest digit down. */
TR_HD void
manager_cut(const tr_kv_manager_t *m, uint32_t head, uint32_t l,
            manager_prompt_t *s)
{
    EACH_FEW (j, 1) {
        s->cut[l] = s->rank[l] == 0 ? UINT64_MAX : 0;
        s->more = s->rank[l];
    }
    if (s->rank[l] == 0 || s->rank[l] >= s->n) {
        return;
    }
    for (int shift = 56; shift >= 0; shift -= 8) {
        EACH_FEW (j, 256) {
            s->digits[j] = 0;
        }
        EACH (i, s->n) {
            uint64_t key = manager_key_of(m, s, head, i);

            /* two shifts, since one by 64 is undefined */
            if (((key ^ s->cut[l]) >> shift) >> 8 == 0) {
                MANAGER_ADD(&s->digits[key >> shift & 255], 1);
            }
        }
        EACH_FEW (j, 1) {
            uint32_t digit = 255;

            while (s->digits[digit] < s->more) {
                s->more -= s->digits[digit--];
            }
            s->cut[l] |= (uint64_t) digit << shift;
        }
    }
}

#endif
