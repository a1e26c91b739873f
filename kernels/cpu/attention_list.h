/*
 * A row over lists and window in vectors (after attention_tile.h): parts and
 * scores.  attention.c says what a part is.
 *
 * A part goes over its pages twice, first the keys, then, with the largest
 * logit known, the values; up to V_HEADS query heads at a time, so that a code
 * is converted once for them.  Levels without a product of their own
 * (attention_field.h) go token by token through FP32.
 *
 * Slots without a token give garbage of their own, which is replaced (not
 * multiplied away): logits by -infinity, weights by 0, FP16 rows by zeros.
 */
#include "attention_field.h"

/* Some query heads of a part. */
typedef struct {
    const tr_attention_row_t *t;
    const tr_part_t *part;
    const tr_kv_layout_t *l;
    uint32_t dim, heads;
    const float *q; /* [heads][dim] */
    float *logits;  /* [heads][t->stride], of the part */
    float *out;     /* [heads] dim + 2 apart */
    float *weights; /* [heads][TR_PART_SLOTS_MAX] */
    float *query;   /* [heads * dim], scaled, in the order of the keys' codes */
    float *tile;    /* [16 * dim] */
    float sum_q[V_HEADS], max[V_HEADS];
    bool key_fields, value_fields; /* have products of their own */
} strip_t;

static bool
has_fields(const tr_kv_layout_t *l, bool value)
{
    uint32_t bits = value ? l->level.value_bits : l->level.key_bits;

    if (bits == 16
        || (l->head_dim != 64 && l->head_dim != 128 && l->head_dim != 256)) {
        return false;
    }
    return value ? l->level.value_groups == 1
                 : l->level.key_groups == 1 && !l->level.by_channel
                       && l->head_dim * bits >= 256;
}

/* f for one to V_HEADS heads, as a constant. */
#if V_HEADS == 4
#define FOR_HEADS(n, f) \
    switch (n) {        \
    case 1:             \
        f(1);           \
        break;          \
    case 2:             \
        f(2);           \
        break;          \
    case 3:             \
        f(3);           \
        break;          \
    default:            \
        f(4);           \
    }
#else
#define FOR_HEADS(n, f) \
    switch (n) {        \
    case 1:             \
        f(1);           \
        break;          \
    case 2:             \
        f(2);           \
        break;          \
    default:            \
        f(3);           \
    }
#endif

/* ---- keys ---- */

static void
keys_8(const strip_t *a, const uint8_t *page, uint32_t tiles, float *out)
{
#define CALL(n) \
    key_lines(8, n, a->dim / 64, page, tiles, a->query, out, a->t->stride)
    FOR_HEADS(a->heads, CALL)
#undef CALL
}

static void
keys_4(const strip_t *a, const uint8_t *page, uint32_t tiles, float *out)
{
#define CALL(n) \
    key_lines(4, n, a->dim / 128, page, tiles, a->query, out, a->t->stride)
    FOR_HEADS(a->heads, CALL)
#undef CALL
}

static void
keys_4_shared(const strip_t *a, const uint8_t *page, uint32_t tiles, float *out)
{
#define CALL(n) key_shared_lines(4, n, page, tiles, a->query, out, a->t->stride)
    FOR_HEADS(a->heads, CALL)
#undef CALL
}

static void
keys_2(const strip_t *a, const uint8_t *page, uint32_t tiles, float *out)
{
#define CALL(n) \
    key_lines(2, n, a->dim / 256, page, tiles, a->query, out, a->t->stride)
    FOR_HEADS(a->heads, CALL)
#undef CALL
}

static void
keys_2_shared(const strip_t *a, const uint8_t *page, uint32_t tiles, float *out)
{
#define CALL(n) key_shared_lines(2, n, page, tiles, a->query, out, a->t->stride)
    FOR_HEADS(a->heads, CALL)
#undef CALL
}

/* q . codes for the tiles of a page; out: [heads][stride]. */
static void
page_codes(const strip_t *a, const uint8_t *page, uint32_t tiles, float *out)
{
    uint32_t bits = a->l->level.key_bits;
    bool shared = a->dim * bits == 256;

    if (bits == 8) {
        keys_8(a, page, tiles, out);
    } else if (bits == 4) {
        (shared ? keys_4_shared : keys_4)(a, page, tiles, out);
    } else {
        (shared ? keys_2_shared : keys_2)(a, page, tiles, out);
    }
}

