/*
 * The tiles of a head add to its scores in the order of their queries
 * (attention.c), but any thread computes any of them at any time.  A thread
 * that is early does not wait for the tile before its own, whose thread may
 * have lost its core.  It leaves its tile behind and goes on in a spare
 * buffer; whoever scores the tile before takes it along.
 *
 * A tile that is left and a turn that comes meet in this way: one side leaves
 * the tile, then looks at the turn; the other moves the turn on, then looks
 * for a tile.  At least one sees the other, and the tile is taken by an
 * atomic exchange, so by one of them.
 */
#include "attention_step.h"

#include <immintrin.h>
#include <sched.h>

#define SPINS 3000

static tr_kept_t *
buffer_at(const tr_turns_t *u, uint32_t i)
{
    return (tr_kept_t *) (u->buffer + i * u->buffer_bytes);
}

/* A buffer for each thread's tile, and as many to spare. */
static uint32_t
count_buffers(uint32_t threads)
{
    return threads > 1 ? 2 * threads : 1;
}

static size_t
bytes_of_buffer(uint32_t group, uint32_t max_len)
{
    size_t kept = tr_tile_kept(group, tr_tile_columns(max_len, 0));

    return tr_pad(sizeof(tr_kept_t), 64)
           + tr_pad((TR_TILE_ROWS + kept) * sizeof(float), 64);
}

static size_t
words(size_t n)
{
    return tr_pad(n * sizeof(uint32_t), 64);
}

size_t
tr_turns_bytes(uint32_t threads, uint32_t rows, uint32_t seqs,
               uint32_t kv_heads, uint32_t group, uint32_t max_len)
{
    uint32_t buffers = count_buffers(threads);

    return words(threads) + words(buffers) + words((size_t) seqs * kv_heads)
           + words((size_t) rows * kv_heads)
           + buffers * bytes_of_buffer(group, max_len);
}

void
tr_turns_begin(tr_step_t *a, uint8_t *work, uint32_t max_len)
{
    const tr_rows_t *rows = a->rows;
    uint32_t n = count_buffers(a->threads), kv_heads = a->kv->kv_heads;
    tr_turns_t *u = &a->turns;

    u->n_buffers = n;
    u->own = (uint32_t *) work;
    work += words(a->threads);
    u->spare = (_Atomic uint32_t *) work;
    work += words(n);
    u->turn = (_Atomic uint32_t *) work;
    work += words((size_t) rows->n_seqs * kv_heads);
    u->left = (_Atomic uint32_t *) work;
    work += words((size_t) rows->n_rows * kv_heads);
    u->buffer = work;
    u->buffer_bytes = bytes_of_buffer(a->group, max_len);
    for (uint32_t i = 0; i < n; i++) {
        atomic_init(&u->spare[i], i >= a->threads);
    }
    for (uint32_t i = 0; i < a->threads; i++) {
        u->own[i] = i;
    }
    for (uint32_t seq = 0; seq < rows->n_seqs; seq++) {
        uint32_t first = rows->seq_row[seq] * kv_heads;

        if (!tr_step_scores(a, seq)) {
            continue;
        }
        for (uint32_t i = 0; i < kv_heads; i++) {
            atomic_init(&u->turn[seq * kv_heads + i], rows->seq_row[seq]);
        }
        for (uint32_t i = first; i < rows->seq_row[seq + 1] * kv_heads; i++) {
            atomic_init(&u->left[i], 0);
        }
    }
}

const tr_attention_tile_t *
tr_turns_tile(const tr_step_t *a, const tr_attention_tile_t *t, uint32_t worker)
{
    tr_kept_t *k = buffer_at(&a->turns, a->turns.own[worker]);
    float *floats = (float *) ((uint8_t *) k + tr_pad(sizeof(*k), 64));

    memcpy(k->run, t->run, t->n_runs * sizeof(*t->run));
    k->t = *t;
    k->t.run = k->run;
    k->t.lse = floats;
    k->t.kept = floats + TR_TILE_ROWS;
    return &k->t;
}

/* Scores the tile in a buffer, then those after it that were left. */
static void
score_from(const tr_step_t *a, uint32_t seq, uint32_t kv_head, uint32_t row,
           uint32_t buffer, uint32_t worker, float *scratch)
{
    const tr_turns_t *u = &a->turns;
    uint32_t kv_heads = a->kv->kv_heads, end = a->rows->seq_row[seq + 1];

    for (;;) {
        const tr_attention_tile_t *t = &buffer_at(u, buffer)->t;
        uint32_t next = row + t->n_pos, left;

        a->isa->score(t, scratch);
        if (buffer != u->own[worker]) {
            atomic_store(&u->spare[buffer], 1);
        }
        atomic_store(&u->turn[seq * kv_heads + kv_head], next);
        if (next == end) {
            return;
        }
        left = atomic_exchange(&u->left[next * kv_heads + kv_head], 0);
        if (left == 0) {
            return;
        }
        row = next;
        buffer = left - 1;
    }
}

/* A spare buffer, or u->n_buffers. */
static uint32_t
take_spare(const tr_turns_t *u)
{
    uint32_t i = 0;

    while (i < u->n_buffers && atomic_exchange(&u->spare[i], 0) == 0) {
        i++;
    }
    return i;
}

void
tr_turns_score(const tr_step_t *a, uint32_t seq, uint32_t kv_head, uint32_t row,
               uint32_t worker, float *scratch)
{
    const tr_turns_t *u = &a->turns;
    _Atomic uint32_t *turn = &u->turn[seq * a->kv->kv_heads + kv_head];
    _Atomic uint32_t *left = &u->left[row * a->kv->kv_heads + kv_head];
    uint32_t buffer = u->own[worker], spare, spins = 0;

    while (atomic_load(turn) != row) {
        spare = take_spare(u);
        if (spare < u->n_buffers) {
            u->own[worker] = spare;
            atomic_store(left, buffer + 1);
            if (atomic_load(turn) != row || atomic_exchange(left, 0) == 0) {
                return;
            }
            break;
        }
        /* Every buffer is left full: tiles before them are being computed in
         * buffers of their own, so this ends. */
        if (++spins < SPINS) {
            _mm_pause();
        } else {
            sched_yield(); /* who is before us may need this core */
        }
    }
    score_from(a, seq, kv_head, row, buffer, worker, scratch);
}
