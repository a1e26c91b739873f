/*
 * append.cuh: one row's key or value of one head into the cache, by a warp; the
 * counterpart of kernels/cpu/kv/kv_append.c.
 *
 * A head's key and its value are two warps' (token.cuh).  Both look at the
 * head's move and both find it allowed or not.  Rows at uncompressed positions
 * are independent, but for a page's minmax: the key's warp whose row begins a
 * page, or a sequence, makes it, from the keys of all rows of that page.
 */
#ifndef TR_CUDA_APPEND_CUH
#define TR_CUDA_APPEND_CUH

#include "append_check.cuh"
#include "append_heads.cuh"

/* ---- pages and statistics ----------------------------------------------- */

/* Clears the side's part of a new page. */
TR_DEVICE void
page_clear(const append_t *t, place_t p)
{
    tokens_clear(t->w, p.page, p.layout, t->side, 0, p.layout->tokens,
                 t->a->kv.page_bytes);
    lanes_sync(t->w);
}

/* The place that a tier gives to n tokens from `index` on; its page is new when
 * they are all that it holds. */
TR_DEVICE place_t
tier_enter(const append_t *t, uint32_t tier, uint32_t index, uint32_t n)
{
    place_t p = tier_place(t, tier, index);

    if (p.at == 0 && index + n == t->count[tier]) {
        page_clear(t, p);
    }
    return p;
}

/* The value's warp keeps scores and positions. */
TR_DEVICE void
put_stats(const append_t *t, place_t p, float score, uint32_t position)
{
    if (t->side == VALUE && t->w.lane == 0) {
        token_put_stats(p, score, position);
    }
}

/* ---- the row's numbers -------------------------------------------------- */

/* Dimension d of the row's key, rotated, or of its value. */
TR_DEVICE float
row_number(const append_t *t, uint32_t row, uint32_t d)
{
    const tr_cuda_keys_t *in = &t->a->in;
    uint32_t dim = t->a->kv.head_dim, half = dim / 2, i = d % half;
    uint32_t other = d < half ? half + d : i;
    size_t at = row * in->ld + (size_t) t->kv_head * dim;
    const float *cosine = in->angles + (size_t) row * dim; /* if any */
    const float *bias = t->side == KEY ? t->a->heads.k_bias
                                       : t->a->heads.v_bias;
    float x = number_load(t->side == KEY ? in->k : in->v, at + d, in->type), y;

    if (bias != NULL) {
        x = rounded(x + bias[t->kv_head * dim + d], in->type);
    }
    if (t->side == VALUE || in->angles == NULL) {
        return x;
    }
    y = number_load(in->k, at + other, in->type);
    if (bias != NULL) {
        y = rounded(y + bias[t->kv_head * dim + other], in->type);
    }
    x = mul_rn(x, cosine[i]);
    y = mul_rn(y, cosine[half + i]);
    return add_rn(x, d < half ? -y : y);
}

TR_DEVICE void
row_load(const append_t *t)
{
    uint32_t dim = t->a->kv.head_dim, lanes = t->w.lanes;

    if (t->side == KEY && t->a->heads.keys) {
        heads_key(t, t->smem->x + t->w.lane * 4);
        lanes_sync(t->w);
        return;
    }
    for (uint32_t d = t->w.lane; d < dim; d += AT_ONCE * lanes) {
        float x[AT_ONCE];

#pragma unroll
        for (uint32_t k = 0; k < AT_ONCE; k++) {
            x[k] = d + k * lanes < dim ? row_number(t, t->row, d + k * lanes)
                                       : 0;
        }
#pragma unroll
        for (uint32_t k = 0; k < AT_ONCE; k++) {
            if (d + k * lanes < dim) {
                t->smem->x[d + k * lanes] = x[k];
            }
        }
    }
}

/* ---- uncompressed rows -------------------------------------------------- */

/* Smallest and largest key by channel of the rows from this one on that belong
 * to the same page, in order; the page's first begins them. */
