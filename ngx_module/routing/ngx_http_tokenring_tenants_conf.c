/*
 * tokenring_plan, tokenring_tenants and tokenring_limits.
 *
 * A plan may be named, by tokenring_limits, before it is defined; that all are
 * is checked when the configuration is complete.  Of a variable's value that
 * cannot be checked: a request with a plan that does not exist is refused.
 */

#include "ngx_http_tokenring_conf.h"
#include "ngx_http_tokenring_quota.h"

#include <tokenring/wire.h>


#define NGX_HTTP_TOKENRING_TENANTS_SIZE  (8 * 1024 * 1024)


static ngx_http_tokenring_plan_t *ngx_http_tokenring_find_plan(ngx_conf_t *cf,
    ngx_str_t *name);
static char *ngx_http_tokenring_plan_setting(ngx_conf_t *cf,
    ngx_http_tokenring_plan_t *plan, ngx_str_t *text);
static char *ngx_http_tokenring_plan_number(ngx_conf_t *cf,
    ngx_http_tokenring_plan_t *plan, ngx_uint_t i, ngx_str_t *text);
static ngx_int_t ngx_http_tokenring_plan_twice(ngx_conf_t *cf,
    ngx_http_tokenring_plan_t *plan);
static char *ngx_http_tokenring_plan_part(ngx_conf_t *cf,
    ngx_http_tokenring_plan_t *plan);
static char *ngx_http_tokenring_plan_wait(ngx_conf_t *cf,
    ngx_http_tokenring_plan_t *plan, ngx_str_t *text);
static char *ngx_http_tokenring_plan_tier(ngx_conf_t *cf,
    ngx_http_tokenring_plan_t *plan, ngx_str_t *text);
static ngx_int_t ngx_http_tokenring_plan_limit(ngx_http_tokenring_plan_t *plan,
    ngx_str_t *text);
static ngx_shm_zone_t *ngx_http_tokenring_tenants_zone(ngx_conf_t *cf,
    ngx_str_t *text);


static struct {
    const char                   *name;
    size_t                        len;
    ngx_http_tokenring_unit_e     unit;
} ngx_http_tokenring_units[] = {
    { "requests=", 9, NGX_HTTP_TOKENRING_UNIT_REQUESTS },
    { "in=", 3, NGX_HTTP_TOKENRING_UNIT_IN },
    { "out=", 4, NGX_HTTP_TOKENRING_UNIT_OUT },
    { "tokens=", 7, NGX_HTTP_TOKENRING_UNIT_TOKENS },
    { NULL, 0, NGX_HTTP_TOKENRING_UNIT_REQUESTS }
};


/* of a plan, besides its budgets */

static struct {
    const char                   *name;
    size_t                        len;
    size_t                        offset;
    ngx_int_t                     most;
} ngx_http_tokenring_numbers[] = {
    { "share=", 6, offsetof(ngx_http_tokenring_plan_t, share),
      TR_SUBMIT_SHARE_MAX },
    { "seats=", 6, offsetof(ngx_http_tokenring_plan_t, seats),
      NGX_HTTP_TOKENRING_SEATS_MAX },
    { "queue=", 6, offsetof(ngx_http_tokenring_plan_t, queue),
      NGX_HTTP_TOKENRING_SEATS_MAX },
    { "choices=", 8, offsetof(ngx_http_tokenring_plan_t, choices),
      TR_SUBMIT_CHOICES_MAX },
    { "hosts=", 6, offsetof(ngx_http_tokenring_plan_t, hosts),
      NGX_HTTP_TOKENRING_HOSTS_MAX },
    { NULL, 0, 0, 0 }
};


static ngx_http_tokenring_plan_t *
ngx_http_tokenring_find_plan(ngx_conf_t *cf, ngx_str_t *name)
{
    ngx_uint_t                        i;
    ngx_http_tokenring_plan_t        *plan, **plans;
    ngx_http_tokenring_main_conf_t   *tmcf;

    tmcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_tokenring_module);

    plans = tmcf->plans.elts;

    for (i = 0; i < tmcf->plans.nelts; i++) {
        if (plans[i]->name.len == name->len
            && ngx_strncmp(plans[i]->name.data, name->data, name->len) == 0)
        {
            return plans[i];
        }
    }

    plan = ngx_pcalloc(cf->pool, sizeof(ngx_http_tokenring_plan_t));
    if (plan == NULL) {
        return NULL;
    }

    plan->name = *name;
    plan->file = cf->conf_file->file.name.data;
    plan->line = cf->conf_file->line;

    plans = ngx_array_push(&tmcf->plans);
    if (plans == NULL) {
        return NULL;
    }

    *plans = plan;

    return plan;
}


