/*
 * A token in a page: how it gets in, and what happens to it when it moves
 * (kernels.h, kv_append).  Reference: test_kv_store.c.
 *
 * Keys and values are handled apart, since a level may change one and keep the
 * other.  Three ways to move: the stripe as it is (equal bits and grouping),
 * codes divided as integers (fewer bits, equal grouping), or numbers quantised
 * anew.  Keys are quantised in two functions, key_quantise and tile_quantise;
 * a rotation of keys would go there, as key_numbers would undo it.
 */
#include "kernels/cpu/cpu.h"
#include "kv_codes.h"
#include "kv_store.h"

/* Calls f with head size and bits as constants where they are common. */
#define CASE(f, dim, bits, ...)    \
    case (dim) << 4 | (bits):      \
        f(dim, bits, __VA_ARGS__); \
        break;
#define CASES(f, dim, ...)       \
    CASE(f, dim, 8, __VA_ARGS__) \
    CASE(f, dim, 4, __VA_ARGS__) CASE(f, dim, 2, __VA_ARGS__)
#define BY_SHAPE(f, dim, bits, ...) \
    switch ((dim) << 4 | (bits)) {  \
        CASES(f, 64u, __VA_ARGS__)  \
        CASES(f, 128u, __VA_ARGS__) \
    default:                        \
        f(dim, bits, __VA_ARGS__);  \
    }

/* ---- codes and numbers ---- */

static uint16_t *
key_row(tr_kv_place_t p)
{
    return (uint16_t *) (p.page + tr_kv_key_row(p.layout, p.at));
}

static uint16_t *
value_row(tr_kv_place_t p)
{
    return (uint16_t *) (p.page + tr_kv_value_row(p.layout, p.at));
}

/* A token's pairs {scale, zero}. */
static uint16_t *
key_meta(tr_kv_place_t p)
{
    return (uint16_t *) (p.page + tr_kv_key_meta(p.layout, p.at, 0));
}

static uint16_t *
value_meta(tr_kv_place_t p)
{
    return (uint16_t *) (p.page + tr_kv_value_meta(p.layout, p.at, 0));
}

/* Of a token's tile. */
static uint8_t *
key_codes(tr_kv_place_t p)
{
    return p.page + tr_kv_tile_byte(p.layout, p.at);
}

static uint8_t *
value_codes(tr_kv_place_t p)
{
    return key_codes(p) + p.layout->value;
}

TR_INLINE void
key_write_n(uint32_t dim, uint32_t bits, tr_kv_place_t p, const uint8_t *codes)
{
    uint8_t stripe[TR_CODES_MAX];

    key_pack(dim, bits, codes, stripe);
    key_stripe(dim, bits, key_codes(p), p.at, stripe, true);
}

TR_INLINE void
key_read_n(uint32_t dim, uint32_t bits, tr_kv_place_t p, uint8_t *codes)
{
    uint8_t stripe[TR_CODES_MAX];

    key_stripe(dim, bits, key_codes(p), p.at, stripe, false);
    key_unpack(dim, bits, stripe, codes);
}

TR_INLINE void
key_copy_n(uint32_t dim, uint32_t bits, tr_kv_place_t from, tr_kv_place_t to)
{
    uint8_t stripe[TR_CODES_MAX];

    key_stripe(dim, bits, key_codes(from), from.at, stripe, false);
    key_stripe(dim, bits, key_codes(to), to.at, stripe, true);
}

TR_INLINE void
value_write_n(uint32_t dim, uint32_t bits, tr_kv_place_t p,
              const uint8_t *codes)
{
    uint16_t stripe[TR_CODES_MAX / 2];

    value_pack(dim, bits, codes, stripe);
    value_store(dim, bits, value_codes(p), p.at, stripe);
}

TR_INLINE void
value_read_n(uint32_t dim, uint32_t bits, tr_kv_place_t p, uint8_t *codes)
{
    uint16_t stripe[TR_CODES_MAX / 2];

    value_load(dim, bits, value_codes(p), p.at, stripe);
    value_unpack(dim, bits, stripe, codes);
}

TR_INLINE void
value_copy_n(uint32_t dim, uint32_t bits, tr_kv_place_t from, tr_kv_place_t to)
{
    uint16_t stripe[TR_CODES_MAX / 2];

    value_load(dim, bits, value_codes(from), from.at, stripe);
    value_store(dim, bits, value_codes(to), to.at, stripe);
}

