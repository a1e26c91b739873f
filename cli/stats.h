/*
 * Samples of a running engine's status page, for `tokenring stats`: plain copies
 * of all that changes, and what can be said of two of them.
 */
#ifndef TR_CLI_STATS_H
#define TR_CLI_STATS_H

#include <stdint.h>

#include "ring_client.h"
#include <tokenring/status.h>

enum {
    TR_STATS_TTFT,
    TR_STATS_INTER_TOKEN,
    TR_STATS_E2E,
    TR_STATS_QUEUE,
    TR_STATS_STEP,
    TR_STATS_HISTOGRAMS
};

typedef struct {
    uint64_t count[TR_STATUS_BUCKETS + 1], sum_us;
} tr_stats_histogram_t;

/* Plain copies of everything that changes. */
typedef struct {
    uint64_t at_us;
    tr_status_admission_t now;
    uint64_t prompt_tokens, generation_tokens;
    uint64_t stop, length, aborted, error, preemptions;
    uint64_t channels;
    uint64_t kv_bytes, kv_high, kv_low, kv_pruned, swaps, recomputations;
    uint64_t guard_prompts, guard_over, guard_keys, guard_values;
    uint64_t prefilled, prefix_queries, prefix_hits, prefix_tokens;
    uint64_t prefix_cuts, prefix_evicted, prefix_blocks, cached_pages;
    uint64_t store_stored, store_loaded, store_tokens, store_failed;
    uint64_t store_files, store_bytes;
    uint64_t shelf_stored, shelf_loaded, shelf_tokens, shelf_evicted;
    uint64_t shelf_items, shelf_bytes;
    tr_stats_histogram_t histogram[TR_STATS_HISTOGRAMS];
} tr_stats_sample_t;

void tr_stats_take(tr_ring_client_t *client, tr_stats_sample_t *s);

/* Observations of b that a does not have; a NULL: all of b. */
void tr_stats_difference(const tr_stats_histogram_t *a,
                         const tr_stats_histogram_t *b,
                         tr_stats_histogram_t *out);
uint64_t tr_stats_total(const tr_stats_histogram_t *h);
/* Percentile in ms, linear within its bucket; -1 when there is nothing. */
double tr_stats_percentile(const tr_stats_histogram_t *h, double p);

#endif
