/*
 * device.h: the device's interface, tr_device_t: everything that the engine
 * asks of a GPU, from memory and streams to the kernels of a forward pass.  The
 * host backend's interface is kernels/kernels.h.
 *
 * The engine links no CUDA.  `backend cuda` loads a library and takes one table
 * of functions from it (tr_device, at the end of this header), so that one
 * binary serves machines with and without a GPU.  Three libraries implement the
 * table:
 *
 *   kernels/cuda   libtokenring_cuda.so: CUDA kernels, for the GPU
 *   tests/simt     the same kernels, compiled for a device in software
 *   tests/soft     computes through the CPU backend, in the order of its
 *                  streams but later, as a device does; for end-to-end tests
 *
 * Every entry is declared and described here, by subject, as the function
 * tr_cuda_<entry>; those of the manager of pages are in device_manager.h, those of
 * experts in device_experts.h, those of sampling in device_sampling.h.
 *
 *   device and memory    open, info, memory, streams, copies, events, graphs
 *   matrix products      matmul (cuBLASLt), small_gemm
 *   layers               embedding, norms, RoPE, activation, conversions
 *   experts              who goes to whom, grouped products, their sum
 *   attention            decode, prompt, and the fallback for everything else
 *   KV cache             append, moves, compress, swap, pages
 *   sampling             logits to tokens
 *
 * Launchers take a stream, check what they can see from the host, return
 * TR_KERNEL_OK, TR_KERNEL_BADARG or TR_CUDA_FAILED (tr_cuda_reason says why),
 * and neither allocate nor synchronise; they can be captured into a CUDA graph.
 * Arrays are device memory unless said otherwise (of a view: reach and sinks,
 * too, and what sinks point to), and borrowed until the launch
 * has run; a view's layouts are read on the host during the call.  Functions
 * said to be "host" may wait for the device: they belong to opening and
 * closing, never to a step.
 */
#ifndef TR_CUDA_DEVICE_H
#define TR_CUDA_DEVICE_H

#include "kernels/act.h"
#include "kernels/cuda/device_experts.h"
#include "kernels/cuda/device_manager.h"
#include "kernels/cuda/device_sampling.h"
#include "kernels/cuda/launch_types.h"
#include "kernels/weight_form.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- device and memory ----------------------------------------------------
 *
 * Thin: each function is one or two calls of the CUDA runtime.  Functions that
 * return memory return NULL when there is none.
 */

/* Makes the calling thread's current device ready; 0 or TR_CUDA_FAILED. */
int tr_cuda_open(int ordinal, tr_device_props_t *out);

/* What the runtime said last, of this thread. */
const char *tr_cuda_reason(void);

/* What a device says of itself. */
typedef struct {
    char name[128];
    uint64_t memory, free_memory; /* bytes */
    uint32_t major, minor;        /* compute capability */
    uint32_t driver, runtime; /* 1000 * major + 10 * minor; driver 0: none */
} tr_cuda_device_info_t;

/* Also answers for a machine without a driver, a device, or such an ordinal:
 * TR_CUDA_FAILED, a reason that a user understands, and *out as far as
 * known. */
int tr_cuda_device_info(int ordinal, tr_cuda_device_info_t *out);

/* Can anything still run after a failure?  False after a kernel's fault or when
 * the device has gone: the process must end. */
bool tr_cuda_alive(void);

/* Device memory, 256-byte aligned, not cleared. */
void *tr_cuda_alloc(size_t bytes);
void tr_cuda_release(void *p);

/* Host memory that the device reads and writes directly. */
void *tr_cuda_pin(size_t bytes);
void tr_cuda_unpin(void *p);

/* device: borrowed for the stream's lifetime. */
int tr_cuda_stream_open(const tr_device_props_t *device, tr_cuda_stream_t *out);
void tr_cuda_stream_close(tr_cuda_stream_t *s);
/* Host: until all is done; how a failed kernel is heard of.  Not while a graph
 * is captured, which would then be none; nor is memory asked for. */
int tr_cuda_stream_wait(const tr_cuda_stream_t *s);

/* In the stream's order.  Host memory is pinned, and must stay as it is until
 * the copy has run. */
int tr_cuda_copy(const tr_cuda_stream_t *s, void *to, const void *from,
                 size_t bytes);
int tr_cuda_fill(const tr_cuda_stream_t *s, void *to, int byte, size_t bytes);
/* As tr_cuda_copy, for little that stands between two kernels: from pinned
 * memory to the device's, and back.  Both at multiples of 16 bytes, bytes a
 * multiple of 4, else TR_KERNEL_BADARG.  fetch: what is read is there when this
 * is called; what is in front may still run when it is read, so nothing on the
 * device writes it. */
int tr_cuda_fetch(const tr_cuda_stream_t *s, void *to, const void *from,
                  size_t bytes);
int tr_cuda_send(const tr_cuda_stream_t *s, void *to, const void *from,
                 size_t bytes);

