/*
 * tokenring_models: names for what engines serve.
 *
 *     tokenring_models NAME {
 *         engine ENGINE ...;                without it: all engines
 *         default MODEL;
 *         alias NAME MODEL;
 *         split NAME MODEL=WEIGHT ... [by=VALUE];
 *         fallback MODEL OTHER;
 *         allow VALUE;
 *     }
 *
 * A block may be named, by tokenring_pass, before it is defined.
 */

#include "ngx_http_tokenring_conf.h"
#include "ngx_http_tokenring_models.h"


static ngx_http_tokenring_models_t *ngx_http_tokenring_models_create(
    ngx_conf_t *cf, ngx_str_t *name);
static char *ngx_http_tokenring_models_row(ngx_conf_t *cf,
    ngx_command_t *dummy, void *conf);
static char *ngx_http_tokenring_models_engine(ngx_conf_t *cf,
    ngx_http_tokenring_models_t *models);
static char *ngx_http_tokenring_models_default(ngx_conf_t *cf,
    ngx_http_tokenring_models_t *models);
static char *ngx_http_tokenring_models_alias(ngx_conf_t *cf,
    ngx_http_tokenring_models_t *models);
static char *ngx_http_tokenring_models_fallback(ngx_conf_t *cf,
    ngx_http_tokenring_models_t *models);
static char *ngx_http_tokenring_models_name(ngx_conf_t *cf,
    ngx_array_t *names);
static char *ngx_http_tokenring_models_split(ngx_conf_t *cf,
    ngx_http_tokenring_models_t *models);
static char *ngx_http_tokenring_models_part(ngx_conf_t *cf,
    ngx_http_tokenring_split_t *split, ngx_str_t *text);
static char *ngx_http_tokenring_models_allow(ngx_conf_t *cf,
    ngx_http_tokenring_models_t *models);
static char *ngx_http_tokenring_models_new(ngx_conf_t *cf,
    ngx_http_tokenring_models_t *models, ngx_str_t *name);
static ngx_uint_t ngx_http_tokenring_models_circle(
    ngx_http_tokenring_models_t *models, ngx_str_t *name, ngx_uint_t depth);
static char *ngx_http_tokenring_models_check(ngx_conf_t *cf,
    ngx_http_tokenring_models_t *models);
static ngx_http_complex_value_t *ngx_http_tokenring_models_value(
    ngx_conf_t *cf, ngx_str_t *text);


static struct {
    const char   *name;
    ngx_uint_t    most;      /* arguments; 0: any number */
    const char   *expected;
    char       *(*set)(ngx_conf_t *cf, ngx_http_tokenring_models_t *models);
} ngx_http_tokenring_models_rows[] = {

    { "engine", 0, "engine NAME ...", ngx_http_tokenring_models_engine },
    { "default", 1, "default MODEL", ngx_http_tokenring_models_default },
    { "alias", 2, "alias NAME MODEL", ngx_http_tokenring_models_alias },
    { "split", 0, "split NAME MODEL=WEIGHT ... [by=VALUE]",
      ngx_http_tokenring_models_split },
    { "fallback", 2, "fallback MODEL OTHER",
      ngx_http_tokenring_models_fallback },
    { "allow", 1, "allow VALUE", ngx_http_tokenring_models_allow },

    { NULL, 0, NULL, NULL }
};


ngx_http_tokenring_models_t *
ngx_http_tokenring_find_models(ngx_conf_t *cf, ngx_str_t *name)
{
    ngx_uint_t                        i;
    ngx_http_tokenring_models_t      *models, **blocks;
    ngx_http_tokenring_main_conf_t   *tmcf;

    tmcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_tokenring_module);

    blocks = tmcf->models.elts;

    for (i = 0; i < tmcf->models.nelts; i++) {
        if (ngx_http_tokenring_same(&blocks[i]->group.name, name)) {
            return blocks[i];
        }
    }

    if (name->len == 0) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "empty name in tokenring_models");
        return NULL;
    }

    models = ngx_http_tokenring_models_create(cf, name);

    blocks = models ? ngx_array_push(&tmcf->models) : NULL;
    if (blocks == NULL) {
        return NULL;
    }

    *blocks = models;

    return models;
}


