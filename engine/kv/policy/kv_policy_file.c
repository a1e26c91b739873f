/*
 * The policy file of a model (kv_policy_file.h): reading and writing.
 */
#include "kv_policy_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/config/log.h"

#define FILE_MAX_BYTES 65536u
#define PATH_BYTES 1024
#define PATH_SHOWN "%.200s" /* the rest of a message needs room, too */
#define VALUE_SHOWN 65

/* What a file says; spec is "" when there is none. */
typedef struct {
    char path[PATH_BYTES];
    char spec[TR_KV_SPEC_MAX + 1];
} found_t;

static tr_status_t
set_path(const char *dir, char path[PATH_BYTES], tr_error_t *err)
{
    if (snprintf(path, PATH_BYTES, "%s/" TR_KV_POLICY_FILE, dir)
        >= PATH_BYTES) {
        return tr_error_set(err, TR_ERR_IO, "kv_policy",
                            "the path %.60s... is too long", dir);
    }
    return TR_OK;
}

/* ---- reading ------------------------------------------------------------ */

static tr_status_t
cannot(const char *path, const char *what, tr_error_t *err)
{
    return tr_error_set(err, TR_ERR_IO, "kv_policy",
                        PATH_SHOWN ": cannot %s: %s", path, what,
                        strerror(errno));
}

/* The whole file in text, its length in *n; TR_ERR_NOT_FOUND: there is none. */
static tr_status_t
read_file(const char *path, char text[FILE_MAX_BYTES + 1], size_t *n,
          tr_error_t *err)
{
    /* without O_NONBLOCK a FIFO would hold the start up */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    struct stat st;
    ssize_t got = 1;

    if (fd == -1) {
        return errno == ENOENT ? TR_ERR_NOT_FOUND : cannot(path, "open", err);
    }
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        close(fd);
        return tr_error_set(err, TR_ERR_FORMAT, "kv_policy",
                            PATH_SHOWN ": expected a regular file", path);
    }
    *n = 0;
    while (got > 0 && *n <= FILE_MAX_BYTES) {
        got = read(fd, text + *n, FILE_MAX_BYTES + 1 - *n);
        *n += got > 0 ? (size_t) got : 0;
    }
    close(fd);
    if (got < 0) {
        return cannot(path, "read", err);
    }
    return *n <= FILE_MAX_BYTES
               ? TR_OK
               : tr_error_set(err, TR_ERR_FORMAT, "kv_policy",
                              PATH_SHOWN ": %lld bytes, expected at most %u",
                              path, (long long) st.st_size, FILE_MAX_BYTES);
}

/* "FILE: KEY is VALUE, expected .." */
static tr_status_t
wrong(const found_t *f, const char *key, const json_t *value,
      const char *expected, tr_error_t *err)
{
    char *all = value != NULL ? json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT
                                                      | JSON_ENSURE_ASCII)
                              : NULL;
    tr_status_t rc = tr_error_set(err, TR_ERR_FORMAT, "kv_policy",
                                  PATH_SHOWN ": \"%.32s\" is %.*s, expected %s",
                                  f->path, key, VALUE_SHOWN,
                                  value == NULL ? "missing" : (all ? all : "?"),
                                  expected);

    free(all);
    return rc;
}

static tr_status_t
check_shape(const found_t *f, const json_t *root, const char *key,
            uint32_t model, tr_error_t *err)
{
    const json_t *value = json_object_get(root, key);
    char expected[160];

    if (json_is_integer(value)
        && json_integer_value(value) == (json_int_t) model) {
        return TR_OK;
    }
    snprintf(expected, sizeof(expected),
             "%u as the model has; a file made for another model does not fit:"
             " remove it, or run tokenring calibrate",
             model);
    return wrong(f, key, value, expected, err);
}

static tr_status_t
take_spec(found_t *f, const json_t *root, tr_error_t *err)
{
    const json_t *value = json_object_get(root, "kv_policy");
    const char *spec = json_string_value(value);

    if (spec == NULL || strlen(spec) > TR_KV_SPEC_MAX
        || strchr(spec, ':') == NULL) {
        return wrong(f, "kv_policy", value,
                     "a policy with settings, NAME:KEY=VALUE,KEY=VALUE, of at"
                     " most 255 bytes",
                     err);
    }
    if (strstr(spec, "alpha_file") != NULL) {
        return wrong(f, "kv_policy", value,
                     "no alpha_file: a model's file names no other files", err);
    }
    memcpy(f->spec, spec, strlen(spec) + 1);
    return TR_OK;
}

/* Keys that are not known would be dropped: misspelt ones, and those of a
 * later version. */
static tr_status_t
check_keys(const found_t *f, json_t *root, tr_error_t *err)
{
    static const char *const known[] = { "kv_policy", "layers", "kv_heads",
                                         "head_dim", "calibrated" };
    const char *key;
    json_t *value;

    json_object_foreach (root, key, value) {
        size_t i = 0;

        while (i < sizeof(known) / sizeof(known[0])
               && strcmp(key, known[i]) != 0) {
            i++;
        }
        if (i == sizeof(known) / sizeof(known[0])) {
            return tr_error_set(err, TR_ERR_FORMAT, "kv_policy",
                                PATH_SHOWN
                                ": unknown key \"%.32s\": known are"
                                " kv_policy, layers, kv_heads, head_dim,"
                                " calibrated",
                                f->path, key);
        }
    }
    value = json_object_get(root, "calibrated");
    return value == NULL || json_is_object(value)
               ? TR_OK
               : wrong(f, "calibrated", value, "an object", err);
}