/* tokenring_plan NAME [requests=N/TIME] [in=N/TIME] [out=N/TIME]
 * [tokens=N/TIME] ... [share=N] [seats=N [queue=N [wait=TIME]]] [choices=N]
 * [tier=flex|default|priority] [hosts=N] [shared]; */

char *
ngx_http_tokenring_set_plan(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_str_t                  *value;
    ngx_uint_t                  i;
    ngx_http_tokenring_plan_t  *plan;

    value = cf->args->elts;

    if (value[1].len == 0) {
        return "has an empty name";
    }

    plan = ngx_http_tokenring_find_plan(cf, &value[1]);
    if (plan == NULL) {
        return NGX_CONF_ERROR;
    }

    if (plan->defined) {
        return "is duplicate";
    }

    plan->defined = 1;

    for (i = 2; i < cf->args->nelts; i++) {
        if (ngx_http_tokenring_plan_setting(cf, plan, &value[i])
            != NGX_CONF_OK)
        {
            return NGX_CONF_ERROR;
        }
    }

    if ((plan->queue && plan->seats == 0) || (plan->wait && plan->queue == 0)) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "plan \"%V\" has %s without %s, expected both",
                           &value[1], plan->queue ? "queue=" : "wait=",
                           plan->queue ? "seats=" : "queue=");
        return NGX_CONF_ERROR;
    }

    if (plan->shared && ngx_http_tokenring_plan_twice(cf, plan) != NGX_OK) {
        return NGX_CONF_ERROR;
    }

    return plan->hosts ? ngx_http_tokenring_plan_part(cf, plan) : NGX_CONF_OK;
}


/* In Redis a budget has the name of its unit and its time. */

static ngx_int_t
ngx_http_tokenring_plan_twice(ngx_conf_t *cf, ngx_http_tokenring_plan_t *plan)
{
    ngx_uint_t  i, j;

    for (i = 0; i < plan->n; i++) {
        for (j = 0; j < i; j++) {
            if (plan->limits[i].kind == plan->limits[j].kind) {
                ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                                   "\"%V\" and \"%V\" of the shared plan "
                                   "\"%V\" are of one unit and time, expected "
                                   "one limit of each", &plan->limits[j].text,
                                   &plan->limits[i].text, &plan->name);
                return NGX_ERROR;
            }
        }
    }

    return NGX_OK;
}


static char *
ngx_http_tokenring_plan_setting(ngx_conf_t *cf,
    ngx_http_tokenring_plan_t *plan, ngx_str_t *text)
{
    ngx_uint_t  i;

    for (i = 0; ngx_http_tokenring_numbers[i].name; i++) {
        if (ngx_strncmp(text->data, ngx_http_tokenring_numbers[i].name,
                        ngx_http_tokenring_numbers[i].len)
            == 0)
        {
            return ngx_http_tokenring_plan_number(cf, plan, i, text);
        }
    }

    if (ngx_strcmp(text->data, "shared") == 0) {
        plan->shared = 1;
        return NGX_CONF_OK;
    }

    if (ngx_strncmp(text->data, "wait=", 5) == 0) {
        return ngx_http_tokenring_plan_wait(cf, plan, text);
    }

    if (ngx_strncmp(text->data, "tier=", 5) == 0) {
        return ngx_http_tokenring_plan_tier(cf, plan, text);
    }

    if (plan->n == NGX_HTTP_TOKENRING_BUDGETS) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "too many limits of plan \"%V\", expected no "
                           "more than %d", &plan->name,
                           NGX_HTTP_TOKENRING_BUDGETS);
        return NGX_CONF_ERROR;
    }

    if (ngx_http_tokenring_plan_limit(plan, text) != NGX_OK) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid limit \"%V\", expected requests=, in=, "
                           "out= or tokens= and a number per time such as "
                           "200k/m, with /s, /m, /h or /d", text);
        return NGX_CONF_ERROR;
    }

    return NGX_CONF_OK;
}


/*
 * This host's part of what several share.  They do not speak to each other (or
 * with `shared` only through Redis, and this is for when there is none), so
 * parts are rounded down: all together never give more than the plan has.
 */

