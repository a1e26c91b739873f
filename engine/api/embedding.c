/*
 * How a model makes embeddings (embedding.h), read where sentence-transformers
 * keeps it: 1_Pooling/config.json says which token's vector is taken, or the mean
 * of all, and modules.json whether it is normalised.
 */
#include "embedding.h"

#include <errno.h>
#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "engine/config/log.h"

/* *out: NULL where there is no such file. */
static tr_status_t
load(const char *dir, const char *name, json_t **out, tr_error_t *err)
{
    char path[PATH_MAX];
    json_error_t e;

    *out = NULL;
    snprintf(path, sizeof(path), "%s/%s", dir, name);
    if (access(path, R_OK) != 0) {
        return errno == ENOENT || errno == ENOTDIR
                   ? TR_OK
                   : tr_error_set(err, TR_ERR_IO, "", "cannot read %.256s: %s",
                                  path, strerror(errno));
    }
    *out = json_load_file(path, 0, &e);
    return *out != NULL
               ? TR_OK
               : tr_error_set(err, TR_ERR_FORMAT, "", "%.256s: %s (line %d)",
                              path, e.text, e.line);
}

static tr_status_t
read_pooling(const char *dir, tr_embedding_t *out, tr_error_t *err)
{
    json_t *config;
    tr_status_t rc = load(dir, "1_Pooling/config.json", &config, err);

    if (rc != TR_OK || config == NULL) {
        return rc;
    }
    if (json_is_true(json_object_get(config, "pooling_mode_lasttoken"))) {
        out->pooling = TR_POOLING_LAST;
    } else if (json_is_true(
                   json_object_get(config, "pooling_mode_mean_tokens"))) {
        out->pooling = TR_POOLING_MEAN;
    } else {
        tr_log(TR_LEVEL_WARN,
               "no embeddings: 1_Pooling/config.json pools neither the last "
               "token nor the mean");
    }
    json_decref(config);
    return TR_OK;
}

static tr_status_t
read_modules(const char *dir, tr_embedding_t *out, tr_error_t *err)
{
    json_t *modules, *one;
    const char *type;
    tr_status_t rc = load(dir, "modules.json", &modules, err);
    size_t i;

    json_array_foreach (modules, i, one) {
        type = json_string_value(json_object_get(one, "type"));
        type = type != NULL ? strrchr(type, '.') : NULL;
        out->normalise |= type != NULL && strcmp(type, ".Normalize") == 0;
    }
    json_decref(modules);
    return rc;
}

tr_status_t
tr_embedding_load(const char *dir, const char *setting, tr_embedding_t *out,
                  tr_error_t *err)
{
    tr_status_t rc = TR_OK;

    *out = (tr_embedding_t){ .pooling = TR_POOLING_NONE };
    if (strcmp(setting, "last") == 0) {
        out->pooling = TR_POOLING_LAST;
    } else if (strcmp(setting, "mean") == 0) {
        out->pooling = TR_POOLING_MEAN;
    } else if (strcmp(setting, "auto") == 0) {
        rc = read_pooling(dir, out, err);
    }
    if (rc == TR_OK && out->pooling != TR_POOLING_NONE) {
        rc = read_modules(dir, out, err);
    }
    return rc;
}
