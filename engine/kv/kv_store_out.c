/*
 * Prefixes on their way to files and to the shelf (kv_store_internal.h).
 *
 * What is kept at the end of an answer waits in a short queue for each of them,
 * and is copied piece by piece from where it is.  It is not held for that: when
 * its room is wanted first, it is not stored.
 */
#include <string.h>

#include "kv_store_internal.h"

/* ---- what waits ---------------------------------------------------------- */

static void
forget_at(kv_store_put_t *p, uint32_t i)
{
    p->n_queue--;
    memmove(&p->queue[i], &p->queue[i + 1],
            (p->n_queue - i) * sizeof(p->queue[0]));
}

static void
want(tr_kv_store_t *s, kv_store_put_t *p, kv_store_kept_t what)
{
    if (p->n_queue == KV_STORE_QUEUE) {
        forget_at(p, 0);
        p->to->skip(s);
    }
    p->queue[p->n_queue++] = what;
}

void
tr_kv_store_want(tr_kv_cache_t *kv, bool slot, uint32_t id)
{
    tr_kv_store_t *s = kv->store;

    for (uint32_t i = 0; s != NULL && i < TR_KV_LANES; i++) {
        if (s->put[i].to != NULL) {
            want(s, &s->put[i], (kv_store_kept_t){ slot, id });
        }
    }
}

static void
gone(tr_kv_store_t *s, kv_store_put_t *p, kv_store_kept_t what)
{
    for (uint32_t i = p->n_queue; i-- != 0;) {
        if (p->queue[i].slot == what.slot && p->queue[i].id == what.id) {
            forget_at(p, i);
        }
    }
    if (p->putting && p->what.slot == what.slot && p->what.id == what.id) {
        if (!p->seeing) {
            p->to->stop(s);
        }
        p->putting = false;
        p->to->skip(s);
    }
}

void
tr_kv_store_gone(tr_kv_cache_t *kv, bool slot, uint32_t id)
{
    tr_kv_store_t *s = kv->store;

    for (uint32_t i = 0; s != NULL && i < TR_KV_LANES; i++) {
        if (s->put[i].to != NULL) {
            gone(s, &s->put[i], (kv_store_kept_t){ slot, id });
        }
    }
}

bool
tr_kv_store_waits(const tr_kv_cache_t *kv, bool slot, uint32_t id)
{
    const kv_store_put_t *p = kv->store == NULL ? NULL
                                                : &kv->store->put[TR_KV_SHELF];

    if (p == NULL || p->to == NULL) {
        return false;
    }
    if (p->putting && p->what.slot == slot && p->what.id == id) {
        return true;
    }
    for (uint32_t i = 0; i < p->n_queue; i++) {
        if (p->queue[i].slot == slot && p->queue[i].id == id) {
            return true;
        }
    }
    return false;
}

/* ---- items --------------------------------------------------------------- */

/* A kept slot that is as `q`, with the item's counts.  It may have tokens more
 * than anybody knows.  False: it is not what it should be. */
static bool
fill_slot(tr_kv_cache_t *kv, int32_t slot, const tr_kv_seq_t *q,
          tr_store_item_t *item, kv_store_way_t *way)
{
    const tr_kv_kept_t *k = &kv->reuse->kept[slot];

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
    way->slot = slot;
    item->n_pages = kv_store_list(kv, q, item->counts, 0, way->ref);
    return true;
}

static void
fill_path(const tr_kv_cache_t *kv, uint32_t leaf, tr_store_item_t *item,
          kv_store_way_t *way)
{
    const tr_prefix_t *tree = kv->reuse->tree;
    uint32_t blocks = 0, node, n, size = kv->plan.layout[0].tokens;
    const int32_t *tokens;

    memset(item->policy, 0, sizeof(item->policy));
    memset(item->counts, 0, 4ull * kv->heads * TR_KV_TIERS_MAX);
    memset(item->number, 0, sizeof(item->number));
    way->slot = -1;
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
            way->ref[h * (item->n_pages / kv->heads) + blocks] = node
                                                                     * kv->heads
                                                                 + h;
        }
    }
}

/* The next of the queue. */
static bool
put_next(tr_kv_store_t *s, kv_store_put_t *p)
{
    if (p->n_queue == 0 || p->to->item(s) == NULL) {
        return false;
    }
    p->what = p->queue[0];
    forget_at(p, 0);
    p->putting = p->seeing = true;
    p->asked = false;
    return true;
}

