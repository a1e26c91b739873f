/*
 * kv_append_play.h: a step and a compression on the bed (kv_append_bed.h), under
 * a policy that moves tokens at random, in the backend and in the model.
 */
#ifndef KV_APPEND_PLAY_H
#define KV_APPEND_PLAY_H

#include "kv_append_bed.h"

/* ---- a step ---- */

/* A move of one head that a policy could have decided, in table, counts and
 * model; `in`: the new token's layout, or NULL without a window. */
static void
random_move(bed_t *b, uint32_t slot, uint32_t i, uint32_t from, uint32_t leaves)
{
    const tr_kv_seq_t *q = &b->seq[slot];
    tr_kv_move_t *m = &b->move[slot * HEADS + i];
    head_t *h = &b->head[slot * HEADS + i];
    int32_t *row = row_of(b, slot, i);
    uint32_t l;

    *m = (tr_kv_move_t){ .to = TR_KV_STAYS,
                         .victim_from = TR_KV_STAYS,
                         .victim_to = TR_KV_NOWHERE,
                         .leaves = (uint8_t) leaves,
                         .leave_pos = from };
    if (leaves == 0) {
        return;
    }
    m->to = (int8_t) rig_below(&rng, q->n_lists + 1) - 1; /* -1: nowhere */
    if (m->to < 0) {
        return;
    }
    l = (uint32_t) m->to;
    m->index = h->count[l];
    if (leaves == 1 && h->count[l] > 0 && rig_below(&rng, 2)) {
        uint32_t at = rig_below(&rng, h->count[l]);
        uint32_t below = q->n_lists - 1 - l;
        int8_t to = below == 0 || rig_below(&rng, 3) == 0
                        ? TR_KV_NOWHERE
                        : (int8_t) (l + 1 + rig_below(&rng, below));

        m->victim_from = m->to;
        m->victim_index = m->index = at;
        m->victim_to = to;
        if (to >= 0) {
            stored_t *t = &h->list[to][h->count[to]];
            const tr_kv_layout_t *a = &b->plan.layout[q->list_layout[l]];
            const tr_kv_layout_t *z = &b->plan.layout[q->list_layout[to]];

            m->victim_target = h->count[to]++;
            *t = h->list[l][at];
            model_move(a, z, false, &t->k);
            model_move(a, z, true, &t->v);
            list_room(b, row, q, (uint32_t) to, h->count[to]);
        }
    } else {
        h->count[l] += leaves;
        list_room(b, row, q, l, h->count[l]);
    }
    if (q->window) {
        stored_t *t = &h->list[l][m->index];
        const tr_kv_layout_t *a = &b->plan.layout[q->window_layout];
        const tr_kv_layout_t *z = &b->plan.layout[q->list_layout[l]];

        for (uint32_t n = 0; n < leaves; n++) {
            t[n] = h->at[from + n];
            model_move(a, z, true, &t[n].v);
            if (!z->level.by_channel) {
                model_move(a, z, false, &t[n].k);
            }
        }
        if (z->level.by_channel) {
            model_tile(z, t);
        }
    }
}

/* Decides for the token that comes next to a compressed slot. */
static void
plan_step(bed_t *b, uint32_t slot)
{
    tr_kv_seq_t *q = &b->seq[slot];
    uint32_t full = q->window && q->base - q->window_from == q->window;
    uint32_t leaves = q->window == 0 ? 1 : full ? b->c->leaves : 0;
    uint32_t from = q->window ? q->window_from : q->base;

    for (uint32_t i = 0; i < HEADS; i++) {
        random_move(b, slot, i, from, leaves);
        if (q->window) {
            uint32_t n = q->base < q->window ? q->base + 1 : q->window;

            part_room(b, row_of(b, slot, i), b->kv.at_window, q->window_layout,
                      n);
        }
        memcpy(b->count + (slot * HEADS + i) * TR_KV_LISTS_MAX,
               b->head[slot * HEADS + i].count, sizeof(b->head[0].count));
    }
    q->base++;
    q->window_from = q->window ? q->window_from + leaves : q->base;
}

