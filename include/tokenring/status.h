/*
 * The status page: what workers learn of an engine without a message.
 *
 * One sealed memfd per engine process; each worker, and `tokenring stats`, maps
 * it read-only.  Who writes what, in the engine:
 *
 *   card       main thread, before the page is handed out
 *   admission  frontend thread, under a seqlock, since these must agree with
 *              each other; a reader tries 16 times, then keeps its last copy:
 *              the writer may have been killed inside
 *   counters   step loop, frontend thread, Redis publisher; relaxed atomics
 *
 * The page is a hint; the engine's queue decides.
 *
 * It only grows, at its end: who knows less of it maps less, and a page that is
 * smaller than what is known is refused.
 */
#ifndef TOKENRING_STATUS_H
#define TOKENRING_STATUS_H

#include <stdatomic.h>
#include <stdint.h>

#include <tokenring/error.h>

#define TR_STATUS_MAGIC 0x474e495254535452ull /* "RTSTRING" */
#define TR_STATUS_VERSION 6u
#define TR_STATUS_LEVELS 12
#define TR_STATUS_BUCKETS 28 /* below TR_STATUS_BOUNDS_US; one more is +Inf */
#define TR_STATUS_RATIOS 14  /* below TR_STATUS_RATIO_BOUNDS; one more */
#define TR_STATUS_FRESH 256  /* requests that are named while they start */
#define TR_STATUS_FORMAT 32
#define TR_NAME_MAX 128

#define TR_STATUS_GPU_USE 0x1u
#define TR_STATUS_GPU_POWER 0x2u

enum tr_engine_state {
    TR_ENGINE_LOADING = 0,
    TR_ENGINE_READY = 1,
    TR_ENGINE_DRAINING = 2,
    TR_ENGINE_FAILED = 3
};

/* Never changes after the page is handed out. */
typedef struct {
    /* served model names (tr_status_model_name): each NUL-terminated, the first
     * is the model's own */
    char model[TR_NAME_MAX];
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
    /* what a request may name as its kv_policy: the default first, separated
     * by blanks */
    char kv_policies[512];
    /* The same on two engines: the same weights, tokenizer, chat template,
     * sampling defaults and default KV policy; and, for exact_id, the same
     * backend, GPU, types, rotation and build as well.  0: unknown. */
    uint8_t model_id[16];
    uint64_t exact_id;
} tr_status_card_t;

