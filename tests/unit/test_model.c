/*
 * The shipped model: golden logits and continuations, and the promise that a
 * sequence's logits are bit-identical whatever else runs, however its prompt is
 * cut, and when it is computed again after preemption.
 */
#include "model_rig.h"

#include <jansson.h>
#include <math.h>

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

static int
load_goldens(void **state)
{
    json_error_t je;
    json_t *prompts, *p;
    size_t i;

    (void) state;
    golden_root = json_load_file(POCKET "/golden.json", 0, &je);
    assert_non_null(golden_root);
    prompts = json_object_get(golden_root, "prompts");
    json_array_foreach(prompts, i, p)
    {
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
    return 0;
}

static int
free_goldens(void **state)
{
    (void) state;
    json_decref(golden_root);
    return 0;
}

/* Five logits of one position, within 2e-3 relative; returns the worst. */
static double
check_top5(const float *x, json_t *top5)
{
    double worst = 0;

    assert_int_equal(json_array_size(top5), 5);
    for (size_t i = 0; i < 5; i++) {
        json_t *pair = json_array_get(top5, i);
        json_int_t id = json_integer_value(json_array_get(pair, 0));
        double want = json_number_value(json_array_get(pair, 1));
        double error = fabs(x[id] - want) / fabs(want);

        if (!(error <= 2e-3)) {
            fail_msg("token %lld: logit %.6f, golden %.6f", (long long) id,
                x[id], want);
        }
        worst = error > worst ? error : worst;
    }
    assert_int_equal(rig_argmax(x, VOCAB),
        json_integer_value(json_array_get(json_array_get(top5, 0), 0)));
    return worst;
}

static void
golden_with(const char *isa)
{
    rig_t rig;
    double worst = 0;

    rig_open(&rig, POCKET, "auto", isa, 2, MAX_LEN);
    for (uint32_t i = 0; i < n_goldens; i++) {
        const golden_t *g = &goldens[i];
        int32_t slot = tr_kv_open(rig.kv);
        uint32_t at = 0;

        /* the first positions one by one, the rest of the prompt at once */
        for (; at < json_array_size(g->first); at++) {
            rig_item_t item = { slot, at, 1, g->ids + at };

            rig_step(&rig, &item, 1, logits);
            worst = fmax(worst,
                check_top5(logits, json_array_get(g->first, at)));
        }
        rig_step(&rig,
            &(rig_item_t) { slot, at, g->n_prompt - at, g->ids + at }, 1,
            logits);
        worst = fmax(worst, check_top5(logits, g->last));
        for (at = g->n_prompt; at < g->n_all; at++) {
            assert_int_equal(rig_argmax(logits, VOCAB), g->ids[at]);
            rig_step(&rig, &(rig_item_t) { slot, at, 1, g->ids + at }, 1,
                logits);
        }
        tr_kv_close(rig.kv, slot);
    }
    print_message("%s: worst relative error %.2g\n", rig.model->kernels->name,
        worst);
    rig_close(&rig);
}

static void
test_golden(void **state)
{
    static const char *const isas[] = { "c", "avx2", "avx512" };

    (void) state;
    for (size_t i = 0; i < 3; i++) {
        if (tr_kernels_cpu(isas[i]) != NULL) {
            golden_with(isas[i]);
        }
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden),
    };

    return cmocka_run_group_tests(tests, load_goldens, free_goldens);
}
