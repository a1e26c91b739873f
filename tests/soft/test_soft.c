/*
 * The software device (tests/soft) is as late as a device: launches run after
 * the call, events tell when, graphs run what they have recorded as often as
 * they are launched; memory is poisoned, copies are held to what was allocated.
 * Faults on demand are tested in children.  What it has in common with a GPU is
 * in tests/gpu/runtime/test_runtime.c.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "load.h"

static int
setup(void **state)
{
    char seed[32];

    (void) state;
    snprintf(seed, sizeof(seed), "%lld", (long long) time(NULL));
    setenv("TOKENRING_SOFT_SEED", seed, 0);
    setenv("TOKENRING_SOFT_GUARD", "1", 1);
    printf("# TOKENRING_SOFT_SEED=%s\n", getenv("TOKENRING_SOFT_SEED"));
    soft_load();
    return 0;
}

static tr_cuda_stream_t
stream_open(void)
{
    tr_cuda_stream_t s;

    assert_int_equal(cuda->stream_open(&device, &s), 0);
    return s;
}

/* ---- streams ------------------------------------------------------------ */

#define STEPS 400

/* A host that reuses one staging buffer without waiting: on a device some of
 * its copies carry what was written later. */
static uint32_t
careless_copies(tr_cuda_stream_t *s, uint32_t *staging, uint32_t *back)
{
    uint32_t *device_row = cuda->alloc(STEPS * 4), wrong = 0;

    for (uint32_t i = 0; i < STEPS; i++) {
        *staging = i;
        assert_int_equal(cuda->copy(s, device_row + i, staging, 4), 0);
    }
    assert_int_equal(cuda->copy(s, back, device_row, STEPS * 4), 0);
    assert_int_equal(cuda->stream_wait(s), 0);
    for (uint32_t i = 0; i < STEPS; i++) {
        wrong += back[i] != i;
        assert_true(back[i] >= i && back[i] < STEPS);
    }
    cuda->release(device_row);
    return wrong;
}

static void
runs_later(void **state)
{
    tr_cuda_stream_t s = stream_open();
    uint32_t *staging = cuda->pin(4), *back = cuda->pin(STEPS * 4);

    (void) state;
    assert_true(careless_copies(&s, staging, back) > 0);
    cuda->unpin(staging);
    cuda->unpin(back);
    cuda->stream_close(&s);
}

/* ---- events ------------------------------------------------------------- */

static void
events_tell_when(void **state)
{
    tr_cuda_stream_t s = stream_open();
    uint32_t *p = cuda->alloc(4), *staging = cuda->pin(4 * STEPS), early = 0;
    void *event, *first;
    double us = -1;

    (void) state;
    assert_int_equal(cuda->event_open(&event), 0);
    assert_int_equal(cuda->event_open(&first), 0);
    assert_int_equal(cuda->event_passed(event), 1); /* never recorded */
    assert_int_equal(cuda->event_record(&s, first), 0);
    for (uint32_t i = 0; i < STEPS; i++) {
        int passed;

        staging[i] = ~0u;
        assert_int_equal(cuda->fill(&s, p, (int) (i % 251), 4), 0);
        assert_int_equal(cuda->copy(&s, staging + i, p, 4), 0);
        assert_int_equal(cuda->event_record(&s, event), 0);
        passed = cuda->event_passed(event);
        early += passed == 0;
        if (passed == 0) {
            assert_int_equal(cuda->event_wait(event), 0);
        }
        assert_int_equal(staging[i], i % 251 * 0x01010101u);
    }
    assert_true(early > 0);
    assert_int_equal(cuda->event_time(first, event, &us), 0);
    assert_true(us >= 0);
    cuda->event_close(event);
    cuda->event_close(first);
    cuda->release(p);
    cuda->unpin(staging);
    cuda->stream_close(&s);
}

/* ---- graphs ------------------------------------------------------------- */

static void
graphs_repeat(void **state)
{
    tr_cuda_stream_t s = stream_open();
    uint8_t *p = cuda->alloc(6), *out = cuda->pin(3), *in = cuda->pin(1);
    void *graph;

    (void) state;
    *in = 0;
    memset(out, 0, 3);
    assert_int_equal(cuda->fill(&s, p, 7, 3), 0);
    assert_int_equal(cuda->graph_begin(&s), 0);
    assert_int_equal(cuda->copy(&s, p + 3, p, 3), 0); /* shifts by one */
    assert_int_equal(cuda->copy(&s, p + 1, p + 3, 2), 0);
    assert_int_equal(cuda->copy(&s, p, in, 1), 0);
    assert_null(cuda->alloc(1));
    assert_int_equal(cuda->stream_wait(&s), TR_CUDA_FAILED);
    assert_int_equal(cuda->graph_end(&s, &graph), 0);
    assert_int_equal(cuda->copy(&s, out, p, 3), 0);
    assert_int_equal(cuda->stream_wait(&s), 0);
    assert_memory_equal(out, "\7\7\7", 3); /* capturing ran nothing */
    for (uint8_t i = 1; i <= 3; i++) {
        *in = i;
        assert_int_equal(cuda->graph_launch(&s, graph), 0);
        assert_int_equal(cuda->stream_wait(&s), 0);
    }
    assert_int_equal(cuda->graph_launch(&s, graph), 0);
    cuda->graph_close(graph); /* what was launched still runs */
    assert_int_equal(cuda->copy(&s, out, p, 3), 0);
    assert_int_equal(cuda->stream_wait(&s), 0);
    assert_memory_equal(out, "\3\3\2", 3);
    cuda->release(p);
    cuda->unpin(out);
    cuda->unpin(in);
    cuda->stream_close(&s);
}

