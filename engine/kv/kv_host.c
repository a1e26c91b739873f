/*
 * The KV cache that is here (kv_cache.h): memory, and for each call a launch of
 * the page manager on the host (kernels/kv_manager/host.h), whose answer is
 * there on return.
 *
 * Owner of a page = its sequence slot, or nobody, or those that share it
 * (kv_prefix.c), which make room before anybody is refused.  An entry of a
 * table whose page went back is -1, so that who reads too far does not meet
 * another's page.
 *
 * Preemption: pages go to a stack of host memory (kv_pages.h) and come back,
 * byte by byte; tables keep their shape, with TR_KV_HOST in the entries of a
 * slot that is out.  Recomputing a compressed sequence would not give the same
 * levels.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "engine/config/log.h"
#include "kernels/kernels.h"
#include "kernels/thread_pool.h"
#include "kv_internal.h"

/* Heads whose pages are copied by one thread at a time: some pages each. */
#define SWAP_GRAIN 4u

/* The manager refuses nothing that is asked here, and finds every page where it
 * must be.  A page with two owners means that one sequence reads another's
 * text: there is no state to go on with. */
static void
trust(const tr_kv_cache_t *kv, const char *call, int32_t slot)
{
    const tr_kv_report_t *r = kv->m.report;

    if (r->faults != 0 || r->n_refused != 0) {
        tr_log(TR_LEVEL_ERROR,
               "kv pages corrupt call=%s slot=%d faults=%u refused=%u"
               " free=%lld pages=%u steps=%llu",
               call, slot, r->faults, r->n_refused,
               (long long) (r->end - r->start), kv->m.size.pages,
               (unsigned long long) r->steps);
        abort();
    }
}

/* Of the requests of a batch, the one that was refused, or -1: none. */
static int32_t
refused_slot(const tr_kv_cache_t *kv, const int32_t *slots, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        if (kv->m.result[i] == TR_KV_REFUSED) {
            return slots[i];
        }
    }
    return n == 1 ? slots[0] : -1;
}

/* ---- slots -------------------------------------------------------------- */

static int32_t
host_open(tr_kv_cache_t *kv, const tr_kv_policy_t *policy)
{
    tr_kv_open_t open;

    while (!tr_kv_take_slot(kv, policy, &open)) {
        if (!tr_kv_kept_evict(kv, UINT64_MAX) && !tr_kv_lend_absorb_one(kv)) {
            return -1;
        }
    }
    tr_kv_host_open(&kv->m, &open, 1);
    trust(kv, "open", open.slot);
    return open.slot;
}

/* What a slot has in the swap pool goes back. */
static void
drop_swapped(tr_kv_cache_t *kv, int32_t slot)
{
    const tr_kv_slot_t *s = &kv->m.slot[slot];
    tr_kv_pages_t *swap = &kv->swap;
    uint32_t head, i, j, n, at;

    at = swap->used -= s->pages;
    kv->totals.swapped_pages -= s->pages;
    for (head = 0; head < kv->heads; head++) {
        const int32_t *row = manager_row(&kv->m, slot, head);
        manager_run_t run[MANAGER_RUNS];

        n = manager_runs(&kv->m, &kv->m.seq[slot], head,
                         manager_counts(&kv->m, slot, head), NULL,
                         manager_dense(s), run);
        for (i = 0; i < n; i++) {
            const int32_t *entry = row + run[i].entry;

            for (j = 0; j < run[i].n; j++, entry += run[i].step) {
                tr_kv_pages_give(swap, at++, *entry & ~TR_KV_HOST,
                                 (uint32_t) slot);
            }
        }
    }
}

static void
host_release(tr_kv_cache_t *kv, int32_t slot)
{
    const tr_kv_slot_t *s = tr_kv_slot(kv, slot);
    uint32_t pages = s->out ? 0 : s->pages;

    kv->totals.tokens -= s->tokens;
    if (kv->config.guard != NULL) {
        tr_kv_guard_forget(kv->config.guard, slot);
    }
    if (s->out) {
        drop_swapped(kv, slot);
    }
    tr_kv_reuse_close(kv, slot);
    tr_kv_host_close(&kv->config.stream, &kv->m, &slot, 1);
    trust(kv, "close", slot);
    assert(kv->m.need[0].pages == pages); /* all that it took came back */
    (void) pages;
    tr_kv_drop_slot(kv, slot);
}

