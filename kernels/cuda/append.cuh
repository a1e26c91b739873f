/*
 * append.cuh: one row's key or value of one head into the cache, by a warp; the
 * counterpart of cpu/kv_append.c.
 *
 * A head's key and its value are two warps' (token.cuh).  Both look at the
 * head's move and both find it allowed or not.  Rows at dense positions are
 * independent, but for a page's digest: the key's warp whose row begins a page,
 * or a sequence, makes it, from the keys of all rows of that page.
 */
#ifndef TR_CUDA_APPEND_CUH
#define TR_CUDA_APPEND_CUH

#include "store.h"
#include "token.cuh"

/* What of a step is done: a layer's tokens and their moves; the moves of all
 * layers; the tokens of a layer whose moves were done. */
typedef enum { ALL_OF_IT, MOVES, TOKENS } append_part_t;

typedef struct {
    tr_kv_view_t kv; /* its layouts are below */
    tr_kv_layout_t layout[TR_KV_LAYOUTS_MAX];
    tr_rows_t rows;
    tr_cuda_keys_t in;
    append_part_t part;
    uint32_t layer; /* the first */
    uint32_t *refused;
} append_args_t;

/* A head's side on its way in. */
typedef struct {
    const append_args_t *a;
    warp_t w;
    token_room_t *room;
    side_t side;
    uint32_t row, pos, list;
    const tr_kv_seq_t *seq;
    const int32_t *table;
    const uint32_t *count;
    const tr_kv_move_t *move;
} append_t;

/* ---- places ------------------------------------------------------------- */

/* Entry i of a part of the row, in which it must be, and have a page. */
TR_HD bool
entry_has(const append_t *t, uint32_t at, int32_t step, uint32_t len,
          uint32_t i)
{
    return i < len && t->table[(int64_t) at + (int64_t) i * step] >= 0;
}

TR_HD bool
list_has(const append_t *t, uint32_t list, uint32_t index)
{
    const tr_kv_view_t *kv = &t->a->kv;

    return entry_has(t, tr_kv_list_entry(kv, list, 0), list % 2 == 0 ? 1 : -1,
                     kv->pair_len[list / 2],
                     index / t->a->layout[t->seq->list_layout[list]].tokens);
}

TR_HD bool
window_has(const append_t *t, uint32_t slot)
{
    const tr_kv_view_t *kv = &t->a->kv;

    return entry_has(t, kv->at_window, 1, kv->at_pair[0] - kv->at_window,
                     slot / t->a->layout[t->seq->window_layout].tokens);
}

TR_HD place_t
list_place(const append_t *t, uint32_t list, uint32_t index)
{
    const tr_kv_view_t *kv = &t->a->kv;
    const tr_kv_layout_t *l = &t->a->layout[t->seq->list_layout[list]];
    uint32_t entry = tr_kv_list_entry(kv, list, index / l->tokens);
    place_t p = { tr_kv_page_at(kv, t->table[entry]), l, index % l->tokens };

    return p;
}

TR_HD place_t
window_place(const append_t *t, uint32_t slot)
{
    const tr_kv_view_t *kv = &t->a->kv;
    const tr_kv_layout_t *l = &t->a->layout[t->seq->window_layout];
    uint32_t entry = kv->at_window + slot / l->tokens;
    place_t p = { tr_kv_page_at(kv, t->table[entry]), l, slot % l->tokens };

    return p;
}

/* Clears the side's part of a new page. */
TR_HD void
page_clear(const append_t *t, place_t p)
{
    tokens_clear(t->w, p.page, p.layout, t->side, 0, p.layout->tokens,
                 t->a->kv.page_bytes);
    lanes_sync(t->w);
}

/* The place that a list gives to n tokens from `index` on; its page is new when
 * they are all that it holds. */
TR_HD place_t
list_enter(const append_t *t, uint32_t list, uint32_t index, uint32_t n)
{
    place_t p = list_place(t, list, index);

    if (p.at == 0 && index + n == t->count[list]) {
        page_clear(t, p);
    }
    return p;
}

/* The value's warp keeps scores and positions. */
TR_HD void
mark(const append_t *t, place_t p, float score, uint32_t position)
{
    if (t->side == VALUE && t->w.lane == 0) {
        token_mark(p, score, position);
    }
}

