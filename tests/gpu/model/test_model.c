/*
 * A layer's small kernels against plain C (model_reference.h): odd sizes and
 * addresses, magnitudes from 1e-6 to 1e4, NaN in all padding; one row alone
 * gives the bits that it gives among others.
 *
 *   test_model [rounds [seed]]
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "kernels/hadamard.h"
#include "model_reference.h"
#include "tests/gpu/fixtures/arrays.h"

static side_t side;
static unsigned long long compared;

/* ---- random cases ------------------------------------------------------- */

static tr_dtype_t
any_type(void)
{
    return random_below(2) ? TR_F16 : TR_BF16;
}

/* Multiples of 8 more often than not. */
static uint32_t
any_width(uint32_t most)
{
    uint32_t n = 1 + random_below(most);

    return random_below(3) == 0 ? n : (n + 7) / 8 * 8;
}

static size_t
any_distance(uint32_t n)
{
    return random_below(2) ? n : n + random_below(random_below(2) ? 3 : 65);
}

static double
any_scale(void)
{
    return pow(10, random_unit() * 10 - 6);
}

/* [rows][n] at distances of ld, of numbers with a magnitude. */
static array_t
numbers(uint32_t rows, uint32_t n, size_t ld, tr_dtype_t type, double scale,
        bool odd)
{
    array_t a = array_new(rows * ld, tr_dtype_size(type), odd);

    for (uint32_t r = 0; r < rows; r++) {
        for (uint32_t i = 0; i < n; i++) {
            tr_float_store(array_host(&a), r * ld + i, type,
                           (float) (random_normal() * scale));
        }
    }
    array_send(&a);
    return a;
}

/* ---- comparison --------------------------------------------------------- */

/* What is beyond FP16 counts as its limit. */
static double
value(const void *p, size_t i, tr_dtype_t type)
{
    double x = (double) tr_float_load(p, i, type);

    return type == TR_F16 && fabs(x) > 65504 ? copysign(65536, x) : x;
}

/* Rows that may differ by the rounding to their type, and by `slack` of the
 * largest number of the row; padding must be as it was. */
static bool
rows_close(const array_t *a, uint32_t rows, size_t ld, tr_dtype_t type,
           double slack, const char *what)
{
    uint8_t *got = array_fetch(a);
    const void *want = array_host(a);
    double step = type == TR_F32 ? 0 : type == TR_F16 ? 0x1p-10 : 0x1p-7;
    double least = 0;
    bool ok = true;

    for (size_t i = 0; i < rows * ld && ok; i++) {
        size_t first = i / ld * ld;
        double x = value(want, i, type), y = value(got, i, type), most = 0;

        for (size_t j = first; i == first && j < first + ld; j++) {
            double z = fabs(value(want, j, type));

            most = z > most ? z : most; /* not NaN */
        }
        if (i == first) {
            least = most * slack + (type == TR_F16 ? 0x1p-24 : 1e-38);
        }
        if (isnan(x) ? !isnan(y) : !(fabs(x - y) <= fabs(x) * step + least)) {
            printf("%s: row %zu, column %zu is %g, expected %g\n", what, i / ld,
                   i % ld, y, x);
            ok = false;
        }
    }
    compared += rows * ld;
    free(got);
    return ok;
}

/* ---- embedding ---------------------------------------------------------- */

