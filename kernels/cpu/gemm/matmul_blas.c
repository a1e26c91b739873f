/*
 * Matrix products (matmul.c) where there is no FMA: OpenBLAS sgemm, a call a
 * block of a panel.
 *
 * Why so.  OpenBLAS packs its operands on every call, which costs more than
 * the product itself when there are few rows (decode).  Its kernels for small
 * products (M N K <= 10^6), where it has any, do not pack; PANEL * K_BLOCK *
 * ROWS_MAX stays below that (64 * 256 * 48), and the panel stays in the
 * first-level caches while all rows pass by.  OpenBLAS itself runs one thread;
 * where it is built on OpenMP, every thread has to say so for itself.
 *
 * Bit-exactness.  The sum over k is cut at fixed places (K_BLOCK), each part
 * is one call with the same n and k, and nobody splits k further.  What is
 * left is OpenBLAS's treatment of the number of rows in a call, which differs
 * between its kernels: some give the same bits for a row whatever surrounds
 * it, some only when the rows come in full tiles.  So the scheme is not
 * assumed but probed once at start: the smallest quantum to which calls are
 * padded, out of a list, such that a row has the same bits at every place and
 * for every count.  The last entry, one row a call, holds by construction.
 * Reference: test_matmul.c, plain loops in double.
 */
#include "kernels/cpu/cpu.h"

#include <cblas.h>
#include <pthread.h>
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

/* Where a panel's numbers are, and how they lie there. */
typedef struct {
    const void *data;
    tr_dtype_t dtype;
    uint32_t k;
    bool by_rows;
} weights_t;

/* Inputs [k0, k0 + n) of a panel in FP32, [n][PANEL], in `room` unless they
 * are. */
static const float *
expanded(const weights_t *w, uint32_t k0, uint32_t n, float *room)
{
    size_t first = (size_t) k0 * PANEL;

    if (w->dtype == TR_F32) {
        return (const float *) w->data + first;
    }
    for (uint32_t i = 0; w->by_rows && i < n * PANEL; i++) {
        size_t at = (size_t) (i % PANEL) * w->k + k0 + i / PANEL;

        room[i] = tr_float_load(w->data, at, w->dtype);
    }
    for (uint32_t i = 0; !w->by_rows && i < n * PANEL; i++) {
        room[i] = tr_float_load(w->data, first + i, w->dtype);
    }
    return room;
}

/* One panel: y[rows][PANEL] (+)= x[rows][k] * panel. */
static void
panel_product(const scheme_t *how, const weights_t *panel, const float *x,
              size_t ldx, uint32_t rows, float *y, size_t ldy, bool add)
{
    uint32_t k = panel->k;
    _Alignas(64) float room[K_BLOCK * PANEL];

    for (uint32_t k0 = 0; k0 < k; k0 += K_BLOCK) {
        uint32_t kn = k - k0 < K_BLOCK ? k - k0 : K_BLOCK;
        const float *w = expanded(panel, k0, kn, room);

        for (uint32_t r = 0; r < rows; r += how->rows_max) {
            uint32_t n = rows - r < how->rows_max ? rows - r : how->rows_max;

            n = (uint32_t) tr_pad(n, how->quantum);
            cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (int) n,
                        (int) PANEL, (int) kn, 1.0f, x + r * ldx + k0,
                        (int) ldx, w, (int) PANEL, add || k0 ? 1.0f : 0.0f,
                        y + r * ldy, (int) ldy);
        }
    }
}

/* OpenBLAS changes what all threads share when it is told. */
static void
one_thread(void)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static _Thread_local bool told;

    if (!told) {
        pthread_mutex_lock(&lock);
        openblas_set_num_threads(1);
        pthread_mutex_unlock(&lock);
        told = true;
    }
}

void
tr_panel_blas(const tr_panel_t *a)
{
    one_thread();
    panel_product(&scheme, &(weights_t){ a->data, a->dtype, a->k, a->by_rows },
                  a->x, a->ldx, a->rows, a->y, a->ldy, a->add);
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
    const weights_t w = { panel, TR_F32, k, false };

    probe_fill(held, sizeof(held) / sizeof(held[0]), 3);
    probe_fill(x, sizeof(x) / sizeof(x[0]), 1);
    probe_fill(panel, sizeof(panel) / sizeof(panel[0]), 2);
    for (int add = 0; add < 2; add++) {
        memcpy(whole, held, sizeof(whole));
        panel_product(how, &w, x, k, ROWS_MAX, whole, PANEL, add);
        for (uint32_t n = 1; n <= ROWS_MAX; n++) {
            uint32_t at = (n * 37) % (ROWS_MAX - n + 1);

            memcpy(part, held + (size_t) at * PANEL,
                   (size_t) n * PANEL * sizeof(float));
            panel_product(how, &w, x + (size_t) at * k, k, n, part, PANEL, add);
            if (memcmp(part, whole + (size_t) at * PANEL,
                       (size_t) n * PANEL * sizeof(float))) {
                return false;
            }
        }
    }
    return true;
}

void
tr_panel_blas_probe(void)
{
    static const uint32_t ks[] = { K_BLOCK, 232, 128, 64, 40, 16, 7 };

    one_thread();
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
tr_panel_blas_scheme(uint32_t *quantum, uint32_t *rows_max)
{
    *quantum = scheme.quantum;
    *rows_max = scheme.rows_max;
}
