/*
 * tokenring supervise: engines on demand, where no systemd does that.
 *
 * It holds the sockets of all engines of a file.  When somebody connects to one,
 * its engine is started with that socket (LISTEN_FDS, as systemd does), finds
 * who waits there, and ends when nobody was connected for a while; then the next
 * one who connects starts it again.  One that crashes is started again likewise,
 * after a pause that grows with each crash.  With max_loaded, who connects to one
 * more waits until another has ended: first come, first served.
 *
 * It waits in poll() alone: for connections, and for signals by a descriptor.
 * Engines are ended when this process is.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "cli.h"
#include "engine/base/clock.h"
#include "engine/config/config.h"
#include "engine/transport/listener.h"
#include "programs.h"

#define ENGINES 64
#define WORDS 64
#define LINE 4096
#define GIVEN_FD 3

#define PAUSE_MS 1000u       /* before a start, after the first crash */
#define PAUSE_MOST_MS 60000u /* twice as long after each, up to this */

#define NGINX_WAITS_US 120000000u /* start_timeout of tokenring_engine */

typedef struct {
    char words[LINE];      /* of its line */
    char *argv[WORDS + 8]; /* borrowed from these, but for the first ones */
    const char *name;      /* what its socket is called */
    tr_listener_t listener;
    pid_t pid;        /* 0: it does not run */
    uint64_t turn;    /* whose is next of those that wait; 0: nobody does */
    uint32_t crashes; /* one after the other */
    uint64_t started_ms, not_before_ms;
} engine_t;

static struct {
    const char *engine, *file;
    char engine_at[PATH_MAX], own_dir[PATH_MAX];
    engine_t *engines; /* [ENGINES] */
    unsigned n, max_loaded, loaded;
    char idle[64];
    uint32_t socket_mode;
    uint64_t turns;
    int signals;
    bool stopping;
    sigset_t none; /* the mask that children get */
} g;

static tr_option_t options[] = {
    { "engine", 0, TR_OPTION_TEXT, &g.engine, "FILE",
      "the tokenring-engine to run (default: as found)", 0, 0, NULL, false },
    { NULL, 0, TR_OPTION_GROUP, NULL, NULL, NULL, 0, 0, NULL, false }
};

const tr_command_t tr_supervise_command = {
    "tokenring supervise FILE [options]",
    "Starts an engine when a client connects to its socket, stops it when "
    "nobody\n"
    "has been connected for a while, and restarts it when it crashes.  FILE "
    "has\n"
    "lines such as\n"
    "  engine SOCKET -c CONFIG          further settings may follow, as --name "
    "x\n"
    "  max_loaded 1                     most engines at once (default: all)\n"
    "  idle 10m                         unused for this long, one stops "
    "(default: 10m)\n"
    "                                   with max_loaded, well below NGINX's\n"
    "                                   start_timeout\n"
    "  socket_mode 0660                 of the sockets (default: 0660)\n"
    "NGINX's side is tokenring_engine NAME unix:SOCKET start=ondemand.",
    "  tokenring supervise /etc/tokenring/supervise.conf", options
};

/* ---- the file ----------------------------------------------------------- */

static int
wrong(unsigned line, const char *what, const char *value)
{
    fprintf(stderr, "tokenring supervise: %s:%u: %s%s\n", g.file, line, what,
            value);
    return 1;
}

/* Those of text, which it cuts into them; WORDS + 1: too many. */
static unsigned
split(char *text, char *words[WORDS + 1])
{
    unsigned n = 0;
    char *save = NULL;

    for (char *w = strtok_r(text, " \t\r\n", &save); w != NULL && n <= WORDS;
         w = strtok_r(NULL, " \t\r\n", &save)) {
        words[n++] = w;
    }
    return n;
}

/* A value of a setting of the engine, which it judges. */
static int
take_value(unsigned line, const char *key, const char *value, tr_config_t *c)
{
    tr_error_t err;

    if (tr_config_set(c, "supervise", key, value, &err) != TR_OK) {
        return wrong(line, err.text, "");
    }
    return 0;
}

