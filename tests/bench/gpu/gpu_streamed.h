/*
 * Layers of a cache that stream from host memory through buffers on the device
 * (gpu_streamed.c), by the engine's kernels and copies, without the engine: it
 * returns pages alone.  A layer's keys and values come as
 *
 *   pages   of 16 bits, as they were
 *   X       the layer's normed input, of which the K and V rows of the QKV product
 *           make them again: half the bytes where all heads have keys of their own
 *
 * and in a split (KVPR) the first tokens come as X, the rest as pages: the product
 * runs while these are copied.
 */
#ifndef TR_BENCH_GPU_STREAMED_H
#define TR_BENCH_GPU_STREAMED_H

#include "gpu_fixture.h"

#define STREAMED_BUFFERS 2u
#define STREAMED_PIECES 512u
#define STREAMED_CHUNK \
    64u /* a front is a multiple of so many tokens, or of a
                            * few more that are whole pages */

typedef enum {
    STREAMED_LAYERS, /* a layer is copied while the one before is computed */
    STREAMED_CHUNKS, /* layer by layer; each piece of X is multiplied as it comes */
    STREAMED_X_FIRST, /* layer by layer, and all of its X first (the paper's) */
    STREAMED_ORDERS
} streamed_order_t;

/* Rows of a product: tokens [from, from + tokens) of sequences [first, first +
 * seqs). */
typedef struct {
    uint32_t first, seqs, from, tokens;
    uint32_t row, rows, at; /* in arrays of rows, and of seq_row */
} streamed_piece_t;

typedef struct {
    fixture_t *b;
    tr_model_cuda_t *m;
    const tr_device_t *cuda;
    uint32_t seqs, tokens; /* of each; a step adds one */
    uint32_t layers;       /* of the model; hosts: of them in host memory, that
                            * are used in turn */
    uint32_t hosts;
    uint32_t head_pages, heads; /* pages of a KV head; KV heads */
    size_t page, x_row, seq_bytes, layer_bytes; /* bytes */
    tr_kv_layout_t layout;
    tr_kv_view_t view;          /* of STREAMED_BUFFERS layers */
    uint8_t *pages, *x, *check; /* pinned: [hosts] layers; one sequence */
    uint8_t *came_x[STREAMED_BUFFERS];
    uint8_t *made; /* keys and values of a piece */
    size_t ld;     /* its rows, elements; wide: they have room for queries */
    bool wide;
    float *angles;
    uint32_t *row_pos, *seq_row;
    int32_t *slot;
    tr_cuda_matmul_t *products;
    tr_cuda_stream_t copies;
    void *came[STREAMED_BUFFERS][STREAMED_PIECES], *paged[STREAMED_BUFFERS];
    void *used[STREAMED_BUFFERS], *begun, *ended;
    streamed_piece_t piece[STREAMED_PIECES];
    uint32_t n_pieces, front;
} streamed_t;

void streamed_open(streamed_t *s, fixture_t *b, uint32_t seqs, uint32_t tokens);
void streamed_close(streamed_t *s);

/* About part / parts of the tokens. */
uint32_t streamed_front(const streamed_t *s, uint32_t part, uint32_t parts);
/* From now on the first `front` tokens of each sequence come as X. */
void streamed_set_front(streamed_t *s, uint32_t front);
/* Bytes of a layer: of X, and of pages. */
double streamed_x_bytes(const streamed_t *s);
double streamed_page_bytes(const streamed_t *s);

/* How layers are brought; work: NULL, or what is done with each behind that, in the
 * stream of the model. */
typedef struct {
    streamed_order_t order;
    double
        share; /* of the pages that are copied: 1, or as if they were smaller */
    bool copy, compute; /* one of both may be left out, to know the other */
    void (*begin)(streamed_t *s);
    void (*work)(streamed_t *s, uint32_t layer, uint32_t buffer);
} streamed_way_t;

/* Milliseconds of all layers, the least of some times. */
double streamed_ms(streamed_t *s, const streamed_way_t *way);
/* What the buffers hold by now beside what it should be: the largest difference
 * over the largest number; dies of a NaN. */
double streamed_error(streamed_t *s);

#endif
