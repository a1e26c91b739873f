/*
 * bench_gpu: the engine's steps on a GPU, without transport.  Token ids are
 * random; a prompt is computed once, and forked.
 *
 *   bench_gpu decode  [options]  --batch sequences at --context tokens
 *   bench_gpu fit     [options]  as many sequences as fit at --context tokens
 *   bench_gpu prefill [options]  one prompt of --context tokens
 *
 *   --model DIR   (tests/bench/shapes/llama-3-8b)   --policy SPEC   (full)
 *   --batch N (64; fit: at most, 1024)  --context N (4096)  --steps N (64)
 *   --set KEY=VALUE  an engine setting, may be repeated
 *
 * One line of key=value a run.  device_ms: a step from its first copy to its last
 * by the device's events; host_gap: what its wall time has beyond that.
 * roofline_ms: weights and used KV pages at the speed of a copy on the device,
 * of the same run.  Weights are random (load_format dummy), so that thresholds
 * mean nothing: policy `static` has fixed shares (25% at 8/4 bits, 35% at 4/2,
 * the rest forgotten).
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "executor_cuda.h"
#include "log.h"

#define SEQS_MAX 4096u
#define COPY_BYTES ((size_t) 1 << 30)
#define WARM_STEPS 8u
#define ROUNDS 5

typedef struct {
    int32_t slot;
    uint32_t len, number;
    tr_sampled_t out[TR_CUDA_TURNS];
} seq_t;

static struct {
    const char *mode;
    uint32_t batch, context, steps;
    tr_config_t config;
} o;

static tr_executor_t *e;
static tr_executor_cuda_t *x;
static seq_t seqs[SEQS_MAX];
static tr_batch_item_t items[TR_CUDA_TURNS][SEQS_MAX];
static int32_t *prompt;
static const tr_sampling_params_t params = {
    .top_p = 1, .repetition_penalty = 1, .max_tokens = 1u << 20, .logprobs = -1
};
static tr_sampler_t sampler;
static uint64_t stalls;

static double
now_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double) t.tv_sec * 1e3 + (double) t.tv_nsec * 1e-6;
}

static void
die(const char *what, const char *why)
{
    fprintf(stderr, "bench_gpu: %s: %s\n", what, why);
    exit(1);
}

static void
must(tr_status_t rc, const char *what)
{
    if (rc != TR_OK) {
        die(what, tr_status_info(rc).name);
    }
}

/* ---- options ------------------------------------------------------------ */

static void
set(const char *key, const char *value)
{
    tr_error_t err;

    if (tr_config_set(&o.config, "bench_gpu", key, value, &err) != TR_OK) {
        die("option", err.text);
    }
}

static uint32_t
number(const char *text, uint32_t most)
{
    char *end;
    unsigned long v = strtoul(text, &end, 10);

    if (*end != '\0' || v == 0 || v > most) {
        die("not a number in range", text);
    }
    return (uint32_t) v;
}

static void
set_pair(char *text)
{
    char *equals = strchr(text, '=');

    if (equals == NULL) {
        die("--set expects KEY=VALUE", text);
    }
    *equals = '\0';
    set(text, equals + 1);
}

static void
read_options(int argc, char **argv)
{
    char text[32];

    o.mode = argc > 1 ? argv[1] : "";
    o.batch = strcmp(o.mode, "fit") == 0 ? 1024 : 64;
    o.context = 4096;
    o.steps = 64;
    tr_config_defaults(&o.config);
    set("backend", "cuda");
    set("load_format", "dummy");
    set("model", "tests/bench/shapes/llama-3-8b");
    set("max_batch_tokens", "8192");
    set("swap_memory", "0");
    for (int i = 2; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--model") == 0) {
            set("model", argv[i + 1]);
        } else if (strcmp(argv[i], "--policy") == 0) {
            set("kv_policy", argv[i + 1]);
        } else if (strcmp(argv[i], "--batch") == 0) {
            o.batch = number(argv[i + 1], SEQS_MAX);
        } else if (strcmp(argv[i], "--context") == 0) {
            o.context = number(argv[i + 1], 1u << 20);
        } else if (strcmp(argv[i], "--steps") == 0) {
            o.steps = number(argv[i + 1], 1u << 16);
        } else if (strcmp(argv[i], "--set") == 0) {
            set_pair(argv[i + 1]);
        } else {
            die("no such option", argv[i]);
        }
    }
    snprintf(text, sizeof(text), "%u", o.batch + 1);
    set("max_num_seqs", text);
    snprintf(text, sizeof(text), "%u", o.context + WARM_STEPS + o.steps + 1);
    set("max_model_len", text);
}

