/*
 * Small-batch GEMM (device.h) against plain C, and one behind the other, where
 * each begins before the one in front of it has ended.
 *
 *   test_small_gemm [rounds [seed [small]]]
 *
 * small: products of few numbers alone, for racecheck, under which chains,
 * whose blocks wait for each other, do not end.
 *
 * Random shapes and magnitudes, weights in 16 bits and packed in every form, NaN
 * wherever nothing was written; a row gives
 * the same bits whatever the others hold; layers of products, in chains and
 * these in a graph, launched again and again, give the bits that they give one
 * by one.
 */
#include <cuda_runtime_api.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "small_gemm_case.h"

/* ---- one product, compared ---------------------------------------------- */

static bool
squares_close(const case_t *c)
{
    uint32_t parts = tr_cuda_small_gemm_parts(&side.device, c->a.rows, c->a.n,
                                              c->a.k);
    float *got = (float *) array_fetch(&c->squares_out);
    const float *want = array_host(&c->squares_out);
    bool ok = parts > 0 && parts <= TR_CUDA_SMALL_GEMM_PARTS;

    for (uint32_t r = 0; r < c->a.rows && ok; r++) {
        double sum = 0;

        for (uint32_t i = 0; i < parts; i++) {
            sum += (double) got[(size_t) r * parts + i];
        }
        ok = fabs(sum - (double) want[r]) <= 1e-3 * (double) want[r];
        if (!ok) {
            printf("squares of row %u: %g, expected %g\n", r, sum,
                   (double) want[r]);
        }
    }
    free(got);
    return ok;
}

/* Row 0 again, between other rows. */
static bool
case_among_others(case_t *c)
{
    size_t n = c->a.mode == TR_CUDA_SMALL_GEMM_GATED ? c->a.n / 2 : c->a.n;
    uint8_t *before = array_fetch(&c->y), *after;
    bool ok;

    for (uint32_t i = 0; i < (c->a.rows - 1) * c->a.ldx; i++) {
        tr_float_store(array_host(&c->x), c->a.ldx + i, TR_BF16,
                       random_below(50) ? (float) random_normal() : NAN);
    }
    array_send(&c->x);
    case_point(c, array_there);
    side_launch(&side,
                tr_cuda_small_gemm(&side.stream, &c->a, 1, array_there(&meet)),
                "small_gemm");
    after = array_fetch(&c->y);
    ok = memcmp(before, after, n * 2) == 0;
    if (!ok) {
        printf("a row has other bits among other rows\n");
    }
    free(before);
    free(after);
    return ok;
}

/* Has y, of the first rows, the bits that it had? */
static bool
same_rows(const case_t *c, const uint8_t *before, uint32_t rows)
{
    size_t n = c->a.mode == TR_CUDA_SMALL_GEMM_GATED ? c->a.n / 2 : c->a.n;
    uint8_t *after = array_fetch(&c->y);
    bool ok = true;

    for (uint32_t r = 0; r < rows && ok; r++) {
        ok = memcmp(before + r * c->a.ldy * 2, after + r * c->a.ldy * 2, n * 2)
             == 0;
    }
    free(after);
    return ok;
}

/* Of up to 8 rows some alone: they have the same bits. */
static bool
case_with_fewer(const case_t *c)
{
    tr_cuda_small_gemm_t some = c->a;
    uint8_t *before;
    bool ok;

    if (c->a.rows > 8) {
        return true;
    }
    some.rows = 1 + random_below(c->a.rows);
    before = array_fetch(&c->y);
    side_launch(&side,
                tr_cuda_small_gemm(&side.stream, &some, 1, array_there(&meet)),
                "small_gemm of fewer rows");
    ok = same_rows(c, before, some.rows);
    if (!ok) {
        printf("other bits where %u of %u rows are alone\n", some.rows,
               c->a.rows);
    }
    free(before);
    return ok;
}

/* With less shared memory, down to less than two slots: the same bits, or no
 * product. */
static bool
case_in_less(const case_t *c)
{
    tr_device_props_t less = side.device;
    tr_cuda_stream_t s = { side.stream.stream, &less };
    uint8_t *before = array_fetch(&c->y);
    bool ok = true;
    int rc;

    less.shared = 1024 * (1 + random_below(less.shared / 1024));
    rc = tr_cuda_small_gemm(&s, &c->a, 1, array_there(&meet));
    if (rc != TR_KERNEL_BADARG) {
        side_launch(&side, rc, "small_gemm in less memory");
        ok = same_rows(c, before, c->a.rows);
    }
    if (!ok) {
        printf("other bits in %u bytes of shared memory\n", less.shared);
    }
    free(before);
    return ok;
}

