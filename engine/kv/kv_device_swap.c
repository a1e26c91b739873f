/*
 * Preemption on a device (kv_device.h): a slot's pages go to pinned host memory
 * and come back, in the stream of the batches, a piece before each of them.
 *
 * Whoever decodes waits for what is copied before its batch, so one batch is
 * preceded by config.piece bytes at most, and the rest by the next ones
 * (tr_kv_move_some).  For the callers a slot is out, or in, at once:
 *
 *   out   its pages count as free (tr_kv_free_pages).  Who asks for some that a
 *         piece has not given back yet has further pieces put before its batch,
 *         as many as it takes (tr_kv_await)
 *   in    the first piece takes all its pages from the ring.  It can be in a
 *         batch when the last was put (tr_kv_coming); who asks something of the
 *         slot before has the rest put at once (tr_kv_finish_move)
 *
 * Where a batch has no rows nobody waits, and all goes before it.
 */
#include "kv_device_internal.h"

static tr_kv_batch_t *
coming(tr_kv_gpu_t *g)
{
    return tr_kv_batch(g, g->next);
}

/* ---- pieces ------------------------------------------------------------- */

/* The pages of the piece into the list: ids of host memory. */
static void
list_ids(tr_kv_gpu_t *g, tr_kv_moving_t *v, tr_kv_swap_t *c)
{
    uint32_t i;

    c->at = g->list.n_ids;
    for (i = c->first; i < c->last; i++) {
        g->list.ids[g->list.n_ids++] = v->id;
        v->id = g->id_next[v->id];
    }
}

static void
end_move(tr_kv_gpu_t *g, int32_t slot)
{
    tr_kv_mirror_t *x = &g->mirror[slot];
    uint32_t i = 0;

    while (g->moving[i] != slot) {
        i++;
    }
    for (g->n_moving--; i < g->n_moving; i++) {
        g->moving[i] = g->moving[i + 1];
    }
    if (x->moving.kind == TR_KV_DO_IN) {
        tr_kv_trim_ids(g, slot, 0); /* who writes there next comes later */
        g->n_in--;
        g->arriving = g->n_in != 0 ? g->arriving : 0;
    }
    x->moving.kind = TR_KV_DO_OPEN; /* none */
    x->touched = g->next;
}

/* The next pages of a slot, at most so many, go into the list. */
static void
put_piece(tr_kv_gpu_t *g, int32_t slot, uint32_t most, bool drop)
{
    tr_kv_mirror_t *x = &g->mirror[slot];
    tr_kv_moving_t *v = &x->moving;
    uint32_t n = (uint32_t) tr_kv_less(v->all.pages - v->done, most);
    tr_kv_swap_t *c;
    uint64_t back;

    if (v->kind == TR_KV_DO_OUT && n > g->kv.swap.n - g->list.n_ids) {
        tr_kv_flush(g);
    }
    c = &tr_kv_command(g, v->kind, slot, -1)->move;
    *c = v->all;
    c->first = v->done;
    c->last = v->done + n;
    c->take = v->kind == TR_KV_DO_IN && !v->taken;
    c->drop = drop;
    v->taken = true;
    if (v->kind == TR_KV_DO_OUT) {
        list_ids(g, v, c);
        back = tr_kv_less(c->last, x->low) - tr_kv_less(c->first, x->low);
        coming(g)->returned += back;
        g->leaving -= back;
        g->returns++;
    }
    if (!drop) {
        g->list.n_moved += n;
    }
    v->done += n;
    if (v->done == v->all.pages) {
        c->ends = true;
        end_move(g, slot);
    }
}

void
tr_kv_move_some(tr_kv_gpu_t *g, bool all)
{
    while (g->n_moving != 0 && (all || g->list.n_moved < g->piece)) {
        put_piece(g, g->moving[0],
                  all ? UINT32_MAX : g->piece - g->list.n_moved, false);
    }
}

void
tr_kv_finish_move(tr_kv_gpu_t *g, int32_t slot, bool drop)
{
    if (tr_kv_is_moving(g, slot)) {
        put_piece(g, slot, UINT32_MAX, drop);
    }
}

bool
tr_kv_leave_more(tr_kv_gpu_t *g, uint64_t pages)
{
    uint32_t i;

    for (i = 0; i < g->n_moving; i++) {
        if (g->mirror[g->moving[i]].moving.kind == TR_KV_DO_OUT) {
            put_piece(g, g->moving[i], (uint32_t) tr_kv_less(pages, UINT32_MAX),
                      false);
            return true;
        }
    }
    return false;
}

void
tr_kv_await(tr_kv_gpu_t *g, uint64_t pages)
{
    int64_t bound = tr_kv_bound(g);

    while (pages != 0 && (int64_t) pages > bound
           && tr_kv_leave_more(g, (uint64_t) ((int64_t) pages - bound))) {
        bound = tr_kv_bound(g);
    }
}

