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
 * Every entry is declared and described, as the function tr_cuda_<entry>, here
 * or in the header of its subject:
 *
 *   here                 memory, streams, copies, events, graphs; matrix
 *                        products: matmul (cuBLASLt), small_gemm
 *   device_fp8.h         products of 8 bits by 8 bits
 *   device_layers.h      embedding, norms, RoPE, activation, conversions
 *   device_experts.h     who goes to whom, grouped products, their sum
 *   device_attention.h   decode, prompt, and the fallback for everything else
 *   device_kv.h          append, moves, compress, swap, pages
 *   device_manager.h     the manager of pages
 *   device_sampling.h    logits to tokens
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
#include "kernels/cuda/device_attention.h"
#include "kernels/cuda/device_experts.h"
#include "kernels/cuda/device_fp8.h"
#include "kernels/cuda/device_kv.h"
#include "kernels/cuda/device_layers.h"
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
 * 64), and of up to 8 of INT4 or FP8 on whether all weights of the chain have one
 * such form, and 256 columns or more by 128; for FP8 also on how many weights the
 * chain's products have on average, 20 Mi or more, so a product alone may have other
 * bits than in a chain.  Not on other rows.  BF16 alone: FP16 has no range for rows
 * that are not normalised.  Compute capability 9.0 alone.
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

/* Packed weights in 16 bits; of FP8 there is fp8_gemm, too.  Compute capability
 * 9.0 alone. */
int tr_cuda_unpack(const tr_cuda_stream_t *s, const tr_cuda_unpack_t *a);

/* ---- the table ----------------------------------------------------------- */

/* Changes with the order or the signature of any entry. */
#define TR_DEVICE_VERSION 26u

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
    F(fp8_fits) F(fp8_round) F(fp8_gemm)                                   \
    F(embed) F(rope_angles) F(norm) F(row_norm) F(act_mul) F(scale_cap)    \
    F(pool) F(fill_random) F(keep_rows)                                    \
    F(convert) F(select) F(sample) F(sample_work)                          \
    F(choose) F(route) F(order) F(experts) F(sum_experts)                  \
    F(decode_work) F(decode_plan) F(decode) F(decode_score)                \
    F(attention_work) F(attention)                                         \
    F(prompt_work) F(prompt) F(prompt_behind)                              \
    F(kv_append) F(kv_moves) F(kv_compress) F(kv_compress_work)            \
    F(kv_compare) F(kv_swap) F(kv_swap_work) F(kv_pages)                   \
    F(manager_memory) F(manager_create) F(manager_open) F(manager_prompt)  \
    F(manager_step) F(manager_close) F(manager_plan_prompts)               \
    F(manager_install_prompts) F(manager_give) F(manager_take)             \
    F(manager_fork) F(manager_share) F(manager_tally)                      \
    F(manager_plan_cuts) F(manager_plan_restores) F(manager_install_cuts)  \
    F(manager_absorb) F(manager_fill_prompts)
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
