/*
 * A device's KV cache under a step loop that is ahead of it: random sequences
 * come, compute prompts, are compressed, generate, fork, go out and come in,
 * are closed while rows of theirs are under way, on a software device that runs
 * late (tests/soft), beside the CPU's cache.  See kv_device_fixture.h for what
 * is held.  In some rounds slots go out and come in by pieces: the CPU's do at
 * once, so while they are under way there are commands, and no rows.
 *
 *   TR_KV_ROUNDS=N  rounds (default 12; more until all that is rare was seen)
 *   TR_KV_SEED=N    the seed that a failure printed, for one round
 */
#include "tests/unit/fixtures/kv/kv_device_compare.h"

#include <time.h>

#define TURNS 220u

typedef enum { FREE, PROMPT, COMPLETE, DECODE, OUT } state_t;

typedef struct {
    state_t state;
    int32_t slot;
    uint32_t policy, computed, goal, under_way;
    uint64_t seed, life;
    bool first; /* turn */
    bool stuck; /* its last row found no page, when fixture_given was: */
    uint64_t given;
} who_t;

typedef struct {
    fixture_t r;
    tr_kv_policy_t twin; /* of the first: its thresholds by head elsewhere */
    double twin_alpha[FIXTURE_LAYERS * FIXTURE_KV_HEADS * 2];
    who_t who[FIXTURE_SEQS];
    uint64_t lives;
    bool pressed; /* somebody finds no page */
    uint64_t evictions, tokens, turns, pieces;
} run_t;

static const tr_kv_policy_t *
policy_of(const run_t *p, const who_t *w)
{
    return p->r.policy[w->policy];
}

/* ---- collect ------------------------------------------------------------ */

static uint32_t
under_way(const run_t *p)
{
    return (uint32_t) (p->r.g->next - p->r.g->oldest);
}

static void
collect(run_t *p)
{
    const fixture_batch_t *b = fixture_collect(&p->r);

    for (uint32_t i = 0; i < b->n; i++) {
        who_t *w = &p->who[b->item[i].who];

        if (w->life != b->item[i].life) {
            continue;
        }
        w->under_way--;
        w->stuck = b->short_of[i];
        w->given = b->given;
        if (!b->stalled[i]) {
            p->tokens += b->item[i].row.n;
        } else if (b->item[i].row.pos < w->computed) {
            w->computed = b->item[i].row.pos;
        }
    }
}

static void
submit_rows(run_t *p, fixture_batch_t *b, bool slow)
{
    uint64_t seed[FIXTURE_SEQS];

    for (uint32_t i = 0; i < b->n; i++) {
        who_t *w = &p->who[b->item[i].who];

        seed[i] = w->seed;
        w->under_way++;
    }
    fixture_submit(&p->r, b, seed, slow);
}

static fixture_batch_t *
coming(run_t *p)
{
    fixture_batch_t *b = &p->r.batch[p->r.g->next % TR_KV_IN_FLIGHT];

    b->n = b->rows = 0;
    return b;
}

/* Until nothing is asked or under way. */
static void
drain(run_t *p)
{
    while (under_way(p) > 0) {
        collect(p);
    }
    if (!tr_kv_settled(p->r.kv)) {
        submit_rows(p, coming(p), false);
        collect(p);
    }
    assert_true(tr_kv_settled(p->r.kv));
}

/* ---- sequences come and go ---------------------------------------------- */

static void
finish(run_t *p, who_t *w)
{
    fixture_log(&p->r, FIXTURE_CLOSE, w->slot, 0);
    p->r.closes++;
    tr_kv_close(p->r.kv, w->slot);
    memset(w, 0, sizeof(*w));
}

static void
make_twin(run_t *p)
{
    p->twin = *p->r.policy[0];
    if (p->twin.alpha_of != NULL) {
        memcpy(p->twin_alpha, p->twin.alpha_of, sizeof(p->twin_alpha));
        p->twin.alpha_of = p->twin_alpha;
    }
}

/* A slot for w with the beginning of its prompt. */
static bool
take_slot(run_t *p, who_t *w, uint32_t goal)
{
    uint32_t policy = random_below(p->r.n_policies);
    uint32_t first = policy == 0 ? random_below(3) : 0; /* said in three ways */
    int32_t slot = tr_kv_open(p->r.kv, first == 2   ? &p->twin
                                       : first == 1 ? NULL
                                                    : p->r.policy[policy]);

    if (slot < 0) {
        return false;
    }
    *w = (who_t){ .state = PROMPT,
                  .slot = slot,
                  .policy = policy,
                  .goal = goal,
                  .seed = random_below(1u << 30),
                  .life = ++p->lives,
                  .first = true };
    fixture_log(&p->r, FIXTURE_OPEN, slot, 0)->policy = policy;
    fixture_log(&p->r, FIXTURE_PROMPT, slot, goal);
    tr_kv_prompt(p->r.kv, slot, goal);
    return true;
}

