/*
 * Quantised weights (engine/model/weights): one word of each layout by hand; the
 * tiny models of tests/models/quantised, whose weights are what numpy made of
 * them (models/pocket/quantise.py), and which answer as their twins do whose files
 * hold those weights in 16 bits, or in 32; files that are wrong in every way.
 */
#include "tests/unit/fixtures/model_fixture.h"

#include <dirent.h>
#include <jansson.h>
#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/model/weights/packed.h"

#define MODELS "tests/models/quantised"
#define VOCAB 64u
#define PROMPT 24u

static uint64_t rng;
static char dir[64]; /* of changed models */

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

/* A file of safetensors that grows tensor by tensor. */
typedef struct {
    json_t *header;
    uint8_t *data;
    size_t size;
} writer_t;

static void
put_tensor(writer_t *w, const char *name, const char *dtype,
           const json_t *shape, const void *data, size_t size)
{
    w->data = realloc(w->data, w->size + size + 1);
    assert_non_null(w->data);
    memcpy(w->data + w->size, data, size);
    json_object_set_new(w->header, name,
                        json_pack("{s:s, s:O, s:[I, I]}", "dtype", dtype,
                                  "shape", shape, "data_offsets",
                                  (json_int_t) w->size,
                                  (json_int_t) (w->size + size)));
    w->size += size;
}

static void
write_tensors(writer_t *w)
{
    char path[100], *text = json_dumps(w->header, JSON_COMPACT);
    uint64_t length = strlen(text);
    FILE *f;

    snprintf(path, sizeof(path), "%s/model.safetensors", dir);
    f = fopen(path, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(&length, 8, 1, f), 1);
    assert_int_equal(fwrite(text, 1, length, f), length);
    assert_int_equal(fwrite(w->data, 1, w->size, f), w->size);
    fclose(f);
    free(text);
    free(w->data);
    json_decref(w->header);
}

static json_t *
load_json(const char *from, const char *name)
{
    char path[400];
    json_error_t je;
    json_t *root;

    snprintf(path, sizeof(path), "%s/%s", from, name);
    root = json_load_file(path, 0, &je);
    if (root == NULL) {
        fail_msg("%s: %s", path, je.text);
    }
    return root;
}