static void
host_close(tr_kv_cache_t *kv, int32_t slot)
{
    if (!tr_kv_kept_close(kv, slot)) {
        host_release(kv, slot);
    }
}

static void
host_prompt(tr_kv_cache_t *kv, int32_t slot, uint32_t len)
{
    const tr_kv_begin_t begin = { slot, len };

    assert(!tr_kv_slot(kv, slot)->out && len >= kv->m.slot[slot].tokens);
    tr_kv_host_prompt(&kv->m, &begin, 1);
    trust(kv, "prompt", slot);
    if (kv->config.guard != NULL && kv->m.seq[slot].n_tiers != 0
        && tr_kv_at_once(kv, len) == 0) {
        tr_kv_guard_begin(kv->config.guard, slot, len);
    }
}

/* A request that stalled asks once more when prefixes that nobody uses have made
 * room for it. */
static bool
ask_again(tr_kv_cache_t *kv, const tr_kv_page_request_t *ask)
{
    manager_need_t w;
    uint64_t pages;

    manager_need(&kv->m, ask, &w);
    /* no head takes more than a page in a step */
    pages = w.kind == NEED_STEP ? kv->heads : w.pages;
    if (pages == MANAGER_NEVER || kv->reuse == NULL
        || !tr_kv_reuse_room(kv, ask->slot, pages)) {
        return false;
    }
    tr_kv_host_step(&kv->config.stream, &kv->m, ask, 1);
    trust(kv, "reserve", ask->slot);
    kv->totals.tokens += kv->m.need[0].granted
                             ? kv->m.need[0].len - kv->m.need[0].n
                             : 0;
    return kv->m.result[0] == TR_KV_GRANTED;
}

static void
host_reserve_batch(tr_kv_cache_t *kv, const int32_t *slots,
                   const uint32_t *lens, uint32_t n, tr_status_t *result)
{
    uint32_t i;

    assert(n <= kv->config.slots);
    for (i = 0; i < n; i++) {
        const tr_kv_slot_t *s = tr_kv_slot(kv, slots[i]);

        assert(!s->out && (s->uncompressed || lens[i] <= s->tokens + 1));
        (void) s;
        kv->ask[i] = (tr_kv_page_request_t){ slots[i], TR_KV_ANY, lens[i] };
    }
    tr_kv_host_step(&kv->config.stream, &kv->m, kv->ask, n);
    trust(kv, "reserve", refused_slot(kv, slots, n));
    for (i = 0; i < n; i++) {
        const manager_need_t *w = &kv->m.need[i];

        result[i] = kv->m.result[i] == TR_KV_GRANTED ? TR_OK : TR_AGAIN;
        kv->totals.tokens += w->granted ? w->len - w->n : 0;
    }
    for (i = 0; i < n; i++) {
        if (result[i] != TR_OK && ask_again(kv, &kv->ask[i])) {
            result[i] = TR_OK;
        }
    }
}

/* The old pages and the new ones are both there. */
static void
guard(tr_kv_cache_t *kv, int32_t slot)
{
    tr_kv_guard_t *g = kv->config.guard;
    tr_kv_guard_error_t error;

    if (tr_kv_guard_compare(g, &kv->view, &kv->m.compress[0], &error)) {
        tr_kv_guard_count(g, &kv->policy[slot].origin, &error);
    }
    tr_kv_guard_forget(g, slot);
}

/* What the request takes is granted; false: the pool is short. */
static bool
plan(tr_kv_cache_t *kv, const tr_kv_complete_t *c)
{
    const tr_stream_t *t = &kv->config.stream;

    tr_kv_host_plan_prompts(t, &kv->m, c, 1, kv->work);
    trust(kv, "compress", c->slot);
    if (kv->m.result[0] == TR_KV_STALLED
        && tr_kv_reuse_room(kv, c->slot, kv->m.job[0].peak)) {
        tr_kv_host_plan_prompts(t, &kv->m, c, 1, kv->work);
        trust(kv, "compress", c->slot);
    }
    return kv->m.result[0] == TR_KV_GRANTED;
}

