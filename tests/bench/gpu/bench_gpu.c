/*
 * bench_gpu: the engine's steps on a GPU, without transport.  Token ids are
 * random; a prompt is computed once, and forked.  The forks go on with tokens
 * of their own, or all would choose the same experts.
 *
 *   bench_gpu decode  [options]  --batch sequences at --context tokens
 *   bench_gpu fit     [options]  as many sequences as fit at --context tokens, and
 *                                the number that gives most tokens a second
 *   bench_gpu prefill [options]  one prompt of --context tokens
 *   bench_gpu mix     [options]  as many sequences as fit, at all ages, with a
 *                                prompt of --context and an --answer: who ends
 *                                makes way for the next (gpu_mix.c)
 *   bench_gpu moves   [options]  --batch sequences while one of --move tokens goes
 *                                to host memory and comes back (gpu_moves.c)
 *   bench_gpu turn    [options]  a kept prompt of --context tokens that comes back
 *                                with --answer new ones (gpu_turn.c)
 *   bench_gpu resume  [options]  a sequence of --context tokens gets its keys and
 *                                values from host memory: as pages, as X, of which
 *                                they are computed, or a part by each, by the
 *                                engine's kernels and copies (gpu_streamed.h); with
 *                                --set swap_recompute=yes also by the engine, as X
 *   bench_gpu offload [options]  steps of --batch sequences whose --context tokens
 *                                are all in host memory, a layer at a time through
 *                                two buffers; likewise
 *
 *   --model DIR   (tests/bench/shapes/llama-3-8b)   --policy SPEC   (full)
 *   --batch N (64; fit, mix: at most, 2047)  --context N (4096; mix: 2048)
 *   --answer N (2048; turn: 512)  --steps N (64; mix, moves: 400)  --move N (8192)
 *   --side N (8192) of the square product that the matrix peak is taken from
 *   --masks US      decode: every sequence is constrained, and the host needs so
 *                   many microseconds for each mask (a quarter of the vocabulary), on
 *                   the engine's threads, behind the token before
 *   --files DIR     turn: also from a file, in DIR, which is made and removed
 *   --from host     turn: also from pinned host memory (cache_memory, 8g)
 *   --set KEY=VALUE  an engine setting, may be repeated
 *
 * One line of key=value a run, of fit two.  Weights are random (load_format
 * dummy), so that thresholds mean nothing: policy `static` has fixed shares
 * (25% at 8/4 bits, 35% at 4/2, the rest forgotten).
 *
 *   device_ms     a step from its first copy to its last, by the device's events
 *   host_gap      what its wall time, step_ms, has beyond that
 *   first_ms      the same of the first 16 steps: at the power limit the clock falls
 *                 in the course of a second
 *   watts, token_mj  what the device draws, and for each token (millijoules),
 *                 where that is known and steps take a second or more
 *   roofline_ms   weights and used KV pages at the speed of a copy on the
 *                 device, of the same run
 *   products_ms   the step's matrix products alone (those of few rows with what
 *                 they add, gate and normalise); weights_ms: their weights at
 *                 the speed of a copy; flop_ms: their operations at the matrix
 *                 peak, of the same run
 *   attention_ms  its attention alone; kv_ms: its pages at the speed of a copy
 *   rest_ms       device_ms without these two: norms, cache, sampling, ..
 *   distinct      share of the last step's tokens that are different ones
 *   limit         what takes most of the step: matrix_products, kv_bytes (kv_ms),
 *                 attention (what it takes beyond kv_ms), rest
 *   decode_ms     mix: a step without prompts; prefill_ms: what those with them
 *                 add to the mean step
 *   anew_ms, turn_ms, again_ms  turn: to the next token behind prompt and new tokens
 *                 without reuse, with it, and of the prompt alone
 *   alone_p50_ms, alone_p99_ms, alone_max_ms  moves: from a step to the next while
 *                 nothing moves; swap_: while one is preempted and returns, again
 *                 16 steps; host_: while a prefix goes to cache_memory and comes
 *                 back, all the time; swap_over, host_over: p99 over that alone;
 *                 host_out_ms, host_in_ms: one way, beside the steps
 *   host_ms       turn: as turn_ms, when what was kept is in host memory; host_again_ms:
 *                 of the prompt alone; host_load_ms: until its pages are back;
 *                 host_write_ms: until they were copied there
 *   file_ms, page_cache_ms  turn: as turn_ms, when what was kept is in a file, on the
 *                 disk or in the page cache; disk_ms: to read that file, no more;
 *                 write_ms: until it was written
 *   held_share    prefill: most pages that the prompt held between two steps, over
 *                 its keys and values at 16 bits; charged_share: those that
 *                 admission counts, which is the most at any time; pool_share:
 *                 all that there are
 *   order         resume, offload: `layers`: a layer is copied while the one before
 *                 is computed; layer by layer, `chunks`: each piece of X is multiplied
 *                 as it comes; `x_first`: when all of it is there (the paper's)
 *   front, x_mib, page_mib  tokens that come as X, of how many; and what is copied
 *   compute_ms    without copies; plan_ms: what these two should take together;
 *                 over_pages: the time over that of pages alone, `layers`
 *   error         largest difference from the keys and values that were, over the
 *                 largest of these
 *   keep_ms, return_ms  the engine's: a prompt whose X is kept, and one that comes
 *                 back by it, each batch waited for
 *   compressed_ms pages alone, a quarter of the bytes; tokens_again_ms: to compute
 *                 the sequence as a prompt
 *   share         prefill: of the matrix peak.  Operations are those of the
 *                 matrices for every token, of causal attention (once, also
 *                 when there is a second pass for scores), and of the head for
 *                 the last token; the time is the prompt's whole wall time
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu_fixture.h"
#include "engine/config/log.h"
#include "kernels/thread_pool.h"

#define WARM_STEPS 8u
#define FIRST_STEPS 16u
#define ROUNDS 5
#define TRIES 6    /* of fit, to find room */
#define FIT_RUNS 3 /* of the same sequences */

