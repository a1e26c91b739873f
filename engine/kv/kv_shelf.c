/*
 * Prefixes between the pool and the shelf (engine/store/shelf.h), which is pinned
 * host memory beside a pool on a device.
 *
 * Out: what is kept at the end of an answer is copied to the shelf at once
 * (kv_store_out.c), so that it can leave the pool at any time and nobody waits for
 * it to go.
 *
 * In: before a prompt is admitted, has the shelf more of it than the pool?  Then it
 * gets pages and is kept as if its conversation had just ended here, as what comes
 * from a file does.  A few may come at once: they are copied one behind the other,
 * but the next one is given its pages meanwhile.  Until it is whole its pages count
 * as free.
 */
#include <stdlib.h>
#include <string.h>

#include "engine/config/log.h"
#include "kv_store_internal.h"

/* As long as speeds are not known: to bring a token costs an eighth of computing
 * it, at most.  16 bits over a link of 50 GB/s, and a model of 8B: a tenth. */
#define WORTH 8u

/* ---- open ---------------------------------------------------------------- */

static uint32_t
chunk_pages(const tr_kv_cache_t *kv, uint64_t bytes)
{
    uint64_t size = bytes / 256, page = kv->plan.page_bytes;
    uint64_t most = kv->ops->files->chunk;

    size = size < most ? size : most;
    return size < page ? 1 : (uint32_t) (size / page);
}

static bool
make(tr_kv_cache_t *kv, tr_kv_store_t *s, uint8_t *memory, uint64_t bytes)
{
    uint32_t counts = kv->heads * TR_KV_TIERS_MAX;
    tr_shelf_config_t c = { .memory = memory,
                            .page_bytes = (uint32_t) kv->plan.page_bytes,
                            .chunk_pages = s->piece_pages[TR_KV_SHELF],
                            .counts = counts,
                            .max_len = kv->config.max_len };
    bool good = true;

    c.chunks = (uint32_t) (bytes / ((uint64_t) c.chunk_pages * c.page_bytes));
    for (uint32_t i = 0; i < TR_KV_SHELF_GETS && good; i++) {
        s->get[i].slot = -1;
        good = kv_store_open_way(s, &s->get[i].way, TR_KV_SHELF);
    }
    good = good && kv_store_open_way(s, &s->put[TR_KV_SHELF].way, TR_KV_SHELF);
    s->shelf_item.tokens = malloc(4ull * c.max_len);
    s->shelf_item.counts = calloc(counts, 4);
    s->shelf = good ? tr_shelf_create(&c) : NULL;
    return s->shelf != NULL && s->shelf_item.tokens != NULL
           && s->shelf_item.counts != NULL;
}

tr_status_t
tr_kv_shelf_open(tr_kv_cache_t *kv, uint64_t bytes, tr_error_t *err)
{
    tr_kv_store_t *s = kv_store_made(kv);
    uint8_t *memory = NULL;
    tr_status_t rc;

    if (bytes < kv->plan.page_bytes) {
        rc = tr_error_set(err, TR_ERR_INVALID, "cache_memory",
                          "cache_memory %llu: less than a page of %u bytes",
                          (unsigned long long) bytes, kv->plan.page_bytes);
    } else if (s == NULL) {
        return tr_error_set(err, TR_ERR_NOMEM, "cache_memory", "no memory");
    } else {
        s->piece_pages[TR_KV_SHELF] = chunk_pages(kv, bytes);
        rc = kv->ops->files->open(kv, TR_KV_SHELF, s->piece_pages[TR_KV_SHELF],
                                  bytes, &memory, err);
    }
    if (rc == TR_OK && !make(kv, s, memory, bytes)) {
        rc = tr_error_set(err, TR_ERR_NOMEM, "cache_memory", "no memory");
    }
    if (rc != TR_OK) {
        tr_kv_store_close(kv);
        return rc;
    }
    s->put[TR_KV_SHELF].to = &kv_store_to_shelf;
    return TR_OK;
}

