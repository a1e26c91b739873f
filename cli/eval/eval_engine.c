/*
 * The model under evaluation (eval_engine.h).
 */
#include "eval_engine.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/base/hash.h"
#include "engine/config/log.h"
#include "engine/model/model_config.h"
#include "engine/model/centre.h"
#include "engine/model/rotate.h"

#include "eval_case.h"

/* Prompts that are under way beside the answers. */
#define EXTRA_SLOTS 24u
#define EDGE_BYTES 65536

/* ---- the model's identity ----------------------------------------------- */

/* A file by its name, size and both ends: the whole of a large model would take
 * longer than it is worth. */
static uint64_t
hash_file(uint64_t hash, const char *path, const char *name)
{
    static char edge[EDGE_BYTES];
    FILE *f = fopen(path, "re");
    struct stat st;
    size_t n;

    if (f == NULL) {
        return hash;
    }
    hash = tr_fnv1a_64(hash, name, strlen(name));
    if (fstat(fileno(f), &st) == 0) {
        hash = tr_fnv1a_64(hash, &st.st_size, sizeof(st.st_size));
        n = fread(edge, 1, sizeof(edge), f);
        hash = tr_fnv1a_64(hash, edge, n);
        if (st.st_size > EDGE_BYTES
            && fseeko(f, st.st_size - EDGE_BYTES, SEEK_SET) == 0) {
            n = fread(edge, 1, sizeof(edge), f);
            hash = tr_fnv1a_64(hash, edge, n);
        }
    }
    fclose(f);
    return hash;
}

static bool
ends_with(const char *name, const char *end)
{
    size_t n = strlen(name), k = strlen(end);

    return n >= k && strcmp(name + n - k, end) == 0;
}

/* What changes answers but by a policy; defaults leave the hash alone. */
static uint64_t
hash_settings(uint64_t hash, const tr_config_t *c)
{
    if (!c->kv_equalise) {
        hash = tr_fnv1a_64(hash, "as it is", 8);
    }
    if (strcmp(c->kv_reuse, "no") == 0) { /* then levels are as small */
        hash = tr_fnv1a_64(hash, c->kv_reuse, strlen(c->kv_reuse));
    }
    if (strcmp(c->kv_rotate, "off") != 0) {
        hash = tr_fnv1a_64(hash, c->kv_rotate, strlen(c->kv_rotate));
    }
    if (strcmp(c->kv_centre, "off") != 0) {
        hash = tr_fnv1a_64(hash, "centred", 7);
    }
    if (strcmp(c->prefill_level, TR_KV_PREFILL_NONE) != 0) {
        hash = tr_fnv1a_64(hash, c->prefill_level, strlen(c->prefill_level));
    }
    return hash;
}

/* What decides the answers: configuration, weights, tokenizer. */
static uint64_t
hash_model(const char *dir)
{
    struct dirent **names;
    uint64_t hash = TR_FNV1A_64;
    char path[TR_CONFIG_PATH + 300];
    int n = scandir(dir, &names, NULL, alphasort);

    for (int i = 0; i < n; i++) {
        const char *name = names[i]->d_name;

        if (ends_with(name, ".safetensors") || strcmp(name, "config.json") == 0
            || strcmp(name, "generation_config.json") == 0
            || strcmp(name, "tokenizer.json") == 0
            || strcmp(name, "tokenizer_config.json") == 0) {
            snprintf(path, sizeof(path), "%.500s/%.255s", dir, name);
            hash = hash_file(hash, path, name);
        }
        free(names[i]);
    }
    if (n >= 0) {
        free(names);
    }
    return hash;
}

/* ---- open --------------------------------------------------------------- */

