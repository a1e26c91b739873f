/*
 * bench_gpu mix: a full pool in its steady state, prompts beside answers.
 *
 * Sequences of a prompt and an answer of fixed lengths begin at every age, so
 * that from the first step on as many end as begin.  One that ends makes way
 * for a new prompt, which is computed in what a step has left beside those that
 * decode, compressed, and goes on; steps are composed one ahead.  It is what
 * the scheduler does when as many requests are there as the pool holds: a few
 * less than that, so that nobody is ever preempted.
 */
#include "gpu_fixture.h"

#include <math.h>
#include <stdio.h>

typedef enum {
    WAITS,      /* for room for its prompt */
    PROMPT,     /* is computed, `len` tokens so far */
    COMPRESSES, /* its prompt has not found room for its copy yet */
    DECODES,
} state_t;

typedef struct {
    uint64_t tokens, prompts, prompt_tokens, stalls;
    uint32_t n_mixed, n_pure; /* steps with rows of prompts, and without */
    double mixed_us, pure_us; /* device time of these */
} counts_t;

static struct {
    fixture_t *b;
    uint32_t prompt, answer, n;
    state_t state[FIXTURE_SEQS_MAX];
    uint32_t held[FIXTURE_SEQS_MAX];               /* no row before this step */
    uint32_t who[TR_CUDA_SLOTS][FIXTURE_SEQS_MAX]; /* of the rows of a batch */
    tr_batch_t batch[TR_CUDA_SLOTS];
    bool mixed[TR_CUDA_SLOTS]; /* the batch has rows of prompts */
    counts_t c;
} m;

/* ---- begin -------------------------------------------------------------- */

/* Evenly spread, in no order. */
static uint32_t
age_of(uint32_t i)
{
    double turn = fmod(i * 0.6180339887498949, 1);

    return (uint32_t) (turn * (m.answer - 1));
}

/* As many as fit beside the prompts that are under way at any time. */
static void
fill(uint32_t most)
{
    fixture_t *b = m.b;
    tr_kv_cache_t *kv = b->e->kv;
    uint64_t keep = 4 * tr_kv_pages_for(kv, NULL, m.prompt)
                    + tr_kv_pages(kv) / 100;
    int32_t base = tr_kv_open(kv, NULL);

    tr_kv_prompt(kv, base, m.prompt + m.answer);
    if (!fixture_compute(b, base, 0, m.prompt + m.answer, NULL)) {
        fixture_die("mix", "the pool does not hold one sequence");
    }
    while (m.n < most) {
        fixture_seq_t *q = &b->seqs[m.n];
        uint32_t age = age_of(m.n);

        if (!fixture_add(b, q, base, m.prompt + age)) {
            break;
        }
        q->number = age + 1; /* tokens of its answer that are known */
        m.state[m.n++] = DECODES;
    }
    tr_kv_close(kv, base);
    fixture_settle(b);
    while (m.n > 1 && tr_kv_free_pages(kv) < keep) {
        tr_kv_close(kv, b->seqs[--m.n].slot);
        fixture_settle(b);
    }
}

/* ---- a step ------------------------------------------------------------- */

static void
begin_prompt(uint32_t i)
{
    tr_kv_cache_t *kv = m.b->e->kv;
    fixture_seq_t *q = &m.b->seqs[i];
    int32_t slot;

    if (tr_kv_pages_for(kv, NULL, m.prompt) > tr_kv_free_pages(kv)
        || (slot = tr_kv_open(kv, NULL)) < 0) {
        return;
    }
    tr_kv_prompt(kv, slot, m.prompt);
    if (tr_kv_reserve(kv, slot, m.prompt) != TR_OK) {
        tr_kv_close(kv, slot);
        return;
    }
    q->slot = slot;
    q->len = q->number = 0;
    m.state[i] = PROMPT;
}

static void
try_compress(uint32_t i)
{
    tr_status_t rc = tr_kv_compress(m.b->e->kv, m.b->seqs[i].slot, m.prompt);

    if (rc != TR_AGAIN) {
        fixture_must(rc, "compress");
        m.state[i] = DECODES;
    }
}

