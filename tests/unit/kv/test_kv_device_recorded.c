/*
 * What KV caches did when it was recorded, they still do: random sequences
 * come, compute prompts in chunks, are compressed, generate, take further
 * turns, fork, go out and come in, and are closed, in pools so small that they
 * stall, and the digest of all that can be seen on the way (kv_recorder.h) is
 * the one in tests/unit/fixtures/kv/kv_recorded.txt: on the host, alone and with
 * helpers, and on a device in software.
 *
 *   TR_KV_RECORD=FILE   writes the digests there instead
 */
#include "tests/unit/fixtures/kv/kv_recorder.h"

#include <unistd.h>

#include "kernels/thread_pool.h"

#include "engine/config/log.h"
#include "kernels/kernels.h"

#define SEEDS 2u
#define RECORDED "tests/unit/fixtures/kv/kv_recorded.txt"

/* ---- create ------------------------------------------------------------- */

/* Thresholds by head for `alpha_file=@`. */
static void
write_alpha(const plan_t *p, char *path)
{
    FILE *f;
    int fd;

    strcpy(path, "/tmp/kv_recorded_XXXXXX");
    fd = mkstemp(path);
    assert_true(fd >= 0);
    f = fdopen(fd, "w");
    for (uint32_t i = 0; i < p->layers * p->kv_heads; i++) {
        if (i % 3 != 1) {
            fprintf(f, "%u %u %g %g\n", i / p->kv_heads, i % p->kv_heads,
                    0.5 + 0.25 * (i % 7), 0.125 * (i % 5));
        }
    }
    fclose(f);
}

static void
make_policy(run_t *r, const char *spec)
{
    char text[TR_KV_SPEC_MAX + 1], path[64] = "";
    const char *at = strchr(spec, '@');
    tr_error_t err = { 0 };

    if (at != NULL) {
        write_alpha(&r->plan, path);
        snprintf(text, sizeof(text), "%.*s%s%s", (int) (at - spec), spec, path,
                 at + 1);
    } else {
        snprintf(text, sizeof(text), "%s", spec);
    }
    if (tr_kv_policy_create(text, r->plan.layers, r->plan.kv_heads,
                            r->plan.head_dim, &r->policy[r->n_policies], &err)
        != TR_OK) {
        fail_msg("%s: %s", spec, err.text);
    }
    r->n_policies++;
    if (path[0] != '\0') {
        unlink(path);
    }
}

static tr_kv_config_t
config_of(const run_t *r)
{
    return (tr_kv_config_t){
        .layers = r->plan.layers,
        .kv_heads = r->plan.kv_heads,
        .head_dim = r->plan.head_dim,
        .slots = SEQS,
        .max_len = r->plan.max_len,
        .policies = (const tr_kv_policy_t *const *) r->policy,
        .n_policies = r->n_policies,
    };
}

/* A pool with so many pages, of the host. */
static void
open_host(run_t *r, uint32_t pages, uint64_t page, uint32_t swap)
{
    size_t row = 2 * r->plan.kv_heads * r->plan.head_dim * sizeof(float);
    tr_kv_config_t c = config_of(r);
    tr_error_t err = { 0 };

    c.memory = pages * page;
    c.swap_memory = swap * page;
    c.kernels = r->kernels;
    r->thread_pool = r->threads > 1 ? tr_thread_pool_new(r->threads) : NULL;
    c.stream = (tr_stream_t){ .threads = r->threads,
                              .thread_pool = r->thread_pool };
    if (tr_kv_cache_create(&c, &r->kv, &err) != TR_OK) {
        fail_msg("%s", err.text);
    }
    r->numbers = malloc(r->plan.layers * ROWS * row);
    r->angles = malloc(ROWS * r->plan.head_dim * sizeof(float));
    assert_true(r->numbers != NULL && r->angles != NULL);
}

