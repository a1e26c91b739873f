/*
 * Reuse of computed prefixes (kv_cache.h, "reuse"): between the tree of prefixes
 * and the manager's pages, here or on a device.  A node of the tree and a kept
 * block of the manager (manager_share.h) have the same number, so that page ids
 * need not be known here.
 *
 * Only policies that leave everything at 16 bits share: an uncompressed page
 * then holds keys and values alone, of tokens in order, the same for whoever
 * asks.
 * A slot shares its first blocks, which are whole.  What it needs of one more it
 * copies into a page of its own (a cut at any position), and so nobody writes
 * into a page that others read.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "engine/config/log.h"
#include "kv_internal.h"

#define KEYS_MAX 65536u

static uint32_t
block_tokens(const tr_kv_cache_t *kv)
{
    return kv->plan.layout[0].tokens;
}

static void
share(tr_kv_cache_t *kv, tr_kv_share_kind_t kind, int32_t slot, uint32_t entry,
      uint32_t node)
{
    const tr_kv_share_t what = { slot, entry, node };

    kv->ops->share(kv, kind, &what);
}

/* ---- the tree ----------------------------------------------------------- */

static void
give(void *arg, uint32_t node)
{
    tr_kv_store_gone(arg, false, node);
    share(arg, TR_KV_RECLAIM, -1, 0, node);
}

uint32_t
tr_kv_reuse_blocks(const tr_kv_cache_t *kv, uint32_t pages)
{
    return kv->config.reuse ? pages / kv->heads : 0;
}

tr_status_t
tr_kv_reuse_create(tr_kv_cache_t *kv, tr_error_t *err)
{
    uint32_t blocks = kv->m.size.blocks;
    tr_prefix_config_t c = { .block_tokens = block_tokens(kv),
                             .blocks = blocks,
                             .keys = blocks < KEYS_MAX ? blocks : KEYS_MAX,
                             .seed = 1,
                             .give = give,
                             .arg = kv };
    tr_kv_reuse_t *r;

    if (!kv->config.reuse) {
        return TR_OK;
    }
    r = kv->reuse = calloc(1, sizeof(*r));
    if (r != NULL) {
        r->tree = tr_prefix_create(&c);
        r->slot = calloc(kv->config.slots, sizeof(*r->slot));
    }
    if (r == NULL || r->tree == NULL || r->slot == NULL) {
        return tr_error_set(err, TR_ERR_NOMEM, "kv_reuse",
                            "no memory for the prefixes of %u blocks of pages",
                            blocks);
    }
    return tr_kv_kept_create(kv, err);
}

void
tr_kv_reuse_free(tr_kv_cache_t *kv)
{
    if (kv->reuse != NULL) {
        tr_kv_kept_free(kv);
        tr_prefix_free(kv->reuse->tree);
        free(kv->reuse->slot);
        free(kv->reuse);
        kv->reuse = NULL;
    }
}

bool
tr_kv_reuses(const tr_kv_cache_t *kv, const tr_kv_policy_t *policy)
{
    const tr_kv_policy_t *p = policy != NULL ? policy : kv->usual;

    return kv->reuse != NULL
           && ((p->n_levels == 0 && !p->scored && !p->minmax)
               || tr_kv_kept_cuts(kv, p));
}

void
tr_kv_time(tr_kv_cache_t *kv, uint64_t now)
{
    if (kv->reuse != NULL && now > kv->reuse->now) {
        kv->reuse->now = now;
    }
}

void
tr_kv_prefixes(const tr_kv_cache_t *kv, tr_prefix_stats_t *out)
{
    const tr_kv_reuse_t *r = kv->reuse;

    memset(out, 0, sizeof(*out));
    if (r != NULL) {
        tr_prefix_stats(r->tree, out);
        out->nodes += r->n_kept;
        out->tokens += r->kept_tokens;
        out->evicted += r->kept_evicted;
        out->expired += r->kept_expired;
    }
}

/* ---- room --------------------------------------------------------------- */

uint64_t
tr_kv_reuse_idle(const tr_kv_cache_t *kv)
{
    tr_prefix_stats_t s = { 0 };

    if (kv->reuse == NULL) {
        return 0;
    }
    tr_prefix_stats(kv->reuse->tree, &s);
    return (uint64_t) (s.nodes - s.held) * kv->heads + tr_kv_lend_idle(kv)
           + tr_kv_store_pages(kv);
}

/* In turns: something that is compressed, a leaf of the tree; else what only a half
 * of is used, or what is being loaded, which somebody waits for. */
