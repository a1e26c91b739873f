/*
 * e^x of a vector, after one of vec_*.h: 2^n * p(r) with x = n ln 2 + r and a
 * polynomial of degree 6; relative error below 2e-7 for x in [-87, 88], 0 is
 * exact, larger and smaller x are clamped, NaN passes.
 */
#ifndef TR_VEC_EXP_H
#define TR_VEC_EXP_H

static inline vec
v_exp(vec x)
{
    const vec magic = v_set1(12582912.0f);
    vec shifted, n, r, p;

    /* the second operand passes when one is NaN */
    x = v_min(v_set1(88.0f), v_max(v_set1(-87.0f), x));
    shifted = v_fma(x, v_set1(1.44269504f), magic);
    n = v_sub(shifted, magic);
    r = v_fma(n, v_set1(-0.693359375f), x);
    r = v_fma(n, v_set1(2.12194440e-4f), r);
    p = v_set1(1.3981999507e-3f);
    p = v_fma(p, r, v_set1(8.3334519073e-3f));
    p = v_fma(p, r, v_set1(4.1665795894e-2f));
    p = v_fma(p, r, v_set1(1.6666665459e-1f));
    p = v_fma(p, r, v_set1(5.0000001201e-1f));
    p = v_fma(v_mul(p, r), r, v_add(r, v_set1(1.0f)));
    return v_mul(p, v_exp2i(shifted));
}

#endif
