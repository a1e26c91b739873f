/*
 * Decode attention of the CUDA backend against double precision: all head
 * sizes, groups, level tables; odd lengths; pages full of NaN around the
 * tokens; few and many multiprocessors and all ways to spread the work, so that
 * heads are cut in all ways.
 *
 *   test_decode [rounds [seed]]
 */
#include "tests/gpu/fixtures/cache.h"

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define STEPS 3 /* of a round */

static const tr_kv_level_t levels[] = {
    { 8, 8, 1, 1, 0, 1, 0, 0 }, { 8, 4, 1, 1, 0, 1, 0, 0 },
    { 4, 2, 1, 1, 0, 1, 0, 0 }, { 4, 4, 1, 1, 0, 1, 0, 0 },
    { 8, 2, 1, 1, 0, 1, 0, 0 }, { 2, 2, 1, 1, 0, 1, 0, 0 },
};

/* Two pairs or four of {scale, zero} a key and a value, where there are tiles for
 * that. */
static void
choose_groups(cache_shape_t *w)
{
    for (uint32_t i = 0; i < w->n_levels; i++) {
        tr_kv_level_t *l = &w->level[i];

        if ((l->key_bits == 8 && l->value_bits == 4)
            || (l->key_bits == 4 && l->value_bits <= 4)) {
            l->key_groups = l->value_groups = (uint8_t) (1u << random_below(3));
        }
    }
}

/* Heads and groups that only uncompressed tokens without scores have. */
static void
choose_wide(cache_shape_t *w)
{
    w->head_dim = 64u << random_below(3);
    w->heads = w->kv_heads * (1 + random_below(w->head_dim == 256 ? 8 : 16));
}

static void
choose_shape(cache_shape_t *w, uint32_t round)
{
    uint32_t group = 1 + round % 8,
             n = (uint32_t) (sizeof(levels) / sizeof(levels[0]));

    memset(w, 0, sizeof(*w));
    w->head_dim = random_below(3) == 0 ? 64 : 128;
    w->layers = 1 + random_below(4);
    w->kv_heads = 1 + random_below(4);
    w->heads = group * w->kv_heads;
    w->seqs = 1 + random_below(7);
    w->n_levels = random_below(5);
    w->uncompressed_scored = random_below(2) == 0;
    w->max_tier = 1 + random_below(random_below(3) == 0 ? 1500 : 200);
    w->max_uncompressed = 1 + random_below(random_below(3) == 0 ? 1500 : 200);
    w->max_window = random_below(100);
    w->max_sinks = random_below(2) ? random_below(40) : 0;
    w->wild = random_below(2) == 0;
    if (random_below(12) == 0) { /* a head of hundreds of parts and of rows */
        w->kv_heads = 1;
        w->heads = group;
        w->seqs = 1;
        w->layers = 1 + random_below(3);
        w->n_levels = 1 + random_below(2);
        w->max_tier = 9000 + random_below(12000);
    }
    for (uint32_t i = 0; i < w->n_levels; i++) { /* distinct */
        w->level[i] = levels[(round + i * (round % 2 == 0 ? 1 : n - 1)) % n];
    }
    if (random_below(3) != 0) {
        choose_groups(w);
    }
    if (w->n_levels > 1 && random_below(3) == 0) { /* it forgets nothing */
        w->level[w->n_levels - 1].scored = 0;
        w->level[w->n_levels - 1].placed = random_below(2) == 0;
    }
    if (random_below(8) == 0) { /* tiers of several jobs and many pages */
        w->kv_heads = 1;
        w->heads = group;
        w->seqs = 1 + random_below(2);
        w->max_tier = 1500 + random_below(4000);
    }
    if (random_below(8) == 0) { /* more heads than the plan has threads */
        w->kv_heads = 4;
        w->heads = group * w->kv_heads;
        w->layers = 1 + random_below(2);
        w->seqs = 260 + random_below(60);
        w->max_tier = w->max_uncompressed = 1 + random_below(40);
        w->max_window = random_below(10);
    }
    if (random_below(4) == 0) { /* a policy without scores */
        for (uint32_t i = 0; i < w->n_levels; i++) {
            w->level[i].scored = 0;
        }
        w->uncompressed_scored = false;
    }
    if (random_below(3) == 0) { /* sliding windows, which only these have */
        w->n_levels = 0;
        w->uncompressed_scored = false;
        w->reach = random_below(3) != 0;
        w->max_window = 0;
    } else if (w->max_tier < 1000 && random_below(3) == 0) {
        w->reach = w->slides = true; /* beside compressed ones */
    }
    w->sinks = random_below(3) == 0;
    if (w->n_levels == 0 && !w->uncompressed_scored && random_below(3) != 0) {
        choose_wide(w);
    }
}

