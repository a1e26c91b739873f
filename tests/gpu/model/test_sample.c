/*
 * tr_cuda_sample against plain C (model_reference.h): batches of random
 * sampling parameters over vocabularies from one token to 152,064, equal
 * logits, minus infinities, rows that are no numbers, stalled rows and padding,
 * masks, rows that are another launch's; a row alone gives the bits that it gives
 * among others.
 *
 * A draw whose random number falls on the edge of two tokens' shares may differ
 * in the last bits of exp: then the token must be one whose share comes within
 * a millionth of it, and there may be few of those.
 *
 *   test_sample [rounds [seed]]
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "model_reference.h"
#include "tests/gpu/fixtures/arrays.h"

enum { SLOTS = 90, LEN = 100, NAMED = 40, MASKS = 6 };

static side_t side;
static unsigned long long rows_done, masked, drawn, edges, failures;

typedef struct {
    tr_cuda_sample_t a;
    array_t logits, sampling, seq_slot, bias, bar, history, out, top, work;
    array_t mask_at, mask;
    bool unmasked; /* there are no masks at all */
} case_t;

/* ---- random cases ------------------------------------------------------- */

static void
invent_logits(case_t *c, uint32_t r)
{
    float *x = (float *) array_host(&c->logits) + r * c->a.ld;
    double scale = pow(10, random_unit() * 5 - 2), same = random_normal();
    uint32_t kind = random_below(8);

    for (uint32_t i = 0; i < c->a.vocab; i++) {
        x[i] = (float) (random_normal() * scale);
        if (kind == 0) { /* equals by the hundred */
            x[i] = (float) same;
        } else if (kind == 1) {
            x[i] = (float) (int32_t) random_below(7) - 3;
        } else if (kind == 2 && random_below(10) > 0) {
            x[i] = -INFINITY;
        } else if (kind == 3) { /* nothing but zeros, of both signs */
            x[i] = random_below(2) ? -0.0f : 0.0f;
        }
    }
    if (kind == 4) { /* one that nothing comes near */
        x[random_below(c->a.vocab)] = (float) (scale * 100);
    }
    if (random_below(25) == 0) {
        x[random_below(c->a.vocab)] = random_below(2) ? NAN : INFINITY;
    }
    if (random_below(40) == 0) {
        x[random_below(c->a.vocab)] = -NAN;
    }
}

static void
invent_penalties(tr_cuda_sampling_t *w)
{
    w->repetition = random_below(2) ? 1 : (float) (0.5 + random_unit() * 2);
    w->presence = random_below(2) ? 0 : (float) (random_unit() * 4 - 2);
    w->frequency = random_below(2) ? 0 : (float) (random_unit() * 4 - 2);
    w->bias_at = random_below(NAMED / 2);
    w->n_bias = random_below(2) ? 0 : random_below(NAMED / 2);
    w->bar_at = random_below(NAMED / 2);
    w->n_bar = random_below(2) ? 0 : random_below(NAMED / 2);
}

/* From nothing at all to everything; some bits beyond the vocabulary are set. */
static void
invent_mask(case_t *c, uint32_t m)
{
    size_t words = (c->a.vocab + 31) / 32;
    uint32_t *mask = (uint32_t *) array_host(&c->mask) + m * words;
    uint32_t kind = random_below(8), few = 1 + random_below(12);

    for (size_t i = 0; i < words; i++) {
        mask[i] = kind < 5   ? 0
                  : kind < 7 ? random_below(UINT32_MAX)
                             : UINT32_MAX;
    }
    for (uint32_t i = 0; i < few && kind > 0 && kind < 5; i++) {
        uint32_t id = random_below(c->a.vocab);

        mask[id / 32] |= 1u << id % 32;
    }
}

static void
invent_masks(case_t *c)
{
    c->a.late = random_below(3) == 0;
    c->unmasked = random_below(3) == 0;
    c->mask_at = array_new(c->a.rows, 4, false);
    c->mask = array_new((size_t) MASKS * ((c->a.vocab + 31) / 32), 4, false);
    for (uint32_t m = 0; m < MASKS; m++) {
        invent_mask(c, m);
    }
    for (uint32_t r = 0; r < c->a.rows; r++) {
        tr_cuda_sampling_t *w = (tr_cuda_sampling_t *) array_host(&c->sampling);

        ((int32_t *) array_host(
            &c->mask_at))[r] = (int32_t) random_below(2 * MASKS) - MASKS;
        w[r].late = (random_below(6) == 0) != c->a.late;
    }
    array_send(&c->mask_at);
    array_send(&c->mask);
}

