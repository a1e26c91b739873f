/*
 * Attention in plain C: every piece (attention.h) token by token, as the
 * formulas say it.  The reference for the vector code, and what runs where
 * there is none.
 */
#include "attention.h"

#include <math.h>

/* Softmax as it goes: sum and out are relative to e^max. */
typedef struct {
    float max, sum;
    float *out; /* [dim] */
    uint32_t dim;
} online_t;

static float
dot(const float *a, const float *b, uint32_t n)
{
    float sum = 0;

    for (uint32_t i = 0; i < n; i++) {
        sum += a[i] * b[i];
    }
    return sum;
}

static void
online_add(online_t *o, float logit, const float *value)
{
    float p;

    if (logit > o->max) {
        float keep = expf(o->max - logit);

        o->max = logit;
        o->sum *= keep;
        for (uint32_t d = 0; d < o->dim; d++) {
            o->out[d] *= keep;
        }
    }
    p = expf(logit - o->max);
    o->sum += p;
    for (uint32_t d = 0; d < o->dim; d++) {
        o->out[d] += p * value[d];
    }
}

/* One query head of one position. */
static void
attend(const tr_attention_tile_t *t, uint32_t pos, const float *q, online_t *o)
{
    const tr_kv_layout_t *uncompressed = &t->kv->layout[0];
    float key[TR_HEAD_DIM_MAX], value[TR_HEAD_DIM_MAX];

    for (uint32_t i = 0; i < t->n_runs; i++) {
        const tr_run_t *r = &t->run[i];

        for (uint32_t b = 0; b < tr_run_blocks(r); b++) {
            tr_block_t block;

            tr_run_block(t->kv, r, b, &block);
            for (uint32_t j = 0; j < block.n; j++) {
                tr_unpack_key(r->layout, block.page, block.token[j], key);
                tr_unpack_value(r->layout, block.page, block.token[j], value);
                online_add(o, dot(q, key, o->dim) * t->scale, value);
            }
        }
    }
    for (uint32_t i = tr_tile_from(t, pos); i <= pos; i++) {
        const uint8_t *page = tr_kv_page_at(t->kv,
                                            t->table[i / uncompressed->tokens]);

        tr_unpack_key(uncompressed, page, i % uncompressed->tokens, key);
        tr_unpack_value(uncompressed, page, i % uncompressed->tokens, value);
        online_add(o, dot(q, key, o->dim) * t->scale, value);
    }
}

static void
tile_c(const tr_attention_tile_t *t, float *scratch)
{
    uint32_t dim = t->kv->head_dim;

    for (uint32_t p = 0; p < t->n_pos; p++) {
        for (uint32_t h = 0; h < t->group; h++) {
            online_t o = { -INFINITY, 0, scratch, dim };
            float *out = t->out + p * t->ldo + h * dim;

            memset(scratch, 0, dim * sizeof(float));
            attend(t, t->pos + p, t->q + p * t->ldq + h * dim, &o);
            o.sum = tr_sum_with_sink(t->sink, h, o.max, o.sum);
            for (uint32_t d = 0; d < dim; d++) {
                out[d] = o.out[d] / o.sum;
            }
            if (t->lse != NULL) {
                t->lse[p * t->group + h] = o.max + logf(o.sum);
            }
        }
    }
}

/* What the tile's queries from position `from` on add to token i; run NULL:
 * uncompressed. */
static void
score_token_c(const tr_attention_tile_t *t, const tr_run_t *run,
              const tr_scored_t *to, uint32_t i, uint32_t from,
              const float *key)
{
    uint32_t dim = t->kv->head_dim;

    for (uint32_t pos = from; pos < t->pos + t->n_pos; pos++) {
        const float *q = t->q + (pos - t->pos) * t->ldq;
        const float *lse = t->lse + (pos - t->pos) * t->group;
        float best = -INFINITY;

        for (uint32_t h = 0; h < t->group; h++) {
            best = fmaxf(best, dot(q + h * dim, key, dim) * t->scale - lse[h]);
        }
        *to->score[i] += expf(best);
        if (run == NULL && pos >= t->recent_from) {
            *to->recent[i] += expf(best);
        }
    }
}

static void
score_c(const tr_attention_tile_t *t, float *scratch)
{
    const tr_kv_layout_t *uncompressed = &t->kv->layout[0];
    tr_scored_t to;

    for (uint32_t r = 0; r < t->n_runs; r++) {
        const tr_run_t *run = &t->run[r];

        if (run->layout->score == 0) {
            continue;
        }
        for (uint32_t b = 0; b < tr_run_blocks(run); b++) {
            tr_attention_scored(t, run, b, &to);
            for (uint32_t i = 0; tr_run_scored(run, b) && i < to.n; i++) {
                tr_unpack_key(run->layout, to.block.page, to.block.token[i],
                              scratch);
                score_token_c(t, run, &to, i, t->pos, scratch);
            }
        }
    }
    for (uint32_t b = 0; b + 1 < t->pos + t->n_pos; b += TR_TILE_BLOCK) {
        tr_attention_scored(t, NULL, b, &to);
        for (uint32_t i = 0; i < to.n; i++) {
            uint32_t at = b + i;

            tr_unpack_key(uncompressed,
                          tr_kv_page_at(t->kv,
                                        t->table[at / uncompressed->tokens]),
                          at % uncompressed->tokens, scratch);
            score_token_c(t, NULL, &to, i, at + 1 > t->pos ? at + 1 : t->pos,
                          scratch);
        }
    }
}

