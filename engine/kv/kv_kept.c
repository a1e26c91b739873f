/*
 * Reuse of compressed prefixes (kv_cache.h, "reuse"): slots that nobody uses any
 * more, kept with what they hold, and slots that begin with that.
 *
 * A kept slot is an ordinary one of the manager, of a policy that can be cut
 * (tr_kv_policy_cuts).  Who begins with the same tokens gets those in front of
 * some position c: of each head's lists, what stands at positions below c, as it
 * was, at its level (manager_cut.h); pages that hold nothing else it shares
 * (kv_lend.c), of the others it has copies.
 *
 * On a device the last row of an answer may have brought a token more than is
 * known here; nobody is given it.
 *
 * Levels were decided by all queries that there were, those behind c too: the
 * answer may then differ from one that was computed anew.  With one level that
 * everything goes to, copies hold the same bits whatever they are cut from.
 *
 * The tokens of a kept slot are compared as they are, slot by slot: there are
 * few, and those of others differ early.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "engine/config/log.h"
#include "kv_internal.h"

/* A shorter prefix is computed sooner than found. */
#define MIN_TOKENS 32u

/* Where no policy can be cut, nothing is spent on it. */
static bool
can_keep(const tr_kv_config_t *c)
{
    bool cuts = false;

    for (uint32_t i = 0; i < c->n_policies; i++) {
        cuts = cuts || tr_kv_policy_cuts(c->policies[i]);
    }
    for (uint32_t l = 0; l < c->layers && c->reach != NULL; l++) {
        cuts = cuts && c->reach[l] == 0; /* what they saw is gone */
    }
    return cuts && c->reuse && c->reuse_compressed;
}

uint32_t
tr_kv_all_slots(const tr_kv_config_t *c)
{
    uint32_t room = c->slots < TR_KV_SLOTS_MAX ? TR_KV_SLOTS_MAX - c->slots : 0;
    uint32_t want = c->slots > 32 ? c->slots : 32;

    return !can_keep(c) ? c->slots : c->slots + (want < room ? want : room);
}

tr_status_t
tr_kv_kept_create(tr_kv_cache_t *kv, tr_error_t *err)
{
    const tr_kv_config_t *c = &kv->config;
    tr_kv_reuse_t *r = kv->reuse;

    if (!can_keep(c)) {
        return TR_OK;
    }
    r->tokens_size = (size_t) c->slots * c->max_len * sizeof(*r->tokens);
    r->tokens = tr_kv_map(r->tokens_size);
    r->kept = calloc(c->slots, sizeof(*r->kept));
    if (r->tokens == NULL || r->kept == NULL) {
        return tr_error_set(err, TR_ERR_NOMEM, "kv_reuse",
                            "no memory for the tokens of %u sequences of %u",
                            c->slots, c->max_len);
    }
    return TR_OK;
}

void
tr_kv_kept_free(tr_kv_cache_t *kv)
{
    tr_kv_reuse_t *r = kv->reuse;

    if (r->tokens != NULL) {
        munmap(r->tokens, r->tokens_size);
    }
    free(r->kept);
}

bool
tr_kv_kept_cuts(const tr_kv_cache_t *kv, const tr_kv_policy_t *policy)
{
    return kv->reuse != NULL && kv->reuse->kept != NULL
           && tr_kv_policy_cuts(policy);
}

bool
tr_kv_copies(const tr_kv_cache_t *kv, const tr_kv_policy_t *policy)
{
    return tr_kv_kept_cuts(kv, policy != NULL ? policy : kv->usual);
}

/* ---- what is kept ------------------------------------------------------- */

static int32_t *
tokens_of(const tr_kv_cache_t *kv, int32_t slot)
{
    return kv->reuse->tokens + (size_t) slot * kv->config.max_len;
}

/* The same policy: its name with all settings, and thresholds by head. */
static bool
same_policy(const tr_kv_policy_t *a, const tr_kv_policy_t *b)
{
    return a->row == b->row && a->alpha_of == b->alpha_of
           && strcmp(a->spec, b->spec) == 0;
}

static bool
same_key(const tr_prefix_key_t *a, const tr_prefix_key_t *b)
{
    return a->len == b->len && memcmp(a->bytes, b->bytes, a->len) == 0;
}

/* Is what this slot keeps for them? */
static bool
is_for(const tr_kv_cache_t *kv, int32_t slot, const tr_kv_policy_t *policy,
       const tr_prefix_key_t *key)
{
    const tr_kv_kept_t *k = &kv->reuse->kept[slot];

    return k->kept && same_key(&k->key, key)
           && same_policy(&kv->policy[slot].origin, policy);
}

/* What a kept slot has, by the cache's account: no longer counted among what is
 * kept, and counted. */
