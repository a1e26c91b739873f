/*
 * Attention: the four launchers share a step's sequences out among them
 * (device.h); each computes those that are its own with the CPU
 * backend, in FP32, and leaves the outputs of all others as they are.
 */
#include "device.h"

typedef enum { DECODE, SCORE, PROMPT, BEHIND, GENERIC } path_t;

typedef struct {
    soft_view_t view;
    uint32_t layer;
    tr_rows_t rows;
    tr_cuda_queries_t queries;
    path_t path;
    uint32_t max_len;
    uint8_t *work;
    size_t work_bytes;
} attend_t;

/* ---- whose sequence ----------------------------------------------------- */

static bool
is_mine(const attend_t *a, uint32_t s)
{
    const tr_rows_t *rows = &a->rows;
    const tr_kv_seq_t *seq;
    int32_t slot = rows->seq_slot[s];
    uint32_t n = rows->seq_row[s + 1] - rows->seq_row[s], base, first;

    if (slot < 0 || n == 0) {
        return false;
    }
    seq = tr_kv_seq_of(&a->view.kv, slot, a->layer);
    base = seq->base;
    first = rows->row_pos[rows->seq_row[s]];
    switch (a->path) {
    case DECODE:
        return n == 1;
    case SCORE:
        return n == 1 && seq->scored;
    case PROMPT:
        return n > 1 && base == 0;
    case BEHIND:
        return n > 1 && base != 0 && first >= base;
    default:
        return first >= base || (n == 1 && first + 1 == base);
    }
}

/* The step without the others. */
typedef struct {
    tr_rows_t rows;
    uint32_t *row_pos, *seq_row, *from; /* from: row in the step */
    int32_t *seq_slot;
    int32_t slots; /* above all of them */
    uint32_t len;  /* of the longest */
} share_t;

static void
share_rows(const attend_t *a, share_t *out)
{
    const tr_rows_t *rows = &a->rows;
    uint32_t n = 0, seqs = 0;

    out->row_pos = soft_scratch(4ul * rows->n_rows);
    out->from = soft_scratch(4ul * rows->n_rows);
    out->seq_slot = soft_scratch(4ul * rows->n_seqs);
    out->seq_row = soft_scratch(4ul * (rows->n_seqs + 1));
    out->slots = 0;
    out->len = 0;
    for (uint32_t s = 0; s < rows->n_seqs; s++) {
        if (!is_mine(a, s)) {
            continue;
        }
        out->seq_row[seqs] = n;
        out->seq_slot[seqs++] = rows->seq_slot[s];
        if (rows->seq_slot[s] >= out->slots) {
            out->slots = rows->seq_slot[s] + 1;
        }
        for (uint32_t r = rows->seq_row[s]; r < rows->seq_row[s + 1]; r++) {
            out->row_pos[n] = rows->row_pos[r];
            out->len = out->len > rows->row_pos[r] ? out->len
                                                   : rows->row_pos[r] + 1;
            out->from[n++] = r;
        }
    }
    out->seq_row[seqs] = n;
    out->rows = (tr_rows_t){ n, seqs, out->row_pos, out->seq_slot,
                             out->seq_row };
}

/* Decode reads all pages, whatever a sequence says, and leaves scores to the
 * next layer's. */
static const tr_kv_seq_t *
read_all(const tr_kv_seq_t *seq, int32_t slots, bool scored)
{
    tr_kv_seq_t *copy = soft_scratch((size_t) slots * sizeof(*copy));

    memcpy(copy, seq, (size_t) slots * sizeof(*copy));
    for (int32_t i = 0; i < slots; i++) {
        copy[i].read_pages = 0;
        copy[i].scored = copy[i].scored && scored;
    }
    return copy;
}

/* ---- the body ----------------------------------------------------------- */

#define PLANNED 0x706c616e6e656421u

/* Where a decode step's workspace begins.  Behind it are the queries of the
 * layer: its scores are raised when those of the step are overwritten. */
typedef struct {
    uint64_t mark;
    uint32_t next; /* layer to be attended */
    bool unscored; /* the one before has scores that are to be raised */
    float scale;
    float q[];
} soft_decode_t;

/* The workspace is written from end to end, so that parts of memory that
 * overlap are noticed; but a plan must still be there when its layers come. */
static const char *
work_take(const attend_t *a)
{
    const soft_decode_t *d = (const soft_decode_t *) a->work;

    if (a->path == DECODE) {
        return d->mark != PLANNED    ? "a plan that is not there"
               : d->next != a->layer ? "layers that are not in their order"
                                     : NULL;
    }
    memset(a->work, 0xff, a->work_bytes);
    return NULL;
}