/* And its tokens move, all layers at once or some at a time. */
static tr_status_t
complete(tr_kv_cache_t *kv, const tr_kv_complete_t *c,
         const tr_kv_policy_t *begun)
{
    const tr_stream_t *t = &kv->config.stream;
    const tr_kernels_t *k = kv->config.kernels;
    const tr_kv_job_t *job = &kv->m.job[0];
    uint32_t before = kv->m.slot[c->slot].tokens, part, parts;
    tr_status_t rc = TR_OK;

    if (!plan(kv, c)) {
        return TR_AGAIN;
    }
    parts = job->move ? tr_kv_parts(kv->config.layers, c->layers) : 1;
    for (part = 0; part < parts; part++) {
        if (part != 0) {
            tr_kv_host_fill_prompts(t, &kv->m, 1);
        }
        if (rc == TR_OK && job->move && k != NULL
            && k->kv_compress(t, &kv->view, &kv->m.compress[0], kv->kernel_work)
                   != TR_KERNEL_OK) {
            /* what the slot holds is then worthless, but its pages are accounted
             * for, and the caller ends it */
            rc = TR_ERR_INTERNAL;
        } else if (rc == TR_OK && job->move && kv->config.guard != NULL
                   && c->layers == 0) {
            guard(kv, c->slot);
        }
        tr_kv_host_install_prompts(t, &kv->m, 1);
        trust(kv, "install", c->slot);
    }
    if (job->move) {
        kv->policy[c->slot].begun = *begun;
        kv->totals.tokens -= before - c->len;
    }
    return rc;
}

static tr_status_t
host_compress(tr_kv_cache_t *kv, int32_t slot, uint32_t len)
{
    tr_kv_complete_t c = { .slot = slot,
                           .len = len,
                           .layers = tr_kv_at_once(kv, len) };
    tr_kv_policy_t begun;

    assert(!tr_kv_slot(kv, slot)->out && len >= kv->m.seq[slot].base
           && len <= kv->m.slot[slot].tokens);
    if (kv->m.seq[slot].n_tiers == 0) {
        return TR_OK;
    }
    tr_kv_policy_for(&kv->policy[slot].origin, len, &begun);
    c.rule = begun.rule;
    return complete(kv, &c, &begun);
}

static tr_status_t
host_stage(tr_kv_cache_t *kv, int32_t slot, uint32_t len)
{
    const tr_kv_begin_t begin = { slot, kv->m.slot[slot].prompt };
    tr_kv_complete_t c = { .slot = slot,
                           .len = len,
                           .layers = tr_kv_at_once(kv, begin.len) };
    tr_kv_policy_t begun;
    tr_status_t rc;

    assert(!tr_kv_slot(kv, slot)->out && len <= kv->m.slot[slot].tokens);
    tr_kv_policy_for(&kv->policy[slot].origin, len, &begun);
    c.rule = tr_kv_rule_stage(&begun.rule);
    rc = complete(kv, &c, &begun);
    if (rc != TR_AGAIN) {
        tr_kv_host_prompt(&kv->m, &begin, 1);
        trust(kv, "stage", slot);
    }
    return rc;
}

static tr_status_t
host_fork(tr_kv_cache_t *kv, int32_t from, int32_t to, uint32_t len)
{
    const tr_kv_fork_t fork = { from, to, len };
    tr_status_t rc;

    assert(from != to && tr_kv_slot(kv, from)->tokens >= len);
    assert(kv->m.seq[from].base == 0 && !kv->m.slot[from].out);
    assert(tr_kv_slot(kv, to)->pages == 0);
    tr_kv_reuse_fork(kv, from, to, len);
    host_reserve_batch(kv, &to, &len, 1, &rc);
    if (rc == TR_OK) {
        tr_kv_host_fork(&kv->config.stream, &kv->m, NULL, 0, &fork, 1);
        trust(kv, "fork", to);
    }
    return rc;
}

