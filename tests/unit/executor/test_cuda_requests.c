/*
 * Many random requests on `backend cuda`, with everything that can happen to
 * them: every kind of policy side by side, a pool so small that sequences make
 * way and find no pages, a short queue, hang-ups, slow clients; plain ones beside
 * such that are constrained.  Each gets what it gets alone in a pool without
 * bounds, where nothing is reused.
 *
 * On the software device (tests/soft) that is bit for bit.  On a GPU sums are
 * formed in an order that depends on the batch, so a token may be another where
 * two were as good as equal; and with it all that come after.  There
 *
 *   - every logprob before that is within a bound of what it is alone;
 *   - where greedy answers part, the other token was, alone, within a bound of
 *     the one chosen;
 *   - sampled, penalised and constrained answers, for which logprobs do not tell what was
 *     near, may part in a share of the cases.
 *
 * Bounds depend on the policy: where it compresses, a code or a threshold may
 * fall on the other side, which moves logits more than the order of a sum does.
 * tests/soft has noise (TOKENRING_SOFT_NOISE) that plays this, and faults that
 * show that the bounds are tight enough to see a page in another's place.
 *
 *   TR_TEST_REQUESTS   how many; 20
 *   TR_TEST_SEED       repeats them; threads are as they are
 *   TR_CUDA_LIBRARY    a GPU's library instead of the software device
 */
#include "tests/unit/fixtures/cuda_requests_fixture.h"

#include <math.h>

#define REQUESTS 20u /* at least; TR_TEST_REQUESTS */
#define FEWER 12u    /* in test_mixed_up */
#define NOISY 40u    /* in test_noise: of few, most may be long, and part */
#define TRIES 25u    /* threads decide what happens in one */
#define LATEST 64u
#define SHOWN 20u
#define FEW 4u /* tokens: too few for an average */
#define UNLIMITED (64u << 20)
#define SCARCE (5120u << 10) /* the longest fits, alone */

/* In nats.  lp: of a token's logprob, and half of what an alternative's may
 * differ by; mean: of those of an answer; gap: between tokens that took each
 * other's place.  An alternative may also differ by `share` as a
 * probability. */
typedef struct {
    double lp, mean, gap, share;
} bound_t;

/* 16 bits alone leave 2^-11 of a value, 0.02 of a logprob; where codes of few
 * bits flip, single tokens were seen to move by 0.5.  When a token has nearly
 * all of the probability, that says little of the others in nats: alone, with
 * noise of 2^-15 drawn eight times, static gave one token 0.83 to 1 and the
 * next -8.2 to -2.1.  What others gain is what it loses: 1 - exp(-lp). */
static const bound_t exactly = { 0.05, 0.02, 0.05, 0 };
static const bound_t coded = { 1.5, 0.25, 1, 0.78 };

static const bound_t *const bounds[POLICIES] = {
    &exactly, /* full */
    &coded,   /* uniform */
    &coded,   /* static */
    &coded,   /* diffkv */
    &coded,   /* kivi */
    &coded,   /* quest: which pages are read */
};

typedef struct {
    uint32_t answers, same, near, drawn, cut;
    uint32_t tokens, tokens_same; /* of answers that were not cut */
    double lp, mean, gap;         /* largest */
} tally_t;

/* ---- runs --------------------------------------------------------------- */

static void
run_alone(ask_t *asks, uint32_t n)
{
    requests_fixture_t c;

    requests_start(&c, asks, n, false, UNLIMITED);
    for (uint32_t i = 0; i < n; i++) {
        tr_status_t rc = requests_submit(&c, i);

        assert_int_equal(rc, asks[i].too_long ? TR_ERR_CONTEXT_LENGTH : TR_OK);
        while (c.open != 0) {
            turn(&c);
        }
    }
    assert_int_equal(atomic_load(&c.counters.preemptions), 0);
    assert_int_equal(c.done.stalls, 0);
    requests_stop(&c);
}

