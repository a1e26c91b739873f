/*
 * The KV cache: one pool of equal pages, and for every (sequence slot, layer,
 * KV head) a row of the block table.
 *
 * kernels/kv_layout.h says what a page holds, kernels/kv_view.h where a token
 * is (uncompressed, window, tiers), kv_policy.h what may become of it, and
 * kernels/kv_manager/manager.h who gets which page (DiffKV, SOSP 2025, section
 * 5.2): every head plans alone, one prefix sum over (sequence, layer, KV head)
 * in that order gives each its range of the free page ring, all or nothing for
 * a sequence.  The cache of the CPU is kv_host.c, that of a GPU kv_device.h.
 *
 *   open -> reserve, reserve ..      prompt: uncompressed pages, chunk by chunk
 *        -> stage -> reserve, ..     where its beginning is compressed already
 *        -> compress                 all layers planned, moved, recycled
 *        -> reserve (len + 1), ..    generation: one token a step
 *        -> close
 *
 * Reuse: what one sequence has computed serves others that begin alike, as long
 * as there is room (engine/prefix/prefix.h has the tree, kv_prefix.c the pages).
 * Pages are shared block by block: block i is page i of every head.  A block's
 * references are counted where the tree is, on the host, since only whole blocks
 * in front of what a slot writes are shared: a slot pins the node of its last
 * shared block, a kept block has no other owner, and it comes back to the ring
 * when no slot holds it and room is wanted.  The manager knows of a slot only how
 * many of its pages in front are not its own (tr_kv_seq_t.shared).
 *
 *   open -> find (pins) -> adopt     instead of computing [0, found.tokens)
 *        -> reserve ..               what follows
 *        -> keep, keep ..            each block that has been computed
 *        -> keep (end) -> close      and the part of the last one
 *
 * What was compressed is kept as a whole, in a slot of its own (kv_kept.c): a
 * slot that is closed behind keep (end), or a copy that is made when its prompt
 * was compressed.  Who begins alike has its whole pages in front of a position in
 * its tables, too (kv_lend.c), and copies of what is on others; its prompt is a
 * later turn behind that:
 *
 *   open -> find (pins) -> adopt -> prompt -> reserve .. -> compress
 *        -> keep_copy                what others may want before the end
 *        -> reserve .. -> keep (end) -> close
 *
 * The step loop is the only caller.  Nothing here allocates after create.
 */
#ifndef TR_KV_CACHE_H
#define TR_KV_CACHE_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/kv_view.h"
#include "kernels/thread_pool.h"
#include <tokenring/error.h>

#include "engine/kv/kv_guard.h"
#include "engine/kv/policy/kv_policy.h"
#include "engine/prefix/prefix.h"

typedef struct tr_kv_cache tr_kv_cache_t;
typedef struct tr_kernels tr_kernels_t; /* kernels/kernels.h */

typedef struct {
    uint32_t layers, kv_heads, head_dim;
    uint32_t slots;   /* sequences that hold pages at once */
    uint32_t max_len; /* tokens of one sequence */
    /* [layers] positions that a query sees, its own included, 0: all; or NULL.
     * Borrowed for the call.  Such layers are not compressed, and under policies
     * that compress they keep what they see alone. */
    const uint32_t *reach;
    uint64_t memory;      /* bytes of the pool */
    uint64_t swap_memory; /* bytes for preempted sequences */
    /* Which policies slots may be opened with; the first is the default.  Their
     * levels together are the engine's.  Borrowed: the array for the call, the
     * policies for the cache's lifetime. */
    const tr_kv_policy_t *const *policies; /* [n_policies] */
    uint32_t n_policies;
    const tr_kernels_t *kernels; /* NULL: pages are managed, but compress copies
                                  * no tokens into them (tests) */
    tr_stream_t stream;          /* plans steps of many heads, and prompts */
    bool reuse;                  /* prefixes are kept for others */
    bool reuse_compressed; /* those of policies that can be cut, too; here,
                            * not without kernels */
    tr_kv_guard_t *guard;  /* NULL, or who compares some prompts; borrowed, not
                            * on a device */
    /* Not 0: prompts of policies that compress do so while they are computed
     * (tr_kv_stage), behind each so many of their tokens. */
    uint32_t stage;
    /* On a device, not 0: bytes of preempted slots that are copied before one
     * batch; their rest before the next ones. */
    uint64_t piece;
} tr_kv_config_t;

/* As the engine sets them.  A batch becomes half a millisecond longer by such a
 * piece, at 45 GB/s. */
