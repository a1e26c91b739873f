/*
 * What writes the KV cache on the GPU against the CPU backend, byte for byte:
 * prompts in chunks, their compression, steps with moves and downgrades, later
 * turns, compression of what was compressed, refusals, swaps.  All levels, head
 * sizes, groups; numbers from 1e-6 to 1e4, NaN and infinities; pages that are
 * NaN throughout.
 *
 *   test_store [rounds [seed]]           on a GPU
 *   test_store emulate [rounds [seed]]   the device's code on the host
 */
#include "store_bed.h"

#include <cpu/cpu.h>
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "emulate.h"

static const tr_stream_t cpu_stream = { 1, NULL };
static uint64_t checks, moved_tokens;

static const tr_kv_codec_t *
any_codec(void)
{
    switch (random_below(3)) {
    case 1:
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c")
                   ? &tr_kv_codec_avx2
                   : &tr_kv_codec_c;
    case 2:
        return __builtin_cpu_supports("avx512f")
                       && __builtin_cpu_supports("avx512bw")
                       && __builtin_cpu_supports("avx512vl")
                   ? &tr_kv_codec_avx512
                   : &tr_kv_codec_c;
    default:
        return &tr_kv_codec_c;
    }
}

static uint32_t
any_lanes(const bed_t *b, uint32_t most)
{
    uint32_t n = random_below(3) == 0 ? most : 1 + random_below(8);

    return b->side->emulate ? n : most;
}

static bool
say(const char *what)
{
    printf("%s\n", what);
    return false;
}

/* ---- append ------------------------------------------------------------- */

/* Rows of a step, on both sides; the other side may have one more sequence,
 * without a slot. */
typedef struct {
    uint32_t pos[4096], seq_row[BED_SLOTS + 2];
    int32_t slot[BED_SLOTS + 1];
    tr_rows_t host, other;
} step_rows_t;

static void
rows_make(bed_t *b, const uint32_t *n, step_rows_t *r)
{
    uint32_t seqs = 0, rows = 0, more = random_below(2);

    for (uint32_t s = 0; s < BED_SLOTS; s++) {
        const tr_kv_seq_t *q = &b->seq[s];
        uint32_t first = q->base + b->dense[s];

        if (n[s] == 0) {
            continue;
        }
        if (b->dense[s] == 0 && q->n_lists > 0 && n[s] == UINT32_MAX) {
            first = q->base - 1; /* a step of a compressed sequence */
        }
        r->slot[seqs] = (int32_t) s;
        r->seq_row[seqs++] = rows;
        for (uint32_t i = 0; i < (n[s] == UINT32_MAX ? 1 : n[s]); i++) {
            r->pos[rows++] = first + i;
        }
    }
    r->seq_row[seqs] = rows;
    r->host = (tr_rows_t){ rows, seqs, r->pos, r->slot, r->seq_row };
    r->slot[seqs] = -1;
    r->pos[rows] = 0;
    r->seq_row[seqs + 1] = rows + 1;
    r->other = (tr_rows_t){ rows + more, seqs + more,
                            bed_room(b, sizeof(r->pos)),
                            bed_room(b, sizeof(r->slot)),
                            bed_room(b, sizeof(r->seq_row)) };
    bed_put(b, (void *) r->other.row_pos, r->pos, sizeof(r->pos));
    bed_put(b, (void *) r->other.seq_slot, r->slot, sizeof(r->slot));
    bed_put(b, (void *) r->other.seq_row, r->seq_row, sizeof(r->seq_row));
}

static void
rows_free(bed_t *b, step_rows_t *r)
{
    bed_room_free(b, (void *) r->other.row_pos);
    bed_room_free(b, (void *) r->other.seq_slot);
    bed_room_free(b, (void *) r->other.seq_row);
}

/* Appends to one layer of both sides; what each of them refused. */
static int
append(bed_t *b, uint32_t layer, step_rows_t *r, uint32_t *refused)
{
    uint32_t *count = bed_room(b, 4), zero = 0;
    bed_input_t in;
    int rc;

    bed_input(b, r->host.n_rows + 1, &in);
    bed_put(b, count, &zero, 4);
    bed_sync(b);
    rc = tr_cpu_kv_append(&cpu_stream, &b->host, layer, &r->host, in.k, in.v,
                          in.ld, in.angles, any_codec());
    if (b->side->emulate) {
        emulate_kv_append(&b->other, layer, &r->other, &in.other, count,
                          any_lanes(b, 32));
    } else if (tr_cuda_kv_append(&b->side->stream, &b->other, layer, &r->other,
                                 &in.other, count)
               != 0) {
        printf("launch: %s\n", tr_cuda_reason());
        exit(1);
    }
    bed_get(b, refused, count, 4);
    bed_room_free(b, count);
    bed_input_free(b, &in);
    return rc;
}

