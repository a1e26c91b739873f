/*
 * Weights that stay integers (codes.h): packing, reading, and the product in plain
 * C, which is what vectors (codes_tile.h) are tested against, bit by bit.
 */
#include "codes.h"

#include <math.h>
#include <string.h>

#define PANEL TR_COL_PAD

static const uint8_t mxfp4[16] = { CODES_MXFP4 };

/* ---- packing --------------------------------------------------------------- */

size_t
tr_cpu_codes_bytes(uint32_t n, uint32_t k, const tr_cpu_codes_t *c)
{
    if (c->codes == TR_CODES_NONE || c->codes >= TR_CODES || n == 0 || k == 0
        || c->group == 0 || c->group % TR_CODES_COLUMNS != 0
        || k % c->group != 0 || (c->zeros && c->codes == TR_CODES_MXFP4)) {
        return 0;
    }
    return tr_pad(n, PANEL) / PANEL * (k / c->group) * codes_block(c);
}

size_t
tr_cpu_codes_work(uint32_t rows, uint32_t k)
{
    return tr_pad((size_t) rows * k, 64)
           + tr_pad((size_t) rows * (k / TR_CODES_COLUMNS)
                        * sizeof(tr_codes_group_t),
                    64);
}

/* A group of a row. */
typedef struct {
    uint8_t *codes, *scales, *zeros; /* of output 0 of the panel */
    uint32_t output;
} place_t;

static place_t
place_of(const tr_cpu_matrix_t *m, uint32_t row, uint32_t group)
{
    const tr_cpu_codes_t *c = &m->codes;
    uint8_t *block = (uint8_t *) m->data
                     + ((size_t) (row / PANEL) * (m->k / c->group) + group)
                           * codes_block(c);
    uint8_t *scales = block + codes_bytes(c->codes, c->group);

    return (place_t){ block, scales, scales + PANEL * tr_dtype_size(c->scales),
                      row % PANEL };
}

/* Where column i of a group has its byte, and which half of it. */
static size_t
code_at(tr_codes_t codes, uint32_t output, uint32_t i, uint32_t *shift)
{
    *shift = codes == TR_CODES_INT8 ? 0 : i / 4 % 2 * 4;
    i = codes == TR_CODES_INT8 ? i : i / 8 * 4 + i % 4;
    return ((size_t) (i / 4) * PANEL + output) * 4 + i % 4;
}

static void
store_code(const tr_cpu_codes_t *c, const place_t *p, uint32_t i, uint8_t code)
{
    uint32_t shift;
    uint8_t *at = p->codes + code_at(c->codes, p->output, i, &shift);

    *at = c->codes == TR_CODES_INT8
              ? code
              : (uint8_t) ((*at & 0xf0 >> shift) | (code & 15) << shift);
}

static void
store_scale(const tr_cpu_codes_t *c, const place_t *p, float scale,
            uint32_t zero)
{
    tr_float_store(p->scales, p->output, c->scales, scale);
    if (c->zeros) {
        ((uint16_t *) p->zeros)[p->output] = (uint16_t) zero;
    }
}

int
tr_cpu_codes_pack(const tr_cpu_matrix_t *m, uint32_t row, const uint8_t *codes,
                  const float *scales, const uint32_t *zeros)
{
    const tr_cpu_codes_t *c = &m->codes;

    if (c->codes == TR_CODES_NONE || row >= m->n
        || (c->zeros && zeros == NULL)) {
        return TR_KERNEL_BADARG;
    }
    for (uint32_t g = 0; g < m->k / c->group; g++) {
        place_t p = place_of(m, row, g);

        for (uint32_t i = 0; i < c->group; i++) {
            store_code(c, &p, i, codes[(size_t) g * c->group + i]);
        }
        store_scale(c, &p, scales[g], c->zeros ? zeros[g] : 0);
    }
    if (row + 1 == m->n) {
        tr_cpu_codes_fill(m);
    }
    return TR_KERNEL_OK;
}

void
tr_cpu_codes_fill(const tr_cpu_matrix_t *m)
{
    for (size_t n = m->n; n < tr_pad(m->n, PANEL); n++) {
        for (uint32_t g = 0; g < m->k / m->codes.group; g++) {
            place_t p = place_of(m, (uint32_t) n, g);

            store_scale(&m->codes, &p, 0, 0);
        }
    }
}

/* The scale of a group of numbers, as it is kept. */
static float
scale_of(const tr_cpu_codes_t *c, const void *src, size_t first,
         tr_dtype_t dtype)
{
    float most = 0, kept;

    for (uint32_t i = 0; i < c->group; i++) {
        float x = tr_float_load(src, first + i, dtype);

        most = fabsf(x) > fabsf(most) ? x : most;
    }
    tr_float_store(&kept, 0, c->scales,
                   c->codes == TR_CODES_INT8 ? fabsf(most) / 127 : most / -8);
    return tr_float_load(&kept, 0, c->scales);
}

