/*
 * Layers with experts on the device against plain C (experts_reference.h): the
 * choice of experts in all its ways, the order of rows, grouped products of few
 * and of many rows, biases, the sum; a row alone gives the bits that it gives
 * among others, and packed weights those that they give in 16 bits.
 *
 *   test_experts [rounds [seed]]
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "experts_reference.h"
#include "tests/gpu/fixtures/arrays.h"

static side_t side;
static uint32_t blocks; /* multiprocessors of its device */
static unsigned long long compared;

static array_t
numbers(size_t n, tr_dtype_t type, double scale)
{
    array_t a = array_new(n, tr_dtype_size(type), false);

    for (size_t i = 0; i < n; i++) {
        tr_float_store(array_host(&a), i, type,
                       (float) (random_normal() * scale));
    }
    array_send(&a);
    return a;
}

/* All n elements within a step of their type and `slack` of the largest; what
 * nobody wrote is the same on both sides. */
static bool
close_to(const array_t *a, size_t n, tr_dtype_t type, double slack,
         const char *what)
{
    uint8_t *got = array_fetch(a);
    double step = type == TR_F32 ? 0 : type == TR_F16 ? 0x1p-10 : 0x1p-7;
    double most = 0;
    bool ok = true;

    for (size_t i = 0; i < n; i++) {
        double z = fabs((double) tr_float_load(array_host(a), i, type));

        most = z > most ? z : most; /* not NaN */
    }
    for (size_t i = 0; i < n && ok; i++) {
        double x = (double) tr_float_load(array_host(a), i, type);
        double y = (double) tr_float_load(got, i, type);

        if (isnan(x) ? !isnan(y)
                     : !(fabs(x - y) <= fabs(x) * step + most * slack)) {
            printf("%s: element %zu is %g, expected %g\n", what, i, y, x);
            ok = false;
        }
    }
    compared += n;
    free(got);
    return ok;
}

/* ---- the router ---------------------------------------------------------- */

/* Are two of the scores that decide so near that rounding may swap them?  Logits
 * are multiples of 1/64, so that equal ones occur and others are apart. */
static array_t
logits_of(uint32_t rows, uint32_t experts, size_t ld)
{
    array_t a = array_new(rows * ld, 4, false);

    for (uint32_t r = 0; r < rows; r++) {
        for (uint32_t e = 0; e < experts; e++) {
            ((float *) array_host(
                &a))[r * ld + e] = (float) (random_below(512)) / 64 - 4;
        }
    }
    array_send(&a);
    return a;
}

static tr_route_t
any_route(void)
{
    static const uint32_t counts[] = { 1, 4, 8, 32, 60, 64, 128, 160, 256 };
    uint32_t experts = counts[random_below(9)], groups = 1, top_groups = 1;
    uint32_t most;

    if (random_below(3) == 0 && experts % 4 == 0) {
        groups = experts % 8 == 0 && random_below(2) ? 8 : 4;
        top_groups = 1 + random_below(groups);
    }
    most = experts / groups * top_groups;
    most = most < TR_TOP_K_MAX ? most : TR_TOP_K_MAX;
    return (tr_route_t){ .experts = experts,
                         .top_k = 1 + random_below(most < 8 ? most : 8),
                         .groups = groups,
                         .top_groups = top_groups,
                         .score = (tr_route_score_t) random_below(3),
                         .renorm = random_below(2),
                         .scale = random_below(2) ? 1 : 2.5f };
}

static bool
check_route(void)
{
    tr_cuda_route_t a = { .route = any_route(), .rows = 1 + random_below(9) };
    uint32_t n = a.rows * a.route.top_k, experts = a.route.experts;
    bool biased = random_below(2), steered = random_below(2), ok;
    array_t logits, bias, choice, expert = array_new(n, 4, false);
    array_t weight = array_new(n, 4, false);

    a.ld = experts + random_below(9);
    logits = logits_of(a.rows, experts, a.ld);
    bias = logits_of(1, experts, experts);
    choice = logits_of(1, experts, experts);
#define ROUTE(of)                                                         \
    a.logits = of(&logits), a.logit_bias = biased ? of(&bias) : NULL,     \
    a.choice_bias = steered ? of(&choice) : NULL, a.expert = of(&expert), \
    a.weight = of(&weight)
    ROUTE(array_there);
    side_launch(&side, tr_cuda_route(&side.stream, &a), "route");
    ROUTE(array_host);
    tr_ref_route(&a);
    ok = array_same(&expert, "expert")
         && close_to(&weight, n, TR_F32, 1e-5, "weight");
    if (!ok) {
        printf("experts %u, top %u, groups %u of %u, score %d, biases %d %d\n",
               experts, a.route.top_k, a.route.top_groups, a.route.groups,
               a.route.score, biased, steered);
    }
    array_free(&logits);
    array_free(&bias);
    array_free(&choice);
    array_free(&expert);
    array_free(&weight);
    return ok;
}