/* A point in a stream. */
int tr_cuda_event_open(void **event);
void tr_cuda_event_close(void *event);
int tr_cuda_event_record(const tr_cuda_stream_t *s, void *event);
/* 1: passed, 0: not yet, TR_CUDA_FAILED. */
int tr_cuda_event_passed(void *event);
/* Waits without burning a core for longer than a few microseconds. */
int tr_cuda_event_wait(void *event);
/* Microseconds between two events that have passed; they keep their times. */
int tr_cuda_event_time(void *from, void *to, double *us);
/* What is launched in s after this waits for it. */
int tr_cuda_event_follow(const tr_cuda_stream_t *s, void *event);

/* What is launched between begin and end becomes a graph instead of running.
 * Pointers and shapes are those of the capture.  A stream that follows an event
 * of the graph becomes a branch of it, until the first stream has followed it
 * back. end: host. */
int tr_cuda_graph_begin(const tr_cuda_stream_t *s);
int tr_cuda_graph_end(const tr_cuda_stream_t *s, void **graph);
int tr_cuda_graph_launch(const tr_cuda_stream_t *s, void *graph);
void tr_cuda_graph_close(void *graph);

/* ---- matrix products: cuBLASLt --------------------------------------------
 *
 * y[rows][n] = x[rows][k] * w[n][k]^T, all row-major, x and w of one 16-bit
 * type, FP32 sums.  Weights are kept as the model's files have them: rows of k.
 *
 * The algorithm is chosen once for each (n, k, types) and class of rows, when
 * the model is opened, so that the same shape always gives the same bits; rows
 * are rounded up to their class (tr_cuda_matmul_rows), whose padding rows may
 * be read and written: contents have no influence.
 */

typedef struct tr_cuda_matmul tr_cuda_matmul_t;

typedef struct {
    uint32_t rows, n, k;
    tr_dtype_t type; /* of x and w: TR_F16 or TR_BF16 */
    tr_dtype_t out;  /* of y: the same, or TR_F32 */
    const void *x, *w;
    void *y;
    size_t ldx, ldy; /* elements; 16-byte multiples, as all addresses */
} tr_cuda_product_t;

/* Rows that a product of `rows` rows is computed for; buffers of x and y have
 * that many.  The same on every device.  Finest where products stop being bound
 * by their weights: from there on, rows that only pad cost as much as
 * others. */
static inline uint32_t
tr_cuda_matmul_rows(uint32_t rows)
{
    uint32_t step = rows <= 16     ? 8
                    : rows <= 64   ? 16
                    : rows <= 256  ? 32
                    : rows <= 512  ? 16
                    : rows <= 1024 ? 64
                                   : 128;

    return (rows + step - 1) / step * step;
}

/* Host.  max_rows bounds the classes. */
int tr_cuda_matmul_open(const tr_device_props_t *d, uint32_t max_rows,
                        tr_cuda_matmul_t **out);
void tr_cuda_matmul_close(tr_cuda_matmul_t *m);

/* Host: chooses the algorithms of (n, k, type, out) for all classes of rows.
 * They are timed with matrices like w, [n_weights] that are used in turn, as
 * the layers of a model are; x and y as in a product of max_rows, which are
 * written to.  n_weights 0: the library's first suggestion stands. */
int tr_cuda_matmul_choose(tr_cuda_matmul_t *m, const tr_cuda_stream_t *s,
                          const tr_cuda_product_t *shape,
                          const void *const *weights, uint32_t n_weights);

/* A product of a chosen shape.  Can be captured.  TR_KERNEL_BADARG: it was not
 * chosen, or is not aligned. */
int tr_cuda_matmul(const tr_cuda_stream_t *s, const tr_cuda_matmul_t *m,
                   const tr_cuda_product_t *product);

/* ---- matrix products: small batches ---------------------------------------
 *
 * With few rows a product takes as long as its weights take to come from
 * memory.  What is left of a decode step are the gaps, where one product has
 * ended, a small kernel adds and normalises, and the next has not yet loaded
 * its first weights.  Here several products are one kernel, a chain:
 *
 *   - weights stream without a gap: those of a product are loaded while the one
 *     in front of it ends, those of the first while the kernel in front does;
 *   - a product's epilogue writes what the next one reads: the residual is
 *     added and weighted, or the gate applied, where the sums are.
 *
 * RMSNorm is a weight for each column and a scale for each row, and a scale can
 * follow a product as well as precede it: TR_CUDA_SMALL_GEMM_RESIDUAL leaves
 * hidden * weight and, of each row, partial sums of hidden^2; the product
 * behind it makes the scale of these and applies it to its FP32 sums.
 *
 * A row's bits depend on the shape and on the class of `rows` (up to 8, 16, 32,
 * 64), not on other rows.  BF16 alone: FP16 has no range for rows that are not
 * normalised.  Compute capability 9.0 alone.
 *
 * Weights may be packed (kernels/weight_form.h): their codes are read, and scales
 * are applied to FP32 sums.  Where there are more rows, unpack makes 16 bits of
 * them for a product of cuBLASLt.
 */

#define TR_CUDA_SMALL_GEMM_ROWS 64u   /* at most */
#define TR_CUDA_SMALL_GEMM_PARTS 256u /* of a row's sum of squares, at most */
#define TR_CUDA_SMALL_GEMM_CHAIN 4u   /* products, at most */

