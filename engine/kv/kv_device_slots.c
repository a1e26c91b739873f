/*
 * kv_cache.h's functions for a cache on a device: what is granted from what is
 * known (kv_device.h), the mirror afterwards, and the command.
 */
#include <string.h>

#include "kv_device_internal.h"

/* ---- pages -------------------------------------------------------------- */

int64_t
tr_kv_bound(const tr_kv_gpu_t *g)
{
    uint64_t have = g->free, gone = 0, i;

    for (i = g->reported + 1; i <= g->next; i++) {
        const tr_kv_batch_t *b = &g->batch[i % TR_KV_BATCHES];

        have += b->returned;
        gone += b->claimed;
    }
    return (int64_t) (have - gone);
}

static tr_kv_batch_t *
coming(tr_kv_gpu_t *g)
{
    return tr_kv_batch(g, g->next);
}

/* What the mirror's next token asks for. */
static manager_need_t
next_need(const tr_kv_gpu_t *g, int32_t slot)
{
    const tr_kv_page_request_t ask = { slot, TR_KV_ANY, TR_KV_NEXT };
    manager_need_t w;

    manager_need(&g->kv.m, &ask, &w);
    return w;
}

uint64_t
tr_kv_step_pages(const tr_kv_gpu_t *g, int32_t slot)
{
    const tr_kv_mirror_t *x = &g->mirror[slot];
    manager_need_t w = next_need(g, slot);
    uint32_t near, rest;

    if (w.kind != NEED_STEP) {
        return 0;
    }
    near = manager_near(&g->kv.m, &g->kv.m.seq[slot]);
    rest = g->kv.heads - near;
    near *= w.near_more;
    if (w.leaves != 0 && x->steps < TR_KV_EDGES) {
        return near + x->last.edge[x->steps];
    }
    /* a head takes one page: for a tier, or for the window */
    return near + (w.leaves != 0 || w.window_page ? rest : 0);
}

void
tr_kv_step_mirror(tr_kv_gpu_t *g, int32_t slot)
{
    manager_need_t w = next_need(g, slot);

    if (w.kind == NEED_STEP) {
        g->kv.m.slot[slot].pages += (uint32_t) tr_kv_step_pages(g, slot);
        g->mirror[slot].steps++;
        manager_next(&g->kv.m, &w);
        g->kv.totals.tokens++;
    }
}

void
tr_kv_forget_needs(tr_kv_gpu_t *g)
{
    g->needed = 0;
    g->needs++;
}

void
tr_kv_forget_need(tr_kv_gpu_t *g, int32_t slot)
{
    tr_kv_mirror_t *x = &g->mirror[slot];

    if (x->needed == g->needs) {
        g->needed -= x->need;
        x->needed = 0;
    }
}

/* ---- open, close, prompt ------------------------------------------------ */

/* Thresholds by head, where the device has them: those of a policy at create,
 * or of another one with the same. */
static const double *
device_alpha(const tr_kv_gpu_t *g, const double *alpha)
{
    size_t heads = 2 * (size_t) g->kv.heads;
    uint32_t i;

    for (i = 0; alpha != NULL && i < g->n_alpha; i++) {
        if (g->alpha_host[i] == alpha
            || memcmp(g->alpha_host[i], alpha, heads * sizeof(*alpha)) == 0) {
            return g->alpha + i * heads;
        }
    }
    assert(alpha == NULL); /* of no policy at create */
    return NULL;
}

int32_t
tr_kv_gpu_open(tr_kv_cache_t *kv, const tr_kv_policy_t *policy)
{
    tr_kv_gpu_t *g = tr_kv_gpu(kv);
    tr_kv_open_t open;
    tr_kv_mirror_t *x;
    uint64_t list;
    uint32_t group;

    while (!tr_kv_take_slot(kv, policy, &open)) {
        if (!tr_kv_kept_evict(kv, UINT64_MAX) && !tr_kv_lend_absorb_one(kv)) {
            return -1;
        }
    }
    manager_open_slot(&kv->m, &open);
    x = &g->mirror[open.slot];
    list = x->list;
    group = x->group;
    *x = (tr_kv_mirror_t){ .opened = g->next,
                           .touched = g->next,
                           .denied = TR_KV_NEVER,
                           .stalled = TR_KV_NEVER,
                           .steps = TR_KV_EDGES,
                           .list = list,
                           .group = group,
                           .ids = -1 };
    open.rule.alpha_of = device_alpha(g, open.rule.alpha_of);
    tr_kv_command(g, TR_KV_DO_OPEN, open.slot, -1)->open = open;
    return open.slot;
}

