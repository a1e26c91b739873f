/*
 * The KV cache (kv_cache.h): sequence slots, page tables, and the dense pages
 * in which prompts and `full` stand.
 *
 * Owner of a page = its sequence slot.  An entry of the table whose page went
 * back is -1, so that who reads too far does not meet another's page.  A slot's
 * heads all have the same number of dense pages, so that the common step of
 * `full` (most tokens start no page) costs one comparison.
 */
#include "kv_cache.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "kv_internal.h"
#include "kv_pages.h"
#include "engine/config/log.h"

/* ---- create ------------------------------------------------------------- */

static tr_status_t
tr_kv_check_config(const tr_kv_config_t *c, tr_error_t *err)
{
    uint32_t i;

    if (c->layers == 0 || c->lists == 0
        || (uint64_t) c->layers * c->lists > UINT32_MAX || c->head_dim == 0
        || c->head_dim % 16 != 0 || c->slots == 0 || c->slots > INT32_MAX
        || c->layers * c->lists > UINT32_MAX / c->slots || c->max_len == 0
        || c->n_policies == 0) {
        return tr_error_set(err, TR_ERR_INVALID, "",
                            "KV cache of %u layers, %u lists, head size %u, %u"
                            " sequences of %u tokens, %u policies: all must be"
                            " positive, the head size a multiple of 16",
                            c->layers, c->lists, c->head_dim, c->slots,
                            c->max_len, c->n_policies);
    }
    for (i = 0; i < c->n_policies; i++) {
        const tr_kv_policy_t *p = c->policies[i];

        if (p->n_levels > TR_KV_LISTS_MAX
            || (p->leaves > 1
                && (p->leaves != TR_KV_CHANNEL_TOKENS
                    || p->window < TR_KV_CHANNEL_TOKENS))) {
            return tr_error_set(err, TR_ERR_INVALID, "kv_policy",
                                "KV policy %s has %u levels and lets %u tokens"
                                " leave a window of %u: at most %u levels, and"
                                " 1 token or %u from a window as large",
                                p->name, p->n_levels, p->leaves, p->window,
                                TR_KV_LISTS_MAX, TR_KV_CHANNEL_TOKENS);
        }
    }
    return TR_OK;
}

/* One page size for the levels of all policies. */
static tr_status_t
tr_kv_plan_pages(tr_kv_cache_t *kv, tr_error_t *err)
{
    const tr_kv_config_t *c = &kv->config;
    tr_kv_level_t level[TR_KV_LAYOUTS_MAX - 1];
    tr_page_wish_t wish = { .head_dim = c->head_dim,
                            .levels = level,
                            .short_positions = c->max_len <= TR_KV_SHORT };
    uint32_t i;

    for (i = 0; i < c->n_policies; i++) {
        const tr_kv_policy_t *p = c->policies[i];

        wish.dense_scored = wish.dense_scored || p->scored;
        wish.dense_digest = wish.dense_digest || p->digest;
        if (!tr_kv_levels_of(p, level, &wish.n_levels, TR_KV_LAYOUTS_MAX - 1)) {
            return tr_error_set(err, TR_ERR_INVALID, "kv_policy",
                                "the KV policies have more than %d levels"
                                " together: leave some out, from %s on",
                                TR_KV_LAYOUTS_MAX - 1, p->spec);
        }
    }
    if (tr_page_plan(&wish, &kv->plan) != 0) {
        return tr_error_set(err, TR_ERR_INVALID, "kv_policy",
                            "no KV page holds head size %u at all levels of"
                            " the policies: levels below 16 bits need a"
                            " multiple of 32, and every level a page of 24 KiB"
                            " at most",
                            c->head_dim);
    }
    return TR_OK;
}

tr_status_t
tr_kv_shape(tr_kv_cache_t *kv, const tr_kv_config_t *config, tr_error_t *err)
{
    tr_status_t rc = tr_kv_check_config(config, err);

    if (rc != TR_OK) {
        return rc;
    }
    kv->config = *config;
    kv->usual = config->policies[0];
    kv->heads = config->layers * config->lists;
    kv->view.layers = config->layers;
    kv->view.lists = config->lists;
    kv->view.head_dim = config->head_dim;
    rc = tr_kv_plan_pages(kv, err);
    kv->view.page_bytes = kv->plan.page_bytes;
    kv->view.n_layouts = kv->plan.n;
    kv->view.layout = kv->plan.layout;
    return rc;
}

/* Which part of a row is whose, for the longest sequence of any policy; no part
 * is longer than the pool. */
