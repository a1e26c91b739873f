/*
 * sample_row.cuh: one row of logits to one token, by a block.
 */
#ifndef TR_CUDA_SAMPLE_ROW_CUH
#define TR_CUDA_SAMPLE_ROW_CUH

#include "sample_select.cuh"

#define LOGPROB_LOWEST (-9999.0f) /* said for minus infinity */
#define IN_PROMPT 0x80000000u

/* ---- draw --------------------------------------------------------------- */

/* engine/sampling/sampler.c: 53 random bits, of seed and number alone. */
TR_DEVICE uint64_t
draw_mix(uint64_t x)
{
    x ^= x >> 32;
    x *= 0xd6e8feb86659fd93ull;
    x ^= x >> 32;
    x *= 0xd6e8feb86659fd93ull;
    x ^= x >> 32;
    return x;
}

TR_DEVICE uint64_t
draw_bits(uint64_t seed, uint32_t number)
{
    uint64_t x = draw_mix(seed + 0x9e3779b97f4a7c15ull);

    return draw_mix(x ^ ((uint64_t) number + 1) * 0x9e3779b97f4a7c15ull) >> 11;
}

/* bits * 2^-53 of the total, rounded down: the token is drawn whose share is
 * the first to bring the sum above it. */
TR_DEVICE uint64_t
draw_target(uint64_t bits, uint64_t total)
{
    return __umul64hi(bits << 11, total);
}

/* The share that a token has in the draw. */
TR_DEVICE uint64_t
left_share(const field_t *f, float logit, uint64_t order)
{
    uint64_t share;

    if (order < f->least) {
        return 0;
    }
    share = share_of(f, logit);
    return share >= f->least_share ? share : 0;
}

/* From the list. */
TR_DEVICE void
draw_tiered(block_t b, sample_smem_t *smem, const field_t *f, uint64_t bits)
{
    uint64_t sum = 0, total, target;

    for (uint32_t i = b.lane; i < smem->listed; i += b.lanes) {
        if (smem->order[i] < f->least || smem->weight[i] < f->least_share) {
            smem->weight[i] = 0;
        }
        sum += smem->weight[i];
    }
    block_scan(b, sum, smem->meet, &total); /* and all have come */
    target = draw_target(bits, total);
    for (uint32_t i = b.lane; i < smem->listed; i += b.lanes) {
        uint32_t id = order_id(smem->order[i]);

        sum = 0;
        for (uint32_t j = 0; j < smem->listed; j++) {
            if (order_id(smem->order[j]) < id) {
                sum += smem->weight[j];
            }
        }
        if (sum <= target && target - sum < smem->weight[i]) {
            smem->answer = (int32_t) id;
        }
    }
    lanes_sync(b);
}

/* The token of a segment at which the sum of shares goes beyond `target`; a
 * lane has neighbours. */
TR_DEVICE void
draw_in_segment(block_t b, sample_smem_t *smem, const field_t *f,
                uint32_t segment, uint64_t target)
{
    uint32_t per = (SEGMENT + b.lanes - 1) / b.lanes;
    uint32_t stop = f->vocab - segment * SEGMENT < SEGMENT
                        ? f->vocab
                        : (segment + 1) * SEGMENT;
    uint32_t from = segment * SEGMENT + b.lane * per;
    uint32_t end = from + per < stop ? from + per : stop;
    uint64_t sum = 0, total, share;

    for (uint32_t i = from; i < end; i++) {
        float x = f->logits[i];

        sum += left_share(f, x, order_of(x, i));
    }
    sum = block_scan(b, sum, smem->meet, &total);
    for (uint32_t i = from; i < end; i++) {
        float x = f->logits[i];

        share = left_share(f, x, order_of(x, i));
        if (sum <= target && target - sum < share) {
            smem->answer = (int32_t) i;
        }
        sum += share;
    }
    lanes_sync(b);
}

