/*
 * kv_rule.h: what KV policies decide about a token, as inline functions that
 * the page manager (kv_manager/manager.h) calls on the host and on a device, so
 * that a decision is written once.
 *
 * A rule is what a decision depends on besides the token: the settings of a
 * policy, without names and levels.  It can be copied to a device;
 * alpha_of is then a pointer of that device.
 *
 * Decisions are the same bits everywhere: thresholds and shares are computed in
 * double precision and rounded once, significance in single precision, and no
 * product is fused with a sum (tr_kv_share).  Positions, lengths and scores are
 * as in kv_view.h: when N tokens are cached the last query was at position
 * N - 1, and the token at position t has seen N - 1 - t later queries.
 */
#ifndef TR_KV_RULE_H
#define TR_KV_RULE_H

#include "kv_view.h"

/* How a policy decides. */
typedef enum {
    TR_KV_RULE_FULL,      /* full: nothing ever leaves */
    TR_KV_RULE_PAGES,     /* quest: nor here, but not all is read */
    TR_KV_RULE_ALL,       /* all go to tier 0 and stay */
    TR_KV_RULE_THRESHOLD, /* diffkv */
    TR_KV_RULE_SHARE,     /* static: budgets by share of the length */
    TR_KV_RULE_BUDGET,    /* h2o: one budget, by sum */
    TR_KV_RULE_SINKS,     /* streamingllm: the first tokens */
    TR_KV_RULE_RECENT,    /* snapkv: by what the last queries looked at */
    TR_KV_RULE_STAGE      /* a prompt that goes on: new tokens go to tier 0 */
} tr_kv_rule_kind_t;

/* The fields of a rule; a policy (engine/kv/policy/kv_policy.h) has them,
 * too. */
#define TR_KV_RULE_FIELDS                                                      \
    tr_kv_rule_kind_t kind;                                                    \
    uint32_t n_levels;  /* 0: all stays uncompressed */                        \
    uint32_t window;    /* most recent tokens that no decision touches */      \
    uint32_t leaves;    /* tokens that leave a full window together: 1, or   \
                        * TR_KV_CHANNEL_TOKENS; of a prompt so many go to   \
                        * tiers that their number is a multiple of it */ \
    bool scored;        /* needs scores */                                     \
    bool by_sum;        /* candidates by sum instead of mean (tr_kv_seq_t) */  \
    bool base_position; /* threshold base: position + 1, else N */             \
    uint32_t observe;   /* 0, or scores of prompts count only this many of  \
                         * the last queries (TR_KV_OBSERVATION_WINDOW) */  \
    uint32_t read_from; /* first layer that reads selectively */               \
    /* thresholds are alpha / base */                                          \
    double alpha_top, alpha_high, alpha_low;                                   \
    const double                                                               \
        *alpha_of; /* NULL, or [layers][kv_heads][2] {high, low} that \
                             * override the above; owned by the policy, but \
                             * borrowed by copies of the struct */        \
    uint32_t layers_of, kv_heads_of;  /* shape of the model */                 \
    double fraction[TR_KV_TIERS_MAX]; /* budgets by share of the length */     \
    uint32_t budget[TR_KV_TIERS_MAX]; /* budgets in tokens */                  \
    uint32_t sinks; /* the first tokens that stay: tr_kv_rule_sinks */         \
    uint32_t pool;  /* width of snapkv's smoothing */

typedef struct {
    TR_KV_RULE_FIELDS
} tr_kv_rule_t;

/* How many of the first tokens of a prompt stand in front of the window.
 * streamingllm has them in its tier. */
TR_HD uint32_t
tr_kv_rule_sinks(const tr_kv_rule_t *r, uint32_t len)
{
    return r->kind == TR_KV_RULE_SINKS || r->window == 0 ? 0
           : r->sinks < len                              ? r->sinks
                                                         : len;
}

/* Queries at the end of a prompt that uncompressed pages count apart in `recent`. */
#define TR_KV_OBSERVATION_WINDOW 32u

