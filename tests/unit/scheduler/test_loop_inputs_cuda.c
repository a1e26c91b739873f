/*
 * Preempted sequences that come back by rows (swap_recompute; inputs_fixture.h) on
 * a device: keys and values that were made of rows beside those that they were; and
 * many requests come to their ends.
 *
 *   TR_CUDA_LIBRARY   a GPU's library instead
 */
#include "tests/unit/fixtures/device_library.h"
#include "tests/unit/fixtures/inputs_fixture.h"

#include <math.h>

#include "engine/executor/executor_cuda.h"

#define PROMPT 150u
#define LEN 160u

static tr_executor_cuda_t *x;
static uint32_t chunks[LEN / TR_KV_INPUTS_TOKENS + 1];
static int32_t tokens[LEN];

static void
fetch(void *to, const void *from, size_t bytes)
{
    uint8_t *pinned = x->cuda->pin(bytes);

    assert_non_null(pinned);
    assert_int_equal(x->cuda->copy(&x->stream, pinned, from, bytes), 0);
    assert_int_equal(x->cuda->stream_wait(&x->stream), 0);
    memcpy(to, pinned, bytes);
    x->cuda->unpin(pinned);
}

static void
compute(int32_t slot, uint32_t from, uint32_t n, bool returns)
{
    tr_batch_item_t item = { .kv_slot = slot,
                             .pos = from,
                             .n = n,
                             .tokens = tokens + from,
                             .inputs = chunks,
                             .returns = returns };
    const tr_batch_t batch = { &item, 1, n };

    assert_int_equal(tr_kv_reserve(x->base.kv, slot, from + n), TR_OK);
    assert_int_equal(tr_executor_run(&x->base, &batch), TR_OK);
    assert_int_equal(item.status, TR_OK);
}

static int32_t
open_slot(void)
{
    int32_t slot = tr_kv_open(x->base.kv, NULL);

    assert_true(slot >= 0);
    tr_kv_prompt(x->base.kv, slot, PROMPT);
    return slot;
}

/* Of a head: keys and values by position. */
static void
read_head(int32_t slot, uint32_t layer, uint32_t head, float *out)
{
    const tr_kv_view_t *v = &tr_kv_device_manager(x->base.kv)->view;
    uint32_t dim = v->head_dim, per = v->layout[0].tokens;
    int32_t table[LEN];
    uint16_t page[16384];

    assert_true(LEN <= v->table_len * per && v->page_bytes <= sizeof(page));
    fetch(table, tr_kv_table(v, slot, layer, head), v->table_len * 4);
    for (uint32_t p = 0; p < LEN; p++) {
        const uint16_t *key, *value;

        if (p % per == 0) {
            fetch(page, tr_kv_page_at(v, table[p / per]), v->page_bytes);
        }
        key = page + p % per * dim;
        value = page + v->layout[0].value / 2 + p % per * dim;
        for (uint32_t i = 0; i < dim; i++) {
            out[p * 2 * dim + i] = tr_float_from_half(key[i]);
            out[p * 2 * dim + dim + i] = tr_float_from_half(value[i]);
        }
    }
}

/* Bits may differ with the number of rows of a product. */
static void
compare_slots(int32_t a, int32_t b)
{
    static float was[LEN * 128], is[LEN * 128];

    for (uint32_t h = 0; h < x->base.layers * x->base.kv_heads; h++) {
        float most = 0;

        read_head(a, h / x->base.kv_heads, h % x->base.kv_heads, was);
        read_head(b, h / x->base.kv_heads, h % x->base.kv_heads, is);
        for (uint32_t i = 0; i < LEN * 128; i++) {
            most = fmaxf(most, fabsf(was[i]));
        }
        assert_true(most > 0);
        for (uint32_t i = 0; i < LEN * 128; i++) {
            assert_true(fabsf(was[i] - is[i]) <= 0.01f * most);
        }
    }
}

static void
test_keys_and_values(void **state)
{
    tr_config_t c;
    uint64_t random = seed;
    tr_executor_t *e;
    tr_error_t err;
    int32_t a, b;

    (void) state;
    reuses = false;
    c = settings("full", 8 << 20, 64 << 20);
    if (tr_executor_cuda_open(&c, &e, &err) != TR_OK) {
        fail_msg("%s", err.text);
    }
    x = (tr_executor_cuda_t *) e;
    for (uint32_t i = 0; i < LEN; i++) {
        tokens[i] = (int32_t) rng_below(&random, 4096);
        chunks[i / TR_KV_INPUTS_TOKENS] = 0;
    }
    (void) tr_kv_inputs_take(e->inputs); /* not the first */
    for (uint32_t i = 0; i * TR_KV_INPUTS_TOKENS < LEN; i++) {
        chunks[i] = tr_kv_inputs_take(e->inputs);
    }
    a = open_slot();
    compute(a, 0, 90, false);
    compute(a, 90, PROMPT - 90, false);
    for (uint32_t i = PROMPT; i < LEN; i++) { /* by graphs */
        compute(a, i, 1, false);
    }
    b = open_slot();
    compute(b, 0, 1, true);
    compute(b, 1, 40, true);
    compute(b, 41, 90, true);
    compute(b, 131, LEN - 131, true);
    compare_slots(a, b);
    tr_kv_close(e->kv, a);
    tr_kv_close(e->kv, b);
    e->free(e);
}

int
main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_keys_and_values),
                                        cmocka_unit_test(test_room_for_all),
                                        cmocka_unit_test(test_room_for_few),
                                        cmocka_unit_test(test_reuse) };

    library = device_library();
    return cmocka_run_group_tests_name("loop_inputs_cuda", tests, make_model,
                                       drop_model);
}
