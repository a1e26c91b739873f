/*
 * kv_guard.h: which prompt is watched, its queries, and what came of it by
 * policy.
 */
#include "kv_guard.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/config/log.h"
#include "kernels/kernels.h"

/* Weight of the newest prompt in a policy's mean, when it has some. */
#define NEWEST 0.25
/* A policy is well again below this share of the bound. */
#define WELL 0.8

typedef struct {
    char spec[TR_KV_SPEC_MAX + 1];
    uint64_t prompts;
    tr_kv_guard_error_t mean;
    bool over;
} policy_t;

struct tr_kv_guard {
    tr_kv_guard_config_t config;
    uint32_t layer[TR_KV_GUARD_LAYERS], n_layers;
    uint32_t since; /* prompts since one was watched */

    int32_t slot;  /* -1: nobody is watched */
    bool asked;    /* by name */
    bool compared; /* since it is watched */
    uint32_t len,
        first; /* queries of [first, len) are kept; len - first: none */
    /* [layers][QUERIES][heads * head_dim]: the query at len - QUERIES + i */
    float *queries;
    size_t layer_floats, row_floats;
    tr_kv_change_t *change; /* [layers][kv_heads][head_dim] */
    void *work;
    tr_kv_guard_error_t last;

    policy_t policy[TR_KV_GUARD_POLICIES];
    uint32_t n_policies;
};

static bool
slides(const tr_kv_guard_config_t *config, uint32_t layer)
{
    return config->reach != NULL && config->reach[layer] != 0;
}

/* Of the layers that are compressed the first, the last, and some between. */
static void
choose_layers(tr_kv_guard_t *g, const tr_kv_guard_config_t *config)
{
    uint32_t n = 0, at = 0, i = 0;

    for (uint32_t l = 0; l < config->layers; l++) {
        n += !slides(config, l);
    }
    g->n_layers = n < TR_KV_GUARD_LAYERS ? n : TR_KV_GUARD_LAYERS;
    for (uint32_t l = 0; l < config->layers && i < g->n_layers; l++) {
        if (slides(config, l)) {
            continue;
        }
        if (at++ == (g->n_layers == 1 ? 0 : i * (n - 1) / (g->n_layers - 1))) {
            g->layer[i++] = l;
        }
    }
    g->config.reach = NULL;
}

tr_status_t
tr_kv_guard_create(const tr_kv_guard_config_t *config, tr_kv_guard_t **out,
                   tr_error_t *err)
{
    tr_kv_guard_t *g = calloc(1, sizeof(*g));
    size_t work = 0;

    if (g == NULL) {
        return tr_error_set(err, TR_ERR_NOMEM, "kv_guard", "out of memory");
    }
    g->config = *config;
    g->slot = -1;
    g->since = config->every; /* the first prompt tells at once */
    choose_layers(g, config);
    g->row_floats = (size_t) config->heads * config->head_dim;
    g->layer_floats = TR_KV_GUARD_QUERIES * g->row_floats;
    g->change = calloc((size_t) g->n_layers * config->kv_heads,
                       config->head_dim * sizeof(*g->change));
    if (config->kernels != NULL) {
        work = config->kernels->kv_compare_work(&config->stream,
                                                TR_KV_GUARD_QUERIES,
                                                config->heads, config->kv_heads,
                                                config->head_dim);
        g->queries = calloc(g->n_layers, g->layer_floats * sizeof(float));
        g->work = aligned_alloc(64, tr_pad(work, 64));
    }
    if (g->change == NULL
        || (config->kernels != NULL
            && (g->queries == NULL || g->work == NULL))) {
        tr_error_set(err, TR_ERR_NOMEM, "kv_guard",
                     "out of memory: %zu bytes for queries, %zu to compare "
                     "them",
                     g->n_layers * g->layer_floats * sizeof(float), work);
        tr_kv_guard_free(g);
        return TR_ERR_NOMEM;
    }
    *out = g;
    return TR_OK;
}

void
tr_kv_guard_free(tr_kv_guard_t *g)
{
    if (g != NULL) {
        free(g->queries);
        free(g->change);
        free(g->work);
        free(g);
    }
}

/* ---- one prompt --------------------------------------------------------- */

void
tr_kv_guard_watch(tr_kv_guard_t *g, int32_t slot, uint32_t len)
{
    g->slot = slot;
    g->len = g->first = len;
    g->asked = true;
    g->compared = false;
}

void
tr_kv_guard_follow(tr_kv_guard_t *g, int32_t slot)
{
    g->slot = slot;
    g->compared = false;
}

bool
tr_kv_guard_last(const tr_kv_guard_t *g, tr_kv_guard_error_t *out)
{
    *out = g->last;
    return g->compared;
}

void
tr_kv_guard_begin(tr_kv_guard_t *g, int32_t slot, uint32_t len)
{
    tr_kv_guard_forget(g, slot);
    if (g->config.every == 0 || len < TR_KV_GUARD_TOKENS) {
        return;
    }
    if (++g->since >= g->config.every && g->slot < 0) {
        g->since = 0;
        tr_kv_guard_watch(g, slot, len);
        g->asked = false;
    }
}

