/*
 * test_prompt.c: prompt attention against double precision.
 *
 *   test_prompt [ROUNDS] [SEED] [WAY]
 *
 * Every round is a random cache of uncompressed pages and a random step:
 * sequences of one to several hundred rows, some left out, chunks that begin
 * anywhere, groups of 1 to 16 query heads, magnitudes from 1e-6 to 1e4, outputs
 * and queries of all types, bytes without a token NaN.  Queries are such that
 * FP16 holds them, so that errors are those of the sums and of FP16 weights.
 */
#include <cuda_runtime_api.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/gpu/fixtures/cache.h"
#include "prompt_fixture.h"

static tr_device_props_t device;
static const char *const path_name[] = { "best", "warps", "boxes", "groups",
                                         "alternating" };

static bool
check_out(case_t *c, uint32_t s, uint32_t kv_head, const want_t *w)
{
    uint32_t first = c->seq_row[s], rows = c->seq_row[s + 1] - first;

    for (uint32_t i = 0; i < rows * c->group; i++) {
        uint32_t row = first + i / c->group, h = i % c->group, where = 0;
        size_t at = row * c->queries.ldo + (kv_head * c->group + h) * c->dim;
        double wrong = 0, worst = 0;

        for (uint32_t d = 0; d < c->dim; d++) {
            double off = tr_float_load(c->out, at + d, c->queries.out_type)
                         - w->out[(size_t) i * c->dim + d];

            if (!(fabs(off) <= worst)) {
                worst = fabs(off);
                where = d;
            }
            wrong += off * off;
        }
        /* what FP16 outputs cannot hold is not counted */
        wrong = sqrt(wrong) / (w->norm[i] + 1e-30);
        if (c->queries.out_type == TR_F16 && w->norm[i] < 1e-2) {
            wrong = fmax(0, wrong - 1e-6 / w->norm[i]);
        }
        if (!(wrong <= w->slack[i / c->group])) {
            printf("out: sequence %u row %u (position %u) head %u: relative "
                   "error %g, allowed %g; worst at dimension %u: %g, "
                   "expected %g\n",
                   s, row - first, c->pos[row], kv_head * c->group + h, wrong,
                   w->slack[i / c->group], where,
                   tr_float_load(c->out, at + where, c->queries.out_type),
                   w->out[(size_t) i * c->dim + where]);
            return false;
        }
        c->out_error = fmax(c->out_error, wrong / w->slack[i / c->group]);
    }
    return true;
}

/* The sums of a KV head, formed in ascending order. */
static bool
check_scores(case_t *c, uint32_t s, uint32_t kv_head, const want_t *w)
{
    const tr_kv_layout_t *l = c->plan.layout;
    bool scored = case_attends(c, s) && c->seq[c->slot[s]].scored;
    double slack = 2e-5 + 4e-6 * w->widest;

    for (uint32_t k = 0; k < 2 * case_length(c, s); k++) {
        uint32_t place, at = k % 2 ? l->recent : l->score;
        double was, got, want, off;

        const uint8_t *page = case_token(c, c->before, s, kv_head, k / 2,
                                         &place);

        was = tr_float_load(page + at, place, TR_F32);
        page = case_token(c, c->pool, s, kv_head, k / 2, &place);
        got = tr_float_load(page + at, place, TR_F32);
        want = was + (scored ? w->add[k % 2][k / 2] : 0);
        off = fabs(got - want) / (slack * (want + 0.01));
        if (!(off <= 1) || (!scored && got != was)) {
            printf("%s: sequence %u KV head %u token %u of %u: %.9g, expected "
                   "%.9g (was %.9g)\n",
                   k % 2 ? "recent" : "score", s, kv_head, k / 2,
                   case_length(c, s), got, want, was);
            return false;
        }
        c->score_error = fmax(c->score_error, off);
    }
    return true;
}