/* Takes metadata in, removes what is no token, finds the largest. */
static void
finish_logits(strip_t *a)
{
    tr_spot_t at = { 0 };
    vec max[V_HEADS];

    for (uint32_t h = 0; h < a->heads; h++) {
        max[h] = v_set1(-INFINITY);
    }
    while (tr_part_next(a->t, a->part, &at)) {
        float *logits = a->logits + (size_t) (at.tile - a->part->tile) * 16;

        for (uint32_t s = 0; s < 16; s += V_WIDTH) {
            vmask m = vm_bits(at.mask >> s);
            vec scale = v_set1(1), zero = v_set1(0);

            if (a->key_fields) {
                v_meta(at.page + a->l->key_meta + (at.first + s) * 4, m, &scale,
                       &zero);
            }
            for (uint32_t h = 0; h < a->heads; h++) {
                float *x = logits + h * a->t->stride + s;
                vec v = v_load(x);

                if (a->key_fields) {
                    v = v_fma(scale, v, v_mul(zero, v_set1(a->sum_q[h])));
                }
                v = v_select(m, v, v_set1(-INFINITY));
                v_store(x, v);
                max[h] = v_max(v, max[h]);
            }
        }
    }
    for (uint32_t h = 0; h < a->heads; h++) {
        a->max[h] = v_hmax(max[h]);
    }
}

/* A tile of FP16 keys, [dim][16]. */
static void
load_half_keys(const strip_t *a, const tr_spot_t *at)
{
    uint32_t dim = a->dim;

    for (uint32_t i = 0; i < 16; i += V_WIDTH) {
        const uint16_t *row[V_WIDTH];

        for (uint32_t j = 0; j < V_WIDTH; j++) {
            row[j] = at->mask >> (i + j) & 1
                         ? (const uint16_t *) at->page
                               + (size_t) (at->first + i + j) * dim
                         : zero_row;
        }
        for (uint32_t d = 0; d < dim; d += V_WIDTH) {
            vec v[V_WIDTH];

            for (uint32_t j = 0; j < V_WIDTH; j++) {
                v[j] = v_from_half(row[j] + d);
            }
            v_transpose(v);
            for (uint32_t j = 0; j < V_WIDTH; j++) {
                v_store(a->tile + (d + j) * 16 + i, v[j]);
            }
        }
    }
}

/* Metadata by channel, for a tile of codes [dim][16]. */
static void
apply_channels(const strip_t *a, const tr_spot_t *at)
{
    const uint8_t *meta = at->page + tr_kv_key_meta(a->l, at->first, 0);

    for (uint32_t d = 0; d < a->dim; d += V_WIDTH) {
        float scale[V_WIDTH], zero[V_WIDTH];
        vec s, z;

        v_meta(meta + (size_t) d * 4, vm_bits(0xffff), &s, &z);
        v_store(scale, s);
        v_store(zero, z);
        for (uint32_t j = 0; j < V_WIDTH; j++) {
            for (uint32_t i = 0; i < 16; i += V_WIDTH) {
                float *x = a->tile + (d + j) * 16 + i;

                v_store(x, v_fma(v_load(x), v_set1(scale[j]), v_set1(zero[j])));
            }
        }
    }
}

/* A tile of keys in FP32, [dim][16]. */
static void
load_tile_keys(const strip_t *a, const tr_spot_t *at)
{
    uint32_t dim = a->dim;
    float key[TR_HEAD_DIM_MAX];

    if (a->l->level.key_bits == 16) {
        load_half_keys(a, at);
        return;
    }
    memset(a->tile, 0, 16 * dim * sizeof(float));
    for (uint32_t i = 0; i < 16; i++) {
        if (!(at->mask >> i & 1)) {
            continue;
        }
        if (a->l->level.by_channel) {
            tr_unpack_key_codes(a->l, at->page, at->first + i, key);
        } else {
            tr_unpack_key(a->l, at->page, at->first + i, key);
        }
        for (uint32_t d = 0; d < dim; d++) {
            a->tile[d * 16 + i] = key[d];
        }
    }
    if (a->l->level.by_channel) {
        apply_channels(a, at);
    }
}