/* The first n of a slot's pages in host memory stay its own. */
void
tr_kv_trim_ids(tr_kv_gpu_t *g, int32_t slot, uint32_t n)
{
    tr_kv_mirror_t *x = &g->mirror[slot];
    int32_t *link = &x->ids, rest, at;
    uint32_t i;

    assert(n <= x->n_ids);
    for (i = 0; i < n; i++) {
        link = &g->id_next[*link];
    }
    rest = *link;
    *link = -1;
    while (rest >= 0) {
        at = rest;
        rest = g->id_next[at];
        g->id_next[at] = g->id_free;
        g->id_free = at;
        g->n_free_ids++;
    }
    g->kv.totals.swapped_pages -= x->n_ids - n;
    x->n_ids = n;
}

void
tr_kv_gpu_release(tr_kv_cache_t *kv, int32_t slot)
{
    tr_kv_gpu_t *g = tr_kv_gpu(kv);
    const tr_kv_slot_t *s = tr_kv_slot(kv, slot);

    tr_kv_finish_move(g, slot, true); /* its pages are wanted by nobody */
    tr_kv_command(g, TR_KV_DO_CLOSE, slot, -1)->close = slot;
    if (!s->out) {
        coming(g)->returned += g->mirror[slot].low;
        g->returns++;
    }
    tr_kv_trim_ids(g, slot, 0);
    tr_kv_reuse_close(kv, slot);
    kv->totals.tokens -= s->tokens;
    memset(&kv->m.slot[slot], 0, sizeof(kv->m.slot[slot]));
    tr_kv_drop_slot(kv, slot);
}

void
tr_kv_gpu_close(tr_kv_cache_t *kv, int32_t slot)
{
    tr_kv_gpu_t *g = tr_kv_gpu(kv);

    tr_kv_slot(kv, slot);
    tr_kv_guard_close(g, slot);
    tr_kv_forget_need(g, slot);
    if (kv->reuse != NULL && kv->reuse->kept != NULL
        && kv->reuse->kept[slot].ends) {
        tr_kv_finish_move(g, slot, false); /* its pages may be kept */
    }
    if (!tr_kv_kept_close(kv, slot)) {
        tr_kv_gpu_release(kv, slot);
    }
}

void
tr_kv_gpu_prompt(tr_kv_cache_t *kv, int32_t slot, uint32_t len)
{
    tr_kv_gpu_t *g = tr_kv_gpu(kv);
    const tr_kv_begin_t begin = { slot, len };

    assert(!tr_kv_slot(kv, slot)->out && len >= kv->m.slot[slot].tokens);
    tr_kv_finish_move(g, slot, false);
    tr_kv_command(g, TR_KV_DO_BEGIN, slot, -1)->begin = begin;
    g->mirror[slot].touched = g->next;
    manager_begin(&kv->m, &begin);
    if (tr_kv_at_once(kv, len) == 0) {
        tr_kv_guard_prompt(g, slot, len);
    }
}

/* ---- reserve ------------------------------------------------------------ */

/* Tells the device of uncompressed positions. */
static void
tell(tr_kv_gpu_t *g, int32_t slot, uint32_t len)
{
    tr_kv_command_t *c = tr_kv_command(g, TR_KV_DO_ASK, slot, -1);

    c->ask.slot = slot;
    c->ask.from = TR_KV_ANY;
    c->ask.len = len;
    g->mirror[slot].told = len;
    g->mirror[slot].touched = g->next;
}

static tr_status_t
reserve_uncompressed(tr_kv_gpu_t *g, int32_t slot, uint32_t len)
{
    const tr_kv_page_request_t ask = { slot, TR_KV_ANY, len };
    tr_kv_slot_t *s = &g->kv.m.slot[slot];
    manager_need_t w;

    manager_need(&g->kv.m, &ask, &w);
    tr_kv_await(g, w.pages);
    if (w.pages != 0 && !tr_kv_reuse_room(&g->kv, slot, w.pages)) {
        return TR_AGAIN;
    }
    if (w.kind == NEED_NOTHING) {
        return TR_OK;
    }
    g->kv.totals.tokens += len - s->tokens;
    s->tokens = len;
    if (w.pages != 0) { /* else the batch's step does it */
        s->uncompressed_pages += w.more;
        s->near_pages += w.near_more;
        s->pages += w.pages;
        g->mirror[slot].low += w.pages;
        coming(g)->claimed += w.pages;
        tell(g, slot, len);
    }
    manager_read(&g->kv.m, slot);
    return TR_OK;
}

