/*
 * Between the KV cache and what keeps prefixes outside of the pool (kv_store.h):
 * opened, asked and closed here; see kv_store_internal.h.
 */
#include "kv_store_internal.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/config/log.h"

/* A disk's speed is known when it has brought so much: little comes out of the
 * kernel's memory, or waits for one block as long as it takes to read many. */
#define KNOWN_BYTES (16u << 20)
/* At the end, what waits is written, for so long. */
#define FLUSH_US 5000000u

/* ---- open and close ----------------------------------------------------- */

bool
kv_store_open_way(const tr_kv_store_t *s, kv_store_way_t *way,
                  tr_kv_lane_t lane)
{
    way->lane = lane;
    way->ref = tr_kv_map(s->refs_size);
    return way->ref != NULL;
}

static void
close_way(const tr_kv_store_t *s, kv_store_way_t *way)
{
    if (way->ref != NULL) {
        munmap(way->ref, s->refs_size);
    }
    way->ref = NULL;
}

tr_kv_store_t *
kv_store_made(tr_kv_cache_t *kv)
{
    tr_kv_store_t *s = kv->store;

    if (s == NULL) {
        s = kv->store = calloc(1, sizeof(*s));
    }
    if (s != NULL) {
        s->get_slot = s->files == NULL ? -1 : s->get_slot;
        s->refs_size = (size_t) kv->m.size.pages * sizeof(*s->in.ref);
    }
    return s;
}

static void
close_files(tr_kv_cache_t *kv)
{
    tr_kv_store_t *s = kv->store;

    tr_store_close(s->files);
    s->files = NULL;
    s->put[TR_KV_FILES].to = NULL;
    close_way(s, &s->put[TR_KV_FILES].way);
    close_way(s, &s->in);
    kv->ops->files->close(kv, TR_KV_FILES);
}

/* Neither is there any more, or has been. */
static void
release(tr_kv_cache_t *kv)
{
    tr_kv_store_t *s = kv->store;

    if (s->files != NULL || s->shelf != NULL) {
        return;
    }
    close_way(s, &s->put[TR_KV_SHELF].way);
    for (uint32_t i = 0; i < TR_KV_SHELF_GETS; i++) {
        close_way(s, &s->get[i].way);
    }
    free(s);
    kv->store = NULL;
}

/* What files need, here and where the pages are. */
static tr_status_t
make_ways(tr_kv_cache_t *kv, tr_kv_store_t *s, tr_error_t *err)
{
    uint32_t page = (uint32_t) kv->plan.page_bytes;

    s->piece_pages[TR_KV_FILES] = tr_store_piece_pages(page);
    if (!kv_store_open_way(s, &s->put[TR_KV_FILES].way, TR_KV_FILES)
        || !kv_store_open_way(s, &s->in, TR_KV_FILES)) {
        return tr_error_set(err, TR_ERR_NOMEM, "cache_dir", "no memory");
    }
    return kv->ops->files->open(kv, TR_KV_FILES, s->piece_pages[TR_KV_FILES],
                                2ull * kv->ops->files->buffers[TR_KV_FILES]
                                    * tr_store_piece_bytes(page),
                                &s->memory, err);
}

/* Layouts change with the policies that are served. */
static void
add_layouts(const tr_kv_cache_t *kv, uint8_t identity[TR_STORE_ID_BYTES])
{
    static const uint8_t key[TR_SIPHASH_BYTES];
    uint32_t word[1 + 6 * TR_KV_LAYOUTS_MAX], n = 0;
    uint8_t all[TR_STORE_ID_BYTES + sizeof(word)] = { 0 };

    word[n++] = kv->plan.page_bytes;
    for (uint32_t i = 0; i < kv->plan.n; i++) {
        const tr_kv_layout_t *l = &kv->plan.layout[i];

        word[n++] = l->tokens;
        word[n++] = (uint32_t) l->score;
        word[n++] = (uint32_t) l->position;
        word[n++] = l->level.key_bits;
        word[n++] = l->level.value_bits;
        word[n++] = l->level.by_channel;
    }
    memcpy(all, identity, TR_STORE_ID_BYTES);
    memcpy(all + TR_STORE_ID_BYTES, word, n * sizeof(*word));
    tr_siphash(key, all, TR_STORE_ID_BYTES + n * sizeof(*word), identity);
}

tr_status_t
tr_kv_store_open(tr_kv_cache_t *kv, const char *dir, uint64_t limit,
                 uint64_t ttl_us, const uint8_t identity[TR_STORE_ID_BYTES],
                 tr_error_t *err)
{
    tr_store_config_t c = { .dir = dir,
                            .limit = limit,
                            .ttl_us = ttl_us,
                            .page_bytes = (uint32_t) kv->plan.page_bytes,
                            .counts = kv->heads * TR_KV_TIERS_MAX,
                            .max_len = kv->config.max_len,
                            .max_pages = kv->m.size.pages };
    tr_kv_store_t *s = kv_store_made(kv);
    tr_status_t rc;

    if (s == NULL) {
        return tr_error_set(err, TR_ERR_NOMEM, "cache_dir", "no memory");
    }
    rc = make_ways(kv, s, err);
    c.buffers = kv->ops->files->buffers[TR_KV_FILES];
    c.memory = s->memory;
    c.readers = kv->ops->files->readers;
    memcpy(c.identity, identity, sizeof(c.identity));
    add_layouts(kv, c.identity);
    if (rc == TR_OK) {
        rc = tr_store_open(&c, &s->files, err);
    }
    if (rc != TR_OK) {
        close_files(kv);
        release(kv);
        return rc;
    }
    s->put[TR_KV_FILES].to = &kv_store_to_files;
    return TR_OK;
}