/* All layers, with a plan, or with the one that is there. */
static void
launch(cache_t *c, const tr_cuda_stream_t *s, bool plan, void *work)
{
    uint32_t n = c->shape.heads * c->shape.head_dim;
    tr_cuda_decode_size_t size = cache_size(c);
    tr_cuda_queries_t q = { c->device_q, c->device_out,  n,       n, TR_F32,
                            TR_F32,      c->shape.heads, c->scale };
    int rc = 0;

    if (plan) {
        rc = tr_cuda_decode_plan(s, &c->device, &c->device_rows, &size, work);
    }
    for (uint32_t layer = 0; layer < c->shape.layers && rc == 0; layer++) {
        rc = tr_cuda_decode(s, &c->device, layer, &c->device_rows, &q, &size,
                            work);
        q.out = (float *) q.out + (size_t) c->rows.n_rows * n;
    }
    if (rc == 0) {
        rc = tr_cuda_decode_score(s, &c->device, &c->device_rows, &size, work);
    }
    if (rc != 0) {
        printf("launch: %s\n", tr_cuda_reason());
        exit(1);
    }
}

/* Positions of two bytes in one layout and of four in another are refused. */
static bool
refused_widths(const cache_t *c, const tr_cuda_stream_t *s, void *work)
{
    uint32_t n = c->shape.heads * c->shape.head_dim;
    tr_cuda_decode_size_t size = cache_size(c);
    tr_cuda_queries_t q = { c->device_q, c->device_out,  n,       n, TR_F32,
                            TR_F32,      c->shape.heads, c->scale };
    tr_kv_layout_t layout[TR_KV_LAYOUTS_MAX];
    tr_kv_view_t v = c->device;
    int rc;

    if (v.n_layouts < 3) {
        return true;
    }
    memcpy(layout, v.layout, v.n_layouts * sizeof(*layout));
    layout[1].position_bytes = 2;
    layout[2].position_bytes = 4;
    v.layout = layout;
    rc = tr_cuda_decode(s, &v, 0, &c->device_rows, &q, &size, work);
    if (rc != TR_KERNEL_BADARG) {
        printf("positions of two widths: %d, expected a refusal\n", rc);
    }
    return rc == TR_KERNEL_BADARG;
}

/* .. and so are scores, where there is no code for them. */
static bool
refused_scores(const cache_t *c, const tr_cuda_stream_t *s, void *work)
{
    uint32_t n = c->shape.heads * c->shape.head_dim;
    uint32_t group = c->shape.heads / c->shape.kv_heads;
    tr_cuda_decode_size_t size = cache_size(c);
    tr_cuda_queries_t q = { c->device_q, c->device_out,  n,       n, TR_F32,
                            TR_F32,      c->shape.heads, c->scale };
    tr_kv_layout_t layout = c->device.layout[0];
    tr_kv_view_t v = c->device;
    int rc;

    if (c->shape.head_dim <= 128 && group <= 8) {
        return true;
    }
    layout.level.scored = 1;
    v.layout = &layout;
    rc = tr_cuda_decode(s, &v, 0, &c->device_rows, &q, &size, work);
    if (rc != TR_KERNEL_BADARG) {
        printf("scores: %d, expected a refusal\n", rc);
    }
    return rc == TR_KERNEL_BADARG;
}

