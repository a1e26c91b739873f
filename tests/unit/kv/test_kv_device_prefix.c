/*
 * Reuse of prefixes in a device's KV cache, on a software device that runs late
 * (tests/soft), against plain lists of tokens: up to two batches are under way
 * while sequences come, find what others computed, cut it, fork, end, are aborted
 * with rows of theirs under way, in a pool so small that nearly everybody who
 * comes evicts.  Each token writes itself into the pages of every head and into
 * the history, in the order of the stream; whenever the device has caught up, what
 * a sequence has must be there, whoever computed it.  Beside them run compressed
 * sequences, which share nothing, or find and cut what others of them left
 * (kv_kept.c): of a head's numbers, which are all the same, the zero of a token's
 * codes says which it is.  Some worlds have files, in which more is found than the
 * pool can keep, also by the world behind them, or a shelf in pinned memory.  The books are sound after each
 * turn, no row is refused a page that was granted, and at the end none is missing.
 *
 *   TR_PREFIX_OPS=N   turns (default 4,000)
 *   TR_PREFIX_SEED=N  the seed that a failure printed
 */
#include "tests/unit/fixtures/kv_device_fixture.h"
#include "tests/unit/fixtures/kept_fixture.h"
#include "tests/unit/fixtures/prefix_actor.h"

#include <time.h>

#define LAYERS FIXTURE_LAYERS
#define KV_HEADS FIXTURE_KV_HEADS
#define HEADS (LAYERS * KV_HEADS)
#define DIM FIXTURE_DIM
#define SLOTS 8u
#define ROWS 96u
#define TEXTS 5u
#define BALLAST (1u << 22)
#define ROW (2 * KV_HEADS * DIM) /* numbers of a row and layer */

typedef struct {
    uint32_t *pos, *seq_row;
    int32_t *token;
    float *numbers, *angles;
    void *event;
    struct {
        uint32_t who;
        uint64_t life;
        tr_kv_device_row_t row;
    } item[SLOTS];
    uint32_t n, rows;
} flight_t;

typedef struct {
    tr_kv_cache_t *kv;
    tr_kv_gpu_t *g;
    tr_cuda_stream_t stream;
    tr_kv_policy_t *full, *tight;
    bool cuts; /* `tight` is reused */
    uint32_t page_tokens, slots;
    tr_kv_cache_t seen; /* as a cache of the host's */
    /* what the device has, when it has caught up */
    uint8_t *seen_pool;
    int32_t *seen_tables, *seen_history;
    tr_kv_seq_t *seen_seq;
    uint32_t *seen_count;
    /* on the device */
    int32_t *history;
    uint32_t *pos, *seq_row;
    float *numbers, *angles;
    flight_t flight[TR_KV_IN_FLIGHT];
    actor_t who[SLOTS];
    int32_t text[TEXTS][LONGEST]; /* what prompts begin with */
    uint64_t lives, now, found, n_cuts, forks, ends, aborts, verified;
    uint64_t copies, kept, tight_verified;
    const char *dir; /* of files; NULL: none */
    uint32_t shelf;  /* blocks of it, 0: none */
    uint8_t *ballast;
    tr_store_stats_t files;
    tr_shelf_stats_t on_shelf;
} world_t;

/* Is more found than the pool can keep? */
static bool
elsewhere(const world_t *w)
{
    return w->dir != NULL || w->shelf != 0;
}

/* ---- the device --------------------------------------------------------- */

static size_t
table_bytes(const world_t *w)
{
    return (size_t) w->slots * HEADS * w->kv->view.table_len * sizeof(int32_t);
}

/* The arrays into which look() copies. */
static void
make_seen(world_t *w)
{
    w->seen_pool = cuda->pin(tr_kv_pages(w->kv) * tr_kv_page_bytes(w->kv));
    w->seen_tables = cuda->pin(table_bytes(w));
    w->seen_seq = cuda->pin(w->slots * sizeof(*w->seen_seq));
    w->seen_count = cuda->pin((size_t) w->slots * HEADS * TR_KV_TIERS_MAX
                              * sizeof(*w->seen_count));
    w->seen = *w->kv;
    w->seen.m = w->g->m;
    w->seen.m.tables = w->seen_tables;
    w->seen.m.seq = w->seen_seq;
    w->seen.m.count = w->seen_count;
    w->seen.view = w->g->m.view;
    w->seen.view.layout = w->seen.plan.layout;
    w->seen.view.pool = w->seen.m.view.pool = w->seen_pool;
}

