/*
 * Pages of the cache that is here on their way to and from files and the shelf
 * (kv_store.c): copied by the step loop, a piece a turn, so that nobody waits for
 * long.
 */
#include <stdlib.h>
#include <string.h>

#include "engine/config/log.h"
#include "kv_internal.h"

static tr_status_t
host_open(tr_kv_cache_t *kv, tr_kv_lane_t lane, uint32_t piece_pages,
          uint64_t bytes, uint8_t **memory, tr_error_t *err)
{
    (void) piece_pages;
    *memory = NULL;
    if (lane != TR_KV_SHELF) {
        return TR_OK;
    }
    *memory = kv->shelf_memory = malloc(bytes);
    return *memory != NULL
               ? TR_OK
               : tr_error_set(err, TR_ERR_NOMEM, "cache_memory",
                              "no memory of %llu MiB for cached prefixes",
                              (unsigned long long) bytes >> 20);
}

static void
host_close(tr_kv_cache_t *kv, tr_kv_lane_t lane)
{
    if (lane == TR_KV_SHELF) {
        free(kv->shelf_memory);
        kv->shelf_memory = NULL;
    }
}

static void
host_launch(tr_kv_cache_t *kv)
{
    (void) kv;
}

static void
host_stop(tr_kv_cache_t *kv, tr_kv_lane_t lane)
{
    (void) kv;
    (void) lane;
}

static tr_status_t
host_see(tr_kv_cache_t *kv, tr_kv_lane_t lane, int32_t slot, bool again,
         tr_kv_seq_t *seq, uint32_t *counts)
{
    (void) lane;
    (void) again;
    if (slot >= 0) {
        *seq = kv->m.seq[slot];
        memcpy(counts, manager_counts(&kv->m, slot, 0),
               kv->heads * TR_KV_TIERS_MAX * sizeof(*counts));
    }
    return TR_OK;
}

static uint8_t *
page_of(const tr_kv_cache_t *kv, const tr_kv_piece_t *piece, uint32_t i)
{
    const int32_t *from = piece->slot < 0 ? kv->m.kept
                                          : manager_row(&kv->m, piece->slot, 0);

    return tr_kv_page_at(&kv->view, from[piece->ref[i]]);
}

static tr_status_t
host_out(tr_kv_cache_t *kv, tr_kv_lane_t lane, const tr_kv_piece_t *piece)
{
    size_t bytes = kv->plan.page_bytes;

    (void) lane;
    for (uint32_t i = 0; i < piece->n; i++) {
        memcpy(piece->memory + i * bytes, page_of(kv, piece, i), bytes);
    }
    return TR_OK;
}

static tr_status_t
host_begin(tr_kv_cache_t *kv, tr_kv_lane_t lane, int32_t slot,
           const int32_t *tokens, uint32_t n)
{
    (void) kv;
    (void) lane;
    (void) slot;
    (void) tokens;
    (void) n;
    return TR_OK;
}

static tr_status_t
host_in(tr_kv_cache_t *kv, tr_kv_lane_t lane, const tr_kv_piece_t *piece)
{
    size_t bytes = kv->plan.page_bytes;

    (void) lane;
    for (uint32_t i = 0; i < piece->n; i++) {
        memcpy(page_of(kv, piece, i), piece->memory + i * bytes, bytes);
    }
    return TR_OK;
}

static tr_status_t
host_moved(const tr_kv_cache_t *kv, tr_kv_lane_t lane, bool out,
           uint32_t buffer)
{
    (void) kv;
    (void) lane;
    (void) out;
    (void) buffer;
    return TR_OK;
}

const tr_kv_files_t tr_kv_host_files = { .buffers = { 2, 2 },
                                         .at_once = { 1, 1 },
                                         .turn_us = UINT32_MAX,
                                         .readers = 1,
                                         .chunk = 1u << 20,
                                         .open = host_open,
                                         .close = host_close,
                                         .launch = host_launch,
                                         .see = host_see,
                                         .out = host_out,
                                         .begin = host_begin,
                                         .in = host_in,
                                         .moved = host_moved,
                                         .stop = host_stop };
