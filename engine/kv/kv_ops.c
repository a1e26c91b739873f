/*
 * kv_cache.h's functions: what a cache of either kind, here or on a device
 * (kv_device.h), answers from what the host knows, and which function answers
 * the rest.
 */
#include "kv_internal.h"

/* ---- of any kind -------------------------------------------------------- */

const tr_page_plan_t *
tr_kv_plan(const tr_kv_cache_t *kv)
{
    return &kv->plan;
}

uint64_t
tr_kv_page_bytes(const tr_kv_cache_t *kv)
{
    return kv->plan.page_bytes;
}

uint64_t
tr_kv_pages(const tr_kv_cache_t *kv)
{
    return kv->m.size.pages;
}

uint64_t
tr_kv_token_bytes(const tr_kv_cache_t *kv)
{
    return (uint64_t) kv->heads * 4 * kv->config.head_dim;
}

void
tr_kv_view(const tr_kv_cache_t *kv, tr_kv_view_t *out)
{
    *out = kv->view;
}

const tr_kv_policy_t *
tr_kv_slot_policy(const tr_kv_cache_t *kv, int32_t slot)
{
    tr_kv_slot(kv, slot);
    return &kv->policy[slot].begun;
}

bool
tr_kv_uncompressed(const tr_kv_cache_t *kv, int32_t slot)
{
    const tr_kv_slot_t *s = tr_kv_slot(kv, slot);

    return s->rule.n_levels != 0 && s->tokens > kv->m.seq[slot].base;
}

uint32_t
tr_kv_stages(const tr_kv_cache_t *kv, const tr_kv_policy_t *policy)
{
    const tr_kv_policy_t *p = policy != NULL ? policy : kv->usual;

    return p->n_levels != 0 ? kv->config.stage : 0;
}

bool
tr_kv_stage_due(const tr_kv_cache_t *kv, int32_t slot, uint32_t len)
{
    const tr_kv_slot_t *s = tr_kv_slot(kv, slot);

    return kv->config.stage != 0 && s->rule.n_levels != 0 && s->uncompressed
           && len % kv->config.stage == 0 && len > kv->m.seq[slot].base
           && len < s->prompt;
}

uint64_t
tr_kv_held_pages(const tr_kv_cache_t *kv, int32_t slot)
{
    return tr_kv_slot(kv, slot)->pages;
}

uint64_t
tr_kv_borrowed_pages(const tr_kv_cache_t *kv, int32_t slot)
{
    return tr_kv_slot(kv, slot)->borrowed;
}

uint32_t
tr_kv_reserved(const tr_kv_cache_t *kv, int32_t slot)
{
    return tr_kv_slot(kv, slot)->tokens;
}

uint64_t
tr_kv_swapped_pages(const tr_kv_cache_t *kv, int32_t slot)
{
    const tr_kv_slot_t *s = tr_kv_slot(kv, slot);

    return s->out ? s->pages : 0;
}

/* ---- of its kind -------------------------------------------------------- */

void
tr_kv_cache_free(tr_kv_cache_t *kv)
{
    if (kv != NULL) {
        tr_kv_store_close(kv); /* no step loop has */
        kv->ops->free(kv);
    }
}

bool
tr_kv_settled(const tr_kv_cache_t *kv)
{
    return kv->ops->settled(kv);
}

uint64_t
tr_kv_free_pages(const tr_kv_cache_t *kv)
{
    return kv->ops->free_pages(kv);
}

int32_t
tr_kv_open(tr_kv_cache_t *kv, const tr_kv_policy_t *policy)
{
    return kv->ops->open(kv, policy);
}

void
tr_kv_close(tr_kv_cache_t *kv, int32_t slot)
{
    kv->ops->close(kv, slot);
}

void
tr_kv_prompt(tr_kv_cache_t *kv, int32_t slot, uint32_t len)
{
    kv->ops->prompt(kv, slot, len);
}

void
tr_kv_reserve_batch(tr_kv_cache_t *kv, const int32_t *slots,
                    const uint32_t *lens, uint32_t n, tr_status_t *result)
{
    kv->ops->reserve_batch(kv, slots, lens, n, result);
}

tr_status_t
tr_kv_reserve(tr_kv_cache_t *kv, int32_t slot, uint32_t len)
{
    tr_status_t rc;

    kv->ops->reserve_batch(kv, &slot, &len, 1, &rc);
    return rc;
}

tr_status_t
tr_kv_compress(tr_kv_cache_t *kv, int32_t slot, uint32_t len)
{
    return kv->ops->compress(kv, slot, len);
}

tr_status_t
tr_kv_stage(tr_kv_cache_t *kv, int32_t slot, uint32_t len)
{
    assert(tr_kv_stage_due(kv, slot, len));
    kv->stages++;
    return kv->ops->stage(kv, slot, len);
}

bool
tr_kv_compressing(const tr_kv_cache_t *kv, int32_t slot)
{
    return kv->ops->compressing(kv, slot);
}

tr_status_t
tr_kv_fork(tr_kv_cache_t *kv, int32_t from, int32_t to, uint32_t len)
{
    return kv->ops->fork(kv, from, to, len);
}

tr_status_t
tr_kv_swap_out(tr_kv_cache_t *kv, int32_t slot)
{
    tr_status_t rc = kv->ops->swap_out(kv, slot);

    if (rc == TR_OK) { /* it took all along */
        tr_kv_lend_end(kv, slot);
    }
    return rc;
}

tr_status_t
tr_kv_swap_in(tr_kv_cache_t *kv, int32_t slot)
{
    return kv->ops->swap_in(kv, slot);
}

bool
tr_kv_coming(const tr_kv_cache_t *kv, int32_t slot)
{
    return kv->ops->coming != NULL && kv->ops->coming(kv, slot);
}

void
tr_kv_usage(const tr_kv_cache_t *kv, int32_t slot, tr_kv_usage_t *out)
{
    kv->ops->usage(kv, slot, out);
}

void
tr_kv_usage_in(const tr_kv_cache_t *kv, int32_t slot,
               const tr_page_plan_t *plan, tr_kv_usage_t *out)
{
    kv->ops->usage_in(kv, slot, plan, out);
}

void
tr_kv_totals(const tr_kv_cache_t *kv, tr_kv_totals_t *out)
{
    kv->ops->totals(kv, out);
}

bool
tr_kv_sound(const tr_kv_cache_t *kv)
{
    return kv->ops->sound(kv);
}
