/*
 * Attention on the paged cache: how a step is cut into pieces for threads.
 *
 * Rows at uncompressed positions (prompts; everything under `full`) are taken
 * in tiles: one KV head with a run of query positions and all query heads of
 * its group, so that a page is read once for the group.  Before its
 * uncompressed tokens a tile goes over what the head has in tiers and window
 * (later turns of a conversation).  When scores are kept, a tile keeps its
 * weights, each relative to the row's maximum so far.  After the last key the
 * row's sum is known: one multiplication turns a weight into a probability,
 * and one pass over them adds the largest of the group to each token's
 * score.  There is no second product and no second exponential.  The tiles of
 * a head do this in order (attention_turns.c), so that every score is summed
 * in the order of its queries.
 *
 * Rows of compressed sequences are taken by (sequence, KV head).  Tiers and
 * window are cut into parts of about a thousand tokens; a part computes its
 * logits, which stay in the workspace, their softmax relative to the part's
 * maximum, and the sum of values.  When all parts are there they are merged
 * in order.  Now that the sum is known, the logits become the scores'
 * increments; the same pass finds the least significant token of each tier.
 * When there are fewer heads than threads, the parts are spread over threads
 * and the rest is a second phase.
 *
 * Pieces are independent and are handed to threads as these become free.  The
 * order of every sum is fixed by the cache: softmax runs over blocks and parts
 * from fixed places, inside them in order.  So a row's bits depend neither on
 * the chunk it came in nor on the rows beside it nor on threads; a decoded
 * uncompressed token equals the same token prefilled.
 */
#include "attention_step.h"

static size_t
scratch_bytes(uint32_t head_dim, uint32_t max_len)
{
    size_t tile = tr_tile_floats(head_dim), part = tr_part_floats(head_dim);
    /* Quest: bounds twice and pages; a page has 8 tokens or more */
    size_t choice = 3 * ((size_t) max_len / 8 + 1);

    return tr_pad((tile > part ? tile : part) * sizeof(float), 64)
           + tr_pad(choice * sizeof(uint32_t), 64);
}

static size_t
row_bytes(uint32_t group, uint32_t max_len, uint32_t head_dim)
{
    size_t parts = (size_t) max_len / (TR_PART_SLOTS / 4) + 2 * TR_RUNS_MAX;

    return tr_pad(group * tr_row_stride(max_len) * sizeof(float), 64)
           + tr_pad(parts * group * (head_dim + 2) * sizeof(float), 64);
}

size_t
tr_cpu_attention_work(const tr_stream_t *s, uint32_t max_rows,
                      uint32_t max_seqs, uint32_t max_len, uint32_t heads,
                      uint32_t kv_heads, uint32_t head_dim)
{
    return tr_pad(((size_t) max_seqs + 1) * sizeof(uint32_t), 64)
           + tr_turns_bytes((uint32_t) s->threads, max_rows, max_seqs, kv_heads,
                            heads / kv_heads, max_len)
           + (size_t) s->threads
                 * (scratch_bytes(head_dim, max_len)
                    + row_bytes(heads / kv_heads, max_len, head_dim));
}

/* Lays the workspace out for this step; what it takes grows with rows and
 * lengths, so it is never more than was asked for the largest step. */
static void
lay_out(tr_step_t *a, const tr_stream_t *s, uint8_t *work, uint32_t max_len)
{
    const tr_rows_t *rows = a->rows;
    uint32_t dim = a->kv->head_dim;

    a->starts = (uint32_t *) work;
    work += tr_pad(((size_t) rows->n_seqs + 1) * sizeof(uint32_t), 64);
    tr_turns_begin(a, work, max_len);
    work += tr_turns_bytes(a->threads, rows->n_rows, rows->n_seqs,
                           a->kv->kv_heads, a->group, max_len);
    a->scratch_size = scratch_bytes(dim, max_len);
    a->scratch = work;
    work += (size_t) s->threads * a->scratch_size;
    a->row_work_bytes = row_bytes(a->group, max_len, dim);
    a->row_work = work;
}