static bool
evict_one(tr_kv_reuse_t *r, tr_kv_cache_t *kv, const tr_prefix_key_t *key)
{
    bool some;

    r->turn = !r->turn;
    some = r->turn ? tr_kv_kept_evict(kv, UINT64_MAX)
                         || tr_prefix_evict(r->tree, key)
                   : tr_prefix_evict(r->tree, key)
                         || tr_kv_kept_evict(kv, UINT64_MAX);
    return some || tr_kv_lend_absorb_one(kv) || tr_kv_store_yield(kv);
}

bool
tr_kv_reuse_room(tr_kv_cache_t *kv, int32_t slot, uint64_t pages)
{
    const tr_kv_sharer_t *q;
    int64_t want = (int64_t) pages;

    while (kv->ops->ring(kv) + (int64_t) tr_kv_reuse_idle(kv) < want) {
        if (!tr_kv_lend_more(kv)) {
            return false;
        }
    }
    q = kv->reuse != NULL ? &kv->reuse->slot[slot] : NULL;
    while (kv->ops->ring(kv) < want) {
        bool some = evict_one(kv->reuse, kv, q->on ? &q->key : NULL);

        assert(some);
        (void) some;
    }
    return true;
}

void
tr_kv_expire(tr_kv_cache_t *kv, uint64_t before)
{
    if (kv->reuse != NULL) {
        tr_prefix_expire(kv->reuse->tree, before);
        while (tr_kv_kept_evict(kv, before)) {
        }
    }
}

/* ---- slots -------------------------------------------------------------- */

void
tr_kv_find(tr_kv_cache_t *kv, const tr_kv_policy_t *policy,
           const tr_prefix_key_t *key, const int32_t *tokens, uint32_t n,
           tr_kv_found_t *found)
{
    tr_kv_reuse_t *r = kv->reuse;

    memset(found, 0, sizeof(*found));
    found->match.node = found->match.part = TR_PREFIX_NONE;
    policy = policy != NULL ? policy : kv->usual;
    if (tr_kv_kept_cuts(kv, policy)) {
        tr_kv_kept_find(kv, policy, key, tokens, n, found);
        return;
    }
    tr_prefix_match(r->tree, key, tokens, n, &found->match);
    found->tokens = found->match.tokens;
    found->cut = found->match.part_tokens != 0;
    found->pages = (uint64_t) found->match.blocks * kv->heads;
    tr_prefix_pin(r->tree, found->match.node);
    tr_prefix_pin(r->tree, found->match.part);
}

void
tr_kv_drop_found(tr_kv_cache_t *kv, tr_kv_found_t *found)
{
    if (kv->reuse != NULL) {
        tr_kv_kept_drop(kv, found);
        tr_prefix_unpin(kv->reuse->tree, found->match.part, kv->reuse->now);
        tr_prefix_unpin(kv->reuse->tree, found->match.node, kv->reuse->now);
    }
    memset(found, 0, sizeof(*found));
    found->match.node = found->match.part = TR_PREFIX_NONE;
}

void
tr_kv_drop_part(tr_kv_cache_t *kv, tr_kv_found_t *found)
{
    tr_prefix_match_t *m = &found->match;

    if (found->kept != 0) {
        tr_kv_drop_found(kv, found);
        return;
    }
    tr_prefix_unpin(kv->reuse->tree, m->part, kv->reuse->now);
    found->tokens -= m->part_tokens;
    m->tokens = found->tokens;
    m->part = TR_PREFIX_NONE;
    m->part_tokens = 0;
}

static void
count_lent(tr_kv_reuse_t *r, int32_t slot, uint64_t tokens)
{
    r->slot[slot].lent += tokens;
    r->lent += tokens;
}

/* The first `blocks` blocks of a path that ends with `node`, whose last is
 * pinned for the slot. */
static void
lend(tr_kv_cache_t *kv, int32_t slot, uint32_t node, uint32_t blocks)
{
    tr_kv_reuse_t *r = kv->reuse;
    uint32_t i;

    assert(kv->m.slot[slot].pages == 0 && kv->m.slot[slot].tokens == 0);
    r->slot[slot].node = node;
    for (i = blocks; i != 0; i--) {
        share(kv, TR_KV_LEND, slot, i - 1, node);
        node = tr_prefix_parent(r->tree, node);
    }
    kv->totals.tokens += (uint64_t) blocks * block_tokens(kv);
    count_lent(r, slot, (uint64_t) blocks * block_tokens(kv));
}

tr_status_t
tr_kv_adopt(tr_kv_cache_t *kv, int32_t slot, const tr_prefix_key_t *key,
            tr_kv_found_t *found)
{
    tr_kv_reuse_t *r = kv->reuse;
    tr_prefix_match_t *m = &found->match;
    tr_status_t rc = TR_OK;

    tr_kv_slot(kv, slot);
    if (kv->m.seq[slot].n_tiers != 0) {
        rc = tr_kv_kept_adopt(kv, slot, key, found);
        tr_kv_drop_found(kv, found);
        return rc;
    }
    assert(!r->slot[slot].on);
    r->slot[slot].on = true;
    r->slot[slot].key = *key;
    lend(kv, slot, m->node, m->blocks);
    m->node = TR_PREFIX_NONE; /* the pin is the slot's */
    if (m->part_tokens != 0) {
        rc = tr_kv_reserve(kv, slot, found->tokens);
    }
    if (m->part_tokens != 0 && rc == TR_OK) {
        share(kv, TR_KV_COPY, slot, m->blocks, m->part);
    }
    tr_kv_drop_found(kv, found);
    return rc;
}

