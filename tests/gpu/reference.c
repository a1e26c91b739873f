/*
 * What attention over a cache must give, in double precision and in the
 * plainest way, and the comparison with what the device gave.
 */
#include "cache.h"

#include <cuda_runtime_api.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define OUT_ERROR 6e-3 /* of a head's output, relative, beside what is below */
#define SCORE_ERROR 1e-2 /* of a probability, relative, beside 2e-6 */

/* The kernel multiplies values by weights of FP16: 2^7 times a token's exponential,
 * with its value's scale, of which the head's largest is brought to [1/2, 1).
 * Half of the smallest FP16 number is what a weight is uncertain by, however small
 * it is; a token that is far below the largest and yet has a share in the output
 * (values 10^7 times as large) is as uncertain as that. */
#define WEIGHT_ERROR 0x1p-31
/* .. of a weight that is so many times smaller: that of tokens 8 to 15 of a tile
 * with values of 2 bits */
#define NARROW 16

/* One cached token of a head. */
typedef struct {
    const tr_kv_layout_t *layout;
    uint8_t *page;  /* on the host */
    uint32_t index; /* in the page */
    uint32_t position;
    uint32_t list, list_index; /* list: TR_KV_LISTS_MAX for the others */
    double logit[32], p;
} token_t;

typedef struct {
    token_t *of;
    uint32_t n;
} tokens_t;

static void
add(tokens_t *t, const tr_kv_view_t *v, uint32_t layout, int32_t page,
    uint32_t index, uint32_t position, uint32_t list, uint32_t list_index)
{
    token_t *x = &t->of[t->n++];

    x->layout = &v->layout[layout];
    x->page = tr_kv_page_at(v, page);
    x->index = index;
    x->position = position;
    x->list = list;
    x->list_index = list_index;
    x->p = 0;
}

/* All tokens of a head. */
static void
gather(const cache_t *c, uint32_t s, uint32_t layer, uint32_t list, tokens_t *t)
{
    const tr_kv_view_t *v = &c->host;
    const tr_kv_seq_t *seq = &v->seq[c->rows.seq_slot[s]];
    size_t head = tr_kv_head(v, c->rows.seq_slot[s], layer, list);
    const int32_t *table = v->tables + head * v->table_len;
    uint32_t n = c->rows.row_pos[c->rows.seq_row[s]], per;

    t->n = 0;
    for (uint32_t l = 0; l < seq->n_lists; l++) {
        per = v->layout[seq->list_layout[l]].tokens;
        for (uint32_t i = 0; i < v->count[head * TR_KV_LISTS_MAX + l]; i++) {
            add(t, v, seq->list_layout[l],
                table[tr_kv_list_entry(v, l, i / per)], i % per, 0, l, i);
            if (t->of[t->n - 1].layout->level.scored) {
                t->of[t->n - 1].position = tr_kv_position_at(
                    t->of[t->n - 1].layout, t->of[t->n - 1].page, i % per);
            }
        }
    }
    for (uint32_t p = seq->window_from; seq->window && p < seq->base; p++) {
        uint32_t i = p % seq->window;

        per = v->layout[seq->window_layout].tokens;
        add(t, v, seq->window_layout, table[v->at_window + i / per], i % per, p,
            TR_KV_LISTS_MAX, 0);
    }
    for (uint32_t p = seq->base; p <= n; p++) {
        uint32_t i = p - seq->base;

        per = v->layout[0].tokens;
        add(t, v, 0, table[i / per], i % per, p, TR_KV_LISTS_MAX, 0);
    }
}

static double
half_at(const uint8_t *p)
{
    uint16_t h;

    memcpy(&h, p, 2);
    return (double) tr_float_from_half(h);
}

