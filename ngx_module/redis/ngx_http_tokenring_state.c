/*
 * The state of a request, from Redis to JSON.
 *
 * Everything in Redis was written by others and is treated as input: a field
 * that is not a number is missing, a text that is too long is cut, an unknown
 * state makes the request unknown.
 *
 * An engine that is killed writes nothing more: a request whose state is not
 * final has failed if its engine has no heartbeat of the same run.
 */

#include "ngx_http_tokenring_conf.h"
#include "ngx_http_tokenring_endpoint.h"
#include "ngx_http_tokenring_error.h"
#include "ngx_http_tokenring_render.h"
#include "ngx_http_tokenring_resumable.h"
#include "ngx_http_tokenring_state.h"

#include <tokenring/status.h>


static ngx_str_t *ngx_http_tokenring_stored_text(redisReply *reply, size_t max,
    ngx_pool_t *pool, ngx_str_t *out);
static uint64_t ngx_http_tokenring_stored_number(redisReply *reply);
static float ngx_http_tokenring_stored_share(redisReply *reply);
static ngx_int_t ngx_http_tokenring_stored_strings(redisReply **field,
    ngx_pool_t *pool, ngx_http_tokenring_stored_t *rec);
static void ngx_http_tokenring_stored_numbers(redisReply **field,
    ngx_http_tokenring_stored_t *rec);
static tr_status_t ngx_http_tokenring_stored_status(redisReply *reply);
static ngx_int_t ngx_http_tokenring_json_timings(ngx_http_tokenring_text_t *t,
    ngx_http_tokenring_stored_t *rec);
static ngx_int_t ngx_http_tokenring_same(u_char *a, u_char *b, size_t n);
static ngx_int_t ngx_http_tokenring_json_text(ngx_http_tokenring_text_t *t,
    const char *key, ngx_str_t *value);
static ngx_int_t ngx_http_tokenring_json_time(ngx_http_tokenring_text_t *t,
    const char *key, uint64_t ms);
static ngx_int_t ngx_http_tokenring_json_span(ngx_http_tokenring_text_t *t,
    const char *key, uint64_t from, uint64_t to);
static ngx_int_t ngx_http_tokenring_json_error(ngx_http_tokenring_text_t *t,
    ngx_http_tokenring_stored_t *rec);


enum {
    NGX_HTTP_TOKENRING_STATE = 0,
    NGX_HTTP_TOKENRING_ENGINE,
    NGX_HTTP_TOKENRING_RUN,
    NGX_HTTP_TOKENRING_MODEL_NAME,
    NGX_HTTP_TOKENRING_ENDPOINT,
    NGX_HTTP_TOKENRING_REQUEST_ID,
    NGX_HTTP_TOKENRING_OWNER,
    NGX_HTTP_TOKENRING_RESUMABLE,
    NGX_HTTP_TOKENRING_DETACH,
    NGX_HTTP_TOKENRING_STREAM,
    NGX_HTTP_TOKENRING_WIRE,
    NGX_HTTP_TOKENRING_CREATED,
    NGX_HTTP_TOKENRING_STARTED,
    NGX_HTTP_TOKENRING_FIRST_TOKEN,
    NGX_HTTP_TOKENRING_FINISHED,
    NGX_HTTP_TOKENRING_CHOICES,
    NGX_HTTP_TOKENRING_PROMPT_TOKENS,
    NGX_HTTP_TOKENRING_COMPLETION_TOKENS,
    NGX_HTTP_TOKENRING_CACHED_TOKENS,
    NGX_HTTP_TOKENRING_PREEMPTIONS,
    NGX_HTTP_TOKENRING_FINISH_REASON,
    NGX_HTTP_TOKENRING_KV_BYTES,
    NGX_HTTP_TOKENRING_KV_FULL_BYTES,
    NGX_HTTP_TOKENRING_SHARE_HIGH,
    NGX_HTTP_TOKENRING_SHARE_LOW,
    NGX_HTTP_TOKENRING_SHARE_PRUNED,
    NGX_HTTP_TOKENRING_KV_POLICY,
    NGX_HTTP_TOKENRING_KV_TOKENS_FULL,
    NGX_HTTP_TOKENRING_KV_TOKENS_HIGH,
    NGX_HTTP_TOKENRING_KV_TOKENS_LOW,
    NGX_HTTP_TOKENRING_KV_TOKENS_PRUNED,
    NGX_HTTP_TOKENRING_ERROR_STATUS,
    NGX_HTTP_TOKENRING_ERROR,
    NGX_HTTP_TOKENRING_GAP,
    NGX_HTTP_TOKENRING_HOLDER,
    NGX_HTTP_TOKENRING_MIGRATE,
    NGX_HTTP_TOKENRING_FIELDS
};


