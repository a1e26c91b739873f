/*
 * What the files of this folder share.  Launcher names carry the family, and
 * an instruction set where there is more than one implementation.
 */
#ifndef TR_KERNELS_CPU_H
#define TR_KERNELS_CPU_H

#include "kernels/act.h"
#include "kernels/kernels.h"
#include "kernels/kv_view.h"
#include "kernels/operands.h"
#include "kernels/route.h"

#include <math.h>

#include "kernels/cpu/kv/kv_store.h"
#include "kernels/thread_pool.h"

#define TR_GELU_SLOPE 0.7978845608028654f /* sqrt(2 / pi) */
#define TR_GELU_CUBE 0.044715f

/* act(gate) * up of one row. */
typedef void (*tr_act_row_f)(const float *gate, const float *up, float *out,
                             uint32_t n);
void tr_gelu_tanh_row_c(const float *gate, const float *up, float *out,
                        uint32_t n);
void tr_gelu_tanh_row_avx2(const float *gate, const float *up, float *out,
                           uint32_t n);
void tr_gelu_tanh_row_avx512(const float *gate, const float *up, float *out,
                             uint32_t n);
void tr_oai_row_c(const float *gate, const float *up, float *out, uint32_t n);
void tr_silu_row_c(const float *gate, const float *up, float *out, uint32_t n);
void tr_silu_row_avx2(const float *gate, const float *up, float *out,
                      uint32_t n);
void tr_silu_row_avx512(const float *gate, const float *up, float *out,
                        uint32_t n);

size_t tr_cpu_matrix_bytes(uint32_t n, uint32_t k, tr_dtype_t dtype);
bool tr_cpu_matrix_maps(uint32_t n, uint32_t k, tr_dtype_t dtype);
int tr_cpu_matrix_pack(const tr_cpu_matrix_t *m, uint32_t row, uint32_t rows,
                       const void *src, tr_dtype_t dtype);
typedef struct tr_codes_group tr_codes_group_t; /* gemm/codes.h */

/* The product of one panel: y[rows][TR_COL_PAD] = x[rows][k] * data, plus what
 * y held when `add`; see matmul.c. */
typedef struct {
    const void *data, *next; /* next: the panel that probably follows, NULL:
                              * nobody knows */
    bool by_rows;            /* both are [TR_COL_PAD][k]: tr_cpu_matrix_t's
                              * mapped */
    tr_dtype_t dtype;        /* of both, unless they are codes */
    uint32_t k, rows;
    const float *x;
    float *y;
    size_t ldx, ldy;
    bool add;

    /* of codes: what they are, and x as such (codes.h) */
    const tr_cpu_codes_t *codes;
    const int8_t *code;
    const tr_codes_group_t *group;
} tr_panel_t;

typedef void (*tr_panel_f)(const tr_panel_t *a);
void tr_panel_blas(const tr_panel_t *a);
void tr_panel_avx2(const tr_panel_t *a);
void tr_panel_avx512(const tr_panel_t *a);
void tr_codes_panel_c(const tr_panel_t *a);
void tr_codes_panel_avx2(const tr_panel_t *a);
void tr_codes_panel_avx512(const tr_panel_t *a);
void tr_codes_panel_vnni(const tr_panel_t *a);

/* A row of x becomes codes [k], and groups [k / TR_CODES_COLUMNS]. */
typedef void (*tr_codes_row_f)(const float *x, uint32_t k, int8_t *code,
                               tr_codes_group_t *group);
void tr_codes_row_c(const float *x, uint32_t k, int8_t *code,
                    tr_codes_group_t *group);
void tr_codes_row_avx2(const float *x, uint32_t k, int8_t *code,
                       tr_codes_group_t *group);
void tr_codes_row_avx512(const float *x, uint32_t k, int8_t *code,
                         tr_codes_group_t *group);
void tr_codes_row_vnni(const float *x, uint32_t k, int8_t *code,
                       tr_codes_group_t *group);

/* What multiplies: numbers, and codes. */
typedef struct {
    tr_panel_f product, codes;
    tr_codes_row_f row;
} tr_products_t;

