/*
 * The CPU backend's tables, one for each instruction set, and the choice among
 * them.
 */
#include "kernels/cpu/attention/attention.h"
#include "kernels/kernels.h"

#include <pthread.h>
#include <string.h>

static tr_act_row_f
act_row(const tr_act_row_f rows[TR_ACTS], tr_act_t act)
{
    return (unsigned) act < TR_ACTS ? rows[act] : NULL;
}

/* Launchers that differ only in the inner function they are given. */
#define BACKEND(isa, products, codec, tile)                                    \
    static int matmul_##isa(const tr_stream_t *s, const tr_cpu_matrix_t *m,    \
                            const float *x, size_t ldx, uint32_t rows,         \
                            float *y, size_t ldy, int add)                     \
    {                                                                          \
        return tr_cpu_matmul(s, m, x, ldx, rows, y, ldy, add, products);       \
    }                                                                          \
    static int rmsnorm_##isa(const tr_stream_t *s, const float *x, size_t ldx, \
                             uint32_t rows, uint32_t heads, uint32_t n,        \
                             const float *weight, float eps, float *y,         \
                             size_t ldy)                                       \
    {                                                                          \
        return tr_cpu_rmsnorm(s, x, ldx, rows, heads, n, weight, eps, y, ldy,  \
                              tr_norm_row_##isa);                              \
    }                                                                          \
    static const tr_act_row_f act_rows_##isa[TR_ACTS] = {                      \
        [TR_ACT_SILU] = tr_silu_row_##isa,                                     \
        [TR_ACT_GELU_TANH] = tr_gelu_tanh_row_##isa,                           \
        [TR_ACT_OAI] = tr_oai_row_c                                            \
    };                                                                         \
    static int act_mul_##isa(const tr_stream_t *s, tr_act_t act,               \
                             const float *x, size_t ldx, uint32_t rows,        \
                             uint32_t n, float *out, size_t ldo)               \
    {                                                                          \
        return tr_cpu_act_mul(s, x, ldx, rows, n, out, ldo,                    \
                              act_row(act_rows_##isa, act));                   \
    }                                                                          \
    static int gated_##isa(const tr_stream_t *s, tr_act_t act,                 \
                           const tr_cpu_matrix_t *m, const float *x,           \
                           size_t ldx, uint32_t rows, float *out, size_t ldo)  \
    {                                                                          \
        return tr_cpu_gated(s, m, x, ldx, rows, out, ldo, products,            \
                            act_row(act_rows_##isa, act));                     \
    }                                                                          \
    static int kv_append_##isa(const tr_stream_t *s, const tr_kv_view_t *kv,   \
                               uint32_t layer, const tr_rows_t *rows,          \
                               const float *k, const float *v, size_t ld,      \
                               const float *angles)                            \
    {                                                                          \
        return tr_cpu_kv_append(s, kv, layer, rows, k, v, ld, angles, &codec); \
    }                                                                          \
    static int kv_compress_##isa(const tr_stream_t *s, const tr_kv_view_t *kv, \
                                 const tr_kv_compress_t *c, void *work)        \
    {                                                                          \
        (void) work;                                                           \
        return tr_cpu_kv_compress(s, kv, c, &codec);                           \
    }                                                                          \
    static int kv_compare_##isa(const tr_stream_t *s, const tr_kv_view_t *kv,  \
                                const tr_kv_compress_t *c,                     \
                                const tr_kv_compare_t *q, void *work)          \
    {                                                                          \
        return tr_cpu_kv_compare(s, kv, c, q, &codec, work);                   \
    }                                                                          \
    static int attention_##isa(const tr_stream_t *s, const tr_kv_view_t *kv,   \
                               uint32_t layer, const tr_rows_t *rows,          \
                               const float *q, size_t ldq, uint32_t heads,     \
                               float scale, float *out, size_t ldo,            \
                               void *work)                                     \
    {                                                                          \
        return tr_cpu_attention(s, kv, layer, rows, q, ldq, heads, scale, out, \
                                ldo, work, tile);                              \
    }                                                                          \
    static const tr_kernels_t kernels_##isa = {                                \
        .name = "cpu-" #isa,                                                   \
        .matrix_bytes = tr_cpu_matrix_bytes,                                   \
        .matrix_maps = tr_cpu_matrix_maps,                                     \
        .matrix_pack = tr_cpu_matrix_pack,                                     \
        .codes_bytes = tr_cpu_codes_bytes,                                     \
        .codes_work = tr_cpu_codes_work,                                       \
        .codes_pack = tr_cpu_codes_pack,                                       \
        .matmul = matmul_##isa,                                                \
        .embedding = tr_cpu_embedding,                                         \
        .add_bias = tr_cpu_add_bias,                                           \
        .rmsnorm = rmsnorm_##isa,                                              \
        .rope_angles = tr_cpu_rope_angles,                                     \
        .rope = tr_cpu_rope,                                                   \
        .add_scaled = tr_cpu_add_scaled,                                       \
        .scale_cap = tr_cpu_scale_cap,                                         \
        .hadamard = tr_cpu_hadamard,                                           \
        .acts = (1u << TR_ACTS) - 1,                                           \
        .route = tr_cpu_route,                                                 \
        .sum_experts = tr_cpu_sum_experts,                                     \
        .act_mul = act_mul_##isa,                                              \
        .gated = gated_##isa,                                                  \
        .kv_append = kv_append_##isa,                                          \
        .kv_compress = kv_compress_##isa,                                      \
        .kv_compress_work = tr_cpu_kv_compress_work,                           \
        .kv_compare = kv_compare_##isa,                                        \
        .kv_compare_work = tr_cpu_kv_compare_work,                             \
        .attention = attention_##isa,                                          \
        .attention_work = tr_cpu_attention_work,                               \
    };

