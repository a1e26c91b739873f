/*
 * append_moves.cuh: the moves of a step in all layers at once, under the
 * conditions of append_fast.cuh.  A warp takes up to eight heads.
 *
 * Four lanes a head look at the four places of its move at the same time, and
 * hand metadata, score and position from the old place to the new one.  Then
 * the whole warp moves codes, four heads at a time: first the candidates', then
 * those of the tokens that leave the window, which may take a candidate's place.
 */
#ifndef TR_CUDA_APPEND_MOVES_CUH
#define TR_CUDA_APPEND_MOVES_CUH

#include "append.cuh"
#include "token_fast.cuh"

#define MOVES_HEADS 8u /* of a warp, at most */
#define MOVES_AHEAD 4u /* heads whose codes are loaded together */

/* A token's codes on their way, by side. */
typedef struct {
    uint8_t *from[2], *to[2]; /* fast_base */
    uint8_t bits[2], less[2];
    uint8_t at_from, at_to; /* tokens, modulo 16 */
    bool there, narrow;
} code_move_t;

typedef struct {
    code_move_t of[2][MOVES_HEADS]; /* who leaves, candidates */
    token_smem_t token;             /* for what is not so common */
} moves_smem_t;

/* The places of a head's move, in the order of its fields. */
enum { LEAVES, TO, CANDIDATE, CANDIDATE_TO };

static_assert(offsetof(tr_kv_move_t, leave_pos) == 4
                  && offsetof(tr_kv_move_t, candidate_target) == 16
                  && offsetof(tr_kv_move_t, candidate_to) == 2,
              "moves_place counts on the order of a move's fields");

/* ---- a lane's place ----------------------------------------------------- */

typedef struct {
    bool used, ok;
    uint32_t index; /* in the window, a position */
    place_t at;
} moves_place_t;

/* Head h: its layer, row and KV head; false: nothing moves. */
TR_DEVICE bool
moves_open(append_t *t, const append_args_t *a, uint32_t h)
{
    uint32_t kv_heads = a->kv.kv_heads, rows = a->rows.n_rows;

    t->kv_head = h % kv_heads;
    t->row = h / kv_heads % rows;
    return append_open(t, a, h / kv_heads / rows) && t->pos < t->seq->base;
}

/* Is the move one of those, as far as is known without its places? */
TR_DEVICE bool
moves_common(const append_t *t)
{
    const append_args_t *a = t->a;
    const tr_kv_seq_t *seq = t->seq;
    const tr_kv_move_t *m = t->move;

    return a->fast && t->pos + 1 == seq->base && t->end - t->first == 1
           && seq->n_tiers != 0 && seq->window != 0
           && seq_valid(a->layout, a->kv.n_layouts, seq) && m->to >= TR_KV_STAYS
           && (m->to < 0 || m->leaves == 1)
           && (m->candidate_from >= 0 || m->candidate_from == TR_KV_STAYS)
           && (m->candidate_from < 0 || m->candidate_to >= TR_KV_NOWHERE);
}

/* The page of the new token's slot; negative: it has none. */
TR_DEVICE int32_t
moves_new(const append_t *t)
{
    const tr_kv_view_t *kv = &t->a->kv;
    const tr_kv_seq_t *seq = t->seq;
    uint32_t page = tr_kv_window_entry(seq, t->pos)
                    / t->a->layout[seq->window_layout].tokens;
    bool has = page < kv->at_pair[0] - kv->at_window;
    int32_t id = t->table[has ? kv->at_window + page : 0];

    return has ? id : -1;
}

