/*
 * What the policies diffkv, static and h2o should do, for tests: a plain list of
 * tokens with levels for each head, in double precision, written from section 4
 * of DiffKV (SOSP 2025), from H2O and from docs/kv-cache.md without a look at
 * the engine.  It has no pages, no tables, no moves, and scans everything at
 * every step.
 *
 * Sums are exact here and in the cache (the test sees to that); means and
 * thresholds are rounded once in either precision.  Where double and single
 * precision disagree the values must be within a few units of rounding of each
 * other; the oracle then follows single precision, and counts.
 */
#ifndef TR_TEST_KV_ORACLE_H
#define TR_TEST_KV_ORACLE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdbool.h>

#define LAYERS 2u
#define LISTS 2u
#define HEADS (LAYERS * LISTS)
#define TOKENS_MAX 640u
#define GONE (-1)
#define IN_WINDOW (-3)

/* Relative distance at which single precision may decide otherwise. */
#define NEAR 1e-6

typedef enum { DIFFKV, STATIC, H2O } rule_t;

typedef struct {
    int level; /* 0, 1, .., GONE or IN_WINDOW */
    double sum;
    float single; /* the same sum */
    double recent;
} token_t;

typedef struct {
    rule_t rule;
    uint32_t n_levels, window, observe;
    bool base_position;
    double alpha[HEADS][3]; /* diffkv: of level 0, 1, .. */
    double share[2]; /* static: of level 0, 1; h2o: of all, in share[0] */
    uint32_t heavy;  /* h2o: tokens outside the window */
    uint32_t length;
    token_t token[HEADS][TOKENS_MAX];
} oracle_t;

static uint64_t decisions, near_cases;

/* What a token counts when the last query was at length - 1. */
static double
worth(const oracle_t *o, uint32_t head, uint32_t t, uint32_t length)
{
    const token_t *at = &o->token[head][t];

    if (o->rule == H2O) {
        return at->sum;
    }
    return t + 1 < length ? at->sum / (length - 1.0 - t) : 0;
}

static float
worth_single(const oracle_t *o, uint32_t head, uint32_t t, uint32_t length)
{
    const token_t *at = &o->token[head][t];

    if (o->rule == H2O) {
        return at->single;
    }
    return t + 1 < length ? at->single / (float) (length - 1 - t) : 0;
}

/* Both precisions must say the same of what is not near. */
static void
agree(bool same, double a, double b)
{
    if (!same) {
        assert_true(fabs(a - b) <= NEAR * (fabs(a) + fabs(b)));
        near_cases++;
    }
}

/* diffkv: the first level whose threshold the token reaches. */
static int
classify(const oracle_t *o, uint32_t head, uint32_t t, uint32_t length)
{
    double base = o->base_position ? t + 1.0 : length;
    double m = worth(o, head, t, length);
    float s = worth_single(o, head, t, length);
    int level = GONE;

    decisions++;
    for (int l = (int) o->n_levels - 1; l >= 0; l--) {
        double threshold = o->alpha[head][l] / base;

        if (s >= (float) threshold) {
            level = l;
        }
        agree((m >= threshold) == (s >= (float) threshold), m, threshold);
    }
    return level;
}

/* The least token of a level; of equals the lowest position. */
static uint32_t
least(const oracle_t *o, uint32_t head, int level, uint32_t length)
{
    uint32_t best = UINT32_MAX, single = UINT32_MAX;

    decisions++;
    for (uint32_t t = 0; t <= length; t++) {
        if (o->token[head][t].level != level) {
            continue;
        }
        if (best == UINT32_MAX
            || worth(o, head, t, length) < worth(o, head, best, length)) {
            best = t;
        }
        if (single == UINT32_MAX
            || worth_single(o, head, t, length)
                   < worth_single(o, head, single, length)) {
            single = t;
        }
    }
    agree(best == single, worth(o, head, best, length),
          worth(o, head, single, length));
    return single;
}

/* static, h2o: how many of the tokens marked are better than t; of equals the
 * higher position is. */
static uint32_t
rank(const oracle_t *o, uint32_t head, uint32_t t, uint32_t length,
     const bool *marked)
{
    double m = worth(o, head, t, length);
    float s = worth_single(o, head, t, length);
    uint32_t better = 0;

    decisions++;
    for (uint32_t u = 0; u < length; u++) {
        double um = worth(o, head, u, length);
        float us = worth_single(o, head, u, length);

        if (marked[u] && u != t) {
            better += us > s || (us == s && u > t);
            agree((um > m) == (us > s) && (um == m) == (us == s), um, m);
        }
    }
    return better;
}

static uint32_t
share_of(double share, uint32_t n)
{
    return (uint32_t) floor(share * n + 0.5);
}

static uint32_t
held(const oracle_t *o, uint32_t head, int level)
{
    uint32_t n = 0;

    for (uint32_t t = 0; t <= o->length; t++) {
        n += o->token[head][t].level == level;
    }
    return n;
}

