/*
 * What each tenant has used, by name: in /metrics and on the dashboard, where
 * tokenring_tenants says `shown`.
 *
 * The first hundred tenants have a row each, in shared memory, all later ones
 * one together; nobody changes rows, so that the figures only grow.  A request
 * is counted when it is logged, with the numbers that the access log has: a
 * tenant's sums are the sums of its lines.
 *
 * Rows are few and are never freed: a tenant gets one when an engine accepts a
 * request of it, or when it has a plan.  Before that, what was refused is in
 * the row of the others: strangers who try names cannot use rows up.
 */

#include "ngx_http_tokenring_conf.h"
#include "ngx_http_tokenring_request.h"
#include "ngx_http_tokenring_tenants.h"


#define NGX_HTTP_TOKENRING_ROWS      100
#define NGX_HTTP_TOKENRING_ROW_NAME  64


typedef struct {
    ngx_atomic_t                    known;   /* the name is there */
    size_t                          len;
    u_char                          name[NGX_HTTP_TOKENRING_ROW_NAME];
    ngx_atomic_t                    requests;
    ngx_atomic_t                    limited;
    ngx_atomic_t                    prompt;
    ngx_atomic_t                    completion;
} ngx_http_tokenring_row_t;


struct ngx_http_tokenring_tally_s {
    /* the last one: all others */
    ngx_http_tokenring_row_t        rows[NGX_HTTP_TOKENRING_ROWS + 1];
};


typedef struct {
    const char                     *name;
    const char                     *member;  /* on the dashboard */
    const char                     *help;
    size_t                          offset;
} ngx_http_tokenring_tally_family_t;


static ngx_http_tokenring_row_t *ngx_http_tokenring_row(ngx_shm_zone_t *zone,
    ngx_http_tokenring_tally_t *tally, ngx_str_t *name, ngx_uint_t take);
static ngx_http_tokenring_row_t *ngx_http_tokenring_row_find(
    ngx_http_tokenring_tally_t *tally, ngx_str_t *name);
static ngx_uint_t ngx_http_tokenring_row_plain(ngx_http_tokenring_row_t *row);
static ngx_int_t ngx_http_tokenring_row_name(ngx_http_tokenring_text_t *out,
    ngx_http_tokenring_tally_t *tally, ngx_uint_t i);
static ngx_http_tokenring_tally_t *ngx_http_tokenring_tally_of(
    ngx_cycle_t *cycle, ngx_shm_zone_t **zone);


static ngx_http_tokenring_tally_family_t  ngx_http_tokenring_tallies[] = {

    { "tokenring_tenant_requests_total", "requests", "Requests of a tenant.",
      offsetof(ngx_http_tokenring_row_t, requests) },

    { "tokenring_tenant_limited_total", "limited",
      "Requests of a tenant that were refused at a limit of its plan.",
      offsetof(ngx_http_tokenring_row_t, limited) },

    { "tokenring_tenant_prompt_tokens_total", "prompt_tokens",
      "Tokens of a tenant's prompts.",
      offsetof(ngx_http_tokenring_row_t, prompt) },

    { "tokenring_tenant_completion_tokens_total", "completion_tokens",
      "Tokens of a tenant's answers.",
      offsetof(ngx_http_tokenring_row_t, completion) },

    { NULL, NULL, NULL, 0 }
};


/* rows of the zone; NULL: no memory */

ngx_http_tokenring_tally_t *
ngx_http_tokenring_tally_create(ngx_slab_pool_t *shpool)
{
    return ngx_slab_calloc(shpool, sizeof(ngx_http_tokenring_tally_t));
}


static ngx_http_tokenring_tally_t *
ngx_http_tokenring_tally_of(ngx_cycle_t *cycle, ngx_shm_zone_t **zone)
{
    ngx_http_tokenring_main_conf_t  *tmcf;

    tmcf = ngx_http_cycle_get_module_main_conf(cycle,
                                               ngx_http_tokenring_module);

    if (tmcf == NULL || !tmcf->tenants_shown) {
        return NULL;
    }

    *zone = tmcf->tenants;

    return ngx_http_tokenring_tenants_tally(tmcf->tenants);
}


/* one more request; log phase */

