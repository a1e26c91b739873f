/*
 * Variables, for logs, maps and limits.  A value that is not known (yet) is
 * "not found", which a log shows as "-".
 */

#include "ngx_http_tokenring_conf.h"
#include "ngx_http_tokenring_render.h"


static ngx_int_t ngx_http_tokenring_variable_text(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data);
static const char *ngx_http_tokenring_ending(ngx_http_tokenring_ctx_t *ctx);
static ngx_int_t ngx_http_tokenring_variable_number(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data);
static u_char *ngx_http_tokenring_figure(u_char *p,
    ngx_http_tokenring_ctx_t *ctx, uintptr_t data);
static void ngx_http_tokenring_variable_set(ngx_http_variable_value_t *v,
    u_char *start, u_char *last);
static u_char *ngx_http_tokenring_kv(u_char *p, tr_wire_usage_t *kv,
    uintptr_t data);
static u_char *ngx_http_tokenring_seconds(u_char *p, uint64_t us);


enum {
    NGX_HTTP_TOKENRING_VAR_REQUEST_ID = 0,
    NGX_HTTP_TOKENRING_VAR_MODEL,
    NGX_HTTP_TOKENRING_VAR_PROMPT_TOKENS,
    NGX_HTTP_TOKENRING_VAR_COMPLETION_TOKENS,
    NGX_HTTP_TOKENRING_VAR_TTFT,
    NGX_HTTP_TOKENRING_VAR_TPOT,
    NGX_HTTP_TOKENRING_VAR_FINISH_REASON,
    NGX_HTTP_TOKENRING_VAR_PREEMPTIONS,
    NGX_HTTP_TOKENRING_VAR_KV_BYTES,
    NGX_HTTP_TOKENRING_VAR_KV_FP16_BYTES,
    NGX_HTTP_TOKENRING_VAR_KV_RATIO,
    NGX_HTTP_TOKENRING_VAR_KV_HIGH,
    NGX_HTTP_TOKENRING_VAR_KV_LOW,
    NGX_HTTP_TOKENRING_VAR_KV_PRUNED
};


static ngx_http_variable_t  ngx_http_tokenring_vars[] = {

    { ngx_string("tokenring_request_id"), NULL,
      ngx_http_tokenring_variable_text,
      NGX_HTTP_TOKENRING_VAR_REQUEST_ID, NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("tokenring_model"), NULL,
      ngx_http_tokenring_variable_text,
      NGX_HTTP_TOKENRING_VAR_MODEL, NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("tokenring_prompt_tokens"), NULL,
      ngx_http_tokenring_variable_number,
      NGX_HTTP_TOKENRING_VAR_PROMPT_TOKENS, NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("tokenring_completion_tokens"), NULL,
      ngx_http_tokenring_variable_number,
      NGX_HTTP_TOKENRING_VAR_COMPLETION_TOKENS, NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("tokenring_ttft"), NULL,
      ngx_http_tokenring_variable_number,
      NGX_HTTP_TOKENRING_VAR_TTFT, NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("tokenring_tpot"), NULL,
      ngx_http_tokenring_variable_number,
      NGX_HTTP_TOKENRING_VAR_TPOT, NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("tokenring_finish_reason"), NULL,
      ngx_http_tokenring_variable_text,
      NGX_HTTP_TOKENRING_VAR_FINISH_REASON, NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("tokenring_preemptions"), NULL,
      ngx_http_tokenring_variable_number,
      NGX_HTTP_TOKENRING_VAR_PREEMPTIONS, NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("tokenring_kv_bytes"), NULL,
      ngx_http_tokenring_variable_number,
      NGX_HTTP_TOKENRING_VAR_KV_BYTES, NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("tokenring_kv_fp16_bytes"), NULL,
      ngx_http_tokenring_variable_number,
      NGX_HTTP_TOKENRING_VAR_KV_FP16_BYTES, NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("tokenring_kv_ratio"), NULL,
      ngx_http_tokenring_variable_number,
      NGX_HTTP_TOKENRING_VAR_KV_RATIO, NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("tokenring_kv_high"), NULL,
      ngx_http_tokenring_variable_number,
      NGX_HTTP_TOKENRING_VAR_KV_HIGH, NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("tokenring_kv_low"), NULL,
      ngx_http_tokenring_variable_number,
      NGX_HTTP_TOKENRING_VAR_KV_LOW, NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("tokenring_kv_pruned"), NULL,
      ngx_http_tokenring_variable_number,
      NGX_HTTP_TOKENRING_VAR_KV_PRUNED, NGX_HTTP_VAR_NOCACHEABLE, 0 },

      ngx_http_null_variable
};


ngx_int_t
ngx_http_tokenring_add_variables(ngx_conf_t *cf)
{
    ngx_http_variable_t  *var, *v;

    for (v = ngx_http_tokenring_vars; v->name.len; v++) {
        var = ngx_http_add_variable(cf, &v->name, v->flags);
        if (var == NULL) {
            return NGX_ERROR;
        }

        var->get_handler = v->get_handler;
        var->data = v->data;
    }

    return NGX_OK;
}


/* values that are strings already */

