/*
 * What tr_cuda_sample does, by sorting and the definitions, in the order of
 * engine/sampling/sampler.h: bias, penalties, bars, masks; greedy, or temperature,
 * top-k, top-p, min-p and a draw that goes through what is left by ascending
 * id.
 */
#include "model_reference.h"

#include <math.h>
#include <stdlib.h>

#define LOGPROB_LOWEST (-9999.0f)

typedef struct {
    float logit;
    float weight; /* exp((logit - max) / temperature); 0: not kept */
    int32_t id;
} candidate_t;

typedef struct {
    const tr_cuda_sample_t *a;
    const tr_cuda_sampling_t *sampling;
    const float *raw;
    const uint32_t *mask; /* NULL: none */
    float *logits; /* with bias, penalties, bars, or what the mask leaves */
    uint32_t *counts;
    candidate_t *candidates;
} row_t;

/* The largest; false for NaN, +inf, or nothing but -inf. */
static bool
find_max(const float *x, uint32_t n, float *max)
{
    *max = -INFINITY;
    for (uint32_t i = 0; i < n; i++) {
        if (isnan(x[i])) {
            return false;
        }
        *max = x[i] > *max ? x[i] : *max;
    }
    return isfinite(*max);
}

static bool
in_vocab(const row_t *w, int32_t token)
{
    return token >= 0 && (uint32_t) token < w->a->vocab;
}

/* ---- shaping ------------------------------------------------------------ */

static void
penalise(const row_t *w)
{
    const int32_t *token = w->a->history.token
                           + (size_t) w->sampling->slot * w->a->history.len;
    uint32_t known = w->sampling->pos + 1, vocab = w->a->vocab;
    uint32_t prompt = w->sampling->prompt_len;

    known = known < w->a->history.len ? known : (uint32_t) w->a->history.len;
    memset(w->counts, 0, vocab * sizeof(*w->counts));
    for (uint32_t i = 0; i < known; i++) {
        if (!in_vocab(w, token[i])) {
            continue;
        }
        if (i < prompt) {
            w->counts[token[i]] |= 1u << 31;
        } else {
            w->counts[token[i]]++;
        }
    }
    for (uint32_t i = 0; i < vocab; i++) {
        uint32_t output = w->counts[i] & 0x7fffffff;

        if (w->counts[i] == 0) {
            continue;
        }
        w->logits[i] = w->logits[i] > 0
                           ? w->logits[i] / w->sampling->repetition
                           : w->logits[i] * w->sampling->repetition;
        if (output > 0) {
            w->logits[i] -= w->sampling->presence;
            w->logits[i] -= w->sampling->frequency * (float) output;
        }
    }
}

static void
shape(const row_t *w)
{
    const tr_cuda_sampling_t *p = w->sampling;

    memcpy(w->logits, w->raw, w->a->vocab * sizeof(float));
    for (uint32_t i = 0; i < p->n_bias; i++) {
        const tr_cuda_bias_t *b = &w->a->bias[p->bias_at + i];

        if (in_vocab(w, b->token)) {
            w->logits[b->token] += b->bias;
        }
    }
    if (w->a->history.token != NULL
        && (p->repetition != 1 || p->presence != 0 || p->frequency != 0)) {
        penalise(w);
    }
    for (uint32_t i = 0; w->mask != NULL && i < w->a->vocab; i++) {
        if ((w->mask[i / 32] >> i % 32 & 1) == 0) {
            w->logits[i] = -INFINITY;
        }
    }
    for (uint32_t i = 0; w->mask == NULL && i < p->n_bar; i++) {
        int32_t token = w->a->bar[p->bar_at + i];

        if (in_vocab(w, token)) {
            w->logits[token] = -INFINITY;
        }
    }
}

/* ---- drawing ------------------------------------------------------------ */

/* In [0, 1), of seed and number alone: engine/sampling/sampler.c. */
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
uniform(uint64_t seed, uint32_t number)
{
    uint64_t x = mix(seed + 0x9e3779b97f4a7c15ull);

    x = mix(x ^ ((uint64_t) number + 1) * 0x9e3779b97f4a7c15ull);
    return (double) (x >> 11) * 0x1p-53;
}

static int
best_first(const void *a, const void *b)
{
    const candidate_t *x = a, *y = b;

    return x->logit > y->logit   ? -1
           : x->logit < y->logit ? 1
                                 : (x->id > y->id) - (x->id < y->id);
}

static int
by_id(const void *a, const void *b)
{
    const candidate_t *x = a, *y = b;

    return (x->id > y->id) - (x->id < y->id);
}

static double
weigh(const candidate_t *c, uint32_t n)
{
    double sum = 0;

    for (uint32_t i = 0; i < n; i++) {
        sum += (double) c[i].weight;
    }
    return sum;
}

/* How many of the n candidates, best first, the sampling leaves. */
static uint32_t
keep(const tr_cuda_sampling_t *p, const candidate_t *c, uint32_t n)
{
    if (p->top_k > 0 && (uint32_t) p->top_k < n) {
        n = (uint32_t) p->top_k;
    }
    if (p->top_p < 1) {
        double wanted = (double) p->top_p * weigh(c, n), kept = 0;
        uint32_t i = 0;

        while (i < n && kept < wanted) {
            kept += (double) c[i++].weight;
        }
        n = i > 0 ? i : 1;
    }
    while (p->min_p > 0 && n > 1 && c[n - 1].weight < p->min_p) {
        n--;
    }
    return n;
}