typedef enum {
    TR_CUDA_SMALL_GEMM_PLAIN, /* y = scale x w^T */
    /* y = act(scale x g^T) * (scale x u^T), w = [g; u], n / 2 rows each */
    TR_CUDA_SMALL_GEMM_GATED,
    /* hidden += x w^T + bias; y = hidden * weight */
    TR_CUDA_SMALL_GEMM_RESIDUAL,
} tr_cuda_small_gemm_mode_t;

typedef struct {
    tr_cuda_small_gemm_mode_t mode;
    uint32_t rows, n, k;
    const void *x; /* [rows][ldx] BF16 */
    const void *w; /* [n][k] BF16, or packed; a weight: it is read before the
                    * launch before this one has ended */
    tr_weight_form_t form; /* of w; PAIRS: when GATED, and may be when PLAIN */
    void *y;         /* [rows][ldy] BF16, ldy that of n, or n / 2 when GATED;
                    * RESIDUAL: NULL: none */
    size_t ldx, ldy; /* elements; multiples of 8 and 4 */

    /* PLAIN, GATED: scale = 1 / sqrt(sum / norm_n + eps), the sum being that of
     * squares[row][0 .. parts); parts 0: 1 */
    const float *squares;
    uint32_t parts, norm_n;
    float eps;
    tr_act_t act; /* GATED */

    /* RESIDUAL */
    float *hidden; /* [rows][ldh], ldh a multiple of 4 */
    size_t ldh;
    const float *bias, *weight; /* [n]; bias NULL: none; weight not without y */
    float *squares_out; /* [rows][tr_cuda_small_gemm_parts]; NULL: none */
} tr_cuda_small_gemm_t;

/* Can such products be done?  n and k: multiples of 64, of some hundreds. */
bool tr_cuda_small_gemm_fits(const tr_device_props_t *d, uint32_t n,
                             uint32_t k);

/* Parts of a row's sum of squares that a RESIDUAL product leaves; 0: it is not
 * done, n being more than some 16,000, or with more than 32 rows 4,000: a
 * second group of warps would have few rows, and that is slower than to do
 * without. */
uint32_t tr_cuda_small_gemm_parts(const tr_device_props_t *d, uint32_t rows,
                                  uint32_t n, uint32_t k);

/* a[0 .. n), of as many rows each; one reads what those before it wrote.
 * 16-byte aligned addresses.  barrier: a word of the device's memory, 0 before
 * its first use; chains that may run at once have one each. */
int tr_cuda_small_gemm(const tr_cuda_stream_t *s, const tr_cuda_small_gemm_t *a,
                       uint32_t n, uint32_t *barrier);

typedef struct {
    uint32_t n, k;
    tr_weight_form_t form; /* one that is packed */
    const void *w;
    void *out; /* [n][k] BF16, rows in their own order, each weight rounded
                * once; aligned to 16 bytes, as w */
} tr_cuda_unpack_t;

/* Packed weights in 16 bits.  Compute capability 9.0 alone. */
int tr_cuda_unpack(const tr_cuda_stream_t *s, const tr_cuda_unpack_t *a);

/* ---- layers ---------------------------------------------------------------
 *
 * What a forward pass computes beside attention and matrix products.  The
 * residual stream `hidden` is FP32; what enters and leaves a product is of
 * the model's 16-bit type T (TR_F16 or TR_BF16), rounded to nearest even; what
 * is too large for it becomes infinity, which ends as TR_CUDA_BAD_LOGITS.  Sums
 * are FP32, in an order that depends on the row's length alone.  Rows beyond
 * `rows` are not touched, nor columns beyond a row's; addresses and distances
 * that are multiples of 16 bytes are faster.  One layer is
 *
 *   norm: hidden += delta of the layer before; T <- rmsnorm   product qkv
 *   qkv: bias, norms of heads, q rotated                      append, attention
 *   product o
 *   norm: hidden += o; T <- rmsnorm                           product gate_up
 *   act_mul                                                   product down
 *
 * with row_norm before qkv where all heads of a row are normalised at once.
 * In small batches a chain of small_gemm may replace all but append and
 * attention.
 */

typedef struct {
    uint32_t rows, vocab, hidden;
    const int32_t *token;    /* [rows]; < 0: what history has at (slot, pos) */
    const int32_t *row_slot; /* [rows]; < 0: padding, any token will do */
    const uint32_t *row_pos; /* [rows] */
    tr_cuda_history_t history; /* given tokens are entered as they came; token
                                * NULL: none is kept */
    const void *table;         /* [vocab][hidden] of T */
    tr_dtype_t type;
    float scale; /* embeddings are multiplied with it, in FP32 */
    float *out;  /* [rows][ldo] */
    size_t ldo;
} tr_cuda_embed_t;

/* A token outside the vocabulary, or beyond history, counts as 0. */
int tr_cuda_embed(const tr_cuda_stream_t *s, const tr_cuda_embed_t *a);

