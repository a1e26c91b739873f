/*
 * Attention on the paged cache: how a step is cut into pieces for threads.
 *
 * Rows at dense positions (prompts; everything under `full`) are taken in
 * tiles: one KV head with a run of query positions and all query heads of its
 * group, so that a page is read once for the group.  Before its dense tokens a
 * tile goes over what the head has in lists and window (later turns of a
 * conversation).  With scores, the tiles leave the logarithm of each row's sum;
 * a second phase takes blocks of keys, streams the queries past them in
 * ascending order and adds e^(logit - that) (Exact column sums need QK^T again
 * after the row sums are known.)
 *
 * Rows of compressed sequences are taken by (sequence, KV head).  Lists and
 * window are cut into parts of about a thousand tokens; a part computes its
 * logits, which stay in the workspace, their softmax relative to the part's
 * maximum, and the sum of values.  When all parts are there they are merged in
 * order, and the logits, with the sum now known, become what the scores grow by;
 * the least significant token of each list falls out of the same pass.  When
 * there are fewer heads than threads the parts are spread over threads and the
 * rest is a second phase.
 *
 * Pieces are independent and are handed to threads as these become free.  The
 * order of every sum is fixed by the cache: softmax runs over blocks and parts
 * from fixed places, inside them in order.  So a row's bits depend neither on
 * the chunk it came in nor on the rows beside it nor on threads; a decoded
 * dense token equals the same token prefilled.
 */
#include "attention.h"

#include <math.h>

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
    uint32_t tile_pos;
    bool split;       /* parts of compressed rows go to threads */
    uint32_t *starts; /* [n_seqs + 1], first piece of each sequence */
    float *lse;       /* [n_rows][heads] */
    uint8_t *rooms;   /* of compressed rows: a thread's, or a head's if split */
    size_t room;      /* bytes */
    uint8_t *scratch;
    size_t scratch_size; /* bytes of a thread */
} step_t;

static size_t
scratch_bytes(uint32_t head_dim, uint32_t max_len)
{
    size_t tile = tr_tile_floats(head_dim), part = tr_part_floats(head_dim);
    /* Quest: bounds twice and pages; a page has 8 tokens or more */
    size_t choice = 3 * ((size_t) max_len / 8 + 1);

    return tr_pad((tile > part ? tile : part) * sizeof(float), 64)
           + tr_pad(choice * sizeof(uint32_t), 64);
}

/* Logits of a head in the workspace.  Lists and window cover at most twice
 * max_len slots; pages of 8 tokens are tiles of 16, and each run may end in the
 * middle of a page. */
static size_t
row_stride(uint32_t max_len)
{
    return tr_pad(4 * (size_t) max_len + TR_RUNS_MAX * TR_PART_SLOTS_MAX, 16);
}

static size_t
row_bytes(uint32_t group, uint32_t max_len, uint32_t head_dim)
{
    size_t parts = (size_t) max_len / (TR_PART_SLOTS / 4) + 2 * TR_RUNS_MAX;

    return tr_pad(group * row_stride(max_len) * sizeof(float), 64)
           + tr_pad(parts * group * (head_dim + 2) * sizeof(float), 64);
}

size_t
tr_cpu_attention_work(const tr_stream_t *s, uint32_t max_rows,
                      uint32_t max_seqs, uint32_t max_len, uint32_t heads,
                      uint32_t lists, uint32_t head_dim)
{
    return tr_pad(((size_t) max_seqs + 1) * sizeof(uint32_t), 64)
           + tr_pad((size_t) max_rows * heads * sizeof(float), 64)
           + (size_t) s->threads
                 * (scratch_bytes(head_dim, max_len)
                    + row_bytes(heads / lists, max_len, head_dim));
}

/* Lays the workspace out for this step; what it takes grows with rows and
 * lengths, so it is never more than was asked for the largest step. */
static void
lay_out(step_t *a, const tr_stream_t *s, uint8_t *work, uint32_t max_len)
{
    const tr_rows_t *rows = a->rows;
    uint32_t dim = a->kv->head_dim;

    a->starts = (uint32_t *) work;
    work += tr_pad(((size_t) rows->n_seqs + 1) * sizeof(uint32_t), 64);
    a->lse = (float *) work;
    work += tr_pad((size_t) rows->n_rows * a->heads * sizeof(float), 64);
    a->scratch_size = scratch_bytes(dim, max_len);
    a->scratch = work;
    work += (size_t) s->threads * a->scratch_size;
    a->room = row_bytes(a->group, max_len, dim);
    a->rooms = work;
}

