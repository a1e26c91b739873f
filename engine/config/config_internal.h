/*
 * config_internal.h: what the files of the settings share: the table
 * (config.c), the file's lines (config_file.c), what is derived at the end
 * (config_finish.c).
 */
#ifndef TR_CONFIG_INTERNAL_H
#define TR_CONFIG_INTERNAL_H

#include "config.h"

/* A size that is to be that of something else, until tr_config_finish. */
#define TR_CONFIG_AS_OTHER UINT64_MAX

/* Its row of the table, -1: there is no such setting. */
int tr_config_index(const char *key);
/* The setting in this row. */
const char *tr_config_key(int index);

#endif
