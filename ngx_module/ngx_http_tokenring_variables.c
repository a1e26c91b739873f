/*
 * Variables, for logs, maps and limits.  A value that is not known (yet) is not
 * found, which a log shows as "-".
 */

#include "ngx_http_tokenring.h"


static ngx_int_t ngx_http_tokenring_variable(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data);
static u_char *ngx_http_tokenring_kv(u_char *p, tr_wire_finish_t *totals,
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

    { ngx_string("tokenring_request_id"), NULL, ngx_http_tokenring_variable,
      NGX_HTTP_TOKENRING_VAR_REQUEST_ID, NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("tokenring_model"), NULL, ngx_http_tokenring_variable,
      NGX_HTTP_TOKENRING_VAR_MODEL, NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("tokenring_prompt_tokens"), NULL,
      ngx_http_tokenring_variable,
      NGX_HTTP_TOKENRING_VAR_PROMPT_TOKENS, NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("tokenring_completion_tokens"), NULL,
      ngx_http_tokenring_variable,
      NGX_HTTP_TOKENRING_VAR_COMPLETION_TOKENS, NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("tokenring_ttft"), NULL, ngx_http_tokenring_variable,
      NGX_HTTP_TOKENRING_VAR_TTFT, NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("tokenring_tpot"), NULL, ngx_http_tokenring_variable,
      NGX_HTTP_TOKENRING_VAR_TPOT, NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("tokenring_finish_reason"), NULL,
      ngx_http_tokenring_variable,
      NGX_HTTP_TOKENRING_VAR_FINISH_REASON, NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("tokenring_preemptions"), NULL, ngx_http_tokenring_variable,
      NGX_HTTP_TOKENRING_VAR_PREEMPTIONS, NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("tokenring_kv_bytes"), NULL, ngx_http_tokenring_variable,
      NGX_HTTP_TOKENRING_VAR_KV_BYTES, NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("tokenring_kv_fp16_bytes"), NULL,
      ngx_http_tokenring_variable,
      NGX_HTTP_TOKENRING_VAR_KV_FP16_BYTES, NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("tokenring_kv_ratio"), NULL, ngx_http_tokenring_variable,
      NGX_HTTP_TOKENRING_VAR_KV_RATIO, NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("tokenring_kv_high"), NULL, ngx_http_tokenring_variable,
      NGX_HTTP_TOKENRING_VAR_KV_HIGH, NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("tokenring_kv_low"), NULL, ngx_http_tokenring_variable,
      NGX_HTTP_TOKENRING_VAR_KV_LOW, NGX_HTTP_VAR_NOCACHEABLE, 0 },

    { ngx_string("tokenring_kv_pruned"), NULL, ngx_http_tokenring_variable,
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


static ngx_int_t
ngx_http_tokenring_variable(ngx_http_request_t *r,
    ngx_http_variable_value_t *v, uintptr_t data)
{
    u_char                    *p, *start;
    uint64_t                   tokens;
    const char                *reason;
    ngx_http_tokenring_ctx_t  *ctx;

    ctx = ngx_http_get_module_ctx(r, ngx_http_tokenring_module);

    v->not_found = 1;

    if (ctx == NULL
        || (ctx->follow && data >= NGX_HTTP_TOKENRING_VAR_PROMPT_TOKENS
            && data != NGX_HTTP_TOKENRING_VAR_FINISH_REASON))
    {
        /* what an answer took is counted once, not for all who read it again */
        return NGX_OK;
    }

    start = ngx_pnalloc(r->pool, NGX_INT64_LEN + sizeof(".000000"));
    if (start == NULL) {
        return NGX_ERROR;
    }

    p = start;

    switch (data) {

    case NGX_HTTP_TOKENRING_VAR_REQUEST_ID:
        start = ctx->request_id.data;
        p = start + ctx->request_id.len;
        break;

    case NGX_HTTP_TOKENRING_VAR_MODEL:
        start = ctx->model.data;
        p = start + ctx->model.len;
        break;

    case NGX_HTTP_TOKENRING_VAR_PROMPT_TOKENS:
        if (ctx->accepted || ctx->over) {
            p = ngx_sprintf(p, "%uL", ctx->prompt_tokens);
        }

        break;

    case NGX_HTTP_TOKENRING_VAR_COMPLETION_TOKENS:
        if (ctx->accepted || ctx->over) {
            p = ngx_sprintf(p, "%uL", ctx->completion_tokens);
        }

        break;

    case NGX_HTTP_TOKENRING_VAR_TTFT:
        if (ctx->first_us) {
            p = ngx_http_tokenring_seconds(p, ctx->first_us - ctx->start_us);
        }

        break;

    case NGX_HTTP_TOKENRING_VAR_TPOT:
        tokens = ctx->completion_tokens;

        if (ctx->nchoices && tokens / ctx->nchoices > 1) {
            p = ngx_http_tokenring_seconds(p, (ctx->last_us - ctx->first_us)
                                              / (tokens / ctx->nchoices - 1));
        }

        break;

    case NGX_HTTP_TOKENRING_VAR_FINISH_REASON:
        reason = ctx->gone ? (ctx->detach && ctx->complete) ? "detached"
                                                            : "aborted"
                           : ctx->error
                             ? "error"
                             : ngx_http_tokenring_reason(ctx->reason);

        start = (u_char *) reason;
        p = start + ngx_strlen(reason);
        break;

    case NGX_HTTP_TOKENRING_VAR_PREEMPTIONS:
        if (ctx->totalled) {
            p = ngx_sprintf(p, "%uD", ctx->totals.preemptions);
        }

        break;

    default:
        if (ctx->totalled && ctx->totals.kv_full_bytes) {
            p = ngx_http_tokenring_kv(p, &ctx->totals, data);
        }

        break;
    }

    if (p == start) {
        return NGX_OK;
    }

    v->data = start;
    v->len = p - start;
    v->valid = 1;
    v->no_cacheable = 0;
    v->not_found = 0;

    return NGX_OK;
}


/* what a request took in the KV cache */

static u_char *
ngx_http_tokenring_kv(u_char *p, tr_wire_finish_t *totals, uintptr_t data)
{
    double  value;

    switch (data) {

    case NGX_HTTP_TOKENRING_VAR_KV_BYTES:
        return ngx_sprintf(p, "%uL", totals->kv_bytes);

    case NGX_HTTP_TOKENRING_VAR_KV_FP16_BYTES:
        return ngx_sprintf(p, "%uL", totals->kv_full_bytes);

    case NGX_HTTP_TOKENRING_VAR_KV_HIGH:
        value = ngx_http_tokenring_share(totals->share_high);
        break;

    case NGX_HTTP_TOKENRING_VAR_KV_LOW:
        value = ngx_http_tokenring_share(totals->share_low);
        break;

    case NGX_HTTP_TOKENRING_VAR_KV_PRUNED:
        value = ngx_http_tokenring_share(totals->share_pruned);
        break;

    default: /* NGX_HTTP_TOKENRING_VAR_KV_RATIO */
        value = (double) totals->kv_bytes / (double) totals->kv_full_bytes;
        break;
    }

    return ngx_sprintf(p, "%.4f", value);
}


static u_char *
ngx_http_tokenring_seconds(u_char *p, uint64_t us)
{
    return ngx_sprintf(p, "%uL.%06uL", us / 1000000, us % 1000000);
}