static const uint8_t identity[TR_STORE_ID_BYTES] = "numbers";

static void
make_cache(world_t *w, uint32_t blocks)
{
    const tr_kv_policy_t *policies[2] = { w->full, w->tight };
    tr_kv_config_t c = { .layers = LAYERS,
                         .kv_heads = KV_HEADS,
                         .head_dim = DIM,
                         .slots = SLOTS + (w->dir != NULL)
                                  + (w->shelf != 0 ? TR_KV_SHELF_GETS : 0),
                         .max_len = LONGEST,
                         .memory = 8u << 20,
                         .policies = policies,
                         .n_policies = 2,
                         .reuse = true,
                         .reuse_compressed = w->cuts };
    tr_kv_device_t d = { .cuda = cuda,
                         .stream = &w->stream,
                         .max_seqs = SLOTS,
                         .max_prompts = 2,
                         .history = { NULL, LONGEST } };
    tr_error_t err = { 0 };
    uint64_t page, rest;

    w->slots = tr_kv_all_slots(&c);
    w->history = cuda->alloc(w->slots * LONGEST * sizeof(int32_t));
    w->seen_history = cuda->pin(w->slots * LONGEST * sizeof(int32_t));
    d.history.token = w->history;
    assert_int_equal(tr_kv_device_create(&c, &d, &w->kv, &err), TR_OK);
    page = tr_kv_page_bytes(w->kv);
    rest = c.memory - tr_kv_pages(w->kv) * page;
    tr_kv_cache_free(w->kv);
    c.memory = rest + blocks * HEADS * page;
    if (tr_kv_device_create(&c, &d, &w->kv, &err) != TR_OK) {
        fail_msg("%s", err.text);
    }
    w->g = tr_kv_gpu(w->kv);
    assert_true(tr_kv_reuses(w->kv, w->full));
    assert_true(tr_kv_reuses(w->kv, w->tight) == w->cuts);
    w->page_tokens = w->kv->view.layout[0].tokens;
    make_seen(w);
    if (w->shelf != 0
        && tr_kv_shelf_open(w->kv, (uint64_t) w->shelf * HEADS * page, &err)
               != TR_OK) {
        fail_msg("%s", err.text);
    }
    if (w->dir != NULL
        && tr_kv_store_open(w->kv, w->dir, 4 << 20, 0, identity, &err)
               != TR_OK) {
        fail_msg("%s", err.text);
    }
}

static void
look(world_t *w)
{
    const tr_cuda_stream_t *s = &w->stream;

    cuda->copy(s, w->seen_pool, w->g->pool,
               tr_kv_pages(w->kv) * tr_kv_page_bytes(w->kv));
    cuda->copy(s, w->seen_tables, w->g->m.tables, table_bytes(w));
    cuda->copy(s, w->seen_history, w->history,
               w->slots * LONGEST * sizeof(int32_t));
    cuda->copy(s, w->seen_seq, w->g->m.seq, w->slots * sizeof(*w->seen_seq));
    cuda->copy(s, w->seen_count, w->g->m.count,
               (size_t) w->slots * HEADS * TR_KV_TIERS_MAX
                   * sizeof(*w->seen_count));
    assert_int_equal(cuda->stream_wait(s), 0);
}

