/*
 * kv_record.h: a record of sequences in a KV cache that knows nothing of pages:
 * for each token of each head, where it is and what its score is.  It follows
 * steps and ends of prompts by the policies' own rules, and is held against the
 * cache through the tables alone (kv_rig.h).
 */
#ifndef KV_RECORD_H
#define KV_RECORD_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "kv_rig.h"

static const tr_kv_policy_t *rig_policy_list[RIG_POLICIES];

typedef struct {
    int8_t place[LEN_MAX]; /* list, IN_WINDOW, DENSE, GONE */
    float score[LEN_MAX], recent[LEN_MAX];
} record_t;

typedef struct {
    int32_t slot; /* -1: closed */
    const tr_kv_policy_t *policy;
    tr_kv_policy_t begun; /* for its last prompt */
    bool dense, out;
    bool pending;  /* reserved a step that has not run */
    uint32_t len;  /* stored, a pending token included */
    uint32_t goal; /* where the prompt ends */
    uint32_t window, window_from, base;
    record_t *head; /* [heads] */
} sequence_t;

typedef struct {
    tr_kv_cache_t *kv[2]; /* the second one, if any, is asked in batches */
    uint32_t n_kv, heads, n;
    sequence_t *seq; /* [n] */
    uint64_t ops, again;
    uint8_t *before; /* a snapshot */
} world_t;

/* ---- the whole state ---------------------------------------------------- */

/* Copies all that a call could change; returns how many bytes.  Moves are left
 * out: those of a step that was not granted mean nothing. */
static size_t
snapshot(const tr_kv_cache_t *kv, uint8_t *out)
{
    size_t rows = (size_t) kv->config.slots * kv->heads;
    struct {
        const void *at;
        size_t size;
    } part[] = {
        { kv->tables, kv->tables_size },
        { kv->seq, kv->config.slots * sizeof(*kv->seq) },
        { kv->count, rows * TR_KV_LISTS_MAX * sizeof(*kv->count) },
        { kv->victim, rows * TR_KV_LISTS_MAX * sizeof(*kv->victim) },
        { kv->slot, kv->config.slots * sizeof(*kv->slot) },
        { &kv->pages.start, 8 },
        { &kv->pages.end, 8 },
        { kv->pages.ring, kv->pages.n * 4 },
        { kv->pages.owner, kv->pages.n * 4 },
        { &kv->swap.start, 8 },
        { &kv->swap.end, 8 },
        { kv->swap.ring, kv->swap.n * 4 },
        { kv->swap.owner, kv->swap.n * 4 },
        { &kv->totals, sizeof(kv->totals) },
    };
    size_t n = 0;

    for (size_t i = 0; i < sizeof(part) / sizeof(part[0]); i++) {
        if (out != NULL) {
            memcpy(out + n, part[i].at, part[i].size);
        }
        n += part[i].size;
    }
    return n;
}

/* Takes a snapshot of every manager. */
static void
remember(world_t *w)
{
    size_t size = snapshot(w->kv[0], NULL);

    for (uint32_t i = 0; i < w->n_kv; i++) {
        snapshot(w->kv[i], w->before + i * size);
    }
}

/* TR_AGAIN: everything is as it was. */
static void
require_unchanged(world_t *w)
{
    size_t size = snapshot(w->kv[0], NULL);
    uint8_t *now = w->before + 2 * size;

    for (uint32_t i = 0; i < w->n_kv; i++) {
        snapshot(w->kv[i], now);
        REQUIRE(memcmp(now, w->before + i * size, size) == 0);
    }
    w->again++;
}

static void
require_twins(world_t *w)
{
    size_t size = snapshot(w->kv[0], NULL);

    if (w->n_kv == 2) {
        snapshot(w->kv[0], w->before);
        snapshot(w->kv[1], w->before + size);
        REQUIRE(memcmp(w->before, w->before + size, size) == 0);
    }
}

/* ---- the record's own rules --------------------------------------------- */

static bool
list_scored(const sequence_t *q, int list)
{
    return q->policy->level[list].scored;
}

static float
significance(const sequence_t *q, const record_t *r, uint32_t pos, uint32_t n)
{
    return q->policy->by_sum ? r->score[pos]
                             : tr_kv_significance(r->score[pos], pos, n);
}

/* The least significant token of a list, the first of equals. */
static uint32_t
least(const sequence_t *q, const record_t *r, int list, uint32_t n,
      uint32_t end)
{
    uint32_t best = UINT32_MAX;

    for (uint32_t i = 0; i < end; i++) {
        if (r->place[i] == list
            && (best == UINT32_MAX
                || significance(q, r, i, n) < significance(q, r, best, n))) {
            best = i;
        }
    }
    return best;
}

