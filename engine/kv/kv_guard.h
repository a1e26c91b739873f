/*
 * The guard: how far a compression moves what attention gives.
 *
 * Whether a model's keys and values suit the levels of a policy shows in the
 * outputs of attention alone.  So the guard keeps the queries of a prompt's last
 * tokens in a few layers while the prompt is computed, and when it is compressed
 * it asks both, the 16-bit pages that are about to go back and the compressed
 * ones (kernels.h, kv_compare): how far does attention move when only its keys
 * are compressed, and when only its values are?  Two errors, since they harm
 * differently: what is wrong with values is noise that averages out, what is wrong
 * with keys has attention look elsewhere.  Each is
 *
 *     the largest, among the KV heads of those layers, of the median over
 *     channels of |compressed - uncompressed| / |uncompressed|
 *
 * with the norm of a channel over all queries and heads of its group.  By head,
 * since one that is broken breaks answers, however well the others do.  By
 * channel, so that outlier channels do not hide what happens to the others, and
 * the scale of a channel says nothing; the median, since some channels are near 0.
 * Where the running mean of either over prompts is above its bound, the policy
 * loses answers with this model (docs/kv-cache.md has the measurements behind the
 * bounds).
 *
 * One prompt at a time is watched, one in `every`; one that goes away, or of
 * which few queries were computed since others had its beginning, leaves its turn
 * to the next.  Everything is allocated at create.  A comparison takes
 * config.work multiply-adds at most, or one query's share in long prompts: with
 * many tokens, fewer queries are asked.
 *
 * With a cache on a GPU (kv_device.h) queries stay there: the guard says which
 * rows of a step to keep, and what to ask; what came of it arrives with the
 * batch's report.
 *
 * The step loop is the only caller.
 */
#ifndef TR_KV_GUARD_H
#define TR_KV_GUARD_H

#include "engine/kv/policy/kv_policy.h"
#include "kernels/kv_view.h"
#include "kernels/operands.h"
#include "kernels/thread_pool.h"
#include <tokenring/error.h>

typedef struct tr_kernels tr_kernels_t; /* kernels/kernels.h */

#define TR_KV_GUARD_QUERIES 32u
#define TR_KV_GUARD_QUERIES_MIN 8u /* a prompt with fewer says little, too */
#define TR_KV_GUARD_LAYERS 8u
#define TR_KV_GUARD_TOKENS 128u /* shorter prompts say little */
#define TR_KV_GUARD_POLICIES 16u
#define TR_KV_GUARD_KEYS 0.18
#define TR_KV_GUARD_VALUES 1.0
#define TR_KV_GUARD_WORK (1ull << 30)
#define TR_KV_GUARD_WORK_GPU (1ull << 34)

typedef struct {
    uint32_t every; /* 0: only who is watched by name (tr_kv_guard_watch), and
                     * nothing is counted */
    uint32_t layers, heads, kv_heads, head_dim;
    const uint32_t *reach; /* [layers] or NULL: layers with one are not
                            * compressed; borrowed for the call */
    float scale;
    const float *const *sinks;   /* [layers] or NULL, as in tr_kv_view_t;
                                * borrowed */
    uint64_t work;               /* TR_KV_GUARD_WORK */
    const tr_kernels_t *kernels; /* NULL: queries are kept elsewhere, and
                                  * compared there */
    tr_stream_t stream;
} tr_kv_guard_config_t;

typedef struct tr_kv_guard tr_kv_guard_t;

typedef struct {
    uint32_t layer, head; /* a KV head */
} tr_kv_guard_place_t;

typedef struct {
    double keys, values;                    /* of 1 */
    tr_kv_guard_place_t keys_at, values_at; /* whose they are */
} tr_kv_guard_error_t;

tr_status_t tr_kv_guard_create(const tr_kv_guard_config_t *config,
                               tr_kv_guard_t **out, tr_error_t *err);
void tr_kv_guard_free(tr_kv_guard_t *g); /* NULL: nothing */

