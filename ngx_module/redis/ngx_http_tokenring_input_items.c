/*
 * GET of /v1/responses/ID/input_items: what a response that is kept was asked.
 *
 * Redis has its input as a JSON array with one item a line, and the id of an
 * item that has one ahead of all else, both by the engine that took the request
 * (engine/api/responses_kept.c): so items are counted, ordered and named here
 * without reading JSON.  An item without an id gets one of its place.
 */

#include "ngx_http_tokenring_conf.h"
#include "ngx_http_tokenring_error.h"
#include "ngx_http_tokenring_find.h"
#include "ngx_http_tokenring_request.h"
#include "ngx_http_tokenring_requests.h"
#include "ngx_http_tokenring_send.h"


#define NGX_HTTP_TOKENRING_INPUT_LIMIT  20
#define NGX_HTTP_TOKENRING_INPUT_MOST   100

#define NGX_HTTP_TOKENRING_ID_FIRST     "{\"id\":\""


typedef struct {
    ngx_http_tokenring_find_t     find;
    ngx_http_tokenring_call_t    *call;
    ngx_str_t                     after;
    uint64_t                      limit;
    unsigned                      ascending:1;
} ngx_http_tokenring_input_t;


typedef struct {
    ngx_str_t                     id;      /* as JSON spells it */
    ngx_str_t                     rest;    /* behind it, from a comma on */
} ngx_http_tokenring_input_item_t;


/* the i-th that is listed of n items */
#define ngx_http_tokenring_input_at(in, items, n, i)                          \
    (&(items)[(in)->ascending ? (i) : (n) - 1 - (i)])


static const char *ngx_http_tokenring_input_args(ngx_http_request_t *r,
    ngx_http_tokenring_input_t *in);
static ngx_int_t ngx_http_tokenring_input_after(ngx_http_request_t *r,
    ngx_http_tokenring_input_t *in);
static void ngx_http_tokenring_input_cleanup(void *data);
static void ngx_http_tokenring_input_found(void *data, ngx_int_t rc);
static void ngx_http_tokenring_input_reply(void *data, redisReply *reply);
static ngx_int_t ngx_http_tokenring_input_send(ngx_http_tokenring_input_t *in,
    u_char *p, size_t len);
static ngx_int_t ngx_http_tokenring_input_split(ngx_http_tokenring_input_t *in,
    u_char *p, size_t len, ngx_array_t *items);
static ngx_int_t ngx_http_tokenring_input_item(ngx_http_tokenring_input_t *in,
    u_char *p, u_char *last, ngx_array_t *items);
static ngx_int_t ngx_http_tokenring_input_list(ngx_http_tokenring_input_t *in,
    ngx_array_t *items, ngx_http_tokenring_text_t *t);
static ngx_int_t ngx_http_tokenring_input_from(ngx_http_tokenring_input_t *in,
    ngx_array_t *items, ngx_uint_t *from);
static ngx_int_t ngx_http_tokenring_input_put(ngx_http_tokenring_text_t *t,
    ngx_http_tokenring_input_item_t *item);
static void ngx_http_tokenring_input_end(ngx_http_tokenring_input_t *in,
    ngx_int_t rc);