void
tr_kv_lay_tables(tr_kv_cache_t *kv)
{
    const tr_kv_config_t *c = &kv->config;
    tr_kv_view_t *v = &kv->view;
    uint32_t window = 0, n, i, pair, l, each = kv->pages.n / kv->heads;

    v->pair_len[0] = v->pair_len[1] = 0;
    kv->dense_len = tr_kv_ceil(c->max_len, kv->plan.layout[0].tokens);
    kv->dense_len = kv->dense_len < each ? kv->dense_len : each;
    for (i = 0; i < c->n_policies; i++) {
        const tr_kv_policy_t *p = c->policies[i];

        for (pair = 0; pair < 2 && pair * 2 < p->n_levels; pair++) {
            uint32_t least = UINT32_MAX, len;

            n = 0;
            for (l = pair * 2; l < p->n_levels && l < pair * 2 + 2; l++, n++) {
                int at = tr_kv_layout_of(&kv->plan, &p->level[l]);
                uint32_t tokens = kv->plan.layout[at].tokens;

                least = tokens < least ? tokens : least;
            }
            /* both lists end with a page that is not full */
            len = tr_kv_ceil(c->max_len, least) + n - 1;
            len = len < kv->pages.n ? len : kv->pages.n;
            v->pair_len[pair] = len > v->pair_len[pair] ? len
                                                        : v->pair_len[pair];
        }
        n = tr_kv_policy_window(&kv->plan, p, c->max_len);
        window = n > window ? n : window;
    }
    v->at_window = kv->dense_len;
    v->at_pair[0] = v->at_window + window;
    v->at_pair[1] = v->at_pair[0] + v->pair_len[0];
    v->table_len = v->at_pair[1] + v->pair_len[1];
}

