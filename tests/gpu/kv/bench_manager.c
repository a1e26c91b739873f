/*
 * What it costs to manage the pages of a differentiated cache on the device.
 *
 *   bench_manager
 *
 * The shape of DiffKV's figure 13, for the heads of Llama-3-8B (32 layers, 8 KV
 * heads): a prompt step (1,024 tokens a request: uncompressed pages, what each
 * token becomes, pages of the tiers, recycling; without moving tokens) and a
 * generation step, over batches of 1 to 256.  The device runs diffkv over
 * random scores.
 *
 * Times are between events, of 16 steps in one graph, or of the three launches
 * of a prompt step; medians.
 */
#include "kernels/cuda/device_manager.h"
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/gpu/fixtures/cache.h"
#include "engine/kv/kv_cache.h"
#include "manager_fill.h"

#define LAYERS 32u
#define KV_HEADS 8u
#define BATCH_MAX 256u
#define PROMPT 1024u
#define MIDDLE 4096u /* the batch of 64 whose decode step is measured */
#define LONG_PROMPT 8192u
#define MAX_LEN 9216u
#define GROUP 32u /* prompts of one launch */
#define STEPS 16u
#define REPLAYS 15u
#define ROUNDS 5u
#define POOL (24ull << 30)

static int
by_value(const void *a, const void *b)
{
    double x = *(const double *) a, y = *(const double *) b;

    return x < y ? -1 : x > y;
}

static double
median(double *x, size_t n)
{
    qsort(x, n, sizeof(*x), by_value);
    return x[n / 2];
}

static void
must(bool ok, const char *what)
{
    if (!ok) {
        printf("bench_manager: %s (%s)\n", what, tr_cuda_reason());
        exit(1);
    }
}

/* ---- the device --------------------------------------------------------- */

typedef struct {
    tr_kv_manager_t m;
    tr_cuda_stream_t s;
    tr_device_props_t device;
    tr_kv_policy_t *policy;
    tr_kv_cache_t *kv; /* for the geometry of its tables */
    cudaEvent_t begin, end;
    tr_kv_open_t *open, *device_open;
    tr_kv_begin_t *first, *device_first;
    tr_kv_page_request_t *ask, *device_ask;
    tr_kv_complete_t *complete, *device_complete;
    int32_t *slots, *device_slots;
} bench_t;

/* An array of n on the host and one on the device. */
static void
make_pair(void *host, void *device, size_t bytes)
{
    void *h = calloc(1, bytes), *d;

    must(h != NULL, "no memory");
    cuda_ok(cudaMalloc(&d, bytes), "input");
    memcpy(host, &h, sizeof(h));
    memcpy(device, &d, sizeof(d));
}

static void
send(const bench_t *b, void *to, const void *from, size_t bytes)
{
    cuda_ok(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice,
                            b->s.stream),
            "input");
}

static void
start(bench_t *b)
{
    cuda_ok(cudaEventRecord(b->begin, b->s.stream), "event");
}

/* Microseconds since start. */
static double
stop(bench_t *b)
{
    float ms;

    cuda_ok(cudaEventRecord(b->end, b->s.stream), "event");
    cuda_ok(cudaEventSynchronize(b->end), "manager");
    cuda_ok(cudaEventElapsedTime(&ms, b->begin, b->end), "event");
    return ms * 1e3;
}

