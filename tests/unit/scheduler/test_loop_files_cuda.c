/*
 * Prefixes in files on a device (kv_device_files.c), by the engine's own loop and
 * a real model: what another engine reads is token by token what this one had;
 * a restart finds as many tokens as there are, to the token, and nothing of other
 * keys, policies or damaged files; and many at once, in a pool that is too small,
 * with aborts and pauses, while files come and go.
 *
 *   TR_PREFIX_OPS=N   files of each policy (default 8)
 *   TR_CUDA_LIBRARY   a GPU's library instead of the software device
 *   test_loop_files_cuda restart   one of them
 */
#include "tests/unit/fixtures/kept_cuda_fixture.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>

static ask_t asks[REQUESTS];
static const tr_prefix_key_t nobodys;

/* ---- directories --------------------------------------------------------- */

/* Calls f for each file in it; how many items there are. */
static uint32_t
each_file(const char *dir, void (*f)(const char *path))
{
    DIR *d = opendir(dir);
    struct dirent *e;
    char path[400];
    uint32_t n = 0;

    assert_non_null(d);
    while ((e = readdir(d)) != NULL) {
        bool item = strlen(e->d_name) == 2 * TR_STORE_ID_BYTES;

        snprintf(path, sizeof(path), "%s/%s", dir, e->d_name);
        if (e->d_name[0] == '.' && e->d_name[1] != 't') {
            continue;
        }
        n += item;
        if (f != NULL) {
            f(path);
        }
    }
    closedir(d);
    return n;
}

static void
remove_file(const char *path)
{
    assert_int_equal(unlink(path), 0);
}

static void
remove_directory(const char *dir)
{
    each_file(dir, remove_file);
    assert_int_equal(rmdir(dir), 0);
}

/* ---- token by token ------------------------------------------------------ */

/* One more prefix is kept, a cut of another, with so many tokens at its end that
 * nobody knows, 0 or 1; n: those that are known.  Its slot. */
static int32_t
keep_one(seen_t *seen, uint64_t *state, uint32_t unknown, int32_t *tokens,
         uint32_t *n)
{
    tr_executor_t *e = &seen->x->base;
    tr_kv_cache_t *kv = e->kv;
    const tr_cuda_history_t *h = &seen->x->model->history;
    uint32_t text;
    tr_kv_found_t found;
    int32_t slot;

    tr_kv_time(kv, kv->reuse->now + 1);
    do { /* a short one may take more pages than at 16 bits */
        text = rng_below(state, 4);
        *n = 66 + rng_below(state, 235);
        for (uint32_t k = 0; k < *n; k++) {
            tokens[k] = (int32_t) (300 + (k * 37 + text * 101) % 3000);
        }
        tr_kv_find(kv, NULL, &nobodys, tokens, *n, &found);
    } while (found.tokens == 0);
    assert_int_equal(found.tokens, *n);
    slot = tr_kv_open(kv, NULL);
    assert_true(slot >= 0);
    assert_int_equal(tr_kv_adopt(kv, slot, &nobodys, &found), TR_OK);
    settle(e);
    *n -= unknown;
    tokens[*n - 1] = (int32_t) (4000 + rng_below(state, 9000));
    seen->history[0] = tokens[*n - 1];
    assert_int_equal(seen->x->cuda->copy(&seen->x->stream,
                                         h->token + (size_t) slot * h->len + *n
                                             - 1,
                                         seen->history, 4),
                     0);
    assert_int_equal(seen->x->cuda->stream_wait(&seen->x->stream), 0);
    tr_kv_keep(kv, slot, tokens, *n, true);
    tr_kv_close(kv, slot);
    return slot;
}

/* Turns of the step loop, without requests. */
static void
idle_turn(tr_executor_t *e)
{
    const tr_batch_t none = { NULL, 0, 0 };

    if (!tr_kv_store_turn(e->kv)) {
        usleep(20);
    }
    if (!tr_kv_settled(e->kv)) {
        assert_int_equal(tr_executor_run(e, &none), TR_OK);
    }
}

static void
write_one(tr_executor_t *e, uint64_t before)
{
    tr_store_stats_t s;

    do {
        idle_turn(e);
        tr_kv_store_stats(e->kv, &s);
    } while (s.stored == before && s.failed + s.skipped == 0);
    assert_int_equal(s.failed + s.skipped, 0);
}

/* The other engine reads it, or is told to give it up at some time. */
static bool
read_one(tr_executor_t *e, const int32_t *tokens, uint32_t n, uint32_t patience)
{
    tr_kv_cache_t *kv = e->kv;
    uint32_t spent = 0, turns = 0;
    bool gave = false;

    while (tr_kv_kept_evict(kv, UINT64_MAX)) {
    }
    tr_kv_time(kv, kv->reuse->now + 1);
    /* what was given up before may not be over yet */
    while (tr_kv_store_look(kv, tokens, NULL, &nobodys, tokens, n, 0)
           != TR_KV_LOOK_ASKED) {
        assert_true(spent++ < 100000);
        idle_turn(e);
    }
    while (tr_kv_store_looks(kv, tokens)) {
        idle_turn(e);
        if (turns++ >= patience) {
            gave = tr_kv_store_yield(kv) || gave;
        }
        assert_true(tr_kv_sound(kv));
    }
    settle(e);
    assert_int_equal(tr_kv_free_pages(kv), tr_kv_pages(kv));
    return !gave;
}

