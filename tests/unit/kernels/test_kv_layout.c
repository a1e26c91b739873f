/*
 * The page plan and the places of codes (kv_layout.h): sizes that the design
 * promises, every bit of a tile used exactly once, and the same places as
 * the words that a tensor core takes.
 */
#include "tests/unit/fixtures/model_fixture.h"

#include "kernels/kv_layout.h"

static const uint32_t dims[] = { 64, 96, 128, 256 };
static const uint8_t bits[] = { 16, 8, 4, 2 };

static uint64_t rng;

static tr_kv_level_t
level(uint8_t key, uint8_t value, bool scored)
{
    return (tr_kv_level_t){ key, value, 1, 1, 0, scored, 0, 0 };
}

static tr_page_plan_t
plan_of(uint32_t dim, const tr_kv_level_t *levels, uint32_t n, bool brief)
{
    tr_page_spec_t spec = { dim, levels, n, true, false, brief };
    tr_page_plan_t plan;

    assert_int_equal(tr_page_plan(&spec, &plan), 0);
    assert_int_equal(plan.n, n + 1);
    assert_int_equal(plan.page_bytes % 128, 0);
    assert_in_range(plan.page_bytes, 6144, 24576);
    return plan;
}

static void
test_examples(void **state)
{
    tr_kv_level_t v[3] = { level(8, 4, true), level(4, 2, true),
                           level(16, 16, true) };
    tr_page_plan_t p = plan_of(128, v, 2, false);

    (void) state;
    assert_int_equal(p.page_bytes, 16640);
    assert_int_equal(p.layout[1].tokens, 80);
    assert_int_equal(p.layout[2].tokens, 144);
    assert_true(tr_kv_layout_token_bytes(&p, 1) <= 208);
    assert_true(tr_kv_layout_token_bytes(&p, 2) <= 116);

    p = plan_of(64, v, 2, false);
    assert_int_equal(p.page_bytes, 7168);
    assert_true(tr_kv_layout_token_bytes(&p, 1) <= 112);
    assert_true(tr_kv_layout_token_bytes(&p, 2) <= 64);

    p = plan_of(128, v, 3, false);
    assert_int_equal(p.page_bytes, 16640);
    assert_int_equal(p.layout[1].tokens, 80);
    assert_int_equal(p.layout[2].tokens, 144);
    assert_int_equal(p.layout[3].tokens, 32);

    p = plan_of(128, v, 2, true);
    assert_int_equal(p.page_bytes, 14080);
    assert_int_equal(p.layout[1].tokens, 64);
    assert_int_equal(p.layout[2].tokens, 128);

    /* 64 tokens of 206 bytes; small heads do not have as large pages */
    p = plan_of(128, v, 1, true);
    assert_int_equal(p.page_bytes, 13184);
    assert_int_equal(p.layout[1].tokens, 64);
    p = plan_of(64, v, 2, true);
    assert_int_equal(p.page_bytes, 7040);
    assert_int_equal(p.layout[2].tokens, 112); /* an even number costs more */
}

static void
test_refused(void **state)
{
    static const tr_kv_level_t bad[] = {
        { 3, 4, 1, 1, 0, 0, 0, 0 }, { 8, 0, 1, 1, 0, 0, 0, 0 },
        { 8, 4, 3, 1, 0, 0, 0, 0 }, { 8, 4, 0, 1, 0, 0, 0, 0 },
        { 8, 4, 1, 0, 0, 0, 0, 0 }, { 8, 4, 1, 3, 0, 0, 0, 0 },
        { 8, 4, 2, 1, 1, 0, 0, 0 }, { 16, 4, 1, 1, 1, 0, 0, 0 },
    };
    tr_kv_level_t many[TR_KV_LAYOUTS_MAX];
    tr_page_spec_t spec = { 64, bad, 1, true, false, false };
    tr_page_plan_t p;

    (void) state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        spec.levels = &bad[i];
        assert_int_equal(tr_page_plan(&spec, &p), -1);
    }
    for (size_t i = 0; i < TR_KV_LAYOUTS_MAX; i++) {
        many[i] = level(8, 4, true);
    }
    spec.levels = many;
    spec.n_levels = TR_KV_LAYOUTS_MAX;
    assert_int_equal(tr_page_plan(&spec, &p), -1);
    spec.n_levels = 1;
    assert_int_equal(tr_page_plan(&spec, &p), 0);
    for (uint32_t dim = 0; dim < 64; dim += dim == 0 ? 8 : 16) {
        spec.head_dim = dim == 0 ? 0 : dim; /* 0, 8, 24, 40, 56 */
        assert_int_equal(tr_page_plan(&spec, &p), -1);
    }
    spec.head_dim = 80; /* 16-bit pages alone may have it */
    assert_int_equal(tr_page_plan(&spec, &p), -1);
    spec.n_levels = 0;
    assert_int_equal(tr_page_plan(&spec, &p), 0);
}

