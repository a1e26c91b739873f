/*
 * A row over tiers and window in vectors (after attention_tile.h): its parts.
 * attention.c says what a part is.
 *
 * A part goes over its pages twice, first the keys, then, with the largest
 * logit known, the values; up to V_HEADS query heads at a time, so that a code
 * is converted once for them.  Levels without a product of their own
 * (attention_field.h) go token by token through FP32.
 *
 * Slots without a token yield garbage, which is replaced, not multiplied
 * away: logits by -infinity, weights by 0, FP16 rows by zeros.
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
    float *weights; /* [heads][TR_PART_SLOTS_MAX]; first q . codes */
    float *query;   /* [heads * dim], scaled, in the order of the keys' codes */
    float *tile;    /* [16 * dim] */
    float sum_q[V_HEADS], max[V_HEADS];
    bool key_fields, value_fields; /* have products of their own */
    uint32_t from, to;             /* dimensions of a value's metadata group */
    const uint8_t *after;          /* a page that comes next, or NULL */
} strip_t;

static bool
has_fields(const tr_kv_layout_t *l, bool value)
{
    uint32_t bits = value ? l->level.value_bits : l->level.key_bits;

    if (bits == 16
        || (l->head_dim != 64 && l->head_dim != 128 && l->head_dim != 256)) {
        return false;
    }
    return value || (!l->level.by_channel && l->head_dim * bits >= 256);
}

/* Pair `group` of `groups` of the tokens of a tile from `token` on. */
static inline void
load_meta(const uint8_t *meta, uint32_t token, uint32_t groups, uint32_t group,
          vmask m, vec *scale, vec *zero)
{
    uint32_t pair[V_WIDTH];

    if (groups == 1) {
        v_meta(meta + (size_t) token * 4, m, scale, zero);
        return;
    }
    for (uint32_t i = 0; i < V_WIDTH; i++) {
        memcpy(&pair[i], meta + ((size_t) (token + i) * groups + group) * 4, 4);
    }
    v_meta(pair, m, scale, zero);
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

#include "attention_key.h"

#include "attention_value.h"

static void
strip_values(strip_t *a)
{
    uint32_t groups = a->value_fields ? a->l->level.value_groups : 1;

    for (uint32_t j = 0; j < groups; j++) {
        a->from = j * (a->dim / groups);
        a->to = a->from + a->dim / groups;
        strip_weights(a, j);
        if (a->value_fields) {
            code_values(a);
        } else {
            unpacked_values(a);
        }
    }
}

/* The page that is wanted when part i is done, if it is known. */
static const uint8_t *
after_part(const tr_attention_row_t *t, uint32_t i)
{
    tr_part_t part;

    if (i + 1 == tr_row_parts(t)) {
        return t->next;
    }
    tr_row_part(t, i + 1, &part);
    return tr_run_page(t->kv, part.run, part.page);
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
            .after = after_part(t, i),
        };

        if (a.key_fields) {
            code_logits(&a);
        } else {
            unpacked_logits(&a);
        }
        strip_values(&a);
    }
}