TR_DEVICE void
minmax_make(const append_t *t, place_t p, uint32_t end)
{
    uint32_t dim = t->a->kv.head_dim, n = p.layout->tokens - p.at;
    uint16_t *minmax = (uint16_t *) (p.page + p.layout->minmax);

    n = n < end - t->row ? n : end - t->row;
    for (uint32_t d = t->w.lane; d < dim; d += t->w.lanes) {
        uint16_t lo = minmax[d], hi = minmax[dim + d];

        for (uint32_t i = 0; i < n; i++) {
            uint16_t x = half_of(row_number(t, t->row + i, d));

            if (p.at + i == 0) {
                lo = hi = x;
            }
            lo = float_of(x) < float_of(lo) ? x : lo;
            hi = float_of(x) > float_of(hi) ? x : hi;
        }
        minmax[d] = lo;
        minmax[dim + d] = hi;
    }
}

/* `first`, `end`: the rows of the sequence. */
TR_DEVICE void
append_uncompressed(const append_t *t, uint32_t first, uint32_t end)
{
    const tr_kv_layout_t *l = &t->a->layout[0];
    uint32_t index = t->pos - t->seq->base;
    place_t p = { NULL, l, index % l->tokens };

    p.page = tr_kv_page_at(&t->a->kv, t->table[index / l->tokens]);
    side_put(t->w, p, t->side, t->smem);
    put_stats(t, p, 0, t->pos);
    if (t->side == VALUE && l->recent && t->w.lane == 0) {
        ((float *) (p.page + l->recent))[p.at] = 0;
    }
    if (t->side == KEY && l->minmax && (t->row == first || p.at == 0)) {
        minmax_make(t, p, end);
    }
}

/* ---- moves -------------------------------------------------------------- */

TR_DEVICE void
candidate_move(const append_t *t)
{
    const tr_kv_move_t *m = t->move;
    place_t from = tier_place(t, (uint32_t) m->candidate_from,
                              m->candidate_index);
    float score = token_score(from);
    uint32_t position = token_position(from);
    place_t to = tier_enter(t, (uint32_t) m->candidate_to, m->candidate_target,
                            1);

    side_move(t->w, from, to, t->side, t->smem);
    put_stats(t, to, score, position);
    lanes_sync(t->w);
}

TR_DEVICE void
window_leave(const append_t *t)
{
    const tr_kv_move_t *m = t->move;
    uint32_t tier = (uint32_t) m->to;
    place_t to = tier_enter(t, tier, m->index, m->leaves);
    bool tile = to.layout->level.by_channel && t->side == KEY;

    if (tile) {
        for (uint32_t i = t->w.lane; i < m->leaves; i += t->w.lanes) {
            t->smem->from[i] = window_place(
                t, tr_kv_window_entry(t->seq, m->leave_pos + i));
        }
        lanes_sync(t->w);
        tile_move(t->w, to, t->smem);
    }
    for (uint32_t i = 0; i < m->leaves; i++) {
        place_t from = window_place(t, tr_kv_window_entry(t->seq,
                                                          m->leave_pos + i));

        to = tier_place(t, tier, m->index + i);
        if (!tile) {
            side_move(t->w, from, to, t->side, t->smem);
        }
        put_stats(t, to, token_score(from), m->leave_pos + i);
    }
    lanes_sync(t->w);
}

TR_DEVICE void
window_enter(const append_t *t)
{
    uint32_t window = t->seq->window;
    uint32_t slot = (t->pos - t->seq->sinks) % window;
    place_t p = window_place(t, tr_kv_window_entry(t->seq, t->pos));
    /* of a page without sinks: where the page's slots end, and how long ago the
     * last was written: when that has left the window, the page is new or as
     * good as new */
    uint32_t end = slot - p.at + p.layout->tokens;
    uint32_t ago;

    end = end < window ? end : window;
    ago = slot + 1 + window - end;
    if (p.at == 0 && t->pos - t->seq->window_from < ago) {
        page_clear(t, p);
    }
    row_load(t);
    side_put(t->w, p, t->side, t->smem);
    put_stats(t, p, 0, t->pos);
}

