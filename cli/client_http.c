/*
 * Calls over HTTP (client.h): libcurl's multi interface, event driven, one
 * thread.  A stream counts as good only if all of it was there: status 200 with
 * an event stream, parsable chunks, a finish_reason, [DONE], and an HTTP body
 * that ended as HTTP says it should.
 */
#include <assert.h>
#include <curl/curl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/config/log.h"

#include "client.h"
#include "sse.h"

#define ERROR_BODY_MAX 65536

typedef struct {
    tr_client_t base;
    CURLM *multi;
    struct curl_slist *headers;
    char root[512]; /* the URL without a path */
} http_t;

/* One transfer. */
typedef struct {
    http_t *client;
    tr_call_t *call;
    CURL *curl;
    char *body;
    tr_sse_t sse;
    bool checked, streaming, done;
    char *error; /* a body that is no event stream */
    size_t n_error;
    char curl_error[CURL_ERROR_SIZE];
} transfer_t;

static tr_status_t
out_of_memory(tr_error_t *err)
{
    return tr_error_set(err, TR_ERR_NOMEM, "", "out of memory");
}

/* error.message of an OpenAI error body, else the body's beginning. */
static void
fail_with_body(tr_call_t *call, const char *kind, const char *text, size_t n)
{
    json_t *root = json_loadb(text, n, 0, NULL);
    const char *message = json_string_value(
        json_object_get(json_object_get(root, "error"), "message"));

    if (message != NULL) {
        tr_call_fail(call, kind, "%s", message);
    } else {
        tr_call_fail(call, kind, "%.*s", (int) (n < 300 ? n : 300), text);
    }
    json_decref(root);
}

static void
take_usage(tr_call_t *call, json_t *usage)
{
    json_t *kv = json_object_get(usage, "kv_cache"); /* Tokenring alone */

    call->result.has_usage = true;
    call->result.prompt_tokens = (uint32_t) json_integer_value(
        json_object_get(usage, "prompt_tokens"));
    call->result.completion_tokens = (uint32_t) json_integer_value(
        json_object_get(usage, "completion_tokens"));
    if (json_is_integer(json_object_get(kv, "bytes"))
        && json_is_integer(json_object_get(kv, "fp16_bytes"))) {
        call->result.has_kv = true;
        call->result.kv_bytes = (uint64_t) json_integer_value(
            json_object_get(kv, "bytes"));
        call->result.kv_full_bytes = (uint64_t) json_integer_value(
            json_object_get(kv, "fp16_bytes"));
    }
}

static void
take_choice(transfer_t *t, json_t *choice)
{
    const char *finish = json_string_value(
        json_object_get(choice, "finish_reason"));
    const json_t *delta = json_object_get(choice, "delta");
    json_t *text = json_object_get(delta, "content");
    const json_t *thought = json_object_get(delta, "reasoning_content");

    if (json_integer_value(json_object_get(choice, "index")) != 0) {
        return;
    }
    if (text == NULL) {
        text = json_object_get(choice, "text"); /* /v1/completions */
    }
    if (json_string_length(thought) != 0) {
        t->client->base.events->text(t->call->user, TR_ITEM_REASONING,
                                     json_string_value(thought),
                                     json_string_length(thought), 1);
    }
    if (json_string_length(text) != 0) {
        t->client->base.events->text(t->call->user, TR_ITEM_TEXT,
                                     json_string_value(text),
                                     json_string_length(text), 1);
    }
    if (finish != NULL) {
        snprintf(t->call->result.finish, sizeof(t->call->result.finish), "%s",
                 finish);
    }
}

static void
on_event(void *user, const char *data, size_t len, const char *event)
{
    transfer_t *t = user;
    json_t *root, *choices;
    size_t i;

    (void) event;
    if (t->done) {
        tr_call_fail(t->call, "stream", "an event after [DONE]");
        return;
    }
    if (strcmp(data, "[DONE]") == 0) {
        t->done = true;
        return;
    }
    root = json_loadb(data, len, JSON_ALLOW_NUL, NULL);
    choices = json_object_get(root, "choices");
    if (json_object_get(root, "error") != NULL) {
        fail_with_body(t->call, "stream_error", data, len);
    } else if (!json_is_array(choices)) {
        tr_call_fail(t->call, "stream", "not a completion chunk: %.200s", data);
    }
    for (i = 0; i < json_array_size(choices); i++) {
        take_choice(t, json_array_get(choices, i));
    }
    if (json_is_object(json_object_get(root, "usage"))) {
        take_usage(t->call, json_object_get(root, "usage"));
    }
    json_decref(root);
}

