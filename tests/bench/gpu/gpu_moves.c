/*
 * bench_gpu moves: what others notice while a sequence moves between the GPU and
 * host memory.
 *
 * Some sequences decode, one step ahead, as the step loop does it.  Beside them
 * nothing moves; then a sequence is preempted and returns, again and again; then a
 * prefix goes to host memory and comes back from there (cache_memory).  Of each
 * the times from a step to the next.
 */
#include "gpu_fixture.h"

#include <stdio.h>
#include <stdlib.h>

#include "engine/kv/kv_store.h"

#define EVERY 8u /* steps between out and in, at least */

static const tr_prefix_key_t nobodys;

static struct {
    fixture_t *b;
    uint32_t n, tokens, steps;
    int32_t slot; /* that moves; kept: of the prefix */
    double *ms;   /* [steps] */
    double out_ms, in_ms, since;
    uint32_t outs, ins, next; /* step when something may move */
    uint64_t stored;
    bool back; /* the prefix comes */
} m;

/* ---- what moves ----------------------------------------------------------- */

static void
nothing(uint32_t step)
{
    (void) step;
}

static void
swap(uint32_t step)
{
    tr_kv_cache_t *kv = m.b->e->kv;

    if (step < m.next || tr_kv_coming(kv, m.slot)) {
        return; /* it moves by pieces, some before each step */
    }
    if (m.outs == m.ins && tr_kv_swap_out(kv, m.slot) == TR_OK) {
        m.outs++;
        m.next = step + EVERY;
    } else if (m.outs > m.ins && tr_kv_swap_in(kv, m.slot) == TR_OK) {
        m.ins++;
        m.next = step + EVERY;
    }
}

/* The prefix, in the pool, goes to an empty shelf. */
static void
send(tr_kv_cache_t *kv)
{
    tr_shelf_stats_t s;
    tr_kv_found_t f;

    tr_kv_find(kv, NULL, &nobodys, m.b->prompt, m.tokens, &f);
    if (f.kept == 0) {
        fixture_die("moves", "the prefix did not come back");
    }
    tr_kv_shelf_expire(kv, UINT64_MAX);
    tr_kv_shelf_stats(kv, &s);
    m.stored = s.stored;
    tr_kv_store_want(kv, true, f.kept - 1);
    tr_kv_drop_found(kv, &f);
    m.since = fixture_now_ms();
    m.back = false;
}

/* It leaves the pool, and is asked for. */
static void
fetch(tr_kv_cache_t *kv)
{
    tr_kv_expire(kv, UINT64_MAX - 1);
    if (tr_kv_store_look(kv, &m, NULL, &nobodys, m.b->prompt, m.tokens, 0)
        != TR_KV_LOOK_COMES) {
        fixture_die("moves", "the prefix is not in host memory");
    }
    m.since = fixture_now_ms();
    m.back = true;
}

static void
host(uint32_t step)
{
    tr_kv_cache_t *kv = m.b->e->kv;
    double now = fixture_now_ms();
    tr_shelf_stats_t s;

    tr_kv_time(kv, (uint64_t) (now * 1e3));
    tr_kv_store_turn(kv);
    tr_kv_shelf_stats(kv, &s);
    if (step == 0) {
        send(kv);
    } else if (!m.back && s.stored != m.stored) {
        m.out_ms += now - m.since;
        m.outs++;
        fetch(kv);
    } else if (m.back && !tr_kv_store_looks(kv, &m)) {
        m.in_ms += now - m.since;
        m.ins++;
        send(kv);
    }
}

/* ---- steps ---------------------------------------------------------------- */