static char *
ngx_http_tokenring_plan_part(ngx_conf_t *cf, ngx_http_tokenring_plan_t *plan)
{
    ngx_uint_t                  i;
    ngx_http_tokenring_rate_t  *rate;

    for (i = 0; i < plan->n; i++) {
        rate = &plan->limits[i].rate;
        rate->limit /= plan->hosts;

        if (rate->limit == 0) {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "\"%V\" is less than one for each of %ui hosts",
                               &plan->limits[i].text, plan->hosts);
            return NGX_CONF_ERROR;
        }
    }

    if (plan->seats && plan->seats < plan->hosts) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "seats=%ui is less than one for each of %ui hosts",
                           plan->seats, plan->hosts);
        return NGX_CONF_ERROR;
    }

    plan->seats /= plan->hosts;
    plan->queue /= plan->hosts;

    return NGX_CONF_OK;
}


static char *
ngx_http_tokenring_plan_number(ngx_conf_t *cf, ngx_http_tokenring_plan_t *plan,
    ngx_uint_t i, ngx_str_t *text)
{
    size_t       len;
    ngx_int_t    n;
    ngx_uint_t  *field;

    len = ngx_http_tokenring_numbers[i].len;
    field = (ngx_uint_t *) ((u_char *) plan
                            + ngx_http_tokenring_numbers[i].offset);

    if (*field) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "duplicate %*s in \"%V\"", len - 1, text->data,
                           text);
        return NGX_CONF_ERROR;
    }

    n = ngx_atoi(text->data + len, text->len - len);

    if (n < 1 || n > ngx_http_tokenring_numbers[i].most) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid %*s in \"%V\", expected 1 to %i", len - 1,
                           text->data, text,
                           ngx_http_tokenring_numbers[i].most);
        return NGX_CONF_ERROR;
    }

    *field = n;

    return NGX_CONF_OK;
}


static char *
ngx_http_tokenring_plan_wait(ngx_conf_t *cf, ngx_http_tokenring_plan_t *plan,
    ngx_str_t *text)
{
    ngx_int_t  ms;
    ngx_str_t  s;

    if (plan->wait) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "duplicate wait in \"%V\"", text);
        return NGX_CONF_ERROR;
    }

    s.data = text->data + 5;
    s.len = text->len - 5;

    ms = ngx_parse_time(&s, 0);

    if (ms == NGX_ERROR || ms == 0) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid wait in \"%V\", expected a time such as "
                           "10s or 500ms", text);
        return NGX_CONF_ERROR;
    }

    plan->wait = (ngx_msec_t) ms;

    return NGX_CONF_OK;
}


static char *
ngx_http_tokenring_plan_tier(ngx_conf_t *cf, ngx_http_tokenring_plan_t *plan,
    ngx_str_t *text)
{
    ngx_uint_t  i;

    static const char  *tiers[] = { NULL, "flex", "default", "priority" };

    if (plan->tier) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "duplicate tier in \"%V\"", text);
        return NGX_CONF_ERROR;
    }

    for (i = TR_TIER_FLEX; i <= TR_TIER_PRIORITY; i++) {
        if (ngx_strcmp(text->data + 5, tiers[i]) == 0) {
            plan->tier = i;
            return NGX_CONF_OK;
        }
    }

    ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                       "invalid tier in \"%V\", expected flex, default or "
                       "priority", text);

    return NGX_CONF_ERROR;
}


static ngx_int_t
ngx_http_tokenring_plan_limit(ngx_http_tokenring_plan_t *plan, ngx_str_t *text)
{
    ngx_uint_t                   i;
    ngx_http_tokenring_limit_t  *limit;

    for (i = 0; ngx_http_tokenring_units[i].name; i++) {
        if (ngx_strncmp(text->data, ngx_http_tokenring_units[i].name,
                        ngx_http_tokenring_units[i].len)
            == 0)
        {
            break;
        }
    }

    limit = &plan->limits[plan->n];

    if (ngx_http_tokenring_units[i].name == NULL
        || ngx_http_tokenring_rate_parse(
                                 text->data + ngx_http_tokenring_units[i].len,
                                 text->len - ngx_http_tokenring_units[i].len,
                                 &limit->rate)
           != 0)
    {
        return NGX_ERROR;
    }

    limit->whole = limit->rate;
    limit->unit = ngx_http_tokenring_units[i].unit;
    limit->text = *text;

    limit->kind = (uint8_t) (limit->unit * 4
                             + (limit->rate.period == 0 ? 4
                                : limit->rate.period == 1000 ? 1
                                : limit->rate.period == 60000 ? 2 : 3));

    plan->n++;

    return NGX_OK;
}


