/*
 * Models by name: which engines a request may go to, by the model that it asks
 * for (docs/directives.md, tokenring_models).
 *
 * A block of the configuration is a group of engines with names for what they
 * serve.  It lives in the cycle's pool, and nothing in it changes after the
 * configuration was read, but the group.
 */

#ifndef _NGX_HTTP_TOKENRING_MODELS_H_INCLUDED_
#define _NGX_HTTP_TOKENRING_MODELS_H_INCLUDED_


#include "ngx_http_tokenring_engine.h"


/* names that lead to one another: no more than so many in a row */
#define NGX_HTTP_TOKENRING_NAMES_MAX  16

/* two names, ngx_str_t * */
#define ngx_http_tokenring_same(a, b)                                         \
    ((a)->len == (b)->len && ngx_memcmp((a)->data, (b)->data, (a)->len) == 0)


/* alias NAME TO; fallback NAME TO */

typedef struct {
    ngx_str_t                       name;
    ngx_str_t                       to;
} ngx_http_tokenring_name_t;


typedef struct {
    ngx_str_t                       to;
    ngx_uint_t                      weight;
} ngx_http_tokenring_part_t;


typedef struct {
    ngx_str_t                       name;
    ngx_array_t                     parts;   /* ngx_http_tokenring_part_t */
    ngx_uint_t                      total;   /* of their weights */
    ngx_http_complex_value_t       *by;      /* NULL: each request by itself */
} ngx_http_tokenring_split_t;


struct ngx_http_tokenring_models_s {
    ngx_http_tokenring_group_t      group;
    ngx_array_t                     engines; /* ngx_http_tokenring_engine_t *;
                                                none: all that there are */
    ngx_str_t                       model;   /* where none is asked for */
    ngx_array_t                     aliases;   /* ngx_http_tokenring_name_t */
    ngx_array_t                     fallbacks; /* ngx_http_tokenring_name_t */
    ngx_array_t                     splits;  /* ngx_http_tokenring_split_t */
    ngx_http_complex_value_t       *allow;   /* NULL: all */
    unsigned                        defined:1;
    u_char                         *file;    /* where it was first named */
    ngx_uint_t                      line;
};


/* _models_conf.c */

/* the directive tokenring_models */
char *ngx_http_tokenring_set_models(ngx_conf_t *cf, ngx_command_t *cmd,
    void *conf);

/* the block with this name, created if it is new; NULL: logged */
ngx_http_tokenring_models_t *ngx_http_tokenring_find_models(ngx_conf_t *cf,
    ngx_str_t *name);

/* the configuration is complete: groups get their connections */
ngx_int_t ngx_http_tokenring_init_groups(ngx_conf_t *cf);


/* _models.c */

/*
 * What tokenring_pass leads to.  NGX_DECLINED: its variable names nothing;
 * NGX_ERROR: no memory.
 */
ngx_int_t ngx_http_tokenring_where(ngx_http_request_t *r,
    ngx_http_tokenring_group_t **group, ngx_http_tokenring_models_t **models);

/*
 * The model of a request, before its body is read.  NGX_OK: an engine may be
 * chosen; NGX_AGAIN: the body decides (ctx->routed); NGX_DECLINED: it is
 * refused, the failure stands in ctx; NGX_ERROR: no memory.
 */
ngx_int_t ngx_http_tokenring_pick_early(ngx_http_tokenring_ctx_t *ctx);

/* the body was read; as above, but never NGX_AGAIN */
ngx_int_t ngx_http_tokenring_pick(ngx_http_tokenring_ctx_t *ctx);

/* nobody takes it: is there another model for it?  Then that is wanted now */
ngx_uint_t ngx_http_tokenring_fall_back(ngx_http_tokenring_ctx_t *ctx);

/* may this request know of the model?  models may be NULL */
ngx_uint_t ngx_http_tokenring_allowed(ngx_http_request_t *r,
    ngx_http_tokenring_models_t *models, ngx_str_t *name);

/* what a name in aliases or fallbacks leads to; NULL: it is not there */
ngx_str_t *ngx_http_tokenring_name_to(ngx_array_t *names, ngx_str_t *name);

/* the split of this name; NULL: there is none */
ngx_http_tokenring_split_t *ngx_http_tokenring_find_split(
    ngx_http_tokenring_models_t *models, ngx_str_t *name);

/* what a name of the configuration leads to, for who only wants to know: the
 * first part of a split */
ngx_str_t *ngx_http_tokenring_model_behind(
    ngx_http_tokenring_models_t *models, ngx_str_t *name);


#endif /* _NGX_HTTP_TOKENRING_MODELS_H_INCLUDED_ */