/* Was it refused then, and nothing was given back since?  What is on its way out
 * is, if there is any. */
static bool
refused_since(tr_kv_gpu_t *g, uint64_t then)
{
    return then != TR_KV_NEVER && then >= g->returns
           && !tr_kv_leave_more(g, g->kv.heads);
}

/* The next token of a compressed slot: the batch's step grants it or not. */
static tr_status_t
reserve_next(tr_kv_gpu_t *g, int32_t slot, uint32_t len)
{
    tr_kv_mirror_t *x = &g->mirror[slot];
    uint32_t tokens = g->kv.m.slot[slot].tokens;

    if (len <= tokens) {
        return TR_OK;
    }
    if (len != tokens + 1 || len > g->kv.config.max_len
        || refused_since(g, x->stalled)) {
        return TR_AGAIN;
    }
    if (x->needed != g->needs) {
        x->needed = g->needs;
        x->need = tr_kv_step_pages(g, slot);
        g->needed += x->need;
        tr_kv_make_room(g, slot, g->needed);
    }
    return TR_OK;
}

void
tr_kv_gpu_reserve_batch(tr_kv_cache_t *kv, const int32_t *slots,
                        const uint32_t *lens, uint32_t n, tr_status_t *result)
{
    tr_kv_gpu_t *g = tr_kv_gpu(kv);
    uint32_t i;

    if (n != 1) { /* all that may decode: a batch is composed anew */
        tr_kv_forget_needs(g);
    }
    for (i = 0; i < n; i++) {
        const tr_kv_slot_t *s = tr_kv_slot(kv, slots[i]);

        assert(!s->out);
        tr_kv_finish_move(g, slots[i], false);
        result[i] = s->uncompressed ? reserve_uncompressed(g, slots[i], lens[i])
                                    : reserve_next(g, slots[i], lens[i]);
    }
}

/* ---- compress ----------------------------------------------------------- */

/* The most pages of the copy, all heads: as tr_kv_worst_copy, of the tokens
 * that will be outside of the window. */
uint64_t
tr_kv_worst_copy_of(const tr_kv_gpu_t *g, const tr_kv_seq_t *to)
{
    uint32_t few = UINT32_MAX, each, l;

    for (l = 0; l < to->n_tiers; l++) {
        uint32_t tokens = g->kv.plan.layout[to->tier_layout[l]].tokens;

        few = tokens < few ? tokens : few;
    }
    each = to->window_from == to->sinks
               ? 0
               : manager_ceil(to->window_from - to->sinks, few) + to->n_tiers
                     - 1;
    if (to->window != 0) {
        each += manager_window_pages(&g->kv.m, to, to->base);
    }
    return (uint64_t) each * (g->kv.heads - manager_near(&g->kv.m, to));
}

/* What the copy holds in any case. */
uint64_t
tr_kv_least_copy_of(const tr_kv_gpu_t *g, const tr_kv_seq_t *to)
{
    return to->window == 0
               ? 0
               : (uint64_t) (g->kv.heads - manager_near(&g->kv.m, to))
                     * manager_window_pages(&g->kv.m, to, to->base);
}

/* Pages that heads that slide keep beside the copy. */
static uint64_t
near_of(const tr_kv_gpu_t *g, const tr_kv_job_t *job)
{
    return (uint64_t) manager_near(&g->kv.m, &job->to)
           * (g->kv.m.slot[job->slot].near_pages - job->near_to);
}

static void
send_complete(tr_kv_gpu_t *g, tr_kv_complete_t complete)
{
    int32_t slot = complete.slot;
    tr_kv_mirror_t *x = &g->mirror[slot];

    if (x->told < complete.len) {
        tell(g, slot, complete.len);
    }
    complete.rule.alpha_of = device_alpha(g, complete.rule.alpha_of);
    tr_kv_command(g, complete.layers != 0 ? TR_KV_DO_STAGES : TR_KV_DO_COMPLETE,
                  slot, -1)
        ->complete = complete;
    coming(g)->n_completed++;
    x->touched = x->trial_of = g->next;
    x->trial_len = complete.len;
    x->trial_returns = g->returns;
}

