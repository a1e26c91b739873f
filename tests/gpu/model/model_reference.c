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
            a->out[r * a->ldo + i] = a->scale
                                     * tr_float_load(a->table, row + i,
                                                     a->type);
        }
    }
    return TR_KERNEL_OK;
}

/* ---- a layer ------------------------------------------------------------ */

int
tr_ref_rope_angles(const tr_cuda_angles_t *a)
{
    uint32_t half = a->half;

    if (half == 0 || (a->row_long != NULL && a->inv_freq_long == NULL)
        || (a->temp != 0 && a->temp_original == 0)) {
        return TR_KERNEL_BADARG;
    }
    for (uint32_t r = 0; r < a->rows; r++) {
        bool is_long = a->row_long != NULL && a->row_long[r] != 0;
        const float *inv_freq = is_long ? a->inv_freq_long : a->inv_freq;
        float *out = a->angles + (size_t) r * 2 * half, temp = 1;

        if (a->temp != 0) {
            uint32_t turns = a->row_pos[r] / a->temp_original;

            temp = 1 + a->temp * logf(1 + (float) turns);
        }
        for (uint32_t i = 0; i < half; i++) {
            float angle = (float) a->row_pos[r] * inv_freq[i];
            float amp = (a->amp == NULL ? 1 : a->amp[i]) * temp;

            out[i] = cosf(angle) * amp;
            out[half + i] = sinf(angle) * amp;
        }
    }
    return TR_KERNEL_OK;
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

static float
delta_of(const tr_cuda_norm_t *a, size_t row, uint32_t i)
{
    return tr_float_load(a->delta, row * a->ldd + i, a->type)
           + (a->bias == NULL ? 0 : a->bias[i]);
}

/* By what a row of delta is multiplied, beside post_weight. */
static float
post_scale(const tr_cuda_norm_t *a, size_t row)
{
    float sum = 0;

    if (a->post_weight == NULL) {
        return a->scale;
    }
    for (uint32_t i = 0; i < a->n; i++) {
        sum += delta_of(a, row, i) * delta_of(a, row, i);
    }
    return a->scale / sqrtf(sum / (float) a->n + a->eps);
}

/* hidden[i] with what delta and bias add to it; by: of post_scale. */
static float
with_delta(const tr_cuda_norm_t *a, size_t row, uint32_t i, float by)
{
    float x = a->hidden[row * a->ldh + i];

    if (a->delta == NULL) {
        return x;
    }
    if (a->post_weight != NULL || a->scale != 1) {
        return x
               + by * delta_of(a, row, i)
                     * (a->post_weight == NULL ? 1 : a->post_weight[i]);
    }
    x += tr_float_load(a->delta, row * a->ldd + i, a->type);
    return a->bias == NULL ? x : x + a->bias[i];
}

int
tr_ref_norm(const tr_cuda_norm_t *a)
{
    if (a->n == 0 || a->ldh < a->n || a->ldo < a->n
        || !tr_dtype_is_short(a->type) || (a->delta != NULL && a->ldd < a->n)
        || (a->delta == NULL && a->post_weight != NULL)) {
        return TR_KERNEL_BADARG;
    }
    for (uint32_t r = 0; r < a->rows; r++) {
        size_t row = a->gather == NULL ? r : a->gather[r];
        float sum = 0, scale, by = a->delta == NULL ? 0 : post_scale(a, row);

        for (uint32_t i = 0; i < a->n; i++) {
            float x = with_delta(a, row, i, by);

            sum += x * x;
        }
        scale = 1.0f / sqrtf(sum / (float) a->n + a->eps);
        for (uint32_t i = 0; i < a->n; i++) {
            float x = with_delta(a, row, i, by);

            if (a->gather == NULL) {
                a->hidden[row * a->ldh + i] = x;
            }
            tr_float_store(a->out, r * a->ldo + i, a->full ? TR_F32 : a->type,
                           a->weight == NULL ? x : x * scale * a->weight[i]);
        }
    }
    return TR_KERNEL_OK;
}

int
tr_ref_pool(const tr_cuda_pool_t *a)
{
    if (a->n == 0 || a->ldx < a->n || a->ldo < a->n || a->items > 65535) {
        return TR_KERNEL_BADARG;
    }
    for (uint32_t item = 0; item < a->items; item++) {
        float *out = a->out + item * a->ldo;

        for (uint32_t r = a->first[item]; r < a->first[item + 1]; r++) {
            if (r < a->at || r >= a->at + a->rows) {
                continue;
            }
            for (uint32_t i = 0; i < a->n; i++) {
                float x = a->x[(r - a->at) * a->ldx + i];

                out[i] = r == a->first[item] ? x : out[i] + x;
            }
        }
    }
    return TR_KERNEL_OK;
}

/* Head h of a row: queries, then keys, then values. */
static void
shape_head(const tr_cuda_qkv_t *a, uint32_t r, uint32_t h)
{
    uint32_t dim = a->head_dim, half = dim / 2;
    bool query = h < a->heads, value = h >= a->heads + a->kv_heads;
    const float *angles = query ? a->angles : value ? NULL : a->key_angles;
    const float *shift = query || value ? NULL : a->key_shift;
    const float *cosine = angles == NULL ? NULL : angles + (size_t) r * dim;
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
    for (uint32_t i = 0; cosine != NULL && i < half; i++) {
        float u = x[i], v = x[half + i], c = cosine[i], s = cosine[half + i];

        x[i] = u * c - v * s;
        x[half + i] = v * c + u * s;
    }
    for (uint32_t i = 0; shift != NULL && i < dim; i++) {
        x[i] += shift[(h - a->heads) * dim + i];
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
        || (a->key_angles == NULL && (a->hadamard || a->key_shift != NULL))
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

/* Columns [first, first + n) of a row: bias, and with a weight a norm over all of
 * them. */
static void
norm_columns(const tr_cuda_qkv_t *a, uint32_t r, uint32_t first, uint32_t n,
             const float *weight)
{
    size_t at = r * a->ld + first;
    float sum = 0, scale = 1;

    for (int turn = 0; turn < 2; turn++) {
        for (uint32_t i = 0; i < n; i++) {
            float x = tr_float_load(a->qkv, at + i, a->type);

            x += a->bias == NULL ? 0 : a->bias[first + i];
            sum += x * x;
            if (turn == 1) {
                tr_float_store(a->qkv, at + i, a->type,
                               weight == NULL ? x : x * scale * weight[i]);
            }
        }
        scale = 1.0f / sqrtf(sum / (float) n + a->eps);
    }
}

int
tr_ref_row_norm(const tr_cuda_qkv_t *a)
{
    uint32_t q = a->heads * a->head_dim, kv = a->kv_heads * a->head_dim;

    if (a->head_dim == 0 || a->head_dim % 16 || a->heads == 0
        || a->kv_heads == 0 || a->ld < q + 2 * (size_t) kv
        || !tr_dtype_is_short(a->type) || a->q_norm == NULL
        || a->k_norm == NULL) {
        return TR_KERNEL_BADARG;
    }
    for (uint32_t r = 0; r < a->rows; r++) {
        norm_columns(a, r, 0, q, a->q_norm);
        norm_columns(a, r, q, kv, a->k_norm);
        norm_columns(a, r, q + kv, a->bias == NULL ? 0 : kv, NULL);
    }
    return TR_KERNEL_OK;
}

/* act(gate) * up, as act.h has it. */
float
tr_ref_act(tr_act_t act, float gate, float up)
{
    float x = gate;

    switch (act) {
    case TR_ACT_GELU_TANH:
        x = 0.7978845608f * (gate + 0.044715f * gate * gate * gate);
        return gate / 2 * (1 + tanhf(x)) * up;
    case TR_ACT_OAI:
        x = fminf(gate, 7);
        return (fminf(fmaxf(up, -7), 7) + 1) * (x / (1 + expf(-1.702f * x)));
    default:
        return x / (1.0f + expf(-x)) * up;
    }
}

int
tr_ref_act_mul(tr_act_t act, const void *x, size_t ldx, uint32_t rows,
               uint32_t n, tr_dtype_t type, void *out, size_t ldo)
{
    if (!tr_cuda_has_act(TR_CUDA_ACTS, act) || ldx < 2 * (size_t) n || ldo < n
        || !tr_dtype_is_short(type)) {
        return TR_KERNEL_BADARG;
    }
    for (uint32_t r = 0; r < rows; r++) {
        for (uint32_t i = 0; i < n; i++) {
            float gate = tr_float_load(x, r * ldx + i, type);
            float up = tr_float_load(x, r * ldx + n + i, type);

            tr_float_store(out, r * ldo + i, type, tr_ref_act(act, gate, up));
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
        || !tr_weight_valid(a->form, a->n, a->k)
        || (a->form.format != TR_WEIGHT_16
            && a->mode != TR_CUDA_SMALL_GEMM_PLAIN
            && (a->form.order == TR_WEIGHT_PAIRS) != gated)
        || a->ldx < a->k || (a->y != NULL && a->ldy < n)
        || (gated && !tr_cuda_has_act(TR_CUDA_SMALL_GEMM_ACTS, a->act))) {
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
                x = tr_ref_act(a->act, x, sums[n + i] * scale);
            }
            tr_float_store(a->y, r * a->ldy + i, TR_BF16, x);
        }
    }
    return TR_KERNEL_OK;
}

/* Row i of w. */
static void
load_row(const tr_cuda_small_gemm_t *a, uint32_t i, float *to)
{
    for (uint32_t j = 0; j < a->k; j++) {
        to[j] = a->form.format == TR_WEIGHT_16
                    ? tr_float_load(a->w, (size_t) i * a->k + j, TR_BF16)
                    : tr_weight_load(a->form, a->w, a->n, a->k, i, j);
    }
}

int
tr_ref_small_gemm(const tr_cuda_small_gemm_t *a)
{
    float *sums = malloc((size_t) a->rows * a->n * sizeof(float));
    float *w = malloc((size_t) a->k * sizeof(float));
    int rc = sums == NULL || w == NULL ? TR_CUDA_FAILED : TR_KERNEL_OK;

    for (uint32_t i = 0; i < a->n && rc == TR_KERNEL_OK; i++) {
        load_row(a, i, w);
        for (uint32_t r = 0; r < a->rows; r++) {
            float sum = 0;

            for (uint32_t j = 0; j < a->k; j++) {
                sum += tr_float_load(a->x, r * a->ldx + j, TR_BF16) * w[j];
            }
            sums[(size_t) r * a->n + i] = sum;
        }
    }
    rc = rc == TR_KERNEL_OK ? tr_ref_small_gemm_sums(a, sums, a->n) : rc;
    free(sums);
    free(w);
    return rc;
}

int
tr_ref_unpack(const tr_cuda_unpack_t *a)
{
    if (a->form.format == TR_WEIGHT_16
        || !tr_weight_valid(a->form, a->n, a->k)) {
        return TR_KERNEL_BADARG;
    }
    for (uint32_t i = 0; i < a->n; i++) {
        for (uint32_t j = 0; j < a->k; j++) {
            tr_float_store(a->out, (size_t) i * a->k + j, TR_BF16,
                           tr_weight_load(a->form, a->w, a->n, a->k, i, j));
        }
    }
    return TR_KERNEL_OK;
}

/* ---- 8 bits by 8 bits ----------------------------------------------------- */

/* The code of FP8 (E4M3) that is nearest, of two the even one; larger ones are the
 * largest. */
static uint8_t
e4m3_of(float x)
{
    uint8_t sign = signbit(x) ? 0x80 : 0;
    float size = fabsf(x);
    int e;

    if (isnan(x)) {
        return 0x7f;
    }
    if (size >= TR_FP8_MOST) {
        return sign | 0x7e;
    }
    frexpf(size, &e);
    e = size == 0 || e - 1 < -6 ? -6 : e - 1;
    return (uint8_t) (sign
                      | (((e + 6) << 3) + (int) rintf(ldexpf(size, 3 - e))));
}

/* Columns of a row that share a scale. */
static void
fp8_round_some(const tr_cuda_fp8_round_t *a, uint32_t r, uint32_t from,
               uint32_t end)
{
    uint8_t *codes = a->to.codes + (size_t) r * a->k;
    float most = 0, by;

    for (uint32_t i = from; i < end; i++) {
        most = fmaxf(most, fabsf(tr_float_load(a->x, r * a->ldx + i, TR_BF16)));
    }
    by = most >= TR_FP8_LEAST ? TR_FP8_MOST / most : 1;
    for (uint32_t i = from; i < end; i++) {
        codes[tr_fp8_place(i)] = e4m3_of(
            tr_float_load(a->x, r * a->ldx + i, TR_BF16) * by);
    }
    a->to.scales[a->blocks ? from / TR_FP8_BLOCK * a->to.ld + r : r] =
        most >= TR_FP8_LEAST ? most / TR_FP8_MOST : 1;
}

int
tr_ref_fp8_round(const tr_cuda_fp8_round_t *a)
{
    uint32_t each = a->blocks ? TR_FP8_BLOCK : a->k;

    if (!tr_cuda_fp8_round_valid(a)) {
        return TR_KERNEL_BADARG;
    }
    for (uint32_t r = 0; r < a->rows; r++) {
        for (uint32_t i = 0; i < a->k; i += each) {
            fp8_round_some(a, r, i, i + each);
        }
    }
    return TR_KERNEL_OK;
}

/* A row by row i of w, which is there as numbers. */
static float
fp8_sum(const tr_cuda_fp8_gemm_t *a, uint32_t r, const float *w)
{
    const uint8_t *codes = a->x.codes + (size_t) r * a->k;
    bool blocks = a->form.group != 0;
    double sum = 0;

    for (uint32_t j = 0; j < a->k; j++) {
        uint8_t code = codes[tr_fp8_place(j)];
        float scale = a->x.scales[blocks ? j / TR_FP8_BLOCK * a->x.ld + r : r];
        float x = (code & 0x7f) == 0x7f ? NAN : tr_weight_from_e4m3(code);

        sum += (double) x * (double) scale * (double) w[j];
    }
    return (float) sum;
}

int
tr_ref_fp8_gemm(const tr_cuda_fp8_gemm_t *a)
{
    uint32_t n = a->gated ? a->n / 2 : a->n;
    float *w = malloc((size_t) a->k * 2 * sizeof(float));

    if (!tr_cuda_fp8_gemm_valid(a) || w == NULL) {
        free(w);
        return w == NULL ? TR_CUDA_FAILED : TR_KERNEL_BADARG;
    }
    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t j = 0; j < 2 * a->k; j++) {
            w[j] = j < a->k || a->gated
                       ? tr_weight_load(a->form, a->w, a->n, a->k,
                                        j < a->k ? i : n + i, j % a->k)
                       : 0;
        }
        for (uint32_t r = 0; r < a->rows; r++) {
            float x = fp8_sum(a, r, w);

            if (a->gated) {
                x = tr_ref_act(a->act, x, fp8_sum(a, r, w + a->k));
            }
            tr_float_store(a->y, r * a->ldy + i, TR_BF16, x);
        }
    }
    free(w);
    return TR_KERNEL_OK;
}

/* ---- the rest ----------------------------------------------------------- */

int
tr_ref_keep_rows(const tr_cuda_keep_rows_t *a)
{
    for (uint32_t i = 0; i < a->rows; i++) {
        size_t at = (((size_t) a->row_chunk[i] - 1) * a->layers + a->layer)
                        * a->tokens
                    + a->row_pos[i] % a->tokens;

        if (a->row_chunk[i] != 0) {
            memcpy(a->memory + at * a->row_bytes,
                   (const uint16_t *) a->x + i * a->ldx, 2ull * a->n);
        }
    }
    return TR_KERNEL_OK;
}

int
tr_ref_scale_cap(float *x, size_t ldx, uint32_t rows, uint32_t n, float scale,
                 float cap)
{
    if (ldx < n || !(cap >= 0)) {
        return TR_KERNEL_BADARG;
    }
    for (uint32_t r = 0; r < rows; r++) {
        for (uint32_t i = 0; i < n; i++) {
            float y = x[r * ldx + i] * scale;

            x[r * ldx + i] = cap == 0 ? y : cap * tanhf(y / cap);
        }
    }
    return TR_KERNEL_OK;
}

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