#define TR_KV_STAGE 512u
#define TR_KV_PIECE (24u << 20)

tr_status_t tr_kv_cache_create(const tr_kv_config_t *config,
                               tr_kv_cache_t **out, tr_error_t *err);
void tr_kv_cache_free(tr_kv_cache_t *kv);
/* Slots of a cache with this configuration: with those of what is kept
 * compressed.  Whoever has arrays by slot has so many. */
uint32_t tr_kv_all_slots(const tr_kv_config_t *config);

/* Page geometry, for the status page and for admission. */
const tr_page_plan_t *tr_kv_plan(const tr_kv_cache_t *kv);
uint64_t tr_kv_page_bytes(const tr_kv_cache_t *kv);
uint64_t tr_kv_pages(const tr_kv_cache_t *kv);
/* Those that nobody has, or that only the prefixes of others keep: what is
 * asked for below takes from these what it needs. */
uint64_t tr_kv_free_pages(const tr_kv_cache_t *kv);
/* FP16 bytes of a token: all layers and KV heads, keys and values alone. */
uint64_t tr_kv_token_bytes(const tr_kv_cache_t *kv);
/* Pages to have before a prompt of n tokens is begun: its uncompressed pages
 * and the compressed copy that its policy is charged for (NULL: the
 * default).  Where prompts are compressed in stages: the most that it takes at a
 * time. */
uint64_t tr_kv_pages_for(const tr_kv_cache_t *kv, const tr_kv_policy_t *policy,
                         uint32_t n);
/* The same of a prompt in stages that begins with what was found. */
typedef struct tr_kv_found tr_kv_found_t;
uint64_t tr_kv_pages_behind(const tr_kv_cache_t *kv,
                            const tr_kv_policy_t *policy, uint32_t n,
                            const tr_kv_found_t *found);
/* The most tokens of one sequence; at most the configured max_len.  Alone in
 * the pool, such a sequence is never refused a page, at whatever length its
 * prompts end and whatever its policy decides: uncompressed pages and the
 * largest compressed copy, old and new, fit. */
uint32_t tr_kv_max_len(const tr_kv_cache_t *kv, const tr_kv_policy_t *policy);
/* Does a slot hold more than keys and values, so that it matters which of its
 * tokens were the prompt, and which came one by one? */
bool tr_kv_exact(const tr_kv_cache_t *kv, const tr_kv_policy_t *policy);

/* Is all known that was asked (kv_device.h)?  Always true on the CPU.  When it
 * is not, TR_AGAIN below may only mean that an answer has not come yet. */
bool tr_kv_settled(const tr_kv_cache_t *kv);

/* What kernels need; valid for the cache's lifetime, its contents change with
 * every call below. */
void tr_kv_view(const tr_kv_cache_t *kv, tr_kv_view_t *out);

/* Takes a free slot without pages; -1 when all are taken.  policy: NULL for the
 * default, else one whose levels are in the engine's table and whose window is
 * not larger than that of all policies at create (it is copied, so that a
 * request may override thresholds). */
int32_t tr_kv_open(tr_kv_cache_t *kv, const tr_kv_policy_t *policy);
/* Returns all pages (or swapped pages) and the slot. */
void tr_kv_close(tr_kv_cache_t *kv, int32_t slot);
const tr_kv_policy_t *tr_kv_slot_policy(const tr_kv_cache_t *kv, int32_t slot);

/* Says that the prompt that is being computed ends at `len` tokens, so that its
 * last queries can be counted apart.  Before its first chunk. */
void tr_kv_prompt(tr_kv_cache_t *kv, int32_t slot, uint32_t len);

/* Makes room so that positions [0, len) can be stored.  Uncompressed slots:
 * pages for all of them.  Compressed slots, len = stored + 1: decides and
 * records every head's move for the coming token, and grants the pages that
 * these need; asking again for the same len changes nothing.  TR_AGAIN: the
 * pool is short, nothing was changed. */
tr_status_t tr_kv_reserve(tr_kv_cache_t *kv, int32_t slot, uint32_t len);

/* The same for n slots, all different, at once: result[i] is what the i-th of
 * n calls in this order would have returned, and the tables are the same. */
void tr_kv_reserve_batch(tr_kv_cache_t *kv, const int32_t *slots,
                         const uint32_t *lens, uint32_t n, tr_status_t *result);