/* A graph in which b leaves a and, if it says so, comes back; what a does between,
 * into p[1], is there or not when b looks. */
static void *
graph_of_two(tr_cuda_stream_t *a, tr_cuda_stream_t *b, uint8_t *p, void *event,
             bool back)
{
    void *graph;

    assert_int_equal(cuda->graph_begin(a), 0);
    assert_int_equal(cuda->fill(a, p, 1, 4), 0);
    assert_int_equal(cuda->event_record(a, event), 0);
    assert_int_equal(cuda->event_follow(b, event), 0);
    assert_int_equal(cuda->fill(a, p + 1, 2, 1), 0);
    assert_int_equal(cuda->copy(b, p + 2, p, 2), 0);
    if (back) {
        assert_int_equal(cuda->event_record(b, event), 0);
        assert_int_equal(cuda->event_follow(a, event), 0);
        assert_int_equal(cuda->copy(a, p + 1, p + 2, 1), 0);
    }
    assert_int_equal(cuda->graph_end(a, &graph), back ? 0 : TR_CUDA_FAILED);
    return graph;
}

static void
graphs_have_branches(void **state)
{
    tr_cuda_stream_t a = stream_open(), b = stream_open();
    uint8_t *p = cuda->alloc(4), *out = cuda->pin(4);
    uint32_t seen[3] = { 0 };
    void *graph, *event, *outside;

    (void) state;
    assert_int_equal(cuda->event_open(&event), 0);
    assert_int_equal(cuda->event_open(&outside), 0);
    assert_int_equal(cuda->event_record(&b, outside), 0);
    assert_null(graph_of_two(&a, &b, p, event, false));
    graph = graph_of_two(&a, &b, p, event, true);
    for (int i = 0; i < STEPS; i++) {
        assert_int_equal(cuda->graph_launch(&a, graph), 0);
        assert_int_equal(cuda->copy(&a, out, p, 4), 0);
        assert_int_equal(cuda->stream_wait(&a), 0);
        assert_true(out[0] == 1 && out[1] == 1 && out[2] == 1);
        assert_true(out[3] == 1 || out[3] == 2);
        seen[out[3]]++;
    }
    assert_true(seen[1] > 0 && seen[2] > 0);
    cuda->graph_close(graph);
    assert_int_equal(cuda->graph_begin(&a), 0);
    assert_int_equal(cuda->event_follow(&a, outside), TR_CUDA_FAILED);
    assert_int_equal(cuda->graph_end(&a, &graph), 0);
    cuda->graph_close(graph);
    cuda->event_close(event);
    cuda->event_close(outside);
    cuda->release(p);
    cuda->unpin(out);
    cuda->stream_close(&a);
    cuda->stream_close(&b);
}

/* ---- memory ------------------------------------------------------------- */

static void
memory_is_held_to_its_size(void **state)
{
    tr_cuda_stream_t s = stream_open();
    uint8_t *p = cuda->alloc(1000), *out = cuda->pin(1000), here[16];
    tr_cuda_device_info_t before, info;

    (void) state;
    assert_int_equal((uintptr_t) p % 256, 0);
    assert_int_equal(cuda->copy(&s, out, p, 1000), 0);
    assert_int_equal(cuda->stream_wait(&s), 0);
    for (int i = 0; i < 1000; i++) {
        assert_int_equal(out[i], 0xff);
    }
    assert_int_equal(cuda->copy(&s, here, p, 16), TR_CUDA_FAILED);
    assert_int_equal(cuda->copy(&s, p, out, 1001), TR_CUDA_FAILED);
    assert_int_equal(cuda->copy(&s, p + 1, out, 1000), TR_CUDA_FAILED);
    assert_int_equal(cuda->copy(&s, p + 1, p, 2), TR_CUDA_FAILED); /* overlap */
    assert_int_equal(cuda->fill(&s, here, 0, 16), TR_CUDA_FAILED);
    assert_true(cuda->alive());

    assert_int_equal(cuda->device_info(0, &before), 0);
    assert_null(cuda->alloc(before.free_memory + 1));
    assert_non_null(strstr(cuda->reason(), "out of memory"));
    cuda->release(p);
    assert_int_equal(cuda->device_info(0, &info), 0);
    assert_int_equal(info.free_memory, before.free_memory + 1000);
    cuda->unpin(out);
    cuda->stream_close(&s);
}

