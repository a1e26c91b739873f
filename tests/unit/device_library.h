/*
 * device_library.h: the library of `backend cuda` that a test runs on: the
 * software device (tests/soft), or the one that TR_CUDA_LIBRARY names.
 */
#ifndef TR_TEST_DEVICE_LIBRARY_H
#define TR_TEST_DEVICE_LIBRARY_H

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* It lies beside the test. */
static inline const char *
soft_library(void)
{
    static char path[512];
    ssize_t n = readlink("/proc/self/exe", path, sizeof(path) - 64);
    char *slash;

    path[n > 0 ? n : 0] = '\0';
    slash = strrchr(path, '/');
    strcpy(slash != NULL ? slash + 1 : path, "libtokenring_soft.so");
    return path;
}

static inline const char *
device_library(void)
{
    const char *given = getenv("TR_CUDA_LIBRARY");

    return given != NULL ? given : soft_library();
}

#endif