void
tr_kv_guard_forget(tr_kv_guard_t *g, int32_t slot)
{
    if (g->slot == slot) {
        g->slot = -1;
        if (!g->compared) { /* the next takes its turn */
            g->since = g->config.every;
        }
    }
}

bool
tr_kv_guard_rows(tr_kv_guard_t *g, int32_t slot, uint32_t pos, uint32_t row,
                 uint32_t n, tr_kv_guard_rows_t *out)
{
    uint32_t end = pos + n < g->len ? pos + n : g->len, from = pos;

    if (g->slot < 0 || slot != g->slot) {
        return false;
    }
    if (g->len > TR_KV_GUARD_QUERIES && from < g->len - TR_KV_GUARD_QUERIES) {
        from = g->len - TR_KV_GUARD_QUERIES;
    }
    if (from >= end) {
        return false;
    }
    out->row = row + (from - pos);
    out->n = end - from;
    out->at = from + TR_KV_GUARD_QUERIES - g->len;
    g->first = from < g->first ? from : g->first;
    return true;
}

const uint32_t *
tr_kv_guard_layers(const tr_kv_guard_t *g, uint32_t *n)
{
    *n = g->n_layers;
    return g->layer;
}

void
tr_kv_guard_take(tr_kv_guard_t *g, uint32_t layer, const tr_rows_t *rows,
                 const float *q, size_t ldq)
{
    uint32_t i = 0;

    while (i < g->n_layers && g->layer[i] != layer) {
        i++;
    }
    for (uint32_t s = 0; s < rows->n_seqs && i < g->n_layers; s++) {
        uint32_t row = rows->seq_row[s];
        tr_kv_guard_rows_t r;

        if (rows->seq_slot[s] != g->slot
            || !tr_kv_guard_rows(g, g->slot, rows->row_pos[row], row,
                                 rows->seq_row[s + 1] - row, &r)) {
            continue;
        }
        for (uint32_t k = 0; k < r.n; k++) {
            memcpy(g->queries + i * g->layer_floats
                       + (r.at + k) * g->row_floats,
                   q + (r.row + k) * ldq, g->row_floats * sizeof(float));
        }
    }
}

/* How many queries a prompt of so many tokens is asked. */
static uint32_t
queries_for(const tr_kv_guard_t *g, uint32_t tokens)
{
    uint64_t one = (uint64_t) tokens * g->row_floats * 6 * g->n_layers;
    uint64_t n = g->config.work / (one == 0 ? 1 : one);

    n = n < 1 ? 1 : n;
    return n < TR_KV_GUARD_QUERIES ? (uint32_t) n : TR_KV_GUARD_QUERIES;
}

/* The median of a head's channels, by bisection: nothing is moved.  A channel
 * that is 0 and stays 0 has no error. */
