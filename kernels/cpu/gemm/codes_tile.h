/*
 * The product of a panel of codes (codes.h) in vectors, written once over the few
 * operations that an instruction set brings; codes_avx2.c, codes_avx512.c and
 * codes_vnni.c define V_* and TR_NAME and include this.
 *
 * A vector of codes has four columns of V_WIDTH outputs: a 32-bit lane each.  A
 * tile of ROWS rows by VECS vectors keeps its integer sums of a group of 32
 * columns, and its FP32 sums, in registers.  With few rows codes are used as they
 * come from memory.  With more than one tile k is cut into blocks, codes of half
 * a byte are made bytes once for all tiles, and as tiles pass over a block they
 * ask for the next one (as in matmul_tile.h).
 */
#include "codes.h"

#define PANEL TR_COL_PAD
#define PARTS (PANEL / (V_CODES_VECS * V_WIDTH))
#define BLOCK_GROUPS \
    8u /* of 32 columns: bytes of a block fit the first cache */
#define QUADS (TR_CODES_COLUMNS / CODES_QUAD)

/* Tiles of some rows, over some groups. */
typedef struct {
    const tr_panel_t *a;
    uint32_t first, end, row; /* groups; the first row */
    const uint8_t *room;      /* codes of these groups as bytes, or NULL */
    const char *ahead;        /* what is asked for, */
    uint32_t lines;           /* and how much of it in a group */
} codes_job_t;

/* Where a group of 32 columns is in its block. */
typedef struct {
    const uint8_t *block;
    uint32_t at; /* groups in front of it in the block */
} codes_cursor_t;

static inline codes_cursor_t
cursor_at(const tr_panel_t *a, uint32_t group)
{
    uint32_t per = a->codes->group / TR_CODES_COLUMNS;

    return (codes_cursor_t){ (const uint8_t *) a->data
                                 + group / per * codes_block(a->codes),
                             group % per };
}

static inline void
cursor_next(const tr_panel_t *a, codes_cursor_t *c)
{
    if (++c->at == a->codes->group / TR_CODES_COLUMNS) {
        c->at = 0;
        c->block += codes_block(a->codes);
    }
}

static inline vec
codes_scales(const uint8_t *p, uint32_t i, tr_dtype_t dtype)
{
    switch (dtype) {
    case TR_BF16:
        return v_from_bf16((const uint16_t *) p + i);
    case TR_F16:
        return v_from_half((const uint16_t *) p + i);
    default:
        return v_load((const float *) p + i);
    }
}

/* A quad of columns, `half` of the bytes at p. */
static inline __attribute__((always_inline)) veci
codes_expand(const uint8_t *p, uint32_t half, tr_codes_t codes)
{
    veci w = vi_load(p);

    if (codes == TR_CODES_INT8) {
        return w;
    }
    w = vi_and(half ? vi_half(w) : w, vi_set1(0x0f0f0f0f));
    return codes == TR_CODES_MXFP4 ? vi_lookup(vi_mxfp4(), w) : w;
}

/* rows, codes and zeros are constants wherever this is inlined; codes: as they
 * are read. */