static struct {
    const char *mode;
    uint32_t batch, context, answer, steps, side, masks, move;
} o = { .answer = 2048, .side = 8192, .move = 8192 };

static fixture_t fixture;
static uint64_t stalls;
static uint32_t *mask; /* that all have */

/* ---- options ------------------------------------------------------------ */

static void
set(const char *key, const char *value)
{
    tr_error_t err;

    if (tr_config_set(&fixture.config, "bench_gpu", key, value, &err)
        != TR_OK) {
        fixture_die("option", err.text);
    }
}

static uint32_t
number(const char *text, uint32_t most)
{
    char *end;
    unsigned long v = strtoul(text, &end, 10);

    if (*end != '\0' || v == 0 || v > most) {
        fixture_die("not a number in range", text);
    }
    return (uint32_t) v;
}

static void
set_pair(char *text)
{
    char *equals = strchr(text, '=');

    if (equals == NULL) {
        fixture_die("--set expects KEY=VALUE", text);
    }
    *equals = '\0';
    set(text, equals + 1);
}

static void
read_option(const char *name, char *value)
{
    if (strcmp(name, "--model") == 0) {
        set("model", value);
    } else if (strcmp(name, "--policy") == 0) {
        set("kv_policy", value);
    } else if (strcmp(name, "--batch") == 0) {
        o.batch = number(value, FIXTURE_SEQS_MAX);
    } else if (strcmp(name, "--context") == 0) {
        o.context = number(value, 1u << 20);
    } else if (strcmp(name, "--answer") == 0) {
        o.answer = number(value, 1u << 20);
        if (o.answer < 2) {
            fixture_die("--answer", "expected at least 2");
        }
    } else if (strcmp(name, "--steps") == 0) {
        o.steps = number(value, 1u << 16);
    } else if (strcmp(name, "--side") == 0) {
        o.side = number(value, 1u << 15);
    } else if (strcmp(name, "--masks") == 0) {
        o.masks = number(value, 1u << 20);
    } else if (strcmp(name, "--move") == 0) {
        o.move = number(value, 1u << 20);
    } else if (strcmp(name, "--files") == 0) {
        set("cache_dir", value);
    } else if (strcmp(name, "--from") == 0) {
        if (strcmp(value, "host") != 0) {
            fixture_die("--from expects host", value);
        }
        set("cache_memory", "8g");
    } else if (strcmp(name, "--set") == 0) {
        set_pair(value);
    } else {
        fixture_die("no such option", name);
    }
}

