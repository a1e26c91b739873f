/*
 * Directives and configuration.
 *
 * tokenring_engine defines engines; other directives refer to them by name, in
 * any order, so names are checked after the whole configuration was read.
 */

#include "ngx_http_tokenring_conf.h"
#include "ngx_http_tokenring_engine.h"
#include "ngx_http_tokenring_error.h"
#include "ngx_http_tokenring_metrics.h"
#include "ngx_http_tokenring_models.h"
#include "ngx_http_tokenring_request.h"
#include "ngx_http_tokenring_status.h"
#include "ngx_http_tokenring_tenants.h"
#include "ngx_http_tokenring_redis.h"
#include "ngx_http_tokenring_dashboard.h"


static ngx_int_t ngx_http_tokenring_preconfiguration(ngx_conf_t *cf);
static ngx_int_t ngx_http_tokenring_postconfiguration(ngx_conf_t *cf);
static void *ngx_http_tokenring_create_main_conf(ngx_conf_t *cf);
static void *ngx_http_tokenring_create_loc_conf(ngx_conf_t *cf);
static char *ngx_http_tokenring_merge_loc_conf(ngx_conf_t *cf, void *parent,
    void *child);
static void ngx_http_tokenring_merge_values(
    ngx_http_tokenring_loc_conf_t *conf, ngx_http_tokenring_loc_conf_t *prev);
static char *ngx_http_tokenring_check_positive(ngx_conf_t *cf, void *post,
    void *data);
static char *ngx_http_tokenring_check_size(ngx_conf_t *cf, void *post,
    void *data);