/* spec: of the compressed ones, which are then reused; NULL: they are not. */
static void
create(world_t *w, uint32_t blocks, const char *spec)
{
    size_t numbers = LAYERS * ROWS * ROW * sizeof(float);
    tr_error_t err;

    assert_int_equal(cuda->stream_open(&device, &w->stream), 0);
    assert_int_equal(tr_kv_policy_create("full", LAYERS, KV_HEADS, DIM,
                                         &w->full, &err),
                     TR_OK);
    assert_int_equal(tr_kv_policy_create(spec != NULL ? spec
                                                      : "uniform:levels=8/8",
                                         LAYERS, KV_HEADS, DIM, &w->tight,
                                         &err),
                     TR_OK);
    w->cuts = spec != NULL;
    if (w->cuts) {
        tr_kv_policy_position(w->tight);
    }
    w->pos = cuda->alloc(ROWS * 4);
    w->seq_row = cuda->alloc((SLOTS + 1) * 4);
    w->numbers = cuda->alloc(numbers);
    w->ballast = cuda->alloc(BALLAST);
    w->angles = cuda->alloc(ROWS * DIM * sizeof(float));
    for (uint32_t i = 0; i < TR_KV_IN_FLIGHT; i++) {
        flight_t *f = &w->flight[i];

        f->pos = cuda->pin(ROWS * 4);
        f->seq_row = cuda->pin((SLOTS + 1) * 4);
        f->token = cuda->pin(ROWS * sizeof(int32_t));
        f->numbers = cuda->pin(numbers);
        f->angles = cuda->pin(ROWS * DIM * sizeof(float));
        assert_int_equal(cuda->event_open(&f->event), 0);
        for (uint32_t k = 0; k < ROWS * DIM; k++) { /* nothing is rotated */
            f->angles[k] = k % DIM < DIM / 2;
        }
    }
    make_cache(w, blocks);
    for (uint32_t i = 0; i < SLOTS; i++) {
        w->who[i].slot = -1;
    }
}

static void
destroy(world_t *w)
{
    tr_kv_cache_free(w->kv);
    for (uint32_t i = 0; i < TR_KV_IN_FLIGHT; i++) {
        flight_t *f = &w->flight[i];

        cuda->unpin(f->pos);
        cuda->unpin(f->seq_row);
        cuda->unpin(f->token);
        cuda->unpin(f->numbers);
        cuda->unpin(f->angles);
        cuda->event_close(f->event);
    }
    cuda->unpin(w->seen_pool);
    cuda->unpin(w->seen_tables);
    cuda->unpin(w->seen_history);
    cuda->unpin(w->seen_seq);
    cuda->unpin(w->seen_count);
    cuda->release(w->history);
    cuda->release(w->pos);
    cuda->release(w->seq_row);
    cuda->release(w->numbers);
    cuda->release(w->ballast);
    cuda->release(w->angles);
    cuda->stream_close(&w->stream);
    tr_kv_policy_free(w->full);
    tr_kv_policy_free(w->tight);
}

/* ---- tokens ------------------------------------------------------------- */

/* What stands there is a number that 16 bits hold. */
static float
mark(const actor_t *r, uint32_t head, uint32_t pos)
{
    return (float) (1 + actor_sum(r, head, pos) % 2000);
}

static float
stands(const world_t *w, int32_t slot, uint32_t head, uint32_t pos)
{
    const int32_t *row = w->seen_tables
                         + manager_head(&w->g->m, slot, head)
                               * w->kv->view.table_len;
    int32_t page = row[pos / w->page_tokens];
    uint16_t bits;

    REQUIRE(page >= 0 && (uint32_t) page < w->g->m.size.pages);
    memcpy(&bits,
           w->seen_pool + (size_t) page * tr_kv_page_bytes(w->kv)
               + tr_kv_key_row(&w->kv->view.layout[0], pos % w->page_tokens),
           2);
    return tr_float_from_half(bits);
}

/* Key of a token, all of whose numbers are the same. */
static float
coded(const place_t *p)
{
    uint16_t zero;

    memcpy(&zero, p->page + tr_kv_key_meta(p->layout, p->at, 0) + 2, 2);
    return tr_float_from_half(zero);
}

/* What stands in tiers and window, and uncompressed behind them. */
static void
verify_tight(world_t *w, const actor_t *r)
{
    static place_t place[600];
    uint32_t base = w->seen_seq[r->slot].base, page = w->page_tokens;

    REQUIRE(memcmp(w->seen_history + (size_t) r->slot * LONGEST, r->token,
                   r->n * sizeof(int32_t))
            == 0);
    REQUIRE(base <= r->n);
    for (uint32_t head = 0; head < HEADS; head++) {
        const int32_t *row = manager_row(&w->seen.m, r->slot, head);

        REQUIRE(places(&w->seen, r->slot, head, place) == base);
        for (uint32_t pos = 0; pos < r->n; pos++) {
            uint32_t at = pos - base;
            uint16_t bits;

            if (pos < base) {
                REQUIRE(coded(&place[pos]) == mark(r, head, pos));
                continue;
            }
            memcpy(&bits,
                   tr_kv_page_at(&w->seen.view, row[at / page])
                       + tr_kv_key_row(&w->kv->view.layout[0], at % page),
                   2);
            REQUIRE(tr_float_from_half(bits) == mark(r, head, pos));
        }
    }
    w->tight_verified += r->n;
}