static void
count_lists(const record_t *r, uint32_t end, uint32_t count[TR_KV_LISTS_MAX])
{
    memset(count, 0, TR_KV_LISTS_MAX * sizeof(*count));
    for (uint32_t i = 0; i < end; i++) {
        if (r->place[i] >= 0 && r->place[i] < (int) TR_KV_LISTS_MAX) {
            count[r->place[i]]++;
        }
    }
}

/* Algorithm 1 for one head: n tokens so far, `pos` leaves. */
static void
record_leave(const sequence_t *q, record_t *r, uint32_t n, uint32_t pos)
{
    uint32_t count[TR_KV_LISTS_MAX], victim;
    tr_kv_mark_t mark = { .position = pos,
                          .length = n,
                          .score = r->score[pos] };
    int to, down;

    count_lists(r, pos, count);
    to = q->begun.leave(&q->begun, &mark, count);
    r->place[pos] = (int8_t) to;
    if (to < 0 || !list_scored(q, to)) {
        return;
    }
    count[to]++;
    victim = least(q, r, to, n, pos + 1);
    mark.position = victim;
    mark.score = r->score[victim];
    down = q->begun.downgrade(&q->begun, (uint32_t) to, &mark, count);
    if (down != TR_KV_STAYS) {
        r->place[victim] = (int8_t) down;
    }
}

/* A step was granted: everybody to where they belong. */
static void
record_step(const world_t *w, sequence_t *q)
{
    uint32_t n = q->len, leaves = 0, from = q->window_from;

    if (q->window == 0) {
        leaves = 1;
        from = n;
    } else if (n - q->window_from == q->window) {
        leaves = q->policy->leaves;
    }
    for (uint32_t head = 0; head < w->heads; head++) {
        record_t *r = &q->head[head];

        r->score[n] = r->recent[n] = 0;
        r->place[n] = IN_WINDOW;
        for (uint32_t i = 0; i < leaves; i++) {
            record_leave(q, r, n, from + i);
        }
    }
    q->window_from = q->window == 0 ? n + 1 : from + leaves;
    q->base = ++q->len;
    q->pending = true;
}

/* ---- what kernels do in a step ------------------------------------------ */

/* Verifies one list's tokens against the record, gives three tokens of the head
 * more score, and finds the victim. */
static void
attend_list(const tr_kv_view_t *v, const sequence_t *q, const record_t *r,
            int32_t slot, uint32_t head, uint32_t l, const uint32_t *more)
{
    size_t at = (size_t) slot * v->layers * v->lists + head;
    const int32_t *row = v->tables + at * v->table_len;
    uint32_t count = v->count[at * TR_KV_LISTS_MAX + l], first = 0;
    tr_kv_victim_t best = { INFINITY, 0 };
    uint64_t seen = 0;

    for (uint32_t i = 0; i < count && list_scored(q, (int) l); i++) {
        rig_place_t p = rig_listed(v, &v->seq[slot], row, l, i);
        uint32_t pos = rig_position(p);
        float score = rig_score(p), own;

        REQUIRE(pos < q->len && r->place[pos] == (int) l);
        REQUIRE(score == r->score[pos]);
        seen += (uint64_t) pos * pos + 1;
        for (uint32_t k = 0; k < 3; k++) {
            score += pos == more[k] ? (float) (k + 1) * 0.125f : 0;
        }
        memcpy(p.score, &score, 4);
        own = q->policy->by_sum ? score
                                : tr_kv_significance(score, pos, q->len);
        if (own < best.significance
            || (own == best.significance && pos < first)) {
            best = (tr_kv_victim_t){ own, i };
            first = pos;
        }
    }
    for (uint32_t pos = 0; pos < q->len; pos++) { /* each one, once */
        if (r->place[pos] == (int) l) {
            count--;
            seen -= list_scored(q, (int) l) ? (uint64_t) pos * pos + 1 : 0;
        }
    }
    REQUIRE(count == 0 && seen == 0);
    v->victim[at * TR_KV_LISTS_MAX + l] = best;
}

static void
attend(const tr_kv_view_t *v, const sequence_t *q, int32_t slot, uint32_t head,
       const uint32_t *more)
{
    const tr_kv_seq_t *s = &v->seq[slot];
    size_t at = (size_t) slot * v->layers * v->lists + head;
    const int32_t *row = v->tables + at * v->table_len;
    const record_t *r = &q->head[head];

    for (uint32_t l = 0; l < s->n_lists; l++) {
        attend_list(v, q, r, slot, head, l, more);
    }
    for (uint32_t pos = s->window_from; pos < s->base; pos++) {
        rig_place_t p = rig_windowed(v, s, row, pos);
        float score = rig_score(p);

        REQUIRE(r->place[pos] == IN_WINDOW);
        if (p.score != NULL) {
            REQUIRE(score == r->score[pos]);
            for (uint32_t k = 0; k < 3; k++) {
                score += pos == more[k] ? (float) (k + 1) * 0.125f : 0;
            }
            memcpy(p.score, &score, 4);
        }
    }
}

