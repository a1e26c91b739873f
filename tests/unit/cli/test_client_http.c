/*
 * What the HTTP client calls a good stream: each way in which an answer can be
 * bad has its own kind of error, and the text that came is delivered.
 *
 * A thread serves canned responses, one connection each, on a loopback port.
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "cli/client.h"

#define OK_HEAD                                              \
    "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n" \
    "Connection: close\r\n"
#define SSE OK_HEAD "\r\n"
#define CHUNK(delta, finish)                            \
    "data: {\"choices\":[{\"index\":0,\"delta\":" delta \
    ",\"finish_reason\":" finish "}]}\n\n"
#define ROLE CHUNK("{\"role\":\"assistant\",\"content\":\"\"}", "null")
#define TEXT(t) CHUNK("{\"content\":\"" t "\"}", "null")
#define STOP CHUNK("{}", "\"stop\"")
#define DONE "data: [DONE]\n\n"

static const struct {
    const char *response;
    const char *kind; /* "": a good stream */
    const char *text, *finish;
} cases[] = {
    { SSE ROLE TEXT("a") TEXT("b") STOP DONE, "", "ab", "stop" },
    { SSE ": ping\n\n" ROLE TEXT("a") STOP DONE, "", "a", "stop" },
    { SSE CHUNK("{\"content\":\"a\"}", "\"length\"") DONE, "", "a", "length" },
    { SSE TEXT("a") STOP "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":7,"
                         "\"completion_tokens\":3}}\n\n" DONE,
      "", "a", "stop" },
    { SSE "data: {\"choices\":[{\"index\":0,\"text\":\"t\","
          "\"finish_reason\":\"stop\"}]}\n\n" DONE,
      "", "t", "stop" },
    { SSE TEXT("a\\u0000b") STOP DONE, "", "a", "stop" }, /* its length below */
    { SSE TEXT("a") STOP, "stream", "a", "stop" },
    { SSE TEXT("a") DONE, "stream", "a", "" },
    { SSE DONE, "stream", "", "" },
    { SSE, "stream", "", "" },
    { SSE TEXT("a") STOP DONE TEXT("b"), "stream", "a", "stop" },
    { SSE TEXT("a") STOP "data: [DONE]", "stream", "a", "stop" },
    { SSE "data: {\"choices\":\n\n" DONE, "stream", "", "" },
    { SSE "data: 17\n\n" DONE, "stream", "", "" },
    { SSE TEXT("a") "data: "
                    "{\"error\":{\"message\":\"gone\",\"type\":\"server_"
                    "error\"}}\n\n",
      "stream_error", "a", "" },
    { OK_HEAD "Transfer-Encoding: chunked\r\n\r\n5\r\ndata:\r\n", "stream_cut",
      "", "" },
    { OK_HEAD "Content-Length: 5000\r\n\r\n" TEXT("a") STOP DONE, "stream_cut",
      "a", "stop" },
    { "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
      "Connection: close\r\n\r\n{}",
      "stream", "", "" },
    { "HTTP/1.1 429 Too Many\r\nContent-Type: application/json\r\n"
      "Connection: close\r\n\r\n{\"error\":{\"message\":\"slow down\"}}",
      "http_429", "", "" },
    { "HTTP/1.1 503 Gone\r\nConnection: close\r\n\r\n<html>", "http_503", "",
      "" },
    { "", "transfer", "", "" },
    { "nonsense\r\n\r\n", "transfer", "", "" },
};

#define N_CASES (sizeof(cases) / sizeof(cases[0]))

typedef struct {
    char text[256];
    size_t len;
    int dones;
    tr_call_result_t result;
} seen_t;

static void
on_text(void *user, unsigned kind, const char *text, size_t len,
        uint32_t tokens)
{
    seen_t *seen = user;

    (void) kind;
    (void) tokens;
    assert_true(seen->len + len < sizeof(seen->text));
    memcpy(seen->text + seen->len, text, len);
    seen->len += len;
}

static void
on_done(void *user, const tr_call_result_t *result)
{
    seen_t *seen = user;

    seen->dones++;
    seen->result = *result;
}

static const tr_call_events_t events = { on_text, on_done };

/* Reads a request's head and the body that it announces. */
static void
read_request(int fd)
{
    char buf[8192];
    size_t n = 0, want = sizeof(buf) - 1;

    while (n < want) {
        ssize_t k = recv(fd, buf + n, sizeof(buf) - 1 - n, 0);
        char *end, *length;

        if (k <= 0) {
            return;
        }
        n += (size_t) k;
        buf[n] = '\0';
        end = strstr(buf, "\r\n\r\n");
        length = strcasestr(buf, "\r\ncontent-length:");
        if (end != NULL && length != NULL) {
            want = (size_t) (end + 4 - buf) + strtoul(length + 17, NULL, 10);
        }
    }
}

