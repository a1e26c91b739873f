/*
 * The connection to Redis (redis_link.h).
 */
#include "redis_link.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <fcntl.h>
#include <unistd.h>

#include "engine/config/log.h"
#include "engine/config/redis_address.h"

#define BACKOFF_LEAST_US 100000u
#define BACKOFF_MOST_US 2000000u
#define RESOLVE_LOOK_US 5000u
#define PING_US 5000000u
#define MESSAGE_MAX (4u << 20) /* bytes of one, from others */
#define REPLY_MAX (8u << 20)   /* of a reply: an input that is kept has 4 MiB */
#define READS_A_RUN 16

/* ---- up and down -------------------------------------------------------- */

static void
set_state(tr_redis_link_t *l, enum tr_redis_link_state state, uint64_t now_us)
{
    l->state = state;
    l->since_us = now_us;
}

void
tr_redis_link_fail(tr_redis_link_t *l, const char *format, ...)
{
    va_list args;

    if (!l->failed) {
        l->failed = true;
        va_start(args, format);
        vsnprintf(l->reason, sizeof(l->reason), format, args);
        va_end(args);
    }
}

/* hiredis's own words: about the connection, not about what was said on it. */
static void
fail_context(tr_redis_link_t *l)
{
    char why[TR_REDIS_REASON];

    if (tr_redis_tls_why(&l->tls, why, sizeof(why))) {
        tr_redis_link_fail(l, "%s", why);
        return;
    }
    tr_redis_link_fail(l, "%s",
                       l->c->errstr[0] != '\0' ? l->c->errstr
                                               : strerror(errno));
}

/* Waits a random part of the back-off, so that engines do not come all at
 * once. */
static uint64_t
jitter(uint64_t us, uint64_t now_us)
{
    return us / 2 + now_us * 2654435761u % (us / 2 + 1);
}

static void
take_down(tr_redis_link_t *l, uint64_t now_us)
{
    tr_redis_resolve_free(l->resolve);
    l->resolve = NULL;
    if (l->c != NULL) {
        tr_redis_tls_end(&l->tls);
        redisFree(l->c);
        l->c = NULL;
    }
    if (l->client_id != 0) {
        l->former_id = l->client_id;
        l->client_id = 0;
    }
    l->n_pending = l->first_pending = 0;
    l->failed = false;
    set_state(l, TR_LINK_DOWN, now_us);
    l->retry_us = now_us + jitter(l->backoff_us, now_us);
    l->backoff_us *= 2;
    if (l->backoff_us > BACKOFF_MOST_US) {
        l->backoff_us = BACKOFF_MOST_US;
    }
    l->events.on_down(l->events.ctx, l->reason);
}

static void
start_connect(tr_redis_link_t *l, const char *host, int port, uint64_t now_us)
{
    l->c = port != 0 ? redisConnectNonBlock(host, port)
                     : redisConnectUnixNonBlock(host);
    set_state(l, TR_LINK_CONNECTING, now_us);
    if (l->c == NULL) {
        tr_redis_link_fail(l, "no memory");
    } else if (l->c->err != 0) {
        fail_context(l);
    } else {
        fcntl(l->c->fd, F_SETFD, FD_CLOEXEC);
        l->c->reader->maxbuf = 0; /* keep the buffer: replies come often */
    }
}

static void
start(tr_redis_link_t *l, uint64_t now_us)
{
    tr_redis_address_t a;

    tr_redis_parse_address(l->config->redis, &a);
    if (a.port == 0) {
        start_connect(l, a.host, 0, now_us);
        return;
    }
    set_state(l, TR_LINK_RESOLVING, now_us);
    l->resolve = tr_redis_resolve_start(a.host);
    if (l->resolve == NULL) {
        tr_redis_link_fail(l, "no memory");
    }
}

static void
look_at_resolver(tr_redis_link_t *l, uint64_t now_us)
{
    char address[TR_REDIS_ADDRESS];
    tr_redis_address_t a;
    const char *why;
    tr_status_t rc;

    rc = tr_redis_resolve_look(l->resolve, l->turn, address, &why);
    if (rc == TR_AGAIN) {
        l->retry_us = now_us + RESOLVE_LOOK_US;
        return;
    }
    tr_redis_resolve_free(l->resolve);
    l->resolve = NULL;
    l->turn++;
    if (rc != TR_OK) {
        tr_redis_link_fail(l, "%s", why);
        return;
    }
    tr_redis_parse_address(l->config->redis, &a);
    start_connect(l, address, a.port, now_us);
}

