/*
 * Which model a request is for.
 *
 * The name comes from the body, which is gathered whole and scanned for it
 * (_scan.c), or from a variable (tokenring_model).  Aliases and splits lead to
 * the name of a model that engines serve; among these one is chosen as ever
 * (_choose.c).  The engine stays judge: it gets the name that was read here,
 * and refuses a body in which it reads another.
 *
 * Without tokenring_models, the sockets of one engine that turn out to serve
 * several models are told apart in the same way.
 */

#include "ngx_http_tokenring_conf.h"
#include "ngx_http_tokenring_error.h"
#include "ngx_http_tokenring_models.h"
#include "ngx_http_tokenring_prefix.h"
#include "ngx_http_tokenring_request.h"


static ngx_int_t ngx_http_tokenring_gather(ngx_http_tokenring_ctx_t *ctx,
    ngx_uint_t picked);
static ngx_int_t ngx_http_tokenring_route_to(ngx_http_tokenring_ctx_t *ctx);
static ngx_int_t ngx_http_tokenring_route_unnamed(
    ngx_http_tokenring_ctx_t *ctx);
static ngx_str_t *ngx_http_tokenring_follow_names(
    ngx_http_tokenring_models_t *models, ngx_http_tokenring_ctx_t *ctx,
    ngx_str_t *name);
static ngx_str_t *ngx_http_tokenring_split_part(
    ngx_http_tokenring_split_t *split, ngx_http_tokenring_ctx_t *ctx);
static ngx_uint_t ngx_http_tokenring_known(ngx_http_tokenring_ctx_t *ctx,
    ngx_str_t *name);
static ngx_uint_t ngx_http_tokenring_named(ngx_array_t *names,
    ngx_str_t *name);
static ngx_int_t ngx_http_tokenring_refuse_model(ngx_http_tokenring_ctx_t *ctx,
    tr_status_t status, const char *format, ngx_str_t *name);


ngx_int_t
ngx_http_tokenring_where(ngx_http_request_t *r,
    ngx_http_tokenring_group_t **group, ngx_http_tokenring_models_t **models)
{
    ngx_str_t                         name;
    ngx_uint_t                        i;
    ngx_http_tokenring_models_t     **blocks;
    ngx_http_tokenring_engine_t     **engines;
    ngx_http_tokenring_loc_conf_t    *tlcf;
    ngx_http_tokenring_main_conf_t   *tmcf;

    tlcf = ngx_http_get_module_loc_conf(r, ngx_http_tokenring_module);

    *group = tlcf->group;
    *models = tlcf->models;

    if (tlcf->pass == NULL) {
        return NGX_OK;
    }

    if (ngx_http_complex_value(r, tlcf->pass, &name) != NGX_OK) {
        return NGX_ERROR;
    }

    tmcf = ngx_http_get_module_main_conf(r, ngx_http_tokenring_module);

    if (name.len > 7 && ngx_strncmp(name.data, "models=", 7) == 0) {
        name.data += 7;
        name.len -= 7;

        blocks = tmcf->models.elts;

        for (i = 0; i < tmcf->models.nelts; i++) {
            if (ngx_http_tokenring_same(&blocks[i]->group.name, &name)) {
                *group = &blocks[i]->group;
                *models = blocks[i];
                return NGX_OK;
            }
        }

        return NGX_DECLINED;
    }

    engines = tmcf->engines.elts;

    for (i = 0; i < tmcf->engines.nelts; i++) {
        if (ngx_http_tokenring_same(&engines[i]->name, &name)) {
            *group = &engines[i]->group;
            return NGX_OK;
        }
    }

    return NGX_DECLINED;
}


