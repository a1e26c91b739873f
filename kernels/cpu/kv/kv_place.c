/*
 * Where a token of a head is, and whether a slot's tables have room for it.
 * Reference: test_kv_store.c.
 */
#include "kernels/cpu/cpu.h"
#include "kv_store.h"

static uint8_t *
page_of(const tr_kv_view_t *kv, const int32_t *table, uint32_t entry)
{
    return tr_kv_page_at(kv, table[entry]);
}

tr_kv_place_t
tr_kv_place_uncompressed(const tr_kv_view_t *kv, const int32_t *table,
                         uint32_t index)
{
    const tr_kv_layout_t *l = &kv->layout[0];

    return (tr_kv_place_t){ page_of(kv, table, index / l->tokens), l,
                            index % l->tokens };
}

tr_kv_place_t
tr_kv_place_window(const tr_kv_view_t *kv, const int32_t *table,
                   const tr_kv_seq_t *seq, uint32_t index)
{
    const tr_kv_layout_t *l = &kv->layout[seq->window_layout];

    return (
        tr_kv_place_t){ page_of(kv, table, kv->at_window + index / l->tokens),
                        l, index % l->tokens };
}

tr_kv_place_t
tr_kv_place_tier(const tr_kv_view_t *kv, const int32_t *table,
                 const tr_kv_seq_t *seq, uint32_t tier, uint32_t index)
{
    const tr_kv_layout_t *l = &kv->layout[seq->tier_layout[tier]];
    uint32_t entry = tr_kv_tier_entry(kv, tier, index / l->tokens);

    return (tr_kv_place_t){ page_of(kv, table, entry), l, index % l->tokens };
}

tr_kv_iterator_t
tr_kv_iterator_uncompressed(const tr_kv_view_t *kv, const int32_t *table)
{
    return (tr_kv_iterator_t){ kv, table, 1, { NULL, &kv->layout[0], 0 } };
}

tr_kv_iterator_t
tr_kv_iterator_tier(const tr_kv_view_t *kv, const int32_t *table,
                    const tr_kv_seq_t *seq, uint32_t tier, uint32_t first)
{
    const tr_kv_layout_t *l = &kv->layout[seq->tier_layout[tier]];

    return (tr_kv_iterator_t){
        kv,
        table + tr_kv_tier_entry(kv, tier, first / l->tokens),
        tier % 2 == 0 ? 1 : -1,
        { NULL, l, 0 }
    };
}

/* Are there pages for tokens [first, end) of a part of `len` entries, whose
 * page 0 is at `row` and page i at row + i * step? */
static bool
part_has(const int32_t *row, int32_t step, uint32_t len, uint32_t tokens,
         uint32_t first, uint32_t end)
{
    uint32_t page, last;

    if (first >= end) {
        return true;
    }
    page = first / tokens;
    last = end - 1 - first < tokens - first % tokens ? page
                                                     : (end - 1) / tokens;
    if (last >= len) {
        return false;
    }
    for (; page <= last; page++) {
        if (row[(int64_t) page * step] < 0) {
            return false;
        }
    }
    return true;
}

bool
tr_kv_has_uncompressed(const tr_kv_view_t *kv, const int32_t *table,
                       uint32_t first, uint32_t end)
{
    return part_has(table, 1, kv->at_window, kv->layout[0].tokens, first, end);
}

bool
tr_kv_has_window(const tr_kv_view_t *kv, const int32_t *table,
                 const tr_kv_seq_t *seq, uint32_t first, uint32_t end)
{
    return first >= end
           || (end <= seq->sinks + seq->window
               && part_has(table + kv->at_window, 1,
                           kv->at_pair[0] - kv->at_window,
                           kv->layout[seq->window_layout].tokens, first, end));
}

bool
tr_kv_has_tier(const tr_kv_view_t *kv, const int32_t *table,
               const tr_kv_seq_t *seq, uint32_t tier, uint32_t first,
               uint32_t end)
{
    return part_has(table + tr_kv_tier_entry(kv, tier, 0),
                    tier % 2 == 0 ? 1 : -1, kv->pair_len[tier / 2],
                    kv->layout[seq->tier_layout[tier]].tokens, first, end);
}

bool
tr_kv_seq_valid(const tr_kv_view_t *kv, const tr_kv_seq_t *seq)
{
    if (seq->n_tiers > TR_KV_TIERS_MAX) {
        return false;
    }
    for (uint32_t i = 0; i < seq->n_tiers; i++) {
        if (seq->tier_layout[i] == 0 || seq->tier_layout[i] >= kv->n_layouts) {
            return false;
        }
    }
    return (seq->window == 0 && seq->sinks == 0)
           || (seq->window != 0 && seq->window_layout != 0
               && seq->window_layout < kv->n_layouts
               && !kv->layout[seq->window_layout].level.by_channel
               && seq->base - seq->window_from <= seq->window
               && seq->sinks <= seq->window_from
               && seq->window_from <= seq->base);
}

void
tr_kv_page_clear(uint8_t *page, const tr_kv_layout_t *l, uint64_t page_bytes)
{
    uint32_t end = tr_kv_tiles_end(l);
    uint32_t codes = l->head_dim * (l->level.key_bits + l->level.value_bits) / 8
                     * TR_KV_TILE;

    for (uint32_t at = 0; at < end && l->tile > codes; at += l->tile) {
        memset(page + at + codes, 0, l->tile - codes);
    }
    memset(page + end, 0, page_bytes - end);
}