static const tr_products_t products_c = { tr_panel_blas, tr_codes_panel_c,
                                          tr_codes_row_c };
static const tr_products_t products_avx2 = { tr_panel_avx2, tr_codes_panel_avx2,
                                             tr_codes_row_avx2 };
static const tr_products_t products_avx512 = { tr_panel_avx512,
                                               tr_codes_panel_avx512,
                                               tr_codes_row_avx512 };
static const tr_products_t products_vnni = { tr_panel_avx512,
                                             tr_codes_panel_vnni,
                                             tr_codes_row_vnni };

/* AVX-512 comes with and without dot products of bytes; bits are the same. */
static const tr_products_t *
products_of_avx512(void)
{
    return __builtin_cpu_supports("avx512vnni") ? &products_vnni
                                                : &products_avx512;
}

BACKEND(c, &products_c, tr_kv_codec_c, &tr_attention_c)
BACKEND(avx2, &products_avx2, tr_kv_codec_avx2, &tr_attention_avx2)
BACKEND(avx512, products_of_avx512(), tr_kv_codec_avx512, &tr_attention_avx512)

const tr_kernels_t *
tr_kernels_cpu(const char *isa)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    int avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")
               && __builtin_cpu_supports("f16c");
    int avx512 = avx2 && __builtin_cpu_supports("avx512f")
                 && __builtin_cpu_supports("avx512bw")
                 && __builtin_cpu_supports("avx512vl")
                 && __builtin_cpu_supports("avx512dq");

    if (isa == NULL) {
        isa = avx512 ? "avx512" : avx2 ? "avx2" : "c";
    }
    if (strcmp(isa, "avx512") == 0 && avx512) {
        return &kernels_avx512;
    }
    if (strcmp(isa, "avx2") == 0 && avx2) {
        return &kernels_avx2;
    }
    if (strcmp(isa, "c") != 0) {
        return NULL;
    }
    pthread_once(&once, tr_panel_blas_probe);
    return &kernels_c;
}
