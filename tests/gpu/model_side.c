/*
 * Arrays on two sides; see model_side.h.
 */
#include "model_side.h"

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>

#define ROOM 128u

void
side_open(side_t *s)
{
    memset(s, 0, sizeof(*s));
    if (tr_cuda_open(0, &s->device) != 0) {
        printf("no device: %s\n", tr_cuda_reason());
        exit(77);
    }
    s->stream.device = &s->device;
    cuda_ok(cudaStreamCreate((cudaStream_t *) &s->stream.stream), "stream");
}

void
side_begin(side_t *s)
{
    s->captured = random_below(2);
    if (s->captured) {
        cuda_ok(cudaStreamBeginCapture(s->stream.stream,
                                       cudaStreamCaptureModeThreadLocal),
                "capture");
    }
}

void
side_end(side_t *s, int rc, const char *what)
{
    cudaGraphExec_t exec;
    cudaGraph_t graph;

    if (rc != TR_KERNEL_OK) {
        printf("%s: %d (%s)\n", what, rc, tr_cuda_reason());
        exit(1);
    }
    if (s->captured) {
        cuda_ok(cudaStreamEndCapture(s->stream.stream, &graph), what);
        cuda_ok(cudaGraphInstantiate(&exec, graph, 0), what);
        cuda_ok(cudaGraphLaunch(exec, s->stream.stream), what);
    }
    cuda_ok(cudaDeviceSynchronize(), what);
    if (s->captured) {
        cuda_ok(cudaGraphExecDestroy(exec), what);
        cuda_ok(cudaGraphDestroy(graph), what);
    }
}

static uint8_t *
room(size_t bytes)
{
    uint8_t *p = aligned_alloc(64, tr_pad(bytes, 64));

    if (p == NULL) {
        fprintf(stderr, "out of memory\n");
        exit(1);
    }
    memset(p, 0xff, bytes);
    return p;
}

array_t
array_new(size_t n, size_t size, bool odd)
{
    array_t a = { .bytes = n * size + 2 * ROOM, .at = ROOM };

    a.at += odd ? size * (1 + random_below(7)) : 0;
    a.host = room(a.bytes);
    cuda_ok(cudaMalloc((void **) &a.there, a.bytes), "cudaMalloc");
    cuda_ok(cudaMemset(a.there, 0xff, a.bytes), "cudaMemset");
    return a;
}

void
array_free(array_t *a)
{
    free(a->host);
    cuda_ok(cudaFree(a->there), "cudaFree");
}

void
array_send(const array_t *a)
{
    cuda_ok(cudaMemcpy(a->there, a->host, a->bytes, cudaMemcpyHostToDevice),
            "send");
}

static uint8_t *
fetch_all(const array_t *a)
{
    uint8_t *p = room(a->bytes);

    cuda_ok(cudaMemcpy(p, a->there, a->bytes, cudaMemcpyDeviceToHost), "fetch");
    return p;
}

uint8_t *
array_fetch(const array_t *a)
{
    uint8_t *p = fetch_all(a);

    memmove(p, p + a->at, a->bytes - a->at);
    return p;
}

bool
array_same(const array_t *a, const char *what)
{
    uint8_t *p = fetch_all(a);
    bool same = memcmp(p, a->host, a->bytes) == 0;

    for (size_t i = 0; i < a->bytes && !same; i++) {
        if (p[i] != a->host[i]) {
            printf("%s: byte %lld is %02x, expected %02x\n", what,
                   (long long) i - (long long) a->at, p[i], a->host[i]);
            break;
        }
    }
    free(p);
    return same;
}