/* Place `which` of the move. */
TR_DEVICE moves_place_t
moves_place(const append_t *t, uint32_t which)
{
    const append_args_t *a = t->a;
    const tr_kv_seq_t *seq = t->seq;
    const tr_kv_move_t *m = t->move;
    const tr_kv_layout_t *l, *from;
    bool window = which == LEAVES;
    int tier = ((const int8_t *) m)[window ? 0 : which - 1];
    uint32_t in = (uint32_t) tier % TR_KV_TIERS_MAX, slot, page;
    uint32_t entry = a->kv.at_window, len = a->kv.at_pair[0] - entry;
    int32_t id;
    moves_place_t f;

    f.index = ((const uint32_t *) m)[1 + which];
    f.used = tier >= 0 && (which != CANDIDATE_TO || m->candidate_from >= 0);
    f.ok = tier < seq->n_tiers;
    if (window) { /* it was in the ring before this step */
        f.ok = f.ok && f.index < t->pos && t->pos - f.index <= seq->window;
    }
    /* no more than that is known of one that is not used */
    l = &a->layout[window || !f.used || !f.ok ? seq->window_layout
                                              : seq->tier_layout[in]];
    from = &a->layout[which == CANDIDATE_TO && f.used
                              && m->candidate_from < seq->n_tiers
                          ? seq->tier_layout[m->candidate_from]
                          : seq->window_layout];
    slot = window ? tr_kv_window_entry(seq, f.index) : f.index;
    page = slot / l->tokens;
    f.at.layout = l;
    f.at.at = slot - page * l->tokens;
    if (which == TO || which == CANDIDATE_TO) { /* nor a page that is new */
        uint32_t count = t->count[in];

        f.ok = f.ok && slot < count && (f.at.at != 0 || slot + 1 != count)
               && token_goes(from, l);
    }
    if (!window) {
        entry = tr_kv_tier_entry(&a->kv, in, 0);
        len = a->kv.pair_len[in / 2];
    }
    f.ok = f.ok && page < len && fast_layout(l);
    page = window || in % 2 == 0 ? page : 0 - page;
    id = t->table[f.used && f.ok ? entry + page : 0];
    f.at.page = tr_kv_page_at(&a->kv, id);
    f.ok = f.ok && id >= 0;
    return f;
}

/* ---- metadata, scores, positions ---------------------------------------- */

/* The metadata of one side, in fewer bits. */
TR_DEVICE uint32_t
moves_meta(uint32_t meta, uint32_t bits, const tr_kv_layout_t *to, side_t s)
{
    uint16_t old[2] = { (uint16_t) meta, (uint16_t) (meta >> 16) }, now[2];
    uint32_t less = side_bits(to, s);

    if (bits == less) {
        return meta;
    }
    meta_downgrade(old, now, bits, less, to->level.narrow);
    return now[0] | (uint32_t) now[1] << 16;
}

/* What of a move the lane of its place says to the warp. */
TR_DEVICE void
moves_say(const moves_place_t *f, side_t s, bool gives, code_move_t *smem)
{
    uint32_t bits = side_bits(f->at.layout, s), i = s == KEY ? 0 : 1;
    uint8_t *base = fast_base(f->at, s, bits);

    if (gives) {
        smem->from[i] = base;
        smem->bits[i] = (uint8_t) bits;
        smem->at_from = (uint8_t) (f->at.at % 16);
    } else {
        smem->to[i] = base;
        smem->less[i] = (uint8_t) bits;
        smem->at_to = (uint8_t) (f->at.at % 16);
        smem->narrow = f->at.layout->level.narrow;
    }
}

/* Hands all but codes from the even lane of a pair to the odd one, for those
 * that `go`.  All lanes come. */
TR_DEVICE void
moves_hand(warp_t w, const moves_place_t *f, uint32_t which, bool go)
{
    const place_t p = f->at;
    uint32_t x[5] = { 0, 0, 0, 0, 0 };
    bool gives = which % 2 == 0;

    if (go && gives) {
        x[0] = *fast_meta(p, KEY);
        x[1] = *fast_meta(p, VALUE);
        x[2] = tr_float_bits(token_score(p));
        x[3] = which == LEAVES ? f->index : token_position(p);
        x[4] = p.layout->level.key_bits
               | (uint32_t) p.layout->level.value_bits << 8;
    }
#pragma unroll
    for (uint32_t i = 0; i < 5; i++) {
        x[i] = lanes_xor(w, x[i], 1);
    }
    if (go && !gives) {
        *fast_meta(p, KEY) = moves_meta(x[0], x[4] & 0xff, p.layout, KEY);
        *fast_meta(p, VALUE) = moves_meta(x[1], x[4] >> 8, p.layout, VALUE);
        token_put_stats(p, tr_float_from_bits(x[2]), x[3]);
    }
}

/* ---- codes -------------------------------------------------------------- */

