/*
 * Matrix products: y = x W^T, OpenBLAS sgemm over packed panels.
 *
 * Layout.  W [n][k] is cut into panels of PANEL outputs; a panel is stored
 * [k][PANEL], so that a block of K_BLOCK inputs of a panel is one contiguous
 * row-major matrix B in C = A * B, and nothing has to be transposed or packed
 * in a step.  The last panel is filled up with zeros: every call has the same
 * width.
 *
 * Why so.  OpenBLAS packs its operands on every call, which costs more than
 * the product itself when there are few rows (decode).  Its AVX-512 kernels
 * for small products (M N K <= 10^6) do not pack; PANEL * K_BLOCK * ROWS_MAX
 * stays below that (64 * 256 * 48), and the panel stays in the first-level
 * caches while all rows pass by.  Threads of the team
 * take whole panels; OpenBLAS itself runs one.
 *
 * Bit-exactness.  The sum over k is cut at fixed places (K_BLOCK), each part
 * is one call with the same n and k, and nobody splits k further.  What is
 * left is OpenBLAS's treatment of the number of rows in a call, which differs
 * between its kernels: those for AVX-512 give the same bits for a row whatever
 * surrounds it, those for AVX2 only when the rows come in full tiles.  So the
 * scheme is not assumed but probed once at start: the smallest quantum to
 * which calls are padded, out of a list, such that a row has the same bits at
 * every place and for every count.  The last entry, one row a call, holds by
 * construction.  Reference: test_kernels.c, plain loops in double.
 */
#include "cpu.h"

#include <cblas.h>
#include <stdbool.h>
#include <string.h>

#define PANEL TR_COL_PAD
#define K_BLOCK 256u
#define ROWS_MAX 48u /* a multiple of every quantum below */

typedef struct {
    uint32_t quantum;  /* calls have a multiple of this many rows */
    uint32_t rows_max; /* of one call */
} scheme_t;

static const scheme_t schemes[] = {
    { 1, ROWS_MAX }, { 2, ROWS_MAX },  { 4, ROWS_MAX },
    { 8, ROWS_MAX }, { 12, ROWS_MAX }, { 24, ROWS_MAX },
    { 12, 12 },      { 4, 4 },         { 1, 1 },
};
#define N_SCHEMES (sizeof(schemes) / sizeof(schemes[0]))

static scheme_t scheme = { 1, 1 };

size_t
tr_cpu_matrix_floats(uint32_t n, uint32_t k)
{
    return tr_pad(n, PANEL) * k;
}

const float *
tr_cpu_matrix_row(const tr_matrix_t *m, uint32_t row, uint32_t *stride)
{
    *stride = PANEL;
    return m->data + (size_t) (row / PANEL) * m->k * PANEL + row % PANEL;
}

int
tr_cpu_matrix_pack(const tr_matrix_t *m, uint32_t row, uint32_t rows,
                   const void *src, tr_dtype_t dtype)
{
    size_t width = dtype == TR_F32 ? 4 : 2;

    if (rows > m->n || row > m->n - rows) {
        return TR_KERNEL_BADARG;
    }
    for (uint32_t r = 0; r < rows; r++) {
        const uint8_t *in = (const uint8_t *) src + (size_t) r * m->k * width;
        uint32_t stride;
        float *out = (float *) tr_cpu_matrix_row(m, row + r, &stride);

        for (uint32_t k = 0; k < m->k; k++) {
            out[(size_t) k * stride] = tr_float_load(in, k, dtype);
        }
    }
    if (row + rows == m->n) { /* the zeros that fill the last panel */
        for (size_t n = m->n; n < tr_pad(m->n, PANEL); n++) {
            uint32_t stride;
            float *out = (float *) tr_cpu_matrix_row(m, (uint32_t) n, &stride);

            for (uint32_t k = 0; k < m->k; k++) {
                out[(size_t) k * stride] = 0;
            }
        }
    }
    return TR_KERNEL_OK;
}

