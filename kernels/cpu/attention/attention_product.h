/*
 * The products of an attention tile (attention_tile.h): micro-kernels that hold
 * V_ROWS rows times V_VECS vectors, or the keys of a step, in registers.  Every
 * element is one chain of fused multiply-adds in ascending k, whichever of them
 * makes it.
 *
 * Included by attention_tile.h.
 */
#define LINE_HALVES 32u /* of a cache line */

/* The right side of a product: k rows of FP32, ldb apart, or, when half is not
 * NULL, rows of FP16 anywhere; ahead: NULL, or k such rows wanted later. */
typedef struct {
    const float *b;
    size_t ldb;
    const uint16_t *const *half, *const *ahead;
} right_t;

/* c[rows][vecs] = keep[row] * c + a[rows][k] * b[k][column...]; without keep, c
 * starts at zero.  rows and vecs are constants wherever this is inlined. */
static inline __attribute__((always_inline)) void
micro(uint32_t rows, uint32_t vecs, uint32_t k, const float *a, size_t lda,
      const right_t *right, uint32_t column, float *c, size_t ldc,
      const float *keep)
{
    vec acc[V_ROWS][V_VECS];

    for (uint32_t r = 0; r < rows; r++) {
        for (uint32_t v = 0; v < vecs; v++) {
            acc[r][v] = keep ? v_mul(v_set1(keep[r]),
                                     v_load(c + r * ldc + v * V_WIDTH))
                             : v_set1(0);
        }
    }
    for (uint32_t i = 0; i < k; i++) {
        vec bv[V_VECS];

        for (uint32_t v = 0; v < vecs; v++) {
            uint32_t at = column + v * V_WIDTH;

            if (right->ahead != NULL && v * V_WIDTH % LINE_HALVES == 0) {
                __builtin_prefetch(right->ahead[i] + at, 0, 2);
            }
            bv[v] = right->half != NULL
                        ? v_from_half(right->half[i] + at)
                        : v_load(right->b + i * right->ldb + at);
        }
        for (uint32_t r = 0; r < rows; r++) {
            vec av = v_set1(a[r * lda + i]);

            for (uint32_t v = 0; v < vecs; v++) {
                acc[r][v] = v_fma(av, bv[v], acc[r][v]);
            }
        }
    }
    for (uint32_t r = 0; r < rows; r++) {
        for (uint32_t v = 0; v < vecs; v++) {
            v_store(c + r * ldc + v * V_WIDTH, acc[r][v]);
        }
    }
}

static inline __attribute__((always_inline)) void
micro_rows(uint32_t rows, uint32_t vecs, uint32_t k, const float *a, size_t lda,
           const right_t *right, uint32_t column, float *c, size_t ldc,
           const float *keep)
{
    switch (rows) {
    case 1:
        micro(1, vecs, k, a, lda, right, column, c, ldc, keep);
        return;
    case 2:
        micro(2, vecs, k, a, lda, right, column, c, ldc, keep);
        return;
    case 3:
        micro(3, vecs, k, a, lda, right, column, c, ldc, keep);
        return;
    case 4:
        micro(4, vecs, k, a, lda, right, column, c, ldc, keep);
        return;
    case 5:
        micro(5, vecs, k, a, lda, right, column, c, ldc, keep);
        return;
    default:
        micro(6, vecs, k, a, lda, right, column, c, ldc, keep);
        return;
    }
}

/* Any number of columns that is a multiple of the vector. */
static inline __attribute__((always_inline)) void
product_columns(uint32_t rows, uint32_t columns, uint32_t k, const float *a,
                size_t lda, const right_t *right, float *c, size_t ldc,
                const float *keep)
{
    uint32_t j = 0;

    for (; j + V_VECS * V_WIDTH <= columns; j += V_VECS * V_WIDTH) {
        micro_rows(rows, V_VECS, k, a, lda, right, j, c + j, ldc, keep);
    }
    for (; j < columns; j += V_WIDTH) {
        micro_rows(rows, 1, k, a, lda, right, j, c + j, ldc, keep);
    }
}

static void
product(uint32_t rows, uint32_t columns, uint32_t k, const float *a, size_t lda,
        const float *b, size_t ldb, float *c, size_t ldc, const float *keep)
{
    const right_t right = { b, ldb, NULL, NULL };

    product_columns(rows, columns, k, a, lda, &right, c, ldc, keep);
}

static void
product_half(uint32_t rows, uint32_t columns, uint32_t k, const float *a,
             size_t lda, const uint16_t *const *half,
             const uint16_t *const *ahead, float *c, size_t ldc,
             const float *keep)
{
    const right_t right = { NULL, 0, half, ahead };

    product_columns(rows, columns, k, a, lda, &right, c, ldc, keep);
}

/* Dimensions [d, d + V_WIDTH) of as many keys, a vector each.  ahead: NULL, or
 * keys that are wanted later. */
static inline __attribute__((always_inline)) void
load_square(const uint16_t *const *key, const uint16_t *const *ahead,
            uint32_t d, vec *v)
{
    for (uint32_t j = 0; j < V_WIDTH; j++) {
        v[j] = v_from_half(key[j] + d);
    }
    if (ahead != NULL && d % LINE_HALVES == 0) {
        for (uint32_t j = 0; j < V_WIDTH; j++) {
            __builtin_prefetch(ahead[j] + d, 0, 2);
        }
    }
    v_transpose(v);
}

/* Products of `rows` query rows with n keys, n a multiple of 16, as product()
 * has them from load_keys, but keys that one group of rows needs are used where
 * they were transposed: in registers.  rows is a constant wherever this is
 * inlined. */
static inline __attribute__((always_inline)) void
key_products_sized(uint32_t rows, const float *q, uint32_t dim,
                   const uint16_t *const *key, const uint16_t *const *ahead,
                   uint32_t n, float *s, size_t lds)
{
    for (uint32_t i = 0; i < n; i += V_WIDTH) {
        vec acc[V_ROWS];

        for (uint32_t r = 0; r < rows; r++) {
            acc[r] = v_set1(0);
        }
        for (uint32_t d = 0; d < dim; d += V_WIDTH) {
            vec v[V_WIDTH];

            load_square(key + i, ahead == NULL ? NULL : ahead + i, d, v);
            for (uint32_t j = 0; j < V_WIDTH; j++) {
                for (uint32_t r = 0; r < rows; r++) {
                    acc[r] = v_fma(v_set1(q[r * dim + d + j]), v[j], acc[r]);
                }
            }
        }
        for (uint32_t r = 0; r < rows; r++) {
            v_store(s + r * lds + i, acc[r]);
        }
    }
}

static void
key_products(uint32_t rows, const float *q, uint32_t dim,
             const uint16_t *const *key, const uint16_t *const *ahead,
             uint32_t n, float *s, size_t lds)
{
    switch (rows) {
    case 1:
        key_products_sized(1, q, dim, key, ahead, n, s, lds);
        return;
    case 2:
        key_products_sized(2, q, dim, key, ahead, n, s, lds);
        return;
    case 3:
        key_products_sized(3, q, dim, key, ahead, n, s, lds);
        return;
    case 4:
        key_products_sized(4, q, dim, key, ahead, n, s, lds);
        return;
    case 5:
        key_products_sized(5, q, dim, key, ahead, n, s, lds);
        return;
    default:
        key_products_sized(6, q, dim, key, ahead, n, s, lds);
        return;
    }
}
