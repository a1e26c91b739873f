/*
 * store_ops.h: what test_store.c does to both sides of a fixture.  Each
 * operation compares all pages afterwards and prints what differs.
 */
#ifndef TR_TESTS_GPU_STORE_OPS_H
#define TR_TESTS_GPU_STORE_OPS_H

#include "kernels/cpu/cpu.h"

#include "store_fixture.h"

extern const tr_stream_t store_cpu;
extern uint64_t store_checks, store_moved; /* comparisons, tokens */

/* Any instruction set's. */
const tr_kv_codec_t *store_codec(void);

/* Prints; false. */
bool store_say(const char *what);

/* May tokens of one layout become those of the other? */
bool store_goes(const fixture_t *b, uint32_t from, uint32_t to);

/* n[slot] rows at uncompressed positions. */
bool store_uncompressed(fixture_t *b, const uint32_t *n);
/* A step: compressed sequences get a token with its moves, or a row. */
bool store_step(fixture_t *b);
/* Compresses the slots of a bit mask. */
bool store_compress(fixture_t *b, uint32_t which);
/* What compress launched last, on the other side. */
typedef struct {
    const tr_kv_compress_t *jobs;
    uint32_t n, max_len;
    uint32_t *refused;
    void *work;
} store_jobs_t;

/* What one of these jobs, which both sides have carried out, changes for the last
 * queries of its slot. */
bool store_compare(fixture_t *b, const tr_kv_compress_t *job,
                   const store_jobs_t *jobs);
/* A slot goes to the host and comes back to other pages. */
bool store_swap(fixture_t *b, uint32_t slot);
/* Any pages, one behind the other, and others into their place; of the other side
 * alone. */
bool store_pages(fixture_t *b);

#endif