static ngx_http_tokenring_models_t *
ngx_http_tokenring_models_create(ngx_conf_t *cf, ngx_str_t *name)
{
    ngx_http_tokenring_models_t  *models;

    models = ngx_pcalloc(cf->pool, sizeof(ngx_http_tokenring_models_t));
    if (models == NULL
        || ngx_array_init(&models->engines, cf->pool, 2,
                          sizeof(ngx_http_tokenring_engine_t *))
           != NGX_OK
        || ngx_array_init(&models->aliases, cf->pool, 4,
                          sizeof(ngx_http_tokenring_name_t))
           != NGX_OK
        || ngx_array_init(&models->fallbacks, cf->pool, 4,
                          sizeof(ngx_http_tokenring_name_t))
           != NGX_OK
        || ngx_array_init(&models->splits, cf->pool, 2,
                          sizeof(ngx_http_tokenring_split_t))
           != NGX_OK)
    {
        return NULL;
    }

    models->group.name = *name;
    models->file = cf->conf_file->file.name.data;
    models->line = cf->conf_file->line;

    return models;
}


char *
ngx_http_tokenring_set_models(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    char                         *rv;
    ngx_str_t                    *value;
    ngx_conf_t                    save;
    ngx_http_tokenring_models_t  *models;

    value = cf->args->elts;

    models = ngx_http_tokenring_find_models(cf, &value[1]);
    if (models == NULL) {
        return NGX_CONF_ERROR;
    }

    if (models->defined) {
        return "is duplicate";
    }

    models->defined = 1;

    save = *cf;
    cf->handler = ngx_http_tokenring_models_row;
    cf->handler_conf = (char *) models;

    rv = ngx_conf_parse(cf, NULL);

    *cf = save;

    return (rv == NGX_CONF_OK) ? ngx_http_tokenring_models_check(cf, models)
                               : rv;
}


static char *
ngx_http_tokenring_models_row(ngx_conf_t *cf, ngx_command_t *dummy, void *conf)
{
    ngx_http_tokenring_models_t  *models = conf;

    ngx_str_t   *value;
    ngx_uint_t   i, n;

    value = cf->args->elts;
    n = cf->args->nelts - 1;

    for (i = 0; ngx_http_tokenring_models_rows[i].name; i++) {

        if (ngx_strcmp(value[0].data, ngx_http_tokenring_models_rows[i].name)
            != 0)
        {
            continue;
        }

        if (n == 0 || (ngx_http_tokenring_models_rows[i].most
                       && n != ngx_http_tokenring_models_rows[i].most))
        {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "invalid number of arguments in \"%V\", "
                               "expected \"%s\"", &value[0],
                               ngx_http_tokenring_models_rows[i].expected);
            return NGX_CONF_ERROR;
        }

        return ngx_http_tokenring_models_rows[i].set(cf, models);
    }

    ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                       "unknown \"%V\" in tokenring_models, expected engine, "
                       "default, alias, split, fallback or allow", &value[0]);
    return NGX_CONF_ERROR;
}


static char *
ngx_http_tokenring_models_engine(ngx_conf_t *cf,
    ngx_http_tokenring_models_t *models)
{
    ngx_str_t                     *value;
    ngx_uint_t                     i, j;
    ngx_http_tokenring_engine_t  **engines, *engine;

    value = cf->args->elts;

    for (i = 1; i < cf->args->nelts; i++) {
        engine = ngx_http_tokenring_find_engine(cf, &value[i]);
        if (engine == NULL) {
            return NGX_CONF_ERROR;
        }

        engines = models->engines.elts;

        for (j = 0; j < models->engines.nelts; j++) {
            if (engines[j] == engine) {
                ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                                   "duplicate engine \"%V\"", &value[i]);
                return NGX_CONF_ERROR;
            }
        }

        engines = ngx_array_push(&models->engines);
        if (engines == NULL) {
            return NGX_CONF_ERROR;
        }

        *engines = engine;
    }

    return NGX_CONF_OK;
}


static char *
ngx_http_tokenring_models_default(ngx_conf_t *cf,
    ngx_http_tokenring_models_t *models)
{
    ngx_str_t  *value;

    value = cf->args->elts;

    if (models->model.len) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0, "duplicate \"default\"");
        return NGX_CONF_ERROR;
    }

    models->model = value[1];

    return NGX_CONF_OK;
}


static char *
ngx_http_tokenring_models_alias(ngx_conf_t *cf,
    ngx_http_tokenring_models_t *models)
{
    ngx_str_t  *value;

    value = cf->args->elts;

    if (ngx_http_tokenring_models_new(cf, models, &value[1]) != NGX_CONF_OK) {
        return NGX_CONF_ERROR;
    }

    return ngx_http_tokenring_models_name(cf, &models->aliases);
}