/* The queries of the share's rows as floats. */
static float *
take_queries(const attend_t *a, const share_t *mine, size_t width)
{
    float *in = soft_scratch(mine->rows.n_rows * width * 4);
    const tr_cuda_queries_t *q = &a->queries;
    soft_decode_t *d = (soft_decode_t *) a->work;

    for (uint32_t r = 0; r < mine->rows.n_rows; r++) {
        uint32_t from = mine->from[r];

        for (size_t i = 0; i < width; i++) {
            in[r * width + i] = tr_float_load(q->q, from * q->ldq + i,
                                              q->q_type);
        }
    }
    if (a->path == DECODE) {
        d->scale = q->scale;
        memcpy(d->q, in, mine->rows.n_rows * width * 4);
        for (uint32_t s = 0; s < mine->rows.n_seqs; s++) {
            d->unscored |= a->view.kv.seq[mine->rows.seq_slot[s]].scored;
        }
    }
    return in;
}

/* .. of those that are scored: the rows of a decode step are its sequences'. */
static float *
kept_queries(const attend_t *a, const share_t *mine, size_t width)
{
    float *in = soft_scratch(mine->rows.n_rows * width * 4);
    const soft_decode_t *d = (const soft_decode_t *) a->work;
    attend_t all = *a;
    share_t decoded;

    all.path = DECODE;
    share_rows(&all, &decoded);
    for (uint32_t r = 0, i = 0; r < mine->rows.n_rows; r++, i++) {
        while (decoded.from[i] != mine->from[r]) {
            i++;
        }
        memcpy(in + r * width, d->q + i * width, width * 4);
    }
    return in;
}

static int
run_cpu(const attend_t *a, const share_t *mine, const float *in, float scale,
        float *out)
{
    uint32_t heads = a->queries.heads;
    tr_kv_view_t kv = soft_view(&a->view);
    size_t width = (size_t) heads * kv.head_dim;
    const tr_kernels_t *cpu = soft_cpu();
    size_t bytes = cpu->attention_work(&soft_cpu_stream, mine->rows.n_rows,
                                       mine->rows.n_seqs, mine->len, heads,
                                       kv.kv_heads, kv.head_dim);

    if (a->path == DECODE || a->path == SCORE) {
        kv.seq = read_all(kv.seq, mine->slots, a->path == SCORE);
    }
    return cpu->attention(&soft_cpu_stream, &kv, a->layer, &mine->rows, in,
                          width, heads, scale, out, width, soft_scratch(bytes));
}

/* The scores of a decode step's layer: attention once more. */
static const char *
raise_scores(const attend_t *decode, uint32_t layer)
{
    size_t width = (size_t) decode->queries.heads * decode->view.kv.head_dim;
    soft_decode_t *d = (soft_decode_t *) decode->work;
    attend_t a = *decode;
    share_t mine;

    a.path = SCORE;
    a.layer = layer;
    share_rows(&a, &mine);
    if (mine.rows.n_rows > 0
        && run_cpu(&a, &mine, kept_queries(&a, &mine, width), d->scale,
                   soft_scratch(mine.rows.n_rows * width * 4))
               != 0) {
        return "scores refused by the CPU backend";
    }
    d->unscored = false;
    return NULL;
}

static void
attend(void *args)
{
    const attend_t *a = args;
    const tr_cuda_queries_t *q = &a->queries;
    size_t width = (size_t) q->heads * a->view.kv.head_dim;
    soft_decode_t *d = (soft_decode_t *) a->work;
    const char *why = work_take(a);
    float *in, *out;
    share_t mine;

    share_rows(a, &mine);
    if (why == NULL && mine.len > a->max_len) {
        why = "a sequence longer than its workspace";
    }
    if (why == NULL && a->path == DECODE) {
        if (d->unscored) {
            why = raise_scores(a, a->layer - 1);
        }
        d->next = a->layer + 1;
    }
    if (why != NULL) {
        soft_fault("attention", why);
        return;
    }
    if (mine.rows.n_rows == 0) {
        return;
    }
    in = take_queries(a, &mine, width);
    out = soft_scratch(mine.rows.n_rows * width * 4);
    if (run_cpu(a, &mine, in, q->scale, out) != 0) {
        soft_fault("attention", "refused by the CPU backend");
        return;
    }
    for (uint32_t r = 0; r < mine.rows.n_rows; r++) {
        for (size_t i = 0; i < width; i++) {
            tr_float_store(q->out, mine.from[r] * q->ldo + i, q->out_type,
                           out[r * width + i]);
        }
    }
}

/* The last layer's. */
static void
score(void *args)
{
    const attend_t *a = args;
    soft_decode_t *d = (soft_decode_t *) a->work;
    const char *why = d->mark != PLANNED || d->next != a->layer + 1
                          ? "scores of a layer that was not attended last"
                          : NULL;

    if (why == NULL) {
        why = raise_scores(a, a->layer);
        d->next = 0; /* the plan may be used again */
    }
    if (why != NULL) {
        soft_fault("decode_score", why);
    }
}

