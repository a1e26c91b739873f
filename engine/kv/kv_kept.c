/*
 * Reuse of compressed prefixes (kv_cache.h, "reuse"): slots that nobody uses any
 * more, kept with what they hold, and slots that begin with a copy of that.
 *
 * A kept slot is an ordinary one of the manager, of a policy that can be cut
 * (tr_kv_policy_cuts).  Who begins with the same tokens gets those in front of
 * some position c, in pages of its own: of each head's lists, what stands at
 * positions below c, as it was, at its level.  Scores are what the queries up to
 * c are taken to have given: s (c - 1 - t) / (b - 1 - t) of a token at t, when b
 * were cached, so that its significance stays the same.
 *
 * Levels were decided by all queries that there were, those behind c too: the
 * answer may then differ from one that was computed anew.  With one level that
 * everything goes to, copies hold the same bits whatever they are cut from.
 *
 * The tokens of a kept slot are compared as they are, slot by slot: there are
 * few, and those of others differ early.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "engine/config/log.h"
#include "kernels/kernels.h"
#include "kv_internal.h"

/* A shorter prefix is computed sooner than found. */
#define MIN_TOKENS 32u

/* Where no policy can be cut, nothing is spent on it. */
static bool
can_keep(const tr_kv_config_t *c)
{
    bool cuts = false;

    for (uint32_t i = 0; i < c->n_policies; i++) {
        cuts = cuts || tr_kv_policy_cuts(c->policies[i]);
    }
    return cuts && c->reuse && c->reuse_compressed && c->kernels != NULL;
}

uint32_t
tr_kv_kept_slots(const tr_kv_config_t *c)
{
    uint32_t room = c->slots < TR_KV_SLOTS_MAX ? TR_KV_SLOTS_MAX - c->slots : 0;
    uint32_t want = c->slots > 32 ? c->slots : 32;

    return !can_keep(c) ? 0 : want < room ? want : room;
}

