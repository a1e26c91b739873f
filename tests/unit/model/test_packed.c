/*
 * Quantised weights (engine/model/weights): one word of each layout by hand; the
 * tiny models of tests/models/quantised, whose weights are what numpy made of
 * them (models/pocket/quantise.py), and which answer as their twins do whose files
 * hold those weights in 16 bits, or in 32.  Files that are wrong:
 * test_packed_hostile.c.
 */
#include "tests/unit/fixtures/packed_fixture.h"

#include <dirent.h>
#include <math.h>

#include "engine/model/weights/packed.h"

#define VOCAB 64u
#define PROMPT 24u

static uint64_t rng;

/* ---- by hand -------------------------------------------------------------- */

static tr_tensor_t
floats(const float *x)
{
    return (tr_tensor_t){ .dtype = TR_F32, .data = x };
}

static tr_tensor_t
stored(tr_stored_t type, const void *data)
{
    return (tr_tensor_t){ .stored = type, .data = data };
}

static void
expect_floats(const float *x, const float *want, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        if (!(x[i] == want[i])) {
            fail_msg("value %u is %g, expected %g", i, (double) x[i],
                     (double) want[i]);
        }
    }
}

static void
test_bytes(void **state)
{
    static const uint8_t codes[] = { 0x38, 0x7e, 0x01, 0xb8, 0x00, 0xc1 };
    static const float scales[] = { 2, 0.5f };
    static const float want[] = { 2, 896, 0x1p-8f, -0.5f, 0, -1.125f };
    static const float fine[] = { 1, 448, 0x1p-9f, -1 };
    tr_tensor_t c = stored(TR_STORED_F8_E4M3, codes), s = floats(scales);
    tr_packed_t p = { .part = { &c, &s },
                      .rows = 1,
                      .columns = 6,
                      .bits = 8,
                      .block_rows = 1,
                      .block_columns = 3,
                      .blocks = 2 };
    float x[6];

    (void) state;
    tr_bytes_read(&p, 0, 0, 6, x);
    expect_floats(x, want, 6);
    tr_bytes_read(&p, 0, 2, 3, x); /* from within a block */
    expect_floats(x, want + 2, 3);
    c.stored = TR_STORED_I8; /* -2 and 127 of 8-bit integers */
    tr_bytes_read(&p, 0, 1, 1, x);
    expect_floats(x, (const float[]){ 252 }, 1);
    c.stored = TR_STORED_F8_E4M3;
    s = (tr_tensor_t){ .stored = TR_STORED_F8_E8M0,
                       .data = (const uint8_t[]){ 127, 127 } };
    tr_bytes_read(&p, 0, 0, 4, x);
    expect_floats(x, fine, 4);
}

/* 0x98765432, the lowest bits first: 2, 3, 4, 5, 6, 7, 8, 9. */
static void
test_words(void **state)
{
    static const uint32_t word = 0x98765432, zero = 0x00000400;
    static const float scale[] = { 0.5f };
    static const float want[] = { -3, -2.5f, -2, -1.5f, -1, -0.5f, 0, 0.5f };
    static const float shifted[] = { -1, -0.5f, 0, 0.5f };
    tr_tensor_t c = stored(TR_STORED_I32, &word), s = floats(scale);
    tr_tensor_t z = stored(TR_STORED_I32, &zero);
    tr_packed_t p = { .part = { &c, &s },
                      .rows = 1,
                      .columns = 8,
                      .bits = 4,
                      .block_rows = 1,
                      .block_columns = 8,
                      .blocks = 1 };
    float x[8];

    (void) state;
    tr_words_read(&p, 0, 0, 8, x);
    expect_floats(x, want, 8);
    /* row 2's zero point is the third nibble, 4; its codes are word 2 */
    c.data = (const uint32_t[]){ 0, 0, word };
    s.data = (const float[]){ 0, 0, 0.5f };
    p.part[TR_PACKED_ZEROS] = &z;
    p.rows = 3;
    tr_words_read(&p, 2, 0, 4, x);
    expect_floats(x, shifted, 4);
    p.part[TR_PACKED_ZEROS] =
        NULL; /* 8 bits: 0x32, 0x54, 0x76, 0x98 less 128 */
    p.bits = 8;
    p.columns = 4;
    s.data = (const float[]){ 1, 1, 1 };
    tr_words_read(&p, 2, 0, 4, x);
    expect_floats(x, (const float[]){ -78, -44, -10, 24 }, 4);
}

