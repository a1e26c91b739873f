/*
 * The CUDA runtime's functions, as far as kernels/cuda and its tests use them,
 * for the device in software (simt.h).
 *
 * What is put into a stream runs at once, which is one of the orders that
 * streams and events allow; while a stream is captured, it becomes a graph's
 * instead.  Device memory ends where an unmapped page begins, and is full of NaN.
 */
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "simt.h"

#ifndef SIMT_CODE
#define SIMT_CODE 90 /* 10 times the compute capability */
#endif

typedef struct {
    bool launch;
    simt_launch_t l;
    void *to;
    const void *from; /* NULL: filled with `byte` */
    int byte;
    size_t bytes;
} node_t;

struct CUgraph_st {
    node_t *node;
    size_t n, capacity;
    uint32_t users; /* the graph, and its executable ones */
};

struct CUstream_st {
    cudaGraph_t graph; /* that is captured */
    struct CUstream_st *next;
};

struct CUevent_st {
    struct timespec at;
    cudaGraph_t graph;
};

static struct CUstream_st *streams, no_stream;
static _Thread_local cudaError_t last;

static cudaError_t
said(cudaError_t e)
{
    if (e != cudaSuccess) {
        last = e;
    }
    return e;
}

/* ---- memory -------------------------------------------------------------- */

/* In front of what is given out, on a page of its own. */
typedef struct {
    size_t mapped;
} block_t;

static void *
memory(size_t bytes)
{
    size_t page = (size_t) sysconf(_SC_PAGESIZE);
    size_t size = (bytes + 255) / 256 * 256;
    size_t body = (size + page - 1) / page * page, all = body + 2 * page;
    uint8_t *p = mmap(NULL, all, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0),
            *out;

    if (p == MAP_FAILED) {
        return NULL;
    }
    mprotect(p + page + body, page, PROT_NONE);
    out = p + page + body - size;
    *(block_t *) (void *) p = (block_t){ all };
    memset(out, 0xff, size);
    return out;
}

static void
memory_free(void *p)
{
    uintptr_t page = (uintptr_t) sysconf(_SC_PAGESIZE);
    block_t *b;

    if (p != NULL) { /* the page before the one where it begins */
        b = (block_t *) (((uintptr_t) p / page - 1) * page);
        munmap(b, b->mapped);
    }
}

cudaError_t
cudaMalloc(void **out, size_t bytes)
{
    *out = memory(bytes);
    return said(*out != NULL ? cudaSuccess : cudaErrorMemoryAllocation);
}

cudaError_t
cudaFree(void *p)
{
    memory_free(p);
    return cudaSuccess;
}

cudaError_t
cudaHostAlloc(void **out, size_t bytes, unsigned flags)
{
    (void) flags;
    return cudaMalloc(out, bytes);
}

cudaError_t
cudaFreeHost(void *p)
{
    return cudaFree(p);
}

cudaError_t
cudaMemGetInfo(size_t *left, size_t *all)
{
    *left = *all = (size_t) 4 << 30;
    return cudaSuccess;
}

/* ---- streams, graphs ----------------------------------------------------- */

static cudaStream_t
stream_of(void *s)
{
    return s != NULL ? s : &no_stream;
}

static void
node_run(const node_t *n)
{
    if (n->launch) {
        simt_launch(&n->l);
    } else if (n->from != NULL) {
        memmove(n->to, n->from, n->bytes);
    } else {
        memset(n->to, n->byte, n->bytes);
    }
}

static cudaError_t
submit(cudaStream_t s, const node_t *n)
{
    cudaGraph_t g = s->graph;

    if (g == NULL) {
        node_run(n);
        if (n->launch) {
            n->l.free(n->l.arg);
        }
        return cudaSuccess;
    }
    if (g->n == g->capacity) {
        g->capacity = g->capacity * 2 + 64;
        g->node = realloc(g->node, g->capacity * sizeof(*g->node));
        if (g->node == NULL) {
            simt_die("no memory");
        }
    }
    g->node[g->n++] = *n;
    return cudaSuccess;
}

