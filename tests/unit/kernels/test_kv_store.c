/*
 * Tokens in pages (kernels/cpu/kv/kv_store.h): quantised, moved to another
 * place or level, in tiles by channel; each instruction set bit for bit against
 * kv_model.h, all head sizes, bit pairs and groups, scales from 1e-6 to 1e4,
 * in pages full of NaN.
 */
#include "tests/unit/fixtures/kv/kv_model.h"

#include "kernels/cpu/kv/kv_store.h"
#include "kernels/kernels.h"

static uint64_t rng;

static const uint32_t dims[] = { 64, 96, 128, 256 };
static const uint8_t bits[] = { 16, 8, 4, 2 };
static const float scales[] = { 1e-6f, 1e-4f, 1e-2f, 1, 1e2f, 1e4f };

static const tr_kv_codec_t *
codec_of(uint32_t i)
{
    static const tr_kv_codec_t *const codec[] = { &tr_kv_codec_c,
                                                  &tr_kv_codec_avx2,
                                                  &tr_kv_codec_avx512 };
    static const char *const isa[] = { "c", "avx2", "avx512" };

    return tr_kernels_cpu(isa[i]) ? codec[i] : NULL;
}

/* Numbers of one scale around an offset, with outliers now and then. */
static void
numbers(float *x, uint32_t n, float scale)
{
    float offset = rng_below(&rng, 2) ? 0 : rng_normal(&rng) * scale;
    bool outliers = rng_below(&rng, 4) == 0;

    for (uint32_t i = 0; i < n; i++) {
        x[i] = offset + rng_normal(&rng) * scale;
        if (outliers && rng_below(&rng, 16) == 0) {
            x[i] *= 30;
        }
    }
}

static float
any_scale(void)
{
    return scales[rng_below(&rng, sizeof(scales) / sizeof(scales[0]))];
}

/* One layout of its own, and a page full of NaN for it. */
typedef struct {
    tr_page_plan_t plan;
    const tr_kv_layout_t *l;
    uint8_t *page;
} sheet_t;

static tr_kv_level_t
level_of(uint32_t dim, uint32_t pair, uint32_t groups, bool channel)
{
    tr_kv_level_t v = { .key_bits = bits[pair / 4],
                        .value_bits = bits[pair % 4],
                        .key_groups = 1,
                        .value_groups = 1,
                        .by_channel = channel,
                        .scored = rng_below(&rng, 2),
                        .placed = rng_below(&rng, 2) };

    if (!channel) {
        v.key_groups = (uint8_t) groups;
        v.narrow = rng_below(&rng, 2);
    }
    v.value_groups = (uint8_t) (dim == 96 && groups == 4 ? 3 : groups);
    return v;
}

static sheet_t
sheet(uint32_t dim, tr_kv_level_t v)
{
    tr_page_spec_t spec = { dim, &v, 1, true, false, rng_below(&rng, 2) };
    sheet_t s;

    assert_int_equal(tr_page_plan(&spec, &s.plan), 0);
    s.page = aligned_alloc(64, tr_pad(s.plan.page_bytes, 64));
    assert_non_null(s.page);
    memset(s.page, 0xff, s.plan.page_bytes);
    return s;
}

static tr_kv_place_t
place(const sheet_t *s, uint32_t i)
{
    return (tr_kv_place_t){ s->page, &s->plan.layout[1], i };
}

