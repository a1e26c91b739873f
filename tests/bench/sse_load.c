/*
 * A lean load generator for streamed answers: N connections, one thread, epoll.
 *
 * A token is one ASCII character of content, as both emitters have it: a gateway
 * may put tokens that are there together into one event.
 *
 * It opens N connections, sends one streaming chat request on each, and notes
 * when every token's event arrives, with as little CPU as reading allows.  When
 * all streams have their first `--warmup` tokens a window begins; it ends
 * before the first stream does.  CPU time of the watched processes is read at
 * both borders (/proc/PID/task/TID/schedstat, nanoseconds), so that both sides
 * of a comparison are charged for a known number of tokens.  With --trace
 * (engine/executor/null_trace.h) every arrival is paired with its emission.  Nothing
 * else may use the gateway meanwhile.
 *
 * The answer on standard output is one JSON object.  Exit status 1: a stream
 * did not end as it must (200, every token, finish_reason, [DONE], last chunk).
 *
 * With --stamps the kernel says when each piece came to the socket, which on a
 * loopback is within the gateway's write to it: what the reader itself does has
 * no part in that.  A read that finds two pieces knows the later one's time.
 *
 * With --lazy MS it looks only so often and sleeps in between, so that a write to
 * a socket wakes nobody, as if the clients were on another machine: for CPU
 * time.  Without it, it waits on the sockets: for latency.
 *
 *   sse_load --port P --streams N --tokens T [--warmup W] [--lazy MS]
 *            [--stamps] [--trace FILE] [--model NAME] [--cpu NAME=PID]...
 */
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <getopt.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "engine/executor/null_trace.h"

/* these need <time.h>, which null_trace.h includes */
#include <linux/errqueue.h>
#include <linux/net_tstamp.h>

#define MAX_WATCH 8
#define MAX_THREADS 64
#define LINE_MAX_BYTES 4096

/* Where a stream stands in the HTTP response. */
enum state { HEAD, CHUNK_SIZE, CHUNK_DATA, CHUNK_END, LAST_END, ENDED };

typedef struct {
    int fd;
    enum state state;
    uint32_t chunk_left;
    uint32_t tokens;
    int ok, finished, done; /* status 200; finish_reason; [DONE] */
    uint32_t n_frame, n_line;
    char frame[512];           /* a line of HTTP: status, header, chunk size */
    char line[LINE_MAX_BYTES]; /* a line of the event stream */
} stream_t;

typedef struct {
    int tid;
    char name[20];
    uint64_t begin, end; /* ns on CPU */
} thread_t;

typedef struct {
    char name[32];
    int pid;
    unsigned n;
    thread_t thread[MAX_THREADS];
} watch_t;

static struct {
    int port;
    unsigned n_streams, warmup, lazy_ms;
    int stamps;
    uint32_t tokens;
    const char *model, *trace_path;
    tr_trace_t *trace;
    uint64_t trace_begin; /* records of earlier runs */
    int epoll;
    stream_t *streams;
    unsigned warm, open;
    uint64_t *arrival; /* ns, in order of arrival */
    uint64_t *written; /* the same by the kernel's stamps */
    uint64_t n_arrival;
    uint64_t window_begin, window_end; /* ns */
    uint64_t first_token, last_token;  /* n_arrival at the borders */
    uint64_t begin_bytes, bytes, window_bytes;
    uint64_t begin_events, events, window_events;
    uint64_t idle, self; /* ns, in the window: of all CPUs, and our own */
    uint64_t now, stamp;
    unsigned n_watch;
    watch_t watch[MAX_WATCH];
    char error[256];
} g = { .warmup = 5, .model = "pocket" };

static void
die(const char *what)
{
    fprintf(stderr, "sse_load: %s: %s\n", what, strerror(errno));
    exit(2);
}

/* ---- CPU time ----------------------------------------------------------- */

