/*
 * Stores a step's keys and values in the cache.  Keys arrive before RoPE, with
 * the angles of their positions, or without angles as they are to be stored.
 * Reference: test_kv_store.c.
 *
 * Rows are shared out among threads by uncompressed page: whoever has a row
 * that begins a page, or a sequence, takes the rows after it that belong to the
 * same page, too.  So a page's min/max has one writer.
 */
#include "kernels/cpu/cpu.h"
#include "kv_store.h"

#include <string.h>

/* Rows between asking for a place and writing it: a row takes some 100 ns,
 * memory two or three times that. */
#define AHEAD 4u

typedef struct {
    const tr_kv_codec_t *codec;
    const tr_kv_view_t *kv;
    uint32_t layer;
    const tr_rows_t *rows;
    const float *k, *v, *angles;
    size_t ld;
} append_t;

/* A token on its way in. */
typedef struct {
    _Alignas(64) float key[TR_HEAD_DIM_MAX]; /* as it is stored */
    const float *value;
    uint32_t pos;
} token_t;

static void
rotate(const float *k, const float *cosine, uint32_t half, float *out)
{
    const float *sine = cosine + half;

    for (uint32_t i = 0; i < half; i++) {
        out[i] = k[i] * cosine[i] - k[half + i] * sine[i];
        out[half + i] = k[half + i] * cosine[i] + k[i] * sine[i];
    }
}

/* Smallest and largest key by channel; `first` begins them. */
static void
minmax_update(uint16_t *minmax, const uint16_t *key, uint32_t dim, bool first)
{
    if (first) {
        memcpy(minmax, key, 2ul * dim);
        memcpy(minmax + dim, key, 2ul * dim);
        return;
    }
    for (uint32_t d = 0; d < dim; d++) {
        float x = tr_float_from_half(key[d]);

        if (x < tr_float_from_half(minmax[d])) {
            minmax[d] = key[d];
        }
        if (x > tr_float_from_half(minmax[dim + d])) {
            minmax[dim + d] = key[d];
        }
    }
}

static void
append_uncompressed(const append_t *a, const int32_t *table,
                    const tr_kv_seq_t *seq, const token_t *t)
{
    tr_kv_place_t to = tr_kv_place_uncompressed(a->kv, table,
                                                t->pos - seq->base);
    const tr_kv_layout_t *l = to.layout;
    uint32_t dim = a->kv->head_dim;

    tr_kv_put(a->codec, to, t->key, t->value);
    tr_kv_put_stats(to, 0, t->pos);
    if (l->recent) {
        memset(to.page + l->recent + 4 * to.at, 0, 4);
    }
    if (l->minmax) {
        minmax_update((uint16_t *) (to.page + l->minmax),
                      (uint16_t *) to.page + (size_t) to.at * dim, dim,
                      to.at == 0);
    }
}

/* The place that tier `to` gives to n tokens from `index` on; its page is new
 * when they are all that it holds. */
static tr_kv_place_t
tier_place(const append_t *a, const int32_t *table, const tr_kv_seq_t *seq,
           const uint32_t *count, uint32_t to, uint32_t index, uint32_t n)
{
    tr_kv_place_t p = tr_kv_place_tier(a->kv, table, seq, to, index);

    if (p.at == 0 && index + n == count[to]) {
        tr_kv_page_clear(p.page, p.layout, a->kv->page_bytes);
    }
    return p;
}

/* Tokens leave the window for tier `to`. */
static void
window_leave(const append_t *a, const int32_t *table, const tr_kv_seq_t *seq,
             const uint32_t *count, const tr_kv_move_t *m)
{
    uint32_t to = (uint32_t) m->to;
    tr_kv_place_t from[TR_KV_CHANNEL_TOKENS];

    for (uint32_t i = 0; i < m->leaves; i++) {
        from[i] = tr_kv_place_window(a->kv, table, seq,
                                     tr_kv_window_entry(seq, m->leave_pos + i));
    }
    for (uint32_t i = 0; i < m->leaves; i++) {
        tr_kv_place_t p = i == 0 ? tier_place(a, table, seq, count, to,
                                              m->index, m->leaves)
                                 : tr_kv_place_tier(a->kv, table, seq, to,
                                                    m->index + i);

        if (!p.layout->level.by_channel) {
            tr_kv_move(a->codec, from[i], p);
        } else if (i == 0) {
            tr_kv_move_tile(a->codec, from, p);
        }
        tr_kv_put_stats(p, tr_kv_score(from[i]), m->leave_pos + i);
    }
}