/* One token of one head outside the window. */
typedef struct {
    uint32_t layer, kv_head; /* which head */
    uint32_t position;       /* of the token */
    uint32_t length;         /* N */
    float score;             /* attention by later queries (kv_view.h) */
} tr_kv_stats_t;

/* Significance of a token: score / later queries, 0 before the first.  In
 * single precision, as everywhere: thresholds compare with
 * (float) (alpha / base). */
TR_HD float
tr_kv_significance(float score, uint32_t position, uint32_t length)
{
    return position + 1 < length ? score / (float) (length - 1 - position) : 0;
}

/* A share of n tokens; `up` is what is added before the fraction is cut off. */
TR_HD uint32_t
tr_kv_share(double share, uint32_t n, double up)
{
#ifdef __CUDA_ARCH__
    return (uint32_t) __dadd_rn(__dmul_rn(share, (double) n), up);
#else
    double product = share * n;

    return (uint32_t) (product + up);
#endif
}

/* Budget `index` for n tokens: in tokens, or the share of them. */
TR_HD uint32_t
tr_kv_rule_budget(const tr_kv_rule_t *r, uint32_t index, uint32_t n)
{
    return r->fraction[index] > 0 ? tr_kv_share(r->fraction[index], n, 0.5)
                                  : r->budget[index];
}

/* A device cannot index registers: an array stays in them only when every index
 * is a constant, or that of an unrolled loop. */
#ifdef __CUDA_ARCH__
#define TR_KV_UNROLL _Pragma("unroll")
#else
#define TR_KV_UNROLL
#endif

/* v[i] of an array that may be in registers. */
TR_HD uint32_t
tr_kv_pick(const uint32_t v[TR_KV_TIERS_MAX], uint32_t i)
{
#ifdef __CUDA_ARCH__
    uint32_t value = 0;

    TR_KV_UNROLL
    for (uint32_t l = 0; l < TR_KV_TIERS_MAX; l++) {
        value += l == i ? v[l] : 0;
    }
    return value;
#else
    return v[i];
#endif
}

/* ---- thresholds --------------------------------------------------------- */

/* Thresholds of the levels, best first. */
TR_HD void
tr_kv_thresholds(const tr_kv_rule_t *r, uint32_t layer, uint32_t kv_head,
                 uint32_t position, uint32_t length, float t[TR_KV_TIERS_MAX])
{
    double base = r->base_position ? position + 1.0 : length;
    double high = r->alpha_high, low = r->alpha_low;
    float top, upper, lower;
    uint32_t n = r->n_levels;

    if (r->alpha_of != NULL) {
        const double *of = r->alpha_of
                           + 2 * ((size_t) layer * r->kv_heads_of + kv_head);

        high = of[0];
        low = of[1];
    }
    top = n > 2 ? (float) (r->alpha_top / base) : 0;
    upper = n > 1 ? (float) (high / base) : 0;
    lower = (float) (low / base);
    TR_KV_UNROLL
    for (uint32_t i = 0; i < TR_KV_TIERS_MAX; i++) {
        t[i] = i + 1 == n ? lower : i + 2 == n ? upper : top;
    }
}

/* The best level whose threshold is reached. */
TR_HD int
tr_kv_threshold_level(const tr_kv_rule_t *r, float significance, const float *t)
{
    TR_KV_UNROLL
    for (uint32_t i = 0; i < TR_KV_TIERS_MAX; i++) {
        if (i < r->n_levels && significance >= t[i]) {
            return (int) i;
        }
    }
    return TR_KV_NOWHERE;
}

TR_HD int
tr_kv_stats_level(const tr_kv_rule_t *r, const tr_kv_stats_t *m)
{
    float t[TR_KV_TIERS_MAX];

    tr_kv_thresholds(r, m->layer, m->kv_head, m->position, m->length, t);
    return tr_kv_threshold_level(
        r, tr_kv_significance(m->score, m->position, m->length), t);
}

/* Algorithm 1 of DiffKV, lines 8 to 12 and 16 to 18: what becomes of the least
 * significant token of `tier`. */
TR_HD int
tr_kv_threshold_downgrade(const tr_kv_rule_t *r, uint32_t tier,
                          const tr_kv_stats_t *candidate)
{
    int level = tr_kv_stats_level(r, candidate);

    return level >= 0 && level <= (int) tier ? TR_KV_STAYS : level;
}