static const tr_kv_seq_t *
seq_of(const step_t *a, uint32_t seq)
{
    return &a->kv->seq[a->rows->seq_slot[seq]];
}

static uint32_t
first_pos(const step_t *a, uint32_t seq)
{
    return a->rows->row_pos[a->rows->seq_row[seq]];
}

static uint32_t
n_rows_of(const step_t *a, uint32_t seq)
{
    return a->rows->seq_row[seq + 1] - a->rows->seq_row[seq];
}

static bool
is_dense(const step_t *a, uint32_t seq)
{
    return first_pos(a, seq) >= seq_of(a, seq)->base;
}

static bool
scores_dense(const step_t *a, uint32_t seq)
{
    return is_dense(a, seq) && seq_of(a, seq)->scored;
}

/* ---- rows at dense positions ---- */

/* The pages that a decode step of Quest reads, if not all: t then has these as
 * its table. */
static void
choose_pages(const step_t *a, const tr_kv_seq_t *seq, tr_attention_tile_t *t,
             uint8_t *scratch)
{
    const tr_kv_layout_t *l = &a->kv->layout[0];
    uint32_t n = t->pos / l->tokens + 1, want = seq->read_pages;
    uint32_t *bound = (uint32_t *) (scratch + a->scratch_size
                                    - tr_pad(3 * (size_t) n * 4, 64));

    if (t->n_pos != 1 || want == 0 || n <= want || a->layer < seq->read_layer
        || seq->scored || l->digest == 0) {
        return;
    }
    for (uint32_t i = 0; i < n; i++) {
        const uint8_t *page = tr_kv_page_at(a->kv, t->table[i]);

        bound[i] = tr_attention_order(
            a->isa->bound(t->q, t->group, (const uint16_t *) (page + l->digest),
                          a->kv->head_dim));
    }
    tr_attention_choose(t->table, n, want, bound, (int32_t *) (bound + 2 * n));
    t->table = (int32_t *) (bound + 2 * n);
    t->pos = (want - 1) * l->tokens + t->pos % l->tokens;
}

/* Tile number i of a sequence: KV heads side by side. */
static void
run_tile(const step_t *a, uint32_t seq, uint32_t i, uint8_t *scratch)
{
    const tr_rows_t *rows = a->rows;
    uint32_t dim = a->kv->head_dim, lists = a->kv->lists, list = i % lists;
    uint32_t row = rows->seq_row[seq] + i / lists * a->tile_pos;
    uint32_t left = rows->seq_row[seq + 1] - row;
    int32_t slot = rows->seq_slot[seq];
    size_t column = (size_t) list * a->group * dim;
    tr_run_t run[TR_RUNS_MAX];
    tr_attention_tile_t t = {
        .kv = a->kv,
        .run = run,
        .n_runs = tr_attention_runs(a->kv, slot, a->layer, list, run),
        .table = tr_kv_table(a->kv, slot, a->layer, list),
        .pos = rows->row_pos[row] - a->kv->seq[slot].base,
        .n_pos = left < a->tile_pos ? left : a->tile_pos,
        .group = a->group,
        .q = a->q + row * a->ldq + column,
        .ldq = a->ldq,
        .out = a->out + row * a->ldo + column,
        .ldo = a->ldo,
        .scale = a->scale,
        .ldl = a->heads,
    };

    if (a->kv->seq[slot].scored) {
        t.lse = a->lse + (size_t) row * a->heads + list * a->group;
    }
    if (n_rows_of(a, seq) == 1) {
        choose_pages(a, &a->kv->seq[slot], &t, scratch);
    }
    a->isa->tile(&t, (float *) scratch);
}

/* Blocks of keys that a dense sequence scores in one head: those of the runs,
 * then dense ones before its last query. */
static uint32_t
score_blocks(const step_t *a, uint32_t seq, uint32_t list, tr_run_t *run,
             uint32_t *n_runs)
{
    uint32_t n, last = first_pos(a, seq) + n_rows_of(a, seq) - 1;

    *n_runs = tr_attention_runs(a->kv, a->rows->seq_slot[seq], a->layer, list,
                                run);
    n = (last - seq_of(a, seq)->base + TR_TILE_BLOCK - 1) / TR_TILE_BLOCK;
    for (uint32_t i = 0; i < *n_runs; i++) {
        n += run[i].layout->score != 0 ? tr_run_blocks(&run[i]) : 0;
    }
    return n;
}