static void *
serve(void *arg)
{
    int listener = *(int *) arg;
    size_t i;

    for (i = 0; i < N_CASES; i++) {
        int fd = accept(listener, NULL, NULL);

        read_request(fd);
        send(fd, cases[i].response, strlen(cases[i].response), MSG_NOSIGNAL);
        close(fd);
    }
    return NULL;
}

static int
listen_anywhere(uint16_t *port)
{
    struct sockaddr_in sin = { .sin_family = AF_INET };
    socklen_t len = sizeof(sin);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    sin.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    assert_int_equal(bind(fd, (struct sockaddr *) &sin, sizeof(sin)), 0);
    assert_int_equal(listen(fd, 16), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *) &sin, &len), 0);
    *port = ntohs(sin.sin_port);
    return fd;
}

static tr_client_t *
open_client(char *url, size_t size, uint16_t port)
{
    tr_target_t target = { .url = url, .model = "m" };
    tr_client_t *client;
    tr_error_t err;

    snprintf(url, size, "http://127.0.0.1:%u/v1/", port);
    assert_int_equal(tr_client_open(&target, &events, &client, &err), TR_OK);
    return client;
}

/* One call to its end. */
static void
call(tr_client_t *client, seen_t *seen)
{
    json_t *body = json_pack("{s:[]}", "messages");
    tr_error_t err;

    memset(seen, 0, sizeof(*seen));
    assert_int_equal(tr_client_submit(client, TR_ENDPOINT_CHAT, body, seen,
                                      NULL, &err),
                     TR_OK);
    while (client->in_flight != 0) {
        assert_int_equal(tr_client_run(client, 1000, &err), TR_OK);
    }
    assert_int_equal(seen->dones, 1);
    json_decref(body);
}

static void
test_every_bad_stream_is_noticed(void **state)
{
    char url[64];
    tr_client_t *client;
    pthread_t thread;
    uint16_t port;
    seen_t seen;
    size_t i;
    int fd = listen_anywhere(&port);

    (void) state;
    assert_int_equal(pthread_create(&thread, NULL, serve, &fd), 0);
    client = open_client(url, sizeof(url), port);
    for (i = 0; i < N_CASES; i++) {
        call(client, &seen);
        if (strcmp(seen.result.kind, cases[i].kind) != 0
            || seen.result.ok != (cases[i].kind[0] == '\0')) {
            fail_msg("case %zu: kind \"%s\" (%s), expected \"%s\"", i,
                     seen.result.kind, seen.result.message, cases[i].kind);
        }
        assert_string_equal(seen.text, cases[i].text);
        assert_string_equal(seen.result.finish, cases[i].finish);
        if (strstr(cases[i].response, "\\u0000") != NULL) {
            assert_int_equal(seen.len, 3);
        }
        if (strstr(cases[i].response, "slow down") != NULL) {
            assert_string_equal(seen.result.message, "slow down");
        }
        if (strstr(cases[i].response, "\"usage\"") != NULL) {
            assert_true(seen.result.has_usage);
            assert_int_equal(seen.result.prompt_tokens, 7);
            assert_int_equal(seen.result.completion_tokens, 3);
        }
    }
    tr_client_close(client);
    pthread_join(thread, NULL);
    close(fd);
}

static void
test_nobody_there_is_a_connect_error(void **state)
{
    char url[64];
    tr_client_t *client;
    uint16_t port;
    seen_t seen;

    (void) state;
    close(listen_anywhere(&port));
    client = open_client(url, sizeof(url), port);
    call(client, &seen);
    assert_string_equal(seen.result.kind, "connect");
    tr_client_close(client);
}

static void
test_an_aborted_call_ends_once(void **state)
{
    char url[64];
    tr_client_t *client;
    json_t *body = json_pack("{s:[]}", "messages");
    tr_call_t *handle;
    tr_error_t err;
    uint16_t port;
    seen_t seen = { 0 };
    int fd = listen_anywhere(&port); /* accepts nothing */

    (void) state;
    client = open_client(url, sizeof(url), port);
    assert_int_equal(tr_client_submit(client, TR_ENDPOINT_CHAT, body, &seen,
                                      &handle, &err),
                     TR_OK);
    assert_int_equal(tr_client_run(client, 0, &err), TR_OK);
    tr_client_abort(client, handle);
    assert_int_equal(seen.dones, 1);
    assert_string_equal(seen.result.finish, "aborted");
    assert_int_equal(client->in_flight, 0);
    tr_client_close(client);
    json_decref(body);
    close(fd);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_bad_stream_is_noticed),
        cmocka_unit_test(test_nobody_there_is_a_connect_error),
        cmocka_unit_test(test_an_aborted_call_ends_once),
    };

    return cmocka_run_group_tests_name("client_http", tests, NULL, NULL);
}
