/*
 * manager_head.h: what one request wants of a step, and what one head of it
 * decides (Algorithm 1 of DiffKV), reading what the last step left.
 */
#ifndef TR_KV_MANAGER_HEAD_H
#define TR_KV_MANAGER_HEAD_H

#include "manager_core.h"

/* ---- what a request wants ----------------------------------------------- */

TR_HD void
manager_need_uncompressed(const tr_kv_manager_t *m, uint32_t base,
                          manager_need_t *w)
{
    const tr_kv_slot_t *s = &m->slot[w->slot];
    uint32_t want = manager_ceil(w->len - base, m->place[0].tokens);
    uint32_t all = manager_ceil(w->len, m->place[0].tokens);
    uint32_t near = manager_near(m, &m->seq[w->slot]);
    uint64_t pages;

    w->kind = NEED_UNCOMPRESSED;
    w->uncompressed_pages = s->uncompressed_pages;
    w->more = want > s->uncompressed_pages ? want - s->uncompressed_pages : 0;
    w->near_more = near != 0 && all > s->near_pages ? all - s->near_pages : 0;
    pages = (uint64_t) w->more * (m->heads - near)
            + (uint64_t) w->near_more * near;
    /* no pool has as many as do not fit the table */
    w->pages = (near != 0 ? all : want) > m->view.at_window
                       || pages >= MANAGER_NEVER
                   ? MANAGER_NEVER
                   : (uint32_t) pages;
}

/* The page of position n, of heads that slide. */
TR_HD void
manager_need_near(const tr_kv_manager_t *m, uint32_t n, manager_need_t *w)
{
    const tr_kv_slot_t *s = &m->slot[w->slot];

    if (manager_near(m, &m->seq[w->slot]) != 0
        && n / m->place[0].tokens >= s->near_pages) {
        w->near_turns = s->near_from < manager_seen_from(m, n);
        w->near_more = !w->near_turns;
    }
}

/* Who leaves, and where its score is. */
TR_HD void
manager_need_step(const tr_kv_manager_t *m, uint32_t n, manager_need_t *w)
{
    const tr_kv_seq_t *q = &m->seq[w->slot];
    const tr_kv_segments_t *place = &m->place[q->window_layout];
    uint32_t at;

    w->kind = NEED_STEP;
    w->n = n;
    manager_need_near(m, n, w);
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
        at = tr_kv_window_entry(q, q->window_from);
        w->scored = place->score != 0;
        w->entry = m->view.at_window + at / place->tokens;
        w->offset = place->score + at % place->tokens * 4;
    }
    w->window_page = n < q->sinks + q->window && n % place->tokens == 0;
}

/* pages: not yet those of a step's heads. */
TR_HD void
manager_need(const tr_kv_manager_t *m, const tr_kv_page_request_t *ask,
             manager_need_t *w)
{
    const tr_kv_slot_t *s;
    uint32_t base;

    memset(w, 0, sizeof(*w));
    w->slot = ask->slot;
    w->kind = NEED_IDLE;
    if (ask->slot < 0) {
        return;
    }
    w->kind = NEED_REFUSED;
    if ((uint32_t) ask->slot >= m->size.slots) {
        return;
    }
    s = &m->slot[ask->slot];
    base = m->seq[ask->slot].base; /* comes from memory together with s */
    if (!s->open || s->out) {
        return;
    }
    w->kind = NEED_NOTHING;
    w->len = ask->len == TR_KV_NEXT ? s->tokens + 1 : ask->len;
    w->n = s->tokens;
    w->near_pages = s->near_pages;
    w->near_from = s->near_from;
    if (w->len <= s->tokens) {
        return;
    }
    if (w->len > m->size.max_len
        || (ask->from != TR_KV_ANY && ask->from != s->tokens)
        || (!s->uncompressed && w->len != s->tokens + 1)) {
        w->pages = MANAGER_NEVER;
    } else if (s->uncompressed) {
        manager_need_uncompressed(m, base, w);
    } else {
        manager_need_step(m, base, w);
    }
}

/* ---- one head's plan ---------------------------------------------------- */

