/*
 * An engine that is killed while it writes prefixes to files: whatever the
 * moment, all that is found afterwards is whole, and nothing counts as damaged.
 *
 *   TR_STORE_KILLS=N   kills (default 25)
 */
#include "tests/unit/fixtures/store_fixture.h"

#include <signal.h>
#include <sys/wait.h>

#define TEXTS 12u

static tr_prefix_key_t alice;

/* Writes until it is killed; says so when it has begun, and of each text. */
static void
write_on(const tr_store_config_t *c, int told)
{
    int32_t tokens[LONGEST];
    tr_store_t *s = store_open(c);

    for (;;) {
        (void) !write(told, "x", 1);
        tokens_of_text(random_below(TEXTS), LONGEST, tokens);
        put_whole(s, &alice, tokens, 64 + random_below(500));
    }
}

static uint32_t left_behind;

static void
count_temporary(const place_t *p, const char *name)
{
    if (strncmp(name, ".tmp-", 5) == 0) {
        left_behind++;
        place_remove(p, name);
    }
}

static void
kill_one(const tr_store_config_t *c)
{
    struct timespec t = { 0, 1000 * (long) random_below(4000) };
    uint32_t texts = random_below(6);
    int told[2];
    pid_t child;
    char x;

    assert_int_equal(pipe(told), 0);
    child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        close(told[0]);
        write_on(c, told[1]);
        _exit(1);
    }
    close(told[1]);
    for (uint32_t i = 0; i <= texts; i++) {
        assert_int_equal(read(told[0], &x, 1), 1);
    }
    nanosleep(&t, NULL);
    assert_int_equal(kill(child, SIGKILL), 0);
    assert_int_equal(waitpid(child, NULL, 0), child);
    close(told[0]);
}

static void
killed(void **unused)
{
    const char *given = getenv("TR_STORE_KILLS");
    uint32_t kills = given != NULL ? (uint32_t) strtoul(given, NULL, 10) : 25;
    uint32_t found = 0;
    tr_store_stats_t stats;
    place_t p;
    tr_store_config_t c;
    int32_t tokens[LONGEST];

    (void) unused;
    random_state = 3;
    place_make(&p);
    c = store_config(&p);
    c.limit = 12 << 20;
    for (uint32_t i = 0; i < kills; i++) {
        tr_store_t *s;

        kill_one(&c);
        random_state += i; /* the child's is its own */
        s = store_open(&c);
        for (uint32_t t = 0; t < TEXTS; t++) {
            tokens_of_text(t, LONGEST, tokens);
            found += get_whole(s, &alice, tokens, LONGEST, 0) != 0;
        }
        tr_store_stats(s, &stats);
        assert_int_equal(stats.failed, 0);
        tr_store_close(s);
        place_each(&p, count_temporary);
    }
    print_message("%u kills, %u in the middle of a file; %u files read\n",
                  kills, left_behind, found);
    assert_true(left_behind > kills / 10 && found > kills);
    place_free(&p);
}

int
main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(killed) };

    alice = key_of("alice", 5);
    return cmocka_run_group_tests_name("store_kill", tests, NULL, NULL);
}
