/*
 * Rows of prompts behind compressed tokens (tr_cuda_prompt_behind) against the
 * CPU backend in plain C: levels of every kind in tiers and windows, sinks,
 * groups of 1 to 8 query heads, all paths, scratch for all that is compressed or
 * for a KV head at a time; free places and the workspace are NaN.  Sequences of
 * other kinds stand between and must not be touched.  Then each sequence alone
 * and in two chunks: the same bits.
 *
 *   test_behind [rounds [seed]]
 */
#include "generic_fixture.h"

#include "kernels/cpu/attention/attention.h"
#include <cuda_runtime_api.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define OUT_MOST 3e-3   /* of the length of a row's output, */
#define SCORE_MOST 4e-3 /* of what a score grew by */

static const tr_stream_t cpu_stream = { 1, NULL };
static double worst_out, worst_score;
static uint32_t attended;

/* What a round has on the other side. */
typedef struct {
    case_t *c;
    tr_cuda_prompt_size_t size;
    tr_cuda_queries_t queries;
    tr_rows_t rows;
    void *room[6];
    uint32_t base[FIXTURE_SLOTS]; /* 0: left out */
    size_t out_bytes, work_bytes;
} turn_t;

/* ---- a round ------------------------------------------------------------ */

static uint32_t
rows_of(const case_t *c, uint32_t s)
{
    return c->seq_row[s + 1] - c->seq_row[s];
}

/* Is sequence s one of a later turn? */
static bool
is_behind(const case_t *c, uint32_t s)
{
    uint32_t base = c->fixture.seq[c->slot[s]].base;

    return rows_of(c, s) > 1 && base > 0 && c->pos[c->seq_row[s]] >= base;
}

/* Is there what the kernels have, and somebody to attend? */
static bool
is_allowed(const case_t *c)
{
    const tr_kv_view_t *kv = &c->fixture.host;
    bool any = false;

    for (uint32_t s = 0; s < c->rows.n_seqs; s++) {
        any = any || is_behind(c, s);
    }
    return any && (kv->head_dim == 64 || kv->head_dim == 128)
           && c->heads / kv->kv_heads <= 8 && c->fixture.plan.n > 1
           && !c->slides;
}

/* Scratch for all, for some, for one KV head of the longest. */
static uint32_t
choose_context(const turn_t *t, uint32_t kv_heads)
{
    uint32_t all = 0, least = TR_CUDA_CONTEXT_TILE;

    for (uint32_t s = 0; s < t->c->rows.n_seqs; s++) {
        uint32_t rows = tr_cuda_context_rows(t->base[s]);

        all += rows * kv_heads;
        least = rows > least ? rows : least;
    }
    return random_below(3) == 0   ? least
           : random_below(2) == 0 ? all + TR_CUDA_CONTEXT_TILE
           : all > least          ? least + random_below(all - least)
                                  : least;
}

static void *
sent(const void *p, size_t bytes)
{
    void *room = fixture_room(bytes);

    fixture_put(room, p, bytes);
    return room;
}

static void
turn_open(turn_t *t, case_t *c)
{
    fixture_t *b = &c->fixture;
    uint32_t rows = c->rows.n_rows, n = c->rows.n_seqs;

    memset(t, 0, sizeof(*t));
    t->c = c;
    for (uint32_t s = 0; s < n; s++) {
        t->base[s] = is_behind(c, s) ? b->seq[c->slot[s]].base : 0;
        attended += t->base[s] != 0;
    }
    t->size = (tr_cuda_prompt_size_t){ .kv_heads = b->host.kv_heads,
                                       .head_dim = b->host.head_dim,
                                       .heads = c->heads,
                                       .max_rows = rows + random_below(200),
                                       .max_seqs = n + random_below(3),
                                       .max_len = b->max_len };
    t->size.context = choose_context(t, b->host.kv_heads);
    t->out_bytes = rows * c->ldo * tr_dtype_size(c->out_type);
    t->work_bytes = tr_cuda_prompt_work(&t->size);
    t->room[0] = sent(c->typed, rows * c->ldq * tr_dtype_size(c->q_type));
    t->room[1] = fixture_room(t->out_bytes);
    t->room[2] = fixture_room(t->work_bytes);
    t->room[3] = sent(c->pos, rows * sizeof(*c->pos));
    t->room[4] = sent(c->slot, n * sizeof(*c->slot));
    t->room[5] = sent(c->seq_row, (n + 1) * sizeof(*c->seq_row));
    t->rows = (tr_rows_t){ rows, n, t->room[3], t->room[4], t->room[5] };
    t->queries = (tr_cuda_queries_t){ t->room[0], t->room[1], c->ldq,
                                      c->ldo,     c->q_type,  c->out_type,
                                      c->heads,   c->scale };
}

static void
turn_close(turn_t *t)
{
    for (size_t i = 0; i < 6; i++) {
        fixture_room_free(t->room[i]);
    }
}

