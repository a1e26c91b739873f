/*
 * Where the programs and files are that a command starts or names: beside this
 * one in a build tree, installed below a prefix, or in $PATH.
 */
#ifndef TR_PROGRAMS_H
#define TR_PROGRAMS_H

#include <limits.h>
#include <stdbool.h>

#define TR_PATHS 4

/* The first of the paths that is there, up to the first NULL, and can be used
 * so (access(2)); false: none. */
bool tr_find(const char *const paths[TR_PATHS], int mode, char out[PATH_MAX]);

/* A program in $PATH or in /usr/sbin, which is not in everybody's. */
bool tr_find_program(const char *name, char out[PATH_MAX]);

/* tokenring-engine; own_dir: where this program stands, whatever is returned. */
bool tr_find_engine(char own_dir[PATH_MAX], char out[PATH_MAX]);

#endif