/* ---- out and in --------------------------------------------------------- */

typedef struct {
    tr_kv_cache_t *kv;
    int32_t slot;
    bool out;
    uint32_t at; /* in the swap pool's stack */
} swap_t;

/* The slot's at-th page to the other pool. */
static void
swap_page(const swap_t *job, int32_t *entry, uint32_t at)
{
    tr_kv_cache_t *kv = job->kv;
    uint32_t owner = (uint32_t) job->slot;
    int32_t there;

    if (job->out) {
        kv->moved[at] = *entry;
        there = tr_kv_pages_take(&kv->swap, job->at + at, owner);
        memcpy(tr_kv_page(&kv->swap, there), tr_kv_page_at(&kv->view, *entry),
               kv->swap.bytes);
        *entry = there | TR_KV_HOST;
    } else {
        there = *entry & ~TR_KV_HOST;
        *entry = kv->moved[at];
        memcpy(tr_kv_page_at(&kv->view, *entry), tr_kv_page(&kv->swap, there),
               kv->swap.bytes);
        tr_kv_pages_give(&kv->swap, job->at + at, there, owner);
    }
}

/* Heads [first, end); m.before says how many pages come before each. */
static void
swap_heads(void *arg, uint32_t first, uint32_t end, uint32_t worker)
{
    const swap_t *job = arg;
    const tr_kv_manager_t *m = &job->kv->m;
    uint32_t head, i, j, n;

    (void) worker;
    for (head = first; head < end; head++) {
        uint32_t at = m->before[head];
        manager_run_t run[MANAGER_RUNS];

        n = manager_runs(m, &m->seq[job->slot], head,
                         manager_counts(m, job->slot, head), NULL,
                         manager_dense(&m->slot[job->slot]), run);
        for (i = 0; i < n; i++) {
            int32_t *entry = manager_row(m, job->slot, head) + run[i].entry;

            for (j = 0; j < run[i].n; j++, entry += run[i].step) {
                swap_page(job, entry, at++);
            }
        }
    }
}

/* Pages before each head of the slot. */
static void
swap_sum(const tr_kv_manager_t *m, int32_t slot)
{
    uint32_t head, i, n, before = 0;

    for (head = 0; head < m->heads; head++) {
        manager_run_t run[MANAGER_RUNS];

        m->before[head] = before;
        n = manager_runs(m, &m->seq[slot], head, manager_counts(m, slot, head),
                         NULL, manager_dense(&m->slot[slot]), run);
        for (i = 0; i < n; i++) {
            before += run[i].n;
        }
    }
    assert(before == m->slot[slot].pages + m->slot[slot].borrowed);
}

/* Copies all pages of a slot, in the order of heads and runs. */
static void
swap_pages(tr_kv_cache_t *kv, int32_t slot, bool out, uint32_t at)
{
    const tr_stream_t *t = &kv->config.stream;
    swap_t job = { .kv = kv, .slot = slot, .out = out, .at = at };

    swap_sum(&kv->m, slot);
    tr_thread_pool_run(t->thread_pool, t->threads, kv->heads, SWAP_GRAIN,
                       swap_heads, &job);
}

static tr_status_t
host_swap_out(tr_kv_cache_t *kv, int32_t slot)
{
    const tr_kv_slot_t *s = tr_kv_slot(kv, slot);
    uint32_t pages = s->pages + s->borrowed; /* it comes back with copies */

    assert(!s->out);
    if (pages > tr_kv_pages_left(&kv->swap)) {
        return TR_AGAIN;
    }
    swap_pages(kv, slot, true, kv->swap.used);
    kv->swap.used += pages;
    kv->totals.swapped_pages += pages;
    tr_kv_host_give(&kv->m, slot, kv->moved, pages, 0, TR_KV_ALL_PAGES);
    trust(kv, "swap_out", slot);
    return TR_OK;
}

