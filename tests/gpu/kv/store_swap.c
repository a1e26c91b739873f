/*
 * A swap of a slot's pages, on a GPU alone.  See store_ops.h.
 */
#include "store_ops.h"

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>

/* A slot's entries in the order of a swap (kernels/cuda/device.h). */
static uint32_t
slot_entries(fixture_t *b, uint32_t s, uint32_t uncompressed_pages,
             int32_t **entry)
{
    const tr_kv_seq_t *q = &b->seq[s];
    uint32_t n = 0;

    for (uint32_t h = 0; h < b->host.layers * b->host.kv_heads; h++) {
        const uint32_t *count = b->count
                                + fixture_head(b, s, h) * TR_KV_TIERS_MAX;
        int32_t *row = fixture_row(b, s, h);

        for (uint32_t i = 0; i < uncompressed_pages; i++) {
            entry[n++] = row + i;
        }
        if (q->window > 0) {
            uint32_t slots = q->sinks + q->window;
            uint32_t per = b->plan.layout[q->window_layout].tokens;

            slots = q->base < slots ? q->base : slots;
            for (uint32_t i = 0; i < (slots + per - 1) / per; i++) {
                entry[n++] = row + b->host.at_window + i;
                fixture_page(b, entry[n - 1], q->window_layout);
            }
        }
        for (uint32_t l = 0; l < q->n_tiers; l++) {
            uint32_t per = b->plan.layout[q->tier_layout[l]].tokens;

            for (uint32_t i = 0; i < (count[l] + per - 1) / per; i++) {
                entry[n++] = row + tr_kv_tier_entry(&b->host, l, i);
            }
        }
    }
    return n;
}

#define MARK 0x40000000

/* What swap_run works on. */
typedef struct {
    uint32_t slot, n, uncompressed_pages;
    int32_t **entry;
    int32_t *given; /* [n] what the device says */
    uint8_t *host;  /* pinned, n pages */
    void *work, *taken, *there;
    uint32_t *pages, *go;
} swap_t;

/* In pieces, at times in one. */
static int
swap_launch(fixture_t *b, const swap_t *x, tr_cuda_swap_t swap)
{
    uint32_t each = 1 + x->n / (1 + x->n % 4);
    int rc = 0;

    for (uint32_t at = 0; at < x->n && rc == 0; at += each) {
        swap.first = at;
        swap.last = at + each < x->n ? at + each : x->n;
        swap.taken = (const int32_t *) x->taken + at;
        swap.given = (int32_t *) x->there + at;
        rc = tr_cuda_kv_swap(&b->side->stream, &b->other,
                             (int32_t *) b->other.tables, &swap, x->pages,
                             x->work);
    }
    return rc;
}

/* Moves the pages to ids `to` of the other pool. */
static bool
swap_run(fixture_t *b, swap_t *x, const int32_t *to, bool out)
{
    size_t heads = (size_t) FIXTURE_SLOTS * b->host.layers * b->host.kv_heads;
    int32_t *tables = malloc(heads * b->host.table_len * 4);
    uint32_t n = 0;
    bool ok = true;
    tr_cuda_swap_t swap = { .slot = (int32_t) x->slot,
                            .uncompressed_pages = x->uncompressed_pages,
                            .max_pages = x->n,
                            .from = out ? b->other.pool : x->host,
                            .to = out ? x->host : b->other.pool,
                            .mark = out ? MARK : 0,
                            .unmark = MARK,
                            .go = x->go };

    fixture_put(x->taken, to, x->n * 4ul);
    if (swap_launch(b, x, swap) != 0) {
        printf("launch: %s\n", tr_cuda_reason());
        exit(1);
    }
    cuda_ok(cudaDeviceSynchronize(), "swap");
    fixture_get(&n, x->pages, 4);
    fixture_get(x->given, x->there, x->n * 4ul);
    fixture_get(tables, b->other.tables, heads * b->host.table_len * 4);
    ok = n == x->n;
    for (uint32_t i = 0; i < x->n && ok; i++) {
        int32_t was = *x->entry[i] & ~MARK;

        *x->entry[i] = to[i] | (out ? MARK : 0);
        ok = x->given[i] == was;
    }
    ok = ok && memcmp(tables, b->tables, heads * b->host.table_len * 4) == 0;
    free(tables);
    return ok ? true : store_say("pages or tables of a swap are wrong");
}