static char *ngx_http_tokenring_set_pass(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
static char *ngx_http_tokenring_set_page(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);
static char *ngx_http_tokenring_set_error(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);


static ngx_conf_post_t  ngx_http_tokenring_positive = {
    ngx_http_tokenring_check_positive
};


static ngx_conf_post_t  ngx_http_tokenring_some = {
    ngx_http_tokenring_check_size
};


static ngx_command_t  ngx_http_tokenring_commands[] = {

    { ngx_string("tokenring_engine"),
      NGX_HTTP_MAIN_CONF|NGX_CONF_2MORE,
      ngx_http_tokenring_set_engine,
      NGX_HTTP_MAIN_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("tokenring_models"),
      NGX_HTTP_MAIN_CONF|NGX_CONF_BLOCK|NGX_CONF_TAKE1,
      ngx_http_tokenring_set_models,
      NGX_HTTP_MAIN_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("tokenring_pass"),
      NGX_HTTP_LOC_CONF|NGX_HTTP_LIF_CONF|NGX_CONF_TAKE1,
      ngx_http_tokenring_set_pass,
      NGX_HTTP_LOC_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("tokenring_metrics"),
      NGX_HTTP_LOC_CONF|NGX_CONF_ANY,
      ngx_http_tokenring_set_page,
      NGX_HTTP_LOC_CONF_OFFSET,
      0,
      ngx_http_tokenring_metrics_handler },

    { ngx_string("tokenring_health"),
      NGX_HTTP_LOC_CONF|NGX_CONF_ANY,
      ngx_http_tokenring_set_page,
      NGX_HTTP_LOC_CONF_OFFSET,
      0,
      ngx_http_tokenring_health_handler },

    { ngx_string("tokenring_dashboard"),
      NGX_HTTP_LOC_CONF|NGX_CONF_NOARGS|NGX_CONF_TAKE1,
      ngx_http_tokenring_set_dashboard,
      NGX_HTTP_LOC_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("tokenring_error"),
      NGX_HTTP_LOC_CONF|NGX_CONF_NOARGS,
      ngx_http_tokenring_set_error,
      NGX_HTTP_LOC_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("tokenring_plan"),
      NGX_HTTP_MAIN_CONF|NGX_CONF_1MORE,
      ngx_http_tokenring_set_plan,
      NGX_HTTP_MAIN_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("tokenring_tenants"),
      NGX_HTTP_MAIN_CONF|NGX_CONF_TAKE12,
      ngx_http_tokenring_set_tenants,
      NGX_HTTP_MAIN_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("tokenring_tenant"),
      NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF|NGX_CONF_TAKE1,
      ngx_http_set_complex_value_slot,
      NGX_HTTP_LOC_CONF_OFFSET,
      offsetof(ngx_http_tokenring_loc_conf_t, tenant),
      NULL },

    { ngx_string("tokenring_limits"),
      NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF|NGX_CONF_TAKE1,
      ngx_http_tokenring_set_limits,
      NGX_HTTP_LOC_CONF_OFFSET,
      offsetof(ngx_http_tokenring_loc_conf_t, limits),
      NULL },

    { ngx_string("tokenring_model"),
      NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF|NGX_CONF_TAKE1,
      ngx_http_set_complex_value_slot,
      NGX_HTTP_LOC_CONF_OFFSET,
      offsetof(ngx_http_tokenring_loc_conf_t, model),
      NULL },

    { ngx_string("tokenring_body_memory"),
      NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF|NGX_CONF_TAKE1,
      ngx_conf_set_size_slot,
      NGX_HTTP_LOC_CONF_OFFSET,
      offsetof(ngx_http_tokenring_loc_conf_t, body_memory),
      &ngx_http_tokenring_some },

    { ngx_string("tokenring_buffer_size"),
      NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF|NGX_CONF_TAKE1,
      ngx_conf_set_size_slot,
      NGX_HTTP_LOC_CONF_OFFSET,
      offsetof(ngx_http_tokenring_loc_conf_t, buffer_size),
      &ngx_http_tokenring_some },

    { ngx_string("tokenring_migrate"),
      NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF|NGX_CONF_1MORE,
      ngx_http_tokenring_set_migrate,
      NGX_HTTP_LOC_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("tokenring_body_rate"),
      NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF|NGX_CONF_TAKE1,
      ngx_conf_set_size_slot,
      NGX_HTTP_LOC_CONF_OFFSET,
      offsetof(ngx_http_tokenring_loc_conf_t, body_rate),
      NULL },

    { ngx_string("tokenring_retry_buffer"),
      NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF|NGX_CONF_TAKE1,
      ngx_conf_set_size_slot,
      NGX_HTTP_LOC_CONF_OFFSET,
      offsetof(ngx_http_tokenring_loc_conf_t, retry_buffer),
      NULL },

    { ngx_string("tokenring_queue_timeout"),
      NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF|NGX_CONF_TAKE1,
      ngx_conf_set_msec_slot,
      NGX_HTTP_LOC_CONF_OFFSET,
      offsetof(ngx_http_tokenring_loc_conf_t, queue_timeout),
      &ngx_http_tokenring_positive },

    { ngx_string("tokenring_first_token_timeout"),
      NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF|NGX_CONF_TAKE1,
      ngx_conf_set_msec_slot,
      NGX_HTTP_LOC_CONF_OFFSET,
      offsetof(ngx_http_tokenring_loc_conf_t, first_token_timeout),
      &ngx_http_tokenring_positive },

    { ngx_string("tokenring_idle_timeout"),
      NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF|NGX_CONF_TAKE1,
      ngx_conf_set_msec_slot,
      NGX_HTTP_LOC_CONF_OFFSET,
      offsetof(ngx_http_tokenring_loc_conf_t, idle_timeout),
      &ngx_http_tokenring_positive },

    { ngx_string("tokenring_stall_timeout"),
      NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF|NGX_CONF_TAKE1,
      ngx_conf_set_msec_slot,
      NGX_HTTP_LOC_CONF_OFFSET,
      offsetof(ngx_http_tokenring_loc_conf_t, stall_timeout),
      &ngx_http_tokenring_positive },

    { ngx_string("tokenring_keepalive_comment"),
      NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF|NGX_CONF_TAKE1,
      ngx_conf_set_msec_slot,
      NGX_HTTP_LOC_CONF_OFFSET,
      offsetof(ngx_http_tokenring_loc_conf_t, keepalive_comment),
      NULL },

    { ngx_string("tokenring_redis"),
      NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF|NGX_CONF_1MORE,
      ngx_http_tokenring_set_redis,
      NGX_HTTP_LOC_CONF_OFFSET,
      0,
      NULL },

    { ngx_string("tokenring_resumable"),
      NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF|NGX_CONF_FLAG,
      ngx_conf_set_flag_slot,
      NGX_HTTP_LOC_CONF_OFFSET,
      offsetof(ngx_http_tokenring_loc_conf_t, resumable),
      NULL },

    { ngx_string("tokenring_request_key"),
      NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF|NGX_CONF_TAKE1,
      ngx_http_set_complex_value_slot,
      NGX_HTTP_LOC_CONF_OFFSET,
      offsetof(ngx_http_tokenring_loc_conf_t, key),
      NULL },

    { ngx_string("tokenring_cache_key"),
      NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF|NGX_CONF_TAKE1,
      ngx_http_set_complex_value_slot,
      NGX_HTTP_LOC_CONF_OFFSET,
      offsetof(ngx_http_tokenring_loc_conf_t, cache_key),
      NULL },

    { ngx_string("tokenring_affinity"),
      NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF|NGX_CONF_TAKE1,
      ngx_http_set_complex_value_slot,
      NGX_HTTP_LOC_CONF_OFFSET,
      offsetof(ngx_http_tokenring_loc_conf_t, affinity),
      NULL },

    { ngx_string("tokenring_prefix_affinity"),
      NGX_HTTP_MAIN_CONF|NGX_HTTP_SRV_CONF|NGX_HTTP_LOC_CONF|NGX_CONF_FLAG,
      ngx_http_tokenring_set_prefix_affinity,
      NGX_HTTP_LOC_CONF_OFFSET,
      offsetof(ngx_http_tokenring_loc_conf_t, prefix_affinity),
      NULL },

      ngx_null_command
};


static ngx_http_module_t  ngx_http_tokenring_module_ctx = {
    ngx_http_tokenring_preconfiguration,   /* preconfiguration */
    ngx_http_tokenring_postconfiguration,  /* postconfiguration */

    ngx_http_tokenring_create_main_conf,   /* create main configuration */
    NULL,                                  /* init main configuration */

    NULL,                                  /* create server configuration */
    NULL,                                  /* merge server configuration */

    ngx_http_tokenring_create_loc_conf,    /* create location configuration */
    ngx_http_tokenring_merge_loc_conf      /* merge location configuration */
};


ngx_module_t  ngx_http_tokenring_module = {
    NGX_MODULE_V1,
    &ngx_http_tokenring_module_ctx,        /* module context */
    ngx_http_tokenring_commands,           /* module directives */
    NGX_HTTP_MODULE,                       /* module type */
    NULL,                                  /* init master */
    NULL,                                  /* init module */
    ngx_http_tokenring_init_process,       /* init process */
    NULL,                                  /* init thread */
    NULL,                                  /* exit thread */
    ngx_http_tokenring_exit_process,       /* exit process */
    NULL,                                  /* exit master */
    NGX_MODULE_V1_PADDING
};


static char *
ngx_http_tokenring_check_positive(ngx_conf_t *cf, void *post, void *data)
{
    ngx_msec_t  *msec = data;

    return *msec ? NGX_CONF_OK : "must not be 0";
}


static char *
ngx_http_tokenring_check_size(ngx_conf_t *cf, void *post, void *data)
{
    size_t  *size = data;

    return *size ? NGX_CONF_OK : "must not be 0";
}


static ngx_int_t
ngx_http_tokenring_preconfiguration(ngx_conf_t *cf)
{
    return ngx_http_tokenring_add_variables(cf);
}


static ngx_int_t
ngx_http_tokenring_postconfiguration(ngx_conf_t *cf)
{
    ngx_uint_t                        i;
    ngx_http_tokenring_engine_t     **engines;
    ngx_http_tokenring_main_conf_t   *tmcf;

    tmcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_tokenring_module);

    engines = tmcf->engines.elts;

    if (ngx_http_tokenring_init_tenants(cf) != NGX_OK) {
        return NGX_ERROR;
    }

    if (tmcf->engines.nelts == 0) {
        return ngx_http_tokenring_init_groups(cf);
    }

    for (i = 0; i < tmcf->engines.nelts; i++) {
        if (engines[i]->conns.nelts == 0) {
            ngx_log_error(NGX_LOG_EMERG, cf->log, 0,
                          "no tokenring_engine \"%V\" is defined, "
                          "it is named in %s:%ui",
                          &engines[i]->name, engines[i]->file,
                          engines[i]->line);
            return NGX_ERROR;
        }
    }

    if (ngx_http_tokenring_init_groups(cf) != NGX_OK) {
        return NGX_ERROR;
    }

    if (tmcf->resumable && !tmcf->redis) {
        ngx_log_error(NGX_LOG_EMERG, cf->log, 0,
                      "\"tokenring_resumable on\" needs \"tokenring_redis\", "
                      "in the location of \"%V\" in %s:%ui or where its "
                      "answers are read; \"tokenring_redis off\" says that "
                      "another NGINX does", &tmcf->resumable->served,
                      tmcf->resumable->file, tmcf->resumable->line);
        return NGX_ERROR;
    }

    return ngx_http_tokenring_init_counters(cf, tmcf);
}


