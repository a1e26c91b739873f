/*
 * Rows at uncompressed positions: their tiles, and the pages that a decode step
 * of Quest reads.
 */
#include "attention_step.h"

/* The pages that a decode step of Quest reads, if not all: t then has these as
 * its table. */
static void
choose_pages(const tr_step_t *a, const tr_kv_seq_t *seq, tr_attention_tile_t *t,
             uint8_t *scratch)
{
    const tr_kv_layout_t *l = &a->kv->layout[0];
    uint32_t n = t->pos / l->tokens + 1, want = seq->read_pages;
    uint32_t *bound = (uint32_t *) (scratch + a->scratch_size
                                    - tr_pad(3 * (size_t) n * 4, 64));

    if (t->n_pos != 1 || t->reach != 0 || want == 0 || n <= want
        || a->layer < seq->read_layer || seq->scored || l->minmax == 0) {
        return;
    }
    for (uint32_t i = 0; i < n; i++) {
        const uint8_t *page = tr_kv_page_at(a->kv, t->table[i]);

        bound[i] = tr_attention_order(
            a->isa->bound(t->q, t->group, (const uint16_t *) (page + l->minmax),
                          a->kv->head_dim));
    }
    tr_attention_choose(t->table, n, want, bound, (int32_t *) (bound + 2 * n));
    t->table = (int32_t *) (bound + 2 * n);
    t->pos = (want - 1) * l->tokens + t->pos % l->tokens;
}

/* In decode every tile is in pages that nobody has touched for a step: a tile
 * asks for those of the next one.  piece: of the step. */
static void
look_ahead(const tr_step_t *a, uint32_t piece, tr_attention_tile_t *t)
{
    uint32_t seq;

    if (piece >= a->starts[a->rows->n_seqs] || t->reach != 0) {
        return;
    }
    seq = tr_seq_of(a->starts, a->rows->n_seqs, piece);
    if (!tr_step_uncompressed(a, seq) || tr_step_rows(a, seq) > 1
        || tr_step_seq(a, seq)->read_pages > 0) {
        return;
    }
    t->next_table = tr_kv_table(a->kv, a->rows->seq_slot[seq], a->layer,
                                piece - a->starts[seq]);
    t->n_next = tr_step_pos(a, seq) - tr_step_seq(a, seq)->base + 1;
}

/* Query positions of a sequence's tiles.  Which rows share a tile has no
 * influence on their bits. */
static uint32_t
tile_positions(const tr_step_t *a, uint32_t seq)
{
    uint32_t base = tr_step_base(a, seq);
    uint32_t end = tr_step_pos(a, seq) + tr_step_rows(a, seq);
    uint32_t rows = TR_TILE_ROWS;

    if (tr_step_scores(a, seq)) {
        rows = tr_tile_kept_rows(a->group, tr_tile_columns(base, end - base));
    }
    return rows / a->group;
}

uint32_t
tr_step_tiles(const tr_step_t *a, uint32_t seq)
{
    uint32_t n = tile_positions(a, seq);

    return (tr_step_rows(a, seq) + n - 1) / n;
}

void
tr_step_tile(const tr_step_t *a, uint32_t seq, uint32_t i, uint32_t next,
             uint32_t worker, uint8_t *scratch)
{
    const tr_rows_t *rows = a->rows;
    const tr_kv_seq_t *s = tr_step_seq(a, seq);
    uint32_t dim = a->kv->head_dim, kv_heads = a->kv->kv_heads,
             kv_head = i % kv_heads;
    uint32_t n_pos = tile_positions(a, seq);
    uint32_t reach = tr_kv_reach(a->kv, a->layer);
    bool scored = tr_step_scores(a, seq);
    uint32_t tile = scored ? i / kv_heads
                           : tr_step_tiles(a, seq) - 1 - i / kv_heads;
    uint32_t row = rows->seq_row[seq] + tile * n_pos;
    uint32_t left = rows->seq_row[seq + 1] - row;
    int32_t slot = rows->seq_slot[seq];
    size_t column = (size_t) kv_head * a->group * dim;
    tr_run_t run[TR_RUNS_MAX];
    tr_attention_tile_t t = {
        .kv = a->kv,
        .run = run,
        .n_runs = reach != 0
                      ? 0
                      : tr_attention_runs(a->kv, slot, a->layer, kv_head, run),
        .table = tr_kv_table(a->kv, slot, a->layer, kv_head),
        .pos = rows->row_pos[row] - tr_step_base(a, seq),
        .reach = reach,
        .n_pos = left < n_pos ? left : n_pos,
        .group = a->group,
        .q = a->q + row * a->ldq + column,
        .ldq = a->ldq,
        .out = a->out + row * a->ldo + column,
        .ldo = a->ldo,
        .scale = a->scale,
        .sink = tr_step_sink(a, kv_head),
        .recent_from = s->recent_from > s->base ? s->recent_from - s->base : 0,
    };

    if (tr_step_rows(a, seq) == 1) {
        choose_pages(a, s, &t, scratch);
        look_ahead(a, next, &t);
    }
    if (scored) {
        a->isa->tile(tr_turns_tile(a, &t, worker), (float *) scratch);
        tr_turns_score(a, seq, kv_head, row, worker, (float *) scratch);
    } else {
        a->isa->tile(&t, (float *) scratch);
    }
}

/* Candidates of a head whose scores are up to date; `n` is the last
 * position. */
static void
find_candidates(const tr_kv_view_t *kv, const tr_kv_seq_t *seq,
                const tr_run_t *run, uint32_t n_runs, uint32_t n,
                tr_kv_candidate_t *candidate)
{
    for (uint32_t r = 0; r < n_runs; r++) {
        const tr_kv_layout_t *l = run[r].layout;
        uint32_t at = UINT32_MAX;

        for (uint32_t i = run[r].frozen; i < run[r].slots; i++) {
            const uint8_t *page = tr_run_page(kv, &run[r], i / l->tokens);
            uint32_t token = i % l->tokens, position;
            float x;

            if (l->score == 0 || run[r].tier < 0) {
                break;
            }
            x = ((const float *) (page + l->score))[token];
            position = tr_kv_position_at(l, page, token);
            x = seq->by_sum     ? x
                : n == position ? 0
                                : x / (float) (n - position);
            if (x < candidate[run[r].tier].significance
                || (x == candidate[run[r].tier].significance
                    && position < at)) {
                candidate[run[r].tier] = (tr_kv_candidate_t){ x, i };
                at = position;
            }
        }
    }
}

void
tr_step_candidates(const tr_step_t *a, uint32_t seq)
{
    if (!tr_step_scores(a, seq) || tr_step_rows(a, seq) > 1
        || tr_step_seq(a, seq)->n_tiers == 0) {
        return;
    }
    for (uint32_t l = 0; l < a->kv->kv_heads; l++) {
        tr_run_t run[TR_RUNS_MAX];
        uint32_t n = tr_attention_runs(a->kv, a->rows->seq_slot[seq], a->layer,
                                       l, run);

        find_candidates(a->kv, tr_step_seq(a, seq), run, n, tr_step_pos(a, seq),
                        tr_step_clear(a, seq, l));
    }
}
