/*
 * The GPU's meter: what NVML tells becomes the status page's figures, what it
 * does not tell stays unknown, and a meter that cannot start leaves nothing
 * behind.
 */
#include "engine/gpu_meter.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#define PID 4211u

static struct {
    int init, utilization, power; /* what they return */
    unsigned devices, ours;       /* how many, and which runs this process */
    unsigned percent, milliwatts;
    _Atomic int opened, closed, asked;
} nvml;

static int
fake_init(void)
{
    atomic_fetch_add(&nvml.opened, nvml.init == 0);
    return nvml.init;
}

static int
fake_shutdown(void)
{
    atomic_fetch_add(&nvml.closed, 1);
    return 0;
}

static int
fake_count(unsigned *devices)
{
    *devices = nvml.devices;
    return 0;
}

static char devices[4];

static int
fake_handle(unsigned index, void **device)
{
    *device = &devices[index];
    return 0;
}

static int
fake_processes(void *device, unsigned *n, tr_nvml_process_t *out)
{
    assert_true(*n >= 2);
    *n = 2;
    out[0].pid = 7;
    out[1].pid = device == &devices[nvml.ours] ? PID : 8;
    return 0;
}

static int
fake_utilization(void *device, tr_nvml_use_t *out)
{
    out->gpu = nvml.percent;
    out->memory = 1;
    return device == &devices[nvml.ours] ? nvml.utilization : 2;
}

static int
fake_power(void *device, unsigned *milliwatts)
{
    *milliwatts = nvml.milliwatts;
    atomic_fetch_add(&nvml.asked, 1);
    return device == &devices[nvml.ours] ? nvml.power : 2;
}

static const tr_nvml_t fake = {
    .init = fake_init,
    .shutdown = fake_shutdown,
    .count = fake_count,
    .handle = fake_handle,
    .processes = fake_processes,
    .utilization = fake_utilization,
    .power = fake_power,
};

static void
reset(unsigned n, unsigned ours)
{
    memset(&nvml, 0, sizeof(nvml));
    nvml.devices = n;
    nvml.ours = ours;
}

static tr_status_t
start(tr_status_counters_t *counters, tr_gpu_meter_t **out)
{
    tr_error_t err = { 0 };
    tr_status_t rc;

    memset(counters, 0, sizeof(*counters));
    rc = tr_gpu_meter_start(&fake, PID, counters, out, &err);
    assert_int_equal(rc == TR_OK, err.text[0] == '\0');
    return rc;
}

/* Waits for a measurement that began after this call. */
static void
measured(void)
{
    const struct timespec ms = { .tv_nsec = 1000000 };
    int from = atomic_load(&nvml.asked);

    while (atomic_load(&nvml.asked) < from + 2) {
        nanosleep(&ms, NULL);
    }
}

static void
test_figures(void **state)
{
    tr_status_counters_t *c = aligned_alloc(64, sizeof(*c));
    tr_gpu_meter_t *m;

    (void) state;
    reset(3, 2);
    nvml.percent = 87;
    nvml.milliwatts = 612345;
    assert_int_equal(start(c, &m), TR_OK);
    measured();
    assert_int_equal(c->gpu_known, TR_STATUS_GPU_USE | TR_STATUS_GPU_POWER);
    assert_int_equal(c->gpu_use_percent, 87);
    assert_int_equal(c->gpu_milliwatts, 612345);
    tr_gpu_meter_stop(m);
    assert_int_equal(nvml.opened, 1);
    assert_int_equal(nvml.closed, 1);
    free(c);
}

static void
test_what_is_not_told(void **state)
{
    tr_status_counters_t *c = aligned_alloc(64, sizeof(*c));
    tr_gpu_meter_t *m;

    (void) state;
    reset(1, 0);
    nvml.utilization = 3; /* not supported: a part of a divided GPU */
    nvml.milliwatts = 70000;
    assert_int_equal(start(c, &m), TR_OK);
    measured();
    assert_int_equal(c->gpu_known, TR_STATUS_GPU_POWER);
    tr_gpu_meter_stop(m);

    reset(1, 0);
    nvml.percent = 101; /* impossible */
    nvml.power = 15;    /* the GPU is lost */
    assert_int_equal(start(c, &m), TR_OK);
    measured();
    assert_int_equal(c->gpu_known, 0);
    tr_gpu_meter_stop(m);
    free(c);
}

static void
test_cannot_start(void **state)
{
    tr_status_counters_t *c = aligned_alloc(64, sizeof(*c));
    tr_gpu_meter_t *m;

    (void) state;
    reset(1, 0);
    nvml.init = 9; /* no driver */
    assert_int_equal(start(c, &m), TR_ERR_IO);
    assert_null(m);
    assert_int_equal(nvml.closed, 0);

    reset(2, 3); /* it runs on neither */
    assert_int_equal(start(c, &m), TR_ERR_IO);
    assert_null(m);
    assert_int_equal(nvml.closed, 1);
    tr_gpu_meter_stop(m);
    free(c);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_figures),
        cmocka_unit_test(test_what_is_not_told),
        cmocka_unit_test(test_cannot_start),
    };

    return cmocka_run_group_tests_name("gpu_meter", tests, NULL, NULL);
}
