/*
 * What a user is told when the CUDA backend cannot run (device_check.h).
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "kernels/cuda/device_check.h"

/* A machine with two of NVIDIA's H200, and what is wrong with it. */
typedef struct {
    uint32_t driver, major, minor;
    int devices, ordinal;
    const char *archs;
    const char *says; /* NULL: nothing is */
} case_t;

static const case_t cases[] = {
    { 13000, 9, 0, 2, 0, "90a 80 89", NULL },
    { 13010, 9, 0, 2, 1, "90a", NULL },
    { 0, 9, 0, 0, 0, "90a", "NVIDIA driver not found" },
    { 12080, 9, 0, 2, 0, "90a", "it knows CUDA 12.8" },
    { 12080, 9, 0, 2, 0, "90a", "CUDA 13.0 or newer" },
    { 13000, 9, 0, 0, 0, "90a", "no NVIDIA GPU" },
    { 13000, 9, 0, 2, 2, "90a", "no GPU 2: this machine has 2" },
    { 13000, 9, 0, 1, 1, "90a", "no GPU 1: this machine has 1" },
    { 13000, 9, 0, 2, -1, "90a", "no GPU -1" },
    { 13000, 7, 0, 2, 0, "90a 80 89", "capability 7.0" },
    { 13000, 7, 0, 2, 0, "90a 80 89", "built for 90a 80 89" },
    { 13000, 10, 0, 2, 0, "90a 80 89", "capability 10.0" },
};

static void
users_are_told(void **state)
{
    (void) state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const case_t *c = &cases[i];
        tr_cuda_device_info_t info = { .name = "NVIDIA H200",
                                       .driver = c->driver,
                                       .runtime = 13000,
                                       .major = c->major,
                                       .minor = c->minor };
        char reason[512] = "";
        int rc = tr_cuda_device_check(&info, c->devices, c->ordinal, c->archs,
                                      reason, sizeof(reason));

        assert_int_equal(rc, c->says == NULL ? 0 : TR_CUDA_FAILED);
        if (c->says != NULL && strstr(reason, c->says) == NULL) {
            fail_msg("\"%s\" does not say \"%s\"", reason, c->says);
        }
    }
}

static void
code_runs_where_it_was_made_for(void **state)
{
    (void) state;
    assert_true(tr_cuda_arch_runs("80", 8, 0));
    assert_true(tr_cuda_arch_runs("80", 8, 9));
    assert_true(tr_cuda_arch_runs("80", 8, 6));
    assert_false(tr_cuda_arch_runs("86", 8, 0));
    assert_false(tr_cuda_arch_runs("80", 9, 0));
    assert_false(tr_cuda_arch_runs("80", 7, 5));
    assert_true(tr_cuda_arch_runs("90a", 9, 0));
    assert_false(tr_cuda_arch_runs("90a", 9, 1));
    assert_true(tr_cuda_arch_runs("80+", 8, 0));
    assert_true(tr_cuda_arch_runs("90a 89+", 10, 0));
    assert_true(tr_cuda_arch_runs("89+ 90a", 9, 0));
    assert_false(tr_cuda_arch_runs("89+", 8, 6));
    assert_true(tr_cuda_arch_runs("75 90a 80", 8, 9));
    assert_true(tr_cuda_arch_runs("75  90a", 9, 0));
    assert_true(tr_cuda_arch_runs("100a 120", 10, 0));
    assert_true(tr_cuda_arch_runs("100a 120", 12, 1));
    assert_false(tr_cuda_arch_runs("100a 120", 9, 0));
    assert_false(tr_cuda_arch_runs("", 9, 0));
    assert_false(tr_cuda_arch_runs("a", 9, 0));
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(users_are_told),
        cmocka_unit_test(code_runs_where_it_was_made_for),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
