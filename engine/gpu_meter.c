/*
 * The meter's thread, and NVML by dlopen.
 */
#include "gpu_meter.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/config/log.h"

#define NVML "libnvidia-ml.so.1"
#define PROCESSES 64 /* of a device, that are looked at */

struct tr_gpu_meter {
    tr_nvml_t nvml;
    void *device;
    tr_status_counters_t *counters;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    bool stop;
};

/* ---- NVML --------------------------------------------------------------- */

static void
nvml_close(const tr_nvml_t *nvml)
{
    if (nvml->library != NULL) {
        dlclose(nvml->library);
    }
}

tr_status_t
tr_nvml_open(tr_nvml_t *out, tr_error_t *err)
{
    void *library = dlopen(NVML, RTLD_NOW | RTLD_LOCAL);
    struct {
        const char *name;
        void *at;
    } wanted[] = {
        { "nvmlInit_v2", &out->init },
        { "nvmlShutdown", &out->shutdown },
        { "nvmlDeviceGetCount_v2", &out->count },
        { "nvmlDeviceGetHandleByIndex_v2", &out->handle },
        { "nvmlDeviceGetComputeRunningProcesses_v3", &out->processes },
        { "nvmlDeviceGetUtilizationRates", &out->utilization },
        { "nvmlDeviceGetPowerUsage", &out->power },
    };
    size_t i;

    memset(out, 0, sizeof(*out));
    if (library == NULL) {
        return tr_error_set(err, TR_ERR_IO, "", "%s", dlerror());
    }
    for (i = 0; i < sizeof(wanted) / sizeof(wanted[0]); i++) {
        void *found = dlsym(library, wanted[i].name);

        if (found == NULL) {
            dlclose(library);
            return tr_error_set(err, TR_ERR_IO, "", "%s has no %s", NVML,
                                wanted[i].name);
        }
        /* ISO C converts no object pointer to a function; POSIX has it work */
        memcpy(wanted[i].at, &found, sizeof(found));
    }
    out->library = library;
    return TR_OK;
}

/* ---- the thread --------------------------------------------------------- */

static void
measure(tr_gpu_meter_t *m)
{
    tr_nvml_use_t use;
    unsigned milliwatts;
    uint64_t known = 0;

    if (m->nvml.utilization(m->device, &use) == 0 && use.gpu <= 100) {
        atomic_store_explicit(&m->counters->gpu_use_percent, use.gpu,
                              memory_order_relaxed);
        known |= TR_STATUS_GPU_USE;
    }
    if (m->nvml.power(m->device, &milliwatts) == 0) {
        atomic_store_explicit(&m->counters->gpu_milliwatts, milliwatts,
                              memory_order_relaxed);
        known |= TR_STATUS_GPU_POWER;
    }
    atomic_store_explicit(&m->counters->gpu_known, known, memory_order_release);
}

static void *
run(void *arg)
{
    tr_gpu_meter_t *m = arg;
    struct timespec next;

    clock_gettime(CLOCK_MONOTONIC, &next);
    pthread_mutex_lock(&m->lock);
    while (!m->stop) {
        pthread_mutex_unlock(&m->lock);
        measure(m);
        pthread_mutex_lock(&m->lock);
        next.tv_sec++;
        while (!m->stop
               && pthread_cond_timedwait(&m->wake, &m->lock, &next) == 0) {
        }
    }
    pthread_mutex_unlock(&m->lock);
    return NULL;
}

static tr_status_t
start_thread(tr_gpu_meter_t *m, tr_error_t *err)
{
    pthread_condattr_t attributes;

    pthread_mutex_init(&m->lock, NULL);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&m->wake, &attributes);
    pthread_condattr_destroy(&attributes);
    if (pthread_create(&m->thread, NULL, run, m) == 0) {
        return TR_OK;
    }
    pthread_cond_destroy(&m->wake);
    pthread_mutex_destroy(&m->lock);
    return tr_error_set(err, TR_ERR_NOMEM, "", "cannot start a thread");
}

static bool
runs_on(const tr_nvml_t *nvml, void *device, unsigned pid)
{
    tr_nvml_process_t found[PROCESSES];
    unsigned n = PROCESSES, i;

    if (nvml->processes(device, &n, found) != 0) {
        return false;
    }
    for (i = 0; i < n && i < PROCESSES; i++) {
        if (found[i].pid == pid) {
            return true;
        }
    }
    return false;
}

static tr_status_t
find_device(const tr_nvml_t *nvml, unsigned pid, void **out, tr_error_t *err)
{
    unsigned n = 0, i;
    int e = nvml->count(&n);

    for (i = 0; e == 0 && i < n; i++) {
        if (nvml->handle(i, out) == 0 && (n == 1 || runs_on(nvml, *out, pid))) {
            return TR_OK;
        }
    }
    return tr_error_set(err, TR_ERR_IO, "",
                        "NVML finds this process on none of %u GPUs (error %d)",
                        n, e);
}

tr_status_t
tr_gpu_meter_start(const tr_nvml_t *nvml, unsigned pid,
                   tr_status_counters_t *counters, tr_gpu_meter_t **out,
                   tr_error_t *err)
{
    tr_gpu_meter_t *m = calloc(1, sizeof(*m));
    tr_status_t rc = TR_OK;
    int e;

    *out = NULL;
    if (m == NULL) {
        nvml_close(nvml);
        return tr_error_set(err, TR_ERR_NOMEM, "", "no memory for a meter");
    }
    m->nvml = *nvml;
    m->counters = counters;
    e = nvml->init();
    if (e != 0) {
        rc = tr_error_set(err, TR_ERR_IO, "", "nvmlInit_v2: error %d", e);
    } else {
        rc = find_device(nvml, pid, &m->device, err);
        if (rc == TR_OK) {
            rc = start_thread(m, err);
        }
        if (rc != TR_OK) {
            nvml->shutdown();
        }
    }
    if (rc != TR_OK) {
        nvml_close(nvml);
        free(m);
        return rc;
    }
    *out = m;
    return TR_OK;
}

void
tr_gpu_meter_stop(tr_gpu_meter_t *m)
{
    if (m == NULL) {
        return;
    }
    pthread_mutex_lock(&m->lock);
    m->stop = true;
    pthread_cond_signal(&m->wake);
    pthread_mutex_unlock(&m->lock);
    pthread_join(m->thread, NULL);
    pthread_cond_destroy(&m->wake);
    pthread_mutex_destroy(&m->lock);
    m->nvml.shutdown();
    nvml_close(&m->nvml);
    free(m);
}
