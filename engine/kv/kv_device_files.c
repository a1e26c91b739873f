/*
 * Pages of a device's cache on their way to and from files and the shelf
 * (kv_store.c), and how they do so beside steps.
 *
 * Each lane has two ways, out and in, and each of these a stream of its own beside
 * that of the batches, and a piece's room on the device:
 *
 *   out   pages -> room by a small kernel -> the piece, which is pinned
 *   in    the piece -> room -> pages
 *
 * Launched by the step loop, which asks an event whether a piece has arrived, and
 * waits for none.  What must come in front of what:
 *
 *   - a way begins behind what the stream of the batches was given until then:
 *     what is kept is whole, pages of a new slot are its own;
 *   - who takes over what came sees that it has arrived first;
 *   - kept pages that go while they are read are read to no purpose: who gets them
 *     is told, and drops them;
 *   - a slot that goes while it is filled has its pages until the batches' stream
 *     has waited for what is under way.
 *
 * Which pages a slot has is known there alone; the host says which entries of the
 * manager's tables they are, and for that fetches how many tokens each head has
 * where.
 */
#include <stdlib.h>
#include <string.h>

#include "kv_device_internal.h"
#include "engine/config/log.h"

/* Of the shelf, under way each way: what the longest turn begins. */
#define BUFFERS 64u
/* More would keep the step loop from its batch: three launches each. */
#define AT_ONCE 8u
/* One would be slower than a good disk. */
#define READERS 4u
/* Of the shelf: so long a copy hides what it takes to launch it. */
#define CHUNK (8u << 20)
/* A millisecond of the link: a step's own copies may stand behind these.  A step
 * of a long prompt takes as long as many others, and can stand behind more. */
#define CHUNKS 6u
#define TURN_US 6000u

typedef struct {
    tr_cuda_stream_t stream;
    uint8_t *room; /* on the device: a piece */
    uint32_t *ref; /* pinned: [BUFFERS][pages of a piece] */
    void *behind;  /* event of the batches' stream */
    void *arrived[BUFFERS];
    bool flying[BUFFERS]; /* `arrived` was recorded */
} way_t;

struct tr_kv_gpu_files {
    uint32_t piece_pages;
    way_t out, in;
    /* pinned: pieces, or the shelf; what is asked for of a slot, and the tokens of
     * one that comes */
    uint8_t *memory;
    uint32_t *counts;
    tr_kv_seq_t *seq;
    int32_t *tokens;
    void *seen; /* event: those have come */
    bool fetching;
    bool waits; /* for the commands of list `list` to be launched */
    uint64_t list;
};

typedef struct tr_kv_gpu_files lane_t;

static size_t
count_bytes(const tr_kv_gpu_t *g)
{
    return (size_t) g->kv.heads * TR_KV_TIERS_MAX * sizeof(uint32_t);
}

/* ---- open and close ----------------------------------------------------- */

static bool
open_way(const tr_kv_gpu_t *g, way_t *w, uint32_t piece_pages)
{
    const tr_device_t *cuda = g->device.cuda;
    bool good = cuda->stream_open(g->device.stream->device, &w->stream) == 0
                && cuda->event_open(&w->behind) == 0;

    for (uint32_t i = 0; i < BUFFERS && good; i++) {
        good = cuda->event_open(&w->arrived[i]) == 0;
    }
    if (good) {
        w->room = cuda->alloc((size_t) piece_pages * g->kv.plan.page_bytes);
        w->ref = cuda->pin((size_t) BUFFERS * piece_pages * sizeof(*w->ref));
    }
    return good && w->room != NULL && w->ref != NULL;
}

static void
close_way(const tr_kv_gpu_t *g, way_t *w)
{
    const tr_device_t *cuda = g->device.cuda;

    if (w->stream.stream != NULL) {
        cuda->stream_wait(&w->stream);
    }
    cuda->release(w->room);
    cuda->unpin(w->ref);
    for (uint32_t i = 0; i < BUFFERS; i++) {
        cuda->event_close(w->arrived[i]);
    }
    cuda->event_close(w->behind);
    if (w->stream.stream != NULL) {
        cuda->stream_close(&w->stream);
    }
}

static void
files_close(tr_kv_cache_t *kv, tr_kv_lane_t lane)
{
    tr_kv_gpu_t *g = tr_kv_gpu(kv);
    lane_t *f = g->files[lane];
    const tr_device_t *cuda = g->device.cuda;

    if (f == NULL) {
        return;
    }
    close_way(g, &f->out);
    close_way(g, &f->in);
    cuda->event_close(f->seen);
    cuda->unpin(f->memory);
    cuda->unpin(f->counts);
    cuda->unpin(f->seq);
    cuda->unpin(f->tokens);
    free(f);
    g->files[lane] = NULL;
}

