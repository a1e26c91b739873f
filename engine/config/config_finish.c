/*
 * What depends on several settings (config.h): derived defaults, the file of
 * the password, and settings that contradict each other.
 */
#include "config_internal.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>

#include "log.h"
#include "redis_address.h"

#ifdef TR_REDIS_TLS /* mk/redis.mk: hiredis_ssl was found */
#define TR_CONFIG_HAS_REDIS_TLS true
#else
#define TR_CONFIG_HAS_REDIS_TLS false
#endif

/* "models/pocket/" -> "pocket" */
static void
last_part(const char *path, char *out, size_t size)
{
    size_t end = strlen(path), start;

    while (end > 1 && path[end - 1] == '/') {
        end--;
    }
    start = end;
    while (start > 0 && path[start - 1] != '/') {
        start--;
    }
    snprintf(out, size, "%.*s", (int) (end - start), path + start);
}

/* served_model_name: blanks part the names. */
static tr_status_t
split_names(tr_config_t *c, tr_error_t *err)
{
    const char *at = c->served_model_name;
    size_t used = 0, n;

    for (at += strspn(at, " \t"); *at != '\0';
         at += n + strspn(at + n, " \t")) {
        n = strcspn(at, " \t");
        for (const char *p = c->served_names; *p != '\0'; p += strlen(p) + 1) {
            if (strlen(p) == n && memcmp(p, at, n) == 0) {
                return tr_error_set(err, TR_ERR_INVALID, "served_model_name",
                                    "served_model_name: \"%s\" is listed "
                                    "twice",
                                    p);
            }
        }
        if (used + n + 2 > sizeof(c->served_names)) {
            return tr_error_set(err, TR_ERR_INVALID, "served_model_name",
                                "served_model_name: its names have more than "
                                "%zu bytes together",
                                sizeof(c->served_names) - 2);
        }
        memcpy(c->served_names + used, at, n);
        used += n + 1;
    }
    if (used == 0) {
        return tr_error_set(err, TR_ERR_INVALID, "served_model_name",
                            "served_model_name: expected a name, not spaces "
                            "alone");
    }
    memcpy(c->served_model_name, c->served_names, strlen(c->served_names) + 1);
    return TR_OK;
}

static tr_status_t
finish_names(tr_config_t *c, tr_error_t *err)
{
    const char *bad = "/\"\\{}";

    if (strpbrk(c->name, bad) != NULL) {
        return tr_error_set(err, TR_ERR_INVALID, "name",
                            "name \"%s\" must "
                            "not contain any of %s",
                            c->name, bad);
    }
    if (c->model[0] == '\0') {
        return tr_error_set(err, TR_ERR_INVALID, "model",
                            "no model: give a "
                            "Hugging Face directory with --model DIR or "
                            "`model DIR` in the configuration");
    }
    if (c->served_model_name[0] == '\0') {
        char name[TR_CONFIG_PATH];

        last_part(c->model, name, sizeof(name));
        if (strlen(name) >= sizeof(c->served_model_name) || name[0] == '\0'
            || strcmp(name, ".") == 0 || strcmp(name, "..") == 0) {
            return tr_error_set(err, TR_ERR_INVALID, "served_model_name",
                                "cannot make a model name of \"%.128s\": set "
                                "served_model_name (1 to %zu bytes)",
                                name, sizeof(c->served_model_name) - 1);
        }
        memcpy(c->served_model_name, name, strlen(name) + 1);
        memcpy(c->served_names, name, strlen(name) + 1);
        return TR_OK;
    }
    return split_names(c, err);
}

static const char *const efforts[] = { "minimal", "low",   "medium",
                                       "high",    "xhigh", "max" };

/* The next "EFFORT=TOKENS" of *at, which moves behind it.  1: one; 0: there is
 * none; -1: that is not one. */
