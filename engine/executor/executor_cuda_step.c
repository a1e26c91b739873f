/*
 * Runs batches on a GPU (executor_cuda.h): launches and results.
 *
 * The end of a batch, where its results are downloaded, comes with its launches,
 * or with those of its late rows (tr_executor_cuda_sample).
 *
 * Only complete waits, and nothing allocates.  Once kv_device.h has been told
 * of a batch, the batch is completed whatever fails: only then do its books and
 * the device's agree.
 */
#include "executor_cuda.h"

#include <assert.h>
#include <string.h>

#include "engine/config/log.h"

/* ---- launches ----------------------------------------------------------- */

/* The device's arrays of a step whose counts are known. */
static void
point_step(const tr_executor_cuda_t *x, const tr_cuda_upload_t *l,
           tr_cuda_step_t *step)
{
    tr_cuda_arrays_t a = tr_cuda_arrays(x->upload, l);

    step->token = a.token;
    step->row_slot = a.row_slot;
    step->row_pos = a.row_pos;
    step->row_chunk = a.row_chunk;
    step->row_long = x->base.long_from != 0 ? a.row_long : NULL;
    step->seq_row = a.seq_row;
    step->path = a.path;
    step->gather = a.gather;
    step->sampling = a.sampling;
    step->bias = x->bias;
    step->bar = x->bar;
    step->sampled = x->sampled;
    step->top = x->top;
    step->pool = a.pool;
    step->pool_first = a.pool_first;
    step->pooled = x->pooled;
}

static int
launch_step(tr_executor_cuda_t *x, const tr_cuda_upload_t *l,
            tr_cuda_step_t *step)
{
    const tr_kv_manager_t *m = tr_kv_device_manager(x->base.kv);

    if (step->n_rows == 0) { /* an empty batch has commands alone */
        int rc = tr_kv_device_step(x->base.kv, step->n_seqs);

        x->model->failed = rc != 0 ? "manager_step" : NULL;
        return rc;
    }
    point_step(x, l, step);
    tr_model_cuda_begin(x->model, step);
    tr_model_cuda_launched(x->model,
                           tr_kv_device_step(x->base.kv, step->n_seqs),
                           "manager_step");
    return x->n_returns != 0
               ? tr_model_cuda_return(x->model, &m->view, m->seq_slot, step,
                                      x->returns, x->n_returns)
               : tr_model_cuda_step(x->model, &m->view, m->seq_slot, step);
}

int
tr_executor_cuda_launch(tr_executor_cuda_t *x, uint32_t bucket)
{
    tr_cuda_step_t step = { .n_rows = bucket,
                            .n_seqs = bucket,
                            .n_samples = bucket,
                            .paths = x->decode_paths };
    tr_cuda_upload_t l;

    tr_cuda_lay_upload(bucket, bucket, bucket, 0, &l);
    return launch_step(x, &l, &step);
}

static int
upload(tr_executor_cuda_t *x, const tr_cuda_slot_t *t, size_t size)
{
    const tr_device_t *cuda = x->cuda;
    int rc = cuda->fetch(&x->stream, x->upload, t->upload, size);

    if (rc == 0 && t->n_bias != 0) {
        rc = cuda->fetch(&x->stream, x->bias, t->bias,
                         t->n_bias * sizeof(*t->bias));
    }
    if (rc == 0 && t->n_bar != 0) {
        rc = cuda->fetch(&x->stream, x->bar, t->bar,
                         t->n_bar * sizeof(*t->bar));
    }
    return rc;
}

static int
download(tr_executor_cuda_t *x, const tr_cuda_slot_t *t)
{
    size_t n = t->n_wants;
    int rc = 0;

    if (n != 0) {
        rc = x->cuda->send(&x->stream, t->sampled, x->sampled,
                           n * sizeof(*t->sampled));
    }
    if (rc == 0 && t->top_wanted) {
        rc = x->cuda->send(&x->stream, t->top, x->top,
                           n * TR_CUDA_TOP_MAX * sizeof(*t->top));
    }
    if (rc == 0 && t->n_pools != 0) {
        rc = x->cuda->copy(&x->stream, t->pooled, x->pooled,
                           (size_t) t->n_pools * x->base.width
                               * sizeof(*t->pooled));
    }
    return rc;
}

