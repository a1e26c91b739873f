/*
 * Cached prefixes in host memory (shelf.h).
 */
#include "shelf.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>

#include "engine/base/siphash.h"

#define ITEMS_MAX 4096u

typedef enum { EMPTY, FILLING, WHOLE } state_t;

typedef struct {
    state_t state;
    uint32_t holds;
    uint64_t used;
    uint32_t first, chunks; /* where its pages are */
    uint32_t n_tokens, n_pages;
    uint32_t number[TR_STORE_NUMBERS];
    tr_prefix_key_t key;
    uint8_t policy[TR_STORE_ID_BYTES];
} item_t;

struct tr_shelf {
    tr_shelf_config_t config;
    uint8_t key[TR_SIPHASH_BYTES];
    uint32_t items, blocks; /* at most; blocks of an item */
    item_t *item;           /* [items] */
    uint32_t *next;         /* [chunks] */
    uint32_t free, n_free;  /* chunks */
    /* mapped: touched as far as they are used */
    int32_t *tokens;   /* [items][max_len] */
    uint32_t *counts;  /* [items][counts] */
    uint64_t *hash;    /* [items][blocks] */
    uint64_t *of_find; /* [blocks] of what is looked for */
    uint8_t *memory;
    size_t size;
    tr_shelf_stats_t stats;
};

/* ---- create ------------------------------------------------------------- */

/* Where arrays by item are; s->memory NULL: how large they are. */
static size_t
lay(tr_shelf_t *s)
{
    size_t n = s->items, at = 0;
    size_t hash = n * s->blocks * sizeof(*s->hash);
    size_t find = s->blocks * sizeof(*s->of_find);
    size_t tokens = n * s->config.max_len * sizeof(*s->tokens);

    if (s->memory != NULL) {
        s->hash = (uint64_t *) (void *) s->memory;
        s->of_find = (uint64_t *) (void *) (s->memory + hash);
        s->tokens = (int32_t *) (void *) (s->memory + hash + find);
        s->counts = (uint32_t *) (void *) (s->memory + hash + find + tokens);
    }
    at = hash + find + tokens;
    return at + (n * s->config.counts + 1) * sizeof(*s->counts);
}

