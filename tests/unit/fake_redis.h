/*
 * A Redis of the tests' own: a thread on a Unix socket that takes commands
 * apart, writes them down, and answers as told.  It stores nothing.
 */
#ifndef FAKE_REDIS_H
#define FAKE_REDIS_H

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define FAKE_ARGS 80
#define FAKE_CLIENTS 8
#define FAKE_LOG 20000

typedef struct {
    unsigned argc, batch, client; /* batch: what was read at once */
    char *argv[FAKE_ARGS];        /* NUL-terminated, and may contain NULs */
    size_t len[FAKE_ARGS];
} fake_command_t;

typedef struct {
    int fd;
    char *buf;
    size_t len, cap;
    bool subscribed;
} fake_client_t;

typedef struct {
    char path[108];
    int listener, wake[2];
    pthread_t thread;
    pthread_mutex_t lock;
    fake_client_t clients[FAKE_CLIENTS];
    fake_command_t *log; /* [FAKE_LOG] */
    unsigned n, batches, connections;
    _Atomic bool stop, deaf, cut; /* answers nothing; hangs up at once */
    const char *_Atomic refusal;  /* error line for what writes, or NULL */
    const char *_Atomic no_auth;  /* the same for AUTH */
    const char *_Atomic stream;   /* reply to XREVRANGE, NULL: empty */
    _Atomic bool forgetful;       /* HSET: each hash is new, all of it */
} fake_redis_t;

/* One line of a reply, at `at`; its end, or NULL. */
static inline const char *
fake_number(const char *at, const char *end, char mark, size_t *out)
{
    const char *line = memchr(at, '\n', (size_t) (end - at));

    if (line == NULL || *at != mark) {
        return NULL;
    }
    *out = strtoul(at + 1, NULL, 10);
    return line + 1;
}

/* Takes one command off the buffer; false: it is not there yet. */
static inline bool
fake_take(fake_client_t *c, fake_command_t *cmd)
{
    const char *at = c->buf, *end = c->buf + c->len;
    size_t n = 0, i;

    at = fake_number(at, end, '*', &n);
    for (i = 0; at != NULL && i < n; i++) {
        at = fake_number(at, end, '$', &cmd->len[i]);
        if (at != NULL && (size_t) (end - at) < cmd->len[i] + 2) {
            at = NULL;
        }
        if (at != NULL) {
            cmd->argv[i] = (char *) (uintptr_t) at;
            at += cmd->len[i] + 2;
        }
    }
    if (at == NULL || n > FAKE_ARGS) {
        return false;
    }
    cmd->argc = (unsigned) n;
    for (i = 0; i < n; i++) {
        char *copy = calloc(1, cmd->len[i] + 1);

        memcpy(copy, cmd->argv[i], cmd->len[i]);
        cmd->argv[i] = copy;
    }
    c->len -= (size_t) (at - c->buf);
    memmove(c->buf, at, c->len);
    return true;
}

static inline bool
fake_is(const fake_command_t *cmd, const char *name)
{
    return cmd->argc != 0 && strcmp(cmd->argv[0], name) == 0;
}

static inline void
fake_say(fake_client_t *c, const char *text)
{
    (void) !write(c->fd, text, strlen(text));
}

static inline void
fake_answer(fake_redis_t *f, fake_client_t *c, const fake_command_t *cmd)
{
    const char *refusal = atomic_load(&f->refusal);
    const char *no_auth = atomic_load(&f->no_auth);
    const char *stream = atomic_load(&f->stream);
    char text[256];

    if (fake_is(cmd, "AUTH")) {
        fake_say(c, no_auth != NULL ? no_auth : "+OK\r\n");
    } else if (fake_is(cmd, "SELECT")) {
        fake_say(c, "+OK\r\n");
    } else if (fake_is(cmd, "PING")) {
        fake_say(c, c->subscribed ? "*2\r\n$4\r\npong\r\n$0\r\n\r\n"
                                  : "+PONG\r\n");
    } else if (fake_is(cmd, "SUBSCRIBE")) {
        c->subscribed = true;
        snprintf(text, sizeof(text),
                 "*3\r\n$9\r\nsubscribe\r\n$%zu\r\n%s\r\n:1\r\n", cmd->len[1],
                 cmd->argv[1]);
        fake_say(c, text);
    } else if (fake_is(cmd, "XREVRANGE")) {
        fake_say(c, stream != NULL ? stream : "*0\r\n");
    } else if (refusal != NULL) {
        fake_say(c, refusal);
    } else if (fake_is(cmd, "XADD")) {
        fake_say(c, "$3\r\n1-0\r\n");
    } else if (fake_is(cmd, "HSET") && atomic_load(&f->forgetful)) {
        snprintf(text, sizeof(text), ":%u\r\n", (cmd->argc - 2) / 2);
        fake_say(c, text);
    } else {
        fake_say(c, ":1\r\n");
    }
}

