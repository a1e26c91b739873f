/*
 * Logits of a part (included after the strip_t of attention_tier.h): from
 * codes where a level has products for them, else from FP32.
 */

static void
keys_8(const strip_t *a, const uint8_t *page, uint32_t tiles, float *out,
       ask_t ahead)
{
#define CALL(n)                                                          \
    key_lines(8, n, a->dim / 64, page, a->l->tile, tiles, a->query, out, \
              TR_PART_SLOTS_MAX, ahead)
    FOR_HEADS(a->heads, CALL)
#undef CALL
}

static void
keys_4(const strip_t *a, const uint8_t *page, uint32_t tiles, float *out,
       ask_t ahead)
{
#define CALL(n)                                                           \
    key_lines(4, n, a->dim / 128, page, a->l->tile, tiles, a->query, out, \
              TR_PART_SLOTS_MAX, ahead)
    FOR_HEADS(a->heads, CALL)
#undef CALL
}

static void
keys_4_shared(const strip_t *a, const uint8_t *page, uint32_t tiles, float *out,
              ask_t ahead)
{
#define CALL(n)                                                    \
    key_shared_lines(4, n, page, a->l->tile, tiles, a->query, out, \
                     TR_PART_SLOTS_MAX, ahead)
    FOR_HEADS(a->heads, CALL)
#undef CALL
}

static void
keys_2(const strip_t *a, const uint8_t *page, uint32_t tiles, float *out,
       ask_t ahead)
{
#define CALL(n)                                                           \
    key_lines(2, n, a->dim / 256, page, a->l->tile, tiles, a->query, out, \
              TR_PART_SLOTS_MAX, ahead)
    FOR_HEADS(a->heads, CALL)
#undef CALL
}

static void
keys_2_shared(const strip_t *a, const uint8_t *page, uint32_t tiles, float *out,
              ask_t ahead)
{
#define CALL(n)                                                    \
    key_shared_lines(2, n, page, a->l->tile, tiles, a->query, out, \
                     TR_PART_SLOTS_MAX, ahead)
    FOR_HEADS(a->heads, CALL)
#undef CALL
}

/* q . codes for the tiles of a page; out: [heads][TR_PART_SLOTS_MAX]; next:
 * NULL, or a page that is wanted later. */
static void
page_codes(const strip_t *a, const uint8_t *page, uint32_t tiles, float *out,
           const uint8_t *next)
{
    uint32_t bits = a->l->level.key_bits;
    bool shared = a->dim * bits == 256;
    /* times that the products ask */
    uint32_t times = shared
                         ? (tiles + V_WIDTH / 8 - 1) / (V_WIDTH / 8) * 4
                         : tiles * 4 * (a->dim * bits / 512) * (16 / V_WIDTH);
    ask_t ahead = { next, 0 };

    if (next != NULL) {
        ahead.lines = (uint32_t) ((a->t->kv->page_bytes / 64 + times - 1)
                                  / times);
    }
    if (bits == 8) {
        keys_8(a, page, tiles, out, ahead);
    } else if (bits == 4) {
        (shared ? keys_4_shared : keys_4)(a, page, tiles, out, ahead);
    } else {
        (shared ? keys_2_shared : keys_2)(a, page, tiles, out, ahead);
    }
}

/* Logits from q . codes of one metadata group: takes scale and zero in, adds
 * what earlier groups gave, removes what is no token, finds the largest. */
static inline __attribute__((always_inline)) void
fold_heads(uint32_t heads, strip_t *a, uint32_t group)
{
    tr_tile_iterator_t at = { 0 };
    vec max[V_HEADS];

    for (uint32_t h = 0; h < heads; h++) {
        max[h] = v_set1(-INFINITY);
    }
    while (tr_part_next(a->t, a->part, &at)) {
        size_t tile = (size_t) (at.tile - a->part->tile) * 16;

        for (uint32_t s = 0; s < 16; s += V_WIDTH) {
            vmask m = vm_bits(at.mask >> s);
            vec scale, zero;

            load_meta(at.page + tr_kv_key_meta(a->l, at.first, 0), s,
                      a->l->level.key_groups, group, m, &scale, &zero);
            for (uint32_t h = 0; h < heads; h++) {
                const float *in = a->weights + h * TR_PART_SLOTS_MAX + tile + s;
                float *x = a->logits + h * a->t->stride + tile + s;
                vec v = v_mul(zero, v_set1(a->sum_q[h]));

                v = v_fma(scale, v_load(in), v);
                v = group == 0 ? v : v_add(v, v_load(x));
                v = v_select(m, v, v_set1(-INFINITY));
                v_store(x, v);
                max[h] = v_max(v, max[h]);
            }
        }
    }
    for (uint32_t h = 0; h < heads; h++) {
        a->max[h] = v_hmax(max[h]);
    }
}

