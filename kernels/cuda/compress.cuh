/*
 * compress.cuh: everything that slots cache, to the places that their policies
 * chose (kernels.h, tr_kv_compress_t); the counterpart of cpu/kv_compress.c.
 *
 *   compress_index   a block for each job and head looks whether the choice can
 *                    be followed, and turns it round: which source each place
 *                    of a list gets
 *   compress_tile    a warp fills 16 places (a tile of 32 by channel) of one
 *                    side, and clears what their page has beside codes
 *
 * A tile has one warp, so that codes which share bytes have one writer, and
 * tokens by channel meet their tile.
 */
#ifndef TR_CUDA_COMPRESS_CUH
#define TR_CUDA_COMPRESS_CUH

#include "append.cuh"

#define INDEX_LANES 256u
#define TARGETS (TR_KV_LISTS_MAX + 1u) /* lists, then the window */

/* What the index leaves of a head. */
typedef struct {
    uint32_t total[TR_KV_LISTS_MAX]; /* tokens that go to each list */
} compress_head_t;

typedef struct {
    tr_kv_view_t kv; /* its layouts are below */
    tr_kv_layout_t layout[TR_KV_LAYOUTS_MAX];
    const tr_kv_compress_t *jobs;
    uint32_t max_len;
    uint32_t *refused;
    compress_head_t *head; /* [n][layers * lists] */
    uint32_t *order;       /* [n][layers * lists][max_len] sources, by list */
} compress_args_t;

/* What the lanes of a block share. */
typedef struct {
    uint32_t count[INDEX_LANES][TARGETS]; /* then: of all lanes before */
    uint32_t total[TARGETS];
    uint32_t bad;
} index_room_t;

/* A head of a job. */
typedef struct {
    const compress_args_t *a;
    const tr_kv_compress_t *job;
    const tr_kv_seq_t *from, *to;
    const int32_t *table, *to_table;
    const int8_t *dest;
    const uint32_t *have;
    uint32_t listed, windowed, all; /* sources: in lists, in the window, all */
    compress_head_t *head;
    uint32_t *order;
} compress_t;

TR_HD void
flag_raise(uint32_t *flag)
{
#ifdef __CUDA_ARCH__
    atomicOr(flag, 1u);
#else
    *flag |= 1;
#endif
}

/* False when the job is not allowed, before any token is looked at. */
TR_HD bool
compress_open(compress_t *c, const compress_args_t *a, uint32_t j, uint32_t h)
{
    const tr_kv_view_t *kv = &a->kv;
    uint32_t heads = kv->layers * kv->lists;
    size_t head, mine = (size_t) j * heads + h;
    uint64_t listed = 0;

    c->a = a;
    c->job = &a->jobs[j];
    head = (size_t) c->job->slot * heads + h;
    c->from = &kv->seq[c->job->slot];
    c->to = c->job->to;
    c->table = kv->tables + head * kv->table_len;
    c->to_table = c->job->to_tables + (size_t) h * kv->table_len;
    c->dest = c->job->dest + h * c->job->dest_len;
    c->have = kv->count + head * TR_KV_LISTS_MAX;
    c->head = a->head + mine;
    c->order = a->order + mine * a->max_len;
    if (!seq_valid(a->layout, kv->n_layouts, c->from)
        || !seq_valid(a->layout, kv->n_layouts, c->to) || c->to->n_lists == 0
        || c->from->base > UINT32_MAX - c->job->n_dense
        || c->to->base != c->from->base + c->job->n_dense
        || c->to->window_from > c->to->base) {
        return false;
    }
    for (uint32_t l = 0; l < c->from->n_lists; l++) {
        listed += c->have[l];
    }
    c->windowed = c->from->window > 0 ? c->from->base - c->from->window_from
                                      : 0;
    if (listed + c->windowed + c->job->n_dense > c->job->dest_len
        || listed + c->windowed + c->job->n_dense > a->max_len) {
        return false;
    }
    c->listed = (uint32_t) listed;
    c->all = c->listed + c->windowed + c->job->n_dense;
    return true;
}

/* ---- sources ------------------------------------------------------------ */

