/*
 * The page manager of the software device: the manager's own programs
 * (kernels/cuda/manager_*.h), which compile as plain C, block after block and
 * thread after thread; and swaps, which do not.
 *
 * Blocks of a launch run from the last to the first: on a device they run in any
 * order, but for those that a last block waits for.
 */
#include <stdlib.h>

#include "kernels/kv_manager/manager_prompt.h"
#include "kernels/kv_manager/manager_step.h"
#include "kernels/kv_manager/manager_tally.h"

#include "device.h"

/* A launch of n requests, which are on the device. */
typedef struct {
    tr_cuda_manager_t m;
    const void *in;
    uint32_t n;
    tr_cuda_history_t history;
} some_t;

static int
launch(const tr_cuda_stream_t *s, const char *name, soft_body_f body,
       const tr_cuda_manager_t *m, const void *in, uint32_t n, uint32_t most)
{
    some_t a = { .m = *m, .in = in, .n = n };

    if (n > most || (n != 0 && in == NULL)) {
        return TR_KERNEL_BADARG;
    }
    a.m.view.layout = NULL; /* the host's */
    return n == 0 ? TR_KERNEL_OK : soft_launch(s, name, body, &a, sizeof(a));
}

/* ---- create ------------------------------------------------------------- */

size_t
tr_cuda_manager_memory(const tr_kv_view_t *shape,
                       const tr_cuda_manager_size_t *size)
{
    tr_cuda_manager_t m;

    return manager_lay(shape, size, NULL, &m);
}

static void
reset_body(void *args)
{
    some_t *a = args;

    for (uint32_t t = 0; t < 3; t++) {
        manager_reset(&a->m, t, 3);
    }
}

int
tr_cuda_manager_create(const tr_cuda_stream_t *s, const tr_kv_view_t *shape,
                       const tr_cuda_manager_size_t *size, void *memory,
                       tr_cuda_manager_t *out)
{
    if (memory == NULL || (uintptr_t) memory % 256 != 0
        || manager_lay(shape, size, memory, out) == 0) {
        return TR_KERNEL_BADARG;
    }
    return launch(s, "manager_reset", reset_body, out, memory, 1, 1);
}

/* ---- slots -------------------------------------------------------------- */

static void
open_body(void *args)
{
    some_t *a = args;

    for (uint32_t i = a->n; i > 0; i--) {
        manager_open(&a->m, (const tr_cuda_open_t *) a->in + i - 1);
    }
}

int
tr_cuda_manager_open(const tr_cuda_stream_t *s, const tr_cuda_manager_t *m,
                     const tr_cuda_open_t *open, uint32_t n)
{
    return launch(s, "manager_open", open_body, m, open, n, m->size.slots);
}

static void
begin_body(void *args)
{
    some_t *a = args;

    for (uint32_t i = a->n; i > 0; i--) {
        manager_begin(&a->m, (const tr_cuda_begin_t *) a->in + i - 1);
    }
}

int
tr_cuda_manager_prompt(const tr_cuda_stream_t *s, const tr_cuda_manager_t *m,
                       const tr_cuda_begin_t *begin, uint32_t n)
{
    return launch(s, "manager_begin", begin_body, m, begin, n, m->size.slots);
}

static void
close_body(void *args)
{
    some_t *a = args;
    uint32_t each = manager_ceil(a->m.heads, MANAGER_WARPS);
    manager_release_t *s = soft_scratch(sizeof(*s));

    for (uint32_t i = a->n; i > 0; i--) {
        manager_release(&a->m, a->in, i - 1, s);
    }
    manager_ends(&a->m, a->n);
    for (uint32_t b = a->n * each; b > 0; b--) {
        manager_recycle(&a->m, (b - 1) / each, (b - 1) % each);
    }
}

int
tr_cuda_manager_close(const tr_cuda_stream_t *s, const tr_cuda_manager_t *m,
                      const int32_t *slots, uint32_t n)
{
    return launch(s, "manager_close", close_body, m, slots, n, m->size.slots);
}

static void
fork_body(void *args)
{
    some_t *a = args;

    for (uint32_t b = a->n * a->m.heads; b > 0; b--) {
        manager_fork(&a->m, &a->history,
                     (const tr_cuda_fork_t *) a->in + (b - 1) / a->m.heads,
                     (b - 1) % a->m.heads, 0, 1);
    }
}