static void
key_write(tr_kv_place_t p, const uint8_t *codes)
{
    BY_SHAPE(key_write_n, p.layout->head_dim, p.layout->level.key_bits, p,
             codes)
}

static void
key_read(tr_kv_place_t p, uint8_t *codes)
{
    BY_SHAPE(key_read_n, p.layout->head_dim, p.layout->level.key_bits, p, codes)
}

static void
value_write(tr_kv_place_t p, const uint8_t *codes)
{
    BY_SHAPE(value_write_n, p.layout->head_dim, p.layout->level.value_bits, p,
             codes)
}

static void
value_read(tr_kv_place_t p, uint8_t *codes)
{
    BY_SHAPE(value_read_n, p.layout->head_dim, p.layout->level.value_bits, p,
             codes)
}

/* Dimensions of a key so that each of its groups is contiguous, or back: group
 * j of M has D/4M dimensions of each quarter. */
static void
key_regroup(const void *from, void *to, uint32_t size, uint32_t dim, uint32_t m,
            bool back)
{
    uint32_t run = dim / 4 / m;

    for (uint32_t j = 0; j < m; j++) {
        for (uint32_t t = 0; t < 4; t++) {
            uint32_t grouped = (j * 4 + t) * run, plain = (t * m + j) * run;

            memcpy((uint8_t *) to + (back ? plain : grouped) * size,
                   (const uint8_t *) from + (back ? grouped : plain) * size,
                   run * size);
        }
    }
}

static void
key_quantise(const tr_kv_codec_t *codec, tr_kv_place_t to, const float *key)
{
    uint32_t dim = to.layout->head_dim, m = to.layout->level.key_groups;
    uint32_t bits = to.layout->level.key_bits;
    bool narrow = bits == 2 && to.layout->level.narrow;
    _Alignas(64) uint8_t codes[TR_CODES_MAX];
    uint8_t grouped[TR_CODES_MAX];
    _Alignas(64) float x[TR_HEAD_DIM_MAX];

    if (m == 1) {
        codec->quantise(key, dim, bits, narrow, codes, key_meta(to));
    } else {
        key_regroup(key, x, sizeof(float), dim, m, false);
        for (uint32_t j = 0; j < m; j++) {
            codec->quantise(x + j * (dim / m), dim / m, bits, narrow,
                            grouped + j * (dim / m), key_meta(to) + 2 * j);
        }
        key_regroup(grouped, codes, 1, dim, m, true);
    }
    key_write(to, codes);
}

static void
value_quantise(const tr_kv_codec_t *codec, tr_kv_place_t to, const float *value)
{
    uint32_t dim = to.layout->head_dim, m = to.layout->level.value_groups;
    uint32_t bits = to.layout->level.value_bits;
    bool narrow = bits == 2 && to.layout->level.narrow;
    _Alignas(64) uint8_t codes[TR_CODES_MAX];

    for (uint32_t j = 0; j < m; j++) {
        codec->quantise(value + j * (dim / m), dim / m, bits, narrow,
                        codes + j * (dim / m), value_meta(to) + 2 * j);
    }
    value_write(to, codes);
}

/* A stored key as numbers. */
static void
key_numbers(const tr_kv_codec_t *codec, tr_kv_place_t p, float *key)
{
    const tr_kv_level_t *v = &p.layout->level;
    uint32_t dim = p.layout->head_dim, m = v->key_groups;
    const uint16_t *meta;
    _Alignas(64) uint8_t codes[TR_CODES_MAX];

    if (v->key_bits == 16) {
        codec->from_half(key_row(p), key, dim);
        return;
    }
    key_read(p, codes);
    meta = key_meta(p);
    for (uint32_t d = 0; d < dim; d++) {
        uint32_t j = v->by_channel ? d : d % (dim / 4) / (dim / 4 / m);

        key[d] = (float) codes[d] * tr_float_from_half(meta[2 * j])
                 + tr_float_from_half(meta[2 * j + 1]);
    }
}

