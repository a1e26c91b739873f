/*
 * The other side of the comparison: a lean HTTP/1.1 upstream for stock NGINX.
 *
 * One thread, one epoll.  Every request becomes a stream that gets the same SSE
 * events, in the same batches, as tokenring-engine's `backend null` makes our
 * module send: a role chunk, one content chunk per token, a finish chunk and
 * [DONE], as HTTP chunks on a keep-alive connection.  All streams get their
 * token at the same tick, or, with --stagger, each at its own phase of the
 * interval.  It does nothing that a real upstream could leave out: one send()
 * per event, nothing allocated per token.
 *
 *   upstream --port P [--rate R] [--stagger] [--trace FILE] [--model NAME]
 */
#include <errno.h>
#include <getopt.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>

#include "engine/executor/null_trace.h"

#define MAX_CONN 4096
#define MAX_REQUEST 65536
#define MAX_EVENT 1024

typedef struct conn {
    int fd;
    char *in; /* request bytes so far */
    size_t n_in;
    char *out; /* what the socket did not take */
    size_t n_out, at_out;
    uint32_t left;            /* tokens still to send, 0: no stream */
    uint64_t due;             /* --stagger: next token, ns */
    struct conn *prev, *next; /* list of streams, by due time */
    char head[320];           /* the constant part of this stream's chunks */
} conn_t;

static struct {
    int epoll, listener, timer;
    double rate;
    int stagger;
    const char *model;
    tr_trace_t *trace;
    uint64_t interval, next_tick, served, n_streams;
    conn_t streams; /* sentinel */
} g = { .rate = 50, .model = "pocket" };

static int is_timer, is_listener; /* addresses used as epoll tags */

static void
die(const char *what)
{
    perror(what);
    exit(1);
}

static void
stream_unlink(conn_t *c)
{
    if (c->next != NULL) {
        c->prev->next = c->next;
        c->next->prev = c->prev;
        c->next = c->prev = NULL;
        g.n_streams--;
    }
    c->left = 0;
}

static void
conn_close(conn_t *c)
{
    stream_unlink(c);
    close(c->fd);
    free(c->in);
    free(c->out);
    free(c);
}

static void
conn_watch(conn_t *c, uint32_t events)
{
    struct epoll_event ev = { .events = events, .data.ptr = c };

    if (epoll_ctl(g.epoll, EPOLL_CTL_MOD, c->fd, &ev) != 0) {
        die("epoll_ctl");
    }
}

/* Sends, or keeps what the socket does not take.  0, or -1: closed. */
static int
conn_send(conn_t *c, const char *data, size_t n)
{
    ssize_t sent = 0;

    if (c->n_out == 0) {
        sent = send(c->fd, data, n, MSG_NOSIGNAL);
        if (sent == (ssize_t) n) {
            return 0;
        }
        if (sent < 0 && errno != EAGAIN) {
            conn_close(c);
            return -1;
        }
        sent = sent < 0 ? 0 : sent;
        c->at_out = 0;
        conn_watch(c, EPOLLIN | EPOLLOUT);
    }
    c->out = realloc(c->out, c->at_out + c->n_out + n);
    if (c->out == NULL) {
        die("realloc");
    }
    memcpy(c->out + c->at_out + c->n_out, data + sent, n - (size_t) sent);
    c->n_out += n - (size_t) sent;
    return 0;
}

static void
conn_flush(conn_t *c)
{
    ssize_t sent = send(c->fd, c->out + c->at_out, c->n_out, MSG_NOSIGNAL);

    if (sent < 0) {
        if (errno != EAGAIN) {
            conn_close(c);
        }
        return;
    }
    c->at_out += (size_t) sent;
    c->n_out -= (size_t) sent;
    if (c->n_out == 0) {
        conn_watch(c, EPOLLIN);
    }
}

/* Appends one SSE event as one HTTP chunk. */
static size_t
put_chunk(char *out, const char *head, const char *tail)
{
    size_t a = strlen(head), b = strlen(tail);
    size_t n = (size_t) sprintf(out, "%zx\r\n", a + b + 8);

    memcpy(out + n, "data: ", 6);
    memcpy(out + n + 6, head, a);
    memcpy(out + n + 6 + a, tail, b);
    memcpy(out + n + 6 + a + b, "\n\n\r\n", 4);
    return n + a + b + 10;
}

