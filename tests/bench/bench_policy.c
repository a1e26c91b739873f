/*
 * bench_policy: what a KV policy and its pages cost of a step, in a real model.
 *
 *   bench_policy [--model DIR] [--policy SPEC] [--threads N] [--rounds N]
 *                [--json FILE]
 *
 * Two caches on one model, as two engines would have them, one of `full` and
 * one of SPEC, run the same tokens in turns; rounds change who begins, medians
 * of them are reported.  Clocks stand around the calls of the KV cache and
 * around three kernels of the table:
 *
 *   decode   planning   tr_kv_reserve_batch: decisions, moves planned, pages
 *            moving     kv_append beyond what it takes for `full` in the same
 *                       step: tokens moved and quantised
 *   prefill  pages      tr_kv_prompt, tr_kv_reserve: uncompressed pages
 *            deciding   tr_kv_compress without its kernel: the prompt rule,
 *                       the grant, pages given back
 *            moving     its kernel: tokens moved and quantised
 *            storing    kv_append beyond what it takes for `full`: scores
 *                       and min/max of uncompressed pages (not in `together`)
 *
 * Shares are of the step, or the prefill, of SPEC.  Attention is no part of
 * them: it has a ratio of its own, in which scoring shows.  A step ends with
 * the logits; nobody samples, which makes the shares a little larger than in
 * an engine.
 */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/thread_pool.h"

#include "engine/kv/kv_cache.h"
#include "engine/config/log.h"
#include "engine/model/cpu/model.h"
#include "engine/tokenizer/tokenizer.h"
#include "kernels/kernels.h"
#include "bench.h"

#define ROUNDS_MAX 101
#define CHUNK 512u
#define STREAMS_MAX 16u
#define TEXTS 4u  /* prompts; streams beyond them fork the same */
#define WARM 4u   /* steps of a round that do not count */
#define STEPS 32u /* those that do */
#define LEN_MAX 3000u
/* of a text: a prompt, then other tokens for each stream that forks it */
#define TEXT_TOKENS (LEN_MAX + STREAMS_MAX / TEXTS * (WARM + STEPS))

static const uint32_t contexts[] = { 1000, LEN_MAX };
static const uint32_t stream_counts[] = { 1, STREAMS_MAX };

typedef struct {
    const char *model, *policy, *json;
    int threads, rounds;
} options_t;

/* A cache with the policy that all of its slots have. */
typedef struct {
    tr_kv_policy_t *policy;
    tr_kv_cache_t *kv;
    int32_t prompt[TEXTS]; /* slots with the prompts, uncompressed */
    tr_kv_usage_t usage;   /* of a stream of the last decode */
} side_t;

enum { FULL, OTHER, SIDES };

typedef struct {
    options_t options;
    tr_model_t *model;
    side_t side[SIDES];
    int32_t text[TEXTS][TEXT_TOKENS];
    json_t *result;
} bench_t;

/* Seconds. */
typedef struct {
    double whole;
    double plan, compress;          /* calls of the cache */
    double append, move, attention; /* kernels; move is a part of compress */
} cost_t;

static cost_t spent; /* since it was cleared */

/* ---- the kernel table with clocks ---- */

static const tr_kernels_t *real;

static int
timed_append(const tr_stream_t *s, const tr_kv_view_t *kv, uint32_t layer,
             const tr_rows_t *rows, const float *k, const float *v, size_t ld,
             const float *angles)
{
    double t = now();
    int rc = real->kv_append(s, kv, layer, rows, k, v, ld, angles);

    spent.append += now() - t;
    return rc;
}

static int
timed_compress(const tr_stream_t *s, const tr_kv_view_t *kv,
               const tr_kv_compress_t *c, void *work)
{
    double t = now();
    int rc = real->kv_compress(s, kv, c, work);

    spent.move += now() - t;
    return rc;
}

static int
timed_attention(const tr_stream_t *s, const tr_kv_view_t *kv, uint32_t layer,
                const tr_rows_t *rows, const float *q, size_t ldq,
                uint32_t heads, float scale, float *out, size_t ldo, void *work)
{
    double t = now();
    int rc = real->attention(s, kv, layer, rows, q, ldq, heads, scale, out, ldo,
                             work);

    spent.attention += now() - t;
    return rc;
}