static void
read_options(int argc, char **argv)
{
    char text[32];

    bool mix, turn, moves, streams;

    o.mode = argc > 1 ? argv[1] : "";
    mix = strcmp(o.mode, "mix") == 0;
    turn = strcmp(o.mode, "turn") == 0;
    moves = strcmp(o.mode, "moves") == 0;
    streams = strcmp(o.mode, "resume") == 0 || strcmp(o.mode, "offload") == 0;
    o.batch = mix || strcmp(o.mode, "fit") == 0 ? 2047 : turn ? 3 : 64;
    o.answer = turn ? 512 : o.answer;
    o.context = mix ? 2048 : 4096;
    o.steps = mix || moves ? 400 : 64;
    tr_config_defaults(&fixture.config);
    set("backend", "cuda");
    set("load_format", "dummy");
    set("model", "tests/bench/shapes/llama-3-8b");
    set("max_batch_tokens", strcmp(o.mode, "prefill") == 0 ? "8192"
                            : mix                          ? "4096"
                                                           : "2048");
    set("kv_reuse", turn || moves ? "yes" : "auto");
    set("swap_memory", moves ? "8g" : "0");
    set("cache_memory", moves ? "8g" : "0");
    if (streams) { /* the rest is for buffers */
        set("kv_memory", "8g");
    }
    for (int i = 2; i < argc; i += 2) {
        if (i + 1 == argc) {
            fixture_die("an option without its value", argv[i]);
        }
        read_option(argv[i], argv[i + 1]);
    }
    snprintf(text, sizeof(text), "%u", o.batch + 1);
    set("max_num_seqs", text);
}

/* ---- sequences ---------------------------------------------------------- */

/* So many, or as many as fit with room for the tokens to come; how many. */
static uint32_t
fill(uint32_t most)
{
    int32_t base = tr_kv_open(fixture.e->kv, NULL);
    uint32_t n = 0, leave;

    tr_kv_prompt(fixture.e->kv, base, o.context);
    if (!fixture_compute(&fixture, base, 0, o.context, NULL)) {
        fixture_die("fill", "the pool does not hold one prompt");
    }
    while (n < most
           && fixture_add(&fixture, &fixture.seqs[n], base, o.context)) {
        n++;
    }
    tr_kv_close(fixture.e->kv, base);
    if (n == 0) {
        fixture_die("fill",
                    "the pool does not hold one sequence beside its prompt");
    }
    if (n < most && strcmp(o.mode, "fit") != 0) {
        fixture_die("fill", "the pool does not hold the batch");
    }
    leave = n < most ? 1 + n * (WARM_STEPS + o.steps + 1) / o.context : 0;
    while (leave-- > 0 && n > 1) {
        tr_kv_close(fixture.e->kv, fixture.seqs[--n].slot);
    }
    fixture_settle(&fixture);
    return n;
}

/* Of n sequences the first ones stay. */
static void
keep(uint32_t n, uint32_t stay)
{
    while (n > stay) {
        tr_kv_close(fixture.e->kv, fixture.seqs[--n].slot);
    }
    fixture_settle(&fixture);
}

/* Of n sequences, as many as have the pages that were not there when some
 * stalled: one a head, at most. */
static uint32_t
missing(uint32_t n)
{
    const tr_recipe_t *c = &fixture.x->model->config.recipe;
    uint64_t pages = stalls * c->layers * c->kv_heads;
    tr_kv_usage_t one;

    if (stalls == 0) { /* the host knew */
        return 1 + n / 100;
    }
    tr_kv_usage(fixture.e->kv, fixture.seqs[0].slot, &one);
    return 1 + (uint32_t) (pages * tr_kv_page_bytes(fixture.e->kv) / one.bytes);
}