static int
take_engine(unsigned line, const char *text)
{
    engine_t *e = &g.engines[g.n];
    char *words[WORDS + 1];
    const char *slash;
    unsigned n, i, at = 0;

    if (g.n == ENGINES) {
        return wrong(line, "too many engines, expected at most 64", "");
    }
    snprintf(e->words, sizeof(e->words), "%s", text);
    n = split(e->words, words);
    if (n < 3 || n > WORDS || words[1][0] != '/') {
        return wrong(line,
                     "expected engine /SOCKET -c CONFIG, with at most 62 "
                     "words behind it",
                     "");
    }
    for (i = 0; i < g.n; i++) {
        if (strcmp(g.engines[i].listener.path, words[1]) == 0) {
            return wrong(line, "a second engine at ", words[1]);
        }
    }
    slash = strrchr(words[1], '/');
    e->name = slash + 1;
    tr_listener_init(&e->listener);
    snprintf(e->listener.path, sizeof(e->listener.path), "%s", words[1]);
    e->argv[at++] = g.engine_at;
    e->argv[at++] = "--exit_idle";
    e->argv[at++] = g.idle;
    for (i = 2; i < n; i++) {
        e->argv[at++] = words[i];
    }
    e->argv[at++] = "--socket"; /* behind what the line says */
    e->argv[at++] = words[1];
    e->argv[at] = NULL;
    g.n++;
    return 0;
}

static int
take_line(unsigned line, char *text, tr_config_t *c)
{
    char copy[LINE], *words[WORDS + 1];
    long loaded;
    unsigned n;

    snprintf(copy, sizeof(copy), "%s", text);
    n = split(copy, words);
    if (n == 0 || words[0][0] == '#') {
        return 0;
    }
    if (strcmp(words[0], "engine") == 0) {
        return take_engine(line, text);
    }
    if (n != 2) {
        return wrong(line, "expected a word and its value: ", words[0]);
    }
    if (strcmp(words[0], "idle") == 0) {
        snprintf(g.idle, sizeof(g.idle), "%s", words[1]);
        return take_value(line, "exit_idle", words[1], c);
    }
    if (strcmp(words[0], "socket_mode") == 0) {
        return take_value(line, "socket_mode", words[1], c);
    }
    if (strcmp(words[0], "max_loaded") == 0) {
        char *end;

        loaded = strtol(words[1], &end, 10);
        if (*end != '\0' || loaded < 1 || loaded > ENGINES) {
            return wrong(line, "expected max_loaded 1 to 64, not ", words[1]);
        }
        g.max_loaded = (unsigned) loaded;
        return 0;
    }
    return wrong(line, "expected engine, max_loaded, idle or socket_mode, not ",
                 words[0]);
}

/* Who waits for a place waits for somebody's idle time, and NGINX no longer than
 * it was told to. */
static void
warn_idle(const tr_config_t *c)
{
    if (g.max_loaded < g.n
        && (c->exit_idle_us == 0 || c->exit_idle_us >= NGINX_WAITS_US)) {
        fprintf(stderr,
                "tokenring supervise: %s: warning: max_loaded is %u for %u "
                "engines, and each keeps its place until it was idle for %s: "
                "requests for another get 503 after NGINX's start_timeout "
                "(default 120s). Expected idle, here and in tokenring_engine "
                "together, to be shorter than that\n",
                g.file, g.max_loaded, g.n,
                c->exit_idle_us == 0 ? "ever" : g.idle);
    }
}

static int
read_file(void)
{
    FILE *f = fopen(g.file, "re");
    char text[LINE];
    tr_config_t c;
    unsigned line = 0;
    int rc;

    if (f == NULL) {
        fprintf(stderr, "tokenring supervise: cannot read %s: %s\n", g.file,
                strerror(errno));
        return 1;
    }
    tr_config_defaults(&c);
    rc = take_value(line, "exit_idle", g.idle, &c);
    while (rc == 0 && fgets(text, sizeof(text), f) != NULL) {
        line++;
        rc = strlen(text) + 1 == sizeof(text)
                 ? wrong(line, "a line of more than 4094 bytes", "")
                 : take_line(line, text, &c);
    }
    fclose(f);
    g.socket_mode = c.socket_mode;
    if (rc == 0 && g.n == 0) {
        rc = wrong(line, "no engine; expected engine /SOCKET -c CONFIG", "");
    }
    if (rc == 0) {
        warn_idle(&c);
    }
    return rc;
}

