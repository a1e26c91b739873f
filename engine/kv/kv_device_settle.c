/*
 * Batches of a device's KV cache (kv_device.h): what goes down before one, and
 * what its report says about the mirror.
 *
 * A report is of the moment behind its batch.  What it says of a slot holds for
 * the mirror when no command touched the slot since; rows of batches that are
 * still under way are then played again on top of it, since one that stalled
 * makes those behind it stall.
 */
#include <string.h>

#include "kv_device_internal.h"
#include "engine/config/log.h"

/* ---- down --------------------------------------------------------------- */

/* Of the answer, where the parts are as on the device. */
static tr_kv_report_t *
answer_report(const tr_kv_pinned_t *pinned)
{
    return (tr_kv_report_t *) (void *) pinned->out;
}

/* What the rows ask of the manager. */
static void
write_asks(tr_kv_gpu_t *g, uint8_t *in, const tr_kv_device_row_t *rows,
           uint32_t n)
{
    tr_kv_page_request_t *ask = (tr_kv_page_request_t *) (void *) in;
    uint32_t i;

    memset(ask, 0xff, g->device.max_seqs * sizeof(*ask)); /* no request */
    for (i = 0; i < n; i++) {
        int32_t slot = rows[i].slot;

        if (slot < 0) {
            continue;
        }
        ask[i].slot = slot;
        ask[i].from = tr_kv_slot(&g->kv, slot)->uncompressed ? TR_KV_ANY
                                                             : rows[i].pos;
        ask[i].len = rows[i].pos + rows[i].n;
    }
}

/* The mirror, as if they all were granted. */
static void
expect_rows(tr_kv_gpu_t *g, const tr_kv_device_row_t *rows, uint32_t n)
{
    tr_kv_batch_t *b = tr_kv_batch(g, g->next);
    uint32_t at = (uint32_t) (g->next % TR_KV_IN_FLIGHT), i;

    for (i = 0; i < n; i++) {
        int32_t slot = rows[i].slot;
        const tr_kv_slot_t *s = &g->kv.m.slot[slot < 0 ? 0 : slot];
        tr_kv_mirror_t *x = &g->mirror[slot < 0 ? 0 : slot];
        uint32_t end = rows[i].pos + rows[i].n;

        if (slot < 0) {
            continue;
        }
        assert(!s->out && x->row_of[at] != g->next);
        if (s->uncompressed) {
            assert(end <= s->tokens);
            x->told = end > x->told ? end : x->told;
            continue;
        }
        x->row_of[at] = g->next;
        x->row_pos[at] = rows[i].pos;
        if (rows[i].pos == s->tokens) {
            b->claimed += tr_kv_step_pages(g, slot);
            tr_kv_step_mirror(g, slot);
        }
    }
}

/* Slots up to the last that is open. */
static uint32_t
slots_used(const tr_kv_gpu_t *g)
{
    uint32_t n = g->kv.config.slots;

    while (n > 0 && !g->kv.m.slot[n - 1].open) {
        n--;
    }
    return n;
}

int
tr_kv_device_begin(tr_kv_cache_t *kv, const tr_kv_device_row_t *rows,
                   uint32_t n)
{
    tr_kv_gpu_t *g = tr_kv_gpu(kv);
    tr_kv_batch_t *b = tr_kv_batch(g, g->next);
    const tr_kv_pinned_t *pinned = tr_kv_pinned(g, g->next);
    uint32_t i;

    assert(g->next - g->oldest < TR_KV_IN_FLIGHT);
    assert(n <= g->device.max_seqs);
    if (g->failed) {
        return TR_CUDA_FAILED;
    }
    for (i = 0; i < n; i++) {
        if (rows[i].slot >= 0) {
            tr_kv_finish_move(g, rows[i].slot, false);
        }
    }
    tr_kv_move_some(g, n == 0);
    write_asks(g, pinned->in, rows, n);
    if (!tr_kv_launch(g, pinned)) {
        return TR_CUDA_FAILED;
    }
    g->flushed = false;
    expect_rows(g, rows, n);
    b->n_rows = n;
    if (n != 0) {
        memcpy(b->rows, rows, n * sizeof(*rows));
    }
    b->returns = g->returns;
    b->n_slots = slots_used(g);
    answer_report(pinned)->steps = TR_KV_NEVER; /* nothing has come */
    tr_kv_forget_needs(g);
    g->next++;
    b = tr_kv_batch(g, g->next);
    b->claimed = b->returned = b->ceded = 0;
    b->n_rows = b->n_completed = b->n_cuts = b->n_refused = 0;
    return 0;
}

int
tr_kv_device_step(tr_kv_cache_t *kv, uint32_t n)
{
    const tr_kv_gpu_t *g = tr_kv_gpu(kv);

    if (n > g->device.max_seqs) {
        return TR_KERNEL_BADARG;
    }
    return g->device.cuda->manager_step(
        g->device.stream, &g->m,
        (const tr_kv_page_request_t *) (const void *) g->input, n);
}

