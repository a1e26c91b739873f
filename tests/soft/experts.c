/*
 * Layers with experts on the software device: a launch of one of their kernels runs
 * what that kernel's test compares it with (experts_reference.h).
 */
#include "device.h"

#include "tests/gpu/model/experts_reference.h"

#define EXPERTS_LAUNCH(name)                                                   \
    static void name(void *args)                                               \
    {                                                                          \
        if (tr_ref_##name(args) != TR_KERNEL_OK) {                             \
            soft_fault(#name, "refused by its reference");                     \
        }                                                                      \
    }                                                                          \
                                                                               \
    int tr_cuda_##name(const tr_cuda_stream_t *s, const tr_cuda_##name##_t *a) \
    {                                                                          \
        return soft_launch(s, #name, name, a, sizeof(*a));                     \
    }

EXPERTS_LAUNCH(choose)
EXPERTS_LAUNCH(route)
EXPERTS_LAUNCH(order)
EXPERTS_LAUNCH(experts)
EXPERTS_LAUNCH(sum_experts)