/* The same on the device. */
static void
open_device(run_t *r, uint32_t pages, uint64_t page, uint32_t swap)
{
    size_t row = 2 * r->plan.kv_heads * r->plan.head_dim * sizeof(float);
    size_t numbers = r->plan.layers * ROWS * row;
    size_t angles = ROWS * r->plan.head_dim * sizeof(float);
    tr_kv_device_t d = {
        .cuda = cuda, .stream = &r->stream, .max_seqs = SEQS, .max_prompts = 2
    };
    tr_kv_config_t c = config_of(r);
    tr_error_t err = { 0 };

    assert_int_equal(cuda->stream_open(&device, &r->stream), 0);
    assert_int_equal(cuda->event_open(&r->event), 0);
    c.swap_memory = swap * page;
    c.memory = 64u << 20;
    /* as much less as there are pages too many */
    for (uint64_t have = 0; have != pages;) {
        if (tr_kv_device_create(&c, &d, &r->kv, &err) != TR_OK) {
            fail_msg("%s", err.text);
        }
        have = tr_kv_pages(r->kv);
        if (have != pages) {
            tr_kv_cache_free(r->kv);
            c.memory -= (have - pages) * page;
        }
    }
    r->pool_bytes = pages * page;
    r->view = tr_kv_device_manager(r->kv)->view;
    r->view.layout = tr_kv_plan(r->kv)->layout;
    r->pinned = cuda->pin(carried_bytes(r));
    r->numbers = cuda->pin(numbers);
    r->angles = cuda->pin(angles);
    r->d_numbers = cuda->alloc(numbers);
    r->d_angles = cuda->alloc(angles);
    r->pos = cuda->alloc(ROWS * 4);
    r->seq_row = cuda->alloc((SEQS + 1) * 4);
    assert_true(r->pinned != NULL && r->numbers != NULL && r->angles != NULL
                && r->d_numbers != NULL && r->d_angles != NULL && r->pos != NULL
                && r->seq_row != NULL);
}

/* Pages enough for the longest sequence of each policy, and not for many. */
static uint32_t
pages_for(run_t *r, uint64_t *page)
{
    uint32_t heads = r->heads, n = heads * (9 + chance(r, 12));
    tr_kv_config_t c = config_of(r);
    tr_kv_cache_t *kv;
    tr_error_t err = { 0 };

    c.memory = 256u << 20;
    if (tr_kv_cache_create(&c, &kv, &err) != TR_OK) {
        fail_msg("%s", err.text);
    }
    *page = tr_kv_page_bytes(kv);
    tr_kv_cache_free(kv);
    return n;
}

static void
run_open(run_t *r, const plan_t *plan, uint32_t seed, bool on_device,
         int threads)
{
    uint64_t page;
    uint32_t pages, swap;

    memset(r, 0, sizeof(*r));
    r->plan = *plan;
    r->on_device = on_device;
    r->threads = threads;
    r->state = mix(seed + 77);
    r->heads = plan->layers * plan->kv_heads;
    r->kernels = tr_kernels_cpu("c");
    for (uint32_t i = 0; i < POLICIES && plan->spec[i] != NULL; i++) {
        make_policy(r, plan->spec[i]);
    }
    pages = pages_for(r, &page);
    swap = pages / 2 + chance(r, pages);
    (on_device ? open_device : open_host)(r, pages, page, swap);
    assert_int_equal(tr_kv_pages(r->kv), pages);
    for (uint32_t i = 0; i < r->n_policies; i++) {
        note(r, tr_kv_max_len(r->kv, r->policy[i]));
        note(r, tr_kv_pages_for(r->kv, r->policy[i], plan->max_len / 2));
    }
    settle(r);
}

static void
run_close(run_t *r)
{
    assert_int_equal(tr_kv_free_pages(r->kv), tr_kv_pages(r->kv));
    assert_true(tr_kv_sound(r->kv));
    tr_kv_cache_free(r->kv);
    for (uint32_t i = 0; i < r->n_policies; i++) {
        tr_kv_policy_free(r->policy[i]);
    }
    if (!r->on_device) {
        tr_thread_pool_free(r->thread_pool);
        free(r->numbers);
        free(r->angles);
        return;
    }
    cuda->unpin(r->pinned);
    cuda->unpin(r->numbers);
    cuda->unpin(r->angles);
    cuda->release(r->d_numbers);
    cuda->release(r->d_angles);
    cuda->release(r->pos);
    cuda->release(r->seq_row);
    cuda->event_close(r->event);
    cuda->stream_close(&r->stream);
}

