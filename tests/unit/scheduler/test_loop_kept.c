/*
 * What a copy of a compressed prefix holds, token by token: requests to a real
 * model leave their caches behind, and cuts of these, and of cuts, at any
 * position, have in every head exactly the tokens in front of it, with the
 * codes, metadata and level that they had, and scores for the queries that are
 * left.  The cache is sound after each, and at the end no page is missing.  What
 * another engine reads from a file is token by token what this one wrote.  Answers
 * are the same whether pages are shared or copied.
 *
 *   TR_PREFIX_OPS=N   operations of each policy (default 80)
 */
#include "tests/unit/fixtures/policy_fixture.h"
#include "tests/unit/fixtures/kept_fixture.h"

#include <dirent.h>

static ask_t asks[REQUESTS];

static uint32_t
operations(void)
{
    const char *n = getenv("TR_PREFIX_OPS");
    uint64_t all = n != NULL ? strtoull(n, NULL, 10) : 80;

    return (uint32_t) (all > 5000 ? 5000 : all); /* each is long */
}

/* One prefix is found, cut, compared, and kept or dropped. */
static void
cut_once(tr_kv_cache_t *kv, uint64_t *state, uint32_t *kept, uint32_t *shorter,
         uint32_t *shared)
{
    tr_prefix_key_t key = { 0 };
    int32_t tokens[600], slot;
    uint32_t text = rng_below(state, 4), n = 33 + rng_below(state, 450), k, b;
    tr_kv_found_t found, was;

    for (k = 0; k < n; k++) {
        tokens[k] = (int32_t) (300 + (k * 37 + text * 101) % 3000);
    }
    tr_kv_time(kv, kv->reuse->now + 1);
    tr_kv_find(kv, NULL, &key, tokens, n, &found);
    if (found.kept == 0) {
        return;
    }
    b = kv->m.seq[found.kept - 1].base;
    assert_true(found.tokens <= n && found.cut == (found.tokens < b));
    *shorter += found.cut;
    n = found.tokens;
    slot = tr_kv_open(kv, NULL);
    assert_true(slot >= 0);
    k = found.kept - 1;
    was = found;
    assert_int_equal(tr_kv_adopt(kv, slot, &key, &found), TR_OK);
    assert_true(tr_kv_held_pages(kv, slot) <= was.own);
    assert_true(tr_kv_borrowed_pages(kv, slot) >= was.lent);
    *shared += compare_slots(kv, (int32_t) k, kv, slot, b, n) != 0;
    if (rng_below(state, 2) == 0) {
        /* a prefix of what is kept is not kept beside it */
        tokens[n - 1] = (int32_t) (4000 + rng_below(state, 9));
        tr_kv_keep(kv, slot, tokens, n, true);
        *kept += 1;
    }
    tr_kv_close(kv, slot);
    if (rng_below(state, 16) == 0) {
        tr_kv_kept_evict(kv, UINT64_MAX);
    }
}

/* An engine whose requests have ended; with prompts, they left prefixes. */
static void
run_engine(fixture_loop_t *l, const char *spec, uint32_t prompts)
{
    tr_config_t c = settings(spec, 24 << 20, 0);

    strcpy(c.kv_reuse, "yes");
    start_with(l, &c, false);
    leave_prefixes(l, asks, prompts);
}

/* Nothing is missing. */
static void
end_engine(fixture_loop_t *l)
{
    tr_kv_cache_t *kv = l->executor->kv;

    tr_kv_store_close(kv);
    assert_int_equal(tr_kv_free_pages(kv), tr_kv_pages(kv));
    tr_kv_expire(kv, UINT64_MAX - 1);
    assert_int_equal(kv->reuse->n_kept, 0);
    assert_int_equal(kv->reuse->kept_tokens, 0);
    assert_true(tr_kv_sound(kv));
    l->executor->free(l->executor);
    writer_unmake(&l->writer, &l->peer);
    close(l->fd);
}

/* ---- files -------------------------------------------------------------- */

static const tr_prefix_key_t nobodys;

