/*
 * What writes the cache, by the CPU backend.
 *
 * A step is stored head by head, through a view of one head alone, because what
 * the CPU backend refuses as a whole, the device refuses for that head.  Moves
 * that were done before are taken out of what the CPU backend is told.
 */
#include "device.h"

#include "kernels/cpu/kv/kv_store.h"

typedef struct {
    soft_view_t view;
    uint32_t layer;
    tr_rows_t rows;
    tr_cuda_keys_t in;
    uint32_t *refused;
} append_t;

/* One head as a cache of its own: slot 0, layer 0, KV head 0. */
typedef struct {
    tr_kv_view_t kv;
    tr_kv_move_t move;
    size_t head;
    const tr_kv_seq_t *seq;
} head_t;

static head_t
head_of(const tr_kv_view_t *kv, int32_t slot, uint32_t layer, uint32_t kv_head)
{
    head_t h = { .kv = *kv, .head = tr_kv_head(kv, slot, layer, kv_head) };

    h.seq = tr_kv_seq_of(kv, slot, layer);
    memset(h.kv.slides, 0, sizeof(h.kv.slides));
    h.kv.layers = h.kv.kv_heads = 1;
    h.kv.tables += h.head * kv->table_len;
    h.kv.seq = h.seq;
    h.kv.count += h.head * TR_KV_TIERS_MAX;
    h.kv.candidate += h.head * TR_KV_TIERS_MAX;
    h.move = kv->move[h.head];
    return h;
}

static void
refuse(const append_t *a, uint32_t n)
{
    if (a->refused != NULL) {
        *a->refused += n;
    }
}

/* ---- tokens ------------------------------------------------------------- */

/* The step's keys and values in FP32, of the same shape without gaps. */
typedef struct {
    float *k, *v;
    size_t ld;
} numbers_t;

static numbers_t
numbers_of(const append_t *a)
{
    const tr_cuda_keys_t *in = &a->in;
    numbers_t x = { .ld = (size_t) a->view.kv.kv_heads * a->view.kv.head_dim };

    x.k = soft_scratch(a->rows.n_rows * x.ld * 4);
    x.v = soft_scratch(a->rows.n_rows * x.ld * 4);
    for (uint32_t r = 0; r < a->rows.n_rows; r++) {
        for (size_t i = 0; i < x.ld; i++) {
            x.k[r * x.ld + i] = tr_float_load(in->k, r * in->ld + i, in->type);
            x.v[r * x.ld + i] = tr_float_load(in->v, r * in->ld + i, in->type);
        }
    }
    return x;
}

/* Rows [row, row + n) of a sequence into one head. */
static bool
store_rows(const append_t *a, head_t *h, const numbers_t *x, uint32_t kv_head,
           uint32_t row, uint32_t n)
{
    uint32_t dim = h->kv.head_dim;
    size_t at = row * x->ld + (size_t) kv_head * dim;
    int32_t slot = 0;
    uint32_t seq_row[2] = { 0, n };
    tr_rows_t rows = { n, 1, a->rows.row_pos + row, &slot, seq_row };

    h->kv.move = &h->move;
    return soft_cpu()->kv_append(&soft_cpu_stream, &h->kv, 0, &rows, x->k + at,
                                 x->v + at, x->ld,
                                 a->in.angles == NULL
                                     ? NULL
                                     : a->in.angles + (size_t) row * dim)
           == 0;
}

static void
append_head(const append_t *a, const tr_kv_view_t *kv, const numbers_t *x,
            uint32_t seq, uint32_t kv_head)
{
    uint32_t row = a->rows.seq_row[seq], n = a->rows.seq_row[seq + 1] - row;
    head_t h = head_of(kv, a->rows.seq_slot[seq], a->layer, kv_head);

    if (a->in.moved && a->rows.row_pos[row] < h.seq->base) {
        h.move.candidate_from = TR_KV_STAYS;
        if (h.seq->window > 0) {
            h.move.to = TR_KV_STAYS;
        }
    }
    if (store_rows(a, &h, x, kv_head, row, n)) {
        return;
    }
    for (uint32_t i = 0; i < n; i++) { /* those that have a place */
        if (n == 1 || a->rows.row_pos[row + i] < h.seq->base
            || !store_rows(a, &h, x, kv_head, row + i, 1)) {
            refuse(a, 1);
        }
    }
}