ngx_int_t
ngx_http_tokenring_pick_early(ngx_http_tokenring_ctx_t *ctx)
{
    ngx_int_t  rc;

    if (ctx->conf->model) {

        if (ngx_http_complex_value(ctx->request, ctx->conf->model,
                                   &ctx->asked)
            != NGX_OK)
        {
            return NGX_ERROR;
        }

        if (ctx->asked.len > TR_SUBMIT_MODEL_MAX) {
            ctx->asked.len = 0;
            ngx_http_tokenring_fail(ctx, TR_ERR_MODEL_NOT_FOUND,
                                    "There is no model with this name");
            return NGX_DECLINED;
        }

        if (ctx->asked.len) {
            rc = ngx_http_tokenring_route_to(ctx);

            return (rc == NGX_OK && ngx_http_tokenring_prefix_wanted(ctx))
                   ? ngx_http_tokenring_gather(ctx, 1) : rc;
        }
    }

    if (ctx->models == NULL && !ngx_http_tokenring_group_mixed(ctx->group)) {
        return ngx_http_tokenring_prefix_wanted(ctx)
               ? ngx_http_tokenring_gather(ctx, 1) : NGX_OK;
    }

    return ngx_http_tokenring_gather(ctx, 0);
}


/* its body is to be read first; picked: only for which engine gets it */

static ngx_int_t
ngx_http_tokenring_gather(ngx_http_tokenring_ctx_t *ctx, ngx_uint_t picked)
{
    ctx->picked = picked;

    ctx->scan = ngx_palloc(ctx->request->pool,
                           sizeof(ngx_http_tokenring_scan_t));
    if (ctx->scan == NULL) {
        return NGX_ERROR;
    }

    ngx_http_tokenring_scan_init(ctx->scan);

    ctx->routed = 1;

    return NGX_AGAIN;
}


ngx_int_t
ngx_http_tokenring_pick(ngx_http_tokenring_ctx_t *ctx)
{
    ngx_http_tokenring_scan_t  *scan;

    scan = ctx->scan;

    ngx_http_tokenring_prefix_read(ctx);

    if (ctx->picked) {
        return NGX_OK;
    }

    switch (scan->kind) {

    case NGX_HTTP_TOKENRING_SCAN_NAME:
        ctx->asked.data = scan->name;
        ctx->asked.len = scan->len;
        break;

    case NGX_HTTP_TOKENRING_SCAN_LONG:
        return ngx_http_tokenring_refuse_model(ctx, TR_ERR_MODEL_NOT_FOUND,
                   "There is no model whose name has more than 256 bytes",
                   NULL);

    default:
        /* none; or no string, which the engine has an error for */
        break;
    }

    return ngx_http_tokenring_route_to(ctx);
}


/* from the name that the client gave, or gave not, to that of a model */

static ngx_int_t
ngx_http_tokenring_route_to(ngx_http_tokenring_ctx_t *ctx)
{
    ngx_str_t                    *name;
    ngx_http_tokenring_models_t  *models;

    models = ctx->models;
    name = &ctx->asked;

    ctx->falls = 0;

    if (name->len == 0 && models) {
        name = &models->model;
    }

    if (name->len == 0) {
        return ngx_http_tokenring_route_unnamed(ctx);
    }

    if (!ngx_http_tokenring_allowed(ctx->request, models, name)) {
        goto unknown;
    }

    ctx->wanted = *ngx_http_tokenring_follow_names(models, ctx, name);

    if (!ngx_http_tokenring_known(ctx, &ctx->wanted)) {
        goto unknown;
    }

    ngx_log_debug2(NGX_LOG_DEBUG_HTTP, ctx->request->connection->log, 0,
                   "tokenring models: asked for:\"%V\" wanted:\"%V\"",
                   name, &ctx->wanted);

    return NGX_OK;

unknown:

    return ngx_http_tokenring_refuse_model(ctx, TR_ERR_MODEL_NOT_FOUND,
               "The model `%V` does not exist, or you have no access to it",
               name);
}


/*
 * The client names no model, nor does the configuration: it gets the only one
 * that there is, if that is allowed.  An engine that serves another may come
 * until one is chosen, so that what was allowed is wanted by its name.
 */