int
simt_submit(void *stream, const simt_launch_t *l)
{
    node_t n = { .launch = true, .l = *l };
    uint64_t threads = (uint64_t) l->block.x * l->block.y * l->block.z;
    uint64_t blocks = (uint64_t) l->grid.x * l->grid.y * l->grid.z;

    if (threads == 0 || threads > SIMT_THREADS_MAX || blocks == 0
        || blocks > INT32_MAX || l->shared > SIMT_SHARED || l->cluster == 0
        || blocks % l->cluster != 0 || l->cluster > simt_multiprocessors()) {
        fprintf(stderr, "launch of %llu blocks of %llu threads, %u bytes\n",
                (unsigned long long) blocks, (unsigned long long) threads,
                l->shared);
        return said(cudaErrorInvalidConfiguration);
    }
    return submit(stream_of(stream), &n);
}

cudaError_t
cudaStreamCreate(cudaStream_t *out)
{
    cudaStream_t s = calloc(1, sizeof(*s));

    if (s == NULL) {
        return said(cudaErrorMemoryAllocation);
    }
    s->next = streams;
    streams = s;
    *out = s;
    return cudaSuccess;
}

cudaError_t
cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags)
{
    (void) flags;
    return cudaStreamCreate(out);
}

cudaError_t
cudaStreamDestroy(cudaStream_t s)
{
    cudaStream_t *at = &streams;

    while (*at != NULL && *at != s) {
        at = &(*at)->next;
    }
    if (*at == s) {
        *at = s->next;
        free(s);
    }
    return cudaSuccess;
}

cudaError_t
cudaStreamSynchronize(cudaStream_t s)
{
    return stream_of(s)->graph == NULL
               ? cudaSuccess
               : said(cudaErrorStreamCaptureUnsupported);
}

cudaError_t
cudaDeviceSynchronize(void)
{
    return cudaSuccess;
}

cudaError_t
cudaMemcpyAsync(void *to, const void *from, size_t bytes,
                enum cudaMemcpyKind kind, cudaStream_t s)
{
    node_t n = { .to = to, .from = from, .bytes = bytes };

    (void) kind;
    return bytes == 0 ? cudaSuccess : submit(stream_of(s), &n);
}

cudaError_t
cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind)
{
    return cudaMemcpyAsync(to, from, bytes, kind, NULL);
}

cudaError_t
cudaMemsetAsync(void *to, int byte, size_t bytes, cudaStream_t s)
{
    node_t n = { .to = to, .byte = byte, .bytes = bytes };

    return submit(stream_of(s), &n);
}

cudaError_t
cudaMemset(void *to, int byte, size_t bytes)
{
    return cudaMemsetAsync(to, byte, bytes, NULL);
}

cudaError_t
cudaStreamBeginCapture(cudaStream_t s, enum cudaStreamCaptureMode mode)
{
    (void) mode;
    s->graph = calloc(1, sizeof(*s->graph));
    if (s->graph == NULL) {
        return said(cudaErrorMemoryAllocation);
    }
    s->graph->users = 1;
    return cudaSuccess;
}

cudaError_t
cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *out)
{
    cudaGraph_t g = s->graph;

    *out = g;
    for (cudaStream_t i = streams; i != NULL; i = i->next) {
        if (i->graph == g) {
            i->graph = NULL;
        }
    }
    return g != NULL ? cudaSuccess : said(cudaErrorIllegalState);
}

cudaError_t
cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t g,
                     unsigned long long flags)
{
    (void) flags;
    g->users++;
    *out = (cudaGraphExec_t) (void *) g;
    return cudaSuccess;
}

cudaError_t
cudaGraphUpload(cudaGraphExec_t g, cudaStream_t s)
{
    (void) g;
    (void) s;
    return cudaSuccess;
}

cudaError_t
cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t s)
{
    cudaGraph_t g = (cudaGraph_t) (void *) exec;

    (void) s;
    for (size_t i = 0; i < g->n; i++) {
        node_run(&g->node[i]);
    }
    return cudaSuccess;
}

