/*
 * The page manager on a GPU (kernels/cuda/device_manager.h) beside the CPU's, under
 * the same random operations: chunks, prompts, steps, later turns, release,
 * pools that run out, rings that wrap.  After each operation tables, counts,
 * candidates, moves, the free ring and the owners are equal (manager_round.h).
 * Steps run through graphs from time to time, which is what the engine will do.
 *
 *   test_manager [rounds [seed]]
 */
#include <cuda_runtime_api.h>
#include <time.h>

#include "kernels/cuda/device_manager.h"

#include "tests/gpu/fixtures/cache.h"
#include "manager_round.h"

#define OPERATIONS 120u

typedef struct {
    tr_kv_manager_t m;       /* on the device */
    tr_kv_manager_t *mirror; /* its memory on the host */
    tr_cuda_stream_t stream;
    tr_device_props_t device;
    const uint8_t *pool; /* the CPU's */
    size_t pool_bytes, bytes;
    void *memory, *host, *in, *device_pool;
    double *copy[FIXTURE_POLICIES];
    uint32_t copies;
} gpu_t;

#define INPUT_BYTES (FIXTURE_LIST * sizeof(int32_t))

static bool
gpu_create(void *arg, const tr_kv_view_t *shape,
           const tr_kv_manager_size_t *size, const uint8_t *pool,
           uint64_t pool_bytes, tr_kv_manager_t *mirror)
{
    gpu_t *g = arg;
    tr_kv_view_t of = *shape;

    g->bytes = tr_cuda_manager_memory(shape, size);
    g->pool = pool;
    g->pool_bytes = pool_bytes;
    cuda_ok(cudaMalloc(&g->memory, g->bytes), "manager");
    cuda_ok(cudaMemset(g->memory, 0xa5, g->bytes), "manager");
    cuda_ok(cudaMalloc(&g->device_pool, pool_bytes), "pool");
    cuda_ok(cudaMalloc(&g->in, INPUT_BYTES), "input");
    g->host = aligned_alloc(256, g->bytes);
    of.pool = g->device_pool;
    if (g->host == NULL
        || tr_cuda_manager_create(&g->stream, &of, size, g->memory, &g->m)
               != TR_KERNEL_OK) {
        printf("create: %s\n", tr_cuda_reason());
        return false;
    }
    manager_lay(shape, size, g->host, mirror);
    g->mirror = mirror;
    return true;
}

static void
gpu_destroy(void *arg)
{
    gpu_t *g = arg;

    cuda_ok(cudaFree(g->memory), "free");
    cuda_ok(cudaFree(g->device_pool), "free");
    cuda_ok(cudaFree(g->in), "free");
    free(g->host);
    while (g->copies > 0) {
        cuda_ok(cudaFree(g->copy[--g->copies]), "free");
    }
}

static const double *
gpu_copy(void *arg, const double *from, size_t n)
{
    gpu_t *g = arg;
    void *to;

    cuda_ok(cudaMalloc(&to, n * sizeof(*from)), "numbers");
    cuda_ok(cudaMemcpy(to, from, n * sizeof(*from), cudaMemcpyHostToDevice),
            "numbers");
    return g->copy[g->copies++] = to;
}

static void
gpu_pool(void *arg)
{
    gpu_t *g = arg;

    cuda_ok(cudaMemcpy(g->device_pool, g->pool, g->pool_bytes,
                       cudaMemcpyHostToDevice),
            "pool");
}

static void
gpu_arrays(void *arg)
{
    gpu_t *g = arg;
    size_t heads = (size_t) g->m.size.slots * g->m.heads;

    cuda_ok(cudaMemcpy(g->m.candidate, g->mirror->candidate,
                       heads * TR_KV_TIERS_MAX * sizeof(tr_kv_candidate_t),
                       cudaMemcpyHostToDevice),
            "candidates");
    cuda_ok(cudaMemcpy(g->m.tables, g->mirror->tables,
                       heads * g->m.view.table_len * sizeof(int32_t),
                       cudaMemcpyHostToDevice),
            "tables");
}