/* ---- the row's numbers -------------------------------------------------- */

/* Dimension d of the row's key, rotated, or of its value. */
TR_HD float
row_number(const append_t *t, uint32_t row, uint32_t d)
{
    const tr_cuda_keys_t *in = &t->a->in;
    uint32_t dim = t->a->kv.head_dim, half = dim / 2, i = d % half;
    size_t at = row * in->ld + (size_t) t->list * dim;
    const float *cosine = in->angles + (size_t) row * dim;
    float x, y;

    if (t->side == VALUE) {
        return number_load(in->v, at + d, in->type);
    }
    x = number_load(in->k, at + d, in->type);
    y = number_load(in->k, at + (d < half ? half + d : i), in->type);
    x = mul_rn(x, cosine[i]);
    y = mul_rn(y, cosine[half + i]);
    return add_rn(x, d < half ? -y : y);
}

TR_HD void
row_load(const append_t *t)
{
    uint32_t dim = t->a->kv.head_dim, lanes = t->w.lanes;

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
                t->room->x[d + k * lanes] = x[k];
            }
        }
    }
}

/* Asks for a row's numbers, before anything is known of its place. */
TR_HD void
row_prefetch(const append_args_t *a, warp_t w, side_t side, uint32_t row,
             uint32_t list)
{
    const tr_cuda_keys_t *in = &a->in;
    uint32_t dim = a->kv.head_dim, size = in->type == TR_F32 ? 4 : 2;
    const uint8_t *x = (const uint8_t *) (side == KEY ? in->k : in->v)
                       + (row * in->ld + (size_t) list * dim) * size;

    for (uint32_t i = 32 * w.lane; i < dim * size; i += 32 * w.lanes) {
        lanes_prefetch(x + i);
    }
    for (uint32_t i = 32 * w.lane; side == KEY && i < dim * 4;
         i += 32 * w.lanes) {
        lanes_prefetch((const uint8_t *) (in->angles + (size_t) row * dim) + i);
    }
}

/* ---- dense rows --------------------------------------------------------- */

/* Smallest and largest key by channel of the rows from this one on that belong
 * to the same page, in order; the page's first begins them. */
TR_HD void
digest_make(const append_t *t, place_t p, uint32_t end)
{
    uint32_t dim = t->a->kv.head_dim, n = p.layout->tokens - p.at;
    uint16_t *digest = (uint16_t *) (p.page + p.layout->digest);

    n = n < end - t->row ? n : end - t->row;
    for (uint32_t d = t->w.lane; d < dim; d += t->w.lanes) {
        uint16_t lo = digest[d], hi = digest[dim + d];

        for (uint32_t i = 0; i < n; i++) {
            uint16_t x = half_of(row_number(t, t->row + i, d));

            if (p.at + i == 0) {
                lo = hi = x;
            }
            lo = float_of(x) < float_of(lo) ? x : lo;
            hi = float_of(x) > float_of(hi) ? x : hi;
        }
        digest[d] = lo;
        digest[dim + d] = hi;
    }
}

/* `first`, `end`: the rows of the sequence. */
TR_HD void
append_dense(const append_t *t, uint32_t first, uint32_t end)
{
    const tr_kv_layout_t *l = &t->a->layout[0];
    uint32_t index = t->pos - t->seq->base;
    place_t p = { NULL, l, index % l->tokens };

    p.page = tr_kv_page_at(&t->a->kv, t->table[index / l->tokens]);
    side_put(t->w, p, t->side, t->room);
    mark(t, p, 0, t->pos);
    if (t->side == VALUE && l->recent && t->w.lane == 0) {
        ((float *) (p.page + l->recent))[p.at] = 0;
    }
    if (t->side == KEY && l->digest && (t->row == first || p.at == 0)) {
        digest_make(t, p, end);
    }
}

/* ---- moves -------------------------------------------------------------- */