/* ---- sequences come and go ---------------------------------------------- */

static void
finish(run_t *r, who_t *w)
{
    tr_kv_close(r->kv, w->slot);
    memset(w, 0, sizeof(*w));
    settle(r);
    note_cache(r);
    r->seen.closes++;
}

/* The policy for w: one of the cache's, at times with other thresholds. */
static const tr_kv_policy_t *
choose(run_t *r, who_t *w)
{
    const tr_kv_policy_t *p = r->policy[w->policy];
    tr_kv_policy_t *copy = &r->other[w - r->who];
    tr_error_t err = { 0 };

    if (w->policy == 0 && chance(r, 3) == 0) {
        return NULL;
    }
    if (chance(r, 3) == 0) {
        *copy = *p;
        if (tr_kv_policy_override(copy, 1 + chance(r, 4) * 0.5,
                                  chance(r, 4) * 0.125, &err)
            == TR_OK) {
            r->seen.overridden++;
            return copy;
        }
    }
    return p;
}

static bool
take_slot(run_t *r, who_t *w, uint32_t goal)
{
    uint32_t policy = chance(r, r->n_policies);

    *w = (who_t){ .policy = policy };
    w->slot = tr_kv_open(r->kv, choose(r, w));
    note(r, (uint64_t) w->slot);
    if (w->slot < 0) {
        return false;
    }
    *w = (who_t){ .state = PROMPT,
                  .slot = w->slot,
                  .policy = policy,
                  .goal = goal,
                  .seed = mix(r->state),
                  .first = true };
    tr_kv_prompt(r->kv, w->slot, goal);
    settle(r);
    return true;
}

static void
arrive(run_t *r, who_t *w)
{
    uint32_t ahead = chance(r, 2);

    if (!take_slot(r, w, 1 + chance(r, r->plan.max_len * 2 / 3))) {
        return;
    }
    if (w->goal > tr_kv_max_len(r->kv, r->policy[w->policy])) {
        finish(r, w);
        return;
    }
    if (ahead) { /* the whole prompt's pages at once */
        tr_status_t rc = tr_kv_reserve(r->kv, w->slot, w->goal);

        note(r, rc);
        r->seen.refused += rc != TR_OK;
        if (rc != TR_OK) {
            finish(r, w);
            return;
        }
        settle(r);
    }
}

/* w becomes another's prompt as far as it was computed. */
static void
split(run_t *r, who_t *w)
{
    const tr_kv_policy_t *a, *b;
    const who_t *from = NULL;
    tr_status_t rc;

    for (uint32_t i = 0; i < SEQS; i++) {
        if (r->who[i].state == PROMPT && r->who[i].first
            && r->who[i].computed != 0) {
            from = &r->who[i];
        }
    }
    if (from == NULL || !take_slot(r, w, from->goal)) {
        return;
    }
    a = r->policy[from->policy];
    b = r->policy[w->policy];
    if (w->goal > tr_kv_max_len(r->kv, b) || (b->scored && !a->scored)
        || (b->minmax && !a->minmax)) {
        finish(r, w);
        return;
    }
    rc = tr_kv_fork(r->kv, from->slot, w->slot, from->computed);
    note(r, rc);
    if (rc != TR_OK) {
        finish(r, w);
        return;
    }
    w->computed = from->computed;
    w->seed = from->seed;
    settle(r);
    note_slot(r, w, false);
    r->seen.forks++;
}

static void
swap(run_t *r, who_t *w)
{
    bool out = w->state == OUT;
    tr_status_t rc = out ? tr_kv_swap_in(r->kv, w->slot)
                         : tr_kv_swap_out(r->kv, w->slot);

    note(r, rc);
    if (rc == TR_OK) {
        w->state = out ? DECODE : OUT;
        r->seen.swaps++;
    }
    settle(r);
    note_slot(r, w, false);
    note_cache(r);
}

