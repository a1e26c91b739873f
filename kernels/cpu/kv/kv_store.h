/*
 * Tokens in pages, one head at a time: what kv_append.c and kv_compress.c are
 * made of.  kv_store.c knows what a move means, kv_codes.h where codes stand,
 * kv_quant.h how numbers become codes.
 *
 * Nothing here checks; the launchers do, before anything is written.
 */
#ifndef TR_KV_STORE_H
#define TR_KV_STORE_H

#include "kernels/kv_view.h"

/* FP16, rounded to nearest even; all but NaN saturate. */
static inline uint16_t
tr_kv_half(float f)
{
    uint32_t u, sign, small;

    memcpy(&u, &f, 4);
    sign = u >> 16 & 0x8000;
    u &= 0x7fffffff;
    /* below 2^-14, units of 2^-24: they stand in the last bits of 2^23 + x */
    f = tr_float_from_bits(u < 0x38800000 ? u : 0) * 0x1p24f + 0x1p23f;
    memcpy(&small, &f, 4);
    if (u > 0x7f800000) {
        return (uint16_t) (sign | 0x7e00);
    }
    u = u > 0x477fe000 ? 0x477fe000 : u;
    u = u < 0x38800000 ? small - 0x4b000000
                       : (u + 0xfff + (u >> 13 & 1) - 0x38000000) >> 13;
    return (uint16_t) (sign | u);
}

/* What is written for each instruction set.  n and dim: multiples of 8, and of
 * 16 for channels. */
typedef struct {
    /* Rounds to FP16 (nearest even); all but NaN saturate. */
    void (*to_half)(const float *x, uint16_t *out, uint32_t n);
    void (*from_half)(const uint16_t *h, float *out, uint32_t n);
    /* One group of n numbers; meta: {scale, zero}.  narrow: of 2 bits. */
    void (*quantise)(const float *x, uint32_t n, uint32_t bits, bool narrow,
                     uint8_t *codes, uint16_t meta[2]);
    /* x, codes: [TR_KV_CHANNEL_TOKENS][dim], meta: [dim][2]. */
    void (*quantise_channels)(const float *x, uint32_t dim, uint32_t bits,
                              uint8_t *codes, uint16_t *meta);
} tr_kv_codec_t;

extern const tr_kv_codec_t tr_kv_codec_c, tr_kv_codec_avx2, tr_kv_codec_avx512;

/* Token `at` of a page. */
typedef struct {
    uint8_t *page;
    const tr_kv_layout_t *layout;
    uint32_t at;
} tr_kv_place_t;

/* Where a head's token is; index: of the uncompressed tokens, of the ring's
 * slots or of the tier's tokens. */
tr_kv_place_t tr_kv_place_uncompressed(const tr_kv_view_t *kv,
                                       const int32_t *table, uint32_t index);
tr_kv_place_t tr_kv_place_window(const tr_kv_view_t *kv, const int32_t *table,
                                 const tr_kv_seq_t *seq, uint32_t index);
tr_kv_place_t tr_kv_place_tier(const tr_kv_view_t *kv, const int32_t *table,
                               const tr_kv_seq_t *seq, uint32_t tier,
                               uint32_t index);

/* The places of a tier, or of the uncompressed tokens, one after the other. */
typedef struct {
    const tr_kv_view_t *kv;
    const int32_t *entry; /* of the next page */
    int32_t step;
    tr_kv_place_t next; /* its page is looked up when it is begun */
} tr_kv_iterator_t;

tr_kv_iterator_t tr_kv_iterator_uncompressed(const tr_kv_view_t *kv,
                                             const int32_t *table);
tr_kv_iterator_t tr_kv_iterator_tier(const tr_kv_view_t *kv,
                                     const int32_t *table,
                                     const tr_kv_seq_t *seq, uint32_t tier,
                                     uint32_t first);

static inline tr_kv_place_t
tr_kv_iterator_next(tr_kv_iterator_t *it)
{
    tr_kv_place_t p;

    if (it->next.at == 0) {
        it->next.page = tr_kv_page_at(it->kv, *it->entry);
        it->entry += it->step;
    }
    p = it->next;
    it->next.at = p.at + 1 == p.layout->tokens ? 0 : p.at + 1;
    return p;
}

/* The entries of a row that hold so many tokens: are they in their part of the
 * row, and are there pages? */
bool tr_kv_has_uncompressed(const tr_kv_view_t *kv, const int32_t *table,
                            uint32_t first, uint32_t end);
bool tr_kv_has_window(const tr_kv_view_t *kv, const int32_t *table,
                      const tr_kv_seq_t *seq, uint32_t first, uint32_t end);
bool tr_kv_has_tier(const tr_kv_view_t *kv, const int32_t *table,
                    const tr_kv_seq_t *seq, uint32_t tier, uint32_t first,
                    uint32_t end);

/* Are the layouts of a slot that has tiers such that tokens can go there? */
bool tr_kv_seq_valid(const tr_kv_view_t *kv, const tr_kv_seq_t *seq);

/* May a token go from one layout to the other?  Bits never go up. */
static inline bool
tr_kv_goes(const tr_kv_layout_t *from, const tr_kv_layout_t *to)
{
    return from->level.key_bits >= to->level.key_bits
           && from->level.value_bits >= to->level.value_bits;
}

/* Zeroes what is not codes: a page that is given out is full of what it held
 * before, and a NaN among its metadata or scores would outlive a multiplication
 * by probability 0. */
void tr_kv_page_clear(uint8_t *page, const tr_kv_layout_t *l,
                      uint64_t page_bytes);

/* Asks for the lines that hold a token. */
void tr_kv_prefetch(tr_kv_place_t p);

/* Stores a key and a value; by token. */
void tr_kv_put(const tr_kv_codec_t *codec, tr_kv_place_t to, const float *key,
               const float *value);
/* Key and value as they stand there, as numbers. */
void tr_kv_get(const tr_kv_codec_t *codec, tr_kv_place_t from, float *key,
               float *value);
/* Moves key and value of one token; to a place by token. */
void tr_kv_move(const tr_kv_codec_t *codec, tr_kv_place_t from,
                tr_kv_place_t to);
/* Moves TR_KV_CHANNEL_TOKENS tokens to the places from `to` on, whose keys are
 * by channel. */
void tr_kv_move_tile(const tr_kv_codec_t *codec, const tr_kv_place_t *from,
                     tr_kv_place_t to);

/* Score and position, in layouts that have them; without: 0. */
static inline float
tr_kv_score(tr_kv_place_t p)
{
    float score = 0;

    if (p.layout->level.scored) {
        memcpy(&score, p.page + p.layout->score + 4 * p.at, 4);
    }
    return score;
}

static inline uint32_t
tr_kv_position(tr_kv_place_t p)
{
    return p.layout->position ? tr_kv_position_at(p.layout, p.page, p.at) : 0;
}

static inline void
tr_kv_put_stats(tr_kv_place_t p, float score, uint32_t position)
{
    if (p.layout->level.scored) {
        memcpy(p.page + p.layout->score + 4 * p.at, &score, 4);
    }
    if (p.layout->position) {
        tr_kv_position_put(p.layout, p.page, p.at, position);
    }
}

#endif
