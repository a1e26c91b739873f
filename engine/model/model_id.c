/*
 * Which model it is (model_id.h).
 *
 * Engines trust each other's model directories as their administrator does, so
 * the hash need not withstand an attacker: two lanes of FNV-1a over 64 bits.
 */
#include "model_id.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/hash.h"

#define WHOLE (1u << 20)
#define PIECE 4096u
#define PIECES 256u

uint64_t
tr_model_hash(uint64_t before, const void *bytes, uint64_t len)
{
    uint64_t hash = tr_fnv1a_64(before, bytes, len);

    return hash ^ (hash >> 29);
}

typedef struct {
    uint64_t lane[2];
} hash_t;

static void
add(hash_t *h, const void *bytes, uint64_t len)
{
    h->lane[0] = tr_model_hash(h->lane[0], bytes, len);
    h->lane[1] = tr_model_hash(h->lane[1] * 0x9e3779b97f4a7c15ull, bytes, len);
}

static bool
add_range(hash_t *h, int fd, char *buf, uint64_t from, uint64_t len)
{
    while (len != 0) {
        ssize_t n = pread(fd, buf, len < WHOLE ? len : WHOLE, (off_t) from);

        if (n <= 0) {
            return false;
        }
        add(h, buf, (uint64_t) n);
        from += (uint64_t) n;
        len -= (uint64_t) n;
    }
    return true;
}

static bool
add_file(hash_t *h, const char *dir, const char *name, char *buf)
{
    char path[4096];
    struct stat st;
    uint64_t size, i;
    bool ok;
    int fd;

    snprintf(path, sizeof(path), "%s/%s", dir, name);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd == -1 || fstat(fd, &st) != 0) {
        if (fd != -1) {
            close(fd);
        }
        return false;
    }
    size = (uint64_t) st.st_size;
    add(h, name, strlen(name) + 1);
    add(h, &size, sizeof(size));
    ok = add_range(h, fd, buf, 0, size < WHOLE ? size : WHOLE);
    for (i = 0; ok && size > WHOLE && i < PIECES; i++) {
        uint64_t from = WHOLE + (size - WHOLE) / PIECES * i;

        ok = add_range(h, fd, buf, from,
                       size - from < PIECE ? size - from : PIECE);
    }
    close(fd);
    return ok;
}

static int
has_end(const char *name, const char *end)
{
    size_t n = strlen(name), m = strlen(end);

    return n > m && strcmp(name + n - m, end) == 0;
}

static int
weights(const struct dirent *entry)
{
    return has_end(entry->d_name, ".safetensors");
}

/* What makes a model: weights, configuration, tokenizer, template. */
static int
wanted(const struct dirent *entry)
{
    static const char *const ends[] = { ".safetensors", ".json", ".jinja",
                                        ".model" };
    size_t i;

    for (i = 0; i < sizeof(ends) / sizeof(ends[0]); i++) {
        if (has_end(entry->d_name, ends[i])) {
            return 1;
        }
    }
    return 0;
}

static int
by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name); /* in no locale */
}

tr_status_t
tr_model_identify(const char *dir, const char *settings,
                  uint8_t out[TR_MODEL_ID_BYTES])
{
    hash_t h = { { TR_FNV1A_64, 1099511628211ull } };
    char *buf = malloc(WHOLE);
    struct dirent **names;
    bool ok = buf != NULL;
    int n, i;

    memset(out, 0, TR_MODEL_ID_BYTES);
    n = ok ? scandir(dir, &names, wanted, by_name) : -1;
    for (i = 0; i < n; i++) {
        ok = ok && add_file(&h, dir, names[i]->d_name, buf);
        free(names[i]);
    }
    if (n >= 0) {
        free(names);
    }
    free(buf);
    if (n < 0 || !ok) {
        return TR_ERR_IO;
    }
    add(&h, settings, strlen(settings));
    memcpy(out, h.lane, TR_MODEL_ID_BYTES);
    return TR_OK;
}

/* Not the time of a change of the inode: a service manager that sets owners at
 * each start would make it another model. */
static bool
stamp_file(uint64_t *stamp, const char *dir, const char *name)
{
    char path[4096];
    struct stat st;
    uint64_t of[4];

    snprintf(path, sizeof(path), "%s/%s", dir, name);
    if (stat(path, &st) != 0) {
        return false;
    }
    of[0] = (uint64_t) st.st_size;
    of[1] = (uint64_t) st.st_ino;
    of[2] = (uint64_t) st.st_mtim.tv_sec;
    of[3] = (uint64_t) st.st_mtim.tv_nsec;
    *stamp = tr_model_hash(*stamp, name, strlen(name) + 1);
    *stamp = tr_model_hash(*stamp, of, sizeof(of));
    return true;
}

tr_status_t
tr_model_stamp(const char *dir, uint64_t *out)
{
    struct dirent **names;
    bool ok = true;
    int n = scandir(dir, &names, weights, by_name), i;

    *out = TR_FNV1A_64;
    for (i = 0; i < n; i++) {
        ok = ok && stamp_file(out, dir, names[i]->d_name);
        free(names[i]);
    }
    if (n >= 0) {
        free(names);
    }
    return n >= 0 && ok ? TR_OK : TR_ERR_IO;
}