/* What one head has found out. */
typedef struct {
#ifdef __CUDA_ARCH__
    uint32_t count[TR_KV_TIERS_MAX];
#else
    const uint32_t *count; /* where they are: in the cache, or on their way */
#endif
    tr_kv_stats_t stats; /* of the least significant token of tier `to` */
    int to;              /* where the leaving token goes */
    bool look; /* that token is the tier's candidate, not the leaving one: */
    uint32_t index; /* its place in the tier, */
    uint32_t entry; /* and the page's in the table */
} manager_half_t;

TR_HD float
manager_float(const tr_kv_manager_t *m, int32_t page, uint32_t offset)
{
    return *(const float *) (const void *) (tr_kv_page_at(&m->view, page)
                                            + offset);
}

/* candidate[tier] of an array that may be in registers (tr_kv_pick). */
TR_HD tr_kv_candidate_t
manager_pick_candidate(const tr_kv_candidate_t candidate[TR_KV_TIERS_MAX],
                       int tier)
{
#ifdef __CUDA_ARCH__
    tr_kv_candidate_t v = candidate[0];

    TR_KV_UNROLL
    for (int l = 1; l < (int) TR_KV_TIERS_MAX; l++) {
        v.significance = l == tier ? candidate[l].significance : v.significance;
        v.index = l == tier ? candidate[l].index : v.index;
    }
    return v;
#else
    return candidate[tier];
#endif
}

/* Is token i of tier l frozen?  No candidate is; but a tier that has none says 0,
 * which a score that is not a number would choose. */
TR_HD bool
manager_is_frozen(const tr_kv_manager_t *m, const tr_kv_seq_t *q, int32_t slot,
                  uint32_t head, int l, uint32_t i)
{
    const uint32_t *frozen = manager_frozen(m, q, slot, head);

    return frozen != NULL && i < frozen[l];
}

/* Where the leaving token goes, and who is the least significant of that tier:
 * it, or one that is already there, which manager_look reads.  A device reads
 * counts and candidates first, so that they come from memory together with the
 * score. */
TR_HD void
manager_leave(const tr_kv_manager_t *m, const manager_need_t *w, uint32_t head,
              manager_half_t *h)
{
    const tr_kv_seq_t *q = &m->seq[w->slot];
    const int32_t *row = manager_row(m, w->slot, head);
    const uint32_t *count = manager_counts(m, w->slot, head);
    const tr_kv_candidate_t *candidate = m->candidate
                                         + manager_head(m, w->slot, head)
                                               * TR_KV_TIERS_MAX;
    tr_kv_candidate_t least;
    float own;

#ifdef __CUDA_ARCH__
    tr_kv_candidate_t copy[TR_KV_TIERS_MAX];

    for (uint32_t l = 0; l < TR_KV_TIERS_MAX; l++) {
        h->count[l] = count[l];
        copy[l] = candidate[l];
    }
    candidate = copy;
#else
    h->count = count;
#endif
    h->stats.layer = head / m->view.kv_heads;
    h->stats.kv_head = head % m->view.kv_heads;
    h->stats.position = w->leave_pos;
    h->stats.length = w->n;
    h->stats.score = w->scored ? manager_float(m, row[w->entry], w->offset) : 0;
    h->to = tr_kv_rule_leave(&m->slot[w->slot].rule, &h->stats, h->count);
    MANAGER_ASSERT(
        h->to == TR_KV_NOWHERE
        || (h->to >= 0 && h->to < (int) m->slot[w->slot].rule.n_levels));
    h->look = false;
    h->index = 0;
    if (h->to < 0 || m->place[q->tier_layout[h->to]].score == 0) {
        return;
    }
    least = manager_pick_candidate(candidate, h->to);
    own = q->by_sum ? h->stats.score
                    : tr_kv_significance(h->stats.score, w->leave_pos, w->n);
    /* of equals the lowest position: those in the tier came before */
    if (!(own < least.significance)
        && tr_kv_pick(h->count, (uint32_t) h->to) != 0
        && !manager_is_frozen(m, q, w->slot, head, h->to, least.index)) {
        h->look = true;
        h->index = least.index;
        h->entry = tr_kv_tier_entry(
            &m->view, (uint32_t) h->to,
            h->index / m->place[q->tier_layout[h->to]].tokens);
        MANAGER_PREFETCH(row + h->entry);
    }
}