/* ---- out and in --------------------------------------------------------- */

/* So many pages of host memory in a chain to the slot. */
static void
take_ids(tr_kv_gpu_t *g, int32_t slot, uint32_t n)
{
    tr_kv_mirror_t *x = &g->mirror[slot];
    int32_t *link = &x->ids;
    uint32_t i;

    assert(x->ids == -1);
    for (i = 0; i < n; i++) {
        *link = g->id_free;
        g->id_free = g->id_next[g->id_free];
        link = &g->id_next[*link];
    }
    *link = -1;
    x->n_ids = n;
    g->n_free_ids -= n;
    g->kv.totals.swapped_pages += n;
}

static void
begin_move(tr_kv_gpu_t *g, int32_t slot, tr_kv_do_t kind)
{
    const tr_kv_slot_t *s = &g->kv.m.slot[slot];
    tr_kv_mirror_t *x = &g->mirror[slot];

    x->moving = (tr_kv_moving_t){
        .kind = kind,
        .id = x->ids,
        .all = { .slot = slot,
                 .uncompressed_pages = s->uncompressed_pages,
                 .near_pages = s->near_pages,
                 /* the device may be some steps behind */
                 .near_from = s->near_from > TR_KV_IN_FLIGHT
                                  ? s->near_from - TR_KV_IN_FLIGHT
                                  : 0,
                 .pages = (uint32_t) s->pages },
    };
    x->touched = TR_KV_NEVER; /* what a report says of it is of no use */
    g->moving[g->n_moving++] = slot;
}

tr_status_t
tr_kv_gpu_swap_out(tr_kv_cache_t *kv, int32_t slot)
{
    tr_kv_gpu_t *g = tr_kv_gpu(kv);
    tr_kv_slot_t *s = tr_kv_slot(kv, slot);
    tr_kv_mirror_t *x = &g->mirror[slot];
    uint64_t pages = (uint64_t) s->pages + s->borrowed;
    bool whole = g->piece == UINT32_MAX || s->borrowed != 0;

    assert(!s->out);
    tr_kv_finish_move(g, slot, false);
    if (pages > g->n_free_ids || pages > g->swap_max
        || pages > kv->swap.n - g->list.n_ids || x->trial == TR_KV_TRIED
        || x->trial == TR_KV_DONE) {
        return TR_AGAIN;
    }
    tr_kv_forget_need(g, slot);
    s->pages = (uint32_t) pages; /* it comes back with copies */
    s->borrowed = 0;
    s->out = true;
    x->steps = TR_KV_EDGES; /* reports of rows under way are not read */
    g->returns++;
    if (s->pages == 0) {
        x->touched = g->next;
        return TR_OK;
    }
    take_ids(g, slot, (uint32_t) s->pages);
    begin_move(g, slot, TR_KV_DO_OUT);
    g->leaving += x->low;
    tr_kv_move_some(g, false);
    if (whole) { /* what it borrows may be absorbed before the next batch */
        tr_kv_finish_move(g, slot, false);
    }
    return TR_OK;
}

/* Room for the ids of the pages that a slot takes, with their number. */
static uint32_t
arrive_at(tr_kv_gpu_t *g, uint32_t pages)
{
    uint32_t at;

    if (g->arriving + pages + 1 > g->swap_max + 1) {
        tr_kv_move_some(g, true); /* others, which are read by then */
    }
    at = g->arriving;
    g->arriving += pages + 1;
    return at;
}

tr_status_t
tr_kv_gpu_swap_in(tr_kv_cache_t *kv, int32_t slot)
{
    tr_kv_gpu_t *g = tr_kv_gpu(kv);
    tr_kv_slot_t *s = tr_kv_slot(kv, slot);
    tr_kv_mirror_t *x = &g->mirror[slot];
    uint32_t at;

    assert(s->out);
    if (tr_kv_is_moving(g, slot)) {
        return TR_AGAIN; /* the rest of it goes out, whatever runs */
    }
    tr_kv_await(g, s->pages);
    if (s->pages != 0 && !tr_kv_reuse_room(kv, slot, s->pages)) {
        return TR_AGAIN;
    }
    x->stalled = TR_KV_NEVER;
    s->out = false;
    if (s->pages == 0) {
        tr_kv_trim_ids(g, slot, 0);
        x->touched = g->next;
        return TR_OK;
    }
    at = arrive_at(g, (uint32_t) s->pages);
    begin_move(g, slot, TR_KV_DO_IN);
    x->moving.all.at = at;
    g->n_in++;
    put_piece(g, slot,
              g->list.n_moved < g->piece ? g->piece - g->list.n_moved : 0,
              false);
    coming(g)->claimed += s->pages;
    return TR_OK;
}

bool
tr_kv_gpu_coming(const tr_kv_cache_t *kv, int32_t slot)
{
    return tr_kv_is_moving(tr_kv_gpu(kv), slot) && !kv->m.slot[slot].out;
}
