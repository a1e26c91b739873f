/*
 * kv_device_rig.h: a device's KV cache (engine/kv_device.h) on the software
 * device, and beside it the CPU's cache, which does the same in the order in
 * which the device does it.
 *
 * What is asked of the device's cache goes into a log; when a batch is settled,
 * the log up to it is played on the CPU's cache, then the batch's rows are
 * stored and attended to there.  Then both must have the same free pages, have
 * stalled the same rows, and given the same attention, bit for bit.
 */
#ifndef KV_DEVICE_RIG_H
#define KV_DEVICE_RIG_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../soft/load.h"
#include "kv_device_parts.h"

#define RIG_LAYERS 2u
#define RIG_LISTS 2u
#define RIG_HEADS 4u
#define RIG_DIM 64u
#define RIG_SEQS 12u
#define RIG_ROWS 160u
#define RIG_LOG 4096u
#define RIG_KEYS (RIG_LISTS * RIG_DIM)
#define RIG_QUERIES (RIG_HEADS * RIG_DIM)
/* floats of a row and layer: keys, values, queries */
#define RIG_ROW (2 * RIG_KEYS + RIG_QUERIES)

static uint64_t rig_state;

static uint32_t
rig_random(uint32_t n)
{
    rig_state ^= rig_state << 13;
    rig_state ^= rig_state >> 7;
    rig_state ^= rig_state << 17;
    return (uint32_t) ((rig_state >> 32) % n);
}

typedef enum {
    RIG_OPEN,
    RIG_PROMPT,
    RIG_RESERVE,
    RIG_REFUSED, /* a reservation */
    RIG_COMPRESS,
    RIG_FORK,
    RIG_OUT,
    RIG_IN,
    RIG_CLOSE
} rig_kind_t;

/* What was asked, and what was known then. */
typedef struct {
    rig_kind_t kind;
    uint64_t serial; /* of the batch that it comes before */
    int32_t slot, other;
    uint32_t len, policy;
    uint64_t bound; /* of free pages */
    bool exact;     /* nothing was under way */
    bool sure;      /* compress */
} rig_entry_t;

/* A row's sequence of a batch, and what it stands for. */
typedef struct {
    tr_kv_device_row_t row;
    uint32_t who;
    uint64_t life; /* of who */
} rig_item_t;

/* What the device has now, of all slots. */
typedef struct {
    tr_kv_seq_t seq[RIG_SEQS];
    uint32_t count[RIG_SEQS * RIG_LAYERS * RIG_LISTS * TR_KV_LISTS_MAX];
    tr_kv_victim_t victim[RIG_SEQS * RIG_LAYERS * RIG_LISTS * TR_KV_LISTS_MAX];
} rig_state_t;

/* Memory of a batch under way. */
typedef struct {
    uint32_t *pos;     /* [ROWS] */
    uint32_t *seq_row; /* [SEQS + 1] */
    float *numbers;    /* [LAYERS][ROWS][ROW] */
    float *angles;     /* [ROWS][DIM] */
    float *out;        /* [LAYERS][ROWS][QUERIES] */
    void *event;
    rig_item_t item[RIG_SEQS];
    uint32_t n, rows;
    bool stalled[RIG_SEQS];
    bool short_of[RIG_SEQS]; /* pages; else an earlier row had stalled */
    uint64_t given;          /* rig_given before it */
} rig_batch_t;

typedef struct {
    tr_kv_cache_t *kv, *host;
    tr_kv_gpu_t *g;
    tr_cuda_stream_t stream;
    tr_kv_policy_t *policy[4];
    uint32_t n_policies, max_len;
    rig_batch_t batch[TR_KV_DEVICE_TURNS];
    /* on the device */
    uint32_t *pos, *seq_row;
    float *numbers, *angles, *out;
    void *work;
    size_t work_size;
    void *host_work;
    float *host_out;
    int32_t *history;
    rig_state_t *fetched; /* pinned */
    rig_entry_t *log;
    uint32_t first, last; /* of the log */
    uint64_t closes, stalls, compressed, denied, refused, swaps, forks, batches;
} rig_t;