static double
key_of(const token_t *x, uint32_t d)
{
    const tr_kv_layout_t *l = x->layout;

    if (l->level.key_bits == 16) {
        return half_at(x->page + tr_kv_key_row(l, x->index) + 2 * d);
    }
    const uint8_t *meta = x->page + tr_kv_key_meta(l, x->index, d);

    return half_at(meta)
               * tr_kv_code_get(x->page, tr_kv_key_code(l, x->index, d),
                                l->level.key_bits)
           + half_at(meta + 2);
}

static double
value_of(const token_t *x, uint32_t d)
{
    const tr_kv_layout_t *l = x->layout;

    if (l->level.value_bits == 16) {
        return half_at(x->page + tr_kv_value_row(l, x->index) + 2 * d);
    }
    const uint8_t *meta = x->page + tr_kv_value_meta(l, x->index, d);

    return half_at(meta)
               * tr_kv_code_get(x->page, tr_kv_value_code(l, x->index, d),
                                l->level.value_bits)
           + half_at(meta + 2);
}

/* The size of what a value is stored as, in units of WEIGHT_ERROR; scale: what 1
 * is worth. */
static double
code_of(const token_t *x, uint32_t d, double *scale)
{
    const tr_kv_layout_t *l = x->layout;

    if (l->level.value_bits == 16) {
        *scale = 1;
        return fabs(value_of(x, d));
    }
    *scale = half_at(x->page + tr_kv_value_meta(l, x->index, d));
    return tr_kv_code_get(x->page, tr_kv_value_code(l, x->index, d),
                          l->level.value_bits)
           * (l->level.value_bits == 2 && x->index % 16 >= 8 ? NARROW : 1);
}

/* By how much elements may be off for WEIGHT_ERROR, [d], with a probability of 1 at
 * most. */
static void
resolve(const tokens_t *t, uint32_t dim, double *unsure)
{
    double most = 0;

    for (uint32_t d = 0; d < dim; d++) {
        unsure[d] = 0;
        for (uint32_t i = 0; i < t->n; i++) {
            double scale;

            unsure[d] += code_of(&t->of[i], d, &scale) * WEIGHT_ERROR;
            most = fmax(most, scale);
        }
    }
    for (uint32_t d = 0; d < dim; d++) {
        unsure[d] *= most;
    }
}

/* out[q][d] and every token's largest probability. */
static void
attend(const cache_t *c, tokens_t *t, uint32_t row, uint32_t list, double *out)
{
    uint32_t dim = c->shape.head_dim, group = c->shape.heads / c->shape.lists;
    const float *q = c->q + (size_t) row * c->shape.heads * dim
                     + (size_t) list * group * dim;
    double max[32], sum[32] = { 0 };

    for (uint32_t g = 0; g < group; g++) {
        max[g] = -INFINITY;
    }
    memset(out, 0, (size_t) group * dim * sizeof(*out));
    for (uint32_t i = 0; i < t->n; i++) {
        token_t *x = &t->of[i];

        memset(x->logit, 0, sizeof(x->logit));
        for (uint32_t d = 0; d < dim; d++) {
            double k = key_of(x, d) * (double) c->scale;

            for (uint32_t g = 0; g < group; g++) {
                x->logit[g] += (double) q[g * dim + d] * k;
            }
        }
        for (uint32_t g = 0; g < group; g++) {
            max[g] = fmax(max[g], x->logit[g]);
        }
    }
    for (uint32_t i = 0; i < t->n; i++) {
        for (uint32_t g = 0; g < group; g++) {
            sum[g] += exp(t->of[i].logit[g] - max[g]);
        }
    }
    for (uint32_t i = 0; i < t->n; i++) {
        token_t *x = &t->of[i];
        double p[32];

        for (uint32_t g = 0; g < group; g++) {
            p[g] = exp(x->logit[g] - max[g]) / sum[g];
            x->p = fmax(x->p, p[g]);
        }
        for (uint32_t d = 0; d < dim; d++) {
            double y = value_of(x, d);

            for (uint32_t g = 0; g < group; g++) {
                out[g * dim + d] += p[g] * y;
            }
        }
    }
}

