/*
 * prompt_peak.h: how fast the tensor cores multiply, for bench_prompt.c.
 */
#ifndef TR_TESTS_GPU_PROMPT_PEAK_H
#define TR_TESTS_GPU_PROMPT_PEAK_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* TFLOP/s of products from shared memory on random FP16 data, all `blocks`
 * multiprocessors busy for some milliseconds. */
double prompt_peak(uint32_t blocks);

#ifdef __cplusplus
}
#endif

#endif
