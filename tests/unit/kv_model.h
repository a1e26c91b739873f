/*
 * A plain model of cached tokens, for the tests of what stores and moves them:
 * codes and metadata by dimension, written and read one by one through the
 * definitions of kv_layout.h, arithmetic as kernels.h says it.
 */
#ifndef TR_KV_MODEL_H
#define TR_KV_MODEL_H

#include "model_rig.h"

#include <math.h>

/* A key or a value: halves when it has 16 bits, else codes. */
typedef struct {
    uint32_t bits;
    uint16_t half[TR_HEAD_DIM_MAX];
    uint8_t code[TR_HEAD_DIM_MAX];
    uint16_t scale[TR_HEAD_DIM_MAX], zero[TR_HEAD_DIM_MAX];
} side_t;

typedef struct {
    side_t k, v;
    float score;
    uint32_t position;
} stored_t;

static inline uint16_t
half_bits(float x)
{
    _Float16 h;
    uint16_t u;

    x = x > 65504 ? 65504 : x < -65504 ? -65504 : x;
    h = (_Float16) x;
    memcpy(&u, &h, 2);
    return u;
}

/* Which metadata a dimension uses: equal for the dimensions of a group. */
static inline uint32_t
group_of(const tr_kv_layout_t *l, uint32_t d, bool value)
{
    return value ? tr_kv_value_meta(l, 0, d) : tr_kv_key_meta(l, 0, d);
}

/* n numbers x[0], x[step] .. that share their metadata. */
static inline void
model_group(const float *x, const uint32_t *at, uint32_t n, uint32_t bits,
            bool narrow, uint8_t *code, uint16_t *scale, uint16_t *zero)
{
    float lo = INFINITY, hi = -INFINITY, top = (float) ((1 << bits) - 1);
    float s, z;

    for (uint32_t i = 0; i < n; i++) {
        if (!isnan(x[at[i]])) {
            lo = fminf(lo, x[at[i]]);
            hi = fmaxf(hi, x[at[i]]);
        }
    }
    if (!(lo <= hi)) {
        lo = hi = 0;
    }
    lo = fminf(fmaxf(lo, -65504), 65504);
    hi = fminf(fmaxf(hi, -65504), 65504);
    lo += 0.0f; /* never -0 */
    *zero = half_bits(narrow ? lo + (hi - lo) / 5 : lo);
    *scale = half_bits((hi - lo) / (narrow ? 5 : top));
    *scale = hi > lo && *scale == 0 ? 1 : *scale;
    z = tr_float_from_half(*zero);
    s = tr_float_from_half(*scale);
    for (uint32_t i = 0; i < n; i++) {
        float q = s == 0 || isnan(x[at[i]]) ? 0 : rintf((x[at[i]] - z) / s);

        code[at[i]] = (uint8_t) fminf(fmaxf(q, 0), top);
    }
}

static inline void
model_quantise(const tr_kv_layout_t *l, bool value, const float *x, side_t *out)
{
    uint32_t dim = l->head_dim, at[TR_HEAD_DIM_MAX], n;

    out->bits = value ? l->level.value_bits : l->level.key_bits;
    for (uint32_t d = 0; d < dim; d++) {
        out->half[d] = half_bits(x[d]);
    }
    for (uint32_t d = 0; out->bits < 16 && d < dim; d++) {
        uint32_t group = group_of(l, d, value);
        uint16_t scale, zero;

        n = 0;
        for (uint32_t e = 0; e < dim; e++) {
            if (group_of(l, e, value) == group) {
                at[n++] = e;
            }
        }
        if (at[0] != d) {
            continue; /* done */
        }
        model_group(x, at, n, out->bits, out->bits == 2 && l->level.narrow,
                    out->code, &scale, &zero);
        for (uint32_t i = 0; i < n; i++) {
            out->scale[at[i]] = scale;
            out->zero[at[i]] = zero;
        }
    }
}

static inline float
model_number(const side_t *s, uint32_t d)
{
    return s->bits == 16 ? tr_float_from_half(s->half[d])
                         : s->code[d] * tr_float_from_half(s->scale[d])
                               + tr_float_from_half(s->zero[d]);
}

/* Codes and scale of one dimension, from bits a to fewer bits b. */
static inline void
model_downgrade(side_t *s, uint32_t b, bool narrow, uint32_t dim)
{
    for (uint32_t d = 0; d < dim; d++) {
        if (s->bits == 8) {
            s->code[d] = (uint8_t) ((s->code[d] + 8) / 17);
            s->scale[d] = half_bits(tr_float_from_half(s->scale[d]) * 17);
        }
        if (b == 2 && narrow) { /* the nearest of what 3, 6, 9 and 12 were */
            s->code[d] = s->code[d] < 5    ? 0
                         : s->code[d] < 8  ? 1
                         : s->code[d] < 11 ? 2
                                           : 3;
            s->scale[d] = half_bits(tr_float_from_half(s->scale[d]) * 3);
            s->zero[d] = half_bits(tr_float_from_half(s->zero[d])
                                   + tr_float_from_half(s->scale[d]));
        } else if (b == 2) {
            s->code[d] = (uint8_t) ((s->code[d] + 2) / 5);
            s->scale[d] = half_bits(tr_float_from_half(s->scale[d]) * 5);
        }
    }
    s->bits = b;
}

