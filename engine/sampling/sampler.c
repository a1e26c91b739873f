/*
 * Logits to a token (sampler.h).
 *
 * Nothing is sorted: top-k and top-p are both selections of the upper part of
 * one total order (logit, then the lower id first), found by partitioning as in
 * quickselect, in expected linear time.  For top-p the partitions are weighed
 * instead of counted.  The draw goes through what is left by ascending id, as
 * on a GPU, where selection works differently.
 *
 * Sums run in double precision in a fixed order, so that a sequence samples
 * the same token whatever else is in the batch.
 */
#include "sampler.h"

#include <math.h>
#include <string.h>

#define IN_PROMPT 0x80000000u

/* Logits are looked at four and four. */
typedef float four_t __attribute__((vector_size(16)));
typedef int32_t mask_t __attribute__((vector_size(16)));

/* A logprob of minus infinity is said as OpenAI says it. */
#define LOGPROB_LOWEST (-9999.0f)

typedef struct {
    float logit;
    float weight; /* exp((logit - max) / temperature) */
    int32_t id;
} candidate_t;

size_t
tr_sampler_counts_size(const tr_sampling_params_t *params, uint32_t vocab)
{
    bool penalties = params->repetition_penalty != 1.0f
                     || params->presence_penalty != 0.0f
                     || params->frequency_penalty != 0.0f;

    return penalties ? (size_t) vocab * sizeof(uint32_t) : 0;
}

void
tr_sampler_init(tr_sampler_t *s, const tr_sampling_params_t *params,
                uint64_t seed, uint32_t vocab, uint32_t *counts,
                const int32_t *eos, uint32_t n_eos, const int32_t *prompt,
                uint32_t n_prompt)
{
    *s = (tr_sampler_t){ .params = params,
                         .seed = seed,
                         .vocab = vocab,
                         .counts = counts,
                         .eos = eos,
                         .n_eos = n_eos };
    if (counts == NULL) {
        return;
    }
    memset(counts, 0, (size_t) vocab * sizeof(*counts));
    for (uint32_t i = 0; i < n_prompt; i++) {
        if (prompt[i] >= 0 && (uint32_t) prompt[i] < vocab) {
            counts[prompt[i]] |= IN_PROMPT;
        }
    }
}

/* Candidates, then a copy of the raw logits. */
size_t
tr_sampler_scratch_size(uint32_t vocab)
{
    return (size_t) vocab * (sizeof(candidate_t) + sizeof(float));
}

void
tr_sampler_accept(tr_sampler_t *s, int32_t token)
{
    s->n_output++;
    if (s->counts != NULL && token >= 0 && (uint32_t) token < s->vocab) {
        s->counts[token]++;
    }
}

static inline four_t
load(const float *x)
{
    four_t v;

    memcpy(&v, x, sizeof(v));
    return v;
}

/* The largest logit; false for NaN, +inf, or nothing but -inf. */
static bool
find_max(const float *logits, uint32_t vocab, float *max)
{
    const four_t lowest = { -INFINITY, -INFINITY, -INFINITY, -INFINITY };
    four_t top[4] = { lowest, lowest, lowest, lowest };
    mask_t odd = { 0 }; /* NaN was seen */
    float m = -INFINITY;
    bool good;
    uint32_t i = 0;

    for (; i + 16 <= vocab; i += 16) {
#pragma GCC unroll 4
        for (uint32_t j = 0; j < 4; j++) {
            four_t x = load(logits + i + 4 * j);
            mask_t more = x > top[j];

            top[j] = (four_t) ((more & (mask_t) x) | (~more & (mask_t) top[j]));
            odd |= x != x;
        }
    }
    good = !(odd[0] | odd[1] | odd[2] | odd[3]);
    for (uint32_t j = 0; j < 16; j++) {
        m = fmaxf(m, top[j / 4][j % 4]);
    }
    for (; i < vocab; i++) {
        m = fmaxf(m, logits[i]);
        good = good && !isnan(logits[i]);
    }
    *max = m;
    return good && isfinite(m);
}