static void
bench_create(bench_t *b)
{
    tr_kv_config_t c = { .layers = LAYERS,
                         .kv_heads = KV_HEADS,
                         .head_dim = 128,
                         .slots = BATCH_MAX,
                         .max_len = MAX_LEN,
                         .memory = POOL,
                         .n_policies = 1 };
    const tr_kv_policy_t *policies[1];
    tr_kv_manager_size_t size = { .slots = BATCH_MAX,
                                  .max_len = MAX_LEN,
                                  .max_prompts = GROUP };
    tr_kv_view_t shape;
    tr_error_t err;
    cudaStream_t stream;
    void *pool, *memory;
    size_t bytes;

    must(tr_cuda_open(0, &b->device) == 0, "no device");
    must(tr_kv_policy_create("diffkv:alpha_high=1,alpha_low=0.02", LAYERS,
                             KV_HEADS, 128, &b->policy, &err)
             == TR_OK,
         "policy");
    policies[0] = b->policy;
    c.policies = policies;
    must(tr_kv_cache_create(&c, &b->kv, &err) == TR_OK, err.text);
    tr_kv_view(b->kv, &shape);
    size.pages = (uint32_t) tr_kv_pages(b->kv);
    cuda_ok(cudaMalloc(&pool, POOL), "pool");
    cuda_ok(cudaMemset(pool, 0, POOL), "pool");
    shape.pool = pool;
    bytes = tr_cuda_manager_memory(&shape, &size);
    cuda_ok(cudaMalloc(&memory, bytes), "manager");
    cuda_ok(cudaStreamCreate(&stream), "stream");
    cuda_ok(cudaEventCreate(&b->begin), "event");
    cuda_ok(cudaEventCreate(&b->end), "event");
    b->s = (tr_cuda_stream_t){ stream, &b->device };
    must(tr_cuda_manager_create(&b->s, &shape, &size, memory, &b->m) == 0,
         "create");
    make_pair(&b->open, &b->device_open, BATCH_MAX * sizeof(*b->open));
    make_pair(&b->first, &b->device_first, BATCH_MAX * sizeof(*b->first));
    make_pair(&b->ask, &b->device_ask, BATCH_MAX * sizeof(*b->ask));
    make_pair(&b->complete, &b->device_complete,
              BATCH_MAX * sizeof(*b->complete));
    make_pair(&b->slots, &b->device_slots, BATCH_MAX * sizeof(*b->slots));
}

/* Slots [from, from + n) are taken; prompts of len tokens are announced. */
static void
bench_open(bench_t *b, uint32_t from, uint32_t n, uint32_t len)
{
    tr_kv_view_t view;
    int32_t slot = tr_kv_open(b->kv, b->policy);

    tr_kv_view(b->kv, &view);
    for (uint32_t i = 0; i < n; i++) {
        b->open[i].slot = b->first[i].slot = (int32_t) (from + i);
        b->open[i].seq = view.seq[slot];
        b->open[i].rule = b->policy->rule;
        b->first[i].len = len;
        b->ask[i] = (tr_kv_page_request_t){ (int32_t) (from + i), TR_KV_ANY,
                                            len };
        b->complete[i].slot = (int32_t) (from + i);
        b->complete[i].len = len;
        b->complete[i].rule = b->policy->rule;
    }
    tr_kv_close(b->kv, slot);
    send(b, b->device_open, b->open, n * sizeof(*b->open));
    send(b, b->device_first, b->first, n * sizeof(*b->first));
    send(b, b->device_ask, b->ask, n * sizeof(*b->ask));
    send(b, b->device_complete, b->complete, n * sizeof(*b->complete));
    must(tr_cuda_manager_open(&b->s, &b->m, b->device_open, n) == 0
             && tr_cuda_manager_prompt(&b->s, &b->m, b->device_first, n) == 0,
         "open");
}

/* Prompts of slots [0, n), some at a time; the microseconds of all. */
static double
bench_prompts(bench_t *b, uint32_t n, uint32_t len)
{
    double us = 0;

    for (uint32_t from = 0; from < n; from += GROUP) {
        uint32_t some = n - from < GROUP ? n - from : GROUP;

        bench_open(b, from, some, len);
        start(b);
        must(tr_cuda_manager_step(&b->s, &b->m, b->device_ask, some) == 0,
             "prompt");
        us += stop(b);
        cuda_ok(manager_fill(&b->m, b->s.stream), "scores");
        start(b);
        must(tr_cuda_manager_plan_prompts(&b->s, &b->m, b->device_complete,
                                          some)
                     == 0
                 && tr_cuda_manager_install_prompts(&b->s, &b->m, some) == 0,
             "prompt");
        us += stop(b);
    }
    cuda_ok(manager_fill(&b->m, b->s.stream), "scores");
    return us;
}