static bool
append_layers(bed_t *b, const uint32_t *n, const char *what)
{
    step_rows_t *r = malloc(sizeof(*r));
    bool ok = true;

    rows_make(b, n, r);
    for (uint32_t layer = 0; layer < b->host.layers && ok; layer++) {
        uint32_t refused;
        int rc = append(b, layer, r, &refused);

        if (rc != 0 || refused != 0) {
            printf("%s: refused: %d, %u\n", what, rc, refused);
            ok = false;
        }
        ok = ok && bed_same(b, what);
        checks++;
    }
    rows_free(b, r);
    free(r);
    return ok;
}

/* Rows at dense positions: n[slot] of each. */
static bool
append_dense(bed_t *b, const uint32_t *n)
{
    uint32_t per = b->plan.layout[0].tokens;

    for (uint32_t s = 0; s < BED_SLOTS; s++) {
        for (uint32_t h = 0; h < b->host.layers * b->host.lists; h++) {
            for (uint32_t i = 0; i < (b->dense[s] + n[s] + per - 1) / per;
                 i++) {
                bed_page(b, bed_row(b, s, h) + i, 0);
            }
        }
    }
    if (!append_layers(b, n, "dense rows")) {
        return false;
    }
    for (uint32_t s = 0; s < BED_SLOTS; s++) {
        b->dense[s] += n[s];
    }
    return true;
}

/* ---- compression -------------------------------------------------------- */

static bool
goes(const bed_t *b, uint32_t from, uint32_t to)
{
    return tr_kv_goes(&b->plan.layout[from], &b->plan.layout[to]);
}

/* Where a slot goes.  The window's layout is one that its tokens can have. */
static void
choose_target(const bed_t *b, uint32_t s, tr_kv_seq_t *to)
{
    const tr_kv_seq_t *from = &b->seq[s];
    uint32_t first = from->window > 0 ? from->window_from : from->base, n;
    uint32_t levels = b->plan.n - 1;

    *to = *from;
    to->base = from->base + b->dense[s];
    if (from->n_lists == 0 || random_below(2)) {
        to->n_lists = (uint8_t) (1 + random_below(levels));
        for (uint32_t l = 0; l < to->n_lists; l++) {
            to->list_layout[l] = (uint8_t) (1 + random_below(levels));
        }
    }
    to->window = random_below(4) == 0 ? 0 : 1 + random_below(80);
    to->window_layout = (uint8_t) (from->window > 0 ? from->window_layout
                                                    : 1 + random_below(levels));
    if (to->window == 0 || b->plan.layout[to->window_layout].level.by_channel) {
        to->window = 0;
        to->window_from = to->base;
        return;
    }
    n = to->base - first;
    n = n < to->window ? n : to->window;
    to->window_from = to->base - (random_below(3) ? n : random_below(n + 1));
}

/* Layout of source i of a head. */
static uint32_t
source_layout(const bed_t *b, uint32_t s, const uint32_t *have, uint32_t i,
              uint32_t *list)
{
    const tr_kv_seq_t *from = &b->seq[s];

    for (*list = 0; *list < from->n_lists; ++*list) {
        if (i < have[*list]) {
            return from->list_layout[*list];
        }
        i -= have[*list];
    }
    if (from->window > 0 && i < from->base - from->window_from) {
        return from->window_layout;
    }
    return 0;
}