/* With `observe` the last queries stand for all. */
static void
oracle_observe(oracle_t *o, uint32_t head, uint32_t t, uint32_t length)
{
    token_t *at = &o->token[head][t];
    uint32_t later = length - 1 - t;
    uint32_t w = later < o->observe ? later : o->observe;

    at->sum = w > 0 ? at->recent * later / w : 0;
    at->single = w > 0 ? (float) at->recent * (float) later / (float) w : 0;
}

/* A prompt is complete: tokens [0, length) are there, those from `first` on are
 * dense. */
static void
oracle_prompt(oracle_t *o, uint32_t first, uint32_t length)
{
    o->length = length;
    if (o->rule == H2O) {
        uint32_t all = share_of(o->share[0], length);

        o->window = all > 2 ? all / 2 : 1;
        o->heavy = all > 2 ? all - o->window : 1;
    }
    for (uint32_t head = 0; head < HEADS; head++) {
        bool marked[TOKENS_MAX] = { false };
        int level[TOKENS_MAX];
        bool recent;

        for (uint32_t t = 0; t < length; t++) {
            if (t >= first && o->observe > 0) {
                oracle_observe(o, head, t, length);
            }
            /* only who was there or is new can be in the window */
            recent = t + o->window >= length
                     && (t >= first || o->token[head][t].level == IN_WINDOW);
            marked[t] = o->token[head][t].level != GONE && !recent;
        }
        for (uint32_t t = 0; t < length; t++) {
            int was = o->token[head][t].level;

            level[t] = was == GONE ? GONE : IN_WINDOW;
            if (!marked[t]) {
                continue;
            }
            if (o->rule == DIFFKV) {
                level[t] = classify(o, head, t, length);
            } else if (o->rule == H2O) {
                level[t] = rank(o, head, t, length, marked) < o->heavy ? 0
                                                                       : GONE;
            } else {
                uint32_t r = rank(o, head, t, length, marked);

                level[t] = r < share_of(o->share[0], length)
                               ? 0
                               : (r < share_of(o->share[0] + o->share[1],
                                               length)
                                      ? 1
                                      : GONE);
            }
            if (was >= 0 && level[t] >= 0 && level[t] < was) {
                level[t] = was; /* nobody is promoted */
            }
        }
        for (uint32_t t = 0; t < length; t++) {
            o->token[head][t].level = level[t];
        }
    }
}

/* DiffKV, Algorithm 1. */
static void
diffkv_step(oracle_t *o, uint32_t head, uint32_t candidate)
{
    token_t *token = o->token[head];
    uint32_t n = o->length, victim;
    int level = classify(o, head, candidate, n);

    token[candidate].level = level;
    if (level == GONE) {
        return;
    }
    victim = least(o, head, level, n);
    level = classify(o, head, victim, n);
    if (level == GONE || level > token[victim].level) {
        token[victim].level = level;
    }
}

/* Budgets: with room the candidate goes up and the least of a full level 0 goes
 * down, without it the least of level 1, candidate included, goes. */
static void
static_step(oracle_t *o, uint32_t head, uint32_t candidate)
{
    token_t *token = o->token[head];
    uint32_t n = o->length;
    uint32_t high = share_of(o->share[0], n);
    uint32_t all = share_of(o->share[0] + o->share[1], n);

    if (held(o, head, 0) + held(o, head, 1) < all && high > 0) {
        token[candidate].level = 0;
        if (held(o, head, 0) > high) {
            token[least(o, head, 0, n)].level = 1;
        }
    } else {
        token[candidate].level = 1;
        if (held(o, head, 0) + held(o, head, 1) > all) {
            token[least(o, head, 1, n)].level = GONE;
        }
    }
}

/* H2O: the candidate joins, the least goes. */
static void
h2o_step(oracle_t *o, uint32_t head, uint32_t candidate)
{
    o->token[head][candidate].level = 0;
    if (held(o, head, 0) > o->heavy) {
        o->token[head][least(o, head, 0, o->length)].level = GONE;
    }
}

/* The token at position `length` comes. */
static void
oracle_step(oracle_t *o)
{
    uint32_t n = o->length;

    for (uint32_t head = 0; head < HEADS; head++) {
        uint32_t candidate = 0, full = o->window;

        o->token[head][n] = (token_t){ .level = IN_WINDOW };
        for (uint32_t t = n; t-- > 0;) {
            if (o->token[head][t].level == IN_WINDOW) {
                candidate = t; /* the oldest of the window */
                full--;
            }
        }
        if (full > 0) {
            continue;
        }
        candidate = o->window > 0 ? candidate : n;
        if (o->rule == DIFFKV) {
            diffkv_step(o, head, candidate);
        } else if (o->rule == STATIC) {
            static_step(o, head, candidate);
        } else {
            h2o_step(o, head, candidate);
        }
    }
    o->length = n + 1;
}

#endif