static size_t
on_body(char *data, size_t size, size_t n, void *user)
{
    transfer_t *t = user;

    n *= size;
    if (!t->checked) {
        const char *type = NULL;
        long status = 0;

        t->checked = true;
        curl_easy_getinfo(t->curl, CURLINFO_RESPONSE_CODE, &status);
        curl_easy_getinfo(t->curl, CURLINFO_CONTENT_TYPE, &type);
        t->streaming = status == 200 && type != NULL
                       && strncasecmp(type, "text/event-stream", 17) == 0;
    }
    if (t->streaming) {
        if (tr_sse_push(&t->sse, data, n) != TR_OK) {
            tr_call_fail(t->call, "stream", "an event is too large");
            return 0;
        }
        return n;
    }
    if (t->n_error + n > ERROR_BODY_MAX) {
        return 0;
    }
    t->error = t->error != NULL ? t->error : malloc(ERROR_BODY_MAX);
    if (t->error == NULL) {
        return 0;
    }
    memcpy(t->error + t->n_error, data, n);
    t->n_error += n;
    return n;
}

static void
transfer_free(transfer_t *t)
{
    if (t->curl != NULL) {
        curl_multi_remove_handle(t->client->multi, t->curl);
        curl_easy_cleanup(t->curl);
    }
    tr_sse_free(&t->sse);
    free(t->error);
    free(t->body);
    free(t);
}

/* Judges the finished transfer and ends the call. */
static void
transfer_end(transfer_t *t, CURLcode code)
{
    tr_call_t *call = t->call;
    tr_client_t *base = &t->client->base;
    char kind[32];
    long status = 0;

    curl_easy_getinfo(t->curl, CURLINFO_RESPONSE_CODE, &status);
    if (status != 0 && status != 200) {
        snprintf(kind, sizeof(kind), "http_%ld", status);
        fail_with_body(call, kind, t->error != NULL ? t->error : "",
                       t->n_error);
    } else if (code != CURLE_OK) {
        tr_call_fail(call,
                     code == CURLE_COULDNT_CONNECT      ? "connect"
                     : code == CURLE_OPERATION_TIMEDOUT ? "timeout"
                     : t->streaming                     ? "stream_cut"
                                                        : "transfer",
                     "%s",
                     t->curl_error[0] ? t->curl_error
                                      : curl_easy_strerror(code));
    } else if (!t->streaming) {
        tr_call_fail(call, "stream", "the answer is not an event stream");
    } else if (tr_sse_finish(&t->sse) != TR_OK || !t->done) {
        tr_call_fail(call, "stream", "the stream ended before [DONE]");
    } else if (call->result.finish[0] == '\0') {
        tr_call_fail(call, "stream", "no finish_reason came");
    } else if (call->result.kind[0] == '\0') {
        call->result.ok = true;
    }
    transfer_free(t);
    tr_client_done(base, call);
}

static tr_status_t
http_submit(tr_client_t *base, tr_call_t *call, uint16_t endpoint,
            const char *body, size_t len, tr_error_t *err)
{
    http_t *c = (http_t *) base;
    const tr_endpoint_info_t *info = tr_endpoint_info(endpoint);
    transfer_t *t = calloc(1, sizeof(*t));
    char url[700];

    assert(info != NULL);
    if (t == NULL) {
        return out_of_memory(err);
    }
    t->client = c;
    t->call = call;
    t->body = malloc(len + 1);
    t->curl = curl_easy_init();
    if (t->body == NULL || t->curl == NULL) {
        transfer_free(t);
        return out_of_memory(err);
    }
    memcpy(t->body, body, len);
    tr_sse_init(&t->sse, on_event, t);
    snprintf(url, sizeof(url), "%s/v1/%s", c->root, info->path);
    curl_easy_setopt(t->curl, CURLOPT_URL, url);
    curl_easy_setopt(t->curl, CURLOPT_HTTPHEADER, c->headers);
    curl_easy_setopt(t->curl, CURLOPT_POSTFIELDS, t->body);
    curl_easy_setopt(t->curl, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t) len);
    curl_easy_setopt(t->curl, CURLOPT_WRITEFUNCTION, on_body);
    curl_easy_setopt(t->curl, CURLOPT_WRITEDATA, t);
    curl_easy_setopt(t->curl, CURLOPT_ERRORBUFFER, t->curl_error);
    curl_easy_setopt(t->curl, CURLOPT_PRIVATE, t);
    curl_easy_setopt(t->curl, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(t->curl, CURLOPT_CONNECTTIMEOUT_MS, 10000L);
    if (curl_multi_add_handle(c->multi, t->curl) != CURLM_OK) {
        transfer_free(t);
        return tr_error_set(err, TR_ERR_INTERNAL, "",
                            "libcurl refused a "
                            "transfer");
    }
    call->http = t;
    return TR_OK;
}

static tr_status_t
http_run(tr_client_t *base, int timeout_ms, tr_error_t *err)
{
    http_t *c = (http_t *) base;
    CURLMcode rc;
    CURLMsg *msg;
    int running, left;

    rc = curl_multi_perform(c->multi, &running);
    if (rc == CURLM_OK && base->in_flight == (uint32_t) running
        && timeout_ms != 0) {
        rc = curl_multi_poll(c->multi, NULL, 0,
                             timeout_ms < 0 ? 60000 : timeout_ms, NULL);
        if (rc == CURLM_OK) {
            rc = curl_multi_perform(c->multi, &running);
        }
    }
    while ((msg = curl_multi_info_read(c->multi, &left)) != NULL) {
        char *t = NULL;

        if (msg->msg == CURLMSG_DONE) {
            curl_easy_getinfo(msg->easy_handle, CURLINFO_PRIVATE, &t);
            transfer_end((transfer_t *) (void *) t, msg->data.result);
        }
    }
    if (rc != CURLM_OK) {
        return tr_error_set(err, TR_ERR_IO, "", "libcurl: %s",
                            curl_multi_strerror(rc));
    }
    return TR_OK;
}

