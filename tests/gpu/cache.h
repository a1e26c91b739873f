/*
 * cache.h: a random KV cache for the tests and benchmarks of the CUDA kernels,
 * and what attention over it must give, in double precision.
 *
 * The cache is built on the host through kv_layout.h's definitions, code by
 * code, and copied to the device.  Every byte that holds no token is 0xff,
 * which is NaN wherever it could be read as a number.
 */
#ifndef TR_TESTS_GPU_CACHE_H
#define TR_TESTS_GPU_CACHE_H

#include "kernels/cuda/device.h"
#include "kernels/kernels.h"

#define CACHE_LEVELS 4u

typedef struct {
    uint32_t layers, lists, head_dim, heads, seqs;
    uint32_t n_levels;
    tr_kv_level_t level[CACHE_LEVELS];
    bool dense_scored;
    uint32_t max_list;   /* tokens of a list, at most */
    uint32_t max_dense;  /* tokens of a dense sequence */
    uint32_t max_window; /* ring slots */
    bool wild;           /* scales from 1e-6 to 1e4 */
} cache_shape_t;

typedef struct {
    cache_shape_t shape;
    tr_page_plan_t plan;
    tr_kv_view_t host;   /* all arrays on the host */
    tr_kv_view_t device; /* all arrays on the device, layouts on the host */
    tr_rows_t rows, device_rows;
    float *q, *out; /* [rows][heads * head_dim], outputs for every layer; on
                     * the host */
    float scale;
    uint64_t pages, max_tokens;
    void *device_q, *device_out;
} cache_t;

/* Random numbers that a seed repeats. */
void random_seed(uint64_t seed);
uint32_t random_below(uint32_t n);
double random_unit(void);
double random_normal(void);

uint16_t half_from(double x);

/* Exits with a message when CUDA says no. */
void cuda_ok(int error, const char *what);

/* Sequences of all kinds: dense, lists with and without a window, both, some
 * with two rows, some without a slot. */
void cache_create(cache_t *c, const cache_shape_t *shape);
void cache_free(cache_t *c);

tr_cuda_decode_size_t cache_size(const cache_t *c);

/* Does the launcher answer for sequence s? */
bool cache_attends(const cache_t *c, uint32_t s);

/* Compares what the device holds when all layers were decoded with what it
 * must; prints what differs.  The cache on the host then holds the device's
 * scores. */
bool cache_check(cache_t *c, double *worst_out, double *worst_score);

#endif
