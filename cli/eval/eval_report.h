/*
 * What the results say: a summary by policy, family and difficulty, and its
 * three forms: a table, JSON, a plot.
 *
 * Accuracy, kv_ratio and shares of a family are means over its turns; those of
 * all families are means over the families, so that each counts the same.
 * Differences are to the first policy, over the turns that both have answered
 * (eval_stats.h).  tokens/s is known where steps were kept apart by policy.
 */
#ifndef TR_EVAL_REPORT_H
#define TR_EVAL_REPORT_H

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>

#include "eval_results.h"
#include "eval_stats.h"

#define TR_EVAL_FAMILIES 32u
#define TR_EVAL_DIFFICULTIES 16u

typedef struct {
    uint32_t n, skipped; /* turns answered; those that do not fit */
    uint64_t tokens;
    double accuracy, kv_ratio, high, low, pruned; /* NaN for n = 0 */
    double accuracy_low, accuracy_high;           /* 95% */
    double tokens_per_s;                          /* NaN: not told apart */
    double reused;    /* share of the prompts' tokens */
    tr_paired_t diff; /* to policy 0 */
} tr_eval_cell_t;

/* A part of the windows of a text, positions [from, to). */
typedef struct {
    uint32_t from, to;
    double perplexity, kl;
} tr_eval_part_t;

/* Of a text: windows instead of turns. */
typedef struct {
    uint32_t n, skipped; /* windows measured; those that do not fit */
    double perplexity, ratio, ratio_low, ratio_high; /* ratio: to policy 0 */
    double kv_ratio, high, low, pruned;
    /* with kl: divergence from policy 0, and its 95% interval over windows */
    bool with_kl;
    double kl, kl_low, kl_high;
    tr_eval_part_t part[TR_EVAL_PARTS];
} tr_eval_text_t;

typedef struct {
    const char *name;
    uint32_t difficulty[TR_EVAL_DIFFICULTIES]; /* ascending */
    uint32_t n_difficulties;
} tr_eval_family_t;

/* The families there are, in order of appearance; their number. */
uint32_t tr_eval_families(const tr_eval_results_t *r, tr_eval_family_t *out);

/* difficulty 0: all. */
void tr_eval_summary(const tr_eval_results_t *r, uint32_t policy,
                     const char *family, uint32_t difficulty,
                     tr_eval_cell_t *out);
/* Over all families. */
void tr_eval_overall(const tr_eval_results_t *r, uint32_t policy,
                     tr_eval_cell_t *out);
void tr_eval_text(const tr_eval_results_t *r, uint32_t policy,
                  tr_eval_text_t *out);

/* labels: policies as the user wrote them, [n_policies]. */
void tr_eval_print(const tr_eval_results_t *r, const char *const *labels,
                   FILE *f);
/* Adds "policies" to root. */
void tr_eval_json(const tr_eval_results_t *r, const char *const *labels,
                  json_t *root);

/* Accuracy over memory, one panel for all families and one for each: an SVG of
 * its own, light and dark. */
void tr_eval_plot(const tr_eval_results_t *r, const char *const *labels,
                  const char *title, FILE *f);

#endif
