/*
 * The plan of what is computed and what is fetched (engine/kv/kv_plan.h), against
 * trying everything, for random speeds and sizes; and speeds, and costs of turns,
 * that follow what is seen.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/kv/kv_plan.h"
#include "tests/unit/fixtures/random.h"

static double
number(double least, double most)
{
    return least + (most - least) * random_below(1u << 30) / (1u << 30);
}

static double
plain_us(const tr_kv_split_t *p, uint32_t front)
{
    double computed = front * p->each_token, fetched = 0;

    for (double n = 0; p->turn_tokens > 0 && n < front; n += p->turn_tokens) {
        computed += p->each_turn;
    }
    if (front < p->tokens) {
        fetched = p->fetch_first
                  + (double) (p->tokens - front) / p->tokens * p->bytes
                        * p->each_byte;
    }
    return computed > fetched ? computed : fetched;
}

static void
as_by_trying(void **unused)
{
    uint32_t mixed = 0, computed = 0, fetched = 0;

    (void) unused;
    for (uint32_t i = 0; i < 2000; i++) {
        tr_kv_split_t p = { .tokens = 1 + random_below(3000),
                            .granule = random_below(4) * random_below(300),
                            .bytes = number(1e3, 1e8),
                            .each_token = number(1, 50),
                            .each_turn = number(0, 5000),
                            .turn_tokens = random_below(3) * random_below(900),
                            .each_byte = number(1e-6, i % 2 == 0 ? 1e-2 : 1e-4),
                            .fetch_first = number(0, 1e5) };
        uint32_t step = p.granule != 0 ? p.granule : p.tokens, front;
        double best = plain_us(&p, p.tokens), us;

        for (uint32_t s = 0; s < p.tokens; s += step) {
            best = plain_us(&p, s) < best ? plain_us(&p, s) : best;
        }
        front = tr_kv_split(&p, &us);
        assert_true(front <= p.tokens);
        assert_true(front == p.tokens || front % step == 0);
        assert_true(us <= best * (1 + 1e-12) && us >= best * (1 - 1e-12));
        assert_true(plain_us(&p, front) <= best * (1 + 1e-12));
        computed += front == p.tokens;
        fetched += front == 0;
        mixed += front != 0 && front != p.tokens;
    }
    assert_true(mixed > 100 && computed > 100 && fetched > 100);
}

/* The design's: 16-bit pages of an 8B model, 27.5 us to compute a token, win from
 * a disk of 6 GB/s and lose at 4; compressed ones win there. */
static void
by_hand(void **unused)
{
    tr_kv_split_t p = { .tokens = 16384,
                        .bytes = 16384.0 * 131072,
                        .each_token = 27.5,
                        .each_byte = 1 / 6e3 };
    double us;

    (void) unused;
    assert_int_equal(tr_kv_split(&p, &us), 0);
    assert_true(us > 357e3 && us < 359e3);
    p.each_byte = 1 / 4e3;
    assert_int_equal(tr_kv_split(&p, NULL), 16384);
    p.bytes *= 0.23;
    assert_int_equal(tr_kv_split(&p, NULL), 0);
    p.tokens = 0;
    assert_int_equal(tr_kv_split(&p, &us), 0);
    assert_true(us == 0);
}

/* Turns of a + b n us, some a little off. */
static void
turns(void **unused)
{
    tr_kv_turns_t t = { 0 };
    tr_kv_split_t p = { .tokens = 7, .each_token = 1 };

    (void) unused;
    assert_false(tr_kv_turns_cost(&t, &p));
    assert_true(p.each_token == 0 && p.each_turn == 0);
    tr_kv_turns_saw(&t, 0, 7); /* says nothing */
    assert_false(tr_kv_turns_cost(&t, &p));
    for (uint32_t i = 0; i < 3; i++) { /* alike: all is on the tokens */
        tr_kv_turns_saw(&t, 512, 20000);
    }
    assert_true(tr_kv_turns_cost(&t, &p));
    assert_true(p.each_token > 39.06 && p.each_token < 39.07);
    assert_true(p.each_turn < 1e-6 && p.turn_tokens == 512);
    for (uint32_t i = 0; i < 200; i++) {
        double n = number(64, 2048);

        tr_kv_turns_saw(&t, n, 6000 + 27.5 * n + number(-200, 200));
    }
    assert_true(tr_kv_turns_cost(&t, &p));
    assert_true(p.each_token > 27 && p.each_token < 28);
    assert_true(p.each_turn > 5500 && p.each_turn < 6500);
    assert_true(p.turn_tokens > 1000 && p.turn_tokens < 2048);
    for (uint32_t i = 0; i < 400; i++) { /* more tokens, less time: no less */
        double n = number(64, 2048);

        tr_kv_turns_saw(&t, n, 60000 - 20 * n);
    }
    assert_true(tr_kv_turns_cost(&t, &p));
    assert_true(p.each_token == 0 && p.each_turn > 20000);
}

static void
speeds(void **unused)
{
    tr_kv_speed_t s = { 0 };

    (void) unused;
    assert_true(tr_kv_speed_each(&s) == 0);
    tr_kv_speed_saw(&s, 0, 7); /* says nothing */
    assert_true(tr_kv_speed_each(&s) == 0);
    tr_kv_speed_saw(&s, 100, 200);
    assert_true(tr_kv_speed_each(&s) == 2);
    for (uint32_t i = 0; i < 40; i++) {
        tr_kv_speed_saw(&s, 100, 1000);
    }
    assert_true(tr_kv_speed_each(&s) > 9.99 && tr_kv_speed_each(&s) <= 10);
    for (uint32_t i = 0; i < 10; i++) {
        tr_kv_speed_doubt(&s);
    }
    assert_true(tr_kv_speed_each(&s) > 3 && tr_kv_speed_each(&s) < 4);
}

int
main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(as_by_trying),
                                        cmocka_unit_test(by_hand),
                                        cmocka_unit_test(turns),
                                        cmocka_unit_test(speeds) };

    return cmocka_run_group_tests_name("kv_plan", tests, NULL, NULL);
}