static void
invent_sampling(case_t *c, uint32_t r)
{
    tr_cuda_sampling_t *w = (tr_cuda_sampling_t *) array_host(&c->sampling) + r;
    uint32_t vocab = c->a.vocab;

    memset(w, 0, sizeof(*w));
    w->slot = (int32_t) r; /* what a row enters, no other one reads */
    w->pos = random_below(LEN + 1);
    w->prompt_len = 1 + random_below(w->pos + 1);
    w->number = random_below(2000);
    w->seed = (uint64_t) (random_unit() * 0x1p53) << random_below(12);
    w->temperature = random_below(4) ? (float) (0.02 + random_unit() * 2) : 0;
    w->top_p = random_below(2) ? (float) (1 - pow(random_unit(), 3)) : 1;
    w->min_p = random_below(3) ? 0 : (float) pow(random_unit(), 4);
    w->top_k = random_below(2)   ? 0
               : random_below(3) ? (int32_t) (1 + random_below(60))
                                 : (int32_t) (1 + random_below(vocab + 10));
    w->repetition = 1;
    if (random_below(2)) {
        invent_penalties(w);
    }
    w->logprobs = random_below(2) ? -1
                                  : (int32_t) random_below(TR_CUDA_TOP_MAX + 3);
    w->target = random_below(6) ? -1 : (int32_t) random_below(vocab + 1);
    w->sequence = random_below(SLOTS);
    if (w->top_p == 0) {
        w->top_p = 1;
    }
    if (random_below(12) == 0) {
        w->slot = -1;
    }
}

static uint32_t
any_vocab(void)
{
    static const uint32_t of_models[] = { 32000, 128256, 151936, 152064 };
    uint32_t kind = random_below(6);

    return kind == 0  ? of_models[random_below(4)]
           : kind < 3 ? 1 + random_below(20000)
           : kind < 5 ? 1 + random_below(30)
                      : 1 + random_below(3000);
}

static void
case_open(case_t *c)
{
    uint32_t vocab = any_vocab();
    uint32_t rows = 1 + random_below(vocab > 20000 ? 4 : SLOTS);
    bool odd = random_below(4) == 0;

    memset(c, 0, sizeof(*c));
    c->a.rows = rows;
    c->a.vocab = vocab;
    c->a.ld = vocab + (random_below(2) ? 0 : random_below(70));
    c->a.ld = random_below(3) ? tr_pad(c->a.ld, 4) : c->a.ld;
    c->logits = array_new(rows * c->a.ld, 4, odd);
    c->sampling = array_new(rows, sizeof(tr_cuda_sampling_t), false);
    c->seq_slot = array_new(SLOTS, 4, false);
    c->bias = array_new(NAMED, sizeof(tr_cuda_bias_t), false);
    c->bar = array_new(NAMED, 4, false);
    c->history = array_new(SLOTS * LEN, 4, false);
    c->out = array_new(rows, sizeof(tr_cuda_sampled_t), false);
    c->top = array_new(rows * TR_CUDA_TOP_MAX, sizeof(tr_cuda_top_t), false);
    c->work = array_new(tr_cuda_sample_work(&side.device, rows, vocab), 1,
                        false);
    for (uint32_t r = 0; r < rows; r++) {
        invent_logits(c, r);
        invent_sampling(c, r);
    }
    invent_masks(c);
    for (uint32_t i = 0; i < SLOTS; i++) {
        ((int32_t *) array_host(&c->seq_slot))[i] = random_below(8)
                                                        ? (int32_t) i
                                                        : -1;
    }
    for (uint32_t i = 0; i < NAMED; i++) {
        uint32_t few = random_below(2) ? 5 : vocab + 2;

        ((tr_cuda_bias_t *) array_host(&c->bias))[i] = (tr_cuda_bias_t){
            (int32_t) random_below(few) - 1, (float) (random_unit() * 200 - 100)
        };
        ((int32_t *) array_host(&c->bar))[i] = (int32_t) random_below(few) - 1;
    }
    for (uint32_t i = 0; i < SLOTS * LEN; i++) {
        ((int32_t *) array_host(&c->history))[i] = (int32_t) random_below(
                                                       random_below(2)
                                                           ? 9
                                                           : vocab + 2)
                                                   - 1;
    }
    array_send(&c->logits);
    array_send(&c->sampling);
    array_send(&c->seq_slot);
    array_send(&c->bias);
    array_send(&c->bar);
    array_send(&c->history);
}