/* Block i of all heads' blocks, heads side by side. */
static void
run_score(const step_t *a, uint32_t seq, uint32_t i, uint8_t *scratch)
{
    const tr_kv_seq_t *s = seq_of(a, seq);
    uint32_t list = i % a->kv->lists, row = a->rows->seq_row[seq], n_runs;
    uint32_t block = i / a->kv->lists, at = 0;
    size_t column = (size_t) list * a->group;
    tr_run_t run[TR_RUNS_MAX];
    tr_attention_score_t t = {
        .kv = a->kv,
        .table = tr_kv_table(a->kv, a->rows->seq_slot[seq], a->layer, list),
        .pos = first_pos(a, seq) - s->base,
        .n_pos = n_rows_of(a, seq),
        .recent_from = s->recent_from > s->base ? s->recent_from - s->base : 0,
        .group = a->group,
        .q = a->q + row * a->ldq + column * a->kv->head_dim,
        .ldq = a->ldq,
        .scale = a->scale,
        .lse = a->lse + (size_t) row * a->heads + column,
        .ldl = a->heads,
    };

    if (block >= score_blocks(a, seq, list, run, &n_runs)) {
        return;
    }
    for (; at < n_runs && t.run == NULL; at++) {
        uint32_t n = run[at].layout->score != 0 ? tr_run_blocks(&run[at]) : 0;

        if (block < n) {
            t.run = &run[at];
        } else {
            block -= n;
        }
    }
    t.first = t.run != NULL ? block : block * TR_TILE_BLOCK;
    a->isa->score(&t, (float *) scratch);
}

/* Victims of a head whose scores are up to date; `n` is the last position. */
static void
find_victims(const tr_kv_view_t *kv, const tr_kv_seq_t *seq,
             const tr_run_t *run, uint32_t n_runs, uint32_t n,
             tr_kv_victim_t *victim)
{
    for (uint32_t r = 0; r < n_runs; r++) {
        const tr_kv_layout_t *l = run[r].layout;
        uint32_t at = UINT32_MAX;

        for (uint32_t i = 0; i < run[r].slots; i++) {
            const uint8_t *page = tr_run_page(kv, &run[r], i / l->tokens);
            uint32_t token = i % l->tokens, position;
            float x;

            if (l->score == 0 || run[r].list < 0) {
                break;
            }
            x = ((const float *) (page + l->score))[token];
            position = ((const uint32_t *) (page + l->position))[token];
            x = seq->by_sum     ? x
                : n == position ? 0
                                : x / (float) (n - position);
            if (x < victim[run[r].list].significance
                || (x == victim[run[r].list].significance && position < at)) {
                victim[run[r].list] = (tr_kv_victim_t){ x, i };
                at = position;
            }
        }
    }
}

/* ---- rows over lists and window ---- */

static tr_kv_victim_t *
clear_victims(const step_t *a, uint32_t seq, uint32_t list)
{
    tr_kv_victim_t *v = a->kv->victim
                        + tr_kv_head(a->kv, a->rows->seq_slot[seq], a->layer,
                                     list)
                              * TR_KV_LISTS_MAX;

    for (uint32_t l = 0; l < seq_of(a, seq)->n_lists; l++) {
        v[l] = (tr_kv_victim_t){ INFINITY, 0 };
    }
    return v;
}

static void
make_row(const step_t *a, uint32_t seq, uint32_t list, uint8_t *room,
         tr_attention_row_t *t)
{
    const tr_kv_seq_t *s = seq_of(a, seq);
    uint32_t row = a->rows->seq_row[seq];
    size_t column = (size_t) list * a->group * a->kv->head_dim;
    size_t stride = row_stride(s->base);

    t->kv = a->kv;
    t->n_runs = tr_attention_runs(a->kv, a->rows->seq_slot[seq], a->layer, list,
                                  t->run);
    t->position = first_pos(a, seq);
    t->group = a->group;
    t->q = a->q + row * a->ldq + column;
    t->out = a->out + row * a->ldo + column;
    t->scale = a->scale;
    t->scored = s->scored;
    t->by_sum = s->by_sum;
    t->victim = NULL;
    t->stride = stride;
    t->logits = (float *) room;
    t->partial = (float *) (room
                            + tr_pad(a->group * stride * sizeof(float), 64));
}

