/*
 * Matrix products by the CPU backend, in FP32 from operands of 16 bits.
 *
 * Packing a weight costs more than multiplying a few rows by it, so packed
 * weights are kept until somebody writes to that memory.  Rows that only pad a
 * product's class are read and overwritten, as device.h allows.
 */
#include "device.h"

#include "tests/gpu/model/model_reference.h"

#include <math.h>
#include <stdlib.h>

#define SHAPES_MAX 256u

typedef struct {
    uint32_t n, k;
    tr_dtype_t type, out;
    tr_weight_form_t form;
} shape_t;

struct tr_cuda_matmul {
    uint32_t max_rows, n_shapes;
    shape_t shape[SHAPES_MAX];
};

/* ---- packed weights ----------------------------------------------------- */

typedef struct pack {
    struct pack *next;
    const uint8_t *w;
    shape_t shape;
    tr_cpu_matrix_t m;
} pack_t;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pack_t *packs;

static size_t
weight_bytes(const shape_t *s)
{
    return tr_weight_bytes(s->form, s->n, s->k);
}

/* Packed weights as numbers. */
static float *
unpacked(const void *w, const shape_t *s)
{
    float *x = malloc((size_t) s->n * s->k * sizeof(*x));

    for (uint32_t i = 0; x != NULL && i < s->n; i++) {
        for (uint32_t j = 0; j < s->k; j++) {
            x[(size_t) i * s->k + j] = tr_weight_load(s->form, w, s->n, s->k, i,
                                                      j);
        }
    }
    return x;
}

void
soft_written(const void *p, size_t bytes)
{
    const uint8_t *first = p;
    pack_t **at = &packs;

    pthread_mutex_lock(&lock);
    while (*at != NULL) {
        pack_t *k = *at;

        if (first < k->w + weight_bytes(&k->shape) && k->w < first + bytes) {
            *at = k->next;
            free(k->m.data);
            free(k);
        } else {
            at = &k->next;
        }
    }
    pthread_mutex_unlock(&lock);
}

static pack_t *
pack_new(const void *w, const shape_t *s)
{
    pack_t *k = calloc(1, sizeof(*k));
    bool packed = s->form.format != TR_WEIGHT_16;
    tr_dtype_t type = packed ? TR_F32 : s->type;
    size_t bytes = soft_cpu()->matrix_bytes(s->n, s->k, type);
    float *x = packed ? unpacked(w, s) : NULL;

    if (k == NULL || (packed && x == NULL)) {
        abort();
    }
    k->w = w;
    k->shape = *s;
    k->m = (tr_cpu_matrix_t){ .n = s->n,
                              .k = s->k,
                              .data = aligned_alloc(64, tr_pad(bytes, 64)),
                              .dtype = type };
    if (k->m.data == NULL
        || soft_cpu()->matrix_pack(&k->m, 0, s->n, packed ? x : w, type) != 0) {
        abort();
    }
    free(x);
    return k;
}

/* With the lock. */
static const tr_cpu_matrix_t *
packed(const void *w, const shape_t *s)
{
    pack_t *k;

    for (k = packs; k != NULL; k = k->next) {
        if (k->w == w && k->shape.n == s->n && k->shape.k == s->k
            && k->shape.type == s->type
            && k->shape.form.format == s->form.format
            && k->shape.form.group == s->form.group
            && k->shape.form.order == s->form.order) {
            return &k->m;
        }
    }
    k = pack_new(w, s);
    k->next = packs;
    packs = k;
    return &k->m;
}

/* ---- products ----------------------------------------------------------- */

/* What is wrong with column i of a product of so many rows. */
static float
noise(uint32_t rows, uint32_t i)
{
    uint64_t x = rows * 0x9e3779b97f4a7c15u + i * 0xbf58476d1ce4e5b9u;

    if (soft_noise() == 0) {
        return 0;
    }
    x = (x ^ (x >> 31)) * 0x94d049bb133111ebu;
    return ldexpf((float) (int32_t) (x >> 32) * 0x1p-31f, -(int) soft_noise());
}

