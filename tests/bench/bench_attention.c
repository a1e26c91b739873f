/*
 * bench_attention: attention over compressed caches against 16-bit ones, and
 * what scores cost a prompt.
 *
 *   bench_attention [--threads N] [--rounds N] [--max TOKENS] [--isa NAME]
 *                   [--json FILE]
 *
 * Pages hold random codes; no model is involved.  One step is all layers of one
 * sequence.  All kinds are measured in rounds that take turns; reported are
 * medians, and medians of the ratio within a round:
 *
 *   decode    one token at 512 to 32,000 tokens.  full: uncompressed pages, 16
 *             bits, without scores.  diffkv: a window of 64 and tiers 8/4 and
 *             4/2 with the given shares of the tokens, the rest pruned; scores
 *             and candidates included.
 *   prompt    a chunk of 512 tokens that ends at the given length, without and
 *             with scores.
 */
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/thread_pool.h"
#include "kernels/kernels.h"
#include "bench.h"

#define ROUNDS_MAX 101
#define LEN_MAX 32000u
#define WINDOW 64u
#define CHUNK 512u
#define KINDS 3

typedef struct {
    const char *name;
    uint32_t layers, kv_heads, group, dim;
} shape_t;

/* A sequence in its own cache. */
typedef struct {
    tr_kv_view_t kv;
    tr_page_plan_t plan;
    tr_kv_seq_t seq;
    int32_t *tables;
    uint32_t *count;
    tr_kv_candidate_t *candidate;
} cache_t;

typedef struct {
    const tr_kernels_t *k;
    tr_stream_t stream;
    int rounds;
    float *q, *out;
    void *work;
    json_t *result;
} bench_t;

static uint32_t
next(void)
{
    static uint64_t state = 1;

    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t) (state >> 33);
}

static void *
need(size_t n)
{
    void *p = aligned_alloc(64, tr_pad(n + 1, 64));

    if (p == NULL) {
        fprintf(stderr, "bench_attention: out of memory\n");
        exit(1);
    }
    memset(p, 0, tr_pad(n + 1, 64));
    return p;
}

static void
put_half(uint8_t *p, float x)
{
    _Float16 h = (_Float16) x;

    memcpy(p, &h, 2);
}

/* Random codes or FP16 values, metadata for values in [-1, 1], positions. */
static void
fill_page(const tr_kv_layout_t *l, uint8_t *page, uint32_t first)
{
    for (uint32_t i = 0; i < tr_kv_tiles_end(l); i++) {
        page[i] = (uint8_t) next();
    }
    for (uint32_t i = 0; i < l->tokens * l->head_dim; i++) {
        if (l->level.key_bits == 16) {
            float x = (float) (next() % 2001) / 1000 - 1;

            put_half(page + 2 * (size_t) i, x);
            put_half(page + l->value + 2 * (size_t) i, -x);
        }
    }
    for (uint32_t i = 0; i < l->tokens && l->key_meta != 0; i++) {
        uint8_t *key = page + tr_kv_key_meta(l, i, 0);
        uint8_t *value = page + tr_kv_value_meta(l, i, 0);

        put_half(key, 2.0f / (float) ((1 << l->level.key_bits) - 1));
        put_half(key + 2, -1);
        put_half(value, 2.0f / (float) ((1 << l->level.value_bits) - 1));
        put_half(value + 2, -1);
    }
    for (uint32_t i = 0; i < l->tokens && l->score != 0; i++) {
        memset(page + l->score + i * 4, 0, 4);
        if (l->position != 0) {
            uint32_t at = first + i;

            tr_kv_position_put(l, page, i, at);
        } else {
            memset(page + l->recent + i * 4, 0, 4);
        }
    }
}

static uint32_t
pages(uint32_t tokens, const tr_kv_layout_t *l)
{
    return (tokens + l->tokens - 1) / l->tokens;
}

