/*
 * Models whose weights are integers in memory (engine/model/cpu/model_codes.c): the
 * goldens with cpu_weights int8 and int4, in one piece, in pieces and in a batch;
 * quantised files that are kept beside the same files expanded; and which parts
 * are kept.
 */
#include "tests/unit/fixtures/golden_fixture.h"
#include "tests/unit/fixtures/model_fixture.h"
#include "engine/model/weights/packed.h"
#include "kernels/kernels.h"

#define QUANTISED "tests/models/quantised"
#define PROMPT 24u
#define VOCAB 64u /* of the quantised ones */

/* Mean squares of errors over those of logits.  The tiny models have 64 columns
 * and weights that are noise, so each rounding shows (in a router above all); what
 * is out of place is off by 1.4. */
#define INT8_TOLERANCE 0.1
#define INT4_TOLERANCE 0.8
#define KEPT_TOLERANCE 0.03 /* the largest error, of the largest logit */

static uint64_t rng;

static tr_model_options_t
options_of(const char *dir, const char *isa, bool packed, tr_codes_t codes)
{
    return (tr_model_options_t){ .dir = dir,
                                 .load_format = "auto",
                                 .kernels = tr_kernels_cpu(isa),
                                 .threads = 2,
                                 .packed = packed,
                                 .quantise = codes };
}

/* Logits of rows [0, n) of the last forward. */
static void
take_logits(fixture_t *f, uint32_t n, uint32_t vocab, float *out)
{
    for (uint32_t i = 0; i < n; i++) {
        assert_int_equal(tr_model_logits(f->model, &i, 1), TR_OK);
        memcpy(out + (size_t) i * vocab, f->model->logits,
               vocab * sizeof(float));
    }
}

/* Adds up squares of errors, and of what is right, at the positions of which a
 * golden has all logits. */
static void
add_squares(const float *logits, const golden_t *p, double *error, double *all)
{
    size_t i, j;
    json_t *at, *v;

    json_array_foreach (json_object_get(p->json, "logits"), i, at) {
        const float *x = logits
                         + json_integer_value(json_object_get(at, "position"))
                               * GOLDEN_VOCAB;

        json_array_foreach (json_object_get(at, "values"), j, v) {
            double want = json_number_value(v);

            *error += (x[j] - want) * (x[j] - want);
            *all += want * want;
        }
    }
}

static void
prompt_in_pieces(fixture_t *f, const golden_t *p, const float *whole,
                 const char *what)
{
    static float piece[GOLDEN_LEN * GOLDEN_VOCAB], last[GOLDEN_VOCAB];
    int32_t slot = tr_kv_open(f->kv, NULL);

    for (uint32_t at = 0, n; at < p->n; at += n) {
        n = 1 + rng_below(&rng, p->n - at);
        fixture_step(f, &(fixture_item_t){ slot, at, n, p->ids + at }, 1, last);
        take_logits(f, n, GOLDEN_VOCAB, piece);
        if (memcmp(piece, whole + (size_t) at * GOLDEN_VOCAB,
                   n * GOLDEN_VOCAB * sizeof(float))) {
            fail_msg("%s: rows from %u have other bits than in one piece", what,
                     at);
        }
    }
    tr_kv_close(f->kv, slot);
}

static void
prompt_in_batch(fixture_t *f, const golden_t *prompts, uint32_t which,
                const float *whole, const char *what)
{
    static float row[GOLDEN_VOCAB], last[2 * GOLDEN_VOCAB];
    const golden_t *p = &prompts[which], *other = &prompts[0];
    fixture_item_t items[2] = {
        { tr_kv_open(f->kv, NULL), 0, other->n, other->ids },
        { tr_kv_open(f->kv, NULL), 0, p->n, p->ids },
    };

    fixture_step(f, items, 2, last);
    for (uint32_t i = 0; i < p->n; i++) {
        uint32_t at = other->n + i;

        assert_int_equal(tr_model_logits(f->model, &at, 1), TR_OK);
        memcpy(row, f->model->logits, sizeof(row));
        if (memcmp(row, whole + (size_t) i * GOLDEN_VOCAB, sizeof(row))) {
            fail_msg("%s: row %u has other bits in a batch", what, i);
        }
    }
    tr_kv_close(f->kv, items[0].slot);
    tr_kv_close(f->kv, items[1].slot);
}