/* ---- failures ----------------------------------------------------------- */

/* Runs this program with a failure asked for; true: all held there. */
static bool
child(const char *asked)
{
    pid_t pid;
    int status = -1;

    setenv("TOKENRING_SOFT_FAIL", asked, 1);
    pid = fork();
    if (pid == 0) {
        execl("/proc/self/exe", "test_soft", asked, (char *) NULL);
        _exit(127);
    }
    unsetenv("TOKENRING_SOFT_FAIL");
    waitpid(pid, &status, 0);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static bool
said(const char *what)
{
    return strstr(cuda->reason(), what) != NULL;
}

/* Ten kernels are launched, one of which fails: nothing behind it runs, every
 * call says why, and waiting ends. */
static bool
fault_ends_all(const char *why)
{
    tr_cuda_stream_t s = stream_open();
    uint8_t *p = cuda->alloc(1), *out = cuda->pin(10);
    void *event;
    bool ok = true;

    memset(out, 0, 10);
    cuda->event_open(&event);
    for (int i = 0; i < 10 && ok; i++) {
        ok = cuda->fill(&s, out + i, 1, 1) == 0
             || (i >= 4 && said(why)); /* it may have been heard of */
    }
    cuda->event_record(&s, event);
    ok = ok && cuda->event_wait(event) == TR_CUDA_FAILED && said(why)
         && !cuda->alive() && cuda->stream_wait(&s) == TR_CUDA_FAILED
         && cuda->event_passed(event) == TR_CUDA_FAILED
         && cuda->fill(&s, p, 1, 1) == TR_CUDA_FAILED && said(why)
         && cuda->alloc(1) == NULL && out[3] == 1 && out[4] == 0 && out[9] == 0;
    cuda->event_close(event);
    cuda->stream_close(&s);
    return ok;
}

/* The host reads the device's memory: a segmentation fault. */
static bool
touches_nothing(void)
{
    volatile uint8_t *p = cuda->alloc(1);
    int status = -1;
    pid_t pid = fork();

    if (pid == 0) {
        signal(SIGSEGV, SIG_DFL); /* not cmocka's */
        _exit(*p == 0xff ? 0 : 1);
    }
    waitpid(pid, &status, 0);
    cuda->release((void *) p);
    return WIFSIGNALED(status);
}

static void
memory_is_not_the_hosts(void **state)
{
    tr_cuda_stream_t s = stream_open();
    void *p = cuda->alloc(4);

    (void) state;
    assert_true(touches_nothing());
    assert_int_equal(cuda->fill(&s, p, 1, 4), 0);
    assert_int_equal(cuda->stream_wait(&s), 0);
    assert_true(touches_nothing());
    cuda->release(p);
    cuda->stream_close(&s);
}

/* The program, told what fails. */
static int
failing(const char *asked)
{
    tr_cuda_device_info_t info;
    bool ok = false;
    tr_cuda_stream_t s;

    if (strcmp(asked, "kernel:5") == 0) {
        soft_load();
        ok = fault_ends_all("illegal memory access");
    } else if (strcmp(asked, "lost:5") == 0) {
        soft_load();
        ok = fault_ends_all("fallen off the bus")
             && cuda->device_info(0, &info) == TR_CUDA_FAILED;
    } else if (strcmp(asked, "alloc:3") == 0) {
        soft_load();
        ok = cuda->alloc(1) != NULL && cuda->pin(1) != NULL
             && cuda->alloc(1) != NULL && cuda->alloc(1) == NULL
             && said("out of memory") && cuda->alive()
             && cuda->alloc(1) != NULL;
    } else if (strcmp(asked, "launch:2") == 0) {
        soft_load();
        s = stream_open();
        uint8_t *p = cuda->alloc(1);

        ok = cuda->fill(&s, p, 0, 1) == 0
             && cuda->fill(&s, p, 0, 1) == TR_CUDA_FAILED && cuda->alive()
             && cuda->fill(&s, p, 0, 1) == 0 && cuda->stream_wait(&s) == 0;
        cuda->stream_close(&s);
    }
    return ok ? 0 : 1;
}

static void
fails_when_asked(void **state)
{
    (void) state;
    assert_true(child("kernel:5"));
    assert_true(child("lost:5"));
    assert_true(child("alloc:3"));
    assert_true(child("launch:2"));
}

int
main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(runs_later),
        cmocka_unit_test(events_tell_when),
        cmocka_unit_test(graphs_repeat),
        cmocka_unit_test(graphs_have_branches),
        cmocka_unit_test(memory_is_held_to_its_size),
        cmocka_unit_test(memory_is_not_the_hosts),
        cmocka_unit_test(fails_when_asked),
    };

    if (argc > 1) {
        return failing(argv[1]);
    }
    return cmocka_run_group_tests(tests, setup, NULL);
}