static bool
check_embed(void)
{
    enum { SLOTS = 5, LEN = 37 };
    uint32_t rows = 1 + random_below(9), vocab = 1 + random_below(50);
    uint32_t late = random_below(2) * 3; /* positions beyond the end */
    tr_cuda_embed_t a = { .rows = rows,
                          .vocab = vocab,
                          .hidden = any_width(600),
                          .scale = random_below(2) ? 1 : 5.5f,
                          .type = any_type() };
    bool odd = random_below(3) == 0, known = random_below(8) > 0, ok;
    array_t token = array_new(rows, 4, false);
    array_t slot = array_new(rows, 4, false);
    array_t pos = array_new(rows, 4, false);
    array_t history = array_new(SLOTS * LEN, 4, false), table, out;

    a.ldo = any_distance(a.hidden);
    table = numbers(vocab, a.hidden, a.hidden, a.type, any_scale(), odd);
    out = array_new(rows * a.ldo, 4, odd);
    for (uint32_t i = 0; i < SLOTS * LEN; i++) {
        ((int32_t *) array_host(
            &history))[i] = (int32_t) random_below(vocab + 3) - 1;
    }
    for (uint32_t r = 0; r < rows; r++) { /* positions of a slot are distinct */
        ((int32_t *) array_host(&token))[r] = (int32_t) random_below(vocab + 3)
                                              - 1 - (int32_t) random_below(2);
        ((int32_t *) array_host(&slot))[r] = (int32_t) random_below(SLOTS + 1)
                                             - 1;
        ((uint32_t *) array_host(&pos))[r] = r * 4 + late + random_below(4);
    }
    array_send(&token);
    array_send(&slot);
    array_send(&pos);
    array_send(&history);
#define EMBED(of)                                                        \
    a.token = of(&token), a.row_slot = of(&slot), a.row_pos = of(&pos),  \
    a.history = (tr_cuda_history_t){ known ? of(&history) : NULL, LEN }, \
    a.table = of(&table), a.out = of(&out)
    EMBED(array_there);
    side_launch(&side, tr_cuda_embed(&side.stream, &a), "embed");
    EMBED(array_host);
    tr_ref_embed(&a);
    ok = array_same(&out, "embed") && array_same(&history, "history");
    array_free(&token);
    array_free(&slot);
    array_free(&pos);
    array_free(&history);
    array_free(&table);
    array_free(&out);
    return ok;
}

/* ---- angles ------------------------------------------------------------- */

static bool
check_angles(void)
{
    uint32_t rows = 1 + random_below(9), half = 8 * (1 + random_below(16));
    double base = pow(10, 2 + random_unit() * 5);
    array_t pos = array_new(rows, 4, false);
    array_t inv = array_new(half, 4, false);
    array_t far = array_new(half, 4, false), amp = array_new(half, 4, false);
    array_t is_long = array_new(rows, 1, true);
    array_t out = array_new(rows * 2 * half, 4, false);
    bool stretched = random_below(2), loud = random_below(2), ok;
    tr_cuda_angles_t a = { .rows = rows,
                           .half = half,
                           .temp = random_below(2) ? 0 : 0.1f,
                           .temp_original = 1 + random_below(4096) };

    for (uint32_t i = 0; i < half; i++) {
        float f = (float) pow(base, -(double) i / half);

        ((float *) array_host(&inv))[i] = f;
        ((float *) array_host(&far))[i] = f / (float) (1 + random_below(9));
        ((float *) array_host(&amp))[i] = (float) (0.5 + random_unit());
    }
    for (uint32_t r = 0; r < rows; r++) {
        ((uint32_t *) array_host(&pos))[r] = random_below(1u
                                                          << random_below(18));
        ((uint8_t *) array_host(&is_long))[r] = random_below(2);
    }
    array_send(&pos);
    array_send(&inv);
    array_send(&far);
    array_send(&amp);
    array_send(&is_long);
#define ANGLES(of)                                                           \
    a.row_pos = of(&pos), a.inv_freq = of(&inv), a.inv_freq_long = of(&far), \
    a.row_long = stretched ? of(&is_long) : NULL,                            \
    a.amp = loud ? of(&amp) : NULL, a.angles = of(&out)
    ANGLES(array_there);
    side_launch(&side, tr_cuda_rope_angles(&side.stream, &a), "angles");
    ANGLES(array_host);
    tr_ref_rope_angles(&a);
    ok = rows_close(&out, rows, 2 * half, TR_F32,
                    loud || a.temp ? 1e-6 : 1.2e-7, "angles");
    array_free(&pos);
    array_free(&inv);
    array_free(&far);
    array_free(&amp);
    array_free(&is_long);
    array_free(&out);
    return ok;
}