static ngx_str_t  ngx_http_tokenring_fields[NGX_HTTP_TOKENRING_FIELDS] = {
    ngx_string("state"), ngx_string("engine"), ngx_string("run"),
    ngx_string("model"), ngx_string("endpoint"), ngx_string("request_id"),
    ngx_string("owner"), ngx_string("resumable"), ngx_string("detach"),
    ngx_string("stream"), ngx_string("wire"), ngx_string("created"),
    ngx_string("started"), ngx_string("first_token"), ngx_string("finished"),
    ngx_string("choices"), ngx_string("prompt_tokens"),
    ngx_string("completion_tokens"), ngx_string("cached_tokens"),
    ngx_string("preemptions"), ngx_string("finish_reason"),
    ngx_string("kv_bytes"), ngx_string("kv_full_bytes"),
    ngx_string("share_high"), ngx_string("share_low"),
    ngx_string("share_pruned"), ngx_string("kv_policy"),
    ngx_string("kv_tokens_full"), ngx_string("kv_tokens_high"),
    ngx_string("kv_tokens_low"), ngx_string("kv_tokens_pruned"),
    ngx_string("error_status"), ngx_string("error"), ngx_string("gap"),
    ngx_string("holder"), ngx_string("migrate")
};


ngx_int_t
ngx_http_tokenring_request_id(ngx_str_t *name, ngx_str_t *id)
{
    size_t                                len;
    ngx_uint_t                            i;
    const ngx_http_tokenring_endpoint_t  *endpoint;

    *id = *name;

    for (i = 1; i < TR_ENDPOINTS; i++) {
        endpoint = ngx_http_tokenring_endpoint(i);

        if (endpoint == NULL) {
            continue;
        }

        len = ngx_strlen(endpoint->id_prefix);

        if (name->len == len + TR_COMPLETION_LEN
            && ngx_strncmp(name->data, endpoint->id_prefix, len) == 0)
        {
            id->data = name->data + len;
            id->len = TR_COMPLETION_LEN;
            break;
        }
    }

    if (id->len != TR_COMPLETION_LEN) {
        return NGX_DECLINED;
    }

    return (tr_wire_is_hex((char *) id->data, id->len) && id->data[0] != '\0')
           ? NGX_OK : NGX_DECLINED;
}


ngx_http_tokenring_call_t *
ngx_http_tokenring_stored_ask(ngx_http_tokenring_redis_t *redis,
    ngx_pool_t *pool, ngx_str_t *id, ngx_http_tokenring_reply_pt handler,
    void *data)
{
    ngx_str_t  argv[NGX_HTTP_TOKENRING_REDIS_ARGS];

    _Static_assert(2 + NGX_HTTP_TOKENRING_FIELDS
                   <= NGX_HTTP_TOKENRING_REDIS_ARGS, "all in one HMGET");

    ngx_str_set(&argv[0], "HMGET");

    argv[1] = ngx_http_tokenring_redis_key(redis, pool, "req", id);
    if (argv[1].data == NULL) {
        return NULL;
    }

    ngx_memcpy(&argv[2], ngx_http_tokenring_fields,
               sizeof(ngx_http_tokenring_fields));

    return ngx_http_tokenring_redis_command(redis, handler, data,
                                            2 + NGX_HTTP_TOKENRING_FIELDS,
                                            argv);
}