/* Nothing can be computed any more. */
static tr_status_t
lose(tr_executor_cuda_t *x, const char *what)
{
    if (!x->gone) {
        x->gone = true;
        tr_log(TR_LEVEL_ERROR,
               "the GPU is lost: every request fails, the engine must be "
               "started again device=%u what=%s reason=\"%s\"",
               (uint32_t) x->device.ordinal, what, x->cuda->reason());
        if (x->base.lost != NULL) {
            x->base.lost(x->base.lost_arg, what);
        }
    }
    return TR_ERR_LOST;
}

/* A launch failed: this batch's requests fail, and all if the device is
 * gone. */
static void
note_failure(tr_executor_cuda_t *x, tr_cuda_slot_t *t, int rc)
{
    t->failed = true;
    tr_log(TR_LEVEL_ERROR, "a launch failed launch=%s code=%d reason=\"%s\"",
           x->model->failed != NULL ? x->model->failed : "copy", rc,
           rc == TR_KERNEL_BADARG ? "arguments" : x->cuda->reason());
    if (!x->cuda->alive()) {
        lose(x, "a launch");
    }
}

/* Between kv_device's begin and end. */
static int
launch_batch(tr_executor_cuda_t *x, tr_cuda_slot_t *t, int b,
             const tr_cuda_upload_t *l, tr_cuda_step_t *step)
{
    int rc = upload(x, t, l->size);

    x->model->failed = NULL;
    if (rc != 0) {
        return rc;
    }
    if (b < 0) {
        rc = launch_step(x, l, step);
    } else if (x->direct || x->graph[b] == NULL) {
        rc = tr_executor_cuda_launch(x, x->bucket[b]);
    } else {
        rc = x->cuda->graph_launch(&x->stream, x->graph[b]);
        t->graph = true;
    }
    return rc;
}

/* Behind all that a batch launches. */
static void
finish(tr_executor_cuda_t *x, tr_cuda_slot_t *t)
{
    int rc = t->failed ? 0 : download(x, t), end;

    end = x->cuda->event_record(&x->stream, t->done);
    rc = rc != 0 ? rc : end;
    if (rc != 0 && !t->failed) {
        note_failure(x, t, rc);
    }
}

/* What was filled in goes to the device; rows: of kv_device. */
static tr_status_t
start(tr_executor_cuda_t *x, tr_cuda_slot_t *t, int b,
      const tr_cuda_upload_t *l, tr_cuda_step_t *step)
{
    int rc, end;

    t->failed = t->graph = false;
    t->n_rows = step->n_rows;
    t->n_seqs = step->n_seqs;
    x->cuda->event_record(&x->stream, t->begun);
    if (tr_kv_device_begin(x->base.kv, x->rows, step->n_seqs) != 0) {
        return lose(x, "the cache");
    }
    x->under_way++;
    rc = launch_batch(x, t, b, l, step);
    end = tr_kv_device_end(x->base.kv);
    rc = rc != 0 ? rc : end;
    if (rc != 0) {
        note_failure(x, t, rc);
    }
    if (t->n_late == 0) {
        finish(x, t);
    }
    return TR_OK; /* complete says how it went */
}

static tr_cuda_slot_t *
next_slot(tr_executor_cuda_t *x)
{
    return &x->slots[(x->oldest + x->under_way) % TR_CUDA_SLOTS];
}

/* Does the guard want queries of the batch?  One prompt is watched at a time. */
static bool
keep_queries(tr_executor_cuda_t *x, const tr_batch_t *batch,
             tr_kv_guard_keep_t *out)
{
    uint32_t row = 0;

    for (uint32_t i = 0; i < batch->n_items; i++) {
        const tr_batch_item_t *item = &batch->items[i];

        if (tr_kv_device_keep(x->base.kv, item->kv_slot, item->pos, row,
                              item->n, out)) {
            return true;
        }
        row += item->n;
    }
    return false;
}

