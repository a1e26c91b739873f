/*
 * manager_pools.h: a random pool with random policies, on the CPU and on the
 * device of manager_fixture.h.
 */
#ifndef TR_TESTS_GPU_MANAGER_POOLS_H
#define TR_TESTS_GPU_MANAGER_POOLS_H

#include "manager_fixture.h"

static const char *const fixture_specs[] = {
    "full",
    "uniform:levels=8/4,window=3",
    "uniform:levels=4/2,window=0",
    "diffkv:window=16,alpha_low=0.02",
    "diffkv:window=5,alpha_high=1,alpha_low=0.3",
    "diffkv:window=40,base=i,alpha_low=0.1",
    "diffkv:levels=16/16+8/4+4/2,window=9,alpha_top=2,alpha_low=0.2",
    "diffkv:levels=8/4,window=8,alpha_low=0.7",
    "diffkv:window=12,alpha_low=0,observe=8",
    "diffkv:window=11,alpha_low=0.2,sinks=4",
    "diffkv:window=6,window_level=16/16,alpha_low=0,sinks=33",
    "static:window=10,high=0.2,low=0.3",
    "static:levels=4/2,window=7,low=0.4",
    "static:window=10,high=0.2,low=0.3,sinks=3",
    "uniform:levels=4/2,window=20,sinks=1",
    "h2o:budget=24",
    "h2o:budget=0.3",
    "streamingllm:sinks=4,recent=20",
    "streamingllm:sinks=3,recent=0.25",
    "kivi:bits=2,window=64",
    "int4",
    "snapkv:budget=20",
    "snapkv:budget=0.3,pool=3",
    "quest:budget=64,from=1",
};

#define FIXTURE_SPECS (sizeof(fixture_specs) / sizeof(fixture_specs[0]))

/* Those that can be cut. */
static const char *const fixture_cut_specs[] = {
    "uniform:levels=8/4,window=3",
    "uniform:levels=4/2,window=0",
    "uniform:levels=8/8,window=20,sinks=1",
    "diffkv:window=12,alpha_low=0,observe=8",
    "diffkv:window=6,alpha_high=1,window_level=16/16,alpha_low=0,sinks=33",
    "int4",
};

#define FIXTURE_CUT_SPECS \
    (sizeof(fixture_cut_specs) / sizeof(fixture_cut_specs[0]))

/* ---- create ------------------------------------------------------------- */

/* Often one that shares at 16 bits; lends: one that can be cut. */
static const char *
fixture_spec(bool lends)
{
    if (lends) {
        return fixture_cut_specs[fixture_random(FIXTURE_CUT_SPECS)];
    }
    return fixture_specs[fixture_random(4) == 0
                             ? 0
                             : fixture_random(FIXTURE_SPECS)];
}

/* Thresholds of their own for every head. */
static void
fixture_alpha(fixture_t *w, uint32_t i, uint32_t heads)
{
    tr_kv_policy_t *p = w->policy[i];
    double *alpha;

    if (p->kind != TR_KV_RULE_THRESHOLD || p->n_levels != 2
        || !p->level[1].scored || fixture_random(2) == 0) {
        return;
    }
    alpha = malloc(heads * 2 * sizeof(*alpha));
    if (alpha == NULL) {
        abort();
    }
    for (uint32_t h = 0; h < heads; h++) {
        alpha[2 * h] = fixture_random(300) / 100.0;
        alpha[2 * h + 1] = alpha[2 * h] * fixture_random(100) / 100;
    }
    p->alpha_of = alpha;
    w->device_alpha[i] = w->device->copy(w->device->arg, alpha, heads * 2);
}