static void
reset(turn_t *t)
{
    fixture_t *b = &t->c->fixture;

    fixture_put(b->other.pool, t->c->before, b->pages * b->host.page_bytes);
    cuda_ok(cudaMemset(t->room[1], 0xff, t->out_bytes), "out");
    cuda_ok(cudaMemset(t->room[2], 0xff, t->work_bytes), "workspace");
}

static bool
launch(turn_t *t, const tr_rows_t *rows, const uint32_t *base,
       const tr_cuda_queries_t *q)
{
    fixture_t *b = &t->c->fixture;
    int rc = tr_cuda_prompt_behind(&b->side->stream, &b->other, t->c->layer,
                                   rows, base, q, &t->size, t->room[2]);

    if (rc != TR_KERNEL_OK) {
        printf("tr_cuda_prompt_behind: %d (%s)\n", rc, tr_cuda_reason());
    }
    cuda_ok(cudaDeviceSynchronize(), "attention");
    return rc == TR_KERNEL_OK;
}

/* Rows [from, to) of sequence s alone. */
static bool
launch_part(turn_t *t, uint32_t s, uint32_t from, uint32_t to)
{
    const case_t *c = t->c;
    uint32_t of[2] = { 0, to - from }, at = c->seq_row[s] + from;
    tr_rows_t rows = { to - from, 1, t->rows.row_pos + at, t->rows.seq_slot + s,
                       sent(of, sizeof(of)) };
    tr_cuda_queries_t q = t->queries;
    bool ok;

    q.q = (const uint8_t *) q.q + at * q.ldq * tr_dtype_size(q.q_type);
    q.out = (uint8_t *) q.out + at * q.ldo * tr_dtype_size(q.out_type);
    ok = launch(t, &rows, t->base + s, &q);
    fixture_room_free((void *) rows.seq_row);
    return ok;
}

/* ---- what it must be ----------------------------------------------------- */

/* Scores that nobody reads are as they were. */
static void
settle(case_t *c, uint32_t s)
{
    fixture_t *b = &c->fixture;
    const tr_kv_seq_t *q = &b->seq[c->slot[s]];

    for (uint32_t i = 0; i < b->host.kv_heads * q->n_tiers; i++) {
        uint32_t h = c->layer * b->host.kv_heads + i / q->n_tiers;
        uint32_t tier = i % q->n_tiers, n;
        const tr_kv_layout_t *l = &b->plan.layout[q->tier_layout[tier]];

        n = b->count[fixture_head(b, (uint32_t) c->slot[s], h) * TR_KV_TIERS_MAX
                     + tier];
        if (tier + q->settled < q->n_tiers || l->score == 0) {
            continue;
        }
        for (uint32_t page = 0; page * l->tokens < n; page++) {
            const int32_t *row = fixture_row(b, (uint32_t) c->slot[s], h);
            size_t at = row[tr_kv_tier_entry(&b->host, tier, page)]
                            * b->host.page_bytes
                        + l->score;

            memcpy(b->host.pool + at, c->before + at, 4 * l->tokens);
        }
    }
}

/* Those that are attended, one after the other. */
static bool
run_host(turn_t *t, float *out)
{
    case_t *c = t->c;
    fixture_t *b = &c->fixture;
    size_t bytes = tr_cpu_attention_work(&cpu_stream, c->rows.n_rows, 1,
                                         b->max_len, c->heads, b->host.kv_heads,
                                         b->host.head_dim);
    void *work = aligned_alloc(64, tr_pad(bytes, 64));
    int rc = 0;

    for (uint32_t s = 0; s < c->rows.n_seqs && rc == 0; s++) {
        uint32_t at = c->seq_row[s], n = rows_of(c, s), of[2] = { 0, n };
        tr_rows_t rows = { n, 1, c->pos + at, c->slot + s, of };

        if (t->base[s] != 0) {
            rc = tr_cpu_attention(&cpu_stream, &b->host, c->layer, &rows,
                                  c->q + at * c->ldq, c->ldq, c->heads,
                                  c->scale, out + at * c->ldo, c->ldo, work,
                                  &tr_attention_c);
            settle(c, s);
        }
    }
    free(work);
    if (rc != 0) {
        printf("the CPU backend: %d\n", rc);
    }
    return rc == 0;
}

/* One row of a query head. */
static bool
check_row(const case_t *c, const float *want, const uint8_t *got, size_t at)
{
    double error = 0, norm = 0;
    double most = OUT_MOST + (c->out_type == TR_BF16 ? 4e-3 : 0);

    for (uint32_t d = 0; d < c->fixture.host.head_dim; d++) {
        double w = (double) want[at + d];
        double e = (double) tr_float_load(got, at + d, c->out_type) - w;

        /* FP16 has nothing below 6e-8 */
        error += e * e;
        norm += w * w + (c->out_type == TR_F16 ? 1e-9 : 0);
    }
    error = sqrt(error / (norm > 0 ? norm : 1));
    worst_out = fmax(worst_out, error / most);
    if (!(error <= most)) {
        printf("relative error %g, allowed %g\n", error, most);
    }
    return error <= most;
}