static bool
check_one(void)
{
    case_t c;
    bool ok;

    side.device.trial = random_below(2);
    side.device.few_fp8 = random_below(4) > 0;
    case_open(&c);
    case_point(&c, array_there);
    side_launch(&side,
                tr_cuda_small_gemm(&side.stream, &c.a, 1, array_there(&meet)),
                "small_gemm");
    case_point(&c, array_host);
    ok = tr_ref_small_gemm(&c.a) == TR_KERNEL_OK;
    if (c.a.mode == TR_CUDA_SMALL_GEMM_RESIDUAL) {
        ok = ok
             && close(&c.hidden, c.a.rows, c.a.n, c.a.ldh, TR_F32, c.slack,
                      "hidden")
             && squares_close(&c);
    }
    if (!c.last) {
        ok = ok
             && close(&c.y, c.a.rows,
                      c.a.mode == TR_CUDA_SMALL_GEMM_GATED ? c.a.n / 2 : c.a.n,
                      c.a.ldy, TR_BF16,
                      c.a.mode == TR_CUDA_SMALL_GEMM_GATED ? 100 * c.slack
                                                           : 4 * c.slack,
                      "y");
    }
    if (c.a.mode != TR_CUDA_SMALL_GEMM_RESIDUAL) {
        case_point(&c, array_there);
        ok = ok && case_in_less(&c) && case_with_fewer(&c)
             && case_among_others(&c);
    }
    if (c.a.mode == TR_CUDA_SMALL_GEMM_GATED) {
        case_point(&c, array_there);
        c.a.act = TR_ACT_GELU_TANH;
        ok = ok
             && tr_cuda_small_gemm(&side.stream, &c.a, 1, array_there(&meet))
                    == TR_KERNEL_BADARG;
    }
    if (!ok) {
        printf("mode %d, rows %u, n %u, k %u, parts %u, bias %d, %s in groups "
               "of %u, order %d\n",
               c.a.mode, c.a.rows, c.a.n, c.a.k, c.a.parts, c.biased,
               tr_weight_format_name(c.a.form.format), c.a.form.group,
               c.a.form.order);
    }
    case_close(&c);
    return ok;
}

/* ---- packed weights in 16 bits ------------------------------------------- */

static bool
check_unpack(void)
{
    tr_cuda_unpack_t a = { .n = many(20), .k = many(20) };
    array_t w, out;
    uint16_t *got;
    bool ok;

    do {
        a.form = any_form(TR_CUDA_SMALL_GEMM_PLAIN, a.n, a.k);
    } while (a.form.format == TR_WEIGHT_16);
    w = packed(a.form, a.n, a.k, 1);
    out = array_new((size_t) a.n * a.k, 2, false);
    a.w = array_there(&w);
    a.out = array_there(&out);
    side_launch(&side, tr_cuda_unpack(&side.stream, &a), "unpack");
    a.w = array_host(&w);
    a.out = array_host(&out);
    ok = tr_ref_unpack(&a) == TR_KERNEL_OK;
    got = (uint16_t *) array_fetch(&out);
    for (size_t i = 0; i < (size_t) a.n * a.k && ok; i++) {
        uint16_t x = ((uint16_t *) a.out)[i];

        ok = got[i] == x;
        if (!ok) {
            printf("unpack, %s in groups of %u, order %d: row %zu, column %zu "
                   "of %u x %u is %04x, expected %04x\n",
                   tr_weight_format_name(a.form.format), a.form.group,
                   a.form.order, i / a.k, i % a.k, a.n, a.k, got[i], x);
        }
    }
    compared += (uint64_t) a.n * a.k;
    free(got);
    array_free(&w);
    array_free(&out);
    return ok;
}

