/*
 * The status page: what the engine lets workers know without a message.
 *
 * One memfd per engine process, written by the engine's publisher thread and
 * its step loop, mapped read-only by every worker (and by `tokenring stats`).
 * Sealed FUTURE_WRITE, GROW, SHRINK and SEAL after the engine has mapped it.
 *
 * The admission block, whose fields must agree with each other, is under a
 * seqlock owned by the publisher thread.  A reader tries 16 times, then keeps
 * its last copy: the writer may have been killed inside.  Everything else is a
 * relaxed atomic counter.  The page is a hint; the engine's queue decides.
 */
#ifndef TOKENRING_STATUS_H
#define TOKENRING_STATUS_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <tokenring/error.h>

#define TR_STATUS_MAGIC 0x474e495254535452ull /* "RTSTRING" */
#define TR_STATUS_VERSION 3u
#define TR_STATUS_LEVELS 12
#define TR_STATUS_BUCKETS 28 /* finite ones; the last counter is +Inf */
#define TR_NAME_MAX 128

/* Upper bounds of the latency histograms in microseconds, one table for all. */
#define TR_STATUS_BOUNDS_US                                                    \
    {                                                                          \
        100, 250, 500, 1000, 2000, 3000, 5000, 7500, 10000, 15000, 20000,      \
            30000, 50000, 75000, 100000, 150000, 250000, 500000, 750000,       \
            1000000, 2500000, 5000000, 10000000, 20000000, 40000000, 80000000, \
            160000000, 640000000                                               \
    }

enum tr_engine_state {
    TR_ENGINE_LOADING = 0,
    TR_ENGINE_READY = 1,
    TR_ENGINE_DRAINING = 2,
    TR_ENGINE_FAILED = 3
};

/* Never changes after the page is handed out. */
typedef struct {
    char model[TR_NAME_MAX];  /* served model name, NUL-terminated */
    char engine[TR_NAME_MAX]; /* engine name */
    char backend[32];         /* "cpu", "cuda", "null" */
    char kv_policy[256];      /* the default: name and all settings */
    int64_t created;          /* Unix time of the engine's start, s */
    uint64_t parameters;      /* weights of the model */
    uint32_t max_model_len;   /* tokens, prompt and output */
    uint32_t vocab_size;
    uint32_t layers, kv_heads, query_heads, head_dim;
    uint64_t kv_page_bytes;
    uint64_t kv_pages;                     /* pages of the pool */
    uint32_t kv_levels;                    /* rows of level_name in use */
    uint32_t max_queue;                    /* requests that may wait */
    char level_name[TR_STATUS_LEVELS][16]; /* bits of key/value: "8/4" */
    uint64_t level_token_bytes[TR_STATUS_LEVELS]; /* per cached token */
    uint64_t kv_full_token_bytes; /* keys and values alone, at 16 bits */
} tr_status_card_t;

/* Under the seqlock. */
typedef struct {
    uint32_t state;        /* enum tr_engine_state */
    uint32_t running;      /* requests in prefill or decode */
    uint32_t waiting;      /* requests queued, preempted included */
    uint32_t queue_free;   /* submissions that would be accepted now */
    uint64_t last_step_us; /* CLOCK_MONOTONIC of the last step's end, us */
    uint64_t step;         /* steps done */
    uint64_t kv_free_pages;
    uint64_t kv_used_pages[TR_STATUS_LEVELS];
    uint64_t kv_tokens;        /* tokens cached now */
    uint64_t kv_full_bytes;    /* what these tokens would take at 16 bits */
    uint64_t kv_swapped_pages; /* of preempted sequences, in host memory */
    /* Tokens that the requests inside will have in the cache at their end:
     * prompts, and for each choice what one takes here on average, at most its
     * max_tokens.  By this workers share the load among engines. */
    uint64_t outstanding_tokens;
    uint32_t inside; /* requests, from their first part to their last record */
    uint32_t reserved;
} tr_status_admission_t;

#define TR_STATUS_ADMISSION_WORDS (sizeof(tr_status_admission_t) / 8)

_Static_assert(sizeof(tr_status_admission_t) % 8 == 0, "copied by words");

typedef struct {
    _Atomic uint64_t count[TR_STATUS_BUCKETS + 1]; /* not cumulative */
    _Atomic uint64_t sum_us;
} tr_status_histogram_t;

/* Upper bounds of KV bytes over what the same tokens take at 16 bits. */
#define TR_STATUS_RATIOS 14
#define TR_STATUS_RATIO_BOUNDS                                               \
    {                                                                        \
        0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.5, 0.6, 0.8, 1.0, 1.5, \
            2.0                                                              \
    }