/* A further prompt of a sequence that was compressed. */
static void
next_turn(run_t *r, who_t *w)
{
    uint32_t most = tr_kv_max_len(r->kv, r->policy[w->policy]);

    if (w->computed + 2 > most) {
        return;
    }
    w->goal = w->computed + 1 + chance(r, most - w->computed);
    w->state = PROMPT;
    w->first = false;
    tr_kv_prompt(r->kv, w->slot, w->goal);
    settle(r);
    note_slot(r, w, false);
    r->seen.turns++;
}

/* Somebody makes way. */
static void
evict(run_t *r)
{
    uint32_t first = chance(r, SEQS);

    for (uint32_t i = 0; i < SEQS; i++) {
        who_t *w = &r->who[(first + i) % SEQS];

        if (w->state == FREE || w->state == OUT) {
            continue;
        }
        if (w->state == DECODE && chance(r, 3) != 0) {
            swap(r, w);
        }
        if (w->state != OUT) {
            finish(r, w);
        }
        return;
    }
}

static void
happen(run_t *r)
{
    who_t *w = &r->who[chance(r, SEQS)];
    uint32_t dice = chance(r, 24);

    if (w->state == FREE) {
        if (dice < 6) {
            split(r, w);
        } else if (dice < 20) {
            arrive(r, w);
        }
    } else if (dice == 0) {
        finish(r, w);
    } else if (w->state == OUT ? dice < 12 : w->state == DECODE && dice < 3) {
        swap(r, w);
    } else if (w->state == DECODE && dice < 6) {
        next_turn(r, w);
    }
}

/* ---- a turn of all ------------------------------------------------------ */

static void
compress(run_t *r, who_t *w)
{
    tr_status_t rc = tr_kv_compress(r->kv, w->slot, w->computed);

    if (rc == TR_AGAIN && tr_kv_compressing(r->kv, w->slot)) {
        settle(r);
        rc = tr_kv_compress(r->kv, w->slot, w->computed);
    }
    note(r, rc);
    if (rc == TR_OK) {
        w->state = DECODE;
        r->seen.compressed++;
    } else {
        r->pressed = true;
        r->seen.denied++;
    }
    settle(r);
    note_slot(r, w, false);
    note_cache(r);
}

/* Whose next rows stand in uncompressed pages, or are moves of tiers. */
static bool
is_uncompressed(const run_t *r, const who_t *w)
{
    return w->state == PROMPT
           || (w->state == DECODE && r->policy[w->policy]->n_levels == 0);
}

static uint32_t
add_item(run_t *r, item_t *item, uint32_t n, who_t *w)
{
    uint32_t most = tr_kv_max_len(r->kv, r->policy[w->policy]), rows = 1;

    if (w->state == DECODE && w->computed >= most) {
        finish(r, w);
        return n;
    }
    if (w->state == PROMPT) {
        rows = 1 + chance(r, ROWS / SEQS);
        rows = rows < w->goal - w->computed ? rows : w->goal - w->computed;
    }
    item[n] = (item_t){ w, rows };
    return n + 1;
}

static void
compute_all(run_t *r)
{
    uint32_t first = chance(r, SEQS), n = 0;
    item_t item[SEQS];

    for (uint32_t pass = 0; pass < 2; pass++) {
        for (uint32_t i = 0; i < SEQS; i++) {
            who_t *w = &r->who[(first + i) % SEQS];

            if ((w->state == PROMPT || w->state == DECODE)
                && is_uncompressed(r, w) == (pass == 0)
                && (w->state == DECODE || w->computed < w->goal)
                && chance(r, 8) != 0) {
                n = add_item(r, item, n, w);
            }
        }
        if (!r->plan.mixed || pass == 1) {
            compute(r, item, n);
            n = 0;
        }
    }
}

