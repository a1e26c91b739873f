/*
 * tokenring serve: an engine and an NGINX in the foreground, for one model, with
 * a configuration of their own that is gone afterwards.
 *
 * Both are children in process groups of their own, so that Ctrl-C reaches this
 * process alone, which then ends them in order: NGINX first, so that what is
 * streaming may finish, then the engine.  A second Ctrl-C ends both at once, and
 * when either of them ends by itself, so does the other.  They also end when
 * this process is killed.
 */
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli.h"
#include "client.h"
#include "programs.h"
#include "ring_client.h"
#include "terminal.h"

#define FIRST_PORT 8080
#define PORTS 100
#define ARGUMENTS 160

static struct {
    const char *dir, *host, *nginx, *module;
    int64_t port;
    tr_option_list_t set;
    bool verbose, json;
    char own[64]; /* the directory of this run */
    char self[PATH_MAX];
    char engine_at[PATH_MAX], nginx_at[PATH_MAX], module_at[PATH_MAX];
    char page_at[PATH_MAX]; /* "": there is none */
    pid_t engine_pid, nginx_pid;
} g = { .host = "127.0.0.1" };

static tr_option_t options[] = {
    { "port", 'p', TR_OPTION_INT, &g.port, "N",
      "where to listen (default: the first free one from 8080)", 1, 65535, NULL,
      false },
    { "host", 0, TR_OPTION_TEXT, &g.host, "ADDRESS",
      "IPv4 address to listen on (default 127.0.0.1; there is no login)", 0, 0,
      NULL, false },
    { "set", 0, TR_OPTION_LIST, &g.set, "KEY=VALUE",
      "an engine setting, may be repeated", 0, 0, NULL, false },
    { "verbose", 'v', TR_OPTION_FLAG, &g.verbose, NULL, "show the engine's log",
      0, 0, NULL, false },
    { "json", 0, TR_OPTION_FLAG, &g.json, NULL,
      "print the address as a JSON object", 0, 0, NULL, false },
    { "nginx", 0, TR_OPTION_TEXT, &g.nginx, "FILE",
      "the NGINX to run (default: as found)", 0, 0, NULL, false },
    { "module", 0, TR_OPTION_TEXT, &g.module, "FILE",
      "Tokenring's module for it (default: as found)", 0, 0, NULL, false },
    { NULL, 0, TR_OPTION_GROUP, NULL, NULL, NULL, 0, 0, NULL, false }
};

const tr_command_t tr_serve_command = {
    "tokenring serve DIR [options]",
    "Serves a model: runs an engine and an NGINX in the foreground, until "
    "Ctrl-C.\n"
    "The OpenAI API is at /v1, a chat page at /.  The KV policy is diffkv, "
    "and\n"
    "requests may choose full and uniform, unless --set says otherwise.",
    "  tokenring serve models/pocket\n"
    "  tokenring serve /srv/models/X --port 9000 --set kv_memory=4g",
    options
};

static int
complain(const char *format, const char *what)
{
    fprintf(stderr, "tokenring serve: ");
    fprintf(stderr, format, what);
    fputc('\n', stderr);
    return 1;
}

/* ---- what is needed ----------------------------------------------------- */

/* Where this program stands says where the others are: in a build tree, or
 * installed below a prefix. */
static int
find_all(void)
{
    char module[PATH_MAX + 64], page[PATH_MAX + 64], source[PATH_MAX + 64];
    bool engine = tr_find_engine(g.self, g.engine_at);

    snprintf(module, sizeof(module),
             "%s/../module/ngx_http_tokenring_module.so", g.self);
    snprintf(page, sizeof(page), "%s/../share/tokenring/page", g.self);
    snprintf(source, sizeof(source), "%s/../../page", g.self);
    if (!engine) {
        return complain("there is no %s", "tokenring-engine");
    }
    if (g.nginx != NULL ? !tr_find((const char *const[TR_PATHS]){ g.nginx },
                                   X_OK, g.nginx_at)
                        : !tr_find_program("nginx", g.nginx_at)) {
        return complain("there is no %s: --nginx FILE says where one is",
                        g.nginx != NULL ? g.nginx : "nginx");
    }
    if (!tr_find(
            (const char *const[TR_PATHS]){ g.module != NULL ? g.module : module,
                                           g.module != NULL
                                               ? NULL
                                               : "/usr/lib/nginx/modules/"
                                                 "ngx_http_tokenring_module."
                                                 "so" },
            R_OK, g.module_at)) {
        return complain("there is no %s: --module FILE says where it is",
                        g.module != NULL ? g.module
                                         : "ngx_http_tokenring_module.so");
    }
    if (!tr_find((const char *const[TR_PATHS]){ page, source }, R_OK,
                 g.page_at)) {
        g.page_at[0] = '\0';
    }
    return 0;
}

