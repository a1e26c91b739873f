/*
 * Files of prefixes that are not what they were (engine/store/store.h): cut off,
 * made longer, changed at any bit, exchanged, of other sizes, links, pipes; and
 * disks that take no more.  What comes back is always right, what is wrong goes,
 * and the next one is written as if nothing had been.
 */
#include "tests/unit/fixtures/store_fixture.h"

#include <signal.h>
#include <sys/resource.h>

#include "engine/config/log.h"
#include "engine/store/store_internal.h"

static tr_prefix_key_t alice;

static char item_name[300]; /* the one that place_each met last */

static void
take_name(const place_t *p, const char *name)
{
    (void) p;
    if (is_item(name)) {
        strcpy(item_name, name);
    }
}

static void
remove_item(const place_t *p, const char *name)
{
    if (is_item(name)) {
        place_remove(p, name);
    }
}

typedef struct {
    uint8_t *bytes;
    size_t n;
} blob_t;

static blob_t
read_blob(const char *path)
{
    blob_t b = { NULL, 0 };
    struct stat st;
    int fd = open(path, O_RDONLY);

    assert_true(fd >= 0 && fstat(fd, &st) == 0);
    b.n = (size_t) st.st_size;
    b.bytes = malloc(b.n + 1);
    assert_int_equal(read(fd, b.bytes, b.n), (ssize_t) b.n);
    close(fd);
    return b;
}

static void
write_blob(const char *path, const blob_t *b)
{
    int fd = open(path, O_CREAT | O_WRONLY | O_TRUNC, 0600);

    assert_int_equal(write(fd, b->bytes, b->n), (ssize_t) b->n);
    close(fd);
}

/* An item of exactly so many pages: its first token is chosen for that. */
static void
tokens_with_pages(uint32_t text, uint32_t n, uint32_t pages, int32_t *out)
{
    tokens_of_text(text, n, out);
    for (int32_t i = 0; pages_of(sum_of(&alice, out, n)) != pages; i++) {
        out[0] = i;
    }
}

/* A store with one file of 64 tokens and so many pages, under its one name. */
typedef struct {
    place_t p;
    tr_store_config_t c;
    tr_store_t *s;
    int32_t tokens[64];
    char path[400];
    blob_t good;
} one_t;

static void
one_make(one_t *o, uint32_t pages)
{
    place_make(&o->p);
    o->c = store_config(&o->p);
    o->s = store_open(&o->c);
    tokens_with_pages(7, 64, pages, o->tokens);
    assert_true(put_whole(o->s, &alice, o->tokens, 64));
    place_each(&o->p, take_name);
    place_path(&o->p, item_name, o->path);
    o->good = read_blob(o->path);
}

static void
one_free(one_t *o)
{
    tr_store_close(o->s);
    free(o->good.bytes);
    place_free(&o->p);
}

static bool
there(const char *path)
{
    struct stat st;

    return lstat(path, &st) == 0;
}

/* The file is found damaged, counted, and gone; a good one in its place is as
 * good as ever. */
static void
check_damaged(one_t *o, const blob_t *bad)
{
    tr_store_stats_t before, after;

    write_blob(o->path, bad);
    tr_store_stats(o->s, &before);
    assert_int_equal(get_whole(o->s, &alice, o->tokens, 64, 0), 0);
    tr_store_stats(o->s, &after);
    assert_int_equal(after.failed, before.failed + 1);
    assert_false(there(o->path));
}

static void
check_good(one_t *o)
{
    write_blob(o->path, &o->good);
    assert_int_equal(get_whole(o->s, &alice, o->tokens, 64, 0), 64);
    assert_true(there(o->path));
}

/* Any bit, anywhere: the first bytes one by one, then at random. */
static void
changed(void **unused)
{
    one_t o;

    (void) unused;
    random_state = 11;
    one_make(&o, 3);
    for (uint32_t i = 0; i < 900; i++) {
        uint64_t bit = i < 600 ? i : random_below((uint32_t) o.good.n * 8);

        /* all of the header, and then of what is in front of pages */
        if (i >= 600 && i < 750) {
            bit %= 4096 * 8;
        }
        bit = i < 300 ? bit * 8 + random_below(8) : bit;
        o.good.bytes[bit / 8] ^= (uint8_t) (1u << bit % 8);
        check_damaged(&o, &o.good);
        o.good.bytes[bit / 8] ^= (uint8_t) (1u << bit % 8);
    }
    check_good(&o);
    one_free(&o);
}