void
tr_kv_reuse_fork(tr_kv_cache_t *kv, int32_t from, int32_t to, uint32_t len)
{
    tr_kv_reuse_t *r = kv->reuse;
    uint32_t shared = kv->m.seq[from].shared, i;
    uint32_t blocks = len / block_tokens(kv), node;

    if (r == NULL || !r->slot[from].on || r->slot[to].on) {
        return;
    }
    r->slot[to].on = true;
    r->slot[to].key = r->slot[from].key;
    blocks = blocks < shared ? blocks : shared;
    node = r->slot[from].node;
    for (i = shared; i > blocks; i--) {
        node = tr_prefix_parent(r->tree, node);
    }
    tr_prefix_pin(r->tree, node);
    lend(kv, to, node, blocks);
}

uint64_t
tr_kv_fork_shares(const tr_kv_cache_t *kv, int32_t from, uint32_t len)
{
    uint32_t blocks = len / block_tokens(kv);
    uint32_t shared = kv->m.seq[from].shared;

    return (uint64_t) (blocks < shared ? blocks : shared) * kv->heads;
}

/* The slot's next block, of n tokens, is kept.  False: there is no room for its
 * key. */
static bool
keep_block(tr_kv_cache_t *kv, int32_t slot, const int32_t *tokens, uint32_t n)
{
    tr_kv_reuse_t *r = kv->reuse;
    tr_kv_sharer_t *q = &r->slot[slot];
    uint32_t block = kv->m.seq[slot].shared, node;
    tr_prefix_add_t what;

    what = tr_prefix_add(r->tree, &q->key, q->node, tokens, n, r->now, &node);
    if (what == TR_PREFIX_FULL) {
        return false;
    }
    if (what == TR_PREFIX_THERE && n != block_tokens(kv)) {
        return true; /* the slot's own copy goes with it */
    }
    tr_prefix_pin(r->tree, node);
    tr_prefix_unpin(r->tree, q->node, r->now);
    q->node = node;
    q->fresh = q->fresh || what == TR_PREFIX_NEW;
    /* what is there was computed twice, with the same result */
    share(kv, what == TR_PREFIX_NEW ? TR_KV_CEDE : TR_KV_MERGE, slot, block,
          node);
    count_lent(r, slot, n);
    return true;
}

void
tr_kv_keep(tr_kv_cache_t *kv, int32_t slot, const int32_t *tokens, uint32_t n,
           bool end)
{
    uint32_t size = block_tokens(kv), at;

    if (kv->reuse == NULL || !kv->reuse->slot[slot].on) {
        if (kv->reuse != NULL && end) {
            tr_kv_kept_end(kv, slot, tokens, n);
        }
        return;
    }
    assert(n <= tr_kv_slot(kv, slot)->tokens && !kv->m.slot[slot].out);
    for (at = kv->m.seq[slot].shared * size; at + size <= n; at += size) {
        if (!keep_block(kv, slot, tokens + at, size)) {
            return;
        }
    }
    if (end && at < n) {
        keep_block(kv, slot, tokens + at, n - at);
    }
    if (end && kv->reuse->slot[slot].fresh && !kv->reuse->slot[slot].loaded) {
        tr_kv_store_want(kv, false, kv->reuse->slot[slot].node);
    }
}

void
tr_kv_reuse_close(tr_kv_cache_t *kv, int32_t slot)
{
    tr_kv_reuse_t *r = kv->reuse;

    if (r == NULL || !r->slot[slot].on) {
        return;
    }
    r->lent -= r->slot[slot].lent;
    tr_prefix_unpin(r->tree, r->slot[slot].node, r->now);
    memset(&r->slot[slot], 0, sizeof(r->slot[slot]));
}

void
tr_kv_reuse_totals(const tr_kv_cache_t *kv, tr_kv_totals_t *out)
{
    const tr_kv_reuse_t *r = kv->reuse;
    tr_prefix_stats_t s;

    if (r != NULL) {
        tr_prefix_stats(r->tree, &s);
        out->tokens += s.held_tokens - r->lent - r->kept_held;
        out->pages[0] += (uint64_t) s.held * kv->heads;
        out->cached_pages = tr_kv_reuse_idle(kv);
        tr_kv_lend_totals(kv, out);
    }
}
