/*
 * Products of 8 bits by 8 bits (device_fp8.h) against plain C.
 *
 *   test_fp8_gemm [rounds [seed]]
 *
 * The reference rounds to the nearest code that there is, zeros to zeros.  Random
 * shapes and magnitudes, scales of rows and of blocks, plain and gated, NaN
 * wherever nothing was written.  Codes of rounded rows are equal, bit by bit;
 * products are near what double gives of those codes; a row gives the same bits
 * whatever the others hold, and however many there are.
 */
#include <cuda_runtime_api.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "tests/gpu/model/model_reference.h"
#include "tests/gpu/fixtures/arrays.h"

static side_t side;
static unsigned long long compared;

typedef struct {
    tr_cuda_fp8_round_t round;
    tr_cuda_fp8_gemm_t gemm;
    array_t x, codes, scales, w, y;
} case_t;

static void
case_point(case_t *c, void *(*of)(const array_t *) )
{
    c->round.x = of(&c->x);
    c->round.to.codes = of(&c->codes);
    c->round.to.scales = of(&c->scales);
    c->gemm.x = c->round.to;
    c->gemm.w = of(&c->w);
    c->gemm.y = of(&c->y);
}

/* Rows of any magnitude, some of them zeros, with a few large columns. */
static void
fill_rows(case_t *c, uint32_t first)
{
    const tr_cuda_fp8_round_t *a = &c->round;

    for (uint32_t r = first; r < a->rows; r++) {
        double size = random_below(9) ? pow(10, random_unit() * 6 - 3) : 0;

        for (uint32_t i = 0; i < a->k; i++) {
            double large = random_below(200) ? 1 : 30;

            tr_float_store(array_host(&c->x), r * a->ldx + i, TR_BF16,
                           (float) (random_normal() * size * large));
        }
    }
    array_send(&c->x);
}

static void
fill_weights(case_t *c)
{
    const tr_cuda_fp8_gemm_t *a = &c->gemm;
    uint8_t *codes = array_host(&c->w);
    size_t n = tr_weight_code_bytes(a->form, a->n, a->k);
    uint32_t groups = tr_weight_groups(a->form, a->k);

    for (size_t i = 0; i < n; i++) {
        codes[i] = (uint8_t) random_below(256);
        if ((codes[i] & 0x7f) == 0x7f) {
            codes[i] ^= 1u << random_below(7);
        }
    }
    for (size_t i = 0; i < (size_t) groups * a->n; i++) {
        tr_weight_scale_put(a->form, codes + n + 4 * i, 0, 0,
                            (float) (0.002 * (0.2 + random_unit())), 0);
    }
    array_send(&c->w);
}

static void
case_open(case_t *c)
{
    static const uint32_t rows[] = { 1, 63, 64, 127, 128, 129, 256, 257 };
    tr_cuda_fp8_gemm_t *a = &c->gemm;
    tr_cuda_fp8_round_t *x = &c->round;

    memset(c, 0, sizeof(*c));
    a->gated = random_below(2);
    a->rows = random_below(2) ? rows[random_below(8)] : 1 + random_below(400);
    a->n = 64 * (1 + random_below(random_below(3) ? 7 : 40));
    a->k = 128 * (1 + random_below(random_below(3) ? 8 : 30));
    a->form.format = TR_WEIGHT_FP8;
    a->form.group = random_below(2) ? 0 : 128;
    a->form.order = a->gated || random_below(2) ? TR_WEIGHT_PAIRS
                                                : TR_WEIGHT_PLAIN;
    a->ldy = (a->gated ? a->n / 2 : a->n) + 8 * random_below(3);
    x->rows = a->rows;
    x->k = a->k;
    x->blocks = a->form.group != 0;
    x->ldx = a->k + 8 * random_below(3);
    x->to.ld = tr_pad(a->rows, TR_FP8_PAD) + TR_FP8_PAD * random_below(2);
    c->x = array_new(a->rows * x->ldx, 2, false);
    c->codes = array_new((size_t) a->rows * a->k, 1, false);
    c->scales = array_new(x->blocks ? a->k / TR_FP8_BLOCK * x->to.ld : a->rows,
                          4, false);
    c->w = array_new(tr_weight_bytes(a->form, a->n, a->k), 1, false);
    c->y = array_new(a->rows * a->ldy, 2, false);
    fill_rows(c, 0);
    fill_weights(c);
}

