/*
 * runtime.h: memory, streams, events and graphs of a device, as far as the
 * engine needs them.
 *
 * Thin: each function is one or two calls of the CUDA runtime.  They are here so
 * that the engine is plain C, knows no CUDA header, and runs its tests on a
 * machine without a GPU, where all of this is played by the CPU (api.h).
 *
 * Functions return 0 or TR_CUDA_FAILED with tr_cuda_reason saying why; those
 * that return memory return NULL.  "Host" functions may wait for the device:
 * they belong to opening and closing, never to a step.
 */
#ifndef TR_CUDA_RUNTIME_H
#define TR_CUDA_RUNTIME_H

#include "kernels/cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What a device says of itself. */
typedef struct {
    char name[128];
    uint64_t memory, free_memory; /* bytes */
    uint32_t major, minor;        /* compute capability */
    uint32_t driver, runtime; /* 1000 * major + 10 * minor; driver 0: none */
} tr_cuda_device_info_t;

/* Also answers for a machine without a driver, a device, or such an ordinal:
 * TR_CUDA_FAILED, a reason that a user understands, and *out as far as known. */
int tr_cuda_device_info(int ordinal, tr_cuda_device_info_t *out);

/* Can anything still run after a failure?  False after a kernel's fault or when
 * the device has gone: the process must end. */
bool tr_cuda_alive(void);

/* Device memory, 256-byte aligned, not cleared. */
void *tr_cuda_alloc(size_t bytes);
void tr_cuda_release(void *p);

/* Host memory that the device reads and writes directly. */
void *tr_cuda_pin(size_t bytes);
void tr_cuda_unpin(void *p);

/* device: borrowed for the stream's lifetime. */
int tr_cuda_stream_open(const tr_cuda_device_t *device, tr_cuda_stream_t *out);
void tr_cuda_stream_close(tr_cuda_stream_t *s);
/* Host: until all is done; how a failed kernel is heard of.  Not while a graph
 * is captured, which would then be none; nor is memory asked for. */
int tr_cuda_stream_wait(const tr_cuda_stream_t *s);

/* In the stream's order.  Host memory is pinned, and must stay as it is until
 * the copy has run. */
int tr_cuda_copy(const tr_cuda_stream_t *s, void *to, const void *from,
                 size_t bytes);
int tr_cuda_fill(const tr_cuda_stream_t *s, void *to, int byte, size_t bytes);
/* As tr_cuda_copy, for little that stands between two kernels: from pinned memory
 * to the device's, and back.  Both at multiples of 16 bytes, bytes a multiple of 4,
 * else TR_KERNEL_BADARG.  fetch: what is read is there when this is called; what is
 * in front may still run when it is read, so nothing on the device writes it. */
int tr_cuda_fetch(const tr_cuda_stream_t *s, void *to, const void *from,
                  size_t bytes);
int tr_cuda_send(const tr_cuda_stream_t *s, void *to, const void *from,
                 size_t bytes);

/* A point in a stream. */
int tr_cuda_event_open(void **event);
void tr_cuda_event_close(void *event);
int tr_cuda_event_record(const tr_cuda_stream_t *s, void *event);
/* 1: passed, 0: not yet, TR_CUDA_FAILED. */
int tr_cuda_event_passed(void *event);
/* Waits without burning a core for longer than a few microseconds. */
int tr_cuda_event_wait(void *event);
/* Microseconds between two events that have passed; they keep their times. */
int tr_cuda_event_time(void *from, void *to, double *us);
/* What is launched in s after this waits for it. */
int tr_cuda_event_follow(const tr_cuda_stream_t *s, void *event);

/* What is launched between begin and end becomes a graph instead of running.
 * Pointers and shapes are those of the capture.  A stream that follows an event of
 * the graph becomes a branch of it, until the first stream has followed it back.
 * end: host. */
int tr_cuda_graph_begin(const tr_cuda_stream_t *s);
int tr_cuda_graph_end(const tr_cuda_stream_t *s, void **graph);
int tr_cuda_graph_launch(const tr_cuda_stream_t *s, void *graph);
void tr_cuda_graph_close(void *graph);

#ifdef __cplusplus
}
#endif

#endif
