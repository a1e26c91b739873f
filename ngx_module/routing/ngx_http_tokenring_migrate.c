/*
 * Another engine for a request that has begun: its client sees a pause.
 *
 * While a request runs, the worker keeps its body, and the ids of the tokens
 * that the engine has told.  When the engine is lost, these go to another one
 * ahead of the body (a replay block, include/tokenring/wire.h), which goes on
 * behind them.  What the client has, and what waits for it, stays: nothing is
 * told twice.  The request waits for an engine that may take it, one that is
 * being restarted, too.  How long is counted from the loss until an engine has
 * accepted it, whoever refuses it meanwhile; its other time limits begin then.
 *
 * Unlike _retry.c, where nothing has begun, this must be asked for
 * (tokenring_migrate).
 *
 * Output that is stored in Redis goes on there, too: the next engine gets the
 * number of the last record, and the records of the last seconds, which the
 * lost engine may not have written; it writes those that are missing, and
 * refuses what that engine writes from then on (docs/redis.md).
 */

#include "ngx_http_tokenring_body.h"
#include "ngx_http_tokenring_conf.h"
#include "ngx_http_tokenring_engine.h"
#include "ngx_http_tokenring_error.h"
#include "ngx_http_tokenring_metrics.h"
#include "ngx_http_tokenring_request.h"
#include "ngx_http_tokenring_send.h"
#include "ngx_http_tokenring_slot.h"


static ngx_int_t ngx_http_tokenring_migrate_setting(
    ngx_http_tokenring_loc_conf_t *tlcf, ngx_str_t *text);
static void ngx_http_tokenring_move_turn(ngx_http_tokenring_ctx_t *ctx);
static ngx_uint_t ngx_http_tokenring_move_offered(
    ngx_http_tokenring_ctx_t *ctx, ngx_http_tokenring_conn_t *conn);
static ngx_uint_t ngx_http_tokenring_move_given(
    ngx_http_tokenring_ctx_t *ctx);
static uint64_t ngx_http_tokenring_move_tokens(ngx_http_tokenring_ctx_t *ctx);
static ngx_uint_t ngx_http_tokenring_may_move(ngx_http_tokenring_ctx_t *ctx);
static void ngx_http_tokenring_move_reset(ngx_http_tokenring_ctx_t *ctx);
static void ngx_http_tokenring_move_wait(ngx_http_tokenring_ctx_t *ctx);
static ngx_int_t ngx_http_tokenring_move_block(ngx_http_tokenring_ctx_t *ctx);
static u_char *ngx_http_tokenring_move_choice(u_char *p,
    ngx_http_tokenring_choice_t *choice);
static void ngx_http_tokenring_move_hold(ngx_http_tokenring_ctx_t *ctx,
    size_t size);
static void ngx_http_tokenring_move_give_up(ngx_http_tokenring_ctx_t *ctx);
static ngx_uint_t ngx_http_tokenring_move_late(ngx_http_tokenring_ctx_t *ctx,
    size_t *size);


/* records of at least so long are kept, unless they are more than so many
 * bytes, until as many again have come */
#define NGX_HTTP_TOKENRING_LATE       2000
#define NGX_HTTP_TOKENRING_LATE_SIZE  (TR_REPLAY_TAIL / 4)


/* as Redis has a record */

typedef struct {
    uint32_t    length;
    uint16_t    type;
    uint16_t    reserved;
} ngx_http_tokenring_late_t;


/* bytes that this worker keeps for moves */

static size_t  ngx_http_tokenring_move_held;


/* tokenring_migrate N [timeout=TIME] [memory=SIZE] [strict]; */

char *
ngx_http_tokenring_set_migrate(ngx_conf_t *cf, ngx_command_t *cmd, void *conf)
{
    ngx_http_tokenring_loc_conf_t  *tlcf = conf;

    ngx_int_t    n;
    ngx_str_t   *value;
    ngx_uint_t   i;

    if (tlcf->migrate != NGX_CONF_UNSET_UINT) {
        return "is duplicate";
    }

    value = cf->args->elts;

    n = ngx_atoi(value[1].data, value[1].len);

    if (n == NGX_ERROR || n > 100) {
        ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                           "invalid number \"%V\", expected 0 to 100",
                           &value[1]);
        return NGX_CONF_ERROR;
    }

    tlcf->migrate = n;
    tlcf->migrate_timeout = 30000;
    tlcf->migrate_memory = 64 * 1024 * 1024;
    tlcf->migrate_strict = 0;

    for (i = 2; i < cf->args->nelts; i++) {
        if (ngx_http_tokenring_migrate_setting(tlcf, &value[i]) != NGX_OK) {
            ngx_conf_log_error(NGX_LOG_EMERG, cf, 0,
                               "invalid parameter \"%V\", expected "
                               "timeout=TIME, memory=SIZE or strict",
                               &value[i]);
            return NGX_CONF_ERROR;
        }
    }

    return NGX_CONF_OK;
}


