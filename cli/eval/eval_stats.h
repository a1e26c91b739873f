/*
 * Is one policy's accuracy below another's?  Both answered the same turns, so
 * the difference is a paired one.
 *
 * The interval is Newcombe's for paired proportions by square-and-add of Wilson
 * intervals (Newcombe 1998, "Improved confidence intervals for the difference
 * between binomial proportions based on paired data", method 10): it is sound
 * where accuracies are near 1 and where no answer differs, as a bootstrap is
 * not.  Turns of one conversation are not independent: the number of pairs is
 * divided by the design effect, the variance of the difference by conversation
 * over that by turn, when that is above 1.
 */
#ifndef TR_EVAL_STATS_H
#define TR_EVAL_STATS_H

#include <stdint.h>

/* Adds up pair by pair; the pairs of a conversation one after another. */
typedef struct {
    double both, first, other, neither; /* right by which of the two */
    /* the conversation that is open: its difference and its pairs */
    uint64_t cluster;
    double cluster_diff, cluster_n;
    /* over conversations: count, sums of d^2, d * n, n^2 */
    double clusters, dd, dn, nn;
} tr_pairs_t;

typedef struct {
    double diff;      /* share right of `other` less that of `first` */
    double low, high; /* 95% */
} tr_paired_t;

/* cluster: names the conversation, never 0. */
void tr_pairs_add(tr_pairs_t *p, uint64_t cluster, int first_right,
                  int other_right);
/* Ends the open conversation.  Without pairs all is NaN. */
void tr_pairs_interval(tr_pairs_t *p, tr_paired_t *out);

/* Ends the open conversation.  The share right of `other` alone: its Wilson
 * interval with the design effect of conversations.  Every pair must have been
 * added with first_right 1. */
void tr_pairs_share(tr_pairs_t *p, double *low, double *high);

/* How many pairs it takes at least before the interval can say that no more than
 * `loss` (a share, above 0) is lost: so many, all right on both sides. */
double tr_pairs_needed(double loss);

/* The Wilson interval of `right` of n (n > 0, need not be whole), 95%. */
void tr_wilson(double right, double n, double *low, double *high);

/* KL divergence in nats of softmax(b) from softmax(a), n logits each: the sum of
 * a's probabilities times the difference of log-probabilities; never below 0.
 * Logits of -inf in both count nothing; where b alone has one it is infinite. */
double tr_kl_divergence(const float *a, const float *b, uint32_t n);

/* 95% interval of the mean of n values, percentile bootstrap with a fixed
 * seed; NaN for n = 0. */
void tr_bootstrap_mean(const double *x, uint32_t n, double *low, double *high);

#endif