static bool
port_is_free(int64_t port)
{
    struct sockaddr_in at = { .sin_family = AF_INET,
                              .sin_port = htons((uint16_t) port) };
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;
    bool free;

    inet_pton(AF_INET, g.host, &at.sin_addr);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    free = fd >= 0 && bind(fd, (struct sockaddr *) &at, sizeof(at)) == 0;
    if (fd >= 0) {
        close(fd);
    }
    return free;
}

static int
find_port(void)
{
    int64_t last = g.port != 0 ? g.port : FIRST_PORT + PORTS - 1;

    for (int64_t port = g.port != 0 ? g.port : FIRST_PORT; port <= last;
         port++) {
        if (port_is_free(port)) {
            g.port = port;
            return 0;
        }
    }
    if (g.port != 0) {
        fprintf(stderr,
                "tokenring serve: port %lld is taken on %s: choose another "
                "with --port\n",
                (long long) g.port, g.host);
        return 1;
    }
    return complain("no port from 8080 to 8179 is free on %s", g.host);
}

/* ---- the configuration -------------------------------------------------- */

static bool
wants(const char *key)
{
    for (unsigned i = 0; i < g.set.n; i++) {
        size_t n = strcspn(g.set.item[i], "=");

        if (strlen(key) == n && memcmp(g.set.item[i], key, n) == 0) {
            return true;
        }
    }
    return false;
}

static int
write_nginx_conf(void)
{
    char path[128];
    FILE *f;

    snprintf(path, sizeof(path), "%s/nginx.conf", g.own);
    f = fopen(path, "we");
    if (f == NULL) {
        return complain("cannot write %s", path);
    }
    fprintf(f,
            "# Written by tokenring serve.\n"
            "load_module \"%s\";\n"
            "%s"
            "daemon off;\n"
            "pid nginx.pid;\n"
            "error_log stderr warn;\n"
            "worker_processes auto;\n"
            "events { worker_connections 4096; }\n"
            "http {\n"
            "    access_log off;\n"
            "    client_body_temp_path body;\n"
            "    proxy_temp_path proxy;\n"
            "    fastcgi_temp_path fastcgi;\n"
            "    uwsgi_temp_path uwsgi;\n"
            "    scgi_temp_path scgi;\n"
            "    tokenring_engine main unix:%s/engine.sock;\n"
            "    server {\n"
            "        listen %s:%d;\n"
            "        error_page 401 403 413 429 500 502 503 504 @llm_error;\n"
            "        location /v1/ {\n"
            "            tokenring_pass main;\n"
            "            client_max_body_size 16m;\n"
            "            client_body_buffer_size 64k;\n"
            "        }\n"
            "        location @llm_error { tokenring_error; }\n"
            "        location = /health { tokenring_health main; }\n"
            "        location = /metrics { tokenring_metrics main; }\n",
            g.module_at, geteuid() == 0 ? "user root;\n" : "", g.own, g.host,
            (int) g.port);
    if (g.page_at[0] != '\0') {
        fprintf(f,
                "        location / {\n"
                "            root \"%s\";\n"
                "            types { text/html html; text/css css;\n"
                "                    text/javascript js; image/svg+xml svg; }\n"
                "            add_header Content-Security-Policy \"default-src "
                "'none'; script-src 'self'; style-src 'self'; connect-src "
                "'self'; img-src 'self' data:; base-uri 'none'; form-action "
                "'none'; frame-ancestors 'none'\";\n"
                "            add_header X-Content-Type-Options nosniff;\n"
                "            add_header Cache-Control no-cache;\n"
                "        }\n",
                g.page_at);
    }
    fprintf(f, "    }\n}\n");
    return fclose(f) == 0 ? 0 : complain("cannot write %s", path);
}