static void
cut_off(void **unused)
{
    one_t o;
    blob_t bad;

    (void) unused;
    random_state = 12;
    one_make(&o, 70); /* of two pieces */
    for (uint32_t i = 0; i < 60; i++) {
        bad = o.good;
        bad.n = i < 5 ? i * 57 : i < 10 ? bad.n - i + 4 : random_below(bad.n);
        check_damaged(&o, &bad);
    }
    bad = o.good; /* one byte more */
    bad.n++;
    bad.bytes[bad.n - 1] = 0;
    check_damaged(&o, &bad);
    bad.n = 100000; /* zeros */
    bad.bytes = calloc(1, bad.n);
    check_damaged(&o, &bad);
    free(bad.bytes);
    check_good(&o);
    one_free(&o);
}

/* A piece that is damaged is found out when the ones before it were taken. */
static void
changed_late(void **unused)
{
    one_t o;
    uint32_t spent = 0, at = 0;
    const uint8_t *piece;

    (void) unused;
    one_make(&o, 140); /* of three pieces */
    o.good.bytes[o.good.n - 1] ^= 1;
    write_blob(o.path, &o.good);
    assert_true(tr_store_get(o.s, &alice, a_policy, o.tokens, 64, 0));
    while (tr_store_get_state(o.s) == TR_STORE_LOOKING) {
        breathe(&spent);
    }
    assert_int_equal(tr_store_get_state(o.s), TR_STORE_FOUND);
    tr_store_get_go(o.s);
    while (tr_store_get_state(o.s) == TR_STORE_LOADING) {
        piece = tr_store_get_piece(o.s);
        if (piece != NULL) {
            check_piece(o.s, piece, &at);
            tr_store_get_taken(o.s);
        }
        breathe(&spent);
    }
    assert_int_equal(tr_store_get_state(o.s), TR_STORE_FAILED);
    assert_true(at == 64 || at == 128);
    tr_store_get_over(o.s);
    assert_false(there(o.path));
    o.good.bytes[o.good.n - 1] ^= 1;
    check_good(&o);
    one_free(&o);
}

/* Headers that lie about how much there is, in files as long as they say. */
static void
lying_sizes(void **unused)
{
    static const uint32_t big[] = { 0,       1,          63,
                                    65,      LONGEST,    LONGEST + 1,
                                    1 << 20, UINT32_MAX, UINT32_MAX / 16384 };
    tr_store_stats_t before, after;
    one_t o;
    blob_t bad;

    (void) unused;
    one_make(&o, 3);
    for (uint32_t i = 0; i < 9 * 9; i++) {
        store_header_t h;
        uint64_t size;

        memcpy(&h, o.good.bytes, sizeof(h));
        h.n_tokens = big[i / 9];
        h.n_pages = big[i % 9];
        bad = o.good;
        bad.bytes = malloc(o.good.n);
        memcpy(bad.bytes, o.good.bytes, o.good.n);
        memcpy(bad.bytes, &h, sizeof(h));
        write_blob(o.path, &bad);
        free(bad.bytes);
        size = store_head_bytes(o.s, h.n_tokens, h.n_pages)
               + (uint64_t) h.n_pages * PAGE_BYTES;
        if (size < 1ull << 40) { /* a hole */
            (void) !truncate(o.path, (off_t) size);
        }
        tr_store_stats(o.s, &before);
        assert_int_equal(get_whole(o.s, &alice, o.tokens, 64, 0), 0);
        tr_store_stats(o.s, &after);
        /* as long as it says, and too large: it may be another engine's */
        assert_int_equal(after.failed + there(o.path), before.failed + 1);
        unlink(o.path);
    }
    check_good(&o);
    one_free(&o);
}

/* An engine with shorter sequences, or fewer pages, leaves the files of one with
 * more alone. */
static void
smaller_engine(void **unused)
{
    tr_store_stats_t stats;
    one_t o;
    tr_store_t *s;
    int32_t tokens[600];

    (void) unused;
    one_make(&o, 90);
    tokens_of_text(9, 600, tokens);
    assert_true(put_whole(o.s, &alice, tokens, 600));
    o.c.max_pages = 89;
    o.c.max_len = 599;
    s = store_open(&o.c);
    assert_int_equal(get_whole(s, &alice, o.tokens, 64, 0), 0);
    assert_int_equal(get_whole(s, &alice, tokens, 600, 0), 0);
    tr_store_stats(s, &stats);
    assert_int_equal(stats.failed, 0);
    tr_store_close(s);
    assert_int_equal(get_whole(o.s, &alice, o.tokens, 64, 0), 64);
    assert_int_equal(get_whole(o.s, &alice, tokens, 600, 0), 600);
    one_free(&o);
}

