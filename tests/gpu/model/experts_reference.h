/*
 * experts_reference.h: what the kernels of device.h for layers with experts
 * compute, as plain C over host memory; see model_reference.h.
 */
#ifndef TR_TESTS_GPU_EXPERTS_REFERENCE_H
#define TR_TESTS_GPU_EXPERTS_REFERENCE_H

#include "kernels/cuda/device.h"

#ifdef __cplusplus
extern "C" {
#endif

int tr_ref_choose(const tr_cuda_choose_t *a);
int tr_ref_route(const tr_cuda_route_t *a);
int tr_ref_order(const tr_cuda_order_t *a);
int tr_ref_experts(const tr_cuda_experts_t *a);
int tr_ref_sum_experts(const tr_cuda_sum_experts_t *a);

#ifdef __cplusplus
}
#endif

#endif
