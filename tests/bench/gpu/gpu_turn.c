/*
 * bench_gpu turn: a conversation that comes back.
 *
 * A prompt is computed, and what its policy leaves of it is kept.  Then it comes
 * again with new tokens at its end: what is found of it is taken over, copied where
 * it is compressed, and the new tokens are computed behind it.  Beside that the
 * time to compute everything anew, prompt and new tokens.
 *
 * What is kept may be in the pool, or have left it for host memory (cache_memory) or
 * a file (cache_dir): from a file it is read first, from the disk and once more from the page cache, as the step loop
 * does while nobody else is there.  Beside that the time that the file alone takes
 * to be read.
 */
#include "gpu_fixture.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/kv/kv_store.h"

#define ROUNDS 5u

static const tr_prefix_key_t nobodys;

/* ---- files --------------------------------------------------------------- */

/* Calls f for each file of the store, with what it is given. */
static void
each_file(const char *dir, void (*f)(const char *path, void *arg), void *arg)
{
    DIR *d = opendir(dir);
    struct dirent *e;
    char path[TR_CONFIG_PATH + 300];

    while (d != NULL && (e = readdir(d)) != NULL) {
        snprintf(path, sizeof(path), "%s/%s", dir, e->d_name);
        f(path, arg);
    }
    if (d != NULL) {
        closedir(d);
    }
}

static void
forget(const char *path, void *arg)
{
    int fd = open(path, O_RDONLY);

    (void) arg;
    if (fd >= 0) {
        (void) posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
        close(fd);
    }
}

typedef struct {
    uint64_t inode, bytes;
    double ms;
} read_t;

/* As the store's thread does, but for what it checks. */
static void
read_file(const char *path, void *arg)
{
    static uint8_t piece[1 << 20];
    int fd = open(path, O_RDONLY);
    read_t *r = arg;
    double begun = fixture_now_ms();
    struct stat st;

    if (fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode)
        && st.st_ino != r->inode && (uint64_t) st.st_size > r->bytes) {
        while (read(fd, piece, sizeof(piece)) > 0) {
        }
        *r = (read_t){ st.st_ino, (uint64_t) st.st_size,
                       fixture_now_ms() - begun };
    }
    if (fd >= 0) {
        close(fd);
    }
}

static void
remove_file(const char *path, void *arg)
{
    (void) arg;
    (void) unlink(path);
}

static void
open_files(fixture_t *b, const char *dir)
{
    const uint8_t identity[TR_STORE_ID_BYTES] = "bench_gpu";
    tr_error_t err;

    if (tr_kv_store_open(b->e->kv, dir, 1ull << 40, 0, identity, &err)
        != TR_OK) {
        fixture_die("turn", err.text);
    }
}

/* A turn of the step loop, with nothing else to do. */
static void
idle_turn(fixture_t *b)
{
    tr_kv_time(b->e->kv, (uint64_t) (fixture_now_ms() * 1e3));
    tr_kv_store_turn(b->e->kv);
    if (!tr_kv_settled(b->e->kv)) {
        fixture_settle(b);
    }
}

/* What is kept goes to a file; ms until it is there. */
static double
write_files(fixture_t *b)
{
    double begun = fixture_now_ms();
    tr_store_stats_t s;

    do {
        idle_turn(b);
        tr_kv_store_stats(b->e->kv, &s);
        if (s.failed + s.skipped != 0) {
            fixture_die("turn", "the file was not written");
        }
    } while (s.stored == 0);
    return fixture_now_ms() - begun;
}

static void
read_files(fixture_t *b, uint32_t n)
{
    tr_kv_cache_t *kv = b->e->kv;
    tr_kv_look_t look;

    tr_kv_time(kv, (uint64_t) (fixture_now_ms() * 1e3));
    look = tr_kv_store_look(kv, b, NULL, &nobodys, b->prompt, n, 0);
    if (look != TR_KV_LOOK_ASKED && look != TR_KV_LOOK_COMES) {
        fixture_die("turn", "files are not looked for");
    }
    while (tr_kv_store_looks(kv, b)) {
        idle_turn(b);
    }
}

/* ---- host memory ---------------------------------------------------------- */

static void
open_shelf(fixture_t *b)
{
    tr_error_t err;

    if (tr_kv_shelf_open(b->e->kv, b->config.cache_memory, &err) != TR_OK) {
        fixture_die("turn", err.text);
    }
}

/* What is kept is copied there; ms until it is. */
static double
write_shelf(fixture_t *b)
{
    double begun = fixture_now_ms();
    tr_shelf_stats_t s;

    do {
        idle_turn(b);
        tr_kv_shelf_stats(b->e->kv, &s);
        if (s.skipped != 0) {
            fixture_die("turn", "host memory has no room");
        }
    } while (s.stored == 0);
    return fixture_now_ms() - begun;
}

/* ---- turns ---------------------------------------------------------------- */

/* Where a prompt comes from. */
typedef enum {
    FROM_NOTHING,
    FROM_POOL,
    FROM_HOST,
    FROM_DISK,
    FROM_PAGE_CACHE
} from_t;

/* The first n tokens, those that are found first; ms until the next one is
 * there.  *slot stays open. */