static void
uncount(tr_kv_cache_t *kv, int32_t slot)
{
    tr_kv_reuse_t *r = kv->reuse;
    const tr_kv_kept_t *k = &r->kept[slot];

    for (uint32_t i = 0; i < TR_KV_LAYOUTS_MAX; i++) {
        r->kept_pages[i] -= k->pages[i];
    }
    r->kept_tokens -= k->n;
    r->kept_held -= k->tokens;
    r->idle_known = false;
}

static void
count(tr_kv_cache_t *kv, int32_t slot)
{
    tr_kv_reuse_t *r = kv->reuse;
    tr_kv_kept_t *k = &r->kept[slot];

    k->held = kv->ops->held(kv, slot, k->pages);
    k->tokens = kv->m.slot[slot].tokens;
    for (uint32_t i = 0; i < TR_KV_LAYOUTS_MAX; i++) {
        r->kept_pages[i] += k->pages[i];
    }
    r->kept_tokens += k->n;
    r->kept_held += k->tokens;
    r->idle_known = false;
}

void
tr_kv_kept_told(tr_kv_cache_t *kv, int32_t slot)
{
    if (kv->reuse == NULL || kv->reuse->kept == NULL) {
        return;
    }
    kv->reuse->idle_known = false;
    if (kv->reuse->kept[slot].kept) {
        uncount(kv, slot);
        count(kv, slot);
    }
}

void
tr_kv_kept_forget(tr_kv_cache_t *kv, int32_t slot)
{
    tr_kv_store_gone(kv, true, (uint32_t) slot);
    uncount(kv, slot);
    kv->reuse->n_kept--;
    memset(&kv->reuse->kept[slot], 0, sizeof(kv->reuse->kept[slot]));
}

/* Nobody pins the slot, or borrows of it. */
static void
forget(tr_kv_cache_t *kv, int32_t slot)
{
    const tr_kv_kept_t *k = &kv->reuse->kept[slot];

    assert(k->kept && k->pins == 0 && k->borrowers == 0);
    (void) k;
    tr_kv_lend_end(kv, slot);
    tr_kv_kept_forget(kv, slot);
    kv->ops->release(kv, slot);
}

bool
tr_kv_kept_sound(const tr_kv_cache_t *kv)
{
    const tr_kv_reuse_t *r = kv->reuse;
    uint64_t tokens = 0, held = 0;
    uint32_t n = 0, pages[TR_KV_LAYOUTS_MAX];

    for (uint32_t i = 0; r != NULL && r->kept != NULL && i < kv->config.slots;
         i++) {
        const tr_kv_kept_t *k = &r->kept[i];

        if (!k->kept) {
            continue;
        }
        if (!kv->m.slot[i].open || k->n > kv->m.seq[i].base
            || k->held != kv->ops->held(kv, (int32_t) i, pages)
            || memcmp(pages, k->pages, sizeof(pages)) != 0
            || k->tokens != kv->m.slot[i].tokens) {
            return false;
        }
        n++;
        tokens += k->n;
        held += k->tokens;
    }
    return r == NULL
           || (n == r->n_kept && tokens == r->kept_tokens
               && held == r->kept_held && tr_kv_lend_sound(kv));
}

bool
tr_kv_kept_evict(tr_kv_cache_t *kv, uint64_t before)
{
    tr_kv_reuse_t *r = kv->reuse;
    int32_t oldest = -1, waiting = -1;

    if (r == NULL || r->n_kept == 0) {
        return false;
    }
    for (uint32_t i = 0; i < kv->config.slots; i++) {
        const tr_kv_kept_t *k = &r->kept[i];

        if (!k->kept || k->pins != 0 || k->borrowers != 0
            || k->used >= before) {
            continue;
        }
        if (waiting < 0 || k->used < r->kept[waiting].used) {
            waiting = (int32_t) i;
        }
        if ((oldest < 0 || k->used < r->kept[oldest].used)
            && !tr_kv_store_waits(kv, true, i)) {
            oldest = (int32_t) i;
        }
    }
    oldest = oldest < 0 ? waiting : oldest;
    if (oldest < 0) {
        return false;
    }
    forget(kv, oldest);
    *(before == UINT64_MAX ? &r->kept_evicted : &r->kept_expired) += 1;
    return true;
}

/* Does it have all that its lender has? */
static bool
continues(const tr_kv_cache_t *kv, int32_t slot)
{
    const tr_kv_kept_t *k = &kv->reuse->kept[slot];
    uint32_t n;

    if (k->lender == 0) {
        return false;
    }
    n = kv->reuse->kept[k->lender - 1].n;
    return n <= k->n
           && tr_prefix_common(tokens_of(kv, (int32_t) k->lender - 1),
                               tokens_of(kv, slot), n)
                  == n;
}

