/*
 * Points of memory against what is lost (calibrate_curve.h).
 *
 * What is lost is the divergence from full where there is a text: it is of every
 * token, so it tells policies apart that answer all cases alike.  Without one it
 * is the share of right answers.  Where two lose the same, the one that has more
 * bits is preferred if both fit a memory that was asked for, since what a few
 * hundred cases cannot tell apart need not be the same.
 */
#include "calibrate_curve.h"

#include <math.h>
#include <string.h>

#define SLACK 1e-9 /* of rounding: points, ratios */

/* The family that loses most, NaN being worst of all. */
static void
find_worst(const tr_eval_results_t *r, uint32_t policy, tr_curve_point_t *out)
{
    tr_eval_family_t families[TR_EVAL_FAMILIES];
    uint32_t n = tr_eval_families(r, families);

    out->lost = -INFINITY;
    out->lost_low = out->lost_high = NAN;
    snprintf(out->family, sizeof(out->family), "-");
    for (uint32_t i = 0; i < n && !isnan(out->lost); i++) {
        tr_eval_cell_t c;
        double lost;

        tr_eval_summary(r, policy, families[i].name, 0, &c);
        if (c.n == 0 && c.skipped != 0) {
            continue;
        }
        lost = 0 - c.diff.diff * 100;
        if (!(lost <= out->lost)) {
            out->lost = lost;
            out->lost_low = 0 - c.diff.high * 100;
            out->lost_high = 0 - c.diff.low * 100;
            snprintf(out->family, sizeof(out->family), "%s", families[i].name);
        }
    }
}

void
tr_curve_measure(const tr_eval_results_t *r, uint32_t policy,
                 tr_curve_point_t *out)
{
    tr_eval_cell_t c;
    tr_eval_text_t t;

    tr_eval_overall(r, policy, &c);
    tr_eval_text(r, policy, &t);
    out->accuracy = c.accuracy;
    out->kv_ratio = c.kv_ratio;
    out->diff = c.diff;
    out->with_kl = t.with_kl;
    out->kl = t.kl;
    out->kl_low = t.kl_low;
    out->kl_high = t.kl_high;
    out->perplexity = t.ratio;
    find_worst(r, policy, out);
}

void
tr_curve_add(tr_curve_t *curve, const tr_curve_point_t *p)
{
    uint32_t at = 0;

    for (uint32_t i = 0; i < curve->n; i++) {
        if (strcmp(curve->points[i].spec, p->spec) == 0) {
            return;
        }
        at += curve->points[i].kv_ratio <= p->kv_ratio;
    }
    if (curve->n == TR_CURVE_POINTS) {
        return;
    }
    memmove(&curve->points[at + 1], &curve->points[at],
            (curve->n - at) * sizeof(*p));
    curve->points[at] = *p;
    curve->n++;
}

/* ---- which is better ---------------------------------------------------- */

bool
tr_curve_tolerated(const tr_curve_point_t *p, const tr_curve_goal_t *g)
{
    return p->lost <= g->tolerance + SLACK;
}

bool
tr_curve_fits(const tr_curve_point_t *p, const tr_curve_goal_t *g)
{
    return g->memory == 0 || p->kv_ratio <= g->memory + SLACK;
}

/* NaN loses everything. */
static double
loss_of(const tr_curve_point_t *p)
{
    double loss = p->with_kl ? p->kl : 0 - p->diff.diff;

    return isnan(loss) ? INFINITY : loss;
}

bool
tr_curve_better(const tr_curve_point_t *a, const tr_curve_point_t *b,
                const tr_curve_goal_t *g)
{
    bool good_a = tr_curve_tolerated(a, g), good_b = tr_curve_tolerated(b, g);
    bool fits_a = tr_curve_fits(a, g), fits_b = tr_curve_fits(b, g);

    if (g->memory == 0) {
        if (good_a != good_b) {
            return good_a;
        }
        return good_a ? a->kv_ratio < b->kv_ratio
                      : a->lost < b->lost || isnan(b->lost);
    }
    if (fits_a != fits_b) {
        return fits_a;
    }
    if (!fits_a) {
        return a->kv_ratio < b->kv_ratio;
    }
    if (good_a != good_b) {
        return good_a;
    }
    return loss_of(a) < loss_of(b)
           || (loss_of(a) == loss_of(b) && a->kv_ratio > b->kv_ratio);
}

