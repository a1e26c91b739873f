/*
 * act.cuh: the activation functions (kernels/act.h), as functions of a thread.
 */
#ifndef TR_CUDA_ACT_CUH
#define TR_CUDA_ACT_CUH

#include "kernels/act.h"
#include "kernels/cuda/block.cuh"

/* act(gate) * up.  What __expf and __fdividef are off by is far below 16
 * bits. */
template <tr_act_t ACT>
TR_DEVICE float
act_of(float gate, float up)
{
    if (ACT == TR_ACT_GELU_TANH) {
        float u = 0.7978845608f * (gate + 0.044715f * gate * gate * gate);

        /* x / 2 (1 + tanh(u)) is x / (1 + e^-2u) */
        return __fdividef(gate, 1.0f + __expf(-2 * u)) * up;
    }
    if (ACT == TR_ACT_OAI) {
        float g = fminf(gate, 7), u = fminf(fmaxf(up, -7), 7);

        return (u + 1) * __fdividef(g, 1.0f + __expf(-1.702f * g));
    }
    return __fdividef(gate, 1.0f + __expf(-gate)) * up;
}

/* The same of a function that is known when the kernel runs. */
TR_DEVICE float
act_any(tr_act_t act, float gate, float up)
{
    return act == TR_ACT_SILU  ? act_of<TR_ACT_SILU>(gate, up)
           : act == TR_ACT_OAI ? act_of<TR_ACT_OAI>(gate, up)
                               : act_of<TR_ACT_GELU_TANH>(gate, up);
}

#endif