static void
arrive(run_t *p, who_t *w)
{
    const tr_kv_policy_t *policy;
    uint32_t most;

    if (!take_slot(p, w, 1 + random_below(p->r.max_len / 2))) {
        return;
    }
    policy = policy_of(p, w);
    most = tr_kv_max_len(p->r.kv, policy);
    if (w->goal > most
        || (random_below(2)
            && fixture_reserve(&p->r, w->slot, w->goal) != TR_OK)) {
        finish(p, w);
    }
}

/* w becomes another's prompt as far as it was computed. */
static void
split(run_t *p, who_t *w, const who_t *from)
{
    const tr_kv_policy_t *a = policy_of(p, from), *b;
    uint32_t len = from->computed;
    fixture_entry_t *e;
    uint64_t bound;
    tr_status_t rc;
    bool exact;

    if (!from->first || len == 0 || from->state != PROMPT
        || tr_kv_device_base(p->r.kv, from->slot) != 0
        || !take_slot(p, w, from->goal)) {
        return;
    }
    b = policy_of(p, w);
    bound = fixture_bound(&p->r);
    exact = tr_kv_settled(p->r.kv);
    if (w->goal > tr_kv_max_len(p->r.kv, b) || (b->scored && !a->scored)
        || (b->minmax && !a->minmax)) {
        finish(p, w);
        return;
    }
    rc = tr_kv_fork(p->r.kv, from->slot, w->slot, len);
    if (rc != TR_OK) {
        assert_int_equal(rc, TR_AGAIN);
        e = fixture_log(&p->r, FIXTURE_REFUSED, w->slot, len);
        e->bound = bound;
        e->exact = exact;
        finish(p, w);
        return;
    }
    fixture_log(&p->r, FIXTURE_FORK, w->slot, len)->other = from->slot;
    w->computed = len;
    p->r.forks++;
}

static void
swap(run_t *p, who_t *w)
{
    bool out = w->state == OUT;
    tr_status_t rc = out ? tr_kv_swap_in(p->r.kv, w->slot)
                         : tr_kv_swap_out(p->r.kv, w->slot);

    assert_true(rc == TR_OK || rc == TR_AGAIN);
    if (rc == TR_OK) {
        fixture_log(&p->r, out ? FIXTURE_IN : FIXTURE_OUT, w->slot, 0);
        w->state = out ? DECODE : OUT;
        p->r.swaps++;
    }
}

/* A compressed sequence gets a further prompt. */
static void
turn(run_t *p, who_t *w)
{
    uint32_t most = tr_kv_max_len(p->r.kv, policy_of(p, w));

    if (w->under_way != 0 || w->computed + 2 > most) {
        return;
    }
    w->goal = w->computed + 1 + random_below(most - w->computed);
    w->state = PROMPT;
    w->first = false;
    fixture_log(&p->r, FIXTURE_PROMPT, w->slot, w->goal);
    tr_kv_prompt(p->r.kv, w->slot, w->goal);
}

/* Somebody makes way. */
static void
evict(run_t *p)
{
    uint32_t first = random_below(FIXTURE_SEQS);

    for (uint32_t i = 0; i < FIXTURE_SEQS; i++) {
        who_t *w = &p->who[(first + i) % FIXTURE_SEQS];

        if (w->state == FREE || w->state == OUT) {
            continue;
        }
        if (w->state == DECODE && random_below(2)) {
            swap(p, w);
        }
        if (w->state != OUT) {
            finish(p, w);
        }
        p->evictions++;
        return;
    }
}

static void
happen(run_t *p)
{
    who_t *w = &p->who[random_below(FIXTURE_SEQS)];
    const who_t *from = w;
    uint32_t dice = random_below(24);

    if (w->state == FREE) {
        if (dice < 12) {
            for (uint32_t i = 0; i < FIXTURE_SEQS; i++) {
                from = p->who[i].state == PROMPT ? &p->who[i] : from;
            }
            split(p, w, from);
        } else if (dice < 20) {
            arrive(p, w);
        }
    } else if (dice == 0) {
        finish(p, w);
    } else if (w->state == OUT ? dice < 10 : w->state == DECODE && dice < 3) {
        swap(p, w);
    } else if (w->state == DECODE && dice == 3) {
        turn(p, w);
    }
}

