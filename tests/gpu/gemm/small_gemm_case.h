/*
 * small_gemm_case.h: a product of random shape, magnitudes and form of weights for
 * test_small_gemm.c: its arrays, on the device and here, and its weights packed in
 * every form.
 */
#ifndef TR_TESTS_GPU_SMALL_GEMM_CASE_H
#define TR_TESTS_GPU_SMALL_GEMM_CASE_H

#include "tests/gpu/model/model_reference.h"
#include "tests/gpu/fixtures/arrays.h"

static side_t side;
static array_t meet;
static unsigned long long compared;
static bool small;

/* ---- arrays ------------------------------------------------------------- */

static array_t
numbers(size_t rows, uint32_t n, size_t ld, tr_dtype_t type, double scale)
{
    array_t a = array_new(rows * ld, tr_dtype_size(type), false);

    for (size_t r = 0; r < rows; r++) {
        for (uint32_t i = 0; i < n; i++) {
            tr_float_store(array_host(&a), r * ld + i, type,
                           (float) (random_normal() * scale));
        }
    }
    array_send(&a);
    return a;
}

static size_t
any_distance(uint32_t n)
{
    return random_below(2) ? n : n + 8 * random_below(9);
}

/* ---- packed weights ------------------------------------------------------- */

static const tr_weight_form_t forms[] = {
    { TR_WEIGHT_FP8, TR_WEIGHT_PLAIN, 0 },
    { TR_WEIGHT_FP8, TR_WEIGHT_PLAIN, 128 },
    { TR_WEIGHT_INT4, TR_WEIGHT_PLAIN, 32 },
    { TR_WEIGHT_INT4, TR_WEIGHT_PLAIN, 64 },
    { TR_WEIGHT_INT4, TR_WEIGHT_PLAIN, 128 }
};
#define FORMS ((uint32_t) (sizeof(forms) / sizeof(forms[0])))

/* The same form in an order for that mode. */
static tr_weight_form_t
ordered(tr_weight_form_t f, tr_cuda_small_gemm_mode_t mode)
{
    if (mode == TR_CUDA_SMALL_GEMM_GATED
        || (mode == TR_CUDA_SMALL_GEMM_PLAIN && random_below(2))) {
        f.order = TR_WEIGHT_PAIRS;
    }
    return f;
}

/* A form that kernels have, or that of 16 bits. */
static tr_weight_form_t
any_form(tr_cuda_small_gemm_mode_t mode, uint32_t n, uint32_t k)
{
    tr_weight_form_t f = forms[random_below(FORMS)];

    if (random_below(3) == 0 || !tr_weight_valid(f, n, k)) {
        return (tr_weight_form_t){ TR_WEIGHT_16, TR_WEIGHT_PLAIN, 0 };
    }
    return ordered(f, mode);
}

/* Random codes, all that are numbers, and scales that give weights of about the
 * magnitude `size`. */
static array_t
packed(tr_weight_form_t f, uint32_t n, uint32_t k, double size)
{
    array_t a = array_new(tr_weight_bytes(f, n, k), 1, false);
    uint8_t *codes = array_host(&a);
    uint8_t *scales = codes + tr_weight_code_bytes(f, n, k);
    double most = f.format == TR_WEIGHT_FP8 ? 50 : 6;

    for (size_t i = 0; i < tr_weight_code_bytes(f, n, k); i++) {
        codes[i] = (uint8_t) random_below(256);
        if (f.format == TR_WEIGHT_FP8 && (codes[i] & 0x7f) == 0x7f) {
            codes[i] ^= 1u << random_below(7);
        }
    }
    for (size_t i = 0; i < (size_t) tr_weight_groups(f, k) * n; i++) {
        tr_weight_scale_put(f, scales + 4 * i, 0, 0,
                            (float) (size / most * (0.5 + random_unit())),
                            random_below(16));
    }
    array_send(&a);
    return a;
}

/* Rows that may differ by the rounding to their type and by `slack` of `least`,
 * the magnitude of what was added up. */
static bool
close(const array_t *a, uint32_t rows, uint32_t n, size_t ld, tr_dtype_t type,
      double slack, const char *what)
{
    uint8_t *got = array_fetch(a);
    double step = type == TR_F32 ? 0x1p-20 : 0x1p-7;
    bool ok = true;

    for (size_t i = 0; i < rows * ld && ok; i++) {
        double x = (double) tr_float_load(array_host(a), i, type);
        double y = (double) tr_float_load(got, i, type);

        ok = i % ld >= n ? isnan(y) : fabs(x - y) <= fabs(x) * step + slack;
        if (!ok) {
            printf("%s: row %zu, column %zu is %g, expected %g\n", what, i / ld,
                   i % ld, y, x);
        }
    }
    compared += rows * ld;
    free(got);
    return ok;
}

/* ---- one product -------------------------------------------------------- */

typedef struct {
    tr_cuda_small_gemm_t a;
    array_t x, w, y, squares, hidden, bias, weight, squares_out;
    double slack;
    bool scaled, biased, last;
} case_t;

