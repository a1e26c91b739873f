/*
 * The shipped model: golden logits and continuations, also of stress models
 * made from it, and the promise that a sequence's logits are bit-identical
 * whatever else runs, however its prompt is cut, and when it is computed again
 * after preemption.
 */
#include "tests/unit/fixtures/model_fixture.h"
#include "kernels/kernels.h"

#include <jansson.h>
#include <math.h>
#include <unistd.h>

#define POCKET "models/pocket"
#define VOCAB 4096
#define MAX_LEN 4096

static float logits[64 * VOCAB];

/* One golden prompt: the ids, what followed, and where its figures are. */
typedef struct {
    int32_t ids[1024];
    uint32_t n_prompt, n_all;
    json_t *first, *last;
} golden_t;

static json_t *golden_root;
static golden_t goldens[16];
static uint32_t n_goldens;

/* Those of a model, in place of those that were there. */
static void
take_goldens(const char *dir)
{
    char path[256];
    json_error_t je;
    json_t *prompts, *p;
    size_t i;

    json_decref(golden_root);
    memset(goldens, 0, sizeof(goldens));
    n_goldens = 0;
    snprintf(path, sizeof(path), "%s/golden.json", dir);
    golden_root = json_load_file(path, 0, &je);
    assert_non_null(golden_root);
    prompts = json_object_get(golden_root, "prompts");
    json_array_foreach (prompts, i, p) {
        golden_t *g = &goldens[n_goldens++];
        json_t *ids = json_object_get(p, "ids");
        json_t *more = json_object_get(p, "continuation_ids");

        g->n_prompt = (uint32_t) json_array_size(ids);
        for (size_t j = 0; j < json_array_size(ids); j++) {
            g->ids[g->n_all++] = (int32_t) json_integer_value(
                json_array_get(ids, j));
        }
        for (size_t j = 0; j < json_array_size(more); j++) {
            g->ids[g->n_all++] = (int32_t) json_integer_value(
                json_array_get(more, j));
        }
        g->first = json_object_get(p, "top5_first_positions");
        g->last = json_object_get(p, "top5_last_position");
    }
    assert_true(n_goldens >= 6);
}

static int
load_goldens(void **state)
{
    (void) state;
    take_goldens(POCKET);
    return 0;
}

static int
free_goldens(void **state)
{
    (void) state;
    json_decref(golden_root);
    return 0;
}

/* Relative, of logits: what pages of 16 bits leave of ordinary keys and values. */
#define WITHIN 2e-3

/* Five logits of one position, within this relative; returns the worst. */
static double
check_top5(const float *x, json_t *top5, double within)
{
    double worst = 0;

    assert_int_equal(json_array_size(top5), 5);
    for (size_t i = 0; i < 5; i++) {
        json_t *pair = json_array_get(top5, i);
        json_int_t id = json_integer_value(json_array_get(pair, 0));
        double want = json_number_value(json_array_get(pair, 1));
        double error = fabs(x[id] - want) / fabs(want);

        if (!(error <= within)) {
            fail_msg("token %lld: logit %.6f, golden %.6f", (long long) id,
                     x[id], want);
        }
        worst = error > worst ? error : worst;
    }
    assert_int_equal(fixture_argmax(x, VOCAB),
                     json_integer_value(
                         json_array_get(json_array_get(top5, 0), 0)));
    return worst;
}

/* outliers: weights show some. */
static void
golden_of(const char *dir, const char *isa, bool equalise, uint32_t rotate,
          bool outliers, double within)
{
    fixture_t fixture;
    double worst = 0;

    fixture_open_options(&fixture,
                         (tr_model_options_t){ .dir = dir,
                                               .load_format = "auto",
                                               .equalise = equalise,
                                               .centre = equalise,
                                               .rotate = rotate,
                                               .kernels = tr_kernels_cpu(isa),
                                               .threads = 2 },
                         MAX_LEN);
    assert_true((equalise && fixture.model->equalise->largest != 0)
                == (equalise && outliers));
    for (uint32_t i = 0; i < n_goldens; i++) {
        const golden_t *g = &goldens[i];
        int32_t slot = tr_kv_open(fixture.kv, NULL);
        uint32_t at = 0;

        /* the first positions one by one, the rest of the prompt at once */
        for (; at < json_array_size(g->first); at++) {
            fixture_item_t item = { slot, at, 1, g->ids + at };

            fixture_step(&fixture, &item, 1, logits);
            worst = fmax(worst, check_top5(logits, json_array_get(g->first, at),
                                           within));
        }
        fixture_step(&fixture,
                     &(fixture_item_t){ slot, at, g->n_prompt - at,
                                        g->ids + at },
                     1, logits);
        worst = fmax(worst, check_top5(logits, g->last, within));
        for (at = g->n_prompt; at < g->n_all; at++) {
            assert_int_equal(fixture_argmax(logits, VOCAB), g->ids[at]);
            fixture_step(&fixture,
                         &(fixture_item_t){ slot, at, 1, g->ids + at }, 1,
                         logits);
        }
        tr_kv_close(fixture.kv, slot);
    }
    print_message("%s, %s: worst relative error %.2g\n", dir,
                  fixture.model->kernels->name, worst);
    fixture_close(&fixture);
}

