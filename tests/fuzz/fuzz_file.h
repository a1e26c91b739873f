/*
 * For readers that want a file in a directory: the input becomes that file, in
 * a directory that is made once and removed at the end.
 */
#ifndef FUZZ_FILE_H
#define FUZZ_FILE_H

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static char fuzz_dir[] = "/tmp/tr-fuzz-XXXXXX";
static char fuzz_path[128];

static inline void
fuzz_file_remove(void)
{
    unlink(fuzz_path);
    rmdir(fuzz_dir);
}

/* Returns the directory. */
static inline const char *
fuzz_file_write(const char *name, const void *data, size_t size)
{
    int fd;

    if (fuzz_path[0] == '\0') {
        if (mkdtemp(fuzz_dir) == NULL) {
            abort();
        }
        snprintf(fuzz_path, sizeof(fuzz_path), "%s/%s", fuzz_dir, name);
        atexit(fuzz_file_remove);
    }
    fd = open(fuzz_path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd == -1 || write(fd, data, size) != (ssize_t) size) {
        abort();
    }
    close(fd);
    return fuzz_dir;
}

#endif