void
tr_cpu_codes_quantise(const tr_cpu_matrix_t *m, uint32_t row, const void *src,
                      tr_dtype_t dtype)
{
    const tr_cpu_codes_t *c = &m->codes;
    int32_t zero = codes_zero(c->codes);
    float low = (float) (c->codes == TR_CODES_INT8 ? 1 : 0);
    float high = (float) (2 * zero - 1);

    for (uint32_t g = 0; g < m->k / c->group; g++) {
        place_t p = place_of(m, row, g);
        size_t first = (size_t) g * c->group;
        float scale = scale_of(c, src, first, dtype);

        for (uint32_t i = 0; i < c->group; i++) {
            float x = tr_float_load(src, first + i, dtype);
            float code = rintf(scale != 0 ? x / scale : 0) + (float) zero;

            code = code > low ? code : low; /* also what is no number */
            store_code(c, &p, i, (uint8_t) (code < high ? code : high));
        }
        store_scale(c, &p, scale, (uint32_t) zero);
    }
}

/* ---- reading --------------------------------------------------------------- */

/* A code above the zero point. */
static int32_t
load_code(const tr_cpu_codes_t *c, const place_t *p, uint32_t i)
{
    uint32_t shift;
    uint8_t byte = p->codes[code_at(c->codes, p->output, i, &shift)];
    int32_t zero = c->zeros ? ((const uint16_t *) p->zeros)[p->output]
                            : codes_zero(c->codes);

    return (c->codes == TR_CODES_INT8   ? byte
            : c->codes == TR_CODES_INT4 ? byte >> shift & 15
                                        : mxfp4[byte >> shift & 15])
           - zero;
}

void
tr_cpu_codes_load(const tr_cpu_matrix_t *m, uint32_t row, float *out)
{
    const tr_cpu_codes_t *c = &m->codes;

    for (uint32_t g = 0; g < m->k / c->group; g++) {
        place_t p = place_of(m, row, g);
        float scale = tr_float_load(p.scales, p.output, c->scales);

        for (uint32_t i = 0; i < c->group; i++) {
            *out++ = (float) load_code(c, &p, i) * scale;
        }
    }
}

/* ---- rows of x ------------------------------------------------------------- */

void
tr_codes_row_c(const float *x, uint32_t k, int8_t *code,
               tr_codes_group_t *group)
{
    for (uint32_t g = 0; g < k / TR_CODES_COLUMNS; g++) {
        uint32_t most = 0;
        float max, to;

        for (uint32_t i = 0; i < TR_CODES_COLUMNS; i++) {
            uint32_t bits = tr_float_bits(x[i]) & 0x7fffffff;

            most = bits > most ? bits : most; /* the largest of all is a NaN */
        }
        max = tr_float_from_bits(most);
        to = max > 0x1p-100f && max < INFINITY ? 127 / max : 0;
        group[g] = (tr_codes_group_t){ max < INFINITY ? max / 127 : NAN, 0 };
        for (uint32_t i = 0; i < TR_CODES_COLUMNS; i++) {
            *code = to != 0 ? (int8_t) rintf(x[i] * to) : 0;
            group[g].sum += *code++;
        }
        x += TR_CODES_COLUMNS;
    }
}

typedef struct {
    const float *x;
    size_t ldx;
    uint32_t k;
    codes_rows_t to;
    tr_codes_row_f row;
} rows_t;

static void
rows_run(void *arg, uint32_t first, uint32_t end, uint32_t worker)
{
    const rows_t *a = arg;

    (void) worker;
    for (uint32_t r = first; r < end; r++) {
        a->row(a->x + r * a->ldx, a->k, a->to.code + (size_t) r * a->k,
               a->to.group + (size_t) r * (a->k / TR_CODES_COLUMNS));
    }
}

void
tr_cpu_codes_rows(const tr_stream_t *s, const tr_cpu_matrix_t *m,
                  const float *x, size_t ldx, uint32_t rows, tr_codes_row_f row)
{
    rows_t a = { x, ldx, m->k, codes_rows(m->codes.work, rows, m->k), row };

    tr_rows_run(s, rows, m->k, rows_run, &a);
}

/* ---- the product ----------------------------------------------------------- */

void
tr_codes_panel_c(const tr_panel_t *a)
{
    const tr_cpu_matrix_t panel = {
        .n = PANEL, .k = a->k, .data = (void *) a->data, .codes = *a->codes
    };
    uint32_t per = a->codes->group / TR_CODES_COLUMNS;

    for (uint32_t g = 0; g < a->k / TR_CODES_COLUMNS; g++) {
        for (uint32_t j = 0; j < PANEL; j++) {
            place_t p = place_of(&panel, j, g / per);
            float scale = tr_float_load(p.scales, j, a->codes->scales);
            int32_t w[TR_CODES_COLUMNS];

            for (uint32_t i = 0; i < TR_CODES_COLUMNS; i++) {
                w[i] = load_code(a->codes, &p, g % per * TR_CODES_COLUMNS + i);
            }
            for (uint32_t r = 0; r < a->rows; r++) {
                const int8_t *x = a->code + (size_t) r * a->k
                                  + g * TR_CODES_COLUMNS;
                float *y = a->y + r * a->ldy + j;
                int32_t sum = 0;

                for (uint32_t i = 0; i < TR_CODES_COLUMNS; i++) {
                    sum += w[i] * x[i];
                }
                *y = fmaf(
                    (float) sum
                        * a->group[(size_t) r * (a->k / TR_CODES_COLUMNS) + g]
                              .scale,
                    scale, g > 0 || a->add ? *y : 0);
            }
        }
    }
}