static void
case_point(case_t *c, void *(*of)(const array_t *) )
{
    tr_cuda_small_gemm_t *a = &c->a;

    a->x = of(&c->x), a->w = of(&c->w), a->y = c->last ? NULL : of(&c->y);
    a->squares = of(&c->squares), a->hidden = of(&c->hidden);
    a->bias = c->biased ? of(&c->bias) : NULL, a->weight = of(&c->weight);
    a->squares_out = of(&c->squares_out);
}

/* Rows or columns of w: 64 to so many times that. */
static uint32_t
many(uint32_t most)
{
    return 64 * (1 + random_below(small && most > 4 ? 4 : most));
}

/* So many rows of w that blocks have tiles of their own, and more than one. */
static void
wide(uint32_t *n, uint32_t *k)
{
    *n = tr_pad(side.device.blocks * (112 + random_below(204)), 64);
    *k = 64 * (1 + random_below(4));
}

/* Makes the product one that the kernel has: with a residual, clusters have a
 * tile each, so few multiprocessors have fewer rows of w. */
static void
with_residual(uint32_t *rows, uint32_t *n, uint32_t k)
{
    if (tr_cuda_small_gemm_parts(&side.device, *rows, *n, k) == 0) {
        *rows = *rows < 32 ? *rows : 32;
    }
    while (tr_cuda_small_gemm_parts(&side.device, *rows, *n, k) == 0) {
        *n = *n / 128 * 64;
    }
}

static void
case_open(case_t *c)
{
    static const uint32_t rows[] = { 1, 7, 8, 9, 16, 17, 32, 33, 64 };
    tr_cuda_small_gemm_t *a = &c->a;
    double scale = pow(10, random_unit() * 8 - 6), w = 0.02 + random_unit();

    memset(c, 0, sizeof(*c));
    a->mode = (tr_cuda_small_gemm_mode_t) random_below(3);
    a->rows = random_below(2) ? rows[random_below(9)] : 1 + random_below(64);
    a->n = many(random_below(4) ? 20 : 120);
    a->k = many(random_below(4) ? 16 : 60);
    if (random_below(3) == 0) { /* of few rows, without a ring */
        a->rows = 1 + random_below(8);
        a->k = tr_pad(a->k, 128);
    }
    if (a->mode == TR_CUDA_SMALL_GEMM_GATED) { /* silu is not linear */
        scale = pow(10, random_unit() * 2 - 1);
    }
    if (a->mode != TR_CUDA_SMALL_GEMM_RESIDUAL && !small
        && random_below(6) == 0) {
        wide(&a->n, &a->k);
    }
    if (a->mode == TR_CUDA_SMALL_GEMM_RESIDUAL) {
        with_residual(&a->rows, &a->n, a->k);
    }
    a->ldx = any_distance(a->k);
    a->ldy = any_distance(a->mode == TR_CUDA_SMALL_GEMM_GATED ? a->n / 2
                                                              : a->n);
    a->ldh = any_distance(a->n);
    a->norm_n = a->k;
    a->eps = 1e-6f;
    c->scaled = a->mode != TR_CUDA_SMALL_GEMM_RESIDUAL && random_below(2);
    a->parts = c->scaled ? 1 + random_below(40) : 0;
    c->biased = random_below(2);
    c->last = a->mode == TR_CUDA_SMALL_GEMM_RESIDUAL && random_below(4) == 0;
    c->x = numbers(a->rows, a->k, a->ldx, TR_BF16, scale);
    a->form = any_form(a->mode, a->n, a->k);
    c->w = a->form.format == TR_WEIGHT_16
               ? numbers(a->n, a->k, a->k, TR_BF16, w)
               : packed(a->form, a->n, a->k, w);
    c->y = array_new(a->rows * a->ldy, 2, false);
    c->squares = numbers(a->rows, a->parts + 1, a->parts + 1, TR_F32, 1);
    for (uint32_t i = 0; i < a->rows * a->parts; i++) { /* mean near 1 */
        float *s = array_host(&c->squares);

        s[i] = s[i] * s[i] * (float) a->k / (float) a->parts;
    }
    array_send(&c->squares);
    c->hidden = numbers(a->rows, a->n, a->ldh, TR_F32, scale);
    c->bias = numbers(1, a->n, a->n, TR_F32, scale);
    c->weight = numbers(1, a->n, a->n, TR_F32, 1);
    c->squares_out = array_new((size_t) a->rows * TR_CUDA_SMALL_GEMM_PARTS, 4,
                               false);
    /* codes are larger than what is random in 16 bits, at times */
    c->slack = (a->form.format == TR_WEIGHT_16 ? 2e-5 : 6e-5) * scale * w
               * sqrt(a->k);
}

static void
case_close(case_t *c)
{
    array_free(&c->x);
    array_free(&c->w);
    array_free(&c->y);
    array_free(&c->squares);
    array_free(&c->hidden);
    array_free(&c->bias);
    array_free(&c->weight);
    array_free(&c->squares_out);
}

#endif