static ngx_int_t
ngx_http_tokenring_variable_text(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data)
{
    ngx_str_t                  value;
    ngx_http_tokenring_ctx_t  *ctx;

    v->not_found = 1;

    ctx = ngx_http_get_module_ctx(r, ngx_http_tokenring_module);

    if (ctx == NULL) {
        return NGX_OK;
    }

    switch (data) {

    case NGX_HTTP_TOKENRING_VAR_REQUEST_ID:
        value = ctx->request_id;
        break;

    case NGX_HTTP_TOKENRING_VAR_MODEL:
        value = ctx->model;
        break;

    default: /* NGX_HTTP_TOKENRING_VAR_FINISH_REASON */
        value.data = (u_char *) ngx_http_tokenring_ending(ctx);
        value.len = ngx_strlen(value.data);
        break;
    }

    ngx_http_tokenring_variable_set(v, value.data, value.data + value.len);

    return NGX_OK;
}


static const char *
ngx_http_tokenring_ending(ngx_http_tokenring_ctx_t *ctx)
{
    if (ctx->gone) {
        return (ctx->detach && ctx->body_sent == NGX_HTTP_TOKENRING_WHOLE)
               ? "detached" : "aborted";
    }

    return ctx->error ? "error" : ngx_http_tokenring_reason(ctx->reason);
}


/* what a request used: logged once, not again for those who follow it */

static ngx_int_t
ngx_http_tokenring_variable_number(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data)
{
    u_char                    *start;
    ngx_http_tokenring_ctx_t  *ctx;

    v->not_found = 1;

    ctx = ngx_http_get_module_ctx(r, ngx_http_tokenring_module);

    if (ctx == NULL || ctx->follow) {
        return NGX_OK;
    }

    start = ngx_pnalloc(r->pool, NGX_INT64_LEN + sizeof(".000000"));
    if (start == NULL) {
        return NGX_ERROR;
    }

    ngx_http_tokenring_variable_set(v, start,
                               ngx_http_tokenring_figure(start, ctx, data));

    return NGX_OK;
}


ngx_uint_t
ngx_http_tokenring_counted(ngx_http_tokenring_ctx_t *ctx)
{
    return ((ctx->state == NGX_HTTP_TOKENRING_DONE) ? ctx->before : ctx->state)
           >= NGX_HTTP_TOKENRING_ACCEPTED;
}


/* written at p; nothing if it is not known (yet) */

static u_char *
ngx_http_tokenring_figure(u_char *p, ngx_http_tokenring_ctx_t *ctx,
    uintptr_t data)
{
    uint64_t    tokens;
    ngx_uint_t  counted, final;

    counted = ngx_http_tokenring_counted(ctx);
    final = ctx->totals.flags & TR_FINISH_LAST;

    switch (data) {

    case NGX_HTTP_TOKENRING_VAR_PROMPT_TOKENS:
        return counted ? ngx_sprintf(p, "%uL", ctx->prompt_tokens) : p;

    case NGX_HTTP_TOKENRING_VAR_COMPLETION_TOKENS:
        return counted ? ngx_sprintf(p, "%uL", ctx->completion_tokens) : p;

    case NGX_HTTP_TOKENRING_VAR_TTFT:
        return ctx->first_us
               ? ngx_http_tokenring_seconds(p, ctx->first_us - ctx->start_us)
               : p;

    case NGX_HTTP_TOKENRING_VAR_TPOT:
        tokens = ctx->nchoices ? ctx->completion_tokens / ctx->nchoices : 0;

        return (tokens > 1)
               ? ngx_http_tokenring_seconds(p, (ctx->last_us - ctx->first_us)
                                               / (tokens - 1))
               : p;

    case NGX_HTTP_TOKENRING_VAR_PREEMPTIONS:
        return final ? ngx_sprintf(p, "%uD", ctx->totals.preemptions) : p;

    default:
        return (final && ctx->totals.kv.full_bytes)
               ? ngx_http_tokenring_kv(p, &ctx->totals.kv, data)
               : p;
    }
}


static void
ngx_http_tokenring_variable_set(ngx_http_variable_value_t *v, u_char *start,
    u_char *last)
{
    if (start == last) {
        return;
    }

    v->data = start;
    v->len = last - start;
    v->valid = 1;
    v->no_cacheable = 0;
    v->not_found = 0;
}


/* what a request used of the KV cache */

static u_char *
ngx_http_tokenring_kv(u_char *p, tr_wire_usage_t *kv, uintptr_t data)
{
    double  value;

    switch (data) {

    case NGX_HTTP_TOKENRING_VAR_KV_BYTES:
        return ngx_sprintf(p, "%uL", kv->bytes);

    case NGX_HTTP_TOKENRING_VAR_KV_FP16_BYTES:
        return ngx_sprintf(p, "%uL", kv->full_bytes);

    case NGX_HTTP_TOKENRING_VAR_KV_HIGH:
        value = ngx_http_tokenring_share(kv->share_high);
        break;

    case NGX_HTTP_TOKENRING_VAR_KV_LOW:
        value = ngx_http_tokenring_share(kv->share_low);
        break;

    case NGX_HTTP_TOKENRING_VAR_KV_PRUNED:
        value = ngx_http_tokenring_share(kv->share_pruned);
        break;

    default: /* NGX_HTTP_TOKENRING_VAR_KV_RATIO */
        value = (double) kv->bytes / (double) kv->full_bytes;
        break;
    }

    return ngx_sprintf(p, "%.4f", value);
}


static u_char *
ngx_http_tokenring_seconds(u_char *p, uint64_t us)
{
    return ngx_sprintf(p, "%uL.%06uL", us / 1000000, us % 1000000);
}
