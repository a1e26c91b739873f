/*
 * A clock that a test sets: what a process takes for the time of day is ahead of
 * it, or behind, by the seconds in the file FAKE_CLOCK (a 64-bit number), which
 * may change while it runs.  For redis-server (redis.js):
 *
 *   LD_PRELOAD=fake_clock.so FAKE_CLOCK=FILE
 *
 * The monotonic clock, by which it waits, stays as it is.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static _Atomic int64_t *ahead;

__attribute__((constructor)) static void
begin(void)
{
    const char *path = getenv("FAKE_CLOCK");
    int fd = path == NULL ? -1 : open(path, O_RDONLY | O_CLOEXEC);
    void *p = fd == -1
                  ? MAP_FAILED
                  : mmap(NULL, sizeof(*ahead), PROT_READ, MAP_SHARED, fd, 0);

    if (p == MAP_FAILED) {
        abort();
    }
    ahead = p;
    close(fd);
}

int
clock_gettime(clockid_t id, struct timespec *t)
{
    int rc = (int) syscall(SYS_clock_gettime, id, t);

    if (rc == 0 && ahead != NULL
        && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) {
        t->tv_sec += (time_t) atomic_load(ahead);
    }
    return rc;
}

int
gettimeofday(struct timeval *restrict t, void *restrict zone)
{
    struct timespec now;

    (void) zone;
    clock_gettime(CLOCK_REALTIME, &now);
    t->tv_sec = now.tv_sec;
    t->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t
time(time_t *t)
{
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    if (t != NULL) {
        *t = now.tv_sec;
    }
    return now.tv_sec;
}
