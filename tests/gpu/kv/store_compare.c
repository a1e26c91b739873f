/*
 * What a compression changes for a prompt's last queries, on both sides.  See
 * store_ops.h.
 */
#include "store_ops.h"

#include <cuda_runtime_api.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define QUERIES 40u

typedef struct {
    tr_kv_compare_t host;
    tr_cuda_kv_compare_t other;
    uint32_t layer[TR_CUDA_COMPARE_LAYERS];
    size_t changes;
    float *q, *sinks;
    const float **of_layer;
    void *q_there, *sinks_there, *of_layer_there, *change_there;
} asked_t;

/* Sinks of softmax, of some layers. */
static void
choose_sinks(fixture_t *b, asked_t *x)
{
    uint32_t layers = b->host.layers, heads = x->host.heads;
    const float **there = malloc(layers * sizeof(*there));

    x->sinks = malloc((size_t) layers * heads * sizeof(*x->sinks));
    x->of_layer = malloc(layers * sizeof(*x->of_layer));
    x->sinks_there = fixture_room((size_t) layers * heads * sizeof(*x->sinks));
    x->of_layer_there = fixture_room(layers * sizeof(*there));
    for (uint32_t i = 0; i < layers * heads; i++) {
        x->sinks[i] = (float) random_normal();
    }
    for (uint32_t l = 0; l < layers; l++) {
        bool has = random_below(2);

        x->of_layer[l] = has ? x->sinks + (size_t) l * heads : NULL;
        there[l] = has ? (float *) x->sinks_there + (size_t) l * heads : NULL;
    }
    fixture_put(x->sinks_there, x->sinks,
                (size_t) layers * heads * sizeof(*x->sinks));
    fixture_put(x->of_layer_there, there, layers * sizeof(*there));
    free(there);
}

/* Queries of some layers, in 16 bits there. */
static void
choose_queries(fixture_t *b, const tr_kv_compress_t *job, asked_t *x)
{
    uint32_t dim = b->host.head_dim, most = job->n_uncompressed;
    uint32_t rows = QUERIES, heads;
    size_t n, ld;
    uint16_t *as;

    most = most < QUERIES ? most : QUERIES;
    heads = b->host.kv_heads * (1 + random_below(4));
    ld = (size_t) heads * dim + random_below(3) * 8;
    x->host = (tr_kv_compare_t){ .layer = x->layer,
                                 .n = 1 + random_below(most),
                                 .heads = heads,
                                 .scale = (float) (1 / sqrt(dim)) };
    x->host.first = job->to->base - x->host.n;
    for (uint32_t l = 0;
         l < b->host.layers && x->host.n_layers < TR_CUDA_COMPARE_LAYERS; l++) {
        if (random_below(2)) {
            x->layer[x->host.n_layers++] = l;
        }
    }
    x->other = (tr_cuda_kv_compare_t){ .slot = job->slot,
                                       .first = x->host.first,
                                       .n = x->host.n,
                                       .n_layers = x->host.n_layers,
                                       .heads = heads,
                                       .scale = x->host.scale,
                                       .rows = rows,
                                       .ld = ld,
                                       .type = random_below(2) ? TR_F16
                                                               : TR_BF16 };
    memcpy(x->other.layer, x->layer, sizeof(x->layer));
    n = (size_t) TR_CUDA_COMPARE_LAYERS * rows * ld;
    as = calloc(n, sizeof(*as));
    x->host.ld = (size_t) rows * heads * dim;
    x->q = calloc(TR_CUDA_COMPARE_LAYERS * x->host.ld, sizeof(*x->q));
    for (uint32_t r = 0; r < TR_CUDA_COMPARE_LAYERS * rows; r++) {
        for (uint32_t i = 0; i < heads * dim; i++) {
            float f = (float) random_normal();
            uint16_t h = half_from((double) f);

            if (x->other.type == TR_BF16) {
                h = (uint16_t) (tr_float_bits(f) >> 16);
            }
            as[r * ld + i] = h;
            x->q[(size_t) r * heads * dim + i] = x->other.type == TR_BF16
                                                     ? tr_float_from_bits(
                                                         (uint32_t) h << 16)
                                                     : tr_float_from_half(h);
        }
    }
    x->host.q = x->q;
    x->q_there = fixture_room(n * sizeof(*as));
    fixture_put(x->q_there, as, n * sizeof(*as));
    x->other.q = x->q_there;
    free(as);
}

