/*
 * What the KV cache holds and what it would take (kv_cache.h): for admission,
 * for the usage of a request, and for the status page.
 */
#include <string.h>

#include "kv_internal.h"

int
tr_kv_layout_of(const tr_page_plan_t *plan, const tr_kv_level_t *level)
{
    uint32_t i;

    for (i = 1; i < plan->n; i++) {
        if (tr_kv_level_equal(&plan->layout[i].level, level)) {
            return (int) i;
        }
    }
    return -1;
}

/* Tokens that a page of this level holds. */
static uint32_t
tr_kv_level_tokens(const tr_page_plan_t *plan, const tr_kv_level_t *level)
{
    int i = tr_kv_layout_of(plan, level);

    assert(i > 0);
    return plan->layout[i].tokens;
}

/* Tokens in the window of a slot whose last prompt had n, sinks included. */
static uint32_t
tr_kv_window_tokens(const tr_kv_policy_t *p, uint32_t n)
{
    tr_kv_policy_t begun;
    uint32_t held;

    if (p->n_levels == 0) {
        return 0;
    }
    if (p->row->begin != NULL) {
        tr_kv_policy_for(p, n, &begun);
        p = &begun;
    }
    held = p->window + tr_kv_rule_sinks(&p->rule, n);
    return n < held ? n : held;
}

uint32_t
tr_kv_policy_window(const tr_page_plan_t *plan, const tr_kv_policy_t *p,
                    uint32_t n)
{
    uint32_t tokens = tr_kv_window_tokens(p, n);

    return tokens == 0
               ? 0
               : manager_ceil(tokens,
                              tr_kv_level_tokens(plan, &p->window_level));
}

/* Pages of the copy that the policy is charged for, all heads. */
static uint64_t
tr_kv_charged_copy(const tr_kv_cache_t *kv, const tr_kv_policy_t *p, uint32_t n)
{
    uint32_t kv_heads = kv->config.kv_heads, head, l;
    tr_kv_policy_t begun;
    uint64_t sum;

    tr_kv_policy_for(p, n, &begun);
    sum = (uint64_t) tr_kv_policy_window(&kv->plan, p, n)
          * (kv->heads - tr_kv_near(kv, p));
    for (head = 0; head < kv->heads && p->n_levels != 0; head++) {
        uint32_t tokens[TR_KV_TIERS_MAX] = { 0 };

        if (tr_kv_slides(&kv->view, head / kv_heads)) {
            continue;
        }
        p->row->charge(&begun, head / kv_heads, head % kv_heads, n, tokens);
        for (l = 0; l < p->n_levels; l++) {
            sum += manager_ceil(tokens[l],
                                tr_kv_level_tokens(&kv->plan, &p->level[l]));
        }
    }
    return sum;
}

/* Pages of n tokens in stages, all heads, of which the last `rest` are at 16
 * bits. */
static uint64_t
tr_kv_staged(const tr_kv_cache_t *kv, const tr_kv_policy_t *p, uint32_t n,
             uint32_t rest)
{
    uint32_t near = tr_kv_near(kv, p), held = n - rest, seen;
    uint32_t window = tr_kv_window_tokens(p, held);
    uint64_t each = manager_ceil(rest, kv->plan.layout[0].tokens);

    if (held != 0) {
        each += manager_ceil(held - window,
                             tr_kv_level_tokens(&kv->plan, &p->level[0]))
                + tr_kv_policy_window(&kv->plan, p, held);
    }
    seen = held < kv->reach ? held : kv->reach;
    return each * (kv->heads - near)
           + (uint64_t) near
                 * (manager_ceil(seen + rest, kv->plan.layout[0].tokens) + 1);
}

static uint64_t
tr_kv_without(uint64_t pages, uint64_t lent)
{
    return pages > lent ? pages - lent : 0;
}

/* The most pages of a prompt of n tokens that has stages, and ends with a copy of
 * so many: at the last stage, and at the end, in each case with the copy of the
 * layers that are first.  Of these it borrows `lent`, which stay where they are. */