/* The same through a graph, which is what the engine will do. */
static void
launch_graph(cache_t *c, tr_cuda_stream_t *s, bool plan, void *work)
{
    cudaStream_t stream = s->stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;

    cuda_ok(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal),
            "capture");
    launch(c, s, plan, work);
    cuda_ok(cudaStreamEndCapture(stream, &graph), "end of capture");
    cuda_ok(cudaGraphInstantiate(&exec, graph, 0), "graph");
    cuda_ok(cudaGraphLaunch(exec, stream), "graph launch");
    cuda_ok(cudaStreamSynchronize(stream), "graph run");
    cudaGraphExecDestroy(exec);
    cudaGraphDestroy(graph);
}

static bool
one_round(const tr_device_props_t *device, cudaStream_t stream, uint32_t round,
          double *worst_out, double *worst_score)
{
    tr_device_props_t d = *device;
    tr_cuda_stream_t s = { stream, &d };
    cache_shape_t shape;
    cache_t c;
    void *work;
    bool ok = true;

    choose_shape(&shape, round);
    cache_create(&c, &shape);
    if (random_below(2) == 0) { /* with few, blocks have whole heads */
        d.blocks = 1 + random_below(random_below(2) == 0 ? 6 : d.blocks);
    }
    if (random_below(2) == 0) {
        d.dependent = false;
    }
    tr_cuda_decode_size_t size = cache_size(&c);
    size_t bytes = tr_cuda_decode_work(&d, &size);

    cuda_ok(cudaMalloc(&work, bytes), "workspace");
    cuda_ok(cudaMemset(work, 0xff, bytes), "workspace");
    ok = refused_widths(&c, &s, work) && refused_scores(&c, &s, work);
    for (uint32_t i = 0; i < STEPS && ok; i++) { /* also with an old plan */
        bool plan = i == 0 || random_below(2) == 0;

        cuda_ok(cudaDeviceSynchronize(), "before");
        if (random_below(2) == 0) {
            launch_graph(&c, &s, plan, work);
        } else {
            launch(&c, &s, plan, work);
        }
        cuda_ok(cudaDeviceSynchronize(), "decode");
        ok = cache_check(&c, worst_out, worst_score);
    }
    if (!ok) {
        printf("head size %u, KV heads %u, heads %u, sequences %u, levels",
               shape.head_dim, shape.kv_heads, shape.heads, shape.seqs);
        for (uint32_t i = 0; i < shape.n_levels; i++) {
            printf(" %u/%u(%u)", shape.level[i].key_bits,
                   shape.level[i].value_bits, shape.level[i].key_groups);
        }
        printf(", slides %d, wild %d, reach %d, sinks %d, blocks %u, dependent "
               "%d\n",
               shape.slides, shape.wild, shape.reach, shape.sinks, d.blocks,
               d.dependent);
    }
    cuda_ok(cudaFree(work), "free");
    cache_free(&c);
    return ok;
}

int
main(int argc, char **argv)
{
    uint32_t rounds = argc > 1 ? (uint32_t) atoi(argv[1]) : 64, failed = 0;
    uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 10)
                             : (uint64_t) time(NULL);
    double worst_out = 0, worst_score = 0;
    tr_device_props_t device;
    cudaStream_t stream;

    if (tr_cuda_open(0, &device) != 0) {
        printf("no device: %s\n", tr_cuda_reason());
        return 77;
    }
    cuda_ok(cudaStreamCreate(&stream), "stream");
    for (uint32_t r = 0; r < rounds; r++) {
        random_seed(seed + r);
        if (!one_round(&device, stream, (uint32_t) (seed + r), &worst_out,
                       &worst_score)) {
            printf("FAILED: test_decode 1 %llu\n",
                   (unsigned long long) (seed + r));
            failed++;
        }
    }
    printf("decode: %u rounds from seed %llu, %u failed; largest relative "
           "error %.1e of outputs, %.1e of probabilities\n",
           rounds, (unsigned long long) seed, failed, worst_out, worst_score);
    cudaStreamDestroy(stream);
    return failed != 0;
}