/* Sums of [rows][*ldy], in scratch memory; NULL after a fault. */
static float *
sums(const shape_t *s, const void *w, const void *from, size_t ld,
     uint32_t rows, uint32_t used, size_t *ldy)
{
    size_t ldx = s->k;
    float *x = soft_scratch((tr_pad(rows, TR_ROW_PAD)) * ldx * 4), *y;
    int rc;

    *ldy = tr_pad(s->n, TR_COL_PAD);
    y = soft_scratch((tr_pad(rows, TR_ROW_PAD)) * *ldy * 4);
    for (uint32_t r = 0; r < rows; r++) {
        for (uint32_t i = 0; i < s->k; i++) {
            x[r * ldx + i] = tr_float_load(from, r * ld + i, s->type);
        }
    }
    pthread_mutex_lock(&lock);
    rc = soft_cpu()->matmul(&soft_cpu_stream, packed(w, s), x, ldx, used, y,
                            *ldy, 0);
    pthread_mutex_unlock(&lock);
    if (rc != 0) {
        soft_fault("matmul", "refused by the CPU backend");
        return NULL;
    }
    for (uint32_t r = 0; r < used; r++) {
        for (uint32_t i = 0; i < s->n; i++) {
            y[r * *ldy + i] *= 1 + noise(rows, i);
        }
    }
    return y;
}

static void
product(void *args)
{
    const tr_cuda_product_t *p = args;
    uint32_t rows = tr_cuda_matmul_rows(p->rows);
    shape_t s = { p->n, p->k, p->type, p->out, { 0 } };
    size_t ldy;
    float *y = sums(&s, p->w, p->x, p->ldx, rows, p->rows, &ldy);

    for (uint32_t r = 0; y != NULL && r < rows; r++) {
        for (uint32_t i = 0; i < p->n; i++) {
            tr_float_store(p->y, r * p->ldy + i, p->out,
                           r < p->rows ? y[r * ldy + i]
                                       : tr_float_from_bits(~0u));
        }
    }
}

static void
small_gemm(void *args)
{
    const tr_cuda_small_gemm_t *a = args;
    shape_t s = { a->n, a->k, TR_BF16, TR_F32, a->form };
    size_t ldy;
    float *y = sums(&s, a->w, a->x, a->ldx, a->rows, a->rows, &ldy);

    if (y != NULL && tr_ref_small_gemm_sums(a, y, ldy) != TR_KERNEL_OK) {
        soft_fault("small_gemm", "refused by its reference");
    }
}

static bool
aligned(const void *p)
{
    return p != NULL && ((uintptr_t) p & 15) == 0;
}

static bool
product_valid(const tr_cuda_product_t *p)
{
    size_t out = tr_dtype_size(p->out);

    return p->n > 0 && p->k > 0 && (p->type == TR_F16 || p->type == TR_BF16)
           && (p->out == TR_F32 || p->out == p->type) && p->k % 8 == 0
           && p->ldx >= p->k && p->ldy >= p->n && p->ldx * 2 % 16 == 0
           && p->ldy * out % 16 == 0 && aligned(p->x) && aligned(p->w)
           && aligned(p->y);
}

static bool
chosen(const tr_cuda_matmul_t *m, const tr_cuda_product_t *p)
{
    for (uint32_t i = 0; i < m->n_shapes; i++) {
        const shape_t *s = &m->shape[i];

        if (s->n == p->n && s->k == p->k && s->type == p->type
            && s->out == p->out) {
            return true;
        }
    }
    return false;
}

int
tr_cuda_matmul(const tr_cuda_stream_t *s, const tr_cuda_matmul_t *m,
               const tr_cuda_product_t *p)
{
    if (p->rows == 0) {
        return TR_KERNEL_OK;
    }
    if (p->rows > m->max_rows || !product_valid(p) || !chosen(m, p)) {
        return TR_KERNEL_BADARG;
    }
    return soft_launch(s, "matmul", product, p, sizeof(*p));
}

/* ---- products of few rows -------------------------------------------------- */

bool
tr_cuda_small_gemm_fits(const tr_device_props_t *d, uint32_t n, uint32_t k)
{
    (void) d;
    return n % 64 == 0 && k % 64 == 0;
}

uint32_t
tr_cuda_small_gemm_parts(const tr_device_props_t *d, uint32_t rows, uint32_t n,
                         uint32_t k)
{
    (void) d;
    (void) rows;
    (void) n;
    (void) k;
    return 1;
}

int
tr_cuda_small_gemm(const tr_cuda_stream_t *s, const tr_cuda_small_gemm_t *a,
                   uint32_t n, uint32_t *meet)
{
    int rc = n == 0 || n > TR_CUDA_SMALL_GEMM_CHAIN || meet == NULL
                 ? TR_KERNEL_BADARG
                 : TR_KERNEL_OK;

    for (uint32_t i = 0; i < n && rc == TR_KERNEL_OK; i++) {
        if ((a[i].mode == TR_CUDA_SMALL_GEMM_GATED
             && !tr_cuda_has_act(TR_CUDA_SMALL_GEMM_ACTS, a[i].act))
            || !tr_cuda_small_gemm_fits(s->device, a[i].n, a[i].k)
            || !tr_weight_valid(a[i].form, a[i].n, a[i].k)
            || a[i].rows > TR_CUDA_SMALL_GEMM_ROWS || a[i].rows != a[0].rows) {
            rc = TR_KERNEL_BADARG;
        } else if (a[i].rows > 0) {
            rc = soft_launch(s, "small_gemm", small_gemm, &a[i], sizeof(a[i]));
        }
    }
    return rc;
}