/* ---- decode ------------------------------------------------------------- */

/* False: the pool is full. */
static bool
compose(uint32_t n, uint32_t step, tr_batch_item_t *item)
{
    if (!fixture_compose(&fixture, n, step, item)) {
        return false;
    }
    for (uint32_t i = 0; i < n; i++) {
        item[i].late = o.masks != 0;
    }
    return true;
}

static void
collect(const tr_batch_t *batch)
{
    fixture_must(fixture.e->complete(fixture.e, batch), "a decode step");
    for (uint32_t i = 0; i < batch->n_items; i++) {
        if (batch->items[i].status == TR_AGAIN) {
            stalls++;
        } else {
            fixture_must(batch->items[i].status, "a row");
        }
    }
}

static void
open_mask(void)
{
    uint32_t words = (fixture.e->vocab + 31) / 32;

    mask = calloc(words, sizeof(*mask));
    if (mask == NULL) {
        fixture_die("masks", "out of memory");
    }
    for (uint32_t i = 0; i < words; i++) {
        mask[i] = 0x11111111u << i % 4;
    }
}

static void
make_masks(void *arg, uint32_t first, uint32_t end, uint32_t worker)
{
    tr_batch_item_t *item = arg;
    double until = fixture_now_ms() + (end - first) * (o.masks / 1e3);

    (void) worker;
    for (uint32_t i = first; i < end; i++) {
        item[i].mask = mask;
    }
    while (fixture_now_ms() < until) {
    }
}

/* As the step loop does it, between a batch and the next. */
static void
sample_late(const tr_batch_t *batch)
{
    const tr_stream_t *pool = &fixture.e->pool;

    if (o.masks != 0) {
        tr_thread_pool_run(pool->thread_pool, pool->threads, batch->n_items, 1,
                           make_masks, batch->items);
        fixture.e->sample(fixture.e, batch);
    }
}

typedef struct {
    double wall, device, first; /* ms of a step; first: of the first ones */
    double watts;               /* 0: not known */
} pace_t;

/* Steps with one under way, as the step loop does them.  False: a sequence
 * found no page, and the times mean nothing. */
static bool
decode(uint32_t n, pace_t *pace)
{
    tr_batch_t batch[TR_CUDA_SLOTS];
    uint32_t first = o.steps < FIRST_STEPS ? o.steps : FIRST_STEPS;
    const tr_cuda_times_t *times = &fixture.x->times;
    double begun = 0, device = 0, joules = 0, asked = 0, ended, done;
    uint64_t before = 0;

    stalls = 0;
    for (uint32_t step = 0; step <= WARM_STEPS + o.steps; step++) {
        tr_batch_t *b = &batch[step % 2];

        *b = (tr_batch_t){ fixture.items[step % 2], n, n };
        if (!compose(n, step, b->items)) {
            const uint64_t seen = stalls;

            if (step > 0) {
                collect(&batch[(step + 1) % 2]);
            }
            stalls = seen > 0 ? seen : stalls; /* it has the same ones again */
            return false;
        }
        fixture_must(fixture.e->submit(fixture.e, b), "submit");
        if (step > 0) {
            collect(&batch[(step + 1) % 2]);
        }
        sample_late(b);
        if (step == WARM_STEPS - 2) {
            /* it takes longer than a step: early enough for both sides' times
             * to begin with the same one */
            asked = fixture_now_ms();
            joules = fixture_joules();
        } else if (step == WARM_STEPS) {
            begun = fixture_now_ms();
            device = times->device_us;
            before = times->steps;
        } else if (step == WARM_STEPS + first) {
            pace->first = (fixture_now_ms() - begun)
                          / (double) (times->steps - before);
        }
    }
    ended = fixture_now_ms();
    done = (double) (times->steps - before); /* as the device counts them */
    pace->wall = (ended - begun) / done;
    pace->first = first == o.steps ? pace->wall : pace->first;
    pace->device = (times->device_us - device) / 1e3 / done;
    pace->watts = ended - begun < 1e3 || joules == 0
                      ? 0
                      : (fixture_joules() - joules) / (ended - asked) * 1e3;
    collect(&batch[(WARM_STEPS + o.steps) % 2]);
    return stalls == 0;
}