cudaError_t
cudaGraphDestroy(cudaGraph_t g)
{
    if (--g->users == 0) {
        for (size_t i = 0; i < g->n; i++) {
            if (g->node[i].launch) {
                g->node[i].l.free(g->node[i].l.arg);
            }
        }
        free(g->node);
        free(g);
    }
    return cudaSuccess;
}

cudaError_t
cudaGraphExecDestroy(cudaGraphExec_t g)
{
    return cudaGraphDestroy((cudaGraph_t) (void *) g);
}

/* ---- events -------------------------------------------------------------- */

cudaError_t
cudaEventCreate(cudaEvent_t *out)
{
    *out = calloc(1, sizeof(**out));
    return said(*out != NULL ? cudaSuccess : cudaErrorMemoryAllocation);
}

cudaError_t
cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags)
{
    (void) flags;
    return cudaEventCreate(out);
}

cudaError_t
cudaEventDestroy(cudaEvent_t e)
{
    free(e);
    return cudaSuccess;
}

cudaError_t
cudaEventRecord(cudaEvent_t e, cudaStream_t s)
{
    e->graph = stream_of(s)->graph;
    clock_gettime(CLOCK_MONOTONIC, &e->at);
    return cudaSuccess;
}

/* Whoever waits for what is captured is captured, too. */
cudaError_t
cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned flags)
{
    (void) flags;
    if (e->graph != NULL) {
        stream_of(s)->graph = e->graph;
    }
    return cudaSuccess;
}

cudaError_t
cudaEventQuery(cudaEvent_t e)
{
    (void) e;
    return cudaSuccess;
}

cudaError_t
cudaEventSynchronize(cudaEvent_t e)
{
    (void) e;
    return cudaSuccess;
}

cudaError_t
cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to)
{
    *ms = (float) ((double) (to->at.tv_sec - from->at.tv_sec) * 1e3
                   + (double) (to->at.tv_nsec - from->at.tv_nsec) * 1e-6);
    return cudaSuccess;
}

/* ---- the device ---------------------------------------------------------- */

cudaError_t
cudaGetLastError(void)
{
    cudaError_t e = last;

    last = cudaSuccess;
    return e;
}

const char *
cudaGetErrorString(cudaError_t e)
{
    static _Thread_local char text[48];

    snprintf(text, sizeof(text), "error %d of the device in software", e);
    return text;
}

const char *
cudaGetErrorName(cudaError_t e)
{
    return cudaGetErrorString(e);
}