static void
open_engine(void)
{
    tr_error_t err;
    uint64_t rng = 1;

    if (o.config.max_batch_tokens < o.config.max_num_seqs) {
        o.config.max_batch_tokens = o.config.max_num_seqs;
    }
    if (tr_config_finish(&o.config, &err) != TR_OK
        || tr_executor_cuda_open(&o.config, &e, &err) != TR_OK) {
        die("open", err.text);
    }
    x = (tr_executor_cuda_t *) e;
    if (e->max_model_len < o.context + WARM_STEPS + o.steps) {
        die("open", "the pool is too small for one sequence; the log says so");
    }
    prompt = calloc(o.context + 1, sizeof(*prompt));
    for (uint32_t i = 0; prompt != NULL && i <= o.context; i++) {
        rng = rng * 6364136223846793005u + 1442695040888963407u;
        prompt[i] = (int32_t) ((rng >> 33) % e->vocab);
    }
    tr_sampler_init(&sampler, &params, 1, e->vocab, NULL, NULL, 0, NULL, 0);
}

/* ---- sequences ---------------------------------------------------------- */

/* Until the device has answered for all that the cache was asked. */
static void
settle(void)
{
    const tr_batch_t none = { items[0], 0, 0 };

    do {
        must(tr_executor_run(e, &none), "an empty step");
    } while (!tr_kv_settled(e->kv));
}

static bool
reserve(int32_t slot, uint32_t len)
{
    if (tr_kv_reserve(e->kv, slot, len) == TR_OK) {
        return true;
    }
    settle();
    return tr_kv_reserve(e->kv, slot, len) == TR_OK;
}

/* Computes positions [from, to); the last one is sampled into out if that is
 * not NULL. */
static bool
compute(int32_t slot, uint32_t from, uint32_t to, tr_sampled_t *out)
{
    while (from < to) {
        uint32_t n = to - from;
        tr_batch_item_t *item = &items[0][0];
        tr_batch_t batch = { item, 1, 0 };

        n = n < o.config.max_batch_tokens ? n : o.config.max_batch_tokens;
        *item = (tr_batch_item_t){ .kv_slot = slot,
                                   .pos = from,
                                   .n = n,
                                   .tokens = prompt + from,
                                   .sample = out != NULL && from + n == to,
                                   .sampler = &sampler,
                                   .out = out };
        batch.n_tokens = n;
        if (!reserve(slot, from + n)) {
            return false;
        }
        must(tr_executor_run(e, &batch), "a prompt's step");
        if (item->status != TR_OK) {
            return false;
        }
        from += n;
    }
    return true;
}

static bool
compress(int32_t slot, uint32_t len)
{
    for (int tries = 0; tries < 4; tries++) {
        tr_status_t rc = tr_kv_compress(e->kv, slot, len);

        if (rc != TR_AGAIN) {
            must(rc, "compress");
            return true;
        }
        settle();
    }
    return false;
}

/* A sequence that begins as `base` stands, one token short of the context. */
static bool
add_sequence(seq_t *q, int32_t base)
{
    tr_status_t rc;

    q->slot = tr_kv_open(e->kv, NULL);
    if (q->slot < 0) {
        return false;
    }
    tr_kv_prompt(e->kv, q->slot, o.context);
    rc = tr_kv_fork(e->kv, base, q->slot, o.context - 1);
    if (rc == TR_AGAIN) {
        settle();
        rc = tr_kv_fork(e->kv, base, q->slot, o.context - 1);
    }
    if (rc == TR_OK && compute(q->slot, o.context - 1, o.context, &q->out[0])
        && compress(q->slot, o.context)) {
        q->len = o.context;
        q->number = 1;
        return true;
    }
    tr_kv_close(e->kv, q->slot);
    return false;
}

/* As many as asked for, or as fit; how many. */
static uint32_t
fill(void)
{
    int32_t base = tr_kv_open(e->kv, NULL);
    uint32_t n = 0, leave;

    tr_kv_prompt(e->kv, base, o.context);
    if (!compute(base, 0, o.context - 1, NULL)) {
        die("fill", "the pool does not hold one prompt");
    }
    while (n < o.batch && add_sequence(&seqs[n], base)) {
        n++;
    }
    tr_kv_close(e->kv, base);
    if (n < o.batch && strcmp(o.mode, "fit") != 0) {
        die("fill", "the pool does not hold the batch");
    }
    /* room for the tokens that are to come */
    leave = n < o.batch ? 1 + n * (o.steps + WARM_STEPS) / o.context : 0;
    while (leave-- > 0 && n > 1) {
        tr_kv_close(e->kv, seqs[--n].slot);
    }
    settle();
    return n;
}