/* ---- out ----------------------------------------------------------------- */

static tr_store_item_t *
put_item(tr_kv_store_t *s)
{
    return &s->shelf_item;
}

static bool
put_go(tr_kv_cache_t *kv)
{
    tr_kv_store_t *s = kv->store;
    bool there;

    s->shelf_id = tr_shelf_put(s->shelf, &s->shelf_item, kv->reuse->now,
                               &there);
    if (s->shelf_id == TR_SHELF_NONE) {
        if (!there) {
            tr_shelf_skip(s->shelf);
        }
        return false;
    }
    s->shelf_chunk = tr_shelf_first(s->shelf, s->shelf_id);
    return true;
}

static uint8_t *
put_room(tr_kv_store_t *s)
{
    uint32_t chunk = s->shelf_chunk;

    s->shelf_chunk = tr_shelf_behind(s->shelf, chunk);
    return tr_shelf_chunk(s->shelf, chunk);
}

static bool
put_lost(const tr_kv_store_t *s)
{
    (void) s;
    return false;
}

static void
put_over(tr_kv_store_t *s)
{
    tr_shelf_put_over(s->shelf, s->shelf_id, true);
}

static void
put_stop(tr_kv_store_t *s)
{
    /* copies that are under way come in front of those of who gets its room */
    tr_shelf_put_over(s->shelf, s->shelf_id, false);
}

static void
put_skip(tr_kv_store_t *s)
{
    tr_shelf_skip(s->shelf);
}

const kv_store_to_t kv_store_to_shelf = { .item = put_item,
                                          .go = put_go,
                                          .room = put_room,
                                          .full = NULL,
                                          .lost = put_lost,
                                          .over = put_over,
                                          .stop = put_stop,
                                          .skip = put_skip };

/* ---- in: who comes -------------------------------------------------------- */

static void
forget_get(tr_kv_store_t *s, uint32_t i)
{
    kv_store_way_t way = s->get[i].way;

    s->n_gets--;
    memmove(&s->get[i], &s->get[i + 1], (s->n_gets - i) * sizeof(s->get[0]));
    s->get[s->n_gets] = (kv_shelf_get_t){ .slot = -1, .way = way };
}

/* It does not come after all. */
static void
give_up(tr_kv_cache_t *kv, uint32_t i)
{
    tr_kv_store_t *s = kv->store;
    kv_shelf_get_t g = s->get[i];

    forget_get(s, i);
    tr_shelf_drop(s->shelf, g.id, false);
    if (g.begun) {
        kv->ops->files->stop(kv, TR_KV_SHELF);
    }
    if (g.slot >= 0) {
        tr_kv_close(kv, g.slot);
    }
}

/* The last one that has pages. */
bool
kv_shelf_yield(tr_kv_cache_t *kv)
{
    for (uint32_t i = kv->store->n_gets; i-- != 0;) {
        if (kv->store->get[i].slot >= 0) {
            give_up(kv, i);
            return true;
        }
    }
    return false;
}

uint64_t
kv_shelf_pages(const tr_kv_cache_t *kv)
{
    uint64_t pages = 0;

    for (uint32_t i = 0; i < kv->store->n_gets; i++) {
        int32_t slot = kv->store->get[i].slot;

        pages += slot >= 0 ? kv->m.slot[slot].pages : 0;
    }
    return pages;
}

bool
kv_shelf_looks(const tr_kv_store_t *s, const void *owner)
{
    bool looks = false;

    for (uint32_t i = 0; i < s->n_gets; i++) {
        looks = looks || s->get[i].owner == owner;
    }
    return looks;
}

bool
tr_kv_store_full(const tr_kv_cache_t *kv)
{
    return kv->store != NULL && kv->store->n_gets == TR_KV_SHELF_GETS;
}

