/*
 * Rows and steps on both sides: uncompressed rows in chunks, tokens with random
 * moves, moves that are not allowed.  See store_ops.h.
 */
#include "store_ops.h"

#include <stdio.h>
#include <stdlib.h>

const tr_stream_t store_cpu = { 1, NULL };
uint64_t store_checks, store_moved;

const tr_kv_codec_t *
store_codec(void)
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

bool
store_say(const char *what)
{
    printf("%s\n", what);
    return false;
}

bool
store_goes(const fixture_t *b, uint32_t from, uint32_t to)
{
    return tr_kv_goes(&b->plan.layout[from], &b->plan.layout[to]);
}

/* ---- append ------------------------------------------------------------- */

/* Rows of a step, on both sides; the other side may have one more sequence,
 * without a slot. */
typedef struct {
    uint32_t pos[4096], seq_row[FIXTURE_SLOTS + 2];
    int32_t slot[FIXTURE_SLOTS + 1];
    tr_rows_t host, other;
} step_rows_t;

static void
rows_make(fixture_t *b, const uint32_t *n, step_rows_t *r)
{
    uint32_t seqs = 0, rows = 0, more = random_below(2);

    for (uint32_t s = 0; s < FIXTURE_SLOTS; s++) {
        const tr_kv_seq_t *q = &b->seq[s];
        uint32_t first = q->base + b->uncompressed[s];

        if (n[s] == 0) {
            continue;
        }
        if (b->uncompressed[s] == 0 && q->n_tiers > 0 && n[s] == UINT32_MAX) {
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
                            fixture_room(sizeof(r->pos)),
                            fixture_room(sizeof(r->slot)),
                            fixture_room(sizeof(r->seq_row)) };
    fixture_put((void *) r->other.row_pos, r->pos, sizeof(r->pos));
    fixture_put((void *) r->other.seq_slot, r->slot, sizeof(r->slot));
    fixture_put((void *) r->other.seq_row, r->seq_row, sizeof(r->seq_row));
}

static void
rows_free(step_rows_t *r)
{
    fixture_room_free((void *) r->other.row_pos);
    fixture_room_free((void *) r->other.seq_slot);
    fixture_room_free((void *) r->other.seq_row);
}

/* The moves of all layers of the other side; how many it refused. */
static uint32_t
moves(fixture_t *b, step_rows_t *r)
{
    uint32_t *count = fixture_room(4), refused = 0;

    fixture_put(count, &refused, 4);
    fixture_sync(b);
    if (tr_cuda_kv_moves(&b->side->stream, &b->other, &r->other, false, count)
        != 0) {
        printf("launch: %s\n", tr_cuda_reason());
        exit(1);
    }
    fixture_get(&refused, count, 4);
    fixture_room_free(count);
    return refused;
}

/* Appends to one layer of both sides; what each of them refused.  moved: the
 * other's moves were done. */
static int
append(fixture_t *b, uint32_t layer, step_rows_t *r, bool moved,
       uint32_t *refused)
{
    uint32_t *count = fixture_room(4), zero = 0;
    fixture_input_t in;
    int rc;

    fixture_input(b, r->host.n_rows + 1, &in);
    in.other.moved = moved;
    if (in.other.type != TR_F32 && random_below(2)) {
        fixture_heads(b, r->host.n_rows + 1, &in);
        in.heads.rows = r->other.n_rows;
    }
    fixture_put(count, &zero, 4);
    fixture_sync(b);
    rc = tr_cpu_kv_append(&store_cpu, &b->host, layer, &r->host, in.k, in.v,
                          in.ld, in.other.angles == NULL ? NULL : in.angles,
                          store_codec());
    if (tr_cuda_kv_append(&b->side->stream, &b->other, layer, &r->other,
                          &in.other, count)
        != 0) {
        printf("launch: %s\n", tr_cuda_reason());
        exit(1);
    }
    fixture_get(refused, count, 4);
    fixture_room_free(count);
    if (in.other.heads != NULL && !fixture_heads_same(&in)) {
        rc = TR_KERNEL_BADARG;
    }
    fixture_input_free(&in);
    return rc;
}

static bool
append_layers(fixture_t *b, const uint32_t *n, const char *what)
{
    step_rows_t *r = malloc(sizeof(*r));
    bool ok = true, moved = random_below(2);

    rows_make(b, n, r);
    if (moved && moves(b, r) != 0) {
        ok = store_say("moves were refused");
    }
    for (uint32_t layer = 0; layer < b->host.layers && ok; layer++) {
        uint32_t refused;
        int rc = append(b, layer, r, moved, &refused);

        if (rc != 0 || refused != 0) {
            printf("%s: refused: %d, %u\n", what, rc, refused);
            ok = false;
        }
        if (!moved || layer + 1 == b->host.layers) {
            ok = ok && fixture_same(b, what);
            store_checks++;
        }
    }
    rows_free(r);
    free(r);
    return ok;
}

/* Rows at uncompressed positions: n[slot] of each. */
bool
store_uncompressed(fixture_t *b, const uint32_t *n)
{
    uint32_t per = b->plan.layout[0].tokens;

    for (uint32_t s = 0; s < FIXTURE_SLOTS; s++) {
        for (uint32_t h = 0; h < b->host.layers * b->host.kv_heads; h++) {
            for (uint32_t i = 0;
                 i < (b->uncompressed[s] + n[s] + per - 1) / per; i++) {
                fixture_page(b, fixture_row(b, s, h) + i, 0);
            }
        }
    }
    if (!append_layers(b, n, "uncompressed rows")) {
        return false;
    }
    for (uint32_t s = 0; s < FIXTURE_SLOTS; s++) {
        b->uncompressed[s] += n[s];
    }
    return true;
}

/* ---- steps -------------------------------------------------------------- */

/* Candidate of a head, perhaps; returns its tier, or -1. */
static int
choose_candidate(fixture_t *b, uint32_t s, const tr_kv_seq_t *q, int32_t *row,
                 uint32_t *count, tr_kv_move_t *m)
{
    uint32_t from = random_below(q->n_tiers), to = random_below(q->n_tiers);
    const tr_kv_layout_t *l = &b->plan.layout[q->tier_layout[to]];

    (void) s;
    if (random_below(2) || count[from] == 0
        || b->plan.layout[q->tier_layout[from]].level.by_channel) {
        return -1;
    }
    m->candidate_from = (int8_t) from;
    m->candidate_index = random_below(count[from]);
    m->candidate_to = TR_KV_NOWHERE;
    if (to != from && !l->level.by_channel
        && store_goes(b, q->tier_layout[from], q->tier_layout[to])
        && random_below(4) > 0) {
        m->candidate_to = (int8_t) to;
        m->candidate_target = count[to]++;
        fixture_page(b,
                     row
                         + tr_kv_tier_entry(&b->host, to,
                                            m->candidate_target / l->tokens),
                     q->tier_layout[to]);
    }
    return (int) from;
}

/* Who leaves a head goes to a tier, or nowhere. */
static void
choose_leave(fixture_t *b, const tr_kv_seq_t *q, int32_t *row, uint32_t *count,
             tr_kv_move_t *m, int candidate)
{
    uint32_t to = random_below(q->n_tiers), layout = q->tier_layout[to];
    const tr_kv_layout_t *l = &b->plan.layout[layout];

    m->to = TR_KV_NOWHERE;
    if ((q->window > 0 && !store_goes(b, q->window_layout, layout))
        || (l->level.by_channel
            && (m->leaves != TR_KV_CHANNEL_TOKENS
                || count[to] % TR_KV_CHANNEL_TOKENS != 0))
        || random_below(5) == 0) {
        return;
    }
    m->to = (int8_t) to;
    m->index = count[to];
    if (candidate == (int) to && m->leaves == 1) {
        m->index = m->candidate_index;
    } else {
        count[to] += m->leaves;
    }
    for (uint32_t i = 0; i < m->leaves; i++) {
        fixture_page(
            b, row + tr_kv_tier_entry(&b->host, to, (m->index + i) / l->tokens),
            layout);
    }
}

/* The moves of a slot's next token; its sequence goes on. */
static void
choose_moves(fixture_t *b, uint32_t s)
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
    for (uint32_t h = 0; h < b->host.layers * b->host.kv_heads; h++) {
        size_t head = fixture_head(b, s, h);
        tr_kv_move_t *m = &b->move[head];
        uint32_t *count = b->count + head * TR_KV_TIERS_MAX;
        int32_t *row = fixture_row(b, s, h);
        int candidate;

        *m = (tr_kv_move_t){ .to = TR_KV_STAYS,
                             .candidate_from = TR_KV_STAYS,
                             .candidate_to = TR_KV_NOWHERE,
                             .leaves = (uint8_t) leaves,
                             .leave_pos = leave_pos };
        candidate = choose_candidate(b, s, q, row, count, m);
        if (leaves > 0) {
            choose_leave(b, q, row, count, m, candidate);
        }
        if (q->window > 0) {
            fixture_page(b,
                         row + b->host.at_window
                             + tr_kv_window_entry(q, pos)
                                   / b->plan.layout[q->window_layout].tokens,
                         q->window_layout);
        }
    }
}