/* Rows of those that decode and find room. */
static uint32_t
compose_decode(uint32_t step, tr_batch_item_t *item, uint32_t *who)
{
    static int32_t slot[FIXTURE_SEQS_MAX];
    static uint32_t len[FIXTURE_SEQS_MAX], of[FIXTURE_SEQS_MAX];
    static tr_status_t rc[FIXTURE_SEQS_MAX];
    fixture_t *b = m.b;
    uint32_t asked = 0, k = 0;

    for (uint32_t i = 0; i < m.n; i++) {
        if (m.state[i] == DECODES && b->seqs[i].number < m.answer
            && m.held[i] <= step) {
            of[asked] = i;
            slot[asked] = b->seqs[i].slot;
            len[asked++] = b->seqs[i].len + 1;
        }
    }
    tr_kv_reserve_batch(b->e->kv, slot, len, asked, rc);
    for (uint32_t a = 0; a < asked; a++) {
        fixture_seq_t *q = &b->seqs[of[a]];
        const int32_t *token;

        if (rc[a] != TR_OK) {
            m.c.stalls++;
            continue;
        }
        token = fixture_token(b, q);
        who[k] = of[a];
        item[k++] = (tr_batch_item_t){ .kv_slot = q->slot,
                                       .pos = q->len++,
                                       .n = 1,
                                       .tokens = token,
                                       .sample = true,
                                       .sampler = &b->sampler,
                                       .number = q->number++,
                                       .out = &q->out[step % 2] };
    }
    return k;
}

/* Chunks of prompts, behind k other rows; how many items there are then. */
static uint32_t
compose_prompts(uint32_t step, uint32_t k, tr_batch_item_t *item, uint32_t *who)
{
    fixture_t *b = m.b;
    uint32_t left = b->config.max_batch_tokens - k;

    for (uint32_t i = 0; i < m.n && left > 0; i++) {
        fixture_seq_t *q = &b->seqs[i];
        uint32_t n;

        if (m.state[i] == WAITS) {
            begin_prompt(i);
        }
        if (m.state[i] != PROMPT) {
            continue;
        }
        n = m.prompt - q->len < left ? m.prompt - q->len : left;
        who[k] = i;
        item[k++] = (tr_batch_item_t){ .kv_slot = q->slot,
                                       .pos = q->len,
                                       .n = n,
                                       .tokens = b->prompt + q->len,
                                       .sample = q->len + n == m.prompt,
                                       .sampler = &b->sampler,
                                       .number = 0,
                                       .out = &q->out[step % 2] };
        q->len += n;
        left -= n;
    }
    return k;
}

static void
submit(uint32_t step)
{
    fixture_t *b = m.b;
    uint32_t turn = step % 2, *who = m.who[turn], decoding;
    tr_batch_t *batch = &m.batch[turn];

    *batch = (tr_batch_t){ b->items[turn], 0, 0 };
    for (uint32_t i = 0; i < m.n; i++) {
        if (m.state[i] == COMPRESSES) {
            try_compress(i);
        }
    }
    decoding = compose_decode(step, batch->items, who);
    batch->n_items = compose_prompts(step, decoding, batch->items, who);
    m.mixed[turn] = batch->n_items > decoding;
    for (uint32_t k = 0; k < batch->n_items; k++) {
        batch->n_tokens += batch->items[k].n;
    }
    fixture_must(b->e->submit(b->e, batch), "submit");
    for (uint32_t k = decoding; k < batch->n_items; k++) {
        if (b->seqs[who[k]].len == m.prompt) {
            b->seqs[who[k]].number = 1;
            m.state[who[k]] = COMPRESSES;
        }
    }
}

static void
take_row(uint32_t i, const tr_batch_item_t *item, uint32_t step)
{
    fixture_seq_t *q = &m.b->seqs[i];

    if (item->status == TR_AGAIN
        && item->pos >= m.prompt) { /* again, behind what is under way */
        m.c.stalls++;
        if (item->pos < q->len) {
            q->number -= q->len - item->pos;
            q->len = item->pos;
        }
        m.held[i] = step + 2;
        return;
    }
    fixture_must(item->status, "a row");
    m.c.tokens += item->sample;
    if (item->pos < m.prompt) {
        m.c.prompt_tokens += item->n;
        m.c.prompts += item->sample;
    } else if (q->number == m.answer
               && item->pos + 1 == m.prompt + m.answer - 1) {
        tr_kv_close(m.b->e->kv, q->slot);
        m.state[i] = WAITS;
    }
}