static void
gpu_fetch(void *arg)
{
    gpu_t *g = arg;

    cuda_ok(cudaDeviceSynchronize(), "manager");
    cuda_ok(cudaMemcpy(g->host, g->memory, g->bytes, cudaMemcpyDeviceToHost),
            "fetch");
}

static bool
gpu_same_pages(void *arg, const int32_t *a, const int32_t *b, uint32_t n)
{
    gpu_t *g = arg;
    size_t bytes = g->m.view.page_bytes;
    uint8_t *pool = malloc(g->pool_bytes);
    bool same = pool != NULL;

    cuda_ok(cudaMemcpy(pool, g->device_pool, g->pool_bytes,
                       cudaMemcpyDeviceToHost),
            "pool");
    for (uint32_t i = 0; i < n && same; i++) {
        same = memcmp(pool + (size_t) a[i] * bytes,
                      pool + (size_t) b[i] * bytes, bytes)
               == 0;
    }
    free(pool);
    return same;
}

static void
gpu_page(void *arg, int32_t page, void *out)
{
    gpu_t *g = arg;
    size_t bytes = g->m.view.page_bytes;

    cuda_ok(cudaMemcpy(out, (uint8_t *) g->device_pool + (size_t) page * bytes,
                       bytes, cudaMemcpyDeviceToHost),
            "page");
}

/* Pages of a slot that goes out, in two pieces. */
static int
give(const gpu_t *g, int32_t slot, uint32_t n)
{
    const tr_cuda_stream_t *s = &g->stream;
    const int32_t *list = g->in, *pages = list + 2;
    const uint32_t *all = (const uint32_t *) (const void *) (list + 1);
    uint32_t half = n / 2;
    int rc = tr_cuda_manager_give(s, &g->m, slot, pages, all, 0, half);

    return rc != 0 ? rc
                   : tr_cuda_manager_give(s, &g->m, slot, pages + half, all,
                                          half, TR_KV_ALL_PAGES);
}

static int
launch(const gpu_t *g, fixture_op_t op, int32_t slot, uint32_t n)
{
    const tr_cuda_stream_t *s = &g->stream;
    const tr_kv_manager_t *m = &g->m;
    int32_t *list = g->in;

    switch (op) {
    case FIXTURE_OPEN:
        return tr_cuda_manager_open(s, m, g->in, n);
    case FIXTURE_BEGIN:
        return tr_cuda_manager_prompt(s, m, g->in, n);
    case FIXTURE_STEP:
        return tr_cuda_manager_step(s, m, g->in, n);
    case FIXTURE_CLOSE:
        return tr_cuda_manager_close(s, m, g->in, n);
    case FIXTURE_PLAN:
        return tr_cuda_manager_plan_prompts(s, m, g->in, n);
    case FIXTURE_INSTALL:
        return tr_cuda_manager_install_prompts(s, m, n);
    case FIXTURE_FILL:
        return tr_cuda_manager_fill_prompts(s, m, n);
    case FIXTURE_GIVE:
        return give(g, slot, n - 2);
    case FIXTURE_FORK:
        return tr_cuda_manager_fork(s, m, NULL, g->in, n);
    case FIXTURE_TALLY:
        return tr_cuda_manager_tally(s, m, n);
    case FIXTURE_CUT:
        return tr_cuda_manager_plan_cuts(s, m, g->in, n);
    case FIXTURE_RESTORE:
        return tr_cuda_manager_plan_restores(s, m, g->in, n);
    case FIXTURE_INSTALL_CUT:
        return tr_cuda_manager_install_cuts(s, m, NULL, n);
    case FIXTURE_ABSORB:
        return tr_cuda_manager_absorb(s, m, g->in, n);
    case FIXTURE_TAKE:
        return tr_cuda_manager_take(s, m, slot, list + 2,
                                    (uint32_t *) (void *) (list + 1), n - 2);
    default:
        return tr_cuda_manager_share(s, m, NULL,
                                     (tr_kv_share_kind_t) (op - FIXTURE_SHARE),
                                     g->in, n);
    }
}

