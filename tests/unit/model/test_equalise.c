/*
 * Equalisation at load (equalise.h): a model whose outlier channels were made
 * by powers of two becomes, bit for bit, the model that they were made from;
 * one that has none stays as it is; and nothing moves further than it may.
 */
#include "tests/unit/fixtures/family_model.h"

#include <math.h>

#include "kernels/dtype.h"

/* What a test moves: a factor of 2^power for these channels of every KV head
 * in every layer. */
typedef struct {
    uint32_t pair, channel;
    int key, value;
} outlier_t;

static const outlier_t outlier = {
    .pair = 5, .channel = 9, .key = 4, .value = 3
};

static void
scale_rows(const char *format, uint32_t layer, uint32_t row, uint32_t columns,
           int power)
{
    double *x = weight(format, layer) + (size_t) row * columns;

    for (uint32_t i = 0; i < columns; i++) {
        x[i] = ldexp(x[i], power);
    }
}

static void
scale_projection(const family_t *f, const char *name, uint32_t layer,
                 uint32_t row, int power)
{
    char format[80];

    snprintf(format, sizeof(format), "model.layers.%%u.self_attn.%s.weight",
             name);
    scale_rows(format, layer, row, HIDDEN, power);
    if (f->qkv_bias) {
        snprintf(format, sizeof(format), "model.layers.%%u.self_attn.%s.bias",
                 name);
        scale_rows(format, layer, row, 1, power);
    }
}

/* A channel of the keys, in one KV head or, under a norm, in all of them. */
static void
stress_key(const family_t *f, uint32_t l, uint32_t head, uint32_t channel,
           int power)
{
    uint32_t group = HEADS / f->kv_heads;

    if (f->qk_norm) {
        if (head == 0) {
            scale_rows("model.layers.%u.self_attn.k_norm.weight", l, channel, 1,
                       power);
            scale_rows("model.layers.%u.self_attn.q_norm.weight", l, channel, 1,
                       -power);
        }
        return;
    }
    scale_projection(f, "k_proj", l, head * f->dim + channel, power);
    for (uint32_t g = 0; g < group; g++) {
        scale_projection(f, "q_proj", l, (head * group + g) * f->dim + channel,
                         -power);
    }
}

static void
stress_value(const family_t *f, uint32_t l, uint32_t head, uint32_t channel,
             int power)
{
    uint32_t group = HEADS / f->kv_heads, q = HEADS * f->dim;
    double *o = weight("model.layers.%u.self_attn.o_proj.weight", l);

    scale_projection(f, "v_proj", l, head * f->dim + channel, power);
    for (uint32_t g = 0; g < group; g++) {
        uint32_t column = (head * group + g) * f->dim + channel;

        for (uint32_t i = 0; i < HIDDEN; i++) {
            o[i * q + column] = ldexp(o[i * q + column], -power);
        }
    }
}

static void
stress(const family_t *f, const outlier_t *s)
{
    for (uint32_t l = 0; l < LAYERS; l++) {
        for (uint32_t h = 0; h < f->kv_heads; h++) {
            stress_key(f, l, h, s->pair, s->key);
            stress_key(f, l, h, s->pair + f->dim / 2, s->key);
            stress_value(f, l, h, s->channel, s->value);
        }
    }
}

/* Logits of every position of a fixed text, in two steps. */
static void
run(bool equalise, tr_equalise_t *table, float *logits)
{
    fixture_t fixture;
    int32_t tokens[LEN];

    fixture_open_with(&fixture, dir, "auto", NULL, 2, LEN, equalise, 0);
    fixed_text(tokens);
    fixture_step(&fixture,
                 &(fixture_item_t){ tr_kv_open(fixture.kv, NULL), 0, LEN,
                                    tokens },
                 1, logits);
    if (equalise) {
        assert_non_null(fixture.model->equalise);
        *table = *fixture.model->equalise; /* but what it points to */
    } else {
        assert_null(fixture.model->equalise);
    }
    fixture_close(&fixture);
}

