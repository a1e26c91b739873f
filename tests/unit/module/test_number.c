/*
 * Numbers of embeddings against printf(): the same text for all kinds of floats,
 * those at the borders of the quick way among them.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "ngx_module/api/ngx_http_tokenring_number.h"
#include "tests/unit/fixtures/random.h"

static void
check(float f)
{
    char want[64], got[NGX_HTTP_TOKENRING_NUMBER_LEN + 1];
    unsigned char *end;

    snprintf(want, sizeof(want), isfinite(f) ? "%.9g" : "null", (double) f);
    end = ngx_http_tokenring_number((unsigned char *) got, f);
    *end = '\0';
    assert_string_equal(got, want);
}

static float
of_bits(uint32_t bits)
{
    float f;

    memcpy(&f, &bits, sizeof(f));
    return f;
}

static void
test_borders(void **state)
{
    int e, i;

    (void) state;
    for (e = -45; e <= 38; e++) {
        float f = (float) pow(10, e), above = f, below = f;

        for (i = 0; i < 50; i++) {
            check(above);
            check(-below);
            check(below);
            above = nextafterf(above, INFINITY);
            below = nextafterf(below, 0);
        }
    }
    for (i = 0; i < 100000; i++) {
        check((float) i);
        check((float) i / 1024);
        check((float) i * 1e-4f);
    }
    check(-0.0f);
    check(INFINITY);
    check(-INFINITY);
    check(NAN);
}

static void
test_random(void **state)
{
    uint32_t i;

    (void) state;
    for (i = 0; i < 1000000; i++) {
        uint32_t r = random_below(1u << 16) << 16 | random_below(1u << 16);

        check(of_bits(r));
        /* as embeddings have them: 2^-15 to 2 */
        check(of_bits((r & 0x807fffff) | (112 + (r >> 16) % 16) << 23));
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_borders),
        cmocka_unit_test(test_random),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
