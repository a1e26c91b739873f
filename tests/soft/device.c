/*
 * What the device says of itself, and what the environment asks of it.
 */
#include "device.h"

#include "kernels/cuda/device_check.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <time.h>

static __thread char reason[512];

static uint64_t seed = 1, guard = 16, noise;
static size_t memory = (size_t) 256 << 20;
static soft_fail_t fail = SOFT_FAILS; /* none */
static unsigned long fail_at;
static atomic_ulong counted;

static const char *const fail_names[SOFT_FAILS] = {
    [SOFT_ALLOC] = "alloc",   [SOFT_PIN] = "pin",
    [SOFT_LAUNCH] = "launch", [SOFT_KERNEL] = "kernel",
    [SOFT_LOST] = "lost",     [SOFT_PAGE] = "page",
    [SOFT_DRIVER] = "driver", [SOFT_DEVICE] = "device",
    [SOFT_OLD] = "old",
};

/* ---- what is asked ------------------------------------------------------ */

static uint64_t
number_of(const char *name, uint64_t otherwise)
{
    const char *s = getenv(name);

    return s != NULL && *s != '\0' ? strtoull(s, NULL, 10) : otherwise;
}

/* "kernel:12" */
static void
read_fail(const char *s)
{
    size_t n = strcspn(s, ":");

    for (int i = 0; i < SOFT_FAILS; i++) {
        if (strlen(fail_names[i]) == n && memcmp(fail_names[i], s, n) == 0) {
            fail = (soft_fail_t) i;
            fail_at = s[n] == ':' ? strtoul(s + n + 1, NULL, 10) : 1;
            fail_at += fail_at == 0;
            return;
        }
    }
    fprintf(stderr, "TOKENRING_SOFT_FAIL=%s: not understood\n", s);
    abort();
}

__attribute__((constructor)) static void
read_environment(void)
{
    const char *s = getenv("TOKENRING_SOFT_FAIL");

    seed = number_of("TOKENRING_SOFT_SEED", (uint64_t) time(NULL));
    guard = number_of("TOKENRING_SOFT_GUARD", guard);
    guard += guard == 0;
    noise = number_of("TOKENRING_SOFT_NOISE", 0);
    memory = number_of("TOKENRING_SOFT_MEMORY", 256) << 20;
    if (s != NULL && *s != '\0') {
        read_fail(s);
    }
}

uint64_t
soft_seed(void)
{
    return seed;
}

uint64_t
soft_guard(void)
{
    return guard;
}

uint64_t
soft_noise(void)
{
    return noise;
}

size_t
soft_memory_size(void)
{
    return memory;
}

/* Bytes that others have of it: MiB in a file, for as long as that is there. */
static size_t
held(void)
{
    const char *path = getenv("TOKENRING_SOFT_HELD");
    FILE *f = path != NULL ? fopen(path, "re") : NULL;
    unsigned long mib = 0;

    if (f != NULL) {
        if (fscanf(f, "%lu", &mib) != 1) {
            mib = 0;
        }
        fclose(f);
    }
    return (size_t) mib << 20;
}

size_t
soft_memory_taken(void)
{
    return soft_memory_used() + held();
}

bool
soft_fails(soft_fail_t kind)
{
    if (fail != kind) {
        return false;
    }
    if (kind == SOFT_PAGE) {
        return (atomic_fetch_add(&counted, 1) + 1) % fail_at == 0;
    }
    return kind >= SOFT_COUNTED || atomic_fetch_add(&counted, 1) + 1 == fail_at;
}

/* ---- what it says ------------------------------------------------------- */

int
soft_failed(const char *format, ...)
{
    va_list args;

    va_start(args, format);
    vsnprintf(reason, sizeof(reason), format, args);
    va_end(args);
    return TR_CUDA_FAILED;
}

const char *
tr_cuda_reason(void)
{
    return reason;
}

bool
tr_cuda_alive(void)
{
    bool alive;

    pthread_mutex_lock(&soft_lock);
    alive = soft_fault_reason() == NULL;
    pthread_mutex_unlock(&soft_lock);
    return alive;
}

int
tr_cuda_device_info(int ordinal, tr_cuda_device_info_t *out)
{
    bool gone;
    size_t used = soft_memory_taken();
    const char *name = getenv("TOKENRING_SOFT_NAME");

    pthread_mutex_lock(&soft_lock);
    gone = soft_device_lost();
    pthread_mutex_unlock(&soft_lock);
    *out = (tr_cuda_device_info_t){
        .memory = memory,
        .free_memory = used < memory ? memory - used : 0,
        .major = 9,
        .driver = soft_fails(SOFT_DRIVER) ? 0
                  : soft_fails(SOFT_OLD)  ? 11080
                                          : 13000,
        .runtime = 13000,
    };
    snprintf(out->name, sizeof(out->name), "%s",
             name != NULL ? name : "software");
    return tr_cuda_device_check(out, gone || soft_fails(SOFT_DEVICE) ? 0 : 1,
                                ordinal, "90a", reason, sizeof(reason));
}

int
tr_cuda_open(int ordinal, tr_device_props_t *out)
{
    tr_cuda_device_info_t info;

    *out = (tr_device_props_t){ .ordinal = ordinal,
                                .blocks = 8,
                                .shared = 227u << 10,
                                .l2 = 50u << 20,
                                .code = 90,
                                .dependent = true };
    return tr_cuda_device_info(ordinal, &info);
}

const tr_kernels_t *
soft_cpu(void)
{
    return tr_kernels_cpu(NULL);
}
