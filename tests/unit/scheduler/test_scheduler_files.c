/*
 * Prompts that wait to hear whether files have their beginnings: a disk that is
 * stuck costs who asked it two seconds, and all others a tenth of one; where it
 * is quick, all of them ask.  What a slow one has is computed instead, once it is
 * known to be slow.
 */
#include "tests/unit/fixtures/scheduler_fixture.h"

#include <dirent.h>
#include <fcntl.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "engine/kv/kv_store_internal.h"

#define PROMPTS 6
#define TOKENS 150u /* two names each */
#define NAME 32u    /* characters of an item's */

static _Atomic bool stuck;
static _Atomic uint32_t opened;
static sem_t release;

/* Is this the thread that looks for files?  The one that writes them opens some,
 * too, when it comes to it. */
static bool
looks(void)
{
    char name[16] = "";

    (void) prctl(PR_GET_NAME, name);
    return strcmp(name, "tr-store-get") == 0;
}

/* The C library's, of a disk that may be stuck. */
int
openat(int dir, const char *name, int flags, ...)
{
    va_list more;
    unsigned mode = 0;

    if (strlen(name) == NAME && looks()) {
        atomic_fetch_add(&opened, 1);
        if (atomic_load(&stuck)) {
            sem_wait(&release);
        }
    }
    if (flags & O_CREAT) {
        va_start(more, flags);
        mode = va_arg(more, unsigned);
        va_end(more);
    }
    return (int) syscall(SYS_openat, dir, name, flags, mode);
}

typedef struct {
    fixture_t b;
    tr_request_t *r[PROMPTS];
    uint64_t ran[PROMPTS]; /* when it was admitted, us; 0: not yet */
    char dir[40];
} disk_t;

static void
make(disk_t *d)
{
    const uint8_t identity[TR_STORE_ID_BYTES] = "a model";
    tr_error_t err;

    memset(d, 0, sizeof(*d));
    sem_init(&release, 0, 0);
    atomic_store(&opened, 0);
    atomic_store(&stuck, false);
    strcpy(d->dir, "/tmp/tokenring-disk-XXXXXX");
    assert_non_null(mkdtemp(d->dir));
    reuse = true;
    fixture_init(&d->b, 200, PROMPTS + 1, 2048);
    reuse = false;
    assert_int_equal(tr_kv_store_open(d->b.kv, d->dir, 1 << 20, 0, identity,
                                      &err),
                     TR_OK);
    for (uint32_t i = 0; i < PROMPTS; i++) {
        tr_request_t *r = make_request(&d->b, TOKENS, 20, 1);
        tr_sequence_t *q = r->sequences;

        r->kv_reuse = true;
        q->tokens = tr_arena_alloc(&r->arena, q->cap * sizeof(*q->tokens));
        for (uint32_t k = 0; k < q->cap; k++) {
            q->tokens[k] = (int32_t) (i * 1000 + k);
        }
        tr_scheduler_add(&d->b.s, r);
        d->r[i] = r;
    }
}

static void
clear_directory(const char *name)
{
    DIR *dir = opendir(name);
    struct dirent *e;
    char path[400];

    while ((e = readdir(dir)) != NULL) {
        snprintf(path, sizeof(path), "%s/%s", name, e->d_name);
        (void) unlink(path);
    }
    closedir(dir);
    assert_int_equal(rmdir(name), 0);
}

static void
unmake(disk_t *d)
{
    drop_all(&d->b, d->r, PROMPTS);
    tr_kv_store_close(d->b.kv);
    fixture_free(&d->b);
    sem_destroy(&release);
    clear_directory(d->dir);
}

/* A turn of the loop; how many were admitted by now. */
static uint32_t
turn(disk_t *d, uint64_t now)
{
    uint32_t n = 0;

    d->b.now = now;
    tr_kv_store_turn(d->b.kv);
    compose(&d->b);
    for (uint32_t i = 0; i < PROMPTS; i++) {
        if (d->ran[i] == 0 && d->r[i]->sequences[0].state == TR_SEQ_RUNNING) {
            d->ran[i] = now;
        }
        n += d->ran[i] != 0;
    }
    if (d->b.s.n_chunks != 0) { /* they need not go on */
        tr_scheduler_submit(&d->b.s);
        land(&d->b, false);
    }
    return n;
}

static void
a_disk_that_is_stuck(void **unused)
{
    disk_t d;
    uint32_t n = 0, i;
    uint64_t now, most = 0;

    (void) unused;
    make(&d);
    atomic_store(&stuck, true);
    for (now = 1; n < PROMPTS && now < 10000000; now += 10000) {
        n = turn(&d, now);
        /* the loop wakes when their patience ends, without being told */
        assert_true(now != 1
                    || (d.b.s.next_due_us != 0
                        && d.b.s.next_due_us <= 1 + TR_SCHEDULER_LOOK_US));
        for (i = 0; opened == 0; i++) {
            assert_true(i < 50000);
            usleep(100);
        }
    }
    assert_int_equal(n, PROMPTS);
    assert_true(d.ran[0] > 1900000 && d.ran[0] < 2100000);
    for (i = 1; i < PROMPTS; i++) {
        most = d.ran[i] > most ? d.ran[i] : most;
    }
    assert_true(most <= TR_SCHEDULER_LOOK_US + 20000);
    assert_int_equal(opened, 1); /* nobody else asked it */
    atomic_store(&stuck, false);
    sem_post(&release);
    unmake(&d);
}