static bool
near(float got, float want, float whole)
{
    return fabsf(got - want) <= 2e-3f * want + 1e-4f * whole + 1e-30f;
}

static bool
same_changes(const asked_t *x, const tr_kv_change_t *got)
{
    const tr_kv_change_t *want = x->host.change;

    for (size_t i = 0; i < x->changes; i++) {
        float whole = want[i].whole;

        if (!near(got[i].whole, whole, whole)
            || !near(got[i].keys, want[i].keys, whole)
            || !near(got[i].values, want[i].values, whole)) {
            printf("channel %zu of %zu: %g, keys %g, values %g, expected %g, "
                   "%g, %g\n",
                   i, x->changes, (double) got[i].whole, (double) got[i].keys,
                   (double) got[i].values, (double) whole,
                   (double) want[i].keys, (double) want[i].values);
            return false;
        }
    }
    return true;
}

static void
compare_here(fixture_t *b, const tr_kv_compress_t *job, asked_t *x)
{
    size_t bytes = tr_cpu_kv_compare_work(&store_cpu, x->host.n, x->host.heads,
                                          b->host.kv_heads, b->host.head_dim);
    void *work = aligned_alloc(64, tr_pad(bytes, 64));

    x->host.change = calloc(x->changes + 1, sizeof(*x->host.change));
    if (tr_cpu_kv_compare(&store_cpu, &b->host, job, &x->host, store_codec(),
                          work)
        != 0) {
        printf("the CPU refused a comparison\n");
        exit(1);
    }
    free(work);
}

bool
store_compare(fixture_t *b, const tr_kv_compress_t *job,
              const store_jobs_t *jobs)
{
    asked_t x = { 0 };
    tr_kv_view_t view = b->other;
    tr_kv_change_t *got;
    bool ok, nobody = random_below(8) == 0;

    if (b->nan_in || job->n_uncompressed == 0) {
        return true;
    }
    choose_queries(b, job, &x);
    if (random_below(2)) {
        choose_sinks(b, &x);
        x.host.sinks = x.of_layer;
        view.sinks = x.of_layer_there;
    }
    x.changes = (size_t) x.host.n_layers * b->host.kv_heads * b->host.head_dim;
    got = calloc(x.changes + 1, sizeof(*got));
    x.change_there = fixture_room((x.changes + 1) * sizeof(*got));
    x.other.change = x.change_there;
    compare_here(b, job, &x);
    if (nobody) { /* a slot that has no job: nothing moves */
        x.other.slot = FIXTURE_SLOTS + 7;
        memset(x.host.change, 0, x.changes * sizeof(*got));
    }
    if (tr_cuda_kv_compare(&b->side->stream, &view, jobs->jobs, jobs->n,
                           jobs->max_len, jobs->refused, &x.other, jobs->work)
        != 0) {
        printf("launch: %s\n", tr_cuda_reason());
        exit(1);
    }
    cuda_ok(cudaDeviceSynchronize(), "compare");
    fixture_get(got, x.change_there, x.changes * sizeof(*got));
    ok = same_changes(&x, got);
    store_checks++;
    free(got);
    free(x.q);
    free(x.sinks);
    free(x.of_layer);
    free(x.host.change);
    fixture_room_free(x.q_there);
    fixture_room_free(x.change_there);
    if (view.sinks != NULL) {
        fixture_room_free(x.sinks_there);
        fixture_room_free(x.of_layer_there);
    }
    return ok ? true : store_say("a comparison differs from the CPU's");
}