/* Where no page was granted, or there are more than was said, nothing moves. */
static bool
swap_nothing(fixture_t *b, swap_t *x, const int32_t *to)
{
    uint32_t go = b->n_free % 2, pages = x->n, n = 1;
    size_t heads = (size_t) FIXTURE_SLOTS * b->host.layers * b->host.kv_heads;
    int32_t *tables = malloc(heads * b->host.table_len * 4);
    tr_cuda_swap_t swap = { .slot = (int32_t) x->slot,
                            .uncompressed_pages = x->uncompressed_pages,
                            .max_pages = pages - go,
                            .last = pages,
                            .taken = x->taken,
                            .given = x->there,
                            .from = b->other.pool,
                            .to = x->host,
                            .mark = MARK,
                            .go = x->go };
    bool ok;

    fixture_put(x->go, &go, 4);
    fixture_put(x->taken, to, x->n * 4ul);
    ok = tr_cuda_kv_swap(&b->side->stream, &b->other,
                         (int32_t *) b->other.tables, &swap, x->pages, x->work)
         == 0;
    cuda_ok(cudaDeviceSynchronize(), "swap");
    fixture_get(&n, x->pages, 4);
    fixture_get(tables, b->other.tables, heads * b->host.table_len * 4);
    ok = ok && n == 0
         && memcmp(tables, b->tables, heads * b->host.table_len * 4) == 0;
    free(tables);
    go = 1;
    fixture_put(x->go, &go, 4);
    return ok ? true : store_say("a swap that must not happen did");
}

/* A slot goes to the host and comes back to other pages. */
bool
store_swap(fixture_t *b, uint32_t s)
{
    size_t bytes = b->host.page_bytes;
    swap_t x = { .slot = s };
    int32_t *image, *back;
    bool ok;

    x.entry = malloc(b->pages * sizeof(*x.entry));
    x.uncompressed_pages = (b->uncompressed[s] + b->plan.layout[0].tokens - 1)
                           / b->plan.layout[0].tokens;
    x.n = slot_entries(b, s, x.uncompressed_pages, x.entry);
    if (x.n == 0 || x.n > b->n_free) {
        free(x.entry);
        return true;
    }
    fixture_sync(b);
    x.given = malloc(x.n * 4ul);
    image = malloc(x.n * 4ul);
    back = malloc(x.n * 4ul);
    for (uint32_t i = 0; i < x.n; i++) { /* any place in host memory */
        image[i] = (int32_t) (x.n - 1 - i);
        back[i] = b->free_page[--b->n_free];
        b->layout_of[back[i]] = b->layout_of[*x.entry[i]];
        /* what the CPU's side has there afterwards */
        memcpy(b->host.pool + back[i] * bytes,
               b->host.pool + *x.entry[i] * bytes, bytes);
    }
    x.work = fixture_room(tr_cuda_kv_swap_work(&b->other));
    x.taken = fixture_room(x.n * 4ul);
    x.there = fixture_room(x.n * 4ul);
    x.pages = fixture_room(4);
    x.go = fixture_room(4);
    cuda_ok(cudaHostAlloc((void **) &x.host, x.n * bytes, 0), "host memory");
    ok = swap_nothing(b, &x, image) && swap_run(b, &x, image, true);
    for (uint32_t i = 0; i < x.n && ok; i++) {
        ok = b->nan_in
             || memcmp(x.host + image[i] * bytes,
                       b->host.pool + back[i] * bytes, bytes)
                    == 0;
        b->free_page[b->n_free++] = x.given[i];
    }
    ok = ok && swap_run(b, &x, back, false) && fixture_same(b, "swap");
    store_checks++;
    cuda_ok(cudaFreeHost(x.host), "host memory");
    fixture_room_free(x.work);
    fixture_room_free(x.taken);
    fixture_room_free(x.there);
    fixture_room_free(x.pages);
    fixture_room_free(x.go);
    free(x.entry);
    free(x.given);
    free(image);
    free(back);
    return ok ? true : store_say("a swap did not bring back what went out");
}