/* All that was asked is done. */
static void
verify(world_t *w)
{
    look(w);
    for (uint32_t i = 0; i < SLOTS; i++) {
        const actor_t *r = &w->who[i];

        if (r->slot >= 0 && !r->dense && w->cuts) {
            verify_tight(w, r);
        }

        for (uint32_t pos = 0; r->slot >= 0 && r->dense && pos < r->n; pos++) {
            REQUIRE(w->seen_history[(size_t) r->slot * LONGEST + pos]
                    == r->token[pos]);
            for (uint32_t head = 0; head < HEADS; head++) {
                REQUIRE(stands(w, r->slot, head, pos) == mark(r, head, pos));
            }
            w->verified++;
        }
    }
}

/* ---- batches ------------------------------------------------------------ */

static uint32_t
under_way(const world_t *w)
{
    return (uint32_t) (w->g->next - w->g->oldest);
}

static void
collect(world_t *w)
{
    const flight_t *f = &w->flight[w->g->oldest % TR_KV_IN_FLIGHT];
    bool stalled[SLOTS];

    assert_int_equal(cuda->event_wait(f->event), 0);
    assert_int_equal(tr_kv_device_settle(w->kv, stalled), TR_OK);
    for (uint32_t i = 0; i < f->n; i++) {
        actor_t *r = &w->who[f->item[i].who];
        uint32_t end = f->item[i].row.pos + f->item[i].row.n;

        if (r->life != f->item[i].life || r->slot < 0) {
            continue;
        }
        REQUIRE(!stalled[i] || !r->dense);
        if (stalled[i]) {
            r->n = f->item[i].row.pos < r->n ? f->item[i].row.pos : r->n;
            continue;
        }
        r->fed = end;
        if (r->reuse) {
            tr_kv_keep(w->kv, r->slot, r->token, r->fed, false);
        }
    }
}

static void
fill_row(const world_t *w, flight_t *f, const actor_t *r, uint32_t pos)
{
    uint32_t at = f->rows++;

    (void) w;
    f->pos[at] = pos;
    f->token[at] = r->token[pos];
    for (uint32_t l = 0; l < LAYERS; l++) {
        float *row = f->numbers + ((size_t) l * ROWS + at) * ROW;

        for (uint32_t k = 0; k < ROW; k++) {
            row[k] = mark(r, l * KV_HEADS + k / DIM % KV_HEADS, pos);
        }
    }
}

static void
append(world_t *w, const flight_t *f)
{
    const tr_kv_manager_t *m = tr_kv_device_manager(w->kv);
    tr_rows_t rows = { f->rows, f->n, w->pos, m->seq_slot, w->seq_row };

    for (uint32_t l = 0; l < LAYERS && f->rows != 0; l++) {
        const float *in = w->numbers + (size_t) l * ROWS * ROW;
        tr_cuda_keys_t keys = { .k = in,
                                .v = in + KV_HEADS * DIM,
                                .ld = ROW,
                                .type = TR_F32,
                                .angles = w->angles };

        assert_int_equal(cuda->kv_append(&w->stream, &m->view, l, &rows, &keys,
                                         NULL),
                         0);
    }
}

