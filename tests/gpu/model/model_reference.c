/*
 * What the device's kernels beside attention compute, as plain loops.
 */
#include "model_reference.h"

#include <math.h>
#include <stdlib.h>

#include "kernels/hadamard.h"

/* ---- embedding ---------------------------------------------------------- */

/* The token of row r, which history has when the row has not. */
static int32_t
known_token(const tr_cuda_embed_t *a, uint32_t r)
{
    int32_t token = a->token[r], slot = a->row_slot[r];
    size_t at;

    if (slot < 0 || a->history.token == NULL
        || a->row_pos[r] >= a->history.len) {
        return token;
    }
    at = (size_t) slot * a->history.len + a->row_pos[r];
    if (token < 0) {
        return a->history.token[at];
    }
    a->history.token[at] = token;
    return token;
}

int
tr_ref_embed(const tr_cuda_embed_t *a)
{
    if (a->vocab == 0 || a->hidden == 0 || a->ldo < a->hidden
        || !tr_dtype_is_short(a->type)) {
        return TR_KERNEL_BADARG;
    }
    for (uint32_t r = 0; r < a->rows; r++) {
        int32_t token = known_token(a, r);
        size_t row = token < 0 || (uint32_t) token >= a->vocab
                         ? 0
                         : (size_t) token * a->hidden;

        for (uint32_t i = 0; i < a->hidden; i++) {
            a->out[r * a->ldo + i] = tr_float_load(a->table, row + i, a->type);
        }
    }
    return TR_KERNEL_OK;
}

/* ---- a layer ------------------------------------------------------------ */

int
tr_ref_rope_angles(const uint32_t *row_pos, uint32_t rows,
                   const float *inv_freq, uint32_t half, float *angles)
{
    for (uint32_t r = 0; r < rows; r++) {
        float *out = angles + (size_t) r * 2 * half;

        for (uint32_t i = 0; i < half; i++) {
            float angle = (float) row_pos[r] * inv_freq[i];

            out[i] = cosf(angle);
            out[half + i] = sinf(angle);
        }
    }
    return half == 0 ? TR_KERNEL_BADARG : TR_KERNEL_OK;
}

/* 1 / sqrt(mean(x^2) + eps). */
static float
scale_of(const float *x, uint32_t n, float eps)
{
    float sum = 0;

    for (uint32_t i = 0; i < n; i++) {
        sum += x[i] * x[i];
    }
    return 1.0f / sqrtf(sum / (float) n + eps);
}

/* hidden[i] with what delta and bias add to it. */
static float
with_delta(const tr_cuda_norm_t *a, size_t row, uint32_t i)
{
    float x = a->hidden[row * a->ldh + i];

    if (a->delta == NULL) {
        return x;
    }
    x += tr_float_load(a->delta, row * a->ldd + i, a->type);
    return a->bias == NULL ? x : x + a->bias[i];
}

int
tr_ref_norm(const tr_cuda_norm_t *a)
{
    if (a->n == 0 || a->ldh < a->n || a->ldo < a->n
        || !tr_dtype_is_short(a->type) || (a->delta != NULL && a->ldd < a->n)) {
        return TR_KERNEL_BADARG;
    }
    for (uint32_t r = 0; r < a->rows; r++) {
        size_t row = a->gather == NULL ? r : a->gather[r];
        float sum = 0, scale;

        for (uint32_t i = 0; i < a->n; i++) {
            float x = with_delta(a, row, i);

            sum += x * x;
        }
        scale = 1.0f / sqrtf(sum / (float) a->n + a->eps);
        for (uint32_t i = 0; i < a->n; i++) {
            float x = with_delta(a, row, i);

            if (a->gather == NULL) {
                a->hidden[row * a->ldh + i] = x;
            }
            tr_float_store(a->out, r * a->ldo + i, a->type,
                           x * scale * a->weight[i]);
        }
    }
    return TR_KERNEL_OK;
}

/* Head h of a row: queries, then keys, then values. */
static void
shape_head(const tr_cuda_qkv_t *a, uint32_t r, uint32_t h)
{
    uint32_t dim = a->head_dim, half = dim / 2;
    const float *cosine = a->angles + (size_t) r * dim, *sine = cosine + half;
    bool query = h < a->heads, value = h >= a->heads + a->kv_heads;
    const float *weight = query ? a->q_norm : value ? NULL : a->k_norm;
    size_t at = r * a->ld + (size_t) h * dim;
    float x[TR_HEAD_DIM_MAX], scale;

    for (uint32_t i = 0; i < dim; i++) {
        x[i] = tr_float_load(a->qkv, at + i, a->type);
        x[i] += a->bias == NULL ? 0 : a->bias[(size_t) h * dim + i];
    }
    if (weight != NULL) {
        scale = scale_of(x, dim, a->eps);
        for (uint32_t i = 0; i < dim; i++) {
            x[i] = x[i] * scale * weight[i];
        }
    }
    for (uint32_t i = 0; (query || (a->hadamard && !value)) && i < half; i++) {
        float u = x[i], v = x[half + i];

        x[i] = u * cosine[i] - v * sine[i];
        x[half + i] = v * cosine[i] + u * sine[i];
    }
    if (a->hadamard && !value) {
        tr_hadamard(x, 1, dim);
    }
    for (uint32_t i = 0; i < dim; i++) {
        tr_float_store(a->qkv, at + i, a->type, x[i]);
    }
}