/* ---- batches ------------------------------------------------------------ */

static void
add_row(fixture_batch_t *b, const run_t *p, who_t *w, uint32_t n)
{
    fixture_item_t *item = &b->item[b->n++];

    item->row = (tr_kv_device_row_t){ w->slot, w->computed, n };
    item->who = (uint32_t) (w - p->who);
    item->life = w->life;
    b->rows += n;
    w->computed += n;
}

static bool
asked(run_t *p, tr_status_t rc)
{
    p->pressed = p->pressed || (rc != TR_OK && tr_kv_settled(p->r.kv));
    return rc == TR_OK;
}

/* Before position w->computed; of n tokens, those before the next stage. */
static uint32_t
until_stage(run_t *p, const who_t *w, uint32_t n)
{
    uint32_t stage = tr_kv_stages(p->r.kv, policy_of(p, w));

    if (stage == 0 || w->goal <= stage) {
        return n;
    }
    if (tr_kv_stage_due(p->r.kv, w->slot, w->computed)) {
        if (!asked(p, tr_kv_stage(p->r.kv, w->slot, w->computed))) {
            return 0;
        }
        fixture_log(&p->r, FIXTURE_STAGE, w->slot, w->computed);
        p->r.stages++;
    }
    return n < stage - w->computed % stage ? n : stage - w->computed % stage;
}

static void
compose_prompt(run_t *p, fixture_batch_t *b, who_t *w)
{
    uint32_t n = 1 + random_below(25), left = FIXTURE_ROWS - b->rows;

    n = until_stage(p, w, n);
    n = n < w->goal - w->computed ? n : w->goal - w->computed;
    n = n < left ? n : left;
    if (n != 0 && asked(p, fixture_reserve(&p->r, w->slot, w->computed + n))) {
        add_row(b, p, w, n);
    }
}

static void
compose_next(run_t *p, fixture_batch_t *b, who_t *w)
{
    tr_status_t rc = fixture_reserve(&p->r, w->slot, w->computed + 1);

    /* as long as nothing was given back it would stall again */
    assert_true(!w->stuck || w->given != fixture_given(&p->r)
                || rc == TR_AGAIN);
    if (asked(p, rc) && random_below(12) != 0) {
        add_row(b, p, w, 1);
    }
}

static void
compose_one(run_t *p, fixture_batch_t *b, who_t *w)
{
    const tr_kv_policy_t *policy;

    if (w->state == FREE || w->state == OUT || random_below(10) == 0) {
        return;
    }
    policy = policy_of(p, w);
    if (w->state == PROMPT && w->computed == w->goal) {
        w->state = policy->n_levels != 0 ? COMPLETE : DECODE;
    }
    if (w->state == COMPLETE
        && asked(p, fixture_compress(&p->r, w->slot, w->computed))) {
        w->state = DECODE;
    }
    if (w->state == PROMPT) {
        compose_prompt(p, b, w);
    } else if (w->state == DECODE) {
        if (w->computed >= tr_kv_max_len(p->r.kv, policy)) {
            finish(p, w);
        } else if (b->rows < FIXTURE_ROWS) {
            compose_next(p, b, w);
        }
    }
}

/* Some of those whose compression is under way are closed: nobody knows then
 * what they hold. */
static void
close_tried(run_t *p)
{
    for (uint32_t i = 0; i < FIXTURE_SEQS; i++) {
        who_t *w = &p->who[i];

        if (w->state == COMPLETE && random_below(4) == 0
            && p->r.g->mirror[w->slot].trial == TR_KV_TRIED) {
            finish(p, w);
        }
    }
}

/* Before a batch of which none has a row. */
static void
one_piece(run_t *p)
{
    submit_rows(p, coming(p), true);
    p->pieces += p->r.g->n_moving != 0;
    while (under_way(p) > 0) {
        collect(p);
    }
    p->turns++;
}