int
tr_cuda_manager_fork(const tr_cuda_stream_t *s, const tr_cuda_manager_t *m,
                     const tr_cuda_history_t *history,
                     const tr_cuda_fork_t *fork, uint32_t n)
{
    some_t a = { .m = *m, .in = fork, .n = n };

    if (n > m->size.slots || (n != 0 && fork == NULL)
        || m->view.page_bytes % 16 != 0) {
        return TR_KERNEL_BADARG;
    }
    if (history != NULL) {
        a.history = *history;
    }
    a.m.view.layout = NULL;
    return n == 0 ? TR_KERNEL_OK
                  : soft_launch(s, "manager_fork", fork_body, &a, sizeof(a));
}

static void
tally_body(void *args)
{
    some_t *a = args;
    manager_tally_t s;

    for (uint32_t i = a->n; i > 0; i--) {
        manager_tally(&a->m, (int32_t) i - 1, &s);
    }
}

int
tr_cuda_manager_tally(const tr_cuda_stream_t *s, const tr_cuda_manager_t *m,
                      uint32_t n)
{
    return launch(s, "manager_tally", tally_body, m, m->tally, n,
                  m->size.slots);
}

/* ---- steps -------------------------------------------------------------- */

typedef union {
    manager_plan_t plan;
    manager_grants_t grants;
    manager_grant_t grant;
} step_shared_t;

static void
step_body(void *args)
{
    some_t *a = args;
    step_shared_t *s = soft_scratch(sizeof(*s));
    uint32_t chunks = a->m.chunks;

    for (uint32_t b = a->n * chunks; b > 0; b--) {
        manager_plan(&a->m, a->in, (b - 1) / chunks, (b - 1) % chunks,
                     &s->plan);
    }
    manager_sum(&a->m, a->n, &s->grants);
    for (uint32_t b = a->n * chunks; b > 0; b--) {
        manager_grant(&a->m, (b - 1) / chunks, (b - 1) % chunks, chunks,
                      &s->grant);
    }
}

int
tr_cuda_manager_step(const tr_cuda_stream_t *s, const tr_cuda_manager_t *m,
                     const tr_cuda_ask_t *ask, uint32_t n)
{
    return launch(s, "manager_step", step_body, m, ask, n, m->size.slots);
}

/* ---- prompts ------------------------------------------------------------ */

static void
plan_body(void *args)
{
    some_t *a = args;
    uint32_t heads = a->m.heads, each = manager_ceil(heads, MANAGER_WARPS);
    manager_prompt_t *s = soft_scratch(sizeof(*s));
    manager_total_t *total = soft_scratch(sizeof(*total));

    for (uint32_t b = heads * a->n; b > 0; b--) {
        manager_classify(&a->m, a->in, (b - 1) / heads, (b - 1) % heads, s);
    }
    for (uint32_t i = 0; i < a->n; i++) {
        manager_total_job(&a->m, i, total);
    }
    manager_admit(&a->m, a->n);
    for (uint32_t b = a->n * each; b > 0; b--) {
        manager_fill(&a->m, (b - 1) / each, (b - 1) % each);
    }
}

int
tr_cuda_manager_plan_prompts(const tr_cuda_stream_t *s,
                             const tr_cuda_manager_t *m,
                             const tr_cuda_complete_t *complete, uint32_t n)
{
    return launch(s, "manager_plan_prompts", plan_body, m, complete, n,
                  m->size.max_prompts);
}

static void
install_body(void *args)
{
    some_t *a = args;
    uint32_t each = manager_ceil(a->m.heads, MANAGER_WARPS);
    manager_install_t s;

    for (uint32_t b = a->n * each; b > 0; b--) {
        manager_install(&a->m, (b - 1) / each, (b - 1) % each, &s);
    }
    manager_settle_prompts(&a->m, a->n);
}

int
tr_cuda_manager_install_prompts(const tr_cuda_stream_t *s,
                                const tr_cuda_manager_t *m, uint32_t n)
{
    return launch(s, "manager_install", install_body, m, m->job, n,
                  m->size.max_prompts);
}

/* ---- out and in --------------------------------------------------------- */

typedef struct {
    tr_cuda_manager_t m;
    int32_t slot;
    const int32_t *given;
    int32_t *taken;
    const uint32_t *n;
    uint32_t *got, max;
} move_t;

static void
give_body(void *args)
{
    move_t *a = args;
    manager_swap_t s;

    if (*a->n != 0) {
        manager_give(&a->m, a->slot, a->given, *a->n, &s);
    }
}

int
tr_cuda_manager_give(const tr_cuda_stream_t *s, const tr_cuda_manager_t *m,
                     int32_t slot, const int32_t *pages, const uint32_t *n)
{
    move_t a = { .m = *m, .slot = slot, .given = pages, .n = n };

    if (slot < 0 || (uint32_t) slot >= m->size.slots || pages == NULL
        || n == NULL) {
        return TR_KERNEL_BADARG;
    }
    a.m.view.layout = NULL;
    return soft_launch(s, "manager_give", give_body, &a, sizeof(a));
}

