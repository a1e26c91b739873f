/*
 * What a command of Redis is made of (redis_schema.h) is still there when whoever
 * made it has returned: numbers and names of buffers are copies.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/redis/redis_schema.h"

typedef struct {
    tr_config_t config;
    tr_status_page_t status;
    tr_redis_schema_t schema;
    tr_redis_command_t command;
} fixture_t;

static fixture_t *
open_fixture(void)
{
    fixture_t *f = calloc(1, sizeof(*f));
    char *at;

    assert_non_null(f);
    snprintf(f->config.name, sizeof(f->config.name), "main");
    tr_redis_schema_init(&f->schema, &f->config, &f->status, 1700000000000);
    atomic_store(&f->status.counters.weights_bytes, 4096);
    atomic_store(&f->status.counters.weights_file_bytes, 4096);
    at = (char *) (uintptr_t) f->status.counters.weights_format;
    memcpy(at, "MXFP4 4.25 bits", 16);
    f->status.card.kv_levels = 1;
    memcpy(f->status.card.level_name[0], "16/16", 6);
    return f;
}

/* Other calls use the stack that making the command used. */
static __attribute__((noinline)) void
use_stack(void)
{
    volatile char rest[16384];

    for (size_t i = 0; i < sizeof(rest); i++) {
        rest[i] = '#';
    }
}

static void
assert_field(const tr_redis_command_t *c, const char *name, const char *value)
{
    for (int i = 0; i + 1 < c->n; i++) {
        if (c->len[i] == strlen(name)
            && memcmp(c->argv[i], name, c->len[i]) == 0) {
            assert_int_equal(c->len[i + 1], strlen(value));
            assert_memory_equal(c->argv[i + 1], value, strlen(value));
            return;
        }
    }
    fail_msg("there is no %s", name);
}

static void
test_a_card_outlives_the_call_that_made_it(void **state)
{
    fixture_t *f = open_fixture();

    (void) state;
    tr_redis_schema_card(&f->schema, &f->command);
    use_stack();
    assert_field(&f->command, "weights", "MXFP4 4.25 bits");
    assert_field(&f->command, "weights_bytes", "4096");
    assert_field(&f->command, "levels", "16/16");
    assert_field(&f->command, "started", "1700000000000");
    tr_redis_schema_heartbeat(&f->schema, &f->command, 1700000001000);
    use_stack();
    assert_field(&f->command, "weights", "MXFP4 4.25 bits");
    assert_field(&f->command, "heartbeat", "1700000001000");
    free(f);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_card_outlives_the_call_that_made_it),
    };

    return cmocka_run_group_tests_name("redis_schema", tests, NULL, NULL);
}
