/*
 * The KV cache: one pool of equal pages, and a table of pages for every
 * (sequence slot, layer, list); lists a layer = KV heads.
 *
 * A page is configured when it is given out, for one level (a pair of key bits
 * and value bits), and holds tokens of one list only.  What is kept at which
 * level is decided by a policy (kv_policy.h); with `full` every token is kept
 * at 16 bits.  Free pages are a ring with a start and an end index; a grant is
 * all or nothing per sequence in the fixed order (layer, list), as a GPU does
 * it with one prefix sum.
 *
 * The step loop is the only caller.  Nothing here allocates after create.
 */
#ifndef TR_KV_CACHE_H
#define TR_KV_CACHE_H

#include <stdbool.h>
#include <stdint.h>

#include <kernels.h>
#include <tokenring/error.h>

typedef struct tr_kv_cache tr_kv_cache_t;

typedef struct {
    uint32_t layers, lists, head_dim; /* lists = KV heads */
    uint32_t slots;                   /* sequences that hold pages at once */
    uint32_t max_len;                 /* tokens of one sequence */
    uint64_t memory;                  /* bytes of the pool */
    const char *policy;               /* "full" */
} tr_kv_config_t;

tr_status_t tr_kv_cache_create(const tr_kv_config_t *config,
                               tr_kv_cache_t **out, tr_error_t *err);
void tr_kv_cache_free(tr_kv_cache_t *kv);

/* Page geometry, for the status page and for admission. */
uint64_t tr_kv_page_bytes(const tr_kv_cache_t *kv);
uint64_t tr_kv_pages(const tr_kv_cache_t *kv);
uint64_t tr_kv_free_pages(const tr_kv_cache_t *kv);
uint64_t tr_kv_token_bytes(const tr_kv_cache_t *kv); /* all layers and lists */
/* Pages that a sequence of n tokens holds at most. */
uint64_t tr_kv_pages_for(const tr_kv_cache_t *kv, uint32_t n);
/* Most tokens that one sequence can hold, alone in the pool: at most the
 * configured max_len. */
uint32_t tr_kv_max_len(const tr_kv_cache_t *kv);

/* What kernels need to find a token; valid for the cache's lifetime, the tables
 * change with every call below. */
void tr_kv_view(const tr_kv_cache_t *kv, tr_kv_view_t *out);

/* Takes a free slot without pages; -1 when all are taken. */
int32_t tr_kv_open(tr_kv_cache_t *kv);
/* Returns all pages and the slot. */
void tr_kv_close(tr_kv_cache_t *kv, int32_t slot);

/* Makes room so that positions [0, len) can be stored.  TR_AGAIN: the pool is
 * short, nothing was changed. */
tr_status_t tr_kv_reserve(tr_kv_cache_t *kv, int32_t slot, uint32_t len);

/* Copies the cache of positions [0, len) of one slot into another, empty one
 * (n > 1 shares the prompt's prefill).  TR_AGAIN as above. */
tr_status_t tr_kv_fork(tr_kv_cache_t *kv, int32_t from, int32_t to,
                       uint32_t len);

typedef struct {
    uint64_t bytes;      /* pages held, whole */
    uint64_t full_bytes; /* the same tokens at 16 bits */
    uint32_t tokens;
    float share_high, share_low, share_pruned;
} tr_kv_usage_t;

void tr_kv_usage(const tr_kv_cache_t *kv, int32_t slot, tr_kv_usage_t *out);

/* Tokens cached by all sequences. */
uint64_t tr_kv_tokens(const tr_kv_cache_t *kv);

/* Looks at everything: every page free once or in one table once, no page lost.
 * Linear; for tests and for the end of a run. */
bool tr_kv_sound(const tr_kv_cache_t *kv);

#endif