/* Chooses for all sources of a head; counts what goes to each list. */
static void
choose_dest(const bed_t *b, uint32_t s, uint32_t h, const tr_kv_seq_t *to,
            int8_t *dest, uint32_t *count)
{
    const tr_kv_seq_t *from = &b->seq[s];
    const uint32_t *have = b->count + bed_head(b, s, h) * TR_KV_LISTS_MAX;
    uint32_t listed = 0, all, pos, keep = random_below(3), drop;

    for (uint32_t l = 0; l < from->n_lists; l++) {
        listed += have[l];
    }
    pos = from->window > 0 ? from->window_from : from->base;
    all = listed + to->base - pos;
    drop = random_below(2) ? 0 : random_below(100);
    memset(count, 0, 4 * TR_KV_LISTS_MAX);
    for (uint32_t i = 0; i < all; i++) {
        uint32_t list, layout = source_layout(b, s, have, i, &list);
        uint32_t want = keep ? (list + keep) % to->n_lists
                             : random_below(to->n_lists);

        dest[i] = TR_KV_NOWHERE;
        if (to->window > 0 && i >= listed
            && pos + (i - listed) >= to->window_from) {
            dest[i] = TR_KV_WINDOW;
        } else if (random_below(100) >= drop
                   && goes(b, layout, to->list_layout[want])) {
            dest[i] = (int8_t) want;
            count[want]++;
        }
    }
    for (uint32_t l = 0; l < to->n_lists; l++) { /* whole tiles by channel */
        uint32_t over = count[l] % TR_KV_CHANNEL_TOKENS;

        if (!b->plan.layout[to->list_layout[l]].level.by_channel) {
            continue;
        }
        count[l] -= over;
        for (uint32_t i = all; over > 0; i--) {
            if (dest[i - 1] == (int8_t) l) {
                dest[i - 1] = TR_KV_NOWHERE;
                over--;
            }
        }
    }
}

/* Pages for what a head will hold. */
static void
target_pages(bed_t *b, const tr_kv_seq_t *to, int32_t *row,
             const uint32_t *count)
{
    memset(row, 0xff, b->host.table_len * 4ul);
    for (uint32_t l = 0; l < to->n_lists; l++) {
        uint32_t layout = to->list_layout[l];
        uint32_t per = b->plan.layout[layout].tokens;

        for (uint32_t i = 0; i < (count[l] + per - 1) / per; i++) {
            bed_page(b, row + tr_kv_list_entry(&b->host, l, i), layout);
        }
    }
    for (uint32_t p = to->window_from; to->window && p < to->base; p++) {
        uint32_t per = b->plan.layout[to->window_layout].tokens;

        bed_page(b, row + b->host.at_window + p % to->window / per,
                 to->window_layout);
    }
}

/* One slot's job on both sides. */
typedef struct {
    tr_kv_seq_t to;
    tr_kv_compress_t host, other;
    int32_t *tables;
    int8_t *dest;
    uint32_t *count; /* [heads][TR_KV_LISTS_MAX] */
} job_t;

static void
job_make(bed_t *b, uint32_t s, job_t *j)
{
    uint32_t heads = b->host.layers * b->host.lists, len = 4 * b->max_len;
    tr_kv_seq_t *to = bed_room(b, sizeof(*to));

    choose_target(b, s, &j->to);
    j->tables = malloc((size_t) heads * b->host.table_len * 4);
    j->dest = malloc((size_t) heads * len);
    j->count = malloc((size_t) heads * TR_KV_LISTS_MAX * 4);
    memset(j->dest, 77, (size_t) heads * len);
    for (uint32_t h = 0; h < heads; h++) {
        uint32_t *count = j->count + h * TR_KV_LISTS_MAX;

        choose_dest(b, s, h, &j->to, j->dest + (size_t) h * len, count);
        target_pages(b, &j->to, j->tables + (size_t) h * b->host.table_len,
                     count);
    }
    j->host = (tr_kv_compress_t){ .slot = (int32_t) s,
                                  .n_dense = b->dense[s],
                                  .to = &j->to,
                                  .to_tables = j->tables,
                                  .dest = j->dest,
                                  .dest_len = len,
                                  .observe = random_below(2)
                                                 ? 0
                                                 : 1 + random_below(64) };
    j->other = j->host;
    j->other.to = to;
    j->other.to_tables = bed_room(b, (size_t) heads * b->host.table_len * 4);
    j->other.dest = bed_room(b, (size_t) heads * len);
}

static void
job_send(bed_t *b, const job_t *j)
{
    uint32_t heads = b->host.layers * b->host.lists;

    bed_put(b, (void *) j->other.to, &j->to, sizeof(j->to));
    bed_put(b, (void *) j->other.to_tables, j->tables,
            (size_t) heads * b->host.table_len * 4);
    bed_put(b, (void *) j->other.dest, j->dest, heads * j->host.dest_len);
}

