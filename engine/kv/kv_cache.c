/*
 * What KV caches (kv_cache.h) of both kinds are made of: pages for the levels
 * of all policies, the parts of a table's row, and sequence slots.
 */
#include "kv_cache.h"

#include <stdlib.h>
#include <string.h>

#include "kv_internal.h"
#include "engine/config/log.h"

/* ---- create ------------------------------------------------------------- */

static tr_status_t
tr_kv_check_config(const tr_kv_config_t *c, tr_error_t *err)
{
    uint32_t i;

    if (c->layers == 0 || c->kv_heads == 0
        || (uint64_t) c->layers * c->kv_heads > UINT32_MAX || c->head_dim == 0
        || c->head_dim % 16 != 0 || c->slots == 0 || c->slots > INT32_MAX
        || c->layers * c->kv_heads > UINT32_MAX / c->slots || c->max_len == 0
        || c->n_policies == 0) {
        return tr_error_set(err, TR_ERR_INVALID, "",
                            "KV cache of %u layers, %u KV heads, head size %u, "
                            "%u"
                            " sequences of %u tokens, %u policies: all must be"
                            " positive, the head size a multiple of 16",
                            c->layers, c->kv_heads, c->head_dim, c->slots,
                            c->max_len, c->n_policies);
    }
    for (i = 0; i < c->n_policies; i++) {
        const tr_kv_policy_t *p = c->policies[i];

        if (p->n_levels > TR_KV_TIERS_MAX
            || (p->leaves > 1
                && (p->leaves != TR_KV_CHANNEL_TOKENS
                    || p->window < TR_KV_CHANNEL_TOKENS))) {
            return tr_error_set(err, TR_ERR_INVALID, "kv_policy",
                                "KV policy %s has %u levels and lets %u tokens"
                                " leave a window of %u: at most %u levels, and"
                                " 1 token or %u from a window as large",
                                p->name, p->n_levels, p->leaves, p->window,
                                TR_KV_TIERS_MAX, TR_KV_CHANNEL_TOKENS);
        }
    }
    return TR_OK;
}

/* One page size for the levels of all policies. */
static tr_status_t
tr_kv_plan_pages(tr_kv_cache_t *kv, tr_error_t *err)
{
    const tr_kv_config_t *c = &kv->config;
    tr_kv_level_t level[TR_KV_LAYOUTS_MAX - 1];
    tr_page_spec_t spec = { .head_dim = c->head_dim,
                            .levels = level,
                            .short_positions = c->max_len <= TR_KV_SHORT };
    uint32_t i;

    for (i = 0; i < c->n_policies; i++) {
        const tr_kv_policy_t *p = c->policies[i];

        spec.uncompressed_scored = spec.uncompressed_scored || p->scored;
        spec.uncompressed_minmax = spec.uncompressed_minmax || p->minmax;
        if (!tr_kv_levels_of(p, level, &spec.n_levels, TR_KV_LAYOUTS_MAX - 1)) {
            return tr_error_set(err, TR_ERR_INVALID, "kv_policy",
                                "the KV policies have more than %d levels"
                                " together: leave some out, from %s on",
                                TR_KV_LAYOUTS_MAX - 1, p->spec);
        }
    }
    if (tr_page_plan(&spec, &kv->plan) != 0) {
        return tr_error_set(err, TR_ERR_INVALID, "kv_policy",
                            "no KV page holds head size %u at all levels of"
                            " the policies: levels below 16 bits need a"
                            " multiple of 32, and every level a page of 24 KiB"
                            " at most",
                            c->head_dim);
    }
    return TR_OK;
}

/* Which layers slide. */
static tr_status_t
tr_kv_plan_slides(tr_kv_cache_t *kv, tr_error_t *err)
{
    const tr_kv_config_t *c = &kv->config;

    for (uint32_t l = 0; l < c->layers && c->reach != NULL; l++) {
        if (c->reach[l] == 0) {
            continue;
        }
        if (l >= TR_KV_SLIDES_MAX) {
            return tr_error_set(err, TR_ERR_INVALID, "",
                                "layer %u has a sliding window: the KV cache"
                                " knows of windows in the first %u layers",
                                l, TR_KV_SLIDES_MAX);
        }
        kv->view.slides[l / 32] |= 1u << l % 32;
        kv->near += c->kv_heads;
        kv->reach = c->reach[l] > kv->reach ? c->reach[l] : kv->reach;
    }
    /* a sequence that is kept would have to keep what its layers saw */
    kv->config.reuse_compressed = c->reuse_compressed && kv->near == 0;
    kv->config.reach = NULL;
    return TR_OK;
}

tr_status_t
tr_kv_shape(tr_kv_cache_t *kv, const tr_kv_config_t *config, tr_error_t *err)
{
    tr_status_t rc = tr_kv_check_config(config, err);

    if (rc != TR_OK) {
        return rc;
    }
    kv->config = *config;
    kv->usual = config->policies[0];
    kv->heads = config->layers * config->kv_heads;
    kv->view.layers = config->layers;
    kv->view.kv_heads = config->kv_heads;
    kv->view.head_dim = config->head_dim;
    rc = tr_kv_plan_slides(kv, err);
    if (rc == TR_OK) {
        rc = tr_kv_plan_pages(kv, err);
    }
    kv->view.page_bytes = kv->plan.page_bytes;
    kv->view.n_layouts = kv->plan.n;
    kv->view.layout = kv->plan.layout;
    return rc;
}