#define RIG_SAME(condition, ...)                                        \
    do {                                                                \
        if (!(condition)) {                                             \
            print_error("%s:%d: %s: ", __FILE__, __LINE__, #condition); \
            print_error(__VA_ARGS__);                                   \
            print_error("\n");                                          \
            fail();                                                     \
        }                                                               \
    } while (0)

/* ---- create ------------------------------------------------------------- */

static const char *const rig_specs[] = {
    "full",
    "uniform:levels=8/4,window=3",
    "diffkv:window=16",
    "diffkv:window=5,alpha_high=1,alpha_low=0.3",
    "diffkv:levels=16/16+8/4+4/2,window=9,alpha_top=2,alpha_low=0.2",
    "diffkv:window=12,alpha_low=0,observe=8",
    "static:window=10,high=0.2,low=0.3",
    "h2o:budget=24",
    "streamingllm:sinks=4,recent=20",
    "kivi:bits=2,window=64",
    "int4",
    "snapkv:budget=20",
    "quest:budget=64,from=1",
};

#define RIG_SPECS (sizeof(rig_specs) / sizeof(rig_specs[0]))

static void
rig_policies(rig_t *r)
{
    tr_error_t err;

    r->n_policies = 1 + rig_random(4);
    for (uint32_t i = 0; i < r->n_policies; i++) {
        if (tr_kv_policy_create(rig_specs[rig_random(RIG_SPECS)], RIG_LAYERS,
                                RIG_LISTS, RIG_DIM, &r->policy[i], &err)
            != TR_OK) {
            fail_msg("%s", err.text);
        }
    }
    if (r->policy[0]->kind == TR_KV_RULE_THRESHOLD) { /* by head */
        double *alpha = malloc(RIG_LAYERS * RIG_LISTS * 2 * sizeof(*alpha));

        for (uint32_t h = 0; h < RIG_LAYERS * RIG_LISTS; h++) {
            alpha[2 * h] = rig_random(300) / 100.0;
            alpha[2 * h + 1] = alpha[2 * h] * rig_random(100) / 100;
        }
        if (r->policy[0]->n_levels == 2) {
            r->policy[0]->alpha_of = alpha;
        } else {
            free(alpha);
        }
    }
}

static tr_kv_config_t
rig_config(const rig_t *r)
{
    return (
        tr_kv_config_t){ .layers = RIG_LAYERS,
                         .lists = RIG_LISTS,
                         .head_dim = RIG_DIM,
                         .slots = RIG_SEQS,
                         .max_len = r->max_len,
                         .policies = (const tr_kv_policy_t *const *) r->policy,
                         .n_policies = r->n_policies };
}

/* Both caches with about so many pages. */
static void
rig_caches(rig_t *r, uint32_t pages)
{
    tr_kv_config_t c = rig_config(r);
    tr_kv_device_t d = { .cuda = cuda,
                         .stream = &r->stream,
                         .max_seqs = RIG_SEQS,
                         .max_prompts = 1 + rig_random(3),
                         .history = { r->history, r->max_len } };
    tr_error_t err = { 0 };
    uint64_t rest, page;

    c.memory = 48u << 20;
    if (tr_kv_device_create(&c, &d, &r->kv, &err) != TR_OK) {
        fail_msg("%s", err.text);
    }
    page = tr_kv_page_bytes(r->kv);
    rest = c.memory - tr_kv_pages(r->kv) * page;
    tr_kv_cache_free(r->kv);
    c.swap_memory = page * (pages / 2 + rig_random(pages));
    for (;; pages += pages / 4) { /* too few for the shortest prompt */
        c.memory = rest + pages * page;
        if (tr_kv_device_create(&c, &d, &r->kv, &err) == TR_OK) {
            break;
        }
        assert_true(pages < 100000);
    }
    r->g = tr_kv_gpu(r->kv);
    assert_true(tr_kv_pages(r->kv) * page < c.memory);
    if (rig_random(3) == 0) {
        r->g->list.room = 5 + rig_random(9); /* overflows */
    }
    c.memory = tr_kv_pages(r->kv) * page;
    c.swap_memory = (uint64_t) pages * page * 8;
    c.kernels = tr_kernels_cpu(NULL);
    c.stream = (tr_stream_t){ .threads = 1 };
    if (tr_kv_cache_create(&c, &r->host, &err) != TR_OK) {
        fail_msg("%s", err.text);
    }
    assert_int_equal(tr_kv_pages(r->host), tr_kv_pages(r->kv));
    for (uint32_t i = 0; i < r->n_policies; i++) {
        assert_int_equal(tr_kv_max_len(r->kv, r->policy[i]),
                         tr_kv_max_len(r->host, r->policy[i]));
        assert_int_equal(tr_kv_pages_for(r->kv, r->policy[i], 50),
                         tr_kv_pages_for(r->host, r->policy[i], 50));
    }
}

static void
rig_create(rig_t *r, uint32_t pages)
{
    size_t numbers = RIG_LAYERS * RIG_ROWS * RIG_ROW * sizeof(float);
    size_t out = RIG_LAYERS * RIG_ROWS * RIG_QUERIES * sizeof(float);
    tr_cuda_generic_size_t size;
    tr_stream_t one = { .threads = 1 };

    memset(r, 0, sizeof(*r));
    r->max_len = 60 + rig_random(200);
    assert_int_equal(cuda->stream_open(&device, &r->stream), 0);
    r->history = cuda->alloc(RIG_SEQS * r->max_len * sizeof(int32_t));
    rig_policies(r);
    rig_caches(r, pages);
    size = (tr_cuda_generic_size_t){ RIG_LISTS, RIG_DIM,  RIG_HEADS,
                                     RIG_ROWS,  RIG_SEQS, r->max_len };
    for (uint32_t i = 0; i < TR_KV_DEVICE_TURNS; i++) {
        rig_batch_t *b = &r->batch[i];

        b->pos = cuda->pin(RIG_ROWS * 4);
        b->seq_row = cuda->pin((RIG_SEQS + 1) * 4);
        b->numbers = cuda->pin(numbers);
        b->angles = cuda->pin(RIG_ROWS * RIG_DIM * 4);
        b->out = cuda->pin(out);
        assert_int_equal(cuda->event_open(&b->event), 0);
    }
    r->pos = cuda->alloc(RIG_ROWS * 4);
    r->seq_row = cuda->alloc((RIG_SEQS + 1) * 4);
    r->numbers = cuda->alloc(numbers);
    r->angles = cuda->alloc(RIG_ROWS * RIG_DIM * 4);
    r->out = cuda->alloc(out);
    r->work_size = cuda->attention_work(&size);
    r->work = cuda->alloc(r->work_size);
    r->host_work = aligned_alloc(
        64,
        tr_pad(tr_kernels_cpu(NULL)->attention_work(&one, RIG_ROWS, RIG_SEQS,
                                                    r->max_len, RIG_HEADS,
                                                    RIG_LISTS, RIG_DIM)
                   + 64,
               64));
    r->host_out = malloc(out);
    r->fetched = cuda->pin(sizeof(rig_state_t));
    r->log = calloc(RIG_LOG, sizeof(*r->log));
    assert_true(r->history != NULL && r->out != NULL && r->work != NULL
                && r->host_work != NULL && r->log != NULL);
}

static void
rig_destroy(rig_t *r)
{
    for (uint32_t i = 0; i < TR_KV_DEVICE_TURNS; i++) {
        rig_batch_t *b = &r->batch[i];

        cuda->unpin(b->pos);
        cuda->unpin(b->seq_row);
        cuda->unpin(b->numbers);
        cuda->unpin(b->angles);
        cuda->unpin(b->out);
        cuda->event_close(b->event);
    }
    tr_kv_cache_free(r->kv);
    tr_kv_cache_free(r->host);
    cuda->release(r->pos);
    cuda->release(r->seq_row);
    cuda->release(r->numbers);
    cuda->release(r->angles);
    cuda->release(r->out);
    cuda->release(r->work);
    cuda->release(r->history);
    cuda->unpin(r->fetched);
    cuda->stream_close(&r->stream);
    for (uint32_t i = 0; i < r->n_policies; i++) {
        tr_kv_policy_free(r->policy[i]);
    }
    free(r->host_work);
    free(r->host_out);
    free(r->log);
}

/* ---- the log ------------------------------------------------------------ */

static rig_entry_t *
rig_log(rig_t *r, rig_kind_t kind, int32_t slot, uint32_t len)
{
    rig_entry_t *e = &r->log[r->last++ % RIG_LOG];

    assert_true(r->last - r->first < RIG_LOG);
    *e = (rig_entry_t){
        .kind = kind, .serial = r->g->next, .slot = slot, .len = len
    };
    return e;
}

/* Asks for room; what is known before is what it must go by. */
static tr_status_t
rig_reserve(rig_t *r, int32_t slot, uint32_t len)
{
    uint64_t bound = tr_kv_bound(r->g);
    bool exact = tr_kv_settled(r->kv), dense = r->kv->slot[slot].dense;
    tr_status_t rc = tr_kv_reserve(r->kv, slot, len);
    rig_entry_t *e;

    assert_true(rc == TR_OK || rc == TR_AGAIN);
    if (dense) { /* else the batch does it */
        e = rig_log(r, rc == TR_OK ? RIG_RESERVE : RIG_REFUSED, slot, len);
        e->bound = bound;
        e->exact = exact;
    }
    r->refused += rc != TR_OK;
    return rc;
}

static tr_status_t
rig_compress(rig_t *r, int32_t slot, uint32_t len)
{
    uint32_t asked = tr_kv_batch(r->g, r->g->next)->n_completed;
    tr_status_t rc = tr_kv_compress(r->kv, slot, len);
    rig_entry_t *e;

    assert_true(rc == TR_OK || rc == TR_AGAIN);
    if (tr_kv_batch(r->g, r->g->next)->n_completed != asked) {
        e = rig_log(r, RIG_COMPRESS, slot, len);
        e->sure = rc == TR_OK;
    }
    return rc;
}

/* ---- a batch ------------------------------------------------------------ */

/* Numbers of a sequence's row: the same whenever they are asked for. */
static void
rig_numbers(float *out, uint64_t seed, uint32_t pos, uint32_t layer)
{
    uint64_t x = (seed * 0x9e3779b97f4a7c15u + pos) * 0xd1342543de82ef95u
                 + layer + 1;

    for (uint32_t i = 0; i < RIG_ROW; i++) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        out[i] = (float) ((int32_t) (x >> 40) - (1 << 23)) * 0x1p-22f;
    }
}