static ngx_int_t
ngx_http_tokenring_migrate_setting(ngx_http_tokenring_loc_conf_t *tlcf,
    ngx_str_t *text)
{
    ssize_t    size;
    ngx_str_t  s;

    if (ngx_strncmp(text->data, "timeout=", 8) == 0) {
        s.data = text->data + 8;
        s.len = text->len - 8;

        tlcf->migrate_timeout = ngx_parse_time(&s, 0);

        return (tlcf->migrate_timeout == (ngx_msec_t) NGX_ERROR) ? NGX_ERROR
                                                                 : NGX_OK;
    }

    if (ngx_strncmp(text->data, "memory=", 7) == 0) {
        s.data = text->data + 7;
        s.len = text->len - 7;

        size = ngx_parse_size(&s);

        if (size == NGX_ERROR) {
            return NGX_ERROR;
        }

        tlcf->migrate_memory = size;

        return NGX_OK;
    }

    if (ngx_strcmp(text->data, "strict") == 0) {
        tlcf->migrate_strict = 1;
        return NGX_OK;
    }

    return NGX_ERROR;
}


/* the first ACCEPTED of the request */

void
ngx_http_tokenring_move_keep(ngx_http_tokenring_ctx_t *ctx,
    const tr_wire_accepted_t *head)
{
    ngx_uint_t  i, known;

    known = 0;

    for (i = 0; i < TR_MODEL_ID; i++) {
        known |= head->model_id[i];
    }

    if (!ctx->with_ids) {
        return;
    }

    ctx->stored = (head->flags & TR_ACCEPTED_STORED) ? 1 : 0;

    if (ctx->lost_body || !known || ctx->conn == NULL) {
        ngx_http_tokenring_move_stays(ctx);
        return;
    }

    ctx->movable = 1;
    ctx->stays = 0;
    ctx->seed = head->seed;
    ctx->exact_id = head->exact_id;
    ngx_memcpy(ctx->model_id, head->model_id, TR_MODEL_ID);
    ctx->max_model_len = ctx->conn->card.max_model_len;

    ngx_http_tokenring_move_hold(ctx, ctx->kept_size);
}


/* at most once a token: the ids of what a DELTA told */

void
ngx_http_tokenring_move_told(ngx_http_tokenring_ctx_t *ctx,
    const tr_wire_delta_t *head, const tr_wire_bytes_t *ids)
{
    ngx_http_tokenring_choice_t  *choice;

    choice = &ctx->choices[head->choice];

    choice->told += head->tokens;
    choice->echoed = head->echoed;

    if (!ctx->movable) {
        return;
    }

    if (ids->len != head->tokens * sizeof(int32_t)
        || ngx_http_tokenring_append(&choice->ids, ids->data, ids->len)
           != NGX_OK)
    {
        ngx_http_tokenring_move_give_up(ctx);
        return;
    }

    ngx_http_tokenring_move_hold(ctx, ids->len);
}


/* once a record: kept, where Redis is to have it, until it surely does */

void
ngx_http_tokenring_move_tail(ngx_http_tokenring_ctx_t *ctx, tr_record_t *rec,
    u_char *payload)
{
    size_t                      len;
    tr_wire_delta_t             delta;
    ngx_http_tokenring_late_t   head;
    ngx_http_tokenring_text_t  *newer;

    if (rec->type == TR_RECORD_STARTED || rec->type == TR_RECORD_ERROR
        || ctx->error || ctx->reason == TR_FINISH_ABORTED)
    {
        return;
    }

    ctx->late_number = ctx->number;

    /* an ECHO comes before it is known */

    if (rec->type == TR_RECORD_ECHO ? ctx->endpoint != TR_ENDPOINT_RESPONSES
                                    : !(ctx->stored && ctx->movable))
    {
        return;
    }

    newer = &ctx->late[1];

    if (ngx_current_msec - ctx->late_since > NGX_HTTP_TOKENRING_LATE
        || ngx_http_tokenring_text_len(newer) > NGX_HTTP_TOKENRING_LATE_SIZE)
    {
        ngx_http_tokenring_move_turn(ctx);
    }

    len = rec->length;

    if (rec->type == TR_RECORD_DELTA) {
        /* Redis does not have the ids, which stand behind all else */
        ngx_memcpy(&delta, payload, sizeof(tr_wire_delta_t));
        len -= delta.ids_len;
        delta.ids_len = 0;
        ngx_memcpy(payload, &delta, sizeof(tr_wire_delta_t));
    }

    head.length = (uint32_t) len;
    head.type = rec->type;
    head.reserved = 0;

    if (ngx_http_tokenring_reserve(newer, sizeof(head) + len) != NGX_OK) {
        ngx_http_tokenring_move_give_up(ctx);
        return;
    }

    newer->last = ngx_cpymem(newer->last, &head, sizeof(head));
    newer->last = ngx_cpymem(newer->last, payload, len);

    ngx_http_tokenring_move_hold(ctx, sizeof(head) + len);
}


