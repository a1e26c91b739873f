/*
 * /v1/models, answered from the engines' status pages: what the engines behind
 * the location serve.  With tokenring_models, the names of the block as well,
 * of all these what the client may use, and engines that are down for now, too.
 */

#include "ngx_http_tokenring_conf.h"
#include "ngx_http_tokenring_error.h"
#include "ngx_http_tokenring_models.h"
#include "ngx_http_tokenring_request.h"
#include "ngx_http_tokenring_send.h"
#include "ngx_http_tokenring_status.h"


/* a list that is being made */

typedef struct {
    ngx_http_request_t             *request;
    ngx_http_tokenring_group_t     *group;
    ngx_http_tokenring_models_t    *models;  /* NULL: none */
    ngx_http_tokenring_text_t      *text;
    ngx_str_t                      *id;      /* this one alone; NULL: all */
    ngx_array_t                     names;   /* ngx_str_t, that are in it */
} ngx_http_tokenring_list_t;


static ngx_uint_t ngx_http_tokenring_list_known(
    ngx_http_tokenring_list_t *list);
static ngx_int_t ngx_http_tokenring_list_engines(
    ngx_http_tokenring_list_t *list);
static ngx_int_t ngx_http_tokenring_list_names(
    ngx_http_tokenring_list_t *list);
static ngx_int_t ngx_http_tokenring_list_add(ngx_http_tokenring_list_t *list,
    ngx_str_t *name, ngx_http_tokenring_conn_t *conn, ngx_str_t *root);
static ngx_uint_t ngx_http_tokenring_list_has(ngx_http_tokenring_list_t *list,
    ngx_str_t *name);
static ngx_http_tokenring_conn_t *ngx_http_tokenring_list_conn(
    ngx_http_tokenring_list_t *list, ngx_str_t *model);
static ngx_int_t ngx_http_tokenring_list_model(ngx_http_tokenring_text_t *t,
    ngx_str_t *name, ngx_http_tokenring_conn_t *conn, ngx_str_t *root);
static ngx_int_t ngx_http_tokenring_policies(ngx_http_tokenring_text_t *t,
    u_char *policies);