/* What is found of a prompt, to be read. */
static tr_kv_look_t
ask(tr_kv_cache_t *kv, const void *owner, const tr_kv_policy_t *policy,
    uint32_t id)
{
    tr_kv_store_t *s = kv->store;
    kv_shelf_get_t *g;

    for (uint32_t i = 0; i < s->n_gets; i++) {
        if (s->get[i].id == id) {
            return TR_KV_LOOK_LATER;
        }
    }
    if (s->n_gets == TR_KV_SHELF_GETS) {
        return TR_KV_LOOK_FULL;
    }
    tr_shelf_hold(s->shelf, id, kv->reuse->now);
    g = &s->get[s->n_gets++];
    g->owner = owner;
    g->id = id;
    g->chunk = tr_shelf_first(s->shelf, id);
    g->policy = *policy;
    g->since = kv->reuse->now;
    return TR_KV_LOOK_COMES;
}

/* Is it sooner here than so many tokens of it are computed? */
static bool
is_worth(tr_kv_cache_t *kv, const void *owner, const tr_store_item_t *item,
         uint32_t tokens)
{
    return kv_store_is_worth(kv->store, TR_KV_SHELF, owner,
                             (double) item->n_pages * kv->plan.page_bytes,
                             tokens,
                             (uint64_t) tokens * WORTH >= item->n_tokens);
}

bool
kv_shelf_look(tr_kv_cache_t *kv, const void *owner,
              const tr_kv_policy_t *policy, const tr_prefix_key_t *key,
              const int32_t *tokens, uint32_t n, uint32_t from,
              tr_kv_look_t *look)
{
    const tr_shelf_t *shelf = kv->store->shelf;
    uint8_t policy_id[TR_STORE_ID_BYTES];
    tr_store_item_t item;
    uint32_t common, id;

    kv_store_identify(policy, policy_id);
    id = tr_shelf_find(shelf, key, policy_id, tokens, n, from, &common);
    if (id == TR_SHELF_NONE) {
        return false;
    }
    tr_shelf_item(shelf, id, &item);
    if (common < from + TR_STORE_BLOCK
        || !is_worth(kv, owner, &item, common - from)) {
        return false;
    }
    /* where there is no room for it, there will be none for its prompt */
    *look = tr_kv_free_pages(kv) < item.n_pages ? TR_KV_LOOK_NOTHING
                                                : ask(kv, owner, policy, id);
    return true;
}

/* ---- in: pages ------------------------------------------------------------ */

/* Has what comes next its pages?  Else it is to try again, or does not come. */
static bool
get_pages(tr_kv_cache_t *kv, uint32_t i)
{
    kv_shelf_get_t *g = &kv->store->get[i];
    tr_store_item_t item;
    tr_status_t rc;

    if (g->slot >= 0) {
        return true;
    }
    tr_shelf_item(kv->store->shelf, g->id, &item);
    rc = kv_store_take(kv, &g->policy, &item, &g->way, &g->slot);
    if (rc != TR_OK && (rc != TR_AGAIN || ++g->tries == KV_STORE_TRIES)) {
        give_up(kv, i);
    }
    return rc == TR_OK;
}

/* TR_OK: all pieces of the first are there.  *left: may still be begun. */
static tr_status_t
get_pieces(tr_kv_cache_t *kv, uint32_t *left)
{
    const tr_kv_files_t *f = kv->ops->files;
    tr_kv_store_t *s = kv->store;
    kv_shelf_get_t *g = &s->get[0];
    tr_status_t rc = kv_store_arrived(kv, &g->way, false, NULL);
    tr_kv_piece_t piece;

    for (; *left != 0 && (rc == TR_OK || rc == TR_AGAIN)
           && kv_store_next(kv, &g->way, false, &piece);
         --*left) {
        piece.memory = tr_shelf_chunk(s->shelf, g->chunk);
        g->chunk = tr_shelf_behind(s->shelf, g->chunk);
        rc = f->in(kv, TR_KV_SHELF, &piece);
        g->way.at += piece.n;
        g->way.begun++;
    }
    if (rc == TR_OK) {
        rc = kv_store_arrived(kv, &g->way, false, NULL);
    }
    return rc == TR_OK && g->way.at < g->way.n ? TR_AGAIN : rc;
}