static uint64_t
tr_kv_staged_peak(const tr_kv_cache_t *kv, const tr_kv_policy_t *p, uint32_t n,
                  uint64_t copy, uint64_t lent)
{
    uint32_t stage = kv->config.stage, last = (n - 1) / stage * stage;
    uint32_t at_once = tr_kv_at_once(kv, n);
    uint32_t layers = (kv->heads - tr_kv_near(kv, p)) / kv->config.kv_heads;
    uint64_t before = tr_kv_without(tr_kv_staged(kv, p, last, stage), lent);
    uint64_t after = tr_kv_without(tr_kv_staged(kv, p, last, 0), lent);
    uint64_t end = tr_kv_without(tr_kv_staged(kv, p, n, n - last), lent);

    copy = tr_kv_without(copy, lent);
    layers = layers != 0 ? layers : 1;
    before += (after + layers - 1) / layers * at_once;
    if (copy > end) { /* the last layers find less than they take */
        end = copy;
    }
    end += (copy + layers - 1) / layers * at_once;
    return before > end ? before : end;
}

uint64_t
tr_kv_pages_for(const tr_kv_cache_t *kv, const tr_kv_policy_t *policy,
                uint32_t n)
{
    const tr_kv_policy_t *p = policy != NULL ? policy : kv->usual;
    uint64_t copy = tr_kv_charged_copy(kv, p, n);

    if (p->n_levels != 0 && tr_kv_at_once(kv, n) != 0) {
        return tr_kv_staged_peak(kv, p, n, copy, 0);
    }
    return (uint64_t) manager_ceil(n, kv->plan.layout[0].tokens) * kv->heads
           + copy;
}

uint64_t
tr_kv_pages_behind(const tr_kv_cache_t *kv, const tr_kv_policy_t *policy,
                   uint32_t n, const tr_kv_found_t *found)
{
    const tr_kv_policy_t *p = policy != NULL ? policy : kv->usual;
    uint64_t all = tr_kv_pages_for(kv, p, n), rest, parts, behind;

    if (found->kept == 0 || tr_kv_at_once(kv, n) == 0) {
        return all;
    }
    /* a head has a part of a page in each tier, and one is counted */
    parts = (uint64_t) p->n_levels * kv->heads;
    behind = tr_kv_staged_peak(kv, p, n, tr_kv_charged_copy(kv, p, n),
                               tr_kv_without(found->lent, parts));
    /* what is expected of a copy may be less than what is borrowed */
    rest = found->own + tr_kv_pages_for(kv, p, n - found->tokens);
    behind = behind > rest ? behind : rest;
    return behind < all ? behind : all;
}

uint32_t
tr_kv_worst_copy(const tr_page_plan_t *plan, const tr_kv_policy_t *p,
                 uint32_t n)
{
    uint32_t least = UINT32_MAX, held, l;

    if (p->n_levels == 0) {
        return 0;
    }
    for (l = 0; l < p->n_levels; l++) {
        uint32_t tokens = tr_kv_level_tokens(plan, &p->level[l]);

        least = tokens < least ? tokens : least;
    }
    held = tr_kv_window_tokens(p, n);
    return manager_ceil(n - held, least) + p->n_levels - 1
           + tr_kv_policy_window(plan, p, n);
}

/* Can n tokens be held and compressed in the empty pool, whatever the policy
 * decides?  In a later turn compressed tokens and uncompressed ones stand
 * beside the copy, with a partial page more for each tier, the window and the
 * uncompressed end. */
