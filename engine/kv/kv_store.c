/*
 * Between the KV cache and the store of prefixes in files (kv_cache.h, "reuse";
 * engine/store/store.h): opened, asked and closed here; see kv_store_internal.h.
 */
#include "kv_store_internal.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "engine/config/log.h"

/* At the end, what waits is written, for so long. */
#define FLUSH_US 5000000u

/* ---- open and close ----------------------------------------------------- */

static uint32_t *
map_refs(size_t size)
{
    void *at = mmap(NULL, size, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    return at == MAP_FAILED ? NULL : at;
}

static void
release(tr_kv_cache_t *kv, tr_kv_store_t *s)
{
    if (s->out.ref != NULL) {
        munmap(s->out.ref, s->refs_size);
    }
    if (s->in.ref != NULL) {
        munmap(s->in.ref, s->refs_size);
    }
    kv->ops->files->close(kv);
    free(s);
}

/* What ways need, here and where the pages are. */
static tr_status_t
make_ways(tr_kv_cache_t *kv, tr_kv_store_t *s, tr_error_t *err)
{
    s->get_slot = -1;
    s->refs_size = (size_t) kv->m.size.pages * sizeof(*s->out.ref);
    s->out.ref = map_refs(s->refs_size);
    s->in.ref = map_refs(s->refs_size);
    s->buffers = kv->ops->files->buffers;
    if (s->out.ref == NULL || s->in.ref == NULL) {
        return tr_error_set(err, TR_ERR_NOMEM, "cache_dir", "no memory");
    }
    return kv->ops->files->open(kv, &s->memory, err);
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
    tr_kv_store_t *s = calloc(1, sizeof(*s));
    tr_status_t rc;

    if (s == NULL) {
        return tr_error_set(err, TR_ERR_NOMEM, "cache_dir", "no memory");
    }
    rc = make_ways(kv, s, err);
    c.buffers = s->buffers;
    c.memory = s->memory;
    c.readers = kv->ops->files->readers;
    memcpy(c.identity, identity, sizeof(c.identity));
    add_layouts(kv, c.identity);
    if (rc == TR_OK) {
        rc = tr_store_open(&c, &s->files, err);
    }
    if (rc != TR_OK) {
        release(kv, s);
        return rc;
    }
    kv->store = s;
    return TR_OK;
}

void
tr_kv_store_wakes(tr_kv_cache_t *kv, void (*wake)(void *arg), void *arg)
{
    if (kv->store != NULL) {
        tr_store_wakes(kv->store->files, wake, arg);
    }
}

static uint64_t
now_us(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t) t.tv_sec * 1000000u + (uint64_t) t.tv_nsec / 1000u;
}

void
tr_kv_store_flush(tr_kv_cache_t *kv, uint64_t us)
{
    tr_kv_store_t *s = kv->store;
    uint64_t begun = now_us();

    while (s != NULL
           && (s->putting || s->n_queue != 0 || !tr_store_put_idle(s->files))
           && now_us() - begun < us) {
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
    tr_kv_store_flush(kv, FLUSH_US);
    (void) tr_kv_store_yield(kv);
    tr_store_close(s->files);
    kv->store = NULL;
    release(kv, s);
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
        uint32_t runs = manager_runs(m, seq, h, counts + h * TR_KV_TIERS_MAX,
                                     dense, run);

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

bool
kv_store_next(const tr_kv_cache_t *kv, const kv_store_way_t *way, bool out,
              tr_kv_piece_t *piece)
{
    uint32_t most = tr_store_piece_pages((uint32_t) kv->plan.page_bytes);
    uint32_t left = way->n - way->at;

    piece->slot = way->slot;
    piece->ref = way->ref + way->at;
    piece->n = left < most ? left : most;
    piece->buffer = way->begun % kv->store->buffers;
    return left != 0 && kv->ops->files->moved(kv, out, piece->buffer) == TR_OK;
}

tr_status_t
kv_store_arrived(tr_kv_cache_t *kv, kv_store_way_t *way, bool out,
                 void (*each)(tr_store_t *files))
{
    tr_status_t rc = TR_OK;

    while (way->over < way->begun && rc == TR_OK) {
        rc = kv->ops->files->moved(kv, out, way->over % kv->store->buffers);
        if (rc == TR_OK) {
            way->over++;
            each(kv->store->files);
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

tr_kv_look_t
tr_kv_store_look(tr_kv_cache_t *kv, const void *owner,
                 const tr_kv_policy_t *policy, const tr_prefix_key_t *key,
                 const int32_t *tokens, uint32_t n, uint32_t from)
{
    tr_kv_store_t *s = kv->store;
    uint8_t id[TR_STORE_ID_BYTES];

    if (s == NULL || n / TR_STORE_BLOCK * TR_STORE_BLOCK <= from) {
        return TR_KV_LOOK_NOTHING;
    }
    policy = policy != NULL ? policy : kv->usual;
    kv_store_identify(policy, id);
    switch (tr_store_get_state(s->files)) {
    case TR_STORE_IDLE:
        if (s->stopping) {
            return TR_KV_LOOK_NOTHING;
        }
        s->policy = *policy;
        s->owner = owner;
        s->since = kv->reuse->now;
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

bool
tr_kv_store_looks(const tr_kv_cache_t *kv, const void *owner)
{
    return kv->store != NULL && kv->store->owner == owner;
}

/* ---- turns -------------------------------------------------------------- */

bool
tr_kv_store_turn(tr_kv_cache_t *kv)
{
    bool busy;

    if (kv->store == NULL) {
        return false;
    }
    busy = kv_store_put(kv);
    return kv_store_get(kv) || busy;
}

void
tr_kv_store_stats(const tr_kv_cache_t *kv, tr_store_stats_t *out)
{
    memset(out, 0, sizeof(*out));
    if (kv->store != NULL) {
        tr_store_stats(kv->store->files, out);
    }
}
