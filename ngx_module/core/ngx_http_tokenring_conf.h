/*
 * What the configuration says: the module's main and location configurations.
 *
 * Both live in the cycle's pool.  A location borrows the engine, the Redis and
 * the dashboard cache that it names.  What workers add to them, such as
 * connections, is their own: nothing of it survives a reload.
 */

#ifndef _NGX_HTTP_TOKENRING_CONF_H_INCLUDED_
#define _NGX_HTTP_TOKENRING_CONF_H_INCLUDED_


#include "ngx_http_tokenring.h"


typedef struct {
    ngx_array_t                     engines; /* ngx_http_tokenring_engine_t * */
    ngx_array_t                     models;  /* ngx_http_tokenring_models_t * */
    ngx_uint_t                      nconns;
    ngx_array_t                     plans;   /* ngx_http_tokenring_plan_t * */
    ngx_shm_zone_t                 *tenants; /* NULL: no limits */
    ngx_uint_t                      tenants_shown; /* by name */
    ngx_uint_t                      limited; /* tokenring_limits was given */
    ngx_array_t                     redises; /* ngx_http_tokenring_redis_t * */
    ngx_uint_t                      redis;   /* tokenring_redis was given */
    ngx_http_tokenring_redis_t     *quota_redis; /* of shared plans, or NULL */
    ngx_http_tokenring_loc_conf_t  *resumable; /* the first; NULL: none */
    ngx_shm_zone_t                 *zone;
} ngx_http_tokenring_main_conf_t;


struct ngx_http_tokenring_loc_conf_s {
    /* what tokenring_pass says: a group, or a value that names one */
    ngx_flag_t                      passes;  /* it was given */
    ngx_http_tokenring_group_t     *group;
    ngx_http_tokenring_models_t    *models;  /* NULL: the group of an engine */
    ngx_http_complex_value_t       *pass;
    ngx_http_complex_value_t       *model;   /* instead of the body's */
    size_t                          body_memory; /* of a worker */
    ngx_http_complex_value_t       *tenant;  /* whose a request is */
    ngx_http_complex_value_t       *limits;  /* the name of its plan */
    size_t                          buffer_size;
    size_t                          retry_buffer;
    ngx_uint_t                      migrate;     /* moves at most, 0: none */
    ngx_msec_t                      migrate_timeout;
    size_t                          migrate_memory;  /* of a worker */
    ngx_flag_t                      migrate_strict;
    size_t                          body_rate;   /* bytes a second, 0: any */
    ngx_msec_t                      queue_timeout;
    ngx_msec_t                      first_token_timeout;
    ngx_msec_t                      idle_timeout;
    ngx_msec_t                      stall_timeout;
    ngx_msec_t                      keepalive_comment;
    ngx_array_t                    *shown;   /* by metrics and health */
    ngx_flag_t                      errors;
    ngx_http_tokenring_redis_t     *redis;   /* NULL: none */
    ngx_flag_t                      resumable;
    ngx_http_complex_value_t       *key;     /* whose a request is */
    ngx_http_complex_value_t       *cache_key; /* whose prefixes it shares */
    ngx_http_complex_value_t       *affinity;  /* stays at one engine */
    ngx_flag_t                      prefix_affinity;
    ngx_http_tokenring_cache_t     *dashboard; /* NULL: none */

    /* the directive of ours that serves the location, and where it stands */
    ngx_str_t                       served;  /* empty: none */
    u_char                         *file;
    ngx_uint_t                      line;
    ngx_http_handler_pt             handler;
};


/* the directive tokenring_migrate */
char *ngx_http_tokenring_set_migrate(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);

/* the directive tokenring_prefix_affinity */
char *ngx_http_tokenring_set_prefix_affinity(ngx_conf_t *cf,
    ngx_command_t *cmd, void *conf);

/* the directive tokenring_engine */
char *ngx_http_tokenring_set_engine(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);

/* adds the connections of an engine to a group; NGX_ERROR: no memory */
ngx_int_t ngx_http_tokenring_group_add(ngx_conf_t *cf,
    ngx_http_tokenring_group_t *group, ngx_http_tokenring_engine_t *engine);

/* the engine with this name, created if it is new; NULL: logged */
ngx_http_tokenring_engine_t *ngx_http_tokenring_find_engine(ngx_conf_t *cf,
    ngx_str_t *name);

/*
 * Has handler serve the location that is read, on behalf of this directive.
 * NGX_CONF_OK, or what is wrong: something else serves it already.
 */
char *ngx_http_tokenring_serve(ngx_conf_t *cf, ngx_command_t *cmd,
    ngx_http_tokenring_loc_conf_t *tlcf, ngx_http_handler_pt handler);

/*
 * A worker begins, and ends.  The first never fails, since an error would end
 * the worker for good.
 */
ngx_int_t ngx_http_tokenring_init_process(ngx_cycle_t *cycle);
void ngx_http_tokenring_exit_process(ngx_cycle_t *cycle);

/* $tokenring_*; NGX_ERROR without memory */
ngx_int_t ngx_http_tokenring_add_variables(ngx_conf_t *cf);


#endif /* _NGX_HTTP_TOKENRING_CONF_H_INCLUDED_ */