static void
decode(void (*between)(uint32_t step))
{
    tr_executor_t *e = m.b->e;
    tr_batch_t batch[2];
    double last = 0;

    m.outs = m.ins = 0;
    m.next = EVERY;
    m.out_ms = m.in_ms = 0;
    for (uint32_t step = 0; step <= m.steps; step++) {
        tr_batch_t *b = &batch[step % 2];
        double now;

        between(step);
        *b = (tr_batch_t){ m.b->items[step % 2], m.n, m.n };
        if (!fixture_compose(m.b, m.n, step, b->items)) {
            fixture_die("moves", "the pool is full");
        }
        fixture_must(e->submit(e, b), "submit");
        if (step == 0) {
            continue;
        }
        fixture_must(e->complete(e, &batch[(step + 1) % 2]), "a step");
        now = fixture_now_ms();
        m.ms[step - 1] = now - last;
        last = now;
    }
    fixture_must(e->complete(e, &batch[m.steps % 2]), "a step");
}

static int
by_size(const void *a, const void *b)
{
    const double x = *(const double *) a, y = *(const double *) b;

    return (x > y) - (x < y);
}

/* p99 of the steps but the first. */
static double
report(const char *what)
{
    uint32_t n = m.steps - 1;
    double *ms = m.ms + 1, p99;

    qsort(ms, n, sizeof(*ms), by_size);
    p99 = ms[n * 99 / 100];
    printf(" %s_p50_ms=%.3f %s_p99_ms=%.3f %s_max_ms=%.3f", what, ms[n / 2],
           what, p99, what, ms[n - 1]);
    return p99;
}

/* The sequence that moves, which will be kept under nobody's key. */
static void
make_mover(void)
{
    tr_kv_found_t none = { .match = { .node = TR_PREFIX_NONE,
                                      .part = TR_PREFIX_NONE } };
    tr_kv_cache_t *kv = m.b->e->kv;

    m.slot = tr_kv_open(kv, NULL);
    if (m.slot < 0) {
        fixture_die("moves", "no slot");
    }
    fixture_must(tr_kv_adopt(kv, m.slot, &nobodys, &none), "a slot");
    tr_kv_prompt(kv, m.slot, m.tokens);
    if (!fixture_compute(m.b, m.slot, 0, m.tokens, NULL)
        || !fixture_compress(m.b, m.slot, m.tokens)) {
        fixture_die("moves", "the pool does not hold what moves");
    }
    fixture_settle(m.b);
}

void
fixture_moves(fixture_t *b, uint32_t n, uint32_t tokens, uint32_t steps)
{
    tr_kv_cache_t *kv = b->e->kv;
    double alone, p99;
    tr_kv_usage_t u;
    tr_error_t err;

    m.b = b;
    m.n = n;
    m.tokens = tokens;
    m.steps = steps;
    m.ms = calloc(steps + 1, sizeof(*m.ms));
    if (m.ms == NULL || steps < 4 * EVERY) {
        fixture_die("moves", "expected more --steps");
    }
    if (!tr_kv_copies(kv, NULL)) {
        fixture_die("moves", "this policy's prefixes are not copied");
    }
    make_mover();
    tr_kv_usage(kv, m.slot, &u);
    if (tr_kv_shelf_open(kv, b->config.cache_memory, &err) != TR_OK) {
        fixture_die("moves", err.text);
    }
    printf(" batch=%u steps=%u move=%u move_mib=%.1f", n, steps, tokens,
           (double) u.bytes / (1 << 20));
    decode(nothing);
    alone = report("alone");
    decode(swap);
    p99 = report("swap");
    printf(" swap_over=%.3f swaps_out=%u swaps_in=%u", p99 / alone, m.outs,
           m.ins);
    if (m.outs > m.ins) {
        fixture_settle(b);
        fixture_must(tr_kv_swap_in(kv, m.slot), "coming back");
    }
    fixture_settle(b);
    tr_kv_keep(kv, m.slot, b->prompt, tokens, true);
    tr_kv_close(kv, m.slot);
    fixture_settle(b);
    decode(host);
    p99 = report("host");
    printf(" host_over=%.3f host_outs=%u host_ins=%u host_out_ms=%.2f"
           " host_in_ms=%.2f\n",
           p99 / alone, m.outs, m.ins, m.out_ms / (m.outs != 0 ? m.outs : 1),
           m.in_ms / (m.ins != 0 ? m.ins : 1));
    free(m.ms);
}