/* Makes a head's move one that is not allowed. */
static void
spoil(fixture_t *b, uint32_t s, size_t head)
{
    const tr_kv_seq_t *q = &b->seq[s];
    const uint32_t *count = b->count + head * TR_KV_TIERS_MAX;
    tr_kv_move_t *m = &b->move[head];
    bool goes = m->to >= 0;
    int32_t *row = b->tables + head * b->host.table_len;

    switch (random_below(7)) {
    case 0:
        if (goes && q->window > 0) { /* who never was in the ring */
            m->leave_pos = q->base - 1;
            return;
        }
        break;
    case 1:
        if (goes && q->window > 0 && q->base - 1 > q->window) {
            m->leave_pos = q->base - 2 - q->window; /* who has left it */
            return;
        }
        break;
    case 2:
        if (goes) {
            m->index = count[m->to];
            return;
        }
        break;
    case 3:
        if (m->candidate_from >= 0 && m->candidate_to >= 0) {
            m->candidate_target = count[m->candidate_to];
            return;
        }
        break;
    case 4:
        if (q->window > 0) { /* no page for the token */
            uint32_t slot = tr_kv_window_entry(q, q->base - 1);

            row[b->host.at_window
                + slot / b->plan.layout[q->window_layout].tokens] = -1;
            return;
        }
        break;
    case 5:
        m->to = (int8_t) q->n_tiers;
        m->leaves = 1;
        return;
    }
    m->candidate_from = 5;
}