/* Pages that a slot of a policy which forgets nothing has outside of layers that
 * slide, at least. */
static uint64_t
least_held(const tr_kv_gpu_t *g, int32_t slot, const tr_kv_seq_t *q)
{
    const tr_kv_slot_t *s = &g->kv.m.slot[slot];
    uint32_t most = 1, each = 0, l;
    uint64_t all;

    for (l = 0; l < q->n_tiers; l++) {
        uint32_t tokens = g->kv.plan.layout[q->tier_layout[l]].tokens;

        most = tokens > most ? tokens : most;
    }
    if (q->base != 0 && q->window != 0) {
        each = manager_window_pages(&g->kv.m, q, q->base);
    }
    if (tr_kv_policy_cuts(&g->kv.policy[slot].origin)) {
        each += manager_ceil(q->window_from - q->sinks, most);
    }
    all = (uint64_t) each * (g->kv.heads - manager_near(&g->kv.m, q));
    return all - tr_kv_less(all, s->borrowed); /* of its own */
}

/* The most pages of a copy that a job makes: tokens that are frozen stay where they
 * are, each page of them at least as many as a page of the copy has. */
static uint64_t
worst_of(const tr_kv_gpu_t *g, const tr_kv_job_t *job)
{
    uint64_t most = tr_kv_worst_copy_of(g, &job->to);

    return most - tr_kv_less(most, g->mirror[job->slot].frozen);
}

/* What a job takes of the ring, at most, for a copy of `worst` pages, and what it
 * gives back in any case when it is done, if that is known. */
static uint64_t
peak_of(const tr_kv_gpu_t *g, const tr_kv_job_t *job, uint64_t worst,
        uint64_t *back)
{
    uint32_t rest = g->kv.heads - manager_near(&g->kv.m, &job->to);
    uint32_t layers = rest / g->kv.config.kv_heads;
    const tr_kv_slot_t *s = &g->kv.m.slot[job->slot];
    uint64_t old, near, part;

    *back = 0;
    if (job->layers == 0 || layers == 0) {
        return worst;
    }
    old = g->mirror[job->slot].low;
    near = (uint64_t) manager_near(&g->kv.m, &job->to)
               * (s->near_pages - job->near_from)
           + s->frozen_pages - s->borrowed; /* those that stay, too */
    old = old > near ? old - near : 0;
    *back = old
            + (uint64_t) manager_near(&g->kv.m, &job->to)
                  * (job->near_to - job->near_from);
    part = (worst + layers - 1) / layers * job->layers;
    return worst > old ? worst - old + part : part;
}

/* The mirror of a slot whose prompt was compressed, its copy on so many
 * pages. */
static void
become(tr_kv_gpu_t *g, tr_kv_job_t *job, uint64_t pages,
       const tr_kv_policy_t *policy)
{
    tr_kv_mirror_t *x = &g->mirror[job->slot];

    g->kv.totals.tokens -= g->kv.m.slot[job->slot].tokens - job->len;
    g->kv.policy[job->slot].begun = *policy;
    job->pages = (uint32_t) pages;
    manager_become(&g->kv.m, job);
    x->told = job->len;
    x->steps = TR_KV_EDGES; /* counts are not known */
}