/* One side of a token moves; never to keys by channel. */
static inline void
model_move(const tr_kv_layout_t *from, const tr_kv_layout_t *to, bool value,
           side_t *s)
{
    uint32_t dim = to->head_dim;
    uint32_t bits = value ? to->level.value_bits : to->level.key_bits;
    bool same = value ? from->level.value_groups == to->level.value_groups
                      : from->level.key_groups == to->level.key_groups
                            && !from->level.by_channel;

    if (s->bits < 16 && same) {
        if (s->bits != bits) {
            model_downgrade(s, bits, to->level.narrow, dim);
        }
    } else if (bits < 16) {
        float x[TR_HEAD_DIM_MAX];

        for (uint32_t d = 0; d < dim; d++) {
            x[d] = model_number(s, d);
        }
        model_quantise(to, value, x, s);
    }
}

/* TR_KV_CHANNEL_TOKENS keys, in order, to keys by channel. */
static inline void
model_tile(const tr_kv_layout_t *to, stored_t *t)
{
    uint32_t dim = to->head_dim, n = TR_KV_CHANNEL_TOKENS, at[32];
    float *x = malloc(n * dim * sizeof(float));
    uint8_t *code = malloc(n * dim);

    assert_true(x && code);
    for (uint32_t i = 0; i < n * dim; i++) {
        x[i] = model_number(&t[i / dim].k, i % dim);
    }
    for (uint32_t d = 0; d < dim; d++) {
        uint16_t scale, zero;

        for (uint32_t i = 0; i < n; i++) {
            at[i] = i * dim + d;
        }
        model_group(x, at, n, to->level.key_bits, false, code, &scale, &zero);
        for (uint32_t i = 0; i < n; i++) {
            t[i].k.bits = to->level.key_bits;
            t[i].k.code[d] = code[i * dim + d];
            t[i].k.scale[d] = scale;
            t[i].k.zero[d] = zero;
        }
    }
    free(x);
    free(code);
}

/* What stands in a page. */
static inline void
model_read(const uint8_t *page, const tr_kv_layout_t *l, uint32_t i,
           stored_t *out)
{
    uint32_t dim = l->head_dim;

    memset(out, 0, sizeof(*out));
    for (int value = 0; value < 2; value++) {
        side_t *s = value ? &out->v : &out->k;

        s->bits = value ? l->level.value_bits : l->level.key_bits;
        for (uint32_t d = 0; d < dim; d++) {
            if (s->bits == 16) {
                memcpy(&s->half[d],
                       page
                           + (value ? tr_kv_value_row(l, i)
                                    : tr_kv_key_row(l, i))
                           + 2 * d,
                       2);
                continue;
            }
            s->code[d] = (uint8_t) tr_kv_code_get(
                page,
                value ? tr_kv_value_code(l, i, d) : tr_kv_key_code(l, i, d),
                s->bits);
            memcpy(&s->scale[d],
                   page
                       + (value ? tr_kv_value_meta(l, i, d)
                                : tr_kv_key_meta(l, i, d)),
                   2);
            memcpy(&s->zero[d],
                   page
                       + (value ? tr_kv_value_meta(l, i, d)
                                : tr_kv_key_meta(l, i, d))
                       + 2,
                   2);
        }
    }
    if (l->level.scored) {
        memcpy(&out->score, page + l->score + 4 * i, 4);
    }
    if (l->position) {
        out->position = tr_kv_position_at(l, page, i);
    }
}

static inline void
model_same_side(const side_t *is, const side_t *want, uint32_t dim,
                const char *what)
{
    assert_int_equal(is->bits, want->bits);
    for (uint32_t d = 0; d < dim; d++) {
        bool same = is->bits == 16 ? is->half[d] == want->half[d]
                                   : is->code[d] == want->code[d]
                                         && is->scale[d] == want->scale[d]
                                         && is->zero[d] == want->zero[d];

        if (!same) {
            fail_msg("%s of %u bits, dim %u of %u: half 0x%04x, code %u, scale "
                     "0x%04x, zero 0x%04x; expected 0x%04x, %u, 0x%04x, 0x%04x",
                     what, is->bits, d, dim, is->half[d], is->code[d],
                     is->scale[d], is->zero[d], want->half[d], want->code[d],
                     want->scale[d], want->zero[d]);
        }
    }
}

/* Is this token what the page has at i, bit for bit? */
static inline void
model_check(const uint8_t *page, const tr_kv_layout_t *l, uint32_t i,
            const stored_t *want)
{
    stored_t is;

    model_read(page, l, i, &is);
    model_same_side(&is.k, &want->k, l->head_dim, "key");
    model_same_side(&is.v, &want->v, l->head_dim, "value");
    if (l->level.scored && is.score != want->score) {
        fail_msg("token %u of the page: score %g, expected %g", i, is.score,
                 want->score);
    }
    if (l->position) {
        assert_int_equal(is.position, want->position);
    }
}

#endif
