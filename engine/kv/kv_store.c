/*
 * Between the KV cache that is here and the store of prefixes in files (kv_cache.h,
 * "files"; engine/store/store.h).  All of it is the step loop's: a turn copies at
 * most a piece (1 MiB) each way, so nobody waits for a disk.
 *
 * Out: what is kept at the end of an answer waits in a short queue, and is copied
 * piece by piece from where it is.  It is not held for that: when its room is
 * wanted first, the file is not written.
 *
 * In: before a prompt is admitted the store looks whether a file has more of it
 * than memory does.  Pages for all of it are taken, as a slot of nobody's, and
 * filled; then it is kept as if its conversation had just ended here, and the
 * prompt finds it like any other.  Until then its pages count as free: when they
 * are wanted, it goes.
 */
#include "kv_store.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "engine/config/log.h"
#include "engine/store/store.h"
#include "kv_internal.h"

#define QUEUE 64u
/* At the end, what waits is written, for so long. */
#define FLUSH_US 5000000u
/* A disk that says nothing for so long is not waited for. */
#define PATIENCE_US 2000000u

/* What is to be stored: a kept slot, or the path to a node of the tree. */
typedef struct {
    bool slot;
    uint32_t id;
} kept_t;

struct tr_kv_store {
    tr_store_t *files;
    kept_t queue[QUEUE];
    uint32_t n_queue;

    bool putting;
    kept_t what; /* putting */
    int32_t *put_page;
    uint32_t put_n, put_at;

    const void *owner; /* who asked; NULL: nobody */
    uint64_t since;    /* when the store's last word came, us */
    bool stopping;     /* what was asked for is not wanted any more */
    tr_kv_policy_t policy;
    int32_t get_slot; /* -1: none */
    int32_t *get_page;
    uint32_t get_n, get_at;
    size_t pages_size;
};

/* ---- open and close ----------------------------------------------------- */

static int32_t *
map_pages(size_t size)
{
    void *at = mmap(NULL, size, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    return at == MAP_FAILED ? NULL : at;
}

static void
release(tr_kv_store_t *s)
{
    if (s->put_page != NULL) {
        munmap(s->put_page, s->pages_size);
    }
    if (s->get_page != NULL) {
        munmap(s->get_page, s->pages_size);
    }
    free(s);
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
    tr_status_t rc = TR_OK;

    if (s == NULL) {
        return tr_error_set(err, TR_ERR_NOMEM, "cache_dir", "no memory");
    }
    s->get_slot = -1;
    s->pages_size = (size_t) c.max_pages * sizeof(*s->put_page);
    s->put_page = map_pages(s->pages_size);
    s->get_page = map_pages(s->pages_size);
    if (s->put_page == NULL || s->get_page == NULL) {
        rc = tr_error_set(err, TR_ERR_NOMEM, "cache_dir", "no memory");
    }
    memcpy(c.identity, identity, sizeof(c.identity));
    add_layouts(kv, c.identity);
    if (rc == TR_OK) {
        rc = tr_store_open(&c, &s->files, err);
    }
    if (rc != TR_OK) {
        release(s);
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
    release(s);
}

/* ---- what is there ------------------------------------------------------ */

/* The pages of a slot, head by head; how many. */
static uint32_t
list_slot(const tr_kv_cache_t *kv, int32_t slot, int32_t *out)
{
    const tr_kv_manager_t *m = &kv->m;
    uint32_t n = 0;

    for (uint32_t h = 0; h < kv->heads; h++) {
        manager_run_t run[MANAGER_RUNS];
        uint32_t runs = manager_runs(m, &m->seq[slot],
                                     manager_counts(m, slot, h),
                                     m->slot[slot].uncompressed_pages, run);

        for (uint32_t i = 0; i < runs; i++) {
            const int32_t *entry = manager_row(m, slot, h) + run[i].entry;

            for (uint32_t j = 0; j < run[i].n; j++, entry += run[i].step) {
                out[n++] = *entry;
            }
        }
    }
    return n;
}

/* Which policy, with all settings, and thresholds by head. */
static void
identify(const tr_kv_policy_t *p, uint8_t out[TR_STORE_ID_BYTES])
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

/* ---- out ---------------------------------------------------------------- */

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
    if (s->n_queue == QUEUE) {
        forget_at(s, 0);
        tr_store_skip(s->files);
    }
    s->queue[s->n_queue++] = (kept_t){ slot, id };
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
        s->putting = false;
        tr_store_put_stop(s->files);
        tr_store_skip(s->files);
    }
}

static void
fill_slot(const tr_kv_cache_t *kv, int32_t slot, tr_store_item_t *item)
{
    const tr_kv_kept_t *k = &kv->reuse->kept[slot];
    const tr_kv_seq_t *q = &kv->m.seq[slot];

    item->key = k->key;
    identify(&kv->policy[slot].origin, item->policy);
    item->n_tokens = k->n;
    memcpy(item->tokens, kv->reuse->tokens + (size_t) slot * kv->config.max_len,
           4ull * k->n);
    for (uint32_t h = 0; h < kv->heads; h++) {
        memcpy(item->counts + h * TR_KV_TIERS_MAX,
               manager_counts(&kv->m, slot, h), 4 * TR_KV_TIERS_MAX);
    }
    item->number[0] = q->window_from;
    item->number[1] = q->sinks;
    item->n_pages = list_slot(kv, slot, kv->store->put_page);
}