/* ---- all up to the products ----------------------------------------------- */

typedef struct {
    uint32_t rows, n;
    tr_dtype_t type;
    tr_route_t route;
    size_t ld, ldo;
    bool adds;
    array_t hidden, delta, bias, weight, out, w, logits, expert, chosen, first;
    array_t place, row, meet;
} choice_t;

static tr_cuda_choose_t
choice_args(const choice_t *c, void *(*of)(const array_t *) )
{
    tr_cuda_choose_t a = { .norm = { .rows = c->rows,
                                     .n = c->n,
                                     .hidden = of(&c->hidden),
                                     .ldh = c->ld,
                                     .delta = c->adds ? of(&c->delta) : NULL,
                                     .ldd = c->ld,
                                     .bias = c->adds ? of(&c->bias) : NULL,
                                     .scale = 1,
                                     .weight = of(&c->weight),
                                     .eps = 1e-5f,
                                     .out = of(&c->out),
                                     .ldo = c->ldo,
                                     .type = c->type },
                           .w = of(&c->w),
                           .logits = of(&c->logits),
                           .route = { .route = c->route,
                                      .rows = c->rows,
                                      .ld = c->route.experts,
                                      .expert = of(&c->expert),
                                      .weight = of(&c->chosen) },
                           .order = { c->rows, c->route.top_k, c->route.experts,
                                      of(&c->expert), of(&c->first),
                                      of(&c->place), of(&c->row) },
                           .meet = of(&c->meet) };

    return a;
}

static void
choice_open(choice_t *c)
{
    uint32_t places;

    c->rows = 1 + random_below(TR_CUDA_CHOOSE_ROWS);
    c->n = 8 * (1 + random_below(random_below(2) ? 40 : 360));
    c->type = random_below(2) ? TR_F16 : TR_BF16;
    c->route = any_route();
    c->ld = c->n + 8 * random_below(3);
    c->ldo = c->n + 8 * random_below(3);
    c->adds = random_below(3) != 0;
    places = c->rows * c->route.top_k;
    c->hidden = numbers(c->rows * c->ld, TR_F32, 1);
    c->delta = numbers(c->rows * c->ld, c->type, 1);
    c->bias = numbers(c->n, TR_F32, 1);
    c->weight = numbers(c->n, TR_F32, 1);
    c->out = array_new(c->rows * c->ldo, 2, false);
    c->w = numbers((size_t) c->route.experts * c->n, c->type, 2 / sqrt(c->n));
    c->logits = array_new((size_t) c->rows * c->route.experts, 4, false);
    c->expert = array_new(places, 4, false);
    c->chosen = array_new(places, 4, false);
    c->first = array_new(c->route.experts + 1, 4, false);
    c->place = array_new(places, 4, false);
    c->row = array_new(places, 4, false);
    c->meet = array_new(1, 4, false);
    memset(array_host(&c->meet), 0, 4);
    array_send(&c->meet);
}

static void
choice_close(choice_t *c)
{
    array_t *all[] = { &c->hidden, &c->delta, &c->bias,   &c->weight,
                       &c->out,    &c->w,     &c->logits, &c->expert,
                       &c->chosen, &c->first, &c->place,  &c->row,
                       &c->meet };

    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        array_free(all[i]);
    }
}

/* What was chosen follows from the device's own logits: of two that are nearly
 * equal others may be the larger on the host. */
static bool
choice_follows(choice_t *c)
{
    tr_cuda_choose_t a = choice_args(c, array_host);
    uint8_t *got = array_fetch(&c->logits);
    bool ok;

    memcpy(array_host(&c->logits), got,
           (size_t) c->rows * c->route.experts * 4);
    free(got);
    a.route.logits = a.logits;
    ok = tr_ref_route(&a.route) == TR_KERNEL_OK
         && tr_ref_order(&a.order) == TR_KERNEL_OK
         && array_same(&c->expert, "expert") && array_same(&c->first, "first")
         && array_same(&c->place, "place") && array_same(&c->row, "row")
         && close_to(&c->chosen, c->rows * c->route.top_k, TR_F32, 1e-5,
                     "weight");
    return ok;
}