static int
next_budget(const char **at, size_t *name_len, int64_t *tokens)
{
    const char *start = *at + strspn(*at, " ");
    size_t len = strcspn(start, "= "), i;
    char *end;

    *at = start;
    if (*start == '\0') {
        return 0;
    }
    for (i = 0; i < sizeof(efforts) / sizeof(efforts[0]); i++) {
        if (strlen(efforts[i]) == len && strncmp(start, efforts[i], len) == 0
            && start[len] == '=' && start[len + 1] >= '0'
            && start[len + 1] <= '9') {
            *tokens = strtoll(start + len + 1, &end, 10);
            *name_len = len;
            *at = end;
            return (*end == ' ' || *end == '\0') && *tokens <= UINT32_MAX ? 1
                                                                          : -1;
        }
    }
    return -1;
}

int64_t
tr_config_effort_budget(const char *budgets, const char *effort)
{
    const char *at = budgets != NULL ? budgets : "", *start;
    size_t len, n = strlen(effort);
    int64_t tokens;

    for (start = at; next_budget(&at, &len, &tokens) == 1; start = at) {
        start += strspn(start, " ");
        if (len == n && strncmp(start, effort, n) == 0) {
            return tokens;
        }
    }
    return -1;
}

static tr_status_t
finish_budgets(const tr_config_t *c, tr_error_t *err)
{
    const char *at = c->effort_budgets;
    int64_t tokens;
    size_t len;
    int rc;

    do {
        rc = next_budget(&at, &len, &tokens);
    } while (rc == 1);
    return rc == 0
               ? TR_OK
               : tr_error_set(err, TR_ERR_INVALID, "reasoning_effort_budgets",
                              "reasoning_effort_budgets \"%s\": expected "
                              "EFFORT=TOKENS, separated by blanks; an "
                              "effort is minimal, low, medium, high, "
                              "xhigh or max",
                              c->effort_budgets);
}

/* The first line of the file, without its end. */
static tr_status_t
read_password(tr_config_t *c, tr_error_t *err)
{
    char line[sizeof(c->redis_password) + 1];
    FILE *f = fopen(c->redis_password_file, "re");
    bool read;

    if (f == NULL) {
        return tr_error_set(err, TR_ERR_IO, "redis_password_file",
                            "cannot open redis_password_file %s: %s",
                            c->redis_password_file, strerror(errno));
    }
    read = fgets(line, sizeof(line), f) != NULL;
    fclose(f);
    if (read) {
        line[strcspn(line, "\r\n")] = '\0';
    }
    if (!read || line[0] == '\0' || strlen(line) >= sizeof(c->redis_password)) {
        return tr_error_set(err, TR_ERR_INVALID, "redis_password_file",
                            "redis_password_file %s: expected a password of 1 "
                            "to %zu bytes in its first line",
                            c->redis_password_file,
                            sizeof(c->redis_password) - 1);
    }
    memcpy(c->redis_password, line, strlen(line) + 1);
    explicit_bzero(line, sizeof(line));
    return TR_OK;
}

/* Where two settings contradict each other, one is blamed that a file has: then
 * its line is named. */
static bool
in_file(const tr_config_t *c, const char *key)
{
    return c->place[tr_config_index(key)].file != NULL;
}

static tr_status_t
finish_redis_tls(const tr_config_t *c, const tr_redis_address_t *address,
                 tr_error_t *err)
{
    const struct {
        const char *name, *value;
    } need[] = { { "redis_tls_ca", c->redis_tls_ca },
                 { "redis_tls_cert", c->redis_tls_cert },
                 { "redis_tls_key", c->redis_tls_key },
                 { "redis_tls_name", c->redis_tls_name } };

    if (!c->redis_tls) {
        for (size_t i = 0; i < sizeof(need) / sizeof(need[0]); i++) {
            if (need[i].value[0] != '\0') {
                return tr_error_set(err, TR_ERR_INVALID, need[i].name,
                                    "%s %.200s without `redis_tls yes`",
                                    need[i].name, need[i].value);
            }
        }
        return TR_OK;
    }
    if (!TR_CONFIG_HAS_REDIS_TLS) {
        return tr_error_set(err, TR_ERR_UNSUPPORTED, "redis_tls",
                            "redis_tls yes: this engine was built without "
                            "hiredis_ssl (hiredis 1.0 or later)");
    }
    if (address->port == 0) {
        return tr_error_set(err, TR_ERR_INVALID, "redis_tls",
                            "redis_tls yes: Redis has no TLS on a Unix "
                            "socket");
    }
    if ((c->redis_tls_cert[0] == '\0') != (c->redis_tls_key[0] == '\0')) {
        int has = c->redis_tls_cert[0] != '\0' ? 1 : 2; /* of `need` */

        return tr_error_set(err, TR_ERR_INVALID, need[has].name,
                            "%s %.200s without %s: both are needed",
                            need[has].name, need[has].value,
                            need[3 - has].name);
    }
    return TR_OK;
}

