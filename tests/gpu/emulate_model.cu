/*
 * The kernels of model.h and sample.h on the host; see emulate_model.h.
 */
#include "emulate_model.h"

#include <stdlib.h>

#include <cuda/model.cuh>
#include <cuda/sample_row.cuh>

#include "emulate_run.h"

extern "C" uint32_t random_below(uint32_t n);

/* i of n, from a random one on. */
typedef struct {
    uint64_t from, n;
} turn_t;

static turn_t
turn_of(uint64_t n)
{
    turn_t t = { random_below((uint32_t) n), n };

    return t;
}

static uint32_t
turn_at(const turn_t *t, uint64_t i)
{
    return (uint32_t) ((t->from + i) % t->n);
}

/* ---- threads ------------------------------------------------------------ */

extern "C" void
emulate_embed(const tr_cuda_embed_t *a)
{
    uint32_t per = eights(a->hidden) + 1; /* one too many, as on the device */
    turn_t t = turn_of((uint64_t) a->rows * per);

    for (uint64_t i = 0; i < t.n; i++) {
        embed_eight(a, a->type, embed_wide(a), turn_at(&t, i) / per,
                    turn_at(&t, i) % per);
    }
}

extern "C" void
emulate_rope_angles(const uint32_t *row_pos, uint32_t rows,
                    const float *inv_freq, uint32_t half, float *angles)
{
    for (uint32_t i = 0; i < rows * half; i++) {
        rope_angle(row_pos, inv_freq, half, angles, i / half, i % half);
    }
}

extern "C" void
emulate_silu_mul(const void *x, size_t ldx, uint32_t rows, uint32_t n,
                 tr_dtype_t type, void *out, size_t ldo)
{
    silu_args_t a = { x, out, ldx, ldo, n };
    uint32_t per = eights(n) + 1;
    turn_t t = turn_of((uint64_t) rows * per);

    for (uint64_t i = 0; i < t.n; i++) {
        silu_eight(&a, type, silu_wide(&a), turn_at(&t, i) / per,
                   turn_at(&t, i) % per);
    }
}

extern "C" void
emulate_fill_random(void *x, size_t n, tr_dtype_t type, uint64_t seed,
                    uint64_t first, float sd)
{
    for (size_t i = 0; i < n / 8 + 2; i++) {
        random_eight(x, n, type, seed, first, sd, is_wide(x), i);
    }
}

extern "C" void
emulate_convert(const void *from, tr_dtype_t from_type, void *to,
                tr_dtype_t to_type, size_t n)
{
    for (size_t i = 0; i < n / 8 + 2; i++) {
        convert_eight(from, from_type, to, to_type, n,
                      is_wide(from) && is_wide(to), i);
    }
}

/* ---- blocks and warps --------------------------------------------------- */

typedef struct {
    const tr_cuda_norm_t *a;
    uint64_t meet[MEET];
    uint32_t lanes, row;
} norm_run_t;

static void
norm_lane(void *arg, uint32_t lane)
{
    norm_run_t *r = (norm_run_t *) arg;
    block_t b = { lane, r->lanes };
    uint32_t first = lane * 8;
    eight_t weight = eight_load(r->a->weight, first,
                                eight_count(r->a->n, first), TR_F32,
                                norm_wide(r->a));

    norm_row(r->a, r->a->type, norm_wide(r->a), eights(r->a->n) <= r->lanes, b,
             r->meet, &weight, r->row);
}

extern "C" void
emulate_norm(const tr_cuda_norm_t *a, uint32_t lanes)
{
    norm_run_t r = { a, {}, lanes, 0 };
    turn_t t = turn_of(a->rows);

    for (uint64_t i = 0; i < t.n; i++) {
        r.row = turn_at(&t, i);
        emulate_run(lanes, norm_lane, &r);
    }
}

typedef struct {
    const tr_cuda_qkv_t *a;
    uint32_t lanes;
    uint32_t first, end;
} qkv_run_t;

static void
qkv_lane(void *arg, uint32_t lane)
{
    qkv_run_t *r = (qkv_run_t *) arg;
    warp_t w = { lane, r->lanes };
    qkv_item_t q;

    qkv_open(r->a, qkv_wide(r->a), w, r->first, r->end, &q);
    qkv_item(r->a, r->a->type, qkv_wide(r->a), w, &q);
}

extern "C" void
emulate_qkv(const tr_cuda_qkv_t *a, uint32_t lanes)
{
    uint32_t groups = lanes / qkv_lanes(a->head_dim);
    qkv_run_t r = { a, lanes, 0, a->rows * qkv_heads(a) };
    turn_t t = turn_of(r.end / groups + 2);

    for (uint64_t i = 0; i < t.n; i++) {
        r.first = (uint32_t) turn_at(&t, i) * groups;
        emulate_run(lanes, qkv_lane, &r);
    }
}

/* ---- sampling ----------------------------------------------------------- */

typedef struct {
    sample_args_t a;
    sample_room_t room;
    uint32_t lanes, block;
} sample_run_t;

static void
scan_lane(void *arg, uint32_t lane)
{
    sample_run_t *r = (sample_run_t *) arg;
    block_t b = { lane, r->lanes };

    scan_piece(&r->a, b, r->room.meet, r->block / r->a.pieces,
               r->block % r->a.pieces);
}

static void
choose_lane(void *arg, uint32_t lane)
{
    sample_run_t *r = (sample_run_t *) arg;
    block_t b = { lane, r->lanes };

    choose_block(&r->a, b, &r->room, r->block, sample_places(r->a.a.rows));
}

extern "C" size_t
emulate_sample_work(uint32_t rows, uint32_t vocab)
{
    sample_args_t a;

    return sample_divide(&a, rows, vocab, NULL);
}

extern "C" void
emulate_sample(const tr_cuda_sample_t *in, uint32_t lanes)
{
    sample_run_t *r = (sample_run_t *) malloc(sizeof(*r));
    turn_t t;

    sample_args(&r->a, in);
    r->lanes = lanes;
    t = turn_of((uint64_t) in->rows * r->a.pieces);
    for (uint64_t i = 0; i < t.n; i++) {
        r->block = turn_at(&t, i);
        emulate_run(lanes, scan_lane, r);
    }
    t = turn_of(in->rows + sample_places(in->rows));
    for (uint64_t i = 0; i < t.n; i++) {
        memset(&r->room, 0xaa, sizeof(r->room));
        r->block = turn_at(&t, i);
        emulate_run(lanes, choose_lane, r);
    }
    free(r);
}