static bool
check_list(case_t *c, uint32_t s, uint32_t kv_head, const want_t *w)
{
    return (!case_attends(c, s) || check_out(c, s, kv_head, w))
           && (!c->plan.layout->score || check_scores(c, s, kv_head, w));
}

/* Rows that are left out stay as they were, and so do keys and values. */
static bool
check_untouched(case_t *c)
{
    const tr_kv_layout_t *l = c->plan.layout;
    uint32_t size = tr_dtype_size(c->queries.out_type);

    for (uint32_t s = 0; s < c->rows.n_seqs; s++) {
        for (uint32_t r = c->seq_row[s];
             !case_attends(c, s) && r < c->seq_row[s + 1]; r++) {
            const uint8_t *o = (uint8_t *) c->out + r * c->queries.ldo * size;

            for (uint32_t i = 0; i < c->queries.heads * c->dim * size; i++) {
                if (o[i] != 0xff) {
                    printf("out: row %u of a sequence that is left out\n", r);
                    return false;
                }
            }
        }
    }
    for (uint32_t i = 0; i < c->pages; i++) {
        size_t at = (size_t) i * c->plan.page_bytes;
        uint32_t end = l->value + 2 * c->dim * l->tokens;

        if (memcmp(c->pool + at, c->before + at, end)) {
            printf("page %u: keys or values were written\n", i);
            return false;
        }
    }
    return true;
}

/* ---- rounds ------------------------------------------------------------- */

/* Rows [from, to) of sequence s alone. */
static int
launch_part(case_t *c, uint32_t s, uint32_t from, uint32_t to)
{
    tr_cuda_stream_t stream = { NULL, &device };
    uint32_t row[2] = { 0, to - from }, at = c->seq_row[s] + from;
    tr_cuda_queries_t q = c->queries;
    tr_rows_t rows = c->device_rows;

    cuda_ok(cudaDeviceSynchronize(), "prompt attention");
    cuda_ok(cudaMemcpy(c->device_mem[9], row, sizeof(row),
                       cudaMemcpyHostToDevice),
            "rows");
    rows.n_rows = to - from;
    rows.n_seqs = 1;
    rows.row_pos += at;
    rows.seq_slot += s;
    rows.seq_row = c->device_mem[9];
    q.q = (const uint8_t *) q.q + at * q.ldq * tr_dtype_size(q.q_type);
    q.out = (uint8_t *) q.out + at * q.ldo * tr_dtype_size(q.out_type);
    return tr_cuda_prompt(&stream, &c->device, c->layer, &rows, &q, &c->size,
                          c->device_mem[8]);
}

static void
reset_device(case_t *c)
{
    cuda_ok(cudaMemcpy(c->device_mem[0], c->before,
                       (size_t) c->pages * c->plan.page_bytes,
                       cudaMemcpyHostToDevice),
            "pool");
    cuda_ok(cudaMemset(c->device_mem[7], 0xff, c->out_bytes), "out");
    cuda_ok(cudaMemset(c->device_mem[8], 0xff, tr_cuda_prompt_work(&c->size)),
            "work");
}

/* The same rows, each sequence alone and in two chunks, give the same bits of
 * outputs and scores as the step did. */
static bool
try_cut(case_t *c)
{
    size_t bytes = (size_t) c->pages * c->plan.page_bytes;
    uint8_t *out = malloc(c->out_bytes), *pool = malloc(bytes);
    bool ok = true;

    reset_device(c);
    for (uint32_t s = 0; s < c->rows.n_seqs && ok; s++) {
        uint32_t rows = c->seq_row[s + 1] - c->seq_row[s];
        uint32_t cut = rows > 3 ? 2 + random_below(rows - 3) : rows;

        if (case_attends(c, s)) {
            ok = !launch_part(c, s, 0, cut)
                 && (cut == rows || !launch_part(c, s, cut, rows));
        }
    }
    cuda_ok(cudaDeviceSynchronize(), "prompt attention");
    cuda_ok(cudaMemcpy(out, c->queries.out, c->out_bytes,
                       cudaMemcpyDeviceToHost),
            "out");
    cuda_ok(cudaMemcpy(pool, c->device_mem[0], bytes, cudaMemcpyDeviceToHost),
            "pool");
    if (ok && memcmp(out, c->out, c->out_bytes)) {
        printf("out: chunks have other bits\n");
        ok = false;
    }
    if (ok && memcmp(pool, c->pool, bytes)) {
        printf("scores: chunks have other bits\n");
        ok = false;
    }
    free(out);
    free(pool);
    return ok;
}