void
ngx_http_tokenring_tally(ngx_http_tokenring_ctx_t *ctx)
{
    ngx_str_t                    name;
    ngx_shm_zone_t              *zone;
    ngx_http_tokenring_row_t    *row;
    ngx_http_tokenring_tally_t  *tally;

    tally = ngx_http_tokenring_tally_of((ngx_cycle_t *) ngx_cycle, &zone);

    if (tally == NULL || ctx->follow || ctx->endpoint == 0) {
        return;
    }

    ngx_str_set(&name, "");

    if (ctx->conf->tenant
        && ngx_http_complex_value(ctx->request, ctx->conf->tenant, &name)
           != NGX_OK)
    {
        ngx_str_set(&name, "");
    }

    /* ACCEPTED has named the model */

    row = ngx_http_tokenring_row(zone, tally, &name,
                                 ctx->use || ctx->model.data);

    (void) ngx_atomic_fetch_add(&row->requests, 1);

    if (ctx->limited) {
        (void) ngx_atomic_fetch_add(&row->limited, 1);
    }

    if (ngx_http_tokenring_counted(ctx)) {
        (void) ngx_atomic_fetch_add(&row->prompt, ctx->prompt_tokens);
        (void) ngx_atomic_fetch_add(&row->completion, ctx->completion_tokens);
    }
}


/* of that name; of the others, where it has none and may not take one: a name
 * that is too long never may */

static ngx_http_tokenring_row_t *
ngx_http_tokenring_row(ngx_shm_zone_t *zone, ngx_http_tokenring_tally_t *tally,
    ngx_str_t *name, ngx_uint_t take)
{
    ngx_uint_t                 i;
    ngx_slab_pool_t           *shpool;
    ngx_http_tokenring_row_t  *row;

    if (name->len > NGX_HTTP_TOKENRING_ROW_NAME) {
        return &tally->rows[NGX_HTTP_TOKENRING_ROWS];
    }

    row = ngx_http_tokenring_row_find(tally, name);

    if (row || !take || tally->rows[NGX_HTTP_TOKENRING_ROWS - 1].known) {
        return row ? row : &tally->rows[NGX_HTTP_TOKENRING_ROWS];
    }

    shpool = (ngx_slab_pool_t *) zone->shm.addr;

    ngx_shmtx_lock(&shpool->mutex);

    row = ngx_http_tokenring_row_find(tally, name);

    for (i = 0; row == NULL && i < NGX_HTTP_TOKENRING_ROWS; i++) {

        if (!tally->rows[i].known) {
            row = &tally->rows[i];

            row->len = name->len;
            ngx_memcpy(row->name, name->data, name->len);

            ngx_memory_barrier();

            row->known = 1;
        }
    }

    ngx_shmtx_unlock(&shpool->mutex);

    return row ? row : &tally->rows[NGX_HTTP_TOKENRING_ROWS];
}


static ngx_http_tokenring_row_t *
ngx_http_tokenring_row_find(ngx_http_tokenring_tally_t *tally, ngx_str_t *name)
{
    ngx_uint_t                 i;
    ngx_http_tokenring_row_t  *row;

    for (i = 0; i < NGX_HTTP_TOKENRING_ROWS && tally->rows[i].known; i++) {
        row = &tally->rows[i];

        ngx_memory_barrier();

        if (row->len == name->len
            && ngx_memcmp(row->name, name->data, name->len) == 0)
        {
            return row;
        }
    }

    return NULL;
}


/* whether its name can be told as it is: not where that takes more escapes than
 * \" and \\, nor where it would be taken for hexadecimal digits or for the row
 * of the others */

static ngx_uint_t
ngx_http_tokenring_row_plain(ngx_http_tokenring_row_t *row)
{
    size_t  n;

    if ((row->len >= 2 && ngx_memcmp(row->name, "0x", 2) == 0)
        || (row->len == 5 && ngx_memcmp(row->name, "other", 5) == 0))
    {
        return 0;
    }

    for (n = 0; n < row->len; n++) {
        if (row->name[n] < 0x20 || row->name[n] >= 0x7f) {
            return 0;
        }
    }

    return 1;
}


/* as part of a JSON string, which does for a label, too; no two rows have the
 * same: names that are not plain are 0x and their hexadecimal digits */