/* Compares one number that grew by `gain`, then takes the device's. */
static bool
take_sum(uint8_t *host, const uint8_t *device, double gain, double *worst)
{
    float old, now;
    double error;

    memcpy(&old, host, 4);
    memcpy(&now, device, 4);
    memcpy(host, device, 4);
    error = fabs((double) now - (double) old - gain);
    if (!(error <= gain * SCORE_ERROR + 2e-6)) {
        printf("score %g, was %g, expected to grow by %g\n", (double) now,
               (double) old, gain);
        return false;
    }
    if (gain > 1e-4 && error / gain > *worst) {
        *worst = error / gain;
    }
    return true;
}

static bool
check_scores(cache_t *c, const tr_kv_seq_t *seq, tokens_t *t, uint32_t n,
             const uint8_t *pool, double *worst)
{
    bool ok = true;

    for (uint32_t i = 0; i < t->n && seq->scored && ok; i++) {
        token_t *x = &t->of[i];
        const tr_kv_layout_t *l = x->layout;
        double gain = x->position < n ? x->p : 0;
        size_t at = (size_t) (x->page - c->host.pool);

        if (!l->level.scored) {
            continue;
        }
        ok = take_sum(x->page + l->score + x->index * 4,
                      pool + at + l->score + x->index * 4, gain, worst);
        if (ok && l->recent != 0 && n >= seq->recent_from) {
            ok = take_sum(x->page + l->recent + x->index * 4,
                          pool + at + l->recent + x->index * 4, gain, worst);
        }
    }
    return ok;
}

/* Victims, from the scores that the device left: exact. */
static bool
check_victims(const cache_t *c, const tr_kv_seq_t *seq, const tokens_t *t,
              uint32_t n, const tr_kv_victim_t *got)
{
    for (uint32_t l = 0; l < seq->n_lists; l++) {
        tr_kv_victim_t want = { INFINITY, 0 };
        uint32_t position = UINT32_MAX;

        for (uint32_t i = 0; i < t->n; i++) {
            const token_t *x = &t->of[i];
            float score, s;

            if (x->list != l || !seq->scored) {
                continue;
            }
            memcpy(&score, x->page + x->layout->score + x->index * 4, 4);
            s = seq->by_sum       ? score
                : x->position < n ? score / (float) (n - x->position)
                                  : 0;
            if (s < want.significance
                || (s == want.significance && x->position < position)) {
                want.significance = s;
                want.index = x->list_index;
                position = x->position;
            }
        }
        if (seq->scored
            && (got[l].index != want.index
                || !(got[l].significance == want.significance))) {
            printf("victim of list %u: %u (%g), expected %u (%g)\n", l,
                   got[l].index, (double) got[l].significance, want.index,
                   (double) want.significance);
            return false;
        }
    }
    (void) c;
    return true;
}

/* Elements of a layer's outputs. */
static size_t
out_len(const cache_t *c)
{
    return (size_t) c->rows.n_rows * c->shape.heads * c->shape.head_dim;
}

static bool
check_out(const cache_t *c, uint32_t layer, uint32_t row, uint32_t list,
          const double *want, const double *unsure, double *worst)
{
    uint32_t dim = c->shape.head_dim, group = c->shape.heads / c->shape.lists;
    const float *got = c->out + layer * out_len(c)
                       + (size_t) row * c->shape.heads * dim
                       + (size_t) list * group * dim;

    for (uint32_t g = 0; g < group; g++) {
        double error = 0, norm = 0, room = 0;

        for (uint32_t d = 0; d < dim; d++) {
            double w = want[g * dim + d], e = (double) got[g * dim + d] - w;

            error += e * e;
            norm += w * w;
            room += unsure[d] * unsure[d];
        }
        error = sqrt(error / norm);
        room = sqrt(room / norm);
        if (!(error <= OUT_ERROR + room)) {
            printf("row %u list %u query head %u: relative error %g, of which "
                   "%g may be\n",
                   row, list, g, error, OUT_ERROR + room);
            return false;
        }
        error = fmax(error - room, 0);
        *worst = error > *worst ? error : *worst;
    }
    return true;
}