/* Marks bits [shift, shift + n) of a byte; none may have been marked. */
static void
take(uint8_t *used, uint32_t byte, uint32_t shift, uint32_t n)
{
    uint32_t mask = ((1u << n) - 1) << shift;

    assert_true(shift + n <= 8);
    assert_int_equal(used[byte] & mask, 0);
    used[byte] = (uint8_t) (used[byte] | mask);
}

/* Every code and pair of metadata has bits of its own, those of 16 tokens side
 * by side in the order that kv_layout.h says, and none are left over. */
static void
one_layout(const tr_kv_layout_t *l, uint32_t page_bytes, bool brief)
{
    uint8_t *used = calloc(1, page_bytes);
    const tr_kv_level_t *v = &l->level;
    uint32_t kb = v->key_bits, vb = v->value_bits, dim = l->head_dim, end;
    bool wide = kb == 16 && vb == 16, channel = v->by_channel;

    assert_non_null(used);
    for (uint32_t i = 0; i < l->tokens; i++) {
        for (uint32_t d = 0; d < dim; d++) {
            if (kb < 16) {
                tr_kv_code_t at = tr_kv_key_code(l, i, d);

                take(used, at.byte, at.shift, kb);
            } else {
                take(used, tr_kv_key_row(l, i) + 2 * d, 0, 8);
                take(used, tr_kv_key_row(l, i) + 2 * d + 1, 0, 8);
            }
            if (vb < 16) {
                tr_kv_code_t at = tr_kv_value_code(l, i, d);

                take(used, at.byte, at.shift, vb);
            } else {
                take(used, tr_kv_value_row(l, i) + 2 * d, 0, 8);
                take(used, tr_kv_value_row(l, i) + 2 * d + 1, 0, 8);
            }
        }
    }
    for (uint32_t i = 0; i < l->tokens; i++) {
        uint32_t step = dim / 4 / v->key_groups, wait = TR_KV_CHANNEL_TOKENS;

        for (uint32_t d = 0; kb < 16 && d < dim / 4; d += step) {
            for (uint32_t k = 0; !channel && k < 4; k++) {
                take(used, tr_kv_key_meta(l, i, d) + k, 0, 8);
            }
        }
        for (uint32_t d = 0; channel && i % wait == 0 && d < dim; d++) {
            for (uint32_t k = 0; k < 4; k++) {
                take(used, tr_kv_key_meta(l, i, d) + k, 0, 8);
            }
        }
        for (uint32_t d = 0; vb < 16 && d < dim; d += dim / v->value_groups) {
            for (uint32_t k = 0; k < 4; k++) {
                take(used, tr_kv_value_meta(l, i, d) + k, 0, 8);
            }
        }
    }
    end = tr_kv_tiles_end(l);
    if (!wide) { /* the parts of a tile, in order */
        assert_int_equal(l->value, 2 * dim * kb);
        assert_int_equal(l->key_meta, kb == 16  ? 0
                                      : channel ? end
                                                : 2 * dim * (kb + vb));
        if (vb < 16) {
            assert_int_equal(l->value_meta,
                             2 * dim * (kb + vb)
                                 + (kb == 16 || channel ? 0
                                                        : 64 * v->key_groups));
        }
    }
    end += channel ? l->tokens / TR_KV_CHANNEL_TOKENS * dim * 4 : 0;
    if (v->scored) {
        assert_int_equal(l->score, end);
    }
    if (v->scored || v->placed) {
        assert_int_equal(l->position, end + (v->scored ? 4 * l->tokens : 0));
        assert_int_equal(l->position_bytes, brief ? 2 : 4);
    } else {
        assert_int_equal(l->position, 0);
    }
    for (uint32_t i = 0; i < page_bytes; i++) { /* all of it, and no more */
        if (used[i] != (i < end ? 0xff : 0)) {
            fail_msg("head size %u, %u/%u bits: byte %u of %u has bits 0x%02x "
                     "in use",
                     dim, kb, vb, i, end, used[i]);
        }
    }
    end += ((v->scored ? 4 : 0) + l->position_bytes) * l->tokens;
    assert_true(end <= page_bytes);
    free(used);
}

