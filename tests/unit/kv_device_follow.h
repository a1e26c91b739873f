/*
 * kv_device_follow.h: the CPU's cache does what the device's did
 * (kv_device_rig.h), and both are compared.
 */
#ifndef KV_DEVICE_FOLLOW_H
#define KV_DEVICE_FOLLOW_H

#include "kv_device_rig.h"

/* ---- the CPU's cache follows -------------------------------------------- */

/* Compressions that the batch's commands ask for. */
static uint32_t
rig_prompts(const rig_t *r, uint64_t serial)
{
    uint32_t n = 0;

    for (uint32_t i = r->first;
         i != r->last && r->log[i % RIG_LOG].serial <= serial; i++) {
        n += r->log[i % RIG_LOG].kind == RIG_COMPRESS;
    }
    return n;
}

/* Is the slot closed before the entry's batch? */
static bool
rig_closes(const rig_t *r, const rig_entry_t *e)
{
    for (uint32_t i = r->first; i != r->last; i++) {
        const rig_entry_t *f = &r->log[i % RIG_LOG];

        if (f->serial == e->serial && f->kind == RIG_CLOSE
            && f->slot == e->slot) {
            return true; /* those before e have been played */
        }
    }
    return false;
}

static void
rig_follow_compress(rig_t *r, const rig_entry_t *e, uint32_t prompts)
{
    /* what the batch's report says, also of who was closed since */
    const uint8_t *out = tr_kv_turn(r->g, e->serial)->out;
    const tr_cuda_tally_t *t =
        (const tr_cuda_tally_t *) (const void *) (out
                                                  + ((uint8_t *) r->g->m.tally
                                                     - (uint8_t *)
                                                           r->g->m.report))
        + e->slot;
    tr_status_t rc;

    if (rig_closes(r, e)) {
        tr_kv_compress(r->host, e->slot, e->len); /* who knows */
        return;
    }
    if (!t->dense) {
        rc = tr_kv_compress(r->host, e->slot, e->len);
        RIG_SAME(rc == TR_OK, "slot %d: %d", e->slot, rc);
        r->compressed++;
        return;
    }
    RIG_SAME(!e->sure, "slot %d", e->slot);
    r->denied++;
    if (prompts == 1) { /* else old pages come back in between on the CPU */
        rc = tr_kv_compress(r->host, e->slot, e->len);
        RIG_SAME(rc == TR_AGAIN, "slot %d: %d", e->slot, rc);
    }
}

static void
rig_follow(rig_t *r, const rig_entry_t *e, uint32_t prompts)
{
    uint64_t have = tr_kv_free_pages(r->host);
    tr_status_t rc = TR_OK;
    int32_t slot;

    switch (e->kind) {
    case RIG_OPEN:
        slot = tr_kv_open(r->host, r->policy[e->policy]);
        RIG_SAME(slot == e->slot, "slot %d, CPU %d", e->slot, slot);
        return;
    case RIG_PROMPT:
        tr_kv_prompt(r->host, e->slot, e->len);
        return;
    case RIG_RESERVE:
    case RIG_REFUSED:
        RIG_SAME(e->bound <= have && (!e->exact || e->bound == have),
                 "slot %d: at least %llu pages, exact %d, has %llu", e->slot,
                 (unsigned long long) e->bound, e->exact,
                 (unsigned long long) have);
        if (e->kind == RIG_RESERVE || e->exact) {
            rc = tr_kv_reserve(r->host, e->slot, e->len);
            RIG_SAME((rc == TR_OK) == (e->kind == RIG_RESERVE),
                     "slot %d: %d, CPU %d", e->slot, e->kind, rc);
        }
        return;
    case RIG_COMPRESS:
        rig_follow_compress(r, e, prompts);
        return;
    case RIG_FORK:
        rc = tr_kv_fork(r->host, e->other, e->slot, e->len);
        break;
    case RIG_OUT:
        rc = tr_kv_swap_out(r->host, e->slot);
        break;
    case RIG_IN:
        rc = tr_kv_swap_in(r->host, e->slot);
        break;
    case RIG_CLOSE:
        tr_kv_close(r->host, e->slot);
        return;
    }
    RIG_SAME(rc == TR_OK, "%d of slot %d: %d", e->kind, e->slot, rc);
}