ngx_int_t
ngx_http_tokenring_response_input(ngx_http_request_t *r, ngx_str_t *name)
{
    ngx_int_t                       rc;
    const char                     *wrong;
    ngx_http_cleanup_t             *cln;
    ngx_http_tokenring_input_t     *in;
    ngx_http_tokenring_loc_conf_t  *tlcf;

    rc = ngx_http_discard_request_body(r);
    if (rc != NGX_OK) {
        return rc;
    }

    tlcf = ngx_http_get_module_loc_conf(r, ngx_http_tokenring_module);

    cln = ngx_http_cleanup_add(r, sizeof(ngx_http_tokenring_input_t));
    if (cln == NULL) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    in = cln->data;

    ngx_memzero(in, sizeof(ngx_http_tokenring_input_t));

    cln->handler = ngx_http_tokenring_input_cleanup;

    in->find.response = 1;
    in->find.request = r;
    in->find.redis = tlcf->redis;
    in->find.handler = ngx_http_tokenring_input_found;
    in->find.data = in;

    wrong = ngx_http_tokenring_input_args(r, in);
    if (wrong) {
        return ngx_http_tokenring_send_error(r, TR_ERR_INVALID, wrong);
    }

    if (ngx_http_tokenring_input_after(r, in) != NGX_OK) {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    if (ngx_http_tokenring_request_id(name, &in->find.id) != NGX_OK) {
        return ngx_http_tokenring_send_no_response(r);
    }

    if (ngx_http_tokenring_find(&in->find) != NGX_OK) {
        return ngx_http_tokenring_send_away(r);
    }

    r->main->count++;

    return NGX_DONE;
}


/* what is wrong with them, or NULL */

static const char *
ngx_http_tokenring_input_args(ngx_http_request_t *r,
    ngx_http_tokenring_input_t *in)
{
    ngx_str_t  arg;

    in->limit = NGX_HTTP_TOKENRING_INPUT_LIMIT;

    if (ngx_http_arg(r, (u_char *) "limit", 5, &arg) == NGX_OK
        && (ngx_http_tokenring_decimal(&arg, &in->limit) != NGX_OK
            || in->limit == 0 || in->limit > NGX_HTTP_TOKENRING_INPUT_MOST))
    {
        return "Invalid 'limit' in the URL. Expected 1 to 100";
    }

    if (ngx_http_arg(r, (u_char *) "order", 5, &arg) == NGX_OK) {
        in->ascending = (arg.len == 3 && ngx_strncmp(arg.data, "asc", 3) == 0);

        if (!in->ascending
            && !(arg.len == 4 && ngx_strncmp(arg.data, "desc", 4) == 0))
        {
            return "Invalid 'order' in the URL. Expected asc or desc";
        }
    }

    return NULL;
}


/* the id as JSON spells it */

static ngx_int_t
ngx_http_tokenring_input_after(ngx_http_request_t *r,
    ngx_http_tokenring_input_t *in)
{
    u_char                     *dst, *src;
    ngx_str_t                   arg;
    ngx_http_tokenring_text_t  *t;

    if (ngx_http_arg(r, (u_char *) "after", 5, &arg) != NGX_OK
        || arg.len == 0)
    {
        return NGX_OK;
    }

    t = ngx_http_tokenring_text_create(r->pool);
    dst = ngx_pnalloc(r->pool, arg.len);

    if (t == NULL || dst == NULL) {
        return NGX_ERROR;
    }

    src = arg.data;
    arg.data = dst;

    ngx_unescape_uri(&dst, &src, arg.len, 0);

    if (ngx_http_tokenring_json(t, arg.data, dst - arg.data) != NGX_OK) {
        return NGX_ERROR;
    }

    in->after.data = t->pos;
    in->after.len = ngx_http_tokenring_text_len(t);

    return NGX_OK;
}


static void
ngx_http_tokenring_input_cleanup(void *data)
{
    ngx_http_tokenring_input_t *in = data;

    ngx_http_tokenring_find_end(&in->find);

    ngx_http_tokenring_redis_forget(in->call);
    in->call = NULL;
}


static void
ngx_http_tokenring_input_found(void *data, ngx_int_t rc)
{
    ngx_http_tokenring_input_t *in = data;

    ngx_str_t            argv[3];
    ngx_http_request_t  *r;

    r = in->find.request;

    if (rc == NGX_DECLINED) {
        ngx_http_tokenring_input_end(in,
                                     ngx_http_tokenring_send_no_response(r));
        return;
    }

    if (rc == NGX_OK) {
        ngx_str_set(&argv[0], "HMGET");
        argv[1] = ngx_http_tokenring_redis_key(in->find.redis, r->pool, "req",
                                               &in->find.id);
        ngx_str_set(&argv[2], "input");

        if (argv[1].data) {
            in->call = ngx_http_tokenring_redis_command(in->find.redis,
                                                ngx_http_tokenring_input_reply,
                                                in, 3, argv);
            if (in->call) {
                return;
            }
        }
    }

    ngx_http_tokenring_input_end(in, ngx_http_tokenring_send_away(r));
}


static void
ngx_http_tokenring_input_reply(void *data, redisReply *reply)
{
    ngx_http_tokenring_input_t *in = data;

    ngx_int_t            rc;
    redisReply          *value;
    ngx_http_request_t  *r;

    r = in->find.request;
    in->call = NULL;

    ngx_http_set_log_request(r->connection->log, r);

    if (reply == NULL || reply->type != REDIS_REPLY_ARRAY
        || reply->elements != 1)
    {
        if (reply) {
            ngx_http_tokenring_redis_complain(in->find.redis, reply);
        }

        ngx_http_tokenring_input_end(in, ngx_http_tokenring_send_away(r));
        return;
    }

    value = reply->element[0];

    if (value->type == REDIS_REPLY_STRING) {
        rc = ngx_http_tokenring_input_send(in, (u_char *) value->str,
                                           value->len);
    } else {
        rc = ngx_http_tokenring_send_no_response(r);
    }

    ngx_http_tokenring_input_end(in, rc);
}


static ngx_int_t
ngx_http_tokenring_input_send(ngx_http_tokenring_input_t *in, u_char *p,
    size_t len)
{
    ngx_int_t                   rc;
    ngx_array_t                 items;
    ngx_http_request_t         *r;
    ngx_http_tokenring_text_t  *t;

    static ngx_str_t  no_store = ngx_string("no-store");

    r = in->find.request;
    t = ngx_http_tokenring_text_create(r->pool);

    if (t == NULL
        || ngx_array_init(&items, r->pool, 16,
                          sizeof(ngx_http_tokenring_input_item_t))
           != NGX_OK)
    {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    rc = ngx_http_tokenring_input_split(in, p, len, &items);

    if (rc == NGX_DECLINED) {
        return ngx_http_tokenring_send_error(r, TR_ERR_INTERNAL,
                   "The input of this response cannot be read");
    }

    if (rc == NGX_OK) {
        rc = ngx_http_tokenring_input_list(in, &items, t);
    }

    if (rc == NGX_DECLINED) {
        return ngx_http_tokenring_send_error(r, TR_ERR_INVALID,
                   "Invalid 'after' in the URL: no item of this response has "
                   "this id");
    }

    if (rc != NGX_OK
        || ngx_http_tokenring_add_header(r, "Cache-Control", &no_store)
           != NGX_OK
        || ngx_http_tokenring_add_request_id(r) != NGX_OK)
    {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    return ngx_http_tokenring_send_body(r, NGX_HTTP_OK, "application/json", t);
}


/* "[", items with ",\n" between them, "]" */

static ngx_int_t
ngx_http_tokenring_input_split(ngx_http_tokenring_input_t *in, u_char *p,
    size_t len, ngx_array_t *items)
{
    u_char     *last, *end;
    ngx_int_t   rc;

    if (len < 2 || p[0] != '[' || p[len - 1] != ']') {
        return NGX_DECLINED;
    }

    last = p + len - 1;
    p++;

    while (p < last) {
        end = ngx_strlchr(p, last, '\n');

        if (end && end[-1] != ',') {
            return NGX_DECLINED;
        }

        rc = ngx_http_tokenring_input_item(in, p, end ? end - 1 : last, items);
        if (rc != NGX_OK) {
            return rc;
        }

        p = end ? end + 1 : last;
    }

    return NGX_OK;
}


static ngx_int_t
ngx_http_tokenring_input_item(ngx_http_tokenring_input_t *in, u_char *p,
    u_char *last, ngx_array_t *items)
{
    u_char                           *q;
    size_t                            n;
    ngx_http_tokenring_input_item_t  *item;

    if (last - p < 2 || *p != '{' || last[-1] != '}') {
        return NGX_DECLINED;
    }

    item = ngx_array_push(items);
    if (item == NULL) {
        return NGX_ERROR;
    }

    n = sizeof(NGX_HTTP_TOKENRING_ID_FIRST) - 1;

    if ((size_t) (last - p) > n
        && ngx_strncmp(p, NGX_HTTP_TOKENRING_ID_FIRST, n) == 0)
    {
        item->id.data = p + n;

        for (q = p + n; q < last && *q != '"'; q++) {
            if (*q == '\\') {
                q++;
            }
        }

        if (q >= last) {
            return NGX_DECLINED;
        }

        item->id.len = q - item->id.data;
        item->rest.data = q + 1;
        item->rest.len = last - (q + 1);

        return NGX_OK;
    }

    n = sizeof("item__") - 1 + in->find.id.len + NGX_INT_T_LEN;

    item->id.data = ngx_pnalloc(in->find.request->pool, n);
    if (item->id.data == NULL) {
        return NGX_ERROR;
    }

    item->id.len = ngx_sprintf(item->id.data, "item_%V_%ui", &in->find.id,
                               items->nelts - 1)
                   - item->id.data;

    /* "{}" and nothing else has no comma to come */

    item->rest.data = p + 1;
    item->rest.len = last - (p + 1);

    return NGX_OK;
}


/* NGX_DECLINED: there is no item to begin behind */

static ngx_int_t
ngx_http_tokenring_input_list(ngx_http_tokenring_input_t *in,
    ngx_array_t *items, ngx_http_tokenring_text_t *t)
{
    ngx_uint_t                        i, from, n;
    ngx_http_tokenring_input_item_t  *all, *item, *first;

    all = items->elts;
    n = items->nelts;
    first = NULL;
    item = NULL;

    if (ngx_http_tokenring_input_from(in, items, &from) != NGX_OK) {
        return NGX_DECLINED;
    }

    if (ngx_http_tokenring_put(t, "{\"object\":\"list\",\"data\":[") != NGX_OK)
    {
        return NGX_ERROR;
    }

    for (i = from; i < n && i - from < in->limit; i++) {
        item = ngx_http_tokenring_input_at(in, all, n, i);

        if ((first && ngx_http_tokenring_put(t, ",") != NGX_OK)
            || ngx_http_tokenring_input_put(t, item) != NGX_OK)
        {
            return NGX_ERROR;
        }

        first = first ? first : item;
    }

    if (first == NULL) {
        return ngx_http_tokenring_put(t, "],\"first_id\":null,"
                   "\"last_id\":null,\"has_more\":false}\n");
    }

    if (ngx_http_tokenring_put(t, "],\"first_id\":\"") != NGX_OK
        || ngx_http_tokenring_append(t, first->id.data, first->id.len)
           != NGX_OK
        || ngx_http_tokenring_put(t, "\",\"last_id\":\"") != NGX_OK
        || ngx_http_tokenring_append(t, item->id.data, item->id.len) != NGX_OK
        || ngx_http_tokenring_put(t, "\",\"has_more\":") != NGX_OK)
    {
        return NGX_ERROR;
    }

    return (i < n) ? ngx_http_tokenring_put(t, "true}\n")
                   : ngx_http_tokenring_put(t, "false}\n");
}


/* NGX_DECLINED: no item has the name behind whose item the list begins */

static ngx_int_t
ngx_http_tokenring_input_from(ngx_http_tokenring_input_t *in,
    ngx_array_t *items, ngx_uint_t *from)
{
    ngx_uint_t                        i, n;
    ngx_http_tokenring_input_item_t  *all, *item;

    all = items->elts;
    n = items->nelts;
    *from = 0;

    if (in->after.len == 0) {
        return NGX_OK;
    }

    for (i = 0; i < n; i++) {
        item = ngx_http_tokenring_input_at(in, all, n, i);

        if (item->id.len == in->after.len
            && ngx_memcmp(item->id.data, in->after.data, item->id.len) == 0)
        {
            *from = i + 1;
            return NGX_OK;
        }
    }

    return NGX_DECLINED;
}


static ngx_int_t
ngx_http_tokenring_input_put(ngx_http_tokenring_text_t *t,
    ngx_http_tokenring_input_item_t *item)
{
    if (ngx_http_tokenring_put(t, NGX_HTTP_TOKENRING_ID_FIRST) != NGX_OK
        || ngx_http_tokenring_append(t, item->id.data, item->id.len) != NGX_OK
        || ngx_http_tokenring_put(t, "\"") != NGX_OK
        || (item->rest.data[0] != ',' && item->rest.data[0] != '}'
            && ngx_http_tokenring_put(t, ",") != NGX_OK))
    {
        return NGX_ERROR;
    }

    return ngx_http_tokenring_append(t, item->rest.data, item->rest.len);
}


static void
ngx_http_tokenring_input_end(ngx_http_tokenring_input_t *in, ngx_int_t rc)
{
    ngx_connection_t  *c;

    c = in->find.request->connection;

    ngx_http_finalize_request(in->find.request, rc);
    ngx_http_run_posted_requests(c);
}