/* ---- norm --------------------------------------------------------------- */

typedef struct {
    tr_cuda_norm_t a;
    uint32_t hidden_rows;
    array_t hidden, delta, bias, post, weight, gather, out;
    bool with_delta, with_bias, gathered, with_post, as_is;
} norm_case_t;

static void
norm_open(norm_case_t *c)
{
    bool odd = random_below(4) == 0;
    double scale = any_scale();
    uint32_t n = any_width(random_below(4) ? 300 : 20000);

    memset(c, 0, sizeof(*c));
    c->a.rows = 1 + random_below(6);
    c->a.n = n;
    c->a.type = any_type();
    c->a.eps = random_below(2) ? 1e-5f : 1e-6f;
    c->a.ldh = any_distance(n);
    c->a.ldd = any_distance(n);
    c->a.ldo = any_distance(n);
    c->with_delta = random_below(3) > 0;
    c->with_bias = random_below(2);
    c->gathered = random_below(3) == 0;
    c->with_post = c->with_delta && random_below(3) == 0;
    c->as_is = random_below(4) == 0;
    c->a.scale = random_below(3) ? 1 : 0.22f;
    c->hidden_rows = c->gathered ? 1 + random_below(9) : c->a.rows;
    c->hidden = numbers(c->hidden_rows, n, c->a.ldh, TR_F32, scale, odd);
    c->delta = numbers(c->hidden_rows, n, c->a.ldd, c->a.type, scale, odd);
    c->bias = numbers(1, n, n, TR_F32, scale, odd);
    c->post = numbers(1, n, n, TR_F32, 1, odd);
    c->weight = numbers(1, n, n, TR_F32, 1, odd);
    c->gather = array_new(c->a.rows, 4, false);
    c->a.full = random_below(4) == 0;
    c->out = array_new(c->a.rows * c->a.ldo, c->a.full ? 4 : 2, odd);
    for (uint32_t i = 0; i < c->a.rows; i++) {
        ((uint32_t *) array_host(&c->gather))[i] = random_below(c->hidden_rows);
    }
    array_send(&c->gather);
}

static void
norm_close(norm_case_t *c)
{
    array_free(&c->hidden);
    array_free(&c->delta);
    array_free(&c->bias);
    array_free(&c->post);
    array_free(&c->weight);
    array_free(&c->gather);
    array_free(&c->out);
}

static void
norm_point(norm_case_t *c, void *(*of)(const array_t *) )
{
    c->a.hidden = of(&c->hidden);
    c->a.delta = c->with_delta ? of(&c->delta) : NULL;
    c->a.bias = c->with_bias ? of(&c->bias) : NULL;
    c->a.post_weight = c->with_post ? of(&c->post) : NULL;
    c->a.weight = c->as_is ? NULL : of(&c->weight);
    c->a.gather = c->gathered ? of(&c->gather) : NULL;
    c->a.out = of(&c->out);
}

static void
norm_run(const tr_cuda_norm_t *a)
{
    side_launch(&side, tr_cuda_norm(&side.stream, a), "norm");
}

/* The last row alone, from the hidden state that is already summed. */
static bool
norm_alone(norm_case_t *c)
{
    uint8_t *first = array_fetch(&c->out), *again;
    tr_cuda_norm_t a = c->a;
    size_t size = a.full ? 4 : 2, row = a.rows - 1, at = row * a.ldo * size;
    bool same;

    a.rows = 1;
    a.out = (uint8_t *) a.out + at;
    a.gather = a.gather ? a.gather + row : NULL;
    if (!c->gathered) {
        a.hidden += row * a.ldh;
        a.delta = NULL;
        a.post_weight = NULL;
    }
    norm_run(&a);
    again = array_fetch(&c->out);
    same = memcmp(first + at, again + at, a.n * size) == 0;
    if (!same) {
        printf("norm: a row alone has other bits\n");
    }
    free(first);
    free(again);
    return same;
}