static void
case_close(case_t *c)
{
    array_t *all[] = { &c->logits, &c->sampling, &c->seq_slot, &c->bias,
                       &c->bar,    &c->history,  &c->out,      &c->top,
                       &c->work,   &c->mask,     &c->mask_at };

    for (uint32_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        array_free(all[i]);
    }
}

static tr_cuda_sample_t
case_args(const case_t *c, void *(*of)(const array_t *) )
{
    tr_cuda_sample_t a = c->a;

    a.logits = of(&c->logits);
    a.sampling = of(&c->sampling);
    a.seq_slot = of(&c->seq_slot);
    a.bias = of(&c->bias);
    a.bar = of(&c->bar);
    a.mask_at = c->unmasked ? NULL : of(&c->mask_at);
    a.mask = of(&c->mask);
    a.history = (tr_cuda_history_t){ of(&c->history), LEN };
    a.out = of(&c->out);
    a.top = of(&c->top);
    a.work = of(&c->work);
    return a;
}

static void
run_there(const tr_cuda_sample_t *a)
{
    side_launch(&side, tr_cuda_sample(&side.stream, a), "sample");
}

/* ---- edges -------------------------------------------------------------- */

typedef struct {
    double logit, weight;
    uint32_t id;
} candidate_t;

static int
best_first(const void *a, const void *b)
{
    const candidate_t *x = a, *y = b;

    return x->logit > y->logit   ? -1
           : x->logit < y->logit ? 1
                                 : (x->id > y->id) - (x->id < y->id);
}

/* How many of c[n], best first, are left when top_p and min_p are a bit larger
 * or smaller. */
static uint32_t
left(const tr_cuda_sampling_t *w, const candidate_t *c, uint32_t n, double bend)
{
    double sum = 0, kept = 0;
    uint32_t i = 0;

    if (w->top_k > 0 && (uint32_t) w->top_k < n) {
        n = (uint32_t) w->top_k;
    }
    for (uint32_t j = 0; j < n; j++) {
        sum += c[j].weight;
    }
    while (w->top_p < 1 && i < n && kept < (double) w->top_p * bend * sum) {
        kept += c[i++].weight;
    }
    n = w->top_p < 1 ? (i > 0 ? i : 1) : n;
    while (n > 1 && c[n - 1].weight < (double) w->min_p / bend) {
        n--;
    }
    return n;
}

/* Is `token` one that a random number within a millionth of the row's draws
 * from the logits x? */
static bool
near_edge(const tr_cuda_sampling_t *w, const float *x, uint32_t vocab,
          uint32_t token, double number)
{
    candidate_t *c = malloc((size_t) vocab * sizeof(*c));
    bool near = false;

    for (uint32_t i = 0; i < vocab; i++) {
        c[i] = (candidate_t){ (double) x[i], 0, i };
    }
    qsort(c, vocab, sizeof(*c), best_first);
    for (uint32_t i = 0; i < vocab; i++) {
        c[i].weight = exp((c[i].logit - c[0].logit) / (double) w->temperature);
    }
    for (int k = -1; k <= 1 && !near; k++) {
        uint32_t n = left(w, c, vocab, 1 + k * 1e-6);
        double low = 0, own = 0, sum = 0;

        for (uint32_t i = 0; i < n; i++) {
            sum += c[i].weight;
            low += c[i].id < token ? c[i].weight : 0;
            own += c[i].id == token ? c[i].weight : 0;
        }
        near = own > 0 && number >= low / sum - 1e-6
               && number <= (low + own) / sum + 1e-6;
    }
    free(c);
    return near;
}

