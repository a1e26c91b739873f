/*
 * The page manager's programs in blocks of 256 threads, as a device has them,
 * beside the host's, whose block is one thread: the same pages, counts, moves and
 * decisions after every operation.  Blocks and threads run in other orders from
 * time to time, since no phase may depend on them.  tests/gpu/kv/test_manager.c does
 * the same on a GPU.
 *
 *   TR_KV_ROUNDS=N  rounds (default 60)
 *   TR_KV_SEED=N    the seed that a failure printed, for one round
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include <cmocka.h>

#define MANAGER_THREADS 256u
/* Odd multiples and shifts permute what a power of two has; n = 256. */
static unsigned order_times = 1, order_plus;
#define MANAGER_ORDER(i, n) (((uint32_t) (i) *order_times + order_plus) % (n))

#include "kernels/kv_manager/manager_cut.h"
#include "kernels/kv_manager/manager_prompt.h"
#include "kernels/kv_manager/manager_share.h"
#include "kernels/kv_manager/manager_step.h"
#include "kernels/kv_manager/manager_tally.h"

#include "tests/gpu/kv/manager_round.h"

#define OPERATIONS 150u

typedef struct {
    tr_kv_manager_t m;
    void *memory;
    double *copy[FIXTURE_POLICIES];
    uint32_t copies;
} host_t;

static bool
host_create(void *arg, const tr_kv_view_t *shape,
            const tr_kv_manager_size_t *size, const uint8_t *pool,
            uint64_t pool_bytes, tr_kv_manager_t *mirror)
{
    host_t *h = arg;
    size_t bytes = manager_lay(shape, size, NULL, &h->m);

    (void) pool_bytes;
    assert_true(bytes != 0);
    h->memory = aligned_alloc(256, bytes);
    assert_non_null(h->memory);
    memset(h->memory, 0xa5, bytes);
    manager_lay(shape, size, h->memory, &h->m);
    h->m.view.pool = (uint8_t *) (uintptr_t) pool;
    for (uint32_t t = 0; t < 5; t++) {
        manager_reset(&h->m, t, 5);
    }
    *mirror = h->m;
    return true;
}

static void
host_destroy(void *arg)
{
    host_t *h = arg;

    free(h->memory);
    while (h->copies > 0) {
        free(h->copy[--h->copies]);
    }
    h->memory = NULL;
}

static const double *
host_copy(void *arg, const double *from, size_t n)
{
    host_t *h = arg;
    double *to = malloc(n * sizeof(*to));

    assert_non_null(to);
    memcpy(to, from, n * sizeof(*to));
    return h->copy[h->copies++] = to;
}

/* The pool is the CPU's own, and so is the mirror. */
static void
host_nothing(void *arg)
{
    (void) arg;
}

static void
host_step(const tr_kv_manager_t *m, const tr_kv_page_request_t *ask, uint32_t n)
{
    union {
        manager_plan_t plan;
        manager_grants_t grants;
        manager_grant_t grant;
    } s;
    uint32_t blocks = m->chunks * n;

    for (uint32_t b = 0; b < blocks; b++) {
        memset(&s, 0x5a, sizeof(s));
        manager_plan(m, ask, (blocks - 1 - b) / m->chunks,
                     (blocks - 1 - b) % m->chunks, &s.plan);
    }
    manager_sum(m, n, &s.grants);
    for (uint32_t b = 0; b < (m->chunks + 3) * n; b++) {
        memset(&s, 0x5a, sizeof(s));
        manager_grant(m, b / (m->chunks + 3), b % (m->chunks + 3),
                      m->chunks + 3, &s.grant);
    }
}

static void
host_close(const tr_kv_manager_t *m, const int32_t *slots, uint32_t n)
{
    manager_release_t s;
    uint32_t each = manager_ceil(m->heads, MANAGER_WARPS);

    for (uint32_t i = n; i > 0; i--) {
        memset(&s, 0x5a, sizeof(s));
        manager_release(m, slots, i - 1, &s);
    }
    manager_ends(m, n);
    for (uint32_t b = n * each; b > 0; b--) {
        manager_recycle(m, (b - 1) / each, (b - 1) % each);
    }
}

static void
host_fill(const tr_kv_manager_t *m, uint32_t n)
{
    uint32_t each = manager_ceil(m->heads, MANAGER_WARPS);

    for (uint32_t b = 0; b < n * each; b++) {
        manager_fill(m, b / each, b % each);
    }
}

/* Behind the plans of heads. */
static void
host_admit(const tr_kv_manager_t *m, uint32_t n)
{
    static manager_total_t total;

    for (uint32_t i = 0; i < n; i++) {
        memset(&total, 0x5a, sizeof(total));
        manager_total_job(m, i, &total);
    }
    manager_admit(m, n);
    host_fill(m, n);
}

