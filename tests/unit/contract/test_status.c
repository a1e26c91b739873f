/*
 * The status page: no torn reads between two threads, a reader that gives up on
 * a writer who died inside, and a page that nobody but its engine can write.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <pthread.h>
#include <sched.h>

#include <tokenring/channel.h>

/* Every field says the same number, so that a mixture shows. */
static void
admission_fill(tr_status_admission_t *a, uint64_t n)
{
    unsigned i;

    memset(a, 0, sizeof(*a));
    a->state = a->running = a->waiting = a->queue_free = (uint32_t) n;
    a->last_step_us = a->step = a->kv_free_pages = n;
    for (i = 0; i < TR_STATUS_LEVELS; i++) {
        a->kv_used_pages[i] = n;
    }
    a->kv_tokens = a->kv_full_bytes = a->kv_swapped_pages = n;
}

static int
admission_is(const tr_status_admission_t *a, uint64_t n)
{
    tr_status_admission_t want;

    admission_fill(&want, n);
    return memcmp(a, &want, sizeof(want)) == 0;
}

typedef struct {
    tr_status_page_t *page;
    int fd;
} fixture_t;

static void
page_make(fixture_t *f)
{
    assert_int_equal(tr_status_create(0x1234, &f->page, &f->fd), TR_OK);
}

static void
page_free(fixture_t *f)
{
    tr_status_unmap(f->page);
    close(f->fd);
}

static void
test_publish_and_read(void **state)
{
    tr_status_admission_t in, out;
    fixture_t f;

    (void) state;
    page_make(&f);
    admission_fill(&in, 7);
    tr_status_publish(f.page, &in);
    memset(&out, 0xee, sizeof(out));
    assert_int_equal(tr_status_read(f.page, &out), TR_OK);
    assert_true(admission_is(&out, 7));
    assert_int_equal(atomic_load(&f.page->sequence), 2);
    page_free(&f);
}

/* The engine was killed between the two increments. */
static void
test_dead_writer(void **state)
{
    tr_status_admission_t in, out;
    fixture_t f;

    (void) state;
    page_make(&f);
    admission_fill(&in, 7);
    tr_status_publish(f.page, &in);
    assert_int_equal(tr_status_read(f.page, &out), TR_OK);
    atomic_store(&f.page->sequence, 3);
    atomic_store(&f.page->admission[0], 99);
    assert_int_equal(tr_status_read(f.page, &out), TR_AGAIN);
    assert_true(admission_is(&out, 7)); /* the last copy is untouched */
    page_free(&f);
}

#define PUBLISHED 300000

static void *
publisher(void *arg)
{
    tr_status_page_t *page = arg;
    tr_status_admission_t a;
    uint64_t n;

    for (n = 1; n <= PUBLISHED; n++) {
        admission_fill(&a, n);
        tr_status_publish(page, &a);
        if (n % 64 == 0) {
            sched_yield(); /* a single core lets readers in */
        }
    }
    return NULL;
}

static void
test_no_torn_reads(void **state)
{
    tr_status_admission_t out;
    uint64_t last = 0, good = 0;
    pthread_t thread;
    fixture_t f;

    (void) state;
    page_make(&f);
    assert_int_equal(pthread_create(&thread, NULL, publisher, f.page), 0);
    while (last < PUBLISHED) {
        if (tr_status_read(f.page, &out) != TR_OK) {
            sched_yield();
            continue;
        }
        if (!admission_is(&out, out.step)) {
            fail_msg("a mixture: step %llu, tokens %llu",
                     (unsigned long long) out.step,
                     (unsigned long long) out.kv_tokens);
        }
        assert_true(out.step >= last); /* never back in time */
        last = out.step;
        good++;
    }
    pthread_join(thread, NULL);
    assert_true(good > 0);
    page_free(&f);
}