/* The nibbles of 0x76543210 belong to rows 0, 2, 4, 6, 1, 3, 5, 7. */
static void
test_awq(void **state)
{
    static const uint32_t word = 0x76543210, zero = 0x11111111;
    static const float scale[8] = { 1, 1, 1, 1, 1, 1, 1, 2 };
    static const float want[8] = { -1, 3, 0, 4, 1, 5, 2, 12 };
    tr_tensor_t c = stored(TR_STORED_I32, &word), s = floats(scale);
    tr_tensor_t z = stored(TR_STORED_I32, &zero);
    tr_packed_t p = { .part = { &c, &s, &z },
                      .rows = 8,
                      .columns = 1,
                      .bits = 4,
                      .block_rows = 1,
                      .block_columns = 1,
                      .blocks = 1 };
    float x[8];

    (void) state;
    for (uint32_t row = 0; row < 8; row++) {
        tr_awq_read(&p, row, 0, 1, x + row);
    }
    expect_floats(x, want, 8);
}

/* Two rows of eight inputs; zero points 7 + 1 and 15 + 1, which is 0. */
static void
test_gptq(void **state)
{
    static const uint32_t words[] = { 0x98765432, 0xfedcba98 }, zeros = 0xf7;
    static const float scale[] = { 1, 0.5f };
    static const float first[] = { -6, -5, -4, -3, -2, -1, 0, 1 };
    static const float second[] = { 4, 4.5f, 5, 5.5f, 6, 6.5f, 7, 7.5f };
    tr_tensor_t c = stored(TR_STORED_I32, words), s = floats(scale);
    tr_tensor_t z = stored(TR_STORED_I32, &zeros);
    tr_packed_t p = { .part = { &c, &s, &z },
                      .rows = 2,
                      .columns = 8,
                      .bits = 4,
                      .block_rows = 1,
                      .block_columns = 8,
                      .blocks = 1,
                      .zero_less = 1 };
    float x[8];

    (void) state;
    tr_gptq_read(&p, 0, 0, 8, x);
    expect_floats(x, first, 8);
    tr_gptq_read(&p, 1, 0, 8, x);
    expect_floats(x, second, 8);
    p.zero_less = 0; /* gptq_v2: 7 */
    tr_gptq_read(&p, 0, 5, 1, x);
    expect_floats(x, (const float[]){ 0 }, 1);
}

static void
test_mxfp4(void **state)
{
    static const uint8_t codes[16] = { 0x21, 0x43, 0x65, 0x87,
                                       0xa9, 0xcb, 0xed, 0x0f };
    static const uint8_t scale = 128;
    static const float want[16] = { 1,  2,  3,  4,  6,  8,  12,  -0.0f,
                                    -1, -2, -3, -4, -6, -8, -12, 0 };
    tr_tensor_t c = stored(TR_STORED_U8, codes),
                s = stored(TR_STORED_U8, &scale);
    tr_packed_t p = { .part = { &c, &s },
                      .rows = 1,
                      .columns = 32,
                      .bits = 4,
                      .block_rows = 1,
                      .block_columns = 32,
                      .blocks = 1 };
    float x[16];

    (void) state;
    tr_mxfp4_read(&p, 0, 0, 16, x);
    expect_floats(x, want, 16);
    tr_mxfp4_read(&p, 0, 5, 2, x);
    expect_floats(x, want + 5, 2);
}

/* ---- models --------------------------------------------------------------- */

static uint64_t
hash(const uint16_t *x, size_t n)
{
    const uint8_t *p = (const uint8_t *) x;
    uint64_t h = 0xcbf29ce484222325u;

    for (size_t i = 0; i < 2 * n; i++) {
        h = (h ^ p[i]) * 0x100000001b3u;
    }
    return h;
}

/* All weights of a tensor in 16 bits, in the order that an unquantised file has,
 * read in pieces; the caller's. */