ngx_http_tokenring_unit_e
ngx_http_tokenring_kind(uint8_t kind, ngx_http_tokenring_rate_t *rate)
{
    static const uint64_t  periods[] = { 1000, 60000, 3600000, 0 };

    rate->limit = 1;
    rate->period = periods[(kind - 1) % 4];

    return (ngx_http_tokenring_unit_e) ((kind - 1) / 4);
}


/* tokenring_tenants zone=NAME:SIZE [shown]; */

char *
ngx_http_tokenring_set_tenants(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_tokenring_main_conf_t  *tmcf = conf;

    ngx_str_t  *value;

    if (tmcf->tenants) {
        return "is duplicate";
    }

    value = cf->args->elts;

    tmcf->tenants = ngx_http_tokenring_tenants_zone(cf, &value[1]);
    if (tmcf->tenants == NULL) {
        return NGX_CONF_ERROR;
    }

    if (cf->args->nelts == 3) {

        if (ngx_strcmp(value[2].data, "shown") != 0) {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "invalid parameter \"%V\", expected shown",
                               &value[2]);
            return NGX_CONF_ERROR;
        }

        tmcf->tenants_shown = 1;
    }

    tmcf->tenants->init = ngx_http_tokenring_tenants_init;

    return NGX_CONF_OK;
}


/* zone=NAME:SIZE */

static ngx_shm_zone_t *
ngx_http_tokenring_tenants_zone(ngx_conf_t *cf, ngx_str_t *text)
{
    u_char     *p;
    ssize_t     size;
    ngx_str_t   name, s;

    name.data = text->data + 5;

    p = (ngx_strncmp(text->data, "zone=", 5) == 0)
        ? (u_char *) ngx_strchr(name.data, ':') : NULL;

    if (p == NULL || p == name.data) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid parameter \"%V\", expected "
                           "zone=NAME:SIZE", text);
        return NULL;
    }

    name.len = p - name.data;

    s.data = p + 1;
    s.len = text->data + text->len - s.data;

    size = ngx_parse_size(&s);

    if (size == NGX_ERROR || size < (ssize_t) (16 * ngx_pagesize)) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid zone size in \"%V\", expected at least "
                           "%uz", text, 16 * ngx_pagesize);
        return NULL;
    }

    return ngx_shared_memory_add(cf, &name, size, &ngx_http_tokenring_module);
}


char *
ngx_http_tokenring_set_limits(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_tokenring_loc_conf_t  *tlcf = conf;

    char                            *rv;
    ngx_str_t                       *value;
    ngx_http_tokenring_main_conf_t  *tmcf;

    rv = ngx_http_set_complex_value_slot(cf, cmd, conf);
    if (rv != NGX_CONF_OK) {
        return rv;
    }

    value = cf->args->elts;

    if (tlcf->limits->lengths == NULL && value[1].len
        && ngx_http_tokenring_find_plan(cf, &value[1]) == NULL)
    {
        return NGX_CONF_ERROR;
    }

    tmcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_tokenring_module);

    tmcf->limited = 1;

    return NGX_CONF_OK;
}


ngx_int_t
ngx_http_tokenring_init_tenants(ngx_conf_t *cf)
{
    ngx_str_t                         name;
    ngx_uint_t                        i;
    ngx_http_tokenring_plan_t       **plans;
    ngx_http_tokenring_main_conf_t   *tmcf;

    tmcf = ngx_http_conf_get_module_main_conf(cf, ngx_http_tokenring_module);

    plans = tmcf->plans.elts;

    for (i = 0; i < tmcf->plans.nelts; i++) {
        if (!plans[i]->defined) {
            ngx_log_error(NGX_LOG_EMERG, cf->log, 0,
                          "no tokenring_plan \"%V\" is defined, it is named in "
                          "%s:%ui", &plans[i]->name, plans[i]->file,
                          plans[i]->line);
            return NGX_ERROR;
        }
    }

    if (ngx_http_tokenring_init_quota(cf) != NGX_OK) {
        return NGX_ERROR;
    }

    if (!tmcf->limited || tmcf->tenants) {
        return NGX_OK;
    }

    ngx_str_set(&name, "tokenring_tenants");

    tmcf->tenants = ngx_shared_memory_add(cf, &name,
                                          NGX_HTTP_TOKENRING_TENANTS_SIZE,
                                          &ngx_http_tokenring_module);
    if (tmcf->tenants == NULL) {
        return NGX_ERROR;
    }

    tmcf->tenants->init = ngx_http_tokenring_tenants_init;

    return NGX_OK;
}