/* ---- shares ------------------------------------------------------------- */

/* Tokens that the levels up to `level` may hold together. */
TR_HD uint32_t
tr_kv_share_upto(const tr_kv_rule_t *r, uint32_t level, uint32_t n)
{
    double share = r->fraction[1];

    if (r->n_levels > 1) {
        share = level == 0 ? r->fraction[0] : r->fraction[0] + r->fraction[1];
    }
    return tr_kv_share(share, n, 0.5);
}

TR_HD uint32_t
tr_kv_share_held(const tr_kv_rule_t *r, const uint32_t *count)
{
    return r->n_levels > 1 ? count[0] + count[1] : count[0];
}

TR_HD int
tr_kv_share_leave(const tr_kv_rule_t *r, const tr_kv_stats_t *token,
                  const uint32_t *count)
{
    uint32_t last = r->n_levels - 1;

    if (tr_kv_share_held(r, count) < tr_kv_share_upto(r, last, token->length)
        && tr_kv_share_upto(r, 0, token->length) > 0) {
        return 0;
    }
    return (int) last;
}

TR_HD int
tr_kv_share_downgrade(const tr_kv_rule_t *r, uint32_t tier,
                      const tr_kv_stats_t *candidate, const uint32_t *count)
{
    uint32_t last = r->n_levels - 1;

    if (tier < last) {
        return count[0] > tr_kv_share_upto(r, 0, candidate->length)
                   ? 1
                   : TR_KV_STAYS;
    }
    return tr_kv_share_held(r, count)
                   > tr_kv_share_upto(r, last, candidate->length)
               ? TR_KV_NOWHERE
               : TR_KV_STAYS;
}

/* ---- ranks -------------------------------------------------------------- */

/* A token by value, then by position: the larger is better, so that of equals
 * the lowest position goes first, as candidates do.  What is not above 0 counts
 * as 0. */
TR_HD uint64_t
tr_kv_rank_key(float value, uint32_t position)
{
    uint32_t bits = 0;

    if (value > 0) { /* then floats are ordered as their bits */
        memcpy(&bits, &value, 4);
    }
    return (uint64_t) bits << 32 | position;
}

/* The tier of a token of this rank: tier l begins at cut[l].  Nobody goes
 * up. */
TR_HD int
tr_kv_rank_level(const tr_kv_rule_t *r, uint64_t key, const uint64_t *cut,
                 int from)
{
    int l = 0, n = (int) r->n_levels;

    while (l < n && key < cut[l]) {
        l++;
    }
    if (l == n) {
        return TR_KV_NOWHERE;
    }
    return l < from ? from : l;
}

/* ---- the last queries --------------------------------------------------- */

/* Is a token of a prompt ranked?  What was not counted for the last queries was
 * kept before, and is above everything that a softmax can sum up to. */
#define TR_KV_KEPT 1e30f

TR_HD bool
tr_kv_recent_counts(int from, float recent)
{
    return from == TR_KV_NOWHERE && recent >= 0;
}

/* The largest sum so far, of a token at position a, when its neighbour at b,
 * which counts, had `recent`. */
TR_HD float
tr_kv_recent_pool(const tr_kv_rule_t *r, float most, uint32_t a, uint32_t b,
                  float recent)
{
    return (a > b ? a - b : b - a) <= r->pool / 2 && recent > most ? recent
                                                                   : most;
}

/* ---- by kind ------------------------------------------------------------ */

/* Decision 2: what the token that leaves the window becomes. */
TR_HD int
tr_kv_rule_leave(const tr_kv_rule_t *r, const tr_kv_stats_t *token,
                 const uint32_t *count)
{
    switch (r->kind) {
    case TR_KV_RULE_THRESHOLD:
        return tr_kv_stats_level(r, token);
    case TR_KV_RULE_SHARE:
        return tr_kv_share_leave(r, token, count);
    case TR_KV_RULE_SINKS:
        return token->position < r->sinks ? 0 : TR_KV_NOWHERE;
    default:
        return 0;
    }
}