/* Angles that rotate without rounding: quarter turns. */
static void
quarter_turns(float *angles, uint32_t half)
{
    static const float turn[4][2] = {
        { 1, 0 }, { 0, 1 }, { -1, 0 }, { 0, -1 }
    };

    for (uint32_t i = 0; i < half; i++) {
        uint32_t t = rig_below(&rng, 4);

        angles[i] = turn[t][0];
        angles[half + i] = turn[t][1];
    }
}

/* Puts the row's token into the model of one head. */
static void
expect(bed_t *b, uint32_t slot, uint32_t i, uint32_t pos, const float *k,
       const float *v, const float *angles)
{
    const tr_kv_seq_t *q = &b->seq[slot];
    head_t *h = &b->head[slot * HEADS + i];
    uint32_t half = b->c->dim / 2, layout = 0;
    stored_t *t = &h->at[pos];
    float key[TR_HEAD_DIM_MAX];

    for (uint32_t d = 0; d < half; d++) {
        key[d] = k[d] * angles[d] - k[half + d] * angles[half + d];
        key[half + d] = k[half + d] * angles[d] + k[d] * angles[half + d];
    }
    if (pos < q->base && q->window == 0) {
        const tr_kv_move_t *m = &b->move[slot * HEADS + i];

        if (m->to < 0) {
            return;
        }
        t = &h->list[m->to][m->index];
        layout = q->list_layout[m->to];
    } else if (pos < q->base) {
        layout = q->window_layout;
    }
    model_quantise(&b->plan.layout[layout], false, key, &t->k);
    model_quantise(&b->plan.layout[layout], true, v, &t->v);
    t->position = layout == 0 ? 0 : pos; /* dense pages have none */
    t->score = 0;
    h->recent[pos] = 0;
}

/* Stores n[s] tokens more of each slot in one step, all layers. */
static void
append(bed_t *b, const uint32_t *n)
{
    uint32_t dim = b->c->dim, pos[SLOTS * 64], seq_row[SLOTS + 1];
    size_t ld = LISTS * dim + 8;
    int32_t slot[SLOTS];
    tr_rows_t rows = { 0, 0, pos, slot, seq_row };
    float *k, *v, *angles;

    for (uint32_t s = 0; s < SLOTS; s++) {
        bool step = b->seq[s].n_lists > 0 && b->seq[s].base == b->len[s];

        if (n[s] == 0) {
            continue;
        }
        seq_row[rows.n_seqs] = rows.n_rows;
        slot[rows.n_seqs++] = (int32_t) s;
        for (uint32_t i = 0; i < n[s]; i++) {
            pos[rows.n_rows++] = b->len[s] + i;
        }
        if (n[s] == 1 && step) {
            plan_step(b, s);
        } else {
            for (uint32_t i = 0; i < HEADS; i++) {
                part_room(b, row_of(b, s, i), 0, 0,
                          b->len[s] + n[s] - b->seq[s].base);
            }
        }
        b->len[s] += n[s];
    }
    seq_row[rows.n_seqs] = rows.n_rows;
    k = some((rows.n_rows + 1) * ld * sizeof(float));
    v = some((rows.n_rows + 1) * ld * sizeof(float));
    angles = some((rows.n_rows + 1) * dim * sizeof(float));
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        tr_stream_t s = any_stream();

        for (uint32_t r = 0; r < rows.n_rows; r++) {
            quarter_turns(angles + r * dim, dim / 2);
            for (uint32_t i = 0; i < LISTS * dim; i++) {
                k[r * ld + i] = rig_normal(&rng);
                v[r * ld + i] = rig_normal(&rng) * 1e-2f;
            }
            for (uint32_t l = 0; l < LISTS; l++) {
                expect(b, (uint32_t) slot[tr_seq_of(seq_row, rows.n_seqs, r)],
                       layer * LISTS + l, pos[r], k + r * ld + l * dim,
                       v + r * ld + l * dim, angles + r * dim);
            }
        }
        assert_int_equal(any_kernels()->kv_append(&s, &b->kv, layer, &rows, k,
                                                  v, ld, angles),
                         TR_KERNEL_OK);
    }
    free(k);
    free(v);
    free(angles);
}

