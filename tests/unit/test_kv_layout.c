/*
 * The page plan and the places of codes (kv_layout.h): sizes that the design
 * promises, every bit of a segment used exactly once, and the same places as
 * the words that a tensor core takes.
 */
#include "model_rig.h"

#include <kv_layout.h>

static const uint32_t dims[] = { 64, 96, 128, 256 };
static const uint8_t bits[] = { 16, 8, 4, 2 };

static uint64_t rng;

static tr_kv_level_t
level(uint8_t key, uint8_t value, bool scored)
{
    return (tr_kv_level_t){ key, value, 1, 1, 0, scored, 0 };
}

static tr_page_plan_t
plan_of(uint32_t dim, const tr_kv_level_t *levels, uint32_t n)
{
    tr_page_wish_t wish = { dim, levels, n, true, false };
    tr_page_plan_t plan;

    assert_int_equal(tr_page_plan(&wish, &plan), 0);
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
    tr_page_plan_t p = plan_of(128, v, 2);

    (void) state;
    assert_int_equal(p.page_bytes, 23296);
    assert_int_equal(p.layout[1].tokens, 112);
    assert_int_equal(p.layout[2].tokens, 208);
    assert_true(tr_kv_layout_token_bytes(&p, 1) <= 208);
    assert_true(tr_kv_layout_token_bytes(&p, 2) <= 112);

    p = plan_of(64, v, 2);
    assert_int_equal(p.page_bytes, 7168);
    assert_true(tr_kv_layout_token_bytes(&p, 1) <= 112);
    assert_true(tr_kv_layout_token_bytes(&p, 2) <= 64);

    p = plan_of(128, v, 3);
    assert_int_equal(p.page_bytes, 16640);
    assert_int_equal(p.layout[1].tokens, 80);
    assert_int_equal(p.layout[2].tokens, 144);
    assert_int_equal(p.layout[3].tokens, 32);
}

static void
test_refused(void **state)
{
    static const tr_kv_level_t bad[] = {
        { 3, 4, 1, 1, 0, 0, 0 }, { 8, 0, 1, 1, 0, 0, 0 },
        { 8, 4, 3, 1, 0, 0, 0 }, { 8, 4, 0, 1, 0, 0, 0 },
        { 8, 4, 1, 0, 0, 0, 0 }, { 8, 4, 1, 3, 0, 0, 0 },
        { 8, 4, 2, 1, 1, 0, 0 }, { 16, 4, 1, 1, 1, 0, 0 },
    };
    tr_kv_level_t many[TR_KV_LAYOUTS_MAX];
    tr_page_wish_t wish = { 64, bad, 1, true, false };
    tr_page_plan_t p;

    (void) state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        wish.levels = &bad[i];
        assert_int_equal(tr_page_plan(&wish, &p), -1);
    }
    for (size_t i = 0; i < TR_KV_LAYOUTS_MAX; i++) {
        many[i] = level(8, 4, true);
    }
    wish.levels = many;
    wish.n_levels = TR_KV_LAYOUTS_MAX;
    assert_int_equal(tr_page_plan(&wish, &p), -1);
    wish.n_levels = 1;
    assert_int_equal(tr_page_plan(&wish, &p), 0);
    for (uint32_t dim = 0; dim < 64; dim += dim == 0 ? 8 : 16) {
        wish.head_dim = dim == 0 ? 0 : dim; /* 0, 8, 24, 40, 56 */
        assert_int_equal(tr_page_plan(&wish, &p), -1);
    }
    wish.head_dim = 80; /* 16-bit pages alone may have it */
    assert_int_equal(tr_page_plan(&wish, &p), -1);
    wish.n_levels = 0;
    assert_int_equal(tr_page_plan(&wish, &p), 0);
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

static void
all_used(const uint8_t *used, uint32_t from, uint32_t to, const char *what,
         const tr_kv_layout_t *l)
{
    for (uint32_t i = from; i < to; i++) {
        if (used[i] != 0xff) {
            fail_msg("%s, head size %u, %u/%u bits: byte %u of [%u, %u) has "
                     "bits 0x%02x in use",
                     what, l->head_dim, l->level.key_bits, l->level.value_bits,
                     i, from, to, used[i]);
        }
    }
}

