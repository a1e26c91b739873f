/*
 * tokenring-engine: the resident process around engine.h.
 *
 * Command line and files are read into one configuration, the engine is
 * started, and signals decide the rest: SIGTERM and SIGINT drain, a second one
 * stops at once, SIGUSR1 reopens the log.  Signals are blocked in all threads
 * but one that waits for them.
 */
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <tokenring/version.h>

#include "engine/config/config.h"
#include "engine.h"
#include "engine/config/log.h"
#include "engine/config/troff.h"

#define EXIT_USAGE 2

typedef struct {
    bool help, version, check, man;
} modes_t;

/* What the signal thread needs to know. */
static struct {
    sigset_t set;
    sem_t stop;
    tr_engine_t *_Atomic engine; /* NULL while it is starting */
} signals;

static void
complain(const tr_error_t *err)
{
    fprintf(stderr, "tokenring-engine: %s\n", err->text);
}

static void
usage(void)
{
    printf("Usage: tokenring-engine [-c FILE] [--SETTING VALUE]...\n"
           "\n"
           "Serves a language model to NGINX and to the tokenring command "
           "over a Unix\nsocket.  At least --model is needed.\n"
           "\n"
           "  -c FILE     read settings from FILE (`setting value`, one a "
           "line)\n"
           "  --check     check settings and model, then exit\n"
           "  --version   print the version\n"
           "  --help      print this\n"
           "\n"
           "Settings; those given here win over the file's:\n"
           "\n");
    tr_config_help();
}

static void
manual(void)
{
    tr_troff_begin(stdout, "tokenring-engine", 8,
                   "serves a language model to NGINX's Tokenring module");
    tr_troff_section(stdout, "synopsis");
    tr_troff_lines(stdout, "tokenring-engine [-c FILE] [--SETTING VALUE]...");
    tr_troff_section(stdout, "description");
    tr_troff_text(stdout,
                  "Runs a model and answers NGINX's workers, and the tokenring "
                  "command, over a Unix socket and shared memory.\n"
                  "SIGTERM and SIGINT let running requests finish, a second "
                  "one ends them; SIGUSR1 reopens the log.");
    tr_troff_section(stdout, "options");
    tr_troff_entry(stdout, "-c", "FILE",
                   "read settings from FILE, one `setting value` a line");
    tr_troff_entry(stdout, "--check", NULL,
                   "check settings and model, then exit");
    tr_troff_entry(stdout, "--version", NULL, "print the version");
    tr_troff_entry(stdout, "--help", NULL, "print the settings");
    tr_troff_entry(stdout, "--man", NULL, "print this page");
    tr_troff_section(stdout, "settings");
    tr_troff_text(stdout, "Of the file, and as options, which win.");
    tr_config_man(stdout);
    tr_troff_section(stdout, "files");
    tr_troff_entry(stdout, "/etc/tokenring/engine.conf", NULL,
                   "settings of the engine that systemd starts");
    tr_troff_section(stdout, "see also");
    tr_troff_text(stdout, "tokenring(1), nginx(8)");
}

/* ---- command line ------------------------------------------------------- */

/* --max_queue 8, --max-queue 8 or --max_queue=8; value is NULL when argv ends
 * before it. */
static tr_status_t
take_setting(tr_config_t *c, const char *argument, const char *value,
             tr_error_t *err)
{
    size_t n = strcspn(argument + 2, "="), i;
    char key[64];

    if (n >= sizeof(key)) {
        n = sizeof(key) - 1;
    }
    for (i = 0; i < n; i++) {
        key[i] = argument[2 + i] == '-' ? '_' : argument[2 + i];
    }
    key[n] = '\0';
    if (value == NULL) {
        return tr_error_set(err, TR_ERR_INVALID, key, "%s needs a value",
                            argument);
    }
    return tr_config_set(c, "command line", key, value, err);
}

/* Called twice: files are read in the first round, settings taken in the
 * second, so that these win wherever they stand. */