static uint16_t *
read_all(const tr_model_tensor_t *t, const tr_tensor_t *tensor)
{
    size_t n = (size_t) t->rows * t->columns;
    uint32_t one = t->experts ? t->rows / t->experts : t->rows;
    uint16_t *out = malloc(2 * n);
    float *x = malloc(n * sizeof(float));

    assert_true(out != NULL && x != NULL);
    for (size_t at = 0; at < n;) {
        size_t take = 1 + rng_below(&rng, 100);

        take = take < n - at ? take : n - at;
        tr_tensor_read(tensor, at, take, x + at);
        at += take;
    }
    for (uint32_t r = 0; r < t->rows; r++) {
        for (uint32_t c = 0; c < t->columns; c++) {
            size_t to = t->transposed
                            ? ((size_t) (r / one) * t->columns + c) * one
                                  + r % one
                            : (size_t) r * t->columns + c;

            tr_float_store(out, to, tensor->dtype, x[r * t->columns + c]);
            assert_true(tr_float_load(out, to, tensor->dtype)
                        == x[r * t->columns + c]); /* is rounded */
        }
    }
    free(x);
    return out;
}

static void
check_values(const char *what, const char *name, const uint16_t *x, size_t n,
             tr_dtype_t dtype, json_t *expected)
{
    char text[32];
    json_t *v;
    size_t i;

    if (expected == NULL) {
        fail_msg("%s: %s is quantised, but not in expected.json", what, name);
    }
    assert_string_equal(tr_dtype_stored_name(dtype),
                        json_string_value(json_object_get(expected, "dtype")));
    json_array_foreach (json_object_get(expected, "first"), i, v) {
        if (tr_float_load(x, i, dtype) != (float) json_number_value(v)) {
            fail_msg("%s: %s[%zu] is %.9g, numpy has %.9g", what, name, i,
                     (double) tr_float_load(x, i, dtype), json_number_value(v));
        }
    }
    snprintf(text, sizeof(text), "%016llx", (unsigned long long) hash(x, n));
    if (strcmp(text, json_string_value(json_object_get(expected, "fnv")))
        != 0) {
        fail_msg("%s: %s has other values than numpy made", what, name);
    }
}

static json_t *
twin_shape(const tr_model_tensor_t *t)
{
    json_int_t one = t->experts ? t->rows / t->experts : t->rows;

    if (t->experts == 0) {
        return json_pack("[I, I]", one, (json_int_t) t->columns);
    }
    return t->transposed ? json_pack("[I, I, I]", (json_int_t) t->experts,
                                     (json_int_t) t->columns, one)
                         : json_pack("[I, I, I]", (json_int_t) t->experts, one,
                                     (json_int_t) t->columns);
}

/* A tensor of the twin, in FP32 when `wide`. */
static void
put_twin(writer_t *w, const char *name, const tr_tensor_t *t,
         const json_t *shape, const void *data, size_t n, bool wide)
{
    float *x = wide ? malloc(n * sizeof(float)) : NULL;

    for (size_t i = 0; wide && i < n; i++) {
        x[i] = tr_float_load(data, i, t->dtype);
    }
    put_tensor(w, name, tr_dtype_stored_name(wide ? TR_F32 : t->dtype), shape,
               wide ? x : data,
               n * (wide ? sizeof(float) : tr_dtype_size(t->dtype)));
    free(x);
}

/* What the dashboard says of the files. */
static void
check_cost(const tr_model_config_t *c, const tr_safetensors_t *st,
           uint64_t bytes)
{
    tr_weights_cost_t cost;
    double bits;
    char *at;

    tr_model_tensors_cost(c, st, &cost);
    assert_true(cost.file_bytes == bytes);
    at = strrchr(cost.format, ' ');
    assert_non_null(at);
    assert_string_equal(at, " bits");
    *at = '\0';
    at = strrchr(cost.format, ' ');
    assert_non_null(at);
    bits = strtod(at, NULL);
    assert_true(bits > 4 && bits < 12);
}