/* A table of angles. */
typedef struct {
    uint32_t rows, half;
    const uint32_t *row_pos;    /* [rows] */
    const float *inv_freq;      /* [half] */
    const float *inv_freq_long; /* of rows whose row_long is not 0 */
    const uint8_t *row_long;    /* [rows], or NULL: none is */
    const float *amp;           /* [half], or NULL: 1 */
    float temp;                 /* 0, or times 1 + temp ln(1 +
                                      * floor(position / temp_original)) */
    uint32_t temp_original;
    float *angles; /* [rows][2][half] */
} tr_cuda_angles_t;

/* tr_kernels_t.rope_angles: FP32 products of position and frequency, cosine and
 * sine of them to the last bit or nearly so, up to any position, times amp and
 * the queries' temperature. */
int tr_cuda_rope_angles(const tr_cuda_stream_t *s, const tr_cuda_angles_t *a);

typedef struct {
    uint32_t rows, n;
    float *hidden; /* [rows][ldh] */
    size_t ldh;
    const void *delta; /* [rows][ldd] of T, added to hidden first; NULL: none */
    size_t ldd;
    const float *bias; /* [n], added after delta, not without; NULL: none */
    const float *post_weight; /* [n]: delta and bias are normalised before they
                               * are added; not without delta; NULL: none */
    float scale;              /* what is added is multiplied with it */
    const float *weight; /* [n], a weight: it is read before the launch before
                          * this one has ended; NULL: hidden as it is */
    float eps;
    const uint32_t *gather; /* NULL, or [rows]: row i of out (and delta's use)
                             * is hidden row gather[i], which is not written */
    void *out;              /* [rows][ldo] of T */
    size_t ldo;
    tr_dtype_t type;
    bool full; /* out is FP32 */
} tr_cuda_norm_t;

/* hidden += scale * (delta + bias), or with post_weight scale * rmsnorm(delta +
 * bias) * post_weight; out = hidden / sqrt(mean(hidden^2) + eps) * weight.  With
 * gather, delta is of the gathered row. */
int tr_cuda_norm(const tr_cuda_stream_t *s, const tr_cuda_norm_t *a);

/* Sums of rows that come piece by piece: item i has rows [first[i], first[i + 1])
 * of all, and x has `rows` of them, from `at` on. */
typedef struct {
    uint32_t items, n, at, rows;
    const float *x; /* [rows][ldx] */
    size_t ldx;
    const uint32_t *first; /* [items + 1] */
    float *out;            /* [items][ldo] */
    size_t ldo;
} tr_cuda_pool_t;

/* out of each item that has rows in x: their sum, in their order, on top of what
 * is there, unless its first row is among them. */
int tr_cuda_pool(const tr_cuda_stream_t *s, const tr_cuda_pool_t *a);

typedef struct {
    uint32_t rows, heads, kv_heads, head_dim;
    void *qkv; /* [rows][ld] of T: heads * head_dim, then keys, then values */
    size_t ld;
    tr_dtype_t type;
    const float
        *bias; /* [(heads + 2 * kv_heads) * head_dim] or NULL; a weight, as
                        * that of the norm */
    const float *q_norm, *k_norm; /* [head_dim] or NULL, both or none */
    float eps;
    const float *angles; /* [rows][2][head_dim / 2] of queries */
    /* as angles: keys are turned, too, and then get key_shift, [kv_heads *
     * head_dim] (engine/model/centre.h); NULL: they are not, and do not */
    const float *key_angles, *key_shift;
    bool hadamard; /* with key_angles: in the end R takes queries and keys
                    * (kernels/hadamard.h) */
    bool early;    /* tr_cuda_kv_append: the launch before it lets it begin */
} tr_cuda_qkv_t;

/* In place: bias, then the norms, then queries are rotated, in FP32 between.
 * Keys stay as they are before RoPE (tr_cuda_kv_append rotates them), unless
 * there are key_angles.  head_dim: a multiple of 16 up to TR_HEAD_DIM_MAX; with
 * hadamard a power of two. */
int tr_cuda_qkv(const tr_cuda_stream_t *s, const tr_cuda_qkv_t *a);

/* Before tr_cuda_qkv, in place: bias, then all queries of a row are normalised
 * together, and all its keys; q_norm and k_norm are [heads * head_dim] and
 * [kv_heads * head_dim] here.  What is not said of these is not looked at. */
int tr_cuda_row_norm(const tr_cuda_stream_t *s, const tr_cuda_qkv_t *a);

/* Bits 1 << tr_act_t: what tr_cuda_act_mul has, and what
 * TR_CUDA_SMALL_GEMM_GATED has. */
#define TR_CUDA_ACTS \
    (1u << TR_ACT_SILU | 1u << TR_ACT_GELU_TANH | 1u << TR_ACT_OAI)
#define TR_CUDA_SMALL_GEMM_ACTS (1u << TR_ACT_SILU)

static inline bool
tr_cuda_has_act(uint32_t acts, tr_act_t act)
{
    return (unsigned) act < TR_ACTS && (acts >> act & 1);
}

/* out[r][i] = act(x[r][i]) * x[r][n + i], i < n, of T; TR_ACT_OAI as act.h has
 * it. */