static void
test_exact(void **state)
{
    static float plain[VOCAB], kept[VOCAB], stressed[VOCAB], equal[VOCAB];
    tr_equalise_t table;

    (void) state;
    for (size_t i = 0; i < KINDS; i++) {
        const family_t *f = &kinds[i];
        float size = 0;

        make_model(f);
        run(false, NULL, plain);
        run(true, &table, kept); /* nothing stands out */
        assert_memory_equal(plain, kept, sizeof(plain));
        assert_int_equal(table.pairs + table.channels, 0);
        assert_int_equal(table.largest, 0);

        stress(f, &outlier);
        write_weights(f->dtype);
        run(false, NULL, stressed);
        run(true, &table, equal);
        assert_memory_equal(plain, equal, sizeof(plain));
        assert_int_equal(table.pairs, LAYERS * f->kv_heads);
        assert_int_equal(table.channels, LAYERS * f->kv_heads);
        assert_int_equal(table.largest, 4);
        for (uint32_t j = 0; j < VOCAB; j++) {
            size = fmaxf(size, fabsf(plain[j]));
        }
        for (uint32_t j = 0; j < VOCAB; j++) { /* pages have 16 bits */
            assert_true(fabsf(stressed[j] - plain[j]) <= 1e-3f * size);
        }
        free_weights();
    }
}

/* A key bias alone, as Qwen2.5 has them, is seen as well as a row; it moves by
 * the root of what it stands out by where queries are as elsewhere, not at all
 * where they are as much larger, and all the way where they are as much
 * smaller. */
static void
test_bias(void **state)
{
    static const struct {
        int query; /* the exponent of its pair of query rows */
        uint32_t pairs, least, most;
    } cases[] = { { 0, 1, 2, 4 }, { 7, 0, 0, 0 }, { -5, 1, 5, 6 } };
    const family_t *f = &kinds[2];
    float logits[VOCAB];
    tr_equalise_t table;

    (void) state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        make_weights(f);
        weight("model.layers.%u.self_attn.k_proj.bias", 1)[7] = 40;
        for (uint32_t head = 0; head < HEADS / f->kv_heads; head++) {
            for (uint32_t half = 0; half < 2; half++) {
                scale_projection(f, "q_proj", 1,
                                 head * f->dim + 7 + half * f->dim / 2,
                                 cases[i].query);
            }
        }
        write_model(f);
        run(true, &table, logits);
        assert_int_equal(table.pairs, cases[i].pairs);
        assert_int_equal(table.channels, 0);
        /* a row's norm is about 0.7, so it stands out by about 2^5.5 */
        assert_in_range(table.largest, cases[i].least, cases[i].most);
        free_weights();
    }
}

/* Where a norm's weights are shared, one head that does not stand out keeps
 * the others where they are. */
static void
test_shared_norm(void **state)
{
    const family_t *f = &kinds[3];
    float logits[VOCAB];
    tr_equalise_t table;

    (void) state;
    make_weights(f);
    for (uint32_t half = 0; half < 2; half++) { /* layer 0, pair 3, head 1 */
        scale_projection(f, "k_proj", 0, f->dim + 3 + half * f->dim / 2, 5);
    }
    write_model(f);
    run(true, &table, logits);
    assert_int_equal(table.pairs, 0);
    free_weights();
}

/* Queries stay below 2^14, and so do elements of o_proj. */
static void
test_bounded(void **state)
{
    const family_t *f = &kinds[0];
    float logits[VOCAB];
    tr_equalise_t table;

    (void) state;
    make_weights(f);
    stress_key(f, 0, 1, 4, 7);
    stress_key(f, 0, 1, 20, 7);
    stress_value(f, 2, 0, 6, 7);
    /* the largest query, sqrt(hidden) * 0.7 or so, times 2^9; keys and values
     * so large that factors of 2^7 and more would be best all the same */
    scale_projection(f, "q_proj", 0, 5 * f->dim + 4, 9 + 7);
    scale_projection(f, "k_proj", 0, f->dim + 4, 18);
    weight("model.layers.%u.self_attn.o_proj.weight", 2)[2 * f->dim + 6] = 1024;
    scale_projection(f, "v_proj", 2, 6, 24);
    write_model(f);
    run(true, &table, logits);
    assert_int_equal(table.pairs, 1);
    assert_int_equal(table.channels, 1);
    /* 1024 * 2^3 is below 2^14; the query may be 2^12 or 2^13 */
    assert_int_equal(table.largest, 3);
    free_weights();
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exact),
        cmocka_unit_test(test_bias),
        cmocka_unit_test(test_shared_norm),
        cmocka_unit_test(test_bounded),
    };

    rng = rng_seed();
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