/* A prompt is complete, positions [0, len) are stored: the policy classifies,
 * all layers move to their tiers and windows, the uncompressed pages come back.
 * With tokens already in tiers (a later turn of a conversation) these are
 * downgraded by the prompt rule, too.  Nothing to do for policies that stay
 * uncompressed.  TR_AGAIN: the pool is short for the copy, nothing was
 * changed. */
tr_status_t tr_kv_compress(tr_kv_cache_t *kv, int32_t slot, uint32_t len);
/* Where prompts are compressed while they are computed: behind which multiple of
 * this many tokens; 0: only at their end.  NULL: the default policy's. */
uint32_t tr_kv_stages(const tr_kv_cache_t *kv, const tr_kv_policy_t *policy);
/* A prompt that goes on has stored positions [0, len), len being such a multiple:
 * those that are uncompressed go to the best level of the policy, or its window,
 * and what follows is uncompressed again.  So a row sees the tokens since the
 * last multiple at 16 bits, and those before at that level.  Layers go one after
 * the other, as they do in tr_kv_compress at the end of such a prompt, so that
 * it takes little beside what it gives back.  TR_AGAIN: the pool is short, nothing
 * was changed. */
tr_status_t tr_kv_stage(tr_kv_cache_t *kv, int32_t slot, uint32_t len);
/* Is that to be done before position `len` is computed? */
bool tr_kv_stage_due(const tr_kv_cache_t *kv, int32_t slot, uint32_t len);
/* Pages that the slot holds, at most, others that it borrows, and tokens for which
 * it has some. */
uint64_t tr_kv_held_pages(const tr_kv_cache_t *kv, int32_t slot);
uint64_t tr_kv_borrowed_pages(const tr_kv_cache_t *kv, int32_t slot);
uint32_t tr_kv_reserved(const tr_kv_cache_t *kv, int32_t slot);
/* Does the slot have uncompressed tokens that its policy would compress? */
bool tr_kv_uncompressed(const tr_kv_cache_t *kv, int32_t slot);
/* Was it tried, and what became of it will be known when the batches under way,
 * and the next, have arrived (kv_device.h)?  Never on the CPU. */
bool tr_kv_compressing(const tr_kv_cache_t *kv, int32_t slot);
/* The next tokens of a compressed slot are a prompt again (a later turn): they
 * become uncompressed until tr_kv_compress.  tr_kv_prompt does this. */

/* Copies the uncompressed cache of positions [0, len) of one slot into another,
 * empty one, of any policy (n > 1 shares the prompt's prefill; eval forks a
 * prompt over policies).  Scores come along as they are,
 * and from where `recent` was counted: nothing beyond `len` should have been
 * computed, by a policy that is scored if the other is.  Blocks that `from`
 * shares, `to` shares too, and has its key.  TR_AGAIN as above. */
tr_status_t tr_kv_fork(tr_kv_cache_t *kv, int32_t from, int32_t to,
                       uint32_t len);

/* ---- reuse -------------------------------------------------------------- */

/* What a prompt shares with what is cached.  It is pinned, and so not among the
 * free pages, until it is adopted or dropped. */
struct tr_kv_found {
    uint32_t tokens; /* positions [0, tokens) need not be computed */
    /* Of theirs at 16 bits, those that need not be there: shared, or more than a
     * copy takes of what is compressed. */
    uint64_t pages;
    bool cut;      /* what is copied ends in front of where it is kept */
    uint32_t kept; /* compressed: the slot that has it, and 1; 0: none */
    /* of that, pages that are borrowed, at least, and of one's own, at most */
    uint64_t lent, own;
    tr_prefix_match_t match;
};

/* Does this cache keep prefixes of sequences with this policy (NULL: the
 * default)? */
bool tr_kv_reuses(const tr_kv_cache_t *kv, const tr_kv_policy_t *policy);
/* Are these compressed, so that who finds one takes it at its levels? */
bool tr_kv_copies(const tr_kv_cache_t *kv, const tr_kv_policy_t *policy);
/* The time that it is, us; never less than before. */
void tr_kv_time(tr_kv_cache_t *kv, uint64_t now);
/* The longest prefix of tokens[0, n) that is cached under this key, for a
 * policy that reuses (NULL: the default).  Compressed: of this policy, and no
 * more pages than these tokens take at 16 bits, so that who can be admitted
 * without it can be with it. */
void tr_kv_find(tr_kv_cache_t *kv, const tr_kv_policy_t *policy,
                const tr_prefix_key_t *key, const int32_t *tokens, uint32_t n,
                tr_kv_found_t *found);