static double
begin(fixture_t *b, uint32_t n, from_t from, int32_t *slot, uint32_t *found)
{
    tr_kv_cache_t *kv = b->e->kv;
    tr_kv_found_t f = { .match = { .node = TR_PREFIX_NONE,
                                   .part = TR_PREFIX_NONE } };
    double begun = fixture_now_ms();
    tr_sampled_t out;

    if (from > FROM_POOL) {
        read_files(b, n - 1);
    }
    *slot = tr_kv_open(kv, NULL);
    if (*slot < 0) {
        fixture_die("turn", "no slot");
    }
    if (from != FROM_NOTHING) {
        tr_kv_find(kv, NULL, &nobodys, b->prompt, n - 1, &f);
    }
    *found = f.tokens;
    fixture_must(tr_kv_adopt(kv, *slot, &nobodys, &f), "a copy");
    tr_kv_prompt(kv, *slot, n);
    if (!fixture_compute(b, *slot, *found, n, &out)) {
        fixture_die("turn", "the pool does not hold the prompt");
    }
    return fixture_now_ms() - begun;
}

/* Nothing of it is in the pool. */
static void
leave_pool(fixture_t *b, from_t from)
{
    tr_kv_expire(b->e->kv, UINT64_MAX - 1);
    fixture_settle(b);
    if (from == FROM_DISK) {
        each_file(b->config.cache_dir, forget, NULL);
    }
}

static double
again(fixture_t *b, uint32_t n, from_t from, uint32_t *found)
{
    double best = 0;

    for (uint32_t i = 0; i < ROUNDS; i++) {
        int32_t slot;
        double ms;

        if (from > FROM_POOL) {
            leave_pool(b, from);
        }
        ms = begin(b, n, from, &slot, found);
        best = i == 0 || ms < best ? ms : best;
        tr_kv_close(b->e->kv, slot);
        fixture_settle(b);
    }
    return best;
}

static double
again_found(fixture_t *b, uint32_t n, from_t from, uint32_t context)
{
    uint32_t found;
    double ms = again(b, n, from, &found);

    if (found != (n > context ? context : n - 1)) {
        fixture_die("turn", "not all of the prompt was found");
    }
    return ms;
}

/* Its pages alone; the least of some times. */
static double
load_alone(fixture_t *b, uint32_t n)
{
    double best = 0;

    for (uint32_t i = 0; i < ROUNDS; i++) {
        double begun, ms;

        leave_pool(b, FROM_HOST);
        begun = fixture_now_ms();
        read_files(b, n - 1);
        ms = fixture_now_ms() - begun;
        best = i == 0 || ms < best ? ms : best;
    }
    return best;
}

static void
turn_from_host(fixture_t *b, uint32_t n, uint32_t context, double anew)
{
    double wrote = write_shelf(b), load = load_alone(b, n);
    double again_ms = again_found(b, context, FROM_HOST, context);
    double ms = again_found(b, n, FROM_HOST, context);
    tr_shelf_stats_t s;

    tr_kv_shelf_stats(b->e->kv, &s);
    printf(" host_mib=%.1f host_write_ms=%.2f host_load_ms=%.2f"
           " host_again_ms=%.2f host_ms=%.2f host_share=%.4f"
           " host_again_share=%.4f",
           (double) s.bytes / (1 << 20), wrote, load, again_ms, ms, ms / anew,
           again_ms / anew);
}

static void
turn_from_files(fixture_t *b, uint32_t n, uint32_t context, double anew)
{
    const char *dir = b->config.cache_dir;
    double wrote = write_files(b), ms, warm, disk = 0;
    read_t r = { 0 };

    for (uint32_t i = 0; i < ROUNDS; i++) {
        r = (read_t){ 0 };
        each_file(dir, forget, NULL);
        each_file(dir, read_file, &r);
        disk = i == 0 || r.ms < disk ? r.ms : disk;
    }
    ms = again_found(b, n, FROM_DISK, context);
    warm = again_found(b, n, FROM_PAGE_CACHE, context);
    printf(" file_mib=%.1f write_ms=%.2f disk_ms=%.2f file_ms=%.2f"
           " page_cache_ms=%.2f file_share=%.4f page_cache_share=%.4f"
           " over_disk=%.3f",
           (double) r.bytes / (1 << 20), wrote, disk, ms, warm, ms / anew,
           warm / anew, ms / disk);
}

void
fixture_turn(fixture_t *b, uint32_t context, uint32_t fresh)
{
    tr_kv_cache_t *kv = b->e->kv;
    uint32_t n = context + fresh, found;
    const char *dir = b->config.cache_dir;
    double anew, next, same;
    int32_t slot;

    if (!tr_kv_reuses(kv, NULL)) {
        fixture_die("turn", "this policy's prefixes are not reused");
    }
    anew = again(b, n, FROM_NOTHING, &found);
    if (dir[0] != '\0') {
        open_files(b, dir);
    }
    if (b->config.cache_memory != 0) {
        open_shelf(b);
    }
    begin(b, context, FROM_NOTHING, &slot, &found);
    if (!fixture_compress(b, slot, context)) {
        fixture_die("turn", "the pool does not hold the compressed prompt");
    }
    fixture_settle(b);
    tr_kv_keep(kv, slot, b->prompt, context, true);
    tr_kv_close(kv, slot);
    fixture_settle(b);
    same = again_found(b, context, FROM_POOL, context);
    next = again_found(b, n, FROM_POOL, context);
    printf(" new=%u found=%u anew_ms=%.2f turn_ms=%.2f again_ms=%.2f"
           " turn_share=%.4f again_share=%.4f",
           fresh, context, anew, next, same, next / anew, same / anew);
    if (b->config.cache_memory != 0) {
        turn_from_host(b, n, context, anew);
        tr_kv_shelf_expire(kv, UINT64_MAX - 1);
    }
    if (dir[0] != '\0') {
        turn_from_files(b, n, context, anew);
        tr_kv_store_close(kv);
        each_file(dir, remove_file, NULL);
        (void) rmdir(dir);
    }
    printf("\n");
}
