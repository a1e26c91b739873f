/*
 * A step of attention while it runs (attention.c), and what its two kinds of
 * rows do: attention_uncompressed.c, attention_rows.c.
 */
#ifndef TR_KERNELS_CPU_ATTENTION_STEP_H
#define TR_KERNELS_CPU_ATTENTION_STEP_H

#include "attention.h"

#include <math.h>
#include <stdatomic.h>

/* A scored tile; behind it what it keeps. */
typedef struct {
    tr_attention_tile_t t;
    tr_run_t run[TR_RUNS_MAX];
} tr_kept_t;

/* Scored tiles of a step (attention_turns.c). */
typedef struct {
    uint32_t n_buffers;
    uint8_t *buffer; /* tr_kept_t, buffer_bytes each */
    size_t buffer_bytes;
    uint32_t *own;           /* [threads], the buffer of each one's tile */
    _Atomic uint32_t *spare; /* [n_buffers], is it free? */
    _Atomic uint32_t *turn; /* [n_seqs][kv_heads], first row of the next tile */
    _Atomic uint32_t
        *left; /* [n_rows][kv_heads], by a tile's first row: 1 + its
                              * buffer when it was left, else 0 */
} tr_turns_t;

/* What the whole step shares. */
typedef struct {
    const tr_attention_isa_t *isa;
    const tr_kv_view_t *kv;
    uint32_t layer, heads, group;
    const tr_rows_t *rows;
    const float *q;
    float *out;
    size_t ldq, ldo;
    float scale;
    uint32_t threads;
    bool split;       /* parts of compressed rows go to threads */
    uint32_t *starts; /* [n_seqs + 1], first piece of each sequence */
    tr_turns_t turns;
    uint8_t
        *row_work; /* of compressed rows: a thread's, or a head's if split */
    size_t row_work_bytes; /* bytes */
    uint8_t *scratch;
    size_t scratch_size; /* bytes of a thread */
} tr_step_t;

/* Logits of a head in the workspace.  Tiers and window cover at most twice
 * max_len slots; pages of 8 tokens are tiles of 16, and each run may end in the
 * middle of a page. */
static inline size_t
tr_row_stride(uint32_t max_len)
{
    return tr_pad(4 * (size_t) max_len + TR_RUNS_MAX * TR_PART_SLOTS_MAX, 16);
}

static inline const tr_kv_seq_t *
tr_step_seq(const tr_step_t *a, uint32_t seq)
{
    return tr_kv_seq_of(a->kv, a->rows->seq_slot[seq], a->layer);
}

/* Positions from here on are uncompressed, in this layer. */
static inline uint32_t
tr_step_base(const tr_step_t *a, uint32_t seq)
{
    return tr_kv_reach(a->kv, a->layer) != 0 ? 0 : tr_step_seq(a, seq)->base;
}

/* Sinks of the query heads on a list, or NULL. */
static inline const float *
tr_step_sink(const tr_step_t *a, uint32_t kv_head)
{
    const float *sinks = a->kv->sinks ? a->kv->sinks[a->layer] : NULL;

    return sinks ? sinks + (size_t) kv_head * a->group : NULL;
}

static inline uint32_t
tr_step_pos(const tr_step_t *a, uint32_t seq)
{
    return a->rows->row_pos[a->rows->seq_row[seq]];
}

static inline uint32_t
tr_step_rows(const tr_step_t *a, uint32_t seq)
{
    return a->rows->seq_row[seq + 1] - a->rows->seq_row[seq];
}

static inline bool
tr_step_uncompressed(const tr_step_t *a, uint32_t seq)
{
    return tr_step_pos(a, seq) >= tr_step_base(a, seq);
}

static inline bool
tr_step_scores(const tr_step_t *a, uint32_t seq)
{
    return tr_kv_reach(a->kv, a->layer) == 0 && tr_step_uncompressed(a, seq)
           && tr_step_seq(a, seq)->scored;
}

/* The candidates of a head, none so far. */
static inline tr_kv_candidate_t *
tr_step_clear(const tr_step_t *a, uint32_t seq, uint32_t kv_head)
{
    tr_kv_candidate_t *v = a->kv->candidate
                           + tr_kv_head(a->kv, a->rows->seq_slot[seq], a->layer,
                                        kv_head)
                                 * TR_KV_TIERS_MAX;

    for (uint32_t l = 0; l < tr_step_seq(a, seq)->n_tiers; l++) {
        v[l] = (tr_kv_candidate_t){ INFINITY, 0 };
    }
    return v;
}

/* ---- attention_uncompressed.c: rows at uncompressed positions ---- */

/* Tiles of a sequence in one head. */
uint32_t tr_step_tiles(const tr_step_t *a, uint32_t seq);
/* Tile i of a sequence, in the order in which they are taken: KV heads side by
 * side, the last tiles first, which have most keys, so that none of them is
 * what all wait for in the end.  With scores the first ones first, and a head's
 * tiles before this one must have been begun.  next: the piece of the step that
 * the thread will probably take then. */
void tr_step_tile(const tr_step_t *a, uint32_t seq, uint32_t i, uint32_t next,
                  uint32_t worker, uint8_t *scratch);
/* The single row of a later turn sets candidates, too. */
void tr_step_candidates(const tr_step_t *a, uint32_t seq);

/* ---- attention_turns.c: the order in which tiles are scored ---- */

size_t tr_turns_bytes(uint32_t threads, uint32_t rows, uint32_t seqs,
                      uint32_t kv_heads, uint32_t group, uint32_t max_len);
void tr_turns_begin(tr_step_t *a, uint8_t *work, uint32_t max_len);
/* The same tile in the thread's buffer. */
const tr_attention_tile_t *tr_turns_tile(const tr_step_t *a,
                                         const tr_attention_tile_t *t,
                                         uint32_t worker);
/* What the thread's tile adds to scores, now or in its turn; row: its first of
 * the step. */
void tr_turns_score(const tr_step_t *a, uint32_t seq, uint32_t kv_head,
                    uint32_t row, uint32_t worker, float *scratch);

/* ---- attention_rows.c: rows over tiers and window ---- */

/* Parts of a sequence, in the head that has most. */
uint32_t tr_step_parts(const tr_step_t *a, uint32_t seq);
/* Piece i, heads side by side: a part when the step is split, else a head.
 * next: as for a tile. */
void tr_step_row(const tr_step_t *a, uint32_t seq, uint32_t i, uint32_t next,
                 uint32_t worker, uint8_t *scratch);
/* What comes after the parts of a head, when the step is split. */
void tr_step_finish(const tr_step_t *a, uint32_t seq, uint32_t kv_head);

#endif