/* Every matrix but routers is of integers. */
static void
check_quantised(const tr_model_t *m, tr_codes_t codes, const char *what)
{
    const tr_recipe_t *r = &m->config.recipe;

    for (tr_part_t part = 0; part < TR_PART_MATRICES; part++) {
        bool either = part == TR_PART_EMBED || part == TR_PART_HEAD;
        uint32_t layer = r->layers - 1;
        const tr_weights_t *w = tr_part_layered(part) ? &m->layers[layer]
                                                      : &m->root;
        tr_codes_t want = part == TR_PART_ROUTER ? TR_CODES_NONE
                          : either               ? TR_CODES_INT8
                                                 : codes;

        if (tr_part_shape(r, part, layer).rows == 0) {
            continue;
        }
        if (w->matrix[part].k % 32 != 0) {
            want = TR_CODES_NONE;
        }
        if (w->matrix[part].codes.codes != want) {
            fail_msg("%s: part %d has codes %d, expected %d", what, part,
                     w->matrix[part].codes.codes, want);
        }
    }
}

static void
one_model(const char *name, const char *isa, tr_codes_t codes)
{
    static float whole[GOLDEN_LEN * GOLDEN_VOCAB], last[GOLDEN_VOCAB];
    char dir[300], what[320];
    golden_t prompts[GOLDEN_PROMPTS];
    double error = 0, all = 0;
    json_t *root;
    fixture_t f;

    snprintf(dir, sizeof(dir), MODELS "/%s", name);
    snprintf(what, sizeof(what), "%s, %s, int%d", name, isa,
             codes == TR_CODES_INT8 ? 8 : 4);
    root = golden_load(dir, prompts);
    fixture_open_options(&f, options_of(dir, isa, true, codes), GOLDEN_LEN);
    check_quantised(f.model, codes, what);
    for (uint32_t i = 0; i < GOLDEN_PROMPTS; i++) {
        const golden_t *p = &prompts[i];
        uint32_t from = tr_recipe_long_from(&f.model->config.recipe);
        int32_t slot = tr_kv_open(f.kv, NULL);

        if (from != 0 && p->n > from) {
            tr_kv_close(f.kv, slot);
            continue; /* test_model_goldens has these */
        }
        fixture_step(&f, &(fixture_item_t){ slot, 0, p->n, p->ids }, 1, last);
        take_logits(&f, p->n, GOLDEN_VOCAB, whole);
        tr_kv_close(f.kv, slot);
        add_squares(whole, p, &error, &all);
        prompt_in_pieces(&f, p, whole, what);
        prompt_in_batch(&f, prompts, i, whole, what);
    }
    error = sqrt(error / all);
    print_message("%s: off by %.3f\n", what, error);
    if (!(error
          <= (codes == TR_CODES_INT8 ? INT8_TOLERANCE : INT4_TOLERANCE))) {
        fail_msg("%s: off by %.3f", what, error);
    }
    fixture_close(&f);
    json_decref(root);
}

static bool
every_form(const char *name)
{
    static const char *const isas[] = { "c", "avx2", "avx512" };

    for (size_t i = 0; i < sizeof(isas) / sizeof(isas[0]); i++) {
        if (tr_kernels_cpu(isas[i]) != NULL) {
            one_model(name, isas[i], TR_CODES_INT8);
            one_model(name, isas[i], TR_CODES_INT4);
        }
    }
    return true;
}

static void
test_goldens(void **state)
{
    (void) state;
    golden_models(every_form, 10);
}

/* A prompt's logits; fills what the parts of the layer are kept in. */
static void
answer(const char *dir, bool packed, tr_codes_t codes[TR_PART_MATRICES],
       float *logits)
{
    int32_t ids[PROMPT];
    float last[VOCAB];
    fixture_t f;

    for (uint32_t i = 0; i < PROMPT; i++) {
        ids[i] = (int32_t) (i * 37 % VOCAB);
    }
    fixture_open_options(&f, options_of(dir, NULL, packed, TR_CODES_NONE), 64);
    fixture_step(&f,
                 &(fixture_item_t){ tr_kv_open(f.kv, NULL), 0, PROMPT, ids }, 1,
                 last);
    take_logits(&f, PROMPT, VOCAB, logits);
    for (tr_part_t part = 0; part < TR_PART_MATRICES; part++) {
        codes[part] = f.model->layers[0].matrix[part].codes.codes;
    }
    fixture_close(&f);
}