static void
host_plan(const tr_kv_manager_t *m, const tr_kv_complete_t *c, uint32_t n)
{
    static manager_prompt_t s;

    for (uint32_t b = m->heads * n; b > 0; b--) {
        memset(&s, 0x5a, sizeof(s));
        manager_classify(m, c, (b - 1) / m->heads, (b - 1) % m->heads, &s);
    }
    host_admit(m, n);
}

static void
host_install(const tr_kv_manager_t *m, uint32_t n)
{
    uint32_t each = manager_ceil(m->heads, MANAGER_WARPS);
    manager_install_t s;

    for (uint32_t b = n * each; b > 0; b--) {
        manager_install(m, (b - 1) / each, (b - 1) % each, &s);
    }
    manager_settle_prompts(m, n);
}

static bool
host_same_pages(void *arg, const int32_t *a, const int32_t *b, uint32_t n)
{
    const tr_kv_view_t *v = &((host_t *) arg)->m.view;

    for (uint32_t i = 0; i < n; i++) {
        if (memcmp(tr_kv_page_at(v, a[i]), tr_kv_page_at(v, b[i]),
                   v->page_bytes)
            != 0) {
            return false;
        }
    }
    return true;
}

static void
host_page(void *arg, int32_t page, void *out)
{
    const tr_kv_view_t *v = &((host_t *) arg)->m.view;

    memcpy(out, tr_kv_page_at(v, page), v->page_bytes);
}

static void
host_cut(const tr_kv_manager_t *m, const tr_kv_cut_t *cuts, uint32_t n)
{
    manager_cut_t s;

    for (uint32_t b = m->heads * n; b > 0; b--) {
        memset(&s, 0x5a, sizeof(s));
        manager_cut_head(m, cuts, (b - 1) / m->heads, (b - 1) % m->heads, &s);
    }
    host_admit(m, n);
}

static void
host_restore(const tr_kv_manager_t *m, const tr_kv_restore_t *restores,
             uint32_t n)
{
    manager_cut_t s;

    for (uint32_t b = m->heads * n; b > 0; b--) {
        memset(&s, 0x5a, sizeof(s));
        manager_restore_head(m, restores, (b - 1) / m->heads,
                             (b - 1) % m->heads, &s);
    }
    host_admit(m, n);
}

static void
host_rescore(const tr_kv_manager_t *m, uint32_t n)
{
    for (uint32_t b = m->heads * n; b > 0; b--) {
        manager_rescore(m, NULL, 0, (b - 1) / m->heads, (b - 1) % m->heads);
    }
}

/* Blocks share a head's pages. */
static void
host_fork(const tr_kv_manager_t *m, const tr_kv_fork_t *fork, uint32_t n)
{
    for (uint32_t b = n * m->heads * 3; b > 0; b--) {
        uint32_t i = (b - 1) / 3;

        manager_fork(m, NULL, 0, &fork[i / m->heads], i % m->heads, (b - 1) % 3,
                     3);
    }
}

static void
host_tally(const tr_kv_manager_t *m, uint32_t n)
{
    manager_tally_t s;

    for (uint32_t i = n; i > 0; i--) {
        memset(&s, 0x5a, sizeof(s));
        manager_tally(m, (int32_t) i - 1, &s);
    }
}

static void
host_share(const tr_kv_manager_t *m, tr_kv_share_kind_t kind,
           const tr_kv_share_t *share, uint32_t n)
{
    for (uint32_t b = n; b > 0 && kind != TR_KV_COPY; b--) {
        manager_share(m, NULL, 0, kind, share, b - 1);
    }
    for (uint32_t b = n * m->heads; b > 0 && kind == TR_KV_COPY; b--) {
        manager_copy_kept(m, NULL, 0, &share[(b - 1) / m->heads],
                          (b - 1) % m->heads);
    }
    manager_shared(m, kind, n);
}

static void
host_absorb(const tr_kv_manager_t *m, const tr_kv_absorb_t *absorb, uint32_t n)
{
    manager_absorb_t s;

    for (uint32_t b = n * m->heads; b > 0; b--) {
        memset(&s, 0x5a, sizeof(s));
        manager_absorb(m, absorb, (b - 1) / m->heads, (b - 1) % m->heads, &s);
    }
    manager_absorbed(m, absorb, n);
}

