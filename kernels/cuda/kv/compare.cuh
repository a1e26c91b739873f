/*
 * compare.cuh: what a compression changes (kernels.h, kv_compare): attention of
 * a prompt's last queries over the old pages of a head, over its new keys with
 * old values, and over its old keys with new values; the counterpart of
 * cpu/kv/kv_compare.c.  It runs behind compress_tiles and in front of what
 * returns the old pages, with the index that compress_index left.
 *
 * A block has a head and some queries of it, a few a warp, whose sums stay in
 * registers.  It goes over the head's tokens, eight at a time, decoded once
 * for all its warps: those that stay in their tier, those that went to one in the
 * order of their new places, those of the window, then those that were dropped.  A lane has a
 * token's logit, with its old or its new key; then dimensions of the outputs.
 *
 * Bytes moved: each token's old and new places, once for each block of a head.
 */
#ifndef TR_CUDA_COMPARE_CUH
#define TR_CUDA_COMPARE_CUH

#include "compress.cuh"

#define COMPARE_WARPS 4u
#define COMPARE_ROWS 2u   /* queries of a warp */
#define COMPARE_TOKENS 8u /* decoded at a time */
#define COMPARE_WIDE (TR_HEAD_DIM_MAX / 32u)

/* What softmax is over. */
enum { COMPARE_OLD, COMPARE_KEYS, COMPARE_VALUES, COMPARE_SIDES };

typedef struct {
    compress_args_t compress;
    uint32_t n_jobs;
    tr_cuda_kv_compare_t q;
} compare_args_t;

typedef struct {
    /* [d][token], old and new; apart so that lanes meet different banks */
    float key[2][TR_HEAD_DIM_MAX * COMPARE_TOKENS + 16];
    float value[2][COMPARE_TOKENS][TR_HEAD_DIM_MAX];
    uint16_t q[COMPARE_WARPS * COMPARE_ROWS][TR_HEAD_DIM_MAX];
    place_t from[COMPARE_TOKENS], to[COMPARE_TOKENS]; /* no page: none */
    uint32_t pos[COMPARE_TOKENS];
} compare_smem_t;

/* A query of a query head. */
typedef struct {
    float max[COMPARE_SIDES], sum[COMPARE_SIDES];
    float out[COMPARE_SIDES][COMPARE_WIDE]; /* d = lane + 32 k */
    uint32_t pos;
    bool there;
} compare_row_t;

TR_DEVICE float
lane_float(warp_t w, float x, uint32_t from)
{
    return tr_float_from_bits(lanes_from(w, tr_float_bits(x), from));
}

TR_DEVICE float
xor_float(warp_t w, float x, uint32_t mask)
{
    return tr_float_from_bits(lanes_xor(w, tr_float_bits(x), mask));
}

/* ---- tokens ------------------------------------------------------------- */

/* Tokens of a head that went to tiers. */
TR_DEVICE uint32_t
compare_tiered(const compress_t *c)
{
    uint32_t n = 0;

    for (uint32_t l = 0; l < c->to->n_tiers; l++) {
        n += c->head->total[l];
    }
    return n;
}

/* And that stay where they are: these come before all others. */
TR_DEVICE uint32_t
compare_stay(const compress_t *c)
{
    uint32_t n = 0;

    for (uint32_t l = 0; l < c->to->n_tiers; l++) {
        n += tier_stay(c, l);
    }
    return n;
}

/* Token i of these. */
TR_DEVICE void
compare_stays(const compress_t *c, uint32_t i, compare_smem_t *smem, uint32_t k)
{
    const tr_kv_view_t *kv = &c->a->kv;
    place_t p = { NULL, NULL, i };
    uint32_t l = 0;

    for (; p.at >= tier_stay(c, l); l++) {
        p.at -= tier_stay(c, l);
    }
    p.layout = &c->a->layout[c->to->tier_layout[l]];
    p.page = tr_kv_page_at(
        kv, c->table[tr_kv_tier_entry(kv, l, p.at / p.layout->tokens)]);
    p.at %= p.layout->tokens;
    smem->from[k] = smem->to[k] = p;
    smem->pos[k] = 0;
}

