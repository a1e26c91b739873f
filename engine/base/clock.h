/*
 * The clock that everything here is timed by: CLOCK_MONOTONIC.
 */
#ifndef TR_CLOCK_H
#define TR_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline uint64_t
tr_now_us(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t) t.tv_sec * 1000000u + (uint64_t) t.tv_nsec / 1000u;
}

#endif
