/*
 * Values of a part (included after the strip_t of attention_tier.h): weights,
 * and their product with codes where a level has one, else with FP32.
 */

/* Scale and zero of a tile's values in a metadata group; 1 and 0 where codes
 * are not used as they are. */
static inline void
value_meta(const strip_t *a, const tr_tile_iterator_t *at, uint32_t s,
           uint32_t group, vec *scale, vec *zero)
{
    *scale = v_set1(1);
    *zero = v_set1(0);
    if (!a->value_fields) {
        return;
    }
    load_meta(at->page + tr_kv_value_meta(a->l, at->first, 0), s,
              a->l->level.value_groups, group, vm_bits(at->mask >> s), scale,
              zero);
    if (a->l->level.value_bits == 2) { /* fields of later tokens */
        vec lanes = vi_float(vi_add(vi_lanes(), vi_set1(s)));

        *scale = v_select(v_less(lanes, v_set1(8)), *scale,
                          v_mul(*scale, v_set1(0x1p-4f)));
    }
}

/* Weights e^(logit - max), times the value's scale; the dimensions of the group
 * begin as the sum of weights times zero points. */
static inline __attribute__((always_inline)) void
weigh_heads(uint32_t heads, strip_t *a, uint32_t group)
{
    tr_tile_iterator_t at = { 0 };
    vec sum[V_HEADS], zeros[V_HEADS];

    for (uint32_t h = 0; h < heads; h++) {
        sum[h] = zeros[h] = v_set1(0);
    }
    while (tr_part_next(a->t, a->part, &at)) {
        size_t tile = (size_t) (at.tile - a->part->tile) * 16;

        for (uint32_t s = 0; s < 16; s += V_WIDTH) {
            vmask m = vm_bits(at.mask >> s);
            vec scale, zero;

            value_meta(a, &at, s, group, &scale, &zero);
            for (uint32_t h = 0; h < heads; h++) {
                vec p = v_load(a->logits + h * a->t->stride + tile + s);

                p = v_exp(v_sub(p, v_set1(a->max[h])));
                p = v_select(m, p, v_set1(0));
                sum[h] = v_add(sum[h], p);
                zeros[h] = v_fma(p, zero, zeros[h]);
                v_store(a->weights + h * TR_PART_SLOTS_MAX + tile + s,
                        v_mul(p, scale));
            }
        }
    }
    for (uint32_t h = 0; h < heads; h++) {
        float *out = a->out + h * (a->dim + 2), zero = v_hsum(zeros[h]);

        for (uint32_t d = a->from; d < a->to; d++) {
            out[d] = zero;
        }
        out[a->dim] = a->max[h];
        out[a->dim + 1] = v_hsum(sum[h]);
    }
}

static void
strip_weights(strip_t *a, uint32_t group)
{
#define CALL(n) weigh_heads(n, a, group)
    FOR_HEADS(a->heads, CALL)
#undef CALL
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
                codes += a->l->tile;
            }
        }
        value_store(bits, heads, v, line, w, acc, a->from, a->to, a->out,
                    a->dim + 2);
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
values_2_narrow(const strip_t *a)
{
#define CALL(n)                               \
    do {                                      \
        value_words_t v = value_words(2, 64); \
        part_codes(2, n, a, &v);              \
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
    tr_tile_iterator_t at = { 0 };

    while (tr_part_next(a->t, a->part, &at)) {
        const float *weight = a->weights
                              + (size_t) (at.tile - a->part->tile) * 16;

        for (uint32_t i = 0; i < 16; i++) {
            if (!(at.mask >> i & 1)) {
                continue;
            }
            if (a->l->level.value_bits == 16) {
                const uint16_t *row =
                    (const uint16_t *) (at.page
                                        + tr_kv_value_row(a->l, at.first + i));

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
code_values(const strip_t *a)
{
    uint32_t bits = a->l->level.value_bits;

    if (bits == 8) {
        values_8(a);
    } else if (bits == 2) {
        (a->dim == 64 ? values_2_narrow : values_2)(a);
    } else if (a->dim == 64) {
        values_4_mixed(a);
    } else {
        values_4(a);
    }
}