int
tr_ref_qkv(const tr_cuda_qkv_t *a)
{
    uint32_t all = a->heads + 2 * a->kv_heads;

    if (a->head_dim == 0 || a->head_dim > TR_HEAD_DIM_MAX || a->head_dim % 16
        || a->heads == 0 || a->ld < (size_t) all * a->head_dim
        || !tr_dtype_is_short(a->type)
        || (a->q_norm == NULL) != (a->k_norm == NULL)
        || (a->hadamard && !tr_hadamard_has(a->head_dim))) {
        return TR_KERNEL_BADARG;
    }
    for (uint32_t r = 0; r < a->rows; r++) {
        for (uint32_t h = 0; h < all; h++) {
            shape_head(a, r, h);
        }
    }
    return TR_KERNEL_OK;
}

/* Of those of TR_CUDA_ACTS. */
static float
act_of(tr_act_t act, float x)
{
    (void) act;
    return x / (1.0f + expf(-x));
}

int
tr_ref_act_mul(tr_act_t act, const void *x, size_t ldx, uint32_t rows,
               uint32_t n, tr_dtype_t type, void *out, size_t ldo)
{
    if (!tr_cuda_has_act(act) || ldx < 2 * (size_t) n || ldo < n
        || !tr_dtype_is_short(type)) {
        return TR_KERNEL_BADARG;
    }
    for (uint32_t r = 0; r < rows; r++) {
        for (uint32_t i = 0; i < n; i++) {
            float gate = tr_float_load(x, r * ldx + i, type);
            float up = tr_float_load(x, r * ldx + n + i, type);

            tr_float_store(out, r * ldo + i, type, act_of(act, gate) * up);
        }
    }
    return TR_KERNEL_OK;
}

/* ---- products of few rows ------------------------------------------------ */

static float
few_scale(const tr_cuda_small_gemm_t *a, uint32_t r)
{
    float sum = 0;

    for (uint32_t i = 0; i < a->parts; i++) {
        sum += a->squares[(size_t) r * a->parts + i];
    }
    return a->parts == 0 ? 1 : 1.0f / sqrtf(sum / (float) a->norm_n + a->eps);
}

static void
gemm_residual(const tr_cuda_small_gemm_t *a, uint32_t r, const float *sums)
{
    float *hidden = a->hidden + r * a->ldh, squares = 0;

    for (uint32_t i = 0; i < a->n; i++) {
        hidden[i] += sums[i] + (a->bias != NULL ? a->bias[i] : 0);
        squares += hidden[i] * hidden[i];
        if (a->y != NULL) {
            tr_float_store(a->y, r * a->ldy + i, TR_BF16,
                           hidden[i] * a->weight[i]);
        }
    }
    if (a->squares_out != NULL) {
        a->squares_out[r] = squares;
    }
}

int
tr_ref_small_gemm_sums(const tr_cuda_small_gemm_t *a, const float *sums,
                       size_t ld)
{
    bool gated = a->mode == TR_CUDA_SMALL_GEMM_GATED;
    uint32_t n = gated ? a->n / 2 : a->n;

    if (a->rows > TR_CUDA_SMALL_GEMM_ROWS || a->n % 64 != 0 || a->k % 64 != 0
        || a->ldx < a->k || (a->y != NULL && a->ldy < n)
        || (gated && !tr_cuda_has_act(a->act))) {
        return TR_KERNEL_BADARG;
    }
    for (uint32_t r = 0; r < a->rows; r++, sums += ld) {
        float scale = few_scale(a, r);

        if (a->mode == TR_CUDA_SMALL_GEMM_RESIDUAL) {
            gemm_residual(a, r, sums);
            continue;
        }
        for (uint32_t i = 0; i < n; i++) {
            float x = sums[i] * scale;

            if (gated) {
                x = act_of(a->act, x) * (sums[n + i] * scale);
            }
            tr_float_store(a->y, r * a->ldy + i, TR_BF16, x);
        }
    }
    return TR_KERNEL_OK;
}

int
tr_ref_small_gemm(const tr_cuda_small_gemm_t *a)
{
    float *sums = malloc((size_t) a->rows * a->n * sizeof(float));
    int rc;

    if (sums == NULL) {
        return TR_CUDA_FAILED;
    }
    for (uint32_t r = 0; r < a->rows; r++) {
        for (uint32_t i = 0; i < a->n; i++) {
            float sum = 0;

            for (uint32_t j = 0; j < a->k; j++) {
                sum += tr_float_load(a->x, r * a->ldx + j, TR_BF16)
                       * tr_float_load(a->w, (size_t) i * a->k + j, TR_BF16);
            }
            sums[(size_t) r * a->n + i] = sum;
        }
    }
    rc = tr_ref_small_gemm_sums(a, sums, a->n);
    free(sums);
    return rc;
}

/* ---- the rest ----------------------------------------------------------- */

int
tr_ref_select(const int32_t *slot, const uint8_t *kind, uint32_t n,
              uint8_t wanted, int32_t *out)
{
    for (uint32_t i = 0; i < n; i++) {
        out[i] = kind[i] == wanted ? slot[i] : -1;
    }
    return TR_KERNEL_OK;
}

/* As in engine/model/cpu/model_weights.c. */
static uint64_t
mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

int
tr_ref_fill_random(void *x, size_t n, tr_dtype_t type, uint64_t seed,
                   uint64_t first, float sd)
{
    for (size_t i = 0; i < n; i++) {
        float u = (float) (mix(seed + first + i) >> 40) * 0x1p-24f;

        tr_float_store(x, i, type, (2 * u - 1) * sd * 1.7320508f);
    }
    return TR_KERNEL_OK;
}

int
tr_ref_convert(const void *from, tr_dtype_t from_type, void *to,
               tr_dtype_t to_type, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        tr_float_store(to, i, to_type, tr_float_load(from, i, from_type));
    }
    return TR_KERNEL_OK;
}