static tr_status_t
configure(tr_eval_engine_t *e, const tr_eval_engine_options_t *o,
          tr_error_t *err)
{
    tr_config_t *c = &e->config;
    tr_status_t rc;
    char number[32];

    tr_config_defaults(c);
    rc = tr_config_set(c, "-m", "model", o->dir, err);
    if (rc == TR_OK) {
        rc = tr_config_set(c, "log_level", "log_level",
                           o->verbose ? "info" : "warn", err);
    }
    if (rc == TR_OK) {
        rc = tr_config_set(c, "--kv-memory", "kv_memory",
                           o->kv_memory ? o->kv_memory : "2g", err);
    }
    if (rc == TR_OK && o->reuse) {
        rc = tr_config_set(c, "--set", "kv_reuse", "yes", err);
    }
    snprintf(number, sizeof(number), "%lld", (long long) o->threads);
    if (rc == TR_OK) {
        rc = tr_config_set(c, "--threads", "threads", number, err);
    }
    for (unsigned i = 0; i < o->set->n && rc == TR_OK; i++) {
        const char *item = o->set->item[i], *equals = strchr(item, '=');
        char key[64];

        if (equals == NULL || (size_t) (equals - item) >= sizeof(key)) {
            return tr_error_set(err, TR_ERR_INVALID, "",
                                "--set %.100s: expected KEY=VALUE, as in "
                                "--set max_model_len=2048",
                                item);
        }
        snprintf(key, sizeof(key), "%.*s", (int) (equals - item), item);
        rc = tr_config_set(c, "--set", key, equals + 1, err);
    }
    e->batch = (uint32_t) o->batch;
    c->max_num_seqs = e->batch + EXTRA_SLOTS;
    if (c->max_batch_tokens < 2 * c->max_num_seqs) {
        c->max_batch_tokens = 2 * c->max_num_seqs;
    }
    if (rc == TR_OK) {
        rc = tr_config_finish(c, err);
    }
    c->swap_memory = 0; /* nobody is preempted here */
    return rc;
}

/* Prefixes are shared between cases of many lengths, so all of them have the
 * rotary frequencies of short sequences. */
static void
bound_by_rope(tr_eval_engine_t *e, const tr_recipe_t *r)
{
    uint32_t from = tr_recipe_long_from(r);

    if (from != 0
        && (e->config.max_model_len == 0 || e->config.max_model_len > from)) {
        tr_log(TR_LEVEL_WARN,
               "longrope: only sequences of up to %u tokens are evaluated",
               from);
        e->config.max_model_len = from;
    }
}

static tr_status_t
add_policy(tr_eval_engine_t *e, const char *spec, bool reused, tr_error_t *err)
{
    uint32_t i = e->n_policies;
    tr_kv_source_t source;
    tr_status_t rc;

    rc = tr_kv_policy_open(e->config.model, spec, e->layers, e->kv_heads,
                           e->head_dim, &e->policy[i], &source, err);
    if (rc == TR_OK && e->policy[i]->n_levels != 0) {
        rc = tr_kv_policy_prefill(e->policy[i], e->config.prefill_level, err);
    }
    if (rc != TR_OK) {
        tr_kv_policy_free(e->policy[i]);
        e->policy[i] = NULL;
        return rc;
    }
    e->n_policies++;
    e->reused[i] = reused;
    if (tr_executor_reuses_compressed(&e->config)) {
        tr_kv_policy_position(e->policy[i]);
    }
    if (asprintf(&e->label[i], "%s%s", spec, reused ? ", reused" : "") < 0
        || asprintf(&e->spec[i], "%s%s", e->policy[i]->spec,
                    reused ? ", reused" : "")
               < 0) {
        return tr_error_set(err, TR_ERR_NOMEM, "", "out of memory");
    }
    rc = tr_kv_policy_plan(e->policy[i], e->head_dim, e->max_len, &e->plan[i]);
    return rc == TR_OK ? rc
                       : tr_error_set(err, rc, "policy",
                                      "%.200s: no page fits its levels", spec);
}

/* Has the model a layer whose keys can be centred? */
static bool
has_centre(const tr_recipe_t *r)
{
    for (uint32_t l = 0; l < r->layers; l++) {
        if (tr_centre_fits(r, l)) {
            return true;
        }
    }
    return false;
}

/* kv_rotate auto and kv_centre auto are what an engine with these policies makes
 * of them. */
static void
resolve_basis(tr_eval_engine_t *e, const tr_model_config_t *m,
              const char *const *specs, uint32_t n)
{
    tr_config_t *c = &e->config;
    uint32_t bits = tr_rotate_bits(c->kv_rotate);
    bool cuda = strcmp(c->backend, "cuda") == 0, full = true;
    bool packed = strcmp(c->weights_format, "auto") == 0;
    bool quantised = !cuda && strcmp(c->cpu_weights, "auto") != 0;

    for (uint32_t i = 0; i < n; i++) {
        full = full && strcmp(specs[i], "full") == 0;
    }
    if (bits == TR_ROTATE_AUTO) {
        bits = full ? 0 : tr_rotate_resolve(m, bits, packed, quantised);
        snprintf(c->kv_rotate, sizeof(c->kv_rotate), "%s",
                 tr_rotate_name(bits));
    }
    if (full || !has_centre(&m->recipe)) {
        snprintf(c->kv_centre, sizeof(c->kv_centre), "off");
    }
}