static ngx_int_t
ngx_http_tokenring_route_unnamed(ngx_http_tokenring_ctx_t *ctx)
{
    ngx_str_t  name;

    if (ctx->scan == NULL
        || ctx->scan->kind == NGX_HTTP_TOKENRING_SCAN_OTHER)
    {
        return NGX_OK;
    }

    if (ngx_http_tokenring_group_mixed(ctx->group)) {
        return ngx_http_tokenring_refuse_model(ctx, TR_ERR_INVALID,
                   "This server has several models: 'model' must name one",
                   NULL);
    }

    ngx_str_null(&name);

    if (ngx_http_tokenring_allowed(ctx->request, ctx->models, &name)) {
        /* there is no list, or all are on it */
        return NGX_OK;
    }

    ngx_http_tokenring_group_model(ctx->group, &name);

    if (name.len == 0) {
        ngx_http_tokenring_fail(ctx, TR_ERR_NO_ENGINE,
                                "No engine is available");
        return NGX_DECLINED;
    }

    if (!ngx_http_tokenring_allowed(ctx->request, ctx->models, &name)) {
        return ngx_http_tokenring_refuse_model(ctx, TR_ERR_MODEL_NOT_FOUND,
                   "'model' must name one that you have access to", NULL);
    }

    /* the engine's card may change */

    ctx->wanted.data = ngx_pstrdup(ctx->request->pool, &name);
    if (ctx->wanted.data == NULL) {
        return NGX_ERROR;
    }

    ctx->wanted.len = name.len;

    return NGX_OK;
}


static ngx_int_t
ngx_http_tokenring_refuse_model(ngx_http_tokenring_ctx_t *ctx,
    tr_status_t status, const char *format, ngx_str_t *name)
{
    u_char     *p;
    size_t      size;
    ngx_str_t   shown;

    ngx_http_tokenring_fail(ctx, status, format);

    ngx_str_set(&ctx->param, "model");

    if (name == NULL) {
        return NGX_DECLINED;
    }

    shown.data = name->data;
    shown.len = ngx_min(name->len, 128);

    size = ngx_strlen(format) + shown.len;

    p = ngx_pnalloc(ctx->request->pool, size);
    if (p == NULL) {
        ngx_str_set(&ctx->message, "There is no model with this name");
        return NGX_DECLINED;
    }

    ctx->message.data = p;
    ctx->message.len = ngx_snprintf(p, size, format, &shown) - p;

    return NGX_DECLINED;
}


/* aliases and splits, until a name is none of these; the configuration has no
 * circles of them */

static ngx_str_t *
ngx_http_tokenring_follow_names(ngx_http_tokenring_models_t *models,
    ngx_http_tokenring_ctx_t *ctx, ngx_str_t *name)
{
    ngx_str_t                   *to;
    ngx_http_tokenring_split_t  *split;

    while (models) {
        to = ngx_http_tokenring_name_to(&models->aliases, name);

        if (to == NULL) {
            split = ngx_http_tokenring_find_split(models, name);

            if (split == NULL) {
                break;
            }

            to = ngx_http_tokenring_split_part(split, ctx);

            if (ngx_http_tokenring_same(to, name)) {
                /* a part may be the model that the split is named after */
                break;
            }
        }

        name = to;
    }

    return name;
}


ngx_str_t *
ngx_http_tokenring_model_behind(ngx_http_tokenring_models_t *models,
    ngx_str_t *name)
{
    return ngx_http_tokenring_follow_names(models, NULL, name);
}


ngx_str_t *
ngx_http_tokenring_name_to(ngx_array_t *names, ngx_str_t *name)
{
    ngx_uint_t                  i;
    ngx_http_tokenring_name_t  *row;

    row = names->elts;

    for (i = 0; i < names->nelts; i++) {
        if (ngx_http_tokenring_same(&row[i].name, name)) {
            return &row[i].to;
        }
    }

    return NULL;
}


ngx_http_tokenring_split_t *
ngx_http_tokenring_find_split(ngx_http_tokenring_models_t *models,
    ngx_str_t *name)
{
    ngx_uint_t                   i;
    ngx_http_tokenring_split_t  *split;

    split = models->splits.elts;

    for (i = 0; i < models->splits.nelts; i++) {
        if (ngx_http_tokenring_same(&split[i].name, name)) {
            return &split[i];
        }
    }

    return NULL;
}


/* by a hash, so that the same client stays with the same model */

static ngx_str_t *
ngx_http_tokenring_split_part(ngx_http_tokenring_split_t *split,
    ngx_http_tokenring_ctx_t *ctx)
{
    uint32_t                    hash;
    ngx_str_t                   by;
    ngx_uint_t                  i, at;
    ngx_http_tokenring_part_t  *part;

    part = split->parts.elts;

    if (ctx == NULL) {
        return &part[0].to;
    }

    if (split->by == NULL
        || ngx_http_complex_value(ctx->request, split->by, &by) != NGX_OK
        || by.len == 0)
    {
        /* random hex digits */
        by = ctx->completion;
    }

    hash = ngx_murmur_hash2(by.data, by.len);
    at = (ngx_uint_t) (((uint64_t) hash * split->total) >> 32);

    for (i = 0; i < split->parts.nelts - 1; i++) {

        if (at < part[i].weight) {
            break;
        }

        at -= part[i].weight;
    }

    return &part[i].to;
}