/* Gives n tokens of a layout pages from entry `at` on, down or up. */
static uint32_t
grant(cache_t *c, size_t row, uint32_t at, int step, uint32_t n,
      const tr_kv_layout_t *l, const int32_t *order, uint32_t used)
{
    int32_t *table = c->tables + row * c->kv.table_len + at;

    for (uint32_t i = 0; i < pages(n, l); i++) {
        int32_t page = order[used++];

        table[(int32_t) i * step] = page;
        fill_page(l, tr_kv_page_at(&c->kv, page), i * l->tokens);
    }
    return used;
}

/* n tokens, uncompressed or by shares of the levels; pages in random order. */
static void
cache_open(cache_t *c, const shape_t *s, uint32_t n, const double *shares,
           bool scored)
{
    static const tr_kv_level_t levels[2] = { { 8, 4, 1, 1, 0, 1, 0, 0 },
                                             { 4, 2, 1, 1, 0, 1, 0, 0 } };
    tr_page_spec_t spec = {
        s->dim, levels, shares ? 2 : 0, scored, false, true
    };
    uint32_t rows = s->layers * s->kv_heads, high, low, total, used = 0;
    const tr_kv_layout_t *l = c->plan.layout;
    int32_t *order;

    memset(c, 0, sizeof(*c));
    if (tr_page_plan(&spec, &c->plan) != 0) {
        abort();
    }
    high = shares ? (uint32_t) ((n - WINDOW) * shares[0]) : 0;
    low = shares ? (uint32_t) ((n - WINDOW) * shares[1]) : 0;
    c->kv = (tr_kv_view_t){ .page_bytes = c->plan.page_bytes,
                            .layers = s->layers,
                            .kv_heads = s->kv_heads,
                            .head_dim = s->dim,
                            .n_layouts = c->plan.n,
                            .layout = l,
                            .seq = &c->seq };
    if (shares) {
        c->kv.at_pair[0] = pages(WINDOW, &l[1]);
        c->kv.pair_len[0] = pages(high, &l[1]) + pages(low, &l[2]);
        c->kv.table_len = c->kv.at_pair[0] + c->kv.pair_len[0];
        c->seq = (tr_kv_seq_t){ .base = n,
                                .window_from = n - WINDOW,
                                .window = WINDOW,
                                .n_tiers = 2,
                                .window_layout = 1,
                                .tier_layout = { 1, 2 },
                                .scored = scored };
    } else {
        c->kv.table_len = pages(n, l);
        c->seq.scored = scored;
    }
    total = rows * c->kv.table_len;
    c->kv.tables = c->tables = need(total * sizeof(int32_t));
    c->kv.pool = need(total * c->kv.page_bytes);
    c->kv.count = c->count = need(rows * TR_KV_TIERS_MAX * sizeof(uint32_t));
    c->kv.candidate = need(rows * TR_KV_TIERS_MAX * sizeof(tr_kv_candidate_t));
    order = need(total * sizeof(int32_t));
    for (uint32_t i = 0; i < total; i++) {
        uint32_t j = next() % (i + 1);

        order[i] = order[j];
        order[j] = (int32_t) i;
    }
    for (uint32_t r = 0; r < rows; r++) {
        if (!shares) {
            used = grant(c, r, 0, 1, n, &l[0], order, used);
            continue;
        }
        c->count[r * TR_KV_TIERS_MAX] = high;
        c->count[r * TR_KV_TIERS_MAX + 1] = low;
        used = grant(c, r, 0, 1, WINDOW, &l[1], order, used);
        used = grant(c, r, tr_kv_tier_entry(&c->kv, 0, 0), 1, high, &l[1],
                     order, used);
        used = grant(c, r, tr_kv_tier_entry(&c->kv, 1, 0), -1, low, &l[2],
                     order, used);
    }
    free(order);
}

static void
cache_close(cache_t *c)
{
    free(c->kv.pool);
    free(c->tables);
    free(c->count);
    free(c->kv.candidate);
}