/* The slot, whose tokens and key are set, is nobody's from now on.  What it has
 * the beginning of is of no more use.  False: another one has it already. */
static bool
keep_slot(tr_kv_cache_t *kv, int32_t slot)
{
    tr_kv_reuse_t *r = kv->reuse;
    tr_kv_kept_t *k = &r->kept[slot];
    const tr_kv_policy_t *policy = &kv->policy[slot].origin;

    for (uint32_t i = 0; i < kv->config.slots && r->n_kept != 0; i++) {
        tr_kv_kept_t *o = &r->kept[i];
        uint32_t n = o->n < k->n ? o->n : k->n;

        if (!is_for(kv, (int32_t) i, policy, &k->key)
            || tr_prefix_common(tokens_of(kv, (int32_t) i), tokens_of(kv, slot),
                                n)
                   < n) {
            continue;
        }
        if (o->n >= k->n) {
            o->used = r->now;
            return false;
        }
        if (o->pins == 0 && o->borrowers == 0) {
            forget(kv, (int32_t) i);
        }
    }
    tr_kv_lend_keep(kv, slot);
    k->on = k->ends = false;
    k->kept = true;
    k->used = r->now;
    count(kv, slot);
    r->n_kept++;
    while (continues(kv, slot) && tr_kv_lend_absorbs(kv, slot)) {
        tr_kv_lend_absorb(kv, slot);
    }
    return true;
}

/* ---- finding ------------------------------------------------------------ */

void
tr_kv_kept_find(tr_kv_cache_t *kv, const tr_kv_policy_t *policy,
                const tr_prefix_key_t *key, const int32_t *tokens, uint32_t n,
                tr_kv_found_t *found)
{
    const tr_kv_reuse_t *r = kv->reuse;
    uint64_t uncompressed, copy;
    int32_t best = -1;
    tr_kv_cut_t cut;

    for (uint32_t i = 0; i < kv->config.slots && r->n_kept != 0; i++) {
        const tr_kv_kept_t *k = &r->kept[i];
        uint32_t most = k->n < n ? k->n : n, c;

        if (most < MIN_TOKENS || most < found->tokens
            || !is_for(kv, (int32_t) i, policy, key)) {
            continue;
        }
        c = tr_prefix_common(tokens_of(kv, (int32_t) i), tokens, most);
        if (c >= MIN_TOKENS && c > kv->m.seq[i].sinks
            && (c > found->tokens
                || (c == found->tokens && best >= 0
                    && k->n < r->kept[best].n))) {
            found->tokens = c;
            best = (int32_t) i;
        }
    }
    if (best < 0) {
        found->tokens = 0;
        return;
    }
    uncompressed = (uint64_t) (found->tokens / kv->plan.layout[0].tokens)
                   * kv->heads;
    copy = kv->ops->copy_pages(kv, best, found->tokens);
    if (copy > uncompressed) {
        found->tokens = 0;
        return;
    }
    found->pages = uncompressed - copy;
    found->cut = found->tokens < r->kept[best].n;
    found->kept = (uint32_t) best + 1;
    cut = tr_kv_lend_cut(kv, best, -1, found->tokens);
    found->own = tr_kv_lend_own(kv, &cut);
    found->lent = tr_kv_lend_least(kv, &cut);
    kv->reuse->kept[best].finds++;
    tr_kv_lend_pin(kv, best);
}

void
tr_kv_kept_drop(tr_kv_cache_t *kv, tr_kv_found_t *found)
{
    tr_kv_kept_t *k;

    if (found->kept == 0) {
        return;
    }
    k = &kv->reuse->kept[found->kept - 1];
    k->used = kv->reuse->now;
    k->finds--;
    tr_kv_lend_unpin(kv, (int32_t) found->kept - 1);
    found->kept = 0;
}

/* ---- copies ------------------------------------------------------------- */

tr_status_t
tr_kv_kept_adopt(tr_kv_cache_t *kv, int32_t slot, const tr_prefix_key_t *key,
                 tr_kv_found_t *found)
{
    tr_kv_kept_t *k = &kv->reuse->kept[slot];

    assert(!k->on && !k->kept);
    k->on = true;
    k->key = *key;
    return found->kept == 0 ? TR_OK
                            : kv->ops->copy(kv, (int32_t) found->kept - 1, slot,
                                            found->tokens, true);
}

/* ---- from files --------------------------------------------------------- */

bool
tr_kv_kept_adds_up(const tr_kv_cache_t *kv, const tr_kv_seq_t *q,
                   const uint32_t *counts)
{
    uint32_t n = q->base, windowed = tr_kv_windowed(q);

    for (uint32_t h = 0; h < kv->heads; h++, counts += TR_KV_TIERS_MAX) {
        uint64_t sum = windowed;

        for (uint32_t l = 0; l < TR_KV_TIERS_MAX; l++) {
            if (counts[l] > n || (l >= q->n_tiers && counts[l] != 0)) {
                return false;
            }
            sum += counts[l];
        }
        if (sum != n) {
            return false;
        }
    }
    return true;
}