/* Tokens stored one after the other in random order keep to themselves. */
static void
put_layout(const tr_kv_codec_t *codec, uint32_t dim, tr_kv_level_t v)
{
    sheet_t s = sheet(dim, v);
    const tr_kv_layout_t *l = &s.plan.layout[1];
    stored_t *want = calloc(l->tokens, sizeof(*want));
    bool *there = calloc(l->tokens, sizeof(*there));

    assert_true(want && there);
    tr_kv_page_clear(s.page, l, s.plan.page_bytes);
    for (uint32_t n = 0; n < 2 * l->tokens; n++) {
        uint32_t i = rng_below(&rng, l->tokens);
        float key[TR_HEAD_DIM_MAX], value[TR_HEAD_DIM_MAX];

        numbers(key, dim, any_scale());
        numbers(value, dim, any_scale());
        tr_kv_put(codec, place(&s, i), key, value);
        model_quantise(l, false, key, &want[i].k);
        model_quantise(l, true, value, &want[i].v);
        want[i].score = rng_normal(&rng);
        want[i].position = rng_below(&rng, l->position_bytes == 2 ? TR_KV_SHORT
                                                                  : 1u << 30);
        tr_kv_put_stats(place(&s, i), want[i].score, want[i].position);
        there[i] = true;
        if (v.scored) {
            assert_true(tr_kv_score(place(&s, i)) == want[i].score);
        }
        if (v.scored || v.placed) {
            assert_int_equal(tr_kv_position(place(&s, i)), want[i].position);
        }
    }
    for (uint32_t i = 0; i < l->tokens; i++) {
        if (there[i]) {
            model_check(s.page, l, i, &want[i]);
        }
    }
    free(want);
    free(there);
    free(s.page);
}

static void
test_put(void **state)
{
    (void) state;
    for (uint32_t c = 0; c < 3; c++) {
        for (uint32_t d = 0; codec_of(c) != NULL && d < 4; d++) {
            for (uint32_t pair = 0; pair < 16; pair++) {
                put_layout(codec_of(c), dims[d],
                           level_of(dims[d], pair, 1u << rng_below(&rng, 3),
                                    false));
            }
        }
    }
    put_layout(&tr_kv_codec_c, 32, level_of(32, 6, 1, false));
    put_layout(&tr_kv_codec_c, 160, level_of(160, 11, 2, false));
}

/* A token moves from each layout to each that has not more bits. */
static void
move_between(const tr_kv_codec_t *codec, uint32_t dim, tr_kv_level_t a,
             tr_kv_level_t b)
{
    sheet_t from = sheet(dim, a), to = sheet(dim, b);
    const tr_kv_layout_t *l = &from.plan.layout[1], *m = &to.plan.layout[1];

    if (!tr_kv_goes(l, m)) {
        free(from.page);
        free(to.page);
        return;
    }
    for (uint32_t n = 0; n < 6; n++) {
        uint32_t i = rng_below(&rng, l->tokens), j = rng_below(&rng, m->tokens);
        float key[TR_HEAD_DIM_MAX], value[TR_HEAD_DIM_MAX];
        stored_t want = { 0 };

        numbers(key, dim, any_scale());
        numbers(value, dim, any_scale());
        tr_kv_put(codec, place(&from, i), key, value);
        model_quantise(l, false, key, &want.k);
        model_quantise(l, true, value, &want.v);
        model_move(l, m, false, &want.k);
        model_move(l, m, true, &want.v);
        tr_kv_move(codec, place(&from, i), place(&to, j));
        tr_kv_put_stats(place(&to, j), 0, 0);
        model_check(to.page, m, j, &want);
    }
    free(from.page);
    free(to.page);
}

static void
test_move(void **state)
{
    (void) state;
    for (uint32_t d = 0; d < 4; d++) {
        for (uint32_t a = 0; a < 16; a++) {
            for (uint32_t b = 0; b < 16; b++) {
                uint32_t c = rng_below(&rng, 3);
                uint32_t g = 1u << rng_below(&rng, 3);
                uint32_t h = rng_below(&rng, 2) ? g : 1u << rng_below(&rng, 3);

                c = codec_of(c) != NULL ? c : 0;
                move_between(codec_of(c), dims[d],
                             level_of(dims[d], a, g, false),
                             level_of(dims[d], b, h, false));
            }
        }
    }
}

/* Half a step of the group's scale, and what FP16 loses of scale and zero;
 * the ends of a narrow group are a step beyond its codes. */