static uint64_t
thread_ns(int pid, int tid)
{
    char path[64];
    unsigned long long ns = 0;
    FILE *f;

    snprintf(path, sizeof(path), "/proc/%d/task/%d/schedstat", pid, tid);
    f = fopen(path, "r");
    if (f != NULL) {
        if (fscanf(f, "%llu", &ns) != 1) {
            ns = 0;
        }
        fclose(f);
    }
    return ns;
}

static void
watch_begin(watch_t *w)
{
    char path[64];
    struct dirent *d;
    DIR *dir;

    snprintf(path, sizeof(path), "/proc/%d/task", w->pid);
    dir = opendir(path);
    if (dir == NULL) {
        die(path);
    }
    while ((d = readdir(dir)) != NULL && w->n < MAX_THREADS) {
        thread_t *t = &w->thread[w->n];
        FILE *f;

        if (!isdigit((unsigned char) d->d_name[0])) {
            continue;
        }
        t->tid = atoi(d->d_name);
        snprintf(path, sizeof(path), "/proc/%d/task/%d/comm", w->pid, t->tid);
        f = fopen(path, "r");
        if (f != NULL && fgets(t->name, sizeof(t->name), f) != NULL) {
            t->name[strcspn(t->name, "\n\"\\")] = '\0';
        }
        if (f != NULL) {
            fclose(f);
        }
        t->begin = thread_ns(w->pid, t->tid);
        w->n++;
    }
    closedir(dir);
}

/* Nanoseconds for which CPUs had nothing to do, since the machine started. */
static uint64_t
machine_idle(void)
{
    unsigned long long idle = 0, wait = 0;
    FILE *f = fopen("/proc/stat", "r");

    if (f != NULL) {
        if (fscanf(f, "cpu %*u %*u %*u %llu %llu", &idle, &wait) != 2) {
            idle = wait = 0;
        }
        fclose(f);
    }
    return (uint64_t) (idle + wait) * 1000000000ull
           / (uint64_t) sysconf(_SC_CLK_TCK);
}

static uint64_t
self_ns(void)
{
    struct timespec ts;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ts);
    return (uint64_t) ts.tv_sec * 1000000000ull + (uint64_t) ts.tv_nsec;
}

static void
window_begin(void)
{
    unsigned i;

    for (i = 0; i < g.n_watch; i++) {
        watch_begin(&g.watch[i]);
    }
    g.idle = machine_idle();
    g.self = self_ns();
    g.window_begin = tr_trace_now();
    g.first_token = g.n_arrival;
    g.begin_bytes = g.bytes;
    g.begin_events = g.events;
}

static void
window_end(void)
{
    unsigned i, k;

    g.window_end = tr_trace_now();
    for (i = 0; i < g.n_watch; i++) {
        watch_t *w = &g.watch[i];

        for (k = 0; k < w->n; k++) {
            w->thread[k].end = thread_ns(w->pid, w->thread[k].tid);
        }
    }
    g.idle = machine_idle() - g.idle;
    g.self = self_ns() - g.self;
    g.last_token = g.n_arrival;
    g.window_bytes = g.bytes - g.begin_bytes;
    g.window_events = g.events - g.begin_events;
}

/* ---- the stream --------------------------------------------------------- */

static void
stream_fail(stream_t *s, const char *what)
{
    if (g.error[0] == '\0') {
        snprintf(g.error, sizeof(g.error), "stream %ld after %u tokens: %.100s",
                 (long) (s - g.streams), s->tokens, what);
    }
}

static void
stream_token(stream_t *s)
{
    s->tokens++;
    if (g.n_arrival < (uint64_t) g.n_streams * g.tokens) {
        g.arrival[g.n_arrival] = g.now;
        g.written[g.n_arrival] = g.stamp;
    }
    g.n_arrival++;
    if (s->tokens == g.warmup && ++g.warm == g.n_streams) {
        window_begin();
    }
    /* One step before the end: finishing is not part of the window. */
    if (s->tokens == g.tokens - 1 && g.window_begin != 0 && g.window_end == 0) {
        window_end();
    }
}

