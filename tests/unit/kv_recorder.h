/*
 * kv_recorder.h: random sequences in a KV cache, and a digest of all that can be
 * seen of it after every operation: results, sequences, counts, moves,
 * candidates for eviction, page numbers, usage, and what each token's page holds.
 *
 * The cache is used through kv_cache.h alone, and looked at through the view
 * that kernels get.  Tokens are stored by the real kernels; the attention that
 * scores them is made up from their positions, in numbers whose sums are exact,
 * so that a digest is the same on every machine.  A device's cache
 * (kv_device.h) runs the same operations, each of them settled before the next,
 * and has the same digest.
 */
#ifndef KV_RECORDER_H
#define KV_RECORDER_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../soft/load.h"
#include "kv_cache.h"
#include "kv_device.h"

#define SEQS 8u
#define ROWS 128u
#define POLICIES 3u

/* What a run consists of. */
typedef struct {
    const char *spec[POLICIES]; /* NULL: fewer */
    uint32_t layers, kv_heads, head_dim, max_len, turns;
    bool mixed; /* one reservation for all; the host's cache only */
} plan_t;

typedef enum { FREE, PROMPT, COMPLETE, DECODE, OUT } state_t;

typedef struct {
    state_t state;
    int32_t slot;
    uint32_t policy, computed, goal;
    uint64_t seed;
    bool first; /* turn */
} who_t;

/* What happened, so that a test can tell that it did. */
typedef struct {
    uint64_t steps, stalls, refused, compressed, denied, swaps, forks, turns;
    uint64_t closes, moved, overridden;
} seen_t;

typedef struct {
    plan_t plan;
    bool on_device;
    int threads; /* of the host's */
    struct tr_team *team;
    tr_kv_cache_t *kv;
    tr_kv_policy_t *policy[POLICIES], other[SEQS]; /* other: overridden */
    uint32_t n_policies, heads, max_len;
    who_t who[SEQS];
    uint64_t state, digest, noted;
    bool pressed;
    seen_t seen;

    const tr_kernels_t *kernels;
    tr_kv_view_t view; /* readable here */
    float *numbers;    /* [layers][ROWS][2][kv_heads * head_dim] */
    float *angles;     /* [ROWS][head_dim] */

    /* with a device: its memory, and pinned copies */
    tr_cuda_stream_t stream;
    void *event;
    uint32_t *pos, *seq_row;
    float *d_numbers, *d_angles;
    uint8_t *pinned; /* what is fetched and sent */
    size_t pool_bytes;
} run_t;

/* ---- numbers ------------------------------------------------------------ */