int tr_cpu_matmul(const tr_stream_t *s, const tr_cpu_matrix_t *m,
                  const float *x, size_t ldx, uint32_t rows, float *y,
                  size_t ldy, int add, const tr_products_t *by);
int tr_cpu_gated(const tr_stream_t *s, const tr_cpu_matrix_t *m, const float *x,
                 size_t ldx, uint32_t rows, float *out, size_t ldo,
                 const tr_products_t *by, tr_act_row_f row);
/* What a launcher's panels have in common; rows of x become codes where the
 * matrix has some. */
tr_panel_t tr_cpu_panel(const tr_stream_t *s, const tr_cpu_matrix_t *m,
                        const float *x, size_t ldx, uint32_t rows,
                        const tr_products_t *by);
/* Is there room for what tr_cpu_panel makes? */
bool tr_cpu_panel_valid(const tr_cpu_matrix_t *m, size_t ldx);

size_t tr_cpu_codes_bytes(uint32_t n, uint32_t k, const tr_cpu_codes_t *codes);
size_t tr_cpu_codes_work(uint32_t rows, uint32_t k);
int tr_cpu_codes_pack(const tr_cpu_matrix_t *m, uint32_t row,
                      const uint8_t *codes, const float *scales,
                      const uint32_t *zeros);
/* Rows of numbers become codes. */
void tr_cpu_codes_quantise(const tr_cpu_matrix_t *m, uint32_t row,
                           const void *src, tr_dtype_t dtype);
/* The last panel's outputs that are none weigh nothing. */
void tr_cpu_codes_fill(const tr_cpu_matrix_t *m);
/* Row `row` in FP32. */
void tr_cpu_codes_load(const tr_cpu_matrix_t *m, uint32_t row, float *out);
/* Rows of x in m's workspace. */
void tr_cpu_codes_rows(const tr_stream_t *s, const tr_cpu_matrix_t *m,
                       const float *x, size_t ldx, uint32_t rows,
                       tr_codes_row_f row);
int tr_cpu_embedding(const tr_stream_t *s, const tr_cpu_matrix_t *m,
                     const int32_t *ids, uint32_t rows, float *y, size_t ldy);
/* A panel; a row's first element, of those the next is *step elements on. */
const void *tr_cpu_panel_at(const tr_cpu_matrix_t *m, uint32_t panel);
const void *tr_cpu_matrix_row(const tr_cpu_matrix_t *m, uint32_t row,
                              size_t *step);
/* Chooses how OpenBLAS is called; see matmul_blas.c. */
void tr_panel_blas_probe(void);
/* The probe's choice, for tests. */
void tr_panel_blas_scheme(uint32_t *quantum, uint32_t *rows_max);

int tr_cpu_add_bias(const tr_stream_t *s, float *x, size_t ldx, uint32_t rows,
                    const float *bias, uint32_t n);

/* One row of n: y = x / sqrt(mean of squares + eps) * weight. */
#define TR_NORM_LANES 16u /* partial sums of squares */
typedef void (*tr_norm_row_f)(const float *x, const float *weight, float *y,
                              uint32_t n, float eps);
void tr_norm_row_c(const float *x, const float *weight, float *y, uint32_t n,
                   float eps);
void tr_norm_row_avx2(const float *x, const float *weight, float *y, uint32_t n,
                      float eps);
void tr_norm_row_avx512(const float *x, const float *weight, float *y,
                        uint32_t n, float eps);
int tr_cpu_rmsnorm(const tr_stream_t *s, const float *x, size_t ldx,
                   uint32_t rows, uint32_t heads, uint32_t n,
                   const float *weight, float eps, float *y, size_t ldy,
                   tr_norm_row_f row);

/* The lanes' sum, always in this order. */
static inline float
tr_norm_sum(const float *lane)
{
    float sum = 0;

    for (uint32_t j = 0; j < TR_NORM_LANES; j++) {
        sum += lane[j];
    }
    return sum;
}

static inline float
tr_norm_scale(float squares, uint32_t n, float eps)
{
    return 1.0f / sqrtf(squares / (float) n + eps);
}

int tr_cpu_add_scaled(const tr_stream_t *s, const float *x, size_t ldx,
                      uint32_t rows, uint32_t n, float scale, float *y,
                      size_t ldy);