static int32_t
draw(const row_t *w, const float *logits, float max)
{
    const tr_cuda_sampling_t *p = w->sampling;
    candidate_t *c = w->candidates;
    uint32_t n = 0, last = 0;
    double target, sum = 0;

    for (uint32_t i = 0; i < w->a->vocab; i++) {
        if (logits[i] > -INFINITY) {
            float x = (logits[i] - max) / p->temperature;

            c[n++] = (candidate_t){ logits[i], expf(x), (int32_t) i };
        }
    }
    if (p->top_k > 0 || p->top_p < 1 || p->min_p > 0) {
        qsort(c, n, sizeof(*c), best_first);
        n = keep(p, c, n);
        qsort(c, n, sizeof(*c), by_id);
    }
    target = uniform(p->seed, p->number) * weigh(c, n);
    for (uint32_t i = 0; i < n && !(sum > target); i++) {
        if (c[i].weight > 0) {
            last = i;
            sum += (double) c[i].weight;
        }
    }
    return c[last].id;
}

static int32_t
find_greedy(const float *logits, uint32_t vocab, float max)
{
    uint32_t i = 0;

    while (i + 1 < vocab && logits[i] != max) {
        i++;
    }
    return (int32_t) i;
}

/* ---- logprobs ----------------------------------------------------------- */

static float
logprob_of(float logit, double log_sum)
{
    double v = (double) logit - log_sum;

    return v > (double) LOGPROB_LOWEST ? (float) v : LOGPROB_LOWEST;
}

/* Of the raw logits. */
static void
score(const row_t *w, float max, tr_cuda_sampled_t *out, tr_cuda_top_t *top)
{
    uint32_t vocab = w->a->vocab, n = w->sampling->logprobs < 0
                                          ? 0
                                          : (uint32_t) w->sampling->logprobs;
    candidate_t *c = w->candidates;
    double log_sum;

    n = n < TR_CUDA_TOP_MAX ? n : TR_CUDA_TOP_MAX;
    n = n < vocab ? n : vocab;
    for (uint32_t i = 0; i < vocab; i++) {
        c[i] = (candidate_t){ w->raw[i], expf(w->raw[i] - max), (int32_t) i };
    }
    log_sum = (double) max + log(weigh(c, vocab));
    out->logprob = logprob_of(w->raw[out->token], log_sum);
    out->n_top = n;
    if (n > 0) {
        qsort(c, vocab, sizeof(*c), best_first);
    }
    for (uint32_t i = 0; i < n; i++) {
        top[i] = (tr_cuda_top_t){ c[i].id, logprob_of(c[i].logit, log_sum) };
    }
}

/* ---- a row -------------------------------------------------------------- */

static bool
is_shaped(const row_t *w)
{
    const tr_cuda_sampling_t *p = w->sampling;

    return w->mask != NULL || p->n_bias > 0 || p->n_bar > 0
           || p->repetition != 1 || p->presence != 0 || p->frequency != 0;
}

/* TR_CUDA_BAD_LOGITS for want of anything to take. */
static int32_t
choose(const row_t *w)
{
    const float *logits = w->raw;
    float max;

    if (w->sampling->target >= 0) {
        return in_vocab(w, w->sampling->target) ? w->sampling->target
                                                : TR_CUDA_BAD_LOGITS;
    }
    if (is_shaped(w)) {
        shape(w);
        logits = w->logits;
    }
    if (!find_max(logits, w->a->vocab, &max)) {
        return TR_CUDA_BAD_LOGITS;
    }
    return w->sampling->temperature == 0 ? find_greedy(logits, w->a->vocab, max)
                                         : draw(w, logits, max);
}

static void
sample_row(const row_t *w, tr_cuda_sampled_t *out, tr_cuda_top_t *top)
{
    const tr_cuda_sampling_t *p = w->sampling;
    const tr_cuda_history_t *h = &w->a->history;
    float max;

    if ((p->late != 0) != w->a->late) {
        return;
    }
    *out = (tr_cuda_sampled_t){ TR_CUDA_NO_TOKEN, 0, 0 };
    if (p->slot < 0 || w->a->seq_slot[p->sequence] < 0) {
        return;
    }
    out->token = TR_CUDA_BAD_LOGITS;
    if (!find_max(w->raw, w->a->vocab, &max)) {
        return;
    }
    out->token = choose(w);
    if (out->token < 0) {
        return;
    }
    if (p->target >= 0 || p->logprobs >= 0) {
        score(w, max, out, top);
    }
    if (p->target < 0 && h->token != NULL && p->pos + 1 < h->len) {
        h->token[(size_t) p->slot * h->len + p->pos + 1] = out->token;
    }
}

int
tr_ref_sample(const tr_cuda_sample_t *a)
{
    size_t n = (size_t) a->vocab + 1, words = ((size_t) a->vocab + 31) / 32;
    row_t w = { .a = a,
                .logits = malloc(n * sizeof(float)),
                .counts = malloc(n * sizeof(uint32_t)),
                .candidates = malloc(n * sizeof(candidate_t)) };
    int rc = TR_CUDA_FAILED;

    if (a->vocab == 0 || a->ld < a->vocab) {
        rc = TR_KERNEL_BADARG;
    } else if (w.logits && w.counts && w.candidates) {
        for (uint32_t r = 0; r < a->rows; r++) {
            w.sampling = &a->sampling[r];
            w.raw = a->logits + r * a->ld;
            w.mask = a->mask_at != NULL && a->mask_at[r] >= 0
                         ? a->mask + (size_t) a->mask_at[r] * words
                         : NULL;
            sample_row(&w, &a->out[r], a->top + (size_t) r * TR_CUDA_TOP_MAX);
        }
        rc = TR_KERNEL_OK;
    }
    free(w.logits);
    free(w.counts);
    free(w.candidates);
    return rc;
}
