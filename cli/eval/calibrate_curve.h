/*
 * What calibrate has measured: a point for each policy, of memory against right
 * answers and, with a text, the KL divergence from full; which of two is better;
 * the curve as a table and as JSON.
 */
#ifndef TR_CALIBRATE_CURVE_H
#define TR_CALIBRATE_CURVE_H

#include <jansson.h>
#include <stdio.h>

#include "eval_report.h"

#define TR_CURVE_SPEC 512u
#define TR_CURVE_POINTS 512u

typedef struct {
    char spec[TR_CURVE_SPEC]; /* as it was asked for */
    bool beside; /* it is no value of the search, but for comparison */
    double accuracy, kv_ratio;
    tr_paired_t diff;                 /* to full, over all families, shares */
    double lost, lost_low, lost_high; /* points of the family that loses most,
                                       * and their 95% interval */
    char family[64];
    bool with_kl;
    double kl, kl_low, kl_high;
    double perplexity; /* over that of full */
} tr_curve_point_t;

typedef struct {
    tr_curve_point_t points[TR_CURVE_POINTS];
    uint32_t n;
} tr_curve_t;

/* What is asked of a point. */
typedef struct {
    double tolerance; /* points lost in any family */
    double memory; /* over 16 bits; 0: as little as is within the tolerance */
} tr_curve_goal_t;

/* Of this policy in the results; policy 0 is full. */
void tr_curve_measure(const tr_eval_results_t *r, uint32_t policy,
                      tr_curve_point_t *out);
/* Keeps a point, in the order of memory, unless its policy is there. */
void tr_curve_add(tr_curve_t *curve, const tr_curve_point_t *p);

/* Points that are NaN lose everything. */
bool tr_curve_tolerated(const tr_curve_point_t *p, const tr_curve_goal_t *g);
bool tr_curve_fits(const tr_curve_point_t *p, const tr_curve_goal_t *g);
/* Is `a` nearer to the goal than `b`? */
bool tr_curve_better(const tr_curve_point_t *a, const tr_curve_point_t *b,
                     const tr_curve_goal_t *g);
/* Does another point take no more memory and lose no more, one of them less? */
bool tr_curve_dominated(const tr_curve_t *curve, const tr_curve_point_t *p);

void tr_curve_print(const tr_curve_t *curve, const tr_curve_goal_t *g, FILE *f);
json_t *tr_curve_json(const tr_curve_t *curve, const tr_curve_goal_t *g);

#endif