static tr_status_t
parse(found_t *f, const char *text, size_t n, uint32_t layers,
      uint32_t kv_heads, uint32_t head_dim, tr_error_t *err)
{
    json_error_t problem;
    json_t *root = json_loadb(text, n, JSON_REJECT_DUPLICATES, &problem);
    tr_status_t rc;

    if (root == NULL) {
        return tr_error_set(err, TR_ERR_FORMAT, "kv_policy",
                            PATH_SHOWN ":%d:%d: %s", f->path, problem.line,
                            problem.column, problem.text);
    }
    if (json_is_object(root)) {
        rc = check_keys(f, root, err);
    } else {
        rc = tr_error_set(err, TR_ERR_FORMAT, "kv_policy",
                          PATH_SHOWN ": expected a JSON object", f->path);
    }
    rc = rc == TR_OK ? check_shape(f, root, "layers", layers, err) : rc;
    rc = rc == TR_OK ? check_shape(f, root, "kv_heads", kv_heads, err) : rc;
    rc = rc == TR_OK ? check_shape(f, root, "head_dim", head_dim, err) : rc;
    rc = rc == TR_OK ? take_spec(f, root, err) : rc;
    json_decref(root);
    return rc;
}

static tr_status_t
find(found_t *f, const char *dir, uint32_t layers, uint32_t kv_heads,
     uint32_t head_dim, tr_error_t *err)
{
    char *text = malloc(FILE_MAX_BYTES + 1);
    size_t n = 0;
    tr_status_t rc;

    f->spec[0] = '\0';
    if (text == NULL) {
        return tr_error_set(err, TR_ERR_NOMEM, "kv_policy",
                            "no memory for "
                            "a file");
    }
    rc = set_path(dir, f->path, err);
    rc = rc == TR_OK ? read_file(f->path, text, &n, err) : rc;
    if (rc == TR_OK) {
        rc = parse(f, text, n, layers, kv_heads, head_dim, err);
    }
    free(text);
    return rc == TR_ERR_NOT_FOUND ? TR_OK : rc;
}

/* ---- opening a policy --------------------------------------------------- */

static bool
is_for(const char *spec, const char *name)
{
    size_t n = strlen(name);

    return strncmp(spec, name, n) == 0 && spec[n] == ':';
}

tr_status_t
tr_kv_policy_open(const char *dir, const char *spec, uint32_t layers,
                  uint32_t kv_heads, uint32_t head_dim, tr_kv_policy_t **out,
                  tr_kv_source_t *source, tr_error_t *err)
{
    tr_status_t rc = tr_kv_policy_create(spec, layers, kv_heads, head_dim, out,
                                         err);
    tr_kv_policy_t *found = NULL;
    tr_error_t story;
    found_t f;

    *source = TR_KV_FROM_SETTINGS;
    if (rc != TR_OK || strchr(spec, ':') != NULL
        || (*out)->row->settings[0] == '\0') {
        return rc;
    }
    *source = TR_KV_FROM_DEFAULTS;
    rc = find(&f, dir, layers, kv_heads, head_dim, err);
    if (rc == TR_OK && is_for(f.spec, (*out)->name)) {
        *source = TR_KV_FROM_FILE;
        rc = tr_kv_policy_create(f.spec, layers, kv_heads, head_dim, &found,
                                 &story);
        if (rc != TR_OK) {
            tr_error_set(err, rc, "kv_policy", PATH_SHOWN ": %s", f.path,
                         story.text);
        }
    }
    if (rc != TR_OK || found != NULL) {
        tr_kv_policy_free(*out);
        *out = found;
    }
    return rc;
}

const char *
tr_kv_source_name(tr_kv_source_t source)
{
    static const char *const names[] = { "settings", TR_KV_POLICY_FILE,
                                         "defaults" };

    return names[source];
}

bool
tr_kv_policy_uncalibrated(const tr_kv_policy_t *p, tr_kv_source_t source)
{
    return source == TR_KV_FROM_DEFAULTS
           && strstr(p->row->settings, "alpha_low") != NULL;
}

/* ---- writing ------------------------------------------------------------ */

static int
dump(const char *path, const json_t *root)
{
    FILE *f = fopen(path, "we");
    int rc;

    if (f == NULL) {
        return -1;
    }
    rc = json_dumpf(root, f, JSON_INDENT(2) | JSON_REAL_PRECISION(6));
    rc |= fputc('\n', f) == EOF ? -1 : 0;
    return fclose(f) == 0 ? rc : -1;
}

tr_status_t
tr_kv_policy_file_write(const char *dir, const char *spec, uint32_t layers,
                        uint32_t kv_heads, uint32_t head_dim,
                        json_t *calibrated, tr_error_t *err)
{
    char path[PATH_BYTES], draft[PATH_BYTES + 8];
    tr_status_t rc = set_path(dir, path, err);
    json_t *root;

    if (rc == TR_OK && strstr(spec, "alpha_file") != NULL) {
        rc = tr_error_set(err, TR_ERR_INVALID, "kv_policy",
                          PATH_SHOWN " is not written: a model's file names no"
                                     " other files, and %.100s names one",
                          path, spec);
    }
    if (rc != TR_OK) {
        return rc;
    }
    root = json_pack("{s:s, s:I, s:I, s:I, s:O}", "kv_policy", spec, "layers",
                     (json_int_t) layers, "kv_heads", (json_int_t) kv_heads,
                     "head_dim", (json_int_t) head_dim, "calibrated",
                     calibrated);
    snprintf(draft, sizeof(draft), "%s.new", path);
    if (root == NULL) {
        rc = tr_error_set(err, TR_ERR_NOMEM, "", "no memory for a file");
    } else if (dump(draft, root) != 0 || rename(draft, path) != 0) {
        rc = cannot(path, "write", err);
        unlink(draft);
    }
    json_decref(root);
    return rc;
}