static void
window_enter(const append_t *a, const int32_t *table, const tr_kv_seq_t *seq,
             const token_t *t)
{
    tr_kv_place_t p = tr_kv_place_window(a->kv, table, seq,
                                         tr_kv_window_entry(seq, t->pos));
    uint32_t slot = (t->pos - seq->sinks) % seq->window;
    /* of a page without sinks: where the page's slots end, and how long ago the
     * last was written: when that has left the window, the page is new or as
     * good as new */
    uint32_t end = slot - p.at + p.layout->tokens;
    uint32_t ago;

    end = end < seq->window ? end : seq->window;
    ago = slot + 1 + seq->window - end;
    if (p.at == 0 && t->pos - seq->window_from < ago) {
        tr_kv_page_clear(p.page, p.layout, a->kv->page_bytes);
    }
    tr_kv_put(a->codec, p, t->key, t->value);
    tr_kv_put_stats(p, 0, t->pos);
}

/* Does the head's move, then stores the token. */
static void
append_moved(const append_t *a, const int32_t *table, const tr_kv_seq_t *seq,
             size_t head, const token_t *t)
{
    const uint32_t *count = a->kv->count + head * TR_KV_TIERS_MAX;
    const tr_kv_move_t *m = &a->kv->move[head];

    if (m->candidate_from >= 0 && m->candidate_to >= 0) {
        tr_kv_place_t from = tr_kv_place_tier(a->kv, table, seq,
                                              (uint32_t) m->candidate_from,
                                              m->candidate_index);
        tr_kv_place_t to = tier_place(a, table, seq, count,
                                      (uint32_t) m->candidate_to,
                                      m->candidate_target, 1);

        tr_kv_move(a->codec, from, to);
        tr_kv_put_stats(to, tr_kv_score(from), tr_kv_position(from));
    }
    if (m->to >= 0 && seq->window == 0) {
        tr_kv_place_t p = tier_place(a, table, seq, count, (uint32_t) m->to,
                                     m->index, 1);

        tr_kv_put(a->codec, p, t->key, t->value);
        tr_kv_put_stats(p, 0, t->pos);
    } else if (m->to >= 0) {
        window_leave(a, table, seq, count, m);
    }
    if (seq->window != 0) {
        window_enter(a, table, seq, t);
    }
}

/* ---- rows ---- */

static void
prefetch_tier(const append_t *a, const int32_t *table, const tr_kv_seq_t *seq,
              int tier, uint32_t index)
{
    if (tier >= 0) {
        tr_kv_prefetch(
            tr_kv_place_tier(a->kv, table, seq, (uint32_t) tier, index));
    }
}

/* Asks for the lines that a row will touch: they are in as many pages as there
 * are heads and places, and wait for each other otherwise. */
static void
prefetch_row(const append_t *a, uint32_t row)
{
    const tr_kv_view_t *kv = a->kv;
    const tr_rows_t *rows = a->rows;
    int32_t slot = rows->seq_slot[tr_seq_of(rows->seq_row, rows->n_seqs, row)];
    const tr_kv_seq_t *seq = tr_kv_seq_of(kv, slot, a->layer);
    uint32_t pos = rows->row_pos[row];

    for (uint32_t l = 0; l < kv->kv_heads; l++) {
        size_t head = tr_kv_head(kv, slot, a->layer, l);
        const int32_t *table = kv->tables + head * kv->table_len;
        const tr_kv_move_t *m = &kv->move[head];

        if (pos >= seq->base) {
            tr_kv_prefetch(
                tr_kv_place_uncompressed(kv, table, pos - seq->base));
            continue;
        }
        if (seq->window > 0) { /* of a full one, who leaves makes the place */
            tr_kv_prefetch(tr_kv_place_window(kv, table, seq,
                                              tr_kv_window_entry(seq, pos)));
        }
        prefetch_tier(a, table, seq, m->to, m->index);
        if (m->candidate_from >= 0) { /* its place is that of who comes */
            prefetch_tier(a, table, seq, m->candidate_to, m->candidate_target);
        }
    }
}

/* Rows that one worker must take in one go begin here. */
static bool
piece_begins(const append_t *a, uint32_t row, uint32_t seq)
{
    const tr_rows_t *rows = a->rows;
    uint32_t base = tr_kv_seq_of(a->kv, rows->seq_slot[seq], a->layer)->base;

    return row == rows->seq_row[seq]
           || (rows->row_pos[row] - base) % a->kv->layout[0].tokens == 0;
}

