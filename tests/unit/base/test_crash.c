/*
 * Last words (crash.h): a process that ends by its own fault says so on a page
 * that another one reads, also when a thread has no stack left; one that is
 * killed does not.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/base/crash.h"

static _Atomic uint64_t *page;

static unsigned
deep(unsigned n)
{
    volatile char frame[256];

    memset((char *) frame, (int) n, sizeof(frame));
    return n == UINT_MAX
               ? 0
               : deep(n + 1) + (unsigned char) frame[n % sizeof(frame)];
}

static void *
overflow(void *arg)
{
    tr_crash_stack();
    return (void *) (uintptr_t) deep((unsigned) (uintptr_t) arg);
}

static void
runs_out_of_stack(void)
{
    pthread_attr_t attr;
    pthread_t thread;

    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, 256 << 10);
    if (pthread_create(&thread, &attr, overflow, NULL) == 0) {
        pthread_join(thread, NULL);
    }
}

static void
aborts(void)
{
    abort();
}

static void
is_killed(void)
{
    raise(SIGKILL);
}

/* What the page says of a child that did this, and how it ended. */
static uint64_t
ends(void (*run)(void), int *how)
{
    const struct rlimit none = { 0, 0 };
    pid_t pid;

    atomic_store(page, 0);
    pid = fork();
    assert_int_not_equal(pid, -1);
    if (pid == 0) {
        setrlimit(RLIMIT_CORE, &none);
        tr_crash_tell(page);
        run();
        _exit(0);
    }
    assert_int_equal(waitpid(pid, how, 0), pid);
    return atomic_load(page);
}

static void
the_page_tells_a_crash(void **state)
{
    int how;

    (void) state;
    assert_int_equal(ends(runs_out_of_stack, &how), SIGSEGV);
    /* a sanitizer exits */
    assert_true(WIFSIGNALED(how) ? WTERMSIG(how) == SIGSEGV
                                 : WEXITSTATUS(how) != 0);
    assert_int_equal(ends(aborts, &how), SIGABRT);
    assert_int_equal(ends(is_killed, &how), 0);
    assert_true(WIFSIGNALED(how) && WTERMSIG(how) == SIGKILL);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_page_tells_a_crash),
    };

    page = mmap(NULL, sizeof(*page), PROT_READ | PROT_WRITE,
                MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return page == MAP_FAILED ? 1 : cmocka_run_group_tests(tests, NULL, NULL);
}
