/*
 * device_check.h: can this library run on that GPU, and if not, what is the
 * user told?  Plain C, so that the answers are tested where there is no GPU.
 */
#ifndef TR_CUDA_DEVICE_CHECK_H
#define TR_CUDA_DEVICE_CHECK_H

#include "kernels/cuda/device.h"

#include <stdio.h>
#include <stdlib.h>

/* Code for architecture "80" runs on 8.0 and later 8s, code for "90a" on 9.0
 * alone, and "80+", which the driver translates, from 8.0 on.  archs: those
 * compiled, with spaces between. */
static inline bool
tr_cuda_arch_runs(const char *archs, uint32_t major, uint32_t minor)
{
    while (*archs != '\0') {
        char *end;
        unsigned long arch = strtoul(archs, &end, 10);

        if (end == archs) {
            archs++;
            continue;
        }
        if (*end == '+' ? arch <= 10 * major + minor
                        : arch / 10 == major
                              && (*end == 'a' ? arch % 10 == minor
                                              : arch % 10 <= minor)) {
            return true;
        }
        archs = *end == 'a' || *end == '+' ? end + 1 : end;
    }
    return false;
}

/* 0, or TR_CUDA_FAILED and why.  devices: how many there are; info->driver 0:
 * none.  name and capability are looked at when the ordinal is one of them. */
static inline int
tr_cuda_device_check(const tr_cuda_device_info_t *info, int devices,
                     int ordinal, const char *archs, char *reason, size_t size)
{
    uint32_t driver = info->driver, runtime = info->runtime;

    if (driver == 0) {
        snprintf(reason, size,
                 "NVIDIA driver not found: is it installed, and "
                 "is /dev/nvidia* visible here?");
    } else if (driver / 1000 < runtime / 1000) {
        snprintf(reason, size,
                 "the NVIDIA driver is too old: it knows CUDA %u.%u, and this "
                 "library needs a driver for CUDA %u.0 or newer",
                 driver / 1000, driver % 1000 / 10, runtime / 1000);
    } else if (devices <= 0) {
        snprintf(reason, size, "no NVIDIA GPU was found");
    } else if (ordinal < 0 || ordinal >= devices) {
        snprintf(reason, size, "there is no GPU %d: this machine has %d, %s",
                 ordinal, devices,
                 devices == 1 ? "whose number is 0" : "counted from 0");
    } else if (!tr_cuda_arch_runs(archs, info->major, info->minor)) {
        snprintf(reason, size,
                 "GPU %d (%s) has compute capability %u.%u, and this library "
                 "was built for %s (make cuda CUDA_ARCH=..)",
                 ordinal, info->name, info->major, info->minor, archs);
    } else {
        return TR_KERNEL_OK;
    }
    return TR_CUDA_FAILED;
}

#endif
