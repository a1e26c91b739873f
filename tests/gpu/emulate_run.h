/*
 * emulate_run.h: lanes as fibers, for the files that emulate kernels.
 */
#ifndef TR_TESTS_GPU_EMULATE_RUN_H
#define TR_TESTS_GPU_EMULATE_RUN_H

#include <stdint.h>

#define EMULATE_LANES_MAX 256u

typedef void (*emulate_lane_f)(void *arg, uint32_t lane);

/* Runs f in `lanes` lanes to their ends. */
void emulate_run(uint32_t lanes, emulate_lane_f f, void *arg);

#endif