void tr_kv_drop_found(tr_kv_cache_t *kv, tr_kv_found_t *found);
/* Gives up what would be copied: where there is no room for the copy beside
 * it. */
void tr_kv_drop_part(tr_kv_cache_t *kv, tr_kv_found_t *found);
/* A slot just opened takes what was found, which may be nothing, and is of this
 * key from now on.  TR_AGAIN: no page for the copy of a part; close the slot.
 * What was found is no longer pinned but by the slot. */
tr_status_t tr_kv_adopt(tr_kv_cache_t *kv, int32_t slot,
                        const tr_prefix_key_t *key, tr_kv_found_t *found);
/* Positions [0, n) of the slot are computed: tokens[0, n).  Its whole blocks are
 * kept; with `end` the rest too, and the slot is to be closed.  Nothing, for a
 * slot that adopted nothing. */
void tr_kv_keep(tr_kv_cache_t *kv, int32_t slot, const int32_t *tokens,
                uint32_t n, bool end);
/* Positions [0, n) of the slot were compressed just now: a copy of them is kept,
 * if there is room: of pages that nobody has, or with `evict` of other kept
 * ones.  False: it is not. */
bool tr_kv_keep_copy(tr_kv_cache_t *kv, int32_t slot, const int32_t *tokens,
                     uint32_t n, bool evict);
/* Pages that a fork of [0, len) of this slot would share. */
uint64_t tr_kv_fork_shares(const tr_kv_cache_t *kv, int32_t from, uint32_t len);
/* Prefixes that nobody has used since then go. */
void tr_kv_expire(tr_kv_cache_t *kv, uint64_t before);
/* All 0 without reuse. */
void tr_kv_prefixes(const tr_kv_cache_t *kv, tr_prefix_stats_t *out);

/* ---- preemption --------------------------------------------------------- */

/* Preemption of a compressed slot: its pages go to host memory and back,
 * exactly, with tables, counts, scores and a move not yet done.  TR_AGAIN: no
 * room there, nothing was changed.  A slot that is out can only come in or be
 * closed. */
tr_status_t tr_kv_swap_out(tr_kv_cache_t *kv, int32_t slot);
tr_status_t tr_kv_swap_in(tr_kv_cache_t *kv, int32_t slot);
/* Is it in, but not all of it is there?  Whoever asks something of it has the rest
 * copied before the next batch. */
bool tr_kv_coming(const tr_kv_cache_t *kv, int32_t slot);
/* Pages that it would take to bring it in. */
uint64_t tr_kv_swapped_pages(const tr_kv_cache_t *kv, int32_t slot);

typedef struct {
    uint64_t bytes;      /* pages held, whole */
    uint64_t full_bytes; /* the same tokens at 16 bits, keys and values alone */
    uint32_t tokens;
    /* high: window, tier 0, uncompressed */
    float share_high, share_low, share_pruned;
    /* The same as tokens of the conversation, an average over all heads, which
     * sum up to `tokens`: at 16 bits (uncompressed; also the window and tier 0
     * where their level is), in tier 0 or the window, in lower tiers,
     * dropped. */
    uint32_t at_full, at_high, at_low, pruned;
} tr_kv_usage_t;

void tr_kv_usage(const tr_kv_cache_t *kv, int32_t slot, tr_kv_usage_t *out);
/* As above, but with the pages of another plan: what the slot would take in an
 * engine that has only its policy's levels (tr_kv_policy_plan). */
void tr_kv_usage_in(const tr_kv_cache_t *kv, int32_t slot,
                    const tr_page_plan_t *plan, tr_kv_usage_t *out);
/* The plan of an engine with this policy alone, for sequences of up to max_len
 * tokens. */
tr_status_t tr_kv_policy_plan(const tr_kv_policy_t *policy, uint32_t head_dim,
                              uint32_t max_len, tr_page_plan_t *out);

/* Of all open slots: pages by layout (index as in tr_kv_plan), and FP16 bytes
 * of the tokens that they cache; what several share counts once. */
typedef struct {
    uint64_t tokens;
    uint64_t full_bytes;
    uint64_t pages[TR_KV_LAYOUTS_MAX];
    uint64_t swapped_pages;
    uint64_t cached_pages; /* of prefixes that no slot uses now */
} tr_kv_totals_t;

void tr_kv_totals(const tr_kv_cache_t *kv, tr_kv_totals_t *out);

/* Looks at everything: every page free once or in one table once, no page lost,
 * counts and pages agree.  Linear; for tests and for the end of a run. */
bool tr_kv_sound(const tr_kv_cache_t *kv);

#endif