ngx_int_t
ngx_http_tokenring_stored_take(ngx_http_tokenring_redis_t *redis,
    ngx_pool_t *pool, redisReply *reply, ngx_http_tokenring_stored_t *rec)
{
    ngx_int_t   rc;
    ngx_uint_t  final;

    ngx_memzero(rec, sizeof(ngx_http_tokenring_stored_t));

    if (reply == NULL) {
        return NGX_ERROR;
    }

    if (reply->type == REDIS_REPLY_ERROR) {
        ngx_http_tokenring_redis_complain(redis, reply);

        /* the key is something else, not a request */

        return (ngx_strncmp(reply->str, "WRONGTYPE", 9) == 0) ? NGX_DECLINED
                                                              : NGX_ERROR;
    }

    if (reply->type != REDIS_REPLY_ARRAY
        || reply->elements != NGX_HTTP_TOKENRING_FIELDS)
    {
        return NGX_ERROR;
    }

    if (reply->element[NGX_HTTP_TOKENRING_STATE]->type != REDIS_REPLY_STRING) {
        return NGX_DECLINED;
    }

    rc = ngx_http_tokenring_stored_strings(reply->element, pool, rec);
    if (rc != NGX_OK) {
        return rc;
    }

    ngx_http_tokenring_stored_numbers(reply->element, rec);

    if (ngx_http_tokenring_state_known(&rec->state, &final) != NGX_OK) {
        return NGX_DECLINED;
    }

    rec->final = final ? 1 : 0;

    return NGX_OK;
}


static ngx_int_t
ngx_http_tokenring_stored_strings(redisReply **field, ngx_pool_t *pool,
    ngx_http_tokenring_stored_t *rec)
{
    ngx_str_t  endpoint;

    if (ngx_http_tokenring_stored_text(field[NGX_HTTP_TOKENRING_STATE], 16,
                                       pool, &rec->state)
           == NULL
        || ngx_http_tokenring_stored_text(field[NGX_HTTP_TOKENRING_ENGINE],
                                          TR_NAME_MAX, pool, &rec->engine)
           == NULL
        || ngx_http_tokenring_stored_text(field[NGX_HTTP_TOKENRING_RUN], 32,
                                          pool, &rec->run)
           == NULL
        || ngx_http_tokenring_stored_text(
                                     field[NGX_HTTP_TOKENRING_MODEL_NAME],
                                     TR_NAME_MAX, pool, &rec->model)
           == NULL
        || ngx_http_tokenring_stored_text(
                                     field[NGX_HTTP_TOKENRING_KV_POLICY],
                                     TR_NAME_MAX, pool, &rec->policy)
           == NULL
        || ngx_http_tokenring_stored_text(
                                     field[NGX_HTTP_TOKENRING_REQUEST_ID],
                                     TR_REQUEST_ID_MAX, pool,
                                     &rec->request_id)
           == NULL
        || ngx_http_tokenring_stored_text(field[NGX_HTTP_TOKENRING_OWNER],
                                          TR_OWNER_LEN + 1, pool, &rec->owner)
           == NULL
        || ngx_http_tokenring_stored_text(field[NGX_HTTP_TOKENRING_HOLDER],
                                          2 * TR_HOLDER + 1, pool,
                                          &rec->holder)
           == NULL
        || ngx_http_tokenring_stored_text(
                                     field[NGX_HTTP_TOKENRING_FINISH_REASON],
                                     16, pool, &rec->finish_reason)
           == NULL
        || ngx_http_tokenring_stored_text(field[NGX_HTTP_TOKENRING_ERROR],
                                          NGX_HTTP_TOKENRING_MESSAGE_MAX,
                                          pool, &rec->error)
           == NULL)
    {
        return NGX_ERROR;
    }

    if (ngx_http_tokenring_redis_string(field[NGX_HTTP_TOKENRING_ENDPOINT],
                                        &endpoint)
        != NGX_OK)
    {
        ngx_str_null(&endpoint);
    }

    rec->endpoint = tr_endpoint_by_name((const char *) endpoint.data,
                                        endpoint.len);

    rec->error_status =
        ngx_http_tokenring_stored_status(
            field[NGX_HTTP_TOKENRING_ERROR_STATUS]);

    return NGX_OK;
}


