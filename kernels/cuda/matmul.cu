/*
 * Matrix products by cuBLASLt (matmul.h).
 *
 * cuBLASLt thinks in columns.  Row-major y[rows][n] = x[rows][k] w[n][k]^T is,
 * read by columns, Y^T = W X^T with all three as they lie in memory:
 *
 *   A = w: k x n, ld k, transposed    B = x: k x rows, ld ldx    D = y: n x rows
 *
 * The library is loaded when the first product is opened: half a gigabyte that
 * whoever only wants to know what GPU there is needs not have.
 *
 * Only algorithms that give the same bits every time are taken: a split of k is
 * fine when its parts are summed by a pass of their own, in FP32.
 */
#include "decode.cuh"
#include "matmul.h"
#include "runtime.cuh"

#include <cublasLt.h>
#include <cuda_runtime.h>
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WORKSPACE ((size_t) 32 << 20)
#define SHAPES_MAX 64u
#define CANDIDATES 8
#define RUNS 7            /* timed, of each candidate, after one that is not */
#define TIMED_ROWS 512u   /* above, suggestions are as good as measurements */

/* ---- the library -------------------------------------------------------- */

#define LT_FUNCTIONS(F)                                                  \
    F(Create) F(Destroy) F(GetVersion) F(GetStatusString) F(Matmul)      \
    F(MatmulDescCreate) F(MatmulDescDestroy) F(MatmulDescSetAttribute)   \
    F(MatrixLayoutInit_internal) F(MatmulPreferenceCreate)               \
    F(MatmulPreferenceDestroy) F(MatmulPreferenceSetAttribute)           \
    F(MatmulAlgoGetHeuristic) F(MatmulAlgoConfigGetAttribute)

static struct {
    void *handle;
#define LT_MEMBER(name) decltype(&cublasLt##name) name;
    LT_FUNCTIONS(LT_MEMBER)
#undef LT_MEMBER
} lt;

#define TEXT_OF(x) #x
#define TEXT(x) TEXT_OF(x)
#define LT_NAME "libcublasLt.so." TEXT(CUBLAS_VER_MAJOR)

/* Where the system looks, then where the toolkit puts it. */
static void *
lt_find(void)
{
    static const char *const places[] = {
        LT_NAME,
        "/usr/local/cuda/lib64/" LT_NAME,
        "/usr/local/cuda/lib/" LT_NAME,
        "/usr/local/cuda-" TEXT(CUBLAS_VER_MAJOR) "/lib64/" LT_NAME,
    };
    void *handle = NULL;

    for (uint32_t i = 0; i < 4 && handle == NULL; i++) {
        handle = dlopen(places[i], RTLD_NOW | RTLD_LOCAL);
    }
    return handle;
}

