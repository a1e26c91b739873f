/*
 * Device code on the host; see emulate.h.
 */
#include "emulate_run.h"

#include <stdio.h>
#include <stdlib.h>
#include <ucontext.h>

#include "emulate.h"

#include <cuda/append.cuh>
#include <cuda/append_fast.cuh>
#include <cuda/append_moves.cuh>
#include <cuda/attention_score.cuh>
#include <cuda/compress_index.cuh>
#include <cuda/compress_tile.cuh>

extern "C" uint32_t random_below(uint32_t n);

#define FIBERS_MAX EMULATE_LANES_MAX
#define STACK (64u << 10)

typedef emulate_lane_f lane_f;

typedef enum { READY, WAITS, DONE } lane_state_t;

static ucontext_t scheduler, fiber[FIBERS_MAX];
static uint8_t *stacks;
static lane_state_t state[FIBERS_MAX];
static uint32_t current;
static uint64_t exchange[FIBERS_MAX];
static lane_f body;
static void *body_arg;

extern "C" void
tr_emulate_sync(void)
{
    uint32_t me = current;

    state[me] = WAITS;
    swapcontext(&fiber[me], &scheduler);
}

extern "C" float *
tr_emulate_room(void)
{
    return (float *) exchange;
}

static void
fiber_main(void)
{
    uint32_t me = current;

    body(body_arg, me);
    state[me] = DONE;
    swapcontext(&fiber[me], &scheduler);
}

static void
begin(uint32_t lanes)
{
    if (stacks == NULL) {
        stacks = (uint8_t *) malloc((size_t) FIBERS_MAX * STACK);
        if (stacks == NULL) {
            abort();
        }
    }
    for (uint32_t i = 0; i < lanes; i++) {
        getcontext(&fiber[i]);
        fiber[i].uc_stack.ss_sp = stacks + (size_t) i * STACK;
        fiber[i].uc_stack.ss_size = STACK;
        fiber[i].uc_link = NULL;
        makecontext(&fiber[i], fiber_main, 0);
        state[i] = READY;
    }
}

void
emulate_run(uint32_t lanes, lane_f f, void *arg)
{
    uint32_t order[FIBERS_MAX], waiting;

    body = f;
    body_arg = arg;
    begin(lanes);
    for (uint32_t i = 0; i < lanes; i++) {
        order[i] = i;
    }
    do {
        uint32_t from = random_below(lanes), back = random_below(2);

        waiting = 0;
        for (uint32_t i = 0; i < lanes; i++) {
            uint32_t k = (from + i) % lanes;

            current = order[back ? lanes - 1 - k : k];
            if (state[current] == READY) {
                swapcontext(&scheduler, &fiber[current]);
            }
            waiting += state[current] == WAITS;
        }
        if (waiting != 0 && waiting != lanes) {
            fprintf(stderr, "%u of %u lanes came to a meeting\n", waiting,
                    lanes);
            abort();
        }
        for (uint32_t i = 0; i < lanes && waiting != 0; i++) {
            state[i] = READY;
        }
    } while (waiting != 0);
}

/* ---- launchers ---------------------------------------------------------- */

static void
copy_layouts(const tr_kv_view_t *kv, tr_kv_layout_t *out)
{
    memcpy(out, kv->layout, kv->n_layouts * sizeof(*out));
}

typedef struct {
    append_args_t a;
    token_room_t room;
    moves_room_t moves;
    uint32_t lanes, task, end, rest[32];
} append_run_t;

static void
append_lane(void *arg, uint32_t lane)
{
    append_run_t *r = (append_run_t *) arg;
    uint32_t lists = r->a.kv.lists, rows = r->a.rows.n_rows;
    uint32_t row = r->task / 2 / lists;
    append_t t = {};
    place_t p;

    t.w = (warp_t){ lane, r->lanes };
    t.side = r->task % 2 == 0 ? KEY : VALUE;
    t.list = r->task / 2 % lists;
    t.row = row % rows;
    if (!append_open(&t, &r->a, r->a.layer + row / rows)) {
        return;
    }
    if (fast_target(&t, &p)) {
        fast_token(&t, p);
        return;
    }
    t.room = &r->room;
    append_any(&t);
}

static void
moves_lane(void *arg, uint32_t lane)
{
    append_run_t *r = (append_run_t *) arg;
    warp_t w = { lane, r->lanes };

    r->rest[lane] = moves_fast(&r->a, w, &r->moves, r->task, r->end);
}

/* As moves_kernel: `each` heads from `first` on, of n. */
static void
moves_run(append_run_t *r, uint32_t first, uint32_t each, uint32_t n)
{
    r->task = first;
    r->end = first + each < n ? first + each : n;
    memset(&r->moves, 0xaa, sizeof(r->moves));
    emulate_run(r->lanes, moves_lane, r);
    for (uint32_t i = 0; i < MOVES_HEADS; i++) {
        for (uint32_t side = 0; side < 2 && r->rest[0] >> i & 1; side++) {
            r->task = 2 * (first + i) + side;
            emulate_run(r->lanes, append_lane, r);
        }
    }
}