static bool
try_path(case_t *c, tr_prompt_path_t path)
{
    tr_cuda_stream_t stream = { NULL, &device };
    size_t bytes = (size_t) c->pages * c->plan.page_bytes;
    bool ok;
    int rc;

    reset_device(c);
    c->size.path = path;
    rc = tr_cuda_prompt(&stream, &c->device, c->layer, &c->device_rows,
                        &c->queries, &c->size, c->device_mem[8]);
    if (rc != TR_KERNEL_OK) {
        printf("tr_cuda_prompt: %d (%s)\n", rc, tr_cuda_reason());
        return false;
    }
    cuda_ok(cudaDeviceSynchronize(), "prompt attention");
    cuda_ok(cudaMemcpy(c->out, c->queries.out, c->out_bytes,
                       cudaMemcpyDeviceToHost),
            "out");
    cuda_ok(cudaMemcpy(c->pool, c->device_mem[0], bytes,
                       cudaMemcpyDeviceToHost),
            "pool");
    ok = check_untouched(c);
    for (uint32_t s = 0; s < c->rows.n_seqs && ok; s++) {
        for (uint32_t l = 0; l < c->kv_heads && ok && c->slot[s] >= 0; l++) {
            ok = check_list(c, s, l, &c->want[s * c->kv_heads + l]);
        }
    }
    return ok && try_cut(c);
}

int
main(int argc, char **argv)
{
    uint32_t rounds = argc > 1 ? (uint32_t) atoi(argv[1]) : 20;
    uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    uint32_t only = argc > 3 ? (uint32_t) atoi(argv[3]) : 0;
    uint32_t failed[TR_PROMPT_PATHS] = { 0 }, all = 0, rows = 0;
    double worst[2] = { 0, 0 };

    cuda_ok(tr_cuda_open(0, &device) ? cudaErrorUnknown : cudaSuccess,
            "tr_cuda_open");
    for (uint32_t i = 0; i < rounds; i++) {
        case_t c;

        random_seed(seed + i);
        case_open(&c, device.code / 10 == 9);
        rows += c.rows.n_rows;
        for (uint32_t w = TR_PROMPT_BEST; w < TR_PROMPT_PATHS; w++) {
            if ((only != 0 && w != only) || failed[w] > 2) {
                continue;
            }
            if (!try_path(&c, (tr_prompt_path_t) w)) {
                printf("FAILED: test_prompt 1 %llu %u (%s; head size %u, group "
                       "%u, pages of %u, reach %u, sinks %d)\n",
                       (unsigned long long) (seed + i), w, path_name[w], c.dim,
                       c.group, c.plan.layout->tokens, c.reach,
                       c.sinks != NULL);
                failed[w]++;
                all++;
            }
        }
        worst[0] = fmax(worst[0], c.out_error);
        worst[1] = fmax(worst[1], c.score_error);
        case_close(&c);
    }
    for (uint32_t w = TR_PROMPT_BEST; w < TR_PROMPT_PATHS; w++) {
        printf("%s: %s\n", path_name[w], failed[w] ? "FAILED" : "ok");
    }
    printf("%u rounds from seed %llu, %u rows: %s; largest error %.2f of what "
           "is allowed, scores %.2f\n",
           rounds, (unsigned long long) seed, rows, all ? "FAILED" : "all held",
           worst[0], worst[1]);
    return all != 0;
}