static void
a_quick_disk(void **unused)
{
    disk_t d;
    uint64_t now = 1;
    uint32_t spent = 0;

    (void) unused;
    make(&d);
    while (turn(&d, now++) < PROMPTS) {
        assert_true(spent++ < 50000);
        usleep(100);
    }
    assert_int_equal(opened, 2 * PROMPTS);
    unmake(&d);
}

/* ---- slow ones ----------------------------------------------------------- */

#define KEPT 640u /* tokens of a conversation that a file has */

typedef struct {
    tr_kv_cache_t *kv;
    int32_t tokens[KEPT + 1];
    tr_prefix_key_t key;
    uint64_t now;
    char dir[40];
} slow_t;

static void
slow_open(slow_t *d)
{
    const uint8_t identity[TR_STORE_ID_BYTES] = "a model";
    tr_error_t err;

    reuse = true;
    d->kv = make_kv(FULL, 100, 0, 4);
    reuse = false;
    assert_int_equal(tr_kv_store_open(d->kv, d->dir, 1 << 20, 0, identity,
                                      &err),
                     TR_OK);
}

/* One that was computed here ends, and is written. */
static void
slow_keep(slow_t *d)
{
    tr_kv_found_t found;
    int32_t slot = tr_kv_open(d->kv, NULL);

    tr_kv_find(d->kv, NULL, &d->key, d->tokens, KEPT, &found);
    assert_int_equal(tr_kv_adopt(d->kv, slot, &d->key, &found), TR_OK);
    assert_int_equal(tr_kv_reserve(d->kv, slot, KEPT), TR_OK);
    tr_kv_keep(d->kv, slot, d->tokens, KEPT, true);
    tr_kv_close(d->kv, slot);
    tr_kv_store_flush(d->kv, 60000000);
    tr_kv_store_close(d->kv);
    tr_kv_cache_free(d->kv);
}

/* A prompt that goes on from it asks: tokens that it finds in the end. */
static uint32_t
slow_ask(slow_t *d, const void *owner)
{
    tr_kv_found_t found;
    uint32_t n;

    tr_kv_time(d->kv, ++d->now);
    assert_int_equal(tr_kv_store_look(d->kv, owner, NULL, &d->key, d->tokens,
                                      KEPT + 1, 0),
                     TR_KV_LOOK_ASKED);
    for (uint32_t i = 0;
         tr_kv_store_looks(d->kv, owner) || d->kv->store->stopping; i++) {
        assert_true(i < 50000);
        tr_kv_time(d->kv, ++d->now);
        if (!tr_kv_store_turn(d->kv)) {
            usleep(100);
        }
    }
    tr_kv_find(d->kv, NULL, &d->key, d->tokens, KEPT + 1, &found);
    n = found.tokens;
    tr_kv_drop_found(d->kv, &found);
    return n;
}

static void
a_slow_disk(void **unused)
{
    static slow_t d;
    const tr_kv_speed_t known = { 64 << 20, 64 << 20 }; /* a byte a us */
    tr_kv_store_t *s;
    uint32_t owner[80], n = 0;

    (void) unused;
    strcpy(d.dir, "/tmp/tokenring-disk-XXXXXX");
    assert_non_null(mkdtemp(d.dir));
    for (uint32_t i = 0; i <= KEPT; i++) {
        d.tokens[i] = (int32_t) i;
    }
    slow_open(&d);
    slow_keep(&d);
    slow_open(&d);
    s = d.kv->store;
    s->brings[TR_KV_FILES] = known;
    /* 122,880 bytes: 122,880 us, or 6,400 */
    tr_kv_computed(d.kv, 1000, 10000);
    while (n < 80 && slow_ask(&d, &owner[n]) == 0) {
        n++; /* doubted each time, until it may be quick enough */
    }
    assert_true(n >= 28 && n <= 30);
    assert_true(tr_kv_speed_each(&s->brings[TR_KV_FILES]) < 0.053);
    tr_kv_store_close(d.kv);
    tr_kv_cache_free(d.kv);
    /* its speed is not known by little that came */
    slow_open(&d);
    d.kv->store->brings[TR_KV_FILES] = (tr_kv_speed_t){ 1 << 20, 1 << 20 };
    tr_kv_computed(d.kv, 1000, 10000);
    assert_true(slow_ask(&d, owner) >= KEPT - 1);
    tr_kv_store_close(d.kv);
    tr_kv_cache_free(d.kv);
    clear_directory(d.dir);
}

int
main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(a_disk_that_is_stuck),
                                        cmocka_unit_test(a_quick_disk),
                                        cmocka_unit_test(a_slow_disk) };

    return cmocka_run_group_tests_name("scheduler_files", tests, make_policies,
                                       free_policies);
}