/* ---- launchers ---------------------------------------------------------- */

static bool
aligned(const void *p, size_t to)
{
    return p != NULL && (uintptr_t) p % to == 0;
}

/* What all three ask of their arguments. */
static bool
allowed(const tr_kv_view_t *kv, uint32_t layer, const tr_cuda_queries_t *q,
        const void *work)
{
    uint32_t group = kv->kv_heads ? q->heads / kv->kv_heads : 0;
    size_t row = (size_t) q->heads * kv->head_dim;

    return layer < kv->layers && group > 0 && group * kv->kv_heads == q->heads
           && group <= TR_GROUP_MAX && q->ldq >= row && q->ldo >= row
           && kv->head_dim > 0 && kv->head_dim <= TR_HEAD_DIM_MAX
           && kv->head_dim % 16 == 0 && aligned(work, 256);
}

/* .. and the fast ones: some only uncompressed tokens without scores. */
static bool
fast(const tr_kv_view_t *kv, const tr_cuda_queries_t *q)
{
    const bool plain = kv->n_layouts == 1 && !kv->layout[0].level.scored;
    const uint32_t group = q->heads / kv->kv_heads;

    return (kv->head_dim == 256 ? plain && group <= 8
                                : (kv->head_dim == 64 || kv->head_dim == 128)
                                      && group <= (plain ? 16u : 8u))
           && aligned(q->q, 16) && aligned(q->out, 16) && q->ldq % 8 == 0
           && q->ldo % 8 == 0;
}

static int
launch(const tr_cuda_stream_t *s, attend_t *a, const tr_kv_view_t *kv,
       soft_body_f body, const char *name)
{
    if (!soft_view_keep(&a->view, kv)) {
        return TR_KERNEL_BADARG;
    }
    if (a->rows.n_rows == 0 || a->rows.n_seqs == 0) {
        return TR_KERNEL_OK;
    }
    return soft_launch(s, name, body, a, sizeof(*a));
}

static size_t
work_bytes(uint32_t rows, uint32_t heads, uint32_t head_dim)
{
    return tr_pad(1024 + (size_t) rows * heads * (head_dim + 2), 256);
}

size_t
tr_cuda_decode_work(const tr_device_props_t *d,
                    const tr_cuda_decode_size_t *size)
{
    size_t q = (size_t) size->max_seqs * size->heads * size->head_dim;

    (void) d;
    return tr_pad(sizeof(soft_decode_t) + q * sizeof(float), 256);
}

static bool
levels_allowed(const tr_kv_view_t *kv)
{
    for (uint32_t i = 0; i < kv->n_layouts; i++) {
        if (!tr_cuda_decode_level(&kv->layout[i].level)) {
            return false;
        }
    }
    return true;
}

static bool
decode_allowed(const tr_kv_view_t *kv, const tr_rows_t *rows,
               const tr_cuda_decode_size_t *size)
{
    return rows->n_seqs <= size->max_seqs && kv->kv_heads == size->kv_heads
           && kv->kv_heads > 0 && kv->head_dim == size->head_dim
           && size->layers >= kv->layers && size->page_tokens > 0
           && size->max_tokens > 0 && kv->n_layouts <= TR_KV_LAYOUTS_MAX
           && levels_allowed(kv);
}

typedef struct {
    uint8_t *work;
    size_t bytes;
} plan_t;

static void
plan(void *args)
{
    const plan_t *a = args;
    soft_decode_t *d = (soft_decode_t *) a->work;

    memset(a->work, 0xff, a->bytes);
    d->mark = PLANNED;
    d->next = 0;
    d->unscored = false;
}

int
tr_cuda_decode_plan(const tr_cuda_stream_t *s, const tr_kv_view_t *kv,
                    const tr_rows_t *rows, const tr_cuda_decode_size_t *size,
                    void *work)
{
    plan_t a = { work, tr_cuda_decode_work(s->device, size) };

    if (rows->n_seqs == 0) {
        return TR_KERNEL_OK;
    }
    if (!decode_allowed(kv, rows, size) || !aligned(work, 256)) {
        return TR_KERNEL_BADARG;
    }
    return soft_launch(s, "decode_plan", plan, &a, sizeof(a));
}

