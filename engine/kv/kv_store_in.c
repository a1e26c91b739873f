/*
 * Prefixes that come from files (kv_store_internal.h).
 *
 * Before a prompt is admitted the store looks whether a file has more of it
 * than memory does.  Pages for all of it are taken, as a slot of nobody's, and
 * filled; then it is kept as if its conversation had just ended here, and the
 * prompt finds it like any other.  Until then its pages count as free: when they
 * are wanted, it goes.
 */
#include <string.h>

#include "kv_store_internal.h"

/* A disk that says nothing for so long is not waited for. */
#define PATIENCE_US 2000000u

/* ---- room ---------------------------------------------------------------- */

static const tr_prefix_match_t no_match = { .node = TR_PREFIX_NONE,
                                            .part = TR_PREFIX_NONE };

static tr_status_t
take(tr_kv_cache_t *kv, const tr_kv_policy_t *policy,
     const tr_store_item_t *item, kv_store_way_t *way, int32_t *slot)
{
    tr_kv_found_t none = { .match = no_match };
    int32_t to = tr_kv_open(kv, policy);
    tr_status_t rc;

    if (to < 0) {
        return TR_AGAIN;
    }
    rc = tr_kv_adopt(kv, to, &item->key, &none);
    if (rc == TR_OK && kv->m.seq[to].n_tiers != 0) {
        rc = tr_kv_kept_restore(kv, to, item->n_tokens, item->number,
                                item->counts);
    } else if (rc == TR_OK) {
        rc = tr_kv_reserve(kv, to, item->n_tokens);
    }
    if (rc == TR_OK && kv->m.slot[to].pages != item->n_pages) {
        rc = TR_ERR_INVALID;
    }
    if (rc != TR_OK) {
        tr_kv_close(kv, to);
        return rc;
    }
    way->n = kv_store_list(kv, &kv->m.seq[to], item->counts,
                           kv->m.slot[to].uncompressed_pages, way->ref);
    way->at = way->begun = way->over = 0;
    *slot = way->slot = to;
    return TR_OK;
}

tr_status_t
kv_store_take(tr_kv_cache_t *kv, const tr_kv_policy_t *policy,
              const tr_store_item_t *item, kv_store_way_t *way, int32_t *slot)
{
    tr_status_t rc;

    kv->store->taking = true;
    rc = take(kv, policy, item, way, slot);
    kv->store->taking = false;
    return rc;
}

void
kv_store_filled(tr_kv_cache_t *kv, int32_t slot, const tr_store_item_t *item)
{
    if (kv->m.seq[slot].n_tiers != 0) {
        tr_kv_kept_restored(kv, slot, item->tokens, item->n_tokens);
    } else {
        kv->reuse->slot[slot].loaded = true;
        tr_kv_keep(kv, slot, item->tokens, item->n_tokens, true);
    }
    tr_kv_close(kv, slot);
}

static double
bytes_of(const tr_kv_cache_t *kv, const tr_store_item_t *item)
{
    return (double) item->n_pages * kv->plan.page_bytes;
}

/* What was loaded is kept, or goes. */
static void
get_over(tr_kv_cache_t *kv, bool whole)
{
    tr_kv_store_t *s = kv->store;
    const tr_store_item_t *item = tr_store_got(s->files);
    int32_t slot = s->get_slot;

    if (slot >= 0) {
        s->get_slot = -1;
        if (whole) {
            tr_kv_speed_saw(&s->brings[TR_KV_FILES], bytes_of(kv, item),
                            (double) (kv->reuse->now - s->asked));
            kv_store_filled(kv, slot, item);
        } else {
            kv->ops->files->stop(kv, TR_KV_FILES);
            tr_kv_close(kv, slot);
        }
    }
    s->owner = NULL;
    tr_store_get_over(s->files);
}

/* Nobody waits for what was asked any more. */
static void
give_up(tr_kv_cache_t *kv)
{
    tr_kv_store_t *s = kv->store;
    int32_t slot = s->get_slot;

    s->get_slot = -1;
    s->owner = NULL;
    s->stopping = true;
    tr_store_get_stop(s->files);
    if (slot >= 0) {
        kv->ops->files->stop(kv, TR_KV_FILES);
        tr_kv_close(kv, slot);
    }
}

bool
tr_kv_store_yield(tr_kv_cache_t *kv)
{
    if (kv->store == NULL || kv->store->taking) {
        return false;
    }
    if (kv->store->files != NULL && kv->store->get_slot >= 0) {
        give_up(kv);
        return true;
    }
    return kv_shelf_yield(kv);
}