ngx_int_t
ngx_http_tokenring_models(ngx_http_request_t *r, ngx_str_t *id)
{
    ngx_int_t                  rc;
    ngx_http_tokenring_list_t  list;

    list.request = r;
    list.id = id;
    list.text = ngx_http_tokenring_text_create(r->pool);

    if (list.text == NULL
        || ngx_array_init(&list.names, r->pool, 8, sizeof(ngx_str_t))
           != NGX_OK)
    {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    rc = ngx_http_tokenring_where(r, &list.group, &list.models);

    if (rc == NGX_DECLINED) {
        return ngx_http_tokenring_send_error(r, TR_ERR_NOT_FOUND,
                   "Not found: no engine of this server is behind this URL");
    }

    if (rc == NGX_ERROR
        || (id == NULL
            && ngx_http_tokenring_put(list.text,
                                      "{\"object\":\"list\",\"data\":[")
               != NGX_OK)
        || ngx_http_tokenring_list_engines(&list) != NGX_OK
        || ngx_http_tokenring_list_names(&list) != NGX_OK)
    {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    if (list.names.nelts == 0 && !ngx_http_tokenring_list_known(&list)) {
        return ngx_http_tokenring_send_error(r, TR_ERR_NO_ENGINE,
                                             "No engine is available");
    }

    if (id && list.names.nelts == 0) {
        return ngx_http_tokenring_send_error(r, TR_ERR_MODEL_NOT_FOUND,
                                         "There is no model with this name");
    }

    if ((id == NULL && ngx_http_tokenring_put(list.text, "]}") != NGX_OK)
        || ngx_http_tokenring_add_request_id(r) != NGX_OK)
    {
        return NGX_HTTP_INTERNAL_SERVER_ERROR;
    }

    return ngx_http_tokenring_send_body(r, NGX_HTTP_OK, "application/json",
                                        list.text);
}


/* has an engine said which model it has? */

static ngx_uint_t
ngx_http_tokenring_list_known(ngx_http_tokenring_list_t *list)
{
    ngx_uint_t                   i;
    ngx_http_tokenring_conn_t  **conns;

    conns = list->group->conns.elts;

    for (i = 0; i < list->group->conns.nelts; i++) {
        if (list->models || conns[i]->ondemand
                         ? conns[i]->card.model[0] != '\0'
                         : conns[i]->state == NGX_HTTP_TOKENRING_READY)
        {
            return 1;
        }
    }

    return 0;
}


/* what engines call their models */

static ngx_int_t
ngx_http_tokenring_list_engines(ngx_http_tokenring_list_t *list)
{
    uint32_t                     k;
    ngx_str_t                    name, root;
    ngx_uint_t                   i;
    ngx_http_tokenring_conn_t  **conns;

    conns = list->group->conns.elts;

    for (i = 0; i < list->group->conns.nelts; i++) {

        if (conns[i]->state != NGX_HTTP_TOKENRING_READY
            && list->models == NULL && !conns[i]->ondemand)
        {
            continue;
        }

        root.data = (u_char *) conns[i]->card.model;
        root.len = ngx_strlen(conns[i]->card.model);

        for (k = 0; ; k++) {
            name.data = (u_char *) tr_status_model_name(&conns[i]->card, k);
            if (name.data == NULL) {
                break;
            }

            name.len = ngx_strlen(name.data);

            if (ngx_http_tokenring_list_add(list, &name, conns[i],
                                            k ? &root : NULL)
                != NGX_OK)
            {
                return NGX_ERROR;
            }
        }
    }

    return NGX_OK;
}


/* what the configuration calls them */

static ngx_int_t
ngx_http_tokenring_list_names(ngx_http_tokenring_list_t *list)
{
    ngx_str_t                    *name, *model;
    ngx_uint_t                    i, n;
    ngx_http_tokenring_name_t    *alias;
    ngx_http_tokenring_split_t   *split;
    ngx_http_tokenring_models_t  *models;

    models = list->models;

    if (models == NULL) {
        return NGX_OK;
    }

    alias = models->aliases.elts;
    split = models->splits.elts;
    n = models->aliases.nelts;

    for (i = 0; i < n + models->splits.nelts; i++) {
        name = (i < n) ? &alias[i].name : &split[i - n].name;
        model = ngx_http_tokenring_model_behind(models, name);

        if (ngx_http_tokenring_list_add(list, name,
                                     ngx_http_tokenring_list_conn(list, model),
                                     model)
            != NGX_OK)
        {
            return NGX_ERROR;
        }
    }

    return NGX_OK;
}


/* unless it is there already, or is not for this client; conn may be NULL */

static ngx_int_t
ngx_http_tokenring_list_add(ngx_http_tokenring_list_t *list, ngx_str_t *name,
    ngx_http_tokenring_conn_t *conn, ngx_str_t *root)
{
    ngx_str_t  *one;

    if ((list->id
         && (list->id->len != name->len
             || ngx_memcmp(list->id->data, name->data, name->len) != 0))
        || ngx_http_tokenring_list_has(list, name)
        || !ngx_http_tokenring_allowed(list->request, list->models, name))
    {
        return NGX_OK;
    }

    if (list->names.nelts && ngx_http_tokenring_put(list->text, ",") != NGX_OK)
    {
        return NGX_ERROR;
    }

    one = ngx_array_push(&list->names);
    if (one == NULL) {
        return NGX_ERROR;
    }

    *one = *name;

    return ngx_http_tokenring_list_model(list->text, name, conn, root);
}


static ngx_uint_t
ngx_http_tokenring_list_has(ngx_http_tokenring_list_t *list, ngx_str_t *name)
{
    ngx_str_t   *one;
    ngx_uint_t   i;

    one = list->names.elts;

    for (i = 0; i < list->names.nelts; i++) {
        if (one[i].len == name->len
            && ngx_memcmp(one[i].data, name->data, name->len) == 0)
        {
            return 1;
        }
    }

    return 0;
}


/* one that serves it, connected if there is such; NULL: nobody has been seen */

static ngx_http_tokenring_conn_t *
ngx_http_tokenring_list_conn(ngx_http_tokenring_list_t *list,
    ngx_str_t *model)
{
    ngx_uint_t                   i;
    ngx_http_tokenring_conn_t  **conns, *found;

    conns = list->group->conns.elts;
    found = NULL;

    for (i = 0; i < list->group->conns.nelts; i++) {

        if (conns[i]->card.model[0] == '\0'
            || !ngx_http_tokenring_conn_may_serve(conns[i], model))
        {
            continue;
        }

        found = conns[i];

        if (found->state == NGX_HTTP_TOKENRING_READY) {
            break;
        }
    }

    return found;
}


/* root: the model that a name of the configuration leads to, or NULL */

static ngx_int_t
ngx_http_tokenring_list_model(ngx_http_tokenring_text_t *t, ngx_str_t *name,
    ngx_http_tokenring_conn_t *conn, ngx_str_t *root)
{
    if (ngx_http_tokenring_put(t, "{\"id\":\"") != NGX_OK
        || ngx_http_tokenring_json(t, name->data, name->len) != NGX_OK
        || ngx_http_tokenring_printf(t, 96, "\",\"object\":\"model\","
               "\"created\":%L,\"owned_by\":\"tokenring\"",
               conn ? conn->card.created : 0)
           != NGX_OK)
    {
        return NGX_ERROR;
    }

    if (root
        && (ngx_http_tokenring_put(t, ",\"root\":\"") != NGX_OK
            || ngx_http_tokenring_json(t, root->data, root->len) != NGX_OK
            || ngx_http_tokenring_put(t, "\"") != NGX_OK))
    {
        return NGX_ERROR;
    }

    if (conn && conn->card.max_model_len
        && (ngx_http_tokenring_printf(t, 64,
                ",\"max_model_len\":%uD,\"kv_policies\":[",
                conn->card.max_model_len)
            != NGX_OK
            || ngx_http_tokenring_policies(t, (u_char *) conn->card.kv_policies)
               != NGX_OK
            || ngx_http_tokenring_put(t, "]") != NGX_OK))
    {
        return NGX_ERROR;
    }

    return ngx_http_tokenring_put(t, "}");
}


/* what a request's kv_policy may be, separated by blanks: the default first */

static ngx_int_t
ngx_http_tokenring_policies(ngx_http_tokenring_text_t *t, u_char *policies)
{
    u_char  *end;

    while (*policies) {
        end = (u_char *) ngx_strchr(policies, ' ');

        if (end == NULL) {
            end = policies + ngx_strlen(policies);
        }

        if ((t->last[-1] != '['
             && ngx_http_tokenring_append(t, ",", 1) != NGX_OK)
            || ngx_http_tokenring_append(t, "\"", 1) != NGX_OK
            || ngx_http_tokenring_json(t, policies, end - policies) != NGX_OK
            || ngx_http_tokenring_append(t, "\"", 1) != NGX_OK)
        {
            return NGX_ERROR;
        }

        policies = *end ? end + 1 : end;
    }

    return NGX_OK;
}