static void
compare_one(seen_t *a, seen_t *b, const int32_t *tokens, uint32_t n)
{
    tr_kv_cache_t *was = a->x->base.kv, *is = b->x->base.kv;
    tr_kv_found_t from, to;
    uint32_t base;

    tr_kv_find(was, NULL, &nobodys, tokens, n, &from);
    tr_kv_find(is, NULL, &nobodys, tokens, n, &to);
    assert_int_equal(from.tokens, n);
    assert_int_equal(to.tokens, n);
    assert_true(!from.cut && !to.cut);
    look(a);
    look(b);
    base = a->kv.m.seq[from.kept - 1].base;
    assert_true(base == n || base == n + 1);
    assert_int_equal(b->kv.m.seq[to.kept - 1].base, base);
    compare_slots(&a->kv, (int32_t) from.kept - 1, &b->kv,
                  (int32_t) to.kept - 1, base, base);
    compare_history(b, (int32_t) to.kept - 1, tokens, n);
    tr_kv_drop_found(was, &from);
    tr_kv_drop_found(is, &to);
}

static void
same_of(const char *spec)
{
    const uint8_t identity[TR_STORE_ID_BYTES] = "pocket";
    const char *ops = getenv("TR_PREFIX_OPS");
    uint32_t files = ops != NULL ? (uint32_t) strtoul(ops, NULL, 10) : 8;
    char dir[] = "/tmp/tokenring-files-XXXXXX";
    tr_config_t c = cuda_settings(spec);
    uint64_t state = seed + 11;
    uint32_t came = 0, unknown = 0, n;
    fixture_loop_t l[2];
    int32_t tokens[600];
    seen_t seen[2];
    tr_error_t err;

    assert_non_null(mkdtemp(dir));
    for (uint32_t i = 0; i < 2; i++) {
        start_with(&l[i], &c, false);
        leave_prefixes(&l[i], asks, i == 0 ? 4 : 0);
        settle(l[i].executor);
        assert_int_equal(tr_kv_store_open(l[i].executor->kv, dir, 1 << 30, 0,
                                          identity, &err),
                         TR_OK);
        seen_open(&seen[i], l[i].executor);
    }
    for (uint32_t i = 0; i < files; i++) {
        int32_t slot = keep_one(&seen[0], &state, i % 2, tokens, &n);

        unknown += l[0].executor->kv->m.seq[slot].base > n;
        write_one(l[0].executor, i);
        if (read_one(l[1].executor, tokens, n,
                     i % 4 == 3 ? rng_below(&state, 12) : UINT32_MAX)) {
            compare_one(&seen[0], &seen[1], tokens, n);
            came++;
        }
    }
    print_message("%s: %u of %u came from files, %u with a token more\n", spec,
                  came, files, unknown);
    assert_true(came >= files / 2 && unknown == files / 2);
    for (uint32_t i = 0; i < 2; i++) {
        seen_close(&seen[i]);
        tr_kv_store_close(l[i].executor->kv);
        end_engine(&l[i]);
    }
    remove_directory(dir);
}

static void
same(void **unused)
{
    (void) unused;
    same_of("diffkv:alpha_high=12,alpha_low=0");
    same_of("diffkv:levels=8/8+8/4+4/2,alpha_high=2,alpha_low=0,sinks=4");
    same_of("uniform:levels=8/4,window=32");
    same_of("int4");
}

/* ---- restarts ------------------------------------------------------------ */

/* A request to an engine that has just started, and ends behind it; what it
 * did not compute. */
static uint32_t
ask_new(const char *spec, const char *dir, uint32_t i, tr_store_stats_t *files)
{
    tr_config_t c = cuda_settings(spec);
    fixture_loop_t l;
    uint32_t n;

    snprintf(c.cache_dir, sizeof(c.cache_dir), "%s", dir);
    start_with(&l, &c, false);
    memset(asks[i].together, 0, sizeof(asks[i].together));
    n = cached(&l, asks, i);
    assert_int_equal(atomic_load(&l.counters.prefix_tokens), n);
    assert_null(tr_loop_stop(l.loop));
    *files = (tr_store_stats_t){
        .stored = atomic_load(&l.counters.store_stored),
        .loaded = atomic_load(&l.counters.store_loaded),
        .failed = atomic_load(&l.counters.store_failed),
    };
    end_engine(&l);
    return n;
}

static struct {
    ino_t of[100];
    uint32_t n;
} spoiled;