/* ---- reports ------------------------------------------------------------ */

static void
say_run(const char *what)
{
    printf("bench=%s model=%s policy=\"%s\" gpu=\"%s\" context=%u", what,
           fixture.config.served_model_name,
           fixture.e->policies[0].policy->spec, fixture.x->info.name,
           o.context);
}

/* A step of n sequences. */
typedef struct {
    uint32_t n;
    pace_t pace;
    double products, attention;  /* ms of these alone */
    double kv_bytes, full_bytes; /* in use; at 16 bits */
    double speed;                /* bytes a second, of a copy */
    double distinct;             /* share of the last tokens */
    uint64_t steps, graphs, stalls;
} measured_t;

static int
by_token(const void *a, const void *b)
{
    const int32_t x = *(const int32_t *) a, y = *(const int32_t *) b;

    return (x > y) - (x < y);
}

/* Of n sequences' last tokens, the share that are different ones. */
static double
distinct(uint32_t n)
{
    static int32_t token[FIXTURE_SEQS_MAX];
    uint32_t found = 1;

    for (uint32_t i = 0; i < n; i++) {
        const fixture_seq_t *q = &fixture.seqs[i];

        token[i] = q->told >= 0 ? q->told
                                : q->out[(WARM_STEPS + o.steps) % 2].token;
    }
    qsort(token, n, sizeof(*token), by_token);
    for (uint32_t i = 1; i < n; i++) {
        found += token[i] != token[i - 1];
    }
    return (double) found / n;
}

/* False: there was no room for all. */
static bool
measure(uint32_t n, measured_t *r)
{
    tr_kv_totals_t totals;

    if (!decode(n, &r->pace)) {
        return false;
    }
    r->n = n;
    r->distinct = distinct(n);
    r->attention = fixture_attention_ms(&fixture, n);
    r->products = fixture_products_ms(&fixture, n);
    fixture_settle(&fixture);
    tr_kv_totals(fixture.e->kv, &totals);
    r->kv_bytes = 0;
    for (uint32_t i = 0; i < TR_KV_LAYOUTS_MAX; i++) {
        r->kv_bytes += (double) totals.pages[i]
                       * (double) tr_kv_page_bytes(fixture.e->kv);
    }
    r->full_bytes = (double) totals.full_bytes;
    r->speed = fixture_copy_speed(&fixture);
    r->steps = fixture.x->times.steps;
    r->graphs = fixture.x->times.graphs;
    r->stalls = stalls;
    return true;
}

/* Where a step's time goes, and what is most of it. */
static void
say_parts(const measured_t *r, double peak)
{
    double kv = r->kv_bytes / r->speed * 1e3;
    double rest = r->pace.device - r->products - r->attention;
    bool known = r->attention > 0;
    const struct {
        const char *name;
        double ms;
    } part[] = { { "matrix_products", r->products },
                 { "kv_bytes", known ? kv : 0 },
                 { "attention", known ? r->attention - kv : 0 },
                 { "rest", rest } };
    size_t most = 0;

    for (size_t i = 1; i < sizeof(part) / sizeof(*part); i++) {
        most = part[i].ms > part[most].ms ? i : most;
    }
    printf(" products_ms=%.3f weights_ms=%.3f flop_ms=%.3f attention_ms=%.3f"
           " kv_ms=%.3f rest_ms=%.3f peak_tflop_s=%.0f limit=%s\n",
           r->products, fixture_weight_bytes(&fixture, r->n) / r->speed * 1e3,
           fixture_products_work(&fixture, r->n) / peak * 1e3, r->attention, kv,
           rest, peak * 1e-12, part[most].name);
}

