/*
 * The product of a panel (matmul.c) in vectors, written once over the few
 * operations that an instruction set brings; matmul_avx2.c and matmul_avx512.c
 * define V_* and TR_NAME and include this.
 *
 * A tile of up to ROWS rows times V_VECS vectors of the panel's columns stays
 * in registers while k passes by.  Each k needs the vectors once and a number
 * of each row: the multipliers wait for nothing as long as the panel comes from
 * the second-level cache.  So with more than one tile k is cut into equal blocks,
 * all tiles pass over a block, and as they do they ask for the next one, evenly
 * spread: memory and multipliers are busy at once.  With few rows, whose tiles
 * have little time for that, a block and its part of x fit into the first-level
 * cache, so that only the first tile waits for the second level.  With one tile
 * every weight is used once, and plain reading is as fast as memory.
 *
 * Weights of 16 bits are expanded when they are loaded into registers, where one
 * tile is all; where several pass over a block, the block is expanded first, into
 * room in the nearest caches.  So are rows that stay as they are in a file
 * (tr_cpu_matrix_t's mapped), which are turned on the way, and ask for the next
 * block as they are read.
 *
 * Bit-exactness.  Every element of y is one chain of fused multiply-adds in
 * ascending k, from 0 or from what y held.  Between blocks the chain waits in
 * y, which changes nothing.  So tiles, blocks, threads and the width of vectors
 * have no influence: AVX2 and AVX-512 give the same bits.
 */
#include "kernels/cpu/cpu.h"

#define PANEL TR_COL_PAD
#define K_BLOCK 192u
#define K_BLOCK_FEW 96u
#define FEW_ROWS 48u
#define ROWS 6u
#define VECS_MAX (PANEL / V_WIDTH)
#define ASKING_MAX 16u /* so that each asks for enough */

/* A tile: y (+)= x[rows][k] * b[k][vecs].  While it runs it asks for what is at
 * `ahead`, `step` bytes each k, at most two cache lines. */
typedef struct {
    uint32_t k;
    const float *x;
    const void *b;
    float *y;
    size_t ldx, ldy;
    bool add;
    const char *ahead;
    size_t step;
} tile_t;

/* V_WIDTH weights from element i on. */
static inline __attribute__((always_inline)) vec
weights(const void *p, size_t i, tr_dtype_t dtype)
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

/* rows, vecs, asks and dtype are constants wherever this is inlined. */
static inline __attribute__((always_inline)) void
tile_sized(const tile_t *t, uint32_t rows, uint32_t vecs, bool asks,
           tr_dtype_t dtype)
{
    const size_t line = PANEL * (dtype == TR_F32 ? 4 : 2);
    const uint8_t *b = t->b, *end = b + t->k * line;
    const float *x = t->x;
    const char *ahead = t->ahead;
    size_t ldx = t->ldx, step = t->step;
    vec acc[ROWS][VECS_MAX];

#pragma GCC unroll 24
    for (uint32_t i = 0; i < rows * vecs; i++) {
        acc[i / vecs][i % vecs] = v_set1(0);
    }
    if (t->add) {
#pragma GCC unroll 24
        for (uint32_t i = 0; i < rows * vecs; i++) {
            acc[i / vecs][i % vecs] = v_load(t->y + i / vecs * t->ldy
                                             + i % vecs * V_WIDTH);
        }
    }
    for (; b != end; b += line, x++) {
        vec bv[VECS_MAX];

#pragma GCC unroll 8
        for (uint32_t v = 0; v < vecs; v++) {
            bv[v] = weights(b, v * V_WIDTH, dtype);
            V_KEEP(bv[v]);
        }
        if (asks) {
            __builtin_prefetch(ahead, 0, 2);
            __builtin_prefetch(ahead + 64, 0, 2);
            ahead += step;
        }
#pragma GCC unroll 8
        for (uint32_t r = 0; r < rows; r++) {
            vec a = v_set1(x[r * ldx]);

#pragma GCC unroll 8
            for (uint32_t v = 0; v < vecs; v++) {
                acc[r][v] = v_fma(a, bv[v], acc[r][v]);
            }
        }
    }
#pragma GCC unroll 24
    for (uint32_t i = 0; i < rows * vecs; i++) {
        v_store(t->y + i / vecs * t->ldy + i % vecs * V_WIDTH,
                acc[i / vecs][i % vecs]);
    }
}

