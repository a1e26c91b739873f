/*
 * Finding programs (programs.h).
 */
#include "programs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

bool
tr_find(const char *const paths[TR_PATHS], int mode, char out[PATH_MAX])
{
    for (int i = 0; i < TR_PATHS && paths[i] != NULL; i++) {
        if (paths[i][0] != '\0' && access(paths[i], mode) == 0
            && realpath(paths[i], out) != NULL) {
            return true;
        }
    }
    return false;
}

bool
tr_find_program(const char *name, char out[PATH_MAX])
{
    const char *path = getenv("PATH");
    char all[4096], one[PATH_MAX], *save = NULL;

    snprintf(all, sizeof(all), "%s:/usr/sbin", path != NULL ? path : "");
    for (char *dir = strtok_r(all, ":", &save); dir != NULL;
         dir = strtok_r(NULL, ":", &save)) {
        if (snprintf(one, sizeof(one), "%s/%s", dir, name) < PATH_MAX
            && tr_find((const char *const[TR_PATHS]){ one }, X_OK, out)) {
            return true;
        }
    }
    return false;
}

bool
tr_find_engine(char own_dir[PATH_MAX], char out[PATH_MAX])
{
    char beside[PATH_MAX + 64], *slash;
    ssize_t n = readlink("/proc/self/exe", beside, PATH_MAX - 1);

    beside[n > 0 ? n : 0] = '\0';
    slash = strrchr(beside, '/');
    if (slash != NULL) {
        *slash = '\0';
    }
    memcpy(own_dir, beside, strlen(beside) + 1);
    strcat(beside, "/tokenring-engine");
    return tr_find((const char *const[TR_PATHS]){ beside }, X_OK, out)
           || tr_find_program("tokenring-engine", out);
}