static void
bar(float *logits, uint32_t vocab, const int32_t *tokens, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        if (tokens[i] >= 0 && (uint32_t) tokens[i] < vocab) {
            logits[tokens[i]] = -INFINITY;
        }
    }
}

static bool
is_among(int32_t token, const int32_t *list, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        if (list[i] == token) {
            return true;
        }
    }
    return false;
}

/* Does the mask allow a token that goes on?  Ends with the first one. */
static bool
may_go_on(const tr_sampler_t *s, const uint32_t *mask)
{
    for (uint32_t i = 0; i < (s->vocab + 31) / 32; i++) {
        for (uint32_t bits = mask[i]; bits != 0; bits &= bits - 1) {
            int32_t token = (int32_t) (i * 32) + __builtin_ctz(bits);

            if (!is_among(token, s->eos, s->n_eos)
                && !is_among(token, s->params->stop_tokens,
                             s->params->n_stop_tokens)) {
                return true;
            }
        }
    }
    return false;
}

static void
clear(uint32_t *mask, uint32_t vocab, const int32_t *tokens, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        if (tokens[i] >= 0 && (uint32_t) tokens[i] < vocab) {
            mask[tokens[i] / 32] &= ~(1u << (tokens[i] % 32));
        }
    }
}

void
tr_sampler_narrow(const tr_sampler_t *s, uint32_t number, uint32_t *mask)
{
    const tr_sampling_params_t *p = s->params;

    if (number < p->min_tokens && may_go_on(s, mask)) {
        clear(mask, s->vocab, s->eos, s->n_eos);
        clear(mask, s->vocab, p->stop_tokens, p->n_stop_tokens);
    }
}

static void
apply_mask(float *logits, uint32_t vocab, const uint32_t *mask)
{
    for (uint32_t i = 0; i < vocab; i += 32) {
        uint32_t barred = ~mask[i / 32];

        for (; barred != 0; barred &= barred - 1) {
            uint32_t token = i + (uint32_t) __builtin_ctz(barred);

            if (token < vocab) {
                logits[token] = -INFINITY;
            }
        }
    }
}

static void
apply_penalties(const tr_sampler_t *s, float *logits)
{
    const tr_sampling_params_t *p = s->params;

    for (uint32_t i = 0; i < s->vocab; i++) {
        uint32_t output = s->counts[i] & ~IN_PROMPT;

        if (s->counts[i] == 0) {
            continue;
        }
        logits[i] = logits[i] > 0 ? logits[i] / p->repetition_penalty
                                  : logits[i] * p->repetition_penalty;
        if (output > 0) {
            logits[i] -= p->presence_penalty;
            logits[i] -= p->frequency_penalty * (float) output;
        }
    }
}

static void
shape_logits(const tr_sampler_t *s, float *logits, const uint32_t *mask)
{
    const tr_sampling_params_t *p = s->params;

    for (uint32_t i = 0; i < p->n_bias; i++) {
        if (p->bias[i].token >= 0 && (uint32_t) p->bias[i].token < s->vocab) {
            logits[p->bias[i].token] += p->bias[i].bias;
        }
    }
    if (s->counts != NULL) {
        apply_penalties(s, logits);
    }
    if (s->n_output < p->min_tokens && (mask == NULL || may_go_on(s, mask))) {
        bar(logits, s->vocab, s->eos, s->n_eos);
        bar(logits, s->vocab, p->stop_tokens, p->n_stop_tokens);
    }
    if (mask != NULL) {
        apply_mask(logits, s->vocab, mask);
    }
}

/* A number in [0, 1) that depends on seed and i alone: two rounds of a 64-bit
 * mix (multiply, xor-shift) over a Weyl sequence. */
static uint64_t
mix(uint64_t x)
{
    x ^= x >> 32;
    x *= 0xd6e8feb86659fd93ull;
    x ^= x >> 32;
    x *= 0xd6e8feb86659fd93ull;
    x ^= x >> 32;
    return x;
}

static double
uniform(uint64_t seed, uint32_t i)
{
    uint64_t x = mix(seed + 0x9e3779b97f4a7c15ull);

    x = mix(x ^ ((uint64_t) i + 1) * 0x9e3779b97f4a7c15ull);
    return (double) (x >> 11) * 0x1p-53;
}