static bool
check_norm(void)
{
    norm_case_t c;
    bool plain, ok;

    norm_open(&c);
    norm_point(&c, array_there);
    norm_run(&c.a);
    norm_point(&c, array_host);
    tr_ref_norm(&c.a);
    /* else sums are formed in another order */
    plain = !c.with_delta
            || (!c.with_post && !c.as_is && !c.a.full && c.a.scale == 1);
    ok = (plain ? array_same(&c.hidden, "hidden")
                : rows_close(&c.hidden, c.hidden_rows, c.a.ldh, TR_F32, 1e-5,
                             "hidden"))
         && rows_close(&c.out, c.a.rows, c.a.ldo, c.a.full ? TR_F32 : c.a.type,
                       plain && !c.a.full ? 0 : 1e-5, "norm");
    norm_point(&c, array_there);
    ok = ok && norm_alone(&c);
    if (!ok) {
        printf("rows %u, n %u, delta %d, bias %d, gather %d, post %d, as is "
               "%d, full %d, scale %g\n",
               c.a.rows, c.a.n, c.with_delta, c.with_bias, c.gathered,
               c.with_post, c.as_is, c.a.full, c.a.scale);
    }
    norm_close(&c);
    return ok;
}

/* ---- pooling ------------------------------------------------------------ */

/* Rows of items, some without any, that come in pieces of any size. */
static bool
check_pool(void)
{
    enum { ITEMS = 7 };
    tr_cuda_pool_t a = { .items = 1 + random_below(ITEMS),
                         .n = any_width(700) };
    bool odd = random_below(4) == 0, ok;
    double scale = any_scale();
    array_t x, first = array_new(a.items + 1, 4, false), out;
    uint32_t rows = 0, piece;

    for (uint32_t i = 0; i < a.items; i++) {
        ((uint32_t *) array_host(&first))[i] = rows;
        rows += i != 0 && random_below(3) == 0 ? 0 : 1 + random_below(20);
    }
    ((uint32_t *) array_host(&first))[a.items] = rows;
    array_send(&first);
    a.ldx = any_distance(a.n);
    a.ldo = any_distance(a.n);
    x = numbers(rows, a.n, a.ldx, TR_F32, scale, odd);
    out = array_new(a.items * a.ldo, 4, odd);
    piece = 1 + random_below(rows + 1);
    for (a.at = 0; a.at < rows; a.at += piece) {
        a.rows = rows - a.at < piece ? rows - a.at : piece;
#define POOL(of)                                          \
    a.x = (const float *) of(&x) + (size_t) a.at * a.ldx, \
    a.first = of(&first), a.out = of(&out)
        POOL(array_there);
        side_launch(&side, tr_cuda_pool(&side.stream, &a), "pool");
        POOL(array_host);
        tr_ref_pool(&a);
    }
    ok = array_same(&out, "pool");
    if (!ok) {
        printf("items %u, n %u, rows %u, piece %u\n", a.items, a.n, rows,
               piece);
    }
    array_free(&x);
    array_free(&first);
    array_free(&out);
    return ok;
}

/* ---- queries, keys, values ---------------------------------------------- */