static const uint8_t *
answer_result(const tr_kv_gpu_t *g, const tr_kv_pinned_t *pinned)
{
    return pinned->out + ((uint8_t *) g->m.result - (uint8_t *) g->m.report);
}

static const tr_kv_tally_t *
answer_tally(const tr_kv_gpu_t *g, const tr_kv_pinned_t *pinned)
{
    return (
        const tr_kv_tally_t *) (const void *) (pinned->out
                                               + ((uint8_t *) g->m.tally
                                                  - (uint8_t *) g->m.report));
}

int
tr_kv_device_end(tr_kv_cache_t *kv)
{
    tr_kv_gpu_t *g = tr_kv_gpu(kv);
    const tr_device_t *cuda = g->device.cuda;
    const tr_cuda_stream_t *s = g->device.stream;
    const tr_kv_pinned_t *pinned = tr_kv_pinned(g, g->next - 1);
    const tr_kv_batch_t *b = tr_kv_batch(g, g->next - 1);
    size_t bytes = (size_t) ((uint8_t *) (g->m.tally + b->n_slots)
                             - (uint8_t *) g->m.report);
    int rc;

    rc = cuda->manager_tally(s, &g->m, b->n_slots);
    if (rc == 0) {
        rc = cuda->send(s, pinned->out, g->m.report, bytes);
    }
    if (rc == 0 && b->n_refused != 0) {
        rc = cuda->copy(s, pinned->refused, g->refused,
                        b->n_refused * sizeof(*g->refused));
    }
    g->failed = g->failed || rc != 0;
    return rc == 0 ? 0 : TR_CUDA_FAILED;
}

/* ---- and back ----------------------------------------------------------- */

static bool
fault(const char *what, int64_t slot)
{
    tr_log(TR_LEVEL_ERROR, "kv cache and device disagree what=\"%s\" slot=%lld",
           what, (long long) slot);
    return false;
}

/* A compressed slot as reported, and the rows under way on top. */
static void
replay(tr_kv_gpu_t *g, int32_t slot, const tr_kv_tally_t *t, uint64_t serial)
{
    tr_kv_slot_t *s = &g->kv.m.slot[slot];
    tr_kv_mirror_t *x = &g->mirror[slot];
    tr_kv_seq_t *q = &g->kv.m.seq[slot];
    uint64_t i;

    g->kv.totals.tokens -= s->tokens - t->tokens;
    s->tokens = t->tokens;
    s->near_pages = t->near_pages;
    s->near_from = t->near_from;
    q->base = t->base;
    q->window_from = t->window_from;
    q->sinks = t->sinks;
    x->told = t->tokens;
    x->steps = 0;
    for (i = serial + 1; i < g->next; i++) {
        uint32_t at = (uint32_t) (i % TR_KV_IN_FLIGHT);

        if (x->row_of[at] == i && x->row_pos[at] == s->tokens) {
            tr_kv_step_mirror(g, slot);
        }
    }
}

/* Was the slot's prompt compressed? */
static bool
learn_trial(tr_kv_gpu_t *g, int32_t slot, const tr_kv_tally_t *t)
{
    tr_kv_mirror_t *x = &g->mirror[slot];

    if (!t->uncompressed) {
        g->returns++; /* its old pages */
        x->trial = x->trial == TR_KV_TRIED ? TR_KV_DONE : TR_KV_NO_TRIAL;
        return true;
    }
    if (x->trial == TR_KV_SURE) {
        return fault("a prompt was not compressed", slot);
    }
    x->denied = x->trial_returns;
    x->trial = TR_KV_NO_TRIAL;
    return true;
}

/* The rest of it is the device's to know. */
static bool
same_slot(const tr_kv_slot_t *s, const tr_kv_seq_t *q, const tr_kv_tally_t *t)
{
    return t->out == (s->out && t->pages != 0)
           && t->uncompressed == s->uncompressed
           && t->uncompressed_pages == s->uncompressed_pages
           && t->near_pages <= s->near_pages && t->near_from <= s->near_from
           && t->pages <= s->pages && t->borrowed <= s->borrowed
           && t->tokens <= s->tokens
           && (!s->uncompressed || t->base == q->base);
}

