/*
 * bench_prefix: how many users of one system prompt fit into the memory that holds
 * some of them at 16 bits, each for himself.  No model: the KV cache alone, on the
 * CPU, with its page manager.
 *
 *   bench_prefix [--policy SPEC] [--prefix N] [--own N] [--hold N] [--high P]
 *
 * The first user's whole prompt is compressed and kept.  Each one that follows is
 * found to begin alike, adopts that, and has `own` tokens more, which are computed at
 * 16 bits and compressed, until somebody finds no page.  Once more with copies of the
 * prefix, as every user would have them who shares nothing.
 *
 * Memory is the pool and all arrays of the manager: block tables, counts, moves of as
 * many sequences as fit, and as many kept ones as an engine has for these.  Heads are
 * of 128.  P percent of a head's tokens, at random, are significant enough for the
 * better level, where there is a choice.
 */
#include "bench.h"

#include "engine/kv/kv_internal.h"
#include "kernels/kernels.h"

#define LAYERS 2u
#define KV_HEADS 1u
#define DIM 128u
#define ROUNDS 4u /* to find how many sequences the tables are for */

typedef struct {
    const char *spec;
    int prefix, own, hold, high;
} case_t;

static uint32_t state = 1;

static uint32_t
random_below(uint32_t n)
{
    state = state * 1664525u + 1013904223u;
    return (state >> 8) % n;
}

static void
fail(const char *what)
{
    fprintf(stderr, "bench_prefix: %s\n", what);
    exit(1);
}

static tr_kv_policy_t *
policy(const char *spec)
{
    tr_kv_policy_t *p;
    tr_error_t err;

    if (tr_kv_policy_create(spec, LAYERS, KV_HEADS, DIM, &p, &err) != TR_OK) {
        fail(err.text);
    }
    tr_kv_policy_position(p);
    return p;
}

static tr_kv_config_t
config(const case_t *c, const tr_kv_policy_t *const *p, uint32_t slots,
       uint64_t memory)
{
    return (tr_kv_config_t){ .layers = LAYERS,
                             .kv_heads = KV_HEADS,
                             .head_dim = DIM,
                             .slots = slots,
                             .max_len = (uint32_t) (c->prefix + c->own) + 64,
                             .memory = memory,
                             .policies = p,
                             .n_policies = 1,
                             .kernels = tr_kernels_cpu(NULL),
                             .stream = { .threads = 1 },
                             .reuse = true,
                             .reuse_compressed = true };
}

static tr_kv_cache_t *
cache(const tr_kv_config_t *config)
{
    tr_kv_cache_t *kv;
    tr_error_t err;

    if (tr_kv_cache_create(config, &kv, &err) != TR_OK) {
        fail(err.text);
    }
    return kv;
}

/* Bytes of the manager's arrays. */
static uint64_t
tables(const tr_kv_cache_t *kv)
{
    return tr_kv_host_memory(&kv->view, &kv->m.size);
}

/* Bytes of `hold` users at 16 bits. */
static uint64_t
memory_of(const case_t *c)
{
    const tr_kv_policy_t *full = policy("full");
    tr_kv_config_t some = config(c, &full, (uint32_t) c->hold, 8u << 20);
    uint64_t n = (uint64_t) (c->prefix + c->own), pages, bytes;
    tr_kv_cache_t *kv = cache(&some);

    pages = (n + kv->plan.layout[0].tokens - 1) / kv->plan.layout[0].tokens;
    bytes = pages * kv->heads * (uint64_t) c->hold * tr_kv_page_bytes(kv);
    tr_kv_cache_free(kv);
    some.memory = bytes;
    kv = cache(&some);
    bytes += tables(kv);
    tr_kv_cache_free(kv);
    return bytes;
}

/* Tokens [from, to) of a slot were computed: what queries gave to each. */
static void
compute(const tr_kv_cache_t *kv, int32_t slot, const case_t *c, uint32_t from,
        uint32_t to)
{
    const tr_kv_layout_t *l = &kv->plan.layout[0];

    for (uint32_t h = 0; h < kv->heads && l->score != 0; h++) {
        const int32_t *row = manager_row(&kv->m, slot, h);

        for (uint32_t t = from; t < to; t++) {
            uint32_t at = t - from;
            uint8_t *page = tr_kv_page_at(&kv->view, row[at / l->tokens]);
            float *score = (float *) (void *) (page + l->score);
            float *recent = (float *) (void *) (page + l->recent);
            bool high = random_below(100) < (uint32_t) c->high;

            score[at % l->tokens] = high ? (float) (to - t) : 0;
            recent[at % l->tokens] = high ? 64 : 0;
        }
    }
}

/* Copies what was found, or shares it: a kept prefix of which less than a half is
 * wanted is copied. */