/* What the slot is afterwards; its old pages come back. */
static void
job_install(bed_t *b, uint32_t s, job_t *j)
{
    for (uint32_t h = 0; h < b->host.layers * b->host.lists; h++) {
        int32_t *row = bed_row(b, s, h);

        bed_give_back(b, row, 0, b->host.table_len);
        memcpy(row, j->tables + (size_t) h * b->host.table_len,
               b->host.table_len * 4ul);
        memcpy(b->count + bed_head(b, s, h) * TR_KV_LISTS_MAX,
               j->count + h * TR_KV_LISTS_MAX, 4 * TR_KV_LISTS_MAX);
        for (uint32_t l = 0; l < j->to.n_lists; l++) {
            moved_tokens += j->count[h * TR_KV_LISTS_MAX + l];
        }
    }
    b->seq[s] = j->to;
    b->dense[s] = 0;
}

static void
job_free(bed_t *b, job_t *j)
{
    free(j->tables);
    free(j->dest);
    free(j->count);
    bed_room_free(b, (void *) j->other.to);
    bed_room_free(b, (void *) j->other.to_tables);
    bed_room_free(b, (void *) j->other.dest);
}

static void
compress_other(bed_t *b, const tr_kv_compress_t *jobs, uint32_t n,
               uint32_t *refused)
{
    tr_kv_compress_t *there = bed_room(b, n * sizeof(*jobs));
    uint32_t *flags = bed_room(b, n * 4ul), max_len = 4 * b->max_len;
    void *work;

    bed_put(b, there, jobs, n * sizeof(*jobs));
    bed_sync(b);
    if (b->side->emulate) {
        emulate_kv_compress(&b->other, there, n, max_len, flags,
                            any_lanes(b, 32));
    } else {
        work = bed_room(b, tr_cuda_kv_compress_work(&b->other, n, max_len));
        if (tr_cuda_kv_compress(&b->side->stream, &b->other, there, n, max_len,
                                flags, work)
            != 0) {
            printf("launch: %s\n", tr_cuda_reason());
            exit(1);
        }
        cuda_ok(cudaDeviceSynchronize(), "compress");
        bed_room_free(b, work);
    }
    bed_get(b, refused, flags, n * 4ul);
    bed_room_free(b, there);
    bed_room_free(b, flags);
}

/* Spoils a job in a way that nobody may follow. */
static void
job_spoil(bed_t *b, job_t *j)
{
    uint32_t h = random_below(b->host.layers * b->host.lists);
    int32_t *row = j->tables + (size_t) h * b->host.table_len;

    switch (random_below(3)) {
    case 0:
        memset(j->dest + h * j->host.dest_len, 9, j->host.dest_len);
        break;
    case 1:
        memset(row, 0xff, b->host.table_len * 4ul);
        break;
    default:
        j->to.base++;
    }
}

/* A job that is refused leaves everything as it is. */
static bool
refuse_compress(bed_t *b, uint32_t s, const job_t *good)
{
    uint32_t heads = b->host.layers * b->host.lists, refused = 9;
    size_t tables = (size_t) heads * b->host.table_len * 4;
    size_t dest = heads * good->host.dest_len;
    job_t j = *good;
    int rc;
    bool ok;

    if (b->dense[s] == 0) { /* perhaps there is nothing to refuse */
        return true;
    }
    j.tables = malloc(tables);
    j.dest = malloc(dest);
    memcpy(j.tables, good->tables, tables);
    memcpy(j.dest, good->dest, dest);
    job_spoil(b, &j);
    j.host.to = &j.to;
    j.host.to_tables = j.tables;
    j.host.dest = j.dest;
    rc = tr_cpu_kv_compress(&cpu_stream, &b->host, &j.host, any_codec());
    if (rc == 0) { /* every token of that head was dropped */
        printf("spoilt, yet possible: not looked at\n");
        exit(2);
    }
    job_send(b, &j);
    compress_other(b, &j.other, 1, &refused);
    ok = refused == 1 && bed_same(b, "refused compression");
    free(j.tables);
    free(j.dest);
    job_send(b, good);
    return ok ? true : say("a compression that is not allowed was done");
}

/* Could the slot's row be emptied and yet be allowed? */
static bool
job_needs_pages(const bed_t *b, const job_t *j)
{
    if (j->to.window > 0 && j->to.window_from < j->to.base) {
        return true;
    }
    for (uint32_t h = 0; h < b->host.layers * b->host.lists; h++) {
        uint32_t n = 0;

        for (uint32_t l = 0; l < j->to.n_lists; l++) {
            n += j->count[h * TR_KV_LISTS_MAX + l];
        }
        if (n == 0) {
            return false;
        }
    }
    return true;
}

