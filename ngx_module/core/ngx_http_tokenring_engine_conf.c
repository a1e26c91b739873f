/*
 * tokenring_engine: names, sockets, and their parameters.
 *
 * Sockets add up: several directives may name the same engine.  An engine may
 * also be named, by tokenring_pass for instance, before it is defined; that all
 * are defined is checked when the configuration is complete.
 */

#include "ngx_http_tokenring_conf.h"
#include "ngx_http_tokenring_engine.h"


/* of an engine on demand */
#define NGX_HTTP_TOKENRING_START_TIMEOUT  (120 * 1000)
#define NGX_HTTP_TOKENRING_IDLE_TIME      (10 * 60 * 1000)


static ngx_int_t ngx_http_tokenring_add_conn(ngx_conf_t *cf,
    ngx_http_tokenring_main_conf_t *tmcf, ngx_http_tokenring_engine_t *engine,
    ngx_str_t *url);
static ngx_int_t ngx_http_tokenring_check_path(ngx_conf_t *cf,
    ngx_http_tokenring_engine_t *engine, ngx_str_t *url);
static char *ngx_http_tokenring_set_parameters(ngx_conf_t *cf,
    ngx_http_tokenring_conn_t *conns, ngx_uint_t n);
static ngx_int_t ngx_http_tokenring_set_conns(
    ngx_http_tokenring_conn_t *conns, ngx_uint_t n, ngx_str_t *param);
static ngx_int_t ngx_http_tokenring_set_demand(
    ngx_http_tokenring_conn_t *conns, ngx_uint_t n, ngx_str_t *param);


/* the engine with this name, created if it is new */

ngx_http_tokenring_engine_t *
ngx_http_tokenring_find_engine(ngx_conf_t *cf, ngx_str_t *name)
{
    ngx_uint_t                        i;
    ngx_http_tokenring_engine_t      *engine, **engines;
    ngx_http_tokenring_main_conf_t   *tmcf;

    tmcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_tokenring_module);

    engines = tmcf->engines.elts;

    for (i = 0; i < tmcf->engines.nelts; i++) {
        if (engines[i]->name.len == name->len
            && ngx_strncmp(engines[i]->name.data, name->data, name->len) == 0)
        {
            return engines[i];
        }
    }

    for (i = 0; i < name->len; i++) {
        if (name->data[i] < 0x21 || name->data[i] > 0x7e
            || name->data[i] == '"' || name->data[i] == '\\')
        {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "invalid engine name \"%V\"", name);
            return NULL;
        }
    }

    engine = ngx_pcalloc(cf->pool, sizeof(ngx_http_tokenring_engine_t));
    if (engine == NULL
        || ngx_array_init(&engine->conns, cf->pool, 2,
                          sizeof(ngx_http_tokenring_conn_t))
           != NGX_OK)
    {
        return NULL;
    }

    if (ngx_array_init(&engine->groups, cf->pool, 1,
                       sizeof(ngx_http_tokenring_group_t *))
        != NGX_OK)
    {
        return NULL;
    }

    engine->name = *name;
    engine->group.name = *name;
    engine->file = cf->conf_file->file.name.data;
    engine->line = cf->conf_file->line;

    engines = ngx_array_push(&tmcf->engines);
    if (engines == NULL) {
        return NULL;
    }

    *engines = engine;

    return engine;
}


/* adds the connections of an engine, which are all known now */

ngx_int_t
ngx_http_tokenring_group_add(ngx_conf_t *cf, ngx_http_tokenring_group_t *group,
    ngx_http_tokenring_engine_t *engine)
{
    ngx_uint_t                    i;
    ngx_http_tokenring_conn_t    *conns, **conn;
    ngx_http_tokenring_group_t  **of;

    if (group->conns.elts == NULL) {
        ngx_queue_init(&group->waiting);

        if (ngx_array_init(&group->conns, cf->pool, engine->conns.nelts,
                           sizeof(ngx_http_tokenring_conn_t *))
            != NGX_OK)
        {
            return NGX_ERROR;
        }
    }

    of = ngx_array_push(&engine->groups);
    if (of == NULL) {
        return NGX_ERROR;
    }

    *of = group;

    conns = engine->conns.elts;

    for (i = 0; i < engine->conns.nelts; i++) {
        conn = ngx_array_push(&group->conns);
        if (conn == NULL) {
            return NGX_ERROR;
        }

        *conn = &conns[i];
    }

    return NGX_OK;
}


