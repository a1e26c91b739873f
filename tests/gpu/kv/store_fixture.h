/*
 * store_bed.h: two caches side by side for test_store.c.  The CPU backend works
 * on one, the CUDA backend on the other; the
 * tables and counts of both are the bed's, which deals out pages.  A page that
 * nobody had yet is 0xff throughout, NaN wherever it could be read as a number;
 * one that comes back keeps what it held.
 */
#ifndef TR_TESTS_GPU_STORE_BED_H
#define TR_TESTS_GPU_STORE_BED_H

#include "kernels/cuda/device.h"

#include "tests/gpu/fixtures/cache.h"

#define BED_SLOTS 4u

typedef struct {
    tr_device_props_t device;
    tr_cuda_stream_t stream;
} bed_side_t;

typedef struct {
    const bed_side_t *side;
    tr_page_plan_t plan;
    tr_kv_view_t host, other; /* other: of the side that is tested */
    tr_kv_seq_t seq[BED_SLOTS];
    uint32_t dense[BED_SLOTS]; /* tokens in dense pages */
    int32_t *tables;           /* what `host` has, to write */
    uint32_t *count;
    tr_kv_move_t *move;
    int32_t *free_page;
    uint32_t n_free, pages;
    uint8_t *layout_of; /* [pages] that a page was last used with */
    bool nan_in;        /* NaN was put in */
    uint32_t max_len;
} bed_t;

/* What the other side works on: device memory, or host memory. */
void *bed_room(size_t bytes);
void bed_room_free(void *p);
void bed_put(void *to, const void *from, size_t bytes);
void bed_get(void *to, const void *from, size_t bytes);

void bed_open(bed_t *b, const bed_side_t *side);
void bed_close(bed_t *b);
void bed_describe(const bed_t *b);

static inline size_t
bed_head(const bed_t *b, uint32_t slot, uint32_t h)
{
    return (size_t) slot * b->host.layers * b->host.lists + h;
}

static inline int32_t *
bed_row(bed_t *b, uint32_t slot, uint32_t h)
{
    return b->tables + bed_head(b, slot, h) * b->host.table_len;
}

/* Gives an entry a page for a layout, when it has none. */
void bed_page(bed_t *b, int32_t *entry, uint32_t layout);
/* Takes the pages of entries [first, end) of a row back. */
void bed_give_back(bed_t *b, int32_t *row, uint32_t first, uint32_t end);

/* Tables, counts, moves and sequences to the other side. */
void bed_sync(bed_t *b);

/* Are the pages of both sides the same, byte for byte?  But for a NaN of 16
 * bits, which has any sign and payload. */
bool bed_same(bed_t *b, const char *after);

/* Keys, values and angles of n rows, for both sides. */
typedef struct {
    float *k, *v, *angles;
    size_t ld;
    tr_cuda_keys_t other;
    tr_cuda_qkv_t heads; /* of `other` */
    uint16_t *want; /* [rows][heads * head_dim] queries, rotated; or NULL */
} bed_input_t;

void bed_input(bed_t *b, uint32_t rows, bed_input_t *in);
/* Then, for 16 bits: the other side is given them as part of a product's rows,
 * the biases left out. */
void bed_heads(bed_t *b, uint32_t rows, bed_input_t *in);
/* Are the queries of heads.rows rows rotated? */
bool bed_heads_same(const bed_input_t *in);
void bed_input_free(bed_input_t *in);

#endif