/* Logits of the part by way of FP32. */
static void
unpacked_logits(const strip_t *a)
{
    tr_spot_t at = { 0 };

    while (tr_part_next(a->t, a->part, &at)) {
        float *logits = a->logits + (size_t) (at.tile - a->part->tile) * 16;

        load_tile_keys(a, &at);
        for (uint32_t s = 0; s < 16; s += V_WIDTH) {
            vec acc[2][V_HEADS];

            for (uint32_t h = 0; h < a->heads; h++) {
                acc[0][h] = acc[1][h] = v_set1(0);
            }
            for (uint32_t d = 0; d < a->dim; d++) {
                vec key = v_load(a->tile + d * 16 + s);

                for (uint32_t h = 0; h < a->heads; h++) {
                    acc[d % 2][h] = v_fma(v_set1(a->query[d * a->heads + h]),
                                          key, acc[d % 2][h]);
                }
            }
            for (uint32_t h = 0; h < a->heads; h++) {
                v_store(logits + h * a->t->stride + s,
                        v_add(acc[0][h], acc[1][h]));
            }
        }
    }
}

static void
strip_logits(strip_t *a)
{
    const tr_part_t *p = a->part;
    uint32_t tiles = tr_page_tiles(a->l), heads = a->heads;

    for (uint32_t h = 0; h < heads; h++) {
        a->sum_q[h] = 0;
        for (uint32_t d = 0; d < a->dim; d++) {
            float x = a->q[h * a->dim + d] * a->t->scale;

            a->sum_q[h] += x;
            if (!a->key_fields) {
                a->query[d * heads + h] = x;
            }
        }
    }
    if (!a->key_fields) {
        unpacked_logits(a);
        return;
    }
    order_query(a->l->level.key_bits, heads, a->dim, a->q, a->t->scale,
                a->query);
    for (uint32_t i = 0; i < p->pages; i++) {
        uint32_t used = tr_run_used(p->run, p->page + i);

        page_codes(a, tr_run_page(a->t->kv, p->run, p->page + i),
                   (used + 15) / 16, a->logits + (size_t) i * tiles * 16);
    }
}

/* ---- values ---- */

/* Weights e^(logit - max), times the value's scale where its codes are used as
 * they are; every output begins as the sum of weights times zero points. */
static void
strip_weights(strip_t *a)
{
    const uint32_t bits = a->l->level.value_bits;
    tr_spot_t at = { 0 };
    vec sum[V_HEADS], zeros[V_HEADS];

    for (uint32_t h = 0; h < a->heads; h++) {
        sum[h] = zeros[h] = v_set1(0);
    }
    while (tr_part_next(a->t, a->part, &at)) {
        uint32_t tile = at.tile - a->part->tile;

        for (uint32_t s = 0; s < 16; s += V_WIDTH) {
            vmask m = vm_bits(at.mask >> s);
            vec scale = v_set1(1), zero = v_set1(0);

            if (a->value_fields) {
                v_meta(at.page + a->l->value_meta + (at.first + s) * 4, m,
                       &scale, &zero);
            }
            if (a->value_fields && bits == 2) { /* fields of later tokens */
                vec lanes = vi_float(vi_add(vi_lanes(), vi_set1(s)));

                scale = v_select(v_less(lanes, v_set1(8)), scale,
                                 v_mul(scale, v_set1(0x1p-4f)));
            }
            for (uint32_t h = 0; h < a->heads; h++) {
                vec p = v_load(a->logits + h * a->t->stride + tile * 16 + s);

                p = v_exp(v_sub(p, v_set1(a->max[h])));
                p = v_select(m, p, v_set1(0));
                sum[h] = v_add(sum[h], p);
                zeros[h] = v_fma(p, zero, zeros[h]);
                v_store(a->weights + h * TR_PART_SLOTS_MAX + tile * 16 + s,
                        v_mul(p, scale));
            }
        }
    }
    for (uint32_t h = 0; h < a->heads; h++) {
        float *out = a->out + h * (a->dim + 2), zero = v_hsum(zeros[h]);

        for (uint32_t d = 0; d < a->dim; d++) {
            out[d] = zero;
        }
        out[a->dim] = a->max[h];
        out[a->dim + 1] = v_hsum(sum[h]);
    }
}