/* Every code has bits of its own, inside its segment, and leaves none over. */
static void
one_layout(const tr_kv_layout_t *l, uint32_t page_bytes)
{
    uint8_t *used = calloc(1, page_bytes);
    uint32_t kb = l->level.key_bits, vb = l->level.value_bits;
    uint32_t keys = l->tokens * l->head_dim * kb / 8;
    uint32_t values = l->tokens * l->head_dim * vb / 8, end;

    assert_non_null(used);
    for (uint32_t i = 0; i < l->tokens; i++) {
        for (uint32_t d = 0; d < l->head_dim; d++) {
            tr_kv_code_t at;

            if (kb < 16) {
                at = tr_kv_key_code(l, i, d);
                assert_true(at.byte < keys);
                take(used, at.byte, at.shift, kb);
                assert_true(tr_kv_key_meta(l, i, d) >= keys
                            && tr_kv_key_meta(l, i, d) + 4 <= l->value);
            }
            if (vb < 16) {
                at = tr_kv_value_code(l, i, d);
                assert_true(at.byte >= l->value && at.byte < l->value + values);
                take(used, at.byte, at.shift, vb);
                assert_true(tr_kv_value_meta(l, i, d) >= l->value + values);
            }
        }
    }
    if (kb < 16) {
        all_used(used, 0, keys, "keys", l);
    }
    if (vb < 16) {
        all_used(used, l->value, l->value + values, "values", l);
    }
    /* segments in order, without holes, inside the page */
    end = keys;
    if (kb < 16) {
        assert_int_equal(l->key_meta, end);
        end += l->level.by_channel
                   ? l->tokens / TR_KV_CHANNEL_TOKENS * l->head_dim * 4
                   : l->tokens * l->level.key_groups * 4;
    }
    assert_int_equal(l->value, end);
    end += values;
    if (vb < 16) {
        assert_int_equal(l->value_meta, end);
        end += l->tokens * l->level.value_groups * 4;
    }
    if (l->level.scored) {
        assert_int_equal(l->score, end);
        assert_int_equal(l->position, end + 4 * l->tokens);
        end += 8 * l->tokens;
    }
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
                tr_kv_level_t v = { bits[i / 4], bits[i % 4],        1, 1,
                                    0,           rig_below(&rng, 2), 0 };
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
                p = plan_of(dims[d], &v, 1);
                assert_int_equal(p.layout[1].tokens
                                     % (v.by_channel ? 32
                                        : v.key_bits == 16 && v.value_bits == 16
                                            ? 8
                                            : 16),
                                 0);
                one_layout(&p.layout[1], p.page_bytes);
            }
        }
    }
}

/* Where the kernel that reads pages at copy speed wants keys of head size 128:
 * 16 bytes a lane, a lane's tokens g and g + 8 in chunks of their own. */
static uint32_t
prototype_key_bit(uint32_t key_bits, uint32_t token, uint32_t dim)
{
    uint32_t tile = token / 16, r = token % 16 / 8, g = token % 8;
    uint32_t t = dim / 32, dd = dim % 32, lane = g * 4 + t;

    if (key_bits == 8) {
        uint32_t k = dd / 4, i = dd % 4;

        return ((tile * 4 + r * 2 + (k >> 2)) * 512 + lane * 16 + (k & 3) * 4
                + i)
               * 8;
    }
    uint32_t k = dd / 8, half = dd % 8 / 4, i = dd % 4;

    return ((tile * 2 + r) * 512 + lane * 16 + k * 4) * 8 + (i & 1) * 16
           + half * 8 + (i >> 1) * 4;
}

/* Values of head size 128, whose places count 8t + g instead of 4g + t. */
static uint32_t
prototype_value_bit(uint32_t value_bits, uint32_t token, uint32_t dim)
{
    uint32_t i = dim / 16, row = dim % 16 / 8, g = dim % 8, tile = token / 16;
    uint32_t r = token % 16 / 8, t = token % 8 / 2, x = token & 1;
    uint32_t chunk = value_bits == 4 ? tile * 2 + r : tile;

    return (chunk * 512 + (8 * t + g) * 16 + (i >> 1) * 4) * 8
           + (value_bits == 4 ? x * 16 + (i & 1) * 8 + row * 4
                              : x * 16 + (i & 1) * 8 + r * 4 + row * 2);
}

static void
test_tensor_core_words(void **state)
{
    tr_kv_level_t v[2] = { level(8, 4, true), level(4, 2, true) };
    tr_page_plan_t p = plan_of(128, v, 2);

    (void) state;
    for (uint32_t i = 1; i <= 2; i++) {
        const tr_kv_layout_t *l = &p.layout[i];

        for (uint32_t token = 0; token < l->tokens; token++) {
            for (uint32_t d = 0; d < 128; d++) {
                tr_kv_code_t k = tr_kv_key_code(l, token, d);
                tr_kv_code_t c = tr_kv_value_code(l, token, d);

                assert_int_equal(k.byte * 8 + k.shift,
                                 prototype_key_bit(l->level.key_bits, token,
                                                   d));
                assert_int_equal((c.byte - l->value) * 8 + c.shift,
                                 prototype_value_bit(l->level.value_bits, token,
                                                     d));
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

    rng = rig_seed();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