TR_HD void
victim_move(const append_t *t)
{
    const tr_kv_move_t *m = t->move;
    place_t from = list_place(t, (uint32_t) m->victim_from, m->victim_index);
    float score = token_score(from);
    uint32_t position = token_position(from);
    place_t to = list_enter(t, (uint32_t) m->victim_to, m->victim_target, 1);

    side_move(t->w, from, to, t->side, t->room);
    mark(t, to, score, position);
    lanes_sync(t->w);
}

TR_HD void
window_leave(const append_t *t)
{
    const tr_kv_move_t *m = t->move;
    uint32_t list = (uint32_t) m->to;
    place_t to = list_enter(t, list, m->index, m->leaves);
    bool tile = to.layout->level.by_channel && t->side == KEY;

    if (tile) {
        for (uint32_t i = t->w.lane; i < m->leaves; i += t->w.lanes) {
            t->room->from[i] = window_place(t, (m->leave_pos + i)
                                                   % t->seq->window);
        }
        lanes_sync(t->w);
        tile_move(t->w, to, t->room);
    }
    for (uint32_t i = 0; i < m->leaves; i++) {
        place_t from = window_place(t, (m->leave_pos + i) % t->seq->window);

        to = list_place(t, list, m->index + i);
        if (!tile) {
            side_move(t->w, from, to, t->side, t->room);
        }
        mark(t, to, token_score(from), m->leave_pos + i);
    }
    lanes_sync(t->w);
}

TR_HD void
window_enter(const append_t *t)
{
    uint32_t window = t->seq->window, slot = t->pos % window;
    place_t p = window_place(t, slot);
    /* where the page's slots end, and how long ago the last was written: when
     * that has left the window, the page is new or as good as new */
    uint32_t end = slot - p.at + p.layout->tokens;
    uint32_t ago;

    end = end < window ? end : window;
    ago = slot + 1 + window - end;
    if (p.at == 0 && t->pos - t->seq->window_from < ago) {
        page_clear(t, p);
    }
    row_load(t);
    side_put(t->w, p, t->side, t->room);
    mark(t, p, 0, t->pos);
}

TR_HD void
append_moves(const append_t *t)
{
    const tr_kv_move_t *m = t->move;

    if (m->victim_from >= 0 && m->victim_to >= 0) {
        victim_move(t);
    }
    if (m->to >= 0 && t->seq->window != 0) {
        window_leave(t);
    }
}

TR_HD void
append_token(const append_t *t)
{
    const tr_kv_move_t *m = t->move;

    if (t->seq->window != 0) {
        window_enter(t);
    } else if (m->to >= 0) {
        place_t p = list_enter(t, (uint32_t) m->to, m->index, 1);

        row_load(t);
        side_put(t->w, p, t->side, t->room);
        mark(t, p, 0, t->pos);
    }
}

/* ---- what is refused ---------------------------------------------------- */

/* Are the layouts of a sequence that has lists such that tokens can go
 * there? */
TR_HD bool
seq_valid(const tr_kv_layout_t *layout, uint32_t n_layouts,
          const tr_kv_seq_t *seq)
{
    if (seq->n_lists > TR_KV_LISTS_MAX) {
        return false;
    }
    for (uint32_t i = 0; i < seq->n_lists; i++) {
        if (seq->list_layout[i] == 0 || seq->list_layout[i] >= n_layouts) {
            return false;
        }
    }
    return seq->window == 0
           || (seq->window_layout != 0 && seq->window_layout < n_layouts
               && !layout[seq->window_layout].level.by_channel
               && seq->base - seq->window_from <= seq->window
               && seq->window_from <= seq->base);
}

/* May n tokens of layout `from` (NULL: new) go to list `to`, from `index`? */
TR_HD bool
target_valid(const append_t *t, const tr_kv_layout_t *from, int to,
             uint32_t index, uint32_t n)
{
    const tr_kv_layout_t *l;

    if (to == TR_KV_NOWHERE) {
        return true;
    }
    if (to < 0 || to >= t->seq->n_lists) {
        return false;
    }
    l = &t->a->layout[t->seq->list_layout[to]];
    if (l->level.by_channel
        && (n != TR_KV_CHANNEL_TOKENS || index % TR_KV_CHANNEL_TOKENS != 0)) {
        return false;
    }
    if ((from != NULL && !token_goes(from, l)) || n > t->count[to]
        || index > t->count[to] - n) {
        return false;
    }
    for (uint32_t i = 0; i < n; i++) {
        if (!list_has(t, (uint32_t) to, index + i)) {
            return false;
        }
    }
    return true;
}

