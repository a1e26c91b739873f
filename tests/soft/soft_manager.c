/*
 * The page manager of the software device, which is the host's
 * (kernels/kv_manager/host.h), swaps, and pages of files.
 */
#include <stdlib.h>

#include "kernels/kv_manager/host.h"
#include "kernels/kv_manager/manager_core.h"

#include "device.h"

static const tr_stream_t here = { .threads = 1 };

/* A launch of n requests, which are on the device. */
typedef struct {
    tr_kv_manager_t m;
    const void *in;
    uint32_t n;
    tr_cuda_history_t history;
    tr_kv_share_kind_t kind;
} some_t;

static int
launch(const tr_cuda_stream_t *s, const char *name, soft_body_f body,
       const tr_kv_manager_t *m, const void *in, uint32_t n, uint32_t most)
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
                       const tr_kv_manager_size_t *size)
{
    tr_kv_manager_t m;

    return manager_lay(shape, size, NULL, &m);
}

static void
reset_body(void *args)
{
    some_t *a = args;

    manager_reset(&a->m, 0, 1);
}

int
tr_cuda_manager_create(const tr_cuda_stream_t *s, const tr_kv_view_t *shape,
                       const tr_kv_manager_size_t *size, void *memory,
                       tr_kv_manager_t *out)
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

    tr_kv_host_open(&a->m, a->in, a->n);
}

int
tr_cuda_manager_open(const tr_cuda_stream_t *s, const tr_kv_manager_t *m,
                     const tr_kv_open_t *open, uint32_t n)
{
    return launch(s, "manager_open", open_body, m, open, n, m->size.slots);
}

static void
begin_body(void *args)
{
    some_t *a = args;

    tr_kv_host_prompt(&a->m, a->in, a->n);
}

int
tr_cuda_manager_prompt(const tr_cuda_stream_t *s, const tr_kv_manager_t *m,
                       const tr_kv_begin_t *begin, uint32_t n)
{
    return launch(s, "manager_begin", begin_body, m, begin, n, m->size.slots);
}

static void
close_body(void *args)
{
    some_t *a = args;

    tr_kv_host_close(&here, &a->m, a->in, a->n);
}

int
tr_cuda_manager_close(const tr_cuda_stream_t *s, const tr_kv_manager_t *m,
                      const int32_t *slots, uint32_t n)
{
    return launch(s, "manager_close", close_body, m, slots, n, m->size.slots);
}

static void
fork_body(void *args)
{
    some_t *a = args;

    tr_kv_host_fork(&here, &a->m, a->history.token, a->history.len, a->in,
                    a->n);
}

int
tr_cuda_manager_fork(const tr_cuda_stream_t *s, const tr_kv_manager_t *m,
                     const tr_cuda_history_t *history, const tr_kv_fork_t *fork,
                     uint32_t n)
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
share_body(void *args)
{
    some_t *a = args;

    tr_kv_host_share(&a->m, a->history.token, a->history.len, a->kind, a->in,
                     a->n);
}

int
tr_cuda_manager_share(const tr_cuda_stream_t *s, const tr_kv_manager_t *m,
                      const tr_cuda_history_t *history, tr_kv_share_kind_t kind,
                      const tr_kv_share_t *share, uint32_t n)
{
    some_t a = { .m = *m, .in = share, .n = n, .kind = kind };

    if ((n != 0 && share == NULL) || m->view.page_bytes % 16 != 0) {
        return TR_KERNEL_BADARG;
    }
    if (history != NULL) {
        a.history = *history;
    }
    a.m.view.layout = NULL;
    return n == 0 ? TR_KERNEL_OK
                  : soft_launch(s, "manager_share", share_body, &a, sizeof(a));
}

static void
tally_body(void *args)
{
    some_t *a = args;

    tr_kv_host_tally(&a->m, a->n);
}

int
tr_cuda_manager_tally(const tr_cuda_stream_t *s, const tr_kv_manager_t *m,
                      uint32_t n)
{
    return launch(s, "manager_tally", tally_body, m, m->tally, n,
                  m->size.slots);
}

/* ---- steps -------------------------------------------------------------- */

static void
step_body(void *args)
{
    some_t *a = args;

    tr_kv_host_step(&here, &a->m, a->in, a->n);
}

int
tr_cuda_manager_step(const tr_cuda_stream_t *s, const tr_kv_manager_t *m,
                     const tr_kv_page_request_t *ask, uint32_t n)
{
    return launch(s, "manager_step", step_body, m, ask, n, m->size.slots);
}

/* ---- prompts ------------------------------------------------------------ */

static void
plan_body(void *args)
{
    some_t *a = args;

    tr_kv_host_plan_prompts(&here, &a->m, a->in, a->n,
                            soft_scratch(tr_kv_host_prompt_work(&here, &a->m)));
}