static void
value_numbers(const tr_kv_codec_t *codec, tr_kv_place_t p, float *value)
{
    const tr_kv_level_t *v = &p.layout->level;
    uint32_t dim = p.layout->head_dim, run = dim / v->value_groups;
    const uint16_t *meta;
    _Alignas(64) uint8_t codes[TR_CODES_MAX];

    if (v->value_bits == 16) {
        codec->from_half(value_row(p), value, dim);
        return;
    }
    value_read(p, codes);
    meta = value_meta(p);
    for (uint32_t d = 0; d < dim; d++) {
        uint32_t j = d / run;

        value[d] = (float) codes[d] * tr_float_from_half(meta[2 * j])
                   + tr_float_from_half(meta[2 * j + 1]);
    }
}

void
tr_kv_put(const tr_kv_codec_t *codec, tr_kv_place_t to, const float *key,
          const float *value)
{
    uint32_t dim = to.layout->head_dim;

    if (to.layout->level.key_bits == 16) {
        codec->to_half(key, key_row(to), dim);
    } else {
        key_quantise(codec, to, key);
    }
    if (to.layout->level.value_bits == 16) {
        codec->to_half(value, value_row(to), dim);
    } else {
        value_quantise(codec, to, value);
    }
}

void
tr_kv_get(const tr_kv_codec_t *codec, tr_kv_place_t from, float *key,
          float *value)
{
    key_numbers(codec, from, key);
    value_numbers(codec, from, value);
}

/* The lines of n bytes. */
static void
prefetch(const uint8_t *p, uint32_t n)
{
    uintptr_t line = (uintptr_t) p & ~(uintptr_t) 63;

    for (; line < (uintptr_t) p + n; line += 64) {
        __builtin_prefetch((const void *) line, 1);
    }
}

void
tr_kv_prefetch(tr_kv_place_t p)
{
    const tr_kv_layout_t *l = p.layout;
    uint32_t dim = l->head_dim, bits = l->level.key_bits;

    if (bits == 16) {
        prefetch((const uint8_t *) key_row(p), 2 * dim);
    } else { /* its lanes stand together in each of their chunks */
        tr_kv_code_t at = tr_kv_key_code(l, p.at, 0);

        for (uint32_t i = 0; i < dim * bits / 32; i += 16) {
            prefetch(p.page + at.byte + i * 32, 64);
        }
        prefetch((const uint8_t *) key_meta(p), 4);
    }
    bits = l->level.value_bits;
    if (bits == 16) {
        prefetch((const uint8_t *) value_row(p), 2 * dim);
    } else {
        tr_kv_code_t at = tr_kv_value_code(l, p.at, 0);

        for (uint32_t i = 0; i < dim * bits / 32; i += 16) {
            prefetch(p.page + at.byte + i * 32, 128);
        }
        prefetch((const uint8_t *) value_meta(p), 4);
    }
    if (l->level.scored) {
        prefetch(p.page + l->score + 4 * p.at, 4);
    }
    if (l->position) {
        prefetch(p.page + l->position + l->position_bytes * p.at, 4);
    }
}

/* ---- moves ---- */

/* Fewer bits: so much larger is the scale. */
static void
meta_downgrade(const uint16_t *meta, uint16_t *out, uint32_t n, uint32_t from,
               uint32_t to, bool narrow)
{
    for (uint32_t i = 0; i < n; i++) {
        uint16_t scale = meta[2 * i];

        if (from == 8) {
            scale = tr_kv_half(tr_float_from_half(scale) * 17);
        }
        if (to == 2) {
            scale = tr_kv_half(tr_float_from_half(scale) * (narrow ? 3 : 5));
        }
        out[2 * i] = scale;
        out[2 * i + 1] = meta[2 * i + 1];
        if (to == 2 && narrow) {
            out[2 * i + 1] = tr_kv_half(tr_float_from_half(meta[2 * i + 1])
                                        + tr_float_from_half(scale));
        }
    }
}

