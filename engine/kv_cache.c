/*
 * The KV cache (kv_cache.h): sequence slots and page tables over the pool of
 * kv_pages.h.
 *
 * Owner of a page = its sequence slot.  Each (slot, layer, list) has a row of
 * the table and the number of entries in use; an entry whose page went back is
 * -1, so that who reads too far does not meet another's page.  A slot also
 * remembers up to which length all of its lists have room, so that the common
 * step (31 of 32 tokens start no page) costs one comparison.
 */
#include "kv_cache.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "kv_pages.h"
#include "kv_policy.h"
#include "log.h"

/* Pages of 6 to 24 KiB: small enough that half a page of slack a list does not
 * matter, large enough for long contiguous reads. */
#define TR_KV_PAGE_MIN 6144u
#define TR_KV_PAGE_MAX 24576u

typedef struct {
    bool open;
    uint32_t tokens; /* positions that were reserved */
    uint32_t room;   /* positions for which every list has a page */
    uint64_t pages;
} tr_kv_slot_t;

struct tr_kv_cache {
    tr_kv_config_t config;
    const tr_kv_policy_t *policy;
    tr_kv_pages_t pages;
    uint32_t page_tokens;
    uint32_t table_len;
    size_t tables_size; /* bytes */
    int32_t *tables;    /* [slots][layers][lists][table_len] */
    uint32_t *held;     /* [slots][layers][lists] entries in use */
    tr_kv_slot_t *slot; /* [slots] */
    int32_t *free_slots;
    uint32_t n_free_slots;
    uint64_t tokens;
};

static uint32_t
tr_kv_heads(const tr_kv_cache_t *kv)
{
    return kv->config.layers * kv->config.lists;
}

static int32_t *
tr_kv_row(const tr_kv_cache_t *kv, int32_t slot, uint32_t head)
{
    return kv->tables
           + ((size_t) slot * tr_kv_heads(kv) + head) * kv->table_len;
}

static uint32_t *
tr_kv_held(const tr_kv_cache_t *kv, int32_t slot)
{
    return kv->held + (size_t) slot * tr_kv_heads(kv);
}

/* Tokens of a page that holds keys and values of 16 bits. */
static uint32_t
tr_kv_page_tokens(uint32_t head_dim)
{
    uint32_t n = 32;

    while (n * 4 * head_dim < TR_KV_PAGE_MIN) {
        n *= 2;
    }
    while (n * 4 * head_dim > TR_KV_PAGE_MAX && n > 8) {
        n /= 2;
    }
    return n;
}

/* Pages that one head needs for n tokens. */
static uint32_t
tr_kv_head_pages(const tr_kv_cache_t *kv, uint32_t head, uint32_t n)
{
    uint32_t tokens[TR_KV_LEVELS_MAX] = { 0 };
    uint32_t lists = kv->config.lists;

    kv->policy->charge(kv->policy, head / lists, head % lists, n, tokens);
    return (tokens[0] + kv->page_tokens - 1) / kv->page_tokens;
}