static void
fold_group(strip_t *a, uint32_t group)
{
#define CALL(n) fold_heads(n, a, group)
    FOR_HEADS(a->heads, CALL)
#undef CALL
}

/* The scaled query in one of `groups` metadata groups, zero outside of it. */
static void
scale_query(strip_t *a, uint32_t group, uint32_t groups, float *q)
{
    uint32_t step = a->dim / 4 / groups;

    for (uint32_t h = 0; h < a->heads; h++, q += a->dim) {
        vec sum = v_set1(0);

        for (uint32_t d = 0; d < a->dim; d += V_WIDTH) {
            v_store(q + d,
                    v_mul(v_load(a->q + h * a->dim + d), v_set1(a->t->scale)));
        }
        for (uint32_t d = 0; d < a->dim && groups > 1; d++) {
            q[d] = d / step % groups == group ? q[d] : 0;
        }
        for (uint32_t d = 0; d < a->dim; d += V_WIDTH) {
            sum = v_add(sum, v_load(q + d));
        }
        a->sum_q[h] = v_hsum(sum);
    }
}

/* Logits by way of codes, one metadata group of dimensions after the other. */
static void
code_logits(strip_t *a)
{
    const tr_part_t *p = a->part;
    uint32_t groups = a->l->level.key_groups, tiles = tr_page_tiles(a->l);
    const uint8_t *page, *next;

    for (uint32_t j = 0; j < groups; j++) {
        page = tr_run_page(a->t->kv, p->run, p->page);
        scale_query(a, j, groups, a->tile);
        order_query(a->l->level.key_bits, a->heads, a->dim, a->tile, a->query);
        for (uint32_t i = 0; i < p->pages; i++, page = next) {
            next = i + 1 < p->pages
                       ? tr_run_page(a->t->kv, p->run, p->page + i + 1)
                       : a->after;
            page_codes(a, page, (tr_run_used(p->run, p->page + i) + 15) / 16,
                       a->weights + (size_t) i * tiles * 16, next);
        }
        fold_group(a, j);
    }
}

/* A tile of FP16 keys, [dim][16]. */
static void
load_half_keys(const strip_t *a, const tr_tile_iterator_t *at)
{
    uint32_t dim = a->dim;

    for (uint32_t i = 0; i < 16; i += V_WIDTH) {
        const uint16_t *row[V_WIDTH];

        for (uint32_t j = 0; j < V_WIDTH; j++) {
            const uint8_t *key = at->page
                                 + tr_kv_key_row(a->l, at->first + i + j);

            row[j] = at->mask >> (i + j) & 1 ? (const uint16_t *) key
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
apply_channels(const strip_t *a, const tr_tile_iterator_t *at)
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
load_tile_keys(const strip_t *a, const tr_tile_iterator_t *at)
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

/* Logits by way of FP32. */
static void
unpacked_logits(strip_t *a)
{
    tr_tile_iterator_t at = { 0 };
    vec max[V_HEADS];

    for (uint32_t h = 0; h < a->heads; h++) {
        max[h] = v_set1(-INFINITY);
        for (uint32_t d = 0; d < a->dim; d++) {
            a->query[d * a->heads + h] = a->q[h * a->dim + d] * a->t->scale;
        }
    }
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
                vec v = v_select(vm_bits(at.mask >> s),
                                 v_add(acc[0][h], acc[1][h]),
                                 v_set1(-INFINITY));

                v_store(logits + h * a->t->stride + s, v);
                max[h] = v_max(v, max[h]);
            }
        }
    }
    for (uint32_t h = 0; h < a->heads; h++) {
        a->max[h] = v_hmax(max[h]);
    }
}
