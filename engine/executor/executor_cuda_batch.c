/*
 * What a batch uploads (executor_cuda.h): its rows, one after the other, and
 * what is wanted of their logits.
 */
#include "executor_cuda.h"

#include <assert.h>
#include <string.h>

void
tr_cuda_lay_upload(uint32_t rows, uint32_t seqs, uint32_t samples,
                   uint32_t pools, tr_cuda_upload_t *out)
{
    size_t at = 0;

#define TAKE(field, bytes)       \
    do {                         \
        out->field = at;         \
        at += tr_pad(bytes, 64); \
    } while (0)
    TAKE(token, rows * sizeof(int32_t));
    TAKE(row_slot, rows * sizeof(int32_t));
    TAKE(row_pos, rows * sizeof(uint32_t));
    TAKE(row_chunk, rows * sizeof(uint32_t));
    TAKE(row_long, rows);
    TAKE(seq_row, (seqs + (size_t) 1) * sizeof(uint32_t));
    TAKE(path, seqs);
    TAKE(gather, samples * sizeof(uint32_t));
    TAKE(sampling, samples * sizeof(tr_cuda_sampling_t));
    TAKE(pool, pools * sizeof(uint32_t));
    TAKE(pool_first, pools == 0 ? 0 : (seqs + (size_t) 1) * sizeof(uint32_t));
#undef TAKE
    out->size = at;
}

tr_cuda_arrays_t
tr_cuda_arrays(uint8_t *base, const tr_cuda_upload_t *l)
{
    return (tr_cuda_arrays_t){
        .token = (int32_t *) (base + l->token),
        .row_slot = (int32_t *) (base + l->row_slot),
        .row_pos = (uint32_t *) (base + l->row_pos),
        .row_chunk = (uint32_t *) (base + l->row_chunk),
        .row_long = base + l->row_long,
        .seq_row = (uint32_t *) (base + l->seq_row),
        .path = base + l->path,
        .gather = (uint32_t *) (base + l->gather),
        .sampling = (tr_cuda_sampling_t *) (base + l->sampling),
        .pool = (uint32_t *) (base + l->pool),
        .pool_first = (uint32_t *) (base + l->pool_first)
    };
}

/* ---- a batch ------------------------------------------------------------ */

bool
tr_cuda_batch_fits(const tr_executor_cuda_t *x, const tr_batch_t *batch)
{
    uint64_t n = 0;

    for (uint32_t i = 0; i < batch->n_items; i++) {
        const tr_batch_item_t *item = &batch->items[i];

        if (item->n == 0 || item->kv_slot < 0
            || (item->tokens == NULL && (item->n != 1 || item->scores != NULL))
            || (uint64_t) item->pos + item->n > x->base.max_model_len) {
            return false;
        }
        n += item->n;
    }
    return batch->n_items <= x->max_seqs && n <= x->max_rows
           && x->under_way < TR_CUDA_SLOTS;
}

int
tr_cuda_bucket(const tr_executor_cuda_t *x, const tr_batch_t *batch)
{
    for (uint32_t i = 0; i < batch->n_items; i++) {
        if (batch->items[i].n != 1 || batch->items[i].pooled != NULL
            || batch->items[i].returns) {
            return -1;
        }
    }
    for (uint32_t b = 0; b < x->n_buckets && batch->n_items != 0; b++) {
        if (x->bucket[b] >= batch->n_items) {
            return (int) b;
        }
    }
    return -1;
}

/* Tokens that may not come yet. */
static void
bar_tokens(tr_cuda_slot_t *t, const tr_batch_item_t *item,
           tr_cuda_sampling_t *w)
{
    const tr_sampler_t *s = item->sampler;
    const tr_sampling_params_t *p = s->params;
    uint32_t n = s->n_eos + p->n_stop_tokens;

    if (item->number >= p->min_tokens || n == 0) {
        return;
    }
    assert(n <= TR_CUDA_BAR_MAX); /* nothing is left out */
    w->bar_at = t->n_bar;
    w->n_bar = n;
    for (uint32_t i = 0; i < s->n_eos; i++) {
        t->bar[t->n_bar++] = s->eos[i];
    }
    for (uint32_t i = 0; i < p->n_stop_tokens; i++) {
        t->bar[t->n_bar++] = p->stop_tokens[i];
    }
}

static void
add_bias(tr_cuda_slot_t *t, const tr_sampling_params_t *p,
         tr_cuda_sampling_t *w)
{
    w->bias_at = t->n_bias;
    w->n_bias = p->n_bias;
    assert(p->n_bias <= TR_LOGIT_BIAS_MAX);
    for (uint32_t i = 0; i < w->n_bias; i++) {
        t->bias[t->n_bias++] = (tr_cuda_bias_t){ p->bias[i].token,
                                                 p->bias[i].bias };
    }
}