/* Somebody hangs up, somebody is slow: one of the latest to come. */
static void
disturb(requests_fixture_t *c, uint32_t next, uint64_t *rng)
{
    uint32_t some = next < LATEST ? next : LATEST;
    uint32_t i = next - 1 - rng_below(rng, some);
    tr_request_t *r = c->request[i];

    if (r == NULL) {
        return;
    }
    if (rng_below(rng, 8) == 0) {
        c->done.aborted += !c->asks[i].aborted;
        c->asks[i].aborted = true;
        atomic_store(&r->control, TR_CONTROL_ABORT);
    } else if (!c->asks[i].aborted) {
        atomic_fetch_xor(&r->control, TR_CONTROL_PAUSE);
    }
    tr_loop_wake(c->loop);
}

static void
resume(requests_fixture_t *c)
{
    for (uint32_t i = 0; i < c->n; i++) {
        if (c->request[i] != NULL) {
            atomic_fetch_and(&c->request[i]->control,
                             ~(uint32_t) TR_CONTROL_PAUSE);
        }
    }
    tr_loop_wake(c->loop);
}

/* As many as the queue takes, up to `most` inside. */
static uint32_t
arrive(requests_fixture_t *c, uint32_t next, uint32_t most)
{
    while (next < c->n && c->open < most) {
        tr_status_t rc = requests_submit(c, next);

        if (rc == TR_ERR_QUEUE_FULL) {
            c->done.full++;
            break;
        }
        assert_int_equal(rc, c->asks[next].too_long ? TR_ERR_CONTEXT_LENGTH
                                                    : TR_OK);
        c->done.refused += rc != TR_OK;
        next++;
    }
    return next;
}

/* Adds what happened to *sum. */
static void
run_together(ask_t *asks, uint32_t n, uint64_t rng, made_way_t *sum)
{
    uint32_t next = 0, turns = 0, swaps, preemptions, found;
    requests_fixture_t c;

    forget_together(asks, n);
    requests_start(&c, asks, n, true, SCARCE);
    while (next < n || c.open != 0) {
        next = arrive(&c, next, 8 + rng_below(&rng, 64));
        if (!turn(&c) || ++turns % 60 == 0) {
            resume(&c);
        } else if (next > 0 && rng_below(&rng, 4) == 0) {
            disturb(&c, next, &rng);
        }
    }
    preemptions = (uint32_t) atomic_load(&c.counters.preemptions);
    swaps = (uint32_t) atomic_load(&c.counters.kv_swaps);
    found = (uint32_t) atomic_load(&c.counters.prefix_tokens);
    print_message("%u requests in %u steps: %u aborted, %u refused for their "
                  "length, %u times the queue was full, %u answers to the end "
                  "of the context\n%u preemptions, %u of them swapped out and "
                  "in; %u rows found no page; %u tokens were found\n",
                  n, c.done.steps, c.done.aborted, c.done.refused, c.done.full,
                  c.done.limit, preemptions, swaps, c.done.stalls, found);
    assert_int_equal(atomic_load(&c.counters.kv_recomputations), 0);
    requests_stop(&c);
    sum->swaps += swaps;
    sum->stalls += c.done.stalls;
    sum->full += c.done.full;
    sum->refused += c.done.refused;
    sum->limit += c.done.limit;
    sum->aborted += c.done.aborted;
    sum->found += found;
    sum->evicted += (uint32_t) atomic_load(&c.counters.prefix_evicted);
}

/* ---- comparing ---------------------------------------------------------- */

static uint32_t n_wrong;

static void
differ(const ask_t *asks, const ask_t *ask, uint32_t k, const char *what,
       uint32_t at, double by)
{
    const answer_t *a = &ask->alone[k], *b = &ask->together[k];

    if (++n_wrong <= SHOWN) {
        print_message("request %u (policy %u, %u tokens%s), choice %u of %u: "
                      "%s differ at %u of %u and %u by %g\n"
                      "alone: %.*s\ntogether: %.*s\n",
                      (uint32_t) (ask - asks), ask->policy, ask->prompt_len,
                      ask->echo ? ", echo" : "", k, ask->n, what, at, a->n,
                      b->n, by, (int) a->len, a->text, (int) b->len, b->text);
    }
}

static bool
within(double x, double y, double bound)
{
    return exact ? x == y : fabs(x - y) <= bound;
}

