/*
 * The end of a prompt (kv_cache.h, tr_kv_compress), all layers at once:
 *
 *   plan    every head alone: its tokens outside the new window, what the
 *           policy makes of them, tokens and pages by list, and the least
 *           significant token of each.  Any order, any thread.
 *   sum     pages of all heads; they fit or nothing happens.
 *   grant   each head's range of the free ring into a table of its own.
 *   move    by the kernel, from the old pages to the new ones.
 *   recycle the old pages, and the new table takes the place of the old one.
 *
 * Tokens of a head stand in one order throughout: lists, window, dense.  Those
 * that stay in the window are the last of them, so that the others, which the
 * policy sees, are a prefix.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "kernels/thread_pool.h"

#include "kv_internal.h"

/* Heads planned by one thread at a time: each is a pass over its tokens. */
#define TR_KV_PROMPT_GRAIN 2u

typedef struct {
    tr_kv_cache_t *kv;
    int32_t slot;
    uint32_t len;
    uint32_t n_dense;
    uint32_t observe;
    tr_kv_policy_t policy; /* for a prompt of len tokens */
    tr_kv_seq_t to;
} tr_kv_prompt_job_t;

/* One thread's arrays for the tokens of one head. */
typedef struct {
    uint32_t *position;
    int8_t *from;
    float *score, *recent, *work;
    uint32_t n;
} tr_kv_marks_t;

/* ---- memory ------------------------------------------------------------- */

static size_t
tr_kv_area(size_t n)
{
    return (n + 63) & ~(size_t) 63;
}