/* The random number of a row: engine/sampling/sampler.c. */
static uint64_t
mix(uint64_t x)
{
    for (int i = 0; i < 2; i++) {
        x ^= x >> 32;
        x *= 0xd6e8feb86659fd93ull;
    }
    return x ^ x >> 32;
}

static double
uniform(const tr_cuda_sampling_t *w)
{
    uint64_t x = mix(w->seed + 0x9e3779b97f4a7c15ull);

    x = mix(x ^ ((uint64_t) w->number + 1) * 0x9e3779b97f4a7c15ull);
    return (double) (x >> 11) * 0x1p-53;
}

/* Is what was drawn instead of `want` as good?  The logits of rows with
 * penalties or masks are not here: their edges are left to rows without. */
static bool
is_masked(const case_t *c, uint32_t r)
{
    return !c->unmasked && ((int32_t *) array_host(&c->mask_at))[r] >= 0;
}

static bool
is_edge(const case_t *c, uint32_t r, int32_t want, int32_t got)
{
    const tr_cuda_sampling_t *w = (tr_cuda_sampling_t *) array_host(
                                      &c->sampling)
                                  + r;
    bool shaped = is_masked(c, r) || w->n_bias > 0 || w->n_bar > 0
                  || w->repetition != 1 || w->presence != 0
                  || w->frequency != 0;

    if (want < 0 || got < 0 || w->target >= 0 || w->temperature == 0) {
        return false;
    }
    edges++;
    return shaped
           || near_edge(w, (float *) array_host(&c->logits) + r * c->a.ld,
                        c->a.vocab, (uint32_t) got, uniform(w));
}

/* ---- comparison --------------------------------------------------------- */

static bool
logprob_close(float got, float want)
{
    return fabsf(got - want) <= 2e-6f * (1 + fabsf(want));
}

static bool
check_row(const case_t *c, uint32_t r, const tr_cuda_sampled_t *got,
          const tr_cuda_top_t *top)
{
    const tr_cuda_sampling_t *w = (tr_cuda_sampling_t *) array_host(
                                      &c->sampling)
                                  + r;
    tr_cuda_sampled_t *want = (tr_cuda_sampled_t *) array_host(&c->out) + r;
    const tr_cuda_top_t *best = (tr_cuda_top_t *) array_host(&c->top)
                                + (size_t) r * TR_CUDA_TOP_MAX;
    int32_t *history = array_host(&c->history);
    size_t next = (size_t) w->slot * LEN + w->pos + 1;

    if ((w->late != 0) != c->a.late) { /* as it was */
        return memcmp(got, want, sizeof(*got)) == 0
               && memcmp(top, best, TR_CUDA_TOP_MAX * sizeof(*top)) == 0;
    }
    rows_done++;
    masked += is_masked(c, r) && want->token >= 0 && w->target < 0;
    drawn += want->token >= 0 && w->target < 0 && w->temperature > 0;
    failures += want->token == TR_CUDA_BAD_LOGITS;
    if (got->token != want->token) {
        if (!is_edge(c, r, want->token, got->token)) {
            printf("row %u: token %d, expected %d\n", r, got->token,
                   want->token);
            return false;
        }
        if (w->pos + 1 < LEN) {
            history[next] = got->token;
        }
        return true; /* its logprob is another */
    }
    if (got->n_top != want->n_top
        || !logprob_close(got->logprob, want->logprob)) {
        printf("row %u: logprob %g and %u others, expected %g and %u\n", r,
               (double) got->logprob, got->n_top, (double) want->logprob,
               want->n_top);
        return false;
    }
    for (uint32_t i = 0; i < want->n_top; i++) {
        if (top[i].token != best[i].token
            || !logprob_close(top[i].logprob, best[i].logprob)) {
            printf("row %u: alternative %u is %d (%g), expected %d (%g)\n", r,
                   i, top[i].token, (double) top[i].logprob, best[i].token,
                   (double) best[i].logprob);
            return false;
        }
    }
    return memcmp(top + want->n_top, best + want->n_top,
                  (TR_CUDA_TOP_MAX - want->n_top) * sizeof(*top))
           == 0;
}

