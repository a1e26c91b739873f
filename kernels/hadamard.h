/*
 * hadamard.h: the rotation that spreads an outlier channel over its head, for
 * kernels and for weights.
 *
 *     R x = H (s * x) / sqrt(n)     H: Sylvester's Hadamard matrix, s: fixed signs
 *
 * R is orthonormal, so queries by keys stay what they are when both are rotated,
 * and values come back by R^T.  A channel that is alone large becomes n channels
 * of equal size.  The signs keep channels of like sign from adding up in one, as
 * those of a bias would.
 */
#ifndef TR_HADAMARD_H
#define TR_HADAMARD_H

#include <math.h>
#include <stdbool.h>

#include "operands.h"

/* Is there an R for heads of n channels? */
TR_HD bool
tr_hadamard_has(uint32_t n)
{
    return n >= 16 && n <= TR_HEAD_DIM_MAX && (n & (n - 1)) == 0;
}

/* Of channel i: 1 or -1. */
TR_HD float
tr_hadamard_sign(uint32_t i)
{
    uint32_t x = (i + 1) * 0x9e3779b9u;

    x = (x ^ (x >> 16)) * 0x85ebca6bu;
    x = (x ^ (x >> 13)) * 0xc2b2ae35u;
    return x >> 31 ? -1.0f : 1.0f;
}

/* x[i * stride] becomes R x, i < n. */
static inline void
tr_hadamard(float *x, size_t stride, uint32_t n)
{
    float scale = 1 / sqrtf((float) n);

    for (uint32_t i = 0; i < n; i++) {
        x[i * stride] *= tr_hadamard_sign(i) * scale;
    }
    for (uint32_t half = 1; half < n; half *= 2) {
        for (uint32_t i = 0; i < n; i++) {
            float *u = x + i * stride, *v = u + half * stride;

            if ((i & half) == 0) {
                float sum = *u + *v;

                *v = *u - *v;
                *u = sum;
            }
        }
    }
}

#endif