void
tr_kv_store_wakes(tr_kv_cache_t *kv, void (*wake)(void *arg), void *arg)
{
    if (kv->store != NULL && kv->store->files != NULL) {
        tr_store_wakes(kv->store->files, wake, arg);
    }
}

static bool
is_putting(const tr_kv_store_t *s)
{
    bool is = s->files != NULL && !tr_store_put_idle(s->files);

    for (uint32_t i = 0; i < TR_KV_LANES; i++) {
        is = is || s->put[i].putting || s->put[i].n_queue != 0;
    }
    return is;
}

void
tr_kv_store_flush(tr_kv_cache_t *kv, uint64_t us)
{
    uint64_t begun = tr_now_us();

    while (kv->store != NULL && is_putting(kv->store)
           && tr_now_us() - begun < us) {
        kv->ops->files->launch(kv);
        if (!tr_kv_store_turn(kv)) {
            usleep(200);
        }
    }
}

void
tr_kv_store_close(tr_kv_cache_t *kv)
{
    tr_kv_store_t *s = kv->store;

    if (s == NULL) {
        return;
    }
    kv_shelf_close(kv); /* what is there ends with the engine */
    tr_kv_store_flush(kv, FLUSH_US);
    (void) tr_kv_store_yield(kv);
    close_files(kv);
    release(kv);
}

/* ---- what both ways share ------------------------------------------------ */

uint32_t
kv_store_list(const tr_kv_cache_t *kv, const tr_kv_seq_t *seq,
              const uint32_t *counts, uint32_t uncompressed_pages,
              uint32_t *ref)
{
    const tr_kv_manager_t *m = &kv->m;
    /* nothing is kept of slots that have heads that slide */
    const manager_dense_t dense = { uncompressed_pages, 0, 0 };
    uint32_t n = 0;

    for (uint32_t h = 0; h < kv->heads; h++) {
        manager_run_t run[MANAGER_RUNS];
        /* also those of others */
        uint32_t runs = manager_runs(m, seq, h, counts + h * TR_KV_TIERS_MAX,
                                     NULL, dense, run);

        for (uint32_t i = 0; i < runs; i++) {
            uint32_t at = h * m->view.table_len + run[i].entry;

            for (uint32_t j = 0; j < run[i].n; j++) {
                ref[n++] = at;
                at += (uint32_t) run[i].step;
            }
        }
    }
    return n;
}

uint32_t
kv_store_at_once(const tr_kv_cache_t *kv, tr_kv_lane_t lane)
{
    const tr_kv_files_t *f = kv->ops->files;
    uint64_t n = kv->store->turn_us * f->at_once[lane] / f->turn_us;

    n = n > f->at_once[lane] ? n : f->at_once[lane];
    return n < f->buffers[lane] ? (uint32_t) n : f->buffers[lane];
}

bool
kv_store_next(const tr_kv_cache_t *kv, const kv_store_way_t *way, bool out,
              tr_kv_piece_t *piece)
{
    uint32_t most = kv->store->piece_pages[way->lane];
    uint32_t left = way->n - way->at;

    piece->slot = way->slot;
    piece->ref = way->ref + way->at;
    piece->n = left < most ? left : most;
    piece->buffer = way->begun % kv->ops->files->buffers[way->lane];
    return left != 0
           && kv->ops->files->moved(kv, way->lane, out, piece->buffer) == TR_OK;
}

tr_status_t
kv_store_arrived(tr_kv_cache_t *kv, kv_store_way_t *way, bool out,
                 void (*each)(tr_kv_store_t *s))
{
    const tr_kv_files_t *f = kv->ops->files;
    tr_status_t rc = TR_OK;

    while (way->over < way->begun && rc == TR_OK) {
        rc = f->moved(kv, way->lane, out, way->over % f->buffers[way->lane]);
        if (rc == TR_OK) {
            way->over++;
            if (each != NULL) {
                each(kv->store);
            }
        }
    }
    return rc;
}

void
kv_store_identify(const tr_kv_policy_t *p, uint8_t out[TR_STORE_ID_BYTES])
{
    static const uint8_t key[TR_SIPHASH_BYTES];

    memset(out, 0, TR_STORE_ID_BYTES);
    if (p->n_levels == 0) { /* all at 16 bits: pages are the same */
        return;
    }
    tr_siphash(key, p->spec, strlen(p->spec), out);
    if (p->alpha_of != NULL) {
        uint8_t of[TR_STORE_ID_BYTES];

        tr_siphash(key, p->alpha_of,
                   2 * sizeof(*p->alpha_of) * p->layers_of * p->kv_heads_of,
                   of);
        for (uint32_t i = 0; i < TR_STORE_ID_BYTES; i++) {
            out[i] ^= of[i];
        }
    }
}