/* Compresses all slots of `which`. */
static bool
compress(bed_t *b, uint32_t which)
{
    tr_kv_compress_t other[BED_SLOTS + 1];
    uint32_t slot[BED_SLOTS], n = 0, refused[BED_SLOTS + 1], more;
    job_t job[BED_SLOTS];
    bool ok = true;

    for (uint32_t s = 0; s < BED_SLOTS; s++) {
        if (which >> s & 1) {
            slot[n] = s;
            job_make(b, s, &job[n]);
            job_send(b, &job[n]);
            other[n] = job[n].other;
            n++;
        }
    }
    other[n] = (tr_kv_compress_t){ .slot = -1 };
    more = random_below(2);
    if (n > 0 && random_below(2) && job_needs_pages(b, &job[0])) {
        ok = refuse_compress(b, slot[0], &job[0]);
    }
    for (uint32_t i = 0; i < n && ok; i++) {
        int rc = tr_cpu_kv_compress(&cpu_stream, &b->host, &job[i].host,
                                    any_codec());

        ok = rc == 0 ? true : say("the CPU refused a compression");
    }
    if (ok) {
        compress_other(b, other, n + more, refused);
    }
    for (uint32_t i = 0; i < n + more && ok; i++) {
        ok = refused[i] == 0 ? true : say("a compression was refused");
    }
    ok = ok && bed_same(b, "compression");
    checks++;
    for (uint32_t i = 0; i < n; i++) {
        job_install(b, slot[i], &job[i]);
        job_free(b, &job[i]);
    }
    return ok;
}

/* ---- steps -------------------------------------------------------------- */

/* Victim of a head, perhaps; returns its list, or -1. */
static int
choose_victim(bed_t *b, uint32_t s, const tr_kv_seq_t *q, int32_t *row,
              uint32_t *count, tr_kv_move_t *m)
{
    uint32_t from = random_below(q->n_lists), to = random_below(q->n_lists);
    const tr_kv_layout_t *l = &b->plan.layout[q->list_layout[to]];

    (void) s;
    if (random_below(2) || count[from] == 0
        || b->plan.layout[q->list_layout[from]].level.by_channel) {
        return -1;
    }
    m->victim_from = (int8_t) from;
    m->victim_index = random_below(count[from]);
    m->victim_to = TR_KV_NOWHERE;
    if (to != from && !l->level.by_channel
        && goes(b, q->list_layout[from], q->list_layout[to])
        && random_below(4) > 0) {
        m->victim_to = (int8_t) to;
        m->victim_target = count[to]++;
        bed_page(b,
                 row
                     + tr_kv_list_entry(&b->host, to,
                                        m->victim_target / l->tokens),
                 q->list_layout[to]);
    }
    return (int) from;
}

/* Who leaves a head goes to a list, or nowhere. */
static void
choose_leave(bed_t *b, const tr_kv_seq_t *q, int32_t *row, uint32_t *count,
             tr_kv_move_t *m, int victim)
{
    uint32_t to = random_below(q->n_lists), layout = q->list_layout[to];
    const tr_kv_layout_t *l = &b->plan.layout[layout];

    m->to = TR_KV_NOWHERE;
    if ((q->window > 0 && !goes(b, q->window_layout, layout))
        || (l->level.by_channel
            && (m->leaves != TR_KV_CHANNEL_TOKENS
                || count[to] % TR_KV_CHANNEL_TOKENS != 0))
        || random_below(5) == 0) {
        return;
    }
    m->to = (int8_t) to;
    m->index = count[to];
    if (victim == (int) to && m->leaves == 1) {
        m->index = m->victim_index;
    } else {
        count[to] += m->leaves;
    }
    for (uint32_t i = 0; i < m->leaves; i++) {
        bed_page(
            b, row + tr_kv_list_entry(&b->host, to, (m->index + i) / l->tokens),
            layout);
    }
}

