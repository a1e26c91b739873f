/*
 * mp.h: what a multiprocessor of the device in software has (simt.h), for its
 * own files.
 */
#ifndef TR_TESTS_SIMT_MP_H
#define TR_TESTS_SIMT_MP_H

#include <pthread.h>
#include <setjmp.h>
#include <time.h>
#include <ucontext.h>

#include "simt.h"

#define WARPS_MAX (SIMT_THREADS_MAX / SIMT_WARP)
#define WARPGROUPS_MAX (SIMT_THREADS_MAX / 128)
#define NAMED 16u
#define COPIES_MAX 65536u /* of a block, on their way */
#define PRODUCTS_MAX 48u  /* of a thread, on their way */
#define MULTIPROCESSORS_MAX 32u

typedef enum {
    READY, /* runs, or asks again and again */
    MEETS, /* waits for its warp */
    SYNCS, /* for its block */
    NAMES, /* at a named barrier */
    WAITS, /* at a barrier in shared memory */
    DONE
} state_t;

typedef struct {
    jmp_buf resume;
    ucontext_t context; /* of its beginning */
    bool begun;
    state_t state;
    uint32_t at_bar; /* NAMES: which; WAITS: where it is in shared memory */
    uint32_t parity; /* that ends the wait */
    uint32_t cluster_turn;
    simt_product_t product[PRODUCTS_MAX];              /* those on their way */
    uint32_t products, groups[PRODUCTS_MAX], n_groups; /* ends of groups */
    uint32_t made;                                     /* products, so far */
} fiber_t;

typedef struct {
    uint32_t all, came, turn; /* all: its lanes, as bits */
    simt_post_t post[2][SIMT_WARP];
} warp_t;

typedef struct copy copy_t;
typedef struct operands operands_t;

typedef struct {
    uint32_t came, turn; /* of all threads of its blocks */
} cluster_t;

typedef struct {
    pthread_t thread;
    uint32_t index;
    uint8_t *stacks, *shared;
    jmp_buf home;
    fiber_t fiber[SIMT_THREADS_MAX];
    warp_t warp[WARPS_MAX];
    uint32_t named[NAMED], named_need[NAMED]; /* who came, of how many */
    uint64_t blocks;                          /* so far */
    uint32_t threads, done, synced, now;      /* of the block; which runs */
    copy_t *copy;
    uint32_t copies;
    operands_t *operands[WARPGROUPS_MAX];
    bool done_something; /* in this pass over the fibers */
    cluster_t *cluster;
    uint32_t rank, cluster_blocks; /* in its cluster; how many that has */
    uint64_t random;
    uint32_t held,
        held_for; /* warps that are left behind; for so many passes */
    time_t since; /* when nothing was done; 0: something was */
} mp_t;

/* Of the thread of the host that asks; NULL: it is none. */
extern _Thread_local mp_t *simt_mp;

uint32_t simt_random(mp_t *m, uint32_t below);

void simt_hold_warps(mp_t *m);

/* The fiber that runs goes back to its multiprocessor, in that state. */
void simt_leave(state_t state);

/* Zeroed memory for good. */
void *simt_alloc(size_t bytes);

/* Shared memory of block `rank` of the cluster. */
uint8_t *simt_shared_of(uint32_t rank);

/* Of the phase that has not ended. */
uint32_t simt_bar_parity(uint32_t bar);

/* Some of the copies, or all; those of a thread in their order, those of the
 * copy engine in any. */
void simt_copies_arrive(mp_t *m, bool all);
void simt_copies_open(mp_t *m);

void simt_halves_open(void);

#endif