static inline __attribute__((always_inline)) void
tile_rows(const tile_t *t, uint32_t rows, uint32_t vecs, bool asks,
          tr_dtype_t dtype)
{
    switch (rows) {
    case 1:
        tile_sized(t, 1, vecs, asks, dtype);
        return;
    case 2:
        tile_sized(t, 2, vecs, asks, dtype);
        return;
    case 3:
        tile_sized(t, 3, vecs, asks, dtype);
        return;
    case 4:
        tile_sized(t, 4, vecs, asks, dtype);
        return;
    case 5:
        tile_sized(t, 5, vecs, asks, dtype);
        return;
    default:
        tile_sized(t, 6, vecs, asks, dtype);
        return;
    }
}

static inline __attribute__((always_inline)) void
once(const tile_t *t, uint32_t rows, tr_dtype_t dtype)
{
    if (V_ONCE_ROWS == 1) {
        tile_sized(t, 1, VECS_MAX, false, dtype);
    } else {
        tile_rows(t, rows, VECS_MAX, false, dtype);
    }
}

/* One tile of rows over the whole panel. */
static void
panel_once(const tr_panel_t *a)
{
    const tile_t t = { .k = a->k,
                       .x = a->x,
                       .b = a->data,
                       .y = a->y,
                       .ldx = a->ldx,
                       .ldy = a->ldy,
                       .add = a->add };

    switch (a->dtype) {
    case TR_BF16:
        once(&t, a->rows, TR_BF16);
        return;
    case TR_F16:
        once(&t, a->rows, TR_F16);
        return;
    default:
        once(&t, a->rows, TR_F32);
        return;
    }
}

/* Inputs [k0, k0 + k) of a panel in FP32, in `room` unless they are. */
static const float *
expanded(const tr_panel_t *a, uint32_t k0, uint32_t k, float *room)
{
    const uint16_t *from = (const uint16_t *) a->data + (size_t) k0 * PANEL;

    if (a->dtype == TR_F32) {
        return (const float *) a->data + (size_t) k0 * PANEL;
    }
    if (a->dtype == TR_BF16) {
        for (uint32_t i = 0; i < k * PANEL; i += V_WIDTH) {
            v_store(room + i, v_from_bf16(from + i));
        }
    } else {
        for (uint32_t i = 0; i < k * PANEL; i += V_WIDTH) {
            v_store(room + i, v_from_half(from + i));
        }
    }
    return room;
}

/* V_WIDTH rows of a panel that stays in its file, inputs [k0, k0 + k), as columns
 * of `room`.  ahead: how far what comes next is, of the same row, in bytes. */
static inline __attribute__((always_inline)) void
turn_rows(const uint16_t *rows, size_t ld, uint32_t k, ptrdiff_t ahead,
          tr_dtype_t dtype, float *room)
{
    for (uint32_t c = 0; c < k; c += 2 * V_WIDTH) {
        vec pair[V_WIDTH];

#pragma GCC unroll 16
        for (uint32_t r = 0; r < V_WIDTH; r++) {
            const uint16_t *from = rows + r * ld + c;

            pair[r] = v_load((const float *) (const void *) from);
            __builtin_prefetch((const char *) from + ahead, 0, 2);
        }
        v_transpose(pair);
#pragma GCC unroll 16
        for (uint32_t i = 0; i < V_WIDTH; i++) {
            float *to = room + (c + 2 * i) * (size_t) PANEL;

            if (dtype == TR_BF16) {
                v_store(to, v_bf16_first(pair[i]));
                v_store(to + PANEL, v_bf16_second(pair[i]));
            } else {
                v_store(to, v_half_first(pair[i]));
                v_store(to + PANEL, v_half_second(pair[i]));
            }
        }
    }
}

