/*
 * Which engines continue each other's requests: what the card says of the model
 * and of all else that answers depend on.  Engines run on the software device,
 * which bears whatever name it is given.
 */
#include "tests/unit/fixtures/device_library.h"
#include "tests/unit/fixtures/frontend_fixture.h"

static tr_status_card_t
card_on(const char *name)
{
    tr_ring_client_t *c;
    tr_status_card_t card;
    fixture_t fixture;

    assert_int_equal(setenv("TOKENRING_SOFT_NAME", name, 1), 0);
    fixture_start(&fixture, "backend", "cuda", "cuda_library", soft_library(),
                  "max_num_seqs", "2", "max_model_len", "256", NULL);
    c = fixture_client(&fixture, 0);
    tr_status_card_copy(tr_ring_client_status(c), &card);
    tr_ring_client_close(c);
    fixture_stop(&fixture);
    assert_string_equal(card.backend, "cuda");
    assert_int_not_equal(card.exact_id, 0);
    return card;
}

/* Two GPUs of one kind give the same answers, of two kinds they need not: their
 * products are cut differently. */
static void
names_of_gpus(void **state)
{
    tr_status_card_t one = card_on("NVIDIA H100 80GB HBM3");
    tr_status_card_t same = card_on("NVIDIA H100 80GB HBM3");
    tr_status_card_t other = card_on("NVIDIA H200");

    (void) state;
    assert_memory_equal(one.model_id, same.model_id, sizeof(one.model_id));
    assert_memory_equal(one.model_id, other.model_id, sizeof(one.model_id));
    assert_true(one.exact_id == same.exact_id);
    assert_true(one.exact_id != other.exact_id);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_of_gpus),
    };

    tr_log_open(NULL, TR_LEVEL_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