/* Place of source i, its position, and the score that goes along. */
TR_HD place_t
source_place(const compress_t *c, uint32_t i, uint32_t *position, float *score)
{
    const tr_kv_view_t *kv = &c->a->kv;
    place_t p = { NULL, NULL, i };
    uint32_t l = 0, entry, later;

    if (i < c->listed) {
        for (; p.at >= c->have[l]; l++) {
            p.at -= c->have[l];
        }
        p.layout = &c->a->layout[c->from->list_layout[l]];
        entry = tr_kv_list_entry(kv, l, p.at / p.layout->tokens);
    } else if (i < c->listed + c->windowed) {
        *position = c->from->window_from + (i - c->listed);
        p.at = *position % c->from->window;
        p.layout = &c->a->layout[c->from->window_layout];
        entry = kv->at_window + p.at / p.layout->tokens;
    } else {
        p.at = i - c->listed - c->windowed;
        *position = c->from->base + p.at;
        later = c->job->n_dense - 1 - p.at;
        p.layout = &c->a->layout[0];
        entry = p.at / p.layout->tokens;
    }
    p.page = tr_kv_page_at(kv, c->table[entry]);
    p.at %= p.layout->tokens;
    *score = token_score(p);
    if (i < c->listed) {
        *position = token_position(p);
    } else if (i >= c->listed + c->windowed && c->job->observe > 0) {
        /* the last queries paid it, as if all had */
        *score = p.layout->recent
                     ? tr_kv_observed(
                           ((const float *) (p.page + p.layout->recent))[p.at],
                           later, c->job->observe)
                     : 0;
    }
    return p;
}

TR_HD const tr_kv_layout_t *
source_layout(const compress_t *c, uint32_t i)
{
    uint32_t l = 0;

    if (i >= c->listed + c->windowed) {
        return &c->a->layout[0];
    }
    if (i >= c->listed) {
        return &c->a->layout[c->from->window_layout];
    }
    for (; i >= c->have[l]; l++) {
        i -= c->have[l];
    }
    return &c->a->layout[c->from->list_layout[l]];
}

/* ---- looking ------------------------------------------------------------ */

/* Where source i goes, TR_KV_LISTS_MAX for the window; TARGETS: nowhere; more:
 * that is not allowed. */
TR_HD uint32_t
source_target(const compress_t *c, uint32_t i)
{
    const tr_kv_layout_t *l = source_layout(c, i);
    const tr_kv_seq_t *to = c->to;
    int8_t dest = c->dest[i];

    if (i >= c->listed && to->window > 0) {
        uint32_t first = c->windowed > 0 ? c->from->window_from : c->from->base;

        if ((dest == TR_KV_WINDOW)
            != (first + (i - c->listed) >= to->window_from)) {
            return TARGETS + 1;
        }
    }
    if (dest == TR_KV_NOWHERE) {
        return TARGETS;
    }
    if (dest == TR_KV_WINDOW) {
        return i >= c->listed && to->window > 0
                       && token_goes(l, &c->a->layout[to->window_layout])
                   ? TR_KV_LISTS_MAX
                   : TARGETS + 1;
    }
    return dest >= 0 && dest < to->n_lists
                   && token_goes(l, &c->a->layout[to->list_layout[dest]])
               ? (uint32_t) dest
               : TARGETS + 1;
}

/* Are there pages for tokens [first, end) of a part of `len` entries? */
TR_HD bool
part_has(block_t b, const int32_t *row, int32_t step, uint32_t len,
         uint32_t tokens, uint32_t first, uint32_t end)
{
    uint32_t last;
    bool ok = true;

    if (first >= end) {
        return true;
    }
    last = (end - 1) / tokens;
    if (last >= len) {
        return false;
    }
    for (uint32_t i = first / tokens + b.lane; i <= last; i += b.lanes) {
        ok = ok && row[(int64_t) i * step] >= 0;
    }
    return ok;
}

TR_HD bool
lists_have(block_t b, const compress_t *c, const int32_t *table,
           const tr_kv_seq_t *seq, const uint32_t *n)
{
    const tr_kv_view_t *kv = &c->a->kv;
    bool ok = true;

    for (uint32_t l = 0; l < seq->n_lists; l++) {
        ok = part_has(b, table + tr_kv_list_entry(kv, l, 0),
                      l % 2 == 0 ? 1 : -1, kv->pair_len[l / 2],
                      c->a->layout[seq->list_layout[l]].tokens, 0, n[l])
             && ok;
    }
    return ok;
}

/* Positions [window_from, base) of a ring. */
TR_HD bool
window_complete(block_t b, const compress_t *c, const int32_t *table,
                const tr_kv_seq_t *seq)
{
    const tr_kv_view_t *kv = &c->a->kv;
    uint32_t n = seq->base - seq->window_from, first, turn, tokens, len;

    if (seq->window == 0 || n == 0) {
        return true;
    }
    first = seq->window_from % seq->window;
    turn = first + n > seq->window ? first + n - seq->window : 0;
    tokens = c->a->layout[seq->window_layout].tokens;
    len = kv->at_pair[0] - kv->at_window;
    return part_has(b, table + kv->at_window, 1, len, tokens, first,
                    first + n - turn)
           & part_has(b, table + kv->at_window, 1, len, tokens, 0, turn);
}