/* Outputs of rows that nobody asked for. */
static bool
check_untouched(const cache_t *c, uint32_t layer, uint32_t s)
{
    size_t n = (size_t) c->shape.heads * c->shape.head_dim;
    const float *out = c->out + layer * out_len(c);

    for (size_t i = c->rows.seq_row[s] * n; i < c->rows.seq_row[s + 1] * n;
         i++) {
        uint32_t u;

        memcpy(&u, &out[i], 4);
        if (u != UINT32_MAX) {
            printf("sequence %u was not to be touched\n", s);
            return false;
        }
    }
    return true;
}

/* The layer of the sequence against double precision; victim: of all heads. */
static bool
check_sequence(cache_t *c, uint32_t layer, uint32_t s, const uint8_t *pool,
               const tr_kv_victim_t *victim, tokens_t *t, double *out,
               double *worst_out, double *worst_score)
{
    const tr_kv_view_t *v = &c->host;
    const tr_kv_seq_t *seq;
    uint32_t row = c->rows.seq_row[s], n = c->rows.row_pos[row];
    double unsure[256];

    if (!cache_attends(c, s)) {
        return check_untouched(c, layer, s);
    }
    seq = &v->seq[c->rows.seq_slot[s]];
    for (uint32_t list = 0; list < v->lists; list++) {
        size_t head = tr_kv_head(v, c->rows.seq_slot[s], layer, list);

        gather(c, s, layer, list, t);
        attend(c, t, row, list, out);
        resolve(t, c->shape.head_dim, unsure);
        if (!check_out(c, layer, row, list, out, unsure, worst_out)
            || !check_scores(c, seq, t, n, pool, worst_score)
            || !check_victims(c, seq, t, n, victim + head * TR_KV_LISTS_MAX)) {
            printf("in layer %u, sequence %u, list %u, %u tokens, window %u, "
                   "base %u, n %u\n",
                   layer, s, list, t->n, seq->window, seq->base, n);
            return false;
        }
    }
    return true;
}

bool
cache_check(cache_t *c, double *worst_out, double *worst_score)
{
    const tr_kv_view_t *v = &c->host;
    size_t bytes = c->pages * v->page_bytes;
    size_t heads = (size_t) c->shape.seqs * v->layers * v->lists;
    uint8_t *pool = malloc(bytes);
    tr_kv_victim_t *victim = malloc(heads * TR_KV_LISTS_MAX * sizeof(*victim));
    tokens_t t = { malloc((c->max_tokens + 1) * sizeof(token_t)), 0 };
    double *out = malloc(sizeof(double) * 32 * 256);
    bool ok = true;

    cuda_ok(cudaMemcpy(pool, c->device.pool, bytes, cudaMemcpyDeviceToHost),
            "pool");
    cuda_ok(cudaMemcpy(c->out, c->device_out, v->layers * out_len(c) * 4,
                       cudaMemcpyDeviceToHost),
            "out");
    cuda_ok(cudaMemcpy(victim, c->device.victim,
                       heads * TR_KV_LISTS_MAX * sizeof(*victim),
                       cudaMemcpyDeviceToHost),
            "victims");
    for (uint32_t i = 0; i < v->layers * c->shape.seqs && ok; i++) {
        ok = check_sequence(c, i / c->shape.seqs, i % c->shape.seqs, pool,
                            victim, &t, out, worst_out, worst_score);
    }
    /* scores that may change were taken over: all else is as it was */
    if (ok && memcmp(pool, v->pool, bytes) != 0) {
        printf("bytes of the pool changed that are no score\n");
        ok = false;
    }
    free(pool);
    free(victim);
    free(t.of);
    free(out);
    return ok;
}
