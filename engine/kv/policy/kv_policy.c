/*
 * The policies by name: creation from "NAME:KEY=VALUE,KEY=VALUE".
 *
 * A kind (one file each) fills in defaults and functions, the settings are read
 * over them (kv_policy_settings.c), and the kind checks the result.  `spec` is
 * then printed from what was understood, so that two spellings of one policy
 * have one name in results and logs.
 */
#include "kv_policy.h"

#include <stdlib.h>
#include <string.h>

#include "kv_policy_parts.h"
#include "engine/config/log.h"

/* In the order in which they are listed to users. */
#define POLICIES(X) \
    X(full)         \
    X(uniform)      \
    X(diffkv)       \
    X(static) X(int4) X(kivi) X(snapkv) X(h2o) X(streamingllm) X(quest)

#define KIND_OF(name) &tr_kv_policy_##name,
static const tr_kv_policy_kind_t *const kinds[] = { POLICIES(KIND_OF) };

#define N_KINDS (sizeof(kinds) / sizeof(kinds[0]))

const char *
tr_kv_policy_names(void)
{
#define NAME_OF(name) ", " #name
    return &(POLICIES(NAME_OF))[2];
}

const tr_kv_policy_kind_t *
tr_kv_policy_kind(const char *name, size_t n)
{
    for (size_t i = 0; i < N_KINDS; i++) {
        if (strlen(kinds[i]->name) == n
            && memcmp(kinds[i]->name, name, n) == 0) {
            return kinds[i];
        }
    }
    return NULL;
}

static tr_status_t
build(const tr_kv_policy_kind_t *kind, const char *settings, uint32_t head_dim,
      tr_kv_policy_t *p, tr_error_t *err)
{
    tr_status_t rc;

    p->leaves = 1;
    p->groups = 1;
    kind->init(p, head_dim);
    rc = tr_kv_settings_read(kind, settings, p, err);
    if (rc == TR_OK && kind->check != NULL) {
        rc = kind->check(p, head_dim, err);
    }
    return rc == TR_OK ? tr_kv_settings_print(kind, p, err) : rc;
}

tr_status_t
tr_kv_policy_create(const char *spec, uint32_t layers, uint32_t lists,
                    uint32_t head_dim, tr_kv_policy_t **out, tr_error_t *err)
{
    size_t n = strcspn(spec, ":");
    const tr_kv_policy_kind_t *kind = tr_kv_policy_kind(spec, n);
    tr_kv_policy_t *p;
    tr_status_t rc;

    *out = NULL;
    if (kind == NULL) {
        return tr_error_set(err, TR_ERR_INVALID, "kv_policy",
                            "unknown KV policy \"%.*s\": known are %s",
                            n > 64 ? 64 : (int) n, spec, tr_kv_policy_names());
    }
    if (spec[n] == ':' && spec[n + 1] == '\0') {
        return tr_error_set(err, TR_ERR_INVALID, "kv_policy",
                            "KV policy \"%s:\": expected settings after the"
                            " colon, as in %s:KEY=VALUE,KEY=VALUE",
                            kind->name, kind->name);
    }
    p = calloc(1, sizeof(*p));
    if (p == NULL) {
        return tr_error_set(err, TR_ERR_NOMEM, "kv_policy",
                            "no memory for a KV policy");
    }
    p->name = kind->name;
    p->layers_of = layers;
    p->lists_of = lists;
    rc = build(kind, spec[n] == ':' ? spec + n + 1 : "", head_dim, p, err);
    if (rc != TR_OK) {
        tr_kv_policy_free(p);
        return rc;
    }
    *out = p;
    return TR_OK;
}

void
tr_kv_policy_free(tr_kv_policy_t *p)
{
    if (p != NULL) {
        free((void *) (uintptr_t) p->alpha_of);
        free(p);
    }
}