/* Once, however many names it has. */
static void
spoil(const char *path)
{
    int fd = open(path, O_RDWR);
    struct stat st;
    uint8_t byte;

    assert_int_equal(fstat(fd, &st), 0);
    for (uint32_t i = 0; i < spoiled.n; i++) {
        st.st_size = spoiled.of[i] == st.st_ino ? 0 : st.st_size;
    }
    if (st.st_size > 3000) {
        assert_true(spoiled.n < 100);
        spoiled.of[spoiled.n++] = st.st_ino;
        assert_int_equal(pread(fd, &byte, 1, st.st_size - 3000), 1);
        byte ^= 0x40;
        assert_int_equal(pwrite(fd, &byte, 1, st.st_size - 3000), 1);
    }
    close(fd);
}

static void
restart_of(const char *spec, const char *other)
{
    char dir[] = "/tmp/tokenring-files-XXXXXX";
    bool full = strcmp(spec, "full") == 0;
    tr_store_stats_t files;

    assert_non_null(mkdtemp(dir));
    memset(asks, 0, sizeof(asks));
    for (uint32_t i = 0; i < 8; i++) {
        asks[i].prompt_len = asks[i].same = 300;
        asks[i].n = 1;
        asks[i].reuse = true;
        asks[i].params = plain(1, 30);
    }
    assert_int_equal(ask_new(spec, dir, 0, &files), 0);
    assert_true(each_file(dir, NULL) != 0);
    assert_int_equal(ask_new(spec, dir, 1, &files), 299);
    assert_int_equal(files.loaded, 1);
    assert_true(!full
                || same_answer(&asks[0].together[0], &asks[1].together[0]));
    asks[2].same = 200; /* a cut */
    assert_int_equal(ask_new(spec, dir, 2, &files), 200);
    asks[3].key.len = 1; /* somebody else's */
    assert_int_equal(ask_new(spec, dir, 3, &files), 0);
    asks[4].reuse = false;
    assert_int_equal(ask_new(spec, dir, 4, &files), 0);
    assert_int_equal(ask_new(other, dir, 5, &files), 0);
    assert_int_equal(files.loaded + files.failed, 0);
    spoiled.n = 0;
    each_file(dir, spoil);
    assert_int_equal(ask_new(spec, dir, 6, &files), 0);
    assert_true(files.loaded == 0 && files.failed != 0);
    assert_true(!full
                || same_answer(&asks[0].together[0], &asks[6].together[0]));
    /* what was written in its place is good */
    assert_int_equal(ask_new(spec, dir, 7, &files), 299);
    assert_int_equal(files.failed, 0);
    remove_directory(dir);
}

static void
restart(void **unused)
{
    (void) unused;
    restart_of("full", "int4");
    restart_of("diffkv:alpha_high=12,alpha_low=0", "full");
    restart_of("uniform:levels=8/4", "uniform:levels=8/8");
}

/* ---- many at once -------------------------------------------------------- */

#define CROWD 24u

/* Whether files were written while others made room; *read: how many came back,
 * for which a crowd leaves little room. */
static bool
crowd_of(const char *spec, const char *dir, uint64_t state, uint64_t *read)
{
    tr_config_t c = cuda_settings(spec);
    uint64_t stored, loaded, evicted;
    fixture_loop_t l;

    crowd_asks(asks, CROWD, 4, false, &state);
    c.kv_memory = 3 << 20;
    c.swap_memory = 64 << 20;
    c.cache_disk = 20 << 20;
    snprintf(c.cache_dir, sizeof(c.cache_dir), "%s", dir);
    start_with(&l, &c, false);
    crowd_runs(&l, asks, CROWD, &state);
    stored = atomic_load(&l.counters.store_stored);
    loaded = atomic_load(&l.counters.store_loaded);
    evicted = atomic_load(&l.counters.prefix_evicted);
    assert_int_equal(atomic_load(&l.counters.store_failed), 0);
    print_message("%s: written %llu, read %llu, evicted %llu\n", spec,
                  (unsigned long long) stored, (unsigned long long) loaded,
                  (unsigned long long) evicted);
    end_engine(&l);
    *read += loaded;
    return stored != 0 && evicted != 0;
}

static void
crowd(void **unused)
{
    static const char *const specs[] = { "full", "int4",
                                         "diffkv:alpha_high=12,alpha_low=0" };

    uint64_t read = 0;

    (void) unused;
    for (uint32_t i = 0; i < 3 || read == 0; i++) {
        char dir[] = "/tmp/tokenring-files-XXXXXX";
        uint32_t tries = 0;

        assert_true(i < 12);
        assert_non_null(mkdtemp(dir));
        while (!crowd_of(specs[i % 3], dir, seed ^ (78 + i + tries), &read)) {
            assert_true(++tries < 6);
        }
        remove_directory(dir);
    }
}

int
main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(same),
                                        cmocka_unit_test(restart),
                                        cmocka_unit_test(crowd) };

    cmocka_set_test_filter(argc > 1 ? argv[1] : "*");
    return cmocka_run_group_tests_name("loop_files_cuda", tests, setup,
                                       teardown);
}