static tr_status_t
read_policies(tr_eval_engine_t *e, const char *const *specs, uint32_t n,
              bool reuse, tr_error_t *err)
{
    tr_model_config_t m;
    tr_status_t rc = tr_model_config_load(e->config.model,
                                          e->config.ignore_config, &m, err);

    if (rc == TR_OK && n > TR_EVAL_POLICIES_MAX / (reuse ? 2 : 1)) {
        rc = tr_error_set(err, TR_ERR_INVALID, "policy",
                          "%u policies, expected at most %u", n,
                          TR_EVAL_POLICIES_MAX / (reuse ? 2 : 1));
    }
    if (rc == TR_OK) {
        resolve_basis(e, &m, specs, n);
        bound_by_rope(e, &m.recipe);
        e->layers = m.recipe.layers;
        e->kv_heads = m.recipe.kv_heads;
        e->head_dim = m.recipe.head_dim;
        e->max_len = e->config.max_model_len != 0
                             && e->config.max_model_len < m.recipe.max_positions
                         ? e->config.max_model_len
                         : m.recipe.max_positions;
    }
    for (uint32_t i = 0; i < n && rc == TR_OK; i++) {
        rc = add_policy(e, specs[i], false, err);
        if (rc == TR_OK && reuse) {
            rc = add_policy(e, specs[i], true, err);
        }
    }
    return rc;
}

tr_status_t
tr_eval_engine_open(const tr_eval_engine_options_t *o, const char *const *specs,
                    uint32_t n, tr_eval_engine_t *e, tr_error_t *err)
{
    tr_status_t rc;

    *e = (tr_eval_engine_t){ 0 };
    rc = configure(e, o, err);
    if (rc == TR_OK) {
        tr_log_open("stderr", e->config.log_level);
        rc = tr_tokenizer_load(e->config.model, &e->tokenizer, err);
    }
    if (rc == TR_OK) {
        rc = tr_chat_template_load(e->config.model, e->config.chat_template,
                                   e->tokenizer, &e->chat, err);
    }
    if (rc == TR_OK) {
        e->scratch = tr_tokenizer_scratch_new(e->tokenizer);
        if (e->scratch == NULL) {
            rc = tr_error_set(err, TR_ERR_NOMEM, "", "out of memory");
        }
    }
    if (rc == TR_OK) {
        rc = read_policies(e, specs, n, o->reuse, err);
    }
    if (rc == TR_OK) {
        e->model_hash = hash_model(e->config.model);
        e->model_hash = hash_settings(e->model_hash, &e->config);
    } else {
        tr_eval_engine_close(e);
    }
    return rc;
}

void
tr_eval_engine_close(tr_eval_engine_t *e)
{
    tr_eval_engine_stop(e);
    for (uint32_t i = 0; i < e->n_policies; i++) {
        tr_kv_policy_free(e->policy[i]);
        free(e->label[i]);
        free(e->spec[i]);
    }
    if (e->scratch != NULL) {
        tr_tokenizer_scratch_free(e->scratch);
    }
    tr_chat_template_free(&e->chat);
    if (e->tokenizer != NULL) {
        tr_tokenizer_free(e->tokenizer);
    }
    *e = (tr_eval_engine_t){ 0 };
}

/* ---- start -------------------------------------------------------------- */

/* Quest reads by the page, and the page's size depends on the levels: it goes
 * with policies that have none, so that its pages are those of its own engine.
 */
static bool
goes_with(const tr_eval_engine_t *e, const tr_kv_policy_t *p)
{
    bool minmax = p->minmax, levels = p->n_levels != 0;

    for (uint32_t i = 0; i < e->n_policies; i++) {
        if (e->running[i]) {
            minmax = minmax || e->policy[i]->minmax;
            levels = levels || e->policy[i]->n_levels != 0;
        }
    }
    return !(minmax && levels);
}

/* Of the window, sinks included. */
static uint32_t
places(const tr_kv_policy_t *p)
{
    return p->window + tr_kv_rule_sinks(&p->rule, UINT32_MAX);
}

/* Thresholds by head are sent to a device when its cache is made. */
static bool
same_heads(const tr_kv_policy_t *a, const tr_kv_policy_t *b)
{
    size_t n = 2 * (size_t) b->layers_of * b->kv_heads_of;

    return b->alpha_of == NULL
           || (a->alpha_of != NULL
               && memcmp(a->alpha_of, b->alpha_of, n * sizeof(double)) == 0);
}