/* out = the parts' results together; lse: [group]. */
static void
merge_parts(const tr_attention_row_t *t, uint32_t parts, float *lse)
{
    uint32_t dim = t->kv->head_dim;
    size_t step = (size_t) t->group * (dim + 2);

    for (uint32_t h = 0; h < t->group; h++) {
        const float *in = t->partial + (size_t) h * (dim + 2);
        float *out = t->out + (size_t) h * dim, max = -INFINITY, sum = 0;

        for (uint32_t i = 0; i < parts; i++) {
            float m = in[i * step + dim];

            max = m > max || m != m ? m : max;
        }
        memset(out, 0, dim * sizeof(float));
        for (uint32_t i = 0; i < parts; i++) {
            float share = expf(in[i * step + dim] - max);

            sum += share * in[i * step + dim + 1];
            for (uint32_t d = 0; d < dim; d++) {
                out[d] += share * in[i * step + d];
            }
        }
        for (uint32_t d = 0; d < dim && parts > 0; d++) {
            out[d] /= sum;
        }
        lse[h] = max + logf(sum);
    }
}

/* All that comes after the parts. */
static void
finish_row(const step_t *a, uint32_t seq, uint32_t list, tr_attention_row_t *t)
{
    float lse[TR_GROUP_MAX];

    merge_parts(t, tr_row_parts(t), lse);
    if (t->scored) {
        t->victim = clear_victims(a, seq, list);
        a->isa->row_score(t, lse);
    }
}

static uint32_t
most_parts(const step_t *a, uint32_t seq)
{
    uint32_t most = 1;

    for (uint32_t list = 0; list < a->kv->lists; list++) {
        tr_attention_row_t t;
        uint32_t n;

        t.n_runs = tr_attention_runs(a->kv, a->rows->seq_slot[seq], a->layer,
                                     list, t.run);
        n = tr_row_parts(&t);
        most = n > most ? n : most;
    }
    return most;
}

/* Where a head keeps its logits when others work on it, too. */
static uint8_t *
split_room(const step_t *a, uint32_t seq, uint32_t list)
{
    uint32_t before = 0;

    for (uint32_t i = 0; i < seq; i++) {
        before += !is_dense(a, i);
    }
    return a->rooms + ((size_t) before * a->kv->lists + list) * a->room;
}

static void
run_row(const step_t *a, uint32_t seq, uint32_t i, uint32_t worker,
        uint8_t *scratch)
{
    uint32_t list = i % a->kv->lists, part = i / a->kv->lists;
    tr_attention_row_t t;

    if (a->split) {
        make_row(a, seq, list, split_room(a, seq, list), &t);
        if (part < tr_row_parts(&t)) {
            a->isa->part(&t, part, (float *) scratch);
        }
        return;
    }
    make_row(a, seq, list, a->rooms + worker * a->room, &t);
    for (uint32_t p = 0; p < tr_row_parts(&t); p++) {
        a->isa->part(&t, p, (float *) scratch);
    }
    finish_row(a, seq, list, &t);
}

/* ---- the launcher ---- */

static void
first_phase(void *arg, uint32_t first, uint32_t end, uint32_t worker)
{
    const step_t *a = arg;
    uint8_t *scratch = a->scratch + worker * a->scratch_size;

    for (uint32_t i = first; i < end; i++) {
        uint32_t seq = tr_seq_of(a->starts, a->rows->n_seqs, i);

        if (is_dense(a, seq)) {
            run_tile(a, seq, i - a->starts[seq], scratch);
        } else {
            run_row(a, seq, i - a->starts[seq], worker, scratch);
        }
    }
}

static void
second_phase(void *arg, uint32_t first, uint32_t end, uint32_t worker)
{
    const step_t *a = arg;

    for (uint32_t i = first; i < end; i++) {
        uint32_t seq = tr_seq_of(a->starts, a->rows->n_seqs, i);
        uint32_t piece = i - a->starts[seq];
        tr_attention_row_t t;

        if (is_dense(a, seq)) {
            run_score(a, seq, piece, a->scratch + worker * a->scratch_size);
        } else {
            make_row(a, seq, piece, split_room(a, seq, piece), &t);
            finish_row(a, seq, piece, &t);
        }
    }
}

