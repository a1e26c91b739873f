/*
 * Ringing an engine that may be hostile.
 *
 * Both ends of a doorbell are one open file description, so that an engine can
 * clear its O_NONBLOCK and fill the counter: the next write would wait for ever
 * and every connection of the worker with it.  No call asks an eventfd not to
 * wait this once.  So a timer runs while we ring: its signal interrupts a write
 * that waits, and nothing else, since it has stopped before NGINX goes on.
 */

#include "ngx_http_tokenring.h"

#include <signal.h>
#include <time.h>

#ifndef sigev_notify_thread_id
#define sigev_notify_thread_id  _sigev_un._tid
#endif


/* no write that need not wait sees it, however busy the machine is */
#define NGX_HTTP_TOKENRING_BELL_NS  10000000


static void ngx_http_tokenring_bell_signal(int signo);
static void ngx_http_tokenring_bell_timer(long ns);


static timer_t     ngx_http_tokenring_bell;
static ngx_uint_t  ngx_http_tokenring_bell_made;


/* once a process; without a timer, ringing is as safe as the engines are */

void
ngx_http_tokenring_bell_init(void)
{
    int               signo;
    struct sigevent   event;
    struct sigaction  sa;

    if (ngx_http_tokenring_bell_made) {
        return;
    }

    /* one that nobody has taken */

    for (signo = SIGRTMIN; signo <= SIGRTMAX; signo++) {
        if (sigaction(signo, NULL, &sa) == 0 && !(sa.sa_flags & SA_SIGINFO)
            && sa.sa_handler == SIG_DFL)
        {
            break;
        }
    }

    ngx_memzero(&sa, sizeof(struct sigaction));
    sa.sa_handler = ngx_http_tokenring_bell_signal;
    sigemptyset(&sa.sa_mask);

    ngx_memzero(&event, sizeof(struct sigevent));
    event.sigev_notify = SIGEV_THREAD_ID;
    event.sigev_signo = signo;
    event.sigev_notify_thread_id = ngx_pid; /* the thread of the event loop */

    if (signo > SIGRTMAX
        || sigaction(signo, &sa, NULL) == -1
        || timer_create(CLOCK_MONOTONIC, &event, &ngx_http_tokenring_bell)
           == -1)
    {
        ngx_log_error(NGX_LOG_WARN, ngx_cycle->log, ngx_errno,
                      "tokenring: no timer to guard doorbells");
        return;
    }

    ngx_http_tokenring_bell_made = 1;
}


static void
ngx_http_tokenring_bell_signal(int signo)
{
    /* it is there to interrupt a write */
}


static void
ngx_http_tokenring_bell_timer(long ns)
{
    struct itimerspec  at;

    if (ngx_http_tokenring_bell_made) {
        ngx_memzero(&at, sizeof(struct itimerspec));
        at.it_value.tv_nsec = ns;
        at.it_interval.tv_nsec = ns;

        (void) timer_settime(ngx_http_tokenring_bell, 0, &at, NULL);
    }
}


void
ngx_http_tokenring_ring(ngx_http_tokenring_peer_t *peer)
{
    ssize_t    n;
    uint64_t   one;
    ngx_err_t  err;

    if (peer->broken) {
        return;
    }

    one = 1;

    ngx_http_tokenring_bell_timer(NGX_HTTP_TOKENRING_BELL_NS);

    n = write(peer->to_engine, &one, sizeof(one));
    err = (n == -1) ? ngx_errno : 0;

    ngx_http_tokenring_bell_timer(0);

    /* NGX_EAGAIN: the counter is full, which is rung */

    if (err == NGX_EINTR) {
        ngx_http_tokenring_break(peer, "its doorbell keeps who rings");
    }
}