/* ---- rows ----------------------------------------------------------------- */

/* The batch's rows on the CPU's cache: who stalls, and what the others give. */
static void
rig_follow_rows(rig_t *r, rig_batch_t *b)
{
    const tr_kernels_t *k = tr_kernels_cpu(NULL);
    tr_stream_t one = { .threads = 1 };
    int32_t slot[RIG_SEQS];
    uint32_t seq_row[RIG_SEQS + 1], pos[RIG_ROWS], from[RIG_ROWS];
    static float numbers[RIG_ROWS * RIG_ROW], angles[RIG_ROWS * RIG_DIM];
    tr_rows_t rows = { 0, 0, pos, slot, seq_row };

    seq_row[0] = 0;
    for (uint32_t i = 0; i < b->n; i++) {
        const tr_kv_device_row_t *row = &b->item[i].row;
        const tr_kv_slot_t *s = &r->host->slot[row->slot];
        bool stalls = !s->dense && s->tokens != row->pos;

        b->short_of[i] = false;
        if (!stalls) {
            b->short_of[i] = stalls = tr_kv_reserve(r->host, row->slot,
                                                    row->pos + row->n)
                                      != TR_OK;
        }
        RIG_SAME(stalls == b->stalled[i], "slot %d at %u: %d, CPU %d",
                 row->slot, row->pos, b->stalled[i], stalls);
        r->stalls += stalls;
        if (stalls) {
            continue;
        }
        slot[rows.n_seqs++] = row->slot;
        for (uint32_t j = 0; j < row->n; j++) {
            from[rows.n_rows] = b->seq_row[i] + j;
            pos[rows.n_rows++] = row->pos + j;
        }
        seq_row[rows.n_seqs] = rows.n_rows;
    }
    for (uint32_t l = 0; l < RIG_LAYERS && rows.n_rows != 0; l++) {
        for (uint32_t i = 0; i < rows.n_rows; i++) {
            memcpy(numbers + i * RIG_ROW,
                   b->numbers + ((size_t) l * RIG_ROWS + from[i]) * RIG_ROW,
                   RIG_ROW * 4);
            memcpy(angles + i * RIG_DIM, b->angles + from[i] * RIG_DIM,
                   RIG_DIM * 4);
        }
        assert_int_equal(k->kv_append(&one, &r->host->view, l, &rows, numbers,
                                      numbers + RIG_KEYS, RIG_ROW, angles),
                         0);
        assert_int_equal(k->attention(&one, &r->host->view, l, &rows,
                                      numbers + 2 * RIG_KEYS, RIG_ROW,
                                      RIG_HEADS, 0.1f, r->host_out, RIG_QUERIES,
                                      r->host_work),
                         0);
        for (uint32_t i = 0; i < rows.n_rows; i++) {
            const float *mine = r->host_out + i * RIG_QUERIES;
            const float *theirs = b->out
                                  + ((size_t) l * RIG_ROWS + from[i])
                                        * RIG_QUERIES;

            RIG_SAME(memcmp(mine, theirs, RIG_QUERIES * 4) == 0,
                     "layer %u position %u: attention differs", l, pos[i]);
        }
    }
}

/* The oldest batch is done: both caches are as it left them. */
static rig_batch_t *
rig_collect(rig_t *r)
{
    uint64_t serial = r->g->oldest;
    rig_batch_t *b = &r->batch[serial % TR_KV_DEVICE_TURNS];
    uint32_t prompts = rig_prompts(r, serial);

    assert_int_equal(cuda->event_wait(b->event), 0);
    assert_int_equal(tr_kv_device_settle(r->kv, b->stalled), TR_OK);
    while (r->first != r->last && r->log[r->first % RIG_LOG].serial <= serial) {
        rig_follow(r, &r->log[r->first++ % RIG_LOG], prompts);
    }
    rig_follow_rows(r, b);
    RIG_SAME(r->g->free == tr_kv_free_pages(r->host), "%llu free, CPU %llu",
             (unsigned long long) r->g->free,
             (unsigned long long) tr_kv_free_pages(r->host));
    return b;
}

/* ---- when nothing is under way ------------------------------------------ */