/* ---- texts: notes as models/pocket knows them, so that its scores are those
 * of a model that reads ---- */

static uint32_t
pick(uint32_t *state, uint32_t n)
{
    *state = *state * 1664525u + 1013904223u;
    return (*state >> 8) % n;
}

static int
write_note(uint32_t *state, char *to, size_t size)
{
    static const char *const names[] = { "Rufus", "Olive", "Tobin", "Mira",
                                         "Hugo",  "Vera",  "Percy", "Lena" };
    static const char *const families[] = { "Hale",  "Swift", "Marsh", "Poole",
                                            "Thorn", "Drake", "Lane",  "Vale" };
    static const char *const colours[] = { "red",    "golden", "purple",
                                           "silver", "yellow", "blue" };
    static const char *const things[] = { "hammer", "map",  "kite",
                                          "globe",  "rope", "mirror" };
    static const char *const places[] = { "garden", "tower", "harbour",
                                          "school", "attic", "workshop" };
    const char *name = names[pick(state, 8)];
    const char *colour = colours[pick(state, 6)];
    const char *place = places[pick(state, 6)];
    uint32_t number = 1000 + pick(state, 9000);

    switch (pick(state, 5)) {
    case 0:
        return snprintf(to, size, "The extension of %s %s is %u. ", name,
                        families[pick(state, 8)], number);
    case 1:
        return snprintf(to, size, "The %s %s is stored on shelf %c%u. ", colour,
                        things[pick(state, 6)], 'A' + (int) pick(state, 8),
                        number % 90 + 10);
    case 2:
        return snprintf(to, size, "The password for the %s %s is %s-%s-%u. ",
                        colour, place, things[pick(state, 6)],
                        places[pick(state, 6)], number % 90 + 10);
    case 3:
        return snprintf(to, size, "Everyone liked the %s flowers in the %s. ",
                        colour, place);
    default:
        return snprintf(to, size,
                        "%s asked for a new %s, but nobody "
                        "answered.\n\n",
                        name, things[pick(state, 6)]);
    }
}

static void
write_texts(bench_t *b)
{
    static char notes[1u << 16];
    tr_tokenizer_t *t;
    tr_tokenizer_scratch_t *scratch;
    tr_error_t err;

    must(tr_tokenizer_load(b->options.model, &t, &err), &err, "tokenizer");
    scratch = tr_tokenizer_scratch_new(t);
    for (uint32_t i = 0; i < TEXTS; i++) {
        tr_ids_t ids = { 0 };
        uint32_t state = i;
        size_t at;

        at = (size_t) snprintf(notes, sizeof(notes),
                               "<|start_header_id|>user<|end_header_id|>\n\n"
                               "Here are some notes.\n\n");
        while (at < sizeof(notes) - 256) {
            at += (size_t) write_note(&state, notes + at, sizeof(notes) - at);
        }
        must(tr_tokenizer_encode(t, scratch, notes, at,
                                 TR_ENCODE_SPECIAL | TR_ENCODE_PARSE_SPECIAL,
                                 &ids, &err),
             &err, "tokenizer");
        must(ids.len < TEXT_TOKENS ? TR_ERR_INVALID : TR_OK, NULL,
             "too few tokens in a text");
        memcpy(b->text[i], ids.data, sizeof(b->text[i]));
        free(ids.data);
    }
    tr_tokenizer_scratch_free(scratch);
    tr_tokenizer_free(t);
}

/* ---- the model and its caches ---- */

