/*
 * generic_fixture.h: a random cache and queries for test_generic.c and
 * test_behind.c, on both sides of a store_fixture.h.
 */
#ifndef TR_TESTS_GPU_GENERIC_FIXTURE_H
#define TR_TESTS_GPU_GENERIC_FIXTURE_H

#include "tests/gpu/kv/store_fixture.h"

#define ROWS_MAX 640u

typedef struct {
    fixture_t fixture;
    uint32_t heads, layer;
    uint32_t max_rows; /* at most ROWS_MAX */
    size_t ldq, ldo;
    float scale;
    double key[FIXTURE_SLOTS], value[FIXTURE_SLOTS]; /* magnitudes */
    uint32_t last[FIXTURE_SLOTS]; /* position of the last query */
    uint32_t pos[ROWS_MAX], seq_row[FIXTURE_SLOTS + 1];
    int32_t slot[FIXTURE_SLOTS];
    tr_rows_t rows;
    float *q; /* [max_rows][ldq] */
    tr_dtype_t q_type, out_type;
    void *typed;     /* q as it is sent */
    uint8_t *before; /* the pool */
    tr_kv_candidate_t *candidate;
    bool slides;     /* layers see a part of what is uncompressed, as all is */
    uint32_t *reach; /* [layers] */
    const float **sinks; /* [layers] of [heads] */
    float *sink_numbers;
    void *there[3]; /* the same, and the sinks' numbers, there */
} case_t;

/* Sequences of all kinds: uncompressed, tiers with and without a window, all
 * three; some scored, some of Quest; rows for all of them. */
void case_open(case_t *c, const fixture_side_t *side, uint32_t max_rows);
void case_close(case_t *c);

/* The pool that one side left against the host's: scores are right within `most`
 * of what they grew by, all other bytes equal.  got takes the host's scores on
 * the way; *worst the largest error. */
bool case_check_pool(const case_t *c, uint8_t *got, double most, double *worst);

#endif