static double
error_bound(const side_t *s, uint32_t d, bool narrow)
{
    double scale = tr_float_from_half(s->scale[d]);
    double zero = fabs(tr_float_from_half(s->zero[d]));
    double top = (1 << s->bits) - 1;

    narrow = narrow && s->bits == 2;
    top += narrow; /* the step beyond was rounded like the others */
    return (narrow ? 1.0001 : 0.5001) * scale + zero * 0x1p-11 + 0x1p-25
           + top * (scale * 0x1p-11 + 0x1p-25);
}

/* What is read is close to what was stored. */
static void
test_error(void **state)
{
    (void) state;
    for (uint32_t n = 0; n < 400; n++) {
        uint32_t dim = dims[rng_below(&rng, 4)], pair = rng_below(&rng, 16);
        sheet_t s = sheet(dim,
                          level_of(dim, pair, 1u << rng_below(&rng, 3), false));
        const tr_kv_layout_t *l = &s.plan.layout[1];
        float x[2][TR_HEAD_DIM_MAX];
        stored_t is;

        numbers(x[0], dim, scales[n % 6]);
        numbers(x[1], dim, scales[n % 6]);
        tr_kv_put(codec_of(0), place(&s, 3), x[0], x[1]);
        model_read(s.page, l, 3, &is);
        for (uint32_t d = 0; d < 2 * dim; d++) {
            const side_t *side = d < dim ? &is.k : &is.v;
            float in = x[d / dim][d % dim];
            double bound = side->bits == 16
                               ? fabs(in) * 0x1p-11 + 0x1p-25
                               : error_bound(side, d % dim, l->level.narrow);

            in = in > 65504 ? 65504 : in < -65504 ? -65504 : in;
            if (!(fabs(model_number(side, d % dim) - in) <= bound)) {
                fail_msg("%u bits, scale %g: %.9g reads as %.9g, bound %g",
                         side->bits, scales[n % 6], in,
                         model_number(side, d % dim), bound);
            }
        }
        free(s.page);
    }
}

/* Groups whose ends are equal, NaN or infinite. */
static void
test_odd_numbers(void **state)
{
    static const struct {
        float fill, one, reads, one_reads;
        uint16_t scale;
    } cases[] = {
        { 0, 0, 0, 0, 0 },
        { 3.5f, 3.5f, 3.5f, 3.5f, 0 },
        { -1e-7f, -1e-7f, -0x1p-23f, -0x1p-23f, 0 }, /* FP16's next */
        { NAN, NAN, 0, 0, 0 },
        { NAN, 2, 2, 2, 0 },
        { 1e6f, INFINITY, 65504, 65504, 0 },
        { 0, 1e-9f, 0, 0, 1 }, /* the smallest scale there is */
        { 0, 0x1p-24f, 0, 0x1p-24f, 1 },
    };

    (void) state;
    for (uint32_t c = 0; c < 3; c++) {
        const tr_kv_codec_t *codec = codec_of(c);

        for (size_t i = 0; codec && i < sizeof(cases) / sizeof(cases[0]); i++) {
            for (uint32_t b = 2; b <= 8; b *= 2) {
                float x[64];
                uint8_t codes[64];
                uint16_t meta[2];

                for (uint32_t j = 0; j < 64; j++) {
                    x[j] = j == 37 ? cases[i].one : cases[i].fill;
                }
                codec->quantise(x, 64, b, false, codes, meta);
                assert_int_equal(meta[0], cases[i].scale);
                for (uint32_t j = 0; j < 64; j++) {
                    float is = codes[j] * tr_float_from_half(meta[0])
                               + tr_float_from_half(meta[1]);

                    if (is != (j == 37 ? cases[i].one_reads : cases[i].reads)) {
                        fail_msg("case %zu, %u bits, codec %u: %g reads as %g",
                                 i, b, c, x[j], is);
                    }
                }
            }
        }
        for (uint32_t b = 2; codec && b <= 8; b *= 2) {
            float x[64] = { [3] = NAN, [9] = -INFINITY, [60] = INFINITY };
            uint8_t codes[64];
            uint16_t meta[2];

            codec->quantise(x, 64, b, false, codes, meta);
            assert_int_equal(meta[1], 0xfbff); /* -65504 */
            assert_int_equal(codes[3], 0);
            assert_int_equal(codes[9], 0);
            assert_int_equal(codes[60], (1 << b) - 1);
            assert_true(tr_float_from_half(meta[0]) < 65504);
        }
    }
}