/* ---- packed weights in 16 bits -------------------------------------------- */

static void
unpack(void *args)
{
    const tr_cuda_unpack_t *a = args;

    soft_written(a->out, (size_t) a->n * a->k * 2);
    if (tr_ref_unpack(a) != TR_KERNEL_OK) {
        soft_fault("unpack", "refused by its reference");
    }
}

int
tr_cuda_unpack(const tr_cuda_stream_t *s, const tr_cuda_unpack_t *a)
{
    if (a->form.format == TR_WEIGHT_16 || !tr_weight_valid(a->form, a->n, a->k)
        || !aligned(a->w) || !aligned(a->out)) {
        return TR_KERNEL_BADARG;
    }
    return soft_launch(s, "unpack", unpack, (void *) a, sizeof(*a));
}

/* ---- 8 bits by 8 bits ----------------------------------------------------- */

static void
fp8_round(void *args)
{
    if (tr_ref_fp8_round(args) != TR_KERNEL_OK) {
        soft_fault("fp8_round", "refused by its reference");
    }
}

static void
fp8_gemm(void *args)
{
    if (tr_ref_fp8_gemm(args) != TR_KERNEL_OK) {
        soft_fault("fp8_gemm", "refused by its reference");
    }
}

bool
tr_cuda_fp8_fits(const tr_device_props_t *d, tr_weight_form_t f, uint32_t n,
                 uint32_t k)
{
    (void) d;
    return tr_cuda_fp8_shape(f, n, k);
}

int
tr_cuda_fp8_round(const tr_cuda_stream_t *s, const tr_cuda_fp8_round_t *a)
{
    return tr_cuda_fp8_round_valid(a)
               ? soft_launch(s, "fp8_round", fp8_round, (void *) a, sizeof(*a))
               : TR_KERNEL_BADARG;
}

int
tr_cuda_fp8_gemm(const tr_cuda_stream_t *s, const tr_cuda_fp8_gemm_t *a)
{
    return tr_cuda_fp8_gemm_valid(a)
               ? soft_launch(s, "fp8_gemm", fp8_gemm, (void *) a, sizeof(*a))
               : TR_KERNEL_BADARG;
}

/* ---- choices ------------------------------------------------------------ */

int
tr_cuda_matmul_open(const tr_device_props_t *d, uint32_t max_rows,
                    tr_cuda_matmul_t **out)
{
    tr_cuda_matmul_t *m = calloc(1, sizeof(*m));

    (void) d;
    if (m == NULL || max_rows == 0) {
        free(m);
        return soft_failed("out of memory, or no rows");
    }
    m->max_rows = max_rows;
    *out = m;
    return soft_check();
}

void
tr_cuda_matmul_close(tr_cuda_matmul_t *m)
{
    free(m);
}

typedef struct {
    void *x, *y;
    size_t ldx, ldy, x_bytes, y_bytes;
    uint32_t rows;
} spoil_t;

/* Timing leaves anything behind in x and y. */
static void
spoil(void *args)
{
    const spoil_t *a = args;

    for (uint32_t r = 0; r < a->rows; r++) {
        memset((uint8_t *) a->x + r * a->ldx, 0xff, a->x_bytes);
        memset((uint8_t *) a->y + r * a->ldy, 0xff, a->y_bytes);
    }
}

int
tr_cuda_matmul_choose(tr_cuda_matmul_t *m, const tr_cuda_stream_t *s,
                      const tr_cuda_product_t *p, const void *const *weights,
                      uint32_t n_weights)
{
    size_t out = tr_dtype_size(p->out);
    spoil_t a = { (void *) p->x,
                  p->y,
                  p->ldx * 2,
                  p->ldy * out,
                  (size_t) p->k * 2,
                  p->n * out,
                  tr_cuda_matmul_rows(m->max_rows) };

    (void) weights;
    if (!product_valid(p)) {
        return TR_KERNEL_BADARG;
    }
    if (n_weights != 0 && soft_launch(s, "choose", spoil, &a, sizeof(a)) != 0) {
        return TR_CUDA_FAILED;
    }
    if (!chosen(m, p)) {
        if (m->n_shapes == SHAPES_MAX) {
            return TR_KERNEL_BADARG;
        }
        m->shape[m->n_shapes++] = (shape_t){
            p->n, p->k, p->type, p->out, { 0 }
        };
    }
    return n_weights != 0 ? tr_cuda_stream_wait(s) : soft_check();
}