/* Adds weights . codes of the whole part. */
static inline __attribute__((always_inline)) void
part_codes(uint32_t bits, uint32_t heads, const strip_t *a,
           const value_words_t *v)
{
    const tr_part_t *part = a->part;

    for (uint32_t i = 0; i < v->lines * (16 / V_WIDTH); i++) {
        uint32_t line = i / (16 / V_WIDTH), w = i % (16 / V_WIDTH) * V_WIDTH;
        uint32_t at = v->narrow ? 0 : line / 2 * 512 + line % 2 * 64;
        const float *weight = a->weights;
        vec acc[4][V_HEADS];

        for (uint32_t f = 0; f < 4; f++) {
            for (uint32_t h = 0; h < heads; h++) {
                acc[f][h] = v_set1(0);
            }
        }
        for (uint32_t j = 0; j < part->pages; j++) {
            uint32_t used = tr_run_used(part->run, part->page + j);
            const uint8_t *codes = tr_run_page(a->t->kv, part->run,
                                               part->page + j)
                                   + a->l->value + at + w * 4;

            for (uint32_t k = 0; k < used; k += 16, weight += 16) {
                value_tile(bits, heads, v, codes, weight, TR_PART_SLOTS_MAX,
                           acc);
                codes += 2 * v->dim * bits;
            }
        }
        value_store(bits, heads, v, line, w, acc, a->out, a->dim + 2);
    }
}

static void
values_8(const strip_t *a)
{
#define CALL(n)                                   \
    do {                                          \
        value_words_t v = value_words(8, a->dim); \
        part_codes(8, n, a, &v);                  \
    } while (0)
    FOR_HEADS(a->heads, CALL)
#undef CALL
}

static void
values_4(const strip_t *a)
{
    value_words_t words = value_words(4, a->dim);

#define CALL(n)                  \
    do {                         \
        value_words_t v = words; \
        v.mixed = false;         \
        part_codes(4, n, a, &v); \
    } while (0)
    FOR_HEADS(a->heads, CALL)
#undef CALL
}

static void
values_4_mixed(const strip_t *a)
{
#define CALL(n)                               \
    do {                                      \
        value_words_t v = value_words(4, 64); \
        part_codes(4, n, a, &v);              \
    } while (0)
    FOR_HEADS(a->heads, CALL)
#undef CALL
}

static void
values_2(const strip_t *a)
{
#define CALL(n)                                   \
    do {                                          \
        value_words_t v = value_words(2, a->dim); \
        part_codes(2, n, a, &v);                  \
    } while (0)
    FOR_HEADS(a->heads, CALL)
#undef CALL
}

/* out[h] += weight * value, for `dim` dimensions, by way of FP32. */
static void
unpacked_values(const strip_t *a)
{
    tr_spot_t at = { 0 };

    while (tr_part_next(a->t, a->part, &at)) {
        const float *weight = a->weights
                              + (size_t) (at.tile - a->part->tile) * 16;

        for (uint32_t i = 0; i < 16; i++) {
            if (!(at.mask >> i & 1)) {
                continue;
            }
            if (a->l->level.value_bits == 16) {
                const uint16_t *row = (const uint16_t *) (at.page + a->l->value)
                                      + (size_t) (at.first + i) * a->dim;

                for (uint32_t d = 0; d < a->dim; d += V_WIDTH) {
                    v_store(a->tile + i * a->dim + d, v_from_half(row + d));
                }
            } else {
                tr_unpack_value(a->l, at.page, at.first + i,
                                a->tile + i * a->dim);
            }
        }
        for (uint32_t d = 0; d < a->dim; d += V_WIDTH) {
            for (uint32_t h = 0; h < a->heads; h++) {
                float *out = a->out + h * (a->dim + 2) + d;
                vec acc = v_load(out);

                for (uint32_t i = 0; i < 16; i++) {
                    if (at.mask >> i & 1) {
                        vec p = v_set1(weight[h * TR_PART_SLOTS_MAX + i]);

                        acc = v_fma(p, v_load(a->tile + i * a->dim + d), acc);
                    }
                }
                v_store(out, acc);
            }
        }
    }
}

static void
strip_values(const strip_t *a)
{
    uint32_t bits = a->l->level.value_bits;

    if (!a->value_fields) {
        unpacked_values(a);
    } else if (bits == 8) {
        values_8(a);
    } else if (bits == 2) {
        values_2(a);
    } else if (a->dim == 64) {
        values_4_mixed(a);
    } else {
        values_4(a);
    }
}

static void
attention_part(const tr_attention_row_t *t, uint32_t i, float *scratch)
{
    uint32_t dim = t->kv->head_dim, passes = (t->group + V_HEADS - 1) / V_HEADS;
    uint32_t step = (t->group + passes - 1) / passes;
    tr_part_t part;

    tr_row_part(t, i, &part);
    for (uint32_t h = 0; h < t->group; h += step) {
        strip_t a = {
            .t = t,
            .part = &part,
            .l = part.run->layout,
            .dim = dim,
            .heads = t->group - h < step ? t->group - h : step,
            .q = t->q + (size_t) h * dim,
            .logits = t->logits + h * t->stride + (size_t) part.tile * 16,
            .out = t->partial + ((size_t) i * t->group + h) * (dim + 2),
            .weights = scratch,
            .query = scratch + 4 * TR_PART_SLOTS_MAX,
            .tile = scratch + 4 * TR_PART_SLOTS_MAX + 4 * dim,
            .key_fields = has_fields(part.run->layout, false),
            .value_fields = has_fields(part.run->layout, true),
        };

        strip_logits(&a);
        finish_logits(&a);
        strip_weights(&a);
        strip_values(&a);
    }
}