/* Somebody's whole file under the name of another's. */
static void
exchanged(void **unused)
{
    tr_prefix_key_t mallory = key_of("mallory\0x", 9);
    one_t o;
    int32_t other[64];
    char path[400];
    blob_t theirs;

    (void) unused;
    one_make(&o, 3);
    unlink(o.path);
    tokens_with_pages(8, 64, 5, other);
    assert_true(put_whole(o.s, &mallory, other, 64));
    place_each(&o.p, take_name);
    place_path(&o.p, item_name, path);
    theirs = read_blob(path);
    write_blob(o.path, &theirs);
    assert_int_equal(get_whole(o.s, &alice, o.tokens, 64, 0), 0);
    write_blob(path, &o.good);
    assert_int_equal(get_whole(o.s, &mallory, other, 64, 0), 0);
    write_blob(path, &theirs);
    assert_int_equal(get_whole(o.s, &mallory, other, 64, 0), 64);
    free(theirs.bytes);
    check_good(&o);
    one_free(&o);
}

/* Names that are no files are neither followed nor waited for, and what is
 * written stands in their place. */
static void
no_files(void **unused)
{
    one_t o;
    char aside[420];

    (void) unused;
    one_make(&o, 3);
    snprintf(aside, sizeof(aside), "%s/aside", o.p.top);
    write_blob(aside, &o.good);
    for (uint32_t i = 0; i < 5; i++) {
        unlink(o.path);
        if (i == 0) {
            assert_int_equal(symlink(aside, o.path), 0);
        } else if (i == 1) {
            assert_int_equal(symlink("/dev/zero", o.path), 0);
        } else if (i == 2) {
            assert_int_equal(symlink(o.path, o.path), 0);
        } else if (i == 3) {
            assert_int_equal(mkfifo(o.path, 0600), 0);
        } else {
            assert_int_equal(mkdir(o.path, 0700), 0);
        }
        assert_int_equal(get_whole(o.s, &alice, o.tokens, 64, 0), 0);
        assert_int_equal(put_whole(o.s, &alice, o.tokens, 64), i != 4);
        assert_int_equal(get_whole(o.s, &alice, o.tokens, 64, 0),
                         i != 4 ? 64 : 0);
    }
    assert_true(there(aside));
    unlink(aside);
    rmdir(o.path);
    check_good(&o);
    one_free(&o);
}

/* A file that is changed, removed or cut off while it is read. */
static void
changed_meanwhile(void **unused)
{
    one_t o;

    (void) unused;
    random_state = 13;
    one_make(&o, 140);
    for (uint32_t i = 0; i < 40; i++) {
        uint32_t spent = 0, at = 0, when = random_below(3);
        tr_store_get_t state;

        write_blob(o.path, &o.good);
        assert_true(tr_store_get(o.s, &alice, a_policy, o.tokens, 64, 0));
        while (tr_store_get_state(o.s) == TR_STORE_LOOKING) {
            breathe(&spent);
        }
        assert_int_equal(tr_store_get_state(o.s), TR_STORE_FOUND);
        tr_store_get_go(o.s);
        while ((state = tr_store_get_state(o.s)) == TR_STORE_LOADING) {
            const uint8_t *piece = tr_store_get_piece(o.s);

            if (piece != NULL) {
                check_piece(o.s, piece, &at);
                if (when == at / 64) {
                    (void) !(i % 2 ? truncate(o.path, (off_t) o.good.n - 5)
                                   : unlink(o.path));
                }
                tr_store_get_taken(o.s);
            } else {
                breathe(&spent);
            }
        }
        assert_true(state == TR_STORE_DONE || state == TR_STORE_FAILED);
        assert_true(i % 2 || state == TR_STORE_DONE); /* it is open */
        tr_store_get_over(o.s);
        unlink(o.path);
    }
    check_good(&o);
    one_free(&o);
}

/* ---- disks -------------------------------------------------------------- */

/* Writes fail in the middle of a file: nothing of it is left, and when there is
 * room again the next one is written. */
