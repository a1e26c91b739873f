/*
 * Bodies of bell.h, which includes this.
 */
#ifndef TOKENRING_BELL_INLINE_H
#define TOKENRING_BELL_INLINE_H

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <tokenring/bell.h>

#ifndef sigev_notify_thread_id
#define sigev_notify_thread_id _sigev_un._tid
#endif

static inline void
tr_bell_on_signal(int signal)
{
    (void) signal; /* it is there to interrupt a write */
}

static inline void
tr_bell_set(tr_bell_t *b, long ns)
{
    struct itimerspec at = { .it_value = { .tv_nsec = ns },
                             .it_interval = { .tv_nsec = ns } };

    b->armed = timer_settime(b->timer, 0, &at, NULL) == 0 && ns != 0;
}

static inline int
tr_bell_open(tr_bell_t *b, long period_ns)
{
    struct sigaction action;
    struct sigevent event;
    sigset_t set;
    int number;

    memset(b, 0, sizeof(*b));
    b->period_ns = period_ns;
    for (number = SIGRTMIN; number <= SIGRTMAX; number++) {
        if (sigaction(number, NULL, &action) == 0
            && !(action.sa_flags & SA_SIGINFO)
            && (action.sa_handler == SIG_DFL
                || action.sa_handler == tr_bell_on_signal)) {
            break;
        }
    }
    if (number > SIGRTMAX) {
        return EAGAIN;
    }
    memset(&action, 0, sizeof(action));
    action.sa_handler = tr_bell_on_signal;
    memset(&event, 0, sizeof(event));
    event.sigev_notify = SIGEV_THREAD_ID;
    event.sigev_signo = number;
    event.sigev_notify_thread_id = (pid_t) syscall(SYS_gettid);
    sigemptyset(&action.sa_mask);
    sigemptyset(&set);
    sigaddset(&set, number);
    if (sigaction(number, &action, NULL) != 0
        || timer_create(CLOCK_MONOTONIC, &event, &b->timer) != 0) {
        return errno;
    }
    b->made = true;
    return pthread_sigmask(SIG_UNBLOCK, &set, NULL);
}

static inline void
tr_bell_close(tr_bell_t *b)
{
    if (b->made) {
        timer_delete(b->timer);
        b->made = b->armed = false;
    }
}

static inline bool
tr_bell_ring(tr_bell_t *b, int fd)
{
    const uint64_t one = 1;

    b->used = true;
    if (b->made && !b->armed) {
        tr_bell_set(b, b->period_ns);
    }
    /* EAGAIN: the counter is full, which is rung */
    return write(fd, &one, sizeof(one)) != -1 || errno != EINTR;
}

static inline void
tr_bell_rest(tr_bell_t *b)
{
    if (b->armed) {
        tr_bell_set(b, 0);
    }
    b->used = false;
}

static inline void
tr_bell_interrupted(tr_bell_t *b)
{
    if (b->used) {
        b->used = false;
    } else {
        tr_bell_rest(b);
    }
}

#endif
