/*
 * gpu_meter.h: how busy the GPU is and how much power it takes, once a second,
 * for the status page.
 *
 * The figures are NVML's, which belongs to the driver and is loaded when it is
 * there (tr_nvml_open); tests bring their own functions.  Its calls take
 * milliseconds, so a thread of its own makes them.  What the device does not
 * tell (a part of a divided GPU, for instance) stays unknown.
 *
 * NVML counts devices differently from CUDA.  Ours is the only one, or the one
 * that this process runs on; in a container with several, whose processes have
 * other numbers outside, it is not found.
 */
#ifndef TR_GPU_METER_H
#define TR_GPU_METER_H

#include <tokenring/error.h>
#include <tokenring/status.h>

typedef struct tr_gpu_meter tr_gpu_meter_t;

/* nvmlUtilization_t: percent of the last sampling period. */
typedef struct {
    unsigned gpu, memory;
} tr_nvml_use_t;

/* nvmlProcessInfo_t. */
typedef struct {
    unsigned pid;
    unsigned long long memory;
    unsigned instances[2];
} tr_nvml_process_t;

/* Functions of NVML, by its names; each returns 0 when all is well. */
typedef struct {
    int (*init)(void);
    int (*shutdown)(void);
    int (*count)(unsigned *devices);
    int (*handle)(unsigned index, void **device);
    /* *n: room in out, then how many there are */
    int (*processes)(void *device, unsigned *n, tr_nvml_process_t *out);
    int (*utilization)(void *device, tr_nvml_use_t *out);
    int (*power)(void *device, unsigned *milliwatts);
    void *library; /* of dlopen; NULL: not loaded by us */
} tr_nvml_t;

/* Loads NVML into *out, or says why not in *err. */
tr_status_t tr_nvml_open(tr_nvml_t *out, tr_error_t *err);

/* Starts measuring the device that this process runs on into counters, borrowed
 * until the stop.  Takes *nvml, also when it fails. */
tr_status_t tr_gpu_meter_start(const tr_nvml_t *nvml, unsigned pid,
                               tr_status_counters_t *counters,
                               tr_gpu_meter_t **out, tr_error_t *err);

/* NULL is fine. */
void tr_gpu_meter_stop(tr_gpu_meter_t *m);

#endif
