/*
 * store_fixture.h: two caches side by side for test_store.c.  The CPU backend
 * works on one, the CUDA backend on the other; both have the same tables and
 * counts, and get their pages from here.  A page that was never used is 0xff
 * throughout, NaN wherever it is read as a number; one that comes back keeps
 * what it held.
 */
#ifndef TR_TESTS_GPU_STORE_FIXTURE_H
#define TR_TESTS_GPU_STORE_FIXTURE_H

#include "kernels/cuda/device.h"

#include "tests/gpu/fixtures/cache.h"

#define FIXTURE_SLOTS 4u

typedef struct {
    tr_device_props_t device;
    tr_cuda_stream_t stream;
    uint32_t longer; /* sequences are so many times as long as usual */
} fixture_side_t;

typedef struct {
    const fixture_side_t *side;
    tr_page_plan_t plan;
    tr_kv_view_t host, other; /* other: of the side that is tested */
    tr_kv_seq_t seq[FIXTURE_SLOTS];
    uint32_t uncompressed[FIXTURE_SLOTS]; /* tokens in uncompressed pages */
    int32_t *tables;                      /* what `host` has, to write */
    uint32_t *count, *frozen;
    tr_kv_move_t *move;
    int32_t *free_page;
    uint32_t n_free, pages;
    uint8_t *layout_of; /* [pages] that a page was last used with */
    bool nan_in;        /* NaN was put in */
    uint32_t max_len;
} fixture_t;

/* Rounds of a test program NAME [rounds [seed]], each with random numbers of its
 * own; says which failed, and `what` it saw.  What main returns: 77 without a
 * device. */
typedef bool (*fixture_round_t)(const fixture_side_t *side);
int fixture_rounds(int argc, char **argv, const char *name, uint32_t longer,
                   fixture_round_t one_round, void (*what)(void));

/* What the other side works on: device memory, or host memory. */
void *fixture_room(size_t bytes);
void fixture_room_free(void *p);
void fixture_put(void *to, const void *from, size_t bytes);
void fixture_get(void *to, const void *from, size_t bytes);

void fixture_open(fixture_t *b, const fixture_side_t *side);
void fixture_close(fixture_t *b);
void fixture_describe(const fixture_t *b);

static inline size_t
fixture_head(const fixture_t *b, uint32_t slot, uint32_t h)
{
    return (size_t) slot * b->host.layers * b->host.kv_heads + h;
}

static inline int32_t *
fixture_row(fixture_t *b, uint32_t slot, uint32_t h)
{
    return b->tables + fixture_head(b, slot, h) * b->host.table_len;
}

/* Gives an entry a page for a layout, when it has none. */
void fixture_page(fixture_t *b, int32_t *entry, uint32_t layout);
/* Takes the pages of entries [first, end) of a row back. */
void fixture_give_back(fixture_t *b, int32_t *row, uint32_t first,
                       uint32_t end);

/* Tables, counts, moves and sequences to the other side. */
void fixture_sync(fixture_t *b);

/* Are the pages of both sides the same, byte for byte?  But for a NaN of 16
 * bits, which has any sign and payload. */
bool fixture_same(fixture_t *b, const char *after);

/* Keys, values and angles of n rows, for both sides. */
typedef struct {
    float *k, *v, *angles;
    void *there; /* angles of the other side, whether it is given them or not */
    size_t ld;
    tr_cuda_keys_t other;
    tr_cuda_qkv_t heads; /* of `other` */
    uint16_t *want; /* [rows][heads * head_dim] queries, rotated; or NULL */
} fixture_input_t;

void fixture_input(fixture_t *b, uint32_t rows, fixture_input_t *in);
/* Then, for 16 bits: the other side is given them as part of a product's rows,
 * the biases left out. */
void fixture_heads(fixture_t *b, uint32_t rows, fixture_input_t *in);
/* Are the queries of heads.rows rows rotated? */
bool fixture_heads_same(const fixture_input_t *in);
void fixture_input_free(fixture_input_t *in);

#endif