static void
append(void *args)
{
    const append_t *a = args;
    tr_kv_view_t kv = soft_view(&a->view);
    numbers_t x = numbers_of(a);

    for (uint32_t s = 0; s < a->rows.n_seqs; s++) {
        for (uint32_t l = 0; a->rows.seq_slot[s] >= 0 && l < kv.kv_heads; l++) {
            if (a->rows.seq_row[s + 1] > a->rows.seq_row[s]) {
                append_head(a, &kv, &x, s, l);
            }
        }
    }
}

/* ---- moves -------------------------------------------------------------- */

/* The CPU backend knows no move without its token: a token of zeros comes along,
 * and kv_append puts the right one in its place. */
static void
moves_head(const append_t *a, const tr_kv_view_t *kv, uint32_t seq,
           uint32_t layer, uint32_t kv_head)
{
    static const float zeros[TR_HEAD_DIM_MAX];
    uint32_t row = a->rows.seq_row[seq], n = a->rows.seq_row[seq + 1] - row;
    head_t h = head_of(kv, a->rows.seq_slot[seq], layer, kv_head);
    uint32_t seq_row[2] = { 0, 1 };
    int32_t slot = 0;
    tr_rows_t rows = { 1, 1, a->rows.row_pos + row, &slot, seq_row };

    if (n == 0 || a->rows.row_pos[row] >= h.seq->base) {
        return;
    }
    h.kv.move = &h.move;
    if (n > 1
        || soft_cpu()->kv_append(&soft_cpu_stream, &h.kv, 0, &rows, zeros,
                                 zeros, kv->head_dim, zeros)
               != 0) {
        refuse(a, n);
    }
}

static void
moves(void *args)
{
    const append_t *a = args;
    tr_kv_view_t kv = soft_view(&a->view);

    for (uint32_t s = 0; s < a->rows.n_seqs; s++) {
        uint32_t heads = a->rows.seq_slot[s] >= 0 ? kv.layers * kv.kv_heads : 0;

        for (uint32_t i = 0; i < heads; i++) {
            moves_head(a, &kv, s, i / kv.kv_heads, i % kv.kv_heads);
        }
    }
}

static int
launch(const tr_cuda_stream_t *s, append_t *a, const tr_kv_view_t *kv,
       const char *name, soft_body_f body)
{
    if (kv->head_dim == 0 || kv->head_dim > TR_HEAD_DIM_MAX || kv->head_dim % 16
        || kv->kv_heads == 0 || !soft_view_keep(&a->view, kv)) {
        return TR_KERNEL_BADARG;
    }
    if (a->rows.n_rows == 0 || a->rows.n_seqs == 0) {
        return TR_KERNEL_OK;
    }
    return soft_launch(s, name, body, a, sizeof(*a));
}

int
tr_cuda_kv_moves(const tr_cuda_stream_t *s, const tr_kv_view_t *kv,
                 const tr_rows_t *rows, bool beside, uint32_t *refused)
{
    append_t a = { .rows = *rows, .refused = refused };

    (void) beside;
    return launch(s, &a, kv, "kv_moves", moves);
}

int
tr_cuda_kv_append(const tr_cuda_stream_t *s, const tr_kv_view_t *kv,
                  uint32_t layer, const tr_rows_t *rows,
                  const tr_cuda_keys_t *in, uint32_t *refused)
{
    append_t a = {
        .layer = layer, .rows = *rows, .in = *in, .refused = refused
    };

    int rc = TR_KERNEL_OK;

    if (in->ld < (size_t) kv->kv_heads * kv->head_dim || layer >= kv->layers) {
        return TR_KERNEL_BADARG;
    }
    if (in->heads != NULL) {
        rc = tr_cuda_qkv(s, in->heads);
    }
    return rc == TR_KERNEL_OK ? launch(s, &a, kv, "kv_append", append) : rc;
}

/* ---- compression -------------------------------------------------------- */

typedef struct {
    soft_view_t view;
    const tr_kv_compress_t *jobs;
    uint32_t n;
    uint32_t *refused;
    uint8_t *work;
    size_t work_bytes;
} compress_t;

static void
compress(void *args)
{
    const compress_t *a = args;
    tr_kv_view_t kv = soft_view(&a->view);
    void *work = soft_scratch(
        soft_cpu()->kv_compress_work(&soft_cpu_stream, kv.head_dim));

    memset(a->work, 0xff, a->work_bytes);
    for (uint32_t i = 0; i < a->n; i++) {
        const tr_kv_compress_t *c = &a->jobs[i];

        if (c->first_layer == 0) {
            a->refused[i] = 0;
        }
        if (c->slot < 0) {
            continue;
        }
        a->refused[i] |= soft_cpu()->kv_compress(&soft_cpu_stream, &kv, c, work)
                         != 0;
    }
}