int
tr_cuda_decode(const tr_cuda_stream_t *s, const tr_kv_view_t *kv,
               uint32_t layer, const tr_rows_t *rows,
               const tr_cuda_queries_t *queries,
               const tr_cuda_decode_size_t *size, void *work)
{
    attend_t a = { .layer = layer,
                   .rows = *rows,
                   .queries = *queries,
                   .path = DECODE,
                   .max_len = (uint32_t) size->max_tokens,
                   .work = work,
                   .work_bytes = tr_cuda_decode_work(s->device, size) };

    if (rows->n_seqs == 0) {
        return TR_KERNEL_OK;
    }
    if (!allowed(kv, layer, queries, work) || !fast(kv, queries)
        || queries->heads != size->heads || !decode_allowed(kv, rows, size)) {
        return TR_KERNEL_BADARG;
    }
    return launch(s, &a, kv, attend, "decode");
}

int
tr_cuda_decode_score(const tr_cuda_stream_t *s, const tr_kv_view_t *kv,
                     const tr_rows_t *rows, const tr_cuda_decode_size_t *size,
                     void *work)
{
    attend_t a = { .layer = kv->layers - 1,
                   .rows = *rows,
                   .queries = { .heads = size->heads },
                   .path = SCORE,
                   .work = work };

    if (rows->n_seqs == 0) {
        return TR_KERNEL_OK;
    }
    if (!aligned(work, 256) || !decode_allowed(kv, rows, size)) {
        return TR_KERNEL_BADARG;
    }
    return launch(s, &a, kv, score, "decode_score");
}

size_t
tr_cuda_prompt_work(const tr_cuda_prompt_size_t *size)
{
    return work_bytes(size->max_rows, size->heads, size->head_dim);
}

static int
launch_prompt(const tr_cuda_stream_t *s, const tr_kv_view_t *kv, uint32_t layer,
              const tr_rows_t *rows, const tr_cuda_queries_t *queries,
              const tr_cuda_prompt_size_t *size, void *work, path_t path)
{
    attend_t a = { .layer = layer,
                   .rows = *rows,
                   .queries = *queries,
                   .path = path,
                   .max_len = size->max_len,
                   .work = work,
                   .work_bytes = tr_cuda_prompt_work(size) };

    if (!allowed(kv, layer, queries, work) || !fast(kv, queries)
        || kv->kv_heads != size->kv_heads || kv->head_dim != size->head_dim
        || queries->heads != size->heads || rows->n_rows > size->max_rows
        || rows->n_seqs > size->max_seqs || size->max_len == 0
        || size->path >= TR_PROMPT_PATHS || !(queries->scale > 0)
        || kv->layout[0].tokens % 8 != 0) {
        return TR_KERNEL_BADARG;
    }
    return launch(s, &a, kv, attend,
                  path == PROMPT ? "prompt" : "prompt_behind");
}

int
tr_cuda_prompt(const tr_cuda_stream_t *s, const tr_kv_view_t *kv,
               uint32_t layer, const tr_rows_t *rows,
               const tr_cuda_queries_t *queries,
               const tr_cuda_prompt_size_t *size, void *work)
{
    return launch_prompt(s, kv, layer, rows, queries, size, work, PROMPT);
}

/* What the host says of the sequences is to be what the device finds; the
 * scratch holds one KV head of each. */
int
tr_cuda_prompt_behind(const tr_cuda_stream_t *s, const tr_kv_view_t *kv,
                      uint32_t layer, const tr_rows_t *rows,
                      const uint32_t *base, const tr_cuda_queries_t *queries,
                      const tr_cuda_prompt_size_t *size, void *work)
{
    for (uint32_t i = 0; i < rows->n_seqs; i++) {
        if (tr_cuda_context_rows(base[i]) > size->context) {
            return TR_KERNEL_BADARG;
        }
    }
    return kv->reach != NULL
               ? TR_KERNEL_BADARG
               : launch_prompt(s, kv, layer, rows, queries, size, work, BEHIND);
}

size_t
tr_cuda_attention_work(const tr_cuda_generic_size_t *size)
{
    return work_bytes(size->max_rows, size->heads, size->head_dim);
}

int
tr_cuda_attention(const tr_cuda_stream_t *s, const tr_kv_view_t *kv,
                  uint32_t layer, const tr_rows_t *rows,
                  const tr_cuda_queries_t *queries,
                  const tr_cuda_generic_size_t *size, void *work)
{
    attend_t a = { .layer = layer,
                   .rows = *rows,
                   .queries = *queries,
                   .path = GENERIC,
                   .max_len = size->max_len,
                   .work = work,
                   .work_bytes = tr_cuda_attention_work(size) };

    if (!allowed(kv, layer, queries, work) || rows->n_seqs > size->max_seqs
        || rows->n_seqs > rows->n_rows || rows->n_rows > size->max_rows
        || kv->kv_heads != size->kv_heads || kv->head_dim != size->head_dim
        || queries->heads != size->heads) {
        return TR_KERNEL_BADARG;
    }
    return launch(s, &a, kv, attend, "attention");
}
