/*
 * How far a model is loaded, in the log every two seconds; for the loaders of both
 * backends.
 */
#ifndef TR_LOAD_PROGRESS_H
#define TR_LOAD_PROGRESS_H

#include <stdint.h>

#include "engine/base/clock.h"
#include "engine/config/log.h"

#define TR_LOAD_PROGRESS_US 2000000u

typedef struct {
    uint64_t done, of; /* weights */
    uint64_t said_us;
} tr_load_progress_t;

static inline tr_load_progress_t
tr_load_progress(uint64_t of)
{
    return (tr_load_progress_t){ .of = of, .said_us = tr_now_us() };
}

static inline void
tr_load_progress_more(tr_load_progress_t *p, uint64_t weights)
{
    uint64_t now = tr_now_us();

    p->done += weights;
    if (now - p->said_us >= TR_LOAD_PROGRESS_US) {
        p->said_us = now;
        tr_log(TR_LEVEL_NOTICE, "loading weights percent=%.0f",
               100.0 * (double) p->done / (double) p->of);
    }
}

#endif