static bool
before(const candidate_t *a, const candidate_t *b)
{
    return a->logit > b->logit || (a->logit == b->logit && a->id < b->id);
}

/* Puts what comes before a pivot to the front of c[low..high) and the pivot
 * behind it; returns the pivot's place.  The pivot is picked by hash, so that
 * no order of the vocabulary is a bad one. */
static uint32_t
partition(candidate_t *c, uint32_t low, uint32_t high)
{
    uint32_t at = low
                  + (uint32_t) (mix(low + ((uint64_t) high << 32))
                                % (high - low));
    candidate_t pivot = c[at];
    uint32_t n = low;

    c[at] = c[high - 1];
    for (uint32_t i = low; i < high - 1; i++) {
        if (before(&c[i], &pivot)) {
            candidate_t t = c[i];

            c[i] = c[n];
            c[n++] = t;
        }
    }
    c[high - 1] = c[n];
    c[n] = pivot;
    return n;
}

static uint32_t
keep_top_k(candidate_t *c, uint32_t n, uint32_t k)
{
    uint32_t low = 0, high = n;

    if (k >= n) {
        return n;
    }
    while (high - low > 1) { /* c[..low) is in, c[high..) is out */
        uint32_t at = partition(c, low, high);

        if (at < k) {
            low = at + 1;
        } else {
            high = at;
        }
    }
    return k;
}

static double
weigh(const candidate_t *c, uint32_t low, uint32_t high)
{
    double sum = 0;

    for (uint32_t i = low; i < high; i++) {
        sum += c[i].weight;
    }
    return sum;
}

/* The fewest candidates, best first, that together reach the share p. */
static uint32_t
keep_top_p(candidate_t *c, uint32_t n, float p)
{
    double wanted = p * weigh(c, 0, n), kept = 0;
    uint32_t low = 0, high = n;

    while (high - low > 1) { /* c[..low), which weigh `kept`, are in */
        uint32_t at = partition(c, low, high);
        double upper = weigh(c, low, at);

        if (kept + upper >= wanted) {
            high = at;
        } else {
            kept += upper + c[at].weight;
            low = at + 1;
            if (kept >= wanted) {
                return low;
            }
        }
    }
    return high > 0 ? high : 1;
}

static uint32_t
keep_min_p(candidate_t *c, uint32_t n, float p)
{
    uint32_t kept = 0;

    for (uint32_t i = 0; i < n; i++) { /* the best one's weight is 1 */
        if (c[i].weight >= p) {
            c[kept++] = c[i];
        }
    }
    return kept;
}

/* Candidates by ascending id, up to `last` in the order of `before`. */
static uint32_t
collect(const tr_sampler_t *s, const float *logits, float max, candidate_t last,
        candidate_t *c)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < s->vocab; i++) {
        candidate_t x = { logits[i], 0, (int32_t) i };

        if (x.logit > -INFINITY && !before(&last, &x)) {
            x.weight = expf((x.logit - max) / s->params->temperature);
            c[n++] = x;
        }
    }
    return n;
}

/* The kept candidates by ascending id: what is drawn must not depend on how
 * they were selected. */
static uint32_t
put_in_order(const tr_sampler_t *s, const float *logits, float max,
             candidate_t *c, uint32_t n)
{
    candidate_t last = c[0];

    for (uint32_t i = 1; i < n; i++) {
        if (before(&last, &c[i])) {
            last = c[i];
        }
    }
    return collect(s, logits, max, last, c);
}

static int32_t
draw(const tr_sampler_t *s, const float *logits, float max, candidate_t *c)
{
    const tr_sampling_params_t *p = s->params;
    candidate_t none = { -INFINITY, 0, INT32_MAX };
    uint32_t n = collect(s, logits, max, none, c), all = n, last = 0;
    double target, sum = 0;

    if (p->top_k > 0) {
        n = keep_top_k(c, n, (uint32_t) p->top_k);
    }
    if (p->top_p < 1.0f) {
        n = keep_top_p(c, n, p->top_p);
    }
    if (p->min_p > 0.0f) {
        n = keep_min_p(c, n, p->min_p);
    }
    if (n < all || p->top_p < 1.0f) {
        n = put_in_order(s, logits, max, c, n);
    }
    target = uniform(s->seed, s->n_output) * weigh(c, 0, n);
    for (uint32_t i = 0; i < n; i++) {
        if (c[i].weight > 0) {
            last = i;
            sum += c[i].weight;
            if (sum > target) {
                break;
            }
        }
    }
    return c[last].id;
}

