/*
 * Matrix products by cuBLASLt (device.h).
 *
 * cuBLASLt thinks in columns.  Row-major y[rows][n] = x[rows][k] w[n][k]^T is,
 * read by columns, Y^T = W X^T with all three as they lie in memory:
 *
 *   A = w: k x n, ld k, transposed    B = x: k x rows, ld ldx    D = y: n x rows
 *
 * Only algorithms that give the same bits every time are taken: a split of k is
 * fine when its parts are summed by a pass of their own, in FP32.
 */
#include "kernels/cuda/device.h"
#include "matmul_library.cuh"
#include "matmul_watch.cuh"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WORKSPACE ((size_t) 32 << 20)
#define SHAPES_MAX 64u
#define SUGGESTED 8 /* at most, for each preference */
#define CANDIDATES (2 * SUGGESTED)
#define TIMED_ROWS 512u /* above, suggestions are as good as measurements */

/* ---- shapes and classes ------------------------------------------------- */

/* An algorithm, and how much of a workspace it is given. */
typedef struct {
    cublasLtMatmulAlgo_t algo;
    size_t work;
} choice_t;

typedef struct {
    uint32_t n, k;
    tr_dtype_t type, out;
    choice_t *choice; /* [classes] */
} shape_t;

/* It is asked twice.  Where it may have a workspace it prefers to split k, and
 * to deal tiles out by a counter that a launch of its own must clear; with few
 * rows or many that costs more than it brings. */
static const size_t workspaces[] = { WORKSPACE, 0 };
#define PREFERENCES (sizeof(workspaces) / sizeof(workspaces[0]))

struct tr_cuda_matmul {
    const tr_device_props_t *device;
    cublasLtHandle_t lt;
    cublasLtMatmulDesc_t desc; /* FP32 sums; A transposed */
    cublasLtMatmulPreference_t preference[PREFERENCES];
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
    size_t out = tr_dtype_size(p->out);

