/*
 * Preempted sequences that go to host memory and come back by pieces
 * (kv_device_swap.c), by the engine's own loop and a real model: the pieces are so
 * small that other sequences take many steps while one moves.
 *
 * Many requests in a pool that is too small for them, with pauses and aborts, get
 * byte for byte what each gets alone in a large one (on the software device: a
 * GPU's sums depend on who is in a batch).  Then those that are just moving are
 * aborted, whole sequences and some that share a compressed prefix; and the loop
 * ends while one moves.  No page is missing at any end.
 *
 *   TR_CUDA_LIBRARY   a GPU's library instead of the software device
 *   test_loop_pieces_cuda test_end   one of them
 */
#include "tests/unit/fixtures/kept_cuda_fixture.h"
#include "engine/scheduler/loop_internal.h"

#define TOGETHER 16u
#define LONGEST 320u
#define TRIES 6 /* until what is rare was seen */

static ask_t asks[REQUESTS];
static uint64_t piece;

/* What moves, seen by the loop's thread between the cache and the device. */
static struct {
    tr_device_t device; /* kv_swap is ours */
    int (*swap)(const tr_cuda_stream_t *s, const tr_kv_view_t *kv,
                int32_t *tables, const tr_cuda_swap_t *swap, uint32_t *pages,
                void *work);
    tr_kv_gpu_t *gpu;
    fixture_loop_t *l;
    /* so many pieces from one that ends its request to the next, the other way; 0:
     * none does */
    uint32_t every;
    uint32_t since;   /* the last one, */
    bool out_is_next; /* and the way of the next */
    uint32_t held_at; /* here the loop waits for its end; 0: nowhere */
    /* the requests, none of them freed while others run */
    _Atomic(tr_request_t *) asked[REQUESTS];
    atomic_uint pieces, out, in; /* moves, and those dropped amid one */
} seen;

/* ---- between cache and device ------------------------------------------- */

static void
abort_mover(int32_t slot)
{
    for (uint32_t i = 0; i < REQUESTS; i++) {
        tr_request_t *r = atomic_load(&seen.asked[i]);

        for (uint32_t k = 0; r != NULL && k < r->n; k++) {
            if (r->sequences[k].kv_slot == slot) {
                asks[i].aborted = true;
                atomic_store(&r->control, TR_CONTROL_ABORT);
                tr_loop_wake(seen.l->loop); /* its next turn hears of it */
            }
        }
    }
}

/* Others move while the slot, which has more pieces to come, takes many steps. */
static void
amid_move(int32_t slot, bool out)
{
    if (seen.every != 0 && out == seen.out_is_next
        && ++seen.since > seen.every) {
        abort_mover(slot);
        seen.out_is_next = !out;
        seen.since = 0;
    }
    while (seen.held_at != 0 && atomic_load(&seen.pieces) >= seen.held_at
           && atomic_load(&seen.l->loop->stop) == 0) {
        usleep(1000);
    }
}

static int
on_swap(const tr_cuda_stream_t *s, const tr_kv_view_t *kv, int32_t *tables,
        const tr_cuda_swap_t *swap, uint32_t *pages, void *work)
{
    bool amid = swap->first != 0;

    if (swap->to == NULL) {
        atomic_fetch_add(swap->mark != 0 ? &seen.out : &seen.in, amid);
    } else {
        atomic_fetch_add(&seen.pieces, amid);
        if (tr_kv_is_moving(seen.gpu, swap->slot)) {
            amid_move(swap->slot, swap->mark != 0);
        }
    }
    return seen.swap(s, kv, tables, swap, pages, work);
}

static void
watch(fixture_loop_t *l)
{
    tr_kv_gpu_t *g = tr_kv_gpu(l->executor->kv);

    seen.gpu = g;
    seen.l = l;
    seen.since = seen.every;
    seen.held_at = 0;
    seen.out_is_next = true;
    seen.device = *g->device.cuda;
    seen.swap = seen.device.kv_swap;
    seen.device.kv_swap = on_swap;
    g->device.cuda = &seen.device;
}