static bool
check_choose(void)
{
    tr_cuda_choose_t a;
    choice_t c;
    bool ok;

    choice_open(&c);
    a = choice_args(&c, array_there);
    side_launch(&side, tr_cuda_choose(&side.stream, &a), "choose");
    a = choice_args(&c, array_host);
    ok = tr_ref_choose(&a) == TR_KERNEL_OK
         && close_to(&c.hidden, c.rows * c.ld, TR_F32, 1e-6, "hidden")
         && close_to(&c.out, c.rows * c.ldo, c.type, 1e-5, "normed")
         && close_to(&c.logits, (size_t) c.rows * c.route.experts, TR_F32, 4e-3,
                     "logits")
         && array_same(&c.meet, "meet") && choice_follows(&c);
    if (!ok) {
        printf("choose: rows %u, n %u, type %d, top %u of %u, groups %u of %u, "
               "adds %d\n",
               c.rows, c.n, c.type, c.route.top_k, c.route.experts,
               c.route.top_groups, c.route.groups, c.adds);
    }
    choice_close(&c);
    return ok;
}

/* ---- an MLP's products --------------------------------------------------- */

typedef struct {
    uint32_t rows, top_k, experts, n, k;
    tr_dtype_t type;
    size_t ldx, ldy;
    bool biased, gated;
    tr_act_t act;
    tr_weight_form_t form;
    array_t expert, first, place, row, x, w, bias, y;
} case_t;

static tr_weight_form_t
any_form(void)
{
    static const tr_weight_form_t forms[] = {
        { TR_WEIGHT_FP8, TR_WEIGHT_EIGHTS, 0 },
        { TR_WEIGHT_FP8, TR_WEIGHT_EIGHTS, 128 },
        { TR_WEIGHT_INT4, TR_WEIGHT_EIGHTS, 32 },
        { TR_WEIGHT_INT4, TR_WEIGHT_EIGHTS, 64 },
        { TR_WEIGHT_INT4, TR_WEIGHT_EIGHTS, 128 },
        { TR_WEIGHT_MXFP4, TR_WEIGHT_EIGHTS, 32 }
    };

    return forms[random_below(6)];
}

/* Random codes, all that are numbers, and scales that give weights of about 0.2;
 * of MXFP4 now and then any exponent that there is. */
static array_t
packed(tr_weight_form_t f, uint32_t n, uint32_t k)
{
    array_t a = array_new(tr_weight_bytes(f, n, k), 1, false);
    uint8_t *codes = array_host(&a), *line;
    uint32_t of = tr_weight_line_groups(f.format);
    float most = f.format == TR_WEIGHT_FP8 ? 50 : 6;
    bool any = random_below(4) == 0;

    for (size_t i = 0; i < tr_weight_code_bytes(f, n, k); i++) {
        codes[i] = (uint8_t) random_below(256);
        if (f.format == TR_WEIGHT_FP8 && (codes[i] & 0x7f) == 0x7f) {
            codes[i] ^= 1u << random_below(7);
        }
    }
    line = codes + tr_weight_code_bytes(f, n, k);
    for (uint32_t g = 0; g < tr_weight_groups(f, k); g++) {
        for (uint32_t i = 0; i < n; i++) {
            float scale = (float) (0.2 / most * (0.5 + random_unit()));

            if (f.format == TR_WEIGHT_MXFP4) {
                scale = tr_weight_from_e8m0(any ? random_below(140)
                                                : 119 + random_below(4));
            }
            tr_weight_scale_put(f, line, i, g, scale, random_below(16));
        }
        if (g % of == of - 1) {
            line += (size_t) n * of * tr_weight_scale_bytes(f.format);
        }
    }
    array_send(&a);
    return a;
}

static uint32_t
outputs(const case_t *c)
{
    return c->gated ? c->n / 2 : c->n;
}

