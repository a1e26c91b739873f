/*
 * The store's directory (store.h): its key, how much is in it, and who goes.
 */
#include "store_internal.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "engine/config/log.h"

/* What a killed engine was writing is old by then. */
#define ORPHAN_SECONDS 600

/* ---- open --------------------------------------------------------------- */

static tr_status_t
cannot(const tr_store_t *s, const char *what, tr_error_t *err)
{
    return tr_error_set(err, TR_ERR_IO, "cache_dir", "cache_dir %s: %s: %s",
                        s->config.dir, what, strerror(errno));
}

/* A key that nobody knows.  Two engines may come at the same time: the first
 * link wins. */
static int
make_key(const tr_store_t *s)
{
    uint8_t key[TR_SIPHASH_BYTES];
    char name[64];
    int fd, rc = -1;

    snprintf(name, sizeof(name), ".tmp-%016llx-key",
             (unsigned long long) s->run);
    fd = openat(s->dir, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0) {
        return -1;
    }
    if (getrandom(key, sizeof(key), 0) == sizeof(key)
        && write(fd, key, sizeof(key)) == sizeof(key) && fsync(fd) == 0) {
        rc = linkat(s->dir, name, s->dir, "key", 0) == 0 || errno == EEXIST
                 ? 0
                 : -1;
    }
    close(fd);
    (void) unlinkat(s->dir, name, 0);
    return rc;
}