/* Fills the pinned memory of the coming batch. */
static void
rig_fill(rig_t *r, rig_batch_t *b, const uint64_t *seed)
{
    uint32_t at = 0;

    for (uint32_t i = 0; i < b->n; i++) {
        b->seq_row[i] = at;
        for (uint32_t k = 0; k < b->item[i].row.n; k++, at++) {
            b->pos[at] = b->item[i].row.pos + k;
            for (uint32_t d = 0; d < RIG_DIM; d++) {
                float turn = (float) b->pos[at] * 0.1f
                             / (float) (1 + d % (RIG_DIM / 2));

                b->angles[at * RIG_DIM + d] = d < RIG_DIM / 2 ? cosf(turn)
                                                              : sinf(turn);
            }
            for (uint32_t l = 0; l < RIG_LAYERS; l++) {
                rig_numbers(b->numbers + ((size_t) l * RIG_ROWS + at) * RIG_ROW,
                            seed[i], b->pos[at], l);
            }
        }
    }
    b->seq_row[b->n] = b->rows = at;
    assert_true(at <= RIG_ROWS);
    (void) r;
}

static void
rig_layers(rig_t *r, const rig_batch_t *b)
{
    const tr_cuda_manager_t *m = tr_kv_device_manager(r->kv);
    tr_rows_t rows = { b->rows, b->n, r->pos, m->seq_slot, r->seq_row };
    tr_cuda_generic_size_t size = { RIG_LISTS, RIG_DIM,  RIG_HEADS,
                                    RIG_ROWS,  RIG_SEQS, r->max_len };

    for (uint32_t l = 0; l < RIG_LAYERS && b->rows != 0; l++) {
        const float *in = r->numbers + (size_t) l * RIG_ROWS * RIG_ROW;
        tr_cuda_keys_t keys = { .k = in,
                                .v = in + RIG_KEYS,
                                .ld = RIG_ROW,
                                .type = TR_F32,
                                .angles = r->angles };
        tr_cuda_queries_t q = { .q = in + 2 * RIG_KEYS,
                                .out = r->out
                                       + (size_t) l * RIG_ROWS * RIG_QUERIES,
                                .ldq = RIG_ROW,
                                .ldo = RIG_QUERIES,
                                .q_type = TR_F32,
                                .out_type = TR_F32,
                                .heads = RIG_HEADS,
                                .scale = 0.1f };

        assert_int_equal(cuda->kv_append(&r->stream, &m->view, l, &rows, &keys,
                                         NULL),
                         0);
        assert_int_equal(cuda->attention(&r->stream, &m->view, l, &rows, &q,
                                         &size, r->work),
                         0);
    }
}