/* One line of the event stream, without its newline. */
static void
stream_line(stream_t *s)
{
    static const char content[] = "\"content\":\"";
    const char *p;

    s->line[s->n_line] = '\0';
    if (s->n_line == 0 || s->line[0] == ':'
        || strncmp(s->line, "id: ", 4) == 0) {
        return;
    }
    if (strncmp(s->line, "data: ", 6) != 0) {
        stream_fail(s, "a line without data:");
        return;
    }
    if (strcmp(s->line + 6, "[DONE]") == 0) {
        s->done = s->finished;
        return;
    }
    p = strstr(s->line, content);
    p = p != NULL ? p + sizeof(content) - 1 : "";
    if (*p != '\0' && *p != '"') {
        g.events++;
        for (; *p != '\0' && *p != '"'; p++) {
            p += *p == '\\' && p[1] != '\0'; /* an escape is one character */
            stream_token(s);
        }
    } else if (strstr(s->line, "\"finish_reason\":\"") != NULL) {
        s->finished++;
    } else if (strstr(s->line, "\"error\"") != NULL) {
        stream_fail(s, s->line);
    }
}

static void
stream_data(stream_t *s, const char *at, size_t n)
{
    while (n != 0) {
        const char *nl = memchr(at, '\n', n);
        size_t k = nl != NULL ? (size_t) (nl - at) : n;

        if (s->n_line + k >= LINE_MAX_BYTES) {
            stream_fail(s, "an event of more than 4 KiB");
            s->n_line = 0;
            return;
        }
        memcpy(s->line + s->n_line, at, k);
        s->n_line += (uint32_t) k;
        if (nl != NULL) {
            stream_line(s);
            s->n_line = 0;
            k++;
        }
        at += k;
        n -= k;
    }
}

/* A line of the framing, without its CRLF. */
static void
stream_frame(stream_t *s)
{
    s->n_frame -= s->n_frame != 0 && s->frame[s->n_frame - 1] == '\r';
    s->frame[s->n_frame] = '\0';
    switch (s->state) {
    case HEAD:
        if (strncmp(s->frame, "HTTP/1.1 ", 9) == 0) {
            s->ok = strncmp(s->frame + 9, "200", 3) == 0;
            if (!s->ok) {
                stream_fail(s, s->frame);
            }
        }
        s->state = s->n_frame == 0 ? CHUNK_SIZE : HEAD;
        break;
    case CHUNK_SIZE:
        s->chunk_left = (uint32_t) strtoul(s->frame, NULL, 16);
        s->state = s->chunk_left != 0 ? CHUNK_DATA : LAST_END;
        break;
    case CHUNK_END:
        s->state = CHUNK_SIZE;
        break;
    case LAST_END:
        s->state = ENDED;
        break;
    default:
        break;
    }
    s->n_frame = 0;
}

static void
stream_bytes(stream_t *s, const char *at, size_t n)
{
    while (n != 0) {
        const char *nl;
        size_t k;

        if (s->state == CHUNK_DATA) {
            k = n < s->chunk_left ? n : s->chunk_left;
            stream_data(s, at, k);
            s->chunk_left -= (uint32_t) k;
            s->state = s->chunk_left == 0 ? CHUNK_END : CHUNK_DATA;
        } else {
            nl = memchr(at, '\n', n);
            k = nl != NULL ? (size_t) (nl - at) : n;
            if (s->n_frame + k >= sizeof(s->frame)) {
                stream_fail(s, "a header of more than 512 bytes");
                return;
            }
            memcpy(s->frame + s->n_frame, at, k);
            s->n_frame += (uint32_t) k;
            if (nl != NULL) {
                stream_frame(s);
                k++;
            }
        }
        at += k;
        n -= k;
    }
}

/* ---- connections -------------------------------------------------------- */

static void
stream_end(stream_t *s)
{
    if (!s->ok || s->tokens != g.tokens || s->finished != 1 || !s->done
        || s->state != ENDED) {
        stream_fail(s, "did not end well");
    }
    close(s->fd);
    s->fd = -1;
    g.open--;
}