/* Counts the lane's sources by target; false: one is not allowed. */
TR_HD bool
lane_count(const compress_t *c, uint32_t first, uint32_t end, uint32_t *count)
{
    bool ok = true;

    for (uint32_t i = 0; i < TARGETS; i++) {
        count[i] = 0;
    }
    for (uint32_t i = first; i < end; i++) {
        uint32_t t = source_target(c, i);

        ok = ok && t <= TARGETS;
        if (t < TARGETS) {
            count[t]++;
        }
    }
    return ok;
}

TR_HD bool
targets_valid(block_t b, const compress_t *c, const index_room_t *room)
{
    const tr_kv_seq_t *to = c->to;
    bool ok = lists_have(b, c, c->to_table, to, room->total)
              & window_complete(b, c, c->to_table, to);

    for (uint32_t l = 0; l < to->n_lists; l++) {
        if (c->a->layout[to->list_layout[l]].level.by_channel
            && room->total[l] % TR_KV_CHANNEL_TOKENS != 0) {
            ok = false;
        }
    }
    return ok
           && (to->window == 0
               || room->total[TR_KV_LISTS_MAX] == to->base - to->window_from);
}

/* Head h of job j. */
TR_HD void
compress_index(const compress_args_t *a, block_t b, index_room_t *room,
               uint32_t j, uint32_t h)
{
    uint32_t per, first, end, *count = room->count[b.lane];
    compress_t c;

    if (a->jobs[j].slot < 0) {
        return;
    }
    if (!compress_open(&c, a, j, h)) { /* every lane finds the same */
        if (b.lane == 0) {
            flag_raise(&a->refused[j]);
        }
        return;
    }
    if (b.lane == 0) {
        room->bad = 0;
    }
    lanes_sync(b);
    per = (c.all + b.lanes - 1) / b.lanes;
    first = b.lane * per < c.all ? b.lane * per : c.all;
    end = c.all - first < per ? c.all : first + per;
    if (!lane_count(&c, first, end, count)
        || !part_has(b, c.table, 1, a->kv.at_window, a->layout[0].tokens, 0,
                     c.job->n_dense)
        || !lists_have(b, &c, c.table, c.from, c.have)
        || !window_complete(b, &c, c.table, c.from)) {
        flag_raise(&room->bad);
    }
    lanes_sync(b);
    for (uint32_t t = b.lane; t < TARGETS; t += b.lanes) {
        uint32_t sum = 0;

        for (uint32_t i = 0; i < b.lanes; i++) {
            uint32_t n = room->count[i][t];

            room->count[i][t] = sum;
            sum += n;
        }
        room->total[t] = sum;
    }
    lanes_sync(b);
    if (!targets_valid(b, &c, room)) {
        flag_raise(&room->bad);
    }
    lanes_sync(b);
    if (room->bad) {
        if (b.lane == 0) {
            flag_raise(&a->refused[j]);
        }
        return;
    }
    for (uint32_t t = 1; t < TR_KV_LISTS_MAX; t++) {
        for (uint32_t u = 0; u < t; u++) { /* lists before it */
            count[t] += room->total[u];
        }
    }
    for (uint32_t i = first; i < end; i++) {
        if (c.dest[i] >= 0) {
            c.order[count[c.dest[i]]++] = i;
        }
    }
    for (uint32_t t = b.lane; t < TR_KV_LISTS_MAX; t += b.lanes) {
        c.head->total[t] = room->total[t];
    }
}

/* ---- moving ------------------------------------------------------------- */

/* Tokens of a tile, and tiles of a page. */
TR_HD uint32_t
tile_tokens(const tr_kv_layout_t *l)
{
    return l->level.by_channel ? TR_KV_CHANNEL_TOKENS : 16;
}

TR_HD uint32_t
page_tiles(const tr_kv_layout_t *l)
{
    return (l->tokens + tile_tokens(l) - 1) / tile_tokens(l);
}

/* Clears the part of tile i of a page; `last`: and all that follows. */
TR_HD void
tile_clear(warp_t w, const compress_t *c, place_t p, side_t side, uint32_t i,
           bool last)
{
    uint32_t n = tile_tokens(p.layout), end = (i + 1) * n;

    if (last || end > p.layout->tokens) {
        end = p.layout->tokens;
    }
    tokens_clear(w, p.page, p.layout, side, i * n, end, c->a->kv.page_bytes);
    lanes_sync(w);
}

/* Moves room->from[0, n) to the places from `to` on; those without a page are
 * not there. */
TR_HD void
tile_fill(warp_t w, place_t to, uint32_t n, side_t side, token_room_t *room)
{
    lanes_sync(w);
    if (side == KEY && to.layout->level.by_channel) {
        tile_move(w, to, room);
        return;
    }
    for (uint32_t i = 0; i < n; i++, to.at++) {
        if (room->from[i].page != NULL) {
            side_move(w, room->from[i], to, side, room);
        }
    }
    lanes_sync(w);
}