/* The moves of a slot's next token; its sequence goes on. */
static void
choose_moves(bed_t *b, uint32_t s)
{
    tr_kv_seq_t *q = &b->seq[s];
    uint32_t pos = q->base++, leaves = 0, leave_pos = q->window_from;

    if (q->window == 0) {
        leaves = 1;
        q->window_from = q->base;
    } else if (pos - q->window_from == q->window || random_below(8) == 0) {
        uint32_t held = pos - q->window_from;

        leaves = held >= TR_KV_CHANNEL_TOKENS && random_below(4) == 0
                     ? TR_KV_CHANNEL_TOKENS
                     : held > 0;
        q->window_from += leaves;
    }
    for (uint32_t h = 0; h < b->host.layers * b->host.lists; h++) {
        size_t head = bed_head(b, s, h);
        tr_kv_move_t *m = &b->move[head];
        uint32_t *count = b->count + head * TR_KV_LISTS_MAX;
        int32_t *row = bed_row(b, s, h);
        int victim;

        *m = (tr_kv_move_t){ .to = TR_KV_STAYS,
                             .victim_from = TR_KV_STAYS,
                             .victim_to = TR_KV_NOWHERE,
                             .leaves = (uint8_t) leaves,
                             .leave_pos = leave_pos };
        victim = choose_victim(b, s, q, row, count, m);
        if (leaves > 0) {
            choose_leave(b, q, row, count, m, victim);
        }
        if (q->window > 0) {
            bed_page(b,
                     row + b->host.at_window
                         + pos % q->window
                               / b->plan.layout[q->window_layout].tokens,
                     q->window_layout);
        }
    }
}

/* One head's move is spoilt: it alone is left as it is. */
static bool
refuse_append(bed_t *b, const uint32_t *n, uint32_t s)
{
    size_t head = bed_head(b, s, random_below(b->host.lists)); /* layer 0 */
    size_t bytes = b->pages * b->host.page_bytes;
    const int32_t *row = b->tables + head * b->host.table_len;
    tr_kv_move_t good = b->move[head];
    step_rows_t *r = malloc(sizeof(*r));
    uint8_t *pool = malloc(bytes), *before = malloc(bytes);
    uint32_t refused = 0;
    bool ok;
    int rc;

    bed_get(b, before, b->other.pool, bytes);
    if (random_below(2)) {
        b->move[head].victim_from = 5;
    } else {
        b->move[head].to = (int8_t) (b->seq[s].n_lists);
        b->move[head].leaves = 1;
    }
    rows_make(b, n, r);
    rc = append(b, 0, r, &refused);
    bed_get(b, pool, b->other.pool, bytes);
    ok = rc == TR_KERNEL_BADARG && refused == 1;
    for (uint32_t i = 0; i < b->host.table_len; i++) {
        size_t at = row[i] * b->host.page_bytes;

        ok = ok
             && (row[i] < 0
                 || memcmp(pool + at, before + at, b->host.page_bytes) == 0);
    }
    b->move[head] = good;
    bed_put(b, b->other.pool, b->host.pool, bytes);
    rows_free(b, r);
    free(r);
    free(pool);
    free(before);
    return ok ? true : say("a move that is not allowed was done");
}

/* A step: compressed sequences get a token with its moves, others a row. */
static bool
step(bed_t *b)
{
    uint32_t n[BED_SLOTS] = { 0 }, dense[BED_SLOTS] = { 0 };
    bool some = false;

    for (uint32_t s = 0; s < BED_SLOTS; s++) {
        if (b->seq[s].n_lists > 0 && b->dense[s] == 0 && random_below(5) > 0) {
            choose_moves(b, s);
            n[s] = UINT32_MAX;
            some = true;
        } else {
            dense[s] = random_below(2);
        }
    }
    for (uint32_t s = 0; s < BED_SLOTS && some; s++) {
        if (n[s] != 0 && random_below(12) == 0 && !refuse_append(b, n, s)) {
            return false;
        }
    }
    if (some && !append_layers(b, n, "step")) {
        return false;
    }
    return random_below(8) > 0 || append_dense(b, dense);
}

/* ---- swap --------------------------------------------------------------- */