static void *
ngx_http_tokenring_create_main_conf(ngx_conf_t *cf)
{
    ngx_http_tokenring_main_conf_t  *conf;

    conf = ngx_pcalloc(cf->pool, sizeof(ngx_http_tokenring_main_conf_t));
    if (conf == NULL) {
        return NULL;
    }

    if (ngx_array_init(&conf->engines, cf->pool, 4,
                       sizeof(ngx_http_tokenring_engine_t *))
        != NGX_OK
        || ngx_array_init(&conf->models, cf->pool, 1,
                          sizeof(ngx_http_tokenring_models_t *))
           != NGX_OK
        || ngx_array_init(&conf->plans, cf->pool, 2,
                          sizeof(ngx_http_tokenring_plan_t *))
           != NGX_OK
        || ngx_array_init(&conf->redises, cf->pool, 1,
                          sizeof(ngx_http_tokenring_redis_t *))
           != NGX_OK)
    {
        return NULL;
    }

    return conf;
}


static void *
ngx_http_tokenring_create_loc_conf(ngx_conf_t *cf)
{
    ngx_http_tokenring_loc_conf_t  *conf;

    conf = ngx_pcalloc(cf->pool, sizeof(ngx_http_tokenring_loc_conf_t));
    if (conf == NULL) {
        return NULL;
    }

    /*
     * set by ngx_pcalloc():
     *
     *     conf->passes = 0;
     *     conf->group = NULL;
     *     conf->models = NULL;
     *     conf->pass = NULL;
     *     conf->model = NULL;
     *     conf->tenant = NULL;
     *     conf->limits = NULL;
     *     conf->shown = NULL;
     *     conf->errors = 0;
     *     conf->key = NULL;
     *     conf->cache_key = NULL;
     *     conf->affinity = NULL;
     *     conf->dashboard = NULL;
     *     conf->served = { 0, NULL };
     *     conf->handler = NULL;
     */

    conf->buffer_size = NGX_CONF_UNSET_SIZE;
    conf->body_memory = NGX_CONF_UNSET_SIZE;
    conf->retry_buffer = NGX_CONF_UNSET_SIZE;
    conf->migrate = NGX_CONF_UNSET_UINT;
    conf->body_rate = NGX_CONF_UNSET_SIZE;
    conf->queue_timeout = NGX_CONF_UNSET_MSEC;
    conf->first_token_timeout = NGX_CONF_UNSET_MSEC;
    conf->idle_timeout = NGX_CONF_UNSET_MSEC;
    conf->stall_timeout = NGX_CONF_UNSET_MSEC;
    conf->keepalive_comment = NGX_CONF_UNSET_MSEC;
    conf->redis = NGX_CONF_UNSET_PTR;
    conf->resumable = NGX_CONF_UNSET;
    conf->prefix_affinity = NGX_CONF_UNSET;

    return conf;
}