static void
fill_path(const tr_kv_cache_t *kv, uint32_t leaf, tr_store_item_t *item)
{
    const tr_prefix_t *tree = kv->reuse->tree;
    uint32_t blocks = 0, node, n, size = kv->plan.layout[0].tokens;
    const int32_t *tokens;

    memset(item->policy, 0, sizeof(item->policy));
    memset(item->counts, 0, 4ull * kv->heads * TR_KV_TIERS_MAX);
    item->number[0] = item->number[1] = 0;
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
            kv->store
                ->put_page[(size_t) h * item->n_pages / kv->heads + blocks] =
                kv->m.kept[(size_t) node * kv->heads + h];
        }
    }
}

/* The next of the queue. */
static bool
put_next(tr_kv_cache_t *kv)
{
    tr_kv_store_t *s = kv->store;
    tr_store_item_t *item = tr_store_put(s->files);

    if (item == NULL || s->n_queue == 0) {
        return false;
    }
    s->what = s->queue[0];
    forget_at(s, 0);
    if (s->what.slot) {
        fill_slot(kv, (int32_t) s->what.id, item);
    } else {
        fill_path(kv, s->what.id, item);
    }
    if (item->n_tokens >= TR_STORE_BLOCK) {
        s->put_n = item->n_pages;
        s->put_at = 0;
        s->putting = true;
        tr_store_put_go(s->files);
    }
    return true;
}

static bool
put(tr_kv_cache_t *kv)
{
    tr_kv_store_t *s = kv->store;
    uint32_t most = tr_store_piece_pages(s->files), i;
    uint8_t *out;

    if (!s->putting) {
        return put_next(kv);
    }
    if (tr_store_put_idle(s->files)) { /* it could not be written */
        s->putting = false;
        return true;
    }
    out = tr_store_put_room(s->files);
    if (out == NULL) {
        return false;
    }
    for (i = 0; i < most && s->put_at < s->put_n; i++) {
        memcpy(out + (size_t) i * kv->plan.page_bytes,
               tr_kv_page_at(&kv->view, s->put_page[s->put_at++]),
               kv->plan.page_bytes);
    }
    tr_store_put_full(s->files);
    s->putting = s->put_at < s->put_n;
    return true;
}

/* ---- in ----------------------------------------------------------------- */

static const tr_prefix_match_t no_match = { .node = TR_PREFIX_NONE,
                                            .part = TR_PREFIX_NONE };

/* A slot with the item's pages, not filled; false: there is no room. */
static bool
take_pages(tr_kv_cache_t *kv, const tr_store_item_t *item)
{
    tr_kv_store_t *s = kv->store;
    tr_kv_found_t none = { .match = no_match };
    int32_t slot = tr_kv_open(kv, &s->policy);
    tr_status_t rc;

    if (slot < 0) {
        return false;
    }
    rc = tr_kv_adopt(kv, slot, &item->key, &none);
    if (rc == TR_OK && kv->m.seq[slot].n_tiers != 0) {
        rc = tr_kv_kept_restore(kv, slot, item->n_tokens, item->number[0],
                                item->number[1], item->counts);
    } else if (rc == TR_OK) {
        rc = tr_kv_reserve(kv, slot, item->n_tokens);
    }
    if (rc == TR_OK && kv->m.slot[slot].pages == item->n_pages) {
        s->get_n = list_slot(kv, slot, s->get_page);
        s->get_at = 0;
        s->get_slot = slot;
        return true;
    }
    tr_kv_close(kv, slot);
    return false;
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
        if (whole && kv->m.seq[slot].n_tiers != 0) {
            tr_kv_kept_restored(kv, slot, item->tokens, item->n_tokens);
        } else if (whole) {
            kv->reuse->slot[slot].loaded = true;
            tr_kv_keep(kv, slot, item->tokens, item->n_tokens, true);
        }
        tr_kv_close(kv, slot);
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
        tr_kv_close(kv, slot);
    }
}

bool
tr_kv_store_yield(tr_kv_cache_t *kv)
{
    if (kv->store == NULL || kv->store->get_slot < 0) {
        return false;
    }
    give_up(kv);
    return true;
}

uint64_t
tr_kv_store_pages(const tr_kv_cache_t *kv)
{
    return kv->store != NULL && kv->store->get_slot >= 0
               ? kv->m.slot[kv->store->get_slot].pages
               : 0;
}

static bool
get_piece(tr_kv_cache_t *kv)
{
    tr_kv_store_t *s = kv->store;
    const uint8_t *in = tr_store_get_piece(s->files);
    uint32_t most = tr_store_piece_pages(s->files), i;

    if (in == NULL) {
        return false;
    }
    for (i = 0; i < most && s->get_at < s->get_n; i++) {
        memcpy(tr_kv_page_at(&kv->view, s->get_page[s->get_at++]),
               in + (size_t) i * kv->plan.page_bytes, kv->plan.page_bytes);
    }
    tr_store_get_taken(s->files);
    s->since = kv->reuse->now;
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
    tr_kv_store_t *s = kv->store;
    tr_store_get_t state = tr_store_get_state(s->files);

    switch (state) {
    case TR_STORE_FOUND:
        s->since = kv->reuse->now;
        if (take_pages(kv, tr_store_got(s->files))) {
            tr_store_get_go(s->files);
        } else {
            give_up(kv);
        }
        return true;
    case TR_STORE_LOADING:
        return get_piece(kv);
    case TR_STORE_NONE:
    case TR_STORE_DONE:
    case TR_STORE_FAILED:
        get_over(kv, state == TR_STORE_DONE);
        return true;
    default:
        return false;
    }
}

static bool
get(tr_kv_cache_t *kv)
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
    identify(policy, id);
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
    busy = put(kv);
    return get(kv) || busy;
}

void
tr_kv_store_stats(const tr_kv_cache_t *kv, tr_store_stats_t *out)
{
    memset(out, 0, sizeof(*out));
    if (kv->store != NULL) {
        tr_store_stats(kv->store->files, out);
    }
}
