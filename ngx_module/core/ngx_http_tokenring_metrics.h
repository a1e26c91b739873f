/*
 * /metrics, and the gateway's own counters.
 *
 * The counters lie in a shared memory zone that survives reloads: fields are
 * only ever added at the end.  They are NULL in a process that has none, before
 * init_process and where no engine is configured.
 */

#ifndef _NGX_HTTP_TOKENRING_METRICS_H_INCLUDED_
#define _NGX_HTTP_TOKENRING_METRICS_H_INCLUDED_


#include "ngx_http_tokenring_text.h"


#define NGX_HTTP_TOKENRING_STATUSES  17


/* bounds of how long requests stood still while they moved; one more is +Inf */

#define NGX_HTTP_TOKENRING_PAUSES    14


/* of one worker, written by it alone */

typedef struct {
    ngx_atomic_t                    pid;
    ngx_atomic_t                    active;
    ngx_atomic_t                    connected;   /* bit: conn->number */
} ngx_http_tokenring_process_t;


/* a body that is refused (_suspects.c); until: 0, or a time in seconds */

#define NGX_HTTP_TOKENRING_REFUSED_BODIES  1024

typedef struct {
    uint64_t                        hash[2];
    ngx_atomic_t                    until;
} ngx_http_tokenring_refused_t;


struct ngx_http_tokenring_shared_s {
    ngx_atomic_t                    requests[NGX_HTTP_TOKENRING_STATUSES];
    ngx_atomic_t                    engine_losses;
    ngx_atomic_t                    protocol_errors;
    ngx_atomic_t                    pauses;
    ngx_atomic_t                    slow_uploads;
    ngx_atomic_t                    limited;
    ngx_atomic_t                    migrations;
    ngx_atomic_t                    unmovable;
    ngx_http_tokenring_process_t    processes[NGX_MAX_PROCESSES];
    ngx_atomic_t                    retries;
    ngx_atomic_t                    refused;
    ngx_atomic_t                    prefix_lookups;
    ngx_atomic_t                    prefix_hits;
    ngx_atomic_t                    prefix_stale;
    ngx_atomic_t                    refused_until;  /* of all bodies */
    ngx_http_tokenring_refused_t
        refused_bodies[NGX_HTTP_TOKENRING_REFUSED_BODIES];
    ngx_atomic_t                    pauses_moved[NGX_HTTP_TOKENRING_PAUSES + 1];
    ngx_atomic_t                    pauses_moved_ms;    /* all together */
};


extern ngx_http_tokenring_shared_t  *ngx_http_tokenring_counters;


/* one more of a field of the counters, if there are any */

#define ngx_http_tokenring_count(field)                                       \
    do {                                                                      \
        if (ngx_http_tokenring_counters) {                                    \
            (void) ngx_atomic_fetch_add(&ngx_http_tokenring_counters->field,  \
                                        1);                                   \
        }                                                                     \
    } while (0)


/* a request that moved went on after ms */
void ngx_http_tokenring_count_pause(ngx_msec_t ms);

/* handler of tokenring_metrics */
ngx_int_t ngx_http_tokenring_metrics_handler(ngx_http_request_t *r);

/* the gateway's own; NGX_ERROR without memory */
ngx_int_t ngx_http_tokenring_gateway_metrics(ngx_http_tokenring_text_t *out);

/* {"requests":{"200":1,..},"active":1}, or null where there are none */
ngx_int_t ngx_http_tokenring_gateway_json(ngx_http_tokenring_text_t *out);

/* workers that are connected to this socket */
ngx_uint_t ngx_http_tokenring_workers(ngx_http_tokenring_conn_t *conn);

/* makes their zone, and counts in the log phase */
ngx_int_t ngx_http_tokenring_init_counters(ngx_conf_t *cf,
    ngx_http_tokenring_main_conf_t *tmcf);

/* this worker begins, with nothing active or connected */
void ngx_http_tokenring_process_reset(ngx_http_tokenring_shared_t *shared);
void ngx_http_tokenring_process_connected(ngx_http_tokenring_conn_t *conn,
    ngx_uint_t on);


#endif /* _NGX_HTTP_TOKENRING_METRICS_H_INCLUDED_ */