static inline void
fake_drop(fake_client_t *c)
{
    close(c->fd);
    free(c->buf);
    memset(c, 0, sizeof(*c));
    c->fd = -1;
}

static inline void
fake_read(fake_redis_t *f, fake_client_t *c)
{
    fake_command_t cmd;
    ssize_t n;

    if (c->cap - c->len < 65536) {
        c->cap = 2 * c->cap + 65536;
        c->buf = realloc(c->buf, c->cap);
    }
    n = read(c->fd, c->buf + c->len, c->cap - c->len);
    if (n <= 0 || atomic_load(&f->cut)) {
        fake_drop(c);
        return;
    }
    c->len += (size_t) n;
    f->batches++;
    while (!atomic_load(&f->deaf) && fake_take(c, &cmd)) {
        cmd.batch = f->batches;
        cmd.client = (unsigned) (c - f->clients);
        fake_answer(f, c, &cmd);
        if (f->n < FAKE_LOG) {
            f->log[f->n++] = cmd;
        }
    }
}

static inline void
fake_accept(fake_redis_t *f)
{
    int fd = accept(f->listener, NULL, NULL);
    unsigned i;

    for (i = 0; i < FAKE_CLIENTS && fd != -1; i++) {
        if (f->clients[i].fd == -1) {
            f->clients[i].fd = fd;
            f->connections++;
            return;
        }
    }
    if (fd != -1) {
        close(fd);
    }
}

static inline void *
fake_run(void *arg)
{
    fake_redis_t *f = arg;
    struct pollfd fds[FAKE_CLIENTS + 2];
    unsigned i;

    while (!atomic_load(&f->stop)) {
        fds[0] = (struct pollfd){ .fd = f->wake[0], .events = POLLIN };
        fds[1] = (struct pollfd){ .fd = f->listener, .events = POLLIN };
        for (i = 0; i < FAKE_CLIENTS; i++) {
            fds[i + 2] = (struct pollfd){ .fd = f->clients[i].fd,
                                          .events = POLLIN };
        }
        poll(fds, FAKE_CLIENTS + 2, 1000);
        pthread_mutex_lock(&f->lock);
        if (fds[1].revents != 0) {
            fake_accept(f);
        }
        for (i = 0; i < FAKE_CLIENTS; i++) {
            if (fds[i + 2].revents != 0 && fds[i + 2].fd == f->clients[i].fd) {
                fake_read(f, &f->clients[i]);
            }
        }
        pthread_mutex_unlock(&f->lock);
    }
    return NULL;
}

static inline void
fake_start(fake_redis_t *f)
{
    struct sockaddr_un addr = { .sun_family = AF_UNIX };
    static unsigned number;
    unsigned i;

    memset(f, 0, sizeof(*f));
    f->log = calloc(FAKE_LOG, sizeof(*f->log));
    for (i = 0; i < FAKE_CLIENTS; i++) {
        f->clients[i].fd = -1;
    }
    snprintf(f->path, sizeof(f->path), "/tmp/tr_redis_%ld_%u.sock",
             (long) getpid(), number++);
    memcpy(addr.sun_path, f->path, sizeof(addr.sun_path));
    f->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(f->listener, (struct sockaddr *) &addr, sizeof(addr)),
                     0);
    assert_int_equal(listen(f->listener, 16), 0);
    assert_int_equal(pipe(f->wake), 0);
    pthread_mutex_init(&f->lock, NULL);
    assert_int_equal(pthread_create(&f->thread, NULL, fake_run, f), 0);
}