/* What it has is known, or soon will be. */
static bool
put_see(tr_kv_cache_t *kv, kv_store_put_t *p)
{
    tr_kv_store_t *s = kv->store;
    tr_store_item_t *item = p->to->item(s);
    int32_t slot = p->what.slot ? (int32_t) p->what.id : -1;
    tr_kv_seq_t seq;
    tr_status_t rc;

    rc = kv->ops->files->see(kv, p->way.lane, slot, p->asked, &seq,
                             item->counts);
    p->asked = true;
    if (rc == TR_AGAIN) {
        return true;
    }
    p->seeing = false;
    p->putting = rc == TR_OK
                 && (slot < 0 || fill_slot(kv, slot, &seq, item, &p->way));
    if (!p->putting) {
        p->to->skip(s);
        return true;
    }
    if (slot < 0) {
        fill_path(kv, p->what.id, item, &p->way);
    }
    p->way.n = item->n_pages;
    p->way.at = p->way.begun = p->way.over = 0;
    p->putting = item->n_tokens >= TR_STORE_BLOCK && p->to->go(kv);
    return true;
}

/* ---- pages --------------------------------------------------------------- */

/* They are not to be had. */
static bool
put_lost(tr_kv_store_t *s, kv_store_put_t *p)
{
    p->putting = false;
    p->to->stop(s);
    p->to->skip(s);
    return true;
}

/* *left: may still be begun. */
static bool
put_pieces(tr_kv_cache_t *kv, kv_store_put_t *p, uint32_t *left)
{
    const tr_kv_files_t *f = kv->ops->files;
    tr_kv_store_t *s = kv->store;
    kv_store_way_t *way = &p->way;
    uint32_t over = way->over, begun = way->begun;
    tr_kv_piece_t piece;
    tr_status_t rc;

    if (p->to->lost(s)) { /* it could not be written */
        p->putting = false;
        return true;
    }
    rc = kv_store_arrived(kv, way, true, p->to->full);
    for (; *left != 0 && (rc == TR_OK || rc == TR_AGAIN)
           && kv_store_next(kv, way, true, &piece);
         --*left) {
        piece.memory = p->to->room(s);
        if (piece.memory == NULL) {
            break;
        }
        rc = f->out(kv, way->lane, &piece);
        way->at += piece.n;
        way->begun++;
    }
    if (rc == TR_OK) { /* those that are here are there at once */
        rc = kv_store_arrived(kv, way, true, p->to->full);
    }
    if (rc != TR_OK && rc != TR_AGAIN) {
        return put_lost(s, p);
    }
    p->putting = way->at < way->n || way->over < way->begun;
    if (!p->putting) {
        p->to->over(s);
    }
    return way->over != over || way->begun != begun || way->over != way->begun;
}

bool
kv_store_put(tr_kv_cache_t *kv, kv_store_put_t *p)
{
    uint32_t left = kv_store_at_once(kv, p->way.lane);
    bool busy = false;

    /* one behind the other, as far as they can go now; to see that one is not
     * wanted takes as long as to begin a piece */
    while (left != 0 && (p->putting || put_next(kv->store, p))) {
        bool seen = !p->seeing;

        busy |= seen ? put_pieces(kv, p, &left) : put_see(kv, p);
        if (p->seeing || (seen && p->putting)) {
            break;
        }
        left -= !seen && !p->putting;
    }
    return busy;
}

/* ---- to files ------------------------------------------------------------ */

static tr_store_item_t *
file_item(tr_kv_store_t *s)
{
    return tr_store_put(s->files);
}

static bool
file_go(tr_kv_cache_t *kv)
{
    tr_store_put_go(kv->store->files);
    return true;
}

static uint8_t *
file_room(tr_kv_store_t *s)
{
    return tr_store_put_room(s->files);
}

static void
file_full(tr_kv_store_t *s)
{
    tr_store_put_full(s->files);
}

static bool
file_lost(const tr_kv_store_t *s)
{
    return tr_store_put_idle(s->files);
}

static void
file_over(tr_kv_store_t *s)
{
    (void) s; /* its thread knows */
}

static void
file_stop(tr_kv_store_t *s)
{
    tr_store_put_stop(s->files);
}

static void
file_skip(tr_kv_store_t *s)
{
    tr_store_skip(s->files);
}

const kv_store_to_t kv_store_to_files = { .item = file_item,
                                          .go = file_go,
                                          .room = file_room,
                                          .full = file_full,
                                          .lost = file_lost,
                                          .over = file_over,
                                          .stop = file_stop,
                                          .skip = file_skip };