static int32_t
find_greedy(const float *logits, uint32_t vocab, float max)
{
    const four_t wanted = { max, max, max, max };
    uint32_t i = 0;

    for (; i + 16 <= vocab; i += 16) {
        mask_t found = (load(logits + i) == wanted)
                       | (load(logits + i + 4) == wanted)
                       | (load(logits + i + 8) == wanted)
                       | (load(logits + i + 12) == wanted);

        if (found[0] | found[1] | found[2] | found[3]) {
            break;
        }
    }
    while (i + 1 < vocab && logits[i] != max) {
        i++;
    }
    return (int32_t) i;
}

tr_status_t
tr_sampler_sample(const tr_sampler_t *s, float *logits, const uint32_t *mask,
                  void *scratch, tr_sampled_t *out)
{
    const tr_sampling_params_t *p = s->params;
    candidate_t *candidates = scratch;
    float *raw = (float *) (candidates + s->vocab);
    float max;

    if (!find_max(logits, s->vocab, &max)) {
        return TR_ERR_INTERNAL;
    }
    if (p->logprobs >= 0) {
        memcpy(raw, logits, (size_t) s->vocab * sizeof(*raw));
    }
    if (p->n_bias > 0 || s->counts != NULL || s->n_output < p->min_tokens
        || mask != NULL) {
        shape_logits(s, logits, mask);
        if (!find_max(logits, s->vocab, &max)) {
            return TR_ERR_INTERNAL;
        }
    }
    out->token = p->temperature == 0.0f ? find_greedy(logits, s->vocab, max)
                                        : draw(s, logits, max, candidates);
    out->logprob = 0;
    out->n_top = 0;
    if (p->logprobs >= 0) {
        return tr_sampler_score(raw, s->vocab, out->token, p->logprobs, scratch,
                                out);
    }
    return TR_OK;
}

/* Inserts into the best-first list of at most `cap`. */
static void
insert_top(tr_sampled_t *out, uint32_t cap, int32_t token, float logit)
{
    uint32_t i = out->n_top < cap ? out->n_top++ : cap - 1;

    while (i > 0 && logit > out->top[i - 1].logprob) {
        out->top[i] = out->top[i - 1];
        i--;
    }
    out->top[i] = (tr_top_t){ token, logit };
}

static float
logprob_of(float logit, double log_sum)
{
    double v = logit - log_sum;

    return v > LOGPROB_LOWEST ? (float) v : LOGPROB_LOWEST;
}

tr_status_t
tr_sampler_score(const float *logits, uint32_t vocab, int32_t token,
                 int32_t top, void *scratch, tr_sampled_t *out)
{
    uint32_t cap = top < 0                     ? 0
                   : top > TR_TOP_LOGPROBS_MAX ? TR_TOP_LOGPROBS_MAX
                                               : (uint32_t) top;
    double sum = 0, log_sum;
    float max;

    (void) scratch;
    if (token < 0 || (uint32_t) token >= vocab
        || !find_max(logits, vocab, &max)) {
        return TR_ERR_INTERNAL;
    }
    out->n_top = 0;
    for (uint32_t i = 0; i < vocab; i++) {
        sum += expf(logits[i] - max);
        if (cap > 0
            && (out->n_top < cap || logits[i] > out->top[cap - 1].logprob)) {
            insert_top(out, cap, (int32_t) i, logits[i]);
        }
    }
    log_sum = max + log(sum);
    out->token = token;
    out->logprob = logprob_of(logits[token], log_sum);
    for (uint32_t i = 0; i < out->n_top; i++) {
        out->top[i].logprob = logprob_of(out->top[i].logprob, log_sum);
    }
    return TR_OK;
}