/* What no kernel has is refused, whatever its size. */
static bool
check_refused(void)
{
    static const struct {
        tr_weight_form_t form;
        uint32_t n, k;
        tr_cuda_small_gemm_mode_t mode;
    } wrong[] = {
        { { TR_WEIGHT_FP8, TR_WEIGHT_PLAIN, 64 },
          128,
          128,
          TR_CUDA_SMALL_GEMM_PLAIN },
        { { TR_WEIGHT_FP8, TR_WEIGHT_PLAIN, 128 },
          128,
          192,
          TR_CUDA_SMALL_GEMM_PLAIN },
        { { TR_WEIGHT_FP8, TR_WEIGHT_PLAIN, 0 },
          128,
          96,
          TR_CUDA_SMALL_GEMM_PLAIN },
        { { TR_WEIGHT_FP8, TR_WEIGHT_PLAIN, 0 },
          0,
          128,
          TR_CUDA_SMALL_GEMM_PLAIN },
        { { TR_WEIGHT_FP8, TR_WEIGHT_PLAIN, 0 },
          0xffffffc0u,
          0xffffffc0u,
          TR_CUDA_SMALL_GEMM_PLAIN },
        { { TR_WEIGHT_FP8, TR_WEIGHT_PLAIN, 0 },
          128,
          128,
          TR_CUDA_SMALL_GEMM_GATED },
        { { TR_WEIGHT_INT4, TR_WEIGHT_PLAIN, 0 },
          128,
          128,
          TR_CUDA_SMALL_GEMM_PLAIN },
        { { TR_WEIGHT_INT4, TR_WEIGHT_PLAIN, 16 },
          128,
          128,
          TR_CUDA_SMALL_GEMM_PLAIN },
        { { TR_WEIGHT_INT4, TR_WEIGHT_PAIRS, 32 },
          128,
          128,
          TR_CUDA_SMALL_GEMM_RESIDUAL },
        { { TR_WEIGHT_FP8, TR_WEIGHT_EIGHTS, 0 },
          128,
          128,
          TR_CUDA_SMALL_GEMM_PLAIN },
        { { TR_WEIGHT_MXFP4, TR_WEIGHT_PLAIN, 32 },
          128,
          128,
          TR_CUDA_SMALL_GEMM_PLAIN },
        { { TR_WEIGHT_FORMATS, TR_WEIGHT_PLAIN, 0 },
          128,
          128,
          TR_CUDA_SMALL_GEMM_PLAIN },
        { { TR_WEIGHT_16, TR_WEIGHT_PAIRS, 0 },
          128,
          128,
          TR_CUDA_SMALL_GEMM_PLAIN },
    };
    array_t memory = array_new(1u << 20, 1, false);
    void *at = array_there(&memory);
    bool ok = true;

    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]) && ok; i++) {
        tr_cuda_small_gemm_t a = { .mode = wrong[i].mode,
                                   .rows = 1,
                                   .n = wrong[i].n,
                                   .k = wrong[i].k,
                                   .x = at,
                                   .w = at,
                                   .y = at,
                                   .ldx = wrong[i].k,
                                   .ldy = wrong[i].n,
                                   .hidden = at,
                                   .ldh = wrong[i].n,
                                   .weight = at,
                                   .form = wrong[i].form };
        tr_cuda_unpack_t u = { .n = wrong[i].n,
                               .k = wrong[i].k,
                               .form = wrong[i].form,
                               .w = at,
                               .out = at };
        bool mode = a.mode != TR_CUDA_SMALL_GEMM_PLAIN; /* alone is wrong */

        ok = tr_cuda_small_gemm(&side.stream, &a, 1, array_there(&meet))
                 == TR_KERNEL_BADARG
             && (mode || tr_cuda_unpack(&side.stream, &u) == TR_KERNEL_BADARG);
        if (!ok) {
            printf("wrong product %zu is not refused\n", i);
        }
    }
    array_free(&memory);
    return ok;
}

/* ---- layers of them ----------------------------------------------------- */

#define LAYERS 3
#define AGAIN 40
#define AGAIN_SLOW 5 /* where multiprocessors are few, they are in software */

typedef struct {
    uint32_t rows, hidden, inner, qkv;
    array_t w[LAYERS][4], weight;
    tr_weight_form_t form[LAYERS][4];
    array_t start, first, residual, x, q, mlp, squares;
} layers_t;

static tr_cuda_small_gemm_t
product_of(const layers_t *l, tr_cuda_small_gemm_mode_t mode, const array_t *w,
           const array_t *x, uint32_t n, uint32_t k, const array_t *y,
           uint32_t parts)
{
    size_t i = (size_t) (w - l->w[0]);

    return (tr_cuda_small_gemm_t){ .mode = mode,
                                   .rows = l->rows,
                                   .n = n,
                                   .k = k,
                                   .x = array_there(x),
                                   .w = array_there(w),
                                   .form = l->form[i / 4][i % 4],
                                   .y = array_there(y),
                                   .ldx = k,
                                   .ldy = mode == TR_CUDA_SMALL_GEMM_GATED
                                              ? n / 2
                                              : n,
                                   .squares = array_there(&l->squares),
                                   .parts = parts,
                                   .norm_n = l->hidden,
                                   .eps = 1e-5f,
                                   .hidden = array_there(&l->residual),
                                   .ldh = l->hidden,
                                   .weight = array_there(&l->weight),
                                   .squares_out = array_there(&l->squares) };
}