static char *
ngx_http_tokenring_merge_loc_conf(ngx_conf_t *cf, void *parent, void *child)
{
    ngx_http_tokenring_loc_conf_t  *prev = parent;
    ngx_http_tokenring_loc_conf_t  *conf = child;

    ngx_http_core_loc_conf_t        *clcf;
    ngx_http_tokenring_main_conf_t  *tmcf;

    ngx_http_tokenring_merge_values(conf, prev);

    clcf = ngx_http_conf_get_module_loc_conf(cf, ngx_http_core_module);

    if (conf->handler && clcf->handler != conf->handler) {
        ngx_log_error(NGX_LOG_EMERG, cf->log, 0,
                      "\"%V\" in %s:%ui shares its location with another "
                      "directive that serves requests, such as proxy_pass; "
                      "keep one of them", &conf->served, conf->file,
                      conf->line);
        return NGX_CONF_ERROR;
    }

    if (conf->passes && conf->resumable) {
        tmcf = ngx_http_conf_get_module_main_conf(cf,
                                                  ngx_http_tokenring_module);

        if (tmcf->resumable == NULL) {
            tmcf->resumable = conf;
        }
    }

    /* "if" and limit_except blocks serve what their location serves */

    if (clcf->noname && !conf->passes && conf->shown == NULL
        && !conf->errors && clcf->handler == NULL)
    {
        conf->passes = prev->passes;
        conf->group = prev->group;
        conf->models = prev->models;
        conf->pass = prev->pass;
        conf->shown = prev->shown;
        conf->errors = prev->errors;
        conf->dashboard = prev->dashboard;

        if (conf->passes) {
            clcf->handler = ngx_http_tokenring_handler;

        } else if (conf->dashboard) {
            clcf->handler = ngx_http_tokenring_dashboard_handler;
        }
    }

    return NGX_CONF_OK;
}