/* The first comes.  Is it here, or given up? */
static bool
get_first(tr_kv_cache_t *kv, uint32_t *left)
{
    tr_kv_store_t *s = kv->store;
    kv_shelf_get_t *g = &s->get[0];
    tr_status_t rc = TR_OK;
    tr_store_item_t item;
    int32_t slot = g->slot;

    tr_shelf_item(s->shelf, g->id, &item);
    if (!g->begun) {
        rc = kv->ops->files->begin(kv, TR_KV_SHELF, slot, item.tokens,
                                   item.n_tokens);
        g->begun = rc == TR_OK;
    }
    rc = rc == TR_OK ? get_pieces(kv, left) : rc;
    if (rc == TR_OK) {
        uint32_t id = g->id;

        tr_kv_speed_saw(&s->brings[TR_KV_SHELF],
                        (double) item.n_pages * kv->plan.page_bytes,
                        (double) (kv->reuse->now - g->since));
        forget_get(s, 0);
        kv_store_filled(kv, slot, &item);
        tr_shelf_drop(s->shelf, id, true);
    } else if (rc != TR_AGAIN) {
        give_up(kv, 0);
    }
    return rc != TR_AGAIN;
}

bool
kv_shelf_get(tr_kv_cache_t *kv)
{
    tr_kv_store_t *s = kv->store;
    uint32_t left = kv_store_at_once(kv, TR_KV_SHELF);

    if (s->n_gets == 0) {
        return false;
    }
    /* may make room, and so have the last ones go */
    for (uint32_t i = 0; i < s->n_gets && get_pages(kv, i); i++) {
    }
    while (s->n_gets != 0 && s->get[0].slot >= 0 && left != 0
           && get_first(kv, &left)) {
    }
    return true;
}

/* ---- close, and the rest ------------------------------------------------- */

void
kv_shelf_close(tr_kv_cache_t *kv)
{
    tr_kv_store_t *s = kv->store;

    while (s->n_gets != 0) {
        give_up(kv, s->n_gets - 1);
    }
    s->put[TR_KV_SHELF].to = NULL;
    s->put[TR_KV_SHELF].putting = false;
    s->put[TR_KV_SHELF].n_queue = 0;
    kv->ops->files->close(kv, TR_KV_SHELF);
    tr_shelf_free(s->shelf);
    s->shelf = NULL;
    free(s->shelf_item.tokens);
    free(s->shelf_item.counts);
    s->shelf_item.tokens = NULL;
    s->shelf_item.counts = NULL;
}

void
tr_kv_computed(tr_kv_cache_t *kv, uint64_t tokens, uint64_t us)
{
    if (kv->store != NULL) {
        kv->store->turn_us = us;
        tr_kv_turns_saw(&kv->store->computes, (double) tokens, (double) us);
    }
}

void
tr_kv_shelf_expire(tr_kv_cache_t *kv, uint64_t before)
{
    if (kv->store != NULL && kv->store->shelf != NULL) {
        tr_shelf_expire(kv->store->shelf, before);
    }
}

void
tr_kv_shelf_stats(const tr_kv_cache_t *kv, tr_shelf_stats_t *out)
{
    memset(out, 0, sizeof(*out));
    if (kv->store != NULL && kv->store->shelf != NULL) {
        tr_shelf_stats(kv->store->shelf, out);
    }
}

bool
tr_kv_shelf_sound(const tr_kv_cache_t *kv)
{
    return kv->store == NULL || kv->store->shelf == NULL
           || tr_shelf_sound(kv->store->shelf);
}