/* Starts what is in it. */
static void
submit(world_t *w, flight_t *f)
{
    tr_kv_device_row_t rows[SLOTS];
    const tr_cuda_stream_t *s = &w->stream;

    f->seq_row[f->n] = f->rows;
    for (uint32_t i = 0; i < f->n; i++) {
        rows[i] = f->item[i].row;
    }
    for (uint32_t i = elsewhere(w) ? random_below(4) : 0; i != 0; i--) {
        cuda->fill(s, w->ballast, 0, BALLAST); /* other streams are ahead */
    }
    assert_int_equal(tr_kv_device_begin(w->kv, rows, f->n), 0);
    cuda->copy(s, w->pos, f->pos, ROWS * 4);
    cuda->copy(s, w->seq_row, f->seq_row, (SLOTS + 1) * 4);
    cuda->copy(s, w->angles, f->angles, ROWS * DIM * sizeof(float));
    cuda->copy(s, w->numbers, f->numbers, LAYERS * ROWS * ROW * sizeof(float));
    assert_int_equal(tr_kv_device_step(w->kv, SLOTS), 0);
    for (uint32_t i = 0; i < f->n; i++) { /* as the embedding does */
        cuda->copy(s,
                   w->history + (size_t) rows[i].slot * LONGEST + rows[i].pos,
                   f->token + f->seq_row[i], rows[i].n * sizeof(int32_t));
    }
    append(w, f);
    assert_int_equal(tr_kv_device_end(w->kv), 0);
    assert_int_equal(cuda->event_record(s, f->event), 0);
}

static flight_t *
coming(world_t *w)
{
    flight_t *f = &w->flight[w->g->next % TR_KV_IN_FLIGHT];

    f->n = f->rows = 0;
    return f;
}

static void
drain(world_t *w)
{
    while (under_way(w) != 0) {
        collect(w);
    }
    while (!tr_kv_settled(w->kv)) {
        submit(w, coming(w));
        collect(w);
    }
}

/* ---- operations --------------------------------------------------------- */

static void
make_prompt(const world_t *w, actor_t *r)
{
    uint32_t same = random_below(LONGEST), text = random_below(TEXTS);

    r->goal = 2 + random_below(LONGEST - 2);
    if (w->cuts && random_below(2) == 0) { /* a short prefix is not copied */
        same = LONGEST - random_below(LONGEST / 4);
        r->goal = LONGEST - random_below(LONGEST / 4);
    }
    actor_prompt(r, w->text[text], same);
    r->dense = w->cuts ? random_below(3) == 0 : random_below(4) != 0;
    r->reuse = (r->dense || w->cuts) && random_below(8) != 0;
    r->complete = false;
    r->n = r->fed = 0;
}

static void
now_and_then(void *world)
{
    if (random_below(3) == 0) {
        drain(world);
    }
}

static void
do_start(world_t *w, actor_t *r)
{
    const tr_kv_policy_t *policy;
    tr_kv_found_t found;

    make_prompt(w, r);
    policy = r->dense ? w->full : w->tight;
    if (r->reuse && elsewhere(w)) {
        actor_ask_more(w->kv, r, policy, now_and_then, w);
    }
    r->life = ++w->lives;
    r->slot = tr_kv_open(w->kv, policy);
    REQUIRE(r->slot >= 0);
    if (!r->reuse || r->dense) {
        tr_kv_prompt(w->kv, r->slot, r->goal);
    }
    if (!r->reuse) {
        return;
    }
    actor_find(w->kv, r, policy, &found);
    w->found += found.tokens;
    w->n_cuts += found.match.part_tokens != 0;
    w->copies += found.kept != 0;
    if (tr_kv_adopt(w->kv, r->slot, &r->key, &found) != TR_OK) {
        actor_close(w->kv, r);
    } else if (!r->dense) { /* behind what it adopted */
        tr_kv_prompt(w->kv, r->slot, r->goal);
    }
}

static void
do_fork(world_t *w, const actor_t *from, actor_t *to)
{
    if (actor_fork(w->kv, w->full, from, to, 1 + random_below(from->n))) {
        to->life = ++w->lives;
        w->forks++;
    }
}

/* Room for more tokens; it is refused exactly when there is none. */
static bool
reserve(world_t *w, actor_t *r, uint32_t to)
{
    int64_t left = tr_kv_bound(w->g) + (int64_t) tr_kv_reuse_idle(w->kv);
    uint32_t had = tr_kv_slot(w->kv, r->slot)->uncompressed_pages;
    uint32_t want = (to + w->page_tokens - 1) / w->page_tokens;
    bool good = tr_kv_reserve(w->kv, r->slot, to) == TR_OK;

    REQUIRE(!r->dense || want <= had
            || good == ((int64_t) (want - had) * HEADS <= left));
    return good;
}

