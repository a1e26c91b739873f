/*
 * The table that the engine loads (device.h), in the order of
 * TR_DEVICE_ENTRIES.  Plain C as well: the software device of the tests is
 * compiled with this very file.
 */
#include "kernels/cuda/device.h"

__attribute__((visibility("default"))) const tr_device_t *
tr_device(void)
{
#define TR_DEVICE_ENTRY(name) tr_cuda_##name,
    static const tr_device_t api = { TR_DEVICE_VERSION,
                                     (uint32_t) sizeof(tr_device_t),
                                     TR_DEVICE_ENTRIES(TR_DEVICE_ENTRY) };
#undef TR_DEVICE_ENTRY

    return &api;
}