/* ---- one prompt --------------------------------------------------------- */

/* A prompt of a slot begins that will be compressed at len tokens: is it the
 * turn of one?  The slot is closed, or opened for somebody else: forget. */
void tr_kv_guard_begin(tr_kv_guard_t *g, int32_t slot, uint32_t len);
void tr_kv_guard_forget(tr_kv_guard_t *g, int32_t slot);
/* Watch this one in any case; or, with the queries that are kept, this other
 * slot that has the same prompt. */
void tr_kv_guard_watch(tr_kv_guard_t *g, int32_t slot, uint32_t len);
void tr_kv_guard_follow(tr_kv_guard_t *g, int32_t slot);
/* What the comparison of the last slot watched gave; false: there was none. */
bool tr_kv_guard_last(const tr_kv_guard_t *g, tr_kv_guard_error_t *out);

/* Queries of a step, rows of which belong to a watched slot, turned as the keys
 * in the cache are: [rows][heads * head_dim], ldq apart. */
void tr_kv_guard_take(tr_kv_guard_t *g, uint32_t layer, const tr_rows_t *rows,
                      const float *q, size_t ldq);

/* Which of rows [row, row + n) of a step are queries to be kept, where the
 * prompt's positions from pos on stand, and where: at `at` of QUERIES.  They are
 * as good as kept. */
typedef struct {
    uint32_t row, n, at;
} tr_kv_guard_rows_t;

bool tr_kv_guard_rows(tr_kv_guard_t *g, int32_t slot, uint32_t pos,
                      uint32_t row, uint32_t n, tr_kv_guard_rows_t *out);
/* The layers in which they are kept. */
const uint32_t *tr_kv_guard_layers(const tr_kv_guard_t *g, uint32_t *n);

/* What to ask of a compression of uncompressed positions [base, base + n) of
 * a slot, but for q, ld and sinks; the queries are the last out->n of QUERIES.
 * out->change is the guard's own, of host memory.  false: nothing. */
bool tr_kv_guard_ask(tr_kv_guard_t *g, int32_t slot, uint32_t base, uint32_t n,
                     tr_kv_compare_t *out);
/* It was asked, and this is the answer, as tr_kv_compare_t.change has it.  false:
 * nothing was compared. */
bool tr_kv_guard_answered(tr_kv_guard_t *g, const tr_kv_change_t *change,
                          tr_kv_guard_error_t *out);

/* Where a step leaves the queries of rows [row, row + n) on a device: those of
 * layer[i] as they stand in the rows of its matrix, from to + i * layer_bytes
 * on.  n = 0: there are none. */
typedef struct {
    uint32_t row, n;
    const uint32_t *layer;
    uint32_t n_layers;
    uint8_t *to;
    size_t layer_bytes;
} tr_kv_guard_keep_t;

/* The error of a compression that was carried out, whose old pages are still
 * there; false: the slot is not watched, or not comparable, or fewer queries
 * are kept than QUERIES_MIN and than config.work pays for, unless it is
 * watched by name. */
bool tr_kv_guard_compare(tr_kv_guard_t *g, const tr_kv_view_t *kv,
                         const tr_kv_compress_t *c, tr_kv_guard_error_t *out);

/* ---- what prompts say together ------------------------------------------ */

/* Counts an error for a policy.  One line in the log when its mean crosses a
 * bound, or falls below 0.8 of both again. */
void tr_kv_guard_count(tr_kv_guard_t *g, const tr_kv_policy_t *policy,
                       const tr_kv_guard_error_t *error);

typedef struct {
    uint64_t prompts;          /* compared */
    uint32_t over;             /* policies whose mean is above a bound now */
    tr_kv_guard_error_t error; /* the largest mean of a policy; no places */
} tr_kv_guard_state_t;

/* All 0 for NULL. */
void tr_kv_guard_state(const tr_kv_guard_t *g, tr_kv_guard_state_t *out);

#endif
