/*
 * Samples of a status page (stats.h).
 */
#include "stats.h"

#include <string.h>

#include "terminal.h"

#include "engine/base/clock.h"

static const double bounds_us[TR_STATUS_BUCKETS] = TR_STATUS_BOUNDS_US;

#define LOAD(field) atomic_load_explicit(&(field), memory_order_relaxed)

static void
copy_histogram(tr_stats_histogram_t *to, const tr_status_histogram_t *shared)
{
    tr_status_histogram_t *from = (tr_status_histogram_t *) (uintptr_t) shared;
    unsigned i;

    for (i = 0; i <= TR_STATUS_BUCKETS; i++) {
        to->count[i] = LOAD(from->count[i]);
    }
    to->sum_us = LOAD(from->sum_us);
}

void
tr_stats_take(tr_ring_client_t *client, tr_stats_sample_t *s)
{
    const tr_status_page_t *page = tr_ring_client_status(client);
    tr_status_counters_t *c = (tr_status_counters_t *) (uintptr_t) &page
                                  ->counters;

    memset(s, 0, sizeof(*s));
    s->at_us = tr_now_us();
    tr_ring_client_admission(client, &s->now);
    s->prompt_tokens = LOAD(c->prompt_tokens);
    s->generation_tokens = LOAD(c->generation_tokens);
    s->stop = LOAD(c->requests_stop);
    s->length = LOAD(c->requests_length);
    s->aborted = LOAD(c->requests_aborted);
    s->error = LOAD(c->requests_error);
    s->preemptions = LOAD(c->preemptions);
    s->kv_bytes = LOAD(c->kv_bytes);
    s->kv_high = LOAD(c->kv_full_bytes_high);
    s->kv_low = LOAD(c->kv_full_bytes_low);
    s->kv_pruned = LOAD(c->kv_full_bytes_pruned);
    s->swaps = LOAD(c->kv_swaps);
    s->recomputations = LOAD(c->kv_recomputations);
    s->guard_prompts = LOAD(c->kv_guard_prompts);
    s->guard_over = LOAD(c->kv_guard_over);
    s->guard_keys = LOAD(c->kv_guard_keys);
    s->guard_values = LOAD(c->kv_guard_values);
    s->prefilled = LOAD(c->prefill_tokens);
    s->prefix_queries = LOAD(c->prefix_queries);
    s->prefix_hits = LOAD(c->prefix_hits);
    s->prefix_tokens = LOAD(c->prefix_tokens);
    s->prefix_cuts = LOAD(c->prefix_cuts);
    s->prefix_evicted = LOAD(c->prefix_evicted);
    s->prefix_blocks = LOAD(c->prefix_blocks);
    s->cached_pages = LOAD(c->kv_cached_pages);
    s->store_stored = LOAD(c->store_stored);
    s->store_loaded = LOAD(c->store_loaded);
    s->store_tokens = LOAD(c->store_tokens);
    s->store_failed = LOAD(c->store_failed);
    s->store_files = LOAD(c->store_files);
    s->store_bytes = LOAD(c->store_bytes);
    s->shelf_stored = LOAD(c->shelf_stored);
    s->shelf_loaded = LOAD(c->shelf_loaded);
    s->shelf_tokens = LOAD(c->shelf_tokens);
    s->shelf_evicted = LOAD(c->shelf_evicted);
    s->shelf_items = LOAD(c->shelf_items);
    s->shelf_bytes = LOAD(c->shelf_bytes);
    s->channels = LOAD(c->channels_opened) - LOAD(c->channels_closed);
    copy_histogram(&s->histogram[TR_STATS_TTFT], &c->ttft);
    copy_histogram(&s->histogram[TR_STATS_INTER_TOKEN], &c->inter_token);
    copy_histogram(&s->histogram[TR_STATS_E2E], &c->e2e);
    copy_histogram(&s->histogram[TR_STATS_QUEUE], &c->queue_time);
    copy_histogram(&s->histogram[TR_STATS_STEP], &c->step_time);
}

void
tr_stats_difference(const tr_stats_histogram_t *a,
                    const tr_stats_histogram_t *b, tr_stats_histogram_t *out)
{
    unsigned i;

    *out = *b;
    if (a == NULL) {
        return;
    }
    for (i = 0; i <= TR_STATUS_BUCKETS; i++) {
        out->count[i] -= a->count[i];
    }
    out->sum_us -= a->sum_us;
}

uint64_t
tr_stats_total(const tr_stats_histogram_t *h)
{
    uint64_t n = 0;
    unsigned i;

    for (i = 0; i <= TR_STATUS_BUCKETS; i++) {
        n += h->count[i];
    }
    return n;
}

double
tr_stats_percentile(const tr_stats_histogram_t *h, double p)
{
    uint64_t total = tr_stats_total(h);
    double want = p * (double) total, below = 0;
    unsigned i;

    if (total == 0) {
        return -1;
    }
    for (i = 0; i < TR_STATUS_BUCKETS; i++) {
        double in = (double) h->count[i];
        double lo = i == 0 ? 0 : bounds_us[i - 1];

        if (in > 0 && below + in >= want) {
            return (lo + (bounds_us[i] - lo) * (want - below) / in) / 1e3;
        }
        below += in;
    }
    return bounds_us[TR_STATUS_BUCKETS - 1] / 1e3;
}