/* One more prefix is kept, a cut of another, and written. */
static uint32_t
write_one(tr_kv_cache_t *kv, uint64_t *state, int32_t *tokens)
{
    tr_store_stats_t before, after;
    tr_kv_found_t found;
    uint32_t n;
    int32_t slot;

    tr_kv_time(kv, kv->reuse->now + 1);
    for (;;) { /* a short one may take more pages than at 16 bits */
        uint32_t text = rng_below(state, 4);

        n = 65 + rng_below(state, 235);
        for (uint32_t k = 0; k < n; k++) {
            tokens[k] = (int32_t) (300 + (k * 37 + text * 101) % 3000);
        }
        tr_kv_find(kv, NULL, &nobodys, tokens, n, &found);
        if (found.tokens >= 65) {
            break;
        }
        tr_kv_drop_found(kv, &found);
    }
    n = found.tokens; /* the longest may have gone */
    slot = tr_kv_open(kv, NULL);
    assert_true(slot >= 0);
    assert_int_equal(tr_kv_adopt(kv, slot, &nobodys, &found), TR_OK);
    tokens[n - 1] = (int32_t) (4000 + rng_below(state, 9000));
    tr_kv_store_stats(kv, &before);
    tr_kv_keep(kv, slot, tokens, n, true);
    tr_kv_close(kv, slot);
    do {
        if (!tr_kv_store_turn(kv)) {
            usleep(20);
        }
        tr_kv_store_stats(kv, &after);
    } while (after.stored == before.stored && after.failed == 0);
    assert_int_equal(after.failed + after.skipped, 0);
    return n;
}

/* The other engine reads it, or is told to give it up. */
static bool
read_one(tr_kv_cache_t *kv, const int32_t *tokens, uint32_t n, bool give_up)
{
    bool gave = false;
    uint32_t spent = 0;

    while (tr_kv_kept_evict(kv, UINT64_MAX)) {
    }
    tr_kv_time(kv, kv->reuse->now + 1);
    /* what was given up before may not be over yet */
    while (tr_kv_store_look(kv, tokens, NULL, &nobodys, tokens, n, 0)
           != TR_KV_LOOK_ASKED) {
        assert_true(spent++ < 100000);
        tr_kv_store_turn(kv);
        usleep(20);
    }
    while (tr_kv_store_looks(kv, tokens)) {
        if (!tr_kv_store_turn(kv)) {
            usleep(20);
        }
        gave = give_up && tr_kv_store_yield(kv);
        assert_int_equal(tr_kv_free_pages(kv), tr_kv_pages(kv));
        assert_true(tr_kv_sound(kv));
    }
    return !gave;
}

/* Another engine, with the same directory. */
static void
files_of(const char *spec, tr_kv_cache_t *a)
{
    const uint8_t identity[TR_STORE_ID_BYTES] = "pocket";
    char dir[] = "/tmp/tokenring-kept-XXXXXX", path[400];
    uint64_t state = seed + 10;
    uint32_t i, came = 0, n;
    fixture_loop_t l;
    tr_kv_cache_t *b;
    tr_kv_found_t was, is;
    int32_t tokens[600];
    struct dirent *e;
    tr_error_t err;
    DIR *d;

    assert_non_null(mkdtemp(dir));
    run_engine(&l, spec, 0);
    b = l.executor->kv;
    assert_int_equal(tr_kv_store_open(a, dir, 1 << 30, 0, identity, &err),
                     TR_OK);
    assert_int_equal(tr_kv_store_open(b, dir, 1 << 30, 0, identity, &err),
                     TR_OK);
    for (i = 0; i < operations() / 6; i++) {
        n = write_one(a, &state, tokens);
        if (!read_one(b, tokens, n, i % 5 == 4)) {
            continue;
        }
        tr_kv_find(a, NULL, &nobodys, tokens, n, &was);
        tr_kv_find(b, NULL, &nobodys, tokens, n, &is);
        assert_int_equal(was.tokens, n);
        assert_int_equal(is.tokens, n);
        compare_slots(a, (int32_t) was.kept - 1, b, (int32_t) is.kept - 1, n,
                      n);
        tr_kv_drop_found(a, &was);
        tr_kv_drop_found(b, &is);
        came++;
    }
    print_message("%s: %u came from files\n", spec, came);
    assert_true(came > operations() / 12);
    tr_kv_store_close(a);
    end_engine(&l);
    for (d = opendir(dir); (e = readdir(d)) != NULL;) {
        snprintf(path, sizeof(path), "%s/%s", dir, e->d_name);
        (void) unlink(path);
    }
    closedir(d);
    assert_int_equal(rmdir(dir), 0);
}