/* Seconds of all layers for n rows that end at position `end`. */
static double
step(bench_t *b, const shape_t *s, cache_t *c, uint32_t n, uint32_t end)
{
    static uint32_t pos[CHUNK];
    uint32_t seq_row[2] = { 0, n };
    int32_t slot = 0;
    tr_rows_t rows = { n, 1, pos, &slot, seq_row };
    size_t ld = (size_t) s->kv_heads * s->group * s->dim;
    double t;
    int rc = 0;

    for (uint32_t i = 0; i < n; i++) {
        pos[i] = end - n + i;
    }
    t = now();
    for (uint32_t l = 0; l < s->layers; l++) {
        rc |= b->k->attention(&b->stream, &c->kv, l, &rows, b->q, ld,
                              s->kv_heads * s->group, 0.125f, b->out, ld,
                              b->work);
    }
    t = now() - t;
    if (rc != 0) {
        fprintf(stderr, "bench_attention: attention refuses its arguments\n");
        exit(1);
    }
    return t;
}

static void
prepare(bench_t *b, const shape_t *s)
{
    size_t heads = (size_t) s->kv_heads * s->group, n = CHUNK * heads * s->dim;

    free(b->q);
    free(b->out);
    free(b->work);
    b->q = need(n * sizeof(float));
    b->out = need(n * sizeof(float));
    b->work = need(b->k->attention_work(&b->stream, CHUNK, 1, LEN_MAX,
                                        (uint32_t) heads, s->kv_heads, s->dim));
    for (size_t i = 0; i < n; i++) {
        b->q[i] = (float) (next() % 2001) / 1000 - 1;
    }
}

static void
bench_decode(bench_t *b, const shape_t *s, uint32_t n)
{
    static const double shares[KINDS][2] = { { 0 },
                                             { 0.25, 0.35 },
                                             { 0.4, 0.6 } };
    static double us[KINDS][ROUNDS_MAX], ratio[KINDS][ROUNDS_MAX];
    cache_t c[KINDS];
    double t[KINDS], x[KINDS];
    int repeat = n < 4000 ? 4 : 1;

    for (int i = 0; i < KINDS; i++) {
        cache_open(&c[i], s, n, i ? shares[i] : NULL, i > 0);
    }
    for (int r = -1; r < b->rounds; r++) {
        for (int i = 0; i < KINDS; i++) {
            t[i] = 0;
            for (int j = 0; j < repeat; j++) {
                t[i] += step(b, s, &c[i], 1, n) / repeat;
            }
            if (r >= 0) {
                us[i][r] = t[i] * 1e6;
                ratio[i][r] = t[i] / t[0];
            }
        }
    }
    for (int i = 0; i < KINDS; i++) {
        t[i] = median(us[i], b->rounds);
        x[i] = median(ratio[i], b->rounds);
        cache_close(&c[i]);
    }
    printf("  %-18s %6u %10.0f %10.0f %7.2f %10.0f %7.2f\n", s->name, n, t[0],
           t[1], x[1], t[2], x[2]);
    json_array_append_new(json_object_get(b->result, "decode"),
                          json_pack("{s:s,s:i,s:f,s:f,s:f,s:f,s:f}", "shape",
                                    s->name, "tokens", (int) n, "full_us", t[0],
                                    "diffkv_25_35_us", t[1],
                                    "diffkv_25_35_ratio", x[1],
                                    "diffkv_40_60_us", t[2],
                                    "diffkv_40_60_ratio", x[2]));
}

