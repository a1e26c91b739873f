/*
 * Last words (crash.h).
 */
#include "crash.h"

#include "mapped_file.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>

static const int fatal[] = { SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT };

#define FATAL (sizeof(fatal) / sizeof(fatal[0]))

static _Atomic uint64_t *_Atomic told;
static struct sigaction before[FATAL]; /* the default, or a sanitizer's */
static bool watching;

/* The frame of a signal alone has 3.5 KiB with AVX-512, and 11 with AMX. */
#define STACK 32768

static _Thread_local _Alignas(16) char stack[STACK];

static void
on_crash(int signal, siginfo_t *info, void *context)
{
    _Atomic uint64_t *crashed = atomic_load(&told);
    const tr_mapped_file_t *file = signal == SIGBUS && info->si_code > 0
                                       ? tr_mapped_file_at(info->si_addr)
                                       : NULL;
    size_t i;

    (void) context;
    if (file != NULL) {
        file->lost(file->name);
    } else if (crashed != NULL) {
        atomic_store(crashed, (uint64_t) signal);
    }
    for (i = 0; i < FATAL; i++) {
        if (fatal[i] == signal) {
            sigaction(signal, &before[i], NULL);
        }
    }
    raise(signal); /* comes on return */
}

void
tr_crash_stack(void)
{
    stack_t now, own = { .ss_sp = stack, .ss_size = sizeof(stack) };

    if (sigaltstack(NULL, &now) == 0 && (now.ss_flags & SS_DISABLE) != 0) {
        sigaltstack(&own, NULL);
    }
}

void
tr_crash_tell(_Atomic uint64_t *crashed)
{
    struct sigaction action;
    size_t i;

    atomic_store(&told, crashed);
    if (watching) {
        return;
    }
    watching = true;
    memset(&action, 0, sizeof(action));
    action.sa_sigaction = on_crash;
    action.sa_flags = SA_ONSTACK | SA_SIGINFO;
    for (i = 0; i < FATAL; i++) {
        sigaction(fatal[i], &action, &before[i]);
    }
}