/* One head's move is spoilt: it alone is left as it is. */
static bool
refuse_append(fixture_t *b, const uint32_t *n, uint32_t s)
{
    size_t head = fixture_head(b, s,
                               random_below(b->host.kv_heads)); /* layer 0 */
    size_t bytes = b->pages * b->host.page_bytes;
    size_t length = b->host.table_len * sizeof(int32_t);
    int32_t *row = b->tables + head * b->host.table_len, *pages;
    tr_kv_move_t good = b->move[head];
    step_rows_t *r = malloc(sizeof(*r));
    uint8_t *pool = malloc(bytes), *before = malloc(bytes);
    uint32_t refused = 0;
    bool ok = true;

    pages = malloc(length);
    memcpy(pages, row, length);
    fixture_get(before, b->other.pool, bytes);
    spoil(b, s, head);
    rows_make(b, n, r);
    if (random_below(2)) {
        refused = moves(b, r);
    } else {
        ok = append(b, 0, r, false, &refused) == TR_KERNEL_BADARG;
    }
    fixture_get(pool, b->other.pool, bytes);
    ok = ok && refused == 1;
    for (uint32_t i = 0; i < b->host.table_len; i++) {
        size_t at = pages[i] * b->host.page_bytes;

        ok = ok
             && (pages[i] < 0
                 || memcmp(pool + at, before + at, b->host.page_bytes) == 0);
    }
    memcpy(row, pages, length);
    b->move[head] = good;
    fixture_put(b->other.pool, b->host.pool, bytes);
    rows_free(r);
    free(r);
    free(pages);
    free(pool);
    free(before);
    return ok ? true : store_say("a move that is not allowed was done");
}

/* A step: compressed sequences get a token with its moves, others a row. */
bool
store_step(fixture_t *b)
{
    uint32_t n[FIXTURE_SLOTS] = { 0 }, uncompressed[FIXTURE_SLOTS] = { 0 };
    bool some = false;

    for (uint32_t s = 0; s < FIXTURE_SLOTS; s++) {
        if (b->seq[s].n_tiers > 0 && b->uncompressed[s] == 0
            && random_below(5) > 0) {
            choose_moves(b, s);
            n[s] = UINT32_MAX;
            some = true;
        } else {
            uncompressed[s] = random_below(2);
        }
    }
    for (uint32_t s = 0; s < FIXTURE_SLOTS && some; s++) {
        if (n[s] != 0 && random_below(12) == 0 && !refuse_append(b, n, s)) {
            return false;
        }
    }
    if (some && !append_layers(b, n, "step")) {
        return false;
    }
    return random_below(8) > 0 || store_uncompressed(b, uncompressed);
}
