/*
 * ACCEPTED, an engine's first record of a request: what the answer looks like,
 * and what is kept for it from now on.
 */

#include "ngx_http_tokenring_body.h"
#include "ngx_http_tokenring_channel.h"
#include "ngx_http_tokenring_conf.h"
#include "ngx_http_tokenring_endpoint.h"
#include "ngx_http_tokenring_render.h"
#include "ngx_http_tokenring_slot.h"


/* what a correct engine never exceeds */
#define NGX_HTTP_TOKENRING_CHOICES_MAX  4096


static void ngx_http_tokenring_accepted_again(ngx_http_tokenring_ctx_t *ctx,
    const tr_wire_accepted_t *head);
static void ngx_http_tokenring_accepted_head(ngx_http_tokenring_ctx_t *ctx,
    const tr_wire_accepted_t *head);
static ngx_uint_t ngx_http_tokenring_accepted_fits(
    ngx_http_tokenring_ctx_t *ctx, const tr_wire_accepted_t *head);
static ngx_int_t ngx_http_tokenring_accepted_names(
    ngx_http_tokenring_ctx_t *ctx, const tr_wire_bytes_t *model,
    const tr_wire_bytes_t *policy);
static ngx_int_t ngx_http_tokenring_accepted_choices(
    ngx_http_tokenring_ctx_t *ctx, const tr_wire_accepted_t *head);


ngx_int_t
ngx_http_tokenring_accepted(ngx_http_tokenring_ctx_t *ctx, u_char *payload,
    size_t len)
{
    tr_wire_bytes_t     model, policy;
    tr_wire_accepted_t  head;

    if (tr_wire_accepted_parse(payload, len, &head, &model, &policy) != TR_OK
        || !ngx_http_tokenring_accepted_fits(ctx, &head)
        || ctx->state != NGX_HTTP_TOKENRING_QUEUED)
    {
        return NGX_DECLINED;
    }

    ngx_http_tokenring_set_state(ctx, NGX_HTTP_TOKENRING_ACCEPTED);

    ctx->anew = 0;

    if (ctx->moving) {
        ngx_http_tokenring_accepted_again(ctx, &head);
        return NGX_OK;
    }

    ngx_http_tokenring_accepted_head(ctx, &head);

    if (ngx_http_tokenring_accepted_names(ctx, &model, &policy) != NGX_OK
        || ngx_http_tokenring_accepted_choices(ctx, &head) != NGX_OK)
    {
        return NGX_ERROR;
    }

    ngx_http_tokenring_move_keep(ctx, &head);
    ngx_http_tokenring_accepted_most(ctx, head.max_total);

    if (!ngx_http_tokenring_charge(ctx)) {
        ngx_http_tokenring_end_here(ctx);
    }

    if (ctx->gone) {
        return NGX_OK;
    }

    /* queue_timeout goes on until STARTED; keep-alive comments begin */
    ctx->sent = ngx_current_msec;
    ngx_http_tokenring_arm(ctx);

    if (!ctx->stream) {
        return NGX_OK;
    }

    if (ctx->detach) {
        /* its headers are sent now */
        ngx_http_tokenring_dirty(ctx->conn, ctx);
    }

    return ngx_http_tokenring_render_heads(ctx);
}


/* is this what the endpoint can answer, and no more than is kept? */

static ngx_uint_t
ngx_http_tokenring_accepted_fits(ngx_http_tokenring_ctx_t *ctx,
    const tr_wire_accepted_t *head)
{
    const ngx_http_tokenring_endpoint_t  *endpoint;

    if (head->endpoint != ctx->endpoint
        || head->choices > NGX_HTTP_TOKENRING_CHOICES_MAX
        || head->model_len > TR_NAME_MAX
        || head->policy_len > TR_NAME_MAX)
    {
        return 0;
    }

    endpoint = ngx_http_tokenring_endpoint(ctx->endpoint);

    return !((head->flags & TR_ACCEPTED_ITEMS) && endpoint->item == NULL)
           && !((head->flags & TR_ACCEPTED_LOGPROBS)
                && endpoint->logprobs == NULL)
           && !((head->flags & TR_ACCEPTED_STREAM) && endpoint->end == NULL);
}


