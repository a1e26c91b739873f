/*
 * Products of a warpgroup on the device in software (simt.h).
 *
 * Each thread makes its own numbers, when it waits for them.  Both operands may
 * be in shared memory; what the whole warpgroup reads of B becomes FP32 once.
 */
#include <math.h>
#include <string.h>

#include "mp.h"

#define K_MAX 32u

static float half_of[1 << 16]; /* number by its bits */

void
simt_halves_open(void)
{
    for (uint32_t h = 0; h < 1 << 16; h++) {
        uint32_t e = h >> 10 & 31, f = h & 1023, u = (h & 0x8000) << 16;

        if (e == 0) {
            half_of[h] = (float) f * (h & 0x8000 ? -0x1p-24f : 0x1p-24f);
            continue;
        }
        u |= e == 31 ? 0x7f800000u | f << 13 : (e + 112) << 23 | f << 13;
        memcpy(&half_of[h], &u, 4);
    }
}

float
simt_half(uint16_t h)
{
    return half_of[h];
}

/* n numbers of FP8. */
static void
bytes(const uint8_t *from, uint32_t n, float *to)
{
    for (uint32_t i = 0; i < n; i++) {
        uint32_t u = (from[i] & 0x7fu) << 20 | (from[i] & 0x80u) << 24;

        memcpy(&to[i], &u, 4);
        to[i] = (from[i] & 0x7f) == 0x7f ? NAN : to[i] * 0x1p120f;
    }
}

static void
numbers(const uint8_t *from, uint32_t n, bool bf16, float *to)
{
    for (uint32_t i = 0; i < n; i++) {
        uint16_t x;

        memcpy(&x, from + 2 * i, 2);
        if (bf16) {
            uint32_t u = (uint32_t) x << 16;

            memcpy(&to[i], &u, 4);
        } else {
            to[i] = half_of[x];
        }
    }
}

/* Where `at` is in a tile with chunks permuted in rows of 128 bytes. */
static const uint8_t *
swizzled(uint32_t at)
{
    return simt_pointer(at ^ (at >> 7 & 7) << 4);
}

/* A descriptor's fields; operands lie as kernels/cuda/wgmma.cuh says, eight
 * rows of 128 bytes an atom. */
typedef struct {
    uint32_t at, column, atom;
} operand_t;

static operand_t
operand_of(uint64_t d)
{
    if (d >> 62 != 1) {
        simt_die("a descriptor without the pattern of 128 bytes: %llx",
                 (unsigned long long) d);
    }
    return (operand_t){ (uint32_t) (d & 0x3fff) << 4,
                        (uint32_t) (d >> 16 & 0x3fff) << 4,
                        (uint32_t) (d >> 32 & 0x3fff) << 4 };
}

/* Row `row`: 16 of k, or 32 of FP8. */
static void
operand_row(const operand_t *o, uint32_t row, const simt_product_t *p,
            float *to)
{
    uint32_t at = o->at + row / 8 * o->atom + row % 8 * 128;

    if (p->fp8) {
        bytes(swizzled(at), 16, to);
        bytes(swizzled(at + 16), 16, to + 16);
    } else {
        numbers(swizzled(at), 8, p->bf16, to);
        numbers(swizzled(at + 16), 8, p->bf16, to + 8);
    }
}

/* Rows `row` and the next one, where rows in memory are of k. */
static void
operand_columns(const operand_t *o, uint32_t row, bool bf16, float (*to)[K_MAX])
{
    for (uint32_t k = 0; k < 16; k++) {
        float two[2];

        numbers(swizzled(o->at + k / 8 * o->atom + k % 8 * 128
                         + row / 64 * o->column + row % 64 * 2),
                2, bf16, two);
        to[0][k] = two[0];
        to[1][k] = two[1];
    }
}

#define N_MAX 256u
#define KEPT \
    64u /* products of a warpgroup whose B is kept; more than are on
                  * their way */

struct operands {
    struct {
        uint64_t made; /* which product's it is */
        float b[N_MAX][K_MAX];
    } of[KEPT];
};

/* B of the warpgroup's product `made`, by columns; it is on its way in all of its
 * threads, so who is first reads what all do. */
static const float (*operand_b(mp_t *m, const simt_product_t *p,
                               uint64_t made))[K_MAX]
{
    operands_t **at = &m->operands[m->now / 128];
    operand_t o = operand_of(p->b);

    if (*at == NULL) {
        *at = simt_alloc(sizeof(**at));
    }
    if ((*at)->of[made % KEPT].made != made) {
        float(*b)[K_MAX] = (*at)->of[made % KEPT].b;

        (*at)->of[made % KEPT].made = made;
        for (uint32_t i = 0; i < p->n; i += 2) {
            if (p->transposed) {
                operand_columns(&o, i, p->bf16, b + i);
            } else {
                operand_row(&o, i, p, b[i]);
                operand_row(&o, i + 1, p, b[i + 1]);
            }
        }
    }
    return (const float(*)[K_MAX])(*at)->of[made % KEPT].b;
}

static void
product_make(mp_t *m, const simt_product_t *p, uint64_t made)
{
    uint32_t thread = m->now, g = thread % 32 / 4, t = thread % 4;
    const float(*b)[K_MAX] = operand_b(m, p, made);
    float a[2][K_MAX];

    memcpy(a, p->rows, sizeof(a));
    if (!p->from_regs) {
        operand_t of_a = operand_of(p->a);

        for (uint32_t r = 0; r < 2; r++) {
            operand_row(&of_a, thread % 128 / 32 * 16 + 8 * r + g, p, a[r]);
        }
    }
    for (uint32_t i = 0; i < p->n / 2; i++) {
        const float *column = b[i / 4 * 8 + 2 * t + i % 2];
        float sum[4] = { 0 };

        for (uint32_t k = 0; k < (p->fp8 ? 32 : 16); k += 4) { /* one each */
            for (uint32_t l = 0; l < 4; l++) {
                sum[l] += a[i % 4 / 2][k + l] * column[k + l];
            }
        }
        p->c[i] = (p->add ? p->c[i] : 0) + (sum[0] + sum[1])
                  + (sum[2] + sum[3]);
    }
}

void
simt_product(const simt_product_t *p)
{
    fiber_t *f = &simt_mp->fiber[simt_mp->now];

    if (p->n > N_MAX || p->n % 8 != 0) {
        simt_die("a product of %u columns", p->n);
    }
    if (f->products == PRODUCTS_MAX) {
        simt_die("more than %u products on their way", PRODUCTS_MAX);
    }
    f->product[f->products++] = *p;
}

void
simt_products_end(void)
{
    fiber_t *f = &simt_mp->fiber[simt_mp->now];

    f->groups[f->n_groups++] = f->products;
}

/* Until no more than so many groups are on their way. */
void
simt_products_wait(uint32_t groups)
{
    fiber_t *f = &simt_mp->fiber[simt_mp->now];
    uint32_t end, over;

    if (f->n_groups <= groups) {
        return;
    }
    over = f->n_groups - groups;
    end = f->groups[over - 1];
    for (uint32_t i = 0; i < end; i++) {
        product_make(simt_mp, &f->product[i],
                     simt_mp->blocks << 32 | f->made++);
    }
    memmove(f->product, f->product + end,
            (f->products - end) * sizeof(f->product[0]));
    f->products -= end;
    f->n_groups = groups;
    for (uint32_t i = 0; i < groups; i++) {
        f->groups[i] = f->groups[i + over] - end;
    }
}
