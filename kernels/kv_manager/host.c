/*
 * The page manager on the host (host.h): which blocks of its programs run
 * where.
 *
 *   step             need, plan (some heads of some requests a task), sum, grant
 *                    (a request a task)
 *   close            release, ends, recycle
 *   plan_prompts     classify (some heads a task), total, admit, fill
 *   install_prompts  install, settle
 *   fill_prompts     fill
 *   plan_cuts        cut (some heads a task), total, admit, fill
 *   plan_restores    restore, total, admit, fill
 *   install_cuts     as of prompts, then rescore (some heads a task)
 *
 * Small launches run in the caller: to wake helpers costs more than some
 * hundred heads.
 */
#include "host.h"

#include "kernels/thread_pool.h"

#ifdef TR_KV_POISON
#define MANAGER_POISON(m, page) \
    memset(tr_kv_page_at(&(m)->view, page), TR_KV_POISON, (m)->view.page_bytes)
#endif

#include "manager_cut.h"
#include "manager_prompt.h"
#include "manager_share.h"
#include "manager_step.h"
#include "manager_tally.h"

/* From so many heads, pages or tokens on, the stream's thread pool takes
 * part. */
#define PARALLEL 2048u
/* Heads of a prompt planned by one thread at a time: each is a pass over its
 * tokens. */
#define PROMPT_GRAIN 2u
/* Heads by which pages come and go. */
#define ROW_GRAIN 16u

/* A launch. */
typedef struct {
    const tr_kv_manager_t *m;
    const void *in;
    uint32_t n;
    uint8_t *work;
    size_t work_size; /* of a thread */
    int32_t *history;
    uint32_t history_len;
} run_t;

/* f on [0, n) in pieces of `grain`: by the thread pool when that is worth
 * it. */
static void
share(const tr_stream_t *s, bool worth, uint32_t n, uint32_t grain,
      tr_thread_pool_f f, run_t *r)
{
    if (worth && n > grain) {
        tr_thread_pool_run(s->thread_pool, s->threads, n, grain, f, r);
    } else if (n != 0) {
        f(r, 0, n, 0);
    }
}

/* ---- create ------------------------------------------------------------- */

size_t
tr_kv_host_memory(const tr_kv_view_t *shape, const tr_kv_manager_size_t *size)
{
    tr_kv_manager_t m;

    return manager_lay(shape, size, NULL, &m);
}

int
tr_kv_host_create(const tr_kv_view_t *shape, const tr_kv_manager_size_t *size,
                  void *memory, tr_kv_manager_t *out)
{
    if (memory == NULL || (uintptr_t) memory % 256 != 0
        || manager_lay(shape, size, memory, out) == 0) {
        return TR_KERNEL_BADARG;
    }
    manager_reset_pages(out, 0, 1);
    return TR_KERNEL_OK;
}

/* ---- slots -------------------------------------------------------------- */

void
tr_kv_host_open(const tr_kv_manager_t *m, const tr_kv_open_t *open, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        manager_open(m, &open[i]);
    }
}

void
tr_kv_host_prompt(const tr_kv_manager_t *m, const tr_kv_begin_t *begin,
                  uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        manager_begin(m, &begin[i]);
    }
}

static void
recycle_rows(void *arg, uint32_t first, uint32_t end, uint32_t worker)
{
    const run_t *r = arg;

    (void) worker;
    for (; first < end; first++) {
        manager_recycle(r->m, first / r->m->heads, first % r->m->heads);
    }
}

void
tr_kv_host_close(const tr_stream_t *s, const tr_kv_manager_t *m,
                 const int32_t *slots, uint32_t n)
{
    run_t r = { .m = m, .in = slots, .n = n };
    manager_release_t shared;
    uint64_t pages = 0;

    for (uint32_t i = 0; i < n; i++) {
        manager_release(m, slots, i, &shared);
        pages += m->need[i].pages;
    }
    manager_ends(m, n);
    share(s, pages >= PARALLEL, n * m->heads, ROW_GRAIN, recycle_rows, &r);
}

void
tr_kv_host_tally(const tr_kv_manager_t *m, uint32_t n)
{
    manager_tally_t shared;

    for (uint32_t i = 0; i < n; i++) {
        manager_tally(m, (int32_t) i, &shared);
    }
}

void
tr_kv_host_give(const tr_kv_manager_t *m, int32_t slot, const int32_t *pages,
                uint32_t n, uint32_t first, uint32_t last)
{
    manager_swap_t shared;

    manager_give(m, slot, pages, n, first, last, &shared);
}

void
tr_kv_host_take(const tr_kv_manager_t *m, int32_t slot, int32_t *pages,
                uint32_t *n, uint32_t max)
{
    manager_swap_t shared;

    manager_take(m, slot, pages, n, max, &shared);
}