tr_status_t
tr_executor_cuda_submit(tr_executor_t *e, const tr_batch_t *batch)
{
    tr_executor_cuda_t *x = (tr_executor_cuda_t *) e;
    tr_cuda_slot_t *t = next_slot(x);
    tr_cuda_step_t step = { .n_seqs = batch->n_items };
    tr_cuda_upload_t l;
    int b;

    if (x->gone) {
        return TR_ERR_LOST;
    }
    if (!tr_cuda_batch_fits(x, batch)) {
        tr_log(TR_LEVEL_ERROR,
               "a batch exceeds the executor items=%u tokens=%u max_items=%u "
               "max_tokens=%u under_way=%u",
               batch->n_items, batch->n_tokens, x->max_seqs, x->max_rows,
               x->under_way);
        return TR_ERR_INTERNAL;
    }
    b = keep_queries(x, batch, &step.keep) ? -1 : tr_cuda_bucket(x, batch);
    if (b >= 0) {
        step.n_rows = step.n_seqs = step.n_samples = x->bucket[b];
    } else {
        for (uint32_t i = 0; i < batch->n_items; i++) {
            step.n_rows += batch->items[i].n;
        }
        step.n_samples = tr_cuda_count_samples(batch);
        step.n_pool_rows = tr_cuda_count_pools(batch);
    }
    tr_cuda_lay_upload(step.n_rows, step.n_seqs, step.n_samples,
                       step.n_pool_rows, &l);
    step.paths = tr_cuda_flatten(x, t, batch, &l, step.n_seqs, step.n_samples);
    tr_cuda_gather_returns(x, batch);
    step.n_pools = t->n_pools;
    step.host_path = tr_cuda_arrays(t->upload, &l).path;
    step.host_base = x->bases;
    return start(x, t, b, &l, &step);
}

/* ---- late rows ---------------------------------------------------------- */

/* The masks, beside what the step launched, and behind both the sampling. */
static int
launch_late(tr_executor_cuda_t *x, const tr_cuda_slot_t *t,
            const tr_batch_t *batch)
{
    const tr_device_t *cuda = x->cuda;
    tr_cuda_masks_t *m = &x->masks;
    tr_cuda_step_t step = {
        .n_rows = t->n_rows,
        .n_seqs = t->n_seqs,
        .n_samples = t->n_wants,
        .mask_at = (const int32_t *) (void *) x->late,
        .mask = (const uint32_t *) (void *) (x->late + m->mask_from)
    };
    size_t bytes = tr_cuda_gather_masks(m, t, batch);
    tr_cuda_upload_t l;
    int rc;

    tr_cuda_lay_upload(t->n_rows, t->n_seqs, t->n_wants, 0, &l);
    point_step(x, &l, &step);
    x->model->failed = NULL;
    rc = cuda->copy(&m->stream, x->late, m->pinned, bytes);
    if (rc == 0) {
        rc = cuda->event_record(&m->stream, m->arrived);
    }
    if (rc == 0) {
        rc = cuda->event_follow(&x->stream, m->arrived);
    }
    return rc != 0
               ? rc
               : tr_model_cuda_sample_late(
                   x->model, tr_kv_device_manager(x->base.kv)->seq_slot, &step);
}

void
tr_executor_cuda_sample(tr_executor_t *e, const tr_batch_t *batch)
{
    tr_executor_cuda_t *x = (tr_executor_cuda_t *) e;
    tr_cuda_slot_t *t = &x->slots[(x->oldest + x->under_way + TR_CUDA_SLOTS - 1)
                                  % TR_CUDA_SLOTS];

    if (x->gone || t->n_late == 0) {
        return;
    }
    if (!t->failed) {
        int rc = launch_late(x, t, batch);

        if (rc != 0) {
            note_failure(x, t, rc);
        }
    }
    t->n_late = 0;
    finish(x, t);
}

/* ---- results ------------------------------------------------------------ */

static tr_status_t
take_result(const tr_cuda_slot_t *t, uint32_t k, tr_sampled_t *out)
{
    const tr_cuda_sampled_t *s = &t->sampled[k];
    const tr_cuda_top_t *top = t->top + (size_t) k * TR_CUDA_TOP_MAX;

    if (s->token < 0 || s->n_top > TR_TOP_LOGPROBS_MAX) {
        return TR_ERR_INTERNAL;
    }
    out->token = s->token;
    out->logprob = s->logprob;
    out->n_top = t->top_wanted ? s->n_top : 0;
    for (uint32_t i = 0; i < out->n_top; i++) {
        out->top[i] = (tr_top_t){ top[i].token, top[i].logprob };
    }
    return TR_OK;
}

/* Raw logits of sample k, which are still there when nothing was launched
 * since. */
static tr_status_t
take_logits(tr_executor_cuda_t *x, const tr_cuda_slot_t *t, uint32_t k,
            float *out)
{
    const tr_model_cuda_t *m = x->model;
    size_t bytes = x->base.vocab * sizeof(*out);

    if (x->under_way != 0 || t->n_wants > m->logit_rows) {
        return TR_ERR_UNSUPPORTED;
    }
    x->logits = x->logits != NULL ? x->logits : x->cuda->pin(bytes);
    if (x->logits == NULL) {
        return TR_ERR_NOMEM;
    }
    if (x->cuda->copy(&x->stream, x->logits, m->logits + k * m->ld_logits,
                      bytes)
            != 0
        || x->cuda->stream_wait(&x->stream) != 0) {
        return TR_ERR_INTERNAL;
    }
    memcpy(out, x->logits, bytes);
    return TR_OK;
}