/* How often pages may have come back, as far as the host knows. */
static uint64_t
rig_given(const rig_t *r)
{
    return r->closes + r->swaps + r->compressed;
}

/* Starts a batch of what is in it: b = the memory of the coming one. */
static void
rig_submit(rig_t *r, rig_batch_t *b, const uint64_t *seed)
{
    tr_kv_device_row_t rows[RIG_SEQS];
    uint32_t padded = b->n + rig_random(RIG_SEQS - b->n + 1);

    rig_fill(r, b, seed);
    b->given = rig_given(r);
    for (uint32_t i = 0; i < b->n; i++) {
        rows[i] = b->item[i].row;
    }
    assert_int_equal(tr_kv_device_begin(r->kv, rows, b->n), 0);
    assert_int_equal(cuda->copy(&r->stream, r->pos, b->pos, RIG_ROWS * 4), 0);
    assert_int_equal(cuda->copy(&r->stream, r->seq_row, b->seq_row,
                                (RIG_SEQS + 1) * 4),
                     0);
    assert_int_equal(cuda->copy(&r->stream, r->angles, b->angles,
                                RIG_ROWS * RIG_DIM * 4),
                     0);
    assert_int_equal(cuda->copy(&r->stream, r->numbers, b->numbers,
                                RIG_LAYERS * RIG_ROWS * RIG_ROW * 4),
                     0);
    assert_int_equal(tr_kv_device_step(r->kv, padded), 0);
    rig_layers(r, b);
    assert_int_equal(cuda->copy(&r->stream, b->out, r->out,
                                RIG_LAYERS * RIG_ROWS * RIG_QUERIES * 4),
                     0);
    assert_int_equal(tr_kv_device_end(r->kv), 0);
    assert_int_equal(cuda->event_record(&r->stream, b->event), 0);
    r->batches++;
}

#endif