/* Pieces of a sequence in the first phase. */
static uint32_t
first_pieces(const step_t *a, uint32_t seq)
{
    uint32_t lists = a->kv->lists;

    if (is_dense(a, seq)) {
        return (n_rows_of(a, seq) + a->tile_pos - 1) / a->tile_pos * lists;
    }
    return a->split ? lists * most_parts(a, seq) : lists;
}

static uint32_t
second_pieces(const step_t *a, uint32_t seq)
{
    uint32_t most = 0, n_runs;
    tr_run_t run[TR_RUNS_MAX];

    if (!is_dense(a, seq)) {
        return a->split ? a->kv->lists : 0;
    }
    for (uint32_t l = 0; l < a->kv->lists && scores_dense(a, seq); l++) {
        uint32_t n = score_blocks(a, seq, l, run, &n_runs);

        most = n > most ? n : most;
    }
    return most * a->kv->lists;
}

static void
run_phase(step_t *a, const tr_stream_t *s, tr_team_f f,
          uint32_t (*pieces)(const step_t *a, uint32_t seq))
{
    uint32_t n = a->rows->n_seqs;

    a->starts[0] = 0;
    for (uint32_t i = 0; i < n; i++) {
        a->starts[i + 1] = a->starts[i] + pieces(a, i);
    }
    tr_team_run(s->team, s->threads, a->starts[n], 1, f, a);
}

/* Single rows of a later turn set victims, too. */
static void
third_phase(const step_t *a)
{
    for (uint32_t i = 0; i < a->rows->n_seqs; i++) {
        if (!scores_dense(a, i) || n_rows_of(a, i) > 1
            || seq_of(a, i)->n_lists == 0) {
            continue;
        }
        for (uint32_t l = 0; l < a->kv->lists; l++) {
            tr_run_t run[TR_RUNS_MAX];
            uint32_t n = tr_attention_runs(a->kv, a->rows->seq_slot[i],
                                           a->layer, l, run);

            find_victims(a->kv, seq_of(a, i), run, n, first_pos(a, i),
                         clear_victims(a, i, l));
        }
    }
}

/* A sequence has consecutive rows at dense positions, or one row at the last
 * position of its lists. */
static bool
rows_valid(const step_t *a, uint32_t *max_len, uint32_t *compressed)
{
    for (uint32_t i = 0; i < a->rows->n_seqs; i++) {
        uint32_t n = n_rows_of(a, i), end;

        if (n == 0) {
            return false;
        }
        end = first_pos(a, i) + n;
        if (!is_dense(a, i)) {
            if (n != 1 || end != seq_of(a, i)->base) {
                return false;
            }
            ++*compressed;
        } else if (scores_dense(a, i) && a->kv->layout[0].score == 0) {
            return false;
        }
        *max_len = end > *max_len ? end : *max_len;
    }
    return true;
}

int
tr_cpu_attention(const tr_stream_t *s, const tr_kv_view_t *kv, uint32_t layer,
                 const tr_rows_t *rows, const float *q, size_t ldq,
                 uint32_t heads, float scale, float *out, size_t ldo,
                 void *work, const tr_attention_isa_t *isa)
{
    uint32_t dim = kv->head_dim, max_len = 0, compressed = 0;
    step_t a = { .isa = isa,
                 .kv = kv,
                 .layer = layer,
                 .heads = heads,
                 .group = kv->lists ? heads / kv->lists : 0,
                 .rows = rows,
                 .q = q,
                 .out = out,
                 .ldq = ldq,
                 .ldo = ldo,
                 .scale = scale };

    if (a.group == 0 || a.group > TR_GROUP_MAX || heads % kv->lists
        || dim > TR_HEAD_DIM_MAX || dim % 16 || layer >= kv->layers
        || ldq < (size_t) heads * dim || ldo < (size_t) heads * dim
        || !rows_valid(&a, &max_len, &compressed)) {
        return TR_KERNEL_BADARG;
    }
    a.tile_pos = TR_TILE_ROWS / a.group;
    a.split = compressed * kv->lists < (uint32_t) s->threads;
    lay_out(&a, s, work, max_len);
    run_phase(&a, s, first_phase, first_pieces);
    run_phase(&a, s, second_phase, second_pieces);
    third_phase(&a);
    return TR_KERNEL_OK;
}