static void
one_turn(run_t *r)
{
    uint32_t n = chance(r, 4);

    r->pressed = false;
    while (n-- > 0) {
        happen(r);
    }
    compute_all(r);
    for (uint32_t i = 0; i < SEQS; i++) {
        who_t *w = &r->who[i];

        if (w->state == PROMPT && w->computed == w->goal) {
            w->state = r->policy[w->policy]->n_levels != 0 ? COMPLETE : DECODE;
        }
        if (w->state == COMPLETE) {
            compress(r, w);
        }
    }
    note_cache(r);
    if (r->pressed) {
        evict(r);
    }
    assert_true(tr_kv_sound(r->kv));
}

static uint64_t
digest_of(const plan_t *plan, uint32_t seed, bool on_device, int threads,
          seen_t *seen)
{
    static run_t r;

    run_open(&r, plan, seed, on_device, threads);
    for (uint32_t i = 0; i < plan->turns; i++) {
        one_turn(&r);
    }
    for (uint32_t i = 0; i < SEQS; i++) {
        if (r.who[i].state != FREE) {
            note_slot(&r, &r.who[i], false);
            finish(&r, &r.who[i]);
        }
    }
    run_close(&r);
    *seen = r.seen;
    return r.digest;
}

/* ---- the runs ----------------------------------------------------------- */

#define SMALL(...)                                \
    {                                             \
        { __VA_ARGS__ }, 2, 2, 64, 150, 70, false \
    }
#define MIXED(...)                               \
    {                                            \
        { __VA_ARGS__ }, 2, 2, 64, 150, 70, true \
    }
/* More heads than a block of the manager has. */
#define LARGE(...)                                 \
    {                                              \
        { __VA_ARGS__ }, 3, 100, 32, 70, 24, false \
    }

/* Of diffkv when these were recorded. */
#define FRONT "window_level=8/4,sinks=0,"

static const plan_t plans[] = {
    SMALL("full"),
    SMALL("uniform:levels=8/4,window=3"),
    SMALL("uniform:levels=4/2,window=0"),
    SMALL("uniform:levels=8/8,window=17,window_level=16/16,groups=2"),
    SMALL("diffkv:" FRONT "window=16,alpha_high=1,alpha_low=0.02"),
    SMALL("diffkv:" FRONT "window=5,alpha_high=1,alpha_low=0.3"),
    SMALL("diffkv:" FRONT "window=12,alpha_high=1,alpha_low=0,observe=8"),
    SMALL("diffkv:window=0,alpha_high=1,alpha_low=0"),
    SMALL("diffkv:sinks=0,levels=16/16+8/4+4/"
          "2,window=9,alpha_top=2,alpha_low=0.2"),
    SMALL("diffkv:window_level=4/4,sinks=0,levels=4/"
          "4,window=20,base=i,alpha_low=0.5"),
    SMALL("diffkv:" FRONT "window=11,alpha_high=1,alpha_low=0.02,alpha_file=@"),
    SMALL("static:window=10,high=0.2,low=0.3"),
    SMALL("static:levels=8/4,window=13,low=0.4,observe=16"),
    SMALL("static:window=6,high=0.0,low=0.25"),
    SMALL("h2o:budget=24"),
    SMALL("h2o:budget=0.3"),
    SMALL("streamingllm:sinks=4,recent=20"),
    SMALL("streamingllm:sinks=3,recent=0.2"),
    SMALL("snapkv:budget=20"),
    SMALL("snapkv:budget=0.3,pool=5"),
    SMALL("quest:budget=64,from=1"),
    SMALL("quest:budget=0.25,from=0"),
    SMALL("kivi:bits=2,window=64"),
    SMALL("kivi:bits=4,window=32"),
    SMALL("int4"),
    SMALL("int4:group=32"),
    SMALL("diffkv:" FRONT "window=16,alpha_high=1,alpha_low=0.02", "full",
          "kivi:bits=2,window=32"),
    SMALL("quest:budget=48", "h2o:budget=30", "static:window=8"),
    MIXED("diffkv:" FRONT "window=16,alpha_high=1,alpha_low=0.02", "full",
          "kivi:bits=2,window=32"),
    MIXED("full", "static:window=8", "snapkv:budget=24"),
    LARGE("diffkv:" FRONT "window=8,alpha_high=1,alpha_low=0.3"),
    LARGE("static:window=7"),
    LARGE("full", "h2o:budget=20"),
    LARGE("kivi:bits=2,window=32", "int4"),
    { { "diffkv:" FRONT "window=12,alpha_high=1,alpha_low=0.02",
        "streamingllm:sinks=2,recent=9" },
      1,
      257,
      64,
      60,
      16,
      false },
};