static double
bench_close(bench_t *b, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        b->slots[i] = (int32_t) i;
    }
    send(b, b->device_slots, b->slots, n * sizeof(*b->slots));
    start(b);
    must(tr_cuda_manager_close(&b->s, &b->m, b->device_slots, n) == 0, "close");
    return stop(b);
}

/* One generation step of n requests. */
static double
bench_steps(bench_t *b, uint32_t n)
{
    cudaStream_t stream = b->s.stream;
    double us[REPLAYS];
    cudaGraph_t graph;
    cudaGraphExec_t exec;

    for (uint32_t i = 0; i < n; i++) {
        b->ask[i] = (tr_kv_page_request_t){ (int32_t) i, TR_KV_ANY,
                                            TR_KV_NEXT };
    }
    send(b, b->device_ask, b->ask, n * sizeof(*b->ask));
    cuda_ok(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal),
            "capture");
    for (uint32_t i = 0; i < STEPS; i++) {
        must(tr_cuda_manager_step(&b->s, &b->m, b->device_ask, n) == 0, "step");
    }
    cuda_ok(cudaStreamEndCapture(stream, &graph), "capture");
    cuda_ok(cudaGraphInstantiate(&exec, graph, 0), "graph");
    for (uint32_t r = 0; r < REPLAYS; r++) {
        start(b);
        cuda_ok(cudaGraphLaunch(exec, stream), "graph");
        us[r] = stop(b) / STEPS;
    }
    cudaGraphExecDestroy(exec);
    cudaGraphDestroy(graph);
    return median(us, REPLAYS);
}

/* All that was granted was granted. */
static uint64_t
bench_check(bench_t *b)
{
    tr_kv_report_t r;

    cuda_ok(cudaStreamSynchronize(b->s.stream), "manager");
    cuda_ok(cudaMemcpy(&r, b->m.report, sizeof(r), cudaMemcpyDeviceToHost),
            "report");
    must(r.faults == 0 && r.n_stalled == 0 && r.n_refused == 0,
         "stalled, refused or at fault: the pool is too small");
    return b->m.size.pages - (r.end - r.start);
}

typedef struct {
    double prompt, step, close;
    uint64_t pages;
} cost_t;

static cost_t
device_cost(bench_t *b, uint32_t n, uint32_t len)
{
    double prompt[ROUNDS], close[ROUNDS];
    cost_t c = { 0 };

    for (uint32_t r = 0; r < ROUNDS; r++) {
        prompt[r] = bench_prompts(b, n, len);
        if (r + 1 == ROUNDS) {
            c.step = bench_steps(b, n);
            c.pages = bench_check(b);
        }
        close[r] = bench_close(b, n);
    }
    c.prompt = median(prompt, ROUNDS);
    c.close = median(close, ROUNDS);
    bench_check(b);
    return c;
}

static void
line(bench_t *b, uint32_t n, uint32_t len)
{
    cost_t d = device_cost(b, n, len);

    printf("  %5u x %4u %12.1f %16.1f %8.1f %9llu\n", n, len, d.prompt, d.step,
           d.close, (unsigned long long) d.pages);
    fflush(stdout);
}

int
main(void)
{
    static bench_t b;

    bench_create(&b);
    printf("memory management, %u layers x %u KV heads, diffkv, microseconds\n"
           "    requests  prompt step  generation step    close     pages\n",
           LAYERS, KV_HEADS);
    for (uint32_t n = 1; n <= BATCH_MAX; n *= 2) {
        line(&b, n, PROMPT);
    }
    line(&b, 64, MIDDLE);
    line(&b, 1, LONG_PROMPT);
    line(&b, 4, LONG_PROMPT);
    return 0;
}