static tr_status_t
tr_kv_cache_tables(tr_kv_cache_t *kv, tr_error_t *err)
{
    size_t rows = (size_t) kv->config.slots * tr_kv_heads(kv);
    uint32_t i;
    void *at;

    kv->tables_size = rows * kv->table_len * sizeof(int32_t);
    at = mmap(NULL, kv->tables_size, PROT_READ | PROT_WRITE,
              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    kv->tables = at == MAP_FAILED ? NULL : at;
    kv->held = calloc(rows, sizeof(*kv->held));
    kv->slot = calloc(kv->config.slots, sizeof(*kv->slot));
    kv->free_slots = calloc(kv->config.slots, sizeof(*kv->free_slots));
    if (kv->tables == NULL || kv->held == NULL || kv->slot == NULL
        || kv->free_slots == NULL) {
        return tr_error_set(err, TR_ERR_NOMEM, "max_num_seqs",
                            "no memory for the page tables of %u sequences"
                            " (%zu bytes)",
                            kv->config.slots, kv->tables_size);
    }
    kv->n_free_slots = kv->config.slots;
    for (i = 0; i < kv->config.slots; i++) {
        kv->free_slots[i] = (int32_t) (kv->config.slots - 1 - i);
    }
    return TR_OK;
}

tr_status_t
tr_kv_cache_create(const tr_kv_config_t *config, tr_kv_cache_t **out,
                   tr_error_t *err)
{
    const tr_kv_policy_t *policy;
    tr_kv_cache_t *kv;
    uint64_t bytes, n, per_list, heads;
    tr_status_t rc;

    *out = NULL;
    policy = tr_kv_policy_find(config->policy, err);
    if (policy == NULL) {
        return err->status;
    }
    heads = (uint64_t) config->layers * config->lists;
    if (heads == 0 || heads > UINT32_MAX || config->head_dim == 0
        || config->head_dim % 8 != 0 || config->slots == 0
        || config->max_len == 0) {
        return tr_error_set(err, TR_ERR_INVALID, "",
                            "KV cache of %u layers, %u lists, head size %u, %u"
                            " sequences of %u tokens: all must be positive,"
                            " the head size a multiple of 8",
                            config->layers, config->lists, config->head_dim,
                            config->slots, config->max_len);
    }
    bytes = (uint64_t) tr_kv_page_tokens(config->head_dim) * 4
            * config->head_dim;
    n = config->memory / bytes;
    n = n > INT32_MAX ? INT32_MAX : n;
    if (n < heads) {
        return tr_error_set(err, TR_ERR_INVALID, "kv_memory",
                            "kv_memory of %llu bytes is %llu pages of %llu"
                            " bytes: at least one page for each of %llu heads"
                            " is needed, %llu bytes",
                            (unsigned long long) config->memory,
                            (unsigned long long) n, (unsigned long long) bytes,
                            (unsigned long long) heads,
                            (unsigned long long) (heads * bytes));
    }
    kv = calloc(1, sizeof(*kv));
    if (kv == NULL) {
        return tr_error_set(err, TR_ERR_NOMEM, "", "no memory for a KV cache");
    }
    kv->config = *config;
    kv->policy = policy;
    kv->config.policy = policy->name;
    kv->page_tokens = tr_kv_page_tokens(config->head_dim);
    kv->table_len = (config->max_len - 1) / kv->page_tokens + 1;
    per_list = n / heads; /* no sequence can hold more */
    if (kv->table_len > per_list) {
        kv->table_len = (uint32_t) per_list;
    }
    rc = tr_kv_pages_init(&kv->pages, (uint32_t) n, bytes, err);
    if (rc == TR_OK) {
        rc = tr_kv_cache_tables(kv, err);
    }
    if (rc != TR_OK) {
        tr_kv_cache_free(kv);
        return rc;
    }
    *out = kv;
    return TR_OK;
}

void
tr_kv_cache_free(tr_kv_cache_t *kv)
{
    if (kv == NULL) {
        return;
    }
    tr_kv_pages_free(&kv->pages);
    if (kv->tables != NULL) {
        munmap(kv->tables, kv->tables_size);
    }
    free(kv->held);
    free(kv->slot);
    free(kv->free_slots);
    free(kv);
}

uint64_t
tr_kv_page_bytes(const tr_kv_cache_t *kv)
{
    return kv->pages.bytes;
}

uint64_t
tr_kv_pages(const tr_kv_cache_t *kv)
{
    return kv->pages.n;
}

uint64_t
tr_kv_free_pages(const tr_kv_cache_t *kv)
{
    return tr_kv_pages_left(&kv->pages);
}

uint64_t
tr_kv_token_bytes(const tr_kv_cache_t *kv)
{
    return (uint64_t) tr_kv_heads(kv) * 4 * kv->config.head_dim;
}

uint64_t
tr_kv_pages_for(const tr_kv_cache_t *kv, uint32_t n)
{
    uint32_t head;
    uint64_t sum = 0;

    for (head = 0; head < tr_kv_heads(kv); head++) {
        sum += tr_kv_head_pages(kv, head, n);
    }
    return sum;
}

uint32_t
tr_kv_max_len(const tr_kv_cache_t *kv)
{
    uint64_t n = (uint64_t) kv->table_len * kv->page_tokens;

    return n < kv->config.max_len ? (uint32_t) n : kv->config.max_len;
}

void
tr_kv_view(const tr_kv_cache_t *kv, tr_kv_view_t *out)
{
    out->pool = kv->pages.memory;
    out->page_bytes = kv->pages.bytes;
    out->page_tokens = kv->page_tokens;
    out->layers = kv->config.layers;
    out->lists = kv->config.lists;
    out->head_dim = kv->config.head_dim;
    out->tables = kv->tables;
    out->table_len = kv->table_len;
}

int32_t
tr_kv_open(tr_kv_cache_t *kv)
{
    int32_t slot;

    if (kv->n_free_slots == 0) {
        return -1;
    }
    slot = kv->free_slots[--kv->n_free_slots];
    assert(!kv->slot[slot].open && kv->slot[slot].pages == 0);
    kv->slot[slot].open = true;
    return slot;
}

static tr_kv_slot_t *
tr_kv_slot(const tr_kv_cache_t *kv, int32_t slot)
{
    assert(slot >= 0 && (uint32_t) slot < kv->config.slots);
    assert(kv->slot[slot].open);
    return &kv->slot[slot];
}

void
tr_kv_close(tr_kv_cache_t *kv, int32_t slot)
{
    tr_kv_slot_t *s = tr_kv_slot(kv, slot);
    uint32_t *held = tr_kv_held(kv, slot);
    uint32_t head, i;

    for (head = 0; head < tr_kv_heads(kv); head++) {
        int32_t *row = tr_kv_row(kv, slot, head);

        for (i = 0; i < held[head]; i++) {
            tr_kv_pages_give(&kv->pages, row[i], (uint32_t) slot);
            row[i] = -1;
        }
        s->pages -= held[head];
        held[head] = 0;
    }
    assert(s->pages == 0);
    kv->tokens -= s->tokens;
    memset(s, 0, sizeof(*s));
    kv->free_slots[kv->n_free_slots++] = slot;
}

tr_status_t
tr_kv_reserve(tr_kv_cache_t *kv, int32_t slot, uint32_t len)
{
    tr_kv_slot_t *s = tr_kv_slot(kv, slot);
    uint32_t *held = tr_kv_held(kv, slot);
    uint32_t head, n;
    uint64_t want = 0;

    if (len > s->room) {
        if (len > tr_kv_max_len(kv)) {
            return TR_AGAIN;
        }
        /* plan all heads, then grant all or nothing, in a fixed order */
        for (head = 0; head < tr_kv_heads(kv); head++) {
            n = tr_kv_head_pages(kv, head, len);
            want += n > held[head] ? n - held[head] : 0;
        }
        if (want > tr_kv_pages_left(&kv->pages)) {
            return TR_AGAIN;
        }
        for (head = 0; head < tr_kv_heads(kv); head++) {
            int32_t *row = tr_kv_row(kv, slot, head);

            n = tr_kv_head_pages(kv, head, len);
            for (; held[head] < n; held[head]++) {
                row[held[head]] = tr_kv_pages_take(&kv->pages, (uint32_t) slot);
            }
        }
        s->pages += want;
        s->room = ((len - 1) / kv->page_tokens + 1) * kv->page_tokens;
        if (s->room > tr_kv_max_len(kv)) {
            s->room = tr_kv_max_len(kv);
        }
    }
    if (len > s->tokens) {
        kv->tokens += len - s->tokens;
        s->tokens = len;
    }
    return TR_OK;
}

tr_status_t
tr_kv_fork(tr_kv_cache_t *kv, int32_t from, int32_t to, uint32_t len)
{
    uint32_t head, i, n;
    tr_status_t rc;

    assert(from != to && tr_kv_slot(kv, from)->tokens >= len);
    assert(tr_kv_slot(kv, to)->pages == 0);
    rc = tr_kv_reserve(kv, to, len);
    if (rc != TR_OK) {
        return rc;
    }
    for (head = 0; head < tr_kv_heads(kv); head++) {
        const int32_t *source = tr_kv_row(kv, from, head);
        const int32_t *target = tr_kv_row(kv, to, head);

        n = tr_kv_head_pages(kv, head, len);
        for (i = 0; i < n; i++) {
            memcpy(tr_kv_page(&kv->pages, target[i]),
                   tr_kv_page(&kv->pages, source[i]), kv->pages.bytes);
        }
    }
    return TR_OK;
}

void
tr_kv_usage(const tr_kv_cache_t *kv, int32_t slot, tr_kv_usage_t *out)
{
    const tr_kv_slot_t *s = tr_kv_slot(kv, slot);
    uint64_t kept = 0, best = 0, all;
    uint32_t head, level;

    memset(out, 0, sizeof(*out));
    out->bytes = s->pages * kv->pages.bytes;
    out->full_bytes = s->tokens * tr_kv_token_bytes(kv);
    out->tokens = s->tokens;
    all = (uint64_t) s->tokens * tr_kv_heads(kv);
    if (all == 0) {
        return;
    }
    for (head = 0; head < tr_kv_heads(kv); head++) {
        uint32_t tokens[TR_KV_LEVELS_MAX] = { 0 };

        kv->policy->charge(kv->policy, head / kv->config.lists,
                           head % kv->config.lists, s->tokens, tokens);
        best += tokens[0];
        for (level = 0; level < kv->policy->n_levels; level++) {
            kept += tokens[level];
        }
    }
    out->share_high = (float) ((double) best / (double) all);
    out->share_low = (float) ((double) (kept - best) / (double) all);
    out->share_pruned = (float) ((double) (all - kept) / (double) all);
}

uint64_t
tr_kv_tokens(const tr_kv_cache_t *kv)
{
    return kv->tokens;
}

/* Every page in a table belongs to that slot, and appears once: as many pages
 * in tables as have an owner. */
bool
tr_kv_sound(const tr_kv_cache_t *kv)
{
    uint64_t in_tables = 0, tokens = 0;
    uint32_t slot, head, i;

    for (slot = 0; slot < kv->config.slots; slot++) {
        const uint32_t *held = tr_kv_held(kv, (int32_t) slot);
        uint64_t pages = 0;

        for (head = 0; head < tr_kv_heads(kv); head++) {
            const int32_t *row = tr_kv_row(kv, (int32_t) slot, head);

            for (i = 0; i < held[head]; i++) {
                if (row[i] < 0 || (uint32_t) row[i] >= kv->pages.n
                    || kv->pages.owner[row[i]] != slot) {
                    return false;
                }
            }
            pages += held[head];
        }
        if (pages != kv->slot[slot].pages
            || (pages != 0 && !kv->slot[slot].open)) {
            return false;
        }
        in_tables += pages;
        tokens += kv->slot[slot].tokens;
    }
    return tokens == kv->tokens
           && in_tables + tr_kv_pages_left(&kv->pages) == kv->pages.n
           && tr_kv_pages_sound(&kv->pages);
}