static void
bench_prompt(bench_t *b, const shape_t *s, uint32_t n)
{
    static double us[2][ROUNDS_MAX], ratio[ROUNDS_MAX];
    cache_t c[2];
    double t[2], x;

    for (int i = 0; i < 2; i++) {
        cache_open(&c[i], s, n, NULL, i == 1);
    }
    for (int r = -1; r < b->rounds; r++) {
        for (int i = 0; i < 2; i++) {
            t[i] = step(b, s, &c[i], CHUNK, n);
            if (r >= 0) {
                us[i][r] = t[i] * 1e6;
            }
        }
        if (r >= 0) {
            ratio[r] = t[1] / t[0];
        }
    }
    x = median(ratio, b->rounds);
    for (int i = 0; i < 2; i++) {
        t[i] = median(us[i], b->rounds);
        cache_close(&c[i]);
    }
    printf("  %-18s %6u %10.0f %10.0f %7.2f\n", s->name, n, t[0], t[1], x);
    json_array_append_new(json_object_get(b->result, "prompt"),
                          json_pack("{s:s,s:i,s:f,s:f,s:f}", "shape", s->name,
                                    "tokens", (int) n, "plain_us", t[0],
                                    "scored_us", t[1], "ratio", x));
}

static void
usage(void)
{
    fprintf(stderr,
            "usage: bench_attention [--threads N] [--rounds 1..%d] [--max "
            "TOKENS] [--isa NAME] [--json FILE]\n",
            ROUNDS_MAX);
    exit(2);
}

int
main(int argc, char **argv)
{
    static const shape_t shapes[] = { { "8 x 2 x 3 of 64", 8, 2, 3, 64 },
                                      { "4 x 8 x 4 of 128", 4, 8, 4, 128 } };
    static const uint32_t lens[] = { 512, 3000, 16000, LEN_MAX };
    const char *isa = NULL, *json = NULL;
    bench_t b = { .rounds = 15 };
    uint32_t max = LEN_MAX;

    b.stream.threads = tr_thread_pool_cores();
    for (int i = 1; i < argc; i += 2) {
        if (i + 1 == argc) {
            usage();
        } else if (strcmp(argv[i], "--threads") == 0) {
            b.stream.threads = atoi(argv[i + 1]);
        } else if (strcmp(argv[i], "--rounds") == 0) {
            b.rounds = atoi(argv[i + 1]);
        } else if (strcmp(argv[i], "--max") == 0) {
            max = (uint32_t) atoi(argv[i + 1]);
        } else if (strcmp(argv[i], "--isa") == 0) {
            isa = argv[i + 1];
        } else if (strcmp(argv[i], "--json") == 0) {
            json = argv[i + 1];
        } else {
            usage();
        }
    }
    b.k = tr_kernels_cpu(isa);
    if (b.k == NULL || b.rounds < 1 || b.rounds > ROUNDS_MAX
        || b.stream.threads < 1) {
        usage();
    }
    b.stream.thread_pool = tr_thread_pool_new(b.stream.threads);
    b.result = json_pack("{s:s,s:i,s:i,s:[],s:[]}", "kernels", b.k->name,
                         "threads", b.stream.threads, "rounds", b.rounds,
                         "decode", "prompt");
    printf("%s, %d threads, medians of %d rounds; shapes: layers x KV heads x "
           "query group\n\ndecode, microseconds a step and ratio to full\n"
           "  shape              tokens       full  25/35/40   ratio   40/60/0 "
           "  ratio\n",
           b.k->name, b.stream.threads, b.rounds);
    for (size_t s = 0; s < 2; s++) {
        prepare(&b, &shapes[s]);
        for (size_t i = 0; i < 4 && lens[i] <= max; i++) {
            bench_decode(&b, &shapes[s], lens[i]);
        }
    }
    printf("\nchunk of %u prompt tokens\n"
           "  shape              tokens      plain     scored   ratio\n",
           CHUNK);
    for (size_t s = 0; s < 2; s++) {
        prepare(&b, &shapes[s]);
        for (size_t i = 0; i < 3 && lens[i] <= max; i++) {
            bench_prompt(&b, &shapes[s], lens[i]);
        }
    }
    if (json != NULL && json_dump_file(b.result, json, JSON_INDENT(2)) != 0) {
        fprintf(stderr, "bench_attention: cannot write %s\n", json);
        return 1;
    }
    json_decref(b.result);
    tr_thread_pool_free(b.stream.thread_pool);
    return 0;
}