static inline void
fake_stop(fake_redis_t *f)
{
    unsigned i, k;

    atomic_store(&f->stop, true);
    (void) !write(f->wake[1], "x", 1);
    pthread_join(f->thread, NULL);
    for (i = 0; i < FAKE_CLIENTS; i++) {
        if (f->clients[i].fd != -1) {
            fake_drop(&f->clients[i]);
        }
    }
    for (i = 0; i < f->n; i++) {
        for (k = 0; k < f->log[i].argc; k++) {
            free(f->log[i].argv[k]);
        }
    }
    free(f->log);
    close(f->listener);
    close(f->wake[0]);
    close(f->wake[1]);
    pthread_mutex_destroy(&f->lock);
    unlink(f->path);
}

/* A message on the channel, to whoever subscribed. */
static inline void
fake_publish(fake_redis_t *f, const void *text, size_t len)
{
    char head[128];
    unsigned i;

    pthread_mutex_lock(&f->lock);
    for (i = 0; i < FAKE_CLIENTS; i++) {
        if (f->clients[i].fd != -1 && f->clients[i].subscribed) {
            snprintf(head, sizeof(head),
                     "*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$%zu\r\n", len);
            fake_say(&f->clients[i], head);
            (void) !write(f->clients[i].fd, text, len);
            fake_say(&f->clients[i], "\r\n");
        }
    }
    pthread_mutex_unlock(&f->lock);
}

/* The value of a field of an HSET, NULL: it has none. */
static inline const char *
fake_field(const fake_command_t *cmd, const char *name)
{
    unsigned i;

    for (i = 2; i + 1 < cmd->argc; i += 2) {
        if (strcmp(cmd->argv[i], name) == 0) {
            return cmd->argv[i + 1];
        }
    }
    return NULL;
}

/* Waits until a command from the `from`th on is `name key`, and, if field is not
 * NULL, has field = value; its index.  Fails after a while. */
static inline unsigned
fake_wait(fake_redis_t *f, unsigned from, const char *name, const char *key,
          const char *field, const char *value)
{
    unsigned tries, i;

    for (tries = 0; tries < 3000; tries++) {
        pthread_mutex_lock(&f->lock);
        for (i = from; i < f->n; i++) {
            const fake_command_t *cmd = &f->log[i];
            const char *has = field != NULL ? fake_field(cmd, field) : "";

            if (fake_is(cmd, name) && cmd->argc > 1
                && strcmp(cmd->argv[1], key) == 0 && has != NULL
                && (field == NULL || strcmp(has, value) == 0)) {
                pthread_mutex_unlock(&f->lock);
                return i;
            }
        }
        pthread_mutex_unlock(&f->lock);
        usleep(10000);
    }
    fail_msg("no %s %s %s=%s came", name, key, field != NULL ? field : "",
             value != NULL ? value : "");
    return 0;
}

/* How many such commands came. */
static inline unsigned
fake_count(fake_redis_t *f, const char *name, const char *key)
{
    unsigned i, n = 0;

    pthread_mutex_lock(&f->lock);
    for (i = 0; i < f->n; i++) {
        n += fake_is(&f->log[i], name)
             && (key == NULL || strcmp(f->log[i].argv[1], key) == 0);
    }
    pthread_mutex_unlock(&f->lock);
    return n;
}

static inline unsigned
fake_read_locked(fake_redis_t *f, const unsigned *what)
{
    unsigned n;

    pthread_mutex_lock(&f->lock);
    n = *what;
    pthread_mutex_unlock(&f->lock);
    return n;
}

/* How many commands, reads and connections came until now. */
static inline unsigned
fake_now(fake_redis_t *f)
{
    return fake_read_locked(f, &f->n);
}

static inline unsigned
fake_batches(fake_redis_t *f)
{
    return fake_read_locked(f, &f->batches);
}

static inline unsigned
fake_connections(fake_redis_t *f)
{
    return fake_read_locked(f, &f->connections);
}

#endif