static tr_status_t
host_swap_in(tr_kv_cache_t *kv, int32_t slot)
{
    uint32_t pages = tr_kv_slot(kv, slot)->pages, got = 0;

    assert(kv->m.slot[slot].out);
    (void) tr_kv_reuse_room(kv, slot, pages);
    tr_kv_host_take(&kv->m, slot, kv->moved, &got, pages);
    trust(kv, "swap_in", slot);
    if (got != pages) {
        return TR_AGAIN;
    }
    kv->swap.used -= pages;
    kv->totals.swapped_pages -= pages;
    swap_pages(kv, slot, false, kv->swap.used);
    return TR_OK;
}

/* ---- the cache ---------------------------------------------------------- */

static bool
host_settled(const tr_kv_cache_t *kv)
{
    (void) kv;
    return true;
}

static bool
host_compressing(const tr_kv_cache_t *kv, int32_t slot)
{
    (void) kv;
    (void) slot;
    return false;
}

static int64_t
host_ring(const tr_kv_cache_t *kv)
{
    return (int64_t) (kv->m.report->end - kv->m.report->start);
}

static uint64_t
host_free_pages(const tr_kv_cache_t *kv)
{
    return (uint64_t) host_ring(kv) + tr_kv_reuse_idle(kv);
}

static void
host_share(tr_kv_cache_t *kv, tr_kv_share_kind_t kind,
           const tr_kv_share_t *what)
{
    tr_kv_host_share(&kv->m, NULL, 0, kind, what, 1);
    trust(kv, "share", what->slot);
}

static void
unmap(void *at, size_t size)
{
    if (at != NULL) {
        munmap(at, size);
    }
}

static void
host_free(tr_kv_cache_t *kv)
{
#ifdef TR_KV_POISON
    assert(kv->m.tables == NULL || tr_kv_host_sound(kv)); /* nothing leaked */
#endif
    tr_kv_reuse_free(kv);
    tr_kv_pages_free(&kv->swap);
    unmap(kv->pool, kv->pool_size);
    unmap(kv->memory, kv->memory_size);
    free(kv->policy);
    free(kv->free_slots);
    free(kv->ask);
    free(kv->moved);
    free(kv);
}

static const tr_kv_ops_t host_ops = {
    .free = host_free,
    .settled = host_settled,
    .free_pages = host_free_pages,
    .open = host_open,
    .close = host_close,
    .prompt = host_prompt,
    .reserve_batch = host_reserve_batch,
    .compress = host_compress,
    .stage = host_stage,
    .compressing = host_compressing,
    .fork = host_fork,
    .swap_out = host_swap_out,
    .swap_in = host_swap_in,
    .usage = tr_kv_host_usage,
    .usage_in = tr_kv_host_usage_in,
    .totals = tr_kv_host_totals,
    .sound = tr_kv_host_sound,
    .ring = host_ring,
    .share = host_share,
    .release = host_release,
    .held = tr_kv_host_held,
    .copy_pages = tr_kv_host_copy_pages,
    .copy = tr_kv_host_copy,
    .can_absorb = tr_kv_host_can_absorb,
    .absorb = tr_kv_host_absorb_slot,
    .restore = tr_kv_host_restore,
    .files = &tr_kv_host_files,
};

/* ---- create ------------------------------------------------------------- */