/* The pending step runs. */
static void
run_step(world_t *w, sequence_t *q)
{
    tr_kv_view_t v;

    for (uint32_t head = 0; head < w->heads; head++) {
        uint32_t more[3] = { rig_random(q->len), rig_random(q->len),
                             rig_random(q->len) };

        for (uint32_t i = 0; i < w->n_kv; i++) {
            tr_kv_view(w->kv[i], &v);
            REQUIRE(v.seq[q->slot].base == q->len
                    && v.seq[q->slot].window_from == q->window_from);
            rig_append(&v, q->slot, head);
            attend(&v, q, q->slot, head, more);
        }
        for (uint32_t k = 0; k < 3; k++) {
            q->head[head].score[more[k]] += (float) (k + 1) * 0.125f;
        }
    }
    q->pending = false;
}

/* Scores of dense tokens [from, q->len). */
static void
store_dense(world_t *w, sequence_t *q, uint32_t from)
{
    tr_kv_view_t v;

    for (uint32_t head = 0; head < w->heads; head++) {
        record_t *r = &q->head[head];

        for (uint32_t pos = from; pos < q->len; pos++) {
            r->place[pos] = DENSE;
            r->score[pos] = (float) rig_random(17) * 0.25f;
            r->recent[pos] = (float) rig_random(9) * 0.25f;
            for (uint32_t i = 0; i < w->n_kv; i++) {
                rig_place_t p;

                tr_kv_view(w->kv[i], &v);
                p = rig_dense(&v, &v.seq[q->slot],
                              tr_kv_row(w->kv[i], q->slot, head), pos);
                memcpy(p.score, &r->score[pos], 4);
                memcpy(p.recent, &r->recent[pos], 4);
            }
        }
    }
}

/* ---- the end of a prompt, in the record --------------------------------- */

static void
record_compress(const world_t *w, sequence_t *q)
{
    uint32_t n = q->len, from, first, w_observe;
    tr_kv_policy_t p;

    tr_kv_policy_for(q->policy, n, &p);
    from = n > p.window ? n - p.window : 0;
    from = p.leaves > 1 ? (from + 31) / 32 * 32 : from;
    from = from < q->window_from ? q->window_from : from;
    first = n > p.observe ? n - p.observe : 0;
    first = first < q->base ? q->base : first;
    w_observe = n - first;
    for (uint32_t head = 0; head < w->heads; head++) {
        record_t *r = &q->head[head];

        for (uint32_t pos = 0; pos < n; pos++) {
            int8_t was = r->place[pos], old = was, to;
            tr_kv_prompt_t mark = { .length = n, .n = 1 };

            if (was == GONE) {
                continue;
            }
            if (was == DENSE && p.observe != 0) {
                r->score[pos] = tr_kv_observed(r->recent[pos], n - 1 - pos,
                                               w_observe);
            }
            if (!p.scored) {
                r->score[pos] = 0;
            }
            if (pos >= from) {
                REQUIRE(was == IN_WINDOW || was == DENSE);
                r->place[pos] = IN_WINDOW;
                continue;
            }
            old = was == IN_WINDOW || was == DENSE ? TR_KV_NOWHERE : was;
            mark.position = &pos;
            mark.from = &old;
            mark.score = &r->score[pos];
            p.prompt(&p, &mark, &to);
            r->place[pos] = to;
        }
    }
    q->begun = p;
    q->window = p.window;
    q->window_from = from;
    q->base = n;
    q->dense = false;
}

/* After compress: tokens and victims, without a step between. */
static void
verify_compressed(world_t *w, sequence_t *q)
{
    static const uint32_t none[3] = { UINT32_MAX, UINT32_MAX, UINT32_MAX };
    tr_kv_view_t v;

    for (uint32_t i = 0; i < w->n_kv; i++) {
        tr_kv_view(w->kv[i], &v);
        for (uint32_t head = 0; head < w->heads; head++) {
            tr_kv_victim_t *at = v.victim
                                 + tr_kv_head(&v, q->slot, 0, 0)
                                       * TR_KV_LISTS_MAX
                                 + head * TR_KV_LISTS_MAX;
            tr_kv_victim_t set[TR_KV_LISTS_MAX];

            memcpy(set, at, sizeof(set));
            attend(&v, q, q->slot, head, none);
            for (uint32_t l = 0; l < q->policy->n_levels; l++) {
                REQUIRE(set[l].significance == at[l].significance
                        && set[l].index == at[l].index);
            }
        }
    }
}

#endif