static bool
check_qkv(void)
{
    static const uint32_t dims[] = { 16, 64, 80, 96, 112, 128, 256 };
    uint32_t dim = dims[random_below(7)], rows = 1 + random_below(9);
    tr_cuda_qkv_t a = { .rows = rows,
                        .heads = 1 + random_below(9),
                        .kv_heads = 1 + random_below(4),
                        .head_dim = dim,
                        .type = any_type(),
                        .eps = 1e-6f,
                        .hadamard = tr_hadamard_has(dim) && random_below(2) };
    uint32_t n = (a.heads + 2 * a.kv_heads) * dim;
    bool odd = random_below(4) == 0, bias = random_below(2), ok;
    bool norm = random_below(2), keys = a.hadamard || random_below(2);
    bool shift = keys && random_below(2);
    double scale = any_scale();
    array_t x, b, q, k, angles, turns, c;

    a.ld = any_distance(n);
    x = numbers(rows, n, a.ld, a.type, scale, odd);
    b = numbers(1, n, n, TR_F32, scale, odd);
    q = numbers(1, dim, dim, TR_F32, 1, odd);
    k = numbers(1, dim, dim, TR_F32, 1, odd);
    angles = numbers(rows, dim, dim, TR_F32, 0.7, odd);
    turns = numbers(rows, dim, dim, TR_F32, 0.7, odd);
    c = numbers(1, n, n, TR_F32, scale, odd);
#define QKV(of)                                                       \
    a.qkv = of(&x), a.bias = bias ? of(&b) : NULL,                    \
    a.q_norm = norm ? of(&q) : NULL, a.k_norm = norm ? of(&k) : NULL, \
    a.angles = of(&angles), a.key_angles = keys ? of(&turns) : NULL,  \
    a.key_shift = shift ? of(&c) : NULL
    QKV(array_there);
    side_launch(&side, tr_cuda_qkv(&side.stream, &a), "qkv");
    QKV(array_host);
    tr_ref_qkv(&a);
    ok = rows_close(&x, rows, a.ld, a.type, 1e-5, "qkv");
    if (!ok) {
        printf("heads %u, KV heads %u, head_dim %u, bias %d, norm %d, "
               "keys %d, shift %d, hadamard %d\n",
               a.heads, a.kv_heads, dim, bias, norm, keys, shift, a.hadamard);
    }
    array_free(&x);
    array_free(&b);
    array_free(&q);
    array_free(&k);
    array_free(&angles);
    array_free(&turns);
    array_free(&c);
    return ok;
}

static bool
check_row_norm(void)
{
    static const uint32_t dims[] = { 16, 64, 80, 128, 256 };
    tr_cuda_qkv_t a = { .rows = 1 + random_below(5),
                        .heads = 1 + random_below(random_below(3) ? 9 : 40),
                        .kv_heads = 1 + random_below(9),
                        .head_dim = dims[random_below(5)],
                        .type = any_type(),
                        .eps = 1e-6f };
    uint32_t q = a.heads * a.head_dim, kv = a.kv_heads * a.head_dim;
    uint32_t n = q + 2 * kv;
    bool odd = random_below(4) == 0, bias = random_below(2), ok;
    double scale = any_scale();
    array_t x, b, q_norm, k_norm;

    a.ld = any_distance(n);
    x = numbers(a.rows, n, a.ld, a.type, scale, odd);
    b = numbers(1, n, n, TR_F32, scale, odd);
    q_norm = numbers(1, q, q, TR_F32, 1, odd);
    k_norm = numbers(1, kv, kv, TR_F32, 1, odd);
#define ROW_NORM(of)                                                       \
    a.qkv = of(&x), a.bias = bias ? of(&b) : NULL, a.q_norm = of(&q_norm), \
    a.k_norm = of(&k_norm)
    ROW_NORM(array_there);
    side_launch(&side, tr_cuda_row_norm(&side.stream, &a), "row_norm");
    ROW_NORM(array_host);
    tr_ref_row_norm(&a);
    ok = rows_close(&x, a.rows, a.ld, a.type, 1e-5, "row_norm");
    if (!ok) {
        printf("heads %u, KV heads %u, head_dim %u, bias %d\n", a.heads,
               a.kv_heads, a.head_dim, bias);
    }
    array_free(&x);
    array_free(&b);
    array_free(&q_norm);
    array_free(&k_norm);
    return ok;
}

/* ---- the rest ----------------------------------------------------------- */