/* ---- the processes ------------------------------------------------------ */

static pid_t
start(char *const argv[])
{
    pid_t parent = getpid(), pid = fork();

    if (pid == 0) {
        sigset_t none;

        sigemptyset(&none);
        sigprocmask(SIG_SETMASK, &none, NULL);
        signal(SIGPIPE, SIG_DFL);
        setpgid(0, 0);
        prctl(PR_SET_PDEATHSIG, SIGTERM);
        if (getppid() == parent) {
            execv(argv[0], argv);
        }
        fprintf(stderr, "tokenring serve: cannot run %s: %s\n", argv[0],
                strerror(errno));
        _exit(127);
    }
    return pid;
}

static void
add(char **argv, int *n, const char *word)
{
    if (*n + 1 < ARGUMENTS) {
        argv[(*n)++] = (char *) (uintptr_t) word;
        argv[*n] = NULL;
    }
}

static int
start_engine(void)
{
    static char settings[TR_OPTION_LIST_MAX][512], socket[128];
    char *argv[ARGUMENTS];
    int n = 0;

    snprintf(socket, sizeof(socket), "%s/engine.sock", g.own);
    add(argv, &n, g.engine_at);
    add(argv, &n, "--model");
    add(argv, &n, g.dir);
    add(argv, &n, "--log_level");
    add(argv, &n, g.verbose ? "notice" : "warn");
    if (!wants("kv_policy")) {
        add(argv, &n, "--kv_policy");
        add(argv, &n, "diffkv");
    }
    if (!wants("kv_policy") && !wants("kv_policies")) {
        add(argv, &n, "--kv_policies");
        add(argv, &n, "full uniform");
    }
    for (unsigned i = 0; i < g.set.n; i++) {
        if (strchr(g.set.item[i], '=') == NULL
            || snprintf(settings[i], sizeof(settings[i]), "--%s", g.set.item[i])
                   >= (int) sizeof(settings[i])) {
            return tr_usage_error(&tr_serve_command,
                                  "--set %.100s: expected KEY=VALUE, as in "
                                  "--set kv_memory=1g",
                                  g.set.item[i]);
        }
        add(argv, &n, settings[i]);
    }
    /* behind what the user set: where we look for it */
    add(argv, &n, "--socket");
    add(argv, &n, socket);
    add(argv, &n, "--socket_mode");
    add(argv, &n, "0600");
    g.engine_pid = start(argv);
    return g.engine_pid > 0 ? 0 : complain("%s", strerror(errno));
}

static int
start_nginx(void)
{
    char conf[128], prefix[128];
    char *argv[] = {
        g.nginx_at, "-p", prefix, "-e", "stderr", "-c", conf, NULL
    };

    snprintf(conf, sizeof(conf), "%s/nginx.conf", g.own);
    snprintf(prefix, sizeof(prefix), "%s/", g.own);
    g.nginx_pid = start(argv);
    return g.nginx_pid > 0 ? 0 : complain("%s", strerror(errno));
}

/* Has it ended by itself?  Then so must what is left of its group: workers of
 * an NGINX that was killed would go on for ever. */
static bool
has_ended(pid_t *pid)
{
    if (*pid <= 0 || waitpid(*pid, NULL, WNOHANG) == 0) {
        return false;
    }
    kill(-*pid, SIGTERM);
    *pid = 0;
    return true;
}

/* Which child has ended by itself; NULL: both are there. */
static const char *
ended(void)
{
    return has_ended(&g.engine_pid)  ? "the engine"
           : has_ended(&g.nginx_pid) ? "NGINX"
                                     : NULL;
}

static bool
listens(void)
{
    struct sockaddr_in at = { .sin_family = AF_INET,
                              .sin_port = htons((uint16_t) g.port) };
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool there;

    inet_pton(AF_INET, strcmp(g.host, "0.0.0.0") == 0 ? "127.0.0.1" : g.host,
              &at.sin_addr);
    there = fd >= 0 && connect(fd, (struct sockaddr *) &at, sizeof(at)) == 0;
    if (fd >= 0) {
        close(fd);
    }
    return there;
}

