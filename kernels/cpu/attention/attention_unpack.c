/*
 * One token of a page in FP32, whatever its level: for levels that no product
 * is written for, for prompts over tiers, and for the reference.
 */
#include "attention.h"

#include <pthread.h>

#define DIM_STEP 32u
#define DIMS (TR_HEAD_DIM_MAX / DIM_STEP)

/* A tile has at most 32,768 bits: the last code begins at 32,760. */
static uint16_t maps[2][3][DIMS][16 * TR_HEAD_DIM_MAX];
static pthread_once_t maps_once = PTHREAD_ONCE_INIT;

static void
fill_map(bool value, uint32_t bits, uint32_t dim, uint16_t *map)
{
    tr_kv_layout_t l = { .level = { .key_bits = (uint8_t) bits,
                                    .value_bits = (uint8_t) bits },
                         .head_dim = dim };

    for (uint32_t token = 0; token < 16; token++) {
        for (uint32_t d = 0; d < dim; d++) {
            tr_kv_code_t at = value ? tr_kv_value_code(&l, token, d)
                                    : tr_kv_key_code(&l, token, d);

            map[token * dim + d] = (uint16_t) (at.byte * 8 + at.shift);
        }
    }
}

static void
fill_maps(void)
{
    for (uint32_t i = 0; i < 3; i++) {
        for (uint32_t d = 0; d < DIMS; d++) {
            uint32_t dim = (d + 1) * DIM_STEP;

            fill_map(false, 8u >> i, dim, maps[0][i][d]);
            fill_map(true, 8u >> i, dim, maps[1][i][d]);
        }
    }
}

const uint16_t *
tr_code_map(bool value, uint32_t bits, uint32_t head_dim)
{
    pthread_once(&maps_once, fill_maps);
    return maps[value][bits == 8   ? 0
                       : bits == 4 ? 1
                                   : 2][head_dim / DIM_STEP - 1];
}

/* out = the codes of n dimensions. */
static void
unpack(const uint8_t *tile, const uint16_t *map, uint32_t bits, uint32_t n,
       float *out)
{
    uint32_t mask = (1u << bits) - 1;

    for (uint32_t d = 0; d < n; d++) {
        out[d] = (float) ((tile[map[d] / 8] >> (map[d] % 8)) & mask);
    }
}

static void
unpack_half(const uint8_t *row, uint32_t n, float *out)
{
    for (uint32_t d = 0; d < n; d++) {
        uint16_t h;

        memcpy(&h, row + 2 * (size_t) d, 2);
        out[d] = tr_float_from_half(h);
    }
}

/* x = x * scale + zero, for the FP16 pair at meta. */
static void
apply(const uint8_t *meta, float *x, uint32_t n)
{
    float pair[2];

    unpack_half(meta, 2, pair);
    for (uint32_t d = 0; d < n; d++) {
        x[d] = x[d] * pair[0] + pair[1];
    }
}

void
tr_unpack_key_codes(const tr_kv_layout_t *l, const uint8_t *page,
                    uint32_t token, float *out)
{
    uint32_t dim = l->head_dim, bits = l->level.key_bits;

    unpack(page + tr_kv_tile_byte(l, token),
           tr_code_map(false, bits, dim) + token % 16 * dim, bits, dim, out);
}

void
tr_unpack_key(const tr_kv_layout_t *l, const uint8_t *page, uint32_t token,
              float *out)
{
    uint32_t dim = l->head_dim, bits = l->level.key_bits;
    uint32_t step = l->level.by_channel ? 1 : dim / 4 / l->level.key_groups;

    if (bits == 16) {
        unpack_half(page + tr_kv_key_row(l, token), dim, out);
        return;
    }
    tr_unpack_key_codes(l, page, token, out);
    for (uint32_t d = 0; d < dim; d += step) {
        apply(page + tr_kv_key_meta(l, token, d), out + d, step);
    }
}

void
tr_unpack_value(const tr_kv_layout_t *l, const uint8_t *page, uint32_t token,
                float *out)
{
    uint32_t dim = l->head_dim, bits = l->level.value_bits;
    uint32_t step = dim / l->level.value_groups;

    if (bits == 16) {
        unpack_half(page + tr_kv_value_row(l, token), dim, out);
        return;
    }
    unpack(page + l->value + tr_kv_tile_byte(l, token),
           tr_code_map(true, bits, dim) + token % 16 * dim, bits, dim, out);
    for (uint32_t d = 0; d < dim; d += step) {
        apply(page + tr_kv_value_meta(l, token, d), out + d, step);
    }
}
