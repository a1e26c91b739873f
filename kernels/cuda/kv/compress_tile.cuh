/*
 * compress_tile.cuh: the tokens of a tile of the new pages.  See compress.cuh.
 */
#ifndef TR_CUDA_COMPRESS_TILE_CUH
#define TR_CUDA_COMPRESS_TILE_CUH

#include "compress.cuh"
#include "tile_fast.cuh"

/* ---- moving ------------------------------------------------------------- */

/* Tokens of a tile, and tiles of a page. */
TR_DEVICE uint32_t
tile_tokens(const tr_kv_layout_t *l)
{
    return l->level.by_channel ? TR_KV_CHANNEL_TOKENS : 16;
}

TR_DEVICE uint32_t
page_tiles(const tr_kv_layout_t *l)
{
    return (l->tokens + tile_tokens(l) - 1) / tile_tokens(l);
}

/* Clears the part of tile i of a page; `last`: and all that follows. */
TR_DEVICE void
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

/* Are smem->token.from[0, n) a whole tile, in order, of the same level?  So it is
 * with most of what is cut or copied (kv_manager/manager_cut.h). */
TR_DEVICE bool
tile_stays(warp_t w, place_t to, uint32_t n, const tile_smem_t *smem)
{
    const place_t *from = smem->token.from;
    uint32_t yes = 1;

    if (w.lanes != 32 || n != TR_KV_TILE || to.at % TR_KV_TILE != 0
        || to.layout->level.by_channel) {
        return false;
    }
    if (w.lane < n) {
        yes = from[w.lane].page != NULL && from[w.lane].page == from[0].page
              && from[w.lane].layout == to.layout
              && from[w.lane].at == from[0].at + w.lane
              && from[0].at % TR_KV_TILE == 0;
    }
    return lanes_min(w, yes) == 1;
}

/* Bytes that are a multiple of 16, at multiples of it. */
TR_DEVICE void
bytes_copy(warp_t w, void *to, const void *from, uint32_t n)
{
    for (uint32_t i = w.lane; i < n / 16; i += w.lanes) {
        ((uint4 *) to)[i] = ((const uint4 *) from)[i];
    }
}

/* Such a tile as it is: codes, or rows, and metadata. */
TR_DEVICE void
tile_copy(warp_t w, place_t from, place_t to, side_t side)
{
    const tr_kv_layout_t *l = to.layout;
    uint32_t bits = side_bits(l, side), n = TR_KV_TILE * l->head_dim * bits / 8;
    uint32_t part = side == KEY ? 0 : l->value;

    if (bits == 16) {
        bytes_copy(w, side_row(to, side), side_row(from, side), n);
        return;
    }
    bytes_copy(w, to.page + part + tr_kv_tile_byte(l, to.at),
               from.page + part + tr_kv_tile_byte(l, from.at), n);
    bytes_copy(w, side_meta(to, side, 0), side_meta(from, side, 0),
               TR_KV_TILE * side_groups(l, side) * 4);
}

/* Moves smem->token.from[0, n) to the places from `to` on; those without a page
 * are not there. */
TR_DEVICE void
tile_fill(warp_t w, place_t to, uint32_t n, side_t side, tile_smem_t *smem)
{
    lanes_sync(w);
    if (side == KEY && to.layout->level.by_channel) {
        tile_move(w, to, &smem->token);
        return;
    }
    if (tile_stays(w, to, n, smem)) {
        tile_copy(w, smem->token.from[0], to, side);
        lanes_sync(w);
        return;
    }
    if (fast_takes(w, to, n, side, smem)) {
        fast_fill(w, to, side, smem);
        return;
    }
    for (uint32_t i = 0; i < n; i++, to.at++) {
        if (smem->token.from[i].page != NULL) {
            side_move(w, smem->token.from[i], to, side, &smem->token);
        }
    }
    lanes_sync(w);
}