/* Room for all slots at 16 bits; touched, so that no round pays for that. */
static void
side_open(bench_t *b, int which, const char *spec)
{
    const tr_recipe_t *c = &b->model->config.recipe;
    side_t *s = &b->side[which];
    tr_kv_config_t kc = {
        .layers = c->layers,
        .kv_heads = c->kv_heads,
        .head_dim = c->head_dim,
        .slots = TEXTS + STREAMS_MAX,
        .max_len = LEN_MAX + WARM + STEPS,
        .policies = (const tr_kv_policy_t *const *) &s->policy,
        .n_policies = 1,
        .kernels = b->model->kernels,
        .stream = b->model->stream
    };
    tr_page_plan_t plan;
    tr_kv_view_t view;
    tr_error_t err;

    must(tr_kv_policy_create(spec, kc.layers, kc.kv_heads, kc.head_dim,
                             &s->policy, &err),
         &err, spec);
    must(tr_kv_policy_plan(s->policy, kc.head_dim, kc.max_len, &plan), NULL,
         spec);
    kc.memory = (uint64_t) (kc.slots + 4) * kc.layers * kc.kv_heads
                * (kc.max_len / plan.layout[0].tokens + 1) * plan.page_bytes;
    must(tr_kv_cache_create(&kc, &s->kv, &err), &err, spec);
    tr_kv_view(s->kv, &view);
    memset(view.pool, 0, tr_kv_pages(s->kv) * view.page_bytes);
}

static void
bench_open(bench_t *b)
{
    static tr_kernels_t timed;
    tr_model_options_t o = { .dir = b->options.model,
                             .load_format = "auto",
                             .kernels = &timed,
                             .threads = b->options.threads,
                             .max_rows = CHUNK,
                             .max_seqs = STREAMS_MAX };
    tr_error_t err;

    real = tr_kernels_cpu(NULL);
    timed = *real;
    timed.kv_append = timed_append;
    timed.kv_compress = timed_compress;
    timed.attention = timed_attention;
    must(tr_model_open(&o, &b->model, &err), &err, b->options.model);
    must(b->model->config.recipe.max_positions < LEN_MAX + WARM + STEPS
                 || b->model->logit_rows < STREAMS_MAX
             ? TR_ERR_INVALID
             : TR_OK,
         NULL, "the model takes too few tokens");
    side_open(b, FULL, "full");
    side_open(b, OTHER, b->options.policy);
    write_texts(b);
}

static void
bench_close(bench_t *b)
{
    for (int i = 0; i < SIDES; i++) {
        must(tr_kv_sound(b->side[i].kv) ? TR_OK : TR_ERR_INTERNAL, NULL,
             "the pages in the end");
        tr_kv_cache_free(b->side[i].kv);
        tr_kv_policy_free(b->side[i].policy);
    }
    tr_model_free(b->model);
}

/* ---- prefill ---- */

/* The slot of a prompt computed in chunks, not yet compressed. */
static int32_t
prefill(bench_t *b, side_t *s, uint32_t text, uint32_t len)
{
    uint32_t pos[CHUNK], seq_row[2] = { 0, 0 }, n = 0;
    int32_t slot = tr_kv_open(s->kv, NULL);
    tr_rows_t rows = { 0, 1, pos, &slot, seq_row };
    tr_kv_view_t view;
    double start = now();

    tr_kv_prompt(s->kv, slot, len);
    must(tr_kv_reserve(s->kv, slot, len), NULL, "pages for a prompt");
    spent.plan += now() - start;
    for (uint32_t at = 0; at < len; at += n) {
        n = len - at < CHUNK ? len - at : CHUNK;
        for (uint32_t i = 0; i < n; i++) {
            pos[i] = at + i;
        }
        rows.n_rows = seq_row[1] = n;
        tr_kv_view(s->kv, &view);
        must(tr_model_forward(b->model, &view, &rows, b->text[text] + at), NULL,
             "prefill");
    }
    must(tr_model_logits(b->model, &(uint32_t){ n - 1 }, 1), NULL, "logits");
    spent.whole += now() - start;
    return slot;
}

static cost_t
prefill_and_compress(bench_t *b, side_t *s, uint32_t text, uint32_t len)
{
    int32_t slot;
    double start;

    spent = (cost_t){ 0 };
    slot = prefill(b, s, text, len);
    start = now();
    must(tr_kv_compress(s->kv, slot, len), NULL, "compress");
    spent.compress += now() - start;
    spent.whole += spent.compress;
    tr_kv_close(s->kv, slot);
    return spent;
}