static void
case_close(case_t *c)
{
    array_free(&c->x);
    array_free(&c->codes);
    array_free(&c->scales);
    array_free(&c->w);
    array_free(&c->y);
}

/* ---- comparisons ---------------------------------------------------------- */

/* Sums of a row differ by a share of what was added up: of its root mean square
 * (a gate may be large where another one is nothing).  Tensor cores keep some 14
 * bits of 128 products' sum: gated, what a gate has lost is multiplied by a number
 * that may be several times the mean, and 5e-3 has been seen on an H100. */
static bool
close(const case_t *c)
{
    const tr_cuda_fp8_gemm_t *a = &c->gemm;
    uint32_t n = a->gated ? a->n / 2 : a->n;
    uint8_t *got = array_fetch(&c->y);
    bool ok = true;

    for (uint32_t r = 0; r < a->rows && ok; r++) {
        double squares = 0, slack;

        for (uint32_t i = 0; i < n; i++) {
            double x = (double) tr_float_load(array_host(&c->y), r * a->ldy + i,
                                              TR_BF16);

            squares += x * x;
        }
        slack = (a->gated ? 1e-2 : 2e-3) * sqrt(squares / n);
        for (uint32_t i = 0; i < a->ldy && ok; i++) {
            double x = (double) tr_float_load(array_host(&c->y), r * a->ldy + i,
                                              TR_BF16);
            double y = (double) tr_float_load(got, r * a->ldy + i, TR_BF16);

            ok = i >= n ? isnan(y) : fabs(x - y) <= fabs(x) * 0x1p-7 + slack;
            if (!ok) {
                printf("row %u, column %u is %g, expected %g (%u x %u x %u, "
                       "%s%s)\n",
                       r, i, y, x, a->rows, a->n, a->k,
                       a->gated ? "gated" : "plain",
                       a->form.group ? ", blocks" : "");
            }
        }
    }
    compared += a->rows * a->ldy;
    free(got);
    return ok;
}

static bool
same_bits(const array_t *a, const void *got, size_t bytes, const char *what)
{
    bool ok = memcmp(array_host(a), got, bytes) == 0;

    if (!ok) {
        printf("%s differ\n", what);
    }
    return ok;
}

/* Codes, and those scales that rows have. */
static bool
rounded(const case_t *c)
{
    const tr_cuda_fp8_round_t *a = &c->round;
    uint8_t *codes = array_fetch(&c->codes), *scales = array_fetch(&c->scales);
    bool ok = same_bits(&c->codes, codes, (size_t) a->rows * a->k, "codes");

    for (uint32_t i = 0; i < (a->blocks ? a->k / TR_FP8_BLOCK : 1); i++) {
        size_t at = i * a->to.ld * 4;

        ok = ok
             && memcmp((uint8_t *) array_host(&c->scales) + at, scales + at,
                       a->rows * 4)
                    == 0;
    }
    compared += (size_t) a->rows * a->k;
    free(codes);
    free(scales);
    return ok;
}

static void
launch(case_t *c)
{
    case_point(c, array_there);
    side_launch(&side, tr_cuda_fp8_round(&side.stream, &c->round), "fp8_round");
    side_launch(&side, tr_cuda_fp8_gemm(&side.stream, &c->gemm), "fp8_gemm");
}

/* The first rows again, fewer of them or the others being NaN. */
static bool
case_among_others(case_t *c)
{
    uint32_t rows = c->gemm.rows, kept = 1 + random_below(rows);
    size_t bytes = ((kept - 1) * c->gemm.ldy
                    + (c->gemm.gated ? c->gemm.n / 2 : c->gemm.n))
                   * 2;
    uint8_t *before = array_fetch(&c->y), *after;
    bool ok;

    if (random_below(2)) {
        c->round.rows = c->gemm.rows = kept;
    } else {
        fill_rows(c, kept);
        for (uint32_t i = kept; i < rows; i++) {
            tr_float_store(array_host(&c->x), i * c->round.ldx, TR_BF16, NAN);
        }
        array_send(&c->x);
    }
    launch(c);
    after = array_fetch(&c->y);
    ok = memcmp(before, after, bytes) == 0;
    if (!ok) {
        printf("%u of %u rows have other bits\n", kept, rows);
    }
    free(before);
    free(after);
    return ok;
}

