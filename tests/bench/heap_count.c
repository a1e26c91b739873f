/*
 * Counts the bytes that a process has from malloc and has not given back, for
 * soak.js: LD_PRELOAD=libheap_count.so HEAP_COUNT=DIR.
 *
 * What a process has resident also depends on holes in its heap and on pages that
 * the C library keeps; this does not.  So a leak is seen here, and what is not
 * seen here is none of ours.  The count is a 64-bit number in DIR/PID, which others
 * read at any time.  A fork goes on with the count of its parent in a file of its
 * own.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

/* glibc's own, which nothing stands in front of */
void *__libc_malloc(size_t n);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *p, size_t n);
void *__libc_memalign(size_t align, size_t n);
void __libc_free(void *p);

static _Atomic int64_t early; /* before there is a file */
static _Atomic int64_t *live = &early;

static void
count(void *p)
{
    atomic_fetch_add_explicit(live, (int64_t) malloc_usable_size(p),
                              memory_order_relaxed);
}

static void
uncount(void *p)
{
    atomic_fetch_sub_explicit(live, (int64_t) malloc_usable_size(p),
                              memory_order_relaxed);
}

/* A file for this process, with the count up to now. */
static void
open_file(void)
{
    const char *dir = getenv("HEAP_COUNT");
    _Atomic int64_t *file;
    char path[512];
    int fd;

    if (dir == NULL) {
        return;
    }
    snprintf(path, sizeof(path), "%s/%ld", dir, (long) getpid());
    fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (fd == -1 || ftruncate(fd, sizeof(*file)) != 0) {
        return;
    }
    file = mmap(NULL, sizeof(*file), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (file != MAP_FAILED) {
        atomic_store(file, atomic_load(live));
        live = file;
    }
}

__attribute__((constructor)) static void
begin(void)
{
    open_file();
    pthread_atfork(NULL, NULL, open_file);
}

void *
malloc(size_t n)
{
    void *p = __libc_malloc(n);

    if (p != NULL) {
        count(p);
    }
    return p;
}

void *
calloc(size_t n, size_t size)
{
    void *p = __libc_calloc(n, size);

    if (p != NULL) {
        count(p);
    }
    return p;
}

void *
realloc(void *p, size_t n)
{
    size_t before = p != NULL ? malloc_usable_size(p) : 0;
    void *q = __libc_realloc(p, n);

    if (q != NULL || n == 0) {
        atomic_fetch_sub_explicit(live, (int64_t) before, memory_order_relaxed);
    }
    if (q != NULL) {
        count(q);
    }
    return q;
}

void
free(void *p)
{
    if (p != NULL) {
        uncount(p);
        __libc_free(p);
    }
}

void *
memalign(size_t align, size_t n)
{
    void *p = __libc_memalign(align, n);

    if (p != NULL) {
        count(p);
    }
    return p;
}

void *
aligned_alloc(size_t align, size_t n)
{
    return memalign(align, n);
}

int
posix_memalign(void **out, size_t align, size_t n)
{
    void *p = memalign(align, n);

    if (p == NULL) {
        return ENOMEM;
    }
    *out = p;
    return 0;
}