static char *
ngx_http_tokenring_models_fallback(ngx_conf_t *cf,
    ngx_http_tokenring_models_t *models)
{
    ngx_str_t  *value;

    value = cf->args->elts;

    if (ngx_http_tokenring_name_to(&models->fallbacks, &value[1])) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "duplicate fallback of \"%V\"", &value[1]);
        return NGX_CONF_ERROR;
    }

    return ngx_http_tokenring_models_name(cf, &models->fallbacks);
}


static char *
ngx_http_tokenring_models_name(ngx_conf_t *cf, ngx_array_t *names)
{
    ngx_str_t                  *value;
    ngx_http_tokenring_name_t  *row;

    value = cf->args->elts;

    row = ngx_array_push(names);
    if (row == NULL) {
        return NGX_CONF_ERROR;
    }

    row->name = value[1];
    row->to = value[2];

    return NGX_CONF_OK;
}


static char *
ngx_http_tokenring_models_split(ngx_conf_t *cf,
    ngx_http_tokenring_models_t *models)
{
    ngx_str_t                   *value, by;
    ngx_uint_t                   i;
    ngx_http_tokenring_split_t  *split;

    value = cf->args->elts;

    if (ngx_http_tokenring_models_new(cf, models, &value[1]) != NGX_CONF_OK) {
        return NGX_CONF_ERROR;
    }

    split = ngx_array_push(&models->splits);
    if (split == NULL) {
        return NGX_CONF_ERROR;
    }

    ngx_memzero(split, sizeof(ngx_http_tokenring_split_t));

    split->name = value[1];

    if (ngx_array_init(&split->parts, cf->pool, 2,
                       sizeof(ngx_http_tokenring_part_t))
        != NGX_OK)
    {
        return NGX_CONF_ERROR;
    }

    for (i = 2; i < cf->args->nelts; i++) {

        if (ngx_strncmp(value[i].data, "by=", 3) != 0) {
            if (ngx_http_tokenring_models_part(cf, split, &value[i])
                != NGX_CONF_OK)
            {
                return NGX_CONF_ERROR;
            }

            continue;
        }

        by.data = value[i].data + 3;
        by.len = value[i].len - 3;

        split->by = ngx_http_tokenring_models_value(cf, &by);
        if (split->by == NULL) {
            return NGX_CONF_ERROR;
        }
    }

    if (split->total == 0) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "the weights of split \"%V\" add up to 0",
                           &split->name);
        return NGX_CONF_ERROR;
    }

    return NGX_CONF_OK;
}


/* MODEL=WEIGHT */

static char *
ngx_http_tokenring_models_part(ngx_conf_t *cf,
    ngx_http_tokenring_split_t *split, ngx_str_t *text)
{
    u_char                     *p, *last;
    ngx_int_t                   weight;
    ngx_http_tokenring_part_t  *part;

    last = text->data + text->len;

    /* the last sign: names may have some, too */

    for (p = last; p > text->data && p[-1] != '='; p--) { /* void */ }

    weight = (p > text->data + 1) ? ngx_atoi(p, last - p) : NGX_ERROR;

    if (weight == NGX_ERROR || weight > 1000000) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid part \"%V\" of a split, expected "
                           "MODEL=WEIGHT with a weight of 0 to 1000000", text);
        return NGX_CONF_ERROR;
    }

    part = ngx_array_push(&split->parts);
    if (part == NULL) {
        return NGX_CONF_ERROR;
    }

    part->to.data = text->data;
    part->to.len = p - 1 - text->data;
    part->weight = weight;

    split->total += weight;

    return NGX_CONF_OK;
}


static char *
ngx_http_tokenring_models_allow(ngx_conf_t *cf,
    ngx_http_tokenring_models_t *models)
{
    ngx_str_t  *value;

    value = cf->args->elts;

    if (models->allow) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0, "duplicate \"allow\"");
        return NGX_CONF_ERROR;
    }

    models->allow = ngx_http_tokenring_models_value(cf, &value[1]);

    return models->allow ? NGX_CONF_OK : NGX_CONF_ERROR;
}


static ngx_http_complex_value_t *
ngx_http_tokenring_models_value(ngx_conf_t *cf, ngx_str_t *text)
{
    ngx_http_complex_value_t          *value;
    ngx_http_compile_complex_value_t   ccv;

    value = ngx_pcalloc(cf->pool, sizeof(ngx_http_complex_value_t));
    if (value == NULL) {
        return NULL;
    }

    ngx_memzero(&ccv, sizeof(ngx_http_compile_complex_value_t));

    ccv.cf = cf;
    ccv.value = text;
    ccv.complex_value = value;

    return (ngx_http_compile_complex_value(&ccv) == NGX_OK) ? value : NULL;
}