/* Does it join the coming batch? */
static void
do_run(world_t *w, actor_t *r, flight_t *f)
{
    uint32_t to, most = ROWS - f->rows;

    if (r->n == r->goal && !r->dense) {
        if (!r->complete) {
            r->complete = tr_kv_compress(w->kv, r->slot, r->n) == TR_OK;
            if (r->complete && r->reuse && random_below(2) == 0) {
                w->kept += tr_kv_keep_copy(w->kv, r->slot, r->token, r->n,
                                           random_below(2) == 0);
            }
            return;
        }
        r->goal = r->goal < LONGEST ? r->goal + 1 : r->goal;
    }
    if (r->n == r->goal || most == 0) {
        return;
    }
    to = r->n + 1 + random_below(r->goal - r->n);
    to = to - r->n < most ? to : r->n + most;
    if (!reserve(w, r, to)) {
        if (random_below(3) == 0) {
            actor_close(w->kv, r);
        }
        return;
    }
    f->seq_row[f->n] = f->rows;
    f->item[f->n].who = (uint32_t) (r - w->who);
    f->item[f->n].life = r->life;
    f->item[f->n++].row = (tr_kv_device_row_t){ r->slot, r->n, to - r->n };
    for (; r->n < to; r->n++) {
        fill_row(w, f, r, r->n);
    }
}

static void
operate(world_t *w)
{
    actor_t *r = &w->who[random_below(SLOTS)],
            *other = &w->who[random_below(SLOTS)];
    uint32_t what = random_below(24);

    w->now += random_below(3);
    tr_kv_time(w->kv, w->now);
    if (what == 0) {
        tr_kv_expire(w->kv, w->now > 60 ? w->now - random_below(60) : 0);
    } else if (r->slot < 0) {
        do_start(w, r);
    } else if (what == 1) { /* whatever is under way */
        actor_close(w->kv, r);
        w->aborts++;
    } else if (what == 2
               || (r->n == r->goal && what < 12
                   && (r->dense || (r->complete && w->cuts)))) {
        if (r->reuse) {
            tr_kv_keep(w->kv, r->slot, r->token, r->fed, true);
            w->ends++;
        }
        actor_close(w->kv, r);
    } else if (what < 9 && other->slot < 0 && r->dense && r->n != 0) {
        do_fork(w, r, other);
    }
}

static void
turn(world_t *w)
{
    flight_t *f;

    while (under_way(w) == TR_KV_IN_FLIGHT
           || (under_way(w) != 0 && random_below(3) == 0)) {
        collect(w);
    }
    tr_kv_store_turn(w->kv);
    for (uint32_t n = random_below(4); n != 0; n--) {
        operate(w);
    }
    f = coming(w);
    for (uint32_t i = 0; i < SLOTS; i++) {
        if (w->who[i].slot >= 0 && random_below(3) != 0) {
            do_run(w, &w->who[i], f);
        }
    }
    submit(w, f);
    REQUIRE(tr_kv_sound(w->kv) && tr_kv_shelf_sound(w->kv));
    if (random_below(8) == 0) {
        drain(w);
        REQUIRE(tr_kv_sound(w->kv));
        verify(w);
    }
}

/* Nobody has anything, and every page is there. */
static void
check_end(world_t *w)
{
    tr_prefix_stats_t s;

    tr_kv_store_flush(w->kv, UINT64_MAX);
    tr_kv_store_stats(w->kv, &w->files);
    tr_kv_shelf_stats(w->kv, &w->on_shelf);
    tr_kv_store_close(w->kv);
    REQUIRE(w->files.failed == 0);

    for (uint32_t i = 0; i < SLOTS; i++) {
        if (w->who[i].slot >= 0) {
            actor_close(w->kv, &w->who[i]);
        }
    }
    drain(w);
    tr_kv_prefixes(w->kv, &s);
    REQUIRE(s.held == 0 && s.evicted != 0);
    REQUIRE(tr_kv_free_pages(w->kv) == tr_kv_pages(w->kv));
    REQUIRE(w->g->report.pages[0] == 0);
    tr_kv_time(w->kv, w->now + 1);
    tr_kv_expire(w->kv, w->now + 1);
    drain(w);
    tr_kv_prefixes(w->kv, &s);
    REQUIRE(s.nodes == 0 && tr_kv_sound(w->kv));
    REQUIRE(w->g->free == tr_kv_pages(w->kv));
    REQUIRE(w->g->report.faults == 0 && w->g->report.n_refused == 0);
}