static void
say_step(const char *what, const measured_t *r, double peak)
{
    double roof = (r->kv_bytes + fixture_weight_bytes(&fixture, r->n))
                  / r->speed * 1e3;
    const pace_t *p = &r->pace;

    say_run(what);
    printf(" batch=%u steps=%u step_ms=%.3f first_ms=%.3f device_ms=%.3f"
           " host_gap=%.4f"
           " tokens_s=%.0f kv_gib=%.3f kv_of_fp16=%.4f weights_gib=%.3f"
           " copy_gb_s=%.0f roofline_ms=%.3f over_roofline=%.3f stalls=%llu"
           " graphs=%llu of=%llu distinct=%.3f",
           r->n, o.steps, p->wall, p->first, p->device, 1 - p->device / p->wall,
           r->n / p->wall * 1e3, r->kv_bytes * 0x1p-30,
           r->kv_bytes / r->full_bytes,
           fixture_weight_bytes(&fixture, r->n) * 0x1p-30, r->speed * 1e-9,
           roof, p->wall / roof, (unsigned long long) r->stalls,
           (unsigned long long) r->graphs, (unsigned long long) r->steps,
           r->distinct);
    if (o.masks != 0) {
        printf(" mask_us=%u threads=%d", o.masks, fixture.e->pool.threads);
    }
    if (p->watts > 0) {
        printf(" watts=%.0f token_mj=%.2f", p->watts,
               p->watts * p->wall / r->n);
    }
    say_parts(r, peak);
}

/* The same number, or the largest below it that a graph is made for. */
static uint32_t
graph_below(uint32_t n)
{
    uint32_t best = 0;

    for (uint32_t b = 0; b < fixture.x->n_buckets; b++) {
        best = fixture.x->bucket[b] <= n ? fixture.x->bucket[b] : best;
    }
    return best;
}

static void
run_decode(void)
{
    measured_t r;

    if (!measure(fill(o.batch), &r)) {
        fixture_die("decode", "the pool is full: fewer --steps");
    }
    say_step(o.mode, &r, fixture_peak(&fixture, o.side));
}

/* The largest batch that fits; then smaller ones, as long as they give more
 * tokens a second: a step is computed for the next larger graph. */
static void
run_fit(void)
{
    uint32_t n = fill(o.batch), next;
    double peak = fixture_peak(&fixture, o.side);
    measured_t r, best;

    for (int tries = 1; !measure(n, &r); tries++) {
        if (tries == TRIES) {
            fixture_die("fit", "the pool is full: fewer --steps");
        }
        next = missing(n);
        keep(n, 0);
        n = fill(n > next ? n - next : 1);
    }
    say_step("fit", &r, peak);
    best = r;
    for (int tries = 0; tries < 2; tries++) {
        next = graph_below(r.n - 1);
        if (next == 0) {
            break;
        }
        keep(r.n, next);
        if (!measure(next, &r) || r.n / r.pace.wall < best.n / best.pace.wall) {
            break;
        }
        best = r;
    }
    say_step("fit_best", &best, peak);
}

/* Operations of a prompt's forward pass. */
static double
prompt_work(void)
{
    const tr_recipe_t *c = &fixture.x->model->config.recipe;
    tr_part_shape_t s = tr_part_shape(c, TR_PART_EMBED, 0);
    double head = 2.0 * s.rows * s.columns;
    double pairs = 0.5 * o.context * (o.context + 1.0) * c->query_heads
                   * c->layers;

    return fixture_products_work(&fixture, o.context) - head * (o.context - 1.0)
           + pairs * 4 * c->head_dim;
}

/* Of a prompt's keys and values at 16 bits. */
static double
share_of(uint64_t pages)
{
    return (double) (pages * tr_kv_page_bytes(fixture.e->kv))
           / ((double) o.context * (double) tr_kv_token_bytes(fixture.e->kv));
}

