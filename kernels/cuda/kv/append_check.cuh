/*
 * append_check.cuh: the arguments of a launch that stores a step, where a
 * head's tokens are, and which places and moves are allowed (kernels.h,
 * kv_append).
 */
#ifndef TR_CUDA_APPEND_CHECK_CUH
#define TR_CUDA_APPEND_CHECK_CUH

#include "kernels/cuda/device.h"
#include "token.cuh"

/* What of a step is done: a layer's tokens and their moves; the moves of all
 * layers; the tokens of a layer whose moves were done. */
typedef enum { ALL_OF_IT, MOVES, TOKENS } append_part_t;

/* Queries to be rotated in the same launch, and biases; NULL: none. */
typedef struct {
    void *q; /* in.type, rows of in.ld */
    const float *q_bias, *k_bias, *v_bias;
    const float *angles;
    const float *k_shift; /* with `keys`: what they are given then */
    uint32_t n;           /* query heads of a row; 0: none are rotated */
    bool keys;            /* are, too; in.angles is NULL */
    bool hadamard;        /* with `keys`: then R takes both */
} append_heads_t;

typedef struct {
    tr_kv_view_t kv; /* its layouts are below */
    tr_kv_layout_t layout[TR_KV_LAYOUTS_MAX];
    tr_rows_t rows;
    tr_cuda_keys_t in; /* its heads are below */
    append_heads_t heads;
    append_part_t part;
    uint32_t layer; /* the first */
    bool fast;      /* head size, type and addresses are those of
                     * append_fast.cuh */
    uint32_t *refused;
} append_args_t;

/* A head's side on its way in. */
typedef struct {
    const append_args_t *a;
    warp_t w;
    side_t side;
    uint32_t row, kv_head, pos;
    uint32_t first, end; /* rows of its sequence */
    const tr_kv_seq_t *seq;
    const int32_t *table;
    const uint32_t *count;
    const tr_kv_move_t *move;
    token_smem_t *smem; /* not of append_fast.cuh */
} append_t;

/* ---- places ------------------------------------------------------------- */

/* Entry i of a part of the row, in which it must be, and have a page. */
TR_DEVICE bool
entry_has(const append_t *t, uint32_t at, int32_t step, uint32_t len,
          uint32_t i)
{
    return i < len && t->table[(int64_t) at + (int64_t) i * step] >= 0;
}

TR_DEVICE bool
tier_has(const append_t *t, uint32_t tier, uint32_t index)
{
    const tr_kv_view_t *kv = &t->a->kv;

    return entry_has(t, tr_kv_tier_entry(kv, tier, 0), tier % 2 == 0 ? 1 : -1,
                     kv->pair_len[tier / 2],
                     index / t->a->layout[t->seq->tier_layout[tier]].tokens);
}

TR_DEVICE bool
window_has(const append_t *t, uint32_t slot)
{
    const tr_kv_view_t *kv = &t->a->kv;

    return entry_has(t, kv->at_window, 1, kv->at_pair[0] - kv->at_window,
                     slot / t->a->layout[t->seq->window_layout].tokens);
}

TR_DEVICE place_t
tier_place(const append_t *t, uint32_t tier, uint32_t index)
{
    const tr_kv_view_t *kv = &t->a->kv;
    const tr_kv_layout_t *l = &t->a->layout[t->seq->tier_layout[tier]];
    uint32_t entry = tr_kv_tier_entry(kv, tier, index / l->tokens);
    place_t p = { tr_kv_page_at(kv, t->table[entry]), l, index % l->tokens };

    return p;
}

TR_DEVICE place_t
window_place(const append_t *t, uint32_t slot)
{
    const tr_kv_view_t *kv = &t->a->kv;
    const tr_kv_layout_t *l = &t->a->layout[t->seq->window_layout];
    uint32_t entry = kv->at_window + slot / l->tokens;
    place_t p = { tr_kv_page_at(kv, t->table[entry]), l, slot % l->tokens };

    return p;
}