/* Which part of a row is whose, for the longest sequence of any policy; no part
 * is longer than the pool. */
void
tr_kv_lay_tables(tr_kv_cache_t *kv, uint32_t pages)
{
    const tr_kv_config_t *c = &kv->config;
    tr_kv_view_t *v = &kv->view;
    uint32_t window = 0, uncompressed, n, i, pair, l, each = pages / kv->heads;

    v->pair_len[0] = v->pair_len[1] = 0;
    uncompressed = manager_ceil(c->max_len, kv->plan.layout[0].tokens);
    if (kv->near == 0) { /* else more tokens than others hold at 16 bits */
        uncompressed = uncompressed < each ? uncompressed : each;
    }
    for (i = 0; i < c->n_policies; i++) {
        const tr_kv_policy_t *p = c->policies[i];

        for (pair = 0; pair < 2 && pair * 2 < p->n_levels; pair++) {
            uint32_t least = UINT32_MAX, len;

            n = 0;
            for (l = pair * 2; l < p->n_levels && l < pair * 2 + 2; l++, n++) {
                int at = tr_kv_layout_of(&kv->plan, &p->level[l]);
                uint32_t tokens = kv->plan.layout[at].tokens;

                least = tokens < least ? tokens : least;
            }
            /* both tiers end with a page that is not full */
            len = manager_ceil(c->max_len, least) + n - 1;
            len = len < pages ? len : pages;
            v->pair_len[pair] = len > v->pair_len[pair] ? len
                                                        : v->pair_len[pair];
        }
        n = tr_kv_policy_window(&kv->plan, p, c->max_len);
        window = n > window ? n : window;
    }
    v->at_window = uncompressed;
    v->at_pair[0] = v->at_window + window;
    v->at_pair[1] = v->at_pair[0] + v->pair_len[0];
    v->table_len = v->at_pair[1] + v->pair_len[1];
}

bool
tr_kv_slots_memory(tr_kv_cache_t *kv)
{
    uint32_t slots = kv->config.slots, i;

    kv->policy = calloc(slots, sizeof(*kv->policy));
    kv->free_slots = calloc(slots, sizeof(*kv->free_slots));
    if (kv->policy == NULL || kv->free_slots == NULL) {
        return false;
    }
    kv->n_free_slots = slots;
    for (i = 0; i < slots; i++) {
        kv->free_slots[i] = (int32_t) (slots - 1 - i);
    }
    return true;
}

/* ---- slots -------------------------------------------------------------- */

/* Tables were made for the windows of the policies at create. */
static bool
tr_kv_fits_tables(const tr_kv_cache_t *kv, const tr_kv_policy_t *p)
{
    return tr_kv_policy_window(&kv->plan, p, kv->config.max_len)
           <= kv->view.at_pair[0] - kv->view.at_window;
}

/* A slot of this policy, before its first token. */
static void
tr_kv_seq_start(const tr_kv_cache_t *kv, const tr_kv_policy_t *p,
                tr_kv_seq_t *q)
{
    uint32_t l;

    memset(q, 0, sizeof(*q));
    q->scored = p->scored;
    q->by_sum = p->by_sum;
    q->recent_from = UINT32_MAX;
    q->read_layer = p->read_from;
    q->n_tiers = (uint8_t) p->n_levels;
    q->settled = tr_kv_policy_settled(p);
    for (l = 0; l < p->n_levels; l++) {
        int at = tr_kv_layout_of(&kv->plan, &p->level[l]);

        assert(at > 0);
        q->tier_layout[l] = (uint8_t) at;
    }
    if (p->n_levels != 0 && p->window != 0) {
        int at = tr_kv_layout_of(&kv->plan, &p->window_level);

        assert(at > 0);
        q->window = p->window;
        q->window_layout = (uint8_t) at;
    }
}

bool
tr_kv_take_slot(tr_kv_cache_t *kv, const tr_kv_policy_t *policy,
                tr_kv_open_t *open)
{
    const tr_kv_policy_t *p = policy != NULL ? policy : kv->usual;
    int32_t slot;

    if (kv->n_free_slots == 0) {
        return false;
    }
    slot = kv->free_slots[--kv->n_free_slots];
    assert(!kv->m.slot[slot].open && kv->m.slot[slot].pages == 0);
    assert(tr_kv_fits_tables(kv, p));
    kv->policy[slot].origin = kv->policy[slot].begun = *p;
    memset(open, 0, sizeof(*open));
    open->slot = slot;
    open->rule = p->rule;
    tr_kv_seq_start(kv, p, &open->seq);
    return true;
}

void
tr_kv_drop_slot(tr_kv_cache_t *kv, int32_t slot)
{
    kv->free_slots[kv->n_free_slots++] = slot;
}