/* ---- engines ------------------------------------------------------------ */

static void
become(engine_t *e)
{
    char pid[32];

    sigprocmask(SIG_SETMASK, &g.none, NULL);
    signal(SIGPIPE, SIG_DFL);
    setpgid(0, 0); /* Ctrl-C is for us */
    if (e->listener.fd == GIVEN_FD) {
        fcntl(GIVEN_FD, F_SETFD, 0);
    } else {
        dup2(e->listener.fd, GIVEN_FD); /* without close-on-exec */
    }
    snprintf(pid, sizeof(pid), "%ld", (long) getpid());
    setenv("LISTEN_PID", pid, 1);
    setenv("LISTEN_FDS", "1", 1);
    execv(e->argv[0], e->argv);
    fprintf(stderr, "tokenring supervise: cannot run %s: %s\n", e->argv[0],
            strerror(errno));
    _exit(127);
}

static void
start(engine_t *e)
{
    pid_t parent = getpid();

    e->turn = 0;
    e->started_ms = tr_now_us() / 1000;
    e->pid = fork();
    if (e->pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGTERM);
        if (getppid() == parent) { /* which has not ended before that */
            become(e);
        }
        _exit(1);
    }
    if (e->pid < 0) {
        fprintf(stderr, "tokenring supervise: cannot start %s: %s\n", e->name,
                strerror(errno));
        e->pid = 0;
        e->not_before_ms = tr_now_us() / 1000 + PAUSE_MS;
        return;
    }
    g.loaded++;
    fprintf(stderr, "tokenring supervise: started socket=%s pid=%ld\n", e->name,
            (long) e->pid);
}

/* Those whose turn it is, as long as there is room for more; when the next may
 * start, in ms from now; -1: none waits for a time. */
static int
start_due(void)
{
    uint64_t now = tr_now_us() / 1000, soonest = UINT64_MAX;
    engine_t *next;

    do {
        next = NULL;
        soonest = UINT64_MAX;
        for (unsigned i = 0; i < g.n; i++) {
            engine_t *e = &g.engines[i];

            if (e->turn == 0 || e->pid != 0 || g.loaded >= g.max_loaded) {
                continue;
            }
            if (e->not_before_ms > now) {
                soonest = e->not_before_ms < soonest ? e->not_before_ms
                                                     : soonest;
            } else if (next == NULL || e->turn < next->turn) {
                next = e;
            }
        }
        if (next != NULL) {
            start(next);
        }
    } while (next != NULL);
    return soonest == UINT64_MAX ? -1 : (int) (soonest - now);
}

static void
ended(engine_t *e, int status)
{
    uint64_t now = tr_now_us() / 1000;
    bool well = WIFEXITED(status) && WEXITSTATUS(status) == 0;
    uint64_t pause = PAUSE_MS;

    fprintf(stderr, "tokenring supervise: ended socket=%s pid=%ld %s=%d\n",
            e->name, (long) e->pid, WIFSIGNALED(status) ? "signal" : "status",
            WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    e->pid = 0;
    g.loaded--;
    if (well) {
        e->crashes = 0;
        return;
    }
    if (now - e->started_ms > PAUSE_MOST_MS) {
        e->crashes = 0;
    }
    for (uint32_t i = 0; i < e->crashes && pause < PAUSE_MOST_MS; i++) {
        pause *= 2;
    }
    pause = pause < PAUSE_MOST_MS ? pause : PAUSE_MOST_MS;
    e->crashes++;
    e->not_before_ms = now + pause;
    fprintf(stderr, "tokenring supervise: crashed socket=%s again_ms=%llu\n",
            e->name, (unsigned long long) pause);
}

static void
reap(void)
{
    int status;
    pid_t pid;

    while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
        for (unsigned i = 0; i < g.n; i++) {
            if (g.engines[i].pid == pid) {
                ended(&g.engines[i], status);
            }
        }
    }
}