static tr_status_t
no_memory(const tr_kv_gpu_t *g, const lane_t *f, tr_kv_lane_t lane,
          uint64_t bytes, tr_error_t *err)
{
    const char *what = lane == TR_KV_FILES ? "cache_dir" : "cache_memory";
    uint64_t room = 2ull * f->piece_pages * g->kv.plan.page_bytes;

    return tr_error_set(err, TR_ERR_NOMEM, what,
                        "%s takes %llu MiB of pinned host memory and %llu of"
                        " the device: %s",
                        what, (unsigned long long) (bytes >> 20) + 1,
                        (unsigned long long) (room >> 20) + 1,
                        g->device.cuda->reason());
}

static tr_status_t
files_open(tr_kv_cache_t *kv, tr_kv_lane_t lane, uint32_t piece_pages,
           uint64_t bytes, uint8_t **memory, tr_error_t *err)
{
    tr_kv_gpu_t *g = tr_kv_gpu(kv);
    const tr_device_t *cuda = g->device.cuda;
    lane_t *f = g->files[lane] = calloc(1, sizeof(*f));

    if (f == NULL) {
        return tr_error_set(err, TR_ERR_NOMEM, "cache_dir", "no memory");
    }
    f->piece_pages = piece_pages;
    f->memory = cuda->pin(bytes);
    f->counts = cuda->pin(count_bytes(g));
    f->seq = cuda->pin(sizeof(*f->seq));
    f->tokens = cuda->pin(kv->config.max_len * sizeof(*f->tokens));
    if (f->memory == NULL || f->counts == NULL || f->seq == NULL
        || f->tokens == NULL || cuda->event_open(&f->seen) != 0
        || !open_way(g, &f->out, f->piece_pages)
        || !open_way(g, &f->in, f->piece_pages)) {
        return no_memory(g, f, lane, bytes, err);
    }
    *memory = f->memory;
    return TR_OK;
}

/* ---- in front of what ---------------------------------------------------- */

static tr_status_t
status_of(int rc)
{
    return rc == 0 ? TR_OK : TR_ERR_LOST;
}

/* What is launched in the way's stream comes behind all that the batches' was
 * given. */
static int
follow_batches(const tr_kv_gpu_t *g, way_t *w)
{
    const tr_device_t *cuda = g->device.cuda;
    int rc = cuda->event_record(g->device.stream, w->behind);

    return rc != 0 ? rc : cuda->event_follow(&w->stream, w->behind);
}

static void
files_launch(tr_kv_cache_t *kv)
{
    tr_kv_gpu_t *g = tr_kv_gpu(kv);

    if (g->list.n_groups != 0) {
        (void) tr_kv_flush(g);
    }
}

/* Was all that the list had launched since it was first asked? */
static bool
launched(const tr_kv_gpu_t *g, lane_t *f, bool again)
{
    if (!again) {
        f->waits = g->list.n_groups != 0;
        f->list = g->list.number;
    }
    return !f->waits || f->list != g->list.number;
}

/* A piece of the way has come, or will never be asked for. */
static tr_status_t
files_moved(const tr_kv_cache_t *kv, tr_kv_lane_t lane, bool out,
            uint32_t buffer)
{
    const tr_kv_gpu_t *g = tr_kv_gpu(kv);
    lane_t *f = g->files[lane];
    way_t *w = out ? &f->out : &f->in;
    int passed;

    if (!w->flying[buffer]) {
        return TR_OK;
    }
    passed = g->device.cuda->event_passed(w->arrived[buffer]);
    if (passed == 0) {
        return TR_AGAIN;
    }
    w->flying[buffer] = false;
    return passed == 1 ? TR_OK : TR_ERR_LOST;
}

/* ---- out ------------------------------------------------------------------ */

static int
fetch_slot(const tr_kv_gpu_t *g, const lane_t *f, int32_t slot)
{
    const tr_device_t *cuda = g->device.cuda;
    const tr_cuda_stream_t *s = &f->out.stream;
    int rc;

    rc = cuda->copy(s, f->counts,
                    g->m.count + (size_t) slot * g->kv.heads * TR_KV_TIERS_MAX,
                    count_bytes(g));
    rc = rc != 0 ? rc : cuda->copy(s, f->seq, g->m.seq + slot, sizeof(*f->seq));
    return rc != 0 ? rc : cuda->event_record(s, f->seen);
}

static tr_status_t
files_see(tr_kv_cache_t *kv, tr_kv_lane_t lane, int32_t slot, bool again,
          tr_kv_seq_t *seq, uint32_t *counts)
{
    tr_kv_gpu_t *g = tr_kv_gpu(kv);
    lane_t *f = g->files[lane];
    int rc;

    f->fetching = f->fetching && again;
    if (!f->fetching && !launched(g, f, again)) {
        return TR_AGAIN;
    }
    if (!f->fetching) {
        rc = follow_batches(g, &f->out);
        if (rc != 0 || slot < 0) {
            return status_of(rc);
        }
        rc = fetch_slot(g, f, slot);
        f->fetching = rc == 0;
        return rc == 0 ? TR_AGAIN : status_of(rc);
    }
    rc = g->device.cuda->event_passed(f->seen);
    if (rc == 0) {
        return TR_AGAIN;
    }
    f->fetching = false;
    memcpy(counts, f->counts, count_bytes(g));
    *seq = *f->seq;
    return rc == 1 ? TR_OK : TR_ERR_LOST;
}

