/*
 * Intervals (eval_stats.h).
 */
#include "eval_stats.h"

#include <math.h>
#include <stdlib.h>

#include "engine/base/hash.h"

#define Z95 1.959963984540054
#define RESAMPLES 2000u

void
tr_wilson(double right, double n, double *low, double *high)
{
    double p = right / n, zz = Z95 * Z95;
    double middle = p + zz / (2 * n);
    double half = Z95 * sqrt(p * (1 - p) / n + zz / (4 * n * n));

    *low = fmax(0, (middle - half) / (1 + zz / n));
    *high = fmin(1, (middle + half) / (1 + zz / n));
}

static void
end_cluster(tr_pairs_t *p)
{
    if (p->cluster_n > 0) {
        p->clusters++;
        p->dd += p->cluster_diff * p->cluster_diff;
        p->dn += p->cluster_diff * p->cluster_n;
        p->nn += p->cluster_n * p->cluster_n;
    }
    p->cluster_diff = p->cluster_n = 0;
}

void
tr_pairs_add(tr_pairs_t *p, uint64_t cluster, int first_right, int other_right)
{
    if (cluster != p->cluster) {
        end_cluster(p);
        p->cluster = cluster;
    }
    p->cluster_n++;
    p->cluster_diff += (other_right != 0) - (first_right != 0);
    p->both += first_right && other_right;
    p->first += first_right && !other_right;
    p->other += !first_right && other_right;
    p->neither += !first_right && !other_right;
}

/* How many times the variance of the mean difference exceeds that of
 * independent pairs, at least 1. */
static double
design_effect(const tr_pairs_t *p, double n, double d)
{
    double apart = p->first + p->other - n * d * d;
    double together = p->dd - 2 * d * p->dn + d * d * p->nn;

    if (!(apart > 0) || p->clusters < 2) {
        return 1;
    }
    return fmax(1, together / apart * p->clusters / (p->clusters - 1) * (n - 1)
                       / n);
}

/* Newcombe's correlation of the two, with his continuity correction. */
static double
phi(double a, double b, double c, double d)
{
    double n = a + b + c + d, det = a * d - b * c;
    double below = (a + b) * (c + d) * (a + c) * (b + d);

    if (!(below > 0)) {
        return 0;
    }
    if (det > 0) {
        det = fmax(det - n / 2, 0);
    }
    return det / sqrt(below);
}

void
tr_pairs_interval(tr_pairs_t *p, tr_paired_t *out)
{
    double n = p->both + p->first + p->other + p->neither;
    double a, b, c, d, p1, p2, l1, u1, l2, u2, f, shrink, down, up;

    end_cluster(p);
    out->diff = out->low = out->high = NAN;
    if (n == 0) {
        return;
    }
    out->diff = (p->other - p->first) / n;
    shrink = 1 / design_effect(p, n, out->diff);
    a = p->both * shrink, b = p->first * shrink;
    c = p->other * shrink, d = p->neither * shrink;
    n *= shrink;
    p1 = (a + b) / n;
    p2 = (a + c) / n;
    tr_wilson(a + b, n, &l1, &u1);
    tr_wilson(a + c, n, &l2, &u2);
    f = phi(a, b, c, d);
    down = (p2 - l2) * (p2 - l2) - 2 * f * (p2 - l2) * (u1 - p1)
           + (u1 - p1) * (u1 - p1);
    up = (u2 - p2) * (u2 - p2) - 2 * f * (u2 - p2) * (p1 - l1)
         + (p1 - l1) * (p1 - l1);
    out->low = out->diff - sqrt(fmax(down, 0));
    out->high = out->diff + sqrt(fmax(up, 0));
}

void
tr_pairs_share(tr_pairs_t *p, double *low, double *high)
{
    double n = p->both + p->first, shrink;

    end_cluster(p);
    *low = *high = NAN;
    if (n > 0) {
        shrink = 1 / design_effect(p, n, -p->first / n);
        tr_wilson(p->both * shrink, n * shrink, low, high);
    }
}

/* Of n pairs without a loss both Wilson intervals end at n / (n + zz), and the
 * interval of the difference at -zz / (n + zz). */
double
tr_pairs_needed(double loss)
{
    return fmax(1, ceil(Z95 * Z95 * (1 - loss) / loss));
}

/* The largest, and log of the sum of exp(x - largest). */
static double
log_sum(const float *x, uint32_t n, double *largest)
{
    double sum = 0;

    *largest = -INFINITY;
    for (uint32_t i = 0; i < n; i++) {
        *largest = fmax(*largest, x[i]);
    }
    for (uint32_t i = 0; i < n; i++) {
        sum += exp(x[i] - *largest);
    }
    return sum > 0 ? log(sum) : NAN;
}

double
tr_kl_divergence(const float *a, const float *b, uint32_t n)
{
    double top_a, top_b, log_a, log_b, sum = 0;

    log_a = log_sum(a, n, &top_a);
    log_b = log_sum(b, n, &top_b);
    for (uint32_t i = 0; i < n; i++) {
        double p = a[i] - top_a - log_a, q = b[i] - top_b - log_b;

        if (isnan(p) || isnan(q)) {
            return NAN;
        }
        if (p > -INFINITY) {
            sum += exp(p) * (p - q);
        }
    }
    return fmax(sum, 0); /* rounding */
}

static int
ascending(const void *a, const void *b)
{
    double x = *(const double *) a, y = *(const double *) b;

    return (x > y) - (x < y);
}

void
tr_bootstrap_mean(const double *x, uint32_t n, double *low, double *high)
{
    static double means[RESAMPLES];
    uint64_t state = 1;

    *low = *high = NAN;
    for (uint32_t r = 0; r < RESAMPLES && n != 0; r++) {
        double sum = 0;

        for (uint32_t i = 0; i < n; i++) {
            sum += x[tr_splitmix64(&state) % n];
        }
        means[r] = sum / n;
    }
    if (n != 0) {
        qsort(means, RESAMPLES, sizeof(means[0]), ascending);
        *low = means[(uint32_t) (RESAMPLES * 0.025)];
        *high = means[(uint32_t) (RESAMPLES * 0.975) - 1];
    }
}