/* Scratch for one prompt of max_len tokens; only what is used gets memory. */
bool
tr_kv_prompt_memory(tr_kv_cache_t *kv)
{
    const tr_kv_config_t *c = &kv->config;
    int threads = c->stream.threads > 0 ? c->stream.threads : 1;
    size_t dest = tr_kv_area((size_t) kv->heads * c->max_len);
    size_t tables = tr_kv_area((size_t) kv->heads * kv->view.table_len * 4);
    size_t heads = tr_kv_area(kv->heads * sizeof(tr_kv_head_plan_t));
    size_t kernel = c->kernels == NULL
                        ? 0
                        : tr_kv_area(c->kernels->kv_compress_work(&c->stream,
                                                                  c->head_dim));
    uint8_t *at;

    kv->work_size = 5 * tr_kv_area((size_t) c->max_len * 4)
                    + tr_kv_area(c->max_len);
    kv->prompt_size = dest + tables + heads + kernel
                      + kv->work_size * (size_t) threads;
    at = mmap(NULL, kv->prompt_size, PROT_READ | PROT_WRITE,
              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if ((void *) at == MAP_FAILED) {
        return false;
    }
    kv->prompt_memory = at;
    kv->head = (tr_kv_head_plan_t *) (void *) at;
    kv->kernel_work = at + heads;
    kv->to_tables = (int32_t *) (void *) (at + heads + kernel);
    kv->dest = (int8_t *) (at + heads + kernel + tables);
    kv->work = at + heads + kernel + tables + dest;
    return true;
}

static void
tr_kv_marks_of(const tr_kv_cache_t *kv, uint32_t worker, tr_kv_marks_t *m)
{
    size_t size = tr_kv_area((size_t) kv->config.max_len * 4);
    uint8_t *at = kv->work + worker * kv->work_size;

    m->position = (uint32_t *) (void *) at;
    m->score = (float *) (void *) (at + size);
    m->recent = (float *) (void *) (at + 2 * size);
    m->work = (float *) (void *) (at + 3 * size); /* twice as long */
    m->from = (int8_t *) (at + 5 * size);
    m->n = 0;
}

/* ---- what a head holds -------------------------------------------------- */

static const uint8_t *
tr_kv_old_page(const tr_kv_prompt_job_t *job, uint32_t head, uint32_t entry)
{
    const tr_kv_cache_t *kv = job->kv;

    return tr_kv_page(&kv->pages, tr_kv_row(kv, job->slot, head)[entry]);
}

/* Tokens of list l.  A level without positions holds them in order from the
 * first one on. */
static void
tr_kv_collect_list(const tr_kv_prompt_job_t *job, uint32_t head, uint32_t l,
                   tr_kv_marks_t *m)
{
    const tr_kv_cache_t *kv = job->kv;
    const tr_kv_layout_t
        *layout = &kv->plan.layout[kv->seq[job->slot].list_layout[l]];
    uint32_t count = tr_kv_counts(kv, job->slot, head)[l], i, j, n;

    for (i = 0; i < count; i += n, m->n += n) {
        uint32_t entry = tr_kv_list_entry(&kv->view, l, i / layout->tokens);
        const uint8_t *page = tr_kv_old_page(job, head, entry);

        n = count - i < layout->tokens ? count - i : layout->tokens;
        memset(m->from + m->n, (int) l, n);
        for (j = 0; j < n; j++) {
            m->recent[m->n + j] = -1;
        }
        if (layout->score != 0) {
            for (j = 0; j < n; j++) {
                m->position[m->n + j] = tr_kv_position_at(layout, page, j);
            }
            memcpy(m->score + m->n, page + layout->score, n * 4);
            continue;
        }
        memset(m->score + m->n, 0, n * sizeof(float));
        for (j = 0; j < n; j++) {
            m->position[m->n + j] = i + j;
        }
    }
}

/* Tokens [from, end) of the window, which leave it. */
static void
tr_kv_collect_window(const tr_kv_prompt_job_t *job, uint32_t head,
                     uint32_t from, uint32_t end, tr_kv_marks_t *m)
{
    const tr_kv_cache_t *kv = job->kv;
    const tr_kv_seq_t *q = &kv->seq[job->slot];
    const tr_kv_layout_t *layout = &kv->plan.layout[q->window_layout];
    uint32_t p;

    for (p = from; p < end; p++, m->n++) {
        uint32_t at = p % q->window;
        const uint8_t *page = tr_kv_old_page(job, head,
                                             kv->view.at_window
                                                 + at / layout->tokens);

        m->position[m->n] = p;
        m->from[m->n] = TR_KV_NOWHERE;
        m->score[m->n] = 0;
        m->recent[m->n] = -1;
        if (layout->score != 0) {
            memcpy(&m->score[m->n],
                   page + layout->score + at % layout->tokens * 4, 4);
        }
    }
}

/* The first n dense tokens. */
static void
tr_kv_collect_dense(const tr_kv_prompt_job_t *job, uint32_t head, uint32_t n,
                    tr_kv_marks_t *m)
{
    const tr_kv_cache_t *kv = job->kv;
    const tr_kv_layout_t *layout = &kv->plan.layout[0];
    uint32_t base = kv->seq[job->slot].base, *position = m->position + m->n;
    uint32_t i, some;
    bool scored = layout->score != 0 && kv->seq[job->slot].scored;

    memset(m->from + m->n, TR_KV_NOWHERE, n);
    for (i = 0; i < n; i++) {
        position[i] = base + i;
    }
    for (i = 0; i < n; i += some) {
        const uint8_t *page = tr_kv_old_page(job, head, i / layout->tokens);

        some = n - i < layout->tokens ? n - i : layout->tokens;
        if (scored) {
            memcpy(m->score + m->n + i, page + layout->score, some * 4);
            memcpy(m->recent + m->n + i, page + layout->recent, some * 4);
        } else {
            memset(m->score + m->n + i, 0, some * 4);
            memset(m->recent + m->n + i, 0, some * 4);
        }
    }
    for (i = m->n; i < m->n + n && job->observe != 0; i++) {
        m->score[i] = tr_kv_observed(m->recent[i],
                                     job->len - 1 - m->position[i],
                                     job->observe);
    }
    m->n += n;
}

/* ---- one head's plan ---------------------------------------------------- */

/* Is every choice one that the policy has?  Tokens in lists do not go up. */
static bool
tr_kv_choices_valid(const tr_kv_marks_t *m, const int8_t *to, uint32_t n_lists)
{
    uint32_t bad = 0, i;

    for (i = 0; i < m->n; i++) {
        bad |= (to[i] < TR_KV_NOWHERE) | (to[i] >= (int) n_lists)
               | ((to[i] != TR_KV_NOWHERE) & (to[i] < m->from[i]));
    }
    return bad == 0;
}

/* The victim of each list: the least significant of what goes there. */
static void
tr_kv_find_victims(const tr_kv_prompt_job_t *job, const tr_kv_marks_t *m,
                   const int8_t *to, tr_kv_head_plan_t *h)
{
    uint32_t least[TR_KV_LISTS_MAX] = { 0 }; /* position of the victim */
    uint32_t index[TR_KV_LISTS_MAX] = { 0 }, i, l;

    for (i = 0; i < m->n; i++) {
        tr_kv_victim_t *v;
        float own;

        if (to[i] < 0) {
            continue;
        }
        l = (uint32_t) to[i];
        v = &h->victim[l];
        own = job->to.by_sum
                  ? m->score[i]
                  : tr_kv_significance(m->score[i], m->position[i], job->len);
        if (own < v->significance
            || (own == v->significance && m->position[i] < least[l])) {
            *v = (tr_kv_victim_t){ own, index[l] };
            least[l] = m->position[i];
        }
        index[l]++;
    }
}

/* Tokens, pages and victim of each list. */
static void
tr_kv_count_lists(const tr_kv_prompt_job_t *job, const tr_kv_marks_t *m,
                  const int8_t *to, tr_kv_head_plan_t *h)
{
    const tr_kv_layout_t *layout = job->kv->plan.layout;
    uint32_t i, l;

    assert(tr_kv_choices_valid(m, to, job->to.n_lists));
    memset(h, 0, sizeof(*h));
    for (l = 0; l < TR_KV_LISTS_MAX; l++) {
        h->victim[l].significance = __builtin_inff();
    }
    for (l = 0; l < job->to.n_lists; l++) {
        uint32_t n = 0;

        for (i = 0; i < m->n; i++) {
            n += to[i] == (int8_t) l;
        }
        h->count[l] = n;
        h->pages += tr_kv_ceil(n, layout[job->to.list_layout[l]].tokens);
    }
    if (job->to.scored) {
        tr_kv_find_victims(job, m, to, h);
    }
    for (l = 0; l < job->to.n_lists; l++) {
        if (layout[job->to.list_layout[l]].score == 0) {
            h->victim[l] = (tr_kv_victim_t){ __builtin_inff(), 0 };
        }
    }
}

static void
tr_kv_plan_prompt(const tr_kv_prompt_job_t *job, uint32_t head, uint32_t worker)
{
    tr_kv_cache_t *kv = job->kv;
    const tr_kv_seq_t *q = &kv->seq[job->slot];
    const tr_kv_policy_t *p = &job->policy;
    uint32_t window = job->to.window_from, l, end;
    int8_t *dest = kv->dest + (size_t) head * kv->config.max_len;
    tr_kv_marks_t m;

    tr_kv_marks_of(kv, worker, &m);
    for (l = 0; l < q->n_lists; l++) {
        tr_kv_collect_list(job, head, l, &m);
    }
    end = window < q->base ? window : q->base;
    tr_kv_collect_window(job, head, q->window_from, end, &m);
    tr_kv_collect_dense(job, head, window > q->base ? window - q->base : 0, &m);
    if (m.n != 0) {
        tr_kv_prompt_t marks = { .layer = head / kv->config.lists,
                                 .list = head % kv->config.lists,
                                 .length = job->len,
                                 .n = m.n,
                                 .position = m.position,
                                 .from = m.from,
                                 .score = m.score,
                                 .recent = m.recent,
                                 .work = m.work };

        p->prompt(p, &marks, dest);
    }
    tr_kv_count_lists(job, &m, dest, &kv->head[head]);
    memset(dest + m.n, TR_KV_WINDOW, job->len - window);
    kv->head[head].pages += tr_kv_window_pages(&kv->plan, &job->to, job->len);
}

static void
tr_kv_plan_prompts(void *arg, uint32_t first, uint32_t end, uint32_t worker)
{
    uint32_t head;

    for (head = first; head < end; head++) {
        tr_kv_plan_prompt(arg, head, worker);
    }
}

/* ---- grant, move, recycle ----------------------------------------------- */

/* Does any level that tokens go to have scores?  Without, attention to them
 * need not look at probabilities. */
static bool
tr_kv_keeps_scores(const tr_kv_cache_t *kv, const tr_kv_seq_t *q)
{
    const tr_kv_layout_t *layout = kv->plan.layout;
    uint32_t l;

    for (l = 0; l < q->n_lists; l++) {
        if (layout[q->list_layout[l]].score != 0) {
            return true;
        }
    }
    return q->window != 0 && layout[q->window_layout].score != 0;
}

/* Where tokens leave the window in groups, what is outside of it is whole
 * groups. */
void
tr_kv_prompt_target(const tr_kv_cache_t *kv, int32_t slot, uint32_t len,
                    tr_kv_policy_t *p, tr_kv_seq_t *to)
{
    uint32_t from;

    tr_kv_policy_for(&kv->slot[slot].origin, len, p);
    *to = kv->seq[slot];
    to->window = p->window;
    from = len > to->window ? len - to->window : 0;
    if (p->leaves == TR_KV_CHANNEL_TOKENS) {
        from = tr_kv_ceil(from, TR_KV_CHANNEL_TOKENS) * TR_KV_CHANNEL_TOKENS;
    }
    if (from < to->window_from) { /* nobody comes back into the window */
        from = to->window_from;
    }
    to->scored = p->scored && tr_kv_keeps_scores(kv, to);
    to->base = len;
    to->window_from = from;
    to->read_pages = 0;
}

static void
tr_kv_grant_prompt(const tr_kv_prompt_job_t *job, uint64_t pages)
{
    tr_kv_cache_t *kv = job->kv;
    uint64_t next = tr_kv_pages_claim(&kv->pages, pages);
    uint32_t head, i, n;

    for (head = 0; head < kv->heads; head++) {
        int32_t *row = kv->to_tables + (size_t) head * kv->view.table_len;
        tr_kv_run_t run[TR_KV_RUNS];

        n = tr_kv_runs(kv, &job->to, kv->head[head].count, 0, run);
        for (i = 0; i < n; i++) {
            tr_kv_pages_fetch(&kv->pages, next, run[i].n, (uint32_t) job->slot,
                              row + run[i].entry, run[i].step);
            next += run[i].n;
        }
    }
}

static tr_status_t
tr_kv_move_prompt(const tr_kv_prompt_job_t *job)
{
    tr_kv_cache_t *kv = job->kv;
    tr_kv_compress_t c = { .slot = job->slot,
                           .n_dense = job->n_dense,
                           .to = &job->to,
                           .to_tables = kv->to_tables,
                           .dest = kv->dest,
                           .dest_len = kv->config.max_len,
                           .observe = job->observe };

    if (kv->config.kernels == NULL) {
        return TR_OK;
    }
    return kv->config.kernels->kv_compress(&kv->config.stream, &kv->view, &c,
                                           kv->kernel_work)
                   == TR_KERNEL_OK
               ? TR_OK
               : TR_ERR_INTERNAL;
}

/* The old pages go back and the new ones take their place in the row. */
static void
tr_kv_install_prompt(const tr_kv_prompt_job_t *job, uint64_t pages)
{
    tr_kv_cache_t *kv = job->kv;
    tr_kv_slot_t *s = &kv->slot[job->slot];
    uint32_t head, i, j, n;

    for (head = 0; head < kv->heads; head++) {
        tr_kv_release_row(kv, job->slot, head);
    }
    for (head = 0; head < kv->heads; head++) {
        const tr_kv_head_plan_t *h = &kv->head[head];
        const int32_t *source = kv->to_tables
                                + (size_t) head * kv->view.table_len;
        int32_t *row = tr_kv_row(kv, job->slot, head);
        tr_kv_run_t run[TR_KV_RUNS];

        n = tr_kv_runs(kv, &job->to, h->count, 0, run);
        for (i = 0; i < n; i++) {
            int32_t at = (int32_t) run[i].entry;

            for (j = 0; j < run[i].n; j++, at += run[i].step) {
                row[at] = source[at];
            }
            kv->totals.pages[run[i].layout] += run[i].n;
        }
        memcpy(tr_kv_counts(kv, job->slot, head), h->count, sizeof(h->count));
        memcpy(kv->victim
                   + tr_kv_head_at(kv, job->slot, head) * TR_KV_LISTS_MAX,
               h->victim, sizeof(h->victim));
    }
    kv->seq[job->slot] = job->to;
    s->policy = job->policy;
    kv->totals.tokens -= s->tokens - job->len;
    s->tokens = job->len;
    s->pages = pages;
    s->dense_pages = 0;
    s->dense = false;
}

tr_status_t
tr_kv_host_compress(tr_kv_cache_t *kv, int32_t slot, uint32_t len)
{
    tr_kv_slot_t *s = tr_kv_slot(kv, slot);
    const tr_stream_t *t = &kv->config.stream;
    tr_kv_prompt_job_t job = { .kv = kv, .slot = slot, .len = len };
    uint32_t base = kv->seq[slot].base, recent = kv->seq[slot].recent_from;
    uint64_t pages = 0;
    uint32_t head;
    tr_status_t rc;

    assert(!s->out && len >= base && len <= s->tokens);
    if (s->policy.n_levels == 0) {
        return TR_OK;
    }
    if (s->dense_pages == 0) {
        s->dense = false;
        return TR_OK;
    }
    job.n_dense = len - base;
    job.observe = s->policy.observe != 0 && recent < len ? len - recent : 0;
    tr_kv_prompt_target(kv, slot, len, &job.policy, &job.to);
    tr_thread_pool_run(t->thread_pool, t->threads, kv->heads,
                       TR_KV_PROMPT_GRAIN, tr_kv_plan_prompts, &job);
    for (head = 0; head < kv->heads; head++) {
        pages += kv->head[head].pages;
    }
    if (pages > tr_kv_pages_left(&kv->pages)) {
        return TR_AGAIN;
    }
    tr_kv_grant_prompt(&job, pages);
    rc = tr_kv_move_prompt(&job);
    /* also where the kernel refused: what the slot holds is then worthless, but
     * its pages are accounted for, and the caller ends it */
    tr_kv_install_prompt(&job, pages);
    return rc;
}