static void
write_config(json_t *config)
{
    char path[100];

    snprintf(path, sizeof(path), "%s/config.json", dir);
    assert_int_equal(json_dump_file(config, path, 0), 0);
    json_decref(config);
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
        } else {
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

/* ---- what is wrong -------------------------------------------------------- */

/* What happens to a tensor of a model on its way to `dir`. */
typedef struct {
    const char *model, *tensor; /* behind layers.0. */
    enum { GONE, RENAMED, SHAPE, BYTES, DTYPE } change;
    const char *to;     /* name, dtype; BYTES: hexadecimal, the first ones */
    json_int_t dims[4]; /* SHAPE: up to a 0; data as long as that needs */
    const char *words;  /* of the error, which names .. */
    const char *named;  /* .. this tensor, NULL: the changed one */
} wrong_t;

#define Q "self_attn.q_proj."
static const wrong_t wrong[] = {
    { "awq", Q "scales", GONE, NULL, { 0 }, "is missing, AWQ weights", NULL },
    { "awq", Q "qzeros", GONE, NULL, { 0 }, "is missing, AWQ weights", NULL },
    { "awq", Q "qweight", GONE, NULL, { 0 }, "is missing", Q "weight" },
    { "awq",
      Q "qweight",
      SHAPE,
      NULL,
      { 64, 9 },
      "has shape [64, 9], expected [64, 8] for 64 x 64 weights in AWQ",
      NULL },
    { "awq", Q "qweight", SHAPE, NULL, { 63, 8 }, "has shape [63, 8]", NULL },
    { "awq", Q "qzeros", SHAPE, NULL, { 4, 7 }, "expected [4, 8]", NULL },
    { "awq", Q "scales", SHAPE, NULL, { 3, 64 }, "expected [4, 64]", NULL },
    { "awq", Q "scales", BYTES, "007e", { 0 }, "holds nan at 0", NULL },
    { "awq", Q "scales", BYTES, "00fc", { 0 }, "holds -inf at 0", NULL },
    { "awq", Q "scales", DTYPE, "I8", { 4, 64 }, "dtype I8", NULL },
    { "gptq", Q "qweight", SHAPE, NULL, { 8, 63 }, "expected [8, 64]", NULL },
    { "gptq",
      Q "qweight",
      SHAPE,
      NULL,
      { 8, 64, 1 },
      "shape [8, 64, 1]",
      NULL },
    { "gptq", Q "qzeros", SHAPE, NULL, { 5, 8 }, "expected [4, 8]", NULL },
    { "gptq-v2",
      Q "g_idx",
      BYTES,
      "04000000",
      { 0 },
      "puts column 0 into group 4, expected 0 to 3",
      NULL },
    { "gptq-v2", Q "g_idx", BYTES, "ffffffff", { 0 }, "group -1", NULL },
    { "gptq-v2", Q "g_idx", SHAPE, NULL, { 65 }, "expected [64]", NULL },
    { "int4", Q "weight_packed", SHAPE, NULL, { 64, 7 }, "[64, 8]", NULL },
    { "int4", Q "weight_scale", SHAPE, NULL, { 64, 5 }, "[64, 4]", NULL },
    { "int4", Q "weight_scale", BYTES, "c07f", { 0 }, "holds nan at 0", NULL },
    { "int4",
      Q "weight_shape",
      BYTES,
      "3f",
      { 0 },
      "holds [63, 64], config.json says [64, 64]",
      NULL },
    { "int4-zero",
      Q "weight_zero_point",
      GONE,
      NULL,
      { 0 },
      "has no zero points, but quantization_config says symmetric false",
      Q "weight" },
    { "int4-zero",
      Q "weight_zero_point",
      SHAPE,
      NULL,
      { 64, 4 },
      "[8, 4]",
      NULL },
    { "int4-zero",
      Q "weight_g_idx",
      BYTES,
      "00000080",
      { 0 },
      "group -",
      NULL },
    { "fp8-block",
      Q "weight_scale_inv",
      GONE,
      NULL,
      { 0 },
      "is missing",
      Q "weight_scale" },
    { "fp8-block",
      Q "weight_scale_inv",
      SHAPE,
      NULL,
      { 4, 3 },
      "[4, 4]",
      NULL },
    { "fp8-block",
      Q "weight_scale_inv",
      BYTES,
      "0000c07f",
      { 0 },
      "holds nan at 0",
      NULL },
    { "fp8-block", Q "weight", SHAPE, NULL, { 64, 63 }, "[64, 64]", NULL },
    { "fp8-block",
      Q "weight",
      DTYPE,
      "F8_E5M2",
      { 64, 64 },
      "has dtype \"F8_E5M2\"",
      NULL },
    { "fp8-modelopt", Q "weight_scale", SHAPE, NULL, { 2 }, "[1, 1]", NULL },
    { "fp8-channel",
      Q "weight_scale",
      SHAPE,
      NULL,
      { 63, 1 },
      "[64, 1]",
      NULL },
    { "int8", Q "weight_scale", SHAPE, NULL, { 65, 1 }, "[64, 1]", NULL },
    { "int8",
      Q "weight",
      DTYPE,
      "F8_E4M3",
      { 64, 64 },
      "holds 8-bit floats, of which quantization_config says nothing",
      NULL },
    { "mxfp4",
      "mlp.experts.gate_up_proj_scales",
      GONE,
      NULL,
      { 0 },
      "is missing, MXFP4",
      NULL },
    { "mxfp4",
      "mlp.experts.gate_up_proj_scales",
      BYTES,
      "ff",
      { 0 },
      "holds nan at 0",
      NULL },
    { "mxfp4",
      "mlp.experts.gate_up_proj_blocks",
      SHAPE,
      NULL,
      { 8, 64, 2, 15 },
      "[8, 64, 2, 16]",
      NULL },
    { "mxfp4",
      "mlp.experts.down_proj_scales",
      SHAPE,
      NULL,
      { 7, 64, 1 },
      "[8, 64, 1]",
      NULL },
    { "int4",
      Q "weight_packed",
      RENAMED,
      "model.layers.0.extra",
      { 0 },
      "is missing",
      Q "weight" },
    { "gptq-v2",
      Q "g_idx",
      GONE,
      NULL,
      { 0 },
      "has no .g_idx, but quantization_config says that its columns are "
      "reordered",
      Q "weight" },
    { "int4-zero",
      Q "weight_g_idx",
      GONE,
      NULL,
      { 0 },
      "has no .weight_g_idx, but",
      Q "weight" },
};

static uint8_t *
bytes_of_file(const char *from, size_t *size)
{
    char path[400];
    uint8_t *all;
    FILE *f;

    snprintf(path, sizeof(path), "%s/model.safetensors", from);
    f = fopen(path, "r");
    assert_non_null(f);
    fseek(f, 0, SEEK_END);
    *size = (size_t) ftell(f);
    rewind(f);
    all = malloc(*size);
    assert_non_null(all);
    assert_int_equal(fread(all, 1, *size, f), *size);
    fclose(f);
    return all;
}

static void
put_changed(writer_t *w, const wrong_t *c, const char *name, const char *dtype,
            json_t *shape, uint8_t *data, size_t size)
{
    static const uint8_t zeros[1 << 16];
    json_t *dims = json_array();
    size_t width = size, n = 1;

    for (size_t i = 0; i < json_array_size(shape); i++) {
        width /= (size_t) json_integer_value(json_array_get(shape, i));
    }
    for (uint32_t i = 0; i < 4 && c->dims[i] != 0; i++) {
        json_array_append_new(dims, json_integer(c->dims[i]));
        n *= (size_t) c->dims[i];
    }
    for (const char *p = c->change == BYTES ? c->to : ""; *p; p += 2) {
        unsigned byte;

        assert_int_equal(sscanf(p, "%2x", &byte), 1);
        *data++ = (uint8_t) byte;
    }
    switch (c->change) {
    case GONE:
        break;
    case RENAMED:
        put_tensor(w, c->to, dtype, shape, data, size);
        break;
    case SHAPE:
        assert_true(n * width <= sizeof(zeros));
        put_tensor(w, name, dtype, dims, zeros, n * width);
        break;
    case DTYPE:
        put_tensor(w, name, c->to, dims, zeros, n);
        break;
    case BYTES:
        put_tensor(w, name, dtype, shape, data - strlen(c->to) / 2, size);
        break;
    }
    json_decref(dims);
}

/* Writes the model with its change; returns the full name. */
static const char *
write_wrong(const wrong_t *c)
{
    static char full[200];
    writer_t w = { .header = json_object() };
    char from[300];
    const char *name;
    json_t *header, *entry;
    uint64_t length;
    size_t size;
    uint8_t *all;
    bool found = false;

    snprintf(from, sizeof(from), MODELS "/%s", c->model);
    snprintf(full, sizeof(full), "model.layers.0.%s", c->tensor);
    all = bytes_of_file(from, &size);
    memcpy(&length, all, 8);
    header = json_loadb((char *) all + 8, length, 0, NULL);
    json_object_foreach (header, name, entry) {
        json_t *at = json_object_get(entry, "data_offsets");
        json_int_t first = json_integer_value(json_array_get(at, 0));
        json_int_t end = json_integer_value(json_array_get(at, 1));
        const char *dtype = json_string_value(json_object_get(entry, "dtype"));
        json_t *shape = json_object_get(entry, "shape");

        if (strcmp(name, "__metadata__") == 0) {
            continue;
        }
        if (strcmp(name, full) == 0) {
            found = true;
            put_changed(&w, c, name, dtype, shape, all + 8 + length + first,
                        (size_t) (end - first));
        } else {
            put_tensor(&w, name, dtype, shape, all + 8 + length + first,
                       (size_t) (end - first));
        }
    }
    assert_true(found);
    write_tensors(&w);
    write_config(load_json(from, "config.json"));
    json_decref(header);
    free(all);
    return full;
}

static void
test_wrong(void **state)
{
    (void) state;
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        const wrong_t *c = &wrong[i];
        const char *full = write_wrong(c);
        tr_safetensors_t *st = NULL;
        char named[200];
        tr_model_config_t config;
        tr_error_t err = { 0 };

        snprintf(named, sizeof(named), "\"model.layers.0.%s\"",
                 c->named ? c->named : c->tensor);
        assert_int_equal(tr_model_config_load(dir, NULL, &config, &err), TR_OK);
        if (tr_model_tensors_open(&config, dir, &st, &err) == TR_OK) {
            fail_msg("%s: %s, change %d, was not refused", c->model, full,
                     c->change);
        }
        if (strstr(err.text, named) == NULL
            || strstr(err.text, c->words) == NULL) {
            fail_msg("%s: %s: \"%s\", expected %s and \"%s\"", c->model, full,
                     err.text, named, c->words);
        }
    }
}