static double
larger(double a, double b)
{
    return a > b ? a : b;
}

/* The first token that is another. */
static uint32_t
part(const answer_t *a, const answer_t *b)
{
    uint32_t n = a->n < b->n ? a->n : b->n, i = 0;

    while (i < n && a->step[i].token == b->step[i].token) {
        i++;
    }
    return i;
}

/* What the peer and the loop have is what the executor gave. */
static void
check_answer(const ask_t *asks, const ask_t *ask, uint32_t k, const answer_t *a,
             bool logprobs)
{
    uint32_t echoed = ask->echo ? ask->prompt_len : 0;

    if (a->n_token > a->n || a->n > a->n_token + 1) {
        differ(asks, ask, k, "kept tokens", a->n_token, 0);
    }
    for (uint32_t i = 0; i < a->n_token; i++) {
        if (a->token[i] != a->step[i].token) {
            differ(asks, ask, k, "kept tokens", i, 0);
        }
    }
    for (uint32_t i = echoed; logprobs && i < a->n_wire; i++) {
        if (!(i - echoed < a->n && a->wire[i] == a->step[i - echoed].logprob)) {
            differ(asks, ask, k, "sent logprobs", i, 0);
        }
    }
}

/* Which the peer's text keeps to; cut: it was aborted. */
static void
check_constraint(const ask_t *asks, const ask_t *ask, uint32_t k,
                 const answer_t *a, bool cut)
{
    bool whole = !cut && a->reason == TR_FINISH_STOP && ask->params.n_stop == 0
                 && ask->params.n_stop_tokens == 0;

    if (ask->constraint != 0 && !ask->echo
        && !constraint_holds(ask->constraint - 1, a->text, a->len, whole)) {
        differ(asks, ask, k, "texts and their constraint", a->len, 0);
    }
}

static bool
alternatives_within(double x, double y, const bound_t *b)
{
    return within(x, y, 2 * b->lp)
           || (!exact && fabs(exp(x) - exp(y)) <= b->share);
}

/* Logprobs of the echoed prompt, and of tokens [0, n). */
static void
check_logprobs(const ask_t *asks, const ask_t *ask, uint32_t k, uint32_t n,
               tally_t *t)
{
    const answer_t *a = &ask->alone[k], *b = &ask->together[k];
    double bound = bounds[ask->policy]->lp, sum = 0;
    uint32_t echoed = ask->echo && ask->params.logprobs >= 0 ? ask->prompt_len
                                                             : 0;

    for (uint32_t i = 1; i < echoed && i < b->n_wire; i++) {
        if (!within(a->wire[i], b->wire[i], bounds[0]->lp)) {
            differ(asks, ask, k, "logprobs of the prompt", i,
                   a->wire[i] - b->wire[i]);
        }
    }
    for (uint32_t i = 0; i < n && ask->params.logprobs >= 0; i++) {
        const tr_sampled_t *x = &a->step[i], *y = &b->step[i];

        t->lp = larger(t->lp, fabs(x->logprob - y->logprob));
        sum += fabs(x->logprob - y->logprob);
        if (!within(x->logprob, y->logprob, bound)) {
            differ(asks, ask, k, "logprobs", i, x->logprob - y->logprob);
        }
        for (uint32_t j = 0; j < y->n_top; j++) {
            if (!alternatives_within(x->top[j].logprob, y->top[j].logprob,
                                     bounds[ask->policy])
                || (exact && x->top[j].token != y->top[j].token)) {
                differ(asks, ask, k, "alternatives", i,
                       x->top[j].logprob - y->top[j].logprob);
            }
        }
    }
    sum /= n > FEW ? n : FEW;
    t->mean = larger(t->mean, sum);
    if (!(sum <= bounds[ask->policy]->mean)) {
        differ(asks, ask, k, "logprobs, on average,", n, sum);
    }
}

/* How much better, alone, the token was in whose place there is another. */
static double
gap_of(const tr_sampled_t *alone, int32_t other)
{
    for (uint32_t j = 0; j < alone->n_top; j++) {
        if (alone->top[j].token == other) {
            return alone->logprob - alone->top[j].logprob;
        }
    }
    return INFINITY;
}