static void
hello_command(tr_redis_link_t *l, const tr_redis_command_t *c)
{
    if (redisAppendCommandArgv(l->c, c->n, (const char **) c->argv, c->len)
        != REDIS_OK) {
        tr_redis_link_fail(l, "no memory");
    }
    l->hello_left++;
}

static void
say_hello(tr_redis_link_t *l, uint64_t now_us)
{
    const tr_config_t *config = l->config;
    tr_redis_command_t c;

    set_state(l, TR_LINK_HELLO, now_us);
    l->hello_left = 0;
    l->ending_former = false;
    if (config->redis_password[0] != '\0') {
        tr_redis_begin(&c, "AUTH");
        if (config->redis_user[0] != '\0') {
            tr_redis_text(&c, config->redis_user);
        }
        tr_redis_text(&c, config->redis_password);
        hello_command(l, &c);
    }
    if (config->redis_db != 0) {
        tr_redis_begin(&c, "SELECT");
        tr_redis_format(&c, "%u", config->redis_db);
        hello_command(l, &c);
    }
    tr_redis_begin(&c, "PING"); /* says that somebody is there */
    hello_command(l, &c);
    tr_redis_begin(&c, "INFO");
    tr_redis_text(&c, "server");
    hello_command(l, &c);
    tr_redis_begin(&c, "CLIENT");
    tr_redis_text(&c, "ID");
    hello_command(l, &c);
}

/* Ends the former connection, of which something may still be on its way. */
static void
end_former(tr_redis_link_t *l)
{
    tr_redis_command_t c;

    tr_redis_begin(&c, "CLIENT");
    tr_redis_text(&c, "KILL");
    tr_redis_text(&c, "ID");
    tr_redis_format(&c, "%llu", (unsigned long long) l->former_id);
    l->former_id = 0;
    l->ending_former = true;
    hello_command(l, &c);
}