static inline __attribute__((always_inline)) void
codes_tile(const codes_job_t *t, uint32_t column, uint32_t rows,
           tr_codes_t codes, bool zeros)
{
    const tr_panel_t *a = t->a;
    const tr_cpu_codes_t *of = a->codes;
    const uint32_t groups = a->k / TR_CODES_COLUMNS;
    const size_t one = codes_bytes(codes, TR_CODES_COLUMNS);
    const size_t scales_at = codes_bytes(of->codes, of->group);
    const size_t zeros_at = scales_at + PANEL * tr_dtype_size(of->scales);
    const int32_t zero = codes_zero(of->codes);
    const int8_t *x = a->code + (size_t) t->row * a->k;
    const tr_codes_group_t *group = a->group + (size_t) t->row * groups;
    float *y = a->y + t->row * a->ldy + column;
    const char *ahead = t->ahead;
    codes_cursor_t c = cursor_at(a, t->first);
    vec sum[V_CODES_ROWS][V_CODES_VECS];

#pragma GCC unroll 24
    for (uint32_t i = 0; i < rows * V_CODES_VECS; i++) {
        uint32_t r = i / V_CODES_VECS, v = i % V_CODES_VECS;

        sum[r][v] = a->add || t->first > 0
                        ? v_load(y + r * a->ldy + v * V_WIDTH)
                        : v_set1(0);
    }
    for (uint32_t g = t->first; g < t->end; g++) {
        const uint8_t *p = (t->room != NULL ? t->room + (g - t->first) * one
                                            : c.block + c.at * one)
                           + column * 4;
        veci acc[V_CODES_ROWS][V_CODES_VECS];

        for (uint32_t i = 0; i < t->lines; i++) {
            __builtin_prefetch(ahead, 0, 2);
            ahead += 64;
        }
#pragma GCC unroll 24
        for (uint32_t i = 0; i < rows * V_CODES_VECS; i++) {
            uint32_t r = i / V_CODES_VECS, v = i % V_CODES_VECS;
            int32_t q = -group[r * groups + g].sum;

            acc[r][v] = zeros ? vi_pairs(vi_wide(c.block + zeros_at
                                                 + (column + v * V_WIDTH) * 2),
                                         vi_set1(q & 0xffff))
                              : vi_set1(zero * q);
        }
#pragma GCC unroll 8
        for (uint32_t quad = 0; quad < QUADS; quad++) {
            uint32_t half = codes == TR_CODES_INT8 ? 0 : quad % 2;
            uint32_t at = codes == TR_CODES_INT8 ? quad : quad / 2;
            veci w[V_CODES_VECS];

#pragma GCC unroll 8
            for (uint32_t v = 0; v < V_CODES_VECS; v++) {
                w[v] = codes_expand(p + (at * PANEL + v * V_WIDTH) * 4, half,
                                    codes);
            }
#pragma GCC unroll 8
            for (uint32_t r = 0; r < rows; r++) {
                int32_t four;
                veci q;

                memcpy(&four,
                       x + (size_t) r * a->k + g * TR_CODES_COLUMNS + quad * 4,
                       4);
                q = vi_set1(four);
#pragma GCC unroll 8
                for (uint32_t v = 0; v < V_CODES_VECS; v++) {
                    acc[r][v] = vi_dot(acc[r][v], w[v], q);
                }
            }
        }
#pragma GCC unroll 8
        for (uint32_t v = 0; v < V_CODES_VECS; v++) {
            vec scale = codes_scales(c.block + scales_at, column + v * V_WIDTH,
                                     of->scales);

#pragma GCC unroll 8
            for (uint32_t r = 0; r < rows; r++) {
                vec part = v_mul(vi_float(acc[r][v]),
                                 v_set1(group[r * groups + g].scale));

                sum[r][v] = v_fma(part, scale, sum[r][v]);
            }
        }
        cursor_next(a, &c);
    }
#pragma GCC unroll 24
    for (uint32_t i = 0; i < rows * V_CODES_VECS; i++) {
        uint32_t r = i / V_CODES_VECS, v = i % V_CODES_VECS;

        v_store(y + r * a->ldy + v * V_WIDTH, sum[r][v]);
    }
}

static inline __attribute__((always_inline)) void
codes_tile_rows(const codes_job_t *t, uint32_t column, uint32_t rows,
                tr_codes_t codes, bool zeros)
{
    switch (rows) {
    case 1:
        codes_tile(t, column, 1, codes, zeros);
        return;
    case 2:
        codes_tile(t, column, 2, codes, zeros);
        return;
    default:
        codes_tile(t, column, V_CODES_ROWS, codes, zeros);
        return;
    }
}

/* A tile of n rows over the whole width of the panel. */
static void
codes_tiles(codes_job_t *t, uint32_t n)
{
    const tr_cpu_codes_t *of = t->a->codes;
    tr_codes_t codes = t->room != NULL ? TR_CODES_INT8 : of->codes;

    for (uint32_t c = 0; c < PANEL; c += V_CODES_VECS * V_WIDTH) {
        if (codes == TR_CODES_INT8 && of->zeros) {
            codes_tile_rows(t, c, n, TR_CODES_INT8, true);
        } else if (codes == TR_CODES_INT8) {
            codes_tile_rows(t, c, n, TR_CODES_INT8, false);
        } else if (codes == TR_CODES_MXFP4) {
            codes_tile_rows(t, c, n, TR_CODES_MXFP4, false);
        } else if (of->zeros) {
            codes_tile_rows(t, c, n, TR_CODES_INT4, true);
        } else {
            codes_tile_rows(t, c, n, TR_CODES_INT4, false);
        }
        t->ahead += t->lines * (t->end - t->first) * 64;
    }
}

