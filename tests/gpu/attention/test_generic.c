/*
 * The generic attention kernel against the CPU backend in plain C: all head
 * sizes, groups of up to 32, levels of every kind, rows of one sequence by the
 * dozen, tiers, windows and uncompressed pages together, scores and candidates,
 * Quest; free places are NaN.  Then once more cut differently: the same bits.
 *
 *   test_generic [rounds [seed]]
 */
#include "generic_fixture.h"

#include "kernels/cpu/attention/attention.h"
#include <cuda_runtime_api.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define ROWS 96u

static const tr_stream_t cpu_stream = { 1, NULL };
static double worst_out, worst_score;

/* ---- running ------------------------------------------------------------ */

/* The pool as it was, candidates all ones. */
static void
reset_other(case_t *c)
{
    fixture_t *b = &c->fixture;
    size_t n = (size_t) FIXTURE_SLOTS * b->host.layers * b->host.kv_heads
               * TR_KV_TIERS_MAX * sizeof(*c->candidate);

    memset(c->candidate, 0xff, n);
    fixture_put(b->other.candidate, c->candidate, n);
    fixture_put(b->other.pool, c->before, b->pages * b->host.page_bytes);
}

/* Sequences [from, to) of them; rows of the others are left alone. */
static void
attend(case_t *c, tr_rows_t rows, const tr_cuda_queries_t *queries,
       const tr_cuda_generic_size_t *size, uint32_t from, uint32_t to)
{
    fixture_t *b = &c->fixture;
    size_t n;
    void *work;

    if (from == to) {
        return;
    }
    rows.seq_slot += from;
    rows.seq_row += from;
    rows.n_seqs = to - from;
    n = tr_cuda_attention_work(size);
    work = fixture_room(n);
    cuda_ok(cudaMemset(work, 0xff, n), "workspace");
    if (tr_cuda_attention(&b->side->stream, &b->other, c->layer, &rows, queries,
                          size, work)
        != 0) {
        printf("launch: %s\n", tr_cuda_reason());
        exit(1);
    }
    cuda_ok(cudaDeviceSynchronize(), "attention");
    fixture_room_free(work);
}

/* Attends rows, whose queries begin at `first`; out: [ROWS][ldo] of four
 * bytes each on the host, at `first` likewise. */
static void
run_other(case_t *c, const tr_rows_t *rows, uint32_t first, uint8_t *out)
{
    fixture_t *b = &c->fixture;
    uint32_t size_q = tr_dtype_size(c->q_type);
    uint32_t size_o = tr_dtype_size(c->out_type);
    size_t bytes = rows->n_rows * c->ldo * size_o;
    tr_cuda_generic_size_t size = { b->host.kv_heads, b->host.head_dim,
                                    c->heads,         rows->n_rows,
                                    rows->n_seqs,     b->max_len };
    void *q = fixture_room(rows->n_rows * c->ldq * size_q);
    void *o = fixture_room(bytes);
    uint32_t cut = random_below(rows->n_seqs); /* two launches, or one */
    tr_cuda_queries_t queries = { q,         o,           c->ldq,   c->ldo,
                                  c->q_type, c->out_type, c->heads, c->scale };
    tr_rows_t there = { rows->n_rows, rows->n_seqs,
                        fixture_room(rows->n_rows * 4ul),
                        fixture_room(rows->n_seqs * 4ul),
                        fixture_room((rows->n_seqs + 1) * 4ul) };

    fixture_put(q, (uint8_t *) c->typed + first * c->ldq * size_q,
                rows->n_rows * c->ldq * size_q);
    fixture_put(o, out + first * c->ldo * size_o, bytes);
    fixture_put((void *) there.row_pos, rows->row_pos, rows->n_rows * 4ul);
    fixture_put((void *) there.seq_slot, rows->seq_slot, rows->n_seqs * 4ul);
    fixture_put((void *) there.seq_row, rows->seq_row,
                (rows->n_seqs + 1) * 4ul);
    attend(c, there, &queries, &size, 0, cut);
    attend(c, there, &queries, &size, cut, rows->n_seqs);
    fixture_get(out + first * c->ldo * size_o, o, bytes);
    fixture_room_free(q);
    fixture_room_free(o);
    fixture_room_free((void *) there.row_pos);
    fixture_room_free((void *) there.seq_slot);
    fixture_room_free((void *) there.seq_row);
}