static void
on_connected(tr_redis_link_t *l, uint64_t now_us)
{
    char why[TR_REDIS_REASON];
    int e = 0;
    socklen_t n = sizeof(e);
    int one = 1;

    if (getsockopt(l->c->fd, SOL_SOCKET, SO_ERROR, &e, &n) != 0 || e != 0) {
        tr_redis_link_fail(l, "%s", strerror(e != 0 ? e : errno));
        return;
    }
    (void) setsockopt(l->c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    if (tr_redis_tls_on(&l->tls)
        && !tr_redis_tls_begin(&l->tls, l->c, why, sizeof(why))) {
        tr_redis_link_fail(l, "%s", why);
        return;
    }
    say_hello(l, now_us);
}

/* ---- replies ------------------------------------------------------------ */

/* INFO says which Redis this is: numbers of clients begin anew in another. */
static void
learn_server(tr_redis_link_t *l, const redisReply *reply)
{
    char server[sizeof(l->server)] = "";
    const char *at;

    if (reply->type == REDIS_REPLY_STRING
        && (at = strstr(reply->str, "run_id:")) != NULL) {
        snprintf(server, sizeof(server), "%.40s", at + strlen("run_id:"));
    }
    if (server[0] == '\0' || strcmp(server, l->server) != 0) {
        l->former_id = 0;
    }
    memcpy(l->server, server, sizeof(server));
}

static void
on_hello_reply(tr_redis_link_t *l, const redisReply *reply, uint64_t now_us)
{
    char word[32];

    /* INFO, CLIENT ID and CLIENT KILL, the last two, may be refused */
    if (reply->type == REDIS_REPLY_ERROR && l->hello_left > 2) {
        tr_redis_error_word(reply, word, sizeof(word));
        tr_redis_link_fail(l, "refused with %s", word);
        return;
    }
    if (l->hello_left == 2) {
        learn_server(l, reply);
    } else if (l->hello_left == 1 && !l->ending_former
               && reply->type == REDIS_REPLY_INTEGER) {
        l->client_id = (uint64_t) reply->integer;
        if (l->former_id != 0) {
            end_former(l);
        }
    }
    if (--l->hello_left == 0) {
        set_state(l, TR_LINK_UP, now_us);
        l->backoff_us = BACKOFF_LEAST_US;
        l->heard_us = now_us;
        l->pinged_us = 0;
        l->events.on_up(l->events.ctx);
    }
}

static void
on_reply(tr_redis_link_t *l, const redisReply *reply, uint64_t now_us)
{
    tr_redis_tag_t tag;

    l->heard_us = now_us;
    l->pinged_us = 0;
    if (l->state == TR_LINK_HELLO) {
        on_hello_reply(l, reply, now_us);
    } else if (l->subscriber) {
        l->events.on_reply(l->events.ctx, NULL, reply);
    } else if (l->n_pending == 0) {
        tr_redis_link_fail(l, "a reply that nobody asked for");
    } else {
        tag = l->pending[l->first_pending].tag;
        l->first_pending = (l->first_pending + 1) % l->max_pending;
        l->n_pending--;
        l->events.on_reply(l->events.ctx, &tag, reply);
    }
}

static void
take_replies(tr_redis_link_t *l, uint64_t now_us)
{
    void *reply;
    size_t most;

    while (!l->failed) {
        if (redisGetReplyFromReader(l->c, &reply) != REDIS_OK) {
            fail_context(l);
            return;
        }
        if (reply == NULL) {
            break;
        }
        on_reply(l, reply, now_us);
        freeReplyObject(reply);
    }
    most = l->subscriber ? MESSAGE_MAX : REPLY_MAX;
    if (!l->failed && l->c->reader->len - l->c->reader->pos > most) {
        tr_redis_link_fail(l, "a reply of more than %zu bytes", most);
    }
}

/* ---- a run -------------------------------------------------------------- */

static void
write_out(tr_redis_link_t *l)
{
    int done = 0;

    tr_redis_tls_clear(&l->tls);
    if (tr_redis_link_backlog(l) != 0
        && redisBufferWrite(l->c, &done) != REDIS_OK) {
        fail_context(l);
    }
}

static void
read_in(tr_redis_link_t *l, uint64_t now_us)
{
    struct pollfd pfd = { .fd = l->c->fd, .events = POLLIN };
    int i;

    /* hiredis reads 16 KiB at a time */
    for (i = 0; i < READS_A_RUN && !l->failed; i++) {
        tr_redis_tls_clear(&l->tls);
        if (redisBufferRead(l->c) != REDIS_OK) {
            fail_context(l);
            return;
        }
        take_replies(l, now_us);
        if (poll(&pfd, 1, 0) <= 0) {
            return;
        }
    }
}

static void
keep_alive(tr_redis_link_t *l, uint64_t now_us)
{
    tr_redis_command_t c;

    if (l->subscriber && l->state == TR_LINK_UP && l->pinged_us == 0
        && now_us - l->heard_us >= PING_US) {
        tr_redis_begin(&c, "PING");
        l->pinged_us = now_us;
        tr_redis_link_send(l, NULL, &c, now_us);
    }
}

/* When the wait for an answer ends; UINT64_MAX: none is waited for. */
static uint64_t
answer_due(const tr_redis_link_t *l)
{
    uint64_t since = 0;

    if (l->state > TR_LINK_DOWN && l->state < TR_LINK_UP) {
        since = l->since_us;
    } else if (l->subscriber) {
        since = l->pinged_us;
    } else if (l->n_pending != 0) {
        since = l->pending[l->first_pending].sent_us;
        if (l->heard_us > since) {
            since = l->heard_us; /* answers come: it is busy, not gone */
        }
    }
    return since != 0 ? since + l->config->redis_timeout_us : UINT64_MAX;
}

int
tr_redis_link_fd(const tr_redis_link_t *l, short *wanted)
{
    if (l->c == NULL) {
        return -1;
    }
    if (l->state == TR_LINK_CONNECTING) {
        *wanted = POLLOUT;
    } else if (tr_redis_link_backlog(l) == 0
               /* a handshake: what waits goes when Redis has answered */
               || (l->state == TR_LINK_HELLO && tr_redis_tls_on(&l->tls))) {
        *wanted = POLLIN;
    } else {
        *wanted = POLLIN | POLLOUT;
    }
    return l->c->fd;
}

uint64_t
tr_redis_link_deadline(const tr_redis_link_t *l)
{
    uint64_t due;

    if (l->state == TR_LINK_DOWN) {
        return l->retry_us;
    }
    due = answer_due(l);
    if (l->state == TR_LINK_RESOLVING && l->retry_us < due) {
        return l->retry_us;
    }
    if (l->subscriber && l->state == TR_LINK_UP && l->pinged_us == 0
        && l->heard_us + PING_US < due) {
        due = l->heard_us + PING_US;
    }
    return due;
}

void
tr_redis_link_run(tr_redis_link_t *l, short got, uint64_t now_us)
{
    if (l->state == TR_LINK_DOWN) {
        if (now_us < l->retry_us) {
            return;
        }
        start(l, now_us);
        got = 0;
    }
    if (!l->failed && l->state == TR_LINK_RESOLVING) {
        look_at_resolver(l, now_us);
        got = 0;
    }
    if (!l->failed && l->state == TR_LINK_CONNECTING && got != 0) {
        on_connected(l, now_us);
        got = 0;
    }
    if (!l->failed && l->state >= TR_LINK_HELLO) {
        if ((got & (POLLIN | POLLHUP | POLLERR)) != 0) {
            read_in(l, now_us);
        }
        keep_alive(l, now_us);
        if (!l->failed) {
            write_out(l);
        }
    }
    if (!l->failed && now_us >= answer_due(l)) {
        tr_redis_link_fail(l, "no answer within %llu ms",
                           (unsigned long long) (l->config->redis_timeout_us
                                                 / 1000));
    }
    if (l->failed) {
        take_down(l, now_us);
    }
}

/* ---- sending ------------------------------------------------------------ */

static bool
push_pending(tr_redis_link_t *l, const tr_redis_tag_t *tag, uint64_t now_us)
{
    uint32_t i, more = l->max_pending != 0 ? 2 * l->max_pending : 256;
    tr_redis_pending_t *grown;

    if (l->n_pending == l->max_pending) {
        grown = malloc(more * sizeof(*grown));
        if (grown == NULL) {
            return false;
        }
        for (i = 0; i < l->n_pending; i++) {
            grown[i] = l->pending[(l->first_pending + i) % l->max_pending];
        }
        free(l->pending);
        l->pending = grown;
        l->first_pending = 0;
        l->max_pending = more;
    }
    i = (l->first_pending + l->n_pending++) % l->max_pending;
    l->pending[i] = (tr_redis_pending_t){ *tag, now_us };
    return true;
}

void
tr_redis_link_send(tr_redis_link_t *l, const tr_redis_tag_t *tag,
                   const tr_redis_command_t *c, uint64_t now_us)
{
    if (l->state != TR_LINK_UP || l->failed) {
        return;
    }
    if ((!l->subscriber && !push_pending(l, tag, now_us))
        || redisAppendCommandArgv(l->c, c->n, (const char **) c->argv, c->len)
               != REDIS_OK) {
        tr_redis_link_fail(l, "no memory");
    }
}

size_t
tr_redis_link_backlog(const tr_redis_link_t *l)
{
    return l->c != NULL ? sdslen(l->c->obuf) : 0;
}

/* ---- making ------------------------------------------------------------- */

tr_status_t
tr_redis_link_init(tr_redis_link_t *l, const tr_config_t *config,
                   bool subscriber, const tr_redis_events_t *events,
                   tr_error_t *err)
{
    memset(l, 0, sizeof(*l));
    l->config = config;
    l->subscriber = subscriber;
    l->events = *events;
    l->backoff_us = BACKOFF_LEAST_US;
    return tr_redis_tls_open(&l->tls, config, err);
}

void
tr_redis_link_free(tr_redis_link_t *l)
{
    tr_redis_resolve_free(l->resolve);
    if (l->c != NULL) {
        redisFree(l->c);
    }
    tr_redis_tls_close(&l->tls);
    free(l->pending);
    memset(l, 0, sizeof(*l));
}