/* The kernel's part: between pages and the way's room. */
static int
launch_pages(const tr_kv_gpu_t *g, const lane_t *f, bool out,
             const tr_kv_piece_t *piece)
{
    const way_t *w = out ? &f->out : &f->in;
    uint32_t *ref = w->ref + (size_t) piece->buffer * f->piece_pages;
    const int32_t *rows = g->m.tables
                          + (size_t) (piece->slot < 0 ? 0 : piece->slot)
                                * g->kv.heads * g->kv.view.table_len;
    const tr_cuda_kv_pages_t a = {
        .table = piece->slot < 0 ? g->m.kept : rows,
        .ref = ref,
        .n = piece->n,
        .pages = g->kv.m.size.pages,
        .flat = w->room,
        .out = out,
    };

    memcpy(ref, piece->ref, piece->n * sizeof(*ref));
    return g->device.cuda->kv_pages(&w->stream, &g->m.view, &a);
}

/* The piece is under way. */
static tr_status_t
note_flight(const tr_kv_gpu_t *g, way_t *w, uint32_t buffer, int rc)
{
    rc = rc != 0 ? rc
                 : g->device.cuda->event_record(&w->stream, w->arrived[buffer]);
    w->flying[buffer] = rc == 0;
    return status_of(rc);
}

static tr_status_t
files_out(tr_kv_cache_t *kv, tr_kv_lane_t lane, const tr_kv_piece_t *piece)
{
    const tr_kv_gpu_t *g = tr_kv_gpu(kv);
    lane_t *f = g->files[lane];
    way_t *w = &f->out;
    int rc = launch_pages(g, f, true, piece);

    if (rc == 0) {
        rc = g->device.cuda->copy(&w->stream, piece->memory, w->room,
                                  piece->n * kv->plan.page_bytes);
    }
    return note_flight(g, w, piece->buffer, rc);
}

/* ---- in ------------------------------------------------------------------- */

/* The slot's commands have been launched, and nothing of the one before is read
 * any more. */
static tr_status_t
files_begin(tr_kv_cache_t *kv, tr_kv_lane_t lane, int32_t slot,
            const int32_t *tokens, uint32_t n)
{
    tr_kv_gpu_t *g = tr_kv_gpu(kv);
    const tr_device_t *cuda = g->device.cuda;
    const tr_cuda_history_t *h = &g->device.history;
    lane_t *f = g->files[lane];
    way_t *w = &f->in;
    tr_status_t busy = TR_OK;
    int rc;

    for (uint32_t i = 0; i < BUFFERS && busy == TR_OK; i++) {
        busy = files_moved(kv, lane, false, i);
    }
    if (busy != TR_OK || g->mirror[slot].list == g->list.number) {
        return busy != TR_OK ? busy : TR_AGAIN;
    }
    rc = follow_batches(g, w);
    if (rc == 0 && h->token != NULL) {
        n = n < h->len ? n : h->len;
        memcpy(f->tokens, tokens, n * sizeof(*tokens));
        rc = cuda->copy(&w->stream, h->token + (size_t) slot * h->len,
                        f->tokens, n * sizeof(*tokens));
    }
    return status_of(rc);
}

static tr_status_t
files_in(tr_kv_cache_t *kv, tr_kv_lane_t lane, const tr_kv_piece_t *piece)
{
    const tr_kv_gpu_t *g = tr_kv_gpu(kv);
    lane_t *f = g->files[lane];
    way_t *w = &f->in;
    int rc = g->device.cuda->copy(&w->stream, w->room, piece->memory,
                                  piece->n * kv->plan.page_bytes);

    if (rc == 0) {
        rc = launch_pages(g, f, false, piece);
    }
    return note_flight(g, w, piece->buffer, rc);
}

static void
files_stop(tr_kv_cache_t *kv, tr_kv_lane_t lane)
{
    tr_kv_gpu_t *g = tr_kv_gpu(kv);
    const tr_device_t *cuda = g->device.cuda;
    way_t *w = &g->files[lane]->in;

    if (cuda->event_record(&w->stream, w->behind) != 0
        || cuda->event_follow(g->device.stream, w->behind) != 0) {
        g->failed = true; /* pages might be written that are others' */
    }
}

const tr_kv_files_t tr_kv_gpu_files = { .buffers = { TR_STORE_BUFFERS_MAX,
                                                     BUFFERS },
                                        .at_once = { AT_ONCE, CHUNKS },
                                        .turn_us = TURN_US,
                                        .readers = READERS,
                                        .chunk = CHUNK,
                                        .open = files_open,
                                        .close = files_close,
                                        .launch = files_launch,
                                        .see = files_see,
                                        .out = files_out,
                                        .begin = files_begin,
                                        .in = files_in,
                                        .moved = files_moved,
                                        .stop = files_stop };