/* ---- all of a policy ---------------------------------------------------- */

static void
cuts_of(const char *spec)
{
    uint64_t state = seed + 9;
    uint32_t kept = 0, shorter = 0, shared = 0, i;
    fixture_loop_t l;

    run_engine(&l, spec, 4);
    files_of(spec, l.executor->kv);
    for (i = 0; i < operations(); i++) {
        cut_once(l.executor->kv, &state, &kept, &shorter, &shared);
        assert_true(tr_kv_sound(l.executor->kv));
    }
    print_message("%s: kept %u, cut %u, sharing pages %u\n", spec, kept,
                  shorter, shared);
    assert_true(kept > 10 && shorter > 10 && shared > 10);
    end_engine(&l);
}

static void
cuts(void **unused)
{
    (void) unused;
    cuts_of("diffkv:alpha_high=12,alpha_low=0");
    cuts_of("diffkv:levels=8/8+8/4+4/2,alpha_high=2,alpha_low=0,sinks=4");
    cuts_of("uniform:levels=8/4,window=32");
    cuts_of("int4");
}

/* ---- shared, or copied -------------------------------------------------- */

/* An answer behind 190 tokens of what a prompt of so many has left. */
static answer_t
answer_behind(const char *spec, uint32_t before, bool shares)
{
    tr_config_t c = settings(spec, 24 << 20, 0);
    fixture_loop_t l;

    strcpy(c.kv_reuse, "yes");
    start_with(&l, &c, false);
    memset(asks, 0, sizeof(asks));
    for (uint32_t i = 0; i < 2; i++) {
        asks[i].prompt_len = i == 0 ? before : 230;
        asks[i].same = i == 0 ? before : 190;
        asks[i].n = 1;
        asks[i].reuse = true;
        asks[i].params = plain(i, 40);
        asks[i].params.logprobs = 2;
        assert_int_equal(cached(&l, asks, i), i == 0 ? 0 : 190);
    }
    assert_int_equal(l.executor->kv->reuse->n_lenders, shares);
    assert_null(tr_loop_stop(l.loop));
    end_engine(&l);
    return asks[1].together[0];
}

/* Where all tokens have one level an answer has the same bits, logprobs included,
 * whether pages are shared or, of a kept prefix that is mostly something else,
 * copied. */
static void
same_answers_of(const char *spec)
{
    answer_t shared = answer_behind(spec, 210, true);
    answer_t copied = answer_behind(spec, 500, false);

    assert_true(shared.len != 0 && shared.len == copied.len);
    assert_memory_equal(shared.text, copied.text, shared.len);
    assert_true(shared.logprobs == copied.logprobs);
}

static void
same_answers(void **unused)
{
    (void) unused;
    same_answers_of("uniform:levels=8/4");
    same_answers_of("uniform:levels=8/4,window=32,sinks=4");
    same_answers_of("int4");
}

/* What was found is not charged for as if it was computed. */
static void
few_pages(void **unused)
{
    (void) unused;
    find_in_few_pages(settings("uniform:levels=8/4", 32 << 20, 0), asks);
    find_in_few_pages(settings("int4", 32 << 20, 0), asks);
}

int
main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(cuts),
                                        cmocka_unit_test(few_pages),
                                        cmocka_unit_test(same_answers) };

    return cmocka_run_group_tests_name("loop_kept", tests, setup, teardown);
}