/* the older records go, the newer ones are the older ones from now on */

static void
ngx_http_tokenring_move_turn(ngx_http_tokenring_ctx_t *ctx)
{
    size_t  len;

    len = ngx_http_tokenring_text_len(&ctx->late[0]);
    ctx->held -= len;
    ngx_http_tokenring_move_held -= len;

    ngx_http_tokenring_text_free(&ctx->late[0]);
    ctx->late[0] = ctx->late[1];
    ngx_memzero(&ctx->late[1], sizeof(ngx_http_tokenring_text_t));
    ctx->late_since = ngx_current_msec;
}


static void
ngx_http_tokenring_move_hold(ngx_http_tokenring_ctx_t *ctx, size_t size)
{
    ctx->held += size;
    ngx_http_tokenring_move_held += size;

    if (ngx_http_tokenring_move_held > ctx->conf->migrate_memory) {
        ngx_http_tokenring_move_give_up(ctx);
    }
}


/* not all of it can be kept, and nothing is: a body not where it is for moves
 * alone */

static void
ngx_http_tokenring_move_give_up(ngx_http_tokenring_ctx_t *ctx)
{
    ngx_http_tokenring_move_forget(ctx);
    ngx_http_tokenring_move_stays(ctx);

    if (ctx->stream && ctx->first_us) {
        ngx_http_tokenring_body_forget(ctx);
    }
}


/* its engine is told, which then does not end it for a move */

void
ngx_http_tokenring_move_stays(ngx_http_tokenring_ctx_t *ctx)
{
    ctx->stays = 1;
    ngx_http_tokenring_control(ctx, ctx->paused ? TR_CONTROL_PAUSE : 0);
}


/* the request ends, or stays with its engine */

void
ngx_http_tokenring_move_forget(ngx_http_tokenring_ctx_t *ctx)
{
    ngx_uint_t  i;

    ctx->movable = 0;

    ngx_http_tokenring_move_held -= ctx->held;
    ctx->held = 0;

    for (i = 0; i < ctx->nchoices; i++) {
        ngx_http_tokenring_text_free(&ctx->choices[i].ids);
    }

    ngx_http_tokenring_text_free(&ctx->late[0]);
    ngx_http_tokenring_text_free(&ctx->late[1]);
}


/*
 * An engine has given it up to others, which counts for no loss; but for one
 * where it has got nothing since it came there: engines that only hand it on
 * would do so for ever.
 */

static ngx_uint_t
ngx_http_tokenring_move_given(ngx_http_tokenring_ctx_t *ctx)
{
    return ctx->unserved
           || (ctx->error == TR_ERR_MOVED
               && ngx_http_tokenring_move_tokens(ctx) != ctx->moved_at);
}


static uint64_t
ngx_http_tokenring_move_tokens(ngx_http_tokenring_ctx_t *ctx)
{
    uint64_t    n;
    ngx_uint_t  i;

    for (n = 0, i = 0; i < ctx->nchoices; i++) {
        n += ctx->choices[i].told;
    }

    return n;
}


/* may it be lost once more? */

ngx_uint_t
ngx_http_tokenring_move_left(ngx_http_tokenring_ctx_t *ctx)
{
    return ctx->moves - ctx->given < ctx->conf->migrate;
}


static ngx_uint_t
ngx_http_tokenring_may_move(ngx_http_tokenring_ctx_t *ctx)
{
    if (ctx->conf->migrate == 0
        || ctx->gone
        || ctx->conn
        || ctx->follow)
    {
        return 0;
    }

    if (ctx->first_us == 0
        && !(ctx->resumable && ctx->movable && ctx->request->header_sent))
    {
        /* it can begin anew, under another id */
        return 0;
    }

    if (!ctx->refused
        && !ngx_http_tokenring_died(ctx->error)
        && ctx->error != TR_ERR_DRAINING
        && ctx->error != TR_ERR_MOVED)
    {
        return 0;
    }

    /* an engine that has not taken it is none that it has lost */

    if (!ctx->movable
        || (!ctx->refused
            && !ngx_http_tokenring_move_given(ctx)
            && !ngx_http_tokenring_move_left(ctx)))
    {
        ngx_http_tokenring_count(unmovable);
        return 0;
    }

    return 1;
}


