/*
 * Prefixes in files (engine/store/store.h): what is put comes back, to whom it
 * belongs and to nobody else; the newest of a conversation stays alone; the
 * quota; jobs that are given up at any time; two engines in one directory; and
 * directories that cannot be one.
 */
#include "tests/unit/fixtures/store_fixture.h"

#include <sched.h>

#include "engine/base/siphash.h"

static tr_prefix_key_t alice;

/* The authors' vectors (vectors_sip128): key 00 .. 0f, bytes 00, 01, .. */
static void
siphash(void **unused)
{
    static const struct {
        uint32_t n;
        const char *hash;
    } vector[] = { { 0, "a3817f04ba25a8e66df67214c7550293" },
                   { 1, "da87c1d86b99af44347659119b22fc45" },
                   { 3, "9c70b60c5267a94e5f33b6b02985ed51" },
                   { 7, "a1f1ebbed8dbc153c0b84aa61ff08239" },
                   { 8, "3b62a9ba6258f5610f83e264f31497b4" },
                   { 15, "5493e99933b0a8117e08ec0f97cfc3d9" },
                   { 16, "6ee2a4ca67b054bbfd3315bf85230577" },
                   { 63, "5150d1772f50834a503e069a973fbd7c" } };
    uint8_t key[TR_SIPHASH_BYTES], in[64], out[TR_SIPHASH_BYTES];

    (void) unused;
    for (uint32_t i = 0; i < sizeof(in); i++) {
        in[i] = (uint8_t) i;
    }
    memcpy(key, in, sizeof(key));
    for (size_t i = 0; i < sizeof(vector) / sizeof(vector[0]); i++) {
        char hex[2 * TR_SIPHASH_BYTES + 1];

        tr_siphash(key, in, vector[i].n, out);
        for (uint32_t j = 0; j < sizeof(out); j++) {
            snprintf(hex + (size_t) 2 * j, 3, "%02x", out[j]);
        }
        assert_string_equal(hex, vector[i].hash);
    }
}

/* ---- what comes back ---------------------------------------------------- */

static void
comes_back(void **unused)
{
    static const uint32_t length[] = { 64, 65, 127, 128, 300, 640, LONGEST };
    place_t p;
    tr_store_config_t c;
    tr_store_t *s;
    int32_t tokens[LONGEST];

    (void) unused;
    place_make(&p);
    c = store_config(&p);
    s = store_open(&c);
    for (uint32_t i = 0; i < 7; i++) {
        tokens_of_text(i, LONGEST, tokens);
        assert_true(put_whole(s, &alice, tokens, length[i]));
    }
    for (uint32_t again = 0; again < 2; again++) { /* and after a restart */
        for (uint32_t i = 0; i < 7; i++) {
            uint32_t n = length[i], last = n / 64 * 64;

            tokens_of_text(i, LONGEST, tokens);
            assert_int_equal(get_whole(s, &alice, tokens, n, 0), n);
            assert_int_equal(get_whole(s, &alice, tokens, LONGEST, last - 1),
                             n);
            /* no more than memory has */
            assert_int_equal(get_whole(s, &alice, tokens, n, last), 0);
            /* a prompt that parts from it somewhere */
            for (uint32_t at = 0; at < n; at += 1 + n / 9) {
                tokens[at]++;
                assert_int_equal(get_whole(s, &alice, tokens, n, 0),
                                 at >= 64 ? at : 0);
                tokens[at]--;
            }
        }
        tr_store_close(s);
        s = store_open(&c);
    }
    tr_store_close(s);
    place_free(&p);
}

/* Keys are bytes, NUL among them; a policy's pages are no other's. */
static void
whose_it_is(void **unused)
{
    static const char *bytes[] = { "a", "a\0", "a\0b", "a\0c", "", "b" };
    static const uint32_t len[] = { 1, 2, 3, 3, 0, 1 };
    const uint8_t other[TR_STORE_ID_BYTES] = "uniform";
    place_t p;
    tr_store_config_t c;
    tr_store_t *s;
    int32_t tokens[200];
    uint32_t spent = 0;

    (void) unused;
    place_make(&p);
    c = store_config(&p);
    s = store_open(&c);
    tokens_of_text(1, 200, tokens);
    for (uint32_t i = 0; i < 6; i++) {
        tr_prefix_key_t key = key_of(bytes[i], len[i]);

        assert_int_equal(get_whole(s, &key, tokens, 200, 0), 0);
        if (i != 5) {
            assert_true(put_whole(s, &key, tokens, 200));
            assert_int_equal(get_whole(s, &key, tokens, 200, 0), 200);
        }
    }
    assert_true(tr_store_get(s, &alice, other, tokens, 200, 0));
    while (tr_store_get_state(s) == TR_STORE_LOOKING) {
        breathe(&spent);
    }
    assert_int_equal(tr_store_get_state(s), TR_STORE_NONE);
    tr_store_get_over(s);
    tr_store_close(s);

    memcpy(c.identity, "two", 4); /* another model */
    s = store_open(&c);
    tr_prefix_key_t key = key_of("a", 1);
    assert_int_equal(get_whole(s, &key, tokens, 200, 0), 0);
    tr_store_close(s);
    memcpy(c.identity, "one", 4);
    s = store_open(&c);
    assert_int_equal(get_whole(s, &key, tokens, 200, 0), 200);
    tr_store_close(s);
    place_free(&p);
}

