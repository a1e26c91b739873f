/*
 * token.cuh: a token in a page of the KV cache, as a warp handles it: how it is
 * stored, and what happens when it moves (kernels.h, kv_append).  The
 * counterpart of cpu/kv/kv_store.c, with the same bits.
 *
 * A token has two sides, its key and its value, which share nothing: different
 * warps may handle them.  The key's warp writes the page's key metadata; the
 * value's writes all that follows the value codes: their metadata, scores,
 * positions.
 *
 * Numbers come from registers or a page, dimensions divided among lanes; codes
 * are gathered in the warp's shared memory and packed from there word by word.
 */
#ifndef TR_CUDA_TOKEN_CUH
#define TR_CUDA_TOKEN_CUH

#include "token_codes.cuh"

/* Loads that a lane has under way together: a store to shared memory may be to what
 * is loaded next, for all that the compiler knows. */
#define AT_ONCE 4u

/* ---- in, and about ------------------------------------------------------ */

/* Stores the numbers smem->x, each lane its own; by token. */
TR_DEVICE void
side_put(warp_t w, place_t to, side_t s, token_smem_t *smem)
{
    const tr_kv_layout_t *l = to.layout;
    uint32_t dim = l->head_dim, bits = side_bits(l, s);
    bool narrow = bits == 2 && l->level.narrow;

    if (bits == 16) {
        for (uint32_t d = w.lane; d < dim; d += w.lanes) {
            side_row(to, s)[d] = half_of(smem->x[d]);
        }
        lanes_sync(w);
        return;
    }
    for (uint32_t j = 0; j < side_groups(l, s); j++) {
        float lo = INFINITY, less = INFINITY; /* less: of the negatives */
        uint16_t meta[2];

        for (uint32_t d = w.lane; d < dim; d += w.lanes) {
            if (side_group(l, s, d) == j) {
                lo = fminf(lo, smem->x[d]);
                less = fminf(less, -smem->x[d]);
            }
        }
        group_meta(lanes_least(w, lo), -lanes_least(w, less), bits, narrow,
                   meta);
        for (uint32_t d = w.lane; d < dim; d += w.lanes) {
            if (side_group(l, s, d) == j) {
                smem->codes[d] = code_of(smem->x[d], meta[0], meta[1], bits);
            }
        }
        if (w.lane == 0) {
            uint16_t *at = side_meta(to, s, 0) + 2 * j;

            at[0] = meta[0];
            at[1] = meta[1];
        }
    }
    side_pack(w, to, s, smem);
}

/* Codes of a side of this shape to shared memory, each lane its own. */
TR_DEVICE void
codes_read(warp_t w, place_t p, side_t s, token_smem_t *smem, uint32_t dim,
           uint32_t bits)
{
    tr_kv_layout_t l = {}; /* what says where codes are, with constants */

    l.head_dim = dim;
    l.level.key_bits = l.level.value_bits = (uint8_t) bits;
    l.tile = p.layout->tile;
    l.value = p.layout->value;
    for (uint32_t d = w.lane; d < dim; d += AT_ONCE * w.lanes) {
        uint32_t q[AT_ONCE];

#pragma unroll
        for (uint32_t k = 0; k < AT_ONCE; k++) {
            uint32_t e = d + k * w.lanes;

            q[k] = 0;
            if (e < dim) {
                q[k] = tr_kv_code_get(p.page,
                                      s == KEY ? tr_kv_key_code(&l, p.at, e)
                                               : tr_kv_value_code(&l, p.at, e),
                                      bits);
            }
        }
#pragma unroll
        for (uint32_t k = 0; k < AT_ONCE; k++) {
            if (d + k * w.lanes < dim) {
                smem->codes[d + k * w.lanes] = (uint8_t) q[k];
            }
        }
    }
}

#define READ_CASE(dim, bits)                  \
    case (dim) << 4 | (bits):                 \
        codes_read(w, p, s, smem, dim, bits); \
        break;

TR_DEVICE void
side_read(warp_t w, place_t p, side_t s, token_smem_t *smem)
{
    uint32_t dim = p.layout->head_dim, bits = side_bits(p.layout, s);

    switch (dim << 4 | bits) {
        READ_CASE(64u, 8)
        READ_CASE(64u, 4)
        READ_CASE(64u, 2)
        READ_CASE(128u, 8)
        READ_CASE(128u, 4)
        READ_CASE(128u, 2)
    default:
        codes_read(w, p, s, smem, dim, bits);
    }
}