/* Holds every quantised weight against numpy's, and writes the twin. */
static void
check_weights(const char *from, const char *what, bool wide)
{
    json_t *expected = load_json(from, "expected.json");
    json_t *config = load_json(from, "config.json");
    writer_t w = { .header = json_object() };
    tr_safetensors_t *st = NULL;
    tr_model_tensor_t t;
    tr_model_config_t c;
    tr_error_t err;
    uint64_t bytes = 0;
    uint32_t at = 0, packed = 0;

    if (tr_model_config_load(from, NULL, &c, &err) != TR_OK
        || tr_model_tensors_open(&c, from, &st, &err) != TR_OK) {
        fail_msg("%s: %s", what, err.text);
    }
    while (tr_model_tensor_next(&c, &at, &t)) {
        size_t n = (size_t) t.rows * t.columns;
        const tr_tensor_t *tensor;
        json_t *shape;

        assert_int_equal(tr_model_tensor_find(st, &t, &tensor, &err), TR_OK);
        if (tensor->packed != NULL) {
            uint16_t *x = read_all(&t, tensor);

            check_values(what, t.name, x, n, tensor->dtype,
                         json_object_get(expected, t.name));
            shape = twin_shape(&t);
            put_twin(&w, t.name, tensor, shape, x, n, wide);
            free(x);
            packed++;
            bytes += tr_packed_bytes(tensor->packed);
        } else {
            bytes += tensor->size;
            shape = json_array();
            for (uint32_t i = 0; i < tensor->n_dims; i++) {
                json_array_append_new(shape, json_integer(
                                                 (json_int_t) tensor->dims[i]));
            }
            put_twin(&w, t.name, tensor, shape, tensor->data,
                     tensor->size / tr_dtype_size(tensor->dtype), wide);
        }
        json_decref(shape);
    }
    assert_int_equal(packed, json_object_size(expected));
    assert_true(packed >= 2);
    check_cost(&c, st, bytes);
    write_tensors(&w);
    json_object_del(config, "quantization_config");
    write_config(config);
    tr_safetensors_close(st);
    json_decref(expected);
}

/* Logits of all positions of a prompt. */
static void
answer(const char *model, const char *isa, float *logits)
{
    int32_t ids[PROMPT];
    float last[VOCAB];
    fixture_t f;

    for (uint32_t i = 0; i < PROMPT; i++) {
        ids[i] = (int32_t) (i * 37 % VOCAB);
    }
    fixture_open(&f, model, "auto", isa, 2, 64);
    fixture_step(&f,
                 &(fixture_item_t){ tr_kv_open(f.kv, NULL), 0, PROMPT, ids }, 1,
                 last);
    for (uint32_t i = 0; i < PROMPT; i++) {
        assert_int_equal(tr_model_logits(f.model, &i, 1), TR_OK);
        memcpy(logits + (size_t) i * VOCAB, f.model->logits,
               VOCAB * sizeof(float));
    }
    fixture_close(&f);
}

static void
test_models(void **state)
{
    static const char *const isas[] = { "c", "avx2", "avx512" };
    static float one[PROMPT * VOCAB], twin[PROMPT * VOCAB];
    DIR *d = opendir(MODELS);
    struct dirent *e;
    uint32_t models = 0;

    (void) state;
    assert_non_null(d);
    while ((e = readdir(d)) != NULL) {
        char from[300];

        if (e->d_name[0] == '.') {
            continue;
        }
        models++;
        snprintf(from, sizeof(from), MODELS "/%s", e->d_name);
        for (size_t i = 0; i < 2 * sizeof(isas) / sizeof(isas[0]); i++) {
            const char *isa = isas[i / 2];

            if (tr_kernels_cpu(isa) == NULL) {
                continue;
            }
            check_weights(from, e->d_name, i % 2 == 1);
            answer(from, isa, one);
            answer(dir, isa, twin);
            assert_true(isfinite(one[0]) && one[0] != one[1]);
            if (memcmp(one, twin, sizeof(one)) != 0) {
                fail_msg("%s, %s: other logits than the twin's in %u bits",
                         e->d_name, isa, i % 2 == 1 ? 32 : 16);
            }
        }
    }
    closedir(d);
    assert_int_equal(models, 11);
}

static int
seed_and_make_dir(void **state)
{
    rng = rng_seed();
    return make_dir(state);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bytes), cmocka_unit_test(test_words),
        cmocka_unit_test(test_awq),   cmocka_unit_test(test_gptq),
        cmocka_unit_test(test_mxfp4), cmocka_unit_test(test_models),
    };

    return cmocka_run_group_tests(tests, seed_and_make_dir, remove_dir);
}