TR_HD bool
victim_valid(const append_t *t)
{
    const tr_kv_move_t *m = t->move;
    const tr_kv_layout_t *l;

    if (m->victim_from == TR_KV_STAYS) {
        return true;
    }
    if (m->victim_from < 0 || m->victim_from >= t->seq->n_lists) {
        return false;
    }
    l = &t->a->layout[t->seq->list_layout[m->victim_from]];
    return !l->level.by_channel && m->victim_index < UINT32_MAX
           && list_has(t, (uint32_t) m->victim_from, m->victim_index)
           && target_valid(t, l, m->victim_to, m->victim_target, 1);
}

/* Is there a place for the token itself? */
TR_HD bool
token_valid(const append_t *t)
{
    const tr_kv_move_t *m = t->move;

    return t->seq->window == 0
               ? m->leaves == 1 && target_valid(t, NULL, m->to, m->index, 1)
               : window_has(t, t->pos % t->seq->window);
}

TR_HD bool
move_valid(const append_t *t)
{
    const tr_kv_move_t *m = t->move;
    uint32_t window = t->seq->window;

    if (!victim_valid(t)) {
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
        if (!window_has(t, (m->leave_pos + i) % window)) {
            return false;
        }
    }
    return target_valid(t, &t->a->layout[t->seq->window_layout], m->to,
                        m->index, m->leaves);
}

/* ---- a warp's task ------------------------------------------------------ */

/* The last i with starts[i] <= x, in [0, n). */
TR_HD uint32_t
seq_of(const uint32_t *starts, uint32_t n, uint32_t x)
{
    uint32_t lo = 0, hi = n;

    if (x < n && starts[x] == x && starts[x + 1] > x) { /* one row each */
        return x;
    }

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

/* A token of a compressed sequence, the only row of it: false when it is not
 * allowed. */
TR_HD bool
append_compressed(append_t *t, size_t head, uint32_t rows)
{
    append_part_t part = t->a->part;

    t->count = t->a->kv.count + head * TR_KV_LISTS_MAX;
    t->move = &t->a->kv.move[head];
    if (rows != 1 || t->pos + 1 != t->seq->base || t->seq->n_lists == 0
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

/* Task i: layer, row, list and side, side fastest. */
TR_HD void
append_task(const append_args_t *a, warp_t w, token_room_t *room, uint32_t i)
{
    uint32_t list = i / 2 % a->kv.lists, row = i / 2 / a->kv.lists;
    append_t t = { a, w, room, i % 2 == 0 ? KEY : VALUE };
    uint32_t layer = a->layer, s, first, end;
    size_t head;
    bool valid = true;
    int32_t slot;

    if (a->part == MOVES) {
        layer += row / a->rows.n_rows;
        row %= a->rows.n_rows;
    } else {
        row_prefetch(a, w, t.side, row, list);
    }
    s = seq_of(a->rows.seq_row, a->rows.n_seqs, row);
    first = a->rows.seq_row[s];
    end = a->rows.seq_row[s + 1];
    slot = a->rows.seq_slot[s];
    if (slot < 0 || row >= end) {
        return;
    }
    head = tr_kv_head(&a->kv, slot, layer, list);
    t.row = row;
    t.pos = a->rows.row_pos[row];
    t.list = list;
    t.seq = &a->kv.seq[slot];
    t.table = a->kv.tables + head * a->kv.table_len;
    if (t.pos < t.seq->base) {
        valid = append_compressed(&t, head, end - first);
    } else if (a->part != MOVES) {
        valid = entry_has(&t, 0, 1, a->kv.at_window,
                          (t.pos - t.seq->base) / a->layout[0].tokens);
        if (valid) {
            row_load(&t);
            append_dense(&t, first, end);
        }
    }
    if (!valid && t.side == KEY && w.lane == 0 && a->refused != NULL) {
#ifdef __CUDA_ARCH__
        atomicAdd(a->refused, 1);
#else
        ++*a->refused;
#endif
    }
}

#endif
