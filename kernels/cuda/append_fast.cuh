/*
 * append_fast.cuh: a step on its way into the cache where all is as it nearly
 * always is: head size 128, levels by token below 16 bits with one metadata
 * group a side, one token leaving the window, no page that is new; or a dense
 * row without digest.  What is not so, or not allowed, is left to append_any
 * (append.cuh), which looks at everything again and gives the same bits.
 *
 * A launch in front of every layer's attention costs what its chain of loads
 * does.  So they are asked for together: a row's sequence, then its head's
 * entries, then numbers; and the first two belong to launches long done, and are
 * asked for before the launch before this one has ended.
 */
#ifndef TR_CUDA_APPEND_FAST_CUH
#define TR_CUDA_APPEND_FAST_CUH

#include "append_check.cuh"
#include "token_fast.cuh"

/* ---- tokens ------------------------------------------------------------- */

/* Where the row's token goes. */
TR_HD bool
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
        ok = p->layout->digest == 0;
    } else {
        ok = t->end - t->first == 1 && t->pos + 1 == seq->base
             && seq->n_lists != 0 && seq->window != 0
             && seq_valid(a->layout, a->kv.n_layouts, seq);
        if (!ok) {
            return false;
        }
        p->layout = &a->layout[seq->window_layout];
        ok = fast_layout(p->layout);
        slot = t->pos % seq->window;
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
        end = slot + p->layout->tokens;
        end = end < seq->window ? end : seq->window;
        ok = t->pos - seq->window_from >= slot + 1 + seq->window - end;
    }
    return ok && id >= 0;
}

/* Four neighbours of 16 bits. */
TR_HD void
four_load(const void *src, size_t at, tr_dtype_t type, float *x)
{
    uint2 u = *(const uint2 *) ((const uint16_t *) src + at);
    uint32_t h[4] = { u.x & 0xffff, u.x >> 16, u.y & 0xffff, u.y >> 16 };

#pragma unroll
    for (uint32_t e = 0; e < 4; e++) {
        x[e] = type == TR_BF16 ? tr_float_from_bits(h[e] << 16)
                               : float_of((uint16_t) h[e]);
    }
}

/* The lane's numbers of a key, rotated as row_number does. */
TR_HD void
fast_key_load(const append_t *t, size_t at, float *x)
{
    const tr_cuda_keys_t *in = &t->a->in;
    uint32_t lane = t->w.lane, i = lane * 4 % (FAST_DIM / 2);
    const float *angles = in->angles + (size_t) t->row * FAST_DIM + i;
    float4 c = *(const float4 *) angles;
    float4 s = *(const float4 *) (angles + FAST_DIM / 2);
    float cosine[4] = { c.x, c.y, c.z, c.w }, sine[4] = { s.x, s.y, s.z, s.w };
    float y[4];

    four_load(in->k, at + lane * 4, in->type, x);
    four_load(in->k, at + (lane ^ 16) * 4, in->type, y);
#pragma unroll
    for (uint32_t e = 0; e < 4; e++) {
        float u = mul_rn(x[e], cosine[e]), v = mul_rn(y[e], sine[e]);

        x[e] = add_rn(u, lane < 16 ? -v : v);
    }
}

/* Of a value: those of its half words. */
TR_HD void
fast_value_load(const append_t *t, size_t at, float *x)
{
    const tr_cuda_keys_t *in = &t->a->in;
    const uint16_t *v = (const uint16_t *) in->v + at + t->w.lane / 8 * 32
                        + t->w.lane % 8;
    uint16_t h[4];

#pragma unroll
    for (uint32_t e = 0; e < 4; e++) {
        h[e] = v[8 * e];
    }
#pragma unroll
    for (uint32_t e = 0; e < 4; e++) {
        x[e] = in->type == TR_BF16
                   ? tr_float_from_bits((uint32_t) h[e] << 16)
                   : float_of(h[e]);
    }
}

/* The row's token to the place that fast_target found. */
TR_HD void
fast_token(const append_t *t, place_t p)
{
    const tr_cuda_keys_t *in = &t->a->in;
    bool dense = t->pos >= t->seq->base;
    size_t at = t->row * in->ld + (size_t) t->list * FAST_DIM;
    float x[4];

    if (t->side == KEY) {
        fast_key_load(t, at, x);
    } else if (dense) {
        four_load(in->v, at + t->w.lane * 4, in->type, x);
    } else {
        fast_value_load(t, at, x);
    }
    if (dense) {
        uint2 u;

        u.x = half_of(x[0]) | (uint32_t) half_of(x[1]) << 16;
        u.y = half_of(x[2]) | (uint32_t) half_of(x[3]) << 16;
        ((uint2 *) side_row(p, t->side))[t->w.lane] = u;
    } else {
        fast_put(t->w, p, t->side, x);
    }
    if (t->side == VALUE && t->w.lane == 0) {
        token_mark(p, 0, t->pos);
        if (dense && p.layout->recent) {
            ((float *) (p.page + p.layout->recent))[p.at] = 0;
        }
    }
}

/* ---- moves -------------------------------------------------------------- */

/* The places of a head's move, in the order of its fields, and the window slot
 * of the new token, which must have a page. */
enum { LEAVES, TO, VICTIM, VICTIM_TO, NEW, PLACES };

