/*
 * Memory, streams, events and graphs (device.h), and error messages that tell a
 * user what to do.
 *
 * The CUDA runtime is linked statically, and the driver is looked for when the
 * first of these functions is called: the library loads on a machine without
 * one.
 */
#include "kernels/cuda/device_check.h"
#include "kernels/cuda/launch.cuh"
#include "runtime.cuh"

#include <cuda_runtime.h>
#include <stdarg.h>
#include <string.h>
#include <time.h>

#ifndef TR_CUDA_ARCHS
#error "TR_CUDA_ARCHS: the architectures compiled for, as in CUDA_ARCH"
#endif

/* Before a thread sleeps for an event. */
#define SPIN_NS 5000
#define FETCH \
    128 /* bytes that the L2 cache fetches at once, if it can be
                   * told */

static __thread char reason[512];
static volatile bool broken;
static volatile int opened = -1; /* ordinal; one a process */

/* ---- errors ------------------------------------------------------------- */

/* After these nothing runs any more in this process. */
static bool
error_is_final(cudaError_t e)
{
    switch (e) {
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchFailure:
    case cudaErrorLaunchTimeout:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorDevicesUnavailable:
    case cudaErrorContextIsDestroyed:
    case cudaErrorCudartUnloading:
    case cudaErrorSystemNotReady:
    case cudaErrorTimeout:
    case cudaErrorExternalDevice:
    case cudaErrorUnknown:
        return true;
    default:
        return false;
    }
}

int
tr_cuda_say(const char *format, ...)
{
    va_list args;

    va_start(args, format);
    vsnprintf(reason, sizeof(reason), format, args);
    va_end(args);
    return TR_CUDA_FAILED;
}

static int
failed(cudaError_t e, const char *what)
{
    if (error_is_final(e)) {
        broken = true;
    }
    return tr_cuda_say("%s: %s (%s)", what, cudaGetErrorString(e),
                       cudaGetErrorName(e));
}

int
tr_cuda_check(void)
{
    cudaError_t e = cudaGetLastError();

    return e == cudaSuccess ? TR_KERNEL_OK : failed(e, "launch");
}

/* Of a call that says at once how it went; it is not heard of twice. */
static int
checked(cudaError_t e, const char *what)
{
    if (e == cudaSuccess) {
        return TR_KERNEL_OK;
    }
    cudaGetLastError();
    return failed(e, what);
}

extern "C" const char *
tr_cuda_reason(void)
{
    return reason;
}

extern "C" bool
tr_cuda_alive(void)
{
    return !broken;
}

/* ---- the device --------------------------------------------------------- */

static void
describe(int ordinal, tr_cuda_device_info_t *out)
{
    int major = 0, minor = 0;
    cudaDeviceProp *p = (cudaDeviceProp *) calloc(1, sizeof(*p));

    cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, ordinal);
    cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, ordinal);
    out->major = (uint32_t) major;
    out->minor = (uint32_t) minor;
    if (p != NULL && cudaGetDeviceProperties(p, ordinal) == cudaSuccess) {
        snprintf(out->name, sizeof(out->name), "%s", p->name);
        out->memory = p->totalGlobalMem;
    }
    free(p);
}

extern "C" int
tr_cuda_device_info(int ordinal, tr_cuda_device_info_t *out)
{
    int driver = 0, runtime = 0, devices = 0, rc;
    size_t free_bytes = 0, bytes = 0;
    cudaError_t e;

    memset(out, 0, sizeof(*out));
    cudaDriverGetVersion(&driver);
    cudaRuntimeGetVersion(&runtime);
    out->driver = (uint32_t) driver;
    out->runtime = (uint32_t) runtime;
    e = driver > 0 ? cudaGetDeviceCount(&devices) : cudaSuccess;
    cudaGetLastError();
    if (e == cudaSuccess && ordinal >= 0 && ordinal < devices) {
        describe(ordinal, out);
    }
    rc = tr_cuda_device_check(out, devices, ordinal, TR_CUDA_ARCHS, reason,
                              sizeof(reason));
    if (e != cudaSuccess && e != cudaErrorNoDevice
        && e != cudaErrorInsufficientDriver) {
        return checked(e, "looking for GPUs");
    }
    if (rc != TR_KERNEL_OK) {
        return rc;
    }
    e = cudaSetDevice(ordinal);
    if (e == cudaSuccess) {
        e = cudaMemGetInfo(&free_bytes, &bytes);
    }
    out->free_memory = free_bytes;
    out->memory = bytes > 0 ? bytes : out->memory;
    return checked(e, "opening the GPU");
}