/* FP16 rounding is the same everywhere, ties and ends included. */
static void
test_half(void **state)
{
    static const float x[16] = { 0,         -0.0f,    1,          65504,
                                 65520,     1e30f,    -1e30f,     INFINITY,
                                 -INFINITY, NAN,      2049,       2051,
                                 0x1p-24f,  0x1p-25f, 0x1.8p-24f, 0x1.004p0f };
    static const uint16_t want[16] = { 0,      0x8000, 0x3c00, 0x7bff,
                                       0x7bff, 0x7bff, 0xfbff, 0x7bff,
                                       0xfbff, 0x7e00, 0x6800, 0x6802,
                                       1,      0,      2,      0x3c01 };

    (void) state;
    for (uint32_t c = 0; c < 3; c++) {
        const tr_kv_codec_t *codec = codec_of(c);
        uint16_t is[16], all[1024];
        float back[1024];

        if (codec == NULL) {
            continue;
        }
        codec->to_half(x, is, 16);
        for (int j = 0; j < 16; j++) {
            if (is[j] != want[j] && !(j == 9 && (is[j] & 0x7fff) > 0x7c00)) {
                fail_msg("codec %u: %g is 0x%04x, expected 0x%04x", c, x[j],
                         is[j], want[j]);
            }
        }
        for (uint32_t h = 0; h < 65536; h += 1024) {
            for (uint32_t j = 0; j < 1024; j++) {
                all[j] = (uint16_t) (h + j);
            }
            codec->from_half(all, back, 1024);
            for (uint32_t j = 0; j < 1024; j++) {
                float f = tr_float_from_half(all[j]);

                assert_true(isnan(f) ? isnan(back[j]) : f == back[j]);
            }
        }
    }
}

/* Tokens by channel that are no whole tile become one of level v. */
static void
tile_anew(const tr_kv_codec_t *codec, const sheet_t *from,
          const tr_kv_place_t *source, tr_kv_level_t v)
{
    sheet_t to = sheet(from->plan.layout[1].head_dim, v);
    stored_t *want = calloc(32, sizeof(*want));

    assert_non_null(want);
    for (uint32_t i = 0; i < 32; i++) {
        model_read(from->page, &from->plan.layout[1], source[i].at, &want[i]);
        model_move(&from->plan.layout[1], &to.plan.layout[1], true, &want[i].v);
        want[i].score = 0;
        want[i].position = 0;
    }
    model_tile(&to.plan.layout[1], want);
    tr_kv_move_tile(codec, source, place(&to, 0));
    for (uint32_t i = 0; i < 32; i++) {
        tr_kv_put_stats(place(&to, i), 0, 0);
        model_check(to.page, &to.plan.layout[1], i, &want[i]);
    }
    free(want);
    free(to.page);
}

