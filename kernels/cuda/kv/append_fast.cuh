/*
 * append_fast.cuh: the fast path for a step's tokens: head size 128; a window
 * with metadata by token, below 16 bits, one metadata group a side, no new
 * page; or an uncompressed row without min/max.  Everything else, and
 * everything that is not allowed, is left to append_any (append.cuh), which
 * checks again and gives the same bits.
 *
 * The launch is in front of every layer's attention and takes as long as its
 * chain of loads.  So loads are issued together: a row's sequence, then its
 * head's entries, then numbers.  The first two read what earlier launches have
 * completed, so they are issued before the launch in front has ended.
 */
#ifndef TR_CUDA_APPEND_FAST_CUH
#define TR_CUDA_APPEND_FAST_CUH

#include "append_heads.cuh"
#include "token_fast.cuh"

/* Where the row's token goes. */
TR_DEVICE bool
fast_target(const append_t *t, place_t *p)
{
    const append_args_t *a = t->a;
    const tr_kv_seq_t *seq = t->seq;
    uint32_t len = a->kv.at_window, entry = 0, page, slot, end;
    int32_t id;
    bool ok;

    if (!a->fast || a->part != TOKENS) {
        return false;
    }
    if (t->pos >= seq->base) {
        p->layout = &a->layout[0];
        slot = t->pos - seq->base;
        ok = p->layout->minmax == 0;
    } else {
        ok = t->end - t->first == 1 && t->pos + 1 == seq->base
             && seq->n_tiers != 0 && seq->window != 0
             && seq_valid(a->layout, a->kv.n_layouts, seq);
        if (!ok) {
            return false;
        }
        p->layout = &a->layout[seq->window_layout];
        ok = fast_layout(p->layout);
        slot = tr_kv_window_entry(seq, t->pos);
        entry = len;
        len = a->kv.at_pair[0] - len;
    }
    page = slot / p->layout->tokens;
    if (!ok || page >= len) {
        return false;
    }
    id = t->table[entry + page];
    p->page = tr_kv_page_at(&a->kv, id);
    p->at = slot - page * p->layout->tokens;
    if (t->pos < seq->base && p->at == 0) { /* new? as window_enter has it */
        slot -= seq->sinks;                 /* of the ring */
        end = slot + p->layout->tokens;
        end = end < seq->window ? end : seq->window;
        ok = t->pos - seq->window_from >= slot + 1 + seq->window - end;
    }
    return ok && id >= 0;
}

/* Four neighbours of 16 bits from `at` on, with their bias of the head. */
TR_DEVICE void
four_load(const append_t *t, const void *src, const float *bias, uint32_t at,
          float *x)
{
    const tr_cuda_keys_t *in = &t->a->in;
    size_t row = t->row * in->ld + t->kv_head * FAST_DIM;

    four_open(*(const uint2 *) ((const uint16_t *) src + row + at), in->type,
              x);
    if (bias != NULL) {
        four_add(x, bias + t->kv_head * FAST_DIM + at);
#pragma unroll
        for (uint32_t e = 0; e < 4; e++) {
            x[e] = rounded(x[e], in->type);
        }
    }
}

/* The lane's numbers of a key, rotated as row_number does. */
TR_DEVICE void
fast_key_load(const append_t *t, float *x)
{
    const tr_cuda_keys_t *in = &t->a->in;
    uint32_t lane = t->w.lane, i = lane * 4 % (FAST_DIM / 2);
    const float *angles = in->angles + (size_t) t->row * FAST_DIM + i;
    float4 c = *(const float4 *) angles;
    float4 s = *(const float4 *) (angles + FAST_DIM / 2);
    float cosine[4] = { c.x, c.y, c.z, c.w }, sine[4] = { s.x, s.y, s.z, s.w };
    float y[4];

    four_load(t, in->k, t->a->heads.k_bias, lane * 4, x);
    four_load(t, in->k, t->a->heads.k_bias, (lane ^ 16) * 4, y);
#pragma unroll
    for (uint32_t e = 0; e < 4; e++) {
        float u = mul_rn(x[e], cosine[e]), v = mul_rn(y[e], sine[e]);

        x[e] = add_rn(u, lane < 16 ? -v : v);
    }
}

/* Of a value: those of its half words. */
TR_DEVICE void
fast_value_load(const append_t *t, float *x)
{
    const tr_cuda_keys_t *in = &t->a->in;
    const float *bias = t->a->heads.v_bias;
    uint32_t at = t->kv_head * FAST_DIM + t->w.lane / 8 * 32 + t->w.lane % 8;

#pragma unroll
    for (uint32_t e = 0; e < 4; e++) {
        x[e] = number_load(in->v, t->row * in->ld + at + 8 * e, in->type);
    }
#pragma unroll
    for (uint32_t e = 0; e < 4 && bias != NULL; e++) {
        x[e] = rounded(x[e] + bias[at + 8 * e], in->type);
    }
}

/* The row's token to the place that fast_target found. */
TR_DEVICE void
fast_token(const append_t *t, place_t p)
{
    const append_args_t *a = t->a;
    bool uncompressed = t->pos >= t->seq->base;
    float x[4];

    if (t->side == KEY && a->heads.keys) {
        heads_key(t, x);
    } else if (t->side == KEY && a->in.angles == NULL) {
        four_load(t, a->in.k, NULL, t->w.lane * 4, x);
    } else if (t->side == KEY) {
        fast_key_load(t, x);
    } else if (uncompressed) {
        four_load(t, a->in.v, a->heads.v_bias, t->w.lane * 4, x);
    } else {
        fast_value_load(t, x);
    }
    if (uncompressed) {
        uint2 u;

        u.x = half_of(x[0]) | (uint32_t) half_of(x[1]) << 16;
        u.y = half_of(x[2]) | (uint32_t) half_of(x[3]) << 16;
        ((uint2 *) side_row(p, t->side))[t->w.lane] = u;
    } else {
        fast_put(t->w, p, t->side, x);
    }
    if (t->side == VALUE && t->w.lane == 0) {
        token_put_stats(p, 0, t->pos);
        if (uncompressed && p.layout->recent) {
            ((float *) (p.page + p.layout->recent))[p.at] = 0;
        }
    }
}

#endif