/* Each bound belongs to its own bucket, the next microsecond to the next. */
static void
test_histogram_buckets(void **state)
{
    static const uint32_t bounds[] = TR_STATUS_BOUNDS_US;
    tr_status_histogram_t h;
    uint64_t sum = 0;
    unsigned i, k;

    (void) state;
    assert_int_equal(sizeof(bounds) / sizeof(bounds[0]), TR_STATUS_BUCKETS);
    for (i = 0; i < TR_STATUS_BUCKETS; i++) {
        assert_true(i == 0 || bounds[i] > bounds[i - 1]);
        memset(&h, 0, sizeof(h));
        tr_status_observe(&h, bounds[i]);
        tr_status_observe(&h, (uint64_t) bounds[i] + 1);
        for (k = 0; k <= TR_STATUS_BUCKETS; k++) {
            assert_int_equal(atomic_load(&h.count[k]), k == i || k == i + 1);
        }
    }
    memset(&h, 0, sizeof(h));
    tr_status_observe(&h, 0);
    tr_status_observe(&h, 1ull << 40);
    sum += 1ull << 40;
    assert_int_equal(atomic_load(&h.count[0]), 1);
    assert_int_equal(atomic_load(&h.count[TR_STATUS_BUCKETS]), 1);
    assert_int_equal(atomic_load(&h.sum_us), sum);
}

/* Strings without an end, and more levels than there are. */
static void
test_card_of_a_hostile_engine(void **state)
{
    tr_status_card_t card;
    fixture_t f;
    int i;

    (void) state;
    page_make(&f);
    memset(&f.page->card, 'x', sizeof(f.page->card));
    tr_status_card_copy(f.page, &card);
    assert_int_equal(strlen(card.model), TR_NAME_MAX - 1);
    assert_int_equal(strlen(card.engine), TR_NAME_MAX - 1);
    assert_int_equal(strlen(card.backend), 31);
    assert_int_equal(strlen(card.kv_policy), 255);
    assert_int_equal(strlen(card.kv_policies), 511);
    assert_int_equal(card.kv_levels, TR_STATUS_LEVELS);
    for (i = 0; i < TR_STATUS_LEVELS; i++) {
        assert_int_equal(strlen(card.level_name[i]), 15);
    }
    page_free(&f);
}

static void
test_names_of_the_model(void **state)
{
    tr_status_card_t card = { .model = "llama\0gpt-4\0\0no name" };

    (void) state;
    assert_string_equal(tr_status_model_name(&card, 0), "llama");
    assert_string_equal(tr_status_model_name(&card, 1), "gpt-4");
    assert_null(tr_status_model_name(&card, 2));
    assert_null(tr_status_model_name(&card, UINT32_MAX));
    memset(card.model, 'x', sizeof(card.model));
    card.model[TR_NAME_MAX - 1] = '\0';
    assert_non_null(tr_status_model_name(&card, 0));
    assert_null(tr_status_model_name(&card, 1));
    card.model[0] = '\0';
    assert_null(tr_status_model_name(&card, 0));
}

/* ---- the memfd ---------------------------------------------------------- */

static void
test_attach_reads_what_is_published(void **state)
{
    const tr_status_page_t *seen;
    tr_status_admission_t in, out;
    fixture_t f;

    (void) state;
    page_make(&f);
    assert_int_equal(tr_status_attach(f.fd, &seen), TR_OK);
    assert_int_equal(seen->generation, 0x1234);
    assert_int_equal(seen->engine_pid, getpid());
    admission_fill(&in, 5);
    tr_status_publish(f.page, &in);
    assert_int_equal(tr_status_read(seen, &out), TR_OK);
    assert_true(admission_is(&out, 5));
    tr_status_unmap(seen);
    page_free(&f);
}

/* Not by mapping, not by write, not by opening it again, not by its size. */
static void
test_nobody_else_writes(void **state)
{
    char path[64];
    fixture_t f;
    void *map;
    int fd;

    (void) state;
    page_make(&f);
    map = mmap(NULL, sizeof(*f.page), PROT_READ | PROT_WRITE, MAP_SHARED, f.fd,
               0);
    assert_ptr_equal(map, MAP_FAILED);
    assert_int_equal(pwrite(f.fd, "x", 1, 0), -1);
    snprintf(path, sizeof(path), "/proc/self/fd/%d", f.fd);
    fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd != -1) {
        assert_int_equal(pwrite(fd, "x", 1, 0), -1);
        close(fd);
    }
    assert_int_equal(ftruncate(f.fd, 0), -1);
    assert_int_equal(ftruncate(f.fd, 1 << 20), -1);
    assert_int_equal(fcntl(f.fd, F_ADD_SEALS, F_SEAL_WRITE), -1);
    page_free(&f);
}