/* Vectors, and parts of means. */
static void
take_pooled(const tr_cuda_slot_t *t, const tr_batch_t *batch, uint32_t width)
{
    for (uint32_t k = 0; k < t->n_pools; k++) {
        const tr_batch_item_t *item = &batch->items[t->pools[k]];
        const float *sum = t->pooled + (size_t) k * width;

        if (item->status != TR_OK || item->pooled == NULL) {
            continue;
        }
        for (uint32_t i = 0; i < width; i++) {
            item->pooled[i] = item->pool_mean && item->pos != 0
                                  ? item->pooled[i] + sum[i]
                                  : sum[i];
        }
    }
}

static void
take_results(tr_executor_cuda_t *x, const tr_cuda_slot_t *t,
             const tr_batch_t *batch)
{
    for (uint32_t i = 0; i < batch->n_items; i++) {
        batch->items[i].status = t->status[i] == TR_OK && t->stalled[i]
                                     ? TR_AGAIN
                                     : t->status[i];
    }
    for (uint32_t k = 0; k < t->n_wants; k++) {
        const tr_cuda_want_t *w = &t->wants[k];
        tr_batch_item_t *item = w->item != TR_CUDA_NOBODY
                                    ? &batch->items[w->item]
                                    : NULL;
        tr_sampled_t *out;
        tr_status_t rc;

        if (item == NULL || item->status != TR_OK) {
            continue;
        }
        out = !w->score              ? item->out
              : item->scores != NULL ? &item->scores[w->index]
                                     : NULL;
        if (out != NULL) {
            rc = take_result(t, k, out);
            if (rc == TR_OK && item->logits != NULL
                && w->index + 1 == item->n) {
                rc = take_logits(x, t, k, item->logits);
            }
            item->status = rc;
        }
    }
}

static void
count_time(tr_executor_cuda_t *x, const tr_cuda_slot_t *t)
{
    double us = 0;

    x->times.steps++;
    x->times.graphs += t->graph;
    if (x->cuda->event_time(t->begun, t->done, &us) == 0) {
        x->times.device_us += us;
    }
}

tr_status_t
tr_executor_cuda_complete(tr_executor_t *e, const tr_batch_t *batch)
{
    tr_executor_cuda_t *x = (tr_executor_cuda_t *) e;
    tr_cuda_slot_t *t = &x->slots[x->oldest];
    tr_status_t rc;

    if (x->under_way == 0) {
        return TR_ERR_INTERNAL;
    }
    assert(t->n_late == 0 || x->gone); /* its event was recorded */
    x->under_way--;
    x->oldest = (x->oldest + 1) % TR_CUDA_SLOTS;
    if (x->gone) {
        return TR_ERR_LOST;
    }
    if (x->cuda->event_wait(t->done) != 0) {
        return lose(x, "a step");
    }
    rc = tr_kv_device_settle(e->kv, t->stalled);
    if (rc != TR_OK) { /* whatever else it would store might be anybody's */
        return lose(x, "the block tables");
    }
    if (t->failed) {
        return TR_ERR_INTERNAL;
    }
    count_time(x, t);
    take_results(x, t, batch);
    take_pooled(t, batch, x->base.width);
    return TR_OK;
}

tr_status_t
tr_executor_cuda_idle(tr_executor_cuda_t *x, uint32_t bucket)
{
    tr_cuda_slot_t *t = next_slot(x);
    tr_cuda_step_t step = { .n_rows = bucket,
                            .n_seqs = bucket,
                            .n_samples = bucket };
    const tr_batch_t none = { NULL, 0, 0 };
    tr_cuda_upload_t l;
    bool direct = x->direct;
    int b = 0;

    while (x->bucket[b] != bucket) {
        b++;
    }
    tr_cuda_lay_upload(bucket, bucket, bucket, 0, &l);
    tr_cuda_flatten(x, t, &none, &l, bucket, bucket);
    x->direct = true;
    start(x, t, b, &l, &step);
    x->direct = direct;
    return tr_executor_cuda_complete(&x->base, &none);
}