/* Tile i of list l, whose sources are at c->order[first ..]. */
TR_HD void
list_tile(const compress_t *c, warp_t w, token_room_t *room, side_t side,
          uint32_t l, uint32_t i, uint32_t first)
{
    const tr_kv_layout_t *layout = &c->a->layout[c->to->list_layout[l]];
    uint32_t tiles = page_tiles(layout), page = i / tiles;
    uint32_t at = page * layout->tokens + i % tiles * tile_tokens(layout);
    uint32_t n = (page + 1) * layout->tokens, total = c->head->total[l];
    uint32_t entry = tr_kv_list_entry(&c->a->kv, l, page);
    place_t to = { tr_kv_page_at(&c->a->kv, c->to_table[entry]), layout,
                   at % layout->tokens };
    bool last;

    n = n < total ? n : total;
    last = at + tile_tokens(layout) >= n; /* that has tokens */
    n = last ? n - at : tile_tokens(layout);
    tile_clear(w, c, to, side, i % tiles, last);
    for (uint32_t k = w.lane; k < n; k += w.lanes) {
        place_t p = to;
        uint32_t position;
        float score;

        room->from[k] = source_place(c, c->order[first + at + k], &position,
                                     &score);
        p.at += k;
        if (side == VALUE) {
            token_mark(p, score, position);
        }
    }
    tile_fill(w, to, n, side, room);
}

/* Does a page of the new ring hold tokens? */
TR_HD bool
ring_page_used(const tr_kv_seq_t *to, uint32_t tokens, uint32_t page)
{
    uint32_t first = to->window_from % to->window;
    uint32_t n = to->base - to->window_from, at = page * tokens, end;

    end = at + tokens < to->window ? at + tokens : to->window;
    /* slots [first, first + n), and what of them is beyond the ring's end */
    return n > 0
           && ((at < first + n && end > first)
               || at + to->window < first + n);
}

/* Tile i of the ring. */
TR_HD void
window_tile(const compress_t *c, warp_t w, token_room_t *room, side_t side,
            uint32_t i)
{
    const tr_kv_seq_t *to = c->to;
    const tr_kv_layout_t *layout = &c->a->layout[to->window_layout];
    uint32_t tiles = page_tiles(layout), page = i / tiles;
    uint32_t at = page * layout->tokens + i % tiles * 16, n;
    uint32_t used = to->base - to->window_from;
    uint32_t first = c->windowed > 0 ? c->from->window_from : c->from->base;
    place_t dest = { NULL, layout, at % layout->tokens };

    if (!ring_page_used(to, layout->tokens, page)) {
        return;
    }
    dest.page = tr_kv_page_at(&c->a->kv,
                              c->to_table[c->a->kv.at_window + page]);
    tile_clear(w, c, dest, side, i % tiles, i % tiles == tiles - 1);
    n = (page + 1) * layout->tokens - at;
    n = n < 16 ? n : 16;
    for (uint32_t k = w.lane; k < n; k += w.lanes) {
        uint32_t age = (at + k + to->window - to->window_from % to->window)
                       % to->window;
        uint32_t position = to->window_from + age;
        place_t p = dest;
        float score;

        p.at += k;
        room->from[k].page = NULL;
        if (at + k >= to->window || age >= used) {
            continue;
        }
        room->from[k] = source_place(c, c->listed + (position - first),
                                     &position, &score);
        if (side == VALUE) {
            token_mark(p, score, position);
        }
    }
    tile_fill(w, dest, n, side, room);
}

/* Tile i of head h of job j, lists first; false: there are no more. */
TR_HD bool
compress_tile(const compress_args_t *a, warp_t w, token_room_t *room,
              side_t side, uint32_t j, uint32_t h, uint32_t i)
{
    const tr_kv_layout_t *l;
    uint32_t first = 0, tiles;
    compress_t c;

    if (a->jobs[j].slot < 0 || a->refused[j] || !compress_open(&c, a, j, h)) {
        return false;
    }
    for (uint32_t t = 0; t < c.to->n_lists; t++) {
        uint32_t n = c.head->total[t];

        l = &a->layout[c.to->list_layout[t]];
        tiles = n / l->tokens * page_tiles(l)
                + (n % l->tokens + tile_tokens(l) - 1) / tile_tokens(l);
        if (i < tiles) {
            list_tile(&c, w, room, side, t, i, first);
            return true;
        }
        i -= tiles;
        first += n;
    }
    if (c.to->window == 0) {
        return false;
    }
    l = &a->layout[c.to->window_layout];
    tiles = (c.to->window + l->tokens - 1) / l->tokens * page_tiles(l);
    if (i >= tiles) {
        return false;
    }
    window_tile(&c, w, room, side, i);
    return true;
}

#endif