/* From the whole row. */
TR_DEVICE void
draw_anywhere(block_t b, sample_smem_t *smem, const field_t *f, uint64_t bits)
{
    uint32_t segments = (f->vocab + SEGMENT - 1) / SEGMENT;
    uint64_t sum = 0, total, target;

    for (uint32_t i = b.lane; i < segments; i += b.lanes) {
        smem->count[i] = 0;
        smem->share[i] = 0;
    }
    lanes_sync(b);
    for (uint32_t i = 0; i < segments; i++) {
        uint32_t from = i * SEGMENT;
        uint32_t end = f->vocab - from < SEGMENT ? f->vocab : from + SEGMENT;
        uint64_t part = 0;

        each_logit(b, f->logits, from, end, f->wide, [&](float x, uint32_t id) {
            part += left_share(f, x, order_of(x, id));
        });
        block_gather(b, &smem->share[i], part);
        sum += part;
    }
    block_scan(b, sum, smem->meet, &total); /* and all have come */
    target = draw_target(bits, total);
    find_bin(b, smem, segments, true, target + 1);
    draw_in_segment(b, smem, f, smem->bin, target - smem->share_before);
}

/* What is left of the list weighs together. */
TR_DEVICE uint64_t
listed_share(block_t b, sample_smem_t *smem, uint64_t least)
{
    uint64_t sum = 0, total;

    for (uint32_t i = b.lane; i < smem->listed; i += b.lanes) {
        sum += smem->order[i] >= least ? smem->weight[i] : 0;
    }
    block_scan(b, sum, smem->meet, &total);
    return total;
}

TR_DEVICE uint32_t
draw_token(block_t b, sample_smem_t *smem, const tr_cuda_sampling_t *w,
           const float *logits, uint32_t vocab, bool wide, float max)
{
    field_t f = { logits, vocab, wide, max, w->temperature, 0, 0 };
    uint64_t bits = draw_bits(w->seed, w->number), wanted;
    selection_t s = {};

    if (w->top_k > 0 && (uint32_t) w->top_k < vocab) {
        s = select_tokens(b, smem, &f, false, (uint32_t) w->top_k, 0, false);
    }
    if (w->top_p < 1 && s.whole) {
        wanted = (uint64_t) ceil((double) w->top_p
                                 * (double) listed_share(b, smem, f.least));
        f.least = last_kept(b, smem, f.least, true, 0, wanted);
    } else if (w->top_p < 1) {
        s = select_tokens(b, smem, &f, true, 0, w->top_p, false);
    }
    if (w->min_p > 0) {
        f.least_share = (uint64_t) ceil((double) w->min_p * (double) ONE);
    }
    if (s.whole) {
        draw_tiered(b, smem, &f, bits);
    } else {
        draw_anywhere(b, smem, &f, bits);
    }
    return (uint32_t) smem->answer;
}

/* ---- logprobs ----------------------------------------------------------- */

TR_DEVICE float
logprob_of(float logit, double log_sum)
{
    double v = (double) logit - log_sum;

    return v > (double) LOGPROB_LOWEST ? (float) v : LOGPROB_LOWEST;
}

/* The share of all tokens. */
TR_DEVICE uint64_t
row_share(block_t b, sample_smem_t *smem, const field_t *f)
{
    uint64_t sum = 0, total;

    each_logit(b, f->logits, 0, f->vocab, f->wide,
               [&](float x, uint32_t) { sum += share_of(f, x); });
    block_scan(b, sum, smem->meet, &total);
    return total;
}

/* The list's best n, in order, with their logprobs. */
TR_DEVICE void
write_top(block_t b, const sample_smem_t *smem, uint32_t n, double log_sum,
          tr_cuda_top_t *top)
{
    for (uint32_t i = b.lane; i < smem->listed; i += b.lanes) {
        uint64_t order = smem->order[i];
        uint32_t rank = 0;

        for (uint32_t j = 0; j < smem->listed; j++) {
            rank += smem->order[j] > order;
        }
        if (rank < n) {
            top[rank].token = (int32_t) order_id(order);
            top[rank].logprob = logprob_of(order_logit(order), log_sum);
        }
    }
}