static void
take_body(void *args)
{
    move_t *a = args;
    manager_swap_t s;

    manager_take(&a->m, a->slot, a->taken, a->got, a->max, &s);
}

int
tr_cuda_manager_take(const tr_cuda_stream_t *s, const tr_cuda_manager_t *m,
                     int32_t slot, int32_t *pages, uint32_t *n, uint32_t max)
{
    move_t a = { .m = *m, .slot = slot, .taken = pages, .got = n, .max = max };

    if (slot < 0 || (uint32_t) slot >= m->size.slots || pages == NULL
        || n == NULL) {
        return TR_KERNEL_BADARG;
    }
    a.m.view.layout = NULL;
    return soft_launch(s, "manager_take", take_body, &a, sizeof(a));
}

/* ---- swaps -------------------------------------------------------------- */

typedef struct {
    soft_view_t view;
    int32_t *tables;
    tr_cuda_swap_t swap;
    uint32_t *pages;
} swap_t;

/* The entries of a head's row in the order of store.h; returns how many. */
static uint32_t
entries(const swap_t *a, const tr_kv_view_t *kv, uint32_t head, uint32_t *out)
{
    const tr_kv_seq_t *q = &kv->seq[a->swap.slot];
    const uint32_t *count = kv->count
                            + ((size_t) a->swap.slot * kv->layers * kv->lists
                               + head)
                                  * TR_KV_LISTS_MAX;
    uint32_t n = 0, pages;

    for (uint32_t i = 0; i < a->swap.dense_pages; i++) {
        out[n++] = i;
    }
    pages = q->window == 0
                ? 0
                : manager_ceil(q->base < q->window ? q->base : q->window,
                               kv->layout[q->window_layout].tokens);
    for (uint32_t i = 0; i < pages; i++) {
        out[n++] = kv->at_window + i;
    }
    for (uint32_t l = 0; l < q->n_lists; l++) {
        pages = manager_ceil(count[l], kv->layout[q->list_layout[l]].tokens);
        for (uint32_t i = 0; i < pages; i++) {
            out[n++] = tr_kv_list_entry(kv, l, i);
        }
    }
    return n;
}

static void
swap_body(void *args)
{
    const swap_t *a = args;
    tr_kv_view_t kv = soft_view(&a->view);
    uint32_t heads = kv.layers * kv.lists, n = 0;
    uint32_t *entry = soft_scratch(kv.table_len * sizeof(*entry));

    for (uint32_t h = 0; h < heads; h++) {
        n += entries(a, &kv, h, entry);
    }
    if (n > a->swap.max_pages || (a->swap.go != NULL && *a->swap.go == 0)) {
        n = 0;
    }
    *a->pages = n;
    for (uint32_t h = 0, at = 0; h < heads && n != 0; h++) {
        int32_t *row = a->tables
                       + ((size_t) a->swap.slot * heads + h) * kv.table_len;
        uint32_t some = entries(a, &kv, h, entry);

        for (uint32_t i = 0; i < some; i++, at++) {
            int32_t from = row[entry[i]] & ~a->swap.unmark;
            int32_t to = a->swap.taken[at], source = from;

            if (a->swap.unmark != 0 && at > 0 && soft_fails(SOFT_PAGE)) {
                source = a->swap.given[at - 1];
            }
            memcpy(a->swap.to + (uint64_t) (uint32_t) to * kv.page_bytes,
                   a->swap.from + (uint64_t) (uint32_t) source * kv.page_bytes,
                   kv.page_bytes);
            a->swap.given[at] = from;
            row[entry[i]] = to | a->swap.mark;
        }
    }
}

size_t
tr_cuda_kv_swap_work(const tr_kv_view_t *kv)
{
    return (size_t) kv->layers * kv->lists * sizeof(uint32_t);
}

int
tr_cuda_kv_swap(const tr_cuda_stream_t *s, const tr_kv_view_t *kv,
                int32_t *tables, const tr_cuda_swap_t *swap, uint32_t *pages,
                void *work)
{
    swap_t a = { .tables = tables, .swap = *swap, .pages = pages };

    if (swap->slot < 0 || kv->layers * kv->lists == 0 || kv->page_bytes % 16
        || work == NULL || swap->dense_pages > kv->at_window
        || !soft_view_keep(&a.view, kv)) {
        return TR_KERNEL_BADARG;
    }
    return soft_launch(s, "kv_swap", swap_body, &a, sizeof(a));
}
