/*
 * Layout and bodies of status.h, which includes this.
 */
#ifndef TOKENRING_STATUS_INLINE_H
#define TOKENRING_STATUS_INLINE_H

#include <stddef.h>
#include <string.h>

#include <tokenring/status.h>

/* Upper bounds of the latency histograms in microseconds, one table for all. */
#define TR_STATUS_BOUNDS_US                                                    \
    {                                                                          \
        100, 250, 500, 1000, 2000, 3000, 5000, 7500, 10000, 15000, 20000,      \
            30000, 50000, 75000, 100000, 150000, 250000, 500000, 750000,       \
            1000000, 2500000, 5000000, 10000000, 20000000, 40000000, 80000000, \
            160000000, 640000000                                               \
    }

/* Upper bounds of KV bytes over what the same tokens take at 16 bits. */
#define TR_STATUS_RATIO_BOUNDS                                               \
    {                                                                        \
        0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.5, 0.6, 0.8, 1.0, 1.5, \
            2.0                                                              \
    }

_Static_assert(sizeof(tr_status_admission_t) % 8 == 0, "copied by words");
_Static_assert(sizeof(tr_status_page_t) % 64 == 0, "whole cache lines");
_Static_assert(offsetof(tr_status_page_t, admission) % 64 == 0, "own line");
/* a lock-free load is the only atomic that a read-only mapping can serve */
_Static_assert(ATOMIC_LLONG_LOCK_FREE == 2, "needs 64-bit atomics");

/*
 * The seqlock, without fences (which ThreadSanitizer does not know): every word
 * is stored with release and loaded with acquire, plain moves on x86.  Whoever
 * reads one new word therefore sees the odd sequence in the check that follows.
 */

static inline void
tr_status_publish(tr_status_page_t *page, const tr_status_admission_t *value)
{
    uint64_t s = atomic_load_explicit(&page->sequence, memory_order_relaxed);
    uint64_t words[TR_STATUS_ADMISSION_WORDS];
    size_t i;

    memcpy(words, value, sizeof(words));
    atomic_store_explicit(&page->sequence, s + 1, memory_order_relaxed);
    for (i = 0; i < TR_STATUS_ADMISSION_WORDS; i++) {
        atomic_store_explicit(&page->admission[i], words[i],
                              memory_order_release);
    }
    atomic_store_explicit(&page->sequence, s + 2, memory_order_release);
}

static inline void
tr_status_outstanding(tr_status_page_t *page, uint64_t tokens)
{
    size_t word = offsetof(tr_status_admission_t, outstanding_tokens) / 8;

    atomic_store_explicit(&page->admission[word], tokens, memory_order_release);
}

static inline tr_status_t
tr_status_read(const tr_status_page_t *page, tr_status_admission_t *out)
{
    /* C11 forgot the const in atomic_load */
    tr_status_page_t *p = (tr_status_page_t *) (uintptr_t) page;
    uint64_t words[TR_STATUS_ADMISSION_WORDS];
    size_t i;
    int tries;

    for (tries = 0; tries < 16; tries++) {
        uint64_t before = atomic_load_explicit(&p->sequence,
                                               memory_order_acquire);

        if (before & 1) {
            continue;
        }
        for (i = 0; i < TR_STATUS_ADMISSION_WORDS; i++) {
            words[i] = atomic_load_explicit(&p->admission[i],
                                            memory_order_acquire);
        }
        if (atomic_load_explicit(&p->sequence, memory_order_relaxed)
            == before) {
            memcpy(out, words, sizeof(words));
            return TR_OK;
        }
    }
    return TR_AGAIN;
}

static inline void
tr_status_card_copy(const tr_status_page_t *page, tr_status_card_t *out)
{
    unsigned i;

    memcpy(out, &page->card, sizeof(*out));
    out->model[sizeof(out->model) - 1] = '\0';
    out->engine[sizeof(out->engine) - 1] = '\0';
    out->backend[sizeof(out->backend) - 1] = '\0';
    out->kv_policy[sizeof(out->kv_policy) - 1] = '\0';
    out->kv_policies[sizeof(out->kv_policies) - 1] = '\0';
    if (out->kv_levels > TR_STATUS_LEVELS) {
        out->kv_levels = TR_STATUS_LEVELS;
    }
    for (i = 0; i < TR_STATUS_LEVELS; i++) {
        out->level_name[i][sizeof(out->level_name[i]) - 1] = '\0';
    }
}

static inline void
tr_status_weights_format(const tr_status_page_t *page,
                         char out[TR_STATUS_FORMAT])
{
    memcpy(out, page->counters.weights_format, TR_STATUS_FORMAT);
    out[TR_STATUS_FORMAT - 1] = '\0';
}

static inline const char *
tr_status_model_name(const tr_status_card_t *card, uint32_t i)
{
    const char *name = card->model, *end = card->model + sizeof(card->model);

    for (; i > 0 && name < end && *name != '\0'; i--) {
        name += strlen(name) + 1;
    }
    return name < end && *name != '\0' ? name : NULL;
}

static inline void
tr_status_observe(tr_status_histogram_t *h, uint64_t us)
{
    static const uint32_t bounds[TR_STATUS_BUCKETS] = TR_STATUS_BOUNDS_US;
    unsigned lo = 0, hi = TR_STATUS_BUCKETS;

    while (lo < hi) {
        unsigned mid = (lo + hi) / 2;

        if (us <= bounds[mid]) {
            hi = mid;
        } else {
            lo = mid + 1;
        }
    }
    atomic_fetch_add_explicit(&h->count[lo], 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&h->sum_us, us, memory_order_relaxed);
}

static inline void
tr_status_observe_ratio(tr_status_ratios_t *h, double ratio)
{
    static const double bounds[TR_STATUS_RATIOS] = TR_STATUS_RATIO_BOUNDS;
    unsigned i = 0;

    while (i < TR_STATUS_RATIOS && ratio > bounds[i]) {
        i++;
    }
    atomic_fetch_add_explicit(&h->count[i], 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&h->sum_millionths, (uint64_t) (ratio * 1e6),
                              memory_order_relaxed);
}

static inline uint32_t
tr_status_fresh_set(tr_status_counters_t *c, uint64_t name)
{
    uint32_t i;

    for (i = 0; name != 0 && i < TR_STATUS_FRESH; i++) {
        uint64_t none = 0;

        if (atomic_load_explicit(&c->fresh[i], memory_order_relaxed) == 0
            && atomic_compare_exchange_strong(&c->fresh[i], &none, name)) {
            return i + 1;
        }
    }
    return 0;
}

static inline void
tr_status_fresh_clear(tr_status_counters_t *c, uint32_t place)
{
    if (place != 0) {
        atomic_store_explicit(&c->fresh[place - 1], 0, memory_order_release);
    }
}

static inline uint32_t
tr_status_fresh(const tr_status_counters_t *c, uint64_t out[TR_STATUS_FRESH])
{
    /* C11 forgot the const in atomic_load */
    tr_status_counters_t *p = (tr_status_counters_t *) (uintptr_t) c;
    uint32_t i, n = 0;

    for (i = 0; i < TR_STATUS_FRESH; i++) {
        uint64_t name = atomic_load_explicit(&p->fresh[i],
                                             memory_order_acquire);

        if (name != 0) {
            out[n++] = name;
        }
    }
    return n;
}

#endif