ngx_uint_t
ngx_http_tokenring_move_fits(ngx_http_tokenring_ctx_t *ctx,
    ngx_http_tokenring_conn_t *conn)
{
    return (conn->features & TR_FEATURE_REPLAY)
           && (conn->features & TR_FEATURE_ITEMS)
           && ngx_memcmp(conn->card.model_id, ctx->model_id, TR_MODEL_ID) == 0
           && conn->card.max_model_len >= ctx->max_model_len
           && (!ctx->conf->migrate_strict
               || conn->card.exact_id == ctx->exact_id)
           && ngx_http_tokenring_move_offered(ctx, conn)
           && !ngx_http_tokenring_move_noted(ctx, conn, 0);
}


/* its KV policy there: a card names some with their settings, "name:x=1" */

static ngx_uint_t
ngx_http_tokenring_move_offered(ngx_http_tokenring_ctx_t *ctx,
    ngx_http_tokenring_conn_t *conn)
{
    const char  *p;

    p = conn->card.kv_policies;

    if (*p == '\0' || ctx->policy.len == 0) {
        return 1;
    }

    for ( ;; ) {

        if (ngx_strncmp(p, ctx->policy.data, ctx->policy.len) == 0
            && (p[ctx->policy.len] == '\0'
                || p[ctx->policy.len] == ' '
                || p[ctx->policy.len] == ':'))
        {
            return 1;
        }

        p = ngx_strchr(p, ' ');

        if (p == NULL) {
            return 0;
        }

        p++;
    }
}


ngx_int_t
ngx_http_tokenring_move(ngx_http_tokenring_ctx_t *ctx)
{
    if (!ngx_http_tokenring_may_move(ctx)) {
        return NGX_DECLINED;
    }

    if (ctx->refused) {
        ngx_http_tokenring_move_wait(ctx);
        return NGX_OK;
    }

    if (ngx_http_tokenring_move_block(ctx) != NGX_OK) {
        return NGX_DECLINED;
    }

    if (!ctx->moving) {
        ctx->move_deadline = ngx_current_msec + ctx->conf->migrate_timeout;
    }

    if (!ctx->halted) {
        ctx->halted = 1;
        ctx->halted_since = ngx_current_msec;
    }

    ctx->given += ngx_http_tokenring_move_given(ctx);
    ctx->moved_at = ngx_http_tokenring_move_tokens(ctx);
    ctx->moves++;
    ngx_http_tokenring_count(migrations);

    ngx_log_error(NGX_LOG_NOTICE, ctx->request->connection->log, 0,
                  "tokenring: moves to another engine, request=%V status=%s "
                  "tokens=%uL", &ctx->request_id,
                  tr_status_info(ctx->error).name, ctx->completion_tokens);

    ctx->moving = 1;

    if (ctx->error != TR_ERR_LOST) {
        ctx->tried = 0;
    } /* else it may take a moment until that engine shows that it stops */

    ngx_http_tokenring_move_reset(ctx);

    if (ngx_http_tokenring_admit(ctx) == NGX_OK) {
        return ngx_http_tokenring_body_again(ctx);
    }

    return NGX_OK;
}


/* what the engine before has left */

static void
ngx_http_tokenring_move_reset(ngx_http_tokenring_ctx_t *ctx)
{
    ctx->error = TR_OK;
    ctx->refused = 0;
    ctx->unserved = 0;
    ctx->error_number = 0;
    ctx->retry_after = 0;
    ctx->param.len = 0;
    ctx->message.len = 0;
    ctx->paused = 0;
    ctx->reason = 0;
    ctx->body_sent = NGX_HTTP_TOKENRING_NOTHING;
    ctx->number = ctx->late_number;
}


/*
 * Refused, with the block as it was: the timer tries again, so that an engine
 * whose queue is full is not asked without end.
 */

static void
ngx_http_tokenring_move_wait(ngx_http_tokenring_ctx_t *ctx)
{
    ngx_log_debug1(NGX_LOG_DEBUG_HTTP, ctx->request->connection->log, 0,
                   "tokenring request: refused on its way, status:%s",
                   tr_status_info(ctx->error).name);

    ngx_http_tokenring_move_reset(ctx);
    ngx_http_tokenring_set_state(ctx, NGX_HTTP_TOKENRING_HELD);
    ngx_http_tokenring_watch(ctx);
}