static void
run_prefill(void)
{
    double ms = 0, device_ms = 0, compress_ms = 0, work = prompt_work(), peak;
    tr_sampled_t out;

    for (int i = 0; i <= ROUNDS; i++) { /* the first is a warm-up */
        int32_t slot = tr_kv_open(fixture.e->kv, NULL);
        double begun = fixture_now_ms(), device = fixture.x->times.device_us,
               ended;

        tr_kv_prompt(fixture.e->kv, slot, o.context);
        if (!fixture_compute(&fixture, slot, 0, o.context, &out)) {
            fixture_die("prefill", "the pool does not hold the prompt");
        }
        ended = fixture_now_ms();
        device = (fixture.x->times.device_us - device) / 1e3;
        if (!fixture_compress(&fixture, slot, o.context)) {
            fixture_die("prefill",
                        "the pool does not hold the compressed prompt");
        }
        fixture_settle(&fixture);
        if (i == 1 || (i > 1 && ended - begun < ms)) {
            ms = ended - begun;
            device_ms = device;
            compress_ms = fixture_now_ms() - ended;
        }
        tr_kv_close(fixture.e->kv, slot);
        fixture_settle(&fixture);
    }
    peak = fixture_peak(&fixture, o.side);
    say_run("prefill");
    printf(" prefill_level=%s held_share=%.4f charged_share=%.4f"
           " pool_share=%.4f",
           fixture.config.prefill_level, share_of(fixture.peak_pages),
           share_of(tr_kv_pages_for(fixture.e->kv, NULL, o.context)),
           share_of(tr_kv_pages(fixture.e->kv)));
    printf(" ttft_ms=%.2f device_ms=%.2f compress_ms=%.2f scored=%d"
           " tflop=%.1f tflop_s=%.0f peak_tflop_s=%.0f share=%.3f\n",
           ms, device_ms, compress_ms, fixture.e->policies[0].policy->scored,
           work * 1e-12, work / ms * 1e-9, peak * 1e-12,
           work / ms * 1e3 / peak);
}

static void
run_mix(void)
{
    const fixture_mix_t a = { .prompt = o.context,
                              .answer = o.answer,
                              .batch = o.batch,
                              .warm = WARM_STEPS,
                              .steps = o.steps };

    fixture_mix(&fixture, &a);
}

static void
run_turn(void)
{
    say_run("turn");
    fixture_turn(&fixture, o.context, o.answer);
}

static void
run_moves(void)
{
    fill(o.batch);
    say_run("moves");
    fixture_moves(&fixture, o.batch, o.move, o.steps);
}

static void
run_resume(void)
{
    fixture_resume(&fixture, o.context);
}

static void
run_offload(void)
{
    fixture_offload(&fixture, o.batch, o.context);
}

static const struct {
    const char *name;
    void (*run)(void);
} modes[] = { { "decode", run_decode },   { "fit", run_fit },
              { "prefill", run_prefill }, { "mix", run_mix },
              { "moves", run_moves },     { "turn", run_turn },
              { "resume", run_resume },   { "offload", run_offload } };

/* Of the longest sequence. */
static uint32_t
longest(void)
{
    if (strcmp(o.mode, "prefill") == 0) {
        return o.context + 1;
    }
    if (strcmp(o.mode, "moves") == 0) {
        uint32_t others = o.context + 3 * (o.steps + 1);

        return others > o.move ? others : o.move + 1;
    }
    return o.context
           + (strcmp(o.mode, "mix") == 0 || strcmp(o.mode, "turn") == 0
                  ? o.answer + 1
                  : FIT_RUNS * (WARM_STEPS + o.steps + 1));
}

int
main(int argc, char **argv)
{
    size_t i = 0, n = sizeof(modes) / sizeof(*modes);

    tr_log_open("stderr", TR_LEVEL_NOTICE);
    read_options(argc, argv);
    while (i < n && strcmp(o.mode, modes[i].name) != 0) {
        i++;
    }
    if (i == n) {
        fixture_die("usage",
                    "bench_gpu decode|fit|prefill|mix|moves|turn|resume|offload"
                    " [options]; see its file");
    }
    fixture_open(&fixture, longest());
    open_mask();
    modes[i].run();
    fixture_close(&fixture);
    free(mask);
    return 0;
}