/* A page as an impostor might make it: right but for one thing. */
static tr_status_t
attach_forged(int seals, uint64_t size, uint64_t magic, uint32_t version,
              uint32_t said_size)
{
    const tr_status_page_t *seen = NULL;
    tr_status_page_t *page;
    tr_status_t rc;
    void *base;
    int fd;

    assert_int_equal(tr_memfd_create("forged", size, seals, &base, &fd), TR_OK);
    page = base;
    page->magic = magic;
    page->version = version;
    page->size = said_size;
    rc = tr_status_attach(fd, &seen);
    assert_int_equal(seen != NULL, rc == TR_OK);
    tr_status_unmap(seen);
    munmap(base, size);
    close(fd);
    return rc;
}

static void
test_impostors_are_refused(void **state)
{
    const uint64_t size = sizeof(tr_status_page_t);
    const uint64_t magic = TR_STATUS_MAGIC;
    const uint32_t version = TR_STATUS_VERSION;
    const tr_status_page_t *seen;
    int fd;

    (void) state;
    assert_int_equal(attach_forged(TR_STATUS_SEALS, size, magic, version, size),
                     TR_OK);
    assert_int_equal(attach_forged(TR_STATUS_SEALS & ~F_SEAL_FUTURE_WRITE, size,
                                   magic, version, size),
                     TR_ERR_PROTOCOL);
    assert_int_equal(attach_forged(TR_STATUS_SEALS & ~F_SEAL_SHRINK, size,
                                   magic, version, size),
                     TR_ERR_PROTOCOL);
    assert_int_equal(attach_forged(TR_STATUS_SEALS, size + 64, magic, version,
                                   size),
                     TR_ERR_PROTOCOL);
    assert_int_equal(attach_forged(TR_STATUS_SEALS, size - 64, magic, version,
                                   size),
                     TR_ERR_PROTOCOL);
    assert_int_equal(attach_forged(TR_STATUS_SEALS, size, magic + 1, version,
                                   size),
                     TR_ERR_PROTOCOL);
    assert_int_equal(attach_forged(TR_STATUS_SEALS, size, magic,
                                   TR_STATUS_VERSION + 1, size),
                     TR_ERR_PROTOCOL);
    assert_int_equal(attach_forged(TR_STATUS_SEALS, size, magic, version,
                                   size + 8),
                     TR_ERR_PROTOCOL);
    assert_int_equal(attach_forged(TR_STATUS_SEALS, size + 64, magic, version,
                                   size - 8),
                     TR_ERR_PROTOCOL);
    /* of a newer engine, which has more to tell */
    assert_int_equal(attach_forged(TR_STATUS_SEALS, size + 64, magic, version,
                                   size + 64),
                     TR_OK);
    fd = open("/dev/zero", O_RDONLY | O_CLOEXEC);
    assert_int_equal(tr_status_attach(fd, &seen), TR_ERR_PROTOCOL);
    close(fd);
    assert_int_equal(tr_status_attach(-1, &seen), TR_ERR_PROTOCOL);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_publish_and_read),
        cmocka_unit_test(test_dead_writer),
        cmocka_unit_test(test_no_torn_reads),
        cmocka_unit_test(test_histogram_buckets),
        cmocka_unit_test(test_card_of_a_hostile_engine),
        cmocka_unit_test(test_names_of_the_model),
        cmocka_unit_test(test_attach_reads_what_is_published),
        cmocka_unit_test(test_nobody_else_writes),
        cmocka_unit_test(test_impostors_are_refused),
    };

    return cmocka_run_group_tests_name("status", tests, NULL, NULL);
}