/* Did too few come and go, as yet? */
static bool
few_files(world_t *w)
{
    tr_kv_store_stats(w->kv, &w->files);
    tr_kv_shelf_stats(w->kv, &w->on_shelf);
    return (w->dir != NULL
            && (w->files.stored < 10
                || (w->files.loaded < 10 && w->shelf == 0)))
           || (w->shelf != 0
               && (w->on_shelf.stored < 10 || w->on_shelf.loaded < 10));
}

static void
play_in(const char *dir, uint32_t shelf, uint32_t blocks, bool overflow,
        const char *spec)
{
    uint64_t n = given("TR_PREFIX_OPS", 4000);
    world_t *w = calloc(1, sizeof(*w));

    assert_non_null(w);
    n = dir != NULL || shelf != 0 ? n / 12 /* there are many of these, */
        : spec != NULL            ? n / 4  /* and four of those */
                                  : n;
    w->dir = dir;
    w->shelf = shelf;
    seed = given("TR_PREFIX_SEED", (uint64_t) time(NULL));
    fixture_state = seed * 0x9e3779b97f4a7c15u + 1;
    create(w, blocks, spec);
    if (overflow) { /* the list is launched early, again and again */
        w->g->list.room = 5;
        w->g->list.share_room = 3;
    }
    actor_texts(w->text, TEXTS);
    for (uint64_t i = 0; i < n || (few_files(w) && i < 20 * n); i++) {
        turn(w);
        if (i % 4 == 0) { /* or what is evicted at once is never written */
            tr_kv_store_flush(w->kv, UINT64_MAX);
        }
    }
    check_end(w);
    print_message("seed %llu: %llu tokens found, %llu cuts, %llu forks, %llu "
                  "ends, %llu aborts, %llu tokens verified\n",
                  (unsigned long long) seed, (unsigned long long) w->found,
                  (unsigned long long) w->n_cuts, (unsigned long long) w->forks,
                  (unsigned long long) w->ends, (unsigned long long) w->aborts,
                  (unsigned long long) w->verified);
    REQUIRE(w->found != 0 && w->n_cuts != 0 && w->ends != 0
            && (w->forks != 0 || spec != NULL || elsewhere(w)) && w->aborts != 0
            && w->verified != 0);
    if (spec != NULL) {
        print_message("%s: %llu copies taken, %llu kept, %llu tokens "
                      "verified\n",
                      spec, (unsigned long long) w->copies,
                      (unsigned long long) w->kept,
                      (unsigned long long) w->tight_verified);
        REQUIRE(w->copies != 0 && w->kept != 0 && w->tight_verified != 0);
    }
    if (dir != NULL) {
        print_message("files: %llu written, %llu read, %llu skipped\n",
                      (unsigned long long) w->files.stored,
                      (unsigned long long) w->files.loaded,
                      (unsigned long long) w->files.skipped);
        REQUIRE(w->files.stored >= 10
                && (w->files.loaded >= 10 || w->shelf != 0));
    }
    if (shelf != 0) {
        print_message("shelf: %llu stored, %llu read, %llu evicted, %llu"
                      " skipped\n",
                      (unsigned long long) w->on_shelf.stored,
                      (unsigned long long) w->on_shelf.loaded,
                      (unsigned long long) w->on_shelf.evicted,
                      (unsigned long long) w->on_shelf.skipped);
        REQUIRE(w->on_shelf.stored >= 10 && w->on_shelf.loaded >= 10);
    }
    destroy(w);
    free(w);
}

static void
play(uint32_t blocks, bool overflow, const char *spec)
{
    play_in(NULL, 0, blocks, overflow, spec);
}