static void
one_turn(run_t *p)
{
    uint32_t first = random_below(FIXTURE_SEQS), n = random_below(4);
    fixture_batch_t *b;

    while (n-- > 0) {
        happen(p);
    }
    if (p->r.g->n_moving != 0 && random_below(4) != 0) {
        one_piece(p);
        return;
    }
    tr_kv_move_some(p->r.g, true);
    b = coming(p);
    p->pressed = false;
    for (uint32_t i = 0; i < FIXTURE_SEQS; i++) {
        compose_one(p, b, &p->who[(first + i) % FIXTURE_SEQS]);
    }
    if (b->n != 0 || !tr_kv_settled(p->r.kv)) {
        submit_rows(p, b, false);
    }
    close_tried(p);
    while (under_way(p) > random_below(2) || under_way(p) == TR_KV_IN_FLIGHT) {
        collect(p);
    }
    if (p->pressed) {
        evict(p);
    }
    p->turns++;
}

static void
round_of(run_t *p, uint64_t seed)
{
    memset(p, 0, sizeof(*p));
    fixture_state = seed * 0x9e3779b97f4a7c15u + 88172645463325252u;
    for (uint32_t i = 0; i < 8; i++) {
        random_below(2);
    }
    fixture_create(&p->r, 4 * (12 + random_below(40)));
    make_twin(p);
    for (uint32_t i = 0; i < TURNS; i++) {
        one_turn(p);
        if (random_below(12) == 0) {
            drain(p);
            fixture_compare(&p->r);
        }
    }
    for (uint32_t i = 0; i < FIXTURE_SEQS; i++) {
        if (p->who[i].state != FREE) {
            finish(p, &p->who[i]);
        }
    }
    drain(p);
    fixture_compare(&p->r);
    assert_int_equal(tr_kv_free_pages(p->r.kv), tr_kv_pages(p->r.kv));
    assert_int_equal(p->r.g->n_free_ids, p->r.kv->swap.n);
    fixture_destroy(&p->r);
}

/* What all rounds together have seen. */
typedef struct {
    uint64_t tokens, stalls, stages, compressed, denied, swaps, forks, refused,
        pieces;
} seen_t;

static void
count_round(seen_t *seen, const run_t *p)
{
    seen->tokens += p->tokens;
    seen->stalls += p->r.stalls;
    seen->stages += p->r.stages;
    seen->compressed += p->r.compressed;
    seen->denied += p->r.denied;
    seen->swaps += p->r.swaps;
    seen->forks += p->r.forks;
    seen->refused += p->r.refused;
    seen->pieces += p->pieces;
}

static bool
saw_all(const seen_t *s)
{
    return s->tokens > 0 && s->compressed > 0 && s->swaps > 0 && s->forks > 0
           && s->stalls > 0 && s->stages > 0 && s->denied > 0 && s->refused > 0
           && s->pieces > 0;
}

static void
test_same_as_cpu(void **state)
{
    static run_t p;
    const char *given = getenv("TR_KV_SEED"), *some = getenv("TR_KV_ROUNDS");
    uint64_t seed = given != NULL ? strtoull(given, NULL, 10)
                                  : (uint64_t) time(NULL);
    uint32_t rounds = given != NULL  ? 1
                      : some != NULL ? (uint32_t) atoi(some)
                                     : 12;
    /* what is rare may take more of them */
    uint32_t most = rounds < 8 ? rounds : 8 * rounds;
    seen_t seen = { 0 };

    (void) state;
    for (uint32_t i = 0; i < rounds || (i < most && !saw_all(&seen)); i++) {
        print_message("TR_KV_SEED=%llu\n", (unsigned long long) (seed + i));
        round_of(&p, seed + i);
        count_round(&seen, &p);
    }
    print_message(
        "%llu tokens, %llu stalls, %llu stages, %llu prompts"
        " compressed and %llu denied, %llu swaps, %llu forks, %llu"
        " refused, %llu batches amid a swap\n",
        (unsigned long long) seen.tokens, (unsigned long long) seen.stalls,
        (unsigned long long) seen.stages, (unsigned long long) seen.compressed,
        (unsigned long long) seen.denied, (unsigned long long) seen.swaps,
        (unsigned long long) seen.forks, (unsigned long long) seen.refused,
        (unsigned long long) seen.pieces);
    assert_true(seen.tokens > 0);
    assert_true(rounds < 8 || saw_all(&seen));
}

/* ---- one at a time ------------------------------------------------------ */

/* One batch of these rows, from beginning to end. */
static void
batch_of(fixture_t *r, const tr_kv_device_row_t *rows, uint32_t n,
         bool *stalled)
{
    assert_int_equal(tr_kv_device_begin(r->kv, rows, n), 0);
    assert_int_equal(tr_kv_device_step(r->kv, n), 0);
    assert_int_equal(tr_kv_device_end(r->kv), 0);
    assert_int_equal(cuda->stream_wait(&r->stream), 0);
    assert_int_equal(tr_kv_device_settle(r->kv, stalled), TR_OK);
}