int tr_cuda_act_mul(const tr_cuda_stream_t *s, tr_act_t act, const void *x,
                    size_t ldx, uint32_t rows, uint32_t n, tr_dtype_t type,
                    void *out, size_t ldo);

/* x[r][i] *= scale; then, unless cap is 0, x = cap * tanh(x / cap); FP32. */
int tr_cuda_scale_cap(const tr_cuda_stream_t *s, float *x, size_t ldx,
                      uint32_t rows, uint32_t n, float scale, float cap);

/* out[i] = kind[i] == wanted ? slot[i] : -1: which sequences of a batch go to
 * which attention, after the manager has said who stalls. */
int tr_cuda_select(const tr_cuda_stream_t *s, const int32_t *slot,
                   const uint8_t *kind, uint32_t n, uint8_t wanted,
                   int32_t *out);

/* load_format dummy: element i of x is uniform with standard deviation sd, a
 * function of (seed, first + i) alone: the one of
 * engine/model/cpu/model_weights.c. */
int tr_cuda_fill_random(const tr_cuda_stream_t *s, void *x, size_t n,
                        tr_dtype_t type, uint64_t seed, uint64_t first,
                        float sd);

/* from [n] of one type to another, any of the three, to nearest even. */
int tr_cuda_convert(const tr_cuda_stream_t *s, const void *from,
                    tr_dtype_t from_type, void *to, tr_dtype_t to_type,
                    size_t n);

/* ---- attention: decode ----------------------------------------------------
 *
 * Over the differentiated KV cache (kv_view.h says where a sequence's tokens
 * are, kv_layout.h what a page holds).  A step is
 *
 *   tr_cuda_decode_plan      once: shares the work of every layer out
 *   tr_cuda_decode, ..       once a layer, in their order: outputs, the scores
 *                            of the layer before, and candidates of the one
 *                            before that
 *   tr_cuda_decode_score     once: what is left of the last layers
 */

/* How much a workspace must hold. */
typedef struct {
    uint32_t layers, kv_heads, head_dim;
    uint32_t max_seqs;
    uint32_t heads;       /* query heads */
    uint64_t max_tokens;  /* that all sequences of a step together cache in one
                           * layer and KV head */
    uint32_t page_tokens; /* the fewest that a page of a layout in use holds */
} tr_cuda_decode_size_t;

/* Bytes of the workspace, which is 256-byte aligned and needs no clearing. */
size_t tr_cuda_decode_work(const tr_device_props_t *d,
                           const tr_cuda_decode_size_t *size);

/* Reads counts and sequences of all layers and shares their pages out over the
 * multiprocessors, by bytes; sets the candidates of tiers that have none.
 * Sequences with more than one row, or with seq_slot < 0, are left out: their
 * outputs and scores are not touched.  What is launched behind it with leave to
 * begin early (launch.cuh) may do so at once; when it begins, all in front of
 * the plan has ended. */
int tr_cuda_decode_plan(const tr_cuda_stream_t *s, const tr_kv_view_t *kv,
                        const tr_rows_t *rows,
                        const tr_cuda_decode_size_t *size, void *work);

/* Queries and results of a step's rows, [n_rows][heads * head_dim]. */
typedef struct {
    const void *q; /* rotated */
    void *out;
    size_t ldq, ldo; /* elements; multiples of 8 */
    tr_dtype_t q_type, out_type;
    uint32_t heads;
    float scale;
} tr_cuda_queries_t;

/* tr_kernels_t.attention for sequences of one row, as far as `out` goes, with
 * sinks, and with a reach where uncompressed pages without scores are the only
 * layout. Head
 * sizes 64 and 128, up to 8 query heads a KV head, levels with one metadata
 * group by token (all bits), positions of one width; anything else is
 * TR_KERNEL_BADARG.  All pages are read (read_pages is not looked at).  Queries
 * are rounded to 15 bits, relative to a head's largest; their products with
 * codes are exact, all other sums FP32.  q and out are 16-byte aligned.  The
 * same step gives the same bits. Unlike kernels.h promises, another batch may
 * not: the plan cuts a layer into ranges of equal bytes, and where a head is
 * cut depends on the other sequences.  Cuts at token counts of its own would
 * have to be about 128 tokens apart to fill all multiprocessors evenly, which
 * is ten times as many parts to store and reduce (33 MB a layer of 64 x 4096
 * tokens, whose pages of K4V2 have 243).
 *
 * The rest of tr_kernels_t.attention, scores and candidates, comes a layer
 * later: layers are decoded in their order, each once behind a plan or behind
 * tr_cuda_decode_score, in one stream or in ones that wait (events); decode of
 * a layer adds to the scores of the one before what its tokens were given, and
 * sets the candidates of the one before that.  Until then the pages, tables and
 * sequences of scored sequences stay as they are in that layer; kv, rows, size
 * and work are the same.  (In a kernel that streams pages, warps come to their
 * ends at different times, which this fills.)  Of layers but the first, tables
 * and what the plan left are read while a kernel in front that lets others
 * begin early (launch.cuh) still runs.
 *
 * Bytes moved: codes and metadata once; q and out; of scored tokens their
 * weights, 2 bytes for each query head of the KV head, into the workspace and,
 * for the layer before, out of it, with their positions and scores, which are
 * written. */