void
tr_kv_host_share(const tr_kv_manager_t *m, int32_t *history,
                 uint32_t history_len, tr_kv_share_kind_t kind,
                 const tr_kv_share_t *share, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        if (kind != TR_KV_COPY) {
            manager_share(m, history, history_len, kind, share, i);
            continue;
        }
        for (uint32_t h = 0; h < m->heads; h++) {
            manager_copy_kept(m, history, history_len, &share[i], h);
        }
    }
    manager_shared(m, kind, n);
}

static void
fork_heads(void *arg, uint32_t first, uint32_t end, uint32_t worker)
{
    const run_t *r = arg;
    const tr_kv_fork_t *fork = r->in;

    (void) worker;
    for (; first < end; first++) {
        manager_fork(r->m, r->history, r->history_len,
                     &fork[first / r->m->heads], first % r->m->heads, 0, 1);
    }
}

void
tr_kv_host_fork(const tr_stream_t *s, const tr_kv_manager_t *m,
                int32_t *history, uint32_t history_len,
                const tr_kv_fork_t *fork, uint32_t n)
{
    run_t r = { .m = m,
                .in = fork,
                .n = n,
                .history = history,
                .history_len = history_len };

    share(s, true, n * m->heads, 1, fork_heads, &r);
}

/* ---- steps -------------------------------------------------------------- */

/* Chunks of heads of requests. */
static void
plan_chunks(void *arg, uint32_t first, uint32_t end, uint32_t worker)
{
    const run_t *r = arg;
    manager_plan_t shared;

    (void) worker;
    for (; first < end; first++) {
        uint32_t i = first / r->m->chunks;

        if (r->m->need[i].kind == NEED_STEP) {
            manager_plan_heads(r->m, &r->m->need[i], i, first % r->m->chunks,
                               &shared);
        }
    }
}

static void
grant_chunks(void *arg, uint32_t first, uint32_t end, uint32_t worker)
{
    const run_t *r = arg;
    manager_grant_t shared;

    (void) worker;
    for (; first < end; first++) {
        manager_grant(r->m, first / r->m->chunks, first % r->m->chunks,
                      r->m->chunks, &shared);
    }
}

void
tr_kv_host_step(const tr_stream_t *s, const tr_kv_manager_t *m,
                const tr_kv_page_request_t *ask, uint32_t n)
{
    run_t r = { .m = m, .in = ask, .n = n };
    uint64_t heads = 0, pages = 0; /* to plan; of uncompressed pages */
    manager_grants_t grants;

    for (uint32_t i = 0; i < n; i++) {
        manager_need(m, &ask[i], &m->need[i]);
        heads += m->need[i].kind == NEED_STEP ? m->heads : 0;
        pages += m->need[i].kind == NEED_UNCOMPRESSED
                         && m->need[i].pages != MANAGER_NEVER
                     ? m->need[i].pages
                     : 0;
    }
    if (heads != 0) {
        share(s, heads >= PARALLEL, n * m->chunks, 1, plan_chunks, &r);
    }
    manager_sum(m, n, &grants);
    if (heads + pages != 0) {
        share(s, heads + pages >= PARALLEL, n * m->chunks, 1, grant_chunks, &r);
    }
}

/* ---- prompts ------------------------------------------------------------ */

/* manager_prompt_t's key and recent. */
static size_t
work_of_thread(const tr_kv_manager_t *m)
{
    return tr_pad((size_t) m->size.max_len * (sizeof(uint64_t) + sizeof(float)),
                  64);
}

size_t
tr_kv_host_prompt_work(const tr_stream_t *s, const tr_kv_manager_t *m)
{
    return work_of_thread(m) * (size_t) (s->threads > 0 ? s->threads : 1);
}

static void
classify_heads(void *arg, uint32_t first, uint32_t end, uint32_t worker)
{
    const run_t *r = arg;
    manager_prompt_t shared;

    shared.key = (uint64_t *) (void *) (r->work + worker * r->work_size);
    shared.recent = (float *) (void *) (shared.key + r->m->size.max_len);
    for (; first < end; first++) {
        manager_classify(r->m, r->in, first / r->m->heads, first % r->m->heads,
                         &shared);
    }
}

static void
fill_rows(void *arg, uint32_t first, uint32_t end, uint32_t worker)
{
    const run_t *r = arg;

    (void) worker;
    for (; first < end; first++) {
        manager_fill(r->m, first / r->m->heads, first % r->m->heads);
    }
}

static void
install_rows(void *arg, uint32_t first, uint32_t end, uint32_t worker)
{
    const run_t *r = arg;
    manager_install_t shared;

    (void) worker;
    for (; first < end; first++) {
        manager_install(r->m, first / r->m->heads, first % r->m->heads,
                        &shared);
    }
}