/* ---- scores ---- */

/* The least significant token so far, lane by lane. */
typedef struct {
    vec significance;
    veci position, slot;
} least_t;

/* Lanes s on of a tile. */
static inline void
score_lanes(const tr_attention_row_t *t, const tr_kv_layout_t *l,
            const tr_spot_t *at, uint32_t s, const float *lse, least_t *least)
{
    vmask m = vm_bits(at->mask >> s), better, own;
    float *scores = (float *) (at->page + l->score) + at->first + s;
    const uint32_t *positions = (const uint32_t *) (at->page + l->position)
                                + at->first + s;
    const float *logits = t->logits + (size_t) at->tile * 16 + s;
    vec best = v_sub(v_load(logits), v_set1(lse[0])), score, x;
    veci position = vi_load_some(m, positions);
    veci later = vi_sub(vi_set1(t->position), position);

    for (uint32_t h = 1; h < t->group; h++) {
        best = v_max(best,
                     v_sub(v_load(logits + h * t->stride), v_set1(lse[h])));
    }
    own = vi_less(later, vi_set1(1));
    x = v_select(own, v_set1(0), v_exp(best));
    score = v_add(v_load_some(m, scores), x);
    v_store_some(m, scores, score);
    x = score;
    if (!t->by_sum) {
        x = v_select(own, v_set1(0), v_div(score, vi_float(later)));
    }
    better = vm_or(v_less(x, least->significance),
                   vm_and(v_equal(x, least->significance),
                          vi_less(position, least->position)));
    better = vm_and(better, m);
    least->significance = v_select(better, x, least->significance);
    least->position = vi_select(better, position, least->position);
    least->slot = vi_select(better, vi_add(vi_set1(at->slot + s), vi_lanes()),
                            least->slot);
}

static tr_kv_victim_t
least_of(const least_t *least)
{
    float significance[V_WIDTH];
    int32_t position[V_WIDTH], slot[V_WIDTH];
    uint32_t best = 0;

    v_store(significance, least->significance);
    vi_store(position, least->position);
    vi_store(slot, least->slot);
    for (uint32_t i = 1; i < V_WIDTH; i++) {
        if (significance[i] < significance[best]
            || (significance[i] == significance[best]
                && position[i] < position[best])) {
            best = i;
        }
    }
    return (tr_kv_victim_t){ significance[best], (uint32_t) slot[best] };
}

static void
attention_row_score(const tr_attention_row_t *t, const float *lse)
{
    const least_t none = { v_set1(INFINITY), vi_set1(INT32_MAX), vi_set1(0) };
    uint32_t parts = tr_row_parts(t);
    least_t least = none;

    for (uint32_t i = 0; i < parts; i++) {
        tr_spot_t at = { 0 };
        tr_part_t part;

        tr_row_part(t, i, &part);
        if (part.run->layout->score == 0) {
            continue;
        }
        if (part.page == 0) {
            least = none;
        }
        while (tr_part_next(t, &part, &at)) {
            for (uint32_t s = 0; s < 16; s += V_WIDTH) {
                score_lanes(t, part.run->layout, &at, s, lse, &least);
            }
        }
        if (part.run->list >= 0) {
            t->victim[part.run->list] = least_of(&least);
        }
    }
}

/* ---- Quest ---- */

static float
attention_bound(const float *q, uint32_t group, const uint16_t *digest,
                uint32_t dim)
{
    float best = -INFINITY;

    for (uint32_t h = 0; h < group; h++) {
        vec sum = v_set1(0);
        float x;

        for (uint32_t d = 0; d < dim; d += V_WIDTH) {
            vec v = v_load(q + h * dim + d);

            sum = v_add(sum, v_max(v_mul(v, v_from_half(digest + d)),
                                   v_mul(v, v_from_half(digest + dim + d))));
        }
        x = v_hsum(sum);
        best = x > best ? x : best;
    }
    return best;
}