static bool
fixture_create(fixture_t *w, const fixture_device_t *device)
{
    bool wide = fixture_random(12) == 0; /* several blocks of heads */
    bool lends = fixture_random(3) == 0;
    uint32_t layers = wide ? 9 : 1 + fixture_random(lends ? 2 : 4);
    uint32_t kv_heads = wide ? 30 : 1 + fixture_random(lends ? 3 : 5),
             heads = layers * kv_heads, reach[9] = { 0 };
    uint32_t head_dim = 64;
    tr_kv_config_t c = {
        .layers = layers,
        .kv_heads = kv_heads,
        .head_dim = head_dim,
        .slots = 2 + fixture_random(FIXTURE_SLOTS - 1),
        .reach = reach,
        .max_len = (lends ? 500 : 60) + fixture_random(300)
                   + (fixture_random(4) == 0 ? TR_KV_SHORT : 0), /* long ones */
        .swap_memory = 8u << 20,
        .kernels = &fixture_kernels,
        .reuse = true,
        .stage = fixture_random(3) == 0 ? 1 + fixture_random(6) : 0,
        .policies = (const tr_kv_policy_t *const *) w->policy
    };
    tr_kv_manager_size_t size = { .max_prompts = FIXTURE_PROMPTS };
    tr_error_t err;

    memset(w, 0, sizeof(*w));
    for (uint32_t l = 0, dice = fixture_random(3); l < layers; l++) {
        reach[l] = !lends && fixture_random(3) < dice ? 1 + fixture_random(100)
                                                      : 0;
    }
    w->device = device;
    w->lends = lends;
    w->slots = c.slots;
    w->n_policies = 1 + fixture_random(FIXTURE_POLICIES);
    for (uint32_t i = 0; i < w->n_policies; i++) {
        const char *spec = fixture_spec(lends);

        if (tr_kv_policy_create(spec, layers, kv_heads, head_dim, &w->policy[i],
                                &err)
            != TR_OK) {
            printf("%s: %s\n", spec, err.text);
            return false;
        }
        if (lends || fixture_random(2) == 0) { /* what is cut has positions */
            tr_kv_policy_position(w->policy[i]);
        }
        fixture_alpha(w, i, heads);
    }
    c.n_policies = w->n_policies;
    c.memory = (uint64_t) heads
               * ((lends ? wide ? 100 : 300 : 16)
                  + fixture_random(wide ? 30 : 120))
               * 8192;
    while (tr_kv_cache_create(&c, &w->kv, &err) != TR_OK) {
        if (c.memory > 1ull << 30) {
            printf("%s\n", err.text);
            return false;
        }
        c.memory *= 2; /* large pages: too few for the shortest prompt */
    }
    size.slots = w->slots;
    size.pages = w->kv->m.size.pages;
    size.max_len = c.max_len;
    size.blocks = w->kv->m.size.blocks;
    size.reach = w->kv->m.size.reach;
    if (size.max_prompts > size.slots) {
        size.max_prompts = size.slots;
    }
    /* what nobody has written is not a number */
    memset(w->kv->pool, 0xff, w->kv->m.size.pages * w->kv->plan.page_bytes);
    return device->create(device->arg, &w->kv->view, &size, w->kv->pool,
                          w->kv->m.size.pages * w->kv->plan.page_bytes,
                          &w->mirror);
}

static void
fixture_destroy(fixture_t *w)
{
    w->steps = w->kv == NULL ? 0 : w->steps;
    if (w->kv != NULL) {
        FIXTURE_SAME(w, tr_kv_sound(w->kv), " ");
        tr_kv_cache_free(w->kv);
    }
    for (uint32_t i = 0; i < w->n_policies; i++) {
        tr_kv_policy_free(w->policy[i]);
    }
    w->device->destroy(w->device->arg);
}

/* The rule as the device has it. */
static tr_kv_rule_t
fixture_rule(const fixture_t *w, const tr_kv_policy_t *p, uint32_t policy)
{
    tr_kv_rule_t rule = p->rule;

    rule.alpha_of = w->device_alpha[policy];
    return rule;
}

/* An operation of the device's manager. */
#define FIXTURE_CALL(w, op, in, n) \
    ((w)->device->run((w)->device->arg, op, in, sizeof(*(in)), n))

#endif
