/*
 * model_side.h: arrays of test_model.c, test_sample.c and test_small_gemm.c, on
 * the host for the reference and again on the device.
 *
 * What was not written is 0xff, NaN wherever it is read as a number; so is some
 * room before and behind every array.
 */
#ifndef TR_TESTS_GPU_MODEL_SIDE_H
#define TR_TESTS_GPU_MODEL_SIDE_H

#include "kernels/cuda/device.h"

#include "cache.h"

typedef struct {
    tr_device_props_t device;
    tr_cuda_stream_t stream;
    bool captured;
} side_t;

typedef struct {
    uint8_t *host, *there; /* bytes of both, the array is from `at` on */
    size_t bytes, at;
} array_t;

/* Exits with 77 without a device. */
void side_open(side_t *s);
/* A launch, every other time by way of a graph, to its end. */
#define side_launch(s, call, what) \
    (side_begin(s), side_end((s), (call), (what)))
void side_begin(side_t *s);
void side_end(side_t *s, int rc, const char *what);

/* odd: not aligned to more than an element. */
array_t array_new(size_t n, size_t size, bool odd);
void array_free(array_t *a);

static inline void *
array_host(const array_t *a)
{
    return a->host + a->at;
}

static inline void *
array_there(const array_t *a)
{
    return a->there + a->at;
}

/* What the host has to the other side; what the other side has, to be freed,
 * beginning with the array. */
void array_send(const array_t *a);
uint8_t *array_fetch(const array_t *a);

/* Is the other side the same, byte for byte, around it, too? */
bool array_same(const array_t *a, const char *what);

#endif