int
tr_cuda_manager_plan_prompts(const tr_cuda_stream_t *s,
                             const tr_kv_manager_t *m,
                             const tr_kv_complete_t *complete, uint32_t n)
{
    return launch(s, "manager_plan_prompts", plan_body, m, complete, n,
                  m->size.max_prompts);
}

static void
install_body(void *args)
{
    some_t *a = args;

    tr_kv_host_install_prompts(&here, &a->m, a->n);
}

int
tr_cuda_manager_install_prompts(const tr_cuda_stream_t *s,
                                const tr_kv_manager_t *m, uint32_t n)
{
    return launch(s, "manager_install", install_body, m, m->job, n,
                  m->size.max_prompts);
}

static void
fill_body(void *args)
{
    some_t *a = args;

    tr_kv_host_fill_prompts(&here, &a->m, a->n);
}

int
tr_cuda_manager_fill_prompts(const tr_cuda_stream_t *s,
                             const tr_kv_manager_t *m, uint32_t n)
{
    return launch(s, "manager_fill", fill_body, m, m->job, n,
                  m->size.max_prompts);
}

/* ---- cuts --------------------------------------------------------------- */

static void
cuts_body(void *args)
{
    some_t *a = args;

    tr_kv_host_plan_cuts(&here, &a->m, a->in, a->n);
}

int
tr_cuda_manager_plan_cuts(const tr_cuda_stream_t *s, const tr_kv_manager_t *m,
                          const tr_kv_cut_t *cuts, uint32_t n)
{
    return launch(s, "manager_plan_cuts", cuts_body, m, cuts, n,
                  m->size.max_prompts);
}

static void
restores_body(void *args)
{
    some_t *a = args;

    tr_kv_host_plan_restores(&a->m, a->in, a->n);
}

int
tr_cuda_manager_plan_restores(const tr_cuda_stream_t *s,
                              const tr_kv_manager_t *m,
                              const tr_kv_restore_t *restores, uint32_t n)
{
    return launch(s, "manager_plan_restores", restores_body, m, restores, n,
                  m->size.max_prompts);
}

static void
install_cuts_body(void *args)
{
    some_t *a = args;

    tr_kv_host_install_cuts(&here, &a->m, a->history.token, a->history.len,
                            a->n);
}

int
tr_cuda_manager_install_cuts(const tr_cuda_stream_t *s,
                             const tr_kv_manager_t *m,
                             const tr_cuda_history_t *history, uint32_t n)
{
    some_t a = { .m = *m, .in = m->job, .n = n };

    if (n > m->size.max_prompts) {
        return TR_KERNEL_BADARG;
    }
    if (history != NULL) {
        a.history = *history;
    }
    a.m.view.layout = NULL;
    return n == 0 ? TR_KERNEL_OK
                  : soft_launch(s, "manager_install_cuts", install_cuts_body,
                                &a, sizeof(a));
}

static void
absorb_body(void *args)
{
    some_t *a = args;

    tr_kv_host_absorb(&a->m, a->in, a->n);
}

int
tr_cuda_manager_absorb(const tr_cuda_stream_t *s, const tr_kv_manager_t *m,
                       const tr_kv_absorb_t *absorb, uint32_t n)
{
    return launch(s, "manager_absorb", absorb_body, m, absorb, n,
                  m->size.slots);
}

/* ---- out and in --------------------------------------------------------- */

typedef struct {
    tr_kv_manager_t m;
    int32_t slot;
    const int32_t *given;
    int32_t *taken;
    const uint32_t *n;
    uint32_t *got, max, first, last;
} move_t;

static void
give_body(void *args)
{
    move_t *a = args;

    if (*a->n != 0) {
        tr_kv_host_give(&a->m, a->slot, a->given, *a->n, a->first, a->last);
    }
}

int
tr_cuda_manager_give(const tr_cuda_stream_t *s, const tr_kv_manager_t *m,
                     int32_t slot, const int32_t *pages, const uint32_t *n,
                     uint32_t first, uint32_t last)
{
    move_t a = { .m = *m,
                 .slot = slot,
                 .given = pages,
                 .n = n,
                 .first = first,
                 .last = last };

    if (slot < 0 || (uint32_t) slot >= m->size.slots || pages == NULL
        || n == NULL || first > last) {
        return TR_KERNEL_BADARG;
    }
    a.m.view.layout = NULL;
    return soft_launch(s, "manager_give", give_body, &a, sizeof(a));
}

static void
take_body(void *args)
{
    move_t *a = args;

    tr_kv_host_take(&a->m, a->slot, a->taken, a->got, a->max);
}