uint64_t
tr_kv_store_pages(const tr_kv_cache_t *kv)
{
    const tr_kv_store_t *s = kv->store;

    if (s == NULL || s->taking) {
        return 0;
    }
    return kv_shelf_pages(kv)
           + (s->get_slot >= 0 ? kv->m.slot[s->get_slot].pages : 0);
}

/* ---- pages --------------------------------------------------------------- */

static void
taken(tr_kv_store_t *s)
{
    tr_store_get_taken(s->files);
}

static bool
get_pieces(tr_kv_cache_t *kv)
{
    const tr_kv_files_t *f = kv->ops->files;
    tr_kv_store_t *s = kv->store;
    kv_store_way_t *way = &s->in;
    uint32_t over = way->over, begun = way->begun;
    tr_kv_piece_t piece;
    tr_status_t rc = kv_store_arrived(kv, way, false, taken);

    for (uint32_t left = kv_store_at_once(kv, TR_KV_FILES);
         left != 0 && (rc == TR_OK || rc == TR_AGAIN)
         && kv_store_next(kv, way, false, &piece);
         left--) {
        /* it is read alone */
        piece.memory = (uint8_t *) (uintptr_t) tr_store_get_piece(s->files);
        if (piece.memory == NULL) {
            break;
        }
        rc = f->in(kv, TR_KV_FILES, &piece);
        way->at += piece.n;
        way->begun++;
    }
    if (rc == TR_OK) { /* as in kv_store_out.c */
        rc = kv_store_arrived(kv, way, false, taken);
    }
    if (rc != TR_OK && rc != TR_AGAIN) {
        give_up(kv);
        return true;
    }
    if (way->over != over || way->begun != begun) {
        s->since = kv->reuse->now;
        return true;
    }
    return way->over != way->begun;
}

/* A file was found.  Is it of use?  On a slow disk its tokens are computed
 * sooner. */
static bool
is_worth(tr_kv_cache_t *kv, const tr_store_item_t *item)
{
    tr_kv_store_t *s = kv->store;

    return item->n_tokens > s->from
           && kv_store_is_worth(s, TR_KV_FILES, s->owner, bytes_of(kv, item),
                                item->n_tokens - s->from, true);
}

/* It gets its pages, and then they are there. */
static bool
get_found(tr_kv_cache_t *kv)
{
    tr_kv_store_t *s = kv->store;
    const tr_store_item_t *item = tr_store_got(s->files);
    tr_status_t rc;

    if (s->get_slot < 0 && s->tries == 0 && !is_worth(kv, item)) {
        give_up(kv);
        return true;
    }
    if (s->get_slot < 0) {
        s->since = kv->reuse->now;
        rc = kv_store_take(kv, &s->policy, item, &s->in, &s->get_slot);
        if (rc != TR_OK) {
            if (rc != TR_AGAIN || ++s->tries == KV_STORE_TRIES) {
                give_up(kv);
            }
            return true;
        }
    }
    rc = kv->ops->files->begin(kv, TR_KV_FILES, s->get_slot, item->tokens,
                               item->n_tokens);
    if (rc == TR_OK) {
        tr_store_get_go(s->files);
    } else if (rc != TR_AGAIN) {
        give_up(kv);
    }
    return true;
}

/* What was asked for is given up: only the thread's last word counts. */
static bool
get_stopping(tr_kv_store_t *s)
{
    switch (tr_store_get_state(s->files)) {
    case TR_STORE_IDLE:
        s->stopping = false;
        return true;
    case TR_STORE_NONE:
    case TR_STORE_DONE:
    case TR_STORE_FAILED:
        tr_store_get_over(s->files);
        s->stopping = false;
        return true;
    default:
        return false;
    }
}

static bool
get_step(tr_kv_cache_t *kv)
{
    tr_store_get_t state = tr_store_get_state(kv->store->files);

    switch (state) {
    case TR_STORE_FOUND:
        return get_found(kv);
    case TR_STORE_LOADING:
        return get_pieces(kv);
    case TR_STORE_NONE:
    case TR_STORE_DONE:
    case TR_STORE_FAILED:
        get_over(kv, state == TR_STORE_DONE);
        return true;
    default:
        return false;
    }
}

bool
kv_store_get(tr_kv_cache_t *kv)
{
    tr_kv_store_t *s = kv->store;

    if (s->stopping) {
        return get_stopping(s);
    }
    if (get_step(kv)) {
        return true;
    }
    if (s->owner != NULL && kv->reuse->now > s->since + PATIENCE_US) {
        give_up(kv); /* the disk's turn it was, not the step loop's */
        return true;
    }
    return false;
}
