/*
 * Memory of a GPU that is not free yet (executor_cuda.h).
 *
 * An engine that was killed is gone before its memory is: the driver frees that
 * late, by seconds.  The next start would find no room for the weights, or take
 * what is left for a KV cache much smaller than before.  So it waits, for as
 * long as gpu_memory_wait says, until there is room for the weights and kv_memory,
 * and for as much as the killed engine had (tr_listener_t).  What can never be,
 * because the configuration asks for more than there is, is not waited for.
 */
#include "executor_cuda.h"

#include <inttypes.h>
#include <string.h>
#include <time.h>

#include "engine/base/clock.h"
#include "engine/config/log.h"
#include "engine/model/safetensors.h"

#define LOOK_MS 100

/* What a killed engine had is there again but for one part in so many: others
 * may have taken a little meanwhile. */
#define TOLERANCE 50

/* 0 where they are not read, or cannot be. */
static uint64_t
weights_size(const tr_config_t *config)
{
    return strcmp(config->load_format, "dummy") != 0
               ? tr_safetensors_bytes(config->model)
               : 0;
}

static uint64_t
share(const tr_executor_cuda_t *x, const tr_config_t *config)
{
    return (uint64_t) (config->gpu_memory_utilization
                       * (double) x->info.memory);
}

/* What this engine could take now. */
static uint64_t
available(const tr_executor_cuda_t *x, const tr_config_t *config)
{
    uint64_t used = x->info.memory - x->info.free_memory;
    uint64_t most = share(x, config);

    return config->kv_memory != 0 ? x->info.free_memory
           : most > used          ? most - used
                                  : 0;
}

static uint64_t
wanted(const tr_config_t *config)
{
    uint64_t before = config->gpu_left - config->gpu_left / TOLERANCE;
    uint64_t least = weights_size(config) + config->kv_memory;

    return before > least ? before : least;
}

tr_status_t
tr_executor_cuda_await(tr_executor_cuda_t *x, const tr_config_t *config,
                       tr_error_t *err)
{
    const struct timespec pause = { .tv_nsec = LOOK_MS * 1000000l };
    uint64_t want = wanted(config), begun = tr_now_us();
    uint64_t most = config->kv_memory != 0 ? x->info.memory : share(x, config);

    if (available(x, config) >= want || want > most
        || config->gpu_memory_wait_us == 0) {
        return TR_OK;
    }
    tr_log(TR_LEVEL_NOTICE,
           "waiting for memory of the GPU that others still hold device=%u "
           "free_mib=%" PRIu64 " available_mib=%" PRIu64 " wanted_mib=%" PRIu64
           " at_most_ms=%" PRIu64,
           config->device, x->info.free_memory >> 20,
           available(x, config) >> 20, want >> 20,
           config->gpu_memory_wait_us / 1000);
    while (available(x, config) < want
           && tr_now_us() - begun < config->gpu_memory_wait_us) {
        nanosleep(&pause, NULL);
        if (x->cuda->device_info(x->device.ordinal, &x->info) != 0) {
            return tr_error_set(err, TR_ERR_INTERNAL, "device",
                                "backend cuda: asking for free memory failed: "
                                "%s",
                                x->cuda->reason());
        }
    }
    tr_log(available(x, config) >= want ? TR_LEVEL_NOTICE : TR_LEVEL_WARN,
           "waited for memory of the GPU enough=%s free_mib=%" PRIu64
           " available_mib=%" PRIu64 " wanted_mib=%" PRIu64 " ms=%" PRIu64,
           available(x, config) >= want ? "yes" : "no",
           x->info.free_memory >> 20, available(x, config) >> 20, want >> 20,
           (tr_now_us() - begun) / 1000);
    return TR_OK;
}