static void
tiny_pool(void **unused)
{
    (void) unused;
    play(14, false, NULL);
}

static void
roomy_pool(void **unused)
{
    (void) unused;
    play(40, false, NULL);
}

static void
short_list(void **unused)
{
    (void) unused;
    play(24, true, NULL);
}

/* Compressed ones are kept and cut, in order, by position, with a window and
 * without one. */
static void
compressed(void **unused)
{
    (void) unused;
    play(40, false, "uniform:levels=8/4,window=9");
    play(50, false, "int4");
    play(40, false, "diffkv:alpha_high=1,alpha_low=0,window=16,sinks=3");
    play(40, true, "uniform:levels=8/8");
}

/* Twice in a directory: the second one finds what the first has left. */
static void
files_of(uint32_t shelf, uint32_t blocks, bool overflow, const char *spec)
{
    char dir[] = "/tmp/tokenring-device-XXXXXX";

    assert_non_null(mkdtemp(dir));
    play_in(dir, shelf, blocks, overflow, spec);
    play_in(dir, shelf, blocks, overflow, spec);
    remove_files(dir);
}

static void
with_files(void **unused)
{
    (void) unused;
    files_of(0, 14, false, NULL);
    files_of(0, 30, true, NULL);
    files_of(0, 40, false, "uniform:levels=8/4,window=9");
    files_of(0, 50, true, "int4");
    files_of(0, 40, false, "diffkv:alpha_high=1,alpha_low=0,window=16,sinks=3");
}

static void
with_a_shelf(void **unused)
{
    (void) unused;
    play_in(NULL, 300, 14, false, NULL);
    play_in(NULL, 120, 30, true, NULL);
    play_in(NULL, 120, 40, false, "uniform:levels=8/4,window=9");
    play_in(NULL, 60, 50, true, "int4");
    play_in(NULL, 120, 40, false,
            "diffkv:alpha_high=1,alpha_low=0,window=16,sinks=3");
    files_of(60, 30, false, "uniform:levels=8/8");
}

/* However many blocks a prompt has, they are lent by one launch, and kept by
 * one. */
static void
one_launch_each(void **unused)
{
    world_t *w = calloc(1, sizeof(*w));
    actor_t *r;
    flight_t *f;
    tr_kv_found_t found;

    (void) unused;
    assert_non_null(w);
    fixture_state = 1;
    create(w, 60, NULL);
    r = &w->who[0];
    *r = (actor_t){
        .dense = true, .reuse = true, .goal = 4 * w->page_tokens, .life = 1
    };
    r->slot = tr_kv_open(w->kv, w->full);
    tr_kv_find(w->kv, w->full, &r->key, r->token, r->goal - 1, &found);
    assert_int_equal(tr_kv_adopt(w->kv, r->slot, &r->key, &found), TR_OK);
    r->reuse = false; /* collect keeps nothing */
    while (r->n < r->goal) {
        f = coming(w);
        do_run(w, r, f);
        submit(w, f);
        collect(w);
    }
    tr_kv_keep(w->kv, r->slot, r->token, r->n, false);
    assert_int_equal(w->g->list.n_groups, 1);
    tr_kv_find(w->kv, w->full, &r->key, r->token, r->goal, &found);
    assert_int_equal(found.match.blocks, 4);
    w->who[1].slot = tr_kv_open(w->kv, w->full);
    assert_int_equal(tr_kv_adopt(w->kv, w->who[1].slot, &r->key, &found),
                     TR_OK);
    assert_int_equal(w->g->list.n_groups, 3); /* cede, open, lend */
    drain(w);
    assert_true(tr_kv_sound(w->kv));
    destroy(w);
    free(w);
}

static int
setup(void **state)
{
    (void) state;
    soft_load();
    return 0;
}

int
main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_launch_each), cmocka_unit_test(tiny_pool),
        cmocka_unit_test(roomy_pool),      cmocka_unit_test(short_list),
        cmocka_unit_test(compressed),      cmocka_unit_test(with_files),
        cmocka_unit_test(with_a_shelf)
    };

    cmocka_set_test_filter(argc > 1 ? argv[1] : "*");
    return cmocka_run_group_tests_name("kv_device_prefix", tests, setup, NULL);
}