/* Under the seqlock. */
typedef struct {
    uint32_t state;         /* enum tr_engine_state */
    uint32_t running;       /* requests in prefill or decode */
    uint32_t waiting;       /* requests queued, preempted included */
    uint32_t queue_free;    /* submissions that would be accepted now */
    uint64_t last_step_us;  /* CLOCK_MONOTONIC of the last step's end, us */
    uint64_t step;          /* steps done */
    uint64_t kv_free_pages; /* or of prefixes that nobody uses */
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

typedef struct {
    _Atomic uint64_t count[TR_STATUS_BUCKETS + 1]; /* not cumulative */
    _Atomic uint64_t sum_us;
} tr_status_histogram_t;

typedef struct {
    _Atomic uint64_t count[TR_STATUS_RATIOS + 1]; /* not cumulative */
    _Atomic uint64_t sum_millionths;
} tr_status_ratios_t;

/* Since start.  Step loop: tokens, preemptions, latencies, KV; frontend:
 * channels; publisher: Redis; requests_* by the thread where a request ends. */
typedef struct {
    _Alignas(64) _Atomic uint64_t prompt_tokens;
    _Atomic uint64_t generation_tokens;
    _Atomic uint64_t requests_stop, requests_length;
    _Atomic uint64_t requests_aborted, requests_error;
    _Atomic uint64_t preemptions;
    _Atomic uint64_t channels_opened, channels_closed;
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
    /* all 0 without Redis */
    _Atomic uint64_t redis_up;       /* 1: it takes what is written */
    _Atomic uint64_t redis_outages;  /* times that it did not any more */
    _Atomic uint64_t redis_lost;     /* requests of which it misses something */
    _Atomic uint64_t redis_refusals; /* commands answered with an error */
    _Atomic uint64_t redis_held_bytes; /* that wait in the engine's memory */
    /* of the GPU, where it tells: a second old at most, by the meter's thread */
    _Atomic uint64_t gpu_known;       /* TR_STATUS_GPU_*: which of these are */
    _Atomic uint64_t gpu_use_percent; /* of the time, a kernel was running */
    _Atomic uint64_t gpu_milliwatts;
    _Atomic uint64_t replayed_tokens; /* of requests from other engines */
    /* reuse of prefixes; the last two are as they are now */
    _Atomic uint64_t prefill_tokens;  /* of prompts, that were computed */
    _Atomic uint64_t prefix_queries;  /* prompts that looked for a prefix */
    _Atomic uint64_t prefix_hits;     /* of these, that found one */
    _Atomic uint64_t prefix_tokens;   /* tokens of these */
    _Atomic uint64_t prefix_cuts;     /* of these hits, that end in a block */
    _Atomic uint64_t prefix_evicted;  /* blocks that made room */
    _Atomic uint64_t prefix_expired;  /* blocks that were too old */
    _Atomic uint64_t prefix_blocks;   /* kept, used or not */
    _Atomic uint64_t kv_cached_pages; /* of kv_free_pages, those of prefixes
                                       * that nobody uses */
    /* the guard: prompts that were compared while they were compressed; policies
     * that do not suit the model now; how far attention moves with compressed
     * keys and with compressed values, of the policy where it is most, and what
     * is expected at most */
    _Atomic uint64_t kv_guard_prompts, kv_guard_over;
    _Atomic uint64_t kv_guard_keys, kv_guard_values; /* millionths */
    _Atomic uint64_t kv_guard_keys_bound, kv_guard_values_bound; /* the same */
    /* Who may be why the process ends, for those who find the page after that:
     * the names (tr_completion_name) of requests that are being parsed, or were
     * scheduled and have sampled less than TR_STATUS_FRESH_TOKENS tokens here,
     * 0: a free place; and the signal by which the process ended itself, such
     * as SIGSEGV, 0: none. */
    _Atomic uint64_t fresh[TR_STATUS_FRESH];
    _Atomic uint64_t crashed;
    /* prefixes in files: written, read, tokens of these, that could not be
     * written or were damaged, that nobody had time or room to write; and there
     * are now, with so many bytes */
    _Atomic uint64_t store_stored, store_loaded, store_tokens;
    _Atomic uint64_t store_failed, store_skipped, store_files, store_bytes;
    /* of the weights, like the card: bytes in the model's files, and in memory
     * here, mapped files included; 0: there are none */
    _Atomic uint64_t weights_file_bytes, weights_bytes;
    char weights_format[TR_STATUS_FORMAT]; /* "MXFP4 4.25 bits", of the files;
                                            * tr_status_weights_format */
    /* masks of grammars; of these, with one token alone */
    _Atomic uint64_t masks, masks_single;
    /* prefixes in host memory (cache_memory): copied there, back, tokens of
     * these, that went for want of room, that left the pool before they were
     * copied; and there are now, with so many bytes */
    _Atomic uint64_t shelf_stored, shelf_loaded, shelf_tokens;
    _Atomic uint64_t shelf_evicted, shelf_skipped, shelf_items, shelf_bytes;
} tr_status_counters_t;

#define TR_STATUS_FRESH_TOKENS 16u

typedef struct {
    uint64_t magic;      /* TR_STATUS_MAGIC */
    uint32_t version;    /* TR_STATUS_VERSION */
    uint32_t size;       /* of the page, at least what is known of it */
    uint64_t generation; /* random, one per engine run */
    uint32_t engine_pid;
    uint32_t reserved;
    tr_status_card_t card;
    _Alignas(64) _Atomic uint64_t sequence; /* odd: being written */
    /* a tr_status_admission_t, word by word: tr_status_publish and _read */
    _Alignas(64) _Atomic uint64_t admission[TR_STATUS_ADMISSION_WORDS];
    _Alignas(64) tr_status_counters_t counters;
} tr_status_page_t;

/* Frontend thread: all of it; or one word, right by itself, before the answer
 * that changes it is sent, so that a worker that has the answer sees it. */
static inline void tr_status_publish(tr_status_page_t *page,
                                     const tr_status_admission_t *value);
static inline void tr_status_outstanding(tr_status_page_t *page,
                                         uint64_t tokens);

/* TR_OK and a consistent copy, or TR_AGAIN with *out untouched. */
static inline tr_status_t tr_status_read(const tr_status_page_t *page,
                                         tr_status_admission_t *out);

/* A private copy of the card with every string ended: the page is the engine's
 * memory, which it could still change. */
static inline void tr_status_card_copy(const tr_status_page_t *page,
                                       tr_status_card_t *out);

/* The same of the format of the weights. */
static inline void tr_status_weights_format(const tr_status_page_t *page,
                                            char out[TR_STATUS_FORMAT]);

/* The i-th name of the model, NULL: there are not so many. */
static inline const char *tr_status_model_name(const tr_status_card_t *card,
                                               uint32_t i);

/* Engine: counts one latency, or one ratio. */
static inline void tr_status_observe(tr_status_histogram_t *h, uint64_t us);
static inline void tr_status_observe_ratio(tr_status_ratios_t *h, double ratio);

/* Engine, any thread: names a request that starts; its place, from 1 on, or 0:
 * it has no name (0), or all places are taken.  clear: it starts no longer. */
static inline uint32_t tr_status_fresh_set(tr_status_counters_t *c,
                                           uint64_t name);
static inline void tr_status_fresh_clear(tr_status_counters_t *c,
                                         uint32_t place);
/* Those that are named now; their number. */
static inline uint32_t tr_status_fresh(const tr_status_counters_t *c,
                                       uint64_t out[TR_STATUS_FRESH]);

#include <tokenring/status_inline.h>

#endif