/* A list of groups is needed only where groups are not those in order. */
static void
test_groups_in_order(void **state)
{
    static const wrong_t gone = { "gptq-v2", Q "g_idx", GONE, NULL,
                                  { 0 },     NULL,      NULL };
    static const struct {
        const char *name;
        json_t *(*value)(void);
    } settings[] = { { "desc_act", json_false },
                     { "static_groups", json_true } };

    (void) state;
    for (size_t i = 0; i < sizeof(settings) / sizeof(settings[0]); i++) {
        tr_safetensors_t *st = NULL;
        tr_model_config_t c;
        tr_error_t err;
        json_t *config;

        write_wrong(&gone);
        config = load_json(dir, "config.json");
        json_object_set_new(json_object_get(config, "quantization_config"),
                            settings[i].name, settings[i].value());
        write_config(config);
        assert_int_equal(tr_model_config_load(dir, NULL, &c, &err), TR_OK);
        if (tr_model_tensors_open(&c, dir, &st, &err) != TR_OK) {
            fail_msg("%s: %s", settings[i].name, err.text);
        }
        tr_safetensors_close(st);
    }
}

/* Both codes of FP8 that are no numbers, in the words that are looked at together
 * and anywhere in them. */
static void
test_fp8_nan(void **state)
{
    static const struct {
        const char *bytes, *words; /* as hexadecimal; of the error, or NULL */
    } rows[] = {
        { "7f", "holds nan (0x7f) at 0, expected finite weights" },
        { "0000ff", "holds nan (0xff) at 2, expected" },
        { "7e00fe807e00fe807e00fe80807eff",
          "holds nan (0xff) at 14, expected" },
        { "7efe00807efe00807e", NULL },
    };

    (void) state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        wrong_t change = { "fp8-channel", "mlp.down_proj.weight",
                           BYTES,         rows[i].bytes,
                           { 0 },         NULL,
                           NULL };
        const char *full = write_wrong(&change);
        tr_model_options_t options = { .dir = dir,
                                       .load_format = "auto",
                                       .kernels = tr_kernels_cpu("c"),
                                       .threads = 1,
                                       .max_rows = 8,
                                       .max_seqs = 1 };
        tr_model_t *m = NULL;
        tr_error_t err = { 0 };
        tr_status_t rc = tr_model_open(&options, &m, &err);

        if (rc == TR_OK) {
            tr_model_free(m);
        }
        assert_int_equal(rc, rows[i].words == NULL ? TR_OK : TR_ERR_FORMAT);
        if (rows[i].words != NULL
            && (strstr(err.text, full) == NULL
                || strstr(err.text, rows[i].words) == NULL)) {
            fail_msg("\"%s\", expected %s and \"%s\"", err.text, full,
                     rows[i].words);
        }
    }
}