/* ---- decode ------------------------------------------------------------- */

static uint32_t
compose(uint32_t n, uint32_t step, tr_batch_item_t *item)
{
    static int32_t slot[SEQS_MAX];
    static uint32_t len[SEQS_MAX];
    static tr_status_t rc[SEQS_MAX];
    uint32_t k = 0;

    for (uint32_t i = 0; i < n; i++) {
        slot[i] = seqs[i].slot;
        len[i] = seqs[i].len + 1;
    }
    tr_kv_reserve_batch(e->kv, slot, len, n, rc);
    for (uint32_t i = 0; i < n; i++) {
        seq_t *q = &seqs[i];

        if (rc[i] != TR_OK) {
            die("decode", "the pool is full: fewer --steps");
        }
        item[k++] = (tr_batch_item_t){ .kv_slot = q->slot,
                                       .pos = q->len++,
                                       .n = 1,
                                       .tokens = step == 0 ? &q->out[0].token
                                                           : NULL,
                                       .sample = true,
                                       .sampler = &sampler,
                                       .number = q->number++,
                                       .out = &q->out[step % 2] };
    }
    return k;
}

static void
collect(const tr_batch_t *batch)
{
    must(e->collect(e, batch), "a decode step");
    for (uint32_t i = 0; i < batch->n_items; i++) {
        if (batch->items[i].status == TR_AGAIN) {
            stalls++;
        } else {
            must(batch->items[i].status, "a row");
        }
    }
}

/* Steps with one under way, as the step loop does them; ms of wall time. */
static double
decode(uint32_t n, double *device_ms)
{
    tr_batch_t batch[TR_CUDA_TURNS];
    double begun = 0, device = 0;

    for (uint32_t step = 0; step < WARM_STEPS + o.steps; step++) {
        tr_batch_t *b = &batch[step % 2];

        *b = (tr_batch_t){ items[step % 2], 0, n };
        b->n_items = compose(n, step, b->items);
        must(e->submit(e, b), "submit");
        if (step > 0) {
            collect(&batch[(step + 1) % 2]);
        }
        if (step == WARM_STEPS) {
            begun = now_ms();
            device = x->times.device_us;
        }
    }
    begun = now_ms() - begun;
    *device_ms = (x->times.device_us - device) / 1e3;
    collect(&batch[(WARM_STEPS + o.steps + 1) % 2]);
    return begun;
}

/* ---- what the device can ------------------------------------------------ */

static double
timed(int (*work)(void *), void *arg)
{
    double us = 0, best = 0;

    for (int i = 0; i < ROUNDS; i++) {
        tr_cuda_turn_t *t = &x->turn[0];

        if (x->cuda->event_record(&x->stream, t->begun) != 0 || work(arg) != 0
            || x->cuda->event_record(&x->stream, t->done) != 0
            || x->cuda->event_wait(t->done) != 0
            || x->cuda->event_time(t->begun, t->done, &us) != 0) {
            die("device", x->cuda->reason());
        }
        best = i == 0 || us < best ? us : best;
    }
    return best;
}

typedef struct {
    uint8_t *memory;
    size_t bytes;
} copying_t;

static int
copy_once(void *arg)
{
    const copying_t *c = arg;

    return x->cuda->copy(&x->stream, c->memory, c->memory + c->bytes, c->bytes);
}

/* Bytes read and written a second by a copy. */
static double
copy_speed(void)
{
    copying_t c = { NULL, COPY_BYTES };
    double us;

    while ((c.memory = x->cuda->alloc(2 * c.bytes)) == NULL) {
        c.bytes /= 2;
    }
    us = timed(copy_once, &c);
    x->cuda->release(c.memory);
    return 2.0 * (double) c.bytes / us * 1e6;
}

static int
multiply_once(void *arg)
{
    const tr_model_cuda_t *m = x->model;
    tr_cuda_product_t p = tr_model_cuda_product(
        m, TR_PART_GATE_UP, m->layers[0].part[TR_PART_GATE_UP], m->normed,
        m->ld_hidden, m->max_rows, m->gate_up, m->ld_gate_up);

    (void) arg;
    return x->cuda->matmul(&x->stream, m->products, &p);
}