/* Inputs [k0, k0 + k) of such a panel in FP32.  With one tile there is no other time
 * to ask for what comes next. */
static const float *
turned(const tr_panel_t *a, uint32_t k0, uint32_t k, const void *next,
       float *room)
{
    const uint16_t *from = (const uint16_t *) a->data + k0;
    ptrdiff_t ahead = next != NULL && a->rows <= ROWS
                          ? (const char *) next - (const char *) from
                          : 0;

    for (uint32_t r = 0; r < PANEL; r += V_WIDTH) {
        if (a->dtype == TR_BF16) {
            turn_rows(from + r * (size_t) a->k, a->k, k, ahead, TR_BF16,
                      room + r);
        } else {
            turn_rows(from + r * (size_t) a->k, a->k, k, ahead, TR_F16,
                      room + r);
        }
    }
    return room;
}

/* All tiles of inputs [k0, k0 + k); next: what comes then, or NULL. */
static void
block_product(const tr_panel_t *a, uint32_t k0, uint32_t k, const void *next)
{
    _Alignas(64) float room[K_BLOCK * PANEL];
    const float *b = a->by_rows ? turned(a, k0, k, next, room)
                                : expanded(a, k0, k, room);
    uint32_t width = tr_dtype_size(a->dtype);
    uint32_t tiles = (a->rows + ROWS - 1) / ROWS, row = 0;
    uint32_t asking = tiles * (VECS_MAX / V_VECS); /* passes that do */
    tile_t t = { .k = k,
                 .ldx = a->ldx,
                 .ldy = a->ldy,
                 .add = a->add || k0 > 0,
                 .ahead = (const char *) next };

    asking = next == NULL ? 0 : asking < ASKING_MAX ? asking : ASKING_MAX;
    t.step = asking > 0 ? PANEL * width / asking : 0;
    if (a->by_rows
        && asking > 0) { /* a row each k: its last two lines, the first
                                     * of which may be the end of this block's */
        asking = a->rows > ROWS ? 1 : 0;
        t.ahead += 63;
        t.step = a->k * (size_t) 2;
    }
    for (uint32_t i = 0; i < tiles; i++) {
        uint32_t n = (a->rows - row + tiles - i - 1) / (tiles - i);

        t.x = a->x + row * a->ldx + k0;
        for (uint32_t c = 0; c < PANEL; c += V_VECS * V_WIDTH) {
            t.b = b + c;
            t.y = a->y + row * a->ldy + c;
            if (asking > 0) {
                asking--;
                tile_rows(&t, n, V_VECS, true, TR_F32);
                t.ahead += k * t.step;
            } else {
                tile_rows(&t, n, V_VECS, false, TR_F32);
            }
        }
        row += n;
    }
}

/* Blocks of whole vectors; with several tiles, of as many k as a panel has rows, so
 * that the first asks for two lines of each. */
static void
panel_by_rows(const tr_panel_t *a)
{
    uint32_t most = a->rows <= ROWS ? K_BLOCK_FEW : PANEL, k;

    for (uint32_t k0 = 0; k0 < a->k; k0 += k) {
        k = a->k - k0 < most ? a->k - k0 : most;
        block_product(a, k0, k,
                      k0 + k < a->k ? (const uint16_t *) a->data + k0 + k
                                    : a->next);
    }
}

void
TR_NAME(tr_panel)(const tr_panel_t *a)
{
    uint32_t most = a->rows <= FEW_ROWS ? K_BLOCK_FEW : K_BLOCK;
    uint32_t blocks = (a->k + most - 1) / most, k0 = 0;
    size_t line = PANEL * tr_dtype_size(a->dtype);

    if (a->by_rows) {
        panel_by_rows(a);
        return;
    }
    if (a->rows <= V_ONCE_ROWS) {
        panel_once(a);
        return;
    }
    for (uint32_t i = 0; i < blocks; i++) {
        uint32_t k = (a->k - k0 + blocks - i - 1) / (blocks - i);

        block_product(a, k0, k,
                      i + 1 < blocks
                          ? (const uint8_t *) a->data + (k0 + k) * line
                          : a->next);
        k0 += k;
    }
}