/* Files that keep their codes answer nearly as when they are expanded: activations
 * have 8 bits.  A wrong order, scale or zero point is off by the whole. */
static void
test_kept(void **state)
{
    static const struct {
        const char *name;
        tr_codes_t qkv, down, experts;
    } rows[] = {
        { "fp8-block", TR_CODES_NONE, TR_CODES_NONE, TR_CODES_NONE },
        { "int8", TR_CODES_INT8, TR_CODES_NONE, TR_CODES_NONE },
        { "awq", TR_CODES_NONE, TR_CODES_NONE,
          TR_CODES_NONE }, /* groups of 16 */
        { "gptq-v2", TR_CODES_NONE, TR_CODES_NONE, TR_CODES_NONE },
        { "mxfp4", TR_CODES_NONE, TR_CODES_NONE, TR_CODES_MXFP4 },
    };
    static float kept[PROMPT * VOCAB], expanded[PROMPT * VOCAB];

    (void) state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        tr_codes_t codes[TR_PART_MATRICES], none[TR_PART_MATRICES];
        double most = 0, error = 0;
        char dir[300];

        snprintf(dir, sizeof(dir), QUANTISED "/%s", rows[i].name);
        answer(dir, true, codes, kept);
        answer(dir, false, none, expanded);
        for (uint32_t j = 0; j < PROMPT * VOCAB; j++) {
            most = fmax(most, fabs(expanded[j]));
            error = fmax(error, fabs(kept[j] - expanded[j]));
        }
        print_message("%s: qkv %d down %d experts %d, off by %.2g\n",
                      rows[i].name, codes[TR_PART_QKV], codes[TR_PART_DOWN],
                      codes[TR_PART_EXPERT_DOWN], error / most);
        assert_int_equal(codes[TR_PART_QKV], rows[i].qkv);
        assert_int_equal(codes[TR_PART_DOWN], rows[i].down);
        assert_int_equal(codes[TR_PART_EXPERT_DOWN], rows[i].experts);
        assert_int_equal(none[TR_PART_QKV], TR_CODES_NONE);
        assert_int_equal(none[TR_PART_EXPERT_DOWN], TR_CODES_NONE);
        if (!(error <= KEPT_TOLERANCE * most)) {
            fail_msg("%s: off by %.3g of %.3g", rows[i].name, error, most);
        }
        assert_true((error == 0)
                    == (rows[i].qkv == TR_CODES_NONE
                        && rows[i].experts == TR_CODES_NONE));
    }
}

/* ---- rows ------------------------------------------------------------------ */

#define ROWS 64u
#define COLUMNS 96u

/* Random words, scales and zero points of a quantised weight. */
typedef struct {
    tr_packed_t p;
    tr_tensor_t part[TR_PACKED_PARTS], tensor;
    uint8_t bytes[ROWS * COLUMNS];
    uint32_t words[ROWS * COLUMNS / 4], zeros[ROWS * COLUMNS / 4];
    float scales[ROWS * COLUMNS / 32];
} weight_t;

static const tr_packed_format_t *
format_named(const char *name)
{
    const tr_packed_format_t *f = tr_packed_formats;

    while (strcmp(f->name, name) != 0) {
        f++;
    }
    return f;
}