static bool
check_one(void)
{
    case_t c;
    bool ok;

    case_open(&c);
    launch(&c);
    case_point(&c, array_host);
    ok = tr_ref_fp8_round(&c.round) == TR_KERNEL_OK
         && tr_ref_fp8_gemm(&c.gemm) == TR_KERNEL_OK && rounded(&c) && close(&c)
         && case_among_others(&c);
    case_close(&c);
    return ok;
}

/* ---- the reference -------------------------------------------------------- */

/* No code is nearer to x; the scale of a row with the largest number is 1. */
static bool
nearest(uint8_t code, float x)
{
    double apart = fabs((double) tr_weight_from_e4m3(code) - (double) x);

    for (uint32_t other = 0; other < 256; other++) {
        if ((other & 0x7f) != 0x7f
            && fabs((double) tr_weight_from_e4m3(other) - (double) x) < apart) {
            printf("%g has code %u, %u is nearer\n", (double) x, code, other);
            return false;
        }
    }
    return true;
}

/* A row that begins with the largest: all codes' numbers, zeros, and others. */
static bool
check_reference(void)
{
    _Alignas(16) uint16_t x[384];
    _Alignas(16) uint8_t codes[384];
    _Alignas(16) float scale = 0;
    const tr_cuda_fp8_round_t a = {
        .rows = 1, .k = 384, .x = x, .ldx = 384, .to = { codes, &scale, 0 }
    };
    bool ok;

    for (uint32_t i = 0; i < 384; i++) {
        float v = i < 256 ? tr_weight_from_e4m3(i)
                          : (float) (random_normal() * pow(2, -(int) i % 20));

        tr_float_store(x, i, TR_BF16,
                       i % 128 == 127 ? TR_FP8_MOST : fminf(v, TR_FP8_MOST));
    }
    ok = tr_ref_fp8_round(&a) == TR_KERNEL_OK && scale == 1;
    for (uint32_t i = 0; i < 384 && ok; i++) {
        ok = nearest(codes[tr_fp8_place(i)], tr_float_load(x, i, TR_BF16));
    }
    return ok;
}

/* ---- what is refused ------------------------------------------------------ */

static bool
check_refused(void)
{
    case_t c;
    bool ok = true;

    case_open(&c);
    case_point(&c, array_there);
    for (int i = 0; i < 8 && ok; i++) {
        tr_cuda_fp8_gemm_t a = c.gemm;

        switch (i) {
        case 0:
            a.k += 64;
            break;
        case 1:
            a.n += 16;
            break;
        case 2:
            a.ldy = 8 * ((a.gated ? a.n / 2 : a.n) / 8 - 1);
            break;
        case 3:
            a.form.format = TR_WEIGHT_INT4;
            break;
        case 4:
            a.w = (const uint8_t *) a.w + 8;
            break;
        case 5:
            a.x.codes = NULL;
            break;
        case 6:
            a.gated = true;
            a.form.order = TR_WEIGHT_PLAIN;
            break;
        default:
            a.gated = true;
            a.act = TR_ACT_OAI;
            break;
        }
        ok = tr_cuda_fp8_gemm(&side.stream, &a) == TR_KERNEL_BADARG;
        if (!ok) {
            printf("case %d is not refused\n", i);
        }
    }
    c.round.k += 64;
    ok = ok && tr_cuda_fp8_round(&side.stream, &c.round) == TR_KERNEL_BADARG;
    case_close(&c);
    return ok;
}

int
main(int argc, char **argv)
{
    const tr_weight_form_t fp8 = { TR_WEIGHT_FP8, TR_WEIGHT_PLAIN, 0 };
    uint32_t rounds, failed = 0;
    uint64_t seed;

    side_open(&side);
    rounds = argc > 1 ? (uint32_t) atoi(argv[1]) : 60;
    seed = argc > 2 ? strtoull(argv[2], NULL, 10) : (uint64_t) time(NULL);
    if (!tr_cuda_fp8_fits(&side.device, fp8, 4096, 4096)) {
        printf("fp8_gemm: not on this device\n");
        return 0;
    }
    for (uint32_t r = 0; r < rounds; r++) {
        random_seed(seed + r);
        if (!check_reference() || !check_one()
            || (r == 0 && !check_refused())) {
            printf("FAILED: test_fp8_gemm 1 %llu\n",
                   (unsigned long long) (seed + r));
            failed++;
        }
    }
    printf("fp8_gemm: %u rounds from seed %llu, %u failed; %llu numbers\n",
           rounds, (unsigned long long) seed, failed, compared);
    return failed != 0;
}