static void
append_run(append_run_t *r, const tr_kv_view_t *kv, const tr_rows_t *rows,
           uint32_t layers, uint32_t *refused, uint32_t lanes)
{
    uint32_t tasks = layers * rows->n_rows * kv->lists * 2, from;

    r->a.kv = *kv;
    copy_layouts(kv, r->a.layout);
    r->a.rows = *rows;
    r->a.refused = refused;
    r->a.fast = lanes == 32 && kv->head_dim == FAST_DIM
                && r->a.in.type != TR_F32;
    r->lanes = lanes;
    if (r->a.part == MOVES && lanes == 32) {
        uint32_t each = 1 + random_below(MOVES_HEADS);

        for (uint32_t i = 0; i < tasks / 2; i += each) {
            moves_run(r, i, each, tasks / 2);
        }
        tasks = 0;
    }
    from = tasks > 0 ? random_below(tasks) : 0;
    for (uint32_t i = 0; i < tasks; i++) {
        memset(&r->room, 0xaa, sizeof(r->room));
        r->task = (from + i) % tasks;
        emulate_run(lanes, append_lane, r);
    }
    free(r);
}

extern "C" bool
emulate_heads(const tr_kv_view_t *kv, uint32_t lanes)
{
    return lanes == 32 && kv->head_dim == FAST_DIM;
}

static void
heads_lane(void *arg, uint32_t lane)
{
    append_run_t *r = (append_run_t *) arg;
    warp_t w = { lane, r->lanes };

    heads_rotate(&r->a, w, r->task, r->end);
}

static void
heads_run(append_run_t *r, const tr_cuda_qkv_t *h, uint32_t lanes)
{
    r->a.heads = heads_of(h);
    r->lanes = lanes;
    for (r->task = 0; r->task < h->rows; r->task++) {
        for (r->end = 0; r->end < h->heads; r->end += HEADS_AT_ONCE) {
            emulate_run(lanes, heads_lane, r);
        }
    }
}

extern "C" int
emulate_kv_append(const tr_kv_view_t *kv, uint32_t layer, const tr_rows_t *rows,
                  const tr_cuda_keys_t *in, uint32_t *refused, uint32_t lanes)
{
    append_run_t *r = (append_run_t *) calloc(1, sizeof(*r));

    r->a.part = in->moved ? TOKENS : ALL_OF_IT;
    r->a.in = *in;
    r->a.layer = layer;
    if (in->heads != NULL) {
        heads_run(r, in->heads, lanes);
    }
    append_run(r, kv, rows, 1, refused, lanes);
    return TR_KERNEL_OK;
}

extern "C" int
emulate_kv_moves(const tr_kv_view_t *kv, const tr_rows_t *rows,
                 uint32_t *refused, uint32_t lanes)
{
    append_run_t *r = (append_run_t *) calloc(1, sizeof(*r));

    r->a.part = MOVES;
    r->a.in.type = TR_BF16; /* none */
    append_run(r, kv, rows, kv->layers, refused, lanes);
    return TR_KERNEL_OK;
}

typedef struct {
    compress_args_t a;
    index_room_t index;
    tile_room_t room;
    uint32_t lanes, job, head, tile, step;
    side_t side;
} compress_run_t;

static void
index_lane(void *arg, uint32_t lane)
{
    compress_run_t *r = (compress_run_t *) arg;
    block_t b = { lane, r->lanes };

    compress_index(&r->a, b, &r->index, r->job, r->head);
}

static void
tile_lane(void *arg, uint32_t lane)
{
    compress_run_t *r = (compress_run_t *) arg;
    warp_t w = { lane, r->lanes };

    compress_tiles(&r->a, w, &r->room, r->side, r->job, r->head, r->tile,
                   r->step);
}

extern "C" int
emulate_kv_compress(const tr_kv_view_t *kv, const tr_kv_compress_t *jobs,
                    uint32_t n, uint32_t max_len, uint32_t *refused,
                    uint32_t lanes)
{
    compress_run_t *r = (compress_run_t *) malloc(sizeof(*r));
    uint32_t heads = kv->layers * kv->lists;

    r->a.kv = *kv;
    copy_layouts(kv, r->a.layout);
    r->a.jobs = jobs;
    r->a.max_len = max_len;
    r->a.refused = refused;
    r->a.head = (compress_head_t *) malloc((size_t) n * heads
                                           * sizeof(compress_head_t));
    r->a.order = (uint32_t *) malloc((size_t) n * heads * max_len * 4 + 4);
    r->lanes = lanes;
    memset(refused, 0, n * sizeof(*refused));
    for (uint32_t i = 0; i < n * heads; i++) {
        memset(&r->index, 0xaa, sizeof(r->index));
        r->job = i / heads;
        r->head = i % heads;
        emulate_run(lanes, index_lane, r);
    }
    for (uint32_t i = 0; i < n * heads * 2; i++) {
        r->job = i / 2 / heads;
        r->head = i / 2 % heads;
        r->side = i % 2 == 0 ? KEY : VALUE;
        r->step = 1 + random_below(4); /* warps */
        for (r->tile = 0; r->tile < r->step; r->tile++) {
            memset(&r->room, 0xaa, sizeof(r->room));
            emulate_run(lanes, tile_lane, r);
        }
    }
    free(r->a.head);
    free(r->a.order);
    free(r);
    return TR_KERNEL_OK;
}