    return p->n > 0 && p->k > 0 && tr_dtype_is_short(p->type)
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
preference_make(size_t work, cublasLtMatmulPreference_t *out)
{
    uint32_t align = 16;
    uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_NONE
                       | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    static const cublasLtMatmulPreferenceAttributes_t sides[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
    };
    cublasStatus_t e = lt.MatmulPreferenceCreate(out);

    if (e == CUBLAS_STATUS_SUCCESS) {
        e = lt.MatmulPreferenceSetAttribute(
            *out, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &work,
            sizeof(work));
    }
    if (e == CUBLAS_STATUS_SUCCESS) {
        e = lt.MatmulPreferenceSetAttribute(
            *out, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &schemes,
            sizeof(schemes));
    }
    for (uint32_t i = 0; i < 4 && e == CUBLAS_STATUS_SUCCESS; i++) {
        e = lt.MatmulPreferenceSetAttribute(*out, sides[i], &align,
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
tr_cuda_matmul_open(const tr_device_props_t *d, uint32_t max_rows,
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
    for (uint32_t i = 0; i < PREFERENCES && rc == TR_KERNEL_OK; i++) {
        rc = preference_make(workspaces[i], &m->preference[i]);
    }
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
        free(m->shape[i].choice);
    }
    if (m->work != NULL) {
        tr_cuda_release(m->work);
    }
    for (uint32_t i = 0; i < PREFERENCES; i++) {
        if (m->preference[i] != NULL) {
            lt.MatmulPreferenceDestroy(m->preference[i]);
        }
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
         const tr_cuda_product_t *p, const layouts_t *l, const choice_t *c)
{
    static const float one = 1, zero = 0;

    return lt.Matmul(m->lt, m->desc, &one, p->w, (cublasLtMatrixLayout_t) &l->a,
                     p->x, (cublasLtMatrixLayout_t) &l->b, &zero, p->y,
                     (cublasLtMatrixLayout_t) &l->d, p->y,
                     (cublasLtMatrixLayout_t) &l->d, &c->algo,
                     c->work != 0 ? m->work : NULL, c->work,
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
    return lt_checked(multiply(s, m, p, &l, &shape->choice[class_of(p->rows)]),
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

/* Appends up to SUGGESTED, best first; how many are there then.  One that is
 * there already goes with the workspace of this preference. */
static int
suggest(const tr_cuda_matmul_t *m, const layouts_t *l, uint32_t preference,
        choice_t *out, int good)
{
    cublasLtMatmulHeuristicResult_t found[SUGGESTED];
    int n = 0, old;

    if (lt.MatmulAlgoGetHeuristic(
            m->lt, m->desc, (cublasLtMatrixLayout_t) &l->a,
            (cublasLtMatrixLayout_t) &l->b, (cublasLtMatrixLayout_t) &l->d,
            (cublasLtMatrixLayout_t) &l->d, m->preference[preference],
            SUGGESTED, found, &n)
        != CUBLAS_STATUS_SUCCESS) {
        return good;
    }
    for (int i = 0; i < n; i++) {
        if (found[i].state != CUBLAS_STATUS_SUCCESS
            || found[i].workspaceSize > workspaces[preference]
            || !repeats(&found[i].algo)) {
            continue;
        }
        for (old = 0; old < good; old++) {
            if (memcmp(&out[old].algo, &found[i].algo, sizeof(found[i].algo))
                == 0) {
                break;
            }
        }
        out[old].algo = found[i].algo;
        out[old].work = workspaces[preference];
        good += old == good;
    }
    return good;
}

static int
suggestions(const tr_cuda_matmul_t *m, const tr_cuda_product_t *p,
            uint32_t rows, choice_t *out)
{
    int good = 0;
    layouts_t l;

    layouts_make(&l, p, rows);
    for (uint32_t i = 0; i < PREFERENCES; i++) {
        good = suggest(m, &l, i, out, good);
    }
    return good;
}

/* ---- choices by time ---------------------------------------------------- */

static int
chain_launch(const tr_cuda_stream_t *s, const tr_cuda_matmul_t *m,
             const tr_cuda_product_t *p, const choice_t *choice, stopwatch_t *c)
{
    tr_cuda_product_t q = *p;
    int rc = TR_KERNEL_OK;
    layouts_t l;

    layouts_make(&l, p, p->rows);
    for (uint32_t i = 0; i < WATCH_CHAIN && rc == TR_KERNEL_OK; i++) {
        q.w = watch_weights(c);
        rc = watch_before(c, s, &q);
        if (rc == TR_KERNEL_OK
            && multiply(s, m, &q, &l, choice) != CUBLAS_STATUS_SUCCESS) {
            rc = TR_CUDA_FAILED;
        }
    }
    return rc;
}

/* Its products in a graph, if they can be captured, and their second run. */
static void
runner_open(runner_t *r, const tr_cuda_stream_t *s, const tr_cuda_matmul_t *m,
            const tr_cuda_product_t *p, const choice_t *choice, stopwatch_t *c)
{
    int rc = tr_cuda_graph_begin(s), end;

    if (rc == TR_KERNEL_OK) {
        rc = chain_launch(s, m, p, choice, c);
        end = tr_cuda_graph_end(s, &r->graph);
        rc = rc == TR_KERNEL_OK ? end : rc;
    }
    cudaGetLastError();
    for (int run = 0; run < 2; run++) {
        r->us[0] = rc == TR_KERNEL_OK ? watch_graph(c, s, r->graph) : INFINITY;
    }
}

static int
fastest(const tr_cuda_stream_t *s, const tr_cuda_matmul_t *m,
        const tr_cuda_product_t *p, const choice_t *choice, int n,
        stopwatch_t *c)
{
    runner_t r[CANDIDATES] = {};
    int best = 0;

    for (int i = 0; i < n && tr_cuda_alive(); i++) {
        runner_open(&r[i], s, m, p, &choice[i], c);
    }
    best = tr_cuda_alive() ? watch_race(c, s, r, n) : 0;
    for (int i = 0; i < n; i++) {
        tr_cuda_graph_close(r[i].graph);
    }
    return best;
}

static int
choose_class(const tr_cuda_stream_t *s, const tr_cuda_matmul_t *m,
             const tr_cuda_product_t *p, stopwatch_t *c, choice_t *out)
{
    choice_t choice[CANDIDATES];
    int n = suggestions(m, p, p->rows, choice);

    if (n == 0) {
        return tr_cuda_say("cuBLASLt knows no algorithm for a product of %u "
                           "rows, %u by %u",
                           p->rows, p->n, p->k);
    }
    *out = choice[c != NULL && n > 1 ? fastest(s, m, p, choice, n, c) : 0];
    return tr_cuda_alive() ? TR_KERNEL_OK : TR_CUDA_FAILED;
}

static int
choose_all(const tr_cuda_stream_t *s, const tr_cuda_matmul_t *m,
           const tr_cuda_product_t *shape, stopwatch_t *c, choice_t *out)
{
    tr_cuda_product_t p = *shape;
    int rc = TR_KERNEL_OK;
    uint32_t rows = 1;

    for (uint32_t i = 0; i < m->classes && rc == TR_KERNEL_OK; i++) {
        p.rows = tr_cuda_matmul_rows(rows);
        rc = choose_class(s, m, &p, p.rows <= TIMED_ROWS ? c : NULL, &out[i]);
        rows = p.rows + 1;
    }
    return rc;
}

static uint32_t
timed_rows(const tr_cuda_matmul_t *m)
{
    uint32_t rows = m->max_rows < TIMED_ROWS ? m->max_rows : TIMED_ROWS;

    return tr_cuda_matmul_rows(rows);
}

extern "C" int
tr_cuda_matmul_choose(tr_cuda_matmul_t *m, const tr_cuda_stream_t *s,
                      const tr_cuda_product_t *p, const void *const *weights,
                      uint32_t n_weights)
{
    shape_t shape = { p->n, p->k, p->type, p->out, NULL };
    stopwatch_t c = {};
    int rc = TR_KERNEL_OK;

    if (!product_valid(p) || m->n_shapes == SHAPES_MAX) {
        return TR_KERNEL_BADARG;
    }
    if (shape_find(m, p) != NULL) {
        return TR_KERNEL_OK;
    }
    shape.choice = (choice_t *) calloc(m->classes, sizeof(*shape.choice));
    if (shape.choice == NULL) {
        return tr_cuda_say("out of host memory");
    }
    c.weights = weights;
    c.n = n_weights;
    rc = n_weights != 0 ? watch_open(&c, s, p, timed_rows(m)) : TR_KERNEL_OK;
    rc = rc == TR_KERNEL_OK
             ? choose_all(s, m, p, n_weights != 0 ? &c : NULL, shape.choice)
             : rc;
    watch_close(&c);
    if (rc != TR_KERNEL_OK) {
        free(shape.choice);
        return rc;
    }
    m->shape[m->n_shapes++] = shape;
    return TR_KERNEL_OK;
}