TR_DEVICE void
append_moves(const append_t *t)
{
    const tr_kv_move_t *m = t->move;

    if (m->candidate_from >= 0 && m->candidate_to >= 0) {
        candidate_move(t);
    }
    if (m->to >= 0 && t->seq->window != 0) {
        window_leave(t);
    }
}

TR_DEVICE void
append_token(const append_t *t)
{
    const tr_kv_move_t *m = t->move;

    if (t->seq->window != 0) {
        window_enter(t);
    } else if (m->to >= 0) {
        place_t p = tier_enter(t, (uint32_t) m->to, m->index, 1);

        row_load(t);
        side_put(t->w, p, t->side, t->smem);
        put_stats(t, p, 0, t->pos);
    }
}

/* ---- a warp's row and head ---------------------------------------------- */

/* The last i with starts[i] <= x, in [0, n). */
TR_DEVICE uint32_t
seq_of(const uint32_t *starts, uint32_t n, uint32_t x)
{
    uint32_t lo = 0, hi = n;

    while (hi - lo > 1) {
        uint32_t mid = lo + (hi - lo) / 2;

        if (starts[mid] <= x) {
            lo = mid;
        } else {
            hi = mid;
        }
    }
    return lo;
}

/* Where a row's head is; false: nothing is to be done.  What this reads, and
 * fast_target after it, is older than the launch before this one. */
TR_DEVICE bool
append_open(append_t *t, const append_args_t *a, uint32_t layer)
{
    const tr_rows_t *rows = &a->rows;
    uint32_t s = t->row;
    int32_t slot = -1;
    size_t head;

    t->a = a;
    t->first = t->end = 0;
    t->pos = rows->row_pos[t->row];
    if (s < rows->n_seqs) { /* one row each, it seems: asked for together */
        t->first = rows->seq_row[s];
        t->end = rows->seq_row[s + 1];
        slot = rows->seq_slot[s];
    }
    if (t->first != t->row || t->end <= t->row) {
        s = seq_of(rows->seq_row, rows->n_seqs, t->row);
        t->first = rows->seq_row[s];
        t->end = rows->seq_row[s + 1];
        slot = rows->seq_slot[s];
    }
    if (slot < 0 || t->row < t->first || t->row >= t->end) {
        return false;
    }
    head = tr_kv_head(&a->kv, slot, layer, t->kv_head);
    t->seq = tr_kv_seq_of(&a->kv, slot, layer);
    t->table = a->kv.tables + head * a->kv.table_len;
    t->count = a->kv.count + head * TR_KV_TIERS_MAX;
    t->move = &a->kv.move[head];
    return true;
}

/* A token of a compressed sequence, the only row of it: false when it is not
 * allowed. */
TR_DEVICE bool
append_compressed(const append_t *t)
{
    append_part_t part = t->a->part;

    if (t->end - t->first != 1 || t->pos + 1 != t->seq->base
        || t->seq->n_tiers == 0
        || !seq_valid(t->a->layout, t->a->kv.n_layouts, t->seq)
        || !token_valid(t) || (part != TOKENS && !move_valid(t))) {
        return false;
    }
    if (part != TOKENS) {
        append_moves(t);
    }
    if (part != MOVES) {
        append_token(t);
    }
    return true;
}

/* All that can come, and what is refused. */
TR_DEVICE void
append_any(const append_t *t)
{
    const append_args_t *a = t->a;
    bool valid = true;

    if (t->pos < t->seq->base) {
        valid = append_compressed(t);
    } else if (a->part != MOVES) {
        valid = entry_has(t, 0, 1, a->kv.at_window,
                          (t->pos - t->seq->base) / a->layout[0].tokens);
        if (valid) {
            row_load(t);
            append_uncompressed(t, t->first, t->end);
        }
    }
    if (!valid && t->side == KEY && t->w.lane == 0 && a->refused != NULL) {
        atomicAdd(a->refused, 1);
    }
}

#endif