static __global__ void
empty_kernel(void)
{
}

extern "C" int
tr_cuda_open(int ordinal, tr_device_props_t *out)
{
    int blocks = 0, shared = 0, l2 = 0;
    cudaFuncAttributes code = {};
    tr_cuda_device_info_t info;

    memset(out, 0, sizeof(*out));
    if (tr_cuda_device_info(ordinal, &info) != TR_KERNEL_OK) {
        return TR_CUDA_FAILED;
    }
    cudaDeviceGetAttribute(&blocks, cudaDevAttrMultiProcessorCount, ordinal);
    cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin,
                           ordinal);
    cudaDeviceGetAttribute(&l2, cudaDevAttrL2CacheSize, ordinal);
    cudaFuncGetAttributes(&code, empty_kernel);
    opened = ordinal;
    out->ordinal = ordinal;
    out->blocks = (uint32_t) blocks;
    out->shared = (uint32_t) shared;
    out->l2 = (uint32_t) l2;
    out->code = (uint32_t) code.ptxVersion;
    out->dependent = out->code >= 90;
    if (cudaDeviceSetLimit(cudaLimitMaxL2FetchGranularity, FETCH)
        != cudaSuccess) {
        cudaGetLastError(); /* failing does no harm */
    }
    decode_open(out);
    small_gemm_open(out);
    fp8_gemm_open(out);
    return tr_cuda_check();
}

void
use_device(void)
{
    static __thread int current = -1;

    if (current != opened && opened >= 0) {
        cudaSetDevice(opened);
        current = opened;
    }
}

/* ---- memory ------------------------------------------------------------- */

extern "C" void *
tr_cuda_alloc(size_t bytes)
{
    void *p = NULL;

    use_device();
    return checked(cudaMalloc(&p, bytes), "device memory") == 0 ? p : NULL;
}

extern "C" void
tr_cuda_release(void *p)
{
    cudaFree(p);
}

extern "C" void *
tr_cuda_pin(size_t bytes)
{
    void *p = NULL;

    use_device();
    return checked(cudaHostAlloc(&p, bytes, cudaHostAllocDefault),
                   "pinned memory")
                   == 0
               ? p
               : NULL;
}

extern "C" void
tr_cuda_unpin(void *p)
{
    cudaFreeHost(p);
}

/* ---- streams ------------------------------------------------------------ */

static cudaStream_t
stream_of(const tr_cuda_stream_t *s)
{
    return (cudaStream_t) s->stream;
}

extern "C" int
tr_cuda_stream_open(const tr_device_props_t *device, tr_cuda_stream_t *out)
{
    cudaStream_t stream = NULL;
    int rc;

    use_device();
    rc = checked(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking),
                 "stream");
    out->stream = stream;
    out->device = device;
    return rc;
}

extern "C" void
tr_cuda_stream_close(tr_cuda_stream_t *s)
{
    if (s->stream != NULL) {
        cudaStreamDestroy(stream_of(s));
        s->stream = NULL;
    }
}

extern "C" int
tr_cuda_stream_wait(const tr_cuda_stream_t *s)
{
    use_device();
    return checked(cudaStreamSynchronize(stream_of(s)), "waiting for the GPU");
}