static void
weight_random(weight_t *w, const char *format, uint32_t bits, uint32_t group,
              bool zeros)
{
    const tr_stored_t stored = strcmp(format, "INT8") == 0    ? TR_STORED_I8
                               : strcmp(format, "MXFP4") == 0 ? TR_STORED_U8
                                                              : TR_STORED_I32;
    bool mxfp4 = stored == TR_STORED_U8;

    memset(w, 0, sizeof(*w));
    for (size_t i = 0; i < sizeof(w->words) / 4; i++) {
        w->words[i] = rng_below(&rng, UINT32_MAX);
        w->zeros[i] = rng_below(&rng, UINT32_MAX);
    }
    for (size_t i = 0; i < sizeof(w->bytes); i++) {
        w->bytes[i] = (uint8_t) (mxfp4 ? 100 + rng_below(&rng, 50)
                                       : rng_below(&rng, 256));
    }
    for (size_t i = 0; i < sizeof(w->scales) / 4; i++) {
        w->scales[i] = rng_normal(&rng);
    }
    w->p = (tr_packed_t){ .format = format_named(format),
                          .name = "w",
                          .rows = ROWS,
                          .columns = COLUMNS,
                          .bits = bits,
                          .block_rows = 1,
                          .block_columns = group,
                          .blocks = COLUMNS / group };
    w->part[TR_PACKED_CODES] = (tr_tensor_t){ .stored = stored,
                                              .data = w->words };
    w->part[TR_PACKED_SCALES] = (tr_tensor_t){
        .stored = mxfp4 ? TR_STORED_U8 : TR_STORED_FLOAT,
        .dtype = TR_F32,
        .data = mxfp4 ? (const void *) w->bytes : w->scales
    };
    w->part[TR_PACKED_ZEROS] = (tr_tensor_t){ .stored = TR_STORED_I32,
                                              .data = w->zeros };
    w->p.part[TR_PACKED_CODES] = &w->part[TR_PACKED_CODES];
    w->p.part[TR_PACKED_SCALES] = &w->part[TR_PACKED_SCALES];
    w->p.part[TR_PACKED_ZEROS] = zeros ? &w->part[TR_PACKED_ZEROS] : NULL;
    w->tensor.packed = &w->p;
}

/* Rows of every format that is kept are, read again from the matrix, the weights
 * of the file. */
static void
test_rows(void **state)
{
    static const struct {
        const char *format;
        uint32_t bits, group;
        bool zeros;
    } rows[] = {
        { "INT8", 8, 32, false },
        { "INT8", 8, 96, false },
        { "packed integers", 4, 32, false },
        { "packed integers", 4, 96, true },
        { "packed integers", 8, 32, true },
        { "AWQ", 4, 32, true },
        { "GPTQ", 4, 32, true },
        { "GPTQ", 8, 96, true },
        { "MXFP4", 4, 32, false },
    };
    static weight_t x;
    tr_model_t m = { .kernels = tr_kernels_cpu("c") };
    tr_model_options_t options = { .packed = true };
    tr_model_tensor_t t = { .part = TR_PART_GATE_UP,
                            .rows = ROWS,
                            .columns = COLUMNS };
    tr_stream_t s = { 1, fixture_thread_pool() };

    (void) state;
    m.config.recipe.head_dim = 16;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        tr_cpu_matrix_t w = { .n = ROWS, .k = COLUMNS };
        float want[COLUMNS], got[COLUMNS];
        size_t bytes;
        void *room;

        weight_random(&x, rows[i].format, rows[i].bits, rows[i].group,
                      rows[i].zeros);
        assert_true(tr_model_keeps_codes(&m, &options, &t, &x.tensor));
        w.codes = tr_model_codes(&m, &options, &t, &x.tensor);
        assert_true(w.codes.codes != TR_CODES_NONE);
        assert_int_equal(w.codes.zeros, rows[i].zeros);
        bytes = m.kernels->codes_bytes(ROWS, COLUMNS, &w.codes);
        w.data = aligned_alloc(64, bytes);
        room = malloc(tr_model_codes_room(&w));
        for (uint32_t r = 0; r < ROWS; r++) {
            tr_model_codes_row(&m, &w, &t, &x.tensor, r, room);
        }
        for (int32_t r = 0; r < (int32_t) ROWS; r++) {
            x.p.format->read(&x.p, (uint32_t) r, 0, COLUMNS, want);
            assert_int_equal(m.kernels->embedding(&s, &w, &r, 1, got, COLUMNS),
                             0);
            for (uint32_t k = 0; k < COLUMNS; k++) {
                if (got[k] != want[k]) {
                    fail_msg("%s, %u bits, groups of %u: row %d column %u is "
                             "%.9g, the file says %.9g",
                             rows[i].format, rows[i].bits, rows[i].group, r, k,
                             got[k], want[k]);
                }
            }
        }
        free(room);
        free(w.data);
        options.packed = false;
        assert_false(tr_model_keeps_codes(&m, &options, &t, &x.tensor));
        options.packed = true;
    }
    weight_random(&x, "AWQ", 4, 16, true); /* groups too short for a product */
    assert_false(tr_model_keeps_codes(&m, &options, &t, &x.tensor));
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_goldens),
        cmocka_unit_test(test_kept),
        cmocka_unit_test(test_rows),
    };

    rng = rng_seed();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