static void
golden_with(const char *dir, const char *isa, bool equalise, uint32_t rotate)
{
    golden_of(dir, isa, equalise, rotate, strcmp(dir, POCKET) != 0, WITHIN);
}

static void
test_golden(void **state)
{
    static const char *const isas[] = { "c", "avx2", "avx512" };

    (void) state;
    for (size_t i = 0; i < 3; i++) {
        if (tr_kernels_cpu(isas[i]) != NULL) {
            golden_with(POCKET, isas[i], true, 0);
        }
    }
}

/* Nor does it matter in which basis keys and values are kept. */
static void
test_rotated(void **state)
{
    (void) state;
    golden_with(POCKET, NULL, true, TR_ROTATE_KEYS);
    golden_with(POCKET, NULL, true, TR_ROTATE_VALUES);
    golden_with(POCKET, NULL, true, TR_ROTATE_KEYS | TR_ROTATE_VALUES);
}

/* Outlier channels that models/pocket/stress.py moves in change no result, nor
 * does equalisation, which takes them back. */
static void
test_stressed(void **state)
{
    static const char *const names[] = { "extreme", "both-128" };
    char dir[] = "/tmp/tr-stress-XXXXXX", text[256];

    (void) state;
    assert_non_null(mkdtemp(dir));
    for (size_t i = 0; i < 2; i++) {
        snprintf(text, sizeof(text), "%s %s --out %s >%s/log",
                 "python3 models/pocket/stress.py", names[i], dir, dir);
        assert_int_equal(system(text), 0);
        snprintf(text, sizeof(text), "%s/%s", dir, names[i]);
        golden_with(text, NULL, false, 0);
        golden_with(text, NULL, true, 0);
        golden_with(text, NULL, true, TR_ROTATE_KEYS | TR_ROTATE_VALUES);
    }
    snprintf(text, sizeof(text), "rm -r %s", dir);
    assert_int_equal(system(text), 0);
}

/* What models/stress/make.py makes is what was trained, with and without what
 * keys and values are moved by; in two of the four weights show outliers. */
static void
test_trained(void **state)
{
    static const struct {
        const char *name;
        bool outliers;
        double within; /* large keys and values round more */
    } models[] = {
        { "bursts", false, WITHIN },
        { "first", false, 2 * WITHIN },
        { "biases", true, WITHIN },
        { "norms", true, WITHIN },
    };
    char dir[] = "/tmp/tr-stress-XXXXXX", text[256];
    uint32_t there = 0;

    (void) state;
    assert_non_null(mkdtemp(dir));
    for (size_t i = 0; i < sizeof(models) / sizeof(models[0]); i++) {
        snprintf(text, sizeof(text), "models/stress/%s/change.safetensors",
                 models[i].name);
        if (access(text, R_OK) != 0) {
            print_message("%s: not there, make stress trains it\n", text);
            continue;
        }
        there++;
        snprintf(text, sizeof(text), "%s %s --out %s >%s/log",
                 "python3 models/stress/make.py", models[i].name, dir, dir);
        assert_int_equal(system(text), 0);
        snprintf(text, sizeof(text), "%s/trained-%s", dir, models[i].name);
        take_goldens(text);
        golden_of(text, NULL, false, 0, models[i].outliers, models[i].within);
        golden_of(text, NULL, true, TR_ROTATE_KEYS | TR_ROTATE_VALUES,
                  models[i].outliers, models[i].within);
    }
    take_goldens(POCKET);
    snprintf(text, sizeof(text), "rm -r %s", dir);
    assert_int_equal(system(text), 0);
    if (there == 0) {
        skip();
    }
}

/* Batch invariance: SEQS sequences of random tokens, whose logits at every
 * position are first computed alone and in one piece. */
#define SEQS 8
#define SEQ_LEN 200u

typedef struct {
    int32_t tokens[SEQ_LEN];
    float *want; /* [SEQ_LEN][VOCAB] */
    int32_t slot;
    uint32_t at;
} sequence_t;

static void
fill_nan(tr_kv_cache_t *kv)
{
    tr_kv_view_t view;

    tr_kv_view(kv, &view);
    memset(view.pool, 0xff, tr_kv_pages(kv) * tr_kv_page_bytes(kv));
}