static tr_status_t
read_arguments(tr_config_t *c, int argc, char **argv, bool files,
               modes_t *modes, tr_error_t *err)
{
    tr_status_t rc = TR_OK;
    int i;

    for (i = 1; rc == TR_OK && i < argc; i++) {
        const char *a = argv[i], *value;

        if (strcmp(a, "--help") == 0 || strcmp(a, "-h") == 0) {
            modes->help = true;
        } else if (strcmp(a, "--version") == 0) {
            modes->version = true;
        } else if (strcmp(a, "--man") == 0) {
            modes->man = true;
        } else if (strcmp(a, "--check") == 0) {
            modes->check = true;
        } else if (strcmp(a, "-c") == 0) {
            value = argv[++i]; /* argv ends with NULL */
            if (value == NULL) {
                rc = tr_error_set(err, TR_ERR_INVALID, "", "-c needs a file");
            } else if (files) {
                rc = tr_config_file(c, value, err);
            }
        } else if (strncmp(a, "--", 2) == 0 && a[2] != '\0') {
            value = strchr(a, '=');
            value = value != NULL ? value + 1 : argv[++i];
            if (!files) {
                rc = take_setting(c, a, value, err);
            }
        } else {
            rc = tr_error_set(err, TR_ERR_INVALID, "",
                              "unexpected argument \"%s\"; --help lists the "
                              "options",
                              a);
        }
    }
    return rc;
}

/* ---- signals ------------------------------------------------------------ */

static void *
signals_run(void *arg)
{
    bool asked = false;
    int sig;

    (void) arg;
    for (;;) {
        tr_engine_t *engine;

        if (sigwait(&signals.set, &sig) != 0) {
            continue;
        }
        engine = atomic_load(&signals.engine);
        if (sig == SIGUSR1) {
            tr_log_reopen();
        } else if (engine == NULL) {
            tr_log(TR_LEVEL_NOTICE, "stopped while starting signal=%d", sig);
            _exit(EXIT_FAILURE);
        } else if (!asked) {
            asked = true;
            sem_post(&signals.stop);
        } else {
            tr_engine_hurry(engine);
        }
    }
    return NULL;
}

static tr_status_t
start_signals(pthread_t *thread, tr_error_t *err)
{
    int e;

    sem_init(&signals.stop, 0, 0);
    sigemptyset(&signals.set);
    sigaddset(&signals.set, SIGTERM);
    sigaddset(&signals.set, SIGINT);
    sigaddset(&signals.set, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &signals.set, NULL);
    signal(SIGPIPE, SIG_IGN);
    e = pthread_create(thread, NULL, signals_run, NULL);
    if (e != 0) {
        return tr_error_set(err, TR_ERR_IO, "", "cannot start a thread: %s",
                            strerror(e));
    }
    return TR_OK;
}

/* ---- the process -------------------------------------------------------- */

/* Every channel takes three descriptors. */
static void
raise_file_limit(void)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) == 0
        && limit.rlim_cur < limit.rlim_max) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
}

/* Tells systemd (Type=notify); without NOTIFY_SOCKET nothing. */
static void
notify(const char *state)
{
    const char *path = getenv("NOTIFY_SOCKET");
    struct sockaddr_un addr = { .sun_family = AF_UNIX };
    size_t n = path != NULL ? strlen(path) : 0;
    int fd;

    if (n == 0 || n >= sizeof(addr.sun_path)) {
        return;
    }
    memcpy(addr.sun_path, path, n);
    if (path[0] == '@') {
        addr.sun_path[0] = '\0'; /* a name without a file */
    }
    fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd == -1
        || sendto(fd, state, strlen(state), MSG_NOSIGNAL,
                  (struct sockaddr *) &addr,
                  (socklen_t) (offsetof(struct sockaddr_un, sun_path) + n))
               < 0) {
        tr_log(TR_LEVEL_WARN, "cannot notify systemd error=\"%s\"",
               strerror(errno));
    }
    if (fd != -1) {
        close(fd);
    }
}

