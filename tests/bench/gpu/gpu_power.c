/*
 * What the device draws, of NVML, which is part of the driver (gpu_fixture.h).
 * Looked up when the program runs, so that it need not be there.
 */
#include <dlfcn.h>
#include <stdlib.h>

#include "gpu_fixture.h"

typedef int (*nvml_t)(void);
typedef int (*nvml_number_t)(unsigned *);
typedef int (*nvml_handle_t)(unsigned, void **);
typedef int (*nvml_energy_t)(void *, unsigned long long *);

static struct {
    bool tried;
    void *device; /* NULL: nothing is known */
    nvml_energy_t energy;
} nvml;

/* dlsym's result as a function, which ISO C does not convert. */
static void
look_up(void *library, const char *name, void *function)
{
    *(void **) function = dlsym(library, name);
}

static void
open_once(void)
{
    void *library;
    nvml_t begin;
    nvml_number_t count;
    nvml_handle_t handle;
    unsigned n = 0;

    if (nvml.tried) {
        return;
    }
    nvml.tried = true;
    library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        return;
    }
    look_up(library, "nvmlInit_v2", &begin);
    look_up(library, "nvmlDeviceGetCount_v2", &count);
    look_up(library, "nvmlDeviceGetHandleByIndex_v2", &handle);
    look_up(library, "nvmlDeviceGetTotalEnergyConsumption", &nvml.energy);
    /* of several devices it would not be known which one is ours */
    if (begin == NULL || count == NULL || handle == NULL || nvml.energy == NULL
        || begin() != 0 || count(&n) != 0 || n != 1
        || handle(0, &nvml.device) != 0) {
        nvml.device = NULL;
    }
}

double
fixture_joules(void)
{
    unsigned long long mj = 0;

    open_once();
    if (nvml.device == NULL || nvml.energy(nvml.device, &mj) != 0) {
        return 0;
    }
    return (double) mj * 1e-3;
}