/* All logits of one sequence, alone, prefilled at once. */
static void
compute_alone(fixture_t *fixture, sequence_t *q)
{
    uint32_t rows[SEQ_LEN];
    tr_model_t *m = fixture->model;

    q->slot = tr_kv_open(fixture->kv, NULL);
    fixture_step(fixture, &(fixture_item_t){ q->slot, 0, SEQ_LEN, q->tokens },
                 1, logits);
    for (uint32_t i = 0; i < SEQ_LEN; i++) {
        rows[i] = i;
    }
    for (uint32_t i = 0; i < SEQ_LEN; i += m->logit_rows) {
        uint32_t n = SEQ_LEN - i < m->logit_rows ? SEQ_LEN - i : m->logit_rows;

        assert_int_equal(tr_model_logits(m, rows + i, n), TR_OK);
        for (uint32_t j = 0; j < n; j++) {
            memcpy(q->want + (size_t) (i + j) * VOCAB,
                   m->logits + j * m->ld_logits, VOCAB * sizeof(float));
        }
    }
    tr_kv_close(fixture->kv, q->slot);
    q->slot = -1;
}

/* One step of a random mixture; some sequences are preempted and start over.
 * Returns the number of rows compared. */
static uint32_t
mixed_step(fixture_t *fixture, sequence_t *seqs, uint64_t *rng)
{
    fixture_item_t items[SEQS];
    sequence_t *who[SEQS];
    uint32_t n = 0, budget = 512;

    for (uint32_t i = 0; i < SEQS; i++) {
        sequence_t *q = &seqs[i];
        uint32_t left, take;

        if (q->slot >= 0 && (q->at == SEQ_LEN || rng_below(rng, 12) == 0)) {
            tr_kv_close(fixture->kv, q->slot);
            q->slot = -1;
        }
        if (rng_below(rng, 4) == 0) {
            continue;
        }
        if (q->slot < 0) {
            q->slot = tr_kv_open(fixture->kv, NULL);
            q->at = 0;
        }
        left = SEQ_LEN - q->at;
        take = rng_below(rng, 2) ? 1 : 1 + rng_below(rng, left);
        take = take < budget ? take : budget;
        if (take > 0) {
            who[n] = q;
            items[n++] = (fixture_item_t){ q->slot, q->at, take,
                                           q->tokens + q->at };
            budget -= take;
        }
    }
    if (n == 0) {
        return 0;
    }
    fixture_step(fixture, items, n, logits);
    for (uint32_t i = 0; i < n; i++) {
        who[i]->at += items[i].n;
        if (memcmp(logits + i * VOCAB,
                   who[i]->want + (size_t) (who[i]->at - 1) * VOCAB,
                   VOCAB * sizeof(float))) {
            fail_msg("%s, %d threads: position %u, chunk of %u, row %u of %u: "
                     "other bits than alone",
                     fixture->model->kernels->name,
                     fixture->model->stream.threads, who[i]->at - 1, items[i].n,
                     i, n);
        }
    }
    return n;
}

static void
invariant_with(const char *isa, int steps, uint64_t *rng)
{
    static sequence_t seqs[SEQS];
    fixture_t fixture;
    uint32_t compared = 0;

    fixture_open(&fixture, POCKET, "auto", isa, 3, MAX_LEN);
    fill_nan(fixture.kv);
    for (uint32_t i = 0; i < SEQS; i++) {
        seqs[i].want = malloc((size_t) SEQ_LEN * VOCAB * sizeof(float));
        assert_non_null(seqs[i].want);
        for (uint32_t j = 0; j < SEQ_LEN; j++) {
            seqs[i].tokens[j] = (int32_t) rng_below(rng, VOCAB);
        }
        compute_alone(&fixture, &seqs[i]);
        assert_false(isnan(seqs[i].want[(size_t) SEQ_LEN * VOCAB - 1]));
    }
    for (int i = 0; i < steps; i++) {
        fixture.model->stream.threads = 1 + i % 3;
        compared += mixed_step(&fixture, seqs, rng);
    }
    assert_true(compared > (uint32_t) steps);
    for (uint32_t i = 0; i < SEQS; i++) {
        free(seqs[i].want);
    }
    fixture_close(&fixture);
}

static void
test_batch_invariance(void **state)
{
    uint64_t rng = rng_seed();

    (void) state;
    invariant_with(NULL, 60, &rng);
    if (tr_kernels_cpu("avx2") != NULL) {
        invariant_with("avx2", 20, &rng);
    }
    invariant_with("c", 8, &rng);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden),           cmocka_unit_test(test_rotated),
        cmocka_unit_test(test_stressed),         cmocka_unit_test(test_trained),
        cmocka_unit_test(test_batch_invariance),
    };

    return cmocka_run_group_tests(tests, load_goldens, free_goldens);
}