/* Memory holds prompts and answers: no core of it, and nobody but root looks
 * into it, unless core_dumps says so. */
static void
guard_memory(bool core_dumps)
{
    if (!core_dumps && prctl(PR_SET_DUMPABLE, 0) != 0) {
        tr_log(TR_LEVEL_WARN, "cannot forbid core dumps error=\"%s\"",
               strerror(errno));
    }
}

static tr_status_t
write_pid(const char *path, tr_error_t *err)
{
    FILE *f;

    if (path[0] == '\0') {
        return TR_OK;
    }
    f = fopen(path, "we");
    if (f == NULL || fprintf(f, "%ld\n", (long) getpid()) < 0
        || fclose(f) != 0) {
        return tr_error_set(err, TR_ERR_IO, "pid",
                            "cannot write pid file %s: "
                            "%s",
                            path, strerror(errno));
    }
    return TR_OK;
}

static tr_status_t
run(const tr_config_t *config, tr_error_t *err)
{
    pthread_t signal_thread;
    tr_engine_t *engine;
    tr_status_t rc;

    tr_log_open(config->log, config->log_level);
    guard_memory(config->core_dumps);
    raise_file_limit();
    rc = start_signals(&signal_thread, err);
    if (rc == TR_OK) {
        rc = tr_engine_start(config, &engine, err);
    }
    if (rc != TR_OK) {
        return rc;
    }
    atomic_store(&signals.engine, engine);
    rc = write_pid(config->pid, err);
    if (rc == TR_OK) {
        notify("READY=1");
        while (sem_wait(&signals.stop) != 0) {
            continue;
        }
        notify("STOPPING=1");
        tr_engine_drain(engine);
    }
    pthread_cancel(signal_thread);
    pthread_join(signal_thread, NULL);
    if (rc == TR_OK && tr_engine_lost(engine)) {
        rc = tr_error_set(err, TR_ERR_INTERNAL, "device",
                          "the GPU was lost; the log says how");
    }
    tr_engine_stop(engine);
    if (config->pid[0] != '\0') {
        unlink(config->pid);
    }
    tr_log(TR_LEVEL_NOTICE, "engine stopped name=%s", config->name);
    return rc;
}

int
main(int argc, char **argv)
{
    modes_t modes = { false, false, false, false };
    tr_config_t config;
    tr_error_t err;
    tr_status_t rc;

    memset(&err, 0, sizeof(err));
    tr_config_defaults(&config);
    rc = read_arguments(&config, argc, argv, true, &modes, &err);
    if (rc == TR_OK && modes.help) {
        usage();
        return EXIT_SUCCESS;
    }
    if (rc == TR_OK && modes.man) {
        manual();
        return EXIT_SUCCESS;
    }
    if (rc == TR_OK && modes.version) {
        printf("tokenring-engine %s\n", TR_VERSION);
        return EXIT_SUCCESS;
    }
    if (rc == TR_OK) {
        rc = read_arguments(&config, argc, argv, false, &modes, &err);
    }
    if (rc == TR_OK) {
        rc = tr_config_finish(&config, &err);
        if (rc != TR_OK) {
            tr_config_locate(&config, &err);
        }
    }
    if (rc != TR_OK) {
        complain(&err);
        return EXIT_USAGE;
    }
    if (modes.check) {
        tr_log_open(NULL, TR_LEVEL_WARN); /* of a start's lines, its worries */
        rc = tr_engine_check(&config, stdout, &err);
        if (rc == TR_OK) {
            printf("configuration and model %s are fine\n", config.model);
        }
    } else {
        rc = run(&config, &err);
    }
    if (rc != TR_OK) {
        tr_config_locate(&config, &err);
        complain(&err);
        if (!modes.check && strcmp(config.log, "stderr") != 0) {
            tr_log(TR_LEVEL_ERROR, "engine failed error=\"%s\"", err.text);
        }
        return EXIT_FAILURE;
    }
    return EXIT_SUCCESS;
}
