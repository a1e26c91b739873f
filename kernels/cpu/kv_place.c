/*
 * Where a token of a head is: page and place, score and position; and whether
 * a slot's tables have room for it.  Reference: test_kv_store.c.
 */
#include "cpu.h"
#include "kv_store.h"

static uint8_t *
page_of(const tr_kv_view_t *kv, const int32_t *table, uint32_t entry)
{
    return tr_kv_page_at(kv, table[entry]);
}

tr_kv_place_t
tr_kv_place_dense(const tr_kv_view_t *kv, const int32_t *table, uint32_t index)
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
tr_kv_place_list(const tr_kv_view_t *kv, const int32_t *table,
                 const tr_kv_seq_t *seq, uint32_t list, uint32_t index)
{
    const tr_kv_layout_t *l = &kv->layout[seq->list_layout[list]];
    uint32_t entry = tr_kv_list_entry(kv, list, index / l->tokens);

    return (tr_kv_place_t){ page_of(kv, table, entry), l, index % l->tokens };
}

bool
tr_kv_has_dense(const tr_kv_view_t *kv, const int32_t *table, uint32_t first,
                uint32_t end)
{
    uint32_t tokens = kv->layout[0].tokens;

    if (first >= end) {
        return true;
    }
    if ((end - 1) / tokens >= kv->at_window) {
        return false;
    }
    for (uint32_t i = first / tokens; i <= (end - 1) / tokens; i++) {
        if (table[i] < 0) {
            return false;
        }
    }
    return true;
}

bool
tr_kv_has_window(const tr_kv_view_t *kv, const int32_t *table,
                 const tr_kv_seq_t *seq, uint32_t first, uint32_t end)
{
    uint32_t tokens = kv->layout[seq->window_layout].tokens;

    if (first >= end) {
        return true;
    }
    if (end > seq->window
        || kv->at_window + (end - 1) / tokens >= kv->at_pair[0]) {
        return false;
    }
    for (uint32_t i = first / tokens; i <= (end - 1) / tokens; i++) {
        if (table[kv->at_window + i] < 0) {
            return false;
        }
    }
    return true;
}

bool
tr_kv_has_list(const tr_kv_view_t *kv, const int32_t *table,
               const tr_kv_seq_t *seq, uint32_t list, uint32_t first,
               uint32_t end)
{
    uint32_t tokens = kv->layout[seq->list_layout[list]].tokens;

    if (first >= end) {
        return true;
    }
    if ((end - 1) / tokens >= kv->pair_len[list / 2]) {
        return false;
    }
    for (uint32_t i = first / tokens; i <= (end - 1) / tokens; i++) {
        if (table[tr_kv_list_entry(kv, list, i)] < 0) {
            return false;
        }
    }
    return true;
}

bool
tr_kv_seq_valid(const tr_kv_view_t *kv, const tr_kv_seq_t *seq)
{
    if (seq->n_lists > TR_KV_LISTS_MAX) {
        return false;
    }
    for (uint32_t i = 0; i < seq->n_lists; i++) {
        if (seq->list_layout[i] == 0 || seq->list_layout[i] >= kv->n_layouts) {
            return false;
        }
    }
    return seq->window == 0
           || (seq->window_layout != 0 && seq->window_layout < kv->n_layouts
               && !kv->layout[seq->window_layout].level.by_channel
               && seq->base - seq->window_from <= seq->window
               && seq->window_from <= seq->base);
}

void
tr_kv_page_clear(uint8_t *page, const tr_kv_layout_t *l, uint64_t page_bytes)
{
    uint32_t end = l->value + l->tokens * l->head_dim * l->level.value_bits / 8;

    if (l->key_meta) {
        memset(page + l->key_meta, 0, l->value - l->key_meta);
    }
    memset(page + end, 0, page_bytes - end);
}

float
tr_kv_score(tr_kv_place_t p)
{
    float score = 0;

    if (p.layout->level.scored) {
        memcpy(&score, p.page + p.layout->score + 4 * p.at, 4);
    }
    return score;
}

uint32_t
tr_kv_position(tr_kv_place_t p)
{
    uint32_t position = 0;

    if (p.layout->position) {
        memcpy(&position, p.page + p.layout->position + 4 * p.at, 4);
    }
    return position;
}

void
tr_kv_mark(tr_kv_place_t p, float score, uint32_t position)
{
    if (p.layout->level.scored) {
        memcpy(p.page + p.layout->score + 4 * p.at, &score, 4);
    }
    if (p.layout->position) {
        memcpy(p.page + p.layout->position + 4 * p.at, &position, 4);
    }
}