static void
disk_full(void **unused)
{
    struct rlimit was, low;
    tr_store_stats_t stats;
    one_t o;
    int32_t tokens[64];

    (void) unused;
    one_make(&o, 3);
    tokens_with_pages(21, 64, 140, tokens);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &was), 0);
    low = was;
    signal(SIGXFSZ, SIG_IGN);
    for (uint32_t i = 1; i < 8; i++) {
        low.rlim_cur = i * 300000;
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &low), 0);
        assert_false(put_whole(o.s, &alice, tokens, 64));
        assert_int_equal(get_whole(o.s, &alice, tokens, 64, 0), 0);
        assert_int_equal(place_each(&o.p, NULL), 2); /* key, the first item */
    }
    tr_store_stats(o.s, &stats);
    assert_int_equal(stats.failed, 7);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &was), 0);
    assert_true(put_whole(o.s, &alice, tokens, 64));
    assert_int_equal(get_whole(o.s, &alice, tokens, 64, 0), 64);
    assert_int_equal(get_whole(o.s, &alice, o.tokens, 64, 0), 64);
    one_free(&o);
}

/* What is there is read, nothing is written; a new directory needs a key. */
static void
read_only(void **unused)
{
    uid_t me = geteuid();
    one_t o;
    place_t empty;
    tr_store_t *s;
    tr_error_t err;
    int32_t tokens[64];

    (void) unused;
    if (me == 0) { /* whom modes do not hold back */
        assert_int_equal(seteuid(65534), 0);
    }
    one_make(&o, 3);
    assert_int_equal(chmod(o.p.dir, 0500), 0);
    tokens_of_text(22, 64, tokens);
    assert_false(put_whole(o.s, &alice, tokens, 64));
    assert_int_equal(get_whole(o.s, &alice, o.tokens, 64, 0), 64);
    tr_store_close(o.s);
    o.s = store_open(&o.c); /* and so after a restart */
    assert_false(put_whole(o.s, &alice, tokens, 64));
    assert_int_equal(get_whole(o.s, &alice, o.tokens, 64, 0), 64);
    assert_int_equal(chmod(o.p.dir, 0700), 0);
    assert_true(put_whole(o.s, &alice, tokens, 64));

    place_make(&empty);
    assert_int_equal(mkdir(empty.dir, 0500), 0);
    o.c.dir = empty.dir;
    assert_int_not_equal(tr_store_open(&o.c, &s, &err), TR_OK);
    assert_non_null(strstr(err.text, "cannot write a key into it: Permission"));
    place_free(&empty);
    one_free(&o);
    assert_int_equal(seteuid(me), 0);
}

/* What a kill left behind goes when it is old; an engine may yet write what is
 * young. */
static void
orphans(void **unused)
{
    static const char *name[] = { ".tmp-0000000000000000-1",
                                  ".tmp-0000000000000000-2" };
    struct timespec old[2] = { { .tv_sec = time(NULL) - 3600 },
                               { .tv_sec = time(NULL) - 3600 } };
    char path[2][400];
    one_t o;

    (void) unused;
    one_make(&o, 3);
    tr_store_close(o.s);
    for (uint32_t i = 0; i < 2; i++) {
        place_path(&o.p, name[i], path[i]);
        write_blob(path[i], &o.good);
    }
    assert_int_equal(utimensat(AT_FDCWD, path[0], old, 0), 0);
    o.s = store_open(&o.c);
    assert_true(put_whole(o.s, &alice, o.tokens, 64));
    assert_false(there(path[0]));
    assert_true(there(path[1]));
    remove_item(&o.p, item_name);
    assert_int_equal(get_whole(o.s, &alice, o.tokens, 64, 0), 0);
    one_free(&o);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(changed),        cmocka_unit_test(cut_off),
        cmocka_unit_test(changed_late),   cmocka_unit_test(lying_sizes),
        cmocka_unit_test(smaller_engine), cmocka_unit_test(exchanged),
        cmocka_unit_test(no_files),       cmocka_unit_test(changed_meanwhile),
        cmocka_unit_test(disk_full),      cmocka_unit_test(read_only),
        cmocka_unit_test(orphans)
    };

    tr_log_open("/dev/null", TR_LEVEL_ERROR); /* thousands of warnings */
    alice = key_of("alice", 5);
    return cmocka_run_group_tests_name("store_hostile", tests, NULL, NULL);
}