tr_status_t
tr_kv_kept_create(tr_kv_cache_t *kv, tr_error_t *err)
{
    const tr_kv_config_t *c = &kv->config;
    tr_kv_reuse_t *r = kv->reuse;
    void *at;

    if (!can_keep(c)) {
        return TR_OK;
    }
    r->tokens_size = (size_t) c->slots * c->max_len * sizeof(*r->tokens);
    at = mmap(NULL, r->tokens_size, PROT_READ | PROT_WRITE,
              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    r->tokens = at == MAP_FAILED ? NULL : at;
    r->kept = calloc(c->slots, sizeof(*r->kept));
    r->count = calloc((size_t) kv->heads * TR_KV_TIERS_MAX, sizeof(*r->count));
    if (r->tokens == NULL || r->kept == NULL || r->count == NULL) {
        return tr_error_set(err, TR_ERR_NOMEM, "kv_reuse",
                            "no memory for the tokens of %u sequences of %u",
                            c->slots, c->max_len);
    }
    return TR_OK;
}

void
tr_kv_kept_free(tr_kv_cache_t *kv)
{
    tr_kv_reuse_t *r = kv->reuse;

    if (r->tokens != NULL) {
        munmap(r->tokens, r->tokens_size);
    }
    free(r->kept);
    free(r->count);
}

bool
tr_kv_kept_cuts(const tr_kv_cache_t *kv, const tr_kv_policy_t *policy)
{
    return kv->reuse != NULL && kv->reuse->kept != NULL
           && tr_kv_policy_cuts(policy);
}

bool
tr_kv_copies(const tr_kv_cache_t *kv, const tr_kv_policy_t *policy)
{
    return tr_kv_kept_cuts(kv, policy != NULL ? policy : kv->usual);
}

/* ---- what is kept ------------------------------------------------------- */

static int32_t *
tokens_of(const tr_kv_cache_t *kv, int32_t slot)
{
    return kv->reuse->tokens + (size_t) slot * kv->config.max_len;
}

/* The same policy: its name with all settings, and thresholds by head. */
static bool
same_policy(const tr_kv_policy_t *a, const tr_kv_policy_t *b)
{
    return a->row == b->row && a->alpha_of == b->alpha_of
           && strcmp(a->spec, b->spec) == 0;
}

static bool
same_key(const tr_prefix_key_t *a, const tr_prefix_key_t *b)
{
    return a->len == b->len && memcmp(a->bytes, b->bytes, a->len) == 0;
}

/* Is what this slot keeps for them? */
static bool
is_for(const tr_kv_cache_t *kv, int32_t slot, const tr_kv_policy_t *policy,
       const tr_prefix_key_t *key)
{
    const tr_kv_kept_t *k = &kv->reuse->kept[slot];

    return k->kept && same_key(&k->key, key)
           && same_policy(&kv->policy[slot].origin, policy);
}

/* Adds a slot's pages to those of kept slots, or takes them away. */
static void
count_pages(tr_kv_cache_t *kv, int32_t slot, bool more)
{
    const tr_kv_manager_t *m = &kv->m;

    for (uint32_t h = 0; h < kv->heads; h++) {
        manager_run_t run[MANAGER_RUNS];
        uint32_t n = manager_runs(m, &m->seq[slot], manager_counts(m, slot, h),
                                  0, run);

        for (uint32_t i = 0; i < n; i++) {
            uint64_t *pages = &kv->reuse->kept_pages[run[i].layout];

            *pages = more ? *pages + run[i].n : *pages - run[i].n;
        }
    }
}

/* Nobody pins the slot. */
static void
forget(tr_kv_cache_t *kv, int32_t slot)
{
    tr_kv_reuse_t *r = kv->reuse;
    tr_kv_kept_t *k = &r->kept[slot];

    assert(k->kept && k->pins == 0);
    tr_kv_store_gone(kv, true, (uint32_t) slot);
    count_pages(kv, slot, false);
    r->idle_pages -= kv->m.slot[slot].pages;
    r->kept_tokens -= k->n;
    r->n_kept--;
    memset(k, 0, sizeof(*k));
    tr_kv_host_release(kv, slot);
}

bool
tr_kv_kept_evict(tr_kv_cache_t *kv, uint64_t before)
{
    tr_kv_reuse_t *r = kv->reuse;
    int32_t oldest = -1;

    if (r == NULL || r->n_kept == 0) {
        return false;
    }
    for (uint32_t i = 0; i < kv->config.slots; i++) {
        const tr_kv_kept_t *k = &r->kept[i];

        if (k->kept && k->pins == 0 && k->used < before
            && (oldest < 0 || k->used < r->kept[oldest].used)) {
            oldest = (int32_t) i;
        }
    }
    if (oldest < 0) {
        return false;
    }
    forget(kv, oldest);
    *(before == UINT64_MAX ? &r->kept_evicted : &r->kept_expired) += 1;
    return true;
}

/* The slot, whose tokens and key are set, is nobody's from now on.  What it has
 * the beginning of is of no more use.  False: another one has it already. */
static bool
keep_slot(tr_kv_cache_t *kv, int32_t slot)
{
    tr_kv_reuse_t *r = kv->reuse;
    tr_kv_kept_t *k = &r->kept[slot];
    const tr_kv_policy_t *policy = &kv->policy[slot].origin;

    for (uint32_t i = 0; i < kv->config.slots && r->n_kept != 0; i++) {
        tr_kv_kept_t *o = &r->kept[i];
        uint32_t n = o->n < k->n ? o->n : k->n;

        if (!is_for(kv, (int32_t) i, policy, &k->key)
            || tr_prefix_common(tokens_of(kv, (int32_t) i), tokens_of(kv, slot),
                                n)
                   < n) {
            continue;
        }
        if (o->n >= k->n) {
            o->used = r->now;
            return false;
        }
        if (o->pins == 0) {
            forget(kv, (int32_t) i);
        }
    }
    k->on = k->ends = false;
    k->kept = true;
    k->used = r->now;
    count_pages(kv, slot, true);
    r->idle_pages += kv->m.slot[slot].pages;
    r->kept_tokens += k->n;
    r->n_kept++;
    return true;
}

/* ---- finding ------------------------------------------------------------ */

/* No more pages than the first c tokens of this slot take in a copy. */
static uint64_t
most_pages(const tr_kv_cache_t *kv, int32_t slot, uint32_t c)
{
    const tr_kv_manager_t *m = &kv->m;
    tr_kv_seq_t q = m->seq[slot];
    uint64_t pages = 0;

    q.base = c;
    for (uint32_t h = 0; h < kv->heads; h++) {
        uint32_t count[TR_KV_TIERS_MAX], n;
        manager_run_t run[MANAGER_RUNS];

        for (uint32_t l = 0; l < TR_KV_TIERS_MAX; l++) {
            count[l] = manager_counts(m, slot, h)[l];
            count[l] = count[l] < c ? count[l] : c;
        }
        n = manager_runs(m, &q, count, 0, run);
        for (uint32_t i = 0; i < n; i++) {
            pages += run[i].n;
        }
    }
    return pages;
}

static void
pin(tr_kv_cache_t *kv, int32_t slot)
{
    if (kv->reuse->kept[slot].pins++ == 0) {
        kv->reuse->idle_pages -= kv->m.slot[slot].pages;
    }
}

void
tr_kv_kept_find(tr_kv_cache_t *kv, const tr_kv_policy_t *policy,
                const tr_prefix_key_t *key, const int32_t *tokens, uint32_t n,
                tr_kv_found_t *found)
{
    const tr_kv_reuse_t *r = kv->reuse;
    uint64_t uncompressed;
    int32_t best = -1;

    for (uint32_t i = 0; i < kv->config.slots && r->n_kept != 0; i++) {
        const tr_kv_kept_t *k = &r->kept[i];
        uint32_t most = k->n < n ? k->n : n, c;

        if (most < MIN_TOKENS || most < found->tokens
            || !is_for(kv, (int32_t) i, policy, key)) {
            continue;
        }
        c = tr_prefix_common(tokens_of(kv, (int32_t) i), tokens, most);
        if (c >= MIN_TOKENS && c > kv->m.seq[i].sinks
            && (c > found->tokens
                || (c == found->tokens && best >= 0
                    && k->n < r->kept[best].n))) {
            found->tokens = c;
            best = (int32_t) i;
        }
    }
    if (best < 0) {
        found->tokens = 0;
        return;
    }
    uncompressed = (uint64_t) (found->tokens / kv->plan.layout[0].tokens)
                   * kv->heads;
    if (most_pages(kv, best, found->tokens) > uncompressed) {
        found->tokens = 0;
        return;
    }
    found->cut = found->tokens < r->kept[best].n;
    found->kept = (uint32_t) best + 1;
    pin(kv, best);
}

void
tr_kv_kept_drop(tr_kv_cache_t *kv, tr_kv_found_t *found)
{
    tr_kv_kept_t *k;

    if (found->kept == 0) {
        return;
    }
    k = &kv->reuse->kept[found->kept - 1];
    k->used = kv->reuse->now;
    if (--k->pins == 0) {
        kv->reuse->idle_pages += kv->m.slot[found->kept - 1].pages;
    }
    found->kept = 0;
}

/* ---- copies ------------------------------------------------------------- */

/* What a slot becomes that has the first c tokens of `from`. */
static void
cut_seq(const tr_kv_cache_t *kv, int32_t from, uint32_t c, tr_kv_seq_t *to)
{
    *to = kv->m.seq[from];
    to->base = c;
    to->window_from = to->window_from < c ? to->window_from : c;
    to->recent_from = UINT32_MAX;
    to->read_pages = 0;
}

/* Position of token i of tier l of a head. */
static uint32_t
position_of(const tr_kv_cache_t *kv, int32_t slot, uint32_t head, uint32_t l,
            uint32_t i)
{
    const tr_kv_seq_t *q = &kv->m.seq[slot];
    const tr_kv_layout_t *layout = &kv->plan.layout[q->tier_layout[l]];
    int32_t page;

    if (layout->position == 0) { /* in order */
        return q->sinks + i;
    }
    page = manager_row(
        &kv->m, slot, head)[tr_kv_tier_entry(&kv->view, l, i / layout->tokens)];
    return tr_kv_position_at(layout, tr_kv_page_at(&kv->view, page),
                             i % layout->tokens);
}

typedef struct {
    const tr_kv_cache_t *kv;
    int32_t from, to;
    uint32_t c, b; /* of b tokens, c */
} copy_t;

/* What becomes of each token of these heads, and how many are in each tier. */
static void
choose_heads(void *arg, uint32_t first, uint32_t end, uint32_t worker)
{
    const copy_t *j = arg;
    const tr_kv_manager_t *m = &j->kv->m;
    const tr_kv_seq_t *q = &m->seq[j->from];

    (void) worker;
    for (uint32_t h = first; h < end; h++) {
        int8_t *dest = m->dest + (size_t) h * m->dest_len;
        uint32_t *count = j->kv->reuse->count + h * TR_KV_TIERS_MAX;
        const uint32_t *have = manager_counts(m, j->from, h);
        uint32_t windowed = tr_kv_windowed(q);

        memset(count, 0, TR_KV_TIERS_MAX * sizeof(*count));
        for (uint32_t l = 0; l < q->n_tiers; l++) {
            for (uint32_t i = 0; i < have[l]; i++) {
                bool stays = position_of(j->kv, j->from, h, l, i) < j->c;

                *dest++ = stays ? (int8_t) l : TR_KV_NOWHERE;
                count[l] += stays;
            }
        }
        for (uint32_t i = 0; i < windowed; i++) {
            *dest++ = tr_kv_windowed_position(q, i) < j->c ? TR_KV_WINDOW
                                                           : TR_KV_NOWHERE;
        }
    }
}

static void
scale_score(const copy_t *j, int32_t page, const tr_kv_layout_t *l, uint32_t at,
            uint32_t position)
{
    uint8_t *score = tr_kv_page_at(&j->kv->view, page) + l->score + 4 * at;
    float s;

    memcpy(&s, score, 4);
    s = position + 1 < j->c
            ? s * (float) (j->c - 1 - position) / (float) (j->b - 1 - position)
            : 0;
    memcpy(score, &s, 4);
}

/* Scores as if there had been no query from c on. */
static void
scale_heads(void *arg, uint32_t first, uint32_t end, uint32_t worker)
{
    const copy_t *j = arg;
    const tr_kv_manager_t *m = &j->kv->m;
    const tr_kv_seq_t *q = &m->seq[j->to];

    (void) worker;
    for (uint32_t h = first; h < end; h++) {
        const int32_t *row = manager_row(m, j->to, h);
        const tr_kv_layout_t *l;

        for (uint32_t t = 0; t < q->n_tiers; t++) {
            uint32_t n = manager_counts(m, j->to, h)[t];

            l = &j->kv->plan.layout[q->tier_layout[t]];
            for (uint32_t i = 0; i < n && l->score != 0; i++) {
                scale_score(
                    j, row[tr_kv_tier_entry(&j->kv->view, t, i / l->tokens)], l,
                    i % l->tokens, position_of(j->kv, j->to, h, t, i));
            }
        }
        l = &j->kv->plan.layout[q->window_layout];
        for (uint32_t i = 0; i < tr_kv_windowed(q) && l->score != 0; i++) {
            uint32_t p = tr_kv_windowed_position(q, i);
            uint32_t at = tr_kv_window_entry(q, p);

            scale_score(j, row[j->kv->view.at_window + at / l->tokens], l,
                        at % l->tokens, p);
        }
    }
}

/* What the manager plans at a prompt's end (manager_prompt.h), for a slot just
 * opened that becomes `to`: result[0], and pages for so many tokens in its tiers
 * (reuse->count) in to_tables. */
static void
plan_copy(tr_kv_cache_t *kv, int32_t slot, const tr_kv_seq_t *to)
{
    const tr_kv_manager_t *m = &kv->m;
    tr_kv_job_t *j = &m->job[0];
    manager_total_t total;
    uint32_t h, l, r, n;

    assert(m->slot[slot].tokens == 0 && m->slot[slot].pages == 0
           && to->n_tiers == m->seq[slot].n_tiers);
    memset(j, 0, sizeof(*j));
    j->from = m->seq[slot];
    j->to = *to;
    j->slot = slot;
    j->len = to->base;
    j->rule = m->slot[slot].rule;
    j->granted = j->move = true;
    for (h = 0; h < kv->heads; h++) {
        tr_kv_head_plan_t *plan = &m->head[h];
        manager_run_t run[MANAGER_RUNS];

        memset(plan, 0, sizeof(*plan));
        for (l = 0; l < TR_KV_TIERS_MAX; l++) {
            plan->count[l] = kv->reuse->count[h * TR_KV_TIERS_MAX + l];
            /* known when the prompt that follows is complete */
            plan->candidate[l].significance = manager_infinity();
        }
        n = manager_runs(m, to, plan->count, 0, run);
        for (r = 0; r < n; r++) {
            plan->pages += run[r].n;
        }
    }
    manager_total_job(m, 0, &total);
    manager_admit(m, 1);
    for (h = 0; h < kv->heads; h++) {
        manager_fill(m, 0, h);
    }
}

/* The first c tokens of `from` into `to`, which was just opened; with `evict`,
 * others make room. */
static tr_status_t
copy(tr_kv_cache_t *kv, int32_t from, int32_t to, uint32_t c, bool evict)
{
    const tr_stream_t *s = &kv->config.stream;
    copy_t j = { kv, from, to, c, kv->m.seq[from].base };
    tr_kv_compress_t move;
    tr_kv_seq_t seq;
    int bad;

    cut_seq(kv, from, c, &seq);
    tr_thread_pool_run(s->thread_pool, s->threads, kv->heads, 2, choose_heads,
                       &j);
    plan_copy(kv, to, &seq);
    if (kv->m.result[0] == TR_KV_STALLED && evict
        && tr_kv_reuse_room(kv, to, kv->m.job[0].pages)) {
        plan_copy(kv, to, &seq);
    }
    if (kv->m.result[0] != TR_KV_GRANTED) {
        assert(kv->m.result[0] == TR_KV_STALLED);
        return TR_AGAIN;
    }
    move = kv->m.compress[0];
    move.slot = from;
    bad = kv->config.kernels->kv_compress(s, &kv->view, &move, kv->kernel_work);
    tr_kv_host_install_prompts(s, &kv->m, 1);
    kv->totals.tokens += c;
    if (bad != TR_KERNEL_OK) { /* the pages are there, and worthless */
        return TR_ERR_INTERNAL;
    }
    if (c < j.b && seq.scored) {
        tr_thread_pool_run(s->thread_pool, s->threads, kv->heads, 2,
                           scale_heads, &j);
    }
    return TR_OK;
}

tr_status_t
tr_kv_kept_adopt(tr_kv_cache_t *kv, int32_t slot, const tr_prefix_key_t *key,
                 tr_kv_found_t *found)
{
    tr_kv_kept_t *k = &kv->reuse->kept[slot];

    assert(!k->on && !k->kept);
    k->on = true;
    k->key = *key;
    return found->kept == 0
               ? TR_OK
               : copy(kv, (int32_t) found->kept - 1, slot, found->tokens, true);
}

/* ---- from files --------------------------------------------------------- */

/* Does each head have n tokens, each in one place? */
static bool
adds_up(const tr_kv_cache_t *kv, const tr_kv_seq_t *q, const uint32_t *counts)
{
    uint32_t n = q->base, windowed = tr_kv_windowed(q);

    for (uint32_t h = 0; h < kv->heads; h++, counts += TR_KV_TIERS_MAX) {
        uint64_t sum = windowed;

        for (uint32_t l = 0; l < TR_KV_TIERS_MAX; l++) {
            if (counts[l] > n || (l >= q->n_tiers && counts[l] != 0)) {
                return false;
            }
            sum += counts[l];
        }
        if (sum != n) {
            return false;
        }
    }
    return true;
}

tr_status_t
tr_kv_kept_restore(tr_kv_cache_t *kv, int32_t slot, uint32_t n,
                   uint32_t window_from, uint32_t sinks, const uint32_t *counts)
{
    tr_kv_seq_t seq = kv->m.seq[slot];
    uint32_t most = tr_kv_rule_sinks(&kv->policy[slot].origin.rule, UINT32_MAX);

    seq.base = n;
    seq.window_from = window_from;
    seq.sinks = sinks;
    seq.recent_from = UINT32_MAX;
    if (n < MIN_TOKENS || n > kv->config.max_len || window_from > n
        || sinks > window_from || sinks > most
        || (seq.window != 0 && n - window_from > seq.window)
        || !adds_up(kv, &seq, counts)) {
        return TR_ERR_INVALID;
    }
    memcpy(kv->reuse->count, counts,
           (size_t) kv->heads * TR_KV_TIERS_MAX * sizeof(*counts));
    plan_copy(kv, slot, &seq);
    if (kv->m.result[0] == TR_KV_STALLED
        && tr_kv_reuse_room(kv, slot, kv->m.job[0].pages)) {
        plan_copy(kv, slot, &seq);
    }
    if (kv->m.result[0] != TR_KV_GRANTED) {
        return TR_AGAIN;
    }
    tr_kv_host_install_prompts(&kv->config.stream, &kv->m, 1);
    kv->totals.tokens += n;
    return TR_OK;
}

void
tr_kv_kept_restored(tr_kv_cache_t *kv, int32_t slot, const int32_t *tokens,
                    uint32_t n)
{
    tr_kv_kept_t *k = &kv->reuse->kept[slot];

    memcpy(tokens_of(kv, slot), tokens, n * sizeof(*tokens));
    k->ends = k->loaded = true;
    k->n = n;
}

/* ---- keeping ------------------------------------------------------------ */

/* Is all of the slot compressed, and nothing of it on its way? */
static bool
whole(const tr_kv_cache_t *kv, int32_t slot, uint32_t n)
{
    const tr_kv_slot_t *s = &kv->m.slot[slot];

    return kv->reuse->kept != NULL && kv->reuse->kept[slot].on && !s->out
           && s->uncompressed_pages == 0 && s->tokens == n
           && kv->m.seq[slot].base == n && n >= MIN_TOKENS;
}

void
tr_kv_kept_end(tr_kv_cache_t *kv, int32_t slot, const int32_t *tokens,
               uint32_t n)
{
    if (kv->reuse->kept != NULL && kv->reuse->kept[slot].on
        && !kv->m.slot[slot].out && tr_kv_uncompressed(kv, slot)) {
        (void) tr_kv_compress(kv, slot, n); /* it ended with its prompt */
    }
    if (whole(kv, slot, n)) {
        memcpy(tokens_of(kv, slot), tokens, n * sizeof(*tokens));
        kv->reuse->kept[slot].ends = true;
        kv->reuse->kept[slot].n = n;
    }
}

bool
tr_kv_kept_close(tr_kv_cache_t *kv, int32_t slot)
{
    tr_kv_kept_t *k;

    if (kv->reuse == NULL || kv->reuse->kept == NULL) {
        return false;
    }
    k = &kv->reuse->kept[slot];
    assert(!k->kept);
    if (k->ends && keep_slot(kv, slot)) {
        if (!k->loaded) {
            tr_kv_store_want(kv, true, (uint32_t) slot);
        }
        k->loaded = false;
        return true;
    }
    memset(k, 0, sizeof(*k));
    return false;
}

bool
tr_kv_keep_copy(tr_kv_cache_t *kv, int32_t slot, const int32_t *tokens,
                uint32_t n, bool evict)
{
    tr_kv_kept_t *k;
    int32_t to;

    if (kv->reuse == NULL || !whole(kv, slot, n)
        || (!evict && kv->n_free_slots == 0)) {
        return false;
    }
    to = tr_kv_open(kv, &kv->policy[slot].origin);
    if (to < 0) {
        return false;
    }
    if (copy(kv, slot, to, n, evict) != TR_OK) {
        tr_kv_host_release(kv, to);
        return false;
    }
    k = &kv->reuse->kept[to];
    k->key = kv->reuse->kept[slot].key;
    k->n = n;
    memcpy(tokens_of(kv, to), tokens, n * sizeof(*tokens));
    if (!keep_slot(kv, to)) {
        memset(k, 0, sizeof(*k));
        tr_kv_host_release(kv, to);
    }
    return true;
}