/* Of the raw logits. */
TR_DEVICE void
score_token(const sample_args_t *a, block_t b, sample_smem_t *smem,
            uint32_t row, float max, tr_cuda_sampled_t *out)
{
    const float *logits = a->a.logits + row * a->a.ld;
    field_t f = { logits, a->a.vocab, a->wide, max, 1, 0, 0 };
    int32_t wanted = a->a.sampling[row].logprobs;
    uint32_t n = wanted < 0 ? 0 : (uint32_t) wanted;
    uint64_t total;
    double log_sum;

    n = n < TR_CUDA_TOP_MAX ? n : TR_CUDA_TOP_MAX;
    n = n < a->a.vocab ? n : a->a.vocab;
    total = n > 0 ? select_tokens(b, smem, &f, false, n, 0, true).total
                  : row_share(b, smem, &f);
    log_sum = (double) max + log((double) total / (double) ONE);
    out->logprob = logprob_of(logits[out->token], log_sum);
    out->n_top = n;
    if (n > 0) {
        write_top(b, smem, n, log_sum,
                  a->a.top + (size_t) row * TR_CUDA_TOP_MAX);
    }
}

/* ---- penalties, bias, bars ---------------------------------------------- */

TR_DEVICE bool
in_vocab(const sample_args_t *a, int32_t token)
{
    return token >= 0 && (uint32_t) token < a->a.vocab;
}

/* How often each token came. */
TR_DEVICE void
count_tokens(const sample_args_t *a, block_t b, const tr_cuda_sampling_t *w,
             uint32_t *counts)
{
    const int32_t *known = a->a.history.token
                           + (size_t) w->slot * a->a.history.len;
    uint64_t n = (uint64_t) w->pos + 1;

    n = n < a->a.history.len ? n : a->a.history.len;
    for (uint32_t i = b.lane; i < n; i += b.lanes) {
        int32_t token = known[i];

        if (!in_vocab(a, token)) {
            continue;
        }
        if (i < w->prompt_len) {
            lane_or(&counts[token], IN_PROMPT);
        } else {
            lane_add(&counts[token], 1);
        }
    }
    lanes_sync(b);
}

TR_DEVICE float
penalised(const tr_cuda_sampling_t *w, float x, uint32_t count)
{
    uint32_t output = count & ~IN_PROMPT;

    if (count == 0) {
        return x;
    }
    x = x > 0 ? div_rn(x, w->repetition) : mul_rn(x, w->repetition);
    if (output > 0) {
        x = add_rn(x, -w->presence);
        x = add_rn(x, -mul_rn(w->frequency, (float) output));
    }
    return x;
}

/* Bit id of a mask; NULL: set. */
TR_DEVICE bool
is_allowed(const uint32_t *mask, uint32_t id)
{
    return mask == NULL || (mask[id / 32] >> id % 32 & 1) != 0;
}

/* The row with bias, penalties, and bars or what its mask leaves: nothing that
 * is added makes more of minus infinity.  A token that is named more than once
 * is always the same lane's, so that it is changed in order. */
TR_DEVICE void
shape_row(const sample_args_t *a, block_t b, uint32_t row, float *x,
          uint32_t *counts)
{
    const tr_cuda_sampling_t *w = &a->a.sampling[row];
    const float *raw = a->a.logits + row * a->a.ld;
    const uint32_t *mask = row_mask(a, row);
    bool penalties = has_penalties(w) && a->a.history.token != NULL;

    each_logit(b, raw, 0, a->a.vocab, a->wide, [&](float logit, uint32_t id) {
        x[id] = is_allowed(mask, id) ? logit : -INFINITY;
        if (penalties) {
            counts[id] = 0;
        }
    });
    lanes_sync(b);
    for (uint32_t i = 0; i < w->n_bias; i++) {
        tr_cuda_bias_t bias = a->a.bias[w->bias_at + i];

        if (in_vocab(a, bias.token)
            && (uint32_t) bias.token % b.lanes == b.lane) {
            x[bias.token] = add_rn(x[bias.token], bias.bias);
        }
    }
    lanes_sync(b);
    if (penalties) {
        count_tokens(a, b, w, counts);
        for (uint32_t i = b.lane; i < a->a.vocab; i += b.lanes) {
            x[i] = penalised(w, x[i], counts[i]);
        }
        lanes_sync(b);
    }
    for (uint32_t i = b.lane; mask == NULL && i < w->n_bar; i += b.lanes) {
        int32_t token = a->a.bar[w->bar_at + i];

        if (in_vocab(a, token)) {
            x[token] = -INFINITY;
        }
    }
    lanes_sync(b);
}

