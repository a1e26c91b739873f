/*
 * soft.h: a device made of software, for tests on machines without a GPU.
 *
 * libtokenring_soft.so exports the table of kernels/cuda/device.h.  What a kernel
 * computes comes from the CPU backend; when it runs is as on a device: a stream
 * is a queue of launches that a thread of its own works off in order, with
 * random pauses.  So a host that reads before an event has passed, or reuses
 * pinned memory too early, sees the wrong bytes.
 *
 * Device memory holds 0xff (NaN, -1) until it is written, and ends at a page
 * that nobody may touch; a host that touches any of it while nothing runs will
 * end with a segmentation fault.  Copies are only allowed between device memory
 * and pinned memory, within what was allocated.
 *
 * A launcher is two functions: the one of the headers, which checks what the
 * host can see and copies its arguments, and the body, which runs later:
 *
 *   typedef struct { float *x; uint32_t n; } twice_t;
 *
 *   static void twice(void *args)
 *   {
 *       const twice_t *a = args;
 *       for (uint32_t i = 0; i < a->n; i++) a->x[i] *= 2;
 *   }
 *
 *   int tr_cuda_twice(const tr_cuda_stream_t *s, float *x, uint32_t n)
 *   {
 *       twice_t a = { x, n };
 *       return soft_launch(s, "twice", twice, &a, sizeof(a));
 *   }
 *
 * What the environment may ask for (read when the library is loaded):
 *
 *   TOKENRING_SOFT_SEED    of the pauses; 0: none.  Default: the time, printed
 *                          when a fault is
 *   TOKENRING_SOFT_MEMORY  MiB of the device, 256 by default
 *   TOKENRING_SOFT_HELD    a file with the MiB of it that others hold, while it is
 *                          there; read again each time
 *   TOKENRING_SOFT_NAME    of the device, "software" by default; read each time
 *   TOKENRING_SOFT_GUARD   how often the device's memory is closed when nothing
 *                          runs any more: every so many times, 16 by default
 *   TOKENRING_SOFT_NOISE   products are wrong by one part in 2^N, another one for
 *                          each number of rows: as if sums had another order
 *   TOKENRING_SOFT_FAIL    alloc:N   the N-th allocation finds no memory
 *                          pin:N     nor does the N-th of pinned memory
 *                          launch:N  the N-th launch is refused
 *                          kernel:N  the N-th kernel that runs has a fault
 *                          lost:N    the device goes away at that kernel
 *                          page:N    every N-th page that comes back from the
 *                                    swap memory has another's contents
 *                          driver, device, old: there is none, or too old
 */
#ifndef TR_TESTS_SOFT_H
#define TR_TESTS_SOFT_H

#include "kernels/cuda/device.h"
#include "kernels/kernels.h"

/* Runs on the stream's thread, and again whenever a graph with it is launched.
 * args: the launch's own copy, which must not be changed in a way that a second
 * run would see. */
typedef void (*soft_body_f)(void *args);

/* Puts body at the end of the stream, or into the graph that is being captured.
 * name: a literal.  0, or TR_CUDA_FAILED after an earlier fault. */
int soft_launch(const tr_cuda_stream_t *s, const char *name, soft_body_f body,
                const void *args, size_t bytes);

/* In a body: ends all, as a kernel's fault does: nothing runs any more, and
 * every call says why. */
void soft_fault(const char *name, const char *why);

/* In a body: memory that is its own until it returns, 64-byte aligned. */
void *soft_scratch(size_t bytes);

/* On the host: keeps what tr_cuda_reason says.  Returns TR_CUDA_FAILED. */
int soft_failed(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* A view among a launch's arguments: layouts are the host's, and only borrowed
 * during the call. */
typedef struct {
    tr_kv_view_t kv;
    tr_kv_layout_t layout[TR_KV_LAYOUTS_MAX];
} soft_view_t;

/* On the host; false: a number of layouts that cannot be. */
static inline bool
soft_view_keep(soft_view_t *out, const tr_kv_view_t *kv)
{
    if (kv->n_layouts == 0 || kv->n_layouts > TR_KV_LAYOUTS_MAX) {
        return false;
    }
    out->kv = *kv;
    out->kv.layout = NULL;
    memcpy(out->layout, kv->layout, kv->n_layouts * sizeof(*kv->layout));
    return true;
}

/* In a body. */
static inline tr_kv_view_t
soft_view(const soft_view_t *v)
{
    tr_kv_view_t kv = v->kv;

    kv.layout = v->layout;
    return kv;
}

/* The CPU backend, and the stream that bodies give it: the caller alone. */
const tr_kernels_t *soft_cpu(void);
extern const tr_stream_t soft_cpu_stream;

#endif