static void
ngx_http_tokenring_stored_numbers(redisReply **field,
    ngx_http_tokenring_stored_t *rec)
{
    tr_wire_finish_t  *totals;

#define ngx_http_tokenring_field(name)                                        \
    ngx_http_tokenring_stored_number(field[NGX_HTTP_TOKENRING_##name])

    rec->wire = ngx_http_tokenring_field(WIRE);
    rec->created = ngx_http_tokenring_field(CREATED);
    rec->started = ngx_http_tokenring_field(STARTED);
    rec->first_token = ngx_http_tokenring_field(FIRST_TOKEN);
    rec->finished = ngx_http_tokenring_field(FINISHED);
    rec->choices = ngx_http_tokenring_field(CHOICES);
    rec->prompt_tokens = ngx_http_tokenring_field(PROMPT_TOKENS);
    rec->completion_tokens = ngx_http_tokenring_field(COMPLETION_TOKENS);

    rec->migrate = ngx_min(ngx_http_tokenring_field(MIGRATE), 65535);

    rec->resumable = (ngx_http_tokenring_field(RESUMABLE) == 1);
    rec->detach = (ngx_http_tokenring_field(DETACH) == 1);
    rec->stream = (ngx_http_tokenring_field(STREAM) == 1);
    rec->gap = (ngx_http_tokenring_field(GAP) == 1);

    totals = &rec->totals;

    totals->cached_tokens = (uint32_t) ngx_http_tokenring_field(CACHED_TOKENS);
    totals->preemptions = (uint32_t) ngx_http_tokenring_field(PREEMPTIONS);
    totals->kv.bytes = ngx_http_tokenring_field(KV_BYTES);
    totals->kv.full_bytes = ngx_http_tokenring_field(KV_FULL_BYTES);
    totals->kv.tokens_full =
        (uint32_t) ngx_http_tokenring_field(KV_TOKENS_FULL);
    totals->kv.tokens_high =
        (uint32_t) ngx_http_tokenring_field(KV_TOKENS_HIGH);
    totals->kv.tokens_low = (uint32_t) ngx_http_tokenring_field(KV_TOKENS_LOW);
    totals->kv.tokens_pruned =
        (uint32_t) ngx_http_tokenring_field(KV_TOKENS_PRUNED);

#undef ngx_http_tokenring_field

    totals->kv.share_high = ngx_http_tokenring_stored_share(
                             field[NGX_HTTP_TOKENRING_SHARE_HIGH]);
    totals->kv.share_low = ngx_http_tokenring_stored_share(
                            field[NGX_HTTP_TOKENRING_SHARE_LOW]);
    totals->kv.share_pruned = ngx_http_tokenring_stored_share(
                               field[NGX_HTTP_TOKENRING_SHARE_PRUNED]);
}


ngx_int_t
ngx_http_tokenring_state_known(ngx_str_t *state, ngx_uint_t *final)
{
    ngx_uint_t  i;

    static ngx_str_t  states[] = {
        ngx_string("done"), ngx_string("failed"), ngx_string("cancelled"),
        ngx_string("queued"), ngx_string("prefill"), ngx_string("decode"),
        ngx_string("detached")
    };

    for (i = 0; i < sizeof(states) / sizeof(ngx_str_t); i++) {
        if (state->len == states[i].len
            && ngx_strncmp(state->data, states[i].data, state->len) == 0)
        {
            *final = (i < 3);
            return NGX_OK;
        }
    }

    return NGX_DECLINED;
}


static ngx_str_t *
ngx_http_tokenring_stored_text(redisReply *reply, size_t max, ngx_pool_t *pool,
    ngx_str_t *out)
{
    ngx_str_t  s;

    ngx_str_null(out);

    if (ngx_http_tokenring_redis_string(reply, &s) != NGX_OK || s.len == 0) {
        return out;
    }

    s.len = ngx_min(s.len, max);

    out->data = ngx_pstrdup(pool, &s);
    if (out->data == NULL) {
        return NULL;
    }

    out->len = s.len;

    return out;
}


static uint64_t
ngx_http_tokenring_stored_number(redisReply *reply)
{
    uint64_t  n;

    return (ngx_http_tokenring_redis_number(reply, &n) == NGX_OK) ? n : 0;
}


static float
ngx_http_tokenring_stored_share(redisReply *reply)
{
    double  share;

    return (ngx_http_tokenring_redis_share(reply, &share) == NGX_OK)
           ? (float) share : 0;
}


/* the status with this name; TR_OK if there is none */

static tr_status_t
ngx_http_tokenring_stored_status(redisReply *reply)
{
    ngx_str_t    s;
    tr_status_t  status;
    const char  *name;

    if (ngx_http_tokenring_redis_string(reply, &s) != NGX_OK || s.len == 0) {
        return TR_OK;
    }

    for (status = -1; status > -64; status--) {
        name = tr_status_info(status).name;

        if (ngx_strlen(name) == s.len
            && ngx_strncmp(s.data, name, s.len) == 0)
        {
            return status;
        }
    }

    return TR_ERR_INTERNAL;
}


ngx_http_tokenring_call_t *
ngx_http_tokenring_heartbeat_ask(ngx_http_tokenring_redis_t *redis,
    ngx_pool_t *pool, ngx_http_tokenring_stored_t *rec,
    ngx_http_tokenring_reply_pt handler, void *data)
{
    ngx_str_t  argv[3];

    ngx_str_set(&argv[0], "HGET");

    argv[1] = ngx_http_tokenring_redis_key(redis, pool, "engine",
                                           &rec->engine);
    if (argv[1].data == NULL) {
        return NULL;
    }

    ngx_str_set(&argv[2], "run");

    return ngx_http_tokenring_redis_command(redis, handler, data, 3, argv);
}


ngx_int_t
ngx_http_tokenring_heartbeat_take(ngx_http_tokenring_redis_t *redis,
    redisReply *reply, ngx_http_tokenring_stored_t *rec)
{
    ngx_str_t  run;

    if (reply == NULL) {
        return NGX_ERROR;
    }

    if (reply->type == REDIS_REPLY_ERROR) {
        ngx_http_tokenring_redis_complain(redis, reply);
        return NGX_ERROR;
    }

    if (ngx_http_tokenring_redis_string(reply, &run) == NGX_OK
        && run.len && run.len == rec->run.len
        && ngx_strncmp(run.data, rec->run.data, run.len) == 0)
    {
        return NGX_OK;
    }

    rec->lost = 1;

    return NGX_DECLINED;
}


ngx_int_t
ngx_http_tokenring_stored_allowed(ngx_http_request_t *r, ngx_str_t *id,
    ngx_http_tokenring_stored_t *rec)
{
    u_char                          owner[TR_OWNER_LEN];
    ngx_str_t                       key;
    ngx_http_tokenring_loc_conf_t  *tlcf;

    if (rec->owner.len == 0) {
        return NGX_OK;
    }

    tlcf = ngx_http_get_module_loc_conf(r, ngx_http_tokenring_module);

    if (rec->owner.len != TR_OWNER_LEN || tlcf->key == NULL
        || ngx_http_complex_value(r, tlcf->key, &key) != NGX_OK)
    {
        return NGX_DECLINED;
    }

    ngx_http_tokenring_owner(id, &key, owner);

    return ngx_http_tokenring_same(owner, rec->owner.data, TR_OWNER_LEN);
}


ngx_int_t
ngx_http_tokenring_stored_held(ngx_http_request_t *r,
    ngx_http_tokenring_stored_t *rec)
{
    u_char  holder[TR_HOLDER], hex[2 * TR_HOLDER];

    if (rec->endpoint != TR_ENDPOINT_RESPONSES
        || rec->holder.len != 2 * TR_HOLDER)
    {
        return NGX_DECLINED;
    }

    ngx_http_tokenring_holder(r, holder);
    ngx_hex_dump(hex, holder, TR_HOLDER);

    return ngx_http_tokenring_same(hex, rec->holder.data, 2 * TR_HOLDER);
}


/* how much of it is right must not show in time */

static ngx_int_t
ngx_http_tokenring_same(u_char *a, u_char *b, size_t n)
{
    size_t      i;
    ngx_uint_t  differ;

    differ = 0;

    for (i = 0; i < n; i++) {
        differ |= a[i] ^ b[i];
    }

    return differ ? NGX_DECLINED : NGX_OK;
}


/* {"id", "object": "request", "state", ...} */

ngx_int_t
ngx_http_tokenring_stored_json(ngx_http_tokenring_text_t *t, ngx_str_t *id,
    ngx_http_tokenring_stored_t *rec, ngx_uint_t cancelling)
{
    ngx_str_t                             failed;
    const ngx_http_tokenring_endpoint_t  *endpoint;

    ngx_str_set(&failed, "failed");

    endpoint = ngx_http_tokenring_endpoint(rec->endpoint);

    if (ngx_http_tokenring_printf(t, 128 + id->len,
                                  "{\"id\":\"%s%V\",\"object\":\"request\"",
                                  endpoint ? endpoint->id_prefix : "", id)
        != NGX_OK
        || ngx_http_tokenring_json_text(t, "state", rec->lost ? &failed
                                                              : &rec->state)
           != NGX_OK
        || (cancelling && ngx_http_tokenring_put(t, ",\"cancelling\":true")
                          != NGX_OK)
        || ngx_http_tokenring_json_text(t, "model", &rec->model) != NGX_OK
        || ngx_http_tokenring_json_text(t, "engine", &rec->engine) != NGX_OK
        || ngx_http_tokenring_json_text(t, "request_id", &rec->request_id)
           != NGX_OK
        || ngx_http_tokenring_printf(t, 192, ",\"stream\":%s,"
               "\"resumable\":%s,\"detach\":%s,\"gap\":%s,\"choices\":%uL",
               rec->stream ? "true" : "false",
               rec->resumable ? "true" : "false",
               rec->detach ? "true" : "false",
               rec->gap ? "true" : "false", rec->choices)
           != NGX_OK
        || ngx_http_tokenring_json_time(t, "created", rec->created) != NGX_OK
        || ngx_http_tokenring_json_time(t, "started", rec->started) != NGX_OK
        || ngx_http_tokenring_json_time(t, "first_token", rec->first_token)
           != NGX_OK
        || ngx_http_tokenring_json_time(t, "finished", rec->finished)
           != NGX_OK
        || ngx_http_tokenring_json_text(t, "finish_reason",
                                        &rec->finish_reason)
           != NGX_OK
        || ngx_http_tokenring_json_error(t, rec) != NGX_OK
        || ngx_http_tokenring_json_timings(t, rec) != NGX_OK
        || ngx_http_tokenring_printf(t, 64, ",\"preemptions\":%uD,",
                                     rec->totals.preemptions)
           != NGX_OK
        || ngx_http_tokenring_render_usage(t, rec->prompt_tokens,
                                           rec->completion_tokens,
                                           &rec->policy, &rec->totals)
           != NGX_OK)
    {
        return NGX_ERROR;
    }

    return ngx_http_tokenring_put(t, "}\n");
}


static ngx_int_t
ngx_http_tokenring_json_timings(ngx_http_tokenring_text_t *t,
    ngx_http_tokenring_stored_t *rec)
{
    if (ngx_http_tokenring_put(t, ",\"timings\":{\"unit\":\"s\"") != NGX_OK
        || ngx_http_tokenring_json_span(t, "queue", rec->created,
                                        rec->started)
           != NGX_OK
        || ngx_http_tokenring_json_span(t, "ttft", rec->created,
                                        rec->first_token)
           != NGX_OK
        || ngx_http_tokenring_json_span(t, "total", rec->created,
                                        rec->finished)
           != NGX_OK)
    {
        return NGX_ERROR;
    }

    return ngx_http_tokenring_put(t, "}");
}


static ngx_int_t
ngx_http_tokenring_json_text(ngx_http_tokenring_text_t *t, const char *key,
    ngx_str_t *value)
{
    if (value->len == 0) {
        return ngx_http_tokenring_printf(t, 64, ",\"%s\":null", key);
    }

    if (ngx_http_tokenring_printf(t, 64, ",\"%s\":\"", key) != NGX_OK
        || ngx_http_tokenring_json(t, value->data, value->len) != NGX_OK)
    {
        return NGX_ERROR;
    }

    return ngx_http_tokenring_put(t, "\"");
}


/* Unix time in seconds, as OpenAI's `created`, but to the millisecond */

static ngx_int_t
ngx_http_tokenring_json_time(ngx_http_tokenring_text_t *t, const char *key,
    uint64_t ms)
{
    if (ms == 0) {
        return ngx_http_tokenring_printf(t, 64, ",\"%s\":null", key);
    }

    return ngx_http_tokenring_printf(t, 64 + NGX_INT64_LEN,
                                     ",\"%s\":%uL.%03uL", key, ms / 1000,
                                     ms % 1000);
}


static ngx_int_t
ngx_http_tokenring_json_span(ngx_http_tokenring_text_t *t, const char *key,
    uint64_t from, uint64_t to)
{
    if (from == 0 || to < from) {
        return ngx_http_tokenring_printf(t, 64, ",\"%s\":null", key);
    }

    return ngx_http_tokenring_printf(t, 64 + NGX_INT64_LEN,
                                     ",\"%s\":%uL.%03uL", key,
                                     (to - from) / 1000, (to - from) % 1000);
}


/* as the client got it, or would have got it */

static ngx_int_t
ngx_http_tokenring_json_error(ngx_http_tokenring_text_t *t,
    ngx_http_tokenring_stored_t *rec)
{
    ngx_str_t         message;
    tr_status_t       status;
    tr_status_info_t  info;

    if (rec->lost) {
        status = TR_ERR_CLOSED;
        ngx_str_set(&message, NGX_HTTP_TOKENRING_LOST);

    } else if (rec->error_status != TR_OK) {
        status = rec->error_status;
        message = rec->error;

    } else if (rec->error.len) {
        /* its client left: no status was sent to anybody */
        status = TR_ERR_CANCELLED;
        message = rec->error;

    } else {
        return ngx_http_tokenring_put(t, ",\"error\":null");
    }

    info = tr_status_info(status);

    if (ngx_http_tokenring_put(t, ",") != NGX_OK) {
        return NGX_ERROR;
    }

    /* {"error":{...}} without its outer braces */

    return ngx_http_tokenring_render_error_field(t, info.type, info.code,
                                                 NULL, &message);
}


ngx_int_t
ngx_http_tokenring_send_unknown(ngx_http_request_t *r)
{
    return ngx_http_tokenring_send_error(r, TR_ERR_NOT_FOUND,
                                         "There is no request with this id");
}


ngx_int_t
ngx_http_tokenring_send_no_response(ngx_http_request_t *r)
{
    return ngx_http_tokenring_send_error(r, TR_ERR_NOT_FOUND,
                                         "There is no response with this id");
}


ngx_int_t
ngx_http_tokenring_send_away(ngx_http_request_t *r)
{
    return ngx_http_tokenring_send_error(r, TR_ERR_NO_REDIS,
               "Stored requests cannot be read at the moment");
}