static void
http_abort(tr_client_t *base, tr_call_t *call)
{
    transfer_free(call->http);
    snprintf(call->result.finish, sizeof(call->result.finish), "aborted");
    tr_call_fail(call, "aborted", "aborted");
    tr_client_done(base, call);
}

static void
http_close(tr_client_t *base)
{
    http_t *c = (http_t *) base;

    curl_multi_cleanup(c->multi);
    curl_slist_free_all(c->headers);
    free(c);
}

static const tr_client_ops_t http_ops = { http_submit, http_run, http_abort,
                                          http_close };

/* What a small GET brought. */
typedef struct {
    char text[ERROR_BODY_MAX];
    size_t n;
} page_t;

static size_t
on_page(char *data, size_t size, size_t n, void *user)
{
    page_t *page = user;

    n *= size;
    if (page->n + n >= sizeof(page->text)) {
        return 0;
    }
    memcpy(page->text + page->n, data, n);
    page->n += n;
    page->text[page->n] = '\0';
    return n;
}

/* The first model of GET /v1/models; also tells early that nobody is there. */
static tr_status_t
first_model(http_t *c, tr_error_t *err)
{
    page_t *page = calloc(1, sizeof(*page));
    CURL *curl = curl_easy_init();
    char url[700], why[CURL_ERROR_SIZE] = "";
    tr_status_t rc = TR_OK;
    json_t *root = NULL;
    const char *id;

    if (page == NULL || curl == NULL) {
        free(page);
        curl_easy_cleanup(curl);
        return out_of_memory(err);
    }
    snprintf(url, sizeof(url), "%s/v1/models", c->root);
    curl_easy_setopt(curl, CURLOPT_URL, url);
    curl_easy_setopt(curl, CURLOPT_HTTPHEADER, c->headers);
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, on_page);
    curl_easy_setopt(curl, CURLOPT_WRITEDATA, page);
    curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, why);
    curl_easy_setopt(curl, CURLOPT_TIMEOUT_MS, 10000L);
    curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
    if (curl_easy_perform(curl) != CURLE_OK) {
        rc = tr_error_set(err, TR_ERR_IO, "", "%s: %s", url, why);
    } else {
        root = json_loadb(page->text, page->n, 0, NULL);
        id = json_string_value(
            json_object_get(json_array_get(json_object_get(root, "data"), 0),
                            "id"));
        if (id == NULL) {
            rc = tr_error_set(err, TR_ERR_FORMAT, "",
                              "%s lists no model (name "
                              "one with --model-name); it answered: %.200s",
                              url, page->text);
        } else {
            snprintf(c->base.model, sizeof(c->base.model), "%s", id);
        }
    }
    json_decref(root);
    free(page);
    curl_easy_cleanup(curl);
    return rc;
}

tr_status_t
tr_client_open_http(const tr_target_t *target, tr_client_t **out,
                    tr_error_t *err)
{
    http_t *c = calloc(1, sizeof(*c));
    tr_status_t rc = TR_OK;
    size_t n = strlen(target->url);
    unsigned i;

    curl_global_init(CURL_GLOBAL_DEFAULT);
    if (c == NULL || (c->multi = curl_multi_init()) == NULL) {
        free(c);
        return out_of_memory(err);
    }
    c->base.ops = &http_ops;
    c->headers = curl_slist_append(NULL, "Content-Type: application/json");
    /* no 100-continue round trip before a large prompt */
    c->headers = curl_slist_append(c->headers, "Expect:");
    for (i = 0; i < target->headers.n; i++) {
        c->headers = curl_slist_append(c->headers, target->headers.item[i]);
    }
    /* idle connections are kept for as many calls as there ever were */
    curl_multi_setopt(c->multi, CURLMOPT_MAXCONNECTS, 8192L);
    while (n > 0 && target->url[n - 1] == '/') {
        n--;
    }
    if (n >= 3 && strncmp(target->url + n - 3, "/v1", 3) == 0) {
        n -= 3;
    }
    if (n == 0 || n >= sizeof(c->root)) {
        rc = tr_error_set(err, TR_ERR_INVALID, "",
                          "--url \"%.100s\": expected "
                          "something like http://127.0.0.1:8080",
                          target->url);
    }
    snprintf(c->root, sizeof(c->root), "%.*s", (int) n, target->url);
    snprintf(c->base.where, sizeof(c->base.where), "%s", c->root);
    if (rc == TR_OK && target->model != NULL) {
        snprintf(c->base.model, sizeof(c->base.model), "%s", target->model);
    } else if (rc == TR_OK) {
        rc = first_model(c, err);
    }
    if (rc != TR_OK) {
        http_close(&c->base);
        return rc;
    }
    *out = &c->base;
    return TR_OK;
}