enum {
    P_FULL_MS,
    P_MS,
    P_RATIO,
    P_PAGES,
    P_DECIDING,
    P_MOVING,
    P_TOGETHER,
    P_STORING,
    P_FULL_ATTENTION,
    P_ATTENTION,
    P_ATTENTION_RATIO,
    P_FIGURES
};

static void
bench_prefill(bench_t *b, uint32_t len)
{
    static double x[P_FIGURES][ROUNDS_MAX];
    double m[P_FIGURES];
    cost_t c[SIDES];

    for (int r = -1; r < b->options.rounds; r++) { /* the first warms up */
        const cost_t *f = &c[FULL], *o = &c[OTHER];
        int i = r < 0 ? 0 : r;

        for (int turn = 0; turn < SIDES; turn++) {
            int side = (turn + i) % SIDES;

            c[side] = prefill_and_compress(b, &b->side[side],
                                           (uint32_t) i % TEXTS, len);
        }
        x[P_FULL_MS][i] = f->whole * 1e3;
        x[P_MS][i] = o->whole * 1e3;
        x[P_RATIO][i] = o->whole / f->whole;
        x[P_PAGES][i] = o->plan / o->whole;
        x[P_DECIDING][i] = (o->compress - o->move) / o->whole;
        x[P_MOVING][i] = o->move / o->whole;
        x[P_TOGETHER][i] = (o->plan + o->compress) / o->whole;
        x[P_STORING][i] = (o->append - f->append) / o->whole;
        x[P_FULL_ATTENTION][i] = f->attention * 1e3;
        x[P_ATTENTION][i] = o->attention * 1e3;
        x[P_ATTENTION_RATIO][i] = o->attention / f->attention;
    }
    for (int i = 0; i < P_FIGURES; i++) {
        m[i] = median(x[i], b->options.rounds);
    }
    printf("  %6u %7.0f %7.0f %6.2f %7.2f%% %8.2f%% %7.2f%% %8.2f%% %8.2f%% "
           "%7.0f %7.0f %6.2f\n",
           len, m[P_FULL_MS], m[P_MS], m[P_RATIO], 100 * m[P_PAGES],
           100 * m[P_DECIDING], 100 * m[P_MOVING], 100 * m[P_TOGETHER],
           100 * m[P_STORING], m[P_FULL_ATTENTION], m[P_ATTENTION],
           m[P_ATTENTION_RATIO]);
    json_array_append_new(
        json_object_get(b->result, "prefill"),
        json_pack("{s:i,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f}", "tokens",
                  (int) len, "full_ms", m[P_FULL_MS], "ms", m[P_MS], "ratio",
                  m[P_RATIO], "pages_share", m[P_PAGES], "deciding_share",
                  m[P_DECIDING], "moving_share", m[P_MOVING], "together_share",
                  m[P_TOGETHER], "storing_share", m[P_STORING],
                  "full_attention_ms", m[P_FULL_ATTENTION], "attention_ms",
                  m[P_ATTENTION], "attention_ratio", m[P_ATTENTION_RATIO]));
}

/* ---- decode ---- */

/* A stream that goes on where a prompt ends. */
static int32_t
stream_open(side_t *s, uint32_t stream, uint32_t len)
{
    int32_t slot = tr_kv_open(s->kv, NULL);

    tr_kv_prompt(s->kv, slot, len);
    must(tr_kv_fork(s->kv, s->prompt[stream % TEXTS], slot, len), NULL, "fork");
    must(tr_kv_compress(s->kv, slot, len), NULL, "compress");
    return slot;
}

/* One step of n streams at position `at`, the given tokens being theirs. */
static void
decode_step(bench_t *b, side_t *s, const int32_t *slots, const int32_t *tokens,
            uint32_t n, uint32_t at)
{
    uint32_t pos[STREAMS_MAX], lens[STREAMS_MAX], row[STREAMS_MAX + 1];
    tr_rows_t rows = { n, n, pos, slots, row };
    tr_status_t granted[STREAMS_MAX];
    tr_kv_view_t view;
    double start;

    for (uint32_t i = 0; i < n; i++) {
        pos[i] = at;
        lens[i] = at + 1;
        row[i] = i;
    }
    row[n] = n;
    start = now();
    tr_kv_reserve_batch(s->kv, slots, lens, n, granted);
    spent.plan += now() - start;
    for (uint32_t i = 0; i < n; i++) {
        must(granted[i], NULL, "pages for a step");
    }
    tr_kv_view(s->kv, &view);
    must(tr_model_forward(b->model, &view, &rows, tokens), NULL, "decode");
    must(tr_model_logits(b->model, row, n), NULL, "logits");
    spent.whole += now() - start;
}