/* A bias that nobody reads may stay when it adds nothing. */
static void
test_zero_bias(void **state)
{
    static const wrong_t bias = {
        "gptq", "mlp.up_proj.bias", BYTES, "003c", { 0 }, NULL, NULL
    };
    tr_safetensors_t *st = NULL;
    tr_model_config_t config;
    tr_error_t err;

    (void) state;
    write_wrong(&bias);
    assert_int_equal(tr_model_config_load(dir, NULL, &config, &err), TR_OK);
    assert_int_equal(tr_model_tensors_open(&config, dir, &st, &err),
                     TR_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.text, "mlp.up_proj.bias\" is not used"));
}

static int
make_dir(void **state)
{
    (void) state;
    rng = rng_seed();
    snprintf(dir, sizeof(dir), "/tmp/tr-packed-XXXXXX");
    return mkdtemp(dir) == NULL;
}

static int
remove_dir(void **state)
{
    char path[100];

    (void) state;
    snprintf(path, sizeof(path), "%s/config.json", dir);
    unlink(path);
    snprintf(path, sizeof(path), "%s/model.safetensors", dir);
    unlink(path);
    return rmdir(dir);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bytes),
        cmocka_unit_test(test_words),
        cmocka_unit_test(test_awq),
        cmocka_unit_test(test_gptq),
        cmocka_unit_test(test_mxfp4),
        cmocka_unit_test(test_models),
        cmocka_unit_test(test_wrong),
        cmocka_unit_test(test_zero_bias),
        cmocka_unit_test(test_groups_in_order),
        cmocka_unit_test(test_fp8_nan),
    };

    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