static void
stream_open(stream_t *s)
{
    struct sockaddr_in sin = { .sin_family = AF_INET };
    struct epoll_event ev = { .events = EPOLLIN, .data.ptr = s };
    char request[1024], body[512];
    int stamps = SOF_TIMESTAMPING_RX_SOFTWARE | SOF_TIMESTAMPING_SOFTWARE;
    int on = 1, n;

    sin.sin_port = htons((uint16_t) g.port);
    sin.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    s->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (s->fd == -1
        || connect(s->fd, (struct sockaddr *) &sin, sizeof(sin)) != 0) {
        die("connect");
    }
    setsockopt(s->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    if (g.stamps
        && setsockopt(s->fd, SOL_SOCKET, SO_TIMESTAMPING, &stamps,
                      sizeof(stamps))
               != 0) {
        die("SO_TIMESTAMPING");
    }
    n = snprintf(body, sizeof(body),
                 "{\"model\":\"%.64s\",\"messages\":[{\"role\":\"user\","
                 "\"content\":\"Tell me a story.\"}],\"stream\":true,"
                 "\"ignore_eos\":true,\"max_tokens\":%u}",
                 g.model, g.tokens);
    n = snprintf(request, sizeof(request),
                 "POST /v1/chat/completions HTTP/1.1\r\nHost: bench\r\n"
                 "Content-Type: application/json\r\n"
                 "Content-Length: %d\r\n\r\n%s",
                 n, body);
    if (send(s->fd, request, (size_t) n, MSG_NOSIGNAL) != n) {
        die("send");
    }
    if (g.lazy_ms == 0 && epoll_ctl(g.epoll, EPOLL_CTL_ADD, s->fd, &ev) != 0) {
        die("epoll_ctl");
    }
    g.open++;
}

/* The time that came with a piece, on the clock of the trace. */
static uint64_t
stamp_of(struct msghdr *message)
{
    struct cmsghdr *c;
    struct timespec real;

    for (c = CMSG_FIRSTHDR(message); c != NULL; c = CMSG_NXTHDR(message, c)) {
        struct scm_timestamping stamps;
        uint64_t at, ago;

        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SO_TIMESTAMPING) {
            continue;
        }
        memcpy(&stamps, CMSG_DATA(c), sizeof(stamps));
        at = (uint64_t) stamps.ts[0].tv_sec * 1000000000ull
             + (uint64_t) stamps.ts[0].tv_nsec;
        clock_gettime(CLOCK_REALTIME, &real);
        ago = (uint64_t) real.tv_sec * 1000000000ull + (uint64_t) real.tv_nsec
              - at;
        return tr_trace_now() - ago;
    }
    return 0;
}

static void
stream_read(stream_t *s)
{
    static char buf[65536];
    static _Alignas(struct cmsghdr) char control[256];
    struct iovec piece = { buf, sizeof(buf) };
    struct msghdr message = { .msg_iov = &piece, .msg_iovlen = 1 };
    ssize_t n;

    if (g.stamps) {
        message.msg_control = control;
        message.msg_controllen = sizeof(control);
        n = recvmsg(s->fd, &message, MSG_DONTWAIT);
    } else {
        n = recv(s->fd, buf, sizeof(buf), MSG_DONTWAIT);
    }
    if (n < 0 && errno == EAGAIN) {
        return;
    }
    g.now = tr_trace_now();
    g.stamp = n > 0 && g.stamps ? stamp_of(&message) : 0;
    if (n <= 0) {
        stream_fail(s, "connection closed");
        stream_end(s);
        return;
    }
    g.bytes += (uint64_t) n;
    stream_bytes(s, buf, (size_t) n);
    if (s->state == ENDED || g.error[0] != '\0') {
        stream_end(s);
    }
}

/* Reads what has come since the last look, after a while. */
static void
look(void)
{
    struct timespec pause = { 0, g.lazy_ms * 1000000l };
    unsigned k;

    nanosleep(&pause, NULL);
    for (k = 0; k < g.n_streams; k++) {
        if (g.streams[k].fd != -1) {
            stream_read(&g.streams[k]);
        }
    }
}