static void
append_row(const append_t *a, uint32_t row, int32_t slot)
{
    const tr_kv_view_t *kv = a->kv;
    const tr_kv_seq_t *seq = tr_kv_seq_of(kv, slot, a->layer);
    uint32_t dim = kv->head_dim;
    token_t t = { .pos = a->rows->row_pos[row] };

    for (uint32_t l = 0; l < kv->kv_heads; l++) {
        const int32_t *table = tr_kv_table(kv, slot, a->layer, l);

        if (a->angles != NULL) {
            rotate(a->k + row * a->ld + l * dim, a->angles + (size_t) row * dim,
                   dim / 2, t.key);
        } else {
            memcpy(t.key, a->k + row * a->ld + l * dim, dim * sizeof(float));
        }
        t.value = a->v + row * a->ld + l * dim;
        if (t.pos >= seq->base) {
            append_uncompressed(a, table, seq, &t);
        } else {
            append_moved(a, table, seq, tr_kv_head(kv, slot, a->layer, l), &t);
        }
    }
}

static void
append_rows(void *arg, uint32_t first, uint32_t end, uint32_t worker)
{
    const append_t *a = arg;
    const tr_rows_t *rows = a->rows;
    bool mine = false;

    (void) worker;
    for (uint32_t r = first; r < end && r < first + AHEAD; r++) {
        prefetch_row(a, r);
    }
    for (uint32_t r = first; r < rows->n_rows; r++) {
        uint32_t seq = tr_seq_of(rows->seq_row, rows->n_seqs, r);

        if (piece_begins(a, r, seq)) {
            mine = r < end;
            if (!mine) {
                return;
            }
        }
        if (mine && r + AHEAD < end) {
            prefetch_row(a, r + AHEAD);
        }
        if (mine) {
            append_row(a, r, rows->seq_slot[seq]);
        }
    }
}

/* ---- what is refused ---- */

/* May n tokens of layout `from` (NULL: new) go to tier `to`, from `index`? */
static bool
target_valid(const append_t *a, const int32_t *table, const tr_kv_seq_t *seq,
             const uint32_t *count, const tr_kv_layout_t *from, int to,
             uint32_t index, uint32_t n)
{
    const tr_kv_layout_t *l;

    if (to == TR_KV_NOWHERE) {
        return true;
    }
    if (to < 0 || to >= seq->n_tiers) {
        return false;
    }
    l = &a->kv->layout[seq->tier_layout[to]];
    if (l->level.by_channel
        && (n != TR_KV_CHANNEL_TOKENS || index % TR_KV_CHANNEL_TOKENS != 0)) {
        return false;
    }
    return (from == NULL || tr_kv_goes(from, l)) && n <= count[to]
           && index <= count[to] - n
           && tr_kv_has_tier(a->kv, table, seq, (uint32_t) to, index,
                             index + n);
}

static bool
candidate_valid(const append_t *a, const int32_t *table, const tr_kv_seq_t *seq,
                const uint32_t *count, const tr_kv_move_t *m)
{
    const tr_kv_layout_t *l;

    if (m->candidate_from == TR_KV_STAYS) {
        return true;
    }
    if (m->candidate_from < 0 || m->candidate_from >= seq->n_tiers) {
        return false;
    }
    l = &a->kv->layout[seq->tier_layout[m->candidate_from]];
    return !l->level.by_channel && m->candidate_index < UINT32_MAX
           && tr_kv_has_tier(a->kv, table, seq, (uint32_t) m->candidate_from,
                             m->candidate_index, m->candidate_index + 1)
           && target_valid(a, table, seq, count, l, m->candidate_to,
                           m->candidate_target, 1);
}