static void
ngx_http_tokenring_accepted_head(ngx_http_tokenring_ctx_t *ctx,
    const tr_wire_accepted_t *head)
{
    ctx->prompt_tokens = head->prompt_tokens;
    ctx->created = head->created;
    ctx->stream = (ctx->reread ? ctx->restream
                               : (head->flags & TR_ACCEPTED_STREAM)) ? 1 : 0;
    ctx->include_usage = (head->flags & TR_ACCEPTED_INCLUDE_USAGE) ? 1 : 0;
    ctx->with_logprobs = (head->flags & TR_ACCEPTED_LOGPROBS) ? 1 : 0;
    ctx->tier = (head->tier <= TR_TIER_PRIORITY) ? head->tier : 0;
    ctx->usage_stats = (head->flags & TR_ACCEPTED_USAGE_STATS) ? 1 : 0;

    ngx_log_debug5(NGX_LOG_DEBUG_HTTP, ctx->request->connection->log, 0,
                   "tokenring request: prompt tokens:%uL choices:%uD "
                   "stream:%ud usage:%ud logprobs:%ud", ctx->prompt_tokens,
                   head->choices, (u_int) ctx->stream,
                   (u_int) ctx->include_usage, (u_int) ctx->with_logprobs);
}


/* it goes on where it was: all but its engine is known already */

static void
ngx_http_tokenring_accepted_again(ngx_http_tokenring_ctx_t *ctx,
    const tr_wire_accepted_t *head)
{
    ctx->moving = 0;

    /* without an engine, nothing was written: what is kept stays for as long
     * as if it had just come */
    ctx->late_since = ngx_current_msec;

    if (!ngx_http_tokenring_move_left(ctx)) {
        ngx_http_tokenring_move_stays(ctx);
    }

    if (ctx->cut) {
        /* the engine before this one had not heard it, or has not said so */
        ngx_http_tokenring_control(ctx, 0);
    }

    if (!ctx->gone) {
        ctx->deadline = ngx_current_msec + ctx->conf->queue_timeout;
        ngx_http_tokenring_arm(ctx);
    }

    if (head->choices != ctx->nchoices
        || head->prompt_tokens != ctx->prompt_tokens)
    {
        /* another model under this name: no fault of the others' */
        ngx_http_tokenring_control(ctx, TR_CONTROL_ABORT);
        ngx_http_tokenring_fail(ctx, TR_ERR_INTERNAL,
                                "The new engine reads the prompt differently");
        ngx_http_tokenring_dirty(ctx->conn, ctx);
    }
}


static ngx_int_t
ngx_http_tokenring_accepted_names(ngx_http_tokenring_ctx_t *ctx,
    const tr_wire_bytes_t *model, const tr_wire_bytes_t *policy)
{
    ctx->model.data = ngx_pnalloc(ctx->request->pool,
                                  model->len + policy->len);
    if (ctx->model.data == NULL) {
        return NGX_ERROR;
    }

    ctx->model.len = model->len;
    ctx->policy.len = policy->len;
    ctx->policy.data = ngx_cpymem(ctx->model.data, model->data, model->len);
    ngx_memcpy(ctx->policy.data, policy->data, policy->len);

    return NGX_OK;
}


/* what is kept of each choice, or of a result */

static ngx_int_t
ngx_http_tokenring_accepted_choices(ngx_http_tokenring_ctx_t *ctx,
    const tr_wire_accepted_t *head)
{
    ngx_uint_t        i;
    tr_wire_usage_t  *kv;

    ctx->choices = ngx_pcalloc(ctx->request->pool,
                       head->choices * sizeof(ngx_http_tokenring_choice_t));
    if (ctx->choices == NULL) {
        return NGX_ERROR;
    }

    if (head->flags & TR_ACCEPTED_KV) {
        kv = ngx_pcalloc(ctx->request->pool,
                         head->choices * sizeof(tr_wire_usage_t));
        if (kv == NULL) {
            return NGX_ERROR;
        }

        for (i = 0; i < head->choices; i++) {
            ctx->choices[i].kv = &kv[i];
        }
    }

    ctx->nchoices = head->choices;
    ctx->left = head->choices;

    ctx->ordered = ngx_http_tokenring_endpoint(ctx->endpoint)->ordered;

    if (((head->flags & TR_ACCEPTED_ITEMS) || ctx->ordered)
        && ngx_http_tokenring_items_create(ctx) != NGX_OK)
    {
        return NGX_ERROR;
    }

    if (!tr_endpoint_info(ctx->endpoint)->generates) {
        ctx->result = ngx_pcalloc(ctx->request->pool,
                                  sizeof(ngx_http_tokenring_result_t));
        if (ctx->result == NULL) {
            return NGX_ERROR;
        }
    }

    return NGX_OK;
}