static void
test_fork_history(void **state)
{
    static fixture_t r;
    int32_t *text, a, b;
    uint32_t len;

    (void) state;
    fixture_state = 88172645463325252u;
    fixture_create(&r, 400);
    text = cuda->pin(2ul * r.max_len * sizeof(*text));
    for (uint32_t i = 0; i < r.max_len; i++) {
        text[i] = (int32_t) i * 7 + 1;
    }
    len = r.max_len / 2;
    a = tr_kv_open(r.kv, NULL);
    tr_kv_prompt(r.kv, a, len);
    assert_int_equal(tr_kv_reserve(r.kv, a, len), TR_OK);
    b = tr_kv_open(r.kv, NULL);
    tr_kv_prompt(r.kv, b, len);
    assert_int_equal(cuda->copy(&r.stream, r.history + (size_t) a * r.max_len,
                                text, r.max_len * sizeof(*text)),
                     0);
    assert_int_equal(tr_kv_fork(r.kv, a, b, len), TR_OK);
    assert_false(tr_kv_settled(r.kv));
    batch_of(&r, NULL, 0, NULL);
    assert_true(tr_kv_settled(r.kv));
    assert_int_equal(cuda->copy(&r.stream, text + r.max_len,
                                r.history + (size_t) b * r.max_len,
                                r.max_len * sizeof(*text)),
                     0);
    assert_int_equal(cuda->stream_wait(&r.stream), 0);
    assert_memory_equal(text, text + r.max_len, len * sizeof(*text));
    assert_int_not_equal(text[r.max_len + len], text[len]); /* not beyond */
    tr_kv_close(r.kv, a);
    tr_kv_close(r.kv, b);
    cuda->unpin(text);
    fixture_destroy(&r);
}

/* A batch whose report never came, because a launch failed, is no success. */
static void
test_no_report(void **state)
{
    static fixture_t r;
    bool stalled[FIXTURE_SEQS];

    (void) state;
    fixture_state = 88172645463325252u;
    fixture_create(&r, 400);
    batch_of(&r, NULL, 0, NULL);
    batch_of(&r, NULL, 0, NULL);
    assert_int_equal(tr_kv_device_begin(r.kv, NULL, 0), 0);
    assert_int_equal(tr_kv_device_settle(r.kv, stalled), TR_ERR_INTERNAL);
    assert_false(tr_kv_sound(r.kv));
    assert_int_equal(tr_kv_device_begin(r.kv, NULL, 0), TR_CUDA_FAILED);
    fixture_destroy(&r);
}

/* What does not fit is refused, with numbers. */
static void
test_sizes(void **state)
{
    static fixture_t r;
    tr_kv_device_t d = { .cuda = cuda, .max_seqs = 4, .max_prompts = 2 };
    tr_kv_config_t c;
    tr_kv_cache_t *kv;
    tr_error_t err;

    (void) state;
    fixture_state = 88172645463325252u;
    fixture_create(&r, 400);
    c = fixture_config(&r);
    d.stream = &r.stream;
    c.memory = 20000;
    assert_int_equal(tr_kv_device_create(&c, &d, &kv, &err), TR_ERR_INVALID);
    assert_non_null(strstr(err.text, "pages of"));
    assert_string_equal(err.param, "kv_memory");
    c.memory = 1ull << 40; /* more than there is */
    assert_int_equal(tr_kv_device_create(&c, &d, &kv, &err), TR_ERR_NOMEM);
    assert_non_null(strstr(err.text, "MiB"));
    c.memory = 1u << 30;
    c.slots = TR_KV_SLOTS_MAX + 1;
    assert_int_equal(tr_kv_device_create(&c, &d, &kv, &err), TR_ERR_INVALID);
    assert_non_null(strstr(err.text, "4097"));
    c.slots = 4;
    d.max_prompts = 0;
    assert_int_equal(tr_kv_device_create(&c, &d, &kv, &err), TR_ERR_INVALID);
    d.max_prompts = 2;
    assert_null(kv);
    fixture_destroy(&r);
}

static int
setup(void **state)
{
    (void) state;
    soft_load();
    return 0;
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_as_cpu),
        cmocka_unit_test(test_fork_history),
        cmocka_unit_test(test_no_report),
        cmocka_unit_test(test_sizes),
    };

    return cmocka_run_group_tests(tests, setup, NULL);
}