static bool
check_act_mul(void)
{
    uint32_t rows = 1 + random_below(9), n = any_width(1000);
    size_t ldx = any_distance(2 * n), ldo = any_distance(n);
    tr_dtype_t type = any_type();
    tr_act_t act = (tr_act_t) random_below(TR_ACTS);
    bool odd = random_below(4) == 0, ok;
    array_t x = numbers(rows, 2 * n, ldx, type, any_scale(), odd);
    array_t out = array_new(rows * ldo, 2, odd);

    side_launch(&side,
                tr_cuda_act_mul(&side.stream, act, array_there(&x), ldx, rows,
                                n, type, array_there(&out), ldo),
                "act_mul");
    tr_ref_act_mul(act, array_host(&x), ldx, rows, n, type, array_host(&out),
                   ldo);
    /* the device divides by more than 2^126 as by infinity; 1 + tanh(x), which
     * the reference forms, has lost all where x is small */
    ok = rows_close(&out, rows, ldo, type,
                    act == TR_ACT_GELU_TANH ? 1e-6 : 1e-20, "act_mul")
         && array_same(&x, "gate and up")
         && tr_cuda_act_mul(&side.stream, TR_ACTS, array_there(&x), ldx, rows,
                            n, type, array_there(&out), ldo)
                == TR_KERNEL_BADARG;
    array_free(&x);
    array_free(&out);
    return ok;
}

static bool
check_scale_cap(void)
{
    uint32_t rows = 1 + random_below(9), n = any_width(1000);
    size_t ld = any_distance(n);
    float scale = random_below(2) ? 0.125f : 1;
    float cap = random_below(2) ? 30 : 0;
    array_t x = numbers(rows, n, ld, TR_F32, any_scale(), random_below(2));
    bool ok;

    side_launch(&side,
                tr_cuda_scale_cap(&side.stream, array_there(&x), ld, rows, n,
                                  scale, cap),
                "scale_cap");
    tr_ref_scale_cap(array_host(&x), ld, rows, n, scale, cap);
    ok = rows_close(&x, rows, ld, TR_F32, 1e-6, "scale_cap");
    array_free(&x);
    return ok;
}

static bool
check_random(void)
{
    size_t n = 1 + random_below(3000);
    tr_dtype_t type = (tr_dtype_t) random_below(3);
    uint64_t seed = (uint64_t) (random_unit() * 0x1p53);
    uint64_t first = (uint64_t) (random_unit() * 0x1p40);
    array_t x = array_new(n, tr_dtype_size(type), random_below(2));
    bool ok;

    side_launch(&side,
                tr_cuda_fill_random(&side.stream, array_there(&x), n, type,
                                    seed, first, 0.02f),
                "fill_random");
    tr_ref_fill_random(array_host(&x), n, type, seed, first, 0.02f);
    ok = array_same(&x, "fill_random");
    compared += n;
    array_free(&x);
    return ok;
}

static bool
check_convert(void)
{
    uint32_t n = 1 + random_below(3000);
    tr_dtype_t from = (tr_dtype_t) random_below(3);
    tr_dtype_t to = (tr_dtype_t) random_below(3);
    array_t x = numbers(1, n, n, from, any_scale(), random_below(2));
    array_t y = array_new(n, tr_dtype_size(to), random_below(2));
    bool ok;

    side_launch(&side,
                tr_cuda_convert(&side.stream, array_there(&x), from,
                                array_there(&y), to, n),
                "convert");
    tr_ref_convert(array_host(&x), from, array_host(&y), to, n);
    ok = array_same(&y, "convert");
    compared += n;
    array_free(&x);
    array_free(&y);
    return ok;
}