/* Chains of `first` products, then of `most`.  The attention between is left
 * out: the queries are its results. */
static void
layers_launch(const layers_t *l, uint32_t first, uint32_t most)
{
    const tr_device_props_t *d = &side.device;
    tr_cuda_small_gemm_t a[4 * LAYERS];
    uint32_t h = l->hidden, parts = 0, n = 0;

    for (int i = 0; i < LAYERS; i++) {
        a[n++] = product_of(l, TR_CUDA_SMALL_GEMM_PLAIN, &l->w[i][0], &l->x,
                            l->qkv, h, &l->q, parts);
        a[n++] = product_of(l, TR_CUDA_SMALL_GEMM_RESIDUAL, &l->w[i][1], &l->q,
                            h, l->qkv, &l->x, 0);
        parts = tr_cuda_small_gemm_parts(d, l->rows, h, l->qkv);
        a[n++] = product_of(l, TR_CUDA_SMALL_GEMM_GATED, &l->w[i][2], &l->x,
                            2 * l->inner, h, &l->mlp, parts);
        a[n++] = product_of(l, TR_CUDA_SMALL_GEMM_RESIDUAL, &l->w[i][3],
                            &l->mlp, h, l->inner, &l->x, 0);
        parts = tr_cuda_small_gemm_parts(d, l->rows, h, l->inner);
    }
    for (uint32_t at = 0, many = first; at < n; at += many) {
        many = at == 0 ? first : most < n - at ? most : n - at;
        if (tr_cuda_small_gemm(&side.stream, a + at, many, array_there(&meet))
            != TR_KERNEL_OK) {
            printf("small_gemm: %s\n", tr_cuda_reason());
            exit(1);
        }
        if (most == 1) {
            cuda_ok(cudaDeviceSynchronize(), "small_gemm");
        }
    }
}

static void
layers_reset(const layers_t *l)
{
    cuda_ok(cudaMemcpyAsync(array_there(&l->residual), array_there(&l->start),
                            (size_t) l->rows * l->hidden * 4,
                            cudaMemcpyDeviceToDevice, side.stream.stream),
            "copy");
    cuda_ok(cudaMemcpyAsync(array_there(&l->x), array_there(&l->first),
                            (size_t) l->rows * l->hidden * 2,
                            cudaMemcpyDeviceToDevice, side.stream.stream),
            "copy");
}

static uint64_t
layers_digest(const layers_t *l)
{
    uint8_t *p = array_fetch(&l->residual);
    uint64_t digest = 0;

    for (size_t i = 0; i < (size_t) l->rows * l->hidden * 4; i++) {
        digest = digest * 1099511628211u + p[i];
    }
    free(p);
    return digest;
}

static bool
layers_same(const layers_t *l)
{
    cudaGraphExec_t exec;
    cudaGraph_t graph;
    int again = side.device.blocks < 32 ? AGAIN_SLOW : AGAIN;
    uint64_t want;
    bool ok = true;

    layers_reset(l);
    layers_launch(l, 1, 1);
    want = layers_digest(l);
    cuda_ok(cudaStreamBeginCapture(side.stream.stream,
                                   cudaStreamCaptureModeThreadLocal),
            "capture");
    layers_launch(l, 1 + random_below(4), 2 + random_below(3));
    cuda_ok(cudaStreamEndCapture(side.stream.stream, &graph), "capture");
    cuda_ok(cudaGraphInstantiate(&exec, graph, 0), "graph");
    for (int i = 0; i < again && ok; i++) {
        layers_reset(l);
        cuda_ok(cudaGraphLaunch(exec, side.stream.stream), "graph");
        cuda_ok(cudaDeviceSynchronize(), "layers");
        ok = layers_digest(l) == want;
    }
    if (!ok) {
        printf("layers in a graph give other bits: rows %u, hidden %u, inner "
               "%u, qkv %u\n",
               l->rows, l->hidden, l->inner, l->qkv);
    }
    cuda_ok(cudaGraphExecDestroy(exec), "graph");
    cuda_ok(cudaGraphDestroy(graph), "graph");
    compared += (uint64_t) again * l->rows * l->hidden;
    return ok;
}