static int
lt_load(void)
{
    void *handle;

    if (lt.handle != NULL) {
        return TR_KERNEL_OK;
    }
    handle = lt_find();
    if (handle == NULL) {
        return tr_cuda_say("%s was not found: install cuBLAS of CUDA %d, or "
                           "let LD_LIBRARY_PATH name its folder",
                           LT_NAME, CUBLAS_VER_MAJOR);
    }
#define LT_LOAD(name)                                                   \
    *(void **) &lt.name = dlsym(handle, "cublasLt" #name);              \
    if (lt.name == NULL) {                                              \
        dlclose(handle);                                                \
        return tr_cuda_say("%s has no function cublasLt" #name, LT_NAME); \
    }
    LT_FUNCTIONS(LT_LOAD)
#undef LT_LOAD
    lt.handle = handle;
    return TR_KERNEL_OK;
}

static int
lt_checked(cublasStatus_t status, const char *what)
{
    if (status == CUBLAS_STATUS_SUCCESS) {
        return TR_KERNEL_OK;
    }
    cudaGetLastError();
    return tr_cuda_say("cuBLASLt: %s: %s", what, lt.GetStatusString(status));
}

/* ---- shapes and classes ------------------------------------------------- */

typedef struct {
    uint32_t n, k;
    tr_dtype_t type, out;
    cublasLtMatmulAlgo_t *algo; /* [classes] */
} shape_t;

struct tr_cuda_matmul {
    const tr_cuda_device_t *device;
    cublasLtHandle_t lt;
    cublasLtMatmulDesc_t desc; /* FP32 sums; A transposed */
    cublasLtMatmulPreference_t wish;
    void *work;
    uint32_t max_rows, classes, n_shapes;
    shape_t shape[SHAPES_MAX];
};

/* Number of the class whose rows are tr_cuda_matmul_rows(rows). */
static uint32_t
class_of(uint32_t rows)
{
    uint32_t r = tr_cuda_matmul_rows(rows);

    return r <= 16     ? r / 8 - 1
           : r <= 64   ? 2 + (r - 32) / 16
           : r <= 256  ? 5 + (r - 96) / 32
           : r <= 512  ? 11 + (r - 272) / 16
           : r <= 1024 ? 27 + (r - 576) / 64
                       : 35 + (r - 1152) / 128;
}

static shape_t *
shape_find(const tr_cuda_matmul_t *m, const tr_cuda_product_t *p)
{
    for (uint32_t i = 0; i < m->n_shapes; i++) {
        const shape_t *s = &m->shape[i];

        if (s->n == p->n && s->k == p->k && s->type == p->type
            && s->out == p->out) {
            return (shape_t *) s;
        }
    }
    return NULL;
}

static bool
aligned(const void *p)
{
    return p != NULL && ((uintptr_t) p & 15) == 0;
}

static bool
product_valid(const tr_cuda_product_t *p)
{
    size_t out = p->out == TR_F32 ? 4 : 2;

    return p->n > 0 && p->k > 0 && (p->type == TR_F16 || p->type == TR_BF16)
           && (p->out == TR_F32 || p->out == p->type) && p->k % 8 == 0
           && p->ldx >= p->k && p->ldy >= p->n && p->ldx * 2 % 16 == 0
           && p->ldy * out % 16 == 0 && aligned(p->x) && aligned(p->w)
           && aligned(p->y);
}

/* The three matrices of a product of `rows` rows; no memory is taken. */
typedef struct {
    cublasLtMatrixLayoutOpaque_t a, b, d;
} layouts_t;

static cudaDataType_t
type_of(tr_dtype_t type)
{
    return type == TR_F32   ? CUDA_R_32F
           : type == TR_F16 ? CUDA_R_16F
                            : CUDA_R_16BF;
}

static void
layouts_make(layouts_t *l, const tr_cuda_product_t *p, uint32_t rows)
{
    cudaDataType_t in = type_of(p->type), out = type_of(p->out);

    lt.MatrixLayoutInit_internal(&l->a, sizeof(l->a), in, p->k, p->n,
                                 (int64_t) p->k);
    lt.MatrixLayoutInit_internal(&l->b, sizeof(l->b), in, p->k, rows,
                                 (int64_t) p->ldx);
    lt.MatrixLayoutInit_internal(&l->d, sizeof(l->d), out, p->n, rows,
                                 (int64_t) p->ldy);
}

/* ---- open, close -------------------------------------------------------- */

static int
wish_make(tr_cuda_matmul_t *m)
{
    size_t work = WORKSPACE;
    uint32_t align = 16;
    uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_NONE
                       | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    static const cublasLtMatmulPreferenceAttributes_t sides[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
    };
    cublasStatus_t e = lt.MatmulPreferenceCreate(&m->wish);

    if (e == CUBLAS_STATUS_SUCCESS) {
        e = lt.MatmulPreferenceSetAttribute(
            m->wish, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &work,
            sizeof(work));
    }
    if (e == CUBLAS_STATUS_SUCCESS) {
        e = lt.MatmulPreferenceSetAttribute(
            m->wish, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &schemes,
            sizeof(schemes));
    }
    for (uint32_t i = 0; i < 4 && e == CUBLAS_STATUS_SUCCESS; i++) {
        e = lt.MatmulPreferenceSetAttribute(m->wish, sides[i], &align,
                                            sizeof(align));
    }
    return lt_checked(e, "preferences");
}

static int
desc_make(tr_cuda_matmul_t *m)
{
    cublasOperation_t turned = CUBLAS_OP_T;
    cublasStatus_t e = lt.MatmulDescCreate(&m->desc, CUBLAS_COMPUTE_32F,
                                           CUDA_R_32F);

    if (e == CUBLAS_STATUS_SUCCESS) {
        e = lt.MatmulDescSetAttribute(m->desc, CUBLASLT_MATMUL_DESC_TRANSA,
                                      &turned, sizeof(turned));
    }
    return lt_checked(e, "descriptor");
}

extern "C" int
tr_cuda_matmul_open(const tr_cuda_device_t *d, uint32_t max_rows,
                    tr_cuda_matmul_t **out)
{
    tr_cuda_matmul_t *m;
    int rc;

    *out = NULL;
    if (max_rows == 0) {
        return TR_KERNEL_BADARG;
    }
    if (lt_load() != TR_KERNEL_OK) {
        return TR_CUDA_FAILED;
    }
    m = (tr_cuda_matmul_t *) calloc(1, sizeof(*m));
    if (m == NULL) {
        return tr_cuda_say("out of host memory");
    }
    m->device = d;
    m->max_rows = max_rows;
    m->classes = class_of(max_rows) + 1;
    rc = lt_checked(lt.Create(&m->lt), "opening");
    rc = rc == TR_KERNEL_OK ? desc_make(m) : rc;
    rc = rc == TR_KERNEL_OK ? wish_make(m) : rc;
    if (rc == TR_KERNEL_OK) {
        m->work = tr_cuda_alloc(WORKSPACE);
        rc = m->work != NULL ? TR_KERNEL_OK : TR_CUDA_FAILED;
    }
    if (rc != TR_KERNEL_OK) {
        tr_cuda_matmul_close(m);
        return rc;
    }
    *out = m;
    return TR_KERNEL_OK;
}

extern "C" void
tr_cuda_matmul_close(tr_cuda_matmul_t *m)
{
    if (m == NULL) {
        return;
    }
    for (uint32_t i = 0; i < m->n_shapes; i++) {
        free(m->shape[i].algo);
    }
    if (m->work != NULL) {
        tr_cuda_release(m->work);
    }
    if (m->wish != NULL) {
        lt.MatmulPreferenceDestroy(m->wish);
    }
    if (m->desc != NULL) {
        lt.MatmulDescDestroy(m->desc);
    }
    if (m->lt != NULL) {
        lt.Destroy(m->lt);
    }
    free(m);
}

/* ---- products ----------------------------------------------------------- */

static cublasStatus_t
multiply(const tr_cuda_stream_t *s, const tr_cuda_matmul_t *m,
         const tr_cuda_product_t *p, const layouts_t *l,
         const cublasLtMatmulAlgo_t *algo)
{
    static const float one = 1, zero = 0;

    return lt.Matmul(m->lt, m->desc, &one, p->w,
                     (cublasLtMatrixLayout_t) &l->a, p->x,
                     (cublasLtMatrixLayout_t) &l->b, &zero, p->y,
                     (cublasLtMatrixLayout_t) &l->d, p->y,
                     (cublasLtMatrixLayout_t) &l->d, algo, m->work, WORKSPACE,
                     (cudaStream_t) s->stream);
}

extern "C" int
tr_cuda_matmul(const tr_cuda_stream_t *s, const tr_cuda_matmul_t *m,
               const tr_cuda_product_t *p)
{
    const shape_t *shape;
    layouts_t l;

    if (p->rows == 0) {
        return TR_KERNEL_OK;
    }
    shape = shape_find(m, p);
    if (shape == NULL || p->rows > m->max_rows || !product_valid(p)) {
        return TR_KERNEL_BADARG;
    }
    layouts_make(&l, p, tr_cuda_matmul_rows(p->rows));
    return lt_checked(multiply(s, m, p, &l, &shape->algo[class_of(p->rows)]),
                      "product");
}

/* ---- choices ------------------------------------------------------------ */

/* Does an algorithm give the same bits every time? */
static bool
repeats(const cublasLtMatmulAlgo_t *algo)
{
    uint32_t scheme = 0;
    size_t written = 0;

    return lt.MatmulAlgoConfigGetAttribute(
               algo, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &scheme,
               sizeof(scheme), &written)
               == CUBLAS_STATUS_SUCCESS
           && (scheme == CUBLASLT_REDUCTION_SCHEME_NONE
               || scheme == CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
}

/* Up to CANDIDATES, best first; how many. */
static int
suggestions(const tr_cuda_matmul_t *m, const tr_cuda_product_t *p,
            uint32_t rows, cublasLtMatmulAlgo_t *out)
{
    cublasLtMatmulHeuristicResult_t found[CANDIDATES];
    int n = 0, good = 0;
    layouts_t l;

    layouts_make(&l, p, rows);
    if (lt.MatmulAlgoGetHeuristic(m->lt, m->desc, &l.a, &l.b, &l.d, &l.d,
                                  m->wish, CANDIDATES, found, &n)
        != CUBLAS_STATUS_SUCCESS) {
        return 0;
    }
    for (int i = 0; i < n; i++) {
        if (found[i].state == CUBLAS_STATUS_SUCCESS
            && found[i].workspaceSize <= WORKSPACE
            && repeats(&found[i].algo)) {
            out[good++] = found[i].algo;
        }
    }
    return good;
}

typedef struct {
    void *from, *to;
} stopwatch_t;

/* One run, in microseconds; infinite: it does not run.  The workspace is filled
 * before, so that weights are not all in the cache. */
static double
time_one(const tr_cuda_stream_t *s, const tr_cuda_matmul_t *m,
         const tr_cuda_product_t *p, const layouts_t *l,
         const cublasLtMatmulAlgo_t *algo, const stopwatch_t *c)
{
    double us = 0;

    if (tr_cuda_fill(s, m->work, 0, WORKSPACE) != TR_KERNEL_OK
        || tr_cuda_event_record(s, c->from) != TR_KERNEL_OK
        || multiply(s, m, p, l, algo) != CUBLAS_STATUS_SUCCESS
        || tr_cuda_event_record(s, c->to) != TR_KERNEL_OK
        || tr_cuda_event_wait(c->to) != TR_KERNEL_OK
        || tr_cuda_event_time(c->from, c->to, &us) != TR_KERNEL_OK) {
        cudaGetLastError();
        return INFINITY;
    }
    return us;
}

static int
compare_times(const void *a, const void *b)
{
    double x = *(const double *) a, y = *(const double *) b;

    return (x > y) - (x < y);
}

/* The candidate with the least median.  They take turns, so that what else
 * changes on the device in that time meets all of them. */
static int
fastest(const tr_cuda_stream_t *s, const tr_cuda_matmul_t *m,
        const tr_cuda_product_t *p, uint32_t rows,
        const cublasLtMatmulAlgo_t *algo, int n, const stopwatch_t *c)
{
    double us[CANDIDATES][RUNS];
    layouts_t l;
    int best = 0;

    layouts_make(&l, p, rows);
    for (int run = -1; run < RUNS; run++) { /* the first is a warm-up */
        for (int i = 0; i < n; i++) {
            us[i][run < 0 ? 0 : run] = time_one(s, m, p, &l, &algo[i], c);
        }
        if (!tr_cuda_alive()) {
            return 0;
        }
    }
    for (int i = 0; i < n; i++) {
        qsort(us[i], RUNS, sizeof(us[i][0]), compare_times);
        best = us[i][RUNS / 2] < us[best][RUNS / 2] ? i : best;
    }
    return best;
}

static int
choose_class(const tr_cuda_stream_t *s, const tr_cuda_matmul_t *m,
             const tr_cuda_product_t *p, uint32_t rows, const stopwatch_t *c,
             cublasLtMatmulAlgo_t *out)
{
    cublasLtMatmulAlgo_t algo[CANDIDATES];
    int n = suggestions(m, p, rows, algo);

    if (n == 0) {
        return tr_cuda_say("cuBLASLt knows no algorithm for a product of %u "
                           "rows, %u by %u",
                           rows, p->n, p->k);
    }
    *out = algo[c != NULL && n > 1 ? fastest(s, m, p, rows, algo, n, c) : 0];
    return tr_cuda_alive() ? TR_KERNEL_OK : TR_CUDA_FAILED;
}

static int
choose_all(const tr_cuda_stream_t *s, const tr_cuda_matmul_t *m,
           const tr_cuda_product_t *p, const stopwatch_t *c,
           cublasLtMatmulAlgo_t *out)
{
    int rc = TR_KERNEL_OK;
    uint32_t rows = 1;

    for (uint32_t i = 0; i < m->classes && rc == TR_KERNEL_OK; i++) {
        rows = tr_cuda_matmul_rows(rows);
        rc = choose_class(s, m, p, rows, rows <= TIMED_ROWS ? c : NULL,
                          &out[i]);
        rows++;
    }
    return rc;
}

extern "C" int
tr_cuda_matmul_choose(tr_cuda_matmul_t *m, const tr_cuda_stream_t *s,
                      const tr_cuda_product_t *p, bool timed)
{
    shape_t shape = { p->n, p->k, p->type, p->out, NULL };
    stopwatch_t c = { NULL, NULL };
    int rc = TR_KERNEL_OK;

    if (!product_valid(p) || m->n_shapes == SHAPES_MAX) {
        return TR_KERNEL_BADARG;
    }
    if (shape_find(m, p) != NULL) {
        return TR_KERNEL_OK;
    }
    shape.algo = (cublasLtMatmulAlgo_t *) calloc(m->classes,
                                                 sizeof(*shape.algo));
    if (shape.algo == NULL) {
        return tr_cuda_say("out of host memory");
    }
    if (timed) {
        rc = tr_cuda_event_open(&c.from);
        rc = rc == TR_KERNEL_OK ? tr_cuda_event_open(&c.to) : rc;
    }
    rc = rc == TR_KERNEL_OK
             ? choose_all(s, m, p, timed ? &c : NULL, shape.algo)
             : rc;
    tr_cuda_event_close(c.from);
    tr_cuda_event_close(c.to);
    if (rc != TR_KERNEL_OK) {
        free(shape.algo);
        return rc;
    }
    m->shape[m->n_shapes++] = shape;
    return TR_KERNEL_OK;
}