static bool
check_select(void)
{
    uint32_t n = 1 + random_below(3000);
    array_t slot = array_new(n, 4, false);
    array_t kind = array_new(n, 1, true);
    array_t out = array_new(n, 4, false);
    bool ok;

    for (uint32_t i = 0; i < n; i++) {
        ((int32_t *) array_host(&slot))[i] = (int32_t) random_below(99) - 1;
        ((uint8_t *) array_host(&kind))[i] = (uint8_t) random_below(3);
    }
    array_send(&slot);
    array_send(&kind);
    side_launch(&side,
                tr_cuda_select(&side.stream, array_there(&slot),
                               array_there(&kind), n, 1, array_there(&out)),
                "select");
    tr_ref_select(array_host(&slot), array_host(&kind), n, 1, array_host(&out));
    ok = array_same(&out, "select");
    array_free(&slot);
    array_free(&kind);
    array_free(&out);
    return ok;
}

static bool
check_keep_rows(void)
{
    uint32_t rows = 1 + random_below(200), n = 8 * (1 + random_below(200));
    uint32_t chunks = 1 + random_below(5), layers = 1 + random_below(3);
    size_t ldx = n + 8 * random_below(4), each = n + 8 * random_below(3);
    uint32_t tokens = 1 + random_below(70);
    size_t places = (size_t) chunks * layers * tokens;
    array_t x = array_new(rows * ldx, 2, false);
    array_t chunk = array_new(rows, 4, false), pos = array_new(rows, 4, false);
    array_t out = array_new(places * each, 2, false);
    tr_cuda_keep_rows_t a = { rows,
                              n,
                              array_there(&x),
                              ldx,
                              array_there(&chunk),
                              array_there(&pos),
                              random_below(layers),
                              layers,
                              tokens,
                              2 * each,
                              array_there(&out) };
    uint32_t used = 0;
    bool ok;

    for (size_t i = 0; i < rows * ldx; i++) {
        ((uint16_t *) array_host(&x))[i] = (uint16_t) random_below(65536);
    }
    for (uint32_t i = 0; i < rows; i++) { /* no place twice */
        bool keep = random_below(4) != 0 && used < chunks * tokens;

        ((uint32_t *) array_host(&chunk))[i] = keep ? used / tokens + 1 : 0;
        ((uint32_t *) array_host(&pos))[i] = used % tokens
                                             + tokens * random_below(9);
        used += keep;
    }
    array_send(&x);
    array_send(&chunk);
    array_send(&pos);
    side_launch(&side, tr_cuda_keep_rows(&side.stream, &a), "keep_rows");
    a.n = n + 1;
    ok = tr_cuda_keep_rows(&side.stream, &a) == TR_KERNEL_BADARG;
    a.n = n;
    a.x = array_host(&x);
    a.row_chunk = array_host(&chunk);
    a.row_pos = array_host(&pos);
    a.memory = array_host(&out);
    tr_ref_keep_rows(&a);
    ok = ok && array_same(&out, "keep_rows") && array_same(&x, "rows");
    array_free(&x);
    array_free(&chunk);
    array_free(&pos);
    array_free(&out);
    return ok;
}

static bool
one_round(void)
{
    return check_embed() && check_angles() && check_norm() && check_pool()
           && check_qkv() && check_row_norm() && check_act_mul()
           && check_scale_cap() && check_random() && check_convert()
           && check_select() && check_keep_rows();
}

int
main(int argc, char **argv)
{
    uint32_t rounds, failed = 0;
    uint64_t seed;

    side_open(&side);
    rounds = argc > 1 ? (uint32_t) atoi(argv[1]) : 100;
    seed = argc > 2 ? strtoull(argv[2], NULL, 10) : (uint64_t) time(NULL);
    for (uint32_t r = 0; r < rounds; r++) {
        random_seed(seed + r);
        if (!one_round()) {
            printf("FAILED: test_model 1 %llu\n",
                   (unsigned long long) (seed + r));
            failed++;
        }
    }
    printf("model: %u rounds from seed %llu, %u failed; %llu numbers\n", rounds,
           (unsigned long long) seed, failed, compared);
    return failed != 0;
}
