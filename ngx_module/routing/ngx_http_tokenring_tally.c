/*
 * What each tenant has used, by name: in /metrics and on the dashboard, where
 * tokenring_tenants says `shown`.
 *
 * The first hundred tenants have a row each, in shared memory, all later ones
 * one together; nobody changes rows, so that the figures only grow.  A request
 * is counted when it is logged, with the numbers that the access log has: a
 * tenant's sums are the sums of its lines.
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
    ngx_http_tokenring_tally_t *tally, ngx_str_t *name);
static ngx_http_tokenring_row_t *ngx_http_tokenring_row_find(
    ngx_http_tokenring_tally_t *tally, ngx_str_t *name);
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

    ngx_str_null(&name);

    if (ctx->conf->tenant
        && ngx_http_complex_value(ctx->request, ctx->conf->tenant, &name)
           != NGX_OK)
    {
        ngx_str_null(&name);
    }

    row = ngx_http_tokenring_row(zone, tally, &name);

    (void) ngx_atomic_fetch_add(&row->requests, 1);

    if (ctx->limited) {
        (void) ngx_atomic_fetch_add(&row->limited, 1);
    }

    if (ngx_http_tokenring_counted(ctx)) {
        (void) ngx_atomic_fetch_add(&row->prompt, ctx->prompt_tokens);
        (void) ngx_atomic_fetch_add(&row->completion, ctx->completion_tokens);
    }
}


/* a longer name is none that a row has */

static ngx_http_tokenring_row_t *
ngx_http_tokenring_row(ngx_shm_zone_t *zone, ngx_http_tokenring_tally_t *tally,
    ngx_str_t *name)
{
    ngx_uint_t                 i;
    ngx_slab_pool_t           *shpool;
    ngx_http_tokenring_row_t  *row;

    if (name->len > NGX_HTTP_TOKENRING_ROW_NAME) {
        return &tally->rows[NGX_HTTP_TOKENRING_ROWS];
    }

    row = ngx_http_tokenring_row_find(tally, name);

    if (row || tally->rows[NGX_HTTP_TOKENRING_ROWS - 1].known) {
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


/* as part of a JSON string, which does for a label, too: names that need more
 * than \" and \\ are told by their hexadecimal digits */

static ngx_int_t
ngx_http_tokenring_row_name(ngx_http_tokenring_text_t *out,
    ngx_http_tokenring_tally_t *tally, ngx_uint_t i)
{
    size_t                     n;
    u_char                     hex[2 * NGX_HTTP_TOKENRING_ROW_NAME];
    ngx_http_tokenring_row_t  *row;

    if (i == NGX_HTTP_TOKENRING_ROWS) {
        return ngx_http_tokenring_put(out, "other");
    }

    row = &tally->rows[i];

    for (n = 0; n < row->len; n++) {

        if (row->name[n] < 0x20 || row->name[n] >= 0x7f) {
            return ngx_http_tokenring_append(out, hex,
                              ngx_hex_dump(hex, row->name, row->len) - hex);
        }
    }

    return ngx_http_tokenring_json(out, row->name, row->len);
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