static bool
make(tr_shelf_t *s)
{
    void *at;

    s->items = s->config.chunks < ITEMS_MAX ? s->config.chunks : ITEMS_MAX;
    s->blocks = s->config.max_len / TR_STORE_BLOCK + 1;
    s->item = calloc(s->items, sizeof(*s->item));
    s->next = calloc(s->config.chunks, sizeof(*s->next));
    s->size = lay(s);
    at = mmap(NULL, s->size, PROT_READ | PROT_WRITE,
              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    s->memory = at == MAP_FAILED ? NULL : at;
    return s->item != NULL && s->next != NULL && s->memory != NULL
           && getrandom(s->key, sizeof(s->key), 0) == sizeof(s->key);
}

tr_shelf_t *
tr_shelf_create(const tr_shelf_config_t *config)
{
    tr_shelf_t *s = calloc(1, sizeof(*s));

    if (s == NULL) {
        return NULL;
    }
    s->config = *config;
    if (!make(s)) {
        tr_shelf_free(s);
        return NULL;
    }
    lay(s);
    s->free = 0;
    s->n_free = config->chunks;
    for (uint32_t i = 0; i < config->chunks; i++) {
        s->next[i] = i + 1 < config->chunks ? i + 1 : TR_SHELF_NONE;
    }
    return s;
}

void
tr_shelf_free(tr_shelf_t *s)
{
    if (s == NULL) {
        return;
    }
    if (s->memory != NULL) {
        munmap(s->memory, s->size);
    }
    free(s->next);
    free(s->item);
    free(s);
}

/* ---- hashes ------------------------------------------------------------- */

static int32_t *
tokens_of(const tr_shelf_t *s, uint32_t id)
{
    return s->tokens + (size_t) id * s->config.max_len;
}

static uint64_t *
hash_of(const tr_shelf_t *s, uint32_t id)
{
    return s->hash + (size_t) id * s->blocks;
}

/* out[i] is of the first (i + 1) blocks. */
static void
hash_blocks(const tr_shelf_t *s, const tr_prefix_key_t *key,
            const uint8_t *policy, const int32_t *tokens, uint32_t n,
            uint64_t *out)
{
    uint8_t first[TR_STORE_ID_BYTES + TR_PREFIX_KEY_MAX];
    uint8_t next[TR_SIPHASH_BYTES + 4 * TR_STORE_BLOCK];

    memcpy(first, policy, TR_STORE_ID_BYTES);
    memcpy(first + TR_STORE_ID_BYTES, key->bytes, key->len);
    tr_siphash(s->key, first, TR_STORE_ID_BYTES + key->len, next);
    for (uint32_t i = 0; i < n / TR_STORE_BLOCK; i++) {
        memcpy(next + TR_SIPHASH_BYTES, tokens + (size_t) i * TR_STORE_BLOCK,
               4 * TR_STORE_BLOCK);
        tr_siphash(s->key, next, sizeof(next), next);
        memcpy(&out[i], next, sizeof(out[i]));
    }
}

static bool
is_for(const item_t *t, const tr_prefix_key_t *key, const uint8_t *policy)
{
    return t->key.len == key->len
           && memcmp(t->key.bytes, key->bytes, key->len) == 0
           && memcmp(t->policy, policy, TR_STORE_ID_BYTES) == 0;
}

/* Does the item, of this policy and key, begin with these n tokens, which have
 * these hashes? */
static bool
begins_with(const tr_shelf_t *s, uint32_t id, const int32_t *tokens, uint32_t n,
            const uint64_t *hash)
{
    uint32_t blocks = n / TR_STORE_BLOCK;

    return s->item[id].n_tokens >= n
           && (blocks == 0 || hash_of(s, id)[blocks - 1] == hash[blocks - 1])
           && memcmp(tokens_of(s, id), tokens, 4ull * n) == 0;
}

/* ---- room --------------------------------------------------------------- */

static void
count_item(tr_shelf_t *s, const item_t *t, bool more)
{
    uint64_t bytes = (uint64_t) t->chunks * s->config.chunk_pages
                     * s->config.page_bytes;

    s->stats.items += more ? 1 : -1ull;
    s->stats.bytes += more ? bytes : -bytes;
}

static void
take_chunks(tr_shelf_t *s, item_t *t, uint32_t n)
{
    uint32_t *link = &t->first;

    t->chunks = n;
    s->n_free -= n;
    for (; n != 0; n--) {
        *link = s->free;
        s->free = s->next[s->free];
        link = &s->next[*link];
    }
    *link = TR_SHELF_NONE;
}

static void
give_item(tr_shelf_t *s, uint32_t id)
{
    item_t *t = &s->item[id];
    uint32_t chunk = t->first;

    assert(t->state != EMPTY && t->holds == 0);
    count_item(s, t, false);
    while (chunk != TR_SHELF_NONE) {
        uint32_t next = s->next[chunk];

        s->next[chunk] = s->free;
        s->free = chunk;
        chunk = next;
    }
    s->n_free += t->chunks;
    memset(t, 0, sizeof(*t));
}

static bool
can_go(const item_t *t)
{
    return t->state == WHOLE && t->holds == 0;
}

/* The item that goes next; NONE: none can. */
static uint32_t
oldest(const tr_shelf_t *s)
{
    uint32_t best = TR_SHELF_NONE;

    for (uint32_t i = 0; i < s->items; i++) {
        if (can_go(&s->item[i])
            && (best == TR_SHELF_NONE
                || s->item[i].used < s->item[best].used)) {
            best = i;
        }
    }
    return best;
}

static uint32_t
empty_item(const tr_shelf_t *s)
{
    for (uint32_t i = 0; i < s->items; i++) {
        if (s->item[i].state == EMPTY) {
            return i;
        }
    }
    return TR_SHELF_NONE;
}

/* Chunks, and an item, become free.  False: there are too few that can go, and
 * none went. */
static bool
make_room(tr_shelf_t *s, uint32_t chunks)
{
    uint64_t have = s->n_free;
    uint32_t id;

    for (uint32_t i = 0; i < s->items; i++) {
        have += can_go(&s->item[i]) ? s->item[i].chunks : 0;
    }
    if (have < chunks) {
        return false;
    }
    while (s->n_free < chunks || empty_item(s) == TR_SHELF_NONE) {
        id = oldest(s);
        if (id == TR_SHELF_NONE) {
            return false; /* all items are held */
        }
        give_item(s, id);
        s->stats.evicted++;
    }
    return true;
}

/* ---- put ---------------------------------------------------------------- */

/* Who begins with all of these tokens; NONE: nobody. */
static uint32_t
covers(const tr_shelf_t *s, const tr_store_item_t *item, const uint64_t *hash)
{
    for (uint32_t i = 0; i < s->items; i++) {
        const item_t *t = &s->item[i];

        if (t->state != EMPTY && is_for(t, &item->key, item->policy)
            && begins_with(s, i, item->tokens, item->n_tokens, hash)) {
            return i;
        }
    }
    return TR_SHELF_NONE;
}

uint32_t
tr_shelf_put(tr_shelf_t *s, const tr_store_item_t *item, uint64_t now,
             bool *there)
{
    const tr_shelf_config_t *c = &s->config;
    uint32_t chunks = (item->n_pages + c->chunk_pages - 1) / c->chunk_pages;
    uint32_t id;
    item_t *t;

    assert(item->n_tokens != 0 && item->n_tokens <= c->max_len && chunks != 0);
    hash_blocks(s, &item->key, item->policy, item->tokens, item->n_tokens,
                s->of_find);
    id = covers(s, item, s->of_find);
    *there = id != TR_SHELF_NONE;
    if (*there) {
        s->item[id].used = now;
        return TR_SHELF_NONE;
    }
    if (!make_room(s, chunks)) {
        return TR_SHELF_NONE;
    }
    id = empty_item(s);
    t = &s->item[id];
    t->state = FILLING;
    t->used = now;
    t->n_tokens = item->n_tokens;
    t->n_pages = item->n_pages;
    t->key = item->key;
    memcpy(t->number, item->number, sizeof(t->number));
    memcpy(t->policy, item->policy, sizeof(t->policy));
    memcpy(tokens_of(s, id), item->tokens, 4ull * item->n_tokens);
    memcpy(s->counts + (size_t) id * c->counts, item->counts, 4ull * c->counts);
    memcpy(hash_of(s, id), s->of_find,
           item->n_tokens / TR_STORE_BLOCK * sizeof(*s->hash));
    take_chunks(s, t, chunks);
    count_item(s, t, true);
    return id;
}

void
tr_shelf_put_over(tr_shelf_t *s, uint32_t id, bool whole)
{
    item_t *t = &s->item[id];

    assert(t->state == FILLING);
    if (!whole) {
        give_item(s, id);
        return;
    }
    t->state = WHOLE;
    s->stats.stored++;
    for (uint32_t i = 0; i < s->items; i++) {
        item_t *o = &s->item[i];

        if (i != id && can_go(o) && is_for(o, &t->key, t->policy)
            && begins_with(s, id, tokens_of(s, i), o->n_tokens,
                           hash_of(s, i))) {
            give_item(s, i);
        }
    }
}

/* ---- get ---------------------------------------------------------------- */

/* Blocks that the item shares with what has the hashes `of_find`, n of them, if
 * these are more than `least`; else no more. */
static uint32_t
shared_blocks(const tr_shelf_t *s, uint32_t id, uint32_t n, uint32_t least)
{
    const uint64_t *hash = hash_of(s, id);
    uint32_t most = s->item[id].n_tokens / TR_STORE_BLOCK, low = least, high;

    most = most < n ? most : n;
    if (most <= least || hash[least] != s->of_find[least]) {
        return least;
    }
    for (high = most; low < high;) { /* blocks [0, low) are shared */
        uint32_t middle = low + (high - low + 1) / 2;

        if (hash[middle - 1] == s->of_find[middle - 1]) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    return low;
}

uint32_t
tr_shelf_find(const tr_shelf_t *s, const tr_prefix_key_t *key,
              const uint8_t policy[TR_STORE_ID_BYTES], const int32_t *tokens,
              uint32_t n, uint32_t from, uint32_t *common)
{
    uint32_t best = TR_SHELF_NONE, blocks = from / TR_STORE_BLOCK, most;

    n = n < s->config.max_len ? n : s->config.max_len;
    if (s->stats.items == 0 || n / TR_STORE_BLOCK <= blocks) {
        return TR_SHELF_NONE;
    }
    hash_blocks(s, key, policy, tokens, n, s->of_find);
    for (uint32_t i = 0; i < s->items; i++) {
        const item_t *t = &s->item[i];
        uint32_t more;

        if (t->state != WHOLE) {
            continue;
        }
        more = shared_blocks(s, i, n / TR_STORE_BLOCK, blocks);
        /* of those that share as much, the one with least behind that */
        if (more > blocks
            || (best != TR_SHELF_NONE && more == blocks
                && t->n_tokens < s->item[best].n_tokens
                && t->n_tokens / TR_STORE_BLOCK >= blocks
                && hash_of(s, i)[blocks - 1] == s->of_find[blocks - 1])) {
            blocks = more;
            best = i;
        }
    }
    if (best == TR_SHELF_NONE || !is_for(&s->item[best], key, policy)) {
        return TR_SHELF_NONE;
    }
    most = s->item[best].n_tokens < n ? s->item[best].n_tokens : n;
    *common = tr_prefix_common(tokens_of(s, best), tokens, most);
    return *common > from ? best : TR_SHELF_NONE;
}

void
tr_shelf_hold(tr_shelf_t *s, uint32_t id, uint64_t now)
{
    assert(s->item[id].state == WHOLE);
    s->item[id].holds++;
    s->item[id].used = now;
}

void
tr_shelf_drop(tr_shelf_t *s, uint32_t id, bool read)
{
    assert(s->item[id].holds != 0);
    s->item[id].holds--;
    s->stats.loaded += read;
    s->stats.loaded_tokens += read ? s->item[id].n_tokens : 0;
}

void
tr_shelf_item(const tr_shelf_t *s, uint32_t id, tr_store_item_t *out)
{
    const item_t *t = &s->item[id];

    out->key = t->key;
    memcpy(out->policy, t->policy, sizeof(out->policy));
    memcpy(out->number, t->number, sizeof(out->number));
    out->n_tokens = t->n_tokens;
    out->n_pages = t->n_pages;
    out->tokens = tokens_of(s, id);
    out->counts = s->counts + (size_t) id * s->config.counts;
}

/* ---- chunks, and the rest ----------------------------------------------- */

uint32_t
tr_shelf_first(const tr_shelf_t *s, uint32_t id)
{
    return s->item[id].first;
}

uint32_t
tr_shelf_behind(const tr_shelf_t *s, uint32_t chunk)
{
    return s->next[chunk];
}

uint8_t *
tr_shelf_chunk(const tr_shelf_t *s, uint32_t chunk)
{
    return s->config.memory
           + (size_t) chunk * s->config.chunk_pages * s->config.page_bytes;
}

void
tr_shelf_expire(tr_shelf_t *s, uint64_t before)
{
    for (uint32_t i = 0; i < s->items; i++) {
        if (can_go(&s->item[i]) && s->item[i].used < before) {
            give_item(s, i);
            s->stats.evicted++;
        }
    }
}

void
tr_shelf_skip(tr_shelf_t *s)
{
    s->stats.skipped++;
}

void
tr_shelf_stats(const tr_shelf_t *s, tr_shelf_stats_t *out)
{
    *out = s->stats;
}

bool
tr_shelf_sound(const tr_shelf_t *s)
{
    uint64_t items = 0, chunks = 0, unused = 0;
    uint8_t *seen = calloc(s->config.chunks, 1);
    bool good = seen != NULL;

    for (uint32_t i = 0; i < s->items && good; i++) {
        const item_t *t = &s->item[i];
        uint32_t n = 0;

        for (uint32_t c = t->first;
             t->state != EMPTY && c != TR_SHELF_NONE && good;
             c = s->next[c], n++) {
            good = c < s->config.chunks && !seen[c];
            seen[good ? c : 0] = 1;
        }
        good = good && n == t->chunks && (t->state == WHOLE || t->holds == 0);
        items += t->state != EMPTY;
        chunks += n;
    }
    for (uint32_t c = s->free; c != TR_SHELF_NONE && good; c = s->next[c]) {
        good = c < s->config.chunks && !seen[c];
        seen[good ? c : 0] = 1;
        unused++;
    }
    good = good && unused == s->n_free && unused + chunks == s->config.chunks
           && items == s->stats.items
           && chunks * s->config.chunk_pages * s->config.page_bytes
                  == s->stats.bytes;
    free(seen);
    return good;
}