/* ---- a compression ---- */

typedef struct {
    stored_t t;
    const tr_kv_layout_t *layout;
    int from;       /* list, or TR_KV_WINDOW, TR_KV_NOWHERE for dense */
    uint32_t index; /* in that list */
} source_t;

static uint32_t
sources(bed_t *b, uint32_t slot, uint32_t i, uint32_t observe, source_t *out)
{
    const tr_kv_seq_t *q = &b->seq[slot];
    const head_t *h = &b->head[slot * HEADS + i];
    uint32_t n = 0, len = b->len[slot];

    for (uint32_t l = 0; l < q->n_lists; l++) {
        for (uint32_t j = 0; j < h->count[l]; j++) {
            out[n++] = (source_t){ h->list[l][j],
                                   &b->plan.layout[q->list_layout[l]], (int) l,
                                   j };
        }
    }
    for (uint32_t p = q->window ? q->window_from : q->base; p < len; p++) {
        out[n] = (source_t){
            h->at[p], &b->plan.layout[p < q->base ? q->window_layout : 0],
            TR_KV_WINDOW, p
        };
        out[n].t.position = p;
        if (p >= q->base) {
            out[n].from = TR_KV_NOWHERE;
            if (observe) {
                out[n].t.score = tr_kv_observed(h->recent[p], len - 1 - p,
                                                observe);
            }
        }
        n++;
    }
    return n;
}

/* Random choices; a list by channel gets a multiple of 32. */
static void
choose(const bed_t *b, const source_t *s, uint32_t n, int8_t *dest)
{
    uint32_t got[TR_KV_LISTS_MAX] = { 0 };
    bool keep = rig_below(&rng, 2); /* what is listed stays as it is */

    for (uint32_t i = 0; i < n; i++) {
        int8_t low = s[i].from >= 0 ? (int8_t) s[i].from : 0;

        if (s[i].from < 0 && s[i].index >= b->to.window_from && b->to.window) {
            dest[i] = TR_KV_WINDOW;
            continue;
        }
        dest[i] = (int8_t) (low
                            + (int8_t) rig_below(&rng,
                                                 b->to.n_lists - low + 1));
        if (keep && s[i].from >= 0) {
            dest[i] = low;
        }
        if (dest[i] == (int8_t) b->to.n_lists) {
            dest[i] = TR_KV_NOWHERE;
        } else {
            got[dest[i]]++;
        }
    }
    for (uint32_t i = n; i-- > 0;) {
        if (dest[i] >= 0
            && b->plan.layout[b->to.list_layout[dest[i]]].level.by_channel
            && got[dest[i]] % TR_KV_CHANNEL_TOKENS) {
            got[dest[i]]--;
            dest[i] = TR_KV_NOWHERE;
        }
    }
}

static bool
whole_tile(const source_t *const *s)
{
    for (uint32_t i = 0; i < TR_KV_CHANNEL_TOKENS; i++) {
        if (s[i]->from < 0 || !s[i]->layout->level.by_channel
            || s[i]->from != s[0]->from || s[0]->index % 32 != 0
            || s[i]->index != s[0]->index + i) {
            return false;
        }
    }
    return true;
}

/* The model of list l after the choices. */
static void
expect_list(bed_t *b, head_t *h, uint32_t l, const source_t *s, uint32_t n,
            const int8_t *dest)
{
    const tr_kv_layout_t *to = &b->plan.layout[b->to.list_layout[l]];
    const source_t *tile[TR_KV_CHANNEL_TOKENS];
    uint32_t got = 0;

    for (uint32_t i = 0; i < n; i++) {
        stored_t *t = &h->list[l][got];

        if (dest[i] != (int8_t) l) {
            continue;
        }
        *t = s[i].t;
        model_move(s[i].layout, to, true, &t->v);
        tile[got++ % TR_KV_CHANNEL_TOKENS] = &s[i];
        if (!to->level.by_channel) {
            model_move(s[i].layout, to, false, &t->k);
        } else if (got % TR_KV_CHANNEL_TOKENS == 0) {
            t -= TR_KV_CHANNEL_TOKENS - 1;
            if (!whole_tile(tile)) {
                model_tile(to, t);
            } else if (tile[0]->layout->level.key_bits != to->level.key_bits) {
                for (uint32_t j = 0; j < TR_KV_CHANNEL_TOKENS; j++) {
                    model_downgrade(&t[j].k, to->level.key_bits, false,
                                    b->c->dim);
                }
            }
        }
    }
    h->count[l] = got;
}