static void
first_phase(void *arg, uint32_t first, uint32_t end, uint32_t worker)
{
    const tr_step_t *a = arg;
    uint8_t *scratch = a->scratch + worker * a->scratch_size;

    for (uint32_t i = first; i < end; i++) {
        uint32_t seq = tr_seq_of(a->starts, a->rows->n_seqs, i);
        uint32_t piece = i - a->starts[seq];
        /* who works alone takes pieces in turn; others take theirs between */
        uint32_t next = i + 1 < end ? i + 1 : i + a->threads;

        if (tr_step_uncompressed(a, seq)) {
            tr_step_tile(a, seq, piece, next, worker, scratch);
        } else {
            tr_step_row(a, seq, piece, next, worker, scratch);
        }
    }
}

static void
second_phase(void *arg, uint32_t first, uint32_t end, uint32_t worker)
{
    const tr_step_t *a = arg;

    (void) worker;
    for (uint32_t i = first; i < end; i++) {
        uint32_t seq = tr_seq_of(a->starts, a->rows->n_seqs, i);

        tr_step_finish(a, seq, i - a->starts[seq]);
    }
}

/* Pieces of a sequence in the first phase. */
static uint32_t
first_pieces(const tr_step_t *a, uint32_t seq)
{
    uint32_t kv_heads = a->kv->kv_heads;

    if (tr_step_uncompressed(a, seq)) {
        return tr_step_tiles(a, seq) * kv_heads;
    }
    return a->split ? kv_heads * tr_step_parts(a, seq) : kv_heads;
}

static uint32_t
second_pieces(const tr_step_t *a, uint32_t seq)
{
    return a->split && !tr_step_uncompressed(a, seq) ? a->kv->kv_heads : 0;
}

static void
run_phase(tr_step_t *a, const tr_stream_t *s, tr_thread_pool_f f,
          uint32_t (*pieces)(const tr_step_t *a, uint32_t seq))
{
    uint32_t n = a->rows->n_seqs;

    a->starts[0] = 0;
    for (uint32_t i = 0; i < n; i++) {
        a->starts[i + 1] = a->starts[i] + pieces(a, i);
    }
    tr_thread_pool_run(s->thread_pool, s->threads, a->starts[n], 1, f, a);
}

/* A sequence has consecutive rows at uncompressed positions, or one row at the
 * last position of its tiers. */
static bool
rows_valid(const tr_step_t *a, uint32_t *max_len, uint32_t *compressed)
{
    for (uint32_t i = 0; i < a->rows->n_seqs; i++) {
        uint32_t n = tr_step_rows(a, i), end;

        if (n == 0) {
            return false;
        }
        end = tr_step_pos(a, i) + n;
        if (!tr_step_uncompressed(a, i)) {
            if (n != 1 || end != tr_step_base(a, i)) {
                return false;
            }
            ++*compressed;
        } else if (tr_step_scores(a, i) && a->kv->layout[0].score == 0) {
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
    tr_step_t a = { .isa = isa,
                    .kv = kv,
                    .layer = layer,
                    .heads = heads,
                    .group = kv->kv_heads ? heads / kv->kv_heads : 0,
                    .rows = rows,
                    .q = q,
                    .out = out,
                    .ldq = ldq,
                    .ldo = ldo,
                    .scale = scale };

    if (a.group == 0 || a.group > TR_GROUP_MAX || heads % kv->kv_heads
        || dim > TR_HEAD_DIM_MAX || dim % 16 || layer >= kv->layers
        || ldq < (size_t) heads * dim || ldo < (size_t) heads * dim
        || !rows_valid(&a, &max_len, &compressed)) {
        return TR_KERNEL_BADARG;
    }
    a.threads = (uint32_t) s->threads;
    a.split = compressed * kv->kv_heads < (uint32_t) s->threads;
    lay_out(&a, s, work, max_len);
    run_phase(&a, s, first_phase, first_pieces);
    run_phase(&a, s, second_phase, second_pieces);
    for (uint32_t i = 0; i < rows->n_seqs; i++) {
        tr_step_candidates(&a, i);
    }
    return TR_KERNEL_OK;
}