static_assert(offsetof(tr_kv_move_t, leave_pos) == 4
                  && offsetof(tr_kv_move_t, victim_target) == 16
                  && offsetof(tr_kv_move_t, victim_to) == 2,
              "fast_moves counts on the order of a move's fields");

/* What a lane found out about a place. */
typedef struct {
    bool used, ok;
    int32_t page;
    uint32_t at, layout; /* at: in the page */
} fast_place_t;

/* Lane `which` looks at the place of that name; a lane beyond at none. */
TR_HD fast_place_t
fast_place(const append_t *t, uint32_t which, int to, int victim)
{
    const append_args_t *a = t->a;
    const tr_kv_seq_t *seq = t->seq;
    bool window = which == LEAVES || which >= NEW, lists = !window;
    int list = lists ? ((const int8_t *) t->move)[which - 1] : 0;
    uint32_t index = which < NEW ? ((const uint32_t *) t->move)[1 + which]
                                 : t->pos;
    uint32_t l = lists ? (uint32_t) list % TR_KV_LISTS_MAX : 0, page, count;
    uint32_t from = seq->window_layout, entry = a->kv.at_window;
    uint32_t len = a->kv.at_pair[0] - entry;
    fast_place_t f;

    f.used = which == NEW || (which <= TO && to >= 0)
             || (which == VICTIM && victim >= 0)
             || (which == VICTIM_TO && victim >= 0 && list >= 0);
    f.layout = lists ? seq->list_layout[l] : from;
    if (which == VICTIM_TO) {
        from = seq->list_layout[(uint32_t) victim % TR_KV_LISTS_MAX];
    }
    f.ok = !lists || (list < seq->n_lists);
    if (which == LEAVES) { /* it was in the ring before this step */
        f.ok = index < t->pos && t->pos - index <= seq->window;
    }
    /* no more than that is known of one that is not used */
    f.layout = f.layout < a->kv.n_layouts ? f.layout : 0;
    from = from < a->kv.n_layouts ? from : 0;

    const tr_kv_layout_t *layout = &a->layout[f.layout];

    count = t->count[l];
    index = window ? index % seq->window : index;
    page = index / layout->tokens;
    f.at = index - page * layout->tokens;
    if (which == TO || which == VICTIM_TO) { /* nor a page that is new */
        f.ok = f.ok && index < count && (f.at != 0 || index + 1 != count)
               && token_goes(&a->layout[from], layout);
    }
    if (lists) {
        len = a->kv.pair_len[l / 2];
        entry = a->kv.at_pair[l / 2] + (l % 2 == 0 ? 0 : len - 1);
    }
    f.ok = f.ok && page < len && fast_layout(layout);
    entry += lists && l % 2 != 0 ? 0 - page : page;
    f.page = t->table[f.used && f.ok ? entry : 0];
    f.ok = f.ok && f.page >= 0;
    return f;
}

/* Place `which`, told to all lanes. */
TR_HD place_t
fast_told(const append_t *t, const fast_place_t *f, uint32_t which)
{
    uint32_t at = lanes_from(t->w, f->at | f->layout << 24, which);
    int32_t page = (int32_t) lanes_from(t->w, (uint32_t) f->page, which);
    place_t p = { tr_kv_page_at(&t->a->kv, page), &t->a->layout[at >> 24],
                  at & 0xffffff };

    return p;
}

/* The head's moves; false: nothing was done, and append_any looks at them. */
TR_HD bool
fast_moves(const append_t *t)
{
    const tr_kv_move_t *m = t->move;
    const tr_kv_seq_t *seq = t->seq;
    int to = m->to, victim = m->victim_from, victim_to = m->victim_to;
    fast_move_t leaves, goes;
    fast_place_t f;
    uint32_t now = 0;
    bool ok;

    if (!t->a->fast || t->pos + 1 != seq->base || t->end - t->first != 1
        || seq->n_lists == 0 || seq->window == 0
        || !seq_valid(t->a->layout, t->a->kv.n_layouts, seq)
        || to < TR_KV_STAYS || (to >= 0 && m->leaves != 1)
        || (victim < 0 && victim != TR_KV_STAYS)
        || (victim >= 0 && victim_to < TR_KV_NOWHERE)) {
        return false;
    }
    f = fast_place(t, t->w.lane < NEW ? t->w.lane : NEW, to, victim);
    ok = f.ok || !f.used;
    if (lanes_min(t->w, ok) == 0) {
        return false;
    }
    goes.at = NULL;
    if (victim >= 0 && victim_to >= 0) {
        goes.from = fast_told(t, &f, VICTIM);
        goes.to = fast_told(t, &f, VICTIM_TO);
        fast_take(t->w, t->side, &goes);
    }
    if (to >= 0) {
        leaves.from = fast_told(t, &f, LEAVES);
        leaves.to = fast_told(t, &f, TO);
        fast_take(t->w, t->side, &leaves);
        leaves.position = m->leave_pos;
    }
    lanes_sync(t->w); /* who leaves may go where the victim was */
    if (goes.at != NULL) {
        now = fast_give(t->w, t->side, &goes);
    }
    if (to >= 0) {
        if (leaves.at == goes.at) { /* a half word that both share */
            leaves.was = now;
        }
        fast_give(t->w, t->side, &leaves);
    }
    return true;
}

#endif
