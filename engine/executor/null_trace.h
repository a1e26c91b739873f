/*
 * The trace of backend null: when each step's tokens came to be.
 *
 * With `null_trace PATH` the null executor (and tests/bench/upstream.c in the
 * same way) keeps one record per emission in a shared file: CLOCK_MONOTONIC at
 * the moment the tokens exist, and how many there are.  The load generator of
 * tests/bench maps the same file.  Tokens keep their order on the way to the
 * clients, so the n-th token that arrives anywhere belongs to the n-th token
 * of the trace, and the difference of the times is the added latency.
 */
#ifndef TR_NULL_TRACE_H
#define TR_NULL_TRACE_H

#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define TR_TRACE_MAGIC 0x4543415254525421ull
#define TR_TRACE_RECORDS (1u << 20) /* 16 MiB, sparse until used */

typedef struct {
    uint64_t ns;     /* CLOCK_MONOTONIC */
    uint64_t tokens; /* emitted at that moment, one per stream */
} tr_trace_record_t;

/* The file: written by the emitter, read by the load generator. */
typedef struct {
    uint64_t magic;
    _Atomic uint64_t n; /* records; those past the capacity are lost */
    uint64_t reserved[6];
    tr_trace_record_t record[TR_TRACE_RECORDS];
} tr_trace_t;

static inline uint64_t
tr_trace_now(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t) ts.tv_sec * 1000000000ull + (uint64_t) ts.tv_nsec;
}

/* Makes an empty trace at path (write != 0), or maps an existing one to read.
 * NULL with errno on failure.  Unmapped with tr_trace_close. */
static inline tr_trace_t *
tr_trace_open(const char *path, int write)
{
    int flags = write ? O_RDWR | O_CREAT | O_TRUNC : O_RDONLY;
    int fd = open(path, flags | O_CLOEXEC, 0600);
    struct stat st;
    void *base;

    if (fd == -1) {
        return NULL;
    }
    if ((write && ftruncate(fd, sizeof(tr_trace_t)) != 0) || fstat(fd, &st) != 0
        || st.st_size != sizeof(tr_trace_t)) {
        close(fd);
        return NULL;
    }
    base = mmap(NULL, sizeof(tr_trace_t),
                write ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    if (base == MAP_FAILED) {
        return NULL;
    }
    if (write) {
        ((tr_trace_t *) base)->magic = TR_TRACE_MAGIC;
    }
    return (tr_trace_t *) base;
}

static inline void
tr_trace_close(tr_trace_t *t)
{
    if (t != NULL) {
        munmap(t, sizeof(*t));
    }
}

static inline void
tr_trace_add(tr_trace_t *t, uint64_t ns, uint64_t tokens)
{
    uint64_t n = atomic_load_explicit(&t->n, memory_order_relaxed);

    if (n < TR_TRACE_RECORDS) {
        t->record[n].ns = ns;
        t->record[n].tokens = tokens;
        atomic_store_explicit(&t->n, n + 1, memory_order_release);
    }
}

#endif