static void
test_every_bit(void **state)
{
    static const uint8_t groups[] = { 1, 2, 4 };

    (void) state;
    for (size_t d = 0; d < 4; d++) {
        for (size_t i = 0; i < 16; i++) {
            for (size_t g = 0; g < 4; g++) {
                tr_kv_level_t v = { bits[i / 4], bits[i % 4],
                                    1,           1,
                                    0,           rng_below(&rng, 2),
                                    0,           rng_below(&rng, 2) };
                bool brief = rng_below(&rng, 2);
                tr_page_plan_t p;

                if (g < 3) {
                    v.key_groups = groups[g];
                    v.value_groups = dims[d] == 96 && g > 0 ? (uint8_t) (3 * g)
                                                            : groups[g];
                } else if (v.key_bits < 16) {
                    v.by_channel = 1;
                }
                if (v.by_channel && dims[d] == 256 && v.value_bits == 16
                    && v.key_bits == 8) {
                    continue; /* 32 tokens are more than the largest page */
                }
                p = plan_of(dims[d], &v, 1, brief);
                assert_int_equal(p.layout[1].tokens
                                     % (v.by_channel ? 32
                                        : v.key_bits == 16 && v.value_bits == 16
                                            ? 8
                                            : 16),
                                 0);
                one_layout(&p.layout[1], p.page_bytes, brief);
            }
        }
    }
}

/* Where the kernel that reads pages at copy speed wants keys of head size 128:
 * 16 bytes a lane, a lane's tokens g and g + 8 in chunks of their own. */
static uint32_t
prototype_key_bit(uint32_t key_bits, uint32_t token, uint32_t dim)
{
    uint32_t r = token / 8, g = token % 8;
    uint32_t t = dim / 32, dd = dim % 32, lane = g * 4 + t;

    if (key_bits == 8) {
        uint32_t k = dd / 4, i = dd % 4;

        return ((r * 2 + (k >> 2)) * 512 + lane * 16 + (k & 3) * 4 + i) * 8;
    }
    uint32_t k = dd / 8, half = dd % 8 / 4, i = dd % 4;

    return (r * 512 + lane * 16 + k * 4) * 8 + (i & 1) * 16 + half * 8
           + (i >> 1) * 4;
}

/* Values of head size 128, whose places count 8t + g instead of 4g + t. */
static uint32_t
prototype_value_bit(uint32_t value_bits, uint32_t token, uint32_t dim)
{
    uint32_t i = dim / 16, row = dim % 16 / 8, g = dim % 8;
    uint32_t r = token / 8, t = token % 8 / 2, x = token & 1;
    uint32_t chunk = value_bits == 4 ? r : 0;

    return (chunk * 512 + (8 * t + g) * 16 + (i >> 1) * 4) * 8
           + (value_bits == 4 ? x * 16 + (i & 1) * 8 + row * 4
                              : x * 16 + (i & 1) * 8 + r * 4 + row * 2);
}

static void
test_tensor_core_words(void **state)
{
    tr_kv_level_t v[2] = { level(8, 4, true), level(4, 2, true) };
    tr_page_plan_t p = plan_of(128, v, 2, false);

    (void) state;
    for (uint32_t i = 1; i <= 2; i++) {
        const tr_kv_layout_t *l = &p.layout[i];

        for (uint32_t token = 0; token < l->tokens; token++) {
            for (uint32_t d = 0; d < 128; d++) {
                tr_kv_code_t k = tr_kv_key_code(l, token, d);
                tr_kv_code_t c = tr_kv_value_code(l, token, d);

                k.byte -= token / 16 * l->tile;
                c.byte -= token / 16 * l->tile + l->value;
                assert_int_equal(k.byte * 8 + k.shift,
                                 prototype_key_bit(l->level.key_bits,
                                                   token % 16, d));
                assert_int_equal(c.byte * 8 + c.shift,
                                 prototype_value_bit(l->level.value_bits,
                                                     token % 16, d));
            }
        }
    }
}

static void
test_code_set(void **state)
{
    uint8_t page[4] = { 0xff, 0xff, 0, 0 };
    tr_kv_code_t at = { 1, 4 };

    (void) state;
    tr_kv_code_set(page, at, 2, 1);
    assert_int_equal(page[1], 0xdf);
    assert_int_equal(tr_kv_code_get(page, at, 2), 1);
    assert_int_equal(page[0], 0xff);
    assert_int_equal(page[2], 0);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_examples),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_every_bit),
        cmocka_unit_test(test_tensor_core_words),
        cmocka_unit_test(test_code_set),
    };

    rng = rng_seed();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
