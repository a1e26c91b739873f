/*
 * Rows over tiers and window: their parts, and how these are put together.
 */
#include "attention_step.h"

static void
make_row(const tr_step_t *a, uint32_t seq, uint32_t kv_head, uint8_t *work,
         tr_attention_row_t *t)
{
    const tr_kv_seq_t *s = tr_step_seq(a, seq);
    uint32_t row = a->rows->seq_row[seq];
    size_t column = (size_t) kv_head * a->group * a->kv->head_dim;
    size_t stride = tr_row_stride(s->base);

    t->kv = a->kv;
    t->n_runs = tr_attention_runs(a->kv, a->rows->seq_slot[seq], a->layer,
                                  kv_head, t->run);
    t->position = tr_step_pos(a, seq);
    t->group = a->group;
    t->q = a->q + row * a->ldq + column;
    t->out = a->out + row * a->ldo + column;
    t->scale = a->scale;
    t->sink = tr_step_sink(a, kv_head);
    t->scored = s->scored;
    t->by_sum = s->by_sum;
    t->candidate = NULL;
    t->next = NULL;
    t->stride = stride;
    t->logits = (float *) work;
    t->partial = (float *) (work
                            + tr_pad(a->group * stride * sizeof(float), 64));
}

/* out = the parts' results together; lse: [group]. */
static void
merge_parts(const tr_attention_row_t *t, uint32_t parts, float *lse)
{
    uint32_t dim = t->kv->head_dim;
    size_t step = (size_t) t->group * (dim + 2);

    for (uint32_t h = 0; h < t->group; h++) {
        const float *in = t->partial + (size_t) h * (dim + 2);
        float *out = t->out + (size_t) h * dim, max = -INFINITY, sum = 0;

        for (uint32_t i = 0; i < parts; i++) {
            float m = in[i * step + dim];

            max = m > max || m != m ? m : max;
        }
        memset(out, 0, dim * sizeof(float));
        for (uint32_t i = 0; i < parts; i++) {
            float share = expf(in[i * step + dim] - max);

            sum += share * in[i * step + dim + 1];
            for (uint32_t d = 0; d < dim; d++) {
                out[d] += share * in[i * step + d];
            }
        }
        sum = tr_sum_with_sink(t->sink, h, max, sum);
        for (uint32_t d = 0; d < dim && parts > 0; d++) {
            out[d] /= sum;
        }
        lse[h] = max + logf(sum);
    }
}

/* All that comes after the parts. */
static void
finish_row(const tr_step_t *a, uint32_t seq, uint32_t kv_head,
           tr_attention_row_t *t)
{
    float lse[TR_GROUP_MAX];

    merge_parts(t, tr_row_parts(t), lse);
    if (t->scored) {
        t->candidate = tr_step_clear(a, seq, kv_head);
        a->isa->row_score(t, lse);
    }
}

uint32_t
tr_step_parts(const tr_step_t *a, uint32_t seq)
{
    uint32_t most = 1;

    for (uint32_t kv_head = 0; kv_head < a->kv->kv_heads; kv_head++) {
        tr_attention_row_t t = { .kv = a->kv };
        uint32_t n;

        t.n_runs = tr_attention_runs(a->kv, a->rows->seq_slot[seq], a->layer,
                                     kv_head, t.run);
        n = tr_row_parts(&t);
        most = n > most ? n : most;
    }
    return most;
}

/* Where a head keeps its logits when others work on it, too. */
static uint8_t *
split_row_work(const tr_step_t *a, uint32_t seq, uint32_t kv_head)
{
    uint32_t before = 0;

    for (uint32_t i = 0; i < seq; i++) {
        before += !tr_step_uncompressed(a, i);
    }
    return a->row_work
           + ((size_t) before * a->kv->kv_heads + kv_head) * a->row_work_bytes;
}

/* The first page of a piece of the step, NULL when that is no whole head. */
static const uint8_t *
first_page(const tr_step_t *a, uint32_t piece)
{
    tr_run_t run[TR_RUNS_MAX];
    uint32_t seq;

    if (a->split || piece >= a->starts[a->rows->n_seqs]) {
        return NULL;
    }
    seq = tr_seq_of(a->starts, a->rows->n_seqs, piece);
    if (tr_step_uncompressed(a, seq)
        || tr_attention_runs(a->kv, a->rows->seq_slot[seq], a->layer,
                             piece - a->starts[seq], run)
               == 0) {
        return NULL;
    }
    return tr_run_page(a->kv, &run[0], 0);
}

void
tr_step_row(const tr_step_t *a, uint32_t seq, uint32_t i, uint32_t next,
            uint32_t worker, uint8_t *scratch)
{
    uint32_t kv_head = i % a->kv->kv_heads, part = i / a->kv->kv_heads;
    tr_attention_row_t t;

    if (a->split) {
        make_row(a, seq, kv_head, split_row_work(a, seq, kv_head), &t);
        if (part < tr_row_parts(&t)) {
            a->isa->part(&t, part, (float *) scratch);
        }
        return;
    }
    make_row(a, seq, kv_head, a->row_work + worker * a->row_work_bytes, &t);
    t.next = first_page(a, next);
    for (uint32_t p = 0; p < tr_row_parts(&t); p++) {
        a->isa->part(&t, p, (float *) scratch);
    }
    finish_row(a, seq, kv_head, &t);
}

void
tr_step_finish(const tr_step_t *a, uint32_t seq, uint32_t kv_head)
{
    tr_attention_row_t t;

    make_row(a, seq, kv_head, split_row_work(a, seq, kv_head), &t);
    finish_row(a, seq, kv_head, &t);
}
