/*
 * Preempted sequences that come back by rows (swap_recompute; inputs_fixture.h),
 * with room for the rows of all, of a few, with prefixes that are reused, and with
 * an executor that answers a batch later.  And what is refused.
 */
#include "tests/unit/fixtures/inputs_fixture.h"

static void
refused(const char *policy, uint64_t swap, const char *says)
{
    tr_config_t c = settings(policy, 5 << 20, swap);
    tr_executor_t *e = NULL;
    tr_error_t err = { 0 };

    c.swap_recompute = true;
    assert_int_not_equal(tr_executor_model_open(&c, &e, &err), TR_OK);
    if (strstr(err.text, says) == NULL) {
        fail_msg("%s", err.text);
    }
}

static void
test_refused(void **state)
{
    (void) state;
    reuses = false;
    refused("diffkv", 64 << 20, "kv_policy diffkv");
    refused("quest:budget=64", 64 << 20, "kv_policy quest");
    refused("full", 100000, "64 tokens take 262144 bytes");
    write_config(2, 64);
    refused("full", 64 << 20,
            "512 bytes at 16 bits, keys and values of its 2 heads 512");
    write_config(4, 64);
}

int
main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_room_for_all),
                                        cmocka_unit_test(test_room_for_few),
                                        cmocka_unit_test(test_reuse),
                                        cmocka_unit_test(test_refused) };

    return cmocka_run_group_tests_name("loop_inputs", tests, make_model,
                                       drop_model);
}