int tr_cpu_route(const tr_stream_t *s, const tr_route_t *route,
                 const float *logits, size_t ld, uint32_t rows,
                 const float *bias, uint32_t *expert, float *weight);
int tr_cpu_sum_experts(const tr_stream_t *s, const float *x, size_t ldx,
                       uint32_t rows, uint32_t top_k, uint32_t n,
                       const uint32_t *place, const float *weight, float *y,
                       size_t ldy);
int tr_cpu_scale_cap(const tr_stream_t *s, float *x, size_t ldx, uint32_t rows,
                     uint32_t n, float scale, float cap);

int tr_cpu_rope_angles(const tr_stream_t *s, const uint32_t *row_pos,
                       uint32_t rows, const float *inv_freq, const float *amp,
                       const float *row_scale, uint32_t half, float *angles);
int tr_cpu_rope(const tr_stream_t *s, float *x, size_t ldx, uint32_t rows,
                uint32_t heads, uint32_t head_dim, const float *angles);

int tr_cpu_hadamard(const tr_stream_t *s, float *x, size_t ldx, uint32_t rows,
                    uint32_t heads, uint32_t head_dim);

/* row, here and in tr_cpu_gated: NULL: there is no such activation. */
int tr_cpu_act_mul(const tr_stream_t *s, const float *x, size_t ldx,
                   uint32_t rows, uint32_t n, float *out, size_t ldo,
                   tr_act_row_f row);
int tr_cpu_kv_append(const tr_stream_t *s, const tr_kv_view_t *kv,
                     uint32_t layer, const tr_rows_t *rows, const float *k,
                     const float *v, size_t ld, const float *angles,
                     const tr_kv_codec_t *codec);
int tr_cpu_kv_compress(const tr_stream_t *s, const tr_kv_view_t *kv,
                       const tr_kv_compress_t *c, const tr_kv_codec_t *codec);
size_t tr_cpu_kv_compress_work(const tr_stream_t *s, uint32_t head_dim);
int tr_cpu_kv_compare(const tr_stream_t *s, const tr_kv_view_t *kv,
                      const tr_kv_compress_t *c, const tr_kv_compare_t *q,
                      const tr_kv_codec_t *codec, void *work);
size_t tr_cpu_kv_compare_work(const tr_stream_t *s, uint32_t n, uint32_t heads,
                              uint32_t kv_heads, uint32_t head_dim);

struct tr_attention_isa; /* attention.h */
int tr_cpu_attention(const tr_stream_t *s, const tr_kv_view_t *kv,
                     uint32_t layer, const tr_rows_t *rows, const float *q,
                     size_t ldq, uint32_t heads, float scale, float *out,
                     size_t ldo, void *work,
                     const struct tr_attention_isa *isa);
size_t tr_cpu_attention_work(const tr_stream_t *s, uint32_t max_rows,
                             uint32_t max_seqs, uint32_t max_len,
                             uint32_t heads, uint32_t kv_heads,
                             uint32_t head_dim);

/* The last i with starts[i] <= x, in [0, n). */
static inline uint32_t
tr_seq_of(const uint32_t *starts, uint32_t n, uint32_t x)
{
    uint32_t lo = 0, hi = n;

    while (hi - lo > 1) {
        uint32_t mid = lo + (hi - lo) / 2;

        if (starts[mid] <= x) {
            lo = mid;
        } else {
            hi = mid;
        }
    }
    return lo;
}

/* Runs f over `rows` rows, on the stream's pool when that is worth telling
 * others; cost: elements touched a row. */
static inline void
tr_rows_run(const tr_stream_t *s, uint32_t rows, size_t cost,
            tr_thread_pool_f f, void *arg)
{
    uint32_t pieces = 2 * (uint32_t) s->threads;

    if ((size_t) rows * cost <= 4096) {
        pieces = 1;
    } else if ((size_t) rows * cost > 65536) { /* who is late holds up less */
        pieces *= 4;
    }
    tr_thread_pool_run(s->thread_pool, s->threads, rows,
                       (rows + pieces - 1) / pieces, f, arg);
}

#endif