/* ---- a row -------------------------------------------------------------- */

/* The best token of a row as scan left it. */
TR_DEVICE uint64_t
reduce_pieces(const sample_args_t *a, block_t b, sample_smem_t *smem,
              uint32_t row)
{
    const uint64_t *piece = a->best + (size_t) row * a->pieces;
    uint64_t best = 0;

    for (uint32_t i = b.lane; i < a->pieces; i += b.lanes) {
        best = piece[i] > best ? piece[i] : best;
    }
    return block_max(b, best, smem->meet);
}

/* The row's token; best: of the raw logits; x: those with penalties or NULL. */
TR_DEVICE int32_t
pick_token(const sample_args_t *a, block_t b, sample_smem_t *smem, uint32_t row,
           uint64_t best, const float *x)
{
    const tr_cuda_sampling_t *w = &a->a.sampling[row];

    if (w->target >= 0) {
        return in_vocab(a, w->target) ? w->target : TR_CUDA_BAD_LOGITS;
    }
    if (x != NULL) {
        best = best_of(b, smem->meet, x, 0, a->a.vocab, true);
        if (!order_valid(best)) {
            return TR_CUDA_BAD_LOGITS;
        }
    }
    if (w->temperature == 0) {
        return (int32_t) order_id(best);
    }
    return (int32_t) draw_token(b, smem, w, x ? x : a->a.logits + row * a->a.ld,
                                a->a.vocab, x != NULL || a->wide,
                                order_logit(best));
}

/* Answers for a row that is_shaped (x and counts: scratch) or is not (NULL). */
TR_DEVICE void
choose_row(const sample_args_t *a, block_t b, sample_smem_t *smem, uint32_t row,
           float *x, uint32_t *counts)
{
    const tr_cuda_sampling_t *w = &a->a.sampling[row];
    const tr_cuda_history_t *h = &a->a.history;
    tr_cuda_sampled_t out = { TR_CUDA_NO_TOKEN, 0, 0 };
    uint64_t best;

    if (is_wanted(a, w)) {
        best = reduce_pieces(a, b, smem, row);
        out.token = TR_CUDA_BAD_LOGITS;
        if (order_valid(best)) {
            if (x != NULL) {
                shape_row(a, b, row, x, counts);
            }
            out.token = pick_token(a, b, smem, row, best, x);
        }
        if (out.token >= 0 && (w->target >= 0 || w->logprobs >= 0)) {
            score_token(a, b, smem, row, order_logit(best), &out);
        }
    }
    if (b.lane == 0) {
        a->a.out[row] = out;
        if (out.token >= 0 && w->target < 0 && h->token != NULL
            && (uint64_t) w->pos + 1 < h->len) {
            h->token[(size_t) w->slot * h->len + w->pos + 1] = out.token;
        }
    }
}

/* Block `block` of choose: a row that is taken as it is, or, behind those, the
 * rows that are shaped, as many at a time as there are places in scratch. */
TR_DEVICE void
choose_block(const sample_args_t *a, block_t b, sample_smem_t *smem,
             uint32_t block, uint32_t places)
{
    size_t vocab = tr_pad(a->a.vocab, 4);

    if (block < a->a.rows) {
        const tr_cuda_sampling_t *w = &a->a.sampling[block];

        if (is_taken(a, w) && (!is_wanted(a, w) || !is_shaped(a, block))) {
            choose_row(a, b, smem, block, NULL, NULL);
        }
        return;
    }
    block -= a->a.rows;
    for (uint32_t row = block; row < a->a.rows; row += places) {
        if (is_wanted(a, &a->a.sampling[row]) && is_shaped(a, row)) {
            lanes_sync(b);
            choose_row(a, b, smem, row, a->shaped + block * vocab,
                       a->counts + block * vocab);
        }
    }
}

#endif