static void
ngx_http_tokenring_merge_values(ngx_http_tokenring_loc_conf_t *conf,
    ngx_http_tokenring_loc_conf_t *prev)
{
    ngx_conf_merge_size_value(conf->buffer_size, prev->buffer_size,
                              256 * 1024);

    if (conf->migrate == NGX_CONF_UNSET_UINT) {
        conf->migrate = (prev->migrate == NGX_CONF_UNSET_UINT)
                        ? 0 : prev->migrate;
        conf->migrate_timeout = prev->migrate_timeout;
        conf->migrate_memory = prev->migrate_memory;
        conf->migrate_strict = prev->migrate_strict;
    }

    ngx_conf_merge_size_value(conf->body_memory, prev->body_memory,
                              256 * 1024 * 1024);
    ngx_conf_merge_size_value(conf->body_rate, prev->body_rate, 4096);
    ngx_conf_merge_size_value(conf->retry_buffer, prev->retry_buffer,
                              1024 * 1024);
    ngx_conf_merge_msec_value(conf->queue_timeout, prev->queue_timeout, 30000);
    ngx_conf_merge_msec_value(conf->first_token_timeout,
                              prev->first_token_timeout, 300000);
    ngx_conf_merge_msec_value(conf->idle_timeout, prev->idle_timeout, 60000);
    ngx_conf_merge_msec_value(conf->stall_timeout, prev->stall_timeout, 60000);
    ngx_conf_merge_msec_value(conf->keepalive_comment,
                              prev->keepalive_comment, 0);
    ngx_conf_merge_ptr_value(conf->redis, prev->redis, NULL);
    ngx_conf_merge_value(conf->resumable, prev->resumable, 0);
    ngx_conf_merge_value(conf->prefix_affinity, prev->prefix_affinity, 0);

    if (conf->key == NULL) {
        conf->key = prev->key;
    }

    if (conf->affinity == NULL) {
        conf->affinity = prev->affinity;
    }

    if (conf->cache_key == NULL) {
        conf->cache_key = prev->cache_key;
    }

    if (conf->model == NULL) {
        conf->model = prev->model;
    }

    if (conf->tenant == NULL) {
        conf->tenant = prev->tenant;
    }

    if (conf->limits == NULL) {
        conf->limits = prev->limits;
    }
}