/* Do logprobs tell which token would have been next? */
static bool
drawn(const ask_t *ask)
{
    const tr_sampling_params_t *p = &ask->params;

    return ask->constraint != 0 || p->temperature > 0
           || p->presence_penalty != 0 || p->frequency_penalty != 0
           || p->repetition_penalty != 1 || p->n_bias != 0;
}

static void
compare(const ask_t *asks, const ask_t *ask, uint32_t k, tally_t *t)
{
    const answer_t *a = &ask->alone[k], *b = &ask->together[k];
    uint32_t at = part(a, b);

    check_answer(asks, ask, k, a, !exact || ask->params.logprobs >= 0);
    check_answer(asks, ask, k, b, ask->params.logprobs >= 0);
    check_constraint(asks, ask, k, a, false);
    check_constraint(asks, ask, k, b, ask->aborted);
    check_logprobs(asks, ask, k, at, t);
    t->answers++;
    if (at == b->n && ask->aborted) { /* or had just come to its end */
        if (b->len > a->len
            || (b->len != 0 && memcmp(a->text, b->text, b->len) != 0)) {
            differ(asks, ask, k, "texts", b->len, 0);
        }
        t->cut++;
        return;
    }
    t->tokens += a->n;
    t->tokens_same += at;
    if (at == a->n && at == b->n) {
        if (a->len != b->len || a->reason != b->reason
            || (a->len != 0 && memcmp(a->text, b->text, a->len) != 0)) {
            differ(asks, ask, k, "texts", at, 0);
        }
        t->same++;
    } else if (exact || at == a->n || at == b->n) {
        differ(asks, ask, k, "tokens", at, 0);
    } else if (drawn(ask)) {
        t->drawn++;
    } else {
        double gap = gap_of(&a->step[at], b->step[at].token);

        t->gap = larger(t->gap, gap);
        if (!(gap <= bounds[ask->policy]->gap)) {
            differ(asks, ask, k, "greedy tokens", at, gap);
        }
        t->near++;
    }
}

static void
compare_all(const ask_t *asks, uint32_t n)
{
    static const char *const names[] = { "full",   "uniform", "static",
                                         "diffkv", "kivi",    "quest" };
    tally_t t[POLICIES] = { 0 };
    uint32_t answers = 0, parted = 0;

    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t k = 0; k < asks[i].n && !asks[i].too_long; k++) {
            compare(asks, &asks[i], k, &t[asks[i].policy]);
        }
    }
    print_message("policy   answers  same  near  drawn  cut  tokens  same  "
                  "logprobs within, on average  gaps\n");
    for (uint32_t p = 0; p < POLICIES; p++) {
        print_message("%-8s %7u %5u %5u %6u %4u %7u %5.3f %16.2g %11.2g "
                      "%5.2g\n",
                      names[p], t[p].answers, t[p].same, t[p].near, t[p].drawn,
                      t[p].cut, t[p].tokens,
                      (double) t[p].tokens_same / (t[p].tokens + 1e-9), t[p].lp,
                      t[p].mean, t[p].gap);
        answers += t[p].answers;
        parted += t[p].near + t[p].drawn;
    }
    assert_true(parted * 2 <= answers);
    assert_int_equal(n_wrong, 0);
}

/* ---- the test ----------------------------------------------------------- */

/* What has to happen; a few requests may need more than one try. */
static bool
all_happened(const made_way_t *d)
{
    return d->refused > 0 && d->full > 0 && d->limit > 0 && d->swaps > 0
           && d->stalls > 0 && d->aborted > 0;
}

static void
test_requests(void **state)
{
    const char *given = getenv("TR_TEST_REQUESTS");
    uint32_t n = given != NULL ? (uint32_t) strtoul(given, NULL, 10) : REQUESTS;
    ask_t *asks = make_asks(n, seed);
    made_way_t done = { 0 };

    (void) state;
    run_alone(asks, n);
    for (uint32_t try = 1; try <= TRIES && !all_happened(&done); try++) {
        run_together(asks, n, seed + try, &done);
        compare_all(asks, n);
        if (n < REQUESTS) { /* too few for that */
            break;
        }
    }
    assert_true(n < REQUESTS || all_happened(&done));
    free_asks(asks, n);
}