static bool
tr_kv_len_fits(const tr_kv_cache_t *kv, const tr_kv_policy_t *p, uint32_t n)
{
    uint64_t each = manager_ceil(n, kv->plan.layout[0].tokens), all, copy = 0;

    all = each * kv->heads;
    if (p->n_levels != 0) {
        each = (uint64_t) tr_kv_worst_copy(&kv->plan, p, n) + p->n_levels + 1
               + tr_kv_policy_window(&kv->plan, p, n);
        copy = each * (kv->heads - kv->near);
    }
    if (p->n_levels != 0 && tr_kv_at_once(kv, n) != 0) {
        all = (uint64_t) (p->n_levels + 1) * kv->heads;
        return all + tr_kv_staged_peak(kv, p, n, copy, 0) <= kv->m.size.pages;
    }
    return all + copy <= kv->m.size.pages;
}

uint32_t
tr_kv_max_len(const tr_kv_cache_t *kv, const tr_kv_policy_t *policy)
{
    const tr_kv_policy_t *p = policy != NULL ? policy : kv->usual;
    uint32_t low = 0, high = kv->config.max_len;

    while (low < high) { /* low fits, high + 1 does not */
        uint32_t middle = high - (high - low) / 2;

        if (tr_kv_len_fits(kv, p, middle)) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    return low;
}

bool
tr_kv_exact(const tr_kv_cache_t *kv, const tr_kv_policy_t *policy)
{
    const tr_kv_policy_t *p = policy != NULL ? policy : kv->usual;

    return p->n_levels != 0 || p->scored || p->minmax;
}

/* Nobody keeps more than this level. */
static bool
tr_kv_level_full(const tr_kv_level_t *level)
{
    return level->key_bits == 16 && level->value_bits == 16;
}

/* Averages of the first one, two, three parts, rounded, so that the parts sum
 * up to `tokens`. */
static void
tr_kv_usage_tokens(uint32_t heads, uint64_t full, uint64_t high, uint64_t low,
                   tr_kv_usage_t *out)
{
    uint32_t one = (uint32_t) ((full + heads / 2) / heads);
    uint32_t two = (uint32_t) ((full + high + heads / 2) / heads);
    uint32_t three = (uint32_t) ((full + high + low + heads / 2) / heads);

    out->at_full = one;
    out->at_high = two - one;
    out->at_low = three - two;
    out->pruned = out->tokens - three;
}

void
tr_kv_usage_fill(const tr_kv_cache_t *kv, const tr_kv_policy_t *p,
                 uint32_t tokens, uint64_t bytes, const tr_kv_standing_t *at,
                 tr_kv_usage_t *out)
{
    uint64_t all = (uint64_t) tokens * kv->heads, full = at->uncompressed, high,
             low;
    uint32_t l;

    memset(out, 0, sizeof(*out));
    out->bytes = bytes;
    out->full_bytes = tokens * tr_kv_token_bytes(kv);
    out->tokens = tokens;
    if (all == 0) {
        return;
    }
    high = at->uncompressed + at->window + at->tiered[0];
    for (l = 1, low = 0; l < TR_KV_TIERS_MAX; l++) {
        low += at->tiered[l];
    }
    out->share_high = (float) ((double) high / (double) all);
    out->share_low = (float) ((double) low / (double) all);
    out->share_pruned = (float) ((double) (all - high - low) / (double) all);
    if (tr_kv_level_full(&p->window_level)) {
        full += at->window;
    }
    if (tr_kv_level_full(&p->level[0])) {
        full += at->tiered[0];
    }
    tr_kv_usage_tokens(kv->heads, full, high - full, low, out);
}

/* Bytes and shares of a slot with the pages of `plan`. */
void
tr_kv_usage_of(const tr_kv_cache_t *kv, int32_t slot, const uint32_t *counts,
               const tr_page_plan_t *plan, tr_kv_usage_t *out)
{
    const tr_kv_slot_t *s = tr_kv_slot(kv, slot);
    const tr_kv_seq_t *q = &kv->m.seq[slot];
    const tr_kv_policy_t *p = &kv->policy[slot].begun;
    uint32_t uncompressed = s->tokens - q->base, each, head, l;
    uint32_t near = manager_near(&kv->m, q), rest = kv->heads - near;
    uint32_t gone = s->near_from * kv->plan.layout[0].tokens;
    tr_kv_standing_t at = { .uncompressed = (uint64_t) uncompressed * rest
                                            + (uint64_t) s->tokens * near };
    uint64_t pages;

    at.window = (uint64_t) tr_kv_windowed(q) * rest;
    each = manager_ceil(uncompressed, plan->layout[0].tokens);
    if (q->base != 0 && q->window != 0) {
        uint32_t held = q->sinks + q->window;

        each += manager_ceil(q->base < held ? q->base : held,
                             tr_kv_level_tokens(plan, &p->window_level));
    }
    pages = (uint64_t) each * rest
            + (uint64_t) near
                  * manager_ceil(s->tokens - gone, plan->layout[0].tokens);
    for (l = 0; l < q->n_tiers; l++) {
        uint32_t tokens = tr_kv_level_tokens(plan, &p->level[l]);
        const uint32_t *count = counts + l;

        for (head = 0; head < kv->heads; head++) {
            at.tiered[l] += count[head * TR_KV_TIERS_MAX];
            pages += manager_ceil(count[head * TR_KV_TIERS_MAX], tokens);
        }
    }
    tr_kv_usage_fill(kv, p, s->tokens, pages * plan->page_bytes, &at, out);
}

void
tr_kv_host_usage_in(const tr_kv_cache_t *kv, int32_t slot,
                    const tr_page_plan_t *plan, tr_kv_usage_t *out)
{
    tr_kv_usage_of(kv, slot, manager_counts(&kv->m, slot, 0), plan, out);
}

void
tr_kv_host_usage(const tr_kv_cache_t *kv, int32_t slot, tr_kv_usage_t *out)
{
    tr_kv_host_usage_in(kv, slot, &kv->plan, out);
    /* uncompressed pages may be there for tokens to come; what it shares it would
     * hold alone */
    out->bytes = (kv->m.slot[slot].pages + kv->m.slot[slot].borrowed
                  + (uint64_t) kv->m.seq[slot].shared * kv->heads)
                 * kv->plan.page_bytes;
}

tr_status_t
tr_kv_policy_plan(const tr_kv_policy_t *policy, uint32_t head_dim,
                  uint32_t max_len, tr_page_plan_t *out)
{
    tr_kv_level_t level[TR_KV_TIERS_MAX + 1];
    tr_page_spec_t spec = { .head_dim = head_dim,
                            .levels = level,
                            .uncompressed_scored = policy->scored,
                            .uncompressed_minmax = policy->minmax,
                            .short_positions = max_len <= TR_KV_SHORT };

    tr_kv_levels_of(policy, level, &spec.n_levels, TR_KV_TIERS_MAX + 1);
    return tr_page_plan(&spec, out) == 0 ? TR_OK : TR_ERR_INVALID;
}

bool
tr_kv_levels_of(const tr_kv_policy_t *p, tr_kv_level_t *level, uint32_t *n,
                uint32_t room)
{
    uint32_t i, j;

    for (i = 0; i <= p->n_levels && p->n_levels != 0; i++) {
        const tr_kv_level_t *v = i < p->n_levels ? &p->level[i]
                                                 : &p->window_level;

        if (i == p->n_levels && p->window == 0) {
            break;
        }
        for (j = 0; j < *n && !tr_kv_level_equal(&level[j], v); j++) {
        }
        if (j == *n) {
            if (*n == room) {
                return false;
            }
            level[(*n)++] = *v;
        }
    }
    return true;
}

void
tr_kv_host_totals(const tr_kv_cache_t *kv, tr_kv_totals_t *out)
{
    const tr_kv_reuse_t *r = kv->reuse;
    uint32_t i;

    *out = kv->totals;
    for (i = 0; i < TR_KV_LAYOUTS_MAX; i++) {
        out->pages[i] = kv->m.report->pages[i]
                        - (r != NULL ? r->kept_pages[i] : 0);
    }
    tr_kv_reuse_totals(kv, out);
    out->full_bytes = out->tokens * tr_kv_token_bytes(kv);
}