size_t
tr_cuda_kv_compress_work(const tr_kv_view_t *kv, uint32_t n, uint32_t max_len)
{
    return tr_pad((size_t) n * kv->layers * kv->kv_heads * (16 + max_len * 4ul),
                  256);
}

int
tr_cuda_kv_compress(const tr_cuda_stream_t *s, const tr_kv_view_t *kv,
                    const tr_kv_compress_t *jobs, uint32_t n, uint32_t layers,
                    uint32_t max_len, uint32_t *refused, void *work)
{
    compress_t a = { .jobs = jobs, .n = n, .refused = refused, .work = work };

    if (kv->head_dim == 0 || kv->head_dim > TR_HEAD_DIM_MAX || kv->head_dim % 16
        || kv->layers * kv->kv_heads == 0 || kv->layers * kv->kv_heads > 32767
        || n > 65535 || layers == 0 || layers > kv->layers || refused == NULL
        || !soft_view_keep(&a.view, kv)) {
        return TR_KERNEL_BADARG;
    }
    if (n == 0) {
        return TR_KERNEL_OK;
    }
    a.work_bytes = tr_cuda_kv_compress_work(kv, n, max_len);
    return soft_launch(s, "kv_compress", compress, &a, sizeof(a));
}

/* ---- what it changed ---------------------------------------------------- */

typedef struct {
    soft_view_t view;
    const tr_kv_compress_t *jobs;
    uint32_t n;
    const uint32_t *refused;
    tr_cuda_kv_compare_t q;
} compare_t;

/* Queries as the CPU has them. */
static const float *
queries_of(const tr_cuda_kv_compare_t *q, uint32_t row_floats, size_t layer)
{
    float *out = soft_scratch(q->n_layers * layer * sizeof(*out));

    for (uint32_t i = 0; i < q->n_layers * q->n; i++) {
        uint32_t l = i / q->n, r = i % q->n;

        for (uint32_t k = 0; k < row_floats; k++) {
            out[l * layer + (size_t) r * row_floats + k] = tr_float_load(
                q->q, ((size_t) l * q->rows + r) * q->ld + k, q->type);
        }
    }
    return out;
}

static void
compare(void *args)
{
    const compare_t *a = args;
    tr_kv_view_t kv = soft_view(&a->view);
    uint32_t row = a->q.heads * kv.head_dim;
    tr_kv_compare_t q = { .n_layers = a->q.n_layers,
                          .layer = a->q.layer,
                          .first = a->q.first,
                          .n = a->q.n,
                          .heads = a->q.heads,
                          .scale = a->q.scale,
                          .ld = (size_t) a->q.n * row,
                          .sinks = kv.sinks,
                          .change = a->q.change };

    memset(q.change, 0,
           (size_t) q.n_layers * kv.kv_heads * kv.head_dim * sizeof(*q.change));
    q.q = queries_of(&a->q, row, q.ld);
    for (uint32_t i = 0; i < a->n; i++) {
        if (a->jobs[i].slot == a->q.slot && a->refused[i] == 0) {
            void *work = soft_scratch(
                soft_cpu()->kv_compare_work(&soft_cpu_stream, q.n, q.heads,
                                            kv.kv_heads, kv.head_dim));

            soft_cpu()->kv_compare(&soft_cpu_stream, &kv, &a->jobs[i], &q,
                                   work);
        }
    }
}

int
tr_cuda_kv_compare(const tr_cuda_stream_t *s, const tr_kv_view_t *kv,
                   const tr_kv_compress_t *jobs, uint32_t n, uint32_t max_len,
                   uint32_t *refused, const tr_cuda_kv_compare_t *q, void *work)
{
    compare_t a = { .jobs = jobs, .n = n, .refused = refused, .q = *q };

    (void) max_len;
    if (kv->head_dim == 0 || kv->head_dim > TR_HEAD_DIM_MAX || work == NULL
        || q->n_layers > TR_CUDA_COMPARE_LAYERS || q->n == 0 || q->n > q->rows
        || q->heads == 0 || q->heads % kv->kv_heads != 0
        || q->ld < (size_t) q->heads * kv->head_dim
        || (q->type != TR_F16 && q->type != TR_BF16)
        || !soft_view_keep(&a.view, kv)) {
        return TR_KERNEL_BADARG;
    }
    return soft_launch(s, "kv_compare", compare, &a, sizeof(a));
}