static tr_status_t
finish_redis(tr_config_t *c, tr_error_t *err)
{
    const unsigned char *p = (const unsigned char *) c->redis_prefix;
    tr_redis_address_t address;
    tr_status_t rc;

    if (c->redis[0] == '\0') {
        return TR_OK;
    }
    if (!tr_redis_parse_address(c->redis, &address)) {
        return tr_error_set(err, TR_ERR_INVALID, "redis",
                            "redis \"%.128s\": expected HOST, HOST:PORT, "
                            "[ADDRESS]:PORT or unix:PATH",
                            c->redis);
    }
    for (; *p != '\0'; p++) {
        if (*p <= ' ' || *p == 0x7f || *p == '{' || *p == '}') {
            return tr_error_set(err, TR_ERR_INVALID, "redis_prefix",
                                "redis_prefix \"%s\": expected no blanks and "
                                "no braces",
                                c->redis_prefix);
        }
    }
    rc = finish_redis_tls(c, &address, err);
    if (rc != TR_OK) {
        return rc;
    }
    if (c->redis_user[0] != '\0' && c->redis_password[0] == '\0'
        && c->redis_password_file[0] == '\0') {
        return tr_error_set(err, TR_ERR_INVALID, "redis_user",
                            "redis_user \"%s\" has no redis_password_file",
                            c->redis_user);
    }
    return c->redis_password_file[0] != '\0' ? read_password(c, err) : TR_OK;
}

/* A GPU's pool is known only when its weights are there. */
static tr_status_t
finish_memory(tr_config_t *c, tr_error_t *err)
{
    bool gpu = strcmp(c->backend, "cuda") == 0;

    if (c->kv_memory == TR_CONFIG_AS_OTHER) {
        c->kv_memory = gpu ? 0 : 256u << 20;
    }
    if (c->swap_memory == TR_CONFIG_AS_OTHER) {
        c->swap_memory = c->kv_memory == 0 ? UINT64_C(4) << 30 : c->kv_memory;
    }
    if (c->cache_memory != 0 && !gpu) {
        return tr_error_set(err, TR_ERR_UNSUPPORTED, "cache_memory",
                            "cache_memory %llu with backend %s, whose KV cache"
                            " is in host memory already: raise kv_memory"
                            " instead",
                            (unsigned long long) c->cache_memory, c->backend);
    }
    return TR_OK;
}

/* "127.0.0.1:8000" and "unix:/path" would be names of files, too. */
static bool
is_address(const char *socket)
{
    const char *colon = strrchr(socket, ':');

    return strncmp(socket, "unix:", 5) == 0
           || (colon != NULL && strchr(socket, '/') == NULL && colon[1] != '\0'
               && colon[1 + strspn(colon + 1, "0123456789")] == '\0');
}