int tr_cuda_decode(const tr_cuda_stream_t *s, const tr_kv_view_t *kv,
                   uint32_t layer, const tr_rows_t *rows,
                   const tr_cuda_queries_t *queries,
                   const tr_cuda_decode_size_t *size, void *work);

/* Behind tr_cuda_decode of the last layer, kv->layers - 1: its scores, its
 * candidates, and those of the layer before.  Without scored sequences it does
 * nothing and may be left out. */
int tr_cuda_decode_score(const tr_cuda_stream_t *s, const tr_kv_view_t *kv,
                         const tr_rows_t *rows,
                         const tr_cuda_decode_size_t *size, void *work);

/* ---- attention: prompts ---------------------------------------------------
 *
 * tr_kernels_t.attention for sequences of more than one row whose cache is all
 * uncompressed (base 0): causal attention at the speed of the tensor cores,
 * and, for pages that carry scores, the exact sums of kv_view.h in a second
 * pass over the keys.
 */

/* What computes.  The device chooses; tests and benchmarks may. */
typedef enum {
    TR_PROMPT_BEST,
    TR_PROMPT_WARPS,       /* products of a warp, asynchronous copies: sm_80 */
    TR_PROMPT_BOXES,       /* products of a warp, copy engine: sm_90a, as the
                            * two below */
    TR_PROMPT_GROUPS,      /* products of four warps, copy engine */
    TR_PROMPT_ALTERNATING, /* the same; two groups take turns to multiply and
                            * to compute exponentials */
    TR_PROMPT_PATHS
} tr_prompt_path_t;

/* How much a workspace must hold. */
typedef struct {
    uint32_t kv_heads, head_dim, heads;
    uint32_t max_rows, max_seqs;
    uint32_t max_len; /* positions of one sequence */
    tr_prompt_path_t path;
    /* tr_cuda_prompt_behind: rows of scratch (tr_cuda_context_rows), at least
     * those of one KV head of the longest sequence; 0: it is not called */
    uint32_t context;
} tr_cuda_prompt_size_t;

/* How many rows of scratch a KV head takes that may hold so many compressed
 * tokens; a row is a key and a value of 16 bits. */
#define TR_CUDA_CONTEXT_TILE 128u

TR_HD uint32_t
tr_cuda_context_rows(uint32_t tokens)
{
    return (tokens + TR_CUDA_CONTEXT_TILE - 1) / TR_CUDA_CONTEXT_TILE
           * TR_CUDA_CONTEXT_TILE;
}

/* Bytes of the workspace, which is 256-byte aligned and needs no clearing:
 * about 2 * head_dim + 8 for each row and query head, and the scratch. */
size_t tr_cuda_prompt_work(const tr_cuda_prompt_size_t *size);

/* out, and the scores of scored sequences; none of layers with a reach.  Head sizes 64 and 128, up to 8
 * query heads a KV head, a positive scale; anything else is TR_KERNEL_BADARG.
 * Sequences with seq_slot < 0, with one row, or with base > 0 are left out:
 * their outputs and scores are not touched.  Queries are rounded to FP16,
 * relative to a head's largest, weights to FP16; sums are in FP32.  A row's
 * bits do not depend on the chunk that it comes in.
 * Operations: 4 * head_dim for each query head and pair of a query and a key
 * that it sees, half as many again with scores. */
int tr_cuda_prompt(const tr_cuda_stream_t *s, const tr_kv_view_t *kv,
                   uint32_t layer, const tr_rows_t *rows,
                   const tr_cuda_queries_t *queries,
                   const tr_cuda_prompt_size_t *size, void *work);

/* The same for sequences of more than one row behind compressed tokens (base >
 * 0), at positions from base on: later turns.  What their KV heads hold in
 * tiers and window is unpacked into the scratch, rounded to FP16, and comes in
 * front of the uncompressed tokens; scored tokens get their scores wherever
 * they stand.  All levels; no layer has a reach, any may have sinks.
 *
 * base: host, [n_seqs], at least the sequence's; 0: the sequence is left out, as
 * are those with seq_slot < 0, with one row, or with base 0.  What the scratch
 * does not hold at once is computed for some sequences after others, and of one
 * that it does not hold, for some KV heads after others.
 * Bytes moved, beside tr_cuda_prompt's: for each KV head what it holds, once,
 * and 8 * head_dim for each of its tokens. */
int tr_cuda_prompt_behind(const tr_cuda_stream_t *s, const tr_kv_view_t *kv,
                          uint32_t layer, const tr_rows_t *rows,
                          const uint32_t *base,
                          const tr_cuda_queries_t *queries,
                          const tr_cuda_prompt_size_t *size, void *work);

/* ---- attention: everything else -------------------------------------------
 *
 * A correct but unoptimised fallback kernel (attention_generic.cu).
 */

/* How much the generic kernel's workspace must hold. */
typedef struct {
    uint32_t kv_heads, head_dim, heads;
    uint32_t max_rows, max_seqs;
    uint32_t max_len; /* positions of one sequence */
} tr_cuda_generic_size_t;