typedef struct {
    generic_args_t a;
    union {
        attend_room_t attend;
        score_room_t score;
        victim_room_t victim;
        choose_room_t choose;
    } room;
    uint32_t lanes, x, list, piece, part;
    bool more;
} attention_run_t;

static void
choose_lane(void *arg, uint32_t lane)
{
    attention_run_t *r = (attention_run_t *) arg;
    block_t b = { lane, r->lanes };

    generic_choose(&r->a, b, &r->room.choose, r->x, r->list);
}

static void
attend_lane(void *arg, uint32_t lane)
{
    attention_run_t *r = (attention_run_t *) arg;
    block_t b = { lane, r->lanes };

    generic_attend(&r->a, b, &r->room.attend, r->x, r->list, r->piece, r->part);
}

static void
merge_lane(void *arg, uint32_t lane)
{
    attention_run_t *r = (attention_run_t *) arg;
    block_t b = { lane, r->lanes };

    generic_merge(&r->a, b, &r->room.attend, r->x, r->list, r->piece);
}

static void
score_lane(void *arg, uint32_t lane)
{
    attention_run_t *r = (attention_run_t *) arg;
    block_t b = { lane, r->lanes };

    r->more = generic_score(&r->a, b, &r->room.score, r->x, r->list, r->part);
}

static void
victims_lane(void *arg, uint32_t lane)
{
    attention_run_t *r = (attention_run_t *) arg;
    block_t b = { lane, r->lanes };

    generic_victims(&r->a, b, &r->room.victim, r->x, r->list);
}

/* f for [0, n) x all lists x pieces x parts. */
static void
run_grid(attention_run_t *r, lane_f f, uint32_t n, uint32_t pieces,
         uint32_t parts)
{
    for (r->x = 0; r->x < n; r->x++) {
        for (r->list = 0; r->list < r->a.kv.lists; r->list++) {
            for (r->piece = 0; r->piece < pieces; r->piece++) {
                for (r->part = 0; r->part < parts; r->part++) {
                    memset(&r->room, 0xff, sizeof(r->room));
                    emulate_run(r->lanes, f, r);
                }
            }
        }
    }
}

extern "C" int
emulate_attention(const tr_kv_view_t *kv, uint32_t layer, const tr_rows_t *rows,
                  const tr_cuda_queries_t *queries,
                  const tr_cuda_generic_size_t *size, uint32_t lanes)
{
    attention_run_t *r = (attention_run_t *) malloc(sizeof(*r));
    uint32_t pieces = (queries->heads / kv->lists + HEADS - 1) / HEADS;
    uint32_t part = part_size(size->max_len / 4);
    size_t parts = size->max_len / 4 / part + 2;
    size_t pages = size->max_len / 8 + 1, n = rows->n_seqs;

    r->a.kv = *kv;
    copy_layouts(kv, r->a.layout);
    r->a.rows = *rows;
    r->a.queries = *queries;
    r->a.layer = layer;
    r->a.group = queries->heads / kv->lists;
    r->a.parts = (uint32_t) parts;
    r->a.part_tiles = part;
    r->a.pages = (uint32_t) pages;
    r->a.partial = (float *) malloc(n * parts * queries->heads
                                    * (kv->head_dim + 2) * 4);
    r->a.lse = (float *) malloc((size_t) rows->n_rows * queries->heads * 4);
    r->a.bound = (uint32_t *) malloc(n * kv->lists * pages * 4);
    r->a.chosen = (int32_t *) malloc(n * kv->lists * pages * 4);
    r->lanes = lanes < LANES_MAX ? lanes : LANES_MAX;
    run_grid(r, choose_lane, rows->n_seqs, 1, 1);
    run_grid(r, attend_lane, rows->n_rows, pieces, r->a.parts);
    run_grid(r, merge_lane, rows->n_seqs, pieces, 1);
    for (r->x = 0; r->x < rows->n_seqs; r->x++) {
        for (r->list = 0; r->list < kv->lists; r->list++) {
            r->more = true;
            for (r->part = 0; r->more; r->part++) {
                memset(&r->room, 0xff, sizeof(r->room));
                emulate_run(r->lanes, score_lane, r);
            }
        }
    }
    run_grid(r, victims_lane, rows->n_seqs, 1, 1);
    free(r->a.partial);
    free(r->a.lse);
    free(r->a.bound);
    free(r->a.chosen);
    free(r);
    return TR_KERNEL_OK;
}
