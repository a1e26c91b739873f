/*
 * Integers beyond 64 bits in JSON (json_numbers.h): which ones are rounded, and
 * that nothing else changes.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/json_numbers.h"

/* want: NULL: nothing changes. */
static void
check(const char *text, unsigned depth, const char *want)
{
    size_t len = strlen(text), n = 0;
    char *exact = malloc(len); /* sanitizers see what is read behind it */
    char *out;

    memcpy(exact, text, len);
    out = tr_json_round(exact, len, depth, &n);
    if ((out == NULL) != (want == NULL)
        || (want != NULL && (n != strlen(want) || memcmp(out, want, n) != 0))) {
        fail_msg("%s: %.*s, not %s", text, (int) n, out != NULL ? out : "",
                 want);
    }
    free(out);
    free(exact);
}

static void
test_numbers(void **state)
{
    (void) state;
    check("9223372036854775807", 0, NULL);
    check("9223372036854775808", 0, "9223372036854775808.0");
    check("-9223372036854775808", 0, NULL);
    check("[-9223372036854775809,1]", 0, "[-9223372036854775809.0,1]");
    check("10000000000000000000", 0, "10000000000000000000.0");
    check("100000000000000000000.5", 0, NULL);
    check("100000000000000000000e5", 0, NULL);
    check("{\"9223372036854775808\": \"\\\"9223372036854775808\"}", 0, NULL);
    check("[\"\\\\\",9223372036854775808]", 0,
          "[\"\\\\\",9223372036854775808.0]");
    /* so many brackets deep */
    check("{\"a\":9223372036854775808}", 2, NULL);
    check("{\"a\":[9223372036854775808],\"b\":9223372036854775808}", 2,
          "{\"a\":[9223372036854775808.0],\"b\":9223372036854775808}");
    /* what is no JSON is copied, too */
    check("]]}[9223372036854775808", 1, "]]}[9223372036854775808.0");
    check("99999999999999999999\"abc", 0, "99999999999999999999.0\"abc");
    check("\"99999999999999999999\\", 0, NULL);
    check("-", 0, NULL);
    check("99999999999999999999 99999999999999999999 99999999999999999999", 0,
          "99999999999999999999.0 99999999999999999999.0 "
          "99999999999999999999.0");
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_numbers),
    };

    return cmocka_run_group_tests_name("json_numbers", tests, NULL, NULL);
}