/* Decision 3: what becomes of the least significant token of `tier`. */
TR_HD int
tr_kv_rule_downgrade(const tr_kv_rule_t *r, uint32_t tier,
                     const tr_kv_stats_t *candidate, const uint32_t *count)
{
    switch (r->kind) {
    case TR_KV_RULE_THRESHOLD:
        return tr_kv_threshold_downgrade(r, tier, candidate);
    case TR_KV_RULE_SHARE:
        return tr_kv_share_downgrade(r, tier, candidate, count);
    case TR_KV_RULE_BUDGET:
        return tr_kv_pick(count, tier) > r->budget[1] ? TR_KV_NOWHERE
                                                      : TR_KV_STAYS;
    default:
        return TR_KV_STAYS;
    }
}

/* Decision 1, for rules that rank the n tokens of a prompt: how many tokens the
 * tiers up to l hold together, for each of so many tiers; 0: no ranks.
 * counting: tokens for which tr_kv_recent_counts. */
TR_HD uint32_t
tr_kv_rule_ranks(const tr_kv_rule_t *r, uint32_t length, uint32_t n,
                 uint32_t counting, uint32_t k[TR_KV_TIERS_MAX])
{
    if (r->kind == TR_KV_RULE_SHARE) {
        for (uint32_t l = 0; l < r->n_levels; l++) {
            k[l] = tr_kv_share_upto(r, l, length);
        }
        return r->n_levels;
    }
    if (r->kind == TR_KV_RULE_BUDGET) {
        k[0] = r->budget[1];
        return 1;
    }
    if (r->kind == TR_KV_RULE_RECENT) {
        k[0] = n - counting + tr_kv_rule_budget(r, 0, counting);
        return 1;
    }
    return 0;
}

/* Its value in that order, but for TR_KV_RULE_RECENT. */
TR_HD float
tr_kv_rule_rank_value(const tr_kv_rule_t *r, const tr_kv_stats_t *m)
{
    return r->kind == TR_KV_RULE_BUDGET
               ? m->score
               : tr_kv_significance(m->score, m->position, m->length);
}

/* Decision 1 for one token of a prompt, which tier `from` holds now, or none.
 * t: the thresholds at this token; key and cut: of the ranks. */
TR_HD int
tr_kv_rule_place(const tr_kv_rule_t *r, const tr_kv_stats_t *m, int from,
                 const float *t, uint64_t key, const uint64_t *cut)
{
    int level;

    switch (r->kind) {
    case TR_KV_RULE_THRESHOLD:
        level = tr_kv_threshold_level(
            r, tr_kv_significance(m->score, m->position, m->length), t);
        return level >= 0 && level < from ? from : level;
    case TR_KV_RULE_SHARE:
    case TR_KV_RULE_BUDGET:
    case TR_KV_RULE_RECENT:
        return tr_kv_rank_level(r, key, cut, from);
    case TR_KV_RULE_SINKS:
        return m->position < r->sinks ? 0 : TR_KV_NOWHERE;
    case TR_KV_RULE_STAGE:
        return from > 0 ? from : 0;
    default:
        return 0;
    }
}

/* The rule by which a prompt is compressed while it is still being computed,
 * behind each so many of its tokens: r decides at its end. */
TR_HD tr_kv_rule_t
tr_kv_rule_stage(const tr_kv_rule_t *r)
{
    tr_kv_rule_t stage = *r;

    stage.kind = TR_KV_RULE_STAGE;
    return stage;
}

/* Decision 5: how many of n uncompressed pages a step reads; 0: all. */
TR_HD uint32_t
tr_kv_rule_read(const tr_kv_rule_t *r, uint32_t n, uint32_t page_tokens)
{
    uint32_t pages;

    if (r->kind != TR_KV_RULE_PAGES) {
        return 0;
    }
    pages = r->budget[0] / page_tokens + (r->budget[0] % page_tokens != 0);
    if (r->fraction[0] > 0) {
        pages = tr_kv_share(r->fraction[0], n, 0.999999);
    }
    pages = pages > 0 ? pages : 1;
    return pages < n ? pages : 0;
}

#endif
