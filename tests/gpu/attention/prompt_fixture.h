/*
 * prompt_fixture.h: a random cache of uncompressed pages and a random step for
 * test_prompt.c, and what attention must give, in double precision.
 */
#ifndef TR_TESTS_GPU_PROMPT_FIXTURE_H
#define TR_TESTS_GPU_PROMPT_FIXTURE_H

#include "kernels/cuda/device.h"

#define SEQS_MAX 4u
#ifndef LEN_MAX
#define LEN_MAX 700u
#endif

/* One KV head of one sequence. */
typedef struct {
    double *key, *value; /* [keys][dim] */
    double *p;           /* [group][keys] */
    double *out, *norm;  /* [rows][group][dim], [rows][group] */
    double *slack;       /* [rows] */
    double *add[2];      /* [keys] to scores, to recent */
    double widest;
} want_t;

typedef struct {
    want_t *want; /* [seqs][kv_heads] */
    tr_page_plan_t plan;
    tr_kv_view_t host, device;
    tr_rows_t rows, device_rows;
    tr_cuda_queries_t queries;
    tr_cuda_prompt_size_t size;
    uint32_t pages, layer, dim, kv_heads, group;
    uint32_t *pos, *seq_row;
    int32_t *slot, *tables;
    tr_kv_seq_t *seq;
    uint8_t *pool, *before;
    double *q;
    void *typed;
    float *out;
    size_t out_bytes;
    double out_error, score_error;
    void *device_mem[13];
    /* of the layer; reach 0: all, sinks NULL: none */
    uint32_t reach;
    float *sinks; /* [heads] */
} case_t;

/* With all that is on the device, too; exits when CUDA says no.  wide: heads may
 * have 256 dimensions. */
void case_open(case_t *c, bool wide);
void case_close(case_t *c);

/* Does the launcher answer for sequence s? */
bool case_attends(const case_t *c, uint32_t s);
uint32_t case_length(const case_t *c, uint32_t s);

/* The page of a KV head's token k in a copy of the pool, and its place
 * there. */
uint8_t *case_token(const case_t *c, uint8_t *pool, uint32_t s,
                    uint32_t kv_head, uint32_t k, uint32_t *place);

#endif
