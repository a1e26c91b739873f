/*
 * Prefixes on their way to files (kv_store_internal.h).
 *
 * What is kept at the end of an answer waits in a short queue, and is copied
 * piece by piece from where it is.  It is not held for that: when its room is
 * wanted first, the file is not written.
 */
#include <string.h>

#include "kv_store_internal.h"

/* ---- what waits ---------------------------------------------------------- */

static void
forget_at(tr_kv_store_t *s, uint32_t i)
{
    s->n_queue--;
    memmove(&s->queue[i], &s->queue[i + 1],
            (s->n_queue - i) * sizeof(s->queue[0]));
}

void
tr_kv_store_want(tr_kv_cache_t *kv, bool slot, uint32_t id)
{
    tr_kv_store_t *s = kv->store;

    if (s == NULL) {
        return;
    }
    if (s->n_queue == KV_STORE_QUEUE) {
        forget_at(s, 0);
        tr_store_skip(s->files);
    }
    s->queue[s->n_queue++] = (kv_store_kept_t){ slot, id };
}

void
tr_kv_store_gone(tr_kv_cache_t *kv, bool slot, uint32_t id)
{
    tr_kv_store_t *s = kv->store;

    if (s == NULL) {
        return;
    }
    for (uint32_t i = s->n_queue; i-- != 0;) {
        if (s->queue[i].slot == slot && s->queue[i].id == id) {
            forget_at(s, i);
        }
    }
    if (s->putting && s->what.slot == slot && s->what.id == id) {
        if (!s->seeing) {
            tr_store_put_stop(s->files);
        }
        s->putting = false;
        tr_store_skip(s->files);
    }
}

/* ---- items --------------------------------------------------------------- */

/* A kept slot that is as `q`, with the item's counts.  It may have tokens more
 * than anybody knows.  False: it is not what it should be. */
static bool
fill_slot(tr_kv_cache_t *kv, int32_t slot, const tr_kv_seq_t *q,
          tr_store_item_t *item)
{
    const tr_kv_kept_t *k = &kv->reuse->kept[slot];
    tr_kv_store_t *s = kv->store;

    if (q->base < k->n || !tr_kv_kept_adds_up(kv, q, item->counts)) {
        return false;
    }
    item->key = k->key;
    kv_store_identify(&kv->policy[slot].origin, item->policy);
    item->n_tokens = k->n;
    memcpy(item->tokens, kv->reuse->tokens + (size_t) slot * kv->config.max_len,
           4ull * k->n);
    item->number[0] = q->window_from;
    item->number[1] = q->sinks;
    item->number[2] = q->base - k->n;
    s->out.slot = slot;
    item->n_pages = kv_store_list(kv, q, item->counts, 0, s->out.ref);
    return true;
}

static void
fill_path(const tr_kv_cache_t *kv, uint32_t leaf, tr_store_item_t *item)
{
    const tr_prefix_t *tree = kv->reuse->tree;
    uint32_t blocks = 0, node, n, size = kv->plan.layout[0].tokens;
    const int32_t *tokens;

    memset(item->policy, 0, sizeof(item->policy));
    memset(item->counts, 0, 4ull * kv->heads * TR_KV_TIERS_MAX);
    memset(item->number, 0, sizeof(item->number));
    kv->store->out.slot = -1;
    item->key = *tr_prefix_key(tree, leaf);
    for (node = leaf; node != TR_PREFIX_NONE;
         node = tr_prefix_parent(tree, node)) {
        blocks++;
    }
    item->n_pages = blocks * kv->heads;
    tokens = tr_prefix_tokens(tree, leaf, &n);
    item->n_tokens = (blocks - 1) * size + n;
    for (node = leaf; node != TR_PREFIX_NONE;
         node = tr_prefix_parent(tree, node)) {
        tokens = tr_prefix_tokens(tree, node, &n);
        blocks--;
        memcpy(item->tokens + (size_t) blocks * size, tokens, 4ull * n);
        for (uint32_t h = 0; h < kv->heads; h++) { /* as a slot has them */
            kv->store->out.ref[h * (item->n_pages / kv->heads) + blocks] =
                node * kv->heads + h;
        }
    }
}

/* The next of the queue. */
static bool
put_next(tr_kv_store_t *s)
{
    if (s->n_queue == 0 || tr_store_put(s->files) == NULL) {
        return false;
    }
    s->what = s->queue[0];
    forget_at(s, 0);
    s->putting = s->seeing = true;
    s->asked = false;
    return true;
}

/* What it has is known, or soon will be. */
static bool
put_see(tr_kv_cache_t *kv)
{
    tr_kv_store_t *s = kv->store;
    tr_store_item_t *item = tr_store_put(s->files);
    int32_t slot = s->what.slot ? (int32_t) s->what.id : -1;
    tr_kv_seq_t seq;
    tr_status_t rc;

    rc = kv->ops->files->see(kv, slot, s->asked, &seq, item->counts);
    s->asked = true;
    if (rc == TR_AGAIN) {
        return true;
    }
    s->seeing = false;
    s->putting = rc == TR_OK && (slot < 0 || fill_slot(kv, slot, &seq, item));
    if (!s->putting) {
        tr_store_skip(s->files);
        return true;
    }
    if (slot < 0) {
        fill_path(kv, s->what.id, item);
    }
    s->putting = item->n_tokens >= TR_STORE_BLOCK;
    if (s->putting) {
        s->out.n = item->n_pages;
        s->out.at = s->out.begun = s->out.over = 0;
        tr_store_put_go(s->files);
    }
    return true;
}

/* ---- pages --------------------------------------------------------------- */

/* They are not to be had. */
static bool
put_lost(tr_kv_store_t *s)
{
    s->putting = false;
    tr_store_put_stop(s->files);
    tr_store_skip(s->files);
    return true;
}

static bool
put_pieces(tr_kv_cache_t *kv)
{
    const tr_kv_files_t *f = kv->ops->files;
    tr_kv_store_t *s = kv->store;
    kv_store_way_t *way = &s->out;
    uint32_t over = way->over, begun = way->begun;
    tr_kv_piece_t piece;
    tr_status_t rc;

    if (tr_store_put_idle(s->files)) { /* it could not be written */
        s->putting = false;
        return true;
    }
    rc = kv_store_arrived(kv, way, true, tr_store_put_full);
    for (uint32_t i = 0; i < f->at_once && (rc == TR_OK || rc == TR_AGAIN)
                         && kv_store_next(kv, way, true, &piece);
         i++) {
        piece.memory = tr_store_put_room(s->files);
        if (piece.memory == NULL) {
            break;
        }
        rc = f->out(kv, &piece);
        way->at += piece.n;
        way->begun++;
    }
    if (rc == TR_OK) { /* those that are here are there at once */
        rc = kv_store_arrived(kv, way, true, tr_store_put_full);
    }
    if (rc != TR_OK && rc != TR_AGAIN) {
        return put_lost(s);
    }
    s->putting = way->at < way->n || way->over < way->begun;
    return way->over != over || way->begun != begun || way->over != way->begun;
}

bool
kv_store_put(tr_kv_cache_t *kv)
{
    tr_kv_store_t *s = kv->store;

    return !s->putting ? put_next(s) : s->seeing ? put_see(kv) : put_pieces(kv);
}