static void
by_pieces(tr_config_t *c)
{
    strcpy(c->backend, "cuda");
    strcpy(c->dtype, "f16");
    strcpy(c->kv_reuse, "no");
    snprintf(c->cuda_library, sizeof(c->cuda_library), "%s", device_library());
    c->swap_piece = piece;
    c->max_model_len = LONGEST;
}

/* ---- the same answers --------------------------------------------------- */

static void
ask_many(uint64_t state)
{
    memset(asks, 0, sizeof(asks));
    for (uint32_t i = 0; i < TOGETHER; i++) {
        asks[i].prompt_len = 1 + rng_below(&state, i % 4 == 0 ? 200 : 100);
        asks[i].params = plain(i, 50 + rng_below(&state, 60));
        asks[i].n = i % 5 == 0 ? 1 + rng_below(&state, CHOICES) : 1;
    }
}

static void
same(const char *spec)
{
    if (getenv("TR_CUDA_LIBRARY") == NULL) {
        compare(spec, asks, TOGETHER);
    }
}

static void
answers_of(const char *spec, uint64_t memory)
{
    static const uint64_t sizes[] = { 1, 40000 }; /* one page, and some */

    seen.every = 0;
    for (uint32_t k = 0; k < 2; k++) {
        made_way_t done = { 0 };

        piece = sizes[k];
        atomic_store(&seen.pieces, 0);
        for (int i = 0; i < TRIES && atomic_load(&seen.pieces) == 0; i++) {
            done = run_together(spec, asks, TOGETHER, memory, 64 << 20, false);
            assert_int_equal(done.recomputed, 0);
            same(spec);
        }
        print_message("%s: %u pieces\n", spec, atomic_load(&seen.pieces));
        assert_true(atomic_load(&seen.pieces) > 0);
    }
}

/* Of an engine without prefixes, whose loop has ended. */
static void
none_missing(fixture_loop_t *l)
{
    tr_kv_cache_t *kv = l->executor->kv;

    settle(l->executor);
    assert_int_equal(tr_kv_free_pages(kv), tr_kv_pages(kv));
    assert_int_equal(kv->totals.swapped_pages, 0);
    l->executor->free(l->executor);
    writer_unmake(&l->writer, &l->peer);
    close(l->fd);
}

/* ---- aborts amid a move ------------------------------------------------- */

static void
submit_all(fixture_loop_t *l, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        tr_request_t *r = make(l, &asks[i], i);

        atomic_store(&seen.asked[i], r);
        hand_over(l, r, i);
    }
}

static void
forget_all(void)
{
    for (uint32_t i = 0; i < REQUESTS; i++) {
        atomic_store(&seen.asked[i], NULL);
    }
}

/* With pauses and aborts, until all are over, or so many pieces have moved, and
 * the loop waits to be stopped. */
static void
drive(fixture_loop_t *l, uint32_t n, uint32_t pieces)
{
    uint64_t state = seed + 4, made, before = 0;
    uint32_t troubles = 0, idle = 0;

    for (uint32_t i = 0; i < n; i++) {
        asks[i].aborted = false;
        memset(asks[i].together, 0, sizeof(asks[i].together));
    }
    atomic_store(&seen.pieces, 0);
    seen.held_at = pieces;
    submit_all(l, n);
    while (l->open != 0 && atomic_load(&seen.pieces) < pieces) {
        if (!hear(l, asks, true)) {
            idle++;
        }
        made = atomic_load(&l->counters.generation_tokens);
        if (idle == IDLE_TURNS || troubles >= 400) {
            resume(l);
            idle = 0;
        } else if (made >= before + TOKENS_A_TROUBLE) {
            disturb(l, asks, n, &state);
            troubles++;
            before = made;
        }
    }
    forget_all();
}

static void
run_aborted(fixture_loop_t *l, uint32_t n)
{
    drive(l, n, UINT32_MAX);
    reap(l);
    assert_null(tr_loop_stop(l->loop));
}