static bool
adopt(tr_kv_cache_t *kv, int32_t slot, const tr_prefix_key_t *key,
      tr_kv_found_t *found, bool shares)
{
    tr_kv_kept_t *k = found->kept == 0 ? NULL
                                       : &kv->reuse->kept[found->kept - 1];
    uint32_t n = k != NULL ? k->n : 0;
    tr_status_t rc;

    if (k != NULL && !shares) {
        k->n = UINT32_MAX;
    }
    rc = tr_kv_adopt(kv, slot, key, found);
    if (k != NULL) {
        k->n = n;
    }
    return rc == TR_OK;
}

/* One more user; false: there is no page for him. */
static bool
come(tr_kv_cache_t *kv, const case_t *c, const int32_t *tokens, bool shares)
{
    uint32_t n = (uint32_t) (c->prefix + c->own), from;
    tr_prefix_key_t key = { 0 };
    tr_kv_found_t found;
    int32_t slot;

    tr_kv_find(kv, NULL, &key, tokens, n - 1, &found);
    from = found.tokens;
    slot = kv->n_free_slots != 0 ? tr_kv_open(kv, NULL) : -1;
    if (slot < 0) {
        tr_kv_drop_found(kv, &found);
        return false;
    }
    if (!adopt(kv, slot, &key, &found, shares)) {
        tr_kv_close(kv, slot);
        return false;
    }
    tr_kv_prompt(kv, slot, n);
    if (tr_kv_reserve(kv, slot, n) != TR_OK) {
        tr_kv_close(kv, slot);
        return false;
    }
    compute(kv, slot, c, from, n);
    if (tr_kv_compress(kv, slot, n) != TR_OK) {
        tr_kv_close(kv, slot);
        return false;
    }
    if (from == 0) { /* the first one */
        tr_kv_keep(kv, slot, tokens, n, true);
        tr_kv_close(kv, slot);
    }
    return true;
}

/* Users at once in so much memory, tables for `slots` of them among it. */
static uint32_t
users_with(const case_t *c, const tr_kv_policy_t *p, uint32_t slots,
           uint64_t memory, bool shares)
{
    uint32_t n = (uint32_t) (c->prefix + c->own), users = 0;
    int32_t *tokens = calloc(n, sizeof(*tokens));
    tr_kv_config_t some = config(c, &p, slots, memory);
    tr_kv_cache_t *kv = NULL;

    for (uint32_t i = 0; i < ROUNDS; i++) { /* tables depend on the pool, too */
        if (kv != NULL) {
            some.memory = memory > tables(kv) ? memory - tables(kv) : 0;
            tr_kv_cache_free(kv);
        }
        kv = cache(&some);
    }
    while (users < slots && come(kv, c, tokens, shares)) {
        users++;
        for (uint32_t i = (uint32_t) c->prefix; i < n; i++) {
            tokens[i] = (int32_t) (users * 7919 + i);
        }
    }
    if (tables(kv) + some.memory > memory + memory / 1000 || !tr_kv_sound(kv)) {
        fail("memory and tables disagree");
    }
    tr_kv_cache_free(kv);
    free(tokens);
    return users;
}

static uint32_t
users(const case_t *c, uint64_t memory, bool shares)
{
    const tr_kv_policy_t *p = policy(c->spec);
    uint32_t slots = TR_KV_SLOTS_MAX / 2, most = 0;

    for (uint32_t i = 0; i < ROUNDS; i++) {
        uint32_t n = users_with(c, p, slots, memory, shares);

        most = n > most ? n : most;
        slots = (n + slots) / 2; /* fewer tables, more pages */
    }
    return most;
}

int
main(int argc, char **argv)
{
    case_t c = { "uniform:levels=4/2", 8192, 1024, 50, 20 };
    const bench_option_t options[] = {
        { "--policy", &c.spec, NULL, 0, 0 },
        { "--prefix", NULL, &c.prefix, 64, 65536 },
        { "--own", NULL, &c.own, 16, 65536 },
        { "--hold", NULL, &c.hold, 1, 1000 },
        { "--high", NULL, &c.high, 0, 100 },
    };
    uint32_t shared, alone;
    uint64_t memory;

    bench_options(argc, argv, options, sizeof(options) / sizeof(options[0]));
    memory = memory_of(&c);
    shared = users(&c, memory, true);
    alone = users(&c, memory, false);
    printf("%s: %d + %d tokens, memory of %d at 16 bits (%llu MiB, tables"
           " included): %u users, %.1f times; with copies %u, %.1f times;"
           " sharing over copies %.1f\n",
           c.spec, c.prefix, c.own, c.hold, (unsigned long long) (memory >> 20),
           shared, (double) shared / c.hold, alone, (double) alone / c.hold,
           (double) shared / alone);
    return 0;
}
