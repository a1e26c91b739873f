/*
 * tokenring stats --tenants: what each tenant has used, as NGINX counts it
 * (tokenring_tenants .. shown) and tells in /metrics.
 */
#ifndef TR_CLI_STATS_TENANTS_H
#define TR_CLI_STATS_TENANTS_H

#include <stdbool.h>

#include "options.h"

typedef struct {
    const char *url;                 /* of NGINX, or of its metrics */
    const tr_option_list_t *headers; /* borrowed */
    double interval;                 /* seconds between two looks */
    bool once, json;
} tr_stats_tenants_t;

/* Prints until Ctrl-C, or once; the exit status, with errors on stderr. */
int tr_stats_tenants(const tr_stats_tenants_t *how);

#endif