/* Logits of a query head, -infinity where no token is. */
static void
part_logits(const tr_attention_row_t *t, const tr_part_t *part, uint32_t h)
{
    uint32_t dim = t->kv->head_dim;
    float key[TR_HEAD_DIM_MAX];
    tr_tile_iterator_t at = { 0 };

    while (tr_part_next(t, part, &at)) {
        float *logits = t->logits + h * t->stride + at.tile * 16;

        for (uint32_t i = 0; i < 16; i++) {
            logits[i] = -INFINITY;
            if (at.mask >> i & 1) {
                tr_unpack_key(part->run->layout, at.page, at.first + i, key);
                logits[i] = dot(t->q + h * dim, key, dim) * t->scale;
            }
        }
    }
}

static void
part_c(const tr_attention_row_t *t, uint32_t i, float *scratch)
{
    uint32_t dim = t->kv->head_dim;
    tr_part_t part;

    tr_row_part(t, i, &part);
    for (uint32_t h = 0; h < t->group; h++) {
        float *out = t->partial + ((size_t) i * t->group + h) * (dim + 2);
        online_t o = { -INFINITY, 0, out, dim };
        tr_tile_iterator_t at = { 0 };

        memset(out, 0, dim * sizeof(float));
        part_logits(t, &part, h);
        while (tr_part_next(t, &part, &at)) {
            const float *logits = t->logits + h * t->stride + at.tile * 16;

            for (uint32_t j = 0; j < 16; j++) {
                if (at.mask >> j & 1) {
                    tr_unpack_value(part.run->layout, at.page, at.first + j,
                                    scratch);
                    online_add(&o, logits[j], scratch);
                }
            }
        }
        out[dim] = o.max;
        out[dim + 1] = o.sum;
    }
}

/* A tier's candidate so far. */
typedef struct {
    tr_kv_candidate_t candidate;
    uint32_t position;
} least_t;

/* Token first + i of a tile had the probability p. */
static void
score_token(const tr_attention_row_t *t, const tr_kv_layout_t *l,
            const tr_tile_iterator_t *at, uint32_t i, float p, least_t *least)
{
    uint32_t token = at->first + i, position, later;
    float *score = (float *) (at->page + l->score) + token, significance;

    position = tr_kv_position_at(l, at->page, token);
    later = t->position - position;
    *score += later == 0 ? 0 : p; /* the query's own token */
    significance = t->by_sum ? *score : later == 0 ? 0 : *score / (float) later;
    if (significance < least->candidate.significance
        || (significance == least->candidate.significance
            && position < least->position)) {
        least->candidate = (tr_kv_candidate_t){ significance, at->slot + i };
        least->position = position;
    }
}

static void
part_score(const tr_attention_row_t *t, const tr_part_t *part, const float *lse,
           least_t *least)
{
    tr_tile_iterator_t at = { 0 };

    while (tr_part_next(t, part, &at)) {
        for (uint32_t i = 0; i < 16; i++) {
            float best = -INFINITY;

            if (!(at.mask >> i & 1) || at.slot < part->run->frozen) {
                continue;
            }
            for (uint32_t h = 0; h < t->group; h++) {
                best = fmaxf(best, t->logits[h * t->stride + at.tile * 16 + i]
                                       - lse[h]);
            }
            score_token(t, part->run->layout, &at, i, expf(best), least);
        }
    }
}

static void
row_score_c(const tr_attention_row_t *t, const float *lse)
{
    uint32_t parts = tr_row_parts(t);
    least_t least = { { INFINITY, 0 }, UINT32_MAX };

    for (uint32_t i = 0; i < parts; i++) {
        tr_part_t part;

        tr_row_part(t, i, &part);
        if (part.run->layout->score == 0) {
            continue;
        }
        if (part.page == 0) {
            least = (least_t){ { INFINITY, 0 }, UINT32_MAX };
        }
        part_score(t, &part, lse, &least);
        if (part.run->tier >= 0) {
            t->candidate[part.run->tier] = least.candidate;
        }
    }
}

static float
bound_c(const float *q, uint32_t group, const uint16_t *minmax, uint32_t dim)
{
    float best = -INFINITY;

    for (uint32_t h = 0; h < group; h++) {
        float sum = 0;

        for (uint32_t d = 0; d < dim; d++) {
            float x = q[h * dim + d];

            sum += fmaxf(x * tr_float_from_half(minmax[d]),
                         x * tr_float_from_half(minmax[dim + d]));
        }
        best = sum > best ? sum : best;
    }
    return best;
}

const tr_attention_isa_t tr_attention_c = { tile_c, score_c, part_c,
                                            row_score_c, bound_c };
