/*
 * The list of commands (kv_device_internal.h), and how it is launched.
 *
 * The manager takes many requests of a kind at once, while the step loop asks
 * for one sequence after the other: open, prompt, reserve; open, prompt,
 * reserve.  So a command joins an earlier group of its kind where that changes
 * nothing: behind all that concerns its slot, and, when pages are taken or
 * given back, not before another group that does so.  Blocks that are kept have
 * an order of their own (manager_share.h): lent, merged and copied behind what
 * made them, reclaimed behind all of that, and made behind what reclaimed their
 * numbers.
 */
#include <stdlib.h>
#include <string.h>

#include "kv_device_internal.h"
#include "engine/config/log.h"

/* Groups begin at multiples of this. */
#define TR_KV_RECORD 16u

static const size_t record_size[] = {
    [TR_KV_DO_OPEN] = sizeof(tr_kv_open_t),
    [TR_KV_DO_BEGIN] = sizeof(tr_kv_begin_t),
    [TR_KV_DO_FORK] = sizeof(tr_kv_fork_t),
    [TR_KV_DO_LEND] = sizeof(tr_kv_share_t),
    [TR_KV_DO_CEDE] = sizeof(tr_kv_share_t),
    [TR_KV_DO_COPY] = sizeof(tr_kv_share_t),
    [TR_KV_DO_ASK] = sizeof(tr_kv_page_request_t),
    [TR_KV_DO_COMPLETE] = sizeof(tr_kv_complete_t),
    [TR_KV_DO_STAGES] = sizeof(tr_kv_complete_t),
    [TR_KV_DO_CUT] = sizeof(tr_kv_cut_t),
    [TR_KV_DO_ABSORB] = sizeof(tr_kv_absorb_t),
    [TR_KV_DO_RESTORE] = sizeof(tr_kv_restore_t),
    [TR_KV_DO_OUT] = 0,
    [TR_KV_DO_IN] = 0,
    [TR_KV_DO_CLOSE] = sizeof(int32_t),
    [TR_KV_DO_MERGE] = sizeof(tr_kv_share_t),
    [TR_KV_DO_RECLAIM] = sizeof(tr_kv_share_t),
};

static const tr_kv_do_t do_of[] = {
    [TR_KV_LEND] = TR_KV_DO_LEND,       [TR_KV_CEDE] = TR_KV_DO_CEDE,
    [TR_KV_MERGE] = TR_KV_DO_MERGE,     [TR_KV_COPY] = TR_KV_DO_COPY,
    [TR_KV_RECLAIM] = TR_KV_DO_RECLAIM,
};

static bool
shares(tr_kv_do_t kind)
{
    return kind == TR_KV_DO_LEND || kind == TR_KV_DO_CEDE
           || kind == TR_KV_DO_COPY || kind == TR_KV_DO_MERGE
           || kind == TR_KV_DO_RECLAIM;
}

size_t
tr_kv_list_bytes(uint32_t room, uint32_t share_room)
{
    return room * (sizeof(tr_kv_command_t) + TR_KV_RECORD)
           + share_room * (sizeof(tr_kv_share_t) + TR_KV_RECORD);
}

void
tr_kv_list_empty(tr_kv_list_t *l)
{
    l->n = l->n_shares = l->n_groups = l->n_ids = l->n_moved = 0;
    l->restores = false;
    l->ring = TR_KV_NO_GROUP;
    l->lends = l->cedes = l->reclaims = -1;
    l->number++;
}

/* ---- groups ------------------------------------------------------------- */

/* Where the slot's last command of this list is; -1: it has none. */
static int64_t
last_group(const tr_kv_gpu_t *g, int32_t slot)
{
    if (slot < 0 || g->mirror[slot].list != g->list.number) {
        return -1;
    }
    return g->mirror[slot].group;
}

/* The group that a command of this kind joins; TR_KV_NO_GROUP: a new one.  It
 * must stand behind group `after`. */
