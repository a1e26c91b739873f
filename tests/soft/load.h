/*
 * load.h: the software device's table, for its tests.
 */
#ifndef TR_TESTS_SOFT_LOAD_H
#define TR_TESTS_SOFT_LOAD_H

#include <cmocka.h>
#include <dlfcn.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <unistd.h>

#include "kernels/cuda/device.h"

static const tr_device_t *cuda;
static tr_device_props_t device;

/* The library beside this program. */
static void
soft_load(void)
{
    char path[PATH_MAX], self[PATH_MAX] = "";
    const tr_device_t *(*table)(void);
    void *lib;

    assert_true(readlink("/proc/self/exe", self, sizeof(self) - 1) > 0);
    snprintf(path, sizeof(path), "%.4000s/libtokenring_soft.so", dirname(self));
    lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (lib == NULL) {
        fail_msg("%s", dlerror());
        return;
    }
    *(void **) &table = dlsym(lib, TR_DEVICE_SYMBOL);
    assert_non_null(table);
    cuda = table();
    assert_int_equal(cuda->version, TR_DEVICE_VERSION);
    assert_int_equal(cuda->size, sizeof(*cuda));
    assert_int_equal(cuda->open(0, &device), 0);
}

#endif