static void
collect(uint32_t step)
{
    fixture_t *b = m.b;
    uint32_t turn = step % 2;
    const tr_batch_t *batch = &m.batch[turn];
    double us = b->x->times.device_us;

    fixture_must(b->e->complete(b->e, batch), "a step");
    us = b->x->times.device_us - us;
    if (m.mixed[turn]) {
        m.c.n_mixed++;
        m.c.mixed_us += us;
    } else {
        m.c.n_pure++;
        m.c.pure_us += us;
    }
    for (uint32_t k = 0; k < batch->n_items; k++) {
        take_row(m.who[turn][k], &batch->items[k], step);
    }
}

/* ---- the run ------------------------------------------------------------ */

/* Where a mean step's time goes, and what is most of it. */
static void
say_parts(const counts_t *c, double kv_bytes)
{
    double pure = c->n_pure > 0 ? c->pure_us / c->n_pure / 1e3 : 0;
    double step = (c->mixed_us + c->pure_us) / 1e3 / (c->n_mixed + c->n_pure);
    double products = fixture_products_ms(m.b, m.n);
    double kv = kv_bytes / fixture_copy_speed(m.b) * 1e3;
    const struct {
        const char *name;
        double ms;
    } part[] = { { "prefill", step - pure },
                 { "matrix_products", products },
                 { "kv_bytes", kv },
                 { "attention_and_rest", pure - products - kv } };
    size_t most = 0;

    for (size_t i = 1; i < sizeof(part) / sizeof(*part); i++) {
        most = part[i].ms > part[most].ms ? i : most;
    }
    printf(" device_ms=%.3f decode_ms=%.3f prefill_ms=%.3f products_ms=%.3f"
           " kv_ms=%.3f limit=%s",
           step, pure, step - pure, products, kv,
           c->n_pure > 0 ? part[most].name : "prefill");
}

static void
report(const counts_t *c, double seconds)
{
    fixture_t *b = m.b;
    uint32_t steps = c->n_mixed + c->n_pure;
    double bytes = 0, pages = (double) tr_kv_pages(b->e->kv);
    tr_kv_totals_t totals;

    tr_kv_totals(b->e->kv, &totals);
    for (uint32_t i = 0; i < TR_KV_LAYOUTS_MAX; i++) {
        bytes += (double) totals.pages[i] * (double) tr_kv_page_bytes(b->e->kv);
    }
    printf("bench=mix model=%s policy=\"%s\" gpu=\"%s\" prompt=%u answer=%u"
           " batch=%u steps=%u seconds=%.2f tokens_s=%.0f prompts_s=%.2f"
           " prompt_tokens_s=%.0f step_ms=%.3f mixed_steps=%.3f stalls=%llu"
           " kv_gib=%.3f kv_of_fp16=%.4f pool_used=%.3f",
           b->config.served_model_name, b->e->policies[0].policy->spec,
           b->x->info.name, m.prompt, m.answer, m.n, steps, seconds,
           (double) c->tokens / seconds, (double) c->prompts / seconds,
           (double) c->prompt_tokens / seconds, seconds * 1e3 / steps,
           (double) c->n_mixed / steps, (unsigned long long) c->stalls,
           bytes * 0x1p-30, bytes / (double) totals.full_bytes,
           1 - (double) tr_kv_free_pages(b->e->kv) / pages);
    if (b->config.kv_memory != 0) {
        printf(" kv_memory=%lluMiB",
               (unsigned long long) b->config.kv_memory >> 20);
    }
    say_parts(c, bytes);
    printf("\n");
}

void
fixture_mix(fixture_t *b, const fixture_mix_t *a)
{
    double begun = 0;
    counts_t measured;

    m.b = b;
    m.prompt = a->prompt;
    m.answer = a->answer;
    fill(a->batch);
    for (uint32_t step = 0; step <= a->warm + a->steps; step++) {
        submit(step);
        if (step > 0) {
            collect(step - 1);
        }
        if (step == a->warm) {
            begun = fixture_now_ms();
            m.c = (counts_t){ 0 };
        }
    }
    begun = fixture_now_ms() - begun;
    measured = m.c;
    collect(a->warm + a->steps);
    fixture_settle(b);
    report(&measured, begun / 1e3);
}