static double
median(const tr_kv_change_t *c, uint32_t n, bool keys)
{
    double low = 0, high = 16;

    for (uint32_t turn = 0; turn < 24; turn++) {
        double middle = (low + high) / 2;
        uint32_t below = 0;

        for (uint32_t i = 0; i < n; i++) {
            below += (keys ? c[i].keys : c[i].values)
                     <= middle * middle * c[i].whole;
        }
        if (2 * below < n) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}

/* The head that is worst off, for keys and for values. */
static tr_kv_guard_error_t
pool(const tr_kv_guard_t *g, const tr_kv_change_t *change)
{
    uint32_t dim = g->config.head_dim;
    tr_kv_guard_error_t e = { .keys = 0 };

    for (uint32_t i = 0; i < g->n_layers * g->config.kv_heads; i++) {
        const tr_kv_change_t *c = change + (size_t) i * dim;
        tr_kv_guard_place_t at = { g->layer[i / g->config.kv_heads],
                                   i % g->config.kv_heads };
        double keys = median(c, dim, true), values = median(c, dim, false);

        if (keys > e.keys) {
            e.keys = keys;
            e.keys_at = at;
        }
        if (values > e.values) {
            e.values = values;
            e.values_at = at;
        }
    }
    return e;
}

bool
tr_kv_guard_ask(tr_kv_guard_t *g, int32_t slot, uint32_t base, uint32_t n,
                tr_kv_compare_t *out)
{
    uint32_t kept = g->len - g->first, wanted;

    if (g->slot != slot || g->first == g->len || base + n != g->len) {
        return false;
    }
    kept = kept < n ? kept : n;
    wanted = queries_for(g, g->len);
    if (kept < wanted && kept < TR_KV_GUARD_QUERIES_MIN && !g->asked) {
        return false;
    }
    wanted = wanted < kept ? wanted : kept;
    *out = (tr_kv_compare_t){ .n_layers = g->n_layers,
                              .layer = g->layer,
                              .first = g->len - wanted,
                              .n = wanted,
                              .heads = g->config.heads,
                              .scale = g->config.scale,
                              .change = g->change };
    return true;
}

bool
tr_kv_guard_answered(tr_kv_guard_t *g, const tr_kv_change_t *change,
                     tr_kv_guard_error_t *out)
{
    size_t n = (size_t) g->n_layers * g->config.kv_heads * g->config.head_dim;
    bool any = n == 0; /* nothing is compressed */

    for (size_t i = 0; i < n && !any; i++) {
        any = change[i].whole != 0;
    }
    if (any) {
        g->last = *out = pool(g, change);
        g->compared = true;
    }
    return any;
}

bool
tr_kv_guard_compare(tr_kv_guard_t *g, const tr_kv_view_t *kv,
                    const tr_kv_compress_t *c, tr_kv_guard_error_t *out)
{
    const tr_kv_guard_config_t *f = &g->config;
    tr_kv_compare_t q;

    if (!tr_kv_guard_ask(g, c->slot, kv->seq[c->slot].base, c->n_uncompressed,
                         &q)) {
        return false;
    }
    q.q = g->queries + (TR_KV_GUARD_QUERIES - q.n) * g->row_floats;
    q.ld = g->layer_floats;
    q.sinks = f->sinks;
    return f->kernels->kv_compare(&f->stream, kv, c, &q, g->work)
               == TR_KERNEL_OK
           && tr_kv_guard_answered(g, g->change, out);
}

/* ---- what prompts say together ------------------------------------------ */

/* NULL: there is no room for one more. */
static policy_t *
policy_of(tr_kv_guard_t *g, const char *spec)
{
    for (uint32_t i = 0; i < g->n_policies; i++) {
        if (strcmp(g->policy[i].spec, spec) == 0) {
            return &g->policy[i];
        }
    }
    if (g->n_policies == TR_KV_GUARD_POLICIES) {
        return NULL;
    }
    memcpy(g->policy[g->n_policies].spec, spec, strlen(spec) + 1);
    return &g->policy[g->n_policies++];
}

/* Is it above this share of the bounds? */
static bool
is_over(const tr_kv_guard_error_t *e, double share)
{
    return e->keys > share * TR_KV_GUARD_KEYS
           || e->values > share * TR_KV_GUARD_VALUES;
}

static void
say(const policy_t *p)
{
    const tr_kv_guard_error_t *e = &p->mean;

    if (p->over) {
        tr_log(TR_LEVEL_WARN,
               "kv guard: this model's keys and values do not suit KV policy "
               "%s:"
               " it loses answers. With compressed keys attention moves by"
               " %.1f%% (KV head %u of layer %u), expected at most %.0f%%; with"
               " compressed values by %.1f%% (KV head %u of layer %u), expected"
               " at most %.0f%% (prompts=%llu). Try"
               " kv_equalise yes, kv_centre auto and kv_rotate kv where they "
               "are"
               " off, exact first tokens "
               "(sinks=4,window=32,window_level=16/16),"
               " or more bits, as uniform:levels=8/4 has:"
               " docs/kv-cache.md, The guard",
               p->spec, 100 * e->keys, e->keys_at.head, e->keys_at.layer,
               100 * TR_KV_GUARD_KEYS, 100 * e->values, e->values_at.head,
               e->values_at.layer, 100 * TR_KV_GUARD_VALUES,
               (unsigned long long) p->prompts);
    } else {
        tr_log(TR_LEVEL_NOTICE,
               "kv guard: KV policy %s suits this model's keys and values "
               "again:"
               " attention moves by %.1f%% and %.1f%% (prompts=%llu)",
               p->spec, 100 * e->keys, 100 * e->values,
               (unsigned long long) p->prompts);
    }
}

void
tr_kv_guard_count(tr_kv_guard_t *g, const tr_kv_policy_t *policy,
                  const tr_kv_guard_error_t *error)
{
    policy_t *p = g->config.every != 0 ? policy_of(g, policy->spec) : NULL;
    double weight;
    bool over;

    if (p == NULL) {
        return;
    }
    weight = p->prompts++ == 0 ? 1 : NEWEST;
    p->mean.keys += weight * (error->keys - p->mean.keys);
    p->mean.values += weight * (error->values - p->mean.values);
    p->mean.keys_at = error->keys_at;
    p->mean.values_at = error->values_at;
    over = is_over(&p->mean, p->over ? WELL : 1);
    if (over != p->over) {
        p->over = over;
        say(p);
    }
}

void
tr_kv_guard_state(const tr_kv_guard_t *g, tr_kv_guard_state_t *out)
{
    memset(out, 0, sizeof(*out));
    for (uint32_t i = 0; g != NULL && i < g->n_policies; i++) {
        const policy_t *p = &g->policy[i];

        out->prompts += p->prompts;
        out->over += p->over;
        out->error.keys = fmax(out->error.keys, p->mean.keys);
        out->error.values = fmax(out->error.values, p->mean.values);
    }
}
