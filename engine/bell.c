/*
 * A doorbell's write with a limit on its time (bell.h).
 */
#include "bell.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include "log.h"

#ifndef sigev_notify_thread_id
#define sigev_notify_thread_id _sigev_un._tid
#endif

#define PERIOD_NS 100000000L

static void
on_signal(int signal)
{
    (void) signal; /* it is there to interrupt a write */
}

static void
set_timer(tr_bell_t *b, long ns)
{
    struct itimerspec at = { .it_value = { .tv_nsec = ns },
                             .it_interval = { .tv_nsec = ns } };

    b->armed = timer_settime(b->timer, 0, &at, NULL) == 0 && ns != 0;
}

void
tr_bell_open(tr_bell_t *b)
{
    struct sigaction action = { .sa_handler = on_signal };
    struct sigevent event;
    sigset_t set;

    memset(b, 0, sizeof(*b));
    memset(&event, 0, sizeof(event));
    event.sigev_notify = SIGEV_THREAD_ID;
    event.sigev_signo = SIGRTMIN;
    event.sigev_notify_thread_id = gettid();
    sigemptyset(&action.sa_mask);
    sigemptyset(&set);
    sigaddset(&set, SIGRTMIN);
    if (sigaction(SIGRTMIN, &action, NULL) != 0
        || pthread_sigmask(SIG_UNBLOCK, &set, NULL) != 0
        || timer_create(CLOCK_MONOTONIC, &event, &b->timer) != 0) {
        tr_log(TR_LEVEL_WARN, "no timer to guard doorbells error=\"%s\"",
               strerror(errno));
        return;
    }
    b->made = true;
}

void
tr_bell_close(tr_bell_t *b)
{
    if (b->made) {
        timer_delete(b->timer);
        b->made = b->armed = false;
    }
}

bool
tr_bell_ring(tr_bell_t *b, int fd)
{
    const uint64_t one = 1;

    b->used = true;
    if (b->made && !b->armed) {
        set_timer(b, PERIOD_NS);
    }
    /* EAGAIN: the counter is full, which is rung */
    return write(fd, &one, sizeof(one)) != -1 || errno != EINTR;
}

void
tr_bell_interrupted(tr_bell_t *b)
{
    if (b->armed && !b->used) {
        set_timer(b, 0);
    }
    b->used = false;
}
