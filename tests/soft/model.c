/*
 * What a forward pass computes beside attention and products, and sampling: the
 * references of the CUDA kernels' tests, as launches.
 */
#include "device.h"

#include "tests/gpu/model/model_reference.h"

static void
must(int rc, const char *name)
{
    if (rc != TR_KERNEL_OK) {
        soft_fault(name, "refused by its reference");
    }
}

/* ---- those with one struct ---------------------------------------------- */

static void
embed(void *args)
{
    must(tr_ref_embed(args), "embed");
}

int
tr_cuda_embed(const tr_cuda_stream_t *s, const tr_cuda_embed_t *a)
{
    return soft_launch(s, "embed", embed, a, sizeof(*a));
}

static void
norm(void *args)
{
    must(tr_ref_norm(args), "norm");
}

int
tr_cuda_norm(const tr_cuda_stream_t *s, const tr_cuda_norm_t *a)
{
    return soft_launch(s, "norm", norm, a, sizeof(*a));
}

static void
pool(void *args)
{
    must(tr_ref_pool(args), "pool");
}

int
tr_cuda_pool(const tr_cuda_stream_t *s, const tr_cuda_pool_t *a)
{
    return soft_launch(s, "pool", pool, a, sizeof(*a));
}

static void
qkv(void *args)
{
    must(tr_ref_qkv(args), "qkv");
}

int
tr_cuda_qkv(const tr_cuda_stream_t *s, const tr_cuda_qkv_t *a)
{
    return soft_launch(s, "qkv", qkv, a, sizeof(*a));
}

static void
row_norm(void *args)
{
    must(tr_ref_row_norm(args), "row_norm");
}

int
tr_cuda_row_norm(const tr_cuda_stream_t *s, const tr_cuda_qkv_t *a)
{
    return soft_launch(s, "row_norm", row_norm, a, sizeof(*a));
}

static void
rope_angles(void *args)
{
    must(tr_ref_rope_angles(args), "rope_angles");
}

int
tr_cuda_rope_angles(const tr_cuda_stream_t *s, const tr_cuda_angles_t *a)
{
    return soft_launch(s, "rope_angles", rope_angles, a, sizeof(*a));
}

static void
sample(void *args)
{
    const tr_cuda_sample_t *a = args;

    memset(a->work, 0xff, tr_cuda_sample_work(NULL, a->rows, a->vocab));
    must(tr_ref_sample(a), "sample");
}

int
tr_cuda_sample(const tr_cuda_stream_t *s, const tr_cuda_sample_t *a)
{
    if ((uintptr_t) a->work % 256 != 0) {
        return TR_KERNEL_BADARG;
    }
    return soft_launch(s, "sample", sample, a, sizeof(*a));
}

size_t
tr_cuda_sample_work(const tr_device_props_t *d, uint32_t rows, uint32_t vocab)
{
    (void) d;
    return tr_pad(1024 + (size_t) rows * vocab, 256);
}

/* ---- the others --------------------------------------------------------- */

typedef struct {
    const void *x;
    void *out;
    size_t ldx, ldo;
    uint32_t rows, n;
    tr_dtype_t type;
    tr_act_t act;
} act_mul_t;

static void
act_mul(void *args)
{
    const act_mul_t *a = args;

    must(tr_ref_act_mul(a->act, a->x, a->ldx, a->rows, a->n, a->type, a->out,
                        a->ldo),
         "act_mul");
}

int
tr_cuda_act_mul(const tr_cuda_stream_t *s, tr_act_t act, const void *x,
                size_t ldx, uint32_t rows, uint32_t n, tr_dtype_t type,
                void *out, size_t ldo)
{
    act_mul_t a = { x, out, ldx, ldo, rows, n, type, act };

    return tr_cuda_has_act(TR_CUDA_ACTS, act)
               ? soft_launch(s, "act_mul", act_mul, &a, sizeof(a))
               : TR_KERNEL_BADARG;
}

static void
keep_rows(void *args)
{
    const tr_cuda_keep_rows_t *a = args;

    must(tr_ref_keep_rows(a), "keep_rows");
}

int
tr_cuda_keep_rows(const tr_cuda_stream_t *s, const tr_cuda_keep_rows_t *a)
{
    return a->n % 8 == 0 && a->row_bytes >= 2ull * a->n && a->layer < a->layers
               ? soft_launch(s, "keep_rows", keep_rows, (void *) (uintptr_t) a,
                             sizeof(*a))
               : TR_KERNEL_BADARG;
}

typedef struct {
    float *x;
    size_t ldx;
    uint32_t rows, n;
    float scale, cap;
} scale_cap_t;

static void
scale_cap(void *args)
{
    const scale_cap_t *a = args;

    must(tr_ref_scale_cap(a->x, a->ldx, a->rows, a->n, a->scale, a->cap),
         "scale_cap");
}

int
tr_cuda_scale_cap(const tr_cuda_stream_t *s, float *x, size_t ldx,
                  uint32_t rows, uint32_t n, float scale, float cap)
{
    scale_cap_t a = { x, ldx, rows, n, scale, cap };

    return soft_launch(s, "scale_cap", scale_cap, &a, sizeof(a));
}

typedef struct {
    const int32_t *slot;
    const uint8_t *kind;
    int32_t *out;
    uint32_t n;
    uint8_t wanted;
} select_t;

static void
choose(void *args)
{
    const select_t *a = args;

    must(tr_ref_select(a->slot, a->kind, a->n, a->wanted, a->out), "select");
}

int
tr_cuda_select(const tr_cuda_stream_t *s, const int32_t *slot,
               const uint8_t *kind, uint32_t n, uint8_t wanted, int32_t *out)
{
    select_t a = { slot, kind, out, n, wanted };

    return soft_launch(s, "select", choose, &a, sizeof(a));
}

typedef struct {
    void *x;
    const void *from;
    size_t n;
    tr_dtype_t type, from_type;
    uint64_t seed, first;
    float sd;
} fill_t;

static size_t
bytes_of(const fill_t *a)
{
    return a->n * tr_dtype_size(a->type);
}

static void
fill_random(void *args)
{
    const fill_t *a = args;

    must(tr_ref_fill_random(a->x, a->n, a->type, a->seed, a->first, a->sd),
         "fill_random");
    soft_written(a->x, bytes_of(a));
}

int
tr_cuda_fill_random(const tr_cuda_stream_t *s, void *x, size_t n,
                    tr_dtype_t type, uint64_t seed, uint64_t first, float sd)
{
    fill_t a = {
        .x = x, .n = n, .type = type, .seed = seed, .first = first, .sd = sd
    };

    return soft_launch(s, "fill_random", fill_random, &a, sizeof(a));
}

static void
convert(void *args)
{
    const fill_t *a = args;

    must(tr_ref_convert(a->from, a->from_type, a->x, a->type, a->n), "convert");
    soft_written(a->x, bytes_of(a));
}

int
tr_cuda_convert(const tr_cuda_stream_t *s, const void *from,
                tr_dtype_t from_type, void *to, tr_dtype_t to_type, size_t n)
{
    fill_t a = {
        .x = to, .from = from, .n = n, .type = to_type, .from_type = from_type
    };

    return soft_launch(s, "convert", convert, &a, sizeof(a));
}