static void
wait_for_pieces(void)
{
    struct epoll_event ev[256];
    int i, n = epoll_wait(g.epoll, ev, 256, 1000);

    for (i = 0; i < n; i++) {
        stream_read(ev[i].data.ptr);
    }
}

static void
run(void)
{
    unsigned k;

    g.epoll = epoll_create1(EPOLL_CLOEXEC);
    for (k = 0; k < g.n_streams; k++) {
        stream_open(&g.streams[k]);
    }
    g.now = tr_trace_now();
    while (g.open != 0) {
        if (g.lazy_ms != 0) {
            look();
        } else {
            wait_for_pieces();
        }
        if (tr_trace_now() - g.now > 20000000000ull) {
            stream_fail(&g.streams[0], "nothing came for 20 s");
            return;
        }
    }
}

/* ---- the answer --------------------------------------------------------- */

static int
compare(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *) a, y = *(const uint64_t *) b;

    return x < y ? -1 : x > y;
}

static void
print_percentiles(const char *name, uint64_t *ns, uint64_t n)
{
    if (n == 0) {
        return;
    }
    qsort(ns, n, sizeof(*ns), compare);
    printf(",\n \"%s\": {\"p50\": %.1f, \"p90\": %.1f, \"p99\": %.1f, "
           "\"max\": %.1f, \"n\": %llu}",
           name, (double) ns[n / 2] / 1e3, (double) ns[n * 9 / 10] / 1e3,
           (double) ns[n * 99 / 100] / 1e3, (double) ns[n - 1] / 1e3,
           (unsigned long long) n);
}

/* Pairs arrivals with emissions, both in their order; within the window. */
static void
print_latency(void)
{
    tr_trace_t *t = g.trace;
    uint64_t *each, *last, *write, k, n, at = 0, n_each = 0, n_last = 0;

    n = atomic_load_explicit(&t->n, memory_order_acquire);
    each = calloc(g.n_arrival + 1, sizeof(*each));
    last = calloc(n + 1, sizeof(*last));
    write = calloc(n + 1, sizeof(*write));
    if (each == NULL || last == NULL || write == NULL) {
        die("calloc");
    }
    for (k = g.trace_begin; k < n; k++) {
        uint64_t i, tokens = t->record[k].tokens, latest = 0;

        if (tokens > g.n_arrival - at) {
            stream_fail(&g.streams[0], "more tokens in the trace than came");
            break;
        }
        for (i = 0; i < tokens; i++, at++) {
            if (at >= g.first_token && at < g.last_token) {
                each[n_each++] = g.arrival[at] - t->record[k].ns;
            }
            latest = g.written[at] > latest ? g.written[at] : latest;
        }
        if (at > g.first_token && at <= g.last_token && tokens == g.n_streams) {
            write[n_last] = latest - t->record[k].ns;
            last[n_last++] = g.arrival[at - 1] - t->record[k].ns;
        }
    }
    if (k == n && at != g.n_arrival) {
        stream_fail(&g.streams[0], "fewer tokens in the trace than came");
    }
    print_percentiles("latency_us", each, n_each);
    if (g.n_streams > 1) {
        print_percentiles("batch_last_us", last, n_last);
        if (g.stamps) {
            print_percentiles("batch_last_write_us", write, n_last);
        }
    }
    free(each);
    free(last);
    free(write);
}

/* What neither idles, nor is watched, nor is ours, as a share of the machine. */
static double
others(uint64_t watched)
{
    double all = (double) (g.window_end - g.window_begin)
                 * (double) sysconf(_SC_NPROCESSORS_ONLN);
    double rest = all - (double) g.idle - (double) g.self - (double) watched;

    return rest > 0 && all > 0 ? rest / all : 0;
}

