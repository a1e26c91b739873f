/*
 * The table of policies, and creation from "NAME:KEY=VALUE,KEY=VALUE".
 *
 * A row (one file each) fills in the rule and defaults, the settings are read
 * over them (kv_policy_settings.c), and the row checks the result.  `spec` is
 * then printed from what was understood, so that two spellings of one policy
 * have one name in results and logs.
 */
#include "kv_policy.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kv_policy_internal.h"
#include "engine/config/log.h"

/* In the order in which they are listed for users. */
#define POLICIES(X) \
    X(full)         \
    X(uniform)      \
    X(diffkv)       \
    X(static)       \
    X(int4)         \
    X(kivi)         \
    X(snapkv)       \
    X(h2o)          \
    X(streamingllm) \
    X(quest)

#define ROW_OF(name) &tr_kv_policy_##name,
static const tr_kv_policy_row_t *const rows[] = { POLICIES(ROW_OF) };

#define N_ROWS (sizeof(rows) / sizeof(rows[0]))

const char *
tr_kv_policy_names(void)
{
#define NAME_OF(name) ", " #name
    return &(POLICIES(NAME_OF))[2];
}

static const tr_kv_policy_row_t *
find_row(const char *name, size_t n)
{
    for (size_t i = 0; i < N_ROWS; i++) {
        if (strlen(rows[i]->name) == n && memcmp(rows[i]->name, name, n) == 0) {
            return rows[i];
        }
    }
    return NULL;
}

static tr_status_t
build(const tr_kv_policy_row_t *row, const char *settings, uint32_t head_dim,
      tr_kv_policy_t *p, tr_error_t *err)
{
    tr_status_t rc;

    p->leaves = 1;
    p->groups = 1;
    row->init(p, head_dim);
    rc = tr_kv_settings_read(row, settings, p, err);
    if (rc == TR_OK && row->check != NULL) {
        rc = row->check(p, head_dim, err);
    }
    return rc == TR_OK ? tr_kv_settings_print(row, p, err) : rc;
}

tr_status_t
tr_kv_policy_create(const char *spec, uint32_t layers, uint32_t kv_heads,
                    uint32_t head_dim, tr_kv_policy_t **out, tr_error_t *err)
{
    size_t n = strcspn(spec, ":");
    const tr_kv_policy_row_t *row = find_row(spec, n);
    tr_kv_policy_t *p;
    tr_status_t rc;

    *out = NULL;
    if (row == NULL) {
        return tr_error_set(err, TR_ERR_INVALID, "kv_policy",
                            "unknown KV policy \"%.*s\": known are %s",
                            n > 64 ? 64 : (int) n, spec, tr_kv_policy_names());
    }
    if (spec[n] == ':' && spec[n + 1] == '\0') {
        return tr_error_set(err, TR_ERR_INVALID, "kv_policy",
                            "KV policy \"%s:\": expected settings after the"
                            " colon, as in %s:KEY=VALUE,KEY=VALUE",
                            row->name, row->name);
    }
    p = calloc(1, sizeof(*p));
    if (p == NULL) {
        return tr_error_set(err, TR_ERR_NOMEM, "kv_policy",
                            "no memory for a KV policy");
    }
    p->row = row;
    p->name = row->name;
    p->layers_of = layers;
    p->kv_heads_of = kv_heads;
    rc = build(row, spec[n] == ':' ? spec + n + 1 : "", head_dim, p, err);
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

/* ---- prompts in stages -------------------------------------------------- */

/* Can it decide at a prompt's end about tokens that were compressed before? */
static bool
decides_later(const tr_kv_policy_t *p)
{
    for (uint32_t l = 0; l < p->n_levels; l++) {
        if (p->level[l].by_channel) {
            return false;
        }
    }
    return p->observe == 0
           && (p->kind == TR_KV_RULE_ALL || p->kind == TR_KV_RULE_THRESHOLD);
}

tr_status_t
tr_kv_policy_prefill(const tr_kv_policy_t *p, const char *level,
                     tr_error_t *err)
{
    const tr_kv_level_t *best = &p->level[0];
    char text[16];

    if (strcmp(level, TR_KV_PREFILL_NONE) == 0) {
        return TR_OK;
    }
    if (p->n_levels == 0 || !decides_later(p)) {
        return tr_error_set(err, TR_ERR_UNSUPPORTED, "prefill_level",
                            "prefill_level %.8s: KV policy %.64s %s; "
                            "expected " TR_KV_PREFILL_NONE,
                            level, p->name,
                            p->n_levels == 0
                                ? "leaves all prompts at 16 bits"
                                : "decides by what a whole prompt has at 16"
                                  " bits");
    }
    snprintf(text, sizeof(text), "%u/%u", best->key_bits, best->value_bits);
    if (strcmp(level, text) != 0) {
        return tr_error_set(err, TR_ERR_INVALID, "prefill_level",
                            "prefill_level %.8s: the best level of KV policy"
                            " %.64s is %s; expected that, "
                            "or " TR_KV_PREFILL_NONE,
                            level, p->name, text);
    }
    return TR_OK;
}

/* ---- cutting ------------------------------------------------------------ */

bool
tr_kv_policy_forgets(const tr_kv_policy_t *p)
{
    if (p->alpha_of == NULL) {
        return p->alpha_low > 0;
    }
    for (uint32_t i = 0; i < p->layers_of * p->kv_heads_of; i++) {
        if (p->alpha_of[2 * i + 1] > 0) {
            return true;
        }
    }
    return false;
}

uint8_t
tr_kv_policy_settled(const tr_kv_policy_t *p)
{
    return p->kind == TR_KV_RULE_THRESHOLD && p->n_levels != 0
           && !tr_kv_policy_forgets(p);
}

/* Does it keep every token, by token? */
static bool
keeps(const tr_kv_policy_t *p)
{
    for (uint32_t l = 0; l < p->n_levels; l++) {
        if (p->level[l].by_channel) {
            return false;
        }
    }
    return p->n_levels != 0
           && (p->kind == TR_KV_RULE_ALL
               || (p->kind == TR_KV_RULE_THRESHOLD
                   && !tr_kv_policy_forgets(p)));
}

bool
tr_kv_policy_cuts(const tr_kv_policy_t *p)
{
    for (uint32_t l = 0; l < p->n_levels && p->kind != TR_KV_RULE_ALL; l++) {
        if (!p->level[l].scored && !p->level[l].placed) {
            return false;
        }
    }
    return keeps(p);
}

void
tr_kv_policy_position(tr_kv_policy_t *p)
{
    if (p->kind == TR_KV_RULE_ALL || !keeps(p)) {
        return;
    }
    for (uint32_t l = 0; l < p->n_levels; l++) {
        p->level[l].placed = !p->level[l].scored;
    }
}