/* One token for one stream; the stream may end here. */
static void
stream_token(conn_t *c)
{
    char out[3 * MAX_EVENT];
    size_t n;

    n = put_chunk(out, c->head,
                  "{\"content\":\"t\"},\"logprobs\":null,"
                  "\"finish_reason\":null}]}");
    if (--c->left == 0) {
        n += put_chunk(out + n, c->head,
                       "{},\"logprobs\":null,\"finish_reason\":\"length\"}]}");
        n += put_chunk(out + n, "[DONE]", "");
        memcpy(out + n, "0\r\n\r\n", 5);
        n += 5;
        stream_unlink(c);
    }
    conn_send(c, out, n);
}

static void
timer_arm(void)
{
    struct itimerspec when = { { 0, 0 }, { 0, 0 } };
    uint64_t at = 0;

    if (g.streams.next != &g.streams) {
        at = g.stagger ? g.streams.next->due : g.next_tick;
    }
    when.it_value.tv_sec = (time_t) (at / 1000000000ull);
    when.it_value.tv_nsec = (long) (at % 1000000000ull);
    timerfd_settime(g.timer, TFD_TIMER_ABSTIME, &when, NULL);
}

/* Keeps the list in order of due times; new ones go near their phase. */
static void
stream_insert(conn_t *c)
{
    conn_t *at = g.streams.prev;

    while (at != &g.streams && at->due > c->due) {
        at = at->prev;
    }
    c->prev = at;
    c->next = at->next;
    at->next->prev = c;
    at->next = c;
    g.n_streams++;
}

static void
tick_batch(uint64_t now)
{
    conn_t *c, *next;

    /* first: the last token may be read before we return here */
    if (g.trace != NULL && g.n_streams != 0) {
        tr_trace_add(g.trace, now, g.n_streams);
    }
    for (c = g.streams.next; c != &g.streams; c = next) {
        next = c->next;
        stream_token(c);
    }
    while (g.next_tick <= now) {
        g.next_tick += g.interval;
    }
}

static void
tick_staggered(uint64_t now)
{
    conn_t *c;

    while ((c = g.streams.next) != &g.streams && c->due <= now) {
        c->prev->next = c->next;
        c->next->prev = c->prev;
        c->next = c->prev = NULL;
        g.n_streams--;
        c->due += g.interval;
        stream_insert(c);
        if (g.trace != NULL) {
            tr_trace_add(g.trace, now, 1);
        }
        stream_token(c);
    }
}

static void
on_timer(void)
{
    uint64_t expired, now = tr_trace_now();

    if (read(g.timer, &expired, sizeof(expired)) != sizeof(expired)) {
        return;
    }
    if (g.stagger) {
        tick_staggered(now);
    } else {
        tick_batch(now);
    }
    timer_arm();
}

/* Starts the answer to one complete request. */
static void
stream_start(conn_t *c, const char *body)
{
    static const char response[] =
        "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
        "Cache-Control: no-cache\r\nTransfer-Encoding: chunked\r\n\r\n";
    char out[sizeof(response) + MAX_EVENT];
    const char *p = strstr(body, "\"max_tokens\":");
    size_t n = sizeof(response) - 1;
    uint64_t now = tr_trace_now();

    g.served++;
    c->left = p != NULL ? (uint32_t) strtoul(p + 13, NULL, 10) : 16;
    c->left = c->left != 0 ? c->left : 1;
    snprintf(c->head, sizeof(c->head),
             "{\"id\":\"chatcmpl-%032llx\","
             "\"object\":\"chat.completion.chunk\",\"created\":%lld,"
             "\"model\":\"%.64s\",\"choices\":[{\"index\":0,\"delta\":",
             (unsigned long long) g.served * 0x9e3779b97f4a7c15ull,
             (long long) time(NULL), g.model);
    memcpy(out, response, n);
    n += put_chunk(out + n, c->head,
                   "{\"role\":\"assistant\",\"content\":\"\"},"
                   "\"logprobs\":null,\"finish_reason\":null}]}");
    /* phases spread evenly whatever the number of streams (golden ratio) */
    c->due = now
             + (uint64_t) ((double) g.interval
                           * ((double) (g.served * 40503u % 65536u) / 65536.0));
    if (conn_send(c, out, n) != 0) {
        return;
    }
    if (g.streams.next == &g.streams) {
        g.next_tick = now + g.interval;
    }
    stream_insert(c);
    timer_arm();
}