static void
print_cpu(void)
{
    uint64_t watched = 0;
    unsigned i, k;

    printf(",\n \"cpu\": {");
    for (i = 0; i < g.n_watch; i++) {
        watch_t *w = &g.watch[i];
        uint64_t sum = 0;

        printf("%s\"%s\": {\"threads\": [", i != 0 ? ", " : "", w->name);
        for (k = 0; k < w->n; k++) {
            uint64_t ns = w->thread[k].end - w->thread[k].begin;

            printf("%s{\"name\": \"%s\", \"ns\": %llu}", k != 0 ? ", " : "",
                   w->thread[k].name, (unsigned long long) ns);
            sum += ns;
        }
        printf("], \"ns\": %llu}", (unsigned long long) sum);
        watched += sum;
    }
    printf("},\n \"others\": %.4f", others(watched));
}

static void
options(int argc, char **argv)
{
    static const struct option longs[] = {
        { "port", required_argument, NULL, 'p' },
        { "streams", required_argument, NULL, 'n' },
        { "tokens", required_argument, NULL, 't' },
        { "warmup", required_argument, NULL, 'w' },
        { "lazy", required_argument, NULL, 'l' },
        { "stamps", no_argument, NULL, 's' },
        { "trace", required_argument, NULL, 'r' },
        { "model", required_argument, NULL, 'm' },
        { "cpu", required_argument, NULL, 'c' },
        { NULL, 0, NULL, 0 }
    };
    int c;

    while ((c = getopt_long(argc, argv, "", longs, NULL)) != -1) {
        switch (c) {
        case 'p':
            g.port = atoi(optarg);
            break;
        case 'n':
            g.n_streams = (unsigned) atoi(optarg);
            break;
        case 't':
            g.tokens = (uint32_t) atoi(optarg);
            break;
        case 'w':
            g.warmup = (unsigned) atoi(optarg);
            break;
        case 'l':
            g.lazy_ms = (unsigned) atoi(optarg);
            break;
        case 's':
            g.stamps = 1;
            break;
        case 'r':
            g.trace_path = optarg;
            break;
        case 'm':
            g.model = optarg;
            break;
        case 'c':
            if (g.n_watch == MAX_WATCH
                || sscanf(optarg, "%31[a-z_]=%d", g.watch[g.n_watch].name,
                          &g.watch[g.n_watch].pid)
                       != 2) {
                fprintf(stderr, "sse_load: --cpu NAME=PID, not %s\n", optarg);
                exit(2);
            }
            g.n_watch++;
            break;
        default:
            exit(2);
        }
    }
    if (g.port <= 0 || g.n_streams == 0 || g.warmup == 0
        || g.tokens < g.warmup + 2) {
        fprintf(stderr, "sse_load: --port, --streams and --tokens (at least "
                        "warmup + 2) needed\n");
        exit(2);
    }
}

int
main(int argc, char **argv)
{
    options(argc, argv);
    g.streams = calloc(g.n_streams, sizeof(*g.streams));
    g.arrival = calloc((size_t) g.n_streams * g.tokens, sizeof(*g.arrival));
    g.written = calloc((size_t) g.n_streams * g.tokens, sizeof(*g.written));
    if (g.streams == NULL || g.arrival == NULL || g.written == NULL) {
        die("calloc");
    }
    if (g.trace_path != NULL) {
        g.trace = tr_trace_open(g.trace_path, 0);
        if (g.trace == NULL || g.trace->magic != TR_TRACE_MAGIC) {
            die(g.trace_path);
        }
        g.trace_begin = atomic_load(&g.trace->n);
    }
    run();
    printf("{\"streams\": %u, \"tokens\": %llu, \"bytes\": %llu, "
           "\"events\": %llu, \"seconds\": %.6f",
           g.n_streams, (unsigned long long) (g.last_token - g.first_token),
           (unsigned long long) g.window_bytes,
           (unsigned long long) g.window_events,
           (double) (g.window_end - g.window_begin) / 1e9);
    print_cpu();
    if (g.trace != NULL && g.error[0] == '\0') {
        print_latency();
    }
    printf(",\n \"ended_well\": %s}\n", g.error[0] == '\0' ? "true" : "false");
    if (g.error[0] != '\0') {
        fprintf(stderr, "sse_load: %s\n", g.error);
    }
    return g.error[0] != '\0';
}
