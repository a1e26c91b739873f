/*
 * The board: what viewers of the dashboard see of Redis (docs/redis.md).
 *
 * A round is three turns to Redis, once a second and only while somebody looks:
 * the names of the engines; of each its heartbeat, the samples since the last
 * round and its latest requests; the requests that are new or not over.  The
 * end of a round is one event for all viewers.  A round ends whatever happens:
 * every command is answered, with a reply or without one.
 *
 * What Redis holds was written by others.  Names and values are bounded, fields
 * are those that we know, everything is written as a JSON string, and the page
 * makes of it what it can.
 */

#include "ngx_http_tokenring_dashboard.h"


static void ngx_http_tokenring_board_timer(ngx_event_t *ev);
static void ngx_http_tokenring_board_round(ngx_http_tokenring_board_t *board);
static void ngx_http_tokenring_board_end(ngx_http_tokenring_board_t *board);
static void ngx_http_tokenring_board_free(ngx_http_tokenring_board_t *board);
static ngx_int_t ngx_http_tokenring_board_engine(ngx_http_tokenring_text_t *t,
    ngx_http_tokenring_board_engine_t *engine);
static ngx_int_t ngx_http_tokenring_board_render(
    ngx_http_tokenring_board_t *board);


/* the first viewer came */

void
ngx_http_tokenring_board_start(ngx_http_tokenring_board_t *board)
{
    if (!board->ready) {
        board->ready = 1;

        ngx_queue_init(&board->viewers);

        board->timer.handler = ngx_http_tokenring_board_timer;
        board->timer.data = board;
        board->timer.log = ngx_cycle->log;
    }

    if (!board->timer.timer_set) {
        ngx_add_timer(&board->timer, 1);
    }
}


static void
ngx_http_tokenring_board_timer(ngx_event_t *ev)
{
    ngx_http_tokenring_board_t  *board;

    board = ev->data;

    if (ngx_exiting) {
        /* this timer is what the worker waits for */
        ngx_http_tokenring_viewer_end(board);
        return;
    }

    if (ngx_queue_empty(&board->viewers)) {
        if (board->pending == 0) {
            ngx_http_tokenring_board_free(board);
            return;
        }

    } else if (board->pending == 0) {
        ngx_http_tokenring_board_round(board);
    }

    ngx_add_timer(&board->timer, NGX_HTTP_TOKENRING_BOARD_TICK);
}


static void
ngx_http_tokenring_board_round(ngx_http_tokenring_board_t *board)
{
    u_char      key[128];
    ngx_str_t   argv[5];
    ngx_uint_t  i;

    board->failed = 0;
    board->gathering = 0;
    board->nlatest = 0;

    ngx_http_tokenring_text_reset(&board->reason);

    for (i = 0; i < board->nrequests; i++) {
        board->requests[i]->changed = 0;
    }

    for (i = 0; i < board->nengines; i++) {
        ngx_http_tokenring_text_reset(&board->engines[i].heart);
        ngx_http_tokenring_text_reset(&board->engines[i].samples);
    }

    /* the end comes when this is taken off again */

    board->pending++;

    if (board->redis) {
        ngx_http_tokenring_redis_start(board->redis);

        ngx_str_set(&argv[0], "ZREVRANGE");
        argv[1].data = key;
        argv[1].len = ngx_sprintf(key, "%Vengines", &board->redis->prefix)
                      - key;
        ngx_str_set(&argv[2], "0");
        argv[3].data = key + argv[1].len;
        argv[3].len = ngx_sprintf(argv[3].data, "%d",
                                  NGX_HTTP_TOKENRING_BOARD_ENGINES - 1)
                      - argv[3].data;
        ngx_str_set(&argv[4], "WITHSCORES");

        ngx_http_tokenring_board_command(board, ngx_http_tokenring_board_names,
                                         board, 5, argv);
    }

    ngx_http_tokenring_board_next(board);
}


void
ngx_http_tokenring_board_command(ngx_http_tokenring_board_t *board,
    ngx_http_tokenring_reply_pt handler, void *data, ngx_uint_t argc,
    ngx_str_t *argv)
{
    if (ngx_http_tokenring_redis_command(board->redis, handler, data, argc,
                                         argv))
    {
        board->pending++;

    } else {
        board->failed = 1;
    }
}


/* one reply less to wait for; the last one leads on */

void
ngx_http_tokenring_board_next(ngx_http_tokenring_board_t *board)
{
    if (--board->pending) {
        return;
    }

    if (!board->failed && !board->gathering && board->redis) {
        board->gathering = 1;
        board->pending = 1;

        ngx_http_tokenring_board_gather(board);

        if (--board->pending) {
            return;
        }
    }

    ngx_http_tokenring_board_end(board);
}


static void
ngx_http_tokenring_board_end(ngx_http_tokenring_board_t *board)
{
    if (ngx_exiting || ngx_queue_empty(&board->viewers)) {
        return;
    }

    ngx_http_tokenring_text_reset(&board->tick);

    if (ngx_http_tokenring_board_render(board) == NGX_OK) {
        ngx_http_tokenring_viewer_tick(board);
    }
}


static void
ngx_http_tokenring_board_free(ngx_http_tokenring_board_t *board)
{
    ngx_uint_t  i;

    for (i = 0; i < board->nengines; i++) {
        ngx_http_tokenring_text_free(&board->engines[i].heart);
        ngx_http_tokenring_text_free(&board->engines[i].samples);
    }

    for (i = 0; i < board->nrequests; i++) {
        ngx_http_tokenring_text_free(&board->requests[i]->json);
        ngx_free(board->requests[i]);
    }

    ngx_http_tokenring_text_free(&board->tick);
    ngx_http_tokenring_text_free(&board->reason);

    board->nengines = 0;
    board->nrequests = 0;
}