/* Asks for the codes of a move. */
TR_DEVICE void
moves_take(warp_t w, const code_move_t *m, uint32_t *x)
{
    if (m->there) {
        x[0] = fast_load(m->from[0] + fast_lane(w, KEY, m->bits[0]), KEY,
                         m->bits[0]);
        x[1] = fast_load(m->from[1] + fast_lane(w, VALUE, m->bits[1]), VALUE,
                         m->bits[1]);
    }
}

/* What is where a value of 2 bits goes. */
TR_DEVICE uint32_t
moves_was(warp_t w, const code_move_t *m)
{
    return m->there && m->less[1] == 2
               ? fast_load(m->to[1] + fast_lane(w, VALUE, 2), VALUE, 2)
               : 0;
}

TR_DEVICE void
moves_give(warp_t w, const code_move_t *m, const uint32_t *x, uint32_t was)
{
#pragma unroll
    for (uint32_t i = 0; i < 2; i++) {
        side_t s = i == 0 ? KEY : VALUE;
        uint32_t bits = m->bits[i], less = m->less[i], y;

        if (!m->there) {
            return;
        }
        y = fast_open(w, x[i], m->at_from, s, bits);
        if (bits != less) {
            y = fast_downgrade(y, bits, less, m->narrow);
        }
        fast_store(w, m->to[i] + fast_lane(w, s, less), m->at_to, s, less, y,
                   was);
    }
}

/* The codes of MOVES_AHEAD heads; loads first. */
TR_DEVICE void
moves_codes(warp_t w, const code_move_t *candidate, const code_move_t *leaves)
{
    uint32_t x[MOVES_AHEAD][2], y[MOVES_AHEAD][2], was[MOVES_AHEAD];

#pragma unroll
    for (uint32_t k = 0; k < MOVES_AHEAD; k++) {
        moves_take(w, &candidate[k], x[k]);
        moves_take(w, &leaves[k], y[k]);
        was[k] = moves_was(w, &candidate[k]);
    }
#pragma unroll
    for (uint32_t k = 0; k < MOVES_AHEAD; k++) {
        moves_give(w, &candidate[k], x[k], was[k]);
    }
    lanes_sync(w); /* who leaves may go where a candidate was, or beside one */
#pragma unroll
    for (uint32_t k = 0; k < MOVES_AHEAD; k++) {
        was[k] = moves_was(w, &leaves[k]);
    }
#pragma unroll
    for (uint32_t k = 0; k < MOVES_AHEAD; k++) {
        moves_give(w, &leaves[k], y[k], was[k]);
    }
}

/* ---- a warp's heads ----------------------------------------------------- */

/* The moves of heads [first, end), MOVES_HEADS at most, but those that are not
 * as common: these as bits.  w.lanes is 32. */
TR_DEVICE uint32_t
moves_fast(const append_args_t *a, warp_t w, moves_smem_t *smem, uint32_t first,
           uint32_t end)
{
    uint32_t which = w.lane % 4, h = first + w.lane / 4, bad = 0;
    code_move_t *mine = &smem->of[which / 2][w.lane / 4];
    append_t t = {};
    moves_place_t f = {};
    bool there, go;

    there = h < end && moves_open(&t, a, h);
    if (there) {
        bad = 1;
        if (moves_common(&t)) {
            int32_t page = moves_new(&t);

            f = moves_place(&t, which);
            bad = page < 0 || (f.used && !f.ok);
        }
    }
    bad |= lanes_xor(w, bad, 1);
    bad |= lanes_xor(w, bad, 2);
    /* who receives knows whether there is a place to go */
    go = lanes_from(w, there && bad == 0 && f.used, w.lane | 1);
    if (go) {
        moves_say(&f, KEY, which % 2 == 0, mine);
        moves_say(&f, VALUE, which % 2 == 0, mine);
    }
    mine->there = go;
    moves_hand(w, &f, which, go);
    lanes_sync(w);
#pragma unroll 1
    for (uint32_t i = 0; first + i < end; i += MOVES_AHEAD) {
        moves_codes(w, &smem->of[1][i], &smem->of[0][i]);
    }
    bad <<= w.lane / 4;
    bad |= lanes_xor(w, bad, 4);
    bad |= lanes_xor(w, bad, 8);
    bad |= lanes_xor(w, bad, 16);
    return bad;
}

#endif