/* ---- asking -------------------------------------------------------------- */

bool
kv_store_is_worth(tr_kv_store_t *s, tr_kv_lane_t lane, const void *owner,
                  double bytes, uint32_t tokens, bool unknown)
{
    tr_kv_split_t p = { .tokens = tokens,
                        .bytes = bytes,
                        .each_byte = tr_kv_speed_each(&s->brings[lane]) };

    if (!tr_kv_turns_cost(&s->computes, &p) || p.each_byte == 0
        || (lane == TR_KV_FILES && s->brings[lane].units < KNOWN_BYTES)) {
        return unknown;
    }
    if (tr_kv_split(&p, NULL) == 0) {
        return true;
    }
    if (s->doubts[lane] != owner) {
        s->doubts[lane] = owner;
        tr_kv_speed_doubt(&s->brings[lane]);
    }
    return false;
}

/* Is what is on its way of use for these? */
static bool
is_for(const tr_kv_store_t *s, const tr_prefix_key_t *key,
       const uint8_t policy[TR_STORE_ID_BYTES], const int32_t *tokens,
       uint32_t n, uint32_t from)
{
    const tr_store_item_t *item = tr_store_got(s->files);

    n = n < item->n_tokens ? n : item->n_tokens;
    return item->key.len == key->len
           && memcmp(item->key.bytes, key->bytes, key->len) == 0
           && memcmp(item->policy, policy, TR_STORE_ID_BYTES) == 0
           && tr_prefix_common(item->tokens, tokens, n)
                  >= from + TR_STORE_BLOCK;
}

static tr_kv_look_t
look_in_files(tr_kv_cache_t *kv, const void *owner,
              const tr_kv_policy_t *policy, const tr_prefix_key_t *key,
              const int32_t *tokens, uint32_t n, uint32_t from)
{
    tr_kv_store_t *s = kv->store;
    uint8_t id[TR_STORE_ID_BYTES];

    kv_store_identify(policy, id);
    switch (tr_store_get_state(s->files)) {
    case TR_STORE_IDLE:
        if (s->stopping) {
            return TR_KV_LOOK_NOTHING;
        }
        s->policy = *policy;
        s->owner = owner;
        s->since = s->asked = kv->reuse->now;
        s->from = from;
        s->tries = 0;
        return tr_store_get(s->files, key, id, tokens, n, from)
                   ? TR_KV_LOOK_ASKED
                   : TR_KV_LOOK_NOTHING;
    case TR_STORE_LOOKING:
    case TR_STORE_NONE:
        return s->stopping ? TR_KV_LOOK_NOTHING : TR_KV_LOOK_BUSY;
    case TR_STORE_FAILED:
        return TR_KV_LOOK_NOTHING;
    default:
        return !s->stopping && is_for(s, key, id, tokens, n, from)
                   ? TR_KV_LOOK_LATER
                   : TR_KV_LOOK_NOTHING;
    }
}

tr_kv_look_t
tr_kv_store_look(tr_kv_cache_t *kv, const void *owner,
                 const tr_kv_policy_t *policy, const tr_prefix_key_t *key,
                 const int32_t *tokens, uint32_t n, uint32_t from)
{
    const tr_kv_store_t *s = kv->store;
    tr_kv_look_t look;

    if (s == NULL || n / TR_STORE_BLOCK * TR_STORE_BLOCK <= from) {
        return TR_KV_LOOK_NOTHING;
    }
    policy = policy != NULL ? policy : kv->usual;
    if (s->shelf != NULL
        && kv_shelf_look(kv, owner, policy, key, tokens, n, from, &look)) {
        return look;
    }
    return s->files == NULL
               ? TR_KV_LOOK_NOTHING
               : look_in_files(kv, owner, policy, key, tokens, n, from);
}

bool
tr_kv_store_looks(const tr_kv_cache_t *kv, const void *owner)
{
    return kv->store != NULL
           && (kv->store->owner == owner || kv_shelf_looks(kv->store, owner));
}

/* ---- turns -------------------------------------------------------------- */

bool
tr_kv_store_turn(tr_kv_cache_t *kv)
{
    tr_kv_store_t *s = kv->store;
    bool busy = false;

    for (uint32_t i = 0; s != NULL && i < TR_KV_LANES; i++) {
        busy |= s->put[i].to != NULL && kv_store_put(kv, &s->put[i]);
    }
    if (s != NULL && s->files != NULL) {
        busy |= kv_store_get(kv);
    }
    if (s != NULL && s->shelf != NULL) {
        busy |= kv_shelf_get(kv);
    }
    return busy;
}

void
tr_kv_store_stats(const tr_kv_cache_t *kv, tr_store_stats_t *out)
{
    memset(out, 0, sizeof(*out));
    if (kv->store != NULL && kv->store->files != NULL) {
        tr_store_stats(kv->store->files, out);
    }
}
