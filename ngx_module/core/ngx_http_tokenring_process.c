/*
 * The life of a worker process.
 *
 * Only workers connect to engines and to Redis; the master, cache processes and
 * others do not.
 */

#include "ngx_http_tokenring_accounts.h"
#include "ngx_http_tokenring_conf.h"
#include "ngx_http_tokenring_engine.h"
#include "ngx_http_tokenring_metrics.h"
#include "ngx_http_tokenring_redis.h"

#include <tokenring/version.h>


ngx_int_t
ngx_http_tokenring_init_process(ngx_cycle_t *cycle)
{
    ngx_uint_t                        i, j;
    ngx_http_tokenring_conn_t        *conns;
    ngx_http_tokenring_redis_t      **redises;
    ngx_http_tokenring_engine_t     **engines;
    ngx_http_tokenring_main_conf_t   *tmcf;

    if (ngx_process != NGX_PROCESS_WORKER && ngx_process != NGX_PROCESS_SINGLE)
    {
        return NGX_OK;
    }

    tmcf = ngx_http_cycle_get_module_main_conf(cycle,
                                               ngx_http_tokenring_module);
    if (tmcf == NULL) {
        return NGX_OK;
    }

    if (ngx_worker == 0) {
        ngx_log_error(NGX_LOG_NOTICE, cycle->log, 0,
                      "tokenring " TR_VERSION);
    }

    redises = tmcf->redises.elts;

    for (i = 0; i < tmcf->redises.nelts; i++) {
        ngx_http_tokenring_redis_open(redises[i]);
    }

    if (tmcf->tenants) {
        ngx_http_tokenring_accounts_begin(tmcf->tenants);
    }

    if (tmcf->engines.nelts == 0) {
        return NGX_OK;
    }

    ngx_http_tokenring_counters =
                          *(ngx_http_tokenring_shared_t **) tmcf->zone->data;
    ngx_http_tokenring_process_reset(ngx_http_tokenring_counters);

    engines = tmcf->engines.elts;

    for (i = 0; i < tmcf->engines.nelts; i++) {
        conns = engines[i]->conns.elts;

        for (j = 0; j < engines[i]->conns.nelts; j++) {
            if (conns[j].ondemand) {
                ngx_http_tokenring_conn_init(&conns[j]);

            } else {
                ngx_http_tokenring_connect(&conns[j]);
            }
        }
    }

    return NGX_OK;
}


void
ngx_http_tokenring_exit_process(ngx_cycle_t *cycle)
{
    ngx_uint_t                        i, j;
    ngx_http_tokenring_conn_t        *conns;
    ngx_http_tokenring_redis_t      **redises;
    ngx_http_tokenring_engine_t     **engines;
    ngx_http_tokenring_main_conf_t   *tmcf;

    tmcf = ngx_http_cycle_get_module_main_conf(cycle,
                                               ngx_http_tokenring_module);
    if (tmcf == NULL) {
        return;
    }

    /* stocks stay with this host: Redis could not be told any more */
    ngx_http_tokenring_accounts_left = 1;

    redises = tmcf->redises.elts;

    for (i = 0; i < tmcf->redises.nelts; i++) {
        ngx_http_tokenring_redis_exit(redises[i]);
    }

    if (ngx_http_tokenring_counters == NULL) {
        return;
    }

    engines = tmcf->engines.elts;

    for (i = 0; i < tmcf->engines.nelts; i++) {
        conns = engines[i]->conns.elts;

        for (j = 0; j < engines[i]->conns.nelts; j++) {
            ngx_http_tokenring_exit(&conns[j]);
        }
    }
}