static void *
tr_kv_map(size_t size)
{
    void *at = mmap(NULL, size, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    return at == MAP_FAILED ? NULL : at;
}

bool
tr_kv_slots_memory(tr_kv_cache_t *kv)
{
    uint32_t slots = kv->config.slots, i;

    kv->seq = calloc(slots, sizeof(*kv->seq));
    kv->slot = calloc(slots, sizeof(*kv->slot));
    kv->free_slots = calloc(slots, sizeof(*kv->free_slots));
    if (kv->seq == NULL || kv->slot == NULL || kv->free_slots == NULL) {
        return false;
    }
    kv->n_free_slots = slots;
    for (i = 0; i < slots; i++) {
        kv->free_slots[i] = (int32_t) (slots - 1 - i);
    }
    return true;
}

static tr_status_t
tr_kv_cache_tables(tr_kv_cache_t *kv, tr_error_t *err)
{
    uint32_t slots = kv->config.slots;
    size_t rows = (size_t) slots * kv->heads;

    kv->tables_size = rows * kv->view.table_len * sizeof(int32_t);
    kv->tables = tr_kv_map(kv->tables_size);
    kv->count = calloc(rows * TR_KV_LISTS_MAX, sizeof(*kv->count));
    kv->move = calloc(rows, sizeof(*kv->move));
    kv->victim = calloc(rows * TR_KV_LISTS_MAX, sizeof(*kv->victim));
    kv->ask = calloc(slots, sizeof(*kv->ask));
    kv->want = calloc(rows, sizeof(*kv->want));
    if (kv->tables == NULL || kv->count == NULL || kv->move == NULL
        || kv->victim == NULL || kv->ask == NULL || kv->want == NULL
        || !tr_kv_slots_memory(kv) || !tr_kv_prompt_memory(kv)) {
        return tr_error_set(err, TR_ERR_NOMEM, "max_num_seqs",
                            "no memory for the page tables of %u sequences"
                            " (%zu bytes)",
                            slots, kv->tables_size);
    }
    return TR_OK;
}

static void
tr_kv_fill_view(tr_kv_cache_t *kv)
{
    tr_kv_view_t *v = &kv->view;

    v->pool = kv->pages.memory;
    v->tables = kv->tables;
    v->seq = kv->seq;
    v->count = kv->count;
    v->move = kv->move;
    v->victim = kv->victim;
}

static tr_status_t
tr_kv_cache_fill(tr_kv_cache_t *kv, tr_error_t *err)
{
    const tr_kv_config_t *c = &kv->config;
    uint64_t bytes = kv->plan.page_bytes, n = c->memory / bytes;
    tr_status_t rc;

    n = n < TR_KV_HOST ? n : TR_KV_HOST - 1;
    if (n < kv->heads) {
        return tr_error_set(err, TR_ERR_INVALID, "kv_memory",
                            "kv_memory %llu holds %llu pages of %llu bytes: %u"
                            " heads need a page each",
                            (unsigned long long) c->memory,
                            (unsigned long long) n, (unsigned long long) bytes,
                            kv->heads);
    }
    rc = tr_kv_pages_init(&kv->pages, (uint32_t) n, bytes, err);
    n = c->swap_memory / bytes;
    n = n < TR_KV_HOST ? n : TR_KV_HOST - 1;
    if (rc == TR_OK && n != 0) {
        rc = tr_kv_pages_init(&kv->swap, (uint32_t) n, bytes, err);
        kv->swap.recent = true;
    }
    if (rc == TR_OK) {
        tr_kv_lay_tables(kv);
        rc = tr_kv_cache_tables(kv, err);
    }
    if (rc == TR_OK) {
        tr_kv_fill_view(kv);
    }
    if (rc == TR_OK && tr_kv_max_len(kv, NULL) == 0) {
        rc = tr_error_set(err, TR_ERR_INVALID, "kv_memory",
                          "kv_memory %llu holds %llu pages of %llu bytes: too"
                          " few for a prompt and its compressed copy in %u"
                          " heads",
                          (unsigned long long) c->memory,
                          (unsigned long long) kv->pages.n,
                          (unsigned long long) bytes, kv->heads);
    }
    return rc;
}

tr_status_t
tr_kv_cache_create(const tr_kv_config_t *config, tr_kv_cache_t **out,
                   tr_error_t *err)
{
    tr_kv_cache_t *kv = calloc(1, sizeof(*kv));
    tr_status_t rc;

    *out = NULL;
    if (kv == NULL) {
        return tr_error_set(err, TR_ERR_NOMEM, "", "no memory");
    }
    kv->ops = &tr_kv_host_ops;
    rc = tr_kv_shape(kv, config, err);
    if (rc == TR_OK) {
        rc = tr_kv_cache_fill(kv, err);
    }
    if (rc != TR_OK) {
        tr_kv_host_free(kv);
        return rc;
    }
    kv->config.policies = NULL;
    *out = kv;
    return TR_OK;
}

void
tr_kv_host_free(tr_kv_cache_t *kv)
{
#ifdef TR_KV_POISON
    assert(kv->view.tables == NULL
           || tr_kv_host_sound(kv)); /* nothing leaked */
#endif
    tr_kv_pages_free(&kv->pages);
    tr_kv_pages_free(&kv->swap);
    if (kv->prompt_memory != NULL) {
        munmap(kv->prompt_memory, kv->prompt_size);
    }
    if (kv->tables != NULL) {
        munmap(kv->tables, kv->tables_size);
    }
    free(kv->seq);
    free(kv->count);
    free(kv->move);
    free(kv->victim);
    free(kv->slot);
    free(kv->ask);
    free(kv->want);
    free(kv->free_slots);
    free(kv);
}

/* ---- slots -------------------------------------------------------------- */

/* Tables were made for the windows of the policies at create. */
static bool
tr_kv_fits_tables(const tr_kv_cache_t *kv, const tr_kv_policy_t *p)
{
    return tr_kv_policy_window(&kv->plan, p, kv->config.max_len)
           <= kv->view.at_pair[0] - kv->view.at_window;
}

/* A slot of this policy, before its first token. */
static void
tr_kv_seq_start(const tr_kv_cache_t *kv, const tr_kv_policy_t *p,
                tr_kv_seq_t *q)
{
    uint32_t l;

    memset(q, 0, sizeof(*q));
    q->scored = p->scored;
    q->by_sum = p->by_sum;
    q->recent_from = UINT32_MAX;
    q->read_layer = p->read_from;
    q->n_lists = (uint8_t) p->n_levels;
    for (l = 0; l < p->n_levels; l++) {
        int at = tr_kv_layout_of(&kv->plan, &p->level[l]);

        assert(at > 0);
        q->list_layout[l] = (uint8_t) at;
    }
    if (p->n_levels != 0 && p->window != 0) {
        int at = tr_kv_layout_of(&kv->plan, &p->window_level);

        assert(at > 0);
        q->window = p->window;
        q->window_layout = (uint8_t) at;
    }
}

int32_t
tr_kv_take_slot(tr_kv_cache_t *kv, const tr_kv_policy_t *policy)
{
    tr_kv_slot_t *s;
    int32_t slot;

    if (kv->n_free_slots == 0) {
        return -1;
    }
    slot = kv->free_slots[--kv->n_free_slots];
    s = &kv->slot[slot];
    assert(!s->open && s->pages == 0);
    s->open = s->dense = true;
    s->origin = policy != NULL ? *policy : *kv->usual;
    s->policy = s->origin;
    assert(tr_kv_fits_tables(kv, &s->origin));
    tr_kv_seq_start(kv, &s->policy, &kv->seq[slot]);
    return slot;
}

void
tr_kv_drop_slot(tr_kv_cache_t *kv, int32_t slot)
{
    kv->totals.tokens -= kv->slot[slot].tokens;
    memset(&kv->slot[slot], 0, sizeof(kv->slot[slot]));
    kv->free_slots[kv->n_free_slots++] = slot;
}

int32_t
tr_kv_host_open(tr_kv_cache_t *kv, const tr_kv_policy_t *policy)
{
    int32_t slot = tr_kv_take_slot(kv, policy);
    size_t i;

    for (i = 0; slot >= 0 && i < (size_t) kv->heads * TR_KV_LISTS_MAX; i++) {
        tr_kv_counts(kv, slot, 0)[i] = 0;
        kv->victim[tr_kv_head_at(kv, slot, 0) * TR_KV_LISTS_MAX + i] =
            (tr_kv_victim_t){ __builtin_inff(), 0 };
    }
    return slot;
}

/* Gives back what the head's row holds, in the order of its runs; how many
 * pages. */
uint32_t
tr_kv_release_row(tr_kv_cache_t *kv, int32_t slot, uint32_t head)
{
    const tr_kv_slot_t *s = &kv->slot[slot];
    tr_kv_pages_t *pool = s->out ? &kv->swap : &kv->pages;
    tr_kv_run_t run[TR_KV_RUNS];
    uint32_t n, i, j, pages = 0;

    n = tr_kv_runs(kv, &kv->seq[slot], tr_kv_counts(kv, slot, head),
                   s->dense_pages, run);
    for (i = 0; i < n; i++) {
        int32_t *entry = tr_kv_row(kv, slot, head) + run[i].entry;

        pages += run[i].n;
        if (s->out) {
            for (j = 0; j < run[i].n; j++) {
                entry[(int32_t) j * run[i].step] &= ~TR_KV_HOST;
            }
            kv->totals.swapped_pages -= run[i].n;
        } else {
            kv->totals.pages[run[i].layout] -= run[i].n;
        }
        tr_kv_pages_store(pool, tr_kv_pages_clear(pool, run[i].n), run[i].n,
                          (uint32_t) slot, entry, run[i].step);
    }
    return pages;
}

void
tr_kv_host_close(tr_kv_cache_t *kv, int32_t slot)
{
    tr_kv_slot_t *s = tr_kv_slot(kv, slot);
    uint32_t head;

    for (head = 0; head < kv->heads; head++) {
        s->pages -= tr_kv_release_row(kv, slot, head);
    }
    assert(s->pages == 0); /* all that it took came back */
    tr_kv_drop_slot(kv, slot);
}

/* ---- dense pages -------------------------------------------------------- */

void
tr_kv_host_prompt(tr_kv_cache_t *kv, int32_t slot, uint32_t len)
{
    tr_kv_slot_t *s = tr_kv_slot(kv, slot);
    tr_kv_seq_t *q = &kv->seq[slot];
    uint32_t last = s->policy.observe != 0 ? s->policy.observe
                                           : TR_KV_OBSERVATION_WINDOW;

    assert(!s->out && len >= s->tokens);
    s->dense = true;
    s->prompt = len;
    q->scored = s->policy.scored;
    q->read_pages = 0;
    q->recent_from = len > last ? len - last : 0;
    if (q->recent_from < q->base) { /* what came before was not counted */
        q->recent_from = q->base;
    }
}

/* Quest: how much a step at this length reads. */
void
tr_kv_set_reading(tr_kv_cache_t *kv, int32_t slot)
{
    const tr_kv_slot_t *s = &kv->slot[slot];
    tr_kv_seq_t *q = &kv->seq[slot];
    uint32_t tokens = kv->plan.layout[0].tokens;
    uint32_t n = tr_kv_ceil(s->tokens - q->base, tokens);

    q->read_pages = s->tokens > s->prompt && s->policy.read != NULL
                        ? s->policy.read(&s->policy, n, tokens)
                        : 0;
}

tr_status_t
tr_kv_host_fork(tr_kv_cache_t *kv, int32_t from, int32_t to, uint32_t len)
{
    uint32_t head, i, n;
    tr_status_t rc;

    assert(from != to && tr_kv_slot(kv, from)->tokens >= len);
    assert(kv->seq[from].base == 0 && !kv->slot[from].out);
    assert(tr_kv_slot(kv, to)->pages == 0);
    tr_kv_host_reserve_batch(kv, &to, &len, 1, &rc);
    if (rc != TR_OK) {
        return rc;
    }
    kv->seq[to].recent_from = kv->seq[from].recent_from;
    n = kv->slot[to].dense_pages;
    for (head = 0; head < kv->heads; head++) {
        const int32_t *source = tr_kv_row(kv, from, head);
        const int32_t *target = tr_kv_row(kv, to, head);

        for (i = 0; i < n; i++) {
            memcpy(tr_kv_page(&kv->pages, target[i]),
                   tr_kv_page(&kv->pages, source[i]), kv->pages.bytes);
        }
    }
    return TR_OK;
}