/* Bytes of the workspace, which is 256-byte aligned and needs no clearing. */
size_t tr_cuda_attention_work(const tr_cuda_generic_size_t *size);

/* tr_kernels_t.attention for all that it allows: any number of rows of a
 * sequence, all levels and groupings, up to TR_GROUP_MAX query heads a KV head,
 * Quest's choice of pages.  Simple and slow; FP32 throughout.  Sequences with
 * seq_slot < 0, or with rows where the contract has none, are left out. */
int tr_cuda_attention(const tr_cuda_stream_t *s, const tr_kv_view_t *kv,
                      uint32_t layer, const tr_rows_t *rows,
                      const tr_cuda_queries_t *queries,
                      const tr_cuda_generic_size_t *size, void *work);

/* ---- KV cache -------------------------------------------------------------
 *
 * A step's keys and values, the compression of prompts, preemption.  What they
 * do is said in kernels.h (kv_append) and kv_view.h (tr_kv_compress_t); bytes
 * are those of the CPU backend, but for the sign and payload of a 16-bit NaN.
 * What only the device can see is checked there: what the contract excludes is
 * left as it is, and counted in `refused`, which the caller cleared and may
 * look at when it likes.
 */

/* Keys before RoPE and values of a step's rows.  heads: NULL, or what k and v
 * are part of: then what tr_cuda_qkv does comes first, where that can
 * be in the same launch; k and v are left with or without their bias, and keys
 * that `heads` rotates with or without that. */
typedef struct {
    const void *k, *v; /* [n_rows][kv_heads * head_dim] each */
    size_t ld;         /* elements */
    tr_dtype_t type;
    const float *angles; /* [n_rows][2][head_dim / 2], as rope_angles does;
                          * NULL: keys are stored as they are */
    bool moved;          /* tr_cuda_kv_moves was called for this step */
    const tr_cuda_qkv_t *heads;
} tr_cuda_keys_t;

/* tr_kernels_t.kv_append.  Rows of sequences with seq_slot < 0 are left out.  A
 * head whose place or move is not allowed is skipped, alone; refused (NULL is
 * fine) counts such (row, head) pairs.  Only the numbers and the pages may be
 * written by the launch just before: rows, tables, counts, sequences and moves
 * are read before it has ended.
 * Bytes moved: k and v read; each token written, downgraded or moved is read
 * and written once. */
int tr_cuda_kv_append(const tr_cuda_stream_t *s, const tr_kv_view_t *kv,
                      uint32_t layer, const tr_rows_t *rows,
                      const tr_cuda_keys_t *in, uint32_t *refused);

/* tr_kernels_t.kv_compress for n slots at once.  jobs: [n] on the device, and
 * so is what they point to; slot < 0: nothing to do.  max_len: no head of a job
 * has more tokens.  refused: [n]; 1 for a job that is not allowed,
 * of which nothing is written, else 0 (cleared here).  No page that a job fills
 * is a source of another.  work: tr_cuda_kv_compress_work() bytes, 256-byte
 * aligned, needs no clearing, for this n and max_len or larger ones. */
int tr_cuda_kv_compress(const tr_cuda_stream_t *s, const tr_kv_view_t *kv,
                        const tr_kv_compress_t *jobs, uint32_t n,
                        uint32_t max_len, uint32_t *refused, void *work);
size_t tr_cuda_kv_compress_work(const tr_kv_view_t *kv, uint32_t n,
                                uint32_t max_len);

/* Queries of a prompt's end, as tr_kv_compare_t has them. */
#define TR_CUDA_COMPARE_LAYERS 8u

typedef struct {
    int32_t slot;
    uint32_t first, n; /* at uncompressed positions [first, first + n) */
    uint32_t n_layers, layer[TR_CUDA_COMPARE_LAYERS];
    uint32_t heads;
    float scale;
    const void *q; /* [n_layers][rows][ld], of which n rows are queries */
    uint32_t rows;
    size_t ld;              /* elements */
    tr_dtype_t type;        /* of 16 bits */
    tr_kv_change_t *change; /* [n_layers][kv_heads][head_dim]; all 0 when no
                             * job of the slot was carried out */
} tr_cuda_kv_compare_t;

/* tr_kernels_t.kv_compare for the job of one slot, right behind
 * tr_cuda_kv_compress with the same arguments, before the old pages go back.
 * Sums of floats in any order.  Bytes moved: the old and the new places of the
 * slot's tokens in these layers, for each 8 queries of a KV head. */
int tr_cuda_kv_compare(const tr_cuda_stream_t *s, const tr_kv_view_t *kv,
                       const tr_kv_compress_t *jobs, uint32_t n,
                       uint32_t max_len, uint32_t *refused,
                       const tr_cuda_kv_compare_t *q, void *work);

/* The moves of a step's rows in all layers at once, before the first layer's
 * kv_append: candidates, and who leaves a window.  They depend on no token of
 * the step, and one launch hides what 32 would wait for.  Appends with `moved`
 * then store the tokens alone; what is refused here loses its move, not its
 * token. beside: the launch just before it is this step's tr_cuda_decode_plan,
 * which it has nothing to do with: both run at once. */