static void
case_open(case_t *c, tr_weight_form_t form)
{
    uint32_t places, inputs = form.group == 128 ? 128 : 64;

    c->form = form;
    c->experts = 1 + random_below(random_below(2) ? 9 : 70);
    c->top_k = 1 + random_below(c->experts < 4 ? c->experts : 4);
    c->rows = 1 + random_below(random_below(3) ? 12 : 150);
    if (random_below(3) == 0) { /* many for each */
        c->experts = c->top_k = 1 + random_below(3);
    }
    places = c->rows * c->top_k;
    c->n = 1 + random_below(200);
    c->k = 8 * (1 + random_below(40));
    c->type = random_below(2) ? TR_F16 : TR_BF16;
    if (form.format != TR_WEIGHT_16) {
        c->n = 16 * (1 + random_below(12));
        c->k = inputs * (1 + random_below(320 / inputs));
        c->type = TR_BF16;
    }
    side.device.blocks = random_below(2) ? blocks
                                         : 0; /* then there are not few */
    c->gated = random_below(2)
               && tr_cuda_experts_few(&side.device, places, c->experts, c->n);
    c->act = (tr_act_t) random_below(TR_ACTS);
    c->n *= c->gated ? 2 : 1;
    c->ldx = c->k + 8 * random_below(3);
    c->ldy = outputs(c) + random_below(9);
    c->biased = random_below(2);
    c->expert = array_new(places, 4, false);
    for (uint32_t i = 0; i < places; i++) {
        ((uint32_t *) array_host(&c->expert))[i] = random_below(c->experts);
    }
    array_send(&c->expert);
    c->first = array_new(c->experts + 1, 4, false);
    c->place = array_new(places, 4, false);
    c->row = array_new(places, 4, false);
    c->x = numbers((size_t) places * c->ldx, c->type, 1);
    c->w = form.format != TR_WEIGHT_16
               ? packed(form, c->experts * c->n, c->k)
               : numbers((size_t) c->experts * c->n * c->k, c->type, 0.2);
    c->bias = numbers((size_t) c->experts * c->n, TR_F32, 1);
    c->y = array_new(places * c->ldy, 2, false);
}

static void
case_close(case_t *c)
{
    array_free(&c->expert);
    array_free(&c->first);
    array_free(&c->place);
    array_free(&c->row);
    array_free(&c->x);
    array_free(&c->w);
    array_free(&c->bias);
    array_free(&c->y);
}

static tr_cuda_order_t
order_of(const case_t *c, void *(*of)(const array_t *) )
{
    return (tr_cuda_order_t){ c->rows,        c->top_k,      c->experts,
                              of(&c->expert), of(&c->first), of(&c->place),
                              of(&c->row) };
}

static tr_cuda_experts_t
product_of(const case_t *c, bool by_row, void *(*of)(const array_t *) )
{
    return (tr_cuda_experts_t){ .places = c->rows * c->top_k,
                                .experts = c->experts,
                                .n = c->n,
                                .k = c->k,
                                .first = of(&c->first),
                                .row = by_row ? of(&c->row) : NULL,
                                .x = of(&c->x),
                                .ldx = c->ldx,
                                .w = of(&c->w),
                                .bias = c->biased ? of(&c->bias) : NULL,
                                .y = of(&c->y),
                                .ldy = c->ldy,
                                .gated = c->gated,
                                .act = c->act,
                                .type = c->type,
                                .form = c->form };
}

/* The place of a row alone, of its expert alone; where there are not few, sums have
 * another order than they would have alone with few. */
static bool
place_alone(case_t *c, bool by_row)
{
    uint32_t p = random_below(c->rows * c->top_k), e;
    uint8_t *before = array_fetch(&c->y), *after;
    tr_cuda_experts_t a = product_of(c, by_row, array_there);
    uint32_t *first = array_host(&c->first);
    array_t alone = array_new(c->experts + 1, 4, false);
    size_t at = p * c->ldy * 2;
    bool same;

    for (e = 0; first[e + 1] <= p; e++) {
    }
    for (uint32_t i = 0; i <= c->experts; i++) {
        ((uint32_t *) array_host(&alone))[i] = i > e;
    }
    array_send(&alone);
    if (!tr_cuda_experts_few(&side.device, a.places, a.experts, outputs(c))) {
        side.device.blocks = 0;
    }
    a.places = 1;
    a.first = array_there(&alone);
    a.row = by_row ? a.row + p : NULL;
    a.x = by_row ? a.x : (const uint16_t *) a.x + p * c->ldx;
    a.y = (uint16_t *) a.y + p * c->ldy;
    side_launch(&side, tr_cuda_experts(&side.stream, &a), "experts");
    after = array_fetch(&c->y);
    same = memcmp(before + at, after + at, outputs(c) * 2ul) == 0;
    if (!same) {
        printf("experts: place %u alone has other bits\n", p);
    }
    array_free(&alone);
    free(before);
    free(after);
    return same;
}