/* The places of token i, in the order of this file's head. */
TR_DEVICE void
compare_token(const compress_t *c, uint32_t i, uint32_t tiered,
              compare_smem_t *smem, uint32_t k)
{
    const tr_kv_view_t *kv = &c->a->kv;
    uint32_t windowed = tr_kv_windowed(c->to), source, position = 0, l = 0;
    place_t from = { NULL, NULL, 0 }, to = { NULL, NULL, i };
    bool there = true;
    float score;

    if (i < tiered) {
        source = c->order[i];
        for (; to.at >= c->head->total[l]; l++) {
            to.at -= c->head->total[l];
        }
        to.layout = &c->a->layout[c->to->tier_layout[l]];
        to.at += tier_stay(c, l);
        to.page = tr_kv_page_at(
            kv,
            c->to_table[tr_kv_tier_entry(kv, l, to.at / to.layout->tokens)]);
    } else if (i < tiered + windowed) {
        position = tr_kv_windowed_position(c->to, i - tiered);
        source = c->tiered + window_source(c, position);
        to.at = tr_kv_window_entry(c->to, position);
        to.layout = &c->a->layout[c->to->window_layout];
        to.page = tr_kv_page_at(
            kv, c->to_table[kv->at_window + to.at / to.layout->tokens]);
    } else {
        source = i - tiered - windowed;
        there = source < c->all && c->dest[source] == TR_KV_NOWHERE;
    }
    if (there) {
        from = source_place(c, source, &position, &score);
    }
    if (to.page != NULL) {
        to.at %= to.layout->tokens;
    }
    smem->from[k] = from;
    smem->to[k] = to;
    /* tiers stand in front of all queries */
    smem->pos[k] = !there ? UINT32_MAX : source < c->tiered ? 0 : position;
}

/* Decodes the tokens whose places are known. */
TR_DEVICE void
compare_load(block_t b, compare_smem_t *smem, uint32_t dim)
{
    for (uint32_t e = b.lane; e < COMPARE_TOKENS * dim; e += b.lanes) {
        uint32_t k = e / dim, d = e % dim;

        for (uint32_t v = 0; v < 2; v++) {
            place_t p = v == 0 ? smem->from[k] : smem->to[k];

            smem->key[v][d * COMPARE_TOKENS + k] = p.page != NULL
                                                       ? side_number(p, KEY, d)
                                                       : 0;
            smem->value[v][k][d] = p.page != NULL ? side_number(p, VALUE, d)
                                                  : 0;
        }
    }
}

/* ---- a query ------------------------------------------------------------ */

/* The tokens that are loaded. */
TR_DEVICE void
row_attend(warp_t w, const compare_smem_t *smem, const uint16_t *q,
           tr_dtype_t type, uint32_t dim, float scale, compare_row_t *row)
{
    uint32_t t = w.lane % COMPARE_TOKENS, side = w.lane / COMPARE_TOKENS;
    const float *key = smem->key[side % 2];
    float logit = 0, before, now, p, keep, total;
    bool hidden = smem->pos[t] > row->pos || side == COMPARE_SIDES
                  || (side != COMPARE_OLD && smem->to[t].page == NULL);

    /* half of the dimensions a lane; lanes 16 apart have a token's logit */
    for (uint32_t d = w.lane / 16; d < dim; d += 2) {
        logit += number_load(q, d, type) * key[d * COMPARE_TOKENS + t];
    }
    logit += xor_float(w, logit, 16);
    logit = hidden ? -INFINITY : logit * scale;
    now = logit;
    for (uint32_t m = 1; m < COMPARE_TOKENS; m *= 2) {
        now = fmaxf(now, xor_float(w, now, m));
    }
    before = side == COMPARE_OLD    ? row->max[COMPARE_OLD]
             : side == COMPARE_KEYS ? row->max[COMPARE_KEYS]
                                    : row->max[COMPARE_VALUES];
    now = fmaxf(now, before);
    p = logit == -INFINITY ? 0 : expf(logit - now);
    keep = before == now ? 1 : expf(before - now);
    total = p;
    for (uint32_t m = 1; m < COMPARE_TOKENS; m *= 2) {
        total += xor_float(w, total, m);
    }
#pragma unroll
    for (uint32_t s = 0; s < COMPARE_SIDES; s++) {
        uint32_t first = s * COMPARE_TOKENS;
        float by = lane_float(w, keep, first);

        row->max[s] = lane_float(w, now, first);
        row->sum[s] = row->sum[s] * by + lane_float(w, total, first);
#pragma unroll
        for (uint32_t k = 0; k < COMPARE_WIDE; k++) {
            row->out[s][k] *= by;
        }
        for (uint32_t i = 0; i < COMPARE_TOKENS; i++) {
            const float *value = smem->value[s == COMPARE_VALUES][i];
            float share = lane_float(w, p, first + i);

#pragma unroll
            for (uint32_t k = 0; k < COMPARE_WIDE; k++) {
                if (w.lane + 32 * k < dim) {
                    row->out[s][k] += share * value[w.lane + 32 * k];
                }
            }
        }
    }
}