static tr_status_t
finish_socket(tr_config_t *c, tr_error_t *err)
{
    size_t room = sizeof(((struct sockaddr_un *) 0)->sun_path) - 1;

    if (c->socket[0] == '\0') {
        snprintf(c->socket, sizeof(c->socket), "/run/tokenring/%s.sock",
                 c->name);
    }
    if (is_address(c->socket)) {
        return tr_error_set(err, TR_ERR_INVALID, "socket",
                            "socket \"%.128s\": expected a path, as in "
                            "/run/tokenring/main.sock: an engine listens on "
                            "a Unix socket",
                            c->socket);
    }
    if (strlen(c->socket) > room) {
        return tr_error_set(err, TR_ERR_INVALID, "socket",
                            "socket \"%s\" has "
                            "%zu bytes; a Unix socket path can have %zu",
                            c->socket, strlen(c->socket), room);
    }
    return TR_OK;
}

/* One prompt in so many. */
#define GUARD_USUAL 64u
#define GUARD_MOST 1000000u

static tr_status_t
finish_guard(tr_config_t *c, tr_error_t *err)
{
    bool compares = strcmp(c->backend, "cpu") == 0
                    || strcmp(c->backend, "cuda") == 0;
    char *end;
    long n;

    c->kv_guard_every = 0;
    if (strcmp(c->kv_guard, "off") == 0) {
        return TR_OK;
    }
    if (strcmp(c->kv_guard, "auto") == 0) {
        c->kv_guard_every = compares ? GUARD_USUAL : 0;
        return TR_OK;
    }
    n = strtol(c->kv_guard, &end, 10);
    if (c->kv_guard[0] < '0' || c->kv_guard[0] > '9' || *end != '\0' || n < 1
        || n > (long) GUARD_MOST) {
        return tr_error_set(err, TR_ERR_INVALID, "kv_guard",
                            "kv_guard is \"%s\", expected auto, off, or a"
                            " number of prompts from 1 to %u",
                            c->kv_guard, GUARD_MOST);
    }
    if (!compares) {
        return tr_error_set(err, TR_ERR_INVALID, "kv_guard",
                            "kv_guard %s: backend %s compares no prompts;"
                            " expected auto or off",
                            c->kv_guard, c->backend);
    }
    c->kv_guard_every = (uint32_t) n;
    return TR_OK;
}

/* What would have to be measured on real weights. */
static tr_status_t
finish_policy(const tr_config_t *c, tr_error_t *err)
{
    if (strcmp(c->kv_policy, "auto") != 0) {
        return TR_OK;
    }
    if (strcmp(c->backend, "null") == 0) {
        return tr_error_set(err, TR_ERR_INVALID, "kv_policy",
                            "kv_policy auto: backend %s does not measure"
                            " policies; expected the name of one",
                            c->backend);
    }
    if (strcmp(c->load_format, "dummy") == 0) {
        return tr_error_set(err, TR_ERR_INVALID, "kv_policy",
                            "kv_policy auto: load_format %s: nothing can be "
                            "measured with random weights; expected the name "
                            "of a policy",
                            c->load_format);
    }
    return TR_OK;
}

tr_status_t
tr_config_finish(tr_config_t *c, tr_error_t *err)
{
    tr_status_t rc = finish_names(c, err);

    if (rc != TR_OK) {
        return rc;
    }
    rc = finish_redis(c, err);
    if (rc != TR_OK) {
        return rc;
    }
    rc = finish_memory(c, err);
    if (rc == TR_OK) {
        rc = finish_socket(c, err);
    }
    if (rc != TR_OK) {
        return rc;
    }
    rc = finish_policy(c, err);
    if (rc != TR_OK) {
        return rc;
    }
    rc = finish_guard(c, err);
    if (rc == TR_OK) {
        rc = finish_budgets(c, err);
    }
    if (rc != TR_OK) {
        return rc;
    }
    if (c->max_batch_tokens < c->max_num_seqs) {
        return tr_error_set(err, TR_ERR_INVALID,
                            in_file(c, "max_num_seqs") ? "max_num_seqs"
                                                       : "max_batch_tokens",
                            "max_batch_tokens %u is below max_num_seqs %u: "
                            "every running sequence needs one token of a "
                            "step",
                            c->max_batch_tokens, c->max_num_seqs);
    }
    return TR_OK;
}