static int
launch_graph(const gpu_t *g, fixture_op_t op, int32_t slot, uint32_t n)
{
    cudaStream_t stream = g->stream.stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    int rc;

    cuda_ok(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal),
            "capture");
    rc = launch(g, op, slot, n);
    cuda_ok(cudaStreamEndCapture(stream, &graph), "end of capture");
    cuda_ok(cudaGraphInstantiate(&exec, graph, 0), "graph");
    cuda_ok(cudaGraphLaunch(exec, stream), "graph launch");
    cuda_ok(cudaStreamSynchronize(stream), "graph run");
    cudaGraphExecDestroy(exec);
    cudaGraphDestroy(graph);
    return rc;
}

static bool
gpu_run(void *arg, fixture_op_t op, void *in, size_t each, uint32_t n)
{
    gpu_t *g = arg;
    int32_t slot;
    int rc;

    memcpy(&slot, in, sizeof(slot));
    if (op == FIXTURE_TALLY) { /* it has no input */
        each = 0;
    }
    if (each * n > INPUT_BYTES) {
        printf("%zu bytes of input\n", each * n);
        return false;
    }
    cuda_ok(cudaDeviceSynchronize(), "before");
    if (op == FIXTURE_RESTORE) { /* its counts stand behind it */
        ((tr_kv_restore_t *) in)
            ->count = (const uint32_t *) ((const tr_kv_restore_t *) g->in + 1);
    }
    cuda_ok(cudaMemcpy(g->in, in, each * n, cudaMemcpyHostToDevice), "input");
    rc = fixture_random(4) == 0 ? launch_graph(g, op, slot, n)
                                : launch(g, op, slot, n);
    if (rc != TR_KERNEL_OK) {
        printf("launch %d: %d, %s\n", (int) op, rc, tr_cuda_reason());
        return false;
    }
    cuda_ok(cudaDeviceSynchronize(), "manager");
    if (op == FIXTURE_TAKE) {
        cuda_ok(cudaMemcpy(in, g->in, each * n, cudaMemcpyDeviceToHost),
                "pages");
    }
    return true;
}

int
main(int argc, char **argv)
{
    static gpu_t gpu;
    static fixture_t w;
    fixture_device_t device = { &gpu,      gpu_create,     gpu_destroy,
                                gpu_pool,  gpu_arrays,     gpu_run,
                                gpu_fetch, gpu_same_pages, gpu_page,
                                gpu_copy };
    uint32_t rounds = argc > 1 ? (uint32_t) atoi(argv[1]) : 30, failed = 0;
    uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 10)
                             : (uint64_t) time(NULL);
    uint64_t steps = 0, stalls = 0, prompts = 0, shares = 0, cuts = 0;
    uint64_t lent = 0, absorbed = 0;
    cudaStream_t stream;

    if (tr_cuda_open(0, &gpu.device) != 0) {
        printf("no device: %s\n", tr_cuda_reason());
        return 77;
    }
    cuda_ok(cudaStreamCreate(&stream), "stream");
    gpu.stream = (tr_cuda_stream_t){ stream, &gpu.device };
    for (uint32_t r = 0; r < rounds && failed < 3; r++) {
        if (!fixture_run(&device, seed + r, OPERATIONS, &w)) {
            printf("FAILED: test_manager 1 %llu\n",
                   (unsigned long long) (seed + r));
            failed++;
        }
        steps += w.steps;
        stalls += w.stalls;
        prompts += w.compressed;
        shares += w.shares;
        cuts += w.cuts;
        lent += w.lent;
        absorbed += w.absorbed;
    }
    printf("manager: %u rounds from seed %llu, %u failed; %llu steps, %llu"
           " prompts, %llu stalls, %llu shared blocks, %llu cuts, %llu pages"
           " lent, %llu lenders absorbed, equal to the CPU's\n",
           rounds, (unsigned long long) seed, failed,
           (unsigned long long) steps, (unsigned long long) prompts,
           (unsigned long long) stalls, (unsigned long long) shares,
           (unsigned long long) cuts, (unsigned long long) lent,
           (unsigned long long) absorbed);
    cudaStreamDestroy(stream);
    return failed != 0;
}