static void
describe(const case_t *c, uint32_t r)
{
    const tr_cuda_sampling_t *w = (tr_cuda_sampling_t *) array_host(
                                      &c->sampling)
                                  + r;

    printf("  rows %u, vocab %u, ld %zu; slot %d, pos %u, prompt %u, number "
           "%u, "
           "seed %llu, temperature %g, top_p %.9g, min_p %.9g, top_k %d, "
           "penalties %g %g %g, bias %u, bar %u, logprobs %d, target %d, late "
           "%u, mask %d\n",
           c->a.rows, c->a.vocab, c->a.ld, w->slot, w->pos, w->prompt_len,
           w->number, (unsigned long long) w->seed, (double) w->temperature,
           (double) w->top_p, (double) w->min_p, w->top_k,
           (double) w->repetition, (double) w->presence, (double) w->frequency,
           w->n_bias, w->n_bar, w->logprobs, w->target, w->late,
           is_masked(c, r));
}

/* Row r alone, with history as it was, gives the same bits. */
static bool
check_alone(case_t *c, uint32_t r, const tr_cuda_sampled_t *want,
            const tr_cuda_top_t *top)
{
    tr_cuda_sample_t a = case_args(c, array_there);
    tr_cuda_sampled_t *got;
    tr_cuda_top_t *best;
    bool same;

    if ((((tr_cuda_sampling_t *) array_host(&c->sampling))[r].late != 0)
        != a.late) {
        return true;
    }
    a.rows = 1;
    a.logits += r * a.ld;
    a.sampling += r;
    a.mask_at = c->unmasked ? NULL : a.mask_at + r;
    array_send(&c->history);
    run_there(&a);
    got = (tr_cuda_sampled_t *) (void *) array_fetch(&c->out);
    best = (tr_cuda_top_t *) (void *) array_fetch(&c->top);
    same = memcmp(got, want + r, sizeof(*got)) == 0
           && memcmp(best, top + (size_t) r * TR_CUDA_TOP_MAX,
                     want[r].n_top * sizeof(*best))
                  == 0;
    if (!same) {
        printf("row %u alone: token %d, expected %d\n", r, got->token,
               want[r].token);
        describe(c, r);
    }
    free(got);
    free(best);
    return same;
}

static bool
one_round(void)
{
    case_t c;
    tr_cuda_sample_t a;
    tr_cuda_sampled_t *got;
    tr_cuda_top_t *top;
    uint8_t *history;
    bool ok = true;

    case_open(&c);
    history = malloc(c.history.bytes);
    memcpy(history, c.history.host, c.history.bytes);
    a = case_args(&c, array_there);
    run_there(&a);
    a = case_args(&c, array_host);
    tr_ref_sample(&a);
    got = (tr_cuda_sampled_t *) (void *) array_fetch(&c.out);
    top = (tr_cuda_top_t *) (void *) array_fetch(&c.top);
    for (uint32_t r = 0; r < c.a.rows && ok; r++) {
        ok = check_row(&c, r, got + r, top + (size_t) r * TR_CUDA_TOP_MAX);
        if (!ok) {
            describe(&c, r);
        }
    }
    ok = ok && array_same(&c.history, "history")
         && array_same(&c.logits, "logits");
    memcpy(c.history.host, history, c.history.bytes);
    ok = ok && check_alone(&c, random_below(c.a.rows), got, top);
    free(history);
    free(got);
    free(top);
    case_close(&c);
    return ok;
}

int
main(int argc, char **argv)
{
    uint32_t rounds, failed = 0;
    uint64_t seed;

    side_open(&side);
    rounds = argc > 1 ? (uint32_t) atoi(argv[1]) : 100;
    seed = argc > 2 ? strtoull(argv[2], NULL, 10) : (uint64_t) time(NULL);
    for (uint32_t r = 0; r < rounds; r++) {
        random_seed(seed + r);
        if (!one_round()) {
            printf("FAILED: test_sample 1 %llu\n",
                   (unsigned long long) (seed + r));
            failed++;
        }
    }
    if (edges > 2 + drawn / 500) {
        printf("FAILED: too many draws fell on edges\n");
        failed++;
    }
    printf("sample: %u rounds from seed %llu, %u failed; %llu rows, %llu "
           "masked, %llu drawn, %llu on an edge, %llu no numbers\n",
           rounds, (unsigned long long) seed, failed, rows_done, masked, drawn,
           edges, failures);
    return failed != 0;
}