/* Tile i of tier l, whose sources are at c->order[first ..]. */
TR_DEVICE void
tier_tile(const compress_t *c, warp_t w, tile_smem_t *smem, side_t side,
          uint32_t l, uint32_t i, uint32_t first)
{
    const tr_kv_layout_t *layout = &c->a->layout[c->to->tier_layout[l]];
    uint32_t tiles = page_tiles(layout), page = i / tiles;
    uint32_t at = page * layout->tokens + i % tiles * tile_tokens(layout);
    uint32_t n = (page + 1) * layout->tokens, total = c->head->total[l];
    uint32_t entry = tr_kv_tier_entry(&c->a->kv, l,
                                      tier_stay(c, l) / layout->tokens + page);
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

        smem->token.from[k] = source_place(c, c->order[first + at + k],
                                           &position, &score);
        p.at += k;
        if (side == VALUE) {
            token_put_stats(p, score, position);
        }
    }
    tile_fill(w, to, n, side, smem);
}

/* Does a page of the new window hold tokens? */
TR_DEVICE bool
ring_page_used(const tr_kv_seq_t *to, uint32_t tokens, uint32_t page)
{
    uint32_t first = (to->window_from - to->sinks) % to->window;
    uint32_t n = to->base - to->window_from, at = page * tokens, end;

    if (at < to->sinks) {
        return true;
    }
    at -= to->sinks;
    end = at + tokens < to->window ? at + tokens : to->window;
    /* slots [first, first + n), and what of them is beyond the ring's end */
    return n > 0
           && ((at < first + n && end > first) || at + to->window < first + n);
}

/* How many tokens of the window come before the one that entry `at` has, or
 * would have. */
TR_DEVICE uint32_t
window_age(const tr_kv_seq_t *to, uint32_t at)
{
    uint32_t first = (to->window_from - to->sinks) % to->window;

    return at < to->sinks
               ? at
               : to->sinks + (at - to->sinks + to->window - first) % to->window;
}

/* Tile i of the window. */
TR_DEVICE void
window_tile(const compress_t *c, warp_t w, tile_smem_t *smem, side_t side,
            uint32_t i)
{
    const tr_kv_seq_t *to = c->to;
    const tr_kv_layout_t *layout = &c->a->layout[to->window_layout];
    uint32_t tiles = page_tiles(layout), page = i / tiles;
    uint32_t at = page * layout->tokens + i % tiles * 16, n;
    uint32_t used = tr_kv_windowed(to);
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
        uint32_t age = window_age(to, at + k), position, source;
        place_t p = dest;
        float score;

        p.at += k;
        smem->token.from[k].page = NULL;
        if (at + k >= to->sinks + to->window || age >= used) {
            continue;
        }
        position = tr_kv_windowed_position(to, age);
        source = c->tiered + window_source(c, position);
        smem->token.from[k] = source_place(c, source, &position, &score);
        if (side == VALUE) {
            token_put_stats(p, score, position);
        }
    }
    tile_fill(w, dest, n, side, smem);
}

/* Tile i of a head, tiers first; false: there are no more. */
TR_DEVICE bool
head_tile_move(const compress_t *c, warp_t w, tile_smem_t *smem, side_t side,
               uint32_t i)
{
    const tr_kv_layout_t *l;
    uint32_t first = 0, tiles;

    for (uint32_t t = 0; t < c->to->n_tiers; t++) {
        uint32_t n = c->head->total[t];

        l = &c->a->layout[c->to->tier_layout[t]];
        tiles = n / l->tokens * page_tiles(l)
                + (n % l->tokens + tile_tokens(l) - 1) / tile_tokens(l);
        if (i < tiles) {
            tier_tile(c, w, smem, side, t, i, first);
            return true;
        }
        i -= tiles;
        first += n;
    }
    if (c->to->window == 0) {
        return false;
    }
    l = &c->a->layout[c->to->window_layout];
    tiles = (c->to->sinks + c->to->window + l->tokens - 1) / l->tokens
            * page_tiles(l);
    if (i >= tiles) {
        return false;
    }
    window_tile(c, w, smem, side, i);
    return true;
}

/* Tiles i, i + step, .. of head h of job j. */
TR_DEVICE void
compress_tiles(const compress_args_t *a, warp_t w, tile_smem_t *smem,
               side_t side, uint32_t j, uint32_t h, uint32_t i, uint32_t step)
{
    compress_t c;

    if (a->jobs[j].slot < 0 || a->refused[j] || compress_stays(a, j, h)
        || !compress_open(&c, a, j, h)) {
        return;
    }
    while (head_tile_move(&c, w, smem, side, i)) {
        i += step;
    }
}

#endif