bool
tr_curve_dominated(const tr_curve_t *curve, const tr_curve_point_t *p)
{
    for (uint32_t i = 0; i < curve->n; i++) {
        const tr_curve_point_t *q = &curve->points[i];

        if (q->kv_ratio <= p->kv_ratio && loss_of(q) <= loss_of(p)
            && (q->kv_ratio < p->kv_ratio || loss_of(q) < loss_of(p))) {
            return true;
        }
    }
    return false;
}

/* ---- the curve ---------------------------------------------------------- */

static void
print_point(const tr_curve_t *curve, const tr_curve_point_t *p,
            const tr_curve_goal_t *g, bool with_kl, FILE *f)
{
    char diff[40], lost[56], kl[48];

    snprintf(diff, sizeof(diff), "%+.2f [%+.2f, %+.2f]", p->diff.diff * 100,
             p->diff.low * 100, p->diff.high * 100);
    snprintf(lost, sizeof(lost), "%+.2f [%+.2f] in %.16s", 0 - p->lost,
             0 - p->lost_high, p->family);
    snprintf(kl, sizeof(kl), "%.6f [%.6f, %.6f]", p->kl, p->kl_low, p->kl_high);
    fprintf(f, "%8.3f %8.2f  %-22s  %-28s", p->kv_ratio, p->accuracy * 100,
            diff, lost);
    if (with_kl) {
        fprintf(f, "  %-30s %7.4f", kl, p->perplexity);
    }
    fprintf(f, "  %s%s%s%s\n", p->spec, p->beside ? ", for comparison" : "",
            tr_curve_dominated(curve, p) ? ", another is better" : "",
            !tr_curve_tolerated(p, g) ? ", beyond the tolerance"
            : !tr_curve_fits(p, g)    ? ", beyond the memory"
                                      : "");
}

void
tr_curve_print(const tr_curve_t *curve, const tr_curve_goal_t *g, FILE *f)
{
    bool with_kl = curve->n != 0 && curve->points[0].with_kl;

    fprintf(f, "\nMemory against answers, points to full [95%%]\n");
    fprintf(f, "%8s %8s  %-22s  %-28s", "kv_ratio", "right %", "all families",
            "worst family [its end]");
    if (with_kl) {
        fprintf(f, "  %-30s %7s", "KL to full, nats [95%]", "ppl");
    }
    fprintf(f, "  policy\n");
    for (uint32_t i = 0; i < curve->n; i++) {
        print_point(curve, &curve->points[i], g, with_kl, f);
    }
}

static json_t *
number(double x)
{
    return isfinite(x) ? json_real(x) : json_null();
}

static json_t *
point_json(const tr_curve_t *curve, const tr_curve_point_t *p,
           const tr_curve_goal_t *g)
{
    json_t *o = json_pack(
        "{s:s, s:b, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:s, "
        "s:b, s:b, s:b}",
        "policy", p->spec, "comparison", p->beside, "kv_ratio",
        number(p->kv_ratio), "accuracy", number(p->accuracy), "diff",
        number(p->diff.diff), "diff_low", number(p->diff.low), "diff_high",
        number(p->diff.high), "most_lost_points", number(p->lost),
        "most_lost_low", number(p->lost_low), "most_lost_high",
        number(p->lost_high), "family", p->family, "within_tolerance",
        tr_curve_tolerated(p, g), "fits", tr_curve_fits(p, g), "dominated",
        tr_curve_dominated(curve, p));

    if (p->with_kl) {
        json_object_set_new(o, "kl", number(p->kl));
        json_object_set_new(o, "kl_low", number(p->kl_low));
        json_object_set_new(o, "kl_high", number(p->kl_high));
        json_object_set_new(o, "perplexity_ratio", number(p->perplexity));
    }
    return o;
}

json_t *
tr_curve_json(const tr_curve_t *curve, const tr_curve_goal_t *g)
{
    json_t *all = json_array();

    for (uint32_t i = 0; i < curve->n; i++) {
        json_array_append_new(all, point_json(curve, &curve->points[i], g));
    }
    return all;
}
