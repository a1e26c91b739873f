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

/* Is there such a setting? */
bool tr_config_has(const char *key);

#endif