static cost_t
decode(bench_t *b, side_t *s, uint32_t len, uint32_t n)
{
    int32_t slots[STREAMS_MAX], tokens[STREAMS_MAX];

    for (uint32_t i = 0; i < n; i++) {
        slots[i] = stream_open(s, i, len);
    }
    for (uint32_t step = 0; step < WARM + STEPS; step++) {
        if (step == WARM) {
            spent = (cost_t){ 0 };
        }
        for (uint32_t i = 0; i < n; i++) {
            uint32_t from = len + i / TEXTS * (WARM + STEPS);

            tokens[i] = b->text[i % TEXTS][from + step];
        }
        decode_step(b, s, slots, tokens, n, len + step);
    }
    tr_kv_usage(s->kv, slots[0], &s->usage);
    for (uint32_t i = 0; i < n; i++) {
        tr_kv_close(s->kv, slots[i]);
    }
    return spent;
}

enum {
    D_FULL_US,
    D_US,
    D_RATIO,
    D_FULL_PLANNING,
    D_PLANNING,
    D_MOVING,
    D_TOGETHER,
    D_FULL_ATTENTION,
    D_ATTENTION,
    D_ATTENTION_RATIO,
    D_FIGURES
};

static void
print_decode(bench_t *b, uint32_t len, uint32_t n, const double *m)
{
    const tr_kv_usage_t *u = &b->side[OTHER].usage;
    double bytes = (double) u->bytes / (double) u->full_bytes;

    printf("  %6u %7u %7.0f %7.0f %6.2f %7.2f%% %7.2f%% %7.2f%% %8.2f%% %7.0f "
           "%7.0f %6.2f %6.2f\n",
           len, n, m[D_FULL_US], m[D_US], m[D_RATIO], 100 * m[D_FULL_PLANNING],
           100 * m[D_PLANNING], 100 * m[D_MOVING], 100 * m[D_TOGETHER],
           m[D_FULL_ATTENTION], m[D_ATTENTION], m[D_ATTENTION_RATIO], bytes);
    json_array_append_new(
        json_object_get(b->result, "decode"),
        json_pack("{s:i,s:i,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f,"
                  "s:f,s:f}",
                  "tokens", (int) len, "streams", (int) n, "full_us",
                  m[D_FULL_US], "us", m[D_US], "ratio", m[D_RATIO],
                  "full_planning_share", m[D_FULL_PLANNING], "planning_share",
                  m[D_PLANNING], "moving_share", m[D_MOVING], "together_share",
                  m[D_TOGETHER], "full_attention_us", m[D_FULL_ATTENTION],
                  "attention_us", m[D_ATTENTION], "attention_ratio",
                  m[D_ATTENTION_RATIO], "kv_ratio", bytes, "share_high",
                  (double) u->share_high, "share_low", (double) u->share_low,
                  "share_pruned", (double) u->share_pruned));
}