static ngx_int_t
ngx_http_tokenring_row_name(ngx_http_tokenring_text_t *out,
    ngx_http_tokenring_tally_t *tally, ngx_uint_t i)
{
    u_char                     hex[2 + 2 * NGX_HTTP_TOKENRING_ROW_NAME], *p;
    ngx_http_tokenring_row_t  *row;

    if (i == NGX_HTTP_TOKENRING_ROWS) {
        return ngx_http_tokenring_put(out, "other");
    }

    row = &tally->rows[i];

    if (ngx_http_tokenring_row_plain(row)) {
        return ngx_http_tokenring_json(out, row->name, row->len);
    }

    p = ngx_cpymem(hex, "0x", 2);
    p = ngx_hex_dump(p, row->name, row->len);

    return ngx_http_tokenring_append(out, hex, p - hex);
}


#define ngx_http_tokenring_row_figure(row, offset)                           \
    (*(ngx_atomic_t *) ((u_char *) (row) + (offset)))


ngx_int_t
ngx_http_tokenring_tally_metrics(ngx_http_tokenring_text_t *out)
{
    ngx_uint_t                          i;
    ngx_shm_zone_t                     *zone;
    ngx_http_tokenring_tally_t         *tally;
    ngx_http_tokenring_tally_family_t  *family;

    tally = ngx_http_tokenring_tally_of((ngx_cycle_t *) ngx_cycle, &zone);

    for (family = ngx_http_tokenring_tallies; tally && family->name; family++) {

        if (ngx_http_tokenring_printf(out, 256,
                "# HELP %s %s\n# TYPE %s counter\n",
                family->name, family->help, family->name)
            != NGX_OK)
        {
            return NGX_ERROR;
        }

        for (i = 0; i <= NGX_HTTP_TOKENRING_ROWS; i++) {

            if (i < NGX_HTTP_TOKENRING_ROWS && !tally->rows[i].known) {
                continue;
            }

            if (ngx_http_tokenring_printf(out, 64,
                    "%s{tenant=\"", family->name)
                != NGX_OK
                || ngx_http_tokenring_row_name(out, tally, i) != NGX_OK
                || ngx_http_tokenring_printf(out, 32, "\"} %uA\n",
                       ngx_http_tokenring_row_figure(&tally->rows[i],
                                                     family->offset))
                   != NGX_OK)
            {
                return NGX_ERROR;
            }
        }
    }

    return NGX_OK;
}


/* ,"tenants":[{"name":"x","requests":1,..},..], or nothing */

ngx_int_t
ngx_http_tokenring_tally_json(ngx_http_tokenring_text_t *out)
{
    ngx_uint_t                          i, n;
    ngx_shm_zone_t                     *zone;
    ngx_http_tokenring_tally_t         *tally;
    ngx_http_tokenring_tally_family_t  *family;

    tally = ngx_http_tokenring_tally_of((ngx_cycle_t *) ngx_cycle, &zone);

    if (tally == NULL) {
        return NGX_OK;
    }

    if (ngx_http_tokenring_put(out, ",\"tenants\":[") != NGX_OK) {
        return NGX_ERROR;
    }

    for (i = 0, n = 0; i <= NGX_HTTP_TOKENRING_ROWS; i++) {

        if (i == NGX_HTTP_TOKENRING_ROWS ? !tally->rows[i].requests
                                         : !tally->rows[i].known)
        {
            continue;
        }

        if (ngx_http_tokenring_printf(out, 16, "%s{\"name\":\"",
                                      n++ ? "," : "")
            != NGX_OK
            || ngx_http_tokenring_row_name(out, tally, i) != NGX_OK
            || ngx_http_tokenring_put(out, "\"") != NGX_OK)
        {
            return NGX_ERROR;
        }

        for (family = ngx_http_tokenring_tallies; family->name; family++) {
            if (ngx_http_tokenring_printf(out, 64, ",\"%s\":%uA",
                    family->member,
                    ngx_http_tokenring_row_figure(&tally->rows[i],
                                                  family->offset))
                != NGX_OK)
            {
                return NGX_ERROR;
            }
        }

        if (ngx_http_tokenring_put(out, "}") != NGX_OK) {
            return NGX_ERROR;
        }
    }

    return ngx_http_tokenring_put(out, "]");
}