static void
aborts_of(const char *spec, uint64_t memory)
{
    int i;

    atomic_store(&seen.out, 0);
    atomic_store(&seen.in, 0);
    piece = 1;
    for (i = 0; i < TRIES
                && (atomic_load(&seen.out) == 0 || atomic_load(&seen.in) == 0);
         i++) {
        tr_config_t c = settings(spec, memory, 64 << 20);
        fixture_loop_t l;

        seen.every = i % 2 == 0 ? 30 : 10;
        start_with(&l, &c, false);
        run_aborted(&l, TOGETHER);
        none_missing(&l);
        seen.every = 0;
        same(spec);
    }
    print_message("%s: %u ended going out, %u coming in\n", spec,
                  atomic_load(&seen.out), atomic_load(&seen.in));
    assert_true(atomic_load(&seen.out) > 0 && atomic_load(&seen.in) > 0);
}

static void
policy_of(const char *spec, uint64_t memory)
{
    ask_many(seed);
    run_alone(spec, asks, TOGETHER);
    answers_of(spec, memory);
    aborts_of(spec, memory);
}

static void
test_diffkv(void **unused)
{
    (void) unused;
    policy_of("diffkv:alpha_high=1,alpha_low=0.02", 3 << 20);
}

static void
test_uniform(void **unused)
{
    (void) unused;
    policy_of("uniform:levels=4/4", 5 << 19);
}

/* ---- prefixes that are shared, and kept ---------------------------------- */

/* Returns how many pieces there were. */
static uint32_t
prefixes_of(const char *spec, uint64_t more)
{
    uint64_t state = seed ^ more;
    tr_config_t c = settings(spec, 7 << 19, 64 << 20);
    fixture_loop_t l;

    crowd_asks(asks, 18, 2, true, &state);
    for (uint32_t i = 0; i < 18; i++) {
        asks[i].params.max_tokens += 60;
    }
    strcpy(c.kv_reuse, "auto");
    seen.every = 20;
    start_with(&l, &c, false);
    run_aborted(&l, 18);
    print_message("%s: found %llu, %u pieces\n", spec,
                  (unsigned long long) atomic_load(&l.counters.prefix_tokens),
                  atomic_load(&seen.pieces));
    end_engine(&l);
    seen.every = 0;
    return atomic_load(&seen.pieces);
}

static void
test_prefixes(void **unused)
{
    uint32_t moved = 0;

    (void) unused;
    piece = 1;
    for (uint32_t i = 0; i < 2 || (i < TRIES && moved == 0); i++) {
        moved += prefixes_of("diffkv:alpha_high=12,alpha_low=0", 51 + i);
        moved += prefixes_of("uniform:levels=8/4", 71 + i);
    }
    assert_true(moved > 0);
}

/* ---- the loop ends amid a move ------------------------------------------- */

static void
test_end(void **unused)
{
    (void) unused;
    piece = 1;
    atomic_store(&seen.out, 0);
    atomic_store(&seen.in, 0);
    for (int i = 0; i < 2 * TRIES && seen.out + seen.in == 0; i++) {
        tr_config_t c = settings("uniform:levels=4/4", 5 << 19, 64 << 20);
        tr_request_t *r, *next;
        fixture_loop_t l;

        ask_many(seed + 3 + (uint64_t) i);
        start_with(&l, &c, false);
        drive(&l, TOGETHER, 30);
        for (r = tr_loop_stop(l.loop); r != NULL; r = next) {
            next = r->next;
            tr_request_free(r);
        }
        none_missing(&l);
    }
    assert_true(seen.out + seen.in > 0);
}

int
main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_diffkv),
                                        cmocka_unit_test(test_uniform),
                                        cmocka_unit_test(test_prefixes),
                                        cmocka_unit_test(test_end) };

    adjust = by_pieces;
    opened = watch;
    cmocka_set_test_filter(argc > 1 ? argv[1] : "*");
    return cmocka_run_group_tests_name("loop_pieces_cuda", tests, setup,
                                       teardown);
}