/* What manager_look reads comes from memory. */
TR_HD void
manager_look_ahead(const tr_kv_manager_t *m, const manager_need_t *w,
                   uint32_t head, const manager_half_t *h)
{
    if (h->look) {
        const tr_kv_segments_t
            *place = &m->place[m->seq[w->slot].tier_layout[h->to]];
        const uint8_t *page = tr_kv_page_at(&m->view,
                                            manager_row(m, w->slot,
                                                        head)[h->entry]);
        uint32_t at = h->index % place->tokens;

        MANAGER_PREFETCH(page + place->score + at * 4);
        MANAGER_PREFETCH(page + place->position + at * place->position_bytes);
    }
}

/* The tier's candidate in place of the leaving token's statistics. */
TR_HD void
manager_look(const tr_kv_manager_t *m, const manager_need_t *w, uint32_t head,
             manager_half_t *h)
{
    if (h->look) {
        const tr_kv_segments_t
            *place = &m->place[m->seq[w->slot].tier_layout[h->to]];
        int32_t page = manager_row(m, w->slot, head)[h->entry];
        uint32_t at = h->index % place->tokens;

        h->stats.score = manager_float(m, page, place->score + at * 4);
        h->stats.position = manager_position(m, place, page, at);
    }
}

/* Counts as they are after a move. */
TR_HD void
manager_apply(const tr_kv_move_t *move, uint32_t *count)
{
    if (move->to >= 0) {
        count[move->to] += move->leaves;
    }
    if (move->candidate_from >= 0) {
        count[move->candidate_from]--;
        if (move->candidate_to >= 0) {
            count[move->candidate_to]++;
        }
    }
}

/* The head's move; returns the tier that needs a page, or TR_KV_NOWHERE. */
TR_HD int8_t
manager_move(const tr_kv_manager_t *m, const manager_need_t *w,
             const manager_half_t *h, tr_kv_move_t *move)
{
    const tr_kv_seq_t *q = &m->seq[w->slot];
    const uint32_t *count = h->count;
    int grows = h->to, down = TR_KV_STAYS;

    move->to = (int8_t) h->to;
    move->leaves = (uint8_t) w->leaves;
    move->leave_pos = w->leave_pos;
    if (h->to < 0) {
        return TR_KV_NOWHERE;
    }
    move->index = tr_kv_pick(count, (uint32_t) h->to);
    if (w->leaves == 1 && m->place[q->tier_layout[h->to]].score != 0) {
        uint32_t after[TR_KV_TIERS_MAX];

        for (uint32_t l = 0; l < TR_KV_TIERS_MAX; l++) {
            after[l] = count[l] + (l == (uint32_t) h->to);
        }
        down = tr_kv_rule_downgrade(&m->slot[w->slot].rule, (uint32_t) h->to,
                                    &h->stats, after);
    }
    MANAGER_ASSERT(
        down == TR_KV_STAYS || down == TR_KV_NOWHERE
        || (down > h->to && down < (int) m->slot[w->slot].rule.n_levels));
    if (down != TR_KV_STAYS) {
        grows = down;
        if (h->look) { /* it makes room for the one that comes */
            move->candidate_from = (int8_t) h->to;
            move->candidate_to = (int8_t) down;
            move->candidate_index = h->index;
            move->candidate_target = down >= 0
                                         ? tr_kv_pick(count, (uint32_t) down)
                                         : 0;
            move->index = h->index;
        } else { /* it is the one that comes */
            move->to = (int8_t) down;
            move->index = down >= 0 ? tr_kv_pick(count, (uint32_t) down) : 0;
        }
    }
    return grows >= 0
                   && tr_kv_pick(count, (uint32_t) grows)
                              % m->place[q->tier_layout[grows]].tokens
                          == 0
               ? (int8_t) grows
               : TR_KV_NOWHERE;
}

/* A head's move when nobody leaves: the window fills. */
TR_HD tr_kv_move_t
manager_no_move(void)
{
    tr_kv_move_t move;

    memset(&move, 0, sizeof(move));
    move.to = TR_KV_STAYS;
    move.candidate_from = TR_KV_STAYS;
    move.candidate_to = TR_KV_NOWHERE;
    return move;
}

#endif
