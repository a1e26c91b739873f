/*
 * Pages that are lent (kv_lend.c): who lends them, when there are many users of one
 * prompt; and that a sequence alone gets every page that it does not have itself,
 * whoever lends to whom.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/kv/kv_internal.h"
#include "tests/unit/fixtures/kv/kv_fixture.h"

#define LONGEST 4000u

static tr_kv_policy_t *policy;
static int32_t tokens[LONGEST];

static tr_kv_cache_t *
make(uint32_t slots, uint64_t pages)
{
    const tr_kv_policy_t *const policies[] = { policy };
    tr_kv_config_t c = { .layers = 2,
                         .kv_heads = 2,
                         .head_dim = 64,
                         .slots = slots,
                         .max_len = LONGEST,
                         .memory = UINT64_C(1) << 28,
                         .policies = policies,
                         .n_policies = 1,
                         .kernels = &fixture_kernels,
                         .reuse = true,
                         .reuse_compressed = true };
    tr_kv_cache_t *kv;
    tr_error_t err;

    assert_int_equal(tr_kv_cache_create(&c, &kv, &err), TR_OK);
    if (pages != 0) {
        c.memory = pages * tr_kv_page_bytes(kv);
        tr_kv_cache_free(kv);
        assert_int_equal(tr_kv_cache_create(&c, &kv, &err), TR_OK);
    }
    return kv;
}

/* Tokens [from, n) are `who`'s own. */
static void
write_as(uint32_t from, uint32_t n, int32_t who)
{
    for (uint32_t i = from; i < n; i++) {
        tokens[i] = 100 * who + (int32_t) i % 100;
    }
}

/* A slot that finds so many of its n tokens, computes the others and is compressed. */
static int32_t
come(tr_kv_cache_t *kv, uint32_t n, uint32_t finds)
{
    tr_prefix_key_t key = { 0 };
    tr_kv_found_t found;
    int32_t slot;

    tr_kv_find(kv, NULL, &key, tokens, n - 1, &found);
    assert_int_equal(found.tokens, finds);
    slot = tr_kv_open(kv, NULL);
    assert_true(slot >= 0);
    assert_int_equal(tr_kv_adopt(kv, slot, &key, &found), TR_OK);
    tr_kv_drop_found(kv, &found);
    tr_kv_prompt(kv, slot, n);
    assert_int_equal(tr_kv_reserve(kv, slot, n), TR_OK);
    assert_int_equal(tr_kv_compress(kv, slot, n), TR_OK);
    assert_true(tr_kv_sound(kv));
    return slot;
}

/* And ends. */
static void
leave(tr_kv_cache_t *kv, int32_t slot, uint32_t n)
{
    tr_kv_keep(kv, slot, tokens, n, true);
    tr_kv_close(kv, slot);
    assert_true(tr_kv_sound(kv));
}

static uint32_t
lender(const tr_kv_cache_t *kv, int32_t slot)
{
    return kv->reuse->kept[slot].lender;
}

/* Each ends before the next one comes, with a shorter text than all before, which is
 * what the next one finds first: they borrow of the first all the same. */
static void
one_lender(void **state)
{
    tr_kv_cache_t *kv = make(16, 0);
    uint32_t first;
    int32_t slot;

    (void) state;
    write_as(0, 1000, 1);
    slot = come(kv, 1000, 0);
    first = (uint32_t) slot + 1;
    leave(kv, slot, 1000);
    for (uint32_t i = 0; i < 10; i++) {
        uint32_t n = 990 - i;

        write_as(900, n, 2 + (int32_t) i);
        slot = come(kv, n, 900);
        assert_int_equal(lender(kv, slot), first);
        leave(kv, slot, n);
        assert_int_equal(lender(kv, slot), first);
    }
    assert_int_equal(kv->reuse->n_lenders, 1);
    tr_kv_cache_free(kv);
}

/* The last one begins as the second, which begins as the first, which nobody else
 * uses: of both it needs a part.  Returns that one. */
static int32_t
chain(tr_kv_cache_t *kv)
{
    int32_t slot;

    write_as(0, 1600, 1);
    leave(kv, come(kv, 1600, 0), 1600);
    write_as(1300, 2400, 2);
    leave(kv, come(kv, 2400, 1300), 2400);
    write_as(1900, 2000, 3);
    slot = come(kv, 2000, 1900);
    assert_true(lender(kv, slot) != 0);
    assert_true(lender(kv, (int32_t) lender(kv, slot) - 1) != 0);
    return slot;
}

/* Uncompressed pages for its next prompt: all others that there are. */
static void
alone(void **state)
{
    tr_kv_cache_t *kv = make(16, 0);
    uint32_t more = 1600;
    uint64_t own, all;
    int32_t slot;

    (void) state;
    slot = chain(kv);
    own = kv->m.slot[slot].pages + kv->m.slot[slot].borrowed;
    all = own
          + (uint64_t) manager_ceil(more, kv->plan.layout[0].tokens)
                * kv->heads;
    tr_kv_cache_free(kv);
    kv = make(16, all);
    slot = chain(kv);
    tr_kv_prompt(kv, slot, 2000 + more);
    assert_int_equal(tr_kv_reserve(kv, slot, 2000 + more), TR_OK);
    assert_int_equal(kv->m.slot[slot].borrowed, 0);
    assert_true(tr_kv_sound(kv));
    tr_kv_close(kv, slot);
    assert_int_equal(tr_kv_free_pages(kv), all);
    tr_kv_cache_free(kv);
}

static int
setup(void **state)
{
    tr_error_t err;

    (void) state;
    if (tr_kv_policy_create("uniform:levels=4/2", 2, 2, 64, &policy, &err)
        != TR_OK) {
        return 1;
    }
    tr_kv_policy_position(policy);
    return 0;
}

static int
teardown(void **state)
{
    (void) state;
    tr_kv_policy_free(policy);
    return 0;
}

int
main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(one_lender),
                                        cmocka_unit_test(alone) };

    return cmocka_run_group_tests_name("kv_lend", tests, setup, teardown);
}