tr_status_t
tr_kv_gpu_compress(tr_kv_cache_t *kv, int32_t slot, uint32_t len)
{
    tr_kv_gpu_t *g = tr_kv_gpu(kv);
    tr_kv_slot_t *s = tr_kv_slot(kv, slot);
    tr_kv_mirror_t *x = &g->mirror[slot];
    tr_kv_complete_t complete = { .slot = slot,
                                  .len = len,
                                  .layers = tr_kv_at_once(kv, len) };
    uint64_t worst, peak, back;
    tr_kv_policy_t policy;
    tr_kv_job_t job;
    int64_t bound;

    assert(!s->out && len >= kv->m.seq[slot].base && len <= s->tokens);
    tr_kv_finish_move(g, slot, false);
    if (s->rule.n_levels == 0) {
        return TR_OK;
    }
    tr_kv_policy_for(&kv->policy[slot].origin, len, &policy);
    complete.rule = policy.rule;
    manager_job(&kv->m, &complete, &job);
    assert(job.granted); /* the device will say the same */
    if (x->trial == TR_KV_DONE && len == x->trial_len) {
        become(g, &job, x->low - near_of(g, &job), &policy); /* as reported */
        x->steps = 0;
        x->trial = TR_KV_NO_TRIAL;
        tr_kv_lend_told(kv);
        return TR_OK;
    }
    if (x->trial == TR_KV_TRIED || x->trial == TR_KV_DONE
        || coming(g)->n_completed == kv->config.slots
        || refused_since(g, x->denied)) {
        return TR_AGAIN;
    }
    if (s->uncompressed_pages == 0) { /* nothing moves */
        complete.rule = s->rule;
        complete.layers = 0;
        send_complete(g, complete);
        s->uncompressed = false;
        return TR_OK;
    }
    worst = worst_of(g, &job);
    peak = peak_of(g, &job, worst, &back);
    tr_kv_make_room(g, slot, peak);
    bound = tr_kv_bound(g);
    send_complete(g, complete);
    coming(g)->claimed += worst; /* more than the bound: it may be better */
    if ((int64_t) peak > bound) {
        x->low = tr_kv_less(x->low,
                            tr_kv_least_copy_of(g, &job.to) + near_of(g, &job));
        x->trial = TR_KV_TRIED;
        tr_kv_lend_told(kv);
        return TR_AGAIN;
    }
    coming(g)->returned += back;
    x->low = tr_kv_least_copy_of(g, &job.to) + near_of(g, &job);
    x->trial = TR_KV_SURE;
    become(g, &job, worst, &policy);
    return TR_OK;
}

/* Only where it fits for certain: the next may come before a report does. */
tr_status_t
tr_kv_gpu_stage(tr_kv_cache_t *kv, int32_t slot, uint32_t len)
{
    tr_kv_gpu_t *g = tr_kv_gpu(kv);
    const tr_kv_begin_t begin = { slot, tr_kv_slot(kv, slot)->prompt };
    tr_kv_mirror_t *x = &g->mirror[slot];
    tr_kv_complete_t complete = { .slot = slot,
                                  .len = len,
                                  .layers = tr_kv_at_once(kv, begin.len) };
    uint64_t worst, peak, back;
    tr_kv_policy_t policy;
    tr_kv_job_t job;

    tr_kv_finish_move(g, slot, false);
    tr_kv_policy_for(&kv->policy[slot].origin, len, &policy);
    complete.rule = tr_kv_rule_stage(&policy.rule);
    manager_job(&kv->m, &complete, &job);
    assert(job.granted && job.move);
    worst = worst_of(g, &job);
    peak = peak_of(g, &job, worst, &back);
    tr_kv_make_room(g, slot, peak);
    if ((int64_t) peak > tr_kv_bound(g)
        || coming(g)->n_completed == kv->config.slots) {
        return TR_AGAIN;
    }
    send_complete(g, complete);
    coming(g)->claimed += worst;
    coming(g)->returned += back;
    g->returns++;
    x->low = least_held(g, slot, &job.to) + near_of(g, &job);
    become(g, &job, worst, &policy);
    tr_kv_command(g, TR_KV_DO_BEGIN, slot, -1)->begin = begin;
    x->touched = g->next;
    manager_begin(&kv->m, &begin);
    return TR_OK;
}

/* ---- fork --------------------------------------------------------------- */

tr_status_t
tr_kv_gpu_fork(tr_kv_cache_t *kv, int32_t from, int32_t to, uint32_t len)
{
    tr_kv_gpu_t *g = tr_kv_gpu(kv);
    tr_kv_command_t *c;
    tr_status_t rc;

    assert(from != to && tr_kv_slot(kv, from)->tokens >= len);
    assert(kv->m.seq[from].base == 0 && !kv->m.slot[from].out);
    assert(tr_kv_slot(kv, to)->pages == 0);
    tr_kv_finish_move(g, from, false);
    tr_kv_reuse_fork(kv, from, to, len);
    rc = reserve_uncompressed(g, to, len);
    if (rc != TR_OK) {
        return rc;
    }
    if (g->mirror[from].told < len) {
        tell(g, from, len);
    }
    kv->m.seq[to].recent_from = kv->m.seq[from].recent_from;
    c = tr_kv_command(g, TR_KV_DO_FORK, to, from);
    c->fork.from = from;
    c->fork.to = to;
    c->fork.len = len;
    return TR_OK;
}