static bool
check_layers(void)
{
    layers_t l = { .rows = 1 + random_below(64),
                   .hidden = 64 * (1 + random_below(24)),
                   .inner = 64 * (1 + random_below(40)),
                   .qkv = 64 * (1 + random_below(30)) };
    static const tr_cuda_small_gemm_mode_t modes[] = {
        TR_CUDA_SMALL_GEMM_PLAIN, TR_CUDA_SMALL_GEMM_RESIDUAL,
        TR_CUDA_SMALL_GEMM_GATED, TR_CUDA_SMALL_GEMM_RESIDUAL
    };
    tr_weight_form_t form = forms[random_below(FORMS)];
    bool direct = random_below(2), ok;
    uint32_t n[4], k[4];

    if (direct) { /* chains of one packed form have a kernel of their own */
        l.rows = 1 + random_below(8);
    }
    side.device.few_fp8 = direct;
    if (random_below(3) == 0) {
        wide(&l.inner, &l.hidden);
        l.inner /= 128;
        l.inner *= 64;
    }
    with_residual(&l.rows, &l.hidden, l.qkv);
    with_residual(&l.rows, &l.hidden, l.inner);
    if (direct) { /* shapes that it has */
        l.hidden = l.hidden < 256 ? 256 : l.hidden / 128 * 128;
        l.inner = l.inner < 256 ? 256 : tr_pad(l.inner, 128);
        l.qkv = l.qkv < 256 ? 256 : tr_pad(l.qkv, 128);
    }
    n[0] = l.qkv, n[1] = n[3] = l.hidden, n[2] = 2 * l.inner;
    k[0] = k[2] = l.hidden, k[1] = l.qkv, k[3] = l.inner;
    for (int i = 0; i < LAYERS; i++) {
        for (int j = 0; j < 4; j++) {
            double size = 1 / sqrt((double) k[j]);

            do { /* few rows: one by one INT4 would have that kernel; FP8
                  * has not, being small */
                l.form[i][j] = direct ? ordered(form, modes[j])
                                      : any_form(modes[j], n[j], k[j]);
            } while (!direct && l.rows <= 8
                     && l.form[i][j].format == TR_WEIGHT_INT4);
            l.w[i][j] = l.form[i][j].format == TR_WEIGHT_16
                            ? numbers(n[j], k[j], k[j], TR_BF16, size)
                            : packed(l.form[i][j], n[j], k[j], size);
        }
    }
    l.weight = numbers(1, l.hidden, l.hidden, TR_F32, 1);
    l.first = numbers(l.rows, l.hidden, l.hidden, TR_BF16, 1);
    l.start = numbers(l.rows, l.hidden, l.hidden, TR_F32, 1);
    l.residual = array_new((size_t) l.rows * l.hidden, 4, false);
    l.x = array_new((size_t) l.rows * l.hidden, 2, false);
    l.q = array_new((size_t) l.rows * l.qkv, 2, false);
    l.mlp = array_new((size_t) l.rows * l.inner, 2, false);
    l.squares = array_new((size_t) l.rows * TR_CUDA_SMALL_GEMM_PARTS, 4, false);
    ok = layers_same(&l);
    for (int i = 0; i < LAYERS; i++) {
        for (int j = 0; j < 4; j++) {
            array_free(&l.w[i][j]);
        }
    }
    array_free(&l.weight);
    array_free(&l.start);
    array_free(&l.first);
    array_free(&l.residual);
    array_free(&l.x);
    array_free(&l.q);
    array_free(&l.mlp);
    array_free(&l.squares);
    return ok;
}

int
main(int argc, char **argv)
{
    uint32_t rounds, failed = 0;
    uint64_t seed;

    side_open(&side);
    rounds = argc > 1 ? (uint32_t) atoi(argv[1]) : 100;
    seed = argc > 2 ? strtoull(argv[2], NULL, 10) : (uint64_t) time(NULL);
    small = argc > 3;
    if (!tr_cuda_small_gemm_fits(&side.device, 4096, 4096)) {
        printf("small_gemm: not on this device\n");
        return 0;
    }
    meet = array_new(1, sizeof(uint32_t), false);
    memset(array_host(&meet), 0, sizeof(uint32_t));
    array_send(&meet);
    for (uint32_t r = 0; r < rounds; r++) {
        random_seed(seed + r);
        if (!check_one() || !check_unpack() || (r == 0 && !check_refused())
            || (r % 4 == 0 && !small && !check_layers())) {
            printf("FAILED: test_small_gemm 1 %llu%s\n",
                   (unsigned long long) (seed + r), small ? " small" : "");
            failed++;
        }
    }
    array_free(&meet);
    printf("small_gemm: %u rounds from seed %llu, %u failed; %llu numbers\n",
           rounds, (unsigned long long) seed, failed, compared);
    return failed != 0;
}
