/*
 * Finds and opens the CUDA backend's library (cuda_library.h).
 *
 * What can be wrong with an installation is said here: no library, one of
 * another version, no driver, no such device, one that is too old.
 */
#include "cuda_library.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "engine/config/log.h"

/* cp.async and BF16 products. */
#define MAJOR_LEAST 8

/* Folder of the running program, with a slash; "" when it is not known. */
static void
own_folder(char *out, size_t size)
{
    ssize_t n = readlink("/proc/self/exe", out, size - 1);
    char *slash;

    out[n > 0 ? n : 0] = '\0';
    slash = strrchr(out, '/');
    if (slash != NULL) {
        slash[1] = '\0';
    }
}

static void *
open_beside(char *path, size_t size)
{
    static const char *const places[] = { "", "../", "../lib/tokenring/",
                                          "../lib/" };
    char folder[512];

    own_folder(folder, sizeof(folder));
    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
        int n = snprintf(path, size, "%s%s" TR_CUDA_LIBRARY_NAME, folder,
                         places[i]);

        if (n > 0 && (size_t) n < size && access(path, R_OK) == 0) {
            return dlopen(path, RTLD_NOW | RTLD_LOCAL);
        }
    }
    snprintf(path, size, "%s", TR_CUDA_LIBRARY_NAME);
    return dlopen(path, RTLD_NOW | RTLD_LOCAL);
}

/* The table, when it is the one that we were compiled with. */
static tr_status_t
take_table(void *library, const char *path, const tr_device_t **out,
           tr_error_t *err)
{
    const tr_device_t *(*table)(void) = NULL;
    void *symbol = dlsym(library, TR_DEVICE_SYMBOL);
    const tr_device_t *a;

    if (symbol == NULL) {
        return tr_error_set(err, TR_ERR_FORMAT, "cuda_library",
                            "cuda_library %s is not a CUDA backend: it has no "
                            "%s",
                            path, TR_DEVICE_SYMBOL);
    }
    memcpy(&table, &symbol, sizeof(table));
    a = table();
    if (a == NULL || a->version != TR_DEVICE_VERSION || a->size != sizeof(*a)) {
        return tr_error_set(err, TR_ERR_VERSION, "cuda_library",
                            "cuda_library %s has version %u (%u bytes), this "
                            "engine needs version %u (%zu bytes): install both "
                            "from one build",
                            path, a != NULL ? a->version : 0,
                            a != NULL ? a->size : 0, TR_DEVICE_VERSION,
                            sizeof(*a));
    }
    *out = a;
    return TR_OK;
}

tr_status_t
tr_cuda_library_open(const char *path, const tr_device_t **out, tr_error_t *err)
{
    char found[1024];
    void *library;

    if (path[0] != '\0') {
        snprintf(found, sizeof(found), "%s", path);
        library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    } else {
        library = open_beside(found, sizeof(found));
    }
    if (library == NULL) {
        const char *why = dlerror();

        return tr_error_set(err, TR_ERR_NOT_FOUND, "cuda_library",
                            "backend cuda: cannot load %s: %s%s", found,
                            why != NULL ? why : "no reason given",
                            path[0] != '\0'
                                ? ""
                                : "; `make cuda` builds it, cuda_library says "
                                  "where it is");
    }
    return take_table(library, found, out, err);
}

tr_status_t
tr_cuda_library_check(const tr_device_t *cuda, uint32_t ordinal,
                      tr_cuda_device_info_t *out, tr_error_t *err)
{
    memset(out, 0, sizeof(*out));
    if (cuda->device_info((int) ordinal, out) != 0) {
        return tr_error_set(err, TR_ERR_UNSUPPORTED, "device",
                            "backend cuda: device %u cannot be used: %s",
                            ordinal, cuda->reason());
    }
    if (out->driver < out->runtime / 1000 * 1000) {
        return tr_error_set(err, TR_ERR_UNSUPPORTED, "device",
                            "backend cuda: the driver is for CUDA %u.%u, %s "
                            "was built with %u.%u: update the driver",
                            out->driver / 1000, out->driver % 1000 / 10,
                            TR_CUDA_LIBRARY_NAME, out->runtime / 1000,
                            out->runtime % 1000 / 10);
    }
    if (out->major < MAJOR_LEAST) {
        return tr_error_set(err, TR_ERR_UNSUPPORTED, "device",
                            "backend cuda: device %u (%s) has compute "
                            "capability %u.%u, expected %u.0 or newer",
                            ordinal, out->name, out->major, out->minor,
                            MAJOR_LEAST);
    }
    return TR_OK;
}
