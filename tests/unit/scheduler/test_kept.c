/*
 * Lookups of responses that are kept, and their records: bounds, order, and
 * bytes that nobody wrote (kept.h).
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <tokenring/channel.h>

#include "engine/scheduler/kept.h"
#include "tests/unit/fixtures/random.h"

#define ID "0123456789abcdef0123456789abcdef"

static void
records_come_back(void **state)
{
    static const uint8_t bytes[] = {
        5, 0, 0, 0, TR_RECORD_DELTA,  0, 0, 0, 'a', 'b', 'c', 'd', 'e',
        0, 0, 0, 0, TR_RECORD_FINISH, 0, 0, 0
    };
    const uint8_t *payload;
    tr_record_t rec;
    size_t len = sizeof(bytes), at = 0;

    (void) state;
    assert_int_equal(tr_kept_record(bytes, len, &at, &rec, &payload), TR_OK);
    assert_int_equal(rec.type, TR_RECORD_DELTA);
    assert_int_equal(rec.length, 5);
    assert_memory_equal(payload, "abcde", 5);
    assert_int_equal(tr_kept_record(bytes, len, &at, &rec, &payload), TR_OK);
    assert_int_equal(rec.type, TR_RECORD_FINISH);
    assert_int_equal(rec.length, 0);
    assert_int_equal(tr_kept_record(bytes, len, &at, &rec, &payload), TR_AGAIN);
}

/* Whatever stands there, what comes out lies within. */
static void
records_of_nobody(void **state)
{
    uint64_t random = 7;
    const uint8_t *payload;
    uint32_t round, i, refused = 0;
    tr_record_t rec;
    tr_status_t rc;
    size_t at, len;
    uint8_t *bytes;

    (void) state;
    for (round = 0; round < 20000; round++) {
        len = random_of(&random, 40);
        bytes = malloc(len + 1); /* of this size: a sanitizer sees its end */
        for (i = 0; i < len; i++) {
            bytes[i] = random_of(&random, 4) == 0
                           ? (uint8_t) random_of(&random, 256)
                           : 0;
        }
        at = 0;
        while ((rc = tr_kept_record(bytes, len, &at, &rec, &payload))
               == TR_OK) {
            assert_true(payload + rec.length <= bytes + len);
            assert_true(at <= len);
        }
        refused += rc == TR_ERR_PROTOCOL;
        free(bytes);
    }
    assert_true(refused > 1000 && refused < 20000);
}

static tr_lookup_t *
lookup(void)
{
    tr_lookup_t *l = calloc(1, sizeof(*l));

    assert_non_null(l);
    return l;
}

static void
turns_are_bounded(void **state)
{
    tr_lookup_t *l = lookup();
    uint32_t i;

    (void) state;
    for (i = 0; i < TR_TURNS_MAX; i++) {
        assert_true(tr_lookup_add(l, ID, i == 0));
    }
    assert_false(tr_lookup_add(l, ID, false));
    assert_string_equal(l->turns[TR_TURNS_MAX - 1].id, ID);
    assert_true(l->turns[0].conversation);
    assert_false(l->turns[1].conversation);
    tr_lookup_free(l);
}

static void
lookups_are_bounded_and_in_order(void **state)
{
    tr_lookup_t *all[TR_LOOKUPS_MAX + 1], *l;
    tr_request_events_t t;
    int fd = tr_doorbell_create();
    uint32_t i;

    (void) state;
    assert_int_equal(tr_events_init(&t, fd, fd), TR_OK);
    for (i = 0; i <= TR_LOOKUPS_MAX; i++) {
        all[i] = lookup();
        assert_int_equal(tr_lookup_ask(&t, all[i]), i < TR_LOOKUPS_MAX);
    }
    l = tr_lookup_take(&t);
    for (i = 0; i < TR_LOOKUPS_MAX; i++) {
        assert_ptr_equal(l, all[i]);
        l = l->next;
    }
    assert_null(l);
    assert_null(tr_lookup_take(&t));
    tr_lookup_free(all[0]);
    assert_true(tr_lookup_ask(&t, all[TR_LOOKUPS_MAX]));
    for (i = 1; i <= TR_LOOKUPS_MAX; i++) {
        tr_lookup_free(all[i]);
    }
    assert_int_equal(atomic_load(&t.n_lookups), 0);
    tr_lookup_free(NULL);
    tr_events_free(&t);
    close(fd);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(records_come_back),
        cmocka_unit_test(records_of_nobody),
        cmocka_unit_test(turns_are_bounded),
        cmocka_unit_test(lookups_are_bounded_and_in_order),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