static tr_status_t
read_key(tr_store_t *s, tr_error_t *err)
{
    int fd = openat(s->dir, "key",
                    O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    uint8_t more;
    bool good;

    if (fd < 0 && errno == ENOENT) {
        if (make_key(s) != 0) {
            return cannot(s, "cannot write a key into it", err);
        }
        fd = openat(s->dir, "key",
                    O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    }
    if (fd < 0) {
        return cannot(s, "cannot read its file key", err);
    }
    good = read(fd, s->key, sizeof(s->key)) == sizeof(s->key)
           && read(fd, &more, 1) == 0;
    close(fd);
    return good ? TR_OK
                : tr_error_set(err, TR_ERR_INVALID, "cache_dir",
                               "cache_dir %s: its file \"key\" does not have "
                               "%u bytes: remove all its files to start "
                               "afresh",
                               s->config.dir, TR_SIPHASH_BYTES);
}

/* Prompts are in its files: it is ours alone. */
static tr_status_t
judge(const char *dir, const struct stat *st, uid_t owner, tr_error_t *err)
{
    if (st->st_uid == owner && (st->st_mode & 077) == 0) {
        return TR_OK;
    }
    return tr_error_set(err, TR_ERR_INVALID, "cache_dir",
                        "cache_dir %s has owner %u and mode %04o, expected "
                        "%u and 0700: its files contain prompts",
                        dir, (unsigned) st->st_uid,
                        (unsigned) (st->st_mode & 07777), (unsigned) owner);
}

tr_status_t
tr_store_check(const char *dir, tr_error_t *err)
{
    const char *slash = strrchr(dir, '/');
    char parent[PATH_MAX] = ".";
    struct stat st;

    if (stat(dir, &st) == 0) {
        if (S_ISDIR(st.st_mode)) { /* root asks for engines of other users */
            return judge(dir, &st, geteuid() == 0 ? st.st_uid : geteuid(), err);
        }
        return tr_error_set(err, TR_ERR_INVALID, "cache_dir",
                            "cache_dir %s: expected a directory", dir);
    }
    if (slash != NULL) {
        snprintf(parent, sizeof(parent), "%.*s",
                 slash == dir ? 1 : (int) (slash - dir), dir);
    }
    if (errno == ENOENT && access(parent, W_OK | X_OK) == 0) {
        return TR_OK;
    }
    return tr_error_set(err, TR_ERR_IO, "cache_dir",
                        "cache_dir %s: cannot make it: %s", dir,
                        strerror(errno));
}

tr_status_t
store_directory_open(tr_store_t *s, tr_error_t *err)
{
    struct stat st;
    tr_status_t rc;

    if (getrandom(&s->run, sizeof(s->run), 0) != sizeof(s->run)) {
        return cannot(s, "no random numbers", err);
    }
    if (mkdir(s->config.dir, 0700) != 0 && errno != EEXIST) {
        return cannot(s, "cannot make it", err);
    }
    s->dir = open(s->config.dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (s->dir < 0 || fstat(s->dir, &st) != 0) {
        return cannot(s, "cannot open it", err);
    }
    rc = judge(s->config.dir, &st, geteuid(), err);
    return rc == TR_OK ? read_key(s, err) : rc;
}

/* ---- room --------------------------------------------------------------- */

typedef struct {
    char name[STORE_NAME];
    ino_t file;
    nlink_t links;
    uint64_t bytes;
    struct timespec used;
} entry_t;

typedef struct {
    entry_t *entry;
    size_t n, cap;
    uint64_t bytes;
    uint64_t files;
} list_t;

/* Files in order of their last use, names of one file side by side. */
static int
by_use(const void *a, const void *b)
{
    const entry_t *x = a, *y = b;

    if (x->used.tv_sec != y->used.tv_sec) {
        return x->used.tv_sec < y->used.tv_sec ? -1 : 1;
    }
    if (x->used.tv_nsec != y->used.tv_nsec) {
        return x->used.tv_nsec < y->used.tv_nsec ? -1 : 1;
    }
    return (x->file > y->file) - (x->file < y->file);
}

static bool
add(list_t *l, const char *name, const struct stat *st)
{
    if (l->n == l->cap) {
        size_t cap = 2 * l->cap + 64;
        entry_t *grown = realloc(l->entry, cap * sizeof(*grown));

        if (grown == NULL) {
            return false;
        }
        l->entry = grown;
        l->cap = cap;
    }
    l->entry[l->n] = (entry_t){ .file = st->st_ino,
                                .links = st->st_nlink,
                                .bytes = (uint64_t) st->st_blocks * 512,
                                .used = st->st_mtim };
    memcpy(l->entry[l->n++].name, name, STORE_NAME);
    return true;
}

/* The time of a file is that of its last use (store.c). */
bool
store_is_old(const tr_store_t *s, const struct stat *st)
{
    struct timespec now;
    int64_t age;

    if (s->config.ttl_us == 0) {
        return false;
    }
    clock_gettime(CLOCK_REALTIME, &now);
    age = ((int64_t) now.tv_sec - st->st_mtim.tv_sec) * 1000000
          + (now.tv_nsec - st->st_mtim.tv_nsec) / 1000;
    return age > (int64_t) s->config.ttl_us;
}

static bool
list_files(const tr_store_t *s, list_t *l)
{
    int fd = openat(s->dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = fd >= 0 ? fdopendir(fd) : NULL;
    time_t now = time(NULL);
    struct dirent *e;
    bool good = d != NULL;
    struct stat st;

    while (good && (e = readdir(d)) != NULL) {
        if (fstatat(s->dir, e->d_name, &st, AT_SYMLINK_NOFOLLOW) != 0
            || !S_ISREG(st.st_mode)) {
            continue;
        }
        if (strncmp(e->d_name, ".tmp-", 5) == 0) {
            if (st.st_mtime + ORPHAN_SECONDS < now) {
                (void) unlinkat(s->dir, e->d_name, 0);
            }
        } else if (strlen(e->d_name) == STORE_NAME - 1) {
            if (store_is_old(s, &st)) {
                (void) unlinkat(s->dir, e->d_name, 0);
            } else {
                good = add(l, e->d_name, &st);
            }
        }
    }
    if (d != NULL) {
        closedir(d);
    } else if (fd >= 0) {
        close(fd);
    }
    return good;
}

bool
store_directory_room(tr_store_t *s, uint64_t more)
{
    list_t l = { 0 };
    size_t i = 0, j;
    bool good = more <= s->config.limit && list_files(s, &l);
    int why = more <= s->config.limit ? errno : STORE_TOO_LARGE;

    if (l.n != 0) {
        qsort(l.entry, l.n, sizeof(*l.entry), by_use);
    }
    for (j = 0; j < l.n; j++) {
        if (j == 0 || l.entry[j].file != l.entry[j - 1].file) {
            l.bytes += l.entry[j].bytes;
            l.files++;
        }
    }
    while (good && i < l.n && l.bytes + more > s->config.limit) {
        l.bytes -= l.entry[i].bytes;
        l.files--;
        for (j = i; j < l.n && l.entry[j].file == l.entry[i].file; j++) {
            (void) unlinkat(s->dir, l.entry[j].name, 0);
        }
        i = j;
    }
    atomic_store(&s->files, l.files + (more != 0 && good));
    atomic_store(&s->bytes, l.bytes + (good ? more : 0));
    free(l.entry);
    errno = why;
    return good;
}