int tr_cuda_kv_moves(const tr_cuda_stream_t *s, const tr_kv_view_t *kv,
                     const tr_rows_t *rows, bool beside, uint32_t *refused);

/* One slot's pages on their way to another pool.  They go in the order of
 * heads; of a head, its uncompressed pages, its window's (of min(base, sinks +
 * window) slots), its tiers' in order: as the host's cache takes and gives
 * them.  Heads of layers that slide have uncompressed pages alone, unless the slot
 * has no tiers: those that there are between near_from and near_pages. */
typedef struct {
    int32_t slot;
    uint32_t uncompressed_pages; /* of every head; from entry 0 of its row */
    uint32_t near_pages, near_from;
    uint32_t max_pages;   /* that taken and given have room for */
    const int32_t *taken; /* [pages] where they go, ids of the other pool */
    int32_t *given;       /* [pages] where they were */
    uint8_t *from, *to;   /* pools of page_bytes; host memory is pinned */
    int32_t mark, unmark; /* bits set in the entries, bits cleared in them
                            * before they are ids */
    const uint32_t *go;   /* NULL, or [1] on the device: 0: nothing happens */
} tr_cuda_swap_t;

/* Copies the pages of a slot and rewrites its rows of `tables`, which are the
 * view's; counts and sequence are those of the slot.  pages: on the device, how
 * many were copied: 0 when they are more than max_pages, and then nothing is.
 * work: tr_cuda_kv_swap_work() bytes. */
int tr_cuda_kv_swap(const tr_cuda_stream_t *s, const tr_kv_view_t *kv,
                    int32_t *tables, const tr_cuda_swap_t *swap,
                    uint32_t *pages, void *work);
size_t tr_cuda_kv_swap_work(const tr_kv_view_t *kv);

/* Some pages, and where they lie one behind the other. */
typedef struct {
    const int32_t *table; /* of the manager's; page i is table[ref[i]] */
    const uint32_t *ref;  /* [n], or pinned host memory */
    uint32_t n;
    uint32_t
        pages; /* of the pool: an entry that is none of them is passed over */
    uint8_t *flat; /* n * page_bytes, 16-byte aligned */
    bool out;      /* pages into flat; else flat into pages */
} tr_cuda_kv_pages_t;

/* Pages on their way to and from files, beside steps: few blocks, all at once.
 * Bytes moved: n pages read, and written. */
int tr_cuda_kv_pages(const tr_cuda_stream_t *s, const tr_kv_view_t *kv,
                     const tr_cuda_kv_pages_t *a);

/* ---- the table ----------------------------------------------------------- */

/* Changes with the order or the signature of any entry. */
#define TR_DEVICE_VERSION 20u

/* All entries, in the order of the table. */
/* clang-format off */
#define TR_DEVICE_ENTRIES(F)                                               \
    F(open) F(reason) F(device_info) F(alive)                              \
    F(alloc) F(release) F(pin) F(unpin)                                    \
    F(stream_open) F(stream_close) F(stream_wait) F(copy) F(fill)          \
    F(fetch) F(send)                                                       \
    F(event_open) F(event_close) F(event_record) F(event_passed)           \
    F(event_wait) F(event_time) F(event_follow)                            \
    F(graph_begin) F(graph_end) F(graph_launch) F(graph_close)             \
    F(matmul_open) F(matmul_close) F(matmul_choose) F(matmul)              \
    F(small_gemm) F(small_gemm_fits) F(small_gemm_parts) F(unpack)         \
    F(embed) F(rope_angles) F(norm) F(row_norm) F(act_mul) F(scale_cap)    \
    F(pool) F(fill_random)                                                 \
    F(convert) F(select) F(sample) F(sample_work)                          \
    F(route) F(order) F(experts) F(sum_experts)                            \
    F(decode_work) F(decode_plan) F(decode) F(decode_score)                \
    F(attention_work) F(attention)                                         \
    F(prompt_work) F(prompt) F(prompt_behind)                              \
    F(kv_append) F(kv_moves) F(kv_compress) F(kv_compress_work)            \
    F(kv_compare) F(kv_swap) F(kv_swap_work) F(kv_pages)                   \
    F(manager_memory) F(manager_create) F(manager_open) F(manager_prompt)  \
    F(manager_step) F(manager_close) F(manager_plan_prompts)               \
    F(manager_install_prompts) F(manager_give) F(manager_take)             \
    F(manager_fork) F(manager_share) F(manager_tally)                      \
    F(manager_plan_cuts) F(manager_plan_restores) F(manager_install_cuts)
/* clang-format on */

typedef struct {
    uint32_t version; /* TR_DEVICE_VERSION */
    uint32_t size;    /* of this struct */
#define TR_DEVICE_ENTRY(name) __typeof__(tr_cuda_##name) *name;
    TR_DEVICE_ENTRIES(TR_DEVICE_ENTRY)
#undef TR_DEVICE_ENTRY
} tr_device_t;

/* What the library exports.  The table is the library's, for good. */
#define TR_DEVICE_SYMBOL "tr_device"
const tr_device_t *tr_device(void);

#ifdef __cplusplus
}
#endif

#endif