static bool
learn_more(tr_kv_gpu_t *g, int32_t slot, const tr_kv_tally_t *t,
           uint64_t serial)
{
    tr_kv_slot_t *s = &g->kv.m.slot[slot];
    tr_kv_mirror_t *x = &g->mirror[slot];
    tr_kv_seq_t *q = &g->kv.m.seq[slot];

    if ((x->trial == TR_KV_SURE || x->trial == TR_KV_TRIED)
        && x->trial_of <= serial && !learn_trial(g, slot, t)) {
        return false;
    }
    if (x->touched > serial) {
        return true;
    }
    x->low = t->pages;
    x->frozen = t->frozen_pages;
    if (x->trial == TR_KV_DONE) {
        return true; /* the mirror follows when it is told so */
    }
    if (!same_slot(s, q, t)) {
        return fault("slot is otherwise", slot);
    }
    s->pages = t->pages;
    s->frozen_pages = t->frozen_pages;
    s->borrowed = t->borrowed;
    if (s->uncompressed) {
        q->window_from = t->window_from; /* of a copy: as its source had it */
        q->sinks = t->sinks;
    } else {
        replay(g, slot, t, serial);
    }
    if (s->out) {
        tr_kv_trim_ids(g, slot, t->pages);
    }
    return true;
}

static bool
learn_slot(tr_kv_gpu_t *g, int32_t slot, const tr_kv_tally_t *t,
           uint64_t serial)
{
    tr_kv_mirror_t *x = &g->mirror[slot];
    uint32_t tokens = g->kv.m.slot[slot].tokens;
    uint64_t low = x->low;
    bool news, good;

    if (!g->kv.m.slot[slot].open || x->opened > serial) {
        return true; /* it tells of another */
    }
    if (!t->open) {
        return fault("slot is not open", slot);
    }
    news = !x->counted || memcmp(&x->last, t, sizeof(*t)) != 0;
    x->last = *t;
    x->counted = true;
    good = learn_more(g, slot, t, serial);
    if (good
        && (news || low != x->low || tokens != g->kv.m.slot[slot].tokens)) {
        tr_kv_kept_told(&g->kv, slot);
    }
    return good;
}

/* Who of the batch stalled, and which of these for want of pages. */
static bool
learn_rows(tr_kv_gpu_t *g, const tr_kv_batch_t *b, uint64_t serial,
           const uint8_t *result, const tr_kv_tally_t *tally, bool *stalled)
{
    uint32_t i;

    for (i = 0; i < b->n_rows; i++) {
        int32_t slot = b->rows[i].slot;
        tr_kv_mirror_t *x = &g->mirror[slot < 0 ? 0 : slot];

        stalled[i] = slot >= 0 && result[i] != TR_KV_GRANTED;
        if (slot < 0 || !g->kv.m.slot[slot].open || x->opened > serial) {
            continue;
        }
        if (!stalled[i]) {
            x->stalled = TR_KV_NEVER;
        } else if (g->kv.m.slot[slot].uncompressed && x->trial == TR_KV_NO_TRIAL
                   && x->touched <= serial) {
            return fault("no pages for a token that was granted", slot);
        } else if (tally[slot].tokens == b->rows[i].pos) {
            x->stalled = b->returns;
        }
    }
    return true;
}

/* Counters that stay 0 as long as both agree. */
static bool
learn_report(tr_kv_gpu_t *g, const tr_kv_report_t *r, const tr_kv_batch_t *b,
             const uint32_t *refused)
{
    uint32_t i;

    if (r->steps == TR_KV_NEVER) {
        return fault("no report has come", -1);
    }
    g->report = *r;
    if (r->faults != 0 || r->n_refused != 0 || r->end < r->start
        || r->end - r->start > g->kv.m.size.pages) {
        tr_log(TR_LEVEL_ERROR,
               "kv device corrupt faults=%u refused=%u free=%lld pages=%u",
               r->faults, r->n_refused, (long long) (r->end - r->start),
               g->kv.m.size.pages);
        return false;
    }
    for (i = 0; i < b->n_refused; i++) {
        if (refused[i] != 0) {
            return fault("a prompt could not be moved", i);
        }
    }
    return true;
}

tr_status_t
tr_kv_device_settle(tr_kv_cache_t *kv, bool *stalled)
{
    tr_kv_gpu_t *g = tr_kv_gpu(kv);
    uint64_t serial = g->oldest;
    const tr_kv_pinned_t *pinned = tr_kv_pinned(g, serial);
    const tr_kv_batch_t *b = tr_kv_batch(g, serial);
    const tr_kv_tally_t *tally = answer_tally(g, pinned);
    uint32_t i;
    bool good;

    assert(g->oldest != g->next);
    g->oldest++;
    good = learn_report(g, answer_report(pinned), b, pinned->refused);
    if (good) {
        g->free = g->report.end - g->report.start;
        g->reported = serial;
        good = learn_rows(g, b, serial, answer_result(g, pinned), tally,
                          stalled);
    }
    for (i = 0; i < b->n_slots && good; i++) {
        good = learn_slot(g, (int32_t) i, &tally[i], serial);
    }
    tr_kv_lend_told(kv);
    if (good) {
        tr_kv_guard_settle(g, serial);
    }
    g->failed = g->failed || !good;
    return good ? TR_OK : TR_ERR_INTERNAL;
}