/* Equal grouping: codes stay, or are divided. */
TR_DEVICE void
side_keep(warp_t w, place_t from, place_t to, side_t s, token_smem_t *smem)
{
    const tr_kv_layout_t *a = from.layout, *b = to.layout;
    uint32_t bits = side_bits(a, s), less = side_bits(b, s);
    uint32_t groups = side_groups(b, s);
    uint16_t *old = side_meta(from, s, 0), *now = side_meta(to, s, 0);

    side_read(w, from, s, smem);
    for (uint32_t d = w.lane; d < b->head_dim && bits != less; d += w.lanes) {
        smem->codes[d] = code_downgrade(smem->codes[d], bits, less,
                                        b->level.narrow);
    }
    for (uint32_t j = w.lane; j < groups; j += w.lanes) {
        if (bits == less) {
            now[2 * j] = old[2 * j];
            now[2 * j + 1] = old[2 * j + 1];
        } else {
            meta_downgrade(old + 2 * j, now + 2 * j, bits, less,
                           b->level.narrow);
        }
    }
    side_pack(w, to, s, smem);
}

/* Moves one side of a token; to a place by token. */
TR_DEVICE void
side_move(warp_t w, place_t from, place_t to, side_t s, token_smem_t *smem)
{
    const tr_kv_layout_t *a = from.layout, *b = to.layout;
    bool same = side_groups(a, s) == side_groups(b, s)
                && !(s == KEY && a->level.by_channel);

    if (side_bits(b, s) == 16) {
        for (uint32_t d = w.lane; d < b->head_dim; d += w.lanes) {
            side_row(to, s)[d] = side_row(from, s)[d];
        }
        lanes_sync(w);
    } else if (side_bits(a, s) == 16 || !same) {
        for (uint32_t d = w.lane; d < b->head_dim; d += AT_ONCE * w.lanes) {
            float x[AT_ONCE];

#pragma unroll
            for (uint32_t k = 0; k < AT_ONCE; k++) {
                uint32_t e = d + k * w.lanes;

                x[k] = e < b->head_dim ? side_number(from, s, e) : 0;
            }
#pragma unroll
            for (uint32_t k = 0; k < AT_ONCE; k++) {
                if (d + k * w.lanes < b->head_dim) {
                    smem->x[d + k * w.lanes] = x[k];
                }
            }
        }
        side_put(w, to, s, smem);
    } else {
        side_keep(w, from, to, s, smem);
    }
}

/* ---- keys by channel ---------------------------------------------------- */

/* Are these a whole tile by channel, in order? */
TR_DEVICE bool
tile_whole(const place_t *from)
{
    if (!from[0].layout->level.by_channel
        || from[0].at % TR_KV_CHANNEL_TOKENS != 0) {
        return false;
    }
    for (uint32_t i = 1; i < TR_KV_CHANNEL_TOKENS; i++) {
        if (from[i].page != from[0].page || from[i].at != from[0].at + i) {
            return false;
        }
    }
    return true;
}

/* A channel's pair: as it was when the tile is whole, else from its numbers. */
TR_DEVICE void
channel_meta(const place_t *from, place_t to, uint32_t d, bool whole)
{
    uint32_t bits = from[0].layout->level.key_bits;
    uint32_t less = to.layout->level.key_bits;
    uint16_t *now = side_meta(to, KEY, d);
    float lo = INFINITY, hi = -INFINITY;

    if (whole) {
        const uint16_t *old = side_meta(from[0], KEY, d);

        if (bits == less) {
            now[0] = old[0];
            now[1] = old[1];
        } else {
            meta_downgrade(old, now, bits, less, false);
        }
        return;
    }
    for (uint32_t i = 0; i < TR_KV_CHANNEL_TOKENS; i++) {
        float x = side_number(from[i], KEY, d);

        lo = fminf(lo, x);
        hi = fmaxf(hi, x);
    }
    group_meta(lo, hi, less, false, now);
}

/* Moves the keys of the TR_KV_CHANNEL_TOKENS tokens smem->from to the places
 * from `to` on, which are by channel. */
TR_DEVICE void
tile_move(warp_t w, place_t to, token_smem_t *smem)
{
    const place_t *from = smem->from;
    uint32_t dim = to.layout->head_dim, less = to.layout->level.key_bits;
    bool whole = tile_whole(from);

    for (uint32_t d = w.lane; d < dim; d += w.lanes) {
        channel_meta(from, to, d, whole);
    }
    for (uint32_t i = 0; i < TR_KV_CHANNEL_TOKENS; i++, to.at++) {
        uint32_t bits = from[i].layout->level.key_bits;

        for (uint32_t d = w.lane; d < dim; d += w.lanes) {
            const uint16_t *meta = side_meta(to, KEY, d); /* the lane's own */

            if (!whole) {
                smem->codes[d] = code_of(side_number(from[i], KEY, d), meta[0],
                                         meta[1], less);
                continue;
            }
            smem->codes[d] = (uint8_t) side_code(from[i], KEY, d);
            if (bits != less) {
                smem->codes[d] = code_downgrade(smem->codes[d], bits, less,
                                                false);
            }
        }
        side_pack(w, to, KEY, smem);
    }
}

/* May a token go from one layout to the other?  Bits never go up. */
TR_DEVICE bool
token_goes(const tr_kv_layout_t *from, const tr_kv_layout_t *to)
{
    return from->level.key_bits >= to->level.key_bits
           && from->level.value_bits >= to->level.value_bits;
}

#endif