/* A slot's entries in order of kv_runs (engine/kv_internal.h). */
static uint32_t
slot_entries(bed_t *b, uint32_t s, uint32_t dense_pages, int32_t **entry)
{
    const tr_kv_seq_t *q = &b->seq[s];
    uint32_t n = 0;

    for (uint32_t h = 0; h < b->host.layers * b->host.lists; h++) {
        const uint32_t *count = b->count + bed_head(b, s, h) * TR_KV_LISTS_MAX;
        int32_t *row = bed_row(b, s, h);

        for (uint32_t i = 0; i < dense_pages; i++) {
            entry[n++] = row + i;
        }
        if (q->window > 0) {
            uint32_t slots = q->base < q->window ? q->base : q->window;
            uint32_t per = b->plan.layout[q->window_layout].tokens;

            for (uint32_t i = 0; i < (slots + per - 1) / per; i++) {
                entry[n++] = row + b->host.at_window + i;
                bed_page(b, entry[n - 1], q->window_layout);
            }
        }
        for (uint32_t l = 0; l < q->n_lists; l++) {
            uint32_t per = b->plan.layout[q->list_layout[l]].tokens;

            for (uint32_t i = 0; i < (count[l] + per - 1) / per; i++) {
                entry[n++] = row + tr_kv_list_entry(&b->host, l, i);
            }
        }
    }
    return n;
}

#define MARK 0x40000000

/* What swap_run works on. */
typedef struct {
    uint32_t slot, n, dense_pages;
    int32_t **entry;
    int32_t *given; /* [n] what the device says */
    uint8_t *host;  /* pinned, n pages */
    void *work, *taken, *there;
    uint32_t *pages;
} swap_t;

/* Moves the pages to ids `to` of the other pool. */
static bool
swap_run(bed_t *b, swap_t *x, const int32_t *to, bool out)
{
    size_t heads = (size_t) BED_SLOTS * b->host.layers * b->host.lists;
    int32_t *tables = malloc(heads * b->host.table_len * 4);
    uint32_t n = 0;
    bool ok = true;
    tr_cuda_swap_t swap = { (int32_t) x->slot,
                            x->dense_pages,
                            x->n,
                            x->taken,
                            x->there,
                            out ? b->other.pool : x->host,
                            out ? x->host : b->other.pool,
                            out ? MARK : 0,
                            MARK };

    bed_put(b, x->taken, to, x->n * 4ul);
    if (tr_cuda_kv_swap(&b->side->stream, &b->other,
                        (int32_t *) b->other.tables, &swap, x->pages, x->work)
        != 0) {
        printf("launch: %s\n", tr_cuda_reason());
        exit(1);
    }
    cuda_ok(cudaDeviceSynchronize(), "swap");
    bed_get(b, &n, x->pages, 4);
    bed_get(b, x->given, x->there, x->n * 4ul);
    bed_get(b, tables, b->other.tables, heads * b->host.table_len * 4);
    ok = n == x->n;
    for (uint32_t i = 0; i < x->n && ok; i++) {
        int32_t was = *x->entry[i] & ~MARK;

        *x->entry[i] = to[i] | (out ? MARK : 0);
        ok = x->given[i] == was;
    }
    ok = ok && memcmp(tables, b->tables, heads * b->host.table_len * 4) == 0;
    free(tables);
    return ok ? true : say("pages or tables of a swap are wrong");
}

/* A slot goes to the host and comes back to other pages. */
static bool
swap(bed_t *b, uint32_t s)
{
    size_t bytes = b->host.page_bytes;
    swap_t x = { .slot = s };
    int32_t *image, *back;
    bool ok;

    if (b->side->emulate) {
        return true;
    }
    x.entry = malloc(b->pages * sizeof(*x.entry));
    x.dense_pages = (b->dense[s] + b->plan.layout[0].tokens - 1)
                    / b->plan.layout[0].tokens;
    x.n = slot_entries(b, s, x.dense_pages, x.entry);
    if (x.n == 0 || x.n > b->n_free) {
        free(x.entry);
        return true;
    }
    bed_sync(b);
    x.given = malloc(x.n * 4ul);
    image = malloc(x.n * 4ul);
    back = malloc(x.n * 4ul);
    for (uint32_t i = 0; i < x.n; i++) { /* any place in host memory */
        image[i] = (int32_t) (x.n - 1 - i);
        back[i] = b->free_page[--b->n_free];
        b->layout_of[back[i]] = b->layout_of[*x.entry[i]];
        /* what the CPU's side has there afterwards */
        memcpy(b->host.pool + back[i] * bytes,
               b->host.pool + *x.entry[i] * bytes, bytes);
    }
    x.work = bed_room(b, tr_cuda_kv_swap_work(&b->other));
    x.taken = bed_room(b, x.n * 4ul);
    x.there = bed_room(b, x.n * 4ul);
    x.pages = bed_room(b, 4);
    cuda_ok(cudaHostAlloc((void **) &x.host, x.n * bytes, 0), "host memory");
    ok = swap_run(b, &x, image, true);
    for (uint32_t i = 0; i < x.n && ok; i++) {
        ok = b->nan_in
             || memcmp(x.host + image[i] * bytes,
                       b->host.pool + back[i] * bytes, bytes)
                    == 0;
        b->free_page[b->n_free++] = x.given[i];
    }
    ok = ok && swap_run(b, &x, back, false) && bed_same(b, "swap");
    checks++;
    cuda_ok(cudaFreeHost(x.host), "host memory");
    bed_room_free(b, x.work);
    bed_room_free(b, x.taken);
    bed_room_free(b, x.there);
    bed_room_free(b, x.pages);
    free(x.entry);
    free(x.given);
    free(image);
    free(back);
    return ok ? true : say("a swap did not bring back what went out");
}