static uint32_t
find_group(const tr_kv_gpu_t *g, tr_kv_do_t kind, int64_t after)
{
    const tr_kv_list_t *l = &g->list;
    uint32_t i = l->n_groups;

    if (kind >= TR_KV_DO_ASK && l->ring != TR_KV_NO_GROUP
        && (int64_t) l->ring > after + 1) {
        after = (int64_t) l->ring - 1; /* nor before what changed the ring */
    }
    while (i > 0 && (int64_t) i - 1 > after) {
        const tr_kv_group_t *group = &l->group[--i];

        if (group->kind == kind && kind != TR_KV_DO_STAGES
            && ((kind != TR_KV_DO_COMPLETE && kind != TR_KV_DO_CUT)
                || group->n < g->device.max_prompts)) {
            return i;
        }
    }
    return TR_KV_NO_GROUP;
}

static int64_t
latest(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* Its index; a new one begins with command `at`, and has none yet. */
static uint32_t
take_group(tr_kv_gpu_t *g, tr_kv_do_t kind, int64_t after, uint32_t at)
{
    tr_kv_list_t *l = &g->list;
    uint32_t i = find_group(g, kind, after);

    if (i == TR_KV_NO_GROUP) {
        i = l->n_groups++;
        l->group[i] = (tr_kv_group_t){ .kind = kind, .first = at };
        if (kind >= TR_KV_DO_ASK) {
            l->ring = i;
        }
    }
    return i;
}

static void
note_group(tr_kv_gpu_t *g, int32_t slot, uint32_t group)
{
    if (slot >= 0) {
        g->mirror[slot].list = g->list.number;
        g->mirror[slot].group = group;
    }
}

tr_kv_command_t *
tr_kv_command(tr_kv_gpu_t *g, tr_kv_do_t kind, int32_t slot, int32_t other)
{
    tr_kv_list_t *l = &g->list;
    int64_t after, more;
    tr_kv_command_t *c;
    uint32_t i;

    if (l->n == l->room) {
        tr_kv_flush(g);
    }
    after = last_group(g, slot);
    more = last_group(g, other);
    i = take_group(g, kind, latest(after, more), l->n);
    if (l->group[i].n++ != 0) {
        l->command[l->group[i].last].next = l->n;
    }
    l->group[i].last = l->n;
    note_group(g, slot, i);
    note_group(g, other, i);
    c = &l->command[l->n++];
    memset(c, 0, sizeof(*c));
    return c;
}

/* The groups of this list that such a command must stand behind, whatever its
 * slot is. */
static int64_t
after_blocks(const tr_kv_list_t *l, tr_kv_share_kind_t kind)
{
    return kind == TR_KV_CEDE      ? l->reclaims
           : kind == TR_KV_RECLAIM ? latest(l->lends, l->cedes)
                                   : l->cedes;
}

/* And because of its slot: other blocks of it may be in the same group, of which
 * a prompt has hundreds. */
static int64_t
after_slot(const tr_kv_gpu_t *g, tr_kv_do_t kind, int32_t slot)
{
    int64_t last = last_group(g, slot);

    return last >= 0 && g->list.group[last].kind == kind ? last - 1 : last;
}

void
tr_kv_share_command(tr_kv_gpu_t *g, tr_kv_share_kind_t kind,
                    const tr_kv_share_t *what)
{
    tr_kv_list_t *l = &g->list;
    uint32_t i;

    if (l->n_shares == l->share_room) {
        tr_kv_flush(g);
    }
    i = take_group(g, do_of[kind],
                   latest(after_slot(g, do_of[kind], what->slot),
                          after_blocks(l, kind)),
                   l->n_shares);
    if (l->group[i].n++ != 0) {
        l->share[l->group[i].last].next = l->n_shares;
    }
    l->group[i].last = l->n_shares;
    note_group(g, what->slot, i);
    if (kind == TR_KV_LEND || kind == TR_KV_COPY) {
        l->lends = latest(l->lends, i);
    } else if (kind == TR_KV_CEDE) {
        l->cedes = latest(l->cedes, i);
    } else if (kind == TR_KV_RECLAIM) {
        l->reclaims = latest(l->reclaims, i);
    }
    l->share[l->n_shares++] = (tr_kv_share_command_t){ .what = *what };
}

/* ---- launches ----------------------------------------------------------- */

/* Writes the groups' records behind the asks; returns where they end. */
static size_t
write_list(const tr_kv_gpu_t *g, uint8_t *in, size_t at)
{
    const tr_kv_list_t *l = &g->list;
    uint32_t i, j, k;

    for (i = 0; i < l->n_groups; i++) {
        size_t size = record_size[l->group[i].kind];
        bool share = shares(l->group[i].kind);

        at = tr_pad(at, TR_KV_RECORD);
        for (j = l->group[i].first, k = 0; k < l->group[i].n; k++) {
            if (share) {
                memcpy(in + at, &l->share[j].what, size);
                j = l->share[j].next;
            } else {
                memcpy(in + at, &l->command[j], size);
                j = l->command[j].next;
            }
            at += size;
        }
    }
    return at;
}

/* A prompt of which some layers are moved at a time, which was planned. */
static int
launch_parts(tr_kv_gpu_t *g, const tr_kv_group_t *group, uint32_t *refused)
{
    const tr_kv_complete_t *c = &g->list.command[group->first].complete;
    const tr_device_t *cuda = g->device.cuda;
    const tr_cuda_stream_t *s = g->device.stream;
    uint32_t part, parts = tr_kv_parts(g->m.view.layers, c->layers);
    int rc = 0;

    for (part = 0; part < parts && rc == 0; part++) {
        if (part != 0) {
            rc = cuda->manager_fill_prompts(s, &g->m, 1);
        }
        if (rc == 0) {
            rc = cuda->kv_compress(s, &g->m.view, g->m.compress, 1, c->layers,
                                   c->len, refused, g->compress_work);
        }
        if (rc == 0) {
            rc = cuda->manager_install_prompts(s, &g->m, 1);
        }
    }
    return rc;
}

/* A prompt's end: planned, moved, and the new pages in place of the old. */
static int
launch_complete(tr_kv_gpu_t *g, const tr_kv_group_t *group, const void *in)
{
    const tr_device_t *cuda = g->device.cuda;
    const tr_cuda_stream_t *s = g->device.stream;
    tr_kv_batch_t *b = tr_kv_batch(g, g->next);
    uint32_t *refused = g->refused + b->n_refused;
    uint32_t longest = 0, i, at = group->first;
    int rc;

    for (i = 0; i < group->n; i++, at = g->list.command[at].next) {
        uint32_t len = g->list.command[at].complete.len;

        longest = len > longest ? len : longest;
    }
    rc = cuda->manager_plan_prompts(s, &g->m, in, group->n);
    if (g->list.command[group->first].complete.layers != 0) {
        b->n_refused += group->n;
        return rc != 0 ? rc : launch_parts(g, group, refused);
    }
    if (rc == 0) {
        rc = cuda->kv_compress(s, &g->m.view, g->m.compress, group->n,
                               g->m.view.layers, longest, refused,
                               g->compress_work);
    }
    for (i = 0, at = group->first; i < group->n && rc == 0; i++) {
        const tr_kv_complete_t *c = &g->list.command[at].complete;

        rc = tr_kv_guard_launch(g, c->slot, c->len, group->n, longest, refused);
        at = g->list.command[at].next;
    }
    b->n_refused += group->n;
    return rc != 0 ? rc : cuda->manager_install_prompts(s, &g->m, group->n);
}

/* Copies: planned, moved, and put into the tables of the new slots. */
static int
launch_cuts(tr_kv_gpu_t *g, const tr_cuda_history_t *history,
            const tr_kv_group_t *group, const void *in)
{
    const tr_device_t *cuda = g->device.cuda;
    const tr_cuda_stream_t *s = g->device.stream;
    tr_kv_batch_t *b = tr_kv_batch(g, g->next);
    uint32_t longest = 0, i, at = group->first;
    int rc = cuda->manager_plan_cuts(s, &g->m, in, group->n);

    for (i = 0; i < group->n; i++, at = g->list.command[at].next) {
        uint32_t n = g->list.command[at].cut.tokens;

        longest = n > longest ? n : longest;
    }
    assert(b->n_refused + group->n <= TR_KV_REFUSED(g->kv.config.slots));
    if (rc == 0) {
        rc = cuda->kv_compress(s, &g->m.view, g->m.compress, group->n,
                               g->m.view.layers, longest,
                               g->refused + b->n_refused, g->compress_work);
    }
    b->n_refused += group->n;
    return rc != 0 ? rc
                   : cuda->manager_install_cuts(s, &g->m, history, group->n);
}

/* Pages for what comes from elsewhere: nothing moves. */
static int
launch_restores(tr_kv_gpu_t *g, const tr_kv_group_t *group, const void *in)
{
    const tr_device_t *cuda = g->device.cuda;
    const tr_cuda_stream_t *s = g->device.stream;
    int rc = cuda->manager_plan_restores(s, &g->m, in, group->n);

    return rc != 0 ? rc : cuda->manager_install_cuts(s, &g->m, NULL, group->n);
}

/* A piece of a slot that goes out. */
static int
launch_out(tr_kv_gpu_t *g, const tr_kv_swap_t *c)
{
    const tr_device_t *cuda = g->device.cuda;
    const tr_cuda_stream_t *s = g->device.stream;
    uint32_t last = c->ends ? TR_KV_ALL_PAGES : c->last;
    tr_cuda_swap_t swap = { .slot = c->slot,
                            .uncompressed_pages = c->uncompressed_pages,
                            .near_pages = c->near_pages,
                            .near_from = c->near_from,
                            .max_pages = c->pages,
                            .first = c->first,
                            .last = c->last,
                            .taken = g->ids + c->at,
                            .given = g->moved[1],
                            .from = g->pool,
                            .to = c->drop ? NULL : g->kv.swap.memory,
                            .mark = TR_KV_HOST };
    int rc = cuda->kv_swap(s, &g->m.view, g->m.tables, &swap, g->n_moved,
                           g->swap_work);

    return rc != 0 ? rc
                   : cuda->manager_give(s, &g->m, c->slot, g->moved[1],
                                        g->n_moved, c->first, last);
}

/* And of one that comes in, which got pages for all of them. */
static int
launch_in(tr_kv_gpu_t *g, const tr_kv_swap_t *c)
{
    const tr_device_t *cuda = g->device.cuda;
    const tr_cuda_stream_t *s = g->device.stream;
    uint32_t *got = (uint32_t *) (g->arrived + c->at);
    int32_t *pages = g->arrived + c->at + 1;
    tr_cuda_swap_t swap = { .slot = c->slot,
                            .uncompressed_pages = c->uncompressed_pages,
                            .near_pages = c->near_pages,
                            .near_from = c->near_from,
                            .max_pages = c->pages,
                            .first = c->first,
                            .last = c->last,
                            .taken = pages + c->first,
                            .given = g->moved[0],
                            .from = g->kv.swap.memory,
                            .to = c->drop ? NULL : g->pool,
                            .unmark = TR_KV_HOST,
                            .go = got };
    int rc = 0;

    if (c->take) {
        rc = cuda->manager_take(s, &g->m, c->slot, pages, got, c->pages);
    }
    return rc != 0 ? rc
                   : cuda->kv_swap(s, &g->m.view, g->m.tables, &swap,
                                   g->n_moved, g->swap_work);
}

/* Slots one after the other. */
static int
launch_moves(tr_kv_gpu_t *g, const tr_kv_group_t *group)
{
    uint32_t i, at = group->first;
    int rc = 0;

    for (i = 0; i < group->n && rc == 0; i++) {
        const tr_kv_command_t *c = &g->list.command[at];

        rc = group->kind == TR_KV_DO_OUT ? launch_out(g, &c->move)
                                         : launch_in(g, &c->move);
        at = c->next;
    }
    return rc;
}

static int
launch_share(tr_kv_gpu_t *g, const tr_cuda_history_t *history,
             const tr_kv_group_t *group, const void *in)
{
    tr_kv_share_kind_t kind = TR_KV_LEND;

    while (do_of[kind] != group->kind) {
        kind++;
    }
    return g->device.cuda->manager_share(g->device.stream, &g->m, history, kind,
                                         in, group->n);
}

static int
launch_group(tr_kv_gpu_t *g, const tr_kv_group_t *group, const void *in)
{
    const tr_device_t *cuda = g->device.cuda;
    const tr_cuda_stream_t *s = g->device.stream;
    const tr_cuda_history_t *history = g->device.history.token != NULL
                                           ? &g->device.history
                                           : NULL;

    if (shares(group->kind)) {
        return launch_share(g, history, group, in);
    }
    switch (group->kind) {
    case TR_KV_DO_OPEN:
        return cuda->manager_open(s, &g->m, in, group->n);
    case TR_KV_DO_BEGIN:
        return cuda->manager_prompt(s, &g->m, in, group->n);
    case TR_KV_DO_FORK:
        return cuda->manager_fork(s, &g->m, history, in, group->n);
    case TR_KV_DO_ASK:
        return cuda->manager_step(s, &g->m, in, group->n);
    case TR_KV_DO_COMPLETE:
    case TR_KV_DO_STAGES:
        return launch_complete(g, group, in);
    case TR_KV_DO_CUT:
        return launch_cuts(g, history, group, in);
    case TR_KV_DO_ABSORB:
        return cuda->manager_absorb(s, &g->m, in, group->n);
    case TR_KV_DO_RESTORE:
        return launch_restores(g, group, in);
    case TR_KV_DO_CLOSE:
        return cuda->manager_close(s, &g->m, in, group->n);
    default:
        return launch_moves(g, group);
    }
}

bool
tr_kv_launch(tr_kv_gpu_t *g, const tr_kv_pinned_t *pinned)
{
    const tr_device_t *cuda = g->device.cuda;
    const tr_cuda_stream_t *s = g->device.stream;
    tr_kv_list_t *l = &g->list;
    size_t first = g->device.max_seqs * sizeof(tr_kv_page_request_t), at;
    size_t bytes = write_list(g, pinned->in, first);
    uint32_t i;
    int rc = cuda->fetch(s, g->input, pinned->in, bytes);

    if (rc == 0 && l->n_ids != 0) {
        memcpy(pinned->ids, l->ids, l->n_ids * sizeof(*l->ids));
        rc = cuda->copy(s, g->ids, pinned->ids, l->n_ids * sizeof(*l->ids));
    }
    if (rc == 0 && l->restores) {
        size_t counts = (size_t) g->kv.heads * TR_KV_TIERS_MAX
                        * sizeof(*l->counts);

        memcpy(pinned->counts, l->counts, counts);
        rc = cuda->copy(s, g->counts_in, pinned->counts, counts);
    }
    for (i = 0, at = first; i < l->n_groups && rc == 0; i++) {
        at = tr_pad(at, TR_KV_RECORD);
        rc = launch_group(g, &l->group[i], g->input + at);
        at += l->group[i].n * record_size[l->group[i].kind];
    }
    tr_kv_list_empty(l);
    if (rc != 0) {
        g->failed = true;
        tr_log(TR_LEVEL_ERROR, "kv commands failed reason=\"%s\"",
               rc == TR_CUDA_FAILED ? cuda->reason() : "arguments");
    }
    return rc == 0;
}

bool
tr_kv_flush(tr_kv_gpu_t *g)
{
    const tr_device_t *cuda = g->device.cuda;
    tr_kv_pinned_t *pinned = tr_kv_pinned(g, g->next);
    size_t asks = g->device.max_seqs * sizeof(tr_kv_page_request_t);

    /* what was copied from there is there */
    if (g->failed || cuda->stream_wait(g->device.stream) != 0) {
        g->failed = true;
    } else {
        memset(pinned->in, 0xff, asks);
        g->flushed = true;
        tr_kv_launch(g, pinned);
    }
    if (!g->failed && cuda->stream_wait(g->device.stream) != 0) {
        g->failed = true;
    }
    if (g->failed) { /* nobody will run them */
        tr_kv_list_empty(&g->list);
    }
    return !g->failed;
}