/* The manager for a pool of so many pages, and what its prompts work with. */
static tr_status_t
make_manager(tr_kv_cache_t *kv, uint32_t pages, tr_error_t *err)
{
    const tr_kv_config_t *c = &kv->config;
    tr_kv_manager_size_t size = { .slots = c->slots,
                                  .pages = pages,
                                  .max_len = c->max_len,
                                  .max_prompts = 1,
                                  .reach = kv->reach,
                                  .blocks = tr_kv_reuse_blocks(kv, pages) };
    size_t manager = tr_kv_host_memory(&kv->view, &size), work, kernel = 0;

    if (manager == 0) {
        return tr_error_set(err, TR_ERR_INVALID, "max_num_seqs",
                            "no page manager for %u sequences: at most %u",
                            c->slots, TR_KV_SLOTS_MAX);
    }
    kv->m.size = size;
    work = tr_kv_host_prompt_work(&c->stream, &kv->m);
    if (c->kernels != NULL) {
        kernel = c->kernels->kv_compress_work(&c->stream, c->head_dim);
    }
    kv->memory_size = tr_pad(manager, 256) + tr_pad(work, 256) + kernel;
    kv->memory = tr_kv_map(kv->memory_size);
    kv->pool_size = (size_t) pages * kv->plan.page_bytes;
    kv->pool = tr_kv_map(kv->pool_size);
    kv->ask = calloc(c->slots, sizeof(*kv->ask));
    kv->moved = calloc(kv->swap.n + 1, sizeof(*kv->moved));
    if (kv->pool == NULL) {
        return tr_error_set(err, TR_ERR_NOMEM, "kv_memory",
                            "cannot map %zu bytes for %u KV pages",
                            kv->pool_size, pages);
    }
    if (kv->memory == NULL) {
        return tr_error_set(err, TR_ERR_NOMEM, "max_num_seqs",
                            "cannot map %zu bytes for the block tables of %u"
                            " sequences of %u tokens",
                            kv->memory_size, c->slots, c->max_len);
    }
    if (kv->ask == NULL || kv->moved == NULL || !tr_kv_slots_memory(kv)) {
        return tr_error_set(err, TR_ERR_NOMEM, "", "no memory for %u sequences",
                            c->slots);
    }
    kv->view.pool = kv->pool;
    tr_kv_host_create(&kv->view, &size, kv->memory, &kv->m);
    kv->work = kv->memory + tr_pad(manager, 256);
    kv->kernel_work = kv->memory + tr_pad(manager, 256) + tr_pad(work, 256);
    kv->view = kv->m.view;
    return TR_OK;
}

static tr_status_t
host_fill(tr_kv_cache_t *kv, tr_error_t *err)
{
    const tr_kv_config_t *c = &kv->config;
    uint64_t bytes = kv->plan.page_bytes, n = c->memory / bytes;
    uint64_t swap = c->swap_memory / bytes;
    tr_status_t rc = TR_OK;

    n = n < TR_KV_HOST ? n : TR_KV_HOST - 1;
    swap = swap < TR_KV_HOST ? swap : TR_KV_HOST - 1;
    if (n < kv->heads) {
        return tr_error_set(err, TR_ERR_INVALID, "kv_memory",
                            "kv_memory %llu holds %llu pages of %llu bytes: %u"
                            " heads need a page each",
                            (unsigned long long) c->memory,
                            (unsigned long long) n, (unsigned long long) bytes,
                            kv->heads);
    }
    if (swap != 0) {
        rc = tr_kv_pages_init(&kv->swap, (uint32_t) swap, bytes, err);
    }
    if (rc == TR_OK) {
        tr_kv_lay_tables(kv, (uint32_t) n);
        rc = make_manager(kv, (uint32_t) n, err);
    }
    if (rc == TR_OK && tr_kv_max_len(kv, NULL) == 0) {
        rc = tr_error_set(err, TR_ERR_INVALID, "kv_memory",
                          "kv_memory %llu holds %llu pages of %llu bytes: too"
                          " few for a prompt and its compressed copy in %u"
                          " heads",
                          (unsigned long long) c->memory,
                          (unsigned long long) n, (unsigned long long) bytes,
                          kv->heads);
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
    kv->ops = &host_ops;
    rc = tr_kv_shape(kv, config, err);
    if (rc == TR_OK) {
        /* copies are the kernels' */
        kv->config.reuse_compressed = kv->config.reuse_compressed
                                      && config->kernels != NULL;
        kv->config.slots = tr_kv_all_slots(&kv->config);
        rc = host_fill(kv, err);
    }
    if (rc == TR_OK) {
        rc = tr_kv_reuse_create(kv, err);
    }
    if (rc != TR_OK) {
        host_free(kv);
        return rc;
    }
    kv->config.policies = NULL;
    *out = kv;
    return TR_OK;
}