/* ---- rounds ------------------------------------------------------------- */

/* Scores that attention would have left, on both sides. */
static void
score_dense(bed_t *b)
{
    const tr_kv_layout_t *l = &b->plan.layout[0];

    for (uint32_t s = 0; s < BED_SLOTS && l->score; s++) {
        for (uint32_t h = 0; h < b->host.layers * b->host.lists; h++) {
            for (uint32_t i = 0; i < b->dense[s]; i++) {
                uint8_t *page = tr_kv_page_at(&b->host,
                                              bed_row(b, s, h)[i / l->tokens]);
                float x[2] = { (float) random_unit(), (float) random_unit() };

                memcpy(page + l->score + i % l->tokens * 4, &x[0], 4);
                memcpy(page + l->recent + i % l->tokens * 4, &x[1], 4);
            }
        }
    }
    bed_put(b, b->other.pool, b->host.pool, b->pages * b->host.page_bytes);
}

static bool
turn(bed_t *b)
{
    uint32_t n[BED_SLOTS], chunks = 1 + random_below(3), steps;
    uint32_t room = b->max_len / 6;

    for (uint32_t i = 0; i < chunks; i++) {
        for (uint32_t s = 0; s < BED_SLOTS; s++) {
            n[s] = random_below(3) == 0 ? 0 : random_below(room);
        }
        if (!append_dense(b, n)) {
            return false;
        }
    }
    score_dense(b);
    if (!compress(b, 1 + random_below(15))) {
        return false;
    }
    steps = random_below(b->max_len / 6);
    for (uint32_t i = 0; i < steps; i++) {
        if (!step(b)) {
            return false;
        }
    }
    return swap(b, random_below(BED_SLOTS));
}

static bool
one_round(const bed_side_t *side)
{
    bed_t b;
    bool ok;

    bed_open(&b, side);
    ok = turn(&b) && turn(&b);
    if (!ok) {
        bed_describe(&b);
    }
    bed_close(&b);
    return ok;
}

int
main(int argc, char **argv)
{
    bed_side_t side = { .emulate = argc > 1
                                   && strcmp(argv[1], "emulate") == 0 };
    uint32_t rounds, failed = 0;
    uint64_t seed;

    argc -= side.emulate;
    argv += side.emulate;
    rounds = argc > 1 ? (uint32_t) atoi(argv[1]) : 32;
    seed = argc > 2 ? strtoull(argv[2], NULL, 10) : (uint64_t) time(NULL);
    if (!side.emulate) {
        if (tr_cuda_open(0, &side.device) != 0) {
            printf("no device: %s\n", tr_cuda_reason());
            return 77;
        }
        side.stream.device = &side.device;
        cuda_ok(cudaStreamCreate((cudaStream_t *) &side.stream.stream),
                "stream");
    }
    for (uint32_t r = 0; r < rounds; r++) {
        random_seed(seed + r);
        if (!one_round(&side)) {
            printf("FAILED: test_store %s1 %llu\n",
                   side.emulate ? "emulate " : "",
                   (unsigned long long) (seed + r));
            failed++;
        }
    }
    printf("store%s: %u rounds from seed %llu, %u failed; %llu comparisons of "
           "all pages, %llu tokens compressed\n",
           side.emulate ? " (emulated)" : "", rounds, (unsigned long long) seed,
           failed, (unsigned long long) checks,
           (unsigned long long) moved_tokens);
    return failed != 0;
}