static void
rig_fetch(rig_t *r)
{
    const tr_cuda_manager_t *m = tr_kv_device_manager(r->kv);
    rig_state_t *f = r->fetched;

    assert_int_equal(cuda->copy(&r->stream, f->seq, m->seq, sizeof(f->seq)), 0);
    assert_int_equal(cuda->copy(&r->stream, f->count, m->count,
                                sizeof(f->count)),
                     0);
    assert_int_equal(cuda->copy(&r->stream, f->victim, m->victim,
                                sizeof(f->victim)),
                     0);
    assert_int_equal(cuda->stream_wait(&r->stream), 0);
}

static void
rig_compare_slot(rig_t *r, int32_t slot)
{
    const rig_state_t *m = r->fetched;
    const tr_kv_slot_t *s = &r->host->slot[slot];
    size_t at = tr_kv_head_at(r->host, slot, 0) * TR_KV_LISTS_MAX;
    size_t lists = (size_t) r->host->heads * TR_KV_LISTS_MAX;
    tr_kv_seq_t seq = m->seq[slot];
    tr_kv_usage_t mine, theirs;

    seq.read_pages = r->host->seq[slot].read_pages; /* of the next row */
    RIG_SAME(memcmp(&seq, &r->host->seq[slot], sizeof(seq)) == 0,
             "slot %d: sequence", slot);
    RIG_SAME(memcmp(m->count + at, r->host->count + at, lists * 4) == 0,
             "slot %d: counts", slot);
    RIG_SAME(memcmp(m->victim + at, r->host->victim + at,
                    lists * sizeof(tr_kv_victim_t))
                 == 0,
             "slot %d: victims", slot);
    if (r->g->mirror[slot].trial == TR_KV_DONE) {
        return; /* the mirror does not know yet */
    }
    RIG_SAME(s->tokens == r->kv->slot[slot].tokens
                 && s->pages == r->kv->slot[slot].pages,
             "slot %d: %u tokens on %llu pages, CPU %u on %llu", slot,
             r->kv->slot[slot].tokens,
             (unsigned long long) r->kv->slot[slot].pages, s->tokens,
             (unsigned long long) s->pages);
    RIG_SAME(tr_kv_uncompressed(r->kv, slot)
                     == tr_kv_uncompressed(r->host, slot)
                 && tr_kv_swapped_pages(r->kv, slot)
                        == tr_kv_swapped_pages(r->host, slot)
                 && tr_kv_device_base(r->kv, slot) == r->host->seq[slot].base,
             "slot %d", slot);
    tr_kv_usage(r->host, slot, &mine);
    tr_kv_usage(r->kv, slot, &theirs);
    RIG_SAME(memcmp(&mine, &theirs, sizeof(mine)) == 0,
             "slot %d: usage %llu of %llu bytes, CPU %llu of %llu", slot,
             (unsigned long long) theirs.bytes,
             (unsigned long long) theirs.full_bytes,
             (unsigned long long) mine.bytes,
             (unsigned long long) mine.full_bytes);
    tr_kv_usage_in(r->host, slot, tr_kv_plan(r->host), &mine);
    tr_kv_usage_in(r->kv, slot, tr_kv_plan(r->kv), &theirs);
    RIG_SAME(memcmp(&mine, &theirs, sizeof(mine)) == 0, "slot %d: usage in",
             slot);
}

static void
rig_compare(rig_t *r)
{
    tr_kv_totals_t mine, theirs;
    bool open = false;

    assert_true(tr_kv_settled(r->kv));
    assert_true(tr_kv_sound(r->kv));
    assert_true(tr_kv_sound(r->host));
    rig_fetch(r);
    assert_int_equal(tr_kv_bound(r->g), tr_kv_free_pages(r->host));
    for (uint32_t i = 0; i < RIG_SEQS; i++) {
        RIG_SAME(r->kv->slot[i].open == r->host->slot[i].open, "slot %u", i);
        if (r->host->slot[i].open) {
            rig_compare_slot(r, (int32_t) i);
            open = open || r->g->mirror[i].trial == TR_KV_DONE;
        }
    }
    tr_kv_totals(r->host, &mine);
    tr_kv_totals(r->kv, &theirs);
    if (!open) {
        RIG_SAME(memcmp(&mine, &theirs, sizeof(mine)) == 0,
                 "totals: %llu tokens, CPU %llu",
                 (unsigned long long) theirs.tokens,
                 (unsigned long long) mine.tokens);
    }
}

#endif