/* 1: a whole request is there, body at *body; 0: not yet; -1: nonsense. */
static int
request_complete(conn_t *c, char **body)
{
    char *end, *length;
    size_t want;

    c->in[c->n_in] = '\0';
    end = strstr(c->in, "\r\n\r\n");
    if (end == NULL) {
        return c->n_in >= MAX_REQUEST ? -1 : 0;
    }
    length = strcasestr(c->in, "\r\ncontent-length:");
    want = length != NULL && length < end ? strtoul(length + 17, NULL, 10) : 0;
    *body = end + 4;
    if (want > MAX_REQUEST - (size_t) (*body - c->in)) {
        return -1;
    }
    return c->n_in - (size_t) (*body - c->in) >= want;
}

static void
on_readable(conn_t *c)
{
    char *body = NULL;
    ssize_t n = recv(c->fd, c->in + c->n_in, MAX_REQUEST - c->n_in, 0);
    int complete;

    if (n <= 0) {
        if (n == 0 || errno != EAGAIN) {
            conn_close(c);
        }
        return;
    }
    c->n_in += (size_t) n;
    complete = request_complete(c, &body);
    if (complete < 0 || (complete && c->left != 0)) {
        conn_close(c);
        return;
    }
    if (complete) {
        c->n_in = 0;
        stream_start(c, body);
    }
}

static void
on_accept(void)
{
    struct epoll_event ev = { .events = EPOLLIN };
    conn_t *c;
    int fd, on = 1;

    while ((fd = accept4(g.listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC))
           != -1) {
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
        c = calloc(1, sizeof(*c));
        if (c == NULL || (c->in = malloc(MAX_REQUEST + 1)) == NULL) {
            die("malloc");
        }
        c->fd = fd;
        ev.data.ptr = c;
        if (epoll_ctl(g.epoll, EPOLL_CTL_ADD, fd, &ev) != 0) {
            die("epoll_ctl");
        }
    }
}

static void
options(int argc, char **argv, int *port)
{
    static const struct option longs[] = {
        { "port", required_argument, NULL, 'p' },
        { "rate", required_argument, NULL, 'r' },
        { "stagger", no_argument, NULL, 's' },
        { "trace", required_argument, NULL, 't' },
        { "model", required_argument, NULL, 'm' },
        { NULL, 0, NULL, 0 }
    };
    int c;

    while ((c = getopt_long(argc, argv, "", longs, NULL)) != -1) {
        switch (c) {
        case 'p':
            *port = atoi(optarg);
            break;
        case 'r':
            g.rate = atof(optarg);
            break;
        case 's':
            g.stagger = 1;
            break;
        case 't':
            g.trace = tr_trace_open(optarg, 1);
            if (g.trace == NULL) {
                die(optarg);
            }
            break;
        case 'm':
            g.model = optarg;
            break;
        default:
            exit(2);
        }
    }
    if (*port <= 0 || *port > 65535 || !(g.rate > 0)) {
        fprintf(stderr, "upstream: --port 1..65535 and --rate > 0 needed\n");
        exit(2);
    }
    g.interval = (uint64_t) (1e9 / g.rate);
}

static void
setup(int port)
{
    struct sockaddr_in sin = { .sin_family = AF_INET };
    struct epoll_event ev = { .events = EPOLLIN };
    int on = 1;

    sin.sin_port = htons((uint16_t) port);
    sin.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    g.listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    setsockopt(g.listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (bind(g.listener, (struct sockaddr *) &sin, sizeof(sin)) != 0
        || listen(g.listener, MAX_CONN) != 0) {
        die("upstream: bind");
    }
    g.epoll = epoll_create1(EPOLL_CLOEXEC);
    g.timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    g.streams.next = g.streams.prev = &g.streams;
    ev.data.ptr = &is_listener;
    epoll_ctl(g.epoll, EPOLL_CTL_ADD, g.listener, &ev);
    ev.data.ptr = &is_timer;
    epoll_ctl(g.epoll, EPOLL_CTL_ADD, g.timer, &ev);
}

int
main(int argc, char **argv)
{
    struct epoll_event ev[256];
    int port = 0, i, n;

    options(argc, argv, &port);
    signal(SIGPIPE, SIG_IGN);
    setup(port);
    for (;;) {
        int timer = 0;

        n = epoll_wait(g.epoll, ev, 256, -1);
        for (i = 0; i < n; i++) {
            if (ev[i].data.ptr == &is_timer) {
                timer = 1;
            } else if (ev[i].data.ptr == &is_listener) {
                on_accept();
            } else if (ev[i].events & EPOLLOUT) {
                conn_flush(ev[i].data.ptr);
            } else {
                on_readable(ev[i].data.ptr);
            }
        }
        /* last: a token may close a connection that had an event above */
        if (timer) {
            on_timer();
        }
    }
}