ngx_uint_t
ngx_http_tokenring_fall_back(ngx_http_tokenring_ctx_t *ctx)
{
    ngx_str_t  *to;

    if (ctx->models == NULL || ctx->wanted.len == 0
        || ctx->falls == NGX_HTTP_TOKENRING_NAMES_MAX)
    {
        return 0;
    }

    to = ngx_http_tokenring_name_to(&ctx->models->fallbacks, &ctx->wanted);
    if (to == NULL) {
        return 0;
    }

    ngx_log_error(NGX_LOG_INFO, ctx->request->connection->log, 0,
                  "tokenring: another model, for want of an engine, "
                  "request=%V model=\"%V\" fallback=\"%V\"",
                  &ctx->request_id, &ctx->wanted, to);

    ctx->falls++;
    ctx->wanted = *to;

    return 1;
}


/* a list of names, separated by blanks or commas; "*" stands for all */

ngx_uint_t
ngx_http_tokenring_allowed(ngx_http_request_t *r,
    ngx_http_tokenring_models_t *models, ngx_str_t *name)
{
    u_char     *p, *last;
    ngx_str_t   list, one;

    if (models == NULL || models->allow == NULL) {
        return 1;
    }

    if (ngx_http_complex_value(r, models->allow, &list) != NGX_OK) {
        return 0;
    }

    p = list.data;
    last = list.data + list.len;

    while (p < last) {

        if (*p == ' ' || *p == ',') {
            p++;
            continue;
        }

        one.data = p;

        while (p < last && *p != ' ' && *p != ',') {
            p++;
        }

        one.len = p - one.data;

        if ((one.len == 1 && one.data[0] == '*')
            || ngx_http_tokenring_same(&one, name))
        {
            return 1;
        }
    }

    return 0;
}


/*
 * Does an engine serve it, as far as this worker has ever heard, or does the
 * configuration name it?  What a socket serves that was never connected nobody
 * knows: it may be this.
 */

static ngx_uint_t
ngx_http_tokenring_known(ngx_http_tokenring_ctx_t *ctx, ngx_str_t *name)
{
    ngx_uint_t                    i, j;
    ngx_http_tokenring_part_t    *part;
    ngx_http_tokenring_conn_t   **conns;
    ngx_http_tokenring_split_t   *split;
    ngx_http_tokenring_models_t  *models;

    conns = ctx->group->conns.elts;

    for (i = 0; i < ctx->group->conns.nelts; i++) {
        if (ngx_http_tokenring_conn_may_serve(conns[i], name)) {
            return 1;
        }
    }

    models = ctx->models;

    if (models == NULL) {
        return 0;
    }

    if (!ngx_http_tokenring_same(name, &ctx->asked)) {
        /* an alias, a split or the default leads to it */
        return 1;
    }

    for (i = 0; i < models->splits.nelts; i++) {
        split = (ngx_http_tokenring_split_t *) models->splits.elts + i;
        part = split->parts.elts;

        for (j = 0; j < split->parts.nelts; j++) {
            if (ngx_http_tokenring_same(&part[j].to, name)) {
                return 1;
            }
        }
    }

    return ngx_http_tokenring_same(&models->model, name)
           || ngx_http_tokenring_named(&models->aliases, name)
           || ngx_http_tokenring_named(&models->fallbacks, name);
}


static ngx_uint_t
ngx_http_tokenring_named(ngx_array_t *names, ngx_str_t *name)
{
    ngx_uint_t                  i;
    ngx_http_tokenring_name_t  *row;

    row = names->elts;

    for (i = 0; i < names->nelts; i++) {
        if (ngx_http_tokenring_same(&row[i].name, name)
            || ngx_http_tokenring_same(&row[i].to, name))
        {
            return 1;
        }
    }

    return 0;
}