typedef struct {
    _Atomic uint64_t count[TR_STATUS_RATIOS + 1]; /* not cumulative */
    _Atomic uint64_t sum_millionths;
} tr_status_ratios_t;

/* Counters since start, relaxed, each written by one thread. */
typedef struct {
    _Alignas(64) _Atomic uint64_t prompt_tokens;
    _Atomic uint64_t generation_tokens;
    _Atomic uint64_t requests_stop;
    _Atomic uint64_t requests_length;
    _Atomic uint64_t requests_aborted;
    _Atomic uint64_t requests_error;
    _Atomic uint64_t preemptions;
    _Atomic uint64_t channels_opened;
    _Atomic uint64_t channels_closed;
    _Atomic uint64_t channel_errors;   /* closed for a violated check */
    tr_status_histogram_t ttft;        /* arrival to first token */
    tr_status_histogram_t inter_token; /* between tokens of one choice */
    tr_status_histogram_t e2e;         /* arrival to finish */
    tr_status_histogram_t queue_time;  /* arrival to first scheduled */
    tr_status_histogram_t step_time;   /* one step of the loop */
    /* of requests that ended: KV bytes at their end, and what the same tokens
     * take at 16 bits, by what became of them */
    _Atomic uint64_t kv_bytes;
    _Atomic uint64_t kv_full_bytes_high;
    _Atomic uint64_t kv_full_bytes_low;
    _Atomic uint64_t kv_full_bytes_pruned;
    tr_status_ratios_t kv_ratio;        /* of each */
    _Atomic uint64_t kv_swaps;          /* preemptions to the swap memory */
    _Atomic uint64_t kv_recomputations; /* compressed caches computed again */
    /* the publisher's, all 0 without Redis */
    _Atomic uint64_t redis_up;         /* 1: it takes what is written */
    _Atomic uint64_t redis_outages;    /* times that it did not any more */
    _Atomic uint64_t redis_lost;       /* requests with state or output lost */
    _Atomic uint64_t redis_refusals;   /* commands answered with an error */
    _Atomic uint64_t redis_held_bytes; /* that wait in the engine's memory */
} tr_status_counters_t;

typedef struct {
    uint64_t magic;      /* TR_STATUS_MAGIC */
    uint32_t version;    /* TR_STATUS_VERSION */
    uint32_t size;       /* sizeof(tr_status_page_t) */
    uint64_t generation; /* random, one per engine run */
    uint32_t engine_pid;
    uint32_t reserved;
    tr_status_card_t card;
    _Alignas(64) _Atomic uint64_t sequence; /* odd: being written */
    /* a tr_status_admission_t, word by word: tr_status_publish and _read */
    _Alignas(64) _Atomic uint64_t admission[TR_STATUS_ADMISSION_WORDS];
    _Alignas(64) tr_status_counters_t counters;
} tr_status_page_t;

_Static_assert(sizeof(tr_status_page_t) % 64 == 0, "whole cache lines");
_Static_assert(offsetof(tr_status_page_t, admission) % 64 == 0, "own line");
/* a lock-free load is the only atomic that a read-only mapping can serve */
_Static_assert(ATOMIC_LLONG_LOCK_FREE == 2, "needs 64-bit atomics");

/*
 * The seqlock, without fences (which ThreadSanitizer does not know): every word
 * is stored with release and loaded with acquire, plain moves on x86.  Whoever
 * reads one new word therefore sees the odd sequence in the check that follows.
 */

/* Publisher thread only. */
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

/* Publisher thread only: one word that is true for itself, between two
 * publications.  It goes out before the answer that makes it so: a worker that
 * knows of the answer sees it. */
static inline void
tr_status_outstanding(tr_status_page_t *page, uint64_t tokens)
{
    size_t word = offsetof(tr_status_admission_t, outstanding_tokens) / 8;

    atomic_store_explicit(&page->admission[word], tokens, memory_order_release);
}

/* TR_OK and a consistent copy, or TR_AGAIN with *out untouched. */
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

/* A private copy of the card with every string ended: the page is the engine's
 * memory, which it could still change. */
static inline void
tr_status_card_copy(const tr_status_page_t *page, tr_status_card_t *out)
{
    unsigned i;

    memcpy(out, &page->card, sizeof(*out));
    out->model[sizeof(out->model) - 1] = '\0';
    out->engine[sizeof(out->engine) - 1] = '\0';
    out->backend[sizeof(out->backend) - 1] = '\0';
    out->kv_policy[sizeof(out->kv_policy) - 1] = '\0';
    if (out->kv_levels > TR_STATUS_LEVELS) {
        out->kv_levels = TR_STATUS_LEVELS;
    }
    for (i = 0; i < TR_STATUS_LEVELS; i++) {
        out->level_name[i][sizeof(out->level_name[i]) - 1] = '\0';
    }
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

#endif