#define PLANS (sizeof(plans) / sizeof(plans[0]))

static void
print_line(char *line, size_t size, const plan_t *p, uint32_t seed,
           uint64_t digest)
{
    size_t at = 0;

    for (uint32_t i = 0; i < POLICIES && p->spec[i] != NULL; i++) {
        at += (size_t) snprintf(line + at, size - at, "%s%s", i == 0 ? "" : " ",
                                p->spec[i]);
    }
    snprintf(line + at, size - at, "%s heads=%ux%u seed=%u %016llx\n",
             p->mixed ? " together" : "", p->layers, p->kv_heads, seed,
             (unsigned long long) digest);
}

static void
add_seen(seen_t *all, const seen_t *s)
{
    uint64_t *to = (uint64_t *) (void *) all;
    const uint64_t *from = (const uint64_t *) (const void *) s;

    for (size_t i = 0; i < sizeof(*s) / sizeof(uint64_t); i++) {
        to[i] += from[i];
    }
}

static void
print_seen(const seen_t *s)
{
    printf("steps %llu stalls %llu refused %llu compressed %llu denied %llu"
           " swaps %llu forks %llu turns %llu closes %llu overridden %llu\n",
           (unsigned long long) s->steps, (unsigned long long) s->stalls,
           (unsigned long long) s->refused, (unsigned long long) s->compressed,
           (unsigned long long) s->denied, (unsigned long long) s->swaps,
           (unsigned long long) s->forks, (unsigned long long) s->turns,
           (unsigned long long) s->closes, (unsigned long long) s->overridden);
}

static void
all_runs(bool on_device, int threads)
{
    const char *to = getenv("TR_KV_RECORD");
    FILE *out = to != NULL && !on_device && threads == 1 ? fopen(to, "w")
                                                         : NULL;
    FILE *in = out != NULL ? NULL : fopen(to != NULL ? to : RECORDED, "r");
    char line[600], want[600];
    seen_t all = { 0 }, seen;
    uint32_t wrong = 0;

    assert_true(out != NULL || in != NULL);
    for (size_t i = 0; i < PLANS; i++) {
        for (uint32_t seed = 1; seed <= SEEDS; seed++) {
            if (in != NULL) {
                assert_non_null(fgets(want, sizeof(want), in));
            }
            if ((on_device && plans[i].mixed)
                || (threads > 1 && plans[i].kv_heads < 100)) {
                continue;
            }
            print_line(line, sizeof(line), &plans[i], seed,
                       digest_of(&plans[i], seed, on_device, threads, &seen));
            add_seen(&all, &seen);
            if (out != NULL) {
                fputs(line, out);
            } else if (strcmp(line, want) != 0) {
                print_error("recorded: %sis now:   %s", want, line);
                wrong++;
            }
        }
    }
    if (out != NULL) {
        fclose(out);
    } else {
        fclose(in);
    }
    print_seen(&all);
    assert_int_equal(wrong, 0);
    assert_true(all.steps > 0 && all.stalls > 0 && all.compressed > 0
                && all.denied > 0 && all.swaps > 0 && all.forks > 0);
    assert_true(threads > 1
                || (all.refused > 0 && all.turns > 0 && all.overridden > 0));
}

static void
test_host(void **state)
{
    (void) state;
    all_runs(false, 1);
}

/* Many heads are planned side by side. */
static void
test_threads(void **state)
{
    (void) state;
    all_runs(false, 3);
}

static void
test_device(void **state)
{
    (void) state;
    all_runs(true, 1);
}

static int
setup(void **state)
{
    (void) state;
    tr_log_open(NULL, -1);
    soft_load();
    return 0;
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_host),
        cmocka_unit_test(test_threads),
        cmocka_unit_test(test_device),
    };

    return cmocka_run_group_tests(tests, setup, NULL);
}
