/*
 * Matrix products: y = x W^T over packed panels.
 *
 * Weights are stored in FP32, or in BF16 or F16 where that is what the file has:
 * half the memory, and half of what a decode step must read.  They are expanded in
 * registers, or by blocks where many rows use them: an FP32 of the same value, so
 * results have the same bits.
 *
 * Layout.  W [n][k] is cut into panels of PANEL outputs; a panel is stored
 * [k][PANEL], so that its product with some rows is a row-major C = A * B and
 * nothing has to be transposed or packed in a step.  The last panel is filled
 * up with zeros: all have the same width.  Threads of the pool take whole
 * panels, one after the other.
 *
 * Or the rows of a panel stay in the file that they come from, [PANEL][k]: they
 * are turned when a block is expanded.  No memory and no time at start is spent on
 * them, and each step spends a little more.
 *
 * Or weights are integers, and rows of x become such for the product: codes.h.
 *
 * What multiplies a panel is matmul_tile.h with AVX2 or AVX-512, and OpenBLAS
 * (matmul_blas.c) on a processor that has neither.  A library's product is as
 * fast as ours when the weights are in the cache, but there they are only in
 * long prompts.  A decode step reads every weight from memory once and uses it
 * for 2 to some 50 rows; a library computes when it has read, while ours reads
 * the next block of a panel as it computes with this one.
 *
 * Reference: test_matmul.c, plain loops in double for the value, and one chain
 * of fused multiply-adds for the bits.
 */
#include "codes.h"

#include <string.h>

#define PANEL TR_COL_PAD

size_t
tr_cpu_matrix_bytes(uint32_t n, uint32_t k, tr_dtype_t dtype)
{
    return tr_pad(n, PANEL) * k * tr_dtype_size(dtype);
}

/* Whole panels, and of k what vectors turn at once (tr_panel of matmul_tile.h). */
bool
tr_cpu_matrix_maps(uint32_t n, uint32_t k, tr_dtype_t dtype)
{
    return tr_dtype_is_short(dtype) && n % PANEL == 0 && k % 32 == 0;
}

const void *
tr_cpu_panel_at(const tr_cpu_matrix_t *m, uint32_t panel)
{
    size_t size;

    if (m->mapped != NULL) {
        return m->mapped[panel];
    }
    size = m->codes.codes != TR_CODES_NONE
               ? tr_cpu_codes_bytes(PANEL, m->k, &m->codes)
               : (size_t) m->k * PANEL * tr_dtype_size(m->dtype);
    return (const uint8_t *) m->data + panel * size;
}

const void *
tr_cpu_matrix_row(const tr_cpu_matrix_t *m, uint32_t row, size_t *step)
{
    size_t apart = m->mapped != NULL ? m->k : 1;

    *step = m->mapped != NULL ? 1 : PANEL;
    return (const uint8_t *) tr_cpu_panel_at(m, row / PANEL)
           + row % PANEL * apart * tr_dtype_size(m->dtype);
}

static void
pack_row(const tr_cpu_matrix_t *m, uint32_t row, const void *src,
         tr_dtype_t dtype)
{
    const uint8_t *in = src;
    size_t step;
    uint8_t *out = (uint8_t *) tr_cpu_matrix_row(m, row, &step);

    if (dtype == m->dtype && dtype != TR_F32) { /* whatever NaN it is */
        for (uint32_t k = 0; k < m->k; k++) {
            memcpy((uint16_t *) out + k * step, in + 2 * k, 2);
        }
        return;
    }
    for (uint32_t k = 0; k < m->k; k++) {
        tr_float_store(out, (size_t) k * PANEL, m->dtype,
                       tr_float_load(in, k, dtype));
    }
}

int
tr_cpu_matrix_pack(const tr_cpu_matrix_t *m, uint32_t row, uint32_t rows,
                   const void *src, tr_dtype_t dtype)
{
    size_t width = tr_dtype_size(dtype);
    bool codes = m->codes.codes != TR_CODES_NONE;

    if (rows > m->n || row > m->n - rows || m->codes.codes == TR_CODES_MXFP4
        || m->mapped != NULL) {
        return TR_KERNEL_BADARG;
    }
    for (uint32_t r = 0; r < rows; r++) {
        (codes ? tr_cpu_codes_quantise
               : pack_row)(m, row + r,
                           (const uint8_t *) src + (size_t) r * m->k * width,
                           dtype);
    }
    if (codes && row + rows == m->n) {
        tr_cpu_codes_fill(m);
    } else if (row + rows == m->n) { /* the zeros that fill the last panel */
        for (size_t n = m->n; n < tr_pad(m->n, PANEL); n++) {
            size_t step;
            void *out = (void *) tr_cpu_matrix_row(m, (uint32_t) n, &step);

            for (uint32_t k = 0; k < m->k; k++) {
                tr_float_store(out, (size_t) k * PANEL, m->dtype, 0);
            }
        }
    }
    return TR_KERNEL_OK;
}

typedef struct {
    const tr_cpu_matrix_t *m;
    tr_panel_t of; /* as they are in panel 0 */
    tr_panel_f product;
    uint32_t panels, threads;
} product_t;

static void
panels_run(void *arg, uint32_t first, uint32_t end, uint32_t worker)
{
    const product_t *a = arg;
    (void) worker;
    for (uint32_t p = first; p < end; p++) {
        tr_panel_t panel = a->of;
        /* who works alone takes them in turn; others take theirs between */
        uint32_t next = p + 1 < end ? p + 1 : p + a->threads;

        panel.data = tr_cpu_panel_at(a->m, p);
        panel.next = next < a->panels ? tr_cpu_panel_at(a->m, next) : NULL;
        panel.y += (size_t) p * PANEL;
        a->product(&panel);
    }
}

bool
tr_cpu_panel_valid(const tr_cpu_matrix_t *m, size_t ldx)
{
    return ldx >= m->k
           && (m->codes.codes == TR_CODES_NONE || m->codes.work != NULL);
}

tr_panel_t
tr_cpu_panel(const tr_stream_t *s, const tr_cpu_matrix_t *m, const float *x,
             size_t ldx, uint32_t rows, const tr_products_t *by)
{
    tr_panel_t p = { .dtype = m->dtype,
                     .by_rows = m->mapped != NULL,
                     .k = m->k,
                     .rows = rows,
                     .x = x,
                     .ldx = ldx,
                     .codes = &m->codes };

    if (m->codes.codes != TR_CODES_NONE) {
        codes_rows_t to = codes_rows(m->codes.work, rows, m->k);

        tr_cpu_codes_rows(s, m, x, ldx, rows, by->row);
        p.code = to.code;
        p.group = to.group;
    }
    return p;
}

int
tr_cpu_matmul(const tr_stream_t *s, const tr_cpu_matrix_t *m, const float *x,
              size_t ldx, uint32_t rows, float *y, size_t ldy, int add,
              const tr_products_t *by)
{
    product_t a = { .m = m,
                    .product = m->codes.codes != TR_CODES_NONE ? by->codes
                                                               : by->product,
                    .panels = (uint32_t) (tr_pad(m->n, PANEL) / PANEL),
                    .threads = (uint32_t) s->threads };

    if (!tr_cpu_panel_valid(m, ldx) || ldy < tr_pad(m->n, PANEL)) {
        return TR_KERNEL_BADARG;
    }
    a.of = tr_cpu_panel(s, m, x, ldx, rows, by);
    a.of.y = y;
    a.of.ldy = ldy;
    a.of.add = add != 0;
    tr_thread_pool_run(s->thread_pool, s->threads, a.panels, 1, panels_run, &a);
    return TR_KERNEL_OK;
}