/* One panel: y[rows][PANEL] (+)= x[rows][k] * panel. */
static void
panel_product(const scheme_t *how, const float *panel, uint32_t k,
              const float *x, size_t ldx, uint32_t rows, float *y, size_t ldy,
              bool add)
{
    for (uint32_t r = 0; r < rows; r += how->rows_max) {
        uint32_t n = rows - r < how->rows_max ? rows - r : how->rows_max;

        n = (uint32_t) tr_pad(n, how->quantum);
        for (uint32_t k0 = 0; k0 < k; k0 += K_BLOCK) {
            uint32_t kn = k - k0 < K_BLOCK ? k - k0 : K_BLOCK;

            cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (int) n,
                        (int) PANEL, (int) kn, 1.0f, x + r * ldx + k0,
                        (int) ldx, panel + (size_t) k0 * PANEL, (int) PANEL,
                        add || k0 ? 1.0f : 0.0f, y + r * ldy, (int) ldy);
        }
    }
}

typedef struct {
    const tr_matrix_t *m;
    const float *x;
    size_t ldx;
    uint32_t rows;
    float *y;
    size_t ldy;
    bool add;
} product_t;

static void
panels_run(void *arg, uint32_t first, uint32_t end, uint32_t worker)
{
    const product_t *a = arg;

    (void) worker;
    for (uint32_t p = first; p < end; p++) {
        panel_product(&scheme, a->m->data + (size_t) p * a->m->k * PANEL,
                      a->m->k, a->x, a->ldx, a->rows, a->y + (size_t) p * PANEL,
                      a->ldy, a->add);
    }
}

int
tr_cpu_matmul(const tr_stream_t *s, const tr_matrix_t *m, const float *x,
              size_t ldx, uint32_t rows, float *y, size_t ldy, int add)
{
    uint32_t panels = (uint32_t) (tr_pad(m->n, PANEL) / PANEL);
    product_t a = { m, x, ldx, rows, y, ldy, add };

    if (ldx < m->k || ldy < tr_pad(m->n, PANEL)) {
        return TR_KERNEL_BADARG;
    }
    tr_team_run(s->team, s->threads, panels, 1, panels_run, &a);
    return TR_KERNEL_OK;
}

/* Numbers for the probe: all different, with full mantissas. */
static void
probe_fill(float *x, size_t n, uint32_t seed)
{
    for (size_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        x[i] = (float) (int32_t) seed * 0x1p-31f;
    }
}

/* Whether a row's bits are the same at every place of every count, with k
 * inputs, for both a first part (add = 0) and a later one. */
static bool
probe_holds(const scheme_t *how, uint32_t k)
{
    static float x[(2 * ROWS_MAX + TR_ROW_PAD) * K_BLOCK];
    static float panel[K_BLOCK * PANEL];
    static float whole[(ROWS_MAX + TR_ROW_PAD) * PANEL];
    static float part[(ROWS_MAX + TR_ROW_PAD) * PANEL];
    static float held[(ROWS_MAX + TR_ROW_PAD) * PANEL];

    probe_fill(held, sizeof(held) / sizeof(held[0]), 3);
    probe_fill(x, sizeof(x) / sizeof(x[0]), 1);
    probe_fill(panel, sizeof(panel) / sizeof(panel[0]), 2);
    for (int add = 0; add < 2; add++) {
        memcpy(whole, held, sizeof(whole));
        panel_product(how, panel, k, x, k, ROWS_MAX, whole, PANEL, add);
        for (uint32_t n = 1; n <= ROWS_MAX; n++) {
            uint32_t at = (n * 37) % (ROWS_MAX - n + 1);

            memcpy(part, held + (size_t) at * PANEL,
                   (size_t) n * PANEL * sizeof(float));
            panel_product(how, panel, k, x + (size_t) at * k, k, n, part, PANEL,
                          add);
            if (memcmp(part, whole + (size_t) at * PANEL,
                       (size_t) n * PANEL * sizeof(float))) {
                return false;
            }
        }
    }
    return true;
}

void
tr_cpu_matmul_probe(void)
{
    static const uint32_t ks[] = { K_BLOCK, 232, 128, 64, 40, 16, 7 };

    openblas_set_num_threads(1);
    for (size_t i = 0; i < N_SCHEMES; i++) {
        bool holds = true;

        for (size_t j = 0; holds && j < sizeof(ks) / sizeof(ks[0]); j++) {
            holds = probe_holds(&schemes[i], ks[j]);
        }
        if (holds) {
            scheme = schemes[i];
            return;
        }
    }
    scheme = schemes[N_SCHEMES - 1];
}

void
tr_cpu_matmul_scheme(uint32_t *quantum, uint32_t *rows_max)
{
    *quantum = scheme.quantum;
    *rows_max = scheme.rows_max;
}
