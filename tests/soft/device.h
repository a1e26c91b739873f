/*
 * device.h: what the parts of the software device share; see soft.h.
 */
#ifndef TR_TESTS_SOFT_DEVICE_H
#define TR_TESTS_SOFT_DEVICE_H

#include "soft.h"

#include <pthread.h>

/* What TOKENRING_SOFT_FAIL names. */
typedef enum {
    SOFT_ALLOC,
    SOFT_PIN,
    SOFT_LAUNCH,
    SOFT_KERNEL,
    SOFT_LOST,
    SOFT_PAGE,
    SOFT_COUNTED, /* so many of these */
    SOFT_DRIVER = SOFT_COUNTED,
    SOFT_DEVICE,
    SOFT_OLD,
    SOFT_FAILS
} soft_fail_t;

/* One more of a kind: is it the one that fails?  Of those that are not counted:
 * was it asked for? */
bool soft_fails(soft_fail_t kind);

/* The environment's numbers. */
uint64_t soft_seed(void);
size_t soft_memory_size(void);
uint64_t soft_guard(void);
uint64_t soft_noise(void); /* 0: none */

/* One lock for the state of streams, events, graphs and the fault, and one
 * condition for all that changes in it. */
extern pthread_mutex_t soft_lock;
extern pthread_cond_t soft_changed;

/* NULL, or why nothing runs any more; with the lock. */
const char *soft_fault_reason(void);
bool soft_device_lost(void);
/* 0, or TR_CUDA_FAILED after a fault, which is then the reason. */
int soft_check(void);

/* Waits until every stream has run dry; for what frees memory. */
void soft_drain(void);
/* Is a graph being captured?  Then a host function is refused. */
bool soft_capturing(void);

/* Is all of [p, p + bytes) device memory, or pinned? */
bool soft_known(const void *p, size_t bytes);
size_t soft_memory_used(void);
size_t soft_memory_taken(void); /* by others, too */
/* Something begins to run, or nothing runs any more. */
void soft_memory_open(bool yes);

/* In a body: memory that may hold weights was written; what is kept of them is
 * forgotten. */
void soft_written(const void *p, size_t bytes);

#endif