static void
key_move(const tr_kv_codec_t *codec, tr_kv_place_t from, tr_kv_place_t to)
{
    const tr_kv_level_t *a = &from.layout->level, *b = &to.layout->level;
    uint32_t dim = to.layout->head_dim, bits = a->key_bits;
    bool same = a->key_groups == b->key_groups && !a->by_channel;
    _Alignas(64) uint8_t codes[TR_CODES_MAX];
    _Alignas(64) float x[TR_HEAD_DIM_MAX];

    if (b->key_bits == 16) {
        memcpy(key_row(to), key_row(from), 2ul * dim);
    } else if (bits == 16 || !same) {
        key_numbers(codec, from, x);
        key_quantise(codec, to, x);
    } else if (bits == b->key_bits) {
        BY_SHAPE(key_copy_n, dim, bits, from, to)
        memcpy(key_meta(to), key_meta(from), 4ul * b->key_groups);
    } else {
        key_read(from, codes);
        codes_downgrade(codes, dim, bits, b->key_bits, b->narrow);
        key_write(to, codes);
        meta_downgrade(key_meta(from), key_meta(to), b->key_groups, bits,
                       b->key_bits, b->narrow);
    }
}

static void
value_move(const tr_kv_codec_t *codec, tr_kv_place_t from, tr_kv_place_t to)
{
    const tr_kv_level_t *a = &from.layout->level, *b = &to.layout->level;
    uint32_t dim = to.layout->head_dim, bits = a->value_bits;
    _Alignas(64) uint8_t codes[TR_CODES_MAX];
    _Alignas(64) float x[TR_HEAD_DIM_MAX];

    if (b->value_bits == 16) {
        memcpy(value_row(to), value_row(from), 2ul * dim);
    } else if (bits == 16 || a->value_groups != b->value_groups) {
        value_numbers(codec, from, x);
        value_quantise(codec, to, x);
    } else if (bits == b->value_bits) {
        BY_SHAPE(value_copy_n, dim, bits, from, to)
        memcpy(value_meta(to), value_meta(from), 4ul * b->value_groups);
    } else {
        value_read(from, codes);
        codes_downgrade(codes, dim, bits, b->value_bits, b->narrow);
        value_write(to, codes);
        meta_downgrade(value_meta(from), value_meta(to), b->value_groups, bits,
                       b->value_bits, b->narrow);
    }
}

void
tr_kv_move(const tr_kv_codec_t *codec, tr_kv_place_t from, tr_kv_place_t to)
{
    key_move(codec, from, to);
    value_move(codec, from, to);
}

/* ---- keys by channel ---- */

/* Are these a whole tile by channel, in order? */
static bool
tile_whole(const tr_kv_place_t *from)
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

static void
tile_quantise(const tr_kv_codec_t *codec, const tr_kv_place_t *from,
              tr_kv_place_t to)
{
    uint32_t dim = to.layout->head_dim;
    float x[TR_KV_CHANNEL_TOKENS * TR_HEAD_DIM_MAX];
    uint8_t codes[TR_KV_CHANNEL_TOKENS * TR_CODES_MAX];

    for (uint32_t i = 0; i < TR_KV_CHANNEL_TOKENS; i++) {
        key_numbers(codec, from[i], x + i * dim);
    }
    codec->quantise_channels(x, dim, to.layout->level.key_bits, codes,
                             key_meta(to));
    for (uint32_t i = 0; i < TR_KV_CHANNEL_TOKENS; i++) {
        key_write((tr_kv_place_t){ to.page, to.layout, to.at + i },
                  codes + i * dim);
    }
}

/* A whole tile keeps its codes, or has them divided, as a token would. */
static void
tile_keep(tr_kv_place_t from, tr_kv_place_t to)
{
    uint32_t dim = to.layout->head_dim, bits = from.layout->level.key_bits;
    uint32_t less = to.layout->level.key_bits;
    _Alignas(64) uint8_t codes[TR_CODES_MAX];

    if (bits == less) {
        memcpy(key_meta(to), key_meta(from), 4ul * dim);
    } else {
        meta_downgrade(key_meta(from), key_meta(to), dim, bits, less, false);
    }
    for (uint32_t i = 0; i < TR_KV_CHANNEL_TOKENS; i++, from.at++, to.at++) {
        key_read(from, codes);
        if (bits != less) {
            codes_downgrade(codes, dim, bits, less, false);
        }
        key_write(to, codes);
    }
}

void
tr_kv_move_tile(const tr_kv_codec_t *codec, const tr_kv_place_t *from,
                tr_kv_place_t to)
{
    if (tile_whole(from)) {
        tile_keep(from[0], to);
    } else {
        tile_quantise(codec, from, to);
    }
    for (uint32_t i = 0; i < TR_KV_CHANNEL_TOKENS; i++, to.at++) {
        value_move(codec, from[i], to);
    }
}