static int
run_host(case_t *c, float *out)
{
    fixture_t *b = &c->fixture;
    size_t bytes = tr_cpu_attention_work(&cpu_stream, c->rows.n_rows,
                                         c->rows.n_seqs, b->max_len, c->heads,
                                         b->host.kv_heads, b->host.head_dim);
    void *work = aligned_alloc(64, tr_pad(bytes, 64));
    int rc = tr_cpu_attention(&cpu_stream, &b->host, c->layer, &c->rows, c->q,
                              c->ldq, c->heads, c->scale, out, c->ldo, work,
                              &tr_attention_c);

    free(work);
    return rc;
}

/* ---- checking ----------------------------------------------------------- */

static float
number_at(tr_dtype_t type, const uint8_t *p, size_t i)
{
    return tr_float_load(p, i, type);
}

static bool
check_out(const case_t *c, const float *want, const uint8_t *got,
          const uint8_t *skipped)
{
    uint32_t dim = c->fixture.host.head_dim;
    double most = c->out_type == TR_F32   ? 1e-4
                  : c->out_type == TR_F16 ? 2e-3
                                          : 8e-3;

    for (uint32_t i = 0; i < c->rows.n_rows * c->heads; i++) {
        size_t at = i / c->heads * c->ldo + (size_t) (i % c->heads) * dim;
        double error = 0, norm = 0;

        if (skipped[i / c->heads]) {
            continue;
        }
        for (uint32_t d = 0; d < dim; d++) {
            double w = (double) want[at + d];
            double e = (double) number_at(c->out_type, got, at + d) - w;

            /* FP16 has nothing below 6e-8 */
            error += e * e;
            norm += w * w + (c->out_type == TR_F16 ? 1e-9 : 0);
        }
        error = sqrt(error / (norm > 0 ? norm : 1));
        if (!(error <= most)) {
            printf("row %u head %u: relative error %g\n", i / c->heads,
                   i % c->heads, error);
            return false;
        }
        if (c->out_type == TR_F32 && error > worst_out) {
            worst_out = error;
        }
    }
    return true;
}

/* Candidates from the scores that the other side left: exact. */
static bool
check_candidates(case_t *c, uint32_t s, uint32_t kv_head, const uint8_t *pool)
{
    fixture_t *b = &c->fixture;
    int32_t slot = c->slot[s];
    const tr_kv_seq_t *q = &b->seq[slot];
    size_t head = tr_kv_head(&b->host, slot, c->layer, kv_head);
    const tr_kv_candidate_t *got = c->candidate + head * TR_KV_TIERS_MAX;
    const int32_t *row = b->tables + head * b->host.table_len;
    uint32_t n = c->pos[c->seq_row[s]];

    if (!q->scored || c->seq_row[s + 1] - c->seq_row[s] != 1) {
        return true;
    }
    for (uint32_t l = 0; l < q->n_tiers; l++) {
        const tr_kv_layout_t *at = &b->plan.layout[q->tier_layout[l]];
        tr_kv_candidate_t want = { INFINITY, 0 };
        uint32_t least = UINT32_MAX;

        uint32_t i = q->frozen ? b->frozen[head * TR_KV_TIERS_MAX + l] : 0;

        for (; at->score && i < b->count[head * TR_KV_TIERS_MAX + l]; i++) {
            const uint8_t
                *page = pool
                        + row[tr_kv_tier_entry(&b->host, l, i / at->tokens)]
                              * b->host.page_bytes;
            uint32_t position;
            float x;

            memcpy(&x, page + at->score + i % at->tokens * 4, 4);
            position = tr_kv_position_at(at, page, i % at->tokens);
            if (!q->by_sum) {
                x = position == n ? 0 : x / (float) (n - position);
            }
            if (x < want.significance
                || (x == want.significance && position < least)) {
                want = (tr_kv_candidate_t){ x, i };
                least = position;
            }
        }
        if (got[l].index != want.index
            || !(got[l].significance == want.significance)) {
            printf("candidate of tier %u: %u (%g), expected %u (%g)\n", l,
                   got[l].index, (double) got[l].significance, want.index,
                   (double) want.significance);
            return false;
        }
    }
    return true;
}