/* 32 tokens from anywhere become a tile by channel. */
static void
tile_case(const tr_kv_codec_t *codec, uint32_t dim, tr_kv_level_t a,
          tr_kv_level_t b)
{
    sheet_t from = sheet(dim, a), to = sheet(dim, b), last;
    const tr_kv_layout_t *l = &from.plan.layout[1], *m = &to.plan.layout[1];
    stored_t *want = calloc(32, sizeof(*want)), one;
    tr_kv_place_t source[32];
    uint32_t first = rng_below(&rng, m->tokens / 32) * 32;
    float key[TR_HEAD_DIM_MAX], value[TR_HEAD_DIM_MAX];

    assert_non_null(want);
    tr_kv_page_clear(to.page, m, to.plan.page_bytes);
    for (uint32_t i = 0; i < 32; i++) {
        source[i] = place(&from, i * 5 % l->tokens); /* some more than once */
        numbers(key, dim, scales[3 + rng_below(&rng, 2)]);
        numbers(value, dim, 1);
        tr_kv_put(codec, source[i], key, value);
    }
    for (uint32_t i = 0; i < 32; i++) {
        model_read(from.page, l, source[i].at, &want[i]);
        model_move(l, m, true, &want[i].v);
    }
    model_tile(m, want);
    tr_kv_move_tile(codec, source, place(&to, first));
    for (uint32_t i = 0; i < 32; i++) {
        want[i].score = 0;
        want[i].position = 0;
        tr_kv_put_stats(place(&to, first + i), 0, 0);
        model_check(to.page, m, first + i, &want[i]);
    }
    /* one of them alone, by token */
    last = sheet(dim, level_of(dim, 15, 1, false));
    model_read(to.page, m, first + 9, &one);
    model_move(m, &last.plan.layout[1], false, &one.k);
    model_move(m, &last.plan.layout[1], true, &one.v);
    tr_kv_move(codec, place(&to, first + 9), place(&last, 2));
    tr_kv_put_stats(place(&last, 2), one.score, one.position);
    model_check(last.page, &last.plan.layout[1], 2, &one);
    free(last.page);
    /* a whole tile keeps its codes; with fewer bits they are divided */
    b.key_bits = rng_below(&rng, 2) ? b.key_bits : 2;
    last = sheet(dim, b);
    for (uint32_t i = 0; i < 32; i++) {
        source[i] = place(&to, first + i);
        if (want[i].k.bits != b.key_bits) {
            model_downgrade(&want[i].k, b.key_bits, false, dim);
        }
    }
    tr_kv_move_tile(codec, source, place(&last, 0));
    for (uint32_t i = 0; i < 32; i++) {
        tr_kv_put_stats(place(&last, i), 0, 0);
        model_check(last.page, &last.plan.layout[1], i, &want[i]);
    }
    free(last.page);
    /* one of another tile among them: quantised anew */
    source[7] = place(&to, first + 8);
    tile_anew(codec, &to, source, b);
    /* so are 32 in order that are halves of two tiles */
    if (m->tokens >= 64) {
        for (uint32_t i = 0; i < 32; i++) {
            source[i] = place(&from, i % l->tokens);
        }
        tr_kv_move_tile(codec, source, place(&to, 0));
        tr_kv_move_tile(codec, source, place(&to, 32));
        for (uint32_t i = 0; i < 32; i++) {
            source[i] = place(&to, 16 + i);
        }
        tile_anew(codec, &to, source, b);
    }
    free(from.page);
    free(to.page);
    free(want);
}

static void
test_tiles(void **state)
{
    (void) state;
    for (uint32_t c = 0; c < 3; c++) {
        for (uint32_t d = 0; codec_of(c) != NULL && d < 4; d++) {
            for (uint32_t key = 1; key < 4; key++) {
                uint32_t value = dims[d] == 256 ? 3 : 1 + rng_below(&rng, 3);
                tr_kv_level_t a = { bits[rng_below(&rng, key + 1)],
                                    16,
                                    1,
                                    1,
                                    0,
                                    false,
                                    false,
                                    false };
                tr_kv_level_t b = level_of(dims[d], key * 4 + value, 1, true);

                tile_case(codec_of(c), dims[d], a, b);
            }
        }
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_half),        cmocka_unit_test(test_put),
        cmocka_unit_test(test_move),        cmocka_unit_test(test_error),
        cmocka_unit_test(test_odd_numbers), cmocka_unit_test(test_tiles),
    };

    rng = rng_seed();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