int
tr_cuda_manager_take(const tr_cuda_stream_t *s, const tr_kv_manager_t *m,
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
                            + ((size_t) a->swap.slot * kv->layers * kv->kv_heads
                               + head)
                                  * TR_KV_TIERS_MAX;
    uint32_t n = 0, pages;

    if (q->n_tiers != 0 && tr_kv_slides(kv, head / kv->kv_heads)) {
        const int32_t *row = a->tables
                             + ((size_t) a->swap.slot * kv->layers
                                    * kv->kv_heads
                                + head)
                                   * kv->table_len;

        for (uint32_t i = a->swap.near_from; i < a->swap.near_pages; i++) {
            if (row[i] >= 0) {
                out[n++] = i;
            }
        }
        return n;
    }
    for (uint32_t i = 0; i < a->swap.uncompressed_pages; i++) {
        out[n++] = i;
    }
    pages = q->window == 0 ? 0
                           : manager_ceil(q->base < q->sinks + q->window
                                              ? q->base
                                              : q->sinks + q->window,
                                          kv->layout[q->window_layout].tokens);
    for (uint32_t i = 0; i < pages; i++) {
        out[n++] = kv->at_window + i;
    }
    for (uint32_t l = 0; l < q->n_tiers; l++) {
        pages = manager_ceil(count[l], kv->layout[q->tier_layout[l]].tokens);
        for (uint32_t i = 0; i < pages; i++) {
            out[n++] = tr_kv_tier_entry(kv, l, i);
        }
    }
    return n;
}

static void
swap_body(void *args)
{
    const swap_t *a = args;
    tr_kv_view_t kv = soft_view(&a->view);
    uint32_t heads = kv.layers * kv.kv_heads, n = 0;
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
            uint32_t k = at - a->swap.first;
            int32_t from, source, to;

            if (at < a->swap.first || at >= a->swap.last) {
                continue;
            }
            from = source = row[entry[i]] & ~a->swap.unmark;
            to = a->swap.taken[k];
            if (a->swap.unmark != 0 && k > 0 && soft_fails(SOFT_PAGE)) {
                source = a->swap.given[k - 1];
            }
            if (a->swap.to != NULL) {
                memcpy(a->swap.to + (uint64_t) (uint32_t) to * kv.page_bytes,
                       a->swap.from
                           + (uint64_t) (uint32_t) source * kv.page_bytes,
                       kv.page_bytes);
            }
            a->swap.given[k] = from;
            row[entry[i]] = to | a->swap.mark;
        }
    }
}

size_t
tr_cuda_kv_swap_work(const tr_kv_view_t *kv)
{
    return (size_t) kv->layers * kv->kv_heads * sizeof(uint32_t);
}

int
tr_cuda_kv_swap(const tr_cuda_stream_t *s, const tr_kv_view_t *kv,
                int32_t *tables, const tr_cuda_swap_t *swap, uint32_t *pages,
                void *work)
{
    swap_t a = { .tables = tables, .swap = *swap, .pages = pages };

    if (swap->slot < 0 || kv->layers * kv->kv_heads == 0 || kv->page_bytes % 16
        || work == NULL || swap->uncompressed_pages > kv->at_window
        || swap->near_pages > kv->at_window
        || swap->near_from > swap->near_pages || swap->first > swap->last
        || !soft_view_keep(&a.view, kv)) {
        return TR_KERNEL_BADARG;
    }
    return soft_launch(s, "kv_swap", swap_body, &a, sizeof(a));
}

/* ---- pages to and from files -------------------------------------------- */

typedef struct {
    uint8_t *pool;
    size_t page_bytes;
    tr_cuda_kv_pages_t a;
} pages_t;

static void
pages_body(void *args)
{
    const pages_t *p = args;

    for (uint32_t i = 0; i < p->a.n; i++) {
        int32_t page = p->a.table[p->a.ref[i]];
        uint8_t *flat = p->a.flat + i * p->page_bytes, *in_pool;

        if (page < 0 || (uint32_t) page >= p->a.pages) {
            continue;
        }
        in_pool = p->pool + (size_t) page * p->page_bytes;
        memcpy(p->a.out ? flat : in_pool, p->a.out ? in_pool : flat,
               p->page_bytes);
    }
}

int
tr_cuda_kv_pages(const tr_cuda_stream_t *s, const tr_kv_view_t *kv,
                 const tr_cuda_kv_pages_t *a)
{
    pages_t p = { kv->pool, kv->page_bytes, *a };

    if (kv->page_bytes % 16 || a->table == NULL || a->ref == NULL
        || a->flat == NULL || (uintptr_t) a->flat % 16 || a->n > INT32_MAX) {
        return TR_KERNEL_BADARG;
    }
    return a->n == 0 ? TR_KERNEL_OK
                     : soft_launch(s, "kv_pages", pages_body, &p, sizeof(p));
}
