/*
 * What a model directory is (model_directory.h).
 */
#include "model_directory.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/config/log.h"

#define SAFETENSORS "expected a directory with config.json and safetensors"

bool
tr_model_is_lfs_pointer(const void *data, size_t size)
{
    static const char begin[] = "version https://git-lfs.github.com/spec/";

    return size >= sizeof(begin) - 1
           && memcmp(data, begin, sizeof(begin) - 1) == 0;
}

static bool
ends_with(const char *name, const char *end)
{
    size_t n = strlen(name), e = strlen(end);

    return n > e && strcmp(name + n - e, end) == 0;
}

/* ORG/NAME, as models are named on a hub. */
static bool
looks_like_id(const char *dir)
{
    const char *slash = strchr(dir, '/');

    return slash != NULL && slash != dir && dir[0] != '.' && dir[0] != '~'
           && slash[1] != '\0' && strchr(slash + 1, '/') == NULL;
}

/* Nothing that can be a directory. */
static tr_status_t
no_directory(const char *dir, int e, tr_error_t *err)
{
    if (e == ENOENT && looks_like_id(dir)) {
        return tr_error_set(err, TR_ERR_NOT_FOUND, "model",
                            "%.200s: there is no such directory. It looks like "
                            "the id of a model on a hub: download it first, "
                            "and give the directory",
                            dir);
    }
    if (e == ENOTDIR && ends_with(dir, ".gguf")) {
        return tr_error_set(err, TR_ERR_UNSUPPORTED, "model",
                            "%.200s: a GGUF file, which is not "
                            "supported; " SAFETENSORS,
                            dir);
    }
    return tr_error_set(err, e == ENOENT ? TR_ERR_NOT_FOUND : TR_ERR_IO,
                        "model", "%.200s: cannot open: %s; " SAFETENSORS, dir,
                        strerror(e));
}

static bool
is_pointer(int at, const char *name)
{
    int fd = openat(at, name, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    char begin[64];
    ssize_t n;

    if (fd == -1) {
        return false;
    }
    n = read(fd, begin, sizeof(begin));
    close(fd);
    return n > 0 && tr_model_is_lfs_pointer(begin, (size_t) n);
}

/* Of a directory: names of what is there, "" for none. */
typedef struct {
    char gguf[256], torch[256], pointer[256];
    bool safetensors;
} contents_t;

static void
look_at(int at, const char *name, contents_t *c)
{
    if (ends_with(name, ".safetensors")) {
        c->safetensors = true;
    } else if (ends_with(name, ".gguf")) {
        snprintf(c->gguf, sizeof(c->gguf), "%s", name);
    } else if (ends_with(name, ".bin") || ends_with(name, ".pth")
               || ends_with(name, ".pt")) {
        snprintf(c->torch, sizeof(c->torch), "%s", name);
    }
    if ((ends_with(name, ".safetensors") || ends_with(name, ".json"))
        && is_pointer(at, name)
        && (c->pointer[0] == '\0' || strcmp(name, c->pointer) < 0)) {
        snprintf(c->pointer, sizeof(c->pointer), "%s", name);
    }
}

tr_status_t
tr_model_directory_check(const char *dir, bool weights, tr_error_t *err)
{
    DIR *open = opendir(dir);
    contents_t c = { 0 };
    struct dirent *entry;

    if (open == NULL) {
        return no_directory(dir, errno, err);
    }
    while ((entry = readdir(open)) != NULL) {
        look_at(dirfd(open), entry->d_name, &c);
    }
    closedir(open);
    if (c.pointer[0] != '\0') {
        return tr_error_set(err, TR_ERR_FORMAT, "model", TR_MODEL_LFS_TEXT,
                            c.pointer);
    }
    if (!weights || c.safetensors) {
        return TR_OK;
    }
    if (c.gguf[0] != '\0') {
        return tr_error_set(err, TR_ERR_UNSUPPORTED, "model",
                            "%.160s: weights in GGUF (%.160s), which is not "
                            "supported; " SAFETENSORS,
                            dir, c.gguf);
    }
    if (c.torch[0] != '\0') {
        return tr_error_set(err, TR_ERR_UNSUPPORTED, "model",
                            "%.160s: weights as PyTorch writes them (%.160s), "
                            "which are not read: such files can run "
                            "code; " SAFETENSORS,
                            dir, c.torch);
    }
    return TR_OK; /* what is missing says who reads it */
}