cudaError_t
cudaDriverGetVersion(int *out)
{
    *out = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t
cudaRuntimeGetVersion(int *out)
{
    *out = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t
cudaGetDeviceCount(int *out)
{
    *out = 1;
    return cudaSuccess;
}

cudaError_t
cudaSetDevice(int ordinal)
{
    return said(ordinal == 0 ? cudaSuccess : cudaErrorInvalidDevice);
}

cudaError_t
cudaDeviceGetAttribute(int *out, enum cudaDeviceAttr what, int ordinal)
{
    (void) ordinal;
    switch (what) {
    case cudaDevAttrMultiProcessorCount:
        *out = (int) simt_multiprocessors();
        break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
        *out = SIMT_CODE == 90   ? (int) SIMT_SHARED
               : SIMT_CODE == 80 ? 163 << 10
                                 : 99 << 10;
        break;
    case cudaDevAttrL2CacheSize:
        *out = 50 << 20;
        break;
    case cudaDevAttrComputeCapabilityMajor:
        *out = SIMT_CODE / 10;
        break;
    case cudaDevAttrComputeCapabilityMinor:
        *out = SIMT_CODE % 10;
        break;
    default:
        return said(cudaErrorInvalidValue);
    }
    return cudaSuccess;
}

cudaError_t
cudaGetDeviceProperties(struct cudaDeviceProp *out, int ordinal)
{
    (void) ordinal;
    memset(out, 0, sizeof(*out));
    snprintf(out->name, sizeof(out->name), "device in software");
    out->totalGlobalMem = (size_t) 4 << 30;
    out->multiProcessorCount = (int) simt_multiprocessors();
    return cudaSuccess;
}

cudaError_t
cudaFuncSetAttribute(const void *f, enum cudaFuncAttribute what, int value)
{
    (void) f;
    (void) what;
    (void) value;
    return cudaSuccess;
}

cudaError_t
cudaDeviceSetLimit(enum cudaLimit limit, size_t value)
{
    (void) limit;
    (void) value;
    return cudaSuccess;
}

cudaError_t
cudaFuncGetAttributes(struct cudaFuncAttributes *out, const void *f)
{
    (void) f;
    memset(out, 0, sizeof(*out));
    out->ptxVersion = out->binaryVersion = SIMT_CODE;
    return cudaSuccess;
}

cudaError_t
cudaOccupancyMaxActiveClusters(int *out, const void *f,
                               const cudaLaunchConfig_t *config)
{
    (void) f;
    *out = (int) (simt_multiprocessors() / config->attrs[0].val.clusterDim.x);
    return cudaSuccess;
}

/* ---- what a copy of a box needs ------------------------------------------ */

static CUresult
map_encode(CUtensorMap *out, CUtensorMapDataType type, cuuint32_t rank,
           void *at, const cuuint64_t *dims, const cuuint64_t *strides,
           const cuuint32_t *box, const cuuint32_t *steps,
           CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
           CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill)
{
    simt_map_t m = { .at = at, .rank = rank, .element = 2 };

    _Static_assert(sizeof(m) <= sizeof(*out), "a map holds it");
    (void) steps;
    (void) promotion;
    if (type == CU_TENSOR_MAP_DATA_TYPE_UINT8) {
        m.element = 1;
    } else if (type != CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
               && type != CU_TENSOR_MAP_DATA_TYPE_FLOAT16
               && type != CU_TENSOR_MAP_DATA_TYPE_UINT16) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (rank == 0 || rank > 5 || (uintptr_t) at % 16 != 0
        || interleave != CU_TENSOR_MAP_INTERLEAVE_NONE
        || fill != CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE
        || (swizzle == CU_TENSOR_MAP_SWIZZLE_128B
            && box[0] * m.element > 128)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    m.swizzle = swizzle == CU_TENSOR_MAP_SWIZZLE_128B;
    for (uint32_t i = 0; i < rank; i++) {
        if (dims[i] == 0 || dims[i] > UINT32_MAX || box[i] == 0 || box[i] > 256
            || (i > 0 && strides[i - 1] % 16 != 0)) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        m.dims[i] = (uint32_t) dims[i];
        m.box[i] = box[i];
        if (i > 0) {
            m.strides[i - 1] = strides[i - 1];
        }
    }
    memcpy(out, &m, sizeof(m));
    return CUDA_SUCCESS;
}

static cudaError_t
entry(const char *name, void **out, enum cudaDriverEntryPointQueryResult *found)
{
    *out = NULL;
    *found = cudaDriverEntryPointSymbolNotFound;
    if (strcmp(name, "cuTensorMapEncodeTiled") == 0) {
        *out = (void *) map_encode;
        *found = cudaDriverEntryPointSuccess;
    }
    return cudaSuccess;
}

#if CUDART_VERSION >= 12050 /* as in kernels/cuda/tensor.cuh */
cudaError_t
cudaGetDriverEntryPointByVersion(const char *name, void **out, unsigned version,
                                 unsigned long long flags,
                                 enum cudaDriverEntryPointQueryResult *found)
{
    (void) version;
    (void) flags;
    return entry(name, out, found);
}
#else
cudaError_t
cudaGetDriverEntryPoint(const char *name, void **out, unsigned long long flags,
                        enum cudaDriverEntryPointQueryResult *found)
{
    (void) flags;
    return entry(name, out, found);
}
#endif