/*
 * One that waits: an engine may have a place by now.  Those that have refused
 * it are asked again when all the others were.
 */

ngx_int_t
ngx_http_tokenring_move_retry(ngx_http_tokenring_ctx_t *ctx)
{
    ngx_queue_t  alone;

    /* a connection that fails at once wakes all who wait: not this one */

    ngx_queue_remove(&ctx->wait);
    ngx_queue_init(&alone);
    ngx_queue_insert_tail(&alone, &ctx->wait);

    if (ngx_http_tokenring_admit(ctx) == NGX_OK) {
        return ngx_http_tokenring_body_again(ctx);
    }

    ctx->tried = 0;

    return NGX_OK;
}


/* how far the request is, in a buffer that goes ahead of its body */

static ngx_int_t
ngx_http_tokenring_move_block(ngx_http_tokenring_ctx_t *ctx)
{
    size_t                        size, late;
    ngx_buf_t                    *b;
    ngx_uint_t                    i, first;
    tr_wire_replay_t              head;
    ngx_http_tokenring_choice_t  *choice;

    size = sizeof(tr_wire_replay_t);

    for (i = 0; i < ctx->nchoices; i++) {
        choice = &ctx->choices[i];
        size += sizeof(tr_wire_replay_choice_t)
                + (choice->reason ? 0
                                  : ngx_http_tokenring_text_len(&choice->ids));
    }

    first = ngx_http_tokenring_move_late(ctx, &late);
    size += late;

    if (size > TR_REPLAY_MAX) {
        return NGX_ERROR;
    }

    if (ctx->replay) {
        /* of the move before; a small one is a part of the pool and stays */
        (void) ngx_pfree(ctx->request->pool, ctx->replay->start);
        ctx->replay = NULL;
    }

    b = ngx_create_temp_buf(ctx->request->pool, size);
    if (b == NULL) {
        return NGX_ERROR;
    }

    ngx_memzero(&head, sizeof(tr_wire_replay_t));

    head.seed = ctx->seed;
    head.created = ctx->created;
    ngx_memcpy(head.model_id, ctx->model_id, TR_MODEL_ID);
    head.choices = ctx->nchoices;
    head.prompt_tokens = ctx->prompt_tokens;
    head.epoch = ctx->moves + 1;
    head.number = ctx->stored ? ctx->late_number : 0;
    head.tail_len = (uint32_t) late;

    b->last = ngx_cpymem(b->last, &head, sizeof(tr_wire_replay_t));

    for (i = 0; i < ctx->nchoices; i++) {
        b->last = ngx_http_tokenring_move_choice(b->last, &ctx->choices[i]);
    }

    for (i = first; i < 2; i++) {
        if (ctx->late[i].pos) {
            b->last = ngx_cpymem(b->last, ctx->late[i].pos,
                                 ngx_http_tokenring_text_len(&ctx->late[i]));
        }
    }

    ctx->replay = b;

    return NGX_OK;
}


static u_char *
ngx_http_tokenring_move_choice(u_char *p, ngx_http_tokenring_choice_t *choice)
{
    tr_wire_replay_choice_t  head;

    ngx_memzero(&head, sizeof(tr_wire_replay_choice_t));

    head.tokens = choice->told;
    head.echoed = choice->echoed;
    head.reason = choice->reason;

    p = ngx_cpymem(p, &head, sizeof(tr_wire_replay_choice_t));

    if (choice->reason || choice->ids.pos == NULL) {
        /* it has ended; or was told nothing, and has no memory */
        return p;
    }

    return ngx_cpymem(p, choice->ids.pos,
                      ngx_http_tokenring_text_len(&choice->ids));
}


/* from which of them on records are sent, and how many bytes: what does not fit
 * is as good as lost, if Redis lacks it */

static ngx_uint_t
ngx_http_tokenring_move_late(ngx_http_tokenring_ctx_t *ctx, size_t *size)
{
    size_t  older, newer;

    *size = 0;

    if (!ctx->stored) {
        return 2;
    }

    older = ngx_http_tokenring_text_len(&ctx->late[0]);
    newer = ngx_http_tokenring_text_len(&ctx->late[1]);

    if (newer > TR_REPLAY_TAIL) {
        return 2;
    }

    if (older + newer > TR_REPLAY_TAIL) {
        *size = newer;
        return 1;
    }

    *size = older + newer;

    return 0;
}