/* Codes of groups [first, end) as bytes. */
static void
codes_to_bytes(const tr_panel_t *a, uint32_t first, uint32_t end, uint8_t *room)
{
    const size_t one = codes_bytes(a->codes->codes, TR_CODES_COLUMNS);
    codes_cursor_t c = cursor_at(a, first);

    for (uint32_t g = first; g < end; g++) {
        const uint8_t *p = c.block + c.at * one;

        for (uint32_t i = 0; i < QUADS * PANEL * 4; i += V_WIDTH * 4) {
            uint32_t quad = i / (PANEL * 4), at = i % (PANEL * 4);
            const uint8_t *from = p + quad / 2 * PANEL * 4 + at;

            vi_store(room + i,
                     a->codes->codes == TR_CODES_MXFP4
                         ? codes_expand(from, quad % 2, TR_CODES_MXFP4)
                         : codes_expand(from, quad % 2, TR_CODES_INT4));
        }
        room += QUADS * PANEL * 4;
        cursor_next(a, &c);
    }
}

/* All rows, over groups [first, end); next: what comes then, or NULL. */
static void
codes_block_product(const tr_panel_t *a, uint32_t first, uint32_t end,
                    const void *next)
{
    _Alignas(64) uint8_t room[BLOCK_GROUPS * TR_CODES_COLUMNS * PANEL];
    uint32_t tiles = (a->rows + V_CODES_ROWS - 1) / V_CODES_ROWS;
    size_t bytes = codes_bytes(a->codes->codes,
                               (end - first) * TR_CODES_COLUMNS);
    uint32_t asks = tiles * PARTS * (end - first); /* occasions */
    uint32_t lines = next == NULL ? 0
                                  : (uint32_t) ((bytes / 64 + asks - 1) / asks);
    codes_job_t t = { .a = a,
                      .first = first,
                      .end = end,
                      .ahead = (const char *) next,
                      .lines = next == NULL ? 0
                               : lines > 0  ? lines
                                            : 1 };
    const char *stop = (const char *) next + bytes;

    if (a->codes->codes != TR_CODES_INT8 && tiles > 2) {
        codes_to_bytes(a, first, end, room);
        t.room = room;
    }
    for (uint32_t i = 0; i < tiles; i++) {
        uint32_t n = (a->rows - t.row + tiles - i - 1) / (tiles - i);

        codes_tiles(&t, n);
        t.row += n;
        t.lines = t.ahead < stop ? t.lines : 0;
    }
}

void
TR_NAME(tr_codes_panel)(const tr_panel_t *a)
{
    uint32_t groups = a->k / TR_CODES_COLUMNS;

    if (a->rows <= V_CODES_ROWS) {
        codes_job_t t = { .a = a, .end = groups };

        codes_tiles(&t, a->rows);
        return;
    }
    for (uint32_t g = 0; g < groups; g += BLOCK_GROUPS) {
        uint32_t end = g + BLOCK_GROUPS < groups ? g + BLOCK_GROUPS : groups;
        codes_cursor_t c = cursor_at(a, end);
        size_t one = codes_bytes(a->codes->codes, TR_CODES_COLUMNS);

        codes_block_product(a, g, end,
                            end < groups ? c.block + c.at * one
                                         : (const uint8_t *) a->next);
    }
}

/* ---- rows of x ------------------------------------------------------------- */

void
TR_NAME(tr_codes_row)(const float *x, uint32_t k, int8_t *code,
                      tr_codes_group_t *group)
{
    const veci magnitude = vi_set1(0x7fffffff);

    for (uint32_t g = 0; g < k / TR_CODES_COLUMNS; g++) {
        veci most = vi_set1(0), sum = vi_set1(0);
        float max, to;

        for (uint32_t i = 0; i < TR_CODES_COLUMNS; i += V_WIDTH) {
            most = vi_umax(most, vi_and(vi_of(v_load(x + i)), magnitude));
        }
        max = tr_float_from_bits(vi_hmax(most));
        to = max > 0x1p-100f && max < INFINITY ? 127 / max : 0;
        for (uint32_t i = 0; i < TR_CODES_COLUMNS; i += V_WIDTH) {
            /* 0 times what is no number is none */
            veci q = to != 0 ? vi_round(v_mul(v_load(x + i), v_set1(to)))
                             : vi_set1(0);

            sum = vi_add(sum, q);
            vi_store_bytes(code + i, q);
        }
        group[g] = (tr_codes_group_t){ max < INFINITY ? max / 127 : NAN,
                                       vi_hsum(sum) };
        x += TR_CODES_COLUMNS;
        code += TR_CODES_COLUMNS;
    }
}