static bool
check_out(turn_t *t, const float *want, const uint8_t *got)
{
    const case_t *c = t->c;
    size_t row = c->ldo * tr_dtype_size(c->out_type);

    for (uint32_t s = 0; s < c->rows.n_seqs; s++) {
        for (uint32_t r = c->seq_row[s]; r < c->seq_row[s + 1]; r++) {
            for (size_t i = 0; i < row && t->base[s] == 0; i++) {
                if (got[r * row + i] != 0xff) {
                    printf("row %u of a sequence that is left out\n", r);
                    return false;
                }
            }
            for (uint32_t h = 0; h < c->heads && t->base[s] != 0; h++) {
                if (!check_row(c, want, got,
                               r * c->ldo + h * c->fixture.host.head_dim)) {
                    printf("in row %u (position %u), head %u of sequence %u\n",
                           r, c->pos[r], h, s);
                    return false;
                }
            }
        }
    }
    return true;
}

/* ---- paths --------------------------------------------------------------- */

/* Each sequence in two chunks. */
static bool
check_cut(turn_t *t, const uint8_t *out, const uint8_t *pool)
{
    const case_t *c = t->c;
    size_t bytes = c->fixture.pages * c->fixture.host.page_bytes;
    uint8_t *again = malloc(bytes > t->out_bytes ? bytes : t->out_bytes);
    bool ok = true;

    reset(t);
    for (uint32_t s = 0; s < c->rows.n_seqs && ok; s++) {
        uint32_t n = rows_of(c, s), cut = n > 3 ? 2 + random_below(n - 3) : n;

        ok = t->base[s] == 0
             || (launch_part(t, s, 0, cut)
                 && (cut == n || launch_part(t, s, cut, n)));
    }
    fixture_get(again, t->room[1], t->out_bytes);
    if (ok && memcmp(again, out, t->out_bytes) != 0) {
        printf("chunks give other bits in outputs\n");
        ok = false;
    }
    fixture_get(again, c->fixture.other.pool, bytes);
    if (ok && memcmp(again, pool, bytes) != 0) {
        printf("chunks give other bits in scores\n");
        ok = false;
    }
    free(again);
    return ok;
}

static bool
try_path(turn_t *t, tr_prompt_path_t path, const float *want)
{
    const fixture_t *b = &t->c->fixture;
    size_t bytes = b->pages * b->host.page_bytes;
    uint8_t *out = malloc(t->out_bytes), *pool = malloc(bytes);
    uint8_t *copy = malloc(bytes);
    bool ok;

    t->size.path = path;
    reset(t);
    ok = launch(t, &t->rows, t->base, &t->queries);
    fixture_get(out, t->room[1], t->out_bytes);
    fixture_get(pool, b->other.pool, bytes);
    memcpy(copy, pool, bytes);
    ok = ok && check_out(t, want, out)
         && case_check_pool(t->c, copy, SCORE_MOST, &worst_score)
         && check_cut(t, out, pool);
    free(out);
    free(pool);
    free(copy);
    return ok;
}

static void
describe(const turn_t *t)
{
    const case_t *c = t->c;

    printf("heads %u, rows %u, scratch %u, sinks %d, ", c->heads,
           c->rows.n_rows, t->size.context, c->fixture.host.sinks != NULL);
    fixture_describe(&c->fixture);
    for (uint32_t s = 0; s < c->rows.n_seqs; s++) {
        const tr_kv_seq_t *q = &c->fixture.seq[c->slot[s]];

        printf("  %u: base %u, window %u from %u, sinks %u, tiers %u, scored "
               "%d, rows %u from %u%s\n",
               s, q->base, q->window, q->window_from, q->sinks, q->n_tiers,
               q->scored, rows_of(c, s), c->pos[c->seq_row[s]],
               t->base[s] != 0 ? "" : ", left out");
    }
}

static bool
one_round(const fixture_side_t *side)
{
    static const char *const name[] = { "best", "warps", "boxes", "groups",
                                        "alternating" };
    case_t *c = malloc(sizeof(*c));
    bool ok = false;
    float *want;
    turn_t t;

    case_open(c, side, ROWS_MAX);
    while (!is_allowed(c)) {
        case_close(c);
        case_open(c, side, ROWS_MAX);
    }
    turn_open(&t, c);
    want = malloc(c->rows.n_rows * c->ldo * sizeof(*want));
    memset(want, 0xff, c->rows.n_rows * c->ldo * sizeof(*want));
    ok = run_host(&t, want);
    for (int p = TR_PROMPT_BEST; p < TR_PROMPT_PATHS && ok; p++) {
        ok = try_path(&t, (tr_prompt_path_t) p, want);
        if (!ok) {
            printf("path %s, ", name[p]);
            describe(&t);
        }
    }
    free(want);
    turn_close(&t);
    case_close(c);
    free(c);
    return ok;
}

static void
say_what(void)
{
    printf("%u sequences attended; largest error %.2f of what is allowed, "
           "scores %.2f\n",
           attended, worst_out, worst_score / SCORE_MOST);
}

int
main(int argc, char **argv)
{
    return fixture_rounds(argc, argv, "behind", 3, one_round, say_what);
}