static bool
has_socket(void)
{
    char path[128];

    snprintf(path, sizeof(path), "%s/engine.sock", g.own);
    return access(path, F_OK) == 0;
}

/* Waits until there() says so: 0; a child's end, or a signal: the exit
 * status. */
static int
wait_for(bool (*there)(void))
{
    while (!there()) {
        const char *who = ended();

        if (who != NULL) {
            return complain("%s ended while it was starting", who);
        }
        if (tr_interrupted()) {
            return 130;
        }
        usleep(20000);
    }
    return 0;
}

/* Asks, and after a second signal insists. */
static void
stop(pid_t *pid, int ask)
{
    int asked = tr_interrupted();

    if (*pid <= 0) {
        return;
    }
    kill(*pid, ask);
    while (waitpid(*pid, NULL, WNOHANG) == 0) {
        if (tr_interrupted() > asked) {
            kill(*pid, SIGTERM);
            asked = tr_interrupted();
        }
        usleep(20000);
    }
    *pid = 0;
}

static int
remove_one(const char *path, const struct stat *st, int kind, struct FTW *ftw)
{
    (void) st;
    (void) kind;
    (void) ftw;
    remove(path);
    return 0;
}

static void
say_where(void)
{
    const char *host = strcmp(g.host, "0.0.0.0") == 0 ? "127.0.0.1" : g.host;

    if (g.json) {
        printf("{\"url\": \"http://%s:%d\"}\n", host, (int) g.port);
    } else {
        printf("http://%s:%d  (API at /v1, /metrics, /health%s; Ctrl-C ends)\n",
               host, (int) g.port, g.page_at[0] != '\0' ? ", chat at /" : "");
    }
    fflush(stdout);
}

static int
serve(void)
{
    int rc = start_engine();
    const char *who = NULL;

    rc = rc == 0 ? wait_for(has_socket) : rc;
    rc = rc == 0 ? write_nginx_conf() : rc;
    rc = rc == 0 ? start_nginx() : rc;
    rc = rc == 0 ? wait_for(listens) : rc;
    if (rc == 0) {
        say_where();
        while (!tr_interrupted() && (who = ended()) == NULL) {
            usleep(100000);
        }
        if (who != NULL) {
            rc = complain("%s ended", who);
        }
    }
    stop(&g.nginx_pid, SIGQUIT);
    stop(&g.engine_pid, SIGTERM);
    return rc;
}

/* A path that a configuration file can hold within quotes. */
static bool
quotable(const char *path)
{
    return strpbrk(path, "\"\\$\n\r;{}") == NULL;
}

int
tr_cmd_serve(int argc, char **argv)
{
    const char *tmp = getenv("TMPDIR");
    struct in_addr address;
    int rc;

    if (argc > 1 && argv[1][0] != '-') {
        g.dir = argv[1];
        argc--;
        argv++;
    }
    if (tr_options_only(&tr_serve_command, argc, argv, &rc) != 0) {
        return rc;
    }
    if (g.dir == NULL) {
        return tr_usage_error(&tr_serve_command,
                              "which model? give its DIR first");
    }
    if (inet_pton(AF_INET, g.host, &address) != 1) {
        return tr_usage_error(&tr_serve_command,
                              "--host %.60s: expected an IPv4 address", g.host);
    }
    if (find_all() != 0 || find_port() != 0) {
        return 1;
    }
    snprintf(g.own, sizeof(g.own), "%s/tokenring.XXXXXX",
             tmp != NULL && strlen(tmp) < 40 ? tmp : "/tmp");
    if (!quotable(g.module_at) || !quotable(g.page_at) || !quotable(g.own)) {
        return complain("a path has characters that NGINX's configuration "
                        "cannot hold: %s",
                        g.module_at);
    }
    if (mkdtemp(g.own) == NULL) {
        return complain("cannot make a directory like %s", g.own);
    }
    tr_interrupt_catch();
    rc = serve();
    nftw(g.own, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    return rc;
}