static bool
move_valid(const append_t *a, const int32_t *table, const tr_kv_seq_t *seq,
           size_t head, uint32_t pos)
{
    const uint32_t *count = a->kv->count + head * TR_KV_TIERS_MAX;
    const tr_kv_move_t *m = &a->kv->move[head];
    uint32_t window = seq->window, slot;

    if (!candidate_valid(a, table, seq, count, m)) {
        return false;
    }
    if (window == 0) {
        return m->leaves == 1
               && target_valid(a, table, seq, count, NULL, m->to, m->index, 1);
    }
    slot = tr_kv_window_entry(seq, pos);
    if (!tr_kv_has_window(a->kv, table, seq, slot, slot + 1)) {
        return false;
    }
    if (m->to == TR_KV_STAYS || m->to == TR_KV_NOWHERE) {
        return true;
    }
    /* who leaves was in the ring before this step */
    if (m->leaves == 0 || m->leaves > TR_KV_CHANNEL_TOKENS || m->leaves > window
        || m->leave_pos >= pos || pos - m->leave_pos < m->leaves
        || pos - m->leave_pos > window) {
        return false;
    }
    for (uint32_t i = 0; i < m->leaves; i++) {
        slot = tr_kv_window_entry(seq, m->leave_pos + i);
        if (!tr_kv_has_window(a->kv, table, seq, slot, slot + 1)) {
            return false;
        }
    }
    return target_valid(a, table, seq, count,
                        &a->kv->layout[seq->window_layout], m->to, m->index,
                        m->leaves);
}

/* Is there a place for all that a sequence brings? */
static bool
rows_valid(const append_t *a, uint32_t i)
{
    const tr_kv_view_t *kv = a->kv;
    const tr_rows_t *rows = a->rows;
    int32_t slot = rows->seq_slot[i];
    const tr_kv_seq_t *seq = tr_kv_seq_of(kv, slot, a->layer);
    uint32_t n = rows->seq_row[i + 1] - rows->seq_row[i], first;
    bool uncompressed;

    if (n == 0) {
        return true;
    }
    first = rows->row_pos[rows->seq_row[i]];
    uncompressed = first >= seq->base;
    if (!uncompressed
        && (n != 1 || first + 1 != seq->base || seq->n_tiers == 0
            || !tr_kv_seq_valid(kv, seq))) {
        return false;
    }
    for (uint32_t l = 0; l < kv->kv_heads; l++) {
        const int32_t *table = tr_kv_table(kv, slot, a->layer, l);

        if (uncompressed
                ? !tr_kv_has_uncompressed(kv, table, first - seq->base,
                                          first - seq->base + n)
                : !move_valid(a, table, seq, tr_kv_head(kv, slot, a->layer, l),
                              first)) {
            return false;
        }
    }
    return true;
}

/* Asks for the table entries that are looked at first: each is a line of its
 * own that nobody has touched for a step. */
static void
prefetch_tables(const append_t *a)
{
    const tr_kv_view_t *kv = a->kv;
    const tr_rows_t *rows = a->rows;

    for (uint32_t i = 0; i < rows->n_seqs; i++) {
        int32_t slot = rows->seq_slot[i];
        uint32_t base = tr_kv_seq_of(kv, slot, a->layer)->base, pos, entry;

        if (rows->seq_row[i] == rows->seq_row[i + 1]) {
            continue;
        }
        pos = rows->row_pos[rows->seq_row[i]];
        entry = pos >= base ? (pos - base) / kv->layout[0].tokens : 0;
        for (uint32_t l = 0; l < kv->kv_heads && entry < kv->table_len; l++) {
            __builtin_prefetch(tr_kv_table(kv, slot, a->layer, l) + entry);
        }
    }
}

int
tr_cpu_kv_append(const tr_stream_t *s, const tr_kv_view_t *kv, uint32_t layer,
                 const tr_rows_t *rows, const float *k, const float *v,
                 size_t ld, const float *angles, const tr_kv_codec_t *codec)
{
    uint32_t dim = kv->head_dim;
    size_t cost = 4 * (size_t) kv->kv_heads * dim; /* pages are far */
    bool moves = false;
    append_t a = { codec, kv, layer, rows, k, v, angles, ld };

    if (dim > TR_HEAD_DIM_MAX || dim % 16 || ld < (size_t) kv->kv_heads * dim
        || layer >= kv->layers) {
        return TR_KERNEL_BADARG;
    }
    prefetch_tables(&a);
    for (uint32_t i = 0; i < rows->n_seqs; i++) {
        if (!rows_valid(&a, i)) {
            return TR_KERNEL_BADARG;
        }
        moves |= rows->seq_row[i] < rows->seq_row[i + 1]
                 && rows->row_pos[rows->seq_row[i]]
                        < tr_kv_seq_of(kv, rows->seq_slot[i], layer)->base;
    }
    if (moves) { /* dearer than an uncompressed row */
        cost *= 4;
    }
    tr_rows_run(s, rows->n_rows, cost, append_rows, &a);
    return TR_KERNEL_OK;
}