/* tokenring_engine NAME unix:PATH ... [weight=N] [slots=N] [ring=SIZE]
 * [start=ondemand [start_timeout=TIME] [idle=TIME] [model=NAME]] */

char *
ngx_http_tokenring_set_engine(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_tokenring_main_conf_t  *tmcf = conf;

    ngx_str_t                    *value;
    ngx_uint_t                    i, first;
    ngx_http_tokenring_conn_t    *conns;
    ngx_http_tokenring_engine_t  *engine;

    value = cf->args->elts;

    if (value[1].len == 0 || ngx_strncmp(value[1].data, "unix:", 5) == 0) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid engine name \"%V\", expected NAME and then "
                           "unix:PATH", &value[1]);
        return NGX_CONF_ERROR;
    }

    engine = ngx_http_tokenring_find_engine(cf, &value[1]);
    if (engine == NULL) {
        return NGX_CONF_ERROR;
    }

    first = engine->conns.nelts;

    for (i = 2; i < cf->args->nelts; i++) {

        if (ngx_strncmp(value[i].data, "unix:", 5) == 0) {
            if (ngx_http_tokenring_add_conn(cf, tmcf, engine, &value[i])
                != NGX_OK)
            {
                return NGX_CONF_ERROR;
            }

        } else if (ngx_strlchr(value[i].data, value[i].data + value[i].len,
                               '=')
                   == NULL)
        {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "invalid engine \"%V\", expected unix:PATH: an "
                               "engine listens at a Unix socket of this host",
                               &value[i]);
            return NGX_CONF_ERROR;
        }
    }

    if (engine->conns.nelts == first) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "no socket (unix:PATH) in \"%V\"", &cmd->name);
        return NGX_CONF_ERROR;
    }

    conns = engine->conns.elts;

    return ngx_http_tokenring_set_parameters(cf, &conns[first],
                                             engine->conns.nelts - first);
}


/* all arguments but sockets, for the sockets of the same directive */

static char *
ngx_http_tokenring_set_parameters(ngx_conf_t *cf,
    ngx_http_tokenring_conn_t *conns, ngx_uint_t n)
{
    u_char      *name;
    size_t       len;
    ngx_str_t   *value;
    ngx_uint_t   i, k;

    value = cf->args->elts;

    for (i = 2; i < cf->args->nelts; i++) {

        name = value[i].data;

        if (ngx_strncmp(name, "unix:", 5) == 0) {
            continue;
        }

        len = (u_char *) ngx_strchr(name, '=') - name + 1;    /* "weight=" */

        for (k = 2; k < i; k++) {
            if (ngx_strncmp(value[k].data, name, len) == 0) {
                ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                                   "duplicate parameter \"%V\"", &value[i]);
                return NGX_CONF_ERROR;
            }
        }

        if (ngx_http_tokenring_set_conns(conns, n, &value[i]) != NGX_OK) {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "invalid parameter \"%V\"", &value[i]);
            return NGX_CONF_ERROR;
        }
    }

    if (!conns[0].ondemand
        && (conns[0].start_timeout || conns[0].idle || conns[0].card.model[0]))
    {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "start_timeout=, idle= and model= are only for "
                           "engines with start=ondemand");
        return NGX_CONF_ERROR;
    }

    for (i = 0; i < n; i++) {
        if (conns[i].start_timeout == 0) {
            conns[i].start_timeout = conns[i].ondemand
                                     ? NGX_HTTP_TOKENRING_START_TIMEOUT
                                     : NGX_HTTP_TOKENRING_HANDSHAKE;
        }

        if (conns[i].idle == 0) {
            conns[i].idle = NGX_HTTP_TOKENRING_IDLE_TIME;
        }
    }

    return NGX_CONF_OK;
}


static ngx_int_t
ngx_http_tokenring_add_conn(ngx_conf_t *cf,
    ngx_http_tokenring_main_conf_t *tmcf, ngx_http_tokenring_engine_t *engine,
    ngx_str_t *url)
{
    ngx_url_t                   u;
    ngx_http_tokenring_conn_t  *conn;

    ngx_memzero(&u, sizeof(ngx_url_t));

    u.url = *url;

    if (ngx_parse_url(cf->pool, &u) != NGX_OK) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0, "%s in \"%V\"",
                           u.err ? u.err : "invalid socket", &u.url);
        return NGX_ERROR;
    }

    if (ngx_http_tokenring_check_path(cf, engine, url) != NGX_OK) {
        return NGX_ERROR;
    }

    conn = ngx_array_push(&engine->conns);
    if (conn == NULL) {
        return NGX_ERROR;
    }

    ngx_memzero(conn, sizeof(ngx_http_tokenring_conn_t));

    conn->engine = engine;
    conn->addr = u.addrs[0];
    conn->addr.name = *url;
    conn->number = tmcf->nconns++;
    conn->replica = engine->conns.nelts - 1;
    conn->weight = 1;

    return NGX_OK;
}