ngx_uint_t
ngx_http_tokenring_board_usable(ngx_http_tokenring_board_t *board,
    redisReply *reply, int type)
{
    if (reply == NULL) {
        board->failed = 1;
        return 0;
    }

    if (reply->type == REDIS_REPLY_ERROR) {
        ngx_http_tokenring_redis_complain(board->redis, reply);

        if (ngx_strncmp(reply->str, "WRONGTYPE", 9) == 0) {
            /* somebody else's key: it goes without */
            return 0;
        }

        board->failed = 1;

        ngx_http_tokenring_text_reset(&board->reason);
        (void) ngx_http_tokenring_json(&board->reason, (u_char *) reply->str,
                                       ngx_min((size_t) reply->len, 200));
        return 0;
    }

    return reply->type == type;
}


ngx_str_t
ngx_http_tokenring_board_key(ngx_http_tokenring_redis_t *redis, u_char *buf,
    const char *kind, ngx_str_t *name)
{
    ngx_str_t  key;

    key.data = buf;
    key.len = ngx_sprintf(buf, "%V%s:{%V}", &redis->prefix, kind, name) - buf;

    return key;
}


ngx_int_t
ngx_http_tokenring_board_fields(ngx_http_tokenring_text_t *t, ngx_str_t *names,
    ngx_uint_t n, redisReply *reply)
{
    ngx_int_t   found;
    ngx_str_t   value;
    ngx_uint_t  i;

    found = 0;

    for (i = 0; i < n && i < reply->elements; i++) {

        if (ngx_http_tokenring_redis_string(reply->element[i], &value)
            != NGX_OK)
        {
            continue;
        }

        value.len = ngx_http_tokenring_cut(value.data, value.len,
                                           NGX_HTTP_TOKENRING_BOARD_VALUE);

        if (ngx_http_tokenring_printf(t, 64, "%s\"%V\":\"",
                                      t->last[-1] == '{' ? "" : ",", &names[i])
            != NGX_OK
            || ngx_http_tokenring_json(t, value.data, value.len) != NGX_OK
            || ngx_http_tokenring_append(t, "\"", 1) != NGX_OK)
        {
            return NGX_ERROR;
        }

        found++;
    }

    return found;
}


/* ---- what viewers get --------------------------------------------------- */

static ngx_int_t
ngx_http_tokenring_board_engine(ngx_http_tokenring_text_t *t,
    ngx_http_tokenring_board_engine_t *engine)
{
    size_t  heart;

    heart = ngx_http_tokenring_text_len(&engine->heart);

    if (ngx_http_tokenring_put(t, "{\"name\":\"") != NGX_OK
        || ngx_http_tokenring_json(t, engine->name.data, engine->name.len)
           != NGX_OK
        || ngx_http_tokenring_printf(t, 64, "\",\"seen\":\"%uL\",\"heart\":",
                                     engine->seen)
           != NGX_OK
        || ngx_http_tokenring_append(t, heart ? engine->heart.pos
                                              : (u_char *) "null",
                                     heart ? heart : 4)
           != NGX_OK
        || ngx_http_tokenring_put(t, ",\"samples\":[") != NGX_OK
        || ngx_http_tokenring_append(t, engine->samples.pos,
               ngx_http_tokenring_text_len(&engine->samples))
           != NGX_OK)
    {
        return NGX_ERROR;
    }

    return ngx_http_tokenring_put(t, "]}");
}


static ngx_int_t
ngx_http_tokenring_board_render(ngx_http_tokenring_board_t *board)
{
    uint64_t                    now;
    ngx_uint_t                  i, up;
    ngx_time_t                 *tp;
    ngx_http_tokenring_text_t  *t;

    t = &board->tick;
    tp = ngx_timeofday();
    now = (uint64_t) tp->sec * 1000 + tp->msec;
    up = board->redis && !board->failed;

    if (ngx_http_tokenring_printf(t, 128,
            "data: {\"type\":\"tick\",\"now\":%uL,\"redis\":\"%s\",",
            now, up ? "up" : board->redis ? "away" : "none")
        != NGX_OK)
    {
        return NGX_ERROR;
    }

    if (!up) {
        if (ngx_http_tokenring_put(t, "\"reason\":\"") != NGX_OK) {
            return NGX_ERROR;
        }

        if (ngx_http_tokenring_text_len(&board->reason)) {
            if (ngx_http_tokenring_append(t, board->reason.pos,
                    ngx_http_tokenring_text_len(&board->reason))
                != NGX_OK)
            {
                return NGX_ERROR;
            }

        } else if (board->redis
                   && ngx_http_tokenring_json(t, board->redis->name.data,
                                              board->redis->name.len)
                      != NGX_OK)
        {
            return NGX_ERROR;
        }

        return ngx_http_tokenring_put(t, "\"}\n\n");
    }

    if (ngx_http_tokenring_put(t, "\"engines\":[") != NGX_OK) {
        return NGX_ERROR;
    }

    for (i = 0; i < board->nengines; i++) {
        if (!board->engines[i].listed) {
            continue;
        }

        if ((t->last[-1] != '['
             && ngx_http_tokenring_append(t, ",", 1) != NGX_OK)
            || ngx_http_tokenring_board_engine(t, &board->engines[i])
               != NGX_OK)
        {
            return NGX_ERROR;
        }
    }

    if (ngx_http_tokenring_put(t, "],\"requests\":") != NGX_OK
        || ngx_http_tokenring_board_requests(board, t, 0) != NGX_OK)
    {
        return NGX_ERROR;
    }

    return ngx_http_tokenring_put(t, "}\n\n");
}