tr_status_t
tr_kv_kept_restore(tr_kv_cache_t *kv, int32_t slot, uint32_t n,
                   const uint32_t number[TR_STORE_NUMBERS],
                   const uint32_t *counts)
{
    uint32_t window_from = number[0], sinks = number[1];
    tr_kv_restore_t restore = { slot, n, window_from, sinks, counts };
    tr_kv_seq_t seq = kv->m.seq[slot];
    uint32_t most = tr_kv_rule_sinks(&kv->policy[slot].origin.rule, UINT32_MAX);

    if (n < MIN_TOKENS || n > kv->config.max_len
        || number[2] > kv->config.max_len - n) {
        return TR_ERR_INVALID;
    }
    restore.len = n + number[2];
    seq.base = restore.len;
    seq.window_from = window_from;
    seq.sinks = sinks;
    if (window_from > seq.base || sinks > window_from || sinks > most
        || (seq.window != 0 && seq.base - window_from > seq.window)
        || !tr_kv_kept_adds_up(kv, &seq, counts)) {
        return TR_ERR_INVALID;
    }
    return kv->ops->restore(kv, &restore);
}

void
tr_kv_kept_restored(tr_kv_cache_t *kv, int32_t slot, const int32_t *tokens,
                    uint32_t n)
{
    tr_kv_kept_t *k = &kv->reuse->kept[slot];

    memcpy(tokens_of(kv, slot), tokens, n * sizeof(*tokens));
    k->ends = k->loaded = true;
    k->n = n;
}

/* ---- keeping ------------------------------------------------------------ */

/* Is all of the slot compressed, and the first n of it there?  A row under way may
 * bring one more. */
static bool
whole(const tr_kv_cache_t *kv, int32_t slot, uint32_t n)
{
    const tr_kv_slot_t *s = &kv->m.slot[slot];

    return kv->reuse->kept != NULL && kv->reuse->kept[slot].on && !s->out
           && s->uncompressed_pages == 0 && s->tokens >= n
           && kv->m.seq[slot].base == s->tokens && n >= MIN_TOKENS
           && !tr_kv_compressing(kv, slot);
}

void
tr_kv_kept_end(tr_kv_cache_t *kv, int32_t slot, const int32_t *tokens,
               uint32_t n)
{
    if (kv->reuse->kept != NULL && kv->reuse->kept[slot].on
        && !kv->m.slot[slot].out && n >= kv->m.seq[slot].base
        && tr_kv_uncompressed(kv, slot)) {
        (void) tr_kv_compress(kv, slot, n); /* it ended with its prompt */
    }
    if (whole(kv, slot, n)) {
        memcpy(tokens_of(kv, slot), tokens, n * sizeof(*tokens));
        kv->reuse->kept[slot].ends = true;
        kv->reuse->kept[slot].n = n;
    }
}

bool
tr_kv_kept_close(tr_kv_cache_t *kv, int32_t slot)
{
    tr_kv_kept_t *k;

    if (kv->reuse == NULL || kv->reuse->kept == NULL) {
        return false;
    }
    k = &kv->reuse->kept[slot];
    assert(!k->kept);
    if (k->ends && keep_slot(kv, slot)) {
        if (!k->loaded) {
            tr_kv_store_want(kv, true, (uint32_t) slot);
        }
        k->loaded = false;
        return true;
    }
    tr_kv_lend_end(kv, slot);
    memset(k, 0, sizeof(*k));
    return false;
}

bool
tr_kv_keep_copy(tr_kv_cache_t *kv, int32_t slot, const int32_t *tokens,
                uint32_t n, bool evict)
{
    tr_kv_kept_t *k;
    int32_t to;

    if (kv->reuse == NULL || !whole(kv, slot, n)
        || (!evict && kv->n_free_slots == 0)) {
        return false;
    }
    to = tr_kv_open(kv, &kv->policy[slot].origin);
    if (to < 0) {
        return false;
    }
    if (kv->ops->copy(kv, slot, to, n, evict) != TR_OK) {
        kv->ops->release(kv, to);
        return false;
    }
    k = &kv->reuse->kept[to];
    k->key = kv->reuse->kept[slot].key;
    k->n = n;
    memcpy(tokens_of(kv, to), tokens, n * sizeof(*tokens));
    if (!keep_slot(kv, to)) {
        tr_kv_lend_end(kv, to);
        memset(k, 0, sizeof(*k));
        kv->ops->release(kv, to);
    }
    return true;
}