/* a path of which the working directory is no part, and one of its own */

static ngx_int_t
ngx_http_tokenring_check_path(ngx_conf_t *cf,
    ngx_http_tokenring_engine_t *engine, ngx_str_t *url)
{
    ngx_uint_t                  i;
    ngx_http_tokenring_conn_t  *conns;

    if (url->data[sizeof("unix:") - 1] != '/') {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "relative path in \"%V\", expected unix:/PATH",
                           url);
        return NGX_ERROR;
    }

    conns = engine->conns.elts;

    for (i = 0; i < engine->conns.nelts; i++) {

        if (conns[i].addr.name.len == url->len
            && ngx_strncmp(conns[i].addr.name.data, url->data, url->len) == 0)
        {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "duplicate \"%V\" of engine \"%V\"", url,
                               &engine->name);
            return NGX_ERROR;
        }
    }

    return NGX_OK;
}


/* a parameter of a directive, for the n sockets that the directive names */

static ngx_int_t
ngx_http_tokenring_set_conns(ngx_http_tokenring_conn_t *conns, ngx_uint_t n,
    ngx_str_t *param)
{
    ssize_t     size;
    ngx_int_t   number;
    ngx_str_t   s;
    ngx_uint_t  i;

    if (ngx_strncmp(param->data, "weight=", 7) == 0) {
        number = ngx_atoi(param->data + 7, param->len - 7);

        if (number < 1 || number > 65536) {
            return NGX_ERROR;
        }

        for (i = 0; i < n; i++) {
            conns[i].weight = number;
        }

        return NGX_OK;
    }

    if (ngx_strncmp(param->data, "slots=", 6) == 0) {
        number = ngx_atoi(param->data + 6, param->len - 6);

        if (number < 1 || number > (ngx_int_t) TR_CHANNEL_SLOTS_MAX) {
            return NGX_ERROR;
        }

        for (i = 0; i < n; i++) {
            conns[i].nslots = (uint32_t) number;
        }

        return NGX_OK;
    }

    if (ngx_strncmp(param->data, "ring=", 5) == 0) {
        s.data = param->data + 5;
        s.len = param->len - 5;
        size = ngx_parse_size(&s);

        if (size < (ssize_t) TR_RING_MIN || size > (ssize_t) TR_RING_MAX) {
            return NGX_ERROR;
        }

        for (i = 0; i < n; i++) {
            conns[i].ring = (uint32_t) size;
        }

        return NGX_OK;
    }

    return ngx_http_tokenring_set_demand(conns, n, param);
}


/* of engines that are started by who connects */

static ngx_int_t
ngx_http_tokenring_set_demand(ngx_http_tokenring_conn_t *conns, ngx_uint_t n,
    ngx_str_t *param)
{
    ngx_int_t   ms;
    ngx_str_t   value;
    ngx_uint_t  i;

    value.data = (u_char *) ngx_strchr(param->data, '=') + 1;
    value.len = param->data + param->len - value.data;

    if (ngx_strcmp(param->data, "start=ondemand") == 0) {

        for (i = 0; i < n; i++) {
            conns[i].ondemand = 1;
        }

        return NGX_OK;
    }

    if (ngx_strncmp(param->data, "model=", 6) == 0) {

        if (value.len == 0 || value.len >= sizeof(conns[0].card.model)) {
            return NGX_ERROR;
        }

        for (i = 0; i < n; i++) {
            /* until the engine tells */
            ngx_memcpy(conns[i].card.model, value.data, value.len);
        }

        return NGX_OK;
    }

    ms = ngx_parse_time(&value, 0);

    if (ms == NGX_ERROR || ms == 0) {
        return NGX_ERROR;
    }

    for (i = 0; i < n; i++) {
        if (ngx_strncmp(param->data, "idle=", 5) == 0) {
            conns[i].idle = (ngx_msec_t) ms;

        } else if (ngx_strncmp(param->data, "start_timeout=", 14) == 0) {
            conns[i].start_timeout = (ngx_msec_t) ms;

        } else {
            return NGX_ERROR;
        }
    }

    return NGX_OK;
}