/* ---- what is refused ---------------------------------------------------- */

/* Are the layouts of a sequence that has tiers such that tokens can go
 * there? */
TR_DEVICE bool
seq_valid(const tr_kv_layout_t *layout, uint32_t n_layouts,
          const tr_kv_seq_t *seq)
{
    bool ok = seq->n_tiers <= TR_KV_TIERS_MAX;

#pragma unroll
    for (uint32_t i = 0; i < TR_KV_TIERS_MAX; i++) { /* loaded together */
        uint32_t l = seq->tier_layout[i];

        ok = ok && (i >= seq->n_tiers || (l != 0 && l < n_layouts));
    }
    return ok
           && (seq->window == 0
                   ? seq->sinks == 0
                   : (seq->window_layout != 0 && seq->window_layout < n_layouts
                      && !layout[seq->window_layout].level.by_channel
                      && seq->base - seq->window_from <= seq->window
                      && seq->sinks <= seq->window_from
                      && seq->window_from <= seq->base));
}

/* May n tokens of layout `from` (NULL: new) go to tier `to`, from `index`? */
TR_DEVICE bool
target_valid(const append_t *t, const tr_kv_layout_t *from, int to,
             uint32_t index, uint32_t n)
{
    const tr_kv_layout_t *l;

    if (to == TR_KV_NOWHERE) {
        return true;
    }
    if (to < 0 || to >= t->seq->n_tiers) {
        return false;
    }
    l = &t->a->layout[t->seq->tier_layout[to]];
    if (l->level.by_channel
        && (n != TR_KV_CHANNEL_TOKENS || index % TR_KV_CHANNEL_TOKENS != 0)) {
        return false;
    }
    if ((from != NULL && !token_goes(from, l)) || n > t->count[to]
        || index > t->count[to] - n) {
        return false;
    }
    for (uint32_t i = 0; i < n; i++) {
        if (!tier_has(t, (uint32_t) to, index + i)) {
            return false;
        }
    }
    return true;
}

TR_DEVICE bool
candidate_valid(const append_t *t)
{
    const tr_kv_move_t *m = t->move;
    const tr_kv_layout_t *l;

    if (m->candidate_from == TR_KV_STAYS) {
        return true;
    }
    if (m->candidate_from < 0 || m->candidate_from >= t->seq->n_tiers) {
        return false;
    }
    l = &t->a->layout[t->seq->tier_layout[m->candidate_from]];
    return !l->level.by_channel && m->candidate_index < UINT32_MAX
           && tier_has(t, (uint32_t) m->candidate_from, m->candidate_index)
           && target_valid(t, l, m->candidate_to, m->candidate_target, 1);
}

/* Is there a place for the token itself? */
TR_DEVICE bool
token_valid(const append_t *t)
{
    const tr_kv_move_t *m = t->move;

    return t->seq->window == 0
               ? m->leaves == 1 && target_valid(t, NULL, m->to, m->index, 1)
               : window_has(t, tr_kv_window_entry(t->seq, t->pos));
}

TR_DEVICE bool
move_valid(const append_t *t)
{
    const tr_kv_move_t *m = t->move;
    uint32_t window = t->seq->window;

    if (!candidate_valid(t)) {
        return false;
    }
    if (window == 0) {
        return true;
    }
    if (m->to == TR_KV_STAYS || m->to == TR_KV_NOWHERE) {
        return true;
    }
    /* who leaves was in the ring before this step */
    if (m->leaves == 0 || m->leaves > TR_KV_CHANNEL_TOKENS || m->leaves > window
        || m->leave_pos >= t->pos || t->pos - m->leave_pos < m->leaves
        || t->pos - m->leave_pos > window) {
        return false;
    }
    for (uint32_t i = 0; i < m->leaves; i++) {
        if (!window_has(t, tr_kv_window_entry(t->seq, m->leave_pos + i))) {
            return false;
        }
    }
    return target_valid(t, &t->a->layout[t->seq->window_layout], m->to,
                        m->index, m->leaves);
}

#endif