/* Tokens, of all heads, that become something else. */
static uint64_t
tokens_of(const tr_kv_manager_t *m, const tr_kv_complete_t *complete,
          uint32_t n)
{
    uint64_t tokens = 0;

    for (uint32_t i = 0; i < n; i++) {
        tr_kv_job_t job;

        manager_job(m, &complete[i], &job);
        tokens += job.move ? job.len : 0;
    }
    return tokens * m->heads;
}

/* Pages for the n jobs whose heads are planned. */
static void
grant_jobs(const tr_stream_t *s, run_t *r)
{
    manager_total_t total;
    uint64_t pages = 0;

    for (uint32_t i = 0; i < r->n; i++) {
        manager_total_job(r->m, i, &total);
        pages += r->m->job[i].pages;
    }
    manager_admit(r->m, r->n);
    share(s, pages >= PARALLEL, r->n * r->m->heads, ROW_GRAIN, fill_rows, r);
}

void
tr_kv_host_plan_prompts(const tr_stream_t *s, const tr_kv_manager_t *m,
                        const tr_kv_complete_t *complete, uint32_t n,
                        void *work)
{
    run_t r = { .m = m,
                .in = complete,
                .n = n,
                .work = work,
                .work_size = work_of_thread(m) };

    share(s, tokens_of(m, complete, n) >= PARALLEL, n * m->heads, PROMPT_GRAIN,
          classify_heads, &r);
    grant_jobs(s, &r);
}

void
tr_kv_host_fill_prompts(const tr_stream_t *s, const tr_kv_manager_t *m,
                        uint32_t n)
{
    run_t r = { .m = m, .n = n };

    share(s, false, n * m->heads, ROW_GRAIN, fill_rows, &r);
}

void
tr_kv_host_install_prompts(const tr_stream_t *s, const tr_kv_manager_t *m,
                           uint32_t n)
{
    run_t r = { .m = m, .n = n };
    uint64_t pages = 0;

    for (uint32_t i = 0; i < n; i++) {
        pages += m->job[i].old_pages;
    }
    share(s, pages >= PARALLEL, n * m->heads, ROW_GRAIN, install_rows, &r);
    manager_settle_prompts(m, n);
}

/* ---- cuts --------------------------------------------------------------- */

static void
cut_heads(void *arg, uint32_t first, uint32_t end, uint32_t worker)
{
    const run_t *r = arg;
    manager_cut_t shared;

    (void) worker;
    for (; first < end; first++) {
        manager_cut_head(r->m, r->in, first / r->m->heads, first % r->m->heads,
                         &shared);
    }
}

static void
rescore_heads(void *arg, uint32_t first, uint32_t end, uint32_t worker)
{
    const run_t *r = arg;

    (void) worker;
    for (; first < end; first++) {
        manager_rescore(r->m, r->history, r->history_len, first / r->m->heads,
                        first % r->m->heads);
    }
}

void
tr_kv_host_plan_cuts(const tr_stream_t *s, const tr_kv_manager_t *m,
                     const tr_kv_cut_t *cuts, uint32_t n)
{
    run_t r = { .m = m, .in = cuts, .n = n };

    share(s, true, n * m->heads, PROMPT_GRAIN, cut_heads, &r);
    grant_jobs(s, &r);
}

void
tr_kv_host_plan_restores(const tr_kv_manager_t *m,
                         const tr_kv_restore_t *restores, uint32_t n)
{
    const tr_stream_t here = { .threads = 1 };
    run_t r = { .m = m, .in = restores, .n = n };
    manager_cut_t shared;

    for (uint32_t i = 0; i < n * m->heads; i++) {
        manager_restore_head(m, restores, i / m->heads, i % m->heads, &shared);
    }
    grant_jobs(&here, &r);
}

void
tr_kv_host_install_cuts(const tr_stream_t *s, const tr_kv_manager_t *m,
                        int32_t *history, uint32_t history_len, uint32_t n)
{
    run_t r = {
        .m = m, .n = n, .history = history, .history_len = history_len
    };

    tr_kv_host_install_prompts(s, m, n);
    share(s, true, n * m->heads, PROMPT_GRAIN, rescore_heads, &r);
}

void
tr_kv_host_absorb(const tr_kv_manager_t *m, const tr_kv_absorb_t *absorb,
                  uint32_t n)
{
    manager_absorb_t shared;

    for (uint32_t i = 0; i < n * m->heads; i++) {
        manager_absorb(m, absorb, i / m->heads, i % m->heads, &shared);
    }
    manager_absorbed(m, absorb, n);
}