/* The same product by the same weights in 16 bits. */
static bool
same_in_16_bits(const case_t *c, bool by_row)
{
    tr_cuda_experts_t a = product_of(c, by_row, array_there);
    uint32_t rows = c->experts * c->n;
    array_t w = array_new((size_t) rows * c->k, 2, false);
    uint8_t *before = array_fetch(&c->y), *after;
    bool same;

    for (uint32_t i = 0; i < rows; i++) {
        for (uint32_t j = 0; j < c->k; j++) {
            tr_float_store(array_host(&w), (size_t) i * c->k + j, TR_BF16,
                           tr_weight_load(c->form, array_host(&c->w), rows,
                                          c->k, i, j));
        }
    }
    array_send(&w);
    a.w = array_there(&w);
    a.form = (tr_weight_form_t){ TR_WEIGHT_16, TR_WEIGHT_PLAIN, 0 };
    side_launch(&side, tr_cuda_experts(&side.stream, &a), "experts");
    after = array_fetch(&c->y);
    same = memcmp(before, after, a.places * c->ldy * 2) == 0;
    if (!same) {
        printf("experts: packed weights have other bits than in 16 bits\n");
    }
    array_free(&w);
    free(before);
    free(after);
    return same;
}

/* At times a product that comes next, which is called for; it changes nothing. */
static void
calls_ahead(const case_t *c, tr_cuda_experts_t *a, array_t *w)
{
    uint32_t n = 16 * (1 + random_below(8)), k = c->n / 2;
    bool can = c->gated && random_below(2)
               && tr_cuda_experts_ahead(c->form, c->experts, n, k);

    *w = array_new(can ? tr_weight_bytes(c->form, c->experts * n, k) : 16, 1,
                   false);
    if (can) {
        a->ahead = array_there(w);
        a->ahead_n = n;
    }
}

static bool
check_experts(tr_weight_form_t form)
{
    array_t ahead;
    bool by_row = random_below(2), ok;
    tr_cuda_order_t order;
    tr_cuda_experts_t a;
    case_t c;

    case_open(&c, form);
    order = order_of(&c, array_there);
    side_launch(&side, tr_cuda_order(&side.stream, &order), "order");
    order = order_of(&c, array_host);
    tr_ref_order(&order);
    ok = array_same(&c.first, "first") && array_same(&c.place, "place")
         && array_same(&c.row, "row");
    a = product_of(&c, by_row, array_there);
    calls_ahead(&c, &a, &ahead);
    side_launch(&side, tr_cuda_experts(&side.stream, &a), "experts");
    array_free(&ahead);
    a = product_of(&c, by_row, array_host);
    tr_ref_experts(&a);
    ok = ok
         && close_to(&c.y, a.places * c.ldy, c.type, c.gated ? 4e-5 : 1e-5,
                     "experts")
         && (form.format == TR_WEIGHT_16 || same_in_16_bits(&c, by_row))
         && place_alone(&c, by_row);
    if (!ok) {
        printf("%s in groups of %u, rows %u, top %u of %u, n %u, k %u, type "
               "%d, bias %d, by row %d\n",
               tr_weight_format_name(form.format), form.group, c.rows, c.top_k,
               c.experts, c.n, c.k, c.type, c.biased, by_row);
    }
    case_close(&c);
    return ok;
}