/* Compares all that the other side holds with the host. */
static bool
check(case_t *c, const float *want, const uint8_t *got_out)
{
    fixture_t *b = &c->fixture;
    size_t bytes = b->pages * b->host.page_bytes;
    size_t candidates = (size_t) FIXTURE_SLOTS * b->host.layers
                        * b->host.kv_heads * TR_KV_TIERS_MAX
                        * sizeof(*c->candidate);
    uint8_t *got = malloc(bytes), skipped[ROWS] = { 0 };
    bool ok = true;

    fixture_get(got, b->other.pool, bytes);
    fixture_get(c->candidate, b->other.candidate, candidates);
    for (uint32_t s = 0; s < c->rows.n_seqs && ok; s++) {
        for (uint32_t kv_head = 0; kv_head < b->host.kv_heads && ok;
             kv_head++) {
            ok = check_candidates(c, s, kv_head, got);
        }
        if (!ok) {
            printf("in sequence %u\n", s);
        }
    }
    ok = ok && check_out(c, want, got_out, skipped)
         && case_check_pool(c, got, 2e-4, &worst_score);
    free(got);
    return ok;
}

/* The rows one by one, sequences in turn, give the same bits. */
static bool
check_cut(case_t *c, const uint8_t *want)
{
    fixture_t *b = &c->fixture;
    size_t bytes = b->pages * b->host.page_bytes;
    size_t n_out = ROWS * c->ldo * 4;
    uint8_t *out = malloc(n_out), *pool = malloc(bytes), *again = malloc(bytes);
    bool ok;

    memset(out, 0xff, n_out);
    fixture_get(pool, b->other.pool, bytes);
    reset_other(c);
    for (uint32_t s = 0; s < c->rows.n_seqs; s++) {
        for (uint32_t r = c->seq_row[s]; r < c->seq_row[s + 1]; r++) {
            uint32_t of[2] = { 0, 1 };
            tr_rows_t one = { 1, 1, c->pos + r, c->slot + s, of };

            if (b->seq[c->slot[s]].read_pages == 0) {
                run_other(c, &one, r, out);
                continue;
            }
            /* Quest reads less when a row is alone */
            one = (tr_rows_t){ c->seq_row[s + 1] - r, 1, c->pos + r,
                               c->slot + s, of };
            of[1] = one.n_rows;
            run_other(c, &one, r, out);
            break;
        }
    }
    fixture_get(again, b->other.pool, bytes);
    ok = memcmp(pool, again, bytes) == 0 && memcmp(out, want, n_out) == 0;
    if (!ok) {
        printf("rows one by one give other bits in %s\n",
               memcmp(pool, again, bytes) == 0 ? "outputs" : "scores");
    }
    free(out);
    free(pool);
    free(again);
    return ok;
}

static bool
one_round(const fixture_side_t *side)
{
    case_t *c = malloc(sizeof(*c));
    float *want;
    uint8_t *got;
    size_t n;
    bool ok;
    int rc;

    case_open(c, side, ROWS);
    n = ROWS * c->ldo * 4;
    want = malloc(n);
    got = malloc(n);
    memset(want, 0xff, n);
    memset(got, 0xff, n);
    reset_other(c);
    rc = run_host(c, want);
    run_other(c, &c->rows, 0, got);
    ok = rc == 0 && check(c, want, got) && check_cut(c, got);
    if (!ok) {
        printf("rc %d, heads %u, rows %u, ", rc, c->heads, c->rows.n_rows);
        fixture_describe(&c->fixture);
        for (uint32_t s = 0; s < FIXTURE_SLOTS; s++) {
            const tr_kv_seq_t *q = &c->fixture.seq[s];

            printf("  %u: base %u, window %u from %u, tiers %u, uncompressed "
                   "%u, "
                   "scored %d, rows %u\n",
                   s, q->base, q->window, q->window_from, q->n_tiers,
                   c->fixture.uncompressed[s], q->scored,
                   c->seq_row[s + 1] - c->seq_row[s]);
        }
    }
    free(want);
    free(got);
    case_close(c);
    free(c);
    return ok;
}

static void
say_what(void)
{
    printf("largest relative error %.1e of outputs, %.1e of what scores grew "
           "by\n",
           worst_out, worst_score);
}

int
main(int argc, char **argv)
{
    return fixture_rounds(argc, argv, "generic", 1, one_round, say_what);
}