static uint64_t
mix(uint64_t x)
{
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static uint32_t
chance(run_t *r, uint32_t n)
{
    r->state += 0x9e3779b97f4a7c15u;
    return (uint32_t) ((mix(r->state) >> 32) % n);
}

static void
note(run_t *r, uint64_t x)
{
    r->digest = mix(r->digest * 31 + x + 1);
}

static void
note_float(run_t *r, float f)
{
    note(r, tr_float_bits(f));
}

static void
note_bytes(run_t *r, const uint8_t *at, size_t n)
{
    uint64_t x;

    for (; n >= 8; n -= 8, at += 8) {
        memcpy(&x, at, 8);
        note(r, x);
    }
    for (x = 0; n > 0; n--) {
        x = x << 8 | *at++;
    }
    note(r, x);
}

/* ---- a page's tokens ---------------------------------------------------- */

/* Codes of one token: keys or values. */
static void
note_codes(run_t *r, const tr_kv_layout_t *l, const uint8_t *page, uint32_t at,
           bool keys)
{
    uint32_t bits = keys ? l->level.key_bits : l->level.value_bits, d;
    uint32_t last = 0;
    uint64_t word = 0;

    if (bits == 16) {
        note_bytes(r,
                   page
                       + (keys ? tr_kv_key_row(l, at) : tr_kv_value_row(l, at)),
                   l->head_dim * 2);
        return;
    }
    for (d = 0; d < l->head_dim; d++) {
        tr_kv_code_t code = keys ? tr_kv_key_code(l, at, d)
                                 : tr_kv_value_code(l, at, d);

        word = word << bits | tr_kv_code_get(page, code, bits);
        if ((d + 1) * bits % 64 == 0) {
            note(r, word);
            word = 0;
        }
    }
    note(r, word);
    if (keys && l->level.by_channel && at % TR_KV_CHANNEL_TOKENS != 0) {
        return; /* noted with the first of its group */
    }
    for (d = 0; d < l->head_dim; d++) {
        uint32_t meta = keys ? tr_kv_key_meta(l, at, d)
                             : tr_kv_value_meta(l, at, d);

        if (d == 0 || meta != last) { /* one for many dimensions */
            note_bytes(r, page + meta, 4);
        }
        last = meta;
    }
}

static void
note_token(run_t *r, const tr_kv_layout_t *l, const uint8_t *page, uint32_t at)
{
    note_codes(r, l, page, at, true);
    note_codes(r, l, page, at, false);
    if (l->score != 0) {
        note_bytes(r, page + l->score + at * 4, 4);
    }
    if (l->recent != 0) {
        note_bytes(r, page + l->recent + at * 4, 4);
    }
    if (l->position != 0) {
        note(r, tr_kv_position_at(l, page, at));
    }
}

static uint8_t *
page_of(const run_t *r, const int32_t *row, uint32_t entry)
{
    assert_true(entry < r->view.table_len && row[entry] >= 0);
    return tr_kv_page_at(&r->view, row[entry]);
}

/* Calls f for each token of a head: lists, window, dense. */
typedef struct {
    const tr_kv_layout_t *layout;
    uint8_t *page;
    uint32_t at, position;
    int list; /* or TR_KV_WINDOW, TR_KV_NOWHERE: dense */
    uint32_t index;
} token_t;

typedef void (*each_f)(run_t *r, const token_t *t, void *arg);

static void
each_token(run_t *r, int32_t slot, uint32_t head, uint32_t len, each_f f,
           void *arg)
{
    const tr_kv_view_t *v = &r->view;
    const tr_kv_seq_t *q = &v->seq[slot];
    size_t row_at = (size_t) slot * r->heads + head;
    const int32_t *row = v->tables + row_at * v->table_len;
    const uint32_t *count = v->count + row_at * TR_KV_LISTS_MAX;
    uint32_t l, i;

    for (l = 0; l < q->n_lists; l++) {
        const tr_kv_layout_t *layout = &v->layout[q->list_layout[l]];

        for (i = 0; i < count[l]; i++) {
            token_t t = { .layout = layout,
                          .page = page_of(r, row,
                                          tr_kv_list_entry(v, l,
                                                           i / layout->tokens)),
                          .at = i % layout->tokens,
                          .list = (int) l,
                          .index = i };

            t.position = layout->position == 0
                             ? i
                             : tr_kv_position_at(layout, t.page, t.at);
            f(r, &t, arg);
        }
    }
    for (i = q->window_from; i < q->base && q->window != 0; i++) {
        const tr_kv_layout_t *layout = &v->layout[q->window_layout];
        uint32_t at = i % q->window;
        token_t t = { .layout = layout,
                      .page = page_of(r, row,
                                      v->at_window + at / layout->tokens),
                      .at = at % layout->tokens,
                      .position = i,
                      .list = TR_KV_WINDOW };

        f(r, &t, arg);
    }
    for (i = q->base; i < len; i++) {
        const tr_kv_layout_t *layout = &v->layout[0];
        token_t t = { .layout = layout,
                      .page = page_of(r, row, (i - q->base) / layout->tokens),
                      .at = (i - q->base) % layout->tokens,
                      .position = i,
                      .list = TR_KV_NOWHERE };

        f(r, &t, arg);
    }
}

/* ---- the digest --------------------------------------------------------- */

static void
note_one(run_t *r, const token_t *t, void *arg)
{
    (void) arg;
    note_token(r, t->layout, t->page, t->at);
    if (t->at == 0) { /* once a page */
        note(r, (uint64_t) (t->page - r->view.pool) / r->view.page_bytes);
        if (t->layout->digest != 0) {
            note_bytes(r, t->page + t->layout->digest, 4 * r->plan.head_dim);
        }
    }
}

static void
note_seq(run_t *r, const tr_kv_seq_t *q)
{
    note(r, q->base);
    note(r, q->window_from);
    note(r, q->window);
    note(r, q->n_lists);
    note(r, q->window_layout);
    for (uint32_t l = 0; l < q->n_lists; l++) {
        note(r, q->list_layout[l]);
    }
    note(r, q->scored);
    note(r, q->by_sum);
    note(r, q->recent_from);
    note(r, q->read_layer);
    note(r, q->read_pages);
}

static void
note_usage(run_t *r, int32_t slot)
{
    tr_kv_usage_t u[2];

    tr_kv_usage(r->kv, slot, &u[0]);
    tr_kv_usage_in(r->kv, slot, tr_kv_plan(r->kv), &u[1]);
    for (int i = 0; i < 2; i++) {
        note(r, u[i].bytes);
        note(r, u[i].full_bytes);
        note(r, u[i].tokens);
        note_float(r, u[i].share_high);
        note_float(r, u[i].share_low);
        note_float(r, u[i].share_pruned);
    }
}

static void
note_move(run_t *r, const tr_kv_move_t *m)
{
    note(r, (uint64_t) m->to);
    note(r, (uint64_t) m->victim_from);
    note(r, (uint64_t) m->victim_to);
    note(r, m->leaves);
    note(r, m->leave_pos);
    note(r, m->index);
    note(r, m->victim_index);
    note(r, m->victim_target);
}

/* A slot as it stands; stepped: its moves are those of its last step. */
static void
note_slot(run_t *r, const who_t *w, bool stepped)
{
    const tr_kv_view_t *v = &r->view;
    const tr_kv_seq_t *q = &v->seq[w->slot];
    bool pages = r->noted++ % 4 == 0; /* what is wrong there stays so */

    note_seq(r, q);
    note_usage(r, w->slot);
    note(r, tr_kv_uncompressed(r->kv, w->slot));
    note(r, tr_kv_swapped_pages(r->kv, w->slot));
    for (uint32_t head = 0; head < r->heads; head++) {
        size_t at = (size_t) w->slot * r->heads + head;

        for (uint32_t l = 0; l < q->n_lists; l++) {
            const tr_kv_victim_t *x = &v->victim[at * TR_KV_LISTS_MAX + l];

            note(r, v->count[at * TR_KV_LISTS_MAX + l]);
            note_float(r, x->significance);
            note(r, x->index);
        }
        if (stepped) {
            note_move(r, &v->move[at]);
        }
        if (w->state != OUT && pages) {
            each_token(r, w->slot, head, w->computed, note_one, NULL);
        }
    }
}

static void
note_cache(run_t *r)
{
    tr_kv_totals_t t;

    tr_kv_totals(r->kv, &t);
    note(r, t.tokens);
    note(r, t.full_bytes);
    note(r, t.swapped_pages);
    for (uint32_t i = 0; i < TR_KV_LAYOUTS_MAX; i++) {
        note(r, t.pages[i]);
    }
    note(r, tr_kv_free_pages(r->kv));
    note(r, tr_kv_settled(r->kv));
}

/* ---- the device --------------------------------------------------------- */

/* Copies what the device has into pinned memory, or the pool and the victims
 * back. */
static void
carry(run_t *r, bool back)
{
    const tr_cuda_manager_t *m = tr_kv_device_manager(r->kv);
    size_t rows = (size_t) SEQS * r->heads, at = 0;
    struct {
        const void *on_device;
        const void **here;
        size_t bytes;
        bool both;
    } part[] = {
        { m->view.pool, (const void **) &r->view.pool, r->pool_bytes, true },
        { m->tables, (const void **) &r->view.tables,
          rows * r->view.table_len * 4, false },
        { m->seq, (const void **) &r->view.seq, SEQS * sizeof(tr_kv_seq_t),
          false },
        { m->count, (const void **) &r->view.count, rows * TR_KV_LISTS_MAX * 4,
          false },
        { m->move, (const void **) &r->view.move, rows * sizeof(tr_kv_move_t),
          false },
        { m->victim, (const void **) &r->view.victim,
          rows * TR_KV_LISTS_MAX * sizeof(tr_kv_victim_t), true },
    };

    for (size_t i = 0; i < sizeof(part) / sizeof(part[0]); i++) {
        uint8_t *here = r->pinned + at;

        at += tr_pad(part[i].bytes, 256);
        *part[i].here = here;
        if (!back) {
            assert_int_equal(cuda->copy(&r->stream, here, part[i].on_device,
                                        part[i].bytes),
                             0);
        } else if (part[i].both) {
            assert_int_equal(cuda->copy(&r->stream,
                                        (void *) (uintptr_t) part[i].on_device,
                                        here, part[i].bytes),
                             0);
        }
    }
    assert_int_equal(cuda->stream_wait(&r->stream), 0);
}

static size_t
carried_bytes(const run_t *r)
{
    size_t rows = (size_t) SEQS * r->heads;

    return r->pool_bytes + rows * r->view.table_len * 4
           + SEQS * sizeof(tr_kv_seq_t) + rows * TR_KV_LISTS_MAX * 4
           + rows * sizeof(tr_kv_move_t)
           + rows * TR_KV_LISTS_MAX * sizeof(tr_kv_victim_t) + 6 * 256;
}

/* One batch, from its commands to its report. */
static void
device_batch(run_t *r, const tr_kv_device_row_t *rows, uint32_t n,
             uint32_t n_rows, bool *stalled)
{
    const tr_cuda_manager_t *m = tr_kv_device_manager(r->kv);
    uint32_t row = 2 * r->plan.kv_heads * r->plan.head_dim;
    tr_rows_t flat = { n_rows, n, r->pos, m->seq_slot, r->seq_row };

    assert_int_equal(tr_kv_device_begin(r->kv, rows, n), 0);
    assert_int_equal(tr_kv_device_step(r->kv, n), 0);
    for (uint32_t l = 0; l < r->plan.layers && n_rows != 0; l++) {
        const float *in = r->d_numbers + (size_t) l * ROWS * row;
        tr_cuda_keys_t keys = { .k = in,
                                .v = in + row / 2,
                                .ld = row,
                                .type = TR_F32,
                                .angles = r->d_angles };

        assert_int_equal(cuda->kv_append(&r->stream, &m->view, l, &flat, &keys,
                                         NULL),
                         0);
    }
    assert_int_equal(tr_kv_device_end(r->kv), 0);
    assert_int_equal(cuda->event_record(&r->stream, r->event), 0);
    assert_int_equal(cuda->event_wait(r->event), 0);
    assert_int_equal(tr_kv_device_settle(r->kv, stalled), TR_OK);
    carry(r, false);
}

/* All that was asked has happened, and the view shows it. */
static void
settle(run_t *r)
{
    if (r->on_device) {
        device_batch(r, NULL, 0, 0, NULL);
    } else {
        tr_kv_view(r->kv, &r->view);
    }
}

/* ---- rows --------------------------------------------------------------- */

typedef struct {
    who_t *who;
    uint32_t n; /* rows, from who->computed on */
} item_t;

/* Keys and values of a row: exact, whatever rounds them; rotated by quarters of
 * a turn. */
static void
fill_rows(run_t *r, const item_t *item, uint32_t n, uint32_t *pos,
          uint32_t *seq_row)
{
    uint32_t dim = r->plan.head_dim, row = 2 * r->plan.kv_heads * dim, at = 0;

    for (uint32_t i = 0; i < n; i++) {
        seq_row[i] = at;
        for (uint32_t k = 0; k < item[i].n; k++, at++) {
            uint32_t p = pos[at] = item[i].who->computed + k;
            static const float quarter[] = { 1, 0, -1, 0 };

            for (uint32_t d = 0; d < dim; d++) {
                r->angles[at * dim + d] = quarter[(p + (d >= dim / 2) * 3) % 4];
            }
            for (uint32_t l = 0; l < r->plan.layers; l++) {
                float *to = r->numbers + ((size_t) l * ROWS + at) * row;
                uint64_t x = mix(item[i].who->seed ^ mix(p * 64 + l));

                for (uint32_t d = 0; d < row; d++) {
                    x ^= x << 13;
                    x ^= x >> 7;
                    x ^= x << 17;
                    to[d] = (float) ((int32_t) (x >> 44) - (1 << 19))
                            * 0x1p-18f;
                }
            }
        }
    }
    seq_row[n] = at;
    assert_true(at <= ROWS);
}

typedef struct {
    uint64_t seed;
    uint32_t head, from, end; /* queries */
    uint32_t recent_from, length;
    bool by_sum;
    float least[TR_KV_LISTS_MAX];
    uint32_t least_at[TR_KV_LISTS_MAX], position[TR_KV_LISTS_MAX];
} looking_t;

static void
add_to(uint8_t *at, float more)
{
    float f;

    memcpy(&f, at, 4);
    f += more;
    memcpy(at, &f, 4);
}

/* Queries [from, end) look at one token. */
static void
look_at(run_t *r, const token_t *t, void *arg)
{
    looking_t *k = arg;
    float own;

    (void) r;
    if (t->layout->score == 0) {
        return;
    }
    for (uint32_t q = k->from > t->position ? k->from : t->position + 1;
         q < k->end; q++) {
        uint64_t x = mix(k->seed
                         ^ mix(((uint64_t) k->head << 40)
                               + ((uint64_t) t->position << 20) + q));
        float more = x % 3 == 0 ? (float) (x >> 8 & 15) * 0.0625f : 0;

        add_to(t->page + t->layout->score + t->at * 4, more);
        if (t->layout->recent != 0 && q >= k->recent_from) {
            add_to(t->page + t->layout->recent + t->at * 4, more);
        }
    }
    if (t->list < 0) {
        return;
    }
    memcpy(&own, t->page + t->layout->score + t->at * 4, 4);
    own = k->by_sum ? own : tr_kv_significance(own, t->position, k->length);
    if (own < k->least[t->list]
        || (own == k->least[t->list] && t->position < k->position[t->list])) {
        k->least[t->list] = own;
        k->least_at[t->list] = t->index;
        k->position[t->list] = t->position;
    }
}

/* A sequence's new rows attend to what is cached. */
static void
attend(run_t *r, const item_t *item)
{
    const who_t *w = item->who;
    const tr_kv_seq_t *q = &r->view.seq[w->slot];
    uint32_t end = w->computed + item->n;

    for (uint32_t head = 0; head < r->heads && q->scored; head++) {
        looking_t k = { .seed = w->seed,
                        .head = head,
                        .from = w->computed,
                        .end = end,
                        .recent_from = q->recent_from,
                        .length = end,
                        .by_sum = q->by_sum };
        size_t at = (size_t) w->slot * r->heads + head;

        for (uint32_t l = 0; l < TR_KV_LISTS_MAX; l++) {
            k.least[l] = INFINITY;
        }
        each_token(r, w->slot, head, end, look_at, &k);
        for (uint32_t l = 0; l < q->n_lists && item->n == 1; l++) {
            if (r->view.layout[q->list_layout[l]].score != 0) {
                r->view.victim[at * TR_KV_LISTS_MAX + l] = (tr_kv_victim_t){
                    k.least[l], k.least_at[l]
                };
            }
        }
    }
}

/* Stores the rows of those that were granted. */
static void
host_rows(run_t *r, const item_t *item, uint32_t n, const bool *stalled)
{
    uint32_t row = 2 * r->plan.kv_heads * r->plan.head_dim;
    uint32_t pos[ROWS], seq_row[SEQS + 1], some = 0;
    int32_t slot[SEQS];
    item_t good[SEQS];
    tr_rows_t flat = { 0, 0, pos, slot, seq_row };
    tr_stream_t one = { .threads = 1 };

    for (uint32_t i = 0; i < n; i++) {
        if (!stalled[i]) {
            slot[some] = item[i].who->slot;
            good[some++] = item[i];
        }
    }
    fill_rows(r, good, some, pos, seq_row);
    flat.n_seqs = some;
    flat.n_rows = seq_row[some];
    tr_kv_view(r->kv, &r->view);
    for (uint32_t l = 0; l < r->plan.layers && some != 0; l++) {
        const float *in = r->numbers + (size_t) l * ROWS * row;

        assert_int_equal(r->kernels->kv_append(&one, &r->view, l, &flat, in,
                                               in + row / 2, row, r->angles),
                         0);
    }
}

static void
device_rows(run_t *r, const item_t *item, uint32_t n, bool *stalled)
{
    size_t numbers = (size_t) r->plan.layers * ROWS * 2 * r->plan.kv_heads
                     * r->plan.head_dim * sizeof(float);
    static uint32_t pos[ROWS], seq_row[SEQS + 1];
    tr_kv_device_row_t rows[SEQS];
    uint32_t *in = (uint32_t *) (void *) r->pinned;
    bool behind[SEQS];

    fill_rows(r, item, n, pos, seq_row);
    for (uint32_t i = 0; i < n; i++) {
        rows[i] = (tr_kv_device_row_t){ stalled[i] ? -1 : item[i].who->slot,
                                        item[i].who->computed, item[i].n };
    }
    memcpy(in, pos, sizeof(pos));
    memcpy(in + ROWS, seq_row, sizeof(seq_row));
    assert_int_equal(cuda->copy(&r->stream, r->pos, in, sizeof(pos)), 0);
    assert_int_equal(cuda->copy(&r->stream, r->seq_row, in + ROWS,
                                sizeof(seq_row)),
                     0);
    /* numbers and angles are pinned themselves */
    assert_int_equal(cuda->copy(&r->stream, r->d_numbers, r->numbers, numbers),
                     0);
    assert_int_equal(cuda->copy(&r->stream, r->d_angles, r->angles,
                                ROWS * r->plan.head_dim * sizeof(float)),
                     0);
    device_batch(r, rows, n, seq_row[n], behind);
    for (uint32_t i = 0; i < n; i++) {
        stalled[i] = stalled[i] || behind[i];
    }
}

/* Reserves for all, computes those that were granted. */
static void
compute(run_t *r, const item_t *item, uint32_t n)
{
    int32_t slot[SEQS];
    uint32_t len[SEQS];
    tr_status_t rc[SEQS];
    bool stalled[SEQS];

    if (n == 0) {
        return;
    }
    for (uint32_t i = 0; i < n; i++) {
        slot[i] = item[i].who->slot;
        len[i] = item[i].who->computed + item[i].n;
    }
    if (n > 1 || chance(r, 2)) {
        tr_kv_reserve_batch(r->kv, slot, len, n, rc);
    } else {
        rc[0] = tr_kv_reserve(r->kv, slot[0], len[0]);
    }
    for (uint32_t i = 0; i < n; i++) {
        if (chance(r, 8) == 0 && rc[i] == TR_OK) { /* asked again */
            assert_int_equal(tr_kv_reserve(r->kv, slot[i], len[i]), TR_OK);
        }
        stalled[i] = rc[i] != TR_OK;
    }
    if (r->on_device) {
        device_rows(r, item, n, stalled);
    } else {
        host_rows(r, item, n, stalled);
    }
    for (uint32_t i = 0; i < n; i++) {
        note(r, stalled[i]);
        r->seen.steps += !stalled[i];
        r->seen.stalls += stalled[i];
        r->pressed = r->pressed || stalled[i];
        if (!stalled[i]) {
            attend(r, &item[i]);
        }
    }
    if (r->on_device) {
        carry(r, true);
    }
    for (uint32_t i = 0; i < n; i++) {
        who_t *w = item[i].who;

        if (!stalled[i]) {
            w->computed += item[i].n;
        }
        note_slot(r, w,
                  !stalled[i] && w->state == DECODE
                      && r->view.seq[w->slot].n_lists != 0);
    }
}

#endif