/* What no kernel has is refused. */
static bool
check_refused(void)
{
    static const struct {
        tr_weight_form_t form;
        uint32_t n, k;
        tr_dtype_t type;
    } wrong[] = {
        { { TR_WEIGHT_MXFP4, TR_WEIGHT_EIGHTS, 32 }, 32, 64, TR_F16 },
        { { TR_WEIGHT_MXFP4, TR_WEIGHT_PLAIN, 32 }, 32, 64, TR_BF16 },
        { { TR_WEIGHT_MXFP4, TR_WEIGHT_EIGHTS, 64 }, 32, 64, TR_BF16 },
        { { TR_WEIGHT_MXFP4, TR_WEIGHT_EIGHTS, 32 }, 24, 64, TR_BF16 },
        { { TR_WEIGHT_MXFP4, TR_WEIGHT_EIGHTS, 32 }, 32, 96, TR_BF16 },
        { { TR_WEIGHT_FP8, TR_WEIGHT_EIGHTS, 128 }, 32, 192, TR_BF16 },
        { { TR_WEIGHT_INT4, TR_WEIGHT_EIGHTS, 0 }, 32, 64, TR_BF16 },
        { { TR_WEIGHT_INT4, TR_WEIGHT_EIGHTS, 32 }, 1u << 31, 64, TR_BF16 },
    };
    array_t memory = array_new(1u << 16, 1, false);
    void *at = array_there(&memory);
    bool ok = true;

    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]) && ok; i++) {
        tr_cuda_experts_t a = { .places = 1,
                                .experts = 2,
                                .n = wrong[i].n,
                                .k = wrong[i].k,
                                .first = at,
                                .x = at,
                                .ldx = wrong[i].k,
                                .w = at,
                                .y = at,
                                .ldy = wrong[i].n,
                                .type = wrong[i].type,
                                .form = wrong[i].form };

        ok = tr_cuda_experts(&side.stream, &a) == TR_KERNEL_BADARG
             && tr_ref_experts(&a) == TR_KERNEL_BADARG;
        if (!ok) {
            printf("experts: case %zu of what is wrong was taken\n", i);
        }
    }
    array_free(&memory);
    return ok;
}

/* ---- the sum ------------------------------------------------------------- */

static bool
check_sum(void)
{
    tr_cuda_sum_experts_t a = { .rows = 1 + random_below(9),
                                .top_k = 1 + random_below(8),
                                .n = 1 + random_below(900),
                                .type = random_below(2) ? TR_F16 : TR_BF16 };
    uint32_t places = a.rows * a.top_k;
    bool shared = random_below(2), ok;
    array_t x, more, out, place = array_new(places, 4, false);
    array_t weight = numbers(places, TR_F32, 1);

    a.n = random_below(3) ? (a.n + 7) / 8 * 8 : a.n;
    a.ldx = a.n + random_below(3) * 4;
    a.lds = a.n + random_below(3) * 4;
    a.ldo = a.n + random_below(3) * 4;
    x = numbers(places * a.ldx, a.type, 1);
    more = numbers(a.rows * a.lds, a.type, 1);
    out = array_new(a.rows * a.ldo, 2, false);
    for (uint32_t i = 0; i < places; i++) { /* any order of them all */
        uint32_t *p = array_host(&place), j = random_below(i + 1);

        p[i] = p[j];
        p[j] = i;
    }
    array_send(&place);
#define SUM(of)                                                 \
    a.x = of(&x), a.place = of(&place), a.weight = of(&weight), \
    a.shared = shared ? of(&more) : NULL, a.out = of(&out)
    SUM(array_there);
    side_launch(&side, tr_cuda_sum_experts(&side.stream, &a), "sum_experts");
    SUM(array_host);
    tr_ref_sum_experts(&a);
    ok = close_to(&out, a.rows * a.ldo, a.type, 1e-6, "sum_experts");
    array_free(&x);
    array_free(&more);
    array_free(&out);
    array_free(&place);
    array_free(&weight);
    return ok;
}

int
main(int argc, char **argv)
{
    uint32_t rounds, failed = 0;
    uint64_t seed;
    bool packs;

    side_open(&side);
    blocks = side.device.blocks;
    packs = side.device.code == 90;
    failed = !check_refused();
    rounds = argc > 1 ? (uint32_t) atoi(argv[1]) : 100;
    seed = argc > 2 ? strtoull(argv[2], NULL, 10) : (uint64_t) time(NULL);
    for (uint32_t r = 0; r < rounds; r++) {
        random_seed(seed + r);
        if (!check_route() || !check_choose()
            || !check_experts((tr_weight_form_t){ 0 })
            || (packs && !check_experts(any_form())) || !check_sum()) {
            printf("FAILED: test_experts 1 %llu\n",
                   (unsigned long long) (seed + r));
            failed++;
        }
    }
    printf("experts: %u rounds from seed %llu, %u failed; %llu numbers\n",
           rounds, (unsigned long long) seed, failed, compared);
    return failed != 0;
}