static bool
host_run(void *arg, fixture_op_t op, void *in, size_t each, uint32_t n)
{
    const tr_kv_manager_t *m = &((host_t *) arg)->m;
    int32_t *list = in;
    manager_swap_t s;

    (void) each;
    order_times = fixture_random(2) ? 1 : 2 * fixture_random(128) + 1;
    order_plus = fixture_random(2) ? 0 : fixture_random(256);
    for (uint32_t i = 0; i < n && op == FIXTURE_OPEN; i++) {
        manager_open(m, (const tr_kv_open_t *) in + i);
    }
    for (uint32_t i = 0; i < n && op == FIXTURE_BEGIN; i++) {
        manager_begin(m, (const tr_kv_begin_t *) in + i);
    }
    if (op == FIXTURE_STEP) {
        host_step(m, in, n);
    } else if (op == FIXTURE_CLOSE) {
        host_close(m, in, n);
    } else if (op == FIXTURE_PLAN) {
        host_plan(m, in, n);
    } else if (op == FIXTURE_INSTALL) {
        host_install(m, n);
    } else if (op == FIXTURE_FILL) {
        host_fill(m, n);
    } else if (op == FIXTURE_CUT) {
        host_cut(m, in, n);
    } else if (op == FIXTURE_RESTORE) {
        host_restore(m, in, n);
    } else if (op == FIXTURE_INSTALL_CUT) {
        host_install(m, n);
        host_rescore(m, n);
    } else if (op == FIXTURE_ABSORB) {
        host_absorb(m, in, n);
    } else if (op == FIXTURE_FORK) {
        host_fork(m, in, n);
    } else if (op == FIXTURE_TALLY) {
        host_tally(m, n);
    } else if (op == FIXTURE_GIVE) {
        manager_give(m, list[0], list + 2, (uint32_t) list[1], 0,
                     TR_KV_ALL_PAGES, &s);
    } else if (op == FIXTURE_TAKE) {
        manager_take(m, list[0], list + 2, (uint32_t *) &list[1], n - 2, &s);
    } else if (op >= FIXTURE_SHARE) {
        host_share(m, (tr_kv_share_kind_t) (op - FIXTURE_SHARE), in, n);
    }
    return true;
}

static void
test_same_as_cpu(void **state)
{
    static host_t host;
    static fixture_t w;
    fixture_device_t device = { .arg = &host,
                                .create = host_create,
                                .destroy = host_destroy,
                                .pool = host_nothing,
                                .arrays = host_nothing,
                                .run = host_run,
                                .fetch = host_nothing,
                                .same_pages = host_same_pages,
                                .page = host_page,
                                .copy = host_copy };
    const char *given = getenv("TR_KV_SEED"), *some = getenv("TR_KV_ROUNDS");
    uint64_t seed = given != NULL ? strtoull(given, NULL, 10)
                                  : (uint64_t) time(NULL);
    uint32_t rounds = some != NULL ? (uint32_t) atoi(some) : 60;
    uint64_t steps = 0, stalls = 0, prompts = 0, forks = 0, shares = 0;
    uint64_t cuts = 0, staged = 0, lent = 0, absorbed = 0;

    (void) state;
    rounds = given != NULL ? 1 : rounds;
    for (uint32_t i = 0; i < rounds; i++) {
        if (!fixture_run(&device, seed + i, OPERATIONS, &w)) {
            fail_msg("TR_KV_SEED=%llu", (unsigned long long) (seed + i));
        }
        steps += w.steps;
        stalls += w.stalls;
        prompts += w.compressed;
        forks += w.forks;
        shares += w.shares;
        cuts += w.cuts;
        lent += w.lent;
        absorbed += w.absorbed;
        staged += w.staged;
    }
    printf("%u rounds from seed %llu: %llu steps, %llu prompts, %llu stages, "
           "%llu stalls, %llu cuts, %llu pages lent, %llu lenders absorbed\n",
           rounds, (unsigned long long) seed, (unsigned long long) steps,
           (unsigned long long) prompts, (unsigned long long) staged,
           (unsigned long long) stalls, (unsigned long long) cuts,
           (unsigned long long) lent, (unsigned long long) absorbed);
    assert_true(steps > 0 && prompts > 0
                && ((stalls > 0 && forks > 0 && shares > 0 && cuts > 0
                     && staged > 0 && lent > 0 && absorbed > 0)
                    || rounds < 10));
}

/* Sizes that cannot be are refused. */
static void
test_sizes(void **state)
{
    tr_kv_layout_t layout = { .tokens = 16 };
    tr_kv_view_t shape = { .layers = 2,
                           .kv_heads = 2,
                           .n_layouts = 1,
                           .layout = &layout,
                           .table_len = 10 };
    tr_kv_manager_size_t size = {
        .slots = 4, .pages = 100, .max_len = 64, .max_prompts = 2
    };
    tr_kv_manager_t m;

    (void) state;
    assert_true(manager_lay(&shape, &size, NULL, &m) > 0);
    size.slots = TR_KV_SLOTS_MAX + 1;
    assert_int_equal(manager_lay(&shape, &size, NULL, &m), 0);
    size.slots = 4;
    size.max_prompts = 5;
    assert_int_equal(manager_lay(&shape, &size, NULL, &m), 0);
    size.max_prompts = 2;
    size.pages = 1u << 30;
    assert_int_equal(manager_lay(&shape, &size, NULL, &m), 0);
    size.pages = 100;
    shape.table_len = 0;
    assert_int_equal(manager_lay(&shape, &size, NULL, &m), 0);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_as_cpu),
        cmocka_unit_test(test_sizes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