/* Under one policy, whose sequences share most of what they begin with: found
 * whole and cut, by several at once, in a pool from which much of it goes before
 * it is wanted again. */
static void
test_reuse(void **state)
{
    uint32_t n = REQUESTS;
    ask_t *asks = make_alike(n, seed);
    made_way_t done = { 0 };

    (void) state;
    run_alone(asks, n);
    for (uint32_t try = 1;
         try <= TRIES
         && (done.found < 200 || done.evicted == 0 || done.aborted == 0);
         try++) {
        run_together(asks, n, seed + try, &done);
        compare_all(asks, n);
    }
    assert_true(done.found >= 200 && done.evicted > 0 && done.aborted > 0);
    free_asks(asks, n);
}

/* This program again, on a software device of that kind, with a seed and so
 * many requests; what it says. */
static int
again(const char *environment, uint64_t with, uint32_t requests, char *said,
      size_t size)
{
    char command[1200], self[512];
    ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
    FILE *f;

    assert_true(n > 0);
    self[n] = '\0';
    snprintf(command, sizeof(command),
             "%s TR_TEST_SEED=%llu TR_TEST_REQUESTS=%u '%s' once 2>&1",
             environment, (unsigned long long) with, requests, self);
    f = popen(command, "r");
    assert_non_null(f);
    said[fread(said, 1, size - 1, f)] = '\0';
    return pclose(f);
}

static char said[1 << 16];

static void
test_noise(void **state)
{
    (void) state;
    if (again("TOKENRING_SOFT_NOISE=15", seed, NOISY, said, sizeof(said))
        != 0) {
        fputs(said, stderr); /* a message of cmocka's is cut off */
        fail();
    }
    assert_non_null(strstr(said, "logprobs within"));
}

/* With the same noise, a page that came back as another's is seen: answers
 * differ, or hold what is no number, which fails their request.  Whether one
 * comes back at all, and anybody still reads it, is in the requests and the
 * threads: other requests, and in the end every page, until it is. */
static void
test_mixed_up(void **state)
{
    static const uint32_t every[] = { 2, 2, 2, 2, 2, 1, 1, 1, 1, 1 };
    char environment[80];

    (void) state;
    for (uint32_t i = 0; i < sizeof(every) / sizeof(every[0]); i++) {
        snprintf(environment, sizeof(environment),
                 "TOKENRING_SOFT_NOISE=15 TOKENRING_SOFT_FAIL=page:%u",
                 every[i]);
        if (again(environment, seed + i, FEWER, said, sizeof(said)) != 0
            && (strstr(said, " differ at ") != NULL
                || strstr(said, " failed\n") != NULL)) {
            print_message("seen: every page %u, try %u\n", every[i], i + 1);
            return;
        }
    }
    fail_msg("not seen: %s", said);
}

static int
setup(void **state)
{
    tr_error_t err;

    (void) state;
    seed = rng_seed();
    exact = getenv("TR_CUDA_LIBRARY") == NULL
            && getenv("TOKENRING_SOFT_NOISE") == NULL;
    tr_log_open("stderr", TR_LEVEL_WARN);
    read_goldens();
    if (tr_tokenizer_load(POCKET, &tokenizer, &err) != TR_OK) {
        return -1;
    }
    constraints_open(tokenizer, tr_tokenizer_vocab_size(tokenizer), seed);
    return 0;
}

static int
teardown(void **state)
{
    (void) state;
    constraints_close();
    tr_tokenizer_free(tokenizer);
    return 0;
}

int
main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_requests),
        cmocka_unit_test(test_reuse),
        cmocka_unit_test(test_noise),
        cmocka_unit_test(test_mixed_up),
    };
    bool once = getenv("TR_CUDA_LIBRARY") != NULL
                || (argc > 1 && strcmp(argv[1], "once") == 0);

    cmocka_set_test_filter(argc > 1 ? "test_requests" /* again */
                           : once   ? "test_re*"
                                    : "*");
    return cmocka_run_group_tests(tests, setup, teardown);
}