/* What is wanted of the logits of an item's token `index`. */
static void
make_sampling(tr_cuda_slot_t *t, const tr_batch_item_t *item, uint32_t sequence,
              uint32_t index, bool score, tr_cuda_sampling_t *w)
{
    *w = (tr_cuda_sampling_t){ .slot = item->kv_slot,
                               .pos = item->pos + index,
                               .number = item->number,
                               .repetition = 1,
                               .top_p = 1,
                               .logprobs = item->top,
                               .target = -1,
                               .sequence = sequence };
    if (score) {
        w->target = item->tokens[index + 1];
        t->top_wanted |= item->top > 0;
    } else {
        const tr_sampling_params_t *p = item->sampler->params;

        w->prompt_len = w->pos + 1 - item->number;
        w->seed = item->sampler->seed;
        w->temperature = p->temperature;
        w->top_p = p->top_p;
        w->min_p = p->min_p;
        w->top_k = p->top_k;
        w->presence = p->presence_penalty;
        w->frequency = p->frequency_penalty;
        w->repetition = p->repetition_penalty;
        w->logprobs = p->logprobs;
        w->late = item->late;
        t->n_late += item->late;
        t->top_wanted |= p->logprobs > 0;
        bar_tokens(t, item, w);
        add_bias(t, p, w);
    }
}

/* One row: its token, and how it is sampled, if it is.  A token outside the
 * vocabulary fails its item; the row runs with token 0. */
static void
add_row(tr_executor_cuda_t *x, tr_cuda_slot_t *t, tr_cuda_arrays_t *a,
        const tr_batch_item_t *item, uint32_t i, uint32_t index, uint32_t row)
{
    int32_t token = item->tokens != NULL ? item->tokens[index] : -1;
    bool last = item->sample && index + 1 == item->n;
    bool sample = last && item->pooled == NULL;
    bool score = item->scores != NULL && !sample;

    if (item->tokens != NULL
        && (token < 0 || (uint32_t) token >= x->base.vocab)) {
        t->status[i] = TR_ERR_INVALID;
        token = 0;
    }
    a->token[row] = token;
    a->row_slot[row] = item->kv_slot;
    a->row_pos[row] = item->pos + index;
    a->row_chunk[row] =
        item->inputs != NULL
            ? item->inputs[a->row_pos[row] / TR_KV_INPUTS_TOKENS]
            : 0;
    a->row_long[row] = item->is_long;
    if (sample || score) {
        make_sampling(t, item, i, index, score, &a->sampling[t->n_wants]);
        a->gather[t->n_wants] = row;
        t->wants[t->n_wants++] = (tr_cuda_want_t){ i, index, score };
    }
    if (item->pooled != NULL && (item->pool_mean || last)) {
        a->pool[t->n_pool_rows++] = row;
    }
}

/* The item whose rows were added last has a vector. */
static void
end_pool(tr_cuda_slot_t *t, tr_cuda_arrays_t *a, uint32_t i, uint32_t from)
{
    if (t->n_pool_rows != from) {
        a->pool_first[t->n_pools] = from;
        t->pools[t->n_pools++] = i;
        a->pool_first[t->n_pools] = t->n_pool_rows;
    }
}

/* A sequence, a row and a sampling that are nobody's. */
static void
add_padding(tr_executor_cuda_t *x, tr_cuda_arrays_t *a, uint32_t i,
            uint32_t row)
{
    x->rows[i] = (tr_kv_device_row_t){ -1, 0, 1 };
    a->path[i] = TR_ATTENTION_DECODE;
    a->token[row] = 0;
    a->row_slot[row] = -1;
    a->row_pos[row] = a->row_chunk[row] = 0;
    a->row_long[row] = 0;
    a->seq_row[i] = row;
}

static void
pad_samplings(tr_cuda_slot_t *t, tr_cuda_arrays_t *a, uint32_t n)
{
    for (; t->n_wants < n; t->n_wants++) {
        a->sampling[t->n_wants] = (tr_cuda_sampling_t){ .slot = -1,
                                                        .repetition = 1,
                                                        .top_p = 1,
                                                        .logprobs = -1,
                                                        .target = -1 };
        a->gather[t->n_wants] = 0;
        t->wants[t->n_wants] = (tr_cuda_want_t){ TR_CUDA_NOBODY, 0, false };
    }
}

