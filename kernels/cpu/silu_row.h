/*
 * The body of silu_mul for one row, compiled once for each instruction set:
 * plain C that the compiler vectorises.  e^x is 2^n * p(r) with
 * x = n ln 2 + r and a polynomial of degree 6 (relative error below 2e-7); NaN
 * passes through the clamps, which are written so that it does.
 */
#ifndef TR_SILU_ROW_H
#define TR_SILU_ROW_H

#include <stdint.h>

static inline float
tr_exp_scalar(float x)
{
    float n, r, p;
    union {
        int32_t i;
        float f;
    } two_n;

    x = x < -87.0f ? -87.0f : x;
    x = x > 88.0f ? 88.0f : x;
    /* adding 1.5 * 2^23 rounds to an integer, kept in the low bits */
    two_n.f = x * 1.44269504f + 12582912.0f;
    n = two_n.f - 12582912.0f;
    two_n.i = (int32_t) ((uint32_t) (two_n.i + 127) << 23);
    r = x - n * 0.693359375f;
    r = r + n * 2.12194440e-4f;
    p = 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    return p * two_n.f;
}

static inline void
tr_silu_row(const float *restrict gate, const float *restrict up,
    float *restrict out, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        out[i] = gate[i] / (1.0f + tr_exp_scalar(-gate[i])) * up[i];
    }
}

#endif