/* NGX_CONF_ERROR, which was logged: an alias or a split has this name */

static char *
ngx_http_tokenring_models_new(ngx_conf_t *cf,
    ngx_http_tokenring_models_t *models, ngx_str_t *name)
{
    if (ngx_http_tokenring_name_to(&models->aliases, name)
        || ngx_http_tokenring_find_split(models, name))
    {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0, "duplicate name \"%V\"", name);
        return NGX_CONF_ERROR;
    }

    return NGX_CONF_OK;
}


/* does a name lead back to itself? */

static ngx_uint_t
ngx_http_tokenring_models_circle(ngx_http_tokenring_models_t *models,
    ngx_str_t *name, ngx_uint_t depth)
{
    ngx_str_t                   *to;
    ngx_uint_t                   i;
    ngx_http_tokenring_part_t   *part;
    ngx_http_tokenring_split_t  *split;

    if (depth == NGX_HTTP_TOKENRING_NAMES_MAX) {
        return 1;
    }

    to = ngx_http_tokenring_name_to(&models->aliases, name);

    if (to) {
        return ngx_http_tokenring_models_circle(models, to, depth + 1);
    }

    split = ngx_http_tokenring_find_split(models, name);

    if (split == NULL) {
        return 0;
    }

    part = split->parts.elts;

    for (i = 0; i < split->parts.nelts; i++) {

        if (ngx_http_tokenring_same(&part[i].to, name)) {
            /* the model that the split is named after */
            continue;
        }

        if (ngx_http_tokenring_models_circle(models, &part[i].to, depth + 1)) {
            return 1;
        }
    }

    return 0;
}


static char *
ngx_http_tokenring_models_check(ngx_conf_t *cf,
    ngx_http_tokenring_models_t *models)
{
    ngx_str_t                   *name;
    ngx_uint_t                   i;
    ngx_http_tokenring_name_t   *alias;
    ngx_http_tokenring_split_t  *split;

    alias = models->aliases.elts;
    split = models->splits.elts;

    for (i = 0; i < models->aliases.nelts + models->splits.nelts; i++) {
        name = (i < models->aliases.nelts)
               ? &alias[i].name : &split[i - models->aliases.nelts].name;

        if (ngx_http_tokenring_models_circle(models, name, 0)) {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "\"%V\" leads back to itself, or over more "
                               "than %d names", name,
                               NGX_HTTP_TOKENRING_NAMES_MAX);
            return NGX_CONF_ERROR;
        }
    }

    return NGX_CONF_OK;
}


ngx_int_t
ngx_http_tokenring_init_groups(ngx_conf_t *cf)
{
    ngx_uint_t                        i, j;
    ngx_array_t                      *of;
    ngx_http_tokenring_engine_t     **engines;
    ngx_http_tokenring_models_t     **blocks;
    ngx_http_tokenring_main_conf_t   *tmcf;

    tmcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_tokenring_module);

    engines = tmcf->engines.elts;

    for (i = 0; i < tmcf->engines.nelts; i++) {
        if (ngx_http_tokenring_group_add(cf, &engines[i]->group, engines[i])
            != NGX_OK)
        {
            return NGX_ERROR;
        }
    }

    blocks = tmcf->models.elts;

    for (i = 0; i < tmcf->models.nelts; i++) {

        if (!blocks[i]->defined) {
            ngx_log_error(NGX_LOG_EMERG, cf->log, 0,
                          "no tokenring_models \"%V\" is defined, it is named "
                          "in %s:%ui", &blocks[i]->group.name,
                          blocks[i]->file, blocks[i]->line);
            return NGX_ERROR;
        }

        of = blocks[i]->engines.nelts ? &blocks[i]->engines : &tmcf->engines;

        if (of->nelts == 0) {
            ngx_log_error(NGX_LOG_EMERG, cf->log, 0,
                          "there is no tokenring_engine for tokenring_models "
                          "\"%V\" in %s:%ui", &blocks[i]->group.name,
                          blocks[i]->file, blocks[i]->line);
            return NGX_ERROR;
        }

        engines = of->elts;

        for (j = 0; j < of->nelts; j++) {
            if (ngx_http_tokenring_group_add(cf, &blocks[i]->group,
                                             engines[j])
                != NGX_OK)
            {
                return NGX_ERROR;
            }
        }
    }

    return NGX_OK;
}