char *
ngx_http_tokenring_serve(ngx_conf_t *cf, ngx_command_t *cmd,
    ngx_http_tokenring_loc_conf_t *tlcf, ngx_http_handler_pt handler)
{
    ngx_http_core_loc_conf_t  *clcf;

    clcf = ngx_http_conf_get_module_loc_conf(cf, ngx_http_core_module);

    if (clcf->handler) {
        return "shares its location with another directive that serves "
               "requests, such as proxy_pass; keep one of them";
    }

    clcf->handler = handler;

    /* one that follows is found when the location is complete */

    tlcf->handler = handler;
    tlcf->served = cmd->name;
    tlcf->file = cf->conf_file->file.name.data;
    tlcf->line = cf->conf_file->line;

    return NGX_CONF_OK;
}


static char *
ngx_http_tokenring_set_pass(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_tokenring_loc_conf_t  *tlcf = conf;

    ngx_str_t                         *value, name;
    ngx_http_tokenring_engine_t       *engine;
    ngx_http_compile_complex_value_t   ccv;

    if (tlcf->passes) {
        return "is duplicate";
    }

    tlcf->passes = 1;

    value = cf->args->elts;

    if (ngx_http_script_variables_count(&value[1])) {
        tlcf->pass = ngx_palloc(cf->pool, sizeof(ngx_http_complex_value_t));
        if (tlcf->pass == NULL) {
            return NGX_CONF_ERROR;
        }

        ngx_memzero(&ccv, sizeof(ngx_http_compile_complex_value_t));

        ccv.cf = cf;
        ccv.value = &value[1];
        ccv.complex_value = tlcf->pass;

        if (ngx_http_compile_complex_value(&ccv) != NGX_OK) {
            return NGX_CONF_ERROR;
        }

    } else if (ngx_strncmp(value[1].data, "models=", 7) == 0) {
        name.data = value[1].data + 7;
        name.len = value[1].len - 7;

        tlcf->models = ngx_http_tokenring_find_models(cf, &name);
        if (tlcf->models == NULL) {
            return NGX_CONF_ERROR;
        }

        tlcf->group = &tlcf->models->group;

    } else {
        engine = ngx_http_tokenring_find_engine(cf, &value[1]);
        if (engine == NULL) {
            return NGX_CONF_ERROR;
        }

        tlcf->group = &engine->group;
    }

    return ngx_http_tokenring_serve(cf, cmd, tlcf, ngx_http_tokenring_handler);
}


/* tokenring_metrics and tokenring_health [ENGINE ...], or all engines */

static char *
ngx_http_tokenring_set_page(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_tokenring_loc_conf_t  *tlcf = conf;

    ngx_str_t                        *value;
    ngx_uint_t                        i;
    ngx_http_tokenring_engine_t     **engine;
    ngx_http_tokenring_main_conf_t   *tmcf;

    if (tlcf->shown) {
        return "is duplicate";
    }

    value = cf->args->elts;

    if (cf->args->nelts == 1) {
        tmcf = ngx_http_conf_get_module_main_conf(cf,
                                                  ngx_http_tokenring_module);
        tlcf->shown = &tmcf->engines;

    } else {
        tlcf->shown = ngx_array_create(cf->pool, cf->args->nelts - 1,
                                       sizeof(ngx_http_tokenring_engine_t *));
        if (tlcf->shown == NULL) {
            return NGX_CONF_ERROR;
        }

        for (i = 1; i < cf->args->nelts; i++) {
            engine = ngx_array_push(tlcf->shown);
            if (engine == NULL) {
                return NGX_CONF_ERROR;
            }

            *engine = ngx_http_tokenring_find_engine(cf, &value[i]);
            if (*engine == NULL) {
                return NGX_CONF_ERROR;
            }
        }
    }

    return ngx_http_tokenring_serve(cf, cmd, tlcf,
                                    (ngx_http_handler_pt) cmd->post);
}


static char *
ngx_http_tokenring_set_error(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_tokenring_loc_conf_t  *tlcf = conf;

    if (tlcf->errors) {
        return "is duplicate";
    }

    tlcf->errors = 1;

    return ngx_http_tokenring_serve(cf, cmd, tlcf,
                                    ngx_http_tokenring_error_handler);
}
