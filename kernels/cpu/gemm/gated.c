/*
 * The two products of an MLP's first half and what joins them, in one:
 * out = act(x Wg^T) * (x Wu^T).  A thread takes a panel of the gate and the
 * same columns of the other half; both products stay in its first-level cache.
 * In a decode step of many streams the other way costs more than it looks: what
 * one core wrote by columns, others read by rows and write again in the next
 * layer, so every line moves between cores twice.
 *
 * Same bits as matmul.c and act_mul.c one after the other.  Reference:
 * test_kernels.c.
 */
#include "kernels/cpu/cpu.h"

#define PANEL TR_COL_PAD

typedef struct {
    const tr_cpu_matrix_t *m;
    tr_panel_t of; /* without a place */
    tr_panel_f product;
    tr_act_row_f row;
    float *out;
    size_t ldo;
    uint32_t pairs, threads;
} gated_t;

/* The product with panel p. */
static void
multiply(const gated_t *a, uint32_t p, uint32_t next, float *y)
{
    tr_panel_t panel = a->of;

    panel.data = tr_cpu_panel_at(a->m, p);
    panel.next = next < 2 * a->pairs ? tr_cpu_panel_at(a->m, next) : NULL;
    panel.y = y;
    a->product(&panel);
}

static void
pairs_run(void *arg, uint32_t first, uint32_t end, uint32_t worker)
{
    const gated_t *a = arg;
    _Alignas(64) float gate[(TR_GATED_ROWS + TR_ROW_PAD) * PANEL];
    _Alignas(64) float up[(TR_GATED_ROWS + TR_ROW_PAD) * PANEL];

    (void) worker;
    for (uint32_t p = first; p < end; p++) {
        /* who works alone takes them in turn; others take theirs between */
        uint32_t next = p + 1 < end ? p + 1 : p + a->threads;

        multiply(a, p, a->pairs + p, gate);
        multiply(a, a->pairs + p, next < a->pairs ? next : 2 * a->pairs, up);
        for (uint32_t r = 0; r < a->of.rows; r++) {
            a->row(gate + r * PANEL, up + r * PANEL,
                   a->out + r * a->ldo + (size_t) p * PANEL, PANEL);
        }
    }
}

int
tr_cpu_gated(const tr_stream_t *s, const tr_cpu_matrix_t *m, const float *x,
             size_t ldx, uint32_t rows, float *out, size_t ldo,
             const tr_products_t *by, tr_act_row_f row)
{
    uint32_t n = m->n / 2;
    gated_t a = { .m = m,
                  .product = m->codes.codes != TR_CODES_NONE ? by->codes
                                                             : by->product,
                  .row = row,
                  .out = out,
                  .ldo = ldo,
                  .pairs = n / PANEL,
                  .threads = (uint32_t) s->threads };

    if (row == NULL || rows > TR_GATED_ROWS || m->n % (2 * PANEL) != 0
        || !tr_cpu_panel_valid(m, ldx) || ldo < n) {
        return TR_KERNEL_BADARG;
    }
    a.of = tr_cpu_panel(s, m, x, ldx, rows, by);
    a.of.ldy = PANEL;
    tr_thread_pool_run(s->thread_pool, s->threads, a.pairs, 1, pairs_run, &a);
    return TR_KERNEL_OK;
}
