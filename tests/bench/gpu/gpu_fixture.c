/*
 * The executor and its sequences (gpu_fixture.h).
 */
#include "gpu_fixture.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static const tr_sampling_params_t params = {
    .top_p = 1, .repetition_penalty = 1, .max_tokens = 1u << 20, .logprobs = -1
};

double
fixture_now_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double) t.tv_sec * 1e3 + (double) t.tv_nsec * 1e-6;
}

void
fixture_die(const char *what, const char *why)
{
    fprintf(stderr, "bench_gpu: %s: %s\n", what, why);
    exit(1);
}

void
fixture_must(tr_status_t rc, const char *what)
{
    if (rc != TR_OK) {
        fixture_die(what, tr_status_info(rc).name);
    }
}

/* ---- opening ------------------------------------------------------------ */

void
fixture_open(fixture_t *b, uint32_t max_len)
{
    tr_config_t *c = &b->config;
    tr_error_t err;
    uint64_t rng = 1;

    c->max_model_len = max_len;
    if (c->max_batch_tokens < c->max_num_seqs) {
        c->max_batch_tokens = c->max_num_seqs;
    }
    if (tr_config_finish(c, &err) != TR_OK
        || tr_executor_cuda_open(c, &b->e, &err) != TR_OK) {
        fixture_die("open", err.text);
    }
    b->x = (tr_executor_cuda_t *) b->e;
    if (b->e->max_model_len < max_len) {
        fixture_die("open",
                    "the pool is too small for one sequence; the log says "
                    "so");
    }
    b->prompt = calloc(max_len, sizeof(*b->prompt));
    if (b->prompt == NULL) {
        fixture_die("open", "out of memory");
    }
    b->prompt_len = max_len;
    for (uint32_t i = 0; i < max_len; i++) {
        rng = rng * 6364136223846793005u + 1442695040888963407u;
        b->prompt[i] = (int32_t) ((rng >> 33) % b->e->vocab);
    }
    tr_sampler_init(&b->sampler, &params, 1, b->e->vocab, NULL, NULL, 0, NULL,
                    0);
    fixture_copy_speed(b);
}

void
fixture_close(fixture_t *b)
{
    b->e->free(b->e);
    free(b->prompt);
}

/* ---- sequences ---------------------------------------------------------- */

void
fixture_settle(fixture_t *b)
{
    const tr_batch_t none = { b->items[0], 0, 0 };

    do {
        fixture_must(tr_executor_run(b->e, &none), "an empty step");
    } while (!tr_kv_settled(b->e->kv));
}

static bool
reserve(fixture_t *b, int32_t slot, uint32_t len)
{
    if (tr_kv_reserve(b->e->kv, slot, len) == TR_OK) {
        return true;
    }
    fixture_settle(b);
    return tr_kv_reserve(b->e->kv, slot, len) == TR_OK;
}

/* Of n tokens from position `from` on, those that come before the next stage of a
 * prompt that has some; 0: there is no room for it. */
static uint32_t
until_stage(fixture_t *b, int32_t slot, uint32_t from, uint32_t n)
{
    uint32_t stage = tr_kv_stages(b->e->kv, NULL);

    if (stage == 0) {
        return n;
    }
    if (tr_kv_stage_due(b->e->kv, slot, from)
        && tr_kv_stage(b->e->kv, slot, from) != TR_OK) {
        fixture_settle(b);
        if (tr_kv_stage(b->e->kv, slot, from) != TR_OK) {
            return 0;
        }
    }
    return n < stage - from % stage ? n : stage - from % stage;
}

static void
note_peak(fixture_t *b, int32_t slot)
{
    uint64_t pages = tr_kv_held_pages(b->e->kv, slot);

    b->peak_pages = pages > b->peak_pages ? pages : b->peak_pages;
}

bool
fixture_compute(fixture_t *b, int32_t slot, uint32_t from, uint32_t to,
                tr_sampled_t *out)
{
    while (from < to) {
        uint32_t n = to - from, most = b->config.max_batch_tokens;
        tr_batch_item_t *item = &b->items[0][0];
        tr_batch_t batch = { item, 1, 0 };

        n = until_stage(b, slot, from, n < most ? n : most);
        if (n == 0) {
            return false;
        }
        *item = (tr_batch_item_t){ .kv_slot = slot,
                                   .pos = from,
                                   .n = n,
                                   .tokens = b->prompt + from,
                                   .sample = out != NULL && from + n == to,
                                   .sampler = &b->sampler,
                                   .out = out };
        batch.n_tokens = n;
        if (!reserve(b, slot, from + n)) {
            return false;
        }
        note_peak(b, slot);
        fixture_must(tr_executor_run(b->e, &batch), "a prompt's step");
        if (item->status != TR_OK) {
            return false;
        }
        from += n;
    }
    return true;
}

bool
fixture_compress(fixture_t *b, int32_t slot, uint32_t len)
{
    for (int tries = 0; tries < 4; tries++) {
        tr_status_t rc = tr_kv_compress(b->e->kv, slot, len);

        if (rc != TR_AGAIN) {
            fixture_must(rc, "compress");
            return true;
        }
        fixture_settle(b);
    }
    return false;
}

bool
fixture_add(fixture_t *b, fixture_seq_t *q, int32_t base, uint32_t len)
{
    tr_status_t rc;

    q->slot = tr_kv_open(b->e->kv, NULL);
    if (q->slot < 0) {
        return false;
    }
    tr_kv_prompt(b->e->kv, q->slot, len);
    rc = tr_kv_fork(b->e->kv, base, q->slot, len);
    if (rc == TR_AGAIN) {
        fixture_settle(b);
        rc = tr_kv_fork(b->e->kv, base, q->slot, len);
    }
    if (rc == TR_OK && fixture_compress(b, q->slot, len)) {
        fixture_settle(b);
        q->len = len;
        q->number = 1;
        q->given = true;
        return true;
    }
    tr_kv_close(b->e->kv, q->slot);
    return false;
}

bool
fixture_compose(fixture_t *b, uint32_t n, uint32_t step, tr_batch_item_t *item)
{
    static int32_t slot[FIXTURE_SEQS_MAX];
    static uint32_t len[FIXTURE_SEQS_MAX];
    static tr_status_t rc[FIXTURE_SEQS_MAX];

    for (uint32_t i = 0; i < n; i++) {
        slot[i] = b->seqs[i].slot;
        len[i] = b->seqs[i].len + 1;
    }
    tr_kv_reserve_batch(b->e->kv, slot, len, n, rc);
    for (uint32_t i = 0; i < n; i++) {
        if (rc[i] != TR_OK) {
            return false;
        }
    }
    for (uint32_t i = 0; i < n; i++) {
        fixture_seq_t *q = &b->seqs[i];
        const int32_t *token = fixture_token(b, q);

        item[i] = (tr_batch_item_t){ .kv_slot = q->slot,
                                     .pos = q->len++,
                                     .n = 1,
                                     .tokens = token,
                                     .sample = true,
                                     .sampler = &b->sampler,
                                     .number = q->number++,
                                     .out = &q->out[step % 2] };
    }
    return true;
}

const int32_t *
fixture_token(const fixture_t *b, fixture_seq_t *q)
{
    /* each sequence another one, or all rows would go to the same experts */
    const uint32_t at = (q->len + 1009u * (uint32_t) q->slot) % b->prompt_len;
    const bool experts = b->x->model->config.recipe.moe.route.experts != 0;
    const int32_t *token = q->given || experts ? &b->prompt[at] : NULL;

    q->given = false;
    q->told = token != NULL ? *token : -1;
    return token;
}