/* Query `i` of the head's, if there is one. */
TR_DEVICE void
row_open(warp_t w, const compare_args_t *a, uint32_t layer, uint32_t kv_head,
         uint32_t i, uint16_t *q, compare_row_t *row)
{
    const tr_kv_view_t *kv = &a->compress.kv;
    uint32_t group = a->q.heads / kv->kv_heads, dim = kv->head_dim;
    uint32_t query = i / group, head = kv_head * group + i % group;
    const float *sinks = kv->sinks == NULL ? NULL
                                           : kv->sinks[a->q.layer[layer]];
    const uint16_t *from = (const uint16_t *) a->q.q
                           + ((size_t) layer * a->q.rows + query) * a->q.ld
                           + (size_t) head * dim;

    row->there = query < a->q.n;
    row->pos = a->q.first + query;
    for (uint32_t s = 0; s < COMPARE_SIDES; s++) {
        row->max[s] = row->there && sinks != NULL ? sinks[head] : -INFINITY;
        row->sum[s] = row->there && sinks != NULL ? 1 : 0;
        for (uint32_t k = 0; k < COMPARE_WIDE; k++) {
            row->out[s][k] = 0;
        }
    }
    for (uint32_t d = w.lane; row->there && d < dim; d += w.lanes) {
        q[d] = from[d];
    }
}

/* What the warp's queries say of dimension lane + 32 k. */
TR_DEVICE void
rows_close(const compare_row_t *row, uint32_t k, tr_kv_change_t *out)
{
    tr_kv_change_t c = { 0, 0, 0 };

    for (uint32_t r = 0; r < COMPARE_ROWS; r++) {
        float x[COMPARE_SIDES];

        for (uint32_t s = 0; s < COMPARE_SIDES; s++) {
            x[s] = row[r].sum[s] > 0 ? row[r].out[s][k] / row[r].sum[s] : 0;
        }
        x[COMPARE_KEYS] -= x[COMPARE_OLD];
        x[COMPARE_VALUES] -= x[COMPARE_OLD];
        c.whole += x[COMPARE_OLD] * x[COMPARE_OLD];
        c.keys += x[COMPARE_KEYS] * x[COMPARE_KEYS];
        c.values += x[COMPARE_VALUES] * x[COMPARE_VALUES];
    }
    atomicAdd(&out->whole, c.whole);
    atomicAdd(&out->keys, c.keys);
    atomicAdd(&out->values, c.values);
}

/* ---- a head ------------------------------------------------------------- */

/* The job of the slot, if it was carried out. */
TR_DEVICE bool
compare_open(compress_t *c, const compare_args_t *a, uint32_t head)
{
    for (uint32_t j = 0; j < a->n_jobs; j++) {
        if (a->compress.jobs[j].slot == a->q.slot) {
            return a->compress.refused[j] == 0
                   && compress_open(c, &a->compress, j, head);
        }
    }
    return false;
}

/* Queries [first, ..) of KV head kv_head of the layer-th that is compared. */
TR_DEVICE void
compare_head(const compare_args_t *a, block_t b, compare_smem_t *smem,
             uint32_t layer, uint32_t kv_head, uint32_t first)
{
    const tr_kv_view_t *kv = &a->compress.kv;
    uint32_t dim = kv->head_dim, warp = b.lane / 32, tiered, stay, n;
    warp_t w = { b.lane % 32, 32 };
    compare_row_t row[COMPARE_ROWS];
    compress_t c;

    if (!compare_open(&c, a, a->q.layer[layer] * kv->kv_heads + kv_head)) {
        return;
    }
    first += warp * COMPARE_ROWS;
#pragma unroll
    for (uint32_t r = 0; r < COMPARE_ROWS; r++) {
        row_open(w, a, layer, kv_head, first + r,
                 smem->q[warp * COMPARE_ROWS + r], &row[r]);
    }
    tiered = compare_tiered(&c);
    n = tiered + tr_kv_windowed(c.to);
    n += n == c.all ? 0 : c.all; /* some were dropped */
    stay = compare_stay(&c);
    for (uint32_t i = 0; i < stay + n; i += COMPARE_TOKENS) {
        uint32_t at = i + b.lane;

        lanes_sync(b); /* the tokens before are done with */
        if (b.lane < COMPARE_TOKENS && at < stay) {
            compare_stays(&c, at, smem, b.lane);
        } else if (b.lane < COMPARE_TOKENS) {
            compare_token(&c, at - stay, tiered, smem, b.lane);
        }
        lanes_sync(b);
        compare_load(b, smem, dim);
        lanes_sync(b);
#pragma unroll
        for (uint32_t r = 0; r < COMPARE_ROWS; r++) {
            if (row[r].there) {
                row_attend(w, smem, smem->q[warp * COMPARE_ROWS + r], a->q.type,
                           dim, a->q.scale, &row[r]);
            }
        }
    }
#pragma unroll
    for (uint32_t k = 0; k < COMPARE_WIDE; k++) {
        if (w.lane + 32 * k < dim && row[0].there) {
            rows_close(row, k,
                       a->q.change
                           + ((size_t) layer * kv->kv_heads + kv_head) * dim
                           + w.lane + 32 * k);
        }
    }
}

#endif
