/*
 * simt.h: a CUDA device in software, for tests: the kernels of kernels/cuda, as
 * they are, compiled by the host's compiler.
 *
 * A multiprocessor is a thread of the host, and runs the blocks it is dealt one
 * after the other; neighbours of a cluster, and blocks that wait for each other,
 * run at once as long as there are no more of them than multiprocessors.  A
 * thread of a block is a fiber.  Between two meetings (warps' exchanges,
 * barriers) fibers run one after the other in random order, copies to shared
 * memory arrive at random later, and products of a warpgroup are not made before
 * they are waited for: what somebody reads too early is likely to be wrong.
 * Those who wait for what cannot come end the program, with who waits where.
 *
 *   SIMT_MULTIPROCESSORS   how many (4)
 *   SIMT_SEED              of the order (1)
 *
 * What it does not show: races between warps that no order of whole stretches
 * brings out, missing fences, what the memory model allows beyond the host's,
 * kernels of a stream that overlap, and time.
 *
 * run.c has fibers and blocks, meet.c where they meet, memory.c shared memory and
 * copies to it, product.c tensor cores' products of a warpgroup, matmul.c
 * cuBLASLt's part, cudart.c the runtime's functions; device.h what CUDA C++ has
 * and C++ has not, ptx.h the instructions of kernels/cuda/ *ptx.cuh.
 */
#ifndef TR_TESTS_SIMT_H
#define TR_TESTS_SIMT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#define SIMT_TLS __thread
#else
#define SIMT_TLS _Thread_local
#endif

#define SIMT_WARP 32u
#define SIMT_THREADS_MAX 1024u
#define SIMT_SHARED (227u << 10) /* bytes of a block */
#define SIMT_POST 64u            /* bytes a lane can tell its warp */

typedef struct {
    uint32_t x, y, z;
} simt_dim_t;

/* Where the code that runs is, by the names that CUDA C++ has. */
extern SIMT_TLS simt_dim_t threadIdx, blockIdx, blockDim, gridDim;

uint32_t simt_multiprocessors(void);

/* Says what is wrong, and where, and ends the program. */
void simt_die(const char *format, ...)
    __attribute__((format(printf, 1, 2), noreturn));

/* ---- launches ------------------------------------------------------------ */

typedef struct {
    simt_dim_t grid, block;
    uint32_t shared;  /* bytes */
    uint32_t cluster; /* blocks of one */
    void (*run)(void *arg);
    void (*free)(void *arg);
    void *arg; /* taken */
} simt_launch_t;

/* Runs all blocks, and returns when they have ended. */
void simt_launch(const simt_launch_t *l);

/* In a stream (cudart.c): at once, or into the graph that is captured.  Returns
 * a cudaError_t. */
int simt_submit(void *stream, const simt_launch_t *l);

/* ---- meetings ------------------------------------------------------------ */

typedef uint8_t simt_post_t[SIMT_POST];

/* All lanes of the warp come and tell `bytes` each; [lane], until this lane has
 * left the next meeting. */
const simt_post_t *simt_meet(const void *x, uint32_t bytes);
void simt_block_sync(void);
/* Barrier `id` of `threads` threads of the block. */
void simt_named(uint32_t id, uint32_t threads, bool wait);
void simt_cluster_arrive(void);
void simt_cluster_wait(void);
/* Others may run; for those who ask again and again. */
void simt_yield(void);

/* ---- shared memory ------------------------------------------------------- */

/* Addresses are those of device code: bytes from `shared` on. */
uint32_t simt_address(const void *p);
uint8_t *simt_pointer(uint32_t at);

void simt_bar_init(uint32_t bar, uint32_t count);
/* So many arrivals, and bytes that are to come. */
void simt_bar_arrive(uint32_t bar, uint32_t count, uint32_t expect);
void simt_bar_wait(uint32_t bar, uint32_t parity);

/* This thread's copies, in their order; `bytes` of 16 come from src, the others
 * are 0. */
void simt_copy16(uint32_t dst, const void *src, uint32_t bytes);
void simt_copy_arrive(uint32_t bar);
/* The copy engine. */
void simt_copy_bulk(uint32_t dst, const void *src, uint32_t bytes,
                    uint32_t bar);

/* What is in a CUtensorMap here. */
typedef struct {
    const uint8_t *at;
    uint32_t rank, element; /* bytes */
    uint32_t dims[5], box[5];
    uint64_t strides[4]; /* bytes */
    bool swizzle;        /* 128 bytes */
} simt_map_t;

void simt_copy_box(uint32_t dst, const void *map, const uint32_t *at,
                   uint32_t bar);

/* To block `rank` of the cluster, and its barrier. */
void simt_cluster_store(uint32_t at, const void *x, uint32_t bytes,
                        uint32_t bar, uint32_t rank);

/* ---- products of a warpgroup --------------------------------------------- */

/* c (n / 2 numbers of this thread) = A B, 64 x n x 16, of FP8 64 x n x 32, plus c
 * with `add`; made when it is waited for. */
typedef struct {
    float *c;
    uint32_t n;
    uint64_t a, b;     /* descriptors */
    float rows[2][32]; /* from_regs: this thread's rows of A */
    bool from_regs, add, transposed, bf16, fp8;
} simt_product_t;

void simt_product(const simt_product_t *p);
void simt_products_end(void);
void simt_products_wait(uint32_t groups);

float simt_half(uint16_t h);

#ifdef __cplusplus
}
#endif

#endif