/* Does a cache that was made for `a` take slots of `b`, too? */
static bool
covers(const tr_kv_policy_t *a, const tr_kv_policy_t *b)
{
    if (!same_heads(a, b) || a->n_levels != b->n_levels || places(a) < places(b)
        || a->scored < b->scored || a->minmax < b->minmax
        || b->row->begin != NULL) {
        return false;
    }
    for (uint32_t i = 0; i < a->n_levels; i++) {
        if (!tr_kv_level_equal(&a->level[i], &b->level[i])) {
            return false;
        }
    }
    return a->n_levels == 0 || a->window == 0
           || tr_kv_level_equal(&a->window_level, &b->window_level);
}

static bool
add_level(const tr_kv_level_t *l, tr_kv_level_t *levels, uint32_t *n)
{
    for (uint32_t i = 0; i < *n; i++) {
        if (tr_kv_level_equal(l, &levels[i])) {
            return true;
        }
    }
    if (*n == TR_KV_LAYOUTS_MAX - 1) {
        return false;
    }
    levels[(*n)++] = *l;
    return true;
}

/* Adds the policy's levels to those of the cache; false when they are too many,
 * then nothing was added. */
static bool
add_levels(const tr_kv_policy_t *p, tr_kv_level_t *levels, uint32_t *n)
{
    uint32_t before = *n;
    bool ok = true;

    for (uint32_t i = 0; i < p->n_levels && ok; i++) {
        ok = add_level(&p->level[i], levels, n);
    }
    if (ok && p->n_levels != 0 && p->window != 0) {
        ok = add_level(&p->window_level, levels, n);
    }
    *n = ok ? *n : before;
    return ok;
}

/* Writes into the configuration as many of the wanted policies as one cache
 * takes; those that differ only in thresholds or budgets share an entry. */
static void
take_policies(tr_eval_engine_t *e, const bool *wanted)
{
    tr_config_t *c = &e->config;
    tr_kv_level_t levels[TR_KV_LAYOUTS_MAX];
    const tr_kv_policy_t *listed[TR_EXECUTOR_POLICIES];
    uint32_t n = 0, n_levels = 0, k;
    size_t len = 0;

    c->kv_policies[0] = '\0';
    for (uint32_t i = 0; i < e->n_policies; i++) {
        const tr_kv_policy_t *p = e->policy[i];
        size_t more = strlen(p->spec) + 1;

        if (!wanted[i] || !goes_with(e, p)) {
            continue;
        }
        for (k = 0; k < n && !covers(listed[k], p); k++) {
        }
        if (k == n) {
            if (n == TR_EXECUTOR_POLICIES
                || len + more >= sizeof(c->kv_policies)
                || !add_levels(p, levels, &n_levels)) {
                continue;
            }
            if (n == 0) {
                snprintf(c->kv_policy, sizeof(c->kv_policy), "%s", p->spec);
            } else {
                len += (size_t) snprintf(c->kv_policies + len,
                                         sizeof(c->kv_policies) - len, "%s ",
                                         p->spec);
            }
            listed[n++] = p;
        }
        e->running[i] = true;
    }
}

tr_status_t
tr_eval_engine_start(tr_eval_engine_t *e, const bool *wanted, tr_error_t *err)
{
    tr_status_t rc;

    take_policies(e, wanted);
    rc = tr_executor_open(&e->config, &e->x, err);
    for (uint32_t i = 0; i < e->n_policies && rc == TR_OK; i++) {
        if (e->running[i] && e->reused[i]
            && !tr_kv_reuses(e->x->kv, e->policy[i])) {
            rc = tr_error_set(err, TR_ERR_UNSUPPORTED, "policy",
                              "prefixes are not reused under %.200s here: leave"
                              " it out, or --shared-prefix and --regenerate",
                              e->policy[i]->spec);
        }
    }
    if (rc != TR_OK) {
        tr_eval_engine_stop(e);
    }
    return rc;
}

void
tr_eval_engine_stop(tr_eval_engine_t *e)
{
    if (e->x != NULL) {
        e->x->free(e->x);
        e->x = NULL;
    }
    memset(e->running, 0, sizeof(e->running));
}

bool
tr_eval_is_end(const tr_eval_engine_t *e, int32_t token)
{
    for (uint32_t i = 0; i < e->x->n_eos; i++) {
        if (e->x->eos[i] == token) {
            return true;
        }
    }
    return e->chat.end_of_turn >= 0 && token == e->chat.end_of_turn;
}