static ino_t inode[64];
static uint32_t n_inodes;
static uint64_t bytes_of_files;

static void
count_file(const place_t *p, const char *name)
{
    char path[400];
    struct stat st;

    place_path(p, name, path);
    assert_int_equal(lstat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    if (!is_item(name)) {
        assert_string_equal(name, "key");
        return;
    }
    for (uint32_t i = 0; i < n_inodes; i++) {
        if (inode[i] == st.st_ino) {
            return;
        }
    }
    assert_true(n_inodes < 64);
    inode[n_inodes++] = st.st_ino;
    bytes_of_files += (uint64_t) st.st_blocks * 512;
}

static uint32_t
count_files(const place_t *p)
{
    n_inodes = 0;
    bytes_of_files = 0;
    place_each(p, count_file);
    return n_inodes;
}

/* Each turn of a conversation replaces the one before. */
static void
newest_stays(void **unused)
{
    place_t p;
    tr_store_config_t c;
    tr_store_t *s;
    int32_t tokens[LONGEST];
    struct stat st;

    (void) unused;
    place_make(&p);
    c = store_config(&p);
    s = store_open(&c);
    tokens_of_text(3, LONGEST, tokens);
    for (uint32_t n = 70; n <= LONGEST; n += 93) {
        assert_true(put_whole(s, &alice, tokens, n));
        assert_int_equal(count_files(&p), 1);
    }
    /* and a branch of it stands beside it */
    tokens[500]++;
    assert_true(put_whole(s, &alice, tokens, 600));
    assert_int_equal(count_files(&p), 2);
    assert_int_equal(get_whole(s, &alice, tokens, 600, 0), 600);
    tokens[500]--;
    assert_int_equal(get_whole(s, &alice, tokens, 800, 0), 800);
    tr_store_close(s);
    assert_int_equal(stat(p.dir, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0700);
    place_free(&p);
}

/* The files that were used longest ago go; none is larger than the limit. */
static void
quota(void **unused)
{
    place_t p;
    tr_store_config_t c;
    tr_store_t *s;
    tr_store_stats_t stats;
    int32_t first[128], tokens[128];
    uint32_t i, n = 0;

    (void) unused;
    place_make(&p);
    c = store_config(&p);
    c.limit = 6 << 20;
    s = store_open(&c);
    tokens_of_text(100, 128, first);
    for (i = 0; pages_of(sum_of(&alice, first, 128)) > 100; i++) {
        first[0] = (int32_t) i;
    }
    assert_true(put_whole(s, &alice, first, 128));
    for (i = 0; i < 20; i++) {
        tokens_of_text(i, 128, tokens);
        assert_true(put_whole(s, &alice, tokens, 128));
        assert_int_equal(get_whole(s, &alice, first, 128, 0), 128);
        n = count_files(&p);
        assert_true(bytes_of_files <= c.limit);
        tr_store_stats(s, &stats);
        assert_int_equal(stats.files, n);
    }
    assert_true(n < 20);
    assert_int_equal(get_whole(s, &alice, tokens, 128, 0), 128);
    tokens_of_text(0, 128, tokens);
    assert_int_equal(get_whole(s, &alice, tokens, 128, 0), 0);
    tr_store_close(s);
    c.limit = 1 << 20; /* less from now on: the files go at start */
    s = store_open(&c);
    for (i = 0; pages_of(sum_of(&alice, tokens, 128)) < 70; i++) {
        tokens[0] = (int32_t) i; /* 70 pages are more than a mebibyte */
    }
    assert_false(put_whole(s, &alice, tokens, 128));
    count_files(&p);
    assert_true(bytes_of_files <= c.limit);
    tr_store_close(s);
    place_free(&p);
}

static void
age(const place_t *p, const char *name)
{
    struct timespec hours_ago[2] = { { time(NULL) - 7200, 0 },
                                     { time(NULL) - 7200, 0 } };
    char path[400];

    place_path(p, name, path);
    assert_int_equal(utimensat(AT_FDCWD, path, hours_ago, 0), 0);
}

/* What was not used for the TTL is not read, and goes: when it is looked for,
 * when another file is written, and when nothing happens. */
static void
too_old(void **unused)
{
    place_t p;
    tr_store_config_t c;
    tr_store_t *s;
    tr_store_stats_t stats;
    int32_t old[200], new[200];
    uint32_t spent = 0;

    (void) unused;
    place_make(&p);
    c = store_config(&p);
    c.ttl_us = 3600ull * 1000000;
    s = store_open(&c);
    tokens_of_text(1, 200, old);
    tokens_of_text(2, 200, new);
    assert_true(put_whole(s, &alice, old, 200));
    assert_int_equal(get_whole(s, &alice, old, 200, 0), 200);
    place_each(&p, age);
    assert_int_equal(get_whole(s, &alice, old, 200, 0), 0);
    assert_int_equal(count_files(&p), 0); /* all its names were asked for */

    assert_true(put_whole(s, &alice, old, 200));
    place_each(&p, age);
    assert_true(put_whole(s, &alice, new, 200));
    assert_int_equal(count_files(&p), 1);
    assert_int_equal(get_whole(s, &alice, new, 200, 0), 200);
    tr_store_close(s);

    c.ttl_us = 0; /* they stay */
    s = store_open(&c);
    place_each(&p, age);
    assert_int_equal(get_whole(s, &alice, new, 200, 0), 200);
    tr_store_close(s);

    c.ttl_us = 50000;
    s = store_open(&c);
    assert_true(put_whole(s, &alice, old, 200));
    do {
        breathe(&spent);
        tr_store_stats(s, &stats);
    } while (stats.files != 0);
    assert_int_equal(count_files(&p), 0);
    tr_store_close(s);
    place_free(&p);
}

/* ---- given up ----------------------------------------------------------- */

static void
give_up_put(tr_store_t *s, const int32_t *tokens, uint32_t n, uint32_t pieces)
{
    uint32_t at = 0, spent = 0;
    uint64_t sum = put_begin(s, &alice, tokens, n);

    while (pieces != 0 && !tr_store_put_idle(s)) {
        uint32_t before = at;

        put_piece(s, sum, &at);
        pieces -= at != before;
        if (at == pages_of(sum)) {
            break;
        }
        breathe(&spent);
    }
    if (at == pages_of(sum)) { /* it will be written */
        while (!tr_store_put_idle(s)) {
            breathe(&spent);
        }
        return;
    }
    tr_store_put_stop(s);
    while (!tr_store_put_idle(s)) {
        breathe(&spent);
    }
}

static void
give_up_get(tr_store_t *s, const int32_t *tokens, uint32_t n, uint32_t pieces)
{
    uint32_t at = 0, spent = 0;
    bool go = random_below(2) != 0;

    assert_true(tr_store_get(s, &alice, a_policy, tokens, n, 0));
    if (random_below(4) == 0) { /* while it looks */
        tr_store_get_stop(s);
    } else {
        while (tr_store_get_state(s) == TR_STORE_LOOKING) {
            breathe(&spent);
        }
        if (tr_store_get_state(s) == TR_STORE_FOUND && go) {
            tr_store_get_go(s);
        }
        while (pieces != 0 && tr_store_get_state(s) == TR_STORE_LOADING) {
            const uint8_t *piece = tr_store_get_piece(s);

            if (piece != NULL) {
                check_piece(s, piece, &at);
                tr_store_get_taken(s);
                pieces--;
            }
            breathe(&spent);
        }
        if (tr_store_get_state(s) == TR_STORE_FOUND
            || tr_store_get_state(s) == TR_STORE_LOADING) {
            tr_store_get_stop(s);
        }
    }
    for (;;) {
        tr_store_get_t state = tr_store_get_state(s);

        if (state == TR_STORE_IDLE) {
            return;
        }
        if (state == TR_STORE_NONE || state == TR_STORE_DONE) {
            tr_store_get_over(s);
            return;
        }
        assert_int_not_equal(state, TR_STORE_FAILED);
        breathe(&spent);
    }
}

static _Atomic uint32_t wakes;

static void
wake(void *arg)
{
    *(_Atomic uint32_t *) arg += 1;
}

/* Jobs end at any time; then the next one is as good as the first. */
static void
given_up(void **unused)
{
    place_t p;
    tr_store_config_t c;
    tr_store_t *s;
    tr_store_stats_t stats;
    int32_t tokens[LONGEST];

    (void) unused;
    random_state = 5;
    place_make(&p);
    c = store_config(&p);
    c.limit = 30 << 20;
    s = store_open(&c);
    tr_store_wakes(s, wake, &wakes);
    for (uint32_t i = 0; i < 150; i++) {
        uint32_t n = 64 + random_below(400), text = random_below(12);

        tokens_of_text(text, LONGEST, tokens);
        switch (random_below(4)) {
        case 0:
            give_up_put(s, tokens, n, random_below(4));
            break;
        case 1:
            give_up_get(s, tokens, n, random_below(4));
            break;
        case 2:
            assert_true(put_whole(s, &alice, tokens, n));
            assert_int_equal(get_whole(s, &alice, tokens, n, 0), n);
            break;
        default:
            get_whole(s, &alice, tokens, n, 0);
        }
    }
    tr_store_stats(s, &stats);
    assert_int_equal(stats.failed, 0);
    assert_true(wakes > 150);
    count_files(&p); /* nothing half-written is left */
    /* and one ends while both are under way */
    tokens_of_text(77, LONGEST, tokens);
    assert_true(put_whole(s, &alice, tokens, 900));
    assert_true(tr_store_get(s, &alice, a_policy, tokens, 900, 0));
    put_begin(s, &alice, tokens, 999);
    tr_store_close(s);
    count_files(&p);
    place_free(&p);
}

/* ---- two engines -------------------------------------------------------- */

typedef struct {
    tr_store_t *s;
    bool putting;
    uint64_t sum;
    uint32_t at, got;
} engine_t;

static void
engine_turn(engine_t *e, uint32_t *found)
{
    int32_t tokens[LONGEST];
    uint32_t n = 64 + random_below(300);
    const uint8_t *piece;

    tokens_of_text(random_below(10), LONGEST, tokens);
    if (e->putting) {
        put_piece(e->s, e->sum, &e->at);
        e->putting = !tr_store_put_idle(e->s);
    } else {
        e->at = 0;
        e->sum = put_begin(e->s, &alice, tokens, n);
        e->putting = true;
    }
    switch (tr_store_get_state(e->s)) {
    case TR_STORE_IDLE:
        e->got = 0;
        assert_true(tr_store_get(e->s, &alice, a_policy, tokens, n, 0));
        break;
    case TR_STORE_FOUND:
        check_head(tr_store_got(e->s), &alice);
        tr_store_get_go(e->s);
        break;
    case TR_STORE_LOADING:
        piece = tr_store_get_piece(e->s);
        if (piece != NULL) {
            check_piece(e->s, piece, &e->got);
            tr_store_get_taken(e->s);
        }
        break;
    case TR_STORE_DONE:
        assert_int_equal(e->got, tr_store_got(e->s)->n_pages);
        ++*found;
        tr_store_get_over(e->s);
        break;
    case TR_STORE_NONE:
        tr_store_get_over(e->s);
        break;
    default:
        assert_int_equal(tr_store_get_state(e->s), TR_STORE_LOOKING);
    }
}

/* Both write and read at once, and each evicts what the other one reads. */
static void
shared_directory(void **unused)
{
    place_t p;
    tr_store_config_t c;
    engine_t e[2] = { 0 };
    tr_store_stats_t stats[2];
    int32_t tokens[200];
    uint32_t found[2] = { 0 }, turns;

    (void) unused;
    random_state = 6;
    place_make(&p);
    c = store_config(&p);
    c.limit = 8 << 20;
    e[0].s = store_open(&c);
    e[1].s = store_open(&c);
    tokens_of_text(200, 200, tokens);
    assert_true(put_whole(e[0].s, &alice, tokens, 200));
    assert_int_equal(get_whole(e[1].s, &alice, tokens, 200, 0), 200);
    for (turns = 0; turns < 400000 && (found[0] < 25 || found[1] < 25);
         turns++) {
        engine_turn(&e[0], &found[0]);
        engine_turn(&e[1], &found[1]);
        sched_yield();
    }
    assert_true(found[0] >= 25 && found[1] >= 25);
    for (uint32_t i = 0; i < 2; i++) {
        tr_store_stats(e[i].s, &stats[i]);
        assert_int_equal(stats[i].failed, 0);
        tr_store_close(e[i].s);
    }
    count_files(&p);
    place_free(&p);
}

/* ---- several pieces at once --------------------------------------------- */

#define PIECE (PAGE_BYTES * 64u)

/* As many as there is room for are asked for, filled from the last to the first,
 * and are full. */
static uint32_t
put_some(tr_store_t *s, uint64_t sum, uint32_t *at, uint32_t buffers,
         const uint8_t *memory)
{
    uint8_t *out[TR_STORE_BUFFERS_MAX];
    uint32_t n = 0, first = *at;

    while (n < buffers && (out[n] = tr_store_put_room(s)) != NULL) {
        assert_ptr_equal(out[n],
                         memory + (first / 64 + n) % buffers * (size_t) PIECE);
        n++;
    }
    assert_true(n < buffers || tr_store_put_room(s) == NULL);
    for (uint32_t i = n; i-- != 0;) {
        for (uint32_t k = 0; k < 64 && first + i * 64 + k < pages_of(sum);
             k++) {
            fill_page(sum, first + i * 64 + k,
                      out[i] + (size_t) k * PAGE_BYTES);
        }
    }
    for (uint32_t i = 0; i < n; i++) {
        tr_store_put_full(s);
    }
    *at += n * 64;
    return n;
}

/* All pieces that come without one being taken; then they are. */
static uint32_t
get_some(tr_store_t *s, uint32_t *at, uint32_t pieces, uint32_t buffers)
{
    const uint8_t *in[TR_STORE_BUFFERS_MAX];
    uint32_t n = 0, spent = 0, left = pieces - *at / 64;
    uint32_t most = left < buffers ? left : buffers;

    while (n < most) {
        in[n] = tr_store_get_piece(s);
        if (in[n] != NULL) {
            n++;
        } else {
            breathe(&spent);
        }
    }
    assert_null(tr_store_get_piece(s));
    for (uint32_t i = 0; i < n; i++) {
        check_piece(s, in[i], at);
    }
    for (uint32_t i = 0; i < n; i++) {
        assert_int_equal(tr_store_get_state(s), TR_STORE_LOADING);
        tr_store_get_taken(s);
    }
    return n;
}

static uint32_t pages_there;

/* A byte of an item's second piece. */
static void
damage(const place_t *p, const char *name)
{
    static uint64_t done; /* names are links */
    char path[400];
    struct stat st;
    uint8_t byte;
    int fd;

    place_path(p, name, path);
    fd = open(path, O_RDWR);
    assert_int_equal(fstat(fd, &st), 0);
    if (is_item(name) && st.st_ino != done) {
        off_t at = st.st_size - (off_t) pages_there * PAGE_BYTES + PIECE + 5;

        done = st.st_ino;
        assert_int_equal(pread(fd, &byte, 1, at), 1);
        byte ^= 1;
        assert_int_equal(pwrite(fd, &byte, 1, at), 1);
    }
    close(fd);
}

/* While one reader finds that out, others may wait for the step loop, which waits
 * for that piece. */
static void
damaged_among_several(void **unused)
{
    place_t p;
    tr_store_config_t c;
    int32_t tokens[LONGEST];
    uint32_t i = 0;
    uint64_t sum;
    tr_store_t *s;

    (void) unused;
    random_state = 8;
    pages_most = 600;
    place_make(&p);
    c = store_config(&p);
    c.max_pages = pages_most;
    s = store_open(&c);
    do {
        tokens_of_text(400 + i++, LONGEST, tokens);
        sum = sum_of(&alice, tokens, 300);
    } while (pages_of(sum) < 400);
    assert_true(put_whole(s, &alice, tokens, 300));
    pages_there = pages_of(sum);
    place_each(&p, damage);
    assert_int_equal(get_whole(s, &alice, tokens, 300, 0), 0);
    assert_int_equal(count_files(&p), 0);
    assert_true(put_whole(s, &alice, tokens, 300));
    assert_int_equal(get_whole(s, &alice, tokens, 300, 0), 300);
    tr_store_close(s);
    place_free(&p);
    pages_most = PAGES_MOST;
}

/* Who copies by a device asks for the next piece before the last one is there;
 * they are in its memory. */
static void
several_at_once(void **unused)
{
    static const uint32_t buffers[] = { 2, 3, TR_STORE_BUFFERS_MAX },
                          readers[] = { 2, 1, 4 };
    place_t p;
    tr_store_config_t c;
    int32_t tokens[LONGEST];

    (void) unused;
    random_state = 7;
    pages_most = 600;
    place_make(&p);
    c = store_config(&p);
    c.max_pages = pages_most;
    for (uint32_t i = 0; i < 3; i++) {
        size_t bytes = 2ul * buffers[i] * PIECE;
        uint32_t most = 0, at, spent = 0;
        tr_store_t *s;

        c.buffers = buffers[i];
        c.readers = readers[i];
        c.memory = malloc(bytes);
        assert_non_null(c.memory);
        s = store_open(&c);
        for (uint32_t k = 0; k < 8; k++) {
            uint32_t n = 64 + random_below(LONGEST - 64), pieces;
            uint64_t sum;

            tokens_of_text(300 + 20 * i + k, LONGEST, tokens);
            sum = put_begin(s, &alice, tokens, n);
            pieces = (pages_of(sum) + 63) / 64;
            for (at = 0; !tr_store_put_idle(s);) {
                uint32_t some = put_some(s, sum, &at, c.buffers, c.memory);

                most = some > most ? some : most;
                breathe(&spent);
            }
            assert_true(tr_store_get(s, &alice, a_policy, tokens, n, 0));
            while (tr_store_get_state(s) == TR_STORE_LOOKING) {
                breathe(&spent);
            }
            assert_int_equal(tr_store_get_state(s), TR_STORE_FOUND);
            check_head(tr_store_got(s), &alice);
            tr_store_get_go(s);
            for (at = 0; tr_store_get_state(s) == TR_STORE_LOADING;) {
                get_some(s, &at, pieces, c.buffers);
            }
            assert_int_equal(tr_store_get_state(s), TR_STORE_DONE);
            tr_store_get_over(s);
        }
        assert_true(most >= 2);
        tr_store_close(s);
        free(c.memory);
    }
    pages_most = PAGES_MOST;
    place_free(&p);
}

/* ---- directories -------------------------------------------------------- */

static void
refused(const tr_store_config_t *c, const char *why)
{
    tr_store_t *s;
    tr_error_t err;

    assert_int_not_equal(tr_store_open(c, &s, &err), TR_OK);
    assert_null(s);
    assert_string_equal(err.param, "cache_dir");
    if (strstr(err.text, why) == NULL || strstr(err.text, c->dir) == NULL) {
        fail_msg("%s lacks %s", err.text, why);
    }
}

static void
directories(void **unused)
{
    place_t p;
    tr_store_config_t c;
    char path[400];
    int fd;

    (void) unused;
    place_make(&p);
    c = store_config(&p);
    place_path(&p, "key", path);
    c.dir = path; /* its parent is not there */
    refused(&c, "cannot make it: No such file");
    c.dir = p.dir;
    fd = open(p.dir, O_CREAT | O_WRONLY, 0600);
    refused(&c, "cannot open it: Not a directory");
    close(fd);
    unlink(p.dir);
    assert_int_equal(mkdir(p.dir, 0700), 0);
    assert_int_equal(chmod(p.dir, 0750), 0);
    refused(&c, "mode 0750, expected");
    assert_int_equal(chmod(p.dir, 0700), 0);
    assert_int_equal(symlink("/dev/urandom", path), 0);
    refused(&c, "cannot read its file key");
    unlink(path);
    assert_int_equal(mkfifo(path, 0600), 0); /* is not waited for */
    refused(&c, "does not have 16 bytes");
    unlink(path);
    for (size_t n = 0; n < 33; n++) {
        fd = open(path, O_CREAT | O_WRONLY | O_TRUNC, 0600);
        assert_int_equal(write(fd, "0123456789abcdef0123456789abcdef0", n), n);
        close(fd);
        if (n == 16) {
            tr_store_close(store_open(&c));
        } else {
            refused(&c, "does not have 16 bytes");
        }
    }
    place_free(&p);
}

int
main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(siphash),
                                        cmocka_unit_test(comes_back),
                                        cmocka_unit_test(whose_it_is),
                                        cmocka_unit_test(newest_stays),
                                        cmocka_unit_test(quota),
                                        cmocka_unit_test(too_old),
                                        cmocka_unit_test(given_up),
                                        cmocka_unit_test(shared_directory),
                                        cmocka_unit_test(several_at_once),
                                        cmocka_unit_test(damaged_among_several),
                                        cmocka_unit_test(directories) };

    alice = key_of("alice", 5);
    return cmocka_run_group_tests_name("store", tests, NULL, NULL);
}