uint32_t
tr_cuda_count_samples(const tr_batch_t *batch)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < batch->n_items; i++) {
        const tr_batch_item_t *item = &batch->items[i];

        n += item->scores != NULL
                 ? item->n
                 : (uint32_t) (item->sample && item->pooled == NULL);
    }
    return n;
}

uint32_t
tr_cuda_count_pools(const tr_batch_t *batch)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < batch->n_items; i++) {
        const tr_batch_item_t *item = &batch->items[i];

        if (item->pooled != NULL) {
            n += item->pool_mean ? item->n : item->sample;
        }
    }
    return n;
}

uint32_t
tr_cuda_flatten(tr_executor_cuda_t *x, tr_cuda_slot_t *t,
                const tr_batch_t *batch, const tr_cuda_upload_t *l,
                uint32_t n_seqs, uint32_t n_samples)
{
    tr_cuda_arrays_t a = tr_cuda_arrays(t->upload, l);
    uint32_t row = 0, paths = 0, i;

    t->n_wants = t->n_bias = t->n_bar = t->n_late = 0;
    t->n_pools = t->n_pool_rows = 0;
    t->top_wanted = false;
    for (i = 0; i < batch->n_items; i++) {
        const tr_batch_item_t *item = &batch->items[i];
        uint32_t base = tr_kv_device_base(x->base.kv, item->kv_slot);
        uint32_t pooled = t->n_pool_rows;

        t->status[i] = TR_OK;
        x->rows[i] = (tr_kv_device_row_t){ item->kv_slot, item->pos, item->n };
        a.seq_row[i] = row;
        a.path[i] = (uint8_t) tr_model_cuda_path(
            x->model, tr_kv_slot_policy(x->base.kv, item->kv_slot), base,
            item->n);
        x->bases[i] = a.path[i] == TR_ATTENTION_BEHIND ? base : 0;
        paths |= 1u << a.path[i];
        for (uint32_t k = 0; k < item->n; k++) {
            add_row(x, t, &a, item, i, k, row++);
        }
        end_pool(t, &a, i, pooled);
    }
    for (; i < n_seqs; i++) {
        add_padding(x, &a, i, row++);
    }
    a.seq_row[n_seqs] = row;
    pad_samplings(t, &a, n_samples);
    return paths;
}

void
tr_cuda_gather_returns(tr_executor_cuda_t *x, const tr_batch_t *batch)
{
    uint32_t row = 0;

    x->n_returns = 0;
    for (uint32_t i = 0; i < batch->n_items && batch->items[i].returns; i++) {
        const tr_batch_item_t *item = &batch->items[i];
        uint32_t end = item->pos + item->n, n;

        for (uint32_t pos = item->pos; pos < end; pos += n, row += n) {
            n = TR_KV_INPUTS_TOKENS - pos % TR_KV_INPUTS_TOKENS;
            n = n < end - pos ? n : end - pos;
            x->returns[x->n_returns++] = (tr_cuda_return_t){
                row, n, tr_kv_inputs_row(x->base.inputs, item->inputs, pos, 0)
            };
        }
    }
}

/* ---- masks -------------------------------------------------------------- */

size_t
tr_cuda_lay_masks(tr_cuda_masks_t *m, uint32_t vocab, uint32_t rows,
                  uint32_t seqs)
{
    m->words = (vocab + 31) / 32;
    m->mask_from = tr_pad(rows * sizeof(*m->at), 64);
    m->at = (int32_t *) (void *) m->pinned;
    m->mask = m->pinned == NULL
                  ? NULL
                  : (uint32_t *) (void *) (m->pinned + m->mask_from);
    return m->mask_from + (size_t) seqs * m->words * sizeof(*m->mask);
}

size_t
tr_cuda_gather_masks(tr_cuda_masks_t *m, const tr_cuda_slot_t *t,
                     const tr_batch_t *batch)
{
    int32_t n = 0;

    for (uint32_t k = 0; k < t->n_wants; k++) {
        const tr_cuda_want_t *w = &t->wants[k];
        const tr_batch_item_t *item = w->item != TR_CUDA_NOBODY && !w->score
                                          ? &batch->items[w->item]
                                          : NULL;
        uint32_t *mask = m->mask + (size_t) n * m->words;

        m->at[k] = -1;
        if (item != NULL && item->late && item->mask != NULL) {
            memcpy(mask, item->mask, m->words * sizeof(*mask));
            tr_sampler_narrow(item->sampler, item->number, mask);
            m->at[k] = n++;
        }
    }
    return m->mask_from + (size_t) n * m->words * sizeof(*m->mask);
}