static void
expect_head(bed_t *b, uint32_t slot, uint32_t i, const source_t *s, uint32_t n,
            const int8_t *dest)
{
    head_t *h = &b->head[slot * HEADS + i];
    int32_t *row = b->to_tables + i * b->kv.table_len;

    for (uint32_t l = 0; l < b->to.n_lists; l++) {
        expect_list(b, h, l, s, n, dest);
        list_room(b, row, &b->to, l, h->count[l]);
    }
    for (uint32_t j = 0; j < n; j++) {
        if (dest[j] == TR_KV_WINDOW) {
            stored_t *t = &h->at[s[j].t.position];

            *t = s[j].t;
            model_move(s[j].layout, &b->plan.layout[b->to.window_layout], false,
                       &t->k);
            model_move(s[j].layout, &b->plan.layout[b->to.window_layout], true,
                       &t->v);
        }
    }
    if (b->to.window) {
        part_room(b, row, b->kv.at_window, b->to.window_layout,
                  b->to.base < b->to.window ? b->to.base : b->to.window);
    }
}

static void
compress_target(bed_t *b, uint32_t slot)
{
    const case_t *c = b->c;
    uint32_t len = b->len[slot], from = len > c->window ? len - c->window : 0;

    if (c->leaves == TR_KV_CHANNEL_TOKENS) {
        from = (from + 31) / 32 * 32;
    }
    b->to = (tr_kv_seq_t){ .base = len,
                           .window_from = c->window ? from : len,
                           .window = c->window,
                           .n_lists = (uint8_t) c->n_lists,
                           .scored = true };
    for (uint32_t l = 0; l < c->n_lists; l++) {
        b->to.list_layout[l] = layout_of(b, &c->list[l]);
    }
    if (c->window) {
        b->to.window_layout = layout_of(b, &c->window_level);
    }
}

static void
compress(bed_t *b, uint32_t slot)
{
    const tr_kernels_t *kernels = any_kernels();
    tr_stream_t stream = any_stream();
    uint32_t observe = rig_below(&rng, 3) ? 0 : 1 + rig_below(&rng, 40);
    tr_kv_compress_t c = { .slot = (int32_t) slot,
                           .n_dense = b->len[slot] - b->seq[slot].base,
                           .to = &b->to,
                           .to_tables = b->to_tables,
                           .dest = b->dest,
                           .dest_len = 2 * LEN_MAX,
                           .observe = observe };
    source_t *s = some(2 * LEN_MAX * sizeof(*s));
    void *work = some(kernels->kv_compress_work(&stream, b->c->dim));
    size_t row = b->kv.table_len * sizeof(int32_t);

    compress_target(b, slot);
    memset(b->to_tables, 0xff, HEADS * row);
    for (uint32_t i = 0; i < HEADS; i++) {
        int8_t *dest = b->dest + i * c.dest_len;
        uint32_t n = sources(b, slot, i, observe, s);

        choose(b, s, n, dest);
        expect_head(b, slot, i, s, n, dest);
    }
    assert_int_equal(kernels->kv_compress(&stream, &b->kv, &c, work),
                     TR_KERNEL_OK);
    for (uint32_t i = 0; i < HEADS; i++) {
        int32_t *old = row_of(b, slot, i);

        for (uint32_t e = 0; e < b->kv.table_len; e++) {
            give(b, &old[e]);
        }
        memcpy(old, b->to_tables + i * b->kv.table_len, row);
        memcpy(b->count + (slot * HEADS + i) * TR_KV_LISTS_MAX,
               b->head[slot * HEADS + i].count, sizeof(b->head[0].count));
    }
    b->seq[slot] = b->to;
    free(s);
    free(work);
}

#endif