/* Asks all to end; a second time, at once. */
static void
stop_all(void)
{
    g.stopping = true;
    for (unsigned i = 0; i < g.n; i++) {
        if (g.engines[i].pid > 0) {
            kill(g.engines[i].pid, SIGTERM);
        }
    }
}

static void
on_signals(void)
{
    struct signalfd_siginfo info;

    while (read(g.signals, &info, sizeof(info)) == sizeof(info)) {
        if (info.ssi_signo != SIGCHLD) {
            stop_all();
        }
    }
    reap();
}

/* ---- the process -------------------------------------------------------- */

static int
open_all(void)
{
    tr_error_t err;

    for (unsigned i = 0; i < g.n; i++) {
        tr_listener_t *l = &g.engines[i].listener;
        char path[TR_CONFIG_PATH];

        snprintf(path, sizeof(path), "%s", l->path);
        if (tr_listener_lock(l, path, false, &err) != TR_OK
            || tr_listener_open(l, g.socket_mode, &err) != TR_OK) {
            fprintf(stderr, "tokenring supervise: %s\n", err.text);
            return 1;
        }
    }
    return 0;
}

static int
open_signals(void)
{
    sigset_t set;

    sigemptyset(&g.none);
    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigprocmask(SIG_BLOCK, &set, NULL);
    g.signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    return g.signals >= 0 ? 0 : 1;
}

static void
supervise(void)
{
    struct pollfd fds[ENGINES + 1];
    engine_t *whose[ENGINES + 1];

    while (!g.stopping || g.loaded != 0) {
        int timeout = g.stopping ? -1 : start_due();
        nfds_t n = 0;

        fds[n++] = (struct pollfd){ .fd = g.signals, .events = POLLIN };
        for (unsigned i = 0; i < g.n && !g.stopping; i++) {
            if (g.engines[i].pid == 0 && g.engines[i].turn == 0) {
                whose[n] = &g.engines[i];
                fds[n++] = (struct pollfd){ .fd = g.engines[i].listener.fd,
                                            .events = POLLIN };
            }
        }
        if (poll(fds, n, timeout) <= 0) {
            continue;
        }
        for (nfds_t i = 1; i < n; i++) {
            if (fds[i].revents != 0) {
                whose[i]->turn = ++g.turns;
            }
        }
        if (fds[0].revents != 0) {
            on_signals();
        }
    }
}

int
tr_cmd_supervise(int argc, char **argv)
{
    int rc;

    if (argc > 1 && argv[1][0] != '-') {
        g.file = argv[1];
        argc--;
        argv++;
    }
    if (tr_options_only(&tr_supervise_command, argc, argv, &rc) != 0) {
        return rc;
    }
    if (g.file == NULL) {
        return tr_usage_error(&tr_supervise_command,
                              "which engines? give their FILE first");
    }
    if (g.engine != NULL ? !tr_find((const char *const[TR_PATHS]){ g.engine },
                                    X_OK, g.engine_at)
                         : !tr_find_engine(g.own_dir, g.engine_at)) {
        fprintf(stderr, "tokenring supervise: there is no %s\n",
                g.engine != NULL ? g.engine : "tokenring-engine");
        return 1;
    }
    g.max_loaded = ENGINES;
    snprintf(g.idle, sizeof(g.idle), "10m");
    g.engines = calloc(ENGINES, sizeof(*g.engines));
    rc = g.engines == NULL ? 1 : read_file();
    rc = rc == 0 ? open_all() : rc;
    rc = rc == 0 ? open_signals() : rc;
    if (rc == 0) {
        printf("%u engines wait for somebody to connect\n", g.n);
        fflush(stdout);
        supervise();
    }
    for (unsigned i = 0; i < g.n; i++) {
        tr_listener_close(&g.engines[i].listener);
    }
    free(g.engines);
    return rc;
}