static void
bench_decode(bench_t *b, uint32_t len, uint32_t n)
{
    static double x[D_FIGURES][ROUNDS_MAX];
    double m[D_FIGURES];
    cost_t c[SIDES];

    for (int r = -1; r < b->options.rounds; r++) { /* the first warms up */
        const cost_t *f = &c[FULL], *o = &c[OTHER];
        int i = r < 0 ? 0 : r;

        for (int turn = 0; turn < SIDES; turn++) {
            int side = (turn + i) % SIDES;

            c[side] = decode(b, &b->side[side], len, n);
        }
        x[D_FULL_US][i] = f->whole * 1e6 / STEPS;
        x[D_US][i] = o->whole * 1e6 / STEPS;
        x[D_RATIO][i] = o->whole / f->whole;
        x[D_FULL_PLANNING][i] = f->plan / f->whole;
        x[D_PLANNING][i] = o->plan / o->whole;
        x[D_MOVING][i] = (o->append - f->append) / o->whole;
        x[D_TOGETHER][i] = x[D_PLANNING][i] + x[D_MOVING][i];
        x[D_FULL_ATTENTION][i] = f->attention * 1e6 / STEPS;
        x[D_ATTENTION][i] = o->attention * 1e6 / STEPS;
        x[D_ATTENTION_RATIO][i] = o->attention / f->attention;
    }
    for (int i = 0; i < D_FIGURES; i++) {
        m[i] = median(x[i], b->options.rounds);
    }
    print_decode(b, len, n, m);
}

/* All stream counts after prompts of one length. */
static void
bench_context(bench_t *b, uint32_t len)
{
    for (int i = 0; i < SIDES; i++) {
        for (uint32_t t = 0; t < TEXTS; t++) {
            b->side[i].prompt[t] = prefill(b, &b->side[i], t, len);
        }
    }
    for (size_t i = 0; i < sizeof(stream_counts) / sizeof(*stream_counts);
         i++) {
        bench_decode(b, len, stream_counts[i]);
    }
    for (int i = 0; i < SIDES; i++) {
        for (uint32_t t = 0; t < TEXTS; t++) {
            tr_kv_close(b->side[i].kv, b->side[i].prompt[t]);
        }
    }
}

/* ---- all of it ---- */

static options_t
parse(int argc, char **argv)
{
    options_t o = { "models/pocket", "diffkv:alpha_high=12,alpha_low=0", NULL,
                    0, 9 };
    const bench_option_t options[] = {
        { "--model", &o.model, NULL, 0, 0 },
        { "--policy", &o.policy, NULL, 0, 0 },
        { "--threads", NULL, &o.threads, 0, INT_MAX },
        { "--rounds", NULL, &o.rounds, 1, ROUNDS_MAX },
        { "--json", &o.json, NULL, 0, 0 },
    };

    bench_options(argc, argv, options, sizeof(options) / sizeof(options[0]));
    o.threads = o.threads ? o.threads : tr_thread_pool_cores();
    return o;
}

int
main(int argc, char **argv)
{
    static bench_t b;
    const options_t *o = &b.options;
    size_t n = sizeof(contexts) / sizeof(contexts[0]);

    b.options = parse(argc, argv);
    tr_log_open("stderr", TR_LEVEL_WARN);
    bench_open(&b);
    b.result = json_pack("{s:s,s:s,s:i,s:i,s:[],s:[]}", "policy",
                         b.side[OTHER].policy->spec, "kernels", real->name,
                         "threads", o->threads, "rounds", o->rounds, "decode",
                         "prefill");
    printf("%s, %s, %d threads, medians of %d rounds\nfull against %s\n",
           o->model, real->name, o->threads, o->rounds,
           b.side[OTHER].policy->spec);
    printf("\ndecode, %u steps; shares of a step, `together` below 5%%\n"
           "                  step us                    planning     "
           "moving  together  attention us\n"
           "  tokens streams    full  policy  ratio     full   policy   "
           "policy    policy    full  policy  ratio  bytes\n",
           STEPS);
    for (size_t i = 0; i < n; i++) {
        bench_context(&b, contexts[i]);
    }
    printf("\nprefill in chunks of %u; shares of all of it, `together` below "
           "2%%\n"
           "               all ms                                        "
           "                    attention ms\n"
           "  tokens    full  policy  ratio    pages  deciding   moving  "
           "together  storing    full  scored  ratio\n",
           CHUNK);
    for (size_t i = 0; i < n; i++) {
        bench_prefill(&b, contexts[i]);
    }
    bench_close(&b);
    if (o->json != NULL
        && json_dump_file(b.result, o->json, JSON_INDENT(2)) != 0) {
        fprintf(stderr, "bench_policy: cannot write %s\n", o->json);
        return 1;
    }
    json_decref(b.result);
    return 0;
}