extern "C" int
tr_cuda_copy(const tr_cuda_stream_t *s, void *to, const void *from,
             size_t bytes)
{
    use_device();
    return checked(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault,
                                   stream_of(s)),
                   "copy");
}

extern "C" int
tr_cuda_fill(const tr_cuda_stream_t *s, void *to, int byte, size_t bytes)
{
    use_device();
    return checked(cudaMemsetAsync(to, byte, bytes, stream_of(s)), "fill");
}

/* ---- events ------------------------------------------------------------- */

static cudaEvent_t
event_of(void *event)
{
    return (cudaEvent_t) event;
}

extern "C" int
tr_cuda_event_open(void **event)
{
    cudaEvent_t e = NULL;
    int rc;

    use_device();
    rc = checked(cudaEventCreateWithFlags(&e, cudaEventBlockingSync), "event");
    *event = e;
    return rc;
}

extern "C" void
tr_cuda_event_close(void *event)
{
    if (event != NULL) {
        cudaEventDestroy(event_of(event));
    }
}

extern "C" int
tr_cuda_event_record(const tr_cuda_stream_t *s, void *event)
{
    use_device(); /* it may come first */
    return checked(cudaEventRecord(event_of(event), stream_of(s)), "event");
}

extern "C" int
tr_cuda_event_passed(void *event)
{
    cudaError_t e = cudaEventQuery(event_of(event));

    if (e == cudaErrorNotReady) {
        cudaGetLastError();
        return 0;
    }
    return e == cudaSuccess ? 1 : checked(e, "the GPU's work");
}

static uint64_t
now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t) t.tv_sec * 1000000000u + (uint64_t) t.tv_nsec;
}

extern "C" int
tr_cuda_event_wait(void *event)
{
    uint64_t from = now_ns();
    int passed;

    do {
        passed = tr_cuda_event_passed(event);
        if (passed != 0) {
            return passed == 1 ? TR_KERNEL_OK : passed;
        }
    } while (now_ns() - from < SPIN_NS);
    return checked(cudaEventSynchronize(event_of(event)), "the GPU's work");
}

extern "C" int
tr_cuda_event_time(void *from, void *to, double *us)
{
    float ms = 0;
    int rc = checked(cudaEventElapsedTime(&ms, event_of(from), event_of(to)),
                     "time between events");

    *us = (double) ms * 1000;
    return rc;
}

extern "C" int
tr_cuda_event_follow(const tr_cuda_stream_t *s, void *event)
{
    return checked(cudaStreamWaitEvent(stream_of(s), event_of(event), 0),
                   "event");
}

/* ---- graphs ------------------------------------------------------------- */

extern "C" int
tr_cuda_graph_begin(const tr_cuda_stream_t *s)
{
    use_device();
    return checked(cudaStreamBeginCapture(stream_of(s),
                                          cudaStreamCaptureModeThreadLocal),
                   "capture");
}

extern "C" int
tr_cuda_graph_end(const tr_cuda_stream_t *s, void **graph)
{
    cudaGraph_t g = NULL;
    cudaGraphExec_t exec = NULL;
    int rc = checked(cudaStreamEndCapture(stream_of(s), &g), "capture");

    *graph = NULL;
    if (rc == TR_KERNEL_OK) {
        rc = checked(cudaGraphInstantiate(&exec, g, 0), "graph");
    }
    if (rc == TR_KERNEL_OK) {
        rc = checked(cudaGraphUpload(exec, stream_of(s)), "graph");
    }
    if (g != NULL) {
        cudaGraphDestroy(g);
    }
    *graph = exec;
    return rc;
}

extern "C" int
tr_cuda_graph_launch(const tr_cuda_stream_t *s, void *graph)
{
    use_device();
    return checked(cudaGraphLaunch((cudaGraphExec_t) graph, stream_of(s)),
                   "graph");
}

extern "C" void
tr_cuda_graph_close(void *graph)
{
    if (graph != NULL) {
        cudaGraphExecDestroy((cudaGraphExec_t) graph);
    }
}
