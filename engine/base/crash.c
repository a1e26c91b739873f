/*
 * Last words (crash.h).
 */
#include "crash.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>

static const int fatal[] = { SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT };

#define FATAL (sizeof(fatal) / sizeof(fatal[0]))

static tr_status_page_t *_Atomic told;
static struct sigaction before[FATAL]; /* the default, or a sanitizer's */
static bool watching;

static void
on_crash(int signal)
{
    tr_status_page_t *page = atomic_load(&told);
    size_t i;

    if (page != NULL) {
        atomic_store(&page->counters.crashed, (uint64_t) signal);
    }
    for (i = 0; i < FATAL; i++) {
        if (fatal[i] == signal) {
            sigaction(signal, &before[i], NULL);
        }
    }
    raise(signal); /* comes on return */
}

void
tr_crash_tell(tr_status_page_t *page)
{
    struct sigaction action;
    size_t i;

    atomic_store(&told, page);
    if (watching) {
        return;
    }
    watching = true;
    memset(&action, 0, sizeof(action));
    action.sa_handler = on_crash;
    for (i = 0; i < FATAL; i++) {
        sigaction(fatal[i], &action, &before[i]);
    }
}