/* Operations a second of the largest product of a step. */
static double
product_speed(void)
{
    tr_part_shape_t s = tr_part_shape(&x->model->config, TR_PART_GATE_UP);

    return 2.0 * x->model->max_rows * s.rows * s.columns
           / timed(multiply_once, NULL) * 1e6;
}

/* ---- reports ------------------------------------------------------------ */

/* All weights but the embedding, of which a step reads some rows. */
static double
weight_bytes(void)
{
    tr_part_shape_t s = tr_part_shape(&x->model->config, TR_PART_EMBED);

    return (double) x->model->weights_size
           - (x->model->config.tied ? 0 : 2.0 * s.rows * s.columns);
}

static void
say_run(const char *what)
{
    printf("bench=%s model=%s policy=%s gpu=\"%s\" context=%u", what,
           o.config.served_model_name, e->policies[0].policy->spec,
           x->about.name, o.context);
}

static void
run_decode(void)
{
    uint32_t n = fill();
    double device, wall, bytes = 0, speed, roof;
    tr_kv_totals_t totals;

    wall = decode(n, &device) / o.steps;
    device /= o.steps;
    settle();
    tr_kv_totals(e->kv, &totals);
    for (uint32_t i = 0; i < TR_KV_LAYOUTS_MAX; i++) {
        bytes += (double) totals.pages[i] * (double) tr_kv_page_bytes(e->kv);
    }
    speed = copy_speed();
    roof = (bytes + weight_bytes()) / speed * 1e3;
    say_run(o.mode);
    printf(" batch=%u steps=%u step_ms=%.3f device_ms=%.3f host_gap=%.4f"
           " tokens_s=%.0f kv_gib=%.3f kv_of_fp16=%.4f weights_gib=%.3f"
           " copy_gb_s=%.0f roofline_ms=%.3f over_roofline=%.3f stalls=%llu"
           " graphs=%llu of=%llu\n",
           n, o.steps, wall, device, 1 - device / wall, n / wall * 1e3,
           bytes * 0x1p-30, bytes / (double) totals.full_bytes,
           weight_bytes() * 0x1p-30, speed * 1e-9, roof, wall / roof,
           (unsigned long long) stalls, (unsigned long long) x->times.graphs,
           (unsigned long long) x->times.steps);
}

static void
run_prefill(void)
{
    const tr_model_config_t *c = &x->model->config;
    bool scored = e->policies[0].policy->scored;
    double ms = 0, linear = 0, pairs, work, peak = product_speed();
    tr_sampled_t out;

    for (int i = 0; i <= ROUNDS; i++) { /* the first is a warm-up */
        int32_t slot = tr_kv_open(e->kv, NULL);
        double begun = now_ms();

        tr_kv_prompt(e->kv, slot, o.context);
        if (!compute(slot, 0, o.context, &out)) {
            die("prefill", "the pool does not hold the prompt");
        }
        begun = now_ms() - begun;
        ms = i == 1 || (i > 1 && begun < ms) ? begun : ms;
        tr_kv_close(e->kv, slot);
        settle();
    }
    for (int part = TR_PART_QKV; part < (int) TR_PART_MATRICES; part++) {
        tr_part_shape_t s = tr_part_shape(c, (tr_part_t) part);

        linear += 2.0 * s.rows * s.columns * c->layers * o.context;
    }
    pairs = 0.5 * o.context * (o.context + 1.0) * c->query_heads * c->layers;
    work = linear + pairs * 4 * c->head_dim * (scored ? 1.5 : 1);
    say_run("prefill");
    printf(" ttft_ms=%.2f scored=%d tflop_s=%.0f product_tflop_s=%.0f"
           " share=%.3f\n",
           ms, scored, work / ms * 1e-9, peak * 1e-12, work / ms * 1e3 / peak);
}

int
main(int argc, char **argv)
{
    tr_log_open("stderr", TR_LEVEL_NOTICE);
    read_options(argc, argv);
    if (strcmp(o.mode, "decode") != 0 && strcmp(o.mode, "fit") != 0
        && strcmp(o.mode, "prefill") != 0) {
        die("usage", "bench_gpu decode|fit|prefill [options]; see its file");
    }
    open_engine();
    if (strcmp(o.mode, "prefill") == 0) {
        run_prefill();
    } else {
        run_decode();
    }
    e->free(e);
    free(prompt);
    return 0;
}
